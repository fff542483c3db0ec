//! The layers of a language model: Qwen3-Embedding and EmbeddingGemma.

use checkpoint::{Attention, Config, Mixer, Role, Slot, config::RopePairs};
use gpu::{Recorder, View};
use kernels::{
    KeysAndValues, Rotation, Target, Vectors,
    attention::rope::{self, Angles, Rope},
    matmul::gated::Gated,
    norm::{self, Norm},
};
use weights::embedding::EmbeddingMatrix;

use super::{Recording, gate};
use crate::Result;

impl Recording<'_> {
    /// Records a layer: the first from the tokens on, the last up to the final norm.
    pub(super) fn decoder_layer(&self, to: &mut Recorder, config: &Config, layer: u32) -> Result<()> {
        let scratch = self.scratch;
        let vector = |role| self.vector(Slot::text(Some(layer), role));
        let post = |role| match config.architecture.family().post_norms {
            true => vector(role).map(Some),
            false => Ok(None),
        };
        if layer == 0 {
            let (tokens, residual) = (scratch.tokens.view(), scratch.residual.view());
            self.embed(to, EmbeddingMatrix::Tokens, config.embedding_factor, tokens, residual)?;
            self.rms_norm(to, config, None, vector(Role::AttentionNorm)?, &scratch.normed)?;
        }
        self.decoder_attention(to, config, layer)?;
        let add = Some(post(Role::PostAttentionNorm)?);
        self.rms_norm(to, config, add, vector(Role::FeedForwardNorm)?, &scratch.normed)?;
        self.decoder_feed_forward(to, layer)?;
        let add = Some(post(Role::PostFeedForwardNorm)?);
        match &scratch.encoded {
            Some(encoded) if layer + 1 == config.layers => {
                let weight = self.vector(Slot::text(None, Role::FinalNorm))?;
                self.rms_norm(to, config, add, weight, encoded)
            }
            _ => {
                let weight = self.vector(Slot::text(Some(layer + 1), Role::AttentionNorm))?;
                self.rms_norm(to, config, add, weight, &scratch.normed)
            }
        }
    }

    /// residual += block, if it is to be added, after a norm of its own if it has one; y = RMSNorm(residual).
    fn rms_norm(
        &self,
        recorder: &mut Recorder,
        config: &Config,
        add: Option<Option<View>>,
        weight: View,
        y: &Vectors,
    ) -> Result<()> {
        let scratch = self.scratch;
        let (x, residual) = match add {
            Some(_) => (scratch.block.view(), Some(scratch.residual.view())),
            None => (scratch.residual.view(), None),
        };
        let post_weight = add.flatten();
        let fusion = norm::Fusion {
            post_norm: post_weight.is_some(),
            residual: residual.is_some(),
            scaled: false,
            output: y.kind(),
            gather: false,
            partials: 1,
            weighted: false,
        };
        let operands = norm::Operands {
            x,
            partial_weights: None,
            post_weight,
            residual,
            residual_scale: None,
            weight,
            active: scratch.active(),
            rows: None,
            y,
        };
        Ok(Norm::new(self.device, fusion, y.k, config.rms_norm_eps)?.record(recorder, "norm", &operands)?)
    }

    /// block = W · softmax(queries · keys) · values.
    fn decoder_attention(&self, recorder: &mut Recorder, config: &Config, layer: u32) -> Result<()> {
        let scratch = self.scratch;
        let Mixer::Attention(attention) = config.layer(layer).mixer;
        let target = Target::contiguous(&scratch.wide, attention.qkv_rows() as usize);
        self.products(recorder, "QKV", EmbeddingMatrix::Qkv(layer), &scratch.normed, target)?;
        self.rotate(recorder, config, &attention, layer)?;
        self.attend(recorder, attention.span)?;
        let (id, attended) = (EmbeddingMatrix::AttentionOutput(layer), &scratch.attention.attended);
        let target = Target::contiguous(&scratch.block, config.hidden as usize);
        self.products(recorder, "output", id, attended, target)
    }

    /// Norms and rotates queries and keys, and writes keys and values to their pages.
    fn rotate(
        &self,
        recorder: &mut Recorder,
        config: &Config,
        attention: &Attention,
        layer: u32,
    ) -> Result<()> {
        let (scratch, buffers) = (self.scratch, &self.scratch.attention);
        let shape = rope::Shape {
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            page_size: buffers.kv.shape.page_size,
            scheme: buffers.kv.shape.scheme,
            keys_and_values: KeysAndValues::Projected,
            norm: attention.head_norms,
            value_norm: attention.value_norm,
            bias: false,
            rotation: match config.rope_pairs {
                RopePairs::Halves => Rotation::Halves,
                RopePairs::Neighbours => Rotation::Interleaved,
            },
            temperature: None,
            partials: 1,
        };
        let tables = if attention.span.is_sliding() { &self.rope.sliding } else { &self.rope.full };
        let tables = tables.as_ref().expect("made for every span of the layers");
        let head_norm = |role| match attention.head_norms {
            true => self.vector(Slot::text(Some(layer), role)).map(Some),
            false => Ok(None),
        };
        let operands = rope::Operands {
            qkv: scratch.wide.view(),
            qkv_stride: shape.row(),
            bias: None,
            q_weight: head_norm(Role::QueryNorm)?,
            k_weight: head_norm(Role::KeyNorm)?,
            epsilon: config.rms_norm_eps,
            scale: config.query_pre_attn_scalar.powf(-0.5),
            angles: Angles::Tables { coarse: tables.coarse.view(), fine: tables.fine.view() },
            q: buffers.q.view(),
            kv: &buffers.kv,
            table: &buffers.table,
            positions: buffers.positions.view(),
            slots: buffers.slots.view(),
            active: scratch.active_range(),
        };
        let kernel = Rope::new(self.device, shape)?;
        Ok(kernel.record(recorder, "keys and values", scratch.rows as u32, &operands)?)
    }

    /// block = down · (activation(gate · normed) · (up · normed)).
    fn decoder_feed_forward(&self, recorder: &mut Recorder, layer: u32) -> Result<()> {
        let (scratch, activated) = (self.scratch, &self.scratch.activated);
        let id = EmbeddingMatrix::GateUp(layer);
        if self.weights.by_id(id).count() == 1 {
            let target = Target::vectors(activated)?;
            self.products(recorder, "gate and up", id, &scratch.normed, target)?;
        } else {
            let half = (scratch.rows * activated.k) as u64 * 4;
            let halves = [scratch.wide.slice(0..half)?, scratch.wide.slice(half..2 * half)?];
            for (matrix, half) in self.weights.by_id(id).zip(&halves) {
                let target = Target { y: half.clone(), ..Target::contiguous(&scratch.wide, activated.k) };
                self.product(recorder, "gate and up", id, matrix, &scratch.normed, &target)?;
            }
            let kernel = Gated::new(self.device, gate(self.config), activated.kind(), activated.k)?;
            let [gate, up] = &halves;
            kernel.record(recorder, "gated", gate, up, activated, &scratch.active())?;
        }
        let target = Target::contiguous(&scratch.block, self.config.hidden() as usize);
        self.products(recorder, "down", EmbeddingMatrix::Down(layer), activated, target)
    }
}
