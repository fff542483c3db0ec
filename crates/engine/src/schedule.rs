//! The scheduler: the loop of the engine thread.
//!
//! Each round receives new requests, removes cancelled and expired ones, admits from the queue, and runs one
//! step. [`steps`] assembles and runs the batch, [`draft`] looks for drafts and [`verify`] runs steps that verify them,
//! [`score`] reports log probabilities of prompts, [`preemption`] frees pages by recomputation, and [`recovery`] handles errors of the backend, a lost device
//! among them. [`disk`] stores pages of finished sequences and reads them back.

mod disk;
mod draft;
mod preemption;
mod recovery;
mod score;
mod steps;
mod verify;

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::{
    Backend, BackendError, Capacity, Event, EventSender, Options, Pages, PowerMeter, RequestError,
    RequestState, RequestStatus, Status, WriteBehind,
    energy::Joules,
    inbox::Shared,
    job::{Decoding, Job, Outcome, Prefilling},
    recent::Sample,
    speculate::{Acceptance, Trials},
};
use recovery::request_error;

/// Interval between attempts to recover a lost device while the engine is idle.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(2);

/// Owns the backend and all requests.
///
/// FCFS: requests are admitted in order of submission, and the youngest is preempted first. All lists are in order of
/// submission, oldest first. Decoding requests are older than prefilling ones, except where scoring a prompt or encoding
/// an image took its time.
pub(crate) struct Scheduler<B: Backend> {
    backend: B,
    shared: Arc<Shared>,
    /// Waiting requests.
    queue: VecDeque<Job>,
    /// Pending calls of [`Engine::probe`](crate::Engine::probe).
    probes: Vec<oneshot::Sender<()>>,
    prefilling: Vec<Prefilling<B::Sequence>>,
    /// Prefilling requests that report log probabilities of their prompts, with steps of their own.
    scoring: Vec<Prefilling<B::Sequence>>,
    decoding: Vec<Decoding<B>>,
    /// Last events of requests that have ended. They are sent after the status that counts them is published.
    last_events: Vec<(EventSender, Event)>,
    status: Status,
    power: Option<PowerMeter>,
    /// Energy of this round's steps.
    joules: Joules,
    /// What happened since the status was published.
    samples: Vec<Sample>,
    /// Set by a preemption for lack of pages or memory: nothing is admitted until a running request ends, or
    /// the preempted request would be admitted and preempted again.
    admission_paused: bool,
    /// Decode runs so far.
    decode_runs: u64,
    /// Index in `decoding` of the next request to skip a run, when the batch leaves some out.
    next_to_skip: usize,
    /// Acceptance rates of the drafts of all requests.
    acceptance: Acceptance,
    trials: Trials,
    /// The same for the draft model.
    model_trials: Trials,
    /// The device is lost and not recovered yet.
    device_lost: bool,
    /// Device losses and failed recoveries since the last generated token.
    losses: u32,
    /// Pages of finished sequences that are to be stored on disk.
    unwritten: WriteBehind,
}

impl<B: Backend> Scheduler<B> {
    pub fn new(backend: B, shared: Arc<Shared>, power: Option<PowerMeter>) -> Self {
        let mut scheduler = Self {
            backend,
            shared,
            queue: VecDeque::new(),
            probes: vec![],
            prefilling: vec![],
            scoring: vec![],
            decoding: vec![],
            last_events: vec![],
            status: Status::default(),
            power,
            joules: Joules::default(),
            samples: vec![],
            admission_paused: false,
            decode_runs: 0,
            next_to_skip: 0,
            acceptance: Acceptance::default(),
            trials: Trials::default(),
            model_trials: Trials::default(),
            device_lost: false,
            losses: 0,
            unwritten: WriteBehind::Done,
        };
        scheduler.publish();
        scheduler
    }

    /// Runs until the engine is closed.
    pub fn run(mut self) {
        while self.receive() {
            self.round();
        }
        for job in self.remove_all() {
            self.finish(job, Outcome::Failed(RequestError::Stopped));
        }
        self.publish();
        self.write_rest();
    }

    /// Moves arrived requests into the queue; blocks while there is nothing to do. Returns whether to
    /// continue.
    pub fn receive(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut inbox = shared.inbox();
        loop {
            self.queue.extend(inbox.arrived.drain(..));
            self.probes.append(&mut inbox.probes);
            // They left `arrived`; keep them counted as waiting until the round publishes its status.
            inbox.status.waiting = self.queue.len();
            match inbox.closing {
                Some(deadline) => return !self.is_idle() && Instant::now() < deadline,
                None if self.is_idle() && self.probes.is_empty() && self.device_lost => {
                    // A server that is not ready gets no requests: recover without waiting for one.
                    drop(shared.wait_timeout(inbox, RECOVERY_INTERVAL));
                    return true;
                }
                None if self.is_idle() && self.probes.is_empty() => match self.unwritten {
                    WriteBehind::Done => inbox = shared.wait(inbox),
                    WriteBehind::More => return true,
                    WriteBehind::Waiting => {
                        drop(shared.wait_timeout(inbox, disk::WRITE_INTERVAL));
                        return true;
                    }
                },
                None => return true,
            }
        }
    }

    /// Whether no request is waiting or running.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running() == 0
    }

    /// One iteration: remove abandoned requests, recover a lost device, answer probes, admit, step, publish.
    pub fn round(&mut self) {
        let generated = self.status.generation_tokens;
        self.joules = Joules::default();
        self.remove_abandoned();
        if self.device_lost {
            self.recover_device();
        }
        self.answer_probes();
        if !self.device_lost {
            self.admit();
            self.update_masks();
            self.step();
        }
        if !self.device_lost {
            self.score_step();
        }
        if !self.device_lost {
            self.write_behind();
        }
        self.status.energy.record(self.joules, self.status.generation_tokens - generated);
        self.publish();
    }

    /// Probes the device for the callers of [`Engine::probe`](crate::Engine::probe). If it does not respond
    /// their channels are closed.
    fn answer_probes(&mut self) {
        let probes = mem::take(&mut self.probes);
        if probes.is_empty() || self.device_lost {
            return;
        }
        match self.backend.probe() {
            Ok(()) => {
                // A caller that reads the status after its probe must see the state that the probe found.
                self.publish();
                probes.into_iter().for_each(|probe| {
                    // The caller may have gone.
                    let _ = probe.send(());
                });
            }
            Err(BackendError::DeviceLost(reason)) => self.on_device_lost(&reason),
            Err(error) => tracing::warn!(%error, "the device did not respond to a probe"),
        }
    }

    /// The energy of a step that began at `start` and has just ended.
    fn step_energy(&mut self, start: Instant) -> Joules {
        let joules = Joules::of_step(self.power.as_ref(), start.elapsed());
        self.joules.add(joules);
        joules
    }

    /// Number of requests that hold a sequence.
    fn running(&self) -> usize {
        self.prefilling.len() + self.scoring.len() + self.decoding.len()
    }

    /// Ends requests that were cancelled or are past their deadline. Their pages are free before the next
    /// step.
    fn remove_abandoned(&mut self) {
        let now = Instant::now();
        for job in mem::take(&mut self.queue) {
            match job.abandoned(now) {
                Some(outcome) => self.finish(job, outcome),
                None => self.queue.push_back(job),
            }
        }
        for prefilling in mem::take(&mut self.prefilling) {
            let outcome = prefilling.job.abandoned(now);
            self.keep_prefilling(prefilling, outcome);
        }
        for scoring in mem::take(&mut self.scoring) {
            match scoring.job.abandoned(now) {
                None => self.scoring.push(scoring),
                outcome => self.keep_prefilling(scoring, outcome),
            }
        }
        for decoding in mem::take(&mut self.decoding) {
            let outcome = decoding.job.abandoned(now);
            self.keep_decoding(decoding, outcome);
        }
    }

    /// Admits requests from the front of the queue: one, and as many more as the next step has prefill tokens
    /// for.
    fn admit(&mut self) {
        while !self.queue.is_empty() && self.has_prefill_room() && self.admit_next() {}
        if self.queue.is_empty() {
            // Of a request that was cancelled.
            self.backend.forget_restore();
        }
    }

    /// Whether the next step could prefill for one more request.
    fn has_prefill_room(&self) -> bool {
        let remaining: usize = self.prefilling.iter().map(Prefilling::remaining).sum();
        let Capacity { max_sequences, max_chunks_per_step, .. } = self.shared.capacity;
        self.running() < max_sequences as usize
            && (self.prefilling.is_empty()
                || self.prefilling.len() < max_chunks_per_step as usize
                    && remaining < self.mixed_prefill_tokens())
    }

    /// Maximum prefill tokens of the next step when it serves several prompts. The first of them waits for
    /// all others, so the mixed budget applies even if nothing decodes.
    fn mixed_prefill_tokens(&self) -> usize {
        self.max_prefill_tokens(self.decoding.len(), self.mixed_budget())
    }

    /// Time budget of a step for several requests.
    fn mixed_budget(&self) -> Duration {
        let Options { mixed_step_budget, burst_step_budget, .. } = self.shared.options;
        let prefilling = self.prefilling.iter().map(|prefilling| &prefilling.job);
        let without_token =
            prefilling.chain(self.admissible()).filter(|job| job.generated.is_empty()).count();
        match is_burst(without_token, self.decoding.len()) {
            true => burst_step_budget.max(mixed_step_budget),
            false => mixed_step_budget,
        }
    }

    /// The waiting requests for which there are sequences and pages now, not counting pages that they could share.
    fn admissible(&self) -> impl Iterator<Item = &Job> {
        let Capacity { max_sequences, page_size, .. } = self.shared.capacity;
        let sequences = match self.admission_paused {
            true => 0,
            false => (max_sequences as usize).saturating_sub(self.running()),
        };
        let mut pages = self.backend.free_pages().saturating_sub(self.reserved_pages());
        self.queue.iter().take(sequences).take_while(move |job| {
            // Its prompt, and one for the tokens decoded next.
            let needed = (job.sequence_len() as u32).div_ceil(page_size) + 1;
            let fits = needed <= pages;
            pages = pages.saturating_sub(needed);
            fits
        })
    }

    /// Pages that running requests will need soon: the rest of the prefills, and one per request for the tokens decoded
    /// next, or a request admitted now might be preempted at once. A request alone always fits.
    fn reserved_pages(&self) -> u32 {
        let page_size = self.shared.capacity.page_size;
        let decode_pages = if self.running() == 0 { 0 } else { self.running() as u32 + 1 };
        let prefilling = self.prefilling.iter().chain(&self.scoring);
        decode_pages + prefilling.map(|prefilling| prefilling.remaining_pages(page_size)).sum::<u32>()
    }

    /// Maximum prefill tokens of a step with this many decode rows that takes no longer than `budget`.
    fn max_prefill_tokens(&self, decode_rows: usize, budget: Duration) -> usize {
        let decoding = self.decoding[..decode_rows].iter().map(|decoding| decoding.job.sequence_len());
        let prefilling = self.prefilling.iter().map(|prefilling| prefilling.prefilled);
        let depth = prefilling.chain(decoding).max().unwrap_or(0);
        self.backend.max_prefill_tokens(decode_rows, depth as u32, budget).max(1)
    }

    /// Admits the first waiting request if there are a sequence and enough pages for it. Returns whether it
    /// was admitted.
    fn admit_next(&mut self) -> bool {
        let alone = self.running() == 0;
        if self.admission_paused && !alone {
            return false;
        }
        let Some(job) = self.queue.front() else { return false };
        let tokens = job.prefill_tokens();
        let Capacity { page_size, prefix_cache, .. } = self.shared.capacity;
        let scores = job.to_score().is_some();
        // A prefix that is being prefilled now can be shared a step later instead of being computed twice. A prompt to
        // score shares nothing.
        let shares = prefix_cache && !scores;
        if shares
            && self.prefilling.iter().any(|prefilling| prefilling.will_share(&tokens, page_size as usize))
        {
            return false;
        }
        let needed = (job.sequence_len() as u32).div_ceil(page_size) + self.reserved_pages();
        let free = self.backend.free_pages();
        if needed > free && (!shares || needed > free + self.backend.shared_pages(&tokens)) {
            return false;
        }
        if shares && !self.restore(&tokens, alone) {
            return false;
        }
        self.admission_paused = false;
        let Some(mut job) = self.queue.pop_front() else { return false };
        let started = match scores {
            true => self.backend.start_empty().map(|sequence| (sequence, 0)),
            false => self.backend.start(&tokens),
        };
        match started {
            Ok((sequence, cached)) => {
                self.status.cached_tokens += cached as u64;
                self.status.sequences_started += 1;
                self.status.prefix_cache_hits += u64::from(cached > 0);
                tracing::debug!(
                    parent: &job.request.span,
                    request = job.id,
                    prefill_tokens = tokens.len() - cached,
                    cached_tokens = cached,
                    waited_ms = job.submitted_at.elapsed().as_millis() as u64,
                    "admitted"
                );
                if !mem::replace(&mut job.started, true) {
                    job.cached_tokens = cached as u32;
                    // A dropped stream is noticed in the next round.
                    let _ = job.events.send(Event::Started { cached_tokens: job.cached_tokens });
                }
                let list = if scores { &mut self.scoring } else { &mut self.prefilling };
                insert_in_order(list, Prefilling { job, sequence, tokens, prefilled: cached });
                return true;
            }
            Err(error) if error.is_resource_exhausted() && !alone => {
                self.queue.push_front(job);
                self.admission_paused = true;
            }
            Err(BackendError::DeviceLost(reason)) => {
                self.queue.push_front(job);
                self.on_device_lost(&reason);
            }
            Err(error) => self.finish(job, Outcome::Failed(request_error(error))),
        }
        false
    }

    /// Computes the token masks of requests with a grammar. A request whose grammar fails is ended.
    fn update_masks(&mut self) {
        let vocab_size = self.shared.capacity.vocab_size;
        for mut decoding in mem::take(&mut self.decoding) {
            let error = decoding.job.update_mask(vocab_size).err();
            self.keep_decoding(decoding, error.map(Outcome::Failed));
        }
        for mut prefilling in mem::take(&mut self.prefilling) {
            let error = prefilling.job.update_mask(vocab_size).err();
            self.keep_prefilling(prefilling, error.map(Outcome::Failed));
        }
    }

    /// Returns a request to `decoding`, or ends it and frees its pages.
    fn keep_decoding(&mut self, decoding: Decoding<B>, outcome: Option<Outcome>) {
        match outcome {
            None => insert_in_order(&mut self.decoding, decoding),
            Some(outcome) => {
                self.finish(decoding.job, outcome);
                self.admission_paused = false;
            }
        }
    }

    /// Returns a request to `prefilling`, or ends it and frees its pages.
    fn keep_prefilling(&mut self, prefilling: Prefilling<B::Sequence>, outcome: Option<Outcome>) {
        match outcome {
            None => insert_in_order(&mut self.prefilling, prefilling),
            Some(outcome) => {
                self.finish(prefilling.job, outcome);
                self.admission_paused = false;
            }
        }
    }

    /// Counts and logs the outcome of a request, and queues its last event.
    fn finish(&mut self, job: Job, outcome: Outcome) {
        let (span, request, latency) = (&job.request.span, job.id, job.submitted_at.elapsed());
        let (completion_tokens, total_ms) = (job.generated.len(), latency.as_millis() as u64);
        match outcome {
            Outcome::Cancelled => {
                tracing::debug!(parent: span, request, completion_tokens, total_ms, "cancelled");
                self.status.cancelled += 1;
            }
            Outcome::Finished(reason) => {
                tracing::debug!(parent: span, request, completion_tokens, total_ms, ?reason, "finished");
                self.status.finished += 1;
                self.status.request_latency.record(latency, 1);
                self.samples.push(Sample::RequestLatency(latency));
                let usage = job.usage();
                self.last_events.push((job.events, Event::Finished { reason, usage }));
            }
            Outcome::Failed(error) => {
                tracing::debug!(parent: span, request, completion_tokens, total_ms, %error, "failed");
                self.status.failed += 1;
                self.last_events.push((job.events, Event::Failed(error)));
            }
        }
    }

    /// The oldest requests.
    fn request_statuses(&self) -> Vec<RequestStatus> {
        let decoding = self
            .decoding
            .iter()
            .map(|Decoding { job, .. }| job.status(RequestState::Decoding, job.sequence_len()));
        let prefilling = self.prefilling.iter().chain(&self.scoring);
        let prefilling = prefilling
            .map(|prefilling| prefilling.job.status(RequestState::Prefilling, prefilling.prefilled));
        let waiting = self.queue.iter().map(|job| job.status(RequestState::Waiting, 0));
        decoding.chain(prefilling).chain(waiting).take(Status::MAX_REQUESTS).collect()
    }

    /// Publishes the status to the handles, then sends the last events of requests that have ended.
    fn publish(&mut self) {
        self.status.waiting = self.queue.len();
        self.status.prefilling = self.prefilling.len() + self.scoring.len();
        self.status.decoding = self.decoding.len();
        self.status.device_lost = self.device_lost;
        self.status.pages = Pages {
            free: self.backend.free_pages(),
            cached: self.backend.cached_pages(),
            total: self.shared.capacity.pages,
        };
        self.status.requests = self.request_statuses();
        let now = Instant::now();
        // Cloned and dropped outside of the lock, which submissions wait for.
        let status = self.status.clone();
        let mut inbox = self.shared.inbox();
        let previous = mem::replace(&mut inbox.status, status);
        self.samples.drain(..).for_each(|sample| inbox.history.record(now, sample));
        drop(inbox);
        drop(previous);
        for (events, event) in self.last_events.drain(..) {
            // The stream may have been dropped.
            let _ = events.send(event);
        }
    }
}

/// Whether the time to first token matters more than the inter-token latency: at least eight requests that can be prefilled
/// have no token yet, and at least one for every eight that decode. The first requests of a burst decode while the others
/// are prefilled, so that a ratio of one to one would end it halfway.
fn is_burst(without_token: usize, decoding: usize) -> bool {
    without_token >= 8 && 8 * without_token >= decoding
}

/// Inserts a request into a list in order of submission. Requests that were scored or preempted may come after
/// younger ones.
fn insert_in_order<T: AsRef<Job>>(list: &mut Vec<T>, request: T) {
    let older = list.partition_point(|other| other.as_ref().id < request.as_ref().id);
    list.insert(older, request);
}

#[cfg(test)]
mod tests;
