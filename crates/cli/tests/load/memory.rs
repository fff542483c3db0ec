//! Memory of the server process under load.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::served::Served;

/// Sampling interval.
const INTERVAL: Duration = Duration::from_millis(250);

/// Time for buffers and pools to grow to their working size; at most a third of the run.
const WARM_UP: Duration = Duration::from_secs(120);

/// Number of equal parts of a run that are compared.
const PARTS: usize = 4;

/// A leak grows in every part of the run: by more than this, 0.4%, from each part to the next. An allocator's
/// arena for one more thread is a single step. Only in runs with the whole warm-up: in shorter ones pools still grow.
const LEAK: f64 = 0.004;

/// Growth over the whole run that no allocator explains: 10%.
const MAX_GROWTH: f64 = 0.1;

/// Memory over the run: the median of each part's samples. Medians, because memory drops for a moment while a
/// lost device is reopened.
pub struct Memory {
    resident: [f64; PARTS],
    /// GPU memory; 0 if the driver does not report it.
    gpu: [f64; PARTS],
    /// Resident memory, all samples after the warm-up.
    samples: Vec<f64>,
    /// Whether the warm-up was long enough.
    is_warm: bool,
}

/// Runs `work`, which takes `time`, while sampling the server's memory.
pub fn watch<T>(server: &Served, time: Duration, work: impl FnOnce() -> T) -> (T, Memory) {
    let finished = AtomicBool::new(false);
    let (result, samples) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut samples = vec![];
            let warmed_up = Instant::now() + WARM_UP.min(time / 3);
            while !finished.load(Ordering::Relaxed) {
                if Instant::now() > warmed_up {
                    samples.push(sample(server));
                }
                thread::sleep(INTERVAL);
            }
            samples
        });
        let result = work();
        finished.store(true, Ordering::Relaxed);
        (result, watcher.join().unwrap())
    });
    let length = samples.len() / PARTS;
    assert!(length > 0, "the run is too short to measure memory");
    let medians = |value: fn(&[f64; 2]) -> f64| {
        std::array::from_fn(|part| median(samples[part * length..][..length].iter().map(value).collect()))
    };
    let (resident, gpu) = (medians(|sample| sample[0]), medians(|sample| sample[1]));
    let samples = samples.iter().map(|sample| sample[0]).collect();
    (result, Memory { resident, gpu, samples, is_warm: time / 3 >= WARM_UP })
}

/// Resident memory and GPU memory in bytes.
fn sample(server: &Served) -> [f64; 2] {
    let (_, text) = server.request("GET", "/metrics", "");
    let sum = |names: &[&str]| {
        let matches = |line: &str| names.iter().any(|name| line.starts_with(name));
        text.lines()
            .filter(|line| matches(line))
            .filter_map(|line| line.split(' ').nth(1)?.parse::<f64>().ok())
            .sum()
    };
    [
        sum(&["indrik_process_resident_memory_bytes"]),
        sum(&["indrik_vram_used_bytes", "indrik_gtt_used_bytes"]),
    ]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Memory {
    pub fn assert_flat(&self) {
        for parts in [self.resident, self.gpu] {
            // At most a hundred samples.
            let shown = self.samples.iter().step_by(self.samples.len().div_ceil(100));
            let shown: Vec<_> = shown.map(|bytes| (bytes / 1e6).round()).collect();
            assert!(
                is_flat(&parts, self.is_warm),
                "memory grows: {self}; resident memory over time in MB: {shown:?}"
            );
        }
    }
}

fn is_flat(parts: &[f64; PARTS], is_warm: bool) -> bool {
    let leaks = is_warm && parts.windows(2).all(|pair| pair[1] > pair[0] * (1.0 + LEAK));
    !leaks && parts[PARTS - 1] <= parts[0] * (1.0 + MAX_GROWTH)
}

#[test]
fn a_leak_is_told_from_a_single_step() {
    assert!(is_flat(&[0.0; PARTS], true));
    assert!(is_flat(&[151.0, 151.2, 155.0, 155.1], true));
    assert!(is_flat(&[151.0, 155.0, 152.0, 155.0], true));
    assert!(!is_flat(&[151.0, 152.0, 153.0, 154.0], true));
    assert!(is_flat(&[151.0, 152.0, 153.0, 154.0], false));
    assert!(!is_flat(&[151.0, 151.0, 151.0, 170.0], false));
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.resident.map(|bytes| format!("{:.1}", bytes / 1e6)).join(", ");
        let percent = (self.resident[PARTS - 1] / self.resident[0] - 1.0) * 100.0;
        write!(f, "resident {parts} MB ({percent:+.2}%)")?;
        if self.gpu == [0.0; PARTS] {
            // Only amdgpu reports it; a CPU driver's memory is the process's own.
            return write!(f, ", GPU memory not reported by this driver");
        }
        write!(f, ", GPU {} MB", self.gpu.map(|bytes| format!("{:.1}", bytes / 1e6)).join(", "))
    }
}
