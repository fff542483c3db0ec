//! A request on its way.

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

/// A request on its way. What it has written stays with it when it is set back.
pub(crate) struct Job {
    /// How many came before it.
    pub number: u64,
    pub request: Request,
    pub events: UnboundedSender<Event>,
    /// Who asked has all it wants.
    enough: Arc<AtomicBool>,
    pub arrived: Instant,
    pub started: bool,
    /// Tokens of the prompt that needed no reading.
    pub cached: u32,
    pub written: Vec<u32>,
    /// The tokens that its grammar allows next, and whether that is so still.
    mask: Vec<u32>,
    mask_holds: bool,
    /// When the last token was handed out.
    pub told: Instant,
}

/// What becomes of a job in the end.
pub(crate) enum Ending {
    Cancelled,
    Finished(FinishReason),
    Failed(RequestError),
}

impl Job {
    pub fn new(
        number: u64,
        request: Request,
        events: UnboundedSender<Event>,
        enough: Arc<AtomicBool>,
    ) -> Self {
        let now = Instant::now();
        Self {
            number,
            request,
            events,
            enough,
            arrived: now,
            started: false,
            cached: 0,
            written: vec![],
            mask: vec![],
            mask_holds: false,
            told: now,
        }
    }

    /// Whether it ends from outside: nobody waits for it any more, or nobody should.
    pub fn given_up(&self, now: Instant) -> Option<Ending> {
        if self.events.is_closed() {
            return Some(self.left_alone());
        }
        let late = self.request.deadline.is_some_and(|deadline| deadline <= now);
        late.then_some(Ending::Failed(RequestError::DeadlineExceeded))
    }

    /// What becomes of it when nobody listens any more.
    fn left_alone(&self) -> Ending {
        match self.enough.load(Ordering::Relaxed) {
            true => Ending::Finished(FinishReason::Stop),
            false => Ending::Cancelled,
        }
    }

    /// Tokens that its sequence holds when all is read and written: the last one written goes in with the next step.
    pub fn len(&self) -> usize {
        self.request.prompt.len() + self.written.len().saturating_sub(1)
    }

    /// What a new sequence has to read of it: the prompt, or what its sequence held when it was set back.
    pub fn text(&self) -> Vec<u32> {
        let mut text = self.request.prompt.clone();
        text.extend(&self.written);
        text.truncate(self.len());
        text
    }

    /// Hands out a token; says if that was the end.
    pub fn tell(&mut self, sampled: Sampled, context: u32) -> Option<Ending> {
        if self.request.stop_token_ids.contains(&sampled.token) {
            return Some(Ending::Finished(FinishReason::Stop));
        }
        self.mask_holds = false;
        if let Some(guide) = &mut self.request.grammar
            && let Err(text) = guide.accept(sampled.token)
        {
            return Some(Ending::Failed(RequestError::Grammar(text)));
        }
        self.written.push(sampled.token);
        let Sampled { token: id, logprob, top } = sampled;
        if self.events.send(Event::Token(Token { id, logprob, top })).is_err() {
            return Some(self.left_alone());
        }
        if self.request.grammar.as_ref().is_some_and(|guide| guide.is_finished()) {
            return Some(Ending::Finished(FinishReason::Stop));
        }
        if self.left() == 0 {
            return Some(Ending::Finished(FinishReason::MaxTokens));
        }
        (self.len() >= context as usize).then_some(Ending::Finished(FinishReason::ContextLength))
    }

    /// Finds the tokens that its grammar allows next, if it has one and they are not known.
    pub fn look_ahead(&mut self, vocab: u32) -> Result<(), RequestError> {
        let Some(guide) = self.request.grammar.as_mut().filter(|_| !self.mask_holds) else { return Ok(()) };
        self.mask.resize(vocab.div_ceil(32) as usize, 0);
        guide.mask(&mut self.mask).map_err(RequestError::Grammar)?;
        for token in self.request.sampling.bans() {
            self.mask[token as usize / 32] &= !(1 << (token % 32));
        }
        if self.mask.iter().all(|word| *word == 0) {
            let text = "the grammar, with the tokens that are banned by logit biases, allows none to follow";
            return Err(RequestError::Grammar(text.into()));
        }
        self.mask_holds = true;
        Ok(())
    }

    /// The tokens that may come next, after [`Job::look_ahead`]; any where it has no grammar.
    pub fn mask(&self) -> Option<&[u32]> {
        self.mask_holds.then_some(&self.mask)
    }

    /// Tokens that it may still write.
    pub fn left(&self) -> usize {
        (self.request.max_tokens.get() as usize).saturating_sub(self.written.len())
    }

    pub fn usage(&self) -> Usage {
        let (prompt_tokens, completion_tokens) =
            (self.request.prompt.len() as u32, self.written.len() as u32);
        Usage { prompt_tokens, cached_tokens: self.cached, completion_tokens }
    }

    pub fn sampling(&self) -> &Sampling {
        &self.request.sampling
    }
}

/// A job whose text is being read.
pub(crate) struct Reading<S> {
    pub job: Job,
    pub sequence: S,
    pub text: Vec<u32>,
    pub read: usize,
}

impl<S> Reading<S> {
    /// Tokens that are to be read.
    pub fn left(&self) -> usize {
        self.text.len() - self.read
    }

    /// Pages that these need beyond those that the sequence has.
    pub fn pages_left(&self, page: u32) -> u32 {
        (self.text.len() as u32).div_ceil(page) - (self.read as u32).div_ceil(page)
    }

    /// Whether another text begins with pages that this one has still to read, and will then share.
    pub fn will_share(&self, text: &[u32], page: usize) -> bool {
        let common = self.text.iter().zip(text).take_while(|(own, other)| own == other).count();
        // The last token of a text is read in any case.
        common.min(text.len() - 1) / page * page > self.read
    }
}

/// A job whose answer is being written: it has a token that its sequence does not hold yet.
pub(crate) struct Writing<S> {
    pub job: Job,
    pub sequence: S,
}

impl<S> Writing<S> {
    /// Its next decode row.
    pub fn next(&mut self) -> DecodeRow<'_, S> {
        let Self { job, sequence } = self;
        let token = job.written.last().copied().unwrap_or_default();
        DecodeRow {
            sequence,
            token,
            sampling: &job.request.sampling,
            mask: job.mask(),
            stop_token_ids: &job.request.stop_token_ids,
        }
    }
}
