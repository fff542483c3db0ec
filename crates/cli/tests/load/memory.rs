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

/// Growth above this is not noise: 2%.
const MAX_GROWTH: f64 = 0.02;

/// Memory early and late in the run: medians of the first and last third of the samples. Medians, because
/// memory drops for a moment while a lost device is reopened.
pub struct Memory {
    resident: [f64; 2],
    /// GPU memory; 0 if the driver does not report it.
    gpu: [f64; 2],
    /// Resident memory, all samples after the warm-up.
    samples: Vec<f64>,
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
    let third = samples.len() / 3;
    assert!(third > 0, "the run is too short to measure memory");
    let early_and_late = |value: fn(&[f64; 2]) -> f64| {
        let parts = [&samples[..third], &samples[samples.len() - third..]];
        parts.map(|part| median(part.iter().map(value).collect()))
    };
    let (resident, gpu) = (early_and_late(|sample| sample[0]), early_and_late(|sample| sample[1]));
    (result, Memory { resident, gpu, samples: samples.iter().map(|sample| sample[0]).collect() })
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
        for [early, late] in [self.resident, self.gpu] {
            // At most a hundred samples.
            let shown = self.samples.iter().step_by(self.samples.len().div_ceil(100));
            let shown: Vec<_> = shown.map(|bytes| (bytes / 1e6).round()).collect();
            assert!(
                late <= early * (1.0 + MAX_GROWTH),
                "memory grows: {self}; resident memory over time in MB: {shown:?}"
            );
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [early, late] = self.resident.map(|bytes| bytes / 1e6);
        let percent = (late / early - 1.0) * 100.0;
        write!(f, "resident {early:.1} MB, then {late:.1} MB ({percent:+.2}%)")?;
        match self.gpu.map(|bytes| bytes / 1e6) {
            // Only amdgpu reports it; a CPU driver's memory is the process's own.
            [0.0, 0.0] => write!(f, ", GPU memory not reported by this driver"),
            [early, late] => write!(f, ", GPU {early:.1} MB, then {late:.1} MB"),
        }
    }
}
