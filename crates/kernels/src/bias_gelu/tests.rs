use gpu::{View, known};

use super::{BiasGelu, Gelu, policy, reference};
use crate::{Activations, Vectors, case::arena};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn reference_is_gelu_by_tanh() {
    // ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))).
    for (x, want) in [(-3.0, -0.003_637_392), (-0.5, -0.154_285_99), (1.0, 0.841_191_99), (2.0, 1.954_597_69)]
    {
        let got = reference::bias_gelu(Gelu::Tanh, x - 0.25, 0.25).value;
        assert!((got - want).abs() < 1e-7, "gelu({x}) is {got}, expected {want}");
    }
}

#[test]
fn exact_reference_is_the_normal_distribution() {
    // x Φ(x), with Φ from tables.
    for (x, want) in [(-3.0, -0.004_049_694), (-0.5, -0.154_268_77), (1.0, 0.841_344_75), (4.0, 3.999_873_3)]
    {
        let got = reference::bias_gelu(Gelu::Erf, x - 0.25, 0.25).value;
        assert!((got - want).abs() < 1e-7, "gelu({x}) is {got}, expected {want}");
    }
}

#[test]
fn plans_cover_the_row_and_fit_the_device() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        for n in [4, 64, 4304, 100_000] {
            let plan = policy::plan(&caps, n).unwrap();
            assert!(plan.threads <= caps.max_threads, "{plan:?}");
            let values = plan.groups_per_row * plan.threads * plan.vec4s_per_thread * 4;
            assert!(values as usize >= n, "{plan:?} for {n}");
        }
        assert_eq!((policy::plan(&caps, 0), policy::plan(&caps, 66)), (None, None));
        let plan = policy::plan(&caps, 4304).unwrap();
        let vec4s = plan.groups_per_row * plan.threads * plan.vec4s_per_thread;
        assert!(vec4s * 8 <= 1076 * 9, "more than an eighth of the threads are idle: {plan:?}");
    }
    let plan = policy::plan(&known::h200(), 4304).unwrap();
    assert_eq!((plan.groups_per_row, plan.threads, plan.vec4s_per_thread), (2, 192, 3));
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected =
        |output, n| BiasGelu::new(&device, Gelu::Tanh, output, n).err().expect("rejected").to_string();
    assert!(rejected(Activations::F32, 66).contains("multiple of 4"));
    assert!(rejected(Activations::F16, 0).contains("multiple of 4"));
    assert!(rejected(Activations::Int16, 64).contains("not int16"));
    let mut arena = arena(&device);
    let kernel = BiasGelu::new(&device, Gelu::Tanh, Activations::F32, 64).unwrap();
    let rows = arena.buffer("rows", 2 * 64 * 4 + 16).unwrap().view();
    let active = arena.buffer("active", 4).unwrap().view();
    let mut recorder = device.recorder().unwrap();
    let mut record = |x: &View, bias: &View, y: &Vectors| {
        kernel.record(&mut recorder, "gelu", x, bias, y, &active).map_err(|error| error.to_string())
    };
    let y = Vectors::f32(&mut arena, "y", 64, 2).unwrap();
    record(&rows, &rows, &y).unwrap();
    let mut fails = |x: &View, bias: &View, y: &Vectors, with: &str| {
        let error = record(x, bias, y).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    fails(&rows.slice(0..508).unwrap(), &rows, &y, "x has 508 bytes");
    fails(&rows.slice(4..528).unwrap(), &rows, &y, "x does not start");
    fails(&rows, &rows.slice(0..128).unwrap(), &y, "bias has 128 bytes");
    fails(&rows, &rows, &Vectors::f32(&mut arena, "y", 32, 2).unwrap(), "rows of 32");
    fails(&rows, &rows, &Vectors::f16(&mut arena, "y", 64, 2).unwrap(), "f16");
    fails(&rows, &rows, &Vectors::int8(&mut arena, "y", 64, 2).unwrap(), "int8");
}
