//! An index of a text: where it continues after given tokens.

use std::collections::HashMap;

use model::is_image_token;

/// Tokens of a match beyond which a longer one says nothing more.
pub(super) const MAX_MATCH: usize = 8;

/// Tokens that a match has at least.
const MIN_MATCH: usize = 2;

/// Occurrences of a pair of tokens that are compared, latest first: bounds the work where a pair is very frequent.
const MAX_OCCURRENCES: usize = 32;

/// A place in a text, after tokens that another text ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// Position of the token after the match.
    pub position: usize,
    /// Tokens before it that are the same, at most [`MAX_MATCH`].
    pub length: usize,
}

/// A text that grows, with the positions of each pair of tokens.
#[derive(Debug, Default)]
pub(super) struct SuffixIndex {
    tokens: Vec<u32>,
    /// Position after the latest occurrence of each pair of tokens.
    latest: HashMap<[u32; MIN_MATCH], u32>,
    /// By position: the position after the previous occurrence of the pair that ends there; 0 if there is none.
    previous: Vec<u32>,
}

impl SuffixIndex {
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn extend(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.tokens.push(*token);
            let end = self.tokens.len();
            self.previous.resize(end + 1, 0);
            if let [.., first, second] = self.tokens[..]
                && !is_image_token(first)
                && !is_image_token(second)
            {
                let earlier = self.latest.insert([first, second], end as u32);
                self.previous[end] = earlier.unwrap_or(0);
            }
        }
    }

    /// The place where this text continues after the longest suffix of `context`; of several, the latest.
    pub fn longest_match(&self, context: &[u32]) -> Option<Match> {
        let [.., first, second] = *context else { return None };
        let mut position = self.latest.get(&[first, second]).map_or(0, |end| *end as usize);
        let mut best: Option<Match> = None;
        for _ in 0..MAX_OCCURRENCES {
            if position == 0 {
                break;
            }
            // Nothing follows the end of the text, which is where a text's own suffix is.
            if position < self.tokens.len() {
                let before = self.tokens[..position].iter().rev();
                let common = before.zip(context.iter().rev()).take(MAX_MATCH).take_while(|(a, b)| a == b);
                let length = common.count();
                if best.is_none_or(|best| length > best.length) {
                    best = Some(Match { position, length });
                }
                if length == MAX_MATCH {
                    break;
                }
            }
            position = self.previous[position] as usize;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn index(tokens: &[u32]) -> SuffixIndex {
        let mut index = SuffixIndex::default();
        index.extend(tokens);
        index
    }

    #[test]
    fn the_longest_match_wins_and_the_latest_of_equal_ones() {
        let text = [1, 2, 3, 9, 5, 2, 3, 8, 6, 2, 3, 7];
        let find =
            |context: &[u32]| index(&text).longest_match(context).map(|found| (found.position, found.length));
        assert_eq!(find(&[5, 2, 3]), Some((7, 3)));
        assert_eq!(find(&[4, 2, 3]), Some((11, 2)));
        assert_eq!(find(&[3]), None);
        assert_eq!(find(&[3, 2]), None);
        assert_eq!(find(&[3, 7]), None, "nothing follows");
    }

    #[test]
    fn a_frequent_pair_costs_no_more_than_a_rare_one() {
        // The only long match is too far back.
        let mut text = vec![7, 6, 5, 1, 1];
        text.extend([2, 1, 1].repeat(MAX_OCCURRENCES));
        assert_eq!(index(&text).longest_match(&[7, 6, 5, 1, 1]).unwrap().length, 2);
        assert_eq!(index(&vec![1; 100_000]).longest_match(&[1; 20]).unwrap().length, MAX_MATCH);
    }

    proptest! {
        #[test]
        fn matches_are_those_of_an_exhaustive_search(text in vec(0..4_u32, 0..25), context in vec(0..4_u32, 0..12)) {
            let length = |position: usize| {
                let pairs = text[..position].iter().rev().zip(context.iter().rev());
                pairs.take(MAX_MATCH).take_while(|(a, b)| a == b).count()
            };
            let matches = (0..text.len()).filter(|position| length(*position) >= MIN_MATCH);
            let best = matches.max_by_key(|position| (length(*position), *position));
            let expected = best.map(|position| Match { position, length: length(position) });
            prop_assert_eq!(index(&text).longest_match(&context), expected);
        }

        #[test]
        fn text_may_come_in_pieces(text in vec(0..4_u32, 0..25), cut in 0..25_usize) {
            let mut pieces = SuffixIndex::default();
            let (first, second) = text.split_at(cut.min(text.len()));
            pieces.extend(first);
            pieces.extend(second);
            prop_assert_eq!(pieces.longest_match(&text), index(&text).longest_match(&text));
        }
    }
}
