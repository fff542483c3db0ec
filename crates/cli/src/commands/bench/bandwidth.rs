//! `indrik bench --bandwidth`: read bandwidth, dispatch and barrier cost.

use std::process::ExitCode;

use gpu::{Device, format_bytes};
use kernels::bench::probe::{self, Measured};
use serde_json::json;

use crate::output;

pub fn run(device: &Device, size: Option<u64>, json: bool) -> anyhow::Result<ExitCode> {
    let mut progress = output::Progress::new();
    let size = size.unwrap_or_else(|| probe::default_bytes(device));
    let measured = probe::measure(device, size, |step| progress.show(step))?;
    drop(progress);
    let info = device.info();
    if json {
        output::print_json(&json!({ "device": info.name, "driver": info.driver, "bandwidth": measured }))?;
    } else {
        output::print(&format!("{}, {}\n\n{}", info.name, info.driver, text(&measured)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(measured: &Measured) -> String {
    let shape = measured.shape;
    let row = |what: &str, value: String| vec![what.to_string(), value];
    let mut rows = vec![
        row(
            &format!("read {}", format_bytes(measured.bytes)),
            format!("{:.1} GB/s", measured.read_bytes_per_s / 1e9),
        ),
        row(
            "best shape",
            format!(
                "{} workgroups of {} threads, {} loads in flight",
                shape.groups, shape.threads, shape.in_flight
            ),
        ),
        row("dispatch, independent", format!("{:.2} µs", measured.dispatch_ns / 1e3)),
        row("dispatch after a barrier", format!("{:.2} µs", measured.dependent_dispatch_ns / 1e3)),
        row("submission, host time", format!("{:.1} µs", measured.submit_ns / 1e3)),
        row("empty submission, round trip", format!("{:.1} µs", measured.round_trip_ns / 1e3)),
    ];
    for (size, ns) in &measured.sizes {
        let speed = *size as f64 / ns;
        rows.push(row(
            &format!("read {} after a barrier", format_bytes(*size)),
            format!("{:.1} µs, {speed:.1} GB/s", ns / 1e3),
        ));
    }
    output::table(&["measurement", "value"], &rows)
}
