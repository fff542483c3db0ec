//! Position embeddings in two dimensions: the residual stream of an image encoder starts with the embedding of a
//! patch's column plus that of its row (Gemma 4).
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
    shaders::grid_positions::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "grid_positions",
    about: "position embeddings in two dimensions to the residual stream",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel, for rows of any length.
pub struct GridPositions {
    pipeline: Pipeline,
}

/// The position embeddings of one dimension.
pub struct Table {
    /// f32, `[position][n]`.
    pub embeddings: View,
    /// Number of positions, at least 1.
    pub positions: usize,
}

/// The buffers of one call.
pub struct Operands {
    /// Embeddings of the columns of a grid, by x.
    pub columns: Table,
    /// Embeddings of its rows, by y.
    pub rows: Table,
    /// Two u32 per row: x and y. They are read at execution: the host must write only positions within the tables. Those
    /// past the end of a table get its last embedding.
    pub positions: View,
    /// One u32: the number of active rows. The others are left unchanged.
    pub active: View,
    /// f32, `[row][n]`, written.
    pub residual: View,
}

impl GridPositions {
    /// Compiles the kernel.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { pipeline: variant(policy::threads(device.caps())).pipeline(device)? })
    }

    /// Records the kernel for up to `rows` rows of `n` values, a multiple of 4.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        n: usize,
        operands: &Operands,
    ) -> Result<()> {
        let Operands { columns, rows: lines, positions, active, residual } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if n == 0 || !n.is_multiple_of(4) {
            return wrong(format!("rows of {n} values: the length must be a multiple of 4"));
        }
        if columns.positions == 0 || lines.positions == 0 {
            return wrong("a table of position embeddings is empty".into());
        }
        let values = [
            ("the table of columns", &columns.embeddings, columns.positions.saturating_mul(n)),
            ("the table of rows", &lines.embeddings, lines.positions.saturating_mul(n)),
            ("residual", residual, rows.saturating_mul(n)),
        ];
        for (what, _, values) in values {
            // The shader indexes with 32 bits.
            if u32::try_from(values).is_err() {
                return wrong(format!("{what} has {values} values, more than the kernel can index"));
            }
        }
        crate::row::check(name, &values.map(|(what, view, values)| (what, Some(view), values)))?;
        for (what, view, words) in [("positions", positions, 2 * rows), ("active", active, 1)] {
            if view.len() < words as u64 * 4 {
                return wrong(format!("{what} has {} bytes, but needs {}", view.len(), words * 4));
            }
        }
        let push = Push {
            column_table: columns.embeddings.clone().into(),
            row_table: lines.embeddings.clone().into(),
            positions: positions.clone().into(),
            residual: residual.clone().into(),
            active_rows: active.clone().into(),
            n: n as u32,
            columns: columns.positions as u32,
            rows: lines.positions as u32,
        };
        let groups = policy::groups(self.pipeline.threads(), n);
        recorder.dispatch(name, &self.pipeline, [rows as u32, groups, 1], &push)
    }
}

fn variant(threads: u32) -> Variant {
    Variant::new(format!("{threads} threads"), TIERS, Tier::T0, &Constants { threads }, Subgroup::Any)
}
