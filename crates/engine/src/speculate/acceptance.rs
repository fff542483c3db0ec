//! Running acceptance rates of drafts, by source.

use super::{Draft, MAX_DRAFTS, Source, Strength};

/// Time constant of the decay, in drafts: an observation counts 1/e after this many, so rates follow changes of the text.
const MEMORY: f64 = 64.0;

/// Observations that the rate of all requests counts for in the rate of one.
const PRIOR_WEIGHT: f64 = 4.0;

/// Acceptance rates before anything is observed, by [`Strength`]: those of edited files and prose in simulation lie to
/// both sides.
const INITIAL: [f64; Strength::COUNT] = [0.3, 0.45, 0.6, 0.8];

/// Acceptance rate of a draft model's drafts before anything is observed. Published rates of draft and target models of one
/// family (Gemma 4, Llama 3) are 0.4 to 0.7.
const INITIAL_MODEL: f64 = 0.6;

/// A running rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    accepted: f64,
    observed: f64,
}

impl Rate {
    fn record(&mut self, accepted: bool) {
        let decay = 1.0 - 1.0 / MEMORY;
        self.accepted = self.accepted * decay + f64::from(u8::from(accepted));
        self.observed = self.observed * decay + 1.0;
    }

    /// The rate, given what it is elsewhere.
    fn estimate(self, prior: f64) -> f64 {
        (self.accepted + PRIOR_WEIGHT * prior) / (self.observed + PRIOR_WEIGHT)
    }
}

/// Acceptance rates of drafts, given that the drafts before them were accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Acceptance {
    text: [Rate; Strength::COUNT],
    prediction: [Rate; Strength::COUNT],
    /// By position in the step: acceptance falls with every draft that builds on earlier ones.
    model: [Rate; MAX_DRAFTS],
}

impl Acceptance {
    /// Records the drafts of a verify step, the first `accepted` of which were accepted. Drafts after the first rejected
    /// one say nothing.
    pub fn record(&mut self, drafts: &[Draft], accepted: usize) {
        for (index, draft) in drafts.iter().enumerate().take(accepted + 1) {
            match draft.source {
                Source::Text(strength) => self.text[strength as usize].record(index < accepted),
                Source::Prediction(strength) => self.prediction[strength as usize].record(index < accepted),
                Source::Model => self.model[index.min(MAX_DRAFTS - 1)].record(index < accepted),
                Source::Grammar => {}
            }
        }
    }

    /// Records that the first draft of a draft model could not be verified, since a grammar does not allow it.
    pub fn record_unusable(&mut self) {
        self.model[0].record(false);
    }

    /// The probability that each of these drafts of a request is accepted, with all before it. `self` is what the request
    /// has observed, `all` what all requests have.
    pub fn survival(&self, all: &Self, drafts: &[Draft]) -> Vec<f64> {
        let mut survival = 1.0;
        let accumulate = |(index, draft): (usize, &Draft)| {
            survival *= self.rate(all, draft.source, index);
            survival
        };
        drafts.iter().enumerate().map(accumulate).collect()
    }

    /// The rate of a draft at this position of its step.
    fn rate(&self, all: &Self, source: Source, position: usize) -> f64 {
        let (own, all, initial) = match source {
            Source::Text(strength) => {
                let index = strength as usize;
                (self.text[index], all.text[index], INITIAL[index])
            }
            Source::Prediction(strength) => {
                let index = strength as usize;
                (self.prediction[index], all.prediction[index], INITIAL[index])
            }
            Source::Model => {
                let index = position.min(MAX_DRAFTS - 1);
                (self.model[index], all.model[index], INITIAL_MODEL)
            }
            // No other token can be sampled.
            Source::Grammar => return 1.0,
        };
        own.estimate(all.estimate(initial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(source: Source, count: usize) -> Vec<Draft> {
        vec![Draft { token: 1, source }; count]
    }

    #[test]
    fn rates_follow_what_is_observed() {
        let (strong, weak) = (Source::Text(Strength::FiveOrMore), Source::Text(Strength::Two));
        let mut own = Acceptance::default();
        let all = Acceptance::default();
        let first = |own: &Acceptance, source: Source| own.survival(&all, &drafts(source, 1))[0];
        let before = first(&own, weak);
        for _ in 0..200 {
            own.record(&drafts(strong, 7), 0);
        }
        assert!(first(&own, strong) < 0.07, "{own:?}");
        assert_eq!(first(&own, weak), before, "each strength has its own rate");
        for _ in 0..30 {
            own.record(&drafts(strong, 7), 7);
        }
        assert!(first(&own, strong) > 0.9, "{own:?}");
    }

    #[test]
    fn a_draft_model_has_a_rate_for_each_draft_of_a_step() {
        let (mut own, all) = (Acceptance::default(), Acceptance::default());
        (0..200).for_each(|_| own.record(&drafts(Source::Model, 3), 1));
        let survival = own.survival(&all, &drafts(Source::Model, 3));
        assert!(survival[0] > 0.9 && survival[1] < 0.07, "{survival:?}");
        let third = survival[2] / survival[1];
        assert!((third - INITIAL_MODEL).abs() < 1e-9, "drafts after a rejected one say nothing: {third}");
    }

    #[test]
    fn a_new_request_starts_with_the_rates_of_all() {
        let source = Source::Prediction(Strength::Four);
        let mut all = Acceptance::default();
        (0..100).for_each(|_| all.record(&drafts(source, 5), 5));
        assert!(Acceptance::default().survival(&all, &drafts(source, 1))[0] > 0.95);
    }

    #[test]
    fn only_the_first_rejected_draft_counts() {
        let source = Source::Text(Strength::Three);
        let mut one = Acceptance::default();
        one.record(&drafts(source, 3), 1);
        let mut two = Acceptance::default();
        two.record(&drafts(source, 2), 1);
        assert_eq!(one, two);
    }

    #[test]
    fn survival_falls_from_draft_to_draft_unless_they_are_forced() {
        let (own, all) = (Acceptance::default(), Acceptance::default());
        let survival = own.survival(&all, &drafts(Source::Text(Strength::Two), 4));
        assert!(
            survival.is_sorted_by(|a, b| a > b) && (survival[1] - survival[0] * survival[0]).abs() < 1e-12
        );
        assert_eq!(own.survival(&all, &drafts(Source::Grammar, 3)), [1.0; 3]);
    }
}
