//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Recorder, Result, Tier};
use half::f16;
use tensor::KvScheme;

use super::{
    Operands, Shape, SplitQkv,
    policy::{self, Plan},
    reference,
};
use crate::{
    attention::kv::{KvLayer, KvShape, KvTable, reference as stored},
    case::{Case, Comparison, Output, POISON, Random, TIMEOUT, arena},
};

/// Positions of the rows: the first, both sides of page boundaries, the last.
const POSITIONS: [u32; 9] = [0, 1, 15, 16, 63, 64, 255, 700, 1023];
const MAX_POSITIONS: u32 = 1024;
/// Inactive rows after them.
const INACTIVE: usize = 2;
pub(super) const ROWS: usize = POSITIONS.len() + INACTIVE;
const SLOTS: u32 = 3;
const SCALE: f32 = 0.117_851_13;

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    let siglip = Shape { page_size: 16, ..policy::SIGLIP };
    let shapes = [
        policy::SIGLIP,
        siglip,
        Shape { heads: 3, kv_heads: 3, ..siglip },
        Shape { heads: 4, kv_heads: 2, head_dim: 40, ..siglip },
        Shape { heads: 7, kv_heads: 1, head_dim: 40, page_size: 64, ..siglip },
        Shape { heads: 1, kv_heads: 1, head_dim: 8, ..siglip },
    ];
    let f32_shapes = shapes.map(|shape| Shape { scheme: KvScheme::F32, ..shape });
    let all = shapes.into_iter().chain(f32_shapes).map(|shape| (shape, 0));
    let after_inactive = [shapes[3], f32_shapes[2]].map(|shape| (shape, 3));
    let none_active = [(shapes[4], POSITIONS.len())];
    all.chain(after_inactive).chain(none_active).map(|(shape, first)| case(shape, first)).collect()
}

fn case(shape: Shape, first: usize) -> Case {
    let pages = format!("{shape}, pages of {}", shape.page_size);
    let name = if first > 0 { format!("{pages}, after {first} inactive rows") } else { pages };
    Case::new(name, Tier::T0, move |device| run(device, shape, policy::plan(device.caps()), first))
}

/// The inputs of a case.
pub(super) struct Inputs {
    shape: Shape,
    kv: KvShape,
    qkv: Vec<f32>,
    stride: u32,
    bias: Vec<f32>,
    table: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    /// The rows before it are inactive too.
    first: usize,
}

/// The outputs of a case.
#[derive(Debug, PartialEq)]
pub(super) struct Outputs {
    pub q: Vec<u32>,
    pub k: Vec<u32>,
    pub v: Vec<u32>,
}

impl Inputs {
    pub fn new(shape: Shape, first: usize) -> Self {
        let mut random = Random::new(u64::from(shape.row()));
        let stride = shape.row() + 12;
        // From tiny (subnormal as f16) to large.
        let scales = [20.0, 1.0, 1e-3, 1e-6, 1e3];
        let mut qkv: Vec<f32> =
            (0..stride as usize * ROWS).map(|i| random.signed() * scales[i % scales.len()]).collect();
        let mut bias: Vec<f32> = (0..shape.row()).map(|_| random.signed() * 5.0).collect();
        bias.iter_mut().step_by(7).for_each(|bias| *bias *= 1e-6);
        // In row 3: the first key out of the range of f16; the last value a NaN.
        let row = 3 * stride as usize;
        qkv[row + (shape.heads * shape.head_dim) as usize] = -4e6;
        qkv[row + shape.row() as usize - 1] = f32::NAN;

        let table_stride = MAX_POSITIONS / shape.page_size;
        let mut table = vec![0; (SLOTS * table_stride) as usize];
        let slots: Vec<u32> = (0..ROWS as u32).map(|row| row % SLOTS).collect();
        let positions: Vec<u32> = POSITIONS.into_iter().chain([3; INACTIVE]).collect();
        // In reverse, so that page numbers and positions do not match by chance; page 0 is unused.
        for (row, (slot, position)) in slots.iter().zip(&positions).enumerate() {
            table[(slot * table_stride + position / shape.page_size) as usize] = (ROWS - row) as u32;
        }
        let kv = KvShape {
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            page_size: shape.page_size,
            pages: ROWS as u32 + 1,
            scheme: shape.scheme,
        };
        Self { shape, kv, qkv, stride, bias, table, positions, slots, first }
    }

    /// Runs what `record` records.
    pub fn run(
        &self,
        device: &Device,
        comparison: &mut Comparison,
        record: impl FnOnce(&mut Recorder, &Operands<'_>) -> Result<()>,
    ) -> Result<Outputs> {
        let mut arena = arena(device);
        let kv_words = (self.kv.bytes() / 4) as usize;
        let (k, v) = (Output::new(&mut arena, kv_words)?, Output::new(&mut arena, kv_words)?);
        let kv = KvLayer { shape: self.kv, k: k.buffer, v: v.buffer };
        let q = Output::new(&mut arena, ROWS * (self.shape.heads * self.shape.head_dim) as usize)?;
        let operands = Operands {
            qkv: arena.buffer_from("qkv", &self.qkv)?.view(),
            qkv_stride: self.stride,
            bias: arena.buffer_from("bias", &self.bias)?.view(),
            scale: SCALE,
            q: q.buffer.view(),
            kv: &kv,
            table: &KvTable {
                view: arena.buffer_from("table", &self.table)?.view(),
                stride: self.table.len() as u32 / SLOTS,
            },
            positions: arena.buffer_from("positions", &self.positions)?.view(),
            slots: arena.buffer_from("slots", &self.slots)?.view(),
            active: arena.buffer_from("active", &[self.first as u32, POSITIONS.len() as u32])?.view(),
        };
        let mut recorder = device.recorder()?;
        record(&mut recorder, &operands)?;
        recorder.seal()?.run(TIMEOUT)?;
        Ok(Outputs {
            q: q.read(comparison)?,
            k: Output::from_buffer(kv.k, kv_words).read(comparison)?,
            v: Output::from_buffer(kv.v, kv_words).read(comparison)?,
        })
    }

    fn page_of(&self, row: usize) -> u32 {
        let table_stride = MAX_POSITIONS / self.shape.page_size;
        self.table[(self.slots[row] * table_stride + self.positions[row] / self.shape.page_size) as usize]
    }

    fn compare(&self, comparison: &mut Comparison, outputs: &Outputs) {
        let Outputs { q, k, v } = outputs;
        let shape = &self.shape;
        let q_row = (shape.heads * shape.head_dim) as usize;
        // A sum and a product are rounded, in any direction.
        let exact = |want: f64| want.abs() * 0.5_f64.powi(22);
        let mut written = vec![false; k.len()];
        for row in self.first..POSITIONS.len() {
            let qkv = &self.qkv[row * self.stride as usize..][..shape.row() as usize];
            let (want_q, want_k, want_v) = reference::split_qkv(shape, qkv, &self.bias, SCALE);
            for (i, want) in want_q.into_iter().enumerate() {
                let got = f64::from(f32::from_bits(q[row * q_row + i]));
                comparison.close(|| format!("query {i} of row {row}"), got, want, exact(want));
            }
            for (words, mut want, what) in [(k, want_k, "key"), (v, want_v, "value")] {
                if shape.scheme == KvScheme::F16 {
                    let largest = f16::MAX.to_f64();
                    want.iter_mut().for_each(|value| *value = value.clamp(-largest, largest));
                }
                let rounding = stored::rounding(&want, shape.scheme);
                for (i, (want, rounding)) in want.into_iter().zip(rounding).enumerate() {
                    let (head, d) = (i as u32 / shape.head_dim, i as u32 % shape.head_dim);
                    let element = self.kv.element(self.page_of(row), head, self.positions[row], d);
                    for word in stored::words_of(&self.kv, element) {
                        written[word] = true;
                    }
                    let got = stored::value(words, &self.kv, element);
                    let at = || format!("{what} {i} of row {row}");
                    comparison.close_or_nan(at, got, want, rounding + exact(want));
                }
            }
        }
        let active = self.first * q_row..POSITIONS.len() * q_row;
        for (i, word) in q.iter().enumerate().filter(|(i, _)| !active.contains(i)) {
            comparison.equal(|| format!("query word {i}, of an inactive row"), word, &POISON);
        }
        for i in (0..k.len()).filter(|i| !written[*i]) {
            comparison.equal(|| format!("word {i} of the keys"), &k[i], &POISON);
            comparison.equal(|| format!("word {i} of the values"), &v[i], &POISON);
        }
    }
}

/// Runs one shape with one plan on random data. The rows before `first` are inactive too.
pub(super) fn run(device: &Device, shape: Shape, plan: Plan, first: usize) -> Result<Comparison> {
    let inputs = Inputs::new(shape, first);
    let mut comparison = Comparison::default();
    let outputs = inputs.run(device, &mut comparison, |recorder, operands| {
        SplitQkv::with_plan(device, shape, plan)?.record(recorder, "split QKV", ROWS as u32, operands)
    })?;
    inputs.compare(&mut comparison, &outputs);
    Ok(comparison)
}
