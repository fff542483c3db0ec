//! Tests of the scheduler, round by round on the mock backend.

mod properties;
mod speculation;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    num::NonZeroU32,
    sync::{Arc, Mutex},
};

use images::{Gemma3, Picture};
use model::Image;

use super::{Scheduler, is_burst};
use crate::{
    BackendError, Capacity, Event, EventStream, FinishReason, Options, Request, RequestError, Sampling,
    inbox::Shared,
    job::{Decoding, Job},
    testing::{EveryNth, Inspector, MockBackend, MockOptions},
};

const VOCAB: u32 = 64;

/// Enough for all requests of a test one after the other, each recomputed many times.
const MAX_ROUNDS: usize = 20_000;

/// A scheduler without its thread: the test runs each round.
struct Harness {
    shared: Arc<Shared>,
    scheduler: Scheduler<MockBackend>,
    inspector: Inspector,
}

impl Harness {
    fn new(options: MockOptions) -> Self {
        Self::with_options(options, Options::default())
    }

    fn with_options(backend: MockOptions, options: Options) -> Self {
        let backend = MockBackend::new(backend);
        let inspector = backend.inspector();
        let shared = Arc::new(Shared::new(backend.options().capacity, options));
        Self { scheduler: Scheduler::new(backend, shared.clone(), None), shared, inspector }
    }

    fn reference(&self, request: &Request) -> (Vec<u32>, FinishReason) {
        self.scheduler.backend.options().reference(request)
    }

    fn submit(&self, request: &Request) -> EventStream {
        self.shared.submit(request.clone()).unwrap()
    }

    /// One round, unless idle.
    fn round(&mut self) {
        if !self.is_idle() {
            assert!(self.scheduler.receive());
            self.scheduler.round();
            self.check_invariants();
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.shared.inbox().arrived.is_empty()
    }

    /// Runs rounds until all requests have ended.
    fn finish(&mut self) {
        for _ in 0..MAX_ROUNDS {
            if self.is_idle() {
                return;
            }
            self.round();
        }
        panic!("a request never ends");
    }

    /// Asserts that streams of finished requests hold the tokens that each request generates alone.
    fn check_tokens(&self, requests: &[Request], streams: &mut [EventStream]) {
        for (request, stream) in requests.iter().zip(streams) {
            assert_eq!(collect(stream).0, self.reference(request).0);
        }
    }

    /// Asserts the invariants that hold after every round.
    fn check_invariants(&self) {
        let Scheduler { prefilling, scoring, decoding, queue, status, .. } = &self.scheduler;
        let sequences = prefilling.iter().chain(scoring).map(|prefilling| &prefilling.sequence);
        let sequences = sequences.chain(decoding.iter().map(|decoding| &decoding.sequence));
        // Sequences may share pages.
        let held: BTreeSet<u32> = sequences.flat_map(|sequence| sequence.pages()).copied().collect();
        let used = self.shared.capacity.pages - self.inspector.free_pages();
        assert_eq!(used as usize, held.len(), "the pages in use are those of live sequences");
        assert_eq!(status.pages.free, self.inspector.free_pages());
        assert!(status.pages.cached <= status.pages.free);
        assert_eq!(self.inspector.sequences() as usize, self.scheduler.running());
        for Decoding { job, sequence, .. } in decoding {
            let pages = job.sequence_len().div_ceil(self.shared.capacity.page_size as usize);
            assert_eq!(sequence.pages().len(), pages, "pages for tokens that the sequence does not have");
        }
        // Decoding, prefilling, waiting: in order of submission, but for those whose prompts are scored or have images.
        let decoding: Vec<&Job> = decoding.iter().map(|decoding| &decoding.job).collect();
        let prefilling: Vec<&Job> = prefilling.iter().map(|prefilling| &prefilling.job).collect();
        let scoring: Vec<&Job> = scoring.iter().map(|scoring| &scoring.job).collect();
        let waiting: Vec<&Job> = queue.iter().collect();
        for list in [&decoding, &prefilling, &scoring, &waiting] {
            assert!(list.is_sorted_by_key(|job| job.id));
        }
        let jobs = [decoding, prefilling, waiting, scoring].concat();
        let is_plain = |job: &&&Job| job.request.prompt_logprobs.is_none() && job.request.images.is_empty();
        assert!(jobs.iter().filter(is_plain).is_sorted_by_key(|job| job.id));
        // No stream is dropped during a round.
        assert!(jobs.iter().all(|job| !job.events.is_closed()), "a cancelled request is still there");
    }
}

/// All tokens of a finished stream, and its last event. Asserts that the events are in order.
fn collect(stream: &mut EventStream) -> (Vec<u32>, Event) {
    let (_, tokens, last) = collect_all(stream);
    (tokens, last)
}

/// The prompt tokens that a stream reports, the tokens of its completion, and its last event.
fn collect_all(stream: &mut EventStream) -> (Vec<u32>, Vec<u32>, Event) {
    let (mut prompt, mut tokens) = (vec![], vec![]);
    let mut started = None;
    let last = loop {
        match stream.blocking_next().expect("a last event comes before the end") {
            Event::Started { cached_tokens } => {
                assert_eq!(started.replace(cached_tokens), None, "started twice");
            }
            Event::PromptTokens(scored) => {
                assert!(started.is_some() && tokens.is_empty());
                prompt.extend(scored.iter().map(|token| token.id));
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
    assert_eq!(stream.blocking_next(), None);
    (prompt, tokens, last)
}

fn request(first: u32, prompt_tokens: usize, max_tokens: u32) -> Request {
    let prompt = (0..prompt_tokens as u32).map(|index| (first + 7 * index) % VOCAB).collect();
    Request::new(prompt, NonZeroU32::new(max_tokens).unwrap())
}

/// Image number `number`, with this many soft tokens.
fn image(number: u8, soft_tokens: u32) -> Image {
    let picture = Picture::new(1, 1, vec![number; 3]).unwrap();
    let patches = Gemma3::new(1, 1).process(&picture).remove(0);
    Image::new(Arc::new(patches), picture.content_hash(), soft_tokens)
}

fn capacity(max_sequences: u32, context_length: u32, pages: u32) -> Capacity {
    let default = MockOptions::default().capacity;
    Capacity { max_sequences, context_length, vocab_size: VOCAB, page_size: 4, pages, ..default }
}

fn options(max_sequences: u32, pages: u32) -> MockOptions {
    let capacity = capacity(max_sequences, 64, pages);
    MockOptions { capacity, prefill_chunk: 8, max_steps: 4, ..MockOptions::default() }
}

#[test]
fn steps_are_longer_while_many_requests_wait_for_their_first_token() {
    const REQUESTS: u32 = 12;
    // 8 tokens in 100 ms, 20 in 250.
    let backend =
        MockOptions { prefill_tokens_per_second: Some(80.0), prefill_chunk: 64, ..options(REQUESTS, 128) };
    let mut harness = Harness::new(backend);
    let prompts = (0..REQUESTS).map(|first| (first..first + 16).collect::<Vec<u32>>());
    let requests: Vec<Request> =
        prompts.map(|prompt| Request::new(prompt, NonZeroU32::new(60).unwrap())).collect();
    let mut streams: Vec<EventStream> = requests.iter().map(|request| harness.submit(request)).collect();
    let mut steps = vec![];
    while harness.scheduler.decoding.len() < REQUESTS as usize {
        let (waiting, before) =
            (REQUESTS as usize - harness.scheduler.decoding.len(), harness.scheduler.status.prompt_tokens);
        harness.round();
        steps.push((waiting, harness.scheduler.status.prompt_tokens - before));
    }
    let (burst, rest): (Vec<_>, Vec<_>) = steps.into_iter().partition(|(waiting, _)| *waiting >= 8);
    assert!(burst.len() > 2 && burst.iter().all(|(_, tokens)| *tokens == 20), "{burst:?}");
    assert!(rest.len() > 8 && rest.iter().all(|(_, tokens)| *tokens <= 8), "{rest:?}");
    harness.finish();
    harness.check_tokens(&requests, &mut streams);
}

#[test]
fn requests_that_find_no_pages_are_no_burst() {
    let mut backend =
        MockOptions { prefill_tokens_per_second: Some(80.0), prefill_chunk: 64, ..options(12, 128) };
    // A sequence of the full context length, or a few shorter ones.
    backend.capacity.pages = 128 / backend.capacity.page_size;
    let mut harness = Harness::new(backend);
    let prompts = (0..12).map(|first| (first..first + 40).collect::<Vec<u32>>());
    let requests: Vec<Request> =
        prompts.map(|prompt| Request::new(prompt, NonZeroU32::new(20).unwrap())).collect();
    let mut streams: Vec<EventStream> = requests.iter().map(|request| harness.submit(request)).collect();
    let mut mixed_steps = 0;
    while !harness.is_idle() {
        let (decoding, before) = (harness.scheduler.decoding.len(), harness.scheduler.status.prompt_tokens);
        harness.round();
        let tokens = harness.scheduler.status.prompt_tokens - before;
        if decoding > 0 && tokens > 0 {
            mixed_steps += 1;
            assert!(tokens <= 8, "{tokens} tokens beside {decoding} decoding requests");
        }
    }
    assert!(mixed_steps > 0, "the test is about steps beside decoding requests");
    harness.check_tokens(&requests, &mut streams);
}

#[test]
fn a_burst_needs_eight_requests_without_a_token_and_one_per_eight_that_decode() {
    assert!(is_burst(8, 0) && is_burst(8, 64) && is_burst(64, 64));
    assert!(!is_burst(7, 0), "few wait");
    assert!(!is_burst(8, 65), "most decode");
}

#[test]
fn preempted_requests_resume_without_duplicate_tokens() {
    let mut harness = Harness::new(options(3, 16));
    let requests = [request(0, 8, 40), request(1, 8, 40), request(2, 8, 40)];
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    harness.finish();
    assert!(harness.scheduler.status.preemptions >= 2, "{:?}", harness.scheduler.status);
    harness.check_tokens(&requests, &mut streams);
    // The oldest is never preempted: its prompt is prefilled once.
    let chunks = harness.inspector.steps().into_iter().flat_map(|step| step.chunks);
    assert_eq!(chunks.filter(|(len, tokens)| *len == 0 && tokens[0] == 0).count(), 1);
}

#[test]
fn decoding_continues_during_the_prefill_of_a_long_prompt() {
    let mut harness = Harness::new(options(3, 48));
    let _short = [request(0, 4, 60), request(1, 4, 60)].map(|request| harness.submit(&request));
    for _ in 0..4 {
        harness.round();
    }
    let before = harness.inspector.steps().len();
    let _long = harness.submit(&request(2, 60, 4));
    for _ in 0..8 {
        harness.round();
    }
    let steps = &harness.inspector.steps()[before..];
    assert_eq!(steps.len(), 8);
    assert!(steps.iter().all(|step| step.decode_rows == 2 && step.chunks.len() == 1), "{steps:?}");
}

#[test]
fn short_prompts_share_a_step() {
    let mut harness = Harness::new(options(5, 80));
    // A step has 8 prefill tokens and 3 chunks. The third prompt's fifth token goes into the second step,
    // together with the two prompts that are left.
    let requests =
        [(0, 1), (10, 3), (20, 5), (30, 3), (40, 2)].map(|(first, prompt)| request(first, prompt, 9));
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    harness.round();
    harness.round();
    let steps = harness.inspector.steps();
    let chunk = |number: usize, from: usize, to: usize| (from, requests[number].prompt[from..to].to_vec());
    assert_eq!(steps[0].chunks, [chunk(0, 0, 1), chunk(1, 0, 3), chunk(2, 0, 4)]);
    assert_eq!(steps[1].decode_rows, 2);
    assert_eq!(steps[1].chunks, [chunk(2, 4, 5), chunk(3, 0, 3), chunk(4, 0, 2)]);
    harness.finish();
    harness.check_tokens(&requests, &mut streams);
}

#[test]
fn a_prompt_that_fills_the_step_is_prefilled_alone() {
    let mut harness = Harness::new(options(3, 48));
    let requests = [request(0, 20, 4), request(1, 2, 4)];
    let _streams = requests.each_ref().map(|request| harness.submit(request));
    for (round, chunks) in [1, 1, 2].into_iter().enumerate() {
        harness.round();
        assert_eq!(harness.inspector.steps()[round].chunks.len(), chunks, "step {round}");
    }
}

#[test]
fn admission_reserves_the_pages_of_unfinished_prefills() {
    // Sixteen pages; each request needs eight for its prompt, and one more to decode.
    let mut harness = Harness::new(MockOptions { prefill_chunk: 64, ..options(3, 16) });
    let requests = [0, 1, 2].map(|first| request(first, 32, 1));
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    harness.finish();
    let steps = harness.inspector.steps();
    assert_eq!(harness.scheduler.status.preemptions, 0, "{steps:?}");
    assert!(steps.iter().all(|step| step.chunks.len() == 1), "{steps:?}");
    harness.check_tokens(&requests, &mut streams);
}

#[test]
fn pages_of_a_dropped_stream_are_free_before_the_next_step() {
    let mut harness = Harness::new(options(2, 32));
    let one = harness.submit(&request(0, 8, 50));
    let _other = harness.submit(&request(1, 8, 50));
    for _ in 0..4 {
        harness.round();
    }
    assert_eq!(harness.scheduler.decoding.len(), 2);
    drop(one);
    harness.round();
    assert_eq!(harness.inspector.steps().last().unwrap().decode_rows, 1);
    assert_eq!(harness.scheduler.status.cancelled, 1);
}

#[test]
fn requests_fail_after_three_device_losses_and_later_ones_try_again() {
    let lost = || BackendError::DeviceLost("lost".into());
    // start, step (lost), recover (fails), recover, start, step (lost): three losses without a token.
    let errors = BTreeMap::from([(1, lost()), (2, lost()), (5, lost())]);
    let mut harness = Harness::new(MockOptions { errors, ..options(2, 32) });
    // Each prompt fills a step.
    let mut streams = [request(0, 8, 4), request(1, 8, 4)].map(|request| harness.submit(&request));
    harness.finish();
    for stream in &mut streams {
        assert_eq!(collect(stream), (vec![], Event::Failed(RequestError::DeviceLost)));
    }
    let next = request(2, 4, 4);
    let mut stream = harness.submit(&next);
    harness.finish();
    let (tokens, last) = collect(&mut stream);
    assert_eq!(tokens, harness.reference(&next).0);
    assert!(matches!(last, Event::Finished { reason: FinishReason::MaxTokens, .. }));
}

#[test]
fn a_recovered_device_loss_is_invisible_in_streams() {
    let errors = BTreeMap::from([(6, BackendError::DeviceLost("lost".into()))]);
    let mut harness = Harness::new(MockOptions { errors, ..options(3, 48) });
    let requests = [request(0, 20, 30), request(1, 9, 30), request(2, 8, 30)];
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    harness.finish();
    assert_eq!((harness.scheduler.status.devices_lost, harness.scheduler.status.failed), (1, 0));
    harness.check_tokens(&requests, &mut streams);
}

#[test]
fn non_finite_logits_fail_only_the_request_at_fault() {
    // Both requests decode by then. Of the individual steps, the first one's fails again.
    let errors = BTreeMap::from([(6, BackendError::NonFiniteLogits), (7, BackendError::NonFiniteLogits)]);
    let mut harness = Harness::new(MockOptions { errors, ..options(2, 32) });
    let requests = [request(0, 8, 30), request(1, 8, 30)];
    let [mut one, mut other] = requests.each_ref().map(|request| harness.submit(request));
    harness.finish();
    assert_eq!(collect(&mut one).1, Event::Failed(RequestError::NonFiniteLogits));
    assert_eq!(collect(&mut other).0, harness.reference(&requests[1]).0);
}

#[test]
fn a_decode_run_without_enough_pages_falls_back_to_one_step() {
    let capacity = capacity(2, 32, 8);
    let mut harness =
        Harness::new(MockOptions { capacity, prefill_chunk: 32, max_steps: 8, ..MockOptions::default() });
    let mut requests = [request(0, 20, 12), request(1, 1, 12)];
    // The first request stops after a few steps, on its sixth page. A run of 8 steps would need eight pages
    // for it and three for the other.
    requests[0].stop_token_ids = vec![harness.reference(&requests[0]).0[3]];
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    harness.finish();
    assert_eq!(harness.scheduler.status.preemptions, 0, "{:?}", harness.inspector.steps());
    harness.check_tokens(&requests, &mut streams);
}

/// Runs a request to its end: its tokens, and how many of its prompt were cached.
fn complete(harness: &mut Harness, request: &Request) -> (Vec<u32>, u32) {
    let mut stream = harness.submit(request);
    harness.finish();
    let (tokens, last) = collect(&mut stream);
    assert_eq!(tokens, harness.reference(request).0);
    let Event::Finished { usage, .. } = last else { panic!("{last:?}") };
    (tokens, usage.cached_tokens)
}

#[test]
fn the_next_turn_of_a_chat_prefills_only_new_tokens() {
    // The first turn is longer than the window of 10.
    let mut harness =
        Harness::new(MockOptions { capacity: capacity(2, 128, 64), window: 10, ..options(2, 64) });
    let first = request(0, 29, 13);
    let (completion, cached) = complete(&mut harness, &first);
    assert_eq!((completion.len(), cached), (13, 0));
    let mut second = request(0, 29, 13);
    second.prompt.extend(completion);
    second.prompt.extend([50, 51, 52]);
    let before = harness.inspector.steps().len();
    // The last generated token was in no step.
    assert_eq!(complete(&mut harness, &second).1, 29 + 12);
    let steps = harness.inspector.steps();
    let chunks = steps[before..].iter().flat_map(|step| step.chunks.clone()).collect::<Vec<_>>();
    assert_eq!(chunks, [(41, second.prompt[41..].to_vec())]);
    let status = &harness.scheduler.status;
    assert_eq!((status.prompt_tokens, status.cached_tokens), (29 + 4, 41));
    assert!(status.pages.cached > 0 && status.pages.free == status.pages.total, "{:?}", status.pages);
}

#[test]
fn a_common_prefix_is_prefilled_once_and_its_pages_are_shared() {
    // Pages for 64 positions: three sequences of 52 would not fit without sharing.
    let mut harness = Harness::new(MockOptions { window: 12, ..options(3, 16) });
    let requests = [10, 20, 30].map(|own| {
        let mut request = request(0, 40, 8);
        request.prompt.extend([own, own + 1, own + 2, own + 3]);
        request
    });
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    let mut max_running = 0;
    while !harness.is_idle() {
        harness.round();
        max_running = max_running.max(harness.scheduler.running());
    }
    assert!(max_running >= 2, "requests ran one after the other");
    harness.check_tokens(&requests, &mut streams);
    let cached: Vec<usize> = harness.inspector.starts().iter().map(|start| start.cached).collect();
    assert_eq!(cached[..2], [0, 40], "{cached:?}");
}

#[test]
fn a_request_waits_for_a_common_prefix_in_prefill_and_shares_it() {
    let requests = [10, 20].map(|own| {
        let mut request = request(0, 5, 4);
        request.prompt.push(own);
        request
    });
    // The first step has room for both. Only without a prefix cache do they share it. A page is four tokens,
    // and the fifth is copied.
    for (prefix_cache, expected) in [(true, [0, 5]), (false, [0, 0])] {
        let options = options(2, 32);
        let capacity = Capacity { prefix_cache, ..options.capacity };
        let mut harness = Harness::new(MockOptions { capacity, prefill_chunk: 16, ..options });
        let mut streams = requests.each_ref().map(|request| harness.submit(request));
        harness.finish();
        let cached: Vec<usize> = harness.inspector.starts().iter().map(|start| start.cached).collect();
        assert_eq!(cached, expected);
        assert_eq!(harness.inspector.steps()[0].chunks.len(), if prefix_cache { 1 } else { 2 });
        harness.check_tokens(&requests, &mut streams);
    }
}

#[test]
fn several_answers_to_a_short_prompt_read_it_once() {
    // A page is 64 tokens: the prompt fills half of one.
    let options = options(4, 32);
    let capacity = Capacity { page_size: 64, context_length: 128, pages: 32, ..options.capacity };
    let mut harness = Harness::new(MockOptions { capacity, prefill_chunk: 128, ..options });
    let seeded = |seed| {
        let sampling = Sampling { seed, ..Sampling::default() };
        Request { sampling, ..request(0, 31, 6) }
    };
    let requests = [1, 2, 3, 4].map(seeded);
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    harness.finish();
    let cached: Vec<usize> = harness.inspector.starts().iter().map(|start| start.cached).collect();
    assert_eq!(cached, [0, 30, 30, 30]);
    let chunks: Vec<usize> = harness.inspector.steps().iter().map(|step| step.chunks.len()).collect();
    assert_eq!(chunks[..2], [1, 3], "the others' last tokens share a step");
    assert_eq!(harness.scheduler.status.prompt_tokens, 31 + 3);
    harness.check_tokens(&requests, &mut streams);
    // The same prompt again.
    assert_eq!(complete(&mut harness, &seeded(5)).1, 30);
    // Prompts with little in common do not wait for each other.
    let before = harness.inspector.steps().len();
    let others = [40, 50].map(|first| request(first, 20, 2));
    let mut streams = others.each_ref().map(|request| harness.submit(request));
    harness.finish();
    assert_eq!(harness.inspector.steps()[before].chunks.len(), 2);
    harness.check_tokens(&others, &mut streams);
}

#[test]
fn penalty_counts_of_prefilling_requests_are_reset_after_a_failed_step() {
    // Two starts, and a step that has prefilled both prompts and sampled tokens.
    let errors = BTreeMap::from([(2, BackendError::NonFiniteLogits)]);
    let mut harness = Harness::new(MockOptions { errors, ..options(2, 32) });
    let sampling = Sampling { repetition: 1.1, ..Sampling::default() };
    let requests = [0, 1].map(|first| Request { sampling: sampling.clone(), ..request(first, 3, 1) });
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    harness.finish();
    assert_eq!(harness.inspector.count_resets(), 2);
    harness.check_tokens(&requests, &mut streams);
}

#[test]
fn a_preempted_request_returns_before_younger_ones_whose_prompts_are_scored() {
    let sampling = Sampling { repetition: 1.1, ..Sampling::default() };
    let scored = |first, prompt_tokens| Request {
        prompt_logprobs: Some(0),
        sampling: sampling.clone(),
        ..request(first, prompt_tokens, 4)
    };
    // The second request's step fails, then the reset of its counts. It returns when the first has ended, while the
    // prompt of the third is being scored.
    let requests = [request(0, 4, 12), scored(1, 16), scored(2, 60)];
    let mut preemptions = 0;
    for failed in 0..24 {
        for reset in failed + 1..failed + 4 {
            let errors = BTreeMap::from([
                (failed, BackendError::NonFiniteLogits),
                (reset, BackendError::OutOfMemory("no memory".into())),
            ]);
            let mut harness = Harness::new(MockOptions { errors, max_steps: 1, ..options(3, 64) });
            let mut streams = requests.each_ref().map(|request| harness.submit(request));
            harness.finish();
            preemptions += harness.scheduler.status.preemptions;
            for (request, stream) in requests.iter().zip(&mut streams) {
                assert!(harness.reference(request).0.starts_with(&collect(stream).0));
            }
        }
    }
    assert!(preemptions >= 3, "{preemptions}");
}

#[test]
fn a_lost_device_empties_the_prefix_cache() {
    // start, three chunks, three runs; then start and a chunk that loses the device.
    let errors = BTreeMap::from([(8, BackendError::DeviceLost("lost".into()))]);
    let mut harness = Harness::new(MockOptions { errors, ..options(2, 32) });
    let first = request(0, 20, 12);
    complete(&mut harness, &first);
    assert_eq!(complete(&mut harness, &first).1, 19);
    let cached: Vec<usize> = harness.inspector.starts().iter().map(|start| start.cached).collect();
    assert_eq!((harness.scheduler.status.devices_lost, cached), (1, vec![0, 19, 0]));
}

#[test]
fn requests_beyond_the_decode_batch_rotate() {
    let mut harness = Harness::new(MockOptions { decode_batch: 4, max_steps: 1, ..options(5, 64) });
    let requests = [0, 1, 2, 3, 4].map(|number| request(number, 4, 30));
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    while harness.scheduler.decoding.len() < 5 {
        harness.round();
    }
    let generated = |harness: &Harness| -> Vec<usize> {
        harness.scheduler.decoding.iter().map(|decoding| decoding.job.generated.len()).collect()
    };
    let before = generated(&harness);
    for _ in 0..10 {
        harness.round();
    }
    let since: Vec<usize> =
        generated(&harness).iter().zip(&before).map(|(now, before)| now - before).collect();
    assert_eq!(since, [8; 5], "each request skips two of ten runs");
    harness.finish();
    harness.check_tokens(&requests, &mut streams);
}

#[test]
fn a_grammar_limits_decode_runs_to_one_step_while_it_is_active() {
    let mut harness = Harness::new(options(3, 48));
    let free = request(0, 8, 40);
    let grammar = EveryNth { max_tokens: 6, ..EveryNth::new(2) };
    let constrained = Request { grammar: Some(Box::new(grammar)), ..request(1, 8, 40) };
    let mut streams = [&free, &constrained].map(|request| harness.submit(request));
    harness.finish();
    let (tokens, last) = collect(&mut streams[1]);
    assert_eq!(tokens.len(), 6);
    assert!(tokens.iter().all(|token| token.is_multiple_of(2)), "{tokens:?}");
    assert_eq!((tokens, FinishReason::Stop), harness.reference(&constrained));
    assert!(matches!(last, Event::Finished { reason: FinishReason::Stop, .. }), "{last:?}");
    assert_eq!(collect(&mut streams[0]).0, harness.reference(&free).0);
    // 40 tokens, five of them next to the constrained request; the rest in runs of 4.
    assert!(harness.inspector.steps().len() < 20, "{:?}", harness.inspector.steps());
}

#[test]
fn a_lifted_grammar_no_longer_limits_decode_runs() {
    let mut harness = Harness::new(options(3, 48));
    let grammar = EveryNth { lifted_after: Some(3), ..EveryNth::new(1) };
    let constrained = Request { grammar: Some(Box::new(grammar)), ..request(1, 8, 40) };
    let mut stream = harness.submit(&constrained);
    harness.finish();
    assert_eq!(collect(&mut stream).0, harness.reference(&request(1, 8, 40)).0);
    // Three single steps with the prefill, then 37 tokens in runs of 4.
    assert!(harness.inspector.steps().len() < 20, "{:?}", harness.inspector.steps());
}

#[test]
fn a_failing_grammar_fails_only_its_own_request() {
    let mut harness = Harness::new(options(3, 48));
    // After three tokens, and before the first: while the prompt is prefilled.
    let constrained = [3, 0].map(|limit| {
        let grammar = EveryNth { fails_after: Some(limit), ..EveryNth::new(2) };
        Request { grammar: Some(Box::new(grammar)), ..request(1, 8, 40) }
    });
    let free = request(0, 8, 20);
    let mut streams = [&free, &constrained[0], &constrained[1]].map(|request| harness.submit(request));
    harness.finish();
    for (stream, expected) in streams[1..].iter_mut().zip([3, 0]) {
        let (tokens, last) = collect(stream);
        assert_eq!(tokens.len(), expected);
        assert_eq!(last, Event::Failed(RequestError::Grammar(format!("no more than {expected} tokens"))));
    }
    assert_eq!(collect(&mut streams[0]).0, harness.reference(&free).0);
    // A mask that is empty, by itself or after logit biases, is an error.
    let nothing = EveryNth { accepted: 1, stop_token: Some(0), ..EveryNth::new(VOCAB) };
    let bans = Sampling { biases: vec![(0, -100.0), (63, -100.0)], ..Sampling::default() };
    for (grammar, sampling) in [(nothing, Sampling::default()), (EveryNth::new(63), bans)] {
        let request = Request { grammar: Some(Box::new(grammar)), sampling, ..request(1, 8, 4) };
        let mut stream = harness.submit(&request);
        harness.finish();
        let (tokens, last) = collect(&mut stream);
        assert!(tokens.is_empty());
        assert!(
            matches!(&last, Event::Failed(RequestError::Grammar(text)) if text.contains("no further token")),
            "{last:?}"
        );
    }
}

#[test]
fn top_logprobs_are_returned_where_requested() {
    let mut harness = Harness::new(options(2, 32));
    let with_top =
        |top: u32| Request { sampling: Sampling { top, ..Sampling::default() }, ..request(top, 4, 6) };
    let mut streams = [with_top(0), with_top(3)].map(|request| harness.submit(&request));
    harness.finish();
    for (stream, top) in streams.iter_mut().zip([0, 3]) {
        let mut tokens = 0;
        while let Some(event) = stream.blocking_next() {
            if let Event::Token(token) = event {
                let ids: Vec<u32> = token.top.iter().map(|(id, _)| *id).collect();
                assert_eq!(ids, (0..top).collect::<Vec<_>>());
                tokens += 1;
            }
        }
        assert_eq!(tokens, 6);
    }
}

/// Collects log output.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_events_carry_the_span_of_their_request() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // With a single dispatcher in the process, tracing checks only the current thread's interest in a call
    // site: a parallel test that reaches it first would disable it for good. With a second dispatcher it
    // checks both.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    tracing::subscriber::with_default(subscriber, || {
        let mut harness = Harness::new(options(3, 16));
        let requests = ["red", "green", "blue"].map(|name| {
            let span = tracing::info_span!("request", request_id = name);
            Request { span, ..request(name.len() as u32, 8, 40) }
        });
        let _streams = requests.each_ref().map(|request| harness.submit(request));
        harness.finish();
        assert!(harness.scheduler.status.preemptions > 0);
    });
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let count = |id: &str, event: &str| {
        let span = format!("request{{request_id=\"{id}\"}}");
        log.lines().filter(|line| line.contains(&span) && line.contains(event)).count()
    };
    for id in ["red", "green", "blue"] {
        assert_eq!((count(id, ": first token"), count(id, ": finished")), (1, 1), "{log}");
        assert_eq!(count(id, ": admitted"), 1 + count(id, ": preempted"), "{log}");
    }
    assert!(count("red", ": preempted") == 0 && count("blue", ": preempted") > 0, "{log}");
    assert!(log.contains("decode run decode=[0") && log.contains("mixed step decode=[]"), "{log}");
}

/// A prompt of 4 text tokens, an image of 6 tokens, and 3 text tokens.
fn request_with_image(number: u8, max_tokens: u32) -> Request {
    let image = image(number, 6);
    let mut request = request(0, 7, max_tokens);
    request.prompt.splice(4..4, image.tokens());
    request.images = vec![image];
    request
}

#[test]
fn images_are_prefilled_whole_and_others_decode_while_they_are_encoded() {
    // The budget of a step would cut the image in two.
    let mut harness = Harness::new(MockOptions { encode_calls: 5, prefill_budget: 6, ..options(3, 48) });
    let text = request(30, 4, 40);
    let other = harness.submit(&text);
    harness.round();
    let before = harness.inspector.steps().len();
    let request = request_with_image(1, 4);
    let stream = harness.submit(&request);
    for _ in 0..6 {
        harness.round();
    }
    let steps = harness.inspector.steps().split_off(before);
    let chunks: Vec<_> = steps.iter().flat_map(|step| step.chunks.clone()).collect();
    let chunk = |from: usize, to: usize| (from, request.prompt[from..to].to_vec());
    assert_eq!(chunks, [chunk(0, 4), chunk(4, 10)]);
    assert!(steps.len() >= 5 && steps.iter().all(|step| step.decode_rows == 1), "{steps:?}");
    harness.finish();
    harness.check_tokens(&[request, text], &mut [stream, other]);
}

#[test]
fn a_prompt_with_the_same_image_shares_its_pages() {
    let mut harness = Harness::new(options(2, 48));
    let [same, other] = [1, 2].map(|number| request_with_image(number, 4));
    for (request, cached) in [(&same, 0), (&same, 12), (&other, 4)] {
        let _stream = harness.submit(request);
        harness.finish();
        assert_eq!(harness.inspector.starts().last().unwrap().cached, cached);
    }
}

#[test]
fn prompts_whose_images_and_tokens_differ_are_rejected() {
    let harness = Harness::new(options(1, 48));
    let good = request_with_image(1, 4);
    let rejection = |request: Request| harness.shared.submit(request).unwrap_err().to_string();
    assert!(rejection(Request { images: vec![], ..good.clone() }).contains("not those of its images"));
    assert!(
        rejection(Request { images: vec![image(2, 6)], ..good.clone() }).contains("not those of its images")
    );
    assert!(rejection(Request { images: vec![image(1, 6); 2], ..good.clone() }).contains("fewer blocks"));
    assert!(rejection(Request { prompt_logprobs: Some(0), ..good }).contains("log probabilities"));
}
