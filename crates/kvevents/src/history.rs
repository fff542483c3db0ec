//! What was published: recent batches as they were, and what all earlier ones amount to.
//!
//! A client that comes late asks for a replay from some batch on. If that batch is not kept any more, it gets what was
//! stored before the first one that is, in the form of one batch or several that begin with `AllBlocksCleared`. So it
//! knows all that the server holds, however late it comes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{
    blocks::split,
    event::{Batch, Block, BlockHash, Group, KvEvent},
};

/// Limits of what is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryLimits {
    /// Maximum number of batches.
    pub(crate) batches: usize,
    /// Maximum number of blocks in their events, which bounds the memory.
    pub(crate) blocks: usize,
}

/// Published batches.
pub(crate) struct History {
    limits: HistoryLimits,
    /// The last ones.
    recent: VecDeque<Arc<Batch>>,
    /// Blocks in the events of `recent`.
    recent_blocks: usize,
    /// What was stored before the first of `recent`.
    earlier: BTreeMap<BlockHash, StoredBlock>,
    /// The time of the last batch before `recent`.
    earlier_time: f64,
    /// The sequence number of the next batch.
    next: u64,
}

/// A block that was stored before the recent batches.
#[derive(Clone)]
struct StoredBlock {
    block: Block,
    parent: Option<BlockHash>,
    /// Blocks before it.
    depth: usize,
    /// The groups that hold it.
    groups: [Option<Group>; 2],
}

impl History {
    pub(crate) fn new(limits: HistoryLimits) -> Self {
        Self {
            limits,
            recent: VecDeque::new(),
            recent_blocks: 0,
            earlier: BTreeMap::new(),
            earlier_time: 0.0,
            next: 0,
        }
    }

    /// Adds events as the next batch.
    pub(crate) fn push(&mut self, events: Vec<KvEvent>, time: f64) -> Arc<Batch> {
        let batch = Arc::new(Batch { sequence: self.next, time, events });
        self.next += 1;
        self.recent_blocks += batch.len();
        self.recent.push_back(batch.clone());
        // The last one stays, whatever its size: others must be able to follow it.
        while self.recent.len() > 1
            && (self.recent.len() > self.limits.batches || self.recent_blocks > self.limits.blocks)
        {
            self.forget_first();
        }
        batch
    }

    /// The sequence number of the next batch.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Batches from this sequence number on, in order and without a gap.
    pub(crate) fn since(&self, sequence: u64) -> Vec<Arc<Batch>> {
        let first = self.next - self.recent.len() as u64;
        if sequence >= first {
            let skipped = usize::try_from(sequence - first).unwrap_or(usize::MAX);
            return self.recent.iter().skip(skipped).cloned().collect();
        }
        self.summary(first, first - sequence)
            .into_iter()
            .map(Arc::new)
            .chain(self.recent.iter().cloned())
            .collect()
    }

    /// What was stored before batch `first`, in at most `count` batches with the numbers before it.
    fn summary(&self, first: u64, count: u64) -> Vec<Batch> {
        let mut stored: Vec<&StoredBlock> = self.earlier.values().collect();
        // Stable: parents come before their children.
        stored.sort_by_key(|stored| stored.depth);
        let mut events = vec![KvEvent::AllBlocksCleared];
        for StoredBlock { block, parent, groups, .. } in stored {
            for group in groups.iter().flatten() {
                let (parent, blocks) = (*parent, vec![block.clone()]);
                events.push(KvEvent::BlockStored { parent, blocks, group: *group });
            }
        }
        let mut batches = split(events);
        let fitting = usize::try_from(count).unwrap_or(usize::MAX).clamp(1, batches.len());
        let rest = batches.split_off(fitting);
        batches[fitting - 1].extend(rest.into_iter().flatten());
        let numbers = first - batches.len() as u64..;
        numbers
            .zip(batches)
            .map(|(sequence, events)| Batch { sequence, time: self.earlier_time, events })
            .collect()
    }

    /// Adds the first recent batch to what came earlier.
    fn forget_first(&mut self) {
        let Some(batch) = self.recent.pop_front() else { return };
        self.recent_blocks -= batch.len();
        self.earlier_time = batch.time;
        for event in &batch.events {
            match event {
                KvEvent::AllBlocksCleared => self.earlier.clear(),
                KvEvent::BlockRemoved { hashes, group } => {
                    for hash in hashes {
                        let Some(stored) = self.earlier.get_mut(hash) else { continue };
                        stored.groups[usize::from(*group)] = None;
                        if stored.groups == [None; 2] {
                            self.earlier.remove(hash);
                        }
                    }
                }
                KvEvent::BlockStored { parent, blocks, group } => {
                    let mut parent = *parent;
                    for block in blocks {
                        let depth = parent
                            .and_then(|parent| self.earlier.get(&parent))
                            .map_or(0, |stored| stored.depth + 1);
                        let stored = self.earlier.entry(block.hash).or_insert_with(|| StoredBlock {
                            block: block.clone(),
                            parent,
                            depth,
                            groups: [None; 2],
                        });
                        stored.groups[usize::from(group.index)] = Some(*group);
                        parent = Some(block.hash);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
