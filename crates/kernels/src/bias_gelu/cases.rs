//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{BiasGelu, Gelu, reference};
use crate::{
    Activations,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    matmul::common::reference::Value,
    vectors::compare::{compare, poisoned},
};

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    // One vec4; idle threads; none active; the encoder's length with an inactive row; several workgroups per row.
    let sizes = [(1, 4, 1), (3, 260, 3), (2, 64, 0), (3, 4304, 2), (2, 9000, 2)];
    let case = |gelu, output, (rows, n, active)| {
        let exact = if gelu == Gelu::Erf { ", exact" } else { "" };
        let name = format!("{rows} × {n} to {output}, {active} active{exact}");
        Case::new(name, Tier::T0, move |device| run(device, gelu, output, [rows, n, active]))
    };
    let outputs = [Activations::F32, Activations::F16];
    let kinds = outputs.into_iter().flat_map(|output| [(Gelu::Tanh, output), (Gelu::Erf, output)]);
    kinds.flat_map(|(gelu, output)| sizes.map(|size| case(gelu, output, size))).collect()
}

fn run(
    device: &Device,
    gelu: Gelu,
    output: Activations,
    [rows, n, active]: [usize; 3],
) -> Result<Comparison> {
    let mut random = Random::new((rows * n) as u64);
    // From tiny to where their exponential far exceeds the range of f32.
    let scales = [1e-4, 1.0, 3.0, 10.0, 1e4];
    let mut x: Vec<f32> = (0..rows * n).map(|i| random.signed() * scales[i % scales.len()]).collect();
    let bias: Vec<f32> = (0..n).map(|_| random.signed()).collect();
    // Out of the range of f16, and a NaN.
    x[0] = 4e6;
    x[n / 2] = f32::NAN;
    let x = x;
    let mut arena = arena(device);
    let y = poisoned(&mut arena, output, n, rows)?;
    let (input, biases) = (arena.buffer_from("x", &x)?, arena.buffer_from("bias", &bias)?);
    let count = arena.buffer_from("active", &[active as u32])?;
    let mut recorder = device.recorder()?;
    let kernel = BiasGelu::new(device, gelu, output, n)?;
    kernel.record(&mut recorder, "bias gelu", &input.view(), &biases.view(), &y, &count.view())?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let terms = x.iter().zip(bias.iter().cycle()).take(active * n);
    let want: Vec<Value> = terms.map(|(x, bias)| reference::bias_gelu(gelu, *x, *bias)).collect();
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}
