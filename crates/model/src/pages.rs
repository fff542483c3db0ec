//! KV page accounting: which pages a sequence holds, which it shares, and which the prefix cache keeps. Runs
//! on the CPU alone.
//!
//! A page's number is valid in all layers of its [`PageKind`]. A sequence holds pages of full-attention
//! layers for all of its tokens, and pages of sliding-window layers only for tokens that the window of a
//! coming position can still reach. Pages that the window has left are released before new ones are
//! allocated; dropping a [`Sequence`] releases all of its pages.
//!
//! Full pages are indexed in a prefix tree, by their tokens and all tokens before them. A new sequence
//! shares the pages that its prompt starts with. Of a page that its prompt has in common only up to some
//! token it gets a copy, to continue in. `events` tells other programs what the tree holds. docs/engine.md
//! describes what the prefix cache keeps and the order of eviction.

mod events;
mod prefix_tree;
mod store;
mod stored;

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub use events::{EventSource, PageEvent, PageEventQueue, PageLayout, TakenEvents};
use prefix_tree::NodeId;
use store::PageStore;
pub use stored::FinishedSequence;
pub(crate) use stored::text_before_images;

/// The layers that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageKind {
    /// Layers with full attention.
    Full = 0,
    /// Layers with sliding-window attention.
    Sliding = 1,
}

impl PageKind {
    /// Both kinds, in the order of per-kind arrays.
    pub const ALL: [PageKind; 2] = [PageKind::Full, PageKind::Sliding];
}

/// The capacity of a [`PageAllocator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageConfig {
    /// Maximum number of concurrent sequences.
    pub max_sequences: u32,
    /// Tokens per page.
    pub page_size: u32,
    /// Sliding window in tokens, including the current one.
    pub window: u32,
    /// Pages of full-attention layers, for all sequences together.
    pub full_pages: u32,
    /// Pages of sliding-window layers per sequence; see [`sliding_pages`].
    pub sliding_pages: u32,
    /// Whether full pages are kept for later prompts that start with the same tokens.
    pub prefix_cache: bool,
}

impl PageConfig {
    /// Index of the first page that a position attends to in sliding-window layers.
    fn first_visible(&self, position: u32) -> u32 {
        (position + 1).saturating_sub(self.window) / self.page_size
    }

    /// Indices of the pages that the first position after `pages` full pages attends to in sliding-window
    /// layers.
    pub(crate) fn window_before(&self, pages: u32) -> Range<u32> {
        self.first_visible(pages * self.page_size)..pages
    }
}

/// Pages per sequence of `context_length` tokens in sliding-window layers: a window and the `rows` of the
/// largest step, neither aligned to pages.
pub fn sliding_pages(context_length: u32, page_size: u32, window: u32, rows: u32) -> u32 {
    let pages = (u64::from(window) + u64::from(rows)).div_ceil(u64::from(page_size)) + 1;
    context_length.div_ceil(page_size).min(u32::try_from(pages).unwrap_or(u32::MAX))
}

/// Minimum tokens of a page that are worth a copy: up to as many take no longer to compute than one.
pub fn min_copied(page_size: usize) -> usize {
    (page_size / 8).max(1)
}

/// A page whose contents a new sequence continues, and the page that it writes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The layers that both pages belong to.
    pub kind: PageKind,
    /// The page to copy from.
    pub from: u32,
    /// The page to copy to.
    pub to: u32,
}

/// The pages of one kind that a sequence holds.
#[derive(Debug, Default)]
struct HeldPages {
    /// Index (position / page size) of the first one.
    first: u32,
    pages: Vec<u32>,
}

/// The node of a sequence's last full page in the prefix tree.
#[derive(Clone, Copy, Debug)]
struct TreePosition {
    node: NodeId,
    epoch: u64,
}

/// A sequence's tokens in the KV cache: its slot, its pages and its length.
#[derive(Debug)]
pub struct Sequence {
    slot: u32,
    len: u32,
    /// By kind.
    pages: [HeldPages; 2],
    /// The tokens in the cache, as long as the sequence has a tree position.
    tokens: Vec<u32>,
    /// Tokens that the prefix cache supplied.
    cached: u32,
    /// `None` where the prefix cache keeps nothing of the sequence.
    tree_position: Option<TreePosition>,
    /// Tokens that it was started for.
    prompt_len: u32,
    /// The node of the partial page that its prompt ends in, which it goes on writing into.
    prompt_end: Option<TreePosition>,
    /// Page counts after which other prompts are likely to branch off: where this one left the known prefix,
    /// and its end.
    branch_points: [u32; 2],
    /// The page tables on the GPU are outdated from this page index on.
    first_stale_entry: u32,
    store: Arc<Mutex<PageStore>>,
    /// Whether the token counts of its slot are up to date.
    pub(crate) counted: bool,
}

impl Sequence {
    /// Tokens whose keys and values are in the cache.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the cache holds no token of it yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its index in per-sequence GPU tables.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The number of pages it holds in full-attention and in sliding-window layers.
    pub fn pages(&self) -> (usize, usize) {
        (self.pages[0].pages.len(), self.pages[1].pages.len())
    }

    /// The index (position / page size) of the first page it holds of a kind, and the pages.
    pub fn held(&self, kind: PageKind) -> (u32, &[u32]) {
        let held = &self.pages[kind as usize];
        (held.first, &held.pages)
    }

    /// The first tokens, whose keys and values came from the prefix cache.
    pub fn cached_prefix(&self) -> &[u32] {
        &self.tokens[..self.cached as usize]
    }

    /// The first page index whose entry in the page tables must be written before the next step.
    pub(crate) fn first_stale_entry(&self, page_size: u32) -> u32 {
        self.first_stale_entry.min(self.len / page_size)
    }

    /// Marks the page tables as up to date.
    pub(crate) fn tables_written(&mut self) {
        self.first_stale_entry = u32::MAX;
    }

    /// Counts `rows` more positions as computed, whatever the cache holds there. The prefix cache keeps
    /// nothing more of it.
    pub(crate) fn advance_blindly(&mut self, rows: u32) {
        self.tree_position = None;
        self.len += rows;
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let store = self.store.clone();
        locked(&store).finish(self);
    }
}

fn locked(store: &Mutex<PageStore>) -> MutexGuard<'_, PageStore> {
    // A panic under the lock is a bug in the accounting; later calls fail by their own checks.
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates KV pages and sequence slots, and keeps the prefix cache.
#[derive(Clone, Debug)]
pub struct PageAllocator {
    store: Arc<Mutex<PageStore>>,
}

impl PageAllocator {
    /// An allocator with all pages free.
    pub fn new(config: PageConfig) -> Self {
        Self { store: Arc::new(Mutex::new(PageStore::new(config))) }
    }

    /// Its capacity.
    pub fn config(&self) -> PageConfig {
        locked(&self.store).config
    }

    /// Starts an empty sequence that takes no part in the prefix cache; `None` if every slot is in use.
    pub fn start(&self) -> Option<Sequence> {
        let mut store = locked(&self.store);
        let slot = store.slots.pop()?;
        Some(Sequence {
            slot,
            len: 0,
            pages: Default::default(),
            tokens: vec![],
            cached: 0,
            tree_position: None,
            prompt_len: 0,
            prompt_end: None,
            branch_points: [0; 2],
            first_stale_entry: 0,
            store: self.store.clone(),
            counted: false,
        })
    }

    /// Starts a sequence for these tokens, with as many of them as the prefix cache holds: at most all but
    /// the last; `None` if every slot is in use. Later sequences share what this one computes. `copy` has to copy
    /// these pages; the sequence is given up if it fails.
    pub fn start_with<E>(
        &self,
        tokens: &[u32],
        copy: impl FnOnce(&[PageCopy]) -> Result<(), E>,
    ) -> Result<Option<Sequence>, E> {
        let Some(mut sequence) = self.start() else { return Ok(None) };
        let mut store = locked(&self.store);
        let copies = store.attach_prefix(&mut sequence, tokens);
        // Under the lock: nothing may release the pages to copy from.
        if !copies.is_empty()
            && let Err(error) = copy(&copies)
        {
            // Its copies hold nothing that the prefix cache may keep.
            sequence.tree_position = None;
            drop(store);
            return Err(error);
        }
        drop(store);
        Ok(Some(sequence))
    }

    /// Full-attention pages that a sequence for these tokens would share with running sequences.
    pub fn shared_pages(&self, tokens: &[u32]) -> u32 {
        locked(&self.store).shared_pages(tokens)
    }

    /// Whether a sequence was started by this allocator.
    pub fn owns(&self, sequence: &Sequence) -> bool {
        Arc::ptr_eq(&self.store, &sequence.store)
    }

    /// Allocates pages for `rows` more positions. Returns whether enough pages were free; if not, nothing has
    /// changed.
    pub fn extend(&self, sequence: &mut Sequence, rows: u32) -> bool {
        let mut store = locked(&self.store);
        let end = (sequence.len + rows).div_ceil(store.config.page_size);
        store.extend(sequence, end)
    }

    /// Appends tokens whose keys and values have been computed, after [`PageAllocator::extend`] allocated
    /// their pages.
    pub fn advance(&self, sequence: &mut Sequence, tokens: &[u32]) {
        sequence.len += tokens.len() as u32;
        if sequence.tree_position.is_some() {
            sequence.tokens.extend(tokens);
            locked(&self.store).publish(sequence);
        }
    }

    /// Shortens a sequence to `len` tokens, if the pages that the sliding window needs again are still held
    /// and no other sequence shares a page that would be written again. Returns whether it did; if not,
    /// nothing has changed.
    pub fn truncate(&self, sequence: &mut Sequence, len: u32) -> bool {
        if !self.owns(sequence) || len > sequence.len {
            return false;
        }
        let mut store = locked(&self.store);
        if len < sequence.len {
            store.forget_prompt_end(sequence);
        }
        if len < sequence.len && len > 0 {
            let held = store.config.first_visible(len) >= sequence.pages[1].first;
            if !held || (!len.is_multiple_of(store.config.page_size) && !store.is_exclusive(sequence, len)) {
                return false;
            }
        }
        store.truncate(sequence, len);
        sequence.tokens.truncate(len as usize);
        sequence.cached = sequence.cached.min(len);
        sequence.counted &= len == sequence.len;
        sequence.len = len;
        true
    }

    /// Empties the prefix cache. Running sequences continue; the cache keeps nothing more of them.
    pub fn clear_prefix_cache(&self) {
        locked(&self.store).clear_prefix_cache();
    }

    /// Pages that no sequence holds.
    pub fn free_pages(&self, kind: PageKind) -> usize {
        let store = locked(&self.store);
        store.unused(kind) + store.cached(kind)
    }

    /// Of those, the pages that the prefix cache keeps until they are evicted.
    pub fn cached_pages(&self, kind: PageKind) -> usize {
        locked(&self.store).cached(kind)
    }
}
