//! The models: `/api/tags`, `/api/show`, `/api/ps`, and `/api/version`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::completion::receive_body;
use crate::error::Error;
use crate::models::{Capability, LoadState, ModelDescription, ModelState, find_named};
use crate::parse::parse;
use crate::state::AppState;
use crate::time::{rfc3339, rfc3339_micros};

/// The version of Ollama whose API this is: clients compare it with the one that introduced a field.
const API_VERSION: &str = "0.12.11";

/// When a model expires that is kept until its memory is needed: clients expect a time.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Response of `/api/version`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaVersion)]
pub(crate) struct Version {
    version: &'static str,
}

/// Response of `/api/tags`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaModelTags)]
pub(crate) struct ModelTags {
    models: Vec<ModelTag>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaModelTag)]
struct ModelTag {
    name: String,
    /// The name again.
    model: String,
    /// As in RFC 3339.
    modified_at: String,
    /// Size of its files in bytes.
    size: u64,
    digest: String,
    details: Details,
    capabilities: Vec<Capability>,
}

/// What the files of a model say of it. What is unknown is empty.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaDetails)]
struct Details {
    /// Always empty.
    parent_model: &'static str,
    /// "gguf" or "safetensors".
    format: String,
    family: String,
    families: Vec<String>,
    /// Such as "270M".
    parameter_size: String,
    /// Such as "Q4_K_M".
    quantization_level: String,
}

/// Body of `/api/show`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaShowRequest)]
pub(crate) struct ShowRequest {
    model: Option<String>,
    /// Older name of `model`.
    name: Option<String>,
    /// Without effect.
    #[allow(dead_code, reason = "only its type is checked")]
    verbose: Option<bool>,
}

/// Response of `/api/show`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaShowResponse)]
pub(crate) struct ShowResponse {
    /// The model's name and its default parameters, in the format of a Modelfile.
    modelfile: String,
    /// Default sampling parameters, one per line.
    parameters: String,
    /// The chat template, in Jinja.
    template: String,
    details: Details,
    #[schema(value_type = Object)]
    model_info: Map<String, Value>,
    capabilities: Vec<Capability>,
    /// As in RFC 3339.
    modified_at: String,
}

/// Response of `/api/ps`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaRunningModels)]
pub(crate) struct RunningModels {
    models: Vec<RunningModel>,
}

/// A model that is loaded.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaRunningModel)]
struct RunningModel {
    name: String,
    /// The name again.
    model: String,
    /// Bytes of memory that it takes.
    size: u64,
    digest: String,
    details: Details,
    /// When it is unloaded, unless it is used again, as in RFC 3339.
    expires_at: String,
    /// Bytes of device memory.
    size_vram: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u32>,
}

pub(crate) async fn version() -> Json<Version> {
    Json(Version { version: API_VERSION })
}

pub(crate) async fn tags(State(app): State<Arc<AppState>>) -> Result<Json<ModelTags>, Error> {
    let models = app.models.list().await?;
    Ok(Json(ModelTags { models: models.iter().map(ModelTag::new).collect() }))
}

pub(crate) async fn show(
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<Json<ShowResponse>, Error> {
    let body = receive_body(&app, request).await?.json;
    let ShowRequest { model, name, .. } = parse(&body)?;
    let model = describe(&app, &model_name(model, name)?).await?;
    Ok(Json(ShowResponse::new(&model)))
}

pub(crate) async fn ps(State(app): State<Arc<AppState>>) -> Result<Json<RunningModels>, Error> {
    let models = app.models.list().await?;
    let now = SystemTime::now();
    let running = app.models.states().into_iter().filter_map(|state| {
        let ModelState { id, state, bytes, expires_in, .. } = state;
        if !matches!(state, LoadState::Ready | LoadState::Draining) {
            return None;
        }
        // A model whose file is deleted may still be in use.
        let gone = ModelDescription { id: id.clone(), ..ModelDescription::default() };
        let model = models.iter().find(|model| model.id == id).unwrap_or(&gone);
        let size = if bytes > 0 { bytes } else { model.file_bytes };
        // A time that no date has is as good as never.
        let expires = expires_in.unwrap_or(NEVER).min(NEVER);
        Some(RunningModel {
            name: id.clone(),
            model: id,
            size,
            digest: digest(model),
            details: Details::new(model),
            expires_at: rfc3339_micros(now + expires),
            size_vram: size,
            context_length: model.context_length,
        })
    });
    Ok(Json(RunningModels { models: running.collect() }))
}

/// The description of a model, by one of its names.
pub(super) async fn describe(app: &AppState, name: &str) -> Result<ModelDescription, Error> {
    let models = app.models.list().await?;
    find_named(&models, name).cloned().ok_or_else(|| Error::UnknownModel(name.to_owned()))
}

/// The name of a model in the field `model`, or in its older name.
pub(super) fn model_name(model: Option<String>, name: Option<String>) -> Result<String, Error> {
    let given = model.or(name).filter(|name| !name.is_empty());
    given.ok_or_else(|| Error::missing_field("model"))
}

impl ModelTag {
    fn new(model: &ModelDescription) -> ModelTag {
        ModelTag {
            name: model.id.clone(),
            model: model.id.clone(),
            modified_at: rfc3339(model.created),
            size: model.file_bytes,
            digest: digest(model),
            details: Details::new(model),
            capabilities: model.capabilities.clone(),
        }
    }
}

impl Details {
    fn new(model: &ModelDescription) -> Details {
        let facts = &model.facts;
        let family = facts.architecture.clone();
        Details {
            parent_model: "",
            format: facts.format.clone(),
            families: Some(family.clone()).filter(|family| !family.is_empty()).into_iter().collect(),
            family,
            parameter_size: parameter_size(facts.parameters),
            quantization_level: facts.quantization.clone(),
        }
    }
}

impl ShowResponse {
    fn new(model: &ModelDescription) -> ShowResponse {
        let line = |(name, value): &(&str, String)| format!("{name} {value}");
        let parameters: Vec<String> = model.parameters.iter().map(line).collect();
        let modelfile: String = std::iter::once(format!("FROM {}\n", model.id))
            .chain(parameters.iter().map(|parameter| format!("PARAMETER {parameter}\n")))
            .collect();
        ShowResponse {
            modelfile,
            parameters: parameters.join("\n"),
            template: model.chat_template.clone().unwrap_or_default(),
            details: Details::new(model),
            model_info: model_info(model),
            capabilities: model.capabilities.clone(),
            modified_at: rfc3339(model.created),
        }
    }
}

/// What is known of a model, under the names that GGUF files use. The context length is the server's.
fn model_info(model: &ModelDescription) -> Map<String, Value> {
    let facts = &model.facts;
    let architecture = match facts.architecture.as_str() {
        "" => "unknown",
        known => known,
    };
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), architecture.into());
    info.insert("general.basename".to_owned(), model.id.clone().into());
    if facts.parameters > 0 {
        info.insert("general.parameter_count".to_owned(), facts.parameters.into());
    }
    let fields = [
        ("context_length", model.context_length.unwrap_or(0)),
        ("embedding_length", facts.embedding_length),
        ("block_count", facts.block_count),
        ("attention.head_count", facts.head_count),
        ("attention.head_count_kv", facts.head_count_kv),
        ("vocab_size", facts.vocab_size),
    ];
    let known = fields.into_iter().filter(|(_, value)| *value > 0);
    info.extend(known.map(|(name, value)| (format!("{architecture}.{name}"), value.into())));
    info
}

/// A number of parameters such as "270M" or "4.3B"; empty if it is unknown.
fn parameter_size(count: u64) -> String {
    let scaled = |unit: f64, name: &str| format!("{:.1}{name}", count as f64 / unit);
    match count {
        0 => String::new(),
        1..1_000_000 => scaled(1e3, "K"),
        1_000_000..1_000_000_000 => format!("{:.0}M", count as f64 / 1e6),
        _ => scaled(1e9, "B"),
    }
}

/// SHA-256 of a model's file; if it is not known, another number that identifies the model.
fn digest(model: &ModelDescription) -> String {
    let hash = || {
        let identity = format!("{}\0{}\0{}", model.id, model.file_bytes, model.created);
        let digest = Sha256::digest(identity.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    model.sha256.clone().unwrap_or_else(hash)
}

#[cfg(test)]
mod tests {
    #[test]
    fn parameter_sizes_have_units() {
        for (count, text) in [(0, ""), (1200, "1.2K"), (268_098_176, "268M"), (4_300_079_472, "4.3B")] {
            assert_eq!(super::parameter_size(count), text);
        }
    }
}
