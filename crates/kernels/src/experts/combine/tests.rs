use super::{Combine, Operands, Shape};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn short_buffers_and_long_rows_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let shape = Shape { n: 64, dense_partials: 1, expert_partials: 2, weighted: true, epsilon: 1e-6 };
    let mut arena = crate::case::arena(&device);
    let words = arena.buffer("words", 128 * 4).unwrap();
    let operands = || Operands {
        dense: words.view(),
        experts: words.view(),
        expert_weights: Some(words.view()),
        dense_norm: words.view(),
        experts_norm: words.view(),
        active: words.view(),
        y: words.view(),
    };
    let kernel = Combine::new(&device, shape).unwrap();
    let mut recorder = device.recorder().unwrap();
    kernel.record(&mut recorder, "right", 1, &operands()).unwrap();
    let error = kernel.record(&mut recorder, "short", 2, &operands()).unwrap_err().to_string();
    assert!(error.contains("experts has 512 bytes, but 1024 are needed"), "{error}");
    let unweighted = Combine::new(&device, Shape { weighted: false, ..shape }).unwrap();
    assert!(unweighted.record(&mut recorder, "weighted", 1, &operands()).is_err());
    let long = Shape { n: 1 << 20, ..shape };
    assert!(Combine::new(&device, long).is_err());
}
