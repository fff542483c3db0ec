//! BERT encoders: post-norm layers with biases, learned positions, exact GELU.

use std::collections::BTreeMap;

use crate::{
    config::{Keys, MAX_LAYERS, MAX_SIZE},
    error::Result,
    incomplete::{Incomplete, Problem},
    names::split_index,
    slot::{NameRow, Role, Slot},
    source::{Format, Source, Tensor},
};

/// Name in config.json and in GGUF files.
pub(super) const MODEL_TYPE: &str = "bert";

/// Dimensions of a BERT encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bert {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the feed-forward block.
    pub intermediate: u32,
    /// Number of layers.
    pub layers: u32,
    /// Attention heads.
    pub heads: u32,
    /// Position embeddings: maximum tokens of a text.
    pub positions: u32,
    /// Kinds of segments that have an embedding; texts are of the first.
    pub types: u32,
    /// Number of tokens in the vocabulary.
    pub vocab: u32,
    /// Added to the variance in norms.
    pub norm_eps: f32,
}

impl Bert {
    /// Values per head.
    pub fn head_dim(&self) -> u32 {
        self.hidden / self.heads
    }

    /// Reads config.json.
    pub(super) fn from_hf(keys: &Keys) -> Result<Self> {
        const FIX: &str = "use an encoder with BERT's own settings";
        for (key, only) in [("hidden_act", "gelu"), ("position_embedding_type", "absolute")] {
            if let Some(other) = keys.text(key)?.filter(|found| *found != only) {
                let other: String = other.chars().take(64).collect();
                return Err(keys.unsupported(format!("{key} = '{}'", other.escape_debug()), FIX));
            }
        }
        if keys.flag("is_decoder")? == Some(true) {
            return Err(keys.unsupported("is_decoder = true", FIX));
        }
        let bert = Self {
            hidden: keys.size("hidden_size", MAX_SIZE, Some(768))?,
            intermediate: keys.size("intermediate_size", MAX_SIZE, Some(3072))?,
            layers: keys.size("num_hidden_layers", MAX_LAYERS, Some(12))?,
            heads: keys.size("num_attention_heads", MAX_SIZE, Some(12))?,
            positions: keys.size("max_position_embeddings", MAX_SIZE, Some(512))?,
            types: keys.size("type_vocab_size", MAX_SIZE, Some(2))?,
            vocab: keys.size("vocab_size", MAX_SIZE, Some(30522))?,
            norm_eps: keys.number("layer_norm_eps", Some(1e-12))?,
        };
        bert.check(keys, "num_attention_heads")
    }

    /// Reads GGUF metadata; the numbers of tokens and of types are those of the embeddings.
    pub(super) fn from_gguf(keys: &Keys, source: &Source) -> Result<Self> {
        let rows = |name: &str| {
            let tensor = source.tensors.iter().find(|tensor| tensor.name == name);
            let rows = tensor.and_then(|tensor| tensor.shape.first().copied());
            rows.and_then(|rows| u32::try_from(rows).ok()).unwrap_or(1)
        };
        if keys.flag("attention.causal")? == Some(true) {
            return Err(keys.unsupported("bert.attention.causal = true", "use an encoder"));
        }
        let bert = Self {
            hidden: keys.size("embedding_length", MAX_SIZE, None)?,
            intermediate: keys.size("feed_forward_length", MAX_SIZE, None)?,
            layers: keys.size("block_count", MAX_LAYERS, None)?,
            heads: keys.size("attention.head_count", MAX_SIZE, None)?,
            positions: keys.size("context_length", MAX_SIZE, None)?,
            types: rows("token_types.weight"),
            vocab: rows("token_embd.weight"),
            norm_eps: keys.number("attention.layer_norm_epsilon", None)?,
        };
        bert.check(keys, "attention.head_count")
    }

    /// Heads that attention supports: of multiples of 8 values, in rows of whole vectors of 4.
    fn check(self, keys: &Keys, heads: &str) -> Result<Self> {
        let Self { hidden, intermediate, .. } = self;
        if !hidden.is_multiple_of(self.heads) || !self.head_dim().is_multiple_of(8) {
            let reason = format!(
                "is {}, which does not divide the hidden size {hidden} into multiples of 8 values",
                self.heads
            );
            return Err(keys.error(heads, reason));
        }
        match intermediate.is_multiple_of(4) {
            true => Ok(self),
            false => {
                let what = format!("a feed-forward width of {intermediate}");
                Err(keys.unsupported(what, "use a model with a multiple of 4"))
            }
        }
    }
}

/// Tensors outside of layers.
const MODEL: [NameRow; 5] = [
    (Role::Embed, "embeddings.word_embeddings.weight", "token_embd.weight"),
    (Role::PositionEmbed, "embeddings.position_embeddings.weight", "position_embd.weight"),
    (Role::TypeEmbed, "embeddings.token_type_embeddings.weight", "token_types.weight"),
    (Role::EmbedNorm, "embeddings.LayerNorm.weight", "token_embd_norm.weight"),
    (Role::EmbedNormBias, "embeddings.LayerNorm.bias", "token_embd_norm.bias"),
];

/// Tensors of a layer.
const LAYER: [NameRow; 16] = [
    (Role::Query, "attention.self.query.weight", "attn_q.weight"),
    (Role::QueryBias, "attention.self.query.bias", "attn_q.bias"),
    (Role::Key, "attention.self.key.weight", "attn_k.weight"),
    (Role::KeyBias, "attention.self.key.bias", "attn_k.bias"),
    (Role::Value, "attention.self.value.weight", "attn_v.weight"),
    (Role::ValueBias, "attention.self.value.bias", "attn_v.bias"),
    (Role::Output, "attention.output.dense.weight", "attn_output.weight"),
    (Role::OutputBias, "attention.output.dense.bias", "attn_output.bias"),
    (Role::PostAttentionNorm, "attention.output.LayerNorm.weight", "attn_output_norm.weight"),
    (Role::PostAttentionNormBias, "attention.output.LayerNorm.bias", "attn_output_norm.bias"),
    (Role::Up, "intermediate.dense.weight", "ffn_up.weight"),
    (Role::UpBias, "intermediate.dense.bias", "ffn_up.bias"),
    (Role::Down, "output.dense.weight", "ffn_down.weight"),
    (Role::DownBias, "output.dense.bias", "ffn_down.bias"),
    (Role::PostFeedForwardNorm, "output.LayerNorm.weight", "layer_output_norm.weight"),
    (Role::PostFeedForwardNormBias, "output.LayerNorm.bias", "layer_output_norm.bias"),
];

/// Prefix of the encoder's tensors in files of a class that contains it.
const PREFIX: &str = "bert.";

/// Tensors of Hugging Face files that are not used: a buffer, the pooler and the heads of pre-training.
const UNUSED: [&str; 3] = ["embeddings.position_ids", "pooler.", "cls."];

const LAYER_PREFIXES: [&str; 2] = ["encoder.layer.", "blk."];

/// The names of a format, by the columns of the tables.
#[derive(Clone, Copy)]
struct Naming {
    gguf: bool,
}

impl Naming {
    fn column(self, row: &NameRow) -> &'static str {
        if self.gguf { row.2 } else { row.1 }
    }

    fn slot(self, name: &str) -> Option<Slot> {
        let find =
            |rows: &[NameRow], part: &str| rows.iter().find(|row| self.column(row) == part).map(|row| row.0);
        if let Some(role) = find(&MODEL, name) {
            return Some(Slot::text(None, role));
        }
        let (layer, part) = split_index(name.strip_prefix(LAYER_PREFIXES[usize::from(self.gguf)])?)?;
        find(&LAYER, part).map(|role| Slot::text(Some(layer), role))
    }

    fn name(self, slot: Slot) -> String {
        let rows = if slot.layer.is_some() { &LAYER[..] } else { &MODEL[..] };
        let row = rows.iter().find(|row| row.0 == slot.role);
        let part = row.map_or("?", |row| self.column(row));
        let layer = slot
            .layer
            .map_or(String::new(), |layer| format!("{}{layer}.", LAYER_PREFIXES[usize::from(self.gguf)]));
        format!("{layer}{part}")
    }
}

/// The tensors by slot; all problems at once if they are not complete.
pub(super) fn check(bert: &Bert, source: &Source) -> Result<BTreeMap<Slot, Tensor>, Incomplete> {
    let naming = Naming { gguf: source.format == Format::Gguf };
    let expected = expected(bert);
    let mut tensors: BTreeMap<Slot, Tensor> = BTreeMap::new();
    let mut problems = Vec::new();
    for tensor in &source.tensors {
        let (name, found) = (tensor.name.clone(), tensor.shape.clone());
        // Files converted from TensorFlow have its names of a norm's weight and bias.
        let plain = name.strip_prefix(PREFIX).unwrap_or(&name);
        let plain =
            plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias");
        if !naming.gguf && UNUSED.iter().any(|unused| plain.starts_with(unused)) {
            continue;
        }
        let slot = naming.slot(&plain);
        let Some((slot, shape)) = slot.and_then(|slot| Some((slot, expected.get(&slot)?))) else {
            problems.push(match slot.and_then(|slot| slot.layer) {
                Some(_) => Problem::BeyondLastLayer { name, layers: bert.layers },
                None => Problem::Unknown { name, found },
            });
            continue;
        };
        if *shape != found {
            problems.push(Problem::ShapeMismatch { name: name.clone(), expected: shape.clone(), found });
        }
        match tensors.get(&slot) {
            Some(first) => problems.push(Problem::Duplicate { name: first.name.clone(), second: name }),
            None => _ = tensors.insert(slot, tensor.clone()),
        }
    }
    let missing = expected.iter().filter(|(slot, _)| !tensors.contains_key(slot));
    let missing =
        missing.map(|(slot, shape)| Problem::Missing { name: naming.name(*slot), expected: shape.clone() });
    let problems: Vec<Problem> = missing.chain(problems.iter().cloned()).collect();
    match problems.is_empty() {
        true => Ok(tensors),
        false => Err(Incomplete { family: MODEL_TYPE, problems }),
    }
}

/// Every tensor with its shape.
fn expected(bert: &Bert) -> BTreeMap<Slot, Vec<u64>> {
    let [hidden, intermediate, positions, types, vocab] =
        [bert.hidden, bert.intermediate, bert.positions, bert.types, bert.vocab].map(u64::from);
    let shape = |role: Role| match role {
        Role::Embed => vec![vocab, hidden],
        Role::PositionEmbed => vec![positions, hidden],
        Role::TypeEmbed => vec![types, hidden],
        Role::Query | Role::Key | Role::Value | Role::Output => vec![hidden, hidden],
        Role::Up => vec![intermediate, hidden],
        Role::UpBias => vec![intermediate],
        Role::Down => vec![hidden, intermediate],
        _ => vec![hidden],
    };
    let model = MODEL.iter().map(|row| (Slot::text(None, row.0), shape(row.0)));
    let layers = (0..bert.layers)
        .flat_map(|layer| LAYER.iter().map(move |row| (Slot::text(Some(layer), row.0), shape(row.0))));
    model.chain(layers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_their_slots() {
        for naming in [Naming { gguf: false }, Naming { gguf: true }] {
            let bert = Bert {
                hidden: 8,
                intermediate: 8,
                layers: 2,
                heads: 1,
                positions: 4,
                types: 2,
                vocab: 3,
                norm_eps: 1e-12,
            };
            for slot in expected(&bert).into_keys() {
                assert_eq!(naming.slot(&naming.name(slot)), Some(slot), "{}", naming.name(slot));
            }
            for name in ["", "blk.01.attn_q.weight", "encoder.layer.0.", "encoder.layer.0.attn_q.weight"] {
                assert_eq!(naming.slot(name), None, "{name}");
            }
        }
    }
}
