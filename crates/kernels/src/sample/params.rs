//! Per-row inputs and outputs of the sampler: records of words, as laid out in GPU memory.

use gpu::{Error, Result};

/// Maximum stop tokens per row.
pub const MAX_STOP_TOKENS: usize = 16;
/// Maximum number of most probable tokens reported per row.
pub const MAX_TOP: usize = 20;
/// Maximum biases per row.
pub const MAX_BIASES: usize = 512;
/// Biases at or below this ban their token.
pub const BAN: f32 = -100.0;
/// The token of a row that has none: a logit was NaN or plus infinity, or no token was allowed.
pub const NO_TOKEN: u32 = u32::MAX;
/// Temperatures below this count as 0.
pub const MIN_TEMPERATURE: f32 = 1e-5;
/// In a sequence's counts: the token occurs in the prompt. The lower bits count how often it was generated.
pub const IN_PROMPT: u32 = 1 << 31;

/// Sampling parameters of one output row. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Divides the logits; 0 is greedy, with ties to the lowest token, regardless of the filters.
    pub temperature: f32,
    /// Keeps the `top_k` most probable tokens, with ties at the cut to the lowest tokens. 0 keeps all.
    pub top_k: u32,
    /// Keeps the most probable tokens whose probabilities add up to this, among those that top-k left. Ties
    /// at the cut are all kept. 1 keeps all, 0 only the best.
    pub top_p: f32,
    /// Keeps tokens that are at least this probable, relative to the most probable one. Ties at the cut are
    /// all kept. 0 keeps all.
    pub min_p: f32,
    /// Repetition penalty, for tokens of the prompt and the output: divides positive logits, multiplies
    /// others. 1 disables it.
    pub repetition: f32,
    /// Presence penalty, subtracted from the logit of every token in the output.
    pub presence: f32,
    /// Frequency penalty, subtracted once per occurrence in the output.
    pub frequency: f32,
    /// Seed of the noise. The same seed at the same position gives the same noise.
    pub seed: u64,
    /// Number of biases in use.
    pub bias_count: u32,
    /// Applies the row's mask.
    pub masked: bool,
    /// Number of most probable tokens to report besides the sampled one.
    pub top: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
            bias_count: 0,
            masked: false,
            top: 0,
        }
    }
}

impl Params {
    /// Words per record.
    pub const WORDS: usize = 16;

    /// Whether top-k, top-p or min-p may drop tokens, which requires the feature `filters`.
    pub fn filters(&self, vocab: usize) -> bool {
        let draws = self.temperature >= MIN_TEMPERATURE && self.top_k != 1;
        let top_k = self.top_k > 0 && (self.top_k as usize) < vocab;
        draws && (top_k || self.top_p < 1.0 || self.min_p > 0.0)
    }

    /// Whether the row reads its sequence's counts.
    pub fn penalties(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// Rejects invalid values by name.
    pub fn check(&self) -> Result<()> {
        let checks = [
            (self.temperature >= 0.0 && self.temperature.is_finite(), "the temperature must be 0 or more"),
            (self.top_p >= 0.0, "top_p must be 0 or more"),
            ((0.0..=1.0).contains(&self.min_p), "min_p must be between 0 and 1"),
            (
                self.repetition > 0.0 && self.repetition.is_finite(),
                "the repetition penalty must be more than 0",
            ),
            (self.presence.is_finite() && self.frequency.is_finite(), "penalties must be finite"),
            (self.bias_count as usize <= MAX_BIASES, "a row may have at most 512 biases"),
            (self.top as usize <= MAX_TOP, "at most 20 of the most probable tokens can be reported"),
        ];
        match checks.into_iter().find(|(valid, _)| !valid) {
            Some((_, reason)) => {
                Err(Error::InvalidUse { what: "sampling parameters".into(), reason: reason.into() })
            }
            None => Ok(()),
        }
    }

    /// The record, as written to the parameter buffer.
    pub fn to_words(&self) -> [u32; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        let used = [
            self.temperature.to_bits(),
            self.top_k,
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.repetition.to_bits(),
            self.presence.to_bits(),
            self.frequency.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.bias_count,
            u32::from(self.masked),
            self.top,
        ];
        words[..used.len()].copy_from_slice(&used);
        words
    }
}

/// A logit bias. [`BAN`] or less bans the token; plus infinity counts as no bias. A token may occur once per
/// row; of duplicates any one may count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    /// The token.
    pub token: u32,
    /// Added to its logit.
    pub bias: f32,
}

impl Bias {
    /// The record, as written to the bias buffer.
    pub fn to_words(self) -> [u32; 2] {
        [self.token, self.bias.to_bits()]
    }
}

/// Progress of a run of steps. Two words: the number of finished rows, with stopped rows counted from bit 16
/// on, and whether the following steps are to run. The host writes [`Run::START`] before a run. The step in
/// which a row reaches one of its stop tokens, or gets no token, is the last: when all of its rows have
/// finished, the second word becomes 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run;

impl Run {
    /// Words per record.
    pub const WORDS: usize = 2;
    /// Nothing has finished, and all steps are to run.
    pub const START: [u32; Self::WORDS] = [0, 1];
    /// Byte range of the second word.
    pub const RUNNING: std::ops::Range<u64> = 4..8;
    /// Maximum finished rows per run, over all steps.
    pub const MAX_FINISHED: usize = (1 << 16) - 1;
}

/// The result of one output row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The token, or [`NO_TOKEN`].
    pub token: u32,
    /// Its log probability by the model's unedited logits. NaN where there is no token.
    pub logprob: f32,
}

/// One of a row's most probable tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Top {
    /// The token.
    pub token: u32,
    /// Its log probability by the model's unedited logits.
    pub logprob: f32,
}

impl Top {
    /// Words per record.
    pub const WORDS: usize = 2;

    /// From the record that the kernel wrote; none where the row has fewer possible tokens.
    pub fn from_words(words: [u32; Self::WORDS]) -> Option<Self> {
        (words[0] != NO_TOKEN).then_some(Self { token: words[0], logprob: f32::from_bits(words[1]) })
    }
}

impl Sampled {
    /// Words per record; the last two are unused.
    pub const WORDS: usize = 4;

    /// From the record that the kernel wrote.
    pub fn from_words(words: [u32; Self::WORDS]) -> Self {
        Self { token: words[0], logprob: f32::from_bits(words[1]) }
    }
}
