//! How fast a model reads and writes, end to end, through the same path as `generate`.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Instant};

use anyhow::{Context, bail};
use gpu::{Device, format_bytes};
use model::{
    DecodeRow, KvScheme, Limits, Model, Runner, Sampling, Sequence, SetupTime, Size, TuningReport,
    measure::{Profile, Share},
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::json;
use tensor::Scheme;

use super::plot;
use crate::output;

/// What to run.
pub struct Plan {
    /// Lengths of prompts to read.
    pub prompts: Vec<u32>,
    /// Numbers of tokens to generate.
    pub tokens: Vec<u32>,
    /// Sequences at a time.
    pub batches: Vec<u32>,
    /// Positions that sequences hold before the clock starts.
    pub depths: Vec<u32>,
    /// Runs, of which the median counts.
    pub repeats: usize,
    /// How keys and values are stored.
    pub kv: KvScheme,
    /// Most rows of a prompt in one step, if not what suits the device.
    pub chunk: Option<u32>,
    /// Show where a step's time goes.
    pub profile: bool,
    /// Draw tokens a second by the number of sequences to this file.
    pub plot: Option<PathBuf>,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    kind: &'static str,
    batch: u32,
    /// Those of a batch that write at the same time, where they take turns; else all.
    at_once: u32,
    prompt: u32,
    tokens: u32,
    depth: u32,
    /// The median run, tokens of all sequences.
    tokens_per_s: f64,
    /// Slowest and fastest run.
    spread_tokens_per_s: [f64; 2],
    ms_per_token: f64,
    /// Weights and KV cache that a step reads, over the tokens that it makes.
    bytes_per_token: u64,
    roofline_percent: Option<f64>,
    /// Of one core.
    host_cpu_percent: f64,
    read_back_bytes_per_token: f64,
}

/// A model of random weights.
pub fn random(device: &Device, size: Size, scheme: Scheme) -> anyhow::Result<(Model, f64)> {
    let start = Instant::now();
    let config = size.config()?;
    let total = format_bytes(model::measure::weight_bytes(&config, scheme));
    let mut progress = output::Progress::new();
    let model = Model::random(device, config, scheme, |done| {
        progress.say(&format!("making {} of {total} of random {scheme} weights", format_bytes(done)));
    })?;
    Ok((model, start.elapsed().as_secs_f64()))
}

/// Measures and prints.
pub fn run(
    device: &Device,
    name: &str,
    model: &Arc<Model>,
    load: &serde_json::Value,
    tuned: &TuningReport,
    plan: &Plan,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if plan.plot.is_some() && plan.depths.is_empty() {
        bail!("--plot draws tokens written by the number of sequences: give -n and several -b");
    }
    let mut progress = output::Progress::new();
    progress.say("measuring the bandwidth");
    let bandwidth = kernels::bench::probe::read_bandwidth(device)?;
    let mut runs = Vec::new();
    let mut setup = SetupTime::default();
    let mut profiles = Vec::new();
    for prompt in &plan.prompts {
        progress.say(&format!("reading {prompt} tokens"));
        let mut runner = runner(model, 1, *prompt, plan)?;
        runs.push(prefill(&mut runner, *prompt, plan.repeats, bandwidth)?);
        setup += runner.setup_time();
        if plan.profile {
            profiles.push(profile_prompt(&mut runner, *prompt, bandwidth)?);
        }
    }
    for depth in &plan.depths {
        for batch in &plan.batches {
            let most = plan.tokens.iter().copied().max().unwrap_or(0);
            // Who takes turns may be some steps ahead of others.
            let mut runner = runner(model, *batch, depth + most + 1 + AHEAD, plan)?;
            for tokens in &plan.tokens {
                progress.say(&format!("generating {tokens} tokens, batch {batch}, depth {depth}"));
                let run = Run { tokens: *tokens, depth: *depth, ..Run::empty("decode", *batch) };
                runs.push(decode(&mut runner, run, plan.repeats, bandwidth)?);
            }
            setup += runner.setup_time();
            if plan.profile {
                profiles.push(profile(&mut runner, *batch, *depth, bandwidth)?);
            }
        }
    }
    drop(progress);
    let (info, counters) = (device.info(), device.counters());
    if json {
        output::print_json(&json!({
            "device": info.name, "driver": info.driver, "model": name, "weight_bytes": model.weights.bytes(),
            "kv": plan.kv,
            "bandwidth_bytes_per_s": bandwidth, "load": load, "tuning": tuned,
            "setup": {
                "tuning_seconds": tuned.seconds,
                "pipelines_seconds": setup.pipelines.as_secs_f64(),
                "recording_seconds": setup.recording.as_secs_f64(),
                "pipelines": counters.pipelines,
                "pipelines_from_cache": counters.pipelines_from_cache,
            },
            "runs": runs, "profiles": profiles,
        }))?;
        draw(device, name, &runs, plan)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "{}, {}\n{name}, {} of weights; read bandwidth {:.1} GB/s\n\n{}",
        info.name,
        info.driver,
        format_bytes(model.weights.bytes()),
        bandwidth / 1e9,
        table(&runs)
    );
    for profile in &profiles {
        text += &profile.text();
    }
    if runs.iter().any(|run| run.roofline_percent.is_some_and(|percent| percent > 100.0)) {
        text += "\nMore than all of the bandwidth: other work disturbed one of the measurements, measure again.\n";
    }
    output::print(&text)?;
    draw(device, name, &runs, plan)?;
    Ok(ExitCode::SUCCESS)
}

/// The curve of the first depth and number of tokens, where it was asked for.
fn draw(device: &Device, name: &str, runs: &[Run], plan: &Plan) -> anyhow::Result<()> {
    let (Some(path), Some(depth), Some(tokens)) = (&plan.plot, plan.depths.first(), plan.tokens.first())
    else {
        return Ok(());
    };
    let drawn = |run: &&Run| (run.kind, run.depth, run.tokens) == ("decode", *depth, *tokens);
    let points: Vec<plot::Point> =
        runs.iter().filter(drawn).map(|run| (run.batch, run.tokens_per_s)).collect();
    let title = format!("{name} on {}: tokens a second of all sequences", device.info().name);
    std::fs::write(path, plot::svg(&title, &points))
        .with_context(|| format!("cannot write {}", path.display()))
}

pub(super) fn runner(
    model: &Arc<Model>,
    sequences: u32,
    context: u32,
    plan: &Plan,
) -> anyhow::Result<Runner> {
    let usual =
        Limits::new(model.device.info(), &model.config, sequences, context.min(model.config.max_positions));
    let usual = if model.is_reproducible() { usual.reproducible() } else { usual };
    let limits =
        Limits { kv_scheme: plan.kv, prefill_chunk: plan.chunk.unwrap_or(usual.prefill_chunk), ..usual };
    let mut runner = Runner::new(model.clone(), limits)?;
    runner.fill_cache()?;
    Ok(runner)
}

/// Any tokens: what they are changes nothing. scripts/versus/peer.mjs gives the same ones to another engine.
pub(super) fn tokens(count: u32, vocab: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 7919 + 13) % vocab).collect()
}

fn prefill(runner: &mut Runner, prompt: u32, repeats: usize, bandwidth: f64) -> anyhow::Result<Run> {
    let model = runner.model().clone();
    // As `generate` does it, so that what it takes is what a user waits for.
    runner.prepare(prompt as usize, &Sampling::default())?;
    let ids = tokens(prompt, model.config.vocab);
    let (mut seconds, mut cpu) = (Vec::new(), Vec::new());
    let mut read_back = 0;
    // The first run does not count: a GPU is slower before it has something to do.
    for number in 0..=repeats {
        let mut sequence = runner.start()?;
        let before = runner.counters().read_back;
        let (time, busy) = timed(|| Ok(runner.prompt(&mut sequence, &ids, &Sampling::default(), |_| true)?))?;
        if number == 0 {
            // What it has shown of the device may be worth another recording.
            runner.prepare(prompt as usize, &Sampling::default())?;
        } else {
            seconds.push(time);
            cpu.push(busy);
            read_back = runner.counters().read_back - before;
        }
    }
    let chunks = prompt.div_ceil(runner.cache().limits().prefill_chunk);
    let bytes = u64::from(chunks) * model.bytes_per_step();
    let run = Run {
        prompt,
        bytes_per_token: bytes / u64::from(prompt),
        read_back_bytes_per_token: read_back as f64 / f64::from(prompt),
        ..Run::empty("prefill", 1)
    };
    Ok(run.timed(&seconds, &cpu, f64::from(prompt), bytes, bandwidth))
}

/// Tokens of a sequence before the clock runs.
const WARM_UP: u32 = 8;

/// Steps that a sequence may be ahead of others where they take turns: more than a submission has.
const AHEAD: u32 = 64;

/// Fills in a run of as many tokens, at such a depth and in such a batch as it says. Where fewer at once make more tokens in all, they take
/// turns, as they do when they are served.
fn decode(runner: &mut Runner, run: Run, repeats: usize, bandwidth: f64) -> anyhow::Result<Run> {
    let Run { batch, depth, .. } = run;
    let model = runner.model().clone();
    let (mut seconds, mut cpu) = (Vec::new(), Vec::new());
    let (wanted, mut at_once) = ((run.tokens * batch) as usize, batch as usize);
    let (mut bytes, mut read_back) = (0.0, 0.0);
    let fewer = runner.bucket_below(batch as usize);
    for number in 0..=repeats {
        if number == 0 || fewer.is_some() {
            // Does not count. A few tokens are enough to know what steps of all take, and of fewer: the first submissions are short ones.
            // It is found anew each time, or one slow step would decide for all repeats.
            let mut writers = Writers::start(runner, batch, depth)?;
            for at_once in fewer.into_iter().chain([batch as usize]) {
                writers.write(runner, run.tokens.min(WARM_UP) as usize * at_once, |_| at_once)?;
            }
        }
        if number == 0 {
            continue;
        }
        let before = runner.counters().read_back;
        let mut writers = Writers::start(runner, batch, depth)?;
        let (time, busy) = timed(|| {
            writers.write(runner, wanted, |runner| {
                at_once = runner.decode_batch_size(batch as usize);
                at_once
            })
        })?;
        // The last turn may have made a few more than were wanted.
        let made = writers.made as f64;
        seconds.push(time * wanted as f64 / made);
        cpu.push(busy * wanted as f64 / made);
        read_back = (runner.counters().read_back - before) as f64 / made;
        bytes = (writers.steps * model.bytes_per_step() + writers.kv_bytes) as f64 / made;
    }
    let run = Run {
        bytes_per_token: bytes as u64,
        read_back_bytes_per_token: read_back,
        at_once: at_once as u32,
        ..run
    };
    let wanted = wanted as f64;
    Ok(run.timed(&seconds, &cpu, wanted, (bytes * wanted) as u64, bandwidth))
}

/// Sequences that write.
struct Writers {
    sequences: Vec<(Sequence, u32)>,
    /// Who begins the next turn.
    turn: usize,
    /// Tokens, steps, and bytes of keys and values that were read.
    made: usize,
    steps: u64,
    kv_bytes: u64,
}

impl Writers {
    fn start(runner: &mut Runner, batch: u32, depth: u32) -> anyhow::Result<Self> {
        let last = tokens(batch, runner.model().config.vocab);
        let sequences = last.into_iter().map(|token| Ok((runner.start_at(depth)?, token)));
        let sequences = sequences.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { sequences, turn: 0, made: 0, steps: 0, kv_bytes: 0 })
    }

    /// Has at least so many more tokens written, `at_once` of the sequences at a time.
    fn write(
        &mut self,
        runner: &mut Runner,
        tokens: usize,
        mut at_once: impl FnMut(&Runner) -> usize,
    ) -> anyhow::Result<()> {
        let greedy = Sampling::default();
        let config = runner.model().config.clone();
        let wanted = self.made + tokens;
        while self.made < wanted {
            let (all, at_once) = (self.sequences.len(), at_once(runner));
            let takes_part = |number: usize| (number + all - self.turn) % all < at_once;
            let taking_part = self.sequences.iter_mut().enumerate().filter(|(number, _)| takes_part(*number));
            let (mut numbers, mut next, mut position) = (Vec::new(), Vec::new(), 0);
            for (number, (sequence, token)) in taking_part {
                numbers.push(number);
                position = sequence.len();
                next.push(DecodeRow::new(sequence, *token, &greedy));
            }
            // Several steps a submission, as answers are generated.
            let most = runner.decode_run_steps(at_once).min((wanted - self.made).div_ceil(at_once));
            for (step, sampled) in runner.decode(&mut next, most)?.into_iter().enumerate() {
                for (number, sampled) in numbers.iter().zip(&sampled) {
                    self.sequences[*number].1 = sampled.token;
                }
                // All are as deep, but for a turn: counted for one, since the clock runs.
                let read = runner.cache().bytes_read(&config, position + step as u32);
                self.kv_bytes += read * sampled.len() as u64;
                self.made += sampled.len();
                self.steps += 1;
            }
            self.turn = (self.turn + at_once) % all;
        }
        Ok(())
    }
}

/// What some work took by the clock, and of the processor, all threads together.
fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(f64, f64)> {
    let busy = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (start, before) = (Instant::now(), busy());
    work()?;
    Ok((start.elapsed().as_secs_f64(), busy() - before))
}

impl Run {
    /// Nothing of it measured yet.
    fn empty(kind: &'static str, batch: u32) -> Self {
        Self {
            kind,
            batch,
            at_once: batch,
            prompt: 0,
            tokens: 0,
            depth: 0,
            tokens_per_s: 0.0,
            spread_tokens_per_s: [0.0; 2],
            ms_per_token: 0.0,
            bytes_per_token: 0,
            roofline_percent: None,
            host_cpu_percent: 0.0,
            read_back_bytes_per_token: 0.0,
        }
    }

    fn timed(mut self, seconds: &[f64], cpu: &[f64], made: f64, bytes: u64, bandwidth: f64) -> Self {
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        self.tokens_per_s = made / median;
        self.spread_tokens_per_s = [made / sorted[sorted.len() - 1], made / sorted[0]];
        self.ms_per_token = median / made * 1e3;
        // Reading a prompt is bound by arithmetic: a share of the bandwidth would say nothing.
        if self.kind == "decode" {
            self.roofline_percent = Some(bytes as f64 / median / bandwidth * 100.0);
        }
        self.host_cpu_percent = cpu.iter().sum::<f64>() / seconds.iter().sum::<f64>() * 100.0;
        self
    }
}

/// The share that a kernel or a level has of a step.
#[derive(Clone, Debug, Serialize)]
struct Line {
    name: String,
    count: usize,
    microseconds: f64,
    percent: f64,
    /// Weights, keys and values that it must read.
    bytes: u64,
    /// Those bytes in its time, of the bandwidth; nothing where it has none to read.
    roofline_percent: Option<f64>,
}

/// Where a step's time goes.
#[derive(Clone, Debug, Default, Serialize)]
struct Steps {
    /// Sequences that each write a token; 0 where one reads a prompt.
    batch: u32,
    /// Rows of a chunk of a prompt; 0 where sequences write.
    rows: u32,
    depth: u32,
    kernels: Vec<Line>,
    /// Of all commands between two barriers.
    levels: Vec<Line>,
}

/// The last whole chunk of a prompt, or all of a shorter one.
fn profile_prompt(runner: &mut Runner, prompt: u32, bandwidth: f64) -> anyhow::Result<Steps> {
    let rows = prompt.min(runner.cache().limits().prefill_chunk);
    let ids = tokens(rows, runner.model().config.vocab);
    let steps = Steps { rows, depth: prompt - rows, ..Steps::default() };
    steps.timed(bandwidth, || {
        let mut sequence = runner.start_at(prompt - rows)?;
        Ok(runner.profile_prompt(&mut sequence, &ids)?)
    })
}

fn profile(runner: &mut Runner, batch: u32, depth: u32, bandwidth: f64) -> anyhow::Result<Steps> {
    let greedy = Sampling::default();
    let steps = Steps { batch, depth, ..Steps::default() };
    steps.timed(bandwidth, || {
        let mut sequences = (0..batch).map(|_| runner.start_at(depth)).collect::<Result<Vec<_>, _>>()?;
        let mut next: Vec<DecodeRow<'_>> =
            sequences.iter_mut().map(|sequence| DecodeRow::new(sequence, 1, &greedy)).collect();
        Ok(runner.profile(&mut next)?)
    })
}

impl Steps {
    /// Fills in the fastest of five runs.
    fn timed(self, bandwidth: f64, mut run: impl FnMut() -> anyhow::Result<Profile>) -> anyhow::Result<Self> {
        let mut best = run()?;
        for _ in 1..5 {
            let profile = run()?;
            if profile.nanoseconds() < best.nanoseconds() {
                best = profile;
            }
        }
        let total = best.nanoseconds();
        let line = |share: Share| Line {
            percent: share.nanoseconds / total * 100.0,
            microseconds: share.nanoseconds / 1e3,
            roofline_percent: (share.bytes > 0)
                .then(|| share.bytes as f64 / (share.nanoseconds / 1e9) / bandwidth * 100.0),
            bytes: share.bytes,
            count: share.count,
            name: share.name,
        };
        Ok(Self {
            kernels: best.kernels.into_iter().map(line).collect(),
            levels: best.levels.into_iter().map(line).collect(),
            ..self
        })
    }

    fn text(&self) -> String {
        let levels: usize = self.levels.iter().map(|line| line.count).sum();
        let what = match self.rows {
            0 => format!("A step of batch {}", self.batch),
            rows => format!("Reading {rows} tokens"),
        };
        let mut text = format!(
            "\n{what} at depth {}, timed command by command (which slows it down), in {levels} levels:\n\n{}",
            self.depth,
            lines_table("kernel", &self.kernels)
        );
        // Where each level is one command the table would be the same.
        if self.levels.iter().any(|line| line.name.contains(" + ")) {
            text += &format!("\nThe same by levels:\n\n{}", lines_table("level", &self.levels));
        }
        text
    }
}

fn table(runs: &[Run]) -> String {
    let percent = |value: Option<f64>| value.map_or("".into(), |value| format!("{value:.0}%"));
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            vec![
                match run.kind {
                    "prefill" => format!("read {}", run.prompt),
                    _ => format!("write {}", run.tokens),
                },
                match run.at_once == run.batch {
                    true => run.batch.to_string(),
                    false => format!("{} by {}", run.batch, run.at_once),
                },
                run.depth.to_string(),
                format!("{:.1}", run.tokens_per_s),
                format!("{:.1}–{:.1}", run.spread_tokens_per_s[0], run.spread_tokens_per_s[1]),
                format!("{:.3}", run.ms_per_token),
                format_bytes(run.bytes_per_token),
                percent(run.roofline_percent),
                percent(Some(run.host_cpu_percent)),
                format!("{:.1}", run.read_back_bytes_per_token),
            ]
        })
        .collect();
    output::table(
        &[
            "run",
            "batch",
            "depth",
            "tok/s",
            "slowest–fastest",
            "ms a token",
            "bytes a token",
            "of bandwidth",
            "CPU",
            "bytes back",
        ],
        &rows,
    )
}

fn lines_table(what: &str, lines: &[Line]) -> String {
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            vec![
                line.name.clone(),
                line.count.to_string(),
                format!("{:.1}", line.microseconds),
                format!("{:.2}", line.microseconds / line.count as f64),
                format!("{:.1}%", line.percent),
                if line.bytes > 0 { format_bytes(line.bytes) } else { String::new() },
                line.roofline_percent.map_or(String::new(), |percent| format!("{percent:.0}%")),
            ]
        })
        .collect();
    output::table(&[what, "times", "µs in all", "µs each", "share", "reads", "of bandwidth"], &rows)
}
