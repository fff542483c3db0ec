//! What is known of a model before it is loaded.

use serde::Serialize;
use text::ToolSupport;
use utoipa::ToSchema;

use crate::config::Model;
use crate::embedder::EmbeddingModel;
use crate::served::Served;

/// A model that requests may name, loaded or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelDescription {
    /// Name in the API.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// Creation time in seconds since 1970.
    pub created: u64,
    /// Size of its files in bytes; 0 if unknown.
    pub file_bytes: u64,
    /// SHA-256 of its file in hexadecimal, if it is known.
    pub sha256: Option<String>,
    /// Context length in tokens, if it is known without loading.
    pub context_length: Option<u32>,
    /// What requests may do with it.
    pub capabilities: Vec<Capability>,
    /// What its files say of it.
    pub facts: ModelFacts,
    /// Text of its chat template.
    pub chat_template: Option<String>,
    /// Its default sampling parameters by name.
    pub parameters: Vec<(&'static str, String)>,
}

/// What requests may do with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Capability {
    /// Generate text.
    Completion,
    /// Call tools.
    Tools,
    /// Use images in prompts.
    Vision,
    /// Think before the answer.
    Thinking,
    /// Fill in the middle.
    Insert,
    /// Embed texts.
    Embedding,
}

/// What the files of a model say of it. What is unknown is empty or 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Format of the files: `gguf` or `safetensors`.
    pub format: String,
    /// Family of the model, such as `gemma3`.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Most common encoding of the weights, such as `Q4_K_M`.
    pub quantization: String,
    /// Width of the hidden state.
    pub embedding_length: u32,
    /// Number of layers.
    pub block_count: u32,
    /// Number of attention heads.
    pub head_count: u32,
    /// Number of heads of keys and values.
    pub head_count_kv: u32,
    /// Number of tokens.
    pub vocab_size: u32,
}

impl ModelDescription {
    /// The description of a model, without what only its files say.
    pub fn of(model: &Model, context_length: u32) -> ModelDescription {
        let sampling = &model.sampling;
        let mut parameters = vec![("temperature", sampling.temperature.to_string())];
        let top_k = (sampling.top_k > 0).then(|| sampling.top_k.to_string());
        parameters.extend(top_k.map(|top_k| ("top_k", top_k)));
        parameters.extend((sampling.top_p < 1.0).then(|| ("top_p", sampling.top_p.to_string())));
        parameters.extend((sampling.min_p > 0.0).then(|| ("min_p", sampling.min_p.to_string())));
        let stops = model.stop_token_ids.iter().filter_map(|id| model.tokenizer.token_bytes(*id));
        let stops = stops.map(|bytes| ("stop", format!("{:?}", String::from_utf8_lossy(bytes))));
        parameters.extend(stops);
        ModelDescription {
            id: model.id.clone(),
            aliases: model.aliases.clone(),
            created: model.created,
            context_length: Some(context_length),
            capabilities: capabilities(model),
            facts: ModelFacts { vocab_size: model.vocab_size, ..ModelFacts::default() },
            chat_template: model.chat_template.as_ref().map(|template| template.source().to_owned()),
            parameters,
            ..ModelDescription::default()
        }
    }

    /// The description of a model that embeds texts, without what only its files say.
    pub fn of_embedder(model: &EmbeddingModel) -> ModelDescription {
        let facts = ModelFacts {
            embedding_length: model.dimensions,
            vocab_size: model.vocab_size,
            ..ModelFacts::default()
        };
        ModelDescription {
            id: model.id.clone(),
            aliases: model.aliases.clone(),
            created: model.created,
            context_length: Some(model.max_tokens),
            capabilities: vec![Capability::Embedding],
            facts,
            ..ModelDescription::default()
        }
    }

    /// The description of a loaded model.
    pub(crate) fn of_served(served: &Served) -> ModelDescription {
        match served {
            Served::Language(served) => {
                ModelDescription::of(&served.model, served.generator.context_length())
            }
            Served::Embedder(served) => ModelDescription::of_embedder(&served.model),
        }
    }

    /// Whether requests may use this name for the model.
    pub fn is_named(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// Whether prompts may contain images.
    pub fn takes_images(&self) -> bool {
        self.capabilities.contains(&Capability::Vision)
    }

    /// Whether it embeds texts, rather than generating them.
    pub(crate) fn embeds(&self) -> bool {
        self.capabilities.contains(&Capability::Embedding)
    }
}

fn capabilities(model: &Model) -> Vec<Capability> {
    let template = model.chat_template.as_ref();
    let tools = template
        .is_some_and(|template| matches!(template.tool_support(&model.tokenizer), ToolSupport::Format(_)));
    let thinking = template.is_some_and(|template| template.thinking_format(&model.tokenizer).is_some());
    let all = [
        (Capability::Completion, true),
        (Capability::Tools, tools),
        (Capability::Vision, model.images.is_ok()),
        (Capability::Thinking, thinking),
        (Capability::Insert, model.tokenizer.fim().is_some()),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(capability, _)| capability).collect()
}

/// The tag that stands for the default variant of a model in names of Ollama's clients.
const DEFAULT_TAG: &str = ":latest";

/// The name of a model without the tag `:latest`; `None` if it has another tag or none.
pub(crate) fn without_default_tag(name: &str) -> Option<&str> {
    name.strip_suffix(DEFAULT_TAG).filter(|name| !name.is_empty())
}

/// The model with this name. `NAME:latest` is also a name of `NAME`, unless another model has it.
pub(crate) fn find_named<'a>(models: &'a [ModelDescription], name: &str) -> Option<&'a ModelDescription> {
    let find = |name: &str| models.iter().find(|model| model.is_named(name));
    find(name).or_else(|| find(without_default_tag(name)?))
}
