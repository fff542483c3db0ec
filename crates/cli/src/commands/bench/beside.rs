//! `indrik bench --beside`: inter-token latency of decoding sequences while another prompt is prefilled, in
//! mixed batches and in separate steps.

use std::{process::ExitCode, sync::Arc, time::Instant};

use anyhow::bail;
use gpu::{Device, format_bytes};
use model::{DecodeRow, Model, PrefillChunk, Runner, Sampling};
use serde::Serialize;
use serde_json::json;

use super::speed::{Plan, runner, tokens};
use crate::output;

/// How the prompt is prefilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// Not at all: decode steps only.
    DecodeOnly,
    /// Each chunk in a step of its own, between two decode steps.
    Separate,
    /// Each chunk in the same batch as the decode rows.
    Mixed,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
struct Line {
    mode: Mode,
    batch: u32,
    depth: u32,
    prompt: u32,
    chunk: u32,
    /// Inter-token latency.
    median_ms: f64,
    max_ms: f64,
    /// Time to first token of the prompt, in the median run.
    prompt_seconds: Option<f64>,
    /// Throughput of the decoding sequences.
    tokens_per_s: f64,
}

/// Measures and prints every combination of batch size, depth and prompt.
pub fn run(
    device: &Device,
    name: &str,
    model: &Arc<Model>,
    plan: &Plan,
    chunk: u32,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if plan.prompts.is_empty() || plan.depths.is_empty() {
        bail!("--beside prefills a prompt (-p) while sequences decode (-n): give both");
    }
    let mut progress = output::Progress::new();
    let mut lines = Vec::new();
    for (prompt, depth) in plan.prompts.iter().flat_map(|p| plan.depths.iter().map(move |d| (*p, *d))) {
        for batch in &plan.batches {
            let steps = prompt.div_ceil(chunk.saturating_sub(*batch).max(1));
            let context = prompt.max(depth + steps + 1);
            let mut runner = runner(model, batch + 1, context, plan)?;
            for mode in [Mode::DecodeOnly, Mode::Separate, Mode::Mixed] {
                progress.show(&format!("prefill of {prompt} tokens beside {batch} sequences"));
                let line = Line {
                    mode,
                    batch: *batch,
                    depth,
                    prompt,
                    chunk,
                    median_ms: 0.0,
                    max_ms: 0.0,
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
        let (mut all, mut prompts) = (Vec::new(), Vec::new());
        // The first two runs are warm-ups: the first records programs; the second records those again whose
        // segments turned out to be too short.
        for number in 0..=repeats + 1 {
            let latencies = self.run_once(runner)?;
            if number > 1 {
                prompts.push(latencies.iter().sum());
                all.extend(latencies);
            }
        }
        self.tokens_per_s = f64::from(self.batch) * all.len() as f64 / all.iter().sum::<f64>();
        let median = |list: &mut Vec<f64>| {
            list.sort_by(f64::total_cmp);
            list[list.len() / 2]
        };
        self.median_ms = median(&mut all) * 1e3;
        self.max_ms = all[all.len() - 1] * 1e3;
        self.prompt_seconds = (self.mode != Mode::DecodeOnly).then(|| median(&mut prompts));
        Ok(self)
    }

    /// Prefills the prompt once; returns the seconds from token to token.
    fn run_once(&self, runner: &mut Runner) -> anyhow::Result<Vec<f64>> {
        let greedy = Sampling::default();
        let vocab = runner.model().config.vocab;
        let mut sequences =
            (0..self.batch).map(|_| runner.start_at(self.depth)).collect::<Result<Vec<_>, _>>()?;
        let mut prefilling = runner.start()?;
        let mut last_tokens = tokens(self.batch, vocab);
        let ids = tokens(self.prompt, vocab);
        let mut latencies = Vec::new();
        // Steps have the same number of rows in both modes: a partly filled tile of a matrix product takes as
        // long as a full one.
        let size = match self.mode {
            Mode::Mixed => self.chunk.saturating_sub(self.batch).max(1),
            Mode::DecodeOnly | Mode::Separate => self.chunk,
        } as usize;
        for (number, tokens) in ids.chunks(size).enumerate() {
            let rows = sequences.iter_mut().zip(&last_tokens);
            let mut next: Vec<DecodeRow<'_>> =
                rows.map(|(sequence, token)| DecodeRow::new(sequence, *token, &greedy)).collect();
            let last = (number + 1) * size >= ids.len();
            let chunk = PrefillChunk::new(&mut prefilling, tokens, &greedy, last);
            let start = Instant::now();
            let decoded = match self.mode {
                Mode::Mixed => runner.mixed(&mut next, &mut [chunk])?.decoded,
                Mode::Separate => {
                    runner.mixed(&mut [], &mut [chunk])?;
                    runner.decode(&mut next, 1)?.remove(0)
                }
                Mode::DecodeOnly => runner.decode(&mut next, 1)?.remove(0),
            };
            latencies.push(start.elapsed().as_secs_f64());
            last_tokens = decoded.iter().map(|sampled| sampled.token).collect();
        }
        Ok(latencies)
    }
}

fn table(lines: &[Line]) -> String {
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                match line.mode {
                    Mode::DecodeOnly => "decode only".into(),
                    Mode::Separate => format!("prefill {}, separate steps", line.prompt),
                    Mode::Mixed => format!("prefill {}, mixed batches", line.prompt),
                },
                line.batch.to_string(),
                line.depth.to_string(),
                line.chunk.to_string(),
                format!("{:.2}", line.median_ms),
                format!("{:.2}", line.max_ms),
                format!("{:.1}", line.tokens_per_s),
                line.prompt_seconds.map_or(String::new(), |seconds| format!("{seconds:.3}")),
            ]
        })
        .collect();
    output::table(
        &["run", "batch", "depth", "chunk", "ITL ms (median)", "ITL ms (max)", "tok/s", "TTFT s"],
        &rows,
    )
}
