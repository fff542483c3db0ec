//! The recorded programs of a runner: one per [`ProgramKey`], recorded for the first step with that
//! key, and again when the measured slowdown shows that its segments are too short or too long.

mod key;

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    ops::Range,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use gpu::{Buffer, Device, Pipeline, Program, Recorder, TimestampMode};
use kernels::{
    sample::Features,
    score::{self, Score},
};

use crate::{
    Error, Model, Result,
    attention_offload::AttentionCuts,
    bucket::bucket,
    decoder,
    image_encoder::SoftTokenCache,
    kv_cache::KvCache,
    pacer::{Pacer, StepExtent},
    sampler::SamplerState,
    state::{Batch, StepState},
    step::{KvSplits, Outputs, Scratch, Step, StepBuffers},
};

pub(crate) use key::{Output, ProgramKey};

/// Time spent before the first step can run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetupTime {
    /// Compiling pipelines, or loading them from the pipeline cache.
    pub pipelines: Duration,
    /// Allocating a step's buffers and recording programs.
    pub recording: Duration,
}

impl SetupTime {
    /// The sum of both.
    pub fn total(self) -> Duration {
        self.pipelines + self.recording
    }
}

impl std::ops::Sub for SetupTime {
    type Output = SetupTime;
    fn sub(self, before: SetupTime) -> SetupTime {
        SetupTime {
            pipelines: self.pipelines - before.pipelines,
            recording: self.recording - before.recording,
        }
    }
}

impl std::ops::AddAssign for SetupTime {
    fn add_assign(&mut self, more: SetupTime) {
        self.pipelines += more.pipelines;
        self.recording += more.recording;
    }
}

/// The segments of a step in order: ranges of layers, with the head after the last layer.
type Segments<T> = Vec<(Range<usize>, T)>;

/// A recorded step.
struct RecordedStep {
    segments: Segments<Program>,
    /// The slowdown that its segments were cut at.
    slowdown: f64,
    /// The version of the tuned plans that it was recorded with.
    tuning: u64,
}

/// A recorded step whose pipelines need not be compiled yet.
struct UnsealedStep {
    key: ProgramKey,
    segments: Segments<Recorder>,
    tuning: u64,
}

impl UnsealedStep {
    fn pipelines(&self) -> impl Iterator<Item = Pipeline> {
        self.segments.iter().flat_map(|(_, recorder)| recorder.pipelines())
    }
}

/// The model and the state that programs are recorded from.
pub(crate) struct Sources<'a> {
    pub model: &'a Model,
    pub cache: &'a KvCache,
    pub state: &'a StepState,
    pub sampler: &'a mut SamplerState,
    pub pacer: &'a Pacer,
    /// Of images, where the model has an image encoder.
    pub soft_tokens: Option<&'a SoftTokenCache>,
}

impl Sources<'_> {
    /// The segments of a step, short enough even at the end of the context.
    fn segments(&self, key: ProgramKey) -> Vec<Range<usize>> {
        segments(self.pacer, key, self.cache.limits().context_length)
    }
}

fn segments(pacer: &Pacer, key: ProgramKey, context_length: u32) -> Vec<Range<usize>> {
    pacer.segments(key.bucket, &key.max_extent(context_length))
}

/// Recorded programs by key, and the buffers that they use.
#[derive(Default)]
pub(crate) struct ProgramCache {
    programs: HashMap<ProgramKey, RecordedStep>,
    /// By bucket and the number of rows for which kernels are chosen.
    scratch: BTreeMap<(usize, usize), Scratch>,
    /// By output rows, and the number of rows for which their kernels are chosen.
    outputs: BTreeMap<(usize, usize), Outputs>,
    kv_splits: KvSplits,
    /// The program that is being recorded ahead of its first use.
    ahead: Option<UnsealedStep>,
    recorded: u64,
    setup_time: SetupTime,
}

impl ProgramCache {
    /// Programs recorded so far.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    pub fn setup_time(&self) -> SetupTime {
        self.setup_time
    }

    /// The logits of steps with [`Output::Logits`].
    pub fn logits(&self, rows: usize) -> &Buffer {
        &self.outputs[&(rows, rows)].logits
    }

    /// Discards all programs.
    #[cfg(any(test, feature = "testing"))]
    pub fn clear(&mut self) {
        self.programs.clear();
    }

    /// Records the programs that are missing or stale.
    pub fn prepare(&mut self, sources: &mut Sources<'_>, keys: &[ProgramKey]) -> Result<()> {
        let (mut new, mut stale) = (Vec::new(), Vec::new());
        let tuning = sources.model.tuning_version();
        for key in keys {
            match self.programs.get(key) {
                _ if new.contains(key) || stale.contains(key) => {}
                None => new.push(*key),
                // Exact verify steps and single steps have the same bits only with the same plans.
                Some(recorded)
                    if recorded.tuning != tuning
                        && key.kernel_rows() == 1
                        && keys.iter().chain(self.programs.keys()).any(|key| key.batch == Batch::Verify) =>
                {
                    stale.push(*key)
                }
                Some(recorded) if !recorded.is_stale(sources.pacer, *key) => {}
                // Its segments would be the same.
                Some(recorded)
                    if sources.segments(*key).iter().eq(recorded.segments.iter().map(|(range, _)| range)) =>
                {
                    self.keep(sources.pacer, *key);
                }
                Some(_) => stale.push(*key),
            }
        }
        self.record_keys(sources, &new)?;
        match self.record_keys(sources, &stale) {
            // No memory for the old and the new programs at once: keep the old ones.
            Err(Error::Gpu(gpu::Error::OutOfDeviceMemory { .. } | gpu::Error::OutOfHostMemory { .. })) => {
                stale.into_iter().for_each(|key| self.keep(sources.pacer, key));
                Ok(())
            }
            other => other,
        }
    }

    /// Keeps a stale program, until the slowdown differs from the present one.
    fn keep(&mut self, pacer: &Pacer, key: ProgramKey) {
        if let Some(recorded) = self.programs.get_mut(&key) {
            recorded.slowdown = pacer.bucket_slowdown(key.bucket);
        }
    }

    /// Records programs. Their pipelines are compiled together, on all cores.
    fn record_keys(&mut self, sources: &mut Sources<'_>, keys: &[ProgramKey]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let unsealed = keys.iter().map(|key| self.record_unsealed(sources, *key));
        let unsealed = unsealed.collect::<Result<Vec<_>>>()?;
        let compiling = Instant::now();
        let pipelines: Vec<Pipeline> = unsealed.iter().flat_map(UnsealedStep::pipelines).collect();
        sources.model.device.compile(&pipelines)?;
        let compiled = compiling.elapsed();
        unsealed.into_iter().try_for_each(|step| self.seal(sources.pacer, step))?;
        let recording = start.elapsed().saturating_sub(compiled);
        tracing::debug!(
            programs = keys.len(),
            ?recording,
            pipelines = ?compiled,
            first = ?keys[0],
            "programs recorded"
        );
        self.setup_time += SetupTime { pipelines: compiled, recording };
        Ok(())
    }

    /// Compiles the pipelines of these programs. They stay compiled for as long as the result is kept.
    /// Once `cancel` is set, the rest is left out.
    pub fn compile(
        &mut self,
        sources: &mut Sources<'_>,
        keys: &[ProgramKey],
        cancel: &AtomicBool,
    ) -> Result<Vec<Pipeline>> {
        let (device, all) = (&sources.model.device, 0..sources.pacer.units());
        std::thread::scope(|scope| {
            let mut compiling = Vec::new();
            for key in keys {
                let recorder = device.recorder()?;
                let pipelines = self.record(sources, *key, all.clone(), recorder)?.pipelines();
                // The next program is recorded meanwhile.
                let compile = move || device.compile_unless(cancel, &pipelines).map(|()| pipelines);
                compiling.push(scope.spawn(compile));
            }
            let mut compiled = Vec::new();
            for thread in compiling {
                compiled.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(compiled)
        })
    }

    /// The program that a prefill step can run in: its own, or the smallest recorded one with as many rows or more, which
    /// may have sampling filters that the step does not need.
    pub fn substitute(&self, key: ProgramKey) -> ProgramKey {
        if key.batch != Batch::Prefill || self.programs.contains_key(&key) {
            return key;
        }
        let serves = |other: &&ProgramKey| {
            let filters = other.features.filters || key.features.filters;
            let features = Features { filters, ..key.features };
            other.bucket >= key.bucket && ProgramKey { bucket: other.bucket, features, ..key } == **other
        };
        self.programs.keys().filter(serves).min_by_key(|other| other.bucket).copied().unwrap_or(key)
    }

    /// Records the first of these programs that is missing or older than the tuned plans it would use, without
    /// compiling its pipelines. Returns those that are to be compiled before [`Self::seal_ahead`]; `None` if there is
    /// no such program.
    pub fn record_ahead(
        &mut self,
        sources: &mut Sources<'_>,
        keys: &[ProgramKey],
    ) -> Result<Option<Vec<Pipeline>>> {
        let is_missing = |key: &&ProgramKey| match self.programs.get(key) {
            Some(recorded) => key.uses_tuned_plans() && recorded.tuning != sources.model.tuning_version(),
            None => true,
        };
        let Some(key) = keys.iter().find(is_missing) else { return Ok(None) };
        let start = Instant::now();
        let unsealed = self.record_unsealed(sources, *key)?;
        let pipelines = unsealed.pipelines().collect();
        self.ahead = Some(unsealed);
        self.setup_time.recording += start.elapsed();
        Ok(Some(pipelines))
    }

    /// Completes the program of [`Self::record_ahead`], unless a step has needed and recorded it since.
    pub fn seal_ahead(&mut self, pacer: &Pacer) -> Result<()> {
        match self.ahead.take() {
            Some(step) if self.programs.get(&step.key).is_none_or(|known| known.tuning < step.tuning) => {
                self.seal(pacer, step)
            }
            _ => Ok(()),
        }
    }

    fn record_unsealed(&mut self, sources: &mut Sources<'_>, key: ProgramKey) -> Result<UnsealedStep> {
        let tuning = sources.model.tuning_version();
        let mut segments = Vec::new();
        for range in sources.segments(key) {
            let recorder = sources.model.device.recorder()?;
            segments.push((range.clone(), self.record(sources, key, range, recorder)?));
        }
        Ok(UnsealedStep { key, segments, tuning })
    }

    fn seal(&mut self, pacer: &Pacer, UnsealedStep { key, segments, tuning }: UnsealedStep) -> Result<()> {
        let segments = segments
            .into_iter()
            .map(|(range, recorder)| Ok((range, recorder.seal()?)))
            .collect::<Result<Segments<Program>>>()?;
        let slowdown = pacer.bucket_slowdown(key.bucket);
        self.programs.insert(key, RecordedStep { segments, slowdown, tuning });
        self.recorded += 1;
        Ok(())
    }

    /// Number of segments of the next step with this key.
    pub fn segment_count(&self, pacer: &Pacer, key: ProgramKey, context_length: u32) -> usize {
        match self.programs.get(&key).filter(|recorded| !recorded.is_stale(pacer, key)) {
            Some(recorded) => recorded.segments.len(),
            None => segments(pacer, key, context_length).len(),
        }
    }

    /// Runs a prepared program `steps` times, waits for the last, and returns the time it took. One
    /// submission, unless that would take too long.
    pub fn run(
        &self,
        device: &Device,
        pacer: &Pacer,
        key: ProgramKey,
        extent: &StepExtent,
        steps: usize,
        timeout: Duration,
    ) -> Result<Duration> {
        let recorded = &self.programs[&key];
        let ranges = recorded.segments.iter().map(|(range, _)| range);
        let submissions = pacer.submissions(key.bucket, extent, ranges, steps);
        let programs: Vec<_> = recorded.segments.iter().map(|(_, program)| program).collect();
        let programs = programs.repeat(steps);
        let start = Instant::now();
        let mut last = None;
        for range in submissions {
            last = Some(device.submit(&programs[range])?);
        }
        if let Some(ticket) = last {
            device.wait(ticket, timeout)?;
        }
        Ok(start.elapsed())
    }

    /// Records a step with timestamps, in one segment.
    pub fn record_timed(
        &mut self,
        sources: &mut Sources<'_>,
        key: ProgramKey,
        timestamps: TimestampMode,
    ) -> Result<Program> {
        let all = 0..sources.pacer.units();
        self.record_segment_timed(sources, key, all, timestamps)
    }

    /// Records the segments of a step with timestamps.
    pub fn record_segments_timed(
        &mut self,
        sources: &mut Sources<'_>,
        key: ProgramKey,
        timestamps: TimestampMode,
    ) -> Result<Vec<Program>> {
        let ranges = sources.segments(key).into_iter();
        ranges.map(|range| self.record_segment_timed(sources, key, range, timestamps)).collect()
    }

    fn record_segment_timed(
        &mut self,
        sources: &mut Sources<'_>,
        key: ProgramKey,
        range: Range<usize>,
        timestamps: TimestampMode,
    ) -> Result<Program> {
        let recorder = sources.model.device.timed_recorder(timestamps)?;
        Ok(self.record(sources, key, range, recorder)?.seal()?)
    }

    /// Distinct experts that the rows of the last decode step of this many rows selected in the last layer; `None` for
    /// models without experts, and before such a step.
    pub fn distinct_experts(&self, model: &Model, rows: usize) -> Result<Option<u32>> {
        let key = (bucket(rows), bucket(rows));
        let (Some(experts), Some(scratch)) = (model.experts(), self.scratch.get(&key)) else {
            return Ok(None);
        };
        let pairs = rows * experts.per_token as usize;
        Ok(Some(scratch.experts().distinct(model, pairs)?.len() as u32))
    }

    /// Allocates the buffers that a program uses.
    pub fn allocate(&mut self, sources: &mut Sources<'_>, key: ProgramKey) -> Result<()> {
        let model = sources.model;
        let kernel_rows = key.kernel_rows();
        if let Entry::Vacant(entry) = self.scratch.entry((key.bucket, kernel_rows)) {
            entry.insert(Scratch::new(model, key.bucket, kernel_rows)?);
        }
        self.kv_splits.prepare(model, sources.cache.limits(), key.batch, key.bucket)?;
        let output_rows = key.output.rows();
        if output_rows > 0
            && let Entry::Vacant(entry) = self.outputs.entry((output_rows, key.output_kernel_rows()))
        {
            entry.insert(Outputs::new(model, output_rows, key.output_kernel_rows())?);
        }
        sources.sampler.prepare(key.features, key.output.samples())
    }

    /// Records a segment, after allocating the buffers that it uses.
    fn record(
        &mut self,
        sources: &mut Sources<'_>,
        key: ProgramKey,
        range: Range<usize>,
        mut recorder: Recorder,
    ) -> Result<Recorder> {
        self.allocate(sources, key)?;
        let model = sources.model;
        if key.decodes_in_place() && model.device.caps().conditional_rendering {
            // Steps after the end of a run are skipped.
            let running = sources.sampler.running()?;
            recorder
                .conditional(&running, |recorder| self.record_segment(sources, key, range, recorder, None))?;
        } else {
            self.record_segment(sources, key, range, &mut recorder, None)?;
        }
        Ok(recorder)
    }

    /// Records a whole prefill step that is cut where layers attend; the recorder after the last cut.
    pub fn record_cut(
        &mut self,
        sources: &mut Sources<'_>,
        key: ProgramKey,
        cuts: &AttentionCuts<'_>,
    ) -> Result<Recorder> {
        self.allocate(sources, key)?;
        let mut recorder = sources.model.device.recorder()?;
        let all = 0..sources.pacer.units();
        self.record_segment(sources, key, all, &mut recorder, Some(cuts))?;
        Ok(recorder)
    }

    fn record_segment(
        &self,
        sources: &Sources<'_>,
        key: ProgramKey,
        range: Range<usize>,
        recorder: &mut Recorder,
        attention_cuts: Option<&AttentionCuts<'_>>,
    ) -> Result<()> {
        let Sources { model, cache, state, sampler, soft_tokens, .. } = sources;
        let outputs = self.outputs.get(&(key.output.rows(), key.output_kernel_rows()));
        let buffers = StepBuffers {
            model,
            cache,
            state,
            scratch: &self.scratch[&(key.bucket, key.kernel_rows())],
            kv_splits: &self.kv_splits,
            outputs,
            soft_tokens: *soft_tokens,
            attention_cuts,
        };
        let mut step = Step::new(buffers, key.batch, recorder);
        let layers = model.config.layers;
        step.resume_at(range.start as u32);
        decoder::layers(&mut step, range.start as u32..layers.min(range.end as u32))?;
        if range.end <= layers as usize {
            return Ok(());
        }
        if key.features.counts {
            sampler.record_counting(step.recorder(), key.bucket, state)?;
        }
        if let Some(outputs) = outputs {
            decoder::head(&mut step)?;
            record_output(sources, key, outputs, step.recorder())?;
        }
        Ok(())
    }
}

/// Records the sampling or scoring of the logits.
fn record_output(
    sources: &Sources<'_>,
    key: ProgramKey,
    outputs: &Outputs,
    recorder: &mut Recorder,
) -> Result<()> {
    let Sources { model, state, sampler, .. } = sources;
    match key.output {
        Output::None | Output::Logits { .. } => Ok(()),
        Output::Score { rows } => {
            let (targets, nll) = state.score_buffers();
            let operands =
                score::Operands { active: state.outputs.view(), logits: outputs.logits.view(), targets, nll };
            let kernel = Score::new(&model.device, model.config.vocab as usize)?;
            Ok(kernel.record(recorder, "score", rows, &operands)?)
        }
        Output::Sample { rows } => {
            let logits = outputs.logits.view();
            sampler.record(recorder, key.features, rows, key.decodes_in_place(), state, logits)
        }
    }
}

impl RecordedStep {
    /// Whether its segments were cut at a slowdown too different from the present one.
    fn is_stale(&self, pacer: &Pacer, key: ProgramKey) -> bool {
        pacer.is_stale(key.bucket, self.slowdown, self.segments.len())
    }
}
