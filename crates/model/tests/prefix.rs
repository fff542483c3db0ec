//! Sequences that begin with what others have read: the same logits as without, beyond the window too.

mod common;

use common::{Fixture, difference, limits, load_alone};
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

/// Reads what a sequence does not hold of a text; its last logits.
fn read(runner: &mut Runner, sequence: &mut Sequence, text: &[u32]) -> Vec<f32> {
    let mut last = vec![];
    let keep = |row: &[f32]| {
        last = row.to_vec();
        Ok(())
    };
    let held = sequence.len() as usize;
    runner.logits(sequence, &text[held..], keep).unwrap();
    last
}

/// The same with nothing known.
fn cold(runner: &mut Runner, text: &[u32]) -> Vec<f32> {
    let mut sequence = runner.start().unwrap();
    read(runner, &mut sequence, text)
}

/// Lets a sequence write so many tokens; those that it holds, and the last one.
fn write(runner: &mut Runner, sequence: &mut Sequence, first: u32, count: usize) -> Vec<u32> {
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
fn turns_of_a_chat_have_the_bits_of_one_that_is_read_whole() {
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
            assert_eq!(sequence.cached(), &text[..known]);
            let logits = read(&mut runner, &mut sequence, &text);
            assert_eq!(logits, cold(&mut runner, &text), "turn {turn}, {kv:?}");
            let first = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            text.extend(write(&mut runner, &mut sequence, first, 30));
            known = sequence.len() as usize;
            assert_eq!(known, text.len() - 1, "the last token was in no step");
            text.extend(&fixture.ids[100 + turn..107 + turn]);
        }
        assert!(known > 32 * 5);
    }
}

#[test]
fn without_reproducible_logits_a_prefix_moves_them_by_rounding_only() {
    let Some((fixture, mut runner)) = runner(false, limits(2, 320, 16)) else { return };
    drop({
        let mut sequence = runner.start_with(&fixture.ids[..200]).unwrap();
        read(&mut runner, &mut sequence, &fixture.ids[..200]);
        sequence
    });
    let mut sequence = runner.start_with(&fixture.ids[..230]).unwrap();
    assert_eq!(sequence.len(), 200);
    let logits = read(&mut runner, &mut sequence, &fixture.ids[..230]);
    let expected = cold(&mut runner, &fixture.ids[..230]);
    assert!(difference(&logits, &expected) < 1e-3 * fixture.largest());
}

#[test]
fn those_who_share_a_prefix_write_apart() {
    let Some((fixture, mut runner)) = runner(true, limits(5, 160, 16)) else { return };
    // A common beginning longer than the window, then a question of each.
    let texts: Vec<Vec<u32>> =
        (0..4).map(|own| [&fixture.ids[..70], &fixture.ids[100 + own..109 + 2 * own]].concat()).collect();
    let expected: Vec<Vec<f32>> = texts.iter().map(|text| cold(&mut runner, text)).collect();
    let free = runner.cache().free_pages();
    let mut sequences: Vec<Sequence> = vec![];
    for (number, (text, expected)) in texts.iter().zip(&expected).enumerate() {
        let mut sequence = runner.start_with(text).unwrap();
        assert_eq!(sequence.len(), if number == 0 { 0 } else { 68 });
        assert_eq!(runner.cache().shared_pages(text), if number == 0 { 0 } else { 17 });
        assert_eq!(&read(&mut runner, &mut sequence, text), expected, "sequence {number}");
        sequences.push(sequence);
    }
    let held: usize = sequences.iter().map(|sequence| sequence.pages().0).sum();
    assert_eq!(free.0 - runner.cache().free_pages().0, held - 3 * 17, "what is shared is held once");
    // All of them write together. Each goes on as if it were alone.
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
        read(&mut runner, &mut alone, text);
        assert_eq!(&write(&mut runner, &mut alone, tokens[0], tokens.len()), tokens);
        drop(alone);
        // And all of it is known now.
        let text = [text, &tokens[..]].concat();
        let mut again = runner.start_with(&text).unwrap();
        assert_eq!(again.len() as usize, text.len() - 1);
        assert_eq!(read(&mut runner, &mut again, &text), cold(&mut runner, &text));
    }
}

#[test]
fn penalties_count_what_was_not_read() {
    let Some((fixture, mut runner)) = runner(true, limits(2, 160, 16)) else { return };
    let text = &fixture.ids[..100];
    let sampling = Sampling { repetition: 1.5, frequency: 0.7, ..Sampling::default() };
    let mut answers = vec![];
    for known in [0, 96, 96] {
        let mut sequence = runner.start_with(text).unwrap();
        assert_eq!(sequence.len(), known);
        let mut tokens =
            vec![runner.prompt(&mut sequence, &text[known as usize..], &sampling, |_| true).unwrap().token];
        for _ in 0..8 {
            let token = tokens[tokens.len() - 1];
            let next = DecodeRow::new(&mut sequence, token, &sampling);
            tokens.push(runner.decode(&mut [next], 1).unwrap()[0][0].token);
        }
        answers.push(tokens);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    let plain = Sampling::default();
    let mut sequence = runner.start_with(text).unwrap();
    let first = runner.prompt(&mut sequence, &text[96..], &plain, |_| true).unwrap();
    assert_ne!(
        answers[0],
        write(&mut runner, &mut sequence, first.token, 9),
        "penalties change nothing here"
    );
}
