//! What the host tells and hears of a row: records of words, as they lie in GPU memory.

use gpu::{Error, Result};

/// Tokens that may end a row.
pub const MAX_STOP_TOKENS: usize = 16;
/// Most of the most probable tokens that are told of a row.
pub const MAX_TOP: usize = 20;
/// Biases that a row may have.
pub const MAX_BIASES: usize = 512;
/// A bias from here down bans its token.
pub const BAN: f32 = -100.0;
/// The token of a row that has none: a logit was not a number or plus infinity, or no token was allowed.
pub const NO_TOKEN: u32 = u32::MAX;
/// A lower temperature counts as 0.
pub const MIN_TEMPERATURE: f32 = 1e-5;
/// In a sequence's counts: the token occurs in the prompt. The bits below say how often it was generated.
pub const IN_PROMPT: u32 = 1 << 31;

/// How the token of one output row is chosen. The default takes the most probable one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Divides the logits; 0 takes the largest, and of equals the lowest token, whatever the filters say.
    pub temperature: f32,
    /// Only the `top_k` most probable tokens stay: of equals at the end the lowest tokens. 0 keeps all.
    pub top_k: u32,
    /// Only the most probable tokens stay whose probabilities together reach this, counted among those that top-k left. Equals
    /// at the end all stay. 1 keeps all, 0 only the best.
    pub top_p: f32,
    /// Only tokens stay that are at least this probable, as a part of the most probable one's. Equals at the end all stay. 0 keeps
    /// all.
    pub min_p: f32,
    /// Tokens of the prompt and the output: a positive logit is divided by it, another multiplied. 1 changes nothing.
    pub repetition: f32,
    /// Subtracted from the logit of every token in the output.
    pub presence: f32,
    /// Subtracted as often as the token is in the output.
    pub frequency: f32,
    /// Of the noise. The same seed at the same position gives the same noise.
    pub seed: u64,
    /// How many of the row's biases count.
    pub bias_count: u32,
    /// The row's mask counts.
    pub masked: bool,
    /// How many of the most probable tokens are told beside the one that is chosen.
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
    /// Words of a record.
    pub const WORDS: usize = 16;

    /// Whether top-k, top-p or min-p leave tokens out: then the kernel must have been made with filters.
    pub fn filters(&self, vocab: usize) -> bool {
        let draws = self.temperature >= MIN_TEMPERATURE && self.top_k != 1;
        let top_k = self.top_k > 0 && (self.top_k as usize) < vocab;
        draws && (top_k || self.top_p < 1.0 || self.min_p > 0.0)
    }

    /// Whether the row reads its sequence's counts.
    pub fn penalties(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// An error that names the value that makes no sense.
    pub fn check(&self) -> Result<()> {
        let checks = [
            (self.temperature >= 0.0 && self.temperature.is_finite(), "the temperature must be 0 or more"),
            (self.top_p >= 0.0, "top_p must be 0 or more"),
            ((0.0..=1.0).contains(&self.min_p), "min_p must be between 0 and 1"),
            (
                self.repetition > 0.0 && self.repetition.is_finite(),
                "the repetition penalty must be more than 0",
            ),
            (self.presence.is_finite() && self.frequency.is_finite(), "penalties must be numbers"),
            (self.bias_count as usize <= MAX_BIASES, "a row may have 512 biases"),
            (self.top as usize <= MAX_TOP, "20 of the most probable tokens can be told"),
        ];
        match checks.into_iter().find(|(right, _)| !right) {
            Some((_, reason)) => {
                Err(Error::InvalidUse { what: "sampling parameters".into(), reason: reason.into() })
            }
            None => Ok(()),
        }
    }

    /// The record, as it goes into the buffer of parameters.
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

/// A bias: this much is added to a token's logit; [`BAN`] and less bans it. Plus infinity is none. Each token at most once a row:
/// of several any one may count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    /// The token.
    pub token: u32,
    /// What is added to its logit.
    pub bias: f32,
}

impl Bias {
    /// The record, as it goes into the buffer of biases.
    pub fn to_words(self) -> [u32; 2] {
        [self.token, self.bias.to_bits()]
    }
}

/// How far a run of steps has come. Two words: how often a row has finished, with those that ended counted from bit 16 on, and
/// whether the steps that follow are to run. The host writes [`Run::START`] before a run. The step in which a row meets one of its
/// end tokens, or gets no token, is the last: when all of its rows have finished, the second word is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run;

impl Run {
    /// Words of a record.
    pub const WORDS: usize = 2;
    /// Nothing has finished, and all is to run.
    pub const START: [u32; Self::WORDS] = [0, 1];
    /// Where the second word lies, in bytes.
    pub const RUNNING: std::ops::Range<u64> = 4..8;
    /// Rows that may finish in a run, all steps together.
    pub const MAX_FINISHED: usize = (1 << 16) - 1;
}

/// What came out for one output row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// The token, or [`NO_TOKEN`].
    pub token: u32,
    /// Its log probability by the logits as the model gave them. Not a number where there is no token.
    pub logprob: f32,
}

/// One of a row's most probable tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Top {
    /// The token.
    pub token: u32,
    /// Its log probability by the logits as the model gave them.
    pub logprob: f32,
}

impl Top {
    /// Words of a record.
    pub const WORDS: usize = 2;

    /// From the record that the kernel wrote; none where the row has fewer tokens that are possible at all.
    pub fn from_words(words: [u32; Self::WORDS]) -> Option<Self> {
        (words[0] != NO_TOKEN).then_some(Self { token: words[0], logprob: f32::from_bits(words[1]) })
    }
}

impl Sampled {
    /// Words of a record; the last two are spare.
    pub const WORDS: usize = 4;

    /// From the record that the kernel wrote.
    pub fn from_words(words: [u32; Self::WORDS]) -> Self {
        Self { token: words[0], logprob: f32::from_bits(words[1]) }
    }
}
