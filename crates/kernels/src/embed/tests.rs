use gpu::{Caps, known};
use tensor::{Layout, Scheme};

use super::{Embed, Operands, cases, policy};
use crate::Matrix;

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn embeddings_in_several_blocks_give_the_same_result() {
    let Some(device) = testkit::cpu_device() else { return };
    for scheme in Scheme::ALL {
        let layout = Layout::new(scheme, 77, 160).unwrap();
        // Two strips per allocation: 77 rows make three blocks.
        let caps = Caps { max_allocation: 2 * layout.strip_value_bytes() as u64, ..device.caps().clone() };
        let comparison = cases::run(&device, layout, &caps).unwrap();
        assert!(comparison.passed(), "{scheme}: {:?}", comparison.first_mismatch);
    }
}

#[test]
fn plans_fit_the_device() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        let threads = policy::threads(&caps);
        assert!(threads <= caps.max_threads);
        for hidden in [1, 640, 1152, 5376] {
            let columns = policy::groups(threads, hidden) as usize * threads as usize * 4;
            assert!(columns >= hidden && columns - hidden < threads as usize * 4, "{columns} for {hidden}");
        }
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let layout = Layout::new(Scheme::Int8, 16, 32).unwrap();
    let embeddings = Matrix::allocate(&mut arena, "embeddings", layout, device.caps()).unwrap();
    let words = arena.buffer("words", 4 * 32 * 4).unwrap();
    let operands = |rows: u64| Operands {
        embeddings: &embeddings,
        active: words.slice(0..4).unwrap(),
        tokens: words.slice(0..rows * 4).unwrap(),
        soft_token: None,
        residual: words.slice(0..rows * 128).unwrap(),
    };
    let mut recorder = device.recorder().unwrap();
    let kernel = Embed::new(&device, Scheme::Int8).unwrap();
    kernel.record(&mut recorder, "right", 4, 1.0, &operands(4)).unwrap();
    kernel.record(&mut recorder, "short", 4, 1.0, &operands(3)).unwrap_err();
    let other = Embed::new(&device, Scheme::Int4).unwrap();
    let error = other.record(&mut recorder, "int8 for int4", 4, 1.0, &operands(4)).unwrap_err().to_string();
    assert!(error.contains("int8") && error.contains("int4"), "{error}");
}
