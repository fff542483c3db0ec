//! Selects the variant for the attention of a decode step on a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};
use tensor::KvScheme;

pub use super::shape::Shape;
use super::variant;
use crate::{
    Activations,
    attention::{
        paged::{self, Mode},
        rope::{KeysAndValues, QueryTemperature, Rotation},
    },
    variant::Variant,
};

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads per workgroup.
    pub threads: u32,
    /// Threads per cluster, which share a key: a power of two.
    pub lanes: u32,
    /// Query heads per workgroup: all that share a KV head, or some of them.
    pub heads: u32,
    /// Keys per cluster and block: a power of two.
    pub keys: u32,
    /// Minimum positions per split: smaller splits cost more to combine than they save.
    pub min_split: u32,
    /// Number of KV splits. Must not depend on the number of rows: a row's sums would differ between batches.
    pub splits: u32,
    /// Required subgroup size.
    pub subgroup: Subgroup,
}

impl Plan {
    /// Positions per block.
    pub fn block(&self) -> u32 {
        self.threads / self.lanes * self.keys
    }

    /// Workgroups for `rows` rows, none of which is past `position`: with short ranges the later splits are
    /// empty. `rows` is the recorded number, active or not: the offsets of counters and int16 low bytes
    /// depend on it.
    pub fn groups(&self, shape: &Shape, rows: u32, position: u32) -> [u32; 3] {
        let attended = if shape.window == 0 { position } else { position.min(shape.window) };
        // Both ends of the range may fall inside a block.
        let blocks = attended / self.block() + 2;
        [shape.heads / self.heads, rows, blocks.div_ceil(self.min_blocks()).clamp(1, self.splits)]
    }

    /// Minimum blocks per split.
    pub fn min_blocks(&self) -> u32 {
        self.min_split.div_ceil(self.block())
    }

    /// Shared memory per workgroup, in bytes.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        let vec8s_per_thread = (shape.head_dim / 8).div_ceil(self.lanes);
        let clusters = self.threads / self.lanes;
        let new_heads = shape.keys_and_values.written_heads(1);
        let values = (self.heads + new_heads) * shape.head_dim * 4 + self.heads * 8;
        let cluster_outputs =
            if clusters > 1 { self.threads * vec8s_per_thread * 32 + clusters * self.heads * 8 } else { 24 };
        let splits = if self.splits > 1 { self.heads * self.splits * 8 } else { 8 };
        let sums = if self.tier >= Tier::T1 { 0 } else { self.threads * self.keys * self.heads * 4 };
        let scales = if shape.scheme == KvScheme::Int8 { 8 * shape.head_dim.div_ceil(64) } else { 4 };
        // 16 for the flag of the last workgroup.
        values + cluster_outputs + splits + sums + scales + 16
    }
}

/// Threads per workgroup on a GPU. On an H200 a step of the 27B took 2% less than with 256 threads at depth
/// 0, and 4% less at depth 8192.
const THREADS: u32 = 128;
/// Minimum positions per split on a GPU.
const MIN_SPLIT: u32 = 128;
/// Target workgroups per compute unit, where one row provides them all: more would spend their time on
/// queries and combining.
const GROUPS_PER_UNIT: u32 = 2;
/// Minimum workgroups on devices with few compute units, each of which holds several.
const MIN_GROUPS: u32 = 96;
/// Combining more splits than this takes longer than it saves.
const MAX_SPLITS: u32 = 64;

/// Whether this kernel is faster than the separate ones on a device. Not on a CPU driver: the heads of the
/// 270M took 22% less time than the separate kernels at 40 positions, but 4% more at 300 and 24% more at 600,
/// and 14 s to compile instead of 1.6 s.
pub fn is_preferred(caps: &Caps) -> bool {
    !on_cpu(caps)
}

fn on_cpu(caps: &Caps) -> bool {
    caps.max_subgroup_size < 32
}

/// The plan for a step of `rows` rows: with many rows, workgroups have fewer threads, so that more of them
/// run at the same time. At 128 rows of the 27B on an H200, occupancy determines most of the kernel's time.
pub fn plan_for_rows(caps: &Caps, shape: &Shape, rows: u32) -> Plan {
    let plan = plan(caps, shape);
    let target = match rows {
        _ if on_cpu(caps) => return plan,
        ..32 => return plan,
        32..64 => 64,
        _ => 32,
    };
    Plan { threads: thread_multiple(caps, &plan).max(target).min(plan.threads), ..plan }
}

/// The plan for a shape.
pub fn plan(caps: &Caps, shape: &Shape) -> Plan {
    at_tier(caps, shape, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, shape: &Shape, tier: Tier) -> Plan {
    // The division of heads and keys among threads is that of paged attention. Only the number of threads
    // differs: one cluster on a CPU driver, enough to hide memory latency on a GPU.
    let base = paged::policy::at_tier(caps, &shape.attention(), Mode::Decode, tier);
    let paged::policy::Plan { lanes, heads, keys, subgroup, .. } = base;
    let cpu = on_cpu(caps);
    let min_split = if cpu { base.min_split } else { MIN_SPLIT };
    let threads = if cpu { base.threads } else { THREADS.min(caps.max_threads) };
    let mut plan = Plan { tier, threads, lanes, heads, keys, min_split, splits: 1, subgroup };
    plan.splits = splits(caps, shape, &plan);
    if shape.head_dim > 256
        && !cpu
        && plan.splits == MAX_SPLITS
        && groups_of_a_row(shape, &plan) < groups(caps)
    {
        // Larger workgroups where there cannot be more: on an H200, 8 query heads over 2 KV heads of 512 took 105 µs
        // for 40,000 positions instead of 144 µs.
        plan.threads = (2 * threads).min(caps.max_threads);
    }
    while plan.shared_bytes(shape) > caps.max_shared_bytes && plan.threads > thread_multiple(caps, &plan) {
        plan.threads /= 2;
    }
    plan
}

/// The workgroup size must be a multiple of this.
fn thread_multiple(caps: &Caps, plan: &Plan) -> u32 {
    match plan.subgroup {
        Subgroup::Exactly(size) => size,
        Subgroup::Any => caps.max_subgroup_size.max(plan.lanes),
    }
}

/// Target workgroups of a row.
fn groups(caps: &Caps) -> u32 {
    let units = caps.compute_units.unwrap_or(if on_cpu(caps) { 1 } else { 16 });
    if on_cpu(caps) { units } else { (units * GROUPS_PER_UNIT).max(MIN_GROUPS) }
}

fn groups_of_a_row(shape: &Shape, plan: &Plan) -> u32 {
    shape.heads / plan.heads * plan.splits
}

fn splits(caps: &Caps, shape: &Shape, plan: &Plan) -> u32 {
    let range = if shape.window == 0 { shape.context_length } else { shape.window.min(shape.context_length) };
    let target = groups(caps) / (shape.heads / plan.heads);
    target.clamp(1, (range / plan.min_split).clamp(1, MAX_SPLITS))
}

/// Every plan worth timing for a shape.
pub fn candidates(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    let best = plan(caps, shape);
    let mut list = vec![best];
    // A CPU driver runs a workgroup on one core: no alternatives.
    if on_cpu(caps) {
        return list;
    }
    let group = shape.heads / shape.kv_heads;
    let heads: Vec<u32> = (1..=best.heads).filter(|heads| group.is_multiple_of(*heads)).collect();
    for threads in [128, 256, 512, 1024].into_iter().filter(|threads| *threads <= caps.max_threads) {
        for lanes in
            [best.lanes, best.lanes * 2].into_iter().filter(|lanes| *lanes <= thread_multiple(caps, &best))
        {
            for (heads, keys) in heads.iter().flat_map(|heads| [1, 2, 4].map(|keys| (*heads, keys))) {
                for min_split in [64, MIN_SPLIT, 256] {
                    let mut plan = Plan { threads, lanes, heads, keys, min_split, ..best };
                    plan.splits = splits(caps, shape, &plan);
                    let fits = threads.is_multiple_of(thread_multiple(caps, &plan))
                        && plan.shared_bytes(shape) <= caps.max_shared_bytes;
                    if fits && !list.contains(&plan) {
                        list.push(plan);
                    }
                }
            }
        }
    }
    list
}

/// Heads, KV heads, head_dim, window and context length of the Gemma 3 family, smallest model first, and of the
/// global layers of Gemma 4.
const MODEL_SHAPES: [(u32, u32, u32, u32, u32); 7] = [
    (4, 1, 256, 512, 32_768),
    (8, 4, 256, 1024, 131_072),
    (16, 8, 256, 1024, 131_072),
    (32, 16, 128, 1024, 131_072),
    (8, 1, 512, 0, 131_072),
    (16, 2, 512, 0, 262_144),
    (32, 4, 512, 0, 262_144),
];

/// Pipelines that the policy may request: those of the Gemma 3 and 4 families, and the features that other families
/// need.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let gemma = |(heads, kv_heads, head_dim, window, context), scheme, output| Shape {
        heads,
        kv_heads,
        head_dim,
        page_size: 64,
        scheme,
        window,
        context_length: context,
        keys_and_values: KeysAndValues::Projected,
        norm: Some(1e-6),
        value_norm: false,
        bias: false,
        rotation: Rotation::Halves,
        temperature: None,
        partials: 1,
        scale: 1.0,
        output,
    };
    let mut shapes = Vec::new();
    for (heads, kv_heads, head_dim, window, context) in MODEL_SHAPES {
        let windows = if window == 0 { vec![0] } else { vec![window, 0] };
        for window in windows {
            let model = (heads, kv_heads, head_dim, window, context);
            shapes.push(gemma(model, KvScheme::F16, Activations::F32));
            for output in [Activations::Int16, Activations::F16] {
                shapes.push(gemma(model, KvScheme::F16, output));
                shapes.push(gemma(model, KvScheme::Int8, output));
            }
        }
        shapes.push(gemma((heads, kv_heads, head_dim, 0, context), KvScheme::F32, Activations::F32));
    }
    let qwen2 = gemma((12, 2, 128, 0, 32_768), KvScheme::F16, Activations::F32);
    let llama = gemma((9, 3, 64, 0, 8192), KvScheme::F16, Activations::F32);
    for model in MODEL_SHAPES.into_iter().filter(|(_, _, head_dim, ..)| *head_dim == 512) {
        let long = gemma(model, KvScheme::F16, Activations::F16);
        let keys_and_values = KeysAndValues::ValuesFromKeys;
        shapes.push(Shape { keys_and_values, value_norm: true, ..long });
        shapes.push(Shape { keys_and_values: KeysAndValues::Shared, ..long });
    }
    shapes.push(Shape { norm: None, bias: true, ..qwen2 });
    shapes.push(Shape { norm: None, rotation: Rotation::Interleaved, ..llama });
    let temperature = Some(QueryTemperature { beta: 0.1, original: 16_384 });
    let ministral = gemma((32, 8, 128, 0, 262_144), KvScheme::F16, Activations::F16);
    shapes.push(Shape { norm: None, temperature, ..ministral });
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    tiers
        .flat_map(|tier| shapes.iter().map(move |shape| variant(shape, at_tier(caps, shape, tier))))
        .collect()
}
