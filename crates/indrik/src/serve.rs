//! OpenAI's HTTP API over a loaded model.

use std::{net::SocketAddr, sync::Arc};

use axum::Router;
use server::{Config, EngineSlot, Handle, Server};

use crate::{Model, Result};

/// The routes of the OpenAI API (`/v1/...`, `/health`, `/ready`, `/metrics`, `/openapi.json`), to merge into an
/// application of one's own. `id` is the model's name in requests; the file name if `None`.
///
/// Every clone of the router keeps the model loaded. [`Handle::drain`] makes it refuse new requests.
///
/// The router applies the limits of `config` that concern requests; those that concern connections (header and stall
/// timeouts, the number of connections) are up to the application's own listener.
pub fn router(model: &Model, id: Option<String>, config: Config) -> Result<(Router, Handle)> {
    Ok(server::router(config, model.files().served_as(id)?, generator(model)?)?)
}

/// Binds the OpenAI server to an address; port 0 is any free one. [`Server::run`] serves.
pub async fn bind(model: &Model, address: SocketAddr, id: Option<String>, config: Config) -> Result<Server> {
    Ok(Server::bind(address, config, model.files().served_as(id)?, generator(model)?).await?)
}

/// Serves the OpenAI API until the future is dropped.
pub async fn serve(model: &Model, address: SocketAddr, config: Config) -> Result<()> {
    bind(model, address, None, config).await?.run().await;
    Ok(())
}

/// The model's engine for the server, with the model kept loaded for as long as the server exists.
fn generator(model: &Model) -> Result<Arc<EngineSlot>> {
    let engine = model.engine()?;
    let keep = model.clone();
    let slot = EngineSlot::new(engine.capacity().context_length, "starting").with_gauges(move |_| {
        let _ = &keep;
        vec![]
    });
    slot.fill(engine);
    Ok(Arc::new(slot))
}
