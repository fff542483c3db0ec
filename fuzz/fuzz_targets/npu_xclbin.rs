//! Decodes arbitrary bytes as an overlay's file, as its `AIE_PARTITION` section, and as a PDI; and a valid file of which
//! the input changes bytes.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use npu::xclbin::{Cdo, CdoCommand, Partition, Pdi, Xclbin};

/// Where a file has its length.
const LENGTH_AT: usize = 0x130;

/// A small file with everything that files have.
static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let cdo = Cdo::new(vec![CdoCommand::Write { address: 0x0021_f000, value: 2 }]);
    let image = Pdi::new(cdo).encode().expect("a PDI");
    let xclbin = Xclbin::new([7; 16], &Partition::new(4, image)).expect("an xclbin");
    xclbin.encode().expect("a file")
});

/// A file, the partition in it, and the configurations in that.
fn check(file: &[u8]) {
    let Ok(mut xclbin) = Xclbin::decode(file) else { return };
    let again = xclbin.encode().expect("what was decoded");
    assert_eq!(Xclbin::decode(&again).expect("the same xclbin"), xclbin);
    let Ok(partition) = xclbin.partition() else { return };
    xclbin.set_partition(&partition).expect("a file with a partition");
    let again = xclbin.encode().expect("what was changed");
    let changed = Xclbin::decode(&again).expect("a file with the same partition");
    assert_eq!(changed.partition().expect("the same partition"), partition);
    for entry in &partition.pdis {
        let Ok(pdi) = entry.pdi() else { continue };
        assert_eq!(pdi.encode().expect("what was decoded"), entry.image);
    }
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // Places and bytes.
    let mut file = FILE.clone();
    for change in bytes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match file.get_mut(place) {
            Some(byte) => *byte = change[2],
            None => file.push(change[2]),
        }
    }
    let length = file.len() as u64;
    file[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&length.to_le_bytes());
    check(&file);
    if let Ok(partition) = Partition::decode(bytes) {
        let again = partition.encode().expect("what was decoded");
        assert_eq!(Partition::decode(&again).expect("the same partition"), partition);
    }
    if let Ok(pdi) = Pdi::decode(bytes) {
        assert_eq!(pdi.encode().expect("what was decoded"), bytes);
    }
});
