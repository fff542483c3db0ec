//! The prefix cache on disk, between steps.

use std::time::Duration;

use super::Runner;
use crate::{Fingerprint, PrefixDisk, Result, WriteBehind};

impl Runner {
    /// Stores KV pages of texts on disk when they end, and reads them back for later prompts with the same prefix. No effect
    /// without a prefix cache.
    pub fn with_prefix_disk(mut self, disk: PrefixDisk, fingerprint: Fingerprint) -> Self {
        self.cache.attach_disk(disk, fingerprint);
        self
    }

    /// Reads stored pages of the prefix of these tokens, for [`Runner::start_with`]; see
    /// [`KvCache::restore`](crate::KvCache::restore).
    pub fn restore(&mut self, tokens: &[u32], budget: Duration, wait: bool) -> Result<bool> {
        self.cache.restore(tokens, budget, wait)
    }

    /// Gives up what [`Runner::restore`] would continue.
    pub fn forget_restore(&mut self) {
        self.cache.forget_restore();
    }

    /// Copies the next page of a finished sequence that is not on disk yet; another thread writes it.
    pub fn write_behind(&mut self) -> Result<WriteBehind> {
        self.cache.write_behind()
    }
}
