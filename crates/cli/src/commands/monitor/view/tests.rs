//! The view on screens of several sizes, without a terminal.

use ratatui::{Terminal, backend::TestBackend};

use super::*;

/// A server that knows everything, with two requests.
fn full() -> Reading {
    let stats = include_str!("stats.json");
    let mut stats: Stats = serde_json::from_str(stats).unwrap();
    let (machine, memory) = (stats.machine.take(), std::mem::take(&mut stats.memory));
    Reading { server: Some(stats), machine, memory }
}

/// The lines of a screen.
fn screen(width: u16, height: u16, latest: &anyhow::Result<Reading>) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let mut history = History::default();
    if let Ok(reading) = latest {
        history.push(reading);
    }
    terminal.draw(|frame| draw(frame, "http://127.0.0.1:8006", latest, &history)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |row: u16| (0..width).map(|column| buffer[(column, row)].symbol()).collect();
    (0..height).map(line).collect()
}

fn assert_shows(lines: &[String], texts: &[&str]) {
    for text in texts {
        assert!(lines.iter().any(|line| line.contains(text)), "{text:?} is missing:\n{}", lines.join("\n"));
    }
}

#[test]
fn a_wide_screen_shows_everything() {
    let lines = screen(140, 40, &Ok(full()));
    assert_shows(
        &lines,
        &[
            "http://127.0.0.1:8006 · gemma3:27b on Radeon 780M · ready · up 13:32",
            "decode      41.5 tok/s, 900 total",
            "p50 120 ms, p95 200 ms, p99 300 ms",
            "3.82 GiB per token, 71% of 82 GB/s",
            "1.900 J per token (amdgpu power)",
            "running  2 of 8: 1 prefilling, 1 decoding; 3 waiting",
            "40 of 1024 pages (4%)",
            "█ weights 3.73 GiB",
            "busy     97%",
            "power  38.2 W",
            "clock 2700 MHz, memory unknown; 71 °C",
            "throttled by",
            "CPU      12% busy, power unknown, temperature unknown",
            "chatcmpl-1",
            "100/200",
            "decoding",
        ],
    );
}

#[test]
fn a_narrow_screen_shows_the_same_in_one_column() {
    let lines = screen(60, 60, &Ok(full()));
    assert_shows(&lines, &["decode      41.5 tok/s", "GPU memory", "busy     97%", "requests", "chatcmpl-1"]);
    assert!(lines.iter().all(|line| line.chars().count() == 60));
}

#[test]
fn no_screen_is_too_small() {
    for (width, height) in [(1, 1), (5, 3), (20, 10), (60, 12), (100, 5), (300, 100)] {
        screen(width, height, &Ok(full()));
        screen(width, height, &Err(anyhow::anyhow!("no server")));
    }
}

#[test]
fn what_is_unknown_says_so() {
    let reading = Reading { server: None, machine: Some(Snapshot::default()), memory: vec![] };
    let text = text(&reading, "this machine");
    assert!(text.contains("CPU      unknown busy"), "{text}");
    assert!(!text.contains("tokens"), "{text}");
}

#[test]
fn an_error_is_shown_instead_of_old_figures() {
    let lines = screen(80, 20, &Err(anyhow::anyhow!("no server answers at http://x")));
    assert_shows(&lines, &["no server answers at http://x", "Retrying."]);
}

#[test]
fn plain_text_has_the_requests_too() {
    let text = text(&full(), "http://127.0.0.1:8006");
    for expected in ["chatcmpl-2\tdecoding\t34\t11/512\t0:01\t38.0", "VRAM 4.00 GiB of 8.00 GiB"] {
        assert!(text.contains(expected), "{expected:?}:\n{text}");
    }
}

#[test]
fn an_npu_is_shown_with_its_load_or_with_what_blocks_it() {
    let npu = |name: &str, busy, firmware: Option<&str>, obstacle: Option<&str>| telemetry::NpuSample {
        name: name.to_string(),
        busy,
        power_watts: None,
        firmware: firmware.map(str::to_string),
        obstacle: obstacle.map(str::to_string),
    };
    let npus = vec![
        npu("NPU Strix Halo", Some(0.25), Some("1.1.2.65"), None),
        npu("XDNA1", None, None, Some("the driver amdxdna is not loaded")),
    ];
    let lines: Vec<String> = machine_lines(&Snapshot { npus, ..Snapshot::default() }, false)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_shows(
        &lines,
        &[
            "NPU      NPU Strix Halo, 25% busy, power unknown, firmware 1.1.2.65",
            "NPU      XDNA1: the driver amdxdna is not loaded",
        ],
    );
}
