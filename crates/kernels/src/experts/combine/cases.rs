//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{Combine, Operands, Shape, max_length, reference};
use crate::case::{Case, Comparison, Output, Random, TIMEOUT, arena};

/// Rows, row length, partial sums of the dense block, experts per token (one is not weighted): fewer values than threads, a length that is no
/// multiple of them, Gemma 4 26B-A4B.
const SHAPES: [(usize, usize, u32, u32); 4] =
    [(1, 64, 1, 2), (3, 1000, 3, 1), (2, 2816, 1, 8), (1, 2816, 4, 8)];

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (rows, n, dense_partials, per_token) in
            SHAPES.into_iter().filter(|shape| shape.1 <= max_length(caps))
        {
            let shape = Shape {
                n,
                dense_partials,
                expert_partials: per_token,
                weighted: per_token > 1,
                epsilon: 1e-6,
            };
            let name = format!("{rows} × {n}, {dense_partials} + {per_token} partials");
            list.push(Case::new(name, tier, move |device| compare(device, shape, rows, tier)));
        }
    }
    list
}

/// Random rows, the last of which is not active.
fn compare(device: &Device, shape: Shape, rows: usize, tier: Tier) -> Result<Comparison> {
    let Shape { n, dense_partials, expert_partials: per_token, weighted, epsilon } = shape;
    let (dense_row, expert_row) = (n * dense_partials as usize, n * per_token as usize);
    let mut random = Random::new((rows * 41 + n) as u64);
    let mut floats =
        |count: usize, scale: f32| -> Vec<f32> { (0..count).map(|_| random.signed() * scale).collect() };
    let (dense, experts) = (floats((rows + 1) * dense_row, 20.0), floats((rows + 1) * expert_row, 0.3));
    let mut weights = floats((rows + 1) * per_token as usize, 1.0);
    if !weighted {
        weights.fill(1.0);
    }
    let norms = [floats(n, 1.5), floats(n, 2.5)];
    let mut arena = arena(device);
    let output = Output::new(&mut arena, (rows + 1) * n)?;
    let untouched: Vec<u32> = output.buffer.read_vec()?;
    let operands = Operands {
        dense: arena.buffer_from("dense", &dense)?.view(),
        experts: arena.buffer_from("experts", &experts)?.view(),
        expert_weights: match weighted {
            true => Some(arena.buffer_from("expert_weights", &weights)?.view()),
            false => None,
        },
        dense_norm: arena.buffer_from("dense_norm", &norms[0])?.view(),
        experts_norm: arena.buffer_from("experts_norm", &norms[1])?.view(),
        active: arena.buffer_from("active", &[rows as u32])?.view(),
        y: output.buffer.slice(0..((rows + 1) * n * 4) as u64)?,
    };
    let mut recorder = device.recorder()?;
    Combine::at_tier(device, shape, tier)?.record(&mut recorder, "combine", rows + 1, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let got = output.read(&mut comparison)?;
    for row in 0..rows {
        let want = reference::combine(
            &dense[row * dense_row..][..dense_row],
            &experts[row * expert_row..][..expert_row],
            &weights[row * per_token as usize..][..per_token as usize],
            [&norms[0], &norms[1]],
            epsilon.into(),
        );
        for (i, want) in want.into_iter().enumerate() {
            let got = f32::from_bits(got[row * n + i]).into();
            comparison.close(|| format!("row {row}, {i}"), got, want, 4e-6 * (want.abs() + 1.0));
        }
    }
    comparison.equal(|| "inactive row".to_string(), &&got[rows * n..], &&untouched[rows * n..(rows + 1) * n]);
    Ok(comparison)
}
