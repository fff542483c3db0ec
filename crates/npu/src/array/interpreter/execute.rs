//! What each instruction does when it is issued.

use super::registers::{index, is_pointer, parts};
use super::vector::{self, Bypass, Lanes, Product};
use super::{
    Action, DELAY_SLOTS, Event, Interpreter, LoadTarget, LockRequest, OWN_LOCKS, OWN_REGISTERS, State, Words,
};

use crate::isa::{CR_CASCADES, CR_ROUNDING, CR_SATURATION, Mode, Op, Register};
use crate::tile::TilePlace;

/// Bits of a pointer.
const POINTER_BITS: u32 = 20;

impl Interpreter {
    /// Executes an instruction of the bundle at `pc`; the target if it jumps.
    pub(super) fn execute(
        &mut self,
        action: &Action,
        place: TilePlace,
        pc: u32,
        next: u32,
    ) -> Result<Option<u32>, String> {
        let value = |register| self.registers.scalar(register);
        let (a, b) = (value(action.a), value(action.b));
        match action.op {
            Op::Nop | Op::Event => {}
            Op::Add => {
                let b = action.constant.map_or(b, |constant| constant as u32);
                self.set(action.d, 1, a.wrapping_add(b));
            }
            Op::Sub => self.set(action.d, 1, a.wrapping_sub(b)),
            Op::And => self.set(action.d, 1, a & b),
            Op::Or => self.set(action.d, 1, a | b),
            Op::Xor => self.set(action.d, 1, a ^ b),
            Op::Eq => self.set(action.d, 1, u32::from(a == b)),
            Op::Ne => self.set(action.d, 1, u32::from(a != b)),
            Op::Ge => self.set(action.d, 1, u32::from(a as i32 >= b as i32)),
            Op::Lt => self.set(action.d, 1, u32::from((a as i32) < b as i32)),
            Op::Geu => self.set(action.d, 1, u32::from(a >= b)),
            Op::Ltu => self.set(action.d, 1, u32::from(a < b)),
            // Below zero, the shift is to the right.
            Op::Lshl => {
                let left = a.checked_shl(b).unwrap_or(0);
                let right = a.checked_shr((b as i32).unsigned_abs()).unwrap_or(0);
                self.set(action.d, 1, if b as i32 >= 0 { left } else { right });
            }
            Op::Ashl => {
                let left = a.checked_shl(b).unwrap_or(0);
                let right = a as i32 >> (b as i32).unsigned_abs().min(31);
                self.set(action.d, 1, if b as i32 >= 0 { left } else { right as u32 });
            }
            Op::Mul => self.set(action.d, 2, a.wrapping_mul(b)),
            Op::Eqz => self.set(action.d, 1, u32::from(a == 0)),
            Op::Nez => self.set(action.d, 1, u32::from(a != 0)),
            Op::SelectEqz | Op::SelectNez => {
                let zero = value(Register::R(27)) == 0;
                self.set(action.d, 1, if zero == (action.op == Op::SelectEqz) { a } else { b });
            }
            Op::Constant => self.set(action.d, 1, action.constant.unwrap_or(0) as u32),
            Op::Move => {
                if is_pointer(index(action.a)) && !is_pointer(index(action.d)) && a >> (POINTER_BITS - 1) != 0
                {
                    return Err(format!("how {a:#x} is extended to 32 bits is not modelled"));
                }
                if let Register::Control(number) = action.d
                    && CR_CASCADES.contains(&number)
                {
                    return Err("switching the cascade on or off is not modelled".to_owned());
                }
                self.set(action.d, 1, a);
            }
            Op::Jump => return Ok(Some(action.constant.map_or(a_pointer(self, action), |to| to as u32))),
            Op::JumpIfZero | Op::JumpUnlessZero => {
                let taken = (a == 0) == (action.op == Op::JumpIfZero);
                return Ok(taken.then(|| action.constant.unwrap_or(0) as u32));
            }
            // The value before tells whether it jumps: a counter starts at one less than the passes of its loop.
            Op::JumpDecrement => {
                self.set(action.d, 1, a.wrapping_sub(1));
                return Ok((a != 0).then(|| a_pointer(self, action)));
            }
            // One bit of a division: the remainder takes the next bit of r31, which gets a bit of the quotient.
            Op::Divide => {
                let rest = value(Register::R(31));
                let remainder = u64::from(a) << 1 | u64::from(rest >> 31);
                let fits = remainder >= u64::from(b);
                let remainder = if fits { remainder - u64::from(b) } else { remainder };
                self.set(action.d, 1, remainder as u32);
                self.set(Register::R(31), 1, rest << 1 | u32::from(fits));
            }
            Op::Call => {
                let mut link = next;
                for _ in 0..DELAY_SLOTS {
                    // Bundles that cannot be read are a fault when they are reached.
                    link += self.step(place, link).map_or(2, |step| step.bytes);
                }
                self.set(Register::Link, 4, link);
                return Ok(Some(action.constant.map_or(a_pointer(self, action), |to| to as u32)));
            }
            Op::Return => return Ok(Some(value(Register::Link))),
            Op::Done => self.state = State::Done,
            Op::Acquire | Op::Release => self.request_lock(action, pc, a, b)?,
            Op::MoveQuarter => self.copy(action, Bypass::None),
            Op::MoveHalf => self.copy(action, Bypass::Move),
            Op::MoveWhole => self.copy(action, Bypass::None),
            Op::Shuffle => {
                let [a, b] = [action.a, action.b].map(|register| self.wide(register, Bypass::Move));
                let lanes = vector::shuffle(&a, &b, value(action.c))?;
                self.set_wide(action.d, 2, lanes, Bypass::Move);
            }
            Op::Broadcast8 => self.set_wide(action.d, 2, Lanes::broadcast(a, 8), Bypass::Move),
            Op::Broadcast16 => self.set_wide(action.d, 2, Lanes::broadcast(a, 16), Bypass::Move),
            Op::Broadcast32 => self.set_wide(action.d, 2, Lanes::broadcast(a, 32), Bypass::Move),
            Op::Widen1632 | Op::Widen3264 => {
                let from = if action.op == Op::Widen1632 { 16 } else { 32 };
                let source = self.wide(action.a, Bypass::None);
                let lanes = vector::widen(source.words(), from, value(action.shift))?;
                self.set_wide(action.d, 3, lanes, Bypass::None);
            }
            Op::Load => self.load(action, pc, LoadTarget::Scalar(index(action.d)))?,
            Op::LoadVector => {
                let (file, first, _) = parts(action.d);
                self.load(action, pc, LoadTarget::Vector(file, first))?;
            }
            Op::LoadWiden1632 | Op::LoadWiden3264 => {
                let from = if action.op == Op::LoadWiden1632 { 16 } else { 32 };
                let (_, first, _) = parts(action.d);
                let shift = value(action.shift);
                self.load(action, pc, LoadTarget::Accumulator { first, from, shift })?;
            }
            Op::LoadTile | Op::StoreTile => {
                let offset = self.register_offset(action, place)?;
                let event = match action.op {
                    Op::LoadTile => Event::LoadTile { offset, index: index(action.d) },
                    _ => Event::StoreTile { offset, value: a },
                };
                self.schedule(4, event);
            }
            Op::CascadeLow | Op::CascadeHigh => {
                let [low, high] = self.incoming;
                let zero = [0; 8];
                let parts = match action.op {
                    Op::CascadeLow => [low, high, zero, zero],
                    _ => [zero, zero, low, high],
                };
                self.set_wide(action.d, 7, Lanes::from_parts(&parts), Bypass::None);
            }
            Op::CascadeWrite => {
                let lanes = self.wide(action.a, Bypass::None);
                self.outgoing.copy_from_slice(lanes.parts());
            }
            Op::Store => self.store(action, pc, 4, Words::One(a))?,
            Op::StoreVector => {
                let words = self.wide(action.a, Bypass::None).parts()[0];
                self.store(action, pc, 4, Words::Vector(words))?;
            }
            Op::StoreNarrow328 => self.store_narrow(action, pc, (32, 8))?,
            Op::StoreNarrow3216 => self.store_narrow(action, pc, (32, 16))?,
            Op::StoreNarrow6416 => self.store_narrow(action, pc, (64, 16))?,
            Op::StoreNarrow6432 => self.store_narrow(action, pc, (64, 32))?,
            Op::Advance => {
                let by = action.constant.map_or(value(action.modifier), |constant| constant as u32);
                self.set(action.pointer, 1, value(action.pointer).wrapping_add(by));
            }
            Op::AdvanceStack => {
                let by = action.constant.unwrap_or(0) as u32;
                self.set(Register::Stack, 1, value(Register::Stack).wrapping_add(by));
            }
            Op::AdvanceTwo => {
                self.advance_two(action);
            }
            Op::AdvanceThree => {
                self.advance_three(action);
            }
            Op::Multiply | Op::MultiplyAdd | Op::MultiplyAddTwo => {
                let [a, b] = [action.a, action.b].map(|register| self.wide(register, Bypass::None));
                let product = Product::new(value(action.c), &a, &b)?;
                let [(_, target, _), (_, added, _)] = [action.d, action.e].map(parts);
                let accumulators = match action.op {
                    Op::Multiply => [None, None],
                    Op::MultiplyAdd => [Some(added), None],
                    _ => [Some(target), Some(added)],
                };
                if action.op == Op::MultiplyAddTwo && product.clears() {
                    return Err("clearing one of two accumulators is not modelled".to_owned());
                }
                self.schedule(2, Event::Product { target, accumulators, product });
            }
            Op::Clear => self.set_wide(action.d, 5, Lanes::zero(4), Bypass::Product),
        }
        Ok(None)
    }

    fn set(&mut self, register: Register, after: usize, value: u32) {
        self.schedule(after, Event::Scalar { index: index(register), value });
    }

    fn wide(&self, register: Register, bypass: Bypass) -> Lanes {
        let (file, first, count) = parts(register);
        self.lanes(file, first, count, bypass)
    }

    fn set_wide(&mut self, register: Register, after: usize, lanes: Lanes, bypass: Bypass) {
        let (file, first, _) = parts(register);
        self.schedule(after, Event::Vector { file, first, lanes, bypass });
    }

    fn copy(&mut self, action: &Action, bypass: Bypass) {
        let lanes = self.wide(action.a, bypass);
        self.set_wide(action.d, 2, lanes, bypass);
    }

    /// Requests a lock of the tile: a register or a constant says which.
    fn request_lock(&mut self, action: &Action, pc: u32, a: u32, amount: u32) -> Result<(), String> {
        let number = action.constant.unwrap_or(i64::from(a));
        let index = usize::try_from(number - OWN_LOCKS).ok().filter(|index| *index < 16);
        let index = index.ok_or_else(|| format!("lock {number} is not the tile's own"))?;
        let change = amount as i32;
        let acquires = action.op == Op::Acquire;
        if acquires == (change >= 0) || change.unsigned_abs() > 63 {
            return Err(format!("an amount of {change} is not modelled"));
        }
        if self.request.is_some() {
            return Err("another lock is requested in the same cycle".to_owned());
        }
        self.request = Some(LockRequest { index, change, pc });
        Ok(())
    }

    /// The address of a load or store; moves the pointer on.
    fn address(&mut self, action: &Action) -> Result<u32, String> {
        let value = |register| self.registers.scalar(register);
        let pointer = value(action.pointer);
        let constant = action.constant.unwrap_or(0) as u32;
        let mask = (1 << POINTER_BITS) - 1;
        let address = match action.mode {
            Mode::Register => pointer.wrapping_add(value(action.modifier)),
            Mode::Constant => pointer.wrapping_add(constant),
            Mode::ThenRegister => {
                let by = value(action.modifier);
                self.set(action.pointer, 1, pointer.wrapping_add(by));
                pointer
            }
            Mode::ThenConstant => {
                self.set(action.pointer, 1, pointer.wrapping_add(constant));
                pointer
            }
            Mode::Stack => value(Register::Stack).wrapping_add(constant),
            Mode::ThenTwo => self.advance_two(action),
            Mode::ThenThree => self.advance_three(action),
            Mode::None => pointer,
        };
        Ok(address & mask)
    }

    /// Moves a pointer on in two dimensions: as many steps as the size says, then the modifier. Returns the pointer.
    fn advance_two(&mut self, action: &Action) -> u32 {
        let Register::D(n) = action.modifier else { return 0 };
        let value = |register| self.registers.scalar(register);
        let (pointer, count) = (value(action.pointer), value(Register::Dc(n)));
        let (by, count) = match count == value(Register::Dn(n)) {
            true => (value(Register::M(n)), 0),
            false => (value(Register::Dj(n)), count.wrapping_add(1)),
        };
        self.set(action.pointer, 1, pointer.wrapping_add(by));
        self.set(Register::Dc(n), 1, count);
        pointer
    }

    /// The same in three dimensions: the second pair of registers counts the passes of the first.
    fn advance_three(&mut self, action: &Action) -> u32 {
        let Register::D3(n) = action.modifier else { return 0 };
        let value = |register| self.registers.scalar(register);
        let outer = n + 4;
        let pointer = value(action.pointer);
        let counts = [Register::Dc(n), Register::Dc(outer)];
        let [inner_count, outer_count] = counts.map(value);
        let (by, after) = if inner_count != value(Register::Dn(n)) {
            (Register::Dj(n), [inner_count.wrapping_add(1), outer_count])
        } else if outer_count != value(Register::Dn(outer)) {
            (Register::Dj(outer), [0, outer_count.wrapping_add(1)])
        } else {
            (Register::M(n), [0, 0])
        };
        self.set(action.pointer, 1, pointer.wrapping_add(value(by)));
        counts.into_iter().zip(after).for_each(|(register, count)| self.set(register, 1, count));
        pointer
    }

    /// The offset of the tile's register that a pointer names.
    fn register_offset(&self, action: &Action, place: TilePlace) -> Result<u32, String> {
        let address = self.registers.scalar(action.pointer);
        match address.checked_sub(OWN_REGISTERS) {
            Some(offset) if offset.is_multiple_of(4) => Ok(offset),
            _ => Err(format!("{address:#x} is no register of {place}")),
        }
    }

    fn load(&mut self, action: &Action, pc: u32, to: LoadTarget) -> Result<(), String> {
        let address = self.address(action)?;
        self.schedule(4, Event::Load { address, to, pc });
        Ok(())
    }

    fn store(&mut self, action: &Action, pc: u32, after: usize, words: Words) -> Result<(), String> {
        let address = self.address(action)?;
        self.schedule(after, Event::Store { address, words, pc });
        Ok(())
    }

    fn store_narrow(&mut self, action: &Action, pc: u32, widths: (u32, u32)) -> Result<(), String> {
        let value = |register| self.registers.scalar(register);
        let lanes = self.wide(action.a, Bypass::None);
        let (rounding, saturation) =
            (value(Register::Control(CR_ROUNDING)), value(Register::Control(CR_SATURATION)));
        let words = vector::narrow(&lanes, widths, value(action.shift), rounding, saturation)?;
        self.store(action, pc, 6, Words::Vector(words))
    }
}

/// The pointer that a jump names.
fn a_pointer(core: &Interpreter, action: &Action) -> u32 {
    core.registers.scalar(action.pointer)
}
