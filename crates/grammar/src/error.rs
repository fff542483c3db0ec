//! Why there is no grammar, or no more of it.

/// Shorthand used through the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no grammar, or no more of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No masks can be made for this vocabulary.
    #[error("the model's vocabulary: {0}")]
    Vocabulary(String),
    /// What was asked for is wrong, not supported, or too large.
    #[error("{what} cannot be used: {why}")]
    Refused {
        /// What it is.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The schema of a tool's arguments is wrong, not supported, or too large.
    #[error("the parameters of tool {at} cannot be used: {why}")]
    Tool {
        /// Which tool.
        at: usize,
        /// What is wrong with them.
        why: String,
    },
    /// An answer cannot be followed any further.
    #[error("{what} cannot be followed: {why}")]
    Lost {
        /// What was asked for.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
}

/// Longest message that is passed on: they may quote what they complain of.
const MOST: usize = 400;

impl Error {
    pub(crate) fn refused(what: &'static str, text: &str) -> Self {
        Self::Refused { what, why: readable(text) }
    }

    /// The same of a tool's arguments.
    pub(crate) fn tool(at: usize, error: Error) -> Self {
        Self::Tool { at, why: error.why().into() }
    }

    /// What is wrong, without what it is wrong with.
    pub fn why(&self) -> &str {
        match self {
            Self::Vocabulary(why)
            | Self::Refused { why, .. }
            | Self::Tool { why, .. }
            | Self::Lost { why, .. } => why,
        }
    }

    pub(crate) fn lost(what: &'static str, text: &str) -> Self {
        Self::Lost { what, why: readable(text) }
    }
}

/// Messages that speak of settings which nobody here has, and what to say instead.
const IN_OUR_WORDS: [(&str, &str); 4] = [
    ("NoExtensionBias", "it allows nothing to follow"),
    (
        "oneOf constraints are not supported",
        "branches of oneOf that may overlap are not supported: use anyOf",
    ),
    ("Only absolute $ref's", "$ref must name a place within the schema (#/…)"),
    ("panic:", "it is more than can be compiled: make its numbers smaller"),
];

/// A message without what is meant for developers of the automata, on one line, and not too long.
fn readable(text: &str) -> String {
    let end = ["\n<", "\nstack backtrace"].iter().filter_map(|mark| text.find(mark)).min();
    if let Some((_, words)) = IN_OUR_WORDS.iter().find(|(start, _)| text.starts_with(start)) {
        return (*words).into();
    }
    let text = text[..end.unwrap_or(text.len())].split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MOST) {
        Some((cut, _)) => format!("{} …", &text[..cut]),
        None => text,
    }
}
