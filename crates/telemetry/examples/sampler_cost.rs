//! What sampling costs on this machine: processor time per snapshot and per energy sample, and what the sampler
//! knows after a few seconds.
//!
//! `cargo run --release -p indrik-telemetry --example sampler_cost [seconds]`

use std::thread;
use std::time::{Duration, Instant};

use telemetry::{Sampler, SamplerOptions, System};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(10), |seconds| seconds.parse())?;
    let sampler = Sampler::start(&System::new(), SamplerOptions::default())?;
    let (start, before) = (Instant::now(), cpu_nanoseconds()?);
    thread::sleep(Duration::from_secs(seconds));
    let (elapsed, cpu) = (start.elapsed(), cpu_nanoseconds()? - before);
    let share = cpu as f64 / elapsed.as_nanos() as f64;
    let snapshot = sampler.latest();
    println!("{}", serde_json::to_string_pretty(&*snapshot)?);
    for pci in snapshot.gpus.iter().filter_map(|gpu| gpu.pci_address.as_deref()) {
        let meter = sampler.energy_meter(pci);
        println!("{pci}: {:?} J from {:?}", meter.joules(), meter.source());
    }
    println!("{} ns of processor time per second: {:.3} % of a core", cpu / seconds.max(1), share * 100.0);
    Ok(())
}

/// Processor time of the sampler's thread, the first number of its `schedstat`.
fn cpu_nanoseconds() -> Result<u64, Box<dyn std::error::Error>> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == "telemetry" {
            let text = std::fs::read_to_string(task.join("schedstat"))?;
            return Ok(text.split_whitespace().next().unwrap_or("0").parse()?);
        }
    }
    Ok(0)
}
