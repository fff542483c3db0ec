//! The publisher over TCP, on top of the real page allocator, with a subscriber that shares no code with it.

mod bad_input;
mod log;
mod random;
mod shutdown;
#[path = "../common/subscriber.rs"]
mod subscriber;

use std::{collections::BTreeMap, collections::BTreeSet, convert::Infallible, net::SocketAddr};

use kvevents::{Limits, Options, Publisher, Stats};
use model::{
    Sequence,
    pages::{
        EventSource, PageAllocator, PageConfig, PageEvent, PageEventQueue, PageKind, PageLayout,
        sliding_pages,
    },
};
use subscriber::{Connection, Tree};

const PAGE: u32 = 4;
const WINDOW: u32 = 10;
const TOPIC: &str = "kv@127.0.0.1:8006@m";
const LAYOUT: PageLayout = PageLayout { page_size: PAGE, has_full: true, sliding_window: Some(WINDOW) };

/// A page allocator whose events are published.
struct Server {
    pages: PageAllocator,
    source: EventSource,
    queue: PageEventQueue,
    publisher: Publisher,
}

fn allocator() -> PageAllocator {
    PageAllocator::new(PageConfig {
        max_sequences: 4,
        page_size: PAGE,
        window: WINDOW,
        full_pages: 60,
        sliding_pages: sliding_pages(64, PAGE, WINDOW, 8),
        prefix_cache: true,
    })
}

fn options(limits: Limits) -> Options {
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    Options { events: free, replay: Some(free), topic: TOPIC.into(), model: "m".into(), limits }
}

impl Server {
    fn start(queue: usize, limits: Limits) -> Server {
        let (pages, queue) = (allocator(), PageEventQueue::new(queue));
        let source = pages.send_events(queue.clone(), LAYOUT);
        let publisher = Publisher::start(options(limits), queue.clone()).unwrap();
        Server { pages, source, queue, publisher }
    }

    /// Starts anew with an empty memory, as after a lost device.
    fn lose_device(&mut self) {
        self.pages = allocator();
        // The old source ends first, as the old runner is dropped before another one is loaded.
        drop(std::mem::replace(&mut self.source, allocator().send_events(PageEventQueue::new(1), LAYOUT)));
        self.source = self.pages.send_events(self.queue.clone(), LAYOUT);
    }

    fn events(&self) -> SocketAddr {
        self.publisher.events_address()
    }

    fn replay(&self) -> SocketAddr {
        self.publisher.replay_address().unwrap()
    }

    /// Starts a sequence with what is cached, and prefills the rest, if there are pages for it.
    fn prefill(&self, text: &[u32]) -> Option<Sequence> {
        let Ok::<_, Infallible>(started) = self.pages.start_with(text, |_| Ok(()));
        let mut sequence = started?;
        let known = sequence.len() as usize;
        text[known..].chunks(8).all(|chunk| self.append(&mut sequence, chunk)).then_some(sequence)
    }

    fn append(&self, sequence: &mut Sequence, tokens: &[u32]) -> bool {
        let extended = self.pages.extend(sequence, tokens.len() as u32);
        if extended {
            self.pages.advance(sequence, tokens);
        }
        extended
    }

    /// Waits until everything is published.
    fn published(&self) -> Stats {
        let monitor = self.publisher.monitor();
        while monitor.stats().pending {
            std::thread::yield_now();
        }
        monitor.stats()
    }

    /// Waits for a state of the publisher.
    fn wait_for(&self, holds: impl Fn(Stats) -> bool) {
        while !holds(self.publisher.monitor().stats()) {
            std::thread::yield_now();
        }
    }

    /// All blocks that the prefix tree holds: all tokens up to the end of each, and its group.
    fn blocks(&self) -> BTreeSet<(Vec<u32>, u64)> {
        let mut paths: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut blocks = BTreeSet::new();
        for event in self.pages.stored_pages() {
            let PageEvent::Stored { node, parent, tokens, kind } = event else { unreachable!() };
            let mut path = parent.map_or(vec![], |parent| paths[&parent].clone());
            path.extend(&tokens[..]);
            assert!(self.pages.read_known(&path, kind, |_| ()).is_some(), "the tree holds it");
            paths.insert(node, path.clone());
            blocks.insert((path, if kind == PageKind::Full { 0 } else { 1 }));
        }
        blocks
    }
}

/// What a subscriber knows.
struct Follower {
    connection: Connection,
    tree: Tree,
    /// The sequence number of the next batch.
    next: u64,
}

impl Follower {
    /// Joins with a replay from the first batch on.
    fn join(server: &Server, minor: u8) -> Follower {
        let connection = subscriber::subscribe(server.events(), b"kv@", minor);
        let mut follower = Follower { connection, tree: Tree::default(), next: 0 };
        follower.replay(server, 0);
        follower
    }

    fn replay(&mut self, server: &Server, from: u64) {
        let batches = subscriber::replay(server.replay(), from);
        for (index, (topic, sequence, payload)) in batches.into_iter().enumerate() {
            assert_eq!(topic, TOPIC.as_bytes());
            assert_eq!(
                sequence,
                from + index as u64,
                "it begins with the number that was asked for, and has no gap"
            );
            self.tree.apply(&payload);
            self.next = sequence + 1;
        }
    }

    /// Reads up to this batch.
    fn follow(&mut self, batches: u64) {
        while self.next < batches {
            let (topic, sequence, payload) = self.connection.next_batch().expect("the connection stays open");
            assert_eq!(topic, TOPIC.as_bytes());
            // What the replay had as well.
            if sequence >= self.next {
                assert_eq!(sequence, self.next, "batches are in order");
                self.tree.apply(&payload);
                self.next += 1;
            }
        }
    }
}
