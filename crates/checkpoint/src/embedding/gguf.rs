//! GGUF files of embedding models.

use std::path::Path;

use super::{Bert, EmbeddingCheckpoint, Heading, Opened, Pooling, Prompts, bert, not_embedding};
use crate::{
    config::{Config, Keys, MetaValue},
    error::Result,
    gguf::{self, Metadata},
    source::Tensor,
};

/// EmbeddingGemma's architecture, and the one whose layers it has.
const GEMMA: (&str, &str) = ("gemma-embedding", "gemma3");

const ARCHITECTURE: &str = "general.architecture";

/// Dense layers after pooling, in order.
const DENSE: [&str; 2] = ["dense_2.weight", "dense_3.weight"];

/// Values of `pooling_type`.
const NONE: u64 = 0;
const MEAN: u64 = 1;
const FIRST: u64 = 2;
const LAST: u64 = 3;

fn architecture(metadata: &Metadata) -> &str {
    metadata.str(ARCHITECTURE).unwrap_or_default()
}

fn pooling_type(metadata: &Metadata) -> Option<MetaValue<'_>> {
    metadata.get(&format!("{}.pooling_type", architecture(metadata))).map(MetaValue::from)
}

/// Whether a file is of an embedding model.
pub(super) fn is_embedding(metadata: &Metadata) -> bool {
    [bert::MODEL_TYPE, GEMMA.0].contains(&architecture(metadata))
        || pooling_type(metadata).is_some_and(|value| value != MetaValue::Unsigned(NONE))
}

/// Opens a file.
pub(super) fn open(path: &Path) -> Result<EmbeddingCheckpoint> {
    let gguf::Gguf { mut source, metadata, .. } = gguf::open(path)?;
    if !is_embedding(&metadata) {
        return Err(not_embedding(path));
    }
    let name = architecture(&metadata);
    let prefix = format!("{name}.");
    let get = |key: &str| metadata.get(&format!("{prefix}{key}")).map(MetaValue::from);
    let keys = Keys { path, prefix: &prefix, get: &get };
    let pooling = match pooling_type(&metadata) {
        None | Some(MetaValue::Unsigned(MEAN)) => Pooling::Mean,
        Some(MetaValue::Unsigned(FIRST)) => Pooling::Cls,
        Some(MetaValue::Unsigned(LAST)) => Pooling::Last,
        Some(_) => {
            let fix = "use a model that pools by the mean, the first or the last token";
            return Err(keys.unsupported(format!("its {prefix}pooling_type"), fix));
        }
    };
    let bidirectional = name == GEMMA.0 || keys.flag("attention.causal")? == Some(false);
    let (dense, layers): (Vec<Tensor>, Vec<Tensor>) =
        source.tensors.drain(..).partition(|tensor| DENSE.contains(&tensor.name.as_str()));
    source.tensors = layers;
    let dense =
        DENSE.iter().filter_map(|name| dense.iter().find(|tensor| tensor.name == *name).cloned()).collect();
    let heading = Heading { pooling, normalize: true, bidirectional, max_tokens: None };
    let opened = |source| Opened { path: path.to_path_buf(), source, heading, prompts: Prompts::default() };
    if name == bert::MODEL_TYPE {
        let bert = Bert::from_gguf(&keys, &source)?;
        return EmbeddingCheckpoint::bert(opened(source), bert, dense);
    }
    let family = if name == GEMMA.0 { GEMMA.1 } else { name };
    let get = |key: &str| match (key, key.strip_prefix(family).and_then(|rest| rest.strip_prefix('.'))) {
        (ARCHITECTURE, _) => Some(MetaValue::Text(family)),
        (_, Some(own)) => metadata.get(&format!("{prefix}{own}")).map(MetaValue::from),
        (_, None) => metadata.get(key).map(MetaValue::from),
    };
    let config = Config::from_gguf(path, &get)?;
    EmbeddingCheckpoint::decoder(opened(source), config, dense)
}
