//! Models in Ollama's API: lists, loading and unloading, pulling and deleting.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use server::{Config, ModelStore, Models, PullProgress, StoreError};

use crate::common::{Fixture, MODEL, Mock};
use crate::messages::scripted;
use crate::models::{Handle, TestLoader, one_at_a_time, server};
use crate::ollama::{CHAT, GENERATE};
use crate::ollama_stream::lines;

#[test]
fn models_are_listed_and_described() {
    let server = scripted("ok");
    assert_eq!(server.get("/api/version").json(), json!({ "version": "0.12.11" }));
    let tags = server.get("/api/tags").json();
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["model"]), (&json!(MODEL), &json!(MODEL)));
    assert_eq!(model["modified_at"], "2023-11-14T22:13:20Z");
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    assert!(model["details"]["families"].is_array());
    for request in [json!({ "model": MODEL }), json!({ "name": "other-name:latest", "verbose": true })] {
        let shown = server.post("/api/show", &request).json();
        assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
        assert_eq!(shown["model_info"]["general.architecture"], "unknown");
        assert_eq!(shown["model_info"]["unknown.context_length"], 4096);
        assert!(shown["template"].as_str().unwrap().contains("enable_thinking"));
        assert!(shown["parameters"].as_str().unwrap().starts_with("temperature 1\n"));
        assert!(
            shown["modelfile"].as_str().unwrap().starts_with("FROM tiny/gemma\nPARAMETER temperature 1\n")
        );
    }
    let listed = server.get("/v1/models").json();
    assert_eq!(listed["data"][0]["capabilities"], json!(["completion", "tools", "thinking"]));
    server.post("/api/show", &json!({ "model": "unknown" })).ollama_error(404);
    let images = Fixture::with_images(Mock::new(), Config::default(), false);
    let capabilities = &images.get("/api/tags").json()["models"][0]["capabilities"];
    assert_eq!(capabilities, &json!(["completion", "vision"]));
    // The model that stays loaded is always there.
    let running = server.get("/api/ps").json();
    assert_eq!(running["models"][0]["name"], MODEL);
    assert_eq!(running["models"][0]["context_length"], 4096);
}

#[test]
fn clients_find_a_server_at_the_root() {
    for webui in [true, false] {
        let server = Fixture::with_config(Mock::new(), Config { webui, ..Config::default() });
        assert_eq!(server.get("/").status, 200);
        assert_eq!(ureq::head(server.url("/")).call().unwrap().status(), 200);
    }
}

/// The names of the loaded models.
fn running(server: &Fixture) -> Vec<String> {
    let models = server.get("/api/ps").json()["models"].take();
    models.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

fn two_at_a_time() -> server::PoolOptions {
    server::PoolOptions { memory_budget: 2, ..one_at_a_time() }
}

#[test]
fn an_empty_request_loads_or_unloads_a_model() {
    let loader = TestLoader::new();
    let server = server(&loader, two_at_a_time());
    let load = |path: &str, more: Value| {
        let mut body = json!({ "model": "a" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let got = server.post(path, &body);
        assert_eq!(got.status, 200, "{}", got.body);
        let got = got.json();
        assert_eq!((&got["done"], &got["model"]), (&json!(true), &json!("a")));
        got["done_reason"].as_str().unwrap().to_owned()
    };
    for (path, more) in [
        (GENERATE, json!({})),
        (GENERATE, json!({ "prompt": "", "stream": false })),
        (CHAT, json!({})),
        (CHAT, json!({ "messages": [], "keep_alive": "5m" })),
        (CHAT, json!({ "messages": [], "keep_alive": -1 })),
    ] {
        assert_eq!(load(path, more), "load");
        assert_eq!(running(&server), ["a"]);
        for unload in [json!({ "keep_alive": 0 }), json!({ "keep_alive": "0s" })] {
            // Also if it is not loaded any more.
            assert_eq!(load(path, unload), "unload");
            server.wait_for("the model is unloaded", || loader.used.load(Ordering::SeqCst) == 0);
        }
        server.wait_for("no model is shown", || running(&server).is_empty());
    }
    assert_eq!(loader.loads.lock().unwrap().len(), 5);
    for keep_alive in [json!(0), json!("5m")] {
        server.post(CHAT, &json!({ "model": "unknown", "keep_alive": keep_alive })).ollama_error(404);
    }
    server.post(CHAT, &json!({ "model": "broken" })).ollama_error(503);
}

#[test]
fn keep_alive_decides_when_a_model_is_unloaded() {
    let loader = TestLoader::new();
    let server = server(&loader, two_at_a_time());
    let generate = |model: &str, keep_alive: Value| {
        let options = json!({ "num_predict": 2, "seed": 1 });
        let body = json!({ "model": model, "prompt": "say", "options": options, "keep_alive": keep_alive });
        lines(&server, GENERATE, &body)
    };
    assert_eq!(generate("a", json!(0)).last().unwrap()["done_reason"], "length");
    server.wait_for("a is unloaded at once", || loader.used.load(Ordering::SeqCst) == 0);
    generate("a", json!("1h"));
    generate("b", json!(-1));
    let mut names = running(&server);
    names.sort();
    assert_eq!(names, ["a", "b"]);
    let models = server.get("/api/ps").json()["models"].take();
    let expires = |name: &str| {
        let model = models.as_array().unwrap().iter().find(|model| model["name"] == name).unwrap();
        model["expires_at"].as_str().unwrap()[..4].parse::<u32>().unwrap()
    };
    // In an hour, and in a hundred years.
    assert!(expires("b") - expires("a") > 90);
    generate("b", json!("1ms"));
    server.wait_for("b is unloaded after its time", || running(&server) == ["a"]);
    // A model that cannot be loaded again stays.
    let one = Fixture::new();
    one.post(GENERATE, &json!({ "model": MODEL, "keep_alive": 0 }));
    assert_eq!(one.post(GENERATE, &json!({ "model": MODEL, "prompt": "say" })).status, 200);
}

/// A store that pulls nothing.
#[derive(Default)]
struct FakeStore {
    pulled: Mutex<Vec<String>>,
    running: AtomicUsize,
    most: AtomicUsize,
    /// "slow" ends once this is set.
    open: AtomicBool,
    cancelled: AtomicUsize,
    deleted: Mutex<Vec<String>>,
}

impl ModelStore for FakeStore {
    fn pull(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress),
        cancel: &AtomicBool,
    ) -> Result<(), StoreError> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let mut result = Ok(());
        let mut download = |completed| {
            progress(PullProgress::Download { digest: "sha256:1".to_owned(), completed, total: 4 })
        };
        match name {
            "missing" => result = Err(StoreError::NotFound),
            "full" => {
                download(1);
                result = Err(StoreError::Failed("the disk is full".to_owned()));
            }
            "slow" => {
                while !self.open.load(Ordering::SeqCst) && !cancel.load(Ordering::SeqCst) {
                    download(1);
                    std::thread::sleep(Duration::from_millis(2));
                }
                if cancel.load(Ordering::SeqCst) {
                    self.cancelled.fetch_add(1, Ordering::SeqCst);
                    result = Err(StoreError::Failed("cancelled".to_owned()));
                }
            }
            _ => {
                [0, 2, 4].into_iter().for_each(&mut download);
                progress(PullProgress::Status("verifying sha256 digest".to_owned()));
            }
        }
        self.pulled.lock().unwrap().push(name.to_owned());
        self.running.fetch_sub(1, Ordering::SeqCst);
        result
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.deleted.lock().unwrap().push(name.to_owned());
        match name {
            "b" => Err(StoreError::Failed("it is being pulled".to_owned())),
            "c" => Err(StoreError::NotFound),
            _ => Ok(()),
        }
    }
}

fn with_store(loader: &Arc<TestLoader>) -> (Fixture, Arc<FakeStore>) {
    let store = Arc::<FakeStore>::default();
    let models = Models::on_demand(Arc::new(Handle(loader.clone())), two_at_a_time());
    let models = models.with_store(store.clone());
    (Fixture::with_models(Arc::new(Mock::new()), models, Config::default()), store)
}

#[test]
fn a_pull_reports_its_progress() {
    let (server, store) = with_store(&TestLoader::new());
    let progress = |completed: u64| json!({ "status": "pulling sha256:1", "digest": "sha256:1", "total": 4, "completed": completed });
    let expected = [
        json!({ "status": "pulling manifest" }),
        progress(0),
        progress(2),
        progress(4),
        json!({ "status": "verifying sha256 digest" }),
        json!({ "status": "success" }),
    ];
    for name in ["gemma3", "gemma3:latest"] {
        assert_eq!(lines(&server, "/api/pull", &json!({ "model": name })), expected);
    }
    let whole = server.post("/api/pull", &json!({ "name": "gemma3", "stream": false, "insecure": true }));
    assert_eq!(whole.json(), json!({ "status": "success" }));
    assert_eq!(*store.pulled.lock().unwrap(), ["gemma3"; 3]);
    server.wait_metric("indrik_http_requests_total{outcome=\"success\"} 3");
}

#[test]
fn a_pull_that_fails_says_why() {
    let (server, _) = with_store(&TestLoader::new());
    let got = lines(&server, "/api/pull", &json!({ "model": "full" }));
    assert_eq!(got.last().unwrap(), &json!({ "error": "the disk is full" }));
    let got = lines(&server, "/api/pull", &json!({ "model": "missing" }));
    assert!(got[1]["error"].as_str().unwrap().starts_with("model 'missing' not found"), "{got:?}");
    let whole = |name: &str| server.post("/api/pull", &json!({ "model": name, "stream": false }));
    assert_eq!(whole("full").ollama_error(500), "the disk is full");
    whole("missing").ollama_error(404);
    server.wait_metric("indrik_http_requests_total{outcome=\"store_failed\"} 2");
    server.wait_metric("indrik_http_requests_total{outcome=\"model_not_found\"} 2");
}

/// Starts a pull and reads two lines of its progress.
fn start_pull(server: &Fixture) -> TcpStream {
    let body = json!({ "model": "slow" }).to_string();
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "POST /api/pull HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").unwrap();
    write!(stream, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.filter(|line| line.contains("completed")).take(2).count(), 2);
    stream
}

#[test]
fn a_client_that_disconnects_cancels_its_pull() {
    let (server, store) = with_store(&TestLoader::new());
    drop(start_pull(&server));
    server.wait_for("the pull is cancelled", || store.cancelled.load(Ordering::SeqCst) == 1);
    server.wait_metric("indrik_http_requests_total{outcome=\"client_disconnected\"} 1");
}

#[test]
fn a_model_is_pulled_once_at_a_time() {
    let (server, store) = with_store(&TestLoader::new());
    std::thread::scope(|scope| {
        let first = start_pull(&server);
        let others: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| lines(&server, "/api/pull", &json!({ "model": "slow:latest" }))))
            .collect();
        // Another model need not wait.
        assert_eq!(lines(&server, "/api/pull", &json!({ "model": "fast" })).len(), 6);
        assert!(others.iter().all(|other| !other.is_finished()));
        assert_eq!(store.running.load(Ordering::SeqCst), 1);
        // The next one goes on where a client is gone.
        drop(first);
        server.wait_for("the first pull is cancelled", || store.cancelled.load(Ordering::SeqCst) == 1);
        store.open.store(true, Ordering::SeqCst);
        for other in others {
            assert_eq!(other.join().unwrap().last().unwrap(), &json!({ "status": "success" }));
        }
    });
    // "slow" and "fast" at most.
    assert!(store.most.load(Ordering::SeqCst) <= 2);
}

#[test]
fn a_model_that_is_deleted_is_unloaded() {
    let loader = TestLoader::new();
    let (server, store) = with_store(&loader);
    server.post(GENERATE, &json!({ "model": "a" }));
    assert_eq!(running(&server), ["a"]);
    let got = server.delete_body("/api/delete", &json!({ "model": "a:latest" }));
    assert_eq!((got.status, got.body.as_str()), (200, ""));
    server.wait_for("it is unloaded", || loader.used.load(Ordering::SeqCst) == 0);
    server.delete_body("/api/delete", &json!({ "model": "unknown" })).ollama_error(404);
    assert_eq!(
        server.delete_body("/api/delete", &json!({ "name": "b" })).ollama_error(500),
        "it is being pulled"
    );
    server.delete_body("/api/delete", &json!({ "model": "c" })).ollama_error(404);
    assert_eq!(*store.deleted.lock().unwrap(), ["a", "b", "c"]);
}
