use super::{InputOperands, PerLayerInputs, Shape};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn short_buffers_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let shape = Shape { hidden: 64, width: 32, layers: 2, epsilon: 1e-6 };
    let mut arena = crate::case::arena(&device);
    let words = arena.buffer("words", 64 * 4).unwrap();
    let operands = || InputOperands {
        embedding: words.view(),
        projected: words.view(),
        token: words.view(),
        weight: words.view(),
        active: words.view(),
        inputs: words.view(),
    };
    let kernel = PerLayerInputs::new(&device, shape).unwrap();
    let mut recorder = device.recorder().unwrap();
    kernel.record(&mut recorder, "right", 1, &operands()).unwrap();
    let error = kernel.record(&mut recorder, "short", 2, &operands()).unwrap_err().to_string();
    assert!(error.contains("embedding has 256 bytes, but 512 are needed"), "{error}");
}
