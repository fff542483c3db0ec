use gpu::{Subgroup, Tier, View, known};

use super::{Fusion, Norm, Operands, policy};
use crate::{Activations, Vectors, case::arena};

const PLAIN: Fusion = Fusion {
    post_norm: false,
    residual: false,
    scaled: false,
    output: Activations::F32,
    gather: false,
    partials: 1,
    weighted: false,
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
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
        for n in [1, 32, 640, 1152, 5376, 8192, 100_000] {
            for output in Activations::ALL {
                let fusion = Fusion { output, ..PLAIN };
                let tier = policy::plan(&caps, n, fusion).tier;
                assert!(Some(tier) <= caps.tier());
                let looped = policy::looped(&caps, n, fusion, tier);
                assert!(looped.threads.is_power_of_two() && looped.threads <= caps.max_threads, "{looped:?}");
                assert_eq!(looped.subgroup, Subgroup::Any);
                for tier in [Tier::T0, tier] {
                    let Some(plan) = policy::in_registers(&caps, n, fusion, tier) else { continue };
                    let vec4s = plan.vec4s_per_thread.expect("a plan in registers");
                    assert!((1..=4).contains(&vec4s) && plan.threads <= caps.max_threads, "{plan:?}");
                    assert!((plan.threads * vec4s * 4) as usize >= n, "{plan:?} is too small for {n}");
                    match tier {
                        Tier::T0 => {
                            assert!(plan.threads.is_power_of_two(), "{plan:?}");
                            assert!(
                                matches!(output, Activations::F32 | Activations::F16),
                                "{output} needs shuffles"
                            );
                        }
                        _ => assert!(plan.threads.is_multiple_of(caps.max_subgroup_size), "{plan:?}"),
                    }
                }
            }
        }
    }
    assert_eq!(policy::plan(&known::bare_vulkan_13(), 5376, PLAIN).tier, Tier::T0);
    assert_eq!(policy::plan(&known::h200(), 5376, PLAIN).tier, Tier::T1);
}

#[test]
fn model_rows_are_kept_in_registers() {
    for output in Activations::ALL {
        let fusion = Fusion { output, ..PLAIN };
        for n in [640, 1152, 2560, 3840, 5376] {
            for caps in [known::h200(), known::radeon_780m(), known::mesa_cpu()] {
                assert!(policy::plan(&caps, n, fusion).vec4s_per_thread.is_some(), "{n} to {output}");
            }
        }
        assert_eq!(policy::plan(&known::h200(), 100_000, fusion).vec4s_per_thread, None);
    }
    let plan = policy::plan(&known::h200(), 5376, PLAIN);
    assert_eq!((plan.threads, plan.vec4s_per_thread), (672, Some(2)));
    assert_eq!(policy::plan(&known::h200(), 5374, PLAIN).vec4s_per_thread, None);
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = arena(&device);
    for (output, n) in
        [(Activations::Int8, 48), (Activations::Int16, 40), (Activations::F16, 42), (Activations::F32, 0)]
    {
        assert!(Norm::new(&device, Fusion { output, ..PLAIN }, n, 1e-6).is_err(), "{n} to {output}");
    }
    let plan = policy::in_registers(device.caps(), 64, PLAIN, Tier::T0).unwrap();
    let kernel = Norm::with_plan(&device, PLAIN, 64, 1e-6, plan).unwrap();
    let x = arena.buffer("x", 2 * 64 * 4 + 16).unwrap();
    let weight = arena.buffer("weight", 64 * 4 + 16).unwrap();
    let active = arena.buffer("active", 4).unwrap().view();
    let y = Vectors::f32(&mut arena, "y", 64, 2).unwrap();
    let mut recorder = device.recorder().unwrap();
    let mut record = |x: View, weight: View, y: &Vectors| {
        let (post_weight, residual, rows) = (None, None, None);
        let operands = Operands {
            x,
            partial_weights: None,
            post_weight,
            residual,
            residual_scale: None,
            weight,
            active: active.clone(),
            rows,
            y,
        };
        kernel.record(&mut recorder, "norm", &operands)
    };
    let shifted = |view: &View| view.slice(4..view.len() - 12).unwrap();
    record(x.view(), weight.view(), &y).unwrap();
    record(shifted(&x.view()), weight.view(), &y).expect_err("rows that do not start at a multiple of 16");
    record(x.view(), shifted(&weight.view()), &y)
        .expect_err("a weight that does not start at a multiple of 16");
    record(x.view(), weight.view(), &Vectors::int16(&mut arena, "y", 64, 2).unwrap()).expect_err("int16");
    record(x.view(), weight.view(), &Vectors::f32(&mut arena, "y", 64, 3).unwrap()).expect_err("a short x");
}

#[test]
fn a_residual_scale_goes_with_its_fusion() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = arena(&device);
    let rows = arena.buffer("rows", 64 * 4).unwrap().view();
    let factor = arena.buffer("factor", 4).unwrap().view();
    let active = arena.buffer("active", 4).unwrap().view();
    let y = Vectors::f32(&mut arena, "y", 64, 1).unwrap();
    let mut recorder = device.recorder().unwrap();
    for scaled in [false, true] {
        let kernel = Norm::new(&device, Fusion { residual: true, scaled, ..PLAIN }, 64, 1e-6).unwrap();
        let mut record = |residual_scale| {
            let operands = Operands {
                x: rows.clone(),
                partial_weights: None,
                post_weight: None,
                residual: Some(rows.clone()),
                residual_scale,
                weight: rows.clone(),
                active: active.clone(),
                rows: None,
                y: &y,
            };
            kernel.record(&mut recorder, "norm", &operands)
        };
        assert_eq!(record(Some(factor.clone())).is_ok(), scaled);
        assert_eq!(record(None).is_ok(), !scaled);
    }
    assert!(Norm::new(&device, Fusion { scaled: true, ..PLAIN }, 64, 1e-6).is_err(), "no residual stream");
}
