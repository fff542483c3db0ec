//! Selects the variant for a shape on a device, if there is one. Pure; tested without a GPU.

use gpu::{Caps, Element, MatrixShape, Subgroup, Tier};
use tensor::KvScheme;

use super::{Output, variant};
use crate::{
    matmul::coopmat::policy::{Fragments, likely_fragments},
    variant::Variant,
};

/// The attention to compute, as in [`paged`](crate::attention::paged). The context length has no influence
/// here.
pub use crate::attention::paged::policy::Shape;

/// The matrix product that the kernel uses.
const PRODUCT: MatrixShape =
    MatrixShape { m: 16, n: 16, k: 16, a: Element::F16, b: Element::F16, c: Element::F32 };
/// Rows and columns of a matrix.
const SIDE: u32 = 16;
/// Subgroup size; its threads share rows of scores in pairs.
const LANES: u32 = 32;
/// Maximum length of a head, or of each of its parts: its output fills half of a thread's registers.
const MAX_PART: u32 = 256;
/// Minimum length of a head, or of each of its parts: outputs are written through memory of this width.
const MIN_PART: u32 = 32;
/// Maximum head length.
const MAX_HEAD_DIM: u32 = 512;

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T2; T1 only for tests.
    pub tier: Tier,
    /// Subgroups per workgroup, a multiple of `head_parts`.
    pub subgroups: u32,
    /// Subgroups that share 16 pairs of a row and a query head, each with a part of the head.
    pub head_parts: u32,
    /// Threads per subgroup.
    pub lanes: u32,
    /// Keys per block: 16, 32 or 64.
    pub keys: u32,
    /// Keeps queries in registers instead of shared memory. Not at T1.
    pub queries_in_registers: bool,
    /// Accumulators per score, so that products do not depend on each other: 1, 2 or 4.
    pub chains: u32,
    /// Each row is its own tile, and may belong to any sequence; otherwise rows come in chunks, each of one
    /// sequence at consecutive positions.
    pub independent_rows: bool,
    /// Scores become weights in the registers that they are in, which takes [`Fragments::FourThreadsPerRow`].
    pub softmax_in_registers: bool,
    /// Matrices of 16 pairs per subgroup, which share every key and value that it loads: more than 1 only with softmax in
    /// registers.
    pub row_tiles: u32,
}

impl Plan {
    /// The same for rows of any sequences; a row gets the same bits. Subgroups without a pair help to load
    /// keys and values.
    pub fn with_independent_rows(self, shape: &Shape) -> Self {
        let min_subgroups = (shape.heads / shape.kv_heads).div_ceil(SIDE) * self.head_parts;
        Self { subgroups: self.subgroups.max(min_subgroups), independent_rows: true, ..self }
    }

    /// Threads per workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroups * self.lanes
    }

    /// Pairs of a row and a query head per workgroup.
    pub fn pairs(&self) -> u32 {
        self.subgroups / self.head_parts * self.row_tiles * SIDE
    }

    /// The required subgroup size.
    pub fn subgroup(&self) -> Subgroup {
        if self.tier >= Tier::T2 { Subgroup::Exactly(self.lanes) } else { Subgroup::Any }
    }

    /// Shared memory per workgroup, in bytes.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        let line = shape.head_dim.next_multiple_of(SIDE) / 8 + 1;
        let scratch = match self.softmax_in_registers {
            true => 0,
            false => self.subgroups * (SIDE * (self.keys / 4 + 2) + SIDE * (self.keys / 8 + 1)),
        };
        let queries = if self.queries_in_registers { 0 } else { self.pairs() };
        let units = match self.head_parts {
            1 => (queries + 2 * self.keys) * line + scratch,
            // Values take the place of keys.
            _ => (queries + self.keys) * line + scratch,
        };
        // Queries that go to registers and outputs take the place of everything.
        let outputs = self.subgroups * SIDE * ((line - 1) / self.head_parts + 1);
        units.max(self.pairs() * line).max(outputs) * 16
    }

    fn fits(&self, caps: &Caps, shape: &Shape) -> bool {
        self.check(shape).is_ok()
            && self.threads() <= caps.max_threads
            && self.shared_bytes(shape) <= caps.max_shared_bytes
    }

    /// The reason why the plan cannot serve a shape, if any.
    pub fn check(&self, shape: &Shape) -> Result<(), String> {
        let (head_dim, parts) = (shape.head_dim, self.head_parts.max(1));
        // A head that is not divided is padded.
        let multiple = if parts == 1 { 8 } else { SIDE * parts };
        if !head_dim.is_multiple_of(multiple)
            || !(MIN_PART * parts..=MAX_PART * parts).contains(&head_dim)
            || head_dim > MAX_HEAD_DIM
        {
            return Err(format!(
                "a head_dim of {head_dim} in {parts} parts is not supported: it must be a multiple of {multiple}, each part from {MIN_PART} to {MAX_PART}, and the head at most {MAX_HEAD_DIM}"
            ));
        }
        if self.head_parts == 0 || !self.subgroups.is_multiple_of(self.head_parts) {
            return Err(format!("{} subgroups do not divide into {parts} parts", self.subgroups));
        }
        if shape.scheme == KvScheme::F32 {
            return Err("keys and values are f32: cooperative matrices need f16".into());
        }
        if self.queries_in_registers && self.tier < Tier::T2 {
            return Err("queries cannot be kept in registers without cooperative matrices".into());
        }
        if self.softmax_in_registers && (self.head_parts > 1 || self.tier < Tier::T2) {
            return Err("softmax in registers takes cooperative matrices and undivided heads".into());
        }
        if self.row_tiles != 1 && !self.softmax_in_registers {
            return Err(format!("{} matrices of rows take softmax in registers", self.row_tiles));
        }
        if self.keys > shape.page_size {
            return Err(format!(
                "blocks of {} keys do not fit pages of {} positions",
                self.keys, shape.page_size
            ));
        }
        Ok(())
    }
}

/// The plan for a shape; none where the device lacks the matrix products, where the cache is f32, or where
/// pages or shared memory are too small.
pub fn plan(caps: &Caps, fragments: Fragments, shape: &Shape) -> Option<Plan> {
    plans(caps, fragments, shape).into_iter().next()
}

/// Every plan that fits the device, the preferred one first.
pub fn plans(caps: &Caps, fragments: Fragments, shape: &Shape) -> Vec<Plan> {
    let supported =
        caps.tier() >= Some(Tier::T2) && caps.has_matrix(PRODUCT) && caps.allows_subgroup_size(LANES);
    if supported { fitting(caps, fragments, shape, Tier::T2, LANES) } else { vec![] }
}

/// The plan that emulates cooperative matrices, for tests: on devices with T1 and a fixed subgroup size of up
/// to 32.
pub fn emulated(caps: &Caps, shape: &Shape) -> Option<Plan> {
    let supported = caps.tier() >= Some(Tier::T1)
        && caps.min_subgroup_size == caps.max_subgroup_size
        && LANES.is_multiple_of(caps.max_subgroup_size);
    let plans = || fitting(caps, Fragments::Other, shape, Tier::T1, caps.max_subgroup_size);
    if supported { plans().into_iter().next() } else { None }
}

/// Prefers more pairs that share every key and value, then more keys per block.
fn fitting(caps: &Caps, fragments: Fragments, shape: &Shape, tier: Tier, lanes: u32) -> Vec<Plan> {
    if shape.head_dim > MAX_PART {
        return fitting_in_parts(caps, shape, tier, lanes);
    }
    let softmax_in_registers = fragments == Fragments::FourThreadsPerRow;
    // A block of keys is about 8 KiB, and so is a block of values. Without the scores, there is memory for more of
    // them, and so for fewer barriers.
    let max_keys = match softmax_in_registers && shape.head_dim <= 128 {
        true => 64,
        false => 4096 / shape.head_dim.max(1),
    };
    let max_keys = max_keys.min(shape.page_size);
    // Of short heads, a subgroup has registers for 32 pairs; not for their queries too.
    let row_tiles = if softmax_in_registers && shape.head_dim <= 80 { 2 } else { 1 };
    // Image encoders have short heads without GQA, and thousands of rows: larger tiles, which load keys and
    // values less often, still fill the device.
    let many_rows = shape.heads == shape.kv_heads && shape.head_dim <= 80;
    let max_subgroups = if many_rows { 8 / row_tiles } else { 4 };
    // Queries and outputs of long heads exceed the registers of some devices.
    let in_registers = if shape.head_dim <= 128 && row_tiles == 1 { [true, false] } else { [false, true] };
    let subgroups = [8, 4, 3, 2, 1].into_iter().filter(|subgroups| *subgroups <= max_subgroups);
    let plans = subgroups.flat_map(|subgroups| {
        let blocks = [64, 32, 16].into_iter().filter(|keys| *keys <= max_keys);
        // Four matrices of scores keep a matrix unit busy; with one or two, each product would wait for the
        // previous one.
        let chains = |keys| if keys < 64 { 2 } else { 1 };
        blocks.flat_map(move |keys| {
            in_registers.map(|in_registers| Plan {
                tier,
                subgroups,
                head_parts: 1,
                lanes,
                keys,
                queries_in_registers: in_registers,
                chains: chains(keys),
                independent_rows: false,
                softmax_in_registers,
                row_tiles,
            })
        })
    });
    plans.filter(|plan| plan.fits(caps, shape)).collect()
}

/// The same for heads whose output exceeds the registers of a subgroup. In four parts, the queries fit
/// registers too: in shared memory, 16 queries of 512 would need half of the 32 KiB that many devices have.
fn fitting_in_parts(caps: &Caps, shape: &Shape, tier: Tier, lanes: u32) -> Vec<Plan> {
    let plans = [8, 4].into_iter().flat_map(|subgroups| {
        [true, false].map(|in_registers| Plan {
            tier,
            subgroups,
            head_parts: 4,
            lanes,
            keys: SIDE,
            queries_in_registers: in_registers,
            chains: 2,
            independent_rows: false,
            softmax_in_registers: false,
            row_tiles: 1,
        })
    });
    plans.filter(|plan| plan.fits(caps, shape)).collect()
}

/// Heads, KV heads and head_dim of the Gemma 3 family, smallest model first, of heads of 64, of the global
/// layers of Gemma 4, and of image encoders. Windows need no other variants.
const MODEL_SHAPES: [(u32, u32, u32); 8] = [
    (4, 1, 256),
    (8, 4, 256),
    (16, 8, 256),
    (32, 16, 128),
    (9, 3, 64),
    (16, 2, 512),
    (16, 16, 72),
    (12, 12, 64),
];

/// Pipelines that the policy may request: those of the Gemma 3 and 4 families, and of heads of 64.
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
            if shape.check().is_err() {
                continue;
            }
            let plans =
                likely_fragments(caps).into_iter().filter_map(|fragments| plan(caps, fragments, &shape));
            // Clipped image encoders clamp the output before it becomes f16.
            let outputs =
                if (heads, head_dim) == (12, 64) { &[Output::F16, Output::F32][..] } else { &[Output::F16] };
            for plan in plans.flat_map(|plan| [plan, plan.with_independent_rows(&shape)]) {
                for output in outputs {
                    let new = variant(&shape, *output, plan, false);
                    if !list.iter().any(|known| known.same_code(&new)) {
                        list.push(new);
                    }
                }
                if (heads, head_dim, scheme) == (16, 72, KvScheme::F16) && !plan.independent_rows {
                    list.push(variant(&shape, Output::F16, plan, true));
                }
            }
        }
    }
    list
}
