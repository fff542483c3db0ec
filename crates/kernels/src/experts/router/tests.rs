use gpu::{Tier, known};

use super::{AddShape, MAX_EXPERTS, Router, Shape, cases, policy};
use crate::Activations;

const SHAPE: Shape =
    Shape { k: 8, experts: 4, per_token: 2, renormalize: true, scaled: false, epsilon: 1e-6, add: None };

fn route(
    device: &gpu::Device,
    shape: Shape,
    x: &[f32],
    w: &[f32],
    scales: Option<&[f32]>,
) -> gpu::Result<(crate::case::Comparison, Vec<u32>, Vec<f32>)> {
    let plan = policy::plan(device.caps(), 1);
    cases::route(device, plan, shape, &cases::Inputs { x, w, scales }, None)
}

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn nan_and_infinity_select_valid_experts_with_nan_weights() {
    let Some(device) = testkit::cpu_device() else { return };
    let w: Vec<f32> = (0..32).map(|i| i as f32 * 0.1).collect();
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
        let mut x = vec![1.0; 16];
        x[3] = bad;
        let (comparison, selected, weights) = route(&device, SHAPE, &x, &w, None).unwrap();
        assert!(comparison.first_mismatch.is_none(), "{comparison:?}");
        assert!(selected[..4].iter().all(|expert| *expert < 4), "{selected:?}");
        assert!(selected[0] != selected[1] && weights[0].is_nan(), "{selected:?} {weights:?}");
        assert!((weights[2] + weights[3] - 1.0).abs() < 1e-6, "the other row is not affected: {weights:?}");
    }
}

#[test]
fn equal_scores_select_the_first_experts() {
    let Some(device) = testkit::cpu_device() else { return };
    let (_, selected, weights) = route(&device, SHAPE, &[1.0; 8], &[0.5; 32], None).unwrap();
    assert_eq!((&selected[..2], &weights[..2]), (&[0, 1][..], &[0.5, 0.5][..]));
}

#[test]
fn scales_go_with_their_shape() {
    let Some(device) = testkit::cpu_device() else { return };
    let scaled = Shape { scaled: true, ..SHAPE };
    let scales = [4.0, 3.0, 2.0, 1.0];
    let (_, selected, weights) = route(&device, scaled, &[1.0; 8], &[0.5; 32], Some(&scales)).unwrap();
    assert_eq!((&selected[..2], &weights[..2]), (&[0, 1][..], &[2.0, 1.5][..]));
    let error = |shape, scales| route(&device, shape, &[1.0; 8], &[0.5; 32], scales).err().map(|_| ());
    error(scaled, None).expect("no scales");
    error(scaled, Some(&scales[..3])).expect("too few scales");
    error(SHAPE, Some(&scales)).expect("scales of a shape without");
}

#[test]
fn plans_fit_the_device() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
        for (tier, rows) in tiers.flat_map(|tier| [1, 3, 4, 47, 48, 2048].map(|rows| (tier, rows))) {
            let plan = policy::at_tier(&caps, rows, tier);
            assert!(plan.threads <= caps.max_threads, "{plan:?}");
            let sums = plan.rows * (plan.expert_tile + 1);
            let subgroups = plan.threads.div_ceil(plan.threads_per_partial);
            let selection = if tier >= Tier::T1 { subgroups * 32 } else { 2 * MAX_EXPERTS as u32 + 16 };
            let words = sums * (subgroups + 1) + selection + 1;
            assert!(words * 4 <= caps.max_shared_bytes.min(16384), "{plan:?}");
            if tier >= Tier::T1 {
                assert!(plan.threads.is_multiple_of(caps.max_subgroup_size), "{plan:?}");
            }
        }
    }
}

#[test]
fn plans_of_larger_gpus_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    let threads_per_partial = device.caps().min_subgroup_size;
    for (caps, rows) in
        [(known::h200(), 1), (known::h200(), 5), (known::radeon_780m(), 3), (known::h200(), 50)]
    {
        let plan = policy::Plan { threads_per_partial, ..policy::plan(&caps, rows) };
        for add in [None, Some(AddShape { partials: 2, output: Activations::Int16 })] {
            let shape = Shape { k: 2048, experts: 128, per_token: 8, add, ..SHAPE };
            let comparison = cases::run(&device, plan, rows, shape).unwrap();
            assert!(comparison.passed(), "{plan:?}, {add:?}: {:?}", comparison.first_mismatch);
        }
    }
}

#[test]
fn impossible_selections_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    for wrong in [
        Shape { per_token: 5, ..SHAPE },
        Shape { per_token: 0, ..SHAPE },
        Shape { k: 6, ..SHAPE },
        Shape { experts: 513, ..SHAPE },
        Shape { experts: 64, per_token: 17, ..SHAPE },
        Shape { add: Some(AddShape { partials: 0, output: Activations::F32 }), ..SHAPE },
        Shape { add: Some(AddShape { partials: 1, output: Activations::Int8 }), ..SHAPE },
        Shape { add: Some(AddShape { partials: 1, output: Activations::Int16 }), ..SHAPE },
    ] {
        assert!(Router::new(&device, wrong, 1).is_err(), "{wrong:?}");
    }
}
