//! Y = W · X on cooperative matrices, for any number of columns: prefill, and decode of several sequences.

mod cases;
pub mod policy;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use gpu::{
    Address, Arena, Device, Error, Lifetime, Memory, Pipeline, Recorder, Result, Subgroup, Tier, View,
};
use tensor::Layout;

use crate::{
    Activations, Epilogue, Kernel, Matrix, Target, Vectors,
    case::TIMEOUT,
    experts::{ExpertColumns, Groups},
    matmul::common::check_experts,
    shaders::{coopmat_direct, coopmat_fragments, coopmat_staged},
    variant::Variant,
    vectors::VectorData,
};
use policy::{Bias, Fragments, Plan, SUBGROUP, Shape, SplitK};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "coopmat",
    about: "matrix–matrix product on cooperative matrices",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for one shape.
pub struct Coopmat {
    shape: Shape,
    plan: Plan,
    experts: Option<ExpertColumns>,
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// The weights.
    pub w: &'a Matrix,
    /// f16 activations.
    pub x: &'a Vectors,
    /// Destination of the product: f32, or f16 activations. Inactive columns are left unchanged.
    pub target: &'a Target,
    /// One u32: the number of active columns.
    pub active: View,
    /// At least [`Coopmat::scratch_bytes`], unless that is 0. Its first [`COUNTER_BYTES`] must be zero before
    /// the first use; every call leaves them zero.
    pub scratch: Option<View>,
    /// One f32 per row of the matrix, for a shape with [`Bias`].
    pub bias: Option<View>,
}

/// Queries which elements of a fragment a thread holds; [`Fragments::Other`] without the matrices to query. The answer is
/// kept: it depends on nothing but the device and its driver.
pub fn fragments(device: &Device) -> Result<Fragments> {
    static KNOWN: Mutex<BTreeMap<(String, String), Fragments>> = Mutex::new(BTreeMap::new());
    if !policy::may_be_direct(device.caps()) {
        return Ok(Fragments::Other);
    }
    let key = (device.info().name.clone(), device.info().driver.clone());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fragments) = known().get(&key) {
        return Ok(*fragments);
    }
    let fragments = query_fragments(&device.running())?;
    known().insert(key, fragments);
    Ok(fragments)
}

fn query_fragments(device: &Device) -> Result<Fragments> {
    let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Shared).with_block_size(1 << 13);
    let indices = arena.buffer_from("indices", &vec![u32::MAX; 5 * 16 * SUBGROUP as usize])?;
    let mut recorder = device.recorder()?;
    let push = coopmat_fragments::Push { indices: (&indices).into() };
    recorder.dispatch("fragments", &fragments_variant().pipeline(device)?, [1, 1, 1], &push)?;
    recorder.seal()?.run(TIMEOUT)?;
    Ok(Fragments::from_indices(&indices.read_vec::<u32>()?))
}

fn fragments_variant() -> Variant {
    let constants = coopmat_fragments::Constants {};
    Variant::new(
        "fragment layout".into(),
        coopmat_fragments::TIERS,
        Tier::T2,
        &constants,
        Subgroup::Exactly(SUBGROUP),
    )
}

/// Counter bytes at the start of the scratch memory, independent of the shape: the products of a step share
/// it.
pub const COUNTER_BYTES: u64 = policy::MAX_SPLIT_TILES as u64 * 4;

impl Coopmat {
    /// Compiles the variant of a plan from [`policy::plan`].
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        Self::create(device, shape, plan, None)
    }

    /// For a product over experts, with columns in groups as wide as the tile, with a plan from
    /// [`policy::expert_plan`].
    pub fn for_experts(device: &Device, shape: Shape, plan: Plan, experts: ExpertColumns) -> Result<Self> {
        if plan.splits != 1 {
            let reason = format!("split-K by {}: products over experts are not split", plan.splits);
            return Err(Error::InvalidUse { what: "coopmat".into(), reason });
        }
        Self::create(device, shape, plan, Some(experts))
    }

    fn create(device: &Device, shape: Shape, plan: Plan, experts: Option<ExpertColumns>) -> Result<Self> {
        shape.epilogue.check("coopmat", &shape.weights)?;
        if shape.bias != Bias::None
            && (shape.epilogue != Epilogue::None || shape.split_k == SplitK::Partial || experts.is_some())
        {
            let reason = "a bias takes a product without an epilogue, partial sums or experts".into();
            return Err(Error::InvalidUse { what: "coopmat".into(), reason });
        }
        let tiles = plan.tile.count(shape.weights.rows, shape.columns).saturating_sub(plan.unsplit);
        if plan.splits > 1 && shape.split_k == SplitK::Reduced && tiles > policy::MAX_SPLIT_TILES {
            let max = policy::MAX_SPLIT_TILES;
            let reason = format!("{tiles} tiles in {} splits: at most {max} tiles can be split", plan.splits);
            return Err(Error::InvalidUse { what: "coopmat".into(), reason });
        }
        Ok(Self { shape, plan, experts, pipeline: variant(&shape, &plan, experts).pipeline(device)? })
    }

    /// Scratch bytes; 0 where K is not split.
    pub fn scratch_bytes(&self) -> u64 {
        self.plan.scratch_bytes(&self.shape)
    }

    /// Records Y = W · X.
    pub fn record(&self, recorder: &mut Recorder, name: &str, operands: &Operands<'_>) -> Result<()> {
        let Shape { weights, columns, epilogue, output, split_k, bias: kind } = self.shape;
        let Operands { w, x, target, active, scratch, bias } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if self.experts.is_some() {
            return wrong("the kernel was created for a product over experts".into());
        }
        if w.layout() != weights {
            return wrong(format!(
                "the weights are {:?}, but the kernel was created for {weights:?}",
                w.layout()
            ));
        }
        let (VectorData::F16(values), true) = (&x.data, (x.k, x.columns) == (weights.k, columns)) else {
            return wrong(format!("x must be f16, {columns} columns of {}", weights.k));
        };
        if active.len() < 4 {
            return wrong("active must be one u32".into());
        }
        target.check(name, output, epilogue.outputs(weights.rows), columns)?;
        if !target.first.is_multiple_of(4) || !target.stride.is_multiple_of(4) {
            return wrong(format!(
                "output from value {} at a stride of {}: both must be multiples of 4",
                target.first, target.stride
            ));
        }
        let stride = match split_k {
            SplitK::Reduced => target.stride,
            SplitK::Partial => target.stride * self.plan.splits as usize,
        };
        if split_k == SplitK::Partial {
            let values = stride * columns;
            let room = u32::try_from(values).is_ok() && target.y.len() / 4 >= values as u64;
            if output != Activations::F32 || epilogue != Epilogue::None || !room {
                let splits = self.plan.splits;
                return wrong(format!(
                    "partial sums need f32 output without an epilogue, with room for {splits} sums of each of {columns} columns"
                ));
            }
        }
        let bias_bytes = if kind == Bias::None { 0 } else { weights.rows as u64 * 4 };
        if bias.as_ref().map_or(0, View::len) != bias_bytes {
            return wrong(format!("the bias must be {bias_bytes} bytes"));
        }
        let mut bias_at = 0;
        let (counters, partials) = match (scratch, self.scratch_bytes()) {
            (_, 0) => (Address::NONE, Address::NONE),
            (Some(scratch), bytes) if scratch.len() >= bytes => {
                (scratch.slice(0..COUNTER_BYTES)?.into(), scratch.slice(COUNTER_BYTES..bytes)?.into())
            }
            (_, bytes) => {
                return wrong(format!(
                    "split-K by {} needs {bytes} bytes of scratch memory",
                    self.plan.splits
                ));
            }
        };
        for block in w.blocks() {
            let (y, y_first) = target.for_block(name, block, epilogue, columns)?;
            let tiles = self.plan.tile.count(block.layout.rows, columns);
            let unsplit = self.plan.unsplit.min(tiles);
            let block_bias = match bias {
                Some(bias) => bias.slice(bias_at..bias_at + block.layout.rows as u64 * 4)?.into(),
                None => Address::NONE,
            };
            bias_at += block.layout.rows as u64 * 4;
            let groups = unsplit + (tiles - unsplit) * self.plan.splits;
            self.dispatch(
                recorder,
                name,
                groups,
                coopmat_staged::Push {
                    values: (&block.values).into(),
                    scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
                    x: values.into(),
                    active_rows: active.clone().into(),
                    y: y.into(),
                    partials: partials.clone(),
                    counters: counters.clone(),
                    rows: block.layout.rows as u32,
                    k: weights.k as u32,
                    columns: columns as u32,
                    y_first,
                    y_stride: stride as u32,
                    y_partial_stride: target.stride as u32,
                    unsplit,
                    group_experts: Address::NONE,
                    group_pairs: Address::NONE,
                    bias: block_bias,
                },
            )?;
        }
        Ok(())
    }

    /// Records the products of pairs with their experts. Pair p is column p of the target.
    pub fn record_experts(
        &self,
        recorder: &mut Recorder,
        name: &str,
        w: &Matrix,
        x: &Vectors,
        target: &Target,
        groups: &Groups,
    ) -> Result<()> {
        let Shape { weights, epilogue, output, .. } = self.shape;
        let wrong = |reason: &str| Err(Error::InvalidUse { what: name.to_string(), reason: reason.into() });
        let Some(experts) = self.experts else {
            return wrong("the kernel was not created for a product over experts");
        };
        let (block, pairs) = check_experts(name, experts, &weights, w, x)?;
        let VectorData::F16(values) = &x.data else { return wrong("x must be f16") };
        if groups.width != self.plan.tile.columns as usize {
            return wrong("groups have another width than the kernel was created for");
        }
        target.check(name, output, epilogue.outputs(weights.rows), pairs)?;
        if !target.first.is_multiple_of(4) || !target.stride.is_multiple_of(4) {
            return wrong("the start and the stride of the output must be multiples of 4");
        }
        let tiles = self.plan.tile.count(weights.rows, groups.count * groups.width);
        self.dispatch(
            recorder,
            name,
            tiles,
            coopmat_staged::Push {
                values: (&block.values).into(),
                scales: block.scales.as_ref().map_or(Address::NONE, Address::from),
                x: values.into(),
                active_rows: Address::NONE,
                y: target.y.clone().into(),
                partials: Address::NONE,
                counters: Address::NONE,
                rows: weights.rows as u32,
                k: weights.k as u32,
                columns: (groups.count * groups.width) as u32,
                y_first: target.first as u32,
                y_stride: target.stride as u32,
                y_partial_stride: target.stride as u32,
                unsplit: 0,
                group_experts: groups.experts.clone().into(),
                group_pairs: groups.pairs.clone().into(),
                bias: Address::NONE,
            },
        )
    }

    /// The push constants of the two shaders differ only in their type names.
    fn dispatch(
        &self,
        recorder: &mut Recorder,
        name: &str,
        groups: u32,
        push: coopmat_staged::Push,
    ) -> Result<()> {
        if !self.plan.direct {
            return recorder.dispatch(name, &self.pipeline, [groups, 1, 1], &push);
        }
        let push = coopmat_direct::Push {
            values: push.values,
            scales: push.scales,
            x: push.x,
            active_rows: push.active_rows,
            y: push.y,
            partials: push.partials,
            counters: push.counters,
            rows: push.rows,
            k: push.k,
            columns: push.columns,
            y_first: push.y_first,
            y_stride: push.y_stride,
            y_partial_stride: push.y_partial_stride,
            unsplit: push.unsplit,
            group_experts: push.group_experts,
            group_pairs: push.group_pairs,
            bias: push.bias,
        };
        recorder.dispatch(name, &self.pipeline, [groups, 1, 1], &push)
    }
}

fn variant(shape: &Shape, plan: &Plan, experts: Option<ExpertColumns>) -> Variant {
    let Shape { weights: Layout { scheme, .. }, epilogue, output, split_k, .. } = *shape;
    let Plan { tile, direct, prefetch_depth, splits, .. } = *plan;
    let mut label = format!(
        "{scheme}, {} × {} in {} × {}, prefetch {prefetch_depth}",
        tile.rows, tile.columns, tile.subgroup_rows, tile.subgroup_columns
    );
    if splits > 1 {
        label += &format!(", split-K {splits}{}", if split_k == SplitK::Partial { " partial" } else { "" });
    }
    if epilogue != Epilogue::None {
        label += &format!(", {epilogue}");
    }
    label += match shape.bias {
        Bias::None => "",
        Bias::Add => ", bias",
        Bias::AddGelu => ", bias and GELU",
    };
    if output == Activations::F16 {
        label += ", to f16";
    }
    if let Some(experts) = experts {
        label += &format!(", experts, {} per x", experts.per_x);
    }
    macro_rules! variant {
        ($shader:ident) => {{
            let constants = $shader::Constants {
                threads: tile.threads(),
                scheme: scheme as u32,
                epilogue: epilogue as u32,
                f16_output: output == Activations::F16,
                rows: tile.rows,
                columns: tile.columns,
                subgroup_rows: tile.subgroup_rows,
                subgroup_columns: tile.subgroup_columns,
                prefetch_depth,
                splits,
                lanes: tile.lanes,
                partial_output: split_k == SplitK::Partial,
                pairs_per_x: experts.map_or(0, |experts| experts.per_x as u32),
                bias: shape.bias as u32,
            };
            Variant::new(label, $shader::TIERS, plan.tier, &constants, plan.subgroup())
        }};
    }
    if direct { variant!(coopmat_direct) } else { variant!(coopmat_staged) }
}
