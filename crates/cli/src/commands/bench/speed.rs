//! Prefill and decode speed of a model, measured on the runner with the steps that `generate` and `serve`
//! take.

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
use crate::{
    energy::{self, PowerInterval, PowerProbe},
    output,
};

/// Benchmark parameters.
pub struct Plan {
    /// Prompt lengths to prefill, in tokens.
    pub prompts: Vec<u32>,
    /// Numbers of tokens to decode.
    pub tokens: Vec<u32>,
    /// Batch sizes.
    pub batches: Vec<u32>,
    /// Context depths: tokens in the KV cache before decoding starts.
    pub depths: Vec<u32>,
    /// All sequences of a batch decode the same tokens.
    pub same_tokens: bool,
    /// Number of runs; the median is reported.
    pub repeats: usize,
    /// Storage format of the KV cache.
    pub kv: KvScheme,
    /// Prefill chunk size in tokens; chosen for the device if `None`.
    pub chunk: Option<u32>,
    /// Print the GPU time per kernel of a step.
    pub profile: bool,
    /// Plot throughput over batch size to this file.
    pub plot: Option<PathBuf>,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    kind: &'static str,
    batch: u32,
    /// Sequences per step: fewer than `batch` if smaller steps have a higher throughput and sequences take
    /// turns.
    decode_batch: u32,
    prompt: u32,
    tokens: u32,
    depth: u32,
    /// Throughput of the median run, over all sequences.
    tokens_per_s: f64,
    /// Slowest and fastest run.
    spread_tokens_per_s: [f64; 2],
    ms_per_token: f64,
    /// Bytes of weights and KV cache that a step reads, divided by its tokens; `None` if it depends on the experts that
    /// the rows of a step have in common.
    bytes_per_token: Option<u64>,
    roofline_percent: Option<f64>,
    /// Distinct experts that the rows of a step selected, in the last layer of the last step.
    distinct_experts: Option<u32>,
    /// CPU time of the process, as a percentage of one core.
    host_cpu_percent: f64,
    read_back_bytes_per_token: f64,
    /// Mean power of the GPU; `None` if it does not report it, or the runs were too short to tell.
    watts: Option<f64>,
    joules_per_token: Option<f64>,
}

/// Generates a model with random weights; returns it and the seconds that took.
pub fn random(device: &Device, size: Size, scheme: Scheme) -> anyhow::Result<(Model, f64)> {
    let start = Instant::now();
    let config = size.config()?;
    let total = format_bytes(model::measure::weight_bytes(&config, scheme));
    let mut progress = output::Progress::new();
    let model = Model::random(device, config, scheme, |done| {
        progress.show(&format!("generating {} of {total} of random {scheme} weights", format_bytes(done)));
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
        bail!("--plot needs decode runs: give -n and several -b");
    }
    let mut progress = output::Progress::new();
    progress.show("measuring memory bandwidth");
    let bandwidth = kernels::bench::probe::read_bandwidth(device)?;
    let power = PowerProbe::start(device.info());
    let mut runs = Vec::new();
    let mut setup = SetupTime::default();
    let mut profiles = Vec::new();
    for prompt in &plan.prompts {
        progress.show(&format!("prefill of {prompt} tokens"));
        let mut runner = runner(model, 1, *prompt, plan)?;
        runs.push(prefill(&mut runner, *prompt, plan.repeats, bandwidth, &power)?);
        setup += runner.setup_time();
        if plan.profile {
            profiles.push(profile_prompt(&mut runner, *prompt, bandwidth)?);
        }
    }
    for depth in &plan.depths {
        for batch in &plan.batches {
            let max_tokens = plan.tokens.iter().copied().max().unwrap_or(0);
            // When sequences take turns, one can be some steps ahead of the others.
            let mut runner = runner(model, *batch, depth + max_tokens + 1 + AHEAD, plan)?;
            for tokens in &plan.tokens {
                progress.show(&format!("decoding {tokens} tokens, batch {batch}, depth {depth}"));
                let run = Run { tokens: *tokens, depth: *depth, ..Run::empty("decode", *batch) };
                runs.push(decode(&mut runner, run, plan, bandwidth, &power)?);
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
            "bandwidth_bytes_per_s": bandwidth, "energy_source": power.source(), "load": load, "tuning": tuned,
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
        text +=
            "\nAbove 100% of the bandwidth: other work disturbed one of the measurements; measure again.\n";
    }
    output::print(&text)?;
    draw(device, name, &runs, plan)?;
    Ok(ExitCode::SUCCESS)
}

/// Plots the first depth and number of tokens, if `--plot` was given.
fn draw(device: &Device, name: &str, runs: &[Run], plan: &Plan) -> anyhow::Result<()> {
    let (Some(path), Some(depth), Some(tokens)) = (&plan.plot, plan.depths.first(), plan.tokens.first())
    else {
        return Ok(());
    };
    let drawn = |run: &&Run| (run.kind, run.depth, run.tokens) == ("decode", *depth, *tokens);
    let points: Vec<plot::Point> =
        runs.iter().filter(drawn).map(|run| (run.batch, run.tokens_per_s)).collect();
    let title = format!("{name} on {}: throughput in tok/s", device.info().name);
    std::fs::write(path, plot::svg(&title, &points))
        .with_context(|| format!("cannot write {}", path.display()))
}

pub(super) fn runner(
    model: &Arc<Model>,
    sequences: u32,
    context: u32,
    plan: &Plan,
) -> anyhow::Result<Runner> {
    let limits =
        Limits::new(model.device.info(), &model.config, sequences, context.min(model.config.max_positions));
    let limits = if model.is_reproducible() { limits.reproducible() } else { limits };
    let limits =
        Limits { kv_scheme: plan.kv, prefill_chunk: plan.chunk.unwrap_or(limits.prefill_chunk), ..limits };
    let mut runner = Runner::new(model.clone(), limits)?;
    runner.fill_cache()?;
    Ok(runner)
}

/// Arbitrary token ids; speed does not depend on them. scripts/versus/peer.mjs uses the same ones with
/// llama.cpp.
pub(super) fn tokens(count: u32, vocab: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 7919 + 13) % vocab).collect()
}

fn prefill(
    runner: &mut Runner,
    prompt: u32,
    repeats: usize,
    bandwidth: f64,
    power: &PowerProbe,
) -> anyhow::Result<Run> {
    let model = runner.model().clone();
    // As `generate` does.
    runner.prepare(prompt as usize, &Sampling::default())?;
    let ids = tokens(prompt, model.config.vocab);
    let mut times = Vec::new();
    let mut read_back = 0;
    // The first run is a warm-up and does not count: an idle GPU has low clocks.
    for number in 0..=repeats {
        let mut sequence = runner.start()?;
        let before = runner.counters().read_back;
        let time = timed(power, || Ok(runner.prompt(&mut sequence, &ids, &Sampling::default(), |_| true)?))?;
        if number == 0 {
            // Programs are recorded again if the warm-up showed that the device is faster than assumed.
            runner.prepare(prompt as usize, &Sampling::default())?;
        } else {
            times.push(time);
            read_back = runner.counters().read_back - before;
        }
    }
    let chunks = prompt.div_ceil(runner.cache().limits().prefill_chunk);
    let bytes =
        model.bytes_per_step(prompt.div_ceil(chunks) as usize, None).map(|bytes| u64::from(chunks) * bytes);
    let run = Run {
        prompt,
        bytes_per_token: bytes.map(|bytes| bytes / u64::from(prompt)),
        read_back_bytes_per_token: read_back as f64 / f64::from(prompt),
        ..Run::empty("prefill", 1)
    };
    Ok(run.timed(&times, f64::from(prompt), bytes, bandwidth))
}

/// Warm-up tokens per sequence.
const WARM_UP: u32 = 8;

/// Maximum number of steps by which one sequence is ahead of another when they take turns: more than one
/// submission has.
const AHEAD: u32 = 64;

/// Measures a decode run. Sequences take turns if smaller steps have a higher throughput, as in the engine.
fn decode(
    runner: &mut Runner,
    run: Run,
    plan: &Plan,
    bandwidth: f64,
    power: &PowerProbe,
) -> anyhow::Result<Run> {
    let Run { batch, depth, .. } = run;
    let (repeats, same_tokens) = (plan.repeats, plan.same_tokens);
    let model = runner.model().clone();
    let mut times = Vec::new();
    let (wanted, mut decode_batch) = ((run.tokens * batch) as usize, batch as usize);
    let (mut bytes, mut read_back, mut distinct_experts) = (None, 0.0, None);
    let smaller_batch = runner.bucket_below(batch as usize);
    for number in 0..=repeats {
        if number == 0 || smaller_batch.is_some() {
            // Warm-up: a few tokens are enough to time steps of the full batch and of the smaller one, since
            // the first submissions are short. Repeated for every run, or one slow step would decide for all
            // of them.
            let mut decoders = Decoders::start(runner, batch, depth, same_tokens)?;
            for decode_batch in smaller_batch.into_iter().chain([batch as usize]) {
                decoders.decode(runner, run.tokens.min(WARM_UP) as usize * decode_batch, |_| decode_batch)?;
            }
        }
        if number == 0 {
            continue;
        }
        let before = runner.counters().read_back;
        let mut decoders = Decoders::start(runner, batch, depth, same_tokens)?;
        let time = timed(power, || {
            decoders.decode(runner, wanted, |runner| {
                decode_batch = runner.decode_batch_size(batch as usize);
                decode_batch
            })
        })?;
        // The last turn may have decoded a few tokens more.
        let decoded = decoders.decoded as f64;
        let share = wanted as f64 / decoded;
        times.push(Times { seconds: time.seconds * share, cpu_seconds: time.cpu_seconds * share, ..time });
        read_back = (runner.counters().read_back - before) as f64 / decoded;
        distinct_experts = runner.distinct_experts(decode_batch)?;
        let weights = model.bytes_per_step(decode_batch, distinct_experts);
        bytes = weights.map(|bytes| (decoders.steps * bytes + decoders.kv_bytes) as f64 / decoded);
    }
    let run = Run {
        bytes_per_token: bytes.map(|bytes| bytes as u64),
        read_back_bytes_per_token: read_back,
        decode_batch: decode_batch as u32,
        distinct_experts,
        ..run
    };
    let wanted = wanted as f64;
    Ok(run.timed(&times, wanted, bytes.map(|bytes| (bytes * wanted) as u64), bandwidth))
}

/// The decoding sequences of a run.
struct Decoders {
    sequences: Vec<(Sequence, u32)>,
    /// The first sequence of the next turn.
    turn: usize,
    /// Tokens, steps, and bytes of keys and values so far.
    decoded: usize,
    steps: u64,
    kv_bytes: u64,
}

impl Decoders {
    fn start(runner: &mut Runner, batch: u32, depth: u32, same_tokens: bool) -> anyhow::Result<Self> {
        let vocab = runner.model().config.vocab;
        let last = if same_tokens { vec![tokens(1, vocab)[0]; batch as usize] } else { tokens(batch, vocab) };
        let sequences = last.into_iter().map(|token| Ok((runner.start_at(depth)?, token)));
        let sequences = sequences.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { sequences, turn: 0, decoded: 0, steps: 0, kv_bytes: 0 })
    }

    /// Decodes at least `tokens` more tokens, with `decode_batch` sequences per step.
    fn decode(
        &mut self,
        runner: &mut Runner,
        tokens: usize,
        mut decode_batch: impl FnMut(&Runner) -> usize,
    ) -> anyhow::Result<()> {
        let greedy = Sampling::default();
        let config = runner.model().config.clone();
        let wanted = self.decoded + tokens;
        while self.decoded < wanted {
            let (all, decode_batch) = (self.sequences.len(), decode_batch(runner));
            let is_active = |number: usize| (number + all - self.turn) % all < decode_batch;
            let active = self.sequences.iter_mut().enumerate().filter(|(number, _)| is_active(*number));
            let (mut numbers, mut next, mut position) = (Vec::new(), Vec::new(), 0);
            for (number, (sequence, token)) in active {
                numbers.push(number);
                position = sequence.len();
                next.push(DecodeRow::new(sequence, *token, &greedy));
            }
            // Several steps per submission, as the engine does.
            let max_steps =
                runner.decode_run_steps(decode_batch).min((wanted - self.decoded).div_ceil(decode_batch));
            for (step, sampled) in runner.decode(&mut next, max_steps)?.into_iter().enumerate() {
                for (number, sampled) in numbers.iter().zip(&sampled) {
                    self.sequences[*number].1 = sampled.token;
                }
                // Depths differ by one turn at most; reading one of them keeps the timed loop short.
                let read = runner.cache().bytes_read(&config, position + step as u32);
                self.kv_bytes += read * sampled.len() as u64;
                self.decoded += sampled.len();
                self.steps += 1;
            }
            self.turn = (self.turn + decode_batch) % all;
        }
        Ok(())
    }
}

/// What one run took.
struct Times {
    /// Wall-clock time.
    seconds: f64,
    /// CPU time of all threads.
    cpu_seconds: f64,
    power: PowerInterval,
}

fn timed<T>(power: &PowerProbe, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Times> {
    let busy = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (mut interval, start, start_busy) = (power.begin(), Instant::now(), busy());
    work()?;
    let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), busy() - start_busy);
    power.end(&mut interval);
    Ok(Times { seconds, cpu_seconds, power: interval })
}

impl Run {
    /// A run without measurements.
    fn empty(kind: &'static str, batch: u32) -> Self {
        Self {
            kind,
            batch,
            decode_batch: batch,
            prompt: 0,
            tokens: 0,
            depth: 0,
            tokens_per_s: 0.0,
            spread_tokens_per_s: [0.0; 2],
            ms_per_token: 0.0,
            bytes_per_token: None,
            roofline_percent: None,
            distinct_experts: None,
            host_cpu_percent: 0.0,
            read_back_bytes_per_token: 0.0,
            watts: None,
            joules_per_token: None,
        }
    }

    fn timed(mut self, times: &[Times], tokens: f64, bytes: Option<u64>, bandwidth: f64) -> Self {
        let mut sorted: Vec<f64> = times.iter().map(|time| time.seconds).collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        self.tokens_per_s = tokens / median;
        self.spread_tokens_per_s = [tokens / sorted[sorted.len() - 1], tokens / sorted[0]];
        self.ms_per_token = median / tokens * 1e3;
        // Prefill is compute-bound: a percentage of the bandwidth would be meaningless.
        if self.kind == "decode" {
            self.roofline_percent = bytes.map(|bytes| bytes as f64 / median / bandwidth * 100.0);
        }
        let cpu: f64 = times.iter().map(|time| time.cpu_seconds).sum();
        self.host_cpu_percent = cpu / sorted.iter().sum::<f64>() * 100.0;
        self.watts = energy::mean_watts(times.iter().map(|time| &time.power));
        self.joules_per_token = self.watts.map(|watts| watts * median / tokens);
        self
    }
}

/// A kernel's or a level's share of a step.
#[derive(Clone, Debug, Serialize)]
struct Line {
    name: String,
    count: usize,
    microseconds: f64,
    percent: f64,
    /// Bytes of weights, keys and values that it reads.
    bytes: u64,
    /// Its read rate as a percentage of the bandwidth; `None` if it reads none.
    roofline_percent: Option<f64>,
}

/// GPU time of a step, by kernel and by level.
#[derive(Clone, Debug, Default, Serialize)]
struct StepProfile {
    /// Decode batch size; 0 for a prefill step.
    batch: u32,
    /// Prefill chunk size; 0 for a decode step.
    rows: u32,
    depth: u32,
    kernels: Vec<Line>,
    /// A level is all commands between two barriers.
    levels: Vec<Line>,
}

/// Profiles the last full chunk of a prompt, or all of a shorter one.
fn profile_prompt(runner: &mut Runner, prompt: u32, bandwidth: f64) -> anyhow::Result<StepProfile> {
    let rows = prompt.min(runner.cache().limits().prefill_chunk);
    let ids = tokens(rows, runner.model().config.vocab);
    let step = StepProfile { rows, depth: prompt - rows, ..StepProfile::default() };
    step.timed(bandwidth, || {
        let mut sequence = runner.start_at(prompt - rows)?;
        Ok(runner.profile_prompt(&mut sequence, &ids)?)
    })
}

fn profile(runner: &mut Runner, batch: u32, depth: u32, bandwidth: f64) -> anyhow::Result<StepProfile> {
    let greedy = Sampling::default();
    let step = StepProfile { batch, depth, ..StepProfile::default() };
    step.timed(bandwidth, || {
        let mut sequences = (0..batch).map(|_| runner.start_at(depth)).collect::<Result<Vec<_>, _>>()?;
        let mut next: Vec<DecodeRow<'_>> =
            sequences.iter_mut().map(|sequence| DecodeRow::new(sequence, 1, &greedy)).collect();
        Ok(runner.profile(&mut next)?)
    })
}

impl StepProfile {
    /// Keeps the fastest of five runs.
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
        let step = match self.rows {
            0 => format!("A decode step of batch {}", self.batch),
            rows => format!("A prefill step of {rows} tokens"),
        };
        let mut text = format!(
            "\n{step} at depth {}, timed command by command (which slows it down), in {levels} levels:\n\n{}",
            self.depth,
            lines_table("kernel", &self.kernels)
        );
        // With one command per level the table would be the same.
        if self.levels.iter().any(|line| line.name.contains(" + ")) {
            text += &format!("\nThe same step by level:\n\n{}", lines_table("level", &self.levels));
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
                    "prefill" => format!("prefill {}", run.prompt),
                    _ => format!("decode {}", run.tokens),
                },
                match run.decode_batch == run.batch {
                    true => run.batch.to_string(),
                    false => format!("{} by {}", run.batch, run.decode_batch),
                },
                run.depth.to_string(),
                format!("{:.1}", run.tokens_per_s),
                format!("{:.1}–{:.1}", run.spread_tokens_per_s[0], run.spread_tokens_per_s[1]),
                format!("{:.3}", run.ms_per_token),
                run.bytes_per_token.map_or_else(|| "?".into(), format_bytes),
                percent(run.roofline_percent),
                run.distinct_experts.map_or(String::new(), |hit| hit.to_string()),
                percent(Some(run.host_cpu_percent)),
                format!("{:.1}", run.read_back_bytes_per_token),
                run.joules_per_token.map_or_else(|| "?".into(), |joules| format!("{joules:.3}")),
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
            "ms/token",
            "bytes/token",
            "roofline",
            "experts",
            "CPU",
            "read back",
            "J/token",
        ],
        &rows,
    )
}

fn lines_table(first_column: &str, lines: &[Line]) -> String {
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
    output::table(&[first_column, "count", "total µs", "µs each", "share", "reads", "roofline"], &rows)
}
