//! What must hold whatever is asked for and whatever goes wrong.

use std::{collections::BTreeMap, num::NonZeroU32};

use proptest::{collection::vec, option, prelude::*};

use super::{Stage, VOCAB, listen};
use crate::{
    BackendError, Capacity, Event, EventStream, Request, RequestError, Sampling, TokenConstraint, Usage,
    testing::{EveryNth, MockOptions},
};

const MOST_VISITORS: u32 = 12;

/// A request, when it comes, and after how many rounds it is given up.
#[derive(Clone, Debug)]
struct Visitor {
    request: Request,
    arrives: usize,
    leaves: Option<usize>,
}

#[derive(Clone, Debug)]
struct Scenario {
    options: MockOptions,
    visitors: Vec<Visitor>,
}

/// EveryNth second or third token, for so many of them, and the first of its ends only now and then.
fn grammar() -> impl Strategy<Value = EveryNth> {
    (1..4_u32, 1..40_usize).prop_map(|(of, most)| EveryNth { max_tokens: most, ..EveryNth::new(of) })
}

fn visitor(context: usize) -> impl Strategy<Value = Visitor> {
    let prompt = (vec(MOST_VISITORS..VOCAB, 1..=context), 0..=context).prop_map(|(mut prompt, common)| {
        // What some begin with, as chats do with their system prompt.
        for (at, token) in prompt.iter_mut().enumerate().take(common) {
            *token = MOST_VISITORS + 5 * at as u32 % (VOCAB - MOST_VISITORS);
        }
        prompt
    });
    let ends = vec(0..VOCAB, 0..4);
    let grammar = option::weighted(0.3, grammar());
    (
        prompt,
        1..40_u32,
        (ends, grammar),
        0..3_u64,
        any::<bool>(),
        0..30_usize,
        option::weighted(0.3, 0..30_usize),
    )
        .prop_map(|(prompt, most, (ends, grammar), seed, penalties, arrives, leaves)| {
            let repetition = if penalties { 1.1 } else { 1.0 };
            let sampling = Sampling { seed, repetition, ..Sampling::default() };
            let grammar = grammar.map(|grammar| EveryNth { stop_token: ends.first().copied(), ..grammar });
            let grammar = grammar.map(|grammar| Box::new(grammar) as Box<dyn TokenConstraint>);
            let request = Request {
                sampling,
                stop_token_ids: ends,
                grammar,
                ..Request::new(prompt, NonZeroU32::new(most).unwrap())
            };
            Visitor { request, arrives, leaves }
        })
}

fn fault() -> impl Strategy<Value = BackendError> {
    prop_oneof![
        3 => Just(BackendError::DeviceLost("lost".into())),
        2 => Just(BackendError::OutOfMemory("no memory".into())),
        1 => Just(BackendError::NoFreePages),
        1 => Just(BackendError::NonFiniteLogits),
        1 => Just(BackendError::Other("a bug".into())),
    ]
}

fn scenario(faults: usize) -> impl Strategy<Value = Scenario> {
    let sizes = (1..5_u32, 4..40_u32, 1..7_u32, 1..10_usize, 1..6_usize, (1..6_usize, 1..6_usize, 1..5_u32));
    let cache = (0.0..2.0_f64, 1..40_u32, prop::bool::weighted(0.8));
    (sizes, cache).prop_flat_map(move |(sizes, (share, window, prefix))| {
        let (sequences, context, page, chunk, steps, (crowd, at_once, chunks)) = sizes;
        let fewest = context.div_ceil(page);
        let pages = fewest + (f64::from(fewest) * share) as u32;
        let capacity = Capacity {
            max_sequences: sequences,
            context_length: context,
            vocab_size: VOCAB,
            page_size: page,
            pages,
            max_chunks_per_step: chunks,
            prefix_cache: prefix,
        };
        let faults = proptest::collection::btree_map(0..60_u64, fault(), 0..=faults);
        (vec(visitor(context as usize), 1..MOST_VISITORS as usize), faults).prop_map(
            move |(mut visitors, faults)| {
                visitors.sort_by_key(|visitor| visitor.arrives);
                // The last token tells them apart: it is nowhere else in a prompt.
                for (number, visitor) in visitors.iter_mut().enumerate() {
                    *visitor.request.prompt.last_mut().unwrap() = number as u32;
                }
                let options = MockOptions {
                    capacity,
                    window,
                    prefill_chunk: chunk,
                    max_steps: steps,
                    decode_batch: at_once,
                    max_sequences_per_step: crowd,
                    errors: faults,
                    ..MockOptions::default()
                };
                Scenario { options, visitors }
            },
        )
    })
}

fn play(scenario: &Scenario) -> Vec<RequestError> {
    let Scenario { options, visitors } = scenario;
    let mut stage = Stage::new(options.clone());
    let mut answers: BTreeMap<usize, EventStream> = BTreeMap::new();
    for round in 0..60 {
        for (number, visitor) in visitors.iter().enumerate() {
            if visitor.arrives == round {
                answers.insert(number, stage.submit(&visitor.request));
            }
            if visitor.leaves.is_some_and(|leaves| visitor.arrives + leaves == round) {
                answers.remove(&number);
            }
        }
        stage.round();
    }
    stage.finish();
    assert_eq!(stage.watch.free_pages(), options.capacity.pages);

    let mut failures = vec![];
    for (number, answer) in &mut answers {
        let request = &visitors[*number].request;
        let (expected, why) = options.alone(request);
        let (tokens, last) = listen(answer);
        match last {
            Event::Failed(failure) => {
                assert!(expected.starts_with(&tokens));
                failures.push(failure);
            }
            last => {
                assert_eq!(tokens, expected, "request {number}");
                let (prompt_tokens, completion_tokens) = (request.prompt.len() as u32, tokens.len() as u32);
                // The first time that its prompt was read.
                let starts = stage.watch.starts();
                let cached = starts.iter().find(|start| start.text == request.prompt).unwrap().held as u32;
                let usage = Usage { prompt_tokens, cached_tokens: cached, completion_tokens };
                assert_eq!(last, Event::Finished { reason: why, usage });
            }
        }
    }
    let status = &stage.scheduler.status;
    assert_eq!(status.finished + status.failed + status.cancelled, visitors.len() as u64);

    let starts = stage.watch.starts();
    assert_eq!(status.cached_tokens as usize, starts.iter().map(|start| start.held).sum::<usize>());
    assert!(options.capacity.prefix_cache || status.cached_tokens == 0);
    let mut admitted: Vec<usize> = vec![];
    for start in starts {
        let whose = |visitor: &Visitor| start.text.starts_with(&visitor.request.prompt);
        let number = visitors.iter().position(whose).unwrap();
        if !admitted.contains(&number) {
            admitted.push(number);
        }
    }
    assert!(admitted.is_sorted(), "admitted in another order than they came: {admitted:?}");
    failures
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn everyone_gets_the_tokens_it_would_get_alone(scenario in scenario(0)) {
        assert_eq!(play(&scenario), []);
    }

    #[test]
    fn faults_cost_time_and_end_nobody_who_is_not_at_fault(scenario in scenario(12)) {
        let failures = play(&scenario);
        let faults: Vec<&BackendError> = scenario.options.errors.values().collect();
        let count = |of: fn(&BackendError) -> bool| faults.iter().filter(|fault| of(fault)).count();
        let failed = |of: fn(&RequestError) -> bool| failures.iter().filter(|failure| of(failure)).count();
        assert!(failed(|failure| *failure == RequestError::NonFiniteLogits) <= count(|fault| *fault == BackendError::NonFiniteLogits));
        assert!(failed(|failure| *failure == RequestError::OutOfMemory)
            <= count(|fault| matches!(fault, BackendError::OutOfMemory(_) | BackendError::NoFreePages)));
        // One that is not put back counts as lost once more.
        if failed(|failure| *failure == RequestError::DeviceLost) > 0 {
            assert!(count(|fault| matches!(fault, BackendError::DeviceLost(_))) >= 1 && faults.len() >= 3);
        }
        assert_eq!(failed(|failure| matches!(failure, RequestError::DeadlineExceeded | RequestError::Stopped)), 0);
    }
}
