//! Selects the variant for a shape and a device. Pure; tested without a GPU.

use gpu::{Caps, Error, Result, Subgroup, Tier};
use tensor::KvScheme;

use super::{Mode, combine_variant, variant};
use crate::variant::Variant;

/// The attention to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Query heads, a multiple of the KV heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values per head: a multiple of 8, of 32 where keys and values are int8; at most 512.
    pub head_dim: u32,
    /// Positions per page, a power of two.
    pub page_size: u32,
    /// Storage scheme of keys and values.
    pub scheme: KvScheme,
    /// Sliding window: positions up to its own that a row attends to; 0 for all.
    pub window: u32,
    /// Maximum context length, which bounds useful splitting.
    pub context_length: u32,
}

/// Maximum head length: a thread of the smallest subgroup that T1 allows then holds 16 vec8s.
const MAX_HEAD_DIM: u32 = 512;

impl Shape {
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: "attention_paged".into(), reason });
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(8) || self.head_dim > MAX_HEAD_DIM {
            return wrong(format!(
                "a head_dim of {} is not supported: it must be a multiple of 8 up to {MAX_HEAD_DIM}",
                self.head_dim
            ));
        }
        if self.kv_heads == 0 || self.heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return wrong(format!(
                "{} query heads are not a multiple of {} KV heads",
                self.heads, self.kv_heads
            ));
        }
        self.scheme.check(self.head_dim, self.page_size).or_else(wrong)
    }

    /// Vec8s (8 neighbouring values) per head.
    fn vec8s(&self) -> u32 {
        self.head_dim / 8
    }
}

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads per workgroup.
    pub threads: u32,
    /// Threads per cluster, which share a key: a power of two.
    pub lanes: u32,
    /// Rows per workgroup: 1 for decode.
    pub rows: u32,
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
    /// The shader for CPU drivers with subgroups of 16.
    pub wide_cpu: bool,
}

impl Plan {
    /// Positions per block.
    pub fn block(&self) -> u32 {
        self.threads / self.lanes * self.keys
    }

    /// Minimum blocks per split.
    pub fn min_blocks(&self) -> u32 {
        self.min_split.div_ceil(self.block())
    }

    /// Shared memory per workgroup, in bytes.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        let vec8s_per_thread = shape.vec8s().div_ceil(self.lanes);
        let clusters = self.threads / self.lanes;
        let pairs = self.rows * self.heads;
        let cluster_outputs =
            if clusters > 1 { self.threads * vec8s_per_thread * 32 + clusters * pairs * 8 } else { 24 };
        let sums = if self.tier >= Tier::T1 { 0 } else { self.threads * self.keys * pairs * 4 };
        cluster_outputs + sums
    }
}

/// Threads per decode workgroup on a GPU: subgroups times a power of two.
const DECODE_THREADS: u32 = 128;

/// The plan for a shape.
pub fn plan(caps: &Caps, shape: &Shape, mode: Mode) -> Plan {
    at_tier(caps, shape, mode, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan whose sums depend neither on the number of rows nor on chunking: the prefill plan, with one row
/// per workgroup where there are no chunks.
pub fn reproducible(caps: &Caps, shape: &Shape, in_chunks: bool) -> Plan {
    let plan = plan(caps, shape, Mode::Prefill);
    if in_chunks { plan } else { Plan { rows: 1, ..plan } }
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, shape: &Shape, mode: Mode, tier: Tier) -> Plan {
    // A CPU driver runs a workgroup on one core, where sharing costs more than it saves: one cluster, of all
    // lanes of a vector. On a GPU a thread takes two vec8s, because summing scores across a cluster costs
    // more than registers.
    let cpu = caps.max_subgroup_size < 32;
    let target = if cpu { shape.vec8s() } else { shape.vec8s().div_ceil(2) };
    let subgroup =
        if tier >= Tier::T1 && caps.allows_subgroup_size(32) { Subgroup::Exactly(32) } else { Subgroup::Any };
    let smallest = if subgroup == Subgroup::Any { caps.min_subgroup_size.clamp(4, 32) } else { 32 };
    let lanes = target.next_power_of_two().min(smallest);
    let vec8s_per_thread = shape.vec8s().div_ceil(lanes);
    // Maximum vec8s of queries (and of outputs) per thread, and maximum scores per cluster. A GPU has registers
    // for this many; a CPU driver gains nothing from more, and takes seconds to compile them at T0, and for
    // heads longer than 256.
    let (max_vec8s, max_scores) = match (cpu, tier) {
        (false, _) => (8, 16),
        (true, _) if shape.head_dim > 256 => (8, 1),
        (true, Tier::T0) => (4, 2),
        (true, _) => (16, 16),
    };
    let group = shape.heads / shape.kv_heads;
    let heads = (1..=group.min(max_vec8s))
        .rev()
        .find(|heads| group.is_multiple_of(*heads) && heads * vec8s_per_thread <= max_vec8s)
        .unwrap_or(1);
    let keys = if cpu { (max_scores / heads).clamp(1, 4).next_power_of_two() } else { 2 };
    let rows = match mode {
        Mode::Decode => 1,
        Mode::Prefill => (max_vec8s / (heads * vec8s_per_thread)).min(max_scores / (heads * keys)).max(1),
    };
    let multiple = if subgroup == Subgroup::Any { caps.max_subgroup_size.max(lanes) } else { 32 };
    let threads =
        if cpu || mode == Mode::Prefill { multiple } else { multiple * (DECODE_THREADS / multiple).max(1) };
    let threads = threads.min(caps.max_threads / multiple * multiple);
    // On a CPU driver, two halves of 512 positions and the combine took longer than one split.
    let min_split = if cpu { 512 } else { 128 };
    let wide_cpu =
        caps.cpu && tier >= Tier::T1 && (caps.min_subgroup_size, caps.max_subgroup_size) == (16, 16);
    let mut plan = Plan { tier, threads, lanes, rows, heads, keys, min_split, splits: 1, subgroup, wide_cpu };
    while plan.shared_bytes(shape) > caps.max_shared_bytes && plan.threads > multiple {
        plan.threads /= 2;
    }
    while plan.shared_bytes(shape) > caps.max_shared_bytes && plan.rows > 1 {
        plan.rows -= 1;
    }
    if mode == Mode::Decode {
        plan.splits = splits(caps, shape, &plan);
    }
    plan
}

/// Target workgroups per compute unit, where one row provides them all.
const GROUPS_PER_UNIT: u32 = 4;
/// Combining more splits than this takes longer than it saves.
const MAX_SPLITS: u32 = 64;

fn splits(caps: &Caps, shape: &Shape, plan: &Plan) -> u32 {
    let units = caps.compute_units.unwrap_or(if caps.max_subgroup_size < 32 { 1 } else { 16 });
    let range = if shape.window == 0 { shape.context_length } else { shape.window.min(shape.context_length) };
    let target = units * GROUPS_PER_UNIT / (shape.heads / plan.heads);
    target.clamp(1, (range / plan.min_split).clamp(1, MAX_SPLITS))
}

/// Heads, KV heads, head_dim, window and context length of the Gemma 3 family, smallest model first, of heads
/// of 64, of the global layers of Gemma 4, and of image encoders.
const MODEL_SHAPES: [(u32, u32, u32, u32, u32); 10] = [
    (4, 1, 256, 512, 32_768),
    (8, 4, 256, 1024, 131_072),
    (16, 8, 256, 1024, 131_072),
    (32, 16, 128, 1024, 131_072),
    (9, 3, 64, 0, 8192),
    (8, 1, 512, 0, 131_072),
    (16, 2, 512, 0, 262_144),
    (32, 4, 512, 0, 262_144),
    (16, 16, 72, 0, 4096),
    (12, 12, 64, 0, 2520),
];

/// Pipelines that the policy may request: those of the Gemma 3 and 4 families, and of heads of 64.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let mut list: Vec<Variant> = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (heads, kv_heads, head_dim, window, context) in MODEL_SHAPES {
            let caches =
                [(window, KvScheme::F16), (0, KvScheme::F16), (0, KvScheme::F32), (0, KvScheme::Int8)];
            for (window, scheme) in caches {
                let shape = Shape {
                    heads,
                    kv_heads,
                    head_dim,
                    page_size: 64,
                    scheme,
                    window,
                    context_length: context,
                };
                if shape.check().is_err() {
                    continue;
                }
                let plans = [Mode::Decode, Mode::Prefill].map(|mode| at_tier(caps, &shape, mode, tier));
                let split = plans.iter().any(|plan| plan.splits > 1);
                let attention = plans.into_iter().map(|plan| variant(&shape, plan));
                for new in attention.chain(split.then(|| combine_variant(&shape))) {
                    let same = |known: &Variant| {
                        (known.shader.name, &known.constants) == (new.shader.name, &new.constants)
                    };
                    if !list.iter().any(same) {
                        list.push(new);
                    }
                }
            }
        }
    }
    list
}
