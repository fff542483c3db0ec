//! How the elements of the KV cache are stored.

/// How an element of the cache is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvScheme {
    /// 16-bit floats, two a word.
    F16,
    /// 32-bit floats.
    F32,
    /// 8-bit integers, four a word, and a 16-bit float for every 32 of them.
    Int8,
}

/// Values of a head that share a scale in int8.
pub const KV_INT8_GROUP: u32 = 32;

impl KvScheme {
    /// All of them.
    pub const ALL: [KvScheme; 3] = [KvScheme::F16, KvScheme::F32, KvScheme::Int8];

    /// Bytes of a key, or of a value, of one head at one position, scales included.
    pub fn head_bytes(self, head_dim: u32) -> u64 {
        let values = u64::from(head_dim) * u64::from(self.bits()) / 8;
        match self {
            KvScheme::F16 | KvScheme::F32 => values,
            KvScheme::Int8 => values + 4 * u64::from(head_dim.div_ceil(2 * KV_INT8_GROUP)),
        }
    }

    /// Bits of an element, without its share of a scale: what shaders know a scheme by.
    pub fn bits(self) -> u32 {
        match self {
            KvScheme::F16 => 16,
            KvScheme::F32 => 32,
            KvScheme::Int8 => 8,
        }
    }

    /// Whether heads and pages of such a length can be stored so, and if not, why.
    pub fn takes(self, head_dim: u32, page: u32) -> Result<(), String> {
        if !page.is_power_of_two() {
            return Err(format!("pages of {page} positions: the length must be a power of two"));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(8) {
            return Err(format!("heads of {head_dim} values: their number must divide by 8"));
        }
        if self == KvScheme::Int8 && !head_dim.is_multiple_of(KV_INT8_GROUP) {
            return Err(format!(
                "heads of {head_dim} values do not divide into the groups of {KV_INT8_GROUP} that share a scale in int8: \
                 store keys and values as f16"
            ));
        }
        // The scales of fewer would not be a multiple of 16 bytes, and the next page's values not aligned.
        if self == KvScheme::Int8 && page < 4 {
            return Err(format!("pages of {page} positions: in int8 they have 4 at least"));
        }
        Ok(())
    }
}

impl std::fmt::Display for KvScheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            KvScheme::F16 => "f16",
            KvScheme::F32 => "f32",
            KvScheme::Int8 => "int8",
        })
    }
}
