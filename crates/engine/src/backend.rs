//! What the engine needs of whatever carries sequences forward, so that its scheduling is tested without a GPU.

use std::time::Duration;

use model::{DecodeRow, MixedOutput, PrefillChunk, Sampled};

/// What a backend was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences at a time.
    pub max_sequences: u32,
    /// Positions of a sequence. The pages are enough for one of them at least.
    pub context_length: u32,
    /// Tokens go up to here.
    pub vocab_size: u32,
    /// Positions of a page.
    pub page_size: u32,
    /// Pages of all sequences together.
    pub pages: u32,
    /// Sequences that one step reads for at most.
    pub max_chunks_per_step: u32,
    /// Whether what was read is kept for texts that begin alike.
    pub prefix_cache: bool,
}

/// Why a backend did not do something. What it was told of is as it was before, except where the device is lost: then no sequence is of
/// any use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Too few pages are free.
    #[error("too few pages are free")]
    NoFreePages,
    /// Memory of the device or the host ran out.
    #[error("{0}")]
    OutOfMemory(String),
    /// The device is gone, or does not answer.
    #[error("{0}")]
    DeviceLost(String),
    /// What was computed for one of the sequences are no numbers.
    #[error("the model computed no finite numbers")]
    NonFiniteLogits,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl BackendError {
    /// Whether something was wanting that others may give back.
    pub fn is_resource_exhausted(&self) -> bool {
        matches!(self, BackendError::NoFreePages | BackendError::OutOfMemory(_))
    }
}

/// What carries sequences forward.
pub trait Backend: Send + 'static {
    /// One sequence's share of the cache. What it holds and no other does is free when it is dropped, or kept until it is needed.
    type Sequence: Send;

    /// What it was made for; the same at all times.
    fn capacity(&self) -> Capacity;

    /// Pages that no sequence holds.
    fn free_pages(&self) -> u32;

    /// Of those, the ones that are kept for texts that begin with the same tokens.
    fn cached_pages(&self) -> u32;

    /// Pages that a sequence for this text would share with others under way: it needs so many less.
    fn shared_pages(&self, text: &[u32]) -> u32;

    /// A new sequence for this text, and how many of its tokens it holds: at most all but the last. The rest is to be read.
    fn start(&mut self, text: &[u32]) -> Result<(Self::Sequence, usize), BackendError>;

    /// How many tokens to read, of one text or several, beside so many sequences that write, for a step to take no longer than `budget`;
    /// the longest sequence has `depth` positions.
    fn max_prefill_tokens(&self, decode_rows: usize, depth: u32, budget: Duration) -> usize;

    /// How many of so many sequences to carry forward at once, for the most tokens per second: at least one. The others take their turn.
    fn decode_batch_size(&self, decoding: usize) -> usize;

    /// How many steps of so many sequences make a run of the usual length.
    fn decode_run_steps(&self, rows: usize) -> usize;

    /// Bytes of weights, keys and values that a step must read for sequences that hold so many positions, one row of each. Cheap.
    fn step_bytes(&self, depths: &[u32]) -> u64;

    /// Runs one step of a mixed batch: a token per decode row, and 1 to [`Capacity::max_chunks_per_step`] prefill chunks. On an error no
    /// sequence advances.
    fn mixed(
        &mut self,
        decoding: &mut [DecodeRow<'_, Self::Sequence>],
        chunks: &mut [PrefillChunk<'_, Self::Sequence>],
    ) -> Result<MixedOutput, BackendError>;

    /// Decodes up to `max_steps` tokens per row: one list per step, with one token per row, and at least one step. The step
    /// in which any row samples one of its stop tokens is the last. With a token mask in the batch `max_steps` is 1.
    fn decode(
        &mut self,
        batch: &mut [DecodeRow<'_, Self::Sequence>],
        max_steps: usize,
    ) -> Result<Vec<Vec<Sampled>>, BackendError>;

    /// Counts these tokens anew for penalties: a prompt, and what was written after it.
    fn reset_token_counts(
        &mut self,
        sequence: &mut Self::Sequence,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<(), BackendError>;

    /// Whether the device still does what it is told: the least that can be asked of it, waited for.
    fn probe(&mut self) -> Result<(), BackendError>;

    /// Puts a lost device back. Sequences of before are of no use.
    fn recover(&mut self) -> Result<(), BackendError>;
}
