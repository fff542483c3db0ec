//! From a file's own encoding into the tiled layout, on the GPU, rows at a time as they arrive.
//!
//! Encodings that a scheme can hold exactly stay exact to the last bit: their integers and f16 scales are moved, not
//! computed. The rest (the K types) are computed, with an error that `quant` states and the cases here hold them to.

mod cases;
#[cfg(test)]
mod tests;

use gpu::{Address, Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Encoding, Kernel, Matrix, STRIP,
    shaders::transcode::{Constants, Push, TIERS},
    variant::Variant,
};

/// For the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "transcode",
    about: "file encodings into the tiled layout",
    variants,
    cases: cases::cases,
};

/// Encodings that the kernel reads, in the order of the shader's constants.
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

/// Rows of a tensor as they stand in memory.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Holds the rows. The shader reads whole words: up to 4 bytes past the last row must belong to it.
    pub source: View,
    /// Where the first row starts in it; at any alignment.
    pub first_byte: u64,
    /// How many rows.
    pub count: usize,
    /// Which row of the tensor the first one is.
    pub first_row: usize,
    /// The scales of these rows as f32, where they are a tensor of their own.
    pub scales: Option<ExternalScales>,
}

/// Scales from a tensor of their own.
#[derive(Clone, Debug)]
pub struct ExternalScales {
    /// f32, at a multiple of 4 bytes.
    pub view: View,
    /// Which of the tensor's scales the first one is.
    pub first: usize,
}

/// Where a tensor's strips go in a matrix that holds several tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripMap {
    /// Strip of the matrix that the tensor's first strip is.
    pub first_strip: usize,
    /// 1 when the tensor's strips follow each other, 2 when they alternate with another tensor's.
    pub step: usize,
}

impl StripMap {
    /// A tensor that has the matrix to itself.
    pub const WHOLE: StripMap = StripMap { first_strip: 0, step: 1 };
}

impl Transcode {
    /// Compiles it for an encoding.
    pub fn new(device: &Device, encoding: Encoding) -> Result<Self> {
        let variant = variant(encoding).ok_or_else(|| Error::InvalidUse {
            what: "transcode".into(),
            reason: format!("{encoding:?} is not read on the GPU"),
        })?;
        Ok(Self { encoding, pipeline: variant.pipeline(device)? })
    }

    /// Records the way of some rows into their matrix. A scale or minimum that is not finite, or a value out of its range,
    /// lowers the word `damage` (all ones before) to the tensor's first row that has one.
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
                "{:?} goes into {}, not {}",
                self.encoding,
                self.encoding.scheme(),
                layout.scheme
            ));
        }
        let Some(row_bytes) = self.encoding.bytes(&[layout.k as u64]) else {
            return wrong(format!("rows of {} values are not whole blocks of {:?}", layout.k, self.encoding));
        };
        if rows.first_byte + row_bytes * rows.count as u64 + 4 > rows.source.len() {
            return wrong(format!(
                "{} rows of {row_bytes} bytes from {} bytes",
                rows.count,
                rows.source.len()
            ));
        }
        let needed = tensor::quant::layerwise_scales(self.encoding, layout.k, rows.first_row, rows.count)
            .unwrap_or(0..0);
        let given =
            rows.scales.as_ref().map_or(0..0, |own| own.first..own.first + own.view.len() as usize / 4);
        if !needed.is_empty() && (given.start > needed.start || given.end < needed.end) {
            return wrong(format!("{:?} needs its own scales {needed:?} and has {given:?}", self.encoding));
        }
        let Some(last_row) = (rows.first_row + rows.count).checked_sub(1) else {
            return wrong("no rows".into());
        };
        if strip_map.first_strip + last_row / STRIP * strip_map.step >= layout.strips() {
            return wrong(format!("row {last_row} lies past the end of the matrix"));
        }
        for part in matrix.blocks() {
            let first = part.first_row / STRIP;
            // Strips of the tensor that lie in this part, and from them the rows.
            let strip_from =
                |strip: usize| strip.saturating_sub(strip_map.first_strip).div_ceil(strip_map.step);
            let from = (strip_from(first) * STRIP).max(rows.first_row);
            let to = (strip_from(first + part.layout.strips()) * STRIP).min(rows.first_row + rows.count);
            if from >= to {
                continue;
            }
            let push = Push {
                source: rows.source.clone().into(),
                values: (&part.values).into(),
                scales: part.scales.as_ref().map_or(Address::NONE, Address::from),
                damage: damage.clone().into(),
                file_scales: rows.scales.as_ref().map_or(Address::NONE, |own| own.view.clone().into()),
                scale_first: rows.scales.as_ref().map_or(0, |own| own.first) as u32,
                source_first: (rows.first_byte + (from - rows.first_row) as u64 * row_bytes) as u32,
                source_row_bytes: row_bytes as u32,
                rows: (to - from) as u32,
                k: layout.k as u32,
                first_row: from as u32,
                // Below zero when the tensor starts in an earlier part: the shader's sum wraps around to the right strip.
                strip_first: (strip_map.first_strip as u32).wrapping_sub(first as u32),
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
