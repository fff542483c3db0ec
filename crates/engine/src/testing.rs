//! A mock backend without a GPU, for tests of scheduling and of servers.
//!
//! The tokens of a completion depend only on its prompt and seed, so a test can compare them with
//! [`MockOptions::reference`]. Every call is checked against the contract of [`Backend`]; a violation panics.
//!
//! Pages are managed by the allocator of the real KV cache, `model::pages`, over a memory that holds one
//! number per position in place of keys and values. The number is a hash of all tokens up to that position.
//! Before a token is sampled, every position that the sequence can see must hold the number that its own
//! tokens wrote.

mod device;
mod every_nth;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use model::{Image, image_blocks, is_image_token, pages::PageKind};

use crate::{
    Backend, BackendError, Capacity, DecodeRow, DraftInput, EventSender, EventStream, FinishReason,
    MixedOutput, PrefillChunk, Request, Sampled, Sampling, VerifyRows,
};

use device::{Device, FNV_OFFSET, SharedDevice, fnv, locked};

pub use device::MockSequence;
pub use every_nth::EveryNth;

/// A stream and the sender that feeds it, for tests of code that consumes streams. The sender is closed when
/// the stream is dropped.
pub fn event_stream() -> (EventSender, EventStream) {
    EventStream::new(Arc::default())
}

/// Configuration of a [`MockBackend`].
#[derive(Clone, Debug)]
pub struct MockOptions {
    /// Sequences, context length, vocabulary and pages. Whether there is a draft model follows from `draft_model`.
    pub capacity: Capacity,
    /// Sliding window in tokens.
    pub window: u32,
    /// Maximum prefill tokens per step.
    pub prefill_chunk: usize,
    /// Prefill tokens that a time budget allows; an image may exceed it.
    pub prefill_budget: usize,
    /// Simulated prefill speed in tokens per second; `None` ignores the time budget.
    pub prefill_tokens_per_second: Option<f64>,
    /// Calls of `encode` until an image is ready.
    pub encode_calls: u32,
    /// Maximum steps per decode run.
    pub max_steps: usize,
    /// Maximum rows of a decode run.
    pub decode_batch: usize,
    /// Fixed completion of every prompt, for tests of token processing; its last token should be a stop
    /// token. Without a script, tokens are pseudo-random and depend on the prompt and the seed.
    pub script: Vec<u32>,
    /// Duration of a step.
    pub step_delay: Duration,
    /// What [`Backend::step_time`] reports, by rows less one.
    pub step_times: Vec<Duration>,
    /// How the draft model drafts, if there is one.
    pub draft_model: Option<MockDraftModel>,
    /// Steps with more sequences fail with [`BackendError::OutOfMemory`].
    pub max_sequences_per_step: usize,
    /// Injected errors by call number, starting at 0. Counted are calls of `start`, `encode`, `mixed`, `score`, `decode`,
    /// `verify`, `draft`, `reset_token_counts`, `probe` and `recover`.
    pub errors: BTreeMap<u64, BackendError>,
}

impl Default for MockOptions {
    fn default() -> Self {
        Self {
            capacity: Capacity {
                max_sequences: 4,
                context_length: 256,
                vocab_size: 1000,
                page_size: 8,
                pages: 4 * 256 / 8,
                max_chunks_per_step: 3,
                max_verify_rows: 1,
                max_verify_sequences: u32::MAX,
                has_draft_model: false,
                max_images_per_step: 3,
                prefix_cache: true,
            },
            window: 24,
            prefill_chunk: 16,
            prefill_budget: usize::MAX,
            prefill_tokens_per_second: None,
            encode_calls: 2,
            max_steps: 4,
            decode_batch: usize::MAX,
            script: vec![],
            step_delay: Duration::ZERO,
            step_times: vec![],
            draft_model: None,
            max_sequences_per_step: usize::MAX,
            errors: BTreeMap::new(),
        }
    }
}

/// How the draft model of a [`MockBackend`] drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MockDraftModel {
    /// Of four drafts, how many are right.
    pub right_of_four: u32,
    /// Tokens prefilled per call; it drafts where none are left.
    pub prefill_tokens: usize,
    /// What [`Backend::draft_step_time`] reports.
    pub step_time: Duration,
    /// Whether the device is lost whenever it runs.
    pub loses_device: bool,
}

/// A request's sequence in the draft model of a [`MockBackend`].
#[derive(Debug, Default)]
pub struct MockDraftSequence {
    prefilled: usize,
    /// Recoveries of the device before its first use.
    generation: Option<u64>,
}

/// The batch of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of decode rows, or of sequences whose drafts are verified.
    pub decode_rows: usize,
    /// Prefill chunks: the length of the sequence before the chunk, and the chunk's tokens.
    pub chunks: Vec<(usize, Vec<u32>)>,
}

/// A call of [`Backend::start`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Tokens that the sequence was started for.
    pub tokens: Vec<u32>,
    /// How many of them came from the prefix cache.
    pub cached: usize,
}

/// Inspects a backend that an engine owns.
#[derive(Clone, Debug)]
pub struct Inspector(SharedDevice);

impl Inspector {
    /// Pages that no sequence holds.
    pub fn free_pages(&self) -> u32 {
        locked(&self.0).free_pages()
    }

    /// Number of live sequences.
    pub fn sequences(&self) -> u32 {
        locked(&self.0).sequences
    }

    /// All sequences started so far.
    pub fn starts(&self) -> Vec<Start> {
        locked(&self.0).starts.clone()
    }

    /// Number of calls of [`Backend::reset_token_counts`].
    pub fn count_resets(&self) -> u64 {
        locked(&self.0).count_resets
    }

    /// Number of calls of [`Backend::draft`].
    pub fn draft_calls(&self) -> u64 {
        locked(&self.0).draft_calls
    }

    /// All successful steps so far. A decode run is one entry.
    pub fn steps(&self) -> Vec<Step> {
        locked(&self.0).steps.clone()
    }
}

impl MockOptions {
    /// The token that follows these, without a mask.
    fn next_token(&self, tokens: &[u32], seed: u64) -> u32 {
        // The longest prefix of the script that the tokens end with gives the position in it, so a sequence
        // that is recomputed continues where it was.
        let position = (0..self.script.len()).rev().find(|len| tokens.ends_with(&self.script[..*len]));
        if let Some(position) = position {
            return self.script[position];
        }
        let start = fnv(FNV_OFFSET, seed);
        let hash = tokens.iter().fold(start, |hash, token| fnv(hash, u64::from(*token)));
        ((hash >> 20) % u64::from(self.capacity.vocab_size)) as u32
    }

    /// The first allowed token from [`next_token`](Self::next_token) upwards, wrapping around.
    fn next_allowed(&self, tokens: &[u32], seed: u64, mask: Option<&[u32]>) -> u32 {
        let (first, vocab_size) = (self.next_token(tokens, seed), self.capacity.vocab_size);
        let allowed =
            |token: &u32| mask.is_none_or(|mask| mask[*token as usize / 32] >> (token % 32) & 1 == 1);
        (first..vocab_size).chain(0..first).find(allowed).expect("the mask allows a token")
    }

    /// A token as the model reports it: its log probability is its id in negative thousandths.
    fn sampled(&self, token: u32, top: u32) -> Sampled {
        let logprob = |token: u32| -(token as f32) / 1000.0;
        let top = (0..top.min(self.capacity.vocab_size)).map(|token| (token, logprob(token))).collect();
        Sampled { token, logprob: logprob(token), top }
    }

    /// The completion of a request that runs alone: its tokens and finish reason. Panics if its grammar
    /// fails.
    pub fn reference(&self, request: &Request) -> (Vec<u32>, FinishReason) {
        let mut tokens = request.prompt.clone();
        let mut generated = vec![];
        let mut grammar = request.grammar.clone();
        let mut mask = vec![0; self.capacity.vocab_size.div_ceil(32) as usize];
        if request.max_tokens == 0 {
            return (generated, FinishReason::MaxTokens);
        }
        loop {
            if let Some(grammar) = &mut grammar {
                grammar.mask(&mut mask).expect("the grammar computes a mask");
            }
            let mask = grammar.is_some().then_some(&mask[..]);
            let token = self.next_allowed(&tokens, request.sampling.seed, mask);
            if request.stop_token_ids.contains(&token) {
                return (generated, FinishReason::Stop);
            }
            generated.push(token);
            if let Some(grammar) = &mut grammar {
                grammar.accept(token).expect("the grammar accepts a token that its mask allows");
                if grammar.is_finished() {
                    return (generated, FinishReason::Stop);
                }
            }
            if generated.len() == request.max_tokens as usize {
                return (generated, FinishReason::MaxTokens);
            }
            if tokens.len() == self.capacity.context_length as usize {
                return (generated, FinishReason::ContextLength);
            }
            tokens.push(token);
        }
    }
}

/// A [`Backend`] without a GPU that checks every call.
#[derive(Debug)]
pub struct MockBackend {
    options: MockOptions,
    calls: u64,
    device: SharedDevice,
}

impl MockBackend {
    /// Panics if the pages do not suffice for one sequence of the context length.
    pub fn new(mut options: MockOptions) -> Self {
        options.capacity.has_draft_model = options.draft_model.is_some();
        let device = Arc::new(Mutex::new(Device::new(&options)));
        Self { options, calls: 0, device }
    }

    /// The options it was created with.
    pub fn options(&self) -> &MockOptions {
        &self.options
    }

    /// An inspector that stays valid when an engine takes the backend.
    pub fn inspector(&self) -> Inspector {
        Inspector(self.device.clone())
    }

    /// Counts a call and returns the error injected for it.
    fn call(&mut self) -> Result<(), BackendError> {
        let error = self.options.errors.get(&self.calls);
        self.calls += 1;
        if let Some(BackendError::DeviceLost(_)) = error {
            locked(&self.device).lost = true;
        }
        error.map_or(Ok(()), |error| Err(error.clone()))
    }

    fn step(&mut self, sequences: usize) -> Result<(), BackendError> {
        assert!(!locked(&self.device).lost, "step on a lost device");
        self.call()?;
        if sequences > self.options.max_sequences_per_step {
            return Err(BackendError::OutOfMemory(format!("no memory for a step of {sequences} sequences")));
        }
        thread::sleep(self.options.step_delay);
        Ok(())
    }

    fn sample(&self, sequence: &MockSequence, sampling: &Sampling, mask: Option<&[u32]>) -> Sampled {
        sequence.check();
        let vocab_size = self.options.capacity.vocab_size;
        assert!(
            mask.is_none_or(|mask| mask.len() == vocab_size.div_ceil(32) as usize),
            "mask of the wrong length"
        );
        let token = self.options.next_allowed(&sequence.tokens, sampling.seed, mask);
        self.options.sampled(token, sampling.top)
    }

    /// Allocates pages for this many steps of all rows. On an error nothing changes.
    fn extend_all(&self, rows: &mut [DecodeRow<'_, MockSequence>], steps: usize) -> Result<(), BackendError> {
        for row in rows.iter() {
            self.check_token(row.sequence, row.token, row.sampling, row.mask.is_some());
        }
        let extended = rows.iter_mut().try_for_each(|row| row.sequence.extend(steps));
        if extended.is_err() {
            rows.iter_mut().for_each(|row| row.sequence.truncate_pages());
        }
        extended
    }

    /// Checks that a token is the one that was sampled last for its sequence.
    fn check_token(&self, sequence: &MockSequence, token: u32, sampling: &Sampling, masked: bool) {
        // The mask that a constrained token was sampled with is not known here.
        let expected = self.options.next_token(&sequence.tokens, sampling.seed);
        assert!(masked || token == expected, "the row's token does not follow its sequence");
    }

    /// Writes the rows of one sequence and samples a token after each, then keeps those that are accepted.
    fn verify_rows(&self, rows: &mut VerifyRows<'_, MockSequence>) -> Vec<Sampled> {
        let inputs: Vec<u32> = rows.tokens().collect();
        rows.sequence.write(&inputs);
        let mut text = rows.sequence.tokens.clone();
        let mut sampled = vec![];
        for (index, token) in inputs.iter().enumerate() {
            text.push(*token);
            let mask = rows.masks.get(index).copied();
            sampled.push(self.options.next_allowed(&text, rows.sampling.seed, mask));
        }
        let accepted = rows.accepted(sampled.iter().copied());
        rows.sequence.append(&inputs[..=accepted]);
        rows.sequence.truncate_pages();
        rows.sequence.check();
        sampled[..=accepted].iter().map(|token| self.options.sampled(*token, rows.sampling.top)).collect()
    }

    /// Appends the row's token to its sequence and samples the next one.
    fn decode_row(&self, row: &mut DecodeRow<'_, MockSequence>) -> Sampled {
        row.sequence.append(&[row.token]);
        let sampled = self.sample(row.sequence, row.sampling, row.mask);
        row.token = sampled.token;
        sampled
    }

    fn record_step(&self, decode_rows: usize, chunks: &[PrefillChunk<'_, MockSequence>]) {
        let chunks =
            chunks.iter().map(|chunk| (chunk.sequence.tokens.len(), chunk.tokens.to_vec())).collect();
        locked(&self.device).steps.push(Step { decode_rows, chunks });
    }
}

impl MockBackend {
    /// Checks that chunks contain only whole images, which have been encoded.
    fn check_images(&self, chunks: &[PrefillChunk<'_, MockSequence>]) {
        let encoded = &locked(&self.device).encoded;
        let mut images = 0;
        for PrefillChunk { sequence, tokens, .. } in chunks {
            let continues = sequence.tokens.last().is_some_and(|token| is_image_token(*token));
            assert!(!(continues && is_image_token(tokens[0])), "a chunk begins inside an image");
            for block in image_blocks(tokens) {
                let calls = encoded.get(&tokens[block]).expect("an image is cut in two, or not encoded");
                assert_eq!(*calls, self.options.encode_calls, "an image is not ready");
                images += 1;
            }
        }
        assert!(images <= self.options.capacity.max_images_per_step, "{images} images");
    }
}

impl Backend for MockBackend {
    type Sequence = MockSequence;
    type DraftSequence = MockDraftSequence;

    fn capacity(&self) -> Capacity {
        self.options.capacity
    }

    fn draft(
        &mut self,
        batch: &mut [DraftInput<'_, MockDraftSequence>],
    ) -> Result<Vec<Vec<u32>>, BackendError> {
        locked(&self.device).draft_calls += 1;
        self.step(batch.len())?;
        let model = self.options.draft_model.expect("drafts only with a draft model");
        if model.loses_device {
            locked(&self.device).lost = true;
            return Err(BackendError::DeviceLost("lost by the draft model".to_owned()));
        }
        let generation = locked(&self.device).generation;
        let draft = |DraftInput { sequence, tokens, sampling, max_drafts }: &mut DraftInput<
            '_,
            MockDraftSequence,
        >| {
            let known = *sequence.generation.get_or_insert(generation);
            assert_eq!(known, generation, "draft sequence from before the device was recovered");
            assert!(*max_drafts > 0 && !sampling.has_penalties());
            sequence.prefilled = tokens.len().min(sequence.prefilled + model.prefill_tokens);
            let mut text = tokens.to_vec();
            let mut drafts = vec![];
            while drafts.len() < *max_drafts && sequence.prefilled >= text.len() - drafts.len() {
                let hash = text.iter().fold(FNV_OFFSET, |hash, token| fnv(hash, u64::from(*token)));
                let token = self.options.next_token(&text, sampling.seed);
                let is_right = (hash >> 30) % 4 < u64::from(model.right_of_four);
                let vocab_size = self.options.capacity.vocab_size;
                drafts.push(if is_right { token } else { (token + 1) % vocab_size });
                text.extend(drafts.last());
            }
            drafts
        };
        Ok(batch.iter_mut().map(draft).collect())
    }

    fn draft_prefill_time(&self, _sequence: &MockDraftSequence, _tokens: usize) -> Duration {
        Duration::ZERO
    }

    fn draft_step_time(&self, _sequences: usize) -> Option<Duration> {
        self.options.draft_model.map(|model| model.step_time)
    }

    fn free_pages(&self) -> u32 {
        locked(&self.device).free_pages()
    }

    fn cached_pages(&self) -> u32 {
        locked(&self.device).pages.cached_pages(PageKind::Full) as u32
    }

    fn shared_pages(&self, tokens: &[u32]) -> u32 {
        locked(&self.device).pages.shared_pages(tokens)
    }

    fn start_empty(&mut self) -> Result<MockSequence, BackendError> {
        self.call()?;
        let mut device = locked(&self.device);
        assert!(!device.lost, "sequence started on a lost device");
        device.sequences += 1;
        let held = device.pages.start().expect("no more than max_sequences sequences");
        let generation = device.generation;
        Ok(MockSequence { tokens: vec![], held, generation, device: self.device.clone() })
    }

    fn start(&mut self, tokens: &[u32]) -> Result<(MockSequence, usize), BackendError> {
        self.call()?;
        let mut device = locked(&self.device);
        assert!(!device.lost, "sequence started on a lost device");
        device.sequences += 1;
        let held = device.start_with(tokens);
        let cached = held.len() as usize;
        assert!(cached < tokens.len(), "the last token must be left to prefill");
        device.starts.push(Start { tokens: tokens.to_vec(), cached });
        let (tokens, generation) = (tokens[..cached].to_vec(), device.generation);
        let sequence = MockSequence { tokens, held, generation, device: self.device.clone() };
        drop(device);
        sequence.check();
        Ok((sequence, cached))
    }

    fn max_prefill_tokens(&self, _decode_rows: usize, _depth: u32, budget: Duration) -> usize {
        let MockOptions { prefill_chunk, prefill_budget, prefill_tokens_per_second, .. } = self.options;
        let in_time =
            prefill_tokens_per_second.map_or(usize::MAX, |rate| (budget.as_secs_f64() * rate) as usize);
        prefill_chunk.min(prefill_budget).min(in_time)
    }

    fn decode_batch_size(&self, decoding: usize) -> usize {
        decoding.min(self.options.decode_batch)
    }

    fn decode_run_steps(&self, _rows: usize) -> usize {
        self.options.max_steps
    }

    fn step_bytes(&self, depths: &[u32]) -> Option<u64> {
        // 1000 bytes of weights, and 10 bytes of keys and values per position.
        Some(1000 + depths.iter().map(|depth| u64::from(*depth) * 10).sum::<u64>())
    }

    fn encode(&mut self, images: &[Image], _budget: Duration) -> Result<bool, BackendError> {
        let max = self.options.capacity.max_images_per_step as usize;
        assert!(images.len() <= max, "{} images", images.len());
        self.call()?;
        let encoded = &mut locked(&self.device).encoded;
        for image in images {
            let calls = encoded.entry(image.tokens().collect()).or_default();
            if *calls < self.options.encode_calls {
                *calls += 1;
                return Ok(*calls == self.options.encode_calls && images.len() == 1);
            }
        }
        Ok(true)
    }

    fn mixed(
        &mut self,
        decoding: &mut [DecodeRow<'_, MockSequence>],
        chunks: &mut [PrefillChunk<'_, MockSequence>],
    ) -> Result<MixedOutput, BackendError> {
        let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        let max_chunks = self.options.capacity.max_chunks_per_step as usize;
        assert!((1..=max_chunks).contains(&chunks.len()), "{} chunks", chunks.len());
        assert!(tokens <= self.options.prefill_chunk, "{tokens} prefill tokens");
        assert!(chunks.iter().all(|chunk| !chunk.tokens.is_empty()), "empty chunk");
        self.check_images(chunks);
        self.step(decoding.len() + chunks.len())?;
        self.extend_all(decoding, 1)?;
        if let Err(error) = chunks.iter_mut().try_for_each(|chunk| chunk.sequence.extend(chunk.tokens.len()))
        {
            decoding.iter_mut().for_each(|row| row.sequence.truncate_pages());
            chunks.iter_mut().for_each(|chunk| chunk.sequence.truncate_pages());
            return Err(error);
        }
        self.record_step(decoding.len(), chunks);
        let decoded = decoding.iter_mut().map(|row| self.decode_row(row)).collect();
        let mut first_tokens = vec![];
        for PrefillChunk { sequence, tokens, sampling, mask, last } in chunks {
            sequence.append(tokens);
            first_tokens.push(last.then(|| self.sample(sequence, sampling, *mask)));
        }
        Ok(MixedOutput { decoded, first_tokens })
    }

    fn max_scored_tokens(&self) -> usize {
        self.options.prefill_chunk.min(5)
    }

    fn score(
        &mut self,
        sequence: &mut MockSequence,
        tokens: &[u32],
        following: &[u32],
        top: u32,
    ) -> Result<Vec<Sampled>, BackendError> {
        assert!((1..=self.max_scored_tokens()).contains(&tokens.len()), "{} tokens to score", tokens.len());
        assert_eq!(tokens.len(), following.len(), "every token is followed by one");
        self.step(1)?;
        if let Err(error) = sequence.extend(tokens.len()) {
            sequence.truncate_pages();
            return Err(error);
        }
        locked(&self.device)
            .steps
            .push(Step { decode_rows: 0, chunks: vec![(sequence.tokens.len(), tokens.to_vec())] });
        sequence.append(tokens);
        sequence.check();
        Ok(following.iter().map(|token| self.options.sampled(*token, top)).collect())
    }

    fn decode(
        &mut self,
        batch: &mut [DecodeRow<'_, MockSequence>],
        max_steps: usize,
    ) -> Result<Vec<Vec<Sampled>>, BackendError> {
        assert!(!batch.is_empty() && max_steps > 0, "{} rows, {max_steps} steps", batch.len());
        assert!(
            max_steps == 1 || batch.iter().all(|row| row.mask.is_none()),
            "run of {max_steps} steps with a mask"
        );
        self.step(batch.len())?;
        self.extend_all(batch, max_steps)?;
        self.record_step(batch.len(), &[]);
        let mut steps: Vec<Vec<Sampled>> = vec![];
        while steps.len() < max_steps {
            let step: Vec<Sampled> = batch.iter_mut().map(|row| self.decode_row(row)).collect();
            let stopped =
                step.iter().zip(&*batch).any(|(sampled, row)| row.stop_token_ids.contains(&sampled.token));
            steps.push(step);
            if stopped {
                break;
            }
        }
        batch.iter_mut().for_each(|row| row.sequence.truncate_pages());
        Ok(steps)
    }

    fn verify(
        &mut self,
        batch: &mut [VerifyRows<'_, MockSequence>],
    ) -> Result<Vec<Vec<Sampled>>, BackendError> {
        let rows: usize = batch.iter().map(|rows| 1 + rows.drafts.len()).sum();
        let Capacity { max_verify_rows, max_verify_sequences, vocab_size, .. } = self.options.capacity;
        assert!(batch.len() <= max_verify_sequences as usize, "{} sequences", batch.len());
        assert!(
            rows > batch.len() && rows <= max_verify_rows as usize,
            "{rows} rows of {} sequences",
            batch.len()
        );
        for rows in batch.iter() {
            self.check_token(rows.sequence, rows.token, rows.sampling, !rows.masks.is_empty());
            assert!(rows.drafts.is_empty() || !rows.sampling.has_penalties(), "drafts with penalties");
            assert!(rows.drafts.iter().all(|token| *token < vocab_size), "a draft is not in the vocabulary");
            assert!(rows.masks.len() <= 1 + rows.drafts.len(), "more masks than rows");
        }
        self.step(batch.len())?;
        if let Err(error) = batch.iter_mut().try_for_each(|rows| rows.sequence.extend(1 + rows.drafts.len()))
        {
            batch.iter_mut().for_each(|rows| rows.sequence.truncate_pages());
            return Err(error);
        }
        self.record_step(batch.len(), &[]);
        Ok(batch.iter_mut().map(|rows| self.verify_rows(rows)).collect())
    }

    fn step_time(&self, rows: usize) -> Option<Duration> {
        self.options.step_times.get(rows - 1).copied()
    }

    fn reset_token_counts(
        &mut self,
        sequence: &mut MockSequence,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<(), BackendError> {
        let held = generated.split_last().map_or(&[][..], |(_, held)| held);
        self.call()?;
        assert_eq!(sequence.tokens, [prompt, held].concat(), "counts of another sequence");
        locked(&self.device).count_resets += 1;
        Ok(())
    }

    fn probe(&mut self) -> Result<(), BackendError> {
        assert!(!locked(&self.device).lost, "probe of a lost device");
        self.call()
    }

    fn recover(&mut self) -> Result<(), BackendError> {
        assert!(locked(&self.device).lost, "recovery of a device that is not lost");
        self.call()?;
        let mut device = locked(&self.device);
        assert_eq!(
            (device.free_pages(), device.sequences),
            (device.capacity.pages, 0),
            "sequences outlive their device"
        );
        device.clear();
        device.lost = false;
        device.generation += 1;
        Ok(())
    }
}
