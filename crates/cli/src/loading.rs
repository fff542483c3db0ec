//! Loads the model given by `-m MODEL`, with progress on the terminal.

use std::sync::{Arc, Mutex, PoisonError};

use clap::{Args, ValueEnum};
use gpu::format_bytes;
use indrik::{Control, KvScheme, LoadHooks, LoadProgress, Model, ModelFiles, Options};
use model::TuningReport;
use serde::Deserialize;

use crate::output;

/// Which model to run, and how; shared by all commands that run one.
#[derive(Args, Clone)]
pub struct ModelArguments {
    /// GGUF file, Hugging Face folder, file written by `indrik quantize`, or name in the local store
    #[arg(short, long, value_name = "MODEL")]
    pub model: String,
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
        Ok(ModelFiles::open(&self.model)?)
    }

    /// Load options for one sequence.
    pub fn options(&self) -> Options {
        Options {
            device: self.device.clone(),
            prefill_chunk: self.prefill_chunk,
            kv_scheme: self.kv.map(KvScheme::from),
            reproducible: self.reproducible,
            ..Options::default()
        }
    }

    /// Loads the model for one sequence of `context_length` tokens, with progress on the terminal. Ctrl-C
    /// cancels.
    pub fn load(&self, files: &ModelFiles, context_length: u32) -> anyhow::Result<Model> {
        load(files, Options { context_length: Some(context_length), ..self.options() })
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

/// Tunes a model that was loaded without the library, with progress on the terminal.
pub fn tune(model: &mut model::Model) -> anyhow::Result<TuningReport> {
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
            LoadProgress::Tuned { products, tuned } => {
                line.clear();
                let left = match tuned.left {
                    0 => String::new(),
                    left => format!(", {left} left for the next start"),
                };
                note!(
                    "tuned {products} matrix products for this GPU in {:.1} s, {} changed{left}",
                    tuned.seconds,
                    tuned.changed()
                );
            }
            LoadProgress::TuningFailed { error } => {
                line.clear();
                note!("tuning for this GPU failed: {error}; set INDRIK_TUNE=off to skip it");
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
        _ => "tuning for this GPU".to_owned(),
    }
}
