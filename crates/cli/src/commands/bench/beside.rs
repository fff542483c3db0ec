//! How long those who read answers wait for the next token while another's prompt is read: by mixed steps, and by steps of its own.

use std::{process::ExitCode, sync::Arc, time::Instant};

use anyhow::bail;
use gpu::{Device, format_bytes};
use model::{DecodeRow, Model, PrefillChunk, Runner, Sampling};
use serde::Serialize;
use serde_json::json;

use super::speed::{Plan, runner, tokens};
use crate::output;

/// How the prompt is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    /// Not at all: sequences only write.
    Alone,
    /// Each chunk in a step of its own, between two steps of writing.
    Between,
    /// Each chunk in the same step as the rows that write.
    Mixed,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
struct Line {
    way: Way,
    batch: u32,
    depth: u32,
    prompt: u32,
    chunk: u32,
    /// From one token of a sequence to its next.
    median_ms: f64,
    longest_ms: f64,
    /// From the first chunk to the token after the prompt: the median run.
    prompt_seconds: Option<f64>,
    /// Of the sequences that write.
    tokens_per_s: f64,
}

/// Measures and prints, for every number of sequences, depth and prompt.
pub fn run(
    device: &Device,
    name: &str,
    model: &Arc<Model>,
    plan: &Plan,
    chunk: u32,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if plan.prompts.is_empty() || plan.depths.is_empty() {
        bail!("--beside reads a prompt (-p) while sequences write (-n): give both");
    }
    let mut progress = output::Progress::new();
    let mut lines = Vec::new();
    for (prompt, depth) in plan.prompts.iter().flat_map(|p| plan.depths.iter().map(move |d| (*p, *d))) {
        for batch in &plan.batches {
            let steps = prompt.div_ceil(chunk.saturating_sub(*batch).max(1));
            let context = prompt.max(depth + steps + 1);
            let mut runner = runner(model, batch + 1, context, plan)?;
            for way in [Way::Alone, Way::Between, Way::Mixed] {
                progress.say(&format!("{prompt} tokens beside {batch} sequences"));
                let line = Line {
                    way,
                    batch: *batch,
                    depth,
                    prompt,
                    chunk,
                    median_ms: 0.0,
                    longest_ms: 0.0,
                    prompt_seconds: None,
                    tokens_per_s: 0.0,
                };
                lines.push(line.timed(&mut runner, plan.repeats)?);
            }
        }
    }
    drop(progress);
    let info = device.info();
    if json {
        output::print_json(&json!({
            "device": info.name, "driver": info.driver, "model": name, "weight_bytes": model.weights.bytes(),
            "kv": plan.kv, "beside": lines,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&format!(
        "{}, {}\n{name}, {} of weights\n\n{}",
        info.name,
        info.driver,
        format_bytes(model.weights.bytes()),
        table(&lines)
    ))?;
    Ok(ExitCode::SUCCESS)
}

impl Line {
    fn timed(mut self, runner: &mut Runner, repeats: usize) -> anyhow::Result<Self> {
        let (mut between, mut prompts) = (Vec::new(), Vec::new());
        // The first two runs do not count: they record programs, and again what the first has shown to be cut too small.
        for number in 0..=repeats + 1 {
            let waits = self.once(runner)?;
            if number > 1 {
                prompts.push(waits.iter().sum());
                between.extend(waits);
            }
        }
        self.tokens_per_s = f64::from(self.batch) * between.len() as f64 / between.iter().sum::<f64>();
        let median = |list: &mut Vec<f64>| {
            list.sort_by(f64::total_cmp);
            list[list.len() / 2]
        };
        self.median_ms = median(&mut between) * 1e3;
        self.longest_ms = between[between.len() - 1] * 1e3;
        self.prompt_seconds = (self.way != Way::Alone).then(|| median(&mut prompts));
        Ok(self)
    }

    /// Reads the prompt once; seconds from token to token.
    fn once(&self, runner: &mut Runner) -> anyhow::Result<Vec<f64>> {
        let greedy = Sampling::default();
        let vocab = runner.model().config.vocab;
        let mut sequences =
            (0..self.batch).map(|_| runner.start_at(self.depth)).collect::<Result<Vec<_>, _>>()?;
        let mut reading = runner.start()?;
        let mut last = tokens(self.batch, vocab);
        let ids = tokens(self.prompt, vocab);
        let mut waits = Vec::new();
        // A step has as many rows either way: what does not fill a tile of a product takes as long as what does.
        let size = match self.way {
            Way::Mixed => self.chunk.saturating_sub(self.batch).max(1),
            Way::Alone | Way::Between => self.chunk,
        } as usize;
        for (number, part) in ids.chunks(size).enumerate() {
            let rows = sequences.iter_mut().zip(&last);
            let mut next: Vec<DecodeRow<'_>> =
                rows.map(|(sequence, token)| DecodeRow::new(sequence, *token, &greedy)).collect();
            let ends = (number + 1) * size >= ids.len();
            let chunk = PrefillChunk::new(&mut reading, part, &greedy, ends);
            let start = Instant::now();
            let decoded = match self.way {
                Way::Mixed => runner.mixed(&mut next, &mut [chunk])?.decoded,
                Way::Between => {
                    runner.mixed(&mut [], &mut [chunk])?;
                    runner.decode(&mut next, 1)?.remove(0)
                }
                Way::Alone => runner.decode(&mut next, 1)?.remove(0),
            };
            waits.push(start.elapsed().as_secs_f64());
            last = decoded.iter().map(|sampled| sampled.token).collect();
        }
        Ok(waits)
    }
}

fn table(lines: &[Line]) -> String {
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                match line.way {
                    Way::Alone => "no prompt".into(),
                    Way::Between => format!("read {}, steps between", line.prompt),
                    Way::Mixed => format!("read {}, mixed steps", line.prompt),
                },
                line.batch.to_string(),
                line.depth.to_string(),
                line.chunk.to_string(),
                format!("{:.2}", line.median_ms),
                format!("{:.2}", line.longest_ms),
                format!("{:.1}", line.tokens_per_s),
                line.prompt_seconds.map_or(String::new(), |seconds| format!("{seconds:.3}")),
            ]
        })
        .collect();
    output::table(
        &["run", "batch", "depth", "chunk", "ms between tokens", "longest", "tok/s", "prompt s"],
        &rows,
    )
}
