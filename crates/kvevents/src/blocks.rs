//! From changes of the prefix tree to events: nodes become blocks, which have the same hash on every server.

use std::{collections::HashMap, mem};

use model::{
    image_blocks,
    pages::{PageEvent, PageKind, PageLayout},
};
use sha2::{Digest as _, Sha256};

use crate::event::{Block, BlockHash, Group, KvEvent};

/// The published nodes of the prefix tree.
pub(crate) struct Blocks {
    /// What the first blocks of all texts follow.
    root: [u8; 32],
    layout: Option<PageLayout>,
    /// By node: the hash of its tokens and all before them.
    digests: HashMap<usize, [u8; 32]>,
}

/// Events being collected. Blocks that follow one another share an event.
#[derive(Default)]
struct Collector {
    events: Vec<KvEvent>,
    /// By group: the event that is collecting stored blocks.
    storing: [Option<usize>; 2],
}

impl Blocks {
    /// Blocks of a model. Different names give different hashes.
    pub(crate) fn new(model: &str) -> Self {
        Self { root: Sha256::digest(model.as_bytes()).into(), layout: None, digests: HashMap::new() }
    }

    /// The events of these changes, in order.
    pub(crate) fn convert(&mut self, changes: Vec<PageEvent>) -> Vec<KvEvent> {
        let mut collector = Collector::default();
        for change in changes {
            match change {
                PageEvent::Cleared(layout) => {
                    self.layout = Some(layout);
                    self.digests.clear();
                    collector.clear();
                }
                PageEvent::Stored { node, parent, tokens, kind } => {
                    // Routers know images by other names than the tokens that stand for them here.
                    let is_text = image_blocks(&tokens).next().is_none();
                    let before = match parent {
                        None => Some(&self.root),
                        Some(parent) => self.digests.get(&parent),
                    };
                    let Some(before) = before.filter(|_| is_text) else { continue };
                    let hash = Sha256::new().chain_update(before);
                    let hash = tokens.iter().fold(hash, |hash, token| hash.chain_update(token.to_le_bytes()));
                    let parent = parent.map(|_| block_hash(before));
                    let digest = *self.digests.entry(node).or_insert_with(|| hash.finalize().into());
                    if let Some(group) = self.group(kind) {
                        collector.store(parent, Block { hash: block_hash(&digest), tokens }, group);
                    }
                }
                PageEvent::Removed { node, kind } => {
                    let digest = match kind {
                        PageKind::Full => self.digests.remove(&node),
                        PageKind::Sliding => self.digests.get(&node).copied(),
                    };
                    if let (Some(digest), Some(group)) = (digest, self.group(kind)) {
                        collector.remove(block_hash(&digest), group.index);
                    }
                }
            }
        }
        collector.events
    }

    /// `None` if the model has no such layers.
    fn group(&self, kind: PageKind) -> Option<Group> {
        let layout = self.layout?;
        let block_size = layout.page_size;
        match kind {
            PageKind::Full => layout.has_full.then_some(Group { index: 0, block_size, window: None }),
            PageKind::Sliding => {
                let window = layout.sliding_window?;
                Some(Group { index: u8::from(layout.has_full), block_size, window: Some(window) })
            }
        }
    }
}

/// The part of a digest that is published. Routers take 0 for no block at all.
fn block_hash(digest: &[u8; 32]) -> BlockHash {
    let first = std::array::from_fn(|index| digest[index]);
    BlockHash::from_be_bytes(first).max(1)
}

impl Collector {
    fn clear(&mut self) {
        // What was stored before is gone.
        self.events = vec![KvEvent::AllBlocksCleared];
        self.storing = [None; 2];
    }

    fn store(&mut self, parent: Option<BlockHash>, block: Block, group: Group) {
        let storing = &mut self.storing[usize::from(group.index)];
        if let Some(index) = *storing
            && let KvEvent::BlockStored { blocks, .. } = &mut self.events[index]
            && blocks.len() < MAX_BLOCKS
            && blocks.last().map(|last| last.hash) == parent
        {
            blocks.push(block);
            return;
        }
        *storing = Some(self.events.len());
        self.events.push(KvEvent::BlockStored { parent, blocks: vec![block], group });
    }

    fn remove(&mut self, hash: BlockHash, group: u8) {
        self.storing = [None; 2];
        match self.events.last_mut() {
            Some(KvEvent::BlockRemoved { hashes, group: last })
                if *last == group && hashes.len() < MAX_BLOCKS =>
            {
                hashes.push(hash);
            }
            _ => self.events.push(KvEvent::BlockRemoved { hashes: vec![hash], group }),
        }
    }
}

/// Maximum number of blocks per event and per batch, but for what is known at the beginning of a replay.
pub(crate) const MAX_BLOCKS: usize = 256;

/// Divides events into batches of at most [`MAX_BLOCKS`] blocks.
pub(crate) fn split(events: Vec<KvEvent>) -> Vec<Vec<KvEvent>> {
    let (mut batches, mut batch, mut blocks) = (vec![], vec![], 0);
    for event in events {
        if blocks + event.len() > MAX_BLOCKS && !batch.is_empty() {
            batches.push(mem::take(&mut batch));
            blocks = 0;
        }
        blocks += event.len();
        batch.push(event);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: PageLayout = PageLayout { page_size: 2, has_full: true, sliding_window: Some(8) };

    fn stored(node: usize, parent: Option<usize>, tokens: [u32; 2], kind: PageKind) -> PageEvent {
        PageEvent::Stored { node, parent, tokens: tokens.into(), kind }
    }

    fn chain(kinds: &[PageKind]) -> Vec<PageEvent> {
        let page = |node: usize| {
            let parent = (node > 1).then_some(node - 1);
            kinds.iter().map(move |kind| stored(node, parent, [node as u32; 2], *kind))
        };
        [PageEvent::Cleared(LAYOUT)].into_iter().chain((1..4).flat_map(page)).collect()
    }

    fn hashes(event: &KvEvent) -> Vec<BlockHash> {
        match event {
            KvEvent::BlockStored { blocks, .. } => blocks.iter().map(|block| block.hash).collect(),
            KvEvent::BlockRemoved { hashes, .. } => hashes.clone(),
            KvEvent::AllBlocksCleared => vec![],
        }
    }

    #[test]
    fn blocks_in_a_row_share_an_event_per_group_and_have_one_hash() {
        let mut blocks = Blocks::new("m");
        let events = blocks.convert(chain(&PageKind::ALL));
        assert_eq!(events.len(), 3);
        assert_eq!(events[0], KvEvent::AllBlocksCleared);
        let [full, sliding] = [&events[1], &events[2]].map(hashes);
        assert_eq!((full.len(), &full), (3, &sliding));
        for (event, group) in events[1..].iter().zip([
            Group { index: 0, block_size: 2, window: None },
            Group { index: 1, block_size: 2, window: Some(8) },
        ]) {
            assert!(
                matches!(event, KvEvent::BlockStored { parent: None, group: of, .. } if *of == group),
                "{event:?}"
            );
        }
        // Another server has the same hashes for this model, and other ones for another.
        assert_eq!(hashes(&Blocks::new("m").convert(chain(&PageKind::ALL))[1]), full);
        assert_ne!(hashes(&Blocks::new("n").convert(chain(&PageKind::ALL))[1])[0], full[0]);

        // A sliding-window page goes, then the whole node; its number is used again.
        let events = blocks.convert(vec![
            PageEvent::Removed { node: 3, kind: PageKind::Sliding },
            PageEvent::Removed { node: 3, kind: PageKind::Full },
            stored(3, Some(2), [9, 9], PageKind::Full),
        ]);
        assert_eq!(events[0], KvEvent::BlockRemoved { hashes: vec![full[2]], group: 1 });
        assert_eq!(events[1], KvEvent::BlockRemoved { hashes: vec![full[2]], group: 0 });
        assert!(matches!(&events[2], KvEvent::BlockStored { parent, .. } if *parent == Some(full[1])));
        assert_ne!(hashes(&events[2])[0], full[2]);
    }

    #[test]
    fn a_model_without_windows_has_one_group_and_images_are_not_published() {
        let mut blocks = Blocks::new("m");
        blocks.convert(vec![PageEvent::Cleared(PageLayout { sliding_window: None, ..LAYOUT })]);
        let image = model::IMAGE_TOKEN | 7;
        let events = blocks.convert(vec![
            stored(1, None, [1, 2], PageKind::Full),
            stored(1, None, [1, 2], PageKind::Sliding),
            stored(2, Some(1), [3, image], PageKind::Full),
            stored(3, Some(2), [5, 6], PageKind::Full),
            PageEvent::Removed { node: 3, kind: PageKind::Full },
            PageEvent::Removed { node: 2, kind: PageKind::Full },
        ]);
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(hashes(&events[0]).len(), 1);
        // With sliding windows alone, they are the first group.
        let layout = PageLayout { has_full: false, ..LAYOUT };
        let events = blocks.convert(vec![
            PageEvent::Cleared(layout),
            stored(1, None, [1, 2], PageKind::Full),
            stored(1, None, [1, 2], PageKind::Sliding),
        ]);
        assert!(
            matches!(
                events[..],
                [
                    KvEvent::AllBlocksCleared,
                    KvEvent::BlockStored { group: Group { index: 0, block_size: 2, window: Some(8) }, .. }
                ]
            ),
            "{events:?}"
        );
    }

    #[test]
    fn batches_are_bounded() {
        let events = |blocks: usize| -> Vec<KvEvent> {
            let removed = |hash| KvEvent::BlockRemoved { hashes: vec![hash; 100], group: 0 };
            (0..blocks as u64 / 100).map(removed).collect()
        };
        assert_eq!(split(vec![]), Vec::<Vec<KvEvent>>::new());
        let batches = split(events(1000));
        assert!(batches.iter().all(|batch| batch.iter().map(KvEvent::len).sum::<usize>() <= MAX_BLOCKS));
        assert_eq!(batches.concat(), events(1000));
    }
}
