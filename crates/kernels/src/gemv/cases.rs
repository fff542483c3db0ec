//! Where the kernel is compared with its reference.

use gpu::{Arena, Caps, Device, Result, Tier};
use half::f16;

use super::{Gemv, MAX_COLUMNS, policy, policy::Shape, reference};
use crate::{
    GROUP, Layout, Matrix, QUAD, Scheme, Vectors,
    selftest::{Case, Comparison, Output, Random, TIMEOUT, arena},
    vectors::VectorData,
};

/// Rows and K: one group; one strip and one quad; a row more and a group more; odd counts; the 270M's and 1B's K; more
/// quads than slices.
const SHAPES: [(usize, usize); 7] = [(1, 32), (16, 128), (17, 160), (45, 96), (33, 640), (50, 1152), (19, 5376)];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for scheme in [Scheme::Int8, Scheme::Int4] {
            for int8_activations in [true, false] {
                for (i, (rows, k)) in SHAPES.into_iter().enumerate() {
                    // Every column count is met, without the product of all counts with all shapes.
                    for columns in [1, 2 + i % (MAX_COLUMNS - 1)] {
                        let weights = Layout { scheme, rows, k };
                        list.push(case(tier, Shape { weights, columns, int8_activations }));
                    }
                }
            }
        }
    }
    list
}

fn case(tier: Tier, shape: Shape) -> Case {
    let Layout { scheme, rows, k } = shape.weights;
    let activations = if shape.int8_activations { "int8" } else { "f32" };
    let name = format!("{rows} × {k} {scheme} × {activations}, {} col", shape.columns);
    Case::new(name, tier, move |device| run(device, shape, policy::at_tier(device.caps(), &shape, tier)))
}

/// Runs one shape with one plan on random data.
pub(super) fn run(device: &Device, shape: Shape, plan: policy::Plan) -> Result<Comparison> {
    run_in_parts(device, shape, plan, device.caps())
}

/// The same with weights cut into parts as `caps` demands.
pub(super) fn run_in_parts(device: &Device, shape: Shape, plan: policy::Plan, caps: &Caps) -> Result<Comparison> {
    let Layout { scheme, rows, k } = shape.weights;
    let mut random = Random::new((rows * 31 + k * 7 + shape.columns) as u64);
    let (low, high) = if scheme == Scheme::Int8 { (-127, 127) } else { (-8, 7) };
    let values: Vec<i8> = (0..rows * k).map(|_| random.integer(low, high) as i8).collect();
    let scales: Vec<f16> = (0..rows * k / GROUP).map(|_| f16::from_f32(0.01 * (1.5 + random.signed()))).collect();

    let mut arena = arena(device);
    let mut w = Matrix::allocate(&mut arena, "weights", shape.weights, caps)?;
    w.write(&values, &scales)?;
    let (x, columns) = activations(&mut arena, &mut random, &shape)?;
    let output = Output::new(&mut arena, rows * shape.columns)?;
    let kernel = Gemv::with_plan(device, shape, plan)?;
    let mut recorder = device.recorder()?;
    kernel.record(&mut recorder, "gemv", &w, &x, &output.buffer.view())?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let got = output.read_f32(&mut comparison)?;
    let weights = reference::Weights { k, values: &values, scales: &scales };
    for (column, x) in columns.iter().enumerate() {
        for (row, (want, magnitude)) in reference::gemv(&weights, x).into_iter().enumerate() {
            let at = || format!("row {row}, column {column}");
            comparison.close(at, f64::from(got[column * rows + row]), want, 2e-6 * magnitude);
        }
    }
    Ok(comparison)
}

/// Random activations on the device, and the values they stand for.
fn activations(arena: &mut Arena, random: &mut Random, shape: &Shape) -> Result<(Vectors, Vec<Vec<f64>>)> {
    let (k, columns) = (shape.weights.k, shape.columns);
    if !shape.int8_activations {
        let x: Vec<Vec<f32>> = (0..columns).map(|_| (0..k).map(|_| random.signed() * 3.0).collect()).collect();
        let values = x.iter().map(|column| column.iter().map(|x| f64::from(*x)).collect()).collect();
        let padding = vec![0.0; k.next_multiple_of(QUAD) - k];
        let x: Vec<f32> = x.into_iter().flat_map(|column| [column, padding.clone()].concat()).collect();
        let data = VectorData::F32(arena.buffer_from("x", &x)?);
        return Ok((Vectors { k, columns, data }, values));
    }
    let padded = k.next_multiple_of(QUAD);
    // The padding holds bytes that would show if they counted, under scales of zero.
    let mut bytes = vec![0x55_i8; padded * columns];
    let mut scales = vec![0.0_f32; padded / GROUP * columns];
    let mut values = vec![vec![0.0; k]; columns];
    for column in 0..columns {
        for group in 0..k / GROUP {
            let scale = 0.02 * (1.5 + random.signed());
            scales[column * padded / GROUP + group] = scale;
            for i in group * GROUP..(group + 1) * GROUP {
                let q = random.integer(-127, 127) as i8;
                bytes[column * padded + i] = q;
                values[column][i] = f64::from(q) * f64::from(scale);
            }
        }
    }
    let data = VectorData::Int8 {
        values: arena.buffer_from("x", &bytes)?,
        scales: arena.buffer_from("x scales", &scales)?,
    };
    Ok((Vectors { k, columns, data }, values))
}
