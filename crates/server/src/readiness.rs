//! `/ready`: whether requests are accepted and the GPU executes work. Gateways ask often, so they share probes.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use serde::Serialize;

use crate::error::Error;
use crate::models::{LoadState, ModelState, Pool};
use crate::state::AppState;

/// How long the answer to a probe holds. A probe waits for the current step and delays the next one, so that their number
/// must not depend on how many ask.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The last probe of the GPU, which everyone shares who asks within [`PROBE_INTERVAL`].
#[derive(Default)]
pub(crate) struct SharedProbe(Mutex<Option<Probe>>);

struct Probe {
    started: Instant,
    answer: Shared<BoxFuture<'static, bool>>,
}

impl Probe {
    /// Whether it says how the GPU is now. That it did not respond is no answer to those who ask later.
    fn is_current(&self) -> bool {
        match self.answer.peek() {
            None => true,
            Some(responded) => *responded && self.started.elapsed() < PROBE_INTERVAL,
        }
    }
}

impl SharedProbe {
    /// The answer of the current probe, or of a new one. Runs to its end whoever stops waiting for it.
    fn ask(&self, probe: impl Future<Output = bool> + Send + 'static) -> Shared<BoxFuture<'static, bool>> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.is_current()) {
            return last.answer.clone();
        }
        let answer = probe.boxed().shared();
        tokio::spawn(answer.clone());
        *last = Some(Probe { started: Instant::now(), answer: answer.clone() });
        answer
    }
}

/// `GET /ready`.
pub(crate) async fn ready(State(app): State<Arc<AppState>>) -> Result<Response, Error> {
    app.check_ready()?;
    let timeout = app.config.probe_timeout;
    let models = app.models.clone();
    let probe = async move { tokio::time::timeout(timeout, models.probe()).await.unwrap_or(false) };
    if !app.probe.ask(probe).await {
        // If the probe found the device lost, that is the more precise reason.
        app.check_ready()?;
        let reason = format!("the GPU did not respond within {} s", timeout.as_secs_f64());
        return Err(Error::NotReady(reason));
    }
    Ok(Json(Readiness::new(&app.models)).into_response())
}

/// Response of `/ready`.
#[derive(Serialize)]
struct Readiness {
    status: &'static str,
    /// Models that are being loaded or unloaded, or wait for memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models: Vec<ModelReadiness>,
}

#[derive(Serialize)]
struct ModelReadiness {
    id: String,
    state: &'static str,
    /// Of a load.
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<String>,
}

impl Readiness {
    fn new(models: &Pool) -> Readiness {
        let models = models.states().into_iter().filter_map(|ModelState { id, state, .. }| {
            let (state, stage) = match state {
                LoadState::Ready => return None,
                LoadState::Waiting => ("waiting", None),
                LoadState::Loading(stage) => ("loading", Some(stage)),
                LoadState::Draining => ("draining", None),
                LoadState::Unloading => ("unloading", None),
            };
            Some(ModelReadiness { id, state, stage })
        });
        Readiness { status: "ready", models: models.collect() }
    }
}
