//! The pipelines that models request, for the compile checks.

use gpu::{Caps, Tier};
use tensor::Layout;

use super::{
    MAX_SHARED_X_COLUMNS, Prologue, Shape, at_tier, expert_plan, has_equal_sums, has_prologue,
    in_subgroups_of_64, plan, schemes, splits, summed_experts_plan, supports_splits, with_sums_of,
};
use crate::{
    Activations, Epilogue,
    experts::{ExpertColumns, LISTED_EXPERTS},
    matmul::{
        coopmat::policy::likely_fragments,
        gemv::{MAX_COLUMNS, variant},
    },
    variant::Variant,
};

/// Pairs of a row in listed pipelines.
const LISTED_PAIRS: usize = 8;

/// Rows and K of the matrices of the Gemma 3 family, largest model first, and whether gate and up are
/// combined: together they cover every number of slices.
const MODEL_SHAPES: [(usize, usize, bool); 13] = [
    (43008, 5376, true),
    (8192, 5376, false),
    (5376, 4096, false),
    (5376, 21504, false),
    (262_144, 5376, false),
    (30720, 3840, true),
    (2560, 2048, false),
    (13824, 1152, true),
    (1152, 6912, false),
    (4096, 640, true),
    (1536, 640, false),
    (640, 1024, false),
    (640, 2048, false),
];

/// Column counts of the programs that models record; the kernel supports those in between too.
const BUCKETS: [usize; 4] = [1, 2, 4, MAX_COLUMNS];

/// The pipelines that models request on a device: every scheme, activation format, bucket and epilogue of
/// every shape at the policy's tier, those of decode with both subgroup sizes, and the first shape at lower
/// tiers.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let best = caps.tier().unwrap_or(Tier::T0).min(Tier::T1);
    let lower = [Tier::T0].into_iter().filter(|tier| *tier < best).map(|tier| (tier, &MODEL_SHAPES[..1]));
    let all = Activations::ALL.into_iter();
    let products: Vec<_> =
        all.flat_map(|kind| schemes(kind).iter().map(move |scheme| (*scheme, kind))).collect();
    let mut list: Vec<Variant> = Vec::new();
    for (tier, shapes) in lower.chain([(best, &MODEL_SHAPES[..])]) {
        for (scheme, activations) in products.iter().copied() {
            for columns in BUCKETS {
                for (rows, k, gated) in shapes.iter().copied() {
                    let weights = Layout { scheme, rows, k };
                    for (epilogue, output) in outputs(activations, gated) {
                        let shape = Shape { epilogue, output, ..Shape::plain(weights, columns, activations) };
                        for shape in with_prologues(caps, shape, tier) {
                            let plan = at_tier(caps, &shape, tier);
                            let wide = in_subgroups_of_64(caps, &shape, plan).filter(|plan| plan.x_in_shared);
                            for plan in [plan].into_iter().chain(wide) {
                                let new = variant(&shape, plan, None, None);
                                if !list.iter().any(|known| known.same_code(&new)) {
                                    list.push(new);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    for new in variants_with_sums_of_one_column(caps) {
        if !list.iter().any(|known| known.same_code(&new)) {
            list.push(new);
        }
    }
    for (rows, k, per_x, gated) in LISTED_EXPERTS {
        for (scheme, activations) in products.iter().copied().filter(|(_, kind)| *kind != Activations::Int8) {
            for (epilogue, output) in outputs(activations, gated) {
                let weights = Layout { scheme, rows, k };
                let shape = Shape { epilogue, output, ..Shape::plain(weights, 1, activations) };
                let plan = expert_plan(caps, &shape, LISTED_PAIRS);
                let made_for = epilogue == Epilogue::Swiglu || !gated;
                // Activations for the next product, as models need them; the shader for CPU drivers is gemm's.
                if made_for && plan.lanes.is_none() && (output == activations || !gated) {
                    let experts = ExpertColumns { count: 128, per_x };
                    list.push(variant(&shape, plan, Some(experts), None));
                    let summed = summed_experts_plan(caps, &shape, LISTED_PAIRS, 1).filter(|_| !gated);
                    list.extend(summed.map(|plan| variant(&shape, plan, Some(experts), Some(LISTED_PAIRS))));
                }
            }
        }
    }
    list
}

/// The pipelines of exact verify steps: int16 activations of two, four and eight columns with the sums of one, for the
/// larger models.
fn variants_with_sums_of_one_column(caps: &Caps) -> Vec<Variant> {
    let mut list = vec![];
    if !has_equal_sums(caps) {
        return list;
    }
    for (rows, k, gated) in MODEL_SHAPES.into_iter().take(8) {
        for scheme in schemes(Activations::Int16).iter().copied() {
            let weights = Layout { scheme, rows, k };
            let plain = Shape::plain(weights, 1, Activations::Int16);
            // As the models of these shapes use them: those with more rows than K read the residual stream.
            let normed = rows > k && has_prologue(caps, k, 1);
            let prologue = if normed { MODEL_PROLOGUE } else { Prologue::None };
            let splits = if normed { 1 } else { splits(caps, &weights) };
            let alone = match gated {
                false => Shape { prologue, splits, ..plain },
                true => Shape { prologue, epilogue: Epilogue::Geglu, output: Activations::Int16, ..plain },
            };
            for columns in BUCKETS.into_iter().skip(1) {
                let own_norm = !normed || has_prologue(caps, k, columns);
                let prologue = if own_norm { prologue } else { Prologue::Factors };
                let shape = Shape { columns, prologue, ..alone };
                for fragments in likely_fragments(caps) {
                    let plan = with_sums_of(caps, fragments, &shape, &plan(caps, &alone));
                    list.push(variant(&shape, plan, None, None));
                }
            }
        }
    }
    list
}

/// The norm of most products of Gemma 3.
const MODEL_PROLOGUE: Prologue = Prologue::AddAndNorm { partials: 1, post_norm: true, scaled: false };

/// A product by itself, and as models use it: with a prologue, or split along K for a consumer with a
/// prologue.
fn with_prologues(caps: &Caps, shape: Shape, tier: Tier) -> Vec<Shape> {
    let mut list = vec![shape];
    let x_in_shared =
        shape.columns <= MAX_SHARED_X_COLUMNS && shape.activations == Activations::Int16 && tier >= Tier::T1;
    let splits = splits(caps, &shape.weights);
    // Of the shapes above, these read the residual stream; the others read a sublayer's intermediate.
    if x_in_shared
        && has_prologue(caps, shape.weights.k, shape.columns)
        && shape.weights.rows > shape.weights.k
    {
        let added = |partials, post_norm, scaled| Prologue::AddAndNorm { partials, post_norm, scaled };
        // Without the sublayer's norm the code is a subset, and a factor adds little: one variant of each is enough.
        let largest = (shape.weights.rows, shape.weights.k) == (43008, 5376);
        let few = [added(1, false, false), added(1, true, true)].into_iter().filter(|_| largest);
        for prologue in [Prologue::Norm, added(1, true, false), added(3, true, false)].into_iter().chain(few)
        {
            list.push(Shape { prologue, ..shape });
        }
    } else if x_in_shared
        && splits > 1
        && supports_splits(caps, &shape.weights, shape.columns)
        && shape.epilogue == Epilogue::None
    {
        list.push(Shape { splits, ..shape });
    }
    list
}

/// The outputs that models use with these activations. Where the input of a product is int16, that of the
/// next may be.
fn outputs(activations: Activations, gated: bool) -> Vec<(Epilogue, Activations)> {
    let epilogues = if gated { &Epilogue::ALL[..] } else { &Epilogue::ALL[..1] };
    let f32 = epilogues.iter().map(|epilogue| (*epilogue, Activations::F32));
    let int16 = epilogues.iter().map(|epilogue| (*epilogue, Activations::Int16));
    f32.chain(int16.filter(|(epilogue, output)| *output == activations && *epilogue != Epilogue::None))
        .collect()
}
