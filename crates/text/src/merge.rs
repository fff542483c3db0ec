//! Byte-pair merging: the best adjacent pair is merged, repeatedly, until no pair is in the vocabulary.
//!
//! Symbols form a linked list, and candidate pairs a heap: n symbols take O(n log n) for any text. A
//! candidate is stale if either symbol has changed since it was added. Symbols only grow, so comparing the
//! combined length detects that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::pieces::NONE;

/// A span of text that is one token so far.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    /// Offset in the text.
    pub(crate) start: u32,
    /// Length in bytes; 0 after merging into its left neighbour.
    pub(crate) len: u32,
    /// Token id, or [`NONE`] if it is not in the vocabulary.
    pub(crate) id: u32,
    next: u32,
    previous: u32,
}

/// The symbols of one text. Reused between texts to avoid allocations.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    /// (rank, left symbol) packed in one number, then the pair's length and token. Smallest first, so equal
    /// ranks merge from left to right.
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl Merger {
    /// Removes all symbols.
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

    /// Merges until no pair is left. `pair` returns the rank and token of two neighbours; the lowest rank
    /// merges first.
    pub(crate) fn run(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        // Collected first: building a heap from all candidates is linear.
        let mut candidates = std::mem::take(&mut self.heap).into_vec();
        for here in 1..self.symbols.len() {
            let (left, right) = (&self.symbols[here - 1], &self.symbols[here]);
            if let Some((rank, id)) = pair(left, right) {
                candidates.push(Reverse((key(rank, here as u32 - 1), left.len + right.len, id)));
            }
        }
        self.heap = BinaryHeap::from(candidates);
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
                self.add_candidate(here, &pair);
            }
            if left.previous != NONE {
                self.add_candidate(left.previous, &pair);
            }
        }
    }

    fn add_candidate(&mut self, here: u32, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let left = &self.symbols[here as usize];
        let right = &self.symbols[left.next as usize];
        if let Some((rank, id)) = pair(left, right) {
            self.heap.push(Reverse((key(rank, here), left.len + right.len, id)));
        }
    }

    /// The remaining symbols, in text order.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }
}

fn key(rank: u32, here: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(here)
}

/// The rank of a score: higher scores have lower ranks, in the order of floats. NaN has an arbitrary but
/// fixed rank.
pub(crate) fn rank_of_score(score: f32) -> u32 {
    // Adding 0.0 makes -0.0 and 0.0 equal.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Work is counted, not timed: every candidate of the heap was a lookup of a pair before.
    #[test]
    fn repetitive_texts_take_three_lookups_per_symbol() {
        const SYMBOLS: usize = 100_000;
        // Longer tokens first, shorter tokens first, and rank by start alone, for spans of equal symbols.
        let ranks: [fn(&Symbol, u32) -> u32; 3] =
            [|_, len| u32::MAX - len, |_, len| len, |left, _| left.start];
        for (index, rank) in ranks.into_iter().enumerate() {
            // Tokens of any length, of powers of two, of up to 16 symbols, and none.
            let in_vocabulary: [fn(u32) -> bool; 4] =
                [|_| true, u32::is_power_of_two, |len| len <= 16, |_| false];
            for (kind, in_vocabulary) in in_vocabulary.into_iter().enumerate() {
                let mut merger = Merger::default();
                (0..SYMBOLS).for_each(|start| merger.push(start, 1, 0));
                let lookups = Cell::new(0_usize);
                merger.run(|left, right| {
                    lookups.set(lookups.get() + 1);
                    let len = left.len + right.len;
                    in_vocabulary(len).then(|| (rank(left, len), 0))
                });
                assert_eq!(merger.symbols().map(|symbol| symbol.len as usize).sum::<usize>(), SYMBOLS);
                assert!(merger.symbols().count() == 1 || kind > 0, "{index} {kind}");
                assert!(lookups.get() < 3 * SYMBOLS, "{index} {kind}: {} lookups", lookups.get());
            }
        }
    }
}
