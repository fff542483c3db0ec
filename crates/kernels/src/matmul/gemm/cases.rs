//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};
use tensor::{Layout, Scheme};

use super::{Gemm, lanes, packed, policy, policy::Shape};
use crate::{
    Activations, Epilogue,
    case::{Case, Comparison},
    matmul::common::{
        expert_trial::{ExpertTrial, ExpertTrialOperands},
        trial::Trial,
    },
};

/// Rows, K and columns: one row, group and column; a strip more than a tile and a column more than eight;
/// odd counts and a column more than a tile; the 270M's K.
const SHAPES: [(usize, usize, usize); 4] = [(1, 32, 1), (80, 160, 9), (45, 96, 33), (33, 640, 12)];
/// With float weights K need not be whole groups.
const FLOAT_SHAPES: [(usize, usize, usize); 4] = [(1, 3, 1), (80, 40, 9), (45, 129, 33), (33, 640, 12)];
/// Pairs of strips: one; a pair more than a tile.
const GATED: [(usize, usize, usize, Epilogue); 3] =
    [(32, 32, 1, Epilogue::Geglu), (96, 160, 9, Epilogue::Geglu), (64, 96, 9, Epilogue::Swiglu)];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for scheme in Scheme::ALL {
            for (rows, k, columns) in if scheme.is_float() { FLOAT_SHAPES } else { SHAPES } {
                list.push(case(tier, Trial::plain(Layout { scheme, rows, k }, columns)));
            }
            for (rows, k, columns, epilogue) in GATED {
                list.push(case(
                    tier,
                    Trial { epilogue, ..Trial::plain(Layout { scheme, rows, k }, columns) },
                ));
            }
            // Inactive columns: within a tile, whole tiles, all.
            for active in [7, 5, 0] {
                let trial =
                    Trial::plain(Layout { scheme, rows: 37, k: 64 }, if active == 5 { 40 } else { 9 });
                list.push(case(tier, Trial { active, before: 5, after: 11, ..trial }));
            }
            for x_columns in [1, 30] {
                let trials = ExpertTrial::list(scheme, Activations::F32, x_columns);
                list.extend(trials.map(|trial| expert_case(tier, trial)));
            }
        }
    }
    if lanes::lanes(caps, Tier::T1) == Some(16) {
        list.extend(four_strips().map(|trial| case(Tier::T1, trial)));
    }
    if packed::is_supported(caps) {
        for trial in
            Scheme::ALL.into_iter().filter(|scheme| packed::supports(*scheme)).flat_map(packed_trials)
        {
            list.push(case(Tier::T1, trial));
        }
        for scheme in Scheme::ALL.into_iter().filter(|scheme| packed::supports(*scheme)) {
            let trials = ExpertTrial::list(scheme, Activations::Int16, 30);
            list.extend(trials.map(|trial| expert_case(Tier::T1, trial)));
        }
        list.extend(every_tile(caps));
    }
    list
}

/// Products with panels of four strips, the last of one strip, or of a pair of gate and up.
fn four_strips() -> impl Iterator<Item = Trial> {
    [Scheme::Int8, Scheme::Int4Min, Scheme::F16].into_iter().flat_map(|scheme| {
        let k = if scheme.is_float() { 45 } else { 96 };
        let trial = |rows, columns| Trial::plain(Layout { scheme, rows, k }, columns);
        let gated = |rows, columns, epilogue| Trial { epilogue, ..trial(rows, columns) };
        [trial(1033, 1), trial(1033, 17), gated(1056, 3, Epilogue::Swiglu), gated(1056, 9, Epilogue::Geglu)]
    })
}

/// int16 activations.
fn packed_trials(scheme: Scheme) -> Vec<Trial> {
    let activations = Activations::Int16;
    let plain = |rows, k, columns| Trial { activations, ..Trial::plain(Layout { scheme, rows, k }, columns) };
    let mut list = Vec::from(SHAPES.map(|(rows, k, columns)| plain(rows, k, columns)));
    // A column more than the largest tile, and rows that fill only the smallest.
    list.push(plain(40, 288, 65));
    for (rows, k, columns, epilogue) in GATED {
        for output in [Activations::F32, Activations::Int16] {
            list.push(Trial { epilogue, output, ..plain(rows, k, columns) });
        }
    }
    for active in [7, 5, 0] {
        let trial = plain(37, 64, if active == 5 { 40 } else { 9 });
        list.push(Trial { active, before: 5, after: 11, ..trial });
    }
    list.push(Trial {
        epilogue: Epilogue::Geglu,
        output: activations,
        before: 32,
        after: 64,
        ..plain(96, 160, 9)
    });
    list
}

/// Every tile that autotuning may choose: with more rows than it has, and with fewer and with more columns.
fn every_tile(caps: &Caps) -> Vec<Case> {
    let schemes = [Scheme::Int8, Scheme::Int4Min];
    let trials = schemes.into_iter().flat_map(|scheme| {
        [(77, 9, Epilogue::None), (96, 67, Epilogue::Geglu)].map(|(rows, columns, epilogue)| {
            let output = if epilogue == Epilogue::None { Activations::F32 } else { Activations::Int16 };
            let activations = Activations::Int16;
            Trial { activations, epilogue, output, ..Trial::plain(Layout { scheme, rows, k: 224 }, columns) }
        })
    });
    trials
        .flat_map(|trial| policy::candidates(caps, &shape(&trial)).into_iter().map(move |plan| (trial, plan)))
        .map(|(trial, plan)| {
            let name = format!("{}, {:?}", trial.name(), plan.method);
            Case::new(name, Tier::T1, move |device| run(device, trial, plan, device.caps()))
        })
        .collect()
}

fn case(tier: Tier, trial: Trial) -> Case {
    Case::new(trial.name(), tier, move |device| {
        run(device, trial, policy::at_tier(device.caps(), &shape(&trial), tier), device.caps())
    })
}

fn expert_case(tier: Tier, trial: ExpertTrial) -> Case {
    Case::new(trial.name(), tier, move |device| {
        let ExpertTrial { weights, activations, epilogue, output, experts, x_columns } = trial;
        let columns = (x_columns * experts.per_x).div_ceil(experts.count);
        let shape = Shape { weights, columns, activations, epilogue, output };
        let plan = match tier {
            Tier::T0 => policy::at_tier(device.caps(), &shape, tier),
            _ => policy::expert_plan(device.caps(), &shape),
        };
        let kernel = Gemm::for_experts(device, shape, plan, experts)?;
        trial.run(device, plan.columns(), |recorder, operands| {
            let ExpertTrialOperands { w, x, target, groups, .. } = operands;
            kernel.record_experts(recorder, "gemm", w, x, target, groups)
        })
    })
}

pub(super) fn shape(trial: &Trial) -> Shape {
    let Trial { weights, columns, activations, epilogue, output, .. } = *trial;
    Shape { weights, columns, activations, epilogue, output }
}

/// Runs one trial with one plan, with weights divided into blocks as `caps` requires.
pub(super) fn run(device: &Device, trial: Trial, plan: policy::Plan, caps: &Caps) -> Result<Comparison> {
    let kernel = Gemm::with_plan(device, shape(&trial), plan)?;
    trial.run(device, caps, |recorder, w, x, target, active| {
        kernel.record(recorder, "gemm", w, x, target, active)
    })
}
