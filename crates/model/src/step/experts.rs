//! Mixtures of experts: the router, and the products over the experts that it selects.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use checkpoint::{Experts, FeedForward, Role};
use gpu::{Arena, Buffer, Lifetime, Memory};
use kernels::{
    Activations, Epilogue, Matrix, Target, Vectors,
    experts::{
        ExpertColumns, Groups, NO_EXPERT,
        combine::{self, Combine},
        group::{Group, GroupBuffers},
        router::{self, AddShape, Router},
    },
    matmul::{
        coopmat::{
            self, Coopmat,
            policy::{Bias, SplitK},
        },
        gemm::{self, Gemm},
        gemv::{self, Gemv},
    },
};
use tensor::Layout;
use weights::blueprint::MatrixId;

use super::{BlockOutput, Step, StepBuffers};
use crate::{Model, Result, loaded::epilogue, state::TIMEOUT};

// The limit of configs is that of the router.
const _: () =
    assert!(checkpoint::config::MAX_EXPERTS_PER_TOKEN as usize == kernels::experts::MAX_EXPERTS_PER_TOKEN);

/// The name of down products in profiles.
const DOWN: &str = "experts' down";

/// Buffers of a step's experts: one column per pair of a row and one of its experts.
pub(crate) struct ExpertScratch {
    /// Scores of the router, and counters that are zero between steps.
    router: Buffer,
    selected: Buffer,
    pub weights: Buffer,
    /// The normed rows, where they are not those of other products, or in another format.
    normed: Option<Vectors>,
    gated: Vectors,
    /// By width: layers may have different schemes, and their products tiles of different widths.
    groups: BTreeMap<usize, GroupBuffers>,
    beside_dense: Option<BesideDense>,
}

/// What experts need for themselves where a dense block runs beside them.
pub(crate) struct BesideDense {
    /// f32, `[row][expert][hidden]`.
    block: Buffer,
    /// f32, `[row][hidden]`: the sum of both.
    pub combined: Buffer,
}

impl BesideDense {
    /// For models with such layers.
    fn new(model: &Model, arena: &mut Arena, pairs: usize, rows: usize) -> Result<Option<Self>> {
        if !is_beside_dense(model) {
            return Ok(None);
        }
        let hidden = model.config.hidden as usize;
        let beside_dense = Self {
            block: arena.buffer("experts' output", (pairs * hidden * 4) as u64)?,
            combined: arena.buffer("a block's output", (rows * hidden * 4) as u64)?,
        };
        Ok(Some(beside_dense))
    }
}

impl ExpertScratch {
    /// For a model's experts, where it has them. `rows` is the number of rows of a step.
    pub fn new(model: &Model, arena: &mut Arena, rows: usize) -> Result<Option<Self>> {
        let Some(experts) = model.experts() else { return Ok(None) };
        let pairs = rows * experts.per_token as usize;
        let kernel = router(model, &experts, rows, None)?;
        let intermediate = experts.intermediate as usize;
        let mut groups = BTreeMap::new();
        for layer in 0..model.config.layers {
            for width in group_widths(model, &experts, layer, rows)? {
                if let Entry::Vacant(entry) = groups.entry(width) {
                    entry.insert(GroupBuffers::new(arena, pairs, experts.count as usize, width)?);
                }
            }
        }
        let activations = activations(model, rows);
        let hidden = model.config.hidden as usize;
        let beside_dense = BesideDense::new(model, arena, pairs, rows)?;
        let scratch = Self {
            normed: match activations == model.activations(rows) && beside_dense.is_none() {
                true => None,
                false => Some(Vectors::new(arena, "normed rows for experts", activations, hidden, rows)?),
            },
            router: arena.buffer("scores of experts", kernel.scratch_bytes(rows))?,
            selected: arena.buffer("selected experts", pairs as u64 * 4)?,
            weights: arena.buffer("weights of experts", pairs as u64 * 4)?,
            gated: Vectors::new(arena, "gated rows of experts", activations, intermediate, pairs)?,
            groups,
            beside_dense,
        };
        Ok(Some(scratch))
    }

    /// Groups of `width` columns, of `pairs` pairs.
    fn groups(&self, width: usize, pairs: usize) -> Groups {
        match self.groups.get(&width) {
            Some(buffers) => buffers.groups(),
            // Every pair is a group of its own.
            None => {
                Groups { experts: self.selected.view(), pairs: self.selected.view(), width, count: pairs }
            }
        }
    }

    /// Buffers that must be zero before the first step.
    pub fn record_clear(&self, recorder: &mut gpu::Recorder) -> Result<()> {
        recorder.fill("clear", &self.router, 0)?;
        for vectors in [&self.gated].into_iter().chain(&self.normed) {
            vectors.record_clear(recorder, "clear")?;
        }
        Ok(())
    }

    /// The experts that `pairs` pairs of the last step's last layer chose, without repetitions.
    pub fn distinct(&self, model: &Model, pairs: usize) -> Result<BTreeSet<u32>> {
        let mut arena =
            Arena::new(&model.device, Lifetime::Staging, Memory::Readback).with_block_size(1 << 16);
        let bytes = (pairs * 4) as u64;
        let selected = arena.buffer("selected experts", bytes)?;
        let mut recorder = model.device.recorder()?;
        recorder.copy("selected experts", self.selected.slice(0..bytes)?, &selected)?;
        recorder.seal()?.run(TIMEOUT)?;
        let selected: Vec<u32> = selected.read_vec()?;
        Ok(selected.into_iter().filter(|expert| *expert != NO_EXPERT).collect())
    }

    /// The buffers of experts beside a dense block.
    pub(super) fn beside_dense(&self) -> &BesideDense {
        self.beside_dense.as_ref().expect("a model with such layers has memory for them")
    }
}

/// Whether the routers of a step of this many rows add the block before them to the residual stream, and norm it: one
/// dispatch less per layer.
pub(super) fn router_adds(model: &Model, rows: usize) -> bool {
    model.experts().is_some()
        && !model.config.architecture.family().post_norms
        // Only for some numbers of rows, and with other rounding.
        && !model.is_invariant(rows)
        && router::policy::adds(model.device.caps(), model.config.hidden as usize, rows)
}

/// Whether a dense block runs beside the experts.
fn is_beside_dense(model: &Model) -> bool {
    model.config.layer_specs().any(|layer| matches!(layer.feed_forward, FeedForward::DenseAndExperts(..)))
}

/// Activations of products over experts in a step of this many rows: where the normed rows are written for them alone,
/// they may have another format than the other products take.
fn activations(model: &Model, rows: usize) -> Activations {
    if router_adds(model, rows) || is_beside_dense(model) {
        model.expert_activations(rows)
    } else {
        model.activations(rows)
    }
}

fn router(model: &Model, experts: &Experts, rows: usize, add: Option<AddShape>) -> Result<Router> {
    let shape = router::Shape {
        k: model.config.hidden as usize,
        experts: experts.count as usize,
        per_token: experts.per_token as usize,
        renormalize: experts.renormalize,
        scaled: experts.scaled,
        epsilon: model.config.rms_norm_eps,
        add,
    };
    // The plans of few and of many rows add up in different orders.
    let rows = if model.is_invariant(rows) { usize::MAX } else { rows };
    let plan = router::policy::plan(model.device.caps(), rows);
    Ok(Router::with_plan(&model.device, shape, plan)?)
}

/// Whether the down products of a step of this many rows add up the experts of a row; otherwise the norm after them does.
pub(crate) fn sums_experts(model: &Model, rows: usize) -> bool {
    let Some(experts) = model.experts() else { return false };
    let layers = 0..model.config.layers;
    let mut matrices = layers.flat_map(|layer| model.weights.by_id(MatrixId::ExpertDown(layer)));
    matrices.all(|matrix| summed_down(model, &experts, matrix, rows).is_some())
}

/// The shape and plan of a down product that adds up experts.
fn summed_down(
    model: &Model,
    experts: &Experts,
    matrix: &Matrix,
    rows: usize,
) -> Option<(gemv::policy::Shape, gemv::policy::Plan)> {
    let (weights, activations) = (expert_layout(matrix, experts), activations(model, rows));
    let shape = gemv::policy::Shape::plain(weights, 1, activations);
    let (caps, per_token) = (model.device.caps(), experts.per_token as usize);
    let plan = gemv::policy::summed_experts_plan(caps, &shape, per_token, rows)?;
    (rows <= gemv::MAX_COLUMNS && !model.is_invariant(rows)).then_some((shape, plan))
}

/// A product over experts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpertProduct {
    GateUp,
    Down,
}

impl ExpertProduct {
    fn columns(self, experts: &Experts) -> ExpertColumns {
        let per_x = if self == ExpertProduct::GateUp { experts.per_token as usize } else { 1 };
        ExpertColumns { count: experts.count as usize, per_x }
    }

    fn epilogue(self, experts: &Experts) -> Epilogue {
        if self == ExpertProduct::GateUp { epilogue(experts.activation) } else { Epilogue::None }
    }

    fn matrix(self, layer: u32) -> MatrixId {
        match self {
            ExpertProduct::GateUp => MatrixId::ExpertGateUp(layer),
            ExpertProduct::Down => MatrixId::ExpertDown(layer),
        }
    }
}

/// The kernel of a product over experts, with its plan.
enum Method {
    Gemv(gemv::policy::Shape, gemv::policy::Plan),
    Gemm(gemm::policy::Shape, gemm::policy::Plan),
    Coopmat(coopmat::policy::Shape, coopmat::policy::Plan),
}

impl Method {
    /// Columns per group; `None` where columns are multiplied one at a time.
    fn group_width(&self) -> Option<usize> {
        match self {
            Method::Gemv(..) => None,
            Method::Gemm(_, plan) => Some(plan.columns()),
            Method::Coopmat(_, plan) => Some(plan.tile.columns as usize),
        }
    }
}

/// The layout of one expert in a layer's matrix.
fn expert_layout(matrix: &Matrix, experts: &Experts) -> Layout {
    let all = matrix.layout();
    Layout { rows: all.rows / experts.count as usize, ..all }
}

fn method(
    model: &Model,
    experts: &Experts,
    product: ExpertProduct,
    weights: Layout,
    rows: usize,
) -> Result<Method> {
    let caps = model.device.caps();
    let activations = activations(model, rows);
    let epilogue = product.epilogue(experts);
    let output = if epilogue == Epilogue::None { Activations::F32 } else { activations };
    // About as many columns as an expert gets: routers spread rows unevenly.
    let pairs = rows * experts.per_token as usize;
    let columns = (pairs * 3).div_ceil(experts.count as usize * 2);
    if activations == Activations::F16 {
        let (split_k, bias) = (SplitK::Reduced, Bias::None);
        let shape = coopmat::policy::Shape { weights, columns, epilogue, output, split_k, bias };
        let plan = model.expert_coopmat_plan(&shape, rows);
        let plan = plan.expect("activations are f16 only where cooperative matrices take every matrix");
        return Ok(Method::Coopmat(shape, plan));
    }
    let shape =
        gemv::policy::Shape { epilogue, output, ..gemv::policy::Shape::plain(weights, 1, activations) };
    let plan = gemv::policy::expert_plan(caps, &shape, pairs);
    let few = rows <= gemv::MAX_COLUMNS && !model.is_invariant(rows);
    if few && plan.lanes.is_none() {
        return Ok(Method::Gemv(shape, plan));
    }
    let shape = gemm::policy::Shape { weights, columns, activations, epilogue, output };
    Ok(Method::Gemm(shape, gemm::policy::expert_plan(caps, &shape)))
}

/// The widths of the groups that a layer's products take; pairs that are groups of their own need none.
fn group_widths(model: &Model, experts: &Experts, layer: u32, rows: usize) -> Result<BTreeSet<usize>> {
    let mut widths = BTreeSet::new();
    for product in [ExpertProduct::GateUp, ExpertProduct::Down] {
        for matrix in model.weights.by_id(product.matrix(layer)) {
            let method = method(model, experts, product, expert_layout(matrix, experts), rows)?;
            widths.extend(method.group_width().filter(|width| *width > 1));
        }
    }
    Ok(widths)
}

impl<'a> Step<'a> {
    /// Selects the experts of every row from the residual stream, and groups their columns. Adds the last block to the
    /// stream and norms it first, where that is pending.
    pub fn route(&mut self, layer: u32, experts: &Experts) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let buffers = scratch.experts();
        let w = model.router(layer)?;
        let (x, other) = self.residual();
        let add = self.pending_router_norm.take().map(|weight| router::Add {
            block: scratch.block.view(),
            stream: other.expect("a second residual stream where routers add to it"),
            weight,
            y: buffers.normed.as_ref().unwrap_or(&scratch.normed),
        });
        let add_shape =
            add.as_ref().map(|add| AddShape { partials: self.block.partials, output: add.y.kind() });
        self.swapped ^= add.is_some();
        let operands = router::Operands {
            x,
            w,
            scales: experts.scaled.then(|| model.norm(Some(layer), Role::ExpertScales)).transpose()?,
            active: state.active.clone(),
            scratch: buffers.router.view(),
            selected: buffers.selected.view(),
            weights: buffers.weights.view(),
            add,
        };
        let kernel = router(model, experts, scratch.rows, add_shape)?;
        kernel.record(self.recorder, "router", scratch.rows, &operands)?;
        let pairs = scratch.rows * experts.per_token as usize;
        for width in group_widths(model, experts, layer, scratch.rows)? {
            let kernel = Group::new(&model.device, experts.count as usize, width)?;
            let groups = buffers.groups(width, pairs);
            kernel.record(self.recorder, "group", pairs, &buffers.selected.view(), &groups)?;
        }
        Ok(())
    }

    /// block = down · (activation(gate · normed) · (up · normed)) of every pair of a row and one of its experts. Either
    /// the down product or the next norm adds them up with their weights.
    pub fn expert_products(&mut self, layer: u32, experts: &Experts) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        let buffers = scratch.experts();
        let gated = Target::vectors(&buffers.gated)?;
        let beside_dense = buffers.beside_dense.as_ref();
        let normed = buffers.normed.as_ref().unwrap_or(&scratch.normed);
        self.expert_product(layer, experts, ExpertProduct::GateUp, normed, &gated)?;
        let block = beside_dense.map_or(&scratch.block, |buffers| &buffers.block);
        let block = Target::contiguous(block, model.config.hidden as usize);
        let matrix = model.single_matrix(ExpertProduct::Down.matrix(layer))?;
        let output = match summed_down(model, experts, matrix, scratch.rows).filter(|_| scratch.sums_experts)
        {
            Some((shape, plan)) => {
                let (count, per_token) = (experts.count as usize, experts.per_token as usize);
                let kernel = Gemv::for_summed_experts(&model.device, shape, plan, count, per_token)?;
                let (x, selected, weights) =
                    (&buffers.gated, buffers.selected.view(), buffers.weights.view());
                kernel.record_summed_experts(self.recorder, DOWN, matrix, x, &block, &selected, &weights)?;
                BlockOutput::partial_sums(1)
            }
            None => {
                self.expert_product(layer, experts, ExpertProduct::Down, &buffers.gated, &block)?;
                BlockOutput::experts(experts)
            }
        };
        // Beside a dense block, whose output still waits, `combine` takes it.
        if beside_dense.is_none() {
            self.block = output;
        }
        Ok(())
    }

    /// The experts' input beside a dense block: norm(residual).
    pub fn norm_for_experts(&mut self, layer: u32) -> Result<()> {
        let weight = self.norm_weight(Some(layer), Role::ExpertNorm)?;
        let scratch = self.buffers.scratch;
        self.norm_into(weight, scratch.experts().normed.as_ref().unwrap_or(&scratch.normed))
    }

    /// combined = norm(dense block) + norm(weighted sum of the experts).
    pub fn combine(&mut self, layer: u32, experts: &Experts) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let beside_dense = scratch.experts().beside_dense();
        let shape = combine::Shape {
            n: model.config.hidden as usize,
            dense_partials: self.block.partials,
            expert_partials: if scratch.sums_experts { 1 } else { experts.per_token },
            weighted: !scratch.sums_experts,
            epsilon: model.config.rms_norm_eps,
        };
        let operands = combine::Operands {
            dense: scratch.block.view(),
            experts: beside_dense.block.view(),
            expert_weights: (!scratch.sums_experts).then(|| scratch.experts().weights.view()),
            dense_norm: model.norm(Some(layer), Role::PostDenseNorm)?,
            experts_norm: model.norm(Some(layer), Role::PostExpertsNorm)?,
            active: state.active.clone(),
            y: beside_dense.combined.view(),
        };
        Combine::new(&model.device, shape)?.record(self.recorder, "combine", scratch.rows, &operands)?;
        self.block = BlockOutput::COMBINED;
        Ok(())
    }

    fn expert_product(
        &mut self,
        layer: u32,
        experts: &Experts,
        product: ExpertProduct,
        x: &Vectors,
        target: &Target,
    ) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        let (device, buffers) = (&model.device, scratch.experts());
        let matrix = model.single_matrix(product.matrix(layer))?;
        let name = if product == ExpertProduct::GateUp { "experts' gate and up" } else { DOWN };
        let columns = product.columns(experts);
        let pairs = scratch.rows * experts.per_token as usize;
        let method = method(model, experts, product, expert_layout(matrix, experts), scratch.rows)?;
        let groups = buffers.groups(method.group_width().unwrap_or(1), pairs);
        match method {
            Method::Gemv(shape, plan) => {
                let kernel = Gemv::for_experts(device, shape, plan, columns)?;
                kernel.record_experts(self.recorder, name, matrix, x, target, &buffers.selected.view())?;
            }
            Method::Gemm(shape, plan) => {
                let kernel = Gemm::for_experts(device, shape, plan, columns)?;
                kernel.record_experts(self.recorder, name, matrix, x, target, &groups)?;
            }
            Method::Coopmat(shape, plan) => {
                let kernel = Coopmat::for_experts(device, shape, plan, columns)?;
                kernel.record_experts(self.recorder, name, matrix, x, target, &groups)?;
            }
        }
        Ok(())
    }
}
