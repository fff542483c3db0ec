//! What the NPU's firmware does: loads PDIs, and runs command packets.

use super::Session;
use crate::array::{Array, Fault, HostMemory};
use crate::txn::Stream;
use crate::uapi::{BoKind, CommandState, HEAP_BASE, HEAP_CHUNK};
use crate::xclbin::Pdi;

/// Opcode of a packet that runs a stream.
const RUN_STREAM: u64 = 3;
/// Arguments of such a packet.
const ARGUMENTS: usize = 5;

impl Session<'_> {
    /// The NPU's view of the heap.
    pub(super) fn device_bytes(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(len).ok()?);
        let mut from = address.checked_sub(HEAP_BASE)?;
        let end = from.checked_add(len)?;
        while from < end {
            let handle = self.client.heap.get(usize::try_from(from / HEAP_CHUNK).ok()?)?;
            let chunk = &self.client.buffers.get(handle)?.device;
            let to = end.min((from / HEAP_CHUNK + 1) * HEAP_CHUNK);
            let first = (from % HEAP_CHUNK) as usize;
            bytes.extend_from_slice(chunk.get(first..first + (to - from) as usize)?);
            from = to;
        }
        Some(bytes)
    }

    pub(super) fn load(&self, columns: u8, image: &[u8]) -> Option<Array> {
        let pdi = Pdi::decode(image).ok()?;
        Array::load(columns, &pdi.cdo, self.machine.library.clone()).ok()
    }

    /// Runs a packet, without its header; `None` if it never ends.
    pub(super) fn run(&mut self, context: u32, packet: &[u32], buffers: &[u32]) -> Option<CommandState> {
        let pair =
            |index: usize| Some(u64::from(*packet.get(index)?) | u64::from(*packet.get(index + 1)?) << 32);
        let parse = || {
            let (mask, opcode, address, len) = (*packet.first()?, pair(1)?, pair(3)?, *packet.get(5)?);
            let arguments: Option<Vec<u64>> = (0..ARGUMENTS).map(|index| pair(6 + 2 * index)).collect();
            (mask == 1 && opcode == RUN_STREAM).then_some((address, len, arguments?))
        };
        let Some((address, len, arguments)) = parse() else { return Some(CommandState::Error) };
        // Only what the command lists is in memory.
        let listed = |address: u64, kind: BoKind| {
            buffers.iter().any(|handle| {
                let object = self.client.buffers.get(handle);
                object.is_some_and(|object| object.kind == kind && object.address == address)
            })
        };
        let stream = match self.device_bytes(address, u64::from(len)) {
            Some(bytes) if listed(address, BoKind::Device) => Stream::decode(&bytes),
            _ => return Some(CommandState::Error),
        };
        let Ok(stream) = stream else { return Some(CommandState::Error) };
        let mut host = HostMemory::new();
        for argument in arguments {
            if listed(argument, BoKind::Shared) {
                host.add_argument(argument);
            }
        }
        let shared: Vec<u32> = buffers
            .iter()
            .copied()
            .filter(|handle| {
                self.client.buffers.get(handle).is_some_and(|object| object.kind == BoKind::Shared)
            })
            .collect();
        for handle in &shared {
            if let Some(object) = self.client.buffers.get(handle) {
                host.map(object.address, object.device.clone());
            }
        }
        let (_, array) = self.client.contexts.get_mut(&context)?.loaded.as_mut()?;
        let result = array.run(&stream, &mut host);
        for handle in shared {
            if let Some(object) = self.client.buffers.get_mut(&handle)
                && let Some(bytes) = host.buffer(object.address)
            {
                object.device.copy_from_slice(bytes);
            }
        }
        match result {
            Ok(()) => Some(CommandState::Completed),
            Err(fault) => {
                let hangs = matches!(fault, Fault::Hang { .. });
                self.machine.fault = Some(fault);
                if hangs { None } else { Some(CommandState::Error) }
            }
        }
    }
}
