//! Joules from energy counters or from power samples.
//!
//! Some GPUs count the energy that they use; the others report their power, which is integrated by the
//! trapezoidal rule. Both are sampled on the sampler's thread. An [`EnergyMeter`] only reads the sum, so a step
//! of the engine can take the difference around its work.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// No device draws more. A counter that claims to have advanced faster was reset or is broken.
const MAX_WATTS: f64 = 100_000.0;

/// Shortest time over which power is averaged: counters are refreshed every few tens of milliseconds, so the quotient
/// of shorter differences is noise.
const MIN_POWER_WINDOW: Duration = Duration::from_millis(80);

/// Where the joules of a meter come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EnergySource {
    NvmlCounter = 1,
    NvmlPower,
    AmdgpuCounter,
    AmdgpuPower,
    Rapl,
}

impl EnergySource {
    const ALL: [Self; 5] =
        [Self::NvmlCounter, Self::NvmlPower, Self::AmdgpuCounter, Self::AmdgpuPower, Self::Rapl];

    fn name(self) -> &'static str {
        match self {
            Self::NvmlCounter => "nvml counter",
            Self::NvmlPower => "nvml power",
            Self::AmdgpuCounter => "amdgpu counter",
            Self::AmdgpuPower => "amdgpu power",
            Self::Rapl => "rapl",
        }
    }
}

/// One reading of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum EnergyReading {
    /// A counter, its unit in joules, and the value after which it starts again from 0, if it does.
    Counter { source: EnergySource, value: u64, joules_per_unit: f64, wraps_after: Option<u64> },
    /// Power now.
    Power { source: EnergySource, watts: f64 },
}

/// The sum that the sampler writes and meters read.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// Bits of an `f64`.
    joules: AtomicU64,
    /// Bits of an `f64`: recent mean power; not a number if it is not known.
    watts: AtomicU64,
    /// The last reading; `None` if the GPU could not be read the last time.
    mark: Mutex<Option<EnergyMark>>,
    /// Those that wait for the next reading.
    pending: Mutex<Vec<PendingMark>>,
    /// A [`EnergySource`], or 0 before the first reading.
    source: AtomicU8,
}

impl Sum {
    pub(crate) fn joules(&self) -> Option<f64> {
        self.source()?;
        Some(f64::from_bits(self.joules.load(Ordering::Relaxed)))
    }

    fn watts(&self) -> Option<f64> {
        self.source()?;
        Some(f64::from_bits(self.watts.load(Ordering::Relaxed))).filter(|watts| !watts.is_nan())
    }

    fn mark(&self) -> Option<EnergyMark> {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_mark(&self, mark: Option<EnergyMark>) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = mark;
        if let Some(mark) = mark {
            let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            for pending in pending {
                // It was not set before: it has just left the list.
                let _ = pending.0.set(mark);
            }
        }
    }

    fn next_mark(&self) -> PendingMark {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // A GPU that is never read does not collect those that nobody waits for.
        pending.retain(|pending| Arc::strong_count(&pending.0) > 1);
        pending.push(PendingMark::default());
        pending[pending.len() - 1].clone()
    }

    fn source(&self) -> Option<EnergySource> {
        let source = self.source.load(Ordering::Acquire);
        EnergySource::ALL.into_iter().find(|known| *known as u8 == source)
    }
}

/// Joules that one GPU has used since its sampler started. On an APU they include the CPU's, since only the
/// package is measured.
///
/// EnergyReading is two atomic loads. The value is as fresh as the sampler's last energy sample, by default up to
/// 100 ms old.
#[derive(Debug, Clone)]
pub struct EnergyMeter {
    sum: Arc<Sum>,
}

impl EnergyMeter {
    pub(crate) fn new(sum: Arc<Sum>) -> Self {
        Self { sum }
    }

    /// Joules since the sampler started; `None` if the GPU reports neither energy nor power, or is not there.
    pub fn joules(&self) -> Option<f64> {
        self.sum.joules()
    }

    /// Mean power over about the last 100 ms; `None` if it is not known. To attribute energy to work that is shorter
    /// than the time between two readings.
    pub fn watts(&self) -> Option<f64> {
        self.sum.watts()
    }

    /// The last reading: the end of an interval that is measured when work ends. `None` if the GPU could not be read
    /// the last time.
    pub fn mark(&self) -> Option<EnergyMark> {
        self.sum.mark()
    }

    /// The next reading: the start of an interval that is measured when work begins. The last one would include the
    /// time before it.
    pub fn next_mark(&self) -> PendingMark {
        self.sum.next_mark()
    }

    /// What the joules are computed from: `"nvml counter"`, `"nvml power"`, `"amdgpu counter"` or
    /// `"amdgpu power"`.
    pub fn source(&self) -> Option<&'static str> {
        self.sum.source().map(EnergySource::name)
    }
}

/// A reading that may not have been made yet.
#[derive(Debug, Clone, Default)]
pub struct PendingMark(Arc<OnceLock<EnergyMark>>);

impl PendingMark {
    /// The reading, once it was made.
    pub fn get(&self) -> Option<EnergyMark> {
        self.0.get().copied()
    }
}

/// A reading of an [`EnergyMeter`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnergyMark {
    /// When the GPU was read.
    at: Instant,
    joules: f64,
    /// Gaps in the readings before it.
    gaps: u64,
}

impl EnergyMark {
    /// Joules and seconds from this reading to a later one of the same meter; `None` if they are too close together
    /// to tell, or if readings are missing in between.
    pub fn until(&self, later: &Self) -> Option<(f64, f64)> {
        let time = later.at.saturating_duration_since(self.at);
        let measured = self.gaps == later.gaps && time >= MIN_POWER_WINDOW;
        measured.then_some((later.joules - self.joules, time.as_secs_f64()))
    }
}

/// Adds up the readings of one device.
#[derive(Debug)]
pub(crate) struct Accumulator {
    sum: Arc<Sum>,
    joules: f64,
    last: Option<(Instant, EnergyReading)>,
    /// How often a reading did not continue the one before it.
    gaps: u64,
    /// Time and sum at which the window of the power began.
    window: Option<(Instant, f64)>,
}

impl Accumulator {
    pub(crate) fn new(sum: Arc<Sum>) -> Self {
        Self { sum, joules: 0.0, last: None, gaps: 0, window: None }
    }

    pub(crate) fn joules(&self) -> Option<f64> {
        self.sum.joules()
    }

    /// Adds the energy between the last reading and this one. Without a reading, or with one of another source,
    /// nothing is known about the time in between, and nothing is added for it.
    pub(crate) fn add(&mut self, now: Instant, reading: Option<EnergyReading>) {
        let Some(reading) = reading else {
            (self.last, self.window) = (None, None);
            self.set_watts(None);
            self.sum.set_mark(None);
            return;
        };
        let joules = self.last.and_then(|(then, last)| {
            energy(last, reading, now.saturating_duration_since(then).as_secs_f64())
        });
        self.joules += joules.unwrap_or(0.0);
        self.gaps += u64::from(joules.is_none());
        self.last = Some((now, reading));
        match self.window {
            Some((start, before)) if joules.is_some() => {
                let time = now.saturating_duration_since(start);
                if time >= MIN_POWER_WINDOW {
                    self.set_watts(Some((self.joules - before) / time.as_secs_f64()));
                    self.window = Some((now, self.joules));
                }
            }
            _ => {
                self.set_watts(None);
                self.window = Some((now, self.joules));
            }
        }
        let source = match reading {
            EnergyReading::Counter { source, .. } | EnergyReading::Power { source, .. } => source,
        };
        self.sum.set_mark(Some(EnergyMark { at: now, joules: self.joules, gaps: self.gaps }));
        self.sum.joules.store(self.joules.to_bits(), Ordering::Relaxed);
        self.sum.source.store(source as u8, Ordering::Release);
    }

    fn set_watts(&self, watts: Option<f64>) {
        self.sum.watts.store(watts.unwrap_or(f64::NAN).to_bits(), Ordering::Relaxed);
    }
}

/// Joules between two readings of the same source.
fn energy(last: EnergyReading, now: EnergyReading, seconds: f64) -> Option<f64> {
    match (last, now) {
        (
            EnergyReading::Counter { source: before, value: last, .. },
            EnergyReading::Counter { source, value, joules_per_unit, wraps_after },
        ) if before == source => {
            let units = match value.checked_sub(last) {
                Some(units) => units,
                // Past its end, the counter went on from 0; without an end, it was reset to 0.
                None => wraps_after.and_then(|end| end.checked_sub(last)).unwrap_or(0).checked_add(value)?,
            };
            let joules = units as f64 * joules_per_unit;
            (joules <= MAX_WATTS * seconds).then_some(joules)
        }
        (EnergyReading::Power { source: before, watts: last }, EnergyReading::Power { source, watts })
            if before == source =>
        {
            Some((last + watts) / 2.0 * seconds)
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "energy_tests.rs"]
mod tests;
