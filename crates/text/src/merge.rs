//! Byte-pair merging: the best adjacent pair becomes one symbol, until no pair is in the vocabulary.
//!
//! Symbols form a linked list over the text, candidates wait in a heap: n symbols take O(n log n), whatever the
//! text. A candidate is stale when either side has changed since it was entered. Symbols only grow, so the
//! summed length of the two tells.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::pieces::NONE;

/// A stretch of the text that is one token so far.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    /// Where it starts in the text.
    pub(crate) start: u32,
    /// Its length in bytes; 0 once it was merged into its left neighbour.
    pub(crate) len: u32,
    /// Its token, or [`NONE`] where the vocabulary does not have it.
    pub(crate) id: u32,
    next: u32,
    previous: u32,
}

/// The symbols of one text and the room to merge them; kept between texts for its memory.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    /// (rank, symbol) in one number, smallest first, then the pair's length and its token. Equal ranks go from left
    /// to right.
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Merger {
    /// Forgets the last text.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends a symbol.
    pub(crate) fn push(&mut self, start: usize, len: usize, id: u32) {
        let here = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = here;
        }
        let previous = here.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { start: start as u32, len: len as u32, id, next: NONE, previous });
    }

    /// Merges all that can be. `pair` gives rank and token of two neighbours; the lowest rank goes first.
    pub(crate) fn run(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        // Collected first: making a heap of all at once is linear.
        let mut first = std::mem::take(&mut self.heap).into_vec();
        for here in 1..self.symbols.len() {
            let (left, right) = (&self.symbols[here - 1], &self.symbols[here]);
            if let Some((rank, id)) = pair(left, right) {
                first.push(Reverse((key(rank, here as u32 - 1), left.len + right.len, id)));
            }
        }
        self.heap = BinaryHeap::from(first);
        while let Some(Reverse((key, len, id))) = self.heap.pop() {
            let here = key as u32;
            let left = self.symbols[here as usize];
            if left.len == 0 || left.next == NONE {
                continue;
            }
            let right = self.symbols[left.next as usize];
            if left.len + right.len != len {
                continue;
            }
            self.symbols[left.next as usize].len = 0;
            self.symbols[here as usize] = Symbol { len, id, next: right.next, ..left };
            if right.next != NONE {
                self.symbols[right.next as usize].previous = here;
                self.candidate(here, &pair);
            }
            if left.previous != NONE {
                self.candidate(left.previous, &pair);
            }
        }
    }

    fn candidate(&mut self, here: u32, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let left = &self.symbols[here as usize];
        let right = &self.symbols[left.next as usize];
        if let Some((rank, id)) = pair(left, right) {
            self.heap.push(Reverse((key(rank, here), left.len + right.len, id)));
        }
    }

    /// What is left, in the order of the text.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }
}

fn key(rank: u32, here: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(here)
}

/// The rank of a score: higher scores first, in the order of floats. Not a number comes somewhere, but always in the
/// same place.
pub(crate) fn rank_of_score(score: f32) -> u32 {
    // -0.0 and 0.0 are equal scores.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}
