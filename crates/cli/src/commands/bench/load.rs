//! How fast a model gets into GPU memory, and what it takes of the system's meanwhile.

use std::{
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use gpu::{Device, bytes};
use serde_json::json;
use telemetry::System;
use weights::{Checkpoint, blueprint::Blueprint, load::load, plan, stream::Options};

use crate::{memory, output};

pub fn run(device: &Device, model: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(model)?;
    // Only weights are loaded here: the smallest context there is.
    let blueprint = Blueprint::of(&checkpoint)?;
    let demand = blueprint.demand(&checkpoint.config, 1, 1, memory::SCRATCH);
    let placement = plan::plan(&memory::of(device.info()), &demand)?;
    let total = blueprint.file_bytes();
    // Page cache stays: the figure says how fast the way into the GPU is, not the disk.
    let options = Options { drop_cache: false, ..Options::default() };
    let control = output::control();
    let system = System::new();
    let resident = || system.process_memory().map_or(0, |memory| memory.rss);
    let before = resident();
    let done = AtomicBool::new(false);
    let (loaded, peak) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut progress = output::Progress::new();
            let mut peak = 0;
            while !done.load(Ordering::Relaxed) {
                peak = peak.max(resident());
                let read = control.done.load(Ordering::Relaxed);
                let speed = read as f64 / start.elapsed().as_secs_f64() / 1e9;
                progress.say(&format!("{} of {}, {speed:.1} GB/s", bytes(read), bytes(total)));
                std::thread::sleep(Duration::from_millis(20));
            }
            peak
        });
        let loaded = {
            let _done = output::SetOnDrop(&done);
            load(device, &checkpoint, &placement, &options, &control)
        };
        (loaded, watcher.join().unwrap_or(0))
    });
    let (weights, stats) = loaded?;
    let seconds = start.elapsed().as_secs_f64();
    // On shared memory the GPU's buffers are in this process and are not extra.
    let own = if device.info().unified_memory { weights.bytes() } else { 0 };
    let extra = peak.saturating_sub(before + own);
    let speed = stats.bytes as f64 / seconds / 1e9;
    let info = device.info();
    if json {
        output::print_json(&json!({
            "device": info.name, "driver": info.driver, "model": model, "bytes": stats.bytes,
            "gpu_bytes": weights.bytes(),
            "load": { "seconds": seconds, "gb_per_s": speed, "peak_extra_rss_bytes": extra },
        }))?;
    } else {
        output::print(&format!(
            "{}, {}\n{}: {} in {seconds:.2} s from opening the file, {speed:.1} GB/s; peak extra memory {}\n",
            info.name,
            info.driver,
            model.display(),
            bytes(stats.bytes),
            bytes(extra)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
