//! Decodes arbitrary bytes as a transaction stream of the NPU's controller.
#![no_main]

use libfuzzer_sys::fuzz_target;
use npu::txn::Stream;

fuzz_target!(|bytes: &[u8]| {
    let Ok(stream) = Stream::decode(bytes) else { return };
    let again = stream.encode().expect("what was decoded");
    // The text form has more than one spelling.
    assert!(bytes[0] != 0 || again == bytes);
    assert_eq!(Stream::decode(&again).expect("the same stream"), stream);
    assert!(stream.to_string().lines().count() > stream.instructions.len());
});
