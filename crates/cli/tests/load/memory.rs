//! How much memory a server takes while something happens.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::served::Served;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(250);

/// Buffers and pools grow to what the load needs within this time, or a third of all where that is shorter.
const WARM_UP: Duration = Duration::from_secs(120);

/// More than this is no noise: 2%.
const GROWTH: f64 = 0.02;

/// What it took soon after the start and at the end: medians of a third each of what was seen, since a device that is
/// being put back takes less for a moment.
pub struct Memory {
    resident: [f64; 2],
    /// Of the GPU, where it has memory of its own that the machine tells about.
    gpu: [f64; 2],
    /// Resident, at every look after the warm-up.
    seen: Vec<f64>,
}

/// Does something that takes so long, and looks at the server meanwhile.
pub fn watched<T>(server: &Served, time: Duration, work: impl FnOnce() -> T) -> (T, Memory) {
    let over = AtomicBool::new(false);
    let (done, seen) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = vec![];
            let warm = Instant::now() + WARM_UP.min(time / 3);
            while !over.load(Ordering::Relaxed) {
                if Instant::now() > warm {
                    seen.push(look(server));
                }
                thread::sleep(PAUSE);
            }
            seen
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        (done, watcher.join().unwrap())
    });
    let third = seen.len() / 3;
    assert!(third > 0, "too short to say anything of memory");
    let both = |of: fn(&[f64; 2]) -> f64| {
        [&seen[..third], &seen[seen.len() - third..]].map(|part| median(part.iter().map(of).collect()))
    };
    let (resident, gpu) = (both(|sample| sample[0]), both(|sample| sample[1]));
    (done, Memory { resident, gpu, seen: seen.iter().map(|sample| sample[0]).collect() })
}

/// Bytes of the process, and of the GPU.
fn look(server: &Served) -> [f64; 2] {
    let (_, text) = server.ask("GET", "/metrics", "");
    let sum = |names: &[&str]| {
        let of = |line: &str| names.iter().any(|name| line.starts_with(name));
        text.lines()
            .filter(|line| of(line))
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
            // At most a hundred of them.
            let shown = self.seen.iter().step_by(self.seen.len().div_ceil(100));
            let shown: Vec<_> = shown.map(|bytes| (bytes / 1e6).round()).collect();
            assert!(
                late <= early * (1.0 + GROWTH),
                "memory grows: {self}; resident MB one after another: {shown:?}"
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
            // Only amdgpu tells; a CPU driver's memory is the process's own.
            [0.0, 0.0] => write!(f, ", GPU memory not told by this driver"),
            [early, late] => write!(f, ", GPU {early:.1} MB, then {late:.1} MB"),
        }
    }
}
