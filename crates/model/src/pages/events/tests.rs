use std::{collections::BTreeSet, convert::Infallible};

use super::*;
use crate::pages::{PageConfig, Sequence, sliding_pages};

const PAGE: u32 = 4;
const LAYOUT: PageLayout = PageLayout { page_size: PAGE, has_full: true, sliding_window: Some(10) };

fn allocator() -> PageAllocator {
    let sliding_pages = sliding_pages(64, PAGE, 10, 8);
    PageAllocator::new(PageConfig {
        max_sequences: 2,
        page_size: PAGE,
        window: 10,
        full_pages: 20,
        sliding_pages,
        prefix_cache: true,
    })
}

fn text(family: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| family * 1000 + at).collect()
}

/// Prefills a text.
fn prefill(pages: &PageAllocator, text: &[u32]) -> Sequence {
    let Ok::<_, Infallible>(started) = pages.start_with(text, |_| Ok(()));
    let mut sequence = started.unwrap();
    let known = sequence.len() as usize;
    for chunk in text[known..].chunks(8) {
        assert!(pages.extend(&mut sequence, chunk.len() as u32));
        pages.advance(&mut sequence, chunk);
    }
    sequence
}

/// Kinds of the events, and how many pages of each there are.
fn stored(events: &[PageEvent]) -> [usize; 2] {
    let count = |of| {
        events.iter().filter(|event| matches!(event, PageEvent::Stored { kind, .. } if *kind == of)).count()
    };
    PageKind::ALL.map(count)
}

/// What the events leave: a node and its layers.
fn replay(held: &mut BTreeSet<(usize, PageKind)>, events: &[PageEvent]) {
    for event in events {
        match event {
            PageEvent::Stored { node, parent, kind, .. } => {
                assert!(held.insert((*node, *kind)));
                assert!(parent.is_none_or(|parent| held.contains(&(parent, PageKind::Full))));
            }
            PageEvent::Removed { node, kind } => assert!(held.remove(&(*node, *kind))),
            PageEvent::Cleared(_) => held.clear(),
        }
    }
}

fn held(events: &[PageEvent]) -> BTreeSet<(usize, PageKind)> {
    let mut held = BTreeSet::new();
    replay(&mut held, events);
    held
}

#[test]
fn full_pages_are_stored_in_order_and_evicted_ones_removed() {
    let (pages, queue) = (allocator(), PageEventQueue::new(1000));
    let _source = pages.send_events(queue.clone(), LAYOUT);
    assert_eq!(queue.take().events, [PageEvent::Cleared(LAYOUT)]);
    drop(prefill(&pages, &text(1, 22)));
    let first = queue.take();
    assert_eq!(stored(&first.events), [5, 5], "the last page is partial");
    let PageEvent::Stored { node, parent: None, tokens, kind: PageKind::Full } = &first.events[0] else {
        panic!("{:?}", first.events[0]);
    };
    assert_eq!(tokens[..], text(1, 4));
    let is_second =
        |event: &&PageEvent| matches!(event, PageEvent::Stored { parent, .. } if *parent == Some(*node));
    assert_eq!(first.events.iter().filter(is_second).count(), 2);

    // The same text again changes nothing; another one evicts pages of the first.
    drop(prefill(&pages, &text(1, 21)));
    assert!(queue.is_empty());
    let other = prefill(&pages, &text(2, 64));
    let mut all = held(&first.events);
    replay(&mut all, &queue.take().events);
    assert_eq!(all, held(&pages.stored_pages()));
    assert!(!all.contains(&(*node, PageKind::Sliding)), "the window has left it");
    drop(other);
}

#[test]
fn an_emptied_and_a_dropped_allocator_have_one_event() {
    let (pages, queue) = (allocator(), PageEventQueue::new(1000));
    let source = pages.send_events(queue.clone(), LAYOUT);
    drop(prefill(&pages, &text(1, 22)));
    pages.clear_prefix_cache();
    assert_eq!(queue.take().events, [PageEvent::Cleared(LAYOUT)]);
    drop(prefill(&pages, &text(1, 22)));
    drop(source);
    assert_eq!(queue.take().events, [PageEvent::Cleared(LAYOUT)]);
    drop(prefill(&pages, &text(2, 22)));
    assert!(queue.is_empty());
    // Another allocator takes its place, and sends what it holds.
    let _source = pages.send_events(queue.clone(), LAYOUT);
    let taken = queue.take().events;
    assert_eq!(taken[0], PageEvent::Cleared(LAYOUT));
    assert_eq!(taken[1..], pages.stored_pages());
}

#[test]
fn a_full_queue_is_replaced_by_what_the_tree_holds() {
    let (pages, queue) = (allocator(), PageEventQueue::new(8));
    let source = pages.send_events(queue.clone(), LAYOUT);
    let one = prefill(&pages, &text(1, 40));
    assert_eq!(queue.len(), 1);
    let taken = queue.take();
    assert!(taken.overflowed);
    assert_eq!(taken.events[0], PageEvent::Cleared(LAYOUT));
    assert_eq!(taken.events[1..], pages.stored_pages());
    assert_eq!(queue.take(), TakenEvents::default());
    // It goes on from there.
    drop(prefill(&pages, &text(2, 5)));
    let next = queue.take();
    assert_eq!((stored(&next.events), next.overflowed), ([1, 1], false));
    // A store that ends after an overflow leaves nothing.
    drop(prefill(&pages, &text(3, 20)));
    drop((one, source));
    assert_eq!(queue.take(), TakenEvents { events: vec![PageEvent::Cleared(LAYOUT)], overflowed: false });
}
