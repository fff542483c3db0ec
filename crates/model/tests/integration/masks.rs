//! Token masks and top tokens, on Mesa's CPU driver.

use crate::common::{Fixture, limits, load};
use model::{DecodeRow, Error, PrefillChunk, Runner, Sampled, Sampling, Sequence};

const NAME: &str = "gguf_q8_0";

/// A mask that allows only these tokens.
fn only(vocab: usize, tokens: &[u32]) -> Vec<u32> {
    let mut mask = vec![0; vocab.div_ceil(32)];
    tokens.iter().for_each(|token| mask[*token as usize / 32] |= 1 << (token % 32));
    mask
}

/// One row per sequence; rows beyond the end of `masks` have none.
fn rows<'a>(
    sequences: &'a mut [Sequence],
    tokens: &[u32],
    sampling: &'a Sampling,
    masks: &[Option<&'a [u32]>],
) -> Vec<DecodeRow<'a>> {
    let masks = masks.iter().copied().chain(std::iter::repeat(None));
    let rows = sequences.iter_mut().zip(tokens).zip(masks);
    rows.map(|((sequence, token), mask)| DecodeRow { mask, ..DecodeRow::new(sequence, *token, sampling) })
        .collect()
}

#[test]
fn a_mask_applies_to_its_row_only() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model, limits(3, 96, 16)).unwrap();
    let greedy = fixture.list("greedy");
    let mut sequences: Vec<Sequence> = (0..3).map(|_| runner.start().unwrap()).collect();
    let sampling = Sampling::default();
    let first = |runner: &mut Runner, sequence: &mut Sequence| -> Sampled {
        runner.prompt(sequence, &fixture.ids, &sampling, |_| true).unwrap()
    };
    let sampled: Vec<Sampled> = sequences.iter_mut().map(|sequence| first(&mut runner, sequence)).collect();
    let tokens: Vec<u32> = sampled.iter().map(|sampled| sampled.token).collect();
    assert_eq!(tokens, [greedy[0]; 3]);

    // A single token, all but the best, and no mask.
    let last = fixture.vocab as u32 - 1;
    let others: Vec<u32> = (0..=last).filter(|token| *token != greedy[1]).collect();
    let masks = [only(fixture.vocab, &[last]), only(fixture.vocab, &others)];
    let masks = [Some(&masks[0][..]), Some(&masks[1][..]), None];
    let mut batch = rows(&mut sequences, &tokens, &sampling, &masks);
    let sampled = runner.decode(&mut batch, 1).unwrap().remove(0);
    assert_eq!((sampled[0].token, sampled[2].token), (last, greedy[1]));
    assert_ne!(sampled[1].token, greedy[1]);
    // The log probability is the model's own, whatever the mask.
    assert!(
        sampled[0].logprob < sampled[1].logprob && sampled[1].logprob < sampled[2].logprob,
        "{sampled:?}"
    );

    // Nothing is allocated or recorded per step, and without masks the result is unchanged.
    let tokens: Vec<u32> = sampled.iter().map(|sampled| sampled.token).collect();
    let before = device.counters();
    let mut batch = rows(&mut sequences, &tokens, &sampling, &masks);
    let sampled = runner.decode(&mut batch, 1).unwrap().remove(0);
    let after = device.counters();
    assert_eq!((after.allocations, after.commands_recorded), (before.allocations, before.commands_recorded));
    assert_eq!((sampled[0].token, sampled[2].token), (last, greedy[2]));
    let tokens: Vec<u32> = sampled.iter().map(|sampled| sampled.token).collect();
    let run = runner.decode(&mut rows(&mut sequences, &tokens, &sampling, &[]), 3).unwrap();
    assert!(run.iter().zip(&greedy[3..]).all(|(step, token)| step[2].token == *token));

    // A run with a mask is one step: the next mask depends on the sampled token.
    let run = runner.decode(&mut rows(&mut sequences, &[1; 3], &sampling, &masks), 3).unwrap();
    assert_eq!(run.len(), 1);

    // A mask of another length is an error.
    let wrong = [Some(&[0_u32][..])];
    let error = runner.decode(&mut rows(&mut sequences, &[1; 3], &sampling, &wrong), 1).unwrap_err();
    assert!(matches!(error, Error::Limits(_)), "{error}");
}

#[test]
fn a_mask_applies_to_the_token_after_a_prompt() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model, limits(2, 96, 16)).unwrap();
    let sampling = Sampling { temperature: 1.0, top_k: 3, top: 2, ..Sampling::default() };
    let mut sequences = [runner.start().unwrap(), runner.start().unwrap()];
    let token = runner.prompt(&mut sequences[0], &fixture.ids, &sampling, |_| true).unwrap().token;
    let [writing, reading] = &mut sequences;
    let masks = [only(fixture.vocab, &[7, 9]), only(fixture.vocab, &[11])];
    let mask = Some(&masks[1][..]);
    let chunk = PrefillChunk { mask, ..PrefillChunk::new(reading, &fixture.ids[..9], &sampling, true) };
    let mask = Some(&masks[0][..]);
    let row = DecodeRow { mask, ..DecodeRow::new(writing, token, &sampling) };
    let mixed = runner.mixed(&mut [row], &mut [chunk]).unwrap();
    let first = mixed.first_tokens[0].as_ref().unwrap();
    assert!([7, 9].contains(&mixed.decoded[0].token) && first.token == 11, "{first:?}");
    assert_eq!((mixed.decoded[0].top.len(), first.top.len()), (2, 2));
    // The top tokens are the model's, not the mask's.
    assert!(first.top[0].1 >= first.logprob);
}

#[test]
fn top_tokens_match_the_logits_in_every_step() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let model = load(&device, &fixture.path);
    let mut runner = Runner::new(model, limits(2, 96, 16)).unwrap();
    let with_top = Sampling { top: 20, ..Sampling::default() };
    let plain = Sampling::default();
    let mut sequences = [runner.start().unwrap(), runner.start().unwrap()];
    let [one, other] = &mut sequences;
    let first = runner.prompt(one, &fixture.ids, &with_top, |_| true).unwrap();
    let same = runner.prompt(other, &fixture.ids, &plain, |_| true).unwrap();
    assert!(same.top.is_empty() && same.token == first.token && same.logprob == first.logprob);
    let token = first.token;
    let rows = &mut [DecodeRow::new(one, token, &with_top), DecodeRow::new(other, token, &plain)];
    let steps = runner.decode(rows, 6).unwrap();
    assert_eq!(steps.len(), 6);
    let mut sampled = vec![first];
    for step in steps {
        assert!(step[1].top.is_empty() && step[1].token == step[0].token);
        sampled.push(step[0].clone());
    }

    let text: Vec<u32> =
        fixture.ids.iter().copied().chain(sampled.iter().map(|sampled| sampled.token)).collect();
    drop(sequences);
    let mut sequence = runner.start().unwrap();
    let mut position = 0;
    runner
        .logits(&mut sequence, &text, |logits| {
            let at = (position + 1_usize).checked_sub(fixture.ids.len());
            position += 1;
            let Some(sampled) = at.and_then(|at| sampled.get(at)) else { return Ok(()) };
            let sum = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
            assert_eq!(sampled.top.len(), 20);
            assert_eq!((sampled.top[0].0, sampled.top[0].1), (sampled.token, sampled.logprob));
            assert!(sampled.top.is_sorted_by(|a, b| a.1 >= b.1));
            let least = sampled.top[19].1;
            for (token, logit) in (0_u32..).zip(logits) {
                let logprob = (f64::from(*logit) - sum) as f32;
                match sampled.top.iter().find(|(top, _)| *top == token) {
                    Some((_, found)) => {
                        assert!((found - logprob).abs() < 2e-2, "{token}: {found} for {logprob}")
                    }
                    None => assert!(logprob < least + 2e-2, "{token} at {logprob} is missing"),
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn each_prompt_of_a_step_has_its_own_mask() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(NAME);
    let mut runner = Runner::new(load(&device, &fixture.path), limits(4, 64, 16)).unwrap();
    let sampling = Sampling::default();
    let mut sequences: Vec<_> = (0..4).map(|_| runner.start().unwrap()).collect();
    let token = runner.prompt(&mut sequences[0], &fixture.ids[..5], &sampling, |_| true).unwrap().token;
    let (writing, reading) = sequences.split_at_mut(1);
    // The second is not its prompt's last chunk, and has no mask.
    let masks = [7, 9, 11].map(|token| only(fixture.vocab, &[token]));
    let chunk = |(sequence, mask): (_, Option<usize>)| PrefillChunk {
        mask: mask.map(|mask| &masks[mask][..]),
        ..PrefillChunk::new(sequence, &fixture.ids[..4], &sampling, mask.is_some())
    };
    let mut chunks: Vec<_> = reading.iter_mut().zip([Some(1), None, Some(2)]).map(chunk).collect();
    let row = DecodeRow { mask: Some(&masks[0]), ..DecodeRow::new(&mut writing[0], token, &sampling) };
    let mixed = runner.mixed(&mut [row], &mut chunks).unwrap();
    let firsts: Vec<_> =
        mixed.first_tokens.iter().map(|first| first.as_ref().map(|first| first.token)).collect();
    assert_eq!((mixed.decoded[0].token, firsts), (7, vec![Some(9), None, Some(11)]));
}
