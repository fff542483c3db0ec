//! Speculative decoding: drafts of the next tokens, which one verify step of the target model checks.
//!
//! The sampler's noise depends on the seed, the position and the token only, so the next token is a function of the text
//! before it. A verify step samples a token after each draft; a draft is accepted if it is the token sampled before it,
//! and all drafts before it were accepted. The tokens of a completion are therefore the same whatever is drafted. Drafts
//! decide only how many of them a step yields.
//!
//! | module | contents |
//! |---|---|
//! | `suffix_index` | positions where a text continues after the tokens that another one ends with |
//! | `lookup` | drafts from repeated text and from a request's prediction |
//! | `guided` | the tokens that a grammar forces, and the masks of the rows of a verify step |
//! | `acceptance` | running acceptance rates by source |
//! | `budget` | how many drafts pay, by acceptance rates and measured step times |
//! | `replay` | simulation of speculative decoding over a known completion, for measurements |

mod acceptance;
mod budget;
mod guided;
mod lookup;
mod replay;
mod suffix_index;

use lookup::Lookup;

pub(crate) use acceptance::Acceptance;
pub(crate) use budget::{Trials, allocate, draft_steps};
pub(crate) use guided::{GuidedDrafts, guide};
pub use replay::{Replay, replay};

/// Maximum drafts of a sequence in a step on any device: a verify step has a row for each, and one for the token before.
pub(crate) const MAX_DRAFTS: usize = model::MAX_VERIFY_ROWS - 1;

/// Where a draft comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It followed the same tokens in the prompt or the completion.
    Text(Strength),
    /// It followed the same tokens in the request's prediction.
    Prediction(Strength),
    /// The grammar allows no other token.
    Grammar,
    /// A draft model sampled it.
    Model,
}

/// How many tokens before a draft are the same in the text that it was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Two,
    Three,
    Four,
    FiveOrMore,
}

impl Strength {
    /// Number of variants.
    pub const COUNT: usize = 4;

    /// Of a match of this many tokens; `None` where it is too short to draft from.
    pub fn new(matched: usize) -> Option<Self> {
        match matched {
            0 | 1 => None,
            2 => Some(Strength::Two),
            3 => Some(Strength::Three),
            4 => Some(Strength::Four),
            _ => Some(Strength::FiveOrMore),
        }
    }

    /// Drafts that such a match is worth. Simulated over 233,000 tokens: more drafts after short matches are slower in
    /// prose and no faster where text is copied.
    pub fn max_drafts(self) -> usize {
        match self {
            Strength::Two => 2,
            Strength::Three => 3,
            Strength::Four => 5,
            Strength::FiveOrMore => MAX_DRAFTS,
        }
    }
}

/// A draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub token: u32,
    pub source: Source,
}

/// What a request's drafts are taken from, and what became of them.
#[derive(Debug, Default)]
pub(crate) struct Drafter {
    lookup: Lookup,
    acceptance: Acceptance,
    /// Drafts that were verified.
    pub stats: DraftStats,
}

impl Drafter {
    /// Drafts of the tokens after a prompt and the completion so far, which must begin with those of earlier calls.
    pub fn draft(&mut self, prompt: &[u32], generated: &[u32], prediction: &[u32]) -> Vec<Draft> {
        self.lookup.draft(prompt, generated, prediction)
    }

    /// The probability that each of these drafts is accepted with all before it; `all` are the rates of all requests.
    pub fn survival(&self, all: &Acceptance, drafts: &[Draft]) -> Vec<f64> {
        self.acceptance.survival(all, drafts)
    }

    /// The same for drafts that a draft model would make.
    pub fn model_survival(&self, all: &Acceptance, drafts: usize) -> Vec<f64> {
        self.survival(all, &vec![Draft { token: 0, source: Source::Model }; drafts])
    }

    /// Records that the first draft of a draft model could not be verified, since a grammar does not allow it.
    pub fn record_unusable(&mut self) {
        self.acceptance.record_unusable();
    }

    /// Records the drafts of a verify step, the first `accepted` of which were accepted.
    pub fn record(&mut self, drafts: &[Draft], accepted: usize) {
        self.acceptance.record(drafts, accepted);
        self.stats.record(drafts, accepted);
    }
}

/// Drafts that were verified, and those of them that were accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Drafts in verify steps.
    pub drafted: u64,
    /// Accepted drafts: completion tokens that took no step of their own.
    pub accepted: u64,
}

impl DraftCounts {
    /// Drafts that were not accepted.
    pub fn rejected(self) -> u64 {
        self.drafted - self.accepted
    }

    fn add(&mut self, other: Self) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}

/// Drafts by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// From repeated text of the prompt and the completion.
    pub text: DraftCounts,
    /// From the request's prediction.
    pub prediction: DraftCounts,
    /// Tokens that a grammar forces.
    pub grammar: DraftCounts,
    /// From a draft model.
    pub model: DraftCounts,
}

impl DraftStats {
    /// Drafts of all sources.
    pub fn total(&self) -> DraftCounts {
        let mut total = DraftCounts::default();
        self.by_source().into_iter().for_each(|(_, counts)| total.add(counts));
        total
    }

    /// The sources by name.
    pub fn by_source(&self) -> [(&'static str, DraftCounts); 4] {
        let Self { text, prediction, grammar, model } = *self;
        [("text", text), ("prediction", prediction), ("grammar", grammar), ("model", model)]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.text.add(other.text);
        self.prediction.add(other.prediction);
        self.grammar.add(other.grammar);
        self.model.add(other.model);
    }

    /// Counts the drafts of one sequence in a verify step, the first `accepted` of which were accepted.
    pub(crate) fn record(&mut self, drafts: &[Draft], accepted: usize) {
        for (index, draft) in drafts.iter().enumerate() {
            let counts = match draft.source {
                Source::Text(_) => &mut self.text,
                Source::Prediction(_) => &mut self.prediction,
                Source::Grammar => &mut self.grammar,
                Source::Model => &mut self.model,
            };
            counts.add(DraftCounts { drafted: 1, accepted: u64::from(index < accepted) });
        }
    }
}
