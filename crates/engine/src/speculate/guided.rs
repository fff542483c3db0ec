//! Drafts under a grammar: a copy of it walks along the drafts.

use text::TokenConstraint;

use super::{Draft, MAX_DRAFTS, Source};

/// Drafts that a grammar allows, and the masks of their rows.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct GuidedDrafts {
    pub drafts: Vec<Draft>,
    /// The mask after each draft, as far as the grammar is not lifted.
    pub masks: Vec<Vec<u32>>,
}

impl GuidedDrafts {
    pub fn tokens(&self) -> Vec<u32> {
        self.drafts.iter().map(|draft| draft.token).collect()
    }

    pub fn truncate(&mut self, drafts: usize) {
        self.drafts.truncate(drafts);
        self.masks.truncate(drafts);
    }
}

/// The only token that a mask allows, if it allows only one.
fn only_token(mask: &[u32]) -> Option<u32> {
    let mut words = mask.iter().enumerate().filter(|(_, word)| **word != 0);
    match (words.next(), words.next()) {
        (Some((index, word)), None) if word.is_power_of_two() => {
            Some(index as u32 * 32 + word.trailing_zeros())
        }
        _ => None,
    }
}

fn allows(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// The drafts of `proposed` that the grammar allows, with the tokens that it forces in their place. `mask` is its mask of the
/// next token; `next_mask` computes later ones, with the tokens that the request bans removed. The drafts end before a
/// stop token, and before a token that completes the grammar: nothing is sampled after either.
pub(crate) fn guide(
    grammar: &dyn TokenConstraint,
    mask: &[u32],
    proposed: &[Draft],
    stop_token_ids: &[u32],
    next_mask: impl Fn(&mut dyn TokenConstraint) -> Option<Vec<u32>>,
) -> GuidedDrafts {
    let mut guided = GuidedDrafts::default();
    let mut copy: Option<Box<dyn TokenConstraint>> = None;
    let mut proposed = proposed;
    while guided.drafts.len() < MAX_DRAFTS {
        let mask = guided.masks.last().map_or(mask, |mask| mask);
        let proposal = proposed.split_off_first();
        let draft = match (only_token(mask), proposal) {
            (Some(token), proposal) => {
                // What follows a proposal that the grammar contradicts is of no use.
                if proposal.is_some_and(|draft| draft.token != token) {
                    proposed = &[];
                }
                Draft { token, source: Source::Grammar }
            }
            (None, Some(draft)) if allows(mask, draft.token) => *draft,
            (None, _) => break,
        };
        let copy = copy.get_or_insert_with(|| grammar.fork());
        // The grammar itself reports its errors when it gets there.
        if stop_token_ids.contains(&draft.token) || copy.accept(draft.token).is_err() || copy.is_finished() {
            break;
        }
        if copy.is_lifted() {
            guided.drafts.push(draft);
            let free = proposed.iter().take_while(|draft| !stop_token_ids.contains(&draft.token));
            guided.drafts.extend(free.take(MAX_DRAFTS - guided.drafts.len()));
            break;
        }
        let Some(mask) = next_mask(&mut **copy) else { break };
        guided.drafts.push(draft);
        guided.masks.push(mask);
    }
    guided
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{speculate::Strength, testing::EveryNth};

    const VOCAB: u32 = 64;

    fn proposals(tokens: &[u32]) -> Vec<Draft> {
        tokens.iter().map(|token| Draft { token: *token, source: Source::Text(Strength::Two) }).collect()
    }

    fn mask(grammar: &mut dyn TokenConstraint) -> Option<Vec<u32>> {
        let mut mask = vec![0; VOCAB.div_ceil(32) as usize];
        grammar.mask(&mut mask).ok().map(|()| mask)
    }

    /// The drafts, and how many of their rows have masks.
    fn guided(mut grammar: EveryNth, proposed: &[u32], stop_token_ids: &[u32]) -> (Vec<u32>, usize) {
        let first = mask(&mut grammar).unwrap();
        let GuidedDrafts { drafts, masks } =
            guide(&grammar, &first, &proposals(proposed), stop_token_ids, mask);
        (drafts.iter().map(|draft| draft.token).collect(), masks.len())
    }

    #[test]
    fn drafts_end_where_the_grammar_does_not_allow_them() {
        assert_eq!(guided(EveryNth::new(2), &[4, 6, 8, 9, 10], &[]), (vec![4, 6, 8], 3));
        assert_eq!(guided(EveryNth::new(2), &[5], &[]), (vec![], 0));
        assert_eq!(guided(EveryNth::new(2), &[4, VOCAB + 2], &[]), (vec![4], 1), "not in the vocabulary");
        let fails = EveryNth { fails_after: Some(2), ..EveryNth::new(2) };
        assert_eq!(guided(fails, &[4, 6, 8], &[]), (vec![4], 1));
    }

    #[test]
    fn nothing_is_drafted_at_the_end_of_a_completion() {
        let three = EveryNth { max_tokens: 3, ..EveryNth::new(2) };
        assert_eq!(guided(three, &[4, 6, 8, 10], &[]), (vec![4, 6], 2), "the third completes it");
        let stops = EveryNth { stop_token: Some(7), ..EveryNth::new(2) };
        assert_eq!(guided(stops, &[4, 6, 7, 8], &[7]), (vec![4, 6], 2));
    }

    #[test]
    fn forced_tokens_are_drafts() {
        // Only token 0 is a multiple.
        assert_eq!(guided(EveryNth::new(VOCAB), &[], &[]), (vec![0; MAX_DRAFTS], MAX_DRAFTS));
        assert_eq!(guided(EveryNth::new(VOCAB), &[0, 5], &[]), (vec![0; MAX_DRAFTS], MAX_DRAFTS));
        let mut grammar = EveryNth::new(VOCAB);
        let first = mask(&mut grammar).unwrap();
        let GuidedDrafts { drafts, .. } = guide(&grammar, &first, &proposals(&[0]), &[], mask);
        assert!(drafts.iter().all(|draft| draft.source == Source::Grammar));
    }

    #[test]
    fn a_lifted_grammar_allows_everything() {
        let lifted = EveryNth { lifted_after: Some(2), ..EveryNth::new(2) };
        assert_eq!(guided(lifted.clone(), &[4, 6, 7, 9], &[]), (vec![4, 6, 7, 9], 1));
        assert_eq!(guided(lifted, &[4, 6, 7, 9, 11], &[9]), (vec![4, 6, 7], 1));
    }

    #[test]
    fn only_a_single_bit_is_a_forced_token() {
        assert_eq!(only_token(&[0, 0b100]), Some(34));
        assert_eq!((only_token(&[1, 1]), only_token(&[3, 0]), only_token(&[0, 0])), (None, None, None));
    }
}
