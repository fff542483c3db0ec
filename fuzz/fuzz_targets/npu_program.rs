//! Decodes arbitrary bytes as a program of an NPU's core, and executes it on the array model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use npu::array::{Array, CoreLibrary, HostMemory};
use npu::isa;
use npu::tile::{Register, TileKind, TilePlace};
use npu::txn::Stream;
use npu::xclbin::{Cdo, CdoCommand};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = isa::disassemble(bytes) {
        // Bundles have more than one form; the shortest is the same again.
        let shortest = isa::assemble(&text).expect("its own text");
        assert_eq!(isa::assemble(&isa::disassemble(&shortest).expect("a text")).expect("the same"), shortest);
    }
    let data = bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let place = TilePlace { column: 0, row: 2 };
    let address = |register: Register| place.address(register.offset(TileKind::Core).expect("a register"));
    let cdo = Cdo::new(vec![
        CdoCommand::DmaWrite {
            address: u64::from(address(Register::Program { offset: 0 })),
            data: data.take(4096).collect(),
        },
        CdoCommand::Write { address: address(Register::CoreControl), value: 1 },
    ]);
    let array = Array::load(1, &cdo, CoreLibrary::interpreter()).expect("a configuration");
    // A fault is fine; a panic or a run without end is not.
    let _ = array.with_limit(20).run(&Stream::new(1, Vec::new()), &mut HostMemory::new());
});
