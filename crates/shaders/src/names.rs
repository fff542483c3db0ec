//! Removes parameter types from function names in SPIR-V.
//!
//! glslang mangles them into `OpName`, and some array sizes as the address of an object in its memory, so the
//! module would be different in every run. Names serve only debuggers and validation messages.

const HEADER_WORDS: usize = 5;
const OP_NAME: u32 = 5;

/// The same module with function names cut at their `(`.
pub fn cut_function_names(words: &[u32]) -> Result<Vec<u32>, String> {
    let (header, mut rest) = words.split_at_checked(HEADER_WORDS).ok_or("not a SPIR-V module")?;
    let mut result = header.to_vec();
    while let Some(&first) = rest.first() {
        let length = (first >> 16) as usize;
        let (instruction, tail) = rest
            .split_at_checked(length.max(1))
            .ok_or("malformed SPIR-V: an instruction runs past the end")?;
        match instruction {
            [_, id, name @ ..] if first & 0xffff == OP_NAME => {
                let name = cut(name);
                result.push((name.len() as u32 + 2) << 16 | OP_NAME);
                result.push(*id);
                result.extend(name);
            }
            _ => result.extend(instruction),
        }
        rest = tail;
    }
    Ok(result)
}

/// A zero-terminated string in words, up to the first `(`.
fn cut(name: &[u32]) -> Vec<u32> {
    let bytes = name.iter().flat_map(|word| word.to_le_bytes());
    let mut kept: Vec<u8> = bytes.take_while(|byte| *byte != 0 && *byte != b'(').collect();
    kept.resize((kept.len() / 4 + 1) * 4, 0);
    kept.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An `OpName` instruction.
    fn named(id: u32, name: &str) -> Vec<u32> {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize((bytes.len() / 4 + 1) * 4, 0);
        let text: Vec<u32> =
            bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
        [vec![(text.len() as u32 + 2) << 16 | OP_NAME, id], text].concat()
    }

    #[test]
    fn function_names_lose_their_parameter_types_and_nothing_else_changes() {
        let module = |names: [&str; 3]| {
            let names = names.iter().zip(1..).flat_map(|(name, id)| named(id, name));
            [vec![0x0723_0203, 0x1_0600, 0, 9, 0], names.collect(), vec![2 << 16 | 19, 7]].concat()
        };
        let mangled = module(["main", "load(u1;struct-A[s0x55960f2];", "three"]);
        assert_eq!(cut_function_names(&mangled), Ok(module(["main", "load", "three"])));
        assert!(cut_function_names(&mangled[..mangled.len() - 1]).is_err());
        assert!(cut_function_names(&[1, 2]).is_err());
    }
}
