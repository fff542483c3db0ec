//! `indrik inspect`: a model's format, tensors and memory plan, without reading its weights.

use std::{collections::BTreeMap, path::Path, process::ExitCode};

use checkpoint::{
    Checkpoint, Config, EmbeddingCheckpoint, EmbeddingConfig, EncoderKind, Experts, Mixer, Pooling, Slot,
    Tensor, Values,
};
use clap::Args;
use gpu::format_bytes;
use indrik::DeviceSelector;
use model::Limits;
use serde::Serialize;
use serde_json::json;
use tensor::{
    Layout, Scheme,
    quant::{self, Exactness},
};
use weights::{
    blueprint::{Blueprint, Reservation},
    embedding::EmbeddingBlueprint,
    plan,
};

use super::models;
use crate::output;

/// Show a model's format, architecture, tensors, size and memory plan; needs no GPU
#[derive(Args)]
#[command(after_help = "Example: indrik inspect gemma-3-270m.gguf --context 8192")]
pub struct Arguments {
    /// A GGUF file, a Hugging Face folder, a file written by `indrik quantize`, or a name in the local store
    model: String,
    /// Context length per sequence to plan for
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,
    /// Number of concurrent sequences to plan for
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    /// Device to plan for, by index or part of its name
    #[arg(short, long, env = "INDRIK_DEVICE")]
    device: Option<String>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Totals of one encoding.
#[derive(Default, Serialize)]
struct Total {
    tensors: usize,
    values: u64,
    file_bytes: u64,
    gpu_bytes: u64,
}

/// Describes an embedding model, which has no KV cache to plan.
fn embedding(arguments: &Arguments, path: &Path) -> anyhow::Result<ExitCode> {
    let checkpoint = EmbeddingCheckpoint::open(path)?;
    let EmbeddingConfig { pooling, normalize, max_tokens, ref dense, .. } = checkpoint.config;
    let (architecture, layers) = (checkpoint.config.architecture(), checkpoint.config.layer_count());
    let (hidden, dimensions) = (checkpoint.config.hidden(), checkpoint.config.dimensions());
    let parameters: u64 = checkpoint.iter().map(|(_, tensor)| tensor.values().unwrap_or(0)).sum();
    let gpu_bytes = EmbeddingBlueprint::new(&checkpoint)?.bytes();
    let pooling = match pooling {
        Pooling::Mean => "mean",
        Pooling::Cls => "first token",
        Pooling::Last => "last token",
    };
    let prompts: Vec<&String> = checkpoint.prompts.by_name.keys().collect();
    let tensors = checkpoint.iter().map(|(_, tensor)| tensor);
    if arguments.json {
        output::print_json(&json!({
            "path": checkpoint.path, "format": checkpoint.source.format, "kind": "embedding",
            "architecture": architecture, "parameters": parameters, "layers": layers, "hidden": hidden,
            "dimensions": dimensions, "dense": dense, "max_tokens": max_tokens, "pooling": pooling,
            "normalize": normalize, "prompts": prompts, "gpu_bytes": gpu_bytes, "tensors": tensors.collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&format!(
        "{}\n{architecture}, embedding model, {:.1} M parameters, {} on the GPU\n{layers} layers of {hidden}, pooling: \
         {pooling}, {dimensions} dimensions{}, at most {max_tokens} tokens per text\n",
        store::printable(checkpoint.path.display()),
        parameters as f64 / 1e6,
        format_bytes(gpu_bytes),
        if normalize { ", normalised" } else { "" },
    ))?;
    if !prompts.is_empty() {
        let names: Vec<String> = prompts.into_iter().map(store::printable).collect();
        output::print(&format!("Prompts: {}\n", names.join(", ")))?;
    }
    if arguments.tensors {
        let row = |tensor: &Tensor| {
            vec![store::printable(&tensor.name), format!("{:?}", tensor.shape), tensor.encoding.to_string()]
        };
        let rows: Vec<Vec<String>> = tensors.map(row).collect();
        output::print(&format!("\n{}", output::table(&["tensor", "shape", "encoding"], &rows)))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let path = store::resolve_model(&arguments.model)?;
    let checkpoint = match Checkpoint::open(&path) {
        Err(checkpoint::Error::IsEmbeddingModel { .. }) => return embedding(arguments, &path),
        checkpoint => checkpoint?,
    };
    let mut totals: BTreeMap<String, (Scheme, Exactness, Total)> = BTreeMap::new();
    for (_, tensor) in checkpoint.inventory.iter() {
        let (scheme, exactness) = gpu_scheme(tensor);
        let name = format!("{}{}", tensor.encoding, if tensor.shape.len() == 1 { " vectors" } else { "" });
        let (_, _, total) = totals.entry(name).or_insert_with(|| (scheme, exactness, Total::default()));
        total.tensors += 1;
        total.values += tensor.values().unwrap_or(0);
        total.file_bytes += tensor.file_bytes();
        total.gpu_bytes += gpu_bytes(tensor);
    }
    let (device, placed) = place(arguments, &checkpoint)?;
    let parameters: u64 = totals.values().map(|(_, _, total)| total.values).sum();
    let gpu_total: u64 = totals.values().map(|(_, _, total)| total.gpu_bytes).sum();
    if arguments.json {
        let encodings: BTreeMap<_, _> = totals
            .iter()
            .map(|(name, (scheme, exactness, total))| {
                (name, json!({ "scheme": scheme, "exactness": exactness, "total": total }))
            })
            .collect();
        let plan = match &placed {
            None => json!(null),
            Some(Ok(placement)) => json!({ "fits": true, "placement": placement }),
            Some(Err(error)) => json!({ "fits": false, "reason": error.to_string() }),
        };
        output::print_json(&json!({
            "path": checkpoint.path, "format": checkpoint.source.format, "config": checkpoint.config,
            "parameters": parameters, "active_parameters": active_parameters(&checkpoint),
            "bytes_per_token": bytes_per_token(&checkpoint)?, "gpu_bytes": gpu_total, "encodings": encodings,
            "image_tensors": checkpoint.inventory.images.len(),
            "tensors": checkpoint.inventory.iter().map(|(_, tensor)| tensor).collect::<Vec<_>>(),
            "device": device, "plan": plan,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&summary(&checkpoint, parameters)?)?;
    let rows: Vec<Vec<String>> = totals
        .iter()
        .map(|(name, (scheme, exactness, total))| {
            vec![
                name.clone(),
                scheme.to_string(),
                match exactness {
                    Exactness::Exact => "exact".to_string(),
                    Exactness::Within { relative, .. } => {
                        format!("within {:.2}% of the group maximum", relative * 100.0)
                    }
                },
                total.tensors.to_string(),
                format_bytes(total.file_bytes),
                format_bytes(total.gpu_bytes),
            ]
        })
        .collect();
    output::print(&output::table(
        &["encoding", "GPU scheme", "conversion", "tensors", "file", "GPU"],
        &rows,
    ))?;
    if arguments.tensors {
        let rows: Vec<Vec<String>> = checkpoint
            .inventory
            .iter()
            .map(|(_, tensor)| {
                vec![
                    store::printable(&tensor.name),
                    format!("{:?}", tensor.shape),
                    tensor.encoding.to_string(),
                ]
            })
            .collect();
        output::print(&format!("\n{}", output::table(&["tensor", "shape", "encoding"], &rows)))?;
    }
    let text = match (device, placed) {
        (Some(device), Some(Ok(placement))) => format!("\nOn {device}:\n{placement}\n"),
        (Some(device), Some(Err(error))) => format!("\nOn {device}: {error}\n"),
        _ => "\nNo usable Vulkan device, so there is no memory plan (see `indrik doctor`).\n".to_string(),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn summary(checkpoint: &Checkpoint, parameters: u64) -> anyhow::Result<String> {
    let config = &checkpoint.config;
    let spans = || {
        config.layer_specs().map(|layer| match layer.mixer {
            Mixer::Attention(attention) => attention.span,
        })
    };
    let global = spans().filter(|span| !span.is_sliding()).count();
    let window = spans().find_map(|span| span.window());
    let format = serde_json::to_value(checkpoint.source.format).unwrap_or_default();
    let mut text = format!("{}\n", store::printable(checkpoint.path.display()));
    text += &format!(
        "   format   {}, {} file(s)\n",
        format.as_str().unwrap_or("?"),
        checkpoint.source.files.len()
    );
    text += &format!(
        "   model    {}, {} parameters, {} layers ({global} global), hidden {}, feed-forward {}\n",
        config.architecture.name(),
        models::parameters(parameters),
        config.layers,
        config.hidden,
        config.dense_intermediate().map_or_else(|| "experts".to_string(), |width| width.to_string())
    );
    if let Some(experts) = experts(config) {
        text += &format!(
            "   experts  {} per layer, width {}; {} per token: {} active parameters, {} of weights read per token\n",
            experts.count,
            experts.intermediate,
            experts.per_token,
            models::parameters(active_parameters(checkpoint)),
            format_bytes(bytes_per_token(checkpoint)?)
        );
    }
    text += &format!(
        "   heads    {} of dimension {}, {} KV heads, scores divided by √{}\n",
        config.heads, config.head_dim, config.kv_heads, config.query_pre_attn_scalar
    );
    text += &differing_layers(checkpoint)?;
    text += &format!(
        "   context  {} tokens, sliding window {}, vocabulary {}\n",
        config.max_positions,
        window.map_or_else(|| "none".to_string(), |window| window.to_string()),
        config.vocab
    );
    match checkpoint.vision() {
        Ok(Some(vision)) => {
            let config = &vision.config;
            let tokens = config.max_soft_tokens();
            let (width, layers) = (config.hidden, config.layers());
            text += &match config.encoder {
                EncoderKind::Siglip { image_size, .. } => format!(
                    "   images   {image_size} × {image_size} pixels, {tokens} tokens each: {layers} layers of width {width}\n"
                ),
                EncoderKind::Gemma4 { .. } => format!(
                    "   images   of any shape, up to {tokens} tokens each: {layers} layers of width {width}\n"
                ),
                EncoderKind::Gemma4Unified { .. } => {
                    format!(
                        "   images   of any shape, up to {tokens} tokens each: a projection of pixels, no layers\n"
                    )
                }
            };
        }
        Ok(None) if checkpoint.inventory.images.is_empty() => {}
        Ok(None) => {
            let tensors = checkpoint.inventory.images.len();
            text += &format!("   images   {tensors} tensors of the image encoder, not used\n");
        }
        Err(error) => text += &format!("   images   none, since the image encoder cannot be used: {error}\n"),
    }
    Ok(text + "\n")
}

/// What full-attention layers, the last layers and per-layer embeddings add (Gemma 4); empty for other models.
fn differing_layers(checkpoint: &Checkpoint) -> anyhow::Result<String> {
    let config = &checkpoint.config;
    let mut text = String::new();
    let full = config.attentions().find(|attention| !attention.span.is_sliding());
    if let Some(full) =
        full.filter(|full| (full.kv_heads, full.head_dim) != (config.kv_heads, config.head_dim))
    {
        let values = if full.values == Values::FromKeys { ", values from keys" } else { "" };
        text += &format!(
            "            full-attention layers: of dimension {}, {} KV heads{values}\n",
            full.head_dim, full.kv_heads
        );
    }
    match config.attentions().filter(|attention| attention.shares_kv_with.is_some()).count() {
        0 => {}
        shared => {
            text += &format!("            the last {shared} layers share keys and values of earlier ones\n")
        }
    }
    if let Some(width) = config.per_layer_width {
        text += &format!(
            "   per layer embeddings of width {width}; {} of weights read per token\n",
            format_bytes(bytes_per_token(checkpoint)?)
        );
    }
    Ok(text)
}

/// The experts, where the model's layers have them.
fn experts(config: &Config) -> Option<Experts> {
    config.layer_specs().find_map(|layer| layer.feed_forward.experts())
}

/// Parameters that a token passes through: of the experts, as many as it has.
fn active_parameters(checkpoint: &Checkpoint) -> u64 {
    let share = experts(&checkpoint.config)
        .map_or(1.0, |experts| f64::from(experts.per_token) / f64::from(experts.count));
    let (of_experts, others): (Vec<_>, Vec<_>) =
        checkpoint.inventory.iter().partition(|(slot, _)| slot.expert.is_some());
    let values = |tensors: Vec<(Slot, &Tensor)>| {
        tensors.iter().map(|(_, tensor)| tensor.values().unwrap_or(0)).sum::<u64>()
    };
    values(others) + (values(of_experts) as f64 * share) as u64
}

/// Bytes of weights that a token of a single sequence reads on the GPU.
fn bytes_per_token(checkpoint: &Checkpoint) -> anyhow::Result<u64> {
    let demand = Blueprint::new(checkpoint)?.demand(&checkpoint.config, &Reservation::WEIGHTS_ONLY);
    Ok(demand.weights.iter().map(|weight| weight.bytes_per_token).sum())
}

/// The scheme on the GPU; vectors are stored as f32.
fn gpu_scheme(tensor: &Tensor) -> (Scheme, Exactness) {
    if tensor.shape.len() == 1 { (Scheme::F32, Exactness::Exact) } else { quant::scheme_for(tensor.encoding) }
}

fn gpu_bytes(tensor: &Tensor) -> u64 {
    layout(tensor, gpu_scheme(tensor).0).map_or(tensor.values().unwrap_or(0) * 4, |layout| {
        (layout.value_bytes() + layout.scale_bytes()) as u64
    })
}

fn layout(tensor: &Tensor, scheme: Scheme) -> Option<Layout> {
    let [rows, k] = tensor.shape[..] else { return None };
    Layout::new(scheme, rows as usize, k as usize)
}

type Placed = Result<plan::Placement, plan::PlanError>;

fn place(arguments: &Arguments, checkpoint: &Checkpoint) -> anyhow::Result<(Option<String>, Option<Placed>)> {
    let blueprint = Blueprint::new(checkpoint)?;
    let selector = DeviceSelector { name: arguments.device.as_deref(), ..DeviceSelector::default() };
    let (_instance, adapter) = match selector.adapter() {
        Ok(found) => found,
        // A device that was requested explicitly must exist.
        Err(error) if arguments.device.is_some() => return Err(error.into()),
        Err(_) => return Ok((None, None)),
    };
    let limits = Limits::new(&adapter.info, &checkpoint.config, arguments.batch, arguments.context);
    let demand =
        blueprint.demand(&checkpoint.config, &limits.reservation(&checkpoint.config, arguments.batch));
    Ok((Some(adapter.info.name.clone()), Some(plan::plan(&indrik::device_memory(&adapter.info), &demand))))
}
