//! Events and batches as they are on the wire: vLLM's `KVEventBatch` (`vllm/distributed/kv_events.py`, 0.33), an array
//! `[ts, events, data_parallel_rank]` of MessagePack whose events are maps with their name under `type`.

use std::sync::Arc;

use crate::msgpack::Writer;

/// Identifies a block: its tokens and all before them, in the same way on every server of a model.
pub(crate) type BlockHash = u64;

/// The layers whose keys and values a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// 0 for the layers with full attention.
    pub(crate) index: u8,
    /// Tokens per block.
    pub(crate) block_size: u32,
    /// The window of sliding-window attention.
    pub(crate) window: Option<u32>,
}

/// A block of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) hash: BlockHash,
    pub(crate) tokens: Arc<[u32]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KvEvent {
    /// Blocks that follow one another are stored.
    BlockStored { parent: Option<BlockHash>, blocks: Vec<Block>, group: Group },
    /// These are gone.
    BlockRemoved { hashes: Vec<BlockHash>, group: u8 },
    /// All are gone.
    AllBlocksCleared,
}

/// Events that are published at once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Batch {
    pub(crate) sequence: u64,
    /// Seconds since 1970.
    pub(crate) time: f64,
    pub(crate) events: Vec<KvEvent>,
}

impl KvEvent {
    /// The number of blocks that it is about.
    pub(crate) fn len(&self) -> usize {
        match self {
            KvEvent::BlockStored { blocks, .. } => blocks.len(),
            KvEvent::BlockRemoved { hashes, .. } => hashes.len(),
            KvEvent::AllBlocksCleared => 0,
        }
    }

    fn write(&self, writer: &mut Writer) {
        match self {
            KvEvent::BlockStored { parent, blocks, group } => {
                // Fields without a default are there even if they are nil.
                writer.map(10 + usize::from(group.window.is_some()));
                field(writer, "type", |writer| writer.text("BlockStored"));
                field(writer, "block_hashes", |writer| {
                    writer.array(blocks.len());
                    blocks.iter().for_each(|block| writer.uint(block.hash));
                });
                field(writer, "parent_block_hash", |writer| writer.optional_uint(*parent));
                field(writer, "token_ids", |writer| {
                    let tokens = blocks.iter().flat_map(|block| block.tokens.iter());
                    writer.array(tokens.clone().count());
                    tokens.for_each(|token| writer.uint(u64::from(*token)));
                });
                field(writer, "block_size", |writer| writer.uint(u64::from(group.block_size)));
                field(writer, "lora_id", Writer::nil);
                field(writer, "medium", |writer| writer.text(MEDIUM));
                field(writer, "lora_name", Writer::nil);
                field(writer, "group_idx", |writer| writer.uint(u64::from(group.index)));
                let kind = if group.window.is_some() { "sliding_window" } else { "full_attention" };
                field(writer, "kv_cache_spec_kind", |writer| writer.text(kind));
                if let Some(window) = group.window {
                    field(writer, "kv_cache_spec_sliding_window", |writer| writer.uint(u64::from(window)));
                }
            }
            KvEvent::BlockRemoved { hashes, group } => {
                writer.map(4);
                field(writer, "type", |writer| writer.text("BlockRemoved"));
                field(writer, "block_hashes", |writer| {
                    writer.array(hashes.len());
                    hashes.iter().for_each(|hash| writer.uint(*hash));
                });
                field(writer, "medium", |writer| writer.text(MEDIUM));
                field(writer, "group_idx", |writer| writer.uint(u64::from(*group)));
            }
            KvEvent::AllBlocksCleared => {
                writer.map(1);
                field(writer, "type", |writer| writer.text("AllBlocksCleared"));
            }
        }
    }
}

/// vLLM's name of the memory that pages are in.
const MEDIUM: &str = "GPU";

fn field(writer: &mut Writer, name: &str, value: impl FnOnce(&mut Writer)) {
    writer.text(name);
    value(writer);
}

impl Batch {
    /// The payload of its message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.array(3);
        writer.float(self.time);
        writer.array(self.events.len());
        self.events.iter().for_each(|event| event.write(&mut writer));
        // The data-parallel rank: every server is a fleet of its own.
        writer.uint(0);
        writer.0
    }

    /// The number of blocks that its events are about.
    pub(crate) fn len(&self) -> usize {
        self.events.iter().map(KvEvent::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_the_bytes_that_msgspec_reads() {
        let block = |hash, tokens: [u32; 2]| Block { hash, tokens: tokens.into() };
        let stored = |parent, blocks, group| KvEvent::BlockStored { parent, blocks, group };
        let events = vec![
            KvEvent::AllBlocksCleared,
            stored(
                None,
                vec![block(5, [1, 2]), block(300, [3, 4])],
                Group { index: 0, block_size: 2, window: None },
            ),
            stored(Some(5), vec![block(300, [3, 4])], Group { index: 1, block_size: 2, window: Some(512) }),
            KvEvent::BlockRemoved { hashes: vec![300], group: 1 },
        ];
        let batch = Batch { sequence: 7, time: 2.0, events };
        assert_eq!(batch.len(), 4);
        let text: String = batch
            .encode()
            .iter()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => char::from(*byte).to_string(),
                _ => format!("<{byte:02x}>"),
            })
            .collect();
        let expected = concat!(
            "<93><cb>@<00><00><00><00><00><00><00><94>",
            "<81><a4>type<b0>AllBlocksCleared",
            "<8a><a4>type<ab>BlockStored<ac>block_hashes<92><05><cd><01><2c><b1>parent_block_hash<c0>",
            "<a9>token_ids<94><01><02><03><04><aa>block_size<02><a7>lora_id<c0><a6>medium<a3>GPU<a9>lora_name<c0>",
            "<a9>group_idx<00><b2>kv_cache_spec_kind<ae>full_attention",
            "<8b><a4>type<ab>BlockStored<ac>block_hashes<91><cd><01><2c><b1>parent_block_hash<05>",
            "<a9>token_ids<92><03><04><aa>block_size<02><a7>lora_id<c0><a6>medium<a3>GPU<a9>lora_name<c0>",
            "<a9>group_idx<01><b2>kv_cache_spec_kind<ae>sliding_window<bc>kv_cache_spec_sliding_window<cd><02><00>",
            "<84><a4>type<ac>BlockRemoved<ac>block_hashes<91><cd><01><2c><a6>medium<a3>GPU<a9>group_idx<01>",
            "<00>",
        );
        assert_eq!(text, expected.replace('@', "<40>"));
    }
}
