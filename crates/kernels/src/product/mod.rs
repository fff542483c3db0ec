//! What the kernels of matrix products have in common: where their output goes, and what becomes of it on the way.

pub mod reference;
pub(crate) mod trial;

use gpu::{Error, Result, View};

use crate::{Layout, Part, QUAD, STRIP, VectorData, Vectors};

/// What a product does with its sums before it writes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
            "{} rows are not whole pairs of strips of gate and up ({} rows); compute the two apart and join them with geglu",
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
    /// The output, f32.
    pub y: View,
    /// Where this product's values start in a column.
    pub first: usize,
    /// Elements from the start of a column to the next.
    pub stride: usize,
}

impl Target {
    /// An output of its own, whose columns of `n` values follow each other.
    pub fn whole(y: impl Into<View>, n: usize) -> Self {
        Self { y: y.into(), first: 0, stride: n }
    }

    /// Activations for the next product; f32, not int8.
    pub fn vectors(y: &Vectors) -> Result<Self> {
        match &y.data {
            VectorData::F32(values) => {
                Ok(Self { y: values.view(), first: 0, stride: y.k.next_multiple_of(QUAD) })
            }
            VectorData::Int8 { .. } | VectorData::Int16 { .. } => {
                let reason = "a product writes f32; int8 activations are made by norm".into();
                Err(Error::InvalidUse { what: "target".into(), reason })
            }
        }
    }

    /// Refuses a target that has no room for columns of `n` values.
    pub(crate) fn check(&self, what: &str, n: usize, columns: usize) -> Result<()> {
        let fits = |elements: Option<usize>| {
            elements.is_some_and(|n| n as u64 <= self.y.len() / 4 && u32::try_from(n).is_ok())
        };
        let end = self.first.checked_add(n);
        let last = self.stride.checked_mul(columns.saturating_sub(1));
        if end.is_some_and(|end| end <= self.stride)
            && fits(last.zip(end).and_then(|(last, end)| last.checked_add(end)))
        {
            return Ok(());
        }
        let reason = format!(
            "{columns} columns of {n} values do not fit from element {} on, {} apart, into an output of {} values",
            self.first,
            self.stride,
            self.y.len() / 4,
        );
        Err(Error::InvalidUse { what: what.to_string(), reason })
    }

    /// Where a part of the matrix writes: the buffer, and the first element of a column in it. The target has been checked.
    pub(crate) fn of_part(
        &self,
        what: &str,
        part: &Part,
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
        if columns > 1 {
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
