//! Assembles arbitrary text as a program of an NPU's core.
#![no_main]

use libfuzzer_sys::fuzz_target;
use npu::isa::{self, Instruction};

fuzz_target!(|bytes: &[u8]| {
    let source = String::from_utf8_lossy(bytes);
    if let Ok(instruction) = Instruction::parse(&source) {
        let again = Instruction::decode(instruction.slot(), instruction.encode()).expect("what was parsed");
        assert_eq!(again, instruction);
        assert_eq!(Instruction::parse(&instruction.to_string()).expect("its own text"), instruction);
    }
    let Ok(program) = isa::assemble(&source) else { return };
    let text = isa::disassemble(&program).expect("what was assembled");
    assert_eq!(isa::assemble(&text).expect("the same program"), program);
});
