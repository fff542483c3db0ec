//! The books of the KV cache: which pages a sequence holds, which it shares, and what is kept of those that have ended. No GPU is
//! needed for any of it.
//!
//! A page's number holds for all layers of its kind. A sequence holds global pages for all of its positions, and sliding pages
//! only for those that the window of a coming position can still reach: what the window has left is let go of before new pages
//! are taken, and everything when a [`Sequence`] is dropped.
//!
//! Full pages are known by their tokens and all tokens before them, in a tree; a new sequence shares those that its text
//! begins with. docs/engine.md tells what is kept and what goes first.

mod store;
mod tree;

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use store::Store;
use tree::NodeId;

/// Which layers a page is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Those that see all positions.
    Global = 0,
    /// Those that see a window of them.
    Sliding = 1,
}

/// How many of everything there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sequences at a time.
    pub sequences: u32,
    /// Positions of a page.
    pub page: u32,
    /// Positions that a position sees in sliding layers, itself counted.
    pub window: u32,
    /// Pages of global layers, for all sequences.
    pub pages: u32,
    /// Pages of sliding layers, for each sequence; see [`sliding_pages`].
    pub sliding: u32,
    /// Whether full pages are kept for texts that begin with the same tokens.
    pub prefix: bool,
}

impl Shape {
    /// Number of the first page that a position sees in sliding layers.
    fn first_seen(&self, position: u32) -> u32 {
        (position + 1).saturating_sub(self.window) / self.page
    }

    /// Numbers of the full pages that a text sees in sliding layers which goes on after so many of them.
    fn window_of(&self, pages: u32) -> Range<u32> {
        self.first_seen(pages * self.page)..pages
    }
}

/// Pages of a sequence of `context` positions in sliding layers: a window, the most rows of a step behind it, and both ends cut at any
/// place.
pub fn sliding_pages(context: u32, page: u32, window: u32, rows: u32) -> u32 {
    let pages = (u64::from(window) + u64::from(rows)).div_ceil(u64::from(page)) + 1;
    context.div_ceil(page).min(u32::try_from(pages).unwrap_or(u32::MAX))
}

/// Pages of a kind that a sequence holds.
#[derive(Debug, Default)]
struct Held {
    /// Number (position / page) of the first of them.
    first: u32,
    pages: Vec<u32>,
}

/// Where the full pages of a sequence end in the tree.
#[derive(Clone, Copy, Debug)]
struct Place {
    node: NodeId,
    epoch: u64,
}

/// One sequence's share of the cache.
#[derive(Debug)]
pub struct Sequence {
    slot: u32,
    len: u32,
    /// By kind.
    pages: [Held; 2],
    /// What it holds, as long as it has a place.
    tokens: Vec<u32>,
    /// Positions that it began with.
    cached: u32,
    /// None where nothing of it is kept.
    place: Option<Place>,
    /// After so many pages its text may be taken up again by others: where it left what was known, and its end.
    marks: [u32; 2],
    /// Numbers of pages from here on are not what the page tables say.
    unwritten: u32,
    store: Arc<Mutex<Store>>,
    /// Whether its slot's token counts are those of its own tokens.
    pub(crate) counted: bool,
}

impl Sequence {
    /// Positions whose keys and values are in the cache.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is in the cache yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its number among the sequences under way.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Pages it holds in global and in sliding layers.
    pub fn pages(&self) -> (usize, usize) {
        (self.pages[0].pages.len(), self.pages[1].pages.len())
    }

    /// Pages of a kind that it holds, and the number (position / page) of the first.
    pub fn held(&self, kind: Kind) -> (u32, &[u32]) {
        let held = &self.pages[kind as usize];
        (held.first, &held.pages)
    }

    /// Tokens that it began with, whose keys and values were in the cache.
    pub fn cached(&self) -> &[u32] {
        &self.tokens[..self.cached as usize]
    }

    /// From which number on its next positions need the page tables to be written.
    pub(crate) fn unwritten(&self, page: u32) -> u32 {
        self.unwritten.min(self.len / page)
    }

    /// The page tables say what it holds.
    pub(crate) fn tables_written(&mut self) {
        self.unwritten = u32::MAX;
    }

    /// Notes that `rows` more positions count as written, whatever is there: nothing more of it is kept.
    pub(crate) fn advance_blindly(&mut self, rows: u32) {
        self.place = None;
        self.len += rows;
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let store = self.store.clone();
        locked(&store).end(self);
    }
}

fn locked(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    // Whoever panics with it has a bug in the books; the others are told by their own checks.
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All pages, and who holds them.
#[derive(Clone, Debug)]
pub struct Pages {
    store: Arc<Mutex<Store>>,
}

impl Pages {
    /// All of them free.
    pub fn new(shape: Shape) -> Self {
        Self { store: Arc::new(Mutex::new(Store::new(shape))) }
    }

    /// A new sequence, without positions, of which nothing is shared or kept; none if as many are under way as may be.
    pub fn start(&self) -> Option<Sequence> {
        let mut store = locked(&self.store);
        let slot = store.slots.pop()?;
        Some(Sequence {
            slot,
            len: 0,
            pages: Default::default(),
            tokens: vec![],
            cached: 0,
            place: None,
            marks: [0; 2],
            unwritten: 0,
            store: self.store.clone(),
            counted: false,
        })
    }

    /// A new sequence for these tokens, which holds as many of them as are known: at most all but the last. What it reads and writes is
    /// known then too.
    pub fn start_with(&self, tokens: &[u32]) -> Option<Sequence> {
        let mut sequence = self.start()?;
        locked(&self.store).begin(&mut sequence, tokens);
        Some(sequence)
    }

    /// Global pages that a sequence for these tokens would share with others under way.
    pub fn shared(&self, tokens: &[u32]) -> u32 {
        locked(&self.store).shared(tokens)
    }

    /// Whether a sequence was started here.
    pub fn has(&self, sequence: &Sequence) -> bool {
        Arc::ptr_eq(&self.store, &sequence.store)
    }

    /// Makes room for `rows` more positions, and says whether there is. If not, nothing has changed.
    pub fn extend(&self, sequence: &mut Sequence, rows: u32) -> bool {
        let mut store = locked(&self.store);
        let end = (sequence.len + rows).div_ceil(store.shape.page);
        store.extend(sequence, end)
    }

    /// Notes that these tokens were written, after room was made for them.
    pub fn advance(&self, sequence: &mut Sequence, tokens: &[u32]) {
        sequence.len += tokens.len() as u32;
        if sequence.place.is_some() {
            sequence.tokens.extend(tokens);
            locked(&self.store).publish(sequence);
        }
    }

    /// Forgets all positions from `len` on, where what a sliding window would need again is still there, and no other sequence shares a
    /// page that would have to be written again. Returns whether it did; if not, nothing has changed.
    pub fn truncate(&self, sequence: &mut Sequence, len: u32) -> bool {
        if !self.has(sequence) || len > sequence.len {
            return false;
        }
        let mut store = locked(&self.store);
        if len < sequence.len && len > 0 {
            let kept = store.shape.first_seen(len) >= sequence.pages[1].first;
            if !kept || (!len.is_multiple_of(store.shape.page) && !store.is_own(sequence, len)) {
                return false;
            }
        }
        store.cut(sequence, len);
        sequence.tokens.truncate(len as usize);
        sequence.cached = sequence.cached.min(len);
        sequence.counted &= len == sequence.len;
        sequence.len = len;
        true
    }

    /// Forgets all that is kept of sequences. Those under way go on, and nothing more of them is kept.
    pub fn forget(&self) {
        locked(&self.store).forget();
    }

    /// Pages that no sequence holds.
    pub fn free(&self, kind: Kind) -> usize {
        let store = locked(&self.store);
        store.free(kind) + store.cached(kind)
    }

    /// Of those, the ones that are kept until they are needed.
    pub fn cached(&self, kind: Kind) -> usize {
        locked(&self.store).cached(kind)
    }
}
