//! Selects the variant for a model's heads on a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};
use tensor::KvScheme;

use super::{KeysAndValues, QueryTemperature, Rotation, Shape, variant};
use crate::variant::Variant;

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads per workgroup.
    pub threads: u32,
    /// Threads per head, a power of two.
    pub lanes: u32,
    /// Required subgroup size.
    pub subgroup: Subgroup,
}

impl Plan {
    /// Workgroups per row.
    pub fn groups(&self, shape: &Shape) -> u32 {
        shape.computed_heads().div_ceil(self.threads / self.lanes)
    }
}

/// The plan for a shape.
pub fn plan(caps: &Caps, shape: &Shape) -> Plan {
    at_tier(caps, shape, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, shape: &Shape, tier: Tier) -> Plan {
    // A thread takes at least four values; a cluster lies within the smallest subgroup that the driver may
    // choose.
    let items = (shape.head_dim / 4).next_power_of_two();
    let lanes = items.min(caps.min_subgroup_size.clamp(4, 32));
    let multiple = caps.max_subgroup_size.max(lanes);
    // A CPU driver runs workgroups one at a time: one per row is best there.
    let threads = if caps.max_subgroup_size < 32 { shape.computed_heads() * lanes } else { multiple };
    let max_threads = (caps.max_threads / multiple).max(1) * multiple;
    Plan {
        tier,
        threads: threads.next_multiple_of(multiple).min(max_threads),
        lanes,
        subgroup: Subgroup::Any,
    }
}

const GEMMA: Shape = Shape {
    heads: 4,
    kv_heads: 1,
    head_dim: 256,
    page_size: 64,
    scheme: KvScheme::F16,
    keys_and_values: KeysAndValues::Projected,
    norm: true,
    value_norm: false,
    bias: false,
    rotation: Rotation::Halves,
    temperature: None,
    partials: 1,
};

/// Heads, KV heads and head_dim of the Gemma 3 family, smallest model first, and of the global layers of
/// Gemma 4.
const MODEL_SHAPES: [(u32, u32, u32); 7] =
    [(4, 1, 256), (8, 4, 256), (16, 8, 256), (32, 16, 128), (8, 1, 512), (16, 2, 512), (32, 4, 512)];

/// Heads and head_dim of the image encoders of Gemma 4, smallest first.
const ENCODER_SHAPES: [(u32, u32); 2] = [(12, 64), (16, 72)];

/// Pipelines that the policy may request: those of the Gemma 3 and 4 families, and the features that other families
/// need.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        let gemma =
            MODEL_SHAPES.map(|(heads, kv_heads, head_dim)| Shape { heads, kv_heads, head_dim, ..GEMMA });
        let qwen2 = Shape { heads: 12, kv_heads: 2, head_dim: 128, norm: false, bias: true, ..GEMMA };
        let rotation = Rotation::Interleaved;
        let llama = Shape { heads: 9, kv_heads: 3, head_dim: 64, norm: false, rotation, ..GEMMA };
        let gemma4 = [
            Shape { keys_and_values: KeysAndValues::ValuesFromKeys, value_norm: true, ..gemma[5] },
            Shape { keys_and_values: KeysAndValues::ValuesFromKeys, value_norm: true, ..gemma[6] },
            Shape { value_norm: true, ..gemma[4] },
            Shape { keys_and_values: KeysAndValues::Shared, ..gemma[4] },
        ];
        let temperature = Some(QueryTemperature { beta: 0.1, original: 16_384 });
        let ministral = Shape { heads: 32, kv_heads: 8, head_dim: 128, norm: false, temperature, ..GEMMA };
        let exact = Shape { scheme: KvScheme::F32, ..GEMMA };
        let int8 = |shape: Shape| Shape { scheme: KvScheme::Int8, ..shape };
        let small = [gemma[0], gemma[3], gemma4[0], qwen2, llama].map(int8);
        let encoders = ENCODER_SHAPES.into_iter().flat_map(|(heads, head_dim)| {
            let rotation = Rotation::Grid;
            let encoder = Shape { heads, kv_heads: heads, head_dim, value_norm: true, rotation, ..GEMMA };
            [KvScheme::F16, KvScheme::F32].map(|scheme| Shape { scheme, ..encoder })
        });
        let text = gemma.into_iter().take(4).chain(gemma4).chain([qwen2, llama, ministral, exact]);
        for shape in text.chain(small).chain(encoders) {
            list.push(variant(&shape, at_tier(caps, &shape, tier)));
        }
    }
    list
}
