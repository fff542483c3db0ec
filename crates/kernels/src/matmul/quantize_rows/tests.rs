use gpu::known;

use super::{QuantizeRows, policy, reference};
use crate::{Activations, Vectors, case::arena};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn two_bytes_represent_every_quantised_value() {
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
fn plans_cover_every_value() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        for output in [Activations::Int16, Activations::F16] {
            let plan = policy::plan(&caps, output);
            assert!(plan.threads <= caps.max_threads && plan.threads.is_multiple_of(caps.max_subgroup_size));
            assert!(Some(plan.tier) <= caps.tier());
        }
    }
    assert_eq!(policy::plan(&known::h200(), Activations::Int16).groups(4096), 8);
    assert_eq!(policy::plan(&known::h200(), Activations::Int16).groups(128), 1);
    assert_eq!(policy::plan(&known::bare_vulkan_13(), Activations::Int16).groups(4096), 2);
    assert_eq!(policy::plan(&known::bare_vulkan_13(), Activations::F16).groups(4096), 8);
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = arena(&device);
    let rejected = |output, k| QuantizeRows::new(&device, output, k).err().expect("rejected").to_string();
    assert!(rejected(Activations::Int16, 40).contains("multiple of 16"));
    assert!(rejected(Activations::F16, 42).contains("multiple of 4"));
    assert!(rejected(Activations::F32, 64).contains("not f32"));
    let active = arena.buffer("active", 8).unwrap().view();
    let x = Vectors::f32(&mut arena, "x", 64, 2).unwrap();
    let int16 = Vectors::int16(&mut arena, "y", 64, 2).unwrap();
    let f16 = Vectors::f16(&mut arena, "y", 64, 2).unwrap();
    let int8 = Vectors::int8(&mut arena, "y", 64, 2).unwrap();
    let mut recorder = device.recorder().unwrap();
    for (y, other) in [(&int16, &f16), (&f16, &int16)] {
        let kind = y.kind();
        let kernel = QuantizeRows::new(&device, kind, 64).unwrap();
        let mut record =
            |x: &Vectors, y: &Vectors| kernel.record(&mut recorder, "quantize_rows", x, y, &active);
        record(&x, y).unwrap();
        record(y, y).expect_err("input that is not f32");
        record(&x, other).expect_err("another output");
        record(&x, &int8).expect_err("int8");
        record(&x, &Vectors::new(&mut arena, "y", kind, 64, 3).unwrap())
            .expect_err("more columns than x has");
        record(&x, &Vectors::new(&mut arena, "y", kind, 80, 2).unwrap()).expect_err("other rows");
    }
}
