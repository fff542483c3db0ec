//! The shape of the heads to compute.

use tensor::KvScheme;

/// The steps of the computation that a model needs, and its dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values per head: a multiple of 8, of 32 where keys and values are int8.
    pub head_dim: u32,
    /// Positions per page, a power of two.
    pub page_size: u32,
    /// Storage scheme of keys and values.
    pub scheme: KvScheme,
    /// Norms query and key heads (Gemma 3).
    pub norm: bool,
    /// Adds a bias first (Qwen2).
    pub bias: bool,
    /// RoPE pairs values 2i and 2i + 1 (Llama in GGUF files); otherwise i and i + head_dim / 2.
    pub interleaved: bool,
    /// Split-K partial sums of the QKV product, at least 1.
    pub partials: u32,
}

impl Shape {
    /// Values per row of the QKV product.
    pub fn row(&self) -> u32 {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} × {} {}", self.heads, self.kv_heads, self.head_dim, self.scheme)?;
        let features = [(self.norm, "norm"), (self.bias, "bias"), (self.interleaved, "interleaved")];
        features.into_iter().filter(|(has, _)| *has).try_for_each(|(_, name)| write!(f, ", {name}"))?;
        if self.partials > 1 { write!(f, ", {} partial sums", self.partials) } else { Ok(()) }
    }
}
