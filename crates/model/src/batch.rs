//! The rows of a batch, decode rows and prefill chunks, and the tokens sampled for them.

use crate::{Sampling, pages::Sequence, sampling::RowSampling};

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Token id.
    pub token: u32,
    /// Log probability that the model assigns to it.
    pub logprob: f32,
    /// The [`Sampling::top`] most probable tokens with their log probabilities, the most probable first.
    pub top: Vec<(u32, f32)>,
}

/// The next decode row of one sequence.
pub struct DecodeRow<'a, S = Sequence> {
    /// The sequence. Its KV cache does not hold `token` yet.
    pub sequence: &'a mut S,
    /// The last token of the sequence, and the input of the step.
    pub token: u32,
    /// How the following token is sampled.
    pub sampling: &'a Sampling,
    /// Token mask: one bit per token, lowest bit of the first word first; `None` allows every token.
    pub mask: Option<&'a [u32]>,
    /// Tokens that end a decode run.
    pub stop_token_ids: &'a [u32],
}

impl<'a, S> DecodeRow<'a, S> {
    /// A row without a token mask and without stop tokens.
    pub fn new(sequence: &'a mut S, token: u32, sampling: &'a Sampling) -> Self {
        Self { sequence, token, sampling, mask: None, stop_token_ids: &[] }
    }

    /// How its output row is sampled.
    pub(crate) fn row_sampling(&self) -> RowSampling<'a> {
        RowSampling { sampling: self.sampling, mask: self.mask }
    }
}

/// The rows of one sequence in a verify step: its last token, and drafts of the tokens after it.
pub struct VerifyRows<'a, S = Sequence> {
    /// The sequence. Its KV cache does not hold `token` yet.
    pub sequence: &'a mut S,
    /// The last token of the sequence.
    pub token: u32,
    /// Drafts of the tokens after it. None with penalties, whose token counts would include rejected drafts.
    pub drafts: &'a [u32],
    /// How the tokens after each of these are sampled.
    pub sampling: &'a Sampling,
    /// Token masks of the rows, as in [`DecodeRow::mask`]; rows without one allow every token.
    pub masks: &'a [&'a [u32]],
}

impl<S> VerifyRows<'_, S> {
    /// The input tokens of the rows.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        [self.token].into_iter().chain(self.drafts.iter().copied())
    }

    /// The number of drafts to accept, by the token that was sampled for each row: a draft is accepted if it is the token
    /// that was sampled before it, and all drafts before it were accepted.
    pub fn accepted(&self, sampled: impl IntoIterator<Item = u32>) -> usize {
        self.drafts.iter().zip(sampled).take_while(|(draft, sampled)| *draft == sampled).count()
    }
}

/// The part of one prompt that a single step processes.
pub struct PrefillChunk<'a, S = Sequence> {
    /// The sequence that the tokens are appended to.
    pub sequence: &'a mut S,
    /// The tokens of this chunk.
    pub tokens: &'a [u32],
    /// How the first token after the prompt is sampled. Penalties count the tokens of every chunk, so all
    /// chunks of a prompt carry the same configuration.
    pub sampling: &'a Sampling,
    /// Token mask of the first token, as in [`DecodeRow::mask`]; ignored unless `last` is set.
    pub mask: Option<&'a [u32]>,
    /// Whether this is the prompt's last chunk. A token is sampled only after the last chunk.
    pub last: bool,
}

impl<'a, S> PrefillChunk<'a, S> {
    /// A chunk without a token mask.
    pub fn new(sequence: &'a mut S, tokens: &'a [u32], sampling: &'a Sampling, last: bool) -> Self {
        Self { sequence, tokens, sampling, mask: None, last }
    }
}

/// The tokens sampled by a mixed step.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedOutput {
    /// One token per decode row, in the order of the rows.
    pub decoded: Vec<Sampled>,
    /// One entry per prefill chunk: the first token after the prompt if the chunk was its last.
    pub first_tokens: Vec<Option<Sampled>>,
}
