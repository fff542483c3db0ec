use gpu::{Tier, known};

use super::{Operands, Score, cases, policy};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn nan_logits_give_nan_scores() {
    let Some(device) = testkit::cpu_device() else { return };
    let good = [1.0, 2.0, 3.0, 4.0, 5.0];
    for tier in [Tier::T0, Tier::T1] {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let logits = [[1.0, 2.0, bad, 4.0, 5.0], good, good].concat();
            // The last row's target is past the vocabulary.
            let (comparison, nll) = cases::score(&device, tier, 5, &logits, &[0, 0, 5]).unwrap();
            assert!(comparison.passed());
            assert!(nll[0].is_nan() && nll[1].is_finite() && nll[2].is_nan(), "{nll:?} with {bad}");
        }
    }
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
        for tier in [Tier::T0, Tier::T1] {
            let plan = policy::at_tier(&caps, tier);
            assert!(plan.threads.is_power_of_two() && plan.threads <= caps.max_threads, "{plan:?}");
            assert!(plan.threads * 12 <= caps.max_shared_bytes);
            if tier == Tier::T1 {
                assert!(plan.threads.is_multiple_of(caps.max_subgroup_size));
            }
        }
    }
    assert_eq!(policy::plan(&known::bare_vulkan_13()).tier, Tier::T0);
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let words = arena.buffer("words", 400).unwrap();
    let operands = |logits: std::ops::Range<u64>| Operands {
        active: words.slice(0..4).unwrap(),
        logits: words.slice(logits).unwrap(),
        targets: words.slice(0..8).unwrap(),
        nll: words.slice(8..16).unwrap(),
    };
    let mut recorder = device.recorder().unwrap();
    let kernel = Score::new(&device, 40).unwrap();
    kernel.record(&mut recorder, "right", 2, &operands(16..336)).unwrap();
    kernel.record(&mut recorder, "short logits", 2, &operands(16..332)).unwrap_err();
    kernel.record(&mut recorder, "not aligned", 2, &operands(20..340)).unwrap_err();
    assert!(Score::new(&device, 0).is_err());
}
