//! Cases that compare products of several columns with those of each column by itself, bit for bit.

use gpu::{Arena, Caps, Device, Recorder, Result, Subgroup, Tier, View};
use tensor::{Layout, QUAD, Scheme};

use super::{
    Gemv, Norm, Source,
    cases::{PrologueInputs, columns_of, values},
    policy::{self, Plan, Prologue, Shape},
};
use crate::{
    Activations, Epilogue, HALF_GROUP, Matrix, OutputFormat, Target, Vectors,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    matmul::{common::trial, coopmat, gemv_norm::GemvNorm},
};

const NORM: Prologue = Prologue::AddAndNorm { partials: 3, post_norm: true, scaled: false };

/// Products that models decode with, and how many columns are compared with one.
pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    if !policy::has_equal_sums(caps) {
        return vec![];
    }
    let mut list = vec![];
    let mut add = |scheme, activations, (rows, k), prologue, epilogue, splits, columns: &'static [usize]| {
        let plain = Shape::plain(Layout { scheme, rows, k }, 1, activations);
        let gated = epilogue != Epilogue::None && activations == Activations::Int16;
        let output = if gated { Activations::Int16 } else { Activations::F32 };
        let shape = Shape { prologue, epilogue, splits, output, ..plain };
        let name = format!(
            "{rows} × {k} {scheme} × {activations}, {prologue:?}, {splits} splits, {columns:?} columns as one"
        );
        list.push(Case::new(name, Tier::T1, move |device| {
            compare(device, shape, one_column_plan(device.caps(), &shape), columns)
        }));
        // The shader for CPU drivers, which the policy prefers there.
        let lanes = policy::plan(caps, &shape);
        if lanes.lanes.is_some() {
            let name = format!(
                "{rows} × {k} {scheme} × {activations}, one row per lane, {columns:?} columns as one"
            );
            list.push(Case::new(name, Tier::T1, move |device| compare(device, shape, lanes, columns)));
        }
    };
    let (int16, f32, geglu, none) = (Activations::Int16, Activations::F32, Epilogue::Geglu, Epilogue::None);
    add(Scheme::Int8, int16, (96, 1152), NORM, geglu, 1, &[2, 8]);
    add(Scheme::Int4Min, int16, (96, 1152), NORM, geglu, 1, &[8]);
    add(Scheme::Int4, int16, (80, 2048), Prologue::None, none, 3, &[2, 5]);
    add(Scheme::Int8Min, int16, (33, 1152), Prologue::None, none, 1, &[3]);
    for (scheme, columns) in [(Scheme::F16, &[8][..]), (Scheme::Bf16, &[2]), (Scheme::F32, &[4])] {
        add(scheme, f32, (33, 640), Prologue::None, none, 1, columns);
    }
    add(Scheme::Int8, f32, (64, 640), Prologue::None, Epilogue::Swiglu, 1, &[4]);
    // Blocks of four columns, and of as many as there are.
    add(Scheme::Int4Min, f32, (80, 640), Prologue::None, none, 1, &[3, 8]);
    // The more a GPU's compiler is asked, the better; a CPU driver takes a second to compile each.
    if caps.max_subgroup_size >= 32 {
        for scheme in [Scheme::Int4, Scheme::Int8Min] {
            add(scheme, int16, (96, 1152), NORM, geglu, 1, &[2, 4, 8]);
        }
        add(Scheme::Int8, int16, (80, 5376), Prologue::Norm, none, 1, &[3, 4, 6, 7]);
        add(Scheme::Int4, int16, (512, 5376), NORM, none, 1, &[2, 8]);
        add(Scheme::Int8, int16, (512, 6912), Prologue::None, none, 2, &[2, 4, 8]);
        add(Scheme::Int4Min, f32, (64, 640), Prologue::None, Epilogue::Swiglu, 1, &[4]);
        // Panels of two strips, the last of which has one.
        for scheme in [Scheme::Int8Min, Scheme::Int4] {
            add(scheme, int16, (4232, 1152), Prologue::None, none, 1, &[5, 8]);
        }
    }
    list
}

/// The policy's plan; for a CPU driver, whose own plan has one slice, one with several.
fn one_column_plan(caps: &Caps, shape: &Shape) -> Plan {
    if caps.max_subgroup_size >= 32 {
        return policy::plan(caps, shape);
    }
    let strips = shape.epilogue.strips() as u32;
    Plan {
        tier: Tier::T1,
        threads: 96,
        teams: 1,
        strips,
        in_flight: 1,
        groups: 2 * shape.splits,
        x_in_shared: shape.activations == Activations::Int16,
        subgroup: Subgroup::Any,
        lanes: None,
    }
}

/// Compares each column of products of these numbers of columns with that column by itself.
pub(super) fn compare(device: &Device, shape: Shape, plan: Plan, columns: &[usize]) -> Result<Comparison> {
    let (caps, fragments) = (device.caps(), coopmat::fragments(device)?);
    let most = columns.iter().copied().max().unwrap_or(1);
    let Layout { rows, k, .. } = shape.weights;
    let mut random = Random::new((rows * 13 + k) as u64);
    let mut arena = arena(device);
    let mut w = Matrix::allocate(&mut arena, "weights", shape.weights, caps)?;
    trial::fill(&mut w, &mut random)?;
    let input = Inputs::new(&mut random, &shape, most);
    let mut comparison = Comparison::default();
    let mut alone = vec![];
    for column in 0..most {
        let product = Product { device, shape, plan, w: &w };
        alone.push(product.run(&mut arena, &input, column..column + 1, &mut comparison)?.remove(0));
    }
    for &columns in columns {
        let own_norm = shape.prologue.norms() && policy::has_prologue(caps, k, columns);
        let prologue = match shape.prologue {
            prologue if own_norm || !prologue.norms() => prologue,
            _ => Prologue::Factors,
        };
        let several = Shape { columns, prologue, ..shape };
        let plan = policy::with_sums_of(caps, fragments, &several, &plan);
        let product = Product { device, shape: several, plan, w: &w };
        let together = product.run(&mut arena, &input, 0..columns, &mut comparison)?;
        for (column, (together, alone)) in together.iter().zip(&alone).enumerate() {
            for (what, together, alone) in [
                ("values", &together.values, &alone.values),
                ("scales", &together.scales, &alone.scales),
                ("stream", &together.stream, &alone.stream),
            ] {
                let first = together.iter().zip(alone).position(|(together, alone)| together != alone);
                let at = || format!("{what} of column {column} of {columns}, first at {first:?}, {plan:?}");
                comparison.equal(at, &(together == alone), &true);
            }
        }
    }
    Ok(comparison)
}

/// The words that a product writes for a column.
struct Column {
    values: Vec<u32>,
    scales: Vec<u32>,
    stream: Vec<u32>,
}

enum Inputs {
    Rows { values: Vec<f32>, k: usize },
    Norm(PrologueInputs),
}

impl Inputs {
    fn new(random: &mut Random, shape: &Shape, columns: usize) -> Self {
        let k = shape.weights.k;
        match shape.prologue {
            Prologue::None | Prologue::Factors => {
                Self::Rows { values: values(random, k * columns, 3.0, 0.0), k }
            }
            prologue => Self::Norm(PrologueInputs::new(random, prologue, k, columns)),
        }
    }
}

struct Product<'a> {
    device: &'a Device,
    shape: Shape,
    plan: Plan,
    w: &'a Matrix,
}

impl Product<'_> {
    /// What it writes for each of these columns.
    fn run(
        &self,
        arena: &mut Arena,
        inputs: &Inputs,
        columns: std::ops::Range<usize>,
        comparison: &mut Comparison,
    ) -> Result<Vec<Column>> {
        let Self { shape, .. } = *self;
        let count = columns.len();
        let kernel = Gemv::with_plan(self.device, shape, self.plan)?;
        let output = Written::new(arena, &shape, count)?;
        let target = output.target()?;
        let mut recorder = self.device.recorder()?;
        let k = shape.weights.k;
        let stream = match inputs {
            Inputs::Rows { values, k } => {
                let rows = &values[columns.start * k..columns.end * k];
                let x = columns_of(arena, shape.activations, rows, count)?;
                kernel.record(&mut recorder, "gemv", self.w, Source::Vectors(&x), &target)?;
                None
            }
            Inputs::Norm(inputs) => {
                let stream = Output::new(arena, k * count)?;
                let view = stream.buffer.slice(0..(k * count * 4) as u64)?;
                let norm = inputs.rows(columns).norm(arena, view)?;
                self.record_norm(arena, &mut recorder, &kernel, (inputs.prologue(), norm), &target)?;
                (inputs.prologue() != Prologue::Norm).then_some(stream)
            }
        };
        recorder.seal()?.run(TIMEOUT)?;
        let mut columns = output.columns(comparison)?;
        if let Some(stream) = stream {
            let words = stream.read(comparison)?;
            columns.iter_mut().zip(words.chunks(k)).for_each(|(column, row)| column.stream = row.to_vec());
        }
        Ok(columns)
    }

    /// Records a product of normed rows, with the norm as its prologue or before it.
    fn record_norm(
        &self,
        arena: &mut Arena,
        recorder: &mut Recorder,
        kernel: &Gemv,
        (prologue, norm): (Prologue, Norm),
        target: &Target,
    ) -> Result<()> {
        if self.shape.prologue != Prologue::Factors {
            return kernel.record(recorder, "gemv", self.w, Source::Norm(&norm), target);
        }
        let x = Vectors::int16(arena, "normed", self.shape.weights.k, norm.rows)?;
        let factors: View = arena.buffer("factors", norm.rows as u64 * 4)?.view();
        let norm_kernel = GemvNorm::new(self.device, prologue, self.shape.weights.k)?;
        norm_kernel.record(recorder, "gemv_norm", &norm, &x, &factors)?;
        let source = Source::Normed { x: &x, factors: &factors };
        kernel.record(recorder, "gemv", self.w, source, target)
    }
}

/// The output of a product: f32, or int16 with scales, without the guards after them.
struct Written {
    count: usize,
    /// Elements of y per column.
    stride: usize,
    words: usize,
    values: Output,
    scales: Option<Output>,
}

impl Written {
    fn new(arena: &mut Arena, shape: &Shape, count: usize) -> Result<Self> {
        let n = shape.epilogue.outputs(shape.weights.rows);
        let int16 = shape.output == Activations::Int16;
        let stride = if int16 { n.next_multiple_of(QUAD) } else { n };
        let words = if int16 { stride * count / 2 } else { stride * shape.splits as usize * count };
        let scales = int16.then(|| Output::new(arena, stride * count / HALF_GROUP)).transpose()?;
        Ok(Self { count, stride, words, values: Output::new(arena, words)?, scales })
    }

    fn target(&self) -> Result<Target> {
        let y = self.values.buffer.slice(0..self.words as u64 * 4)?;
        let format = match &self.scales {
            None => OutputFormat::F32,
            Some(scales) => {
                let bytes = self.stride * self.count / HALF_GROUP * 4;
                OutputFormat::Int16(scales.buffer.slice(0..bytes as u64)?)
            }
        };
        Ok(Target { y, format, first: 0, stride: self.stride })
    }

    fn columns(&self, comparison: &mut Comparison) -> Result<Vec<Column>> {
        let of = |words: &[u32], column: usize| {
            let per_column = words.len() / self.count;
            words[column * per_column..][..per_column].to_vec()
        };
        let values = self.values.read(comparison)?;
        let scales = self.scales.as_ref().map(|scales| scales.read(comparison)).transpose()?;
        let column = |column: usize| match &scales {
            None => Column { values: of(&values, column), scales: vec![], stream: vec![] },
            // High bytes of all columns, then low bytes.
            Some(scales) => {
                let (high, low) = values.split_at(values.len() / 2);
                let values = [of(high, column), of(low, column)].concat();
                Column { values, scales: of(scales, column), stream: vec![] }
            }
        };
        Ok((0..self.count).map(column).collect())
    }
}
