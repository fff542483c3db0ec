//! Text of programs: one bundle per line, its instructions separated by semicolons.
//!
//! ```text
//! loop:                              a label
//!   vlda wl0, [p0], #32; add r0, r0, #-1
//!   jnz r0, loop                     // a comment
//!   nop                              an empty bundle
//!   .align 16                        empty bundles up to a multiple of 16 bytes
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;

use super::operand::{Kind, Operand};
use super::{ENCODINGS, Encoding, Instruction, Piece};
use crate::bundle::{Bundle, Slot};
use crate::error::{Error, Result};

/// Reads one instruction; `label` gives the addresses of labels.
pub(super) fn parse(
    text: &str,
    label: &dyn Fn(&str) -> Option<i64>,
) -> std::result::Result<Instruction, String> {
    let text = text.trim();
    let (mnemonic, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let operands: String = operands.chars().filter(|c| !c.is_whitespace()).collect();
    let mut rows = ENCODINGS.iter().filter(|encoding| encoding.mnemonic == mnemonic);
    rows.find_map(|encoding| read(encoding, &operands, label)).ok_or_else(|| {
        format!("{text:?} is no instruction that this crate knows, or an operand does not fit")
    })
}

fn read(
    encoding: &'static Encoding,
    mut text: &str,
    label: &dyn Fn(&str) -> Option<i64>,
) -> Option<Instruction> {
    let mut operands = Vec::new();
    for piece in &encoding.pieces {
        match piece {
            Piece::Literal(literal) => text = text.strip_prefix(literal.as_str())?,
            Piece::Operand(index) => {
                let end = text.find([',', ']']).unwrap_or(text.len());
                let place = &encoding.operands[*index];
                operands.push(operand(place.kind, place.width(), &text[..end], label)?);
                text = &text[end..];
            }
        }
    }
    text.is_empty().then_some(Instruction { encoding, operands })
}

fn operand(kind: Kind, width: u32, text: &str, label: &dyn Fn(&str) -> Option<i64>) -> Option<Operand> {
    if matches!(kind, Kind::Signed(_) | Kind::Unsigned | Kind::Negative(_)) {
        let value = match text.strip_prefix('#') {
            Some(number) => match number.strip_prefix("0x") {
                Some(digits) => i64::from_str_radix(digits, 16).ok()?,
                None => number.parse().ok()?,
            },
            None => label(text)?,
        };
        // A long constant may be written with or without its sign.
        let value = if width == 32 { i64::from(value as i32) } else { value };
        return kind.encode(Operand::Constant(value), width).map(|_| Operand::Constant(value));
    }
    let codes = (0..1u64 << width).filter_map(|code| kind.decode(code, width));
    codes.into_iter().find(|operand| operand.to_string() == text)
}

/// A line of a program, without its labels.
enum Line<'a> {
    Bundle(Vec<&'a str>),
    Align(usize),
}

/// The bytes of a program's text.
pub fn assemble(source: &str) -> Result<Vec<u8>> {
    let mut lines = Vec::new();
    let mut names = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let mut line = line.split("//").next().unwrap_or("").trim();
        while let Some((name, rest)) = line.split_once(':') {
            names.push((name.trim(), lines.len()));
            line = rest.trim();
        }
        if let Some(align) = line.strip_prefix(".align ") {
            let align: Option<usize> = align.trim().parse().ok().filter(|align| *align >= 2);
            let align = align.filter(|align| align.is_power_of_two() && *align <= 4096);
            let align = align.ok_or_else(|| Error::Assembly {
                line: number + 1,
                reason: format!("{line:?}: an alignment is a power of two, 2 to 4096"),
            })?;
            lines.push((number + 1, Line::Align(align)));
        } else if !line.is_empty() {
            lines.push((number + 1, Line::Bundle(line.split(';').map(str::trim).collect())));
        }
    }
    // Sizes do not depend on where the labels are, so a first pass with any addresses finds them.
    let mut addresses = BTreeMap::new();
    let mut program = Vec::new();
    for pass in 0..2 {
        let label = |name: &str| match pass {
            0 => Some(0),
            _ => addresses.get(name).copied(),
        };
        program.clear();
        let mut starts = Vec::with_capacity(lines.len() + 1);
        for (number, line) in &lines {
            starts.push(program.len() as i64);
            match line {
                Line::Bundle(texts) => {
                    let bundle =
                        bundle(texts, &label).map_err(|reason| Error::Assembly { line: *number, reason })?;
                    program.extend(bundle.encode());
                }
                Line::Align(align) => {
                    while program.len() % align != 0 {
                        program.extend([1, 0]);
                    }
                }
            }
        }
        starts.push(program.len() as i64);
        if pass == 0 {
            for &(name, index) in &names {
                // A label before an alignment is where the next bundle is.
                let aligns =
                    lines[index..].iter().take_while(|(_, line)| matches!(line, Line::Align(_))).count();
                addresses.insert(name, starts[index + aligns]);
            }
        }
    }
    Ok(program)
}

fn bundle(texts: &[&str], label: &dyn Fn(&str) -> Option<i64>) -> std::result::Result<Bundle, String> {
    if texts == ["nop"] {
        return Bundle::new(&[]).map_err(|error| error.to_string());
    }
    let instructions: std::result::Result<Vec<(Slot, u64)>, String> = texts
        .iter()
        .map(|text| parse(text, label).map(|instruction| (instruction.slot(), instruction.encode())))
        .collect();
    let mut instructions = instructions?;
    instructions.sort_unstable();
    if let Some(pair) = instructions.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!("two instructions in slot {}", pair[0].0.name()));
    }
    // Not every set of slots has a format; more slots that do nothing may help.
    if let Ok(bundle) = Bundle::new(&instructions) {
        return Ok(bundle);
    }
    let mut best: Option<Bundle> = None;
    for added in 0u8..128 {
        let mut wider = instructions.clone();
        for encoding in ENCODINGS.iter().filter(|encoding| encoding.op == super::Op::Nop) {
            let used = instructions.iter().any(|(slot, _)| *slot == encoding.slot);
            if added >> encoding.slot as u8 & 1 != 0 && !used {
                wider.push((encoding.slot, encoding.value));
            }
        }
        if let Ok(bundle) = Bundle::new(&wider)
            && best.as_ref().is_none_or(|best| bundle.bytes() < best.bytes())
        {
            best = Some(bundle);
        }
    }
    best.ok_or_else(|| "no bundle has these slots together".to_owned())
}

/// The text of a program, which assembles to the same bytes.
pub fn disassemble(program: &[u8]) -> Result<String> {
    let mut text = String::new();
    let mut at = 0;
    for bundle in Bundle::decode_all(program)? {
        let instructions: Result<Vec<Instruction>> =
            bundle.instructions().iter().map(|&(slot, bits)| Instruction::decode(slot, bits)).collect();
        let instructions = instructions.map_err(|error| error.moved(at))?;
        let texts: Vec<String> = instructions.iter().map(Instruction::to_string).collect();
        let line = if texts.is_empty() { "nop".to_owned() } else { texts.join("; ") };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line:<80} // {at:#06x}");
        at += bundle.bytes();
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_comments_and_alignment() {
        let program =
            assemble("j end // five delay slots\nnop\n.align 16\nend: back:\n  movxm ls, end\n jnz r3, back")
                .expect("a program");
        let text = disassemble(&program).expect("its text");
        assert_eq!(program.len(), 16 + 12);
        assert!(
            text.starts_with("j #16 ") && text.contains("movxm ls, #16 ") && text.contains("jnz r3, #16 ")
        );
        let error = assemble("nop\nj nowhere").expect_err("no such label").to_string();
        assert!(error.contains("line 2") && error.contains("j nowhere"), "{error}");
    }

    #[test]
    fn slots_without_a_format_are_filled() {
        // No format has these two alone.
        let program =
            assemble("vldb wl0, [p0], #32; vlda wl2, [p1], #32; mov r0, #1; vclr cm0").expect("a program");
        let bundles = Bundle::decode_all(&program).expect("bundles");
        assert_eq!(bundles.len(), 1);
        let error = assemble("add r0, r0, #1; movx r0, #1").expect_err("the same slot").to_string();
        assert!(error.contains("two instructions in slot alu"), "{error}");
    }
}
