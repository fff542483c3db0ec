//! What is asked for.

use std::{num::NonZeroU32, time::Instant};

use model::Sampling;
use text::TokenConstraint;

use crate::{Capacity, SubmitError};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens to go on from.
    pub prompt: Vec<u32>,
    /// Most tokens of the answer.
    pub max_tokens: NonZeroU32,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens that end the answer; they are not part of it.
    pub stop_token_ids: Vec<u32>,
    /// What the answer must look like. It decides where an answer may end, with tokens that should be among `stop_token_ids`.
    pub grammar: Option<Box<dyn TokenConstraint>>,
    /// When the answer is of no use any more.
    pub deadline: Option<Instant>,
}

impl Request {
    /// A greedy answer of at most so many tokens, whenever it comes.
    pub fn new(prompt: Vec<u32>, max_tokens: NonZeroU32) -> Self {
        Self {
            prompt,
            max_tokens,
            sampling: Sampling::default(),
            stop_token_ids: vec![],
            grammar: None,
            deadline: None,
        }
    }

    /// Whether it can be done at all.
    pub(crate) fn check(&self, capacity: &Capacity) -> Result<(), SubmitError> {
        let Capacity { vocab_size, context_length, .. } = *capacity;
        if self.prompt.is_empty() {
            return Err(SubmitError::Invalid("the prompt is empty: give at least one token".into()));
        }
        if let Some(token) = self.prompt.iter().find(|token| **token >= vocab_size) {
            let text = format!("token {token} is not in the model's vocabulary of {vocab_size}");
            return Err(SubmitError::Invalid(text));
        }
        if self.prompt.len() > context_length as usize {
            return Err(SubmitError::PromptTooLong { tokens: self.prompt.len(), context_length });
        }
        self.sampling.check(vocab_size).map_err(|error| SubmitError::Invalid(error.to_string()))
    }
}
