//! Prefix cache: sequences that start with cached pages have the same logits as without, also beyond the
//! window.

use crate::common::{Fixture, difference, limits, load_alone};
use model::{DecodeRow, KvScheme, Limits, Runner, Sampling, Sequence};
use std::sync::Arc;

/// A model with a window of 32, a prompt of 300, pages of 4.
const NAME: &str = "untied_long";

fn runner(reproducible: bool, limits: Limits) -> Option<(Fixture, Runner)> {
    let device = testkit::cpu_device()?;
    let fixture = Fixture::open(NAME);
    let model = load_alone(&device, &fixture.path).with_reproducible(reproducible);
    Some((fixture, Runner::new(Arc::new(model), limits).unwrap()))
}

/// Prefills the tokens of a text that a sequence does not hold, and returns the last logits.
fn prefill(runner: &mut Runner, sequence: &mut Sequence, text: &[u32]) -> Vec<f32> {
    let mut last = vec![];
    let keep = |row: &[f32]| {
        last = row.to_vec();
        Ok(())
    };
    let held = sequence.len() as usize;
    runner.logits(sequence, &text[held..], keep).unwrap();
    last
}

/// The same without the prefix cache.
fn prefill_cold(runner: &mut Runner, text: &[u32]) -> Vec<f32> {
    let mut sequence = runner.start().unwrap();
    prefill(runner, &mut sequence, text)
}

/// Decodes until there are `count` tokens, the first included.
fn decode(runner: &mut Runner, sequence: &mut Sequence, first: u32, count: usize) -> Vec<u32> {
    let sampling = Sampling::default();
    let mut tokens = vec![first];
    while tokens.len() < count {
        let token = tokens[tokens.len() - 1];
        let next = DecodeRow::new(&mut *sequence, token, &sampling);
        let steps = runner.decode(&mut [next], count - tokens.len()).unwrap();
        tokens.extend(steps.concat().iter().map(|sampled| sampled.token));
    }
    tokens
}

#[test]
fn cached_chat_turns_have_the_bits_of_a_full_prefill() {
    for kv in [KvScheme::F16, KvScheme::Int8] {
        let page = if kv == KvScheme::Int8 { 16 } else { 4 };
        let Some((fixture, mut runner)) =
            runner(true, Limits { kv_scheme: kv, page_size: page, ..limits(2, 320, 16) })
        else {
            return;
        };
        let mut text = fixture.ids[..90].to_vec();
        let mut known = 0;
        for turn in 0..3 {
            let mut sequence = runner.start_with(&text).unwrap();
            assert_eq!(sequence.len() as usize, known, "turn {turn}");
            assert_eq!(sequence.cached_prefix(), &text[..known]);
            let logits = prefill(&mut runner, &mut sequence, &text);
            assert_eq!(logits, prefill_cold(&mut runner, &text), "turn {turn}, {kv:?}");
            let first = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            text.extend(decode(&mut runner, &mut sequence, first, 30));
            known = sequence.len() as usize;
            assert_eq!(known, text.len() - 1, "the last token is not in the cache");
            text.extend(&fixture.ids[100 + turn..107 + turn]);
        }
        assert!(known > 32 * 5);
    }
}

#[test]
fn without_batch_invariance_a_cached_prefix_changes_logits_by_rounding_only() {
    let Some((fixture, mut runner)) = runner(false, limits(2, 320, 16)) else { return };
    drop({
        let mut sequence = runner.start_with(&fixture.ids[..200]).unwrap();
        prefill(&mut runner, &mut sequence, &fixture.ids[..200]);
        sequence
    });
    let mut sequence = runner.start_with(&fixture.ids[..230]).unwrap();
    assert_eq!(sequence.len(), 200);
    let logits = prefill(&mut runner, &mut sequence, &fixture.ids[..230]);
    let expected = prefill_cold(&mut runner, &fixture.ids[..230]);
    assert!(difference(&logits, &expected) < 1e-3 * fixture.largest());
}

#[test]
fn sequences_that_share_a_prefix_decode_independently() {
    let Some((fixture, mut runner)) = runner(true, limits(5, 160, 16)) else { return };
    // A common prefix longer than the window, then different tokens.
    let texts: Vec<Vec<u32>> =
        (0..4).map(|own| [&fixture.ids[..70], &fixture.ids[100 + own..109 + 2 * own]].concat()).collect();
    let expected: Vec<Vec<f32>> = texts.iter().map(|text| prefill_cold(&mut runner, text)).collect();
    let free = runner.cache().free_pages();
    let mut sequences: Vec<Sequence> = vec![];
    for (number, (text, expected)) in texts.iter().zip(&expected).enumerate() {
        let mut sequence = runner.start_with(text).unwrap();
        // 17 pages, and a copy of two tokens of the page in which they part.
        assert_eq!(sequence.len(), if number == 0 { 0 } else { 70 });
        assert_eq!(runner.cache().shared_pages(text), if number == 0 { 0 } else { 17 });
        assert_eq!(&prefill(&mut runner, &mut sequence, text), expected, "sequence {number}");
        sequences.push(sequence);
    }
    let held: usize = sequences.iter().map(|sequence| sequence.pages().0).sum();
    assert_eq!(free.0 - runner.cache().free_pages().0, held - 3 * 17, "shared pages are held once");
    // Decoded in one batch, each gives the tokens that it gives alone.
    let sampling = Sampling::default();
    let mut tokens: Vec<Vec<u32>> = texts.iter().map(|text| vec![text[0]]).collect();
    for _ in 0..4 {
        let rows = sequences.iter_mut().zip(&tokens);
        let mut next: Vec<DecodeRow<'_>> = rows
            .map(|(sequence, tokens)| DecodeRow::new(sequence, tokens[tokens.len() - 1], &sampling))
            .collect();
        for step in runner.decode(&mut next, 5).unwrap() {
            tokens.iter_mut().zip(step).for_each(|(tokens, sampled)| tokens.push(sampled.token));
        }
    }
    drop(sequences);
    assert_eq!(runner.cache().free_pages(), free);
    for (text, tokens) in texts.iter().zip(&tokens) {
        let mut alone = runner.start().unwrap();
        prefill(&mut runner, &mut alone, text);
        assert_eq!(&decode(&mut runner, &mut alone, tokens[0], tokens.len()), tokens);
        drop(alone);
        // All of it is cached now.
        let text = [text, &tokens[..]].concat();
        let mut again = runner.start_with(&text).unwrap();
        assert_eq!(again.len() as usize, text.len() - 1);
        assert_eq!(prefill(&mut runner, &mut again, &text), prefill_cold(&mut runner, &text));
    }
}

#[test]
fn a_copied_page_has_the_bits_of_a_full_prefill() {
    for kv in [KvScheme::F32, KvScheme::F16, KvScheme::Int8] {
        let Some((fixture, mut runner)) =
            runner(true, Limits { kv_scheme: kv, page_size: 64, ..limits(4, 128, 32) })
        else {
            return;
        };
        // A prompt of half a page, of which the first sequence has gone on.
        let prompt = &fixture.ids[..31];
        let mut first = runner.start_with(prompt).unwrap();
        let logits = prefill(&mut runner, &mut first, prompt);
        decode(&mut runner, &mut first, 7, 6);
        let mut second = runner.start_with(prompt).unwrap();
        assert_eq!(second.len(), 30, "{kv:?}");
        assert_eq!(prefill(&mut runner, &mut second, prompt), logits, "{kv:?}");
        // Each goes on by itself.
        let own = decode(&mut runner, &mut second, 9, 12);
        decode(&mut runner, &mut first, 11, 12);
        let text = [prompt, &own[..]].concat();
        let mut third = runner.start_with(&text).unwrap();
        assert_eq!(third.len(), 31, "{kv:?}: what a running sequence decodes is not shared");
        assert_eq!(prefill(&mut runner, &mut third, &text), prefill_cold(&mut runner, &text), "{kv:?}");
    }
}

#[test]
fn penalties_count_cached_prompt_tokens() {
    let Some((fixture, mut runner)) = runner(true, limits(2, 160, 16)) else { return };
    let text = &fixture.ids[..100];
    let sampling = Sampling { repetition: 1.5, frequency: 0.7, ..Sampling::default() };
    let mut completions = vec![];
    for known in [0, 99, 99] {
        let mut sequence = runner.start_with(text).unwrap();
        assert_eq!(sequence.len(), known);
        let mut tokens =
            vec![runner.prompt(&mut sequence, &text[known as usize..], &sampling, |_| true).unwrap().token];
        for _ in 0..8 {
            let token = tokens[tokens.len() - 1];
            let next = DecodeRow::new(&mut sequence, token, &sampling);
            tokens.push(runner.decode(&mut [next], 1).unwrap()[0][0].token);
        }
        completions.push(tokens);
    }
    assert_eq!(completions[0], completions[1]);
    assert_eq!(completions[0], completions[2]);
    let plain = Sampling::default();
    let mut sequence = runner.start_with(text).unwrap();
    let first = runner.prompt(&mut sequence, &text[99..], &plain, |_| true).unwrap();
    assert_ne!(
        completions[0],
        decode(&mut runner, &mut sequence, first.token, 9),
        "the penalties must have an effect"
    );
}
