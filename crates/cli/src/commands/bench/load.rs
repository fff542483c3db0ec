//! `indrik bench --load`: load time of a model and peak host memory.

use std::{
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use checkpoint::{Checkpoint, Config};
use gpu::{Device, format_bytes};
use model::{Limits, Model};
use serde::Serialize;
use serde_json::json;
use telemetry::System;
use weights::{
    blueprint::{Blueprint, Reservation},
    plan,
    stream::Options,
};

use crate::output;

/// Measurements of a load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadTimes {
    /// Seconds from opening the file until all weights are on the GPU.
    pub seconds: f64,
    /// File bytes per second, in GB/s.
    pub gb_per_s: f64,
    /// Peak resident memory above the level before loading, without the GPU's buffers.
    pub peak_extra_rss_bytes: u64,
    #[serde(skip)]
    bytes: u64,
}

/// Loads a model. The memory plan reserves memory for `limits`, or for the weights only.
pub fn load(
    device: &Device,
    path: &Path,
    limits: Option<&dyn Fn(&Config) -> Limits>,
) -> anyhow::Result<(Model, LoadTimes)> {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(path)?;
    let blueprint = Blueprint::new(&checkpoint)?;
    let limits = limits.map(|limits| limits(&checkpoint.config));
    let reservation = limits.map_or(Reservation::WEIGHTS_ONLY, |limits| {
        limits.reservation(&checkpoint.config, limits.max_sequences)
    });
    let demand = blueprint.demand(&checkpoint.config, &reservation);
    let placement = plan::plan(&indrik::device_memory(device.info()), &demand)?;
    let total = blueprint.file_bytes();
    // The page cache is kept: this measures the upload to the GPU, not the disk.
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
                progress.show(&format!(
                    "loading {} of {}, {speed:.1} GB/s",
                    format_bytes(read),
                    format_bytes(total)
                ));
                std::thread::sleep(Duration::from_millis(20));
            }
            peak
        });
        let loaded = {
            let _done = output::SetOnDrop(&done);
            Model::load(device, &checkpoint, &placement, &options, &control)
        };
        (loaded, watcher.join().unwrap_or(0))
    });
    let (model, stats) = loaded?;
    let seconds = start.elapsed().as_secs_f64();
    // With unified memory the GPU's buffers are resident in this process and are not extra.
    let own = if device.info().unified_memory { model.weights.bytes() } else { 0 };
    let times = LoadTimes {
        seconds,
        gb_per_s: stats.bytes as f64 / seconds / 1e9,
        peak_extra_rss_bytes: peak.saturating_sub(before + own),
        bytes: stats.bytes,
    };
    Ok((model, times))
}

pub fn run(device: &Device, path: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let (model, times) = load(device, path, None)?;
    let info = device.info();
    if json {
        output::print_json(&json!({
            "device": info.name, "driver": info.driver, "model": path, "bytes": times.bytes,
            "gpu_bytes": model.weights.bytes(), "load": times,
        }))?;
    } else {
        output::print(&format!(
            "{}, {}\n{}: {} in {:.2} s from opening the file, {:.1} GB/s; peak extra memory {}\n",
            info.name,
            info.driver,
            path.display(),
            format_bytes(times.bytes),
            times.seconds,
            times.gb_per_s,
            format_bytes(times.peak_extra_rss_bytes)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
