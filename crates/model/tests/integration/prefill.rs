//! Several prefill chunks in one step give the same tokens as one after the other.

use std::sync::Arc;

use crate::common::{Fixture, limits, load_alone};
use model::{
    Activations, DecodeRow, Error, KvScheme, Limits, MAX_CHUNKS_PER_STEP, Model, PrefillChunk, Runner,
    Sampled, Sampling,
};

/// Prefill steps, as (prompt, tokens) per chunk: complete and partial prompts, one row each, few rows
/// together, and as many as fit.
const STEPS: [&[(usize, usize)]; 5] =
    [&[(0, 7), (1, 1), (2, 6)], &[(2, 10), (3, 5)], &[(4, 2), (5, 3)], &[(6, 1), (7, 1)], &[(5, 12)]];
const PROMPTS: usize = 8;

/// The tokens of a sequence that decodes throughout, and of all prompts after their prefill. Prompts start
/// with up to `before` tokens in the cache.
fn run(
    model: &Arc<Model>,
    limits: Limits,
    ids: &[u32],
    samplings: &[Sampling],
    (before, together): (usize, bool),
) -> Vec<Vec<Sampled>> {
    let mut runner = Runner::new(model.clone(), limits).unwrap();
    let plain = Sampling::default();
    let mut decoding = runner.start().unwrap();
    let mut decoded = vec![runner.prompt(&mut decoding, &ids[2..21], &plain, |_| true).unwrap()];
    let mut prompts: Vec<_> = (0..PROMPTS).map(|_| runner.start().unwrap()).collect();
    for (index, sequence) in prompts.iter_mut().enumerate() {
        // Different numbers; none for the first.
        let held = before.saturating_sub(3 * index) * usize::from(index > 0);
        for tokens in ids[index..index + held].chunks(limits.prefill_chunk as usize) {
            let chunk = PrefillChunk::new(&mut *sequence, tokens, &samplings[index], false);
            runner.mixed(&mut [], &mut [chunk]).unwrap();
        }
    }
    let held: Vec<usize> = prompts.iter().map(|sequence| sequence.len() as usize).collect();
    let prompt_len = |index: usize| -> usize {
        let chunks = STEPS.concat().into_iter().filter(|(prompt, _)| *prompt == index);
        held[index] + chunks.map(|(_, count)| count).sum::<usize>()
    };
    let mut first_tokens: Vec<Option<Sampled>> = vec![None; PROMPTS];
    for step in STEPS {
        let mut chunks = Vec::new();
        for (index, sequence) in prompts.iter_mut().enumerate() {
            let Some((_, count)) = step.iter().find(|(prompt, _)| *prompt == index) else { continue };
            let from = index + sequence.len() as usize;
            let last = sequence.len() as usize + count == prompt_len(index);
            chunks.push(PrefillChunk::new(sequence, &ids[from..from + count], &samplings[index], last));
        }
        let last: Vec<bool> = chunks.iter().map(|chunk| chunk.last).collect();
        let next = DecodeRow::new(&mut decoding, decoded[decoded.len() - 1].token, &plain);
        let found = if together {
            let mut mixed = runner.mixed(&mut [next], &mut chunks).unwrap();
            decoded.append(&mut mixed.decoded);
            mixed.first_tokens
        } else {
            decoded.append(&mut runner.decode(&mut [next], 1).unwrap().remove(0));
            chunks
                .into_iter()
                .flat_map(|chunk| runner.mixed(&mut [], &mut [chunk]).unwrap().first_tokens)
                .collect()
        };
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), last);
        for ((index, _), first) in step.iter().zip(found) {
            first_tokens[*index] = first.or(first_tokens[*index].take());
        }
    }
    let mut tokens: Vec<Vec<Sampled>> = first_tokens.into_iter().map(|first| vec![first.unwrap()]).collect();
    for _ in 0..4 {
        let rows = prompts.iter_mut().zip(samplings).zip(&tokens);
        let mut next: Vec<_> = rows
            .map(|((sequence, sampling), tokens)| {
                DecodeRow::new(sequence, tokens[tokens.len() - 1].token, sampling)
            })
            .collect();
        let step = runner.decode(&mut next, 1).unwrap().remove(0);
        tokens.iter_mut().zip(step).for_each(|(tokens, sampled)| tokens.push(sampled));
    }
    tokens.push(decoded);
    tokens
}

/// Compares chunks in one step with chunks in steps of their own; `allowed` is the tolerance of log
/// probabilities.
fn compare(
    what: &str,
    model: &Arc<Model>,
    limits: Limits,
    ids: &[u32],
    samplings: &[Sampling],
    (before, allowed): (usize, f32),
) {
    let [together, separate] =
        [true, false].map(|together| run(model, limits, ids, samplings, (before, together)));
    for (index, (together, separate)) in together.iter().zip(&separate).enumerate() {
        for (at, (together, separate)) in together.iter().zip(separate).enumerate() {
            let text = format!("{what}, sequence {index}, token {at}: {together:?} and {separate:?}");
            assert!(together.token == separate.token, "{text}");
            assert!((together.logprob - separate.logprob).abs() <= allowed, "{text}");
        }
    }
}

#[test]
fn prompts_prefilled_in_one_step_give_the_tokens_of_separate_steps() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = || load_alone(&device, &fixture.path);
    let samplings = vec![Sampling::default(); PROMPTS];
    let variants = [
        ("several dispatches", model()),
        ("as GPUs without matrix units", model().with_one_dispatch(true).with_few_rows(Activations::Int16)),
        ("matrix units", model().with_one_dispatch(true).with_emulated_matrix_units()),
    ];
    for (variant, model) in variants {
        let model = Arc::new(model);
        for (page, kv) in [(4, KvScheme::F16), (16, KvScheme::Int8)] {
            let limits = Limits { kv_scheme: kv, page_size: page, ..limits(PROMPTS as u32 + 1, 64, 16) };
            compare(
                &format!("{variant}, {kv}, pages of {page}"),
                &model,
                limits,
                &fixture.ids,
                &samplings,
                (0, 2e-2),
            );
        }
    }
    device.assert_no_messages();
}

#[test]
fn prompts_prefilled_in_one_step_beyond_the_sliding_window_give_the_same_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    // A window of 32.
    let fixture = Fixture::open("untied_long");
    let samplings = vec![Sampling::default(); PROMPTS];
    for (variant, model) in [
        ("without matrix units", load_alone(&device, &fixture.path)),
        (
            "matrix units",
            load_alone(&device, &fixture.path).with_one_dispatch(true).with_emulated_matrix_units(),
        ),
    ] {
        let limits = Limits { page_size: 16, ..limits(PROMPTS as u32 + 1, 128, 16) };
        compare(variant, &Arc::new(model), limits, &fixture.ids, &samplings, (70, 2e-2));
    }
}

/// The sampler leaves the rows of the next decode step on the GPU; prefill chunks of one row each must not
/// use them.
#[test]
fn chunks_of_one_row_are_written_even_if_they_equal_the_next_decode_rows() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = Arc::new(load_alone(&device, &fixture.path));
    let sampling = Sampling::default();
    let run = |in_chunks: bool| {
        let mut runner = Runner::new(model.clone(), limits(2, 64, 16)).unwrap();
        let mut sequences = [runner.start().unwrap(), runner.start().unwrap()];
        let mut tokens: Vec<u32> = Vec::new();
        for (index, sequence) in sequences.iter_mut().enumerate() {
            tokens.push(
                runner.prompt(sequence, &fixture.ids[index..index + 7], &sampling, |_| true).unwrap().token,
            );
        }
        for in_chunks in [false, in_chunks, false] {
            let rows = sequences.iter_mut().zip(&tokens);
            let step = if in_chunks {
                let chunk = |(sequence, token)| {
                    PrefillChunk::new(sequence, std::slice::from_ref(token), &sampling, true)
                };
                let mut chunks: Vec<_> = rows.map(chunk).collect();
                runner.mixed(&mut [], &mut chunks).unwrap().first_tokens.into_iter().flatten().collect()
            } else {
                let next = |(sequence, token): (_, &u32)| DecodeRow::new(sequence, *token, &sampling);
                runner.decode(&mut rows.map(next).collect::<Vec<_>>(), 1).unwrap().remove(0)
            };
            tokens = step.iter().map(|sampled| sampled.token).collect();
        }
        tokens
    };
    assert_eq!(run(true), run(false));
}

/// The same bits, and each prompt with its own parameters: penalties count the tokens of its own prompt only.
#[test]
fn reproducible_prefill_is_batch_invariant() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let penalised = Sampling { repetition: 100.0, frequency: 2.0, ..Sampling::default() };
    let drawn = Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() };
    let mut samplings = vec![Sampling::default(); PROMPTS];
    samplings[0] = drawn.clone();
    samplings[2] = penalised;
    samplings[6] = drawn;
    let model = || load_alone(&device, &fixture.path);
    for (variant, model) in
        [("without matrix units", model()), ("emulated matrix units", model().with_emulated_matrix_units())]
    {
        let model = Arc::new(model.with_reproducible(true));
        let limits = Limits { page_size: 16, ..limits(PROMPTS as u32 + 1, 64, 16) };
        compare(variant, &model, limits, &fixture.ids, &samplings, (0, 0.0));
    }
}

#[test]
fn too_many_chunks_or_prefill_tokens_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let sequence_count = MAX_CHUNKS_PER_STEP as u32 + 1;
    let mut runner =
        Runner::new(Arc::new(load_alone(&device, &fixture.path)), limits(sequence_count, 64, 40)).unwrap();
    let sampling = Sampling::default();
    let mut sequences: Vec<_> = (0..sequence_count).map(|_| runner.start().unwrap()).collect();
    let mut prefill = |count: usize, tokens: usize| {
        let mut chunks: Vec<_> = sequences[..count]
            .iter_mut()
            .map(|sequence| PrefillChunk::new(sequence, &fixture.ids[..tokens], &sampling, false))
            .collect();
        runner.mixed(&mut [], &mut chunks).map(|mixed| mixed.first_tokens.len())
    };
    for (count, tokens, message) in
        [(0, 1, "1 to 32"), (MAX_CHUNKS_PER_STEP + 1, 1, "1 to 32"), (5, 9, "at most 40")]
    {
        let error = prefill(count, tokens).unwrap_err();
        assert!(matches!(&error, Error::Limits(text) if text.contains(message)), "{error}");
    }
    assert_eq!(prefill(MAX_CHUNKS_PER_STEP, 1).unwrap(), MAX_CHUNKS_PER_STEP);
}
