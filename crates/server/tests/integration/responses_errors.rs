//! Errors of `/v1/responses`: invalid requests with the field that is wrong.

use serde_json::{Value, json};
use server::Config;

use crate::common::{Fixture, Mock, response};
use crate::messages::{bmp, scripted};
use crate::responses::{RESPONSES, function, user};

/// Checks that each request is refused and that the error names the field.
fn check_fields(server: &Fixture, invalid: &[(Value, &str)]) {
    for (more, field) in invalid {
        let got = server.post(RESPONSES, &response(more.clone()));
        assert_eq!(got.status, 400, "{more}: {}", got.body);
        let error = got.json()["error"].take();
        assert_eq!(error["param"], *field, "{more}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("'{field}': ")), "{more}: {message}");
        assert!(message.len() < 400, "{message}");
    }
    assert!(server.mock.submitted.lock().unwrap().is_empty());
}

#[test]
fn invalid_fields_are_named() {
    let server = scripted("x");
    let long_key = json!({ "metadata": { "k".repeat(65): "" } });
    let many: serde_json::Map<String, Value> = (0..17).map(|n| (n.to_string(), json!(""))).collect();
    let tools = |tool: Value| json!({ "tools": [function("f"), tool] });
    let choice = |choice: Value| json!({ "tools": [function("f")], "tool_choice": choice });
    let format = |format: Value| json!({ "text": { "format": format } });
    check_fields(
        &server,
        &[
            (json!({ "model": null }), "model"),
            (json!({ "model": 3 }), "model"),
            (json!({ "input": null }), "input"),
            (json!({ "input": 3 }), "input"),
            (json!({ "input": {} }), "input"),
            (json!({ "input": [] }), "input"),
            (json!({ "instructions": 3 }), "instructions"),
            (json!({ "instructions": [] }), "instructions"),
            (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
            (json!({ "max_output_tokens": -1 }), "max_output_tokens"),
            (json!({ "max_output_tokens": "9" }), "max_output_tokens"),
            (json!({ "max_tool_calls": 0 }), "max_tool_calls"),
            (json!({ "temperature": 2.1 }), "temperature"),
            (json!({ "temperature": -0.1 }), "temperature"),
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "top_p": 1.1 }), "top_p"),
            (json!({ "top_logprobs": 21 }), "top_logprobs"),
            (json!({ "top_logprobs": -1 }), "top_logprobs"),
            (json!({ "include": "message.output_text.logprobs" }), "include"),
            (json!({ "include": ["reasoning.encrypted_content", "everything"] }), "include[1]"),
            (json!({ "include": [3] }), "include[0]"),
            (json!({ "text": "json" }), "text"),
            (json!({ "text": { "verbosity": "loud" } }), "text.verbosity"),
            (format(json!({})), "text.format.type"),
            (format(json!({ "type": "xml" })), "text.format.type"),
            (format(json!({ "type": "json_schema", "schema": {} })), "text.format.name"),
            (format(json!({ "type": "json_schema", "name": "n" })), "text.format.schema"),
            (format(json!({ "type": "json_schema", "name": "n", "schema": 3 })), "text.format.schema"),
            (
                format(json!({ "type": "json_schema", "name": "n", "schema": { "type": "cat" } })),
                "text.format.schema",
            ),
            (json!({ "reasoning": "high" }), "reasoning"),
            (json!({ "reasoning": { "effort": "" } }), "reasoning.effort"),
            (json!({ "reasoning": { "effort": 3 } }), "reasoning.effort"),
            (json!({ "reasoning": { "summary": "long" } }), "reasoning.summary"),
            (json!({ "metadata": [] }), "metadata"),
            (json!({ "metadata": { "a": 1 } }), "metadata.a"),
            (json!({ "metadata": { "a": "v".repeat(513) } }), "metadata"),
            (long_key, "metadata"),
            (json!({ "metadata": many }), "metadata"),
            (json!({ "user": 3 }), "user"),
            (json!({ "safety_identifier": 3 }), "safety_identifier"),
            (json!({ "prompt_cache_key": 3 }), "prompt_cache_key"),
            (json!({ "service_tier": 3 }), "service_tier"),
            (json!({ "stream": "yes" }), "stream"),
            (json!({ "stream_options": {} }), "stream_options"),
            (
                json!({ "stream": true, "stream_options": { "include_obfuscation": 3 } }),
                "stream_options.include_obfuscation",
            ),
            (json!({ "store": "no" }), "store"),
            (json!({ "background": 1 }), "background"),
            (json!({ "background": true, "store": false }), "store"),
            (json!({ "background": true, "stream": true }), "stream"),
            (json!({ "truncation": "middle" }), "truncation"),
            (json!({ "parallel_tool_calls": "no" }), "parallel_tool_calls"),
            (json!({ "previous_response_id": 3 }), "previous_response_id"),
            (json!({ "conversation": "conv_1" }), "conversation"),
            (json!({ "conversation": { "id": "conv_1" } }), "conversation"),
            (json!({ "prompt": { "id": "pmpt_1" } }), "prompt"),
            (json!({ "mirostat": 2 }), "mirostat"),
            (json!({ "tools": {} }), "tools"),
            (json!({ "tools": vec![function("f"); 129] }), "tools"),
            (tools(json!({})), "tools[1].type"),
            (tools(json!({ "type": "web_search" })), "tools[1].type"),
            (tools(json!({ "type": "file_search", "vector_store_ids": [] })), "tools[1].type"),
            (tools(json!({ "type": "mcp", "server_label": "x" })), "tools[1].type"),
            (tools(json!({ "type": "computer_use_preview" })), "tools[1].type"),
            (tools(json!({ "type": "code_interpreter", "container": {} })), "tools[1].type"),
            (tools(json!({ "type": "image_generation" })), "tools[1].type"),
            (tools(json!({ "type": "custom", "name": "g" })), "tools[1].type"),
            (tools(json!({ "type": "function" })), "tools[1].name"),
            (tools(json!({ "type": "function", "name": "" })), "tools[1].name"),
            (tools(json!({ "type": "function", "name": "a b" })), "tools[1].name"),
            (tools(json!({ "type": "function", "name": "f" })), "tools[1].name"),
            (tools(json!({ "type": "function", "name": "n".repeat(65) })), "tools[1].name"),
            (tools(json!({ "type": "function", "name": "g", "parameters": 3 })), "tools[1].parameters"),
            (
                tools(
                    json!({ "type": "function", "name": "g", "strict": true, "parameters": { "type": "object", "properties": { "a": { "uniqueItems": true, "type": "array" } } } }),
                ),
                "tools[1].parameters",
            ),
            (choice(json!("always")), "tool_choice"),
            (choice(json!(3)), "tool_choice"),
            (choice(json!({})), "tool_choice.type"),
            (choice(json!({ "type": "function" })), "tool_choice.name"),
            (choice(json!({ "type": "function", "name": "g" })), "tool_choice.name"),
            (choice(json!({ "type": "file_search" })), "tool_choice.type"),
            (choice(json!({ "type": "mcp", "server_label": "x" })), "tool_choice.type"),
            (choice(json!({ "type": "allowed_tools", "mode": "auto" })), "tool_choice.tools"),
            (choice(json!({ "type": "allowed_tools", "mode": "auto", "tools": [] })), "tool_choice.tools"),
            (choice(json!({ "type": "allowed_tools", "mode": "none", "tools": [] })), "tool_choice.mode"),
            (
                choice(
                    json!({ "type": "allowed_tools", "mode": "auto", "tools": [{ "type": "function", "name": "g" }] }),
                ),
                "tool_choice.tools[0].name",
            ),
            (json!({ "tool_choice": "required" }), "tool_choice"),
        ],
    );
}

#[test]
fn invalid_items_are_named() {
    let server = scripted("x");
    let input = |item: Value| json!({ "input": [user("a"), item] });
    let content = |role: &str, part: Value| input(json!({ "role": role, "content": [part] }));
    let call = |more: Value| {
        let mut item = json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" });
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        input(item)
    };
    let output = json!({ "type": "function_call_output", "call_id": "1", "output": "o" });
    let called = json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" });
    check_fields(
        &server,
        &[
            (input(json!(3)), "input[1]"),
            (input(json!("text")), "input[1]"),
            (input(json!({})), "input[1].type"),
            (input(json!({ "type": 3 })), "input[1].type"),
            (input(json!({ "type": "" })), "input[1].type"),
            (input(json!({ "type": "web_search_call", "id": "ws_1" })), "input[1].type"),
            (input(json!({ "type": "computer_call_output", "output": {} })), "input[1].type"),
            (input(json!({ "type": "custom_tool_call", "name": 3 })), "input[1].type"),
            (input(json!({ "type": "t".repeat(1000) })), "input[1].type"),
            (input(json!({ "type": "message", "content": "a" })), "input[1].role"),
            (input(json!({ "role": "tool", "content": "a" })), "input[1].role"),
            (input(json!({ "role": 3, "content": "a" })), "input[1].role"),
            (input(json!({ "role": "user" })), "input[1].content"),
            (input(json!({ "role": "user", "content": 3 })), "input[1].content"),
            (input(json!({ "role": "user", "content": {} })), "input[1].content"),
            (input(json!({ "role": "user", "content": ["a"] })), "input[1].content[0]"),
            (input(json!({ "role": "user", "content": "a", "status": "new" })), "input[1].status"),
            (content("user", json!({})), "input[1].content[0].type"),
            (content("user", json!({ "type": "text", "text": "a" })), "input[1].content[0].type"),
            (content("user", json!({ "type": "output_text", "text": "a" })), "input[1].content[0].type"),
            (content("user", json!({ "type": "input_file", "file_id": "f" })), "input[1].content[0].type"),
            (content("user", json!({ "type": "input_audio" })), "input[1].content[0].type"),
            (content("user", json!({ "type": "input_text" })), "input[1].content[0].text"),
            (content("user", json!({ "type": "input_text", "text": 3 })), "input[1].content[0].text"),
            (content("user", json!({ "type": "input_image" })), "input[1].content[0].image_url"),
            (
                content("user", json!({ "type": "input_image", "file_id": "f" })),
                "input[1].content[0].file_id",
            ),
            (
                content("user", json!({ "type": "input_image", "image_url": {} })),
                "input[1].content[0].image_url",
            ),
            (
                content("user", json!({ "type": "input_image", "image_url": "a.png" })),
                "input[1].content[0].image_url",
            ),
            (
                content(
                    "user",
                    json!({ "type": "input_image", "image_url": "data:image/png;base64,", "detail": "all" }),
                ),
                "input[1].content[0].detail",
            ),
            (
                content(
                    "user",
                    json!({ "type": "input_image", "image_url": format!("data:image/bmp;base64,{}", bmp(1)) }),
                ),
                "input[1].content[0].image_url",
            ),
            (
                content("system", json!({ "type": "input_image", "image_url": "x" })),
                "input[1].content[0].type",
            ),
            (
                content("assistant", json!({ "type": "input_image", "image_url": "x" })),
                "input[1].content[0].type",
            ),
            (content("assistant", json!({ "type": "refusal" })), "input[1].content[0].refusal"),
            (content("assistant", json!({ "type": "output_text" })), "input[1].content[0].text"),
            (call(json!({ "call_id": null })), "input[1].call_id"),
            (call(json!({ "name": null })), "input[1].name"),
            (call(json!({ "name": "a b" })), "input[1].name"),
            (call(json!({ "arguments": null })), "input[1].arguments"),
            (call(json!({ "arguments": {} })), "input[1].arguments"),
            (call(json!({})), "input[1].call_id"),
            (input(output.clone()), "input[1].call_id"),
            (input(json!({ "type": "function_call_output", "output": "o" })), "input[1].call_id"),
            (input(json!({ "type": "function_call_output", "call_id": "1" })), "input[1].output"),
            (
                input(json!({ "type": "function_call_output", "call_id": "1", "output": 3 })),
                "input[1].output",
            ),
            (
                input(
                    json!({ "type": "function_call_output", "call_id": "1", "output": [{ "type": "output_text" }] }),
                ),
                "input[1].output[0].type",
            ),
            (json!({ "input": [output, called] }), "input[0].call_id"),
            (json!({ "input": [called, output, output] }), "input[2].call_id"),
            (json!({ "input": [called, called, output] }), "input[1].call_id"),
            (input(json!({ "type": "reasoning", "summary": "s" })), "input[1].summary"),
            (
                input(json!({ "type": "reasoning", "summary": [{ "type": "text" }] })),
                "input[1].summary[0].type",
            ),
            (
                input(json!({ "type": "reasoning", "content": [{ "type": "output_text", "text": "a" }] })),
                "input[1].content[0].type",
            ),
            (input(json!({ "type": "item_reference" })), "input[1].id"),
            (input(json!({ "type": "item_reference", "id": "msg_1" })), "input[1].id"),
            (input(json!({ "type": "item_reference", "id": 3 })), "input[1].id"),
        ],
    );
}

#[test]
fn templates_without_tools_refuse_them() {
    let server = Fixture::with_config(Mock::new(), Config::default());
    let called = json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" });
    let output = json!({ "type": "function_call_output", "call_id": "1", "output": "o" });
    check_fields(
        &server,
        &[
            (json!({ "tools": [function("f")] }), "tools"),
            (json!({ "input": [user("a"), called, output] }), "input[1].type"),
        ],
    );
    server.post(RESPONSES, &response(json!({ "model": "gpt" }))).error(404, "model_not_found");
    server.post_raw(RESPONSES, b"{").error(400, "invalid_value");
    let text = Fixture::with_template(Mock::new(), Config::default(), None);
    let (message, param) = text.post(RESPONSES, &response(json!({}))).error(400, "invalid_value");
    assert!(message.contains("no chat template"), "{message}");
    assert_eq!(param, "model");
}
