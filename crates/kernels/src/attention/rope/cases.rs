//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};
use tensor::KvScheme;

use super::{
    Angles, KeysAndValues, Operands, QueryTemperature, Rope, Rotation, Shape, Tables, grid_angles,
    inverse_frequencies, policy, reference,
};
use crate::{
    attention::kv::{KvLayer, KvShape, KvTable, reference as stored},
    case::{Case, Comparison, Output, POISON, Random, TIMEOUT, arena},
};

/// Positions of the rows: the first, both sides of a page boundary and of a step of the coarse table, the
/// last of 128k.
const POSITIONS: [u32; 9] = [0, 1, 15, 16, 255, 256, 4999, 65_536, 131_071];
const MAX_POSITIONS: u32 = 131_072;
/// Inactive rows after them.
const INACTIVE: usize = 2;
/// Coordinates of the rows in a grid, the inactive ones included: the first, each dimension alone, a wide and a high
/// image, the last of Gemma 4's table.
const GRID: [[u32; 2]; 11] = [
    [0, 0],
    [1, 0],
    [0, 1],
    [2, 3],
    [41, 17],
    [279, 8],
    [8, 279],
    [100, 1000],
    [10_239, 10_239],
    [1, 1],
    [1, 1],
];
/// The base of the angles of Gemma 4's image encoder.
const GRID_THETA: f64 = 100.0;
const EPSILON: f32 = 1e-6;
const SCALE: f32 = 0.0625;

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let plain = Shape {
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        page_size: 16,
        scheme: KvScheme::F16,
        keys_and_values: KeysAndValues::Projected,
        norm: false,
        value_norm: false,
        bias: false,
        rotation: Rotation::Halves,
        temperature: None,
        partials: 1,
    };
    let values_from_keys = Shape { keys_and_values: KeysAndValues::ValuesFromKeys, ..plain };
    // Position 4999 is the first with another scale.
    let temperature = Some(QueryTemperature { beta: 0.5, original: 4999 });
    let grid = Shape { rotation: Rotation::Grid, norm: true, value_norm: true, ..plain };
    let shared = Shape { keys_and_values: KeysAndValues::Shared, heads: 8, norm: true, ..plain };
    let shapes = [
        Shape { norm: true, ..plain },
        Shape { norm: true, scheme: KvScheme::F32, ..plain },
        plain,
        Shape { heads: 2, kv_heads: 2, head_dim: 128, norm: true, page_size: 64, ..plain },
        Shape { heads: 7, head_dim: 64, bias: true, ..plain },
        Shape { heads: 9, kv_heads: 3, head_dim: 64, rotation: Rotation::Interleaved, ..plain },
        Shape {
            heads: 3,
            head_dim: 80,
            norm: true,
            bias: true,
            rotation: Rotation::Interleaved,
            scheme: KvScheme::F32,
            ..plain
        },
        Shape { heads: 2, head_dim: 96, norm: true, ..plain },
        Shape { norm: true, scheme: KvScheme::Int8, ..plain },
        Shape {
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            rotation: Rotation::Interleaved,
            scheme: KvScheme::Int8,
            ..plain
        },
        Shape { heads: 2, head_dim: 96, bias: true, page_size: 64, scheme: KvScheme::Int8, ..plain },
        Shape { heads: 2, kv_heads: 2, head_dim: 128, norm: true, partials: 3, ..plain },
        Shape { heads: 8, head_dim: 512, norm: true, ..plain },
        Shape { heads: 4, head_dim: 512, norm: true, scheme: KvScheme::F32, ..plain },
        Shape { heads: 4, kv_heads: 2, head_dim: 512, norm: true, scheme: KvScheme::Int8, ..plain },
        Shape { kv_heads: 2, norm: true, value_norm: true, ..plain },
        Shape { heads: 8, head_dim: 512, norm: true, value_norm: true, ..values_from_keys },
        Shape { kv_heads: 2, norm: true, value_norm: true, scheme: KvScheme::Int8, ..values_from_keys },
        Shape { head_dim: 64, bias: true, partials: 3, scheme: KvScheme::F32, ..values_from_keys },
        Shape { head_dim: 512, ..shared },
        Shape { kv_heads: 2, head_dim: 64, scheme: KvScheme::Int8, partials: 2, ..shared },
        Shape { head_dim: 128, temperature, ..plain },
        Shape { heads: 3, kv_heads: 3, head_dim: 72, bias: true, page_size: 64, ..plain },
        Shape { heads: 12, kv_heads: 12, head_dim: 64, page_size: 64, ..grid },
        Shape { heads: 3, kv_heads: 3, head_dim: 72, ..grid },
        Shape { heads: 16, kv_heads: 16, head_dim: 72, scheme: KvScheme::F32, ..grid },
        Shape { head_dim: 8, norm: false, value_norm: false, bias: true, partials: 2, ..grid },
    ];
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    let after_inactive = [shapes[0], shapes[8]].map(|shape| (shape, 3));
    let steps = shapes.map(|shape| (shape, 0)).into_iter().chain(after_inactive);
    tiers.flat_map(|tier| steps.clone().map(move |(shape, first)| case(tier, shape, first))).collect()
}

fn case(tier: Tier, shape: Shape, first: usize) -> Case {
    let name = if first > 0 { format!("{shape}, after {first} inactive rows") } else { shape.to_string() };
    Case::new(name, tier, move |device| {
        run(device, shape, policy::at_tier(device.caps(), &shape, tier), first)
    })
}

/// Splits the first `row` values of each row into partial sums that add up to exactly these values; the rest of
/// the row follows unchanged.
pub(crate) fn split_into_partials(values: &[f32], stride: u32, row: u32, partials: u32) -> Vec<f32> {
    let split_row = |values: &[f32]| -> Vec<f32> {
        let (values, rest) = values.split_at(row as usize);
        // A half, a quarter, and so on, and the last fraction twice.
        let fractions = (1..=partials).map(|number| 0.5_f32.powi(number.min(partials - 1) as i32));
        fractions
            .flat_map(|fraction| values.iter().map(move |value| value * fraction))
            .chain(rest.iter().copied())
            .collect()
    };
    values.chunks(stride as usize).flat_map(split_row).collect()
}

/// Inverse frequencies; of heads of 512 only a quarter of the pairs rotate, as in Gemma 4, and of heads of 72
/// none.
pub(crate) fn frequencies(head_dim: u32) -> Vec<f64> {
    let mut frequencies = inverse_frequencies(head_dim as usize, 1e4, 1.0);
    if head_dim == 512 {
        frequencies[64..].fill(0.0);
    }
    if head_dim == 72 {
        frequencies.fill(0.0);
    }
    frequencies
}

/// The angles of a row in f64, in the order of [`reference::Row::angles`].
fn angles(shape: &Shape, row: usize) -> Vec<f64> {
    if shape.rotation == Rotation::Grid {
        let half = f64::from(shape.head_dim / 2);
        let frequencies = (0..shape.head_dim / 4).map(|i| GRID_THETA.powf(-2.0 * f64::from(i) / half));
        let angles = GRID[row].map(|at| frequencies.clone().map(move |frequency| f64::from(at) * frequency));
        angles.into_iter().flatten().collect()
    } else {
        let position = f64::from(POSITIONS[row]);
        frequencies(shape.head_dim).iter().map(|frequency| position * frequency).collect()
    }
}

/// Factor of cosines and sines: models with a query temperature use YaRN too.
pub(crate) fn rotation_scale(temperature: Option<QueryTemperature>) -> f64 {
    if temperature.is_some() { 1.25 } else { 1.0 }
}

/// Runs one shape with one plan on random data. The rows before `first` are inactive too.
pub(super) fn run(device: &Device, shape: Shape, plan: policy::Plan, first: usize) -> Result<Comparison> {
    run_as(device, shape, shape, plan, first)
}

/// The same with the kernel for the shape `computed`, which must not pass as another one.
pub(super) fn run_as(
    device: &Device,
    computed: Shape,
    shape: Shape,
    plan: policy::Plan,
    first: usize,
) -> Result<Comparison> {
    let rows = POSITIONS.len() + INACTIVE;
    let mut random = Random::new(u64::from(shape.row()));
    let mut floats =
        |count: u32, scale: f32| (0..count).map(|_| random.signed() * scale).collect::<Vec<f32>>();
    let stride = shape.row().max(computed.row()) + 6;
    let mut qkv = floats(stride * rows as u32, 20.0);
    let heads_before_values = match shape.keys_and_values {
        KeysAndValues::Projected => Some(shape.heads + shape.kv_heads),
        KeysAndValues::ValuesFromKeys => Some(shape.heads),
        KeysAndValues::Shared => None,
    };
    // Zeros, values below the smallest f16 scale, large values, and a NaN.
    for ((row, factor), heads) in
        [(1, 0.0), (2, 1e-8), (3, 1e3), (4, 1.0)].into_iter().zip(heads_before_values.into_iter().cycle())
    {
        let first = row * stride as usize + (heads * shape.head_dim) as usize;
        qkv[first..first + 32].iter_mut().for_each(|value| *value *= factor);
        if row == 4 && shape.scheme == KvScheme::Int8 {
            qkv[first + 5] = f32::NAN;
        }
    }
    let qkv = qkv;
    let bias = floats(shape.row(), 20.0);
    let (q_weight, k_weight) = (floats(shape.head_dim, 2.0), floats(shape.head_dim, 2.0));
    let frequencies = frequencies(shape.head_dim);
    let tables = Tables::scaled(&frequencies, MAX_POSITIONS as usize, rotation_scale(shape.temperature));
    let per_row: Vec<[f32; 2]> =
        GRID.iter().flat_map(|[x, y]| grid_angles(shape.head_dim as usize, GRID_THETA, *x, *y)).collect();

    // Rows are in two slots; page 0 is unused.
    let kv_shape = KvShape {
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        page_size: shape.page_size,
        pages: rows as u32 + 1,
        scheme: shape.scheme,
    };
    let table_stride = MAX_POSITIONS / shape.page_size;
    let mut table = vec![0_u32; 2 * table_stride as usize];
    let slots: Vec<u32> = (0..rows as u32).map(|row| (row + 1) % 2).collect();
    let positions: Vec<u32> = POSITIONS.into_iter().chain([3; INACTIVE]).collect();
    let entry = |row: usize| (slots[row] * table_stride + positions[row] / shape.page_size) as usize;
    // In reverse, so that page numbers and positions do not match by chance.
    for row in 0..rows {
        table[entry(row)] = (rows - row) as u32;
    }
    let page_of = |row: usize| table[entry(row)];

    let mut arena = arena(device);
    let kv_words = (kv_shape.bytes() / 4) as usize;
    let (k, v) = (Output::new(&mut arena, kv_words)?, Output::new(&mut arena, kv_words)?);
    let kv = KvLayer { shape: kv_shape, k: k.buffer, v: v.buffer };
    let q_row = (shape.heads * shape.head_dim) as usize;
    let q = Output::new(&mut arena, rows * q_row)?;
    let operands = Operands {
        qkv: arena
            .buffer_from("qkv", &split_into_partials(&qkv, stride, shape.row(), shape.partials))?
            .view(),
        qkv_stride: shape.row() * (shape.partials - 1) + stride,
        bias: if shape.bias { Some(arena.buffer_from("bias", &bias)?.view()) } else { None },
        q_weight: if computed.norm { Some(arena.buffer_from("weight", &q_weight)?.view()) } else { None },
        k_weight: if computed.norm && computed.keys_and_values != KeysAndValues::Shared {
            Some(arena.buffer_from("weight", &k_weight)?.view())
        } else {
            None
        },
        epsilon: EPSILON,
        scale: SCALE,
        angles: if computed.rotation == Rotation::Grid {
            Angles::PerRow(arena.buffer_from("angles", &per_row)?.view())
        } else {
            Angles::Tables {
                coarse: arena.buffer_from("coarse table", &tables.coarse)?.view(),
                fine: arena.buffer_from("fine table", &tables.fine)?.view(),
            }
        },
        q: q.buffer.view(),
        kv: &kv,
        table: &KvTable { view: arena.buffer_from("table", &table)?.view(), stride: table_stride },
        positions: arena.buffer_from("positions", &positions)?.view(),
        slots: arena.buffer_from("slots", &slots)?.view(),
        active: arena.buffer_from("active", &[first as u32, POSITIONS.len() as u32])?.view(),
    };
    let mut recorder = device.recorder()?;
    Rope::with_plan(device, computed, plan)?.record(&mut recorder, "rope", rows as u32, &operands)?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let q = q.read(&mut comparison)?;
    let k = Output::from_buffer(kv.k, kv_words).read(&mut comparison)?;
    let v = Output::from_buffer(kv.v, kv_words).read(&mut comparison)?;
    let mut written = vec![false; kv_words];
    for (row, position) in POSITIONS.into_iter().enumerate().skip(first) {
        let (want_q, want_k, want_v) = reference::rope(
            &shape,
            &reference::Row {
                qkv: &qkv[row * stride as usize..][..shape.row() as usize],
                bias: shape.bias.then_some(&bias),
                weights: shape.norm.then_some((&q_weight, &k_weight)),
                epsilon: EPSILON,
                scale: SCALE,
                position,
                angles: angles(&shape, row),
                rotation_scale: rotation_scale(shape.temperature),
            },
        );
        // Relative to the length of a pair, not to the value: rotation may leave a small difference of large
        // numbers.
        let largest = |values: &[f64]| values.iter().fold(0.0_f64, |max, value| max.max(value.abs()));
        let allowed = 1e-5 * largest(&want_q);
        for (i, want) in want_q.iter().enumerate() {
            let at = || format!("query {i} of row {row} at position {position}");
            comparison.close(at, f64::from(f32::from_bits(q[row * q_row + i])), *want, allowed);
        }
        for (words, want, what) in [(&k, want_k, "key"), (&v, want_v, "value")] {
            // Values without a bias and a norm are only stored, which must be exact. The rest is computed first.
            let (want, allowed) = if what == "value" && !shape.bias && !shape.value_norm {
                let mut rounded = want.clone();
                stored::round(&mut rounded, shape.scheme);
                (rounded, stored::tie_tolerance(&want, shape.scheme))
            } else {
                let exact = 1e-5 * largest(&want);
                let allowed =
                    stored::rounding(&want, shape.scheme).into_iter().map(|rounding| rounding + exact);
                (want, allowed.collect())
            };
            for (i, (want, allowed)) in want.into_iter().zip(allowed).enumerate() {
                let (head, d) = (i as u32 / shape.head_dim, i as u32 % shape.head_dim);
                let element = kv_shape.element(page_of(row), head, position, d);
                for word in stored::words_of(&kv_shape, element) {
                    written[word] = true;
                }
                let got = stored::value(words, &kv_shape, element);
                let at = || format!("{what} {i} of row {row} at position {position}");
                // A group that contains a NaN becomes NaN as a whole.
                comparison.close_or_nan(at, got, want, allowed);
            }
        }
    }
    let active = first * q_row..POSITIONS.len() * q_row;
    for (i, word) in q.iter().enumerate().filter(|(i, _)| !active.contains(i)) {
        comparison.equal(|| format!("query word {i}, of an inactive row"), word, &POISON);
    }
    for i in (0..kv_words).filter(|i| !written[*i]) {
        comparison.equal(|| format!("word {i} of the keys"), &k[i], &POISON);
        comparison.equal(|| format!("word {i} of the values"), &v[i], &POISON);
    }
    Ok(comparison)
}
