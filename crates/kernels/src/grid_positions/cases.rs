//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{GridPositions, Operands, Table, reference};
use crate::case::{Case, Comparison, Output, POISON, Random, TIMEOUT, arena};

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    // Positions of the tables, and length: one vec4; idle threads; the encoders' lengths, in several workgroups per row.
    let sizes = [(1, 1, 4), (3, 5, 260), (7, 4, 768), (2, 9, 1152)];
    let case = |(columns, rows, n)| {
        let name = format!("{columns} × {rows} positions of {n}");
        Case::new(name, Tier::T0, move |device| run(device, columns, rows, n))
    };
    sizes.into_iter().map(case).collect()
}

/// Every position of a grid in reverse, positions past the end of either table, then an inactive row.
fn run(device: &Device, columns: usize, rows: usize, n: usize) -> Result<Comparison> {
    let mut random = Random::new((columns * 131 + rows * 17 + n) as u64);
    let mut floats = |count: usize| (0..count).map(|_| random.signed()).collect::<Vec<f32>>();
    let (column_table, row_table) = (floats(columns * n), floats(rows * n));
    let grid = (0..rows as u32).flat_map(|y| (0..columns as u32).map(move |x| [x, y]));
    let past = [[columns as u32, 0], [0, rows as u32], [u32::MAX; 2], [0, 0]];
    let positions: Vec<[u32; 2]> = grid.rev().chain(past).collect();
    let active = positions.len() - 1;

    let mut arena = arena(device);
    let output = Output::new(&mut arena, positions.len() * n)?;
    let table = |embeddings: gpu::View, positions| Table { embeddings, positions };
    let operands = Operands {
        columns: table(arena.buffer_from("columns", &column_table)?.view(), columns),
        rows: table(arena.buffer_from("rows", &row_table)?.view(), rows),
        positions: arena.buffer_from("positions", &positions)?.view(),
        active: arena.buffer_from("active", &[active as u32])?.view(),
        residual: output.buffer.slice(0..(positions.len() * n * 4) as u64)?,
    };
    let mut recorder = device.recorder()?;
    GridPositions::new(device)?.record(&mut recorder, "positions", positions.len(), n, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let got = output.read(&mut comparison)?;
    for (row, (got, at)) in got.chunks(n).zip(&positions).enumerate() {
        if row >= active {
            comparison.equal(|| format!("row {row}, untouched"), &got, &&vec![POISON; n][..]);
            continue;
        }
        for (k, (got, want)) in got.iter().zip(reference::row(&column_table, &row_table, n, *at)).enumerate()
        {
            let got = f64::from(f32::from_bits(*got));
            // One rounding to f32.
            let allowed = 2.0_f64.powi(-23) * want.abs();
            comparison.close(|| format!("value {k} of row {row} at {at:?}"), got, want, allowed);
        }
    }
    Ok(comparison)
}
