//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};
use half::f16;
use tensor::{Layout, QUAD, Scheme};

use super::{
    COUNTER_BYTES, Coopmat, Operands, policy,
    policy::{Bias, Fragments, Plan, Shape, SplitK},
};
use crate::{
    Activations, Epilogue, Matrix, Target, Vectors,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    matmul::common::{
        expert_trial::{ExpertTrial, ExpertTrialOperands},
        trial::{Trial, fill},
    },
    vectors::VectorData,
};

/// Rows, K and columns: one strip, group and column; a few rows more than a tile, a padded quad and one
/// column more than a tile; more columns than a tile has.
const SHAPES: [(usize, usize, usize); 3] = [(16, 32, 1), (140, 416, 17), (272, 640, 130)];
const GATED: [(usize, usize, usize, Epilogue); 2] =
    [(160, 160, 17, Epilogue::Geglu), (96, 1152, 70, Epilogue::Swiglu)];

/// A product of f16 activations, all columns active, into a dedicated output.
fn plain(scheme: Scheme, (rows, k, columns): (usize, usize, usize)) -> Trial {
    Trial { activations: Activations::F16, ..Trial::plain(Layout { scheme, rows, k }, columns) }
}

/// Cases for every scheme.
pub(super) fn trials(scheme: Scheme) -> Vec<Trial> {
    let mut list: Vec<Trial> = SHAPES.map(|shape| plain(scheme, shape)).to_vec();
    for (rows, k, columns, epilogue) in GATED {
        let trial = Trial { epilogue, ..plain(scheme, (rows, k, columns)) };
        list.extend([trial, Trial { output: Activations::F16, ..trial }]);
    }
    // Inactive columns: within a tile, whole tiles, all.
    for (columns, active) in [(17, 7), (70, 5), (33, 0)] {
        list.push(Trial { active, before: 16, after: 12, ..plain(scheme, (48, 64, columns)) });
    }
    if scheme == Scheme::F16 {
        list.extend(biased());
    }
    list
}

/// Products with a bias: fewer rows than a tile, and more; within a wider output.
fn biased() -> [Trial; 3] {
    let trial = plain(Scheme::F16, (140, 416, 17));
    let wide = Trial { before: 16, after: 12, ..plain(Scheme::F16, (272, 1152, 150)) };
    [
        Trial { bias: Bias::Add, ..trial },
        Trial { bias: Bias::AddGelu, output: Activations::F16, ..trial },
        Trial { bias: Bias::Add, output: Activations::F16, ..wide },
    ]
}

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for fragments in policy::likely_fragments(caps) {
        for (trial, plan) in tested_plans(caps, fragments) {
            let variant = if plan.direct { ", direct where the fragment layout allows it" } else { "" };
            let name = format!("{}{variant}, {plan:?}", trial.name());
            list.push(Case::new(name, Tier::T2, move |device| {
                let plan = supported_plan(device.caps(), super::fragments(device)?, &trial, plan);
                run(device, trial, plan, device.caps())
            }));
        }
    }
    // One weight path and one split-K factor for any number of columns.
    for columns in [1, 17, 130] {
        let trial = plain(Scheme::Int8, (272, 1440, columns));
        if policy::is_supported(caps) {
            let name = format!("{}, batch-invariant", trial.name());
            list.push(Case::new(name, Tier::T2, move |device| {
                let fragments = super::fragments(device)?;
                let plan = policy::reproducible(device.caps(), fragments, &shape(&trial)).expect("few tiles");
                run(device, trial, plan, device.caps())
            }));
        }
    }
    if policy::is_supported(caps) {
        // As many columns per expert as have tiles of their own.
        for (scheme, x_columns) in
            Scheme::ALL.into_iter().flat_map(|scheme| [1, 10, 30, 60, 200].map(|columns| (scheme, columns)))
        {
            for trial in ExpertTrial::list(scheme, Activations::F16, x_columns) {
                list.push(Case::new(trial.name(), Tier::T2, move |device| {
                    let fragments = super::fragments(device)?;
                    let plan = policy::expert_plan(device.caps(), fragments, &expert_shape(&trial));
                    run_experts(device, trial, plan.expect("cooperative matrices are supported"))
                }));
            }
        }
        for epilogue in [Epilogue::None, Epilogue::Geglu] {
            let name = format!("288 × 1440 int8, {epilogue}: a column has the same bits in any batch");
            list.push(Case::new(name, Tier::T2, move |device| same_bits(device, epilogue)));
        }
    }
    list
}

/// Products to test, with their plans, for a device with this fragment layout.
pub(super) fn tested_plans(caps: &Caps, fragments: Fragments) -> Vec<(Trial, Plan)> {
    let with_plan = |trial: Trial| policy::plan(caps, fragments, &shape(&trial)).map(|plan| (trial, plan));
    let mut list: Vec<_> = Scheme::ALL.into_iter().flat_map(trials).filter_map(with_plan).collect();
    if list.is_empty() {
        return list;
    }
    let direct = fragments == Fragments::FourThreadsPerRow;
    // Each program takes long to compile: where both fragment layouts are likely, only the faster path.
    if policy::likely_fragments(caps).ends_with(&[fragments]) {
        list.extend(model_trials(caps, fragments));
    }
    // Partial sums, one of them empty; and some tiles unsplit, others split, also of a matrix in several
    // blocks.
    for columns in [5, 70, 130] {
        let trial =
            Trial { active: columns - 2, before: 16, after: 12, ..plain(Scheme::Int8, (272, 1152, columns)) };
        list.extend(
            with_plan(Trial { partials: 4, ..trial })
                .map(|(trial, plan)| (trial, Plan { splits: 4, ..plan })),
        );
        list.extend(with_plan(trial).map(|(trial, plan)| (trial, Plan { splits: 3, unsplit: 1, ..plan })));
    }
    // A bias after a split; and the tiles of image encoders.
    let biased =
        Trial { bias: Bias::AddGelu, output: Activations::F16, ..plain(Scheme::F16, (272, 1152, 150)) };
    list.extend(with_plan(biased).map(|(trial, plan)| (trial, Plan { splits: 3, unsplit: 1, ..plan })));
    for (rows, k) in [(1152, 1152), (768, 1152), (3456, 1152)] {
        let shape =
            Shape { weights: Layout { scheme: Scheme::F16, rows, k }, columns: 16384, ..shape(&biased) };
        let tile = policy::partly_active_plan(caps, fragments, &shape, 4096);
        list.extend(tile.map(|plan| (biased, Plan { splits: 1, unsplit: 0, ..plan })));
    }
    // Every tile and split that may be chosen, on a product with every kind of edge.
    for (scheme, splits) in [(Scheme::Int8, 1), (Scheme::Int4, 3)] {
        let trial = Trial { epilogue: Epilogue::Geglu, ..plain(scheme, (288, 1440, 150)) };
        let plans = policy::candidates(caps, fragments, &shape(&trial)).into_iter();
        let plans = plans.filter(|plan| {
            plan.splits == splits && plan.unsplit == 0 && (plan.prefetch_depth == 4 || !direct)
        });
        list.extend(plans.map(|plan| (trial, plan)));
    }
    // f32 weights have only one path.
    list.retain(|(_, plan)| plan.direct == direct);
    list
}

/// A small product for every kind of plan that model products use: same tile and weight path, K unsplit, or
/// split by three where K of the large product is split. Some columns are inactive.
fn model_trials(caps: &Caps, fragments: Fragments) -> Vec<(Trial, Plan)> {
    let mut list: Vec<(Trial, Plan)> = Vec::new();
    for shape in policy::model_shapes() {
        let Some(plan) = policy::plan(caps, fragments, &shape) else { continue };
        let plan = Plan { splits: if plan.splits > 1 { 3 } else { 1 }, unsplit: plan.unsplit.min(1), ..plan };
        let columns = plan.tile.columns as usize + if plan.tile.columns < 128 { 0 } else { 22 };
        let Shape { epilogue, output, split_k, .. } = shape;
        let partials = if split_k == SplitK::Partial { plan.splits as usize } else { 1 };
        let size = (2 * plan.tile.rows as usize + 32, 1440, columns);
        let trial =
            Trial { epilogue, output, partials, active: columns - 5, ..plain(shape.weights.scheme, size) };
        let is_same = |(known, known_plan): &(Trial, Plan)| {
            *known_plan == plan && self::shape(known) == self::shape(&trial)
        };
        if !list.iter().any(is_same) {
            list.push((trial, plan));
        }
    }
    list
}

/// The plan itself, or the staged variant where the device's fragment layout does not allow the direct
/// one.
pub(super) fn supported_plan(caps: &Caps, fragments: Fragments, trial: &Trial, plan: Plan) -> Plan {
    if !plan.direct || fragments == Fragments::FourThreadsPerRow {
        return plan;
    }
    let staged = policy::plan(caps, fragments, &shape(trial)).expect("cooperative matrices are supported");
    Plan { splits: plan.splits, unsplit: plan.unsplit, ..staged }
}

pub(super) fn shape(trial: &Trial) -> Shape {
    let Trial { weights, columns, epilogue, output, bias, .. } = *trial;
    let split_k = if trial.partials > 1 { SplitK::Partial } else { SplitK::Reduced };
    Shape { weights, columns, epilogue, output, split_k, bias }
}

/// Runs one trial with one plan, with weights divided into blocks as `caps` requires.
pub(super) fn run(device: &Device, trial: Trial, plan: Plan, caps: &Caps) -> Result<Comparison> {
    let kernel = Coopmat::with_plan(device, shape(&trial), plan)?;
    let mut arena = arena(device);
    let scratch = match kernel.scratch_bytes() {
        0 => None,
        bytes => {
            let mut scratch = arena.buffer("scratch", bytes)?;
            scratch.write(0, &vec![0_u8; COUNTER_BYTES as usize])?;
            Some(scratch)
        }
    };
    let values: Vec<f32> = (0..trial.weights.rows).map(Trial::bias_of).collect();
    let values = arena.buffer_from("bias", &values)?;
    let bias = (trial.bias != Bias::None).then(|| values.view());
    trial.run(device, caps, |recorder, w, x, target, active| {
        let scratch = scratch.as_ref().map(gpu::Buffer::view);
        kernel.record(recorder, "coopmat", &Operands { w, x, target, active: active.clone(), scratch, bias })
    })
}

/// An expert's product, with about as many columns as an expert has.
pub(super) fn expert_shape(trial: &ExpertTrial) -> Shape {
    let ExpertTrial { weights, epilogue, output, experts, x_columns, .. } = *trial;
    let columns = (x_columns * experts.per_x).div_ceil(experts.count);
    Shape { weights, columns, epilogue, output, split_k: SplitK::Reduced, bias: Bias::None }
}

/// Runs a product over experts with one plan.
pub(super) fn run_experts(device: &Device, trial: ExpertTrial, plan: Plan) -> Result<Comparison> {
    let kernel = Coopmat::for_experts(device, expert_shape(&trial), plan, trial.experts)?;
    trial.run(device, plan.tile.columns as usize, |recorder, operands| {
        let ExpertTrialOperands { w, x, target, groups, .. } = operands;
        kernel.record_experts(recorder, "coopmat", w, x, target, groups)
    })
}

/// Columns alone and among others, by the plans whose sums must not depend on the number of columns.
fn same_bits(device: &Device, epilogue: Epilogue) -> Result<Comparison> {
    let weights = Layout { scheme: Scheme::Int8, rows: 288, k: 1440 };
    let mut arena = arena(device);
    let mut random = Random::new(7);
    let mut w = Matrix::allocate(&mut arena, "weights", weights, device.caps())?;
    fill(&mut w, &mut random)?;
    let padded = weights.k.next_multiple_of(QUAD);
    let max_columns = 150;
    let x: Vec<u16> =
        (0..padded * max_columns).map(|_| f16::from_f32(random.signed() * 0.2).to_bits()).collect();
    let mut comparison = Comparison::default();
    let mut all: Vec<u32> = vec![];
    for columns in [max_columns, 128, 72, 64, 40, 33, 17, 3, 1] {
        let shape = Shape {
            weights,
            columns,
            epilogue,
            output: Activations::F32,
            split_k: SplitK::Reduced,
            bias: Bias::None,
        };
        let plan = policy::reproducible(device.caps(), super::fragments(device)?, &shape).expect("few tiles");
        let kernel = Coopmat::with_plan(device, shape, plan)?;
        let scratch = arena.buffer_from("scratch", &vec![0_u32; kernel.scratch_bytes() as usize / 4 + 1])?;
        let data = VectorData::F16(arena.buffer_from("x", &x[..padded * columns])?);
        let x = Vectors { k: weights.k, columns, data };
        let n = epilogue.outputs(weights.rows);
        let y = arena.buffer_from("y", &vec![0_u32; n * columns])?;
        let active = arena.buffer_from("active", &[columns as u32])?.view();
        let mut recorder = device.recorder()?;
        let target = Target::contiguous(&y, n);
        let operands =
            Operands { w: &w, x: &x, target: &target, active, scratch: Some(scratch.view()), bias: None };
        kernel.record(&mut recorder, "coopmat", &operands)?;
        recorder.seal()?.run(TIMEOUT)?;
        let y: Vec<u32> = y.read_vec()?;
        if all.is_empty() {
            all = y;
            continue;
        }
        for (i, (got, want)) in y[..n * columns].iter().zip(&all).enumerate() {
            comparison.equal(|| format!("row {}, column {} of {columns}", i % n, i / n), got, want);
        }
    }
    Ok(comparison)
}
