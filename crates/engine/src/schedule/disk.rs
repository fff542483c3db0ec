//! The prefix cache on disk: pages of finished sequences are stored between steps, and read back before their prefix
//! is prefilled.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::Scheduler;
use crate::{Backend, BackendError, WriteBehind};

/// Interval between attempts to copy further pages while earlier ones are being written and nothing else is to do.
pub(super) const WRITE_INTERVAL: Duration = Duration::from_millis(2);

/// A restore takes this fraction of a mixed step's time per round, so that running requests hardly notice: 1/4.
const RESTORE_SHARE: u32 = 4;

impl<B: Backend> Scheduler<B> {
    /// Reads stored pages of a prompt that is about to be admitted; for longer if no other request runs (`is_idle`).
    /// Returns whether it can be admitted now.
    pub(super) fn restore(&mut self, tokens: &[u32], is_idle: bool) -> bool {
        let options = &self.shared.options;
        let budget =
            if is_idle { options.prefill_step_budget } else { options.mixed_step_budget / RESTORE_SHARE };
        match self.backend.restore(tokens, budget, is_idle) {
            Ok(done) => done,
            Err(BackendError::DeviceLost(reason)) => {
                self.on_device_lost(&reason);
                false
            }
            Err(error) => {
                tracing::warn!("KV pages cannot be restored, so the prompt is prefilled: {error}");
                true
            }
        }
    }

    /// Copies the next page to be stored.
    pub(super) fn write_behind(&mut self) {
        self.unwritten = match self.backend.write_behind() {
            Ok(unwritten) => unwritten,
            Err(BackendError::DeviceLost(reason)) => {
                self.on_device_lost(&reason);
                WriteBehind::Done
            }
            Err(error) => {
                tracing::warn!("KV pages cannot be stored and are skipped: {error}");
                WriteBehind::Done
            }
        };
    }

    /// Copies the pages that are left when the engine ends: the sequences that finished last are the most likely to go on
    /// after a restart.
    pub(super) fn write_rest(&mut self) {
        let deadline = Instant::now() + self.shared.options.store_timeout;
        while !self.device_lost && Instant::now() < deadline {
            self.write_behind();
            match self.unwritten {
                WriteBehind::Done => return,
                WriteBehind::More => {}
                WriteBehind::Waiting => thread::sleep(WRITE_INTERVAL),
            }
        }
    }
}
