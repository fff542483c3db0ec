use gpu::View;

use super::{Fusion, LayerNorm, Operands};
use crate::{Activations, Vectors, case::arena};

const PLAIN: Fusion = Fusion { add: None, normed_residual: false, output: Activations::F32 };

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected = |output, n| {
        LayerNorm::new(&device, Fusion { output, ..PLAIN }, n, 1e-6).err().expect("rejected").to_string()
    };
    assert!(rejected(Activations::F32, 0).contains("multiple of 4"));
    assert!(rejected(Activations::F16, 66).contains("multiple of 4"));
    assert!(rejected(Activations::F32, 1 << 20).contains("1048576 values"));
    assert!(rejected(Activations::Int16, 64).contains("output must be f32 or f16, not int16"));
    let int8 = Fusion { add: Some(Activations::Int8), ..PLAIN };
    let error = LayerNorm::new(&device, int8, 64, 1e-6).err().expect("rejected").to_string();
    assert!(error.contains("input must be f32 or f16, not int8"), "{error}");

    let mut arena = arena(&device);
    let rows = arena.buffer("rows", 2 * 64 * 4 + 16).unwrap().view();
    let active = arena.buffer("active", 4).unwrap().view();
    let mut recorder = device.recorder().unwrap();
    let mut record =
        |add: Option<Activations>, x: Option<&View>, residual: &View, weight: &View, y: &Vectors| {
            let operands = Operands {
                x: x.cloned(),
                x_stride: 64,
                x_bias: x.cloned(),
                residual: residual.clone(),
                weight: weight.clone(),
                bias: rows.clone(),
                active: active.clone(),
                y,
            };
            let kernel = LayerNorm::new(&device, Fusion { add, ..PLAIN }, 64, 1e-6).unwrap();
            kernel.record(&mut recorder, "norm", &operands).map_err(|error| error.to_string())
        };
    let y = Vectors::f32(&mut arena, "y", 64, 2).unwrap();
    let shifted = rows.slice(4..rows.len() - 12).unwrap();
    let short = rows.slice(0..252).unwrap();
    let (floats, halves) = (Some(Activations::F32), Some(Activations::F16));
    record(None, None, &rows, &rows, &y).unwrap();
    // The same buffer as input and residual stream is fine for a record that never runs.
    record(floats, Some(&rows), &rows, &rows, &y).unwrap();
    // Two bytes per value of f16; its bias stays f32.
    record(halves, Some(&rows.slice(0..256).unwrap()), &rows, &rows, &y).unwrap();
    let mut fails = |add, x, residual, weight, y: &Vectors, with: &str| {
        let error = record(add, x, residual, weight, y).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    fails(floats, None, &rows, &rows, &y, "x and x_bias");
    fails(floats, Some(&short), &rows, &rows, &y, "x has 252 bytes, but 512");
    fails(halves, Some(&short), &rows, &rows, &y, "x has 252 bytes, but 256");
    fails(None, Some(&rows), &rows, &rows, &y, "x and x_bias");
    fails(None, None, &shifted, &rows, &y, "residual does not start");
    fails(floats, Some(&shifted), &rows, &rows, &y, "x does not start");
    fails(None, None, &rows, &short, &y, "weight has 252 bytes, but 256");
    fails(None, None, &rows, &rows, &Vectors::f32(&mut arena, "y", 64, 3).unwrap(), "residual has 528 bytes");
    fails(None, None, &rows, &rows, &Vectors::f32(&mut arena, "y", 32, 2).unwrap(), "rows of 32");
    fails(None, None, &rows, &rows, &Vectors::f16(&mut arena, "y", 64, 2).unwrap(), "f16");
}
