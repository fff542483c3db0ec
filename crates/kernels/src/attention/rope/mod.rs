//! From the QKV product to queries and to the KV cache: bias, norms, RoPE, scale; writes keys and values
//! into their pages.

pub(crate) mod cases;
pub mod policy;
pub mod reference;
mod shape;
mod tables;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, View};

pub use shape::{KeysAndValues, QueryTemperature, Rotation, Shape};
pub use tables::{Tables, grid_angles, inverse_frequencies};

use crate::{
    Kernel,
    attention::kv::{KvLayer, KvTable},
    shaders::rope::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "rope",
    about: "QK norm, RoPE, KV cache write",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for one shape.
pub struct Rope {
    shape: Shape,
    plan: Plan,
    pipeline: Pipeline,
}

/// The cosines and sines of a call: pairs of f32.
pub enum Angles {
    /// Those of every position, for [`Rotation::Halves`] and [`Rotation::Interleaved`].
    Tables {
        /// [`Tables::coarse`].
        coarse: View,
        /// [`Tables::fine`].
        fine: View,
    },
    /// Those of every row, `[row][head_dim / 2]`, for [`Rotation::Grid`]: see [`grid_angles`].
    PerRow(View),
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// Rows of query heads, key heads, value heads, f32, as far as the shape has them; split-K partial sums of
    /// a row are consecutive.
    pub qkv: View,
    /// Values from one row of `qkv` to the next; even.
    pub qkv_stride: u32,
    /// One value per element of a row, if the shape has a bias.
    pub bias: Option<View>,
    /// Weight of the query norm, head_dim values, if the shape has norms.
    pub q_weight: Option<View>,
    /// Weight of the key norm, if the shape has norms and keys.
    pub k_weight: Option<View>,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Scale of the queries.
    pub scale: f32,
    /// Cosines and sines, as the shape's rotation needs them.
    pub angles: Angles,
    /// Rows of heads · head_dim values, f32, written.
    pub q: View,
    /// Destination of keys and values; where they are shared, the cache of the layer that writes them.
    pub kv: &'a KvLayer,
    /// The page table.
    pub table: &'a KvTable,
    /// u32 per row: the position in the KV cache. The tables of cosines and sines must cover each.
    pub positions: View,
    /// u32 per row.
    pub slots: View,
    /// Two u32: the first active row, and the end of the active rows.
    pub active: View,
}

impl Rope {
    /// Selects the variant for this device and compiles it.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), &shape))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        if let Err(reason) = shape.check() {
            return Err(Error::InvalidUse { what: "rope".into(), reason });
        }
        Ok(Self { shape, plan, pipeline: variant(&shape, plan).pipeline(device)? })
    }

    /// Records the kernel for `rows` rows; `active` selects those that are computed.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: u32,
        operands: &Operands<'_>,
    ) -> Result<()> {
        self.check(name, rows, operands)?;
        let optional = |view: Option<&View>| view.cloned().map_or(Address::NONE, Address::from);
        let (coarse, fine) = match &operands.angles {
            Angles::Tables { coarse, fine } => (coarse.clone().into(), fine.clone().into()),
            Angles::PerRow(angles) => (Address::NONE, angles.clone().into()),
        };
        let push = Push {
            qkv: operands.qkv.clone().into(),
            bias: optional(operands.bias.as_ref()),
            q_weight: optional(operands.q_weight.as_ref()),
            k_weight: optional(operands.k_weight.as_ref()),
            coarse,
            fine,
            q: operands.q.clone().into(),
            k: (&operands.kv.k).into(),
            v: (&operands.kv.v).into(),
            positions: operands.positions.clone().into(),
            slots: operands.slots.clone().into(),
            table: operands.table.view.clone().into(),
            active_rows: operands.active.clone().into(),
            qkv_stride: operands.qkv_stride,
            table_stride: operands.table.stride,
            epsilon: operands.epsilon,
            scale: operands.scale,
        };
        recorder.dispatch(name, &self.pipeline, [self.plan.groups(&self.shape), rows, 1], &push)
    }

    fn check(&self, name: &str, rows: u32, operands: &Operands<'_>) -> Result<()> {
        let shape = &self.shape;
        let inputs = Inputs {
            qkv: &operands.qkv,
            qkv_stride: operands.qkv_stride,
            bias: operands.bias.as_ref(),
            q_weight: operands.q_weight.as_ref(),
            k_weight: operands.k_weight.as_ref(),
            angles: &operands.angles,
            kv: operands.kv,
            table: operands.table,
            positions: &operands.positions,
            slots: &operands.slots,
            active: (&operands.active, 2),
        };
        // Two values are loaded at once.
        inputs.check(name, shape, rows, 2)?;
        let q = u64::from(rows) * u64::from(shape.heads * shape.head_dim) * 4;
        if operands.q.len() < q {
            let reason = format!("q has {} bytes, but needs {q}", operands.q.len());
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        Ok(())
    }
}

/// Inputs of a kernel that computes heads from the QKV product, and the destination cache: see [`Operands`].
pub(crate) struct Inputs<'a> {
    pub qkv: &'a View,
    pub qkv_stride: u32,
    pub bias: Option<&'a View>,
    pub q_weight: Option<&'a View>,
    pub k_weight: Option<&'a View>,
    pub angles: &'a Angles,
    pub kv: &'a KvLayer,
    pub table: &'a KvTable,
    pub positions: &'a View,
    pub slots: &'a View,
    /// The active rows, and the number of words that describe them.
    pub active: (&'a View, u64),
}

impl Inputs<'_> {
    /// Rejects operands that do not fit the shape and number of rows. The stride of `qkv` must be a multiple
    /// of `multiple` values.
    pub fn check(&self, name: &str, shape: &Shape, rows: u32, multiple: u32) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let kv = &self.kv.shape;
        if (kv.kv_heads, kv.head_dim, kv.page_size, kv.scheme)
            != (shape.kv_heads, shape.head_dim, shape.page_size, shape.scheme)
        {
            return wrong(format!("the cache is {kv:?}, but the kernel was created for {shape:?}"));
        }
        let has_keys = shape.keys_and_values != KeysAndValues::Shared;
        if self.bias.is_some() != shape.bias
            || self.q_weight.is_some() != shape.norm
            || self.k_weight.is_some() != (shape.norm && has_keys)
        {
            return wrong("bias and norm weights must be given if and only if the shape has them".into());
        }
        let (stride, row) = (self.qkv_stride, shape.row());
        if shape.partials == 0
            || u64::from(stride) < u64::from(row) * u64::from(shape.partials)
            || !stride.is_multiple_of(multiple)
        {
            return wrong(format!(
                "the stride of qkv is {stride} values, but must be a multiple of {multiple} and hold {} (at least 1) partial sums of {row} values",
                shape.partials
            ));
        }
        let words = |count: u64| count * 4;
        let row = u64::from(row);
        let qkv = u64::from(rows.max(1) - 1) * u64::from(stride) + row * u64::from(shape.partials);
        let head = words(u64::from(shape.head_dim));
        let mut lengths = vec![
            ("qkv", self.qkv, words(qkv)),
            ("positions", self.positions, words(u64::from(rows))),
            ("slots", self.slots, words(u64::from(rows))),
            ("active", self.active.0, words(self.active.1)),
            ("the page table", &self.table.view, words(u64::from(self.table.stride))),
        ];
        match (self.angles, shape.rotation) {
            (Angles::Tables { coarse, fine }, Rotation::Halves | Rotation::Interleaved) => {
                lengths.extend([("the coarse table", coarse, head), ("the fine table", fine, 256 * head)]);
            }
            (Angles::PerRow(angles), Rotation::Grid) => {
                lengths.push(("angles", angles, u64::from(rows) * head));
            }
            (Angles::PerRow(_), rotation) => {
                return wrong(format!("angles per row, but {rotation:?} takes tables of all positions"));
            }
            (Angles::Tables { .. }, rotation) => {
                return wrong(format!("tables of all positions, but {rotation:?} takes angles per row"));
            }
        }
        lengths.extend(self.bias.map(|bias| ("the bias", bias, words(row))));
        lengths.extend(
            [self.q_weight, self.k_weight].into_iter().flatten().map(|view| ("a weight", view, head)),
        );
        match lengths.into_iter().find(|(_, view, bytes)| view.len() < *bytes) {
            Some((what, view, bytes)) => wrong(format!("{what} has {} bytes, but needs {bytes}", view.len())),
            None => Ok(()),
        }
    }
}

fn variant(shape: &Shape, plan: Plan) -> Variant {
    let constants = Constants {
        threads: plan.threads,
        lanes: plan.lanes,
        head_dim: shape.head_dim,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        page_size: shape.page_size,
        kv_bits: shape.scheme.bits(),
        keys_and_values: shape.keys_and_values as u32,
        qk_norm: shape.norm,
        value_norm: shape.value_norm,
        temperature_beta: shape.temperature.map_or(0.0, |temperature| temperature.beta),
        temperature_original: shape.temperature.map_or(0, |temperature| temperature.original),
        qkv_bias: shape.bias,
        rotation: shape.rotation as u32,
        partials: shape.partials,
    };
    let label = format!("{shape}, {} threads", plan.threads);
    Variant::new(label, TIERS, plan.tier, &constants, plan.subgroup)
}
