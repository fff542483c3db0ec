//! Decoding GGUF blocks, with the arithmetic of ggml.

use half::{bf16, f16};

use super::error::QuantError;
use crate::encoding::Encoding;

/// Values per super-block: Q4_K, Q5_K, Q6_K.
pub(super) const SUPER: usize = 256;

/// Decodes blocks to f32, in the order of operations that ggml and the `gguf` package use, so that the
/// results are bitwise equal to theirs. A scale that is NaN gives NaN values;
/// [`check_scales`](super::check_scales) rejects those.
pub fn dequantize(encoding: Encoding, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_length(encoding, bytes.len(), out.len())?;
    let (size, values) = (encoding.block_bytes() as usize, encoding.block_values() as usize);
    for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(values)) {
        match encoding {
            Encoding::F32 => out[0] = f32::from_le_bytes(array(block, 0)),
            Encoding::F16 => out[0] = half_at(block, 0).to_f32(),
            Encoding::Bf16 => out[0] = bf16::from_le_bytes(array(block, 0)).to_f32(),
            Encoding::Q8_0 | Encoding::Q4_0 | Encoding::Q5_0 | Encoding::Q4_1 | Encoding::Q5_1 => {
                Block::read(encoding, block).values(out);
            }
            Encoding::Q4K | Encoding::Q5K => SuperBlock::read(encoding, block).values(out),
            Encoding::Q6K => SuperBlock6::read(block).values(out),
            Encoding::Int8Symmetric
            | Encoding::Int4Grouped
            | Encoding::Int8Asymmetric
            | Encoding::Tiled(_) => {
                return Err(QuantError::Scales { encoding, location: "in a separate tensor" });
            }
        }
    }
    Ok(())
}

/// Checks that `bytes` are whole blocks that hold `values` values.
pub(super) fn check_length(encoding: Encoding, bytes: usize, values: usize) -> Result<(), QuantError> {
    let (size, per_block) = (encoding.block_bytes() as usize, encoding.block_values() as usize);
    let fits = bytes.is_multiple_of(size) && values == bytes / size * per_block;
    fits.then_some(()).ok_or(QuantError::Length { encoding, bytes, values })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("slice has N bytes")
}

pub(super) fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes(array(bytes, at))
}

/// A block of 32 values: d·q in Q8_0, Q4_0 and Q5_0; d·q + m in Q4_1 and Q5_1.
pub(super) struct Block {
    pub d: f16,
    pub m: Option<f16>,
    pub q: [i8; 32],
}

impl Block {
    pub fn read(encoding: Encoding, bytes: &[u8]) -> Self {
        let d = half_at(bytes, 0);
        match encoding {
            Encoding::Q8_0 => Self { d, m: None, q: std::array::from_fn(|k| bytes[2 + k] as i8) },
            Encoding::Q4_0 => Self { d, m: None, q: nibbles(&bytes[2..]).map(|q| q as i8 - 8) },
            Encoding::Q4_1 => {
                Self { d, m: Some(half_at(bytes, 2)), q: nibbles(&bytes[4..]).map(|q| q as i8) }
            }
            Encoding::Q5_0 => Self { d, m: None, q: five_bit_codes(&bytes[2..]).map(|q| q as i8 - 16) },
            Encoding::Q5_1 => {
                Self { d, m: Some(half_at(bytes, 2)), q: five_bit_codes(&bytes[4..]).map(|q| q as i8) }
            }
            _ => unreachable!("{encoding:?} has no blocks of 32"),
        }
    }

    fn values(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (out, q) in out.iter_mut().zip(self.q) {
            let product = d * f32::from(q);
            // Without a minimum, nothing is added: −0 + 0 would lose the sign.
            *out = self.m.map_or(product, |m| product + m.to_f32());
        }
    }
}

/// 16 bytes: value k in the low nibble of byte k, value k + 16 in its high nibble.
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|k| (bytes[k % 16] >> (k / 16 * 4)) & 0x0f)
}

/// 4 bytes with the fifth bit of value k at bit k, followed by the nibbles.
fn five_bit_codes(bytes: &[u8]) -> [u8; 32] {
    let high = u32::from_le_bytes(array(bytes, 0));
    let low = nibbles(&bytes[4..]);
    std::array::from_fn(|k| low[k] | ((high >> k & 1) as u8) << 4)
}

/// A super-block of Q4_K or Q5_K: 8 sub-blocks of 32 values (d·scale)·q − (dmin·min).
pub(super) struct SuperBlock {
    pub d: f16,
    pub dmin: f16,
    /// 6 bits each.
    pub scales: [u8; 8],
    /// 6 bits each.
    pub mins: [u8; 8],
    /// 4 or 5 bits each.
    pub q: [u8; SUPER],
}

impl SuperBlock {
    pub fn read(encoding: Encoding, bytes: &[u8]) -> Self {
        let (scales, mins) = scales_and_mins(&bytes[4..16]);
        let q = match encoding {
            Encoding::Q4K => super_block_nibbles(&bytes[16..]),
            Encoding::Q5K => {
                let (high, low) = (&bytes[16..48], super_block_nibbles(&bytes[48..]));
                // Bit j of byte k belongs to value k of sub-block j.
                std::array::from_fn(|k| low[k] | (high[k % 32] >> (k / 32) & 1) << 4)
            }
            _ => unreachable!("{encoding:?} has no super-blocks with minima"),
        };
        Self { d: half_at(bytes, 0), dmin: half_at(bytes, 2), scales, mins, q }
    }

    /// Scale of a sub-block.
    pub fn scale(&self, sub: usize) -> f32 {
        self.d.to_f32() * f32::from(self.scales[sub])
    }

    /// Minimum of a sub-block, subtracted from its products.
    pub fn min(&self, sub: usize) -> f32 {
        self.dmin.to_f32() * f32::from(self.mins[sub])
    }

    fn values(&self, out: &mut [f32]) {
        for (k, out) in out.iter_mut().enumerate() {
            *out = self.scale(k / 32) * f32::from(self.q[k]) - self.min(k / 32);
        }
    }
}

/// 12 bytes with eight 6-bit scales and eight 6-bit minima. The first four of each are the low 6 bits of
/// bytes 0–3 and 4–7; the last four have their low 4 bits in bytes 8–11 and their high 2 bits in the top of
/// bytes 0–3 and 4–7.
fn scales_and_mins(bytes: &[u8]) -> ([u8; 8], [u8; 8]) {
    let scale = |j: usize| match j {
        0..4 => bytes[j] & 0x3f,
        _ => bytes[j + 4] & 0x0f | bytes[j - 4] >> 6 << 4,
    };
    let min = |j: usize| match j {
        0..4 => bytes[j + 4] & 0x3f,
        _ => bytes[j + 4] >> 4 | bytes[j] >> 6 << 4,
    };
    (std::array::from_fn(scale), std::array::from_fn(min))
}

/// 128 bytes in four runs of 32; each run holds 64 values, 32 in the low nibbles, then 32 in the high
/// nibbles.
fn super_block_nibbles(bytes: &[u8]) -> [u8; SUPER] {
    std::array::from_fn(|k| (bytes[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4)) & 0x0f)
}

/// A super-block of Q6_K: 16 sub-blocks of 16 values (d·scale)·q.
pub(super) struct SuperBlock6 {
    pub d: f16,
    pub scales: [i8; 16],
    /// −32…31.
    pub q: [i8; SUPER],
}

impl SuperBlock6 {
    pub fn read(bytes: &[u8]) -> Self {
        let (low, high) = (&bytes[..128], &bytes[128..192]);
        // Two halves of 128 values. Each has 64 bytes with the low 4 bits (64 values in the low nibbles, then
        // 64 in the high nibbles) and 32 bytes with the high 2 bits of values k, k + 32, k + 64 and k + 96.
        let q = |k: usize| {
            let (half, within) = (k / 128, k % 128);
            let low = (low[half * 64 + within % 64] >> (within / 64 * 4)) & 0x0f;
            let high = high[half * 32 + within % 32] >> (within / 32 * 2) & 0x03;
            (low | high << 4) as i8 - 32
        };
        Self {
            d: half_at(bytes, 208),
            scales: std::array::from_fn(|j| bytes[192 + j] as i8),
            q: std::array::from_fn(q),
        }
    }

    pub fn values(&self, out: &mut [f32]) {
        for (k, out) in out.iter_mut().enumerate() {
            *out = self.d.to_f32() * f32::from(self.scales[k / 16]) * f32::from(self.q[k]);
        }
    }
}
