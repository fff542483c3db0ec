//! Selects the variant for a product with many columns on a device without cooperative matrices. Pure; tested
//! without a GPU.

use gpu::{Caps, Tier};
use tensor::{Layout, Scheme};

pub use super::shape::Shape;
use super::{lanes, packed, variant};
use crate::{
    Activations, Epilogue,
    experts::{ExpertColumns, LISTED_EXPERTS},
    variant::Variant,
};

/// Whether there is a shader for a shape.
pub fn supports(shape: &Shape) -> bool {
    match (shape.activations, shape.output) {
        (Activations::F32, Activations::F32) => true,
        (Activations::Int16, Activations::F32) => packed::supports(shape.weights.scheme),
        (Activations::Int16, Activations::Int16) => {
            packed::supports(shape.weights.scheme) && shape.epilogue != Epilogue::None
        }
        _ => false,
    }
}

/// The shader, with its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// 64 × 32 outputs through shared memory.
    Tiles,
    /// One row per lane, for CPU drivers.
    Lanes(lanes::Tile),
    /// Packed dot products of int16 activations.
    Packed(packed::Tile),
}

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// The shader.
    pub method: Method,
    /// Maximum workgroups along the rows; each processes tiles in turn.
    pub groups: u32,
}

impl Plan {
    /// Columns per workgroup.
    pub fn columns(&self) -> usize {
        match self.method {
            Method::Tiles => super::TILE_COLUMNS,
            Method::Lanes(tile) => tile.columns as usize,
            Method::Packed(tile) => tile.columns() as usize,
        }
    }
}

/// The plan for a product over experts: `shape` is that of one expert, with about as many columns as an expert has.
pub fn expert_plan(caps: &Caps, shape: &Shape) -> Plan {
    let plan = plan(caps, shape);
    match plan.method {
        // Columns that are not used cost as much as others.
        Method::Lanes(tile) if shape.columns <= 2 => {
            Plan { method: Method::Lanes(lanes::Tile { columns: 1, ..tile }), ..plan }
        }
        _ => plan,
    }
}

/// The plan for a shape.
pub fn plan(caps: &Caps, shape: &Shape) -> Plan {
    at_tier(caps, shape, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, shape: &Shape, tier: Tier) -> Plan {
    let method = match shape.activations {
        Activations::Int16 => Method::Packed(packed_tiles(caps, shape)[0]),
        _ => match lanes::lanes(caps, tier) {
            Some(lanes) => Method::Lanes(tile(shape, lanes)),
            None => Method::Tiles,
        },
    };
    Plan { tier, method, groups: caps.max_groups }
}

/// Every plan worth timing for a shape, the policy's own first. All of them give the same bits.
pub fn candidates(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    let best = plan(caps, shape);
    match best.method {
        Method::Packed(_) => {
            let tiles = packed_tiles(caps, shape).into_iter();
            tiles.map(|tile| Plan { method: Method::Packed(tile), ..best }).collect()
        }
        Method::Tiles | Method::Lanes(_) => vec![best],
    }
}

/// Tiles of the packed shader, and the cost of one product of a thread: instructions in the loop over K,
/// as RADV counts them for RDNA2.
const PACKED_TILES: [(packed::Tile, f64); 6] = [
    (packed::Tile::new(128, 8, 4), 0.92),
    (packed::Tile::new(128, 8, 2), 1.02),
    (packed::Tile::new(128, 4, 4), 1.03),
    (packed::Tile::new(128, 4, 2), 1.21),
    (packed::Tile::new(64, 8, 2), 1.06),
    (packed::Tile::new(64, 4, 2), 1.21),
];

/// Target threads per compute unit: eight subgroups of 32, two per vector unit of RDNA.
const THREADS_PER_COMPUTE_UNIT: u32 = 256;

/// The tiles that a device supports, best first.
fn packed_tiles(caps: &Caps, shape: &Shape) -> Vec<packed::Tile> {
    let (rows, columns) = (shape.weights.rows as u32, shape.columns as u32);
    let target = f64::from(caps.compute_units.unwrap_or(16) * THREADS_PER_COMPUTE_UNIT);
    // The work, including rows and columns past the end; scaled up where there are too few threads to fill
    // the device. Ties go to fewer threads.
    let cost = |(tile, cost_per_product): &(packed::Tile, f64)| {
        let workgroups = f64::from(rows.div_ceil(tile.rows())) * f64::from(columns.div_ceil(tile.columns()));
        let threads = workgroups * f64::from(tile.threads);
        let outputs_per_thread = f64::from(tile.thread_rows * tile.thread_columns);
        (threads.max(target) * outputs_per_thread * cost_per_product, threads)
    };
    let fits = |(tile, _): &&(packed::Tile, f64)| packed::fits(caps, tile, shape.weights.scheme);
    let mut list: Vec<_> = PACKED_TILES.iter().filter(fits).copied().collect();
    list.sort_by(|a, b| {
        let ((a, a_threads), (b, b_threads)) = (cost(a), cost(b));
        a.total_cmp(&b).then(a_threads.total_cmp(&b_threads))
    });
    if list.is_empty() {
        list.push(PACKED_TILES[PACKED_TILES.len() - 1]);
    }
    list.into_iter().map(|(tile, _)| tile).collect()
}

/// On Mesa's CPU driver 16 columns are fastest; 8 columns take 1.15 times as long per column, but columns past the last
/// are wasted work. With vectors of 8 threads and two strips there are registers for 8.
fn tile(shape: &Shape, lanes: u32) -> lanes::Tile {
    let strips = lanes::strips(lanes, shape.weights.rows, shape.epilogue);
    let columns = shape.columns as u32;
    let sixteen =
        (lanes == 16 || strips == 1) && columns.next_multiple_of(16) * 20 < columns.next_multiple_of(8) * 23;
    lanes::Tile { lanes, strips, columns: if sixteen { 16 } else { 8 } }
}

/// All pipelines that the policy may request on a device: every scheme and epilogue, at each tier.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let mut list: Vec<Variant> = Vec::new();
    let mut add = |shape: &Shape, plan: &Plan| {
        let new = variant(caps, shape, plan, None);
        if !list.iter().any(|known: &Variant| (known.tier, &known.label) == (new.tier, &new.label)) {
            list.push(new);
        }
    };
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (scheme, epilogue) in
            Scheme::ALL.into_iter().flat_map(|scheme| Epilogue::ALL.map(|epilogue| (scheme, epilogue)))
        {
            // Tiles that are more or less full: what the policy distinguishes.
            for (rows, columns) in [(640, 16), (640, 24), (4096, 16), (4096, 24)] {
                let plain = Shape::plain(Layout { scheme, rows, k: 640 }, columns, Activations::F32);
                let shape = Shape { epilogue, ..plain };
                add(&shape, &at_tier(caps, &shape, tier));
            }
        }
    }
    if packed::is_supported(caps) {
        let shape = |scheme, columns, epilogue: Epilogue| {
            let output = if epilogue == Epilogue::None { Activations::F32 } else { Activations::Int16 };
            let plain = Shape::plain(Layout { scheme, rows: 4096, k: 640 }, columns, Activations::Int16);
            Shape { epilogue, output, ..plain }
        };
        for scheme in Scheme::ALL.into_iter().filter(|scheme| packed::supports(*scheme)) {
            for (epilogue, columns) in Epilogue::ALL
                .into_iter()
                .flat_map(|epilogue| [16, 64, 512].map(|columns| (epilogue, columns)))
            {
                let shape = shape(scheme, columns, epilogue);
                add(&shape, &plan(caps, &shape));
            }
        }
        // Every tile once: those with the most and the fewest registers.
        for shape in [shape(Scheme::Int8, 64, Epilogue::None), shape(Scheme::Int4Min, 64, Epilogue::Geglu)] {
            candidates(caps, &shape).iter().for_each(|plan| add(&shape, plan));
        }
    }
    list.extend(expert_variants(caps));
    list
}

/// The same for products over experts.
fn expert_variants(caps: &Caps) -> Vec<Variant> {
    let activations = if packed::is_supported(caps) { Activations::Int16 } else { Activations::F32 };
    let mut list: Vec<Variant> = Vec::new();
    for (rows, k, per_x, gated) in LISTED_EXPERTS {
        for scheme in Scheme::ALL {
            for columns in [1, 16, 64] {
                let (epilogue, output) =
                    if gated { (Epilogue::Swiglu, activations) } else { (Epilogue::None, Activations::F32) };
                let shape =
                    Shape { weights: Layout { scheme, rows, k }, columns, activations, epilogue, output };
                if !supports(&shape) {
                    continue;
                }
                let plan = expert_plan(caps, &shape);
                let new = variant(caps, &shape, &plan, Some(ExpertColumns { count: 128, per_x }));
                if !list.iter().any(|known| (known.tier, &known.label) == (new.tier, &new.label)) {
                    list.push(new);
                }
            }
        }
    }
    list
}
