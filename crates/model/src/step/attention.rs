//! Attention of a step: in one dispatch, by matrix units, or by RoPE and attention one after the other.

use std::collections::{BTreeMap, btree_map::Entry};

use checkpoint::{
    Role,
    config::{LayerType, RopePairs},
};
use gpu::{Arena, Buffer, Lifetime, Memory, Recorder, View};
use kernels::{
    Activations,
    attention::{
        decode::{self, DecodeAttention},
        flash::{self, FlashAttention},
        paged::{self, Mode, PagedAttention},
        rope::{self, Rope},
    },
    matmul::{gemv, quantize_rows::QuantizeRows},
};
use weights::blueprint::MatrixId;

use super::{Batch, CLEAR_TIMEOUT, Scratch, Step};
use crate::{Limits, Model, Result, kv_cache::KvCache, state::State};

/// Rows of chunks that are too few to fill a device: they are split as rows of several sequences are.
pub(crate) const FEW_ROWS: usize = gemv::MAX_COLUMNS;

impl Step<'_> {
    /// attended = softmax(queries · keys) · values, over the positions that the layer sees; keys and values of the rows go into
    /// their pages first. One kernel does it all for rows that do not see each other.
    pub fn attention(&mut self, layer: u32) -> Result<()> {
        let Self { model, cache, state, scratch, .. } = *self;
        let layer = Layer { model, cache, state, scratch, splits: self.attention_splits, number: layer };
        let rows = scratch.rows;
        match self.rows {
            Batch::Decode => layer.apart(self.recorder, rows),
            Batch::Prefill => layer.chunk(self.recorder, rows <= FEW_ROWS),
            // Other rows of the same buffers, and other pages. A chunk takes a level more, and what it leaves idle is the others'.
            Batch::Mixed { decode, few } => self.recorder.concurrently(
                |recorder| layer.chunk(recorder, few),
                |recorder| layer.apart(recorder, decode),
            ),
        }
    }
}

/// A layer's attention in the making.
struct Layer<'a> {
    model: &'a Model,
    cache: &'a KvCache,
    state: &'a State,
    scratch: &'a Scratch,
    splits: &'a Splits,
    number: u32,
}

/// Rows that go through RoPE and attention together.
struct Part {
    /// Two words: the first row, and the end.
    active: View,
    /// Up to this row.
    end: usize,
    /// At most so many.
    rows: usize,
    /// Where the chunks end that they are; else each is by itself.
    chunk_ends: Option<View>,
    mode: Mode,
    splits: Option<View>,
}

impl Layer<'_> {
    /// Rows of different sequences, the first of the step.
    fn apart(&self, recorder: &mut Recorder, rows: usize) -> Result<()> {
        if self.model.one_dispatch {
            return self.attend(recorder, rows);
        }
        let part = Part {
            active: self.state.apart.clone(),
            end: rows,
            rows,
            chunk_ends: None,
            mode: Mode::Decode,
            splits: self.splits.of(SplitRows::Apart(rows)),
        };
        self.rope(recorder, &part)?;
        self.attend_apart(recorder, &part)
    }

    /// Rows of chunks, each of one sequence, the last of the step.
    fn chunk(&self, recorder: &mut Recorder, few: bool) -> Result<()> {
        let end = self.scratch.rows;
        let part = Part {
            active: self.state.chunk.clone(),
            end,
            rows: if few { end.min(FEW_ROWS) } else { end },
            chunk_ends: Some(self.state.chunk_ends.view()),
            mode: if few { Mode::Decode } else { Mode::Prefill },
            splits: if few { self.splits.of(SplitRows::FewOfChunk) } else { None },
        };
        self.rope(recorder, &part)?;
        self.attend_apart(recorder, &part)
    }

    fn kind(&self) -> LayerType {
        self.model.config.layer_types[self.number as usize]
    }

    fn shape(&self) -> decode::Shape {
        let output = self.model.activations(self.scratch.rows);
        let sums = super::sums(self.model, self.scratch.rows, MatrixId::Qkv(self.number));
        decode::Shape { partials: sums, ..attend_shape(self.model, self.cache.limits(), self.kind(), output) }
    }

    fn attend(&self, recorder: &mut Recorder, rows: usize) -> Result<()> {
        let shape = self.shape();
        let tables = self.model.rope_tables(self.kind());
        let operands = decode::Operands {
            qkv: self.scratch.qkv.view(),
            qkv_stride: shape.rope().row() * shape.partials,
            bias: self.bias(),
            weights: self.head_norms()?,
            coarse: tables.coarse.view(),
            fine: tables.fine.view(),
            kv: self.cache.layer(self.number as usize),
            table: &self.cache.table(self.kind()),
            positions: self.state.positions.view(),
            slots: self.state.slots.view(),
            active: self.state.apart_count.clone(),
            o: self.scratch.attended_packed.as_ref().unwrap_or(&self.scratch.attended),
            scratch: self.splits.of(SplitRows::Apart(rows)),
            groups: (rows >= GROUPS_FROM).then(|| self.state.attend_groups(self.kind())),
        };
        let plan = decode::policy::plan_for_rows(self.model.device.caps(), &shape, rows as u32);
        let kernel = DecodeAttention::with_plan(&self.model.device, shape, plan)?;
        Ok(kernel.record(recorder, "attention", rows as u32, &operands)?)
    }

    /// The norms of query and key heads, where the family has such.
    fn head_norms(&self) -> Result<Option<(View, View)>> {
        if !self.model.config.architecture.family().head_norms {
            return Ok(None);
        }
        let norm = |role| self.model.norm(Some(self.number), role);
        Ok(Some((norm(Role::QueryNorm)?, norm(Role::KeyNorm)?)))
    }

    /// What is added to queries, keys and values, where the family has such.
    fn bias(&self) -> Option<View> {
        self.model.weights.qkv_biases.get(self.number as usize).map(Buffer::view)
    }

    /// Queries into `q`, keys and values into their pages.
    fn rope(&self, recorder: &mut Recorder, part: &Part) -> Result<()> {
        let shape = self.shape();
        let tables = self.model.rope_tables(self.kind());
        let operands = rope::Operands {
            qkv: self.scratch.qkv.view(),
            qkv_stride: shape.rope().row() * shape.partials,
            bias: self.bias(),
            weights: self.head_norms()?,
            epsilon: self.model.config.rms_norm_eps,
            scale: shape.scale,
            coarse: tables.coarse.view(),
            fine: tables.fine.view(),
            q: self.scratch.q.view(),
            kv: self.cache.layer(self.number as usize),
            table: &self.cache.table(self.kind()),
            positions: self.state.positions.view(),
            slots: self.state.slots.view(),
            active: part.active.clone(),
        };
        let kernel = Rope::new(&self.model.device, shape.rope())?;
        Ok(kernel.record(recorder, "RoPE", part.end as u32, &operands)?)
    }

    /// attended = softmax(q · keys) · values.
    fn attend_apart(&self, recorder: &mut Recorder, part: &Part) -> Result<()> {
        let device = &self.model.device;
        let shape = self.shape().attention();
        let rows = part.rows as u32;
        let operands = paged::Operands {
            q: self.scratch.q.view(),
            kv: self.cache.layer(self.number as usize),
            table: &self.cache.table(self.kind()),
            positions: self.state.positions.view(),
            slots: self.state.slots.view(),
            active: part.active.clone(),
            chunk_ends: part.chunk_ends.clone(),
            o: &self.scratch.attended,
            scratch: part.splits.clone(),
        };
        let reproducible = self.model.reproducible;
        if let Some(o) = self.scratch.attended_packed.as_ref().filter(|o| o.kind() == Activations::F16)
            && (part.mode == Mode::Prefill || reproducible)
            && let Some(plan) = self.model.flash_plan(&shape)
        {
            let plan = if part.chunk_ends.is_some() { plan } else { plan.with_independent_rows(&shape) };
            let kernel = FlashAttention::with_plan(device, shape, flash::Output::F16, plan)?;
            let operands = paged::Operands { o, ..operands };
            return Ok(kernel.record(recorder, "attention", rows, &operands)?);
        }
        let kernel = match reproducible {
            false => PagedAttention::new(device, shape, part.mode)?,
            true => {
                let plan = paged::policy::reproducible(device.caps(), &shape, part.chunk_ends.is_some());
                PagedAttention::with_plan(device, shape, plan)?
            }
        };
        kernel.record(recorder, "attention", rows, &operands)?;
        let Some(attended) = &self.scratch.attended_packed else { return Ok(()) };
        let kernel = QuantizeRows::new(device, attended.kind(), attended.k)?;
        Ok(kernel.record(recorder, "quantize", &self.scratch.attended, attended, &part.active)?)
    }
}

fn attend_shape(model: &Model, limits: Limits, kind: LayerType, output: Activations) -> decode::Shape {
    let config = &model.config;
    let family = config.architecture.family();
    decode::Shape {
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        page_size: limits.page_size,
        scheme: limits.kv_scheme,
        window: match kind {
            LayerType::Global => 0,
            LayerType::Sliding => config.sliding_window.unwrap_or(0),
        },
        context_length: limits.context_length,
        norm: family.head_norms.then_some(config.rms_norm_eps),
        bias: family.qkv_bias,
        interleaved: config.rope_pairs == RopePairs::Neighbours,
        partials: 1,
        scale: config.query_pre_attn_scalar.powf(-0.5),
        output,
    }
}

/// Rows from which on [`DecodeAttention`] asks how many workgroups a step needs: with fewer it is not worth the look.
const GROUPS_FROM: usize = 8;

/// Workgroups of [`DecodeAttention`] recorded for so many rows, none of which is past `position`: in global layers, and in sliding ones.
pub(crate) fn attend_groups(model: &Model, limits: Limits, rows: usize, position: u32) -> [u32; 6] {
    let mut words = [0; 6];
    for (words, kind) in words.chunks_mut(3).zip([LayerType::Global, LayerType::Sliding]) {
        let shape = attend_shape(model, limits, kind, Activations::F32);
        let plan = decode::policy::plan_for_rows(model.device.caps(), &shape, rows as u32);
        words.copy_from_slice(&plan.groups(&shape, rows as u32, position));
    }
    words
}

/// Rows whose attention is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SplitRows {
    /// Those of so many sequences at most.
    Apart(usize),
    /// Those of chunks that have few together.
    FewOfChunk,
}

/// Scratch memory for the splits of attention. Rows of both kinds have their own, since they run side by side in one step; and so has
/// every number of rows, since what one leaves where another counts would not be zero.
#[derive(Default)]
pub(crate) struct Splits(BTreeMap<SplitRows, Option<Buffer>>);

impl Splits {
    /// Takes what a step of a bucket needs, where there is none yet.
    pub fn prepare(&mut self, model: &Model, limits: Limits, rows: Batch, bucket: usize) -> Result<()> {
        let (apart, few) = match rows {
            Batch::Decode => (Some(bucket), false),
            Batch::Prefill => (None, bucket <= FEW_ROWS),
            Batch::Mixed { decode, few } => (Some(decode), few),
        };
        for of in apart.map(SplitRows::Apart).into_iter().chain(few.then_some(SplitRows::FewOfChunk)) {
            if let Entry::Vacant(entry) = self.0.entry(of) {
                entry.insert(splits(model, limits, of)?);
            }
        }
        Ok(())
    }

    fn of(&self, rows: SplitRows) -> Option<View> {
        self.0.get(&rows)?.as_ref().map(Buffer::view)
    }
}

/// Memory for the splits of some rows, where they are split: zeros, since the counters of one dispatch must begin so.
fn splits(model: &Model, limits: Limits, rows: SplitRows) -> Result<Option<Buffer>> {
    let device = &model.device;
    let mut bytes = 0;
    for kind in [LayerType::Global, LayerType::Sliding] {
        let shape = attend_shape(model, limits, kind, Activations::F32);
        let of_kind = match rows {
            SplitRows::Apart(rows) if model.one_dispatch => {
                let plan = decode::policy::plan_for_rows(device.caps(), &shape, rows as u32);
                DecodeAttention::with_plan(device, shape, plan)?.scratch_bytes(rows as u32)
            }
            _ if model.reproducible => 0,
            SplitRows::Apart(_) | SplitRows::FewOfChunk => {
                let rows = if let SplitRows::Apart(rows) = rows { rows } else { FEW_ROWS };
                PagedAttention::new(device, shape.attention(), Mode::Decode)?.scratch_bytes(rows as u32)
            }
        };
        bytes = of_kind.max(bytes);
    }
    if bytes == 0 {
        return Ok(None);
    }
    let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 16);
    let buffer = arena.buffer("splits of attention", bytes)?;
    let mut recorder = device.recorder()?;
    recorder.fill("clear", &buffer, 0)?;
    recorder.seal()?.run(CLEAR_TIMEOUT)?;
    Ok(Some(buffer))
}
