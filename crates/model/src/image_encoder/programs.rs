//! Recording the layers of an image encoder.

use checkpoint::{Role, Slot, VisionConfig};
use gpu::{Device, Recorder, View};
use kernels::{
    Activations, Epilogue, Matrix, Target, Vectors,
    attention::{
        flash::{self, FlashAttention},
        paged::{self, Mode, PagedAttention},
        split_qkv::{self, SplitQkv},
    },
    bias_gelu::BiasGelu,
    layer_norm::{self, LayerNorm},
    matmul::{
        coopmat::{self, Coopmat, policy::SplitK},
        gemm::{self, Gemm},
        quantize_rows::QuantizeRows,
    },
    pool::{self, Pool},
};
use weights::vision::{VisionMatrix, VisionWeights};

use super::{
    scratch::{Scratch, attention_shape},
    single,
};
use crate::{Result, loaded::MatrixUnits};

/// A product on cooperative matrices, to f32.
pub(super) fn coopmat_shape(matrix: &Matrix, columns: usize) -> coopmat::policy::Shape {
    coopmat::policy::Shape {
        weights: matrix.layout(),
        columns,
        epilogue: Epilogue::None,
        output: Activations::F32,
        split_k: SplitK::Reduced,
    }
}

/// What the programs are recorded from.
pub(super) struct Recording<'a> {
    pub device: &'a Device,
    pub config: &'a VisionConfig,
    pub weights: &'a VisionWeights,
    pub scratch: &'a Scratch,
    pub units: MatrixUnits,
}

/// The vectors of a residual add and of the LayerNorm after it, named as in [`layer_norm::Operands`].
struct AddNorm {
    /// Bias of the block's output.
    x_bias: Slot,
    /// Weight and bias of the norm.
    weight: Slot,
    bias: Slot,
}

impl Recording<'_> {
    /// Records a layer: the first from the patches on, the last up to the soft tokens.
    pub fn layer(&self, layer: u32, mut recorder: Recorder) -> Result<Recorder> {
        let slot = |role| Slot::vision(Some(layer), role);
        let outside = |role| Slot::vision(None, role);
        let scratch = self.scratch;
        if layer == 0 {
            self.embed(&mut recorder)?;
            let norm = AddNorm {
                x_bias: outside(Role::PatchEmbedBias),
                weight: slot(Role::AttentionNorm),
                bias: slot(Role::AttentionNormBias),
            };
            self.add_and_norm(&mut recorder, &norm, &scratch.normed)?;
        }
        self.attention(&mut recorder, layer)?;
        let norm = AddNorm {
            x_bias: slot(Role::OutputBias),
            weight: slot(Role::FeedForwardNorm),
            bias: slot(Role::FeedForwardNormBias),
        };
        self.add_and_norm(&mut recorder, &norm, &scratch.normed)?;
        self.feed_forward(&mut recorder, layer)?;
        let x_bias = slot(Role::DownBias);
        if layer + 1 < self.config.layers {
            let next = |role| Slot::vision(Some(layer + 1), role);
            let (weight, bias) = (next(Role::AttentionNorm), next(Role::AttentionNormBias));
            self.add_and_norm(&mut recorder, &AddNorm { x_bias, weight, bias }, &scratch.normed)?;
        } else {
            let (weight, bias) = (outside(Role::FinalNorm), outside(Role::FinalNormBias));
            self.add_and_norm(&mut recorder, &AddNorm { x_bias, weight, bias }, &scratch.encoded)?;
            self.soft_tokens(&mut recorder)?;
        }
        Ok(recorder)
    }

    /// residual = position embeddings; block = patch embedding · patches.
    fn embed(&self, recorder: &mut Recorder) -> Result<()> {
        let Scratch { patches, packed_patches, residual, block, images, .. } = self.scratch;
        let positions = self.vector(Slot::vision(None, Role::PositionEmbed))?;
        let bytes = positions.len();
        for image in 0..*images as u64 {
            recorder.copy(
                "positions",
                positions.clone(),
                residual.slice(image * bytes..(image + 1) * bytes)?,
            )?;
        }
        let x = match packed_patches {
            None => patches,
            Some(packed) => {
                let kernel = QuantizeRows::new(self.device, packed.kind(), packed.k)?;
                kernel.record(recorder, "patches", patches, packed, &self.scratch.active_range())?;
                packed
            }
        };
        let matrix = single(self.weights, VisionMatrix::PatchEmbed)?;
        let target = Target::contiguous(block, self.config.hidden as usize);
        self.product(recorder, "patch embedding", matrix, x, &target, &self.scratch.active())
    }

    /// block = W · softmax(queries · keys) · values, where all patches of an image see each other.
    fn attention(&self, recorder: &mut Recorder, layer: u32) -> Result<()> {
        let scratch = self.scratch;
        let hidden = self.config.hidden as usize;
        let mut target = Target::contiguous(&scratch.wide, 3 * hidden);
        for matrix in self.weights.by_id(VisionMatrix::Qkv(layer)) {
            self.product(recorder, "QKV", matrix, &scratch.normed, &target, &scratch.active())?;
            target.first += matrix.layout().rows;
        }
        let shape = attention_shape(self.config, scratch.kv.shape.scheme);
        self.write_keys_and_values(recorder, layer, &shape)?;
        let floats = scratch.attended_floats.as_ref();
        let operands = paged::Operands {
            q: scratch.q.view(),
            kv: &scratch.kv,
            table: &scratch.table,
            positions: scratch.positions.view(),
            last_visible: scratch.last_visible.view(),
            slots: scratch.slots.view(),
            active: scratch.active_range(),
            chunk_ends: Some(scratch.chunk_ends.view()),
            o: floats.unwrap_or(&scratch.attended),
            scratch: None,
        };
        let rows = scratch.rows as u32;
        match self.units.flash_plan(self.device.caps(), &shape) {
            Some(plan) if scratch.attended.kind() == Activations::F16 => {
                let kernel = FlashAttention::with_plan(self.device, shape, flash::Output::F16, plan)?;
                kernel.record(recorder, "attention", rows, &operands)?;
            }
            _ => {
                let kernel = PagedAttention::new(self.device, shape, Mode::Prefill)?;
                kernel.record(recorder, "attention", rows, &operands)?;
            }
        }
        if let Some(floats) = floats {
            let kernel = QuantizeRows::new(self.device, scratch.attended.kind(), hidden)?;
            kernel.record(recorder, "attention", floats, &scratch.attended, &scratch.active_range())?;
        }
        let matrix = single(self.weights, VisionMatrix::AttentionOutput(layer))?;
        let target = Target::contiguous(&scratch.block, hidden);
        self.product(recorder, "output", matrix, &scratch.attended, &target, &scratch.active())
    }

    /// Adds biases, scales the queries, and writes keys and values to their pages.
    fn write_keys_and_values(
        &self,
        recorder: &mut Recorder,
        layer: u32,
        shape: &paged::policy::Shape,
    ) -> Result<()> {
        let scratch = self.scratch;
        let split = split_qkv::Shape {
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            page_size: shape.page_size,
            scheme: shape.scheme,
        };
        let operands = split_qkv::Operands {
            qkv: scratch.wide.view(),
            qkv_stride: split.row(),
            bias: self.weights.qkv_biases[layer as usize].view(),
            scale: (shape.head_dim as f32).sqrt().recip(),
            q: scratch.q.view(),
            kv: &scratch.kv,
            table: &scratch.table,
            positions: scratch.positions.view(),
            slots: scratch.slots.view(),
            active: scratch.active_range(),
        };
        let kernel = SplitQkv::new(self.device, split)?;
        Ok(kernel.record(recorder, "keys and values", scratch.rows as u32, &operands)?)
    }

    /// block = down · gelu(up · normed + bias).
    fn feed_forward(&self, recorder: &mut Recorder, layer: u32) -> Result<()> {
        let scratch = self.scratch;
        let (up, down) = (VisionMatrix::Up(layer), VisionMatrix::Down(layer));
        let target = Target::contiguous(&scratch.wide, self.config.intermediate as usize);
        self.product(recorder, "up", single(self.weights, up)?, &scratch.normed, &target, &scratch.active())?;
        let kernel = BiasGelu::new(self.device, scratch.activated.kind(), scratch.activated.k)?;
        let bias = self.vector(Slot::vision(Some(layer), Role::UpBias))?;
        let activated = &scratch.activated;
        kernel.record(recorder, "GELU", &scratch.wide.view(), &bias, activated, &scratch.active())?;
        let target = Target::contiguous(&scratch.block, self.config.hidden as usize);
        self.product(recorder, "down", single(self.weights, down)?, activated, &target, &scratch.active())
    }

    /// soft = projection · RMSNorm(average pooling of the patches).
    fn soft_tokens(&self, recorder: &mut Recorder) -> Result<()> {
        let (scratch, config) = (self.scratch, self.config);
        let side = config.patches_per_side() as usize;
        let shape = pool::Shape {
            columns: side,
            rows: side,
            side: config.pooled_patches() as usize,
            n: config.hidden as usize,
            epsilon: config.soft_norm_eps,
            output: scratch.pooled.kind(),
        };
        let encoded = Target::vectors(&scratch.encoded)?;
        let operands = pool::Operands {
            x: encoded.y,
            x_stride: scratch.encoded.stride(),
            weight: self.vector(Slot::vision(None, Role::SoftTokenNorm))?,
            active: scratch.active_soft(),
            y: &scratch.pooled,
        };
        Pool::new(self.device, shape)?.record(recorder, "pool", &operands)?;
        let matrix = single(self.weights, VisionMatrix::Projection)?;
        let target = Target::contiguous(&scratch.soft, config.text_hidden as usize);
        self.product(recorder, "projection", matrix, &scratch.pooled, &target, &scratch.active_soft())
    }

    /// residual += block + bias; y = norm(residual).
    fn add_and_norm(&self, recorder: &mut Recorder, norm: &AddNorm, y: &Vectors) -> Result<()> {
        let fusion = layer_norm::Fusion { add: true, output: y.kind() };
        let operands = layer_norm::Operands {
            x: Some(self.scratch.block.view()),
            x_bias: Some(self.vector(norm.x_bias)?),
            residual: self.scratch.residual.view(),
            weight: self.vector(norm.weight)?,
            bias: self.vector(norm.bias)?,
            active: self.scratch.active(),
            y,
        };
        let hidden = self.config.hidden as usize;
        let kernel = LayerNorm::new(self.device, fusion, hidden, self.config.layer_norm_eps)?;
        Ok(kernel.record(recorder, "norm", &operands)?)
    }

    fn product(
        &self,
        recorder: &mut Recorder,
        name: &str,
        matrix: &Matrix,
        x: &Vectors,
        target: &Target,
        active: &View,
    ) -> Result<()> {
        if x.kind() == Activations::F16 {
            let shape = coopmat_shape(matrix, x.columns);
            let plan = self.units.coopmat_plan(self.device.caps(), &shape);
            let plan = plan.expect("activations are f16 only where cooperative matrices take every matrix");
            let kernel = Coopmat::with_plan(self.device, shape, plan)?;
            let scratch = self.scratch.split_k.as_ref().map(|scratch| scratch.view());
            let operands = coopmat::Operands { w: matrix, x, target, active: active.clone(), scratch };
            return Ok(kernel.record(recorder, name, &operands)?);
        }
        let shape = gemm::policy::Shape {
            weights: matrix.layout(),
            columns: x.columns,
            activations: x.kind(),
            epilogue: Epilogue::None,
            output: target.kind(),
        };
        Ok(Gemm::new(self.device, shape)?.record(recorder, name, matrix, x, target, active)?)
    }

    /// A norm, a bias or the position embeddings.
    fn vector(&self, slot: Slot) -> Result<View> {
        let missing =
            || gpu::Error::InvalidUse { what: format!("{:?}", slot.role), reason: "was not loaded".into() };
        Ok(self.weights.vectors.get(&slot).ok_or_else(missing)?.view())
    }
}
