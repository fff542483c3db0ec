//! A backend of plain arithmetic, for tests of scheduling and of servers: the tokens of an answer follow from its prompt alone, and
//! everything that it is told is checked. What is wrong panics.
//!
//! Its pages are kept by the books of a real cache, over a memory that has a number for each position in place of keys and values. Before a
//! token is chosen, all that its sequence sees there must be what its tokens have put there.

mod ledger;

mod every_nth;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use model::pages::Kind;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::{
    Backend, BackendError, Capacity, DecodeRow, Event, EventStream, FinishReason, MixedOutput, PrefillChunk,
    Request, Sampled, Sampling,
};

use ledger::{FNV_START, Ledger, SharedLedger, fnv, locked};

pub use every_nth::EveryNth;
pub use ledger::MockSequence;

/// Both ends of an answer, for tests of what is made of answers. That the answer was dropped shows at the sender.
pub fn event_stream() -> (UnboundedSender<Event>, EventStream) {
    let (events, answer) = unbounded_channel();
    (events, EventStream::new(answer, Arc::default()))
}

/// What a plain backend is made for.
#[derive(Clone, Debug)]
pub struct MockOptions {
    /// Sequences, context, vocabulary and pages.
    pub capacity: Capacity,
    /// Positions that a position sees in layers with a window.
    pub window: u32,
    /// Most tokens that a step reads.
    pub prefill_chunk: usize,
    /// Most steps of a run.
    pub max_steps: usize,
    /// Most sequences of a run.
    pub decode_batch: usize,
    /// What every answer says, whatever the prompt, for tests of what is made of tokens; put a token that ends it last. Without one the
    /// tokens are like drawn by lot, and follow from the prompt and the seed.
    pub script: Vec<u32>,
    /// How long a step takes.
    pub step_delay: Duration,
    /// Sequences of a step that there is memory for.
    pub max_sequences_per_step: usize,
    /// What goes wrong, by the number of the call of `start`, `mixed`, `decode`, `reset_token_counts`, `probe` or `recover` that it happens in: the first is 0.
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
                prefix_cache: true,
            },
            window: 24,
            prefill_chunk: 16,
            max_steps: 4,
            decode_batch: usize::MAX,
            script: vec![],
            step_delay: Duration::ZERO,
            max_sequences_per_step: usize::MAX,
            errors: BTreeMap::new(),
        }
    }
}

/// One step, as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many wrote.
    pub decode_rows: usize,
    /// Of each chunk the positions that were held already, and the tokens that were read.
    pub chunks: Vec<(usize, Vec<u32>)>,
}

/// A sequence that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// What it was to read.
    pub text: Vec<u32>,
    /// How many of those tokens it held already.
    pub held: usize,
}

/// Looks into a backend that an engine owns.
#[derive(Clone, Debug)]
pub struct Inspector(SharedLedger);

impl Inspector {
    /// Pages that no sequence holds.
    pub fn free_pages(&self) -> u32 {
        locked(&self.0).free()
    }

    /// Sequences under way.
    pub fn sequences(&self) -> u32 {
        locked(&self.0).sequences
    }

    /// The sequences that were started so far.
    pub fn starts(&self) -> Vec<Start> {
        locked(&self.0).starts.clone()
    }

    /// How often tokens were counted anew for penalties.
    pub fn count_resets(&self) -> u64 {
        locked(&self.0).count_resets
    }

    /// The steps so far that did not fail; those of a run are one.
    pub fn steps(&self) -> Vec<Step> {
        locked(&self.0).log.clone()
    }
}

impl MockOptions {
    /// The token that follows these.
    fn following(&self, tokens: &[u32], seed: u64) -> u32 {
        // As far into the script as the end of the tokens is: so a sequence that is read again goes on where it was.
        let within = (0..self.script.len()).rev().find(|said| tokens.ends_with(&self.script[..*said]));
        if let Some(said) = within {
            return self.script[said];
        }
        let start = fnv(FNV_START, seed);
        let hash = tokens.iter().fold(start, |hash, token| fnv(hash, u64::from(*token)));
        ((hash >> 20) % u64::from(self.capacity.vocab_size)) as u32
    }

    /// The same, or the next above it that a mask allows.
    fn allowed(&self, tokens: &[u32], seed: u64, mask: Option<&[u32]>) -> u32 {
        let (first, vocab) = (self.following(tokens, seed), self.capacity.vocab_size);
        let allows =
            |token: &u32| mask.is_none_or(|mask| mask[*token as usize / 32] >> (token % 32) & 1 == 1);
        (first..vocab).chain(0..first).find(allows).expect("a mask allows some token")
    }

    /// The answer to a request as if it were alone: its tokens, and why it ends. Panics where its grammar fails.
    pub fn alone(&self, request: &Request) -> (Vec<u32>, FinishReason) {
        let mut text = request.prompt.clone();
        let mut written = vec![];
        let mut guide = request.grammar.clone();
        let mut mask = vec![0; self.capacity.vocab_size.div_ceil(32) as usize];
        loop {
            if let Some(guide) = &mut guide {
                guide.mask(&mut mask).expect("a mask");
            }
            let token = self.allowed(&text, request.sampling.seed, guide.is_some().then_some(&mask));
            if request.stop_token_ids.contains(&token) {
                return (written, FinishReason::Stop);
            }
            written.push(token);
            if let Some(guide) = &mut guide {
                guide.accept(token).expect("a token that the mask allows");
                if guide.is_finished() {
                    return (written, FinishReason::Stop);
                }
            }
            if written.len() == request.max_tokens.get() as usize {
                return (written, FinishReason::MaxTokens);
            }
            if text.len() == self.capacity.context_length as usize {
                return (written, FinishReason::ContextLength);
            }
            text.push(token);
        }
    }
}

/// The backend.
#[derive(Debug)]
pub struct MockBackend {
    options: MockOptions,
    calls: u64,
    ledger: SharedLedger,
}

impl MockBackend {
    /// Panics where the pages are too few for one sequence.
    pub fn new(options: MockOptions) -> Self {
        let ledger = Arc::new(Mutex::new(Ledger::new(&options)));
        Self { options, calls: 0, ledger }
    }

    /// What it was made for.
    pub fn options(&self) -> &MockOptions {
        &self.options
    }

    /// Looks into it when an engine has it.
    pub fn inspector(&self) -> Inspector {
        Inspector(self.ledger.clone())
    }

    /// What goes wrong with this call.
    fn call(&mut self) -> Result<(), BackendError> {
        let fault = self.options.errors.get(&self.calls);
        self.calls += 1;
        if let Some(BackendError::DeviceLost(_)) = fault {
            locked(&self.ledger).lost = true;
        }
        fault.map_or(Ok(()), |fault| Err(fault.clone()))
    }

    fn step(&mut self, sequences: usize) -> Result<(), BackendError> {
        assert!(!locked(&self.ledger).lost, "a step on a lost device");
        self.call()?;
        if sequences > self.options.max_sequences_per_step {
            return Err(BackendError::OutOfMemory(format!("no memory for a step of {sequences} sequences")));
        }
        thread::sleep(self.options.step_delay);
        Ok(())
    }

    fn sampled(&self, sequence: &MockSequence, sampling: &Sampling, mask: Option<&[u32]>) -> Sampled {
        sequence.check();
        let capacity = self.options.capacity;
        assert!(
            mask.is_none_or(|mask| mask.len() == capacity.vocab_size.div_ceil(32) as usize),
            "a mask of another length"
        );
        let token = self.options.allowed(&sequence.tokens, sampling.seed, mask);
        let logprob = |token: u32| -(token as f32) / 1000.0;
        let top = (0..sampling.top.min(capacity.vocab_size)).map(|token| (token, logprob(token))).collect();
        Sampled { token, logprob: logprob(token), top }
    }

    /// Makes room for so many steps of all; nothing changes on an error.
    fn extend_all(
        &self,
        writing: &mut [DecodeRow<'_, MockSequence>],
        steps: usize,
    ) -> Result<(), BackendError> {
        for next in writing.iter() {
            // Which mask that token was chosen with is not known here.
            let known = next.mask.is_none();
            let last = self.options.following(&next.sequence.tokens, next.sampling.seed);
            assert!(!known || next.token == last, "a token that does not follow on what the sequence holds");
        }
        let extended = writing.iter_mut().try_for_each(|next| next.sequence.extend(steps));
        if extended.is_err() {
            writing.iter_mut().for_each(|next| next.sequence.truncate_pages());
        }
        extended
    }

    /// One token more of a sequence.
    fn write(&self, next: &mut DecodeRow<'_, MockSequence>) -> Sampled {
        next.sequence.write(&[next.token]);
        let sampled = self.sampled(next.sequence, next.sampling, next.mask);
        next.token = sampled.token;
        sampled
    }

    fn log(&self, writing: usize, chunks: &[PrefillChunk<'_, MockSequence>]) {
        let read =
            |chunk: &PrefillChunk<'_, MockSequence>| (chunk.sequence.tokens.len(), chunk.tokens.to_vec());
        let chunks = chunks.iter().map(read).collect();
        locked(&self.ledger).log.push(Step { decode_rows: writing, chunks });
    }
}

impl Backend for MockBackend {
    type Sequence = MockSequence;

    fn capacity(&self) -> Capacity {
        self.options.capacity
    }

    fn free_pages(&self) -> u32 {
        locked(&self.ledger).free()
    }

    fn cached_pages(&self) -> u32 {
        locked(&self.ledger).pages.cached(Kind::Global) as u32
    }

    fn shared_pages(&self, text: &[u32]) -> u32 {
        locked(&self.ledger).pages.shared(text)
    }

    fn start(&mut self, text: &[u32]) -> Result<(MockSequence, usize), BackendError> {
        self.call()?;
        let mut ledger = locked(&self.ledger);
        assert!(!ledger.lost, "a sequence of a lost device");
        ledger.sequences += 1;
        let sequence = ledger.pages.start_with(text).expect("more sequences than there may be");
        let held = sequence.len() as usize;
        assert!(held < text.len(), "nothing is left to read");
        ledger.starts.push(Start { text: text.to_vec(), held });
        let (tokens, age) = (text[..held].to_vec(), ledger.age);
        let sequence = MockSequence { tokens, held: sequence, age, ledger: self.ledger.clone() };
        drop(ledger);
        sequence.check();
        Ok((sequence, held))
    }

    fn max_prefill_tokens(&self, _decode_rows: usize, _depth: u32, _budget: Duration) -> usize {
        self.options.prefill_chunk
    }

    fn decode_batch_size(&self, decoding: usize) -> usize {
        decoding.min(self.options.decode_batch)
    }

    fn decode_run_steps(&self, _rows: usize) -> usize {
        self.options.max_steps
    }

    fn step_bytes(&self, depths: &[u32]) -> u64 {
        // A thousand of weights, and ten for a position.
        1000 + depths.iter().map(|depth| u64::from(*depth) * 10).sum::<u64>()
    }

    fn mixed(
        &mut self,
        writing: &mut [DecodeRow<'_, MockSequence>],
        chunks: &mut [PrefillChunk<'_, MockSequence>],
    ) -> Result<MixedOutput, BackendError> {
        let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
        assert!(
            (1..=self.options.capacity.max_chunks_per_step as usize).contains(&chunks.len()),
            "{} chunks",
            chunks.len()
        );
        assert!(tokens <= self.options.prefill_chunk, "chunks of {tokens} tokens");
        assert!(chunks.iter().all(|chunk| !chunk.tokens.is_empty()), "a chunk of nothing");
        self.step(writing.len() + chunks.len())?;
        self.extend_all(writing, 1)?;
        if let Err(fault) = chunks.iter_mut().try_for_each(|chunk| chunk.sequence.extend(chunk.tokens.len()))
        {
            writing.iter_mut().for_each(|next| next.sequence.truncate_pages());
            chunks.iter_mut().for_each(|chunk| chunk.sequence.truncate_pages());
            return Err(fault);
        }
        self.log(writing.len(), chunks);
        let decoded = writing.iter_mut().map(|next| self.write(next)).collect();
        let mut first_tokens = vec![];
        for PrefillChunk { sequence, tokens, sampling, mask, last } in chunks {
            sequence.write(tokens);
            first_tokens.push(last.then(|| self.sampled(sequence, sampling, *mask)));
        }
        Ok(MixedOutput { decoded, first_tokens })
    }

    fn decode(
        &mut self,
        writing: &mut [DecodeRow<'_, MockSequence>],
        most: usize,
    ) -> Result<Vec<Vec<Sampled>>, BackendError> {
        assert!(!writing.is_empty() && most > 0);
        assert!(
            most == 1 || writing.iter().all(|next| next.mask.is_none()),
            "a run of {most} steps with a mask"
        );
        self.step(writing.len())?;
        self.extend_all(writing, most)?;
        self.log(writing.len(), &[]);
        let mut steps: Vec<Vec<Sampled>> = vec![];
        while steps.len() < most {
            let step: Vec<Sampled> = writing.iter_mut().map(|next| self.write(next)).collect();
            let stopped = |(sampled, row): (&Sampled, &DecodeRow<'_, MockSequence>)| {
                row.stop_token_ids.contains(&sampled.token)
            };
            let ended = step.iter().zip(writing.iter()).any(stopped);
            steps.push(step);
            if ended {
                break;
            }
        }
        writing.iter_mut().for_each(|next| next.sequence.truncate_pages());
        Ok(steps)
    }

    fn reset_token_counts(
        &mut self,
        sequence: &mut MockSequence,
        prompt: &[u32],
        written: &[u32],
    ) -> Result<(), BackendError> {
        let held = written.split_last().map_or(&[][..], |(_, held)| held);
        self.call()?;
        assert_eq!(sequence.tokens, [prompt, held].concat(), "counts of another sequence");
        locked(&self.ledger).count_resets += 1;
        Ok(())
    }

    fn probe(&mut self) -> Result<(), BackendError> {
        assert!(!locked(&self.ledger).lost, "a probe of a lost device");
        self.call()
    }

    fn recover(&mut self) -> Result<(), BackendError> {
        assert!(locked(&self.ledger).lost, "nothing is lost");
        self.call()?;
        let mut ledger = locked(&self.ledger);
        assert_eq!(
            (ledger.free(), ledger.sequences),
            (ledger.capacity.pages, 0),
            "sequences of a lost device are kept"
        );
        ledger.clear();
        ledger.lost = false;
        ledger.age += 1;
        Ok(())
    }
}
