//! Products of an encoder on the NPU.
//!
//! The programs of a layer are recorded once and replayed. Where the NPU computes products, they are cut:
//!
//! ```text
//! GPU program ─ copy of x ─▶ host: round to 16 bits ─▶ NPU ─▶ host: scale ─ copy to y ─▶ GPU program ─ …
//! ```
//!
//! A batch that starts on the NPU and does not end there, whether a product failed or the GPU's part of it, is repeated from
//! its start by the GPU's own programs, so that its result is the GPU's bit by bit. From then on the encoder does not use
//! the NPU.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use gpu::{Arena, Buffer, Device, Lifetime, Memory, Program, Recorder, format_bytes};
use half::f16;
use kernels::{F16_UNIT, Matrix, OutputFormat, Target, VectorData, Vectors, f16_at};
use npu::{
    linear::Weights,
    matmul::{Computed, Declined},
    settings::Settings,
};

use crate::{
    Result,
    npu_operation::{Interruption, NpuOperation},
    state::TIMEOUT,
};

/// Timed runs of a benchmark, of which the shortest counts. One untimed warm-up run comes first.
const REPETITIONS: usize = 3;

/// An encoder's products on the NPU.
pub(crate) struct Offload {
    npu: NpuOperation,
    /// By the index of the encoder's matrix; `None` where the GPU multiplies it.
    weights: Vec<Option<Weights>>,
}

/// Rows that a product has in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// Those of the encoder.
    All,
    /// Those that are left after pooling.
    Pooled,
}

/// Numbers of [`Rows`] in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowCounts {
    pub all: usize,
    pub pooled: usize,
}

impl Offload {
    /// Tests the NPU for an operation, such as `embeddings of all-minilm`. [`Self::store`] has to follow, and with
    /// [`Mode::Auto`](npu::matmul::Mode::Auto) before that [`Self::compare`].
    pub fn start(settings: &Settings, operation: &str) -> Self {
        Self { npu: NpuOperation::start(settings, operation), weights: vec![] }
    }

    /// Stores the wanted matrices for the NPU, unless they are stored already. The GPU multiplies those that the NPU does
    /// not take, and all if there is too little system memory for a copy.
    pub fn store<'a>(
        &mut self,
        device: &Device,
        matrices: impl Iterator<Item = (bool, &'a Matrix)>,
    ) -> Result<()> {
        let matrices: Vec<(bool, &Matrix)> = matrices.collect();
        self.weights.resize_with(matrices.len(), || None);
        self.check_memory(&matrices);
        let mut refusal = None;
        for (number, (is_wanted, matrix)) in matrices.into_iter().enumerate() {
            if is_wanted && self.is_used() && self.weights[number].is_none() {
                let weights = read_matrix(device, matrix)?;
                match self.npu.linear().store(matrix.layout().k, &weights) {
                    Ok(weights) => self.weights[number] = Some(weights),
                    Err(declined) => refusal = Some(declined),
                }
            }
        }
        if self.is_used() && self.weights.iter().all(Option::is_none) {
            let reason = refusal.map_or(String::new(), |refusal| format!(": {refusal}"));
            self.npu.give_up(format!("it takes none of the model's matrices{reason}"));
        }
        let stored = self.weights.iter().flatten().map(|weights| weights.bytes() as u64).sum();
        self.npu.report_weights(stored);
        self.npu.report_decision();
        Ok(())
    }

    /// Does not use the NPU if the wanted matrices that are not stored yet take more system memory than is available.
    fn check_memory(&mut self, matrices: &[(bool, &Matrix)]) {
        let mut needed = 0;
        for ((is_wanted, matrix), stored) in matrices.iter().zip(&self.weights) {
            if *is_wanted && stored.is_none() {
                let layout = matrix.layout();
                // Those that the NPU does not take need none.
                needed += self.npu.linear().stored_bytes(layout.k, layout.rows).unwrap_or(0) as u64;
            }
        }
        if let Some(available) = self.npu.available_memory()
            && self.is_used()
            && needed > available
        {
            self.npu.give_up(format!(
                "its copy of the weights would take {} of system memory, of which {} are available",
                format_bytes(needed),
                format_bytes(available)
            ));
        }
    }

    /// Whether the NPU is used now.
    pub fn is_used(&self) -> bool {
        self.npu.is_used()
    }

    /// Whether [`Self::compare`] has to decide.
    pub fn needs_comparison(&self) -> bool {
        self.npu.needs_comparison()
    }

    /// Decides by the times of a batch with and without the NPU.
    pub fn compare(&mut self, batch: &str, npu: Duration, gpu: Duration) {
        self.npu.linear().matmul_mut().compare(batch, npu, gpu);
        self.npu.report_decision();
    }

    /// A run did not end on the NPU: see [`NpuOperation::fall_back`].
    pub fn fall_back(&mut self, interruption: Interruption) -> Result<()> {
        self.npu.fall_back(interruption)?;
        self.weights.clear();
        Ok(())
    }

    /// Logs where products are computed, and why.
    pub fn log_decision(&self) {
        self.npu.log_decision();
    }

    /// y = x · Wᵀ for the matrix with this index.
    fn multiply(&mut self, matrix: usize, x: &[f32]) -> Computed<Vec<f32>> {
        let weights = self.weights.get(matrix).and_then(Option::as_ref).ok_or(Declined::NotUsed)?;
        self.npu.multiply(x, weights)
    }

    /// Cuts programs where the NPU multiplies.
    pub fn cuts<'a>(&'a self, device: &'a Device) -> Cuts<'a> {
        let (inputs, outputs) = Default::default();
        Cuts { device, weights: &self.weights, cuts: RefCell::default(), inputs, outputs }
    }
}

/// The weights of a matrix, as kernels dequantise them.
fn read_matrix(device: &Device, matrix: &Matrix) -> Result<Vec<f32>> {
    let read = |buffer: &Buffer| -> Result<Vec<u8>> {
        let copy = host_buffer(device, "weights for the NPU", Memory::Readback, buffer.len())?;
        let mut recorder = device.recorder()?;
        recorder.copy("weights for the NPU", buffer, &copy)?;
        recorder.seal()?.run(TIMEOUT)?;
        Ok(copy.read_vec()?)
    };
    let mut weights = Vec::with_capacity(matrix.layout().rows * matrix.layout().k);
    for block in matrix.blocks() {
        let values = read(&block.values)?;
        let scales = block.scales.as_ref().map(read).transpose()?.unwrap_or_default();
        let scales: Vec<u16> = scales.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
        let layout = &block.layout;
        for row in 0..layout.rows {
            weights.extend((0..layout.k).map(|k| layout.value(&values, &scales, row, k)));
        }
    }
    Ok(weights)
}

/// A part of a layer.
enum Stage {
    Gpu(Program),
    Npu(Product),
}

/// A product between two programs.
struct Product {
    matrix: usize,
    rows: Rows,
    /// Index of the host's copy of x, whether it is f16, its values in a row, and from one row to the next.
    input: usize,
    is_f16: bool,
    k: usize,
    input_stride: usize,
    /// Index of the host's copy of y, the product's first value in a row, and values from one row to the next.
    output: usize,
    first: usize,
    output_stride: usize,
}

/// Cuts programs while they are recorded.
pub(crate) struct Cuts<'a> {
    device: &'a Device,
    weights: &'a [Option<Weights>],
    /// Programs of this layer that end with a product.
    cuts: RefCell<Vec<(Recorder, Product)>>,
    inputs: RefCell<Vec<Buffer>>,
    outputs: RefCell<Vec<Buffer>>,
}

impl Cuts<'_> {
    /// Whether the NPU multiplies all of these matrices. They fill a row of the target together.
    pub fn has_all(&self, mut matrices: impl Iterator<Item = usize>) -> bool {
        matrices.all(|matrix| self.weights.get(matrix).is_some_and(Option::is_some))
    }

    /// Ends the program with a copy of `x`, and begins one with a copy of the product to `target`. False if the NPU cannot
    /// compute this product: then nothing is recorded.
    pub fn cut(
        &self,
        recorder: &mut Recorder,
        matrix: usize,
        x: &Vectors,
        target: &Target,
        rows: Rows,
    ) -> Result<bool> {
        let (values, is_f16) = match &x.data {
            VectorData::F32(values) => (values, false),
            VectorData::F16(values) => (values, true),
            VectorData::Int8 { .. } | VectorData::Int16 { .. } => return Ok(false),
        };
        let is_f32 = matches!(target.format, OutputFormat::F32);
        if !is_f32 || !self.has_all(std::iter::once(matrix)) {
            return Ok(false);
        }
        let input = buffer_of(self.device, &self.inputs, Memory::Readback, values.len())?;
        let output = buffer_of(self.device, &self.outputs, Memory::Upload, target.y.len())?;
        recorder.copy("input for the NPU", values, &self.inputs.borrow()[input])?;
        let mut next = self.device.recorder()?;
        next.copy("output of the NPU", &self.outputs.borrow()[output], target.y.clone())?;
        let product = Product {
            matrix,
            rows,
            input,
            is_f16,
            k: x.k,
            input_stride: x.stride(),
            output,
            first: target.first,
            output_stride: target.stride,
        };
        self.cuts.borrow_mut().push((std::mem::replace(recorder, next), product));
        Ok(true)
    }

    /// The first layers. `layer` records one, from a recorder to the one that is left after its cuts.
    pub fn programs(
        self,
        layers: u32,
        mut layer: impl FnMut(&Self, u32, Recorder) -> Result<Recorder>,
    ) -> Result<CutPrograms> {
        let mut recorded = vec![];
        for number in 0..layers {
            let last = layer(&self, number, self.device.recorder()?)?;
            recorded.push((self.cuts.take(), last));
        }
        let recorders =
            recorded.iter().flat_map(|(cuts, last)| cuts.iter().map(|(recorder, _)| recorder).chain([last]));
        let pipelines: Vec<_> = recorders.flat_map(|recorder| recorder.pipelines()).collect();
        self.device.compile(&pipelines)?;
        let seal = |(cuts, last): (Vec<(Recorder, Product)>, Recorder)| -> Result<Vec<Stage>> {
            let mut stages = vec![];
            for (recorder, product) in cuts {
                stages.extend([Stage::Gpu(recorder.seal()?), Stage::Npu(product)]);
            }
            stages.push(Stage::Gpu(last.seal()?));
            Ok(stages)
        };
        let layers = recorded.into_iter().map(seal).collect::<Result<Vec<_>>>()?;
        Ok(CutPrograms { layers, inputs: self.inputs.into_inner(), outputs: self.outputs.into_inner() })
    }
}

/// The index of a buffer with this length, for any product: they run one after the other.
fn buffer_of(device: &Device, buffers: &RefCell<Vec<Buffer>>, memory: Memory, bytes: u64) -> Result<usize> {
    let mut buffers = buffers.borrow_mut();
    if let Some(index) = buffers.iter().position(|buffer| buffer.len() == bytes) {
        return Ok(index);
    }
    let mut buffer = host_buffer(device, "rows for the NPU", memory, bytes)?;
    if memory == Memory::Upload {
        // Rows that are not in use are copied too.
        buffer.bytes_mut()?.fill(0);
    }
    buffers.push(buffer);
    Ok(buffers.len() - 1)
}

/// A buffer for the host in a block of its own, which can be mapped while others are in use.
pub(crate) fn host_buffer(device: &Device, what: &str, memory: Memory, bytes: u64) -> Result<Buffer> {
    Ok(Arena::new(device, Lifetime::Staging, memory).with_block_size(bytes).buffer(what, bytes)?)
}

/// The programs of all layers, cut at products.
pub(crate) struct CutPrograms {
    layers: Vec<Vec<Stage>>,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
}

impl CutPrograms {
    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Runs a layer. After an interruption, what it should have written is undefined.
    pub fn run(
        &mut self,
        device: &Device,
        offload: &mut Offload,
        layer: usize,
        counts: RowCounts,
        timeout: Duration,
    ) -> Result<(), Interruption> {
        let Self { layers, inputs, outputs } = self;
        for stage in &layers[layer] {
            let product = match stage {
                Stage::Gpu(program) => {
                    let ticket = device.submit(&[program])?;
                    device.wait(ticket, timeout)?;
                    continue;
                }
                Stage::Npu(product) => product,
            };
            let rows = match product.rows {
                Rows::All => counts.all,
                Rows::Pooled => counts.pooled,
            };
            if rows == 0 {
                continue;
            }
            let x = product.read(&inputs[product.input], rows)?;
            let y = offload.multiply(product.matrix, &x)?;
            product.write(&mut outputs[product.output], &y, rows)?;
        }
        Ok(())
    }
}

impl Product {
    /// The first rows of x.
    fn read(&self, from: &Buffer, rows: usize) -> Result<Vec<f32>> {
        let mut x = Vec::with_capacity(rows * self.k);
        let (values, k) = (rows * self.input_stride, self.k);
        if self.is_f16 {
            let mut bits = vec![0u16; values];
            from.read(0, bytemuck::cast_slice_mut(&mut bits))?;
            for row in bits.chunks_exact(self.input_stride) {
                x.extend((0..k).map(|k| F16_UNIT * f16::from_bits(row[f16_at(k)]).to_f32()));
            }
        } else {
            let mut floats = vec![0f32; values];
            from.read(0, bytemuck::cast_slice_mut(&mut floats))?;
            floats.chunks_exact(self.input_stride).for_each(|row| x.extend_from_slice(&row[..k]));
        }
        Ok(x)
    }

    fn write(&self, to: &mut Buffer, y: &[f32], rows: usize) -> Result<()> {
        let n = y.len() / rows;
        let values: &mut [f32] = bytemuck::cast_slice_mut(to.bytes_mut()?);
        for (row, y) in y.chunks_exact(n).enumerate() {
            values[row * self.output_stride + self.first..][..n].copy_from_slice(y);
        }
        Ok(())
    }
}

/// The shortest of several runs, after one that does not count.
pub(crate) fn shortest<E>(mut run: impl FnMut() -> Result<(), E>) -> Result<Duration, E> {
    let mut shortest = Duration::MAX;
    for repetition in 0..=REPETITIONS {
        let start = Instant::now();
        run()?;
        if repetition > 0 {
            shortest = shortest.min(start.elapsed());
        }
    }
    Ok(shortest)
}

/// The index of a matrix among those of an encoder.
pub(crate) fn index_of<Id>(matrices: &[(Id, Matrix)], matrix: &Matrix) -> Option<usize> {
    matrices.iter().position(|(_, known)| std::ptr::eq(known, matrix))
}
