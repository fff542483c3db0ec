//! The paged KV cache as kernels see it: per layer one buffer of keys and one of values, divided into pages
//! that a page table assigns to positions.
//!
//! Element (page, KV head, position in page, d) of either buffer has index ((page · kv_heads + head) ·
//! page_size + position in page) · head_dim + d. f32 and f16 elements are stored in that order, f16 two per
//! 32-bit word, so that every device can read them.
//!
//! int8 elements share a scale per group of 32 neighbours of a head. A page of one KV head holds first the
//! values of all its positions, in the same order, four per word; then, for each position, the scales of its
//! groups as f16, two per word. Where a head has an odd number of groups, the upper half of its last word is
//! zero: no two positions share a word, since they may be written concurrently. The values of a position stay
//! aligned to at least 16 bytes, and a page is as contiguous as in the other schemes. A scale is the group's
//! largest magnitude / 127, rounded to f16 before the values are divided by it, so that values are quantised
//! with the same scale that dequantises them.

pub mod reference;

use std::ops::Range;

use gpu::{Arena, Buffer, Error, Result, View};
use tensor::KvScheme;

/// The shape of one layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Positions per page, a power of two.
    pub page_size: u32,
    /// Pages in the pool.
    pub pages: u32,
    /// Storage scheme of the elements.
    pub scheme: KvScheme,
}

/// Shaders index elements with 32 bits, and SPIR-V treats an index as signed. With f16 this is 4 GiB per
/// buffer, the maximum that drivers allow in one allocation.
const MAX_ELEMENTS: u64 = 1 << 31;

impl KvShape {
    /// Elements of K, and of V.
    pub fn elements(&self) -> u64 {
        let sizes = [self.kv_heads, self.head_dim, self.page_size, self.pages];
        sizes.into_iter().fold(1, |product, size| product.saturating_mul(u64::from(size)))
    }

    /// Bytes of K, and of V.
    pub fn bytes(&self) -> u64 {
        let lines = [self.kv_heads, self.page_size, self.pages];
        let lines = lines.into_iter().fold(1_u64, |product, size| product.saturating_mul(u64::from(size)));
        lines.saturating_mul(self.scheme.head_bytes(self.head_dim))
    }

    /// The bytes of a page, in K and in V.
    pub fn page_range(&self, page: u32) -> Range<u64> {
        let bytes = self.bytes() / u64::from(self.pages);
        u64::from(page) * bytes..u64::from(page + 1) * bytes
    }

    /// Index of the element of a position that the table maps to `page`.
    pub fn element(&self, page: u32, head: u32, position: u32, d: u32) -> u64 {
        let line = (u64::from(page) * u64::from(self.kv_heads) + u64::from(head)) * u64::from(self.page_size);
        (line + u64::from(position % self.page_size)) * u64::from(self.head_dim) + u64::from(d)
    }

    fn check(&self, what: &str) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: what.to_string(), reason });
        if let Err(reason) = self.scheme.check(self.head_dim, self.page_size) {
            return wrong(reason);
        }
        if self.elements() > MAX_ELEMENTS {
            return wrong(format!(
                "{} elements exceed the {MAX_ELEMENTS} that kernels can index: use fewer pages",
                self.elements()
            ));
        }
        Ok(())
    }
}

/// Keys and values of one layer.
#[derive(Debug)]
pub struct KvLayer {
    /// Shape of both buffers.
    pub shape: KvShape,
    /// Keys, after norm and RoPE.
    pub k: Buffer,
    /// Values.
    pub v: Buffer,
}

impl KvLayer {
    /// Allocates memory for a layer; its content is undefined until positions are written.
    pub fn allocate(arena: &mut Arena, what: &str, shape: KvShape) -> Result<Self> {
        shape.check(what)?;
        let k = arena.buffer(what, shape.bytes())?;
        Ok(Self { shape, k, v: arena.buffer(what, shape.bytes())? })
    }
}

/// The page table: u32 `[slot][stride]`; entry position / page_size of a slot is a page number.
#[derive(Clone, Debug)]
pub struct KvTable {
    /// The entries.
    pub view: View,
    /// Entries per slot.
    pub stride: u32,
}

impl KvTable {
    /// Maximum positions per slot with pages of this shape.
    pub fn positions(&self, shape: &KvShape) -> u64 {
        u64::from(self.stride) * u64::from(shape.page_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape =
        KvShape { kv_heads: 16, head_dim: 128, page_size: 64, pages: 2048, scheme: KvScheme::F16 };

    #[test]
    fn sizes_of_a_27b_layer_at_128k_positions() {
        assert_eq!(SHAPE.elements(), 1 << 28);
        assert_eq!(SHAPE.bytes(), 512 << 20);
        assert_eq!(KvShape { scheme: KvScheme::F32, ..SHAPE }.bytes(), 1 << 30);
        let int8 = KvShape { scheme: KvScheme::Int8, ..SHAPE };
        assert_eq!(int8.bytes(), (256 << 20) + (16 << 20), "a sixteenth for scales");
        assert_eq!(
            KvShape { head_dim: 96, ..int8 }.bytes(),
            16 * 64 * 2048 * (96 + 8),
            "three scales in two words"
        );
        assert_eq!(SHAPE.element(2, 3, 65, 7), ((2 * 16 + 3) * 64 + 1) * 128 + 7);
    }

    #[test]
    fn unaddressable_shapes_are_rejected() {
        assert!(SHAPE.check("kv").is_ok());
        assert!(KvShape { pages: 1 << 14, ..SHAPE }.check("kv").is_ok());
        let error = KvShape { pages: (1 << 14) + 1, ..SHAPE }.check("kv").unwrap_err().to_string();
        assert!(error.contains("fewer pages"), "{error}");
        assert!(
            KvShape { pages: u32::MAX, page_size: 1 << 31, kv_heads: u32::MAX, ..SHAPE }.check("kv").is_err()
        );
        assert!(KvShape { page_size: 48, ..SHAPE }.check("kv").is_err());
        assert!(KvShape { head_dim: 68, ..SHAPE }.check("kv").is_err());
        let int8 = KvShape { scheme: KvScheme::Int8, ..SHAPE };
        assert!(int8.check("kv").is_ok());
        assert!(KvShape { page_size: 2, ..int8 }.check("kv").is_err());
        let error = KvShape { head_dim: 80, ..int8 }.check("kv").unwrap_err().to_string();
        assert!(error.contains("groups of 32"), "{error}");
    }
}
