//! The prefix tree of known token sequences. A node is one page of tokens; its path from the root is all
//! tokens before them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Included, Unbounded},
    sync::Arc,
};

use super::PageKind;

pub(super) type NodeId = usize;

/// The root: a node without tokens and pages.
pub(super) const ROOT: NodeId = 0;

/// The eviction order of cached pages: pages outside the window of any branch point first, then the least
/// recently used, and of the pages that one sequence released the last. A node's page is held whenever a
/// descendant's is, so the first in order belongs to a leaf.
type EvictionKey = (bool, u64, Reverse<u32>, NodeId);

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// Pages from the root to this node, itself included.
    depth: u32,
    /// A full page of tokens; fewer in a partial page, which has no children.
    tokens: Arc<[u32]>,
    children: BTreeMap<Arc<[u32]>, NodeId>,
    /// By kind.
    pages: [Option<u32>; 2],
    /// By kind, where only the tree holds the page.
    evictable: [Option<EvictionKey>; 2],
}

/// Known prefixes, and the pages that only the tree holds.
#[derive(Debug)]
pub(super) struct PrefixTree {
    nodes: Vec<Node>,
    /// Entries of `nodes` that are not in the tree.
    vacant: Vec<NodeId>,
    /// By kind.
    evictable: [BTreeSet<EvictionKey>; 2],
}

impl Node {
    fn new(parent: NodeId, depth: u32, tokens: Arc<[u32]>, pages: [Option<u32>; 2]) -> Self {
        Self { parent, depth, tokens, children: BTreeMap::new(), pages, evictable: [None; 2] }
    }
}

impl PrefixTree {
    pub fn new() -> Self {
        let root = Node::new(ROOT, 0, [].into(), [None; 2]);
        Self { nodes: vec![root], vacant: vec![], evictable: Default::default() }
    }

    pub fn depth(&self, node: NodeId) -> u32 {
        self.nodes[node].depth
    }

    pub fn page(&self, node: NodeId, kind: PageKind) -> Option<u32> {
        self.nodes[node].pages[kind as usize]
    }

    /// The node before a node.
    pub fn parent(&self, node: NodeId) -> NodeId {
        self.nodes[node].parent
    }

    pub fn tokens(&self, node: NodeId) -> &Arc<[u32]> {
        &self.nodes[node].tokens
    }

    /// The number of tokens of a node.
    pub fn token_count(&self, node: NodeId) -> usize {
        self.nodes[node].tokens.len()
    }

    pub fn child(&self, node: NodeId, tokens: &[u32]) -> Option<NodeId> {
        self.nodes[node].children.get(tokens).copied()
    }

    /// The child with the longest common prefix with these tokens, and its length, if they have any in common.
    pub fn longest_match(&self, node: NodeId, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let children = &self.nodes[node].children;
        // In lexicographic order, it is next to them.
        let before = children.range::<[u32], _>((Unbounded, Included(tokens))).next_back();
        let after = children.range::<[u32], _>((Excluded(tokens), Unbounded)).next();
        let common = |(child, id): (&Arc<[u32]>, &NodeId)| {
            (*id, child.iter().zip(tokens).take_while(|(one, other)| one == other).count())
        };
        let matches = before.into_iter().chain(after).map(common);
        matches.max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 0)
    }

    pub fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.nodes[node].children.values().copied()
    }

    /// The ancestor of a node at a depth, or the node itself.
    pub fn ancestor(&self, mut node: NodeId, depth: u32) -> NodeId {
        while self.nodes[node].depth > depth {
            node = self.nodes[node].parent;
        }
        node
    }

    pub fn insert(&mut self, parent: NodeId, tokens: &[u32], pages: [Option<u32>; 2]) -> NodeId {
        let tokens: Arc<[u32]> = tokens.into();
        let node = Node::new(parent, self.depth(parent) + 1, tokens.clone(), pages);
        let id = match self.vacant.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[parent].children.insert(tokens, id);
        id
    }

    /// Removes a leaf and returns its pages, which the caller has to release.
    pub fn remove(&mut self, id: NodeId) -> [Option<u32>; 2] {
        debug_assert!(id != ROOT && self.nodes[id].children.is_empty());
        for kind in PageKind::ALL {
            self.pin(id, kind);
        }
        let Node { parent, tokens, pages, .. } =
            std::mem::replace(&mut self.nodes[id], Node::new(ROOT, 0, [].into(), [None; 2]));
        self.nodes[parent].children.remove(&tokens);
        self.vacant.push(id);
        pages
    }

    pub fn set_page(&mut self, node: NodeId, kind: PageKind, page: Option<u32>) {
        self.pin(node, kind);
        self.nodes[node].pages[kind as usize] = page;
    }

    /// Makes a page evictable: only the tree holds it from now on. `protected` puts it behind all pages that
    /// are not.
    pub fn make_evictable(&mut self, id: NodeId, kind: PageKind, protected: bool, now: u64) {
        self.pin(id, kind);
        let key = (protected, now, Reverse(self.depth(id)), id);
        self.nodes[id].evictable[kind as usize] = Some(key);
        self.evictable[kind as usize].insert(key);
    }

    /// Excludes a page from eviction: a sequence holds it too, or the tree no longer does.
    pub fn pin(&mut self, id: NodeId, kind: PageKind) {
        if let Some(key) = self.nodes[id].evictable[kind as usize].take() {
            self.evictable[kind as usize].remove(&key);
        }
    }

    /// The number of pages that only the tree holds.
    pub fn evictable(&self, kind: PageKind) -> usize {
        self.evictable[kind as usize].len()
    }

    /// The node whose page is evicted next.
    pub fn next_victim(&self, kind: PageKind) -> Option<NodeId> {
        self.evictable[kind as usize].first().map(|key| key.3)
    }
}
