//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{
    Operands, Router, Shape,
    policy::{self, Plan},
    reference,
};
use crate::{
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    experts::NO_EXPERT,
};

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    tiers.flat_map(cases_at).collect()
}

fn cases_at(tier: Tier) -> Vec<Case> {
    let shape = |k, experts, per_token, renormalize| {
        let (scaled, epsilon) = (false, 1e-6);
        Shape { k, experts, per_token, renormalize, scaled, epsilon }
    };
    let mut list = Vec::new();
    for rows in [1, 3, 35] {
        for shape in [shape(2048, 128, 8, true), shape(260, 37, 4, false), shape(64, 4, 4, true)] {
            list.push(case(tier, rows, shape));
        }
    }
    list.push(case(tier, 260, shape(64, 128, 8, true)));
    list.push(case(tier, 2, shape(2816, 512, 16, false)));
    list.push(case(tier, 1, shape(128, 1, 1, true)));
    list.push(case(tier, 3, Shape { scaled: true, ..shape(260, 37, 4, true) }));
    list.push(case(tier, 35, Shape { scaled: true, ..shape(2816, 128, 8, true) }));
    list
}

fn case(tier: Tier, rows: usize, shape: Shape) -> Case {
    let Shape { k, experts, per_token, renormalize, scaled, .. } = shape;
    let name = format!(
        "{per_token} of {experts} experts, {rows} rows of {k}{}{}",
        if renormalize { ", renormalised" } else { "" },
        if scaled { ", scaled" } else { "" }
    );
    Case::new(name, tier, move |device| run(device, policy::at_tier(device.caps(), rows, tier), rows, shape))
}

pub(super) fn run(device: &Device, plan: Plan, rows: usize, shape: Shape) -> Result<Comparison> {
    let Shape { k, experts, .. } = shape;
    let mut random = Random::new((rows * 7 + k + experts) as u64);
    let x: Vec<f32> = (0..rows * k).map(|_| random.signed() * 3.0).collect();
    let w: Vec<f32> = (0..experts * k).map(|_| random.signed() * 0.1).collect();
    let scales: Vec<f32> = (0..experts).map(|_| 1.0 + random.signed()).collect();
    let scales = shape.scaled.then_some(&scales[..]);
    let (mut comparison, chosen, weights) = route(device, plan, shape, &x, &w, scales)?;
    for row in 0..rows {
        let scores = reference::scores(&shape, &x[row * k..][..k], &w);
        let want = reference::choose(&shape, &scores, scales);
        for (slot, (expert, weight)) in want.into_iter().enumerate() {
            let at = row * shape.per_token + slot;
            let got = chosen[at];
            // Two scores may be too close for f32 to order them.
            let close =
                scores.get(got as usize).is_some_and(|score| (score - scores[expert as usize]).abs() < 1e-5);
            comparison.equal(
                || format!("expert {slot} of row {row}, {got} instead of {expert}"),
                &close,
                &true,
            );
            let allowed = 2e-5 * weight.abs() + 1e-9;
            comparison.close(|| format!("weight {slot} of row {row}"), weights[at].into(), weight, allowed);
        }
    }
    Ok(comparison)
}

/// Routes rows, and one inactive row more.
pub(super) fn route(
    device: &Device,
    plan: Plan,
    shape: Shape,
    x: &[f32],
    w: &[f32],
    scales: Option<&[f32]>,
) -> Result<(Comparison, Vec<u32>, Vec<f32>)> {
    let rows = x.len() / shape.k;
    let kernel = Router::with_plan(device, shape, plan)?;
    let mut arena = arena(device);
    let outputs = (rows + 1) * shape.per_token;
    let [chosen, weights] = [Output::new(&mut arena, outputs)?, Output::new(&mut arena, outputs)?];
    let inactive = vec![0.0; shape.k];
    let operands = Operands {
        x: arena.buffer_from("x", &[x, &inactive].concat())?.view(),
        w: arena.buffer_from("w", w)?.view(),
        scales: match scales {
            Some(scales) => Some(arena.buffer_from("scales", scales)?.view()),
            None => None,
        },
        active: arena.buffer_from("active", &[rows as u32])?.view(),
        scratch: arena
            .buffer_from("scratch", &vec![0_u32; kernel.scratch_bytes(rows + 1).div_ceil(4) as usize])?
            .view(),
        chosen: chosen.buffer.view(),
        weights: weights.buffer.view(),
    };
    let mut recorder = device.recorder()?;
    // Twice: the counters must be zero again.
    kernel.record(&mut recorder, "router", rows + 1, &operands)?;
    kernel.record(&mut recorder, "router", rows + 1, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let (chosen, weights) = (chosen.read(&mut comparison)?, weights.read_f32(&mut comparison)?);
    let last = rows * shape.per_token;
    comparison.equal(
        || "experts of the inactive row".into(),
        &chosen[last..].to_vec(),
        &vec![NO_EXPERT; shape.per_token],
    );
    Ok((comparison, chosen, weights))
}
