use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};

use super::*;

const GROUPS: [Group; 2] =
    [Group { index: 0, block_size: 1, window: None }, Group { index: 1, block_size: 1, window: Some(8) }];

/// The blocks that batches leave behind, by group.
fn replay(batches: &[Arc<Batch>]) -> BTreeSet<(BlockHash, u8)> {
    let mut held = BTreeSet::new();
    for event in batches.iter().flat_map(|batch| &batch.events) {
        match event {
            KvEvent::AllBlocksCleared => held.clear(),
            KvEvent::BlockRemoved { hashes, group } => {
                hashes
                    .iter()
                    .for_each(|hash| assert!(held.remove(&(*hash, *group)), "{hash} was not stored"));
            }
            KvEvent::BlockStored { parent, blocks, group } => {
                let is_known = |hash: BlockHash| held.iter().any(|(known, _)| *known == hash);
                assert!(parent.is_none_or(is_known), "{parent:?} comes before its children");
                held.extend(blocks.iter().map(|block| (block.hash, group.index)));
            }
        }
    }
    held
}

fn store(parent: Option<BlockHash>, hashes: &[BlockHash], group: usize) -> KvEvent {
    let block = |hash: &BlockHash| Block { hash: *hash, tokens: [*hash as u32].into() };
    KvEvent::BlockStored { parent, blocks: hashes.iter().map(block).collect(), group: GROUPS[group] }
}

fn numbers(batches: &[Arc<Batch>]) -> Vec<u64> {
    batches.iter().map(|batch| batch.sequence).collect()
}

#[test]
fn a_replay_begins_with_what_is_not_kept_any_more() {
    let mut history = History::new(HistoryLimits { batches: 3, blocks: 1000 });
    for number in 0..10_u64 {
        let parent = number.checked_sub(1).map(|before| before + 100);
        assert_eq!(history.push(vec![store(parent, &[number + 100], 0)], 0.0).sequence, number);
    }
    assert_eq!(numbers(&history.since(8)), [8, 9]);
    assert_eq!(numbers(&history.since(10)), Vec::<u64>::new());
    assert_eq!(numbers(&history.since(u64::MAX)), Vec::<u64>::new());
    assert_eq!(numbers(&history.since(0)), [6, 7, 8, 9]);
    assert_eq!(history.since(0)[0].events[0], KvEvent::AllBlocksCleared);
    assert_eq!(replay(&history.since(0)).len(), 10);
    assert_eq!(replay(&history.since(6)).len(), 10);
}

#[test]
fn many_earlier_blocks_fit_into_the_numbers_that_are_asked_for() {
    let mut history = History::new(HistoryLimits { batches: 1, blocks: 1 });
    let count = 10_u64;
    for number in 0..count {
        let hashes: Vec<u64> = (0..200).map(|block| 1 + number * 1000 + block).collect();
        history.push(vec![store(None, &hashes, 0)], 0.0);
    }
    // 1,800 earlier blocks are 8 batches.
    for (since, expected) in [(0, 1..10), (4, 4..10), (7, 7..10), (8, 8..10), (9, 9..10)] {
        let batches = history.since(since);
        assert_eq!(numbers(&batches), expected.collect::<Vec<_>>(), "since {since}");
        let held = if since == 9 { 200 } else { 2000 };
        assert_eq!(replay(&batches).len(), held);
    }
}

proptest! {
    #[test]
    fn a_replay_amounts_to_everything_that_was_published(
        limits in (1..6_usize, 1..20_usize),
        operations in vec((0..12_u8, 0..40_u64, 0..2_usize), 1..120),
        since in 0..130_u64,
    ) {
        let mut history = History::new(HistoryLimits { batches: limits.0, blocks: limits.1 });
        let mut all = vec![];
        for (operation, hash, group) in operations {
            let held = replay(&all);
            let has = |hash: u64, group: usize| held.contains(&(hash, group as u8));
            let event = match operation {
                0 => KvEvent::AllBlocksCleared,
                // Block n + 40 follows block n.
                1..8 if !has(hash + 1, group) => store(None, &[hash + 1], group),
                1..8 if has(hash + 1, 0) && !has(hash + 41, group) => store(Some(hash + 1), &[hash + 41], group),
                _ if has(hash + 41, group) => KvEvent::BlockRemoved { hashes: vec![hash + 41], group: group as u8 },
                _ if has(hash + 1, 1) => KvEvent::BlockRemoved { hashes: vec![hash + 1], group: 1 },
                _ => continue,
            };
            all.push(history.push(vec![event], 0.0));
        }
        let batches = history.since(since);
        let numbers = numbers(&batches);
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        assert!(numbers.first().is_none_or(|first| *first >= since.min(history.next())));
        assert_eq!(numbers.last().copied(), history.next().checked_sub(1).filter(|last| since <= *last));
        // A client that knows all batches before `since` knows all of them then.
        let before = &all[..all.len().min(since as usize)];
        assert_eq!(replay(&[before, &batches[..]].concat()), replay(&all));
        assert!(history.earlier.len() <= 80);
    }
}
