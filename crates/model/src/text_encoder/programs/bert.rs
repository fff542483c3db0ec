//! BERT: every block is followed by its norm, whose output is the residual stream.

use checkpoint::{AttentionSpan, Bert, Role, Slot};
use gpu::{Recorder, View};
use kernels::{
    Activations, Target,
    attention::split_qkv::{self, SplitQkv},
    bias_gelu::{BiasGelu, Gelu},
    layer_norm::{self, LayerNorm},
};
use weights::embedding::EmbeddingMatrix;

use super::Recording;
use crate::{Result, text_encoder::scratch::Dimensions};

impl Recording<'_> {
    /// Records a layer: the first from the tokens on.
    pub(super) fn bert_layer(&self, to: &mut Recorder, bert: &Bert, layer: u32) -> Result<()> {
        let slot = |role| Slot::text(Some(layer), role);
        let outside = |role| self.vector(Slot::text(None, role));
        let scratch = self.scratch;
        if layer == 0 {
            let (residual, block) = (scratch.residual.view(), scratch.block.view());
            self.embed(to, EmbeddingMatrix::Tokens, 1.0, scratch.tokens.view(), residual)?;
            let positions = scratch.attention.positions.view();
            self.embed(to, EmbeddingMatrix::Positions, 1.0, positions, block)?;
            let norm = [outside(Role::EmbedNorm)?, outside(Role::EmbedNormBias)?];
            self.add_and_norm(to, bert, outside(Role::TypeEmbed)?, norm)?;
        }
        let vector = |role| self.vector(slot(role));
        self.bert_attention(to, layer)?;
        let norm = [vector(Role::PostAttentionNorm)?, vector(Role::PostAttentionNormBias)?];
        self.add_and_norm(to, bert, vector(Role::OutputBias)?, norm)?;
        self.bert_feed_forward(to, layer)?;
        let norm = [vector(Role::PostFeedForwardNorm)?, vector(Role::PostFeedForwardNormBias)?];
        self.add_and_norm(to, bert, vector(Role::DownBias)?, norm)
    }

    /// residual = normed = LayerNorm(residual + block + bias).
    fn add_and_norm(
        &self,
        recorder: &mut Recorder,
        bert: &Bert,
        block_bias: View,
        [weight, bias]: [View; 2],
    ) -> Result<()> {
        let (scratch, y) = (self.scratch, &self.scratch.normed);
        let fusion =
            layer_norm::Fusion { add: Some(Activations::F32), normed_residual: true, output: y.kind() };
        let operands = layer_norm::Operands {
            x: Some(scratch.block.view()),
            x_stride: y.k,
            x_bias: Some(block_bias),
            residual: scratch.residual.view(),
            weight,
            bias,
            active: scratch.active(),
            y,
        };
        Ok(LayerNorm::new(self.device, fusion, y.k, bert.norm_eps)?.record(recorder, "norm", &operands)?)
    }

    /// block = W · softmax(queries · keys) · values, where all tokens of a text see each other.
    fn bert_attention(&self, recorder: &mut Recorder, layer: u32) -> Result<()> {
        let (scratch, attention) = (self.scratch, &self.scratch.attention);
        let dimensions = Dimensions::of(self.config);
        let target = Target::contiguous(&scratch.wide, dimensions.qkv() as usize);
        self.products(recorder, "QKV", EmbeddingMatrix::Qkv(layer), &scratch.normed, target)?;
        // Adds biases, scales the queries, and writes keys and values to their pages.
        let split = split_qkv::Shape {
            heads: dimensions.heads,
            kv_heads: dimensions.kv_heads,
            head_dim: dimensions.head_dim,
            page_size: attention.kv.shape.page_size,
            scheme: attention.kv.shape.scheme,
        };
        let operands = split_qkv::Operands {
            qkv: scratch.wide.view(),
            qkv_stride: split.row(),
            bias: self.weights.qkv_biases[layer as usize].view(),
            scale: (dimensions.head_dim as f32).sqrt().recip(),
            q: attention.q.view(),
            kv: &attention.kv,
            table: &attention.table,
            positions: attention.positions.view(),
            slots: attention.slots.view(),
            active: scratch.active_range(),
        };
        let kernel = SplitQkv::new(self.device, split)?;
        kernel.record(recorder, "keys and values", scratch.rows as u32, &operands)?;
        self.attend(recorder, AttentionSpan::Full)?;
        let target = Target::contiguous(&scratch.block, dimensions.hidden as usize);
        self.products(
            recorder,
            "output",
            EmbeddingMatrix::AttentionOutput(layer),
            &attention.attended,
            target,
        )
    }

    /// block = down · gelu(up · normed + bias).
    fn bert_feed_forward(&self, recorder: &mut Recorder, layer: u32) -> Result<()> {
        let (scratch, activated) = (self.scratch, &self.scratch.activated);
        let target = Target::contiguous(&scratch.wide, activated.k);
        self.products(recorder, "up", EmbeddingMatrix::Up(layer), &scratch.normed, target)?;
        let kernel = BiasGelu::new(self.device, Gelu::Erf, activated.kind(), activated.k)?;
        let bias = self.vector(Slot::text(Some(layer), Role::UpBias))?;
        kernel.record(recorder, "GELU", &scratch.wide.view(), &bias, activated, &scratch.active())?;
        let target = Target::contiguous(&scratch.block, self.config.hidden() as usize);
        self.products(recorder, "down", EmbeddingMatrix::Down(layer), activated, target)
    }
}
