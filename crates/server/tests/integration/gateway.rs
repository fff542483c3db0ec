//! What gateways in front of the server rely on: readiness, shutdown, load, metrics by the names they know.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{Fixture, Mock, chat, completion};
use engine::testing::{MockBackend, MockOptions};
use engine::{Engine, Options, Pages};
use serde_json::json;
use server::Config;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn the_port_stays_open_while_the_server_lingers_even_if_nothing_runs() {
    let mut server = Fixture::new();
    let running = server.running.take().unwrap();
    server.handle.linger();
    for _ in 0..3 {
        assert_eq!(server.get("/health").status, 200);
        for got in [server.get("/ready"), server.post(CHAT, &chat(json!({})))] {
            let (message, _) = got.error(503, "not_ready");
            assert!(message.contains("shutting down"), "{message}");
            assert_eq!(got.headers["retry-after"], "1");
            assert_eq!(got.headers["connection"], "close");
        }
    }
    assert!(!running.is_finished());
    // Lingering after that changes nothing.
    server.handle.drain();
    server.handle.linger();
    server.runtime.block_on(running).unwrap();
    assert!(TcpStream::connect(server.address).is_err());
}

/// Asks on one connection, one after the other.
fn ask_often(server: &Fixture, path: &str, times: usize) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..times {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let (mut length, mut line) = (0, String::new());
        assert!(reader.read_line(&mut line).unwrap() > 0 && line.contains(" 200 "), "{line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let value =
                line.to_lowercase().strip_prefix("content-length: ").map(|value| value.trim().to_owned());
            length = value.map_or(length, |value| value.parse().unwrap());
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
    }
}

#[test]
fn those_who_ask_for_readiness_often_share_a_probe_per_second() {
    let server = Fixture::new();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let askers: Vec<_> = (0..4).map(|_| scope.spawn(|| ask_often(&server, "/ready", 500))).collect();
        // Requests are served meanwhile.
        assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
        askers.into_iter().for_each(|asker| asker.join().unwrap());
    });
    let (probes, seconds) = (server.mock.probes.load(Ordering::SeqCst), started.elapsed().as_secs_f64());
    assert!(probes >= 1 && probes as f64 <= seconds + 1.0, "{probes} probes in {seconds} s");
}

#[test]
fn those_who_wait_for_a_gpu_that_hangs_wait_for_the_same_probe() {
    let mut mock = Mock::new();
    mock.responds = false;
    let config = Config { probe_timeout: Duration::from_secs(3600), ..Config::default() };
    let server = Fixture::with_config(mock, config);
    let ask = || {
        let mut stream = TcpStream::connect(server.address).unwrap();
        write!(stream, "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        stream
    };
    let first = ask();
    server.wait_for("a probe", || server.mock.probes.load(Ordering::SeqCst) == 1);
    // Neither a client that gives up nor others that come start another one.
    drop(first);
    let waiting: Vec<_> = (0..20).map(|_| ask()).collect();
    for _ in 0..20 {
        assert_eq!(server.get("/health").status, 200);
    }
    assert_eq!(server.mock.probes.load(Ordering::SeqCst), 1);
    drop(waiting);
}

#[test]
fn a_gpu_that_did_not_respond_is_asked_again() {
    let mut mock = Mock::new();
    mock.responds = false;
    let config = Config { probe_timeout: Duration::from_millis(20), ..Config::default() };
    let server = Fixture::with_config(mock, config);
    for probes in 1..4 {
        server.get("/ready").error(503, "not_ready");
        assert_eq!(server.mock.probes.load(Ordering::SeqCst), probes);
    }
}

/// An engine on a mock backend.
fn engine_fixture(config: Config) -> Fixture {
    let engine = Engine::start(MockBackend::new(MockOptions::default()), Options::default()).unwrap();
    Fixture::with_generator(Mock::new(), Arc::new(engine), config, None)
}

#[test]
fn the_load_is_that_of_the_engine() {
    let server = engine_fixture(Config::default());
    let load = |server: &Fixture| server.get("/v1/loads?include=core,disagg,queues,memory").json();
    let capacity = MockOptions::default().capacity;
    let body = load(&server);
    assert_eq!((&body["dp_rank_count"], body["loads"].as_array().unwrap().len()), (&json!(1), 1), "{body}");
    let idle = &body["loads"][0];
    assert_eq!(idle["num_total_reqs"], 0);
    assert_eq!(idle["max_running_requests"], capacity.max_sequences);
    assert_eq!(idle["max_total_num_tokens"], capacity.pages * capacity.page_size);
    let prompt = completion(json!({ "prompt": "say ".repeat(9) }));
    for _ in 0..2 {
        assert_eq!(server.post("/v1/completions", &prompt).status, 200);
    }
    assert!(load(&server)["loads"][0]["cache_hit_rate"].as_f64().unwrap() > 0.0);

    let scripted = Fixture::new();
    {
        let mut status = scripted.mock.status.lock().unwrap();
        (status.waiting, status.prefilling, status.decoding) = (3, 1, 4);
        status.pages = Pages { free: 25, cached: 5, total: 100 };
    }
    let busy = load(&scripted)["loads"][0].take();
    assert_eq!((&busy["num_running_reqs"], &busy["num_waiting_reqs"]), (&json!(5), &json!(3)));
    assert_eq!((&busy["num_total_reqs"], &busy["gen_throughput"]), (&json!(8), &json!(12.5)));
}

#[test]
fn gateways_learn_what_the_server_is() {
    let server = engine_fixture(Config::default());
    assert_eq!(server.get("/version").json()["version"], env!("CARGO_PKG_VERSION"));
    let info = server.get("/server_info").json();
    let capacity = MockOptions::default().capacity;
    assert_eq!(info["served_model_name"], crate::common::MODEL);
    assert_eq!(
        (&info["context_length"], &info["is_embedding"]),
        (&json!(capacity.context_length), &json!(false))
    );
    assert_eq!(info["max_running_requests"], capacity.max_sequences);
    let model = server.get("/model_info").json();
    assert_eq!((&model["model_path"], &model["is_generation"]), (&json!(crate::common::MODEL), &json!(true)));
    assert_eq!(model["has_image_understanding"], false);
    for (path, same) in [("/get_server_info", info), ("/get_model_info", model)] {
        assert_eq!(server.get(path).json(), same);
    }
}

#[test]
fn load_and_description_need_the_key_and_are_not_logged_as_requests() {
    let config = Config { api_keys: vec!["key".to_owned()], ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    for path in
        ["/v1/loads", "/version", "/server_info", "/model_info", "/get_server_info", "/get_model_info"]
    {
        server.get(path).error(401, "invalid_api_key");
        assert_eq!(server.get_with(path, ("authorization", "Bearer key")).status, 200, "{path}");
    }
    assert!(!server.get("/metrics").body.contains("\nindrik_http_requests_total{"));
}

#[test]
fn metrics_have_vllms_names_if_they_are_asked_for() {
    let server = engine_fixture(Config { vllm_metrics: true, ..Config::default() });
    let prompt = completion(json!({ "prompt": "say ".repeat(9), "max_tokens": 5, "ignore_eos": true }));
    for _ in 0..2 {
        assert_eq!(server.post("/v1/completions", &prompt).status, 200);
    }
    let capacity = MockOptions::default().capacity;
    let label = format!("model_name=\"{}\"", crate::common::MODEL);
    server.wait_metric(&format!("vllm:generation_tokens_total{{{label}}} 10"));
    let text = server.get("/metrics").body;
    let size = format!("block_size=\"{}\",num_gpu_blocks=\"{}\"", capacity.page_size, capacity.pages);
    for line in [
        format!("vllm:num_requests_waiting{{{label}}} 0"),
        format!("vllm:num_requests_running{{{label}}} 0"),
        format!("vllm:kv_cache_usage_perc{{{label}}} 0"),
        format!("vllm:gpu_cache_usage_perc{{{label}}} 0"),
        format!("vllm:cache_config_info{{{label},{size}}} 1"),
        format!("vllm:time_to_first_token_seconds_bucket{{{label},le=\"+Inf\"}} 2"),
        format!("vllm:time_to_first_token_seconds_count{{{label}}} 2"),
        format!("vllm:time_per_output_token_seconds_count{{{label}}} 8"),
        "# TYPE vllm:time_per_output_token_seconds histogram".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
    // Both count tokens, unlike the server's own metrics of these names.
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("vllm:{name}{{{label}}} ")));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    };
    let (queries, hits) = (value("prefix_cache_queries_total"), value("prefix_cache_hits_total"));
    let prompt_tokens = value("prompt_tokens_total");
    assert!(hits >= 8.0 && queries > hits && queries == prompt_tokens, "{queries} {hits} {prompt_tokens}");
    assert!(!engine_fixture(Config::default()).get("/metrics").body.contains("vllm:"));
}
