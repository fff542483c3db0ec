//! Which programs there are, and what each holds: recorded when the first step of its kind comes, and again where it turns out to be cut
//! for too different a pace.

use std::{collections::btree_map::Entry, ops::Range, time::Instant};

use gpu::{Arena, Buffer, Lifetime, Memory, Pipeline, Program, Recorder, TimestampMode};
use kernels::{
    sample::{self, CountMode, CountTokens, Run, Sample},
    score::{self, Score},
};
use weights::blueprint::MatrixId;

use super::{
    Runner,
    pace::{self, Extent, Matrices, Seeing},
};
use crate::{
    Error, Model, Result,
    bucket::bucket,
    decoder,
    state::{MAX_SAMPLED, MAX_STEPS},
    step::{Batch, FEW_ROWS, Outputs, Scratch, Step},
};

/// What becomes of the last layer's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Output {
    /// Nothing: only keys and values were wanted.
    None,
    /// A token for each of so many rows.
    Sample { rows: usize },
    /// The logits of so many rows.
    Logits { rows: usize },
    /// The probability of a given token in each of so many rows.
    Score { rows: usize },
}

impl Output {
    pub(super) fn rows(self) -> usize {
        match self {
            Output::None => 0,
            Output::Sample { rows } | Output::Logits { rows } | Output::Score { rows } => rows,
        }
    }
}

/// How many rows of a step are of which kind: first those that are apart, then those of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) apart: usize,
    pub(super) chunk: usize,
}

impl Count {
    /// One row of one sequence is no different from rows of several: it is counted among them.
    pub(super) fn new(apart: usize, chunk: usize) -> Self {
        if chunk == 1 { Self { apart: apart + 1, chunk: 0 } } else { Self { apart, chunk } }
    }

    pub(super) fn rows(self) -> usize {
        self.apart + self.chunk
    }

    /// The bucket that rows that are apart are recorded for.
    pub(super) fn apart_bucket(self) -> usize {
        match self.kind() {
            Batch::Decode => bucket(self.apart),
            Batch::Prefill => 0,
            Batch::Mixed { decode, .. } => decode,
        }
    }

    fn kind(self) -> Batch {
        match self {
            Count { chunk: 0, .. } => Batch::Decode,
            Count { apart: 0, .. } => Batch::Prefill,
            // Of so few rows it is not worth to tell those that are apart from the others: idle ones cost nothing.
            _ if self.rows() <= FEW_ROWS => Batch::Mixed { decode: bucket(self.rows()), few: true },
            Count { apart, chunk } => Batch::Mixed { decode: bucket(apart), few: chunk <= FEW_ROWS },
        }
    }
}

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) rows: usize,
    pub(super) kind: Batch,
    pub(super) output: Output,
    /// What any of its rows asks of the sampler.
    pub(super) form: sample::Features,
}

impl Key {
    pub(super) fn new(count: Count, output: Output, form: sample::Features) -> Self {
        Self { rows: bucket(count.rows()), kind: count.kind(), output, form }
    }

    /// As many rows as fit its buckets.
    fn most(self) -> Count {
        match self.kind {
            Batch::Decode => Count { apart: self.rows, chunk: 0 },
            Batch::Prefill => Count { apart: 0, chunk: self.rows },
            Batch::Mixed { decode, .. } => {
                let apart = decode.min(self.rows - 2);
                Count { apart, chunk: self.rows - apart }
            }
        }
    }

    /// Whether the step leaves the next one's rows in the place of its own, so that it can be repeated.
    fn decodes(self) -> bool {
        self.kind == Batch::Decode && self.output == Output::Sample { rows: self.rows }
    }
}

/// The parts of a step, in order: layers, and as the last number what follows them.
type Parts<T> = Vec<(Range<usize>, T)>;

/// A step as it was recorded.
pub(super) struct Recorded {
    pub(super) parts: Parts<Program>,
    /// The pace that its parts were cut at.
    pace: f64,
}

/// The sizes of a model's matrices, by layer, and of its head.
pub(super) fn matrices(model: &Model) -> Matrices {
    let layers = model.config.layers as usize;
    let mut sums = vec![(0, 0); layers + 1];
    let tied = model.weights.by_id(MatrixId::Head).next().is_none();
    for (place, matrix) in &model.weights.matrices {
        let unit = match place {
            MatrixId::Qkv(layer)
            | MatrixId::AttentionOutput(layer)
            | MatrixId::GateUp(layer)
            | MatrixId::Down(layer) => *layer as usize,
            MatrixId::Head => layers,
            MatrixId::Embedding if tied => layers,
            MatrixId::Embedding => continue,
        };
        sums[unit].0 += matrix.bytes();
        sums[unit].1 += (matrix.layout().rows * matrix.layout().k) as u64;
    }
    Matrices(sums)
}

impl Runner {
    /// Records the programs of those kinds of steps that have none yet, or one that is cut for another pace.
    pub(super) fn prepare_keys(&mut self, keys: &[Key]) -> Result<()> {
        let (mut new, mut stale) = (Vec::new(), Vec::new());
        for key in keys {
            match self.programs.get(key) {
                _ if new.contains(key) || stale.contains(key) => {}
                None => new.push(*key),
                Some(recorded) if !self.is_stale(*key, recorded) => {}
                // It would be cut in the same way.
                Some(recorded) if self.parts(*key).iter().eq(recorded.parts.iter().map(|(part, _)| part)) => {
                    self.keep(*key);
                }
                Some(_) => stale.push(*key),
            }
        }
        self.record_keys(&new)?;
        match self.record_keys(&stale) {
            // There is no room for two of a kind: the old ones do.
            Err(Error::Gpu(gpu::Error::OutOfDeviceMemory { .. } | gpu::Error::OutOfHostMemory { .. })) => {
                stale.into_iter().for_each(|key| self.keep(key));
                Ok(())
            }
            other => other,
        }
    }

    /// Whether the parts of a program were cut at too different a pace.
    fn is_stale(&self, key: Key, recorded: &Recorded) -> bool {
        pace::is_stale(recorded.pace, recorded.parts.len(), self.pace_of(key))
    }

    /// Leaves a program as it is, and asks again only when the pace is another than now.
    fn keep(&mut self, key: Key) {
        let pace = self.pace_of(key);
        if let Some(recorded) = self.programs.get_mut(&key) {
            recorded.pace = pace;
        }
    }

    /// Records the programs of some kinds of steps. Their pipelines are compiled together, on all cores.
    fn record_keys(&mut self, keys: &[Key]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let mut recorded: Vec<(Key, Parts<Recorder>)> = Vec::new();
        for key in keys {
            let mut parts = Vec::new();
            for part in self.parts(*key) {
                let recorder = self.model.device.recorder()?;
                parts.push((part.clone(), self.record(*key, part, recorder)?));
            }
            recorded.push((*key, parts));
        }
        let compiling = Instant::now();
        let recorders = recorded.iter().flat_map(|(_, parts)| parts);
        let pipelines: Vec<Pipeline> = recorders.flat_map(|(_, recorder)| recorder.pipelines()).collect();
        self.model.device.compile(&pipelines)?;
        let compiled = compiling.elapsed();
        for (key, parts) in recorded {
            let parts = parts
                .into_iter()
                .map(|(part, recorder)| Ok((part, recorder.seal()?)))
                .collect::<Result<Parts<Program>>>()?;
            let pace = self.pace_of(key);
            self.programs.insert(key, Recorded { parts, pace });
            self.counters.programs += 1;
        }
        let recording = start.elapsed().saturating_sub(compiled);
        tracing::debug!(programs = keys.len(), ?recording, pipelines = ?compiled, first = ?keys[0], "recorded");
        self.setup.pipelines += compiled;
        self.setup.recording += recording;
        Ok(())
    }

    /// How much longer than estimated steps of a kind took so far: of as many rows, or else of about as many.
    fn pace_of(&self, key: Key) -> f64 {
        self.bucket_paces.get(&key.rows).copied().unwrap_or(self.pace(key.rows))
    }

    /// How many parts the next step of a kind has.
    pub(super) fn part_count(&self, key: Key) -> usize {
        match self.programs.get(&key).filter(|recorded| !self.is_stale(key, recorded)) {
            Some(recorded) => recorded.parts.len(),
            None => self.parts(key).len(),
        }
    }

    /// A step in one part, with timestamps.
    pub(super) fn record_timed(&mut self, key: Key, stamps: TimestampMode) -> Result<Program> {
        let recorder = self.model.device.timed_recorder(stamps)?;
        Ok(self.record(key, 0..self.matrices.0.len(), recorder)?.seal()?)
    }

    /// The parts of a step: short enough even deep in the context.
    pub(super) fn parts(&self, key: Key) -> Vec<Range<usize>> {
        if self.layer_by_layer {
            return (0..self.matrices.0.len()).map(|unit| unit..unit + 1).collect();
        }
        let context = self.cache.limits().context_length;
        let seconds = self.estimate(&extent(key.most(), context, key.output));
        pace::parts(&seconds, self.part, self.pace_of(key))
    }

    /// Seconds that the layers of a step, and what follows them, would take on a slow GPU.
    pub(super) fn estimate(&self, extent: &Extent) -> Vec<f64> {
        pace::estimate(&self.model.config, self.cache.limits().kv_scheme, &self.matrices, extent)
    }

    /// Records a part of a step.
    pub(super) fn record(
        &mut self,
        key: Key,
        part: Range<usize>,
        mut recorder: Recorder,
    ) -> Result<Recorder> {
        if let Entry::Vacant(entry) = self.scratch.entry(key.rows) {
            entry.insert(Scratch::new(&self.model, key.rows)?);
        }
        self.splits.prepare(&self.model, self.cache.limits(), key.kind, key.rows)?;
        let output_rows = key.output.rows();
        if output_rows > 0
            && let Entry::Vacant(entry) = self.outputs.entry(output_rows)
        {
            entry.insert(Outputs::new(&self.model, output_rows)?);
        }
        if key.form.counts {
            self.counts()?;
        }
        self.prepare_choices(key.form)?;
        if let Output::Sample { .. } = key.output {
            self.prepare_sampler(key.form)?;
        }
        let this = &*self;
        if key.decodes() && this.model.device.caps().conditional_rendering {
            // What follows the end of a run is skipped.
            let running = this.state.run.slice(Run::RUNNING)?;
            recorder.conditional(&running, |recorder| this.record_part(key, part, recorder))?;
        } else {
            this.record_part(key, part, &mut recorder)?;
        }
        Ok(recorder)
    }

    fn record_part(&self, key: Key, part: Range<usize>, recorder: &mut Recorder) -> Result<()> {
        let outputs = self.outputs.get(&key.output.rows());
        let mut step = Step {
            model: &self.model,
            cache: &self.cache,
            state: &self.state,
            scratch: &self.scratch[&key.rows],
            attention_splits: &self.splits,
            outputs,
            rows: key.kind,
            recorder,
            norm: None,
            swapped: false,
            splits: 1,
            listed: None,
        };
        let layers = self.model.config.layers;
        step.go_on_from(part.start as u32);
        decoder::layers(&mut step, part.start as u32..layers.min(part.end as u32))?;
        if part.end <= layers as usize {
            return Ok(());
        }
        if let (true, Some(counts)) = (key.form.counts, &self.counts) {
            let [tokens, slots] = [&self.state.tokens, &self.state.slots].map(Buffer::view);
            let vocab = self.model.config.vocab as usize;
            let kernel = CountTokens::new(&self.model.device, CountMode::Prompt, vocab)?;
            // Generated tokens pass here too, as the next step's input, and change nothing: they occurred already.
            kernel.record(
                step.recorder,
                "count tokens",
                key.rows,
                [&self.state.active, &tokens, &slots, &counts.view()],
            )?;
        }
        if let Some(outputs) = outputs {
            decoder::head(&mut step)?;
            self.record_output(step.recorder, key, outputs)?;
        }
        Ok(())
    }

    /// What follows the head.
    fn record_output(&self, recorder: &mut Recorder, key: Key, outputs: &Outputs) -> Result<()> {
        let (device, state) = (&self.model.device, &self.state);
        let vocab = self.model.config.vocab as usize;
        match key.output {
            Output::None | Output::Logits { .. } => Ok(()),
            Output::Score { rows } => {
                let operands = score::Operands {
                    active: state.outputs.view(),
                    logits: outputs.logits.view(),
                    targets: state.targets.view(),
                    nll: state.nll.view(),
                };
                Ok(Score::new(device, vocab)?.record(recorder, "score", rows, &operands)?)
            }
            Output::Sample { rows } => {
                let kernel = Sample::new(device, key.form, vocab)?;
                let scratch = &self.samplers[&self.sampler_bytes(key.form)?];
                // With an output for every row the sampler prepares the next step in place.
                let (tokens, positions) = match key.decodes() {
                    true => (&state.tokens, &state.positions),
                    false => (&state.next_tokens, &state.next_positions),
                };
                let operands = sample::Operands {
                    active: state.outputs.view(),
                    logits: outputs.logits.view(),
                    params: state.params.view(),
                    rows: state.output_rows.view(),
                    positions: state.positions.view(),
                    slots: state.slots.view(),
                    counts: self.counts.as_ref().filter(|_| key.form.counts).map(Buffer::view),
                    biases: key.form.biases.then(|| state.biases.view()),
                    mask: self.masks.as_ref().filter(|_| key.form.mask).map(Buffer::view),
                    top: self.tops.as_ref().filter(|_| key.form.top).map(Buffer::view),
                    scratch: scratch.view(),
                    sampled: state.sampled.view(),
                    next_tokens: tokens.view(),
                    next_positions: positions.view(),
                    stop_tokens: state.ends.view(),
                    run: state.run.view(),
                };
                Ok(kernel.record(recorder, "sample", rows, &operands)?)
            }
        }
    }

    /// Bytes of scratch memory of a sampler for as many rows as there may be. With filters it is so much that those with the most
    /// probable tokens, who need little more, share it.
    fn sampler_bytes(&self, form: sample::Features) -> Result<u64> {
        let form = sample::Features { top: form.top || form.filters, ..form };
        let kernel = Sample::new(&self.model.device, form, self.model.config.vocab as usize)?;
        Ok(kernel.scratch_bytes(bucket(self.max_sequences() as usize)))
    }

    /// Takes scratch memory for a sampler, where there is none of that size yet. All programs share it: they run one after the other.
    fn prepare_sampler(&mut self, form: sample::Features) -> Result<()> {
        let bytes = self.sampler_bytes(form)?;
        if let Entry::Vacant(entry) = self.samplers.entry(bytes) {
            let device = &self.model.device;
            let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 16);
            entry.insert(arena.buffer("sampler", bytes)?);
        }
        Ok(())
    }

    /// Takes memory for masks and for the most probable tokens, where a form has them and there is none yet.
    fn prepare_choices(&mut self, form: sample::Features) -> Result<()> {
        let device = &self.model.device;
        let rows = u64::from(self.cache.limits().max_rows().min(MAX_SAMPLED));
        if form.mask && self.masks.is_none() {
            let bytes = rows * u64::from(self.model.config.vocab.div_ceil(32)) * 4;
            let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Shared).with_block_size(bytes);
            self.masks = Some(arena.buffer("masks", bytes)?);
        }
        if form.top && self.tops.is_none() {
            let bytes = rows * (MAX_STEPS * sample::MAX_TOP * sample::Top::WORDS * 4) as u64;
            let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Readback).with_block_size(bytes);
            self.tops = Some(arena.buffer("most probable tokens", bytes)?);
        }
        Ok(())
    }

    /// The counts of all slots.
    pub(super) fn counts(&mut self) -> Result<&Buffer> {
        let words = u64::from(self.cache.limits().max_sequences) * u64::from(self.model.config.vocab);
        match &mut self.counts {
            Some(counts) => Ok(counts),
            none => {
                let device = &self.model.device;
                let mut arena =
                    Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 16);
                Ok(none.insert(arena.buffer("token counts", words * 4)?))
            }
        }
    }
}

/// The rows of a step, of which none is deeper than so many positions; what there is of chunks, as one.
pub(super) fn extent(count: Count, depth: u32, output: Output) -> Extent {
    let seeing = |rows: usize| Seeing { rows, depth: if rows > 0 { depth } else { 0 } };
    Extent { apart: seeing(count.apart), chunks: vec![seeing(count.chunk)], outputs: output.rows() }
}
