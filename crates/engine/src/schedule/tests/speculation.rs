//! Speculative decoding: what is drafted, and what becomes of it.

use std::time::Duration;

use super::{Harness, VOCAB, collect, request};
use crate::{
    BackendError, Capacity, DraftCounts, DraftStats, Event, Options, Request, Sampling, TokenConstraint,
    testing::{EveryNth, MockDraftModel, MockOptions},
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A backend that verifies up to eight rows in these times, and decodes a token per step.
fn options(step_times: Vec<Duration>) -> MockOptions {
    let capacity = MockOptions::default().capacity;
    let capacity = Capacity { max_verify_rows: 8, vocab_size: VOCAB, ..capacity };
    MockOptions { capacity, step_times, max_steps: 1, ..MockOptions::default() }
}

/// Rows cost nothing.
fn free_rows() -> MockOptions {
    options(vec![MILLISECOND; 8])
}

/// Each row costs as much as the first.
fn costly_rows() -> MockOptions {
    options((1..=8).map(|rows| rows * MILLISECOND).collect())
}

/// A request that predicts its completion.
fn predicting(options: &MockOptions, first: u32, max_tokens: u32) -> Request {
    let request = request(first, 5, max_tokens);
    let prediction = options.reference(&request).0;
    Request { prediction, ..request }
}

/// Runs a request and checks its tokens. Returns the harness, and the drafts of the request.
fn run(options: MockOptions, request: &Request) -> (Harness, DraftCounts) {
    let mut harness = Harness::new(options);
    let mut stream = harness.submit(request);
    harness.finish();
    let (tokens, last) = collect(&mut stream);
    assert_eq!(tokens, harness.reference(request).0);
    let Event::Finished { usage, .. } = last else { panic!("{last:?}") };
    assert_eq!(harness.scheduler.status.drafts, usage.drafts);
    (harness, usage.drafts.total())
}

#[test]
fn a_right_prediction_is_verified_eight_tokens_at_a_time() {
    let options = free_rows();
    let request = predicting(&options, 1, 41);
    let (harness, drafts) = run(options, &request);
    let status = &harness.scheduler.status;
    // A prefill step, and five steps of eight tokens each.
    assert_eq!((status.steps, status.verify_steps, status.generation_tokens), (6, 5, 41));
    assert_eq!(drafts, DraftCounts { drafted: 35, accepted: 35 });
    assert_eq!(status.drafts.prediction, drafts);
    assert_eq!(status.rows, 5 + 40);
}

#[test]
fn a_completion_with_drafts_stops_where_it_does_without() {
    let options = free_rows();
    let request = predicting(&options, 2, 30);
    let stop = request.prediction[11];
    let at_stop_token = Request { stop_token_ids: vec![stop], ..request.clone() };
    let (harness, drafts) = run(options.clone(), &at_stop_token);
    assert!(harness.scheduler.status.generation_tokens <= 11 && drafts.rejected() == 0, "{drafts:?}");
    let at_max_tokens = Request { max_tokens: 13, ..request };
    let (harness, drafts) = run(options, &at_max_tokens);
    assert_eq!((harness.scheduler.status.generation_tokens, drafts.accepted), (13, 10));
}

#[test]
fn nothing_is_drafted_where_nobody_asked_for_it() {
    let options = free_rows();
    let request = predicting(&options, 3, 20);
    let none = DraftCounts::default();
    let off = Request { speculate: false, ..request.clone() };
    assert_eq!(run(options.clone(), &off).1, none);
    let sampling = Sampling { presence: 1.0, ..Sampling::default() };
    assert_eq!(run(options.clone(), &Request { sampling, ..request.clone() }).1, none);

    let options = MockOptions { capacity: Capacity { max_verify_rows: 1, ..options.capacity }, ..options };
    assert_eq!(run(options.clone(), &request).1, none);
    let mut harness = Harness::with_options(free_rows(), Options { speculate: false, ..Options::default() });
    let mut stream = harness.submit(&request);
    harness.finish();
    assert_eq!((collect(&mut stream).0, harness.scheduler.status.verify_steps), (request.prediction, 0));
}

#[test]
fn batches_decode_without_drafts_where_those_would_change_the_rounding() {
    let free = free_rows();
    let capacity = Capacity { max_verify_sequences: 1, ..free.capacity };
    let mut harness = Harness::new(MockOptions { capacity, ..free.clone() });
    let requests = [predicting(&free, 1, 40), predicting(&free, 2, 20)];
    let mut streams = requests.each_ref().map(|request| harness.submit(request));
    harness.finish();
    for (request, stream) in requests.iter().zip(&mut streams) {
        assert_eq!(collect(stream).0, request.prediction);
    }
    // The longer one verifies its last tokens, after the other has ended: the mock asserts that it is alone.
    let status = &harness.scheduler.status;
    assert!((2..=3).contains(&status.verify_steps), "{}", status.verify_steps);
}

#[test]
fn wrong_predictions_and_costly_rows_are_only_tried_now_and_then() {
    let wrong = |options: &MockOptions| {
        let request = predicting(options, 4, 240);
        let mut prediction = request.prediction.clone();
        // Every third token is another one: what follows two right tokens is wrong.
        prediction.iter_mut().skip(2).step_by(3).for_each(|token| *token = (*token + 1) % VOCAB);
        Request { prediction, ..request }
    };
    let two_for_one_and_a_half =
        options(vec![2 * MILLISECOND; 1].into_iter().chain(vec![3 * MILLISECOND; 7]).collect());
    let (harness, drafts) = run(two_for_one_and_a_half.clone(), &wrong(&two_for_one_and_a_half));
    assert!(harness.scheduler.status.verify_steps < 40, "{drafts:?}");

    let options = costly_rows();
    let (harness, drafts) = run(options.clone(), &predicting(&options, 5, 240));
    // One draft after 64 steps without.
    assert_eq!((harness.scheduler.status.verify_steps, drafts.drafted), (3, 3));
}

#[test]
fn forced_tokens_are_drafted() {
    let options = free_rows();
    // Only token 0 is a multiple.
    let grammar = EveryNth { max_tokens: 25, ..EveryNth::new(VOCAB) };
    let grammar: Option<Box<dyn TokenConstraint>> = Some(Box::new(grammar));
    let (harness, drafts) = run(options, &Request { grammar, ..request(6, 5, 100) });
    let status = &harness.scheduler.status;
    // The first token comes with the prompt, the last completes the grammar.
    assert_eq!((status.generation_tokens, status.verify_steps), (25, 3));
    assert_eq!((drafts.drafted, drafts.rejected()), (21, 0));
    assert_eq!(status.drafts.grammar, drafts);
}

#[test]
fn a_failed_verify_step_costs_no_request_and_is_not_repeated_at_once() {
    let errors = ["memory", "pages", "logits", "other"].map(|kind| match kind {
        "memory" => BackendError::OutOfMemory("no memory".into()),
        "pages" => BackendError::NoFreePages,
        "logits" => BackendError::NonFiniteLogits,
        _ => BackendError::Other("a bug".into()),
    });
    for error in errors {
        let options = free_rows();
        let request = predicting(&options, 7, 60);
        // Calls: the start of the sequence, its prefill, the verify step.
        let options = MockOptions { errors: [(2, error.clone())].into(), ..options };
        let (harness, drafts) = run(options, &request);
        assert_eq!(harness.scheduler.status.failed, 0, "{error}");
        assert_eq!(drafts.drafted, 0, "{error}: paused for 64 steps");
    }
}

#[test]
fn a_failed_verify_step_of_several_requests_is_not_repeated_at_once() {
    let errors = [
        BackendError::NonFiniteLogits,
        BackendError::Other("a bug".into()),
        BackendError::DeviceLost("gone".into()),
    ];
    for error in errors {
        let options = free_rows();
        let requests: Vec<Request> = (0..2).map(|first| predicting(&options, 7 + first, 30)).collect();
        // Calls: two starts, the prefill of both prompts, the verify step.
        let options = MockOptions { errors: [(3, error.clone())].into(), ..options };
        let mut harness = Harness::new(options);
        let mut streams: Vec<_> = requests.iter().map(|request| harness.submit(request)).collect();
        harness.finish();
        harness.check_tokens(&requests, &mut streams);
        let status = &harness.scheduler.status;
        assert_eq!((status.failed, status.verify_steps), (0, 0), "{error}: paused for 64 steps");
    }
}

#[test]
fn a_batch_shares_the_rows_of_a_verify_step() {
    let options = free_rows();
    let requests: Vec<Request> = (0..3).map(|first| predicting(&options, 8 + first, 30)).collect();
    let mut harness = Harness::new(options);
    let mut streams: Vec<_> = requests.iter().map(|request| harness.submit(request)).collect();
    harness.finish();
    harness.check_tokens(&requests, &mut streams);
    let status = &harness.scheduler.status;
    assert_eq!(status.drafts.total().rejected(), 0);
    assert!(status.steps < 45, "90 tokens in {} steps", status.steps);
}

#[test]
fn drafts_yield_to_other_requests_that_need_their_pages() {
    // Eight pages of four tokens; two requests of up to 16 tokens each take all of them.
    let options = free_rows();
    let capacity =
        Capacity { page_size: 4, pages: 8, context_length: 16, max_sequences: 2, ..options.capacity };
    let options = MockOptions { capacity, ..options };
    let requests: Vec<Request> = (0..2).map(|first| predicting(&options, 20 + first, 12)).collect();
    let mut harness = Harness::new(options);
    let mut streams: Vec<_> = requests.iter().map(|request| harness.submit(request)).collect();
    harness.finish();
    harness.check_tokens(&requests, &mut streams);
    assert_eq!(harness.scheduler.status.failed, 0);
    assert_eq!(harness.inspector.free_pages(), 8);
}

/// These options with a draft model, and a vocabulary so large that no text repeats itself.
fn without_repeats(options: MockOptions, draft_model: Option<MockDraftModel>) -> MockOptions {
    let capacity = Capacity { vocab_size: 1 << 20, ..options.capacity };
    MockOptions { capacity, draft_model, ..options }
}

/// A draft model that is right this often of four times.
fn draft_model(right: u32) -> Option<MockDraftModel> {
    Some(MockDraftModel {
        right_of_four: right,
        prefill_tokens: 1000,
        step_time: MILLISECOND / 100,
        loses_device: false,
    })
}

#[test]
fn a_draft_model_that_is_right_gives_eight_tokens_per_step() {
    let options = without_repeats(free_rows(), draft_model(4));
    let (harness, drafts) = run(options, &request(1, 5, 201));
    let status = &harness.scheduler.status;
    assert_eq!(status.drafts.model, drafts);
    // A prefill step, and eight tokens per step.
    assert_eq!((status.steps, status.verify_steps, drafts.rejected()), (26, 25, 0));
}

#[test]
fn a_draft_model_that_is_never_right_is_soon_used_for_trials_only() {
    let options = without_repeats(costly_rows(), draft_model(0));
    let (harness, drafts) = run(options, &request(1, 5, 200));
    assert!(harness.scheduler.status.verify_steps < 12, "{drafts:?}");
    assert_eq!(drafts.accepted, 0);
}

#[test]
fn a_slow_draft_model_is_not_used() {
    let slow = MockDraftModel {
        right_of_four: 4,
        prefill_tokens: 1000,
        step_time: 20 * MILLISECOND,
        loses_device: false,
    };
    let options = without_repeats(free_rows(), Some(slow));
    let (harness, _) = run(options, &request(1, 5, 200));
    // A trial every 64 steps, whatever comes of it.
    assert_eq!(harness.inspector.draft_calls(), 3);
    assert_eq!(harness.scheduler.status.verify_steps, 3);
}

#[test]
fn requests_decode_while_the_draft_model_prefills() {
    let late = MockDraftModel {
        right_of_four: 4,
        prefill_tokens: 8,
        step_time: MILLISECOND / 100,
        loses_device: false,
    };
    let options = without_repeats(free_rows(), Some(late));
    let (harness, drafts) = run(options, &request(1, 100, 60));
    let status = &harness.scheduler.status;
    assert_eq!(drafts.rejected(), 0);
    // It prefills eight tokens per step, of which one is new.
    assert!(status.verify_steps > 0 && status.steps < 40, "{} of {}", status.verify_steps, status.steps);
}

#[test]
fn draft_model_errors_do_not_fail_requests() {
    for error in [BackendError::OutOfMemory("full".into()), BackendError::Other("a bug".into())] {
        // The third call: after the start and the prefill step.
        let errors = [(2, error)].into();
        let options = MockOptions { errors, ..without_repeats(free_rows(), draft_model(4)) };
        let (harness, drafts) = run(options, &request(1, 5, 200));
        assert!(drafts.accepted > 0 && harness.scheduler.status.preemptions == 0);
    }
    // A device that is lost whenever the draft model runs: it must not be lost for good.
    let fails = draft_model(4).map(|model| MockDraftModel { loses_device: true, ..model });
    let (harness, drafts) = run(without_repeats(free_rows(), fails), &request(1, 5, 200));
    assert_eq!((harness.scheduler.status.devices_lost, drafts.drafted), (4, 0), "once in 64 steps");
}

#[test]
fn a_grammar_and_penalties_apply_to_a_draft_model_too() {
    let options = MockOptions { draft_model: draft_model(4), ..free_rows() };
    let grammar: Option<Box<dyn TokenConstraint>> = Some(Box::new(EveryNth::new(2)));
    // Its drafts are right without the grammar, so they end where it does not allow them.
    run(options.clone(), &Request { grammar, ..request(6, 5, 100) });
    // One that contradicts every draft: it is not asked again and again.
    let only =
        MockOptions { capacity: Capacity { vocab_size: 1 << 20, ..options.capacity }, ..options.clone() };
    let grammar: Option<Box<dyn TokenConstraint>> = Some(Box::new(EveryNth::new(1 << 10)));
    let (harness, _) = run(only, &Request { grammar, ..request(6, 5, 200) });
    assert!(harness.inspector.draft_calls() < 60, "{}", harness.inspector.draft_calls());
    let sampling = Sampling { repetition: 1.2, ..Sampling::default() };
    let (_, drafts) = run(options, &Request { sampling, ..request(6, 5, 100) });
    assert_eq!(drafts, DraftCounts::default());
}

#[test]
fn the_better_of_a_draft_model_and_repeated_text_is_used() {
    // Where the model is never right, it is a prediction that is followed, and the other way round.
    for (right, predicted) in [(0, true), (4, false)] {
        let options = without_repeats(free_rows(), draft_model(right));
        let mut request = predicting(&options, 1, 200);
        if !predicted {
            request.prediction.iter_mut().for_each(|token| *token += 1);
        }
        let (harness, _) = run(options, &request);
        let DraftStats { prediction, model, .. } = harness.scheduler.status.drafts;
        let (good, bad) = if predicted { (prediction, model) } else { (model, prediction) };
        assert!(good.accepted > 150 && bad.drafted < 40, "{prediction:?} {model:?}");
    }
}
