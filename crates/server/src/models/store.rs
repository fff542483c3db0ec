//! The store of models on disk, as far as clients may change it.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// A store of models that clients may change. Its methods may block.
pub trait ModelStore: Send + Sync + 'static {
    /// Downloads a model, unless the store has it. Ends early, with any result, once `cancel` is set; what was
    /// downloaded until then is kept for the next pull.
    fn pull(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress),
        cancel: &AtomicBool,
    ) -> Result<(), StoreError>;

    /// Deletes a model from the store.
    fn delete(&self, name: &str) -> Result<(), StoreError>;
}

/// Progress of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullProgress {
    /// What the pull does now.
    Status(String),
    /// Bytes so far.
    Download {
        /// What is downloaded: a digest, or a name.
        digest: String,
        /// Bytes that are on disk.
        completed: u64,
        /// Bytes of the model.
        total: u64,
    },
}

/// Why a model was not pulled or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No model has this name.
    NotFound,
    /// Something else, with the reason.
    Failed(String),
}

/// Maximum number of pulls at once, each with its own connections.
const MAX_PULLS: usize = 4;

/// The pulls of a server: each model is pulled once at a time.
pub(crate) struct Pulls {
    /// By the model's name.
    running: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
    slots: Arc<Semaphore>,
}

/// The right to pull a model.
pub(crate) struct PullTurn {
    _model: OwnedMutexGuard<()>,
    _slot: OwnedSemaphorePermit,
}

impl Default for Pulls {
    fn default() -> Pulls {
        Pulls { running: Mutex::default(), slots: Arc::new(Semaphore::new(MAX_PULLS)) }
    }
}

impl Pulls {
    /// Waits until no other request pulls the model, and not too many others are pulled.
    pub(crate) async fn turn(&self, name: &str) -> PullTurn {
        let model = self.lock_of(name).lock_owned().await;
        let slot = self.slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        PullTurn { _model: model, _slot: slot }
    }

    fn lock_of(&self, name: &str) -> Arc<AsyncMutex<()>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = running.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::<AsyncMutex<()>>::default();
        running.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }
}
