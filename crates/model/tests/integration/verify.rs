//! Verify steps: whatever is drafted, tokens and their log probabilities are those of single decode steps, bit for bit,
//! and the KV cache holds accepted tokens only.

use std::{path::Path, sync::Arc};

use crate::common::{FAMILIES, Fixture, limits, load, load_alone, long_config};
use crate::reference::file;
use checkpoint::Checkpoint;
use model::{
    Activations, DecodeRow, Error, KvScheme, Limits, MAX_VERIFY_ROWS, Model, NoExactVerify, Runner, Sampled,
    Sampling, Sequence, VerifyRows, language::Language,
};
use tensor::Scheme;
use text::EncodeSpecial;

/// Greedy, and sampled with and without filters.
fn samplings() -> [Sampling; 3] {
    let drawn = Sampling { temperature: 1.0, seed: 5, ..Sampling::default() };
    let filtered = Sampling { top_k: 40, top_p: 0.95, seed: 7, ..drawn.clone() };
    [Sampling::default(), drawn, filtered]
}

/// Drafters, from the tokens that follow.
#[derive(Clone, Copy, Debug)]
enum Drafter {
    /// Always right.
    Right,
    /// Never right.
    Wrong,
    /// Any number of drafts, each of which may be wrong.
    Random(u32),
    /// Right but for the last draft.
    AlmostRight,
}

const DRAFTERS: [Drafter; 4] = [Drafter::Right, Drafter::Wrong, Drafter::Random(1), Drafter::AlmostRight];

impl Drafter {
    /// Up to `max` drafts of the tokens `following`, for the step with this number.
    fn draft(self, step: usize, following: &[u32], vocab: u32, max: usize) -> Vec<u32> {
        let hash = |index: usize, seed: u32| {
            let word =
                (step as u32).wrapping_mul(0x9e37_79b9) ^ (index as u32).wrapping_mul(0x85eb_ca6b) ^ seed;
            (word ^ word >> 15).wrapping_mul(0x2c1b_3c6d) >> 12
        };
        let count = match self {
            Drafter::Random(seed) => hash(99, seed) as usize % (max + 1),
            _ => max,
        };
        let right = |index: usize| match self {
            Drafter::Right => true,
            Drafter::Wrong => false,
            Drafter::Random(seed) => hash(index, seed) % 4 != 0,
            Drafter::AlmostRight => index + 1 < count,
        };
        let draft = |(index, token): (usize, &u32)| if right(index) { *token } else { (token + 1) % vocab };
        following.iter().take(count).enumerate().map(draft).collect()
    }
}

fn bits(sampled: &Sampled) -> (u32, u32, Vec<(u32, u32)>) {
    let top = sampled.top.iter().map(|(token, logprob)| (*token, logprob.to_bits()));
    (sampled.token, sampled.logprob.to_bits(), top.collect())
}

/// The completion of a prompt, by single steps. Prompts are prefilled in the shortest chunks, which no busy machine shortens
/// further: chunks of another length may round differently.
fn decode(
    runner: &mut Runner,
    prompt: &[u32],
    sampling: &Sampling,
    count: usize,
) -> (Vec<Sampled>, Sequence) {
    let mut sequence = runner.start_with(prompt).unwrap();
    let rest = prompt[sequence.len() as usize..].to_vec();
    let mut tokens = vec![runner.prompt(&mut sequence, &rest, sampling, |_| true).unwrap()];
    while tokens.len() < count {
        let row = DecodeRow::new(&mut sequence, tokens[tokens.len() - 1].token, sampling);
        tokens.extend(runner.decode(&mut [row], 1).unwrap().remove(0));
    }
    (tokens, sequence)
}

/// The same by verify steps.
fn verify(
    runner: &mut Runner,
    prompt: &[u32],
    sampling: &Sampling,
    expected: &[Sampled],
    drafter: Drafter,
) -> (Vec<Sampled>, Sequence) {
    let expected: Vec<u32> = expected.iter().map(|sampled| sampled.token).collect();
    let vocab = runner.model().config.vocab;
    let mut sequence = runner.start_with(prompt).unwrap();
    let rest = prompt[sequence.len() as usize..].to_vec();
    let mut tokens = vec![runner.prompt(&mut sequence, &rest, sampling, |_| true).unwrap()];
    let mut step = 0;
    while tokens.len() < expected.len() {
        let max = (expected.len() - tokens.len() - 1).min(runner.max_verify_rows() - 1);
        let drafts = drafter.draft(step, &expected[tokens.len()..], vocab, max);
        let token = tokens[tokens.len() - 1].token;
        let rows = VerifyRows { sequence: &mut sequence, token, drafts: &drafts, sampling, masks: &[] };
        let accepted = rows.accepted(expected[tokens.len()..].iter().copied());
        let sampled = runner.verify(&mut [rows]).unwrap().remove(0);
        assert_eq!(sampled.len(), accepted + 1, "{drafter:?}, step {step}");
        tokens.extend(sampled);
        step += 1;
    }
    (tokens, sequence)
}

/// Compares verify steps of every drafter with single steps.
fn compare(
    what: &str,
    model: &Arc<Model>,
    limits: Limits,
    prompt: &[u32],
    samplings: &[Sampling],
    count: usize,
) {
    compare_drafters(&DRAFTERS, what, model, limits, prompt, samplings, count);
}

fn compare_drafters(
    drafters: &[Drafter],
    what: &str,
    model: &Arc<Model>,
    limits: Limits,
    prompt: &[u32],
    samplings: &[Sampling],
    count: usize,
) {
    let runner = || Runner::new(model.clone(), limits).unwrap();
    compare_runners(runner, what, drafters, prompt, samplings, count);
}

/// Compares verify steps of new runners with single steps.
fn compare_runners(
    new_runner: impl Fn() -> Runner,
    what: &str,
    drafters: &[Drafter],
    prompt: &[u32],
    samplings: &[Sampling],
    count: usize,
) {
    for sampling in samplings {
        let mut runner = new_runner();
        let (expected, sequence) = decode(&mut runner, prompt, sampling, count);
        // A sequence keeps pages of its sliding window until the next step, and a verify step is longer.
        let (len, pages) = (sequence.len(), runner.cache().free_pages().0);
        drop(sequence);
        for &drafter in drafters {
            let mut runner = new_runner();
            let (tokens, sequence) = verify(&mut runner, prompt, sampling, &expected, drafter);
            let all_bits = |tokens: &[Sampled]| tokens.iter().map(bits).collect::<Vec<_>>();
            assert_eq!(all_bits(&tokens), all_bits(&expected), "{what}, {drafter:?}, {sampling:?}");
            assert_eq!((sequence.len(), runner.cache().free_pages().0), (len, pages), "{what}, {drafter:?}");
            // The prefix cache knows accepted tokens only: a second completion of them finds nothing else. What is left of the
            // prompt has fewer rows then, whose kernels may round differently.
            drop(sequence);
            if runner.has_exact_verify() {
                continue;
            }
            let (again, _) = verify(&mut runner, prompt, sampling, &expected, drafter);
            assert_eq!(all_bits(&again)[1..], all_bits(&expected)[1..], "{what}, {drafter:?}, cached");
        }
    }
}

#[test]
fn tokens_do_not_depend_on_what_is_drafted() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in FAMILIES {
        let fixture = Fixture::open(name);
        let model = Arc::new(load_alone(&device, &fixture.path).with_row_invariant(true));
        let samplings = if name == FAMILIES[0] { samplings().to_vec() } else { samplings()[2..].to_vec() };
        compare(name, &model, limits(1, 96, 16), &fixture.ids, &samplings, 24);
    }
    device.assert_no_messages();
}

#[test]
fn windows_that_slide_past_drafts_lose_nothing() {
    let Some(device) = testkit::cpu_device() else { return };
    // A window of 32.
    let fixture = Fixture::open("untied_long");
    let model = Arc::new(load_alone(&device, &fixture.path).with_row_invariant(true));
    for kv_scheme in [KvScheme::F16, KvScheme::Int8] {
        let limits = Limits { kv_scheme, ..limits(1, 160, 16) };
        compare("a sliding window", &model, limits, &fixture.ids[..40], &samplings()[..1], 100);
    }
}

/// Contexts so long that attention of decode rows has KV splits.
#[test]
fn rows_of_long_contexts_are_split_as_single_ones() {
    let Some(device) = testkit::cpu_device() else { return };
    let config = long_config(4, 1);
    let model = Model::random(&device, config, Scheme::Int8, |_| ()).unwrap().with_row_invariant(true);
    let model = Arc::new(model);
    // The tokens are always the same; the log probabilities of the others are not.
    let sampling = &Sampling { top: 5, ..samplings()[1].clone() };
    let run = |expected: &[Sampled]| {
        let mut runner = Runner::new(model.clone(), limits(2, 2048, 64)).unwrap();
        let mut start = |length: u32| {
            let prompt: Vec<u32> = (0..length).map(|at| (at * at + 7 * at + length) % 512).collect();
            let mut sequence = runner.start().unwrap();
            runner.prompt(&mut sequence, &prompt, sampling, |_| true).unwrap();
            sequence
        };
        let mut sequence = start(1200);
        // Its row comes before those of the drafts, in steps that attend in another way.
        let mut other = start(1100);
        let mut tokens: Vec<Sampled> = vec![];
        while tokens.len() < 34 {
            let token = tokens.last().map_or(1, |sampled| sampled.token);
            let drafts: Vec<u32> = expected.iter().skip(tokens.len()).map(|one| one.token).collect();
            let others = usize::from(tokens.len() >= 16);
            let drafts = &drafts[..drafts.len().min(runner.max_verify_rows() - 1 - others)];
            let rows = VerifyRows { sequence: &mut sequence, token, drafts, sampling, masks: &[] };
            let other = VerifyRows { sequence: &mut other, token: 2, drafts: &[], sampling, masks: &[] };
            let sampled = runner.verify(&mut [rows, other][..1 + others]).unwrap().remove(0);
            assert_eq!(sampled.len(), drafts.len() + 1, "all drafts are right");
            tokens.extend(sampled);
        }
        tokens
    };
    let single = run(&[]);
    let all_bits = |tokens: &[Sampled]| tokens.iter().map(bits).collect::<Vec<_>>();
    assert_eq!(all_bits(&run(&single)[..34]), all_bits(&single));
    device.assert_no_messages();
}

#[test]
fn row_invariant_logits_are_so_with_the_kernels_of_gpus() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = || load_alone(&device, &fixture.path).with_one_dispatch(true).with_row_invariant(true);
    for (variant, model) in [
        ("as GPUs without matrix units", model().with_few_rows(Activations::Int16)),
        ("packed products", model().with_few_rows(Activations::Int16).with_packed_products()),
        ("matrix units", model().with_emulated_matrix_units()),
    ] {
        let limits = Limits { page_size: 16, ..limits(1, 96, 8) };
        compare(variant, &Arc::new(model), limits, &fixture.ids, &samplings()[1..2], 20);
    }
}

/// The fixtures that [`tokens_of_exact_verify_steps_are_those_of_single_steps`] compares: every scheme of weights, with
/// and without norms in the prologues of products, with keys and values of other layers, sliding windows, and per-layer
/// embeddings. The first ones, unless all combinations are tested.
const EXACT: [(&str, KvScheme); 9] = [
    ("gguf_q8_0", KvScheme::F16),
    ("llama_gguf_q4_1", KvScheme::Int8),
    ("gemma4_ple_gguf_q8_0", KvScheme::F16),
    ("gguf_q4_0", KvScheme::F32),
    ("gemma4_dense", KvScheme::F16),
    ("qwen2_gguf_q8_0", KvScheme::F16),
    ("qwen3_gguf_q8_0", KvScheme::Int8),
    ("ministral3_gguf_q8_0", KvScheme::F16),
    ("llama_gguf_f16", KvScheme::F16),
];

/// A model with the kernels of a GPU for few rows.
fn as_on_gpus(device: &gpu::Device, path: &Path) -> Arc<Model> {
    Arc::new(load_alone(device, path).with_one_dispatch(true).with_few_rows(Activations::Int16))
}

#[test]
fn tokens_of_exact_verify_steps_are_those_of_single_steps() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixtures = if testkit::exhaustive() { &EXACT[..] } else { &EXACT[..3] };
    for &(name, kv_scheme) in fixtures {
        let fixture = Fixture::open(name);
        let model = as_on_gpus(&device, &fixture.path);
        let limits = Limits { page_size: 16, kv_scheme, ..limits(1, 96, 8) };
        let runner = || Runner::new(model.clone(), limits).unwrap().with_exact_verify();
        assert!(runner().has_exact_verify(), "{name}");
        let drafters = if testkit::exhaustive() { &DRAFTERS[..] } else { &DRAFTERS[2..3] };
        compare_runners(runner, name, drafters, &fixture.ids, &samplings()[1..2], 24);
    }
    device.assert_no_messages();
}

#[test]
fn exact_verify_steps_write_the_keys_of_single_steps_past_a_window() {
    let Some(device) = testkit::cpu_device() else { return };
    // A window of 32.
    let fixture = Fixture::open("untied_long");
    let model = as_on_gpus(&device, &fixture.path);
    for kv_scheme in [KvScheme::F16, KvScheme::Int8] {
        let limits = Limits { kv_scheme, ..limits(1, 160, 8) };
        let runner = || Runner::new(model.clone(), limits).unwrap().with_exact_verify();
        let (prompt, greedy) = (&fixture.ids[..40], &samplings()[..1]);
        compare_runners(runner, "a sliding window", &DRAFTERS[3..], prompt, greedy, 100);
    }
}

#[test]
fn exact_verify_steps_take_several_sequences() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = as_on_gpus(&device, &fixture.path);
    let mut runner = Runner::new(model.clone(), limits(2, 96, 8)).unwrap().with_exact_verify();
    assert_eq!(runner.max_verify_sequences(), 1, "batches have other kernels");
    let sampling = &samplings()[1];
    let prompts = [&fixture.ids[..], &fixture.ids[..20]];
    let alone = || Runner::new(model.clone(), limits(1, 96, 8)).unwrap();
    let expected = prompts.map(|prompt| decode(&mut alone(), prompt, sampling, 8).0);
    let mut sequences = prompts.map(|prompt| {
        let mut sequence = runner.start().unwrap();
        runner.prompt(&mut sequence, prompt, sampling, |_| true).unwrap();
        sequence
    });
    let tokens = expected.each_ref().map(|of| of.iter().map(|sampled| sampled.token).collect::<Vec<_>>());
    let drafts = [&tokens[0][1..5], &tokens[1][1..3]];
    let batch = sequences.iter_mut().zip(&tokens).zip(drafts);
    let mut batch: Vec<_> = batch
        .map(|((sequence, tokens), drafts)| VerifyRows {
            sequence,
            token: tokens[0],
            drafts,
            sampling,
            masks: &[],
        })
        .collect();
    for (sampled, expected) in runner.verify(&mut batch).unwrap().iter().zip(&expected) {
        let all_bits = |tokens: &[Sampled]| tokens.iter().map(bits).collect::<Vec<_>>();
        assert_eq!(all_bits(sampled), all_bits(&expected[1..=sampled.len()]));
        assert!(sampled.len() >= 3);
    }
}

#[test]
fn models_with_experts_have_no_exact_verify_steps() {
    let Some(device) = testkit::cpu_device() else { return };
    let model = as_on_gpus(&device, &Fixture::open("qwen3moe_gguf_q8_0").path);
    assert_eq!(model.check_exact_verify(), Err(NoExactVerify::Experts));
    assert!(!Runner::new(model, limits(1, 96, 8)).unwrap().with_exact_verify().has_exact_verify());
    let in_several_dispatches =
        load_alone(&device, &Fixture::open("gguf_q8_0").path).with_one_dispatch(false);
    assert_eq!(in_several_dispatches.check_exact_verify(), Err(NoExactVerify::Device));
}

#[test]
fn reproducible_logits_do_not_depend_on_drafts_either() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    for model in
        [load_alone(&device, &fixture.path), load_alone(&device, &fixture.path).with_emulated_matrix_units()]
    {
        let model = Arc::new(model.with_reproducible(true));
        compare("reproducible", &model, limits(1, 96, 8), &fixture.ids, &samplings()[..1], 20);
    }
}

#[test]
fn the_real_models_generate_the_same_tokens() {
    let Some(device) = testkit::cpu_device_plain() else { return };
    // Two minutes with all drafters and longer completions.
    let (drafters, count) = if testkit::exhaustive() { (&DRAFTERS[..], 24) } else { (&DRAFTERS[2..3], 12) };
    for (variable, name) in [("INDRIK_TEST_GGUF", "Gemma 3 270M"), ("INDRIK_TEST_SMOLLM2", "SmolLM2 135M")] {
        let Some(path) = file(variable, name) else { continue };
        let model = Arc::new(load_alone(&device, &path).with_row_invariant(true));
        let ids = prompt(&path);
        let limits = Limits { page_size: 64, ..limits(1, 256, 64) };
        let [greedy, _, filtered] = samplings();
        compare_drafters(drafters, name, &model, limits, &ids, &[greedy, filtered], count);
    }
}

fn prompt(path: &Path) -> Vec<u32> {
    let language = Language::from_checkpoint(&Checkpoint::open(path).unwrap()).unwrap();
    language
        .tokenizer
        .encode("The three primary colours are red, green and blue. The three", EncodeSpecial::AsText)
}

#[test]
fn sequences_with_and_without_drafts_share_a_step() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = Arc::new(load_alone(&device, &fixture.path).with_row_invariant(true));
    let mut runner = Runner::new(model, limits(4, 96, 8)).unwrap();
    let [greedy, drawn, filtered] = samplings();
    let penalised = Sampling { repetition: 1.3, frequency: 1.0, ..drawn.clone() };
    let samplings = [greedy, penalised, Sampling { top: 3, ..filtered }, drawn];
    let prompts: Vec<&[u32]> = (0..4).map(|index| &fixture.ids[index..12 + 5 * index]).collect();
    let expected: Vec<Vec<Sampled>> = prompts
        .iter()
        .zip(&samplings)
        .map(|(prompt, sampling)| decode(&mut runner, prompt, sampling, 20).0)
        .collect();

    let mut sequences: Vec<Sequence> = vec![];
    let mut tokens: Vec<Vec<Sampled>> = vec![];
    for (prompt, sampling) in prompts.iter().zip(&samplings) {
        let mut sequence = runner.start().unwrap();
        tokens.push(vec![runner.prompt(&mut sequence, prompt, sampling, |_| true).unwrap()]);
        sequences.push(sequence);
    }
    for step in 0..6 {
        let drafts: Vec<Vec<u32>> = (0..4)
            .map(|index| {
                let following: Vec<u32> =
                    expected[index][tokens[index].len()..].iter().map(|sampled| sampled.token).collect();
                // None with penalties, and none for another of them in turn.
                let max = if index == 1 || index == step % 4 { 0 } else { 2 };
                Drafter::Random(3).draft(10 * step + index, &following, fixture.vocab as u32, max)
            })
            .collect();
        let mut batch = vec![];
        for (index, sequence) in sequences.iter_mut().enumerate() {
            let token = tokens[index][tokens[index].len() - 1].token;
            let sampling = &samplings[index];
            batch.push(VerifyRows { sequence, token, drafts: &drafts[index], sampling, masks: &[] });
        }
        for (tokens, sampled) in tokens.iter_mut().zip(runner.verify(&mut batch).unwrap()) {
            tokens.extend(sampled);
        }
    }
    for (tokens, expected) in tokens.iter().zip(&expected) {
        assert!(tokens.len() >= 7);
        let all_bits = |tokens: &[Sampled]| tokens.iter().map(bits).collect::<Vec<_>>();
        assert_eq!(all_bits(tokens), all_bits(&expected[..tokens.len()]));
    }
    device.assert_no_messages();
}

#[test]
fn every_row_has_its_own_mask() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model, limits(1, 96, 8)).unwrap();
    let sampling = Sampling::default();
    let (expected, _) = decode(&mut runner, &fixture.ids, &sampling, 4);
    let expected: Vec<u32> = expected.iter().map(|sampled| sampled.token).collect();
    let only = |token: u32| {
        let mut mask = vec![0; fixture.vocab.div_ceil(32)];
        mask[token as usize / 32] = 1 << (token % 32);
        mask
    };
    // The second row may sample another token only, so the second draft is rejected.
    let other = (expected[2] + 1) % fixture.vocab as u32;
    let masks = [only(expected[1]), only(other)];
    let masks: Vec<&[u32]> = masks.iter().map(|mask| &mask[..]).collect();
    let mut sequence = runner.start().unwrap();
    let first = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
    let drafts = &expected[1..];
    let rows = VerifyRows {
        sequence: &mut sequence,
        token: first.token,
        drafts,
        sampling: &sampling,
        masks: &masks,
    };
    let sampled = runner.verify(&mut [rows]).unwrap().remove(0);
    let tokens: Vec<u32> = sampled.iter().map(|sampled| sampled.token).collect();
    assert_eq!(tokens, [expected[1], other]);
    assert_eq!(sequence.len() as usize, fixture.ids.len() + 2);
}

#[test]
fn a_batch_that_cannot_be_verified_is_an_error_and_changes_nothing() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let mut runner = Runner::new(load(&device, &fixture.path), limits(1, 64, 16)).unwrap();
    let (plain, penalised) = (Sampling::default(), Sampling { presence: 1.0, ..Sampling::default() });
    let mut sequence = runner.start().unwrap();
    let first = runner.prompt(&mut sequence, &fixture.ids[..20], &plain, |_| true).unwrap();
    let mut verify = |drafts: &[u32], sampling: &Sampling, masks: &[&[u32]]| {
        let rows = VerifyRows { sequence: &mut sequence, token: first.token, drafts, sampling, masks };
        runner.verify(&mut [rows]).map(|outputs| outputs.concat().len())
    };
    assert!(matches!(verify(&[1; MAX_VERIFY_ROWS], &plain, &[]), Err(Error::Limits(_))), "too many rows");
    assert!(matches!(verify(&[1], &penalised, &[]), Err(Error::Limits(_))));
    assert!(matches!(verify(&[fixture.vocab as u32], &plain, &[]), Err(Error::UnknownToken { .. })));
    assert!(matches!(verify(&[1], &plain, &[&[1]]), Err(Error::Limits(_))), "a mask of one word");
    assert!(verify(&[], &plain, &[]).is_ok());
    assert!(matches!(runner.verify(&mut []), Err(Error::Limits(_))));
    assert_eq!(sequence.len(), 21);
}
