//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};
use half::f16;

use super::{Operands, PatchValues, TABLE, reference};
use crate::{
    Activations, F16_UNIT,
    case::{Case, Comparison, Output, POISON, Random, TIMEOUT, arena},
    f16_at,
};

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    // One word; channel after channel and side by side; several workgroups per row.
    let sizes = [(1, 4, 1), (5, 588, 196), (7, 768, 1), (3, 6912, 1)];
    let outputs = [Activations::F32, Activations::F16];
    let case = |((rows, k, run), output)| {
        let name = format!("{rows} × {k}, runs of {run}, to {output}");
        Case::new(name, Tier::T0, move |device| run_case(device, rows, k, run, output))
    };
    sizes.into_iter().flat_map(|size| outputs.map(|output| (size, output))).map(case).collect()
}

fn run_case(device: &Device, rows: usize, k: usize, run: usize, output: Activations) -> Result<Comparison> {
    let mut random = Random::new((rows * 131 + k) as u64);
    let table: Vec<f32> = (0..TABLE).map(|_| random.signed()).collect();
    let bytes: Vec<u8> = (0..rows * k).map(|_| ((random.signed() + 1.0) * 127.9) as u8).collect();
    let stride = k + 8;
    let to_f16 = output == Activations::F16;
    let words = if to_f16 { rows * stride / 2 } else { rows * stride };
    let mut arena = arena(device);
    let y = Output::new(&mut arena, words)?;
    let operands = Operands {
        bytes: arena.buffer_from("bytes", &bytes)?.view(),
        table: arena.buffer_from("table", &table)?.view(),
        run,
        y: y.buffer.slice(0..words as u64 * 4)?,
        y_stride: stride,
    };
    let mut recorder = device.recorder()?;
    PatchValues::new(device, output)?.record(&mut recorder, "patch values", rows, k, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let got = y.read(&mut comparison)?;
    for row in 0..rows {
        for at in 0..stride {
            let name = || format!("value {at} of row {row}");
            let want = (at < k).then(|| reference::value(&table, run, at, bytes[row * k + at]));
            if to_f16 {
                let index = row * stride + f16_at(at);
                let half = (got[index / 2] >> (16 * (index % 2))) as u16;
                match want {
                    // A whole ULP where a device rounds towards zero.
                    Some(want) => {
                        let value = f64::from(f16::from_bits(half)) * f64::from(F16_UNIT);
                        let want = f64::from(want);
                        comparison.close(name, value, want, want.abs() / 1024.0 + 1e-5);
                    }
                    None => comparison.equal(name, &half, &((POISON >> (16 * (index % 2))) as u16)),
                }
            } else {
                let want = want.map_or(POISON, f32::to_bits);
                comparison.equal(name, &got[row * stride + at], &want);
            }
        }
    }
    Ok(comparison)
}
