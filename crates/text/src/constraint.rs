//! The interface between a grammar and a sampler: which tokens may come next.

/// A constraint on the tokens of one completion, such as a JSON schema.
///
/// The sampler calls [`mask`](Self::mask) before each token and [`accept`](Self::accept) after it. Errors are
/// messages for the client that sent the request; after an error the constraint must not be used again.
pub trait TokenConstraint: Send {
    /// Writes the mask of tokens allowed next: bit t % 32 of word t / 32 is token t. The mask covers a
    /// vocabulary of up to 32 × `words.len()` tokens. Stop tokens are allowed only where the completion may
    /// end.
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String>;

    /// Advances by one token, which the last mask must have allowed.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Whether the completion is complete, so that only a stop token may follow.
    fn is_finished(&self) -> bool;

    /// Whether every token may follow, here and later: the constraint is not needed any more. A constraint
    /// costs time even if it allows everything.
    fn is_lifted(&self) -> bool {
        false
    }

    /// An independent copy in the same state.
    fn fork(&self) -> Box<dyn TokenConstraint>;
}

impl Clone for Box<dyn TokenConstraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

impl std::fmt::Debug for dyn TokenConstraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenConstraint").field("is_finished", &self.is_finished()).finish_non_exhaustive()
    }
}
