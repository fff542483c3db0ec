//! Which pages are stored, in the order of their eviction.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use super::key::PageId;

/// Time of use in nanoseconds since 1970, and of pages used together the deepest first.
type EvictionKey = (u64, Reverse<u32>, PageId);

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: u64,
}

/// The stored pages.
#[derive(Debug)]
pub(super) struct Index {
    entries: HashMap<PageId, Entry>,
    order: BTreeSet<EvictionKey>,
    bytes: u64,
    pub max_bytes: u64,
}

fn key(id: PageId, used: u64) -> EvictionKey {
    (used, Reverse(id.depth), id)
}

impl Index {
    pub fn new(max_bytes: u64) -> Self {
        Self { entries: HashMap::new(), order: BTreeSet::new(), bytes: 0, max_bytes }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn contains(&self, id: &PageId) -> bool {
        self.entries.contains_key(id)
    }

    pub fn ids(&self) -> impl Iterator<Item = PageId> {
        self.entries.keys().copied()
    }

    pub fn insert(&mut self, id: PageId, bytes: u64, used: u64) {
        self.remove(&id);
        self.entries.insert(id, Entry { bytes, used });
        self.order.insert(key(id, used));
        self.bytes += bytes;
    }

    /// Returns whether it was stored.
    pub fn remove(&mut self, id: &PageId) -> bool {
        let Some(Entry { bytes, used }) = self.entries.remove(id) else { return false };
        self.order.remove(&key(*id, used));
        self.bytes -= bytes;
        true
    }

    /// Sets the time of use of a stored page.
    pub fn touch(&mut self, id: &PageId, used: u64) {
        if let Some(entry) = self.entries.get_mut(id) {
            self.order.remove(&key(*id, entry.used));
            entry.used = used;
            self.order.insert(key(*id, used));
        }
    }

    /// The page to evict before a file of `bytes` used at `used` fits: `Ok(None)` if it fits now, an error if it
    /// never does without evicting a page that was used no earlier.
    pub fn next_victim(&self, bytes: u64, used: u64) -> Result<Option<PageId>, Full> {
        if self.bytes + bytes <= self.max_bytes {
            return Ok(None);
        }
        let victim = self.order.first().filter(|(last_used, ..)| *last_used < used);
        victim.filter(|_| bytes <= self.max_bytes).map(|key| Some(key.2)).ok_or(Full)
    }

    /// The latest time of use.
    pub fn last_used(&self) -> u64 {
        self.order.last().map_or(0, |key| key.0)
    }

    /// The first page in the order of eviction.
    pub fn first(&self) -> Option<PageId> {
        self.order.first().map(|key| key.2)
    }
}

/// The folder is full of pages that were used no earlier.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;
