//! Recording a step: the operations that the decoder is written in, on the buffers of one bucket of rows.

mod experts;
mod kv_splits;
mod prefetch;
mod product;
mod scratch;
mod split_k;

use checkpoint::{Config, FeedForward, Role};
use gpu::{Recorder, View};
use kernels::{
    Vectors,
    embed::{self, Embed},
    matmul::{
        gemv::{self, Sublayer},
        tuning::{Input, Product},
    },
    norm::{self, Fusion, Norm},
};
use weights::blueprint::MatrixId;

use crate::{
    Model, Result,
    kv_cache::KvCache,
    state::{Batch, StepState},
};

pub(crate) use kv_splits::{
    FEW_ROWS, KvSplits, SplitRows, WORKGROUPS_MIN_ROWS, attention_shape, attention_workgroups,
};
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
}

/// A step being recorded.
pub(crate) struct Step<'a> {
    buffers: StepBuffers<'a>,
    batch: Batch,
    recorder: &'a mut Recorder,
    /// The norm that the next product computes as its prologue.
    pending_norm: Option<gemv::Norm>,
    /// The weight of the norm that the next router computes, after adding the last block to the residual stream.
    pending_router_norm: Option<View>,
    /// Whether the residual stream is in the second buffer.
    swapped: bool,
    /// Partial sums of the last block's output.
    partials: u32,
    /// Whether they are the outputs of experts, each with a weight.
    weighted: bool,
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
            pending_router_norm: None,
            swapped: false,
            partials: 1,
            weighted: false,
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
        match model.config.layer(layer - 1).feed_forward {
            FeedForward::Dense { .. } => {
                self.set_partials(partial_sums(model, scratch.rows, MatrixId::Down(layer - 1)), false);
            }
            FeedForward::Experts(_) if scratch.sums_experts => self.set_partials(1, false),
            FeedForward::Experts(experts) => self.set_partials(experts.per_token, true),
        }
    }

    /// Sets in how many partial sums a block's output is left, and whether these have weights.
    fn set_partials(&mut self, partials: u32, weighted: bool) {
        (self.partials, self.weighted) = (partials, weighted);
    }

    /// The weights of the last block's partial sums, where they have any.
    fn partial_weights(&self) -> Option<View> {
        self.weighted.then(|| self.buffers.scratch.experts().weights.view())
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
            residual: scratch.residual.view(),
        };
        let kernel = Embed::new(&model.device, embeddings.layout().scheme)?;
        let factor = model.config.embedding_factor;
        Ok(kernel.record(self.recorder, "embed", scratch.rows, factor, &operands)?)
    }

    /// normed = norm(residual).
    pub fn norm(&mut self, layer: u32, role: Role) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let (residual, _) = self.residual();
        if scratch.own_norm {
            let weight = model.norm(Some(layer), role)?;
            let epsilon = model.config.rms_norm_eps;
            self.pending_norm = Some(gemv::Norm { sublayer: None, residual, weight, epsilon });
            return Ok(());
        }
        let fusion = Fusion {
            post_norm: false,
            residual: false,
            scaled: false,
            output: scratch.normed.kind(),
            gather: false,
            partials: 1,
            weighted: false,
        };
        let operands = norm::Operands {
            x: residual,
            partial_weights: None,
            post_weight: None,
            residual: None,
            residual_scale: None,
            weight: model.norm(Some(layer), role)?,
            active: state.active.clone(),
            rows: None,
            y: &scratch.normed,
        };
        self.record_norm(fusion, &operands)
    }

    /// residual += post(block); normed = norm(residual). `post` applies where the family has such norms.
    pub fn add_and_norm(&mut self, post: (u32, Role), norm: (u32, Role)) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let in_router = scratch.router_adds
            && norm.1 == Role::FeedForwardNorm
            && matches!(model.config.layer(norm.0).feed_forward, FeedForward::Experts(_));
        if in_router {
            self.pending_router_norm = Some(model.norm(Some(norm.0), norm.1)?);
            return Ok(());
        }
        if scratch.own_norm {
            return self.norm_in_next_product(post, (Some(norm.0), norm.1));
        }
        let post_weight = self.post_norm(post)?;
        let fusion = Fusion {
            post_norm: post_weight.is_some(),
            residual: true,
            scaled: false,
            output: scratch.normed.kind(),
            gather: false,
            partials: self.partials,
            weighted: self.weighted,
        };
        let operands = norm::Operands {
            x: scratch.block.view(),
            partial_weights: self.partial_weights(),
            post_weight,
            residual: Some(self.residual().0),
            residual_scale: None,
            weight: model.norm(Some(norm.0), norm.1)?,
            active: state.active.clone(),
            rows: None,
            y: &scratch.normed,
        };
        self.record_norm(fusion, &operands)
    }

    /// The same with the model's final norm, for the output rows only.
    pub fn add_and_norm_outputs(&mut self, post: (u32, Role), last: Role) -> Result<()> {
        let StepBuffers { model, state, scratch, outputs, .. } = self.buffers;
        let Some(outputs) = outputs else { return Ok(()) };
        if scratch.own_norm && outputs.normed.columns == 1 {
            // The step has a single row.
            return self.norm_in_next_product(post, (None, last));
        }
        let post_weight = self.post_norm(post)?;
        let fusion = Fusion {
            post_norm: post_weight.is_some(),
            residual: true,
            scaled: false,
            output: outputs.normed.kind(),
            gather: true,
            partials: self.partials,
            weighted: self.weighted,
        };
        let operands = norm::Operands {
            x: scratch.block.view(),
            partial_weights: self.partial_weights(),
            post_weight,
            residual: Some(self.residual().0),
            residual_scale: None,
            weight: model.norm(None, last)?,
            active: state.outputs.view(),
            rows: Some(state.output_rows.view()),
            y: &outputs.normed,
        };
        self.record_norm(fusion, &operands)
    }

    /// The norm of a block's output, where the family has one.
    fn post_norm(&self, (layer, role): (u32, Role)) -> Result<Option<View>> {
        let model = self.buffers.model;
        match model.config.architecture.family().post_norms {
            true => model.norm(Some(layer), role).map(Some),
            false => Ok(None),
        }
    }

    fn norm_in_next_product(&mut self, post: (u32, Role), norm: (Option<u32>, Role)) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        let (residual, stream) = self.residual();
        let sublayer = Sublayer {
            output: scratch.block.view(),
            weight: self.post_norm(post)?,
            residual_scale: None,
            stream,
        };
        self.pending_norm = Some(gemv::Norm {
            sublayer: Some(sublayer),
            residual,
            weight: model.norm(norm.0, norm.1)?,
            epsilon: model.config.rms_norm_eps,
        });
        self.swapped = !self.swapped;
        Ok(())
    }

    fn record_norm(&mut self, fusion: Fusion, operands: &norm::Operands<'_>) -> Result<()> {
        let model = self.buffers.model;
        let config = &model.config;
        let kernel = Norm::new(&model.device, fusion, config.hidden as usize, config.rms_norm_eps)?;
        Ok(kernel.record(self.recorder, "norm", operands)?)
    }

    /// The normed rows, or the pending norm that makes them.
    fn normed_or(&mut self, normed: &'a Vectors) -> Input<'a> {
        self.pending_norm.take().map_or(Input::Vectors(normed), Input::Norm)
    }
}
