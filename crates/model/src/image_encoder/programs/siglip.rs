//! SigLIP, the encoder of Gemma 3.

use checkpoint::{Role, Slot, Transformer};
use gpu::Recorder;
use kernels::{
    Activations, Target, Vectors,
    attention::{
        flash::{FlashAttention, RowOperands},
        split_qkv::{self, SplitQkv},
    },
    bias_gelu::{BiasGelu, Gelu},
    matmul::{coopmat::policy::Bias, quantize_rows::QuantizeRows},
};
use weights::vision::VisionMatrix;

use super::{Addend, LayerNormSlots, Recording};
use crate::{Result, image_encoder::scratch::attention_shape};

impl Recording<'_> {
    /// Records a layer: the first from the patches and positions on, the last up to the soft tokens.
    pub(super) fn siglip_layer(
        &self,
        transformer: &Transformer,
        layer: u32,
        mut recorder: Recorder,
    ) -> Result<Recorder> {
        let slot = |role| Slot::vision(Some(layer), role);
        let outside = |role| Slot::vision(None, role);
        let scratch = self.scratch;
        let to = &mut recorder;
        if layer == 0 {
            self.embed_patches(to)?;
            let norm =
                LayerNormSlots { weight: slot(Role::AttentionNorm), bias: slot(Role::AttentionNormBias) };
            let bias = outside(Role::PatchEmbedBias);
            self.add_and_norm(to, transformer, bias, &norm, &scratch.normed)?;
        }
        self.siglip_attention(to, transformer, layer)?;
        let norm =
            LayerNormSlots { weight: slot(Role::FeedForwardNorm), bias: slot(Role::FeedForwardNormBias) };
        self.add_and_norm(to, transformer, slot(Role::OutputBias), &norm, &scratch.normed)?;
        self.siglip_feed_forward(to, layer)?;
        let bias = slot(Role::DownBias);
        match &scratch.encoded {
            Some(encoded) if layer + 1 == transformer.layers => {
                let norm =
                    LayerNormSlots { weight: outside(Role::FinalNorm), bias: outside(Role::FinalNormBias) };
                self.add_and_norm(to, transformer, bias, &norm, encoded)?;
                let weight = self.vector(outside(Role::SoftTokenNorm))?;
                self.pool(to, 1.0, None, Some(weight))?;
                self.project(to)?;
            }
            _ => {
                let next = |role| Slot::vision(Some(layer + 1), role);
                let norm =
                    LayerNormSlots { weight: next(Role::AttentionNorm), bias: next(Role::AttentionNormBias) };
                self.add_and_norm(to, transformer, bias, &norm, &scratch.normed)?;
            }
        }
        Ok(recorder)
    }

    /// residual += block + bias; y = LayerNorm(residual).
    fn add_and_norm(
        &self,
        recorder: &mut Recorder,
        transformer: &Transformer,
        bias: Slot,
        norm: &LayerNormSlots,
        y: &Vectors,
    ) -> Result<()> {
        let scratch = self.scratch;
        let bias = self.vector(bias)?;
        let add = match self.half_block() {
            Some(block) => {
                let x = Target::vectors(block)?.y;
                Addend { x, format: block.kind(), x_stride: block.stride(), bias }
            }
            None => Addend { x: scratch.block.view(), format: Activations::F32, x_stride: y.k, bias },
        };
        self.layer_norm(recorder, Some(add), scratch.residual.view(), norm, transformer.norm_eps, y)
    }

    /// block = W · softmax(queries · keys) · values, where all patches of an image see each other.
    fn siglip_attention(&self, recorder: &mut Recorder, transformer: &Transformer, layer: u32) -> Result<()> {
        let (scratch, attention) = (self.scratch, self.attention());
        let width = attention.attended.k;
        if let Some(rows) = &attention.half_rows {
            return self.siglip_attention_of_rows(recorder, transformer, layer, &rows.qkv);
        }
        let target = Target::contiguous(&scratch.wide, 3 * width);
        self.products(recorder, "QKV", VisionMatrix::Qkv(layer), &scratch.normed, target)?;
        // Adds biases, scales the queries, and writes keys and values to their pages.
        let shape = &attention.kv.shape;
        let split = split_qkv::Shape {
            heads: transformer.heads,
            kv_heads: transformer.heads,
            head_dim: transformer.head_dim,
            page_size: shape.page_size,
            scheme: shape.scheme,
        };
        let operands = split_qkv::Operands {
            qkv: scratch.wide.view(),
            qkv_stride: split.row(),
            bias: self.weights.qkv_biases[layer as usize].view(),
            scale: (transformer.head_dim as f32).sqrt().recip(),
            q: attention.q.view(),
            kv: &attention.kv,
            table: &attention.table,
            positions: attention.positions.view(),
            slots: attention.slots.view(),
            active: scratch.active_range(),
        };
        let kernel = SplitQkv::new(self.device, split)?;
        kernel.record(recorder, "keys and values", scratch.rows as u32, &operands)?;
        self.attend(recorder, transformer)?;
        if let Some(floats) = &attention.attended_floats {
            let kernel = QuantizeRows::new(self.device, attention.attended.kind(), width)?;
            kernel.record(recorder, "attention", floats, &attention.attended, &scratch.active_range())?;
        }
        let target = self.block_target()?;
        self.products(recorder, "output", VisionMatrix::AttentionOutput(layer), &attention.attended, target)
    }

    /// The same where attention takes the rows of the QKV product.
    fn siglip_attention_of_rows(
        &self,
        recorder: &mut Recorder,
        transformer: &Transformer,
        layer: u32,
        qkv: &Vectors,
    ) -> Result<()> {
        let (scratch, attention) = (self.scratch, self.attention());
        let bias = self.weights.qkv_biases[layer as usize].view();
        let target = Target::vectors(qkv)?;
        let (id, x) = (VisionMatrix::Qkv(layer), &scratch.normed);
        self.products_with_bias(recorder, "QKV", id, x, target, Bias::Add, &bias)?;
        let shape = attention_shape(self.config, transformer, attention.kv.shape.scheme);
        let plan = self.units.flash_plan(self.device.caps(), &shape);
        let plan = plan.expect("rows are allocated only where there is a plan");
        let operands = RowOperands {
            qkv,
            scale: (transformer.head_dim as f32).sqrt().recip(),
            positions: attention.positions.view(),
            last_visible: attention.last_visible.view(),
            active: scratch.active_range(),
            chunk_ends: scratch.chunk_ends.view(),
            o: &attention.attended,
        };
        let kernel = FlashAttention::for_rows(self.device, shape, plan)?;
        kernel.record_rows(recorder, "attention", scratch.rows as u32, &operands)?;
        let target = self.block_target()?;
        self.products(recorder, "output", VisionMatrix::AttentionOutput(layer), &attention.attended, target)
    }

    /// block = down · gelu(up · normed + bias).
    fn siglip_feed_forward(&self, recorder: &mut Recorder, layer: u32) -> Result<()> {
        let (scratch, activated) = (self.scratch, &self.attention().activated);
        let (id, bias) = (VisionMatrix::Up(layer), self.vector(Slot::vision(Some(layer), Role::UpBias))?);
        if activated.kind() == Activations::F16 && self.cuts.is_none() {
            let (x, target) = (&scratch.normed, Target::vectors(activated)?);
            self.products_with_bias(recorder, "up", id, x, target, Bias::AddGelu, &bias)?;
        } else {
            let target = Target::contiguous(&scratch.wide, activated.k);
            self.products(recorder, "up", id, &scratch.normed, target)?;
            let kernel = BiasGelu::new(self.device, Gelu::Tanh, activated.kind(), activated.k)?;
            kernel.record(recorder, "GELU", &scratch.wide.view(), &bias, activated, &scratch.active())?;
        }
        let target = self.block_target()?;
        self.products(recorder, "down", VisionMatrix::Down(layer), activated, target)
    }
}
