//! `indrik bench`: speed measurements.

mod bandwidth;
mod beside;
mod draft;
mod gemv;
mod images;
mod load;
mod plot;
mod prefix_disk;
mod speculate;
mod speed;

use std::{process::ExitCode, sync::Arc};

use anyhow::bail;
use checkpoint::Config;
use clap::Args;
use gpu::Device;
use indrik::DeviceSelector;
use model::{Limits, Size};

use crate::loading::{self, Kv};

/// Measure the speed of a model, or of the device: memory bandwidth, matrix products, loading
#[derive(Args)]
#[command(
    after_help = "Examples:\n  indrik bench -m gemma3:270m -p 512 -n 128\n  \
                  indrik bench --shape gemma3-27b --quant int8 -n 64 -d 0,8192 --profile\n  \
                  indrik bench --shape gemma3-4b -b 8 -p 4096 --beside 256\n  \
                  indrik bench --shape gemma3-27b --images 1,8\n  \
                  indrik bench -m gemma3:270m --speculate README.md\n  \
                  indrik bench --shape gemma3-27b --prefix-disk /var/tmp -d 8192\n  \
                  indrik bench --bandwidth\n  indrik bench --gemv 43008x5376 --quant int8,int4 --json\n  \
                  indrik bench --load gemma-3-270m.gguf",
    group = clap::ArgGroup::new("what").required(true).args(["model", "shape", "bandwidth", "gemv", "load"])
)]
pub struct Arguments {
    /// Measure prefill and decode speed of this model
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    /// Measure a model of this shape with random weights, generated on the GPU
    #[arg(long, value_name = "SHAPE", value_parser = parse_shape)]
    shape: Option<Size>,
    /// Measure read bandwidth, dispatch and barrier cost
    #[arg(long)]
    bandwidth: bool,
    /// Measure a matrix product of this size, rotating through different weights
    #[arg(long, value_name = "ROWSxK", value_parser = gemv::parse_shape)]
    gemv: Option<(usize, usize)>,
    /// Measure loading this model (a GGUF file or a Hugging Face folder) into GPU memory
    #[arg(long, value_name = "MODEL")]
    load: Option<std::path::PathBuf>,
    /// With --shape and --gemv: weight schemes (default: int8; with --gemv int8,int4)
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["model", "bandwidth", "load"])]
    quant: Vec<gemv::Quant>,
    /// With --gemv: activation types
    #[arg(long, value_delimiter = ',', default_value = "int8,int16,f32", conflicts_with_all = ["model", "shape", "bandwidth", "load"])]
    activations: Vec<gemv::Activations>,
    /// Prompt lengths to prefill, in tokens; 0 for none
    #[arg(short, long, value_delimiter = ',', default_value = "512", conflicts_with_all = ["gemv", "bandwidth", "load"])]
    prompt: Vec<u32>,
    /// Numbers of tokens to decode; 0 for none
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128", conflicts_with_all = ["gemv", "bandwidth", "load"])]
    tokens: Vec<u32>,
    /// Batch sizes; with --gemv, numbers of columns of x (up to 8 use GEMV kernels, more use GEMM kernels)
    #[arg(short, long, value_delimiter = ',', default_value = "1", conflicts_with_all = ["bandwidth", "load"],
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: Vec<u16>,
    /// Context depths: tokens in the KV cache before decoding starts
    #[arg(short, long, value_delimiter = ',', default_value = "0", conflicts_with_all = ["gemv", "bandwidth", "load"])]
    depth: Vec<u32>,
    /// Prefill chunk size in tokens (default: chosen for the device)
    #[arg(long = "prefill-chunk", alias = "chunk", value_name = "TOKENS", conflicts_with_all = ["gemv", "bandwidth", "load"],
          value_parser = clap::value_parser!(u16).range(1..=8192))]
    chunk: Option<u16>,
    /// Measure the inter-token latency of running sequences (-b) while a prompt (-p) is prefilled in chunks
    /// of this many tokens: in mixed batches, and in separate steps
    #[arg(long, value_name = "TOKENS", conflicts_with_all = ["gemv", "bandwidth", "load", "profile", "plot"],
          value_parser = clap::value_parser!(u16).range(1..=8192))]
    beside: Option<u16>,
    /// With --shape: measure the encoding of this many images, and the time to first token of a prompt with them and of
    /// a text prompt of the same length
    #[arg(long, value_delimiter = ',', value_name = "COUNT", requires = "shape", conflicts_with_all = ["beside", "plot"],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    images: Vec<u16>,
    /// With --images: weight scheme of the image encoder; f16 where rows do not consist of whole groups
    #[arg(long, value_name = "QUANT", default_value = "f16", requires = "images")]
    encoder_quant: gemv::Quant,
    /// Measure verify steps of each number of rows; with a text file, which takes -m, also what speculative decoding gains where
    /// that text is generated
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["gemv", "bandwidth", "load", "beside", "images", "plot", "profile"])]
    speculate: Option<Option<std::path::PathBuf>>,
    /// With --speculate and a text: also measure how often a draft model is right, and what it gains
    #[arg(long, value_name = "MODEL", requires_all = ["speculate", "model"])]
    draft: Option<String>,
    /// Measure the prefix cache on disk in a temporary folder inside DIR: writing and restoring prefixes of -d tokens, and
    /// the time to first token (TTFT) restored and prefilled
    #[arg(long, value_name = "DIR", conflicts_with_all = ["gemv", "bandwidth", "load", "beside", "images", "speculate", "plot", "profile"])]
    prefix_disk: Option<std::path::PathBuf>,
    /// Storage format of the KV cache (default: f16)
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["gemv", "bandwidth", "load"])]
    kv: Option<Kv>,
    /// Measure with batch-invariant (bitwise reproducible) logits
    #[arg(long, conflicts_with_all = ["gemv", "bandwidth", "load"])]
    reproducible: bool,
    /// Decode the same tokens in all sequences of a batch, so that all rows select the same experts (MoE)
    #[arg(long, conflicts_with_all = ["gemv", "bandwidth", "load", "beside", "images"])]
    same_tokens: bool,
    /// Number of runs; the median is reported
    #[arg(short, long, default_value_t = 5, conflicts_with_all = ["gemv", "bandwidth", "load"],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Print the GPU time per kernel of a step
    #[arg(long, conflicts_with_all = ["gemv", "bandwidth", "load"])]
    profile: bool,
    /// Plot throughput over batch size (-b) to this SVG file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gemv", "bandwidth", "load"])]
    plot: Option<std::path::PathBuf>,
    /// With --gemv: time all candidate variants, not only the selected one
    #[arg(long, conflicts_with_all = ["model", "shape", "bandwidth", "load"])]
    sweep: bool,
    /// With --sweep: only variants whose name contains this; repeatable, all must match
    #[arg(long, value_name = "TEXT", requires = "sweep")]
    only: Vec<String>,
    /// Amount of memory to read, as in 8G or 512M (default: up to 8G; with --gemv 4G)
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
    /// Device, by index or part of its name
    #[arg(long, env = "INDRIK_DEVICE")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (_instance, device) =
        DeviceSelector { name: arguments.device.as_deref(), ..DeviceSelector::default() }.open()?;
    match arguments {
        Arguments { load: Some(model), .. } => load::run(&device, model, arguments.json),
        Arguments { gemv: Some(shape), .. } => gemv::run(&device, arguments, *shape),
        Arguments { bandwidth: true, .. } => bandwidth::run(&device, arguments.size, arguments.json),
        _ => run_model(&device, arguments),
    }
}

fn run_model(device: &Device, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let nonzero = |list: &[u32]| -> Vec<u32> { list.iter().copied().filter(|number| *number > 0).collect() };
    let tokens = nonzero(&arguments.tokens);
    let plan = speed::Plan {
        prompts: nonzero(&arguments.prompt),
        batches: arguments.batch.iter().map(|batch| u32::from(*batch)).collect(),
        depths: match tokens.is_empty() && arguments.prefix_disk.is_none() {
            true => vec![],
            false => arguments.depth.clone(),
        },
        tokens,
        same_tokens: arguments.same_tokens,
        repeats: usize::from(arguments.repeats),
        kv: arguments.kv.unwrap_or(Kv::F16).into(),
        chunk: arguments.chunk.map(u32::from),
        profile: arguments.profile,
        plot: arguments.plot.clone(),
    };
    if let Some(name) = &arguments.model {
        let path = store::resolve_model(name)?;
        let max = |list: &[u32]| list.iter().copied().max().unwrap_or(0);
        let context = max(&plan.prompts).max(max(&plan.depths) + max(&plan.tokens));
        let text = match &arguments.speculate {
            Some(Some(file)) => {
                Some(speculate::read_text(file, &indrik::ModelFiles::open(name)?.language()?.tokenizer)?)
            }
            _ if arguments.draft.is_some() => bail!("--draft needs a text: --speculate FILE"),
            _ => None,
        };
        let draft = arguments.draft.as_ref().map(|draft| indrik::ModelFiles::open(name)?.open_draft(draft));
        let draft = draft.transpose()?;
        let sequences = max(&plan.batches) + u32::from(arguments.beside.is_some());
        let limits = |config: &Config| {
            let limits = Limits::new(device.info(), config, sequences, context);
            let limits = if arguments.reproducible { limits.reproducible() } else { limits };
            let chunk = plan.chunk.unwrap_or(limits.prefill_chunk);
            Limits { kv_scheme: plan.kv, prefill_chunk: chunk, ..limits }
        };
        let (model, times) = load::load(device, &path, Some(&limits))?;
        let model = if arguments.reproducible { model.with_reproducible(true) } else { model };
        let tuned = loading::tune(&model)?;
        if arguments.speculate.is_some() {
            let limits = |config: &Config| Limits::new(device.info(), config, 1, draft::CONTEXT_LENGTH);
            let draft = draft.map(|draft| load::load(device, draft.path(), Some(&limits)));
            let draft = draft.transpose()?.map(|(draft, _)| Arc::new(draft));
            if let Some(draft) = &draft {
                loading::tune(draft)?;
            }
            let (model, text) = (Arc::new(model), text.as_deref());
            return speculate::run(device, name, &model, &plan, text, draft.as_ref(), arguments.json);
        }
        if let Some(chunk) = arguments.beside {
            return beside::run(device, name, &Arc::new(model), &plan, chunk.into(), arguments.json);
        }
        if let Some(folder) = &arguments.prefix_disk {
            return prefix_disk::run(device, name, &Arc::new(model), folder, &plan, arguments.json);
        }
        return speed::run(
            device,
            name,
            &Arc::new(model),
            &serde_json::to_value(times)?,
            &tuned,
            &plan,
            arguments.json,
        );
    }
    let size = arguments.shape.expect("the argument group requires a model or a shape here");
    if let Some(Some(_)) = &arguments.speculate {
        bail!("--speculate with a text needs the tokenizer of a model: use -m instead of --shape");
    }
    let quants = if arguments.quant.is_empty() { vec![gemv::Quant::Int8] } else { arguments.quant.clone() };
    if quants.len() > 1 {
        bail!("--shape takes one --quant at a time");
    }
    let scheme = quants[0].scheme();
    let (model, seconds) = speed::random(device, size, scheme)?;
    let model = if arguments.reproducible { model.with_reproducible(true) } else { model };
    let tuned = loading::tune(&model)?;
    // Generated on the GPU: nothing was read from disk or passed through system memory.
    let load = serde_json::json!({
        "seconds": seconds, "gb_per_s": null, "peak_extra_rss_bytes": null, "random": true,
    });
    let name = format!("{} {scheme}", size.name());
    if !arguments.images.is_empty() {
        let Some(vision) = size.vision()? else { bail!("{} has no image encoder", size.name()) };
        let counts: Vec<usize> = arguments.images.iter().map(|count| usize::from(*count)).collect();
        let encoder = (vision, arguments.encoder_quant.scheme());
        return images::run(device, &name, &Arc::new(model), encoder, &counts, &plan, arguments.json);
    }
    if arguments.speculate.is_some() {
        return speculate::run(device, &name, &Arc::new(model), &plan, None, None, arguments.json);
    }
    if let Some(chunk) = arguments.beside {
        return beside::run(device, &name, &Arc::new(model), &plan, chunk.into(), arguments.json);
    }
    if let Some(folder) = &arguments.prefix_disk {
        return prefix_disk::run(device, &name, &Arc::new(model), folder, &plan, arguments.json);
    }
    speed::run(device, &name, &Arc::new(model), &load, &tuned, &plan, arguments.json)
}

fn parse_shape(text: &str) -> Result<Size, String> {
    let names = Size::ALL.map(Size::name).join(", ");
    Size::ALL.into_iter().find(|size| size.name() == text).ok_or_else(|| format!("expected one of {names}"))
}

/// Parses a number of bytes with an optional binary suffix.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim_end_matches("iB").trim_end_matches('B');
    let (digits, shift) = match trimmed.chars().last() {
        Some('K' | 'k') => (&trimmed[..trimmed.len() - 1], 10),
        Some('M' | 'm') => (&trimmed[..trimmed.len() - 1], 20),
        Some('G' | 'g') => (&trimmed[..trimmed.len() - 1], 30),
        Some('T' | 't') => (&trimmed[..trimmed.len() - 1], 40),
        _ => (trimmed, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number with an optional suffix K, M, G or T".to_string())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(|| "out of range".to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn byte_sizes_take_binary_suffixes() {
        assert_eq!(super::parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(super::parse_bytes("8GiB"), Ok(8 << 30));
        assert_eq!(super::parse_bytes("100"), Ok(100));
        for wrong in ["", "G", "-1", "0", "1.5G", "99999999999T"] {
            assert!(super::parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
