//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{Operands, SOFT_TOKEN, SoftTokens, reference};
use crate::case::{Case, Comparison, Output, Random, TIMEOUT, arena};

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    // One value; odd; several workgroups per row.
    let sizes = [(1, 1), (3, 259), (5, 2560)];
    let case = |(soft_rows, hidden)| {
        let name = format!("{soft_rows} × {hidden}");
        Case::new(name, Tier::T0, move |device| run(device, soft_rows, hidden))
    };
    sizes.into_iter().map(case).collect()
}

/// Every soft token in reverse, between tokens of the vocabulary, and two indices past the end; then an inactive row.
fn run(device: &Device, soft_rows: usize, hidden: usize) -> Result<Comparison> {
    let mut random = Random::new((soft_rows * 131 + hidden) as u64);
    let soft: Vec<u32> = (0..soft_rows * hidden).map(|_| random.signed().to_bits()).collect();
    let past = soft_rows as u32;
    let tokens: Vec<u32> = (0..=past)
        .rev()
        .flat_map(|index| [SOFT_TOKEN | index, index])
        .chain([u32::MAX, SOFT_TOKEN - 1, SOFT_TOKEN])
        .collect();
    let rows = tokens.len();
    let active = rows - 1;

    let mut arena = arena(device);
    let output = Output::new(&mut arena, rows * hidden)?;
    let untouched: Vec<u32> = output.buffer.read_vec()?;
    let operands = Operands {
        soft: arena.buffer_from("soft", &soft)?.view(),
        active: arena.buffer_from("active", &[active as u32])?.view(),
        tokens: arena.buffer_from("tokens", &tokens)?.view(),
        residual: output.buffer.slice(0..(rows * hidden * 4) as u64)?,
    };
    let mut recorder = device.recorder()?;
    SoftTokens::new(device)?.record(&mut recorder, "soft tokens", rows, hidden, soft_rows, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let got = output.read(&mut comparison)?;
    for (row, token) in tokens.iter().enumerate() {
        let want = reference::soft_token(&soft, hidden, *token).filter(|_| row < active);
        let at = || format!("row {row}, token {token:#x}");
        comparison.equal(at, &&got[row * hidden..][..hidden], &want.unwrap_or(&untouched[..hidden]));
    }
    Ok(comparison)
}
