//! Properties that hold for any requests, cancellations and errors.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use model::is_image_token;

use proptest::{collection::vec, option, prelude::*};

use super::{Harness, VOCAB, collect_all, image};
use crate::{
    BackendError, Capacity, DraftCounts, DraftStats, Event, EventStream, Request, RequestError, Sampling,
    TokenConstraint, Usage,
    testing::{EveryNth, MockDraftModel, MockOptions},
};

const MAX_CLIENTS: u32 = 12;

/// What a request predicts, given its completion.
#[derive(Clone, Debug)]
enum Predicts {
    Nothing,
    /// Its completion.
    Right,
    /// Another token at every position.
    Wrong,
    /// Its completion, with another token at some positions.
    Sometimes(Vec<bool>),
    /// Right as long as it takes to be trusted, then wrong.
    Adversarial {
        right: usize,
    },
}

impl Predicts {
    fn prediction(&self, completion: &[u32]) -> Vec<u32> {
        let right = |index: usize| match self {
            Predicts::Nothing | Predicts::Right => true,
            Predicts::Wrong => false,
            Predicts::Sometimes(positions) => positions[index % positions.len()],
            Predicts::Adversarial { right } => index % (right + 1) < *right,
        };
        let token = |(index, token): (usize, &u32)| if right(index) { *token } else { (token + 1) % VOCAB };
        match self {
            Predicts::Nothing => vec![],
            _ => completion.iter().enumerate().map(token).collect(),
        }
    }
}

fn predicts() -> impl Strategy<Value = Predicts> {
    prop_oneof![
        2 => Just(Predicts::Nothing),
        2 => Just(Predicts::Right),
        1 => Just(Predicts::Wrong),
        2 => vec(prop::bool::weighted(0.8), 1..40).prop_map(Predicts::Sometimes),
        2 => (1..6_usize).prop_map(|right| Predicts::Adversarial { right }),
    ]
}

/// Draft models that are always, sometimes and never right, some of them with many prefill steps.
fn draft_model() -> impl Strategy<Value = MockDraftModel> {
    (0..=4_u32, 1..40_usize, 0..2_u64).prop_map(|(right_of_four, prefill_tokens, milliseconds)| {
        MockDraftModel {
            right_of_four,
            prefill_tokens,
            step_time: Duration::from_millis(milliseconds),
            loses_device: false,
        }
    })
}

/// Step times by rows: drafts cost nothing, or any time.
fn step_times() -> impl Strategy<Value = Vec<Duration>> {
    let any = vec((1..4_u64).prop_map(Duration::from_millis), 0..12);
    prop_oneof![2 => Just(vec![Duration::from_millis(1); 12]), 1 => any]
}

/// A request, the round of its submission, and after how many rounds it is cancelled.
#[derive(Clone, Debug)]
struct Client {
    request: Request,
    submit_round: usize,
    cancel_after: Option<usize>,
}

#[derive(Clone, Debug)]
struct Scenario {
    options: MockOptions,
    clients: Vec<Client>,
}

/// An image of a prompt: its number, its place and its length.
type ImageBlock = (u8, usize, u32);

/// Puts images into a prompt, in place of text: not next to each other, nor at the end.
fn add_images(request: &mut Request, blocks: &[ImageBlock]) {
    let mut images = vec![];
    for (number, place, length) in blocks {
        let image = image(*number, *length);
        let (start, end) = (*place, *place + *length as usize);
        let around = start.saturating_sub(1)..end + 1;
        if end + 1 < request.prompt.len()
            && !request.prompt[around].iter().any(|token| is_image_token(*token))
        {
            request.prompt.splice(start..end, image.tokens());
            images.push((start, image));
        }
    }
    images.sort_by_key(|(start, _)| *start);
    request.images = images.into_iter().map(|(_, image)| image).collect();
}

fn grammar() -> impl Strategy<Value = EveryNth> {
    (1..4_u32, 1..40_usize).prop_map(|(n, max_tokens)| EveryNth { max_tokens, ..EveryNth::new(n) })
}

fn client(context_length: usize) -> impl Strategy<Value = Client> {
    let prompt = (vec(MAX_CLIENTS..VOCAB, 1..=context_length), 0..=context_length);
    let prompt = prompt.prop_map(|(mut prompt, common)| {
        // A prefix that prompts have in common, like the system prompt of chats.
        for (index, token) in prompt.iter_mut().enumerate().take(common) {
            *token = MAX_CLIENTS + 5 * index as u32 % (VOCAB - MAX_CLIENTS);
        }
        prompt
    });
    let stop_token_ids = vec(0..VOCAB, 0..4);
    let grammar = option::weighted(0.3, grammar());
    (
        prompt,
        0..40_u32,
        (stop_token_ids, grammar, option::weighted(0.25, 0..3_u32)),
        0..3_u64,
        any::<bool>(),
        0..30_usize,
        option::weighted(0.3, 0..30_usize),
    )
        .prop_map(|(prompt, max_tokens, constraints, seed, penalties, submit_round, cancel_after)| {
            let (stop_token_ids, grammar, prompt_logprobs) = constraints;
            let repetition = if penalties { 1.1 } else { 1.0 };
            let sampling = Sampling { seed, repetition, ..Sampling::default() };
            let stop_token = stop_token_ids.first().copied();
            let grammar = grammar.map(|grammar| EveryNth { stop_token, ..grammar });
            let grammar = grammar.map(|grammar| Box::new(grammar) as Box<dyn TokenConstraint>);
            let request = Request::new(prompt, NonZeroU32::MIN);
            // Without a completion a request can only report its prompt.
            let max_tokens = if prompt_logprobs.is_some() { max_tokens } else { max_tokens.max(1) };
            let request =
                Request { max_tokens, prompt_logprobs, sampling, stop_token_ids, grammar, ..request };
            Client { request, submit_round, cancel_after }
        })
}

fn backend_error() -> impl Strategy<Value = BackendError> {
    prop_oneof![
        3 => Just(BackendError::DeviceLost("lost".into())),
        2 => Just(BackendError::OutOfMemory("no memory".into())),
        1 => Just(BackendError::NoFreePages),
        1 => Just(BackendError::NonFiniteLogits),
        1 => Just(BackendError::Other("a bug".into())),
    ]
}

fn scenario(max_errors: usize) -> impl Strategy<Value = Scenario> {
    let sequences = (1..5_u32, 4..40_u32, 1..7_u32);
    let steps = (1..10_usize, 1..6_usize, 1..6_usize, 1..6_usize, 1..5_u32);
    let cache = (0.0..2.0_f64, 1..40_u32, prop::bool::weighted(0.8));
    let encoder = (1..4_u32, 1..4_u32, 1..10_usize);
    let max_verify_sequences = prop_oneof![Just(u32::MAX), 1..3_u32];
    let verify = (
        1..=model::MAX_VERIFY_ROWS as u32,
        max_verify_sequences,
        step_times(),
        option::weighted(0.4, draft_model()),
    );
    (sequences, steps, cache, encoder, verify).prop_flat_map(
        move |(sequences, steps, cache, encoder, verify)| {
            let (max_verify_rows, max_verify_sequences, step_times, draft_model) = verify;
            let (extra_pages, window, prefix_cache) = cache;
            let (max_images_per_step, encode_calls, prefill_budget) = encoder;
            let (max_sequences, context_length, page_size) = sequences;
            let (prefill_chunk, max_steps, max_sequences_per_step, decode_batch, max_chunks_per_step) = steps;
            let min_pages = context_length.div_ceil(page_size);
            let capacity = Capacity {
                max_sequences,
                context_length,
                vocab_size: VOCAB,
                page_size,
                pages: min_pages + (f64::from(min_pages) * extra_pages) as u32,
                max_chunks_per_step,
                max_verify_rows,
                max_verify_sequences,
                has_draft_model: false,
                max_images_per_step,
                prefix_cache,
            };
            let images = vec((0..3_u8, 0..context_length as usize, 1..=prefill_chunk as u32), 0..4);
            let images = vec(images, MAX_CLIENTS as usize);
            let errors = proptest::collection::btree_map(0..60_u64, backend_error(), 0..=max_errors);
            let predicts = vec(predicts(), MAX_CLIENTS as usize);
            (vec(client(context_length as usize), 1..MAX_CLIENTS as usize), images, predicts, errors)
                .prop_map(move |(mut clients, images, predicts, errors)| {
                    for (client, images) in clients.iter_mut().zip(&images) {
                        // Their log probabilities cannot be reported.
                        if client.request.prompt_logprobs.is_none() {
                            add_images(&mut client.request, images);
                        }
                    }
                    clients.sort_by_key(|client| client.submit_round);
                    // The last prompt token identifies the client: it occurs nowhere else in a prompt.
                    for (number, client) in clients.iter_mut().enumerate() {
                        *client.request.prompt.last_mut().unwrap() = number as u32;
                    }
                    let options = MockOptions {
                        capacity,
                        window,
                        prefill_chunk,
                        prefill_budget,
                        encode_calls,
                        max_steps,
                        decode_batch,
                        max_sequences_per_step,
                        errors,
                        step_times: step_times.clone(),
                        draft_model,
                        ..MockOptions::default()
                    };
                    for (client, predicts) in clients.iter_mut().zip(&predicts) {
                        let (completion, _) = options.reference(&client.request);
                        let mut prediction = predicts.prediction(&completion);
                        prediction.truncate(context_length as usize);
                        client.request.prediction = prediction;
                    }
                    Scenario { options, clients }
                })
        },
    )
}

/// Runs a scenario, checks all streams and counters, and returns the errors of failed requests.
fn run(scenario: &Scenario) -> Vec<RequestError> {
    let Scenario { options, clients } = scenario;
    let mut harness = Harness::new(options.clone());
    let mut streams: BTreeMap<usize, EventStream> = BTreeMap::new();
    for round in 0..60 {
        for (number, client) in clients.iter().enumerate() {
            if client.submit_round == round {
                streams.insert(number, harness.submit(&client.request));
            }
            if client.cancel_after.is_some_and(|after| client.submit_round + after == round) {
                streams.remove(&number);
            }
        }
        harness.round();
    }
    harness.finish();
    assert_eq!(harness.inspector.free_pages(), options.capacity.pages);
    let starts = harness.inspector.starts();

    let mut errors = vec![];
    for (number, stream) in &mut streams {
        let request = &clients[*number].request;
        let (expected, reason) = options.reference(request);
        let (scored, tokens, last) = collect_all(stream);
        let prompt = request.prompt_logprobs.map_or(&[][..], |_| &request.prompt[1..]);
        match last {
            Event::Failed(error) => {
                assert!(expected.starts_with(&tokens) && prompt.starts_with(&scored));
                errors.push(error);
            }
            last => {
                assert_eq!(tokens, expected, "request {number}");
                assert_eq!(scored, prompt, "request {number}");
                // Cached tokens are those of the first admission.
                let first_start = starts.iter().find(|start| start.tokens == request.prompt);
                let first_start = first_start.filter(|_| request.prompt_logprobs.is_none());
                let usage = Usage {
                    prompt_tokens: request.prompt.len() as u32,
                    cached_tokens: first_start.map_or(0, |start| start.cached as u32),
                    completion_tokens: tokens.len() as u32,
                    ..Usage::default()
                };
                let Event::Finished { reason: got, usage: counted } = last else { panic!("{last:?}") };
                assert_eq!(
                    (
                        got,
                        Usage {
                            decode_bytes: 0,
                            decode_tokens: 0,
                            joules: None,
                            drafts: DraftStats::default(),
                            ..counted
                        }
                    ),
                    (reason, usage)
                );
                let DraftCounts { drafted, accepted } = counted.drafts.total();
                assert!(accepted <= drafted && accepted < u64::from(counted.completion_tokens).max(1));
            }
        }
    }
    let status = &harness.scheduler.status;
    assert_eq!(status.finished + status.failed + status.cancelled, clients.len() as u64);
    assert_eq!(status.cached_tokens as usize, starts.iter().map(|start| start.cached).sum::<usize>());
    assert!(options.capacity.prefix_cache || status.cached_tokens == 0);
    let DraftCounts { drafted, accepted } = status.drafts.total();
    assert!(status.verify_steps <= drafted && accepted <= drafted);

    let mut admitted: Vec<usize> = vec![];
    for start in starts {
        let number = clients.iter().position(|client| start.tokens.starts_with(&client.request.prompt));
        let number = number.unwrap();
        // A scored prompt starts another sequence only after a preemption.
        if !admitted.contains(&number) && clients[number].request.prompt_logprobs.is_none() {
            admitted.push(number);
        }
    }
    assert!(admitted.is_sorted(), "admitted out of order: {admitted:?}");
    errors
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_request_generates_the_same_tokens_as_alone(scenario in scenario(0)) {
        assert_eq!(run(&scenario), []);
    }

    #[test]
    fn backend_errors_fail_no_more_requests_than_they_must(scenario in scenario(12)) {
        let failures = run(&scenario);
        let injected: Vec<&BackendError> = scenario.options.errors.values().collect();
        let count = |is: fn(&BackendError) -> bool| injected.iter().filter(|error| is(error)).count();
        let failed = |is: fn(&RequestError) -> bool| failures.iter().filter(|error| is(error)).count();
        assert!(failed(|error| *error == RequestError::NonFiniteLogits)
            <= count(|error| *error == BackendError::NonFiniteLogits));
        assert!(failed(|error| *error == RequestError::OutOfMemory)
            <= count(BackendError::is_resource_exhausted));
        // A failed recovery counts as another loss.
        if failed(|error| *error == RequestError::DeviceLost) > 0 {
            assert!(count(|error| matches!(error, BackendError::DeviceLost(_))) >= 1 && injected.len() >= 3);
        }
        let unexpected = |error: &RequestError| {
            matches!(error, RequestError::DeadlineExceeded | RequestError::Stopped)
        };
        assert_eq!(failed(unexpected), 0);
    }
}
