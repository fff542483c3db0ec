//! The encoder of Gemma 4 E2B, E4B, 26B and 31B.

use checkpoint::{EncoderKind, Role, Slot, Transformer};
use gpu::{Buffer, Recorder, View};
use kernels::{
    Epilogue, Target, Vectors,
    attention::rope::{self, Angles, KeysAndValues, Rope, Rotation},
    clip::{self, Clip, ClipGated},
    grid_positions::{self, GridPositions},
    matmul::{gated::Gated, quantize_rows::QuantizeRows},
    norm::{self, Norm},
    pool::Standardise,
};
use weights::vision::{LayerClips, VisionMatrix};

use super::{Recording, has_gated_epilogue};
use crate::{Result, image_encoder::scratch::GridScratch};

impl Recording<'_> {
    /// Records a layer: the first from the patches on, the last up to the soft tokens.
    pub(super) fn gemma4_layer(
        &self,
        transformer: &Transformer,
        layer: u32,
        mut recorder: Recorder,
    ) -> Result<Recorder> {
        let slot = |role| Slot::vision(Some(layer), role);
        let to = &mut recorder;
        if layer == 0 {
            self.embed_positions(to)?;
            self.embed_patches(to)?;
            let weight = self.vector(slot(Role::AttentionNorm))?;
            self.add_and_rms_norm(to, transformer, None, weight)?;
        }
        self.gemma4_attention(to, transformer, layer)?;
        let post = self.vector(slot(Role::PostAttentionNorm))?;
        let weight = self.vector(slot(Role::FeedForwardNorm))?;
        self.add_and_rms_norm(to, transformer, Some(post), weight)?;
        self.gemma4_feed_forward(to, layer)?;
        let post = self.vector(slot(Role::PostFeedForwardNorm))?;
        if layer + 1 < transformer.layers {
            let weight = self.vector(Slot::vision(Some(layer + 1), Role::AttentionNorm))?;
            self.add_and_rms_norm(to, transformer, Some(post), weight)?;
        } else {
            // No norm follows: nothing reads its output.
            let weight = post.clone();
            self.add_and_rms_norm(to, transformer, Some(post), weight)?;
            let factor = (self.config.hidden as f32).sqrt();
            self.pool(to, factor, self.standardise()?, None)?;
            self.project(to)?;
        }
        Ok(recorder)
    }

    /// residual = position embeddings of columns and rows.
    pub(super) fn embed_positions(&self, recorder: &mut Recorder) -> Result<()> {
        let tables = self.weights.positions.as_ref().expect("loaded for images of any shape");
        let positions = self.config.max_patches_per_side() as usize;
        let [columns, rows] =
            tables.each_ref().map(|table| grid_positions::Table { embeddings: table.view(), positions });
        let operands = grid_positions::Operands {
            columns,
            rows,
            positions: self.grid().coordinates.view(),
            active: self.scratch.active(),
            residual: self.scratch.residual.view(),
        };
        let (rows, n) = (self.scratch.rows, self.config.hidden as usize);
        Ok(GridPositions::new(self.device)?.record(recorder, "positions", rows, n, &operands)?)
    }

    fn grid(&self) -> &GridScratch {
        self.scratch.grid.as_ref().expect("encoders of images of any shape have these buffers")
    }

    fn clips(&self, layer: u32) -> Option<&LayerClips> {
        self.weights.clips.get(layer as usize)
    }

    /// residual += block, after a norm of its own if it has one; normed = RMSNorm(residual).
    fn add_and_rms_norm(
        &self,
        recorder: &mut Recorder,
        transformer: &Transformer,
        post_weight: Option<View>,
        weight: View,
    ) -> Result<()> {
        let scratch = self.scratch;
        let y = scratch.normed_floats.as_ref().unwrap_or(&scratch.normed);
        let fusion = norm::Fusion {
            post_norm: post_weight.is_some(),
            residual: true,
            scaled: false,
            output: y.kind(),
            gather: false,
            partials: 1,
            weighted: false,
        };
        let operands = norm::Operands {
            x: scratch.block.view(),
            partial_weights: None,
            post_weight,
            residual: Some(scratch.residual.view()),
            residual_scale: None,
            weight,
            active: scratch.active(),
            rows: None,
            y,
        };
        let kernel = Norm::new(self.device, fusion, y.k, transformer.norm_eps)?;
        Ok(kernel.record(recorder, "norm", &operands)?)
    }

    /// block = W · softmax(queries · keys) · values, where all patches of an image see each other.
    fn gemma4_attention(&self, recorder: &mut Recorder, transformer: &Transformer, layer: u32) -> Result<()> {
        let (scratch, attention) = (self.scratch, self.attention());
        let width = attention.attended.k;
        let clips = self.clips(layer);
        let target = Target::contiguous(&scratch.wide, 3 * width);
        let inputs = clips.map(|clips| &clips.qkv_inputs[..]);
        self.products_of_normed(recorder, "QKV", VisionMatrix::Qkv(layer), inputs, target)?;
        if let Some(clips) = clips {
            self.clip_in_place(recorder, &scratch.wide, 3 * width, &clips.qkv_outputs)?;
        }
        self.rotate(recorder, transformer, layer)?;
        self.attend(recorder, transformer)?;
        let attended = &attention.attended;
        match (&attention.attended_floats, clips) {
            (Some(floats), Some(clips)) => self.clip(recorder, floats, &clips.attended, attended)?,
            (Some(floats), None) => {
                let kernel = QuantizeRows::new(self.device, attended.kind(), width)?;
                kernel.record(recorder, "attention", floats, attended, &scratch.active_range())?;
            }
            (None, _) => {}
        }
        let hidden = self.config.hidden as usize;
        let target = Target::contiguous(&scratch.block, hidden);
        self.products(recorder, "output", VisionMatrix::AttentionOutput(layer), attended, target)?;
        match clips {
            Some(clips) => self.clip_in_place(recorder, &scratch.block, hidden, &clips.attention_output),
            None => Ok(()),
        }
    }

    /// Norms queries, keys and values, rotates queries and keys, and writes keys and values to their pages.
    fn rotate(&self, recorder: &mut Recorder, transformer: &Transformer, layer: u32) -> Result<()> {
        let (scratch, attention) = (self.scratch, self.attention());
        let kv = &attention.kv.shape;
        let shape = rope::Shape {
            heads: transformer.heads,
            kv_heads: transformer.heads,
            head_dim: transformer.head_dim,
            page_size: kv.page_size,
            scheme: kv.scheme,
            keys_and_values: KeysAndValues::Projected,
            norm: true,
            value_norm: true,
            bias: false,
            rotation: Rotation::Grid,
            temperature: None,
            partials: 1,
        };
        let angles = self.grid().angles.as_ref().expect("layers have RoPE");
        let head_norm = |role| self.vector(Slot::vision(Some(layer), role));
        let operands = rope::Operands {
            qkv: scratch.wide.view(),
            qkv_stride: shape.row(),
            bias: None,
            q_weight: Some(head_norm(Role::QueryNorm)?),
            k_weight: Some(head_norm(Role::KeyNorm)?),
            epsilon: transformer.norm_eps,
            // Scores are not scaled: the norms of query and key heads do it.
            scale: 1.0,
            angles: Angles::PerRow(angles.buffer.view()),
            q: attention.q.view(),
            kv: &attention.kv,
            table: &attention.table,
            positions: attention.positions.view(),
            slots: attention.slots.view(),
            active: scratch.active_range(),
        };
        let kernel = Rope::new(self.device, shape)?;
        Ok(kernel.record(recorder, "keys and values", scratch.rows as u32, &operands)?)
    }

    /// block = down · (gelu(gate · normed) · (up · normed)).
    fn gemma4_feed_forward(&self, recorder: &mut Recorder, layer: u32) -> Result<()> {
        let (scratch, activated) = (self.scratch, &self.attention().activated);
        let id = VisionMatrix::GateUp(layer);
        let clips = self.clips(layer);
        match clips {
            Some(clips) => {
                let inputs = Some(&clips.gate_up_inputs[..]);
                let target = Target::contiguous(&scratch.wide, 2 * activated.k);
                self.products_of_normed(recorder, "gate and up", id, inputs, target)?;
                let operands = clip::GatedOperands {
                    x: scratch.wide.view(),
                    x_stride: 2 * activated.k,
                    gate: clips.gate,
                    up: clips.up,
                    product: clips.activated,
                    active: scratch.active(),
                    y: activated,
                };
                let kernel = ClipGated::new(self.device, activated.kind(), activated.k)?;
                kernel.record(recorder, "gated", &operands)?;
            }
            None if has_gated_epilogue(self.weights, id) => {
                let target = Target::vectors(activated)?;
                self.products(recorder, "gate and up", id, &scratch.normed, target)?;
            }
            None => {
                let half = (scratch.rows * activated.k) as u64 * 4;
                let halves = [scratch.wide.slice(0..half)?, scratch.wide.slice(half..2 * half)?];
                for (matrix, half) in self.weights.by_id(id).zip(&halves) {
                    let target = Target { y: half.clone(), ..Target::contiguous(&scratch.wide, activated.k) };
                    let active = scratch.active();
                    let x = &scratch.normed;
                    self.product(recorder, "gate and up", id, matrix, x, &target, None, &active)?;
                }
                let kernel = Gated::new(self.device, Epilogue::Geglu, activated.kind(), activated.k)?;
                let [gate, up] = &halves;
                kernel.record(recorder, "gated", gate, up, activated, &scratch.active())?;
            }
        }
        let hidden = self.config.hidden as usize;
        let target = Target::contiguous(&scratch.block, hidden);
        self.products(recorder, "down", VisionMatrix::Down(layer), activated, target)?;
        match clips {
            Some(clips) => self.clip_in_place(recorder, &scratch.block, hidden, &clips.feed_forward_output),
            None => Ok(()),
        }
    }

    /// The products of normed rows with all matrices of an id, each with its own range of inputs if it has one.
    fn products_of_normed(
        &self,
        recorder: &mut Recorder,
        name: &str,
        id: VisionMatrix,
        inputs: Option<&[Buffer]>,
        mut target: Target,
    ) -> Result<()> {
        let scratch = self.scratch;
        let (Some(inputs), Some(floats)) = (inputs, &scratch.normed_floats) else {
            return self.products(recorder, name, id, &scratch.normed, target);
        };
        for (matrix, range) in self.weights.by_id(id).zip(inputs) {
            self.clip(recorder, floats, range, &scratch.normed)?;
            self.product(recorder, name, id, matrix, &scratch.normed, &target, None, &scratch.active())?;
            target.first += matrix.layout().rows;
        }
        Ok(())
    }

    /// y = x, clamped to the ranges of its columns.
    fn clip(&self, recorder: &mut Recorder, x: &Vectors, ranges: &Buffer, y: &Vectors) -> Result<()> {
        let (rows, target) = (Target::vectors(x)?.y, Target::vectors(y)?);
        self.clip_rows(recorder, rows, x.stride(), y.k, ranges, &target)
    }

    /// Clamps contiguous rows of `n` values to the ranges of their columns.
    fn clip_in_place(&self, recorder: &mut Recorder, x: &Buffer, n: usize, ranges: &Buffer) -> Result<()> {
        self.clip_rows(recorder, x.view(), n, n, ranges, &Target::contiguous(x, n))
    }

    fn clip_rows(
        &self,
        recorder: &mut Recorder,
        x: View,
        x_stride: usize,
        n: usize,
        ranges: &Buffer,
        target: &Target,
    ) -> Result<()> {
        let operands =
            clip::Operands { x, x_stride, ranges: ranges.view(), target, active: self.scratch.active() };
        let kernel = Clip::new(self.device, target.kind(), n)?;
        Ok(kernel.record(recorder, "clip", self.scratch.rows, &operands)?)
    }

    /// Bias and scale of pooled rows, where the encoder has them.
    fn standardise(&self) -> Result<Option<Standardise>> {
        if !matches!(self.config.encoder, EncoderKind::Gemma4 { standardized: true, .. }) {
            return Ok(None);
        }
        let vector = |role| self.vector(Slot::vision(None, role));
        let (bias, scale) = (vector(Role::StandardizeBias)?, vector(Role::StandardizeScale)?);
        Ok(Some(Standardise { bias, scale }))
    }
}
