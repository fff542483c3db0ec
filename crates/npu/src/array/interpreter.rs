//! Cores by their instructions: an interpreter of the programs that [`isa`](crate::isa) reads.
//!
//! A core issues one bundle per cycle. Its pipeline is exposed: results arrive a fixed number of cycles after their
//! instruction, nothing waits for them, and an instruction that comes earlier reads the old value. The interpreter
//! therefore keeps what is in flight by the cycle in which it happens:
//!
//! | instruction | result is there after |
//! |---|---|
//! | arithmetic, moves of scalars, pointers | 1 cycle, products 2 |
//! | loads | 7: memory is read in the fifth cycle |
//! | loads that widen into an accumulator | 9 |
//! | stores | 5, those of narrowed accumulators 7 |
//! | moves and permutations of vectors | 2, or 1 for each other |
//! | products of vectors | 5; accumulators are read in the third cycle, and those of products a cycle earlier |
//! | reading the cascade | 7 |
//! | registers of the tile | 7 for reading, 5 for writing |
//! | jumps | five more bundles are executed before |
//!
//! A lock that cannot be acquired stops the core's clock. It is requested one cycle after the instruction, when all
//! stores must have reached memory: a release before that is an error here, and a race on hardware.
//!
//! The cascade stops the core's clock while there is nothing to read or no room to write.
//!
//! Cycles in which the hardware waits, as for a bank of memory, change no result and are not modelled. Whatever is
//! not modelled is a [`Fault::Instruction`]: other instructions, modes of the multiplier, the neighbours' memory.

mod execute;
mod registers;
mod vector;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::Fault;
use super::state::{CASCADE_WORDS, CascadeWord, Tile};
use crate::bundle::Bundle;
use crate::isa::{Instruction, Mode, Op, Operand, Register};
use crate::tile::{CORE_MEMORY, TilePlace};
use registers::{File, Registers};
use vector::{Bypass, Lanes};

/// Bundles that are executed before a jump takes effect.
const DELAY_SLOTS: usize = 5;
/// More cycles than any result takes.
const CYCLES: usize = 16;
/// Bundles per round of the array.
const BUDGET: usize = 256;
/// Where a core sees its own data memory.
const OWN_MEMORY: u32 = 0x7_0000;
/// Where it sees the registers of its tile.
const OWN_REGISTERS: u32 = 0x8_0000;
/// The number under which a core knows its own tile's first lock.
const OWN_LOCKS: i64 = 48;
/// Value of a lock that overflows.
const LOCK_LIMIT: i32 = 63;

/// An instruction, prepared for execution.
#[derive(Debug, Clone)]
struct Action {
    op: Op,
    mode: Mode,
    d: Register,
    a: Register,
    b: Register,
    c: Register,
    e: Register,
    shift: Register,
    pointer: Register,
    modifier: Register,
    constant: Option<i64>,
    instruction: Instruction,
}

impl Action {
    fn new(instruction: Instruction) -> Self {
        let register = |letter| match instruction.operand(letter) {
            Some(Operand::Register(register)) => register,
            _ => Register::R(0),
        };
        let constant = match instruction.operand('i') {
            Some(Operand::Constant(value)) => Some(value),
            _ => None,
        };
        let mode = instruction.mode();
        Self {
            op: instruction.op(),
            mode,
            d: register('d'),
            a: register('a'),
            b: register('b'),
            c: register('c'),
            e: register('e'),
            shift: register('s'),
            pointer: register('p'),
            modifier: register(if mode == Mode::Register { 'j' } else { 'm' }),
            constant,
            instruction,
        }
    }
}

/// A bundle in program memory.
#[derive(Debug, Clone)]
struct Step {
    actions: Arc<[Action]>,
    bytes: u32,
    reads_cascade: bool,
    writes_cascade: bool,
}

/// Something that happens in a later cycle than its instruction was issued.
#[derive(Debug, Clone)]
enum Event {
    Scalar {
        index: usize,
        value: u32,
    },
    Vector {
        file: File,
        first: usize,
        lanes: Lanes,
        bypass: Bypass,
    },
    Load {
        address: u32,
        to: LoadTarget,
        pc: u32,
    },
    Store {
        address: u32,
        words: Words,
        pc: u32,
    },
    LoadTile {
        offset: u32,
        index: usize,
    },
    StoreTile {
        offset: u32,
        value: u32,
    },
    /// A product whose accumulators are read now.
    Product {
        target: usize,
        accumulators: [Option<usize>; 2],
        product: vector::Product,
    },
}

impl Event {
    /// Whether it accesses memory that others may share. Of scalars that are loaded, it is not known; AMD's programs
    /// load variables of their own while they release locks.
    fn uses_buffers(&self) -> bool {
        match self {
            Self::Load { to, .. } => !matches!(to, LoadTarget::Scalar(_)),
            Self::Store { .. } => true,
            _ => false,
        }
    }
}

/// The words of a store: one, or a vector's.
#[derive(Debug, Clone, Copy)]
enum Words {
    One(u32),
    Vector([u32; 8]),
}

impl Words {
    fn all(&self) -> &[u32] {
        match self {
            Self::One(word) => std::slice::from_ref(word),
            Self::Vector(words) => words,
        }
    }
}

/// What becomes of loaded words.
#[derive(Debug, Clone, Copy)]
enum LoadTarget {
    Scalar(usize),
    Vector(File, usize),
    /// Widened to lanes of the second width, from the first, and shifted.
    Accumulator {
        first: usize,
        from: u32,
        shift: u32,
    },
}

impl LoadTarget {
    fn words(self) -> usize {
        match self {
            Self::Scalar(_) => 1,
            _ => 8,
        }
    }
}

/// A lock that is asked for in the next cycle.
#[derive(Debug, Clone, Copy)]
struct LockRequest {
    index: usize,
    /// Below zero: waits until the lock has that much, and takes it.
    change: i32,
    pc: u32,
}

/// What a core does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// For a lock.
    Waiting,
    /// For the cascade.
    Cascade,
    Done,
}

/// A core that executes a program.
#[derive(Debug, Clone)]
pub(super) struct Interpreter {
    program: Arc<[u8]>,
    /// Decoded bundles by half their address.
    steps: Vec<Option<Step>>,
    registers: Registers,
    /// What happens in the next cycles, by cycle.
    events: [Vec<Event>; CYCLES],
    cycle: usize,
    pc: u32,
    /// Delay slots that are left, and the target.
    jump: Option<(usize, u32)>,
    request: Option<LockRequest>,
    /// What the current bundle reads from the cascade, and what it writes.
    incoming: CascadeWord,
    outgoing: CascadeWord,
    state: State,
}

impl Interpreter {
    pub(super) fn new(place: TilePlace, program: &[u32]) -> Self {
        let bytes: Vec<u8> = program.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut registers = Registers::new();
        // The layout by which AMD's programs print it.
        let id = u32::from(place.column) << 16 | u32::from(place.row);
        registers.set_scalar(registers::index(Register::CoreId), id);
        Self {
            steps: vec![None; bytes.len().div_ceil(2)],
            program: bytes.into(),
            registers,
            events: Default::default(),
            cycle: 0,
            pc: 0,
            jump: None,
            request: None,
            incoming: CascadeWord::default(),
            outgoing: CascadeWord::default(),
            state: State::Running,
        }
    }

    /// Where it is, unless it waits for a lock or has ended.
    pub(super) fn pending(&self) -> Option<String> {
        match self.state {
            State::Running => Some(format!("runs at {:#x}", self.pc)),
            State::Cascade => Some(format!("waits at {:#x} for the cascade", self.pc)),
            State::Waiting | State::Done => None,
        }
    }

    /// Which lock it waits for.
    pub(super) fn waits(&self) -> Option<String> {
        let request = self.request.filter(|_| self.state == State::Waiting)?;
        Some(format!("waits at {:#x} until lock {} has {}", request.pc, request.index, -request.change))
    }

    /// Executes bundles until it has to wait; whether it executed any.
    pub(super) fn advance(&mut self, tile: &mut Tile) -> Result<bool, Fault> {
        for executed in 0..BUDGET {
            if self.state == State::Done
                || !self.poll_lock(tile.place, &mut tile.locks)?
                || !self.issue(tile)?
            {
                return Ok(executed > 0);
            }
            self.cycle += 1;
            self.retire_events(tile)?;
        }
        Ok(true)
    }

    /// Acquires or releases the lock that the last bundle requested; whether the core can go on.
    fn poll_lock(&mut self, place: TilePlace, locks: &mut [i32]) -> Result<bool, Fault> {
        let Some(LockRequest { index, change, pc }) = self.request else { return Ok(true) };
        let Some(lock) = locks.get_mut(index) else {
            return Err(self.fault(place, pc, format!("there is no lock {index}")));
        };
        if change < 0 {
            if *lock < -change {
                self.state = State::Waiting;
                return Ok(false);
            }
        } else if self.events.iter().flatten().any(Event::uses_buffers) {
            let reason = format!("lock {index} is released while a load or store is in flight");
            return Err(self.fault(place, pc, reason));
        }
        *lock += change;
        if *lock > LOCK_LIMIT {
            return Err(Fault::LockOverflow { place, index });
        }
        self.request = None;
        self.state = State::Running;
        Ok(true)
    }

    /// The bundle at `pc`.
    fn step(&mut self, place: TilePlace, pc: u32) -> Result<Step, Fault> {
        let slot = self.steps.get(pc as usize / 2).filter(|_| pc.is_multiple_of(2));
        let Some(step) = slot else {
            let (pc, bytes) = (format!("{pc:#x}"), self.program.len());
            let reason = format!("the program has {bytes} bytes");
            return Err(Fault::Instruction { place, pc, instruction: "no bundle".to_owned(), reason });
        };
        if let Some(step) = step {
            return Ok(step.clone());
        }
        let refuse = |instruction: String, reason: &str| Fault::Instruction {
            place,
            pc: format!("{pc:#x}"),
            instruction,
            reason: reason.to_owned(),
        };
        let bundle = Bundle::decode(&self.program[pc as usize..])
            .map_err(|error| refuse("no bundle".to_owned(), &error.to_string()))?;
        let mut actions = Vec::new();
        for &(slot, bits) in bundle.instructions() {
            let instruction = Instruction::decode(slot, bits).map_err(|_| {
                refuse(format!("{} {bits:#x}", slot.name()), "the model does not know this instruction")
            })?;
            if instruction.op() != Op::Nop {
                actions.push(Action::new(instruction));
            }
        }
        let has = |ops: &[Op]| actions.iter().any(|action: &Action| ops.contains(&action.op));
        let step = Step {
            bytes: bundle.bytes() as u32,
            reads_cascade: has(&[Op::CascadeLow, Op::CascadeHigh]),
            writes_cascade: has(&[Op::CascadeWrite]),
            actions: actions.into(),
        };
        self.steps[pc as usize / 2] = Some(step.clone());
        Ok(step)
    }

    /// Issues the next bundle: everything is read before anything is written. Whether the cascade let it.
    fn issue(&mut self, tile: &mut Tile) -> Result<bool, Fault> {
        let (place, pc) = (tile.place, self.pc);
        let step = self.step(place, pc)?;
        if step.reads_cascade || step.writes_cascade {
            let starved = step.reads_cascade && tile.cascade_in.is_empty();
            if starved || step.writes_cascade && tile.cascade_out.len() >= CASCADE_WORDS {
                self.state = State::Cascade;
                return Ok(false);
            }
            self.state = State::Running;
            if step.reads_cascade {
                self.incoming = tile.cascade_in.pop_front().unwrap_or_default();
            }
        }
        let next = pc + step.bytes;
        let mut target = None;
        for action in step.actions.iter() {
            let jump = self
                .execute(action, place, pc, next)
                .map_err(|reason| self.fault_of(place, pc, &action.instruction, reason))?;
            if let Some(jump) = jump {
                if self.jump.is_some() || target.is_some() {
                    let reason = "it is in the delay slots of another jump".to_owned();
                    return Err(self.fault_of(place, pc, &action.instruction, reason));
                }
                target = Some(jump);
            }
        }
        if step.writes_cascade {
            tile.cascade_out.push_back(self.outgoing);
        }
        self.pc = match &mut self.jump {
            Some((0 | 1, target)) => {
                let target = *target;
                self.jump = None;
                target
            }
            Some((left, _)) => {
                *left -= 1;
                next
            }
            None => next,
        };
        if let Some(target) = target {
            self.jump = Some((DELAY_SLOTS, target));
        }
        // The last bundle of a hardware loop.
        let count = self.registers.scalar(Register::LoopCount);
        if count > 0 && self.registers.scalar(Register::LoopEnd) == pc {
            self.registers.set_scalar(registers::index(Register::LoopCount), count - 1);
            if count > 1 {
                if self.jump.is_some() {
                    return Err(self.fault(place, pc, "a jump leaves a hardware loop at its end".to_owned()));
                }
                self.pc = self.registers.scalar(Register::LoopStart);
            }
        }
        Ok(true)
    }

    /// Puts an event `after` cycles from now.
    fn schedule(&mut self, after: usize, event: Event) {
        self.events[(self.cycle + after) % CYCLES].push(event);
    }

    /// The events of the cycle that begins: results reach registers, then memory is read and written, then accumulators
    /// are read.
    fn retire_events(&mut self, tile: &mut Tile) -> Result<(), Fault> {
        let place = tile.place;
        let mut events = std::mem::take(&mut self.events[self.cycle % CYCLES]);
        for event in &events {
            match event {
                Event::Scalar { index, value } => self.registers.set_scalar(*index, *value),
                Event::Vector { file, first, lanes, .. } => self.registers.set_lanes(*file, *first, lanes),
                _ => {}
            }
        }
        for event in &events {
            let Event::Load { address, to, pc } = event else { continue };
            let range = self.range(place, *pc, *address, to.words())?;
            self.complete_load(*to, &tile.memory[range]).map_err(|reason| self.fault(place, *pc, reason))?;
        }
        for event in &events {
            let Event::Store { address, words, pc } = event else { continue };
            let range = self.range(place, *pc, *address, words.all().len())?;
            tile.memory[range].copy_from_slice(words.all());
        }
        for event in &events {
            match event {
                Event::LoadTile { offset, index } => {
                    let value = tile.read_by_core(*offset)?;
                    self.schedule(3, Event::Scalar { index: *index, value });
                }
                Event::StoreTile { offset, value } => tile.write_by_core(*offset, *value)?,
                _ => {}
            }
        }
        for event in &events {
            let Event::Product { target, accumulators, product } = event else { continue };
            let [first, second] = accumulators.map(|accumulator| {
                accumulator.map(|first| self.lanes(File::Accumulator, first, 4, Bypass::Product))
            });
            let mut lanes = product.add(&first.unwrap_or_else(|| Lanes::zero(4)));
            if let Some(second) = second {
                lanes = product.add_lanes(&lanes, &second);
            }
            let (file, first) = (File::Accumulator, *target);
            self.schedule(3, Event::Vector { file, first, lanes, bypass: Bypass::Product });
        }
        // The same room again, for the events of this place in the next turn of cycles.
        events.clear();
        if self.events[self.cycle % CYCLES].is_empty() {
            self.events[self.cycle % CYCLES] = events;
        }
        Ok(())
    }

    /// Schedules the write of loaded words to their register.
    fn complete_load(&mut self, to: LoadTarget, words: &[u32]) -> Result<(), String> {
        let (after, event) = match to {
            LoadTarget::Scalar(index) => (3, Event::Scalar { index, value: words[0] }),
            LoadTarget::Vector(file, first) => {
                (3, Event::Vector { file, first, lanes: Lanes::from_words(words), bypass: Bypass::None })
            }
            LoadTarget::Accumulator { first, from, shift } => {
                let lanes = vector::widen(words, from, shift)?;
                (5, Event::Vector { file: File::Accumulator, first, lanes, bypass: Bypass::None })
            }
        };
        self.schedule(after, event);
        Ok(())
    }

    /// The words of the tile's memory at a core's address.
    fn range(
        &self,
        place: TilePlace,
        pc: u32,
        address: u32,
        words: usize,
    ) -> Result<std::ops::Range<usize>, Fault> {
        let own = address.checked_sub(OWN_MEMORY).filter(|own| *own < CORE_MEMORY);
        match own {
            Some(own) if (own as usize).is_multiple_of(4 * words) => {
                Ok(own as usize / 4..own as usize / 4 + words)
            }
            Some(_) => Err(self.fault(place, pc, format!("{address:#x} is no multiple of {}", 4 * words))),
            None => Err(self.fault(place, pc, format!("{address:#x} is not in the tile's own memory"))),
        }
    }

    /// Registers of a vector or an accumulator, with results that are forwarded to this kind of instruction.
    fn lanes(&self, file: File, first: usize, count: usize, bypass: Bypass) -> Lanes {
        let mut lanes = self.registers.lanes(file, first, count);
        if bypass != Bypass::None {
            for event in &self.events[(self.cycle + 1) % CYCLES] {
                if let Event::Vector { file: other, first: from, lanes: new, bypass: kind } = event
                    && (*other, *kind) == (file, bypass)
                {
                    lanes.overlay(first, *from, new);
                }
            }
        }
        lanes
    }

    fn fault_of(&self, place: TilePlace, pc: u32, instruction: &Instruction, reason: String) -> Fault {
        Fault::Instruction { place, pc: format!("{pc:#x}"), instruction: instruction.to_string(), reason }
    }

    /// A fault of the bundle at `pc`.
    fn fault(&self, place: TilePlace, pc: u32, reason: String) -> Fault {
        let step = self.steps.get(pc as usize / 2).and_then(Option::as_ref);
        let texts =
            step.map(|step| step.actions.iter().map(|action| action.instruction.to_string()).collect());
        let instruction = texts.map_or_else(String::new, |texts: Vec<String>| texts.join("; "));
        Fault::Instruction { place, pc: format!("{pc:#x}"), instruction, reason }
    }
}
