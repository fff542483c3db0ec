use gpu::known;

use super::{GemvNorm, policy};
use crate::{
    Vectors,
    case::arena,
    matmul::gemv::{Norm, policy::Prologue},
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn plans_have_whole_subgroups() {
    let only_64 = gpu::Caps { min_subgroup_size: 64, subgroup_size_control: false, ..known::radeon_780m() };
    for caps in [known::h200(), known::radeon_780m(), known::mesa_cpu(), only_64] {
        for k in [16, 160, 640, 5376, 8192] {
            let plan = policy::plan(&caps, k);
            assert!(plan.threads <= caps.max_threads && plan.threads.is_multiple_of(32), "{plan:?}");
            let size = match plan.subgroup {
                gpu::Subgroup::Exactly(size) => size,
                gpu::Subgroup::Any => caps.max_subgroup_size,
            };
            assert!(plan.threads.is_multiple_of(size), "{plan:?}");
        }
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    assert!(GemvNorm::new(&device, Prologue::None, 640).is_err());
    assert!(GemvNorm::new(&device, Prologue::Norm, 8).is_err(), "half a group");
    let mut arena = arena(&device);
    let kernel = GemvNorm::new(&device, Prologue::Norm, 64).unwrap();
    let view = |arena: &mut gpu::Arena, bytes| arena.buffer("rows", bytes).unwrap().view();
    let (residual, weight) = (view(&mut arena, 512), view(&mut arena, 256));
    let norm = Norm { rows: 2, sublayer: None, residual, weight, epsilon: 1e-6 };
    let (y, factors) = (Vectors::int16(&mut arena, "y", 64, 2).unwrap(), view(&mut arena, 8));
    let mut recorder = device.recorder().unwrap();
    let mut record = |norm: &Norm, y: &Vectors, factors: &gpu::View| {
        kernel.record(&mut recorder, "norm", norm, y, factors)
    };
    record(&norm, &y, &factors).unwrap();
    record(&norm, &Vectors::f16(&mut arena, "y", 64, 2).unwrap(), &factors).expect_err("f16");
    record(&norm, &Vectors::int16(&mut arena, "y", 64, 3).unwrap(), &factors).expect_err("three columns");
    record(&norm, &y, &factors.slice(0..4).unwrap()).expect_err("one factor");
    record(&Norm { rows: 3, ..norm.clone() }, &y, &factors).expect_err("a short residual stream");
}
