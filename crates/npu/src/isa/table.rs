//! The encodings: the one place that knows them.
//!
//! A row has the slot, what the instruction does, its text, and its bits from the highest to the lowest. In the text,
//! `d:r` is operand `d` of kind `r`. In the bits, `d5` are the next five bits of operand `d`, and `x` is a bit without
//! a meaning, which is zero. `ALL` and `NEAR` stand for the ways to address memory, in steps of the number that
//! follows.
//!
//! The layouts are facts of the public descriptions of the architecture, checked against the public overlays.

use super::{Mode, Op};
use crate::bundle::Slot::{self, Alu, LoadA, LoadB, Long, Move, Store, Vector};

/// Ways to address memory of most loads and stores: mode, text, bits.
pub(super) const ALL: [(Mode, &str, &str); 7] = [
    (Mode::Register, ", [p:p, j:dj]", "p3 j3 100 0010"),
    (Mode::Constant, ", [p:p, i:iSTEP]", "p3 i6 1010"),
    (Mode::ThenRegister, ", [p:p], m:m", "p3 m3 010 0010"),
    (Mode::ThenConstant, ", [p:p], i:iSTEP", "p3 i7 110"),
    (Mode::ThenTwo, ".2d, [p:p], m:d", "p3 m3 110 0010"),
    (Mode::ThenThree, ".3d, [p:p], m:d3", "p3 0 m2 000 0010"),
    (Mode::Stack, ", [sp, i:nSTEP]", "i12 1"),
];

/// Ways to address memory of the others.
pub(super) const NEAR: [(Mode, &str, &str); 6] = [
    (Mode::Register, ", [p:p, j:dj]", "p3 j3 100"),
    (Mode::Constant, ", [p:p, i:iSTEP]", "p3 i3 011"),
    (Mode::ThenRegister, ", [p:p], m:m", "p3 m3 010"),
    (Mode::ThenConstant, ", [p:p], i:iSTEP", "p3 i4 01"),
    (Mode::ThenTwo, ".2d, [p:p], m:d", "p3 m3 110"),
    (Mode::ThenThree, ".3d, [p:p], m:d3", "p3 0 m2 000"),
];

pub(super) const TABLE: [(Slot, Op, &str, &str); 93] = [
    // Arithmetic, constants, jumps, locks.
    (Alu, Op::Nop, "nopx", "0000000000 0000000000"),
    (Alu, Op::Add, "add d:r, a:r, i:i1", "a5 d5 i7 110"),
    (Alu, Op::Add, "add d:r, a:r, b:r", "a5 d5 b5 0000 1"),
    (Alu, Op::Sub, "sub d:r, a:r, b:r", "a5 d5 b5 0001 1"),
    (Alu, Op::And, "and d:r, a:r, b:r", "a5 d5 b5 0100 1"),
    (Alu, Op::Or, "or d:r, a:r, b:r", "a5 d5 b5 0101 1"),
    (Alu, Op::Xor, "xor d:r, a:r, b:r", "a5 d5 b5 0110 1"),
    (Alu, Op::Eq, "eq d:r, a:r, b:r", "a5 d5 b5 0111 1"),
    (Alu, Op::Ne, "ne d:r, a:r, b:r", "a5 d5 b5 1000 1"),
    (Alu, Op::Ge, "ge d:r, a:r, b:r", "a5 d5 b5 1001 1"),
    (Alu, Op::Lt, "lt d:r, a:r, b:r", "a5 d5 b5 1010 1"),
    (Alu, Op::Geu, "geu d:r, a:r, b:r", "a5 d5 b5 1011 1"),
    (Alu, Op::Ltu, "ltu d:r, a:r, b:r", "a5 d5 b5 1100 1"),
    (Alu, Op::Lshl, "lshl d:r, a:r, b:r", "a5 d5 b5 1101 1"),
    (Alu, Op::Ashl, "ashl d:r, a:r, b:r", "a5 d5 b5 1110 1"),
    (Alu, Op::Mul, "mul d:r, a:r, b:r", "a5 d5 b5 1111 1"),
    (Alu, Op::Eqz, "eqz d:r, a:r", "a5 d5 0110 11100 0"),
    (Alu, Op::Nez, "nez d:r, a:r", "a5 d5 0111 11100 0"),
    (Alu, Op::Constant, "movx d:movx, i:i1", "i5 d6 i6 010"),
    (Alu, Op::Move, "movx d:cr, a:r", "a5 d4 xxxx 1 00000 0"),
    (Alu, Op::SelectEqz, "sel.eqz d:r, a:r, b:r", "a5 d5 b5 0 1100"),
    (Alu, Op::SelectNez, "sel.nez d:r, a:r, b:r", "a5 d5 b5 1 1100"),
    (Alu, Op::Jump, "j p:p", "0000000000 p3 0001000"),
    (Alu, Op::Call, "jl p:p", "0000000000 p3 0101000"),
    (Alu, Op::Return, "ret lr", "0000000000 0000110000"),
    (Alu, Op::JumpDecrement, "jnzd d:r, a:r, p:p", "a5 d5 p3 0011000"),
    (Alu, Op::Divide, "divs d:r, r31, a:r, b:r", "a5 d5 b5 1010 0"),
    (Alu, Op::Done, "done", "0000000000 0000010000"),
    (Alu, Op::Event, "event i:u", "i2 000000000000 100000"),
    (Alu, Op::Acquire, "acq i:u, b:r", "i6 0 x 01 b5 00100"),
    (Alu, Op::Acquire, "acq a:r, b:r", "a5 x1 x 01 b5 00100"),
    (Alu, Op::Release, "rel i:u, b:r", "i6 0 x 00 b5 00100"),
    (Alu, Op::Release, "rel a:r, b:r", "a5 x1 x 00 b5 00100"),
    // Moves and permutations.
    (Move, Op::Nop, "nopm", "0000000000 000000 111000"),
    (Move, Op::Add, "add.nc d:mov, a:r, i:i1", "d7 a5 i4 11 i2 11"),
    (Move, Op::Constant, "mov d:mov, i:i1", "d7 i9 11 i1 1 00"),
    (Move, Op::Move, "mov d:mov, a:movs", "d7 a7 10 1100 10"),
    (Move, Op::MoveQuarter, "vmov d:qt, a:qs", "d7 a9 1110 10"),
    (Move, Op::MoveHalf, "vmov d:ht, a:hs", "d6 0 a9 1101 10"),
    (Move, Op::MoveWhole, "vmov d:cm, a:cm", "d4 0 01 a4 xxxxx 1101 10"),
    (Move, Op::Shuffle, "vshuffle d:shuffle, a:x, b:x, c:r", "d5 00 c5 a4 b4 11"),
    (Move, Op::Broadcast8, "vbcst.8 d:x, a:r", "d4 00 0 a5 x 0 xx 1111 01"),
    (Move, Op::Broadcast16, "vbcst.16 d:x, a:r", "d4 01 0 a5 x 0 xx 1111 01"),
    (Move, Op::Broadcast32, "vbcst.32 d:x, a:r", "d4 10 0 a5 x 0 xx 1111 01"),
    (Move, Op::Widen3264, "vups.s64.s32 d:cm, a:x, s:s", "d4 0 s2 11 10 x a4 1111 10"),
    (Move, Op::Widen1632, "vups.s32.s16 d:cm, a:x, s:s", "d4 0 s2 01 10 x a4 1111 10"),
    (Move, Op::Widen3264, "vups.s64.s32 d:bm, a:ws, s:s", "d5 s2 11 01 a5 1111 10"),
    (Move, Op::Widen1632, "vups.s32.s16 d:bm, a:ws, s:s", "d5 s2 01 01 a5 1111 10"),
    // Loads by unit A.
    (LoadA, Op::Nop, "nopa", "000000000 0000 00000 000"),
    (LoadA, Op::Load, "lda d:scalar ALL4", "ALL d7 1"),
    (LoadA, Op::Constant, "mova d:mova, i:i1", "i11 00 d7 1"),
    (LoadA, Op::LoadVector, "vlda d:w ALL32", "ALL d5 111"),
    (LoadA, Op::LoadVector, "vlda d:am ALL32", "ALL d6 10"),
    (LoadA, Op::LoadWiden3264, "vlda.ups.s64.s32 d:bm, s:s NEAR32", "NEAR s2 11 d5 100"),
    (LoadA, Op::LoadWiden1632, "vlda.ups.s32.s16 d:bm, s:s NEAR32", "NEAR s2 01 d5 100"),
    (LoadA, Op::Advance, "padda [p:p], m:m", "p3 m3 010 xxxx 11 xx 01 10"),
    (LoadA, Op::Advance, "padda [p:p], i:i4", "p3 i10 11 xx 11 10"),
    (LoadA, Op::AdvanceTwo, "padda.2d [p:p], m:d", "p3 m3 110 xxxx 11 xx 01 10"),
    (LoadA, Op::AdvanceThree, "padda.3d [p:p], m:d3", "p3 0 m2 000 xxxx 11 xx 01 10"),
    (LoadA, Op::AdvanceStack, "padda [sp], i:i32", "i13 11 xx 10 10"),
    (LoadA, Op::LoadTile, "lda.tm d:r, [p:p]", "p3 xxxxxx 1110 d5 000"),
    (LoadA, Op::CascadeLow, "vmov.lo d:cm, scd", "xxxxxx 111 xxxx d4 0 100"),
    (LoadA, Op::CascadeHigh, "vmov.hi d:cm, scd", "xxxxxx 111 xxxx d4 1 100"),
    // Loads by unit B.
    (LoadB, Op::Nop, "nopb", "000000000 0000000"),
    (LoadB, Op::LoadVector, "vldb d:w NEAR32", "NEAR d5 01"),
    (LoadB, Op::Advance, "paddb [p:p], m:m", "p3 m3 010 11 xxx 01"),
    (LoadB, Op::Advance, "paddb [p:p], i:i4", "p3 i6 11 i3 10"),
    (LoadB, Op::AdvanceStack, "paddb [sp], i:i32", "i9 11 i3 00"),
    // Stores.
    (Store, Op::Nop, "nops", "000000000 0000 00000 000"),
    (Store, Op::Store, "st a:scalar ALL4", "ALL a7 0"),
    (Store, Op::StoreVector, "vst a:w ALL32", "ALL a5 111"),
    (Store, Op::StoreVector, "vst a:am ALL32", "ALL a6 01"),
    (Store, Op::StoreNarrow6432, "vst.srs.s32.s64 a:bm, s:s NEAR32", "NEAR s2 11 a5 1 10"),
    (Store, Op::StoreNarrow3216, "vst.srs.s16.s32 a:bm, s:s NEAR32", "NEAR s2 01 a5 1 10"),
    (Store, Op::StoreNarrow6416, "vst.srs.s16.s64 a:cm, s:s NEAR32", "NEAR s2 11 a4 00 10"),
    (Store, Op::StoreNarrow328, "vst.srs.s8.s32 a:cm, s:s NEAR32", "NEAR s2 01 a4 00 10"),
    (Store, Op::Advance, "padds [p:p], m:m", "p3 m3 010 xxxx 11 xx 01 01"),
    (Store, Op::Advance, "padds [p:p], i:i4", "p3 i10 11 xx 11 01"),
    (Store, Op::AdvanceTwo, "padds.2d [p:p], m:d", "p3 m3 110 xxxx 11 xx 01 01"),
    (Store, Op::AdvanceThree, "padds.3d [p:p], m:d3", "p3 0 m2 000 xxxx 11 xx 01 01"),
    (Store, Op::StoreTile, "st.tm a:scalar, [p:p]", "p3 1 x 0111 1000 a7 0"),
    (Store, Op::CascadeWrite, "vmov mcd, a:mcd", "0000 11111 0000 a6 10"),
    // Vector arithmetic.
    (Vector, Op::Nop, "nopv", "00000 0000 0000 0000 1111 00000"),
    (Vector, Op::MultiplyAdd, "vmac d:cm, e:cm, a:x, b:x, c:r", "c5 e4 0 a4 b4 d4 0000"),
    (Vector, Op::Multiply, "vmul d:cm, a:x, b:x, c:r", "c5 1111 0 a4 b4 d4 0000"),
    // Operand d is an accumulator that is added, and the target.
    (Vector, Op::MultiplyAddTwo, "vaddmac d:cm, e:cm, a:x, b:x, c:r", "c5 d4 1 a4 b4 e4 0000"),
    (Vector, Op::Clear, "vclr d:cm", "xxxxx xxxx 0 1111 0000 d4 1000"),
    // Jumps and moves with long constants.
    (Long, Op::Nop, "nopxm", "00000 00000000000000000000 00000000000000 000"),
    (Long, Op::Constant, "movxm d:mov, i:i1", "i20 d7 i12 001"),
    (Long, Op::Jump, "j i:u", "00000 i20 00000000000000 010"),
    (Long, Op::Call, "jl i:u", "00000 i20 00000000000000 100"),
    (Long, Op::JumpIfZero, "jz a:r, i:u", "a5 i20 0 0000000000000 110"),
    (Long, Op::JumpUnlessZero, "jnz a:r, i:u", "a5 i20 1 0000000000000 110"),
];
