//! Draft models: a model that drafts for itself is always right, whatever it has read and whatever was rejected before.

use std::sync::Arc;

use crate::common::{Fixture, limits, load_alone};
use model::{DecodeRow, DraftInput, DraftRunner, DraftSequence, Limits, Model, Runner, Sampling};

/// Greedy, and sampled with filters.
fn samplings() -> [Sampling; 2] {
    [
        Sampling::default(),
        Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, top: 3, ..Sampling::default() },
    ]
}

/// The completion of a prompt, by single steps.
fn completion(
    model: &Arc<Model>,
    limits: Limits,
    prompt: &[u32],
    sampling: &Sampling,
    count: usize,
) -> Vec<u32> {
    let mut runner = Runner::new(model.clone(), limits).unwrap();
    let mut sequence = runner.start().unwrap();
    let mut tokens = vec![runner.prompt(&mut sequence, prompt, sampling, |_| true).unwrap().token];
    while tokens.len() < count {
        let row = DecodeRow::new(&mut sequence, tokens[tokens.len() - 1], sampling);
        tokens.push(runner.decode(&mut [row], 1).unwrap()[0][0].token);
    }
    tokens
}

/// Drafts for one text, after as many calls as it takes to prefill it.
fn draft(
    model: &mut DraftRunner,
    sequence: &mut DraftSequence,
    text: &[u32],
    sampling: &Sampling,
    max_drafts: usize,
) -> Vec<u32> {
    for _ in 0..text.len() {
        let row = DraftInput { sequence: &mut *sequence, tokens: text, sampling, max_drafts };
        let drafts = model.draft(&mut [row]).unwrap().remove(0);
        if !drafts.is_empty() {
            return drafts;
        }
    }
    panic!("no drafts");
}

/// How many drafts of each step are accepted: all, none, some, and all again.
const ACCEPTED: [usize; 8] = [5, 0, 2, 5, 5, 1, 0, 4];

#[test]
fn a_model_that_drafts_for_itself_is_right_whatever_was_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    // The second has a window of 32.
    for (name, prompt) in [("gguf_q8_0", 12), ("untied_long", 40)] {
        let fixture = Fixture::open(name);
        let model = Arc::new(load_alone(&device, &fixture.path).with_row_invariant(true));
        let (limits, prompt) = (limits(1, 160, 8), &fixture.ids[..prompt]);
        for sampling in samplings() {
            let expected = completion(&model, limits, prompt, &sampling, 60);
            let mut drafting = DraftRunner::new(Runner::new(model.clone(), limits).unwrap());
            let free = drafting.runner().cache().free_pages();
            let mut sequence = DraftSequence::default();
            let mut done = 1;
            for accepted in ACCEPTED {
                let text = [prompt, &expected[..done]].concat();
                let drafts = draft(&mut drafting, &mut sequence, &text, &sampling, 5);
                assert_eq!(drafts, expected[done..done + 5], "{name}, after {done} tokens");
                // The token after the accepted drafts is the target's. Here it is another one than the draft, and so is
                // what follows.
                done += accepted + 1;
                if accepted < 5 {
                    let mut other = text.clone();
                    other.extend(&drafts[..accepted]);
                    other.push((drafts[accepted] + 1) % fixture.vocab as u32);
                    let mut fresh = DraftRunner::new(Runner::new(model.clone(), limits).unwrap());
                    let alone = draft(&mut fresh, &mut DraftSequence::default(), &other, &sampling, 4);
                    let again = draft(&mut drafting, &mut sequence, &other, &sampling, 4);
                    assert_eq!(again, alone, "{name}, after {done} tokens");
                }
            }
            drop(sequence);
            assert_eq!(drafting.runner().cache().free_pages(), free, "pages are left");
        }
    }
    device.assert_no_messages();
}

#[test]
fn texts_of_any_length_are_drafted_for_in_one_batch() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = Arc::new(load_alone(&device, &fixture.path).with_row_invariant(true));
    let limits = limits(4, 160, 32);
    let [greedy, drawn] = samplings();
    let prompts: Vec<&[u32]> = [2, 9, 30, 17].iter().map(|len| &fixture.ids[..*len]).collect();
    let samplings = [&greedy, &drawn, &greedy, &drawn];
    let expected: Vec<Vec<u32>> = prompts
        .iter()
        .zip(samplings)
        .map(|(prompt, sampling)| completion(&model, limits, prompt, sampling, 60))
        .collect();
    let mut drafting = DraftRunner::new(Runner::new(model.clone(), limits).unwrap());
    let mut sequences: Vec<DraftSequence> = (0..4).map(|_| DraftSequence::default()).collect();
    let (mut done, mut drafted) = ([1; 4], [0; 4]);
    for step in 0..12 {
        let texts: Vec<Vec<u32>> =
            (0..4).map(|index| [prompts[index], &expected[index][..done[index]]].concat()).collect();
        let rows = sequences.iter_mut().zip(&texts).zip(samplings).enumerate();
        let mut batch: Vec<DraftInput<'_>> = rows
            .map(|(index, ((sequence, text), sampling))| DraftInput {
                sequence,
                tokens: text,
                sampling,
                max_drafts: 1 + index,
            })
            .collect();
        let drafts = drafting.draft(&mut batch).unwrap();
        for (index, drafts) in drafts.iter().enumerate() {
            assert!(drafts.len() <= 1 + index);
            assert_eq!(
                drafts[..],
                expected[index][done[index]..][..drafts.len()],
                "step {step}, text {index}"
            );
            drafted[index] += drafts.len();
            done[index] += 1 + (step + index) % (1 + drafts.len());
        }
    }
    assert!(drafted.iter().all(|count| *count >= 8), "{drafted:?}");
}

#[test]
fn unsupported_inputs_get_no_drafts() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = Arc::new(load_alone(&device, &fixture.path));
    let mut drafting = DraftRunner::new(Runner::new(model, limits(2, 32, 16)).unwrap());
    let sampling = Sampling::default();
    let vocab = fixture.vocab as u32;
    let mut drafts = |text: &[u32], max_drafts: usize| {
        let mut sequence = DraftSequence::default();
        let mut last = vec![];
        for _ in 0..4 {
            let row = DraftInput { sequence: &mut sequence, tokens: text, sampling: &sampling, max_drafts };
            last = drafting.draft(&mut [row]).unwrap().remove(0);
        }
        last.len()
    };
    let text = [&fixture.ids[..], &fixture.ids].concat();
    assert_eq!((drafts(&[], 4), drafts(&text[..5], 0)), (0, 0));
    assert_eq!(drafts(&[3, vocab, 4], 4), 0, "another vocabulary");
    assert_eq!(drafts(&[3, model::IMAGE_TOKEN, 4], 4), 0, "an image");
    assert_eq!((drafts(&text[..30], 4), drafts(&text[..32], 4)), (2, 0), "the end of the context");
    assert_eq!(drafts(&text[..5], 4), 4);
}
