//! Carries sequences forward: fills in a step's state, replays the program of its bucket, reads what was sampled.

mod decode;
mod mixed;
mod pace;
mod read;
mod record;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use checkpoint::Config;
use gpu::{Arena, Buffer, Lifetime, Memory};
use kernels::{
    matmul::gemv,
    sample::{self, CountMode, MAX_BIASES},
};

use crate::{
    Error, Limits, Model, Result, Sampling,
    bucket::{bucket, buckets},
    kv_cache::KvCache,
    pages::Sequence,
    sampling::Choice,
    state::{MAX_SAMPLED, State},
    step::{Outputs, Scratch, Splits, attend_groups},
};

use pace::{Extent, Matrices, Seeing};
use record::{Count, Key, Output, Recorded};

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Which one.
    pub token: u32,
    /// The logarithm of the probability that the model gave it.
    pub logprob: f32,
    /// As many of the most probable tokens as [`Sampling::top`] asks for, the most probable first, with the same of theirs.
    pub top: Vec<(u32, f32)>,
}

/// What a runner did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps, whether each was a submission or several were one.
    pub steps: u64,
    /// Bytes that the host read of what the GPU wrote.
    pub read_back: u64,
    /// Programs recorded.
    pub programs: u64,
}

/// What stood between a runner and its first step, by the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetupTime {
    /// Compiling pipelines, or taking them from the cache.
    pub pipelines: Duration,
    /// Taking memory for a step's buffers, and recording programs.
    pub recording: Duration,
}

impl SetupTime {
    /// All of it.
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

/// Rows of the steps that tell how fast a device is: the most that count for few, and the next bucket.
const MEASURED_ROWS: [u32; 2] = [gemv::MAX_COLUMNS as u32, 2 * gemv::MAX_COLUMNS as u32];

/// How long a step may take: minutes on Mesa's CPU driver on a busy machine; no GPU takes that long.
const TIMEOUT: Duration = Duration::from_secs(300);

/// One row of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    token: u32,
    position: u32,
    slot: u32,
}

/// A model with the state of its sequences.
pub struct Runner {
    model: Arc<Model>,
    cache: KvCache,
    state: State,
    scratch: BTreeMap<usize, Scratch>,
    splits: Splits,
    outputs: BTreeMap<usize, Outputs>,
    /// Scratch memory of samplers, by its size.
    samplers: BTreeMap<u64, Buffer>,
    programs: HashMap<Key, Recorded>,
    /// How often each token occurred in each slot's sequence; made when the first penalty is asked for.
    counts: Option<Buffer>,
    /// The tokens that each output row may choose, a bit each; made when the first mask comes.
    masks: Option<Buffer>,
    /// The most probable tokens of each output row, by step of the run; made when they are first asked for.
    tops: Option<Buffer>,
    /// The sampling parameters that the GPU has.
    params: Vec<sample::Params>,
    /// The rows of the next step as the sampler has left them on the GPU.
    next: Vec<Row>,
    /// The tokens that end each row, as the GPU has them.
    ends: Vec<u32>,
    matrices: Matrices,
    /// How much longer than estimated steps took: those of a few rows and those of many.
    paces: [Option<f64>; 2],
    /// The same by bucket.
    bucket_paces: BTreeMap<usize, f64>,
    /// By bucket: the most steps of a run of decoding so far, and what a step of the last one took.
    runs: BTreeMap<usize, (usize, Duration)>,
    /// Seconds of a part of a step, at most, where it has more than one layer.
    part: f64,
    layer_by_layer: bool,
    step_time: Duration,
    counters: Counters,
    setup: SetupTime,
}

impl Runner {
    /// Takes memory for the KV cache and the state of a step.
    pub fn new(model: Arc<Model>, limits: Limits) -> Result<Self> {
        let cache = KvCache::new(&model.device, &model.config, limits)?;
        let state = State::new(&model.device, limits.max_rows())?;
        let matrices = record::matrices(&model);
        Ok(Self {
            model,
            cache,
            state,
            scratch: BTreeMap::new(),
            splits: Splits::default(),
            outputs: BTreeMap::new(),
            samplers: BTreeMap::new(),
            programs: HashMap::new(),
            counts: None,
            masks: None,
            tops: None,
            params: vec![],
            next: vec![],
            ends: vec![],
            matrices,
            paces: [None; 2],
            bucket_paces: BTreeMap::new(),
            runs: BTreeMap::new(),
            part: pace::PART,
            layer_by_layer: false,
            step_time: TIMEOUT,
            counters: Counters::default(),
            setup: SetupTime::default(),
        })
    }

    /// The same with every layer a submission of its own, as where a step takes very long: for tests, and to find which layer a GPU
    /// hangs in.
    pub fn layer_by_layer(mut self) -> Self {
        self.programs.clear();
        self.layer_by_layer = true;
        self
    }

    /// From now on parts of a step have so many seconds, and steps are taken to last `pace` times as long as on a slow GPU, where that is
    /// given, until some are measured: for tests.
    pub fn set_parts(&mut self, seconds: f64, pace: Option<f64>) {
        (self.part, self.paces) = (seconds, [pace; 2]);
        self.bucket_paces.clear();
    }

    /// The same with another limit on how long a step may take: what does not come back within it is taken for lost.
    pub fn with_step_timeout(mut self, limit: Duration) -> Self {
        self.step_time = limit;
        self
    }

    /// Whether the device still takes work and ends it: an empty submission, waited for as long as a step may take.
    pub fn probe(&self) -> Result<()> {
        Ok(self.model.device.recorder()?.seal()?.run(self.step_time)?)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The KV cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What recording its programs took so far.
    pub fn setup_time(&self) -> SetupTime {
        self.setup
    }

    /// The most sequences that a step takes.
    pub fn max_sequences(&self) -> u32 {
        self.cache.limits().max_sequences.min(MAX_SAMPLED)
    }

    /// A new sequence, of which nothing is shared or kept.
    pub fn start(&self) -> Result<Sequence> {
        self.cache.start()
    }

    /// A new sequence for these tokens, which holds as many of them as the cache has: at most all but the last. The rest is to be
    /// read. What it reads and writes is kept for others, in pages that nobody needs.
    pub fn start_with(&self, tokens: &[u32]) -> Result<Sequence> {
        self.cache.start_with(tokens)
    }

    /// Whether these tokens can follow in this sequence: known, and with room for them.
    pub fn check(&self, sequence: &Sequence, tokens: &[u32]) -> Result<()> {
        check_tokens(&self.model.config, sequence.len(), tokens, self.cache.limits().context_length)
    }

    /// Records what reading so many tokens and going on from them needs, so that a clock started now measures the work alone; but for what
    /// the first step of many rows shows to be cut into too many parts, which is recorded anew.
    pub fn prepare(&mut self, tokens: usize, sampling: &Sampling) -> Result<()> {
        let chunk = self.chunk_rows(0, self.cache.limits().prefill_chunk as usize);
        let form = sampling.form(self.model.config.vocab);
        let counting = sample::Features { counts: form.counts, ..sample::Features::default() };
        let (full, last) = (tokens.saturating_sub(1) / chunk, (tokens.max(1) - 1) % chunk + 1);
        let mut keys = vec![
            Key::new(Count::new(0, last), Output::Sample { rows: 1 }, form),
            Key::new(Count::new(1, 0), Output::Sample { rows: 1 }, form),
        ];
        if full > 0 {
            keys.push(Key::new(Count::new(0, chunk), Output::None, counting));
        }
        self.prepare_keys(&keys)
    }

    /// Records what a server needs again and again, before anyone waits for it: steps of any number of sequences that write, prompts of any
    /// length, alone and beside one that writes, and the longest beside more. What else comes is recorded when it does.
    pub fn prepare_serving(&mut self, samplings: &[Sampling]) -> Result<()> {
        let limits = self.cache.limits();
        let most = self.max_sequences() as usize;
        let mut keys = vec![];
        for sampling in samplings {
            let form = sampling.form(self.model.config.vocab);
            let mut add = |apart: usize, chunk: usize, outputs: usize| {
                keys.push(Key::new(Count::new(apart, chunk), Output::Sample { rows: outputs }, form));
            };
            buckets(most).for_each(|rows| add(rows, 0, rows));
            buckets(limits.prefill_chunk as usize).for_each(|rows| add(0, rows, 1));
            if limits.max_sequences > 1 {
                for rows in buckets(limits.prefill_chunk as usize).filter(|rows| *rows > 2) {
                    add(1, rows - 1, 1);
                    add(1, rows - 1, 2);
                }
            }
            // Rows of many who write have kernels of their own beside a chunk. Some take half a second to compile.
            for apart in buckets(most).map(|rows| rows.min(most - 1)).filter(|apart| *apart > 1) {
                add(apart, self.most_beside(apart), bucket(apart + 1));
            }
        }
        keys.push(Key::new(
            Count::new(0, limits.prefill_chunk as usize),
            Output::None,
            sample::Features::default(),
        ));
        self.find_pace(&keys)?;
        self.prepare_keys(&keys)
    }

    /// Reads a few tokens for nobody, where it is worth knowing how fast the device is before all this is recorded: for a slow one
    /// large steps are cut into many parts.
    fn find_pace(&mut self, keys: &[Key]) -> Result<()> {
        let limits = self.cache.limits();
        for rows in MEASURED_ROWS {
            let rows = rows.min(limits.prefill_chunk).min(limits.context_length);
            let many = decode::many(rows as usize);
            let mut alike = keys.iter().filter(|key| decode::many(key.rows) == many);
            if self.paces[usize::from(many)].is_some()
                || alike.all(|key| self.part_count(*key) <= pace::FEW_PARTS)
            {
                continue;
            }
            // Once for the device to wake up, and once to see.
            for _ in 0..2 {
                let mut sequence = self.start()?;
                let rows = self.extend(&mut sequence, &vec![0; rows as usize])?;
                self.step(&rows, Output::None, &[], &[])?;
            }
        }
        Ok(())
    }

    /// Penalties count a sequence's tokens from the first step that has them, and what it began with if that is its first step; what
    /// else was before is counted by [`Runner::reset_token_counts`].
    fn count_from_here(&mut self, sequence: &mut Sequence, sampling: &Sampling) -> Result<()> {
        if sampling.form(self.model.config.vocab).counts && !sequence.counted {
            let first = sequence.len() as usize == sequence.cached().len();
            let prompt = if first { sequence.cached().to_vec() } else { vec![] };
            self.reset_token_counts(sequence, &prompt, &[])?;
        }
        Ok(())
    }

    /// Counts these tokens for penalties, as a sequence's prompt and as written after it, and forgets what was counted: for a sequence
    /// that was cut back or read again, or whose steps had no penalties so far.
    pub fn reset_token_counts(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        written: &[u32],
    ) -> Result<()> {
        let vocab = self.model.config.vocab;
        let bytes = u64::from(vocab) * 4;
        let slot = sequence.slot();
        let counts = self.counts()?.view().slice(u64::from(slot) * bytes..u64::from(slot + 1) * bytes)?;
        let mut recorder = self.model.device.recorder()?;
        if written.is_empty() {
            recorder.fill("token counts", counts, 0)?;
            recorder.seal()?.run(TIMEOUT)?;
            self.count(CountMode::Prompt, slot, prompt)?;
        } else {
            let mut words = vec![0_u32; vocab as usize];
            // Soft tokens of an image may lie past the vocabulary.
            for token in prompt.iter().filter(|token| **token < vocab) {
                words[*token as usize] = sample::IN_PROMPT;
            }
            for token in written.iter().filter(|token| **token < vocab) {
                words[*token as usize] += 1;
            }
            let mut arena =
                Arena::new(&self.model.device, Lifetime::Staging, Memory::Upload).with_block_size(bytes);
            let staging = arena.buffer_from("token counts", &words)?;
            recorder.copy("token counts", &staging, counts)?;
            recorder.seal()?.run(TIMEOUT)?;
        }
        sequence.counted = true;
        Ok(())
    }

    /// Forgets all positions of a sequence from `len` on, where that is possible; see [`crate::pages::PageAllocator::truncate`].
    pub fn truncate(&self, sequence: &mut Sequence, len: u32) -> bool {
        self.cache.truncate(sequence, len)
    }

    /// A step of a chunk alone.
    fn step(
        &mut self,
        rows: &[Row],
        output: Output,
        output_rows: &[u32],
        choices: &[Choice<'_>],
    ) -> Result<()> {
        let count = Count::new(0, rows.len());
        let key = self.key(count, output, choices);
        self.advance(key, count, rows, output_rows, choices)
    }

    /// One step: records its program if there is none yet or a better one is to be had, fills in its state, runs it and takes note of what it took.
    fn advance(
        &mut self,
        key: Key,
        count: Count,
        rows: &[Row],
        output_rows: &[u32],
        choices: &[Choice<'_>],
    ) -> Result<()> {
        self.prepare_keys(&[key])?;
        self.write_state(rows, count, 1, key.output, output_rows, choices)?;
        let extent = extent_of(rows, count, key.output);
        let took = self.submit(key, &extent, 1)?;
        self.learn(key, &extent, 1, took);
        Ok(())
    }

    /// Writes what changes from step to step.
    fn write_state(
        &mut self,
        rows: &[Row],
        count: Count,
        steps: u32,
        output: Output,
        output_rows: &[u32],
        choices: &[Choice<'_>],
    ) -> Result<()> {
        let last = rows[..count.apart].iter().map(|row| row.position + steps - 1).max();
        if let (true, Some(last)) = (self.model.one_dispatch, last) {
            let words = attend_groups(&self.model, self.cache.limits(), count.apart_bucket(), last);
            self.state.groups.write(0, bytemuck::cast_slice(&words))?;
        }
        let words = |of: fn(&Row) -> u32| -> Vec<u32> { rows.iter().map(of).collect() };
        let state = &mut self.state;
        // Decoding goes on from what the sampler wrote, without a word from the host.
        if rows != self.next || count.chunk > 0 {
            state.set_rows(count.apart, chunks(rows, count).map(<[Row]>::len))?;
            state.tokens.write(0, bytemuck::cast_slice(&words(|row| row.token)))?;
            state.positions.write(0, bytemuck::cast_slice(&words(|row| row.position)))?;
            state.slots.write(0, bytemuck::cast_slice(&words(|row| row.slot)))?;
        }
        self.next.clear();
        state.outputs.write(0, bytemuck::bytes_of(&(output_rows.len() as u32)))?;
        state.output_rows.write(0, bytemuck::cast_slice(output_rows))?;
        state.run.write(0, bytemuck::cast_slice(&sample::Run::START))?;
        let params: Vec<sample::Params> = choices.iter().map(Choice::params).collect();
        if matches!(output, Output::Sample { .. }) && params != self.params {
            let words: Vec<u32> = params.iter().flat_map(sample::Params::to_words).collect();
            state.params.write(0, bytemuck::cast_slice(&words))?;
            self.params = params;
        }
        for (row, choice) in choices.iter().enumerate() {
            if let (Some(mask), Some(masks)) = (choice.mask, &mut self.masks) {
                masks.write((row * size_of_val(mask)) as u64, bytemuck::cast_slice(mask))?;
            }
            if choice.sampling.biases.is_empty() {
                continue;
            }
            let words: Vec<u32> =
                choice.sampling.unique_biases().into_iter().flat_map(sample::Bias::to_words).collect();
            state.biases.write((row * MAX_BIASES * 8) as u64, bytemuck::cast_slice(&words))?;
        }
        Ok(())
    }

    /// Which program a step needs.
    fn key(&self, count: Count, output: Output, choices: &[Choice<'_>]) -> Key {
        let vocab = self.model.config.vocab;
        let form = choices.iter().fold(sample::Features::default(), |all, choice| all | choice.form(vocab));
        // Without sampling only the counting of a prompt's tokens is left of it.
        let form = match output {
            Output::Sample { .. } => form,
            _ => sample::Features { counts: form.counts, ..sample::Features::default() },
        };
        Key::new(count, output, form)
    }

    /// What a step of the last run sampled for its rows.
    fn sampled(&mut self, step: usize, rows: &[Row]) -> Result<Vec<Sampled>> {
        let mut words = vec![[0_u32; sample::Sampled::WORDS]; rows.len()];
        let line = size_of_val(&words[..]) as u64;
        self.state.sampled.read(step as u64 * line, bytemuck::cast_slice_mut(&mut words))?;
        self.counters.read_back += line;
        let check = |(output, (words, row)): (usize, ([u32; sample::Sampled::WORDS], &Row))| {
            let sample::Sampled { token, logprob } = sample::Sampled::from_words(words);
            match token {
                sample::NO_TOKEN => Err(Error::NotFinite { position: row.position }),
                token => Ok(Sampled { token, logprob, top: self.top(step * rows.len() + output, output)? }),
            }
        };
        let sampled: Result<Vec<Sampled>> = words.into_iter().zip(rows).enumerate().map(check).collect();
        if sampled.is_err() {
            // Nobody knows since when the numbers are wrong.
            self.cache.clear_prefix_cache();
        }
        sampled
    }

    /// The most probable tokens of an output row, which lie in this entry; none where it did not ask for them.
    fn top(&self, entry: usize, output: usize) -> Result<Vec<(u32, f32)>> {
        let wanted = self.params.get(output).map_or(0, |params| params.top as usize);
        let (Some(tops), 1..) = (&self.tops, wanted) else { return Ok(vec![]) };
        let mut words = vec![[0_u32; sample::Top::WORDS]; wanted];
        let first = entry * sample::MAX_TOP * size_of_val(&words[0]);
        tops.read(first as u64, bytemuck::cast_slice_mut(&mut words))?;
        let told = words.into_iter().map_while(sample::Top::from_words);
        Ok(told.map(|top| (top.token, top.logprob)).collect())
    }

    /// Whether a row's token mask, if it has one, is as long as the vocabulary.
    fn check_mask(&self, mask: Option<&[u32]>) -> Result<()> {
        let words = self.model.config.vocab.div_ceil(32) as usize;
        match mask {
            Some(mask) if mask.len() != words => Err(Error::Limits(format!(
                "a token mask of {} words: this model's vocabulary takes {words}",
                mask.len()
            ))),
            _ => Ok(()),
        }
    }
}

/// Whether tokens can follow `held` positions: known to the model, and with room for them in a context.
pub fn check_tokens(config: &Config, held: u32, tokens: &[u32], context_length: u32) -> Result<()> {
    let vocab = config.vocab;
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if let Some(token) = tokens.iter().find(|token| **token >= vocab) {
        return Err(Error::UnknownToken { token: *token, vocab });
    }
    let wanted = u64::from(held) + tokens.len() as u64;
    if wanted > u64::from(context_length) {
        return Err(Error::ContextLengthExceeded {
            tokens: wanted,
            context_length,
            max_context_length: config.max_positions,
        });
    }
    Ok(())
}

/// The chunks of a step: rows of one sequence that follow each other, behind those that are apart.
fn chunks(rows: &[Row], count: Count) -> impl Iterator<Item = &[Row]> {
    rows[count.apart..].chunk_by(|a, b| a.slot == b.slot)
}

/// The rows of a step, with the positions that the last of those apart and of each chunk sees.
fn extent_of(rows: &[Row], count: Count, output: Output) -> Extent {
    let seeing = |rows: &[Row]| {
        let depth = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        Seeing { rows: rows.len(), depth }
    };
    Extent {
        apart: seeing(&rows[..count.apart]),
        chunks: chunks(rows, count).map(seeing).collect(),
        outputs: output.rows(),
    }
}

/// Rows of logits at a time: 256 MiB of them with Gemma's vocabulary.
pub const MAX_OUTPUT_ROWS: u32 = 256;
