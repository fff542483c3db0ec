//! Which variant attends for a shape on a device, and where there is none: pure, tested without a GPU.

use gpu::{Caps, Element, MatrixShape, Subgroup, Tier};

use super::{Output, variant};
use crate::{attention::kv::KvScheme, variant::Variant};

/// What is to be attended to: the same as of the other kernel. The longest sequence makes no difference here.
pub use crate::attention::paged::policy::Shape;

/// The product that the kernel is made of.
const PRODUCT: MatrixShape =
    MatrixShape { m: 16, n: 16, k: 16, a: Element::F16, b: Element::F16, c: Element::F32 };
/// Rows and columns of a matrix.
const SIDE: u32 = 16;
/// The subgroups whose threads share rows of scores by twos.
const LANES: u32 = 32;
/// The longest head: its output fills half of a thread's registers. And the shortest: an output takes the place of a query.
const MOST_HEAD_DIM: u32 = 256;
const LEAST_HEAD_DIM: u32 = 32;

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T2; T1 is for tests.
    pub tier: Tier,
    /// Subgroups of a workgroup, each with 16 pairs of a row and a query head.
    pub subgroups: u32,
    /// Threads of a subgroup.
    pub lanes: u32,
    /// Keys of a block: 16, 32 or 64.
    pub keys: u32,
    /// Queries stay in registers, and need no shared memory. Not at T1.
    pub queries_in_registers: bool,
    /// Sums that a score is made of, so that products need not wait for each other: 1, 2 or 4.
    pub chains: u32,
    /// Each row is a tile of its own, and may be of any sequence; if not, rows come in chunks of one sequence each, at positions that follow each other.
    pub independent_rows: bool,
}

impl Plan {
    /// The same for rows of any sequences: a row gets the same bits. Subgroups without a pair help to load keys and values.
    pub fn with_independent_rows(self, shape: &Shape) -> Self {
        let least = (shape.heads / shape.kv_heads).div_ceil(SIDE);
        Self { subgroups: self.subgroups.max(least), independent_rows: true, ..self }
    }

    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroups * self.lanes
    }

    /// Pairs of a row and a query head that a workgroup takes.
    pub fn pairs(&self) -> u32 {
        self.subgroups * SIDE
    }

    /// The subgroup size it wants.
    pub fn subgroup(&self) -> Subgroup {
        if self.tier >= Tier::T2 { Subgroup::Exactly(self.lanes) } else { Subgroup::Any }
    }

    /// Shared memory of the shader.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        let (queries, keys_and_values) = (self.pairs(), 2 * self.keys);
        let lines =
            if self.queries_in_registers { queries.max(keys_and_values) } else { queries + keys_and_values };
        let line = shape.head_dim / 8 + 1;
        let patch = SIDE * (self.keys / 4 + 2) + SIDE * (self.keys / 8 + 1);
        (lines * line + self.subgroups * patch) * 16
    }

    /// Whether the plan serves a shape, and if not, why.
    pub fn check(&self, shape: &Shape) -> Result<(), String> {
        if !shape.head_dim.is_multiple_of(SIDE) || !(LEAST_HEAD_DIM..=MOST_HEAD_DIM).contains(&shape.head_dim)
        {
            return Err(format!(
                "heads of {} values: it takes multiples of {SIDE} from {LEAST_HEAD_DIM} to {MOST_HEAD_DIM}",
                shape.head_dim
            ));
        }
        if shape.scheme == KvScheme::F32 {
            return Err("keys and values in f32: matrix units take f16".into());
        }
        if self.queries_in_registers && self.tier < Tier::T2 {
            return Err("queries cannot be held without matrix units".into());
        }
        if self.keys > shape.page_size {
            return Err(format!("blocks of {} keys do not fit in pages of {}", self.keys, shape.page_size));
        }
        Ok(())
    }
}

/// The plan for a shape; none where the device has no matrix products as the kernel needs them, where the cache is f32, or where
/// pages or shared memory are too small.
pub fn plan(caps: &Caps, shape: &Shape) -> Option<Plan> {
    plans(caps, shape).into_iter().next()
}

/// Every plan that the device has room for, the one to take first.
pub fn plans(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    let able = caps.tier() >= Some(Tier::T2) && caps.has_matrix(PRODUCT) && caps.allows_subgroup_size(LANES);
    if able { fitting(caps, shape, Tier::T2, LANES) } else { vec![] }
}

/// The plan without matrix units, on devices with T1 and subgroups of one size, up to 32: for tests.
pub fn emulated(caps: &Caps, shape: &Shape) -> Option<Plan> {
    let able = caps.tier() >= Some(Tier::T1)
        && caps.min_subgroup_size == caps.max_subgroup_size
        && LANES.is_multiple_of(caps.max_subgroup_size);
    if able { fitting(caps, shape, Tier::T1, caps.max_subgroup_size).into_iter().next() } else { None }
}

/// The more pairs share every key and value the better, then the more keys a block has.
fn fitting(caps: &Caps, shape: &Shape, tier: Tier, lanes: u32) -> Vec<Plan> {
    // A block of keys is about 8 KiB, and so is one of values.
    let most_keys = (4096 / shape.head_dim.max(1)).min(shape.page_size);
    // Queries and outputs of long heads are too much for the registers of some devices.
    let held = if shape.head_dim <= 128 { [true, false] } else { [false, true] };
    let plans = [4, 3, 2, 1].into_iter().flat_map(|subgroups| {
        let blocks = [64, 32, 16].into_iter().filter(|keys| *keys <= most_keys);
        // Four matrices of scores keep a matrix unit busy; with one or two a product would wait for the one before it.
        let chains = |keys| if keys < 64 { 2 } else { 1 };
        blocks.flat_map(move |keys| {
            held.map(|held| Plan {
                tier,
                subgroups,
                lanes,
                keys,
                queries_in_registers: held,
                chains: chains(keys),
                independent_rows: false,
            })
        })
    });
    let fits = |plan: &Plan| {
        plan.check(shape).is_ok()
            && plan.threads() <= caps.max_threads
            && plan.shared_bytes(shape) <= caps.max_shared_bytes
    };
    plans.filter(fits).collect()
}

/// Heads, kv heads, head_dim of the Gemma 3 family, smallest model first, and of heads of 64. Windows make no other variants.
const MODEL_SHAPES: [(u32, u32, u32); 5] =
    [(4, 1, 256), (8, 4, 256), (16, 8, 256), (32, 16, 128), (9, 3, 64)];

/// Pipelines that the policy may ask for: those of the Gemma 3 family, and of heads of 64.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let mut list: Vec<Variant> = Vec::new();
    for (heads, kv_heads, head_dim) in MODEL_SHAPES {
        for scheme in [KvScheme::F16, KvScheme::Int8] {
            let shape = Shape {
                heads,
                kv_heads,
                head_dim,
                page_size: 64,
                scheme,
                window: 0,
                context_length: 131_072,
            };
            let plan = plan(caps, &shape);
            for plan in plan.into_iter().flat_map(|plan| [plan, plan.with_independent_rows(&shape)]) {
                let new = variant(&shape, Output::F16, plan);
                if !list.iter().any(|known| known.same_code(&new)) {
                    list.push(new);
                }
            }
        }
    }
    list
}
