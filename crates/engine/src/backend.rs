//! The interface between the scheduler and a model, so that scheduling can be tested without a GPU.

use std::time::Duration;

use model::{DecodeRow, DraftInput, Image, MixedOutput, PrefillChunk, Sampled, VerifyRows, WriteBehind};

/// Fixed limits of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum number of concurrent sequences.
    pub max_sequences: u32,
    /// Maximum tokens per sequence, prompt and completion together. The pages suffice for at least one such
    /// sequence.
    pub context_length: u32,
    /// Number of tokens in the vocabulary; token ids are below it.
    pub vocab_size: u32,
    /// Tokens per page.
    pub page_size: u32,
    /// Number of pages, for all sequences together.
    pub pages: u32,
    /// Maximum number of prefill chunks per step.
    pub max_chunks_per_step: u32,
    /// Maximum rows of a verify step; 1 if the backend verifies no drafts.
    pub max_verify_rows: u32,
    /// Maximum sequences of a verify step: batches of more decode without drafts.
    pub max_verify_sequences: u32,
    /// Whether it has a draft model.
    pub has_draft_model: bool,
    /// Maximum number of images per step; 0 if the model takes no images.
    pub max_images_per_step: u32,
    /// Whether pages are kept for later prompts with the same prefix.
    pub prefix_cache: bool,
}

/// Why a backend call failed. Its sequences are unchanged, except after [`DeviceLost`](Self::DeviceLost),
/// which invalidates all sequences.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The KV cache has too few free pages.
    #[error("too few free KV cache pages")]
    NoFreePages,
    /// Device or host memory is exhausted.
    #[error("{0}")]
    OutOfMemory(String),
    /// The device is lost, or a step exceeded its time limit.
    #[error("{0}")]
    DeviceLost(String),
    /// The model produced NaN or Inf logits for one of the sequences.
    #[error("the model produced NaN or Inf logits")]
    NonFiniteLogits,
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl BackendError {
    /// Whether pages or memory are missing, which other requests may free.
    pub fn is_resource_exhausted(&self) -> bool {
        matches!(self, BackendError::NoFreePages | BackendError::OutOfMemory(_))
    }
}

/// Runs batches of sequences through a model. The scheduler owns the backend and calls it from one thread.
pub trait Backend: Send + 'static {
    /// A sequence's share of the KV cache. Dropping it frees the pages that no other sequence holds, or
    /// leaves them to the prefix cache.
    type Sequence: Send;

    /// A request's sequence in the draft model's KV cache. Dropping it frees its pages.
    type DraftSequence: Default + Send;

    /// Fixed limits; they never change.
    fn capacity(&self) -> Capacity;

    /// Pages that no sequence holds.
    fn free_pages(&self) -> u32;

    /// Free pages that the prefix cache holds.
    fn cached_pages(&self) -> u32;

    /// Pages that a sequence of these tokens would share with running sequences, and need not allocate.
    fn shared_pages(&self, tokens: &[u32]) -> u32;

    /// Reads pages of these tokens' prefix that are stored on disk back into the prefix cache, for about as long as
    /// `budget`; with `wait` also if they take longer to be read. Returns whether it is done; if not, the next call with the
    /// same tokens continues. Pages that cannot be read are left to prefill.
    fn restore(&mut self, _tokens: &[u32], _budget: Duration, _wait: bool) -> Result<bool, BackendError> {
        Ok(true)
    }

    /// Gives up what [`Backend::restore`] would continue.
    fn forget_restore(&mut self) {}

    /// Copies the next page of a finished sequence that is to be stored on disk: work of a few milliseconds at most.
    fn write_behind(&mut self) -> Result<WriteBehind, BackendError> {
        Ok(WriteBehind::Done)
    }

    /// Starts an empty sequence that takes no part in the prefix cache, for [`Backend::score`]: tokens from the cache
    /// have no logits.
    fn start_empty(&mut self) -> Result<Self::Sequence, BackendError>;

    /// Starts a sequence for these tokens. Returns it with the number of tokens that came from the prefix
    /// cache, at most all but the last. The rest must be prefilled.
    fn start(&mut self, tokens: &[u32]) -> Result<(Self::Sequence, usize), BackendError>;

    /// Maximum prefill tokens of a step, of one prompt or several, next to `decode_rows` decode rows, for the
    /// step to take no longer than `budget`. The longest sequence of the batch has `depth` tokens.
    fn max_prefill_tokens(&self, decode_rows: usize, depth: u32, budget: Duration) -> usize;

    /// The batch size with the highest decode throughput for `decoding` sequences, at least one. The
    /// scheduler rotates the sequences that it leaves out.
    fn decode_batch_size(&self, decoding: usize) -> usize;

    /// Usual number of steps of a decode run with this many rows.
    fn decode_run_steps(&self, rows: usize) -> usize;

    /// Bytes of weights, keys and values that a decode step reads, given the length of each sequence. Cheap. `None` if it
    /// depends on the tokens, as with experts.
    fn step_bytes(&self, depths: &[u32]) -> Option<u64>;

    /// Encodes those of the images whose soft tokens are not cached, for about as long as `budget`. Returns whether all are
    /// ready for the next step; if not, the next call continues.
    fn encode(&mut self, images: &[Image], budget: Duration) -> Result<bool, BackendError>;

    /// Runs one step of a mixed batch: a token per decode row, and 1 to [`Capacity::max_chunks_per_step`]
    /// prefill chunks. An image lies in one chunk, and is ready. On an error no sequence advances.
    fn mixed(
        &mut self,
        decoding: &mut [DecodeRow<'_, Self::Sequence>],
        chunks: &mut [PrefillChunk<'_, Self::Sequence>],
    ) -> Result<MixedOutput, BackendError>;

    /// Maximum tokens of [`Backend::score`].
    fn max_scored_tokens(&self) -> usize;

    /// Prefills `tokens` and returns, for each of them, the one of `following` at the same index with its log
    /// probability and the `top` most probable tokens. On an error the sequence does not advance.
    fn score(
        &mut self,
        sequence: &mut Self::Sequence,
        tokens: &[u32],
        following: &[u32],
        top: u32,
    ) -> Result<Vec<Sampled>, BackendError>;

    /// Decodes up to `max_steps` tokens per row: one list per step, with one token per row, and at least one
    /// step. The step in which any row samples one of its stop tokens is the last. With a token mask in the
    /// batch `max_steps` is 1.
    fn decode(
        &mut self,
        batch: &mut [DecodeRow<'_, Self::Sequence>],
        max_steps: usize,
    ) -> Result<Vec<Vec<Sampled>>, BackendError>;

    /// Runs one verify step and returns, per sequence, the tokens that were sampled for its first row and after each
    /// accepted draft ([`VerifyRows::accepted`]). They are the tokens that [`Backend::decode`] would return one by one.
    /// Sequences advance by their rows up to the last accepted draft. The rows are at most
    /// [`Capacity::max_verify_rows`] together. On an error no sequence advances.
    fn verify(
        &mut self,
        batch: &mut [VerifyRows<'_, Self::Sequence>],
    ) -> Result<Vec<Vec<Sampled>>, BackendError>;

    /// Drafts of the next tokens by the draft model, one list per input, of at most `max_drafts`. Empty while its prompt is
    /// still being prefilled, and without a draft model.
    fn draft(
        &mut self,
        batch: &mut [DraftInput<'_, Self::DraftSequence>],
    ) -> Result<Vec<Vec<u32>>, BackendError>;

    /// Time that the draft model is expected to take before it can draft for a request with this many tokens; zero if it lacks
    /// only a few of them.
    fn draft_prefill_time(&self, sequence: &Self::DraftSequence, tokens: usize) -> Duration;

    /// Time of a step of the draft model with this many sequences, which yields a draft for each; `None` if it was not
    /// measured.
    fn draft_step_time(&self, sequences: usize) -> Option<Duration>;

    /// Time of a decode or verify step of this many rows, by the latest of them; `None` if it was not measured. Without
    /// one for all sequences of a batch nothing is drafted.
    fn step_time(&self, rows: usize) -> Option<Duration>;

    /// Resets the token counts that penalties use to a prompt and the tokens generated after it.
    fn reset_token_counts(
        &mut self,
        sequence: &mut Self::Sequence,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<(), BackendError>;

    /// Submits a minimal piece of work and waits for it, to test whether the device still executes anything.
    fn probe(&mut self) -> Result<(), BackendError>;

    /// Reopens a lost device. Earlier sequences stay invalid and must be dropped before.
    fn recover(&mut self) -> Result<(), BackendError>;
}
