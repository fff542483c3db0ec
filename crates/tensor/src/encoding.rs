//! Tensor encodings of model files.

use serde::Serialize;

use crate::layout::{Layout, Scheme};

/// How a file stores the values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
    /// GGUF: blocks of 32, f16 scale, 8 bits.
    Q8_0,
    /// GGUF: blocks of 32, f16 scale, 4 bits with an offset of 8.
    Q4_0,
    /// GGUF: blocks of 32, f16 scale and f16 minimum, 4 bits.
    Q4_1,
    /// GGUF: blocks of 32, f16 scale, 5 bits with an offset of 16.
    Q5_0,
    /// GGUF: blocks of 32, f16 scale and f16 minimum, 5 bits.
    Q5_1,
    /// GGUF: super-blocks of 256 with 8 sub-blocks of 32, 4 bits.
    Q4K,
    /// GGUF: super-blocks of 256 with 8 sub-blocks of 32, 5 bits.
    Q5K,
    /// GGUF: super-blocks of 256 with 16 sub-blocks of 16, 6 bits.
    Q6K,
    /// Layerwise: one byte per value, one scale per tensor.
    Int8Symmetric,
    /// Layerwise: one byte per value (−7…7), one scale per 128 values of the flattened tensor.
    Int4Grouped,
    /// Layerwise: one unsigned byte per value, one scale and one zero point per tensor.
    Int8Asymmetric,
    /// Native files: tiles and scale plane in the GPU layout, see [`Layout`].
    Tiled(Scheme),
}

impl std::fmt::Display for Encoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Encoding::Tiled(scheme) => write!(f, "tiled {scheme}"),
            Encoding::Q4K => f.write_str("q4_k"),
            Encoding::Q5K => f.write_str("q5_k"),
            Encoding::Q6K => f.write_str("q6_k"),
            Encoding::Int8Symmetric => f.write_str("int8_symmetric"),
            Encoding::Int4Grouped => f.write_str("int4_grouped"),
            Encoding::Int8Asymmetric => f.write_str("int8_asymmetric"),
            other => f.write_str(&format!("{other:?}").to_lowercase()),
        }
    }
}

impl Encoding {
    /// Values per block. Rows consist of whole blocks.
    pub fn block_values(self) -> u64 {
        match self {
            Encoding::Q8_0 | Encoding::Q4_0 | Encoding::Q4_1 | Encoding::Q5_0 | Encoding::Q5_1 => 32,
            Encoding::Q4K | Encoding::Q5K | Encoding::Q6K => 256,
            _ => 1,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> u64 {
        match self {
            Encoding::F32 => 4,
            Encoding::F16 | Encoding::Bf16 => 2,
            Encoding::Q8_0 => 34,
            Encoding::Q4_0 => 18,
            Encoding::Q4_1 => 20,
            Encoding::Q5_0 => 22,
            Encoding::Q5_1 => 24,
            Encoding::Q4K => 144,
            Encoding::Q5K => 176,
            Encoding::Q6K => 210,
            Encoding::Int8Symmetric | Encoding::Int4Grouped | Encoding::Int8Asymmetric => 1,
            // Rows of tiles are not contiguous: only `bytes` is meaningful.
            Encoding::Tiled(_) => 1,
        }
    }

    /// Bytes of a tensor with this shape; `None` if a row is not a whole number of blocks or the size
    /// overflows 64 bits.
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        if let Encoding::Tiled(scheme) = self {
            let [rows, k] = shape else { return None };
            let layout = Layout::new(scheme, usize::try_from(*rows).ok()?, usize::try_from(*k).ok()?)?;
            return Some(layout.value_bytes() as u64);
        }
        let values = shape.iter().try_fold(1_u64, |product, dimension| product.checked_mul(*dimension))?;
        let row = shape.last().copied().unwrap_or(1);
        row.is_multiple_of(self.block_values()).then_some(())?;
        (values / self.block_values()).checked_mul(self.block_bytes())
    }
}
