//! The kernel's rules, call by call.

use rustix::io::Errno;

use super::{Command, CommandOutcome, HeapRule, Hwctx, LINE, Object, Session};
use crate::runtime::Call;
use crate::tile::ROWS;
use crate::uapi::{
    AieMetadata, BoKind, CONFIG_CU, Clock, CommandState, ConfigHwctx, CreateBo, CreateHwctx, CuConfig,
    ExecCmd, GET_POWER_MODE, GetBoInfo, GetInfo, HEAP_ALIGN, HEAP_BASE, HEAP_CHUNK, MAX_ARGUMENT_BUFFERS,
    MAX_CONTEXTS, QUERY_AIE_METADATA, QUERY_CLOCK_METADATA, QUERY_FIRMWARE_VERSION, SyncBo, SyncDirection,
    TileMetadata,
};

/// Of Phoenix. A context of up to four has those with DMA to the host's memory, one of five all.
const COLUMNS: u16 = 5;
const CORE_ROWS: u16 = 4;
const MAX_UNITS: usize = 32;
/// A published firmware of Phoenix.
const FIRMWARE: [u32; 4] = [1, 5, 2, 380];
/// What the driver reports where it has no address.
const NO_ADDRESS: u64 = u64::MAX;
/// More than any test asks for.
const MAX_BUFFER: u64 = 1 << 30;

type Answer<T = ()> = Result<T, Errno>;

/// `EINVAL` unless `rule` holds.
fn require(rule: bool) -> Answer {
    if rule { Ok(()) } else { Err(Errno::INVAL) }
}

impl Session<'_> {
    pub(super) fn answer(&mut self, call: Call<'_>) -> Answer {
        match call {
            Call::Version { name, version } => {
                self.machine.name.clone_into(name);
                *version = (0, 7);
                Ok(())
            }
            Call::CreateContext { args, .. } => self.create_context(args),
            Call::DestroyContext(args) => {
                require(args.pad == 0)?;
                self.client.contexts.remove(&args.handle).ok_or(Errno::INVAL)?;
                self.client.commands.retain(|command| command.context != args.handle);
                self.machine.contexts -= 1;
                Ok(())
            }
            Call::ConfigContext { args, units } => self.config_context(args, units),
            Call::CreateBuffer(args) => self.create_buffer(args),
            Call::BufferInfo(args) => self.buffer_info(args),
            Call::SyncBuffer(args) => self.sync_buffer(args),
            Call::CloseBuffer(args) => {
                require(args.pad == 0)?;
                self.check_release("GEM_CLOSE", args.handle);
                self.client.heap.retain(|&handle| handle != args.handle);
                self.client.buffers.remove(&args.handle).map(drop).ok_or(Errno::INVAL)
            }
            Call::Execute { args, command, buffers } => self.execute(args, command, buffers),
            Call::Wait { syncobj, point, deadline } => self.wait(syncobj, point, deadline),
            Call::DestroyTimeline(args) => {
                require(args.pad == 0)?;
                self.client.timelines.remove(&args.handle).map(drop).ok_or(Errno::INVAL)
            }
            Call::Info { args, buffer } => info(args, buffer),
            Call::SetState { .. } => {
                if self.machine.root {
                    Ok(())
                } else {
                    Err(Errno::ACCESS)
                }
            }
        }
    }

    fn create_buffer(&mut self, args: &mut CreateBo) -> Answer {
        require(args.flags == 0 && args.vaddr == 0 && args.size != 0 && args.size <= MAX_BUFFER)?;
        let kind = [BoKind::Shared, BoKind::DeviceHeap, BoKind::Device, BoKind::Command]
            .into_iter()
            .find(|kind| *kind as u32 == args.kind)
            .ok_or(Errno::INVAL)?;
        let address = match kind {
            BoKind::DeviceHeap => self.heap_address(args.size)?,
            BoKind::Device => self.device_address(args.size)?,
            // Until it is mapped.
            BoKind::Shared | BoKind::Command => NO_ADDRESS,
        };
        let bytes = if kind == BoKind::Device { 0 } else { args.size as usize };
        // Shared memory was cleared through the cache. The heap is too large to fill for every test.
        let device = if kind == BoKind::Shared { vec![0xcd; bytes] } else { vec![0; bytes] };
        let dirty = vec![kind == BoKind::Shared; bytes.div_ceil(LINE)];
        let (size, host) = (args.size, vec![0; bytes]);
        let object = Object { kind, size, address, mapped: false, host, device, dirty };
        args.handle = self.machine.handle();
        if kind == BoKind::DeviceHeap {
            self.client.heap.push(args.handle);
        }
        self.client.buffers.insert(args.handle, object);
        Ok(())
    }

    fn heap_address(&self, size: u64) -> Answer<u64> {
        require(size == HEAP_CHUNK)?;
        let chunks = self.client.heap.len() as u64;
        match self.machine.rule {
            HeapRule::Fixed if chunks > 0 => Err(Errno::BUSY),
            HeapRule::Expandable { chunks: limit } if chunks >= limit => Err(Errno::NOSPC),
            _ => Ok(HEAP_BASE + chunks * HEAP_CHUNK),
        }
    }

    /// The first place in the heap with room.
    fn device_address(&self, size: u64) -> Answer<u64> {
        let (missing, full, limit) = match self.machine.rule {
            HeapRule::Fixed => (Errno::INVAL, Errno::NOMEM, 1),
            HeapRule::Expandable { chunks } => (Errno::AGAIN, Errno::AGAIN, chunks),
        };
        require(size <= limit * HEAP_CHUNK)?;
        let mapped = self
            .client
            .heap
            .iter()
            .all(|handle| self.client.buffers.get(handle).is_some_and(|object| object.mapped));
        if self.client.heap.is_empty() || !mapped {
            return Err(missing);
        }
        let end = HEAP_BASE + self.client.heap.len() as u64 * HEAP_CHUNK;
        let taken: Vec<(u64, u64)> = {
            let device = self.client.buffers.values().filter(|object| object.kind == BoKind::Device);
            let mut taken: Vec<_> =
                device.map(|object| (object.address, object.address + object.size)).collect();
            taken.sort_unstable();
            taken
        };
        let mut address = HEAP_BASE;
        for (from, to) in taken {
            if address + size <= from {
                break;
            }
            address = to.next_multiple_of(HEAP_ALIGN);
        }
        if address + size > end { Err(full) } else { Ok(address) }
    }

    fn buffer_info(&mut self, args: &mut GetBoInfo) -> Answer {
        require(args.ext == 0 && args.ext_flags == 0 && args.pad == 0)?;
        let object = self.client.buffers.get(&args.handle).ok_or(Errno::NOENT)?;
        args.map_offset = u64::from(args.handle) << 12;
        let has_address = matches!(object.kind, BoKind::DeviceHeap | BoKind::Device)
            || self.machine.rule != HeapRule::Fixed;
        args.xdna_addr = if has_address { object.address } else { NO_ADDRESS };
        args.vaddr = 0;
        Ok(())
    }

    fn sync_buffer(&mut self, args: &SyncBo) -> Answer {
        let object = self.client.buffers.get_mut(&args.handle).ok_or(Errno::NOENT)?;
        let end = args.offset.checked_add(args.size).filter(|&end| end <= object.size).ok_or(Errno::INVAL)?;
        let (kind, address) = (object.kind, object.address);
        if kind != BoKind::Device {
            object.flush(args.offset as usize, end as usize);
        } else {
            let (first, last) = (address + args.offset - HEAP_BASE, address + end - HEAP_BASE);
            for (handle, chunk) in self.client.heap.iter().zip(0u64..) {
                let base = chunk * HEAP_CHUNK;
                let (from, to) = (first.clamp(base, base + HEAP_CHUNK), last.clamp(base, base + HEAP_CHUNK));
                if let Some(object) = self.client.buffers.get_mut(handle) {
                    object.flush((from - base) as usize, (to - base) as usize);
                }
            }
        }
        match args.direction {
            direction if direction == SyncDirection::ToDevice as u32 => Ok(()),
            // Later kernels look for the context of a debug buffer.
            direction if direction == SyncDirection::FromDevice as u32 => {
                require(self.machine.rule == HeapRule::Fixed)
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn create_context(&mut self, args: &mut CreateHwctx) -> Answer {
        require(args.ext == 0 && args.ext_flags == 0 && args.umq_bo == 0 && args.log_buf_bo == 0)?;
        if self.client.heap.is_empty() {
            return Err(Errno::NOENT);
        }
        if self.machine.contexts >= MAX_CONTEXTS {
            return Err(Errno::NOSPC);
        }
        let columns = args.num_tiles / u32::from(CORE_ROWS);
        let whole = args.num_tiles.is_multiple_of(u32::from(CORE_ROWS)) && columns > 0;
        require(whole && columns <= u32::from(COLUMNS) && args.max_opc != 0)?;
        let (handle, timeline) = (self.machine.handle(), self.machine.handle());
        self.client.timelines.insert(timeline, (0, 0));
        self.client.contexts.insert(handle, Hwctx { timeline, columns: columns as u8, loaded: None });
        self.machine.contexts += 1;
        (args.handle, args.syncobj_handle) = (handle, timeline);
        Ok(())
    }

    fn config_context(&mut self, args: &ConfigHwctx, units: &[CuConfig]) -> Answer {
        require(args.pad == 0 && args.param_type == CONFIG_CU)?;
        // The model has one overlay per context.
        require((1..=MAX_UNITS).contains(&units.len()) && units.len() == 1)?;
        let context = self.client.contexts.get(&args.handle).ok_or(Errno::INVAL)?;
        require(context.loaded.is_none())?;
        require(units.iter().all(|unit| unit.pad == [0; 3]))?;
        let object = self.client.buffers.get(&units[0].cu_bo).ok_or(Errno::INVAL)?;
        require(object.kind == BoKind::Device)?;
        let image = self.device_bytes(object.address, object.size).ok_or(Errno::INVAL)?;
        let array = self.load(context.columns, &image).ok_or(Errno::INVAL)?;
        if let Some(context) = self.client.contexts.get_mut(&args.handle) {
            context.loaded = Some((units[0].cu_bo, array));
        }
        Ok(())
    }

    fn execute(&mut self, args: &mut ExecCmd, command: u32, buffers: &[u32]) -> Answer {
        require(
            args.ext == 0 && args.ext_flags == 0 && args.kind == 0 && buffers.len() <= MAX_ARGUMENT_BUFFERS,
        )?;
        let object = self.client.buffers.get(&command).ok_or(Errno::INVAL)?;
        require(matches!(object.kind, BoKind::Command | BoKind::Shared))?;
        if buffers.iter().any(|handle| !self.client.buffers.contains_key(handle)) {
            return Err(Errno::NOENT);
        }
        let context = self.client.contexts.get(&args.hwctx).ok_or(Errno::INVAL)?;
        require(context.loaded.is_some())?;
        let timeline = context.timeline;
        // The kernel reads and writes commands through the host's view.
        let packet = crate::bytes::words_of(&object.host);
        let header = packet.first().copied().ok_or(Errno::INVAL)?;
        let count = (header >> 12 & 0x7ff) as usize;
        require(CommandState::of(header) == CommandState::New && count > 1 && count < packet.len())?;
        let end = match self.machine.outcome {
            CommandOutcome::Run => self.run(args.hwctx, &packet[1..=count], buffers),
            CommandOutcome::End(state) => Some(state),
            CommandOutcome::Hang => None,
        };
        let points = self.client.timelines.get_mut(&timeline).ok_or(Errno::INVAL)?;
        points.1 += 1;
        args.seq = points.1;
        let state = end.unwrap_or(CommandState::Running);
        if end.is_some() {
            points.0 = points.1;
        }
        if let Some(object) = self.client.buffers.get_mut(&command) {
            object.host[..4].copy_from_slice(&(header & !0xf | state.code()).to_le_bytes());
        }
        let completed = state == CommandState::Completed;
        let buffers = buffers.iter().copied().chain([command]).collect();
        let (context, point) = (args.hwctx, args.seq);
        self.client.commands.push(Command { context, timeline, point, completed, buffers });
        Ok(())
    }

    fn wait(&mut self, syncobj: u32, point: u64, deadline: i64) -> Answer {
        let &(reached, submitted) = self.client.timelines.get(&syncobj).ok_or(Errno::NOENT)?;
        require(point <= submitted)?;
        if point <= reached {
            // After a failure nobody knows what the array still does.
            self.client
                .commands
                .retain(|command| command.timeline != syncobj || command.point > point || !command.completed);
            return Ok(());
        }
        self.machine.clock = self.machine.clock.max(deadline);
        Err(Errno::TIME)
    }
}

fn info(args: &mut GetInfo, buffer: &mut [u8]) -> Answer {
    let bytes = match args.param {
        QUERY_AIE_METADATA => metadata().to_bytes().to_vec(),
        QUERY_FIRMWARE_VERSION => FIRMWARE.iter().flat_map(|number| number.to_le_bytes()).collect(),
        QUERY_CLOCK_METADATA => {
            let clock = |name: &str, mhz| Clock { name: name.to_owned(), mhz }.to_bytes();
            [clock("MP-NPU Clock", 600), clock("H Clock", 1024)].concat()
        }
        GET_POWER_MODE => vec![0; 8],
        // As on Phoenix, whose power the kernel cannot read.
        _ => return Err(Errno::OPNOTSUPP),
    };
    buffer.get_mut(..bytes.len()).ok_or(Errno::NOSPC)?.copy_from_slice(&bytes);
    args.buffer_size = bytes.len() as u32;
    Ok(())
}

fn metadata() -> AieMetadata {
    let tile = |row_count, row_start, dma_channel_count, lock_count| TileMetadata {
        row_count,
        row_start,
        dma_channel_count,
        lock_count,
        ..TileMetadata::default()
    };
    AieMetadata {
        cols: COLUMNS,
        rows: ROWS as u16,
        version: [2, 0],
        core: tile(CORE_ROWS, 2, 2, 16),
        mem: tile(1, 1, 6, 64),
        shim: tile(1, 0, 2, 16),
        ..AieMetadata::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::CoreLibrary;
    use crate::runtime::AccelIo;
    use crate::runtime::fake::FakeDriver;
    use crate::uapi::{DestroyHwctx, GemClose, QosInfo, SyncobjDestroy};

    #[test]
    fn fields_that_must_be_zero() {
        let driver = FakeDriver::new(HeapRule::Fixed, CoreLibrary::new()).open();
        let refused = |call: Call<'_>| {
            let name = call.name();
            let error = driver.call(call).expect_err(name);
            assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()), "{name}");
        };
        let buffer = CreateBo::new(BoKind::Shared, 4096);
        refused(Call::CreateBuffer(&mut CreateBo { flags: 1, ..buffer }));
        refused(Call::CreateBuffer(&mut CreateBo { vaddr: 4096, ..buffer }));
        let mut made = buffer;
        driver.call(Call::CreateBuffer(&mut made)).expect("a buffer");
        let info = GetBoInfo::new(made.handle);
        refused(Call::BufferInfo(&mut GetBoInfo { ext: 1, ..info }));
        refused(Call::BufferInfo(&mut GetBoInfo { ext_flags: 1, ..info }));
        refused(Call::BufferInfo(&mut GetBoInfo { pad: 1, ..info }));
        refused(Call::CloseBuffer(&GemClose { handle: made.handle, pad: 1 }));
        let context = CreateHwctx { num_tiles: 4, max_opc: 1, ..CreateHwctx::default() };
        let qos = QosInfo::default();
        refused(Call::CreateContext { args: &mut CreateHwctx { ext: 1, ..context }, qos: &qos });
        refused(Call::CreateContext { args: &mut CreateHwctx { ext_flags: 1, ..context }, qos: &qos });
        refused(Call::DestroyContext(&DestroyHwctx { handle: 1, pad: 1 }));
        refused(Call::ConfigContext { args: &ConfigHwctx { pad: 1, ..ConfigHwctx::default() }, units: &[] });
        refused(Call::DestroyTimeline(&SyncobjDestroy { handle: 1, pad: 1 }));
        let mut exec = ExecCmd { ext: 1, ..ExecCmd::default() };
        refused(Call::Execute { args: &mut exec, command: made.handle, buffers: &[] });
        // Without a heap there is no context.
        let error =
            driver.call(Call::CreateContext { args: &mut { context }, qos: &qos }).expect_err("no heap");
        assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    }
}
