use tensor::{Encoding, Layout};

use super::{ENCODINGS, Rows, StripMap, Transcode, cases};
use crate::{Matrix, case};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn tensors_may_span_several_blocks() {
    let Some(device) = testkit::cpu_device() else { return };
    for encoding in ENCODINGS {
        let k = if encoding.scheme().is_float() {
            3 * 37
        } else {
            3 * (encoding.block_values() as usize).max(32)
        };
        let layout = Layout::new(encoding.scheme(), 16, k).unwrap();
        // Two strips per allocation; the tensor takes every other one of five.
        let caps =
            gpu::Caps { max_allocation: 2 * layout.strip_value_bytes() as u64, ..device.caps().clone() };
        let comparison = cases::run_in_blocks(&device, encoding, &caps).unwrap();
        assert!(comparison.passed(), "{encoding:?}: {:?}", comparison.first_mismatch);
    }
}

#[test]
fn non_finite_scales_are_reported_with_their_row() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = case::arena(&device);
    let layout = Layout::new(Encoding::Q8_0.scheme(), 20, 64).unwrap();
    let matrix = Matrix::allocate(&mut arena, "matrix", layout, device.caps()).unwrap();
    let mut bytes = vec![0_u8; 20 * 68 + 4];
    for (row, second) in [(7, true), (12, false)] {
        // The scale of a block is its first two bytes.
        let at = row * 68 + if second { 34 } else { 0 };
        bytes[at..at + 2].copy_from_slice(&half::f16::NAN.to_le_bytes());
    }
    let source = arena.buffer_from("rows", &bytes).unwrap();
    let damage = arena.buffer_from("damage", &[u32::MAX]).unwrap();
    let mut recorder = device.recorder().unwrap();
    let rows = Rows { source: source.view(), first_byte: 0, count: 20, first_row: 0, scales: None };
    let kernel = Transcode::new(&device, Encoding::Q8_0).unwrap();
    kernel.record(&mut recorder, "t", &rows, &matrix, StripMap::IDENTITY, &damage.view()).unwrap();
    let too_many = Rows { count: 21, ..rows.clone() };
    kernel.record(&mut recorder, "t", &too_many, &matrix, StripMap::IDENTITY, &damage.view()).unwrap_err();
    let past_end = Rows { count: 1, first_row: 32, ..rows };
    kernel.record(&mut recorder, "t", &past_end, &matrix, StripMap::IDENTITY, &damage.view()).unwrap_err();
    recorder.seal().unwrap().run(case::TIMEOUT).unwrap();
    assert_eq!(damage.read_vec::<u32>().unwrap(), [7]);
}
