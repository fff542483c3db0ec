//! The shape of the heads to compute.

use tensor::KvScheme;

/// What a row of the QKV product holds after its query heads, and so what the layer writes into the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeysAndValues {
    /// Key heads, then value heads.
    #[default]
    Projected,
    /// Key heads only (global layers of Gemma 4): a value is the projected key, before its norm and RoPE.
    ValuesFromKeys,
    /// Nothing (last layers of the small Gemma 4 models): the layer attends to the cache of an earlier layer,
    /// which has written the step's keys and values, and writes nothing itself.
    Shared,
}

impl KeysAndValues {
    /// Heads per row of the QKV product, after the query heads.
    pub fn projected_heads(self, kv_heads: u32) -> u32 {
        match self {
            Self::Projected => 2 * kv_heads,
            Self::ValuesFromKeys => kv_heads,
            Self::Shared => 0,
        }
    }

    /// Heads that a row of a step writes into the cache, keys and values together.
    pub fn written_heads(self, kv_heads: u32) -> u32 {
        if self == Self::Shared { 0 } else { 2 * kv_heads }
    }
}

/// Which values of a head RoPE rotates together, and by which angles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rotation {
    /// Values i and i + head_dim / 2, by the position.
    #[default]
    Halves,
    /// Values 2i and 2i + 1, by the position (Llama in GGUF files).
    Interleaved,
    /// By a position in two dimensions (image encoder of Gemma 4): the first half of a head by x, the second by y.
    /// Within a half, values i and i + head_dim / 4. The angles are given per row: see
    /// [`Angles::PerRow`](super::Angles::PerRow).
    Grid,
}

/// A scale of the queries that grows with the position (Ministral 3): 1 + beta · ln(1 + ⌊position / original⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryTemperature {
    /// Growth per unit of the logarithm.
    pub beta: f32,
    /// Context length of pre-training, up to which the scale is 1; at least 1.
    pub original: u32,
}

/// The steps of the computation that a model needs, and its dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// What the QKV product holds besides queries.
    pub keys_and_values: KeysAndValues,
    /// Norms query and key heads (Gemma 3).
    pub norm: bool,
    /// Also norms value heads, without a weight (Gemma 4). Needs `norm`.
    pub value_norm: bool,
    /// Adds a bias first (Qwen2).
    pub bias: bool,
    /// The pairs of values that RoPE rotates; [`Rotation::Grid`] where keys and values are f16 or f32.
    pub rotation: Rotation,
    /// Scales the queries by their position, after RoPE.
    pub temperature: Option<QueryTemperature>,
    /// Split-K partial sums of the QKV product, at least 1.
    pub partials: u32,
}

impl Shape {
    /// Values per row of the QKV product.
    pub fn row(&self) -> u32 {
        (self.heads + self.keys_and_values.projected_heads(self.kv_heads)) * self.head_dim
    }

    /// Query heads, and key and value heads that are written.
    pub fn computed_heads(&self) -> u32 {
        self.heads + self.keys_and_values.written_heads(self.kv_heads)
    }

    /// The reason why no kernel can compute this shape, if any.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.scheme.check(self.head_dim, self.page_size)?;
        if self.heads == 0 || self.kv_heads == 0 {
            return Err(format!("{self:?}: the numbers of query heads and KV heads must not be 0"));
        }
        if self.value_norm && !self.norm {
            return Err(format!("{self:?}: values are normed only where queries and keys are"));
        }
        if self.rotation == Rotation::Grid && self.scheme == KvScheme::Int8 {
            return Err(format!(
                "{self:?}: rotation by a position in two dimensions writes f16 or f32, not int8"
            ));
        }
        if self.temperature.is_some_and(|temperature| temperature.original == 0) {
            return Err(format!("{self:?}: the original context length must not be 0"));
        }
        Ok(())
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} × {} {}", self.heads, self.kv_heads, self.head_dim, self.scheme)?;
        let features = [
            (self.keys_and_values == KeysAndValues::ValuesFromKeys, "values from keys"),
            (self.keys_and_values == KeysAndValues::Shared, "shared keys and values"),
            (self.norm, "norm"),
            (self.value_norm, "value norm"),
            (self.bias, "bias"),
            (self.rotation == Rotation::Interleaved, "interleaved"),
            (self.rotation == Rotation::Grid, "grid"),
            (self.temperature.is_some(), "temperature"),
        ];
        features.into_iter().filter(|(has, _)| *has).try_for_each(|(_, name)| write!(f, ", {name}"))?;
        if self.partials > 1 { write!(f, ", {} partial sums", self.partials) } else { Ok(()) }
    }
}
