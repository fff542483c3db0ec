use gpu::{Subgroup, Tier, known};

use super::{Form, policy};

const PLAIN: Form = Form { post_norm: false, residual: false, quantize: false, gather: false };

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn plans_fit_the_device() {
    for caps in [known::h200(), known::radeon_780m(), known::mesa_cpu(), known::bare_vulkan_13()] {
        for n in [1, 32, 640, 1152, 5376, 100_000] {
            for quantize in [false, true] {
                let plan = policy::plan(&caps, n, Form { quantize, ..PLAIN });
                assert!(plan.threads.is_power_of_two() && plan.threads <= caps.max_threads, "{plan:?}");
                assert!(Some(plan.tier) <= caps.tier());
                assert_eq!(plan.subgroup, Subgroup::Any);
            }
        }
    }
    assert_eq!(policy::plan(&known::bare_vulkan_13(), 5376, PLAIN).tier, Tier::T0);
    assert_eq!(policy::plan(&known::h200(), 5376, PLAIN).tier, Tier::T1);
}
