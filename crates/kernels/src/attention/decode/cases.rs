//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};
use tensor::KvScheme;

use super::{DecodeAttention, Operands, Plan, Shape, policy, reference};
use crate::{
    Activations, Vectors,
    attention::{
        kv::{KvLayer, KvShape, KvTable, reference as stored},
        paged::reference::range,
        rope::{
            KeysAndValues, QueryTemperature, Rotation, Tables,
            cases::{frequencies, rotation_scale, split_into_partials},
            reference::Row,
        },
    },
    case::{Case, Comparison, Output, Random, TIMEOUT, arena, read_back},
    matmul::common::reference::Value,
    vectors::{
        VectorData,
        compare::{compare, poisoned},
    },
};

/// One decode step; each row has its own slot.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub shape: Shape,
    /// Positions of the active rows.
    pub positions: Vec<u32>,
    /// Inactive rows after them.
    pub inactive: usize,
}

pub(super) const GEMMA: Shape = Shape {
    heads: 4,
    kv_heads: 1,
    head_dim: 256,
    page_size: 16,
    scheme: KvScheme::F16,
    window: 0,
    context_length: 4096,
    keys_and_values: KeysAndValues::Projected,
    norm: Some(1e-6),
    value_norm: false,
    bias: false,
    rotation: Rotation::Halves,
    temperature: None,
    partials: 1,
    scale: 0.0625,
    output: Activations::F32,
};

/// Covers every head length, group size, scheme and output, and ranges around the boundaries of pages, blocks,
/// splits and windows.
pub(super) fn steps() -> Vec<Step> {
    let step = |shape, positions: &[u32]| Step { shape, positions: positions.to_vec(), inactive: 1 };
    let small = Shape { heads: 2, head_dim: 64, ..GEMMA };
    let plain = Shape { norm: None, scale: 0.1, ..small };
    let temperature = Some(QueryTemperature { beta: 0.5, original: 64 });
    let long = Shape { head_dim: 512, ..GEMMA };
    let values_from_keys = Shape { keys_and_values: KeysAndValues::ValuesFromKeys, ..long };
    let shared = Shape { keys_and_values: KeysAndValues::Shared, ..long };
    let lengths = [0, 1, 15, 16, 17, 63, 64, 299];
    let (int16, f16) = (Activations::Int16, Activations::F16);
    vec![
        step(Shape { output: int16, ..GEMMA }, &lengths),
        step(Shape { heads: 2, page_size: 64, scheme: KvScheme::F32, output: f16, ..GEMMA }, &[300, 0, 64]),
        step(Shape { heads: 1, window: 40, page_size: 64, output: int16, ..GEMMA }, &[299, 39, 40, 41, 7]),
        step(Shape { heads: 4, kv_heads: 2, head_dim: 128, window: 100, output: int16, ..GEMMA }, &lengths),
        step(Shape { window: 1, ..small }, &[0, 77]),
        step(Shape { scheme: KvScheme::Int8, output: int16, ..GEMMA }, &[64, 0, 1, 299]),
        step(
            Shape { kv_heads: 2, head_dim: 96, window: 40, scheme: KvScheme::Int8, output: f16, ..small },
            &[130, 5, 0],
        ),
        step(
            Shape { heads: 4, kv_heads: 2, head_dim: 128, window: 100, partials: 3, output: f16, ..GEMMA },
            &lengths,
        ),
        step(
            Shape { bias: true, rotation: Rotation::Interleaved, scheme: KvScheme::Int8, ..plain },
            &[65, 2],
        ),
        step(Shape { kv_heads: 2, scheme: KvScheme::F32, output: int16, ..small }, &[130, 5, 0]),
        step(Shape { heads: 7, bias: true, page_size: 64, ..plain }, &[130, 5]),
        step(
            Shape { heads: 9, kv_heads: 3, rotation: Rotation::Interleaved, output: int16, ..plain },
            &[200, 64, 1],
        ),
        step(
            Shape {
                heads: 3,
                kv_heads: 3,
                head_dim: 80,
                bias: true,
                rotation: Rotation::Interleaved,
                output: f16,
                ..small
            },
            &[65, 2],
        ),
        step(Shape { heads: 4, kv_heads: 2, window: 40, scheme: KvScheme::Int8, ..long }, &[65, 2]),
        step(Shape { heads: 4, kv_heads: 4, page_size: 64, scheme: KvScheme::F32, ..long }, &[0, 130]),
        step(Shape { kv_heads: 2, value_norm: true, window: 40, ..small }, &[130, 5, 0]),
        step(Shape { kv_heads: 2, temperature, ..plain }, &[63, 64, 299]),
        step(Shape { heads: 8, value_norm: true, ..values_from_keys }, &[64, 0, 299]),
        step(
            Shape { head_dim: 64, kv_heads: 2, partials: 3, scheme: KvScheme::Int8, ..values_from_keys },
            &[65, 2],
        ),
        step(Shape { head_dim: 64, window: 40, partials: 2, ..shared }, &lengths),
        step(Shape { heads: 8, ..shared }, &[299, 0]),
        step(
            Shape { head_dim: 96, kv_heads: 2, scheme: KvScheme::Int8, output: int16, ..shared },
            &[64, 0, 130],
        ),
    ]
}

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    let mut list = Vec::new();
    for (tier, (i, step)) in
        tiers.flat_map(|tier| steps().into_iter().enumerate().map(move |step| (tier, step)))
    {
        // One split and several, regardless of the policy; alternating, because CPU drivers compile it
        // slowly.
        let splits = if (i % 2 == 0) == (tier == Tier::T0) { 3 } else { 1 };
        let mut plan = Plan { splits, min_split: 32, ..policy::at_tier(caps, &step.shape, tier) };
        if step.shape.partials > 1 {
            // The plan for many rows.
            plan.threads = policy::plan_for_rows(caps, &step.shape, 128).threads;
        }
        list.push(Case::new(name(&step, &plan), tier, move |device| run(device, &step, plan)));
    }
    list
}

fn name(step: &Step, plan: &Plan) -> String {
    let shape = &step.shape;
    let window = if shape.window > 0 { format!(", window {}", shape.window) } else { String::new() };
    format!(
        "{} rows from {}, {} → {}{window}, pages of {}, splits {}, {} threads",
        step.positions.len(),
        step.positions[0],
        shape.rope(),
        shape.output,
        shape.page_size,
        plan.splits,
        plan.threads,
    )
}

/// Runs one step with one plan on random data and compares the result.
pub(super) fn run(device: &Device, step: &Step, plan: Plan) -> Result<Comparison> {
    let data = Data::new(step);
    // Rounding to int16 or f16 would hide errors, so f32 comes first, and the other formats are compared with
    // it.
    let f32_step = Step { shape: Shape { output: Activations::F32, ..step.shape }, ..step.clone() };
    let (o, mut comparison) = run_as(device, f32_step.shape, &f32_step, plan, &data)?;
    if step.shape.output != Activations::F32 {
        let buffers = Buffers::new(device, step, plan, &data)?;
        buffers.run()?;
        let (k, padded) = (buffers.o.k, buffers.o.stride());
        let rows = (0..step.positions.len()).flat_map(|row| &o[row * padded..][..k]);
        let want = rows.map(|word| f64::from(f32::from_bits(*word)));
        let want: Vec<Value> = want.map(|value| Value { value, allowed: 1e-6 * value.abs() }).collect();
        compare(&mut comparison, &want, buffers.o)?;
    }
    Ok(comparison)
}

/// The output words of a step in f32 with the kernel for the shape `computed`, which must not pass as another
/// one.
pub(super) fn run_as(
    device: &Device,
    computed: Shape,
    step: &Step,
    plan: Plan,
    data: &Data,
) -> Result<(Vec<u32>, Comparison)> {
    let mut comparison = Comparison::default();
    let buffers = Buffers::new(device, &Step { shape: computed, ..step.clone() }, plan, data)?;
    buffers.run()?;
    let o = buffers.read(&mut comparison)?;
    let cache = [read_back(device, &buffers.kv.k)?, read_back(device, &buffers.kv.v)?];
    compare_cache(step, data, &cache, &mut comparison);
    compare_output(step, data, &cache, buffers, &mut comparison)?;
    Ok((o, comparison))
}

/// Written keys and values: those of the active rows, as in the reference, and nothing else.
fn compare_cache(step: &Step, data: &Data, after: &[Vec<u32>; 2], comparison: &mut Comparison) {
    let shape = &step.shape;
    let before = [stored::words(&data.k, &data.kv_shape), stored::words(&data.v, &data.kv_shape)];
    let mut written = vec![false; before[0].len()];
    for (row, position) in (0..).zip(step.positions.iter().copied()) {
        let (_, k, v) = reference::heads(shape, &data.row(step, row));
        for (words, want, what) in [(&after[0], k, "key"), (&after[1], v, "value")] {
            let largest = want.iter().fold(0.0_f64, |max, value| max.max(value.abs()));
            let rounding = stored::rounding(&want, shape.scheme);
            for (i, (want, rounding)) in (0..).zip(want.into_iter().zip(rounding)) {
                let element =
                    data.element(shape, row, i / shape.head_dim, position) + u64::from(i % shape.head_dim);
                for word in stored::words_of(&data.kv_shape, element) {
                    written[word] = true;
                }
                let got = stored::value(words, &data.kv_shape, element);
                let at = || format!("{what} {i} of row {row} at position {position}");
                comparison.close_or_nan(at, got, want, 1e-5 * largest + rounding);
            }
        }
    }
    for (before, after) in before.iter().zip(after) {
        let untouched = (0..written.len()).all(|word| written[word] || before[word] == after[word]);
        comparison.equal(|| "everything but the rows' own entries".into(), &untouched, &true);
    }
}

fn compare_output(
    step: &Step,
    data: &Data,
    [keys, values]: &[Vec<u32>; 2],
    buffers: Buffers,
    comparison: &mut Comparison,
) -> Result<()> {
    let shape = &step.shape;
    // As the kernel stored them: a difference in the last bit of f32 may become one in the last bit of f16.
    let mut want = Vec::new();
    for (row, position) in (0..).zip(step.positions.iter().copied()) {
        let (q, _, _) = reference::heads(shape, &data.row(step, row));
        let heads = reference::attend(shape, &q, position, |kv_head, at| {
            let first = data.element(shape, row, kv_head, at);
            let elements = first..first + u64::from(shape.head_dim);
            let line =
                |words: &[u32]| elements.clone().map(|i| stored::value(words, &data.kv_shape, i)).collect();
            (line(keys), line(values))
        });
        for (head, magnitude) in heads {
            want.extend(head.into_iter().map(|value| Value { value, allowed: 2e-6 + 2e-6 * magnitude }));
        }
    }
    compare(comparison, &want, buffers.o)
}

/// Values per row of the test data's QKV product, padding included: room for keys and values, projected or not.
fn qkv_stride(shape: &Shape) -> u32 {
    (shape.heads + 2 * shape.kv_heads) * shape.head_dim + 8
}

/// The QKV product, and a cache with randomly assigned pages.
pub(super) struct Data {
    qkv: Vec<f32>,
    bias: Vec<f32>,
    weights: [Vec<f32>; 2],
    frequencies: Vec<f64>,
    kv_shape: KvShape,
    table: Vec<u32>,
    table_stride: u32,
    /// As stored: rounded, and NaN wherever nothing has been written yet.
    k: Vec<f64>,
    v: Vec<f64>,
}

impl Data {
    pub fn new(step: &Step) -> Self {
        let shape = &step.shape;
        let mut random = Random::new(u64::from(shape.heads * 1009 + shape.head_dim + step.positions[0]));
        let rows = (step.positions.len() + step.inactive) as u32;
        let longest = step.positions.iter().max().unwrap_or(&0) + 1;
        let table_stride = longest.div_ceil(shape.page_size) + 1;
        // Page 0 is unused: table entries that no row may read point to it.
        let pages = rows * table_stride + 1;
        let kv_shape = KvShape {
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            page_size: shape.page_size,
            pages,
            scheme: shape.scheme,
        };
        let mut free: Vec<u32> = (1..pages).collect();
        let mut table = vec![0; (rows * table_stride) as usize];
        let elements = kv_shape.elements() as usize;
        let (mut k, mut v) = (vec![f64::NAN; elements], vec![f64::NAN; elements]);
        for (slot, position) in (0..).zip(step.positions.iter().copied()) {
            for at in range(position, position, shape.window) {
                let entry = &mut table[(slot * table_stride + at / shape.page_size) as usize];
                if *entry == 0 {
                    *entry = free.swap_remove(random.integer(0, free.len() as i64 - 1) as usize);
                }
                // Shared keys and values of the row's own position have been written too.
                let is_written = at < position || shape.keys_and_values == KeysAndValues::Shared;
                for head in (0..shape.kv_heads).filter(|_| is_written) {
                    let line = kv_shape.element(*entry, head, at, 0) as usize;
                    let line = line..line + shape.head_dim as usize;
                    for element in line.clone() {
                        (k[element], v[element]) = (random.signed().into(), random.signed().into());
                    }
                    stored::round(&mut k[line.clone()], shape.scheme);
                    stored::round(&mut v[line], shape.scheme);
                }
            }
        }
        let mut floats =
            |count: u32, scale: f32| (0..count).map(|_| random.signed() * scale).collect::<Vec<f32>>();
        let mut qkv = floats(qkv_stride(shape) * rows, 3.0);
        // A NaN value stays NaN, and affects only the values that share its scale.
        if shape.keys_and_values == KeysAndValues::Projected && !shape.value_norm {
            qkv[((shape.heads + shape.kv_heads) * shape.head_dim) as usize + 5] = f32::NAN;
        }
        Self {
            qkv,
            bias: floats(shape.rope().row(), 1.0),
            weights: [floats(shape.head_dim, 2.0), floats(shape.head_dim, 1.0)],
            frequencies: frequencies(shape.head_dim),
            kv_shape,
            table,
            table_stride,
            k,
            v,
        }
    }

    /// The inputs of a row, for the reference.
    fn row(&self, step: &Step, row: u32) -> Row<'_> {
        let shape = &step.shape;
        let length = shape.rope().row() as usize;
        let position = step.positions[row as usize];
        Row {
            qkv: &self.qkv[row as usize * qkv_stride(shape) as usize..][..length],
            bias: shape.bias.then_some(&self.bias),
            weights: shape.norm.map(|_| (&self.weights[0][..], &self.weights[1][..])),
            epsilon: shape.norm.unwrap_or(0.0),
            scale: shape.scale,
            position,
            angles: self.frequencies.iter().map(|frequency| f64::from(position) * frequency).collect(),
            rotation_scale: rotation_scale(shape.temperature),
        }
    }

    fn element(&self, shape: &Shape, slot: u32, head: u32, position: u32) -> u64 {
        let page = self.table[(slot * self.table_stride + position / shape.page_size) as usize];
        self.kv_shape.element(page, head, position, 0)
    }

    /// The same data for one row alone.
    #[cfg(test)]
    pub fn row_alone(&self, step: &Step, row: usize) -> Self {
        let (length, stride) = (qkv_stride(&step.shape) as usize, self.table_stride as usize);
        Self {
            qkv: self.qkv[row * length..][..length].to_vec(),
            bias: self.bias.clone(),
            weights: self.weights.clone(),
            frequencies: self.frequencies.clone(),
            table: self.table[row * stride..][..stride].to_vec(),
            k: self.k.clone(),
            v: self.v.clone(),
            ..*self
        }
    }
}

/// A recorded call and its memory.
pub(super) struct Buffers {
    pub o: Vectors,
    kv: KvLayer,
    program: gpu::Program,
    scratch: Option<Output>,
    counter_words: usize,
}

impl Buffers {
    pub fn new(device: &Device, step: &Step, plan: Plan, data: &Data) -> Result<Self> {
        let shape = &step.shape;
        let mut arena = arena(device);
        let kv = KvLayer {
            shape: data.kv_shape,
            k: arena.buffer_from("keys", &stored::words(&data.k, &data.kv_shape))?,
            v: arena.buffer_from("values", &stored::words(&data.v, &data.kv_shape))?,
        };
        let columns = step.positions.len() + step.inactive;
        let positions: Vec<u32> = step.positions.iter().copied().chain(vec![3; step.inactive]).collect();
        let slots: Vec<u32> = (0..columns as u32).collect();
        let k = (shape.heads * shape.head_dim) as usize;
        let o = poisoned(&mut arena, shape.output, k, columns)?;
        let max_positions = data.table_stride as usize * shape.page_size as usize;
        let tables = Tables::scaled(&data.frequencies, max_positions, rotation_scale(shape.temperature));
        let kernel = DecodeAttention::with_plan(device, *shape, plan)?;
        let counter_words = (kernel.counter_bytes(columns as u32) / 4) as usize;
        let mut scratch = match kernel.scratch_bytes(columns as u32) {
            0 => None,
            bytes => Some(Output::with_atomics(&mut arena, (bytes / 4) as usize)?),
        };
        if let Some(scratch) = &mut scratch {
            scratch.buffer.write(0, &vec![0; counter_words * 4])?;
        }
        let has_keys = shape.keys_and_values != KeysAndValues::Shared;
        let q_weight = arena.buffer_from("weight", &data.weights[0])?.view();
        let k_weight = arena.buffer_from("weight", &data.weights[1])?.view();
        let (row, stride) = (shape.rope().row(), qkv_stride(shape));
        // As many workgroups as the step needs, or the maximum.
        let last = step.positions.iter().copied().max().unwrap_or(0);
        let groups = plan.groups(shape, columns as u32, last);
        let groups = if shape.partials > 1 || shape.window == 100 {
            Some(arena.buffer_from("groups", &groups)?.view())
        } else {
            None
        };
        let operands = Operands {
            qkv: arena
                .buffer_from("qkv", &split_into_partials(&data.qkv, stride, row, shape.partials))?
                .view(),
            qkv_stride: row * (shape.partials - 1) + stride,
            bias: if shape.bias { Some(arena.buffer_from("bias", &data.bias)?.view()) } else { None },
            q_weight: shape.norm.map(|_| q_weight),
            k_weight: shape.norm.filter(|_| has_keys).map(|_| k_weight),
            coarse: arena.buffer_from("coarse table", &tables.coarse)?.view(),
            fine: arena.buffer_from("fine table", &tables.fine)?.view(),
            kv: &kv,
            table: &KvTable {
                view: arena.buffer_from("table", &data.table)?.view(),
                stride: data.table_stride,
            },
            positions: arena.buffer_from("positions", &positions)?.view(),
            slots: arena.buffer_from("slots", &slots)?.view(),
            active: arena.buffer_from("active", &[step.positions.len() as u32])?.view(),
            o: &o,
            scratch: scratch.as_ref().map(|scratch| scratch.buffer.view()),
            groups,
        };
        let mut recorder = device.recorder()?;
        kernel.record(&mut recorder, "attention_decode", columns as u32, &operands)?;
        let program = recorder.seal()?;
        Ok(Self { o, kv, program, scratch, counter_words })
    }

    pub fn run(&self) -> Result<()> {
        self.program.run(TIMEOUT)
    }

    /// The words of the output's values, in any format; the counters must be zero again.
    pub fn read(&self, comparison: &mut Comparison) -> Result<Vec<u32>> {
        if let Some(scratch) = &self.scratch {
            let words = scratch.read(comparison)?;
            let zero = words[..self.counter_words].iter().all(|word| *word == 0);
            comparison.equal(|| "the counters".into(), &zero, &true);
        }
        let (values, per_word) = match &self.o.data {
            VectorData::F32(values) => (values, 1),
            VectorData::Int16 { values, .. } | VectorData::F16(values) => (values, 2),
            VectorData::Int8 { .. } => unreachable!("decode attention writes no int8"),
        };
        Ok(values.read_vec::<u32>()?[..self.o.columns * self.o.stride() / per_word].to_vec())
    }
}
