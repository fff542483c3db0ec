//! What the kernels of matrix products have in common: where their output goes, and what becomes of it on the way.

pub mod reference;
pub(crate) mod trial;

use gpu::{Error, Result, View};

use crate::{Activations, HALF_GROUP, Layout, MatrixBlock, QUAD, STRIP, VectorData, Vectors};

/// What a product does with its sums before it writes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// Strips alternate gate, up, gate, up: gelu(gate) · up, half as many values as the matrix has rows. GELU by tanh.
    Geglu,
    /// The same with silu(gate) · up.
    Swiglu,
}

impl Epilogue {
    /// Every one.
    pub const ALL: [Epilogue; 3] = [Epilogue::None, Epilogue::Geglu, Epilogue::Swiglu];

    /// Strips that make a strip's worth of output.
    pub fn strips(self) -> usize {
        if self == Epilogue::None { 1 } else { 2 }
    }

    /// Values of a column of output that `rows` rows of a matrix make.
    pub fn outputs(self, rows: usize) -> usize {
        rows / self.strips()
    }

    /// Refuses a matrix whose strips are no pairs.
    pub(crate) fn check(self, what: &str, weights: &Layout) -> Result<()> {
        if weights.rows.is_multiple_of(STRIP * self.strips()) || self == Epilogue::None {
            return Ok(());
        }
        let reason = format!(
            "{} rows are not whole pairs of strips of gate and up ({} rows); compute the two apart and join them with the kernel `gated`",
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

/// Where the output of a product goes: value r of column c to element c · `stride` + `first` + r of `y`. So matrices of
/// different schemes can fill one output row side by side.
#[derive(Clone, Debug)]
pub struct Target {
    /// The output, f32; or the values of activations, as [`VectorData`] has them.
    pub y: View,
    /// How the values are stored.
    pub format: OutputFormat,
    /// Where this product's values start in a column.
    pub first: usize,
    /// Elements from the start of a column to the next.
    pub stride: usize,
}

/// How a product's output is stored.
#[derive(Clone, Debug)]
pub enum OutputFormat {
    /// f32.
    F32,
    /// int16 activations; these are their scales.
    Int16(View),
    /// f16 activations.
    F16,
}

impl Target {
    /// An output of its own, whose columns of `n` values follow each other.
    pub fn whole(y: impl Into<View>, n: usize) -> Self {
        Self { y: y.into(), format: OutputFormat::F32, first: 0, stride: n }
    }

    /// Activations for the next product: f32, int16, which a matrix–vector product with an epilogue writes, or f16, which a product on
    /// matrix units does.
    pub fn vectors(y: &Vectors) -> Result<Self> {
        let (values, format) = match &y.data {
            VectorData::F32(values) => (values, OutputFormat::F32),
            VectorData::Int16 { values, scales } => (values, OutputFormat::Int16(scales.view())),
            VectorData::F16(values) => (values, OutputFormat::F16),
            VectorData::Int8 { .. } => {
                let reason = "a product writes f32, int16 or f16; int8 activations are made by norm".into();
                return Err(Error::InvalidUse { what: "target".into(), reason });
            }
        };
        Ok(Self { y: values.view(), format, first: 0, stride: y.stride() })
    }

    /// How the values are stored.
    pub fn kind(&self) -> Activations {
        match self.format {
            OutputFormat::F32 => Activations::F32,
            OutputFormat::Int16(_) => Activations::Int16,
            OutputFormat::F16 => Activations::F16,
        }
    }

    /// Refuses a target that is not of the `kind` the kernel writes, or has no room for columns of `n` values.
    pub(crate) fn check(&self, what: &str, kind: Activations, n: usize, columns: usize) -> Result<()> {
        if self.kind() != kind {
            let reason = format!("{} output of a kernel that writes {kind}", self.kind());
            return Err(Error::InvalidUse { what: what.to_string(), reason });
        }
        let room = match &self.format {
            OutputFormat::F32 => self.y.len() / 4,
            OutputFormat::F16 => {
                if !self.first.is_multiple_of(STRIP) || !self.stride.is_multiple_of(QUAD) {
                    let reason = format!(
                        "f16 output {} apart from value {} on: columns are whole quads, and products start at whole strips",
                        self.stride, self.first
                    );
                    return Err(Error::InvalidUse { what: what.to_string(), reason });
                }
                self.y.len() / 2
            }
            OutputFormat::Int16(scales) => {
                let whole = self.first.is_multiple_of(HALF_GROUP) && self.stride.is_multiple_of(QUAD);
                let room = self.y.len() / 2;
                if !whole || !room.is_multiple_of(QUAD as u64) || scales.len() / 4 < room / HALF_GROUP as u64
                {
                    let reason = format!(
                        "int16 output of {room} values with {} scales, {} apart, from value {} on; columns are whole quads \
                         with a scale for each {HALF_GROUP} values, and products start at one of those",
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
            "{columns} columns of {n} values do not fit from element {} on, {} apart, into an output of {} values",
            self.first, self.stride, room,
        );
        Err(Error::InvalidUse { what: what.to_string(), reason })
    }

    /// Where a part of the matrix writes: the buffer, and the first element of a column in it. The target has been checked.
    pub(crate) fn for_block(
        &self,
        what: &str,
        part: &MatrixBlock,
        epilogue: Epilogue,
        columns: usize,
    ) -> Result<(View, u32)> {
        if !part.first_row.is_multiple_of(STRIP * epilogue.strips()) {
            let reason = "the matrix is cut between a strip of gate and its strip of up: this device allows too small \
                          allocations for gate and up in one matrix"
                .into();
            return Err(Error::InvalidUse { what: what.to_string(), reason });
        }
        let first = self.first + epilogue.outputs(part.first_row);
        if columns > 1 || !matches!(self.format, OutputFormat::F32) {
            return Ok((self.y.clone(), first as u32));
        }
        // With one column a part's share of y is a run of its own: parts then need no barrier between them.
        let bytes = first as u64 * 4..(first + epilogue.outputs(part.layout.rows)) as u64 * 4;
        Ok((self.y.slice(bytes)?, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_closes_and_opens() {
        // Known values of both functions: 0 at 0, the identity far above, nothing far below.
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
    fn pairs_of_strips_are_demanded_by_epilogues_alone() {
        let rows = |rows| Layout { scheme: crate::Scheme::Int8, rows, k: 32 };
        for (count, pairs) in [(32, true), (96, true), (48, false), (31, false), (16, false)] {
            assert!(Epilogue::None.check("", &rows(count)).is_ok());
            assert_eq!(Epilogue::Geglu.check("", &rows(count)).is_ok(), pairs, "{count} rows");
        }
    }
}
