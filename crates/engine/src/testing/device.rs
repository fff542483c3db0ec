//! The memory of the mock backend, and its sequences.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use model::pages::{PageAllocator, PageConfig, PageCopy, PageKind, sliding_pages};

use super::{MockOptions, Start, Step};
use crate::{BackendError, Capacity};

/// State shared by the backend, its sequences and its inspectors.
#[derive(Debug)]
pub(super) struct Device {
    pub capacity: Capacity,
    pub config: PageConfig,
    pub pages: PageAllocator,
    /// Contents of the full-attention and the sliding-window pages: one number per position of each page.
    pub cells: [Vec<u64>; 2],
    /// Live sequences.
    pub sequences: u32,
    /// Incremented by each recovery; sequences of an earlier generation are invalid.
    pub generation: u64,
    pub lost: bool,
    pub steps: Vec<Step>,
    pub starts: Vec<Start>,
    pub count_resets: u64,
    pub draft_calls: u64,
    /// By the tokens of an image: calls that encoded it.
    pub encoded: BTreeMap<Vec<u32>, u32>,
}

impl Device {
    pub fn new(options: &MockOptions) -> Self {
        let capacity = options.capacity;
        assert!(capacity.pages >= capacity.context_length.div_ceil(capacity.page_size), "{capacity:?}");
        let rows = options.prefill_chunk.max(options.max_steps) as u32;
        let rows = rows.max(capacity.max_verify_rows);
        let config = PageConfig {
            max_sequences: capacity.max_sequences,
            page_size: capacity.page_size,
            window: options.window,
            full_pages: capacity.pages,
            sliding_pages: sliding_pages(capacity.context_length, capacity.page_size, options.window, rows),
            prefix_cache: options.capacity.prefix_cache,
        };
        let pages = PageAllocator::new(config);
        let mut device = Self {
            capacity,
            config,
            pages,
            cells: Default::default(),
            sequences: 0,
            generation: 0,
            lost: false,
            steps: vec![],
            starts: vec![],
            count_resets: 0,
            draft_calls: 0,
            encoded: BTreeMap::new(),
        };
        device.clear();
        device
    }

    /// Resets the memory and the page allocator.
    pub fn clear(&mut self) {
        self.pages = PageAllocator::new(self.config);
        self.encoded.clear();
        let pages = [self.config.full_pages, self.config.sliding_pages * self.config.max_sequences];
        self.cells = pages.map(|pages| vec![0; (pages * self.config.page_size) as usize]);
    }

    pub fn free_pages(&self) -> u32 {
        self.pages.free_pages(PageKind::Full) as u32
    }

    /// Starts a sequence with the prefix that the cache holds.
    pub fn start_with(&mut self, tokens: &[u32]) -> model::Sequence {
        let size = self.config.page_size as usize;
        let cells = &mut self.cells;
        let copy = |copies: &[PageCopy]| -> Result<(), Infallible> {
            for PageCopy { kind, from, to } in copies {
                let from = *from as usize * size;
                cells[*kind as usize].copy_within(from..from + size, *to as usize * size);
            }
            Ok(())
        };
        let Ok(started) = self.pages.start_with(tokens, copy);
        started.expect("no more than max_sequences sequences")
    }

    /// Index of a sequence's position in `cells`.
    fn cell(&self, held: &model::Sequence, kind: PageKind, position: usize) -> usize {
        let (number, offset) =
            (position as u32 / self.config.page_size, position as u32 % self.config.page_size);
        let (first, pages) = held.held(kind);
        let page = number.checked_sub(first).and_then(|index| pages.get(index as usize));
        let page = page.unwrap_or_else(|| panic!("position {position} is on no page of {kind:?} layers"));
        (page * self.config.page_size + offset) as usize
    }
}

/// The number that each position holds: a hash of all tokens up to it.
fn contents(tokens: &[u32]) -> impl Iterator<Item = u64> {
    tokens.iter().scan(FNV_OFFSET, |hash, token| {
        *hash = fnv(*hash, u64::from(*token));
        Some(*hash)
    })
}

/// Offset basis of 64-bit FNV-1a.
pub(super) const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// One round of FNV-1a, over a word instead of a byte.
pub(super) fn fnv(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}

pub(super) type SharedDevice = Arc<Mutex<Device>>;

pub(super) fn locked(device: &SharedDevice) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sequence of the mock backend: its tokens and its pages.
#[derive(Debug)]
pub struct MockSequence {
    pub(super) tokens: Vec<u32>,
    pub(super) held: model::Sequence,
    pub(super) generation: u64,
    pub(super) device: SharedDevice,
}

impl MockSequence {
    /// Full-attention pages that it holds, some of them shared with other sequences.
    pub fn pages(&self) -> &[u32] {
        self.held.held(PageKind::Full).1
    }

    /// Frees pages that were allocated beyond its length.
    pub(super) fn truncate_pages(&mut self) {
        let len = self.held.len();
        assert!(locked(&self.device).pages.truncate(&mut self.held, len));
    }

    /// Allocates pages for more positions. On an error nothing changes.
    pub(super) fn extend(&mut self, rows: usize) -> Result<(), BackendError> {
        let device = locked(&self.device);
        assert_eq!(self.generation, device.generation, "sequence from before the device was recovered");
        let (needed, context_length) = ((self.tokens.len() + rows) as u32, device.capacity.context_length);
        assert!(needed <= context_length, "{needed} positions with a context length of {context_length}");
        device.pages.extend(&mut self.held, rows as u32).then_some(()).ok_or(BackendError::NoFreePages)
    }

    /// Writes the positions after its end, for which pages must be allocated.
    pub(super) fn write(&self, tokens: &[u32]) {
        let mut device = locked(&self.device);
        let all = [&self.tokens[..], tokens].concat();
        for (position, content) in contents(&all).enumerate().skip(self.tokens.len()) {
            for kind in [PageKind::Full, PageKind::Sliding] {
                let cell = device.cell(&self.held, kind, position);
                device.cells[kind as usize][cell] = content;
            }
        }
    }

    /// Writes tokens and appends them.
    pub(super) fn append(&mut self, tokens: &[u32]) {
        self.write(tokens);
        self.tokens.extend(tokens);
        locked(&self.device).pages.advance(&mut self.held, tokens);
    }

    /// Asserts that every position which the next token attends to holds the number that this sequence's
    /// tokens wrote.
    pub(super) fn check(&self) {
        let device = locked(&self.device);
        let window = device.config.window as usize;
        let window_start = (self.tokens.len() + 1).saturating_sub(window);
        for (position, content) in contents(&self.tokens).enumerate() {
            for (kind, first) in [(PageKind::Full, 0), (PageKind::Sliding, window_start)] {
                if position >= first {
                    let cell = device.cell(&self.held, kind, position);
                    assert_eq!(
                        device.cells[kind as usize][cell], content,
                        "{kind:?} layers, position {position}"
                    );
                }
            }
        }
    }
}

impl Drop for MockSequence {
    fn drop(&mut self) {
        locked(&self.device).sequences -= 1;
    }
}
