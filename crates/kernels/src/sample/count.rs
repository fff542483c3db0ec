//! Updates of the token counts that penalties use: marking prompt tokens, and reverting generated ones.

use gpu::{Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    shaders::sample_count::{Constants, Push, TIERS},
    variant::Variant,
};

const THREADS: u32 = 64;

/// How the counts of tokens change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountMode {
    /// Marks them as prompt tokens ([`IN_PROMPT`](super::IN_PROMPT)), unless they have already occurred.
    Prompt,
    /// Decrements the number of times each was generated, as if it had not been sampled.
    Revert,
}

/// The kernel for one vocabulary.
pub struct CountTokens {
    vocab: usize,
    pipeline: Pipeline,
}

impl CountTokens {
    /// Compiles the kernel.
    pub fn new(device: &Device, mode: CountMode, vocab: usize) -> Result<Self> {
        Ok(Self { vocab, pipeline: variant(device.caps(), mode).pipeline(device)? })
    }

    /// Updates `counts` (u32, `[slot][vocab]`) for the tokens of up to `rows` rows, of which the first
    /// `active` (one u32) are active. Tokens past the vocabulary are ignored.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        [active, tokens, slots, counts]: [&View; 4],
    ) -> Result<()> {
        let too_short = |view: &View, words: usize| view.len() < words as u64 * 4;
        if too_short(active, 1)
            || too_short(tokens, rows)
            || too_short(slots, rows)
            || too_short(counts, self.vocab)
        {
            let reason = format!(
                "active, tokens or slots is too short for {rows} rows, or counts for {} tokens",
                self.vocab
            );
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        let push = Push {
            active_rows: active.clone().into(),
            tokens: tokens.clone().into(),
            slots: slots.clone().into(),
            counts: counts.clone().into(),
            rows: rows as u32,
            vocab: self.vocab as u32,
        };
        let groups = (rows as u32).div_ceil(self.pipeline.threads());
        recorder.dispatch(name, &self.pipeline, [groups, 1, 1], &push)
    }
}

fn variant(caps: &Caps, mode: CountMode) -> Variant {
    let threads = THREADS.min(caps.max_threads);
    let (label, revert) = match mode {
        CountMode::Prompt => ("mark prompt tokens", false),
        CountMode::Revert => ("revert generated tokens", true),
    };
    Variant::new(label.into(), TIERS, Tier::T0, &Constants { threads, revert }, Subgroup::Any)
}

pub(super) fn variants(caps: &Caps) -> Vec<Variant> {
    [CountMode::Prompt, CountMode::Revert].map(|mode| variant(caps, mode)).into()
}
