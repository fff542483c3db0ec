//! The books, held against a memory of numbers: what a sequence holds must be what its tokens would have put there.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::pages::{Pages, locked, sliding_pages};

const MOST_PAGES: usize = 128;

const KINDS: [Kind; 2] = [Kind::Global, Kind::Sliding];

/// Pages with something in them: for each position a number that follows from all tokens up to it.
struct Memory {
    pages: Pages,
    shape: Shape,
    cells: [Vec<u64>; 2],
    /// By kind, slot and number: the page, as the GPU is told.
    tables: [Vec<Vec<u32>>; 2],
}

/// What a position holds after these tokens.
fn content(tokens: &[u32]) -> u64 {
    let step = |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

impl Memory {
    fn new(shape: Shape) -> Self {
        let cells = [shape.pages, shape.sliding * shape.sequences];
        let cells = cells.map(|count| vec![0; (count * shape.page) as usize]);
        let table = vec![vec![u32::MAX; MOST_PAGES]; shape.sequences as usize];
        Self { pages: Pages::new(shape), shape, cells, tables: [table.clone(), table] }
    }

    fn cell(&self, live: &Live, kind: Kind, position: u32) -> Option<usize> {
        let page = live.sequence.pages[kind as usize].get(position / self.shape.page)?;
        Some((page * self.shape.page + position % self.shape.page) as usize)
    }

    fn start(&self, text: &[u32]) -> Option<Live> {
        let sequence = self.pages.start_with(text)?;
        assert!(sequence.is_empty() || (sequence.len() as usize) < text.len(), "nothing is left to read");
        let live = Live { tokens: text[..sequence.len() as usize].to_vec(), sequence };
        self.check(&live);
        Some(live)
    }

    fn go_on(&mut self, live: &mut Live, tokens: &[u32]) -> bool {
        if !self.pages.extend(&mut live.sequence, tokens.len() as u32) {
            return false;
        }
        self.write_tables(&mut live.sequence);
        live.tokens.extend(tokens);
        for position in live.sequence.len()..live.tokens.len() as u32 {
            for kind in KINDS {
                let cell = self.cell(live, kind, position).expect("room was made");
                self.cells[kind as usize][cell] = content(&live.tokens[..=position as usize]);
            }
        }
        self.pages.advance(&mut live.sequence, tokens);
        true
    }

    /// As `KvCache` does it; then they say what the sequence holds.
    fn write_tables(&mut self, sequence: &mut Sequence) {
        let from = sequence.unwritten(self.shape.page);
        for kind in KINDS {
            let (first, pages) = sequence.held(kind);
            let table = &mut self.tables[kind as usize][sequence.slot() as usize];
            for (number, page) in (first..).zip(pages) {
                if number >= from {
                    table[number as usize] = *page;
                }
                assert_eq!(table[number as usize], *page, "{kind:?}: the table has another page {number}");
            }
        }
        sequence.tables_written();
    }

    /// Everything that the next position of a sequence would see.
    fn check(&self, live: &Live) {
        let len = live.tokens.len() as u32;
        assert_eq!(live.sequence.len(), len);
        let seen = (len + 1).saturating_sub(self.shape.window);
        for (kind, first) in KINDS.into_iter().zip([0, seen]) {
            for position in first..len {
                let cell = self.cell(live, kind, position).expect("what is seen is held");
                let expected = content(&live.tokens[..=position as usize]);
                assert_eq!(self.cells[kind as usize][cell], expected, "{kind:?} {position}");
            }
        }
    }

    /// Holders are those who hold, and what is neither free nor cached is held by a sequence.
    fn audit(&self, live: &[Live]) {
        live.iter().for_each(|live| self.check(live));
        let store = locked(&self.pages.store);
        assert_eq!(store.slots.len() + live.len(), self.shape.sequences as usize);
        for kind in KINDS {
            let pool = &store.pools[kind as usize];
            let mut holders = vec![0; pool.holders.len()];
            let held = live.iter().flat_map(|live| &live.sequence.pages[kind as usize].pages);
            held.clone().for_each(|page| holders[*page as usize] += 1);
            for (page, node) in pool.nodes.iter().enumerate() {
                if let Some(node) = node {
                    assert_eq!(store.tree.page(*node, kind), Some(page as u32));
                    holders[page] += 1;
                }
            }
            assert_eq!(pool.holders, holders, "{kind:?}");
            let distinct: BTreeSet<&u32> = held.collect();
            let all = pool.free.len() + store.cached(kind) + distinct.len();
            assert_eq!(all, pool.holders.len(), "{kind:?}: pages are free, cached, or held");
        }
        if let Some(oldest) = store.tree.oldest(Kind::Global) {
            assert_eq!(store.tree.children(oldest).count(), 0, "a leaf goes first");
        }
    }
}

struct Live {
    sequence: Sequence,
    tokens: Vec<u32>,
}

fn shape(sequences: u32, page: u32, window: u32, context: u32, rows: u32) -> Shape {
    let pages = context.div_ceil(page) * sequences;
    let sliding = sliding_pages(context, page, window, rows);
    Shape { sequences, page, window, pages, sliding, prefix: true }
}

/// A text of its own for every family, the same for all of one up to where they part.
fn text(family: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| family * 1000 + at).collect()
}

/// Reads a text to its end, and says how much of it was known.
fn read(memory: &mut Memory, text: &[u32]) -> (Live, u32) {
    let mut live = memory.start(text).unwrap();
    let known = live.sequence.len();
    for chunk in text[known as usize..].chunks(8) {
        assert!(memory.go_on(&mut live, chunk));
    }
    (live, known)
}

/// How much of a text a look-up finds, without taking it.
fn known(memory: &Memory, text: &[u32]) -> u32 {
    memory.start(text).unwrap().sequence.len()
}

#[test]
fn the_next_turn_reads_only_what_is_new_beyond_the_window_too() {
    let mut memory = Memory::new(shape(1, 4, 10, 128, 8));
    let mut turn = text(1, 50);
    let mut read_before = 0;
    for _ in 0..3 {
        let (live, known) = read(&mut memory, &turn);
        assert_eq!(known, read_before, "all of the turn before, wherever a page ends");
        drop(live);
        read_before = turn.len() as u32;
        turn.extend(text(2, 11));
    }
    // Of a text that is known whole, the last page is read again: without its last token it is not full.
    assert_eq!(known(&memory, &turn[..72]), 68);
}

#[test]
fn two_at_once_share_what_the_first_has_read_and_write_apart() {
    let mut memory = Memory::new(shape(3, 4, 10, 64, 8));
    let system = text(1, 21);
    let question = |family: u32| [system.clone(), text(family, 10)].concat();
    let (one, none) = read(&mut memory, &question(2));
    assert_eq!(none, 0);
    assert_eq!((memory.pages.shared(&question(3)), memory.pages.shared(&text(9, 21))), (5, 0));
    let (two, shared) = read(&mut memory, &question(3));
    assert_eq!(shared, 20, "the full pages of what they have in common");
    assert_eq!(one.sequence.pages[0].pages[..5], two.sequence.pages[0].pages[..5]);
    assert_ne!(one.sequence.pages[0].pages[5], two.sequence.pages[0].pages[5]);
    memory.audit(&[one, two]);
}

#[test]
fn who_reads_the_same_again_takes_what_the_tree_has() {
    let mut memory = Memory::new(shape(2, 4, 10, 64, 8));
    let (one, _) = read(&mut memory, &text(1, 20));
    let (two, known) = read(&mut memory, &text(1, 20));
    assert_eq!(known, 16, "the last token is read");
    assert_eq!(one.sequence.pages[0].pages, two.sequence.pages[0].pages);
    assert_eq!(two.sequence.unwritten, 4, "the table has another page there");
    let mut two = two;
    assert!(memory.go_on(&mut two, &[7]));
    memory.audit(&[one, two]);
}

#[test]
fn leaves_go_first_and_the_least_recently_used_of_them() {
    // Pages of one sequence's context: 16.
    let mut memory = Memory::new(Shape { pages: 16, ..shape(2, 4, 64, 64, 8) });
    for (family, len) in [(1, 20), (2, 16), (1, 21)] {
        drop(read(&mut memory, &text(family, len)));
    }
    // 5 pages and a tail of family 1, used last; 4 pages of family 2.
    assert_eq!(memory.pages.cached(Kind::Global), 10);
    let mut other = memory.start(&text(3, 40)).unwrap();
    assert!(memory.go_on(&mut other, &text(3, 32)));
    let known_now = |memory: &Memory| [1, 2].map(|family| known(memory, &text(family, 64)));
    assert_eq!(known_now(&memory), [21, 8], "two pages were missing: the last two of family 2");
    assert!(memory.go_on(&mut other, &text(4, 24)));
    // The look-ups have used both.
    let [one, two] = known_now(&memory);
    assert!(one + two <= 8, "{one} and {two}");
    assert_eq!(memory.pages.free(Kind::Global), 2);
    memory.audit(&[other]);
}

#[test]
fn without_its_window_a_prefix_is_a_shorter_one_or_none() {
    // One sequence: 5 sliding pages, of which a window takes 3 or 4.
    let mut memory = Memory::new(shape(1, 4, 10, 128, 8));
    assert_eq!(memory.shape.sliding, 6);
    let (mut live, _) = read(&mut memory, &text(1, 40));
    // The answer takes the pages before the question's end, which are given up last.
    assert!(memory.go_on(&mut live, &text(5, 4)));
    drop(live);
    let other = |after: usize| [&text(1, 40)[..after], &text(7, 12)[..]].concat();
    assert_eq!(known(&memory, &other(40)), 40);
    assert_eq!(known(&memory, &other(20)), 0, "global pages alone are of no use");
    // After a long answer the question's window is gone, and the end's is there.
    let (mut live, known_then) = read(&mut memory, &other(40));
    assert_eq!(known_then, 40);
    for chunk in text(8, 40).chunks(8) {
        assert!(memory.go_on(&mut live, chunk));
    }
    let end = live.tokens.clone();
    drop(live);
    assert_eq!(known(&memory, &other(40)[..46]), 0);
    assert_eq!(known(&memory, &[end, vec![1]].concat()), 92);
}

#[test]
fn marks_outlive_what_lies_between_them() {
    // Two sequences, one of which is not there: its sliding pages are the cache's.
    let mut memory = Memory::new(shape(2, 4, 10, 128, 8));
    let question = text(1, 40);
    let (mut live, _) = read(&mut memory, &question);
    for chunk in text(8, 60).chunks(4) {
        assert!(memory.go_on(&mut live, chunk));
    }
    drop(live);
    let again = [question.clone(), text(3, 12)].concat();
    assert_eq!(known(&memory, &again), 36, "the page before the last token of the question");
    // Where two have parted is a mark from then on.
    let other = [&question[..20], &text(4, 50)[..]].concat();
    let (live, _) = read(&mut memory, &other);
    drop(live);
    assert_eq!(known(&memory, &[&question[..20], &text(5, 9)[..]].concat()), 20);
}

#[test]
fn what_was_forgotten_is_not_found_and_those_under_way_go_on() {
    let mut memory = Memory::new(shape(2, 4, 10, 64, 8));
    drop(read(&mut memory, &text(1, 20)));
    let (mut live, _) = read(&mut memory, &text(2, 18));
    memory.pages.forget();
    assert_eq!(memory.pages.cached(Kind::Global), 0);
    assert!(memory.go_on(&mut live, &text(3, 8)));
    memory.audit(std::slice::from_ref(&live));
    drop(live);
    assert_eq!([1, 2].map(|family| known(&memory, &text(family, 30))), [0, 0]);
    assert_eq!(memory.pages.cached(Kind::Global), 0);
}

#[test]
fn turned_off_nothing_is_kept() {
    let mut memory = Memory::new(Shape { prefix: false, ..shape(2, 4, 10, 64, 8) });
    drop(read(&mut memory, &text(1, 20)));
    assert_eq!((known(&memory, &text(1, 30)), memory.pages.cached(Kind::Global)), (0, 0));
}

#[derive(Clone, Debug)]
enum Act {
    Start(Vec<u32>),
    GoOn(usize, Vec<u32>),
    Cut(usize, u32),
    End(usize),
    Forget,
}

fn act() -> impl Strategy<Value = Act> {
    // Two tokens, so that texts are often the same for a while.
    let tokens = |most: usize| vec(0..2_u32, 1..=most);
    prop_oneof![
        4 => tokens(24).prop_map(Act::Start),
        12 => (0..4_usize, tokens(6)).prop_map(|(at, tokens)| Act::GoOn(at, tokens)),
        1 => (0..4_usize, 0..24_u32).prop_map(|(at, len)| Act::Cut(at, len)),
        4 => (0..4_usize).prop_map(Act::End),
        1 => Just(Act::Forget),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_is_held_is_what_the_tokens_have_put_there(
        sizes in (1..4_u32, 0..3_u32, 1..12_u32, 0..3_u32),
        acts in vec(act(), 1..80),
    ) {
        let (sequences, page, window, fewer) = sizes;
        let (page, context) = (1 << page, 32);
        let all = shape(sequences, page, window, context, 6);
        let pages = (all.pages / (fewer + 1)).max(context / page);
        let mut memory = Memory::new(Shape { pages, ..all });
        let mut live: Vec<Live> = vec![];
        for act in acts {
            match act {
                Act::Start(text) => {
                    let started = memory.start(&text);
                    assert_eq!(started.is_some(), live.len() < sequences as usize);
                    live.extend(started);
                }
                Act::GoOn(at, tokens) => {
                    let free = memory.pages.free(Kind::Global) as u32;
                    if let Some(live) = live.get_mut(at) && live.tokens.len() + tokens.len() <= context as usize {
                        let held = live.sequence.pages().0 as u32;
                        let needed = (live.sequence.len() + tokens.len() as u32).div_ceil(page);
                        // Cached pages are as good as free, and sliding pages always enough.
                        assert_eq!(memory.go_on(live, &tokens), needed.saturating_sub(held) <= free);
                    }
                }
                Act::Cut(at, len) => {
                    if let Some(live) = live.get_mut(at) && memory.pages.truncate(&mut live.sequence, len) {
                        live.tokens.truncate(len as usize);
                    }
                }
                Act::End(at) if at < live.len() => drop(live.remove(at)),
                Act::End(_) => {}
                Act::Forget => memory.pages.forget(),
            }
            memory.audit(&live);
        }
        live.clear();
        assert_eq!(memory.pages.free(Kind::Global) as u32, pages);
        memory.audit(&live);
    }
}
