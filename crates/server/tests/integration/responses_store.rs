//! Stored responses: continued, retrieved, listed, deleted, cancelled, evicted, and seen by their owner only.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::Config;
use text::DecodeSpecial;

use crate::common::{Fixture, HttpResponse, Mock, response, tokenizer};
use crate::messages::{call, scripted, template};
use crate::responses::{RESPONSES, create, function, greedy, user};

fn path(object: &Value, rest: &str) -> String {
    format!("{RESPONSES}/{}{rest}", object["id"].as_str().unwrap())
}

fn not_found(got: &HttpResponse) {
    let (message, param) = got.error(404, "response_not_found");
    assert!(message.starts_with("Response with id '") && message.ends_with("' not found."), "{message}");
    assert_eq!(param, "response_id");
}

#[test]
fn a_response_continues_the_previous_one() {
    let server = scripted("fine");
    let prompt = |more: Value| {
        let object = create(&server, more);
        let prompt = server.mock.submitted.lock().unwrap().pop().unwrap().prompt;
        (object, tokenizer().decode(&prompt, DecodeSpecial::Keep))
    };
    let (first, _) = prompt(json!({ "instructions": "old", "input": "a" }));
    let (second, text) =
        prompt(json!({ "instructions": "new", "input": "b", "previous_response_id": first["id"] }));
    let turns = "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>assistant\nfine<end_of_turn>\n\
                 <start_of_turn>user\nb<end_of_turn>\n<start_of_turn>assistant\n";
    assert_eq!(text, format!("<bos><start_of_turn>system\nnew<end_of_turn>\n{turns}"));
    assert_eq!(second["previous_response_id"], first["id"]);
    // The conversation outlives the responses that it started with, and may be continued twice.
    assert_eq!(server.delete(&path(&first, "")).status, 200);
    for _ in 0..2 {
        let (_, text) = prompt(json!({ "input": "c", "previous_response_id": second["id"] }));
        assert_eq!(text.matches("fine").count(), 2, "{text}");
        assert!(text.starts_with("<bos><start_of_turn>user\na<end_of_turn>\n"), "{text}");
    }
    // Without input, the model goes on.
    let (_, text) = prompt(json!({ "input": null, "previous_response_id": second["id"] }));
    assert!(text.ends_with("fine<end_of_turn>\n<start_of_turn>assistant\n"), "{text}");
}

#[test]
fn a_tool_loop_continues_with_results_only() {
    let server = scripted(&format!("<think>\nhm\n</think>\n\n{}", call("now", "{}")));
    let tools = json!([function("now")]);
    let first = create(&server, json!({ "tools": tools }));
    let call_id = &first["output"][1]["call_id"];
    let result = json!({ "type": "function_call_output", "call_id": call_id, "output": "noon" });
    create(&server, json!({ "tools": tools, "previous_response_id": first["id"], "input": [result] }));
    let prompt = server.mock.submitted.lock().unwrap().pop().unwrap().prompt;
    let text = tokenizer().decode(&prompt, DecodeSpecial::Keep);
    assert!(text.contains("<think>hm</think>") && text.contains("result of now: noon"), "{text}");
    // Each call needs its result.
    let without = greedy(json!({ "tools": tools, "previous_response_id": first["id"], "input": "b" }));
    let (message, param) = server.post(RESPONSES, &without).error(400, "invalid_value");
    assert_eq!(param, "previous_response_id");
    assert!(message.contains(call_id.as_str().unwrap()), "{message}");
    // A reference stands for the item.
    let reference = json!({ "type": "item_reference", "id": first["output"][1]["id"] });
    create(&server, json!({ "tools": tools, "input": [user("a"), reference, result] }));
}

#[test]
fn input_items_are_listed_in_pages() {
    let server = scripted("fine");
    let first =
        create(&server, json!({ "input": (0..25).map(|n| user(&n.to_string())).collect::<Vec<_>>() }));
    let second = create(&server, json!({ "previous_response_id": first["id"], "input": "last" }));
    let list = |object: &Value, query: &str| {
        let got = server.get(&path(object, &format!("/input_items{query}")));
        assert_eq!(got.status, 200, "{}", got.body);
        got.json()
    };
    let texts = |page: &Value| {
        let text = |item: &Value| item["content"][0]["text"].as_str().unwrap().to_owned();
        page["data"].as_array().unwrap().iter().map(text).collect::<Vec<_>>()
    };
    let page = list(&first, "");
    assert_eq!((page["object"].as_str(), page["has_more"].as_bool()), (Some("list"), Some(true)));
    assert_eq!(texts(&page), (5..25).rev().map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!((&page["first_id"], &page["last_id"]), (&page["data"][0]["id"], &page["data"][19]["id"]));
    let item = &page["data"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("user"), &json!("completed"))
    );
    assert_eq!(item["content"][0]["type"], "input_text");
    let rest = list(&first, &format!("?after={}", page["last_id"].as_str().unwrap()));
    assert_eq!((texts(&rest).len(), rest["has_more"].as_bool()), (5, Some(false)));
    let page = list(&first, "?order=asc&limit=3&include[]=x");
    assert_eq!(texts(&page), ["0", "1", "2"]);
    // The input of a response is the whole conversation.
    assert_eq!(texts(&list(&second, "?limit=100")).len(), 27);
    assert_eq!(texts(&list(&second, "?limit=2")), ["last", "fine"]);
    let end = list(
        &second,
        &format!("?order=asc&after={}", list(&second, "?limit=1")["first_id"].as_str().unwrap()),
    );
    assert_eq!(
        end,
        json!({ "object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false })
    );
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
    ] {
        let got = server.get(&path(&first, &format!("/input_items?{query}")));
        assert_eq!(got.error(400, "invalid_value").1, field);
    }
}

#[test]
fn responses_are_deleted_and_unknown_ids_are_not_found() {
    let server = Fixture::new();
    let object = create(&server, json!({}));
    assert_eq!(server.get(&path(&object, "")).json(), object);
    let (message, param) = server.get(&path(&object, "?stream=true")).error(400, "unsupported_parameter");
    assert!(message.contains("stream"), "{message}");
    assert_eq!(param, "stream");
    let deleted = server.delete(&path(&object, "")).json();
    assert_eq!(deleted, json!({ "id": object["id"], "object": "response", "deleted": true }));
    // Not stored, deleted, guessed.
    let unstored = create(&server, json!({ "store": false }));
    let guessed = [
        json!({ "id": "resp_000000000000000000000000" }),
        json!({ "id": "%ff" }),
        json!({ "id": "x".repeat(300) }),
    ];
    for object in [&object, &unstored].into_iter().chain(&guessed) {
        not_found(&server.get(&path(object, "")));
        not_found(&server.get(&path(object, "/input_items")));
        not_found(&server.delete(&path(object, "")));
        not_found(&server.post(&path(object, "/cancel"), &json!({})));
        let body = response(json!({ "previous_response_id": object["id"] }));
        let (message, param) = server.post(RESPONSES, &body).error(400, "previous_response_not_found");
        assert!(message.starts_with("Previous response with id '"), "{message}");
        assert_eq!(param, "previous_response_id");
    }
    // Items of responses that are gone are gone, too.
    let reference = json!([{ "type": "item_reference", "id": object["output"][0]["id"] }]);
    let (_, param) =
        server.post(RESPONSES, &response(json!({ "input": reference }))).error(400, "invalid_value");
    assert_eq!(param, "input[0].id");
    for (path, allowed) in [
        (RESPONSES, "POST"),
        ("/v1/responses/x/cancel", "POST"),
        ("/v1/responses/x/input_items", "GET, HEAD"),
    ] {
        let got = if allowed == "POST" { server.get(path) } else { server.delete(path) };
        got.error(405, "method_not_allowed");
        assert_eq!(got.headers["allow"], allowed);
    }
    let got = server.post("/v1/responses/x", &json!({}));
    got.error(405, "method_not_allowed");
    assert_eq!(got.headers["allow"], "GET, HEAD, DELETE");
}

#[test]
fn other_keys_do_not_see_responses() {
    let keys = vec!["mine".to_owned(), "other".to_owned()];
    let server = Fixture::with_config(Mock::new(), Config { api_keys: keys, ..Config::default() });
    let (mine, other) = (("authorization", "Bearer mine"), ("x-api-key", "other"));
    let object = server.post_with(RESPONSES, &response(json!({})), mine).json();
    assert_eq!(server.get_with(&path(&object, ""), ("x-api-key", "mine")).json(), object);
    not_found(&server.get_with(&path(&object, ""), other));
    not_found(&server.get_with(&path(&object, "/input_items"), other));
    not_found(&server.delete_with(&path(&object, ""), other));
    not_found(&server.post_with(&path(&object, "/cancel"), &json!({}), other));
    let next = response(json!({ "previous_response_id": object["id"] }));
    server.post_with(RESPONSES, &next, other).error(400, "previous_response_not_found");
    let item = json!({ "type": "item_reference", "id": object["output"][0]["id"] });
    let reference = response(json!({ "input": [user("a"), item, user("b")] }));
    assert_eq!(server.post_with(RESPONSES, &reference, other).error(400, "invalid_value").1, "input[1].id");
    assert_eq!(server.post_with(RESPONSES, &reference, mine).status, 200);
    assert_eq!(server.post_with(RESPONSES, &next, mine).status, 200);
    server.get(&path(&object, "")).error(401, "invalid_api_key");
    assert_eq!(server.delete_with(&path(&object, ""), mine).status, 200);
}

#[test]
fn the_least_recently_used_responses_are_evicted() {
    let config = Config { max_stored_responses: 10, ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    let first = create(&server, json!({}));
    let others: Vec<Value> = (0..30)
        .map(|_| {
            assert_eq!(server.get(&path(&first, "")).status, 200, "what is used stays");
            create(&server, json!({}))
        })
        .collect();
    let kept: Vec<bool> = others.iter().map(|object| server.get(&path(object, "")).status == 200).collect();
    assert_eq!(kept, [vec![false; 21], vec![true; 9]].concat());
    // By bytes, with the input.
    let config = Config { max_stored_response_bytes: 64 << 10, ..Config::default() };
    let mock = Mock { context_length: 1 << 20, ..Mock::new() };
    let server = Fixture::with_config(mock, config);
    let large = "x".repeat(20 << 10);
    let objects: Vec<Value> = (0..5).map(|_| create(&server, json!({ "input": large }))).collect();
    let kept: Vec<bool> = objects.iter().map(|object| server.get(&path(object, "")).status == 200).collect();
    assert_eq!(kept, [false, false, true, true, true]);
    // One that does not fit at all is not stored.
    let object = create(&server, json!({ "input": "x".repeat(100 << 10) }));
    not_found(&server.get(&path(&object, "")));
}

/// Waits until a response in the background has ended.
fn ended(server: &Fixture, object: &Value) -> Value {
    let deadline = Instant::now() + Duration::from_secs(1800);
    loop {
        let object = server.get(&path(object, "")).json();
        if object["status"] != "queued" && object["status"] != "in_progress" {
            return object;
        }
        assert!(Instant::now() < deadline, "the response does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn responses_in_the_background_are_polled() {
    let server = Fixture::new();
    let object = create(&server, json!({ "background": true }));
    assert_eq!((&object["status"], &object["output"]), (&json!("queued"), &json!([])));
    let done = ended(&server, &object);
    assert_eq!((&done["status"], &done["background"]), (&json!("completed"), &json!(true)));
    assert_eq!(done["output"][0]["content"][0]["text"], " one two three four five six");
    assert_eq!((&done["id"], &done["created_at"]), (&object["id"], &object["created_at"]));
    create(&server, json!({ "previous_response_id": object["id"] }));
    // To cancel what has ended changes nothing.
    assert_eq!(server.post(&path(&object, "/cancel"), &json!({})).json(), done);
    // A failure is part of the object.
    let failure = Some((2, engine::RequestError::OutOfMemory));
    let server = Fixture::with_config(Mock { failure, ..Mock::new() }, Config::default());
    let done = ended(&server, &create(&server, json!({ "background": true })));
    assert_eq!((&done["status"], &done["error"]["code"]), (&json!("failed"), &json!("server_error")));
    let config = Config { queue_timeout: Duration::from_millis(20), ..Config::default() };
    let server = Fixture::with_config(Mock { wait: Duration::from_secs(1000), ..Mock::new() }, config);
    let done = ended(&server, &create(&server, json!({ "background": true })));
    assert_eq!((&done["status"], &done["error"]["code"]), (&json!("failed"), &json!("rate_limit_exceeded")));
    server.wait_live(0);
}

#[test]
fn a_cancelled_response_stays_cancelled() {
    let mock = Mock { delay: Duration::from_millis(20), context_length: 1 << 20, ..Mock::new() };
    let script = mock.script.repeat(10_000);
    let server = Fixture::with_template(Mock { script, ..mock }, Config::default(), template());
    let background = || create(&server, json!({ "background": true }));
    let object = background();
    server.wait_live(1);
    let busy = response(json!({ "previous_response_id": object["id"] }));
    assert_eq!(server.post(RESPONSES, &busy).error(400, "invalid_value").1, "previous_response_id");
    let cancelled = server.post(&path(&object, "/cancel"), &json!({})).json();
    assert_eq!((&cancelled["status"], &cancelled["output"]), (&json!("cancelled"), &json!([])));
    server.wait_live(0);
    assert_eq!(server.get(&path(&object, "")).json(), cancelled);
    assert_eq!(
        server.post(&path(&object, "/cancel"), &json!({})).json(),
        cancelled,
        "cancelling is idempotent"
    );
    // Deletion cancels, too.
    let object = background();
    server.wait_live(1);
    assert_eq!(server.delete(&path(&object, "")).status, 200);
    server.wait_live(0);
    not_found(&server.get(&path(&object, "")));
}

#[test]
fn only_responses_in_the_background_are_cancelled() {
    let server = Fixture::new();
    let object = create(&server, json!({}));
    let (message, _) = server.post(&path(&object, "/cancel"), &json!({})).error(400, "invalid_value");
    assert!(message.contains("background"), "{message}");
}
