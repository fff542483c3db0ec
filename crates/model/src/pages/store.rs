//! The state behind [`PageAllocator`](super::PageAllocator): free pages and slots, reference counts, and the
//! prefix tree.

use std::collections::VecDeque;

use super::{
    FinishedSequence, HeldPages, PageConfig, PageCopy, PageKind, Sequence, TreePosition,
    events::EventLog,
    min_copied,
    prefix_tree::{NodeId, PrefixTree, ROOT},
};
use crate::image::floor_image_boundary;

/// The pages of one kind.
#[derive(Debug)]
pub(super) struct PagePool {
    pub free: Vec<u32>,
    /// By page: the number of sequences that hold it, plus one if a tree node does.
    references: Vec<u32>,
    /// By page: the tree node that holds it.
    nodes: Vec<Option<NodeId>>,
}

impl PagePool {
    fn new(pages: u32) -> Self {
        // Pages are popped from the end: the lowest numbers first.
        let free = (0..pages).rev().collect();
        Self { free, references: vec![0; pages as usize], nodes: vec![None; pages as usize] }
    }

    /// The number of sequences that hold a page.
    fn sequences(&self, page: u32) -> u32 {
        self.references[page as usize] - u32::from(self.nodes[page as usize].is_some())
    }
}

/// All pages, all slots and the prefix cache.
#[derive(Debug)]
pub(super) struct PageStore {
    pub config: PageConfig,
    pub slots: Vec<u32>,
    /// By kind.
    pub pools: [PagePool; 2],
    pub tree: PrefixTree,
    /// Incremented when the prefix cache is cleared, which invalidates earlier tree positions.
    epoch: u64,
    /// Incremented whenever pages are released: the time of least-recently-used eviction.
    pub clock: u64,
    /// Texts whose sequences have ended, to be stored on disk; `None` where they are not.
    pub finished: Option<VecDeque<FinishedSequence>>,
    /// Who is told of changes of the tree; `None`: nobody.
    pub events: Option<EventLog>,
}

/// The longest usable prefix of a prompt.
struct KnownPrefix {
    /// Nodes of full pages, in order.
    nodes: Vec<NodeId>,
    /// A page after them that starts with the same tokens, and how many.
    partial: Option<(NodeId, usize)>,
    /// Full pages of the prompt that the tree has, including those after a gap in the sliding-window pages.
    known: u32,
}

impl PageStore {
    pub fn new(config: PageConfig) -> Self {
        let pools =
            [PagePool::new(config.full_pages), PagePool::new(config.sliding_pages * config.max_sequences)];
        let slots = (0..config.max_sequences).rev().collect();
        Self {
            config,
            slots,
            pools,
            tree: PrefixTree::new(),
            epoch: 0,
            clock: 0,
            finished: None,
            events: None,
        }
    }

    /// Changes when the prefix cache is cleared.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The length of the longest usable prefix of a prompt.
    pub fn cached_len(&self, tokens: &[u32]) -> usize {
        let found = self.find_prefix(tokens);
        found.nodes.len() * self.config.page_size as usize + found.partial.map_or(0, |(_, count)| count)
    }

    /// Pages that neither a sequence nor the tree holds.
    pub fn unused(&self, kind: PageKind) -> usize {
        self.pools[kind as usize].free.len()
    }

    /// Pages that only the tree holds.
    pub fn cached(&self, kind: PageKind) -> usize {
        self.tree.evictable(kind)
    }

    /// Gives a new sequence the longest cached prefix of these tokens, without the last token. Returns the pages to copy
    /// for it.
    pub fn attach_prefix(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Vec<PageCopy> {
        if !self.config.prefix_cache {
            return vec![];
        }
        let KnownPrefix { nodes, partial, known } = self.find_prefix(tokens);
        let page_size = self.config.page_size;
        let full = nodes.len() as u32;
        sequence.prompt_len = tokens.len() as u32;
        sequence.branch_points = [known, (tokens.len() as u32).saturating_sub(1) / page_size];
        sequence.len = full * page_size + partial.map_or(0, |(_, count)| count as u32);
        let first = self.config.first_visible(sequence.len).min(full);
        sequence.pages[1].first = first;
        for (depth, node) in (0..).zip(&nodes) {
            for kind in PageKind::ALL {
                if (kind == PageKind::Full || depth >= first)
                    && let Some(page) = self.tree.page(*node, kind)
                {
                    self.acquire(kind, page);
                    sequence.pages[kind as usize].pages.push(page);
                }
            }
        }
        let copies = match partial {
            Some((node, count)) if self.can_take_over(node, count) => {
                self.take_over(sequence, node);
                vec![]
            }
            Some((node, _)) => self.copy_pages(sequence, node),
            None => vec![],
        };
        sequence.tokens = tokens[..sequence.len as usize].to_vec();
        sequence.cached = sequence.len;
        let node = nodes.last().copied().unwrap_or(ROOT);
        sequence.tree_position = Some(TreePosition { node, epoch: self.epoch });
        copies
    }

    /// Whether a sequence that continues `count` tokens of a node may write into its pages: it continues all of them, and
    /// no other sequence holds them.
    fn can_take_over(&self, node: NodeId, count: usize) -> bool {
        let is_held = |kind: PageKind| {
            let page = self.tree.page(node, kind);
            page.is_some_and(|page| self.pools[kind as usize].sequences(page) > 0)
        };
        count == self.tree.token_count(node)
            && count < self.config.page_size as usize
            && !PageKind::ALL.into_iter().any(is_held)
    }

    /// Moves the pages of a node from the tree to a sequence.
    fn take_over(&mut self, sequence: &mut Sequence, node: NodeId) {
        for (kind, page) in self.tree.remove(node).into_iter().enumerate() {
            if let Some(page) = page {
                // The node's reference becomes the sequence's.
                self.pools[kind].nodes[page as usize] = None;
                sequence.pages[kind].pages.push(page);
            }
        }
    }

    /// Allocates pages for a sequence that are to be copied from those of a node.
    fn copy_pages(&mut self, sequence: &mut Sequence, node: NodeId) -> Vec<PageCopy> {
        self.clock += 1;
        let mut copies = vec![];
        for kind in PageKind::ALL {
            let Some(from) = self.tree.page(node, kind) else { continue };
            // Not the page to evict for the copy.
            self.acquire(kind, from);
            if let Some(to) = self.allocate(kind) {
                sequence.pages[kind as usize].pages.push(to);
                copies.push(PageCopy { kind, from, to });
            }
            self.release(kind, from, kind == PageKind::Sliding);
        }
        copies
    }

    /// Whether a page can be allocated of each kind while this many nodes are in use.
    fn has_pages_beside(&self, nodes: usize) -> bool {
        PageKind::ALL.into_iter().all(|kind| self.unused(kind) > 0 || self.cached(kind) > nodes)
    }

    /// Full-attention pages that a sequence with these tokens would share with running sequences.
    pub fn shared_pages(&self, tokens: &[u32]) -> u32 {
        let nodes = self.find_prefix(tokens).nodes.into_iter();
        let pages = nodes.filter_map(|node| self.tree.page(node, PageKind::Full));
        pages.filter(|page| self.pools[0].sequences(*page) > 0).count() as u32
    }

    /// The longest usable prefix of a prompt, which does not end inside an image.
    fn find_prefix(&self, tokens: &[u32]) -> KnownPrefix {
        // The last token is always computed: its logits are needed.
        let mut end = tokens.len().saturating_sub(1);
        loop {
            let found = self.find_prefix_of(&tokens[..end]);
            let full = found.nodes.len() * self.config.page_size as usize;
            let len = full + found.partial.map_or(0, |(_, count)| count);
            end = floor_image_boundary(tokens, len);
            if end == len {
                return found;
            }
        }
    }

    fn find_prefix_of(&self, tokens: &[u32]) -> KnownPrefix {
        let page_size = self.config.page_size as usize;
        let (mut nodes, mut last) = (vec![], ROOT);
        // Up to each node, the number of sliding-window pages without a gap.
        let mut runs = vec![0];
        for tokens in tokens.chunks_exact(page_size) {
            let Some(node) = self.tree.child(last, tokens) else { break };
            let run = self.tree.page(node, PageKind::Sliding).map_or(0, |_| runs[nodes.len()] + 1);
            runs.push(run);
            nodes.push(node);
            last = node;
        }
        let known = nodes.len();
        let has_window = |full: usize, more: usize| {
            let first = self.config.first_visible((full * page_size + more) as u32);
            runs[full] >= (full as u32).saturating_sub(first)
        };
        let rest = &tokens[known * page_size..];
        let partial = self.tree.longest_match(last, rest).filter(|(node, count)| {
            let has_pages = PageKind::ALL.into_iter().all(|kind| self.tree.page(*node, kind).is_some());
            let usable = self.can_take_over(*node, *count)
                || *count >= min_copied(self.config.page_size as usize) && self.has_pages_beside(known + 1);
            has_pages && usable && has_window(known, *count)
        });
        if partial.is_some() {
            return KnownPrefix { nodes, partial, known: known as u32 };
        }
        let full = (0..=known).rev().find(|full| has_window(*full, 0)).unwrap_or(0);
        nodes.truncate(full);
        KnownPrefix { nodes, partial: None, known: known as u32 }
    }

    /// Allocates pages up to page index `end`, after releasing those that the window has left. Returns
    /// whether enough pages were free; if not, nothing has changed.
    pub fn extend(&mut self, sequence: &mut Sequence, end: u32) -> bool {
        let sliding = &sequence.pages[1];
        let left = self.config.first_visible(sequence.len).saturating_sub(sliding.first) as usize;
        let left = left.min(sliding.pages.len());
        let released =
            sliding.pages[..left].iter().filter(|page| self.pools[1].sequences(**page) == 1).count();
        let needed = sequence.pages.each_ref().map(|held| held.missing(end));
        let available = PageKind::ALL.map(|kind| self.unused(kind) + self.cached(kind));
        if needed[0] > available[0] || needed[1] > available[1] + released {
            return false;
        }
        self.clock += 1;
        for _ in 0..left {
            self.release_first_sliding(sequence);
        }
        for (kind, count) in PageKind::ALL.into_iter().zip(needed) {
            let taken = (0..count).filter_map(|_| self.allocate(kind));
            sequence.pages[kind as usize].pages.extend(taken);
        }
        true
    }

    /// Releases the first sliding-window page, which the window has left.
    fn release_first_sliding(&mut self, sequence: &mut Sequence) {
        let index = sequence.pages[1].first;
        let page = sequence.pages[1].pages.remove(0);
        sequence.pages[1].first += 1;
        let protected =
            sequence.branch_points.iter().any(|point| self.config.window_before(*point).contains(&index));
        self.release(PageKind::Sliding, page, protected);
    }

    /// Puts the sequence's full pages into the tree. Where the tree has them already, the sequence adopts the
    /// tree's.
    pub fn publish(&mut self, sequence: &mut Sequence) {
        let Some(mut position) = sequence.tree_position.filter(|position| position.epoch == self.epoch)
        else {
            return;
        };
        let page_size = self.config.page_size as usize;
        loop {
            let depth = self.tree.depth(position.node);
            let first = depth as usize * page_size;
            let Some(tokens) = sequence.tokens.get(first..first + page_size) else { break };
            let tokens = tokens.to_vec();
            self.forget_prompt_end(sequence);
            position.node = match self.tree.child(position.node, &tokens) {
                Some(node) => {
                    self.adopt(sequence, node, depth);
                    node
                }
                None => {
                    let pages = sequence.pages.each_ref().map(|held| held.get(depth));
                    self.insert(position.node, &tokens, pages)
                }
            };
        }
        sequence.tree_position = Some(position);
        self.publish_prompt_end(sequence, position);
    }

    /// Puts the partial page that a sequence's prompt ends in into the tree, for other prompts to copy, when its prompt is
    /// complete. The sequence goes on writing after the tokens of the node.
    fn publish_prompt_end(&mut self, sequence: &mut Sequence, position: TreePosition) {
        if sequence.len < sequence.prompt_len {
            return;
        }
        // Once.
        sequence.prompt_len = u32::MAX;
        let depth = self.tree.depth(position.node);
        let rest = &sequence.tokens[(depth * self.config.page_size) as usize..];
        let pages = sequence.pages.each_ref().map(|held| held.get(depth));
        if rest.len() >= min_copied(self.config.page_size as usize)
            && self.tree.child(position.node, rest).is_none()
        {
            let node = self.insert(position.node, rest, pages);
            sequence.prompt_end = Some(TreePosition { node, epoch: self.epoch });
        }
    }

    /// Removes the node of [`Self::publish_prompt_end`].
    pub fn forget_prompt_end(&mut self, sequence: &mut Sequence) {
        if let Some(end) = sequence.prompt_end.take().filter(|end| end.epoch == self.epoch) {
            self.remove(end.node);
        }
    }

    /// Replaces a sequence's page by the one the tree has of the same tokens; fills a gap of the tree's
    /// sliding-window pages.
    fn adopt(&mut self, sequence: &mut Sequence, node: NodeId, depth: u32) {
        let own = &mut sequence.pages[0].pages[depth as usize];
        if let Some(known) = self.tree.page(node, PageKind::Full).filter(|known| *known != *own) {
            let own = std::mem::replace(own, known);
            sequence.first_stale_entry = sequence.first_stale_entry.min(depth);
            self.acquire(PageKind::Full, known);
            self.release(PageKind::Full, own, false);
        }
        if let (None, Some(page)) = (self.tree.page(node, PageKind::Sliding), sequence.pages[1].get(depth)) {
            self.set_node_page(node, PageKind::Sliding, page);
        }
    }

    /// Gives a node a page that it lacks.
    pub(super) fn set_node_page(&mut self, node: NodeId, kind: PageKind, page: u32) {
        self.tree.set_page(node, kind, Some(page));
        self.acquire_for_node(kind, page, node);
        self.log_stored(node, kind);
    }

    pub(super) fn insert(&mut self, parent: NodeId, tokens: &[u32], pages: [Option<u32>; 2]) -> NodeId {
        let node = self.tree.insert(parent, tokens, pages);
        for (kind, page) in PageKind::ALL.into_iter().zip(pages) {
            if let Some(page) = page {
                self.acquire_for_node(kind, page, node);
                self.log_stored(node, kind);
            }
        }
        node
    }

    /// Whether no other sequence holds the pages of this position, so that it may be written again.
    pub fn is_exclusive(&self, sequence: &Sequence, position: u32) -> bool {
        let index = position / self.config.page_size;
        PageKind::ALL.into_iter().all(|kind| {
            let page = sequence.pages[kind as usize].get(index);
            page.is_none_or(|page| self.pools[kind as usize].sequences(page) == 1)
        })
    }

    /// Releases a sequence's pages after `len` tokens. The tree keeps full pages, but not one of which a part
    /// remains: the sequence will write into it.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: u32) {
        self.clock += 1;
        let end = len.div_ceil(self.config.page_size);
        for (kind, held) in PageKind::ALL.into_iter().zip(&mut sequence.pages) {
            let keep = (end.saturating_sub(held.first) as usize).min(held.pages.len());
            for page in held.pages.drain(keep..) {
                self.release(kind, page, kind == PageKind::Sliding);
            }
            if len == 0 {
                held.first = 0;
            }
        }
        if let Some(position) =
            sequence.tree_position.as_mut().filter(|position| position.epoch == self.epoch)
        {
            let full = len / self.config.page_size;
            if end > full && self.tree.depth(position.node) > full {
                let partial = self.tree.ancestor(position.node, end);
                position.node = self.tree.ancestor(partial, full);
                self.remove_subtree(partial);
            }
            position.node = self.tree.ancestor(position.node, full);
        }
    }

    fn remove_subtree(&mut self, root: NodeId) {
        let mut nodes = vec![root];
        let mut next = 0;
        while next < nodes.len() {
            nodes.extend(self.tree.children(nodes[next]));
            next += 1;
        }
        nodes.into_iter().rev().for_each(|node| self.remove(node));
    }

    /// Ends a sequence: its pages go to the tree or become free.
    pub fn finish(&mut self, sequence: &mut Sequence) {
        self.clock += 1;
        self.forget_prompt_end(sequence);
        if let Some(position) = sequence.tree_position.filter(|position| position.epoch == self.epoch) {
            let depth = self.tree.depth(position.node);
            let rest = &sequence.tokens[(depth * self.config.page_size) as usize..];
            let pages = sequence.pages.each_ref().map(|held| held.get(depth));
            if !rest.is_empty() && self.tree.child(position.node, rest).is_none() {
                self.insert(position.node, rest, pages);
            }
        }
        for page in std::mem::take(&mut sequence.pages[0].pages) {
            self.release(PageKind::Full, page, false);
        }
        let first_visible = self.config.first_visible(sequence.len);
        while sequence.pages[1].first < first_visible && !sequence.pages[1].pages.is_empty() {
            self.release_first_sliding(sequence);
        }
        for page in std::mem::take(&mut sequence.pages[1].pages) {
            self.release(PageKind::Sliding, page, true);
        }
        self.note_finished(sequence);
        self.slots.push(sequence.slot);
    }

    /// Empties the tree. Running sequences keep their pages and add nothing to it any more.
    pub fn clear_prefix_cache(&mut self) {
        self.log_cleared(|store| {
            let prefixes: Vec<NodeId> = store.tree.children(ROOT).collect();
            prefixes.into_iter().for_each(|node| store.remove_subtree(node));
        });
        self.epoch += 1;
        self.finished.iter_mut().for_each(VecDeque::clear);
    }

    /// Takes a free page, after evicting one if there is none.
    pub(super) fn allocate(&mut self, kind: PageKind) -> Option<u32> {
        if self.pools[kind as usize].free.is_empty() {
            self.evict(kind)?;
        }
        let page = self.pools[kind as usize].free.pop()?;
        self.pools[kind as usize].references[page as usize] = 1;
        Some(page)
    }

    /// Evicts the first cached page in eviction order.
    fn evict(&mut self, kind: PageKind) -> Option<()> {
        let node = self.tree.next_victim(kind)?;
        let is_partial = self.tree.token_count(node) < self.config.page_size as usize;
        match kind {
            PageKind::Sliding if !is_partial => {
                let page = self.tree.page(node, kind)?;
                self.log_removed(node, kind);
                self.tree.set_page(node, kind, None);
                self.release_from_node(kind, page);
            }
            // A partial page without its window is useless.
            PageKind::Full | PageKind::Sliding => self.remove(node),
        }
        Some(())
    }

    fn remove(&mut self, node: NodeId) {
        for kind in PageKind::ALL.into_iter().rev().filter(|kind| self.tree.page(node, *kind).is_some()) {
            self.log_removed(node, kind);
        }
        let pages = self.tree.remove(node);
        for (kind, page) in PageKind::ALL.into_iter().zip(pages) {
            if let Some(page) = page {
                self.release_from_node(kind, page);
            }
        }
    }

    /// Adds a sequence's reference to a page.
    pub(super) fn acquire(&mut self, kind: PageKind, page: u32) {
        let pool = &mut self.pools[kind as usize];
        pool.references[page as usize] += 1;
        if let Some(node) = pool.nodes[page as usize] {
            self.tree.pin(node, kind);
        }
    }

    pub(super) fn acquire_for_node(&mut self, kind: PageKind, page: u32, node: NodeId) {
        let pool = &mut self.pools[kind as usize];
        pool.references[page as usize] += 1;
        pool.nodes[page as usize] = Some(node);
    }

    /// Drops a sequence's reference to a page. `protected` pages are evicted after all others.
    pub(super) fn release(&mut self, kind: PageKind, page: u32, protected: bool) {
        let pool = &mut self.pools[kind as usize];
        pool.references[page as usize] -= 1;
        match (pool.references[page as usize], pool.nodes[page as usize]) {
            (0, _) => pool.free.push(page),
            (1, Some(node)) => self.tree.make_evictable(node, kind, protected, self.clock),
            _ => {}
        }
    }

    fn release_from_node(&mut self, kind: PageKind, page: u32) {
        let pool = &mut self.pools[kind as usize];
        pool.nodes[page as usize] = None;
        pool.references[page as usize] -= 1;
        if pool.references[page as usize] == 0 {
            pool.free.push(page);
        }
    }
}

impl HeldPages {
    /// The page with this index.
    fn get(&self, index: u32) -> Option<u32> {
        self.pages.get(index.checked_sub(self.first)? as usize).copied()
    }

    /// The number of pages missing up to index `end`.
    fn missing(&self, end: u32) -> usize {
        (end.saturating_sub(self.first) as usize).saturating_sub(self.pages.len())
    }
}

#[cfg(test)]
mod tests;
