//! Several models in one server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use engine::testing::{MockBackend, MockOptions};
use engine::{BackendError, Engine, Options};
use serde_json::json;
use server::{
    Config, LoadControl, LoadedModel, ModelDescription, ModelLoader, Models, OpenModel, PoolOptions,
};

use crate::common::{Fixture, Mock, completion, model, tokenizer};

/// Models "a", "b", … of one unit each, and "large" of ten.
#[derive(Default)]
pub(crate) struct TestLoader {
    /// Loads wait until this is set.
    open: (Mutex<bool>, Condvar),
    /// Units in use, and the most that ever were.
    pub(crate) used: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    pub(crate) loads: Arc<Mutex<Vec<String>>>,
    errors: Mutex<Vec<(u64, BackendError)>>,
}

impl TestLoader {
    pub(crate) fn new() -> Arc<TestLoader> {
        let loader = TestLoader::default();
        *loader.open.0.lock().unwrap() = true;
        Arc::new(loader)
    }

    fn closed() -> Arc<TestLoader> {
        Arc::default()
    }

    fn open(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }
}

fn names() -> [&'static str; 6] {
    ["a", "b", "c", "broken", "panics", "large"]
}

fn description(id: &str) -> ModelDescription {
    let aliases = vec![format!("{id}:latest")];
    ModelDescription { id: id.to_owned(), aliases, created: 1_700_000_000, ..Default::default() }
}

pub(crate) struct Handle(pub(crate) Arc<TestLoader>);

impl ModelLoader for Handle {
    fn list(&self) -> Vec<ModelDescription> {
        names().map(description).to_vec()
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn OpenModel>>, String> {
        let found = self.list().into_iter().find(|model| model.is_named(name));
        Ok(found.map(|description| Box::new(Opened { description, loader: self.0.clone() }) as _))
    }
}

struct Opened {
    description: ModelDescription,
    loader: Arc<TestLoader>,
}

/// A model's memory.
struct Memory(Arc<AtomicU64>);

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl OpenModel for Opened {
    fn description(&self) -> &ModelDescription {
        &self.description
    }

    fn memory(&self) -> u64 {
        if self.description.id == "large" { 10 } else { 1 }
    }

    fn load(self: Box<Self>, progress: &LoadControl) -> Result<LoadedModel, String> {
        let loader = &self.loader;
        progress.set_stage("the weights are loading");
        let mut open = loader.open.0.lock().unwrap();
        while !*open && !progress.is_cancelled() {
            open = loader.open.1.wait_timeout(open, Duration::from_millis(5)).unwrap().0;
        }
        if progress.is_cancelled() {
            return Err("cancelled".to_owned());
        }
        loader.loads.lock().unwrap().push(self.description.id.clone());
        drop(open);
        assert_ne!(self.description.id, "panics", "panic requested by the test");
        if self.description.id == "broken" {
            return Err("the file ends early".to_owned());
        }
        let used = loader.used.fetch_add(1, Ordering::SeqCst) + 1;
        loader.most.fetch_max(used, Ordering::SeqCst);
        let errors = loader.errors.lock().unwrap().drain(..).collect();
        // Models give different tokens.
        let vocab_size = 300 + u32::from(self.description.id.as_bytes()[0]);
        let capacity = engine::Capacity { vocab_size, ..MockOptions::default().capacity };
        let options = MockOptions { errors, capacity, ..MockOptions::default() };
        let engine = Engine::start(MockBackend::new(options), Options::default()).unwrap();
        let mut model = model(&self.description.id, tokenizer(), None);
        model.aliases = self.description.aliases.clone();
        Ok(LoadedModel::new(model, Arc::new(engine)).keeping(Memory(loader.used.clone())))
    }
}

pub(crate) fn server(loader: &Arc<TestLoader>, options: PoolOptions) -> Fixture {
    let models = Models::on_demand(Arc::new(Handle(loader.clone())), options);
    Fixture::with_models(Arc::new(Mock::new()), models, Config::default())
}

pub(crate) fn one_at_a_time() -> PoolOptions {
    PoolOptions { memory_budget: 1, ..PoolOptions::default() }
}

fn request(model: &str, seed: u64) -> serde_json::Value {
    completion(json!({ "model": model, "max_tokens": 5, "seed": seed, "temperature": 1 }))
}

#[test]
fn a_server_is_ready_once_its_models_are_loaded() {
    let loader = TestLoader::closed();
    // The device is lost at the third call, a step; the completion is the same.
    *loader.errors.lock().unwrap() = vec![(2, BackendError::DeviceLost("lost".to_owned()))];
    let server = server(&loader, PoolOptions { preload: vec!["a".to_owned()], ..one_at_a_time() });
    let pool = server.pool.clone();
    let preload = server.runtime.spawn(async move { pool.preload().await });
    assert_eq!(server.get("/health").status, 200);
    server.wait_for("the load has begun", || {
        server.get("/ready").error(503, "not_ready").0.contains("the weights are loading")
    });
    server.post("/v1/completions", &request("a", 3)).error(503, "not_ready");
    loader.open();
    server.runtime.block_on(preload).unwrap().unwrap();
    assert_eq!(server.get("/ready").json(), json!({ "status": "ready" }));
    let got = server.post("/v1/completions", &request("a", 3)).json();
    assert_eq!(got["usage"]["completion_tokens"], 5, "{got}");
    server.wait_metric("indrik_device_lost_total 1");
    let undisturbed = self::server(&TestLoader::new(), one_at_a_time());
    let expected = undisturbed.post("/v1/completions", &request("a", 3)).json();
    assert_eq!(got["choices"], expected["choices"]);
}

#[test]
fn a_model_that_cannot_be_preloaded_is_an_error() {
    let server =
        server(&TestLoader::new(), PoolOptions { preload: vec!["broken".to_owned()], ..one_at_a_time() });
    let error = server.runtime.block_on(server.pool.preload()).unwrap_err();
    assert_eq!(error, "broken: the file ends early");
    server.get("/ready").error(503, "not_ready");
}

#[test]
fn all_models_are_listed_loaded_or_not() {
    let loader = TestLoader::new();
    let server = server(&loader, one_at_a_time());
    let listed = server.get("/v1/models").json();
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, names());
    assert_eq!(server.get("/v1/models/b:latest").json()["id"], "b");
    assert!(loader.loads.lock().unwrap().is_empty());
    server.get("/v1/models/unknown").error(404, "model_not_found");
    let openapi = server.get("/openapi.json").json();
    let named = &openapi["components"]["schemas"]["Options"]["properties"]["model"]["enum"];
    assert_eq!(named.as_array().unwrap().len(), 2 * names().len());
}

#[test]
fn a_model_that_cannot_be_used_is_an_error_with_the_reason() {
    let server = server(&TestLoader::new(), one_at_a_time());
    server.post("/v1/completions", &request("unknown", 1)).error(404, "model_not_found");
    let (message, _) = server.post("/v1/completions", &request("broken", 1)).error(503, "model_unavailable");
    assert!(message.contains("the file ends early"), "{message}");
    let (message, _) = server.post("/v1/completions", &request("large", 1)).error(503, "model_unavailable");
    assert!(message.contains("--memory-budget"), "{message}");
    let (message, _) = server.post("/v1/completions", &request("panics", 1)).error(503, "model_unavailable");
    assert!(message.contains("panicked"), "{message}");
    // The server works on.
    assert_eq!(server.post("/v1/completions", &request("a", 1)).status, 200);
    assert_eq!(server.post("/v1/completions", &request("a:latest", 1)).status, 200);
}

/// Two models take turns under a budget for one: no request is lost or wrong, and never are both in memory.
#[test]
fn models_take_turns_under_a_budget_for_one() {
    let expected: Vec<serde_json::Value> = ["a", "b"]
        .iter()
        .flat_map(|model| {
            let alone = server(&TestLoader::new(), one_at_a_time());
            (0..5).map(|seed| text(&alone, model, seed)).collect::<Vec<_>>()
        })
        .collect();
    assert_ne!(expected[0], expected[5]);
    let loader = TestLoader::new();
    let server = server(&loader, one_at_a_time());
    // One after the other, then eight at once.
    for turn in 0..10 {
        let (model, seed) = (["a", "b"][turn % 2], turn / 2 % 5);
        assert_eq!(text(&server, model, seed), expected[turn % 2 * 5 + seed]);
    }
    assert_eq!(loader.loads.lock().unwrap().len(), 10);
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for turn in 0..25 {
                    let (model, seed) = ((client + turn) % 2, (client * 3 + turn) % 5);
                    assert_eq!(text(server, ["a", "b"][model], seed), expected[model * 5 + seed]);
                }
            });
        }
    });
    assert_eq!(loader.most.load(Ordering::SeqCst), 1);
    server.wait_metric("indrik_engine_requests_total{outcome=\"finished\"} 210");
    server.runtime.block_on(async {
        tokio::task::spawn_blocking({
            let pool = server.pool.clone();
            move || pool.stop()
        })
        .await
        .unwrap()
    });
    assert_eq!(loader.used.load(Ordering::SeqCst), 0);
    server.post("/v1/completions", &request("a", 1)).error(503, "not_ready");
}

fn text(server: &Fixture, model: &str, seed: usize) -> serde_json::Value {
    let response = server.post("/v1/completions", &request(model, seed as u64));
    assert_eq!(response.status, 200, "{}", response.body);
    let mut response = response.json();
    assert_eq!(response["model"], model);
    response["choices"][0]["text"].take()
}

#[test]
fn an_idle_model_is_unloaded_after_its_idle_time() {
    let loader = TestLoader::new();
    let unload_after = Some(Duration::from_millis(1));
    let server = server(&loader, PoolOptions { unload_after, ..one_at_a_time() });
    text(&server, "a", 0);
    server.wait_for("the model is unloaded", || loader.used.load(Ordering::SeqCst) == 0);
    text(&server, "a", 0);
    assert_eq!(loader.loads.lock().unwrap().len(), 2);
}

#[test]
fn a_load_is_shown_and_shared_by_the_requests_that_wait_for_it() {
    let loader = TestLoader::closed();
    let server = server(&loader, one_at_a_time());
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn({
                    let server = &server;
                    move || text(server, "a", seed)
                })
            })
            .collect();
        let loading = json!({ "id": "a", "state": "loading", "stage": "the weights are loading" });
        server.wait_for("the load is shown", || {
            server.get("/ready").json() == json!({ "status": "ready", "models": [loading] })
        });
        loader.open();
        waiting.into_iter().for_each(|request| drop(request.join().unwrap()));
    });
    assert_eq!(loader.loads.lock().unwrap().len(), 1);
}
