//! Bodies of `POST /v1/responses` as requests.

use std::collections::BTreeMap;

use engine::Sampling;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use text::{PromptEnd, PromptOptions, Variables};
use utoipa::ToSchema;

use super::conversation::{Messages, messages};
#[allow(unused_imports, reason = "used by the OpenAPI document only")]
use super::input::InputSchema;
use super::input::{MAX_SHOWN, PlacedItem, parse_input};
use super::options::{Reasoning, TextConfig, Truncation};
use super::response::{ResponseObject, Settings};
use super::store::{Owner, StoredResponse};
#[allow(unused_imports, reason = "used by the OpenAPI document only")]
use super::tools::FunctionChoiceSchema;
use super::tools::{FunctionTool, shown_tools, tool_options};
use crate::error::Error;
use crate::openai::chat::set_effort;
use crate::openai::logprobs::MAX_CHAT_LOGPROBS;
use crate::openai::unsupported::FIELDS;
use crate::parse::parse;
use crate::random;
use crate::request::{Conversation, GenerationOptions, GenerationRequest, Input, ranged};
use crate::state::{AppState, Context};
use crate::unsupported::{Neutral, UnsupportedField, check_unsupported};

/// Fields that would change the response, but are not implemented.
const UNSUPPORTED: &[UnsupportedField] = &[
    ("conversation", "a stored conversation (use 'previous_response_id')", Neutral::Empty),
    ("prompt", "a stored prompt (use 'instructions' and 'input')", Neutral::Empty),
];

/// The value of `include` that has an effect.
const INCLUDE_LOGPROBS: &str = "message.output_text.logprobs";

/// Values of `include` that have no effect: responses have no such items, or contain this anyway.
const INCLUDE_IGNORED: [&str; 7] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
];

/// Limits of `metadata`: pairs, and characters of keys and values.
const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// Body of `POST /v1/responses`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CreateResponse {
    /// Name of the model, as listed by `/v1/models`.
    #[allow(dead_code, reason = "read before the other fields")]
    model: String,
    /// A text of the user, or items. Required unless `previous_response_id` is set.
    // Taken out of the body before it is parsed.
    #[schema(value_type = Option<InputSchema>)]
    #[allow(dead_code, reason = "describes the schema; the input is parsed elsewhere")]
    input: Option<IgnoredAny>,
    /// System prompt. It is not part of later responses that continue this one.
    instructions: Option<String>,
    /// A stored response, whose conversation this one continues.
    previous_response_id: Option<String>,
    /// Maximum number of generated tokens, with the thinking.
    #[schema(minimum = 1)]
    max_output_tokens: Option<u32>,
    /// Accepted, without effect: the client executes all tools.
    #[schema(minimum = 1)]
    max_tool_calls: Option<u32>,
    /// Sampling temperature; 0 is greedy decoding.
    #[schema(minimum = 0, maximum = 2)]
    temperature: Option<f64>,
    /// Nucleus sampling: sample from the most probable tokens whose probabilities sum to this.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Number of most probable tokens to return per position, if `include` has "message.output_text.logprobs".
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u32>,
    /// "message.output_text.logprobs" returns log probabilities; other values have no effect.
    include: Option<Vec<String>>,
    /// Format of the output.
    text: Option<TextConfig>,
    /// Tools that the model may call, if its chat template supports them.
    tools: Option<Vec<FunctionTool>>,
    /// Which tools may or must be called; "auto" by default.
    #[schema(value_type = Option<FunctionChoiceSchema>)]
    tool_choice: Option<Value>,
    /// Whether a response may contain several tool calls; true by default.
    parallel_tool_calls: Option<bool>,
    /// Whether the model thinks before it answers.
    reasoning: Option<Reasoning>,
    /// Up to 16 pairs, which are returned.
    metadata: Option<BTreeMap<String, String>>,
    /// Accepted, without effect.
    user: Option<String>,
    /// Accepted, without effect.
    safety_identifier: Option<String>,
    /// Accepted, without effect.
    prompt_cache_key: Option<String>,
    /// Accepted, without effect.
    prompt_cache_retention: Option<String>,
    /// Accepted, without effect.
    #[allow(dead_code, reason = "only its type is checked")]
    service_tier: Option<String>,
    /// Stream the response as server-sent events.
    stream: Option<bool>,
    /// Options of the stream; only with `stream`.
    stream_options: Option<ResponseStreamOptions>,
    /// Whether the response can be retrieved and continued later; true by default.
    store: Option<bool>,
    /// Respond at once; the response is generated meanwhile, and retrieved later.
    background: Option<bool>,
    /// Whether the oldest items of an input that is too long are left out; "disabled" by default.
    truncation: Option<Truncation>,
}

/// Options of a stream.
#[derive(Debug, Deserialize, ToSchema)]
struct ResponseStreamOptions {
    /// Accepted, without effect.
    #[allow(dead_code, reason = "only its type is checked")]
    include_obfuscation: Option<bool>,
}

/// What is kept of a request for its response.
pub(super) struct NewResponse {
    /// The response without output, and its input.
    pub(super) stored: StoredResponse,
    pub(super) stream: bool,
    pub(super) logprobs: bool,
}

/// Parses a body. The time grows with its size, so this must not run on a thread of the async runtime.
pub(super) fn parse_request(
    mut body: Value,
    context: &Context,
    owner: &Owner,
) -> Result<(GenerationRequest, NewResponse), Error> {
    let Context { app, served } = context;
    let model = &served.model;
    check_unsupported(&body, UNSUPPORTED)?;
    check_unsupported(&body, FIELDS)?;
    let input = body.get_mut("input").map(Value::take).filter(|input| !input.is_null());
    let request: CreateResponse = parse(&body)?;
    request.validate()?;
    let base = &model.sampling;
    let sampling = Sampling {
        temperature: ranged("temperature", request.temperature, 0.0, 2.0, base.temperature)?,
        // 0 keeps only the most probable token, and so does the smallest positive number.
        top_p: ranged("top_p", request.top_p, 0.0, 1.0, base.top_p)?.max(f32::MIN_POSITIVE),
        ..base.clone()
    };
    let logprobs = request.has_logprobs()?;
    let text = request.text.unwrap_or_default();
    let constraint = text.constraint()?;
    let tools = request.tools.unwrap_or_default();
    let parallel_tool_calls = request.parallel_tool_calls.unwrap_or(true);
    let options = tool_options(&tools, request.tool_choice.as_ref(), parallel_tool_calls)?;
    let reasoning = request.reasoning.unwrap_or_default();
    let mut variables = Variables::new();
    set_effort(&mut variables, "reasoning.effort", reasoning.effort.as_deref(), app.config.thinking)?;

    let mut items = earlier_items(app, owner, request.previous_response_id.as_deref())?;
    let earlier = items.len();
    match input {
        Some(input) => items.extend(parse_input(input, |id| app.responses.item(owner, id))?),
        None if request.previous_response_id.is_none() => return Err(Error::missing_field("input")),
        None => {}
    }
    if items.is_empty() {
        return Err(Error::invalid_field("input", "is empty: at least one item is required"));
    }
    let Messages { messages, images, tools_used_at } =
        messages(request.instructions.as_deref(), &items, app.images.limits())?;
    app.images.check(model, &images)?;

    let truncation = request.truncation.unwrap_or_default();
    let settings = Settings {
        model: model.id.clone(),
        background: request.background.unwrap_or(false),
        instructions: request.instructions,
        max_output_tokens: request.max_output_tokens,
        max_tool_calls: request.max_tool_calls,
        metadata: request.metadata.unwrap_or_default(),
        parallel_tool_calls,
        previous_response_id: request.previous_response_id,
        prompt_cache_key: request.prompt_cache_key,
        prompt_cache_retention: request.prompt_cache_retention,
        reasoning,
        safety_identifier: request.safety_identifier,
        service_tier: "default",
        store: request.store.unwrap_or(true),
        temperature: sampling.temperature,
        text,
        tool_choice: request.tool_choice.unwrap_or_else(|| "auto".into()),
        tools: shown_tools(tools),
        top_logprobs: request.top_logprobs.unwrap_or(0),
        top_p: request.top_p.map_or(base.top_p, |top_p| top_p as f32),
        truncation,
        user: request.user,
    };
    // Not the id of the request, which clients may choose.
    let response = ResponseObject::new(format!("resp_{}", random::id()), settings);
    let mut history: Vec<_> = items.into_iter().map(|placed| placed.item).collect();
    let input = history.split_off(earlier);
    let kept = NewResponse {
        stored: StoredResponse { response, history, input },
        stream: request.stream.unwrap_or(false),
        logprobs,
    };
    let conversation = Conversation {
        messages,
        tools: options,
        prompt_options: PromptOptions { end: PromptEnd::Reply, variables },
        tools_used_at,
        field: "input",
        truncate: truncation == Truncation::Auto,
    };
    let request = GenerationRequest {
        id_prefix: "resp_",
        input: Input::Conversation(Box::new(conversation)),
        images,
        options: GenerationOptions {
            sampling,
            candidates: 1,
            max_tokens: request.max_output_tokens,
            constraint,
            top_logprobs: logprobs.then(|| request.top_logprobs.unwrap_or(0)),
            ..GenerationOptions::default()
        },
    };
    Ok((request, kept))
}

/// The conversation of the previous response.
fn earlier_items(app: &AppState, owner: &Owner, id: Option<&str>) -> Result<Vec<PlacedItem>, Error> {
    let Some(id) = id else { return Ok(vec![]) };
    let shown = || id.chars().take(MAX_SHOWN).collect();
    let found = app.responses.get(owner, id).ok_or_else(|| Error::PreviousResponseNotFound(shown()))?;
    if found.response.is_running() {
        let message = "is a response in progress: wait until it has ended";
        return Err(Error::invalid_field("previous_response_id", message));
    }
    Ok(found.items().cloned().map(PlacedItem::earlier).collect())
}

impl CreateResponse {
    /// Validates fields that do not depend on the model.
    fn validate(&self) -> Result<(), Error> {
        for (field, value) in
            [("max_output_tokens", self.max_output_tokens), ("max_tool_calls", self.max_tool_calls)]
        {
            if value == Some(0) {
                return Err(Error::invalid_field(field, "is 0, but must be at least 1"));
            }
        }
        let stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !stream {
            return Err(Error::invalid_field("stream_options", "is only allowed if 'stream' is true"));
        }
        if self.background == Some(true) {
            if stream {
                return Err(Error::unsupported("stream", "the stream of a response in the background"));
            }
            if self.store == Some(false) {
                let message = "must not be false if 'background' is true: the response is retrieved later";
                return Err(Error::invalid_field("store", message));
            }
        }
        self.validate_metadata()
    }

    fn validate_metadata(&self) -> Result<(), Error> {
        let Some(metadata) = &self.metadata else { return Ok(()) };
        let invalid = |message: String| Err(Error::invalid_field("metadata", message));
        if metadata.len() > MAX_METADATA {
            return invalid(format!("has {} pairs, but at most {MAX_METADATA} are allowed", metadata.len()));
        }
        for (key, value) in metadata {
            if key.chars().count() > MAX_METADATA_KEY {
                return invalid(format!("has a key of more than {MAX_METADATA_KEY} characters"));
            }
            if value.chars().count() > MAX_METADATA_VALUE {
                return invalid(format!("has a value of more than {MAX_METADATA_VALUE} characters"));
            }
        }
        Ok(())
    }

    /// Whether log probabilities are returned.
    fn has_logprobs(&self) -> Result<bool, Error> {
        if let Some(top) = self.top_logprobs.filter(|top| *top > MAX_CHAT_LOGPROBS) {
            let message = format!("is {top}, but must be between 0 and {MAX_CHAT_LOGPROBS}");
            return Err(Error::invalid_field("top_logprobs", message));
        }
        let include = self.include.as_deref().unwrap_or_default();
        let known = |value: &str| value == INCLUDE_LOGPROBS || INCLUDE_IGNORED.contains(&value);
        if let Some((index, other)) = include.iter().enumerate().find(|(_, value)| !known(value)) {
            let shown: String = other.chars().take(MAX_SHOWN).collect();
            let field = format!("include[{index}]");
            return Err(Error::invalid_field(field, format!("has the unknown value {shown:?}")));
        }
        Ok(include.iter().any(|value| value == INCLUDE_LOGPROBS))
    }
}
