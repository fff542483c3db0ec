//! The models of a server: one that is loaded already, or several that are loaded when requests name them.

mod description;
mod lease;
mod pool;
mod state;
mod store;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use engine::Status;
use serde::Serialize;

use crate::config::Model;
use crate::embedder::{Embedder, EmbeddingModel};
use crate::generator::{Gauge, Generator};
use crate::stats::HardwareStats;

pub use description::{Capability, ModelDescription, ModelFacts};
pub(crate) use description::{find_named, without_default_tag};
pub(crate) use lease::{AnyLease, Lease};
pub use pool::Pool;
pub(crate) use pool::{EngineState, LoadState, ModelState};
pub(crate) use store::Pulls;
pub use store::{ModelStore, PullProgress, StoreError};

/// The models that a server offers.
pub struct Models {
    pub(crate) source: Source,
    pub(crate) machine: Option<Arc<dyn Machine>>,
    pub(crate) store: Option<Arc<dyn ModelStore>>,
}

/// Where models come from.
pub(crate) enum Source {
    /// One model, which stays loaded.
    One(Box<LoadedModel>),
    /// Models that are loaded when they are needed.
    OnDemand(Arc<dyn ModelLoader>, PoolOptions),
}

impl Models {
    /// One model, which is loaded already and stays loaded.
    pub fn one(model: LoadedModel) -> Models {
        Models { source: Source::One(Box::new(model)), machine: None, store: None }
    }

    /// Models that are loaded when requests name them, and unloaded when others need their memory.
    pub fn on_demand(loader: Arc<dyn ModelLoader>, options: PoolOptions) -> Models {
        Models { source: Source::OnDemand(loader, options), machine: None, store: None }
    }

    /// Adds the machine to `/metrics` and `/stats`.
    pub fn with_machine(self, machine: Arc<dyn Machine>) -> Models {
        Models { machine: Some(machine), ..self }
    }

    /// Lets clients pull models to a store, and delete them. All of its models must be offered.
    pub fn with_store(self, store: Arc<dyn ModelStore>) -> Models {
        Models { store: Some(store), ..self }
    }
}

/// How models share the memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Models to load before requests are accepted, by name.
    pub preload: Vec<String>,
    /// Whether requests may name only one model: they are refused early then, if its queue is full.
    pub is_single: bool,
    /// Bytes for all loaded models together.
    pub memory_budget: u64,
    /// Time after its last request when a model is unloaded. `None`: only when another one needs its memory.
    pub unload_after: Option<Duration>,
    /// Maximum time that a request waits for its model.
    pub load_timeout: Duration,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            preload: vec![],
            is_single: false,
            memory_budget: u64::MAX,
            unload_after: None,
            load_timeout: Duration::from_secs(300),
        }
    }
}

/// The machine that runs the models. Its methods may block.
pub trait Machine: Send + Sync + 'static {
    /// Additional gauges for `/metrics`.
    fn gauges(&self, status: &Status) -> Vec<Gauge>;

    /// The device and the machine, for `/stats`.
    fn hardware(&self, status: &Status) -> HardwareStats;

    /// Operations that may run on an NPU, for `/health`. Does not block.
    fn npu_operations(&self) -> Vec<NpuOperation> {
        vec![]
    }
}

/// An operation that may run on an NPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NpuOperation {
    /// The operation and its model.
    pub name: String,
    /// Whether the NPU computes its matrix products now.
    pub uses_npu: bool,
    /// Why it does or does not.
    pub reason: String,
    /// Matrix products that the NPU has computed.
    pub products: u64,
    /// Fallbacks to the GPU after an error.
    pub fallbacks: u64,
    /// System memory of the copy of its weights for the NPU.
    pub weight_bytes: u64,
}

/// Finds and loads models.
pub trait ModelLoader: Send + Sync + 'static {
    /// The models that requests may name. May block.
    fn list(&self) -> Vec<ModelDescription>;

    /// Opens the files of a model; `None` if no model has this name. May block.
    fn open(&self, name: &str) -> Result<Option<Box<dyn OpenModel>>, String>;
}

/// A model whose files are open.
pub trait OpenModel: Send + 'static {
    /// Its names.
    fn description(&self) -> &ModelDescription;

    /// Bytes of device memory that the model takes once it is loaded.
    fn memory(&self) -> u64;

    /// Loads the model. Dropping the result must free its memory.
    fn load(self: Box<Self>, progress: &LoadControl) -> Result<LoadedModel, String>;
}

/// A model in device memory.
pub struct LoadedModel {
    pub(crate) kind: LoadedKind,
    /// What else belongs to it, dropped after the generator.
    pub(crate) resources: Option<Box<dyn Any + Send + Sync>>,
}

/// What a model is for.
pub(crate) enum LoadedKind {
    Language(Box<Model>, Arc<dyn Generator>),
    Embedder(EmbeddingModel, Arc<dyn Embedder>),
}

impl LoadedModel {
    /// A model that generates text.
    pub fn new(model: Model, generator: Arc<dyn Generator>) -> LoadedModel {
        LoadedModel { kind: LoadedKind::Language(Box::new(model), generator), resources: None }
    }

    /// A model that embeds texts.
    pub fn embedder(model: EmbeddingModel, embedder: Arc<dyn Embedder>) -> LoadedModel {
        LoadedModel { kind: LoadedKind::Embedder(model, embedder), resources: None }
    }

    /// Keeps something as long as the model is loaded.
    pub fn keeping(self, resources: impl Any + Send + Sync) -> LoadedModel {
        LoadedModel { resources: Some(Box::new(resources)), ..self }
    }
}

/// Progress of a load, and whether it was cancelled.
#[derive(Debug, Default)]
pub struct LoadControl {
    stage: Mutex<String>,
    cancelled: AtomicBool,
}

impl LoadControl {
    /// Sets the stage that `/ready` shows.
    pub fn set_stage(&self, stage: impl fmt::Display) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage.to_string();
    }

    /// Whether the load should end early, with any result.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stage(&self) -> String {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
