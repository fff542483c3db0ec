//! What the scheduler does, round by round on the plain backend.

mod properties;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
};

use super::Scheduler;
use crate::{
    BackendError, Capacity, Event, EventStream, FinishReason, Options, Request, RequestError, Sampling,
    inbox::Shared,
    testing::{EveryNth, Inspector, MockBackend, MockOptions},
};

const VOCAB: u32 = 64;

/// Enough for all requests one after the other, each read again and again.
const MOST_ROUNDS: usize = 20_000;

/// A scheduler whose rounds a test counts itself.
struct Stage {
    shared: Arc<Shared>,
    scheduler: Scheduler<MockBackend>,
    watch: Inspector,
}

impl Stage {
    fn new(options: MockOptions) -> Self {
        let backend = MockBackend::new(options);
        let watch = backend.inspector();
        let shared = Arc::new(Shared::new(backend.options().capacity, Options::default()));
        Self { scheduler: Scheduler::new(backend, shared.clone()), shared, watch }
    }

    fn alone(&self, request: &Request) -> (Vec<u32>, FinishReason) {
        self.scheduler.backend.options().alone(request)
    }

    fn submit(&self, request: &Request) -> EventStream {
        self.shared.submit(request.clone()).unwrap()
    }

    /// A round, if there is something to do.
    fn round(&mut self) {
        if !self.is_idle() {
            assert!(self.scheduler.receive());
            self.scheduler.round();
            self.check();
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.shared.inbox().arrived.is_empty()
    }

    fn finish(&mut self) {
        for _ in 0..MOST_ROUNDS {
            if self.is_idle() {
                return;
            }
            self.round();
        }
        panic!("someone waits for ever");
    }

    /// What holds after every round.
    fn check(&self) {
        let Scheduler { prefilling, decoding, queue, status, .. } = &self.scheduler;
        let sequences = prefilling.iter().map(|prefilling| &prefilling.sequence);
        let sequences = sequences.chain(decoding.iter().map(|decoding| &decoding.sequence));
        // Some hold the same.
        let held: BTreeSet<u32> = sequences.flat_map(|sequence| sequence.pages()).copied().collect();
        let capacity = self.shared.capacity;
        let taken = capacity.pages - self.watch.free_pages();
        assert_eq!(taken as usize, held.len(), "pages are those of live sequences");
        assert_eq!(status.pages.free, self.watch.free_pages());
        assert!(status.pages.cached <= status.pages.free);
        assert_eq!(self.watch.sequences() as usize, self.scheduler.running());
        // Who writes, who reads, who waits: in the order of arrival.
        let jobs = decoding
            .iter()
            .map(|decoding| &decoding.job)
            .chain(prefilling.iter().map(|prefilling| &prefilling.job));
        let numbers: Vec<u64> = jobs.clone().chain(queue).map(|job| job.id).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        // Nobody leaves during a round here.
        assert!(jobs.chain(queue).all(|job| !job.events.is_closed()), "a cancelled request is still there");
    }
}

/// What a stream said: its tokens, and its last event.
fn listen(answer: &mut EventStream) -> (Vec<u32>, Event) {
    let mut tokens = vec![];
    let mut started = None;
    let last = loop {
        match answer.blocking_next().expect("a last event comes before the end") {
            Event::Started { cached_tokens } => {
                assert_eq!(started.replace(cached_tokens), None, "started twice")
            }
            Event::Token(token) => {
                assert!(started.is_some());
                tokens.push(token.id);
            }
            last => break last,
        }
    };
    if let Event::Finished { usage, .. } = last {
        assert_eq!(started, Some(usage.cached_tokens));
    }
    assert_eq!(answer.blocking_next(), None);
    (tokens, last)
}

fn request(first: u32, prompt: usize, most: u32) -> Request {
    let prompt = (0..prompt as u32).map(|at| (first + 7 * at) % VOCAB).collect();
    Request::new(prompt, NonZeroU32::new(most).unwrap())
}

fn options(sequences: u32, pages: u32) -> MockOptions {
    let capacity = Capacity {
        max_sequences: sequences,
        context_length: 64,
        vocab_size: VOCAB,
        page_size: 4,
        pages,
        ..MockOptions::default().capacity
    };
    MockOptions { capacity, prefill_chunk: 8, max_steps: 4, ..MockOptions::default() }
}

#[test]
fn who_came_last_is_set_back_when_pages_run_out_and_its_stream_goes_on() {
    let mut stage = Stage::new(options(3, 16));
    let requests = [request(0, 8, 40), request(1, 8, 40), request(2, 8, 40)];
    let mut answers = requests.each_ref().map(|request| stage.submit(request));
    stage.finish();
    assert!(stage.scheduler.status.preemptions >= 2, "{:?}", stage.scheduler.status);
    for (request, answer) in requests.iter().zip(&mut answers) {
        assert_eq!(listen(answer).0, stage.alone(request).0);
    }
    // The first was never set back: it is read once.
    let read = stage.watch.steps().into_iter().flat_map(|step| step.chunks);
    assert_eq!(read.filter(|(held, tokens)| *held == 0 && tokens[0] == 0).count(), 1);
}

#[test]
fn those_who_write_go_on_while_a_long_prompt_is_read() {
    let mut stage = Stage::new(options(3, 48));
    let _short = [request(0, 4, 60), request(1, 4, 60)].map(|request| stage.submit(&request));
    for _ in 0..4 {
        stage.round();
    }
    let before = stage.watch.steps().len();
    let _long = stage.submit(&request(2, 60, 4));
    for _ in 0..8 {
        stage.round();
    }
    let steps = &stage.watch.steps()[before..];
    assert_eq!(steps.len(), 8);
    assert!(steps.iter().all(|step| step.decode_rows == 2 && step.chunks.len() == 1), "{steps:?}");
}

#[test]
fn short_prompts_are_read_together() {
    let mut stage = Stage::new(options(5, 80));
    // Eight tokens a step, of three at most: the third's fifth token is for the next, which has room for the two that are left.
    let requests =
        [(0, 1), (10, 3), (20, 5), (30, 3), (40, 2)].map(|(first, prompt)| request(first, prompt, 9));
    let mut answers = requests.each_ref().map(|request| stage.submit(request));
    stage.round();
    stage.round();
    let steps = stage.watch.steps();
    let of = |number: usize, from: usize, to: usize| (from, requests[number].prompt[from..to].to_vec());
    assert_eq!(steps[0].chunks, [of(0, 0, 1), of(1, 0, 3), of(2, 0, 4)]);
    assert_eq!(
        (steps[1].decode_rows, &steps[1].chunks[..]),
        (2, &[of(2, 4, 5), of(3, 0, 3), of(4, 0, 2)][..])
    );
    stage.finish();
    for (request, answer) in requests.iter().zip(&mut answers) {
        assert_eq!(listen(answer).0, stage.alone(request).0);
    }
}

#[test]
fn a_prompt_that_no_room_is_left_beside_is_read_alone() {
    let mut stage = Stage::new(options(3, 48));
    let requests = [request(0, 20, 4), request(1, 2, 4)];
    let _answers = requests.each_ref().map(|request| stage.submit(request));
    for (round, chunks) in [1, 1, 2].into_iter().enumerate() {
        stage.round();
        assert_eq!(stage.watch.steps()[round].chunks.len(), chunks, "step {round}");
    }
}

#[test]
fn pages_of_what_is_still_to_be_read_are_not_given_to_another() {
    // Sixteen pages, of which each needs eight, and one more that it may write.
    let mut stage = Stage::new(MockOptions { prefill_chunk: 64, ..options(3, 16) });
    let requests = [0, 1, 2].map(|first| request(first, 32, 1));
    let mut answers = requests.each_ref().map(|request| stage.submit(request));
    stage.finish();
    assert_eq!(stage.scheduler.status.preemptions, 0, "{:?}", stage.watch.steps());
    assert!(stage.watch.steps().iter().all(|step| step.chunks.len() == 1), "{:?}", stage.watch.steps());
    for (request, answer) in requests.iter().zip(&mut answers) {
        assert_eq!(listen(answer).0, stage.alone(request).0);
    }
}

#[test]
fn pages_of_a_dropped_answer_are_free_before_the_next_step() {
    let mut stage = Stage::new(options(2, 32));
    let one = stage.submit(&request(0, 8, 50));
    let _other = stage.submit(&request(1, 8, 50));
    for _ in 0..4 {
        stage.round();
    }
    assert_eq!(stage.scheduler.decoding.len(), 2);
    drop(one);
    stage.round();
    assert_eq!(stage.watch.steps().last().unwrap().decode_rows, 1);
    assert_eq!(stage.scheduler.status.cancelled, 1);
}

#[test]
fn a_device_lost_three_times_in_a_row_is_given_up_and_tried_again_for_the_next() {
    let lost = || BackendError::DeviceLost("lost".into());
    // start, step (lost), revive (fails), revive, start, step (lost): three without a token.
    let faults = BTreeMap::from([(1, lost()), (2, lost()), (5, lost())]);
    let mut stage = Stage::new(MockOptions { errors: faults, ..options(2, 32) });
    // So long that each takes a step of its own.
    let mut answers = [request(0, 8, 4), request(1, 8, 4)].map(|request| stage.submit(&request));
    stage.finish();
    for answer in &mut answers {
        assert_eq!(listen(answer), (vec![], Event::Failed(RequestError::DeviceLost)));
    }
    let next = request(2, 4, 4);
    let mut answer = stage.submit(&next);
    stage.finish();
    let (tokens, last) = listen(&mut answer);
    assert_eq!(tokens, stage.alone(&next).0);
    assert!(matches!(last, Event::Finished { reason: FinishReason::MaxTokens, .. }));
}

#[test]
fn one_lost_device_shows_in_no_stream() {
    let faults = BTreeMap::from([(6, BackendError::DeviceLost("lost".into()))]);
    let mut stage = Stage::new(MockOptions { errors: faults, ..options(3, 48) });
    let requests = [request(0, 20, 30), request(1, 9, 30), request(2, 8, 30)];
    let mut answers = requests.each_ref().map(|request| stage.submit(request));
    stage.finish();
    assert_eq!((stage.scheduler.status.devices_lost, stage.scheduler.status.failed), (1, 0));
    for (request, answer) in requests.iter().zip(&mut answers) {
        assert_eq!(listen(answer).0, stage.alone(request).0);
    }
}

#[test]
fn one_request_without_finite_numbers_does_not_end_the_others() {
    // Both write by then. Of the steps by themselves, the first's fails too.
    let faults = BTreeMap::from([(6, BackendError::NonFiniteLogits), (7, BackendError::NonFiniteLogits)]);
    let mut stage = Stage::new(MockOptions { errors: faults, ..options(2, 32) });
    let requests = [request(0, 8, 30), request(1, 8, 30)];
    let [mut one, mut other] = requests.each_ref().map(|request| stage.submit(request));
    stage.finish();
    assert_eq!(listen(&mut one).1, Event::Failed(RequestError::NonFiniteLogits));
    assert_eq!(listen(&mut other).0, stage.alone(&requests[1]).0);
}

#[test]
fn a_run_that_there_are_no_pages_for_is_a_step_at_least() {
    let capacity = Capacity {
        max_sequences: 2,
        context_length: 32,
        vocab_size: VOCAB,
        page_size: 4,
        pages: 8,
        ..MockOptions::default().capacity
    };
    let mut stage =
        Stage::new(MockOptions { capacity, prefill_chunk: 32, max_steps: 8, ..MockOptions::default() });
    let mut requests = [request(0, 20, 12), request(1, 1, 12)];
    // The first ends after a few steps, on its sixth page. A run of 8 would need eight, and three for the other.
    requests[0].stop_token_ids = vec![stage.alone(&requests[0]).0[3]];
    let mut answers = requests.each_ref().map(|request| stage.submit(request));
    stage.finish();
    assert_eq!(stage.scheduler.status.preemptions, 0, "{:?}", stage.watch.steps());
    for (request, answer) in requests.iter().zip(&mut answers) {
        assert_eq!(listen(answer).0, stage.alone(request).0);
    }
}

/// Submits a request and lets it be answered: its tokens and how many of its prompt's needed no reading.
fn ask(stage: &mut Stage, request: &Request) -> (Vec<u32>, u32) {
    let mut answer = stage.submit(request);
    stage.finish();
    let (tokens, last) = listen(&mut answer);
    assert_eq!(tokens, stage.alone(request).0);
    let Event::Finished { usage, .. } = last else { panic!("{last:?}") };
    (tokens, usage.cached_tokens)
}

#[test]
fn the_next_turn_of_a_chat_reads_only_what_is_new() {
    // A window of 10, which the first turn is beyond.
    let capacity = Capacity {
        max_sequences: 2,
        context_length: 128,
        vocab_size: VOCAB,
        page_size: 4,
        pages: 64,
        ..MockOptions::default().capacity
    };
    let mut stage = Stage::new(MockOptions { capacity, window: 10, ..options(2, 64) });
    let first = request(0, 29, 13);
    let (answer, cached) = ask(&mut stage, &first);
    assert_eq!((answer.len(), cached), (13, 0));
    let mut second = request(0, 29, 13);
    second.prompt.extend(answer);
    second.prompt.extend([50, 51, 52]);
    let before = stage.watch.steps().len();
    // The last token that it wrote was in no step.
    assert_eq!(ask(&mut stage, &second).1, 29 + 12);
    let read = stage.watch.steps()[before..].iter().flat_map(|step| step.chunks.clone()).collect::<Vec<_>>();
    assert_eq!(read, [(41, second.prompt[41..].to_vec())]);
    let status = &stage.scheduler.status;
    assert_eq!((status.prompt_tokens, status.cached_tokens), (29 + 4, 41));
    assert!(status.pages.cached > 0 && status.pages.free == status.pages.total, "{:?}", status.pages);
}

#[test]
fn what_several_begin_with_is_read_once_and_held_once() {
    // Pages for 64 positions: three of 52 would not go in by themselves.
    let mut stage = Stage::new(MockOptions { window: 12, ..options(3, 16) });
    let requests = [10, 20, 30].map(|own| {
        let mut request = request(0, 40, 8);
        request.prompt.extend([own, own + 1, own + 2, own + 3]);
        request
    });
    let mut answers = requests.each_ref().map(|request| stage.submit(request));
    let mut most = 0;
    while !stage.is_idle() {
        stage.round();
        most = most.max(stage.scheduler.running());
    }
    assert!(most >= 2, "one after the other");
    for (request, answer) in requests.iter().zip(&mut answers) {
        assert_eq!(listen(answer).0, stage.alone(request).0);
    }
    let read: Vec<usize> = stage.watch.starts().iter().map(|start| start.held).collect();
    assert_eq!(read[..2], [0, 40], "{read:?}");
}

#[test]
fn who_begins_as_another_that_is_read_waits_and_shares_its_pages() {
    let requests = [10, 20].map(|own| {
        let mut request = request(0, 5, 4);
        request.prompt.push(own);
        request
    });
    // There would be room for both in the first step, and there is where nothing is kept. A page is four tokens.
    for (prefix, held) in [(true, [0, 4]), (false, [0, 0])] {
        let plain = options(2, 32);
        let capacity = Capacity { prefix_cache: prefix, ..plain.capacity };
        let mut stage = Stage::new(MockOptions { capacity, prefill_chunk: 16, ..plain });
        let mut answers = requests.each_ref().map(|request| stage.submit(request));
        stage.finish();
        let found: Vec<usize> = stage.watch.starts().iter().map(|start| start.held).collect();
        assert_eq!((found, stage.watch.steps()[0].chunks.len()), (held.to_vec(), if prefix { 1 } else { 2 }));
        for (request, answer) in requests.iter().zip(&mut answers) {
            assert_eq!(listen(answer).0, stage.alone(request).0);
        }
    }
}

#[test]
fn penalties_of_all_who_read_forget_a_step_that_failed() {
    // Two starts, and a step that has read both prompts and chosen tokens.
    let faults = BTreeMap::from([(2, BackendError::NonFiniteLogits)]);
    let mut stage = Stage::new(MockOptions { errors: faults, ..options(2, 32) });
    let sampling = Sampling { repetition: 1.1, ..Sampling::default() };
    let requests = [0, 1].map(|first| Request { sampling: sampling.clone(), ..request(first, 3, 1) });
    let mut answers = requests.each_ref().map(|request| stage.submit(request));
    stage.finish();
    assert_eq!(stage.watch.count_resets(), 2);
    for (request, answer) in requests.iter().zip(&mut answers) {
        assert_eq!(listen(answer).0, stage.alone(request).0);
    }
}

#[test]
fn a_lost_device_takes_the_cache_with_it() {
    // start, three chunks, three runs; then start and a chunk that is lost.
    let faults = BTreeMap::from([(8, BackendError::DeviceLost("lost".into()))]);
    let mut stage = Stage::new(MockOptions { errors: faults, ..options(2, 32) });
    let first = request(0, 20, 12);
    ask(&mut stage, &first);
    assert_eq!(ask(&mut stage, &first).1, 16);
    let held: Vec<usize> = stage.watch.starts().iter().map(|start| start.held).collect();
    assert_eq!((stage.scheduler.status.devices_lost, held), (1, vec![0, 16, 0]));
}

#[test]
fn those_who_are_too_many_at_once_take_turns() {
    let mut stage = Stage::new(MockOptions { decode_batch: 4, max_steps: 1, ..options(5, 64) });
    let requests = [0, 1, 2, 3, 4].map(|number| request(number, 4, 30));
    let mut answers = requests.each_ref().map(|request| stage.submit(request));
    while stage.scheduler.decoding.len() < 5 {
        stage.round();
    }
    let written = |stage: &Stage| -> Vec<usize> {
        stage.scheduler.decoding.iter().map(|decoding| decoding.job.generated.len()).collect()
    };
    let before = written(&stage);
    for _ in 0..10 {
        stage.round();
    }
    let since: Vec<usize> = written(&stage).iter().zip(&before).map(|(now, before)| now - before).collect();
    assert_eq!(since, [8; 5], "each sat out two of ten runs");
    stage.finish();
    for (request, answer) in requests.iter().zip(&mut answers) {
        assert_eq!(listen(answer).0, stage.alone(request).0);
    }
}

#[test]
fn while_one_follows_a_grammar_all_take_single_steps_and_afterwards_runs_again() {
    let mut stage = Stage::new(options(3, 48));
    let free = request(0, 8, 40);
    let grammar = EveryNth { max_tokens: 6, ..EveryNth::new(2) };
    let guided = Request { grammar: Some(Box::new(grammar)), ..request(1, 8, 40) };
    let mut answers = [&free, &guided].map(|request| stage.submit(request));
    stage.finish();
    let (tokens, last) = listen(&mut answers[1]);
    assert_eq!(tokens.len(), 6);
    assert!(tokens.iter().all(|token| token.is_multiple_of(2)), "{tokens:?}");
    assert_eq!((tokens, FinishReason::Stop), stage.alone(&guided));
    assert!(matches!(last, Event::Finished { reason: FinishReason::Stop, .. }), "{last:?}");
    assert_eq!(listen(&mut answers[0]).0, stage.alone(&free).0);
    // 40 tokens of the one, five of them beside the other; the rest in runs of 4.
    assert!(stage.watch.steps().len() < 20, "{:?}", stage.watch.steps());
}

#[test]
fn a_grammar_that_fails_ends_its_own_request_with_its_words() {
    let mut stage = Stage::new(options(3, 48));
    // After some tokens, and before the first: while its prompt is read.
    let guided = [3, 0].map(|most| {
        let grammar = EveryNth { fails_after: Some(most), ..EveryNth::new(2) };
        Request { grammar: Some(Box::new(grammar)), ..request(1, 8, 40) }
    });
    let free = request(0, 8, 20);
    let mut answers = [&free, &guided[0], &guided[1]].map(|request| stage.submit(request));
    stage.finish();
    for (answer, tokens) in answers[1..].iter_mut().zip([3, 0]) {
        let (told, last) = listen(answer);
        assert_eq!(told.len(), tokens);
        assert_eq!(last, Event::Failed(RequestError::Grammar(format!("no more than {tokens} tokens"))));
    }
    assert_eq!(listen(&mut answers[0]).0, stage.alone(&free).0);
    // Where nothing is left, by itself or since the rest is banned, that is said.
    let nothing = EveryNth { accepted: 1, stop_token: Some(0), ..EveryNth::new(VOCAB) };
    let bans = Sampling { biases: vec![(0, -100.0), (63, -100.0)], ..Sampling::default() };
    for (grammar, sampling) in [(nothing, Sampling::default()), (EveryNth::new(63), bans)] {
        let request = Request { grammar: Some(Box::new(grammar)), sampling, ..request(1, 8, 4) };
        let mut answer = stage.submit(&request);
        stage.finish();
        let (told, last) = listen(&mut answer);
        assert!(
            told.is_empty()
                && matches!(&last, Event::Failed(RequestError::Grammar(text)) if text.contains("no further token"))
        );
    }
}

#[test]
fn the_most_probable_tokens_are_told_where_they_are_asked_for() {
    let mut stage = Stage::new(options(2, 32));
    let asks = |top: u32| Request { sampling: Sampling { top, ..Sampling::default() }, ..request(top, 4, 6) };
    let mut answers = [asks(0), asks(3)].map(|request| stage.submit(&request));
    stage.finish();
    for (answer, top) in answers.iter_mut().zip([0, 3]) {
        let mut tokens = 0;
        while let Some(event) = answer.blocking_next() {
            if let Event::Token(token) = event {
                assert_eq!(
                    token.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
                    (0..top).collect::<Vec<_>>()
                );
                tokens += 1;
            }
        }
        assert_eq!(tokens, 6);
    }
}
