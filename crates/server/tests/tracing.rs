//! Request ids in JSON logs, from HTTP to the engine. A test binary of its own: it sets the global subscriber.

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use common::{Fixture, Mock, completion};
use engine::{
    Engine, Options,
    testing::{MockBackend, MockOptions},
};
use serde_json::{Value, json};
use server::Config;

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn http_and_engine_events_carry_the_request_id() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .json()
        .flatten_event(true)
        .with_span_list(false)
        .init();
    let engine = Engine::start(MockBackend::new(MockOptions::default()), Options::default()).unwrap();
    let server = Fixture::with_generator(Mock::new(), Arc::new(engine), Config::default(), None);
    let body = completion(json!({ "max_tokens": 3, "seed": 1 }));
    let send = |id: &str| {
        let got = server.post_with("/v1/completions", &body, ("x-request-id", id));
        assert_eq!(got.status, 200, "{}", got.body);
        got.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(send("client-42"), "client-42");
    // An id that could corrupt a log line is replaced.
    let generated = send("42\" injected");
    assert!(generated.len() == 24 && generated.bytes().all(|byte| byte.is_ascii_hexdigit()), "{generated}");
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let traced = ("traceparent", format!("00-{trace}-b7ad6b7169203331-00"));
    assert_eq!(server.post_with("/v1/completions", &body, (traced.0, &traced.1)).status, 200);
    server.wait_metric("indrik_http_requests_total{outcome=\"success\"} 3");
    drop(server);

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_trace = events.iter().filter(|event| event["span"]["trace_id"] == trace);
    assert!(of_trace.clone().any(|event| event["message"] == "request finished"), "{log}");
    assert!(of_trace.clone().any(|event| event["message"] == "admitted"), "{log}");
    for id in ["client-42", &generated] {
        let request_events: Vec<&Value> =
            events.iter().filter(|event| event["span"]["request_id"] == id).collect();
        let find = |target: &str, message: &str| {
            let found = request_events.iter().find(|event| {
                event["target"].as_str().unwrap().starts_with(target) && event["message"] == message
            });
            found.unwrap_or_else(|| panic!("no '{message}' of {target} for {id} in\n{log}"))
        };
        let finished = find("server::access_log", "request finished");
        assert_eq!((&finished["outcome"], &finished["completion_tokens"]), (&json!("success"), &json!(3)));
        for message in ["admitted", "first token", "finished"] {
            find("engine", message);
        }
    }
}
