//! References of real models: greedy completions and logits of llama.cpp with the same weights in f32.
#![allow(dead_code, reason = "not every test uses everything")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use model::{DecodeRow, KvScheme, Limits, Model, Runner, Sampling};
use serde_json::Value;

/// Gap between the best two logits below which different rounding may choose the other token.
pub const NEAR_TIE: f64 = 0.1;

/// A model's file, named by an environment variable.
pub fn file(variable: &str, what: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        testkit::missing(&format!("{what} ({variable})"));
    }
    path
}

/// The same for a file that is too large to be required.
pub fn large_file(variable: &str, what: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        println!("not tested with {what}: {variable} does not name its file; `make models` fetches it");
    }
    path
}

/// Data that the repository cannot include.
pub fn data(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("INDRIK_TEST_DATA").map(|folder| Path::new(&folder).join(name));
    let path = path.filter(|path| path.is_file());
    if path.is_none() {
        println!("not tested with {name}: INDRIK_TEST_DATA does not name a folder that has it");
    }
    path
}

pub struct Case {
    pub prompt: String,
    pub ids: Vec<u32>,
    pub tokens: Vec<u32>,
    pub gap: Vec<f64>,
    pub top20: Vec<(u32, f32)>,
    pub logsumexp: f64,
}

/// The cases of a reference file. Its keys have two spellings.
pub fn cases(text: &str) -> Vec<Case> {
    let parsed: Value = serde_json::from_str(text).unwrap();
    let numbers = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let case = |case: &Value| {
        let either = |keys: [&str; 2]| keys.into_iter().find_map(|key| case.get(key)).unwrap();
        Case {
            prompt: case["prompt"].as_str().unwrap().to_string(),
            ids: numbers(either(["ids", "input"])),
            tokens: numbers(either(["tokens", "out"])),
            gap: either(["gap", "step_gap"])
                .as_array()
                .unwrap()
                .iter()
                .map(|gap| gap.as_f64().unwrap())
                .collect(),
            top20: case["top20"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pair| (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap() as f32))
                .collect(),
            logsumexp: case["logsumexp"].as_f64().unwrap(),
        }
    };
    parsed["cases"].as_array().unwrap().iter().map(case).collect()
}

impl Case {
    /// The end of the prompt, which identifies it: chat prompts all begin alike.
    pub fn end(&self) -> String {
        let skipped = self.prompt.chars().count().saturating_sub(72);
        self.prompt.chars().skip(skipped).collect()
    }

    /// The same with fewer tokens.
    pub fn first(&self, count: usize) -> Case {
        Case {
            prompt: self.prompt.clone(),
            ids: self.ids.clone(),
            tokens: self.tokens[..count].to_vec(),
            gap: self.gap[..count].to_vec(),
            top20: self.top20.clone(),
            logsumexp: self.logsumexp,
        }
    }

    /// Asserts that tokens match the reference up to a near-tie, after which either may be right.
    pub fn assert_same(&self, what: &str, found: &[u32]) {
        let diverged = found.iter().zip(&self.tokens).position(|(found, expected)| found != expected);
        match diverged {
            None => assert_eq!(found.len(), self.tokens.len()),
            Some(at) => {
                let gap = self.gap[at];
                assert!(gap < NEAR_TIE, "{what}, {:?}: step {at} diverges at a gap of {gap}", self.end());
                println!("{what}, {:?}: diverges at step {at}, a near-tie of {gap}", self.end());
            }
        }
    }

    /// Asserts that the logits at the prompt's end match the reference.
    pub fn assert_logits(&self, last: &[f32]) {
        let differences = self.top20.iter().map(|(token, logit)| (last[*token as usize] - logit).abs());
        let worst = differences.fold(0.0, f32::max);
        assert!(worst < 0.3, "{:?}: a logit differs by {worst}", self.end());
        let logsumexp = last.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
        assert!((logsumexp - self.logsumexp).abs() < 0.3, "{logsumexp} and {}", self.logsumexp);
        println!("{:?}: top-20 logits within {worst:.3}", self.end());
    }

    /// Asserts that each of the reference's tokens has the largest logit after those before it, except for
    /// near-ties. Unlike in free generation, a near-tie does not end the comparison. The logits at the
    /// prompt's end must match too.
    pub fn assert_steps(&self, model: &Arc<Model>) {
        let mut runner = Runner::new(model.clone(), limits(1, 64)).unwrap();
        let mut sequence = runner.start().unwrap();
        let prompt = &self.ids[..self.ids.len() - 1];
        runner.prompt(&mut sequence, prompt, &Sampling::default(), |_| true).unwrap();
        let rest = [&self.ids[prompt.len()..], &self.tokens[..self.tokens.len() - 1]].concat();
        let mut step = 0;
        let compare = |row: &[f32]| {
            if step == 0 {
                self.assert_logits(row);
            }
            let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
            let (expected, gap) = (self.tokens[step] as usize, self.gap[step]);
            let lead = row[best] - row[expected];
            let same = best == expected || gap < NEAR_TIE;
            assert!(same, "{:?}, step {step}: {best} leads {expected} by {lead}, gap {gap}", self.end());
            step += 1;
            Ok(())
        };
        runner.logits(&mut sequence, &rest, compare).unwrap();
        assert_eq!(step, self.tokens.len());
    }
}

pub fn limits(sequences: u32, chunk: u32) -> Limits {
    Limits {
        max_sequences: sequences,
        context_length: 1024,
        prefill_chunk: chunk,
        page_size: model::DEFAULT_PAGE_SIZE,
        kv_scheme: KvScheme::F16,
        max_pages: None,
        prefix_cache: true,
        image_tokens: 0,
    }
}

/// The model's greedy completion of `ids`.
pub fn greedy(model: &Arc<Model>, chunk: u32, ids: &[u32], count: usize) -> Vec<u32> {
    let sampling = Sampling::default();
    let mut runner = Runner::new(model.clone(), limits(1, chunk)).unwrap();
    let mut sequence = runner.start().unwrap();
    let mut token = runner.prompt(&mut sequence, ids, &sampling, |_| true).unwrap().token;
    let mut tokens = vec![token];
    while tokens.len() < count {
        let next = DecodeRow::new(&mut sequence, token, &sampling);
        token = runner.decode(&mut [next], 1).unwrap()[0][0].token;
        tokens.push(token);
    }
    tokens
}
