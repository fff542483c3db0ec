//! `min_tokens`: no stop token before a completion has that many tokens.

use text::TokenConstraint;

/// A constraint that forbids stop tokens at first, on top of another one.
pub(crate) struct MinTokens {
    inner: Option<Box<dyn TokenConstraint>>,
    stop_token_ids: Vec<u32>,
    /// Tokens until a stop token is allowed.
    left: u32,
}

impl MinTokens {
    pub(crate) fn new(
        inner: Option<Box<dyn TokenConstraint>>,
        stop_token_ids: Vec<u32>,
        min_tokens: u32,
    ) -> MinTokens {
        MinTokens { inner, stop_token_ids, left: min_tokens }
    }
}

impl TokenConstraint for MinTokens {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        match &mut self.inner {
            Some(inner) => inner.mask(words)?,
            None => words.fill(u32::MAX),
        }
        // A complete output has no other continuation.
        if self.left > 0 && !self.is_finished() {
            for id in &self.stop_token_ids {
                if let Some(word) = words.get_mut(*id as usize / 32) {
                    *word &= !(1 << (id % 32));
                }
            }
            if words.iter().all(|word| *word == 0) {
                return Err("'min_tokens' is not reached, but the output can only end here".to_owned());
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.left = self.left.saturating_sub(1);
        self.inner.as_mut().map_or(Ok(()), |inner| inner.accept(token))
    }

    fn is_finished(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.is_finished())
    }

    fn is_lifted(&self) -> bool {
        self.left == 0 && self.inner.as_ref().is_none_or(|inner| inner.is_lifted())
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        let inner = self.inner.as_ref().map(|inner| inner.fork());
        Box::new(MinTokens { inner, stop_token_ids: self.stop_token_ids.clone(), left: self.left })
    }
}
