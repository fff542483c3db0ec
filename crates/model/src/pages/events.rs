//! Changes of the prefix tree, for programs that route requests by what a server has cached.
//!
//! The page allocator puts [`PageEvent`]s into a [`PageEventQueue`], in the order of the changes; another thread takes
//! them out. The queue is bounded: when it is full, its events are discarded, and the next [`PageEventQueue::take`]
//! returns all that the tree holds instead. Only while it lists the tree may the engine have to wait. Without a queue, nothing is done per page.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use super::{
    PageAllocator, PageKind, locked,
    prefix_tree::{NodeId, ROOT},
    store::PageStore,
};

/// What the pages of a KV cache are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Tokens per page.
    pub page_size: u32,
    /// Whether there are layers with full attention.
    pub has_full: bool,
    /// The window of layers with sliding-window attention, if there are such layers.
    pub sliding_window: Option<u32>,
}

/// A change of the prefix tree. Only full pages have events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageEvent {
    /// A node of the tree got its page of these layers.
    Stored {
        /// The node. Numbers of removed nodes are used again.
        node: usize,
        /// The node before it; `None` at the beginning of a text.
        parent: Option<usize>,
        /// The tokens of the page.
        tokens: Arc<[u32]>,
        /// The layers.
        kind: PageKind,
    },
    /// A node lost its page of these layers. Without that of full-attention layers, which it loses last, the node is gone.
    Removed {
        /// The node.
        node: usize,
        /// The layers.
        kind: PageKind,
    },
    /// The tree is empty.
    Cleared(PageLayout),
}

/// What [`PageEventQueue::take`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenEvents {
    /// In order.
    pub events: Vec<PageEvent>,
    /// Whether events were discarded: these begin with [`PageEvent::Cleared`], and all that the tree holds follows.
    pub overflowed: bool,
}

/// Events of a page allocator, and of the one that takes its place after a lost device. Clones share them.
#[derive(Clone)]
pub struct PageEventQueue(Arc<Shared>);

struct Shared {
    capacity: usize,
    state: Mutex<State>,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    events: Vec<PageEvent>,
    overflowed: bool,
    /// The store whose events these are.
    source: Weak<Mutex<PageStore>>,
}

impl fmt::Debug for PageEventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageEventQueue").field("capacity", &self.0.capacity).finish_non_exhaustive()
    }
}

impl PageEventQueue {
    /// A queue for at most this many events.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Shared { capacity, state: Mutex::default(), wake: OnceLock::new() }))
    }

    /// Calls `wake`, which must not block, after each event. Only the first call has an effect.
    pub fn on_event(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.wake.set(Box::new(wake));
    }

    /// The number of events in the queue; one if events were discarded.
    pub fn len(&self) -> usize {
        let state = self.state();
        state.events.len().max(usize::from(state.overflowed))
    }

    /// Whether nothing has changed since the last [`PageEventQueue::take`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all events. If some were discarded, it locks the allocator for as long as it takes to list its pages.
    pub fn take(&self) -> TakenEvents {
        loop {
            let mut state = self.state();
            if !state.overflowed {
                return TakenEvents { events: std::mem::take(&mut state.events), overflowed: false };
            }
            let source = state.source.upgrade();
            drop(state);
            // The store's lock comes first, as where events are pushed.
            let Some(store) = source.as_deref().map(locked) else {
                // It is gone, and nothing of it is left to list.
                let mut state = self.state();
                state.overflowed = false;
                return TakenEvents { events: std::mem::take(&mut state.events), overflowed: false };
            };
            // A store that is gone by now has said that it is empty, which ends the overflow.
            let Some(log) = &store.events else { continue };
            let mut state = self.state();
            state.events.clear();
            state.overflowed = false;
            let mut events = vec![PageEvent::Cleared(log.layout)];
            events.extend(store.stored_pages());
            return TakenEvents { events, overflowed: true };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: PageEvent) {
        let mut state = self.state();
        if matches!(event, PageEvent::Cleared(_)) {
            // Whatever was before it is gone.
            state.events.clear();
            state.events.push(event);
            state.overflowed = false;
        } else if state.overflowed {
            return;
        } else if state.events.len() < self.0.capacity {
            state.events.push(event);
        } else {
            state.events.clear();
            state.overflowed = true;
        }
        drop(state);
        if let Some(wake) = self.0.wake.get() {
            wake();
        }
    }
}

/// The queue that a store's events go to.
#[derive(Debug)]
pub(super) struct EventLog {
    queue: PageEventQueue,
    layout: PageLayout,
}

/// Ends the events of an allocator when it is dropped: nothing that it held is cached any more.
#[derive(Debug)]
#[must_use = "the events end when it is dropped"]
pub struct EventSource(PageAllocator);

impl Drop for EventSource {
    fn drop(&mut self) {
        if let Some(log) = locked(&self.0.store).events.take() {
            log.queue.push(PageEvent::Cleared(log.layout));
        }
    }
}

impl PageAllocator {
    /// Puts the changes of the prefix tree into a queue, all that it holds first, until the source is dropped.
    pub fn send_events(&self, queue: PageEventQueue, layout: PageLayout) -> EventSource {
        let mut store = locked(&self.store);
        queue.state().source = Arc::downgrade(&self.store);
        queue.push(PageEvent::Cleared(layout));
        store.stored_pages().into_iter().for_each(|event| queue.push(event));
        store.events = Some(EventLog { queue, layout });
        EventSource(self.clone())
    }

    /// All full pages in the prefix tree as events, parents before their children.
    pub fn stored_pages(&self) -> Vec<PageEvent> {
        locked(&self.store).stored_pages()
    }
}

impl PageStore {
    fn stored_pages(&self) -> Vec<PageEvent> {
        let mut nodes: Vec<NodeId> = self.tree.children(ROOT).collect();
        let mut events = vec![];
        // Depth first: chains of pages are together.
        while let Some(node) = nodes.pop() {
            nodes.extend(self.tree.children(node));
            let kinds = PageKind::ALL.into_iter().filter(|kind| self.tree.page(node, *kind).is_some());
            events.extend(kinds.filter_map(|kind| self.stored_event(node, kind)));
        }
        events
    }

    /// `None` for a partial page.
    fn stored_event(&self, node: NodeId, kind: PageKind) -> Option<PageEvent> {
        let parent = Some(self.tree.parent(node)).filter(|parent| *parent != ROOT);
        let tokens = self.tree.tokens(node);
        let is_full = tokens.len() == self.config.page_size as usize;
        is_full.then(|| PageEvent::Stored { node, parent, tokens: tokens.clone(), kind })
    }

    /// A node got its page.
    pub fn log_stored(&self, node: NodeId, kind: PageKind) {
        if let Some(log) = &self.events
            && let Some(event) = self.stored_event(node, kind)
        {
            log.queue.push(event);
        }
    }

    /// A node is about to lose its page.
    pub fn log_removed(&self, node: NodeId, kind: PageKind) {
        if let Some(log) = &self.events
            && self.tree.token_count(node) == self.config.page_size as usize
        {
            log.queue.push(PageEvent::Removed { node, kind });
        }
    }

    /// Runs `clear`, which empties the tree: one event instead of one per page.
    pub fn log_cleared(&mut self, clear: impl FnOnce(&mut Self)) {
        let log = self.events.take();
        clear(self);
        if let Some(log) = &log {
            log.queue.push(PageEvent::Cleared(log.layout));
        }
        self.events = log;
    }
}

#[cfg(test)]
mod tests;
