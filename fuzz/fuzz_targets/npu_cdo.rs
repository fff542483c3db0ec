//! Decodes arbitrary words as the commands of a CDO, alone and in a PDI.
#![no_main]

use libfuzzer_sys::fuzz_target;
use npu::xclbin::{Cdo, Pdi};

/// Words of a CDO's header: version, "CDO", format, length, checksum.
fn header(words: u32) -> [u32; 5] {
    let mut header = [4, 0x004f_4443, 0x200, words, 0];
    header[4] = !header[..4].iter().fold(0, |sum: u32, &word| sum.wrapping_add(word));
    header
}

fuzz_target!(|bytes: &[u8]| {
    // A random header is never valid, and hides the commands.
    let _ = Cdo::decode(bytes);
    let words = bytes.len() / 4;
    let mut data: Vec<u8> = header(words as u32).iter().flat_map(|word| word.to_le_bytes()).collect();
    data.extend_from_slice(&bytes[..4 * words]);
    let Ok(cdo) = Cdo::decode(&data) else { return };
    assert_eq!(cdo.encode().expect("what was decoded"), data);
    let pdi = Pdi::new(cdo);
    assert_eq!(Pdi::decode(&pdi.encode().expect("a PDI")).expect("the same PDI"), pdi);
});
