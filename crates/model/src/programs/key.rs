//! Program keys: the batches and outputs that programs are recorded for.

use kernels::sample::Features;

use crate::{
    bucket::bucket,
    pacer::{RowSpan, StepExtent},
    state::{Batch, Row, RowCounts},
    tune::TUNED_ROWS,
};

/// The result computed from the last layer's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Output {
    /// Nothing: only keys and values are needed.
    None,
    /// A token for each of `rows` rows.
    Sample { rows: usize },
    /// The logits of `rows` rows.
    Logits { rows: usize },
    /// The probability of a given token in each of `rows` rows.
    Score { rows: usize },
}

impl Output {
    pub fn rows(self) -> usize {
        match self {
            Output::None => 0,
            Output::Sample { rows } | Output::Logits { rows } | Output::Score { rows } => rows,
        }
    }

    pub fn samples(self) -> bool {
        matches!(self, Output::Sample { .. })
    }
}

/// The key of a recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProgramKey {
    /// The bucket of all rows.
    pub bucket: usize,
    pub batch: Batch,
    pub output: Output,
    /// Sampler features that at least one row needs.
    pub features: Features,
}

impl ProgramKey {
    /// The key of a step of these rows, where up to `few_rows` prefill rows are few.
    pub fn new(counts: RowCounts, few_rows: usize, output: Output, features: Features) -> Self {
        Self { bucket: bucket(counts.total()), batch: Batch::new(counts, few_rows), output, features }
    }

    /// A verify step of this many rows whose kernels are those of a single row.
    pub fn exact_verify(rows: usize, features: Features) -> Self {
        let bucket = bucket(rows);
        Self { bucket, batch: Batch::Verify, output: Output::Sample { rows: bucket }, features }
    }

    /// The number of rows for which kernels are chosen.
    pub fn kernel_rows(self) -> usize {
        if self.batch == Batch::Verify { 1 } else { self.bucket }
    }

    /// The same for the head, which takes the output rows only.
    pub fn output_kernel_rows(self) -> usize {
        if self.batch == Batch::Verify { 1 } else { self.output.rows() }
    }

    /// The largest step with this key, every row at the end of the context.
    pub fn max_extent(self, context_length: u32) -> StepExtent {
        let counts = match self.batch {
            Batch::Decode | Batch::Verify => RowCounts { decode: self.bucket, prefill: 0 },
            Batch::Prefill => RowCounts { decode: 0, prefill: self.bucket },
            Batch::Mixed { decode, .. } => {
                let decode = decode.min(self.bucket - 2);
                RowCounts { decode, prefill: self.bucket - decode }
            }
        };
        StepExtent::uniform(counts, context_length, self.output.rows())
    }

    /// Whether its products may have tuned plans, or depend on some: those of one and two rows are tuned.
    pub fn uses_tuned_plans(self) -> bool {
        self.kernel_rows() <= TUNED_ROWS
    }

    /// Whether the step writes the next step's rows in place of its own, so that it can be repeated.
    pub fn decodes_in_place(self) -> bool {
        self.batch == Batch::Decode && self.output == Output::Sample { rows: self.bucket }
    }
}

impl Batch {
    /// The kind of batch that a step of these rows is recorded as.
    fn new(counts: RowCounts, few_rows: usize) -> Self {
        match counts {
            RowCounts { prefill: 0, .. } => Batch::Decode,
            RowCounts { decode: 0, .. } => Batch::Prefill,
            // Few rows are not worth a program per number of decode rows: unused rows cost nothing.
            _ if counts.total() <= few_rows => Batch::Mixed { decode: bucket(counts.total()), few: true },
            RowCounts { decode, prefill } => {
                Batch::Mixed { decode: bucket(decode), few: prefill <= few_rows }
            }
        }
    }
}

impl RowCounts {
    /// The bucket that the decode rows of a step are recorded for.
    pub fn decode_bucket(self, few_rows: usize) -> usize {
        match Batch::new(self, few_rows) {
            Batch::Decode | Batch::Verify => bucket(self.decode),
            Batch::Prefill => 0,
            Batch::Mixed { decode, .. } => decode,
        }
    }
}

impl StepExtent {
    /// Rows that are all at the same depth; prefill rows as one chunk.
    pub fn uniform(counts: RowCounts, depth: u32, outputs: usize) -> Self {
        let span = |rows: usize| RowSpan { rows, depth: if rows > 0 { depth } else { 0 } };
        Self { decode: span(counts.decode), chunks: vec![span(counts.prefill)], outputs }
    }

    /// The rows of a step, with the depth of the decode rows and of each chunk.
    pub fn new(rows: &[Row], counts: RowCounts, outputs: usize) -> Self {
        let span = |rows: &[Row]| {
            let depth = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
            RowSpan { rows: rows.len(), depth }
        };
        Self {
            decode: span(&rows[..counts.decode]),
            chunks: counts.chunks(rows).map(span).collect(),
            outputs,
        }
    }
}
