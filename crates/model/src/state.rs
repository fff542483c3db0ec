//! What changes from step to step: a few words a row, written by the host or by the step before, read by the programs.

use gpu::{Arena, Buffer, Device, Lifetime, Memory, View};
use kernels::sample::{MAX_BIASES, MAX_STOP_TOKENS, NO_TOKEN, Params, Run, Sampled};

use checkpoint::config::LayerType;

use crate::Result;

/// The buffers of a runner's steps, for as many rows as the largest bucket has.
pub(crate) struct State {
    /// Three words: 0, where rows that are apart end, and where all end. Rows of chunks lie between the last two.
    rows: Buffer,
    /// One word of these: rows in use.
    pub active: View,
    /// One word: rows in use that are apart. Two words: the first of them, 0, and their end.
    pub apart_count: View,
    pub apart: View,
    /// Two words: the first row of the chunks, and their end.
    pub chunk: View,
    /// Where each chunk ends.
    pub chunk_ends: Buffer,
    /// Workgroups of attention in one dispatch: in global layers, and in sliding ones.
    pub groups: Buffer,
    /// Output rows in use.
    pub outputs: Buffer,
    /// A row's token, position and slot.
    pub tokens: Buffer,
    pub positions: Buffer,
    pub slots: Buffer,
    /// Which rows the output rows are.
    pub output_rows: Buffer,
    /// How output rows are sampled.
    pub params: Buffer,
    /// Their logit biases.
    pub biases: Buffer,
    /// The tokens that end each output row.
    pub ends: Buffer,
    /// How far a run has come.
    pub run: Buffer,
    /// What was sampled, by step of the run and output row.
    pub sampled: Buffer,
    /// Where the sampler writes the next step's tokens and positions when they cannot be those of its rows.
    pub next_tokens: Buffer,
    pub next_positions: Buffer,
    /// The token that follows each row, when its probability is asked for.
    pub targets: Buffer,
    /// The negative log probability of that token.
    pub nll: Buffer,
}

/// Most sequences whose tokens are sampled in one step.
pub(crate) const MAX_SAMPLED: u32 = 128;

/// Most sequences of which one step reads a chunk.
pub const MAX_CHUNKS_PER_STEP: usize = 32;

/// Most steps of a run.
pub(crate) const MAX_STEPS: usize = 32;

const _: () = assert!(MAX_SAMPLED as usize * MAX_STEPS <= Run::MAX_FINISHED);

impl State {
    pub fn new(device: &Device, rows: u32) -> Result<Self> {
        let mut shared = Arena::new(device, Lifetime::Scratch, Memory::Shared).with_block_size(1 << 20);
        let mut readback = Arena::new(device, Lifetime::Scratch, Memory::Readback).with_block_size(1 << 16);
        let words = u64::from(rows) * 4;
        let sampled = u64::from(rows.min(MAX_SAMPLED));
        let ends = shared.buffer_from("active rows", &[0_u32; 3])?;
        Ok(Self {
            active: ends.slice(8..12)?,
            apart_count: ends.slice(4..8)?,
            apart: ends.slice(0..8)?,
            chunk: ends.slice(4..12)?,
            rows: ends,
            chunk_ends: shared.buffer_from("ends of chunks", &[0_u32; MAX_CHUNKS_PER_STEP])?,
            groups: shared.buffer_from("workgroups of attention", &[0_u32; 6])?,
            outputs: shared.buffer_from("active outputs", &[0_u32])?,
            tokens: shared.buffer("tokens", words)?,
            positions: shared.buffer("positions", words)?,
            slots: shared.buffer("slots", words)?,
            output_rows: shared.buffer("output rows", words)?,
            params: shared.buffer("sampling parameters", sampled * Params::WORDS as u64 * 4)?,
            biases: shared.buffer("logit biases", sampled * MAX_BIASES as u64 * 8)?,
            ends: shared.buffer_from("end tokens", &vec![NO_TOKEN; sampled as usize * MAX_STOP_TOKENS])?,
            run: shared.buffer_from("run", &Run::START)?,
            sampled: readback.buffer("sampled tokens", sampled * (MAX_STEPS * Sampled::WORDS) as u64 * 4)?,
            next_tokens: shared.buffer("next tokens", words)?,
            next_positions: shared.buffer("next positions", words)?,
            targets: shared.buffer("targets", words)?,
            nll: readback.buffer("log probabilities", words)?,
        })
    }

    /// Three words: workgroups of attention in one dispatch.
    pub fn attend_groups(&self, kind: LayerType) -> View {
        let first = if kind == LayerType::Global { 0 } else { 12 };
        self.groups.slice(first..first + 12).expect("there are six words")
    }

    /// Says how many rows are in use: those that are apart, then those of each chunk.
    pub fn set_rows(&mut self, apart: usize, chunks: impl Iterator<Item = usize>) -> Result<()> {
        let mut end = apart as u32;
        let ends: Vec<u32> = chunks
            .map(|rows| {
                end += rows as u32;
                end
            })
            .collect();
        self.rows.write(0, bytemuck::cast_slice(&[0, apart as u32, end]))?;
        Ok(self.chunk_ends.write(0, bytemuck::cast_slice(&ends))?)
    }
}
