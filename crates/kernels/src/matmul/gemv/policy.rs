//! Selects the variant for a matrix shape on a device. Pure; tested without a GPU.

mod listed;

use gpu::{Caps, Subgroup, Tier};
use tensor::{Layout, Scheme};

pub use listed::variants;

use super::{MAX_COLUMNS, has_wide_subgroups};
use crate::{
    Activations, Epilogue,
    matmul::{coopmat::policy::Fragments, gemm::lanes},
};

/// The product to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// The weights.
    pub weights: Layout,
    /// Columns of x.
    pub columns: usize,
    /// Storage format of x; int16 with a prologue.
    pub activations: Activations,
    /// How x is obtained.
    pub prologue: Prologue,
    /// The fused epilogue.
    pub epilogue: Epilogue,
    /// Storage format of y: f32, or int16 where an epilogue produces activations.
    pub output: Activations,
    /// Split-K factor: each split writes its own partial sums to y, consecutively, and the consumer of y adds
    /// them up. More splits keep more of the device busy. 1 unless the consumer is a prologue; see
    /// [`splits`].
    pub splits: u32,
}

impl Shape {
    /// Without prologue and epilogue.
    pub fn plain(weights: Layout, columns: usize, activations: Activations) -> Self {
        let (prologue, epilogue) = (Prologue::None, Epilogue::None);
        Self { weights, columns, activations, prologue, epilogue, output: Activations::F32, splits: 1 }
    }

    /// Quads per split.
    pub(crate) fn quads_per_split(&self) -> u32 {
        (self.weights.quads() as u32).div_ceil(self.splits)
    }
}

/// Where x comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prologue {
    /// From memory.
    #[default]
    None,
    /// The norm of the residual stream.
    Norm,
    /// The norm of the residual stream after adding a sublayer's output to it.
    AddAndNorm {
        /// Split-K partial sums of the sublayer's output.
        partials: u32,
        /// The sublayer's output has its own norm (Gemma 3).
        post_norm: bool,
        /// The stream is multiplied by a factor after the addition (Gemma 4).
        #[serde(default)]
        scaled: bool,
    },
    /// From memory, with a factor per column that is applied to the sums: a norm that
    /// [`gemv_norm`](crate::matmul::gemv_norm) has computed.
    Factors,
}

impl Prologue {
    /// Whether the product computes a norm.
    pub fn norms(self) -> bool {
        matches!(self, Prologue::Norm | Prologue::AddAndNorm { .. })
    }
}

/// A variant of the kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// T0 or T1; T2 multiplies several columns on cooperative matrices.
    pub tier: Tier,
    /// Threads per workgroup, a multiple of 32.
    pub threads: u32,
    /// Teams per workgroup, each with its own row panels: the threads divide among them.
    pub teams: u32,
    /// Strips per row panel: a team processes one panel at a time.
    pub strips: u32,
    /// Quads per K-step: a slice loads them all before it uses any.
    pub in_flight: u32,
    /// Workgroups; each processes row panels in turn.
    pub groups: u32,
    /// x is in shared memory: the workgroup copies it there, or computes it.
    pub x_in_shared: bool,
    /// Required subgroup size.
    pub subgroup: Subgroup,
    /// One row per lane, by gemm's shader for CPU drivers; the fields above then describe that shader.
    pub lanes: Option<lanes::Tile>,
}

impl Plan {
    /// Shared memory per workgroup, in bytes.
    pub fn shared_bytes(&self, shape: &Shape) -> u32 {
        let columns = shape.columns as u32;
        let sets = if columns <= 2 { 2 } else { 1 };
        let words = if self.tier >= Tier::T1 { 1 } else { 2 };
        let partials = sets * self.threads / SLICE * columns * 16 * self.strips * words * 4;
        let x = match self.x_in_shared {
            true => {
                columns
                    * shape.quads_per_split()
                    * (X_QUAD_BYTES + square_bytes(has_wide_subgroups(self.subgroup)))
            }
            false => columns * 8 + 64,
        };
        let staged = if self.tier >= Tier::T2 { self.slices_per_team() * STAGED_X_BYTES } else { 0 };
        partials + x + staged
    }

    /// Slices that share a row panel.
    pub fn slices_per_team(&self) -> u32 {
        self.threads / SLICE / self.teams
    }
}

/// Shared memory per quad of a column of x, in bytes: two planes of bytes and eight scales.
const X_QUAD_BYTES: u32 = 2 * 128 + 8 * 4;

/// Shared memory for x per slice on cooperative matrices: two K-steps of both planes of eight columns, with padding, and
/// their scales.
const STAGED_X_BYTES: u32 = 2 * (16 * (128 + 16) + 16 * 16);

/// Shared memory for the sums of squares of a quad of a column, in bytes, if 32 threads share a subgroup or only 4 surely do:
/// two per 32 or 4 threads.
fn square_bytes(wide_subgroups: bool) -> u32 {
    if wide_subgroups { 8 } else { 64 }
}

/// Maximum columns of x in shared memory: more leave too little of it, and of the registers.
pub const MAX_SHARED_X_COLUMNS: usize = 2;

/// Schemes that can be multiplied with these activations.
pub fn schemes(activations: Activations) -> &'static [Scheme] {
    match activations {
        Activations::F32 => &Scheme::ALL,
        Activations::Int8 => &[Scheme::Int8, Scheme::Int4],
        Activations::Int16 => &[Scheme::Int8, Scheme::Int4, Scheme::Int8Min, Scheme::Int4Min],
        Activations::F16 => &[],
    }
}

/// Whether products of this many columns can compute their x in a prologue on a device, for rows of `k` values.
pub fn has_prologue(caps: &Caps, k: usize, columns: usize) -> bool {
    let quads = k.div_ceil(tensor::QUAD) as u32;
    let shared = quads * (X_QUAD_BYTES + square_bytes(caps.allows_subgroup_size(SLICE)))
        + (MAX_SHARED_X_THREADS / SLICE) * 2 * 2 * 16 * 4;
    let fits = quads <= MAX_PROLOGUE_QUADS && shared <= caps.max_shared_bytes;
    let more_fit = (1..=MAX_SHARED_X_COLUMNS).contains(&columns) && fits_shared(caps, columns, quads);
    caps.tier() >= Some(Tier::T1) && k.is_multiple_of(crate::HALF_GROUP) && fits && (columns == 1 || more_fit)
}

/// Whether a product that leaves its partial sums to a prologue, split as [`splits`] tells, can have this many columns on a
/// device.
pub fn supports_splits(caps: &Caps, weights: &Layout, columns: usize) -> bool {
    let quads = (weights.quads() as u32).div_ceil(splits(caps, weights));
    (1..=MAX_SHARED_X_COLUMNS).contains(&columns) && fits_shared(caps, columns, quads)
}

/// Whether shared memory has room for columns of x of this many quads, and for partial sums beside them.
fn fits_shared(caps: &Caps, columns: usize, quads: u32) -> bool {
    columns as u32 * quads * X_QUAD_BYTES <= caps.max_shared_bytes / 4 * 3
}

/// Maximum quads of a split.
fn max_split_quads(caps: &Caps) -> u32 {
    (caps.max_shared_bytes / 2 / X_QUAD_BYTES).clamp(1, MAX_SHARED_X_QUADS)
}

/// The best split-K factor where the consumer of y can add up the partial sums: a split's share of x must not
/// take too much shared memory.
pub fn splits(caps: &Caps, weights: &Layout) -> u32 {
    (weights.quads() as u32).div_ceil(max_split_quads(caps))
}

/// With more quads of x in shared memory a workgroup takes too long to fill it.
const MAX_SHARED_X_QUADS: u32 = 64;
/// Every workgroup computes all of x: longer ones are better computed once.
const MAX_PROLOGUE_QUADS: u32 = 64;
/// Maximum threads of a workgroup with x in shared memory.
const MAX_SHARED_X_THREADS: u32 = 1024;

/// Whether gemm's shader for CPU drivers supports the product.
pub(super) fn supports_lanes(shape: &Shape) -> bool {
    (shape.activations, shape.output) == (Activations::F32, Activations::F32)
}

/// Threads per slice, which share a quad.
const SLICE: u32 = 32;

/// The plan for a shape.
pub fn plan(caps: &Caps, shape: &Shape) -> Plan {
    at_tier(caps, shape, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, shape: &Shape, tier: Tier) -> Plan {
    let strips = shape.epilogue.strips() as u32;
    let x_in_shared = keeps_x_in_shared(caps, shape, tier);
    let base = Plan {
        tier,
        threads: SLICE,
        teams: 1,
        strips,
        in_flight: 1,
        groups: panels(shape, strips).min(caps.max_groups / shape.splits) * shape.splits,
        x_in_shared,
        subgroup: subgroup(caps, tier),
        lanes: None,
    };
    // A CPU driver processes the threads of a workgroup one vector at a time: sharing a strip gains nothing
    // there.
    if caps.max_subgroup_size < SLICE {
        return match lanes::lanes(caps, tier).filter(|_| supports_lanes(shape)) {
            Some(lanes) => {
                let strips = lanes::strips(lanes, shape.weights.rows, shape.epilogue);
                let tile = lanes::Tile { lanes, strips, columns: shape.columns as u32 };
                Plan { threads: lanes, lanes: Some(tile), ..base }
            }
            None => base,
        };
    }
    if x_in_shared {
        return plan_with_shared_x(caps, shape, base);
    }
    let limit = max_slices(caps, shape, base);
    Plan { threads: slices(caps, shape, limit) * SLICE, ..base }
}

/// The plan for several columns that get the same sums, bit for bit, as each of them gets by itself with `one_column`: the
/// quads of a row are divided among as many slices, whose sums are added up in the same order. Everything else is free:
/// neither the number of teams, strips and workgroups nor the size of subgroups changes the order of a row's sums.
///
/// Devices for which [`has_equal_sums`] have such a plan for every plan of one column.
pub fn with_sums_of(caps: &Caps, fragments: Fragments, shape: &Shape, one_column: &Plan) -> Plan {
    if let Some(plan) = on_matrices(caps, fragments, shape, one_column) {
        return plan;
    }
    if one_column.lanes.is_some() {
        // One thread adds up a row, column by column.
        return at_tier(caps, shape, one_column.tier);
    }
    let slices = one_column.slices_per_team();
    let min_strips = shape.epilogue.strips() as u32;
    let x_in_shared = keeps_x_in_shared(caps, shape, one_column.tier);
    let subgroup = match one_column.subgroup {
        Subgroup::Exactly(_) => subgroup(caps, one_column.tier),
        Subgroup::Any => Subgroup::Any,
    };
    let (in_flight, groups, lanes) = (1, 1, None);
    let with = |teams: u32, strips: u32| {
        let (tier, threads) = (one_column.tier, slices * teams * SLICE);
        Plan { tier, threads, teams, strips, in_flight, groups, x_in_shared, subgroup, lanes }
    };
    let whole = |plan: &Plan| {
        plan.tier < Tier::T1
            || plan.subgroup != Subgroup::Any
            || plan.threads.is_multiple_of(caps.max_subgroup_size)
    };
    let fits = |plan: &Plan| {
        plan.threads <= caps.max_threads && plan.shared_bytes(shape) <= caps.max_shared_bytes && whole(plan)
    };
    // With several columns, most reads are of x, which two strips share.
    let strips = if has_two_strip_panels(caps, shape) { [2, min_strips] } else { [min_strips, min_strips] };
    let max_slices = match (x_in_shared, strips[0]) {
        (true, 2) => TWO_COLUMN_TWO_STRIP_SLICES,
        (true, _) => TWO_COLUMN_SLICES,
        // Several workgroups per compute unit, whose registers the columns share.
        (false, _) => MANY_COLUMN_SLICES,
    };
    let most_teams = (max_slices / slices).clamp(1, 4);
    let teams = (1..=most_teams).rev().chain([2 * most_teams]);
    let plans = strips.into_iter().flat_map(|strips| teams.clone().map(move |teams| (teams, strips)));
    let plan = plans.map(|(teams, strips)| with(teams, strips)).find(fits);
    // As `one_column`, which has whole subgroups.
    let plan = plan.unwrap_or_else(|| with(one_column.teams, min_strips));
    let groups = match x_in_shared {
        true => balanced_groups(caps, shape, &plan, 1),
        false => {
            let panels = panels(shape, plan.strips).div_ceil(plan.teams);
            panels.min(caps.max_groups / shape.splits) * shape.splits
        }
    };
    Plan { groups, ..plan }
}

/// The same on cooperative matrices, where they are supported and faster: their sums over a half group are exact, so
/// that the order in which a driver adds them up changes no bit.
fn on_matrices(caps: &Caps, fragments: Fragments, shape: &Shape, one_column: &Plan) -> Option<Plan> {
    let supported = shape.activations == Activations::Int16
        && matches!(shape.prologue, Prologue::None | Prologue::Factors)
        && fragments == Fragments::FourThreadsPerRow
        && caps.tier() >= Some(Tier::T2)
        && one_column.tier >= Tier::T1;
    if !supported || shape.columns < MIN_MATRIX_COLUMNS {
        return None;
    }
    let slices = one_column.slices_per_team();
    let int4 = matches!(shape.weights.scheme, Scheme::Int4 | Scheme::Int4Min);
    // Fewer registers per thread than int8, so that more threads are resident, which gains most in the longest product.
    let max_slices = if int4 && shape.epilogue != Epilogue::None { 16 } else { 8 };
    let with = |teams: u32, strips: u32| Plan {
        tier: Tier::T2,
        threads: slices * teams * SLICE,
        teams,
        strips,
        in_flight: 1,
        groups: 1,
        x_in_shared: false,
        subgroup: Subgroup::Exactly(SLICE),
        lanes: None,
    };
    let fits =
        |plan: &Plan| plan.threads <= caps.max_threads && plan.shared_bytes(shape) <= caps.max_shared_bytes;
    let min_strips = shape.epilogue.strips() as u32;
    let strips = if has_two_strip_panels(caps, shape) { [2, min_strips] } else { [min_strips, min_strips] };
    let most_teams = (max_slices / slices).max(1);
    let plan = strips
        .into_iter()
        .flat_map(|strips| (1..=most_teams).rev().map(move |teams| (teams, strips)))
        .map(|(teams, strips)| with(teams, strips))
        .find(fits)?;
    Some(Plan { groups: balanced_groups(caps, shape, &plan, 1), ..plan })
}

/// Whether panels of two strips, which share the reads of x, are enough to fill the device.
fn has_two_strip_panels(caps: &Caps, shape: &Shape) -> bool {
    panels(shape, 2) * shape.splits >= caps.compute_units.unwrap_or(16)
}

/// Minimum columns for cooperative matrices: verify steps of four rows gain 4% in int8 and lose 20% in int4 on an H200
/// (docs/performance/experiments.md).
const MIN_MATRIX_COLUMNS: usize = 5;

/// Whether several columns can get the same sums as one on a device, whatever the plan of one. With little shared memory, a
/// plan for two columns may not have as many slices as one for one column.
pub fn has_equal_sums(caps: &Caps) -> bool {
    caps.tier() >= Some(Tier::T1) && (caps.cpu || caps.max_shared_bytes >= MIN_EQUAL_SUMS_SHARED_BYTES)
}

/// Shared memory with which all plans of one column have one for several.
const MIN_EQUAL_SUMS_SHARED_BYTES: u32 = 48 << 10;

/// The plan for a product over experts of this many pairs; `shape` is that of one expert and one column. All pairs together
/// are as much work as one matrix with the rows of all.
pub fn expert_plan(caps: &Caps, shape: &Shape, pairs: usize) -> Plan {
    let rows = shape.weights.rows * pairs;
    let all = plan(caps, &Shape { weights: Layout { rows, ..shape.weights }, ..*shape });
    Plan { groups: (all.groups / pairs as u32).max(1), ..all }
}

/// The plan for a product over experts whose columns are added up, `per_token` at a time, for this many tokens: as one
/// matrix with the K of all experts of a token and the rows of all tokens. None where x does not fit shared memory.
pub fn summed_experts_plan(caps: &Caps, shape: &Shape, per_token: usize, tokens: usize) -> Option<Plan> {
    let (k, rows) = (shape.weights.quads() * tensor::QUAD * per_token, shape.weights.rows * tokens);
    let all = plan(caps, &Shape { weights: Layout { k, rows, ..shape.weights }, ..*shape });
    let possible = *shape == Shape::plain(shape.weights, 1, Activations::Int16);
    let plan = Plan { groups: (all.groups / tokens.max(1) as u32).max(1), ..all };
    (possible && plan.x_in_shared && plan.tier >= Tier::T1).then_some(plan)
}

/// Whether to keep x in shared memory: with few columns it is small, and concurrent reads of one location
/// by all workgroups are slow even from a cache.
fn keeps_x_in_shared(caps: &Caps, shape: &Shape, tier: Tier) -> bool {
    let few = shape.columns <= MAX_SHARED_X_COLUMNS;
    let supported = few && shape.activations == Activations::Int16 && tier >= Tier::T1;
    supported && fits_shared(caps, shape.columns, shape.quads_per_split())
}

/// Row panels of `strips` strips in a matrix.
fn panels(shape: &Shape, strips: u32) -> u32 {
    (shape.weights.strips() as u32).div_ceil(strips)
}

/// Maximum slices of a workgroup with x in shared memory, one workgroup per compute unit: as many as leave
/// each slice enough registers, measured on an H200.
const SHARED_X_SLICES: u32 = 28;
/// The same where a thread holds 128 bytes of weights and prefetches 128 more: int8 in panels of two
/// strips.
const SHARED_X_TWO_STRIP_SLICES: u32 = 16;
/// The same for two columns, which need more registers.
const TWO_COLUMN_SLICES: u32 = 24;
/// The same in panels of two strips.
const TWO_COLUMN_TWO_STRIP_SLICES: u32 = 16;
/// Target slices of a workgroup with more columns than fit shared memory.
const MANY_COLUMN_SLICES: u32 = 8;
/// Minimum strips per compute unit for panels of two strips, which share the reads of x: for int4 and int8
/// weights.
const MIN_STRIPS_FOR_PAIRS: [u32; 2] = [6, 64];

/// One workgroup per compute unit, with teams as large as its registers allow; all workgroups process the
/// same number of panels, where possible.
fn plan_with_shared_x(caps: &Caps, shape: &Shape, base: Plan) -> Plan {
    let device = caps.compute_units.unwrap_or(16);
    let int8 = !matches!(shape.weights.scheme, Scheme::Int4 | Scheme::Int4Min);
    let two_strips = panels(shape, 1) * shape.splits >= device * MIN_STRIPS_FOR_PAIRS[usize::from(int8)];
    let strips = if two_strips { 2 } else { base.strips };
    let panels = panels(shape, strips);
    let limit = match (shape.columns, strips, int8) {
        (1, 2, true) => SHARED_X_TWO_STRIP_SLICES,
        (1, ..) => SHARED_X_SLICES,
        (_, 2, _) => TWO_COLUMN_TWO_STRIP_SLICES,
        _ => TWO_COLUMN_SLICES,
    };
    let limit = limit.min(max_slices(caps, shape, Plan { strips, ..base }));
    let target = (panels * shape.splits).div_ceil(device);
    let team_slices = match (target, shape.columns) {
        (0 | 1, _) => slices_for_one_panel(shape.quads_per_split(), limit),
        (_, 1) => slices_per_team(shape.quads_per_split(), limit),
        _ => slices_per_small_team(shape.quads_per_split(), limit / target.min(4)),
    };
    let teams = (limit / team_slices).min(target).max(1);
    let plan = Plan { threads: team_slices * teams * SLICE, teams, strips, ..base };
    Plan { groups: balanced_groups(caps, shape, &plan, 1), ..with_full_subgroups(caps, plan) }
}

/// Slices per team where registers limit the workgroup: as many as possible, unless an eighth of the time or more would pass
/// with idle ones.
fn slices_per_small_team(quads: u32, limit: u32) -> u32 {
    let idle_share = |team_slices: u32| (quads.next_multiple_of(team_slices) - quads) * 8 / quads;
    (1..=limit.clamp(1, 9)).rev().min_by_key(|team_slices| idle_share(*team_slices)).unwrap_or(1)
}

/// Slices per team: few, such that the quads divide among them in at least three K-steps, with as few idle
/// slices as possible.
fn slices_per_team(quads: u32, limit: u32) -> u32 {
    let largest = (quads / 3).clamp(3, 9).min(limit).max(1);
    let idle_slices = |team_slices: u32| quads.next_multiple_of(team_slices) - quads;
    (largest.min(3)..=largest)
        .min_by_key(|team_slices| (idle_slices(*team_slices), team_slices.abs_diff(7)))
        .unwrap_or(1)
}

/// Slices of a team that has a compute unit to itself and a single panel to process: as few K-steps as
/// possible.
fn slices_for_one_panel(quads: u32, limit: u32) -> u32 {
    (1..=limit.max(1)).min_by_key(|team_slices| (quads.div_ceil(*team_slices), *team_slices)).unwrap_or(1)
}

/// Workgroups for a plan: `per_compute_unit` per compute unit, or slightly fewer, so that all have equal
/// work.
fn balanced_groups(caps: &Caps, shape: &Shape, plan: &Plan, per_compute_unit: u32) -> u32 {
    let workgroup_panels = panels(shape, plan.strips).div_ceil(plan.teams);
    let concurrent = (caps.compute_units.unwrap_or(16) * per_compute_unit / shape.splits).max(1);
    let rounds = workgroup_panels.div_ceil(concurrent);
    workgroup_panels.div_ceil(rounds).min(caps.max_groups / shape.splits) * shape.splits
}

/// At T1 the thread index is derived from the subgroup, which requires full subgroups.
fn with_full_subgroups(caps: &Caps, plan: Plan) -> Plan {
    if plan.subgroup != Subgroup::Any || plan.threads.is_multiple_of(caps.max_subgroup_size) {
        return plan;
    }
    let whole = |team_slices: &u32| (team_slices * plan.teams * SLICE).is_multiple_of(caps.max_subgroup_size);
    match (1..=plan.slices_per_team()).rev().find(whole) {
        Some(team_slices) => Plan { threads: team_slices * plan.teams * SLICE, ..plan },
        None => Plan { threads: caps.max_subgroup_size, teams: 1, ..plan },
    }
}

/// Every plan worth timing for a shape: the policy's own first, more promising ones before others, and those
/// with subgroups of 64 last.
pub fn candidates(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    let mut list = candidates_in_subgroups_of_32(caps, shape);
    for plan in list.clone() {
        let wide_plan = in_subgroups_of_64(caps, shape, plan).filter(|wide_plan| !list.contains(wide_plan));
        list.extend(wide_plan);
    }
    list
}

/// The same plan with two slices per subgroup, where the device has both sizes: fewer instructions per load,
/// but coarser register allocation. Adds a slice per team where the last subgroup would be half empty.
fn in_subgroups_of_64(caps: &Caps, shape: &Shape, plan: Plan) -> Option<Plan> {
    let wide = 2 * SLICE;
    if plan.subgroup != Subgroup::Exactly(SLICE) || !caps.allows_subgroup_size(wide) || plan.lanes.is_some() {
        return None;
    }
    let team_slices =
        if plan.threads.is_multiple_of(wide) { plan.slices_per_team() } else { plan.slices_per_team() + 1 };
    let threads = team_slices * plan.teams * SLICE;
    let wide_plan = Plan { threads, subgroup: Subgroup::Exactly(wide), ..plan };
    (threads / SLICE <= max_slices(caps, shape, wide_plan)).then_some(wide_plan)
}

/// The candidates with subgroups of 32, or of the only size that the device supports.
fn candidates_in_subgroups_of_32(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    let best = plan(caps, shape);
    let mut list = vec![best];
    if best.lanes.is_some() {
        return list;
    }
    let mut add = |plan: Plan| {
        let slices = plan.threads / SLICE;
        let whole = best.subgroup != Subgroup::Any || plan.threads.is_multiple_of(caps.max_subgroup_size);
        if slices <= max_slices(caps, shape, plan) && whole && !list.contains(&plan) {
            list.push(plan);
        }
    };
    // A CPU driver has only one sensible plan; the second exists so that selection can be tested.
    if caps.max_subgroup_size < SLICE {
        add(Plan { threads: 2 * SLICE, ..best });
        return list;
    }
    let min_strips = shape.epilogue.strips() as u32;
    if best.x_in_shared {
        let quads = shape.quads_per_split();
        let limit = best.slices_per_team().max(16);
        let mut team_slices: Vec<u32> = (2..=limit)
            .filter(|team_slices| quads.next_multiple_of(*team_slices) - quads <= quads / 8)
            .collect();
        team_slices.sort_by_key(|team_slices| team_slices.abs_diff(best.slices_per_team()));
        for (team_slices, strips) in team_slices
            .iter()
            .flat_map(|team_slices| [(*team_slices, best.strips), (*team_slices, 3 - best.strips)])
        {
            for teams in [1, 2, 4]
                .into_iter()
                .filter(|teams| strips >= min_strips && (4..=32).contains(&(team_slices * teams)))
            {
                for per_compute_unit in [1, 2, 3] {
                    let plan = Plan { threads: team_slices * teams * SLICE, teams, strips, ..best };
                    if team_slices * teams * per_compute_unit <= 42 {
                        add(Plan { groups: balanced_groups(caps, shape, &plan, per_compute_unit), ..plan });
                    }
                }
                let plan = Plan { threads: team_slices * teams * SLICE, teams, strips, ..best };
                add(Plan { groups: panels(shape, strips).div_ceil(teams) * shape.splits, ..plan });
            }
        }
        return list;
    }
    for slices in [1, 2, 3, 4, 6, 7, 8, 10, 12, 14, 16, 21, 24, 28, 32] {
        for in_flight in [1, 2] {
            let device = caps.compute_units.unwrap_or(16);
            for groups in [best.groups, device * 4, device * 8, device * 16] {
                add(Plan { threads: slices * SLICE, in_flight, groups: groups.min(best.groups), ..best });
            }
        }
    }
    list
}

/// The candidates to time when a model is first loaded, most promising first: the policy's plan, then the
/// nearest ones, so that every parameter is varied.
pub fn short_list(caps: &Caps, shape: &Shape) -> Vec<Plan> {
    /// Each costs one pipeline compilation and a few milliseconds of timing.
    const MAX_PLANS: usize = 16;
    /// Number of leading candidates that are also tried with subgroups of 64.
    const WIDE: usize = 4;
    let mut list = nearest(candidates_in_subgroups_of_32(caps, shape));
    let mut wide: Vec<Plan> = Vec::new();
    for wide_plan in list.iter().filter_map(|plan| in_subgroups_of_64(caps, shape, *plan)) {
        if wide.len() < WIDE && !wide.contains(&wide_plan) {
            wide.push(wide_plan);
        }
    }
    list.truncate(MAX_PLANS);
    // In the middle, so that the less promising of both kinds are dropped when time runs out.
    let middle = list.len().min(MAX_PLANS / 2);
    list.splice(middle..middle, wide);
    list
}

/// Sorts by distance from the first.
fn nearest(mut list: Vec<Plan>) -> Vec<Plan> {
    let best = list[0];
    if best.x_in_shared {
        // Earlier plans that differ only in their workgroup count.
        let team = |plan: &Plan| (plan.slices_per_team(), plan.teams, plan.strips);
        let mut team_slices: Vec<u32> = list[1..]
            .iter()
            .map(Plan::slices_per_team)
            .filter(|team_slices| *team_slices != best.slices_per_team())
            .collect();
        team_slices.dedup();
        let distance = |(index, plan): (usize, &Plan)| {
            let grids = list[1..index].iter().filter(|other| team(other) == team(plan)).count();
            let rank = team_slices.iter().position(|team_slices| *team_slices == plan.slices_per_team());
            // Both neighbours of the number of slices come before more distant ones.
            let slice_distance = rank.map_or(0, |rank| 2 + rank / 2 * 2);
            slice_distance + 2 * usize::from(plan.strips != best.strips) + grids
        };
        let mut rest: Vec<(usize, Plan)> =
            list.iter().enumerate().skip(1).map(|(i, plan)| (distance((i, plan)), *plan)).collect();
        rest.sort_by_key(|(distance, _)| *distance);
        return [best].into_iter().chain(rest.into_iter().map(|(_, plan)| plan)).collect();
    }
    let log_ratio = |a: u32, b: u32| (f64::from(a) / f64::from(b)).log2().abs();
    // Another number of slices is more informative than a grid with fewer workgroups; odd numbers of slices
    // leave half a subgroup idle on some devices.
    let distance = |plan: &Plan| {
        let odd = if SLICES.contains(&(plan.threads / SLICE)) { 0.0 } else { 2.0 };
        odd + log_ratio(plan.threads, best.threads)
            + log_ratio(plan.in_flight, best.in_flight)
            + log_ratio(plan.groups, best.groups) / 2.0
    };
    list[1..].sort_by(|a, b| distance(a).total_cmp(&distance(b)));
    list
}

/// Maximum slices per workgroup of a plan: limited by threads, and by shared memory for the partial sums.
fn max_slices(caps: &Caps, shape: &Shape, plan: Plan) -> u32 {
    let strips = shape.epilogue.strips() as u32;
    let all_columns = Shape { columns: MAX_COLUMNS, ..*shape };
    let fits = |slices: &u32| {
        let plan = Plan { threads: slices * SLICE, teams: 1, ..plan };
        // From T1 on, all columns must fit with the slices of one: see `with_sums_of`.
        let several = Plan { x_in_shared: false, strips, ..plan };
        let several_fit = plan.tier < Tier::T1 || several.shared_bytes(&all_columns) <= caps.max_shared_bytes;
        plan.shared_bytes(shape) <= caps.max_shared_bytes && (shape.columns > 1 || several_fit)
    };
    (1..=caps.max_threads / SLICE).rev().find(fits).unwrap_or(1)
}

/// Target slices per compute unit: measured on an H200, where 8192 × 5376 is best with 12 slices per strip,
/// 5376 × 4096 with 16 and larger matrices with about 6.
const SLICES_PER_COMPUTE_UNIT: u32 = 48;
/// More slices than this spend their time in the reduction.
const MAX_SLICES: u32 = 16;

/// Slice counts that a plan may have: few, so that few pipelines serve all shapes, and even, so that they are
/// whole subgroups of 64 too.
const SLICES: [u32; 6] = [2, 4, 6, 8, 12, MAX_SLICES];

/// Enough slices to fill the device, and at least 6 or 8, whichever divides the quads better.
fn slices(caps: &Caps, shape: &Shape, limit: u32) -> u32 {
    let quads = shape.weights.quads() as u32;
    let strips = shape.weights.strips() as u32;
    let fill = (caps.compute_units.unwrap_or(16) * SLICES_PER_COMPUTE_UNIT / strips).min(MAX_SLICES);
    let idle_slices = |slices: u32| quads.next_multiple_of(slices) - quads;
    let even = if idle_slices(6) < idle_slices(8) { 6 } else { 8 };
    let target = fill.max(even).min(limit).min(quads);
    // A slice without quads does no harm: the smallest count serves the smallest K.
    SLICES.into_iter().rev().find(|slices| *slices <= target).unwrap_or(SLICES[0]).min(limit)
}

/// The subgroup size of products with a prologue, or whether it is 64: the order of a norm's sums is that of either.
pub(crate) fn prologue_subgroup(caps: &Caps) -> Subgroup {
    subgroup(caps, Tier::T1)
}

/// Halves of a row are combined within a subgroup of any size; 32 where possible, because a slice has 32
/// threads.
fn subgroup(caps: &Caps, tier: Tier) -> Subgroup {
    if tier >= Tier::T1 && caps.allows_subgroup_size(SLICE) {
        Subgroup::Exactly(SLICE)
    } else {
        Subgroup::Any
    }
}
