//! Storage schemes of the KV cache.

/// How the KV cache stores keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvScheme {
    /// 16-bit floats, two per 32-bit word.
    F16,
    /// 32-bit floats.
    F32,
    /// 8-bit integers, four per 32-bit word, with one f16 scale per 32 elements.
    Int8,
}

/// Elements of a head that share one scale in int8.
pub const KV_INT8_GROUP: u32 = 32;

impl KvScheme {
    /// Every scheme.
    pub const ALL: [KvScheme; 3] = [KvScheme::F16, KvScheme::F32, KvScheme::Int8];

    /// Bytes of one head's key (or value) for one token, scales included.
    pub fn head_bytes(self, head_dim: u32) -> u64 {
        let values = u64::from(head_dim) * u64::from(self.bits()) / 8;
        match self {
            KvScheme::F16 | KvScheme::F32 => values,
            KvScheme::Int8 => values + 4 * u64::from(head_dim.div_ceil(2 * KV_INT8_GROUP)),
        }
    }

    /// Bits per element without scales. Shaders identify the scheme by this number.
    pub fn bits(self) -> u32 {
        match self {
            KvScheme::F16 => 16,
            KvScheme::F32 => 32,
            KvScheme::Int8 => 8,
        }
    }

    /// Checks that heads of `head_dim` elements and pages of `page_size` tokens can be stored in this scheme.
    /// The error is the reason why not.
    pub fn check(self, head_dim: u32, page_size: u32) -> Result<(), String> {
        if !page_size.is_power_of_two() {
            return Err(format!("page size {page_size}: must be a power of two"));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(8) {
            return Err(format!("head dimension {head_dim}: must be a multiple of 8"));
        }
        if self == KvScheme::Int8 && !head_dim.is_multiple_of(KV_INT8_GROUP) {
            return Err(format!(
                "head dimension {head_dim} does not divide into groups of {KV_INT8_GROUP} elements, which share a scale in \
                 int8: store keys and values as f16"
            ));
        }
        // With fewer tokens the scales would not fill 16 bytes, and the next page's values would be
        // misaligned.
        if self == KvScheme::Int8 && page_size < 4 {
            return Err(format!("page size {page_size}: int8 needs at least 4 tokens per page"));
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
