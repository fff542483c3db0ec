//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result};
use half::f16;
use tensor::{KvScheme, QUAD};

use super::{FlashAttention, Output as Kind, RowOperands, policy, policy::Plan, policy::Shape, reference};
use crate::{
    F16_UNIT, Vectors,
    attention::{
        kv::{KvLayer, KvTable, reference as stored},
        paged::{
            Mode, Operands,
            cases::{Data, Step, encoder, image_steps, images, prefill as chunk, prefills},
            reference as exact,
        },
    },
    case::{Case, Comparison, Output, POISON, Random, TIMEOUT, arena},
    f16_at,
    matmul::coopmat::{self, policy::Fragments, policy::likely_fragments},
    vectors::VectorData,
};

const GEMMA: Shape = Shape {
    heads: 4,
    kv_heads: 1,
    head_dim: 256,
    page_size: 64,
    scheme: KvScheme::F16,
    window: 0,
    context_length: 4096,
};

/// `count` rows at consecutive positions.
pub(super) fn prefill(shape: Shape, first: u32, count: u32) -> Step {
    Step { inactive_after: 3, ..chunk(shape, first, count) }
}

/// Covers every head length, group size and scheme, and ranges around the boundaries of pages, blocks, tiles and
/// windows.
pub(super) fn steps() -> Vec<Step> {
    let long = Shape { heads: 4, kv_heads: 2, head_dim: 128, ..GEMMA };
    let small = Shape { heads: 2, kv_heads: 2, head_dim: 64, page_size: 16, ..GEMMA };
    let patch = Shape { heads: 2, kv_heads: 2, head_dim: 72, ..GEMMA };
    let single = Shape { heads: 1, kv_heads: 1, ..patch };
    let int8 = KvScheme::Int8;
    vec![
        prefill(GEMMA, 0, 17),
        prefill(Shape { window: 40, ..GEMMA }, 250, 13),
        prefill(Shape { heads: 2, window: 130, ..GEMMA }, 300, 39),
        prefill(Shape { scheme: int8, window: 70, ..GEMMA }, 61, 21),
        prefill(long, 0, 1),
        prefill(long, 61, 71),
        prefill(Shape { window: 100, ..long }, 190, 35),
        prefill(Shape { heads: 3, kv_heads: 3, ..long }, 127, 66),
        prefill(Shape { heads: 8, window: 30, scheme: int8, ..long }, 20, 40),
        prefill(small, 0, 64),
        prefill(Shape { window: 1, ..small }, 20, 40),
        prefill(Shape { heads: 7, kv_heads: 1, ..small }, 3, 5),
        prefill(Shape { heads: 9, kv_heads: 3, page_size: 64, scheme: int8, ..small }, 63, 43),
        prefill(Shape { heads: 4, kv_heads: 4, head_dim: 80, ..small }, 10, 12),
        prefill(Shape { heads: 2, kv_heads: 1, head_dim: 96, scheme: int8, page_size: 32, ..small }, 33, 31),
        prefill(Shape { heads: 1, kv_heads: 1, head_dim: 32, page_size: 64, ..small }, 64, 70),
        Step { query_scale: 14.0, ..prefill(Shape { page_size: 64, ..small }, 120, 40) },
        Step { query_scale: 40.0, ..prefill(Shape { window: 90, ..long }, 300, 20) },
        // Several prompts: of one row, of exactly one tile, of one row more, longer than a tile, and with
        // heads that do not divide it.
        Step { inactive_after: 7, ..prefills(GEMMA, &[(0, 1), (70, 16), (0, 17), (5, 1), (0, 8), (130, 3)]) },
        prefills(Shape { window: 100, ..long }, &[(190, 33), (0, 32), (61, 70)]),
        Step {
            inactive_before: 3,
            ..prefills(Shape { heads: 7, kv_heads: 1, ..small }, &[(3, 20), (0, 9), (64, 2)])
        },
        // After rows of other sequences.
        Step { inactive_before: 5, ..prefill(Shape { window: 40, ..GEMMA }, 50, 23) },
        Step { inactive_before: 1, ..prefill(Shape { heads: 7, kv_heads: 1, ..small }, 3, 40) },
        encoder(patch, &[19, 70, 1]),
        prefill(long, 30, 51).with_images(&[(1, 33..79)]),
        encoder(single, &[130, 33]),
        Step { query_scale: 14.0, ..encoder(Shape { head_dim: 40, page_size: 16, ..single }, &[47]) },
        prefill(Shape { window: 40, ..GEMMA }, 60, 21).with_images(&[(1, 61..80)]),
        prefill(Shape { scheme: int8, window: 30, ..GEMMA }, 60, 21).with_images(&[(1, 60..63), (1, 70..81)]),
    ]
    .into_iter()
    .chain(image_steps(small))
    .collect()
}

/// Heads whose output exceeds the registers of a subgroup, so that several share it. Without cooperative
/// matrices, queries cannot leave shared memory, and the CPU driver's does not hold them.
pub(super) fn long_head_steps() -> Vec<Step> {
    let long = Shape { heads: 8, head_dim: 512, ..GEMMA };
    let int8 = Shape { heads: 4, kv_heads: 2, scheme: KvScheme::Int8, ..long };
    vec![
        prefill(long, 0, 17),
        prefill(Shape { heads: 16, kv_heads: 2, window: 40, ..long }, 250, 13),
        prefill(Shape { heads: 4, kv_heads: 4, page_size: 16, ..long }, 61, 71),
        prefill(Shape { window: 100, ..int8 }, 190, 35),
        Step { query_scale: 14.0, ..prefill(long, 120, 40) },
        Step { inactive_before: 3, ..prefills(int8, &[(3, 20), (0, 9), (64, 2), (5, 1)]) },
        prefill(Shape { head_dim: 384, ..long }, 30, 40),
        prefill(Shape { window: 40, ..long }, 60, 21).with_images(&[(1, 61..80)]),
    ]
}

/// Rows of several sequences, for plans with independent rows.
pub(super) fn mixed_steps() -> Vec<Step> {
    let long = Shape { heads: 4, kv_heads: 2, head_dim: 128, ..GEMMA };
    let rows = vec![(2, 70), (0, 3), (1, 300)];
    let mixed = |shape| Step { mode: Mode::Decode, rows: rows.clone(), ..prefill(shape, 0, 1) };
    let int8 = Shape { scheme: KvScheme::Int8, ..long };
    vec![
        mixed(long),
        mixed(Shape { window: 40, ..GEMMA }),
        mixed(int8),
        Step { inactive_before: 2, ..mixed(long) },
        mixed(Shape { window: 40, ..long }).with_images(&[(2, 70..140), (0, 0..4), (1, 130..301)]),
    ]
}

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    let mixed = mixed_steps().into_iter();
    for step in mixed.chain(steps().into_iter().step_by(4)).chain(long_head_steps().into_iter().step_by(3)) {
        // The layout that the policy prefers, where a device may have it.
        let fragments = likely_fragments(caps).last().copied().unwrap_or(Fragments::Other);
        let plan = policy::plan(caps, fragments, &step.shape);
        let Some(plan) = plan.map(|plan| plan.with_independent_rows(&step.shape)) else { continue };
        list.push(Case::new(name(&step, Kind::F16, &plan), plan.tier, move |device| {
            run(device, &step, Kind::F16, plan)
        }));
    }
    for (i, step) in steps().into_iter().chain(long_head_steps()).enumerate() {
        // Every plan that fits for some shapes, one of each head length of Gemma 3 among them: plans other
        // than the policy's must work too.
        let mut plans: Vec<Plan> = vec![];
        for fragments in likely_fragments(caps) {
            let of_layout = policy::plans(caps, fragments, &step.shape);
            let count = if i % 6 == 1 { of_layout.len() } else { 1 };
            let new = of_layout.into_iter().take(count).filter(|plan| !plans.contains(plan));
            plans.extend(new.collect::<Vec<_>>());
        }
        for plan in plans {
            // Mostly f16; f32 differs only in its last lines.
            let kind = if i % 4 == 1 { Kind::F32 } else { Kind::F16 };
            let step = step.clone();
            list.push(Case::new(name(&step, kind, &plan), plan.tier, move |device| {
                run(device, &step, kind, plan)
            }));
        }
    }
    for (shape, lengths) in row_shapes() {
        let mut plans: Vec<Plan> = vec![];
        for fragments in likely_fragments(caps) {
            let new = policy::plans(caps, fragments, &shape).into_iter().filter(|plan| !plans.contains(plan));
            plans.extend(new.collect::<Vec<_>>());
        }
        for plan in plans {
            let name = format!(
                "rows of {lengths:?}, {}/{} × {}, {} pairs × {} keys{}{}",
                shape.heads,
                shape.kv_heads,
                shape.head_dim,
                plan.pairs(),
                plan.keys,
                if plan.queries_in_registers { ", queries in registers" } else { "" },
                if plan.softmax_in_registers { ", softmax in registers" } else { "" },
            );
            list.push(Case::new(name, plan.tier, move |device| {
                let known =
                    !plan.softmax_in_registers || coopmat::fragments(device)? == Fragments::FourThreadsPerRow;
                let other = policy::plan(device.caps(), Fragments::Other, &shape).filter(|_| !known);
                run_rows(device, shape, lengths, other.unwrap_or(plan))
            }));
        }
    }
    list
}

/// Images as rows of queries, keys and values: chunks that end within a block, at its end, and after one row; heads with
/// padding and without.
pub(super) fn row_shapes() -> [(Shape, &'static [u32]); 3] {
    let patch = Shape { heads: 2, kv_heads: 2, head_dim: 72, ..GEMMA };
    [
        (patch, &[19, 70, 1, 128]),
        (Shape { head_dim: 64, ..patch }, &[47, 64, 130]),
        (Shape { heads: 4, head_dim: 40, ..patch }, &[33, 65]),
    ]
}

/// Attention of rows in chunks of these lengths, then inactive rows.
pub(super) fn run_rows(device: &Device, shape: Shape, lengths: &[u32], plan: Plan) -> Result<Comparison> {
    const INACTIVE: usize = 5;
    let [heads, kv_heads, d] = [shape.heads, shape.kv_heads, shape.head_dim].map(|count| count as usize);
    let rows = lengths.iter().sum::<u32>() as usize;
    let columns = rows + INACTIVE;
    let (k, o_k) = ((heads + 2 * kv_heads) * d, heads * d);
    let (stride, o_stride) = (k.next_multiple_of(QUAD), o_k.next_multiple_of(QUAD));
    let scale = (d as f32).sqrt().recip();
    let mut random = Random::new((k * 31 + rows) as u64);
    // Values up to 4, so that scores are large.
    let qkv: Vec<u16> =
        (0..columns * stride).map(|_| f16::from_f32(random.signed() * 4.0 / F16_UNIT).to_bits()).collect();
    let value_at =
        |row: usize, at: usize| f16::from_bits(qkv[row * stride + f16_at(at)]).to_f64() * f64::from(F16_UNIT);
    let ends: Vec<u32> = lengths
        .iter()
        .scan(0, |end, length| {
            *end += length;
            Some(*end)
        })
        .collect();
    let positions: Vec<u32> = lengths.iter().flat_map(|length| 0..*length).chain([0; INACTIVE]).collect();
    let last: Vec<u32> = lengths.iter().flat_map(|length| (0..*length).map(move |_| length - 1)).collect();
    let last: Vec<u32> = last.into_iter().chain([0; INACTIVE]).collect();

    let mut arena = arena(device);
    let output = Output::new(&mut arena, columns * o_stride / 2)?.buffer;
    let o = Vectors { k: o_k, columns, data: VectorData::F16(output) };
    let operands = RowOperands {
        qkv: &Vectors { k, columns, data: VectorData::F16(arena.buffer_from("qkv", &qkv)?) },
        scale,
        positions: arena.buffer_from("positions", &positions)?.view(),
        last_visible: arena.buffer_from("last_visible", &last)?.view(),
        active: arena.buffer_from("active", &[0, rows as u32])?.view(),
        chunk_ends: arena.buffer_from("chunk_ends", &ends)?.view(),
        o: &o,
    };
    let kernel = FlashAttention::for_rows(device, shape, plan)?;
    let mut recorder = device.recorder()?;
    kernel.record_rows(&mut recorder, "attention_flash", columns as u32, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let VectorData::F16(buffer) = o.data else { unreachable!("created above") };
    let got = Output::from_buffer(buffer, columns * o_stride / 2).read(&mut comparison)?;
    let mut first = 0;
    for end in ends.into_iter().map(|end| end as usize) {
        for (row, head) in (first..end).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let line = |row: usize, head: usize| (0..d).map(move |i| (row, head * d + i));
            let line = |row, head| line(row, head).map(|(row, at)| value_at(row, at)).collect::<Vec<f64>>();
            let q: Vec<f32> = line(row, head).into_iter().map(|q| q as f32 * scale).collect();
            let kv_head = heads + head / (heads / kv_heads);
            let keys: Vec<_> = (first..end).map(|row| line(row, kv_head)).collect();
            let values: Vec<_> = (first..end).map(|row| line(row, kv_head + kv_heads)).collect();
            let (want, magnitude) = exact::attention(&reference::query(&q), &keys, &values);
            let largest = values.iter().flatten().fold(0.0_f64, |largest, value| largest.max(value.abs()));
            // A query may be rounded to the other neighbour: its factors are applied in another order.
            let allowed = largest * (ROUNDING + (SCORE_ROUNDING + 1.0 / (1024.0 * d as f64)) * magnitude);
            for (j, want) in want.into_iter().enumerate() {
                let got = value(&got, Kind::F16, row * o_stride, head * d + j);
                comparison.close(|| format!("value {j} of head {head}, row {row}"), got, want, allowed);
            }
        }
        first = end;
    }
    for (i, word) in got.iter().enumerate() {
        if i >= rows * o_stride / 2 || i % (o_stride / 2) >= o_k / 2 {
            comparison.equal(|| format!("word {i}, outside the active rows"), word, &POISON);
        }
    }
    Ok(comparison)
}

fn name(step: &Step, kind: Kind, plan: &Plan) -> String {
    let shape = &step.shape;
    let scores = if step.query_scale > 1.0 { ", large scores" } else { "" };
    let before = if step.inactive_before > 0 {
        format!(", after {} inactive rows", step.inactive_before)
    } else {
        String::new()
    };
    let window = if shape.window > 0 { format!(", window {}", shape.window) } else { String::new() };
    let chunks = step.chunk_ends().map_or(String::new(), |ends| format!(" in {} chunks", ends.len() - 2));
    let images = images(step);
    format!(
        "{} rows{chunks} from {}{before}{images}, {}/{} × {} {}, pages of {}{window}{scores}, to {}, {} pairs × {} keys{}{}{}{}",
        step.rows.len(),
        step.rows[0].1,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.scheme,
        shape.page_size,
        crate::Activations::from(kind),
        plan.pairs(),
        plan.keys,
        if plan.head_parts > 1 { ", heads in parts" } else { "" },
        if plan.queries_in_registers { ", queries in registers" } else { "" },
        if plan.softmax_in_registers { ", softmax in registers" } else { "" },
        if plan.independent_rows { ", independent rows" } else { "" },
    )
}

/// Relative to the largest value: a weight is rounded to 2⁻¹¹ of itself in the sum of values and in the sum
/// of weights, and the output to f16, which devices may truncate, to 2⁻¹⁰.
const ROUNDING: f64 = 1.0 / 512.0;
/// Relative to the largest value, per unit of the scores' magnitude: matrix units accumulate in f32, with or
/// without extra bits.
const SCORE_ROUNDING: f64 = 1e-6;

/// Runs one step with one plan on random data and compares the result.
/// The plan itself, or the policy's where it takes a layout of fragments that the device does not have: only the device
/// knows.
fn supported_plan(device: &Device, step: &Step, plan: Plan) -> Result<Plan> {
    if !plan.softmax_in_registers || coopmat::fragments(device)? == Fragments::FourThreadsPerRow {
        return Ok(plan);
    }
    let other = policy::plan(device.caps(), Fragments::Other, &step.shape);
    let other = other.expect("cooperative matrices are supported");
    Ok(if plan.independent_rows { other.with_independent_rows(&step.shape) } else { other })
}

pub(super) fn run(device: &Device, step: &Step, kind: Kind, plan: Plan) -> Result<Comparison> {
    run_as(device, step, step, kind, plan)
}

/// The same with the rows and masks of the step `computed`, which must not pass as another one.
pub(super) fn run_as(
    device: &Device,
    computed: &Step,
    step: &Step,
    kind: Kind,
    plan: Plan,
) -> Result<Comparison> {
    let data = Data::new(step);
    let mut comparison = Comparison::default();
    let plan = supported_plan(device, step, plan)?;
    let o = attend(device, computed, kind, plan, &data, &mut comparison)?;
    let shape = &step.shape;
    let d = shape.head_dim as usize;
    let row = shape.heads as usize * d;
    let padded = row.next_multiple_of(QUAD);
    let (all_keys, all_values) = (reference::lines(&data.k), reference::lines(&data.v));
    for (i, (slot, position)) in (step.inactive_before..).zip(step.rows.iter().copied()) {
        for head in 0..shape.heads {
            let q = reference::query(&data.q[i * row + head as usize * d..][..d]);
            let element = |at| data.element(shape, slot, head / (shape.heads / shape.kv_heads), at);
            let range = step.range(slot, position);
            let keys: Vec<&[f64]> = range.clone().map(|at| &all_keys[element(at)..][..d]).collect();
            let values: Vec<&[f64]> = range.map(|at| &all_values[element(at)..][..d]).collect();
            let largest = values.iter().copied().flatten();
            let largest = largest.fold(0.0_f64, |largest, value| largest.max(value.abs()));
            let (want, magnitude) = exact::attention(&q, &keys, &values);
            let allowed = largest * (ROUNDING + SCORE_ROUNDING * magnitude);
            for (j, want) in want.into_iter().enumerate() {
                let got = value(&o, kind, i * padded, head as usize * d + j);
                let at = || format!("value {j} of head {head}, row {i} at position {position}");
                comparison.close(at, got, want, allowed);
            }
        }
    }
    let (first, words) = match kind {
        Kind::F16 => (row / 2, padded / 2),
        Kind::F32 => (row, padded),
    };
    for (i, word) in o.iter().enumerate() {
        if !(step.inactive_before..step.inactive_before + step.rows.len()).contains(&(i / words)) {
            comparison.equal(|| format!("word {i}, of an inactive row"), word, &POISON);
        } else if i % words >= first {
            comparison.equal(|| format!("word {i}, of a row's padding"), word, &POISON);
        }
    }
    Ok(comparison)
}

/// Value `k` of the column that starts at value `column`.
pub(super) fn value(o: &[u32], kind: Kind, column: usize, k: usize) -> f64 {
    match kind {
        Kind::F32 => f64::from(f32::from_bits(o[column + k])),
        Kind::F16 => {
            let at = column + f16_at(k);
            f16::from_bits((o[at / 2] >> (at % 2 * 16)) as u16).to_f64() * f64::from(F16_UNIT)
        }
    }
}

/// The output words of one run.
pub(super) fn attend(
    device: &Device,
    step: &Step,
    kind: Kind,
    plan: Plan,
    data: &Data,
    comparison: &mut Comparison,
) -> Result<Vec<u32>> {
    let shape = &step.shape;
    let mut arena = arena(device);
    let kv = KvLayer {
        shape: data.kv_shape,
        k: arena.buffer_from("keys", &stored::words(&data.k, &data.kv_shape))?,
        v: arena.buffer_from("values", &stored::words(&data.v, &data.kv_shape))?,
    };
    let (slots, positions, last_visible) = step.slots_and_positions();
    let columns = step.columns();
    let k = (shape.heads * shape.head_dim) as usize;
    let values = columns * k.next_multiple_of(QUAD);
    let words = if kind == Kind::F16 { values / 2 } else { values };
    let buffer = Output::new(&mut arena, words)?.buffer;
    let output = if kind == Kind::F16 { VectorData::F16(buffer) } else { VectorData::F32(buffer) };
    let o = Vectors { k, columns, data: output };
    let kernel = FlashAttention::with_plan(device, *shape, kind, plan)?;
    let operands = Operands {
        q: arena.buffer_from("q", &data.q)?.view(),
        kv: &kv,
        table: &KvTable { view: arena.buffer_from("table", &data.table)?.view(), stride: data.table_stride },
        positions: arena.buffer_from("positions", &positions)?.view(),
        last_visible: arena.buffer_from("last_visible", &last_visible)?.view(),
        slots: arena.buffer_from("slots", &slots)?.view(),
        active: arena.buffer_from("active", &step.active_rows())?.view(),
        chunk_ends: step
            .chunk_ends()
            .map(|ends| arena.buffer_from("chunk_ends", &ends))
            .transpose()?
            .map(|ends| ends.view()),
        o: &o,
        scratch: None,
    };
    let mut recorder = device.recorder()?;
    kernel.record(&mut recorder, "attention_flash", step.recorded_rows(), &operands)?;
    recorder.seal()?.run(TIMEOUT)?;
    let (VectorData::F16(buffer) | VectorData::F32(buffer)) = o.data else { unreachable!("created above") };
    Output::from_buffer(buffer, words).read(comparison)
}
