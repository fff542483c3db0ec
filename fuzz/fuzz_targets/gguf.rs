//! Parses arbitrary bytes as a GGUF header.
#![no_main]

use std::path::Path;

use checkpoint::gguf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let len = bytes.len() as u64;
    let Ok(gguf) = gguf::parse(Path::new("fuzz.gguf"), bytes, len) else { return };
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for tensor in &gguf.source.tensors {
        assert_eq!(tensor.encoding.bytes(&tensor.shape), Some(tensor.data.len));
        assert!(tensor.data.offset.is_multiple_of(gguf.alignment));
        spans.push((tensor.data.offset, tensor.data.offset + tensor.data.len));
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap");
    assert!(spans.last().is_none_or(|span| span.1 <= len), "a tensor ends past the file");
    for (key, _) in gguf.metadata.iter() {
        assert!(gguf.metadata.get(key).is_some());
        // Errors are fine; panics are not.
        let _ = gguf.metadata.u32(key);
        let _ = gguf.metadata.array_i32(key);
        let _ = gguf.metadata.array_str(key).map(|strings| strings.iter().map(str::len).sum::<usize>());
    }
});
