//! The source of embeddings.

/// A model that turns texts into vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingModel {
    /// Name in the API.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// Creation time in seconds since 1970.
    pub created: u64,
    /// Values of a vector.
    pub dimensions: u32,
    /// Maximum tokens of a text, special tokens included.
    pub max_tokens: u32,
    /// Number of token ids.
    pub vocab_size: u32,
}

/// A text to embed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbeddingInput {
    /// A text, which gets the model's special tokens.
    Text(String),
    /// Token ids, special tokens included.
    Tokens(Vec<u32>),
}

/// How texts are embedded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbeddingOptions {
    /// Number of values of each vector; all if `None`.
    pub dimensions: Option<u32>,
    /// Cut off the end of texts that are too long, instead of an error.
    pub truncate: bool,
    /// Name of the prompt that texts start with; the model's default if `None`.
    pub prompt: Option<String>,
}

/// The vector of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddedText {
    /// Its values.
    pub vector: Vec<f32>,
    /// Tokens that were encoded, special tokens included.
    pub tokens: usize,
    /// Whether the end of the text was cut off.
    pub truncated: bool,
}

/// Why texts could not be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedError {
    /// A text is not acceptable: its index, and why.
    Input(usize, String),
    /// The name of the prompt is not acceptable.
    Prompt(String),
    /// The GPU was lost and could not be recovered.
    DeviceLost,
    /// Anything else, for the log.
    Internal(String),
}

/// Embeds texts for the server. Calls come one after the other, from threads that may block.
pub trait Embedder: Send + Sync + 'static {
    /// The vectors of texts, in their order.
    fn embed(
        &self,
        inputs: &[EmbeddingInput],
        options: &EmbeddingOptions,
    ) -> Result<Vec<EmbeddedText>, EmbedError>;
}
