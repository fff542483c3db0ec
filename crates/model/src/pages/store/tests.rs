//! The allocator against a simulated memory: the pages of a sequence must contain what its tokens would have
//! written.

use std::{collections::BTreeSet, convert::Infallible};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::pages::{PageAllocator, locked, sliding_pages};

const MAX_PAGES: usize = 128;

/// Simulated KV memory: per position a hash of all tokens up to it.
struct Memory {
    pages: PageAllocator,
    config: PageConfig,
    cells: [Vec<u64>; 2],
    /// Page tables as on the GPU: by kind, slot and page index.
    tables: [Vec<Vec<u32>>; 2],
}

/// The content of the last position after these tokens.
fn content(tokens: &[u32]) -> u64 {
    let step = |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

impl Memory {
    fn new(config: PageConfig) -> Self {
        let cells = [config.full_pages, config.sliding_pages * config.max_sequences];
        let cells = cells.map(|count| vec![0; (count * config.page_size) as usize]);
        let table = vec![vec![u32::MAX; MAX_PAGES]; config.max_sequences as usize];
        Self { pages: PageAllocator::new(config), config, cells, tables: [table.clone(), table] }
    }

    /// Puts the first pages of a text into the tree, as from disk: of sliding-window layers those from `first` on.
    fn restore(&mut self, text: &[u32], first: usize) {
        let size = self.config.page_size as usize;
        for (index, _) in text.chunks_exact(size).enumerate() {
            for kind in PageKind::ALL {
                let prefix = &text[..(index + 1) * size];
                let cells = &mut self.cells[kind as usize];
                let fill = |page: u32| -> Result<(), Infallible> {
                    for position in 0..size {
                        cells[page as usize * size + position] = content(&prefix[..=index * size + position]);
                    }
                    Ok(())
                };
                if kind == PageKind::Full || index >= first {
                    let Ok(restored) = self.pages.restore(prefix, kind, fill);
                    assert_eq!(restored, self.pages.read_known(prefix, kind, |_| ()).is_some());
                }
            }
        }
    }

    fn cell(&self, live: &Live, kind: PageKind, position: u32) -> Option<usize> {
        let page = live.sequence.pages[kind as usize].get(position / self.config.page_size)?;
        Some((page * self.config.page_size + position % self.config.page_size) as usize)
    }

    fn start(&mut self, text: &[u32]) -> Option<Live> {
        let size = self.config.page_size as usize;
        let cells = &mut self.cells;
        let copy = |copies: &[PageCopy]| -> Result<(), Infallible> {
            for PageCopy { kind, from, to } in copies {
                let from = *from as usize * size;
                cells[*kind as usize].copy_within(from..from + size, *to as usize * size);
            }
            Ok(())
        };
        let Ok(sequence) = self.pages.start_with(text, copy);
        let sequence = sequence?;
        assert!(
            sequence.is_empty() || (sequence.len() as usize) < text.len(),
            "the last token must be left to compute"
        );
        let live = Live { tokens: text[..sequence.len() as usize].to_vec(), sequence };
        self.check(&live);
        Some(live)
    }

    fn append(&mut self, live: &mut Live, tokens: &[u32]) -> bool {
        if !self.pages.extend(&mut live.sequence, tokens.len() as u32) {
            return false;
        }
        self.write_tables(&mut live.sequence);
        live.tokens.extend(tokens);
        for position in live.sequence.len()..live.tokens.len() as u32 {
            for kind in PageKind::ALL {
                let cell = self.cell(live, kind, position).expect("a page was allocated");
                self.cells[kind as usize][cell] = content(&live.tokens[..=position as usize]);
            }
        }
        self.pages.advance(&mut live.sequence, tokens);
        true
    }

    /// Writes stale entries, as `KvCache` does; afterwards the tables must name the pages that the sequence
    /// holds.
    fn write_tables(&mut self, sequence: &mut Sequence) {
        let from = sequence.first_stale_entry(self.config.page_size);
        for kind in PageKind::ALL {
            let (first, pages) = sequence.held(kind);
            let table = &mut self.tables[kind as usize][sequence.slot() as usize];
            for (index, page) in (first..).zip(pages) {
                if index >= from {
                    table[index as usize] = *page;
                }
                assert_eq!(table[index as usize], *page, "{kind:?}: stale entry of page index {index}");
            }
        }
        sequence.tables_written();
    }

    /// Checks everything that the next position of a sequence would attend to.
    fn check(&self, live: &Live) {
        let len = live.tokens.len() as u32;
        assert_eq!(live.sequence.len(), len);
        let first_visible = (len + 1).saturating_sub(self.config.window);
        for (kind, first) in PageKind::ALL.into_iter().zip([0, first_visible]) {
            for position in first..len {
                let cell = self.cell(live, kind, position).expect("visible positions are held");
                let expected = content(&live.tokens[..=position as usize]);
                assert_eq!(self.cells[kind as usize][cell], expected, "{kind:?} {position}");
            }
        }
    }

    /// Checks the reference counts, and that every page is free, cached or held by a sequence.
    fn audit(&self, live: &[Live]) {
        live.iter().for_each(|live| self.check(live));
        let store = locked(&self.pages.store);
        assert_eq!(store.slots.len() + live.len(), self.config.max_sequences as usize);
        for kind in PageKind::ALL {
            let pool = &store.pools[kind as usize];
            let mut references = vec![0; pool.references.len()];
            let held = live.iter().flat_map(|live| &live.sequence.pages[kind as usize].pages);
            held.clone().for_each(|page| references[*page as usize] += 1);
            for (page, node) in pool.nodes.iter().enumerate() {
                if let Some(node) = node {
                    assert_eq!(store.tree.page(*node, kind), Some(page as u32));
                    references[page] += 1;
                }
            }
            assert_eq!(pool.references, references, "{kind:?}");
            let distinct: BTreeSet<&u32> = held.collect();
            let all = pool.free.len() + store.cached(kind) + distinct.len();
            assert_eq!(all, pool.references.len(), "{kind:?}: pages are free, cached, or held");
        }
        if let Some(victim) = store.tree.next_victim(PageKind::Full) {
            assert_eq!(store.tree.children(victim).count(), 0, "leaves are evicted first");
        }
    }
}

struct Live {
    sequence: Sequence,
    tokens: Vec<u32>,
}

fn config(max_sequences: u32, page_size: u32, window: u32, context_length: u32, rows: u32) -> PageConfig {
    PageConfig {
        max_sequences,
        page_size,
        window,
        full_pages: context_length.div_ceil(page_size) * max_sequences,
        sliding_pages: sliding_pages(context_length, page_size, window, rows),
        prefix_cache: true,
    }
}

/// The first `len` tokens of a text; texts of different families share no tokens.
fn text(family: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| family * 1000 + at).collect()
}

/// Prefills a text, and returns how many of its tokens were cached.
fn prefill(memory: &mut Memory, text: &[u32]) -> (Live, u32) {
    let mut live = memory.start(text).unwrap();
    let known = live.sequence.len();
    for chunk in text[known as usize..].chunks(8) {
        assert!(memory.append(&mut live, chunk));
    }
    (live, known)
}

/// The cached tokens of a text.
fn known(memory: &mut Memory, text: &[u32]) -> u32 {
    memory.start(text).unwrap().sequence.len()
}

#[test]
fn the_next_chat_turn_prefills_only_new_tokens_even_beyond_the_window() {
    let mut memory = Memory::new(config(1, 4, 10, 128, 8));
    let mut turn = text(1, 50);
    let mut prefilled = 0;
    for _ in 0..3 {
        let (live, known) = prefill(&mut memory, &turn);
        assert_eq!(known, prefilled, "all of the previous turn, wherever a page ends");
        drop(live);
        prefilled = turn.len() as u32;
        turn.extend(text(2, 11));
    }
    // The last page of a fully cached text is computed again: without its last token it is not full.
    assert_eq!(known(&mut memory, &turn[..72]), 68);
}

#[test]
fn running_sequences_share_full_pages_and_copy_the_one_they_part_in() {
    let mut memory = Memory::new(config(3, 4, 10, 64, 8));
    let system = text(1, 21);
    let question = |family: u32| [system.clone(), text(family, 10)].concat();
    let (one, none) = prefill(&mut memory, &question(2));
    assert_eq!(none, 0);
    assert_eq!((memory.pages.shared_pages(&question(3)), memory.pages.shared_pages(&text(9, 21))), (5, 0));
    let (two, shared) = prefill(&mut memory, &question(3));
    assert_eq!(shared, 21, "five pages of the common prefix, and a token of the sixth");
    assert_eq!(one.sequence.pages[0].pages[..5], two.sequence.pages[0].pages[..5]);
    assert_ne!(one.sequence.pages[0].pages[5], two.sequence.pages[0].pages[5]);
    memory.audit(&[one, two]);
}

#[test]
fn a_sequence_adopts_the_trees_page_of_the_same_tokens() {
    let mut memory = Memory::new(config(2, 4, 10, 64, 8));
    let (one, _) = prefill(&mut memory, &text(1, 20));
    let (two, known) = prefill(&mut memory, &text(1, 20));
    assert_eq!(known, 19, "the last token is computed");
    assert_eq!(one.sequence.pages[0].pages, two.sequence.pages[0].pages);
    assert_eq!(two.sequence.first_stale_entry, 4, "the table still names its own page");
    let mut two = two;
    assert!(memory.append(&mut two, &[7]));
    memory.audit(&[one, two]);
}

#[test]
fn a_short_prompt_is_computed_once_however_often_it_comes() {
    // Pages of 32 tokens: fewer than 4 in common are not worth a copy.
    let mut memory = Memory::new(config(4, 32, 64, 64, 8));
    let prompt = text(1, 15);
    let (mut one, none) = prefill(&mut memory, &prompt);
    assert_eq!(none, 0);
    // The first goes on writing into its page while others copy it.
    assert!(memory.append(&mut one, &text(2, 3)));
    let (mut two, known_then) = prefill(&mut memory, &prompt);
    assert_eq!(known_then, 14, "all but the last token");
    assert!(memory.append(&mut two, &text(3, 9)));
    assert!(memory.append(&mut one, &text(2, 9)));
    memory.audit(&[one, two]);
    // Both have ended: their pages are leaves, of which a look-up takes the longest match.
    assert_eq!(known(&mut memory, &prompt), 14);
    assert_eq!(known(&mut memory, &[&prompt[..], &text(3, 20)].concat()), 24);
    assert_eq!(known(&mut memory, &[&prompt[..4], &text(5, 20)].concat()), 4);
    assert_eq!(known(&mut memory, &[&prompt[..3], &text(6, 20)].concat()), 0);
    // A full page is copied from as well.
    drop(prefill(&mut memory, &text(7, 40)));
    assert_eq!(known(&mut memory, &text(7, 30)), 29);
    memory.audit(&[]);
}

#[test]
fn a_failed_copy_leaves_no_sequence_and_no_trace() {
    let mut memory = Memory::new(config(2, 4, 10, 64, 8));
    drop(prefill(&mut memory, &text(1, 7)));
    let (free, cached) = (memory.pages.free_pages(PageKind::Full), memory.pages.cached_pages(PageKind::Full));
    assert_eq!(memory.pages.start_with(&text(1, 7), |_| Err("lost")).unwrap_err(), "lost");
    assert_eq!(memory.pages.free_pages(PageKind::Full), free);
    assert_eq!(memory.pages.cached_pages(PageKind::Full), cached);
    memory.audit(&[]);
}

#[test]
fn the_least_recently_used_leaves_are_evicted_first() {
    // Pages of one sequence's context: 16.
    let mut memory = Memory::new(PageConfig { full_pages: 16, ..config(2, 4, 64, 64, 8) });
    for (family, len) in [(1, 20), (2, 16), (1, 21)] {
        drop(prefill(&mut memory, &text(family, len)));
    }
    // 5 pages and a partial page of family 1, used last; 4 pages of family 2.
    assert_eq!(memory.pages.cached_pages(PageKind::Full), 10);
    let mut other = memory.start(&text(3, 40)).unwrap();
    assert!(memory.append(&mut other, &text(3, 32)));
    let known_now = |memory: &mut Memory| [1, 2].map(|family| known(memory, &text(family, 64)));
    assert_eq!(known_now(&mut memory), [21, 8], "two pages were evicted: the last two of family 2");
    assert!(memory.append(&mut other, &text(4, 24)));
    // The look-ups used both.
    let [one, two] = known_now(&mut memory);
    assert!(one + two <= 8, "{one} and {two}");
    assert_eq!(memory.pages.free_pages(PageKind::Full), 2);
    memory.audit(&[other]);
}

#[test]
fn a_prefix_without_its_window_is_shortened_or_unusable() {
    // One sequence: 6 sliding-window pages, of which a window takes 3 or 4.
    let mut memory = Memory::new(config(1, 4, 10, 128, 8));
    assert_eq!(memory.config.sliding_pages, 6);
    let (mut live, _) = prefill(&mut memory, &text(1, 40));
    // The completion takes pages; those before the prompt's end are evicted last.
    assert!(memory.append(&mut live, &text(5, 4)));
    drop(live);
    let other = |after: usize| [&text(1, 40)[..after], &text(7, 12)[..]].concat();
    assert_eq!(known(&mut memory, &other(40)), 40);
    assert_eq!(known(&mut memory, &other(20)), 0, "full-attention pages alone are useless");
    // After a long completion the prompt's window is evicted; the one at the end remains.
    let (mut live, known_then) = prefill(&mut memory, &other(40));
    assert_eq!(known_then, 40);
    for chunk in text(8, 40).chunks(8) {
        assert!(memory.append(&mut live, chunk));
    }
    let end = live.tokens.clone();
    drop(live);
    assert_eq!(known(&mut memory, &other(40)[..46]), 0);
    assert_eq!(known(&mut memory, &[end, vec![1]].concat()), 92);
}

#[test]
fn windows_of_branch_points_outlive_the_pages_between_them() {
    // Two slots, one unused: the prefix cache has its sliding-window pages.
    let mut memory = Memory::new(config(2, 4, 10, 128, 8));
    let question = text(1, 40);
    let (mut live, _) = prefill(&mut memory, &question);
    for chunk in text(8, 60).chunks(4) {
        assert!(memory.append(&mut live, chunk));
    }
    drop(live);
    let again = [question.clone(), text(3, 12)].concat();
    assert_eq!(known(&mut memory, &again), 36, "up to the page before the last token of the prompt");
    // Where two prompts diverged is a branch point from then on.
    let other = [&question[..20], &text(4, 50)[..]].concat();
    let (live, _) = prefill(&mut memory, &other);
    drop(live);
    assert_eq!(known(&mut memory, &[&question[..20], &text(5, 9)[..]].concat()), 20);
}

#[test]
fn clearing_the_prefix_cache_leaves_running_sequences_alone() {
    let mut memory = Memory::new(config(2, 4, 10, 64, 8));
    drop(prefill(&mut memory, &text(1, 20)));
    let (mut live, _) = prefill(&mut memory, &text(2, 18));
    memory.pages.clear_prefix_cache();
    assert_eq!(memory.pages.cached_pages(PageKind::Full), 0);
    assert!(memory.append(&mut live, &text(3, 8)));
    memory.audit(std::slice::from_ref(&live));
    drop(live);
    assert_eq!([1, 2].map(|family| known(&mut memory, &text(family, 30))), [0, 0]);
    assert_eq!(memory.pages.cached_pages(PageKind::Full), 0);
}

#[test]
fn a_disabled_prefix_cache_keeps_nothing() {
    let mut memory = Memory::new(PageConfig { prefix_cache: false, ..config(2, 4, 10, 64, 8) });
    drop(prefill(&mut memory, &text(1, 20)));
    assert_eq!((known(&mut memory, &text(1, 30)), memory.pages.cached_pages(PageKind::Full)), (0, 0));
}

#[test]
fn restored_pages_are_a_cached_prefix() {
    let mut memory = Memory::new(config(2, 4, 10, 64, 8));
    let restored = text(1, 40);
    memory.restore(&restored, 7);
    // Pages 7 to 9: the window of a text of 40 tokens, and of 39.
    assert_eq!(memory.pages.cached_len(&restored), 39 / 4 * 4 + 3);
    assert_eq!(memory.pages.known_pages(&restored)[6..8], [[true, false], [true, true]]);
    assert_eq!(known(&mut memory, &[&restored[..], &text(2, 5)].concat()), 40);
    memory.audit(&[]);
}

#[test]
fn restoring_takes_no_page_of_a_running_sequence_and_none_before_its_own() {
    let mut memory = Memory::new(PageConfig { full_pages: 10, ..config(2, 4, 40, 40, 8) });
    let (live, _) = prefill(&mut memory, &text(1, 20));
    memory.restore(&text(2, 40), 0);
    assert_eq!(memory.pages.known_pages(&text(2, 40)).len(), 5, "as many as are free");
    memory.audit(std::slice::from_ref(&live));
    assert_eq!(known(&mut memory, &text(2, 40)), 20);
}

#[test]
fn finished_texts_are_noted_with_their_full_pages_before_the_first_image() {
    let mut memory = Memory::new(config(2, 4, 10, 64, 8));
    drop(prefill(&mut memory, &text(3, 12)));
    assert_eq!(memory.pages.next_finished(), None, "not tracked yet");
    memory.pages.track_finished();
    drop(prefill(&mut memory, &text(1, 3)));
    let (mut live, _) = prefill(&mut memory, &text(1, 10));
    assert!(memory.append(&mut live, &text(4, 5)));
    drop(live);
    let tokens = [text(1, 10), text(4, 2)].concat();
    assert_eq!(memory.pages.next_finished(), Some(FinishedSequence { tokens, branch_points: [0, 2, 3] }));
    let image = [text(2, 9), vec![crate::IMAGE_TOKEN | 7; 6]].concat();
    drop(prefill(&mut memory, &image));
    let tokens = image[..8].to_vec();
    assert_eq!(memory.pages.next_finished(), Some(FinishedSequence { tokens, branch_points: [0, 2, 2] }));
    drop(prefill(&mut memory, &text(5, 8)));
    memory.pages.clear_prefix_cache();
    assert!(!memory.pages.has_finished());
}

#[derive(Clone, Debug)]
enum Action {
    Start(Vec<u32>),
    Append(usize, Vec<u32>),
    Truncate(usize, u32),
    Finish(usize),
    Restore(Vec<u32>, usize),
    ClearPrefixCache,
}

fn action() -> impl Strategy<Value = Action> {
    // A vocabulary of two, so that texts often share a prefix.
    let tokens = |max: usize| vec(0..2_u32, 1..=max);
    prop_oneof![
        4 => tokens(24).prop_map(Action::Start),
        12 => (0..4_usize, tokens(6)).prop_map(|(at, tokens)| Action::Append(at, tokens)),
        1 => (0..4_usize, 0..24_u32).prop_map(|(at, len)| Action::Truncate(at, len)),
        4 => (0..4_usize).prop_map(Action::Finish),
        2 => (tokens(24), 0..6_usize).prop_map(|(text, first)| Action::Restore(text, first)),
        1 => Just(Action::ClearPrefixCache),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn held_pages_contain_what_the_tokens_wrote(
        sizes in (1..4_u32, 0..3_u32, 1..12_u32, 0..3_u32),
        actions in vec(action(), 1..80),
    ) {
        let (sequences, page, window, fewer) = sizes;
        let (page, context) = (1 << page, 32);
        let all = config(sequences, page, window, context, 6);
        let pages = (all.full_pages / (fewer + 1)).max(context / page);
        let mut memory = Memory::new(PageConfig { full_pages: pages, ..all });
        let mut live: Vec<Live> = vec![];
        for action in actions {
            match action {
                Action::Start(text) => {
                    let started = memory.start(&text);
                    assert_eq!(started.is_some(), live.len() < sequences as usize);
                    live.extend(started);
                }
                Action::Append(at, tokens) => {
                    let free = memory.pages.free_pages(PageKind::Full) as u32;
                    if let Some(live) = live.get_mut(at) && live.tokens.len() + tokens.len() <= context as usize {
                        let held = live.sequence.pages().0 as u32;
                        let needed = (live.sequence.len() + tokens.len() as u32).div_ceil(page);
                        // Cached pages count as free, and there are always enough sliding-window pages.
                        assert_eq!(memory.append(live, &tokens), needed.saturating_sub(held) <= free);
                    }
                }
                Action::Truncate(at, len) => {
                    if let Some(live) = live.get_mut(at) && memory.pages.truncate(&mut live.sequence, len) {
                        live.tokens.truncate(len as usize);
                    }
                }
                Action::Finish(at) if at < live.len() => drop(live.remove(at)),
                Action::Finish(_) => {}
                Action::Restore(text, first) => memory.restore(&text, first),
                Action::ClearPrefixCache => memory.pages.clear_prefix_cache(),
            }
            memory.audit(&live);
        }
        live.clear();
        assert_eq!(memory.pages.free_pages(PageKind::Full) as u32, pages);
        memory.audit(&live);
    }
}
