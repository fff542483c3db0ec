//! Recording a step: the operations that the decoder is written in, on the buffers of one bucket of rows.

mod experts;
mod kv_splits;
mod per_layer;
mod prefetch;
mod product;
mod scratch;
mod split_k;

use checkpoint::{Config, Experts, FeedForward, LayerSpec, Role};
use gpu::{Recorder, View};
use kernels::{
    Vectors,
    embed::{self, Embed},
    matmul::{
        gemv::{self, Sublayer, policy::Prologue},
        gemv_norm::GemvNorm,
        tuning::{Input, Product},
    },
    norm::{self, Fusion, Norm},
    soft_tokens::{self, SoftTokens},
    softcap::Softcap,
};
use weights::blueprint::MatrixId;

use crate::{
    Model, Result,
    attention_offload::AttentionCuts,
    decoder::BlockEnd,
    image_encoder::SoftTokenCache,
    kv_cache::KvCache,
    state::{Batch, StepState},
};

pub(crate) use kv_splits::{KvSplits, SplitRows, WORKGROUPS_MIN_ROWS, attention_shape, attention_workgroups};
pub(crate) use scratch::{Outputs, Scratch};
pub(crate) use split_k::partial_sums;

/// The model, and the buffers that a step is recorded on.
#[derive(Clone, Copy)]
pub(crate) struct StepBuffers<'a> {
    pub model: &'a Model,
    pub cache: &'a KvCache,
    pub state: &'a StepState,
    pub scratch: &'a Scratch,
    pub kv_splits: &'a KvSplits,
    pub outputs: Option<&'a Outputs>,
    /// Of images, where the model has an image encoder.
    pub soft_tokens: Option<&'a SoftTokenCache>,
    /// Where layers of a prefill step attend on the NPU.
    pub attention_cuts: Option<&'a AttentionCuts<'a>>,
}

/// The output of a block that is not yet added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockOutput {
    /// Partial sums per row.
    partials: u32,
    source: BlockSource,
}

/// What a block's output is, and thereby where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockSource {
    /// The output of a product.
    Product,
    /// The outputs of experts, each with a weight.
    Experts,
    /// The sum of a dense block and of experts.
    Combined,
}

impl BlockOutput {
    const COMBINED: Self = Self { partials: 1, source: BlockSource::Combined };

    fn partial_sums(partials: u32) -> Self {
        Self { partials, source: BlockSource::Product }
    }

    fn experts(experts: &Experts) -> Self {
        Self { partials: experts.per_token, source: BlockSource::Experts }
    }
}

/// The rows that a norm writes.
struct NormedRows<'a> {
    /// One word: how many.
    active: View,
    /// The row of the residual stream of each, if they are not the first.
    rows: Option<View>,
    y: &'a Vectors,
}

/// A step being recorded.
pub(crate) struct Step<'a> {
    buffers: StepBuffers<'a>,
    batch: Batch,
    recorder: &'a mut Recorder,
    /// The norm that the next product computes as its prologue.
    pending_norm: Option<gemv::Norm>,
    /// That prologue, where the norm is computed already because the rows are too many.
    computed_norm: Option<Prologue>,
    /// The weight of the norm that the next router computes, after adding the last block to the residual stream.
    pending_router_norm: Option<View>,
    /// Whether the residual stream is in the second buffer.
    swapped: bool,
    /// The output of the last block.
    block: BlockOutput,
    /// The list of matrix–vector products, if they are listed instead of recorded.
    products: Option<Vec<Product<'a>>>,
}

impl<'a> Step<'a> {
    pub fn new(buffers: StepBuffers<'a>, batch: Batch, recorder: &'a mut Recorder) -> Self {
        Self {
            buffers,
            batch,
            recorder,
            pending_norm: None,
            computed_norm: None,
            pending_router_norm: None,
            swapped: false,
            block: BlockOutput::partial_sums(1),
            products: None,
        }
    }

    /// A step that lists its matrix–vector products instead of recording them.
    pub fn listing_products(buffers: StepBuffers<'a>, batch: Batch, recorder: &'a mut Recorder) -> Self {
        Self { products: Some(vec![]), ..Self::new(buffers, batch, recorder) }
    }

    /// The products that [`Step::listing_products`] listed.
    pub fn into_products(self) -> Vec<Product<'a>> {
        self.products.unwrap_or_default()
    }

    pub fn buffers(&self) -> StepBuffers<'a> {
        self.buffers
    }

    pub fn batch(&self) -> Batch {
        self.batch
    }

    pub fn config(&self) -> &'a Config {
        &self.buffers.model.config
    }

    pub fn recorder(&mut self) -> &mut Recorder {
        self.recorder
    }

    /// Continues after the layers before `layer`, which may be in another segment.
    pub fn resume_at(&mut self, layer: u32) {
        let StepBuffers { model, scratch, .. } = self.buffers;
        self.swapped = match scratch.own_norm {
            // The first layer adds one block to the residual stream, the others two.
            true => layer > 0,
            // Only routers add to the other buffer.
            false => {
                let layers = (0..layer).map(|layer| model.config.layer(layer).feed_forward);
                let routers = layers.filter(|block| matches!(block, FeedForward::Experts(_))).count();
                scratch.second_residual.is_some() && !routers.is_multiple_of(2)
            }
        };
        if layer == 0 {
            return;
        }
        let LayerSpec { feed_forward, per_layer_width, .. } = model.config.layer(layer - 1);
        let sums = |id| BlockOutput::partial_sums(partial_sums(model, scratch.kernel_rows, id));
        self.block = match feed_forward {
            _ if per_layer_width.is_some() => sums(MatrixId::PerLayerOutput(layer - 1)),
            FeedForward::Dense(_) => sums(MatrixId::Down(layer - 1)),
            FeedForward::Experts(_) if scratch.sums_experts => BlockOutput::partial_sums(1),
            FeedForward::Experts(experts) => BlockOutput::experts(&experts),
            FeedForward::DenseAndExperts(..) => BlockOutput::COMBINED,
        };
    }

    /// The last block's output.
    fn block_view(&self) -> View {
        let scratch = self.buffers.scratch;
        match self.block.source {
            BlockSource::Product | BlockSource::Experts => scratch.block.view(),
            BlockSource::Combined => scratch.experts().beside_dense().combined.view(),
        }
    }

    /// The weights of the last block's partial sums, where they have any.
    fn partial_weights(&self) -> Option<View> {
        let scratch = self.buffers.scratch;
        (self.block.source == BlockSource::Experts).then(|| scratch.experts().weights.view())
    }

    /// The residual stream and, where products or routers compute their own norm, the buffer that the next one
    /// writes it to.
    fn residual(&self) -> (View, Option<View>) {
        let scratch = self.buffers.scratch;
        match &scratch.second_residual {
            None => (scratch.residual.view(), None),
            Some(second) if self.swapped => (second.view(), Some(scratch.residual.view())),
            Some(second) => (scratch.residual.view(), Some(second.view())),
        }
    }

    /// residual = embeddings of the tokens.
    pub fn embed(&mut self) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let embeddings = model.embeddings()?;
        let operands = embed::Operands {
            embeddings,
            active: state.active.clone(),
            tokens: state.tokens.view(),
            soft_token: None,
            residual: scratch.residual.view(),
        };
        let kernel = Embed::new(&model.device, embeddings.layout().scheme)?;
        let factor = model.config.embedding_factor;
        kernel.record(self.recorder, "embed", scratch.rows, factor, &operands)?;
        self.embed_images()
    }

    /// residual = soft tokens, in the rows of images: the embedding factor does not apply to them.
    fn embed_images(&mut self) -> Result<()> {
        let StepBuffers { model, state, scratch, soft_tokens, .. } = self.buffers;
        // A decode row is never an image's.
        let Some(cache) = soft_tokens.filter(|_| !matches!(self.batch, Batch::Decode | Batch::Verify)) else {
            return Ok(());
        };
        let operands = soft_tokens::Operands {
            soft: cache.buffer().view(),
            active: state.active.clone(),
            tokens: state.tokens.view(),
            residual: scratch.residual.view(),
        };
        let kernel = SoftTokens::new(&model.device)?;
        let hidden = model.config.hidden as usize;
        Ok(kernel.record(self.recorder, "soft tokens", scratch.rows, hidden, cache.rows(), &operands)?)
    }

    /// The weight of a norm.
    pub fn norm_weight(&self, layer: Option<u32>, role: Role) -> Result<View> {
        self.buffers.model.norm(layer, role)
    }

    /// All-ones weight, for norms without a learned weight.
    pub fn unit_weight(&self) -> Result<View> {
        self.buffers.model.unit_weight()
    }

    /// normed = norm(residual).
    pub fn norm(&mut self, weight: View) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        if scratch.own_norm {
            let (residual, _) = self.residual();
            let epsilon = model.config.rms_norm_eps;
            let rows = scratch.rows;
            let norm = gemv::Norm { rows, sublayer: None, residual, weight, epsilon };
            return self.norm_rows(norm, &scratch.normed);
        }
        self.norm_into(weight, &scratch.normed)
    }

    /// y = norm(residual).
    fn norm_into(&mut self, weight: View, y: &Vectors) -> Result<()> {
        let StepBuffers { state, .. } = self.buffers;
        let fusion = Fusion {
            post_norm: false,
            residual: false,
            scaled: false,
            output: y.kind(),
            gather: false,
            partials: 1,
            weighted: false,
        };
        let operands = norm::Operands {
            x: self.residual().0,
            partial_weights: None,
            post_weight: None,
            residual: None,
            residual_scale: None,
            weight,
            active: state.active.clone(),
            rows: None,
            y,
        };
        self.record_norm(fusion, &operands)
    }

    /// residual = (residual + post(block)) · scale; normed = norm(residual). `post` and `scale` apply where the family has
    /// them.
    pub fn add_and_norm(&mut self, end: BlockEnd, weight: View) -> Result<()> {
        let StepBuffers { state, scratch, .. } = self.buffers;
        if scratch.own_norm {
            return self.add_and_norm_all(end, weight, &scratch.normed);
        }
        let rows = NormedRows { active: state.active.clone(), rows: None, y: &scratch.normed };
        self.add_and_norm_rows(end, weight, rows)
    }

    /// The same before a router, which may do it itself.
    pub fn add_and_norm_for_router(&mut self, end: BlockEnd, weight: View) -> Result<()> {
        if self.buffers.scratch.router_adds {
            self.pending_router_norm = Some(weight);
            return Ok(());
        }
        self.add_and_norm(end, weight)
    }

    /// The same with the model's final norm, for the output rows only.
    pub fn add_and_norm_outputs(&mut self, end: BlockEnd, weight: View) -> Result<()> {
        let StepBuffers { state, scratch, outputs, .. } = self.buffers;
        let Some(outputs) = outputs else { return Ok(()) };
        // Of decode rows, all are output rows, in this order.
        let in_order = matches!(self.batch, Batch::Decode | Batch::Verify);
        let all = scratch.rows == 1 || in_order && outputs.normed.columns == scratch.rows;
        if scratch.own_norm && all {
            return self.add_and_norm_all(end, weight, &outputs.normed);
        }
        let active = state.outputs.view();
        let rows = NormedRows { active, rows: Some(state.output_rows.view()), y: &outputs.normed };
        self.add_and_norm_rows(end, weight, rows)
    }

    fn add_and_norm_rows(&mut self, end: BlockEnd, weight: View, rows: NormedRows<'_>) -> Result<()> {
        let (post_weight, residual_scale) = (self.post_norm(end)?, self.residual_scale(end));
        let NormedRows { active, rows, y } = rows;
        let fusion = Fusion {
            post_norm: post_weight.is_some(),
            residual: true,
            scaled: residual_scale.is_some(),
            output: y.kind(),
            gather: rows.is_some(),
            partials: self.block.partials,
            weighted: self.block.source == BlockSource::Experts,
        };
        let operands = norm::Operands {
            x: self.block_view(),
            partial_weights: self.partial_weights(),
            post_weight,
            residual: Some(self.residual().0),
            residual_scale,
            weight,
            active,
            rows,
            y,
        };
        self.record_norm(fusion, &operands)
    }

    /// The norm of a block's output, where the family has one.
    fn post_norm(&self, end: BlockEnd) -> Result<Option<View>> {
        let model = self.buffers.model;
        match model.config.architecture.family().post_norms {
            true => model.norm(Some(end.layer), end.norm).map(Some),
            false => Ok(None),
        }
    }

    /// The factor of the residual stream after a block, where it has one.
    fn residual_scale(&self, end: BlockEnd) -> Option<View> {
        self.buffers.model.layer_scale(end.layer).filter(|_| end.ends_layer)
    }

    /// The same for all rows, by the next product where it computes its own norm.
    fn add_and_norm_all(&mut self, end: BlockEnd, weight: View, y: &Vectors) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        let (residual, stream) = self.residual();
        let sublayer = Sublayer {
            output: self.block_view(),
            weight: self.post_norm(end)?,
            residual_scale: self.residual_scale(end),
            stream,
        };
        let epsilon = model.config.rms_norm_eps;
        let (rows, sublayer) = (scratch.rows, Some(sublayer));
        self.norm_rows(gemv::Norm { rows, sublayer, residual, weight, epsilon }, y)?;
        self.swapped = !self.swapped;
        Ok(())
    }

    /// Leaves a norm to the next product or, where it has too many rows for that, computes it: y = norm, without the factors
    /// of rows.
    fn norm_rows(&mut self, norm: gemv::Norm, y: &Vectors) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        let Some(factors) = &scratch.norm_factors else {
            self.pending_norm = Some(norm);
            return Ok(());
        };
        let prologue = self.prologue(&norm);
        let kernel = GemvNorm::new(&model.device, prologue, model.config.hidden as usize)?;
        kernel.record(self.recorder, "norm", &norm, y, &factors.view())?;
        self.computed_norm = Some(prologue);
        Ok(())
    }

    /// The prologue that computes a norm.
    fn prologue(&self, norm: &gemv::Norm) -> Prologue {
        match &norm.sublayer {
            None => Prologue::Norm,
            Some(sublayer) => Prologue::AddAndNorm {
                partials: self.block.partials,
                post_norm: sublayer.weight.is_some(),
                scaled: sublayer.residual_scale.is_some(),
            },
        }
    }

    /// logits = cap · tanh(logits / cap), where the model has a cap.
    pub fn softcap(&mut self) -> Result<()> {
        let StepBuffers { model, state, outputs, .. } = self.buffers;
        let (Some(outputs), Some(cap)) = (outputs, model.config.logit_softcap) else { return Ok(()) };
        let kernel = Softcap::new(&model.device, model.config.vocab as usize, cap)?;
        let (rows, active) = (outputs.normed.columns, state.outputs.view());
        Ok(kernel.record(self.recorder, "softcap", rows, &outputs.logits.view(), &active)?)
    }

    fn record_norm(&mut self, fusion: Fusion, operands: &norm::Operands<'_>) -> Result<()> {
        let model = self.buffers.model;
        let config = &model.config;
        let kernel = Norm::new(&model.device, fusion, config.hidden as usize, config.rms_norm_eps)?;
        Ok(kernel.record(self.recorder, "norm", operands)?)
    }

    /// The normed rows, or the pending norm that makes them.
    fn normed_or(&mut self, normed: &'a Vectors) -> Input<'a> {
        match (self.computed_norm.take(), &self.buffers.scratch.norm_factors) {
            (Some(prologue), Some(factors)) => Input::Normed { x: normed, factors: factors.view(), prologue },
            _ => self.pending_norm.take().map_or(Input::Vectors(normed), Input::Norm),
        }
    }
}
