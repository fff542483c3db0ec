//! Adds the OpenAI-compatible API to an axum application.
//!
//! ```text
//! cargo run --release -p indrik --example embed_server -- MODEL
//! curl http://127.0.0.1:8006/v1/completions -H 'content-type: application/json' \
//!     -d '{ "model": "local", "prompt": "The mitochondria is" }'
//! ```

use std::error::Error;

use axum::{Router, routing::get};
use indrik::{Model, Options, ServerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: embed_server MODEL")?;
    let options = Options { max_sequences: 4, ..Options::default() };
    // Loading blocks the thread for seconds.
    let model = tokio::task::spawn_blocking(move || Model::open(&path, options)).await??;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8006").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(&model)?).await?;
    Ok(())
}

/// The application: its own route and those of the API.
pub fn app(model: &Model) -> indrik::Result<Router> {
    let (api, _handle) = indrik::router(model, Some("local".to_owned()), ServerConfig::default())?;
    Ok(Router::new().route("/", get(async || "an application with a language model")).merge(api))
}
