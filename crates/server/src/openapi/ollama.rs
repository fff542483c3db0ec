//! The paths and schemas of Ollama's API. Those that are always refused, such as `/api/create`, are left out.

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{add, operation, reference, request_body, response};
use crate::config::Model;
use crate::ollama::{
    ChatFields, ChatResponse, CommonFields, DeleteRequest, EmbedFields, EmbedResponse, EmbeddingsFields,
    EmbeddingsResponse, ErrorBody, GenerateFields, GenerateResponse, ModelTags, PullRequest, PullStatus,
    RunningModels, ShowRequest, ShowResponse, Version,
};
use crate::openai::tools::NAME_PATTERN;
use crate::request::MAX_STOPS;
use crate::response::NDJSON;
use crate::tools::MAX_TOOLS;

/// Adds the paths.
pub(super) fn add_paths(paths: &mut Map<String, Value>) {
    let all = [
        ("/api/chat", json!({ "post": generation::<ChatFields, ChatResponse>("Create a message") })),
        ("/api/generate", json!({ "post": generation::<GenerateFields, GenerateResponse>("Generate text") })),
        ("/api/tags", json!({ "get": get::<ModelTags>("List the models") })),
        ("/api/ps", json!({ "get": get::<RunningModels>("List the models that are loaded") })),
        ("/api/version", json!({ "get": get::<Version>("Version of the API") })),
        ("/api/show", json!({ "post": show() })),
        ("/api/pull", json!({ "post": pull() })),
        ("/api/delete", json!({ "delete": delete() })),
    ];
    paths.extend(all.into_iter().map(|(path, item)| (path.to_owned(), item)));
}

/// An operation with the errors of Ollama's API.
fn ollama_operation(summary: &str, ok: Value) -> Value {
    let mut operation = operation(&format!("{summary} (Ollama's API)"), json!({ "200": ok }), true);
    operation["responses"]["default"] = response("Error", &ErrorBody::name());
    operation
}

fn get<T: ToSchema>(summary: &str) -> Value {
    ollama_operation(summary, response(summary, &T::name()))
}

/// One object, or a stream of lines.
fn object_or_lines<T: ToSchema>() -> Value {
    let object = reference(&T::name());
    let line = json!({ "anyOf": [object, reference(&ErrorBody::name())] });
    let content = json!({ "application/json": { "schema": object }, NDJSON: { "itemSchema": line } });
    json!({ "description": "One object, or a stream of lines", "content": content })
}

fn generation<T: ToSchema, R: ToSchema>(summary: &str) -> Value {
    let mut operation = ollama_operation(summary, object_or_lines::<R>());
    let body = json!({ "allOf": [reference(&T::name()), reference(&CommonFields::name())] });
    operation["requestBody"] = request_body(&body);
    operation
}

fn show() -> Value {
    let ok = response("The model", &ShowResponse::name());
    let mut operation = ollama_operation("Describe a model", ok);
    operation["requestBody"] = request_body(&reference(&ShowRequest::name()));
    operation
}

fn pull() -> Value {
    let mut operation = ollama_operation("Download a model", object_or_lines::<PullStatus>());
    operation["requestBody"] = request_body(&reference(&PullRequest::name()));
    operation
}

fn delete() -> Value {
    let mut operation = ollama_operation("Delete a model", json!({ "description": "The model is deleted" }));
    operation["requestBody"] = request_body(&reference(&DeleteRequest::name()));
    operation
}

/// Adds the paths of embeddings.
pub(super) fn add_embedding_paths(paths: &mut Map<String, Value>) {
    let mut add = |path: &str, body: &str, ok: &str| {
        let mut operation = ollama_operation("Embed texts", response("The vectors", ok));
        operation["requestBody"] = request_body(&reference(body));
        paths.insert(path.to_owned(), json!({ "post": operation }));
    };
    add("/api/embed", &EmbedFields::name(), &EmbedResponse::name());
    add("/api/embeddings", &EmbeddingsFields::name(), &EmbeddingsResponse::name());
}

/// Adds the schemas of embeddings, for models of these names.
pub(super) fn add_embedding_schemas(schemas: &mut Map<String, Value>, names: &[&String]) {
    add::<EmbedFields>(schemas, &EmbedFields::name());
    add::<EmbedResponse>(schemas, &EmbedResponse::name());
    add::<EmbeddingsFields>(schemas, &EmbeddingsFields::name());
    add::<EmbeddingsResponse>(schemas, &EmbeddingsResponse::name());
    for request in [EmbedFields::name(), EmbeddingsFields::name()] {
        schemas[&*request]["properties"]["model"]["enum"] = json!(names);
    }
    refine_keep_alive(schemas);
}

/// Durations as text.
fn refine_keep_alive(schemas: &mut Map<String, Value>) {
    let duration = r"^$|^[+-]?([0-9]+(\.[0-9]+)?|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+)$";
    schemas["OllamaKeepAlive"]["oneOf"][1]["pattern"] = json!(duration);
}

/// Adds the schemas, with constraints that the types do not express.
pub(super) fn add_schemas(schemas: &mut Map<String, Value>, names: &[&String], model: Option<&Model>) {
    add::<CommonFields>(schemas, &CommonFields::name());
    add::<ChatFields>(schemas, &ChatFields::name());
    add::<GenerateFields>(schemas, &GenerateFields::name());
    add::<ChatResponse>(schemas, &ChatResponse::name());
    add::<GenerateResponse>(schemas, &GenerateResponse::name());
    add::<ModelTags>(schemas, &ModelTags::name());
    add::<RunningModels>(schemas, &RunningModels::name());
    add::<Version>(schemas, &Version::name());
    add::<ShowRequest>(schemas, &ShowRequest::name());
    add::<ShowResponse>(schemas, &ShowResponse::name());
    add::<PullRequest>(schemas, &PullRequest::name());
    add::<PullStatus>(schemas, &PullStatus::name());
    add::<DeleteRequest>(schemas, &DeleteRequest::name());
    add::<ErrorBody>(schemas, &ErrorBody::name());
    refine_keep_alive(schemas);
    let mut set = |schema: &str, pointer: &str, key: &str, value: Value| {
        let schema = schemas.get_mut(schema).and_then(|schema| schema.pointer_mut(pointer));
        schema.expect("the schema has this field")[key] = value;
    };
    set("OllamaCommonFields", "/properties/model", "enum", json!(names));
    let unset = json!({ "properties": { "top_logprobs": { "enum": [null, 0] } } });
    let has_logprobs = json!({ "required": ["logprobs"], "properties": { "logprobs": { "const": true } } });
    set("OllamaCommonFields", "", "anyOf", json!([unset, has_logprobs]));
    set("OllamaFormat", "/oneOf/0", "enum", json!(["json", ""]));
    set("OllamaThink", "/oneOf/1", "enum", json!(["low", "medium", "high"]));
    set("OllamaStop", "/oneOf/0", "minLength", json!(1));
    set("OllamaStop", "/oneOf/1/items", "minLength", json!(1));
    set("OllamaStop", "/oneOf/1", "maxItems", json!(MAX_STOPS));
    set("OllamaChatFields", "/properties/tools", "maxItems", json!(MAX_TOOLS));
    set("OllamaGenerateFields", "/properties/template", "enum", json!([null, ""]));
    if model.is_some_and(|model| model.tokenizer.fim().is_none()) {
        set("OllamaGenerateFields", "/properties/suffix", "enum", json!([null, ""]));
    }
    set("OllamaRequestFunction", "/properties/name", "pattern", json!(NAME_PATTERN));
    for named in ["OllamaShowRequest", "OllamaPullRequest", "OllamaDeleteRequest"] {
        let has = |field: &str| json!({ "required": [field], "properties": { field: { "type": "string" } } });
        set(named, "", "anyOf", json!([has("model"), has("name")]));
    }
}
