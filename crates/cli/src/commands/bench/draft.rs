//! `indrik bench --speculate FILE --draft MODEL`: how often a draft model is right, and what it gains.

use std::time::Duration;

use anyhow::ensure;
use engine::Sampling;
use model::{DecodeRow, DraftInput, DraftRunner, DraftSequence, MAX_VERIFY_ROWS, Runner};
use serde::Serialize;

use crate::output::Progress;

/// Prompts that are taken from the text, evenly spaced.
const PROMPTS: usize = 8;

/// Maximum tokens of a prompt.
const PROMPT_TOKENS: usize = 64;

/// Tokens that the target model generates after each.
pub const COMPLETION_TOKENS: usize = 48;

/// Context that a prompt and its completion take.
pub const CONTEXT_LENGTH: u32 = (PROMPT_TOKENS + COMPLETION_TOKENS + MAX_VERIFY_ROWS) as u32;

/// A draft model with its target.
#[derive(Clone, Debug, Serialize)]
pub struct DraftGain {
    /// Of the draft model.
    pub weight_bytes: u64,
    /// Of a step of the draft model.
    pub step_ms: f64,
    /// The share of drafts that are right, by the number of drafts before them, all of which were.
    pub acceptance: Vec<f64>,
    /// The number of drafts per step with the highest throughput.
    pub drafts: usize,
    /// That throughput, relative to single steps.
    pub gain: f64,
}

/// Lets the target continue parts of a text, greedy, and the draft model draft the same. `step_times` are those of the
/// target's verify steps, by rows less one.
pub fn measure(
    target: &mut Runner,
    draft: &mut DraftRunner,
    text: &[u32],
    step_times: &[Duration],
    progress: &mut Progress,
) -> anyhow::Result<DraftGain> {
    let sampling = Sampling::default();
    let max_drafts = step_times.len() - 1;
    let (mut accepted, mut verified) = (vec![0_u32; max_drafts], vec![0_u32; max_drafts]);
    let parts = PROMPTS.min(text.len() / PROMPT_TOKENS).max(1);
    for (number, part) in text.chunks(text.len().div_ceil(parts)).enumerate() {
        progress.show(&format!("drafts for text {} of {parts}", number + 1));
        let prompt = &part[..part.len().min(PROMPT_TOKENS)];
        let completion = complete(target, prompt, &sampling)?;
        let mut sequence = DraftSequence::default();
        let (mut done, mut prefill_steps) = (1, 0);
        while done + max_drafts < completion.len() {
            let tokens = [prompt, &completion[..done]].concat();
            let row =
                DraftInput { sequence: &mut sequence, tokens: &tokens, sampling: &sampling, max_drafts };
            let drafts = draft.draft(&mut [row])?.remove(0);
            if drafts.is_empty() {
                // Its prompt takes more than one step to prefill.
                prefill_steps += 1;
                ensure!(prefill_steps <= prompt.len(), "the draft model cannot continue this text");
                continue;
            }
            let right =
                drafts.iter().zip(&completion[done..]).take_while(|(draft, token)| draft == token).count();
            accepted[..right].iter_mut().for_each(|count| *count += 1);
            verified[..(right + 1).min(max_drafts)].iter_mut().for_each(|count| *count += 1);
            done += right + 1;
        }
    }
    let rate = |(accepted, verified): (&u32, &u32)| f64::from(*accepted) / f64::from((*verified).max(1));
    let acceptance: Vec<f64> = accepted.iter().zip(&verified).map(rate).collect();
    let step = draft.step_time(1).unwrap_or_default();
    let (drafts, gain) = best_gain(&acceptance, step, step_times);
    let weight_bytes = draft.runner().model().weights.bytes();
    Ok(DraftGain { weight_bytes, step_ms: step.as_secs_f64() * 1e3, acceptance, drafts, gain })
}

/// The greedy completion of a prompt.
fn complete(runner: &mut Runner, prompt: &[u32], sampling: &Sampling) -> anyhow::Result<Vec<u32>> {
    let mut sequence = runner.start()?;
    let mut tokens = vec![runner.prompt(&mut sequence, prompt, sampling, |_| true)?.token];
    while tokens.len() < COMPLETION_TOKENS {
        let row = DecodeRow::new(&mut sequence, tokens[tokens.len() - 1], sampling);
        let steps = runner.decode(&mut [row], COMPLETION_TOKENS - tokens.len())?;
        tokens.extend(steps.iter().map(|step| step[0].token));
    }
    Ok(tokens)
}

/// The number of drafts with the highest expected throughput, and that throughput relative to single steps.
fn best_gain(acceptance: &[f64], draft_step: Duration, step_times: &[Duration]) -> (usize, f64) {
    let single = step_times[0].as_secs_f64();
    let (mut survival, mut tokens, mut best) = (1.0, 1.0, (0, 1.0));
    for (index, rate) in acceptance.iter().enumerate() {
        survival *= rate;
        tokens += survival;
        let drafts = index + 1;
        let seconds = step_times[drafts].as_secs_f64() + drafts as f64 * draft_step.as_secs_f64();
        let gain = tokens * single / seconds;
        if gain > best.1 {
            best = (drafts, gain);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_number_of_drafts_depends_on_what_they_cost() {
        let milliseconds = Duration::from_millis;
        let times = [milliseconds(100), milliseconds(102), milliseconds(104), milliseconds(106)];
        let (drafts, gain) = best_gain(&[0.8, 0.8, 0.8], milliseconds(2), &times);
        assert_eq!(drafts, 3);
        assert!((gain - 2.952 * 100.0 / 112.0).abs() < 1e-9, "{gain}");
        assert_eq!(best_gain(&[0.8, 0.8, 0.8], milliseconds(90), &times), (0, 1.0));
        assert_eq!(best_gain(&[0.0, 1.0, 1.0], milliseconds(1), &times), (0, 1.0));
    }
}
