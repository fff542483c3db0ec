//! Streams for matrix products.
//!
//! A phase is one block row of C by at most [`MAX_COLUMN_BLOCKS`] block columns, over one K split. A is read again for
//! each block column; B moves on by iteration; C is one transfer. Two phases are in flight, each with its own
//! descriptors, so that the array does not stall on the controller between them.

use super::{GemmPlan, ShimPort};
use crate::error::Result;
use crate::tile::{Direction, Register, TileKind};
use crate::txn::{Op, Stream, Sync};

/// Executions that a descriptor's iteration counts.
const MAX_COLUMN_BLOCKS: usize = 64;
/// Phases in flight.
const IN_FLIGHT: usize = 2;
/// Descriptors per shim tile and phase.
const DESCRIPTORS: usize = 8;
/// Far below what the device heap takes, at about 2 KB per phase.
const MAX_PHASES: usize = 1 << 14;
/// Id with which the overlays route completion tokens to the controller.
const CONTROLLER_ID: u32 = 15;
/// Fields of shim descriptors: bursts of 256 bytes, and cached accesses, as mlir-aie sets them.
const BURST: u32 = 2 << 30;
const CACHED: u32 = 2 << 24;
const VALID: u32 = 1 << 25;

/// What a shim channel moves for one phase: `rows` of `width` words, again every `next` words.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    argument: u64,
    /// Offset in bytes.
    offset: usize,
    /// Words in all.
    length: usize,
    width: usize,
    rows: usize,
    row_step: usize,
    next: usize,
    /// Words between executions, and executions.
    iteration: (usize, usize),
    times: usize,
}

impl Transfer {
    /// The words of the descriptor; `None` if a field is too small.
    fn descriptor(&self) -> Option<[u32; 8]> {
        let field = |value: usize, bits: u32| {
            u32::try_from(value).ok().filter(|value| value.checked_shr(bits).unwrap_or(0) == 0)
        };
        // Steps are stored less one.
        let step = |value: usize| field(value.saturating_sub(1), 20);
        let (iteration_step, executions) = self.iteration;
        let iteration = match executions {
            0 | 1 => 0,
            _ => step(iteration_step)? | field(executions - 1, 6)? << 20,
        };
        Some([
            field(self.length, 32)?,
            self.offset as u32,
            0,
            field(self.width, 10)? << 20,
            BURST | field(self.rows, 10)? << 20 | step(self.row_step)?,
            CACHED | step(self.next)?,
            iteration,
            VALID,
        ])
    }

    /// The value for the task queue.
    fn task(&self, descriptor: usize, token: bool) -> Option<u32> {
        let times = u8::try_from(self.times.saturating_sub(1)).ok()?;
        Some(u32::from(token) << 31 | u32::from(times) << 16 | descriptor as u32)
    }
}

/// Block row, first block column, block columns and K split of a phase.
#[derive(Debug, Clone, Copy)]
struct Phase {
    row: usize,
    column: usize,
    columns: usize,
    split: usize,
}

impl GemmPlan<'_> {
    fn phases(&self) -> impl Iterator<Item = Phase> {
        let (block_m, _, block_n) = self.overlay.block();
        let (rows, columns) = (self.padded.0 / block_m, self.padded.2 / block_n);
        (0..self.k_splits()).flat_map(move |split| {
            (0..rows).flat_map(move |row| {
                (0..columns).step_by(MAX_COLUMN_BLOCKS).map(move |column| Phase {
                    row,
                    column,
                    columns: MAX_COLUMN_BLOCKS.min(columns - column),
                    split,
                })
            })
        })
    }

    fn transfer_a(&self, phase: Phase, index: usize) -> Transfer {
        let (kernel, bytes) = (self.overlay.kernel, self.overlay.input_type.bytes());
        let (block_m, block_k, _) = self.overlay.block();
        let k = self.padded.1;
        Transfer {
            argument: 0,
            offset: bytes * ((phase.row * block_m + index * kernel.m) * k + phase.split * block_k),
            length: bytes * kernel.m * block_k / 4,
            width: bytes * kernel.k / 4,
            rows: kernel.m,
            row_step: bytes * k / 4,
            next: bytes * kernel.k / 4,
            iteration: (0, 1),
            times: phase.columns,
        }
    }

    fn transfer_b(&self, phase: Phase, index: usize) -> Transfer {
        let (kernel, bytes) = (self.overlay.kernel, self.overlay.input_type.bytes());
        let (_, block_k, block_n) = self.overlay.block();
        let n = self.padded.2;
        Transfer {
            argument: 1,
            offset: bytes * (phase.split * block_k * n + phase.column * block_n + index * kernel.n),
            length: bytes * kernel.n * block_k / 4,
            width: bytes * kernel.n / 4,
            rows: kernel.k,
            row_step: bytes * n / 4,
            next: bytes * kernel.k * n / 4,
            iteration: (bytes * block_n / 4, phase.columns),
            times: phase.columns,
        }
    }

    fn transfer_c(&self, phase: Phase, index: usize) -> Transfer {
        let (kernel, bytes) = (self.overlay.kernel, self.overlay.output_type.bytes());
        let (block_m, _, block_n) = self.overlay.block();
        let (m, _, n) = self.padded;
        Transfer {
            argument: 2,
            offset: bytes
                * ((phase.split * m + phase.row * block_m) * n + phase.column * block_n + index * kernel.n),
            length: bytes * block_m * kernel.n * phase.columns / 4,
            width: bytes * kernel.n / 4,
            rows: block_m,
            row_step: bytes * n / 4,
            next: bytes * block_n / 4,
            iteration: (0, 1),
            times: 1,
        }
    }

    /// Whether the strides of this shape fit into buffer descriptors. The first phase is the largest.
    pub(super) fn check_descriptors(&self) -> Result<()> {
        let phases = self.phases().count();
        if phases > MAX_PHASES {
            return Err(self.refuse(format!("it takes {phases} phases, at most {MAX_PHASES} fit; split it")));
        }
        let fits = self.phases().take(1).all(|phase| {
            let transfers = [self.transfer_a(phase, 0), self.transfer_b(phase, 0), self.transfer_c(phase, 0)];
            transfers.iter().all(|transfer| transfer.descriptor().is_some())
        });
        if fits {
            Ok(())
        } else {
            Err(self.refuse("its rows are too long for the NPU's DMA; split it".to_owned()))
        }
    }

    /// The stream that computes the product from arguments 0 (A) and 1 (B) into argument 2 (C).
    pub fn stream(&self) -> Result<Stream> {
        let overlay = self.overlay;
        let mut ops = Vec::new();
        for &port in overlay.c {
            let control = Register::ChannelControl { direction: Direction::S2mm, channel: port.channel };
            let address = u64::from(address(port, control));
            ops.push(Op::MaskWrite { address, value: CONTROLLER_ID << 8, mask: 0x1f00 });
        }
        let mut outstanding = 0;
        for (number, phase) in self.phases().enumerate() {
            if outstanding == IN_FLIGHT {
                self.wait(&mut ops);
                outstanding -= 1;
            }
            let mut used = vec![DESCRIPTORS * (number % IN_FLIGHT); usize::from(overlay.columns)];
            let outputs = overlay
                .c
                .iter()
                .enumerate()
                .map(|(index, &port)| (port, Direction::S2mm, self.transfer_c(phase, index)));
            let inputs_a = overlay
                .a
                .iter()
                .enumerate()
                .map(|(index, &port)| (port, Direction::Mm2s, self.transfer_a(phase, index)));
            let inputs_b = overlay
                .b
                .iter()
                .enumerate()
                .map(|(index, &port)| (port, Direction::Mm2s, self.transfer_b(phase, index)));
            for (port, direction, transfer) in outputs.chain(inputs_a).chain(inputs_b) {
                let descriptor = &mut used[usize::from(port.column)];
                self.start(&mut ops, port, direction, transfer, *descriptor)?;
                *descriptor += 1;
            }
            outstanding += 1;
        }
        for _ in 0..outstanding {
            self.wait(&mut ops);
        }
        Ok(Stream::new(overlay.columns, ops))
    }

    fn start(
        &self,
        ops: &mut Vec<Op>,
        port: ShimPort,
        direction: Direction,
        transfer: Transfer,
        descriptor: usize,
    ) -> Result<()> {
        let token = direction == Direction::S2mm;
        let (Some(words), Some(task)) = (transfer.descriptor(), transfer.task(descriptor, token)) else {
            return Err(self.refuse("its rows are too long for the NPU's DMA; split it".to_owned()));
        };
        let first = address(port, Register::Descriptor { index: descriptor, word: 0 });
        let queue = address(port, Register::TaskQueue { direction, channel: port.channel });
        ops.push(Op::BlockWrite { address: first, data: words.to_vec() });
        let (argument, offset) = (transfer.argument, transfer.offset as u64);
        ops.push(Op::Patch { address: u64::from(first) + 4, argument, offset });
        ops.push(Op::Write { address: u64::from(queue), value: task });
        Ok(())
    }

    /// Waits for a block of C from each of its channels.
    fn wait(&self, ops: &mut Vec<Op>) {
        for &port in self.overlay.c {
            let channel = port.channel as u8;
            let (place, direction) = (port.place(), Direction::S2mm);
            ops.push(Op::Sync(Sync { place, direction, channel, columns: 1, rows: 1 }));
        }
    }
}

/// The address of a register of a shim tile.
fn address(port: ShimPort, register: Register) -> u32 {
    // Ports and descriptors come from this module and the overlay's table, whose registers exist.
    port.place().address(register.offset(TileKind::Shim).unwrap_or(0))
}
