//! The prefix tree and pages stored elsewhere: which texts to store, and pages that come back.

use super::{
    PageAllocator, PageKind, Sequence, locked,
    prefix_tree::{NodeId, ROOT},
    store::PageStore,
};
use crate::image::image_blocks;

/// Texts that wait to be stored. Older ones are forgotten: their pages are the next to be evicted.
const MAX_FINISHED: usize = 64;

/// A text whose sequence has ended, up to its last full page and its first image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedSequence {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Page counts after which other prompts are likely to branch off.
    pub branch_points: [u32; 3],
}

/// The tokens before the first image.
pub(crate) fn text_before_images(tokens: &[u32]) -> &[u32] {
    &tokens[..image_blocks(tokens).next().map_or(tokens.len(), |image| image.start)]
}

impl PageAllocator {
    /// Keeps the tokens of sequences that end from now on, for [`PageAllocator::next_finished`].
    pub fn track_finished(&self) {
        locked(&self.store).finished.get_or_insert_default();
    }

    /// The text that ended first.
    pub fn next_finished(&self) -> Option<FinishedSequence> {
        locked(&self.store).finished.as_mut()?.pop_front()
    }

    /// Whether a text waits to be stored.
    pub fn has_finished(&self) -> bool {
        locked(&self.store).finished.as_ref().is_some_and(|finished| !finished.is_empty())
    }

    /// Changes when the prefix cache is cleared.
    pub(crate) fn epoch(&self) -> u64 {
        locked(&self.store).epoch()
    }

    /// Whether the prefix tree holds the full pages of these tokens, by kind, up to the first that it lacks.
    pub(crate) fn known_pages(&self, tokens: &[u32]) -> Vec<[bool; 2]> {
        let store = locked(&self.store);
        let is_known = |node: NodeId| PageKind::ALL.map(|kind| store.tree.page(node, kind).is_some());
        store.path(tokens).into_iter().map(is_known).collect()
    }

    /// The length of the longest prefix that a sequence for these tokens would start with.
    pub fn cached_len(&self, tokens: &[u32]) -> usize {
        locked(&self.store).cached_len(tokens)
    }

    /// Passes the page that the prefix tree holds for the last page of these tokens to `read`, which must not outlast
    /// the call; `None` if it holds none.
    pub fn read_known<T>(&self, tokens: &[u32], kind: PageKind, read: impl FnOnce(u32) -> T) -> Option<T> {
        // Under the lock: nothing may evict the page meanwhile.
        let store = locked(&self.store);
        let path = store.path(tokens);
        let node = path.last().filter(|_| path.len() * store.config.page_size as usize == tokens.len())?;
        Some(read(store.tree.page(*node, kind)?))
    }

    /// Puts a page into the prefix tree that `fill` fills with the keys and values of the last page of these tokens. The
    /// tree must hold all pages before it, and for one of sliding-window layers also that of full-attention layers.
    /// Returns whether the tree holds the page then; not if every page is held by a sequence.
    pub fn restore<E>(
        &self,
        tokens: &[u32],
        kind: PageKind,
        fill: impl FnOnce(u32) -> Result<(), E>,
    ) -> Result<bool, E> {
        locked(&self.store).restore(tokens, kind, fill)
    }
}

impl PageStore {
    /// Notes the text of a sequence that ends, whose pages the tree holds.
    pub fn note_finished(&mut self, sequence: &mut Sequence) {
        let page_size = self.config.page_size as usize;
        let is_known = sequence.tree_position.is_some_and(|position| position.epoch == self.epoch());
        let Some(finished) = self.finished.as_mut().filter(|_| is_known) else { return };
        let mut tokens = std::mem::take(&mut sequence.tokens);
        let pages = text_before_images(&tokens).len() / page_size;
        tokens.truncate(pages * page_size);
        if pages > 0 {
            let [diverged, prompt_end] = sequence.branch_points.map(|point| point.min(pages as u32));
            let branch_points = [diverged, prompt_end, pages as u32];
            if finished.len() == MAX_FINISHED {
                finished.pop_front();
            }
            finished.push_back(FinishedSequence { tokens, branch_points });
        }
    }

    /// The nodes of the full pages of these tokens, up to the first that is missing.
    fn path(&self, tokens: &[u32]) -> Vec<NodeId> {
        let step = |last: &mut NodeId, page: &[u32]| {
            *last = self.tree.child(*last, page)?;
            Some(*last)
        };
        tokens.chunks_exact(self.config.page_size as usize).scan(ROOT, step).collect()
    }

    fn restore<E>(
        &mut self,
        tokens: &[u32],
        kind: PageKind,
        fill: impl FnOnce(u32) -> Result<(), E>,
    ) -> Result<bool, E> {
        let page_size = self.config.page_size as usize;
        let path = self.path(tokens);
        let (held, index) = (path.len(), tokens.len() / page_size);
        let own = path.get(index - 1).copied();
        if own.is_some_and(|node| self.tree.page(node, kind).is_some()) {
            return Ok(true);
        }
        let has_parents = match kind {
            PageKind::Full => held + 1 == index,
            PageKind::Sliding => held == index,
        };
        if !has_parents {
            return Ok(false);
        }
        // The pages before it must not be evicted for it, and must not be older than it: leaves are evicted first.
        self.clock += 1;
        let pins: Vec<u32> = path.iter().filter_map(|node| self.tree.page(*node, PageKind::Full)).collect();
        pins.iter().for_each(|page| self.acquire(PageKind::Full, *page));
        let restored = match self.allocate(kind) {
            None => Ok(false),
            Some(page) => {
                let filled = fill(page);
                if filled.is_ok() {
                    match own {
                        None => {
                            let parent = path.last().copied().unwrap_or(ROOT);
                            self.insert(parent, &tokens[tokens.len() - page_size..], [Some(page), None]);
                        }
                        Some(node) => self.set_node_page(node, kind, page),
                    }
                }
                // The tree's alone, or free.
                self.release(kind, page, kind == PageKind::Sliding);
                filled.map(|()| true)
            }
        };
        pins.into_iter().for_each(|page| self.release(PageKind::Full, page, false));
        restored
    }
}
