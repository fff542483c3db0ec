//! A simple token constraint.

use crate::TokenConstraint;

/// Allows multiples of a number, up to a maximum number of tokens. Panics on tokens that it did not allow.
#[derive(Clone, Debug)]
pub struct EveryNth {
    /// Multiples of this token id are allowed.
    pub n: u32,
    /// Finished after this many tokens.
    pub max_tokens: usize,
    /// A stop token, allowed after an even number of tokens only.
    pub stop_token: Option<u32>,
    /// Computing a mask fails after this many tokens.
    pub fails_after: Option<usize>,
    /// Lifted after this many tokens.
    pub lifted_after: Option<usize>,
    /// Tokens accepted so far.
    pub accepted: usize,
}

impl EveryNth {
    /// Allows any number of multiples of `n`.
    pub fn new(n: u32) -> Self {
        Self {
            n,
            max_tokens: usize::MAX,
            stop_token: None,
            fails_after: None,
            lifted_after: None,
            accepted: 0,
        }
    }

    fn allows(&self, token: u32) -> bool {
        token.is_multiple_of(self.n) && self.stop_token != Some(token)
            || self.stop_token == Some(token) && self.accepted.is_multiple_of(2)
    }
}

impl TokenConstraint for EveryNth {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        if self.fails_after.is_some_and(|limit| self.accepted >= limit) {
            return Err(format!("no more than {} tokens", self.accepted));
        }
        assert!(!self.is_finished(), "mask requested from a finished constraint");
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

    fn is_lifted(&self) -> bool {
        self.lifted_after.is_some_and(|count| self.accepted >= count)
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}
