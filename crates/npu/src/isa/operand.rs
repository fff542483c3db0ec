//! Operands: registers and constants, and how their codes are laid out in the fields of instructions.

use std::fmt;

/// A register of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// General register `r0` to `r31`, 32 bits.
    R(u8),
    /// Pointer `p0` to `p7`, 20 bits.
    P(u8),
    /// Modifier `m0` to `m7`: what is added to a pointer.
    M(u8),
    /// Size of a dimension, `dn0` to `dn7`.
    Dn(u8),
    /// Offset, or step of a dimension, `dj0` to `dj7`.
    Dj(u8),
    /// Counter of a dimension, `dc0` to `dc7`.
    Dc(u8),
    /// Modifier, size, step and counter of a dimension, `d0` to `d7`.
    D(u8),
    /// The dimensions `d0` and `d4`, to `d3` and `d7`.
    D3(u8),
    /// Shift of accumulators, `s0` to `s3`.
    S(u8),
    /// First bundle of the hardware loop.
    LoopStart,
    /// Last bundle of the hardware loop.
    LoopEnd,
    /// Iterations of the hardware loop that are left.
    LoopCount,
    /// Return address.
    Link,
    /// Stack pointer.
    Stack,
    /// Where the core is: its column in the upper half, its row in the lower.
    CoreId,
    /// Control register, by its number.
    Control(u8),
    /// Half of a vector register, 256 bits: twice its number, plus one for the upper half.
    W(u8),
    /// Vector register `x0` to `x11`, 512 bits.
    X(u8),
    /// Quarter of an accumulator, 256 bits: four times its number, plus the quarter.
    Am(u8),
    /// Half of an accumulator, 512 bits: twice its number, plus one for the upper half.
    Bm(u8),
    /// Accumulator `cm0` to `cm8`, 1024 bits.
    Cm(u8),
}

/// Number of the control register for saturation.
pub(crate) const CR_SATURATION: u8 = 9;
/// Number of the control register for rounding.
pub(crate) const CR_ROUNDING: u8 = 6;

/// Numbers of the control registers that switch the cascade to the south and from the north.
pub(crate) const CR_CASCADES: [u8; 2] = [4, 7];

/// Control registers by their numbers.
const CONTROLS: [(u8, &str); 12] = [
    (0, "crVaddSign"),
    (1, "crF2FMask"),
    (2, "crF2IMask"),
    (3, "crFPMask"),
    (4, "crMCDEn"),
    (5, "crPackSign"),
    (CR_ROUNDING, "crRnd"),
    (7, "crSCDEn"),
    (8, "crSRSSign"),
    (CR_SATURATION, "crSat"),
    (10, "crUPSSign"),
    (11, "crUnpackSign"),
];

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::R(n) => write!(f, "r{n}"),
            Self::P(n) => write!(f, "p{n}"),
            Self::M(n) => write!(f, "m{n}"),
            Self::Dn(n) => write!(f, "dn{n}"),
            Self::Dj(n) => write!(f, "dj{n}"),
            Self::Dc(n) => write!(f, "dc{n}"),
            Self::D(n) | Self::D3(n) => write!(f, "d{n}"),
            Self::S(n) => write!(f, "s{n}"),
            Self::LoopStart => f.write_str("ls"),
            Self::LoopEnd => f.write_str("le"),
            Self::LoopCount => f.write_str("lc"),
            Self::Link => f.write_str("lr"),
            Self::Stack => f.write_str("sp"),
            Self::CoreId => f.write_str("core_id"),
            Self::Control(n) => match CONTROLS.iter().find(|(number, _)| *number == n) {
                Some((_, name)) => f.write_str(name),
                None => write!(f, "cr{n}"),
            },
            Self::W(n) => write!(f, "w{}{}", ["l", "h"][usize::from(n % 2)], n / 2),
            Self::X(n) => write!(f, "x{n}"),
            Self::Am(n) => write!(f, "am{}{}", ["ll", "lh", "hl", "hh"][usize::from(n % 4)], n / 4),
            Self::Bm(n) => write!(f, "bm{}{}", ["l", "h"][usize::from(n % 2)], n / 2),
            Self::Cm(n) => write!(f, "cm{n}"),
        }
    }
}

/// An operand of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Register(Register),
    /// A constant, in the unit that it is used in: bytes for addresses.
    Constant(i64),
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(register) => register.fmt(f),
            Self::Constant(value) => write!(f, "#{value}"),
        }
    }
}

/// Which operands a field takes, and how they are coded in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    R,
    P,
    M,
    Dj,
    D,
    D3,
    S,
    X,
    Cm,
    Bm,
    Am,
    W,
    Control,
    /// Half of a vector register as the source of a move to an accumulator.
    WideSource,
    /// Target of a load, or source of a store.
    Scalar,
    /// Target of a constant from the unit of loads.
    LoadConstant,
    /// Target of a constant from the arithmetic unit.
    AluConstant,
    /// Target of a move.
    Move,
    /// Source of a move.
    MoveSource,
    /// What is written to the cascade.
    CascadeSource,
    /// Target of a shuffle.
    Shuffle,
    /// Sides of moves of 256 and 512 bits.
    QuarterTarget,
    QuarterSource,
    HalfTarget,
    HalfSource,
    /// A constant with a sign, in steps.
    Signed(i64),
    Unsigned,
    /// A constant below zero, in steps.
    Negative(i64),
}

impl Kind {
    /// The kind that the table names so.
    pub(super) fn named(name: &str) -> Option<Self> {
        let step = |text: &str| text.parse().ok();
        Some(match name {
            "r" => Self::R,
            "p" => Self::P,
            "m" => Self::M,
            "dj" => Self::Dj,
            "d" => Self::D,
            "d3" => Self::D3,
            "s" => Self::S,
            "x" => Self::X,
            "cm" => Self::Cm,
            "bm" => Self::Bm,
            "am" => Self::Am,
            "w" => Self::W,
            "cr" => Self::Control,
            "ws" => Self::WideSource,
            "scalar" => Self::Scalar,
            "mova" => Self::LoadConstant,
            "movx" => Self::AluConstant,
            "mov" => Self::Move,
            "movs" => Self::MoveSource,
            "mcd" => Self::CascadeSource,
            "shuffle" => Self::Shuffle,
            "qt" => Self::QuarterTarget,
            "qs" => Self::QuarterSource,
            "ht" => Self::HalfTarget,
            "hs" => Self::HalfSource,
            "u" => Self::Unsigned,
            _ if name.starts_with('i') => Self::Signed(step(&name[1..])?),
            _ if name.starts_with('n') => Self::Negative(step(&name[1..])?),
            _ => return None,
        })
    }

    /// The operand with this code in a field of `width` bits; `None` if there is none.
    pub(super) fn decode(self, code: u64, width: u32) -> Option<Operand> {
        let constant = |value: i64| Some(Operand::Constant(value));
        let sign = 1 << (width - 1);
        match self {
            Self::Signed(step) => constant(((code ^ sign) as i64 - sign as i64) * step),
            Self::Unsigned => constant(code as i64),
            Self::Negative(step) => constant((code as i64 - (1 << width)) * step),
            _ => self.register(u16::try_from(code).ok()?).map(Operand::Register),
        }
    }

    /// The code of an operand in a field of `width` bits; `None` if it has none.
    pub(super) fn encode(self, operand: Operand, width: u32) -> Option<u64> {
        let value = match (self, operand) {
            (Self::Signed(step) | Self::Negative(step), Operand::Constant(value)) if value % step == 0 => {
                value / step
            }
            (Self::Unsigned, Operand::Constant(value)) => value,
            // Registers have at most 9 bits, and decoding is the only place that knows their codes.
            (_, Operand::Register(_)) => {
                return (0..1 << width).find(|&c| self.decode(c, width) == Some(operand));
            }
            _ => return None,
        };
        let code = value as u64 & ((1 << width) - 1);
        (self.decode(code, width) == Some(operand)).then_some(code)
    }

    fn register(self, code: u16) -> Option<Register> {
        use Register::{
            Am, Bm, Cm, Control, CoreId, D, D3, Dc, Dj, Dn, Link, LoopCount, LoopEnd, LoopStart, M, P, R, S,
            Stack, W, X,
        };
        let n = code as u8;
        // Halves of vector registers by their number, and whether they are the upper ones.
        let half = |number: u16, upper: u16| (number < 12).then_some(W((2 * number + upper) as u8));
        let dimension = |code: u16| {
            let register = [M, Dn, Dj, Dc].get(usize::from(code >> 3))?;
            Some(register(code as u8 & 7))
        };
        match self {
            Self::R => Some(R(n)),
            Self::P => Some(P(n)),
            Self::M => Some(M(n)),
            Self::Dj => Some(Dj(n)),
            Self::D => Some(D(n)),
            Self::D3 => Some(D3(n)),
            Self::S => Some(S(n)),
            Self::X => (code < 12).then_some(X(n)),
            Self::Cm => (code < 9).then_some(Cm(n)),
            Self::Bm => (code < 18).then_some(Bm(n)),
            Self::Am => (code < 36).then_some(Am(n)),
            Self::W => half(code >> 1, code & 1),
            Self::WideSource => half((code & 7) * 2 + (code >> 3 & 1), code >> 4),
            Self::Control => CONTROLS.iter().any(|(number, _)| *number == n).then_some(Control(n)),
            Self::Scalar | Self::LoadConstant => match code {
                0b000_0101 if self == Self::Scalar => Some(Link),
                0b001_0101 if self == Self::LoadConstant => Some(LoopCount),
                _ if code & 0b11 == 0 => Some(R(n >> 2)),
                _ if code & 0b11 == 0b10 => dimension(code >> 2),
                _ if code & 0b1111 == 0b1101 => Some(P(n >> 4)),
                _ => None,
            },
            Self::AluConstant => match code {
                1 => Some(LoopCount),
                _ if code & 1 == 0 => Some(R(n >> 1)),
                _ => None,
            },
            Self::Move => match code {
                _ if code & 0b11 == 0 => Some(R(n >> 2)),
                _ if code & 0b11 == 0b10 => dimension(code >> 2),
                _ if code & 0b1111 == 0b0011 => Some(P(n >> 4)),
                _ if code & 0b1_1111 == 0b0_1011 => Some(S(n >> 5)),
                _ if code & 0b111 == 0b001 => Self::Control.register(code >> 3),
                _ if code & 0b111 == 0b111 => match code >> 3 {
                    0 => Some(LoopStart),
                    4 => Some(Link),
                    8 => Some(LoopEnd),
                    10 => Some(LoopCount),
                    12 => Some(Stack),
                    _ => None,
                },
                _ => None,
            },
            Self::MoveSource if code == 0b011_0111 => Some(CoreId),
            Self::MoveSource => Self::Move.register(code),
            Self::CascadeSource => match code & 1 {
                0 => None,
                _ => Self::Bm.register(code >> 1),
            },
            Self::Shuffle => match code & 1 {
                0 => Self::X.register(code >> 1),
                // Of the halves of accumulators, only those of the first eight.
                _ => Some(Bm(((code >> 1 & 7) * 2 + (code >> 4)) as u8)),
            },
            Self::QuarterTarget => match code & 0b11 {
                0 => half((code >> 2 & 7) * 2 + (code >> 5 & 1), code >> 6),
                2 => None,
                _ => Self::Am.register(code >> 1),
            },
            Self::QuarterSource => match code {
                _ if code >> 5 == 0b1100 => half((code & 7) * 2 + (code >> 3 & 1), code >> 4 & 1),
                _ if code & 0b111 == 0b001 => Self::Am.register(code >> 3),
                _ => None,
            },
            Self::HalfTarget => match code & 0b11 {
                0 => Self::X.register(code >> 2),
                2 => None,
                _ => Self::Bm.register(code >> 1),
            },
            Self::HalfSource => match code {
                _ if code >> 4 == 0b1_1000 => Self::X.register(code & 0b1111),
                _ if code & 0b1111 == 0 => Self::Bm.register(code >> 4),
                _ => None,
            },
            Self::Signed(_) | Self::Unsigned | Self::Negative(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers that a field takes.
    fn count(kind: Kind, width: u32) -> usize {
        (0..1 << width).filter_map(|code| kind.decode(code, width)).count()
    }

    #[test]
    fn every_register_has_one_code() {
        let scalars = 32 + 8 + 4 * 8 + 1;
        for (kind, width, registers) in [
            (Kind::Scalar, 7, scalars),
            (Kind::LoadConstant, 7, scalars),
            (Kind::AluConstant, 6, 33),
            (Kind::Move, 7, 32 + 8 + 4 * 8 + 4 + CONTROLS.len() + 5),
            (Kind::MoveSource, 7, 32 + 8 + 4 * 8 + 4 + CONTROLS.len() + 6),
            (Kind::CascadeSource, 6, 18),
            (Kind::W, 5, 24),
            (Kind::WideSource, 5, 24),
            (Kind::X, 4, 12),
            (Kind::Am, 6, 36),
            (Kind::Bm, 5, 18),
            (Kind::Cm, 4, 9),
            (Kind::Shuffle, 5, 12 + 16),
            (Kind::QuarterTarget, 7, 24 + 36),
            (Kind::QuarterSource, 9, 24 + 36),
            (Kind::HalfTarget, 6, 12 + 18),
            (Kind::HalfSource, 9, 12 + 18),
        ] {
            assert_eq!(count(kind, width), registers, "{kind:?}");
            for code in 0..1 << width {
                let operand = kind.decode(code, width);
                assert!(
                    operand.is_none_or(|operand| kind.encode(operand, width) == Some(code)),
                    "{kind:?} {code}"
                );
            }
        }
    }
}
