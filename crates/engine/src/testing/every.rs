//! A guide of plain arithmetic.

use crate::Guide;

/// Allows every so-many-th token, and nothing after so many of them. What it is told is checked.
#[derive(Clone, Debug)]
pub struct Every {
    /// Tokens that are multiples of this are allowed.
    pub of: u32,
    /// Tokens of a whole answer.
    pub most: usize,
    /// A token that ends the answer, allowed where the tokens so far are an even number.
    pub end: Option<u32>,
    /// How many tokens go well; then it fails.
    pub fails_after: Option<usize>,
    /// Tokens so far.
    pub seen: usize,
}

impl Every {
    /// Any number of multiples.
    pub fn new(of: u32) -> Self {
        Self { of, most: usize::MAX, end: None, fails_after: None, seen: 0 }
    }

    fn allows(&self, token: u32) -> bool {
        token.is_multiple_of(self.of) && self.end != Some(token)
            || self.end == Some(token) && self.seen.is_multiple_of(2)
    }
}

impl Guide for Every {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        if self.fails_after.is_some_and(|most| self.seen >= most) {
            return Err(format!("no more than {} tokens", self.seen));
        }
        assert!(!self.is_over(), "a mask for what is over");
        for (word, first) in words.iter_mut().zip((0..).step_by(32)) {
            *word = (0..32).map(|bit| u32::from(self.allows(first + bit)) << bit).sum();
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        assert!(self.allows(token) && !self.is_over(), "token {token} was not allowed");
        self.seen += 1;
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.seen >= self.most
    }

    fn fork(&self) -> Box<dyn Guide> {
        Box::new(self.clone())
    }
}
