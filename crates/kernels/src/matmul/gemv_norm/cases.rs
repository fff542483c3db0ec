//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::GemvNorm;
use crate::{
    Activations,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    matmul::{
        common::reference::Value,
        gemv::{
            cases::PrologueInputs,
            policy::{Prologue, has_prologue},
        },
    },
    vectors::compare::{compare, poisoned},
};

/// Rows, K and prologue: less than a quad more than one; the 270M's; several threads per row, with a factor.
const SHAPES: [(usize, usize, Prologue); 4] = [
    (3, 160, Prologue::Norm),
    (8, 640, Prologue::AddAndNorm { partials: 1, post_norm: true, scaled: false }),
    (5, 5376, Prologue::AddAndNorm { partials: 3, post_norm: true, scaled: false }),
    (4, 1152, Prologue::AddAndNorm { partials: 2, post_norm: false, scaled: true }),
];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let possible = |k| caps.tier() >= Some(Tier::T1) && has_prologue(caps, k, 1);
    let shapes = SHAPES.into_iter().filter(|(_, k, _)| possible(*k));
    let case = |(rows, k, prologue)| {
        let name = format!("{rows} × {k}, {prologue:?}");
        Case::new(name, Tier::T1, move |device| run(device, rows, k, prologue))
    };
    shapes.map(case).collect()
}

fn run(device: &Device, rows: usize, k: usize, prologue: Prologue) -> Result<Comparison> {
    let mut random = Random::new((rows * 7 + k) as u64);
    let mut arena = arena(device);
    let inputs = PrologueInputs::new(&mut random, prologue, k, rows);
    let stream = Output::new(&mut arena, k * rows)?;
    let norm = inputs.norm(&mut arena, stream.buffer.slice(0..(k * rows * 4) as u64)?)?;
    let y = poisoned(&mut arena, Activations::Int16, k, rows)?;
    let factors = Output::new(&mut arena, rows)?;
    let mut recorder = device.recorder()?;
    let kernel = GemvNorm::new(device, prologue, k)?;
    kernel.record(&mut recorder, "gemv_norm", &norm, &y, &factors.buffer.slice(0..rows as u64 * 4)?)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    inputs.check_stream(&stream, &mut comparison)?;
    let mut want = vec![];
    for (row, factor) in factors.read_f32(&mut comparison)?.into_iter().enumerate() {
        // The norm has the weight and the factor; what is written, the weight alone.
        let (normed, stream) = inputs.reference(row);
        let squares: f64 = stream.iter().map(|value| value * value).sum();
        let expected = 1.0 / (squares / k as f64 + f64::from(PrologueInputs::EPSILON)).sqrt();
        comparison.close(|| format!("factor of row {row}"), f64::from(factor), expected, 1e-5 * expected);
        want.extend(normed.iter().map(|value| {
            let value = value / expected;
            Value { value, allowed: 1e-5 * (1.0 + value.abs()) }
        }));
    }
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}
