//! Which models are loaded, loading, waiting for memory or being unloaded. Decides; the pool acts.
//!
//! Models wait for memory in one queue, in the order in which they were first requested, and one is loaded at a time.
//! To make room, idle models are unloaded, the least recently used first; if that is not enough, a model in use is
//! drained: requests that come later wait in the queue, behind the models that were requested before them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::Status;
use tokio::sync::oneshot;

use super::{AnyLease, LoadControl, ModelDescription, OpenModel};
use crate::error::Error;
use crate::served::Served;

/// Maximum number of names of a model that are remembered while it is loaded.
const MAX_ALIASES: usize = 16;

/// Receives the model that a request waits for.
pub(super) type Waiter = oneshot::Sender<Result<AnyLease, Error>>;

/// What the pool has to do after a change.
pub(super) enum Effect {
    /// Load a model.
    Load(Box<dyn OpenModel>, Arc<LoadControl>),
    /// Free a model.
    Unload(Served),
    /// Hand a model, which counts as in use, to a request that waits for it.
    Grant(Waiter, Served),
    /// Call [`State::expire`] after this time.
    Expire { id: String, after: Duration },
}

/// A model that takes memory.
pub(super) struct Slot {
    pub(super) description: ModelDescription,
    pub(super) bytes: u64,
    pub(super) phase: SlotPhase,
    /// Requests that use the model.
    pub(super) leases: usize,
    /// Number of the last use, among all models.
    pub(super) last_use: u64,
    /// When it is unloaded after its last use; `None`: only if its memory is needed.
    pub(super) unload_after: Option<Duration>,
    /// End of the last use.
    pub(super) idle_since: Option<Instant>,
    /// Whether a timer runs that will unload it, or start again.
    pub(super) has_timer: bool,
}

pub(super) enum SlotPhase {
    Loading {
        control: Arc<LoadControl>,
        waiters: Vec<Waiter>,
    },
    Ready(Served),
    /// In use, but its memory is needed: it gets no new requests.
    Draining(Served),
    /// With its last counters.
    Unloading(Box<Status>),
}

/// A model that waits for memory.
pub(super) struct Pending {
    pub(super) model: Box<dyn OpenModel>,
    pub(super) waiters: Vec<Waiter>,
}

pub(super) struct State {
    pub(super) memory_budget: u64,
    pub(super) unload_after: Option<Duration>,
    pub(super) slots: Vec<Slot>,
    pub(super) queue: VecDeque<Pending>,
    uses: u64,
    /// Counters of models that are unloaded.
    pub(super) retired: Status,
    /// No model is loaded any more.
    pub(super) is_stopped: bool,
}

impl State {
    pub(super) fn new(memory_budget: u64, unload_after: Option<Duration>) -> State {
        State {
            memory_budget,
            unload_after,
            slots: vec![],
            queue: VecDeque::new(),
            uses: 0,
            retired: Status::default(),
            is_stopped: false,
        }
    }

    /// Adds a model that is loaded and takes no memory of the budget.
    pub(super) fn add_loaded(&mut self, model: Served) {
        let description = ModelDescription::of_served(&model);
        let phase = SlotPhase::Ready(model);
        self.slots.push(Slot {
            description,
            bytes: 0,
            phase,
            leases: 0,
            last_use: 0,
            unload_after: None,
            idle_since: None,
            has_timer: false,
        });
    }

    pub(super) fn slot(&mut self, name: &str) -> Option<&mut Slot> {
        // An id comes before the same alias of another model.
        let by_id = self.slots.iter().position(|slot| slot.description.id == name);
        let index = by_id.or_else(|| self.slots.iter().position(|slot| slot.description.is_named(name)))?;
        self.slots.get_mut(index)
    }

    fn slot_by_id(&mut self, id: &str) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.description.id == id)
    }

    /// Adds a name under which a model was requested.
    pub(super) fn add_alias(&mut self, id: &str, name: &str) {
        let slot = self.slot_by_id(id).filter(|slot| !slot.description.is_named(name));
        if let Some(slot) = slot.filter(|slot| slot.description.aliases.len() < MAX_ALIASES) {
            slot.description.aliases.push(name.to_owned());
        }
    }

    /// Uses a model that is ready.
    pub(super) fn acquire(&mut self, name: &str) -> Option<Served> {
        self.uses += 1;
        let last_use = self.uses;
        let slot = self.slot(name)?;
        slot.last_use = last_use;
        slot.hold()
    }

    /// Adds a request to those that wait for a model. Returns the waiter if the model is neither loading nor in the
    /// queue.
    pub(super) fn wait(&mut self, name: &str, waiter: Waiter) -> Result<(), Waiter> {
        let pending = self.queue.iter_mut().find(|pending| pending.model.description().is_named(name));
        if let Some(pending) = pending {
            pending.waiters.push(waiter);
            return Ok(());
        }
        match self.slot(name).map(|slot| &mut slot.phase) {
            Some(SlotPhase::Loading { waiters, .. }) => {
                waiters.push(waiter);
                Ok(())
            }
            _ => Err(waiter),
        }
    }

    /// Puts a model at the end of the queue.
    pub(super) fn enqueue(&mut self, model: Box<dyn OpenModel>, waiter: Waiter) {
        self.queue.push_back(Pending { model, waiters: vec![waiter] });
    }

    /// A request does not use the model any more.
    pub(super) fn release(&mut self, id: &str) -> Vec<Effect> {
        let mut effects = vec![];
        let Some(slot) = self.slot_by_id(id) else { return effects };
        slot.leases -= 1;
        if slot.leases == 0 {
            slot.idle_since = Some(Instant::now());
            match (&slot.phase, slot.unload_after) {
                (SlotPhase::Draining(_), _) | (_, Some(Duration::ZERO)) => effects.extend(slot.unload()),
                (_, Some(after)) => effects.extend(slot.start_timer(after)),
                (_, None) => {}
            }
        }
        effects.extend(self.advance());
        effects
    }

    /// A timer has ended: unloads the model if it was idle for long enough, or waits for the rest of the time.
    pub(super) fn expire(&mut self, id: &str) -> Vec<Effect> {
        let mut effects = vec![];
        if let Some(slot) = self.slot_by_id(id) {
            slot.has_timer = false;
            let idle = slot.idle_since.filter(|_| slot.leases == 0).map(|since| since.elapsed());
            match (idle, slot.unload_after) {
                (Some(idle), Some(after)) if idle >= after => effects.extend(slot.unload()),
                (Some(idle), Some(after)) => effects.extend(slot.start_timer(after - idle)),
                // In use: its release starts the next timer.
                _ => {}
            }
        }
        effects.extend(self.advance());
        effects
    }

    /// A load has ended. Returns the requests that wait for it if it failed.
    pub(super) fn loaded(&mut self, id: &str, model: Option<Served>) -> (Vec<Waiter>, Vec<Effect>) {
        self.uses += 1;
        let last_use = self.uses;
        let Some(index) = self.slots.iter().position(|slot| slot.description.id == id) else {
            return (vec![], vec![]);
        };
        let slot = &mut self.slots[index];
        let SlotPhase::Loading { waiters, .. } = &mut slot.phase else { return (vec![], vec![]) };
        let waiters = std::mem::take(waiters);
        let Some(model) = model else {
            self.slots.remove(index);
            return (waiters, self.advance());
        };
        // Counted before the queue advances: otherwise the model could be unloaded before it was used.
        slot.leases = waiters.len();
        slot.last_use = last_use;
        slot.phase = SlotPhase::Ready(model.clone());
        let grants = waiters.into_iter().map(|waiter| Effect::Grant(waiter, model.clone()));
        let mut effects: Vec<Effect> = grants.collect();
        if self.is_stopped && slot.leases == 0 {
            effects.extend(slot.unload());
        }
        effects.extend(self.advance());
        (vec![], effects)
    }

    /// The memory of a model is free.
    pub(super) fn unloaded(&mut self, id: &str) -> Vec<Effect> {
        let retired = &mut self.retired;
        self.slots.retain(|slot| match &slot.phase {
            SlotPhase::Unloading(status) if slot.description.id == id => {
                retired.add_counters(status);
                false
            }
            _ => true,
        });
        self.advance()
    }

    /// Loads the next model of the queue, or makes room for it.
    pub(super) fn advance(&mut self) -> Vec<Effect> {
        let mut effects = vec![];
        loop {
            self.queue.retain(|pending| !pending.waiters.iter().all(Waiter::is_closed));
            effects.extend(self.keep_draining_models_if_possible());
            let Some(next) = self.queue.front() else { break };
            let (bytes, id) = (next.model.memory(), &next.model.description().id);
            let is_loading = |slot: &Slot| matches!(slot.phase, SlotPhase::Loading { .. });
            if self.is_stopped || self.slots.iter().any(|slot| slot.description.id == *id || is_loading(slot))
            {
                break;
            }
            let is_leaving =
                |slot: &&Slot| matches!(slot.phase, SlotPhase::Unloading(_) | SlotPhase::Draining(_));
            let used: u64 = self.slots.iter().map(|slot| slot.bytes).sum();
            let leaving: u64 = self.slots.iter().filter(is_leaving).map(|slot| slot.bytes).sum();
            let fits = |used: u64| used.saturating_add(bytes) <= self.memory_budget;
            match (fits(used), fits(used - leaving)) {
                (true, _) => {
                    effects.extend(self.load_next());
                    break;
                }
                (false, true) => break,
                (false, false) => match self.make_room() {
                    Some(effect) => effects.extend(effect),
                    None => break,
                },
            }
        }
        effects
    }

    /// A model that is drained while nothing else waits stays loaded.
    fn keep_draining_models_if_possible(&mut self) -> Vec<Effect> {
        let first = self.queue.front().map(|pending| pending.model.description().id.clone());
        let mut effects = vec![];
        for slot in &mut self.slots {
            let SlotPhase::Draining(model) = &slot.phase else { continue };
            let model = model.clone();
            match &first {
                None => slot.phase = SlotPhase::Ready(model),
                Some(id) if *id == slot.description.id => {
                    let waiters = self.queue.pop_front().map_or(vec![], |pending| pending.waiters);
                    slot.leases += waiters.len();
                    slot.phase = SlotPhase::Ready(model.clone());
                    effects.extend(waiters.into_iter().map(|waiter| Effect::Grant(waiter, model.clone())));
                    break;
                }
                Some(_) => {}
            }
        }
        effects
    }

    fn load_next(&mut self) -> Option<Effect> {
        let Pending { model, waiters } = self.queue.pop_front()?;
        let control = Arc::<LoadControl>::default();
        let phase = SlotPhase::Loading { control: control.clone(), waiters };
        let (description, bytes) = (model.description().clone(), model.memory());
        let (last_use, unload_after) = (self.uses, self.unload_after);
        let (leases, idle_since) = (0, None);
        let has_timer = false;
        let slot = Slot { description, bytes, phase, leases, last_use, unload_after, idle_since, has_timer };
        self.slots.push(slot);
        Some(Effect::Load(model, control))
    }

    /// Unloads the least recently used idle model, or drains the least recently used one. `None` if there is none.
    fn make_room(&mut self) -> Option<Option<Effect>> {
        let ready = self.slots.iter_mut().filter(|slot| matches!(slot.phase, SlotPhase::Ready(_)));
        let slot = ready.min_by_key(|slot| (slot.leases > 0, slot.last_use))?;
        if slot.leases == 0 {
            return Some(slot.unload());
        }
        let SlotPhase::Ready(model) = &slot.phase else { return None };
        slot.phase = SlotPhase::Draining(model.clone());
        Some(None)
    }

    /// Unloads all models that are not in use, cancels loads, and starts no others. Returns the requests that wait.
    pub(super) fn stop(&mut self) -> (Vec<Waiter>, Vec<Effect>) {
        self.is_stopped = true;
        let mut waiters: Vec<Waiter> = self.queue.drain(..).flat_map(|pending| pending.waiters).collect();
        let mut effects = vec![];
        for slot in &mut self.slots {
            match &mut slot.phase {
                SlotPhase::Loading { control, waiters: waiting } => {
                    control.cancel();
                    waiters.append(waiting);
                }
                _ if slot.leases == 0 => effects.extend(slot.unload()),
                _ => slot.unload_after = Some(Duration::ZERO),
            }
        }
        (waiters, effects)
    }
}

impl Slot {
    /// A timer, unless one is running.
    fn start_timer(&mut self, after: Duration) -> Option<Effect> {
        let starts = !std::mem::replace(&mut self.has_timer, true);
        starts.then(|| Effect::Expire { id: self.description.id.clone(), after })
    }

    /// Keeps a model that is ready loaded, until it is released. Does not count as a use.
    pub(super) fn hold(&mut self) -> Option<Served> {
        let SlotPhase::Ready(model) = &self.phase else { return None };
        self.leases += 1;
        Some(model.clone())
    }

    /// Time until it is unloaded if no request uses it again; `None`: not until its memory is needed.
    pub(super) fn expires_in(&self) -> Option<Duration> {
        let idle =
            self.idle_since.filter(|_| self.leases == 0).map_or(Duration::ZERO, |since| since.elapsed());
        Some(self.unload_after?.saturating_sub(idle))
    }

    /// Frees a loaded model that is not in use.
    pub(super) fn unload(&mut self) -> Option<Effect> {
        let (SlotPhase::Ready(model) | SlotPhase::Draining(model)) = &self.phase else { return None };
        let model = model.clone();
        let status = model.generator().map(|generator| generator.status()).unwrap_or_default();
        self.phase = SlotPhase::Unloading(Box::new(status));
        Some(Effect::Unload(model))
    }
}
