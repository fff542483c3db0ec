//! Patches of pictures as an image encoder takes them: from bytes to values, by a table per channel. Bytes are a quarter of
//! what the host would upload otherwise.
//!
//! One shader at tier T0 serves every device: it is limited by memory bandwidth.

mod cases;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Activations, Kernel,
    shaders::patch_values::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel =
    Kernel { name: "patch_values", about: "bytes of patches to values", variants, cases: cases::cases };

/// Values in the table: 256 for each of three channels.
pub const TABLE: usize = 3 * 256;

/// The kernel for one output format.
pub struct PatchValues {
    output: Activations,
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands {
    /// Rows of `k` bytes.
    pub bytes: View,
    /// [`TABLE`] values, f32.
    pub table: View,
    /// Neighbouring values of a row of the same channel: 1, or a third of the row.
    pub run: usize,
    /// Rows at `y_stride` values, in the kernel's format. What lies between rows is not written.
    pub y: View,
    /// A multiple of 4.
    pub y_stride: usize,
}

impl PatchValues {
    /// Compiles the kernel for f32 or f16.
    pub fn new(device: &Device, output: Activations) -> Result<Self> {
        if !matches!(output, Activations::F32 | Activations::F16) {
            let reason = format!("the output must be f32 or f16, not {output}");
            return Err(Error::InvalidUse { what: "patch_values".into(), reason });
        }
        Ok(Self { output, pipeline: variant(output, threads(device.caps())).pipeline(device)? })
    }

    /// The pipeline, to be compiled ahead of its use.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Records the kernel for `rows` rows of `k` values, a multiple of 4.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        k: usize,
        operands: &Operands,
    ) -> Result<()> {
        let Operands { bytes, table, run, y, y_stride } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if !k.is_multiple_of(4) || !y_stride.is_multiple_of(4) || *y_stride < k || *run == 0 {
            return wrong(format!(
                "rows of {k} values at a stride of {y_stride}, in runs of {run}: lengths must be multiples of 4, and runs \
                 positive"
            ));
        }
        let size = if self.output == Activations::F16 { 2 } else { 4 };
        for (buffer, view, needed) in
            [("bytes", bytes, rows * k), ("table", table, TABLE * 4), ("y", y, rows * y_stride * size)]
        {
            if view.len() < needed as u64 {
                return wrong(format!("{buffer} has {} bytes, but {needed} are needed", view.len()));
            }
        }
        if u32::try_from(rows * y_stride).is_err() {
            return wrong(format!("{rows} rows of {y_stride} values are more than the kernel can index"));
        }
        let push = Push {
            bytes: bytes.clone().into(),
            table: table.clone().into(),
            y: y.clone().into(),
            rows: rows as u32,
            k: k as u32,
            y_stride: *y_stride as u32,
            run: *run as u32,
        };
        let groups = (k as u32 / 4).div_ceil(self.pipeline.threads());
        recorder.dispatch(name, &self.pipeline, [rows as u32, groups, 1], &push)
    }
}

fn threads(caps: &Caps) -> u32 {
    caps.max_threads.min(256)
}

fn variants(caps: &Caps) -> Vec<Variant> {
    [Activations::F32, Activations::F16].map(|output| variant(output, threads(caps))).into()
}

fn variant(output: Activations, threads: u32) -> Variant {
    let constants = Constants { threads, output: output as u32 };
    Variant::new(format!("to {output}, {threads} threads"), TIERS, Tier::T0, &constants, Subgroup::Any)
}
