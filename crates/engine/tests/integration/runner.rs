//! The engine with a real model on Mesa's CPU driver, compared with one sequence on a runner.

use std::{
    num::NonZeroU32,
    ops::ControlFlow,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{Fixture, generate, limits, load, load_alone};
use engine::{
    Engine, Event, EventStream, FinishReason, GpuBackend, Options, Request, RequestError, Runners, Sampling,
};
use gpu::Fault;
use model::{DraftRunner, Limits, Model, Runner};

/// Step times on this driver vary with the load of the machine. A budget of zero makes chunks as short as
/// possible, whatever they take.
pub const OPTIONS: Options = Options {
    queue_capacity: 64,
    mixed_step_budget: Duration::ZERO,
    burst_step_budget: Duration::ZERO,
    prefill_step_budget: Duration::ZERO,
    store_timeout: Duration::from_secs(3600),
    speculate: true,
};

const NAME: &str = "gguf_q8_0";

/// The same, a model with experts, and one whose layers share keys and values.
const MODELS: [&str; 3] = [NAME, "qwen3moe_gguf_q8_0", "gemma4_ple_gguf_q8_0"];

pub fn request(prompt: &[u32], max_tokens: u32, sampling: Sampling) -> Request {
    Request { sampling, ..Request::new(prompt.to_vec(), NonZeroU32::new(max_tokens).unwrap()) }
}

/// Five prompts of different lengths and sampling settings, two of which report their log probabilities.
fn requests(ids: &[u32]) -> [Request; 5] {
    let sampled = Sampling { temperature: 0.8, top_k: 20, seed: 7, ..Sampling::default() };
    let penalised = Sampling { repetition: 1.3, frequency: 0.5, ..Sampling::default() };
    [
        request(&ids[..12], 20, Sampling::default()),
        Request { prompt_logprobs: Some(0), ..request(&ids[3..30], 14, Sampling::default()) },
        request(&ids[5..6], 24, sampled),
        Request { prompt_logprobs: Some(2), ..request(&ids[7..27], 16, penalised) },
        request(ids, 9, Sampling::default()),
    ]
}

/// The tokens that a request generates alone on a runner.
pub fn alone(model: &Arc<Model>, limits: Limits, request: &Request) -> Vec<u32> {
    let mut runner = Runner::new(model.clone(), limits).unwrap();
    let mut sequence = runner.start().unwrap();
    let Request { prompt, max_tokens, sampling, stop_token_ids, .. } = request;
    let max_tokens = *max_tokens as usize;
    let request = generate::Request { prompt, max_tokens, sampling, stop_token_ids };
    let on_event = |_| ControlFlow::Continue(());
    generate::generate(&mut runner, &mut sequence, &request, on_event).unwrap().tokens
}

/// All tokens of a stream, and its last event.
pub fn collect(stream: &mut EventStream) -> (Vec<u32>, Event) {
    let mut tokens = vec![];
    loop {
        match stream.blocking_next().unwrap() {
            Event::Started { .. } | Event::PromptTokens(_) => {}
            Event::Token(token) => tokens.push(token.id),
            last => return (tokens, last),
        }
    }
}

/// An engine whose device is never lost.
fn start(model: &Arc<Model>, limits: Limits) -> Engine {
    let runner = Runner::new(model.clone(), limits).unwrap();
    Engine::start(GpuBackend::new(runner, || Err(model::Error::Cancelled)), OPTIONS).unwrap()
}

/// Submits all requests at once and compares their tokens.
fn check_all(engine: &Engine, requests: &[Request], expected: &[Vec<u32>]) {
    let mut streams: Vec<EventStream> =
        requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    for (number, (stream, expected)) in streams.iter_mut().zip(expected).enumerate() {
        let (tokens, last) = collect(stream);
        assert_eq!(&tokens, expected, "request {number}");
        assert!(matches!(last, Event::Finished { reason: FinishReason::MaxTokens, .. }), "{last:?}");
    }
    let pages = engine.status().pages;
    assert_eq!(pages.free, pages.total);
}

#[test]
fn concurrent_requests_generate_the_same_tokens_as_alone() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in MODELS {
        let fixture = Fixture::open(name);
        let model = load(&device, &fixture.path);
        let requests = requests(&fixture.ids);
        // A sequence for each request, and fewer sequences than requests.
        for sequences in [5, 3] {
            let limits = limits(sequences, 96, 16);
            let expected = requests.each_ref().map(|request| alone(&model, limits, request));
            let engine = start(&model, limits);
            check_all(&engine, &requests, &expected);
            assert_eq!(engine.status().preemptions, 0);
            engine.stop();
        }
    }
}

/// Whether a draft is verified depends on measured times, so the number of drafts is not checked.
#[test]
fn predictions_change_no_token() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in MODELS {
        let fixture = Fixture::open(name);
        let model = Arc::new(load_alone(&device, &fixture.path).with_row_invariant(true));
        let mut requests = requests(&fixture.ids);
        // Enough pages for some of them at a time.
        let limits = Limits { max_pages: Some(20), ..limits(5, 64, 16) };
        let expected = requests.each_ref().map(|request| alone(&model, limits, request));
        for every in [usize::MAX, 3, 1] {
            for (request, expected) in requests.iter_mut().zip(&expected) {
                request.prediction = expected.clone();
                let wrong = request.prediction.iter_mut().skip(2).step_by(every);
                wrong.for_each(|token| *token = (*token + 1) % fixture.vocab as u32);
            }
            let engine = start(&model, limits);
            check_all(&engine, &requests, &expected);
            engine.stop();
        }
    }
}

/// Whether anything is drafted depends on measured times, too. A model drafts for itself, another one with other weights
/// drafts for it, and itself with a context that is shorter than the completions.
#[test]
fn a_draft_model_changes_no_token() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = Arc::new(load_alone(&device, &fixture.path).with_row_invariant(true));
    let requests = requests(&fixture.ids);
    // Enough pages for some of them at a time.
    let limits = Limits { max_pages: Some(20), ..limits(5, 64, 16) };
    let expected = requests.each_ref().map(|request| alone(&model, limits, request));
    for (name, draft_context) in [(NAME, 64), ("gguf_q4_0", 64), (NAME, 30)] {
        let draft_limits = Limits { context_length: draft_context, max_pages: None, ..limits };
        let draft = load(&device, &Fixture::open(name).path);
        let draft = DraftRunner::new(Runner::new(draft, draft_limits).unwrap());
        let target = Runner::new(model.clone(), limits).unwrap();
        let runners = Runners { target, draft: Some(draft) };
        let backend = GpuBackend::with_runners(runners, || Err(model::Error::Cancelled));
        let engine = Engine::start(backend, OPTIONS).unwrap();
        check_all(&engine, &requests, &expected);
        engine.stop();
    }
}

#[test]
fn preempted_requests_generate_the_same_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in MODELS {
        let fixture = Fixture::open(name);
        let model = load(&device, &fixture.path);
        let requests = requests(&fixture.ids);
        // Pages of 4 tokens, enough for one sequence of the context length.
        let limits = Limits { max_pages: Some(14), ..limits(5, 56, 16) };
        let expected = requests.each_ref().map(|request| alone(&model, limits, request));
        let engine = start(&model, limits);
        check_all(&engine, &requests, &expected);
        assert!(engine.status().preemptions > 0, "{:?}", engine.status());
        engine.stop();
    }
}

#[test]
fn penalties_include_tokens_generated_before_a_preemption() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = load(&device, &fixture.path);
    let sampling = Sampling { repetition: 1.2, frequency: 1.0, presence: 0.5, ..Sampling::default() };
    let requests = [0, 9].map(|first| request(&fixture.ids[first..first + 12], 30, sampling.clone()));
    // Two sequences of 42 tokens do not fit into 56: the second is preempted.
    let limits = Limits { max_pages: Some(14), ..limits(2, 56, 16) };
    let expected = requests.each_ref().map(|request| alone(&model, limits, request));
    let engine = start(&model, limits);
    check_all(&engine, &requests, &expected);
    assert_eq!(engine.status().preemptions, 1);
    engine.stop();
}

#[test]
fn dropping_a_stream_frees_its_pages() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = load(&device, &fixture.path);
    let engine = start(&model, limits(2, 512, 16));
    let mut stream = engine.submit(request(&fixture.ids, 400, Sampling::default())).unwrap();
    while !matches!(stream.blocking_next().unwrap(), Event::Token(_)) {}
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(1800);
    while engine.status().cancelled == 0 {
        assert!(Instant::now() < deadline, "the request was not cancelled");
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = engine.status();
    assert_eq!((status.pages.free, status.decoding), (status.pages.total, 0));
    engine.stop();
}

#[test]
fn decoding_continues_during_the_prefill_of_a_long_prompt() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("untied_long");
    let model = load(&device, &fixture.path);
    let engine = start(&model, limits(3, 320, 16));
    let submit =
        |ids: &[u32], max_tokens| engine.submit(request(ids, max_tokens, Sampling::default())).unwrap();
    let _short = [submit(&fixture.ids[..4], 300), submit(&fixture.ids[4..9], 300)];
    let (tokens, _) = collect(&mut submit(&fixture.ids, 1));
    let status = engine.status();
    // The long prompt shares its first page, 4 tokens, with the first request.
    assert_eq!((tokens.len(), status.prompt_tokens, status.cached_tokens), (1, 4 + 5 + 296, 4));
    // 296 prefill tokens in chunks of at most 16; each of these steps also decodes a token of both requests.
    assert!(
        status.generation_tokens > 2 * 300 / 16,
        "{} tokens during the prefill",
        status.generation_tokens
    );
    assert_eq!(status.decoding, 2);
    engine.stop();
}

/// Opens another device, in place of the lost one.
fn reload(path: &Path, limits: Limits) -> model::Result<Runner> {
    let device = testkit::cpu_device_plain().ok_or(gpu::Error::NoDriver)?;
    Runner::new(load(&device, path), limits)
}

#[test]
fn a_recovered_device_loss_is_invisible_in_streams() {
    for name in [NAME, "gemma4_moe_gguf_q8_0"] {
        check_device_loss(name);
    }
}

fn check_device_loss(name: &'static str) {
    let Some(device) = testkit::cpu_device_plain() else { return };
    let fixture = Fixture::open(name);
    let limits = limits(3, 96, 16);
    let requests = requests(&fixture.ids);
    let model = load(&device, &fixture.path);
    let expected = requests.each_ref().map(|request| alone(&model, limits, request));
    let runner = Runner::new(model, limits).unwrap();
    let path = fixture.path.clone();
    device.inject(Fault::DeviceLost { submission: 12 });
    let engine = Engine::start(GpuBackend::new(runner, move || reload(&path, limits)), OPTIONS).unwrap();
    check_all(&engine, &requests, &expected);
    assert_eq!((engine.status().devices_lost, engine.status().failed), (1, 0));
    engine.stop();

    // Requests fail if the device cannot be reopened.
    let Some(device) = testkit::cpu_device_plain() else { return };
    let runner = Runner::new(load(&device, &fixture.path), limits).unwrap();
    device.inject(Fault::DeviceLost { submission: 3 });
    let engine =
        Engine::start(GpuBackend::new(runner, || Err(gpu::Error::NoDriver.into())), OPTIONS).unwrap();
    let mut stream = engine.submit(requests[0].clone()).unwrap();
    assert_eq!(collect(&mut stream).1, Event::Failed(RequestError::DeviceLost));
    engine.stop();
}

/// The tokens of a request, and how many of its prompt were cached.
pub fn complete(engine: &Engine, request: &Request) -> (Vec<u32>, u32) {
    match collect(&mut engine.submit(request.clone()).unwrap()) {
        (tokens, Event::Finished { usage, .. }) => (tokens, usage.cached_tokens),
        (_, last) => panic!("{last:?}"),
    }
}

#[test]
fn the_next_turn_of_a_chat_prefills_only_new_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    // A sliding window of 32 tokens, pages of 4.
    let fixture = Fixture::open("untied_long");
    let model = Arc::new(load_alone(&device, &fixture.path).with_reproducible(true));
    let limits = limits(2, 320, 16);
    let engine = start(&model, limits);
    let penalised = Sampling { repetition: 1.3, frequency: 0.5, ..Sampling::default() };
    for (first, sampling) in [(0, Sampling::default()), (7, penalised)] {
        let mut turn = request(&fixture.ids[first..first + 150], 20, sampling);
        let mut expected_cached = 0;
        for number in 0..3 {
            let before = engine.status();
            let (tokens, cached) = complete(&engine, &turn);
            assert_eq!(tokens, alone(&model, limits, &turn), "turn {number}");
            let prefilled = engine.status().prompt_tokens - before.prompt_tokens;
            assert_eq!(cached, expected_cached, "turn {number}");
            assert_eq!(prefilled, turn.prompt.len() as u64 - u64::from(cached), "turn {number}");
            // The last generated token was in no step.
            expected_cached = turn.prompt.len() as u32 + 19;
            turn.prompt.extend(tokens);
            turn.prompt.extend(&fixture.ids[200..205]);
        }
    }
    engine.stop();
}

#[test]
fn a_system_prompt_is_prefilled_once_for_concurrent_requests() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("untied_long");
    let model = Arc::new(load_alone(&device, &fixture.path).with_reproducible(true));
    // Each sequence takes 30 pages; all four fit because they share 25.
    let limits = Limits { max_pages: Some(52), ..limits(4, 160, 16) };
    let question = |own: usize| [&fixture.ids[..100], &fixture.ids[200 + own..206 + 2 * own]].concat();
    let requests: Vec<Request> = (0..4).map(|own| request(&question(own), 12, Sampling::default())).collect();
    let expected: Vec<Vec<u32>> = requests.iter().map(|request| alone(&model, limits, request)).collect();
    let engine = start(&model, limits);
    check_all(&engine, &requests, &expected);
    let status = engine.status();
    assert_eq!((status.cached_tokens, status.preemptions), (3 * 100, 0), "{status:?}");
    engine.stop();

    let engine = start(&model, Limits { prefix_cache: false, ..limits });
    check_all(&engine, &requests, &expected);
    assert_eq!((engine.status().cached_tokens, engine.status().pages.cached), (0, 0));
    engine.stop();
}
