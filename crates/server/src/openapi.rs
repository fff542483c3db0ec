//! `/openapi.json`: what there is and what it takes, made from the types that requests are read with.

use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

use crate::config::{Config, Model};
use crate::openai::options::{MAX_BIASES, MAX_STOPS};
use crate::openai::tools::{MAX_TOOLS, NAME};
use crate::openai::{
    Chat, ChatChoice, ChatDelta, ChatLogprobs, Completion, ErrorBody, ModelInfo, ModelList, Options, Reply,
    TextChoice, TextLogprobs,
};

/// The whole description of a server with this model and these limits.
pub(crate) fn document(model: &Model, config: &Config) -> Value {
    json!({
        // The first version that describes the events of a stream.
        "openapi": "3.2.0",
        "info": { "title": "Indrik", "version": env!("CARGO_PKG_VERSION"), "license": { "name": "MIT OR Apache-2.0" } },
        "paths": {
            "/v1/chat/completions": completion::<Chat>("What the assistant says next", &["ChatReply", "ChatChunk"]),
            "/v1/completions": completion::<Completion>("How a text goes on", &["TextReply", "TextReply"]),
            "/v1/models": { "get": operation("The models", json!({ "200": answer("It", "ModelList") }), true) },
            "/v1/models/{id}": {
                "parameters": [{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }],
                "get": operation("A model", json!({ "200": answer("It", "ModelInfo") }), true),
            },
            "/health": { "get": operation("Whether the server is alive", json!({ "200": status() }), false) },
            "/ready": { "get": operation("Whether it can answer", json!({ "200": status() }), false) },
            "/metrics": {
                "get": operation("Numbers for Prometheus", json!({ "200": plain("text/plain") }), false)
            },
            "/openapi.json": {
                "get": operation("This", json!({ "200": plain("application/json") }), false)
            },
        },
        "components": {
            "schemas": schemas(model, config),
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// A path that takes a body with [`Options`] and what `T` has, and answers whole or in chunks.
fn completion<T: ToSchema>(summary: &str, replies: &[&str; 2]) -> Value {
    let [whole, chunk] = replies.map(reference);
    let chunk = json!({ "type": "string", "contentMediaType": "application/json", "contentSchema": chunk });
    let data = json!({ "anyOf": [{ "const": "[DONE]" }, chunk] });
    let event = json!({ "type": "object", "required": ["data"], "properties": { "data": data } });
    let content = json!({
        "application/json": { "schema": whole },
        "text/event-stream": { "itemSchema": event },
    });
    let responses =
        json!({ "200": { "description": "The answer, whole or as a stream", "content": content } });
    let mut operation = operation(summary, responses, true);
    let body = json!({ "allOf": [reference(&T::name()), reference(&Options::name())] });
    operation["requestBody"] =
        json!({ "required": true, "content": { "application/json": { "schema": body } } });
    json!({ "post": operation })
}

/// Something a path does. Whatever goes wrong has the same body.
fn operation(summary: &str, mut responses: Value, keyed: bool) -> Value {
    responses["default"] = answer("What is wrong", "ErrorBody");
    // An empty requirement beside the key: whether one is asked for is the operator's choice.
    let security = if keyed { json!([{}, { "key": [] }]) } else { json!([]) };
    json!({ "summary": summary, "responses": responses, "security": security })
}

fn answer(description: &str, name: &str) -> Value {
    json!({ "description": description, "content": { "application/json": { "schema": reference(name) } } })
}

fn status() -> Value {
    let schema =
        json!({ "type": "object", "required": ["status"], "properties": { "status": { "type": "string" } } });
    json!({ "description": "It is", "content": { "application/json": { "schema": schema } } })
}

fn plain(media: &str) -> Value {
    json!({ "description": "It", "content": { media: {} } })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn schemas(model: &Model, config: &Config) -> Map<String, Value> {
    let mut schemas = Map::new();
    add::<Options>(&mut schemas, &Options::name());
    add::<Chat>(&mut schemas, &Chat::name());
    add::<Completion>(&mut schemas, &Completion::name());
    // A generic type names its parts, but does not list them.
    add::<ChatChoice>(&mut schemas, &ChatChoice::name());
    add::<ChatDelta>(&mut schemas, &ChatDelta::name());
    add::<TextChoice>(&mut schemas, &TextChoice::name());
    add::<Reply<ChatChoice>>(&mut schemas, "ChatReply");
    add::<Reply<ChatDelta>>(&mut schemas, "ChatChunk");
    add::<Reply<TextChoice>>(&mut schemas, "TextReply");
    add::<ModelInfo>(&mut schemas, "ModelInfo");
    add::<ModelList>(&mut schemas, "ModelList");
    add::<ChatLogprobs>(&mut schemas, &ChatLogprobs::name());
    add::<TextLogprobs>(&mut schemas, &TextLogprobs::name());
    add::<ErrorBody>(&mut schemas, "ErrorBody");
    narrow(&mut schemas, model, config);
    schemas
}

/// What the types alone do not say: limits of this server, and which values of a field are built.
fn narrow(schemas: &mut Map<String, Value>, model: &Model, config: &Config) {
    let mut say = |schema: &str, place: &str, key: &str, value: Value| {
        let schema = schemas.get_mut(schema).and_then(|schema| schema.pointer_mut(place));
        schema.expect("the types have such a field")[key] = value;
    };
    say("Options", "/properties/model", "enum", json!([model.id]));
    say("Options", "/properties/n", "maximum", json!(config.max_choices));
    let last = model.tokens().saturating_sub(1);
    say("Options", "/properties/logit_bias", "propertyNames", json!({ "pattern": up_to(last) }));
    say("Options", "/properties/logit_bias", "maxProperties", json!(MAX_BIASES));
    say("Options", "/properties/logit_bias/additionalProperties", "minimum", json!(-100));
    say("Options", "/properties/logit_bias/additionalProperties", "maximum", json!(100));
    say("AnyPrompt", "/oneOf/2/items", "maximum", json!(last));
    say("AnyPrompt", "/oneOf/3/items/items", "maximum", json!(last));
    // What only goes with another field.
    let alone = |field: &str| json!({ "properties": { field: { "type": "null" } } });
    let with = |field: &str| json!({ "required": [field], "properties": { field: { "const": true } } });
    say("Options", "", "anyOf", json!([alone("stream_options"), with("stream")]));
    say("Chat", "", "anyOf", json!([alone("top_logprobs"), with("logprobs")]));
    let no_echo = json!({ "properties": { "echo": { "enum": [null, false] } } });
    let told = json!({ "anyOf": [alone("logprobs"), no_echo] });
    // As many as `n` would do too, but cannot be said in a few words.
    say("Completion", "/properties/best_of", "enum", json!([null, 1]));
    let one = json!({ "properties": { "n": { "enum": [null, 1] } } });
    say("Completion", "", "allOf", json!([told, { "anyOf": [alone("best_of"), one] }]));
    say("Chat", "/properties/tools", "maxItems", json!(MAX_TOOLS));
    say("Chat", "/properties/functions", "maxItems", json!(0));
    say("Chat", "/properties/function_call", "type", json!("null"));
    say("Chat", "/properties/modalities/items", "enum", json!(["text"]));
    say("Role", "", "enum", json!(["system", "developer", "user", "assistant", "tool"]));
    let says =
        json!({ "required": ["content"], "properties": { "content": { "type": ["string", "array"] } } });
    let calls = json!({
        "required": ["tool_calls"],
        "properties": { "role": { "const": "assistant" }, "tool_calls": { "type": "array", "minItems": 1 } },
    });
    let no_result = json!({ "properties": { "role": { "not": { "const": "tool" } } } });
    let result =
        json!({ "required": ["tool_call_id"], "properties": { "tool_call_id": { "type": "string" } } });
    say("Said", "", "allOf", json!([{ "anyOf": [says, calls] }, { "anyOf": [no_result, result] }]));
    for named in ["Function", "NamedFunction", "CalledFunction"] {
        say(named, "/properties/name", "pattern", json!(NAME));
    }
    say("Part", "/properties/type", "enum", json!(["text"]));
    say("Part", "/properties/text", "type", json!("string"));
    say("Part", "", "required", json!(["type", "text"]));
    say("Stop", "/oneOf/0", "minLength", json!(1));
    say("Stop", "/oneOf/1/items", "minLength", json!(1));
    say("Stop", "/oneOf/1", "maxItems", json!(MAX_STOPS));
    say("Completion", "/properties/suffix", "enum", json!([null, ""]));
    for list in 1..=3 {
        // An empty list would be a list of anything: not one of these, but all.
        say("AnyPrompt", &format!("/oneOf/{list}"), "minItems", json!(1));
    }
    say("AnyPrompt", "/oneOf/3/items", "minItems", json!(1));
}

/// A regular expression for the numbers up to one, in decimal digits.
fn up_to(most: u32) -> String {
    let digits = most.to_string();
    let mut same: Vec<String> = vec![digits.clone()];
    for (at, digit) in digits.char_indices().filter(|(_, digit)| *digit > '0') {
        let below = char::from(digit as u8 - 1);
        same.push(format!("{}[0-{below}]{}", &digits[..at], "[0-9]".repeat(digits.len() - at - 1)));
    }
    if digits.len() > 1 {
        same.push(format!("[0-9]{{1,{}}}", digits.len() - 1));
    }
    format!("^({})$", same.join("|"))
}

/// Adds a type under a name, and what it consists of under theirs.
fn add<T: ToSchema + PartialSchema>(schemas: &mut Map<String, Value>, name: &str) {
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    parts.push((name.to_owned(), T::schema()));
    for (name, schema) in parts {
        schemas.insert(name, serde_json::to_value(schema).expect("a schema is JSON"));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_up_to_one_have_an_expression() {
        assert_eq!(super::up_to(7), "^(7|[0-6])$");
        assert_eq!(super::up_to(302), "^(302|[0-2][0-9][0-9]|30[0-1]|[0-9]{1,2})$");
    }
}
