//! What is asked for.

use std::{num::NonZeroU32, time::Instant};

use model::Sampling;
use text::Guide;

use crate::{Bounds, Refused};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens to go on from.
    pub prompt: Vec<u32>,
    /// Most tokens of the answer.
    pub most: NonZeroU32,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens that end the answer; they are not part of it.
    pub ends: Vec<u32>,
    /// What the answer must look like. It decides where an answer may end, with tokens that should be among `ends`.
    pub grammar: Option<Box<dyn Guide>>,
    /// When the answer is of no use any more.
    pub deadline: Option<Instant>,
}

impl Request {
    /// A greedy answer of at most so many tokens, whenever it comes.
    pub fn new(prompt: Vec<u32>, most: NonZeroU32) -> Self {
        Self { prompt, most, sampling: Sampling::default(), ends: vec![], grammar: None, deadline: None }
    }

    /// Whether it can be done at all.
    pub(crate) fn check(&self, bounds: &Bounds) -> Result<(), Refused> {
        let Bounds { vocab, context, .. } = *bounds;
        if self.prompt.is_empty() {
            return Err(Refused::Invalid("the prompt is empty: give at least one token".into()));
        }
        if let Some(token) = self.prompt.iter().find(|token| **token >= vocab) {
            let text = format!("token {token} is not in the model's vocabulary of {vocab}");
            return Err(Refused::Invalid(text));
        }
        if self.prompt.len() > context as usize {
            return Err(Refused::TooLong { tokens: self.prompt.len(), context });
        }
        self.sampling.check(vocab).map_err(|error| Refused::Invalid(error.to_string()))
    }
}
