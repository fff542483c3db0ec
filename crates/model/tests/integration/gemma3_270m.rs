//! The real Gemma 3 270M against llama.cpp with the same weights in f32.
//!
//! Runs if INDRIK_TEST_GGUF names the file, which `make test` sets. INDRIK_TEST_DATA adds data that the
//! repository cannot include: a long prompt, and WikiText-2 for two chunks of perplexity.

use std::path::PathBuf;

use crate::common::load;
use crate::reference::{cases, data, file, greedy, limits};
use checkpoint::Checkpoint;
use model::{DecodeRow, KvScheme, Limits, Runner, Sampling, language::Language};
use serde_json::Value;
use text::EncodeSpecial;

fn real_model() -> Option<PathBuf> {
    file("INDRIK_TEST_GGUF", "Gemma 3 270M")
}

#[test]
fn tokens_and_logits_match_the_reference() {
    let Some(path) = real_model() else { return };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let model = load(&device, &path);
    let language = Language::from_checkpoint(&Checkpoint::open(&path).unwrap()).unwrap();
    assert_eq!(language.stop_token_ids, [1, 106], "the end of a turn comes from the vocabulary");
    let mut all = cases(include_str!("../data/gemma3_270m.json"));
    if let Some(path) = data("gemma270m_reference.json").filter(|_| testkit::exhaustive()) {
        let more = cases(&std::fs::read_to_string(path).unwrap());
        all.extend(more.into_iter().filter(|case| case.ids.len() > 100));
    }
    for (number, case) in all.iter().enumerate() {
        assert_eq!(language.tokenizer.encode_prompt(&case.prompt), case.ids);
        // Its own tokens for every prompt; for two of them, and for all in long runs, also the logits of every step.
        case.assert_same("alone", &greedy(&model, 64, &case.ids, case.tokens.len()));
        if number < 2 || testkit::exhaustive() {
            case.assert_steps(&model);
        }
    }
}

#[test]
fn tokens_are_the_same_for_any_chunk_size_and_in_a_batch() {
    let Some(path) = real_model() else { return };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let model = load(&device, &path);
    let all = cases(include_str!("../data/gemma3_270m.json"));
    let longest = all.iter().max_by_key(|case| case.ids.len()).unwrap();
    for chunk in [1, 5] {
        let found = greedy(&model, chunk, &longest.ids, 24);
        longest.first(24).assert_same(&format!("chunks of {chunk}"), &found);
    }
    // Three sequences in one batch.
    let sampling = Sampling::default();
    let mut runner = Runner::new(model, limits(3, 64)).unwrap();
    let mut sequences: Vec<_> = (0..3).map(|_| runner.start().unwrap()).collect();
    let mut tokens: Vec<Vec<u32>> = Vec::new();
    for (sequence, case) in sequences.iter_mut().zip(&all) {
        tokens.push(vec![runner.prompt(sequence, &case.ids, &sampling, |_| true).unwrap().token]);
    }
    for _ in 1..24 {
        let last: Vec<u32> = tokens.iter().map(|tokens| tokens[tokens.len() - 1]).collect();
        let rows = sequences.iter_mut().zip(last);
        let mut next: Vec<DecodeRow<'_>> =
            rows.map(|(sequence, token)| DecodeRow::new(sequence, token, &sampling)).collect();
        for (tokens, sampled) in tokens.iter_mut().zip(runner.decode(&mut next, 1).unwrap().remove(0)) {
            tokens.push(sampled.token);
        }
    }
    for (tokens, case) in tokens.iter().zip(&all) {
        case.first(24).assert_same("in a batch", tokens);
    }
}

#[test]
fn perplexity_matches_the_reference() {
    let (Some(path), Some(text)) = (real_model(), data("wikitext2-test.txt")) else { return };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let model = load(&device, &path);
    let language = Language::from_checkpoint(&Checkpoint::open(&path).unwrap()).unwrap();
    let text = std::fs::read_to_string(text).unwrap();
    let mut ids = vec![2];
    ids.extend(language.tokenizer.encode(text.strip_suffix('\n').unwrap(), EncodeSpecial::AsText));
    assert_eq!(ids.len(), 295_215);
    let reference: Value = serde_json::from_str(include_str!("../data/gemma3_270m.json")).unwrap();
    let mut runner = Runner::new(model, Limits { kv_scheme: KvScheme::F32, ..limits(1, 64) }).unwrap();
    let (mut sum, mut count) = (0.0, 0);
    let chunks = if testkit::exhaustive() { 2 } else { 1 };
    for (chunk, expected) in
        ids.chunks_exact(512).zip(reference["perplexity"].as_array().unwrap()).take(chunks)
    {
        let mut chunk = chunk.to_vec();
        chunk[0] = 2;
        let target = |position: usize| if position >= 256 { chunk.get(position + 1).copied() } else { None };
        let targets: Vec<Option<u32>> = (0..512).map(target).collect();
        let mut sequence = runner.start().unwrap();
        let scores = runner.score(&mut sequence, &chunk, &targets).unwrap();
        sum += scores.iter().map(|score| f64::from(*score)).sum::<f64>();
        count += targets.iter().flatten().count();
        let (found, expected) = ((sum / count as f64).exp(), expected.as_f64().unwrap());
        println!("perplexity {found:.4}, reference {expected}");
        assert!((found - expected).abs() < 0.05, "{found} and {expected}");
    }
}
