use gpu::known;

use super::{Operands, RowMean, policy, reference};
use crate::{Activations, Vectors, case::arena};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn reference_is_the_mean() {
    let means = reference::row_means(&[1.0, 2.0, 3.0, 6.0], 2, &[0..2, 1..2]);
    assert_eq!(means.iter().map(|mean| mean.value).collect::<Vec<_>>(), [2.0, 4.0, 3.0, 6.0]);
}

#[test]
fn threads_fit_the_device() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        for n in [4, 64, 384, 4096] {
            let threads = policy::threads(&caps, n);
            assert!((1..=caps.max_threads).contains(&threads), "{threads} for {n}");
        }
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected = |output, n| RowMean::new(&device, output, n).err().expect("rejected").to_string();
    assert!(rejected(Activations::F32, 66).contains("multiple of 4"));
    assert!(rejected(Activations::Int8, 64).contains("not int8"));
    let mut arena = arena(&device);
    let kernel = RowMean::new(&device, Activations::F32, 64).unwrap();
    let memory = arena.buffer("rows", 2 * 64 * 4).unwrap();
    let (y, short) =
        (Vectors::f32(&mut arena, "y", 64, 2).unwrap(), Vectors::f32(&mut arena, "y", 32, 2).unwrap());
    let operands =
        || Operands { x: memory.view(), x_stride: 64, ranges: memory.view(), active: memory.view(), y: &y };
    let mut recorder = device.recorder().unwrap();
    let mut record = |operands: &Operands<'_>| {
        kernel.record(&mut recorder, "mean", operands).map_err(|error| error.to_string())
    };
    record(&operands()).unwrap();
    let mut fails = |operands: Operands<'_>, with: &str| {
        let error = record(&operands).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    fails(Operands { y: &short, ..operands() }, "rows of 32");
    fails(Operands { x_stride: 66, ..operands() }, "stride of 66");
    fails(Operands { ranges: memory.slice(0..8).unwrap(), ..operands() }, "ranges 8");
    fails(Operands { x: memory.slice(4..512).unwrap(), ..operands() }, "x does not start");
}
