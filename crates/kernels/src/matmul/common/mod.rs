//! Shared by all matrix products: the output target, and the epilogue applied to it.

pub(crate) mod expert_trial;
pub mod reference;
pub(crate) mod trial;

use gpu::{Error, Result, View};
use tensor::{Layout, QUAD, STRIP};

use crate::{
    Activations, HALF_GROUP, Matrix, MatrixBlock, VectorData, Vectors,
    experts::{ExpertColumns, Groups},
};

/// A product over experts whose columns are grouped, already checked.
#[derive(Clone, Copy)]
pub(crate) struct ExpertProduct<'a> {
    /// The memory of all experts.
    pub block: &'a MatrixBlock,
    /// Rows per expert.
    pub rows: usize,
    pub x: &'a Vectors,
    pub target: &'a Target,
    pub groups: &'a Groups,
}

/// Checks the operands of a product over experts: `weights` is the layout of one. Returns the memory of all, which must be
/// in one block, and the number of pairs.
pub(crate) fn check_experts<'a>(
    what: &str,
    experts: ExpertColumns,
    weights: &Layout,
    w: &'a Matrix,
    x: &Vectors,
) -> Result<(&'a MatrixBlock, usize)> {
    let wrong = |reason: String| Err(Error::InvalidUse { what: what.to_string(), reason });
    let all = Layout { rows: weights.rows * experts.count, ..*weights };
    if w.layout() != all || !weights.rows.is_multiple_of(STRIP) {
        return wrong(format!(
            "the weights are {:?}, but {} experts of {weights:?} are needed, each of whole strips",
            w.layout(),
            experts.count
        ));
    }
    if x.k != weights.k {
        return wrong(format!("x has columns of {} values instead of {}", x.k, weights.k));
    }
    match w.blocks() {
        [block] => Ok((block, x.columns * experts.per_x)),
        _ => wrong("the experts of a layer exceed the device's maximum allocation".into()),
    }
}

/// The operation fused after a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// GeGLU: gelu(gate) · up, with GELU by tanh. Strips alternate gate, up, gate, up; the output has half as
    /// many values as the matrix has rows.
    Geglu,
    /// SwiGLU: silu(gate) · up, laid out like GeGLU.
    Swiglu,
}

impl Epilogue {
    /// Every epilogue.
    pub const ALL: [Epilogue; 3] = [Epilogue::None, Epilogue::Geglu, Epilogue::Swiglu];

    /// Strips of weights per strip of output.
    pub fn strips(self) -> usize {
        if self == Epilogue::None { 1 } else { 2 }
    }

    /// Output values per column from `rows` rows of a matrix.
    pub fn outputs(self, rows: usize) -> usize {
        rows / self.strips()
    }

    /// Rejects a matrix whose strips do not form pairs.
    pub(crate) fn check(self, what: &str, weights: &Layout) -> Result<()> {
        if weights.rows.is_multiple_of(STRIP * self.strips()) || self == Epilogue::None {
            return Ok(());
        }
        let reason = format!(
            "{} rows are not whole pairs of gate and up strips ({} rows); compute the two separately and combine them with the kernel `gated`",
            weights.rows,
            2 * STRIP
        );
        Err(Error::InvalidUse { what: what.to_string(), reason })
    }
}

impl std::fmt::Display for Epilogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Epilogue::None => "none",
            Epilogue::Geglu => "geglu",
            Epilogue::Swiglu => "swiglu",
        })
    }
}

/// Destination of a product: value r of column c goes to element c · `stride` + `first` + r of `y`. Matrices
/// of different schemes can thus fill one output row side by side.
#[derive(Clone, Debug)]
pub struct Target {
    /// The output: f32, or the values of activations as in [`VectorData`].
    pub y: View,
    /// Storage format of the values.
    pub format: OutputFormat,
    /// Start of this product's values within a column.
    pub first: usize,
    /// Elements from the start of one column to the next.
    pub stride: usize,
}

/// Storage format of a product's output.
#[derive(Clone, Debug)]
pub enum OutputFormat {
    /// f32.
    F32,
    /// int16 activations, with the buffer of their scales.
    Int16(View),
    /// f16 activations.
    F16,
}

impl Target {
    /// A dedicated f32 output: contiguous columns of `n` values.
    pub fn contiguous(y: impl Into<View>, n: usize) -> Self {
        Self { y: y.into(), format: OutputFormat::F32, first: 0, stride: n }
    }

    /// Activations for the next product: f32, int16 (written by a GEMV with an epilogue) or f16 (written by a
    /// product on cooperative matrices).
    pub fn vectors(y: &Vectors) -> Result<Self> {
        let (values, format) = match &y.data {
            VectorData::F32(values) => (values, OutputFormat::F32),
            VectorData::Int16 { values, scales } => (values, OutputFormat::Int16(scales.view())),
            VectorData::F16(values) => (values, OutputFormat::F16),
            VectorData::Int8 { .. } => {
                let reason = "a product writes f32, int16 or f16; only norm writes int8 activations".into();
                return Err(Error::InvalidUse { what: "target".into(), reason });
            }
        };
        Ok(Self { y: values.view(), format, first: 0, stride: y.stride() })
    }

    /// Storage format of the values.
    pub fn kind(&self) -> Activations {
        match self.format {
            OutputFormat::F32 => Activations::F32,
            OutputFormat::Int16(_) => Activations::Int16,
            OutputFormat::F16 => Activations::F16,
        }
    }

    /// Rejects a target whose format is not the kernel's `kind`, or that is too small for columns of `n`
    /// values.
    pub(crate) fn check(&self, what: &str, kind: Activations, n: usize, columns: usize) -> Result<()> {
        if self.kind() != kind {
            let reason = format!("the output is {}, but the kernel writes {kind}", self.kind());
            return Err(Error::InvalidUse { what: what.to_string(), reason });
        }
        let room = match &self.format {
            OutputFormat::F32 => self.y.len() / 4,
            OutputFormat::F16 => {
                if !self.first.is_multiple_of(STRIP) || !self.stride.is_multiple_of(QUAD) {
                    let reason = format!(
                        "f16 output at a stride of {} from value {}: the stride must be whole quads, the start whole strips",
                        self.stride, self.first
                    );
                    return Err(Error::InvalidUse { what: what.to_string(), reason });
                }
                self.y.len() / 2
            }
            OutputFormat::Int16(scales) => {
                let aligned = self.first.is_multiple_of(HALF_GROUP) && self.stride.is_multiple_of(QUAD);
                let room = self.y.len() / 2;
                if !aligned
                    || !room.is_multiple_of(QUAD as u64)
                    || scales.len() / 4 < room / HALF_GROUP as u64
                {
                    let reason = format!(
                        "int16 output of {room} values with {} scales at a stride of {} from value {}: the stride must be whole quads, \
                         the start a multiple of {HALF_GROUP}, with one scale per {HALF_GROUP} values",
                        scales.len() / 4,
                        self.stride,
                        self.first,
                    );
                    return Err(Error::InvalidUse { what: what.to_string(), reason });
                }
                room
            }
        };
        let fits =
            |elements: Option<usize>| elements.is_some_and(|n| n as u64 <= room && u32::try_from(n).is_ok());
        let end = self.first.checked_add(n);
        let last = self.stride.checked_mul(columns.saturating_sub(1));
        if end.is_some_and(|end| end <= self.stride)
            && fits(last.zip(end).and_then(|(last, end)| last.checked_add(end)))
        {
            return Ok(());
        }
        let reason = format!(
            "{columns} columns of {n} values from element {} at a stride of {} do not fit an output of {} values",
            self.first, self.stride, room,
        );
        Err(Error::InvalidUse { what: what.to_string(), reason })
    }

    /// The destination of one block of the matrix: the buffer, and the first element within a column. The
    /// target must have been checked.
    pub(crate) fn for_block(
        &self,
        what: &str,
        block: &MatrixBlock,
        epilogue: Epilogue,
        columns: usize,
    ) -> Result<(View, u32)> {
        if !block.first_row.is_multiple_of(STRIP * epilogue.strips()) {
            let reason = "a block of the matrix ends between a strip of gate and its strip of up: the maximum allocation of this \
                          device is too small for gate and up in one matrix"
                .into();
            return Err(Error::InvalidUse { what: what.to_string(), reason });
        }
        let first = self.first + epilogue.outputs(block.first_row);
        if columns > 1 || !matches!(self.format, OutputFormat::F32) {
            return Ok((self.y.clone(), first as u32));
        }
        // With one column, a block's share of y is contiguous, so that blocks need no barrier between them.
        let bytes = first as u64 * 4..(first + epilogue.outputs(block.layout.rows)) as u64 * 4;
        Ok((self.y.slice(bytes)?, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gated_activations_match_known_values() {
        // Known values of both functions: 0 at 0, the identity for large inputs, 0 for large negative ones.
        for epilogue in [Epilogue::Geglu, Epilogue::Swiglu] {
            assert_eq!(reference::gated(epilogue, 0.0, 5.0), 0.0);
            assert_eq!(reference::gated(epilogue, 1e4, 2.0), 2e4);
            assert_eq!(reference::gated(epilogue, -1e4, 2.0), 0.0);
        }
        // From torch.nn.functional: gelu(x, approximate="tanh") and silu(x) at 1.
        assert!((reference::gated(Epilogue::Geglu, 1.0, 1.0) - 0.841_191_99).abs() < 1e-8);
        assert!((reference::gated(Epilogue::Swiglu, 1.0, 1.0) - 0.731_058_58).abs() < 1e-8);
    }

    #[test]
    fn only_epilogues_require_pairs_of_strips() {
        let rows = |rows| Layout { scheme: tensor::Scheme::Int8, rows, k: 32 };
        for (count, pairs) in [(32, true), (96, true), (48, false), (31, false), (16, false)] {
            assert!(Epilogue::None.check("", &rows(count)).is_ok());
            assert_eq!(Epilogue::Geglu.check("", &rows(count)).is_ok(), pairs, "{count} rows");
        }
    }
}
