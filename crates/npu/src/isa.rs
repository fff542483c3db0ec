//! Instructions of the cores: decoder, encoder, assembler and disassembler, from one table.
//!
//! The table has the instructions of the public overlays for matrix products and some more, not the whole
//! architecture. Bits that are none of them are an error; nothing is guessed.
//!
//! ```
//! use npu::bundle::{Bundle, Slot};
//! use npu::isa::{self, Instruction};
//!
//! let add = Instruction::parse("add r1, r0, #1")?;
//! assert_eq!((add.slot(), add.encode()), (Slot::Alu, 0x0040e));
//! assert_eq!(Instruction::decode(Slot::Alu, 0x0040e)?, add);
//!
//! let program = isa::assemble("start:\n lda r0, [p6, #4]; mov r1, #2\n j start")?;
//! assert_eq!(isa::assemble(&isa::disassemble(&program)?)?, program);
//! # Ok::<(), npu::Error>(())
//! ```

mod assembler;
mod operand;
mod table;

use std::fmt;
use std::sync::LazyLock;

pub use assembler::{assemble, disassemble};

pub(crate) use operand::{CR_CASCADES, CR_ROUNDING, CR_SATURATION};
pub use operand::{Operand, Register};

use crate::bundle::Slot;
use crate::error::{Error, Format, Result};
use operand::Kind;

/// What an instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Nop,
    Add,
    Sub,
    And,
    Or,
    Xor,
    Eq,
    Ne,
    Ge,
    Lt,
    Geu,
    Ltu,
    Lshl,
    Ashl,
    Mul,
    Eqz,
    Nez,
    SelectEqz,
    SelectNez,
    Constant,
    Move,
    Jump,
    JumpIfZero,
    JumpUnlessZero,
    JumpDecrement,
    Divide,
    Call,
    Return,
    Done,
    Event,
    Acquire,
    Release,
    MoveQuarter,
    MoveHalf,
    MoveWhole,
    Shuffle,
    Broadcast8,
    Broadcast16,
    Broadcast32,
    Widen1632,
    Widen3264,
    Load,
    LoadVector,
    LoadWiden1632,
    LoadWiden3264,
    LoadTile,
    CascadeLow,
    CascadeHigh,
    Store,
    StoreTile,
    CascadeWrite,
    StoreVector,
    StoreNarrow328,
    StoreNarrow3216,
    StoreNarrow6416,
    StoreNarrow6432,
    Advance,
    AdvanceTwo,
    AdvanceThree,
    AdvanceStack,
    Multiply,
    MultiplyAdd,
    MultiplyAddTwo,
    Clear,
}

/// How an instruction addresses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It does not.
    None,
    /// A pointer plus a register.
    Register,
    /// A pointer plus a constant.
    Constant,
    /// A pointer, to which a register is then added.
    ThenRegister,
    /// A pointer, to which a constant is then added.
    ThenConstant,
    /// A pointer, which then moves on in two dimensions.
    ThenTwo,
    /// A pointer, which then moves on in three dimensions.
    ThenThree,
    /// The stack pointer plus a constant.
    Stack,
}

/// Part of an instruction's text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    /// The operand with this index.
    Operand(usize),
}

/// An operand of an encoding: its letter in the table, its kind, and its fields from the highest bits on.
#[derive(Debug)]
struct Place {
    letter: char,
    kind: Kind,
    /// Lowest bit and width of each field.
    fields: Vec<(u32, u32)>,
}

impl Place {
    fn width(&self) -> u32 {
        self.fields.iter().map(|(_, width)| width).sum()
    }

    fn read(&self, bits: u64) -> Option<Operand> {
        let code =
            self.fields.iter().fold(0, |code, &(at, width)| code << width | bits >> at & ((1 << width) - 1));
        self.kind.decode(code, self.width())
    }

    fn write(&self, operand: Operand) -> Option<u64> {
        let mut code = self.kind.encode(operand, self.width())?;
        let mut bits = 0;
        for &(at, width) in self.fields.iter().rev() {
            bits |= (code & ((1 << width) - 1)) << at;
            code >>= width;
        }
        Some(bits)
    }
}

/// A row of the table, prepared for use.
#[derive(Debug)]
struct Encoding {
    slot: Slot,
    op: Op,
    mode: Mode,
    mnemonic: String,
    pieces: Vec<Piece>,
    /// Bits that are fixed, and their values. Bits without a meaning are fixed to zero.
    mask: u64,
    value: u64,
    operands: Vec<Place>,
}

static ENCODINGS: LazyLock<Vec<Encoding>> = LazyLock::new(|| {
    let mut encodings = Vec::new();
    for &(slot, op, text, bits) in &table::TABLE {
        let modes: &[_] = match (text.find("ALL"), text.find("NEAR")) {
            (Some(_), _) => &table::ALL,
            (_, Some(_)) => &table::NEAR,
            _ => &[(Mode::None, "", "")],
        };
        for &(mode, address, address_bits) in modes {
            let (mnemonic, operands) = text.split_once(' ').unwrap_or((text, ""));
            let (operands, step) = match operands.find(" ALL").or(operands.find(" NEAR")) {
                Some(at) => {
                    (&operands[..at], operands[at..].trim_start_matches([' ', 'A', 'L', 'N', 'E', 'R']))
                }
                None => (operands, ""),
            };
            let (dimensions, address) = address.split_once(", ").unwrap_or(("", address));
            let separator = if address.is_empty() { "" } else { "," };
            let mnemonic = match mnemonic.split_once('.') {
                Some((first, rest)) if !dimensions.is_empty() => format!("{first}{dimensions}.{rest}"),
                _ => format!("{mnemonic}{dimensions}"),
            };
            let operands = format!("{operands}{separator}{}", address.replace("STEP", step)).replace(' ', "");
            let bits = bits.replace("ALL", address_bits).replace("NEAR", address_bits);
            encodings.push(Encoding::new((slot, op, mode), mnemonic, &operands, &bits));
        }
    }
    encodings
});

impl Encoding {
    fn new((slot, op, mode): (Slot, Op, Mode), mnemonic: String, text: &str, bits: &str) -> Self {
        let mut encoding =
            Self { slot, op, mode, mnemonic, pieces: Vec::new(), mask: 0, value: 0, operands: Vec::new() };
        let mut rest = text;
        while let Some(colon) = rest.find(':') {
            let (before, after) = (&rest[..colon - 1], &rest[colon + 1..]);
            let end = after.find([',', ']']).unwrap_or(after.len());
            // The tests build every row.
            let kind = Kind::named(&after[..end]).unwrap_or(Kind::Unsigned);
            if !before.is_empty() {
                encoding.pieces.push(Piece::Literal(before.to_owned()));
            }
            encoding.pieces.push(Piece::Operand(encoding.operands.len()));
            let letter = rest[..colon].chars().next_back().unwrap_or(' ');
            encoding.operands.push(Place { letter, kind, fields: Vec::new() });
            rest = &after[end..];
        }
        if !rest.is_empty() {
            encoding.pieces.push(Piece::Literal(rest.to_owned()));
        }
        let mut at = slot.bits();
        for token in bits.split_whitespace() {
            let (letter, digits) = token.split_at(1);
            let place = encoding.operands.iter_mut().find(|place| letter.starts_with(place.letter));
            if let (Some(place), Ok(width)) = (place, digits.parse::<u32>()) {
                at -= width;
                place.fields.push((at, width));
                continue;
            }
            // `x1`: the register form of locks, whose lowest bit says so.
            for digit in token.bytes() {
                at -= 1;
                encoding.mask |= 1 << at;
                encoding.value |= u64::from(digit == b'1') << at;
            }
        }
        encoding
    }

    fn decode(&'static self, bits: u64) -> Option<Instruction> {
        if bits & self.mask != self.value {
            return None;
        }
        let operands: Option<Vec<Operand>> = self.operands.iter().map(|place| place.read(bits)).collect();
        Some(Instruction { encoding: self, operands: operands? })
    }
}

/// An instruction of one slot.
#[derive(Debug, Clone)]
pub struct Instruction {
    encoding: &'static Encoding,
    operands: Vec<Operand>,
}

impl PartialEq for Instruction {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.encoding, other.encoding) && self.operands == other.operands
    }
}

impl Eq for Instruction {}

impl Instruction {
    /// The instruction with these bits in `slot`.
    pub fn decode(slot: Slot, bits: u64) -> Result<Self> {
        let mut rows = ENCODINGS.iter().filter(|encoding| encoding.slot == slot);
        rows.find_map(|encoding| encoding.decode(bits)).ok_or_else(|| {
            let reason = format!("{} {bits:#x} is no instruction that this crate knows", slot.name());
            Error::malformed(Format::Program, 0, reason)
        })
    }

    /// The slot that executes it.
    pub fn slot(&self) -> Slot {
        self.encoding.slot
    }

    /// Its bits.
    pub fn encode(&self) -> u64 {
        // An instruction is made by decoding or parsing, which took only operands that have a code.
        let fields = self.encoding.operands.iter().zip(&self.operands);
        fields.fold(self.encoding.value, |bits, (place, operand)| bits | place.write(*operand).unwrap_or(0))
    }

    /// Reads the text of one instruction.
    pub fn parse(text: &str) -> Result<Self> {
        assembler::parse(text, &|_| None).map_err(|reason| Error::Assembly { line: 1, reason })
    }

    pub(crate) fn op(&self) -> Op {
        self.encoding.op
    }

    pub(crate) fn mode(&self) -> Mode {
        self.encoding.mode
    }

    /// The operand with this letter in the table.
    pub(crate) fn operand(&self, letter: char) -> Option<Operand> {
        let index = self.encoding.operands.iter().position(|place| place.letter == letter)?;
        self.operands.get(index).copied()
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.encoding.mnemonic)?;
        if !self.encoding.pieces.is_empty() {
            f.write_str(" ")?;
        }
        for piece in &self.encoding.pieces {
            match piece {
                Piece::Literal(text) => f.write_str(&text.replace(',', ", "))?,
                Piece::Operand(index) => self.operands[*index].fmt(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code of an operand, or samples of a constant's.
    fn operands(place: &Place) -> Vec<Operand> {
        let width = place.width();
        let codes: Vec<u64> = match width {
            0..10 => (0..1 << width).collect(),
            _ => vec![0, 1, 2, 1 << (width - 1), (1 << width) - 1, 0x5555_5555 & ((1 << width) - 1)],
        };
        codes.into_iter().filter_map(|code| place.kind.decode(code, width)).collect()
    }

    #[test]
    fn every_row_covers_its_slot_and_no_two_can_be_confused() {
        let mut instructions = 0;
        for encoding in ENCODINGS.iter() {
            let fields = encoding.operands.iter().flat_map(|place| &place.fields);
            let covered = fields.fold(encoding.mask, |covered, (at, width)| {
                let field = ((1 << width) - 1) << at;
                assert_eq!(covered & field, 0, "{encoding:?}");
                covered | field
            });
            assert_eq!(covered, (1 << encoding.slot.bits()) - 1, "{encoding:?}");
            if encoding.operands.is_empty() {
                let instruction = Instruction { encoding, operands: Vec::new() };
                let again = Instruction::decode(encoding.slot, encoding.value).expect("an instruction");
                assert_eq!(again, instruction, "{instruction}");
                assert_eq!(Instruction::parse(&instruction.to_string()).expect("its text"), instruction);
            }
            // Each operand in turn takes all its values, with the others at their first and last.
            for (varied, place) in encoding.operands.iter().enumerate() {
                for operand in operands(place) {
                    for last in [false, true] {
                        let values = encoding.operands.iter().enumerate().map(|(index, place)| {
                            let all = operands(place);
                            match index == varied {
                                true => operand,
                                false => all[if last { all.len() - 1 } else { 0 }],
                            }
                        });
                        let instruction = Instruction { encoding, operands: values.collect() };
                        let bits = instruction.encode();
                        let matches = ENCODINGS
                            .iter()
                            .filter(|other| other.slot == encoding.slot)
                            .filter_map(|other| other.decode(bits));
                        let matches: Vec<_> = matches.collect();
                        assert_eq!(matches, std::slice::from_ref(&instruction), "{instruction}: {bits:#x}");
                        let text = instruction.to_string();
                        assert_eq!(Instruction::parse(&text).expect("its own text"), instruction, "{text}");
                        instructions += 1;
                    }
                }
            }
        }
        assert!(instructions > 10_000, "{instructions}");
    }

    #[test]
    fn what_is_no_instruction_is_refused_with_its_encoding() {
        for (slot, bits) in [(Slot::Alu, 0x10), (Slot::Vector, 0x1e0), (Slot::Store, 0)] {
            assert!(Instruction::decode(slot, bits).is_ok(), "{bits:#x}");
        }
        let error = Instruction::decode(Slot::Alu, 0x38).expect_err("no instruction").to_string();
        assert!(error.contains("alu 0x38 is no instruction"), "{error}");
        for text in
            ["add r1, r2", "add r32, r0, r0", "add r1, r2, #64", "lda r0, [p0, #2]", "jnz r0, nowhere"]
        {
            assert!(Instruction::parse(text).is_err(), "{text}");
        }
    }
}
