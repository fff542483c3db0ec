//! Tracks which tokens to report with logprobs: those whose text has been sent to the client.

use std::collections::VecDeque;

use engine::Token;
use text::Detokenizer;

/// Smallest logprob reported, same as OpenAI's: JSON has no infinity.
pub(crate) const MIN_LOGPROB: f32 = -9999.0;

/// The logprob as it is reported: finite.
pub(crate) fn clamp(logprob: f32) -> f32 {
    // `max` returns the other operand for NaN.
    logprob.max(MIN_LOGPROB)
}

/// A token whose text has been sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EmittedToken {
    pub(crate) id: u32,
    /// `None` for the first token of an echoed prompt, which nothing predicts.
    pub(crate) logprob: Option<f32>,
    /// The most probable tokens at its position, with their logprobs.
    pub(crate) top: Vec<(u32, f32)>,
    /// Offset of its text in the choice's text, in characters.
    pub(crate) offset: usize,
}

/// Generated tokens whose text has not been sent yet.
///
/// A token is emitted with the first character of its text that is sent. A token that completes no character is
/// emitted with the character it is part of. Tokens cut off by a stop string are never emitted.
#[derive(Debug, Default)]
pub(crate) struct PendingTokens {
    tokens: VecDeque<EmittedToken>,
    /// Characters generated so far.
    generated: usize,
    /// Characters sent so far.
    sent: usize,
}

impl PendingTokens {
    /// Adds a token that completed this text.
    pub(crate) fn push(&mut self, token: Token, text: &str) {
        let Token { id, logprob, top } = token;
        self.push_emitted(id, Some(logprob), top, text);
    }

    fn push_emitted(&mut self, id: u32, logprob: Option<f32>, top: Vec<(u32, f32)>, text: &str) {
        self.tokens.push_back(EmittedToken { id, logprob, top, offset: self.generated });
        self.generated += text.chars().count();
    }

    /// Records that the prompt is sent as `echo`, and returns its tokens to emit with it. `tokens` follow the first.
    pub(crate) fn emit_prompt(
        &mut self,
        first: u32,
        tokens: Vec<Token>,
        echo: &str,
        mut detokenizer: Detokenizer,
    ) -> Vec<EmittedToken> {
        self.push_emitted(first, None, vec![], &detokenizer.push(first));
        for token in tokens {
            let text = detokenizer.push(token.id);
            self.push(token, &text);
        }
        // Offsets of the completion count from the end of the echo, whatever its tokens decode to.
        self.generated = echo.chars().count();
        self.sent = self.generated;
        self.emit_rest()
    }

    /// Records that this text is sent, and returns the tokens to emit with it.
    pub(crate) fn emit(&mut self, text: &str) -> Vec<EmittedToken> {
        self.sent += text.chars().count();
        let count = self.tokens.partition_point(|token| token.offset < self.sent);
        self.tokens.drain(..count).collect()
    }

    /// Drops the tokens of this text: it is part of a tool call, not of the content.
    pub(crate) fn skip(&mut self, text: &str) {
        drop(self.emit(text));
    }

    /// The remaining tokens of a completion that was not cut off.
    pub(crate) fn emit_rest(&mut self) -> Vec<EmittedToken> {
        self.tokens.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32) -> Token {
        Token { id, logprob: -1.0, top: vec![] }
    }

    fn ids(emitted: Vec<EmittedToken>) -> Vec<(u32, usize)> {
        emitted.into_iter().map(|token| (token.id, token.offset)).collect()
    }

    #[test]
    fn a_token_is_emitted_with_the_first_character_of_its_text() {
        let mut pending = PendingTokens::default();
        pending.push(token(1), "é one");
        pending.push(token(2), " two");
        assert_eq!(ids(pending.emit("")), []);
        assert_eq!(ids(pending.emit("é on")), [(1, 0)]);
        // Two bytes of a three-byte character, then its last byte.
        pending.push(token(3), "");
        pending.push(token(4), "");
        pending.push(token(5), "鳥");
        assert_eq!(ids(pending.emit("e two")), [(2, 5)]);
        assert_eq!(ids(pending.emit("鳥")), [(3, 9), (4, 9), (5, 9)]);
        // A tool call that starts within a token of the content.
        pending.push(token(10), "a<");
        pending.push(token(11), "call>");
        pending.push(token(12), "b");
        assert_eq!(ids(pending.emit("a")), [(10, 10)]);
        pending.skip("<call>");
        assert_eq!(ids(pending.emit("b")), [(12, 17)]);
        pending.push(token(6), "x");
        pending.push(token(7), "");
        assert_eq!(ids(pending.emit_rest()), [(6, 18), (7, 19)]);
    }
}
