//! Sampling as a caller meets it: seeds, biases and penalties, and nothing done on the host.

mod common;

use common::{Fixture, limits, load, load_alone};
use model::{
    Activations, DecodeRow, Limits, Runner, Sampling,
    generate::{Event, Finish, Request, generate},
};
use std::{ops::ControlFlow, sync::Arc};

fn tokens(runner: &mut Runner, prompt: &[u32], sampling: &Sampling, most: usize) -> Vec<u32> {
    let mut sequence = runner.start().unwrap();
    let request = Request { prompt, most, sampling, ends: &[] };
    let generated = generate(runner, &mut sequence, &request, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((generated.finish, generated.tokens.len()), (Finish::Length, most));
    generated.tokens
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_another_gives_others() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    let drawn = Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, seed: 7, ..Sampling::default() };
    let first = tokens(&mut runner, &fixture.ids, &drawn, 24);
    assert_eq!(tokens(&mut runner, &fixture.ids, &drawn, 24), first);
    // A runner of its own, with other programs recorded before it.
    let mut other = Runner::new(runner.model().clone(), limits(1, 96, 16)).unwrap();
    tokens(&mut other, &fixture.ids[..5], &Sampling::default(), 2);
    assert_eq!(tokens(&mut other, &fixture.ids, &drawn, 24), first);
    let seeds: std::collections::BTreeSet<_> = (0..4)
        .map(|seed| tokens(&mut runner, &fixture.ids, &Sampling { seed, ..drawn.clone() }, 8))
        .collect();
    assert!(seeds.len() >= 3, "{seeds:?}");
    // One token to choose from is no choice.
    let only = Sampling { top_k: 1, ..drawn };
    assert_eq!(tokens(&mut runner, &fixture.ids, &only, 12), fixture.list("greedy"));
}

#[test]
fn biases_ban_and_penalties_keep_from_repeating() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    let greedy = fixture.list("greedy");
    let banned = Sampling { biases: vec![(greedy[0], f32::NEG_INFINITY)], ..Sampling::default() };
    assert!(!tokens(&mut runner, &fixture.ids, &banned, 12).contains(&greedy[0]));
    // Given twice, a bias counts twice.
    let twice = Sampling { biases: vec![(300, 30.0), (300, 30.0)], ..Sampling::default() };
    assert_eq!(tokens(&mut runner, &fixture.ids, &twice, 3), [300; 3]);

    let repeats =
        |tokens: &[u32]| tokens.len() - tokens.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(repeats(&greedy) >= 3, "else the rest shows nothing");
    let presence = Sampling { presence: 50.0, ..Sampling::default() };
    let once = tokens(&mut runner, &fixture.ids, &presence, 24);
    assert_eq!(repeats(&once), 0);
    // Again in the same slot: nothing is left of the sequence before.
    assert_eq!(tokens(&mut runner, &fixture.ids, &presence, 24), once);
    assert!(once.iter().any(|token| fixture.ids.contains(token)), "presence is about what was generated");
    // A repetition penalty knows the prompt too, in whichever chunk it stood.
    let repetition = Sampling { repetition: 100.0, ..Sampling::default() };
    let fresh = tokens(&mut runner, &fixture.ids, &repetition, 24);
    assert_eq!(repeats(&fresh), 0);
    assert!(!fresh.iter().any(|token| fixture.ids.contains(token)), "{fresh:?}");
    // And without any, all is as it was.
    assert_eq!(tokens(&mut runner, &fixture.ids, &Sampling::default(), 12), greedy);
}

#[test]
fn penalties_know_what_a_sequence_holds_and_nothing_else() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner =
        Runner::new(load(&device, &fixture.path), Limits { page_size: 64, ..limits(1, 96, 16) }).unwrap();
    let repetition = Sampling { repetition: 100.0, ..Sampling::default() };
    let fresh = tokens(&mut runner, &fixture.ids, &repetition, 6);

    // An answer that is cut off again leaves no trace, once what is kept has been counted anew.
    let kept = 30;
    let mut sequence = runner.start().unwrap();
    let request = Request { prompt: &fixture.ids, most: 6, sampling: &repetition, ends: &[] };
    let other = Sampling { biases: vec![(fresh[0], -100.0), (fresh[1], -100.0)], ..repetition.clone() };
    let elsewhere = Request { sampling: &other, ..request.clone() };
    generate(&mut runner, &mut sequence, &elsewhere, |_| ControlFlow::Continue(())).unwrap();
    assert!(runner.truncate(&mut sequence, kept));
    runner.reset_token_counts(&mut sequence, &fixture.ids[..kept as usize], &[]).unwrap();
    let rest = Request { prompt: &fixture.ids[kept as usize..], ..request };
    let again = generate(&mut runner, &mut sequence, &rest, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(again.tokens, fresh);
    drop(sequence);

    // So does a sequence that is read again with what was written so far: the last token comes in with the next step.
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

    // Penalties that come late count from there: the prompt before them is free to be repeated.
    let mut sequence = runner.start().unwrap();
    let plain = Sampling::default();
    runner.prompt(&mut sequence, &fixture.ids[..33], &plain, |_| true).unwrap();
    let late = Request { prompt: &fixture.ids[33..], most: 6, sampling: &repetition, ends: &[] };
    let late = generate(&mut runner, &mut sequence, &late, |_| ControlFlow::Continue(())).unwrap().tokens;
    assert!(late.iter().any(|token| fixture.ids.contains(token)), "{late:?}");
}

#[test]
fn a_batch_of_draws_is_the_same_bit_for_bit() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    // Each sequence with settings of its own: greedy, drawn, filtered, penalised.
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
    assert_eq!(greedy, fixture.list("greedy")[..11], "the others' settings are not its own");
}

#[test]
fn tokens_are_few_submissions_and_sixteen_bytes_each() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    // Programs are recorded the first time.
    tokens(&mut runner, &fixture.ids, &Sampling::default(), 4);
    let mut sequence = runner.start().unwrap();
    let sampling = Sampling::default();
    let request = Request { prompt: &fixture.ids, most: 20, sampling: &sampling, ends: &[] };
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

    // How many steps fit a submission depends on how fast they were; before anything was measured, those asked for do.
    drop(sequence);
    let mut runner = Runner::new(runner.model().clone(), limits(1, 96, 16)).unwrap();
    runner.prepare(32, &sampling).unwrap();
    let mut sequence = runner.start().unwrap();
    // Whole chunks: no step of a few rows is among them.
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
fn an_answer_ends_where_the_model_or_the_caller_ends_it() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 40, 16)).unwrap();
    let greedy = fixture.list("greedy");
    let sampling = Sampling::default();
    let mut run = |ends: &[u32], most: usize, stop_after: usize, prompt: &[u32]| {
        let mut sequence = runner.start().unwrap();
        let request = Request { prompt, most, sampling: &sampling, ends };
        let mut seen = 0;
        let generated = generate(&mut runner, &mut sequence, &request, |event| {
            seen += usize::from(matches!(event, Event::Token(_)));
            if seen == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        (generated.finish, generated.tokens)
    };
    assert_eq!(run(&[greedy[3]], 12, 99, &fixture.ids), (Finish::End, greedy[..3].to_vec()));
    assert_eq!(run(&[], 12, 2, &fixture.ids), (Finish::Stop, greedy[..2].to_vec()));
    assert_eq!(run(&[], 1, 99, &fixture.ids), (Finish::Length, greedy[..1].to_vec()));
    // 34 positions of 40 are the prompt's; the seventh token is the last that can be made of them.
    assert_eq!(run(&[], 12, 99, &fixture.ids), (Finish::Context, greedy[..7].to_vec()));
    // Stopped while the prompt is read.
    let mut sequence = runner.start().unwrap();
    let request = Request { prompt: &fixture.ids, most: 5, sampling: &sampling, ends: &[] };
    let generated = generate(&mut runner, &mut sequence, &request, |_| ControlFlow::Break(())).unwrap();
    assert_eq!((generated.finish, generated.tokens.len(), sequence.len()), (Finish::Stop, 0, 16));
}

#[test]
fn a_step_of_a_gpu_has_five_levels_a_layer_as_estimates_count() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    // As a GPU decodes; the CPU driver by itself takes other ways.
    let model = load_alone(&device, &fixture.path).with_few_rows(Activations::Int16).with_one_dispatch(true);
    let mut runner = Runner::new(Arc::new(model), limits(1, 96, 16)).unwrap();
    let mut sequence = runner.start().unwrap();
    let sampling = Sampling::default();
    let next = DecodeRow::new(&mut sequence, 1, &sampling);
    let profile = runner.profile(&mut [next]).unwrap();
    let levels: usize = profile.levels.iter().map(|level| level.count).sum();
    let estimated = model::estimate::levels(&runner.model().config) as usize;
    assert_eq!(levels, estimated, "{:?}", profile.levels);
}
