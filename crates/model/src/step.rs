//! Recording a step: the operations that models are written in, on the buffers of one bucket of rows.

mod attention;
mod warm;

use std::time::Duration;

use checkpoint::{Config, Role};
use gpu::{Arena, Buffer, Lifetime, Memory, Recorder, View};
use kernels::{
    Activations, Epilogue, Matrix, Target, Vectors,
    embed::{self, Embed},
    matmul::{
        coopmat::{
            self, Coopmat,
            policy::{Shape, SplitK, split_k_for_consumer},
        },
        gated::Gated,
        gemm::{self, Gemm},
        gemv::{self, Gemv, Sublayer, policy::Prologue},
        tuning::{Input, Product},
    },
    norm::{self, Fusion, Norm},
};
use weights::blueprint::MatrixId;

use crate::{Model, Result, kv_cache::KvCache, state::State};

pub(crate) use attention::{FEW_ROWS, Splits, attend_groups};

/// How the rows of a step belong to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Batch {
    /// Decode rows: each of another sequence, at any position.
    Decode,
    /// Rows of prefill chunks: consecutive positions of one sequence per chunk.
    Prefill,
    /// At most `decode` decode rows, then the rows of prefill chunks of other sequences. Where the chunks have `few` rows
    /// together, their attention is split along the context as that of decode rows is.
    Mixed { decode: usize, few: bool },
}

/// Activations of a bucket of rows.
pub(crate) struct Scratch {
    rows: usize,
    /// The residual stream. A second one where products make their own input: they write the one while they read the other.
    residual: Buffer,
    other_residual: Option<Buffer>,
    normed: Vectors,
    qkv: Buffer,
    q: Buffer,
    attended: Vectors,
    /// The same as the output projection takes it, where that is not f32.
    attended_packed: Option<Vectors>,
    /// The output of a sublayer, before it joins the residual stream: in several sums where the K of its product is in parts; the norm
    /// that reads it adds them up.
    sublayer: Buffer,
    gated: Vectors,
    /// Gate and up, where a model stores them in different schemes.
    apart: Option<[Buffer; 2]>,
    /// Sums of products on matrix units whose K is in parts, and counters: zeros to begin with.
    parts: Option<Buffer>,
    /// What [`kernels::matmul::prefetch`] leaves behind, where weights are brought into the cache ahead of their products.
    warm: Option<Buffer>,
}

/// Logits of a number of output rows.
pub(crate) struct Outputs {
    normed: Vectors,
    /// f32, `[output row][vocab]`.
    pub logits: Buffer,
    /// As that of [`Scratch`], for the head.
    parts: Option<Buffer>,
}

/// Clearing some memory; Mesa's CPU driver is slow.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(60);

impl Outputs {
    pub fn new(model: &Model, rows: usize) -> Result<Self> {
        let mut arena = Arena::new(&model.device, Lifetime::Scratch, Memory::Device).with_block_size(4 << 20);
        let outputs = Self {
            normed: Vectors::new(
                &mut arena,
                "normed output rows",
                model.activations(rows),
                model.config.hidden as usize,
                rows,
            )?,
            logits: arena.buffer("logits", u64::from(model.config.vocab) * rows as u64 * 4)?,
            parts: parts(model, &mut arena, rows, [(model.head()?, Epilogue::None)].into_iter())?,
        };
        let mut recorder = model.device.recorder()?;
        outputs.normed.record_clear(&mut recorder, "clear")?;
        if let Some(parts) = &outputs.parts {
            recorder.fill("clear", parts, 0)?;
        }
        recorder.seal()?.run(CLEAR_TIMEOUT)?;
        Ok(outputs)
    }
}

impl Scratch {
    pub fn new(model: &Model, rows: usize) -> Result<Self> {
        let Model { device, config, weights, .. } = model;
        let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(4 << 20);
        let floats = |count: u32| u64::from(count) * rows as u64 * 4;
        let activations = model.activations(rows);
        let intermediate = config.intermediate;
        let apart = match (0..config.layers).any(|layer| weights.by_id(MatrixId::GateUp(layer)).count() > 1) {
            false => None,
            true => {
                Some([arena.buffer("gate", floats(intermediate))?, arena.buffer("up", floats(intermediate))?])
            }
        };
        let fused = norms_itself(model, rows);
        let mut places =
            (0..config.layers).flat_map(|layer| [MatrixId::AttentionOutput(layer), MatrixId::Down(layer)]);
        let most_sums = |places: &mut dyn Iterator<Item = MatrixId>| {
            u64::from(places.map(|place| sums(model, rows, place)).max().unwrap_or(1))
        };
        let sums_of_sublayer = most_sums(&mut places);
        let sums_of_qkv = most_sums(&mut (0..config.layers).map(MatrixId::Qkv));
        let scratch = Self {
            rows,
            residual: arena.buffer("residual stream", floats(config.hidden))?,
            other_residual: match fused {
                false => None,
                true => Some(arena.buffer("residual stream", floats(config.hidden))?),
            },
            normed: Vectors::new(&mut arena, "normed rows", activations, config.hidden as usize, rows)?,
            qkv: arena.buffer(
                "queries, keys and values",
                floats(config.query_rows() + 2 * config.kv_rows()) * sums_of_qkv,
            )?,
            q: arena.buffer("queries", floats(config.query_rows()))?,
            attended: Vectors::f32(&mut arena, "attention's output", config.query_rows() as usize, rows)?,
            attended_packed: match activations {
                Activations::F32 => None,
                kind => Some(Vectors::new(
                    &mut arena,
                    "attention's output",
                    kind,
                    config.query_rows() as usize,
                    rows,
                )?),
            },
            sublayer: arena.buffer("a sublayer's output", floats(config.hidden) * sums_of_sublayer)?,
            gated: Vectors::new(&mut arena, "gated rows", activations, intermediate as usize, rows)?,
            apart,
            parts: parts(model, &mut arena, rows, layer_products(model))?,
            warm: match warm::most_groups(model, rows) {
                0 => None,
                groups => Some(arena.buffer("checksums of weights", u64::from(groups) * 4)?),
            },
        };
        let mut recorder = device.recorder()?;
        let all = [&scratch.normed, &scratch.attended, &scratch.gated];
        for vectors in all.into_iter().chain(&scratch.attended_packed) {
            vectors.record_clear(&mut recorder, "clear")?;
        }
        if let Some(parts) = &scratch.parts {
            recorder.fill("clear", parts, 0)?;
        }
        recorder.seal()?.run(CLEAR_TIMEOUT)?;
        Ok(scratch)
    }
}

/// A step in the making.
pub(crate) struct Step<'a> {
    pub model: &'a Model,
    pub cache: &'a KvCache,
    pub state: &'a State,
    pub scratch: &'a Scratch,
    pub attention_splits: &'a Splits,
    pub outputs: Option<&'a Outputs>,
    pub rows: Batch,
    pub recorder: &'a mut Recorder,
    /// The norm that the next product computes itself.
    pub norm: Option<gemv::Norm>,
    /// The residual stream is in the other buffer.
    pub swapped: bool,
    /// Sums of the last sublayer's output.
    pub splits: u32,
    /// Where matrix–vector products are to be listed and not recorded: the list.
    pub listed: Option<Vec<Product<'a>>>,
}

impl<'a> Step<'a> {
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// Begins where the layers before `layer` have left off, which may be in another recording: the first adds one sublayer to the
    /// residual stream, the others two.
    pub fn go_on_from(&mut self, layer: u32) {
        self.swapped = layer > 0;
        self.splits = match layer {
            0 => 1,
            _ => sums(self.model, self.scratch.rows, MatrixId::Down(layer - 1)),
        };
    }

    /// The residual stream, and where the next product writes it where products make their own input.
    fn residual(&self) -> (View, Option<View>) {
        match &self.scratch.other_residual {
            None => (self.scratch.residual.view(), None),
            Some(other) if self.swapped => (other.view(), Some(self.scratch.residual.view())),
            Some(other) => (self.scratch.residual.view(), Some(other.view())),
        }
    }

    /// residual = embeddings of the tokens.
    pub fn embed(&mut self) -> Result<()> {
        let embeddings = self.model.embeddings()?;
        let operands = embed::Operands {
            embeddings,
            active: self.state.active.clone(),
            tokens: self.state.tokens.view(),
            residual: self.scratch.residual.view(),
        };
        let kernel = Embed::new(&self.model.device, embeddings.layout().scheme)?;
        let factor = self.model.config.embedding_factor;
        Ok(kernel.record(self.recorder, "embed", self.scratch.rows, factor, &operands)?)
    }

    /// normed = norm(residual).
    pub fn norm(&mut self, layer: u32, role: Role) -> Result<()> {
        if self.scratch.other_residual.is_some() {
            let (residual, _) = self.residual();
            let weight = self.model.norm(Some(layer), role)?;
            let epsilon = self.model.config.rms_norm_eps;
            self.norm = Some(gemv::Norm { sublayer: None, residual, weight, epsilon });
            return Ok(());
        }
        let form = Fusion {
            post_norm: false,
            residual: false,
            output: self.scratch.normed.kind(),
            gather: false,
            partials: 1,
        };
        let operands = norm::Operands {
            x: self.scratch.residual.view(),
            post_weight: None,
            residual: None,
            weight: self.model.norm(Some(layer), role)?,
            active: self.state.active.clone(),
            rows: None,
            y: &self.scratch.normed,
        };
        self.record_norm(form, &operands)
    }

    /// residual += post(sublayer); normed = norm(residual). `post` counts where the family has such norms.
    pub fn add_and_norm(&mut self, post: (u32, Role), norm: (u32, Role)) -> Result<()> {
        if self.scratch.other_residual.is_some() {
            return self.norm_in_next_product(post, (Some(norm.0), norm.1));
        }
        let post_weight = self.post_norm(post)?;
        let form = Fusion {
            post_norm: post_weight.is_some(),
            residual: true,
            output: self.scratch.normed.kind(),
            gather: false,
            partials: self.splits,
        };
        let operands = norm::Operands {
            x: self.scratch.sublayer.view(),
            post_weight,
            residual: Some(self.scratch.residual.view()),
            weight: self.model.norm(Some(norm.0), norm.1)?,
            active: self.state.active.clone(),
            rows: None,
            y: &self.scratch.normed,
        };
        self.record_norm(form, &operands)
    }

    /// The same with the model's last norm, for the output rows alone.
    pub fn add_and_norm_outputs(&mut self, post: (u32, Role), last: Role) -> Result<()> {
        let Some(outputs) = self.outputs else { return Ok(()) };
        if self.scratch.other_residual.is_some() && outputs.normed.columns == 1 {
            // There is but one row.
            return self.norm_in_next_product(post, (None, last));
        }
        let output = outputs.normed.kind();
        let post_weight = self.post_norm(post)?;
        let post_norm = post_weight.is_some();
        let form = Fusion { post_norm, residual: true, output, gather: true, partials: self.splits };
        let operands = norm::Operands {
            x: self.scratch.sublayer.view(),
            post_weight,
            residual: Some(self.scratch.residual.view()),
            weight: self.model.norm(None, last)?,
            active: self.state.outputs.view(),
            rows: Some(self.state.output_rows.view()),
            y: &outputs.normed,
        };
        self.record_norm(form, &operands)
    }

    /// The norm of a sublayer's output, where the family has such.
    fn post_norm(&self, (layer, role): (u32, Role)) -> Result<Option<View>> {
        match self.model.config.architecture.family().post_norms {
            true => self.model.norm(Some(layer), role).map(Some),
            false => Ok(None),
        }
    }

    fn norm_in_next_product(&mut self, post: (u32, Role), norm: (Option<u32>, Role)) -> Result<()> {
        let (residual, stream) = self.residual();
        let sublayer =
            Sublayer { output: self.scratch.sublayer.view(), weight: self.post_norm(post)?, stream };
        self.norm = Some(gemv::Norm {
            sublayer: Some(sublayer),
            residual,
            weight: self.model.norm(norm.0, norm.1)?,
            epsilon: self.model.config.rms_norm_eps,
        });
        self.swapped = !self.swapped;
        Ok(())
    }

    fn record_norm(&mut self, form: Fusion, operands: &norm::Operands<'_>) -> Result<()> {
        let config = &self.model.config;
        let kernel = Norm::new(&self.model.device, form, config.hidden as usize, config.rms_norm_eps)?;
        Ok(kernel.record(self.recorder, "norm", operands)?)
    }

    /// qkv = W · normed: queries, keys and values of a row follow each other, whether in one matrix or in three.
    pub fn qkv(&mut self, place: MatrixId) -> Result<()> {
        let config = &self.model.config;
        let stride = (config.query_rows() + 2 * config.kv_rows()) as usize;
        let target = Target::whole(&self.scratch.qkv, stride);
        let x = self.normed();
        self.products("QKV", place, x, target)
    }

    /// The normed rows, or the norm that makes them.
    fn normed(&mut self) -> Input<'a> {
        self.norm.take().map_or(Input::Vectors(&self.scratch.normed), Input::Norm)
    }

    /// sublayer = W · attended.
    pub fn output(&mut self, place: MatrixId) -> Result<()> {
        let scratch = self.scratch;
        let attended = scratch.attended_packed.as_ref().unwrap_or(&scratch.attended);
        self.sublayer("output", place, attended)
    }

    /// sublayer = W · gated.
    pub fn down(&mut self, place: MatrixId) -> Result<()> {
        self.sublayer("down", place, &self.scratch.gated)
    }

    fn sublayer(&mut self, name: &str, place: MatrixId, x: &'a Vectors) -> Result<()> {
        self.splits = sums(self.model, self.scratch.rows, place);
        let target = Target::whole(&self.scratch.sublayer, self.model.config.hidden as usize);
        self.products(name, place, Input::Vectors(x), target)
    }

    /// gated = f(gate · normed) · (up · normed), with the family's f.
    pub fn gated(&mut self, place: MatrixId) -> Result<()> {
        let model = self.model;
        let matrices: Vec<&'a Matrix> = model.weights.by_id(place).collect();
        let scratch = self.scratch;
        let gate = model.gate();
        match (&matrices[..], &scratch.apart) {
            ([joined], _) => {
                let target = Target::vectors(&scratch.gated)?;
                let (x, active) = (self.normed(), self.state.active.clone());
                self.product("gate and up", joined, gate, x, &target, &active)
            }
            ([of_gate, of_up], Some(apart)) => {
                let x = self.normed();
                let again = without_stream(&x);
                for (name, matrix, x, to) in
                    [("gate", of_gate, x, &apart[0]), ("up", of_up, again, &apart[1])]
                {
                    let target = Target::whole(to, matrix.layout().rows);
                    self.product(name, matrix, Epilogue::None, x, &target, &self.state.active.clone())?;
                }
                let kernel = Gated::new(&self.model.device, gate, scratch.gated.kind(), scratch.gated.k)?;
                let (of_gate, of_up) = (apart[0].view(), apart[1].view());
                Ok(kernel.record(
                    self.recorder,
                    "gated",
                    &of_gate,
                    &of_up,
                    &scratch.gated,
                    &self.state.active.clone(),
                )?)
            }
            _ => unreachable!("the blueprint makes one or two matrices of gate and up"),
        }
    }

    /// logits = W · normed output rows, by the head or, where it is tied, by the embeddings.
    pub fn head(&mut self) -> Result<()> {
        let Some(outputs) = self.outputs else { return Ok(()) };
        let target = Target::whole(&outputs.logits, self.model.config.vocab as usize);
        let active = self.state.outputs.view();
        let x = self.norm.take().map_or(Input::Vectors(&outputs.normed), Input::Norm);
        self.product("head", self.model.head()?, Epilogue::None, x, &target, &active)
    }

    /// All matrices of a place, side by side into one output row.
    fn products(&mut self, name: &str, place: MatrixId, x: Input<'a>, target: Target) -> Result<()> {
        let (model, mut target, mut x) = (self.model, target, x);
        for matrix in model.weights.by_id(place) {
            let again = without_stream(&x);
            let x = std::mem::replace(&mut x, again);
            self.product(name, matrix, Epilogue::None, x, &target, &self.state.active.clone())?;
            target.first += matrix.layout().rows;
        }
        Ok(())
    }

    fn product(
        &mut self,
        name: &str,
        matrix: &'a Matrix,
        epilogue: Epilogue,
        x: Input<'a>,
        target: &Target,
        active: &View,
    ) -> Result<()> {
        let device = &self.model.device;
        let (columns, activations, prologue) = match &x {
            Input::Vectors(x) => (x.columns, x.kind(), Prologue::None),
            Input::Norm(norm) => {
                let splits = self.splits;
                let added = norm.sublayer.as_ref().map(|sublayer| {
                    let post_norm = sublayer.weight.is_some();
                    Prologue::AddAndNorm { partials: splits, post_norm }
                });
                (1, Activations::Int16, added.unwrap_or(Prologue::Norm))
            }
        };
        let to_sublayer = target.y.address() == self.scratch.sublayer.view().address();
        if let (Input::Vectors(x), Activations::F16) = (&x, activations) {
            let alone = matrix.layout().rows == target.stride;
            let added_up = to_sublayer || target.y.address() == self.scratch.qkv.view().address();
            let parts = if added_up && alone { parts_of(self.model, columns) } else { SplitK::Reduced };
            let shape = Shape { split_k: parts, ..matmul_shape(matrix, columns, epilogue) };
            return self.matmul(name, matrix, shape, x, target, active);
        }
        let (weights, output) = (matrix.layout(), target.kind());
        let shape = gemm::policy::Shape { weights, columns, activations, epilogue, output };
        // On CPU drivers one shader serves both, and gives the same bits.
        let lanes =
            || matches!(gemm::policy::plan(device.caps(), &shape).method, gemm::policy::Method::Lanes(_));
        if let Input::Vectors(x) = x
            && (columns > gemv::MAX_COLUMNS || self.model.reproducible && !lanes())
        {
            return Ok(Gemm::new(device, shape)?.record(self.recorder, name, matrix, x, target, active)?);
        }
        let shape = gemv::policy::Shape {
            weights: matrix.layout(),
            columns,
            activations,
            prologue,
            epilogue,
            output: target.kind(),
            splits: if to_sublayer { self.splits } else { 1 },
        };
        if let Some(listed) = &mut self.listed {
            listed.push(Product { shape, matrix, x, target: target.clone() });
            return Ok(());
        }
        let plan = self.model.tuning.plan(device.caps(), &shape);
        Ok(Gemv::with_plan(device, shape, plan)?.record(self.recorder, name, matrix, x.source(), target)?)
    }
}

impl Step<'_> {
    fn matmul(
        &mut self,
        name: &str,
        w: &Matrix,
        shape: Shape,
        x: &Vectors,
        target: &Target,
        active: &View,
    ) -> Result<()> {
        let plan = self.model.matmul_plan(&shape);
        let plan = plan.expect("activations are f16 only where matrix units take every matrix");
        let kernel = Coopmat::with_plan(&self.model.device, shape, plan)?;
        let of_head = self.outputs.is_some_and(|outputs| std::ptr::eq(x, &outputs.normed));
        let parts = if of_head {
            self.outputs.and_then(|outputs| outputs.parts.as_ref())
        } else {
            self.scratch.parts.as_ref()
        };
        let scratch = parts.map(Buffer::view);
        let operands = coopmat::Operands { w, x, target, active: active.clone(), scratch };
        Ok(kernel.record(self.recorder, name, &operands)?)
    }
}

/// What the products after the first take where several have the same input: each computes the norm, the first writes the stream.
fn without_stream<'a>(x: &Input<'a>) -> Input<'a> {
    match x {
        Input::Vectors(x) => Input::Vectors(x),
        Input::Norm(norm) => {
            let sublayer = norm.sublayer.clone().map(|sublayer| Sublayer { stream: None, ..sublayer });
            Input::Norm(gemv::Norm { sublayer, ..norm.clone() })
        }
    }
}

/// What becomes of the parts of K of a product on matrix units whose reader can add them up. One way for all rows where sums must not
/// depend on their number.
fn parts_of(model: &Model, rows: usize) -> SplitK {
    if model.reproducible { SplitK::Reduced } else { split_k_for_consumer(rows) }
}

/// Sums that QKV or a sublayer's output is left in: of one matrix, whose K is in parts.
fn sums(model: &Model, rows: usize, place: MatrixId) -> u32 {
    let matrices: Vec<&Matrix> = model.weights.by_id(place).collect();
    let [matrix] = matrices[..] else { return 1 };
    if norms_itself(model, rows) {
        return match place {
            MatrixId::Qkv(_) => 1,
            _ => gemv::policy::splits(model.device.caps(), &matrix.layout()),
        };
    }
    let shape = Shape { split_k: parts_of(model, rows), ..matmul_shape(matrix, rows, Epilogue::None) };
    match model.activations(rows) {
        Activations::F16 if shape.split_k == SplitK::Partial => {
            model.matmul_plan(&shape).map_or(1, |plan| plan.splits)
        }
        _ => 1,
    }
}

/// The matrices of the layers, with what becomes of their products.
fn layer_products(model: &Model) -> impl Iterator<Item = (&Matrix, Epilogue)> {
    let of_layer = |place: &MatrixId| !matches!(place, MatrixId::Embedding | MatrixId::Head);
    let matrices = model.weights.matrices.iter().filter(move |(place, _)| of_layer(place));
    matrices.map(|(place, matrix)| {
        let joined = matches!(place, MatrixId::GateUp(_)) && model.weights.by_id(*place).count() == 1;
        (matrix, if joined { model.gate() } else { Epilogue::None })
    })
}

/// Memory for the sums of products of so many rows whose K is in parts, where there are such.
fn parts<'a>(
    model: &Model,
    arena: &mut Arena,
    rows: usize,
    products: impl Iterator<Item = (&'a Matrix, Epilogue)>,
) -> Result<Option<Buffer>> {
    if model.activations(rows) != Activations::F16 {
        return Ok(None);
    }
    let bytes = products.filter_map(|(matrix, epilogue)| {
        let shape = matmul_shape(matrix, rows, epilogue);
        Some(model.matmul_plan(&shape)?.scratch_bytes(&shape))
    });
    match bytes.max().unwrap_or(0) {
        0 => Ok(None),
        bytes => Ok(Some(arena.buffer("sums of parts of products", bytes)?)),
    }
}

/// A product on matrix units: gate and up become activations of the next.
fn matmul_shape(matrix: &Matrix, columns: usize, epilogue: Epilogue) -> Shape {
    let output = if epilogue == Epilogue::None { Activations::F32 } else { Activations::F16 };
    Shape { weights: matrix.layout(), columns, epilogue, output, split_k: SplitK::Reduced }
}

/// Whether the products of a step of so many rows compute the norms before them: a dispatch less each, for one row.
fn norms_itself(model: &Model, rows: usize) -> bool {
    let hidden = model.config.hidden as usize;
    rows == 1
        && !model.reproducible
        && model.activations(rows) == Activations::Int16
        && gemv::policy::has_prologue(model.device.caps(), hidden)
}
