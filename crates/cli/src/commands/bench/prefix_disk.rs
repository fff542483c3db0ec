//! `indrik bench --prefix-disk`: the prefix cache on disk. How fast pages are written and read back, and the time to first
//! token of a prompt whose prefix is on disk beside that of its prefill.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use gpu::Device;
use model::{Fingerprint, Limits, Model, PrefixDisk, Runner, Sampled, Sampling, WriteBehind};
use serde::Serialize;
use serde_json::json;

use super::speed::{Plan, tokens};
use crate::output;

/// Tokens after the prefix: a short question.
const QUESTION_TOKENS: u32 = 32;

/// Enough for all pages of a prompt.
const WHOLE: Duration = Duration::from_secs(3600);

/// One line of the table; medians.
#[derive(Clone, Debug, Serialize)]
struct Line {
    /// Tokens of the prompt.
    prompt_tokens: u32,
    /// Of those, the tokens that were read from disk.
    restored_tokens: u32,
    /// Bytes of their pages.
    bytes: u64,
    /// From the pages in GPU memory to files; once.
    write_gb_per_s: f64,
    /// From files to the pages in GPU memory.
    restore_ms: f64,
    restore_gb_per_s: f64,
    /// Time to first token with the prefix from disk.
    restored_ttft_ms: f64,
    /// Time to first token with all of it prefilled.
    prefill_ttft_ms: f64,
}

/// A folder that is deleted when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of it is in a folder with a telling name.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Measures and prints every depth.
pub fn run(
    device: &Device,
    name: &str,
    model: &Arc<Model>,
    folder: &Path,
    plan: &Plan,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let depths: Vec<u32> = plan.depths.iter().copied().filter(|depth| *depth > 0).collect();
    ensure!(!depths.is_empty(), "--prefix-disk needs the number of tokens to store: give -d, as in -d 8192");
    let folder = Folder(folder.join(format!("indrik-bench-{}", std::process::id())));
    let mut progress = output::Progress::new();
    let mut lines = vec![];
    for depth in depths {
        progress.show(&format!("prefix of {depth} tokens"));
        let of_depth = folder.0.join(depth.to_string());
        lines.push(measure(device, model, &of_depth, depth, plan).with_context(|| format!("depth {depth}"))?);
    }
    drop(progress);
    let info = device.info();
    if json {
        output::print_json(&json!({
            "device": info.name, "driver": info.driver, "model": name, "kv": plan.kv, "prefix_disk": lines,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "{}, {}\n{name}, KV cache {}; files may be in the page cache of the system\n\n\
         prompt    restored    bytes      written              restored          TTFT restored  TTFT prefilled\n",
        info.name, info.driver, plan.kv
    );
    for line in &lines {
        text += &format!(
            "{:>6} {:>11} {:>8} {:>7.2} GB/s {:>6.2} GB/s {:>7.1} ms {:>18.1} ms {:>11.1} ms\n",
            line.prompt_tokens,
            line.restored_tokens,
            gpu::format_bytes(line.bytes),
            line.write_gb_per_s,
            line.restore_gb_per_s,
            line.restore_ms,
            line.restored_ttft_ms,
            line.prefill_ttft_ms
        );
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(
    device: &Device,
    model: &Arc<Model>,
    folder: &Path,
    depth: u32,
    plan: &Plan,
) -> anyhow::Result<Line> {
    let prompt = tokens(depth + QUESTION_TOKENS, model.config.vocab);
    let limits = Limits::new(device.info(), &model.config, 1, prompt.len() as u32 + 1);
    let chunk = plan.chunk.unwrap_or(limits.prefill_chunk);
    let limits = Limits { kv_scheme: plan.kv, prefill_chunk: chunk, ..limits };
    let disk = PrefixDisk::open(folder, u64::MAX / 2)?;
    let fingerprint = Fingerprint::new(b"bench", model, &limits);
    let mut runner = Runner::new(model.clone(), limits)?.with_prefix_disk(disk.clone(), fingerprint);
    // The first run records programs.
    let mut prefills = vec![];
    for _ in 0..=plan.repeats {
        runner.evict_prefixes();
        prefills.push(time(|| first_token(&mut runner, &prompt))?);
    }
    runner.evict_prefixes();
    let history = &prompt[..depth as usize];
    first_token(&mut runner, history)?;
    let written = time(|| write_all(&mut runner, &disk))?;
    let bytes = disk.stats().written_bytes;
    let (mut restores, mut restored_prompts) = (vec![], vec![]);
    let mut before = disk.stats();
    for _ in 0..=plan.repeats {
        runner.evict_prefixes();
        before = disk.stats();
        let restore = time(|| restore_all(&mut runner, &prompt))?;
        restores.push(restore);
        restored_prompts.push(restore + time(|| first_token(&mut runner, &prompt))?);
        // The longer text is not to be written while the next run is timed.
        write_all(&mut runner, &disk)?;
    }
    let after = disk.stats();
    ensure!(after.errors == 0, "{} pages could not be written or read", after.errors);
    let read_bytes = after.read_bytes - before.read_bytes;
    let restored_tokens = after.restored_tokens - before.restored_tokens;
    ensure!(restored_tokens > 0, "a prefix of {depth} tokens has no full page");
    let restore = median(&restores);
    Ok(Line {
        prompt_tokens: prompt.len() as u32,
        restored_tokens: restored_tokens as u32,
        bytes: read_bytes,
        write_gb_per_s: bytes as f64 / written.as_secs_f64() / 1e9,
        restore_ms: restore.as_secs_f64() * 1e3,
        restore_gb_per_s: read_bytes as f64 / restore.as_secs_f64() / 1e9,
        restored_ttft_ms: median(&restored_prompts).as_secs_f64() * 1e3,
        prefill_ttft_ms: median(&prefills).as_secs_f64() * 1e3,
    })
}

fn time<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// The median without the first run, a warm-up.
fn median(times: &[Duration]) -> Duration {
    let mut times = times[1..].to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The first token after a prompt, of which memory may hold a prefix.
fn first_token(runner: &mut Runner, prompt: &[u32]) -> anyhow::Result<Sampled> {
    let mut sequence = runner.start_with(prompt)?;
    let rest = &prompt[sequence.len() as usize..];
    Ok(runner.prompt(&mut sequence, rest, &Sampling::default(), |_| true)?)
}

fn restore_all(runner: &mut Runner, prompt: &[u32]) -> anyhow::Result<()> {
    while !runner.restore(prompt, WHOLE, true)? {}
    Ok(())
}

fn write_all(runner: &mut Runner, disk: &PrefixDisk) -> anyhow::Result<()> {
    loop {
        match runner.write_behind()? {
            WriteBehind::Done => break,
            WriteBehind::More => {}
            WriteBehind::Waiting => disk.flush(),
        }
    }
    disk.flush();
    Ok(())
}
