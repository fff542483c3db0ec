//! Negative log-likelihood of a given token per row, so that computing a perplexity needs no logits on the
//! host.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Device, Error, Pipeline, Recorder, Result, View};

use crate::{
    Kernel,
    shaders::score::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "score",
    about: "negative log-likelihood of given tokens",
    variants: policy::variants,
    cases: cases::cases,
};

/// The target of a row without one: its score is 0.
pub const NO_TARGET: u32 = u32::MAX;

/// The kernel for one vocabulary.
pub struct Score {
    vocab: usize,
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands {
    /// One u32: the number of active rows. The others are left unchanged.
    pub active: View,
    /// f32, `[row][vocab]`.
    pub logits: View,
    /// u32 per row: the token to score, or [`NO_TARGET`].
    pub targets: View,
    /// f32 per row, written: log Σ exp(logits) − the target's logit. NaN where a logit is NaN or plus
    /// infinity, or the target is past the vocabulary.
    pub nll: View,
}

impl Score {
    /// Selects the variant for this device and compiles it.
    pub fn new(device: &Device, vocab: usize) -> Result<Self> {
        Self::with_plan(device, vocab, policy::plan(device.caps()))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, vocab: usize, plan: Plan) -> Result<Self> {
        if vocab == 0 || vocab >= 1 << 31 {
            let reason =
                format!("a vocabulary of {vocab} tokens is not supported: the kernel takes 1 to 2³¹ − 1");
            return Err(Error::InvalidUse { what: "score".into(), reason });
        }
        Ok(Self { vocab, pipeline: variant(plan, vocab.is_multiple_of(4)).pipeline(device)? })
    }

    /// Records the kernel for up to `rows` rows.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        operands: &Operands,
    ) -> Result<()> {
        let Operands { active, logits, targets, nll } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let too_short = |view: &View, words: usize| view.len() < words as u64 * 4;
        if too_short(active, 1)
            || too_short(logits, rows * self.vocab)
            || too_short(targets, rows)
            || too_short(nll, rows)
        {
            return wrong(format!(
                "active, logits, targets or nll is too short for {rows} rows of {} logits",
                self.vocab
            ));
        }
        // Shaders index words with 31 bits, and four logits are one aligned load.
        if rows * self.vocab >= 1 << 31 || !logits.address().is_multiple_of(16) {
            return wrong("logits must be smaller than 8 GiB and aligned to 16 bytes".into());
        }
        let push = Push {
            logits: logits.clone().into(),
            active_rows: active.clone().into(),
            targets: targets.clone().into(),
            nll: nll.clone().into(),
            vocab: self.vocab as u32,
        };
        recorder.dispatch(name, &self.pipeline, [rows as u32, 1, 1], &push)
    }
}

fn variant(plan: Plan, vec4_loads: bool) -> Variant {
    let constants = Constants { threads: plan.threads, vec4_loads };
    let label = format!("{} threads{}", plan.threads, if vec4_loads { "" } else { ", scalar loads" });
    Variant::new(label, TIERS, plan.tier, &constants, plan.subgroup)
}
