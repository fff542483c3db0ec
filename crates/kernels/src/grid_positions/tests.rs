use gpu::{View, known};

use super::{GridPositions, Operands, Table, policy};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn workgroups_cover_the_row() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        let threads = policy::threads(&caps);
        for n in [4, 768, 1152] {
            assert!((policy::groups(threads, n) * threads * 4) as usize >= n, "{threads} threads for {n}");
        }
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let words = arena.buffer("words", 4 * 16 * 4).unwrap().view();
    let output = arena.buffer("residual", 4 * 16 * 4).unwrap().view();
    let table = |embeddings: &View, positions| Table { embeddings: embeddings.clone(), positions };
    let operands = || Operands {
        columns: table(&words, 4),
        rows: table(&words, 3),
        positions: words.slice(0..4 * 8).unwrap(),
        active: words.clone(),
        residual: output.clone(),
    };
    let mut recorder = device.recorder().unwrap();
    let kernel = GridPositions::new(&device).unwrap();
    let mut record = |rows, n, operands: &Operands| {
        kernel.record(&mut recorder, "positions", rows, n, operands).map_err(|error| error.to_string())
    };
    record(4, 16, &operands()).unwrap();
    let mut fails = |rows, n, operands: Operands, with: &str| {
        let error = record(rows, n, &operands).unwrap_err();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    fails(4, 0, operands(), "multiple of 4");
    fails(4, 14, operands(), "multiple of 4");
    fails(5, 16, operands(), "residual has 256 bytes, but 320");
    fails(4, 16, Operands { columns: table(&words, 5), ..operands() }, "the table of columns has 256 bytes");
    fails(4, 16, Operands { rows: table(&words, 5), ..operands() }, "the table of rows has 256 bytes");
    fails(4, 16, Operands { rows: table(&words, 0), ..operands() }, "empty");
    fails(4, 16, Operands { rows: table(&words, 1 << 28), ..operands() }, "more than the kernel can index");
    let shifted = words.slice(4..256).unwrap();
    fails(4, 16, Operands { rows: table(&shifted, 3), ..operands() }, "the table of rows does not start");
    let short = words.slice(0..28).unwrap();
    fails(4, 16, Operands { positions: short, ..operands() }, "positions has 28 bytes, but needs 32");
    fails(4, 16, Operands { active: words.slice(0..0).unwrap(), ..operands() }, "active has 0 bytes");
}
