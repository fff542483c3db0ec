//! `/openapi.json`, generated from the types that requests are parsed with.

mod ollama;

use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

use crate::anthropic::{self, CountTokensRequest, Message, MessagesRequest, StreamEvent, TokenCount};
use crate::config::{Config, Model};
use crate::embeddings::MAX_INPUTS;
use crate::encoding::ACCEPTED;
use crate::models::ModelDescription;
use crate::openai::responses::{self, CreateResponse, DeletedResponse, ItemList, ResponseObject};
use crate::openai::tools::NAME_PATTERN;
use crate::openai::{
    ChatChoice, ChatChunkChoice, ChatLogprobs, ChatRequest, Completion, CompletionRequest, EmbeddingList,
    EmbeddingsRequest, ErrorBody, ModelInfo, ModelList, Options, TextChoice, TextLogprobs,
};
use crate::request::{MAX_BIASES, MAX_STOPS};
use crate::tokenize::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse};
use crate::tools::MAX_TOOLS;

/// Names of schemas.
const MESSAGE: &str = "Message";
const MESSAGES_ERROR: &str = "MessagesErrorBody";
const STREAM_EVENT: &str = "StreamEvent";
const TOKEN_COUNT: &str = "TokenCount";
const RESPONSE: &str = "Response";
const RESPONSE_EVENT: &str = "ResponseStreamEvent";
const ITEM_LIST: &str = "ResponseItemList";
const DELETED: &str = "DeletedResponse";

/// The OpenAPI document of a server with models of these names, and the limits of its only model and of the server.
pub(crate) fn document(models: &[ModelDescription], model: Option<&Model>, config: &Config) -> Value {
    let (embedders, generators) = models.iter().partition::<Vec<_>, _>(|model| model.embeds());
    let mut document = base_document(&names(&generators), model, config);
    let paths = document["paths"].as_object_mut().expect("an object");
    add_tokenization(paths);
    ollama::add_paths(paths);
    // Without an embedding model all requests would fail.
    if !embedders.is_empty() {
        add_embeddings(&mut document, &names(&embedders));
    }
    document
}

/// All names of models.
fn names<'a>(models: &[&'a ModelDescription]) -> Vec<&'a String> {
    models.iter().flat_map(|model| std::iter::once(&model.id).chain(&model.aliases)).collect()
}

/// Adds the paths of embeddings, for models of these names.
fn add_embeddings(document: &mut Value, names: &[&String]) {
    let mut operation =
        operation("Embed texts", json!({ "200": response("The vectors", "EmbeddingList") }), true);
    operation["requestBody"] = request_body(&reference(&EmbeddingsRequest::name()));
    document["paths"]["/v1/embeddings"] = json!({ "post": operation });
    ollama::add_embedding_paths(document["paths"].as_object_mut().expect("an object"));
    let mut schemas = Map::new();
    add::<EmbeddingsRequest>(&mut schemas, &EmbeddingsRequest::name());
    add::<EmbeddingList>(&mut schemas, "EmbeddingList");
    ollama::add_embedding_schemas(&mut schemas, names);
    schemas["EmbeddingsRequest"]["properties"]["model"]["enum"] = json!(names);
    // Without a minimum an empty list would match all three, and `oneOf` allows one match only.
    for list in 1..=3 {
        schemas["EmbeddingInputSchema"]["oneOf"][list]["minItems"] = json!(1);
        schemas["EmbeddingInputSchema"]["oneOf"][list]["maxItems"] = json!(MAX_INPUTS);
    }
    schemas["EmbeddingInputSchema"]["oneOf"][3]["items"]["minItems"] = json!(1);
    let all = document["components"]["schemas"].as_object_mut().expect("an object");
    all.append(&mut schemas);
}

/// Everything but embeddings.
fn base_document(names: &[&String], model: Option<&Model>, config: &Config) -> Value {
    json!({
        // The first version that describes server-sent events.
        "openapi": "3.2.0",
        "info": { "title": "Indrik", "version": env!("CARGO_PKG_VERSION"), "license": { "name": "MIT OR Apache-2.0" } },
        "paths": {
            "/v1/chat/completions": completion::<ChatRequest>(
                "Create a chat completion",
                &["ChatCompletion", "ChatCompletionChunk"],
            ),
            "/v1/completions": completion::<CompletionRequest>(
                "Create a text completion",
                &["TextCompletion", "TextCompletion"],
            ),
            "/v1/responses": create_response(),
            "/v1/responses/{response_id}": {
                "parameters": [response_id()],
                "get": operation("Get a response", json!({ "200": response("The response", RESPONSE) }), true),
                "delete": operation("Delete a response", json!({ "200": response("Deleted", DELETED) }), true),
            },
            "/v1/responses/{response_id}/cancel": {
                "parameters": [response_id()],
                "post": operation(
                    "Cancel a response in the background",
                    json!({ "200": response("The response", RESPONSE) }),
                    true,
                ),
            },
            "/v1/responses/{response_id}/input_items": {
                "parameters": [
                    response_id(),
                    query("limit", &json!({ "type": "integer", "minimum": 1, "maximum": 100 })),
                    query("order", &json!({ "enum": ["asc", "desc"] })),
                    query("after", &json!({ "type": "string" })),
                ],
                "get": operation("List input items", json!({ "200": response("The items", ITEM_LIST) }), true),
            },
            "/v1/messages": messages(),
            "/v1/messages/count_tokens": count_tokens(),
            "/v1/models": {
                "get": operation("List the models", json!({ "200": response("The models", "ModelList") }), true),
            },
            "/v1/models/{id}": {
                "parameters": [{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }],
                "get": operation("Get a model", json!({ "200": response("The model", "ModelInfo") }), true),
            },
            "/health": {
                "get": operation("Liveness", json!({ "200": status("The process is alive") }), false),
            },
            "/ready": {
                "get": operation("Readiness", json!({ "200": status("Requests are accepted") }), false),
            },
            "/metrics": {
                "get": operation(
                    "Metrics for Prometheus",
                    json!({ "200": untyped("Metrics in the text format", "text/plain") }),
                    false,
                ),
            },
            "/stats": {
                "get": operation(
                    "Current state",
                    json!({ "200": untyped("Requests, rates, latencies, memory and machine", "application/json") }),
                    true,
                ),
            },
            "/openapi.json": {
                "get": operation(
                    "This document",
                    json!({ "200": untyped("The OpenAPI document", "application/json") }),
                    false,
                ),
            },
        },
        "components": {
            "schemas": schemas(names, model, config),
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer" },
                "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    })
}

fn add_tokenization(paths: &mut Map<String, Value>) {
    let mut add = |path: &str, summary: &str, body: &str, ok: &str| {
        let mut operation = operation(summary, json!({ "200": response("The result", ok) }), true);
        operation["requestBody"] = request_body(&reference(body));
        paths.insert(path.to_owned(), json!({ "post": operation }));
    };
    add("/tokenize", "Turn text or messages into tokens", "TokenizeRequest", "TokenizeResponse");
    add("/detokenize", "Turn tokens into text", "DetokenizeRequest", "DetokenizeResponse");
}

/// A path that takes [`Options`] and `T`, and responds with one of `schemas`: a completion, or a stream of chunks.
fn completion<T: ToSchema>(summary: &str, schemas: &[&str; 2]) -> Value {
    let [completion, chunk] = schemas.map(reference);
    let chunk = json!({ "type": "string", "contentMediaType": "application/json", "contentSchema": chunk });
    let data = json!({ "anyOf": [{ "const": "[DONE]" }, chunk] });
    let event = json!({ "type": "object", "required": ["data"], "properties": { "data": data } });
    let content = json!({
        "application/json": { "schema": completion },
        "text/event-stream": { "itemSchema": event },
    });
    let responses =
        json!({ "200": { "description": "The completion: one object, or a stream", "content": content } });
    let mut operation = operation(summary, responses, true);
    let body = json!({ "allOf": [reference(&T::name()), reference(&Options::name())] });
    operation["requestBody"] = request_body(&body);
    json!({ "post": operation })
}

fn request_body(schema: &Value) -> Value {
    json!({
        "required": true,
        "description": format!("JSON; its Content-Encoding may be one of {ACCEPTED}"),
        "content": { "application/json": { "schema": schema } },
    })
}

/// The path of OpenAI's responses.
fn create_response() -> Value {
    let description = "The response: one object, or a stream";
    let responses = json!({ "200": object_or_events(description, RESPONSE, &reference(RESPONSE_EVENT)) });
    let mut operation = operation("Create a response", responses, true);
    operation["requestBody"] = request_body(&reference(&CreateResponse::name()));
    json!({ "post": operation })
}

fn response_id() -> Value {
    json!({ "name": "response_id", "in": "path", "required": true, "schema": { "type": "string" } })
}

fn query(name: &str, schema: &Value) -> Value {
    json!({ "name": name, "in": "query", "schema": schema })
}

/// An object of the schema `name`, or a stream of named events with data of the schema `events`.
fn object_or_events(description: &str, name: &str, events: &Value) -> Value {
    let data = json!({ "type": "string", "contentMediaType": "application/json", "contentSchema": events });
    let properties = json!({ "event": { "type": "string" }, "data": data });
    let event = json!({ "type": "object", "required": ["event", "data"], "properties": properties });
    let content = json!({
        "application/json": { "schema": reference(name) },
        "text/event-stream": { "itemSchema": event },
    });
    json!({ "description": description, "content": content })
}

/// The path of Anthropic's messages.
fn messages() -> Value {
    let events = json!({ "anyOf": [reference(STREAM_EVENT), reference(MESSAGES_ERROR)] });
    let responses =
        json!({ "200": object_or_events("The message: one object, or a stream", MESSAGE, &events) });
    let body =
        json!({ "allOf": [reference(&CountTokensRequest::name()), reference(&MessagesRequest::name())] });
    anthropic_operation("Create a message (Anthropic's API)", responses, &body)
}

fn count_tokens() -> Value {
    let responses = json!({ "200": response("The number of tokens", TOKEN_COUNT) });
    let body = reference(&CountTokensRequest::name());
    anthropic_operation("Count the tokens of a prompt (Anthropic's API)", responses, &body)
}

/// A POST operation with the errors and keys of Anthropic's API.
fn anthropic_operation(summary: &str, responses: Value, body: &Value) -> Value {
    let mut operation = operation(summary, responses, true);
    operation["responses"]["default"] = response("Error", MESSAGES_ERROR);
    operation["security"] = json!([{}, { "x-api-key": [] }, { "key": [] }]);
    operation["requestBody"] = request_body(body);
    json!({ "post": operation })
}

/// An operation. All errors have the same body.
fn operation(summary: &str, mut responses: Value, authenticated: bool) -> Value {
    responses["default"] = response("Error", "ErrorBody");
    // The empty alternative: whether a key is required depends on the server's settings.
    let security = if authenticated { json!([{}, { "key": [] }]) } else { json!([]) };
    json!({ "summary": summary, "responses": responses, "security": security })
}

fn response(description: &str, name: &str) -> Value {
    json!({ "description": description, "content": { "application/json": { "schema": reference(name) } } })
}

fn status(description: &str) -> Value {
    let schema =
        json!({ "type": "object", "required": ["status"], "properties": { "status": { "type": "string" } } });
    json!({ "description": description, "content": { "application/json": { "schema": schema } } })
}

fn untyped(description: &str, media_type: &str) -> Value {
    json!({ "description": description, "content": { media_type: {} } })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn schemas(names: &[&String], model: Option<&Model>, config: &Config) -> Map<String, Value> {
    let mut schemas = Map::new();
    add::<Options>(&mut schemas, &Options::name());
    add::<ChatRequest>(&mut schemas, &ChatRequest::name());
    add::<CompletionRequest>(&mut schemas, &CompletionRequest::name());
    // utoipa does not collect the type arguments of a generic type.
    add::<ChatChoice>(&mut schemas, &ChatChoice::name());
    add::<ChatChunkChoice>(&mut schemas, &ChatChunkChoice::name());
    add::<TextChoice>(&mut schemas, &TextChoice::name());
    add::<Completion<ChatChoice>>(&mut schemas, "ChatCompletion");
    add::<Completion<ChatChunkChoice>>(&mut schemas, "ChatCompletionChunk");
    add::<Completion<TextChoice>>(&mut schemas, "TextCompletion");
    add::<ModelInfo>(&mut schemas, "ModelInfo");
    add::<ModelList>(&mut schemas, "ModelList");
    add::<ChatLogprobs>(&mut schemas, &ChatLogprobs::name());
    add::<TextLogprobs>(&mut schemas, &TextLogprobs::name());
    add::<ErrorBody>(&mut schemas, "ErrorBody");
    add::<CreateResponse>(&mut schemas, &CreateResponse::name());
    add::<ResponseObject>(&mut schemas, RESPONSE);
    add::<responses::StreamEvent>(&mut schemas, RESPONSE_EVENT);
    add::<ItemList>(&mut schemas, ITEM_LIST);
    add::<DeletedResponse>(&mut schemas, DELETED);
    add::<CountTokensRequest>(&mut schemas, &CountTokensRequest::name());
    add::<MessagesRequest>(&mut schemas, &MessagesRequest::name());
    add::<Message>(&mut schemas, MESSAGE);
    add::<StreamEvent>(&mut schemas, STREAM_EVENT);
    add::<TokenCount>(&mut schemas, TOKEN_COUNT);
    add::<anthropic::ErrorBody>(&mut schemas, MESSAGES_ERROR);
    add::<TokenizeRequest>(&mut schemas, &TokenizeRequest::name());
    add::<TokenizeResponse>(&mut schemas, &TokenizeResponse::name());
    add::<DetokenizeRequest>(&mut schemas, &DetokenizeRequest::name());
    add::<DetokenizeResponse>(&mut schemas, &DetokenizeResponse::name());
    ollama::add_schemas(&mut schemas, names, model);
    refine(&mut schemas, names, model, config);
    refine_responses(&mut schemas, names, model);
    refine_messages(&mut schemas, names, model);
    schemas
}

/// Adds constraints that the types do not express: limits of this server, and supported values.
fn refine(schemas: &mut Map<String, Value>, names: &[&String], model: Option<&Model>, config: &Config) {
    let mut set = |schema: &str, pointer: &str, key: &str, value: Value| {
        let schema = schemas.get_mut(schema).and_then(|schema| schema.pointer_mut(pointer));
        schema.expect("the schema has this field")[key] = value;
    };
    set("Options", "/properties/model", "enum", json!(names));
    set("Options", "/properties/n", "maximum", json!(config.max_choices));
    let last = model.map_or(u32::MAX, Model::token_count).saturating_sub(1);
    set("Options", "/properties/logit_bias", "propertyNames", json!({ "pattern": numbers_up_to(last) }));
    set("Options", "/properties/logit_bias", "maxProperties", json!(MAX_BIASES));
    set("Options", "/properties/logit_bias/additionalProperties", "minimum", json!(-100));
    set("Options", "/properties/logit_bias/additionalProperties", "maximum", json!(100));
    set("PromptSchema", "/oneOf/2/items", "maximum", json!(last));
    set("PromptSchema", "/oneOf/3/items/items", "maximum", json!(last));
    set("DetokenizeRequest", "/properties/tokens/items", "maximum", json!(last));
    let has =
        |field: &str, kind: &str| json!({ "required": [field], "properties": { field: { "type": kind } } });
    let one_of = json!([has("prompt", "string"), has("content", "string"), has("messages", "array")]);
    set("TokenizeRequest", "", "anyOf", one_of);
    // Fields that are only allowed together with another one.
    let unset = |field: &str| json!({ "properties": { field: { "type": "null" } } });
    let is_true = |field: &str| json!({ "required": [field], "properties": { field: { "const": true } } });
    set("Options", "", "anyOf", json!([unset("stream_options"), is_true("stream")]));
    set("ChatRequest", "", "anyOf", json!([unset("top_logprobs"), is_true("logprobs")]));
    let at_least_one = json!({ "max_tokens": { "minimum": 1 }, "max_completion_tokens": { "minimum": 1 } });
    for (field, minimum) in at_least_one.as_object().expect("an object") {
        set("ChatRequest", "/properties", field, minimum.clone());
    }
    let scores_prompt = json!({
        "required": ["echo", "logprobs"],
        "properties": { "echo": { "const": true }, "logprobs": { "type": "integer" } },
    });
    let max_tokens = json!({ "anyOf": [{ "properties": at_least_one }, scores_prompt] });
    // `best_of` is at least `n`, which JSON Schema cannot express: only one of them may be above 1 here. It may also
    // equal `n` in a stream.
    set("CompletionRequest", "/properties/best_of", "maximum", json!(config.max_choices));
    let one = |field: &str| json!({ "properties": { field: { "enum": [null, 1] } } });
    let one_choice = json!({ "anyOf": [unset("best_of"), one("n")] });
    let no_stream = json!({ "properties": { "stream": { "enum": [null, false] } } });
    let whole = json!({ "anyOf": [one("best_of"), no_stream] });
    set("CompletionRequest", "", "allOf", json!([max_tokens, one_choice, whole]));
    set("ChatRequest", "/properties/tools", "maxItems", json!(MAX_TOOLS));
    set("ChatRequest", "/properties/functions", "maxItems", json!(0));
    set("ChatRequest", "/properties/function_call", "type", json!("null"));
    set("ChatRequest", "/properties/modalities/items", "enum", json!(["text"]));
    set("Role", "", "enum", json!(["system", "developer", "user", "assistant", "tool"]));
    let has_content =
        json!({ "required": ["content"], "properties": { "content": { "type": ["string", "array"] } } });
    let has_calls = json!({
        "required": ["tool_calls"],
        "properties": { "role": { "const": "assistant" }, "tool_calls": { "type": "array", "minItems": 1 } },
    });
    let not_tool = json!({ "properties": { "role": { "not": { "const": "tool" } } } });
    let has_call_id =
        json!({ "required": ["tool_call_id"], "properties": { "tool_call_id": { "type": "string" } } });
    set(
        "RequestMessage",
        "",
        "allOf",
        json!([{ "anyOf": [has_content, has_calls] }, { "anyOf": [not_tool, has_call_id] }]),
    );
    for named in ["FunctionDefinition", "NamedFunction", "FunctionCall"] {
        set(named, "/properties/name", "pattern", json!(NAME_PATTERN));
    }
    set("ContentPart", "/properties/text", "type", json!("string"));
    match takes_images(model) {
        false => {
            set("ContentPart", "/properties/type", "enum", json!(["text"]));
            set("ContentPart", "", "required", json!(["type", "text"]));
        }
        true => {
            set("ContentPart", "/properties/type", "enum", json!(["text", "image_url"]));
            let part = |name: &str, field: &str| json!({ "properties": { "type": { "const": name } }, "required": [field] });
            set("ContentPart", "", "anyOf", json!([part("text", "text"), part("image_url", "image_url")]));
        }
    }
    let detail = json!(["auto", "low", "high", null]);
    set("ImageUrlObject", "/properties/detail", "enum", detail);
    set("StopSchema", "/oneOf/0", "minLength", json!(1));
    set("StopSchema", "/oneOf/1/items", "minLength", json!(1));
    set("StopSchema", "/oneOf/1", "maxItems", json!(MAX_STOPS));
    if model.is_some_and(|model| model.tokenizer.fim().is_none()) {
        set("CompletionRequest", "/properties/suffix", "enum", json!([null, ""]));
    }
    for list in 1..=3 {
        // Without it an empty list would match all three, and `oneOf` allows one match only.
        set("PromptSchema", &format!("/oneOf/{list}"), "minItems", json!(1));
    }
    set("PromptSchema", "/oneOf/3/items", "minItems", json!(1));
}

/// [`refine`] for the schemas of the Responses API.
fn refine_responses(schemas: &mut Map<String, Value>, names: &[&String], model: Option<&Model>) {
    let mut set = |schema: &str, pointer: &str, key: &str, value: Value| {
        let schema = schemas.get_mut(schema).and_then(|schema| schema.pointer_mut(pointer));
        schema.expect("the schema has this field")[key] = value;
    };
    set("CreateResponse", "/properties/model", "enum", json!(names));
    set("CreateResponse", "/properties/tools", "maxItems", json!(MAX_TOOLS));
    set("CreateResponse", "/properties/metadata", "maxProperties", json!(16));
    set("CreateResponse", "/properties/metadata", "propertyNames", json!({ "maxLength": 64 }));
    set("CreateResponse", "/properties/metadata/additionalProperties", "maxLength", json!(512));
    set("FunctionTool", "/properties/type", "enum", json!(["function"]));
    set("FunctionTool", "/properties/name", "pattern", json!(NAME_PATTERN));
    set("FunctionChoice", "/properties/name", "pattern", json!(NAME_PATTERN));
    let types = ["message", "function_call", "function_call_output", "reasoning", "item_reference"];
    let types: Vec<Value> = types.map(Value::from).into_iter().chain([Value::Null]).collect();
    set("InputItem", "/properties/type", "enum", json!(types));
    let image = takes_images(model).then_some("input_image");
    let texts = ["input_text", "output_text", "refusal", "reasoning_text", "summary_text"];
    let types: Vec<&str> = texts.into_iter().chain(image).collect();
    set("InputPart", "/properties/type", "enum", json!(types));
    set("InputPart", "/properties/file_id", "type", json!("null"));
    set("InputSchema", "/oneOf/1", "minItems", json!(1));
}

/// [`refine`] for the schemas of Anthropic's API.
fn refine_messages(schemas: &mut Map<String, Value>, names: &[&String], model: Option<&Model>) {
    let mut set = |schema: &str, pointer: &str, key: &str, value: Value| {
        let schema = schemas.get_mut(schema).and_then(|schema| schema.pointer_mut(pointer));
        schema.expect("the schema has this field")[key] = value;
    };
    set("CountTokensRequest", "/properties/model", "enum", json!(names));
    set("CountTokensRequest", "/properties/tools", "maxItems", json!(MAX_TOOLS));
    set("MessagesRequest", "/properties/stop_sequences", "maxItems", json!(MAX_STOPS));
    set("MessagesRequest", "/properties/stop_sequences/items", "minLength", json!(1));
    set("ClientTool", "/properties/type", "enum", json!(["custom", null]));
    set("ClientTool", "/properties/name", "pattern", json!(anthropic::NAME_PATTERN));
    let image = takes_images(model).then_some("image");
    let texts = ["text", "tool_use", "tool_result", "thinking", "redacted_thinking"];
    let types: Vec<&str> = texts.into_iter().chain(image).collect();
    set("RequestBlock", "/properties/type", "enum", json!(types));
    let block = |name: &str, required: &[&str]| {
        let not_null = json!({ "not": { "type": "null" } });
        let fields: Map<String, Value> =
            required.iter().map(|field| ((*field).to_owned(), not_null.clone())).collect();
        let kind = json!({ "properties": { "type": { "const": name } } });
        json!({ "allOf": [kind, { "properties": fields, "required": required }] })
    };
    let blocks = [
        block("text", &["text"]),
        block("image", &["source"]),
        block("tool_use", &["id", "name", "input"]),
        block("tool_result", &["tool_use_id"]),
        block("thinking", &["thinking"]),
        block("redacted_thinking", &[]),
    ];
    set("RequestBlock", "", "anyOf", json!(blocks));
    let first = json!({ "properties": { "role": { "enum": ["user", "system"] } } });
    set("CountTokensRequest", "/properties/messages", "prefixItems", json!([first]));
}

/// Whether the only model takes images; with several, some may.
fn takes_images(model: Option<&Model>) -> bool {
    model.is_none_or(|model| model.images.is_ok())
}

/// A regular expression for the decimal numbers from 0 to `max`.
fn numbers_up_to(max: u32) -> String {
    let digits = max.to_string();
    let mut alternatives: Vec<String> = vec![digits.clone()];
    for (at, digit) in digits.char_indices().filter(|(_, digit)| *digit > '0') {
        let below = char::from(digit as u8 - 1);
        alternatives.push(format!("{}[0-{below}]{}", &digits[..at], "[0-9]".repeat(digits.len() - at - 1)));
    }
    if digits.len() > 1 {
        alternatives.push(format!("[0-9]{{1,{}}}", digits.len() - 1));
    }
    format!("^({})$", alternatives.join("|"))
}

/// Adds the schema of a type, and those of the types it contains.
fn add<T: ToSchema + PartialSchema>(schemas: &mut Map<String, Value>, name: &str) {
    let mut collected = Vec::new();
    T::schemas(&mut collected);
    collected.push((name.to_owned(), T::schema()));
    for (name, schema) in collected {
        schemas.insert(name, serde_json::to_value(schema).expect("a schema serialises to JSON"));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn expressions_match_numbers_up_to_a_maximum() {
        assert_eq!(super::numbers_up_to(7), "^(7|[0-6])$");
        assert_eq!(super::numbers_up_to(302), "^(302|[0-2][0-9][0-9]|30[0-1]|[0-9]{1,2})$");
    }
}
