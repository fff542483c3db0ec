//! Mixed steps: decode rows and a prefill chunk in one step give the same tokens as separate steps.

use crate::common;
use std::{sync::Arc, time::Duration};

use crate::common::{Fixture, limits, load, load_alone, long_config};
use model::{
    Activations, DecodeRow, Error, KvScheme, Limits, Model, PrefillChunk, Runner, Sampled, Sampling, Sequence,
};
use tensor::Scheme;

/// Three sequences decode while a fourth prefills its prompt; then all four decode.
struct Scenario<'a> {
    prompts: [&'a [u32]; 4],
    samplings: [Sampling; 4],
    /// The chunk sizes of the fourth prompt.
    chunks: &'a [usize],
    limits: Limits,
}

/// Decodes `count` more tokens of each sequence.
fn decode(
    runner: &mut Runner,
    sequences: &mut [Sequence],
    samplings: &[Sampling],
    tokens: &mut [Vec<Sampled>],
    count: usize,
) {
    let total = tokens[0].len() + count;
    while tokens[0].len() < total {
        let mut rows = rows(sequences, samplings, tokens);
        // In runs, whose steps continue from what the sampler left on the GPU.
        for step in runner.decode(&mut rows, total - tokens[0].len()).unwrap() {
            tokens.iter_mut().zip(step).for_each(|(tokens, sampled)| tokens.push(sampled));
        }
    }
}

fn rows<'a>(
    sequences: &'a mut [Sequence],
    samplings: &'a [Sampling],
    tokens: &[Vec<Sampled>],
) -> Vec<DecodeRow<'a>> {
    let rows = sequences.iter_mut().zip(samplings).zip(tokens);
    rows.map(|((sequence, sampling), tokens)| {
        DecodeRow::new(sequence, tokens[tokens.len() - 1].token, sampling)
    })
    .collect()
}

impl Scenario<'_> {
    /// All tokens of the four sequences, by mixed or by separate steps.
    fn run(&self, model: &Arc<Model>, mixed: bool) -> Vec<Vec<Sampled>> {
        let mut runner = Runner::new(model.clone(), self.limits).unwrap();
        let mut sequences = Vec::new();
        let mut tokens = Vec::new();
        for (prompt, sampling) in self.prompts[..3].iter().zip(&self.samplings) {
            let mut sequence = runner.start().unwrap();
            tokens.push(vec![runner.prompt(&mut sequence, prompt, sampling, |_| true).unwrap()]);
            sequences.push(sequence);
        }
        decode(&mut runner, &mut sequences, &self.samplings, &mut tokens, 2);

        let (prompt, sampling) = (self.prompts[3], &self.samplings[3]);
        assert_eq!(self.chunks.iter().sum::<usize>(), prompt.len());
        let mut fourth = runner.start().unwrap();
        let mut first = None;
        if mixed {
            let mut rest = prompt;
            for size in self.chunks {
                let (chunk, after) = rest.split_at(*size);
                rest = after;
                let last = rest.is_empty();
                let chunk = PrefillChunk::new(&mut fourth, chunk, sampling, last);
                let mut step =
                    runner.mixed(&mut rows(&mut sequences, &self.samplings, &tokens), &mut [chunk]).unwrap();
                tokens.iter_mut().zip(step.decoded).for_each(|(tokens, sampled)| tokens.push(sampled));
                assert_eq!(step.first_tokens[0].is_some(), last);
                first = step.first_tokens.remove(0);
                // Decode steps between the chunks, as while the next prompt is awaited.
                decode(&mut runner, &mut sequences, &self.samplings, &mut tokens, 1);
            }
        } else {
            decode(&mut runner, &mut sequences, &self.samplings, &mut tokens, 2 * self.chunks.len());
            first = Some(runner.prompt(&mut fourth, prompt, sampling, |_| true).unwrap());
        }
        assert_eq!(fourth.len() as usize, prompt.len());
        sequences.push(fourth);
        // The fourth has fewer tokens than the others: the same number more for each.
        let mut last = vec![vec![first.unwrap()]];
        let mut ends: Vec<Vec<Sampled>> = tokens
            .iter()
            .map(|tokens| vec![tokens[tokens.len() - 1].clone()])
            .chain(last.drain(..))
            .collect();
        decode(&mut runner, &mut sequences, &self.samplings, &mut ends, 7);
        for (tokens, end) in tokens.iter_mut().zip(&ends) {
            tokens.extend_from_slice(&end[1..]);
        }
        tokens.push(ends.remove(3));
        tokens
    }

    /// Compares mixed with separate steps. `allowed` is the tolerance of log probabilities.
    fn compare(&self, what: &str, model: &Arc<Model>, allowed: f32) {
        let (mixed, separate) = (self.run(model, true), self.run(model, false));
        for (number, (mixed, separate)) in mixed.iter().zip(&separate).enumerate() {
            let ids = |sampled: &[Sampled]| sampled.iter().map(|sampled| sampled.token).collect::<Vec<_>>();
            assert_eq!(ids(mixed), ids(separate), "{what}, sequence {number}");
            for (at, (mixed, separate)) in mixed.iter().zip(separate).enumerate() {
                let difference = (mixed.logprob - separate.logprob).abs();
                assert!(difference <= allowed, "{what}, sequence {number}, token {at}: {difference}");
            }
        }
    }
}

const GREEDY: fn() -> [Sampling; 4] = || std::array::from_fn(|_| Sampling::default());

/// Chunks that fill a bucket with the decode rows, of few rows, of one row, and short ones at the end.
const CHUNKS: [&[usize]; 3] = [&[13, 13, 8], &[5, 1, 13, 13, 2], &[9, 13, 11, 1]];

#[test]
fn mixed_steps_give_the_tokens_of_separate_steps() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let ids = &fixture.ids;
    let model = || load_alone(&device, &fixture.path);
    let variants = [
        ("several dispatches", model()),
        ("one dispatch", model().with_one_dispatch(true)),
        ("as GPUs without matrix units", model().with_one_dispatch(true).with_few_rows(Activations::Int16)),
        ("matrix units, several dispatches", model().with_emulated_matrix_units()),
        ("matrix units", model().with_one_dispatch(true).with_emulated_matrix_units()),
    ];
    for (variant, model) in variants {
        let model = Arc::new(model);
        // Pages of 4 are too short for flash attention, pages of 16 are not.
        for (page, kv, chunks) in
            [(4, KvScheme::F16, CHUNKS[0]), (16, KvScheme::F16, CHUNKS[1]), (16, KvScheme::Int8, CHUNKS[2])]
        {
            let scenario = Scenario {
                prompts: [&ids[..20], &ids[..7], &ids[3..30], ids],
                samplings: GREEDY(),
                chunks,
                limits: Limits { kv_scheme: kv, page_size: page, ..limits(4, 96, 16) },
            };
            scenario.compare(&format!("{variant}, {kv}, pages of {page}"), &model, 2e-2);
        }
    }
    device.assert_no_messages();
}

#[test]
fn mixed_steps_beyond_the_sliding_window_give_the_same_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    // A window of 32.
    let fixture = Fixture::open("untied_long");
    let ids = &fixture.ids;
    for (variant, model) in [
        ("one dispatch", load_alone(&device, &fixture.path).with_one_dispatch(true)),
        ("matrix units", load_alone(&device, &fixture.path).with_emulated_matrix_units()),
    ] {
        let model = Arc::new(model);
        for page in [4, 16] {
            let scenario = Scenario {
                prompts: [&ids[..60], &ids[40..45], &ids[100..200], &ids[150..250]],
                samplings: GREEDY(),
                chunks: &[29, 29, 29, 13],
                limits: Limits { page_size: page, ..limits(4, 160, 32) },
            };
            scenario.compare(&format!("{variant}, pages of {page}"), &model, 2e-2);
        }
    }
}

/// Batch-invariant: whatever else is in the batch, and however the prompt is split into chunks.
#[test]
fn reproducible_mixed_steps_are_batch_invariant() {
    let Some(device) = testkit::cpu_device() else { return };
    for (name, kv) in common::reproducible().iter().copied() {
        let fixture = Fixture::open(name);
        let ids = &fixture.ids.iter().copied().cycle().take(34).collect::<Vec<u32>>()[..];
        let plain = load_alone(&device, &fixture.path).with_reproducible(true);
        let matrix_units =
            load_alone(&device, &fixture.path).with_emulated_matrix_units().with_reproducible(true);
        for (variant, model) in
            [("without matrix units", Arc::new(plain)), ("emulated matrix units", Arc::new(matrix_units))]
        {
            let chunks = if testkit::exhaustive() { &CHUNKS[..] } else { &CHUNKS[1..2] };
            for chunks in chunks.iter().copied() {
                let scenario = Scenario {
                    prompts: [&ids[..20], &ids[..7], &ids[3..30], ids],
                    samplings: GREEDY(),
                    chunks,
                    limits: Limits { kv_scheme: kv, page_size: 16, ..limits(4, 96, 16) },
                };
                scenario.compare(&format!("{name} {variant}, {chunks:?}"), &model, 0.0);
            }
        }
    }
}

/// Greedy, filtered, penalised and biased rows in one batch.
#[test]
fn every_row_is_sampled_with_its_own_parameters() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let ids = &fixture.ids;
    let drawn = Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() };
    let penalised = Sampling { repetition: 100.0, frequency: 2.0, ..Sampling::default() };
    let biased = Sampling {
        biases: vec![(300, 50.0), (17, f32::NEG_INFINITY)],
        presence: 100.0,
        seed: 5,
        temperature: 0.7,
        ..Sampling::default()
    };
    // Batch-invariant, so that random draws and penalties see the same logits.
    let model = Arc::new(load_alone(&device, &fixture.path).with_reproducible(true));
    let plain = Sampling::default();
    for samplings in [
        [&plain, &drawn, &penalised, &biased],
        [&penalised, &plain, &biased, &drawn],
        // The prompt is counted in every chunk, though no other row has penalties.
        [&plain, &drawn, &plain, &penalised],
    ] {
        let samplings = samplings.map(Clone::clone);
        for chunks in &CHUNKS[..2] {
            let scenario = Scenario {
                prompts: [&ids[..20], &ids[..7], &ids[3..30], ids],
                samplings: samplings.clone(),
                chunks,
                limits: limits(4, 96, 16),
            };
            scenario.compare(&format!("{samplings:?}, {chunks:?}"), &model, 0.0);
            let fourth = &scenario.run(&model, true)[3];
            if samplings[3] == penalised {
                assert!(fourth.iter().all(|sampled| !ids.contains(&sampled.token)), "{fourth:?}");
            }
            if samplings[3] == biased {
                assert_eq!(fourth[0].token, 300, "{fourth:?}");
            }
        }
    }
}

/// Different rows of the same buffers need no barrier: attention of decode and prefill rows runs
/// concurrently, in as many levels as a chunk alone.
#[test]
fn a_mixed_step_has_no_more_levels_than_a_chunk_alone() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load_alone(&device, &fixture.path).with_one_dispatch(true).with_emulated_matrix_units();
    let mut runner = Runner::new(Arc::new(model), Limits { page_size: 16, ..limits(2, 96, 16) }).unwrap();
    let sampling = Sampling::default();
    let (mut one, mut other) = (runner.start().unwrap(), runner.start().unwrap());
    // Allocates the memory of steps of 16 rows and of one, which other programs clear.
    let token = runner.prompt(&mut one, &fixture.ids[..17], &sampling, |_| true).unwrap().token;
    let before = device.counters().barriers_recorded;
    let chunk = PrefillChunk::new(&mut other, &fixture.ids[..16], &sampling, true);
    runner.mixed(&mut [], &mut [chunk]).unwrap();
    let alone = device.counters().barriers_recorded;
    let chunk = PrefillChunk::new(&mut other, &fixture.ids[16..30], &sampling, false);
    let next = DecodeRow::new(&mut one, token, &sampling);
    runner.mixed(&mut [next], &mut [chunk]).unwrap();
    let mixed = device.counters().barriers_recorded;
    assert_eq!(mixed - alone, alone - before);
}

#[test]
fn a_prefill_chunk_needs_no_decode_rows() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 96, 16)).unwrap();
    let sampling = Sampling::default();
    let mut sequence = runner.start().unwrap();
    let (head, tail) = fixture.ids.split_at(16);
    let (middle, tail) = tail.split_at(16);
    for tokens in [head, middle] {
        let chunk = PrefillChunk::new(&mut sequence, tokens, &sampling, false);
        let step = runner.mixed(&mut [], &mut [chunk]).unwrap();
        assert!(step.decoded.is_empty() && step.first_tokens == [None]);
    }
    let chunk = PrefillChunk::new(&mut sequence, tail, &sampling, true);
    assert_eq!(
        runner.mixed(&mut [], &mut [chunk]).unwrap().first_tokens[0].as_ref().unwrap().token,
        fixture.list("greedy")[0]
    );
}

#[test]
fn a_mixed_step_in_segments_gives_the_same_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    let sampling = Sampling { temperature: 1.0, seed: 3, repetition: 1.5, ..Sampling::default() };
    let run = |mut runner: Runner| {
        let mut sequences = [runner.start().unwrap(), runner.start().unwrap()];
        let [one, other] = &mut sequences;
        let token = runner.prompt(one, &fixture.ids[..9], &sampling, |_| true).unwrap().token;
        let next = DecodeRow::new(one, token, &sampling);
        let chunk = PrefillChunk::new(other, &fixture.ids[..12], &sampling, true);
        runner.mixed(&mut [next], &mut [chunk]).unwrap()
    };
    let runner = || Runner::new(model.clone(), limits(2, 96, 16)).unwrap();
    assert_eq!(run(runner().layer_by_layer()), run(runner()));
}

#[test]
fn an_invalid_mixed_batch_is_rejected_and_changes_nothing() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model.clone(), limits(3, 40, 16)).unwrap();
    let mut elsewhere = Runner::new(model, limits(1, 40, 16)).unwrap().start().unwrap();
    let sampling = Sampling::default();
    let wrong = Sampling { temperature: -1.0, ..Sampling::default() };
    let (mut one, mut other) = (runner.start().unwrap(), runner.start().unwrap());
    let token = runner.prompt(&mut one, &fixture.ids, &sampling, |_| true).unwrap().token;
    let ids = &fixture.ids[..];

    let mut rejected = |token: u32, sampling: &Sampling, tokens: &[u32], chunk_sampling: &Sampling| {
        let before = (one.len(), other.len());
        let next = DecodeRow::new(&mut one, token, sampling);
        let chunk = PrefillChunk::new(&mut other, tokens, chunk_sampling, true);
        let error = runner.mixed(&mut [next], &mut [chunk]).unwrap_err();
        assert_eq!((one.len(), other.len()), before);
        error
    };
    let error = rejected(token, &sampling, &[], &sampling);
    assert!(matches!(error, Error::EmptyPrompt), "{error}");
    let error = rejected(320, &sampling, &ids[..3], &sampling);
    assert!(matches!(error, Error::UnknownToken { token: 320, .. }), "{error}");
    let error = rejected(token, &sampling, &[1, 320], &sampling);
    assert!(matches!(error, Error::UnknownToken { token: 320, .. }), "{error}");
    for (a, b) in [(&wrong, &sampling), (&sampling, &wrong)] {
        let error = rejected(token, a, &ids[..3], b);
        assert!(matches!(error, Error::Sampling { name: "temperature", .. }), "{error}");
    }
    let error = rejected(token, &sampling, &ids[..16], &sampling).to_string();
    assert!(error.contains("16 prefill tokens beside 1") && error.contains("at most 15"), "{error}");
    let error = rejected(token, &sampling, &[1; 41], &sampling);
    assert!(matches!(error, Error::ContextLengthExceeded { tokens: 41, .. }), "{error}");

    // A sequence of another runner, as decode row or as chunk.
    for swapped in [false, true] {
        let (sequence, next) =
            if swapped { (&mut other, &mut elsewhere) } else { (&mut elsewhere, &mut other) };
        let next = DecodeRow::new(next, token, &sampling);
        let chunk = PrefillChunk::new(sequence, &ids[..3], &sampling, true);
        let error = runner.mixed(&mut [next], &mut [chunk]).unwrap_err().to_string();
        assert!(error.contains("another runner"), "{error}");
    }
    assert_eq!((other.len(), elsewhere.len()), (0, 0));

    // A valid batch works afterwards.
    let next = DecodeRow::new(&mut one, token, &sampling);
    let chunk = PrefillChunk::new(&mut other, &ids[..15], &sampling, false);
    assert_eq!(runner.mixed(&mut [next], &mut [chunk]).unwrap().decoded[0].token, fixture.list("greedy")[1]);

    // All sequences but one decode, and half a chunk still fits.
    let mut runner = Runner::new(runner.model().clone(), limits(16, 40, 16)).unwrap();
    let mut sequences: Vec<Sequence> = (0..16).map(|_| runner.start().unwrap()).collect();
    let (last, others) = sequences.split_last_mut().unwrap();
    let rows = runner.max_prefill_tokens(15, 1, Duration::from_secs(1000));
    assert_eq!(rows, 16, "32 rows in all");
    let mut next: Vec<DecodeRow<'_>> =
        others.iter_mut().map(|sequence| DecodeRow::new(sequence, 1, &sampling)).collect();
    let chunk = PrefillChunk::new(last, &ids[..rows], &sampling, true);
    assert_eq!(runner.mixed(&mut next, &mut [chunk]).unwrap().decoded.len(), 15);
}

#[test]
fn mixed_chunks_fill_a_bucket_within_the_time_limit() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(4, 96, 64)).unwrap();
    let long = Duration::from_secs(1000);
    assert_eq!([0, 1, 3].map(|decoding| runner.max_prefill_tokens(decoding, 10, long)), [64, 63, 61]);
    // At least 8 tokens, however short the limit.
    assert_eq!(runner.max_prefill_tokens(3, 10, Duration::ZERO), 13);
    assert_eq!(runner.max_prefill_tokens(0, 10, Duration::ZERO), 8);
    // After a step of a full bucket was measured, a shorter limit gives fewer tokens.
    let sampling = Sampling::default();
    let mut sequence = runner.start().unwrap();
    let tokens = vec![1; 64];
    let chunk = PrefillChunk::new(&mut sequence, &tokens, &sampling, true);
    let start = std::time::Instant::now();
    runner.mixed(&mut [], &mut [chunk]).unwrap();
    let took = start.elapsed();
    assert_eq!(runner.max_prefill_tokens(1, 64, 10 * took), 63);
    assert!(runner.max_prefill_tokens(1, 64, Duration::from_nanos(1)) < 63);
}

/// Contexts so long that attention has KV splits, for decode rows and for a chunk of few rows.
#[test]
fn kv_splits_of_decode_and_prefill_rows_do_not_interfere() {
    let Some(device) = testkit::cpu_device() else { return };
    let config = long_config(2, 2);
    let model = Arc::new(Model::random(&device, config, Scheme::Int8, |_| ()).unwrap());
    let sampling = Sampling::default();
    let run = |mixed: bool, decoding: usize, chunk: usize| {
        let limits = Limits { page_size: 64, ..limits(9, 4096, 32) };
        let mut runner = Runner::new(model.clone(), limits).unwrap();
        runner.fill_cache().unwrap();
        let mut sequences: Vec<Sequence> =
            (0..decoding).map(|number| runner.start_at(1200 + 7 * number as u32).unwrap()).collect();
        let mut prefilling = runner.start_at(1700).unwrap();
        let mut last = vec![1; decoding];
        let mut all = Vec::new();
        for step in 0..3 {
            let rows = sequences.iter_mut().zip(&last);
            let mut next: Vec<DecodeRow<'_>> =
                rows.map(|(sequence, token)| DecodeRow::new(sequence, *token, &sampling)).collect();
            let ids: Vec<u32> = (0..chunk as u32).map(|number| (number * 37 + step) % 512).collect();
            let chunk = PrefillChunk::new(&mut prefilling, &ids, &sampling, true);
            let (decoded, firsts) = if mixed {
                let step = runner.mixed(&mut next, &mut [chunk]).unwrap();
                (step.decoded, step.first_tokens)
            } else {
                (
                    runner.decode(&mut next, 1).unwrap().remove(0),
                    runner.mixed(&mut [], &mut [chunk]).unwrap().first_tokens,
                )
            };
            last = decoded.iter().map(|sampled| sampled.token).collect();
            all.extend(decoded.into_iter().chain(firsts.into_iter().flatten()));
        }
        all
    };
    for (decoding, chunk) in [(8, 5), (2, 5), (5, 8), (3, 20)] {
        for (at, (mixed, separate)) in
            run(true, decoding, chunk).iter().zip(run(false, decoding, chunk)).enumerate()
        {
            let text = format!("{decoding} rows beside {chunk}, {at}: {mixed:?} and {separate:?}");
            assert!(
                mixed.token == separate.token && (mixed.logprob - separate.logprob).abs() < 1e-3,
                "{text}"
            );
        }
    }
}
