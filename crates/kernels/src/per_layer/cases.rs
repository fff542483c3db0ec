//! Self-test cases: the kernels against their references.

use gpu::{Caps, Device, Result, Tier};

use super::{GateOperands, InputOperands, PerLayerGate, PerLayerInputs, Shape, reference};
use crate::{
    Activations, VectorData, Vectors,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
};

const EPSILON: f32 = 1e-6;

/// Rows, hidden size, width and layers: fewer values than threads, lengths that are no multiple of them, the E2B's.
const SHAPES: [(usize, usize, usize, usize); 3] = [(1, 64, 32, 2), (3, 200, 48, 5), (2, 1536, 256, 35)];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (rows, hidden, width, layers) in SHAPES {
            let shape = Shape { hidden, width, layers, epsilon: EPSILON };
            let name = |what: &str| format!("{what}, {rows} × {hidden}, {layers} × {width}");
            list.push(Case::new(name("inputs"), tier, move |device| inputs(device, shape, rows, tier)));
            list.push(Case::new(name("gate"), tier, move |device| gate(device, shape, rows, tier)));
        }
    }
    list
}

/// Random rows, the last of which is not active.
fn inputs(device: &Device, shape: Shape, rows: usize, tier: Tier) -> Result<Comparison> {
    let Shape { hidden, width, layers, epsilon } = shape;
    let mut random = Random::new((rows * 31 + hidden) as u64);
    let mut floats =
        |count: usize, scale: f32| -> Vec<f32> { (0..count).map(|_| random.signed() * scale).collect() };
    let all = (rows + 1) * layers * width;
    let (embedding, projected) = (floats((rows + 1) * hidden, 30.0), floats(all, 4.0));
    let (token, weight) = (floats(all, 2.0), floats(width, 1.5));
    let mut arena = arena(device);
    let output = Output::new(&mut arena, all)?;
    let untouched: Vec<u32> = output.buffer.read_vec()?;
    let operands = InputOperands {
        embedding: arena.buffer_from("embedding", &embedding)?.view(),
        projected: arena.buffer_from("projected", &projected)?.view(),
        token: arena.buffer_from("token", &token)?.view(),
        weight: arena.buffer_from("weight", &weight)?.view(),
        active: arena.buffer_from("active", &[rows as u32])?.view(),
        inputs: output.buffer.slice(0..(all * 4) as u64)?,
    };
    let mut recorder = device.recorder()?;
    PerLayerInputs::at_tier(device, shape, tier)?.record(&mut recorder, "inputs", rows + 1, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let got = output.read(&mut comparison)?;
    for layer in 0..layers {
        for row in 0..rows {
            let from = (row * layers + layer) * width..(row * layers + layer + 1) * width;
            let want = reference::input(
                &embedding[row * hidden..][..hidden],
                &projected[from.clone()],
                &token[from],
                &weight,
                epsilon.into(),
            );
            for (i, want) in want.into_iter().enumerate() {
                let got = f32::from_bits(got[(layer * (rows + 1) + row) * width + i]).into();
                comparison.close(
                    || format!("layer {layer}, row {row}, {i}"),
                    got,
                    want,
                    4e-6 * (want.abs() + 1.0),
                );
            }
        }
        let inactive = (layer * (rows + 1) + rows) * width..(layer * (rows + 1) + rows + 1) * width;
        comparison.equal(
            || format!("layer {layer}, inactive row"),
            &&got[inactive.clone()],
            &&untouched[inactive],
        );
    }
    Ok(comparison)
}

fn gate(device: &Device, shape: Shape, rows: usize, tier: Tier) -> Result<Comparison> {
    let Shape { hidden, width, epsilon, .. } = shape;
    let mut random = Random::new((rows * 37 + hidden) as u64);
    let mut floats =
        |count: usize, scale: f32| -> Vec<f32> { (0..count).map(|_| random.signed() * scale).collect() };
    let (residual, gate) = (floats(rows * hidden, 3.0), floats(rows * width, 2.0));
    let inputs = floats(rows * width, 2.0);
    let mut arena = arena(device);
    let y = Vectors::new(&mut arena, "y", Activations::F32, width, rows)?;
    let operands = GateOperands {
        residual: arena.buffer_from("residual", &residual)?.view(),
        gate: arena.buffer_from("gate", &gate)?.view(),
        inputs: arena.buffer_from("inputs", &inputs)?.view(),
        active: arena.buffer_from("active", &[rows as u32])?.view(),
        y: &y,
    };
    let mut recorder = device.recorder()?;
    PerLayerGate::at_tier(device, shape, tier)?.record(&mut recorder, "gate", &operands)?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let VectorData::F32(buffer) = &y.data else { unreachable!("allocated as f32") };
    let got: Vec<f32> = buffer.read_vec()?;
    for row in 0..rows {
        let range = row * width..(row + 1) * width;
        let residual = &residual[row * hidden..][..hidden];
        let want = reference::gate(residual, &gate[range.clone()], &inputs[range], epsilon.into());
        for (i, want) in want.into_iter().enumerate() {
            let got = got[row * y.stride() + i].into();
            comparison.close(|| format!("row {row}, {i}"), got, want, 4e-6 * (want.abs() + 1.0));
        }
    }
    Ok(comparison)
}
