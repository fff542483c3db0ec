//! The memory demand of a model.

use tensor::Scheme;

/// A tensor to place. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDemand {
    /// Name in messages.
    pub name: String,
    /// Size on the GPU.
    pub bytes: u64,
    /// Bytes of it that are read per token.
    pub bytes_per_token: u64,
    /// It may continue in another block at multiples of this; 0 if it must stay contiguous.
    pub split_unit: u64,
    /// It belongs in host memory, where a device has memory of its own: a large table of which a token reads a few rows.
    pub in_host_memory: bool,
}

impl WeightDemand {
    /// Bytes that must stay contiguous.
    pub(super) fn min_extent(&self) -> u64 {
        if self.split_unit == 0 { self.bytes } else { self.split_unit.min(self.bytes) }
    }
}

/// The KV cache demand of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayerDemand {
    /// Bytes of key and value per token.
    pub bytes_per_token: u64,
    /// Maximum tokens kept per sequence; `None` for the whole context.
    pub max_tokens: Option<u64>,
}

/// Bytes of the KV cache for `max_sequences` sequences of `context_length` tokens. Saturates: absurd sizes do
/// not fit.
pub fn kv_bytes(layers: &[KvLayerDemand], context_length: u64, max_sequences: u64) -> u64 {
    let layer = |layer: &KvLayerDemand| {
        let tokens = layer.max_tokens.unwrap_or(u64::MAX).min(context_length);
        layer.bytes_per_token.saturating_mul(tokens)
    };
    layers.iter().map(layer).fold(0, u64::saturating_add).saturating_mul(max_sequences)
}

/// The memory demand of a model.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The weights.
    pub weights: Vec<WeightDemand>,
    /// The KV cache, layer by layer.
    pub kv_layers: Vec<KvLayerDemand>,
    /// Tokens per sequence.
    pub context_length: u64,
    /// Concurrent sequences.
    pub max_sequences: u64,
    /// Bytes of activations, logits and tables.
    pub scratch_bytes: u64,
    /// The same weights in smaller schemes, to find out whether those would fit.
    pub smaller: Vec<(Scheme, Vec<WeightDemand>)>,
}

impl Demand {
    /// Adds something that is placed like a matrix, after the others.
    pub fn add_weight(&mut self, weight: WeightDemand) {
        self.smaller.iter_mut().for_each(|(_, weights)| weights.push(weight.clone()));
        self.weights.push(weight);
    }

    /// Bytes of everything.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes().saturating_add(self.kv_bytes()).saturating_add(self.scratch_bytes)
    }

    /// Bytes of all weights.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.bytes).sum()
    }

    /// Bytes of the KV cache.
    pub(super) fn kv_bytes(&self) -> u64 {
        kv_bytes(&self.kv_layers, self.context_length, self.max_sequences)
    }

    /// The KV cache is divided between blocks at multiples of one token of its largest layer.
    pub(super) fn kv_split_unit(&self) -> u64 {
        self.kv_layers.iter().map(|layer| layer.bytes_per_token).max().unwrap_or(0)
    }
}
