use super::{Operands, PatchValues};
use crate::Activations;

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn wrong_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    assert!(PatchValues::new(&device, Activations::Int16).is_err());
    let kernel = PatchValues::new(&device, Activations::F32).unwrap();
    let mut arena = crate::case::arena(&device);
    let words = arena.buffer("words", 4096).unwrap();
    let mut recorder = device.recorder().unwrap();
    let mut record = |rows, k, run, y_stride| {
        let operands = Operands { bytes: words.view(), table: words.view(), run, y: words.view(), y_stride };
        kernel.record(&mut recorder, "patches", rows, k, &operands).map_err(|error| error.to_string())
    };
    record(16, 60, 1, 64).unwrap();
    for (rows, k, run, y_stride, with) in [
        (16, 62, 1, 64, "multiples of 4"),
        (16, 60, 0, 64, "positive"),
        (16, 68, 1, 64, "multiples of 4"),
        (17, 60, 1, 64, "y has 4096 bytes, but 4352"),
    ] {
        let error = record(rows, k, run, y_stride).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    }
}
