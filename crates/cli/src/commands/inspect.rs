//! `indrik inspect`: what a model's files hold and where it would go, without reading its weights.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use clap::Args;
use gpu::{Adapter, AdapterInfo, AdapterKind, bytes};
use kernels::Layout;
use serde::Serialize;
use serde_json::json;
use telemetry::System;
use weights::{
    Checkpoint, Tensor,
    config::LayerType,
    plan::{self, Demand, Gtt, HeapInfo, Item, KvShape, Margin, Memory},
    quant::{self, Exactness, Scheme},
};

use crate::{device::Choice, output};

/// Shows a model's format, architecture, tensors and bytes, and where it would go; needs no GPU
#[derive(Args)]
#[command(after_help = "Example: indrik inspect gemma-3-270m.gguf --context 8192")]
pub struct Arguments {
    /// A GGUF file or a Hugging Face folder
    model: PathBuf,
    /// Positions of one sequence to plan for
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,
    /// Sequences at a time to plan for
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

/// All tensors of one encoding.
#[derive(Default, Serialize)]
struct Total {
    tensors: usize,
    values: u64,
    file_bytes: u64,
    gpu_bytes: u64,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let checkpoint = Checkpoint::open(&arguments.model)?;
    let mut totals: BTreeMap<String, (Scheme, Exactness, Total)> = BTreeMap::new();
    for (_, tensor) in checkpoint.inventory.iter() {
        let (scheme, exactness) = stored_as(tensor);
        let name = serde_json::to_value(tensor.encoding)?.as_str().unwrap_or_default().to_string();
        let name = format!("{name}{}", if tensor.shape.len() == 1 { " vectors" } else { "" });
        let (_, _, total) = totals.entry(name).or_insert_with(|| (scheme, exactness, Total::default()));
        total.tensors += 1;
        total.values += tensor.values().unwrap_or(0);
        total.file_bytes += tensor.data.len;
        total.gpu_bytes += gpu_bytes(tensor);
    }
    let (device, placed) = place(arguments, &checkpoint);
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
            Some(Err(error)) => json!({ "fits": false, "why": error.to_string() }),
        };
        output::print_json(&json!({
            "path": checkpoint.path, "format": checkpoint.source.format, "config": checkpoint.config,
            "parameters": parameters, "gpu_bytes": gpu_total, "encodings": encodings,
            "image_tensors": checkpoint.inventory.images.len(),
            "tensors": checkpoint.inventory.iter().map(|(_, tensor)| tensor).collect::<Vec<_>>(),
            "device": device, "plan": plan,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&summary(&checkpoint, parameters))?;
    let rows: Vec<Vec<String>> = totals
        .iter()
        .map(|(name, (scheme, exactness, total))| {
            vec![
                name.clone(),
                scheme.to_string(),
                match exactness {
                    Exactness::Exact => "exact".to_string(),
                    Exactness::Within { relative, .. } => {
                        format!("within {:.2}% of a group's largest", relative * 100.0)
                    }
                },
                total.tensors.to_string(),
                bytes(total.file_bytes),
                bytes(total.gpu_bytes),
            ]
        })
        .collect();
    output::print(&output::table(&["in the file", "on the GPU", "values", "tensors", "file", "GPU"], &rows))?;
    if arguments.tensors {
        let rows: Vec<Vec<String>> = checkpoint
            .inventory
            .iter()
            .map(|(_, tensor)| {
                vec![tensor.name.clone(), format!("{:?}", tensor.shape), format!("{:?}", tensor.encoding)]
            })
            .collect();
        output::print(&format!("\n{}", output::table(&["tensor", "shape", "encoding"], &rows)))?;
    }
    let text = match (device, placed) {
        (Some(device), Some(Ok(placement))) => format!("\nOn {device}:\n{placement}\n"),
        (Some(device), Some(Err(error))) => format!("\nOn {device}: it does not fit. {error}\n"),
        _ => "\nNo usable Vulkan device here: nothing to place it on (indrik doctor says why).\n".to_string(),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn summary(checkpoint: &Checkpoint, parameters: u64) -> String {
    let config = &checkpoint.config;
    let global = config.layer_types.iter().filter(|kind| **kind == LayerType::Global).count();
    let format = serde_json::to_value(checkpoint.source.format).unwrap_or_default();
    let mut text = format!("{}\n", checkpoint.path.display());
    text += &format!(
        "   format   {}, {} file(s)\n",
        format.as_str().unwrap_or("?"),
        checkpoint.source.files.len()
    );
    text += &format!(
        "   model    {}, {:.2} billion parameters, {} layers ({global} global), hidden {}, feed-forward {}\n",
        config.architecture.name(),
        parameters as f64 / 1e9,
        config.layers,
        config.hidden,
        config.intermediate
    );
    text += &format!(
        "   heads    {} of {}, {} for keys and values, scores divided by √{}\n",
        config.heads, config.head_dim, config.kv_heads, config.query_pre_attn_scalar
    );
    text += &format!(
        "   context  {} positions, window {}, vocabulary {}\n",
        config.max_positions,
        config.sliding_window.map_or_else(|| "none".to_string(), |window| window.to_string()),
        config.vocab
    );
    if !checkpoint.inventory.images.is_empty() {
        text += &format!(
            "   images   {} tensors of the image encoder, not used\n",
            checkpoint.inventory.images.len()
        );
    }
    text + "\n"
}

/// The scheme on the GPU: vectors become f32.
fn stored_as(tensor: &Tensor) -> (Scheme, Exactness) {
    if tensor.shape.len() == 1 { (Scheme::F32, Exactness::Exact) } else { quant::scheme_for(tensor.encoding) }
}

fn gpu_bytes(tensor: &Tensor) -> u64 {
    layout(tensor, stored_as(tensor).0).map_or(tensor.values().unwrap_or(0) * 4, |layout| {
        (layout.value_bytes() + layout.scale_bytes()) as u64
    })
}

fn layout(tensor: &Tensor, scheme: Scheme) -> Option<Layout> {
    let [rows, k] = tensor.shape[..] else { return None };
    Layout::new(scheme, rows as usize, k as usize)
}

type Placed = Result<plan::Placement, plan::PlanError>;

fn place(arguments: &Arguments, checkpoint: &Checkpoint) -> (Option<String>, Option<Placed>) {
    let choice = Choice { wanted: arguments.device.as_deref(), ..Choice::default() };
    let Ok((_instance, adapter)) = choice.adapter() else { return (None, None) };
    let Adapter { info, .. } = &adapter;
    let demand = demand(arguments, checkpoint);
    (Some(info.name.clone()), Some(plan::plan(&memory(info), &demand)))
}

fn memory(info: &AdapterInfo) -> Memory {
    let system = System::new();
    let amd = system.amd_gpus().into_iter().next().filter(|_| {
        info.kind == AdapterKind::Integrated && info.vendor_id == u32::from(telemetry::VENDOR_AMD)
    });
    let total = system.memory();
    let gtt =
        amd.as_ref().and_then(|card| Some(Gtt { size: card.gtt_total?, system: total.as_ref()?.total }));
    let vram_free = amd
        .as_ref()
        .map_or(0, |card| card.vram_total.unwrap_or(0).saturating_sub(card.vram_used.unwrap_or(0)));
    let heap = |heap: &gpu::Heap| HeapInfo {
        size: heap.size,
        budget: heap.budget,
        used: heap.used.unwrap_or(0),
        device_local: heap.device_local,
        host_visible: heap.host_visible,
    };
    Memory {
        heaps: info.heaps.iter().map(heap).collect(),
        unified: info.unified_memory,
        max_allocation: info.caps.max_allocation,
        available: total.and_then(|memory| memory.available).map(|available| available + vram_free),
        margin: Margin::default(),
        gtt,
    }
}

fn demand(arguments: &Arguments, checkpoint: &Checkpoint) -> Demand {
    let config = &checkpoint.config;
    let tied = checkpoint.inventory.head().map(|head| head.name.clone());
    let items = |scheme: Option<Scheme>| -> Vec<Item> {
        checkpoint
            .inventory
            .iter()
            .map(|(_, tensor)| {
                let layout = layout(tensor, scheme.unwrap_or(stored_as(tensor).0));
                let bytes = layout.map_or(gpu_bytes(tensor), |l| (l.value_bytes() + l.scale_bytes()) as u64);
                let strip = layout.map_or(0, |l| (l.strip_value_bytes() + l.strip_scale_bytes()) as u64);
                // A token reads one row of the embeddings, unless they are the output projection too.
                let one_row = tensor.name.contains("embed") || tensor.name.contains("token_embd");
                let reads = if one_row && tied.as_ref() != Some(&tensor.name) {
                    bytes / tensor.shape[0]
                } else {
                    bytes
                };
                Item { name: tensor.name.clone(), bytes, reads, strip }
            })
            .collect()
    };
    let global = config.layer_types.iter().filter(|kind| **kind == LayerType::Global).count() as u64;
    let weights = items(None);
    let total: u64 = weights.iter().map(|item| item.bytes).sum();
    let smaller = [Scheme::Int8, Scheme::Int4]
        .map(|scheme| (scheme, items(Some(scheme))))
        .into_iter()
        .filter(|(_, items)| items.iter().map(|item| item.bytes).sum::<u64>() < total)
        .collect();
    Demand {
        weights,
        kv: KvShape {
            global_layers: global,
            sliding_layers: u64::from(config.layers) - global,
            window: u64::from(config.sliding_window.unwrap_or(u32::MAX)),
            kv_heads: u64::from(config.kv_heads),
            head_bytes: u64::from(config.head_dim) * 2,
        },
        context: u64::from(arguments.context),
        batch: u64::from(arguments.batch),
        // Activations and logits of a step, generously.
        scratch: 64 << 20,
        smaller,
    }
}
