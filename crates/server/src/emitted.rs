//! Which tokens a client is told the probabilities of: those whose text it was sent.

use std::collections::VecDeque;

use engine::Token;

/// A token whose text was sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    /// The most probable in its place.
    pub(crate) top: Vec<(u32, f32)>,
    /// Characters before its text.
    pub(crate) offset: usize,
}

/// Tokens on their way out. A token is told with the first of its text that is sent; one that completes no character, with the character
/// that it is part of. What a stop string has cut off is never told.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    waiting: VecDeque<Told>,
    /// Characters that the tokens have made.
    made: usize,
    /// Of those, the ones that were sent.
    sent: usize,
}

impl Tokens {
    /// A token that has completed so much text.
    pub(crate) fn made(&mut self, token: Token, text: &str) {
        let Token { id, logprob, top } = token;
        self.waiting.push_back(Told { id, logprob, top, offset: self.made });
        self.made += text.chars().count();
    }

    /// So much more is sent: the tokens that are told with it.
    pub(crate) fn sent(&mut self, text: &str) -> Vec<Told> {
        self.sent += text.chars().count();
        let count = self.waiting.partition_point(|told| told.offset < self.sent);
        self.waiting.drain(..count).collect()
    }

    /// So much more is not sent, and neither told: it is no text of the answer, but calls a tool.
    pub(crate) fn hidden(&mut self, text: &str) {
        drop(self.sent(text));
    }

    /// The answer was not cut off: all that is left.
    pub(crate) fn rest(&mut self) -> Vec<Told> {
        self.waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32) -> Token {
        Token { id, logprob: -1.0, top: vec![] }
    }

    fn ids(told: Vec<Told>) -> Vec<(u32, usize)> {
        told.into_iter().map(|told| (told.id, told.offset)).collect()
    }

    #[test]
    fn a_token_is_told_with_the_first_of_its_text() {
        let mut tokens = Tokens::default();
        tokens.made(token(1), "é one");
        tokens.made(token(2), " two");
        assert_eq!(ids(tokens.sent("")), []);
        assert_eq!(ids(tokens.sent("é on")), [(1, 0)]);
        // Two of three bytes of a character, and the last.
        tokens.made(token(3), "");
        tokens.made(token(4), "");
        tokens.made(token(5), "鳥");
        assert_eq!(ids(tokens.sent("e two")), [(2, 5)]);
        assert_eq!(ids(tokens.sent("鳥")), [(3, 9), (4, 9), (5, 9)]);
        // The first of two calls begins in a token of the text.
        tokens.made(token(10), "a<");
        tokens.made(token(11), "call>");
        tokens.made(token(12), "b");
        assert_eq!(ids(tokens.sent("a")), [(10, 10)]);
        tokens.hidden("<call>");
        assert_eq!(ids(tokens.sent("b")), [(12, 17)]);
        tokens.made(token(6), "x");
        tokens.made(token(7), "");
        assert_eq!(ids(tokens.rest()), [(6, 18), (7, 19)]);
    }
}
