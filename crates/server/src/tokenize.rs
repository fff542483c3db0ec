//! `/tokenize` and `/detokenize`, with the fields of vLLM and llama.cpp.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use text::{DecodeSpecial, EncodeSpecial};
use utoipa::ToSchema;

use crate::access_log::LogEntry;
use crate::completion::{ReceivedBody, blocking, prepare, receive_body};
use crate::error::Error;
use crate::models::Lease;
use crate::openai::{parse_chat, token_text};
use crate::parse::parse;
use crate::request::prompt_tokens;
use crate::state::AppState;
use crate::unsupported::{Neutral, UnsupportedField, check_unsupported};

/// Body of `/tokenize`: a text, or messages with the fields of a chat that belong to the prompt.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    /// Name of the model; may be left out if the server has one model only.
    model: Option<String>,
    /// The text.
    prompt: Option<String>,
    /// llama.cpp's name of `prompt`; `add_special_tokens` is then false by default.
    content: Option<String>,
    /// The messages of a chat, which the chat template turns into the prompt.
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Value>,
    /// Whether to add the tokens that start a prompt; true by default. Not with `messages`: the template adds them.
    add_special_tokens: Option<bool>,
    /// llama.cpp's name of `add_special_tokens`.
    add_special: Option<bool>,
    /// Whether to return the texts of the tokens as well.
    return_token_strs: Option<bool>,
}

/// Fields of other servers that would change the response.
const UNSUPPORTED: &[UnsupportedField] = &[
    ("parse_special", "control tokens as text", Neutral::True),
    ("with_pieces", "tokens with their pieces (use 'return_token_strs')", Neutral::Empty),
];

/// Response of `/tokenize`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenizeResponse {
    tokens: Vec<u32>,
    /// Number of tokens.
    count: usize,
    /// Context length in tokens.
    max_model_len: u32,
    /// Only if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// Maximum number of token ids of `/detokenize`: a token may stand for a hundred bytes.
const MAX_DETOKENIZED: usize = 1 << 18;

/// Body of `/detokenize`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    /// Name of the model; may be left out if the server has one model only.
    model: Option<String>,
    tokens: Vec<u32>,
}

/// Response of `/detokenize`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetokenizeResponse {
    /// The text.
    prompt: String,
    /// llama.cpp's name of `prompt`.
    content: String,
}

pub(crate) async fn tokenize(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Json<TokenizeResponse>, Error> {
    let mut body = receive_body(&app, request).await?;
    let request: TokenizeRequest = parse(&body.json)?;
    check_unsupported(&body.json, UNSUPPORTED)?;
    let model = model_name(&app, request.model).await?;
    log.set_model(&model);
    let given = [
        ("prompt", request.prompt.is_some()),
        ("content", request.content.is_some()),
        ("messages", request.messages.is_some()),
    ];
    let mut given = given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        return Err(Error::invalid_field(second, format!("cannot be combined with '{first}'")));
    }
    let special = request.add_special_tokens.or(request.add_special);
    let (served, tokens) = match (request.prompt, request.content) {
        (None, None) if request.messages.is_some() => {
            if special == Some(true) {
                let message = "cannot be combined with 'messages': the chat template adds them";
                return Err(Error::invalid_field("add_special_tokens", message));
            }
            body.json["model"] = model.into();
            tokenize_messages(&app, &log, body).await?
        }
        (None, None) => return Err(Error::missing_field("prompt")),
        (prompt, content) => {
            let special = special.unwrap_or(prompt.is_some());
            let text = prompt.or(content).unwrap_or_default();
            app.check_ready()?;
            let served = app.models.acquire_language(&model).await?;
            let lease = served.clone();
            let encode = move || {
                let tokenizer = &lease.model.tokenizer;
                Ok(match special {
                    true => tokenizer.encode_prompt(&text),
                    false => tokenizer.encode(&text, EncodeSpecial::Parse),
                })
            };
            (served, blocking(encode).await?)
        }
    };
    let (count, max_model_len) = (tokens.len(), served.generator.context_length());
    let with_texts = request.return_token_strs.unwrap_or(false);
    let (tokens, token_strs) = blocking(move || {
        let texts = || tokens.iter().map(|id| token_text(*id, &served.model.tokenizer)).collect();
        let token_strs = with_texts.then(texts);
        Ok((tokens, token_strs))
    })
    .await?;
    Ok(Json(TokenizeResponse { tokens, count, max_model_len, token_strs }))
}

/// The tokens of a chat.
async fn tokenize_messages(
    app: &Arc<AppState>,
    log: &Arc<LogEntry>,
    body: ReceivedBody,
) -> Result<(Lease, Vec<u32>), Error> {
    let parse = |body, context: &_| Ok((parse_chat(body, context)?, ()));
    let (tokens, (), context) = prepare(app, log, body, parse, prompt_tokens).await?;
    Ok((context.served, tokens))
}

pub(crate) async fn detokenize(
    State(app): State<Arc<AppState>>,
    Extension(log): Extension<Arc<LogEntry>>,
    request: Request,
) -> Result<Json<DetokenizeResponse>, Error> {
    let body = receive_body(&app, request).await?;
    let DetokenizeRequest { model, tokens } = parse(&body.json)?;
    let model = model_name(&app, model).await?;
    log.set_model(&model);
    app.check_ready()?;
    let served = app.models.acquire_language(&model).await?;
    if tokens.len() > MAX_DETOKENIZED {
        let message = format!("has {} ids, but at most {MAX_DETOKENIZED} are allowed", tokens.len());
        return Err(Error::invalid_field("tokens", message));
    }
    let vocab_size = served.model.tokenizer.vocab_size();
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab_size) {
        let message = format!("contains {id}, but token ids must be below {vocab_size}");
        return Err(Error::invalid_field("tokens", message));
    }
    let decode = move || Ok(served.model.tokenizer.decode(&tokens, DecodeSpecial::Keep));
    let prompt = blocking(decode).await?;
    Ok(Json(DetokenizeResponse { content: prompt.clone(), prompt }))
}

/// The given name, or that of the server's only model.
async fn model_name(app: &AppState, given: Option<String>) -> Result<String, Error> {
    if let Some(given) = given {
        return Ok(given);
    }
    match &*app.models.list().await? {
        [only] => Ok(only.id.clone()),
        _ => Err(Error::missing_field("model")),
    }
}
