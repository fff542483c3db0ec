//! Which variant multiplies a matrix of a shape on a device: pure, tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::{MAX_COLUMNS, variant};
use crate::{Activations, Epilogue, Layout, Scheme, gemm::lanes, variant::Variant};

/// What is to be multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// The weights.
    pub weights: Layout,
    /// Columns of x.
    pub columns: usize,
    /// How x is stored.
    pub activations: Activations,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
    /// How y is stored: f32, or int16 where an epilogue makes activations of it.
    pub output: Activations,
}

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads of a workgroup, a multiple of 32.
    pub threads: u32,
    /// Quads a slice loads before it uses any.
    pub in_flight: u32,
    /// Workgroups, each taking strips in turn.
    pub groups: u32,
    /// Subgroup size.
    pub subgroup: Subgroup,
    /// A row a lane, by gemm's shader for CPU drivers: then `threads` and `in_flight` are its own.
    pub lanes: Option<lanes::Tile>,
}

/// Schemes that such activations are multiplied with.
pub fn schemes(activations: Activations) -> &'static [Scheme] {
    match activations {
        Activations::F32 => &Scheme::ALL,
        Activations::Int8 => &[Scheme::Int8, Scheme::Int4],
        Activations::Int16 => &[Scheme::Int8, Scheme::Int4, Scheme::Int8Min, Scheme::Int4Min],
    }
}

/// Whether gemm's shader for CPU drivers makes such a product.
pub(super) fn lanes_suit(shape: &Shape) -> bool {
    (shape.activations, shape.output) == (Activations::F32, Activations::F32)
}

/// Threads that share a quad.
const SLICE: u32 = 32;

/// The plan for a shape.
pub fn plan(caps: &Caps, shape: &Shape) -> Plan {
    at_tier(caps, shape, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, shape: &Shape, tier: Tier) -> Plan {
    // Strips of gate and up are worked on in pairs, half of the slices on each.
    let strips_at_once = shape.epilogue.strips() as u32;
    let groups = (shape.weights.strips() as u32).div_ceil(strips_at_once).min(caps.max_groups);
    let subgroup = subgroup(caps, tier);
    let base = Plan { tier, threads: SLICE * strips_at_once, in_flight: 1, groups, subgroup, lanes: None };
    // A CPU driver walks through the threads of a workgroup one vector at a time: sharing a strip gains nothing there.
    if caps.max_subgroup_size < SLICE {
        if lanes::fits(caps, tier) && lanes_suit(shape) {
            let tile = lanes::Tile { strips: strips_at_once, columns: shape.columns as u32 };
            return Plan { threads: lanes::LANES, lanes: Some(tile), ..base };
        }
        return base;
    }
    let most = most_slices(caps, shape, tier);
    let slices = match shape.epilogue {
        Epilogue::None => slices(caps, shape, most),
        _ => 2 * slices(caps, shape, (most / 2).min(MOST_SLICES / 2)),
    };
    // A second quad in flight hides the scales' latency (int4 gains 7% by it on an H200); with more columns its registers
    // cost more than that. Of floats a quad alone is as much as two of int8.
    let worth = shape.columns == 1 && !shape.weights.scheme.is_float();
    let in_flight = if worth && shape.weights.quads() as u32 > slices / strips_at_once { 2 } else { 1 };
    Plan { threads: slices * SLICE, in_flight, ..base }
}

/// Every plan worth timing for a shape.
pub fn candidates(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    let best = plan(caps, shape);
    let strips = best.groups;
    let mut list = vec![best];
    if best.lanes.is_some() {
        return list;
    }
    let most = most_slices(caps, shape, best.tier);
    let whole = |slices: &u32| {
        slices.is_multiple_of(shape.epilogue.strips() as u32)
            && (best.subgroup != Subgroup::Any || (slices * SLICE).is_multiple_of(caps.max_subgroup_size))
    };
    for slices in [1, 2, 3, 4, 6, 7, 8, 10, 12, 14, 16, 21, 24, 28, 32].into_iter().filter(|slices| *slices <= most && whole(slices)) {
        for in_flight in [1, 2, 3] {
            let units = caps.compute_units.unwrap_or(16);
            for groups in [strips, units * 4, units * 8, units * 16] {
                let plan = Plan { threads: slices * SLICE, in_flight, groups: groups.min(strips), ..best };
                if !list.contains(&plan) {
                    list.push(plan);
                }
            }
        }
    }
    list
}

/// The candidates that are timed when a model is first loaded, most promising first: the plan itself, then those nearest to it.
pub fn short_list(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    /// Each costs a pipeline to compile and some milliseconds to time.
    const MOST: usize = 12;
    let mut list = candidates(caps, shape);
    let best = list[0];
    let times = |a: u32, b: u32| (f64::from(a) / f64::from(b)).log2().abs();
    // Another number of slices tells more than a grid that leaves fewer groups to be started; odd numbers of slices leave
    // halves of a subgroup idle on some devices.
    let far = |plan: &Plan| {
        let odd = if SLICES.contains(&(plan.threads / SLICE)) { 0.0 } else { 2.0 };
        odd + times(plan.threads, best.threads) + times(plan.in_flight, best.in_flight) + times(plan.groups, best.groups) / 2.0
    };
    list[1..].sort_by(|a, b| far(a).total_cmp(&far(b)));
    list.truncate(MOST);
    list
}

/// Rows and K of matrices of the Gemma 3 family, largest model first, and whether they join gate and up: together they
/// meet every number of slices.
const MODEL_SHAPES: [(usize, usize, bool); 13] = [
    (43008, 5376, true),
    (8192, 5376, false),
    (5376, 4096, false),
    (5376, 21504, false),
    (262_144, 5376, false),
    (30720, 3840, true),
    (2560, 2048, false),
    (13824, 1152, true),
    (1152, 6912, false),
    (4096, 640, true),
    (1536, 640, false),
    (640, 1024, false),
    (640, 2048, false),
];

/// Columns of the programs that models record; the kernel takes those between them too.
const BUCKETS: [usize; 4] = [1, 2, 4, MAX_COLUMNS];

/// The pipelines that models ask for on such a device: every scheme, activation, bucket and epilogue of every shape at the
/// tier that the policy chooses, and the first shape at the tiers below.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let best = caps.tier().unwrap_or(Tier::T0).min(Tier::T1);
    let lower = [Tier::T0].into_iter().filter(|tier| *tier < best).map(|tier| (tier, &MODEL_SHAPES[..1]));
    let all = Activations::ALL.into_iter();
    let products: Vec<_> = all.flat_map(|kind| schemes(kind).iter().map(move |scheme| (*scheme, kind))).collect();
    let mut list: Vec<Variant> = Vec::new();
    for (tier, shapes) in lower.chain([(best, &MODEL_SHAPES[..])]) {
        for (scheme, activations) in products.iter().copied() {
            for columns in BUCKETS {
                for (rows, k, gated) in shapes.iter().copied() {
                    for (epilogue, output) in outputs(activations, gated) {
                        let weights = Layout { scheme, rows, k };
                        let shape = Shape { weights, columns, activations, epilogue, output };
                        let new = variant(&shape, at_tier(caps, &shape, tier));
                        if !list.iter().any(|known| (known.tier, &known.constants) == (new.tier, &new.constants)) {
                            list.push(new);
                        }
                    }
                }
            }
        }
    }
    list
}

/// What models do with a product of such activations. Where the input of a product is int16, that of the next may be.
fn outputs(activations: Activations, gated: bool) -> Vec<(Epilogue, Activations)> {
    let epilogues = if gated { &Epilogue::ALL[..] } else { &Epilogue::ALL[..1] };
    let f32 = epilogues.iter().map(|epilogue| (*epilogue, Activations::F32));
    let int16 = epilogues.iter().map(|epilogue| (*epilogue, Activations::Int16));
    f32.chain(int16.filter(|(epilogue, output)| *output == activations && *epilogue != Epilogue::None)).collect()
}

/// As many slices as a workgroup can have: threads, and shared memory for the sums to be joined.
fn most_slices(caps: &Caps, shape: &Shape, tier: Tier) -> u32 {
    let words_per_thread = if tier >= Tier::T1 { 0.5 } else { 1.0 };
    let bytes_per_slice = (SLICE * 4 * shape.columns as u32) as f64 * words_per_thread;
    let by_memory = (f64::from(caps.max_shared_bytes) / bytes_per_slice) as u32;
    by_memory.min(caps.max_threads / SLICE).max(1)
}

/// Slices that each compute unit wants to have under way: measured on an H200, where 8192 × 5376 is best with 12 slices a
/// strip, 5376 × 4096 with 16 and larger matrices with about 6.
const SLICES_PER_UNIT: u32 = 48;
/// More slices than this spend their time joining.
const MOST_SLICES: u32 = 16;

/// Numbers of slices that a plan may have: few, so that few pipelines serve all shapes, and even, so that they are whole
/// subgroups of 64 too.
const SLICES: [u32; 6] = [2, 4, 6, 8, 12, MOST_SLICES];

/// As many slices as fill the device, and at least 6 or 8, whichever the quads divide among better.
fn slices(caps: &Caps, shape: &Shape, most: u32) -> u32 {
    let quads = shape.weights.quads() as u32;
    let strips = shape.weights.strips() as u32;
    let fill = (caps.compute_units.unwrap_or(16) * SLICES_PER_UNIT / strips).min(MOST_SLICES);
    let idle = |slices: u32| quads.next_multiple_of(slices) - quads;
    let even = if idle(6) < idle(8) { 6 } else { 8 };
    let wanted = fill.max(even).min(most).min(quads);
    // A slice without a quad of its own does no harm: the smallest number serves the smallest K.
    SLICES.into_iter().rev().find(|slices| *slices <= wanted).unwrap_or(SLICES[0]).min(most)
}

/// Halves of a row are joined within a subgroup, whatever its size; 32 where it can be had, because a slice has 32.
fn subgroup(caps: &Caps, tier: Tier) -> Subgroup {
    if tier >= Tier::T1 && caps.allows_subgroup_size(SLICE) { Subgroup::Exactly(SLICE) } else { Subgroup::Any }
}
