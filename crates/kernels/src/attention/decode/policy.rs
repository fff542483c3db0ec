//! Which variant attends for a decode step of a shape on a device: pure, tested without a GPU.

use gpu::{Caps, Error, Result, Subgroup, Tier};

use super::variant;
use crate::{
    Activations, HALF_GROUP,
    attention::{
        kv::KvScheme,
        paged::{self, Mode},
        rope,
    },
    variant::Variant,
};

/// What is to be attended to, and how: constants of a model and of its runner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Query heads, a multiple of the kv heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values of a head: a multiple of 8, of 16 where the output is int16, of 32 where keys and values are int8, at most 256.
    pub head_dim: u32,
    /// Positions of a page, a power of two.
    pub page_size: u32,
    /// How keys and values are stored.
    pub scheme: KvScheme,
    /// Positions that a row attends to, its own included; 0 for all up to its own.
    pub window: u32,
    /// The longest sequence: how far it is worth to split.
    pub context_length: u32,
    /// The epsilon of the norm of query and key heads, where they are normed (Gemma 3).
    pub norm: Option<f32>,
    /// A bias is added first (Qwen2).
    pub bias: bool,
    /// Values 2i and 2i + 1 are rotated together (llama in GGUF files), else i and i + head_dim / 2.
    pub interleaved: bool,
    /// The QKV product is the sum of so many, at least 1: its K is in parts.
    pub partials: u32,
    /// Queries are multiplied by this.
    pub scale: f32,
    /// How the output is stored: f32, f16 or int16.
    pub output: Activations,
}

impl Shape {
    /// The part of it that makes queries, keys and values.
    pub fn rope(&self) -> rope::Shape {
        rope::Shape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            page_size: self.page_size,
            scheme: self.scheme,
            norm: self.norm.is_some(),
            bias: self.bias,
            interleaved: self.interleaved,
            partials: self.partials,
        }
    }

    /// The part of it that attends.
    pub fn attention(&self) -> paged::policy::Shape {
        paged::policy::Shape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            page_size: self.page_size,
            scheme: self.scheme,
            window: self.window,
            context_length: self.context_length,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.attention().check()?;
        let wrong = |reason: String| Err(Error::InvalidUse { what: "attention_decode".into(), reason });
        match self.output {
            Activations::Int8 => wrong("the output must be f32, f16 or int16, not int8".into()),
            Activations::Int16 if !self.head_dim.is_multiple_of(HALF_GROUP as u32) => wrong(format!(
                "heads of {} values do not divide into half groups of {HALF_GROUP}",
                self.head_dim
            )),
            _ => Ok(()),
        }
    }
}

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Threads of a cluster, which share a key: a power of two.
    pub lanes: u32,
    /// Query heads of a workgroup: all that share a kv head, or a part of them.
    pub heads: u32,
    /// Keys that a cluster takes at a time: a power of two.
    pub keys: u32,
    /// Positions that a split has at least: fewer cost more to join than they save.
    pub least: u32,
    /// Splits of the positions. It must not depend on the number of rows: a row would get other sums in another batch.
    pub splits: u32,
    /// Subgroup size.
    pub subgroup: Subgroup,
}

impl Plan {
    /// Positions of a block.
    pub fn block(&self) -> u32 {
        self.threads / self.lanes * self.keys
    }

    /// Workgroups that so many rows need, none of which is past `position`: of a short range the later splits are empty. Rows are all that
    /// it is recorded for, in use or not: where counters and int16's low bytes lie depends on their number.
    pub fn groups(&self, shape: &Shape, rows: u32, position: u32) -> [u32; 3] {
        let seen = if shape.window == 0 { position } else { position.min(shape.window) };
        // Both ends may be cut at any place.
        let blocks = seen / self.block() + 2;
        [shape.heads / self.heads, rows, blocks.div_ceil(self.least_blocks()).clamp(1, self.splits)]
    }

    /// Blocks that a split has at least.
    pub fn least_blocks(&self) -> u32 {
        self.least.div_ceil(self.block())
    }

    /// Shared memory of the shader.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        let own = (shape.head_dim / 8).div_ceil(self.lanes);
        let clusters = self.threads / self.lanes;
        let values = (self.heads + 2) * shape.head_dim * 4 + self.heads * 8;
        let join = if clusters > 1 { self.threads * own * 32 + clusters * self.heads * 8 } else { 24 };
        let splits = if self.splits > 1 { self.heads * self.splits * 8 } else { 8 };
        let sums = if self.tier >= Tier::T1 { 0 } else { self.threads * self.keys * self.heads * 4 };
        let scales = if shape.scheme == KvScheme::Int8 { 8 * shape.head_dim.div_ceil(64) } else { 4 };
        // 16 for the word that says who came last.
        values + join + splits + sums + scales + 16
    }
}

/// Threads of a GPU's workgroup. On an H200 a step of the 27B at depth 0 took 2% less than with 256, and 4% less at depth 8192.
const THREADS: u32 = 128;
/// Positions that a split has at least on a GPU.
const LEAST: u32 = 128;
/// Workgroups that a compute unit wants to have, where one row makes them all: more of them spend their time on queries and joins.
const GROUPS_PER_UNIT: u32 = 2;
/// Workgroups that a device with few compute units wants to have all the same: each of its units holds several.
const LEAST_GROUPS: u32 = 96;
/// Joining more than this takes longer than it saves.
const MOST_SPLITS: u32 = 64;

/// Whether it gains anything on such a device. Hardly on a CPU driver: the heads of the 270M took it 22% less time than the separate
/// kernels at 40 positions, but 4% more at 300 and 24% more at 600, and it took 14 s to compile where they took 1.6 s.
pub fn is_preferred(caps: &Caps) -> bool {
    !on_cpu(caps)
}

fn on_cpu(caps: &Caps) -> bool {
    caps.max_subgroup_size < 32
}

/// The plan for steps of so many rows: of many each workgroup has fewer threads, so that more of them are worked on at the same time. At
/// 128 rows of the 27B on an H200 that is most of what it takes.
pub fn plan_for_rows(caps: &Caps, shape: &Shape, rows: u32) -> Plan {
    let plan = plan(caps, shape);
    let wanted = match rows {
        _ if on_cpu(caps) => return plan,
        ..32 => return plan,
        32..64 => 64,
        _ => 32,
    };
    Plan { threads: whole(caps, &plan).max(wanted).min(plan.threads), ..plan }
}

/// The plan for a shape.
pub fn plan(caps: &Caps, shape: &Shape) -> Plan {
    at_tier(caps, shape, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, shape: &Shape, tier: Tier) -> Plan {
    // How heads and keys are shared among threads is attention's own question. What differs is how many threads there are: a CPU
    // driver wants one cluster, a GPU as many as hide the memory's latency.
    let base = paged::policy::at_tier(caps, &shape.attention(), Mode::Decode, tier);
    let paged::policy::Plan { lanes, heads, keys, subgroup, .. } = base;
    let cpu = on_cpu(caps);
    let least = if cpu { base.least } else { LEAST };
    let threads = if cpu { base.threads } else { THREADS.min(caps.max_threads) };
    let mut plan = Plan { tier, threads, lanes, heads, keys, least, splits: 1, subgroup };
    plan.splits = splits(caps, shape, &plan);
    while plan.shared_bytes(shape) > caps.max_shared_bytes && plan.threads > whole(caps, &plan) {
        plan.threads /= 2;
    }
    plan
}

/// Threads that a workgroup is a multiple of.
fn whole(caps: &Caps, plan: &Plan) -> u32 {
    match plan.subgroup {
        Subgroup::Exactly(size) => size,
        Subgroup::Any => caps.max_subgroup_size.max(plan.lanes),
    }
}

fn splits(caps: &Caps, shape: &Shape, plan: &Plan) -> u32 {
    let units = caps.compute_units.unwrap_or(if on_cpu(caps) { 1 } else { 16 });
    let range = if shape.window == 0 { shape.context_length } else { shape.window.min(shape.context_length) };
    let groups = if on_cpu(caps) { units } else { (units * GROUPS_PER_UNIT).max(LEAST_GROUPS) };
    let wanted = groups / (shape.heads / plan.heads);
    wanted.clamp(1, (range / plan.least).clamp(1, MOST_SPLITS))
}

/// Every plan worth timing for a shape.
pub fn candidates(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    let best = plan(caps, shape);
    let mut list = vec![best];
    // A CPU driver runs a workgroup on one core: there is nothing to choose.
    if on_cpu(caps) {
        return list;
    }
    let group = shape.heads / shape.kv_heads;
    let heads: Vec<u32> = (1..=best.heads).filter(|heads| group.is_multiple_of(*heads)).collect();
    for threads in [128, 256, 512, 1024].into_iter().filter(|threads| *threads <= caps.max_threads) {
        for lanes in [best.lanes, best.lanes * 2].into_iter().filter(|lanes| *lanes <= whole(caps, &best)) {
            for (heads, keys) in heads.iter().flat_map(|heads| [1, 2, 4].map(|keys| (*heads, keys))) {
                for least in [64, LEAST, 256] {
                    let mut plan = Plan { threads, lanes, heads, keys, least, ..best };
                    plan.splits = splits(caps, shape, &plan);
                    let fits = threads.is_multiple_of(whole(caps, &plan))
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

/// Heads, kv heads, head_dim, window and context of the Gemma 3 family, smallest model first.
const MODEL_SHAPES: [(u32, u32, u32, u32, u32); 4] = [
    (4, 1, 256, 512, 32_768),
    (8, 4, 256, 1024, 131_072),
    (16, 8, 256, 1024, 131_072),
    (32, 16, 128, 1024, 131_072),
];

/// Pipelines that the policy may ask for: those of the Gemma 3 family, and the parts that other families need.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let gemma = |(heads, kv_heads, head_dim, window, context), scheme, output| Shape {
        heads,
        kv_heads,
        head_dim,
        page_size: 64,
        scheme,
        window,
        context_length: context,
        norm: Some(1e-6),
        bias: false,
        interleaved: false,
        partials: 1,
        scale: 1.0,
        output,
    };
    let mut shapes = Vec::new();
    for (heads, kv_heads, head_dim, window, context) in MODEL_SHAPES {
        for window in [window, 0] {
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
    shapes.push(Shape { norm: None, bias: true, ..qwen2 });
    shapes.push(Shape { norm: None, interleaved: true, ..llama });
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    tiers
        .flat_map(|tier| shapes.iter().map(move |shape| variant(shape, at_tier(caps, shape, tier))))
        .collect()
}
