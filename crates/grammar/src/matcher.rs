//! One answer, followed token by token.

use llguidance::{TokenParser, api::StopReason};
use text::Guide;

use crate::{Error, Result};

/// Follows one answer.
#[derive(Clone)]
pub struct Matcher {
    what: &'static str,
    inner: llguidance::Matcher,
}

impl Matcher {
    pub(crate) fn new(what: &'static str, parser: TokenParser) -> Self {
        Self { what, inner: llguidance::Matcher::new(Ok(parser)) }
    }

    /// Fills in the tokens that may come next: bit t % 32 of word t / 32 is token t. The ends of an answer are among them where it may
    /// end. An error where the words are too few, or the grammar has become too much work.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        let allowed =
            self.inner.compute_mask_or_eos().map_err(|error| Error::lost(self.what, &error.to_string()))?;
        let count = allowed.len().div_ceil(32).min(allowed.as_slice().len());
        let allowed = &allowed.as_slice()[..count];
        let (used, rest) = words.split_at_mut_checked(count).ok_or_else(|| {
            Error::lost(self.what, &format!("its vocabulary needs {count} words of a mask"))
        })?;
        used.copy_from_slice(allowed);
        rest.fill(0);
        Ok(())
    }

    /// Takes note of the next token. An error where it may not follow.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        self.inner.consume_token(token).map_err(|error| Error::lost(self.what, &error.to_string()))
    }

    /// Whether the answer is whole, and nothing but its end can follow.
    pub fn is_over(&self) -> bool {
        matches!(
            self.inner.stop_reason(),
            StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence
        )
    }
}

impl Guide for Matcher {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        self.mask(words).map_err(|error| error.to_string())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.accept(token).map_err(|error| error.to_string())
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }

    fn fork(&self) -> Box<dyn Guide> {
        Box::new(Matcher { what: self.what, inner: self.inner.deep_clone() })
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("what", &self.what)
            .field("is_over", &self.is_over())
            .finish_non_exhaustive()
    }
}
