//! Choosing the quantisation of a model for a machine: the best whose weights fit next to the KV cache of an
//! 8k context.
//!
//! What counts is the size on the GPU, not that of the file: Q8_0, Q6_K and Q5_K all become 8 bits there, so
//! that the smaller files only save download and disk. Q8_0 is the highest precision that is chosen automatically; F16
//! and BF16 must be requested. A file of quantisation-aware training (QAT) beats others of its size.

use checkpoint::{Architecture, Checkpoint, Config, Mixer, Values};
use gpu::format_bytes;
use serde::Serialize;
use store::{Quant, Variant};
use tensor::{Layout, Scheme};
use weights::{
    blueprint::{Blueprint, kv_layers},
    plan::{self, Advice, Demand, PlanError, WeightDemand, kv_bytes},
};

use super::machine::Machine;
use crate::output;

/// A variant with the memory that it needs.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// Index in the list of variants.
    #[serde(skip)]
    pub index: usize,
    pub quant: String,
    pub file_bytes: u64,
    /// Weights on the GPU.
    pub weight_bytes: u64,
    /// KV cache of the context.
    pub kv_bytes: u64,
    /// Activations, logits and tables.
    pub scratch_bytes: u64,
    /// Whether the sizes are computed from the header of the file, not from its name.
    pub exact: bool,
    pub fit: Fit,
}

/// Activations of an embedding model, roughly.
const EMBEDDING_SCRATCH: u64 = 512 << 20;

/// Whether a candidate fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// Into the memory of the GPU.
    Fits { left_bytes: u64 },
    /// Some weights stay in the memory of the host, which is slow.
    Spills { host_bytes: u64 },
    /// After a change of settings.
    AfterChange { short_bytes: u64, advice: String },
    /// Not at all.
    TooLarge { short_bytes: u64 },
}

impl Fit {
    fn class(&self) -> u8 {
        match self {
            Fit::Fits { .. } => 0,
            Fit::Spills { .. } => 1,
            Fit::AfterChange { .. } => 2,
            Fit::TooLarge { .. } => 3,
        }
    }
}

impl Candidate {
    /// A candidate whose sizes are estimated from its name and the model's dimensions.
    pub fn estimated(index: usize, variant: &Variant, config: &Config, machine: &Machine) -> Self {
        let weights = estimated_weights(config, variant.quant);
        Self::new(index, variant, config, machine, weights, false)
    }

    /// A candidate whose header has been read.
    pub fn exact(
        index: usize,
        variant: &Variant,
        checkpoint: &Checkpoint,
        machine: &Machine,
    ) -> anyhow::Result<Self> {
        let limits = machine.limits(&checkpoint.config);
        let reservation = limits.reservation(&checkpoint.config, 1);
        let weights = Blueprint::new(checkpoint)?.demand(&checkpoint.config, &reservation).weights;
        Ok(Self::new(index, variant, &checkpoint.config, machine, weights, true))
    }

    /// A variant of an embedding model, which has no KV cache: its weights take about as much memory as its files.
    pub fn embedding(index: usize, variant: &Variant, machine: &Machine) -> Self {
        let weight_bytes = variant.bytes();
        let demand = Demand {
            weights: vec![WeightDemand {
                name: "embedding model".into(),
                bytes: weight_bytes,
                bytes_per_token: weight_bytes,
                split_unit: 1 << 20,
                in_host_memory: false,
            }],
            kv_layers: vec![],
            context_length: 1,
            max_sequences: 1,
            scratch_bytes: EMBEDDING_SCRATCH,
            smaller: Vec::new(),
        };
        Self::planned(index, variant, machine, &demand, true)
    }

    fn new(
        index: usize,
        variant: &Variant,
        config: &Config,
        machine: &Machine,
        weights: Vec<WeightDemand>,
        exact: bool,
    ) -> Self {
        let reservation = machine.limits(config).reservation(config, 1);
        let layers = kv_layers(config, &reservation);
        let demand = Demand {
            weights,
            kv_layers: layers,
            context_length: reservation.context_length,
            max_sequences: 1,
            scratch_bytes: reservation.scratch_bytes,
            smaller: Vec::new(),
        };
        Self::planned(index, variant, machine, &demand, exact)
    }

    fn planned(index: usize, variant: &Variant, machine: &Machine, demand: &Demand, exact: bool) -> Self {
        let weight_bytes: u64 = demand.weights.iter().map(|weight| weight.bytes).sum();
        let kv = kv_bytes(&demand.kv_layers, demand.context_length, demand.max_sequences);
        let needed = weight_bytes + kv + demand.scratch_bytes;
        let fit = match plan::plan(&machine.memory, demand) {
            Ok(placement) => match placement.spill {
                Some(spill) => Fit::Spills { host_bytes: spill.bytes },
                None => Fit::Fits { left_bytes: machine.usable().saturating_sub(needed) },
            },
            Err(PlanError::Shortfall(shortfall)) => match shortfall.advice.iter().find_map(change) {
                Some(advice) => Fit::AfterChange { short_bytes: shortfall.bytes, advice },
                None => Fit::TooLarge { short_bytes: shortfall.bytes },
            },
            Err(PlanError::SplitUnit { .. }) => Fit::TooLarge { short_bytes: needed },
        };
        Self {
            index,
            quant: variant.label(),
            file_bytes: variant.bytes(),
            weight_bytes,
            kv_bytes: kv,
            scratch_bytes: demand.scratch_bytes,
            exact,
            fit,
        }
    }

    /// What remains to be said about the chosen candidate.
    pub fn warning(&self) -> Option<String> {
        match &self.fit {
            Fit::Fits { .. } => None,
            Fit::Spills { host_bytes } => Some(format!(
                "{} of the weights do not fit in GPU memory and stay in host memory, which is slow",
                format_bytes(*host_bytes)
            )),
            Fit::AfterChange { short_bytes, advice } => Some(format!(
                "an 8k context needs {} more memory than is available now: {advice}",
                format_bytes(*short_bytes)
            )),
            Fit::TooLarge { short_bytes } => Some(format!(
                "it does not fit into this machine's memory: {} short",
                format_bytes(*short_bytes)
            )),
        }
    }
}

/// Advice that the user can follow on this machine with this file.
fn change(advice: &Advice) -> Option<String> {
    match advice {
        Advice::PagesLimit { pages, gtt } => Some(format!(
            "set the kernel parameter ttm.pages_limit={pages} and restart, for {} of GPU memory (`indrik doctor` shows \
             how)",
            format_bytes(*gtt)
        )),
        Advice::FreeMemory { bytes } => {
            Some(format!("close other programs, to free {}", format_bytes(*bytes)))
        }
        Advice::Context { context_length } => {
            Some(format!("use a context of at most {context_length} tokens (-c {context_length})"))
        }
        Advice::Scheme { .. } => None,
    }
}

/// Candidates in order of preference, before their size is considered: by quality, QAT first among those of
/// its size, and the smaller file of equals.
pub fn rank(variants: &[Variant]) -> Vec<usize> {
    let order = |index: &usize| {
        let variant = &variants[*index];
        let rank = variant.quant.map_or(u8::MAX, Quant::rank);
        // QAT moves in front of the other 4-bit (or 8-bit) files, whose weights have the same size.
        let rank = if variant.qat { best_of_size(variant.quant).min(rank) } else { rank };
        (rank, !variant.qat, variant.bytes())
    };
    let mut indices: Vec<usize> = (0..variants.len()).collect();
    indices.sort_by_key(order);
    indices
}

/// Rank of the best quantisation with as many bits.
fn best_of_size(quant: Option<Quant>) -> u8 {
    let best = match quant.map(Quant::name) {
        Some(name) if name.starts_with("Q4") => "Q4_K_M",
        Some(name) if name.starts_with("Q8") => "Q8_0",
        _ => return u8::MAX,
    };
    Quant::parse(best).map_or(u8::MAX, Quant::rank)
}

/// The candidate to pull: the first that fits; if none does, the smallest of those that come closest.
/// `None` if no change of settings would help.
pub fn choose(candidates: &[Candidate]) -> Option<usize> {
    if let Some(position) = candidates.iter().position(|candidate| candidate.fit.class() == 0) {
        return Some(position);
    }
    let usable = (0..candidates.len()).filter(|position| candidates[*position].fit.class() < 3);
    usable.min_by_key(|position| (candidates[*position].fit.class(), candidates[*position].weight_bytes))
}

/// The table that explains a choice.
pub fn table(candidates: &[Candidate], chosen: Option<usize>) -> String {
    let about = |exact: bool, bytes: u64| format!("{}{}", if exact { "" } else { "~" }, format_bytes(bytes));
    let row = |(position, candidate): (usize, &Candidate)| {
        let (left, verdict) = match &candidate.fit {
            Fit::Fits { left_bytes } => (about(candidate.exact, *left_bytes), "fits".to_string()),
            Fit::Spills { host_bytes } => {
                ("–".to_string(), format!("{} would stay in host memory", format_bytes(*host_bytes)))
            }
            Fit::AfterChange { short_bytes, .. } | Fit::TooLarge { short_bytes } => {
                ("–".to_string(), format!("{} short", format_bytes(*short_bytes)))
            }
        };
        let verdict = if chosen == Some(position) { format!("chosen: {verdict}") } else { verdict };
        vec![
            candidate.quant.clone(),
            format_bytes(candidate.file_bytes),
            about(candidate.exact, candidate.weight_bytes),
            format_bytes(candidate.kv_bytes),
            left,
            verdict,
        ]
    };
    let rows: Vec<Vec<String>> = candidates.iter().enumerate().map(row).collect();
    output::table(&["quantisation", "file", "weights on the GPU", "KV cache, 8k", "left", ""], &rows)
}

/// Maximum hidden size at which the head of a dense model is assumed to be tied.
const MAX_TIED_HIDDEN: u32 = 3072;

/// The weights on the GPU that a file of this quantisation becomes.
fn estimated_weights(config: &Config, quant: Option<Quant>) -> Vec<WeightDemand> {
    let (scheme, outer, half) = schemes(quant);
    let [hidden, vocab] = [config.hidden, config.vocab].map(|size| size as usize);
    let mut weights = vec![matrix("embeddings", outer, vocab, hidden)];
    let small = config.hidden <= MAX_TIED_HIDDEN && config.dense_intermediate().is_some();
    let is_tied = matches!(config.architecture, Architecture::Gemma3 | Architecture::Gemma4) || small;
    if !is_tied {
        weights.push(matrix("head", outer, vocab, hidden));
    }
    for (layer, spec) in config.layer_specs().enumerate() {
        let larger = if layer % 2 == 0 { half } else { scheme };
        let Mixer::Attention(attention) = spec.mixer;
        let [query, qkv] = [attention.query_rows(), attention.qkv_rows()].map(|rows| rows as usize);
        let has_values = attention.shares_kv_with.is_none() && attention.values == Values::Projected;
        let value = if has_values { attention.kv_rows() as usize } else { 0 };
        weights.push(matrix("query and key", scheme, qkv - value, hidden));
        if has_values {
            weights.push(matrix("value", larger, value, hidden));
        }
        weights.push(matrix("output", scheme, hidden, query));
        let dense = spec.feed_forward.dense().map(|dense| (1, dense.intermediate));
        let experts = spec.feed_forward.experts().map(|experts| (experts.count, experts.intermediate));
        for (count, intermediate) in dense.into_iter().chain(experts) {
            let [count, intermediate] = [count, intermediate].map(|size| size as usize);
            weights.push(matrix("gate and up", scheme, count * 2 * intermediate, hidden));
            weights.push(matrix("down", larger, count * hidden, intermediate));
        }
        if let Some(width) = spec.per_layer_width {
            weights.push(matrix("per-layer gate", scheme, width as usize, hidden));
            weights.push(matrix("per-layer output", scheme, hidden, width as usize));
        }
    }
    if let Some(width) = config.per_layer_width {
        let all = width as usize * config.layers as usize;
        let table = matrix("per-layer embeddings", outer, vocab, all);
        weights.push(WeightDemand {
            bytes_per_token: table.bytes / vocab as u64,
            in_host_memory: true,
            ..table
        });
        weights.push(matrix("per-layer projection", Scheme::Bf16, all, hidden));
    }
    weights
}

/// The schemes of most matrices, of the embeddings, and of the matrices that mixes store with more bits in
/// half of the layers. llama.cpp's mixes keep embeddings and head in Q6_K.
fn schemes(quant: Option<Quant>) -> (Scheme, Scheme, Scheme) {
    match quant.map_or("Q8_0", Quant::name) {
        "F32" => (Scheme::F32, Scheme::F32, Scheme::F32),
        "F16" => (Scheme::F16, Scheme::F16, Scheme::F16),
        "BF16" => (Scheme::Bf16, Scheme::Bf16, Scheme::Bf16),
        "Q5_1" | "Q5_K_S" => (Scheme::Int8Min, Scheme::Int8, Scheme::Int8Min),
        "Q5_K_M" | "Q5_K_L" => (Scheme::Int8Min, Scheme::Int8, Scheme::Int8),
        "Q4_K_M" | "Q4_K_L" => (Scheme::Int4Min, Scheme::Int8, Scheme::Int8),
        "Q4_K_S" | "Q4_1" => (Scheme::Int4Min, Scheme::Int8, Scheme::Int4Min),
        "Q4_0" => (Scheme::Int4, Scheme::Int8, Scheme::Int4),
        _ => (Scheme::Int8, Scheme::Int8, Scheme::Int8),
    }
}

fn matrix(name: &str, scheme: Scheme, rows: usize, k: usize) -> WeightDemand {
    let layout = Layout::new(scheme, rows, k);
    let bytes = layout.map_or(rows * k * 2, |layout| layout.value_bytes() + layout.scale_bytes()) as u64;
    let strip = layout.map_or(0, |layout| layout.strip_value_bytes() + layout.strip_scale_bytes()) as u64;
    WeightDemand {
        name: name.to_string(),
        bytes,
        bytes_per_token: bytes,
        split_unit: strip,
        in_host_memory: false,
    }
}

#[cfg(test)]
mod tests;
