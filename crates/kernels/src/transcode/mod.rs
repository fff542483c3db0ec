//! Transcodes rows from a file's encoding to the tiled layout, on the GPU, as they arrive.
//!
//! Encodings that a scheme can represent exactly stay exact to the last bit: their integers and f16 scales
//! are moved, not computed. The rest (the K types) are computed, within the error that `quant` states and the
//! cases here check.

mod cases;
#[cfg(test)]
mod tests;

use gpu::{Address, Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};
use tensor::{Encoding, STRIP, quant};

use crate::{
    Kernel, Matrix,
    shaders::transcode::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel =
    Kernel { name: "transcode", about: "file encodings to the tiled layout", variants, cases: cases::cases };

/// Supported encodings, in the order of the shader's constants.
pub const ENCODINGS: [Encoding; 14] = [
    Encoding::F32,
    Encoding::F16,
    Encoding::Bf16,
    Encoding::Q8_0,
    Encoding::Q4_0,
    Encoding::Q4_1,
    Encoding::Q5_0,
    Encoding::Q5_1,
    Encoding::Q4K,
    Encoding::Q5K,
    Encoding::Q6K,
    Encoding::Int8Symmetric,
    Encoding::Int4Grouped,
    Encoding::Int8Asymmetric,
];

const THREADS: u32 = 64;

/// The kernel for one encoding.
pub struct Transcode {
    encoding: Encoding,
    pipeline: Pipeline,
}

/// Rows of a tensor in memory, in the file's encoding.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Contains the rows. The shader reads whole words: up to 4 bytes past the last row must be inside it.
    pub source: View,
    /// Byte offset of the first row; any alignment.
    pub first_byte: u64,
    /// Number of rows.
    pub count: usize,
    /// Index of the first row in the tensor.
    pub first_row: usize,
    /// The scales of these rows as f32, where they are in a separate tensor.
    pub scales: Option<ExternalScales>,
}

/// Scales from a separate tensor.
#[derive(Clone, Debug)]
pub struct ExternalScales {
    /// f32, at a multiple of 4 bytes.
    pub view: View,
    /// Index of the first one among the tensor's scales.
    pub first: usize,
}

/// The mapping of a tensor's strips to the strips of a matrix that holds several tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripMap {
    /// Strip of the matrix that holds the tensor's first strip.
    pub first_strip: usize,
    /// 1 if the tensor's strips are consecutive, 2 if they alternate with another tensor's.
    pub step: usize,
}

impl StripMap {
    /// The map of a tensor that fills the whole matrix.
    pub const IDENTITY: StripMap = StripMap { first_strip: 0, step: 1 };
}

impl Transcode {
    /// Compiles the kernel for an encoding.
    pub fn new(device: &Device, encoding: Encoding) -> Result<Self> {
        let variant = variant(encoding).ok_or_else(|| Error::InvalidUse {
            what: "transcode".into(),
            reason: format!("{encoding:?} cannot be transcoded on the GPU"),
        })?;
        Ok(Self { encoding, pipeline: variant.pipeline(device)? })
    }

    /// Records the transcoding of some rows into their matrix. A non-finite scale or minimum, or a value out
    /// of range, lowers the word `damage` (initially all ones) to the index of the first row in the tensor
    /// that has one.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: &Rows,
        matrix: &Matrix,
        strip_map: StripMap,
        damage: &View,
    ) -> Result<()> {
        let layout = matrix.layout();
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if layout.scheme != self.encoding.scheme() {
            return wrong(format!(
                "{:?} becomes {}, but the matrix is {}",
                self.encoding,
                self.encoding.scheme(),
                layout.scheme
            ));
        }
        let Some(row_bytes) = self.encoding.bytes(&[layout.k as u64]) else {
            return wrong(format!(
                "rows of {} values are not a multiple of the block size of {:?}",
                layout.k, self.encoding
            ));
        };
        let source_bytes = rows.first_byte + row_bytes * rows.count as u64 + 4;
        if source_bytes > rows.source.len() {
            return wrong(format!(
                "the source has {} bytes, but {} rows of {row_bytes} bytes need {source_bytes}",
                rows.source.len(),
                rows.count
            ));
        }
        let needed =
            quant::layerwise_scales(self.encoding, layout.k, rows.first_row, rows.count).unwrap_or(0..0);
        let given = rows
            .scales
            .as_ref()
            .map_or(0..0, |external| external.first..external.first + external.view.len() as usize / 4);
        if !needed.is_empty() && (given.start > needed.start || given.end < needed.end) {
            return wrong(format!(
                "{:?} needs the external scales {needed:?}, but got {given:?}",
                self.encoding
            ));
        }
        let Some(last_row) = (rows.first_row + rows.count).checked_sub(1) else {
            return wrong("there are no rows to transcode".into());
        };
        if strip_map.first_strip + last_row / STRIP * strip_map.step >= layout.strips() {
            return wrong(format!("row {last_row} is past the end of the matrix"));
        }
        for block in matrix.blocks() {
            let first = block.first_row / STRIP;
            // Strips of the tensor in this block, and their rows.
            let strip_from =
                |strip: usize| strip.saturating_sub(strip_map.first_strip).div_ceil(strip_map.step);
            let from = (strip_from(first) * STRIP).max(rows.first_row);
            let to = (strip_from(first + block.layout.strips()) * STRIP).min(rows.first_row + rows.count);
            if from >= to {
                continue;
            }
            let push = Push {
                source: rows.source.clone().into(),
                values: (&block.values).into(),
                scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
                damage: damage.clone().into(),
                external_scales: rows
                    .scales
                    .as_ref()
                    .map_or(Address::NONE, |external| external.view.clone().into()),
                first_scale: rows.scales.as_ref().map_or(0, |external| external.first) as u32,
                first_byte: (rows.first_byte + (from - rows.first_row) as u64 * row_bytes) as u32,
                row_bytes: row_bytes as u32,
                rows: (to - from) as u32,
                k: layout.k as u32,
                first_row: from as u32,
                // Negative when the tensor starts in an earlier block: the shader's sum wraps around to the
                // right strip.
                first_strip: (strip_map.first_strip as u32).wrapping_sub(first as u32),
                strip_step: strip_map.step as u32,
            };
            let items = (to - from) as u64 * layout.quads() as u64;
            let groups =
                u32::try_from(items.div_ceil(u64::from(self.pipeline.threads()))).unwrap_or(u32::MAX);
            recorder.dispatch(name, &self.pipeline, [groups, 1, 1], &push)?;
        }
        Ok(())
    }
}

fn variant(encoding: Encoding) -> Option<Variant> {
    let number = ENCODINGS.iter().position(|known| *known == encoding)?;
    let constants = Constants { threads: THREADS, encoding: number as u32 };
    Some(Variant::new(format!("{encoding:?}").to_lowercase(), TIERS, Tier::T0, &constants, Subgroup::Any))
}

fn variants(_: &Caps) -> Vec<Variant> {
    ENCODINGS.into_iter().filter_map(variant).collect()
}
