//! Embedding lookup: each token's embedding times a factor starts the residual stream. Supports every weight
//! scheme.
//!
//! One shader at tier T0 serves every device: it copies a few KB per row, which nothing above T0 would speed
//! up.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};
use tensor::Scheme;

use crate::{
    Kernel, Matrix,
    shaders::embed::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "embed",
    about: "embedding lookup, any weight scheme",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for embeddings of one scheme.
pub struct Embed {
    scheme: Scheme,
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// The embeddings: one row per token, `hidden` columns.
    pub embeddings: &'a Matrix,
    /// One u32: the number of active rows. The others are left unchanged.
    pub active: View,
    /// u32 per row. Rows whose token is past the end of the embeddings are left unchanged too.
    pub tokens: View,
    /// The token whose embedding the rows of soft tokens ([`SOFT_TOKEN`](crate::soft_tokens::SOFT_TOKEN)) get; `None` if
    /// they are left unchanged.
    pub soft_token: Option<u32>,
    /// f32, `[row][hidden]`, written.
    pub residual: View,
}

impl Embed {
    /// Compiles the kernel for a scheme.
    pub fn new(device: &Device, scheme: Scheme) -> Result<Self> {
        Ok(Self { scheme, pipeline: variant(scheme, policy::threads(device.caps())).pipeline(device)? })
    }

    /// Records the kernel for up to `rows` rows: one dispatch per block of the embeddings.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        factor: f32,
        operands: &Operands<'_>,
    ) -> Result<()> {
        let Operands { embeddings, active, tokens, soft_token, residual } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let layout = embeddings.layout();
        if layout.scheme != self.scheme {
            return wrong(format!(
                "the embeddings are {}, but the kernel was created for {}",
                layout.scheme, self.scheme
            ));
        }
        let too_short = |view: &View, words: usize| view.len() < words as u64 * 4;
        if too_short(active, 1) || too_short(tokens, rows) || too_short(residual, rows * layout.k) {
            return wrong(format!("active, tokens or residual is too short for {rows} rows of {}", layout.k));
        }
        // Shaders index words with 31 bits.
        let max_bytes = (1_u64 << 31) * 4;
        if residual.len() >= max_bytes
            || embeddings.blocks().iter().any(|block| block.values.len() >= max_bytes)
        {
            return wrong("buffers must be smaller than 8 GiB, the range of the kernel's indices".into());
        }
        let groups = policy::groups(self.pipeline.threads(), layout.k);
        for block in embeddings.blocks() {
            let push = Push {
                values: (&block.values).into(),
                scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
                active_rows: active.clone().into(),
                tokens: tokens.clone().into(),
                residual: residual.clone().into(),
                hidden: layout.k as u32,
                block_first_row: block.first_row as u32,
                block_rows: block.layout.rows as u32,
                factor,
                soft_token: soft_token.unwrap_or(u32::MAX),
            };
            recorder.dispatch(name, &self.pipeline, [groups, rows as u32, 1], &push)?;
        }
        Ok(())
    }
}

fn variant(scheme: Scheme, threads: u32) -> Variant {
    let number = Scheme::ALL.iter().position(|known| *known == scheme).unwrap_or_default();
    let constants = Constants { threads, scheme: number as u32 };
    Variant::new(format!("{scheme}, {threads} threads"), TIERS, Tier::T0, &constants, Subgroup::Any)
}
