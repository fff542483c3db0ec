//! OpenAI-compatible HTTP API for a loaded model.

use std::{net::SocketAddr, sync::Arc};

use axum::Router;
use server::{Config, EngineSlot, Handle, Server};

use crate::{Model, Result};

/// The routes of the API (`/v1/...`, `/health`, `/ready`, `/metrics`, `/openapi.json`), to merge into your
/// own application. `id` is the model's name in requests; the file name if `None`.
///
/// Every clone of the router keeps the model loaded. [`Handle::drain`] makes it refuse new requests.
///
/// The router enforces the per-request limits of `config`. Limits on connections (header and stall timeouts,
/// maximum number of connections) are up to the application's own listener.
pub fn router(model: &Model, id: Option<String>, config: Config) -> Result<(Router, Handle)> {
    Ok(server::router(config, model.files().served_as(id)?, engine_slot(model)?)?)
}

/// Binds the HTTP server to an address; port 0 selects any free port. [`Server::run`] then serves requests.
pub async fn bind(model: &Model, address: SocketAddr, id: Option<String>, config: Config) -> Result<Server> {
    Ok(Server::bind(address, config, model.files().served_as(id)?, engine_slot(model)?).await?)
}

/// Serves the API until the future is dropped.
pub async fn serve(model: &Model, address: SocketAddr, config: Config) -> Result<()> {
    bind(model, address, None, config).await?.run().await;
    Ok(())
}

/// The model's engine for the server. The slot holds a clone of the model, which keeps it loaded.
fn engine_slot(model: &Model) -> Result<Arc<EngineSlot>> {
    let engine = model.engine()?;
    let loaded = model.clone();
    let slot = EngineSlot::new(engine.capacity().context_length, "starting").with_gauges(move |_| {
        let _ = &loaded;
        vec![]
    });
    slot.fill(engine);
    Ok(Arc::new(slot))
}
