//! Loads models when requests name them, and unloads them when others need their memory.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use engine::{Capacity, RecentStats, Status, SubmitError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::description::without_default_tag;
use super::lease::{embeds_no_texts, generates_no_text};
use super::state::{Effect, Slot, SlotPhase, State, Waiter};
use super::{AnyLease, Lease, LoadControl, ModelDescription, ModelLoader, OpenModel, PoolOptions, Source};
use crate::completion::blocking;
use crate::config::Config;
use crate::error::Error;
use crate::generator::Generator;
use crate::served::{Served, ServedEmbedder};

/// The models of a server. Clones share them.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    loader: Option<Arc<dyn ModelLoader>>,
    load_timeout: Duration,
    /// Whether there is only one model.
    is_single: bool,
    config: Config,
    state: Mutex<State>,
    /// Held while the files of a model are opened.
    opening: tokio::sync::Mutex<()>,
    /// Notified whenever a model was unloaded or a load has ended.
    changed: Condvar,
    /// For timers: models are released on threads of their own, too.
    runtime: OnceLock<Handle>,
    /// Models that have to be loaded before the server is ready.
    starting: Mutex<Vec<String>>,
}

/// What a request needs a model for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Language,
    Embedder,
}

/// Lets the queue advance when a request has stopped waiting.
struct AdvanceOnDrop<'a>(&'a Pool);

impl Drop for AdvanceOnDrop<'_> {
    fn drop(&mut self) {
        let effects = self.0.state().advance();
        self.0.run(effects);
    }
}

/// How far a model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadState {
    /// Waits for memory.
    Waiting,
    /// With the stage.
    Loading(String),
    Ready,
    /// In use, and unloaded after that.
    Draining,
    Unloading,
}

/// A model that is loaded, or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelState {
    pub(crate) id: String,
    pub(crate) state: LoadState,
    /// Memory that it takes.
    pub(crate) bytes: u64,
    /// Requests that use it.
    pub(crate) requests: usize,
    /// Time until it is unloaded, if no request uses it again; `None`: not until its memory is needed.
    pub(crate) expires_in: Option<Duration>,
}

/// What `/stats` shows of the model that was used last.
pub(crate) struct CurrentModel {
    pub(crate) id: String,
    pub(crate) context_length: u32,
    pub(crate) recent: RecentStats,
    pub(crate) capacity: Option<Capacity>,
}

/// A loaded language model's engine.
pub(crate) struct EngineState {
    /// Id of the model.
    pub(crate) id: String,
    pub(crate) status: Status,
    pub(crate) capacity: Option<Capacity>,
}

impl Pool {
    pub(crate) fn new(source: Source, config: &Config) -> io::Result<Pool> {
        let (loader, options, loaded) = match source {
            Source::One(model) => {
                let served = Served::new(*model, config)?;
                (None, PoolOptions::default(), Some(served))
            }
            Source::OnDemand(loader, options) => (Some(loader), options, None),
        };
        let mut state = State::new(options.memory_budget, options.unload_after);
        loaded.into_iter().for_each(|model| state.add_loaded(model));
        Ok(Pool(Arc::new(Inner {
            is_single: options.is_single || loader.is_none(),
            loader,
            load_timeout: options.load_timeout,
            config: config.clone(),
            state: Mutex::new(state),
            opening: tokio::sync::Mutex::default(),
            changed: Condvar::new(),
            runtime: OnceLock::new(),
            starting: Mutex::new(options.preload),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model that is loaded and generates text, to be looked at: that does not count as a use.
    pub(crate) fn peek(&self, name: &str) -> Option<Lease> {
        let model = self.state().slot(name).and_then(Slot::hold)?;
        AnyLease::new(model, self.clone()).language().ok()
    }

    /// A model that is loaded; `None` if it has to be loaded first, or does not exist.
    pub(crate) fn try_acquire(&self, name: &str) -> Option<AnyLease> {
        let model = self.state().acquire(name)?;
        Some(AnyLease::new(model, self.clone()))
    }

    /// A model by one of its names. Loads it if need be, as soon as there is memory. `NAME:latest` is also a name of
    /// `NAME`, unless another model has it.
    pub(crate) async fn acquire(&self, name: &str) -> Result<AnyLease, Error> {
        self.acquire_kind(name, None).await
    }

    /// A model that generates text.
    pub(crate) async fn acquire_language(&self, name: &str) -> Result<Lease, Error> {
        self.acquire_kind(name, Some(Kind::Language)).await?.language()
    }

    /// A model that embeds texts.
    pub(crate) async fn acquire_embedder(&self, name: &str) -> Result<Lease<ServedEmbedder>, Error> {
        self.acquire_kind(name, Some(Kind::Embedder)).await?.embedder()
    }

    async fn acquire_kind(&self, name: &str, kind: Option<Kind>) -> Result<AnyLease, Error> {
        let timeout = Some(self.0.load_timeout);
        match (self.acquire_exact(name, kind, timeout).await, without_default_tag(name)) {
            (Err(unknown @ Error::UnknownModel(_)), Some(plain)) => {
                match self.acquire_exact(plain, kind, timeout).await {
                    Err(Error::UnknownModel(_)) => Err(unknown),
                    acquired => acquired,
                }
            }
            (acquired, _) => acquired,
        }
    }

    /// Waits for the model for `timeout`; without one, as long as it takes.
    async fn acquire_exact(
        &self,
        name: &str,
        kind: Option<Kind>,
        timeout: Option<Duration>,
    ) -> Result<AnyLease, Error> {
        let _ = self.0.runtime.set(Handle::current());
        if let Some(lease) = self.try_acquire(name) {
            return Ok(lease);
        }
        let Some(loader) = self.0.loader.clone() else { return Err(Error::UnknownModel(name.to_owned())) };
        let (waiter, granted) = oneshot::channel();
        // If this request gives up, a model that is drained for it may be kept. Dropped after `granted`.
        let _advance = AdvanceOnDrop(self);
        let granted = granted;
        let mut joined = self.state().wait(name, waiter);
        // One model is opened at a time, so that many requests for one open its files once.
        let opening = match joined {
            Ok(()) => None,
            Err(_) => Some(self.0.opening.lock().await),
        };
        if let Err(waiter) = joined {
            if let Some(lease) = self.try_acquire(name) {
                return Ok(lease);
            }
            joined = self.state().wait(name, waiter);
        }
        if let Err(waiter) = joined {
            let asked = name.to_owned();
            let opened = blocking(move || Ok(loader.open(&asked))).await?;
            match opened {
                Ok(Some(model)) => {
                    // Before others are unloaded for it.
                    let description = model.description();
                    match kind {
                        Some(Kind::Language) if description.embeds() => {
                            return Err(generates_no_text(&description.id));
                        }
                        Some(Kind::Embedder) if !description.embeds() => {
                            return Err(embeds_no_texts(&description.id));
                        }
                        _ => self.enqueue(name, model, waiter)?,
                    }
                }
                Ok(None) => return Err(Error::UnknownModel(name.to_owned())),
                Err(reason) => return Err(Error::ModelUnavailable { model: name.to_owned(), reason }),
            }
        }
        drop(opening);
        let Some(timeout) = timeout else { return granted.await.map_err(|_| Error::Internal)? };
        match tokio::time::timeout(timeout, granted).await {
            Ok(Ok(granted)) => granted,
            Ok(Err(_)) => Err(Error::Internal),
            Err(_) => {
                let reason = format!("it was not loaded within {} s: try again later", timeout.as_secs_f64());
                Err(Error::ModelUnavailable { model: name.to_owned(), reason })
            }
        }
    }

    /// Adds a request for a model that is not loaded.
    fn enqueue(&self, name: &str, model: Box<dyn OpenModel>, waiter: Waiter) -> Result<(), Error> {
        let effects = {
            let mut state = self.state();
            let (id, bytes) = (model.description().id.clone(), model.memory());
            if state.is_stopped {
                return Err(Error::Stopping);
            }
            if bytes > state.memory_budget {
                let reason = format!(
                    "it needs {} of memory, but all models together may take {}: choose a smaller one or a smaller \
                     context, or raise --memory-budget",
                    with_unit(bytes),
                    with_unit(state.memory_budget)
                );
                return Err(Error::ModelUnavailable { model: id, reason });
            }
            // Another request may have come first, also by another name.
            match (state.acquire(&id), waiter) {
                (Some(ready), waiter) => {
                    // The next request with this name need not open the files.
                    state.add_alias(&id, name);
                    vec![Effect::Grant(waiter, ready)]
                }
                (None, waiter) => {
                    if let Err(waiter) = state.wait(&id, waiter) {
                        state.enqueue(model, waiter);
                    }
                    state.advance()
                }
            }
        };
        self.run(effects);
        Ok(())
    }

    pub(super) fn release(&self, id: &str) {
        let effects = self.state().release(id);
        self.0.changed.notify_all();
        self.run(effects);
    }

    /// Sets when a loaded model is unloaded after its last use; `None`: only if its memory is needed. Takes effect when
    /// the requests that use it end.
    pub(crate) fn set_unload_after(&self, name: &str, unload_after: Option<Duration>) {
        // A model that cannot be loaded again stays loaded.
        if self.0.loader.is_some()
            && let Some(slot) = self.state().slot(name)
        {
            slot.unload_after = unload_after;
        }
    }

    /// Unloads a model as soon as no request uses it.
    pub(crate) fn unload(&self, name: &str) {
        self.set_unload_after(name, Some(Duration::ZERO));
        // Releasing the lease applies it.
        drop(self.try_acquire(name));
    }

    fn run(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                // If the request is gone, the lease is dropped.
                Effect::Grant(waiter, model) => drop(waiter.send(Ok(AnyLease::new(model, self.clone())))),
                Effect::Load(model, control) => self.start_load(model, control),
                Effect::Unload(model) => self.start_unload(model),
                Effect::Expire { id, after } => self.start_timer(id, after),
            }
        }
    }

    fn start_load(&self, model: Box<dyn OpenModel>, control: Arc<LoadControl>) {
        let id = model.description().id.clone();
        let (pool, name) = (self.clone(), id.clone());
        tracing::info!(model = id, "loading the model");
        let work = move || {
            let load = || {
                let loaded = model.load(&control)?;
                Served::new(loaded, &pool.0.config).map_err(|error| error.to_string())
            };
            let panicked = |_| Err("loading it panicked: this is a bug; please report it".to_owned());
            pool.loaded(&name, catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(panicked));
        };
        if let Err(error) = std::thread::Builder::new().name("load".into()).spawn(work) {
            self.loaded(&id, Err(error.to_string()));
        }
    }

    fn loaded(&self, id: &str, served: Result<Served, String>) {
        let (served, reason) = match served {
            Ok(served) => (Some(served), String::new()),
            Err(reason) => (None, reason),
        };
        match &served {
            Some(_) => tracing::info!(model = id, "the model is loaded"),
            None => tracing::warn!(model = id, reason, "the model could not be loaded"),
        }
        let (failed, effects) = self.state().loaded(id, served);
        let error = Error::ModelUnavailable { model: id.to_owned(), reason };
        failed.into_iter().for_each(|waiter| drop(waiter.send(Err(error.clone()))));
        self.0.changed.notify_all();
        self.run(effects);
    }

    fn start_unload(&self, model: Served) {
        let (pool, id) = (self.clone(), model.id().to_owned());
        tracing::info!(model = id, "unloading the model");
        let spawned = Arc::new(Mutex::new(Some(model)));
        let moved = spawned.clone();
        let work = move || {
            // Stops the engine's thread and frees the memory, which takes a moment.
            let model = moved.lock().unwrap_or_else(PoisonError::into_inner).take();
            // A panic was reported by its hook; the pool must go on.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(model)));
            pool.unloaded(&id);
        };
        if std::thread::Builder::new().name("unload".into()).spawn(work).is_ok() {
            return;
        }
        // Without a thread, it is freed here.
        let model = spawned.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(id) = model.as_ref().map(|model| model.id().to_owned()) {
            drop(model);
            self.unloaded(&id);
        }
    }

    fn unloaded(&self, id: &str) {
        let effects = self.state().unloaded(id);
        self.0.changed.notify_all();
        self.run(effects);
    }

    fn start_timer(&self, id: String, after: Duration) {
        let Some(runtime) = self.0.runtime.get() else { return };
        let pool: Weak<Inner> = Arc::downgrade(&self.0);
        runtime.spawn(async move {
            tokio::time::sleep(after).await;
            if let Some(pool) = pool.upgrade().map(Pool) {
                let effects = pool.state().expire(&id);
                pool.run(effects);
            }
        });
    }

    /// Loads the models of [`PoolOptions::preload`]. Until this returns, requests are refused.
    pub async fn preload(&self) -> Result<(), String> {
        // Each is removed from the list once it is loaded.
        while let Some(name) = self.first_starting() {
            let loaded = self.acquire_exact(&name, None, None).await;
            loaded.map_err(|error| match error {
                Error::ModelUnavailable { model, reason } => format!("{model}: {reason}"),
                error => error.to_string(),
            })?;
            self.starting().remove(0);
        }
        Ok(())
    }

    fn first_starting(&self) -> Option<String> {
        self.starting().first().cloned()
    }

    fn starting(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels loads and frees the models, and waits until that is done. Requests that still use a model keep it.
    pub fn stop(&self) {
        let (waiters, effects) = self.state().stop();
        waiters.into_iter().for_each(|waiter| drop(waiter.send(Err(Error::Stopping))));
        self.run(effects);
        let is_busy = |slot: &Slot| {
            slot.leases == 0 && matches!(slot.phase, SlotPhase::Loading { .. } | SlotPhase::Unloading(_))
        };
        let mut state = self.state();
        while state.slots.iter().any(is_busy) {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reason that requests are not accepted now; `None` if they are.
    pub(crate) fn not_ready(&self) -> Option<String> {
        let starting = self.first_starting();
        let mut state = self.state();
        if let Some(name) = starting {
            let stage = match state.slot(&name).map(|slot| &slot.phase) {
                Some(SlotPhase::Loading { control, .. }) => control.stage(),
                _ => String::new(),
            };
            return Some(if stage.is_empty() { format!("{name} is loading") } else { stage });
        }
        state.generators().find_map(|generator| generator.not_ready())
    }

    /// The error that any submission would get now, such as a full queue.
    pub(crate) fn would_reject(&self) -> Option<SubmitError> {
        // With several models it depends on the request.
        match self.0.is_single {
            true => self.state().generators().find_map(|generator| generator.would_reject()),
            false => None,
        }
    }

    /// Whether the GPU responds, asked with the language model that was used last; true if none is loaded.
    pub(crate) async fn probe(&self) -> bool {
        // Not a use: probes must not keep a model from being unloaded.
        let held = self.state().current().and_then(Slot::hold);
        match held.map(|model| AnyLease::new(model, self.clone())) {
            Some(AnyLease::Language(lease)) => lease.generator.probe().await,
            Some(AnyLease::Embedder(_)) | None => true,
        }
    }

    /// Counters and gauges of all models together.
    pub(crate) fn status(&self) -> Status {
        let state = self.state();
        let mut status = state.retired.clone();
        for slot in &state.slots {
            match &slot.phase {
                SlotPhase::Ready(model) | SlotPhase::Draining(model) => {
                    model.generator().into_iter().for_each(|generator| status.add(&generator.status()));
                }
                SlotPhase::Unloading(last) => status.add_counters(last),
                SlotPhase::Loading { .. } => {}
            }
        }
        status
    }

    /// The language models that are loaded.
    pub(crate) fn engines(&self) -> Vec<EngineState> {
        let state = self.state();
        let slots = state.slots.iter().filter_map(|slot| match &slot.phase {
            SlotPhase::Ready(model) | SlotPhase::Draining(model) => Some((slot, model.generator()?)),
            SlotPhase::Loading { .. } | SlotPhase::Unloading(_) => None,
        });
        let engine = |(slot, generator): (&Slot, &Arc<dyn Generator>)| EngineState {
            id: slot.description.id.clone(),
            status: generator.status(),
            capacity: generator.capacity(),
        };
        slots.map(engine).collect()
    }

    /// The language model that was used last.
    pub(crate) fn current(&self) -> Option<CurrentModel> {
        let mut state = self.state();
        let slot = state.current()?;
        let (SlotPhase::Ready(model) | SlotPhase::Draining(model)) = &slot.phase else { return None };
        let generator = model.generator()?;
        Some(CurrentModel {
            id: slot.description.id.clone(),
            context_length: generator.context_length(),
            recent: generator.recent(),
            capacity: generator.capacity(),
        })
    }

    /// The models that are loaded or wait for it.
    pub(crate) fn states(&self) -> Vec<ModelState> {
        let state = self.state();
        let slots = state.slots.iter().map(|slot| ModelState {
            id: slot.description.id.clone(),
            state: match &slot.phase {
                SlotPhase::Loading { control, .. } => LoadState::Loading(control.stage()),
                SlotPhase::Ready(_) => LoadState::Ready,
                SlotPhase::Draining(_) => LoadState::Draining,
                SlotPhase::Unloading(_) => LoadState::Unloading,
            },
            bytes: slot.bytes,
            requests: slot.leases,
            expires_in: slot.expires_in(),
        });
        let waiting = state.queue.iter().map(|pending| ModelState {
            id: pending.model.description().id.clone(),
            state: LoadState::Waiting,
            bytes: pending.model.memory(),
            requests: 0,
            expires_in: None,
        });
        slots.chain(waiting).collect()
    }

    /// The models that requests may name.
    pub(crate) async fn list(&self) -> Result<Vec<ModelDescription>, Error> {
        match self.0.loader.clone() {
            Some(loader) => blocking(move || Ok(loader.list())).await,
            None => Ok(self.state().slots.iter().map(|slot| slot.description.clone()).collect()),
        }
    }
}

fn with_unit(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        mebibytes if mebibytes < 1024.0 => format!("{mebibytes:.1} MiB"),
        mebibytes => format!("{:.1} GiB", mebibytes / 1024.0),
    }
}

impl State {
    /// The engines of the models that are loaded.
    fn generators(&self) -> impl Iterator<Item = &Arc<dyn Generator>> {
        self.slots.iter().filter_map(|slot| match &slot.phase {
            SlotPhase::Ready(model) | SlotPhase::Draining(model) => model.generator(),
            SlotPhase::Loading { .. } | SlotPhase::Unloading(_) => None,
        })
    }

    /// The loaded language model that was used last.
    fn current(&mut self) -> Option<&mut Slot> {
        let is_language_model = |slot: &&mut Slot| match &slot.phase {
            SlotPhase::Ready(model) | SlotPhase::Draining(model) => model.generator().is_some(),
            SlotPhase::Loading { .. } | SlotPhase::Unloading(_) => false,
        };
        self.slots.iter_mut().filter(is_language_model).max_by_key(|slot| slot.last_use)
    }
}
