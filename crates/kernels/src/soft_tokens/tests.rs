use super::{Operands, SoftTokens};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn short_buffers_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let words = arena.buffer("words", 4 * 16 * 4).unwrap();
    let operands = |tokens: u64| Operands {
        soft: words.view(),
        active: words.slice(0..4).unwrap(),
        tokens: words.slice(0..tokens * 4).unwrap(),
        residual: words.view(),
    };
    let mut recorder = device.recorder().unwrap();
    let kernel = SoftTokens::new(&device).unwrap();
    let mut record = |rows, soft_rows, tokens| {
        kernel
            .record(&mut recorder, "soft", rows, 16, soft_rows, &operands(tokens))
            .map_err(|error| error.to_string())
    };
    record(4, 4, 4).unwrap();
    for (rows, soft_rows, tokens, with) in [
        (4, 5, 4, "soft has 256 bytes, but 320"),
        (4, 4, 3, "tokens has 12 bytes"),
        (5, 4, 5, "residual has 256 bytes"),
    ] {
        let error = record(rows, soft_rows, tokens).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    }
}
