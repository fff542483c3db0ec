//! Parses arbitrary bytes as a safetensors header: eight bytes for the length of the data, then the JSON.
#![no_main]

use std::path::Path;

use checkpoint::safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((data_len, header)) = bytes.split_first_chunk::<8>() else { return };
    // Errors are fine; panics are not.
    let _ = safetensors::parse_header(Path::new("fuzz.safetensors"), header, u64::from_le_bytes(*data_len));
});
