//! The handle and its thread, with the plain backend.

use std::{
    num::NonZeroU32,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crate::{
    BackendError, Engine, Event, EventStream, FinishReason, Options, Request, RequestError, Sampling, Status,
    SubmitError,
    testing::{MockBackend, MockOptions},
};

const DELAY: Duration = Duration::from_millis(10);

fn request(first: u32, most: u32) -> Request {
    Request::new(vec![first, 2, 3], NonZeroU32::new(most).unwrap())
}

fn start(options: MockOptions, queue_capacity: usize) -> Engine {
    Engine::start(MockBackend::new(options), Options { queue_capacity, ..Options::default() }).unwrap()
}

fn slow() -> MockOptions {
    MockOptions { step_delay: DELAY, max_steps: 1, ..MockOptions::default() }
}

/// All tokens, and the last event.
fn listen(answer: &mut EventStream) -> (Vec<u32>, Event) {
    let mut tokens = vec![];
    loop {
        match answer.blocking_next().unwrap() {
            Event::Started { .. } => {}
            Event::Token(token) => tokens.push(token.id),
            last => return (tokens, last),
        }
    }
}

/// Waits for the first token.
fn first(answer: &mut EventStream) {
    while !matches!(answer.blocking_next().unwrap(), Event::Token(_)) {}
}

#[test]
fn requests_of_many_threads_are_answered_as_if_each_were_alone() {
    let engine = start(MockOptions::default(), 64);
    thread::scope(|scope| {
        for thread in 0..8 {
            let engine = engine.clone();
            scope.spawn(move || {
                for number in 0..8 {
                    let request = request(thread * 8 + number, 20);
                    let (tokens, last) = listen(&mut engine.submit(request.clone()).unwrap());
                    assert_eq!(tokens, MockOptions::default().alone(&request).0);
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
fn what_cannot_be_taken_is_refused_at_once() {
    let engine = start(slow(), 1);
    let refused = |request: Request| engine.submit(request).unwrap_err();
    assert!(matches!(refused(Request { prompt: vec![], ..request(0, 1) }), SubmitError::Invalid(_)));
    assert_eq!(engine.would_reject(), None);
    let text = refused(Request { prompt: vec![1, 1000], ..request(0, 1) }).to_string();
    assert!(text.contains("token 1000 is not in"), "{text}");
    let long = Request { prompt: vec![1; 257], ..request(0, 1) };
    assert_eq!(refused(long), SubmitError::PromptTooLong { tokens: 257, context_length: 256 });
    let hot = Sampling { temperature: -1.0, ..Sampling::default() };
    assert!(matches!(refused(Request { sampling: hot, ..request(0, 1) }), SubmitError::Invalid(_)));

    // Four sequences and one that waits; the sixth is one too many.
    let _answers: Vec<EventStream> =
        (0..5).map(|first| engine.submit(request(first, 250)).unwrap()).collect();
    let full = refused(request(5, 1));
    assert_eq!(engine.would_reject(), Some(full.clone()));
    assert_eq!(full, SubmitError::QueueFull { retry_after: Duration::from_secs(1) });
    // Who only asked is counted as well.
    assert_eq!(engine.status().rejected, 6);
}

#[test]
fn a_dropped_answer_leaves_nothing_behind() {
    let backend = MockBackend::new(slow());
    let watch = backend.inspector();
    let engine = Engine::start(backend, Options::default()).unwrap();
    let mut answer = engine.submit(request(0, 250)).unwrap();
    first(&mut answer);
    drop(answer);
    let until = Instant::now() + Duration::from_secs(10);
    while engine.status().cancelled == 0 {
        assert!(Instant::now() < until, "it goes on");
        thread::yield_now();
    }
    assert_eq!((watch.sequences(), watch.free_pages()), (0, engine.capacity().pages));
}

#[test]
fn a_deadline_ends_whoever_it_meets() {
    let engine = start(slow(), 8);
    let soon = |first| Request { deadline: Some(Instant::now() + 10 * DELAY), ..request(first, 250) };
    // Five: one of them meets it in the queue.
    let mut answers: Vec<EventStream> = (0..5).map(|first| engine.submit(soon(first)).unwrap()).collect();
    for answer in &mut answers {
        assert_eq!(listen(answer).1, Event::Failed(RequestError::DeadlineExceeded));
    }
    assert_eq!(engine.status().failed, 5);
}

#[test]
fn draining_takes_nothing_more_and_lets_what_was_taken_be_done() {
    let engine = start(slow(), 8);
    let mut answer = engine.submit(request(0, 20)).unwrap();
    first(&mut answer);
    engine.drain(Duration::from_secs(60));
    assert!(engine.status().draining);
    assert_eq!(engine.submit(request(1, 1)).unwrap_err(), SubmitError::Draining);
    let (tokens, last) = listen(&mut answer);
    assert!(tokens.len() == 19 && matches!(last, Event::Finished { .. }), "{last:?}");
    engine.stop();
}

#[test]
fn stopping_fails_what_is_under_way_and_what_waits() {
    let engine = start(slow(), 8);
    let mut answers: Vec<EventStream> =
        (0..6).map(|first| engine.submit(request(first, 250)).unwrap()).collect();
    first(&mut answers[0]);
    engine.stop();
    for answer in &mut answers {
        assert_eq!(listen(answer).1, Event::Failed(RequestError::Stopped));
    }
}

#[test]
fn a_probe_finds_a_device_that_was_lost_while_nobody_used_it() {
    let faults = [(1, BackendError::DeviceLost("lost".into()))].into();
    let engine = start(MockOptions { errors: faults, ..slow() }, 8);
    assert!(wait(engine.probe()));
    assert!(!wait(engine.probe()));
    // By the next one it is put back.
    assert!(wait(engine.probe()));
    let status = engine.status();
    assert_eq!((status.devices_lost, status.device_lost), (1, false));
    engine.stop();
    assert!(!wait(engine.probe()));
}

#[test]
fn without_a_handle_the_engine_stops() {
    let engine = start(slow(), 8);
    let mut answer = engine.submit(request(0, 250)).unwrap();
    first(&mut answer);
    drop(engine);
    assert_eq!(listen(&mut answer).1, Event::Failed(RequestError::Stopped));
}

#[test]
fn who_has_read_enough_has_not_cancelled() {
    let engine = start(slow(), 8);
    for enough in [true, false] {
        let mut answer = engine.submit(request(0, 200)).unwrap();
        while !matches!(answer.blocking_next(), Some(Event::Token(_))) {}
        if enough {
            answer.finish_early();
        }
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    let ended = |status: &Status| (status.finished, status.cancelled);
    while ended(&engine.status()) != (1, 1) {
        assert!(Instant::now() < deadline, "{:?}", engine.status());
        thread::sleep(DELAY);
    }
    assert_eq!(engine.status().request_latency.count(), 1);
}

#[test]
fn a_thread_that_panics_leaves_nobody_waiting() {
    // The plain backend does not take a chunk of no tokens.
    let engine = start(MockOptions { prefill_chunk: 0, ..slow() }, 8);
    let mut answers: Vec<EventStream> =
        (0..6).filter_map(|first| engine.submit(request(first, 9)).ok()).collect();
    for answer in &mut answers {
        assert!(matches!(listen(answer).1, Event::Failed(RequestError::Internal(_))));
    }
    assert!(engine.watch_exit()(), "nobody had asked for that");
    engine.stop();
    let stopped = start(slow(), 8);
    let ended = stopped.watch_exit();
    stopped.stop();
    assert!(!ended());
    assert_eq!(engine.submit(request(0, 3)).unwrap_err(), SubmitError::Draining);
}

/// Wakes a thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

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
fn a_script_is_what_an_answer_says_and_who_awaits_is_told_the_end_once() {
    let script = vec![70, 71, 70, 71, 72, 1];
    let engine = start(MockOptions { script, ..slow() }, 8);
    let mut answer = engine.submit(Request { stop_token_ids: vec![1], ..request(0, 20) }).unwrap();
    let (mut tokens, mut events) = (vec![], vec![]);
    while let Some(event) = wait(answer.next()) {
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
    assert_eq!(wait(answer.next()), None);
}
