//! The shader for drivers that run on the CPU: one row per lane. Used by gemm and by gemv.

use gpu::{Address, Caps, Pipeline, Recorder, Result, Subgroup, Tier, View};
use tensor::{STRIP, Scheme};

use crate::{
    Epilogue, Matrix, MatrixBlock, Target, Vectors,
    experts::ExpertColumns,
    matmul::common::ExpertProduct,
    shaders::gemm_lanes::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};

/// The tile of a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Tile {
    /// Threads, which are one subgroup: 8 or 16.
    pub lanes: u32,
    /// Strips: 1, or 2 for an epilogue; with 16 lanes 2 or 4.
    pub strips: u32,
    /// Columns.
    pub columns: u32,
}

/// Threads of a subgroup if the device is a CPU whose driver vectorises 8 or 16 threads, as Mesa's does with AVX2 and
/// AVX-512.
pub fn lanes(caps: &Caps, tier: Tier) -> Option<u32> {
    let size = caps.max_subgroup_size;
    (caps.cpu && caps.int64 && tier >= Tier::T1 && caps.min_subgroup_size == size && [8, 16].contains(&size))
        .then_some(size)
}

/// Strips of a tile. With vectors of 16 threads a strip takes half as many registers as with 8, so that several share the
/// loads and broadcasts of x: on Mesa's CPU driver, products take 0.8 of the time with two strips instead of one, and 0.8
/// to 0.95 of that with four.
pub fn strips(lanes: u32, rows: usize, epilogue: Epilogue) -> u32 {
    match lanes {
        16 if rows >= FOUR_STRIPS_MIN_ROWS => 4,
        16 => 2,
        _ => epilogue.strips() as u32,
    }
}

/// With fewer rows, panels of four strips are too few for the threads of many cores.
const FOUR_STRIPS_MIN_ROWS: usize = 1024;

/// The operands of one product, already checked.
pub(crate) struct Operands<'a> {
    pub w: &'a Matrix,
    pub x: &'a Vectors,
    pub target: &'a Target,
    pub active: Option<&'a View>,
    pub epilogue: Epilogue,
}

pub(crate) fn variant(
    scheme: Scheme,
    epilogue: Epilogue,
    tile: Tile,
    has_active: bool,
    experts: Option<ExpertColumns>,
) -> Variant {
    let constants = Constants {
        scheme: scheme as u32,
        epilogue: epilogue as u32,
        columns: tile.columns,
        strips: tile.strips,
        has_active,
        pairs_per_x: experts.map_or(0, |experts| experts.per_x as u32),
        lanes: tile.lanes,
    };
    let label = format!(
        "{scheme}, {epilogue}, one row per lane, {} × {}{}{}",
        tile.strips as usize * STRIP,
        tile.columns,
        if has_active { "" } else { ", all active" },
        experts.map_or(String::new(), |experts| format!(", experts, {} per x", experts.per_x)),
    );
    Variant::new(label, TIERS, Tier::T1, &constants, Subgroup::Any)
}

/// Records the product with at most `groups` workgroups along the rows.
pub(crate) fn record(
    recorder: &mut Recorder,
    name: &str,
    pipeline: &Pipeline,
    tile: Tile,
    groups: u32,
    operands: &Operands<'_>,
) -> Result<()> {
    let Operands { w, x, target, active, epilogue } = operands;
    for block in w.blocks() {
        let (y, y_first) = target.for_block(name, block, *epilogue, x.columns)?;
        let active = active.map_or(Address::NONE, |active| active.clone().into());
        let push = push(block, block.layout.rows, x, y, [y_first, target.stride as u32], active);
        let columns = (x.columns as u32).div_ceil(tile.columns);
        recorder.dispatch(
            name,
            pipeline,
            [panels(block.layout.rows, tile).min(groups), columns, 1],
            &push,
        )?;
    }
    Ok(())
}

/// Records a product over experts: `rows` rows of each.
pub(super) fn record_experts(
    recorder: &mut Recorder,
    name: &str,
    pipeline: &Pipeline,
    tile: Tile,
    product: &ExpertProduct<'_>,
) -> Result<()> {
    let ExpertProduct { block, rows, x, target, groups } = *product;
    let y = [target.first as u32, target.stride as u32];
    let push = Push {
        group_experts: groups.experts.clone().into(),
        // A group of one column is its own pair.
        group_pairs: if tile.columns == 1 { Address::NONE } else { groups.pairs.clone().into() },
        ..push(block, rows, x, target.y.clone(), y, Address::NONE)
    };
    recorder.dispatch(name, pipeline, [panels(rows, tile), groups.count as u32, 1], &push)
}

fn panels(rows: usize, tile: Tile) -> u32 {
    rows.div_ceil(STRIP * tile.strips as usize) as u32
}

fn push(
    block: &MatrixBlock,
    rows: usize,
    x: &Vectors,
    y: View,
    [y_first, y_stride]: [u32; 2],
    active_rows: Address,
) -> Push {
    let VectorData::F32(values) = &x.data else { unreachable!("the caller only passes f32") };
    Push {
        values: (&block.values).into(),
        scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
        x: values.into(),
        active_rows,
        y: y.into(),
        rows: rows as u32,
        k: block.layout.k as u32,
        columns: x.columns as u32,
        y_first,
        y_stride,
        group_experts: Address::NONE,
        group_pairs: Address::NONE,
    }
}
