//! The inputs of a step: a few words per row, written by the host or by the previous step, read by the
//! recorded programs.

use std::time::Duration;

use gpu::{Arena, Buffer, Device, Lifetime, Memory, View};

use crate::Result;

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The token or, with the bit of image tokens, a row of the soft tokens.
    pub token: u32,
    pub position: u32,
    /// The last position that the row attends to: its own, or that of its image's end.
    pub last_visible: u32,
    pub slot: u32,
}

impl Row {
    /// A row of text: it attends to no later position.
    pub fn text(token: u32, position: u32, slot: u32) -> Self {
        Self { token, position, last_visible: position, slot }
    }
}

/// The number of rows of each kind in a step: decode rows first, then the rows of prefill chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowCounts {
    pub decode: usize,
    pub prefill: usize,
}

impl RowCounts {
    /// A single prefill row is computed as a decode row: it does not attend to other rows of the step.
    pub fn new(decode: usize, prefill: usize) -> Self {
        if prefill == 1 { Self { decode: decode + 1, prefill: 0 } } else { Self { decode, prefill } }
    }

    pub fn total(self) -> usize {
        self.decode + self.prefill
    }

    /// The prefill chunks of a step: consecutive rows of one sequence, after the decode rows.
    pub fn chunks(self, rows: &[Row]) -> impl Iterator<Item = &[Row]> {
        rows[self.decode..].chunk_by(|a, b| a.slot == b.slot)
    }
}

/// How the rows of a step belong to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Batch {
    /// Decode rows: each of another sequence, at any position.
    Decode,
    /// Rows of a verify step that must get the bits that each would get in a decode step of its own: at any position of any
    /// sequence, also behind each other.
    Verify,
    /// Rows of prefill chunks: consecutive positions of one sequence per chunk.
    Prefill,
    /// At most `decode` decode rows, then the rows of prefill chunks of other sequences. Where the chunks
    /// have `few` rows together, their attention is split along the context as that of decode rows is.
    Mixed { decode: usize, few: bool },
}

/// Arenas of buffers that the host writes or reads in every step.
pub(crate) struct HostArenas {
    pub shared: Arena,
    pub readback: Arena,
}

impl HostArenas {
    pub fn new(device: &Device) -> Self {
        Self {
            shared: Arena::new(device, Lifetime::Scratch, Memory::Shared).with_block_size(1 << 20),
            readback: Arena::new(device, Lifetime::Scratch, Memory::Readback).with_block_size(1 << 16),
        }
    }
}

/// The input buffers of a runner's steps, for as many rows as the largest bucket has.
pub(crate) struct StepState {
    /// Three words: 0, the end of the decode rows, and the end of all rows. Prefill rows lie between the last
    /// two.
    row_ranges: Buffer,
    /// One word of these: rows in use.
    pub active: View,
    /// One word: decode rows in use.
    pub decode_count: View,
    /// Two words: the range of the decode rows.
    pub decode_range: View,
    /// Two words: the range of the prefill rows.
    pub prefill_range: View,
    /// The end row of each prefill chunk.
    pub chunk_ends: Buffer,
    /// Three words per attention variant: the workgroups of single-dispatch attention.
    workgroups: Buffer,
    /// One word: output rows in use.
    pub outputs: Buffer,
    /// Token, position and slot of each row.
    pub tokens: Buffer,
    pub positions: Buffer,
    pub slots: Buffer,
    /// The last position that each prefill row attends to.
    pub last_visible: Buffer,
    /// The row of each output row.
    pub output_rows: Buffer,
    /// The token that follows each output row, where its probability is to be computed.
    targets: Buffer,
    /// The negative log probability of that token.
    nll: Buffer,
    /// The rows of the next step that the sampler left on the GPU; empty if it left none.
    next_rows: Vec<Row>,
}

/// Maximum sequences whose tokens are sampled in one step.
pub(crate) const MAX_SAMPLED: u32 = 256;

/// Maximum prefill chunks per step.
pub const MAX_CHUNKS_PER_STEP: usize = 32;

/// Maximum steps of a decode run.
pub(crate) const MAX_STEPS: usize = 32;

/// Default timeout of a step: minutes on Mesa's CPU driver on a busy machine; no GPU takes that long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// Timeout of clearing memory; Mesa's CPU driver is slow.
pub(crate) const CLEAR_TIMEOUT: Duration = Duration::from_secs(60);

impl StepState {
    pub fn new(arenas: &mut HostArenas, rows: u32, attention_variants: usize) -> Result<Self> {
        let HostArenas { shared, readback } = arenas;
        let words = u64::from(rows) * 4;
        let row_ranges = shared.buffer_from("active rows", &[0_u32; 3])?;
        Ok(Self {
            active: row_ranges.slice(8..12)?,
            decode_count: row_ranges.slice(4..8)?,
            decode_range: row_ranges.slice(0..8)?,
            prefill_range: row_ranges.slice(4..12)?,
            row_ranges,
            chunk_ends: shared.buffer_from("chunk ends", &[0_u32; MAX_CHUNKS_PER_STEP])?,
            workgroups: shared.buffer_from("attention workgroups", &vec![0_u32; 3 * attention_variants])?,
            outputs: shared.buffer_from("active outputs", &[0_u32])?,
            tokens: shared.buffer("tokens", words)?,
            positions: shared.buffer("positions", words)?,
            slots: shared.buffer("slots", words)?,
            last_visible: shared.buffer("last positions", words)?,
            output_rows: shared.buffer("output rows", words)?,
            targets: shared.buffer("targets", words)?,
            nll: readback.buffer("log probabilities", words)?,
            next_rows: vec![],
        })
    }

    /// Rows that fit into the buffers.
    pub fn capacity(&self) -> usize {
        (self.tokens.len() / 4) as usize
    }

    /// Three words: the workgroups of single-dispatch attention of a variant.
    pub fn attention_workgroups(&self, variant: usize) -> View {
        let first = 12 * variant as u64;
        self.workgroups.slice(first..first + 12).expect("there are three words per variant")
    }

    pub fn write_attention_workgroups(&mut self, variant: usize, workgroups: [u32; 3]) -> Result<()> {
        Ok(self.workgroups.write(12 * variant as u64, bytemuck::cast_slice(&workgroups))?)
    }

    /// Writes the rows of a step, unless the sampler left exactly these on the GPU: decoding then needs
    /// nothing from the host.
    pub fn write_rows(&mut self, rows: &[Row], counts: RowCounts) -> Result<()> {
        if rows != self.next_rows || counts.prefill > 0 {
            let words = |word: fn(&Row) -> u32| -> Vec<u32> { rows.iter().map(word).collect() };
            self.write_ranges(counts.decode, counts.chunks(rows).map(<[Row]>::len))?;
            self.tokens.write(0, bytemuck::cast_slice(&words(|row| row.token)))?;
            self.positions.write(0, bytemuck::cast_slice(&words(|row| row.position)))?;
            self.slots.write(0, bytemuck::cast_slice(&words(|row| row.slot)))?;
            if counts.prefill > 0 {
                self.last_visible.write(0, bytemuck::cast_slice(&words(|row| row.last_visible)))?;
            }
        }
        self.next_rows.clear();
        Ok(())
    }

    /// Writes tokens of one sequence as rows, for a kernel that reads nothing else of a row.
    pub fn write_tokens(&mut self, slot: u32, tokens: &[u32]) -> Result<()> {
        self.next_rows.clear();
        self.write_ranges(tokens.len(), std::iter::empty())?;
        self.tokens.write(0, bytemuck::cast_slice(tokens))?;
        Ok(self.slots.write(0, bytemuck::cast_slice(&vec![slot; tokens.len()]))?)
    }

    pub fn write_output_rows(&mut self, output_rows: &[u32]) -> Result<()> {
        self.outputs.write(0, bytemuck::bytes_of(&(output_rows.len() as u32)))?;
        Ok(self.output_rows.write(0, bytemuck::cast_slice(output_rows))?)
    }

    /// Records that the sampler replaced the rows of the last step by these, the next step's.
    pub fn set_next_rows(&mut self, rows: Vec<Row>) {
        self.next_rows = rows;
    }

    pub fn write_targets(&mut self, targets: &[u32]) -> Result<()> {
        Ok(self.targets.write(0, bytemuck::cast_slice(targets))?)
    }

    /// The targets, and where their negative log probabilities go.
    pub fn score_buffers(&self) -> (View, View) {
        (self.targets.view(), self.nll.view())
    }

    pub fn read_scores(&self, count: usize) -> Result<Vec<f32>> {
        let mut nll = vec![0.0_f32; count];
        self.nll.read(0, bytemuck::cast_slice_mut(&mut nll))?;
        Ok(nll)
    }

    fn write_ranges(&mut self, decode: usize, chunks: impl Iterator<Item = usize>) -> Result<()> {
        let mut end = decode as u32;
        let ends: Vec<u32> = chunks
            .map(|rows| {
                end += rows as u32;
                end
            })
            .collect();
        self.row_ranges.write(0, bytemuck::cast_slice(&[0, decode as u32, end]))?;
        Ok(self.chunk_ends.write(0, bytemuck::cast_slice(&ends))?)
    }
}
