//! Matching one completion against a grammar, token by token.

use llguidance::{TokenParser, api::StopReason};
use text::TokenConstraint;

use crate::{Error, Result};

/// The state of one completion in a grammar.
#[derive(Clone)]
pub struct Matcher {
    subject: &'static str,
    inner: llguidance::Matcher,
}

impl Matcher {
    pub(crate) fn new(subject: &'static str, parser: TokenParser) -> Self {
        Self { subject, inner: llguidance::Matcher::new(Ok(parser)) }
    }

    /// Writes the mask of tokens allowed next: bit t % 32 of word t / 32 is token t. Stop tokens are allowed
    /// where the completion may end. Fails if `words` is too short for the vocabulary, or if the grammar
    /// exceeds its work limits.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        let allowed = self.inner.compute_mask_or_eos().map_err(|error| self.error(&error))?;
        let count = allowed.len().div_ceil(32).min(allowed.as_slice().len());
        let allowed = &allowed.as_slice()[..count];
        let (used, rest) = words.split_at_mut_checked(count).ok_or_else(|| {
            Error::matching(self.subject, &format!("the vocabulary needs a mask of {count} words"))
        })?;
        used.copy_from_slice(allowed);
        rest.fill(0);
        Ok(())
    }

    /// Advances by one token. Fails if the grammar does not allow it.
    pub fn accept(&mut self, token: u32) -> Result<()> {
        self.inner.consume_token(token).map_err(|error| self.error(&error))
    }

    /// Whether the completion is complete, so that only a stop token may follow.
    pub fn is_finished(&self) -> bool {
        matches!(
            self.inner.stop_reason(),
            StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence
        )
    }

    fn error(&self, error: &dyn std::fmt::Display) -> Error {
        Error::matching(self.subject, &error.to_string())
    }
}

impl TokenConstraint for Matcher {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        self.mask(words).map_err(|error| error.to_string())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.accept(token).map_err(|error| error.to_string())
    }

    fn is_finished(&self) -> bool {
        self.is_finished()
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(Matcher { subject: self.subject, inner: self.inner.deep_clone() })
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("subject", &self.subject)
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}
