//! Split-K of a step's products: how many partial sums they leave, and the scratch memory that they take.

use gpu::{Arena, Buffer};
use kernels::{
    Activations, Epilogue, Matrix,
    matmul::{
        coopmat::policy::{Bias, Shape, SplitK, split_k_for_consumer},
        gemv,
    },
};
use weights::blueprint::MatrixId;

use super::experts::{router_adds, sums_experts};
use crate::{Model, Result, loaded::epilogue};

/// Split-K of a cooperative-matrix product whose consumer can add up partial sums. The same for any number of
/// rows where logits must not depend on it.
pub(super) fn consumer_split_k(model: &Model, rows: usize) -> SplitK {
    if model.is_invariant(rows) { SplitK::Reduced } else { split_k_for_consumer(rows) }
}

/// Partial sums that QKV or a block's output is left in: more than one only for a single matrix that is split
/// along K.
pub(crate) fn partial_sums(model: &Model, rows: usize, id: MatrixId) -> u32 {
    let matrices: Vec<&Matrix> = model.weights.by_id(id).collect();
    let [matrix] = matrices[..] else { return 1 };
    if computes_own_norm(model, rows) {
        return match id {
            MatrixId::Qkv(_) => 1,
            _ => gemv::policy::splits(model.device.caps(), &matrix.layout()),
        };
    }
    let split_k = consumer_split_k(model, rows);
    let shape = Shape { split_k, ..coopmat_shape(matrix, rows, Epilogue::None) };
    match model.activations(rows) {
        Activations::F16 if split_k == SplitK::Partial => {
            model.coopmat_plan(&shape).map_or(1, |plan| plan.splits)
        }
        _ => 1,
    }
}

/// The matrices of the layers, with the epilogues of their products.
pub(super) fn layer_products(model: &Model) -> impl Iterator<Item = (&Matrix, Epilogue)> {
    model.weights.matrices.iter().filter_map(|(id, matrix)| {
        let product_epilogue = match id {
            // Products over experts are not split.
            MatrixId::Embedding
            | MatrixId::PerLayerEmbedding
            | MatrixId::Head
            | MatrixId::ExpertGateUp(_)
            | MatrixId::ExpertDown(_) => return None,
            MatrixId::GateUp(layer) if model.weights.by_id(*id).count() == 1 => {
                epilogue(model.config.layer(*layer).feed_forward.activation())
            }
            _ => Epilogue::None,
        };
        Some((matrix, product_epilogue))
    })
}

/// Scratch memory for split-K products of this many rows, where there are such.
pub(super) fn split_k_scratch<'a>(
    model: &Model,
    arena: &mut Arena,
    rows: usize,
    products: impl Iterator<Item = (&'a Matrix, Epilogue)>,
) -> Result<Option<Buffer>> {
    if model.activations(rows) != Activations::F16 {
        return Ok(None);
    }
    let bytes = products.filter_map(|(matrix, epilogue)| {
        let shape = coopmat_shape(matrix, rows, epilogue);
        Some(model.coopmat_plan(&shape)?.scratch_bytes(&shape))
    });
    match bytes.max().unwrap_or(0) {
        0 => Ok(None),
        bytes => Ok(Some(arena.buffer("split-K partial sums", bytes)?)),
    }
}

/// A cooperative-matrix product; gate and up become the activations of the next.
pub(super) fn coopmat_shape(matrix: &Matrix, columns: usize, epilogue: Epilogue) -> Shape {
    let output = if epilogue == Epilogue::None { Activations::F32 } else { Activations::F16 };
    let (weights, split_k) = (matrix.layout(), SplitK::Reduced);
    Shape { weights, columns, epilogue, output, split_k, bias: Bias::None }
}

/// Whether products that compute the norm of one row before them can do so for this many.
pub(super) fn norms_columns(model: &Model, rows: usize) -> bool {
    let (caps, hidden) = (model.device.caps(), model.config.hidden as usize);
    gemv::policy::has_prologue(caps, hidden, rows)
}

/// Whether the products of a step of this many rows compute the norms before them: one dispatch less per
/// norm, for very few rows.
pub(super) fn computes_own_norm(model: &Model, rows: usize) -> bool {
    let (caps, hidden) = (model.device.caps(), model.config.hidden as usize);
    let ends_block = |id: &MatrixId| matches!(id, MatrixId::AttentionOutput(_) | MatrixId::Down(_));
    let mut block_outputs = model.weights.matrices.iter().filter(|(id, _)| ends_block(id));
    rows <= gemv::policy::MAX_SHARED_X_COLUMNS
        // The gate of per-layer inputs reads the residual stream, which would be written too late.
        && model.config.per_layer_width.is_none()
        // So does a router that does not add to it, and a product adds no experts up.
        && (model.experts().is_none() || rows == 1 && router_adds(model, rows) && sums_experts(model, rows))
        && !model.is_invariant(rows)
        && model.activations(rows) == Activations::Int16
        && gemv::policy::has_prologue(caps, hidden, rows)
        && block_outputs.all(|(_, matrix)| gemv::policy::supports_splits(caps, &matrix.layout(), rows))
}
