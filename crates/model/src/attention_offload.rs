//! Attention of prefill chunks on the NPU: the products of queries with keys, and of weights with values.
//!
//! ```text
//! GPU program: … QKV, RoPE ─ queries ─▶ host ─▶ NPU: queries · keysᵀ ─▶ host: softmax ─▶ NPU: weights · values
//!                                       ▲ pages of keys and values                      │
//!                                                                     GPU program: … ◀──┘ attention's output
//! ```
//!
//! The softmax is computed on the host, which has to scale the sums of the first product and to round the weights for
//! the second anyway: on the GPU it would take two more copies of all scores.
//!
//! A step that does not end on the NPU is repeated by the GPU's own program; it writes the same keys and values again. What
//! earlier chunks of a prompt have computed stays.

use std::{cell::RefCell, collections::HashMap, ops::Range, time::Duration};

use checkpoint::{Attention, Config};
use gpu::{Buffer, Device, Memory, Program, Recorder};
use half::f16;
use kernels::{KvShape, Vectors};
use npu::{
    matmul::{Declined, Mode},
    settings::Settings,
};
use tensor::KvScheme;

use crate::{
    Result,
    kv_cache::KvCache,
    npu_operation::{Interruption, NpuOperation},
    offload::host_buffer,
    programs::ProgramKey,
    state::Row,
};

/// Maximum context length. It bounds the scores of a KV head in host memory: 4 bytes per row, query head and token of
/// context.
const MAX_CONTEXT: u32 = 4096;

/// A language model's attention on the NPU.
pub(crate) struct AttentionOffload {
    npu: NpuOperation,
    copies: Option<HostCopies>,
    /// They all use the same copies.
    steps: HashMap<ProgramKey, CutStep>,
}

/// The host's copies of a layer's queries and of attention's output, for the layers of all steps: they run one after the
/// other.
struct HostCopies {
    /// Rows that they have room for.
    rows: usize,
    queries: Buffer,
    output: Buffer,
}

/// Cuts a step where layers attend, while it is recorded.
pub(crate) struct AttentionCuts<'a> {
    device: &'a Device,
    copies: &'a HostCopies,
    cuts: RefCell<Vec<(Recorder, AttendingLayer)>>,
}

/// A layer between two programs.
struct AttendingLayer {
    number: u32,
    attention: Attention,
    /// Values from one row of the output to the next.
    output_stride: usize,
}

/// A step that is cut.
pub(crate) struct CutStep {
    stages: Vec<(Program, AttendingLayer)>,
    last: Program,
}

impl HostCopies {
    /// For steps of this many rows.
    fn new(device: &Device, config: &Config, rows: usize) -> Result<Self> {
        let bytes = Self::bytes(config, rows);
        let queries = host_buffer(device, "queries for the NPU", Memory::Readback, bytes)?;
        let mut output = host_buffer(device, "attention of the NPU", Memory::Upload, bytes)?;
        // Rows that are not in use are copied too.
        output.bytes_mut()?.fill(0);
        Ok(Self { rows, queries, output })
    }

    /// Bytes of each of the two: f32, in the widest layer, whose rows begin at multiples of four values.
    fn bytes(config: &Config, rows: usize) -> u64 {
        let widest = config.attentions().map(|attention| attention.query_rows()).max().unwrap_or(0);
        u64::from(widest.next_multiple_of(4)) * rows as u64 * 4
    }
}

impl AttentionCuts<'_> {
    /// Ends the program with a copy of the queries, and begins one with a copy of attention's output.
    pub fn cut(
        &self,
        recorder: &mut Recorder,
        number: u32,
        attention: &Attention,
        q: &Buffer,
        output: (&Vectors, &Buffer),
    ) -> Result<()> {
        let (vectors, floats) = output;
        recorder.copy("queries for the NPU", q, self.copies.queries.slice(0..q.len())?)?;
        let mut next = self.device.recorder()?;
        next.copy("attention of the NPU", self.copies.output.slice(0..floats.len())?, floats)?;
        let layer = AttendingLayer { number, attention: *attention, output_stride: vectors.stride() };
        self.cuts.borrow_mut().push((std::mem::replace(recorder, next), layer));
        Ok(())
    }

    /// Compiles and seals the step, whose last recorder is given.
    pub fn seal(self, last: Recorder) -> Result<CutStep> {
        let cuts = self.cuts.into_inner();
        let recorders = cuts.iter().map(|(recorder, _)| recorder).chain([&last]);
        let pipelines: Vec<_> = recorders.flat_map(|recorder| recorder.pipelines()).collect();
        self.device.compile(&pipelines)?;
        let stages = cuts.into_iter().map(|(recorder, layer)| Ok((recorder.seal()?, layer)));
        Ok(CutStep { stages: stages.collect::<Result<Vec<_>>>()?, last: last.seal()? })
    }
}

impl AttentionOffload {
    /// Tests the NPU for the attention of a model, if that is forced and its options do not exclude it.
    pub fn start(settings: &Settings, model: &str, scheme: KvScheme, reproducible: bool) -> Self {
        let name = format!("attention of {model}");
        let npu = match (reproducible, scheme) {
            // Steps of several sequences and short chunks run on the GPU, whose results differ in the fourth digit.
            (true, _) => NpuOperation::without(
                settings,
                &name,
                "logits would depend on the batch, but they are to be reproducible",
            ),
            (_, KvScheme::Int8) => {
                NpuOperation::without(settings, &name, "the KV cache is int8; use --kv f16")
            }
            _ if settings.mode() == Mode::Auto => NpuOperation::without(
                settings,
                &name,
                "the speed of attention is not compared, so it uses the NPU only if that is forced",
            ),
            _ => NpuOperation::start(settings, &name),
        };
        npu.log_decision();
        Self { npu, copies: None, steps: HashMap::new() }
    }

    /// Whether the NPU takes a prefill step of these rows: they belong to one sequence, and are more than a verify step
    /// has, whose rows must get the bits of single ones.
    pub fn takes(&self, rows: &[Row], max_verify_rows: usize) -> bool {
        let same = rows.iter().all(|row| row.slot == rows[0].slot);
        let last = rows.iter().map(|row| row.last_visible).max().unwrap_or(0);
        self.npu.is_used() && rows.len() > max_verify_rows && same && last < MAX_CONTEXT
    }

    /// Whether a step has been recorded.
    pub fn has(&self, key: ProgramKey) -> bool {
        self.steps.contains_key(&key)
    }

    /// Cuts for a step of this many rows. If earlier steps were shorter, the host's copies are replaced by longer ones.
    pub fn cuts<'a>(
        &'a mut self,
        device: &'a Device,
        config: &Config,
        rows: usize,
    ) -> Result<AttentionCuts<'a>> {
        let copies = match self.copies.take().filter(|copies| copies.rows >= rows) {
            Some(copies) => copies,
            None => {
                // They keep the shorter copies in memory, and are recorded again when they are used.
                self.steps.clear();
                HostCopies::new(device, config, rows)?
            }
        };
        Ok(AttentionCuts { device, copies: self.copies.insert(copies), cuts: RefCell::default() })
    }

    /// Adds a recorded step.
    pub fn add(&mut self, key: ProgramKey, step: CutStep) {
        self.steps.insert(key, step);
    }

    /// Runs a step whose inputs have been written.
    pub fn run(
        &mut self,
        key: ProgramKey,
        rows: &[Row],
        cache: &KvCache,
        device: &Device,
        timeout: Duration,
    ) -> Result<(), Interruption> {
        let Self { npu, copies, steps } = self;
        let (Some(CutStep { stages, last }), Some(copies)) = (steps.get(&key), copies) else {
            return Err(Declined::Refused("the step was not recorded".to_owned()).into());
        };
        let submit = |program: &Program| -> Result<()> {
            let ticket = device.submit(&[program])?;
            Ok(device.wait(ticket, timeout)?)
        };
        for (program, layer) in stages {
            submit(program)?;
            let attended = layer.attend(npu, &copies.queries, rows, cache)?;
            let width = layer.attention.query_rows() as usize;
            let values: &mut [f32] = bytemuck::cast_slice_mut(copies.output.bytes_mut()?);
            for (row, attended) in attended.chunks_exact(width).enumerate() {
                values[row * layer.output_stride..][..width].copy_from_slice(attended);
            }
        }
        Ok(submit(last)?)
    }

    /// A step did not end on the NPU: see [`NpuOperation::fall_back`].
    pub fn fall_back(&mut self, interruption: Interruption) -> Result<()> {
        self.npu.fall_back(interruption)?;
        self.steps.clear();
        self.copies = None;
        Ok(())
    }
}

impl AttendingLayer {
    /// softmax(queries · keysᵀ) · values for all rows and heads.
    fn attend(
        &self,
        npu: &mut NpuOperation,
        queries: &Buffer,
        rows: &[Row],
        cache: &KvCache,
    ) -> Result<Vec<f32>, Interruption> {
        let Attention { heads, kv_heads, head_dim, .. } = self.attention;
        let (heads, head_dim) = (heads as usize, head_dim as usize);
        let group = heads / kv_heads as usize;
        let visible: Vec<Range<u32>> = rows.iter().map(|row| self.visible(row)).collect();
        let first = visible.iter().map(|range| range.start).min().unwrap_or(0);
        let end = visible.iter().map(|range| range.end).max().unwrap_or(0);
        let context = (end - first) as usize;
        let page_size = cache.limits().page_size;
        let pages =
            cache.pages_of(self.attention.span, rows[0].slot, first / page_size..end.div_ceil(page_size))?;
        let (keys, values) = cache.read_pages(self.number as usize, &pages)?;
        let shape = cache.layer(self.number as usize).shape;
        let mut q = vec![0f32; rows.len() * heads * head_dim];
        queries.read(0, bytemuck::cast_slice_mut(&mut q))?;
        let mut attended = vec![0f32; q.len()];
        let at = |row: usize, head: usize| (row * heads + head) * head_dim;
        for kv_head in 0..kv_heads {
            let read = |bytes: &[u8], position: u32, d: usize| {
                // In the copy, pages are consecutive.
                let page = position / page_size - first / page_size;
                element(bytes, &shape, shape.element(page, kv_head, position, d as u32))
            };
            let positions = first..end;
            let keys_of_head: Vec<f32> = positions
                .clone()
                .flat_map(|position| (0..head_dim).map(move |d| (position, d)))
                .map(|(position, d)| read(&keys, position, d))
                .collect();
            let values_of_head: Vec<f32> = (0..head_dim)
                .flat_map(|d| positions.clone().map(move |position| (position, d)))
                .map(|(position, d)| read(&values, position, d))
                .collect();
            let own = kv_head as usize * group..(kv_head as usize + 1) * group;
            let pairs = || (0..rows.len()).flat_map(|row| own.clone().map(move |head| (row, head)));
            let queries_of_head: Vec<f32> =
                pairs().flat_map(|(row, head)| q[at(row, head)..][..head_dim].iter().copied()).collect();
            let mut scores = npu.multiply_once(head_dim, &queries_of_head, &keys_of_head)?;
            for ((row, _), scores) in pairs().zip(scores.chunks_exact_mut(context)) {
                let range = &visible[row];
                softmax(scores, (range.start - first) as usize..(range.end - first) as usize);
            }
            let output = npu.multiply_once(context, &scores, &values_of_head)?;
            for ((row, head), output) in pairs().zip(output.chunks_exact(head_dim)) {
                attended[at(row, head)..][..head_dim].copy_from_slice(output);
            }
        }
        Ok(attended)
    }

    /// Positions that a row sees.
    fn visible(&self, row: &Row) -> Range<u32> {
        let last = if self.attention.whole_images { row.last_visible } else { row.position };
        let start =
            self.attention.span.window().map_or(0, |window| (row.position + 1).saturating_sub(window));
        start..last + 1
    }
}

/// Softmax over a range of scores; the others become zero.
fn softmax(scores: &mut [f32], visible: Range<usize>) {
    let largest = scores[visible.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (index, score) in scores.iter_mut().enumerate() {
        *score = if visible.contains(&index) { (*score - largest).exp() } else { 0.0 };
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// An element of keys or values.
fn element(bytes: &[u8], shape: &KvShape, index: u64) -> f32 {
    let index = index as usize;
    match shape.scheme {
        KvScheme::F16 => f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
        _ => f32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * index + byte])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_of_a_range() {
        let mut scores = [9.0, 1.0, 1.0 + 3f32.ln(), 5.0];
        softmax(&mut scores, 1..3);
        assert_eq!((scores[0], scores[3]), (0.0, 0.0));
        assert!((scores[1] - 0.25).abs() < 1e-6 && (scores[2] - 0.75).abs() < 1e-6, "{scores:?}");
    }
}
