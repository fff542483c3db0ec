//! A core's registers.

use super::vector::Lanes;
use crate::isa::Register;

/// A file of wide registers, in parts of 256 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum File {
    /// Halves of vector registers.
    Vector,
    /// Quarters of accumulators.
    Accumulator,
}

const VECTOR_PARTS: usize = 24;
const ACCUMULATOR_PARTS: usize = 36;
const SCALARS: usize = 99;
/// Bits of pointers and their kin.
const POINTER_MASK: u32 = 0xf_ffff;

#[derive(Debug, Clone)]
pub(super) struct Registers {
    scalars: [u32; SCALARS],
    vectors: Vec<[u32; 8]>,
    accumulators: Vec<[u32; 8]>,
}

/// Place of a scalar register. Others are never asked for by instructions that take scalars.
pub(super) fn index(register: Register) -> usize {
    match register {
        Register::R(n) => usize::from(n),
        Register::P(n) => 32 + usize::from(n),
        Register::M(n) => 40 + usize::from(n),
        Register::Dn(n) => 48 + usize::from(n),
        Register::Dj(n) => 56 + usize::from(n),
        Register::Dc(n) => 64 + usize::from(n),
        Register::S(n) => 72 + usize::from(n),
        Register::LoopStart => 76,
        Register::LoopEnd => 77,
        Register::Link => 78,
        Register::Stack => 79,
        Register::LoopCount => 80,
        Register::Control(n) => 81 + usize::from(n & 15),
        Register::CoreId => 97,
        Register::D(_)
        | Register::D3(_)
        | Register::W(_)
        | Register::X(_)
        | Register::Am(_)
        | Register::Bm(_)
        | Register::Cm(_) => SCALARS - 1,
    }
}

/// Whether a scalar register has 20 bits.
pub(super) fn is_pointer(index: usize) -> bool {
    (32..72).contains(&index) || (76..80).contains(&index)
}

/// File, first part and number of parts of a wide register.
pub(super) fn parts(register: Register) -> (File, usize, usize) {
    match register {
        Register::W(n) => (File::Vector, usize::from(n), 1),
        Register::X(n) => (File::Vector, 2 * usize::from(n), 2),
        Register::Am(n) => (File::Accumulator, usize::from(n), 1),
        Register::Bm(n) => (File::Accumulator, 2 * usize::from(n), 2),
        Register::Cm(n) => (File::Accumulator, 4 * usize::from(n), 4),
        // Instructions that take wide registers have no others.
        _ => (File::Vector, 0, 0),
    }
}

impl Registers {
    pub(super) fn new() -> Self {
        Self {
            scalars: [0; SCALARS],
            vectors: vec![[0; 8]; VECTOR_PARTS],
            accumulators: vec![[0; 8]; ACCUMULATOR_PARTS],
        }
    }

    pub(super) fn scalar(&self, register: Register) -> u32 {
        self.scalars[index(register)]
    }

    pub(super) fn set_scalar(&mut self, index: usize, value: u32) {
        self.scalars[index] = if is_pointer(index) { value & POINTER_MASK } else { value };
    }

    fn file(&self, file: File) -> &[[u32; 8]] {
        match file {
            File::Vector => &self.vectors,
            File::Accumulator => &self.accumulators,
        }
    }

    pub(super) fn lanes(&self, file: File, first: usize, count: usize) -> Lanes {
        Lanes::from_parts(&self.file(file)[first..first + count])
    }

    pub(super) fn set_lanes(&mut self, file: File, first: usize, lanes: &Lanes) {
        let parts = lanes.parts();
        let file = match file {
            File::Vector => &mut self.vectors,
            File::Accumulator => &mut self.accumulators,
        };
        file[first..first + parts.len()].copy_from_slice(parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_scalars_share_a_place() {
        let mut places = vec![0; SCALARS];
        let files: [fn(u8) -> Register; 5] =
            [Register::P, Register::M, Register::Dn, Register::Dj, Register::Dc];
        (0..32).for_each(|n| places[index(Register::R(n))] += 1);
        files.iter().for_each(|file| (0..8).for_each(|n| places[index(file(n))] += 1));
        (0..4).for_each(|n| places[index(Register::S(n))] += 1);
        (0..16).for_each(|n| places[index(Register::Control(n))] += 1);
        for register in [
            Register::LoopStart,
            Register::LoopEnd,
            Register::Link,
            Register::Stack,
            Register::LoopCount,
            Register::CoreId,
        ] {
            places[index(register)] += 1;
        }
        assert_eq!(places, [vec![1; SCALARS - 1], vec![0]].concat());
    }
}
