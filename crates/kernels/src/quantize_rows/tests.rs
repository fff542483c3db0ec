use gpu::known;

use super::{QuantizeRows, policy, reference};
use crate::{Vectors, selftest::arena};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn two_bytes_hold_what_one_scale_can() {
    let values = [1.0, -1.0, 0.0, 0.5, 128.0 / 32639.0, -128.0 / 32639.0, -129.0 / 32639.0];
    let (scale, high, low) = reference::quantize(&values);
    assert_eq!(high, [127, -127, 0, 64, 1, 0, -1]);
    assert_eq!(low, [127, -127, 0, -64, -128, -128, 127]);
    for (i, want) in values.iter().enumerate() {
        assert!((reference::value(scale, high[i], low[i]) - f64::from(*want)).abs() <= 0.5 * scale);
    }
    assert_eq!(reference::quantize(&[0.0; 16]), (0.0, vec![0; 16], vec![0; 16]));
}

#[test]
fn plans_reach_every_value() {
    for caps in [known::h200(), known::radeon_780m(), known::mesa_cpu(), known::bare_vulkan_13()] {
        let plan = policy::plan(&caps);
        assert!(plan.threads <= caps.max_threads && plan.threads.is_multiple_of(caps.max_subgroup_size));
        assert!(Some(plan.tier) <= caps.tier());
    }
    assert_eq!(policy::plan(&known::h200()).groups(4096), 8);
    assert_eq!(policy::plan(&known::h200()).groups(128), 1);
    assert_eq!(policy::plan(&known::bare_vulkan_13()).groups(4096), 2);
}

#[test]
fn wrong_operands_are_refused() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = arena(&device);
    assert!(QuantizeRows::new(&device, 40).is_err());
    let kernel = QuantizeRows::new(&device, 64).unwrap();
    let active = arena.buffer("active", 4).unwrap().view();
    let x = Vectors::f32(&mut arena, "x", 64, 2).unwrap();
    let y = Vectors::int16(&mut arena, "y", 64, 2).unwrap();
    let mut recorder = device.recorder().unwrap();
    let mut record = |x: &Vectors, y: &Vectors| kernel.record(&mut recorder, "quantize_rows", x, y, &active);
    record(&x, &y).unwrap();
    record(&y, &y).expect_err("int16 that becomes int16");
    record(&x, &Vectors::int8(&mut arena, "y", 64, 2).unwrap()).expect_err("int8");
    record(&x, &Vectors::int16(&mut arena, "y", 64, 3).unwrap()).expect_err("more columns than x has");
    record(&x, &Vectors::int16(&mut arena, "y", 80, 2).unwrap()).expect_err("other rows");
}
