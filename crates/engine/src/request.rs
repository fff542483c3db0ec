//! Generation requests.

use std::{num::NonZeroU32, sync::Arc, time::Instant};

use model::{Image, Sampling, image_blocks, is_image_token};
use text::TokenConstraint;
use tracing::Span;

use crate::{Capacity, SubmitError};

/// A generation request: a prompt, how to sample after it, and when to stop.
#[derive(Clone, Debug)]
pub struct Request {
    /// Prompt tokens; at least one. Blocks of image tokens stand for the images.
    pub prompt: Vec<u32>,
    /// The images of the prompt, in the order of their blocks.
    pub images: Vec<Image>,
    /// Maximum number of completion tokens; 0 only with `prompt_logprobs`.
    pub max_tokens: u32,
    /// Report the log probability of every prompt token but the first, with this many of the most probable tokens at
    /// its position.
    pub prompt_logprobs: Option<u32>,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Tokens that end the completion. They are not part of it.
    pub stop_token_ids: Vec<u32>,
    /// Constraint on the output. It decides where the completion may end; the tokens it ends with should be
    /// in `stop_token_ids`.
    pub grammar: Option<Box<dyn TokenConstraint>>,
    /// Whether tokens may be drafted. The completion is the same without.
    pub speculate: bool,
    /// Predicted tokens of the completion, to draft from; at most as many as the context length.
    pub prediction: Vec<u32>,
    /// The request fails with [`RequestError::DeadlineExceeded`](crate::RequestError::DeadlineExceeded) at
    /// this time, queued or running.
    pub deadline: Option<Instant>,
    /// Name of the request in [`Status::requests`](crate::Status::requests), such as the id that its client got.
    pub name: Arc<str>,
    /// Parent of the request's log events: `admitted`, `first token`, `preempted`, `finished`, `cancelled`,
    /// `failed`. The server sets the span of the HTTP request, which carries the `request_id`.
    pub span: Span,
}

impl Request {
    /// A request with greedy sampling, no stop tokens, no grammar, no prediction, no deadline, no name and no span.
    pub fn new(prompt: Vec<u32>, max_tokens: NonZeroU32) -> Self {
        Self {
            prompt,
            images: vec![],
            max_tokens: max_tokens.get(),
            prompt_logprobs: None,
            sampling: Sampling::default(),
            stop_token_ids: vec![],
            grammar: None,
            speculate: true,
            prediction: vec![],
            deadline: None,
            name: Arc::default(),
            span: Span::none(),
        }
    }

    /// Rejects requests that this backend could never run.
    pub(crate) fn check(&self, capacity: &Capacity) -> Result<(), SubmitError> {
        let Capacity { vocab_size, context_length, .. } = *capacity;
        if self.prompt.is_empty() {
            return Err(SubmitError::Invalid("the prompt is empty: give at least one token".into()));
        }
        self.check_images(capacity)?;
        let mut text = self.prompt.iter().filter(|token| !is_image_token(**token));
        if let Some(token) = text.find(|token| **token >= vocab_size) {
            let text = format!("token {token} is not in the model's vocabulary of {vocab_size}");
            return Err(SubmitError::Invalid(text));
        }
        if self.prompt.len() > context_length as usize {
            return Err(SubmitError::PromptTooLong { tokens: self.prompt.len(), context_length });
        }
        if self.prediction.len() > context_length as usize {
            let text = format!(
                "the prediction has {} tokens, but a completion has at most {context_length}",
                self.prediction.len()
            );
            return Err(SubmitError::Invalid(text));
        }
        if let Some(token) = self.prediction.iter().find(|token| **token >= vocab_size) {
            let text =
                format!("token {token} of the prediction is not in the model's vocabulary of {vocab_size}");
            return Err(SubmitError::Invalid(text));
        }
        if self.max_tokens == 0 && self.prompt_logprobs.is_none() {
            return Err(SubmitError::Invalid("max_tokens is 0: it must be at least 1".into()));
        }
        let prompt = Sampling { top: self.prompt_logprobs.unwrap_or(0), ..Sampling::default() };
        prompt.check(vocab_size).map_err(|error| SubmitError::Invalid(error.to_string()))?;
        self.sampling.check(vocab_size).map_err(|error| SubmitError::Invalid(error.to_string()))
    }

    /// Checks that the images are those of the prompt's image tokens.
    fn check_images(&self, capacity: &Capacity) -> Result<(), SubmitError> {
        let invalid = |text: &str| Err(SubmitError::Invalid(text.into()));
        if !self.images.is_empty() && capacity.max_images_per_step == 0 {
            return invalid("the prompt has images, but no image encoder is loaded");
        }
        let mut images = self.images.iter();
        for block in image_blocks(&self.prompt) {
            let is_known = |image: &Image| self.prompt[block].iter().copied().eq(image.tokens());
            if !images.next().is_some_and(is_known) {
                return invalid("the prompt has image tokens that are not those of its images");
            }
        }
        if images.next().is_some() {
            return invalid("the prompt has fewer blocks of image tokens than images");
        }
        if !self.images.is_empty() && self.prompt_logprobs.is_some() {
            return invalid("log probabilities of a prompt are not available for prompts with images");
        }
        Ok(())
    }
}
