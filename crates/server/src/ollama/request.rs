//! Bodies of `/api/chat` and `/api/generate` as requests.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use text::{Message, PromptEnd, PromptOptions};
use utoipa::ToSchema;

use super::conversation::{RequestMessage, Turns, content, take_images, take_message_images, turns};
use super::options::{CommonFields, KeepAlive, UNSUPPORTED_OPTIONS, parse_keep_alive};
use crate::error::Error;
use crate::images::ImageSource;
use crate::openai::tools::{ToolDefinition, tool_options};
use crate::parse::parse;
use crate::request::{Conversation, GenerationRequest, Input, Prompt, Prompts};
use crate::state::Context;
use crate::unsupported::check_unsupported;

/// Request fields of `/api/chat`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaChatFields)]
pub(crate) struct ChatFields {
    /// The conversation so far. If it is empty, the model is loaded.
    messages: Option<Vec<RequestMessage>>,
    /// Tools that the model may call, if its chat template supports them.
    tools: Option<Vec<ToolDefinition>>,
    /// Whether the oldest messages are left out if the conversation is too long; true by default.
    truncate: Option<bool>,
}

/// Request fields of `/api/generate`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaGenerateFields)]
pub(crate) struct GenerateFields {
    /// The prompt. If it is empty, the model is loaded.
    prompt: Option<String>,
    /// Text after the output: the model fills in the middle. Only for models that were trained for it.
    suffix: Option<String>,
    /// System prompt.
    system: Option<String>,
    /// Images in base64, in front of the prompt.
    // They have been taken out of the body before it is parsed.
    #[schema(value_type = Option<Vec<String>>)]
    #[allow(dead_code, reason = "describes the schema; images are parsed elsewhere")]
    images: Option<IgnoredAny>,
    /// Whether the prompt is used as it is, without the chat template.
    raw: Option<bool>,
    /// Not supported: must be unset or empty.
    template: Option<String>,
    /// Without effect: send earlier messages to `/api/chat`.
    #[allow(dead_code, reason = "only its type is checked")]
    context: Option<Vec<i64>>,
}

/// The endpoint of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/api/chat`
    Chat,
    /// `/api/generate`
    Generate,
}

/// Fields of a request that determine the form of its response.
#[derive(Debug)]
pub(super) struct ResponseOptions {
    pub(super) endpoint: Endpoint,
    /// Name of the model, as the client wrote it.
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) keep_alive: Option<KeepAlive>,
}

/// A request to load or unload a model: without messages or a prompt.
#[derive(Debug)]
pub(super) struct LoadRequest {
    pub(super) model: String,
    pub(super) keep_alive: Option<KeepAlive>,
}

/// A body that only loads or unloads a model; `None` if it asks for output.
pub(super) fn parse_load(endpoint: Endpoint, body: &Value) -> Result<Option<LoadRequest>, Error> {
    let is_empty = |field: &str| match body.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(values)) => values.is_empty(),
        Some(_) => false,
    };
    let loads = match endpoint {
        Endpoint::Chat => is_empty("messages"),
        Endpoint::Generate => is_empty("prompt") && is_empty("suffix") && is_empty("images"),
    };
    if !loads {
        return Ok(None);
    }
    let common = parse_common(body)?;
    common.validate()?;
    match endpoint {
        Endpoint::Chat => {
            let ChatFields { tools, .. } = parse(body)?;
            tool_options(tools.unwrap_or_default(), None, None)?;
        }
        Endpoint::Generate => parse::<GenerateFields>(body)?.check_template()?,
    }
    let keep_alive = parse_keep_alive(common.keep_alive.as_ref())?;
    Ok(Some(LoadRequest { model: common.model, keep_alive }))
}

fn parse_common(body: &Value) -> Result<CommonFields, Error> {
    let common = parse(body)?;
    if let Some(options) = body.get("options") {
        check_unsupported(options, UNSUPPORTED_OPTIONS).map_err(|error| match error {
            Error::Unsupported { param, feature } => Error::unsupported(format!("options.{param}"), feature),
            error => error,
        })?;
    }
    Ok(common)
}

impl GenerateFields {
    fn check_template(&self) -> Result<(), Error> {
        match self.template.as_deref() {
            None | Some("") => Ok(()),
            Some(_) => {
                Err(Error::unsupported("template", "a template in the request (the model's own is used)"))
            }
        }
    }
}

/// Parses a body that asks for output. The time grows with its size, so this must not run on a thread of the async
/// runtime.
pub(super) fn parse_request(
    endpoint: Endpoint,
    mut body: Value,
    context: &Context,
) -> Result<(GenerationRequest, ResponseOptions), Error> {
    let common = parse_common(&body)?;
    let keep_alive = parse_keep_alive(common.keep_alive.as_ref())?;
    let options = common.generation(&context.served.model.sampling)?;
    let (input, images) = match endpoint {
        Endpoint::Chat => chat_input(&mut body, &common, context)?,
        Endpoint::Generate => generate_input(&mut body, &common, context)?,
    };
    let stream = common.stream.unwrap_or(true);
    let response = ResponseOptions { endpoint, model: common.model.clone(), stream, keep_alive };
    Ok((GenerationRequest { id_prefix: "ollama-", input, images, options }, response))
}

type InputWithImages = (Input, Vec<ImageSource>);

fn chat_input(body: &mut Value, common: &CommonFields, context: &Context) -> Result<InputWithImages, Error> {
    let app = &context.app;
    let (images, image_counts) = take_message_images(body, app.images.limits())?;
    app.images.check(&context.served.model, &images)?;
    let fields: ChatFields = parse(body)?;
    let variables = common.variables(&context.served, app.config.thinking)?;
    let tools = tool_options(fields.tools.unwrap_or_default(), None, None)?;
    let Turns { messages, end, tools_used_at } = turns(fields.messages.unwrap_or_default(), &image_counts)?;
    if messages.is_empty() {
        return Err(Error::invalid_field("messages", "has no text for the model to answer"));
    }
    let prompt_options = PromptOptions { end, variables };
    let (field, truncate) = ("messages", fields.truncate.unwrap_or(true));
    let conversation = Conversation { messages, tools, prompt_options, tools_used_at, field, truncate };
    Ok((Input::Conversation(Box::new(conversation)), images))
}

fn generate_input(
    body: &mut Value,
    common: &CommonFields,
    context: &Context,
) -> Result<InputWithImages, Error> {
    let (app, model) = (&context.app, &context.served.model);
    let images = take_images(body, "images", app.images.limits())?;
    app.images.check(model, &images)?;
    let fields: GenerateFields = parse(body)?;
    fields.check_template()?;
    let variables = common.variables(&context.served, app.config.thinking)?;
    let prompt = fields.prompt.unwrap_or_default();
    let suffix = fields.suffix.filter(|suffix| !suffix.is_empty());
    let system = fields.system.filter(|system| !system.is_empty());
    let raw = fields.raw.unwrap_or(false);
    let without_template = match () {
        () if raw => Some("'raw' is true"),
        () if suffix.is_some() => Some("'suffix' is set"),
        () if model.chat_template.is_none() => Some("the model has no chat template"),
        () => None,
    };
    if let Some(reason) = without_template {
        let given = [("system", system.is_some()), ("images", !images.is_empty())];
        if let Some((field, _)) = given.iter().find(|(_, is_given)| *is_given) {
            return Err(Error::invalid_field(*field, format!("is not allowed if {reason}")));
        }
        let prompts = Prompts { prompts: vec![Prompt::Text(prompt)], suffix, echo: false };
        return Ok((Input::Prompts(prompts), images));
    }
    let mut messages: Vec<Message> =
        system.map(|system| Message::new("system", system)).into_iter().collect();
    messages.push(Message::new("user", content(prompt, images.len())));
    let prompt_options = PromptOptions { end: PromptEnd::Reply, variables };
    let (tools, tools_used_at, field, truncate) = (None, None, "prompt", false);
    let conversation = Conversation { messages, tools, prompt_options, tools_used_at, field, truncate };
    Ok((Input::Conversation(Box::new(conversation)), images))
}
