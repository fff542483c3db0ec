//! Records a program: dispatches, copies and fills, with the barriers that follow from what they touch.
//!
//! Commands are kept until the program is sealed, and written to the driver's command buffer then: by that time all pipelines
//! are known and have been compiled side by side.

use std::sync::{Arc, atomic::Ordering};

use ash::vk;

use crate::{
    device::{Device, DeviceInner},
    error::{Error, Result},
    hazards::{ALL, Barrier, COMPUTE, CONDITION, Hazards, INDIRECT, Stages, Strand, TRANSFER, Touch},
    memory::View,
    pipeline::{Pipeline, PipelineInner},
    program::{Commands, Program},
    shader::{Access, MAX_PUSH_BYTES, PushConstants, PushWriter},
    timing::{TimestampMode, Timestamps},
};

/// A program in the making. Consumed by [`Recorder::seal`]; until then nothing can be submitted.
pub struct Recorder {
    commands: Commands,
    list: Vec<Command>,
    hazards: Hazards,
    /// Barriers between commands so far.
    level: u32,
    timestamps: Option<Timestamps>,
    /// Within [`Recorder::conditional`].
    conditional: bool,
    /// Calls of [`Recorder::concurrently`] so far, and whether it is within one.
    forks: u32,
    forked: bool,
}

/// What is written to the command buffer. Everything that it names is kept by `commands`.
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
    /// What follows runs only if the word there is not zero.
    BeginCondition {
        buffer: vk::Buffer,
        offset: u64,
    },
    EndCondition,
    Stamp {
        number: u32,
        stage: Stages,
    },
}

/// How many workgroups a dispatch has.
enum Groups {
    Fixed([u32; 3]),
    Indirect { buffer: vk::Buffer, offset: u64 },
}

impl Device {
    /// Starts recording a program.
    pub fn recorder(&self) -> Result<Recorder> {
        Recorder::new(&self.inner, None)
    }

    /// The same, with GPU timestamps. An error where the device has none.
    pub fn timed_recorder(&self, stamps: TimestampMode) -> Result<Recorder> {
        let period = self.caps().timestamp_period_ns.ok_or_else(|| Error::Unsupported {
            device: self.info().name.clone(),
            missing: "its compute queue has no timestamps".into(),
            fix: "update its driver or choose another device (indrik devices)".into(),
        })?;
        let timestamps = Timestamps::new(&self.inner, stamps, period)?;
        Recorder::new(&self.inner, Some(timestamps))
    }
}

impl Recorder {
    fn new(device: &Arc<DeviceInner>, timestamps: Option<Timestamps>) -> Result<Self> {
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
        };
        // Submissions on one queue start in order but overlap: what earlier ones and the host wrote must be visible.
        recorder.barrier(Barrier { from: all | Stages::HOST, to: all, memory: true });
        Ok(recorder)
    }

    /// Runs `groups` workgroups of a pipeline. What it reads and writes is declared by `push`.
    pub fn dispatch<P: PushConstants>(
        &mut self,
        name: &str,
        pipeline: &Pipeline,
        groups: [u32; 3],
        push: &P,
    ) -> Result<()> {
        let limit = self.device().caps.max_groups;
        // Along y and z Vulkan promises only 65535 on every device.
        if groups.contains(&0) || groups[0] > limit || groups[1].max(groups[2]) > 65535 {
            let reason = format!("{groups:?} workgroups; 1 to {limit} along x, to 65535 along y and z");
            return Err(Error::InvalidUse { what: format!("{name} ({})", pipeline.name()), reason });
        }
        self.push_dispatch(name, pipeline, push, Groups::Fixed(groups), None)
    }

    /// The same with the number of workgroups read from a buffer when it runs: three words, x, y and z.
    pub fn dispatch_indirect<P: PushConstants>(
        &mut self,
        name: &str,
        pipeline: &Pipeline,
        groups: &View,
        push: &P,
    ) -> Result<()> {
        if groups.len() != 12 || !groups.range().start.is_multiple_of(4) {
            let reason = format!("{} bytes for the three words of an indirect dispatch", groups.len());
            return Err(Error::InvalidUse { what: format!("{name} ({})", pipeline.name()), reason });
        }
        let count = Groups::Indirect { buffer: groups.block.buffer, offset: groups.range().start };
        self.push_dispatch(name, pipeline, push, count, Some(groups))
    }

    /// Orders a dispatch after what it depends on.
    fn push_dispatch<P: PushConstants>(
        &mut self,
        name: &str,
        pipeline: &Pipeline,
        push: &P,
        groups: Groups,
        size: Option<&View>,
    ) -> Result<()> {
        let inner = &*pipeline.inner;
        let wrong =
            |reason: String| Error::InvalidUse { what: format!("{name} ({})", inner.shader.name), reason };
        if !std::ptr::eq(&*inner.device, self.device()) {
            return Err(wrong("the pipeline belongs to another device".into()));
        }
        if P::SIZE != inner.shader.push_size {
            return Err(wrong(format!("{} bytes of push constants for {}", P::SIZE, inner.shader.push_size)));
        }
        let mut writer = PushWriter::new();
        push.encode(&mut writer);
        let mut accesses: Vec<_> =
            writer.buffers.iter().map(|(view, access)| (view.clone(), *access, COMPUTE)).collect();
        accesses.extend(size.map(|view| (view.clone(), Access::Read, INDIRECT)));
        self.order(&accesses)?;

        self.commands.keep_pipeline(pipeline);
        self.list.push(Command::Dispatch { pipeline: pipeline.inner.clone(), push: writer.bytes, groups });
        self.done(name, COMPUTE)
    }

    /// Records dispatches that run only if `word`, a u32, is not zero when the program comes to them. An error where the device has
    /// no conditional rendering ([`Caps::conditional`](crate::Caps::conditional)).
    ///
    /// The last of them may write the word, for the programs that follow; a device that looks again before each command would
    /// otherwise skip some of them. Copies and fills are refused, since Vulkan does not skip those.
    pub fn conditional<T, E: From<Error>>(
        &mut self,
        word: &View,
        record: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let wrong = |reason: String| Error::InvalidUse { what: "condition".into(), reason };
        if self.conditional {
            return Err(wrong("within another one: Vulkan knows one at a time".into()).into());
        }
        if word.len() != 4 || !word.range().start.is_multiple_of(4) {
            return Err(wrong(format!("{} bytes for one word", word.len())).into());
        }
        if self.device().conditional.is_none() {
            let device = self.device().adapter.info.name.clone();
            let missing = "it lacks conditional rendering".into();
            return Err(
                Error::Unsupported { device, missing, fix: "submit one step at a time".into() }.into()
            );
        }
        self.order(&[(word.clone(), Access::Read, CONDITION)])?;
        self.list.push(Command::BeginCondition { buffer: word.block.buffer, offset: word.range().start });
        let commands = self.commands.raw;
        self.conditional = true;
        let recorded = record(self);
        if self.commands.raw != commands || !self.conditional {
            return Err(wrong("the recorder was exchanged for another one".into()).into());
        }
        self.conditional = false;
        self.list.push(Command::EndCondition);
        recorded
    }

    /// Records two lines of commands that touch no byte of each other's, though their views may overlap: rows of one buffer that
    /// only the shaders tell apart. No barrier is put between them for what they share; each is ordered within itself, after
    /// what was before and before what follows. Whoever calls it answers for that: a wrong claim is a race on the GPU.
    ///
    /// A barrier within the second orders all of the first before what follows it, so the longer line is best recorded first.
    pub fn concurrently<E: From<Error>>(
        &mut self,
        one: impl FnOnce(&mut Self) -> Result<(), E>,
        other: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.forked {
            let reason = "within another one: record it before or after".into();
            return Err(Error::InvalidUse { what: "side by side".into(), reason }.into());
        }
        self.forks += 1;
        self.forked = true;
        let fork = self.forks;
        self.hazards.begin_strand(Some(Strand { fork, number: 0 }));
        let recorded = one(self).and_then(|()| {
            self.hazards.begin_strand(Some(Strand { fork, number: 1 }));
            other(self)
        });
        self.hazards.begin_strand(None);
        self.forked = false;
        recorded
    }

    /// Vulkan skips dispatches only.
    fn must_not_be_conditional(&self, name: &str) -> Result<()> {
        if self.conditional {
            let reason = "copies and fills run whatever a condition says: record it before or after".into();
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        Ok(())
    }

    /// Copies between buffers of equal length.
    pub fn copy(&mut self, name: &str, from: impl Into<View>, to: impl Into<View>) -> Result<()> {
        let (from, to) = (from.into(), to.into());
        let (a, b) = (from.range(), to.range());
        let overlap = Arc::ptr_eq(&from.block, &to.block) && a.start < b.end && b.start < a.end;
        if from.len() != to.len() || from.is_empty() || overlap {
            let reason = format!(
                "{} bytes into {}{}",
                from.len(),
                to.len(),
                if overlap { " that overlap" } else { "" }
            );
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        self.must_not_be_conditional(name)?;
        self.order(&[(from.clone(), Access::Read, TRANSFER), (to.clone(), Access::Write, TRANSFER)])?;
        let region =
            vk::BufferCopy { src_offset: from.range().start, dst_offset: to.range().start, size: from.len() };
        self.list.push(Command::Copy { from: from.block.buffer, to: to.block.buffer, region });
        self.done(name, TRANSFER)
    }

    /// Fills a buffer with a repeated word; its length must be a multiple of 4.
    pub fn fill(&mut self, name: &str, to: impl Into<View>, word: u32) -> Result<()> {
        let to = to.into();
        if to.is_empty() || !to.len().is_multiple_of(4) || !to.range().start.is_multiple_of(4) {
            let reason = format!("{} bytes cannot be filled with words", to.len());
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        self.must_not_be_conditional(name)?;
        self.order(&[(to.clone(), Access::Write, TRANSFER)])?;
        self.list.push(Command::Fill { to: to.block.buffer, range: to.range(), word });
        self.done(name, TRANSFER)
    }

    /// The pipelines of all dispatches so far, each once.
    pub fn pipelines(&self) -> Vec<Pipeline> {
        self.commands.pipelines()
    }

    /// Ends the recording: compiles the pipelines that are not compiled yet, and hands the commands to the driver. The program
    /// can be replayed any number of times.
    pub fn seal(mut self) -> Result<Program> {
        if self.conditional {
            let reason = "its condition never ended: the recorder was exchanged for another one".into();
            return Err(Error::InvalidUse { what: "program".into(), reason });
        }
        // A finished submission is available, but the host sees it only after a barrier to it.
        self.barrier(Barrier { from: COMPUTE | TRANSFER, to: Stages::HOST, memory: true });
        if let Some(number) = self.timestamps.as_mut().and_then(Timestamps::end) {
            self.list.push(Command::Stamp { number, stage: Stages::ALL_COMMANDS });
        }
        let device = self.commands.device.clone();
        Device { inner: device.clone() }.compile(&self.pipelines())?;
        // SIMULTANEOUS_USE: the next token may be submitted before the last one is done.
        let begin =
            vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: the command buffer is ours alone and nothing was recorded into it yet.
        unsafe { device.raw.begin_command_buffer(self.commands.raw, &begin) }
            .map_err(|result| device.fail("vkBeginCommandBuffer", result))?;
        for (index, command) in self.list.iter().enumerate() {
            self.write(command)?;
            // The first command is the barrier to what was before: the clock starts behind it.
            if let (0, Some(timestamps)) = (index, &self.timestamps) {
                timestamps.reset_and_start(&self.commands);
            }
        }
        // SAFETY: the command buffer is in the recording state.
        unsafe { device.raw.end_command_buffer(self.commands.raw) }
            .map_err(|result| device.fail("vkEndCommandBuffer", result))?;
        Ok(Program::new(self.commands, self.timestamps))
    }

    /// Writes a command to the command buffer, which is in the recording state.
    fn write(&self, command: &Command) -> Result<()> {
        let (raw, commands) = (&self.device().raw, self.commands.raw);
        // SAFETY: recording into our own command buffer. Ranges lie within their buffers, workgroups within the device's
        // limits: both were checked when the command was added, as was that the word of a condition is aligned and that the
        // device has conditions, of which each ends before the next begins. Buffers and pipelines are kept alive by the program, and
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
                    if let Some(functions) = &self.device().conditional {
                        (functions.fp().cmd_begin_conditional_rendering_ext)(commands, &begin);
                    }
                }
                Command::EndCondition => {
                    if let Some(functions) = &self.device().conditional {
                        (functions.fp().cmd_end_conditional_rendering_ext)(commands);
                    }
                }
                Command::Stamp { number, stage } => {
                    if let Some(timestamps) = &self.timestamps {
                        timestamps.stamp(&self.commands, *number, *stage);
                    }
                }
            }
        }
        Ok(())
    }

    fn device(&self) -> &DeviceInner {
        &self.commands.device
    }

    fn order(&mut self, accesses: &[(View, Access, Stages)]) -> Result<()> {
        let mut touches = Vec::with_capacity(accesses.len());
        for (view, access, stage) in accesses {
            view.must_be_of(self.device())?;
            self.commands.keep_block(&view.block);
            let block = Arc::as_ptr(&view.block).addr();
            touches.push(Touch { block, range: view.range(), access: *access, stage: *stage });
        }
        if let Some(barrier) = self.hazards.command(&touches) {
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

    fn done(&mut self, name: &str, stage: Stages) -> Result<()> {
        self.device().counters.commands.fetch_add(1, Ordering::Relaxed);
        let level = self.level;
        let number =
            self.timestamps.as_mut().map_or(Ok(None), |timestamps| timestamps.command(name, level))?;
        self.list.extend(number.map(|number| Command::Stamp { number, stage }));
        Ok(())
    }
}

/// How the stages of a barrier read and write: no cache is flushed that they do not go through.
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
