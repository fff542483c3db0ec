//! Spans that the server sends to an OpenTelemetry collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::common::{Fixture, MODEL, Mock, chat};
use serde_json::{Value, json};
use server::Config;

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A collector on a free port. Every body that it gets is sent through the channel.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (sender, bodies) = channel();
    std::thread::spawn(move || listener.incoming().all(|stream| collect(stream.unwrap(), &sender)));
    (url, bodies)
}

/// Answers the requests of a connection. False if nobody wants their bodies any more.
fn collect(mut stream: TcpStream, bodies: &Sender<Value>) -> bool {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return true;
            }
            match line.trim() {
                "" => break,
                line => head.push(line.to_lowercase()),
            }
        }
        assert_eq!(head[0], "post /v1/traces http/1.1");
        assert!(head.contains(&"content-type: application/json".to_owned()), "{head:?}");
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        // Before the response, after which the server may end.
        if bodies.send(serde_json::from_slice(&body).unwrap()).is_err() {
            return false;
        }
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{{}}").unwrap();
    }
}

/// The spans of a server that has ended.
fn spans(mut server: Fixture, bodies: &Receiver<Value>) -> Vec<Value> {
    server.handle.drain();
    server.runtime.block_on(server.running.take().unwrap()).unwrap();
    drop(server);
    let spans = bodies.try_iter().flat_map(|mut body| {
        let resource = body["resourceSpans"][0].take();
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "indrik");
        resource["scopeSpans"][0]["spans"].as_array().unwrap().clone()
    });
    spans.collect()
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"]
}

#[test]
fn a_request_is_a_span_of_its_callers_trace() {
    let (url, bodies) = collector();
    let server = Fixture::with_config(Mock::new(), Config { otlp_endpoint: Some(url), ..Config::default() });
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let got = server.post_with(CHAT, &chat(json!({})), ("traceparent", &parent));
    assert_eq!(got.status, 200);
    assert_eq!(server.post(CHAT, &chat(json!({ "n": 0 }))).status, 400);
    // A caller that does not record its own span.
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    assert_eq!(server.post_with(CHAT, &chat(json!({})), ("traceparent", &unsampled)).status, 200);
    server.get("/v1/models/a-name");
    server.wait_metric("indrik_http_requests_total{outcome=\"success\"} 2");
    server.wait_metric("indrik_http_requests_total{outcome=\"model_not_found\"} 1");

    let spans = spans(server, &bodies);
    assert_eq!(spans.len(), 3, "{spans:?}");
    let [complete, invalid, unknown] = &spans[..] else { unreachable!() };
    assert_eq!((&complete["traceId"], &complete["parentSpanId"]), (&json!(TRACE), &json!(PARENT)));
    assert_eq!((&complete["name"], &complete["kind"]), (&json!("POST /v1/chat/completions"), &json!(2)));
    assert_eq!(complete["status"]["code"], 0);
    let id = got.headers["x-request-id"].to_str().unwrap();
    assert_eq!(attribute(complete, "indrik.request_id")["stringValue"], id);
    assert_eq!(attribute(complete, "gen_ai.request.model")["stringValue"], MODEL);
    assert_eq!(attribute(complete, "gen_ai.usage.output_tokens")["intValue"], "6");
    assert!(
        attribute(complete, "gen_ai.latency.time_to_first_token")["doubleValue"].as_f64().unwrap() >= 0.0
    );
    let nanoseconds = |key: &str| complete[key].as_str().unwrap().parse::<u64>().unwrap();
    assert!(nanoseconds("endTimeUnixNano") >= nanoseconds("startTimeUnixNano"));
    assert_eq!(invalid["status"], json!({ "code": 2, "message": "invalid_value" }));
    assert!(invalid.get("parentSpanId").is_none() && invalid["traceId"] != TRACE, "{invalid}");
    assert_eq!(invalid["traceId"].as_str().unwrap().len(), 32);
    // The name of a span does not depend on what clients ask for.
    assert_eq!(unknown["name"], "GET /v1/models");
    assert_eq!(attribute(unknown, "url.path")["stringValue"], "/v1/models/a-name");
}

#[test]
fn forged_trace_headers_start_a_new_trace() {
    let (url, bodies) = collector();
    let server = Fixture::with_config(Mock::new(), Config { otlp_endpoint: Some(url), ..Config::default() });
    let forged = [
        "00-00000000000000000000000000000000-0000000000000000-01".to_owned(),
        format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
        format!("00-{TRACE}\", \"injected\": \"-01"),
        "x".repeat(30_000),
        format!("00-{TRACE}-{PARENT}-01, 00-{TRACE}-{PARENT}-01"),
    ];
    for header in &forged {
        assert_eq!(server.post_with(CHAT, &chat(json!({})), ("traceparent", header)).status, 200, "{header}");
    }
    let long = format!("/v1/models/{}", "x".repeat(30_000));
    server.get(&long).error(404, "model_not_found");
    server.wait_metric(&format!("indrik_http_requests_total{{outcome=\"success\"}} {}", forged.len()));
    let spans = spans(server, &bodies);
    assert_eq!(spans.len(), forged.len() + 1);
    for span in &spans {
        let id = span["traceId"].as_str().unwrap();
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && id != TRACE, "{span}");
        assert!(span.get("parentSpanId").is_none(), "{span}");
        assert!(span.to_string().len() < 4096, "{span}");
    }
}

#[test]
fn a_collector_that_is_gone_costs_spans_and_no_requests() {
    // A port that nobody listens on.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let server = Fixture::with_config(Mock::new(), Config { otlp_endpoint: Some(url), ..Config::default() });
    for _ in 0..20 {
        assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
    }
    server.wait_metric("indrik_trace_spans_dropped_total 20");
    server.wait_metric("indrik_trace_spans_exported_total 0");
}
