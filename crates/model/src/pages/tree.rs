//! The tree of known texts. A node is a page of tokens, and its way from the root all that was before them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Kind;

pub(super) type NodeId = usize;

/// Where all texts begin: a node without tokens and pages.
pub(super) const ROOT: NodeId = 0;

/// The order in which cached pages are given up: those that no mark needs, those that nobody has held for the longest time, and of the
/// pages that one sequence has left the last one. A node's page is held whenever one below it is, so the first in order is a leaf's.
type Idle = (bool, u64, Reverse<u32>, NodeId);

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// Pages from the root, itself counted.
    depth: u32,
    /// A page of them, or fewer in a tail, which has no children.
    tokens: Arc<[u32]>,
    children: BTreeMap<Arc<[u32]>, NodeId>,
    pages: [Option<u32>; 2],
    idle: [Option<Idle>; 2],
}

/// Known texts, and which of their pages only the tree holds.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Numbers of nodes that are not in the tree.
    vacant: Vec<NodeId>,
    idle: [BTreeSet<Idle>; 2],
}

impl Node {
    fn new(parent: NodeId, depth: u32, tokens: Arc<[u32]>, pages: [Option<u32>; 2]) -> Self {
        Self { parent, depth, tokens, children: BTreeMap::new(), pages, idle: [None; 2] }
    }
}

impl Tree {
    pub fn new() -> Self {
        let root = Node::new(ROOT, 0, [].into(), [None; 2]);
        Self { nodes: vec![root], vacant: vec![], idle: Default::default() }
    }

    pub fn depth(&self, node: NodeId) -> u32 {
        self.nodes[node].depth
    }

    pub fn page(&self, node: NodeId, kind: Kind) -> Option<u32> {
        self.nodes[node].pages[kind as usize]
    }

    /// How many tokens a node has.
    pub fn tokens(&self, node: NodeId) -> usize {
        self.nodes[node].tokens.len()
    }

    pub fn child(&self, node: NodeId, tokens: &[u32]) -> Option<NodeId> {
        self.nodes[node].children.get(tokens).copied()
    }

    pub fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.nodes[node].children.values().copied()
    }

    /// The node at some depth on the way to this one.
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

    /// Takes a node without children out of the tree; what it held is the caller's.
    pub fn remove(&mut self, id: NodeId) -> [Option<u32>; 2] {
        debug_assert!(id != ROOT && self.nodes[id].children.is_empty());
        for kind in [Kind::Global, Kind::Sliding] {
            self.wake(id, kind);
        }
        let Node { parent, tokens, pages, .. } =
            std::mem::replace(&mut self.nodes[id], Node::new(ROOT, 0, [].into(), [None; 2]));
        self.nodes[parent].children.remove(&tokens);
        self.vacant.push(id);
        pages
    }

    pub fn set_page(&mut self, node: NodeId, kind: Kind, page: Option<u32>) {
        self.wake(node, kind);
        self.nodes[node].pages[kind as usize] = page;
    }

    /// Only the tree holds this page from now on.
    pub fn rest(&mut self, id: NodeId, kind: Kind, marked: bool, now: u64) {
        self.wake(id, kind);
        let idle = (marked, now, Reverse(self.depth(id)), id);
        self.nodes[id].idle[kind as usize] = Some(idle);
        self.idle[kind as usize].insert(idle);
    }

    /// A sequence holds this page too, or the tree does not any more.
    pub fn wake(&mut self, id: NodeId, kind: Kind) {
        if let Some(idle) = self.nodes[id].idle[kind as usize].take() {
            self.idle[kind as usize].remove(&idle);
        }
    }

    /// Pages that only the tree holds.
    pub fn idle(&self, kind: Kind) -> usize {
        self.idle[kind as usize].len()
    }

    /// Whose page is to be given up first.
    pub fn oldest(&self, kind: Kind) -> Option<NodeId> {
        self.idle[kind as usize].first().map(|idle| idle.3)
    }
}
