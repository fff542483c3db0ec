//! The packed dot-product shader: int16 activations with integer weights, on GPUs without cooperative
//! matrices.

use gpu::{Address, Caps, Pipeline, Recorder, Result, Subgroup, Tier, View};
use tensor::{Layout, Scheme};

use super::shape::Shape;
use crate::{
    Activations, Matrix, MatrixBlock, OutputFormat, Target, Vectors,
    experts::ExpertColumns,
    matmul::common::ExpertProduct,
    shaders::gemm_packed::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};

/// Threads that share columns: neighbours, which must be in one subgroup.
const ROW_THREADS: u32 = 8;
/// Half groups per K-step.
const HALVES: u32 = 4;

/// The tile of a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Threads per workgroup: 8 of them share columns.
    pub threads: u32,
    /// Rows per thread, 4 or 8.
    pub thread_rows: u32,
    /// Columns per thread.
    pub thread_columns: u32,
}

impl Tile {
    pub(super) const fn new(threads: u32, thread_rows: u32, thread_columns: u32) -> Self {
        Self { threads, thread_rows, thread_columns }
    }

    /// Rows per workgroup.
    pub fn rows(&self) -> u32 {
        ROW_THREADS * self.thread_rows
    }

    /// Columns per workgroup.
    pub fn columns(&self) -> u32 {
        self.threads / ROW_THREADS * self.thread_columns
    }

    /// Shared memory per workgroup, in bytes.
    pub fn shared_bytes(&self, scheme: Scheme) -> u32 {
        let bytes = HALVES * (self.rows() + 4) * 16 + HALVES * 2 * (self.columns() + 1) * 16;
        // Scales, and as much again for minima and the sums that they multiply.
        let scales = 2 * self.rows() * 4 + HALVES * self.columns() * 4;
        bytes + scales * if scheme.has_min() { 2 } else { 1 } + 32
    }
}

/// Whether the shader runs on a device.
pub fn is_supported(caps: &Caps) -> bool {
    caps.tier() >= Some(Tier::T1) && caps.min_subgroup_size >= ROW_THREADS
}

/// Whether it is the fastest choice without cooperative matrices: not where packed dot products are emulated
/// by many instructions, nor on CPU drivers, which have smaller subgroups than GPUs and convert bytes to
/// floats as fast as they multiply them.
pub fn is_preferred(caps: &Caps) -> bool {
    is_supported(caps) && caps.integer_dot_accelerated && caps.max_subgroup_size >= 32
}

/// Whether a scheme is supported.
pub fn supports(scheme: Scheme) -> bool {
    !scheme.is_float()
}

/// 32 where subgroups have at least that many threads: AMD's smaller size has twice the registers. Where
/// subgroups may be smaller the driver knows best how many registers that leaves per thread.
fn subgroup(caps: &Caps) -> Subgroup {
    let fixed = caps.min_subgroup_size == 32 && caps.allows_subgroup_size(32);
    if fixed { Subgroup::Exactly(32) } else { Subgroup::Any }
}

/// Whether a device can run a workgroup of this tile.
pub(super) fn fits(caps: &Caps, tile: &Tile, scheme: Scheme) -> bool {
    let full_subgroups =
        subgroup(caps) != Subgroup::Any || tile.threads.is_multiple_of(caps.max_subgroup_size);
    full_subgroups && tile.threads <= caps.max_threads && tile.shared_bytes(scheme) <= caps.max_shared_bytes
}

pub(super) fn variant(caps: &Caps, shape: &Shape, tile: Tile, experts: Option<ExpertColumns>) -> Variant {
    let Shape { weights: Layout { scheme, .. }, epilogue, output, .. } = *shape;
    let constants = Constants {
        threads: tile.threads,
        scheme: scheme as u32,
        epilogue: epilogue as u32,
        int16_output: output == Activations::Int16,
        thread_rows: tile.thread_rows,
        thread_columns: tile.thread_columns,
        pairs_per_x: experts.map_or(0, |experts| experts.per_x as u32),
    };
    let label = format!(
        "{scheme} × int16, {epilogue}{}{}, {} × {} per workgroup of {}",
        if output == Activations::Int16 { " to int16" } else { "" },
        experts.map_or(String::new(), |experts| format!(", experts, {} per x", experts.per_x)),
        tile.rows(),
        tile.columns(),
        tile.threads,
    );
    Variant::new(label, TIERS, Tier::T1, &constants, subgroup(caps))
}

/// The operands of one product, already checked.
pub(super) struct Operands<'a> {
    pub shape: &'a Shape,
    pub w: &'a Matrix,
    pub x: &'a Vectors,
    pub target: &'a Target,
    pub active: &'a View,
}

/// Records the product with at most `groups` workgroups along the rows.
pub(super) fn record(
    recorder: &mut Recorder,
    name: &str,
    pipeline: &Pipeline,
    tile: Tile,
    groups: u32,
    operands: &Operands<'_>,
) -> Result<()> {
    let Operands { shape: Shape { columns, epilogue, .. }, w, x, target, active } = operands;
    for block in w.blocks() {
        let (y, y_first) = target.for_block(name, block, *epilogue, *columns)?;
        let push = Push {
            active_rows: (*active).clone().into(),
            y: y.into(),
            y_first,
            ..push(block, block.layout.rows, x, target)
        };
        let columns = (*columns as u32).div_ceil(tile.columns());
        let tiles = tiles(block.layout.rows, tile).min(groups);
        recorder.dispatch(name, pipeline, [tiles, columns, 1], &push)?;
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
    let push = Push {
        group_experts: groups.experts.clone().into(),
        group_pairs: groups.pairs.clone().into(),
        ..push(block, rows, x, target)
    };
    recorder.dispatch(name, pipeline, [tiles(rows, tile), groups.count as u32, 1], &push)
}

fn tiles(rows: usize, tile: Tile) -> u32 {
    rows.div_ceil(tile.rows() as usize) as u32
}

fn push(block: &MatrixBlock, rows: usize, x: &Vectors, target: &Target) -> Push {
    let VectorData::Int16 { values, scales } = &x.data else { unreachable!("the caller only passes int16") };
    Push {
        values: (&block.values).into(),
        scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
        x: values.into(),
        x_scales: scales.into(),
        active_rows: Address::NONE,
        y: target.y.clone().into(),
        y_scales: match &target.format {
            OutputFormat::Int16(scales) => scales.clone().into(),
            OutputFormat::F32 | OutputFormat::F16 => Address::NONE,
        },
        rows: rows as u32,
        k: block.layout.k as u32,
        columns: x.columns as u32,
        y_first: target.first as u32,
        y_stride: target.stride as u32,
        y_low: (target.y.len() / 8) as u32,
        group_experts: Address::NONE,
        group_pairs: Address::NONE,
    }
}
