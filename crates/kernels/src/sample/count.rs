//! The tokens of prompts, marked in the counts of their sequences, and tokens taken back out of them.

use gpu::{Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    shaders::sample_count::{Constants, Push, TIERS},
    variant::Variant,
};

const THREADS: u32 = 64;

/// What becomes of the counts of some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountMode {
    /// They are marked as a prompt's ([`IN_PROMPT`](super::IN_PROMPT)), unless they occurred already.
    Prompt,
    /// They were generated once less, each of them: as if they had not been sampled.
    Revert,
}

/// The kernel for one vocabulary.
pub struct CountTokens {
    vocab: usize,
    pipeline: Pipeline,
}

impl CountTokens {
    /// Compiles it.
    pub fn new(device: &Device, mode: CountMode, vocab: usize) -> Result<Self> {
        Ok(Self { vocab, pipeline: variant(device.caps(), mode).pipeline(device)? })
    }

    /// Changes `counts` (u32, `[slot][vocab]`) for the tokens of up to `rows` rows, of which `active` (one u32) says how many are
    /// in use. Tokens past the vocabulary are left out.
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
            let reason = format!("a buffer is too short for {rows} rows or {} tokens", self.vocab);
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
        CountMode::Prompt => ("tokens of a prompt", false),
        CountMode::Revert => ("tokens taken back", true),
    };
    Variant::new(label.into(), TIERS, Tier::T0, &Constants { threads, revert }, Subgroup::Any)
}

pub(super) fn variants(caps: &Caps) -> Vec<Variant> {
    [CountMode::Prompt, CountMode::Revert].map(|mode| variant(caps, mode)).into()
}
