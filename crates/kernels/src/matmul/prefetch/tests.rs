use gpu::known;
use tensor::{Layout, Scheme};

use super::{
    Prefetch,
    policy::{self, GROUP_BYTES, Ranges},
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn small_devices_and_matrices_are_not_prefetched() {
    let weights = |rows| Layout::new(Scheme::Int8, rows, 5376).unwrap();
    let large = weights(43008);
    let some = policy::ranges(&known::h200(), &large).expect("the H200 prefetches");
    // Covers the whole matrix evenly, and reads little of it.
    let all = large.value_bytes() as u64;
    assert!(some.end() <= all && some.end() > all - 2 * u64::from(some.stride), "{some:?}");
    assert!(u64::from(some.count * some.bytes) < all / 50, "{some:?}");
    assert_eq!(policy::ranges(&known::h200(), &weights(1024)), None);
    for caps in [known::radeon_780m(), known::mesa_cpu(), known::mesa_cpu_wide(), known::bare_vulkan_13()] {
        assert_eq!(policy::ranges(&caps, &weights(43008)), None);
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let data = arena.buffer("data", u64::from(2 * GROUP_BYTES)).unwrap().view();
    let checksums = arena.buffer("checksums", 8).unwrap().view();
    let mut recorder = device.recorder().unwrap();
    let kernel = Prefetch::new(&device).unwrap();
    let mut record = |count, bytes, stride| {
        kernel.record(&mut recorder, "prefetch", &data, &checksums, Ranges { count, bytes, stride })
    };
    record(1, 2 * GROUP_BYTES, 0).unwrap();
    record(2, GROUP_BYTES, GROUP_BYTES).unwrap();
    record(2, GROUP_BYTES, GROUP_BYTES + 16).unwrap_err();
    record(1, 3 * GROUP_BYTES, 0).unwrap_err();
    record(1, GROUP_BYTES - 16, 0).unwrap_err();
    record(3, GROUP_BYTES, 16).unwrap_err();
}
