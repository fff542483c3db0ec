//! Recovery from errors of the backend: steps with one request each to find the one at fault, penalty counts
//! after a failed step, and reopening a lost device.

use std::{collections::VecDeque, mem};

use super::Scheduler;
use crate::{
    Backend, BackendError, RequestError,
    job::{Decoding, Outcome, Prefilling},
};

/// Device losses without a generated token in between, failed recoveries included, after which all requests
/// fail.
const MAX_LOSSES: u32 = 3;

impl<B: Backend> Scheduler<B> {
    /// Runs a step for each request on its own, after a step of the full batch has failed. A request that
    /// fails again is ended.
    pub(super) fn step_individually(&mut self) {
        let mut rest: VecDeque<_> = mem::take(&mut self.decoding).into();
        while let Some(mut decoding) = rest.pop_front() {
            // The failed step may have counted a token for the penalties.
            let stepped = self
                .reset_decode_counts(&mut decoding)
                .and_then(|()| self.backend.decode(&mut [decoding.row()], 1));
            match stepped {
                Ok(steps) => {
                    self.record_steps(1, 1);
                    self.deliver(decoding, steps.concat());
                }
                // Preemption is up to the next round.
                Err(error) if error.is_resource_exhausted() => self.keep_decoding(decoding, None),
                Err(BackendError::DeviceLost(reason)) => {
                    self.decoding.push(decoding);
                    self.decoding.extend(rest);
                    return self.on_device_lost(&reason);
                }
                Err(error) => self.keep_decoding(decoding, Some(Outcome::Failed(request_error(error)))),
            }
        }
        // Prefills in order, up to the first one that does not complete in its step: it is the oldest in the
        // next round.
        self.reset_prefill_counts();
        while !self.prefilling.is_empty() {
            let before = self.prefilling.len();
            match self.mixed_step(0, 1) {
                Ok(()) if self.prefilling.len() < before => {}
                Ok(()) => return,
                Err(BackendError::DeviceLost(reason)) => return self.on_device_lost(&reason),
                Err(error) if error.is_resource_exhausted() => return self.preempt_youngest(error),
                Err(error) => {
                    let Prefilling { job, .. } = self.prefilling.remove(0);
                    self.finish(job, Outcome::Failed(request_error(error)));
                    self.admission_paused = false;
                }
            }
        }
    }

    /// Ends the youngest running request with this error.
    pub(super) fn fail_youngest(&mut self, error: BackendError) {
        let outcome = Outcome::Failed(request_error(error));
        if let Some(job) = self.pop_youngest() {
            self.finish(job, outcome);
        }
    }

    /// Resets the token counts that penalties use to the request's prompt and generated tokens.
    pub(super) fn reset_decode_counts(&mut self, decoding: &mut Decoding<B>) -> Result<(), BackendError> {
        let Decoding { job, sequence, .. } = decoding;
        match job.sampling().has_penalties() {
            true => self.backend.reset_token_counts(sequence, &job.request.prompt, &job.generated),
            false => Ok(()),
        }
    }

    /// The same for all prefilling requests: a failed step may have counted a first token, which is sampled
    /// again.
    fn reset_prefill_counts(&mut self) {
        let mut rest: VecDeque<_> = mem::take(&mut self.prefilling).into();
        while let Some(mut prefilling) = rest.pop_front() {
            let mut reset = self.reset_counts_of_prefill(&mut prefilling);
            if let Err(error) = &reset
                && error.is_resource_exhausted()
                && self.preempt_prefilling(rest.drain(..).collect(), error)
            {
                // Preempting the younger ones may have freed enough memory.
                reset = self.reset_counts_of_prefill(&mut prefilling);
            }
            match reset {
                Ok(()) => self.prefilling.push(prefilling),
                Err(BackendError::DeviceLost(reason)) => {
                    self.prefilling.push(prefilling);
                    self.prefilling.extend(rest);
                    return self.on_device_lost(&reason);
                }
                // A new sequence starts with no counts. It is admitted when another request has ended.
                Err(error) if error.is_resource_exhausted() && self.running() > 0 => {
                    self.preempt_prefilling(vec![prefilling], &error);
                }
                Err(error) => self.keep_prefilling(prefilling, Some(Outcome::Failed(request_error(error)))),
            }
        }
    }

    pub(super) fn reset_counts_of_prefill(
        &mut self,
        prefilling: &mut Prefilling<B::Sequence>,
    ) -> Result<(), BackendError> {
        let Prefilling { job, sequence, tokens, prefilled } = prefilling;
        match job.sampling().has_penalties() && job.generated.is_empty() {
            true => self.backend.reset_token_counts(sequence, &tokens[..*prefilled], &[]),
            false => Ok(()),
        }
    }

    /// Handles a lost device: all sequences are gone, and their requests are preempted.
    pub(super) fn on_device_lost(&mut self, reason: &str) {
        tracing::warn!(running = self.running(), waiting = self.queue.len(), reason, "device lost");
        self.device_lost = true;
        self.losses += 1;
        self.status.devices_lost += 1;
        self.preempt_all(reason);
    }

    /// Reopens a lost device, or fails all requests after [`MAX_LOSSES`] attempts.
    pub(super) fn recover_device(&mut self) {
        if self.losses >= MAX_LOSSES {
            tracing::error!(
                "the device was lost {MAX_LOSSES} times without generating a token: all requests fail"
            );
            for job in self.remove_all() {
                self.finish(job, Outcome::Failed(RequestError::DeviceLost));
            }
            // The next request, or the next idle attempt, starts a new count.
            self.losses = 0;
            return;
        }
        match self.backend.recover() {
            Ok(()) => {
                tracing::info!("device recovered");
                self.device_lost = false;
                self.admission_paused = false;
            }
            Err(error) => {
                tracing::warn!(%error, "device recovery failed");
                self.losses += 1;
            }
        }
    }
}

/// The error of a request that fails because of this backend error.
pub(super) fn request_error(error: BackendError) -> RequestError {
    match error {
        BackendError::NoFreePages | BackendError::OutOfMemory(_) => RequestError::OutOfMemory,
        BackendError::DeviceLost(_) => RequestError::DeviceLost,
        BackendError::NonFiniteLogits => RequestError::NonFiniteLogits,
        BackendError::Other(text) => RequestError::Internal(text),
    }
}
