//! `indrik bench --speculate`: times of verify steps, and what speculative decoding gains with a text.

use std::{
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use engine::{Replay, replay};
use gpu::{Device, format_bytes};
use model::{DecodeRow, DraftRunner, Model, Runner, Sampling, VerifyRows};
use serde::Serialize;
use serde_json::json;
use text::{EncodeSpecial, Tokenizer};

use super::{
    draft,
    speed::{self, Plan, tokens},
};
use crate::output;

/// Maximum tokens that exact verify steps are checked with: enough for attention to be split.
const MAX_CHECKED_TOKENS: usize = 400;
/// Fewer on slow devices: as many as take this long one by one, but some.
const CHECK_TIME: Duration = Duration::from_secs(3);
const MIN_CHECKED_TOKENS: usize = 24;

/// Tokens of a text that are taken as the prompt.
const PROMPT_TOKENS: usize = 16;

/// One line of the table: steps of this many rows.
#[derive(Clone, Copy, Debug, Serialize)]
struct Line {
    rows: usize,
    /// Of the median step.
    step_ms: f64,
    /// Relative to a step of one row: as many tokens per step must be accepted for it to pay.
    relative: f64,
}

impl Line {
    /// The lines of steps of 1 and more rows.
    fn list(times: &[Duration]) -> Vec<Line> {
        let step_ms = |time: &Duration| time.as_secs_f64() * 1e3;
        let lines = times.iter().enumerate().map(|(index, time)| Line {
            rows: index + 1,
            step_ms: step_ms(time),
            relative: step_ms(time) / step_ms(&times[0]),
        });
        lines.collect()
    }
}

/// What speculative decoding gains with a text.
#[derive(Clone, Copy, Debug, Serialize)]
struct Gain {
    tokens: usize,
    tokens_per_step: f64,
    drafted_tokens: u64,
    accepted_tokens: u64,
    /// Throughput relative to single steps.
    gain: f64,
}

impl Gain {
    fn new(tokens: usize, replay: &Replay) -> Self {
        let drafts = replay.drafts.total();
        Self {
            tokens,
            tokens_per_step: (drafts.accepted + replay.steps) as f64 / replay.steps as f64,
            drafted_tokens: drafts.drafted,
            accepted_tokens: drafts.accepted,
            gain: replay.gain(),
        }
    }
}

/// Tokens of a text file.
pub fn read_text(path: &Path, tokenizer: &Tokenizer) -> anyhow::Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let tokens = tokenizer.encode(&text, EncodeSpecial::AsText);
    if tokens.len() < PROMPT_TOKENS + 2 {
        bail!("{} has {} tokens: at least {} are needed", path.display(), tokens.len(), PROMPT_TOKENS + 2);
    }
    Ok(tokens)
}

/// Measures and prints. `text` are the tokens of a text to decode; with them, a draft model can be measured.
pub fn run(
    device: &Device,
    name: &str,
    model: &Arc<Model>,
    plan: &Plan,
    text: Option<&[u32]>,
    draft: Option<&Arc<Model>>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let Some(depth) = plan.depths.first().copied() else { bail!("--speculate decodes: give -n") };
    let mut progress = output::Progress::new();
    let context =
        (depth + MAX_CHECKED_TOKENS as u32 + model::MAX_VERIFY_ROWS as u32 + 1).max(draft::CONTEXT_LENGTH);
    let mut step_times = |mut runner: Runner| -> anyhow::Result<(Runner, Vec<Duration>)> {
        let mut times = vec![];
        for rows in 1..=runner.max_verify_rows() {
            progress.show(&format!("steps of {rows} rows"));
            times.push(step_time(&mut runner, rows, depth, plan.repeats)?);
        }
        Ok((runner, times))
    };
    let (mut runner, fastest) = step_times(speed::runner(model, 1, context, plan)?)?;
    let (mut exact, mut checked_tokens) = (None, 0);
    if model.check_exact_verify().is_ok() {
        drop(runner);
        let (exact_runner, times) = step_times(speed::runner(model, 1, context, plan)?.with_exact_verify())?;
        runner = exact_runner;
        checked_tokens = check_tokens(&mut runner)?;
        exact = Some(times);
    }
    // What `--speculate auto` does.
    let times = exact.clone().unwrap_or_else(|| fastest.clone());
    let draft_gain = match (draft, text) {
        (Some(draft), Some(text)) => {
            let mut draft = DraftRunner::new(speed::runner(draft, 1, draft::CONTEXT_LENGTH, plan)?);
            Some(draft::measure(&mut runner, &mut draft, text, &times, &mut progress)?)
        }
        _ => None,
    };
    drop(progress);
    let (exact, fastest) = (exact.map(|times| Line::list(&times)), Line::list(&fastest));
    let gain = text.and_then(|text| {
        let (prompt, completion) = text.split_at(PROMPT_TOKENS);
        Some(Gain::new(completion.len(), &replay(prompt, completion, &times)?))
    });
    let info = device.info();
    if json {
        output::print_json(&json!({
            "device": info.name, "driver": info.driver, "model": name, "weight_bytes": model.weights.bytes(),
            "kv": plan.kv, "depth": depth, "verify_steps": fastest, "exact_verify_steps": exact, "text": gain,
            "draft": draft_gain,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = format_bytes(model.weights.bytes());
    let mut text = format!("{}, {}\n{name}, {bytes} of weights\n\n", info.name, info.driver);
    text += match exact {
        Some(_) => "  rows   ms per step, fastest   relative   exact   relative\n",
        None => "  rows   ms per step   relative\n",
    };
    for (index, Line { rows, step_ms, relative }) in fastest.into_iter().enumerate() {
        text += &match exact.as_ref().map(|lines| lines[index]) {
            Some(exact) => format!(
                "  {rows:>4} {step_ms:>22.2} {relative:>10.2} {:>7.2} {:>10.2}\n",
                exact.step_ms, exact.relative
            ),
            None => format!("  {rows:>4} {step_ms:>13.2} {relative:>10.2}\n"),
        };
    }
    if exact.is_some() {
        text += &format!("\n{checked_tokens} tokens of exact steps are those of single steps, bit for bit\n");
    }
    if let Some(Gain { tokens, tokens_per_step, drafted_tokens, accepted_tokens, gain }) = gain {
        text += &format!(
            "\n{tokens} tokens of text: {tokens_per_step:.2} per step, {accepted_tokens} of {drafted_tokens} drafts \
             accepted, {gain:.2} times the throughput\n"
        );
    }
    if let Some(draft) = draft_gain {
        let rates: Vec<String> = draft.acceptance.iter().map(|rate| format!("{rate:.2}")).collect();
        text += &format!(
            "\ndraft model of {}, {:.2} ms per draft\naccepted, by drafts before it: {}\n{} drafts per step, {:.2} \
             times the throughput\n",
            format_bytes(draft.weight_bytes),
            draft.step_ms,
            rates.join(" "),
            draft.drafts,
            draft.gain
        );
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Decodes tokens one by one and by verify steps of 8, 4 and 2 rows, and compares them with their log probabilities.
/// Returns how many.
fn check_tokens(runner: &mut Runner) -> anyhow::Result<usize> {
    let sampling = Sampling { temperature: 1.0, seed: 1, ..Sampling::default() };
    let (mut sequence, start) = (runner.start()?, Instant::now());
    let mut expected = vec![(1, 0)];
    let is_slow = |tokens: usize| tokens > MIN_CHECKED_TOKENS && start.elapsed() > CHECK_TIME;
    let max_tokens = MAX_CHECKED_TOKENS.min(runner.cache().limits().context_length as usize - 1);
    while expected.len() <= max_tokens && !is_slow(expected.len()) {
        let row = DecodeRow::new(&mut sequence, expected[expected.len() - 1].0, &sampling);
        expected
            .extend(runner.decode(&mut [row], 1)?[0].iter().map(|one| (one.token, one.logprob.to_bits())));
    }
    drop(sequence);
    let mut sequence = runner.start()?;
    let (mut at, mut rows) = (0, [8, 4, 2].into_iter().cycle());
    while at + 8 < expected.len() {
        let count = rows.next().unwrap_or(2).min(runner.max_verify_rows());
        let drafts: Vec<u32> = expected[at + 1..at + count].iter().map(|(token, _)| *token).collect();
        let (token, masks) = (expected[at].0, &[]);
        let batch =
            VerifyRows { sequence: &mut sequence, token, drafts: &drafts, sampling: &sampling, masks };
        let verified = runner.verify(&mut [batch])?.remove(0);
        for (index, one) in verified.iter().enumerate() {
            let (token, logprob) = expected[at + 1 + index];
            if (one.token, one.logprob.to_bits()) != (token, logprob) {
                bail!(
                    "row {index} of {count} after {} tokens has token {} with log probability {}, but by itself token {token} \
                     with {}: please report this, and use --speculate off",
                    at,
                    one.token,
                    one.logprob,
                    f32::from_bits(logprob)
                );
            }
        }
        at += verified.len();
    }
    Ok(at)
}

/// The median time of a verify step of this many rows after `depth` tokens.
fn step_time(runner: &mut Runner, rows: usize, depth: u32, repeats: usize) -> anyhow::Result<Duration> {
    let greedy = Sampling::default();
    let drafts = tokens(rows as u32, runner.model().config.vocab);
    let mut times = vec![];
    // The first two runs are warm-ups, as everywhere.
    for number in 0..=repeats + 1 {
        let mut sequence = runner.start_at(depth)?;
        let (token, sampling) = (drafts[0], &greedy);
        let batch = VerifyRows { sequence: &mut sequence, token, drafts: &drafts[1..], sampling, masks: &[] };
        let start = Instant::now();
        runner.verify(&mut [batch])?;
        if number > 1 {
            times.push(start.elapsed());
        }
    }
    times.sort();
    Ok(times[times.len() / 2])
}
