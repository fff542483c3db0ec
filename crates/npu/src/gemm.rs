//! Matrix products of any shape on an overlay: C = A × B, int16 or int8 in, int32 or int8 out.
//!
//! An overlay's routes, locks and programs are fixed; a stream chooses what the shim tiles read and write. The
//! unit of work is a block of C: one tile of C per core, over the overlay's own K. A [`GemmPlan`] pads a shape to
//! whole blocks, and generates the stream. A K beyond the overlay's is split: each split gives a matrix of partial
//! sums, and [`GemmPlan::unpack_c`] adds them.
//!
//! ```
//! use npu::gemm::{GemmPlan, Overlay};
//!
//! let plan = GemmPlan::new(&Overlay::GEMM_512_4COL, 100, 600, 1000)?;
//! assert_eq!(plan.padded(), (256, 1024, 1024));
//! assert_eq!(plan.stream()?.header.columns, 4);
//! # Ok::<(), npu::Error>(())
//! ```

mod amd;
mod int8;
mod overlay;
mod stream;

pub use amd::AmdGemm;
pub use int8::Int8;
pub use overlay::{InputType, OutputType, Overlay, ShimPort};

use crate::error::{Error, Result};

/// The most bytes of a matrix on the NPU's side.
const MAX_BYTES: usize = 1 << 32;

/// An element of A or B.
pub trait Element: Copy {
    /// The type that an overlay must take.
    const INPUT_TYPE: InputType;

    /// Its low bytes, of which the first are those of its type.
    fn to_bytes(self) -> [u8; 2];
}

impl Element for i8 {
    const INPUT_TYPE: InputType = InputType::Int8;

    fn to_bytes(self) -> [u8; 2] {
        i16::from(self).to_le_bytes()
    }
}

impl Element for i16 {
    const INPUT_TYPE: InputType = InputType::Int16;

    fn to_bytes(self) -> [u8; 2] {
        self.to_le_bytes()
    }
}

/// How an overlay computes a product.
#[derive(Debug, Clone)]
pub struct GemmPlan<'a> {
    overlay: &'a Overlay,
    shape: (usize, usize, usize),
    padded: (usize, usize, usize),
}

impl<'a> GemmPlan<'a> {
    /// Plans a product of an `m` × `k` and a `k` × `n` matrix.
    pub fn new(overlay: &'a Overlay, m: usize, k: usize, n: usize) -> Result<Self> {
        let refuse = |reason: String| Error::Shape { m, k, n, reason };
        if m == 0 || k == 0 || n == 0 {
            return Err(refuse("a dimension is zero; skip the product".to_owned()));
        }
        let (block_m, block_k, block_n) = overlay.block();
        let pad = |size: usize, block: usize| size.checked_next_multiple_of(block);
        let (Some(pm), Some(pk), Some(pn)) = (pad(m, block_m), pad(k, block_k), pad(n, block_n)) else {
            return Err(refuse("it does not fit the address space; split it".to_owned()));
        };
        let bytes = |rows: usize, columns: usize, size: usize| rows.checked_mul(columns)?.checked_mul(size);
        let sizes = [
            bytes(pm, pk, overlay.input_type.bytes()),
            bytes(pk, pn, overlay.input_type.bytes()),
            bytes(pm, pn, overlay.output_type.bytes()).and_then(|plane| plane.checked_mul(pk / block_k)),
        ];
        if !sizes.iter().all(|size| size.is_some_and(|size| size <= MAX_BYTES)) {
            return Err(refuse("a matrix would exceed 4 GiB; split it".to_owned()));
        }
        if overlay.output_type != OutputType::Int32 && pk > block_k {
            return Err(refuse(format!(
                "this overlay rounds sums of {block_k} products, which cannot be added; use one with int32 sums"
            )));
        }
        let plan = Self { overlay, shape: (m, k, n), padded: (pm, pk, pn) };
        plan.check_descriptors()?;
        Ok(plan)
    }

    /// Rows of A, columns of A, columns of B.
    pub fn shape(&self) -> (usize, usize, usize) {
        self.shape
    }

    /// The shape in whole blocks: rows of A, columns of A, columns of B.
    pub fn padded(&self) -> (usize, usize, usize) {
        self.padded
    }

    /// K splits, each with a matrix of partial sums.
    pub fn k_splits(&self) -> usize {
        self.padded.1 / self.overlay.block().1
    }

    /// The overlay that computes it.
    pub fn overlay(&self) -> &'a Overlay {
        self.overlay
    }

    /// Argument 0 of the stream: A, `m` × `k` by rows, with zeros around it.
    pub fn pack_a<T: Element>(&self, a: &[T]) -> Result<Vec<u8>> {
        let (m, k, _) = self.shape;
        self.pack(a, (m, k), (self.padded.0, self.padded.1))
    }

    /// Argument 1 of the stream: B, `k` × `n` by rows, with zeros around it.
    pub fn pack_b<T: Element>(&self, b: &[T]) -> Result<Vec<u8>> {
        let (_, k, n) = self.shape;
        self.pack(b, (k, n), (self.padded.1, self.padded.2))
    }

    /// Bytes of argument 1 of the stream.
    pub fn b_bytes(&self) -> usize {
        self.padded.1 * self.padded.2 * self.overlay.input_type.bytes()
    }

    /// Bytes of argument 2 of the stream: partial sums.
    pub fn c_bytes(&self) -> usize {
        self.k_splits() * self.padded.0 * self.padded.2 * self.overlay.output_type.bytes()
    }

    /// C, `m` × `n` by rows, from argument 2 of the stream.
    pub fn unpack_c(&self, bytes: &[u8]) -> Result<Vec<i32>> {
        if bytes.len() != self.c_bytes() {
            return Err(self.refuse(format!("C takes {} bytes, not {}", self.c_bytes(), bytes.len())));
        }
        let ((m, _, n), (pm, _, pn)) = (self.shape, self.padded);
        if let OutputType::Int8 { .. } = self.overlay.output_type {
            let rows = bytes.chunks_exact(pn).take(m);
            return Ok(rows.flat_map(|row| row[..n].iter().map(|byte| i32::from(*byte as i8))).collect());
        }
        let mut c = vec![0i32; m * n];
        for plane in bytes.chunks_exact(pm * pn * 4) {
            for (row, source) in c.chunks_exact_mut(n).zip(plane.chunks_exact(pn * 4)) {
                for (sum, word) in row.iter_mut().zip(source.chunks_exact(4)) {
                    *sum = sum.wrapping_add(i32::from_le_bytes([word[0], word[1], word[2], word[3]]));
                }
            }
        }
        Ok(c)
    }

    fn pack<T: Element>(&self, matrix: &[T], from: (usize, usize), to: (usize, usize)) -> Result<Vec<u8>> {
        if matrix.len() != from.0 * from.1 {
            let reason = format!("a matrix of {} × {} has {} elements", from.0, from.1, matrix.len());
            return Err(self.refuse(reason));
        }
        if T::INPUT_TYPE != self.overlay.input_type {
            let reason = format!(
                "{} multiplies {:?}, not {:?}",
                self.overlay.name,
                self.overlay.input_type,
                T::INPUT_TYPE
            );
            return Err(self.refuse(reason));
        }
        let size = T::INPUT_TYPE.bytes();
        let mut bytes = vec![0; to.0 * to.1 * size];
        for (row, target) in matrix.chunks_exact(from.1).zip(bytes.chunks_exact_mut(to.1 * size)) {
            for (value, bytes) in row.iter().zip(target.chunks_exact_mut(size)) {
                bytes.copy_from_slice(&value.to_bytes()[..size]);
            }
        }
        Ok(bytes)
    }

    fn refuse(&self, reason: String) -> Error {
        let (m, k, n) = self.shape;
        Error::Shape { m, k, n, reason }
    }
}
