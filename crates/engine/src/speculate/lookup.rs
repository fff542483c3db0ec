//! Drafts from repeated text: what followed the last tokens when they occurred before.

use model::is_image_token;

use super::{
    Draft, Source, Strength,
    suffix_index::{MAX_MATCH, Match, SuffixIndex},
};

/// The texts of one request that drafts are taken from.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// The prompt and the completion so far.
    text: SuffixIndex,
    /// What the client expects the completion to be.
    prediction: SuffixIndex,
}

impl Lookup {
    /// Drafts of the tokens after a prompt and the completion so far, which must begin with those of earlier calls.
    pub fn draft(&mut self, prompt: &[u32], generated: &[u32], prediction: &[u32]) -> Vec<Draft> {
        self.update(prompt, generated, prediction);
        let in_text = self.text.longest_match(self.text.tokens());
        let in_prediction = self.match_in_prediction(generated);
        let prefers_prediction = match (in_prediction, in_text) {
            (Some(predicted), Some(repeated)) => predicted.length >= repeated.length,
            (predicted, _) => predicted.is_some(),
        };
        let (found, index) = match prefers_prediction {
            true => (in_prediction, &self.prediction),
            false => (in_text, &self.text),
        };
        let found = found.and_then(|found| Some((found, Strength::new(found.length)?)));
        let Some((Match { position, .. }, strength)) = found else { return vec![] };
        let source = if prefers_prediction { Source::Prediction(strength) } else { Source::Text(strength) };
        let continued = continuation(index.tokens(), position, !prefers_prediction, strength.max_drafts());
        continued.into_iter().map(|token| Draft { token, source }).collect()
    }

    /// Indexes what was added since the last call.
    fn update(&mut self, prompt: &[u32], generated: &[u32], prediction: &[u32]) {
        let known = self.text.tokens().len();
        match known.checked_sub(prompt.len()) {
            Some(known) => self.text.extend(&generated[known..]),
            None => {
                self.text.extend(&prompt[known..]);
                self.text.extend(generated);
            }
        }
        self.prediction.extend(&prediction[self.prediction.tokens().len()..]);
    }

    /// Where the prediction continues the completion.
    fn match_in_prediction(&self, generated: &[u32]) -> Option<Match> {
        let (tokens, position) = (self.prediction.tokens(), generated.len());
        // At the start there are few tokens to compare, but no better place to continue from.
        if position < MAX_MATCH && position < tokens.len() && tokens.starts_with(generated) {
            return Some(Match { position, length: MAX_MATCH });
        }
        self.prediction.longest_match(generated)
    }
}

/// Up to `max` tokens of a text from a position on. A text that repeats itself up to its end goes on repeating itself.
/// Soft tokens of images are not drafted.
fn continuation(text: &[u32], position: usize, repeats: bool, max: usize) -> Vec<u32> {
    let period = text.len() - position;
    let end = if repeats { max } else { max.min(period) };
    let tokens = (0..end).map(|index| text[position + index % period]);
    tokens.take_while(|token| !is_image_token(*token)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::MAX_DRAFTS;

    fn draft(prompt: &[u32], generated: &[u32], prediction: &[u32]) -> (Vec<u32>, Option<Source>) {
        let drafts = Lookup::default().draft(prompt, generated, prediction);
        (drafts.iter().map(|draft| draft.token).collect(), drafts.first().map(|draft| draft.source))
    }

    #[test]
    fn the_number_of_drafts_follows_the_match() {
        let prompt: Vec<u32> = (0..30).collect();
        let drafted = |generated: &[u32]| draft(&prompt, generated, &[]);
        assert_eq!(drafted(&[99]), (vec![], None));
        assert_eq!(drafted(&[99, 3, 4]), (vec![5, 6], Some(Source::Text(Strength::Two))));
        assert_eq!(drafted(&[99, 2, 3, 4]).0, [5, 6, 7]);
        assert_eq!(drafted(&[99, 1, 2, 3, 4]).0, [5, 6, 7, 8, 9]);
        let (tokens, source) = drafted(&[99, 0, 1, 2, 3, 4]);
        assert_eq!((tokens.len(), source), (MAX_DRAFTS, Some(Source::Text(Strength::FiveOrMore))));
    }

    #[test]
    fn text_that_repeats_itself_goes_on_doing_so() {
        let repeated: Vec<u32> = [1, 2, 3].into_iter().cycle().take(MAX_DRAFTS).collect();
        assert_eq!(draft(&[9], &[1, 2, 3, 1, 2, 3, 1, 2, 3], &[]).0, repeated);
        assert_eq!(draft(&[9], &[4; 12], &[]).0, [4; MAX_DRAFTS]);
    }

    #[test]
    fn a_prediction_is_followed_from_its_start_and_after_a_difference() {
        let prediction: Vec<u32> = (100..120).collect();
        let drafted = |generated: &[u32]| draft(&[1, 2], generated, &prediction);
        let strong = Some(Source::Prediction(Strength::FiveOrMore));
        assert_eq!(drafted(&[100]), ((101..101 + MAX_DRAFTS as u32).collect(), strong));
        assert_eq!(drafted(&[7]), (vec![], None));
        assert_eq!(drafted(&[7, 104, 105]), (vec![106, 107], Some(Source::Prediction(Strength::Two))));
        assert_eq!(drafted(&[117, 118]).0, [119], "it ends");
        assert_eq!(drafted(&prediction), (vec![], None));
    }

    #[test]
    fn the_longer_match_wins_and_the_prediction_of_equal_ones() {
        let prediction = [5, 6, 7, 50];
        assert_eq!(draft(&[4, 6, 7, 60, 0], &[4, 6, 7], &prediction).0, [60, 0, 4]);
        assert_eq!(draft(&[4, 6, 7, 60, 0], &[3, 6, 7], &prediction).0, [50]);
    }

    #[test]
    fn soft_tokens_of_images_are_not_drafted() {
        let image = (0..u32::MAX).rev().find(|token| is_image_token(*token)).unwrap();
        assert_eq!(draft(&[1, 2, 3, image, image, 4], &[1, 2], &[]).0, [3]);
        assert_eq!(draft(&[image, image, 4, 5], &[image, image], &[]).0, [] as [u32; 0]);
    }

    #[test]
    fn later_calls_index_only_what_is_new() {
        let mut lookup = Lookup::default();
        let prompt = [1, 2, 3, 4, 5, 6];
        assert_eq!(lookup.draft(&prompt, &[9], &[]), []);
        let drafts = lookup.draft(&prompt, &[9, 2, 3], &[]);
        assert_eq!(drafts, Lookup::default().draft(&prompt, &[9, 2, 3], &[]));
        assert_eq!(lookup.text.tokens(), [1, 2, 3, 4, 5, 6, 9, 2, 3]);
    }
}
