//! Who holds which page: sequences, and nodes of the tree.

use super::{
    Held, Kind, Place, Sequence, Shape,
    tree::{NodeId, ROOT, Tree},
};

/// Pages of a kind.
#[derive(Debug)]
struct Pool {
    free: Vec<u32>,
    /// By page: how many sequences hold it, and one more if a node does.
    holders: Vec<u32>,
    /// By page: the node that holds it.
    nodes: Vec<Option<NodeId>>,
}

impl Pool {
    fn new(count: u32) -> Self {
        let count_of_pages = count as usize;
        // The lowest numbers are taken first.
        let free = (0..count).rev().collect();
        Self { free, holders: vec![0; count_of_pages], nodes: vec![None; count_of_pages] }
    }

    /// Sequences that hold a page.
    fn sequences(&self, page: u32) -> u32 {
        self.holders[page as usize] - u32::from(self.nodes[page as usize].is_some())
    }
}

/// All pages and slots.
#[derive(Debug)]
pub(super) struct Store {
    pub shape: Shape,
    pub slots: Vec<u32>,
    pools: [Pool; 2],
    tree: Tree,
    /// Grows when all is forgotten: places of before are nowhere.
    epoch: u64,
    /// Grows whenever pages are let go of.
    clock: u64,
}

/// A known beginning of a text, as far as it can be gone on from.
struct Found {
    /// Nodes of full pages, in order.
    nodes: Vec<NodeId>,
    /// A tail behind them.
    tail: Option<NodeId>,
    /// How many full pages of the text are known, with those whose window is gone.
    known: u32,
}

impl Store {
    pub fn new(shape: Shape) -> Self {
        let pools = [Pool::new(shape.pages), Pool::new(shape.sliding * shape.sequences)];
        let slots = (0..shape.sequences).rev().collect();
        Self { shape, slots, pools, tree: Tree::new(), epoch: 0, clock: 0 }
    }

    pub fn free(&self, kind: Kind) -> usize {
        self.pools[kind as usize].free.len()
    }

    pub fn cached(&self, kind: Kind) -> usize {
        self.tree.idle(kind)
    }

    /// Gives a new sequence the longest known beginning of these tokens, without the last of them.
    pub fn begin(&mut self, sequence: &mut Sequence, tokens: &[u32]) {
        if !self.shape.prefix {
            return;
        }
        let Found { nodes, tail, known } = self.find(tokens);
        let page = self.shape.page;
        let full = nodes.len() as u32;
        sequence.marks = [known, (tokens.len() as u32).saturating_sub(1) / page];
        sequence.len = full * page + tail.map_or(0, |tail| self.tree.tokens(tail) as u32);
        let first = self.shape.first_seen(sequence.len).min(full);
        sequence.pages[1].first = first;
        for (depth, node) in (0..).zip(&nodes) {
            for kind in [Kind::Global, Kind::Sliding] {
                if (kind == Kind::Global || depth >= first)
                    && let Some(number) = self.tree.page(*node, kind)
                {
                    self.hold(kind, number);
                    sequence.pages[kind as usize].pages.push(number);
                }
            }
        }
        if let Some(tail) = tail {
            let pages = self.tree.remove(tail);
            for (kind, number) in pages.into_iter().enumerate() {
                if let Some(number) = number {
                    // What the tree held the sequence holds now.
                    self.pools[kind].nodes[number as usize] = None;
                    sequence.pages[kind].pages.push(number);
                }
            }
        }
        sequence.tokens = tokens[..sequence.len as usize].to_vec();
        sequence.cached = sequence.len;
        sequence.place = Some(Place { node: nodes.last().copied().unwrap_or(ROOT), epoch: self.epoch });
    }

    /// Global pages that a sequence with these tokens would share with others under way.
    pub fn shared(&self, tokens: &[u32]) -> u32 {
        let pages = self.find(tokens).nodes.into_iter().filter_map(|node| self.tree.page(node, Kind::Global));
        pages.filter(|page| self.pools[0].sequences(*page) > 0).count() as u32
    }

    fn find(&self, tokens: &[u32]) -> Found {
        let page = self.shape.page as usize;
        // The last is read: its logits are wanted.
        let tokens = &tokens[..tokens.len().saturating_sub(1)];
        let (mut nodes, mut last) = (vec![], ROOT);
        // How many sliding pages there are without a gap up to each node.
        let mut runs = vec![0];
        for tokens in tokens.chunks_exact(page) {
            let Some(node) = self.tree.child(last, tokens) else { break };
            let run = self.tree.page(node, Kind::Sliding).map_or(0, |_| runs[nodes.len()] + 1);
            runs.push(run);
            nodes.push(node);
            last = node;
        }
        let known = nodes.len();
        let whole = |full: usize, more: usize| {
            let first = self.shape.first_seen((full * page + more) as u32);
            runs[full] >= (full as u32).saturating_sub(first)
        };
        let rest = &tokens[known * page..];
        let longest = rest.len().min(page - 1);
        let tail = (1..=longest).rev().find_map(|count| self.tree.child(last, &rest[..count]));
        if let Some(tail) = tail.filter(|tail| whole(known, self.tree.tokens(*tail))) {
            return Found { nodes, tail: Some(tail), known: known as u32 };
        }
        let full = (0..=known).rev().find(|full| whole(*full, 0)).unwrap_or(0);
        nodes.truncate(full);
        Found { nodes, tail: None, known: known as u32 }
    }

    /// Makes room up to page number `end`, after what the window has left is let go of. Says whether there is; if not, nothing has changed.
    pub fn extend(&mut self, sequence: &mut Sequence, end: u32) -> bool {
        let sliding = &sequence.pages[1];
        let left = self.shape.first_seen(sequence.len).saturating_sub(sliding.first) as usize;
        let left = left.min(sliding.pages.len());
        let let_go = sliding.pages[..left].iter().filter(|page| self.pools[1].sequences(**page) == 1).count();
        let needed = sequence.pages.each_ref().map(|held| held.missing(end));
        let available = [Kind::Global, Kind::Sliding].map(|kind| self.free(kind) + self.cached(kind));
        if needed[0] > available[0] || needed[1] > available[1] + let_go {
            return false;
        }
        self.clock += 1;
        for _ in 0..left {
            self.let_first_go(sequence);
        }
        for (kind, count) in [Kind::Global, Kind::Sliding].into_iter().zip(needed) {
            let taken = (0..count).filter_map(|_| self.take(kind));
            sequence.pages[kind as usize].pages.extend(taken);
        }
        true
    }

    /// The window has left the first sliding page.
    fn let_first_go(&mut self, sequence: &mut Sequence) {
        let number = sequence.pages[1].first;
        let page = sequence.pages[1].pages.remove(0);
        sequence.pages[1].first += 1;
        let marked = sequence.marks.iter().any(|mark| self.shape.window_of(*mark).contains(&number));
        self.release(Kind::Sliding, page, marked);
    }

    /// Puts full pages into the tree. Where it knows them already, the sequence takes the tree's.
    pub fn publish(&mut self, sequence: &mut Sequence) {
        let Some(mut place) = sequence.place.filter(|place| place.epoch == self.epoch) else { return };
        let page = self.shape.page as usize;
        loop {
            let depth = self.tree.depth(place.node);
            let first = depth as usize * page;
            let Some(tokens) = sequence.tokens.get(first..first + page) else { break };
            place.node = match self.tree.child(place.node, tokens) {
                Some(node) => {
                    self.join(sequence, node, depth);
                    node
                }
                None => {
                    let pages = sequence.pages.each_ref().map(|held| held.get(depth));
                    self.insert(place.node, tokens, pages)
                }
            };
        }
        sequence.place = Some(place);
    }

    fn join(&mut self, sequence: &mut Sequence, node: NodeId, depth: u32) {
        let own = &mut sequence.pages[0].pages[depth as usize];
        if let Some(known) = self.tree.page(node, Kind::Global).filter(|known| *known != *own) {
            let own = std::mem::replace(own, known);
            sequence.unwritten = sequence.unwritten.min(depth);
            self.hold(Kind::Global, known);
            self.release(Kind::Global, own, false);
        }
        if let (None, Some(page)) = (self.tree.page(node, Kind::Sliding), sequence.pages[1].get(depth)) {
            self.tree.set_page(node, Kind::Sliding, Some(page));
            self.hold_by_node(Kind::Sliding, page, node);
        }
    }

    fn insert(&mut self, parent: NodeId, tokens: &[u32], pages: [Option<u32>; 2]) -> NodeId {
        let node = self.tree.insert(parent, tokens, pages);
        for (kind, page) in [Kind::Global, Kind::Sliding].into_iter().zip(pages) {
            if let Some(page) = page {
                self.hold_by_node(kind, page, node);
            }
        }
        node
    }

    /// Whether no other sequence holds the page with this position, which is to be written again.
    pub fn is_own(&self, sequence: &Sequence, position: u32) -> bool {
        let number = position / self.shape.page;
        let pages =
            [Kind::Global, Kind::Sliding].map(|kind| (kind, sequence.pages[kind as usize].get(number)));
        pages
            .into_iter()
            .all(|(kind, page)| page.is_none_or(|page| self.pools[kind as usize].sequences(page) == 1))
    }

    /// Forgets a sequence's positions from `len` on. Full pages of them stay in the tree; one of which a part is kept does not, for
    /// the sequence will write into it.
    pub fn cut(&mut self, sequence: &mut Sequence, len: u32) {
        self.clock += 1;
        let end = len.div_ceil(self.shape.page);
        for (kind, held) in [Kind::Global, Kind::Sliding].into_iter().zip(&mut sequence.pages) {
            let keep = (end.saturating_sub(held.first) as usize).min(held.pages.len());
            for page in held.pages.drain(keep..) {
                self.release(kind, page, kind == Kind::Sliding);
            }
            if len == 0 {
                held.first = 0;
            }
        }
        if let Some(place) = sequence.place.as_mut().filter(|place| place.epoch == self.epoch) {
            let full = len / self.shape.page;
            if end > full && self.tree.depth(place.node) > full {
                self.remove_all(self.tree.ancestor(place.node, end), place, full);
            }
            place.node = self.tree.ancestor(place.node, full);
        }
    }

    /// Takes a node with all below it out of the tree; the place moves up to the depth before it.
    fn remove_all(&mut self, node: NodeId, place: &mut Place, depth: u32) {
        place.node = self.tree.ancestor(node, depth);
        let mut nodes = vec![node];
        let mut at = 0;
        while at < nodes.len() {
            nodes.extend(self.tree.children(nodes[at]));
            at += 1;
        }
        nodes.into_iter().rev().for_each(|node| self.remove(node));
    }

    /// A sequence ends: what it holds goes to the tree, or is free.
    pub fn end(&mut self, sequence: &mut Sequence) {
        self.clock += 1;
        if let Some(place) = sequence.place.filter(|place| place.epoch == self.epoch) {
            let depth = self.tree.depth(place.node);
            let rest = &sequence.tokens[(depth * self.shape.page) as usize..];
            let pages = sequence.pages.each_ref().map(|held| held.get(depth));
            if !rest.is_empty() && self.tree.child(place.node, rest).is_none() {
                self.insert(place.node, rest, pages);
            }
        }
        for page in std::mem::take(&mut sequence.pages[0].pages) {
            self.release(Kind::Global, page, false);
        }
        let reached = self.shape.first_seen(sequence.len);
        while sequence.pages[1].first < reached && !sequence.pages[1].pages.is_empty() {
            self.let_first_go(sequence);
        }
        for page in std::mem::take(&mut sequence.pages[1].pages) {
            self.release(Kind::Sliding, page, true);
        }
        self.slots.push(sequence.slot);
    }

    /// Takes everything out of the tree. Live sequences keep their pages, and put nothing into it any more.
    pub fn forget(&mut self) {
        let mut nowhere = Place { node: ROOT, epoch: self.epoch };
        let texts: Vec<NodeId> = self.tree.children(ROOT).collect();
        texts.into_iter().for_each(|node| self.remove_all(node, &mut nowhere, 0));
        self.epoch += 1;
    }

    /// A page that nobody holds.
    fn take(&mut self, kind: Kind) -> Option<u32> {
        if self.pools[kind as usize].free.is_empty() {
            self.give_up(kind)?;
        }
        let page = self.pools[kind as usize].free.pop()?;
        self.pools[kind as usize].holders[page as usize] = 1;
        Some(page)
    }

    /// Lets go of the cached page that is missed least.
    fn give_up(&mut self, kind: Kind) -> Option<()> {
        let node = self.tree.oldest(kind)?;
        let is_tail = self.tree.tokens(node) < self.shape.page as usize;
        match kind {
            Kind::Sliding if !is_tail => {
                let page = self.tree.page(node, kind)?;
                self.tree.set_page(node, kind, None);
                self.release_by_node(kind, page);
            }
            // A tail without its window is of no use.
            Kind::Global | Kind::Sliding => self.remove(node),
        }
        Some(())
    }

    fn remove(&mut self, node: NodeId) {
        let pages = self.tree.remove(node);
        for (kind, page) in [Kind::Global, Kind::Sliding].into_iter().zip(pages) {
            if let Some(page) = page {
                self.release_by_node(kind, page);
            }
        }
    }

    fn hold(&mut self, kind: Kind, page: u32) {
        let pool = &mut self.pools[kind as usize];
        pool.holders[page as usize] += 1;
        if let Some(node) = pool.nodes[page as usize] {
            self.tree.wake(node, kind);
        }
    }

    fn hold_by_node(&mut self, kind: Kind, page: u32, node: NodeId) {
        let pool = &mut self.pools[kind as usize];
        pool.holders[page as usize] += 1;
        pool.nodes[page as usize] = Some(node);
    }

    /// A sequence does not hold a page any more.
    fn release(&mut self, kind: Kind, page: u32, marked: bool) {
        let pool = &mut self.pools[kind as usize];
        pool.holders[page as usize] -= 1;
        match (pool.holders[page as usize], pool.nodes[page as usize]) {
            (0, _) => pool.free.push(page),
            (1, Some(node)) => self.tree.rest(node, kind, marked, self.clock),
            _ => {}
        }
    }

    fn release_by_node(&mut self, kind: Kind, page: u32) {
        let pool = &mut self.pools[kind as usize];
        pool.nodes[page as usize] = None;
        pool.holders[page as usize] -= 1;
        if pool.holders[page as usize] == 0 {
            pool.free.push(page);
        }
    }
}

impl Held {
    /// The page with this number.
    fn get(&self, number: u32) -> Option<u32> {
        self.pages.get(number.checked_sub(self.first)? as usize).copied()
    }

    /// How many are missing up to number `end`.
    fn missing(&self, end: u32) -> usize {
        (end.saturating_sub(self.first) as usize).saturating_sub(self.pages.len())
    }
}

#[cfg(test)]
mod tests;
