//! The real Gemma 3 270M against llama.cpp with the same weights in f32.
//!
//! Runs where INDRIK_TEST_GGUF names the file, as `make test` sees to. INDRIK_TEST_DATA adds what is not ours to keep here: a
//! long prompt, and WikiText-2 for two chunks of perplexity.

mod common;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use common::load;
use model::{KvScheme, Limits, Model, Next, Runner, Sampling, language::Language};
use serde_json::Value;
use text::Special;
use weights::Checkpoint;

/// Below this gap between the best two logits another rounding may rightly choose the other token.
const NEAR_TIE: f64 = 0.1;

fn real_model() -> Option<PathBuf> {
    let path = std::env::var_os("INDRIK_TEST_GGUF").map(PathBuf::from);
    if path.is_none() {
        testkit::missing("Gemma 3 270M (INDRIK_TEST_GGUF)");
    }
    path
}

/// Data that is not ours to keep in the project.
fn data(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("INDRIK_TEST_DATA").map(|folder| Path::new(&folder).join(name));
    let path = path.filter(|path| path.is_file());
    if path.is_none() {
        println!("not tested with {name}: INDRIK_TEST_DATA does not name a folder that has it");
    }
    path
}

struct Case {
    prompt: String,
    ids: Vec<u32>,
    tokens: Vec<u32>,
    gap: Vec<f64>,
    top20: Vec<(u32, f32)>,
    logsumexp: f64,
}

fn cases(text: &str, tokens: &str, ids: &str, gap: &str) -> Vec<Case> {
    let parsed: Value = serde_json::from_str(text).unwrap();
    let numbers =
        |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let case = |case: &Value| Case {
        prompt: case["prompt"].as_str().unwrap().to_string(),
        ids: numbers(&case[ids]),
        tokens: numbers(&case[tokens]),
        gap: case[gap].as_array().unwrap().iter().map(|gap| gap.as_f64().unwrap()).collect(),
        top20: case["top20"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap() as f32))
            .collect(),
        logsumexp: case["logsumexp"].as_f64().unwrap(),
    };
    parsed["cases"].as_array().unwrap().iter().map(case).collect()
}

/// Tokens are the reference's up to a near-tie: where they part, either may be right.
fn assert_same(what: &str, found: &[u32], case: &Case) {
    let parted = found.iter().zip(&case.tokens).position(|(found, expected)| found != expected);
    match parted {
        None => assert_eq!(found.len(), case.tokens.len()),
        Some(at) => {
            let gap = case.gap[at];
            assert!(gap < NEAR_TIE, "{what}, {:?}: step {at} parts at a gap of {gap}", case.start());
            println!("{what}, {:?}: parts at step {at}, a near-tie of {gap}", case.start());
        }
    }
}

fn limits(sequences: u32, chunk: u32) -> Limits {
    Limits {
        sequences,
        context: 1024,
        chunk,
        page: model::PAGE,
        kv: KvScheme::F16,
        pages: None,
        prefix: true,
    }
}

fn greedy(model: &Arc<Model>, chunk: u32, ids: &[u32], count: usize) -> Vec<u32> {
    let sampling = Sampling::default();
    let mut runner = Runner::new(model.clone(), limits(1, chunk)).unwrap();
    let mut sequence = runner.start().unwrap();
    let mut token = runner.prompt(&mut sequence, ids, &sampling, |_| true).unwrap().token;
    let mut tokens = vec![token];
    while tokens.len() < count {
        let next = Next { sequence: &mut sequence, token, sampling: &sampling };
        token = runner.decode(&mut [next]).unwrap()[0].token;
        tokens.push(token);
    }
    tokens
}

#[test]
fn tokens_and_logits_are_those_of_the_reference() {
    let Some(path) = real_model() else { return };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let model = load(&device, &path);
    let language = Language::of(&Checkpoint::open(&path).unwrap()).unwrap();
    assert_eq!(language.ends, [1, 106], "the end of a turn comes from the vocabulary");
    let mut all = cases(include_str!("data/gemma3_270m.json"), "tokens", "ids", "gap");
    if let Some(path) = data("gemma270m_reference.json") {
        let more = cases(&std::fs::read_to_string(path).unwrap(), "out", "input", "step_gap");
        all.extend(more.into_iter().filter(|case| case.ids.len() > 100));
    }
    for case in &all {
        assert_eq!(language.tokenizer.encode_prompt(&case.prompt), case.ids);
        assert_same("alone", &greedy(&model, 64, &case.ids, case.tokens.len()), case);

        let mut runner = Runner::new(model.clone(), limits(1, 64)).unwrap();
        let mut sequence = runner.start().unwrap();
        let mut last = Vec::new();
        let keep = |row: &[f32]| {
            last = row.to_vec();
            Ok(())
        };
        runner.logits(&mut sequence, &case.ids, keep).unwrap();
        let differences = case.top20.iter().map(|(token, logit)| (last[*token as usize] - logit).abs());
        let worst = differences.fold(0.0_f32, f32::max);
        assert!(worst < 0.3, "{:?}: a logit differs by {worst}", case.prompt);
        let logsumexp = last.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
        assert!((logsumexp - case.logsumexp).abs() < 0.3, "{logsumexp} and {}", case.logsumexp);
        println!("{:?}: top-20 logits within {worst:.3}", case.start());
    }
}

#[test]
fn one_by_one_in_any_chunks_and_in_a_batch_the_tokens_are_the_same() {
    let Some(path) = real_model() else { return };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let model = load(&device, &path);
    let all = cases(include_str!("data/gemma3_270m.json"), "tokens", "ids", "gap");
    let longest = all.iter().max_by_key(|case| case.ids.len()).unwrap();
    for chunk in [1, 5] {
        assert_same(
            &format!("chunks of {chunk}"),
            &greedy(&model, chunk, &longest.ids, 24),
            &Case::first(longest, 24),
        );
    }
    // Three sequences at once.
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
        let mut next: Vec<Next<'_>> =
            rows.map(|(sequence, token)| Next { sequence, token, sampling: &sampling }).collect();
        for (tokens, sampled) in tokens.iter_mut().zip(runner.decode(&mut next).unwrap()) {
            tokens.push(sampled.token);
        }
    }
    for (tokens, case) in tokens.iter().zip(&all) {
        assert_same("in a batch", tokens, &Case::first(case, 24));
    }
}

impl Case {
    /// Enough of the prompt to know it by.
    fn start(&self) -> String {
        self.prompt.chars().take(40).collect()
    }

    /// The same with fewer tokens.
    fn first(case: &Case, count: usize) -> Case {
        Case {
            prompt: case.prompt.clone(),
            ids: case.ids.clone(),
            tokens: case.tokens[..count].to_vec(),
            gap: case.gap[..count].to_vec(),
            top20: case.top20.clone(),
            logsumexp: case.logsumexp,
        }
    }
}

#[test]
fn two_chunks_of_perplexity() {
    let (Some(path), Some(text)) = (real_model(), data("wikitext2-test.txt")) else { return };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let model = load(&device, &path);
    let language = Language::of(&Checkpoint::open(&path).unwrap()).unwrap();
    let text = std::fs::read_to_string(text).unwrap();
    let mut ids = vec![2];
    ids.extend(language.tokenizer.encode(text.strip_suffix('\n').unwrap(), Special::AsText));
    assert_eq!(ids.len(), 295_215);
    let reference: Value = serde_json::from_str(include_str!("data/gemma3_270m.json")).unwrap();
    let mut runner = Runner::new(model, Limits { kv: KvScheme::F32, ..limits(1, 64) }).unwrap();
    let (mut sum, mut count) = (0.0, 0);
    for (chunk, expected) in ids.chunks_exact(512).zip(reference["perplexity"].as_array().unwrap()) {
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
