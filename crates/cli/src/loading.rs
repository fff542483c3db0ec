//! Loads the model given by `-m MODEL`, with progress on the terminal.

use std::sync::{Arc, Mutex, PoisonError, atomic::Ordering};

use anyhow::Context;
use clap::{Args, ValueEnum};
use gpu::format_bytes;
use indrik::{
    Control, KvScheme, LoadHooks, LoadProgress, LoadReport, Model, ModelFiles, Options, Preparation, Sampling,
};
use model::TuningReport;
use serde::Deserialize;

use crate::{npu::NpuUse, output, render, speculate::Speculate};

/// Which model to run, and how; shared by all commands that run one.
#[derive(Args, Clone)]
pub struct ModelArguments {
    /// GGUF file, Hugging Face folder, file written by `indrik quantize`, or name in the local store
    #[arg(short, long, value_name = "MODEL")]
    pub model: String,
    #[command(flatten)]
    pub load: LoadArguments,
}

/// How to run a model.
#[derive(Args, Clone)]
pub struct LoadArguments {
    /// Prefill chunk size in tokens (default: 512; up to 2048 with matrix units and enough memory; 64 on a
    /// CPU driver)
    #[arg(long, alias = "chunk", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub prefill_chunk: Option<u32>,
    /// Storage format of the KV cache (default: f16; `eval` uses f32, so that it measures the model and not
    /// its cache)
    #[arg(long, value_name = "TYPE")]
    pub kv: Option<Kv>,
    /// Batch-invariant (bitwise reproducible) logits; slower at batch 1
    #[arg(long)]
    pub reproducible: bool,
    /// Speculative decoding: verify several drafted tokens at a time where it is expected to be faster
    #[arg(long, value_name = "WHEN", default_value_t)]
    pub speculate: Speculate,
    /// Draft model for speculative decoding: a smaller one with the same vocabulary; file, folder or name in the local
    /// store
    #[arg(long, value_name = "MODEL")]
    pub draft: Option<String>,
    /// Leave out the image encoder, if the model has one: saves its memory
    #[arg(long)]
    pub no_images: bool,
    /// Maximum tokens per image (Gemma 4, 280 by default; trained with 70, 140, 280, 560 and 1120): more for small
    /// print, fewer for speed
    #[arg(long, value_name = "TOKENS", conflicts_with = "no_images")]
    pub image_tokens: Option<u32>,
    /// Matrix products of the image encoder, with attention also attention of prompts, on AMD's NPU (XDNA1); not yet run
    /// on hardware by us
    #[arg(long, value_name = "WHEN", env = "INDRIK_NPU", default_value_t)]
    pub npu: NpuUse,
    /// Device, by index or part of its name
    #[arg(short, long, env = "INDRIK_DEVICE")]
    pub device: Option<String>,
}

/// `--kv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kv {
    /// 16-bit floats
    F16,
    /// 32-bit floats
    F32,
    /// 8-bit integers with one scale per 32 values: about half the size of f16
    Int8,
}

impl std::fmt::Display for Kv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kv::F16 => "f16",
            Kv::F32 => "f32",
            Kv::Int8 => "int8",
        })
    }
}

impl From<Kv> for KvScheme {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F16 => KvScheme::F16,
            Kv::F32 => KvScheme::F32,
            Kv::Int8 => KvScheme::Int8,
        }
    }
}

impl ModelArguments {
    /// Opens the checkpoint.
    pub fn open(&self) -> anyhow::Result<ModelFiles> {
        let files = ModelFiles::open(&self.model)?;
        match self.load.image_tokens.filter(|_| !self.load.no_images) {
            Some(tokens) => files.with_image_tokens(tokens).context("--image-tokens"),
            None => Ok(files),
        }
    }

    /// Load options for one sequence.
    pub fn options(&self) -> Options {
        Options {
            device: self.load.device.clone(),
            prefill_chunk: self.load.prefill_chunk,
            kv_scheme: self.load.kv.map(KvScheme::from),
            reproducible: self.load.reproducible,
            speculate: self.load.speculate.into(),
            draft: self.load.draft.clone(),
            images: !self.load.no_images,
            npu: self.load.npu.settings(),
            ..Options::default()
        }
    }

    /// Loads the model for one sequence of `context_length` tokens and records the programs for a prompt of
    /// `prompt_tokens` tokens, with progress on the terminal. Ctrl-C cancels. Returns what preparing took, too.
    pub fn load(
        &self,
        files: &ModelFiles,
        context_length: u32,
        prompt_tokens: usize,
        sampling: &Sampling,
    ) -> anyhow::Result<(Model, Preparation)> {
        let loaded = load(files, Options { context_length: Some(context_length), ..self.options() })?;
        let progress = Terminal::default();
        let prepared = loaded.prepare(prompt_tokens, sampling, &|stage| progress.show(stage))?;
        drop(progress);
        if output::control().cancel.load(Ordering::Relaxed) {
            return Err(model::Error::Cancelled.into());
        }
        if let Some(text) = first_start(loaded.load_report(), &prepared) {
            render::note(&text, 0);
        }
        Ok((loaded, prepared))
    }
}

/// Loads the model with progress on the terminal. Ctrl-C cancels.
pub fn load(files: &ModelFiles, options: Options) -> anyhow::Result<Model> {
    let progress = Terminal::default();
    let hooks = LoadHooks {
        progress: &|stage| progress.show(stage),
        control: output::control(),
        reload_control: Arc::new(Control::default()),
    };
    Ok(files.load_with(options, hooks)?)
}

/// Set-up that only the first start does is worth a line from this many seconds on.
const NOTABLE_SECONDS: f64 = 2.0;

/// What a first start took, and how long the next one will take.
fn first_start(report: &LoadReport, prepared: &Preparation) -> Option<String> {
    first_start_text(report.seconds, report.tuned.seconds, prepared)
}

fn first_start_text(loading: f64, tuning: f64, prepared: &Preparation) -> Option<String> {
    let compiling = if prepared.compiled > 0 { prepared.time.pipelines.as_secs_f64() } else { 0.0 };
    if tuning + compiling < NOTABLE_SECONDS {
        return None;
    }
    let mut stages = vec![format!("loading {loading:.1} s")];
    if tuning > 0.0 {
        stages.push(format!("tuning {tuning:.1} s"));
    }
    if compiling > 0.0 {
        stages.push(format!("compiling {} pipelines {compiling:.1} s", prepared.compiled));
    }
    let next = loading + prepared.time.recording.as_secs_f64();
    let total = next + tuning + compiling;
    let stages = stages.join(", ");
    Some(format!(
        "First start with this model, GPU and driver: {total:.1} s ({stages}). The next should take about {next:.1} s."
    ))
}

/// Tunes a model that was loaded without the library, with progress on the terminal.
pub fn tune(model: &model::Model) -> anyhow::Result<TuningReport> {
    let progress = Terminal::default();
    Ok(indrik::tune(model, &|stage| progress.show(stage))?)
}

/// Load progress as one line on the terminal. Reports come from two threads.
#[derive(Default)]
pub struct Terminal(Mutex<output::Progress>);

impl Terminal {
    /// Shows a stage. The result of tuning is printed on a line of its own, which stays.
    pub fn show(&self, stage: LoadProgress<'_>) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match stage {
            LoadProgress::Tuned { .. } | LoadProgress::TuningFailed { .. } => {
                line.clear();
                note!("{}", describe(stage));
            }
            stage => line.show(&describe(stage)),
        }
    }
}

/// A stage as text.
pub fn describe(stage: LoadProgress<'_>) -> String {
    match stage {
        LoadProgress::Weights { bytes, total_bytes, bytes_per_second } => format!(
            "loading {} of {}, {:.1} GB/s",
            format_bytes(bytes),
            format_bytes(total_bytes),
            bytes_per_second / 1e9
        ),
        LoadProgress::Tuning { products } => format!("tuning {products} matrix products for this GPU"),
        LoadProgress::Compiling { done, total } => {
            format!("compiling pipelines for this GPU, {done} of {total}")
        }
        LoadProgress::Tuned { products, tuned } => {
            let (seconds, changed) = (tuned.seconds, tuned.changed());
            let left = match tuned.left {
                0 => String::new(),
                left => format!(", {left} left for the next start"),
            };
            format!(
                "tuned {products} matrix products for this GPU in {seconds:.1} s, {changed} changed{left}"
            )
        }
        LoadProgress::TuningFailed { error } => {
            format!("tuning for this GPU failed: {error}; set INDRIK_TUNE=off to skip it")
        }
        _ => "loading".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_first_start_says_what_took_how_long_and_what_the_next_will_take() {
        let preparation = |compiled, pipelines| Preparation {
            compiled,
            time: model::SetupTime {
                pipelines: Duration::from_secs_f64(pipelines),
                recording: Duration::from_millis(100),
            },
        };
        let text = |tuning, preparation| first_start_text(2.1, tuning, &preparation);
        assert_eq!(
            text(2.5, preparation(40, 7.7)).unwrap(),
            "First start with this model, GPU and driver: 12.4 s (loading 2.1 s, tuning 2.5 s, compiling 40 pipelines \
             7.7 s). The next should take about 2.2 s."
        );
        assert_eq!(
            text(0.0, preparation(3, 2.0)).unwrap(),
            "First start with this model, GPU and driver: 4.2 s (loading 2.1 s, compiling 3 pipelines 2.0 s). The next \
             should take about 2.2 s."
        );
        // Loaded from the pipeline cache, however slowly; or done in no time.
        assert_eq!(text(0.0, preparation(0, 30.0)), None);
        assert_eq!(text(0.3, preparation(40, 1.0)), None);
    }
}
