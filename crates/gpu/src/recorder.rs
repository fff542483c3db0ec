//! Records programs: dispatches, copies and fills, with barriers derived from their buffer accesses.
//!
//! Commands are collected until the program is sealed, and only then written to the Vulkan command buffer. By
//! that time all pipelines are known and can be compiled in parallel.

use std::sync::{Arc, atomic::Ordering};

use ash::vk;

use crate::{
    access::Access,
    device::Device,
    device_inner::DeviceInner,
    error::{Error, Result},
    hazards::{ALL, Barrier, Branch, BufferAccess, COMPUTE, CONDITION, Hazards, INDIRECT, Stages, TRANSFER},
    pipeline::{self, Pipeline, PipelineInner},
    program::{Commands, Program},
    shader::{MAX_PUSH_BYTES, PushConstants, PushWriter},
    timing::{TimestampMode, Timestamps},
    view::View,
};

/// Records a program. [`Recorder::seal`] consumes the recorder; nothing can be submitted before.
pub struct Recorder {
    commands: Commands,
    list: Vec<Command>,
    hazards: Hazards,
    /// Number of barriers between commands so far.
    level: u32,
    timestamps: Option<Timestamps>,
    /// Whether commands are recorded within [`Recorder::conditional`].
    conditional: bool,
    /// Number of calls of [`Recorder::concurrently`] so far.
    forks: u32,
    /// Whether commands are recorded within [`Recorder::concurrently`].
    forked: bool,
    /// Whether the program is only compiled.
    compiles_only: bool,
}

/// A command to be written to the command buffer. `Commands` keeps everything it refers to alive.
enum Command {
    Barrier(Barrier),
    Dispatch {
        pipeline: Arc<PipelineInner>,
        push: [u8; MAX_PUSH_BYTES],
        groups: Groups,
    },
    Copy {
        from: vk::Buffer,
        to: vk::Buffer,
        region: vk::BufferCopy,
    },
    Fill {
        to: vk::Buffer,
        range: std::ops::Range<u64>,
        word: u32,
    },
    /// Starts conditional rendering: dispatches run only if the predicate is not zero.
    BeginCondition {
        buffer: vk::Buffer,
        offset: u64,
    },
    EndCondition,
    Timestamp {
        query: u32,
        stage: Stages,
    },
}

/// The workgroup count of a dispatch.
enum Groups {
    Fixed([u32; 3]),
    Indirect { buffer: vk::Buffer, offset: u64 },
}

/// Maximum workgroup count along y and z that Vulkan guarantees on every device.
const MAX_GROUPS_YZ: u32 = 65_535;

impl Device {
    /// Starts recording a program.
    pub fn recorder(&self) -> Result<Recorder> {
        Recorder::new(self, None)
    }

    /// Starts recording a program with GPU timestamps. An error if the device has none.
    pub fn timed_recorder(&self, mode: TimestampMode) -> Result<Recorder> {
        let period = self.caps().timestamp_period_ns.ok_or_else(|| Error::Unsupported {
            device: self.info().name.clone(),
            missing: "its compute queue has no timestamps".into(),
            fix: "update its driver or choose another device (indrik devices)".into(),
        })?;
        let timestamps = Timestamps::new(&self.inner, mode, period)?;
        Recorder::new(self, Some(timestamps))
    }
}

impl Recorder {
    fn new(device: &Device, timestamps: Option<Timestamps>) -> Result<Self> {
        let compiles_only = device.compiles_only;
        let device = &device.inner;
        device.check_lost("recording")?;
        let commands = Commands::new(device)?;
        let hazards = Hazards::default();
        let all = if device.caps.conditional_rendering { ALL | CONDITION } else { ALL };
        let mut recorder = Self {
            commands,
            list: vec![],
            hazards,
            level: 0,
            timestamps,
            conditional: false,
            forks: 0,
            forked: false,
            compiles_only,
        };
        // Submissions to one queue start in order but overlap. Writes of earlier submissions and of the host
        // must be visible.
        recorder.barrier(Barrier { from: all | Stages::HOST, to: all, memory: true });
        Ok(recorder)
    }

    /// Dispatches `groups` workgroups. The push constants declare which buffers the shader reads and writes.
    /// `name` identifies the command in errors and timings.
    pub fn dispatch<P: PushConstants>(
        &mut self,
        name: &str,
        pipeline: &Pipeline,
        groups: [u32; 3],
        push: &P,
    ) -> Result<()> {
        let limit = self.device().caps.max_groups;
        if groups.contains(&0) || groups[0] > limit || groups[1].max(groups[2]) > MAX_GROUPS_YZ {
            let reason = format!(
                "{groups:?} workgroups; the limits are 1 to {limit} along x and 1 to {MAX_GROUPS_YZ} along y and z"
            );
            return Err(Error::InvalidUse { what: format!("{name} ({})", pipeline.name()), reason });
        }
        self.push_dispatch(name, pipeline, push, Groups::Fixed(groups), None)
    }

    /// Dispatches with a workgroup count that is read from a buffer at execution: three u32, x, y and z.
    pub fn dispatch_indirect<P: PushConstants>(
        &mut self,
        name: &str,
        pipeline: &Pipeline,
        groups: &View,
        push: &P,
    ) -> Result<()> {
        if groups.len() != 12 || !groups.range().start.is_multiple_of(4) {
            let (len, start) = (groups.len(), groups.range().start);
            let reason =
                format!("an indirect dispatch needs 12 bytes at a multiple of 4, not {len} at {start}");
            return Err(Error::InvalidUse { what: format!("{name} ({})", pipeline.name()), reason });
        }
        let count = Groups::Indirect { buffer: groups.block.buffer, offset: groups.range().start };
        self.push_dispatch(name, pipeline, push, count, Some(groups))
    }

    /// Adds a dispatch after its barrier, if it needs one.
    fn push_dispatch<P: PushConstants>(
        &mut self,
        name: &str,
        pipeline: &Pipeline,
        push: &P,
        groups: Groups,
        group_buffer: Option<&View>,
    ) -> Result<()> {
        let inner = &*pipeline.inner;
        let invalid =
            |reason: String| Error::InvalidUse { what: format!("{name} ({})", inner.shader.name), reason };
        if !std::ptr::eq(&*inner.device, self.device()) {
            return Err(invalid("the pipeline belongs to another device".into()));
        }
        if P::SIZE != inner.shader.push_size {
            return Err(invalid(format!(
                "{} bytes of push constants; the shader has {}",
                P::SIZE,
                inner.shader.push_size
            )));
        }
        let mut writer = PushWriter::new();
        push.encode(&mut writer);
        let mut accesses: Vec<_> =
            writer.buffers.iter().map(|(view, access)| (view.clone(), *access, COMPUTE)).collect();
        accesses.extend(group_buffer.map(|view| (view.clone(), Access::Read, INDIRECT)));
        self.order(&accesses)?;

        self.commands.keep_pipeline(pipeline);
        self.list.push(Command::Dispatch { pipeline: pipeline.inner.clone(), push: writer.bytes, groups });
        self.finish_command(name, COMPUTE)
    }

    /// Records dispatches that execute only if `predicate`, a u32, is not zero. An error if the device has no
    /// conditional rendering ([`Caps::conditional_rendering`](crate::Caps::conditional_rendering)).
    ///
    /// Only the last of the dispatches may write the predicate, for the programs that follow: a device may
    /// read it again before each command. Copies and fills are rejected, since Vulkan does not make them
    /// conditional.
    pub fn conditional<T, E: From<Error>>(
        &mut self,
        predicate: &View,
        record: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let invalid = |reason: String| Error::InvalidUse { what: "conditional commands".into(), reason };
        if self.conditional {
            return Err(invalid("they cannot be nested".into()).into());
        }
        if predicate.len() != 4 || !predicate.range().start.is_multiple_of(4) {
            let (len, start) = (predicate.len(), predicate.range().start);
            let reason = format!("the predicate needs 4 bytes at a multiple of 4, not {len} at {start}");
            return Err(invalid(reason).into());
        }
        if self.device().conditional_rendering.is_none() {
            let device = self.device().adapter.info.name.clone();
            let missing = "it lacks conditional rendering".into();
            return Err(
                Error::Unsupported { device, missing, fix: "submit one step at a time".into() }.into()
            );
        }
        self.order(&[(predicate.clone(), Access::Read, CONDITION)])?;
        let (buffer, offset) = (predicate.block.buffer, predicate.range().start);
        self.list.push(Command::BeginCondition { buffer, offset });
        let commands = self.commands.raw;
        self.conditional = true;
        let recorded = record(self);
        if self.commands.raw != commands || !self.conditional {
            return Err(invalid("the recorder was replaced by another one".into()).into());
        }
        self.conditional = false;
        self.list.push(Command::EndCondition);
        recorded
    }

    /// Records two command sequences that share no bytes even if their views overlap, such as rows of one
    /// buffer that only the shaders distinguish. No barriers are inserted between the two. Each sequence is
    /// ordered internally, after earlier commands and before later ones. The caller guarantees that the
    /// sequences are disjoint; otherwise they race on the GPU.
    ///
    /// A barrier within the second sequence also waits for the first, so record the longer sequence first.
    pub fn concurrently<E: From<Error>>(
        &mut self,
        first: impl FnOnce(&mut Self) -> Result<(), E>,
        second: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.forked {
            let reason = "they cannot be nested".into();
            return Err(Error::InvalidUse { what: "concurrent commands".into(), reason }.into());
        }
        self.forks += 1;
        self.forked = true;
        let fork = self.forks;
        self.hazards.set_branch(Some(Branch { fork, index: 0 }));
        let recorded = first(self).and_then(|()| {
            self.hazards.set_branch(Some(Branch { fork, index: 1 }));
            second(self)
        });
        self.hazards.set_branch(None);
        self.forked = false;
        recorded
    }

    /// Conditional rendering does not apply to copies and fills.
    fn check_unconditional(&self, name: &str) -> Result<()> {
        if self.conditional {
            let reason = "copies and fills cannot be conditional: record them before or after".into();
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        Ok(())
    }

    /// Copies between two views of equal length.
    pub fn copy(&mut self, name: &str, from: impl Into<View>, to: impl Into<View>) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        let (a, b) = (from.range(), to.range());
        let overlap = Arc::ptr_eq(&from.block, &to.block) && a.start < b.end && b.start < a.end;
        if from.len() != to.len() || from.is_empty() || overlap {
            let reason = format!(
                "a copy needs two views of equal length that do not overlap; these have {} and {} bytes{}",
                from.len(),
                to.len(),
                if overlap { " and overlap" } else { "" }
            );
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        self.check_unconditional(name)?;
        self.order(&[(from.clone(), Access::Read, TRANSFER), (to.clone(), Access::Write, TRANSFER)])?;
        let region =
            vk::BufferCopy { src_offset: from.range().start, dst_offset: to.range().start, size: from.len() };
        self.list.push(Command::Copy { from: from.block.buffer, to: to.block.buffer, region });
        self.finish_command(name, TRANSFER)
    }

    /// Fills a view with a repeated word. Its offset and length must be multiples of 4.
    pub fn fill(&mut self, name: &str, to: impl Into<View>, word: u32) -> Result<()> {
        let to = to.into();
        if to.is_empty() || !to.len().is_multiple_of(4) || !to.range().start.is_multiple_of(4) {
            let (len, start) = (to.len(), to.range().start);
            let reason =
                format!("a fill needs a non-empty range aligned to 4 bytes, not {len} bytes at {start}");
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        self.check_unconditional(name)?;
        self.order(&[(to.clone(), Access::Write, TRANSFER)])?;
        self.list.push(Command::Fill { to: to.block.buffer, range: to.range(), word });
        self.finish_command(name, TRANSFER)
    }

    /// The distinct pipelines of all dispatches so far.
    pub fn pipelines(&self) -> Vec<Pipeline> {
        self.commands.pipelines()
    }

    /// Ends recording: compiles the pipelines that are not compiled yet and writes the command buffer. The
    /// program can be submitted any number of times.
    pub fn seal(mut self) -> Result<Program> {
        if self.conditional {
            let reason = "conditional commands never ended: the recorder was replaced by another one".into();
            return Err(Error::InvalidUse { what: "program".into(), reason });
        }
        // The semaphore makes writes available, but they are visible to the host only after a barrier.
        self.barrier(Barrier { from: COMPUTE | TRANSFER, to: Stages::HOST, memory: true });
        if let Some(query) = self.timestamps.as_mut().and_then(Timestamps::end) {
            self.list.push(Command::Timestamp { query, stage: Stages::ALL_COMMANDS });
        }
        let device = self.commands.device.clone();
        pipeline::compile_all(&self.pipelines(), pipeline::cores(), None)?;
        // SIMULTANEOUS_USE: the program may be submitted again before its last submission has completed.
        let begin =
            vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: the command buffer is owned by this recorder and is in the initial state.
        unsafe { device.raw.begin_command_buffer(self.commands.raw, &begin) }
            .map_err(|result| device.fail("vkBeginCommandBuffer", result))?;
        for (index, command) in self.list.iter().enumerate() {
            self.write(command)?;
            // The first command is the barrier against earlier submissions; time is measured from after it.
            if let (0, Some(timestamps)) = (index, &self.timestamps) {
                timestamps.record_start(self.commands.raw);
            }
        }
        // SAFETY: the command buffer is in the recording state.
        unsafe { device.raw.end_command_buffer(self.commands.raw) }
            .map_err(|result| device.fail("vkEndCommandBuffer", result))?;
        Ok(Program::new(self.commands, self.timestamps, self.compiles_only))
    }

    /// Writes a command to the command buffer, which must be in the recording state.
    fn write(&self, command: &Command) -> Result<()> {
        let (raw, commands) = (&self.device().raw, self.commands.raw);
        // SAFETY: the command buffer is owned by this recorder and in the recording state. When the command
        // was added, it was checked that ranges lie within their buffers, that workgroup counts are within
        // the device's limits, that a predicate is aligned, that the device has conditional rendering, and
        // that conditional sections are not nested. The program keeps buffers and pipelines alive, and the
        // push bytes cover the layout's range.
        unsafe {
            match command {
                Command::Barrier(barrier) => {
                    let mut memory =
                        vk::MemoryBarrier2::default().src_stage_mask(barrier.from).dst_stage_mask(barrier.to);
                    if barrier.memory {
                        let (_, written) = accesses(barrier.from);
                        let (read, rewritten) = accesses(barrier.to);
                        memory = memory.src_access_mask(written).dst_access_mask(read | rewritten);
                    }
                    let barriers = [memory];
                    let dependency = vk::DependencyInfo::default().memory_barriers(&barriers);
                    raw.cmd_pipeline_barrier2(commands, &dependency);
                }
                Command::Dispatch { pipeline, push, groups } => {
                    raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline.raw()?);
                    let size = pipeline.shader.push_size as usize;
                    if size > 0 {
                        let bytes = &push[..size.next_multiple_of(4)];
                        let stage = vk::ShaderStageFlags::COMPUTE;
                        raw.cmd_push_constants(commands, pipeline.layout, stage, 0, bytes);
                    }
                    match *groups {
                        Groups::Fixed([x, y, z]) => raw.cmd_dispatch(commands, x, y, z),
                        Groups::Indirect { buffer, offset } => {
                            raw.cmd_dispatch_indirect(commands, buffer, offset);
                        }
                    }
                }
                Command::Copy { from, to, region } => raw.cmd_copy_buffer(commands, *from, *to, &[*region]),
                Command::Fill { to, range, word } => {
                    raw.cmd_fill_buffer(commands, *to, range.start, range.end - range.start, *word);
                }
                Command::BeginCondition { buffer, offset } => {
                    let begin =
                        vk::ConditionalRenderingBeginInfoEXT::default().buffer(*buffer).offset(*offset);
                    if let Some(functions) = &self.device().conditional_rendering {
                        (functions.fp().cmd_begin_conditional_rendering_ext)(commands, &begin);
                    }
                }
                Command::EndCondition => {
                    if let Some(functions) = &self.device().conditional_rendering {
                        (functions.fp().cmd_end_conditional_rendering_ext)(commands);
                    }
                }
                Command::Timestamp { query, stage } => {
                    if let Some(timestamps) = &self.timestamps {
                        timestamps.record(commands, *query, *stage);
                    }
                }
            }
        }
        Ok(())
    }

    fn device(&self) -> &DeviceInner {
        &self.commands.device
    }

    /// Records the barrier that a command with these accesses needs, if any, and keeps its buffers alive.
    fn order(&mut self, accesses: &[(View, Access, Stages)]) -> Result<()> {
        let mut tracked = Vec::with_capacity(accesses.len());
        for (view, access, stage) in accesses {
            view.check_device(self.device())?;
            self.commands.keep_block(&view.block);
            let block = Arc::as_ptr(&view.block).addr();
            tracked.push(BufferAccess { block, range: view.range(), access: *access, stage: *stage });
        }
        if let Some(barrier) = self.hazards.add_command(&tracked) {
            self.barrier(barrier);
            self.level += 1;
        }
        Ok(())
    }

    fn barrier(&mut self, barrier: Barrier) {
        self.list.push(Command::Barrier(barrier));
        let counters = &self.device().counters;
        counters.barriers.fetch_add(1, Ordering::Relaxed);
        counters.commands.fetch_add(1, Ordering::Relaxed);
    }

    fn finish_command(&mut self, name: &str, stage: Stages) -> Result<()> {
        self.device().counters.commands.fetch_add(1, Ordering::Relaxed);
        let level = self.level;
        let query =
            self.timestamps.as_mut().map_or(Ok(None), |timestamps| timestamps.add_command(name, level))?;
        self.list.extend(query.map(|query| Command::Timestamp { query, stage }));
        Ok(())
    }
}

/// The read and write access flags of pipeline stages. A barrier flushes only the caches that its stages use.
fn accesses(stages: Stages) -> (vk::AccessFlags2, vk::AccessFlags2) {
    use vk::AccessFlags2 as Flags;
    let kinds = [
        (COMPUTE, Flags::SHADER_STORAGE_READ, Flags::SHADER_STORAGE_WRITE),
        (TRANSFER, Flags::TRANSFER_READ, Flags::TRANSFER_WRITE),
        (INDIRECT, Flags::INDIRECT_COMMAND_READ, Flags::NONE),
        (CONDITION, Flags::CONDITIONAL_RENDERING_READ_EXT, Flags::NONE),
        (Stages::HOST, Flags::HOST_READ, Flags::HOST_WRITE),
    ];
    let used = kinds.into_iter().filter(|(stage, ..)| stages.contains(*stage));
    used.fold((Flags::NONE, Flags::NONE), |(reads, writes), (_, read, write)| (reads | read, writes | write))
}
