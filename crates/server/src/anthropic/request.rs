//! Bodies of `/v1/messages` and `/v1/messages/count_tokens` as requests.

use engine::Sampling;
use serde::Deserialize;
use serde_json::{Map, Value};
use text::{PromptOptions, Variables, set_thinking};
use utoipa::ToSchema;

#[allow(unused_imports, reason = "used by the OpenAPI document only")]
use super::content::MessageContentSchema;
use super::content::{MessageContent, take_images};
use super::conversation::{Turns, turns};
use super::tools::{ClientTool, ToolChoice, tool_options};
use super::unsupported;
use crate::constraint::Constraint;
use crate::error::Error;
use crate::parse::parse;
use crate::request::{Conversation, GenerationOptions, GenerationRequest, Input, check_stops, ranged};
use crate::state::Context;

/// Body of `/v1/messages`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    /// Maximum number of generated tokens, with the thinking.
    #[schema(minimum = 1)]
    max_tokens: u32,
    /// Stream the message as server-sent events.
    stream: Option<bool>,
    /// Up to 64 strings that end the message; they are not part of it.
    stop_sequences: Option<Vec<String>>,
    /// Sampling temperature; 0 is greedy decoding.
    #[schema(minimum = 0, maximum = 1)]
    temperature: Option<f64>,
    /// Nucleus sampling: sample from the most probable tokens whose probabilities sum to this.
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f64>,
    /// Sample from this many of the most probable tokens; 0 disables the limit.
    top_k: Option<u32>,
    /// Accepted, without effect.
    #[allow(dead_code, reason = "only its type is checked")]
    metadata: Option<Metadata>,
}

/// Body of `/v1/messages/count_tokens`: what the prompt consists of.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CountTokensRequest {
    /// Name of the model, as listed by `/v1/models`.
    #[allow(dead_code, reason = "read before the other fields")]
    model: String,
    /// The conversation so far. If its last message is the assistant's, the response continues it.
    #[schema(min_items = 1)]
    messages: Vec<RequestMessage>,
    /// System prompt: text, or blocks of text.
    #[schema(value_type = Option<MessageContentSchema>)]
    system: Option<MessageContent>,
    /// Tools that the model may call, if its chat template supports them.
    tools: Option<Vec<ClientTool>>,
    /// Which tools may or must be called.
    tool_choice: Option<ToolChoice>,
    /// Whether the model thinks before it answers, if its template has a switch for it.
    thinking: Option<ThinkingConfig>,
    /// Format of the output, and effort.
    output_config: Option<OutputConfig>,
}

/// A message of the conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RequestMessage {
    pub(super) role: Role,
    #[schema(value_type = MessageContentSchema)]
    pub(super) content: MessageContent,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = MessageRole)]
pub(crate) enum Role {
    User,
    Assistant,
    System,
}

#[derive(Debug, Deserialize, ToSchema)]
struct Metadata {
    #[allow(dead_code, reason = "only its type is checked")]
    user_id: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct ThinkingConfig {
    r#type: ThinkingType,
    /// Required for the type "enabled". Without effect: thinking is limited by `max_tokens` only.
    #[allow(dead_code, reason = "only its type is checked")]
    budget_tokens: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ThinkingType {
    Enabled,
    Disabled,
    /// As enabled.
    Adaptive,
}

#[derive(Debug, Deserialize, ToSchema)]
struct OutputConfig {
    /// Given to the template as `reasoning_effort`.
    effort: Option<String>,
    format: Option<OutputFormat>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct OutputFormat {
    #[allow(dead_code, reason = "only its value is checked")]
    r#type: OutputFormatType,
    /// JSON Schema that the output matches.
    #[schema(value_type = Object)]
    schema: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OutputFormatType {
    JsonSchema,
}

/// Fields of a request that determine the form of its response.
#[derive(Debug)]
pub(super) struct ResponseOptions {
    pub(super) stream: bool,
    pub(super) stop_sequences: Vec<String>,
}

/// Parses a body of `/v1/messages`. The time grows with its size, so this must not run on a thread of the async
/// runtime.
pub(super) fn parse_request(
    mut body: Value,
    context: &Context,
) -> Result<(GenerationRequest, ResponseOptions), Error> {
    let options: MessagesRequest = parse(&body)?;
    if options.max_tokens == 0 {
        return Err(Error::invalid_field("max_tokens", "is 0, but must be at least 1"));
    }
    let stops = options.stop_sequences.unwrap_or_default();
    check_stops("stop_sequences", &stops)?;
    let base = &context.served.model.sampling;
    let mut request = parse_prompt(&mut body, context)?;
    request.options = GenerationOptions {
        sampling: Sampling {
            temperature: ranged("temperature", options.temperature, 0.0, 1.0, base.temperature)?,
            // 0 keeps only the most probable token, and so does the smallest positive number.
            top_p: ranged("top_p", options.top_p, 0.0, 1.0, base.top_p)?.max(f32::MIN_POSITIVE),
            top_k: options.top_k.unwrap_or(base.top_k),
            ..base.clone()
        },
        candidates: 1,
        max_tokens: Some(options.max_tokens),
        stops: stops.clone(),
        ..request.options
    };
    let response = ResponseOptions { stream: options.stream.unwrap_or(false), stop_sequences: stops };
    Ok((request, response))
}

/// Parses a body of `/v1/messages/count_tokens`.
pub(super) fn parse_count(mut body: Value, context: &Context) -> Result<(GenerationRequest, ()), Error> {
    Ok((parse_prompt(&mut body, context)?, ()))
}

/// The fields that both paths share.
fn parse_prompt(body: &mut Value, context: &Context) -> Result<GenerationRequest, Error> {
    let Context { app, served } = context;
    unsupported::check(body)?;
    let images = take_images(body, app.images.limits())?;
    let request: CountTokensRequest = parse(body)?;
    app.images.check(&served.model, &images)?;
    let variables = request.variables(app.config.thinking)?;
    let constraint = request.constraint()?;
    let tools = tool_options(request.tools.unwrap_or_default(), request.tool_choice.as_ref())?;
    let system = request.system.map(|system| system.into_text("system")).transpose()?;
    let Turns { messages, images, end, tools_used_at } = turns(system, request.messages, images)?;
    let prompt_options = PromptOptions { end, variables };
    let (field, truncate) = ("messages", false);
    let conversation = Conversation { messages, tools, prompt_options, tools_used_at, field, truncate };
    Ok(GenerationRequest {
        id_prefix: "msg_",
        input: Input::Conversation(Box::new(conversation)),
        images,
        options: GenerationOptions { constraint, ..GenerationOptions::default() },
    })
}

impl CountTokensRequest {
    /// Variables of the chat template. `thinking`: whether the model thinks if the request does not say; without
    /// either, it does not, as in Anthropic's API.
    fn variables(&self, thinking: Option<bool>) -> Result<Variables, Error> {
        let mut variables = Variables::new();
        let requested = match &self.thinking {
            Some(ThinkingConfig { r#type: ThinkingType::Enabled, budget_tokens: None }) => {
                return Err(Error::missing_field("thinking.budget_tokens"));
            }
            Some(config) => Some(config.r#type != ThinkingType::Disabled),
            None => None,
        };
        set_thinking(&mut variables, requested.or(thinking).unwrap_or(false));
        let effort = self.output_config.as_ref().and_then(|config| config.effort.as_deref());
        if let Some(effort) = effort {
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Ok(variables)
    }

    /// The constraint on the output; `None` for text.
    fn constraint(&self) -> Result<Option<Constraint>, Error> {
        let format = self.output_config.as_ref().and_then(|config| config.format.as_ref());
        let schema = format.map(|format| Value::Object(format.schema.clone()));
        schema.map(|schema| Constraint::schema("output_config.format.schema", &schema)).transpose()
    }
}
