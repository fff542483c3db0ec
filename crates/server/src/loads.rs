//! What gateways ask a worker for beside its API: its load (`/v1/loads`) and what it serves (`/version`,
//! `/server_info`, `/model_info`), in the form of SGLang, whose gateway reads them.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::models::ModelDescription;
use crate::state::AppState;
use crate::time::rfc3339_micros;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Response of `/v1/loads`.
#[derive(Debug, Serialize)]
pub(crate) struct Loads {
    timestamp: String,
    version: &'static str,
    dp_rank_count: u32,
    /// One entry: there is one engine per model, and all models of a server share its device.
    loads: [Load; 1],
}

/// The load of the server.
#[derive(Debug, Serialize)]
struct Load {
    dp_rank: u32,
    num_running_reqs: usize,
    num_waiting_reqs: usize,
    num_total_reqs: usize,
    num_used_tokens: u64,
    max_total_num_tokens: u64,
    /// Used tokens as a fraction of all.
    token_usage: f64,
    /// Generated tokens per second.
    gen_throughput: f64,
    /// Fraction of prompt tokens that were in the prefix cache.
    cache_hit_rate: f64,
    /// Running requests as a fraction of the batch size.
    utilization: f64,
    max_running_requests: u32,
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// `GET /v1/loads`. The query selects sections of which there is only this one.
pub(crate) async fn loads(State(app): State<Arc<AppState>>) -> Json<Loads> {
    let engines = app.models.engines();
    let mut load = Load {
        dp_rank: 0,
        num_running_reqs: 0,
        num_waiting_reqs: 0,
        num_total_reqs: 0,
        num_used_tokens: 0,
        max_total_num_tokens: 0,
        token_usage: 0.0,
        gen_throughput: 0.0,
        cache_hit_rate: 0.0,
        utilization: 0.0,
        max_running_requests: 0,
    };
    let (mut cached, mut prompt) = (0, 0);
    for engine in &engines {
        let (status, capacity) = (&engine.status, engine.capacity.as_ref());
        let page_size = capacity.map_or(0, |capacity| u64::from(capacity.page_size));
        load.num_running_reqs += status.prefilling + status.decoding;
        load.num_waiting_reqs += status.waiting;
        load.num_used_tokens += u64::from(status.pages.total.saturating_sub(status.pages.free)) * page_size;
        load.max_total_num_tokens += u64::from(status.pages.total) * page_size;
        load.max_running_requests += capacity.map_or(0, |capacity| capacity.max_sequences);
        cached += status.cached_tokens;
        prompt += status.cached_tokens + status.prompt_tokens;
    }
    let current = app.models.current();
    let recent = current.and_then(|current| current.recent.generation_tokens_per_second);
    load.num_total_reqs = load.num_running_reqs + load.num_waiting_reqs;
    load.token_usage = ratio(load.num_used_tokens as f64, load.max_total_num_tokens as f64);
    load.gen_throughput = recent.unwrap_or_default();
    load.cache_hit_rate = ratio(cached as f64, prompt as f64);
    load.utilization = ratio(load.num_running_reqs as f64, f64::from(load.max_running_requests));
    Json(Loads {
        timestamp: rfc3339_micros(SystemTime::now()),
        version: VERSION,
        dp_rank_count: 1,
        loads: [load],
    })
}

/// `GET /version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

/// The model that the server is asked about: the one that was used last, or else the first.
async fn model(app: &AppState) -> Result<Option<ModelDescription>, Error> {
    let current = app.models.current().map(|current| current.id);
    let mut models = app.models.list().await?;
    let index = models.iter().position(|model| current.as_ref().is_none_or(|id| model.id == *id));
    Ok((!models.is_empty()).then(|| models.swap_remove(index.unwrap_or(0))))
}

/// `GET /server_info`.
pub(crate) async fn server_info(State(app): State<Arc<AppState>>) -> Result<Json<Value>, Error> {
    let model = model(&app).await?;
    let id = model.as_ref().map(|model| &model.id);
    let current = app.models.current();
    let capacity = current.as_ref().and_then(|current| current.capacity);
    let tokens = capacity.map(|capacity| u64::from(capacity.pages) * u64::from(capacity.page_size));
    Ok(Json(json!({
        "engine": "indrik",
        "version": VERSION,
        "served_model_name": id,
        "model_path": id,
        "is_embedding": model.as_ref().map(ModelDescription::embeds),
        "context_length": current.as_ref().map(|current| current.context_length),
        "max_total_tokens": tokens,
        "max_running_requests": capacity.map(|capacity| capacity.max_sequences),
        "page_size": capacity.map(|capacity| capacity.page_size),
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
    })))
}

/// `GET /model_info`.
pub(crate) async fn model_info(State(app): State<Arc<AppState>>) -> Result<Json<Value>, Error> {
    let model = model(&app).await?;
    Ok(Json(json!({
        "model_path": model.as_ref().map(|model| &model.id),
        "model_type": model.as_ref().map(|model| &model.facts.architecture),
        "is_generation": model.as_ref().map(|model| !model.embeds()),
        "has_image_understanding": model.as_ref().map(ModelDescription::takes_images),
        "has_audio_understanding": false,
    })))
}
