use std::collections::BTreeMap;

use gpu::{Device, Tier, known};

use super::{
    Bias, CountMode, CountTokens, Features, IN_PROMPT, MAX_STOP_TOKENS, MAX_TOP, NO_TOKEN, Operands, Params,
    Run, Sample, Sampled,
    cases::{FULL, Logits, PLAIN, Setup},
    policy, reference,
};
use crate::{
    case::{Comparison, TIMEOUT, arena},
    soft_tokens::SOFT_TOKEN,
};

const DRAW: Params = Params {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    repetition: 1.0,
    presence: 0.0,
    frequency: 0.0,
    seed: 99,
    bias_count: 0,
    masked: false,
    top: 0,
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

fn run(device: &Device, setup: &Setup) -> Vec<Sampled> {
    let mut comparison = Comparison::default();
    let outcome = setup.run(device, policy::plan(device.caps()), &mut comparison).unwrap();
    assert!(comparison.passed(), "{:?}", comparison.first_mismatch);
    outcome.sampled
}

fn bits(sampled: &Sampled) -> (u32, u32) {
    (sampled.token, sampled.logprob.to_bits())
}

/// A batch of some of the rows of another.
fn select_rows(setup: &Setup, rows: &[usize]) -> Setup {
    Setup {
        logits: rows.iter().map(|row| setup.logits[*row].clone()).collect(),
        params: rows.iter().map(|row| setup.params[*row]).collect(),
        biases: rows.iter().map(|row| setup.biases[*row].clone()).collect(),
        masks: rows.iter().map(|row| setup.masks[*row].clone()).collect(),
        rows: rows.iter().map(|row| setup.rows[*row]).collect(),
        active: rows.len(),
        ..setup.clone()
    }
}

#[test]
fn rows_are_bit_identical_in_any_batch_and_program() {
    let Some(device) = testkit::cpu_device() else { return };
    let all = Params { top_k: 50, top_p: 0.9, repetition: 1.2, bias_count: 9, masked: true, ..DRAW };
    let params = [Params::default(), DRAW, Params { top_k: 30, ..DRAW }, Params { top_p: 0.8, ..DRAW }, all];
    let setup = Setup::random(FULL, 5003, &[Logits::Spread(4.0)], &params);
    let together = run(&device, &setup);
    for (row, want) in together.iter().enumerate() {
        let other = (row + 2) % params.len();
        assert_eq!(bits(&run(&device, &select_rows(&setup, &[row]))[0]), bits(want), "row {row} alone");
        assert_eq!(
            bits(&run(&device, &select_rows(&setup, &[other, other, row]))[2]),
            bits(want),
            "row {row} as the third"
        );
    }
    let plain = Setup::random(PLAIN, 5003, &[Logits::Spread(4.0)], &params[..2]);
    for features in [FULL, Features { filters: true, ..PLAIN }, Features { counts: true, ..PLAIN }] {
        let same = Setup { features, ..plain.clone() };
        let both =
            [run(&device, &plain), run(&device, &same)].map(|list| list.iter().map(bits).collect::<Vec<_>>());
        assert_eq!(both[0], both[1], "{features:?}");
    }
}

#[test]
fn larger_workgroups_sample_the_same_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    // As in a GPU's plan: several threads per group of digits, and more threads than candidates.
    let params =
        [Params::default(), DRAW, Params { top_k: 30, top_p: 0.9, ..DRAW }, Params { top_p: 0.8, ..DRAW }];
    let setup = Setup::random(FULL, 5003, &[Logits::Ties], &params);
    for tier in [Tier::T0, Tier::T1] {
        let plan = policy::at_tier(&known::h200(), tier);
        let mut comparison = Comparison::default();
        let outcome = setup.run(&device, plan, &mut comparison).unwrap();
        setup.compare(&outcome, &mut comparison);
        assert!(comparison.passed(), "{tier}: {:?}", comparison.first_mismatch);
    }
}

#[test]
fn rows_without_a_token_do_not_affect_others() {
    let Some(device) = testkit::cpu_device() else { return };
    for (params, features) in [(Params::default(), PLAIN), (DRAW, PLAIN), (Params { top_k: 5, ..DRAW }, FULL)]
    {
        let mut setup = Setup::random(features, 3000, &[Logits::Spread(3.0)], &[params; 6]);
        setup.logits[1][2999] = f32::NAN;
        setup.logits[2][17] = -f32::NAN;
        setup.logits[3].fill(f32::NEG_INFINITY);
        setup.logits[4][2500] = f32::INFINITY;
        let sampled = run(&device, &setup);
        let none: Vec<bool> = sampled.iter().map(|sampled| sampled.token == NO_TOKEN).collect();
        assert_eq!(none, [false, true, true, true, true, false], "{params:?}");
        assert!(sampled.iter().all(|sampled| sampled.logprob.is_nan() == (sampled.token == NO_TOKEN)));
    }
    // Nothing is left once all tokens are banned or masked.
    for params in [Params { bias_count: 3, ..DRAW }, Params { masked: true, top_p: 0.5, ..DRAW }] {
        let mut setup = Setup::random(FULL, 3, &[Logits::Spread(3.0)], &[params, DRAW]);
        setup.biases[0] = (0..3).map(|token| Bias { token, bias: -100.0 }).collect();
        setup.masks[0].fill(0);
        let sampled = run(&device, &setup);
        assert_eq!((sampled[0].token, sampled[1].token < 3), (NO_TOKEN, true), "{params:?}");
    }
}

#[test]
fn programs_without_filters_give_no_token_to_rows_that_need_them() {
    let Some(device) = testkit::cpu_device() else { return };
    let params = [Params { top_k: 5, ..DRAW }, Params { top_k: 1, ..DRAW }];
    let sampled = run(&device, &Setup::random(PLAIN, 100, &[Logits::Spread(3.0)], &params));
    assert!(sampled[0].token == NO_TOKEN && sampled[1].token < 100, "{sampled:?}");
    assert_eq!(params.map(|params| params.filters(100)), [true, false]);
}

/// How often each token is sampled when one program decodes from the same logits, with its positions
/// advancing.
fn draws(
    device: &Device,
    features: Features,
    logits: &[f32],
    params: Params,
    replays: usize,
) -> BTreeMap<u32, usize> {
    const ROWS: usize = 512;
    let mut arena = arena(device);
    let kernel = Sample::new(device, features, logits.len()).unwrap();
    let identity: Vec<u32> = (0..ROWS as u32).collect();
    let positions =
        arena.buffer_from("positions", &identity.iter().map(|row| row * 10_000).collect::<Vec<_>>()).unwrap();
    let sampled = arena.buffer("sampled", (ROWS * 16) as u64).unwrap();
    let rows = arena.buffer_from("rows", &identity).unwrap();
    let mut run = arena.buffer_from("run", &Run::START).unwrap();
    let operands = Operands {
        active: arena.buffer_from("active", &[ROWS as u32]).unwrap().view(),
        logits: arena.buffer_from("logits", &logits.repeat(ROWS)).unwrap().view(),
        params: arena.buffer_from("params", &vec![params.to_words(); ROWS]).unwrap().view(),
        rows: rows.view(),
        positions: positions.view(),
        slots: rows.view(),
        counts: None,
        biases: None,
        mask: None,
        top: None,
        scratch: arena.buffer("scratch", kernel.scratch_bytes(ROWS)).unwrap().view(),
        sampled: sampled.view(),
        next_tokens: arena.buffer("tokens", (ROWS * 4) as u64).unwrap().view(),
        next_positions: positions.view(),
        stop_tokens: arena.buffer_from("stop_tokens", &[NO_TOKEN; ROWS * MAX_STOP_TOKENS]).unwrap().view(),
        run: run.view(),
    };
    let mut recorder = device.recorder().unwrap();
    kernel.record(&mut recorder, "sample", ROWS, &operands).unwrap();
    let program = recorder.seal().unwrap();
    let mut counts_by_token = BTreeMap::new();
    for replay in 1..=replays as u32 {
        run.write(0, bytemuck::cast_slice(&Run::START)).unwrap();
        program.run(TIMEOUT).unwrap();
        for words in sampled.read_vec::<[u32; 4]>().unwrap() {
            *counts_by_token.entry(Sampled::from_words(words).token).or_default() += 1;
        }
        let advanced: Vec<u32> = positions.read_vec().unwrap();
        assert!(advanced.iter().zip(&identity).all(|(now, row)| *now == row * 10_000 + replay));
    }
    counts_by_token
}

#[test]
fn token_frequencies_match_their_probabilities() {
    let Some(device) = testkit::cpu_device() else { return };
    let logits: Vec<f32> = (0..13).map(|token| ((token * 5 % 13) as f32) * 0.4 - 2.0).collect();
    let filters = Features { filters: true, ..PLAIN };
    let drawn = [
        (PLAIN, DRAW),
        (PLAIN, Params { temperature: 0.5, ..DRAW }),
        (filters, Params { top_k: 8, ..DRAW }),
        (filters, Params { top_p: 0.8, temperature: 1.5, ..DRAW }),
        (filters, Params { min_p: 0.2, seed: 1 << 40, ..DRAW }),
        (filters, Params { top_k: 9, top_p: 0.9, min_p: 0.1, temperature: 1.2, ..DRAW }),
    ];
    for (features, params) in drawn {
        let counts_by_token = draws(&device, features, &logits, params, 40);
        let total: usize = counts_by_token.values().sum();
        let row =
            reference::Row { logits: &logits, params, counts: &[], biases: &[], mask: &[], position: 0 };
        let kept: Vec<u32> = reference::kept(&row).iter().map(|scored| scored.token).collect();
        assert!(
            counts_by_token.keys().all(|token| kept.contains(token)),
            "{params:?}: {counts_by_token:?}, kept {kept:?}"
        );
        let weight = |token: u32| (f64::from(logits[token as usize]) / f64::from(params.temperature)).exp();
        let sum: f64 = kept.iter().map(|token| weight(*token)).sum();
        let chi_square: f64 = kept
            .iter()
            .map(|token| {
                let expected = weight(*token) / sum * total as f64;
                (counts_by_token.get(token).copied().unwrap_or(0) as f64 - expected).powi(2) / expected
            })
            .sum();
        // The 0.999 quantile for 12 degrees of freedom is 32.9; fewer have lower ones.
        assert!(
            total == 20_480 && chi_square < 32.9,
            "{params:?}: χ² = {chi_square} over {} tokens",
            kept.len()
        );
    }
}

#[test]
fn top_k_keeps_the_lowest_of_ties_and_top_p_all() {
    let Some(device) = testkit::cpu_device() else { return };
    // Tokens 3, 103, 203, … tie for the best.
    let logits: Vec<f32> = (0..3000).map(|token| if token % 100 == 3 { 4.0 } else { 1.0 }).collect();
    let filters = Features { filters: true, ..PLAIN };
    let tokens =
        |params: Params| draws(&device, filters, &logits, params, 1).into_keys().collect::<Vec<u32>>();
    let best: Vec<u32> = (0..30).map(|i| i * 100 + 3).collect();
    assert_eq!(tokens(Params { top_k: 4, ..DRAW }), best[..4]);
    assert_eq!(tokens(Params { top_p: 0.001, ..DRAW }), best);
    // All of the best, and the lowest of the next: their share of the samples is large enough for each to
    // occur.
    let some = tokens(Params { top_k: 36, temperature: 5.0, ..DRAW });
    let mut want = [best.clone(), vec![0, 1, 2, 4, 5, 6]].concat();
    want.sort_unstable();
    assert_eq!(some, want);
}

#[test]
fn runs_store_every_step_and_end_with_the_first_stopped_row() {
    let Some(device) = testkit::cpu_device() else { return };
    const ROWS: usize = 3;
    const STEPS: usize = 6;
    let mut arena = arena(&device);
    let logits: Vec<f32> = (0..100).map(|token| (token % 17) as f32 * 0.2).collect();
    let features = Features { counts: true, filters: true, top: true, ..PLAIN };
    let kernel = Sample::new(&device, features, logits.len()).unwrap();
    // One row finishes in the second kernel of a step, the others in the last; the bucket has one inactive row.
    let params =
        [Params::default(), Params { top_k: 20, top: 2, ..DRAW }, Params { top_k: 30, seed: 5, ..DRAW }];
    let params: Vec<u32> = params.iter().chain([&DRAW]).flat_map(Params::to_words).collect();
    let mut positions = arena.buffer_from("positions", &[10_u32, 20, 30, 40]).unwrap();
    let mut sampled = arena.buffer("sampled", (ROWS * (STEPS - 1) * 16) as u64).unwrap();
    let mut top = arena.buffer("top", (ROWS * (STEPS - 1) * MAX_TOP * 8) as u64).unwrap();
    let mut counts = arena.buffer("counts", (ROWS * logits.len() * 4) as u64).unwrap();
    let mut stop_tokens = arena.buffer("stop_tokens", (4 * MAX_STOP_TOKENS * 4) as u64).unwrap();
    let mut run = arena.buffer("run", 8).unwrap();
    let operands = Operands {
        active: arena.buffer_from("active", &[ROWS as u32]).unwrap().view(),
        logits: arena.buffer_from("logits", &logits.repeat(ROWS + 1)).unwrap().view(),
        params: arena.buffer_from("params", &params).unwrap().view(),
        rows: arena.buffer_from("rows", &[0_u32, 1, 2, 3]).unwrap().view(),
        positions: positions.view(),
        slots: arena.buffer_from("slots", &[2_u32, 0, 1, 1]).unwrap().view(),
        counts: Some(counts.view()),
        biases: None,
        mask: None,
        top: Some(top.view()),
        scratch: arena.buffer("scratch", kernel.scratch_bytes(ROWS + 1)).unwrap().view(),
        sampled: sampled.view(),
        next_tokens: arena.buffer("tokens", (ROWS as u64 + 1) * 4).unwrap().view(),
        next_positions: positions.view(),
        stop_tokens: stop_tokens.view(),
        run: run.view(),
    };
    let mut recorder = device.recorder().unwrap();
    recorder
        .conditional(&run.slice(Run::RUNNING).unwrap(), |recorder| {
            kernel.record(recorder, "sample", ROWS + 1, &operands)
        })
        .unwrap();
    let program = recorder.seal().unwrap();
    const UNTOUCHED: u32 = 0xabcd;
    let mut run_steps = |stop_token: u32, steps: usize| {
        let words = |words: &[u32]| -> Vec<u8> { bytemuck::cast_slice(words).to_vec() };
        positions.write(0, &words(&[10, 20, 30, 40])).unwrap();
        sampled.write(0, &words(&[UNTOUCHED; ROWS * (STEPS - 1) * 4])).unwrap();
        top.write(0, &words(&[UNTOUCHED; ROWS * (STEPS - 1) * MAX_TOP * 2])).unwrap();
        counts.write(0, &words(&vec![0; ROWS * logits.len()])).unwrap();
        stop_tokens.write(0, &words(&[NO_TOKEN; 4 * MAX_STOP_TOKENS])).unwrap();
        // The last row's stop token, in the last place.
        stop_tokens.write((3 * MAX_STOP_TOKENS as u64 - 1) * 4, &words(&[stop_token])).unwrap();
        run.write(0, &words(&Run::START)).unwrap();
        let ticket = device.submit(&vec![&program; steps]).unwrap();
        device.wait(ticket, TIMEOUT).unwrap();
        let tokens: Vec<u32> = sampled.read_vec::<[u32; 4]>().unwrap().iter().map(|words| words[0]).collect();
        let counted: u32 = counts.read_vec::<u32>().unwrap().iter().sum();
        // The second row's two most probable tokens, in as many entries as there were steps, and none of the
        // others.
        let reported: Vec<u32> = top.read_vec::<[u32; 2]>().unwrap().iter().map(|words| words[0]).collect();
        for (entry, reported) in reported.chunks(MAX_TOP).enumerate() {
            let (first, rest) = reported.split_at(2);
            let expected = entry % ROWS == 1 && tokens[entry] != UNTOUCHED;
            assert_eq!(first, if expected { [16, 33] } else { [UNTOUCHED; 2] }, "entry {entry}");
            assert!(rest.iter().all(|token| *token == UNTOUCHED));
        }
        (tokens, counted, positions.read_vec::<u32>().unwrap(), run.read_vec::<u32>().unwrap())
    };
    // One step more than there is room for: it runs, but is not stored.
    let (tokens, counted, advanced, state) = run_steps(NO_TOKEN, STEPS);
    assert!(!tokens.contains(&UNTOUCHED) && counted == 18, "{tokens:?}");
    assert_eq!((advanced, state), (vec![16, 26, 36, 40], vec![18, 1]));
    // The token that the last row samples in its third step, and not before.
    let stop_token = tokens[2 * ROWS + 2];
    assert!(
        ![tokens[2], tokens[5]].contains(&stop_token),
        "the seed must give another token in the third step"
    );
    let (stopped, counted, advanced, state) = run_steps(stop_token, STEPS);
    assert_eq!(stopped[..3 * ROWS], tokens[..3 * ROWS]);
    assert!(stopped[3 * ROWS..].iter().all(|token| *token == UNTOUCHED), "{stopped:?}");
    assert_eq!((counted, advanced, state), (9, vec![13, 23, 33, 40], vec![1 << 16 | 9, 0]));
}

#[test]
fn prompt_tokens_are_marked_in_counts() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = arena(&device);
    let vocab = 50;
    let mut before = vec![0_u32; 3 * vocab];
    before[2 * vocab + 7] = 2;
    let mut counts = arena.buffer_from("counts", &before).unwrap();
    // One past the vocabulary, and soft tokens of an image: none of them is counted.
    let soft = [SOFT_TOKEN, SOFT_TOKEN | 9, u32::MAX];
    let tokens = arena.buffer_from("tokens", &[7, 7, 49, 50, soft[0], soft[1], soft[2], 5]).unwrap();
    let slots = arena.buffer_from("slots", &[0_u32, 2, 1, 1, 0, 1, 2, 0]).unwrap();
    let active = arena.buffer_from("active", &[7_u32]).unwrap();
    let kernel = CountTokens::new(&device, CountMode::Prompt, vocab).unwrap();
    let mut recorder = device.recorder().unwrap();
    let views = [&active, &tokens, &slots, &counts].map(|buffer| buffer.view());
    kernel.record(&mut recorder, "count", 8, views.each_ref()).unwrap();
    kernel.record(&mut recorder, "more rows than tokens", 9, views.each_ref()).unwrap_err();
    recorder.seal().unwrap().run(TIMEOUT).unwrap();
    // Tokens that were generated before need no mark.
    let mut want = before;
    for (slot, token) in [(0, 7), (1, 49)] {
        want[slot * vocab + token] = IN_PROMPT;
    }
    assert_eq!(counts.read_vec::<u32>().unwrap(), want);

    // Generated tokens are reverted; a prompt's mark stays.
    let mut recorder = device.recorder().unwrap();
    let kernel = CountTokens::new(&device, CountMode::Revert, vocab).unwrap();
    let [tokens, slots] =
        [[7_u32, 7, 9, 9], [2, 2, 1, 1]].map(|words| arena.buffer_from("words", &words).unwrap());
    counts.write((vocab as u64 + 9) * 4, bytemuck::bytes_of(&(IN_PROMPT | 2))).unwrap();
    kernel
        .record(
            &mut recorder,
            "revert",
            4,
            [&active, &tokens, &slots, &counts].map(|buffer| buffer.view()).each_ref(),
        )
        .unwrap();
    recorder.seal().unwrap().run(TIMEOUT).unwrap();
    want[2 * vocab + 7] = 0;
    want[vocab + 9] = IN_PROMPT;
    assert_eq!(counts.read_vec::<u32>().unwrap(), want);
}

#[test]
fn plans_fit_the_device() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
            let plan = policy::at_tier(&caps, tier);
            for threads in [plan.block_threads, plan.join_threads, plan.select_threads] {
                assert!(threads.is_power_of_two() && threads <= caps.max_threads, "{plan:?}");
                assert!(tier == Tier::T0 || threads.is_multiple_of(caps.max_subgroup_size), "{plan:?}");
            }
            // The biases of a block, or the ranked blocks, and the partial states of the threads.
            let partial_bytes = |threads: u32| threads * 24 / if tier == Tier::T0 { 1 } else { 4 };
            assert!(
                policy::BLOCK as u32 * 4 + partial_bytes(plan.block_threads) <= caps.max_shared_bytes,
                "{plan:?}"
            );
            assert!(257 * 4 + partial_bytes(plan.join_threads) <= caps.max_shared_bytes, "{plan:?}");
        }
    }
    assert_eq!(policy::plan(&known::bare_vulkan_13()).tier, Tier::T0);
    let scratch = policy::Scratch::new(262_144, 4, Features { filters: true, ..PLAIN });
    assert_eq!(scratch.bytes() - scratch.candidates[0], 8 << 20);
    assert!(policy::Scratch::new(262_144, 4, PLAIN).bytes() < 16 << 10);
}

#[test]
fn invalid_parameters_are_rejected() {
    Params::default().check().unwrap();
    for wrong in [
        Params { temperature: -1.0, ..DRAW },
        Params { temperature: f32::NAN, ..DRAW },
        Params { top_p: -0.1, ..DRAW },
        Params { top_p: f32::NAN, ..DRAW },
        Params { min_p: 1.5, ..DRAW },
        Params { repetition: 0.0, ..DRAW },
        Params { frequency: f32::INFINITY, ..DRAW },
        Params { bias_count: 513, ..DRAW },
    ] {
        assert!(wrong.check().is_err(), "{wrong:?}");
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = arena(&device);
    let words = arena.buffer("words", 1 << 16).unwrap();
    let kernel = Sample::new(&device, Features { biases: true, ..PLAIN }, 100).unwrap();
    let right = || Operands {
        active: words.view(),
        logits: words.view(),
        params: words.view(),
        rows: words.view(),
        positions: words.view(),
        slots: words.view(),
        counts: None,
        biases: Some(words.view()),
        mask: None,
        top: None,
        scratch: words.view(),
        sampled: words.view(),
        next_tokens: words.view(),
        next_positions: words.view(),
        stop_tokens: words.view(),
        run: words.view(),
    };
    let record = |operands: Operands| kernel.record(&mut device.recorder().unwrap(), "sample", 2, &operands);
    record(right()).unwrap();
    let short = || words.slice(0..4).unwrap();
    record(Operands { counts: Some(words.view()), ..right() }).unwrap_err();
    record(Operands { biases: None, ..right() }).unwrap_err();
    record(Operands { biases: Some(short()), ..right() }).unwrap_err();
    record(Operands { scratch: short(), ..right() }).unwrap_err();
    record(Operands { sampled: short(), ..right() }).unwrap_err();
    record(Operands { stop_tokens: short(), ..right() }).unwrap_err();
    record(Operands { run: short(), ..right() }).unwrap_err();
    let error = record(Operands { logits: short(), ..right() }).unwrap_err().to_string();
    assert!(error.contains("logits"), "{error}");
    record(Operands { logits: words.slice(4..1 << 15).unwrap(), ..right() }).unwrap_err();
    assert!(Sample::new(&device, PLAIN, 0).is_err());
}
