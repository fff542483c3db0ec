//! A thread that samples the machine.
//!
//! Readers never wait for the kernel: [`Sampler::latest`] copies a pointer, and an [`EnergyMeter`] loads two
//! atomics. A file that takes long to read, as when a GPU is being reset, delays only the next snapshot.
//!
//! The thread measures its own processor time and waits at least [`COST_LIMIT`]'s inverse of what a round cost,
//! so a machine with slow sensors is sampled less often instead of being slowed down. Without a GPU, a snapshot
//! takes 0.3 ms of processor time (Linux 6.18, two virtual cores): `examples/sampler_cost.rs` measures it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::collector::{Collector, Meters};
use crate::{EnergyMeter, Snapshot, System};

/// Largest share of one core that the thread uses.
pub const COST_LIMIT: f64 = 0.004;

/// How long [`Sampler`]'s drop waits for a read in progress before it leaves the thread to end by itself.
const READ_TIMEOUT: Duration = Duration::from_millis(250);
/// The same for a thread between reads, which has only to wake up and close its files.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How and what to sample.
#[derive(Debug, Clone)]
pub struct SamplerOptions {
    /// Time between snapshots.
    pub interval: Duration,
    /// Time between samples of energy and power. Shorter than [`Self::interval`], since power changes with
    /// every step.
    pub energy_interval: Duration,
    /// PCI addresses of the GPUs to sample; `None` for all. Sampling wakes no GPU, but it can keep an idle one
    /// from falling asleep, so a server samples only the GPUs that it uses.
    pub gpus: Option<Vec<String>>,
    /// Names by PCI address, for instance Vulkan's, used instead of the kernel's.
    pub names: HashMap<String, String>,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            energy_interval: Duration::from_millis(100),
            gpus: None,
            names: HashMap::new(),
        }
    }
}

/// What the thread samples; tests replace the machine.
pub(crate) trait Sensors {
    fn sample(&mut self) -> Snapshot;
    fn add_energy(&mut self);
    /// Whether [`Self::add_energy`] does anything.
    fn has_energy(&self) -> bool;
}

impl Sensors for Collector {
    fn sample(&mut self) -> Snapshot {
        Collector::sample(self)
    }

    fn add_energy(&mut self) {
        Collector::add_energy(self);
    }

    fn has_energy(&self) -> bool {
        self.has_gpus()
    }
}

/// Samples the machine until it is dropped.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    meters: Meters,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled at each change of the state.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    latest: Arc<Snapshot>,
    /// Whether the thread waits for its next round.
    idle: bool,
    stop: bool,
    ended: bool,
}

impl Sampler {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If the system cannot start another thread.
    pub fn start(system: &System, options: SamplerOptions) -> io::Result<Self> {
        let (system, meters) = (system.clone(), Meters::default());
        let (interval, energy_interval) = (options.interval, options.energy_interval);
        let sums = meters.clone();
        // Files are opened by the thread too: even that may block.
        let open = move || Collector::open(&system, &options, &sums);
        Self::spawn(open, meters, interval, energy_interval)
    }

    pub(crate) fn spawn<S: Sensors>(
        open: impl FnOnce() -> S + Send + 'static,
        meters: Meters,
        interval: Duration,
        energy_interval: Duration,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let run = move || {
            // Also when a reader panics, so that nobody waits for this thread.
            let _end = End(&theirs);
            run(&theirs, open(), interval, energy_interval);
        };
        let thread = thread::Builder::new().name("telemetry".to_owned()).spawn(run)?;
        Ok(Self { shared, meters, thread: Some(thread) })
    }

    /// The last complete snapshot; everything is unknown, and its time 0, before the first.
    pub fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.shared.lock().latest)
    }

    /// The first snapshot after `seen`, which came from this sampler; `seen` itself if there is none in time.
    pub fn wait_newer(&self, seen: &Arc<Snapshot>, timeout: Duration) -> Arc<Snapshot> {
        let is_seen = |state: &mut State| Arc::ptr_eq(&state.latest, seen) && !state.ended;
        let state = self.shared.changed.wait_timeout_while(self.shared.lock(), timeout, is_seen);
        Arc::clone(&state.unwrap_or_else(PoisonError::into_inner).0.latest)
    }

    /// The meter of the GPU at a PCI address like `0000:c1:00.0`. All meters of an address agree.
    pub fn energy_meter(&self, pci: &str) -> EnergyMeter {
        EnergyMeter::new(self.meters.sum(pci))
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        self.shared.changed.notify_all();
        let timeout = if state.idle { STOP_TIMEOUT } else { READ_TIMEOUT };
        let wait = self.shared.changed.wait_timeout_while(state, timeout, |state| !state.ended);
        let ended = wait.is_ok_and(|(state, _)| state.ended);
        if let Some(thread) = self.thread.take().filter(|_| ended) {
            // A panic of the thread has been reported by its hook.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        // The old one is freed after the lock is.
        let _old = std::mem::replace(&mut self.lock().latest, snapshot);
        self.changed.notify_all();
    }

    /// Waits until `time`; whether the sampler goes on.
    fn wait_until(&self, time: Instant) -> bool {
        let mut state = self.lock();
        state.idle = true;
        self.changed.notify_all();
        loop {
            let rest = time.saturating_duration_since(Instant::now());
            if state.stop || rest.is_zero() {
                state.idle = state.stop;
                return !state.stop;
            }
            state = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Says that the thread has ended.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

fn run(shared: &Shared, mut sensors: impl Sensors, interval: Duration, energy_interval: Duration) {
    let mut next_snapshot = Instant::now();
    loop {
        let (start, cpu) = (Instant::now(), cpu_time());
        if start >= next_snapshot {
            shared.publish(sensors.sample());
            next_snapshot = start + interval;
        } else {
            sensors.add_energy();
        }
        let pause = cpu_time().saturating_sub(cpu).div_f64(COST_LIMIT);
        let next_energy = if sensors.has_energy() { start + energy_interval } else { next_snapshot };
        if !shared.wait_until(next_energy.min(next_snapshot).max(start + pause)) {
            return;
        }
    }
}

/// Processor time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
