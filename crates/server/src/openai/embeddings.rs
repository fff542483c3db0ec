//! `/v1/embeddings`.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::ToSchema;

use crate::access_log::LogEntry;
use crate::embedder::{EmbeddedText, EmbeddingInput, EmbeddingOptions};
use crate::embeddings::{EmbedRequest, MAX_INPUTS, embed};
use crate::error::Error;
use crate::parse::parse;
use crate::served::ServedEmbedder;
use crate::state::AppState;

/// Body of `/v1/embeddings`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingsRequest {
    /// Name of the model, as listed by `/v1/models`.
    #[allow(dead_code, reason = "read before the other fields")]
    model: String,
    /// A text, a list of texts, or the token ids of one or several.
    #[schema(value_type = EmbeddingInputSchema)]
    input: Value,
    /// Number of values of each vector: the first ones, scaled to a length of 1. The model's by default.
    #[schema(minimum = 1)]
    dimensions: Option<u32>,
    /// "float" (the default), or "base64" for the little-endian bytes of 32-bit floats.
    encoding_format: Option<EncodingFormat>,
    /// Cut off the end of texts that are too long; otherwise, and by default, they are an error. Vectors of texts that
    /// were cut off say so.
    truncate: Option<bool>,
    /// Name of one of the model's prompts, such as "query" or "document", that texts start with.
    prompt_name: Option<String>,
    /// Accepted, without effect.
    #[allow(dead_code, reason = "only its type is checked")]
    user: Option<String>,
}

/// `input` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum EmbeddingInputSchema {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

/// Response of `/v1/embeddings`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingList {
    object: &'static str,
    data: Vec<EmbeddingObject>,
    model: String,
    usage: EmbeddingUsage,
}

/// The vector of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingObject {
    object: &'static str,
    index: usize,
    #[schema(value_type = VectorSchema)]
    embedding: Vector,
    /// Only if the end of the text was cut off.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    truncated: bool,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

/// `embedding` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum VectorSchema {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

pub(crate) async fn embeddings(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Response, Error> {
    let (texts, format, model) = embed(&app, &log, request, parse_request).await?;
    let prompt_tokens = texts.iter().map(|text| text.tokens).sum();
    let data = texts.into_iter().enumerate().map(|(index, text)| EmbeddingObject::new(index, text, format));
    let list = EmbeddingList {
        object: "list",
        data: data.collect(),
        model,
        usage: EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens },
    };
    Ok(Json(list).into_response())
}

impl EmbeddingObject {
    fn new(index: usize, text: EmbeddedText, format: EncodingFormat) -> EmbeddingObject {
        let embedding = match format {
            EncodingFormat::Float => Vector::Float(text.vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = text.vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        };
        EmbeddingObject { object: "embedding", index, embedding, truncated: text.truncated }
    }
}

fn parse_request(body: &Value, model: &ServedEmbedder) -> Result<(EmbedRequest, EncodingFormat), Error> {
    let request: EmbeddingsRequest = parse(body)?;
    let inputs = parse_inputs("input", &request.input, model.model.vocab_size)?;
    let options = EmbeddingOptions {
        dimensions: request.dimensions,
        truncate: request.truncate.unwrap_or(false),
        prompt: request.prompt_name,
    };
    let fields = ("input", "prompt_name");
    Ok((EmbedRequest { inputs, options, fields }, request.encoding_format.unwrap_or_default()))
}

/// Texts or token ids: one, or a list.
pub(crate) fn parse_inputs(
    field: &str,
    value: &Value,
    vocab_size: u32,
) -> Result<Vec<EmbeddingInput>, Error> {
    let expected = "must be a text, a list of texts, or token ids of one or several";
    let list = match value {
        Value::String(text) => return Ok(vec![EmbeddingInput::Text(text.clone())]),
        Value::Array(list) => list,
        _ => return Err(Error::invalid_field(field, expected)),
    };
    if list.first().is_some_and(Value::is_number) {
        return Ok(vec![EmbeddingInput::Tokens(parse_tokens(field, list, vocab_size)?)]);
    }
    if list.is_empty() {
        return Err(Error::invalid_field(field, "is empty: at least one text is required"));
    }
    if list.len() > MAX_INPUTS {
        let message = format!("has {} texts, but at most {MAX_INPUTS} are allowed", list.len());
        return Err(Error::invalid_field(field, message));
    }
    let input = |(index, value): (usize, &Value)| {
        let field = format!("{field}[{index}]");
        match value {
            Value::String(text) => Ok(EmbeddingInput::Text(text.clone())),
            Value::Array(tokens) => Ok(EmbeddingInput::Tokens(parse_tokens(&field, tokens, vocab_size)?)),
            _ => Err(Error::invalid_field(field, "must be a text or a list of token ids")),
        }
    };
    list.iter().enumerate().map(input).collect()
}

fn parse_tokens(field: &str, values: &[Value], vocab_size: u32) -> Result<Vec<u32>, Error> {
    if values.is_empty() {
        return Err(Error::invalid_field(field, "has no tokens: the model needs at least one"));
    }
    let token = |(index, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocab_size);
        id.ok_or_else(|| {
            let last = vocab_size.saturating_sub(1);
            let message = format!("is {value}, but must be a token id from 0 to {last}");
            Error::invalid_field(format!("{field}[{index}]"), message)
        })
    };
    values.iter().enumerate().map(token).collect()
}
