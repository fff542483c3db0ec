//! A submitted request with its state in the scheduler.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use model::{Sampled, Sampling, pages::min_copied};

use text::TokenConstraint;

use crate::{
    Backend, DecodeRow, Event, EventSender, FinishReason, Request, RequestError, RequestState, RequestStatus,
    Token, Usage,
    energy::Joules,
    speculate::{Draft, Drafter, GuidedDrafts, Source, guide},
};

/// A submitted request: waiting, prefilling or decoding. It keeps its generated tokens when it is preempted.
pub(crate) struct Job {
    /// Submission order. Identifies the request in the logs of steps.
    pub id: u64,
    pub request: Request,
    pub events: EventSender,
    /// Set by [`EventStream::finish_early`](crate::EventStream::finish_early).
    finish_early: Arc<AtomicBool>,
    pub submitted_at: Instant,
    /// Whether [`Event::Started`] was sent.
    pub started: bool,
    /// Prompt tokens from the prefix cache, at the first admission.
    pub cached_tokens: u32,
    pub generated: Vec<u32>,
    /// Prompt tokens whose log probabilities were sent; they follow the first.
    scored: usize,
    /// Tokens that the grammar allows next, one bit per token; up to date if `mask_valid`.
    mask: Vec<u32>,
    mask_valid: bool,
    pub drafter: Drafter,
    /// Whether tokens may be drafted: not with penalties, since a row's token counts would have to include the drafts
    /// before it.
    may_speculate: bool,
    /// When the last token was sent; before the first, when the request was submitted.
    pub last_token_at: Instant,
    /// Energy of its steps.
    pub joules: Joules,
    /// Its share of the bytes that decode steps read.
    pub decode_bytes: u64,
    /// Tokens of those steps.
    pub decode_tokens: u32,
    /// When the first token was sent.
    pub first_token_at: Option<Instant>,
}

/// How a request ends.
pub(crate) enum Outcome {
    Cancelled,
    Finished(FinishReason),
    Failed(RequestError),
}

impl Job {
    pub fn new(id: u64, request: Request, events: EventSender, finish_early: Arc<AtomicBool>) -> Self {
        let now = Instant::now();
        let may_speculate = request.speculate && !request.sampling.has_penalties();
        Self {
            id,
            request,
            events,
            finish_early,
            submitted_at: now,
            started: false,
            cached_tokens: 0,
            generated: vec![],
            scored: 0,
            mask: vec![],
            mask_valid: false,
            drafter: Drafter::default(),
            may_speculate,
            last_token_at: now,
            joules: Joules::default(),
            decode_bytes: 0,
            decode_tokens: 0,
            first_token_at: None,
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
        // Requests without a mask decode in runs.
        self.request.grammar.take_if(|grammar| grammar.is_lifted());
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

    /// Number of most probable tokens to report with each prompt token, if log probabilities of the prompt are still
    /// to be sent.
    pub fn to_score(&self) -> Option<u32> {
        self.request.prompt_logprobs.filter(|_| self.generated.is_empty())
    }

    /// Sends the log probabilities of the prompt tokens that follow the first `prefilled`, but for those that were sent
    /// before a preemption.
    pub fn push_prompt_tokens(&mut self, prefilled: usize, scored: Vec<Sampled>) {
        let end = prefilled + scored.len();
        let token = |Sampled { token: id, logprob, top }| Token { id, logprob, top };
        let new: Vec<Token> =
            scored.into_iter().skip(self.scored.saturating_sub(prefilled)).map(token).collect();
        if !new.is_empty() {
            self.scored = end;
            // A dropped stream is noticed in the next round.
            let _ = self.events.send(Event::PromptTokens(new));
        }
    }

    /// Computes the token mask of the next position, if there is a grammar and the mask is not up to date.
    pub fn update_mask(&mut self, vocab_size: u32) -> Result<(), RequestError> {
        let Some(grammar) = self.request.grammar.as_mut().filter(|_| !self.mask_valid) else {
            return Ok(());
        };
        self.mask.resize(vocab_size.div_ceil(32) as usize, 0);
        write_mask(&mut **grammar, &self.request.sampling, &mut self.mask)?;
        self.mask_valid = true;
        Ok(())
    }

    /// Drafts from its prompt, completion, prediction and grammar, at most `max`, with their masks. Call
    /// [`Job::update_mask`] before.
    pub fn lookup_drafts(&mut self, max: usize) -> GuidedDrafts {
        let Request { prompt, prediction, .. } = &self.request;
        if max == 0 || !self.may_speculate {
            return GuidedDrafts::default();
        }
        let proposed = self.drafter.draft(prompt, &self.generated, prediction);
        self.guide(proposed, max)
    }

    /// Drafts of a draft model that stop tokens and the grammar allow, with their masks.
    pub fn model_drafts(&self, tokens: &[u32], vocab_size: u32) -> GuidedDrafts {
        // A draft model may have more entries at the end of its vocabulary.
        let known = tokens.iter().take_while(|token| **token < vocab_size);
        let drafts = known.map(|token| Draft { token: *token, source: Source::Model });
        self.guide(drafts.collect(), tokens.len())
    }

    /// Those of the proposed drafts that may follow, at most `max`, with their masks.
    fn guide(&self, mut proposed: Vec<Draft>, max: usize) -> GuidedDrafts {
        let Request { sampling, stop_token_ids, grammar, .. } = &self.request;
        let mut guided = match grammar {
            Some(grammar) => {
                let next_mask = |grammar: &mut dyn TokenConstraint| {
                    let mut mask = vec![0; self.mask.len()];
                    write_mask(grammar, sampling, &mut mask).ok().map(|()| mask)
                };
                guide(&**grammar, &self.mask, &proposed, stop_token_ids, next_mask)
            }
            None => {
                // Nothing is sampled after a stop token.
                let stop = proposed.iter().position(|draft| stop_token_ids.contains(&draft.token));
                proposed.truncate(stop.unwrap_or(proposed.len()));
                GuidedDrafts { drafts: proposed, masks: vec![] }
            }
        };
        guided.truncate(max);
        guided
    }

    /// Whether tokens may be drafted for it.
    pub fn may_speculate(&self) -> bool {
        self.may_speculate
    }

    /// Number of tokens of the prompt and the completion so far.
    pub fn tokens_len(&self) -> usize {
        self.request.prompt.len() + self.generated.len()
    }

    /// The prompt and the completion so far.
    pub fn tokens(&self) -> Vec<u32> {
        [&self.request.prompt[..], &self.generated].concat()
    }

    /// The token mask of the next position, after [`Job::update_mask`]; `None` without a grammar.
    pub fn mask(&self) -> Option<&[u32]> {
        self.mask_valid.then_some(&self.mask)
    }

    /// Tokens that may still be generated before `max_tokens` is reached.
    pub fn remaining_tokens(&self) -> usize {
        (self.request.max_tokens as usize).saturating_sub(self.generated.len())
    }

    /// What monitors see of the request. `sequence_tokens` is the length of its sequence.
    pub fn status(&self, state: RequestState, sequence_tokens: usize) -> RequestStatus {
        let decoding =
            self.first_token_at.map(|first| self.last_token_at.duration_since(first).as_secs_f64());
        let after_first = self.generated.len().saturating_sub(1);
        RequestStatus {
            name: self.request.name.clone(),
            state,
            prompt_tokens: self.request.prompt.len() as u32,
            cached_tokens: self.cached_tokens,
            sequence_tokens: sequence_tokens as u32,
            generated_tokens: self.generated.len() as u32,
            max_tokens: self.request.max_tokens,
            submitted_at: self.submitted_at,
            tokens_per_second: decoding.filter(|time| *time > 0.0).map(|time| after_first as f64 / time),
        }
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.request.prompt.len() as u32,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.generated.len() as u32,
            joules: self.joules.get(),
            decode_bytes: self.decode_bytes,
            decode_tokens: self.decode_tokens,
            drafts: self.drafter.stats,
        }
    }

    pub fn sampling(&self) -> &Sampling {
        &self.request.sampling
    }
}

/// Writes the mask of tokens that a grammar allows next, less those that the request bans.
fn write_mask(
    grammar: &mut dyn TokenConstraint,
    sampling: &Sampling,
    mask: &mut [u32],
) -> Result<(), RequestError> {
    grammar.mask(mask).map_err(RequestError::Grammar)?;
    for token in sampling.bans() {
        mask[token as usize / 32] &= !(1 << (token % 32));
    }
    if mask.iter().all(|word| *word == 0) {
        let text = "the grammar allows no further token, given the tokens that logit biases ban";
        return Err(RequestError::Grammar(text.into()));
    }
    Ok(())
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

impl<S> AsRef<Job> for Prefilling<S> {
    fn as_ref(&self) -> &Job {
        &self.job
    }
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

    /// Whether this prefill will compute, in a later step, what is worth waiting for: full pages that `tokens` starts
    /// with, or all of them but the last, as in further answers to the same prompt.
    pub fn will_share(&self, tokens: &[u32], page_size: usize) -> bool {
        let common = self.tokens.iter().zip(tokens).take_while(|(own, other)| own == other).count();
        // The last token is always prefilled, for its logits.
        let rest = tokens.len() - 1;
        let all = common >= rest && rest % page_size >= min_copied(page_size);
        common.min(rest) / page_size * page_size > self.prefilled || all && rest > self.prefilled
    }
}

/// A request in decode. Its last generated token is not in the sequence yet.
pub(crate) struct Decoding<B: Backend> {
    pub job: Job,
    pub sequence: B::Sequence,
    /// Its sequence in the draft model.
    pub draft_sequence: B::DraftSequence,
}

impl<B: Backend> AsRef<Job> for Decoding<B> {
    fn as_ref(&self) -> &Job {
        &self.job
    }
}

impl<B: Backend> Decoding<B> {
    pub fn new(job: Job, sequence: B::Sequence) -> Self {
        Self { job, sequence, draft_sequence: B::DraftSequence::default() }
    }

    /// Its row of the next decode batch.
    pub fn row(&mut self) -> DecodeRow<'_, B::Sequence> {
        let Self { job, sequence, .. } = self;
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
