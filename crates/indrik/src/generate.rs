//! Text generation: a prompt in, a stream of text and token ids out.

use std::{
    num::NonZeroU32,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::{Duration, Instant},
};

use engine::{DraftCounts, Engine, Event, EventStream, Request, Sampling, Token};
use model::SetupTime;
use text::{DecodeSpecial, Detokenizer, StopMatcher, TokenConstraint};

use crate::{Error, Model, PromptImage, Result};

/// The prompt of a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text, tokenized with the model's tokenizer and its beginning-of-sequence token.
    Text(String),
    /// Token ids, used as they are.
    Ids(Vec<u32>),
    /// A text with images, in front of it or where it has as many `<start_of_image>` as there are images.
    TextWithImages {
        /// The text.
        text: String,
        /// The images, in order.
        images: Vec<PromptImage>,
    },
    /// Token ids with blocks of image tokens, such as from [`PromptImage::encode_prompt`].
    IdsWithImages {
        /// The tokens.
        ids: Vec<u32>,
        /// The images, in the order of their blocks.
        images: Vec<PromptImage>,
    },
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Prompt::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Prompt::Ids(ids)
    }
}

impl From<&[u32]> for Prompt {
    fn from(ids: &[u32]) -> Self {
        Prompt::Ids(ids.to_vec())
    }
}

/// Parameters of a completion. The default is greedy and ends with a stop token or when the context is full.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Maximum number of tokens; as many as fit the context if `None`.
    pub max_tokens: Option<u32>,
    /// Temperature, filters, penalties and the seed.
    pub sampling: Sampling,
    /// Texts that end the completion. They are not part of it.
    pub stop: Vec<String>,
    /// Token ids that end the completion; the model's own if `None`.
    pub stop_token_ids: Option<Vec<u32>>,
    /// A constraint that the completion must satisfy, for example a [`grammar::Matcher`].
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// Control tokens whose text is part of the output, for example the markers of tool calls. None by
    /// default.
    pub visible_control_tokens: Vec<u32>,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model produced a stop token, or the constraint allows nothing to follow.
    StopToken,
    /// The text reached a stop string.
    StopString,
    /// `max_tokens` was reached.
    MaxTokens,
    /// The context is full.
    ContextLength,
    /// [`Generation::cancel`] was called.
    Cancelled,
}

/// A piece of a completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// New text. Empty while a character is incomplete, or while the text could become a stop string.
    pub text: String,
    /// The token that produced it; `None` for text that was held back until the end.
    pub token: Option<Token>,
}

/// An event of a completion, from [`Generation::next_event`].
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationEvent {
    /// No output within the timeout. The prompt may still be prefilling.
    Waiting {
        /// Prompt tokens prefilled so far, without cached ones.
        prefilled: usize,
    },
    /// New output.
    Piece(Piece),
    /// The completion has ended.
    Finished(FinishReason),
}

/// A finished completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The text; empty if the checkpoint has no tokenizer.
    pub text: String,
    /// The token ids, without the stop token.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Measurements.
    pub timings: Timings,
}

/// Measurements of one completion.
///
/// Times are wall-clock. `read_back_bytes`, `drafts` and the times are only meaningful while no other request runs on
/// the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Compiling pipelines and recording programs that did not exist yet, before the prompt was submitted.
    pub setup: SetupTime,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens that were prefilled: the rest, or fewer if the completion was cancelled.
    pub prefilled_tokens: usize,
    /// Time to first token, from the submission of the prompt.
    pub prefill_time: Duration,
    /// Tokens after the first. The last may be the stop token.
    pub decode_tokens: usize,
    /// Drafts that were verified, and accepted ones among them: tokens that took no step of their own.
    pub drafts: DraftCounts,
    /// From the first token to the end.
    pub decode_time: Duration,
    /// Bytes of weights, keys and values that the decode steps read from device memory.
    pub decode_bytes: u64,
    /// Bytes that the host read back from the device, for all tokens.
    pub read_back_bytes: u64,
}

impl Timings {
    /// Prefill speed in tok/s.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        self.prefilled_tokens as f64 / self.prefill_time.as_secs_f64()
    }

    /// Decoded tokens per step.
    pub fn tokens_per_step(&self) -> f64 {
        let steps = self.decode_tokens.saturating_sub(self.drafts.accepted as usize);
        self.decode_tokens as f64 / steps.max(1) as f64
    }

    /// Decode speed in tok/s; `None` without a token after the first.
    pub fn decode_tokens_per_second(&self) -> Option<f64> {
        (self.decode_tokens > 0).then(|| self.decode_tokens as f64 / self.decode_time.as_secs_f64())
    }
}

/// A completion in progress: an iterator over its [`Piece`]s. Dropping it cancels the request.
///
/// Iterating blocks the thread until the next token. In asynchronous code use [`Model::engine`], whose
/// streams can be awaited, or a blocking task.
pub struct Generation {
    model: Model,
    engine: Engine,
    stream: Option<EventStream>,
    detokenizer: Option<Detokenizer>,
    stops: StopMatcher,
    /// Output that was produced and not yet returned.
    pending: Option<Piece>,
    finished: Option<FinishReason>,
    failed: bool,
    /// A constraint may end the completion without a stop token.
    constrained: bool,
    prompt: Vec<u32>,
    ids: Vec<u32>,
    text: String,
    clock: Clock,
}

/// Timestamps of a completion, and counters as they were before it.
struct Clock {
    setup: SetupTime,
    submitted: Instant,
    first_token: Option<Instant>,
    ended: Option<Instant>,
    cached: usize,
    /// The engine's count of prefilled tokens.
    prefilled_before: u64,
    /// The engine's count of drafts.
    drafts_before: DraftCounts,
    read_back_before: u64,
    /// The last step yielded a stop token, so there is one more step than tokens.
    sampled_stop_token: bool,
}

impl Generation {
    pub(crate) fn start(model: &Model, prompt: Prompt, options: GenerateOptions) -> Result<Self> {
        let config = model.files().config();
        let GenerateOptions {
            max_tokens,
            mut sampling,
            stop,
            stop_token_ids,
            constraint,
            visible_control_tokens,
        } = options;
        // Token ids need no tokenizer.
        let language = match (model.language(), &prompt) {
            (Ok(language), _) => Some(language),
            (
                Err(Error::Model(model::Error::NoTokenizer { .. })),
                Prompt::Ids(_) | Prompt::IdsWithImages { .. },
            ) if stop.is_empty() => None,
            (Err(error), _) => return Err(error),
        };
        let (prompt, images) = match (prompt, &language) {
            (Prompt::Text(text), Some(language)) => (language.tokenizer.encode_prompt(&text), vec![]),
            (Prompt::TextWithImages { text, images }, Some(language)) => {
                (PromptImage::encode_prompt(language, &text, &images)?, PromptImage::images(&images))
            }
            (Prompt::Text(_) | Prompt::TextWithImages { .. }, None) => (vec![], vec![]),
            (Prompt::Ids(ids), _) => (ids, vec![]),
            (Prompt::IdsWithImages { ids, images }, _) => (ids, PromptImage::images(&images)),
        };
        if let Some(Err(reason)) = language.as_ref().map(|language| &language.images)
            && !images.is_empty()
        {
            return Err(Error::ImagesUnsupported { reason: reason.clone() });
        }
        let context_length = model.capacity().context_length;
        model::check_tokens(config, 0, &prompt, context_length)?;
        if let Some(language) = &language {
            let suppressed =
                language.tokenizer.suppressed_token_ids().iter().filter(|id| **id < config.vocab);
            sampling.biases.extend(suppressed.map(|id| (*id, f32::NEG_INFINITY)));
        }
        sampling.check(config.vocab)?;
        let stops = StopMatcher::new(&stop)?;
        let stop_token_ids = match (stop_token_ids, &language) {
            (Some(ids), _) => ids,
            (None, Some(language)) => language.stop_token_ids.clone(),
            (None, None) => config.eos.clone(),
        };
        // Without a maximum, the context length ends the completion.
        let max_tokens = NonZeroU32::new(max_tokens.unwrap_or(u32::MAX)).ok_or(Error::NoTokensRequested)?;

        let engine = model.engine()?;
        let (setup, read_back_before) = prepare(model, &prompt, &sampling)?;
        let detokenizer = language.as_ref().map(|language| {
            Detokenizer::new(&language.tokenizer, DecodeSpecial::Skip).keeping(visible_control_tokens)
        });
        let constrained = constraint.is_some();
        let status = engine.status();
        let (prefilled_before, drafts_before) = (status.prompt_tokens, status.drafts.total());
        let submitted = Instant::now();
        let stream = engine.submit(Request {
            sampling,
            stop_token_ids,
            grammar: constraint,
            images,
            ..Request::new(prompt.clone(), max_tokens)
        })?;
        Ok(Self {
            model: model.clone(),
            engine,
            stream: Some(stream),
            detokenizer,
            stops,
            pending: None,
            finished: None,
            failed: false,
            constrained,
            prompt,
            ids: vec![],
            text: String::new(),
            clock: Clock {
                setup,
                submitted,
                first_token: None,
                ended: None,
                cached: 0,
                prefilled_before,
                drafts_before,
                read_back_before,
                sampled_stop_token: false,
            },
        })
    }

    /// The tokens of the prompt.
    pub fn prompt_ids(&self) -> &[u32] {
        &self.prompt
    }

    /// Tokens of the prompt that were found in the prefix cache, as far as known.
    pub fn cached_tokens(&self) -> usize {
        self.clock.cached
    }

    /// Waits for new output, at most for `timeout`.
    pub fn next_event(&mut self, timeout: Duration) -> Result<GenerationEvent> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(piece) = self.pending.take() {
                self.text += &piece.text;
                return Ok(GenerationEvent::Piece(piece));
            }
            if let Some(reason) = self.finished {
                return Ok(GenerationEvent::Finished(reason));
            }
            let Some(event) = self.stream.as_mut().and_then(|stream| wait(stream, deadline)) else {
                return Ok(GenerationEvent::Waiting { prefilled: self.prefilled() });
            };
            match event {
                Event::Started { cached_tokens } => self.clock.cached = cached_tokens as usize,
                // Not requested.
                Event::PromptTokens(_) => {}
                Event::Token(token) => self.push(token),
                Event::Finished { reason, .. } => {
                    self.clock.sampled_stop_token = reason == engine::FinishReason::Stop && !self.constrained;
                    self.finish(match reason {
                        engine::FinishReason::Stop => FinishReason::StopToken,
                        engine::FinishReason::MaxTokens => FinishReason::MaxTokens,
                        engine::FinishReason::ContextLength => FinishReason::ContextLength,
                    });
                }
                Event::Failed(error) => {
                    self.failed = true;
                    self.finish(FinishReason::Cancelled);
                    return Err(error.into());
                }
            }
        }
    }

    /// Ends the completion now. Output generated so far is kept.
    pub fn cancel(&mut self) {
        if self.finished.is_none() {
            self.finish(FinishReason::Cancelled);
        }
    }

    /// Waits for the end of the completion and returns it.
    pub fn finish_completion(mut self) -> Result<Completion> {
        loop {
            match self.next_event(Duration::from_secs(60))? {
                GenerationEvent::Waiting { .. } | GenerationEvent::Piece(_) => {}
                GenerationEvent::Finished(finish_reason) => {
                    let timings = self.timings()?;
                    let (text, ids) = (self.text, self.ids);
                    return Ok(Completion { text, ids, finish_reason, timings });
                }
            }
        }
    }

    fn push(&mut self, token: Token) {
        self.clock.first_token.get_or_insert_with(Instant::now);
        self.ids.push(token.id);
        let text = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.push(token.id),
            None => String::new(),
        };
        let (text, stopped) = self.stops.push(&text);
        self.pending = Some(Piece { text, token: Some(token) });
        if stopped {
            if let Some(stream) = &self.stream {
                stream.finish_early();
            }
            self.end(FinishReason::StopString);
        }
    }

    /// Ends the completion and releases the text that was held back.
    fn finish(&mut self, reason: FinishReason) {
        self.end(reason);
        let rest = self.detokenizer.as_mut().map_or_else(String::new, |detokenizer| {
            let mut rest = String::new();
            detokenizer.finish_to(&mut rest);
            rest
        });
        let (mut rest, stopped) = self.stops.push(&rest);
        if !stopped {
            rest += &self.stops.finish().0;
        }
        match &mut self.pending {
            Some(piece) => piece.text += &rest,
            None if rest.is_empty() => {}
            None => self.pending = Some(Piece { text: rest, token: None }),
        }
    }

    fn end(&mut self, reason: FinishReason) {
        self.finished = Some(reason);
        self.clock.ended = Some(Instant::now());
        self.stream = None;
    }

    /// Prompt tokens prefilled so far, up to this prompt's total. Tokens of other requests count too.
    fn prefilled(&self) -> usize {
        let total = self.prompt.len() - self.clock.cached;
        match self.ids.is_empty() && !self.clock.sampled_stop_token {
            true => total.min((self.engine.status().prompt_tokens - self.clock.prefilled_before) as usize),
            false => total,
        }
    }

    /// Measurements up to now. Waits for the current step.
    pub fn timings(&self) -> Result<Timings> {
        let clock = &self.clock;
        let ended = clock.ended.unwrap_or_else(Instant::now);
        let first_token = clock.first_token.unwrap_or(ended);
        let decode_tokens = match self.ids.len() {
            0 => 0,
            tokens => tokens - 1 + usize::from(clock.sampled_stop_token),
        };
        let drafts = self.engine.status().drafts.total();
        let drafts = DraftCounts {
            drafted: drafts.drafted - clock.drafts_before.drafted,
            // A stop string may end the completion before the last accepted drafts.
            accepted: (drafts.accepted - clock.drafts_before.accepted)
                .min((decode_tokens as u64).saturating_sub(1)),
        };
        let first_position = self.prompt.len() as u32;
        let (decode_bytes, read_back) = self.model.with_runner(|runner| {
            let model = runner.model();
            let positions = first_position..first_position + decode_tokens as u32;
            let weights = model.bytes_per_step(1, None).unwrap_or(0);
            let bytes: u64 =
                positions.map(|position| weights + runner.cache().bytes_read(&model.config, position)).sum();
            // Accepted drafts took no step of their own.
            let steps = decode_tokens.saturating_sub(drafts.accepted as usize) as u64;
            let per_step = bytes as f64 / decode_tokens.max(1) as f64;
            Ok(((per_step * steps as f64) as u64, runner.counters().read_back))
        })?;
        Ok(Timings {
            setup: clock.setup,
            prompt_tokens: self.prompt.len(),
            cached_tokens: clock.cached,
            prefilled_tokens: self.prefilled(),
            prefill_time: first_token - clock.submitted,
            decode_tokens,
            drafts,
            decode_time: ended - first_token,
            decode_bytes,
            // A reloaded model counts from 0.
            read_back_bytes: read_back.saturating_sub(clock.read_back_before),
        })
    }
}

impl Iterator for Generation {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        if self.failed {
            return None;
        }
        loop {
            match self.next_event(Duration::from_secs(60)) {
                Ok(GenerationEvent::Waiting { .. }) => {}
                Ok(GenerationEvent::Piece(piece)) => return Some(Ok(piece)),
                Ok(GenerationEvent::Finished(_)) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Records the programs that the prompt and its completion need, so that recording is not part of the time to
/// first token. Returns the setup time, and the number of bytes that the host has read back so far.
fn prepare(model: &Model, prompt: &[u32], sampling: &Sampling) -> Result<(SetupTime, u64)> {
    model.with_runner(|runner| {
        let before = runner.setup_time();
        // A sequence started for the prompt contains its cached prefix. Without a free sequence the request
        // has to wait for others, and its time to first token is dominated by that.
        if let Ok(sequence) = runner.start_with(prompt) {
            let cached = sequence.len() as usize;
            drop(sequence);
            runner.prepare(prompt.len() - cached, sampling)?;
        }
        Ok((runner.setup_time() - before, runner.counters().read_back))
    })
}

/// The next event, if one arrives before the deadline.
fn wait(stream: &mut EventStream, deadline: Instant) -> Option<Event> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(event) = stream.poll_next(&mut context) {
            return event;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

/// Wakes a thread that is parked in [`wait`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
