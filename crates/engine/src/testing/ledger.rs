//! The memory of the plain backend, and its sequences.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::pages::{Kind, Pages, Shape, sliding_pages};

use super::{MockOptions, Start, Step};
use crate::{BackendError, Capacity};

/// What the backend, its sequences and its watchers share.
#[derive(Debug)]
pub(super) struct Ledger {
    pub capacity: Capacity,
    pub shape: Shape,
    pub pages: Pages,
    /// By kind, page and place in it: what the tokens up to a position have put there.
    pub cells: [Vec<u64>; 2],
    pub sequences: u32,
    /// Grows when the device is put back.
    pub age: u64,
    pub lost: bool,
    pub log: Vec<Step>,
    pub starts: Vec<Start>,
    pub count_resets: u64,
}

impl Ledger {
    pub fn new(options: &MockOptions) -> Self {
        let capacity = options.capacity;
        assert!(capacity.pages >= capacity.context_length.div_ceil(capacity.page_size), "{capacity:?}");
        let rows = options.prefill_chunk.max(options.max_steps) as u32;
        let shape = Shape {
            sequences: capacity.max_sequences,
            page: capacity.page_size,
            window: options.window,
            pages: capacity.pages,
            sliding: sliding_pages(capacity.context_length, capacity.page_size, options.window, rows),
            prefix: options.capacity.prefix_cache,
        };
        let pages = Pages::new(shape);
        let mut ledger = Self {
            capacity,
            shape,
            pages,
            cells: Default::default(),
            sequences: 0,
            age: 0,
            lost: false,
            log: vec![],
            starts: vec![],
            count_resets: 0,
        };
        ledger.clear();
        ledger
    }

    /// A memory that nothing is in, and nobody knows anything of.
    pub fn clear(&mut self) {
        self.pages = Pages::new(self.shape);
        let pages = [self.shape.pages, self.shape.sliding * self.shape.sequences];
        self.cells = pages.map(|pages| vec![0; (pages * self.shape.page) as usize]);
    }

    pub fn free(&self) -> u32 {
        self.pages.free(Kind::Global) as u32
    }

    /// Where a position of a sequence is.
    fn cell(&self, held: &model::Sequence, kind: Kind, position: usize) -> usize {
        let (number, place) = (position as u32 / self.shape.page, position as u32 % self.shape.page);
        let (first, pages) = held.held(kind);
        let page = number.checked_sub(first).and_then(|at| pages.get(at as usize));
        let page = page.unwrap_or_else(|| panic!("position {position} is on no page of {kind:?} layers"));
        (page * self.shape.page + place) as usize
    }
}

/// What a position holds: it follows from all tokens up to it. One number for each of them.
fn contents(tokens: &[u32]) -> impl Iterator<Item = u64> {
    tokens.iter().scan(FNV_START, |hash, token| {
        *hash = fnv(*hash, u64::from(*token));
        Some(*hash)
    })
}

pub(super) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, by words.
pub(super) fn fnv(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}

pub(super) type SharedLedger = Arc<Mutex<Ledger>>;

pub(super) fn locked(ledger: &SharedLedger) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sequence: its tokens, and the pages that they are on.
#[derive(Debug)]
pub struct MockSequence {
    pub(super) tokens: Vec<u32>,
    pub(super) held: model::Sequence,
    pub(super) age: u64,
    pub(super) ledger: SharedLedger,
}

impl MockSequence {
    /// Pages that it holds, some of them with others.
    pub fn pages(&self) -> &[u32] {
        self.held.held(Kind::Global).1
    }

    /// Gives back pages for positions that did not come.
    pub(super) fn truncate_pages(&mut self) {
        let len = self.held.len();
        assert!(locked(&self.ledger).pages.truncate(&mut self.held, len));
    }

    /// Makes room for more positions; nothing changes on an error.
    pub(super) fn extend(&mut self, rows: usize) -> Result<(), BackendError> {
        let ledger = locked(&self.ledger);
        assert_eq!(self.age, ledger.age, "a sequence of before the device was put back");
        let wanted = (self.tokens.len() + rows) as u32;
        assert!(
            wanted <= ledger.capacity.context_length,
            "{wanted} positions in a context of {}",
            ledger.capacity.context_length
        );
        ledger.pages.extend(&mut self.held, rows as u32).then_some(()).ok_or(BackendError::NoFreePages)
    }

    /// Puts tokens where there is room for them.
    pub(super) fn write(&mut self, tokens: &[u32]) {
        let mut ledger = locked(&self.ledger);
        let first = self.tokens.len();
        self.tokens.extend(tokens);
        for (position, content) in contents(&self.tokens).enumerate().skip(first) {
            for kind in [Kind::Global, Kind::Sliding] {
                let cell = ledger.cell(&self.held, kind, position);
                ledger.cells[kind as usize][cell] = content;
            }
        }
        ledger.pages.advance(&mut self.held, tokens);
    }

    /// Whether what the next position sees is what the tokens have put there.
    pub(super) fn check(&self) {
        let ledger = locked(&self.ledger);
        let window = ledger.shape.window as usize;
        let seen = (self.tokens.len() + 1).saturating_sub(window);
        for (position, content) in contents(&self.tokens).enumerate() {
            for (kind, first) in [(Kind::Global, 0), (Kind::Sliding, seen)] {
                if position >= first {
                    let cell = ledger.cell(&self.held, kind, position);
                    assert_eq!(
                        ledger.cells[kind as usize][cell], content,
                        "{kind:?} layers, position {position}"
                    );
                }
            }
        }
    }
}

impl Drop for MockSequence {
    fn drop(&mut self) {
        locked(&self.ledger).sequences -= 1;
    }
}
