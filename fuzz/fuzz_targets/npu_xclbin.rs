//! Decodes arbitrary bytes as an overlay's file, as its `AIE_PARTITION` section, and as a PDI.
#![no_main]

use libfuzzer_sys::fuzz_target;
use npu::xclbin::{Partition, Pdi, Xclbin};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(xclbin) = Xclbin::decode(bytes) {
        let again = xclbin.encode().expect("what was decoded");
        assert_eq!(Xclbin::decode(&again).expect("the same xclbin"), xclbin);
    }
    if let Ok(partition) = Partition::decode(bytes) {
        let again = partition.encode().expect("what was decoded");
        assert_eq!(Partition::decode(&again).expect("the same partition"), partition);
    }
    if let Ok(pdi) = Pdi::decode(bytes) {
        assert_eq!(pdi.encode().expect("what was decoded"), bytes);
    }
});
