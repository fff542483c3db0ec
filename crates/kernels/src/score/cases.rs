//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{NO_TARGET, Operands, Score, policy, reference};
use crate::case::{Case, Comparison, Output, Random, TIMEOUT, arena};

/// The distribution of a case's logits.
#[derive(Clone, Copy, Debug)]
enum Logits {
    /// Uniform between plus and minus this.
    Spread(f32),
    /// All the same.
    Flat(f32),
}

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (rows, vocab) in [(1, 1), (3, 7), (2, 1000), (5, 1003), (2, 9001)] {
            for logits in [Logits::Spread(3.0), Logits::Spread(100.0), Logits::Flat(-17.3)] {
                list.push(case(tier, rows, vocab, logits));
            }
        }
        // Gemma's vocabulary, with many relevant terms and with few.
        list.push(case(tier, 1, 262_144, Logits::Spread(10.0)));
        list.push(case(tier, 1, 262_144, Logits::Spread(100.0)));
        list.push(case(tier, 1, 262_144, Logits::Flat(100.0)));
    }
    list
}

fn case(tier: Tier, rows: usize, vocab: usize, logits: Logits) -> Case {
    Case::new(format!("{rows} × {vocab}, {logits:?}"), tier, move |device| {
        run(device, tier, rows, vocab, logits)
    })
}

fn run(device: &Device, tier: Tier, rows: usize, vocab: usize, kind: Logits) -> Result<Comparison> {
    let mut random = Random::new((rows * 7 + vocab) as u64);
    let mut logits: Vec<f32> = (0..rows * vocab)
        .map(|_| match kind {
            Logits::Spread(spread) => random.signed() * spread,
            Logits::Flat(logit) => logit,
        })
        .collect();
    if vocab > 100 {
        // Minus infinity is valid: it adds nothing.
        logits[50] = f32::NEG_INFINITY;
    }
    let targets: Vec<u32> =
        (0..rows).map(|row| if row == 2 { NO_TARGET } else { (row * 31 % vocab) as u32 }).collect();
    let got = score(device, tier, vocab, &logits, &targets)?;
    let mut comparison = got.0;
    for (row, target) in targets.iter().enumerate() {
        let got = f64::from(got.1[row]);
        match *target {
            NO_TARGET => comparison.equal(|| format!("row {row}, no target"), &got, &0.0),
            target => {
                let want = reference::nll(&logits[row * vocab..][..vocab], target);
                // Plus half an f32 step, which matters only for the largest scores.
                comparison.close(|| format!("row {row}"), got, want, 1e-5 + want.abs() * 2.0_f64.powi(-24));
            }
        }
    }
    Ok(comparison)
}

/// Scores rows, one of which is inactive: it must stay unchanged.
pub(super) fn score(
    device: &Device,
    tier: Tier,
    vocab: usize,
    logits: &[f32],
    targets: &[u32],
) -> Result<(Comparison, Vec<f32>)> {
    let rows = targets.len();
    let mut arena = arena(device);
    let with_inactive: Vec<f32> = logits.iter().copied().chain(vec![0.0; vocab]).collect();
    let output = Output::new(&mut arena, rows)?;
    let operands = Operands {
        active: arena.buffer_from("active", &[rows as u32])?.view(),
        logits: arena.buffer_from("logits", &with_inactive)?.view(),
        targets: arena.buffer_from("targets", &[targets, &[0]].concat())?.view(),
        nll: output.buffer.view(),
    };
    let mut recorder = device.recorder()?;
    Score::with_plan(device, vocab, policy::at_tier(device.caps(), tier))?.record(
        &mut recorder,
        "score",
        rows + 1,
        &operands,
    )?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let nll = output.read_f32(&mut comparison)?;
    Ok((comparison, nll))
}
