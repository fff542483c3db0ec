//! CPU reference.

/// The value of byte `byte` at index `k` of a row: the channel changes every `run` values.
pub fn value(table: &[f32], run: usize, k: usize, byte: u8) -> f32 {
    table[k / run % 3 * 256 + usize::from(byte)]
}
