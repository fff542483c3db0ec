//! The shader for drivers that run on the CPU: one row per lane. Used by gemm and by gemv.

use gpu::{Address, Caps, Pipeline, Recorder, Result, Subgroup, Tier, View};
use tensor::{STRIP, Scheme};

use crate::{
    Epilogue, Matrix, Target, Vectors,
    shaders::gemm_lanes::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};

/// Threads per workgroup, which is one subgroup.
pub const LANES: u32 = 8;

/// The tile of a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Tile {
    /// Strips: 1, or 2 for an epilogue.
    pub strips: u32,
    /// Columns.
    pub columns: u32,
}

/// Whether the device is a CPU whose driver vectorises 8 threads, as Mesa's does with AVX.
pub fn is_supported(caps: &Caps, tier: Tier) -> bool {
    tier >= Tier::T1 && (caps.min_subgroup_size, caps.max_subgroup_size) == (LANES, LANES)
}

/// The operands of one product, already checked.
pub(crate) struct Operands<'a> {
    pub w: &'a Matrix,
    pub x: &'a Vectors,
    pub target: &'a Target,
    pub active: Option<&'a View>,
    pub epilogue: Epilogue,
}

pub(crate) fn variant(scheme: Scheme, epilogue: Epilogue, tile: Tile, has_active: bool) -> Variant {
    let constants = Constants {
        scheme: scheme as u32,
        epilogue: epilogue as u32,
        columns: tile.columns,
        strips: tile.strips,
        has_active,
    };
    let label = format!(
        "{scheme}, {epilogue}, one row per lane, {} × {}{}",
        tile.strips as usize * STRIP,
        tile.columns,
        if has_active { "" } else { ", all active" },
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
    let VectorData::F32(values) = &x.data else { unreachable!("the caller only passes f32") };
    for block in w.blocks() {
        let (y, y_first) = target.for_block(name, block, *epilogue, x.columns)?;
        let push = Push {
            values: (&block.values).into(),
            scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
            x: values.into(),
            active_rows: active.map_or(Address::NONE, |active| active.clone().into()),
            y: y.into(),
            rows: block.layout.rows as u32,
            k: block.layout.k as u32,
            columns: x.columns as u32,
            y_first,
            y_stride: target.stride as u32,
        };
        let panels = (block.layout.strips() as u32).div_ceil(tile.strips);
        let columns = (x.columns as u32).div_ceil(tile.columns);
        recorder.dispatch(name, pipeline, [panels.min(groups), columns, 1], &push)?;
    }
    Ok(())
}
