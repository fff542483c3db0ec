//! A submitted request with its state in the scheduler.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use model::{Sampled, Sampling};
use tokio::sync::mpsc::UnboundedSender;

use crate::{DecodeRow, Event, FinishReason, Request, RequestError, Token, Usage};

/// A submitted request: waiting, prefilling or decoding. It keeps its generated tokens when it is preempted.
pub(crate) struct Job {
    /// Submission order. Identifies the request in the logs of steps.
    pub id: u64,
    pub request: Request,
    pub events: UnboundedSender<Event>,
    /// Set by [`EventStream::finish_early`](crate::EventStream::finish_early).
    finish_early: Arc<AtomicBool>,
    pub submitted_at: Instant,
    /// Whether [`Event::Started`] was sent.
    pub started: bool,
    /// Prompt tokens from the prefix cache, at the first admission.
    pub cached_tokens: u32,
    pub generated: Vec<u32>,
    /// Tokens that the grammar allows next, one bit per token; up to date if `mask_valid`.
    mask: Vec<u32>,
    mask_valid: bool,
    /// When the last token was sent; before the first, when the request was submitted.
    pub last_token_at: Instant,
}

/// How a request ends.
pub(crate) enum Outcome {
    Cancelled,
    Finished(FinishReason),
    Failed(RequestError),
}

impl Job {
    pub fn new(
        id: u64,
        request: Request,
        events: UnboundedSender<Event>,
        finish_early: Arc<AtomicBool>,
    ) -> Self {
        let now = Instant::now();
        Self {
            id,
            request,
            events,
            finish_early,
            submitted_at: now,
            started: false,
            cached_tokens: 0,
            generated: vec![],
            mask: vec![],
            mask_valid: false,
            last_token_at: now,
        }
    }

    /// The outcome of a request that must not continue: its stream was dropped or its deadline has passed.
    pub fn abandoned(&self, now: Instant) -> Option<Outcome> {
        if self.events.is_closed() {
            return Some(self.stream_dropped());
        }
        let expired = self.request.deadline.is_some_and(|deadline| deadline <= now);
        expired.then_some(Outcome::Failed(RequestError::DeadlineExceeded))
    }

    /// The outcome of a request whose stream was dropped.
    fn stream_dropped(&self) -> Outcome {
        match self.finish_early.load(Ordering::Relaxed) {
            true => Outcome::Finished(FinishReason::Stop),
            false => Outcome::Cancelled,
        }
    }

    /// Length of the sequence while decoding. The last generated token is not in it: it enters with the next
    /// step.
    pub fn sequence_len(&self) -> usize {
        self.request.prompt.len() + self.generated.len().saturating_sub(1)
    }

    /// Tokens that a new sequence must hold before the request can decode: the prompt, or after a preemption
    /// everything but the last generated token.
    pub fn prefill_tokens(&self) -> Vec<u32> {
        let mut tokens = self.request.prompt.clone();
        tokens.extend(&self.generated);
        tokens.truncate(self.sequence_len());
        tokens
    }

    /// Sends a sampled token to the stream, unless it is a stop token. Returns the outcome if the completion
    /// ends here.
    pub fn push_token(&mut self, sampled: Sampled, context_length: u32) -> Option<Outcome> {
        if self.request.stop_token_ids.contains(&sampled.token) {
            return Some(Outcome::Finished(FinishReason::Stop));
        }
        self.mask_valid = false;
        if let Some(grammar) = &mut self.request.grammar
            && let Err(text) = grammar.accept(sampled.token)
        {
            return Some(Outcome::Failed(RequestError::Grammar(text)));
        }
        self.generated.push(sampled.token);
        let Sampled { token: id, logprob, top } = sampled;
        if self.events.send(Event::Token(Token { id, logprob, top })).is_err() {
            return Some(self.stream_dropped());
        }
        if self.request.grammar.as_ref().is_some_and(|grammar| grammar.is_finished()) {
            return Some(Outcome::Finished(FinishReason::Stop));
        }
        if self.remaining_tokens() == 0 {
            return Some(Outcome::Finished(FinishReason::MaxTokens));
        }
        (self.sequence_len() >= context_length as usize)
            .then_some(Outcome::Finished(FinishReason::ContextLength))
    }

    /// Computes the token mask of the next position, if there is a grammar and the mask is not up to date.
    pub fn update_mask(&mut self, vocab_size: u32) -> Result<(), RequestError> {
        let Some(grammar) = self.request.grammar.as_mut().filter(|_| !self.mask_valid) else {
            return Ok(());
        };
        self.mask.resize(vocab_size.div_ceil(32) as usize, 0);
        grammar.mask(&mut self.mask).map_err(RequestError::Grammar)?;
        for token in self.request.sampling.bans() {
            self.mask[token as usize / 32] &= !(1 << (token % 32));
        }
        if self.mask.iter().all(|word| *word == 0) {
            let text = "the grammar allows no further token, given the tokens that logit biases ban";
            return Err(RequestError::Grammar(text.into()));
        }
        self.mask_valid = true;
        Ok(())
    }

    /// The token mask of the next position, after [`Job::update_mask`]; `None` without a grammar.
    pub fn mask(&self) -> Option<&[u32]> {
        self.mask_valid.then_some(&self.mask)
    }

    /// Tokens that may still be generated before `max_tokens` is reached.
    pub fn remaining_tokens(&self) -> usize {
        (self.request.max_tokens.get() as usize).saturating_sub(self.generated.len())
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.request.prompt.len() as u32,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.generated.len() as u32,
        }
    }

    pub fn sampling(&self) -> &Sampling {
        &self.request.sampling
    }
}

/// A request in prefill.
pub(crate) struct Prefilling<S> {
    pub job: Job,
    pub sequence: S,
    /// [`Job::prefill_tokens`] at admission.
    pub tokens: Vec<u32>,
    /// How many of them the sequence holds.
    pub prefilled: usize,
}

impl<S> Prefilling<S> {
    /// Tokens left to prefill.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.prefilled
    }

    /// Pages that the rest of the prefill will allocate.
    pub fn remaining_pages(&self, page_size: u32) -> u32 {
        (self.tokens.len() as u32).div_ceil(page_size) - (self.prefilled as u32).div_ceil(page_size)
    }

    /// Whether `tokens` starts with full pages that this prefill will compute in a later step and put in the
    /// prefix cache.
    pub fn will_share(&self, tokens: &[u32], page_size: usize) -> bool {
        let common = self.tokens.iter().zip(tokens).take_while(|(own, other)| own == other).count();
        // The last token is always prefilled, for its logits.
        common.min(tokens.len() - 1) / page_size * page_size > self.prefilled
    }
}

/// A request in decode. Its last generated token is not in the sequence yet.
pub(crate) struct Decoding<S> {
    pub job: Job,
    pub sequence: S,
}

impl<S> Decoding<S> {
    /// Its row of the next decode batch.
    pub fn row(&mut self) -> DecodeRow<'_, S> {
        let Self { job, sequence } = self;
        let token = job.generated.last().copied().unwrap_or_default();
        DecodeRow {
            sequence,
            token,
            sampling: &job.request.sampling,
            mask: job.mask(),
            stop_token_ids: &job.request.stop_token_ids,
        }
    }
}
