//! Where the kernel is compared with its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{Gemv, MAX_COLUMNS, policy, policy::Shape};
use crate::{
    Activations, Epilogue, Layout, Scheme,
    product::trial::Trial,
    selftest::{Case, Comparison},
};

/// Rows and K: one group; one strip and one quad; a row more and a group more; odd counts; the 270M's and 1B's K; more
/// quads than slices.
const SHAPES: [(usize, usize); 7] = [(1, 32), (16, 128), (17, 160), (45, 96), (33, 640), (50, 1152), (19, 5376)];
/// Of floats, K need not be whole groups: less than a tile; a tile and a bit; a quad and one; the 270M's.
const FLOAT_SHAPES: [(usize, usize); 4] = [(1, 3), (17, 40), (33, 129), (19, 640)];
/// What the schemes that are not multiplied with int8 activations are tried with: enough for their own code.
const FEWER_SHAPES: [(usize, usize); 3] = [(1, 32), (17, 160), (33, 640)];
/// Pairs of strips, and columns that other cases have too: compiling takes longer than running here.
const GATED: [(usize, usize, usize, Epilogue); 3] =
    [(32, 32, 1, Epilogue::Geglu), (96, 160, 3, Epilogue::Geglu), (64, 640, 3, Epilogue::Swiglu)];
/// Int16 activations: rows, K and columns; a row and a group more than a strip and a quad; one strip and one quad; odd counts.
const INT16_SHAPES: [(usize, usize, usize); 4] = [(17, 160, 1), (33, 640, 2), (45, 96, 5), (16, 128, 8)];
/// Pairs of strips: one; three, six and nine, so that the scales of both halves, of several groups and of a second quad are met.
const INT16_GATED: [(usize, usize, usize, Epilogue); 4] = [
    (32, 32, 1, Epilogue::Geglu),
    (96, 160, 2, Epilogue::Swiglu),
    (192, 96, 5, Epilogue::Geglu),
    (288, 160, 8, Epilogue::Geglu),
];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for scheme in Scheme::ALL {
            let kinds = [Activations::Int8, Activations::F32].into_iter();
            for activations in kinds.filter(|kind| policy::schemes(*kind).contains(&scheme)) {
                let shapes = match scheme {
                    Scheme::Int8 | Scheme::Int4 => &SHAPES[..],
                    Scheme::Int8Min | Scheme::Int4Min => &FEWER_SHAPES[..],
                    Scheme::F16 | Scheme::Bf16 | Scheme::F32 => &FLOAT_SHAPES[..],
                };
                for (i, (rows, k)) in shapes.iter().copied().enumerate() {
                    // Every column count is met, without the product of all counts with all shapes.
                    for columns in [1, 2 + i % (MAX_COLUMNS - 1)] {
                        let weights = Layout { scheme, rows, k };
                        list.push(case(tier, Trial { activations, ..Trial::plain(weights, columns) }));
                    }
                }
                for (rows, k, columns, epilogue) in GATED {
                    let trial = Trial::plain(Layout { scheme, rows, k }, columns);
                    list.push(case(tier, Trial { activations, epilogue, ..trial }));
                }
                for columns in [1, 3] {
                    let trial = Trial::plain(Layout { scheme, rows: 37, k: 64 }, columns);
                    list.push(case(tier, Trial { activations, before: 5, after: 11, ..trial }));
                }
            }
            if policy::schemes(Activations::Int16).contains(&scheme) {
                list.extend(int16_cases(tier, scheme));
            }
        }
    }
    list
}

fn int16_cases(tier: Tier, scheme: Scheme) -> Vec<Case> {
    let plain = |rows, k, columns| {
        let trial = Trial::plain(Layout { scheme, rows, k }, columns);
        Trial { activations: Activations::Int16, ..trial }
    };
    let mut list: Vec<Case> =
        INT16_SHAPES.iter().map(|(rows, k, columns)| case(tier, plain(*rows, *k, *columns))).collect();
    for (rows, k, columns, epilogue) in INT16_GATED {
        for output in [Activations::F32, Activations::Int16] {
            list.push(case(tier, Trial { epilogue, output, ..plain(rows, k, columns) }));
        }
    }
    let beside = Trial { before: 48, after: 16, epilogue: Epilogue::Geglu, ..plain(96, 64, 5) };
    list.push(case(tier, Trial { output: Activations::Int16, ..beside }));
    // A product of f32 can make int16 too.
    let from_f32 = Trial { activations: Activations::F32, ..plain(96, 64, 5) };
    list.push(case(tier, Trial { epilogue: Epilogue::Geglu, output: Activations::Int16, ..from_f32 }));
    list
}

fn case(tier: Tier, trial: Trial) -> Case {
    Case::new(trial.name(), tier, move |device| {
        run(device, trial, policy::at_tier(device.caps(), &shape(&trial), tier), device.caps())
    })
}

pub(super) fn shape(trial: &Trial) -> Shape {
    let Trial { weights, columns, activations, epilogue, output, .. } = *trial;
    Shape { weights, columns, activations, epilogue, output }
}

/// Runs one trial with one plan, with weights cut into parts as `caps` demands.
pub(super) fn run(device: &Device, trial: Trial, plan: policy::Plan, caps: &Caps) -> Result<Comparison> {
    let kernel = Gemv::with_plan(device, shape(&trial), plan)?;
    trial.run(device, caps, |recorder, w, x, target, _| kernel.record(recorder, "gemv", w, x, target))
}
