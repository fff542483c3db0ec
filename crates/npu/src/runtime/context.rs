//! Contexts, commands and fences.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::device::{Buffer, BufferObject, HeapBuffer, Inner, UploadedStream};
use super::heap::{call, driver_error};
use super::io::{AccelIo, Call};
use crate::error::{Error, Result};
use crate::uapi::{
    BoKind, CONFIG_CU, CommandState, ConfigHwctx, CreateHwctx, CuConfig, DestroyHwctx, ExecCmd,
    MAX_OPERATIONS_PER_CYCLE, QosInfo, SyncobjDestroy,
};

/// Buffers of a command: the firmware's packet has room for five addresses.
const MAX_ARGUMENTS: usize = 5;
/// Size of a command's buffer: one page.
const COMMAND_BYTES: u64 = 4096;
/// Kind of packet in the header's highest bits: for a compute unit.
const PACKET_FOR_UNIT: u32 = 3 << 28;
/// Opcode of the firmware: run a transaction stream.
const RUN_STREAM: u64 = 3;
/// Words of a packet after its header: unit mask, opcode, address and bytes of the stream, buffers.
const PACKET_WORDS: usize = 1 + 2 + 2 + 1 + 2 * MAX_ARGUMENTS;

/// A part of the array with a loaded overlay.
pub struct Context<I: AccelIo> {
    inner: Arc<Inner<I>>,
    state: Cell<State>,
    timeline: u32,
    /// Kept for as long as the firmware may load it again.
    pdi: HeapBuffer<I>,
}

/// Of a context.
#[derive(Clone, Copy)]
enum State {
    /// It exists, with this handle.
    Live(u32),
    /// A command failed or timed out, and it was destroyed.
    Destroyed,
    /// Destroying it failed: its commands may run for ever.
    Stuck(io::ErrorKind),
}

impl<I: AccelIo> Context<I> {
    pub(super) fn create(inner: Arc<Inner<I>>, tiles: u32, pdi: HeapBuffer<I>) -> Result<Self> {
        // No hints, as XRT gives none.
        let qos = QosInfo::default();
        let mut create =
            CreateHwctx { max_opc: MAX_OPERATIONS_PER_CYCLE, num_tiles: tiles, ..CreateHwctx::default() };
        call(&inner.io, Call::CreateContext { args: &mut create, qos: &qos })?;
        let (handle, timeline) = (create.handle, create.syncobj_handle);
        let units = [CuConfig::new(pdi.object.handle)];
        let context = Self { inner, state: Cell::new(State::Live(handle)), timeline, pdi };
        let args = ConfigHwctx { handle, param_type: CONFIG_CU, ..ConfigHwctx::default() };
        call(&context.inner.io, Call::ConfigContext { args: &args, units: &units })?;
        Ok(context)
    }

    /// Submits a stream with its arguments. They stay borrowed until the fence is gone.
    pub fn submit<'a>(
        &'a self,
        instructions: &'a UploadedStream<I>,
        arguments: &[&'a Buffer<I>],
    ) -> Result<Fence<'a, I>> {
        let State::Live(hwctx) = self.state.get() else { return Err(Error::ContextLost) };
        if arguments.len() > MAX_ARGUMENTS {
            return Err(Error::TooManyArguments { given: arguments.len(), limit: MAX_ARGUMENTS });
        }
        let command = Buffer::create(Arc::clone(&self.inner), BoKind::Command, COMMAND_BYTES)?;
        let addresses: Vec<u64> = arguments.iter().map(|buffer| buffer.address).collect();
        command.put(&packet(instructions.buffer.address, instructions.bytes, &addresses))?;
        let mut used = vec![&instructions.buffer.object];
        used.extend(arguments.iter().map(|buffer| &buffer.object));
        let handles: Vec<u32> = used.iter().map(|object| object.handle).collect();
        let mut args = ExecCmd { hwctx, ..ExecCmd::default() };
        call(
            &self.inner.io,
            Call::Execute { args: &mut args, command: command.object.handle, buffers: &handles },
        )?;
        used.iter().for_each(|object| object.begin_use());
        command.object.begin_use();
        Ok(Fence { context: self, command, used, point: args.seq, pending: true })
    }

    /// Submits a stream and waits for it.
    pub fn run(
        &self,
        instructions: &UploadedStream<I>,
        arguments: &[&Buffer<I>],
        timeout: Duration,
    ) -> Result<()> {
        self.submit(instructions, arguments)?.wait(timeout)
    }
}

impl<I: AccelIo> Context<I> {
    /// Destroys the context, which stops its commands. If that fails, its PDI is kept, and with it the heap.
    fn destroy(&self) -> io::Result<()> {
        match self.state.get() {
            State::Live(handle) => {
                let result = self.inner.io.call(Call::DestroyContext(&DestroyHwctx { handle, pad: 0 }));
                self.state.set(match &result {
                    Ok(()) => State::Destroyed,
                    Err(error) => {
                        self.pdi.object.begin_use();
                        State::Stuck(error.kind())
                    }
                });
                result
            }
            State::Destroyed => Ok(()),
            State::Stuck(error) => Err(error.into()),
        }
    }
}

impl<I: AccelIo> Drop for Context<I> {
    fn drop(&mut self) {
        // What cannot be destroyed keeps what it uses.
        let _ = self.destroy();
        let _ = self.inner.io.call(Call::DestroyTimeline(&SyncobjDestroy { handle: self.timeline, pad: 0 }));
    }
}

/// A submitted command.
///
/// The NPU may access the command's buffers at their addresses in this process. They must not be unmapped before it has
/// stopped, so a fence that fails, or is dropped without a wait, destroys its context. If that fails too, or the fence is
/// forgotten, the buffers are never released.
#[must_use = "dropping it without a wait destroys the context"]
pub struct Fence<'a, I: AccelIo> {
    context: &'a Context<I>,
    command: Buffer<I>,
    /// The stream and the arguments.
    used: Vec<&'a BufferObject<I>>,
    point: u64,
    /// Whether the command may still run.
    pending: bool,
}

impl<I: AccelIo> Drop for Fence<'_, I> {
    fn drop(&mut self) {
        if self.pending && self.context.destroy().is_err() {
            return;
        }
        self.used.iter().for_each(|object| object.end_use());
        self.command.object.end_use();
    }
}

impl<I: AccelIo> Fence<'_, I> {
    /// Waits until the command has completed.
    pub fn wait(mut self, timeout: Duration) -> Result<()> {
        match self.outcome(timeout) {
            Ok(()) => {
                self.pending = false;
                Ok(())
            }
            Err(error) => match self.context.destroy() {
                Ok(()) => Err(error),
                Err(source) => Err(Error::NotStopped { cause: Box::new(error), source }),
            },
        }
    }

    fn outcome(&self, timeout: Duration) -> Result<()> {
        let io = &self.context.inner.io;
        let wait =
            Call::Wait { syncobj: self.context.timeline, point: self.point, deadline: io.deadline(timeout) };
        let name = wait.name();
        if let Err(source) = io.call(wait) {
            let late = source.raw_os_error() == Some(rustix::io::Errno::TIME.raw_os_error());
            return Err(match late {
                true => Error::Timeout { milliseconds: timeout.as_millis() },
                false => driver_error(name, source),
            });
        }
        let mut header = [0; 4];
        self.command.get(&mut header)?;
        match CommandState::of(u32::from_le_bytes(header)) {
            CommandState::Completed => Ok(()),
            state => Err(Error::CommandFailed { state }),
        }
    }
}

/// The packet of a command.
fn packet(instructions: u64, bytes: u32, arguments: &[u64]) -> Vec<u8> {
    let header = CommandState::New.code() | (PACKET_WORDS as u32) << 12 | PACKET_FOR_UNIT;
    // The first compute unit.
    let mut packet = vec![header, 1];
    let mut put = |value: u64| packet.extend_from_slice(&[value as u32, (value >> 32) as u32]);
    put(RUN_STREAM);
    put(instructions);
    packet.push(bytes);
    let mut put = |value: u64| packet.extend_from_slice(&[value as u32, (value >> 32) as u32]);
    for index in 0..MAX_ARGUMENTS {
        put(arguments.get(index).copied().unwrap_or(0));
    }
    packet.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_of_a_command() {
        let bytes = packet(0x0400_8000, 2592, &[0x1_0000_0000, 2]);
        let words: Vec<u32> = crate::bytes::words_of(&bytes);
        assert_eq!(words[..8], [0x3001_0001, 1, 3, 0, 0x0400_8000, 0, 2592, 0]);
        assert_eq!(words[8..], [1, 2, 0, 0, 0, 0, 0, 0, 0]);
    }
}
