//! KV splits: attention of few rows, divided along the context among workgroups.

use std::collections::{BTreeMap, btree_map::Entry};

use checkpoint::{
    Attention, Values,
    config::{QueryTemperature, RopePairs},
};
use gpu::{Arena, Buffer, Lifetime, Memory, View};
use kernels::{
    Activations, KeysAndValues, Rotation,
    attention::{
        decode::{self, DecodeAttention},
        paged::{Mode, PagedAttention},
    },
};

use crate::{
    Limits, Model, Result,
    state::{Batch, CLEAR_TIMEOUT},
};

/// Minimum rows for which [`DecodeAttention`] reads the number of workgroups that a step needs: with fewer
/// rows the look-up does not pay.
pub(crate) const WORKGROUPS_MIN_ROWS: usize = 8;

/// The shape of a layer's attention.
pub(crate) fn attention_shape(
    model: &Model,
    limits: Limits,
    attention: &Attention,
    output: Activations,
) -> decode::Shape {
    let config = &model.config;
    decode::Shape {
        heads: attention.heads,
        kv_heads: attention.kv_heads,
        head_dim: attention.head_dim,
        page_size: limits.page_size,
        scheme: limits.kv_scheme,
        window: attention.span.window().unwrap_or(0),
        context_length: limits.context_length,
        keys_and_values: match (attention.shares_kv_with, attention.values) {
            (Some(_), _) => KeysAndValues::Shared,
            (None, Values::FromKeys) => KeysAndValues::ValuesFromKeys,
            (None, Values::Projected) => KeysAndValues::Projected,
        },
        norm: attention.head_norms.then_some(config.rms_norm_eps),
        value_norm: attention.value_norm,
        bias: attention.qkv_bias,
        rotation: match config.rope_pairs {
            RopePairs::Halves => Rotation::Halves,
            RopePairs::Neighbours => Rotation::Interleaved,
        },
        temperature: config
            .query_temperature
            .map(|QueryTemperature { beta, original }| kernels::QueryTemperature { beta, original }),
        partials: 1,
        scale: config.query_pre_attn_scalar.powf(-0.5),
        output,
    }
}

/// Workgroups of [`DecodeAttention`] recorded for this many rows, none of which is past `position`.
pub(crate) fn attention_workgroups(
    model: &Model,
    limits: Limits,
    attention: &Attention,
    rows: usize,
    position: u32,
) -> [u32; 3] {
    let shape = attention_shape(model, limits, attention, Activations::F32);
    let plan = decode::policy::plan_for_rows(model.device.caps(), &shape, rows as u32);
    plan.groups(&shape, rows as u32, position)
}

/// Rows whose attention is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SplitRows {
    /// A bucket of decode rows.
    Decode(usize),
    /// Few prefill rows.
    FewPrefill,
}

/// Scratch memory of KV splits. Decode and prefill rows have their own, since they run concurrently in one
/// step; and so has every bucket, since the counters of one would not be zero where another's begin.
#[derive(Default)]
pub(crate) struct KvSplits(BTreeMap<SplitRows, Option<Buffer>>);

impl KvSplits {
    /// Allocates the scratch memory of a bucket's steps, unless it exists.
    pub fn prepare(&mut self, model: &Model, limits: Limits, batch: Batch, bucket: usize) -> Result<()> {
        let (decode, few_prefill) = match batch {
            Batch::Decode | Batch::Verify => (Some(bucket), false),
            Batch::Prefill => (None, bucket <= model.few_prefill_rows()),
            Batch::Mixed { decode, few } => (Some(decode), few),
        };
        let decode = decode.map(SplitRows::Decode);
        for rows in decode.into_iter().chain(few_prefill.then_some(SplitRows::FewPrefill)) {
            if let Entry::Vacant(entry) = self.0.entry(rows) {
                entry.insert(allocate(model, limits, rows)?);
            }
        }
        Ok(())
    }

    pub fn get(&self, rows: SplitRows) -> Option<View> {
        self.0.get(&rows)?.as_ref().map(Buffer::view)
    }
}

/// Memory for the splits of some rows, where they are split: zeros, since the counters of single-dispatch
/// attention start so.
fn allocate(model: &Model, limits: Limits, rows: SplitRows) -> Result<Option<Buffer>> {
    let device = &model.device;
    let mut bytes = 0;
    for attention in model.attention_variants() {
        let shape = attention_shape(model, limits, attention, Activations::F32);
        let variant_bytes = match rows {
            SplitRows::Decode(rows) if model.attends_in_one_dispatch(rows) => {
                let plan = decode::policy::plan_for_rows(device.caps(), &shape, rows as u32);
                DecodeAttention::with_plan(device, shape, plan)?.scratch_bytes(rows as u32)
            }
            _ if model.reproducible => 0,
            SplitRows::Decode(_) | SplitRows::FewPrefill => {
                let rows = if let SplitRows::Decode(rows) = rows { rows } else { model.few_prefill_rows() };
                PagedAttention::new(device, shape.attention(), Mode::Decode)?.scratch_bytes(rows as u32)
            }
        };
        bytes = variant_bytes.max(bytes);
    }
    if bytes == 0 {
        return Ok(None);
    }
    let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 16);
    let buffer = arena.buffer("KV splits", bytes)?;
    let mut recorder = device.recorder()?;
    recorder.fill("clear", &buffer, 0)?;
    recorder.seal()?.run(CLEAR_TIMEOUT)?;
    Ok(Some(buffer))
}
