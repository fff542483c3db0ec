//! `/stats` and `/stats/stream`.

use crate::common;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::{Fixture, Mock};
use engine::{RequestState, RequestStatus};
use serde_json::{Value, json};
use server::Config;
use server::stats::{State, Stats};

/// A generator with a running request.
fn busy() -> Mock {
    let mock = Mock::new();
    let mut status = mock.status.lock().unwrap();
    (status.decoding, status.generation_tokens, status.finished) = (1, 900, 12);
    status.requests = vec![RequestStatus {
        name: "chatcmpl-1".into(),
        state: RequestState::Decoding,
        prompt_tokens: 34,
        cached_tokens: 8,
        sequence_tokens: 44,
        generated_tokens: 11,
        max_tokens: 512,
        submitted_at: Instant::now(),
        tokens_per_second: Some(40.0),
    }];
    drop(status);
    mock
}

#[test]
fn the_statistics_are_those_of_the_engine_and_unknown_values_are_null() {
    let server = Fixture::with_config(busy(), Config::default());
    let got = server.get("/stats").json();
    assert_eq!(got["state"], "ready");
    assert_eq!(got["requests"]["running"], 1);
    assert_eq!(got["tokens"]["generated"], 900);
    assert_eq!(got["tokens"]["generated_per_second"], 12.5);
    assert_eq!(got["kv_cache"], json!({ "pages": 100, "used": 7, "cached": 5, "page_tokens": null }));
    for unknown in ["detail", "device", "energy", "bandwidth", "machine"] {
        assert_eq!(got.get(unknown), Some(&Value::Null), "{unknown}");
    }
    assert_eq!(got["tokens"]["prompt_per_second"], json!(null));
    assert_eq!(got["latency"]["inter_token"], json!(null));
    let running = &got["in_flight"][0];
    assert_eq!(running["id"], "chatcmpl-1");
    assert_eq!((&running["prefilled_tokens"], &running["generated_tokens"]), (&json!(34), &json!(11)));
    // What a monitor reads.
    let stats: Stats = serde_json::from_value(got).unwrap();
    assert_eq!(stats.in_flight[0].tokens_per_second, Some(40.0));
}

#[test]
fn a_request_is_listed_under_the_id_of_its_response() {
    let server = Fixture::new();
    let id = server.post("/v1/chat/completions", &common::chat(json!({}))).json()["id"].clone();
    assert_eq!(json!(*server.mock.submitted.lock().unwrap()[0].name), id);
}

#[test]
fn a_server_that_is_not_ready_says_why() {
    let mock = Mock::new();
    *mock.not_ready.lock().unwrap() = Some("the model is loading".to_owned());
    let server = Fixture::with_config(mock, Config::default());
    let stats: Stats = serde_json::from_value(server.get("/stats").json()).unwrap();
    assert_eq!(stats.state, State::Loading);
    assert!(stats.detail.is_some_and(|detail| detail.contains("the model is loading")));
}

/// Opens a stream. Returns its status line, and the rest after the headers.
fn open_stream(server: &Fixture) -> (String, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "GET /stats/stream HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the server closed the connection");
        line
    };
    let status = line();
    while line() != "\r\n" {}
    (status, lines)
}

/// The next event of a stream; `None` at its end.
fn next_event(reader: &mut impl BufRead) -> Option<Stats> {
    for line in reader.lines() {
        if let Some(data) = line.unwrap().strip_prefix("data: ") {
            return Some(serde_json::from_str(data).unwrap());
        }
    }
    None
}

#[test]
fn the_stream_goes_on_until_the_server_shuts_down() {
    let server = Fixture::with_config(busy(), Config::default());
    let (_, mut reader) = open_stream(&server);
    assert_eq!(next_event(&mut reader).unwrap().requests.finished, 12);
    server.mock.status.lock().unwrap().finished = 13;
    while next_event(&mut reader).unwrap().requests.finished != 13 {}
    server.handle.drain();
    while next_event(&mut reader).expect("the end is announced").state != State::Draining {}
    assert_eq!(next_event(&mut reader), None);
}

#[test]
fn streams_are_limited_so_that_they_do_not_use_up_the_connections() {
    let server = Fixture::new();
    let mut streams: Vec<_> = (0..16).map(|_| open_stream(&server).1).collect();
    for stream in &mut streams {
        assert!(next_event(stream).is_some());
    }
    let (message, _) = server.get("/stats/stream").error(503, "too_many_streams");
    assert!(message.contains("poll /stats"), "{message}");
    assert_eq!(server.get("/stats").status, 200);
    drop(streams.pop());
    // A stream that is closed makes room when the server notices.
    while open_stream(&server).0.contains(" 503 ") {}
}

#[test]
fn probes_are_answered_beside_all_streams_and_requests() {
    let mut mock = Mock::new();
    // Longer than the test.
    mock.delay = Duration::from_secs(3600);
    let server = Fixture::with_config(mock, Config { max_connections: 4, ..Config::default() });
    let body = common::chat(json!({})).to_string();
    let requests: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
            write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
            stream
        })
        .collect();
    server.wait_live(4);
    let streams: Vec<_> = (0..16).map(|_| open_stream(&server)).collect();
    for path in ["/health", "/ready", "/metrics", "/stats"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    drop((requests, streams));
}

#[test]
fn statistics_need_the_key() {
    let server =
        Fixture::with_config(Mock::new(), Config { api_keys: vec!["key".to_owned()], ..Config::default() });
    for path in ["/stats", "/stats/stream"] {
        server.get(path).error(401, "invalid_api_key");
    }
    assert_eq!(server.get_with("/stats", ("authorization", "Bearer key")).status, 200);
}
