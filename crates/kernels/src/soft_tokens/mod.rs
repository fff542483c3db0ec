//! Soft tokens: rows of the residual stream that start with an image's embeddings instead of a token's. Follows
//! [`embed`](crate::embed), which leaves those rows unchanged.
//!
//! One shader at tier T0 serves every device: it copies a few KB per row.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Kernel,
    shaders::soft_tokens::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "soft_tokens",
    about: "embeddings of images to the residual stream",
    variants: policy::variants,
    cases: cases::cases,
};

/// Marks a soft token: an id with this bit is not in the vocabulary; its other bits are the index of an image
/// embedding. No vocabulary is this large, so [`embed`](crate::embed) and the sampler's token counts ignore it.
pub const SOFT_TOKEN: u32 = 1 << 31;

/// The kernel, for rows of any length.
pub struct SoftTokens {
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands {
    /// f32, `[soft row][hidden]`: the embeddings of images.
    pub soft: View,
    /// One u32: the number of active rows. The others are left unchanged.
    pub active: View,
    /// u32 per row. Rows without [`SOFT_TOKEN`], or whose index is past the end of `soft`, are left unchanged too.
    pub tokens: View,
    /// f32, `[row][hidden]`, written.
    pub residual: View,
}

impl SoftTokens {
    /// Compiles the kernel.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { pipeline: variant(policy::threads(device.caps())).pipeline(device)? })
    }

    /// Records the kernel for up to `rows` rows of `hidden` values and `soft_rows` embeddings.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        hidden: usize,
        soft_rows: usize,
        operands: &Operands,
    ) -> Result<()> {
        let Operands { soft, active, tokens, residual } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let buffers = [
            ("soft", soft, soft_rows * hidden),
            ("active", active, 1),
            ("tokens", tokens, rows),
            ("residual", residual, rows * hidden),
        ];
        for (buffer, view, words) in buffers {
            if view.len() < words as u64 * 4 {
                return wrong(format!("{buffer} has {} bytes, but {} are needed", view.len(), words * 4));
            }
            // Shaders index words with 32 bits.
            if u32::try_from(words).is_err() {
                return wrong(format!("{buffer} has {words} values, more than the kernel can index"));
            }
        }
        let push = Push {
            active_rows: active.clone().into(),
            tokens: tokens.clone().into(),
            soft: soft.clone().into(),
            residual: residual.clone().into(),
            hidden: hidden as u32,
            soft_rows: soft_rows as u32,
        };
        let groups = policy::groups(self.pipeline.threads(), hidden);
        recorder.dispatch(name, &self.pipeline, [groups, rows as u32, 1], &push)
    }
}

fn variant(threads: u32) -> Variant {
    Variant::new(format!("{threads} threads"), TIERS, Tier::T0, &Constants { threads }, Subgroup::Any)
}
