//! Which variant multiplies a matrix with many columns on matrix units: pure, tested without a GPU.

use gpu::{Caps, Element, MatrixShape, Subgroup, Tier};

use super::{COUNTER_BYTES, variant};
use crate::{Activations, Epilogue, Layout, Scheme, variant::Variant};

/// What is to be multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The weights.
    pub weights: Layout,
    /// Columns of x.
    pub columns: usize,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
    /// How y is stored: f32, or f16 activations.
    pub output: Activations,
    /// What becomes of the sums of the parts of K.
    pub split_k: SplitK,
}

/// What becomes of the sums of the parts of K, where it is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SplitK {
    /// The last workgroup of a tile adds them up.
    Reduced,
    /// They stay apart: a column of y, of f32, has them one after the other, and who reads it adds them up, which is faster than one
    /// workgroup.
    Partial,
}

/// What a workgroup makes at once, and a subgroup of it: multiples of 16 rows, and of 16 columns, or of 8 in tiles of one subgroup's
/// width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of a workgroup.
    pub rows: u32,
    /// Columns of a workgroup.
    pub columns: u32,
    /// Rows of a subgroup.
    pub own_rows: u32,
    /// Columns of a subgroup.
    pub own_columns: u32,
    /// Threads of a subgroup.
    pub lanes: u32,
}

impl Tile {
    const fn new(rows: u32, columns: u32, own_rows: u32, own_columns: u32) -> Self {
        Self { rows, columns, own_rows, own_columns, lanes: SUBGROUP }
    }

    /// Threads of a workgroup.
    pub fn threads(&self) -> u32 {
        self.rows / self.own_rows * (self.columns / self.own_columns) * self.lanes
    }

    /// Workgroups that a compute unit works on at the same time: of the largest tiles registers allow one or two.
    fn resident(&self) -> u32 {
        (256 / self.threads()).clamp(1, 2)
    }

    /// Tiles of so many rows and columns.
    pub fn of(&self, rows: usize, columns: usize) -> u32 {
        (rows as u32).div_ceil(self.rows) * (columns as u32).div_ceil(self.columns)
    }

    /// Columns that matrix units take at once.
    pub fn side_columns(&self) -> u32 {
        if self.own_columns.is_multiple_of(16) { 16 } else { 8 }
    }
}

/// A row of a step in shared memory: 32 f16, and 16 bytes against meeting the same banks.
const ROW_BYTES: u32 = 80;
/// Columns up to which activations are staged four steps at a time where weights go straight into operands, and not two: as
/// coopmat_direct.comp has it.
const MOST_OF_LONG_STAGES: u32 = 72;
/// Threads of a subgroup.
pub(super) const SUBGROUP: u32 = 32;

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What a workgroup makes.
    pub tile: Tile,
    /// T2; T1 does without matrix units, for tests.
    pub tier: Tier,
    /// Weights go straight into the operands of matrix units, or through shared memory.
    pub direct: bool,
    /// Steps whose loads are under way: 1, 2 or 4.
    pub ahead: u32,
    /// SplitK that K is split into, so that more of the device is busy.
    pub splits: u32,
    /// Tiles, from the first on, whose K is not split all the same.
    pub unsplit: u32,
}

impl Plan {
    /// The subgroup size it wants.
    pub fn subgroup(&self) -> Subgroup {
        if self.tier >= Tier::T2 { Subgroup::Exactly(self.tile.lanes) } else { Subgroup::Any }
    }

    /// Shared memory of the shader.
    pub fn shared_bytes(&self) -> u32 {
        let Tile { rows, columns, .. } = self.tile;
        let stages = match self.direct {
            true => 2 * columns * (if columns <= MOST_OF_LONG_STAGES { 4 } else { 2 } * 64 + 16),
            false => 2 * (rows + columns) * ROW_BYTES,
        };
        let squares = self.tile.threads() / self.tile.lanes * 2 * 16 * ROW_BYTES;
        stages.max(squares) + 16
    }

    /// Bytes of scratch memory of a shape.
    pub fn scratch_bytes(&self, shape: &Shape) -> u64 {
        if self.splits == 1 || shape.split_k == SplitK::Partial {
            return 0;
        }
        // Of a matrix in several parts each has as many whole tiles first, so none has more that are split.
        let tiles = self.tile.of(shape.weights.rows, shape.columns) - self.unsplit;
        let area = self.tile.rows * self.tile.columns;
        COUNTER_BYTES + u64::from(tiles) * u64::from(self.splits) * u64::from(area) * 4
    }
}

/// What becomes of the parts of K where who reads y can add them up: of many columns that takes longer than to join them.
pub fn split_k_for_consumer(columns: usize) -> SplitK {
    if columns <= 128 { SplitK::Partial } else { SplitK::Reduced }
}

/// Tiles whose K may be split: more of them need no splitting, but where sums must not depend on the columns.
pub const MAX_SPLIT_TILES: u32 = 1 << 16;

/// Which elements of a 16 × 16 operand A a thread of a subgroup of 32 holds: the driver's business, and found out by asking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// Thread 4 g + t has of the row g the columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, then the same of the row g + 8: NVIDIA's.
    FourToARow,
    /// Anything else.
    Other,
}

impl Fragments {
    /// From the places, row · 16 + column, of 16 elements of each thread, of which a thread may have fewer.
    pub(super) fn of(places: &[u32]) -> Self {
        let as_expected = places.chunks(16).enumerate().all(|(thread, places)| {
            let (row, column) = (thread as u32 / 4, thread as u32 % 4 * 2);
            let pairs = [(row, column), (row, column + 8), (row + 8, column), (row + 8, column + 8)];
            let expected =
                pairs.into_iter().flat_map(|(row, column)| [row * 16 + column, row * 16 + column + 1]);
            places.len() == 16 && places.iter().copied().take(8).eq(expected)
        });
        if as_expected && places.len() == 16 * SUBGROUP as usize {
            Fragments::FourToARow
        } else {
            Fragments::Other
        }
    }
}

/// What a device's operands may be like: drivers that hold them in fours to a row have subgroups of one size.
pub(super) fn likely_fragments(caps: &Caps) -> Vec<Fragments> {
    let one_size = caps.min_subgroup_size == caps.max_subgroup_size;
    if one_size { vec![Fragments::Other, Fragments::FourToARow] } else { vec![Fragments::Other] }
}

/// The product that the shaders are made of.
const PRODUCT: MatrixShape =
    MatrixShape { m: 16, n: 16, k: 16, a: Element::F16, b: Element::F16, c: Element::F32 };

/// Whether the shaders multiply such a matrix: they write rows in fours.
pub fn supports(weights: &Layout) -> bool {
    weights.rows.is_multiple_of(4)
}

/// Whether a device has the matrix units that the shader is written for.
pub fn is_supported(caps: &Caps) -> bool {
    caps.tier() >= Some(Tier::T2) && caps.allows_subgroup_size(SUBGROUP) && caps.has_matrix(PRODUCT)
}

/// The plan for a shape; none where the device has no matrix units for it, or its rows are not unsplit fours.
pub fn plan(caps: &Caps, fragments: Fragments, shape: &Shape) -> Option<Plan> {
    candidates(caps, fragments, shape).into_iter().next()
}

/// The plan whose sums do not depend on the number of columns: weights go the same way, and K is split in the same way, for all.
pub fn reproducible(caps: &Caps, fragments: Fragments, shape: &Shape) -> Option<Plan> {
    let few = plan(caps, fragments, &Shape { columns: 16, ..*shape })?;
    let own = plan(caps, fragments, shape)?;
    let tiles = own.tile.of(shape.weights.rows, shape.columns);
    // Which tiles are split would depend on how many there are.
    let splits = if few.unsplit == 0 { few.splits } else { 1 };
    (splits == 1 || shape.split_k == SplitK::Partial || tiles <= MAX_SPLIT_TILES).then_some(Plan {
        direct: few.direct,
        splits,
        unsplit: 0,
        ..own
    })
}

/// Whether a device can do without matrix units.
pub fn emulates(caps: &Caps) -> bool {
    let tile = emulated_tile(caps);
    let lanes = tile.lanes;
    caps.tier() >= Some(Tier::T1)
        && caps.min_subgroup_size == lanes
        && SUBGROUP.is_multiple_of(lanes)
        && tile.threads().is_multiple_of(32)
}

fn emulated_tile(caps: &Caps) -> Tile {
    // Its threads divide among the 32 half groups of a strip.
    Tile { lanes: caps.max_subgroup_size, ..Tile::new(64, 32, 32, 16) }
}

/// The plan without matrix units, on devices with T1 and subgroups of one size, up to 32: for tests.
pub fn emulated(caps: &Caps, shape: &Shape) -> Option<Plan> {
    // So that there is something to add up.
    let splits = if shape.split_k == SplitK::Partial { 2 } else { 1 };
    let plan =
        Plan { tier: Tier::T1, tile: emulated_tile(caps), direct: false, ahead: 2, splits, unsplit: 0 };
    (emulates(caps) && plan.shared_bytes() <= caps.max_shared_bytes).then_some(plan)
}

/// Tiles by the number of columns that they suit: the fastest of the 27B's products on an H200.
const TILES: [Tile; 4] = [
    Tile::new(128, 16, 32, 16),
    Tile::new(128, 32, 32, 32),
    Tile::new(128, 64, 32, 64),
    Tile::new(128, 128, 64, 64),
];

/// The last of them where weights go straight into operands: no row's become operands twice. In the second activations, whose way from
/// the cache is the narrowest, come for as many rows as there are registers for; where there are too few of it for every compute unit,
/// the first is faster, unless K is so long that what begins and ends a workgroup hardly counts.
const LARGE_DIRECT: Tile = Tile::new(128, 128, 32, 128);
const LARGEST_DIRECT: Tile = Tile::new(256, 128, 32, 128);

/// More of them there, for numbers of columns between powers of two: tokens per second would fall above 32 and 64 of them.
const BETWEEN_DIRECT: [Tile; 6] = [
    Tile::new(128, 40, 32, 40),
    Tile::new(128, 48, 32, 48),
    Tile::new(128, 72, 32, 72),
    Tile::new(128, 80, 32, 80),
    Tile::new(128, 96, 32, 96),
    Tile::new(128, 112, 32, 112),
];

/// The first of them there: more workgroups, whose loads are under way at the same time.
const SMALLEST_DIRECT: Tile = Tile::new(64, 16, 16, 16);

/// Those for at most eight columns, where matrix units take so few: half as much to load from shared memory. The second where a subgroup
/// must have two strips.
const EIGHT_DIRECT: [Tile; 2] = [Tile::new(64, 8, 16, 8), Tile::new(128, 8, 32, 8)];

/// Others that are worth timing.
const MORE_TILES: [Tile; 27] = [
    EIGHT_DIRECT[0],
    EIGHT_DIRECT[1],
    Tile::new(64, 8, 32, 8),
    Tile::new(128, 8, 64, 8),
    Tile::new(256, 8, 32, 8),
    BETWEEN_DIRECT[0],
    BETWEEN_DIRECT[1],
    BETWEEN_DIRECT[2],
    BETWEEN_DIRECT[3],
    BETWEEN_DIRECT[4],
    BETWEEN_DIRECT[5],
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

/// Most parts of K: adding up more takes longer than it saves.
const MAX_SPLIT_K: u32 = 8;

/// Every plan worth timing, the policy's own first; none where the device has no matrix units for the shape.
pub fn candidates(caps: &Caps, fragments: Fragments, shape: &Shape) -> Vec<Plan> {
    if !is_supported(caps) || !supports(&shape.weights) {
        return Vec::new();
    }
    // A strip of gate and its strip of up must be one subgroup's.
    let least = 16 * shape.epilogue.strips() as u32;
    let direct = fragments == Fragments::FourToARow && shape.weights.scheme != Scheme::F32;
    let fits = |tile: &&Tile| {
        let plan = Plan { tier: Tier::T2, tile: **tile, direct, ahead: 1, splits: 1, unsplit: 0 };
        tile.own_rows >= least
            && plan.shared_bytes() <= caps.max_shared_bytes
            && tile.threads() <= caps.max_threads
    };
    let columns = shape.columns as u32;
    let eights = direct && caps.has_matrix(MatrixShape { n: 8, ..PRODUCT });
    let sides = |tile: &&Tile| tile.side_columns() == 16 || eights;
    let between = BETWEEN_DIRECT.iter().filter(|_| direct).filter(sides);
    let wide = |tile: &&Tile| tile.columns >= columns.min(128);
    let suited = between.chain(&TILES).filter(fits).filter(wide).min_by_key(|tile| tile.columns);
    let Some(tile) = suited.or(TILES.iter().rfind(fits)) else { return Vec::new() };
    let tile = match tile.columns {
        128 if direct && fills(caps, shape, &LARGEST_DIRECT) => &LARGEST_DIRECT,
        128 if direct => &LARGE_DIRECT,
        16 if eights && columns <= 8 => &EIGHT_DIRECT[usize::from(least > 16)],
        16 if direct && least == 16 => &SMALLEST_DIRECT,
        _ => tile,
    };
    let ahead = ahead(shape.weights.scheme, tile, direct);
    let (splits, unsplit) = spread(caps, shape, tile);
    let mut list = vec![Plan { tier: Tier::T2, tile: *tile, direct, ahead, splits, unsplit }];
    let suited = |tile: &&Tile| match tile.columns {
        8 => columns <= 8,
        16.. if tile.columns.is_power_of_two() || direct => {
            tile.columns >= columns.min(128) && tile.columns < 2 * columns.max(16)
        }
        _ => false,
    };
    for tile in TILES.iter().chain(&MORE_TILES).filter(fits).filter(sides).filter(suited) {
        for (splits, unsplit) in spreads(caps, shape, tile) {
            for ahead in [1, 2, 4] {
                let plan = Plan { tier: Tier::T2, tile: *tile, direct, ahead, splits, unsplit };
                if !list.contains(&plan) && (direct == (ahead == 4) || ahead == 2) {
                    list.push(plan);
                }
            }
        }
    }
    list
}

/// Steps whose loads are under way.
fn ahead(scheme: Scheme, tile: &Tile, direct: bool) -> u32 {
    match (direct, tile.columns) {
        // A load of int4 brings two steps: with one load under way prompts gain three hundredths, and lose nothing elsewhere. Every other
        // scheme's prompts gain by more.
        (true, _) if *tile == LARGEST_DIRECT && scheme == Scheme::Int4 => 2,
        (true, _) => 4,
        // Through shared memory the largest tiles have no registers to spare on RDNA3, and gain one hundredth elsewhere.
        (false, 128..) => 1,
        (false, _) => 2,
    }
}

/// The parts that K may be split into, and the tiles that are not.
fn spreads(caps: &Caps, shape: &Shape, tile: &Tile) -> impl Iterator<Item = (u32, u32)> {
    let tiles = tile.of(shape.weights.rows, shape.columns);
    let joined = shape.split_k == SplitK::Reduced;
    // Splits of at least four quads.
    let most = (shape.weights.quads() as u32 / 4).clamp(1, MAX_SPLIT_K);
    // As many whole tiles as the compute units take at once, or a round less.
    let round = units(caps) * tile.resident();
    let unsplit = [0, (tiles / round).saturating_sub(1), tiles / round].map(|rounds| rounds * round);
    let allowed = move |(splits, unsplit): &(u32, u32)| match *splits {
        1 => *unsplit == 0,
        _ => !joined || tiles - unsplit <= MAX_SPLIT_TILES && *unsplit < tiles,
    };
    let with_unsplit = unsplit.into_iter().skip(1).filter(move |unsplit| joined && *unsplit > 0);
    let list = [0].into_iter().chain(with_unsplit);
    list.flat_map(move |unsplit| (1..=most).map(move |splits| (splits, unsplit))).filter(allowed)
}

/// The parts of K that take least: workgroups come out more even, and each compute unit has several to switch between, but every part
/// has to be written and added up. Counted in what a compute unit's workgroups take; the constants are fitted to sweeps on an H200.
fn spread(caps: &Caps, shape: &Shape, tile: &Tile) -> (u32, u32) {
    let tiles = f64::from(tile.of(shape.weights.rows, shape.columns));
    let joined = shape.split_k == SplitK::Reduced;
    let few = tile.columns <= 32;
    // Workgroups that are worked on at the same time, and what is lost while a compute unit has too few to switch between.
    let (round, idle) = match tile.columns {
        ..=64 => (f64::from(units(caps)), 1.0),
        _ => (f64::from(units(caps) * tile.resident()), 0.0),
    };
    // What it takes to write a round of parts and to add them up: the shorter K is, the more of the unsplit.
    let part = if joined { 0.2 } else { 0.08 } * 5376.0 / shape.weights.k as f64;
    let cost = |(splits, unsplit): &(u32, u32)| {
        let (splits, unsplit) = (f64::from(*splits), f64::from(*unsplit));
        if tile.columns == 8 && !joined {
            // Workgroups are small and all under way at once: it does not matter how they come out, and parts are short.
            return idle / splits + 0.032 * splits * tiles / round;
        }
        let split = (((tiles - unsplit) * splits / round).ceil() + idle) / splits;
        unsplit / round
            + match splits > 1.0 {
                false => split,
                // With few columns everyone waits for the memory, and writes parts to it.
                true if few && joined => split * (1.0 + 0.15 * splits),
                true => split + part * splits * (tiles - unsplit) / round,
            }
    };
    // Nor does an even end gain anything then.
    let allowed = |(_, unsplit): &(u32, u32)| *unsplit == 0 || !few;
    spreads(caps, shape, tile).filter(allowed).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or((1, 0))
}

/// Whether a tile keeps every compute unit busy: there are enough of it, or K is long and its parts are nearly enough.
fn fills(caps: &Caps, shape: &Shape, tile: &Tile) -> bool {
    let tiles = tile.of(shape.weights.rows, shape.columns);
    let splits = units(caps) / tiles.max(1);
    // On an H200 at 128 columns it gains a hundredth of a step with parts of 28 quads; it loses half of one with 11, and two with 6.
    let long = splits > 1 && splits <= MAX_SPLIT_K && shape.weights.quads() as u32 / splits >= 24;
    tiles >= units(caps)
        || long && splits * tiles * 16 >= units(caps) * 15 && shape.split_k == SplitK::Partial
}

fn units(caps: &Caps) -> u32 {
    caps.compute_units.unwrap_or(16)
}

/// Rows and K of matrices of models: gate and up joined, others that are read by who adds up their parts, and heads. Of the 27B, the 4B,
/// the 1B and the 270M of Gemma 3 and the 8B of Llama 3.
const GATED: [(usize, usize); 5] = [(43008, 5376), (20480, 2560), (13824, 1152), (4096, 640), (28672, 4096)];
const READ: [(usize, usize); 15] = [
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

/// Columns of the programs that models record.
const BUCKETS: [usize; 16] = [2, 4, 8, 16, 32, 40, 48, 64, 72, 80, 96, 112, 128, 256, 512, 2048];

/// Products of models; of floats those of many columns, for fewer have one tile whatever the scheme.
pub(super) fn of_models() -> Vec<Shape> {
    let mut list = Vec::new();
    let integers =
        [Scheme::Int8, Scheme::Int4].into_iter().flat_map(|scheme| BUCKETS.map(|columns| (scheme, columns)));
    let floats = BUCKETS.into_iter().filter(|columns| *columns >= 128).map(|columns| (Scheme::Bf16, columns));
    for (scheme, columns) in integers.chain(floats) {
        let sums = |split_k| {
            move |(rows, k): (usize, usize)| {
                let weights = Layout { scheme, rows, k };
                Shape { weights, columns, epilogue: Epilogue::None, output: Activations::F32, split_k }
            }
        };
        let gated = |shape| Shape { epilogue: Epilogue::Geglu, output: Activations::F16, ..shape };
        list.extend(GATED.map(sums(SplitK::Reduced)).map(gated));
        list.extend(READ.map(sums(split_k_for_consumer(columns))));
        list.extend(HEADS.map(sums(SplitK::Reduced)));
    }
    list
}

/// Of these the pipelines are listed, with whether they join gate and up: each takes long to compile.
const LISTED: [(usize, usize, bool); 3] = [(43008, 5376, true), (8192, 5376, false), (640, 2048, false)];

/// The pipelines that models ask for on such a device.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    if !is_supported(caps) {
        return Vec::new();
    }
    let mut list: Vec<Variant> = vec![super::fragments_variant()];
    for scheme in Scheme::ALL {
        for (rows, k, gated) in LISTED {
            // Two and four columns have what eight have, and 256 differ from 128 and 512 by the number of parts of K alone.
            for columns in BUCKETS.into_iter().filter(|columns| ![2, 4, 256].contains(columns)) {
                let (epilogue, output) = match gated {
                    true => (Epilogue::Geglu, Activations::F16),
                    false => (Epilogue::None, Activations::F32),
                };
                let split_k = if gated { SplitK::Reduced } else { SplitK::Partial };
                let shape = Shape { weights: Layout { scheme, rows, k }, columns, epilogue, output, split_k };
                // Of weights that go straight into operands the schemes that models have most: each takes long to compile.
                let most = matches!(scheme, Scheme::Int8 | Scheme::Int4);
                for fragments in likely_fragments(caps).into_iter().take(if most { 2 } else { 1 }) {
                    let Some(plan) = plan(caps, fragments, &shape) else { continue };
                    let new = variant(&shape, &plan);
                    if !list.iter().any(|known| known.shader.name == new.shader.name && known.same_code(&new))
                    {
                        list.push(new);
                    }
                }
            }
        }
    }
    list
}
