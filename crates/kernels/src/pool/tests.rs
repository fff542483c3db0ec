use gpu::View;

use super::{Operands, Pool, Shape};
use crate::{Activations, Vectors, case::arena};

const SHAPE: Shape = Shape { columns: 4, rows: 2, side: 2, n: 16, epsilon: 1e-6, output: Activations::F32 };

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn the_encoder_of_gemma_3_has_256_rows_per_image() {
    assert_eq!(Shape { columns: 64, rows: 64, side: 4, ..SHAPE }.rows_per_image(), 256);
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected = |shape| Pool::new(&device, shape).err().expect("rejected").to_string();
    assert!(rejected(Shape { n: 18, ..SHAPE }).contains("multiple of 4"));
    assert!(rejected(Shape { side: 0, ..SHAPE }).contains("squares of 0"));
    assert!(rejected(Shape { columns: 5, ..SHAPE }).contains("grid of 5 × 2"));
    assert!(rejected(Shape { rows: 0, ..SHAPE }).contains("grid of 4 × 0"));
    assert!(rejected(Shape { output: Activations::Int8, ..SHAPE }).contains("not int8"));

    let mut arena = arena(&device);
    let kernel = Pool::new(&device, SHAPE).unwrap();
    let rows = arena.buffer("rows", 8 * 16 * 4 + 16).unwrap().view();
    let active = arena.buffer("active", 4).unwrap().view();
    let mut recorder = device.recorder().unwrap();
    let mut record = |x: &View, x_stride, weight: &View, y: &Vectors| {
        let operands = Operands { x: x.clone(), x_stride, weight: weight.clone(), active: active.clone(), y };
        kernel.record(&mut recorder, "pool", &operands).map_err(|error| error.to_string())
    };
    let y = Vectors::f32(&mut arena, "y", 16, 2).unwrap();
    record(&rows, 16, &rows, &y).unwrap();
    let mut fails = |x: &View, x_stride, weight: &View, y: &Vectors, with: &str| {
        let error = record(x, x_stride, weight, y).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    fails(&rows, 20, &rows, &y, "x has 528 bytes");
    fails(&rows, 12, &rows, &y, "a stride of 12");
    fails(&rows, 18, &rows, &y, "a stride of 18");
    fails(&rows.slice(4..528).unwrap(), 16, &rows, &y, "x does not start");
    fails(&rows, 16, &rows.slice(0..48).unwrap(), &y, "weight has 48 bytes");
    fails(&rows, 16, &rows, &Vectors::f32(&mut arena, "y", 16, 3).unwrap(), "whole images of 2");
    fails(&rows, 16, &rows, &Vectors::f32(&mut arena, "y", 32, 2).unwrap(), "rows of 32");
    fails(&rows, 16, &rows, &Vectors::f16(&mut arena, "y", 16, 2).unwrap(), "f16");
}
