//! Decode runs, several steps in one submission: the same tokens as single steps, ended by stop tokens on the
//! GPU, and rolled back where the caller wants fewer.

use std::{ops::ControlFlow, sync::Arc};

use crate::common::{
    Fixture,
    generate::{Event, FinishReason, Request, generate},
    limits, load, load_alone,
};
use gpu::Fault;
use kernels::Activations;
use model::{DecodeRow, Error, Runner, Sampled, Sampling, Sequence};

/// Greedy, sampled with filters, and sampled with every penalty.
fn samplings() -> [Sampling; 3] {
    let drawn = Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() };
    let penalised = Sampling { repetition: 1.3, presence: 0.5, frequency: 2.0, seed: 3, ..drawn.clone() };
    [Sampling::default(), drawn, penalised]
}

fn bits(sampled: &Sampled) -> (u32, u32) {
    (sampled.token, sampled.logprob.to_bits())
}

/// `count` more tokens of one sequence, in runs of `max_steps`, without stop tokens.
fn continue_with(
    runner: &mut Runner,
    sequence: &mut Sequence,
    sampling: &Sampling,
    first: u32,
    [max_steps, count]: [usize; 2],
) -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    let mut token = first;
    while all.len() < count {
        let next = DecodeRow::new(sequence, token, sampling);
        let steps = runner.decode(&mut [next], max_steps.min(count - all.len())).unwrap();
        all.extend(steps.concat().iter().map(bits));
        token = all[all.len() - 1].0;
    }
    all
}

#[test]
fn runs_of_any_length_give_the_same_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model.clone(), limits(1, 96, 16)).unwrap();
    for sampling in samplings() {
        let mut run = |max_steps: usize| {
            let mut sequence = runner.start().unwrap();
            let first = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
            let rest = continue_with(&mut runner, &mut sequence, &sampling, first.token, [max_steps, 16]);
            (bits(&first), rest, sequence.len(), sequence.pages().0)
        };
        let one_by_one = run(1);
        assert_eq!(run(3), one_by_one, "{sampling:?}");
        assert_eq!(run(8), one_by_one, "{sampling:?}");
        if sampling == Sampling::default() {
            let tokens: Vec<u32> =
                [&[one_by_one.0], &one_by_one.1[..11]].concat().iter().map(|(token, _)| *token).collect();
            assert_eq!(tokens, fixture.list("greedy"));
        }
    }

    // Three sequences of different lengths in one batch, in a bucket of four.
    let mut runner = Runner::new(model, limits(3, 96, 16)).unwrap();
    let samplings = samplings();
    let mut run = |max_steps: usize| {
        let mut sequences = Vec::new();
        let mut tokens: Vec<Vec<(u32, u32)>> = Vec::new();
        for (number, sampling) in samplings.iter().enumerate() {
            let mut sequence = runner.start().unwrap();
            let ids = &fixture.ids[..10 + 9 * number];
            tokens.push(vec![bits(&runner.prompt(&mut sequence, ids, sampling, |_| true).unwrap())]);
            sequences.push(sequence);
        }
        while tokens[0].len() < 9 {
            let last: Vec<u32> = tokens.iter().map(|tokens| tokens[tokens.len() - 1].0).collect();
            let rows = sequences.iter_mut().zip(&samplings).zip(last);
            let mut next: Vec<DecodeRow<'_>> =
                rows.map(|((sequence, sampling), token)| DecodeRow::new(sequence, token, sampling)).collect();
            for step in runner.decode(&mut next, max_steps.min(9 - tokens[0].len())).unwrap() {
                tokens.iter_mut().zip(&step).for_each(|(tokens, sampled)| tokens.push(bits(sampled)));
            }
        }
        tokens
    };
    let one_by_one = run(1);
    assert_eq!(run(3), one_by_one);
    assert_eq!(run(8), one_by_one);
}

/// Batches above 128 sequences have buckets of 192 and 256.
#[test]
fn a_large_batch_samples_what_each_sequence_samples_alone() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(256, 16, 16)).unwrap();
    assert_eq!(runner.max_sequences(), 256);
    let sampling = |number: usize| Sampling { seed: number as u64, ..samplings()[number % 2].clone() };
    // Prompts of two tokens, no two alike; then steps of all, and of the first of them.
    let prompt = |number: usize| [1 + (number / 16) as u32, 1 + (number % 16) as u32];
    let mut run = |numbers: &[usize], steps: usize| {
        let mut sequences: Vec<Sequence> = vec![];
        let mut tokens: Vec<Vec<(u32, u32)>> = vec![];
        for &number in numbers {
            let mut sequence = runner.start().unwrap();
            let first = runner.prompt(&mut sequence, &prompt(number), &sampling(number), |_| true).unwrap();
            tokens.push(vec![bits(&first)]);
            sequences.push(sequence);
        }
        let samplings: Vec<Sampling> = numbers.iter().map(|number| sampling(*number)).collect();
        let last: Vec<u32> = tokens.iter().map(|tokens| tokens[0].0).collect();
        let rows = sequences.iter_mut().zip(&samplings).zip(last);
        let mut rows: Vec<DecodeRow<'_>> =
            rows.map(|((sequence, sampling), token)| DecodeRow::new(sequence, token, sampling)).collect();
        for step in runner.decode(&mut rows, steps).unwrap() {
            tokens.iter_mut().zip(&step).for_each(|(tokens, sampled)| tokens.push(bits(sampled)));
        }
        tokens
    };
    let all: Vec<usize> = (0..256).collect();
    let alone: Vec<_> = all.iter().step_by(37).map(|number| run(&[*number], 3).remove(0)).collect();
    for count in [150, 256] {
        let together = run(&all[..count], 3);
        let same = all.iter().step_by(37).zip(&alone).filter(|(number, _)| **number < count);
        for (number, tokens) in same {
            assert_eq!(together[*number], *tokens, "sequence {number} of {count}");
        }
    }
}

#[test]
fn a_stop_token_ends_a_run_on_the_gpu() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    for sampling in samplings() {
        // Single steps, which continue after the later stop token as after any other.
        let mut sequence = runner.start().unwrap();
        let first = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
        let expected = continue_with(&mut runner, &mut sequence, &sampling, first.token, [1, 14]);
        drop(sequence);

        // The first token that has not occurred before.
        let tokens: Vec<u32> = expected.iter().map(|(token, _)| *token).collect();
        let at = (2..7).find(|at| !tokens[..*at].contains(&tokens[*at])).unwrap();
        let mut sequence = runner.start().unwrap();
        runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
        let stop_token_ids = &[u32::MAX - 1, tokens[at]];
        let row = DecodeRow { stop_token_ids, ..DecodeRow::new(&mut sequence, first.token, &sampling) };
        let steps = runner.decode(&mut [row], 8).unwrap();
        let mut got: Vec<_> = steps.concat().iter().map(bits).collect();
        assert_eq!(got, expected[..=at], "{sampling:?}");
        let held = fixture.ids.len() + at + 1;
        assert_eq!((sequence.len() as usize, sequence.pages().0), (held, held.div_ceil(4)), "pages of 4");
        // Had the GPU continued, the sampler's next row would be wrong, and penalties would count more
        // tokens.
        got.extend(continue_with(&mut runner, &mut sequence, &sampling, tokens[at], [3, 13 - at]));
        assert_eq!(got, expected, "{sampling:?}");
    }

    // More stop tokens than the GPU checks: single steps, checked by the host.
    let mut sequence = runner.start().unwrap();
    let sampling = Sampling::default();
    let first = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
    let many: Vec<u32> = (0..17).collect();
    let row = DecodeRow { stop_token_ids: &many, ..DecodeRow::new(&mut sequence, first.token, &sampling) };
    assert_eq!(runner.decode(&mut [row], 8).unwrap().len(), 1);
}

#[test]
fn the_first_stop_token_ends_the_run_for_all_sequences() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(2, 96, 16)).unwrap();
    let sampling = Sampling::default();
    let mut sequences = [runner.start().unwrap(), runner.start().unwrap()];
    let mut first = [0; 2];
    for (sequence, (ids, first)) in
        sequences.iter_mut().zip([&fixture.ids[..], &fixture.ids[..20]].iter().zip(&mut first))
    {
        *first = runner.prompt(sequence, ids, &sampling, |_| true).unwrap().token;
    }
    let greedy = fixture.list("greedy");
    let at = (2..8).find(|at| !greedy[1..*at].contains(&greedy[*at])).unwrap();
    let rows = sequences.iter_mut().zip(first);
    let mut next: Vec<DecodeRow<'_>> =
        rows.map(|(sequence, token)| DecodeRow::new(sequence, token, &sampling)).collect();
    // The stop token of one sequence does not apply to the other.
    next[0].stop_token_ids = &greedy[at..=at];
    let steps = runner.decode(&mut next, 10).unwrap();
    assert_eq!(steps.iter().map(|step| step[0].token).collect::<Vec<_>>(), greedy[1..=at]);
    assert_eq!(sequences.map(|sequence| sequence.len() as usize), [fixture.ids.len() + at, 20 + at]);
}

#[test]
fn a_run_ends_at_the_context_length() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 40, 16)).unwrap();
    let free = runner.cache().free_pages();
    let sampling = Sampling::default();
    let mut sequence = runner.start().unwrap();
    let first = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
    let left = 40 - fixture.ids.len();
    let next = DecodeRow::new(&mut sequence, first.token, &sampling);
    let tokens: Vec<u32> =
        runner.decode(&mut [next], 16).unwrap().concat().iter().map(|sampled| sampled.token).collect();
    assert_eq!(tokens, fixture.list("greedy")[1..=left]);
    assert_eq!(sequence.len(), 40);
    let next = DecodeRow::new(&mut sequence, tokens[left - 1], &sampling);
    let error = runner.decode(&mut [next], 16).unwrap_err();
    assert!(matches!(error, Error::ContextLengthExceeded { tokens: 41, context_length: 40, .. }), "{error}");
    drop(sequence);
    assert_eq!(runner.cache().free_pages(), free);
}

#[test]
fn sliding_window_pages_survive_a_rollback() {
    let Some(device) = testkit::cpu_device() else { return };
    // A window of 32, pages of 4: runs cross pages and release some.
    let fixture = Fixture::open("untied_long");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 340, 16)).unwrap();
    let sampling = Sampling::default();
    let mut run = |max_steps: usize, unwanted: usize| {
        let mut sequence = runner.start().unwrap();
        let first = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
        let mut tokens = vec![first.token];
        while tokens.len() < 25 {
            let token = tokens[tokens.len() - 1];
            let next = DecodeRow::new(&mut sequence, token, &sampling);
            let steps = runner.decode(&mut [next], max_steps).unwrap();
            let new: Vec<u32> = steps.iter().map(|step| step[0].token).collect();
            let kept = new.len() - unwanted;
            runner.rollback(&mut sequence, &new[kept..], &sampling).unwrap();
            tokens.extend(&new[..kept]);
            // 32 positions lie on 8 or 9 pages; a run adds its own.
            assert!(sequence.pages().1 <= 9 + max_steps.div_ceil(4), "{:?}", sequence.pages());
            assert_eq!(sequence.pages().0, sequence.len().div_ceil(4) as usize);
        }
        tokens.truncate(25);
        tokens
    };
    let one_by_one = run(1, 0);
    assert_eq!(run(8, 0), one_by_one);
    assert_eq!(run(16, 11), one_by_one, "eleven of sixteen tokens rolled back in every run");
}

#[test]
fn rolled_back_steps_leave_no_trace() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    for sampling in samplings() {
        let mut sequence = runner.start().unwrap();
        let first = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap().token;
        let expected = continue_with(&mut runner, &mut sequence, &sampling, first, [1, 14]);
        drop(sequence);
        let mut sequence = runner.start().unwrap();
        runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
        let mut got = continue_with(&mut runner, &mut sequence, &sampling, first, [8, 8]);
        let rest: Vec<u32> = got.split_off(3).iter().map(|(token, _)| *token).collect();
        runner.rollback(&mut sequence, &rest, &sampling).unwrap();
        assert_eq!(sequence.len() as usize, fixture.ids.len() + 3);
        let last = got[2].0;
        got.extend(continue_with(&mut runner, &mut sequence, &sampling, last, [5, 11]));
        assert_eq!(got, expected, "{sampling:?}");
        let error = runner.rollback(&mut sequence, &[1; 90], &sampling).unwrap_err().to_string();
        assert!(error.contains("cannot be rolled back"), "{error}");
    }
}

#[test]
fn a_cancelled_generation_resumes_without_gaps() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    for sampling in samplings() {
        let request =
            Request { prompt: &fixture.ids, max_tokens: 12, sampling: &sampling, stop_token_ids: &[] };
        let mut sequence = runner.start().unwrap();
        let whole =
            generate(&mut runner, &mut sequence, &request, |_| ControlFlow::Continue(())).unwrap().tokens;
        drop(sequence);
        for stop_after in [2, 7] {
            let mut sequence = runner.start().unwrap();
            let mut seen = 0;
            let part = generate(&mut runner, &mut sequence, &request, |event| {
                seen += usize::from(matches!(event, Event::Token(_)));
                if seen == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
            assert_eq!((part.finish, &part.tokens[..]), (FinishReason::Cancelled, &whole[..stop_after]));
            assert_eq!(part.decode_steps, stop_after - 1);
            assert_eq!(sequence.len() as usize, fixture.ids.len() + stop_after - 1);
            let rest = Request {
                prompt: &whole[stop_after - 1..stop_after],
                max_tokens: 12 - stop_after,
                ..request.clone()
            };
            let rest = generate(&mut runner, &mut sequence, &rest, |_| ControlFlow::Continue(())).unwrap();
            assert_eq!(rest.tokens, whole[stop_after..], "after {stop_after}, {sampling:?}");
        }
    }
}

#[test]
fn a_step_in_segments_gives_the_same_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    // Which residual stream a segment starts with depends on the kinds of its layers, and on who computes norms.
    for (name, few_rows) in [
        ("gguf_q8_0", Activations::F32),
        ("qwen3moe_gguf_q8_0", Activations::F32),
        ("qwen3moe_gguf_q8_0", Activations::Int16),
    ] {
        let fixture = Fixture::open(name);
        let model = load_alone(&device, &fixture.path).with_few_rows(few_rows).with_one_dispatch(true);
        let model = Arc::new(model);
        let layers = u64::from(model.config.layers);
        let sampling = &samplings()[2];
        let request = Request { prompt: &fixture.ids, max_tokens: 9, sampling, stop_token_ids: &[] };
        let run = |mut runner: Runner, stop_token_ids: &[u32]| {
            let mut sequence = runner.start().unwrap();
            let request = Request { stop_token_ids, ..request.clone() };
            let tokens =
                generate(&mut runner, &mut sequence, &request, |_| ControlFlow::Continue(())).unwrap().tokens;
            let before = device.counters().submissions;
            let next = DecodeRow::new(&mut sequence, tokens[0], sampling);
            let steps = runner.decode(&mut [next], 2).unwrap();
            (
                tokens,
                steps.concat().iter().map(bits).collect::<Vec<_>>(),
                device.counters().submissions - before,
            )
        };
        let runner = || Runner::new(model.clone(), limits(1, 96, 16)).unwrap();
        let whole = run(runner(), &[]);
        let segments = run(runner().layer_by_layer(), &[]);
        assert_eq!((&segments.0, &segments.1), (&whole.0, &whole.1));
        // In one segment per step there are at most two submissions, if steps are slow.
        assert!(whole.2 <= 2);
        assert_eq!(segments.2, 2 * (layers + 1), "the layers and the head");
        let ended = run(runner().layer_by_layer(), &whole.0[4..5]);
        assert!(whole.0.starts_with(&ended.0) && ended.0.len() <= 4);
    }
}

#[test]
fn a_step_slower_than_estimated_is_recorded_in_more_segments() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    let sampling = &samplings()[2];
    let run = |mut runner: Runner, programs: [u64; 3]| {
        let mut sequence = runner.start().unwrap();
        // A prompt of one token uses the decode program.
        let first = runner.prompt(&mut sequence, &fixture.ids[..1], sampling, |_| true).unwrap();
        let mut tokens = vec![bits(&first)];
        for recorded in programs {
            assert_eq!(runner.counters().programs, recorded, "after {} steps", tokens.len());
            tokens.extend(continue_with(
                &mut runner,
                &mut sequence,
                sampling,
                tokens[tokens.len() - 1].0,
                [1, 1],
            ));
        }
        tokens
    };
    let runner = || Runner::new(model.clone(), limits(1, 96, 16)).unwrap();
    let cut = |seconds| {
        let mut runner = runner();
        runner.set_segments(seconds, Some(1e-12));
        runner
    };
    let known = run(runner(), [1, 1, 1]);
    // Assumed to be so fast that all layers are one segment, then measured to be so slow that each layer is
    // one.
    assert_eq!(run(cut(1e-12), [1, 2, 2]), known);
    // Nothing is recorded again if the segments would be the same.
    assert_eq!(run(cut(1.0), [1, 1, 1]), known);

    // Without memory for another program the old one stays in use.
    let mut runner = cut(1e-12);
    let mut sequence = runner.start().unwrap();
    let first = runner.prompt(&mut sequence, &fixture.ids[..1], sampling, |_| true).unwrap();
    device.inject(Fault::Commands { program: 1 });
    assert_eq!(continue_with(&mut runner, &mut sequence, sampling, first.token, [1, 3]), known[1..]);
    assert_eq!(runner.counters().programs, 1);
    assert!(device.recorder().is_ok(), "the injected fault has fired");
}

#[test]
fn a_step_faster_than_estimated_is_recorded_in_fewer_segments() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("default_pattern");
    let model = load(&device, &fixture.path);
    let sampling = &samplings()[2];
    let run = |changes: bool| {
        let mut runner = Runner::new(model.clone(), limits(1, 96, 16)).unwrap();
        runner.set_segments(if changes { 1e-12 } else { 1.0 }, None);
        let mut sequence = runner.start().unwrap();
        let mut tokens =
            vec![bits(&runner.prompt(&mut sequence, &fixture.ids[..1], sampling, |_| true).unwrap())];
        let mut programs = vec![runner.counters().programs];
        for _ in 0..3 {
            if changes && tokens.len() == 2 {
                // So fast that all layers are one segment, until that step is measured.
                runner.set_segments(1e-12, Some(1e-18));
            }
            tokens.extend(continue_with(
                &mut runner,
                &mut sequence,
                sampling,
                tokens[tokens.len() - 1].0,
                [1, 1],
            ));
            programs.push(runner.counters().programs);
        }
        (tokens, programs)
    };
    let (tokens, programs) = run(false);
    assert_eq!(programs, [1, 1, 1, 1]);
    assert_eq!(run(true), (tokens, vec![1, 1, 2, 3]));
}

#[test]
fn the_device_is_measured_before_serving_programs_are_recorded() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("default_pattern");
    let model = load(&device, &fixture.path);
    let sampling = &Sampling::default();
    let serve = |mut runner: Runner| {
        let free = runner.cache().free_pages();
        runner.prepare_serving(std::slice::from_ref(sampling)).unwrap();
        let prepared = runner.counters();
        assert_eq!(runner.cache().free_pages(), free, "the measurement's pages are free again");
        let mut sequence = runner.start().unwrap();
        let first = runner.prompt(&mut sequence, &fixture.ids, sampling, |_| true).unwrap();
        let tokens = continue_with(&mut runner, &mut sequence, sampling, first.token, [1, 3]);
        assert_eq!(runner.counters().programs, prepared.programs, "no request waits for a program");
        (tokens, prepared.steps)
    };
    let runner = || Runner::new(model.clone(), limits(1, 96, 16)).unwrap();
    let (tokens, steps) = serve(runner());
    assert_eq!(steps, 0, "any step of a small model is one segment");
    // Every layer and the head is a segment: two steps of few rows measure, and two of many.
    let mut cut = runner();
    cut.set_segments(1e-12, None);
    assert_eq!(serve(cut), (tokens, 4), "{} layers", model.config.layers);
}

#[test]
fn programs_recorded_ahead_are_those_that_a_server_would_wait_for() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("default_pattern");
    let model = load(&device, &fixture.path);
    let samplings = [Sampling::default(), Sampling { temperature: 1.0, top_k: 40, ..Sampling::default() }];
    let runner = || Runner::new(model.clone(), limits(3, 96, 16)).unwrap();
    let mut all = runner();
    all.prepare_serving(&samplings).unwrap();

    let mut runner = runner();
    runner.prepare_first_requests(&samplings).unwrap();
    let first = runner.counters().programs;
    assert!(first < all.counters().programs / 2, "{first} of {}", all.counters().programs);
    // A first request needs no other.
    let mut sequence = runner.start().unwrap();
    let token = runner.prompt(&mut sequence, &fixture.ids, &samplings[1], |_| true).unwrap().token;
    let tokens = continue_with(&mut runner, &mut sequence, &samplings[1], token, [1, 3]);
    assert_eq!(runner.counters().programs, first);

    let mut ahead = 0;
    while let Some(pipelines) = runner.record_ahead(&samplings).unwrap() {
        if ahead == 0 {
            // A step that comes in between does not wait for the one recorded ahead.
            let mut other = runner.start().unwrap();
            runner.prompt(&mut other, &fixture.ids[..1], &samplings[0], |_| true).unwrap();
        }
        device.compile_in_background(&pipelines).unwrap();
        runner.seal_ahead().unwrap();
        ahead += 1;
    }
    assert_eq!(runner.counters().programs, all.counters().programs);
    assert_eq!(ahead, all.counters().programs - first);
    // Results are the same with programs recorded ahead.
    let mut sequence = runner.start().unwrap();
    let again = runner.prompt(&mut sequence, &fixture.ids, &samplings[1], |_| true).unwrap().token;
    assert_eq!(again, token);
    assert_eq!(continue_with(&mut runner, &mut sequence, &samplings[1], again, [1, 3]), tokens);
}
