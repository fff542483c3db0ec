//! Tests of the handle and the engine thread, on the mock backend.

use std::{
    num::NonZeroU32,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crate::{
    BackendError, Engine, Event, EventStream, FinishReason, Options, Request, RequestError, RequestState,
    RequestStatus, Sampling, Status, SubmitError, Usage,
    testing::{MockBackend, MockOptions},
};

const DELAY: Duration = Duration::from_millis(10);

/// Limit for conditions that hold after a few steps.
const PATIENCE: Duration = Duration::from_secs(120);

fn request(first: u32, max_tokens: u32) -> Request {
    Request::new(vec![first, 2, 3], NonZeroU32::new(max_tokens).unwrap())
}

fn start(options: MockOptions, queue_capacity: usize) -> Engine {
    Engine::start(MockBackend::new(options), Options { queue_capacity, ..Options::default() }).unwrap()
}

/// Steps that take a while and generate one token each.
fn slow() -> MockOptions {
    MockOptions { step_delay: DELAY, max_steps: 1, ..MockOptions::default() }
}

/// All tokens of a stream, and its last event.
fn collect(stream: &mut EventStream) -> (Vec<u32>, Event) {
    let mut tokens = vec![];
    loop {
        match stream.blocking_next().unwrap() {
            Event::Started { .. } => {}
            Event::Token(token) => tokens.push(token.id),
            last => return (tokens, last),
        }
    }
}

fn wait_for_first_token(stream: &mut EventStream) {
    while !matches!(stream.blocking_next().unwrap(), Event::Token(_)) {}
}

fn wait_until(engine: &Engine, condition: impl Fn(&Status) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition(&engine.status()) {
        assert!(Instant::now() < deadline, "{:?}", engine.status());
        thread::yield_now();
    }
}

#[test]
fn concurrent_requests_generate_the_same_tokens_as_alone() {
    let engine = start(MockOptions::default(), 64);
    thread::scope(|scope| {
        for thread in 0..8 {
            let engine = engine.clone();
            scope.spawn(move || {
                for number in 0..8 {
                    let request = request(thread * 8 + number, 20);
                    let (tokens, last) = collect(&mut engine.submit(request.clone()).unwrap());
                    assert_eq!(tokens, MockOptions::default().reference(&request).0);
                    assert!(matches!(last, Event::Finished { reason: FinishReason::MaxTokens, .. }));
                }
            });
        }
    });
    let status = engine.status();
    assert_eq!((status.finished, status.generation_tokens, status.prompt_tokens), (64, 64 * 20, 64 * 3));
    assert_eq!((status.waiting, status.prefilling, status.decoding), (0, 0, 0));
    assert_eq!(status.pages.free, status.pages.total);
    assert_eq!((status.time_to_first_token.count(), status.inter_token_latency.count()), (64, 64 * 19));
}

#[test]
fn invalid_requests_and_a_full_queue_are_rejected_at_submission() {
    let engine = start(slow(), 1);
    let rejection = |request: Request| engine.submit(request).unwrap_err();
    assert!(matches!(rejection(Request { prompt: vec![], ..request(0, 1) }), SubmitError::Invalid(_)));
    assert_eq!(engine.would_reject(), None);
    let text = rejection(Request { prompt: vec![1, 1000], ..request(0, 1) }).to_string();
    assert!(text.contains("token 1000 is not in"), "{text}");
    let long = Request { prompt: vec![1; 257], ..request(0, 1) };
    assert_eq!(rejection(long), SubmitError::PromptTooLong { tokens: 257, context_length: 256 });
    let text = rejection(Request { prediction: vec![1; 100_000], ..request(0, 1) }).to_string();
    assert!(text.contains("the prediction has 100000 tokens"), "{text}");
    let text = rejection(Request { prediction: vec![1000], ..request(0, 1) }).to_string();
    assert!(text.contains("token 1000 of the prediction"), "{text}");
    let sampling = Sampling { temperature: -1.0, ..Sampling::default() };
    assert!(matches!(rejection(Request { sampling, ..request(0, 1) }), SubmitError::Invalid(_)));

    // Four sequences and a queue of one: the sixth request is one too many.
    let _streams: Vec<EventStream> =
        (0..5).map(|first| engine.submit(request(first, 250)).unwrap()).collect();
    let full = rejection(request(5, 1));
    assert_eq!(engine.would_reject(), Some(full.clone()));
    assert_eq!(full, SubmitError::QueueFull { retry_after: Duration::from_secs(1) });
    // A rejection by `would_reject` counts as well.
    assert_eq!(engine.status().rejected, 8);
}

#[test]
fn dropping_a_stream_frees_its_sequence_and_pages() {
    let backend = MockBackend::new(slow());
    let inspector = backend.inspector();
    let engine = Engine::start(backend, Options::default()).unwrap();
    let mut stream = engine.submit(request(0, 250)).unwrap();
    wait_for_first_token(&mut stream);
    drop(stream);
    wait_until(&engine, |status| status.cancelled == 1);
    assert_eq!((inspector.sequences(), inspector.free_pages()), (0, engine.capacity().pages));
}

#[test]
fn deadlines_end_running_and_waiting_requests() {
    let engine = start(slow(), 8);
    let expiring = |first| Request { deadline: Some(Instant::now() + 10 * DELAY), ..request(first, 250) };
    // Four sequences: the fifth request expires in the queue.
    let mut streams: Vec<EventStream> = (0..5).map(|first| engine.submit(expiring(first)).unwrap()).collect();
    for stream in &mut streams {
        assert_eq!(collect(stream).1, Event::Failed(RequestError::DeadlineExceeded));
    }
    assert_eq!(engine.status().failed, 5);
}

#[test]
fn draining_rejects_new_requests_and_finishes_submitted_ones() {
    let engine = start(slow(), 8);
    let mut stream = engine.submit(request(0, 20)).unwrap();
    wait_for_first_token(&mut stream);
    engine.drain(Duration::from_secs(60));
    assert!(engine.status().draining);
    assert_eq!(engine.submit(request(1, 1)).unwrap_err(), SubmitError::Draining);
    let (tokens, last) = collect(&mut stream);
    assert!(tokens.len() == 19 && matches!(last, Event::Finished { .. }), "{last:?}");
    engine.stop();
}

#[test]
fn stopping_fails_running_and_waiting_requests() {
    let engine = start(slow(), 8);
    let mut streams: Vec<EventStream> =
        (0..6).map(|first| engine.submit(request(first, 250)).unwrap()).collect();
    wait_for_first_token(&mut streams[0]);
    engine.stop();
    for stream in &mut streams {
        assert_eq!(collect(stream).1, Event::Failed(RequestError::Stopped));
    }
}

#[test]
fn a_probe_detects_a_device_lost_while_idle() {
    let errors = [(1, BackendError::DeviceLost("lost".into()))].into();
    let engine = start(MockOptions { errors, ..slow() }, 8);
    assert!(wait(engine.probe()));
    assert!(!wait(engine.probe()));
    // The device is recovered before the next probe.
    assert!(wait(engine.probe()));
    let status = engine.status();
    assert_eq!((status.devices_lost, status.device_lost), (1, false));
    engine.stop();
    assert!(!wait(engine.probe()));
}

#[test]
fn dropping_the_last_handle_stops_the_engine() {
    let engine = start(slow(), 8);
    let mut stream = engine.submit(request(0, 250)).unwrap();
    wait_for_first_token(&mut stream);
    drop(engine);
    assert_eq!(collect(&mut stream).1, Event::Failed(RequestError::Stopped));
}

#[test]
fn a_stream_finished_early_does_not_count_as_cancelled() {
    let engine = start(slow(), 8);
    for finish_early in [true, false] {
        let mut stream = engine.submit(request(0, 200)).unwrap();
        wait_for_first_token(&mut stream);
        if finish_early {
            stream.finish_early();
        }
    }
    wait_until(&engine, |status| (status.finished, status.cancelled) == (1, 1));
    assert_eq!(engine.status().request_latency.count(), 1);
}

#[test]
fn a_panic_of_the_engine_thread_ends_every_stream() {
    // The mock backend panics at an empty chunk.
    let engine = start(MockOptions { prefill_chunk: 0, ..slow() }, 8);
    let mut streams: Vec<EventStream> =
        (0..6).filter_map(|first| engine.submit(request(first, 9)).ok()).collect();
    for stream in &mut streams {
        assert!(matches!(collect(stream).1, Event::Failed(RequestError::Internal(_))));
    }
    assert!(engine.watch_exit()(), "the exit was unexpected");
    engine.stop();
    let stopped = start(slow(), 8);
    let exit = stopped.watch_exit();
    stopped.stop();
    assert!(!exit());
    assert_eq!(engine.submit(request(0, 3)).unwrap_err(), SubmitError::Draining);
}

/// Unparks the thread that blocks on a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks on a future.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn an_awaited_stream_yields_the_script_and_one_last_event() {
    let script = vec![70, 71, 70, 71, 72, 1];
    let engine = start(MockOptions { script, ..slow() }, 8);
    let mut stream = engine.submit(Request { stop_token_ids: vec![1], ..request(0, 20) }).unwrap();
    let (mut tokens, mut events) = (vec![], vec![]);
    while let Some(event) = wait(stream.next()) {
        match event {
            Event::Token(token) => tokens.push(token.id),
            event => events.push(event),
        }
    }
    assert_eq!(tokens, [70, 71, 70, 71, 72]);
    assert!(
        matches!(events[..], [Event::Started { .. }, Event::Finished { reason: FinishReason::Stop, .. }]),
        "{events:?}"
    );
    assert_eq!(wait(stream.next()), None);
}

#[test]
fn the_status_lists_requests_by_state_without_their_content() {
    let mut options = slow();
    options.capacity.max_sequences = 1;
    let engine = start(options, 64);
    let named = |name: &str| Request { name: name.into(), ..request(0, 250) };
    let mut first = engine.submit(named("first")).unwrap();
    wait_for_first_token(&mut first);
    let second = engine.submit(named("second")).unwrap();
    wait_until(&engine, |status| {
        let [first, second] = &status.requests[..] else { return false };
        first.tokens_per_second.is_some() && second.state == RequestState::Waiting
    });
    let requests = engine.status().requests;
    let RequestStatus { name, state, prompt_tokens, generated_tokens, sequence_tokens, max_tokens, .. } =
        &requests[0];
    assert_eq!((&**name, *state, *prompt_tokens, *max_tokens), ("first", RequestState::Decoding, 3, 250));
    assert!(*generated_tokens >= 2 && *sequence_tokens == 3 + generated_tokens - 1, "{requests:?}");
    assert_eq!((&*requests[1].name, requests[1].generated_tokens), ("second", 0));
    drop((first, second));
    wait_until(&engine, |status| status.requests.is_empty());
}

#[test]
fn recent_latencies_are_those_of_the_last_requests() {
    let engine = start(slow(), 64);
    assert_eq!(engine.recent().time_to_first_token, None);
    collect(&mut engine.submit(request(0, 5)).unwrap());
    let recent = engine.recent();
    let shortest =
        [recent.time_to_first_token, recent.inter_token_latency].map(|latency| latency.unwrap().p50);
    assert!(shortest.into_iter().all(|latency| latency >= DELAY.mul_f64(0.99)), "{recent:?}");
    let status = engine.status();
    let mean = status.request_latency.mean().unwrap();
    let error = recent.request_latency.unwrap().p99.as_secs_f64() / mean.as_secs_f64() - 1.0;
    assert!(error.abs() < 0.01, "{recent:?} {mean:?}");
}

#[test]
fn energy_of_steps_is_shared_among_their_requests() {
    let watts = Box::new(|| Some(1000.0));
    let engine = Engine::start_metered(MockBackend::new(slow()), Options::default(), Some(watts)).unwrap();
    let mut streams: Vec<_> = (0..4).map(|first| engine.submit(request(first, 5)).unwrap()).collect();
    let usages: Vec<Usage> = streams
        .iter_mut()
        .map(|stream| match collect(stream).1 {
            Event::Finished { usage, .. } => usage,
            last => panic!("{last:?}"),
        })
        .collect();
    // At least 5 steps of 10 ms at 1 kW.
    let sum: f64 = usages.iter().map(|usage| usage.joules.unwrap()).sum();
    let energy = engine.status().energy;
    assert!(energy.joules >= 49.0 && (sum / energy.joules - 1.0).abs() < 1e-9, "{usages:?} {energy:?}");
    assert_eq!(energy.generation_tokens, 20);
    assert!(usages.iter().all(|usage| usage.decode_bytes > 0));
}
