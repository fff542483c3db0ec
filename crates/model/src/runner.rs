//! Carries sequences forward: fills in a step's state, replays the program of its bucket, reads what was sampled.

mod record;

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use gpu::{Arena, Buffer, Lifetime, Memory, Program, Stamps, Timing};
use kernels::sample::{self, CountPrompt, MAX_BIASES};
use weights::config::Config;

use crate::{
    Error, Limits, Model, Result, Sampling,
    kv_cache::{KvCache, Sequence},
    state::{MAX_SAMPLED, State},
    step::{Outputs, Rows, Scratch},
};

use record::{Key, Output, bucket};

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Which one.
    pub token: u32,
    /// The logarithm of the probability that the model gave it.
    pub logprob: f32,
}

/// One sequence's next row.
pub struct Next<'a> {
    /// The sequence, whose last token is not in the cache yet.
    pub sequence: &'a mut Sequence,
    /// That token.
    pub token: u32,
    /// How the one after it is chosen.
    pub sampling: &'a Sampling,
}

/// What a runner did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Submissions.
    pub steps: u64,
    /// Bytes that the host read of what the GPU wrote.
    pub read_back: u64,
    /// Programs recorded.
    pub programs: u64,
}

/// What stood between a runner and its first step, by the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Compiling pipelines, or taking them from the cache.
    pub pipelines: Duration,
    /// Taking memory for a step's buffers, and recording programs.
    pub recording: Duration,
}

impl Setup {
    /// All of it.
    pub fn total(self) -> Duration {
        self.pipelines + self.recording
    }
}

impl std::ops::Sub for Setup {
    type Output = Setup;
    fn sub(self, before: Setup) -> Setup {
        Setup { pipelines: self.pipelines - before.pipelines, recording: self.recording - before.recording }
    }
}

impl std::ops::AddAssign for Setup {
    fn add_assign(&mut self, more: Setup) {
        self.pipelines += more.pipelines;
        self.recording += more.recording;
    }
}

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
    outputs: BTreeMap<usize, Outputs>,
    programs: HashMap<Key, Program>,
    /// How often each token occurred in each slot's sequence; made when the first penalty is asked for.
    counts: Option<Buffer>,
    /// The sampling parameters that the GPU has.
    params: Vec<sample::Params>,
    /// The rows of the next step as the sampler has left them on the GPU.
    next: Vec<Row>,
    usage: Usage,
    setup: Setup,
}

impl Runner {
    /// Takes memory for the KV cache and the state of a step.
    pub fn new(model: Arc<Model>, limits: Limits) -> Result<Self> {
        let cache = KvCache::new(&model.device, &model.config, limits)?;
        let rows = bucket(limits.chunk.max(limits.sequences) as usize);
        let state = State::new(&model.device, rows as u32)?;
        Ok(Self {
            model,
            cache,
            state,
            scratch: BTreeMap::new(),
            outputs: BTreeMap::new(),
            programs: HashMap::new(),
            counts: None,
            params: vec![],
            next: vec![],
            usage: Usage::default(),
            setup: Setup::default(),
        })
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
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// What recording its programs took so far.
    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// A new sequence.
    pub fn start(&self) -> Result<Sequence> {
        self.cache.start()
    }

    /// Whether these tokens can follow in this sequence: known, and with room for them.
    pub fn check(&self, sequence: &Sequence, tokens: &[u32]) -> Result<()> {
        check_tokens(&self.model.config, sequence.len(), tokens, self.cache.limits().context)
    }

    /// Records what reading so many tokens and going on from them needs, so that a clock started now measures the work alone.
    pub fn prepare(&mut self, tokens: usize, sampling: &Sampling) -> Result<()> {
        let chunk = self.cache.limits().chunk as usize;
        let form = sampling.form(self.model.config.vocab);
        let counting = sample::Form { counts: form.counts, ..sample::Form::default() };
        let (full, last) = (tokens.saturating_sub(1) / chunk, (tokens.max(1) - 1) % chunk + 1);
        let mut keys = vec![
            Key::new(last, Rows::Chunk, Output::Sample { rows: 1 }, form),
            Key::new(1, Rows::Mixed, Output::Sample { rows: 1 }, form),
        ];
        if full > 0 {
            keys.push(Key::new(chunk, Rows::Chunk, Output::None, counting));
        }
        self.prepare_keys(&keys)
    }

    /// Penalties count a sequence's tokens from the first step that has them; what was before is counted by
    /// [`Runner::recount`].
    fn count_from_here(&mut self, sequence: &mut Sequence, sampling: &Sampling) -> Result<()> {
        if sampling.form(self.model.config.vocab).counts && !sequence.counted {
            self.recount(sequence, &[])?;
        }
        Ok(())
    }

    /// Counts these tokens as a sequence's prompt, for penalties, and forgets what was counted: for a sequence that was cut
    /// back, or whose steps had no penalties so far.
    pub fn recount(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<()> {
        let vocab = self.model.config.vocab;
        let bytes = u64::from(vocab) * 4;
        let slot = sequence.slot();
        let counts = self.counts()?.view();
        let mut recorder = self.model.device.recorder()?;
        recorder.fill(
            "token counts",
            counts.slice(u64::from(slot) * bytes..u64::from(slot + 1) * bytes)?,
            0,
        )?;
        recorder.seal()?.run(TIMEOUT)?;
        let kernel = CountPrompt::new(&self.model.device, vocab as usize)?;
        let most = (self.state.tokens.len() / 4) as usize;
        for tokens in tokens.chunks(most) {
            self.next.clear();
            let state = &mut self.state;
            state.active.write(0, bytemuck::bytes_of(&(tokens.len() as u32)))?;
            state.tokens.write(0, bytemuck::cast_slice(tokens))?;
            state.slots.write(0, bytemuck::cast_slice(&vec![slot; tokens.len()]))?;
            let [active, ids, slots] = [&state.active, &state.tokens, &state.slots].map(Buffer::view);
            let mut recorder = self.model.device.recorder()?;
            kernel.record(&mut recorder, "count tokens", tokens.len(), [&active, &ids, &slots, &counts])?;
            recorder.seal()?.run(TIMEOUT)?;
        }
        sequence.counted = true;
        Ok(())
    }

    /// Reads tokens into a sequence, chunk by chunk, and chooses the one after them. `progress` is told how many were read
    /// after each chunk, and stops the reading with `false`.
    pub fn prompt(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        sampling: &Sampling,
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<Sampled> {
        self.check(sequence, tokens)?;
        sampling.check(self.model.config.vocab)?;
        self.count_from_here(sequence, sampling)?;
        let mut done = 0;
        for chunk in tokens.chunks(self.cache.limits().chunk as usize) {
            let rows = self.extend(sequence, chunk)?;
            done += chunk.len();
            if done < tokens.len() {
                self.step(&rows, Rows::Chunk, Output::None, &[], &[sampling])?;
            } else {
                let output = Output::Sample { rows: 1 };
                self.step(&rows, Rows::Chunk, output, &[rows.len() as u32 - 1], &[sampling])?;
            }
            sequence.advance(rows.len() as u32);
            if !progress(done) {
                return Err(Error::Cancelled);
            }
        }
        let last =
            Row { token: tokens[tokens.len() - 1], position: sequence.len() - 1, slot: sequence.slot() };
        Ok(self.sampled(&[last])?[0])
    }

    /// One more token for each of some sequences.
    pub fn decode(&mut self, next: &mut [Next<'_>]) -> Result<Vec<Sampled>> {
        let rows = self.decode_rows(next)?;
        let samplings: Vec<&Sampling> = next.iter().map(|next| next.sampling).collect();
        let output = Output::Sample { rows: bucket(rows.len()) };
        let list: Vec<u32> = (0..rows.len() as u32).collect();
        self.step(&rows, Rows::Mixed, output, &list, &samplings)?;
        for next in next.iter_mut() {
            next.sequence.advance(1);
        }
        let sampled = self.sampled(&rows)?;
        let advanced = |(row, sampled): (Row, &Sampled)| Row {
            token: sampled.token,
            position: row.position + 1,
            slot: row.slot,
        };
        self.next = rows.into_iter().zip(&sampled).map(advanced).collect();
        Ok(sampled)
    }

    /// The same, with a program that is recorded for it and timed.
    pub(crate) fn decode_timed(&mut self, next: &mut [Next<'_>], stamps: Stamps) -> Result<Vec<Timing>> {
        let rows = self.decode_rows(next)?;
        let samplings: Vec<&Sampling> = next.iter().map(|next| next.sampling).collect();
        let output = Output::Sample { rows: bucket(rows.len()) };
        let list: Vec<u32> = (0..rows.len() as u32).collect();
        let key = self.write_state(&rows, Rows::Mixed, output, &list, &samplings)?;
        let recorder = self.model.device.timed_recorder(stamps)?;
        let program = self.record(key, recorder)?.seal()?;
        program.run(TIMEOUT)?;
        for next in next.iter_mut() {
            next.sequence.advance(1);
        }
        Ok(program.timings()?)
    }

    /// The rows of a step of decoding, with room for them made.
    fn decode_rows(&mut self, next: &mut [Next<'_>]) -> Result<Vec<Row>> {
        let vocab = self.model.config.vocab;
        if next.is_empty() || next.len() > self.cache.limits().sequences.min(MAX_SAMPLED) as usize {
            let most = self.cache.limits().sequences.min(MAX_SAMPLED);
            return Err(Error::Limits(format!("{} sequences in a step; it takes 1 to {most}", next.len())));
        }
        let mut rows = Vec::with_capacity(next.len());
        for next in next.iter_mut() {
            next.sampling.check(vocab)?;
            self.check(next.sequence, &[next.token])?;
            self.count_from_here(next.sequence, next.sampling)?;
            rows.extend(self.extend(next.sequence, &[next.token])?);
        }
        Ok(rows)
    }

    /// Makes room for more positions of a sequence.
    pub(crate) fn reserve(&mut self, sequence: &mut Sequence, rows: u32) -> Result<()> {
        self.cache.extend(sequence, rows)
    }

    /// Reads tokens into a sequence and gives `each` the logits of every one of them, in order.
    pub fn logits(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        mut each: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.check(sequence, tokens)?;
        let vocab = self.model.config.vocab as usize;
        let mut arena = Arena::new(&self.model.device, Lifetime::Staging, Memory::Readback);
        let mut on_host: BTreeMap<usize, (Buffer, Program)> = BTreeMap::new();
        for chunk in tokens.chunks(self.most_outputs()) {
            let rows = self.extend(sequence, chunk)?;
            let count = bucket(rows.len());
            let list: Vec<u32> = (0..rows.len() as u32).collect();
            self.step(&rows, Rows::Chunk, Output::Logits { rows: count }, &list, &[])?;
            sequence.advance(rows.len() as u32);
            let (buffer, copy) = match on_host.entry(count) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let logits = &self.outputs[&count].logits;
                    let buffer = arena.buffer("logits", logits.len())?;
                    let mut recorder = self.model.device.recorder()?;
                    recorder.copy("logits", logits, &buffer)?;
                    entry.insert((buffer, recorder.seal()?))
                }
            };
            copy.run(TIMEOUT)?;
            let mut line = vec![0.0_f32; vocab];
            for row in 0..rows.len() {
                buffer.read((row * vocab * 4) as u64, bytemuck::cast_slice_mut(&mut line))?;
                self.usage.read_back += vocab as u64 * 4;
                each(&line)?;
            }
        }
        Ok(())
    }

    /// Reads tokens into a sequence; for each of them the negative log probability of its target, 0 where it has none.
    pub fn score(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        targets: &[Option<u32>],
    ) -> Result<Vec<f32>> {
        self.check(sequence, tokens)?;
        let vocab = self.model.config.vocab;
        let mut scores = Vec::with_capacity(tokens.len());
        let size = self.most_outputs();
        for (chunk, targets) in tokens.chunks(size).zip(targets.chunks(size)) {
            let rows = self.extend(sequence, chunk)?;
            let wanted: Vec<(u32, u32)> =
                (0..).zip(targets).filter_map(|(row, target)| Some((row, (*target)?))).collect();
            if let Some((_, token)) = wanted.iter().find(|(_, token)| *token >= vocab) {
                return Err(Error::UnknownToken { token: *token, vocab });
            }
            let (list, tokens): (Vec<u32>, Vec<u32>) = wanted.into_iter().unzip();
            let output = match list.len() {
                0 => Output::None,
                count => Output::Score { rows: bucket(count) },
            };
            self.state.targets.write(0, bytemuck::cast_slice(&tokens))?;
            self.step(&rows, Rows::Chunk, output, &list, &[])?;
            let mut nll = vec![0.0_f32; list.len()];
            self.state.nll.read(0, bytemuck::cast_slice_mut(&mut nll))?;
            self.usage.read_back += nll.len() as u64 * 4;
            let first = scores.len();
            scores.resize(first + rows.len(), 0.0);
            for (row, value) in list.iter().zip(nll) {
                if !value.is_finite() {
                    return Err(Error::NotFinite { position: sequence.len() + row });
                }
                scores[first + *row as usize] = value;
            }
            sequence.advance(rows.len() as u32);
        }
        Ok(scores)
    }

    /// Forgets all positions of a sequence from `len` on, where that is possible; see [`KvCache::truncate`].
    pub fn truncate(&self, sequence: &mut Sequence, len: u32) -> bool {
        self.cache.truncate(sequence, len)
    }

    /// Logits of all rows of a chunk are large: fewer rows at a time.
    fn most_outputs(&self) -> usize {
        self.cache.limits().chunk.min(MOST_OUTPUTS) as usize
    }

    fn extend(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<Vec<Row>> {
        self.cache.extend(sequence, tokens.len() as u32)?;
        let row = |(position, token): (u32, &u32)| Row { token: *token, position, slot: sequence.slot() };
        Ok((sequence.len()..).zip(tokens).map(row).collect())
    }

    fn step(
        &mut self,
        rows: &[Row],
        kind: Rows,
        output: Output,
        output_rows: &[u32],
        samplings: &[&Sampling],
    ) -> Result<()> {
        let key = self.write_state(rows, kind, output, output_rows, samplings)?;
        self.prepare_keys(&[key])?;
        self.usage.steps += 1;
        self.programs[&key].run(TIMEOUT)?;
        Ok(())
    }

    /// Writes what changes from step to step; says which program the step needs.
    fn write_state(
        &mut self,
        rows: &[Row],
        kind: Rows,
        output: Output,
        output_rows: &[u32],
        samplings: &[&Sampling],
    ) -> Result<Key> {
        let words = |of: fn(&Row) -> u32| -> Vec<u32> { rows.iter().map(of).collect() };
        let state = &mut self.state;
        // Decoding goes on from what the sampler wrote, without a word from the host.
        if rows != self.next {
            state.active.write(0, bytemuck::bytes_of(&(rows.len() as u32)))?;
            state.tokens.write(0, bytemuck::cast_slice(&words(|row| row.token)))?;
            state.positions.write(0, bytemuck::cast_slice(&words(|row| row.position)))?;
            state.slots.write(0, bytemuck::cast_slice(&words(|row| row.slot)))?;
        }
        self.next.clear();
        state.outputs.write(0, bytemuck::bytes_of(&(output_rows.len() as u32)))?;
        state.output_rows.write(0, bytemuck::cast_slice(output_rows))?;
        let params: Vec<sample::Params> = samplings.iter().map(|sampling| sampling.params()).collect();
        if matches!(output, Output::Sample { .. }) && params != self.params {
            let words: Vec<u32> = params.iter().flat_map(sample::Params::to_words).collect();
            state.params.write(0, bytemuck::cast_slice(&words))?;
            self.params = params;
        }
        for (row, sampling) in
            samplings.iter().enumerate().filter(|(_, sampling)| !sampling.biases.is_empty())
        {
            let words: Vec<u32> =
                sampling.unique_biases().into_iter().flat_map(sample::Bias::to_words).collect();
            state.biases.write((row * MAX_BIASES * 8) as u64, bytemuck::cast_slice(&words))?;
        }
        let vocab = self.model.config.vocab;
        let form = samplings.iter().map(|sampling| sampling.form(vocab)).fold(
            sample::Form::default(),
            |all, one| sample::Form {
                filters: all.filters || one.filters,
                counts: all.counts || one.counts,
                biases: all.biases || one.biases,
                mask: all.mask || one.mask,
            },
        );
        // Without sampling only the counting of a prompt's tokens is left of it.
        let form = match output {
            Output::Sample { .. } => form,
            _ => sample::Form { counts: form.counts, ..sample::Form::default() },
        };
        Ok(Key::new(rows.len(), kind, output, form))
    }

    /// What the last step sampled for these of its rows.
    fn sampled(&mut self, rows: &[Row]) -> Result<Vec<Sampled>> {
        let mut words = vec![[0_u32; sample::Sampled::WORDS]; rows.len()];
        self.state.sampled.read(0, bytemuck::cast_slice_mut(&mut words))?;
        self.usage.read_back += size_of_val(&words[..]) as u64;
        let check = |(words, row): ([u32; sample::Sampled::WORDS], &Row)| {
            let sample::Sampled { token, logprob } = sample::Sampled::from_words(words);
            match token {
                sample::NO_TOKEN => Err(Error::NotFinite { position: row.position }),
                token => Ok(Sampled { token, logprob }),
            }
        };
        words.into_iter().zip(rows).map(check).collect()
    }
}

/// Whether tokens can follow `held` positions: known to the model, and with room for them in a context.
pub fn check_tokens(config: &Config, held: u32, tokens: &[u32], context: u32) -> Result<()> {
    let vocab = config.vocab;
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if let Some(token) = tokens.iter().find(|token| **token >= vocab) {
        return Err(Error::UnknownToken { token: *token, vocab });
    }
    let wanted = u64::from(held) + tokens.len() as u64;
    if wanted > u64::from(context) {
        return Err(Error::ContextFull { wanted, context, most: config.max_positions });
    }
    Ok(())
}

/// Rows of logits at a time: 256 MiB of them with Gemma's vocabulary.
pub const MOST_OUTPUTS: u32 = 256;
