//! Selects the variant for a product with many columns on cooperative matrices. Pure; tested without a GPU.

use gpu::{Caps, Element, MatrixShape, Subgroup, Tier};
use tensor::{Layout, Scheme};

use super::{COUNTER_BYTES, variant};
use crate::{
    Activations, Epilogue,
    experts::{ExpertColumns, LISTED_EXPERTS},
    variant::Variant,
};

/// The product to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The weights.
    pub weights: Layout,
    /// Columns of x.
    pub columns: usize,
    /// The fused epilogue.
    pub epilogue: Epilogue,
    /// Storage format of y: f32, or f16 activations.
    pub output: Activations,
    /// What happens to the partial sums where K is split.
    pub split_k: SplitK,
    /// What is added to every column.
    pub bias: Bias,
}

/// What a product adds to every column, instead of an epilogue that combines rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bias {
    /// Nothing.
    #[default]
    None,
    /// One value per row of the matrix.
    Add,
    /// The same, then GELU by tanh.
    AddGelu,
}

/// What happens to the partial sums of a product whose K is split among workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SplitK {
    /// The last workgroup of a tile adds them up.
    Reduced,
    /// They are written to y as they are, f32, consecutively within a column. The consumer of y adds them up,
    /// which is faster than a reduction by one workgroup.
    Partial,
}

/// The tile of a workgroup, and of each subgroup: multiples of 16 rows, and of 16 columns, or of 8 in the direct
/// variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows per workgroup.
    pub rows: u32,
    /// Columns per workgroup.
    pub columns: u32,
    /// Rows per subgroup.
    pub subgroup_rows: u32,
    /// Columns per subgroup.
    pub subgroup_columns: u32,
    /// Threads per subgroup.
    pub lanes: u32,
}

impl Tile {
    const fn new(rows: u32, columns: u32, subgroup_rows: u32, subgroup_columns: u32) -> Self {
        Self { rows, columns, subgroup_rows, subgroup_columns, lanes: SUBGROUP }
    }

    /// Threads per workgroup.
    pub fn threads(&self) -> u32 {
        self.rows / self.subgroup_rows * (self.columns / self.subgroup_columns) * self.lanes
    }

    /// Resident workgroups per compute unit: registers allow one or two of the largest tiles.
    fn resident_workgroups(&self) -> u32 {
        (256 / self.threads()).clamp(1, 2)
    }

    /// Number of tiles for these rows and columns.
    pub fn count(&self, rows: usize, columns: usize) -> u32 {
        (rows as u32).div_ceil(self.rows) * (columns as u32).div_ceil(self.columns)
    }
}

/// A row of a K-step in shared memory in the staged variant: 32 f16, and 16 bytes of padding against bank conflicts.
const ROW_BYTES: u32 = 80;
/// A column of a K-step in shared memory in the direct variant.
const COLUMN_BYTES: u32 = 64;
/// Shared memory of the direct variant, at least; coopmat_direct.comp has the same constant.
const MIN_DIRECT_BYTES: u32 = 10 << 10;
/// Maximum columns for stages of four K-steps instead of two in the direct variant; coopmat_direct.comp
/// has the same constant.
const MAX_LONG_STAGE_COLUMNS: u32 = 72;
/// Threads per subgroup.
pub(super) const SUBGROUP: u32 = 32;

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The tile of a workgroup.
    pub tile: Tile,
    /// T2; T1 emulates cooperative matrices, for tests.
    pub tier: Tier,
    /// Weights go straight into matrix fragments instead of through shared memory.
    pub direct: bool,
    /// Prefetch depth in K-steps: 1, 2 or 4.
    pub prefetch_depth: u32,
    /// Split-K factor, so that more of the device is busy.
    pub splits: u32,
    /// Number of leading tiles whose K is not split.
    pub unsplit: u32,
}

impl Plan {
    /// The required subgroup size.
    pub fn subgroup(&self) -> Subgroup {
        if self.tier >= Tier::T2 { Subgroup::Exactly(self.tile.lanes) } else { Subgroup::Any }
    }

    /// Shared memory per workgroup, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        let Tile { rows, columns, .. } = self.tile;
        match self.direct {
            true => {
                let k_steps = if columns <= MAX_LONG_STAGE_COLUMNS { 4 } else { 2 };
                (2 * columns * k_steps * COLUMN_BYTES).max(MIN_DIRECT_BYTES) + 16
            }
            false => {
                let squares = self.tile.threads() / self.tile.lanes * 2 * 16 * ROW_BYTES;
                (2 * (rows + columns) * ROW_BYTES).max(squares) + 16
            }
        }
    }

    /// Scratch bytes for a shape.
    pub fn scratch_bytes(&self, shape: &Shape) -> u64 {
        if self.splits == 1 || shape.split_k == SplitK::Partial {
            return 0;
        }
        // Each block of a matrix starts with this many unsplit tiles, so none has more split ones.
        let tiles = self.tile.count(shape.weights.rows, shape.columns) - self.unsplit;
        let area = self.tile.rows * self.tile.columns;
        COUNTER_BYTES + u64::from(tiles) * u64::from(self.splits) * u64::from(area) * 4
    }
}

/// Whether to reduce where the consumer of y can add up partial sums: with many columns that takes longer
/// than a reduction here.
pub fn split_k_for_consumer(columns: usize) -> SplitK {
    if columns <= 128 { SplitK::Partial } else { SplitK::Reduced }
}

/// Maximum number of split tiles: larger products need no splitting, except where sums must not depend on the
/// number of columns.
pub const MAX_SPLIT_TILES: u32 = 1 << 16;

/// Which elements of 16 × 16 operands A and B, of an accumulator, and of a 16 × 8 operand B and accumulator each thread of a
/// subgroup of 32 holds. It depends on the driver, and is queried by a shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// Thread 4 g + t holds columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of row g, then the same columns of
    /// row g + 8; in operand B rows and columns are swapped. Of eight columns of a matrix it holds those elements:
    /// NVIDIA's layout.
    FourThreadsPerRow,
    /// Any other layout, or a device without 16 × 8 operands.
    Other,
}

impl Fragments {
    /// From the index, row · 16 + column, of up to 16 elements per thread: those of operand A, those of operand B, column ·
    /// 16 + row, those of an accumulator, and those of a 16 × 8 operand B and accumulator. `u32::MAX` where a thread has
    /// fewer.
    pub(super) fn from_indices(indices: &[u32]) -> Self {
        let as_expected = indices.chunks(16).enumerate().all(|(thread, indices)| {
            let (matrix, thread) = (thread as u32 / SUBGROUP, thread as u32 % SUBGROUP);
            let (row, column) = (thread / 4, thread % 4 * 2);
            let all = [(row, column), (row, column + 8), (row + 8, column), (row + 8, column + 8)];
            let pairs = match matrix {
                ..3 => all.to_vec(),
                3 => vec![all[0], all[1]],
                _ => vec![all[0], all[2]],
            };
            let expected = pairs.iter().flat_map(|(row, column)| [row * 16 + column, row * 16 + column + 1]);
            let held = indices.iter().copied().take_while(|index| *index != u32::MAX);
            indices.len() == 16 && held.eq(expected)
        });
        if as_expected && indices.len() == 5 * 16 * SUBGROUP as usize {
            Fragments::FourThreadsPerRow
        } else {
            Fragments::Other
        }
    }
}

/// The layouts that a device may have: drivers with [`Fragments::FourThreadsPerRow`] have a fixed subgroup
/// size.
pub(crate) fn likely_fragments(caps: &Caps) -> Vec<Fragments> {
    let one_size = caps.min_subgroup_size == caps.max_subgroup_size;
    if one_size { vec![Fragments::Other, Fragments::FourThreadsPerRow] } else { vec![Fragments::Other] }
}

/// The matrix product of the staged variant.
const PRODUCT: MatrixShape =
    MatrixShape { m: 16, n: 16, k: 16, a: Element::F16, b: Element::F16, c: Element::F32 };
/// That of the direct variant.
const NARROW_PRODUCT: MatrixShape = MatrixShape { n: 8, ..PRODUCT };

/// Whether the shaders support a matrix: they write rows in fours.
pub fn supports(weights: &Layout) -> bool {
    weights.rows.is_multiple_of(4)
}

/// Whether a device has the matrix products that the shaders need.
pub fn is_supported(caps: &Caps) -> bool {
    caps.tier() >= Some(Tier::T2) && caps.allows_subgroup_size(SUBGROUP) && caps.has_matrix(PRODUCT)
}

/// Whether a device has the matrix products whose layout of fragments is of use.
pub(super) fn may_be_direct(caps: &Caps) -> bool {
    is_supported(caps) && caps.has_matrix(NARROW_PRODUCT)
}

/// The plan for a shape; none where the device lacks the matrix products, or the number of rows is not a
/// multiple of four.
pub fn plan(caps: &Caps, fragments: Fragments, shape: &Shape) -> Option<Plan> {
    if !is_supported(caps) || !supports(&shape.weights) {
        return None;
    }
    let direct = is_direct(fragments, shape);
    let columns = shape.columns as u32;
    let intermediate = INTERMEDIATE_DIRECT.iter().filter(|_| direct);
    // Up to 256 columns are two tiles of equal width.
    let width = if (129..256).contains(&columns) { columns.div_ceil(2) } else { columns.min(128) };
    let covers_columns = |tile: &&Tile| tile.columns >= width;
    let fits = |tile: &&Tile| fits_device(caps, shape, tile, direct);
    let suited =
        intermediate.chain(&TILES).filter(fits).filter(covers_columns).min_by_key(|tile| tile.columns);
    let tile = suited.or(TILES.iter().rfind(fits))?;
    let tile = match tile.columns {
        128 if direct && keeps_device_busy(caps, shape, &LARGEST_DIRECT) => &LARGEST_DIRECT,
        128 if direct => &LARGE_DIRECT,
        16 if direct && columns <= 8 => &EIGHT_COLUMN_DIRECT[usize::from(min_subgroup_rows(shape) > 16)],
        16 if direct && min_subgroup_rows(shape) == 16 => &SMALLEST_DIRECT,
        _ => tile,
    };
    let prefetch_depth = prefetch_depth(shape.weights.scheme, tile, direct);
    let (splits, unsplit) = best_split(caps, shape, tile);
    Some(Plan { tier: Tier::T2, tile: *tile, direct, prefetch_depth, splits, unsplit })
}

/// Whether weights go straight into fragments.
fn is_direct(fragments: Fragments, shape: &Shape) -> bool {
    fragments == Fragments::FourThreadsPerRow && shape.weights.scheme != Scheme::F32
}

/// A strip of gate and its strip of up must belong to the same subgroup.
fn min_subgroup_rows(shape: &Shape) -> u32 {
    16 * shape.epilogue.strips() as u32
}

/// Whether a device can run a tile.
fn fits_device(caps: &Caps, shape: &Shape, tile: &Tile, direct: bool) -> bool {
    let plan = Plan { tier: Tier::T2, tile: *tile, direct, prefetch_depth: 1, splits: 1, unsplit: 0 };
    tile.subgroup_rows >= min_subgroup_rows(shape)
        && plan.shared_bytes() <= caps.max_shared_bytes
        && tile.threads() <= caps.max_threads
}

/// The plan whose sums do not depend on the number of columns: one weight path and one split-K factor for
/// all.
pub fn reproducible(caps: &Caps, fragments: Fragments, shape: &Shape) -> Option<Plan> {
    let narrow = plan(caps, fragments, &Shape { columns: 16, ..*shape })?;
    let preferred = plan(caps, fragments, shape)?;
    let tiles = preferred.tile.count(shape.weights.rows, shape.columns);
    // Which tiles are split would depend on their number.
    let splits = if narrow.unsplit == 0 { narrow.splits } else { 1 };
    (splits == 1 || shape.split_k == SplitK::Partial || tiles <= MAX_SPLIT_TILES).then_some(Plan {
        direct: narrow.direct,
        splits,
        unsplit: 0,
        ..preferred
    })
}

/// The plan for a shape of which about the first `active` columns are active, or all: image encoders have buffers for several
/// images, and mostly encode one. Where K is short it is not split, so that an image's sums do not depend on how many there
/// are.
pub fn partly_active_plan(caps: &Caps, fragments: Fragments, shape: &Shape, active: usize) -> Option<Plan> {
    let plan = plan(caps, fragments, shape)?;
    let Layout { scheme, rows, k } = shape.weights;
    let halves = matches!(scheme, Scheme::F16 | Scheme::Bf16) && shape.epilogue == Epilogue::None;
    if !plan.direct || !halves {
        return Some(plan);
    }
    if active < 1024 {
        let whole = Plan { splits: 1, unsplit: 0, ..plan };
        return Some(if k < SHORT_K { whole } else { plan });
    }
    let round = |tile: &Tile| compute_units(caps) * tile.resident_workgroups();
    let fits = |tile: &Tile| tile.count(rows, active) <= round(tile);
    let tile = if fits(&WIDE_DIRECT) && !fits(&LARGE_DIRECT) {
        // One round of workgroups instead of two.
        WIDE_DIRECT
    } else if k < SHORT_K && rows > k || LARGEST_DIRECT.count(rows, active) >= 2 * round(&LARGEST_DIRECT) {
        // No workgroup adds up partial sums.
        LARGEST_DIRECT
    } else if k < SHORT_K {
        // One of two workgroups multiplies while the other writes.
        LARGE_DIRECT
    } else {
        return Some(plan);
    };
    let tuned = Plan { tile, prefetch_depth: 2, splits: 1, unsplit: 0, ..plan };
    Some(if tuned.shared_bytes() <= caps.max_shared_bytes { tuned } else { plan })
}

/// The plan for a product over experts, not split: `shape` is that of one expert, with about as many columns as an expert
/// has.
pub fn expert_plan(caps: &Caps, fragments: Fragments, shape: &Shape) -> Option<Plan> {
    let plan = plan(caps, fragments, &Shape { split_k: SplitK::Reduced, ..*shape })?;
    Some(Plan { splits: 1, unsplit: 0, ..plan })
}

/// Whether cooperative matrices can be emulated on a device.
pub fn can_emulate(caps: &Caps) -> bool {
    let tile = emulated_tile(caps);
    let lanes = tile.lanes;
    caps.tier() >= Some(Tier::T1)
        && caps.min_subgroup_size == lanes
        && SUBGROUP.is_multiple_of(lanes)
        && tile.threads().is_multiple_of(32)
}

fn emulated_tile(caps: &Caps) -> Tile {
    // The threads of a workgroup divide among the 32 half groups of a strip.
    Tile { lanes: caps.max_subgroup_size, ..Tile::new(64, 32, 32, 16) }
}

/// The plan with emulated cooperative matrices, on devices with T1 and a fixed subgroup size of up to 32: for
/// tests.
pub fn emulated(caps: &Caps, shape: &Shape) -> Option<Plan> {
    // Split where the consumer adds up partial sums, so that tests cover it.
    let splits = if shape.split_k == SplitK::Partial { 2 } else { 1 };
    let plan = Plan {
        tier: Tier::T1,
        tile: emulated_tile(caps),
        direct: false,
        prefetch_depth: 2,
        splits,
        unsplit: 0,
    };
    (can_emulate(caps) && plan.shared_bytes() <= caps.max_shared_bytes).then_some(plan)
}

/// Tiles by number of columns: the fastest for the 27B's products on an H200.
const TILES: [Tile; 4] = [
    Tile::new(128, 16, 32, 16),
    Tile::new(128, 32, 32, 32),
    Tile::new(128, 64, 32, 64),
    Tile::new(128, 128, 64, 64),
];

/// The largest tiles of the direct variant: no row is converted twice. The second loads activations, whose
/// path from the cache is the bottleneck, for as many rows as registers allow; where there are too few tiles
/// of it for every compute unit, the first is faster, unless K is so long that the start and end of a
/// workgroup hardly matter.
const LARGE_DIRECT: Tile = Tile::new(128, 128, 32, 128);
const LARGEST_DIRECT: Tile = Tile::new(256, 128, 32, 128);

/// As wide as registers allow: an image encoder's products with few rows.
const WIDE_DIRECT: Tile = Tile::new(128, 144, 32, 144);

/// K of products whose workgroups take nearly as long to start and to write as to multiply.
const SHORT_K: usize = 2048;

/// More tiles of the direct variant, for column counts between powers of two: throughput would drop above 32
/// and 64 columns otherwise.
const INTERMEDIATE_DIRECT: [Tile; 6] = [
    Tile::new(128, 40, 32, 40),
    Tile::new(128, 48, 32, 48),
    Tile::new(128, 72, 32, 72),
    Tile::new(128, 80, 32, 80),
    Tile::new(128, 96, 32, 96),
    Tile::new(128, 112, 32, 112),
];

/// The smallest tile of the direct variant: more workgroups, and more loads in flight.
const SMALLEST_DIRECT: Tile = Tile::new(64, 16, 16, 16);

/// Tiles for at most eight columns, for devices with 8-column matrices: half the loads from shared memory.
/// The second where a subgroup needs two strips.
const EIGHT_COLUMN_DIRECT: [Tile; 2] = [Tile::new(64, 8, 16, 8), Tile::new(128, 8, 32, 8)];

/// More tiles worth timing.
const MORE_TILES: [Tile; 27] = [
    EIGHT_COLUMN_DIRECT[0],
    EIGHT_COLUMN_DIRECT[1],
    Tile::new(64, 8, 32, 8),
    Tile::new(128, 8, 64, 8),
    Tile::new(256, 8, 32, 8),
    INTERMEDIATE_DIRECT[0],
    INTERMEDIATE_DIRECT[1],
    INTERMEDIATE_DIRECT[2],
    INTERMEDIATE_DIRECT[3],
    INTERMEDIATE_DIRECT[4],
    INTERMEDIATE_DIRECT[5],
    Tile::new(64, 48, 16, 48),
    Tile::new(256, 48, 32, 48),
    Tile::new(256, 96, 32, 96),
    LARGEST_DIRECT,
    SMALLEST_DIRECT,
    Tile::new(256, 16, 32, 16),
    Tile::new(256, 16, 64, 16),
    Tile::new(64, 32, 32, 16),
    Tile::new(256, 32, 64, 32),
    Tile::new(64, 64, 32, 32),
    Tile::new(128, 64, 64, 32),
    Tile::new(64, 128, 32, 64),
    Tile::new(128, 128, 32, 64),
    Tile::new(256, 64, 64, 64),
    LARGE_DIRECT,
    Tile::new(256, 128, 64, 64),
];

/// Maximum split-K factor: adding up more takes longer than it saves.
const MAX_SPLIT_K: u32 = 8;

/// Every plan worth timing, the policy's own first; none where the device lacks the matrix products.
pub fn candidates(caps: &Caps, fragments: Fragments, shape: &Shape) -> Vec<Plan> {
    let Some(plan) = plan(caps, fragments, shape) else { return Vec::new() };
    let (direct, columns) = (plan.direct, shape.columns as u32);
    let mut list = vec![plan];
    let fits = |tile: &&Tile| fits_device(caps, shape, tile, direct);
    let supported_width = |tile: &&Tile| direct || tile.subgroup_columns.is_multiple_of(16);
    let suited = |tile: &&Tile| match tile.columns {
        8 => columns <= 8,
        16.. if tile.columns.is_power_of_two() || direct => {
            tile.columns >= columns.min(128) && tile.columns < 2 * columns.max(16)
        }
        _ => false,
    };
    for tile in TILES.iter().chain(&MORE_TILES).filter(fits).filter(supported_width).filter(suited) {
        for (splits, unsplit) in split_choices(caps, shape, tile) {
            for prefetch_depth in [1, 2, 4] {
                let plan = Plan { tier: Tier::T2, tile: *tile, direct, prefetch_depth, splits, unsplit };
                if !list.contains(&plan) && (direct == (prefetch_depth == 4) || prefetch_depth == 2) {
                    list.push(plan);
                }
            }
        }
    }
    list
}

/// Prefetch depth in K-steps.
fn prefetch_depth(scheme: Scheme, tile: &Tile, direct: bool) -> u32 {
    match (direct, tile.columns) {
        // An int4 load covers two K-steps: with one load in flight prefill gains 3%, and loses nothing
        // elsewhere. Prefill with every other scheme gains from a deeper prefetch.
        (true, _) if *tile == LARGEST_DIRECT && scheme == Scheme::Int4 => 2,
        (true, _) => 4,
        // In the staged variant the largest tiles have no registers to spare on RDNA3, and gain 1% elsewhere.
        (false, 128..) => 1,
        (false, _) => 2,
    }
}

/// The possible split-K factors, and numbers of unsplit tiles.
fn split_choices(caps: &Caps, shape: &Shape, tile: &Tile) -> impl Iterator<Item = (u32, u32)> {
    let tiles = tile.count(shape.weights.rows, shape.columns);
    let reduced = shape.split_k == SplitK::Reduced;
    // Splits of at least four quads.
    let max_splits = (shape.weights.quads() as u32 / 4).clamp(1, MAX_SPLIT_K);
    // As many unsplit tiles as the compute units process at once, or one round less.
    let round = compute_units(caps) * tile.resident_workgroups();
    let unsplit = [0, (tiles / round).saturating_sub(1), tiles / round].map(|rounds| rounds * round);
    let allowed = move |(splits, unsplit): &(u32, u32)| match *splits {
        1 => *unsplit == 0,
        _ => !reduced || tiles - unsplit <= MAX_SPLIT_TILES && *unsplit < tiles,
    };
    let with_unsplit = unsplit.into_iter().skip(1).filter(move |unsplit| reduced && *unsplit > 0);
    let list = [0].into_iter().chain(with_unsplit);
    list.flat_map(move |unsplit| (1..=max_splits).map(move |splits| (splits, unsplit))).filter(allowed)
}

/// The split-K factor and number of unsplit tiles with the lowest cost. Splitting balances the work and
/// gives each compute unit several workgroups to switch between, but partial sums have to be written and
/// added up. The unit of cost is one round of workgroups; the constants are fitted to sweeps on an H200.
fn best_split(caps: &Caps, shape: &Shape, tile: &Tile) -> (u32, u32) {
    let tiles = f64::from(tile.count(shape.weights.rows, shape.columns));
    let reduced = shape.split_k == SplitK::Reduced;
    let narrow = tile.columns <= 32;
    // Concurrent workgroups, and the loss while a compute unit has too few to switch between.
    let (round, latency_loss) = match tile.columns {
        ..=64 => (f64::from(compute_units(caps)), 1.0),
        _ => (f64::from(compute_units(caps) * tile.resident_workgroups()), 0.0),
    };
    // The cost of writing a round of partial sums and adding them up: the shorter K is, the larger its share.
    let write_cost = if reduced { 0.2 } else { 0.08 } * 5376.0 / shape.weights.k as f64;
    let cost = |(splits, unsplit): &(u32, u32)| {
        let (splits, unsplit) = (f64::from(*splits), f64::from(*unsplit));
        if tile.columns == 8 && !reduced {
            // Workgroups are small and all resident at once: evenness does not matter, and splits are short.
            return latency_loss / splits + 0.032 * splits * tiles / round;
        }
        let split = (((tiles - unsplit) * splits / round).ceil() + latency_loss) / splits;
        unsplit / round
            + match splits > 1.0 {
                false => split,
                // With few columns everything is bound by memory, to which the partial sums are written.
                true if narrow && reduced => split * (1.0 + 0.15 * splits),
                true => split + write_cost * splits * (tiles - unsplit) / round,
            }
    };
    // With few columns unsplit tiles gain nothing either.
    let allowed = |(_, unsplit): &(u32, u32)| *unsplit == 0 || !narrow;
    split_choices(caps, shape, tile)
        .filter(allowed)
        .min_by(|a, b| cost(a).total_cmp(&cost(b)))
        .unwrap_or((1, 0))
}

/// Whether a tile keeps every compute unit busy: there are enough tiles, or K is long and its splits are
/// nearly enough.
fn keeps_device_busy(caps: &Caps, shape: &Shape, tile: &Tile) -> bool {
    let tiles = tile.count(shape.weights.rows, shape.columns);
    let splits = compute_units(caps) / tiles.max(1);
    // On an H200 at 128 columns it gains 1% of a step with splits of 28 quads; it loses 0.5% with 11, and 2%
    // with 6.
    let long = splits > 1 && splits <= MAX_SPLIT_K && shape.weights.quads() as u32 / splits >= 24;
    tiles >= compute_units(caps)
        || long && splits * tiles * 16 >= compute_units(caps) * 15 && shape.split_k == SplitK::Partial
}

fn compute_units(caps: &Caps) -> u32 {
    caps.compute_units.unwrap_or(16)
}

/// Rows and K of model matrices: gate and up combined, projections whose consumer adds up partial sums,
/// and heads. From the 27B, 4B, 1B and 270M of Gemma 3 and the 8B of Llama 3.
const GATED: [(usize, usize); 5] = [(43008, 5376), (20480, 2560), (13824, 1152), (4096, 640), (28672, 4096)];
const PROJECTIONS: [(usize, usize); 15] = [
    (8192, 5376),
    (5376, 4096),
    (5376, 21504),
    (4096, 2560),
    (2560, 2048),
    (2560, 10240),
    (1536, 1152),
    (1152, 1024),
    (1152, 6912),
    (1536, 640),
    (640, 1024),
    (640, 2048),
    (6144, 4096),
    (4096, 4096),
    (4096, 14336),
];
const HEADS: [(usize, usize); 3] = [(262_144, 5376), (262_144, 640), (128_256, 4096)];

/// Column counts of the programs that models record.
const BUCKETS: [usize; 16] = [2, 4, 8, 16, 32, 40, 48, 64, 72, 80, 96, 112, 128, 256, 512, 2048];

/// Products of models; float weights only with many columns, since for fewer there is one tile for all
/// schemes.
pub(super) fn model_shapes() -> Vec<Shape> {
    let mut list = Vec::new();
    let integers =
        [Scheme::Int8, Scheme::Int4].into_iter().flat_map(|scheme| BUCKETS.map(|columns| (scheme, columns)));
    let floats = BUCKETS.into_iter().filter(|columns| *columns >= 128).map(|columns| (Scheme::Bf16, columns));
    for (scheme, columns) in integers.chain(floats) {
        let sums = |split_k| {
            move |(rows, k): (usize, usize)| {
                let weights = Layout { scheme, rows, k };
                Shape {
                    weights,
                    columns,
                    epilogue: Epilogue::None,
                    output: Activations::F32,
                    split_k,
                    bias: Bias::None,
                }
            }
        };
        let gated = |shape| Shape { epilogue: Epilogue::Geglu, output: Activations::F16, ..shape };
        list.extend(GATED.map(sums(SplitK::Reduced)).map(gated));
        list.extend(PROJECTIONS.map(sums(split_k_for_consumer(columns))));
        list.extend(HEADS.map(sums(SplitK::Reduced)));
    }
    list
}

/// Shapes whose pipelines are listed, with whether they combine gate and up: few, since each takes long to
/// compile.
const LISTED_SHAPES: [(usize, usize, bool); 3] =
    [(43008, 5376, true), (8192, 5376, false), (640, 2048, false)];

/// The pipelines that models request on a device.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    if !is_supported(caps) {
        return Vec::new();
    }
    let mut list: Vec<Variant> = may_be_direct(caps).then(super::fragments_variant).into_iter().collect();
    for scheme in Scheme::ALL {
        for (rows, k, gated) in LISTED_SHAPES {
            // Two and four columns use the pipelines of eight, and 256 differ from 128 and 512 only in the
            // split-K factor.
            for columns in BUCKETS.into_iter().filter(|columns| ![2, 4, 256].contains(columns)) {
                let (epilogue, output) = match gated {
                    true => (Epilogue::Geglu, Activations::F16),
                    false => (Epilogue::None, Activations::F32),
                };
                let split_k = if gated { SplitK::Reduced } else { SplitK::Partial };
                let weights = Layout { scheme, rows, k };
                let shape = Shape { weights, columns, epilogue, output, split_k, bias: Bias::None };
                // In the direct variant only the most common schemes: each takes long to compile.
                let common = matches!(scheme, Scheme::Int8 | Scheme::Int4);
                for fragments in likely_fragments(caps).into_iter().take(if common { 2 } else { 1 }) {
                    let Some(plan) = plan(caps, fragments, &shape) else { continue };
                    let new = variant(&shape, &plan, None);
                    if !list.iter().any(|known| known.shader.name == new.shader.name && known.same_code(&new))
                    {
                        list.push(new);
                    }
                }
            }
        }
    }
    list.extend(expert_variants(caps));
    list
}

/// The same for products over experts.
fn expert_variants(caps: &Caps) -> Vec<Variant> {
    let mut list: Vec<Variant> = Vec::new();
    for (rows, k, per_x, gated) in LISTED_EXPERTS {
        for (scheme, columns) in [Scheme::Int8, Scheme::Int4]
            .into_iter()
            .flat_map(|scheme| [2, 16, 32, 128].map(|columns| (scheme, columns)))
        {
            let (epilogue, output) =
                if gated { (Epilogue::Swiglu, Activations::F16) } else { (Epilogue::None, Activations::F32) };
            let weights = Layout { scheme, rows, k };
            let shape =
                Shape { weights, columns, epilogue, output, split_k: SplitK::Reduced, bias: Bias::None };
            for fragments in likely_fragments(caps) {
                let Some(plan) = expert_plan(caps, fragments, &shape) else { continue };
                let new = variant(&shape, &plan, Some(ExpertColumns { count: 128, per_x }));
                if !list.iter().any(|known| known.shader.name == new.shader.name && known.same_code(&new)) {
                    list.push(new);
                }
            }
        }
    }
    list
}
