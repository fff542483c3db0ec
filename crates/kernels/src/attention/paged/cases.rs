//! Self-test cases: the kernel against its reference.

use std::ops::Range;

use gpu::{Caps, Device, Result, Tier};
use tensor::{KvScheme, QUAD};

use super::{Mode, Operands, PagedAttention, policy, policy::Plan, policy::Shape, reference};
use crate::{
    Vectors,
    attention::kv::{KvLayer, KvShape, KvTable, reference as stored},
    case::{Case, Comparison, Output, POISON, Random, TIMEOUT, arena},
    vectors::VectorData,
};

/// One step: its rows and its data.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub shape: Shape,
    pub mode: Mode,
    /// Slot and position of each active row.
    pub rows: Vec<(u32, u32)>,
    /// Slot and positions of each image: rows of an image see each other in both directions.
    pub images: Vec<(u32, Range<u32>)>,
    /// Inactive rows before and after the active ones.
    pub inactive_before: usize,
    pub inactive_after: usize,
    /// Largest magnitude of the queries; keys and values are between −1 and 1.
    pub query_scale: f32,
}

impl Step {
    /// All rows, active or not.
    pub fn columns(&self) -> usize {
        self.inactive_before + self.rows.len() + self.inactive_after
    }

    /// Rows that the kernel is recorded for.
    pub fn recorded_rows(&self) -> u32 {
        (self.rows.len() + self.inactive_after) as u32
    }

    /// The first active row, and the end of the active rows.
    pub fn active_rows(&self) -> [u32; 2] {
        [self.inactive_before as u32, (self.inactive_before + self.rows.len()) as u32]
    }

    /// The last position that a row sees.
    pub fn last_visible(&self, slot: u32, position: u32) -> u32 {
        let image = self.images.iter().find(|(of, positions)| *of == slot && positions.contains(&position));
        image.map_or(position, |(_, positions)| positions.end - 1)
    }

    /// Positions that a row attends to.
    pub fn range(&self, slot: u32, position: u32) -> std::ops::RangeInclusive<u32> {
        reference::range(position, self.last_visible(slot, position), self.shape.window)
    }

    /// The same rows with these images.
    pub fn with_images(self, images: &[(u32, Range<u32>)]) -> Self {
        Self { images: images.to_vec(), ..self }
    }

    /// End row of each prefill chunk, followed by two entries that the kernel must ignore. None for decode, and
    /// for a single chunk that starts at row 0.
    pub fn chunk_ends(&self) -> Option<Vec<u32>> {
        let chunks = self.rows.chunk_by(|a, b| a.0 == b.0);
        let mut ends: Vec<u32> = chunks
            .scan(self.inactive_before as u32, |end, chunk| {
                *end += chunk.len() as u32;
                Some(*end)
            })
            .collect();
        let needed = self.mode == Mode::Prefill && (ends.len() > 1 || self.inactive_before > 0);
        ends.extend([3, u32::MAX]);
        needed.then_some(ends)
    }

    /// Slots, positions and last visible positions of all rows, active or not.
    pub fn slots_and_positions(&self) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let others = |count| std::iter::repeat_n((0, 3, 3), count);
        let rows = self.rows.iter().map(|(slot, at)| (*slot, *at, self.last_visible(*slot, *at)));
        others(self.inactive_before).chain(rows).chain(others(self.inactive_after)).collect()
    }
}

const GEMMA: Shape = Shape {
    heads: 4,
    kv_heads: 1,
    head_dim: 256,
    page_size: 16,
    scheme: KvScheme::F16,
    window: 0,
    context_length: 4096,
};

/// Rows at these positions, each of its own slot.
fn decode(shape: Shape, positions: &[u32]) -> Step {
    let rows = (0..).zip(positions.iter().copied()).collect();
    Step {
        shape,
        mode: Mode::Decode,
        rows,
        images: vec![],
        inactive_before: 0,
        inactive_after: 1,
        query_scale: 1.0,
    }
}

/// `count` rows at consecutive positions.
pub(crate) fn prefill(shape: Shape, first: u32, count: u32) -> Step {
    let rows = (first..first + count).map(|position| (1, position)).collect();
    Step {
        shape,
        mode: Mode::Prefill,
        rows,
        images: vec![],
        inactive_before: 0,
        inactive_after: 2,
        query_scale: 1.0,
    }
}

/// Chunks of several sequences: first position and row count of each. Slots are in descending order, so that
/// no slot equals its chunk's index.
pub(crate) fn prefills(shape: Shape, chunks: &[(u32, u32)]) -> Step {
    let slots = (0..chunks.len() as u32).rev();
    let rows = chunks
        .iter()
        .zip(slots)
        .flat_map(|((first, count), slot)| (*first..first + count).map(move |at| (slot, at)));
    Step {
        shape,
        mode: Mode::Prefill,
        rows: rows.collect(),
        images: vec![],
        inactive_before: 0,
        inactive_after: 2,
        query_scale: 1.0,
    }
}

/// Images of an encoder with these numbers of patches: all rows of an image see each other.
pub(crate) fn encoder(shape: Shape, patches: &[u32]) -> Step {
    let chunks: Vec<(u32, u32)> = patches.iter().map(|count| (0, *count)).collect();
    let slots = (0..patches.len() as u32).rev();
    let images = slots.zip(patches).map(|(slot, count)| (slot, 0..*count)).collect();
    Step { images, ..prefills(shape, &chunks) }
}

/// Image blocks in a prompt: inside a chunk, at its start and end, next to each other, longer than the window,
/// and in two sequences.
pub(crate) fn image_steps(shape: Shape) -> Vec<Step> {
    let window = |window| Shape { window, ..shape };
    vec![
        prefill(shape, 20, 40).with_images(&[(1, 27..48)]),
        prefill(window(30), 20, 40).with_images(&[(1, 20..33), (1, 33..37), (1, 45..60)]),
        prefill(window(12), 61, 37).with_images(&[(1, 64..95)]),
        Step {
            inactive_before: 3,
            ..prefills(window(30), &[(70, 21), (0, 19)]).with_images(&[(1, 75..86), (0, 0..17)])
        },
    ]
}

/// Covers every head length, group size and scheme, and ranges around the boundaries of pages, blocks and
/// windows.
pub(super) fn steps() -> Vec<Step> {
    let small = Shape { heads: 2, head_dim: 64, ..GEMMA };
    let long = Shape { head_dim: 512, ..GEMMA };
    let patch = Shape { heads: 2, kv_heads: 2, head_dim: 72, ..GEMMA };
    let lengths = [0, 1, 62, 63, 64, 299];
    vec![
        decode(GEMMA, &lengths),
        decode(Shape { page_size: 64, scheme: KvScheme::F32, ..GEMMA }, &[300, 0, 64]),
        decode(Shape { window: 40, page_size: 64, ..GEMMA }, &[299, 39, 40, 7]),
        decode(Shape { heads: 4, kv_heads: 2, head_dim: 128, window: 100, ..GEMMA }, &lengths),
        decode(Shape { window: 1, ..small }, &[0, 77]),
        decode(Shape { heads: 7, page_size: 64, ..small }, &[130, 5]),
        decode(Shape { heads: 8, head_dim: 80, kv_heads: 8, scheme: KvScheme::F32, ..GEMMA }, &[64, 200]),
        decode(Shape { heads: 3, head_dim: 96, kv_heads: 3, ..GEMMA }, &[65, 2]),
        decode(Shape { scheme: KvScheme::Int8, ..GEMMA }, &lengths),
        decode(Shape { heads: 3, head_dim: 96, kv_heads: 3, scheme: KvScheme::Int8, ..GEMMA }, &[65, 2]),
        Step { query_scale: 14.0, ..decode(small, &[299, 64, 131]) },
        prefill(GEMMA, 0, 17),
        prefill(Shape { window: 40, page_size: 64, ..GEMMA }, 250, 13),
        prefill(Shape { heads: 4, kv_heads: 2, head_dim: 128, scheme: KvScheme::F32, ..GEMMA }, 61, 9),
        prefill(Shape { window: 30, ..small }, 20, 40),
        prefill(Shape { heads: 7, ..small }, 3, 5),
        prefill(Shape { heads: 4, kv_heads: 4, head_dim: 80, ..GEMMA }, 10, 12),
        prefill(Shape { heads: 1, head_dim: 96, page_size: 64, ..GEMMA }, 64, 1),
        prefill(Shape { window: 30, scheme: KvScheme::Int8, ..small }, 20, 40),
        prefill(
            Shape { heads: 4, kv_heads: 2, head_dim: 128, page_size: 64, scheme: KvScheme::Int8, ..GEMMA },
            61,
            9,
        ),
        Step { query_scale: 14.0, ..prefill(small, 120, 10) },
        // Several prompts: some of one row, some of exactly one tile or one row more.
        prefills(small, &[(0, 1), (70, 8), (0, 9), (5, 1), (0, 16), (130, 3)]),
        Step {
            inactive_before: 2,
            ..prefills(Shape { window: 30, scheme: KvScheme::Int8, ..GEMMA }, &[(61, 5), (0, 2), (40, 4)])
        },
        // After rows of other sequences.
        Step { inactive_before: 3, ..prefill(Shape { window: 40, ..small }, 50, 11) },
        Step { inactive_before: 5, ..decode(small, &[131, 299]) },
        decode(Shape { heads: 8, ..long }, &[64, 0, 299]),
        decode(Shape { heads: 4, kv_heads: 4, page_size: 64, scheme: KvScheme::F32, ..long }, &[0, 130]),
        decode(Shape { heads: 4, kv_heads: 2, window: 40, scheme: KvScheme::Int8, ..long }, &[65, 2]),
        prefill(Shape { heads: 8, ..long }, 61, 5),
        prefill(Shape { heads: 4, kv_heads: 2, scheme: KvScheme::Int8, ..long }, 10, 9),
        decode(small, &[131, 40, 65]).with_images(&[(0, 130..299), (1, 38..70), (2, 60..66)]),
        decode(Shape { window: 20, ..small }, &[70, 40]).with_images(&[(0, 64..132), (1, 8..41)]),
        encoder(patch, &[19, 33, 1]),
        encoder(Shape { scheme: KvScheme::F32, ..patch }, &[21]),
        decode(Shape { scheme: KvScheme::F32, ..patch }, &[64, 3]).with_images(&[(1, 0..50)]),
    ]
    .into_iter()
    .chain(image_steps(small))
    .collect()
}

pub(super) fn cases(caps: &Caps) -> Vec<Case> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    let mut list = Vec::new();
    for (tier, (i, step)) in
        tiers.flat_map(|tier| steps().into_iter().enumerate().map(move |step| (tier, step)))
    {
        let plan = policy::at_tier(caps, &step.shape, step.mode, tier);
        // One split and several, regardless of the policy; alternating at T0, because CPU drivers compile it
        // slowly.
        let splits: &[u32] = match (step.mode, tier) {
            (Mode::Prefill, _) => &[1],
            (Mode::Decode, Tier::T0) => {
                if i % 2 == 0 {
                    &[3]
                } else {
                    &[1]
                }
            }
            (Mode::Decode, _) => &[1, 3],
        };
        for splits in splits {
            let plan = Plan { splits: *splits, min_split: 32, ..plan };
            let step = step.clone();
            list.push(Case::new(name(&step, &plan), tier, move |device| run(device, &step, plan)));
        }
    }
    list
}

fn name(step: &Step, plan: &Plan) -> String {
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
        "{:?} of {} rows{chunks} from {}{before}{images}, {}/{} × {} {}, pages of {}{window}{scores}, splits {}",
        step.mode,
        step.rows.len(),
        step.rows[0].1,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.scheme,
        shape.page_size,
        plan.splits,
    )
}

/// The images of a step, for the name of its case.
pub(crate) fn images(step: &Step) -> String {
    if step.images.is_empty() {
        return String::new();
    }
    let ranges: Vec<String> = step.images.iter().map(|(_, image)| format!("{image:?}")).collect();
    format!(", images {}", ranges.join(" "))
}

/// Runs one step with one plan on random data and compares the result.
pub(super) fn run(device: &Device, step: &Step, plan: Plan) -> Result<Comparison> {
    run_as(device, step, step, plan)
}

/// The same with the rows and masks of the step `computed`, which must not pass as another one.
pub(super) fn run_as(device: &Device, computed: &Step, step: &Step, plan: Plan) -> Result<Comparison> {
    let data = Data::new(step);
    let mut comparison = Comparison::default();
    let o = attend(device, computed, plan, &data, &mut comparison)?;
    let shape = &step.shape;
    let d = shape.head_dim as usize;
    let row = shape.heads as usize * d;
    let padded = row.next_multiple_of(QUAD);
    for (i, (slot, position)) in (step.inactive_before..).zip(step.rows.iter().copied()) {
        for head in 0..shape.heads {
            let q = &data.q[i * row + head as usize * d..][..d];
            let element = |at| data.element(shape, slot, head / (shape.heads / shape.kv_heads), at);
            let range = step.range(slot, position);
            let keys: Vec<&[f64]> = range.clone().map(|at| &data.k[element(at)..][..d]).collect();
            let values: Vec<&[f64]> = range.map(|at| &data.v[element(at)..][..d]).collect();
            let (want, magnitude) = reference::attention(q, &keys, &values);
            for (j, want) in want.into_iter().enumerate() {
                let got = f64::from(f32::from_bits(o[i * padded + head as usize * d + j]));
                let at = || format!("value {j} of head {head}, row {i} at position {position}");
                comparison.close(at, got, want, 2e-6 + 5e-7 * magnitude);
            }
        }
        for j in row..padded {
            comparison.equal(|| format!("padding {j} of row {i}"), &o[i * padded + j], &POISON);
        }
    }
    let active = step.inactive_before * padded..(step.inactive_before + step.rows.len()) * padded;
    for (i, word) in o.iter().enumerate().filter(|(i, _)| !active.contains(i)) {
        comparison.equal(|| format!("word {i}, of an inactive row"), word, &POISON);
    }
    Ok(comparison)
}

/// Queries, and a cache with randomly assigned pages.
pub(crate) struct Data {
    pub q: Vec<f32>,
    pub kv_shape: KvShape,
    pub table: Vec<u32>,
    pub table_stride: u32,
    /// As stored: rounded, and NaN wherever no row attends.
    pub k: Vec<f64>,
    pub v: Vec<f64>,
}

impl Data {
    pub fn new(step: &Step) -> Self {
        let shape = &step.shape;
        let mut random = Random::new(u64::from(shape.heads * 1009 + shape.head_dim + step.rows[0].1));
        let slots = step.rows.iter().map(|(slot, _)| slot + 1).max().unwrap_or(1);
        let seen = step.rows.iter().map(|(slot, position)| step.last_visible(*slot, *position) + 1);
        let longest = seen.max().unwrap_or(1);
        let table_stride = longest.div_ceil(shape.page_size) + 1;
        // Page 0 is unused: table entries that no row may read point to it.
        let pages = slots * table_stride + 1;
        let kv_shape = KvShape {
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            page_size: shape.page_size,
            pages,
            scheme: shape.scheme,
        };
        let mut free: Vec<u32> = (1..pages).collect();
        let mut table = vec![0; (slots * table_stride) as usize];
        let elements = kv_shape.elements() as usize;
        let (mut k, mut v) = (vec![f64::NAN; elements], vec![f64::NAN; elements]);
        for (slot, position) in step.rows.iter().copied() {
            for at in step.range(slot, position) {
                let entry = &mut table[(slot * table_stride + at / shape.page_size) as usize];
                if *entry == 0 {
                    *entry = free.swap_remove(random.integer(0, free.len() as i64 - 1) as usize);
                }
                for head in 0..shape.kv_heads {
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
        let rows = step.columns() as u32;
        let q =
            (0..rows * shape.heads * shape.head_dim).map(|_| random.signed() * step.query_scale).collect();
        Self { q, kv_shape, table, table_stride, k, v }
    }

    pub fn element(&self, shape: &Shape, slot: u32, head: u32, position: u32) -> usize {
        let page = self.table[(slot * self.table_stride + position / shape.page_size) as usize];
        self.kv_shape.element(page, head, position, 0) as usize
    }
}

/// The output words of one run.
pub(super) fn attend(
    device: &Device,
    step: &Step,
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
    let length = columns * k.next_multiple_of(QUAD);
    let output = Output::new(&mut arena, length)?;
    let o = Vectors { k, columns, data: VectorData::F32(output.buffer) };
    let kernel = PagedAttention::with_plan(device, *shape, plan)?;
    let scratch = match kernel.scratch_bytes(step.recorded_rows()) {
        0 => None,
        bytes => Some(Output::new(&mut arena, (bytes / 4) as usize)?),
    };
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
        scratch: scratch.as_ref().map(|scratch| scratch.buffer.view()),
    };
    let mut recorder = device.recorder()?;
    kernel.record(&mut recorder, "attention_paged", step.recorded_rows(), &operands)?;
    recorder.seal()?.run(TIMEOUT)?;
    if let Some(scratch) = scratch {
        scratch.read(comparison)?;
    }
    let VectorData::F32(buffer) = o.data else { unreachable!("created above") };
    Output::from_buffer(buffer, length).read(comparison)
}
