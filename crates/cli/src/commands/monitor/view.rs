//! What the monitor shows, as lines of text; drawn on a screen, or printed once.

use std::fmt::Write;

use gpu::format_bytes;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize},
    text::{Line, Span},
    widgets::{Block, Paragraph, Row, Table, Wrap},
};
use server::stats::{HeapStats, LatencyPercentiles, RequestStats, State, Stats};
use store::printable;
use telemetry::{GpuSample, Snapshot};

use super::{
    format::{clock, latency, or_unknown, percent, rate},
    history::History,
    source::Reading,
};

/// Screens at least this wide have two columns.
const TWO_COLUMNS: u16 = 120;

/// A titled group of lines.
struct Section {
    title: &'static str,
    lines: Vec<Line<'static>>,
}

/// Kinds of memory, in the order of a bar: name, character and colour.
const KINDS: [(&str, char, Color); 5] = [
    ("weights", '█', Color::Blue),
    ("KV cache", '▓', Color::Green),
    ("scratch", '▒', Color::Magenta),
    ("other processes", '░', Color::DarkGray),
    ("free", '·', Color::Reset),
];

/// Whether colours are wanted (https://no-color.org).
fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn coloured(text: String, colour: Color) -> Span<'static> {
    if has_colours() { Span::styled(text, Style::new().fg(colour)) } else { Span::raw(text) }
}

/// Draws a reading, or why there is none.
pub fn draw(frame: &mut Frame<'_>, name: &str, latest: &anyhow::Result<Reading>, history: &History) {
    let [title, body, help] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Line::raw("q quits · unknown: not reported by this machine").dim(), help);
    let reading = match latest {
        Ok(reading) => reading,
        Err(error) => {
            frame.render_widget(Line::raw(format!("indrik monitor · {name}")).bold(), title);
            let text = format!("{error:#}\n\nRetrying.");
            frame.render_widget(
                Paragraph::new(text).wrap(Wrap { trim: false }).block(Block::bordered()),
                body,
            );
            return;
        }
    };
    frame.render_widget(Line::raw(title_line(reading, name)).bold(), title);
    let columns = if body.width >= TWO_COLUMNS { 2 } else { 1 };
    let width = usize::from(body.width / columns).saturating_sub(2);
    let sections = sections(reading, Some(history), width);
    let rest = draw_sections(frame, body, sections, columns);
    if let Some(server) = &reading.server {
        draw_requests(frame, rest, &server.in_flight);
    }
}

/// Draws sections in columns, from the top; returns the area below.
fn draw_sections(frame: &mut Frame<'_>, area: Rect, sections: Vec<Section>, columns: u16) -> Rect {
    let mut used = vec![0_u16; usize::from(columns)];
    let areas: Vec<Rect> =
        Layout::horizontal(vec![Constraint::Fill(1); usize::from(columns)]).split(area).to_vec();
    for section in sections {
        let (column, top) =
            used.iter().copied().enumerate().min_by_key(|(_, used)| *used).unwrap_or_default();
        let height = (section.lines.len() as u16 + 2).min(area.height.saturating_sub(top));
        let place = Rect { y: area.y + top, height, ..areas[column] };
        frame.render_widget(
            Paragraph::new(section.lines).block(Block::bordered().title(section.title)),
            place,
        );
        used[column] += height;
    }
    let top = used.into_iter().max().unwrap_or(0).min(area.height);
    Rect { y: area.y + top, height: area.height - top, ..area }
}

/// The table of running requests.
fn draw_requests(frame: &mut Frame<'_>, area: Rect, requests: &[RequestStats]) {
    // Borders, header and one row.
    if area.height < 4 {
        return;
    }
    let rows = requests.iter().map(|request| Row::new(request_cells(request)));
    let widths = [10, 9, 11, 8, 9].map(Constraint::Length);
    let table = Table::new(rows, [&[Constraint::Min(12)][..], &widths].concat())
        .header(Row::new(REQUEST_HEADER).bold())
        .block(Block::bordered().title("requests"));
    frame.render_widget(table, area);
}

const REQUEST_HEADER: [&str; 6] = ["id", "state", "prompt", "generated", "time", "tok/s"];

fn request_cells(request: &RequestStats) -> [String; 6] {
    let prompt = match request.state.as_str() {
        "prefilling" => format!("{}/{}", request.prefilled_tokens, request.prompt_tokens),
        _ => request.prompt_tokens.to_string(),
    };
    [
        printable(&request.id),
        printable(&request.state),
        prompt,
        format!("{}/{}", request.generated_tokens, request.max_tokens),
        clock(request.elapsed_seconds),
        request.tokens_per_second.map_or_else(String::new, rate),
    ]
}

/// A reading as plain text.
pub fn text(reading: &Reading, name: &str) -> String {
    let mut text = title_line(reading, name) + "\n";
    for section in sections(reading, None, 78) {
        let _ = write!(text, "\n{}\n", section.title);
        for line in section.lines {
            let _ = writeln!(text, "  {}", line.to_string().trim_end());
        }
    }
    if let Some(server) = reading.server.as_ref().filter(|server| !server.in_flight.is_empty()) {
        let _ = writeln!(text, "\n{}", REQUEST_HEADER.join("\t"));
        for request in &server.in_flight {
            let _ = writeln!(text, "{}", request_cells(request).join("\t"));
        }
    }
    text
}

fn title_line(reading: &Reading, name: &str) -> String {
    let mut parts = vec!["indrik monitor".to_owned(), name.to_owned()];
    if let Some(server) = &reading.server {
        let device = server.device.as_ref().map(|device| format!(" on {}", printable(&device.name)));
        parts.push(format!("{}{}", printable(&server.model.id), device.unwrap_or_default()));
        parts.push(match server.state {
            State::Ready => "ready".into(),
            State::Loading => "loading".into(),
            State::Draining => "shutting down".into(),
            State::DeviceLost => "GPU lost".into(),
        });
        parts.push(format!("up {}", clock(server.uptime_seconds)));
    }
    parts.join(" · ")
}

/// Everything but the requests. `width`: of a line.
fn sections(reading: &Reading, history: Option<&History>, width: usize) -> Vec<Section> {
    let mut sections = vec![];
    if let Some(server) = &reading.server {
        sections.push(Section { title: "tokens", lines: token_lines(server, history, width) });
        sections.push(Section { title: "batch", lines: batch_lines(server) });
    }
    let memory = reading.memory.iter().flat_map(|heap| memory_lines(heap, width));
    sections.push(Section { title: "GPU memory", lines: memory.collect() });
    if let Some(machine) = &reading.machine {
        for (index, gpu) in machine.gpus.iter().enumerate() {
            let history = history.filter(|_| index == 0);
            sections.push(Section { title: "GPU", lines: gpu_lines(gpu, history, width) });
        }
        sections.push(Section { title: "machine", lines: machine_lines(machine, reading.server.is_some()) });
    }
    sections.retain(|section| !section.lines.is_empty());
    sections
}

fn token_lines(server: &Stats, history: Option<&History>, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![];
    if let Some(detail) = &server.detail {
        lines.push(Line::raw(printable(detail)).bold());
    }
    let tokens = &server.tokens;
    for (name, per_second, total, series) in [
        ("decode ", tokens.generated_per_second, tokens.generated, history.map(|history| &history.generated)),
        ("prefill", tokens.prompt_per_second, tokens.prompt, history.map(|history| &history.prompt)),
    ] {
        let text = format!("{name} {:>8} tok/s, {total} total ", or_unknown(per_second, rate));
        lines.push(with_plot(text, width, Color::Green, |width| Some(series?.plot(width, None))));
    }
    let percentiles = |name: &str, latencies: Option<LatencyPercentiles>| {
        let text = or_unknown(latencies, |LatencyPercentiles { p50, p95, p99 }| {
            format!("p50 {}, p95 {}, p99 {}", latency(p50), latency(p95), latency(p99))
        });
        Line::raw(format!("{name:<9}{text}"))
    };
    lines.push(percentiles("TTFT", server.latency.time_to_first_token));
    lines.push(percentiles("ITL", server.latency.inter_token));
    lines.push(percentiles("request", server.latency.request));
    if let Some(bandwidth) = &server.bandwidth {
        lines.push(Line::raw(format!(
            "memory   {} per token, {} of {} GB/s",
            or_unknown(bandwidth.bytes_per_token, |bytes| format_bytes(bytes as u64)),
            or_unknown(bandwidth.utilization, percent),
            or_unknown(bandwidth.peak_bytes_per_second, |peak| format!("{:.0}", peak / 1e9)),
        )));
    }
    if let Some(energy) = &server.energy {
        lines.push(Line::raw(format!(
            "energy   {} J per token ({})",
            or_unknown(energy.joules_per_token, |joules| format!("{joules:.3}")),
            printable(&energy.source)
        )));
    }
    lines
}

fn batch_lines(server: &Stats) -> Vec<Line<'static>> {
    let requests = &server.requests;
    let capacity = server.batch.max_sequences.map_or_else(String::new, |max| format!(" of {max}"));
    let cache = &server.kv_cache;
    let hits = &server.prefix_cache;
    let share = |part: u64, whole: u64| match whole {
        0 => String::new(),
        whole => format!(" ({})", percent(part as f64 / whole as f64)),
    };
    vec![
        Line::raw(format!(
            "running  {}{capacity}: {} prefilling, {} decoding; {} waiting",
            requests.running, requests.prefilling, requests.decoding, requests.waiting
        )),
        Line::raw(format!("rows     {} in the last step", server.batch.last_step_rows)),
        Line::raw(format!(
            "KV cache {} of {} pages{}, {} in the prefix cache",
            cache.used,
            cache.pages,
            share(u64::from(cache.used), u64::from(cache.pages)),
            cache.cached
        )),
        Line::raw(format!(
            "prefix cache hits: {} of {} prompts{}, {} tokens",
            hits.hits,
            hits.queries,
            share(hits.hits, hits.queries),
            hits.cached_tokens
        )),
        Line::raw(format!(
            "total    {} finished, {} failed, {} cancelled, {} rejected",
            requests.finished, requests.failed, requests.cancelled, requests.rejected
        )),
        Line::raw(format!("         {} preemptions", requests.preemptions)),
    ]
}

/// A bar of a heap, and what its parts are.
fn memory_lines(heap: &HeapStats, width: usize) -> Vec<Line<'static>> {
    let place = if heap.device_local { "GPU" } else { "host" };
    let known = [
        Some(heap.weights_bytes),
        Some(heap.kv_cache_bytes),
        Some(heap.scratch_bytes),
        heap.other_processes_bytes,
        heap.free_bytes,
    ];
    let mut bar = vec![];
    for ((_, character, colour), bytes) in KINDS.iter().zip(known) {
        let cells = bytes.unwrap_or(0) as f64 / heap.size_bytes.max(1) as f64 * width as f64;
        bar.push(coloured(character.to_string().repeat((cells.round() as usize).min(width)), *colour));
    }
    let mut parts = Line::default();
    for ((name, character, colour), bytes) in KINDS.iter().zip(known) {
        if bytes != Some(0) {
            let separator = if parts.spans.is_empty() { "" } else { "  " };
            parts.push_span(Span::raw(separator));
            parts.push_span(coloured(character.to_string(), *colour));
            parts.push_span(Span::raw(format!(" {name} {}", or_unknown(bytes, format_bytes))));
        }
    }
    let size = Line::raw(format!("{place} memory {}", format_bytes(heap.size_bytes)));
    [vec![size, Line::from(bar)], wrap(parts, width)].concat()
}

/// Breaks a line of short spans at separators, so that it fits.
fn wrap(line: Line<'static>, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::default()];
    for group in line.spans.chunks(3) {
        let length: usize = group.iter().map(Span::width).sum();
        let last = lines.len() - 1;
        if lines[last].width() + length > width && lines[last].width() > 0 {
            lines.push(Line::from(group[1..].to_vec()));
        } else {
            lines[last].extend(group.to_vec());
        }
    }
    lines
}

fn gpu_lines(gpu: &GpuSample, history: Option<&History>, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::raw(printable(&gpu.name))];
    if gpu.suspended == Some(true) {
        lines.push(Line::raw("suspended"));
        return lines;
    }
    let text = format!("busy {:>7} ", or_unknown(gpu.busy, percent));
    lines.push(with_plot(text, width, Color::Yellow, |width| Some(history?.gpu_busy.plot(width, Some(1.0)))));
    let watts = or_unknown(gpu.power_watts, |watts| format!("{watts:.1} W"));
    let text = format!("power {watts:>7} ");
    lines.push(with_plot(text, width, Color::Red, |width| Some(history?.power.plot(width, None))));
    let megahertz = |hertz: u64| format!("{} MHz", hertz / 1_000_000);
    lines.push(Line::raw(format!(
        "clock {}, memory {}; {}",
        or_unknown(gpu.core_clock_hz, megahertz),
        or_unknown(gpu.memory_clock_hz, megahertz),
        temperature(gpu.temperature_celsius),
    )));
    let pair = |used: Option<u64>, total: Option<u64>| {
        Some(format!("{} of {}", format_bytes(used?), format_bytes(total?)))
    };
    lines.push(Line::raw(format!(
        "VRAM {}",
        or_unknown(pair(gpu.vram_used_bytes, gpu.vram_total_bytes), |text| text)
    )));
    if let Some(gtt) = pair(gpu.gtt_used_bytes, gpu.gtt_total_bytes) {
        lines.push(Line::raw(format!("GTT  {gtt}")));
    }
    if let Some(reasons) = gpu.throttle.as_ref().filter(|reasons| !reasons.is_empty()) {
        let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        lines.push(Line::raw(format!("throttled by {}", reasons.join(", "))).bold());
    }
    lines
}

fn power(watts: Option<f64>) -> String {
    watts.map_or_else(|| "power unknown".into(), |watts| format!("{watts:.1} W"))
}

fn temperature(celsius: Option<f64>) -> String {
    celsius.map_or_else(|| "temperature unknown".into(), |celsius| format!("{celsius:.0} °C"))
}

fn machine_lines(machine: &Snapshot, is_server: bool) -> Vec<Line<'static>> {
    let memory = &machine.memory;
    let mut lines = vec![
        Line::raw(format!(
            "CPU      {} busy, {}, {}",
            or_unknown(machine.cpu.busy, percent),
            power(machine.cpu.power_watts),
            temperature(machine.cpu.temperature_celsius),
        )),
        Line::raw(format!(
            "memory   {} of {} available",
            or_unknown(memory.available_bytes, format_bytes),
            or_unknown(memory.total_bytes, format_bytes)
        )),
    ];
    if is_server {
        let process = &machine.process;
        lines.push(Line::raw(format!(
            "server   {} resident, {} threads, {} files",
            or_unknown(process.resident_bytes, format_bytes),
            or_unknown(process.threads, |count| count.to_string()),
            or_unknown(process.open_files, |count| count.to_string()),
        )));
    }
    let pressure = &machine.pressure;
    lines.push(Line::raw(format!(
        "pressure CPU {}, memory {}, I/O {} (10 s average)",
        or_unknown(pressure.cpu, percent),
        or_unknown(pressure.memory, percent),
        or_unknown(pressure.io, percent),
    )));
    for npu in &machine.npus {
        lines.push(Line::raw(match &npu.obstacle {
            Some(obstacle) => format!("NPU      {}: {}", printable(&npu.name), printable(obstacle)),
            None => format!(
                "NPU      {}, {} busy, {}, firmware {}",
                printable(&npu.name),
                or_unknown(npu.busy, percent),
                power(npu.power_watts),
                npu.firmware
                    .as_deref()
                    .map_or_else(|| "unknown".into(), |version| printable(version).to_string()),
            ),
        }));
    }
    lines
}

/// A text with a plot in the rest of its line.
fn with_plot(
    text: String,
    width: usize,
    colour: Color,
    plot: impl FnOnce(usize) -> Option<String>,
) -> Line<'static> {
    let room = width.saturating_sub(text.chars().count());
    let plot = plot(room).unwrap_or_default();
    Line::from(vec![Span::raw(text), coloured(plot, colour)])
}

#[cfg(test)]
mod tests;
