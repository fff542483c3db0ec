//! OpenAI-compatible HTTP API for a loaded model.

use std::{net::SocketAddr, sync::Arc};

use axum::Router;
use server::{Config, Handle, LoadedModel, Models, Server};

use crate::{Model, Result};

/// The routes of the API (`/v1/...`, `/health`, `/ready`, `/metrics`, `/openapi.json`), to merge into your
/// own application. `id` is the model's name in requests; the file name if `None`.
///
/// Every clone of the router keeps the model loaded. [`Handle::drain`] makes it refuse new requests.
///
/// The router enforces the per-request limits of `config`. Limits on connections (header and stall timeouts,
/// maximum number of connections) are up to the application's own listener.
pub fn router(model: &Model, id: Option<String>, config: Config) -> Result<(Router, Handle)> {
    Ok(server::router(config, models(model, id)?)?)
}

/// Binds the HTTP server to an address; port 0 selects any free port. [`Server::run`] then serves requests.
pub async fn bind(model: &Model, address: SocketAddr, id: Option<String>, config: Config) -> Result<Server> {
    Ok(Server::bind(address, config, models(model, id)?).await?)
}

/// Serves the API until the future is dropped.
pub async fn serve(model: &Model, address: SocketAddr, config: Config) -> Result<()> {
    bind(model, address, None, config).await?.run().await;
    Ok(())
}

/// The model for the server, which keeps it loaded.
fn models(model: &Model, id: Option<String>) -> Result<Models> {
    let loaded = LoadedModel::new(model.files().served_as(id)?, Arc::new(model.engine()?));
    Ok(Models::one(loaded.keeping(model.clone())))
}
