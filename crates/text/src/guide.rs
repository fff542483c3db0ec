//! What an answer must look like, as whoever chooses its tokens needs to know it.

/// Says which tokens may come next, and is told which one came.
///
/// Errors are texts for whoever asked for the answer. After one there is no sense in going on.
pub trait Guide: Send {
    /// Fills in the tokens that may come next: bit t % 32 of word t / 32 is token t, for a vocabulary of up to 32 × `words.len()`
    /// tokens. Tokens that end an answer are among them only where it may end.
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String>;

    /// Takes note of the next token, which the last mask allowed.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Whether the answer is whole, and nothing but its end can follow.
    fn is_over(&self) -> bool;

    /// One more at the same place, to go on from there by itself.
    fn fork(&self) -> Box<dyn Guide>;
}

impl Clone for Box<dyn Guide> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

impl std::fmt::Debug for dyn Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").field("is_over", &self.is_over()).finish_non_exhaustive()
    }
}
