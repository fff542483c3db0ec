//! Prompts that are read together, in one step: the same tokens as one after the other.

mod common;

use std::sync::Arc;

use common::{Fixture, limits, load_alone};
use model::{
    Activations, DecodeRow, Error, KvScheme, Limits, MAX_CHUNKS_PER_STEP, Model, PrefillChunk, Runner,
    Sampled, Sampling,
};

/// Who reads how many tokens, step by step: whole prompts and parts of one, one row of each, no more rows than count as few, and as many as
/// there is room for.
const STEPS: [&[(usize, usize)]; 5] =
    [&[(0, 7), (1, 1), (2, 6)], &[(2, 10), (3, 5)], &[(4, 2), (5, 3)], &[(6, 1), (7, 1)], &[(5, 12)]];
const READERS: usize = 8;

/// The tokens of one who writes throughout, and of all who read and then write. Those who read hold so many tokens before.
fn run(
    model: &Arc<Model>,
    limits: Limits,
    ids: &[u32],
    samplings: &[Sampling],
    (before, together): (usize, bool),
) -> Vec<Vec<Sampled>> {
    let mut runner = Runner::new(model.clone(), limits).unwrap();
    let plain = Sampling::default();
    let mut writer = runner.start().unwrap();
    let mut written = vec![runner.prompt(&mut writer, &ids[2..21], &plain, |_| true).unwrap()];
    let mut readers: Vec<_> = (0..READERS).map(|_| runner.start().unwrap()).collect();
    for (who, sequence) in readers.iter_mut().enumerate() {
        // Not all the same number, and the first nothing.
        let held = before.saturating_sub(3 * who) * usize::from(who > 0);
        for tokens in ids[who..who + held].chunks(limits.prefill_chunk as usize) {
            let chunk = PrefillChunk::new(&mut *sequence, tokens, &samplings[who], false);
            runner.mixed(&mut [], &mut [chunk]).unwrap();
        }
    }
    let held: Vec<usize> = readers.iter().map(|sequence| sequence.len() as usize).collect();
    let whole = |who: usize| -> usize {
        let read = STEPS.concat().into_iter().filter(|(reader, _)| *reader == who);
        held[who] + read.map(|(_, count)| count).sum::<usize>()
    };
    let mut firsts: Vec<Option<Sampled>> = vec![None; READERS];
    for step in STEPS {
        let mut chunks = Vec::new();
        for (who, sequence) in readers.iter_mut().enumerate() {
            let Some((_, count)) = step.iter().find(|(reader, _)| *reader == who) else { continue };
            let from = who + sequence.len() as usize;
            let last = sequence.len() as usize + count == whole(who);
            chunks.push(PrefillChunk::new(sequence, &ids[from..from + count], &samplings[who], last));
        }
        let last: Vec<bool> = chunks.iter().map(|chunk| chunk.last).collect();
        let next = DecodeRow::new(&mut writer, written[written.len() - 1].token, &plain);
        let found = if together {
            let mut mixed = runner.mixed(&mut [next], &mut chunks).unwrap();
            written.append(&mut mixed.decoded);
            mixed.first_tokens
        } else {
            written.append(&mut runner.decode(&mut [next], 1).unwrap().remove(0));
            chunks
                .into_iter()
                .flat_map(|chunk| runner.mixed(&mut [], &mut [chunk]).unwrap().first_tokens)
                .collect()
        };
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), last);
        for ((who, _), first) in step.iter().zip(found) {
            firsts[*who] = first.or(firsts[*who].take());
        }
    }
    let mut tokens: Vec<Vec<Sampled>> = firsts.into_iter().map(|first| vec![first.unwrap()]).collect();
    for _ in 0..4 {
        let rows = readers.iter_mut().zip(samplings).zip(&tokens);
        let mut next: Vec<_> = rows
            .map(|((sequence, sampling), tokens)| {
                DecodeRow::new(sequence, tokens[tokens.len() - 1].token, sampling)
            })
            .collect();
        let step = runner.decode(&mut next, 1).unwrap().remove(0);
        tokens.iter_mut().zip(step).for_each(|(tokens, sampled)| tokens.push(sampled));
    }
    tokens.push(written);
    tokens
}

/// Compares both ways; `allowed` is what logarithms of probabilities may differ by.
fn compare(
    what: &str,
    model: &Arc<Model>,
    limits: Limits,
    ids: &[u32],
    samplings: &[Sampling],
    (before, allowed): (usize, f32),
) {
    let [together, apart] =
        [true, false].map(|together| run(model, limits, ids, samplings, (before, together)));
    for (who, (together, apart)) in together.iter().zip(&apart).enumerate() {
        for (at, (together, apart)) in together.iter().zip(apart).enumerate() {
            let text = format!("{what}, sequence {who}, token {at}: {together:?} and {apart:?}");
            assert!(together.token == apart.token, "{text}");
            assert!((together.logprob - apart.logprob).abs() <= allowed, "{text}");
        }
    }
}

#[test]
fn prompts_read_together_give_the_tokens_of_each_by_itself() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = || load_alone(&device, &fixture.path);
    let samplings = vec![Sampling::default(); READERS];
    let ways = [
        ("several dispatches", model()),
        ("as GPUs without matrix units", model().with_one_dispatch(true).with_few_rows(Activations::Int16)),
        ("matrix units", model().with_one_dispatch(true).with_emulated_matrix_units()),
    ];
    for (way, model) in ways {
        let model = Arc::new(model);
        for (page, kv) in [(4, KvScheme::F16), (16, KvScheme::Int8)] {
            let limits = Limits { kv_scheme: kv, page_size: page, ..limits(READERS as u32 + 1, 64, 16) };
            compare(
                &format!("{way}, {kv}, pages of {page}"),
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
fn prompts_read_together_past_the_sliding_window() {
    let Some(device) = testkit::cpu_device() else { return };
    // A window of 32.
    let fixture = Fixture::open("untied_long");
    let samplings = vec![Sampling::default(); READERS];
    for (way, model) in [
        ("plainly", load_alone(&device, &fixture.path)),
        (
            "matrix units",
            load_alone(&device, &fixture.path).with_one_dispatch(true).with_emulated_matrix_units(),
        ),
    ] {
        let limits = Limits { page_size: 16, ..limits(READERS as u32 + 1, 128, 16) };
        compare(way, &Arc::new(model), limits, &fixture.ids, &samplings, (70, 2e-2));
    }
}

/// The sampler leaves the rows of a next step of decoding; chunks of one row each are not that.
#[test]
fn chunks_of_one_row_are_chunks_even_where_decoding_would_go_on_so() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = Arc::new(load_alone(&device, &fixture.path));
    let sampling = Sampling::default();
    let go_on = |in_chunks: bool| {
        let mut runner = Runner::new(model.clone(), limits(2, 64, 16)).unwrap();
        let mut sequences = [runner.start().unwrap(), runner.start().unwrap()];
        let mut tokens: Vec<u32> = Vec::new();
        for (who, sequence) in sequences.iter_mut().enumerate() {
            tokens.push(
                runner.prompt(sequence, &fixture.ids[who..who + 7], &sampling, |_| true).unwrap().token,
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
    assert_eq!(go_on(true), go_on(false));
}

/// The same bits, and each with its own settings: counts of penalties are of its own prompt alone.
#[test]
fn reproducible_prompts_have_the_same_bits_whoever_reads_beside_them() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let penalised = Sampling { repetition: 100.0, frequency: 2.0, ..Sampling::default() };
    let drawn = Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() };
    let mut samplings = vec![Sampling::default(); READERS];
    samplings[0] = drawn.clone();
    samplings[2] = penalised;
    samplings[6] = drawn;
    let model = || load_alone(&device, &fixture.path);
    for (way, model) in [("plainly", model()), ("by matrix units", model().with_emulated_matrix_units())] {
        let model = Arc::new(model.with_reproducible(true));
        let limits = Limits { page_size: 16, ..limits(READERS as u32 + 1, 64, 16) };
        compare(way, &model, limits, &fixture.ids, &samplings, (0, 0.0));
    }
}

#[test]
fn too_many_prompts_or_tokens_of_them_are_refused() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let most = MAX_CHUNKS_PER_STEP as u32 + 1;
    let mut runner = Runner::new(Arc::new(load_alone(&device, &fixture.path)), limits(most, 64, 40)).unwrap();
    let sampling = Sampling::default();
    let mut sequences: Vec<_> = (0..most).map(|_| runner.start().unwrap()).collect();
    let mut read = |count: usize, tokens: usize| {
        let mut chunks: Vec<_> = sequences[..count]
            .iter_mut()
            .map(|sequence| PrefillChunk::new(sequence, &fixture.ids[..tokens], &sampling, false))
            .collect();
        runner.mixed(&mut [], &mut chunks).map(|mixed| mixed.first_tokens.len())
    };
    for (count, tokens, said) in
        [(0, 1, "1 to 32"), (MAX_CHUNKS_PER_STEP + 1, 1, "1 to 32"), (5, 9, "at most 40")]
    {
        let error = read(count, tokens).unwrap_err();
        assert!(matches!(&error, Error::Limits(text) if text.contains(said)), "{error}");
    }
    assert_eq!(read(MAX_CHUNKS_PER_STEP, 1).unwrap(), MAX_CHUNKS_PER_STEP);
}
