//! Sampling: seeds, biases and penalties, without work on the host.

use crate::common::{
    Fixture,
    generate::{Event, FinishReason, Request, generate},
    limits, load, load_alone,
};
use model::{Activations, DecodeRow, Limits, Runner, Sampling};
use std::{ops::ControlFlow, sync::Arc};

fn tokens(runner: &mut Runner, prompt: &[u32], sampling: &Sampling, max_tokens: usize) -> Vec<u32> {
    let mut sequence = runner.start().unwrap();
    let request = Request { prompt, max_tokens, sampling, stop_token_ids: &[] };
    let generated = generate(runner, &mut sequence, &request, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((generated.finish, generated.tokens.len()), (FinishReason::MaxTokens, max_tokens));
    generated.tokens
}

#[test]
fn the_seed_determines_the_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    let drawn = Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, seed: 7, ..Sampling::default() };
    let first = tokens(&mut runner, &fixture.ids, &drawn, 24);
    assert_eq!(tokens(&mut runner, &fixture.ids, &drawn, 24), first);
    // Another runner, with other programs recorded before.
    let mut other = Runner::new(runner.model().clone(), limits(1, 96, 16)).unwrap();
    tokens(&mut other, &fixture.ids[..5], &Sampling::default(), 2);
    assert_eq!(tokens(&mut other, &fixture.ids, &drawn, 24), first);
    let seeds: std::collections::BTreeSet<_> = (0..4)
        .map(|seed| tokens(&mut runner, &fixture.ids, &Sampling { seed, ..drawn.clone() }, 8))
        .collect();
    assert!(seeds.len() >= 3, "{seeds:?}");
    // Top-k of 1 is greedy.
    let only = Sampling { top_k: 1, ..drawn };
    assert_eq!(tokens(&mut runner, &fixture.ids, &only, 12), fixture.list("greedy"));
}

#[test]
fn biases_ban_tokens_and_penalties_prevent_repetition() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    let greedy = fixture.list("greedy");
    let banned = Sampling { biases: vec![(greedy[0], f32::NEG_INFINITY)], ..Sampling::default() };
    assert!(!tokens(&mut runner, &fixture.ids, &banned, 12).contains(&greedy[0]));
    // A bias given twice counts twice.
    let twice = Sampling { biases: vec![(300, 30.0), (300, 30.0)], ..Sampling::default() };
    assert_eq!(tokens(&mut runner, &fixture.ids, &twice, 3), [300; 3]);

    let repeats =
        |tokens: &[u32]| tokens.len() - tokens.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(repeats(&greedy) >= 3, "the test needs repetitions");
    let presence = Sampling { presence: 50.0, ..Sampling::default() };
    let once = tokens(&mut runner, &fixture.ids, &presence, 24);
    assert_eq!(repeats(&once), 0);
    // Again in the same slot: nothing remains of the previous sequence.
    assert_eq!(tokens(&mut runner, &fixture.ids, &presence, 24), once);
    assert!(once.iter().any(|token| fixture.ids.contains(token)), "the presence penalty ignores the prompt");
    // The repetition penalty counts the prompt too, all of its chunks.
    let repetition = Sampling { repetition: 100.0, ..Sampling::default() };
    let fresh = tokens(&mut runner, &fixture.ids, &repetition, 24);
    assert_eq!(repeats(&fresh), 0);
    assert!(!fresh.iter().any(|token| fixture.ids.contains(token)), "{fresh:?}");
    // Without penalties the result is unchanged.
    assert_eq!(tokens(&mut runner, &fixture.ids, &Sampling::default(), 12), greedy);
}

#[test]
fn penalties_count_exactly_the_tokens_of_a_sequence() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner =
        Runner::new(load(&device, &fixture.path), Limits { page_size: 64, ..limits(1, 96, 16) }).unwrap();
    let repetition = Sampling { repetition: 100.0, ..Sampling::default() };
    let fresh = tokens(&mut runner, &fixture.ids, &repetition, 6);

    // A truncated completion leaves no trace once the counts are reset.
    let kept = 30;
    let mut sequence = runner.start().unwrap();
    let request = Request { prompt: &fixture.ids, max_tokens: 6, sampling: &repetition, stop_token_ids: &[] };
    let other = Sampling { biases: vec![(fresh[0], -100.0), (fresh[1], -100.0)], ..repetition.clone() };
    let elsewhere = Request { sampling: &other, ..request.clone() };
    generate(&mut runner, &mut sequence, &elsewhere, |_| ControlFlow::Continue(())).unwrap();
    assert!(runner.truncate(&mut sequence, kept));
    runner.reset_token_counts(&mut sequence, &fixture.ids[..kept as usize], &[]).unwrap();
    let rest = Request { prompt: &fixture.ids[kept as usize..], ..request };
    let again = generate(&mut runner, &mut sequence, &rest, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(again.tokens, fresh);
    drop(sequence);

    // Nor does a recomputed sequence, prefilled with its completion so far: the last token is the next step's
    // input.
    let frequency = Sampling { frequency: 1.5, ..repetition.clone() };
    let fresh = tokens(&mut runner, &fixture.ids, &frequency, 8);
    let mut sequence = runner.start().unwrap();
    let text = [&fixture.ids[..], &fresh[..4]].concat();
    runner.prompt(&mut sequence, &text, &frequency, |_| true).unwrap();
    runner.reset_token_counts(&mut sequence, &fixture.ids, &fresh[..5]).unwrap();
    for step in 5..8 {
        let next = DecodeRow::new(&mut sequence, fresh[step - 1], &frequency);
        assert_eq!(runner.decode(&mut [next], 1).unwrap()[0][0].token, fresh[step]);
    }
    drop(sequence);

    // Penalties that start later count from there: earlier prompt tokens may be repeated.
    let mut sequence = runner.start().unwrap();
    let plain = Sampling::default();
    runner.prompt(&mut sequence, &fixture.ids[..33], &plain, |_| true).unwrap();
    let late =
        Request { prompt: &fixture.ids[33..], max_tokens: 6, sampling: &repetition, stop_token_ids: &[] };
    let late = generate(&mut runner, &mut sequence, &late, |_| ControlFlow::Continue(())).unwrap().tokens;
    assert!(late.iter().any(|token| fixture.ids.contains(token)), "{late:?}");
}

#[test]
fn sampling_a_batch_is_deterministic() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    // Each sequence has its own parameters: greedy, sampled, filtered, penalised.
    let samplings = [
        Sampling::default(),
        Sampling { temperature: 1.0, seed: 3, ..Sampling::default() },
        Sampling { temperature: 0.8, top_k: 20, top_p: 0.9, seed: 4, ..Sampling::default() },
        Sampling {
            temperature: 1.0,
            presence: 2.0,
            seed: 5,
            biases: vec![(300, 3.0)],
            ..Sampling::default()
        },
    ];
    let run = || {
        let mut runner = Runner::new(model.clone(), limits(4, 96, 16)).unwrap();
        let mut sequences: Vec<_> = samplings.iter().map(|_| runner.start().unwrap()).collect();
        let mut drawn: Vec<Vec<(u32, u32)>> = Vec::new();
        for (sequence, sampling) in sequences.iter_mut().zip(&samplings) {
            let first = runner.prompt(sequence, &fixture.ids, sampling, |_| true).unwrap();
            drawn.push(vec![(first.token, first.logprob.to_bits())]);
        }
        for _ in 0..10 {
            let last: Vec<u32> = drawn.iter().map(|drawn| drawn[drawn.len() - 1].0).collect();
            let mut next: Vec<DecodeRow<'_>> = sequences
                .iter_mut()
                .zip(&samplings)
                .zip(last)
                .map(|((sequence, sampling), token)| DecodeRow::new(sequence, token, sampling))
                .collect();
            for (drawn, sampled) in drawn.iter_mut().zip(runner.decode(&mut next, 1).unwrap().remove(0)) {
                drawn.push((sampled.token, sampled.logprob.to_bits()));
            }
        }
        drawn
    };
    let first = run();
    assert_eq!(run(), first);
    let greedy: Vec<u32> = first[0].iter().map(|(token, _)| *token).collect();
    assert_eq!(greedy, fixture.list("greedy")[..11], "the parameters of other rows do not apply");
}

#[test]
fn a_token_costs_sixteen_bytes_of_readback_and_no_recording() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    // Programs are recorded the first time.
    tokens(&mut runner, &fixture.ids, &Sampling::default(), 4);
    let mut sequence = runner.start().unwrap();
    let sampling = Sampling::default();
    let request = Request { prompt: &fixture.ids, max_tokens: 20, sampling: &sampling, stop_token_ids: &[] };
    let mut at_first = None;
    let generated = generate(&mut runner, &mut sequence, &request, |event| {
        if let (Event::Token(_), None) = (event, at_first) {
            at_first = Some(device.counters());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let (before, after) = (at_first.unwrap(), device.counters());
    assert_eq!(generated.decode_steps, 19);
    assert!(after.submissions - before.submissions <= 19);
    assert_eq!(after.commands_recorded, before.commands_recorded, "nothing is recorded per token");
    assert_eq!(after.allocations, before.allocations, "nothing is allocated per token");
    assert_eq!(after.pipelines, before.pipelines);
    assert_eq!(generated.decode_read_back, 19 * 16);

    // How many steps go into a submission depends on measured times; before any measurement all requested
    // ones do.
    drop(sequence);
    let mut runner = Runner::new(runner.model().clone(), limits(1, 96, 16)).unwrap();
    runner.prepare(32, &sampling).unwrap();
    let mut sequence = runner.start().unwrap();
    // Whole chunks: no step has few rows.
    let token = runner.prompt(&mut sequence, &fixture.ids[..32], &sampling, |_| true).unwrap().token;
    let (before, read_back) = (device.counters(), runner.counters().read_back);
    let next = DecodeRow::new(&mut sequence, token, &sampling);
    assert_eq!(runner.decode(&mut [next], 8).unwrap().len(), 8);
    let after = device.counters();
    assert_eq!(after.submissions - before.submissions, 1, "for 8 tokens");
    assert_eq!(runner.counters().read_back - read_back, 8 * 16);
    assert_eq!(after.commands_recorded, before.commands_recorded);
}

#[test]
fn generation_ends_by_stop_token_limit_or_caller() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 40, 16)).unwrap();
    let greedy = fixture.list("greedy");
    let sampling = Sampling::default();
    let mut run = |stop_token_ids: &[u32], max_tokens: usize, stop_after: usize, prompt: &[u32]| {
        let mut sequence = runner.start().unwrap();
        let request = Request { prompt, max_tokens, sampling: &sampling, stop_token_ids };
        let mut seen = 0;
        let generated = generate(&mut runner, &mut sequence, &request, |event| {
            seen += usize::from(matches!(event, Event::Token(_)));
            if seen == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        (generated.finish, generated.tokens)
    };
    assert_eq!(run(&[greedy[3]], 12, 99, &fixture.ids), (FinishReason::Stop, greedy[..3].to_vec()));
    assert_eq!(run(&[], 12, 2, &fixture.ids), (FinishReason::Cancelled, greedy[..2].to_vec()));
    assert_eq!(run(&[], 1, 99, &fixture.ids), (FinishReason::MaxTokens, greedy[..1].to_vec()));
    // The prompt has 34 of 40 positions; the seventh token is the last that fits.
    assert_eq!(run(&[], 12, 99, &fixture.ids), (FinishReason::ContextLength, greedy[..7].to_vec()));
    // Cancelled during prefill.
    let mut sequence = runner.start().unwrap();
    let request = Request { prompt: &fixture.ids, max_tokens: 5, sampling: &sampling, stop_token_ids: &[] };
    let generated = generate(&mut runner, &mut sequence, &request, |_| ControlFlow::Break(())).unwrap();
    assert_eq!((generated.finish, generated.tokens.len(), sequence.len()), (FinishReason::Cancelled, 0, 16));
}

#[test]
fn a_gpu_decode_step_has_as_many_levels_as_estimated() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in ["gguf_q8_0", "qwen3moe_gguf_q8_0", "gemma4_moe_gguf_q8_0", "gemma4_ple_gguf_q8_0"] {
        let fixture = Fixture::open(name);
        // The code path of a GPU; the CPU driver would choose another.
        let model = load_alone(&device, &fixture.path);
        let model = model.with_few_rows(Activations::Int16).with_one_dispatch(true);
        let mut runner = Runner::new(Arc::new(model), limits(1, 96, 16)).unwrap();
        let mut sequence = runner.start().unwrap();
        let sampling = Sampling::default();
        let next = DecodeRow::new(&mut sequence, 1, &sampling);
        let profile = runner.profile(&mut [next]).unwrap();
        let levels: usize = profile.levels.iter().map(|level| level.count).sum();
        let estimated = model::estimate::levels(&runner.model().config) as usize;
        assert_eq!(levels, estimated, "{name}: {:?}", profile.levels);
    }
}

#[test]
fn a_scored_prompt_reports_the_log_probabilities_of_its_logits() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let prompt = &fixture.ids;
    // One sequence: a step scores more rows than it has sequences to sample for.
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    let mut logits: Vec<Vec<f32>> = vec![];
    let mut sequence = runner.start().unwrap();
    let each = |row: &[f32]| {
        logits.push(row.to_vec());
        Ok(())
    };
    runner.logits(&mut sequence, prompt, each).unwrap();
    drop(sequence);

    let mut sequence = runner.start().unwrap();
    let (scored, following) = (&prompt[..prompt.len() - 1], &prompt[1..]);
    let mut found = vec![];
    for (tokens, following) in scored.chunks(7).zip(following.chunks(7)) {
        found.extend(runner.score_chunk(&mut sequence, tokens, following, 3).unwrap());
    }
    assert_eq!(found.len(), prompt.len() - 1);
    for (position, sampled) in found.iter().enumerate() {
        let row = &logits[position];
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|logit| f64::from(logit - max).exp()).sum();
        let logprob = |token: u32| f64::from(row[token as usize] - max) - sum.ln();
        assert_eq!(sampled.token, prompt[position + 1]);
        let mut best: Vec<u32> = (0..row.len() as u32).collect();
        best.sort_by(|one, other| row[*other as usize].total_cmp(&row[*one as usize]).then(one.cmp(other)));
        let reported: Vec<u32> = sampled.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(reported, best[..3], "position {position}");
        for (token, found) in sampled.top.iter().chain(&[(sampled.token, sampled.logprob)]) {
            let difference = (f64::from(*found) - logprob(*token)).abs();
            assert!(
                difference < 1e-4,
                "position {position}, token {token}: {found}, not {}",
                logprob(*token)
            );
        }
    }
    // A completion goes on from there as after any prompt.
    let last = &prompt[prompt.len() - 1..];
    let first = runner.prompt(&mut sequence, last, &Sampling::default(), |_| true).unwrap();
    assert_eq!(first.token, fixture.list("greedy")[0]);
    drop(sequence);

    let mut sequence = runner.start().unwrap();
    let error = runner.score_chunk(&mut sequence, &prompt[..17], &prompt[1..18], 0).unwrap_err();
    assert!(error.to_string().contains("a step takes 1 to 16"), "{error}");
    let error = runner.score_chunk(&mut sequence, &prompt[..1], &[u32::MAX], 0).unwrap_err();
    assert!(error.to_string().contains("is not in"), "{error}");
}
