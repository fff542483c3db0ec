//! Transcoding GGUF blocks to the GPU's schemes.

use half::f16;

use super::{
    blocks::{Block, SUPER, SuperBlock, SuperBlock6, check_length, half_at},
    error::QuantError,
    exactness::scheme_for,
    groups::Groups,
    quantize::int8_group,
};
use crate::{
    encoding::Encoding,
    layout::{GROUP, Scheme},
};

/// Converts blocks to the scheme of [`scheme_for`], within the error stated there. This is the reference for
/// the GPU kernel. Rejects the same blocks as [`check_scales`].
pub fn transcode(encoding: Encoding, bytes: &[u8]) -> Result<Groups, QuantError> {
    let (scheme, _) = scheme_for(encoding);
    if scheme.is_float() {
        return Err(QuantError::Scheme { scheme });
    }
    check_scales(encoding, bytes)?;
    let size = encoding.block_bytes() as usize;
    let mut groups = Groups::with_capacity(scheme, bytes.len() / size * encoding.block_values() as usize);
    for block in bytes.chunks_exact(size) {
        match encoding {
            Encoding::Q4K | Encoding::Q5K => push_super(&mut groups, &SuperBlock::read(encoding, block)),
            Encoding::Q6K => push_super6(&mut groups, &SuperBlock6::read(block)),
            _ => push_block(&mut groups, &Block::read(encoding, block)),
        }
    }
    Ok(groups)
}

/// Checks every scale of a sequence of blocks and rejects invalid ones: NaN, infinite, or so large
/// in a super-block that a group's scale or minimum would overflow f16. Floats have no scales and pass.
pub fn check_scales(encoding: Encoding, bytes: &[u8]) -> Result<(), QuantError> {
    let size = encoding.block_bytes() as usize;
    check_length(encoding, bytes.len(), bytes.len() / size * encoding.block_values() as usize)?;
    for (block, bytes) in bytes.chunks_exact(size).enumerate() {
        let finite = |what, at| {
            let value = half_at(bytes, at).to_f32();
            value.is_finite().then_some(value).ok_or(QuantError::NotFinite { what, block, value })
        };
        match encoding {
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => return Ok(()),
            Encoding::Q8_0 | Encoding::Q4_0 | Encoding::Q5_0 => drop(finite("scale", 0)?),
            Encoding::Q4_1 | Encoding::Q5_1 => {
                finite("scale", 0)?;
                finite("minimum", 2)?;
            }
            Encoding::Q4K | Encoding::Q5K => {
                finite("scale", 0)?;
                finite("scale of the minima", 2)?;
                let codes = if encoding == Encoding::Q4K { 15.0 } else { 31.0 };
                let super_block = SuperBlock::read(encoding, bytes);
                let magnitude = |sub| super_block.scale(sub).abs() * codes + super_block.min(sub).abs();
                let value = (0..8).map(magnitude).fold(0.0, f32::max);
                check_magnitude(value, f16::MAX.to_f32(), block)?;
            }
            Encoding::Q6K => {
                let d = finite("scale", 208)?;
                let largest = SuperBlock6::read(bytes).scales.iter().map(|s| s.unsigned_abs()).max();
                let value = d.abs() * f32::from(largest.unwrap_or(0)) * 32.0;
                check_magnitude(value, f16::MAX.to_f32() * 127.0, block)?;
            }
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

fn check_magnitude(value: f32, limit: f32, block: usize) -> Result<(), QuantError> {
    (value <= limit).then_some(()).ok_or(QuantError::TooLarge { block, value })
}

/// A block becomes a group with the same codes, scale and minimum.
fn push_block(groups: &mut Groups, block: &Block) {
    let shift = if groups.scheme == Scheme::Int4Min { 8 } else { 0 };
    groups.push(block.d, block.m.unwrap_or(f16::ZERO), block.q.map(|q| q - shift));
}

/// A sub-block becomes a group. Its codes are shifted so that the lowest in use is 0: the minimum is then one
/// of the group's values. Otherwise the stored minimum could be far from all of them, and rounding it would
/// add a visible error.
fn push_super(groups: &mut Groups, block: &SuperBlock) {
    let shift = if groups.scheme == Scheme::Int4Min { 8 } else { 0 };
    for (sub, codes) in block.q.chunks_exact(GROUP).enumerate() {
        let lowest = codes.iter().copied().min().unwrap_or(0);
        let scale = block.scale(sub);
        let min = scale * f32::from(lowest) - block.min(sub);
        let q = codes.iter().map(|code| (code - lowest) as i8 - shift);
        groups.push(f16::from_f32(scale), f16::from_f32(min), q);
    }
}

/// Two sub-blocks with separate scales become one group with one scale, so their values are rounded again.
fn push_super6(groups: &mut Groups, block: &SuperBlock6) {
    let mut values = [0.0; SUPER];
    block.values(&mut values);
    for group in values.as_chunks::<GROUP>().0 {
        let (scale, q) = int8_group(group);
        groups.push(scale, f16::ZERO, q);
    }
}
