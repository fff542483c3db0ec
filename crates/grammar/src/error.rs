//! The errors of compiling and matching grammars.

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a grammar could not be compiled, or why a completion can no longer be matched against it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The model's vocabulary cannot be used for token masks.
    #[error("the model's vocabulary: {0}")]
    Vocabulary(String),
    /// The grammar is invalid, unsupported or too large.
    #[error("{subject} cannot be used: {reason}")]
    Invalid {
        /// The input, such as [`SCHEMA`](crate::SCHEMA).
        subject: &'static str,
        /// The problem.
        reason: String,
    },
    /// The schema of a tool's arguments is invalid, unsupported or too large.
    #[error("the parameters of tool {index} cannot be used: {reason}")]
    Tool {
        /// [`ToolSpec::index`](crate::ToolSpec::index) of the tool.
        index: usize,
        /// The problem with its parameters.
        reason: String,
    },
    /// Matching failed: a token was not allowed, or a mask exceeded the work limits.
    #[error("{subject} cannot be matched: {reason}")]
    Match {
        /// The input that the grammar was compiled from.
        subject: &'static str,
        /// The problem.
        reason: String,
    },
}

/// Maximum length of a message, in characters. llguidance's messages may quote the entire grammar.
const MAX_MESSAGE: usize = 400;

impl Error {
    pub(crate) fn invalid(subject: &'static str, text: &str) -> Self {
        Self::Invalid { subject, reason: readable(text) }
    }

    /// Attributes an error to a tool's parameters.
    pub(crate) fn tool(index: usize, error: Error) -> Self {
        Self::Tool { index, reason: error.reason().into() }
    }

    pub(crate) fn matching(subject: &'static str, text: &str) -> Self {
        Self::Match { subject, reason: readable(text) }
    }

    /// The reason, without the subject.
    pub fn reason(&self) -> &str {
        match self {
            Self::Vocabulary(reason)
            | Self::Invalid { reason, .. }
            | Self::Tool { reason, .. }
            | Self::Match { reason, .. } => reason,
        }
    }
}

/// Replacements for llguidance messages that mention settings our users cannot change.
const REPLACEMENTS: [(&str, &str); 4] = [
    ("NoExtensionBias", "it allows no next token"),
    (
        "oneOf constraints are not supported",
        "branches of oneOf that may overlap are not supported: use anyOf",
    ),
    ("Only absolute $ref's", "$ref must refer to a location within the schema (#/…)"),
    ("panic:", "it is too large to compile: make its numbers smaller"),
];

/// A message on one line, without llguidance's debugging output, of limited length.
fn readable(text: &str) -> String {
    let end = ["\n<", "\nstack backtrace"].iter().filter_map(|mark| text.find(mark)).min();
    if let Some((_, replacement)) = REPLACEMENTS.iter().find(|(start, _)| text.starts_with(start)) {
        return (*replacement).into();
    }
    let text = text[..end.unwrap_or(text.len())].split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((cut, _)) => format!("{} …", &text[..cut]),
        None => text,
    }
}
