//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{
    Add, AddShape, Operands, Router, Shape,
    policy::{self, Plan},
    reference,
};
use crate::{
    Activations,
    case::{Case, Comparison, Output, POISON, Random, TIMEOUT, arena},
    experts::NO_EXPERT,
    matmul::common::reference::Value,
    norm::reference as norm_reference,
    vectors::compare::{compare, poisoned},
};

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    tiers.flat_map(cases_at).collect()
}

fn cases_at(tier: Tier) -> Vec<Case> {
    let shape = |k, experts, per_token, renormalize| {
        let (scaled, epsilon, add) = (false, 1e-6, None);
        Shape { k, experts, per_token, renormalize, scaled, epsilon, add }
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
    if tier >= Tier::T1 {
        let add = |partials, output| Some(AddShape { partials, output });
        for (rows, partials, output) in
            [(1, 1, Activations::Int16), (3, 2, Activations::F32), (5, 4, Activations::F16)]
        {
            // With a padded quad, with several vec4s per thread, and Qwen's.
            for k in [144, 2048] {
                list.push(case(tier, rows, Shape { add: add(partials, output), ..shape(k, 37, 4, true) }));
            }
        }
    }
    list
}

fn case(tier: Tier, rows: usize, shape: Shape) -> Case {
    let Shape { k, experts, per_token, renormalize, scaled, add, .. } = shape;
    let name = format!(
        "{per_token} of {experts} experts, {rows} rows of {k}{}{}{}",
        if renormalize { ", renormalised" } else { "" },
        if scaled { ", scaled" } else { "" },
        add.map_or(String::new(), |add| format!(", adding {} partial sums, to {}", add.partials, add.output))
    );
    Case::new(name, tier, move |device| run(device, policy::at_tier(device.caps(), rows, tier), rows, shape))
}

pub(super) fn run(device: &Device, plan: Plan, rows: usize, shape: Shape) -> Result<Comparison> {
    let Shape { k, experts, .. } = shape;
    let mut random = Random::new((rows * 7 + k + experts) as u64);
    // Multiples of a power of two, so that sums are exact.
    let mut values = |count: usize| -> Vec<f32> {
        (0..count).map(|_| (random.signed() * 3072.0).round() / 1024.0).collect()
    };
    let partials = shape.add.map_or(0, |add| add.partials as usize);
    let (x, block, norm_weight) = (values(rows * k), values((rows + 1) * partials * k), values(k));
    let w: Vec<f32> = (0..experts * k).map(|_| random.signed() * 0.1).collect();
    let scales: Vec<f32> = (0..experts).map(|_| 1.0 + random.signed()).collect();
    let scales = shape.scaled.then_some(&scales[..]);
    let mut arena = arena(device);
    let stream = Output::new(&mut arena, (rows + 1) * k)?;
    let y = shape.add.map(|add| poisoned(&mut arena, add.output, k, rows + 1)).transpose()?;
    let add = match &y {
        None => None,
        Some(y) => Some(Add {
            block: arena.buffer_from("block", &block)?.view(),
            stream: stream.buffer.slice(0..((rows + 1) * k * 4) as u64)?,
            weight: arena.buffer_from("weight", &norm_weight)?.view(),
            y,
        }),
    };
    let inputs = Inputs { x: &x, w: &w, scales };
    let (mut comparison, selected, weights) = route(device, plan, shape, &inputs, add)?;
    // What is routed.
    let x: Vec<f32> = (0..rows * k)
        .map(|i| {
            let partial = |p: usize| block[(i / k * partials + p) * k + i % k];
            x[i] + (0..partials).map(partial).sum::<f32>()
        })
        .collect();
    for row in 0..rows {
        let scores = reference::scores(&shape, &x[row * k..][..k], &w);
        let want = reference::select(&shape, &scores, scales);
        for (slot, (expert, weight)) in want.into_iter().enumerate() {
            let at = row * shape.per_token + slot;
            let got = selected[at];
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
    if let Some(y) = y {
        let got = stream.read_f32(&mut comparison)?;
        comparison.equal(|| "the stream".into(), &&got[..rows * k], &&x[..]);
        let is_untouched = got[rows * k..].iter().all(|value| value.to_bits() == POISON);
        comparison.equal(|| "whether the inactive row is untouched".into(), &is_untouched, &true);
        let (want, _) = norm_reference::norm(&norm_reference::Inputs {
            x: &x,
            post_weight: None,
            residual: None,
            residual_scale: None,
            weight: &norm_weight,
            epsilon: shape.epsilon,
        });
        let want: Vec<Value> =
            want.iter().map(|want| Value { value: *want, allowed: 2e-6 * want.abs() + 1e-9 }).collect();
        compare(&mut comparison, &want, y)?;
    }
    Ok(comparison)
}

/// What is routed.
pub(super) struct Inputs<'a> {
    pub x: &'a [f32],
    pub w: &'a [f32],
    pub scales: Option<&'a [f32]>,
}

/// Routes rows, and one inactive row more.
pub(super) fn route(
    device: &Device,
    plan: Plan,
    shape: Shape,
    inputs: &Inputs<'_>,
    add: Option<Add<'_>>,
) -> Result<(Comparison, Vec<u32>, Vec<f32>)> {
    let Inputs { x, w, scales } = *inputs;
    let rows = x.len() / shape.k;
    let kernel = Router::with_plan(device, shape, plan)?;
    let mut arena = arena(device);
    let outputs = (rows + 1) * shape.per_token;
    let [selected, weights] = [Output::new(&mut arena, outputs)?, Output::new(&mut arena, outputs)?];
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
        selected: selected.buffer.view(),
        weights: weights.buffer.view(),
        add,
    };
    let mut recorder = device.recorder()?;
    // Twice: the counters must be zero again.
    kernel.record(&mut recorder, "router", rows + 1, &operands)?;
    kernel.record(&mut recorder, "router", rows + 1, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let (selected, weights) = (selected.read(&mut comparison)?, weights.read_f32(&mut comparison)?);
    let last = rows * shape.per_token;
    comparison.equal(
        || "experts of the inactive row".into(),
        &selected[last..].to_vec(),
        &vec![NO_EXPERT; shape.per_token],
    );
    Ok((comparison, selected, weights))
}
