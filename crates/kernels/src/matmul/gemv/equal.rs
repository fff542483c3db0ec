//! Cases that compare products of several columns with those of each column by itself, bit for bit.

use gpu::{Arena, Caps, Device, Recorder, Result, Subgroup, Tier, View};
use tensor::{Layout, Scheme};

use super::{
    Gemv, Norm, Source,
    cases::{PrologueInputs, columns_of, values},
    policy::{self, Plan, Prologue, Shape},
};
use crate::{
    Activations, Epilogue, Matrix, Target, Vectors,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    matmul::{common::trial, gemv_norm::GemvNorm},
    vectors::{VectorData, compare::poisoned},
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
    };
    let (int16, f32, geglu, none) = (Activations::Int16, Activations::F32, Epilogue::Geglu, Epilogue::None);
    for scheme in [Scheme::Int8, Scheme::Int4, Scheme::Int8Min, Scheme::Int4Min] {
        add(scheme, int16, (96, 1152), NORM, geglu, 1, &[2, 8]);
    }
    add(Scheme::Int8, int16, (80, 1152), Prologue::Norm, none, 1, &[3, 4]);
    add(Scheme::Int4, int16, (80, 2048), Prologue::None, none, 3, &[2, 5, 8]);
    add(Scheme::Int8, int16, (33, 1152), Prologue::None, none, 1, &[6, 7]);
    for scheme in [Scheme::F16, Scheme::Bf16, Scheme::F32] {
        add(scheme, f32, (33, 640), Prologue::None, none, 1, &[2, 8]);
    }
    for scheme in [Scheme::Int8, Scheme::Int4Min] {
        add(scheme, f32, (64, 640), Prologue::None, Epilogue::Swiglu, 1, &[4]);
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
    let caps = device.caps();
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
        let plan = policy::with_sums_of(caps, &several, &plan);
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
        let n = shape.epilogue.outputs(shape.weights.rows);
        let floats = n * shape.splits as usize;
        let (output, gated) = match shape.output {
            Activations::Int16 => (None, Some(poisoned(arena, Activations::Int16, n, count)?)),
            _ => (Some(Output::new(arena, floats * count)?), None),
        };
        let target = match (&output, &gated) {
            (Some(output), _) => Target::contiguous(output.buffer.slice(0..(floats * count * 4) as u64)?, n),
            (None, gated) => Target::vectors(gated.as_ref().expect("one of them"))?,
        };
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
        let split = |words: Vec<u32>| -> Vec<Vec<u32>> {
            words.chunks(words.len() / count).map(<[u32]>::to_vec).collect()
        };
        let (values, scales) = match (output, gated) {
            (Some(output), _) => (split(output.read(comparison)?), vec![vec![]; count]),
            (None, gated) => int16_columns(gated.expect("one of them"), comparison)?,
        };
        let stream = match stream {
            Some(stream) => split(stream.read(comparison)?),
            None => vec![vec![]; count],
        };
        let columns = values.into_iter().zip(scales).zip(stream);
        Ok(columns.map(|((values, scales), stream)| Column { values, scales, stream }).collect())
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

/// The words of int16 columns: high bytes, then low bytes; and the scales.
#[allow(clippy::type_complexity)]
fn int16_columns(columns: Vectors, comparison: &mut Comparison) -> Result<(Vec<Vec<u32>>, Vec<Vec<u32>>)> {
    let (count, stride) = (columns.columns, columns.stride());
    let VectorData::Int16 { values, scales } = columns.data else { unreachable!("they are int16") };
    let values = Output::from_buffer(values, stride * count / 2).read(comparison)?;
    let scales = Output::from_buffer(scales, stride * count / 16).read(comparison)?;
    let (high, low) = values.split_at(values.len() / 2);
    let column = |words: &[u32], column: usize| {
        words[column * (words.len() / count)..][..words.len() / count].to_vec()
    };
    let values = (0..count).map(|index| [column(high, index), column(low, index)].concat());
    Ok((values.collect(), (0..count).map(|index| column(&scales, index)).collect()))
}
