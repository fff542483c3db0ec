//! From `-m MODEL` to a model that runs.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use checkpoint::Checkpoint;
use clap::{Args, ValueEnum};
use gpu::{AdapterInfo, Device, Instance, format_bytes};
use kernels::matmul::tuning::BUDGET;
use model::{KvScheme, Limits, Model, Runner, TuneMode, TuningReport, language::Language};
use serde::Deserialize;
use weights::{
    blueprint::Blueprint,
    plan,
    stream::{Control, Options},
};

use crate::{device::Choice, memory, output};

/// Which model, and how it is run; the same for every command that runs one.
#[derive(Args, Clone)]
pub struct ModelArguments {
    /// A GGUF file, a Hugging Face folder, a file that `indrik quantize` wrote, or a name in the local store
    #[arg(short, long, value_name = "MODEL")]
    pub model: String,
    /// Rows of a step when a prompt is read (default: 512, or up to 2048 where there are matrix units and memory for it; 64 on a CPU driver)
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub chunk: Option<u32>,
    /// How keys and values are stored (default: f16; f32 for `eval`, which measures the model and not its cache)
    #[arg(long, value_name = "TYPE")]
    pub kv: Option<Kv>,
    /// The same logits bit by bit, whatever the batch and the chunks; one sequence alone is slower for it
    #[arg(long)]
    pub reproducible: bool,
    /// Device by index or part of its name
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
    /// 8-bit integers with a scale for every 32: about half of f16
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

/// What is made of the logits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// A token.
    Sampled,
    /// Those of every position are compared with others: keys and values are kept in f32 then, unless --kv says otherwise.
    Every,
}

/// How much a runner is loaded for.
#[derive(Clone, Copy)]
pub struct Space {
    /// Sequences at a time.
    pub sequences: u32,
    /// Positions of each.
    pub context: u32,
    /// Positions of all together; none is as many as all may have.
    pub positions: Option<u32>,
    /// Whether what was read and written is kept for texts that begin alike.
    pub prefix: bool,
}

/// A checkpoint whose files have been looked at; no weight has been read.
pub struct Opened {
    arguments: ModelArguments,
    pub checkpoint: Checkpoint,
}

/// A model in GPU memory. The instance goes last.
pub struct Loaded {
    pub runner: Runner,
    pub device: Device,
    pub load_seconds: f64,
    /// What was found out about this device's products after that.
    pub tuned: TuningReport,
    /// What lies in which heap.
    pub heaps: Vec<plan::HeapUsage>,
    _instance: Instance,
}

impl ModelArguments {
    /// Looks at the model's files.
    pub fn open(&self) -> anyhow::Result<Opened> {
        let path: PathBuf = store::resolve_model(&self.model)?;
        Ok(Opened { arguments: self.clone(), checkpoint: Checkpoint::open(&path)? })
    }
}

impl Opened {
    /// Its tokenizer and chat template.
    pub fn language(&self) -> anyhow::Result<Language> {
        Ok(Language::of(&self.checkpoint)?)
    }

    /// Positions of a conversation where nobody says how many.
    pub fn usual_context(&self) -> u32 {
        self.checkpoint.config.max_positions.min(8192)
    }

    /// Whether a sequence of `wanted` positions is within what the model knows.
    pub fn check_context(&self, wanted: usize) -> anyhow::Result<u32> {
        let most = self.checkpoint.config.max_positions;
        match u32::try_from(wanted) {
            Ok(context) if context <= most => Ok(context),
            _ => Err(model::Error::ContextLengthExceeded {
                tokens: wanted as u64,
                context_length: most,
                max_context_length: most,
            }
            .into()),
        }
    }

    /// Loads it, with room for one sequence of `context` positions. Says what does not fit before anything is read.
    pub fn load(&self, context: u32, outputs: Outputs) -> anyhow::Result<Loaded> {
        let space = Space { sequences: 1, context, positions: None, prefix: true };
        self.load_for(space, outputs, &output::control(), &|_| ())
    }

    /// The same with room for several. `control` stops it, and `watch` is told what is being done.
    pub fn load_for(
        &self,
        space: Space,
        outputs: Outputs,
        control: &Control,
        watch: &(dyn Fn(&str) + Sync),
    ) -> anyhow::Result<Loaded> {
        let start = Instant::now();
        let arguments = &self.arguments;
        let choice = Choice { wanted: arguments.device.as_deref(), ..Choice::default() };
        let (instance, device) = choice.open()?;
        let mut limits = Limits::new(device.info(), &self.checkpoint.config, space.sequences, space.context);
        limits.max_pages = space.positions.map(|positions| positions.div_ceil(limits.page_size));
        limits = if arguments.reproducible { limits.reproducible() } else { limits };
        limits.prefill_chunk = arguments.chunk.unwrap_or(limits.prefill_chunk);
        limits.prefix_cache = space.prefix;
        limits.kv_scheme = match (arguments.kv, outputs) {
            (Some(kv), _) => kv.into(),
            (None, Outputs::Sampled) => KvScheme::F16,
            (None, Outputs::Every) => KvScheme::F32,
        };
        let rows = match outputs {
            Outputs::Sampled => space.sequences,
            Outputs::Every => limits.prefill_chunk.min(model::MAX_OUTPUT_ROWS),
        };
        let (model, heaps) = load(&device, &self.checkpoint, limits, rows, control, watch)?;
        let mut model = if arguments.reproducible { model.with_reproducible(true) } else { model };
        let load_seconds = start.elapsed().as_secs_f64();
        watch("products are tuned for this GPU");
        let tuned = tune(&mut model)?;
        let runner = Runner::new(Arc::new(model), limits)?;
        Ok(Loaded { runner, device, load_seconds, tuned, heaps, _instance: instance })
    }
}

impl Loaded {
    /// The device.
    pub fn info(&self) -> &AdapterInfo {
        self.device.info()
    }
}

fn load(
    device: &Device,
    checkpoint: &Checkpoint,
    limits: Limits,
    outputs: u32,
    control: &Control,
    watch: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<(Model, Vec<plan::HeapUsage>)> {
    let blueprint = Blueprint::new(checkpoint)?;
    let demand = blueprint.demand(&checkpoint.config, &limits.reservation(&checkpoint.config, outputs));
    let placement = plan::plan(&memory::of(device.info()), &demand)?;
    let total = blueprint.file_bytes();
    let done = AtomicBool::new(false);
    let start = Instant::now();
    let model = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut progress = output::Progress::new();
            while !done.load(Ordering::Relaxed) {
                let read = control.done.load(Ordering::Relaxed);
                let speed = read as f64 / start.elapsed().as_secs_f64() / 1e9;
                let text =
                    format!("loading {} of {}, {speed:.1} GB/s", format_bytes(read), format_bytes(total));
                progress.say(&text);
                watch(&text);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let _done = output::SetOnDrop(&done);
        Model::load(device, checkpoint, &placement, &Options::default(), control)
    });
    Ok((model?.0, placement.heaps))
}

/// Times the products of a model that this device has not met yet; says so, since it happens once and takes a moment.
pub fn tune(model: &mut Model) -> anyhow::Result<TuningReport> {
    let mut progress = output::Progress::new();
    let mut count = 0;
    let tuned = model.tune(TuneMode::Auto, BUDGET, |products| {
        count = products;
        progress.say(&format!("tuning {products} products for this GPU"));
    });
    drop(progress);
    let tuned = match tuned {
        Err(model::Error::Gpu(error)) if !matches!(error, gpu::Error::DeviceLost { .. }) => {
            // What the policy chose runs without it.
            note!("the products were not tuned for this GPU: {error}; set INDRIK_TUNE=off to leave it out");
            return Ok(TuningReport::default());
        }
        tuned => tuned?,
    };
    if count > 0 {
        let left =
            if tuned.left > 0 { format!(", {} left for the next start", tuned.left) } else { String::new() };
        note!(
            "tuning {count} products for this GPU: {:.1} s, {} changed{left}",
            tuned.seconds,
            tuned.changed()
        );
    }
    Ok(tuned)
}
