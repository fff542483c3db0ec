//! One product on random data, by a kernel and by the reference: used by the cases of gemv, gemm and coopmat.

use gpu::{Arena, Caps, Device, Recorder, Result, View};
use half::{bf16, f16};
use tensor::{GROUP, Layout, QUAD, Scheme};

use super::{
    Epilogue, OutputFormat, Target,
    reference::{self, Value},
};
use crate::{
    Activations, F16_UNIT, HALF_GROUP, Matrix, Vectors,
    case::{Comparison, Output, POISON, Random, TIMEOUT, arena},
    f16_at, int16_scale_at,
    matmul::coopmat::policy::Bias,
    vectors::VectorData,
};

/// The product under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub weights: Layout,
    pub columns: usize,
    pub activations: Activations,
    pub epilogue: Epilogue,
    /// Output format: f32, int16 or f16.
    pub output: Activations,
    /// Active columns.
    pub active: usize,
    /// Elements of each output column before and after those of the product.
    pub before: usize,
    pub after: usize,
    /// Split-K partial sums per output column, f32, consecutive.
    pub partials: usize,
    /// What is added to every column: [`Trial::bias_of`] each row.
    pub bias: Bias,
}

impl Trial {
    /// A product with all columns active, into a dedicated output.
    pub fn plain(weights: Layout, columns: usize) -> Self {
        let (epilogue, active) = (Epilogue::None, columns);
        let (activations, output) = (Activations::F32, Activations::F32);
        Self {
            weights,
            columns,
            activations,
            epilogue,
            output,
            active,
            before: 0,
            after: 0,
            partials: 1,
            bias: Bias::None,
        }
    }

    /// A short description.
    pub fn name(&self) -> String {
        let Layout { scheme, rows, k } = self.weights;
        let mut name = format!("{rows} × {k} {scheme} × {}, {} col", self.activations, self.columns);
        if self.epilogue != Epilogue::None {
            name += &format!(", {}", self.epilogue);
        }
        name += match self.bias {
            Bias::None => "",
            Bias::Add => ", bias",
            Bias::AddGelu => ", bias and GELU",
        };
        if self.output != Activations::F32 {
            name += &format!(", to {}", self.output);
        }
        if self.active != self.columns {
            name += &format!(", {} active", self.active);
        }
        if self.partials > 1 {
            name += &format!(", {} partial sums", self.partials);
        }
        if self.before + self.after > 0 {
            name += ", in a wider output";
        }
        name
    }

    /// Runs the product, with weights divided into blocks as `caps` requires. `record` gets the matrix, x,
    /// the target, and the active count.
    pub fn run(
        &self,
        device: &Device,
        caps: &Caps,
        record: impl FnOnce(&mut Recorder, &Matrix, &Vectors, &Target, &View) -> Result<()>,
    ) -> Result<Comparison> {
        let Layout { rows, k, .. } = self.weights;
        let mut random = Random::new((rows * 31 + k * 7 + self.columns) as u64);
        let mut arena = arena(device);
        let mut w = Matrix::allocate(&mut arena, "weights", self.weights, caps)?;
        // Nothing reads the weights while pipelines are compiled, and making them takes most of the time.
        let weights = match device.is_compiling_only() {
            true => reference::Weights { k, values: vec![], magnitudes: vec![] },
            false => fill(&mut w, &mut random)?,
        };
        let (x, columns) = activations(&mut arena, &mut random, self)?;
        if self.output == Activations::Int16 {
            let mut recorder = device.recorder()?;
            let active = arena.buffer_from("active", &[self.active as u32])?;
            let output = Int16Output::new(&mut arena, self)?;
            record(&mut recorder, &w, &x, &output.target()?, &active.view())?;
            recorder.seal()?.run(TIMEOUT)?;
            return output.compare(&self.expected(&weights, &columns));
        }
        if self.output == Activations::F16 {
            return self.run_to_f16(device, (w, weights), (x, columns), record);
        }
        let n = self.epilogue.outputs(rows);
        let stride = self.before + n + self.after;
        let output = Output::new(&mut arena, stride * self.columns * self.partials)?;
        let active = arena.buffer_from("active", &[self.active as u32])?;
        // The kernel does not get the guard after the output.
        let y = output.buffer.slice(0..(stride * self.columns * self.partials * 4) as u64)?;
        let target = Target { y, format: OutputFormat::F32, first: self.before, stride };
        let mut recorder = device.recorder()?;
        record(&mut recorder, &w, &x, &target, &active.view())?;
        recorder.seal()?.run(TIMEOUT)?;

        let mut comparison = Comparison::default();
        let got = output.read(&mut comparison)?;
        let expected = self.expected(&weights, &columns);
        for column in 0..self.columns {
            let mut sums = vec![0.0; n];
            for got in got[column * stride * self.partials..][..stride * self.partials].chunks(stride) {
                let (before, rest) = got.split_at(self.before);
                let (values, after) = rest.split_at(n);
                let others = if column < self.active { [before, after].concat() } else { got.to_vec() };
                comparison.equal(
                    || format!("the elements around column {column}"),
                    &others,
                    &vec![POISON; others.len()],
                );
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += f64::from(f32::from_bits(*value));
                }
            }
            let Some(expected) = expected.get(column) else { continue };
            for (row, want) in expected.iter().enumerate() {
                let at = || format!("row {row}, column {column}");
                comparison.close(at, sums[row], want.value, want.allowed);
            }
        }
        Ok(comparison)
    }
}

impl Trial {
    /// The same for f16 output: each value within f16 rounding of the reference plus the allowed error of
    /// its sum, the rest unchanged.
    fn run_to_f16(
        &self,
        device: &Device,
        (w, weights): (Matrix, reference::Weights),
        (x, columns): (Vectors, Vec<Vec<f64>>),
        record: impl FnOnce(&mut Recorder, &Matrix, &Vectors, &Target, &View) -> Result<()>,
    ) -> Result<Comparison> {
        let mut arena = arena(device);
        let n = self.epilogue.outputs(self.weights.rows);
        let stride = (self.before + n + self.after).next_multiple_of(QUAD);
        let output = Output::new(&mut arena, stride * self.columns / 2)?;
        let active = arena.buffer_from("active", &[self.active as u32])?;
        let y = output.buffer.slice(0..(stride * self.columns * 2) as u64)?;
        let target = Target { y, format: OutputFormat::F16, first: self.before, stride };
        let mut recorder = device.recorder()?;
        record(&mut recorder, &w, &x, &target, &active.view())?;
        recorder.seal()?.run(TIMEOUT)?;

        let mut comparison = Comparison::default();
        let words = output.read(&mut comparison)?;
        let half = |at: usize| (words[at / 2] >> (16 * (at % 2))) as u16;
        let expected = self.expected(&weights, &columns);
        for column in 0..self.columns {
            let want = expected.get(column).map_or(&[][..], Vec::as_slice);
            for k in 0..stride {
                let got = half(column * stride + f16_at(k));
                let at = || format!("value {k}, column {column}");
                match k.checked_sub(self.before).and_then(|at| want.get(at)) {
                    None => comparison.equal(at, &got, &((POISON >> (16 * (f16_at(k) % 2))) as u16)),
                    Some(want) => {
                        let got = f64::from(f16::from_bits(got)) * f64::from(F16_UNIT);
                        // Half a ULP, or a whole one where a device rounds towards zero.
                        comparison.close(
                            at,
                            got,
                            want.value,
                            want.allowed + want.value.abs() / 1024.0 + 1e-6,
                        );
                    }
                }
            }
        }
        Ok(comparison)
    }

    /// The active columns of y, and their allowed error: matrix units get weights rounded to f16.
    fn expected(&self, weights: &reference::Weights, columns: &[Vec<f64>]) -> Vec<Vec<reference::Value>> {
        let error = if self.activations == Activations::F16 { F16_ERROR } else { 0.0 };
        let mut all = reference::products(weights, &columns[..self.active], self.epilogue, error);
        for column in &mut all {
            for (row, value) in column.iter_mut().enumerate().filter(|_| self.bias != Bias::None) {
                let bias = f64::from(Self::bias_of(row));
                *value = Value { value: value.value + bias, allowed: value.allowed + bias.abs() * 1e-6 };
                if self.bias == Bias::AddGelu {
                    *value =
                        reference::gated_value(Epilogue::Geglu, *value, Value { value: 1.0, allowed: 0.0 });
                }
            }
        }
        all
    }

    /// The bias of a row, from −2 to 2.
    pub fn bias_of(row: usize) -> f32 {
        (row * 37 % 101) as f32 / 25.0 - 2.0
    }
}

/// Relative error of a weight as f16: half a ULP, or less, plus that of its minimum.
pub(crate) const F16_ERROR: f64 = 1.0 / 1024.0;

/// An int16 output, fully poisoned.
struct Int16Output<'a> {
    trial: &'a Trial,
    stride: usize,
    values: Output,
    scales: Output,
}

impl<'a> Int16Output<'a> {
    fn new(arena: &mut Arena, trial: &'a Trial) -> Result<Self> {
        let n = trial.epilogue.outputs(trial.weights.rows);
        let stride = (trial.before + n + trial.after).next_multiple_of(QUAD);
        let words = stride * trial.columns / 2;
        let values = Output::new(arena, words)?;
        let scales = Output::new(arena, words * 2 / HALF_GROUP)?;
        Ok(Self { trial, stride, values, scales })
    }

    fn target(&self) -> Result<Target> {
        let values = (self.stride * self.trial.columns) as u64;
        Ok(Target {
            y: self.values.buffer.slice(0..values * 2)?,
            format: OutputFormat::Int16(self.scales.buffer.slice(0..values / HALF_GROUP as u64 * 4)?),
            first: self.trial.before,
            stride: self.stride,
        })
    }

    /// Each value within half a quantisation step of the reference plus the f32 error; everything else
    /// unchanged.
    fn compare(&self, expected: &[Vec<reference::Value>]) -> Result<Comparison> {
        let mut comparison = Comparison::default();
        let words = self.values.read(&mut comparison)?;
        let scales = self.scales.read(&mut comparison)?;
        let plane = self.stride * self.trial.columns;
        let byte = |at: usize| words[at / 4].to_le_bytes()[at % 4];
        for column in 0..self.trial.columns {
            let want = expected.get(column).map_or(&[][..], Vec::as_slice);
            for first in (0..self.stride).step_by(HALF_GROUP) {
                let scale = scales[column * self.stride / HALF_GROUP + int16_scale_at(first)];
                let bytes = (first..first + HALF_GROUP).map(|k| column * self.stride + k);
                let bytes: Vec<[u8; 2]> = bytes.map(|at| [byte(at), byte(plane + at)]).collect();
                let written =
                    first.checked_sub(self.trial.before).and_then(|at| want.get(at..at + HALF_GROUP));
                let at = || format!("value {first}, column {column}");
                let Some(want) = written else {
                    let poison = POISON.to_le_bytes();
                    let untouched: Vec<[u8; 2]> = (0..HALF_GROUP).map(|i| [poison[i % 4]; 2]).collect();
                    comparison.equal(at, &(scale, bytes), &(POISON, untouched));
                    continue;
                };
                let scale = f64::from(f32::from_bits(scale));
                let (largest, error) = want.iter().fold((0.0_f64, 0.0_f64), |(largest, error), want| {
                    (largest.max(want.value.abs()), error.max(want.allowed))
                });
                let step = largest / 32639.0;
                comparison.close(|| format!("scale of {}", at()), scale, step, error / 32639.0 + step * 1e-6);
                for (i, (bytes, want)) in bytes.iter().zip(want).enumerate() {
                    let q = bytes[0] as i8 as i32 * 256 + bytes[1] as i8 as i32;
                    let at = || format!("value {}, column {column}", first + i);
                    comparison.close(at, f64::from(q) * scale, want.value, 0.51 * scale.abs() + want.allowed);
                }
            }
        }
        Ok(comparison)
    }
}

/// Random weights into a matrix in mapped memory.
pub(crate) fn fill(matrix: &mut Matrix, random: &mut Random) -> Result<reference::Weights> {
    let layout = matrix.layout();
    let Layout { scheme, rows, k } = layout;
    if scheme.is_float() {
        let mut bytes = vec![0; layout.value_bytes()];
        let mut values: Vec<f64> = Vec::with_capacity(rows * k);
        for index in 0..rows * k {
            let float = random.signed();
            let (at, _) = layout.value_at(index / k, index % k);
            let mut store = |stored: &[u8]| bytes[at..at + stored.len()].copy_from_slice(stored);
            match scheme {
                Scheme::F16 => {
                    store(&f16::from_f32(float).to_le_bytes());
                    values.push(f16::from_f32(float).into());
                }
                Scheme::Bf16 => {
                    store(&bf16::from_f32(float).to_le_bytes());
                    values.push(bf16::from_f32(float).into());
                }
                _ => {
                    store(&float.to_le_bytes());
                    values.push(float.into());
                }
            }
        }
        matrix.write(&bytes, &[])?;
        let magnitudes = values.iter().map(|value| value.abs()).collect();
        return Ok(reference::Weights { k, values, magnitudes });
    }
    let (low, high, shift) = match scheme {
        Scheme::Int8 | Scheme::Int8Min => (-127, 127, 0.0),
        Scheme::Int4 => (-8, 7, 0.0),
        _ => (-8, 7, 8.0),
    };
    let q: Vec<i8> = (0..rows * k).map(|_| random.integer(low, high) as i8).collect();
    let groups = rows * k / GROUP;
    let mut halves = |count: usize, scale: f32, middle: f32| -> Vec<f16> {
        (0..count).map(|_| f16::from_f32(scale * (middle + random.signed()))).collect()
    };
    let scales = halves(groups, 0.01, 1.5);
    let minima = halves(if scheme.has_min() { groups } else { 0 }, 0.05, -1.0);
    matrix.write(&layout.pack_values(&q), &layout.pack_scales(&scales, &minima))?;
    let terms = q.iter().enumerate().map(|(index, q)| {
        let d = f64::from(scales[index / GROUP]);
        (d * (f64::from(*q) + shift), minima.get(index / GROUP).map_or(0.0, |m| f64::from(*m)))
    });
    let (values, magnitudes) = terms.map(|(scaled, m)| (scaled + m, scaled.abs() + m.abs())).unzip();
    Ok(reference::Weights { k, values, magnitudes })
}

/// Random activations on the device, and the values that they represent.
pub(crate) fn activations(
    arena: &mut Arena,
    random: &mut Random,
    trial: &Trial,
) -> Result<(Vectors, Vec<Vec<f64>>)> {
    let (k, columns) = (trial.weights.k, trial.columns);
    if trial.activations == Activations::F32 {
        let x: Vec<Vec<f32>> =
            (0..columns).map(|_| (0..k).map(|_| random.signed() * 3.0).collect()).collect();
        let values = x.iter().map(|column| column.iter().map(|x| f64::from(*x)).collect()).collect();
        let padding = vec![0.0; k.next_multiple_of(QUAD) - k];
        let x: Vec<f32> = x.into_iter().flat_map(|column| [column, padding.clone()].concat()).collect();
        let data = VectorData::F32(arena.buffer_from("x", &x)?);
        return Ok((Vectors { k, columns, data }, values));
    }
    if trial.activations == Activations::Int16 {
        return int16_activations(arena, random, k, columns);
    }
    if trial.activations == Activations::F16 {
        return f16_activations(arena, random, k, columns);
    }
    let padded = k.next_multiple_of(QUAD);
    // The padding holds bytes that would be noticed if they counted, with scales of zero.
    let mut bytes = vec![0x55_i8; padded * columns];
    let mut scales = vec![0.0_f32; padded / GROUP * columns];
    let mut values = vec![vec![0.0; k]; columns];
    for column in 0..columns {
        for group in 0..k / GROUP {
            let scale = 0.02 * (1.5 + random.signed());
            scales[column * padded / GROUP + group] = scale;
            for i in group * GROUP..(group + 1) * GROUP {
                let q = random.integer(-127, 127) as i8;
                bytes[column * padded + i] = q;
                values[column][i] = f64::from(q) * f64::from(scale);
            }
        }
    }
    let data = VectorData::Int8 {
        values: arena.buffer_from("x", &bytes)?,
        scales: arena.buffer_from("x scales", &scales)?,
    };
    Ok((Vectors { k, columns, data }, values))
}

fn f16_activations(
    arena: &mut Arena,
    random: &mut Random,
    k: usize,
    columns: usize,
) -> Result<(Vectors, Vec<Vec<f64>>)> {
    let padded = k.next_multiple_of(QUAD);
    let mut halves = vec![f16::ZERO; padded * columns];
    let mut values = vec![vec![0.0; k]; columns];
    for (column, values) in values.iter_mut().enumerate() {
        for (k, value) in values.iter_mut().enumerate() {
            let half = f16::from_f32(random.signed() * 3.0 / F16_UNIT);
            halves[column * padded + f16_at(k)] = half;
            *value = f64::from(half) * f64::from(F16_UNIT);
        }
    }
    let bits: Vec<u16> = halves.iter().map(|half| half.to_bits()).collect();
    let data = VectorData::F16(arena.buffer_from("x", &bits)?);
    Ok((Vectors { k, columns, data }, values))
}

fn int16_activations(
    arena: &mut Arena,
    random: &mut Random,
    k: usize,
    columns: usize,
) -> Result<(Vectors, Vec<Vec<f64>>)> {
    let padded = k.next_multiple_of(QUAD);
    let plane = padded * columns;
    // The padding holds bytes that would be noticed if they counted, with scales of zero.
    let mut bytes = vec![0x55_i8; 2 * plane];
    let mut scales = vec![0.0_f32; plane / HALF_GROUP];
    let mut values = vec![vec![0.0; k]; columns];
    for column in 0..columns {
        for first in (0..k).step_by(HALF_GROUP) {
            let scale = 1e-4 * (1.5 + random.signed());
            scales[column * padded / HALF_GROUP + int16_scale_at(first)] = scale;
            for i in first..first + HALF_GROUP {
                let q = random.integer(-32639, 32639) as i32;
                let low = q as i8;
                bytes[column * padded + i] = ((q - i32::from(low)) / 256) as i8;
                bytes[plane + column * padded + i] = low;
                values[column][i] = f64::from(q) * f64::from(scale);
            }
        }
    }
    let data = VectorData::Int16 {
        values: arena.buffer_from("x", &bytes)?,
        scales: arena.buffer_from("x scales", &scales)?,
    };
    Ok((Vectors { k, columns, data }, values))
}
