//! A guide of plain arithmetic.

use crate::TokenConstraint;

/// Allows every so-many-th token, and nothing after so many of them. What it is told is checked.
#[derive(Clone, Debug)]
pub struct EveryNth {
    /// Tokens that are multiples of this are allowed.
    pub n: u32,
    /// Tokens of a whole answer.
    pub max_tokens: usize,
    /// A token that ends the answer, allowed where the tokens so far are an even number.
    pub stop_token: Option<u32>,
    /// How many tokens go well; then it fails.
    pub fails_after: Option<usize>,
    /// Tokens so far.
    pub accepted: usize,
}

impl EveryNth {
    /// Any number of multiples.
    pub fn new(n: u32) -> Self {
        Self { n, max_tokens: usize::MAX, stop_token: None, fails_after: None, accepted: 0 }
    }

    fn allows(&self, token: u32) -> bool {
        token.is_multiple_of(self.n) && self.stop_token != Some(token)
            || self.stop_token == Some(token) && self.accepted.is_multiple_of(2)
    }
}

impl TokenConstraint for EveryNth {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        if self.fails_after.is_some_and(|most| self.accepted >= most) {
            return Err(format!("no more than {} tokens", self.accepted));
        }
        assert!(!self.is_finished(), "a mask for what is over");
        for (word, first) in words.iter_mut().zip((0..).step_by(32)) {
            *word = (0..32).map(|bit| u32::from(self.allows(first + bit)) << bit).sum();
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        assert!(self.allows(token) && !self.is_finished(), "token {token} was not allowed");
        self.accepted += 1;
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.accepted >= self.max_tokens
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}
