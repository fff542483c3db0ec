//! One product over experts on random data, by a kernel and by the reference: used by the cases of gemv, gemm and
//! coopmat.

use gpu::{Device, Recorder, Result, View};
use tensor::Layout;

use super::{
    Epilogue, OutputFormat, Target, reference,
    trial::{F16_ERROR, Trial, activations, fill},
};
use crate::{
    Activations, HALF_GROUP, Matrix, Vectors,
    case::{Comparison, Random, TIMEOUT, arena},
    experts::{ExpertColumns, Groups, NO_EXPERT},
    vectors::compare::{compare, poisoned},
};

/// The product under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertTrial {
    /// One expert.
    pub weights: Layout,
    pub experts: ExpertColumns,
    pub activations: Activations,
    pub epilogue: Epilogue,
    /// Output format: f32, int16 or f16.
    pub output: Activations,
    /// Columns of x; the last one is not active.
    pub x_columns: usize,
}

/// What a kernel gets.
pub(crate) struct ExpertTrialOperands<'a> {
    pub w: &'a Matrix,
    pub x: &'a Vectors,
    pub target: &'a Target,
    /// The expert of each pair.
    pub selected: &'a View,
    /// The same in groups.
    pub groups: &'a Groups,
}

impl ExpertTrial {
    /// A short description.
    pub fn name(&self) -> String {
        let Layout { scheme, rows, k } = self.weights;
        let ExpertColumns { count, per_x } = self.experts;
        let mut name = format!(
            "{count} experts of {rows} × {k} {scheme} × {}, {} col, {per_x} experts each",
            self.activations, self.x_columns
        );
        if self.epilogue != Epilogue::None {
            name += &format!(", {}", self.epilogue);
        }
        if self.output != Activations::F32 {
            name += &format!(", to {}", self.output);
        }
        name
    }

    /// Trials of gate and up, and of down, with these activations.
    pub fn list(scheme: tensor::Scheme, activations: Activations, x_columns: usize) -> [Self; 2] {
        let output = if activations == Activations::Int8 { Activations::F32 } else { activations };
        let gate_up = Self {
            // Whole quads of outputs: nothing writes the scales of padding.
            weights: Layout { scheme, rows: 256, k: 96 },
            experts: ExpertColumns { count: 5, per_x: 3 },
            activations,
            epilogue: Epilogue::Swiglu,
            output,
            x_columns,
        };
        let down = Self {
            weights: Layout { scheme, rows: 48, k: 160 },
            experts: ExpertColumns { count: 5, per_x: 1 },
            activations,
            epilogue: Epilogue::None,
            output: Activations::F32,
            x_columns: 3 * x_columns,
        };
        [gate_up, down]
    }

    /// Runs the product with groups of `width` columns.
    pub fn run(
        &self,
        device: &Device,
        width: usize,
        record: impl FnOnce(&mut Recorder, &ExpertTrialOperands<'_>) -> Result<()>,
    ) -> Result<Comparison> {
        let Layout { rows, k, .. } = self.weights;
        let ExpertColumns { count, per_x } = self.experts;
        let mut random = Random::new((rows * 31 + k * 7 + self.x_columns) as u64);
        let mut arena = arena(device);
        let layout = Layout { rows: rows * count, ..self.weights };
        let mut w = Matrix::allocate(&mut arena, "weights", layout, device.caps())?;
        let weights = fill(&mut w, &mut random)?;
        let of_x = Trial { activations: self.activations, ..Trial::plain(self.weights, self.x_columns) };
        let (x, columns) = activations(&mut arena, &mut random, &of_x)?;
        let pairs = self.x_columns * per_x;
        let active = pairs - per_x;
        // Uneven: the last expert has no columns, the first has most.
        let expert =
            |random: &mut Random| random.integer(0, count as i64 - 2).min(random.integer(0, 2)) as u32;
        let selected: Vec<u32> =
            (0..pairs).map(|pair| if pair < active { expert(&mut random) } else { NO_EXPERT }).collect();
        // Groups of one column are the pairs themselves.
        let (group_experts, group_pairs) = match width {
            1 => (selected.clone(), vec![0]),
            _ => grouped(&selected, count, width),
        };
        let groups = Groups {
            count: group_experts.len(),
            experts: arena.buffer_from("experts of groups", &group_experts)?.view(),
            pairs: arena.buffer_from("pairs of groups", &group_pairs)?.view(),
            width,
        };
        let selected_view = arena.buffer_from("selected", &selected)?.view();
        let y = poisoned(&mut arena, self.output, self.epilogue.outputs(rows), pairs)?;
        let target = without_guards(Target::vectors(&y)?, &y)?;
        let mut recorder = device.recorder()?;
        let operands =
            ExpertTrialOperands { w: &w, x: &x, target: &target, selected: &selected_view, groups: &groups };
        record(&mut recorder, &operands)?;
        recorder.seal()?.run(TIMEOUT)?;

        let error = if self.activations == Activations::F16 { F16_ERROR } else { 0.0 };
        let mut want = Vec::new();
        for (pair, expert) in selected[..active].iter().enumerate() {
            let range = *expert as usize * rows * k..(*expert as usize + 1) * rows * k;
            let of_expert = reference::Weights {
                k,
                values: weights.values[range.clone()].to_vec(),
                magnitudes: weights.magnitudes[range].to_vec(),
            };
            want.extend(reference::product(&of_expert, &columns[pair / per_x], self.epilogue, error));
        }
        let mut comparison = Comparison::default();
        compare(&mut comparison, &want, y)?;
        Ok(comparison)
    }
}

/// Sums over experts under test, of int16 activations to f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SummedTrial {
    /// One expert.
    pub weights: Layout,
    /// Number of experts.
    pub experts: usize,
    /// Pairs per row.
    pub per_token: usize,
    /// Rows; the last one is not active.
    pub rows: usize,
}

/// What a kernel that sums gets.
pub(crate) struct SummedTrialOperands<'a> {
    pub w: &'a Matrix,
    pub x: &'a Vectors,
    pub target: &'a Target,
    /// The expert of each pair.
    pub selected: &'a View,
    /// The weight of each pair.
    pub weights: &'a View,
}

impl SummedTrial {
    /// A short description.
    pub fn name(&self) -> String {
        let Layout { scheme, rows, k } = self.weights;
        format!(
            "sums of {} of {} experts of {rows} × {k} {scheme}, {} rows",
            self.per_token, self.experts, self.rows
        )
    }

    /// Runs the sums.
    pub fn run(
        &self,
        device: &Device,
        record: impl FnOnce(&mut Recorder, &SummedTrialOperands<'_>) -> Result<()>,
    ) -> Result<Comparison> {
        let Layout { rows: n, k, .. } = self.weights;
        let pairs = self.rows * self.per_token;
        let mut random = Random::new((n * 31 + k * 7 + pairs) as u64);
        let mut arena = arena(device);
        let layout = Layout { rows: n * self.experts, ..self.weights };
        let mut w = Matrix::allocate(&mut arena, "weights", layout, device.caps())?;
        let filled = fill(&mut w, &mut random)?;
        let of_x = Trial { activations: Activations::Int16, ..Trial::plain(self.weights, pairs) };
        let (x, columns) = activations(&mut arena, &mut random, &of_x)?;
        let active = pairs - self.per_token;
        let selected: Vec<u32> =
            (0..pairs)
                .map(|pair| {
                    if pair < active { random.integer(0, self.experts as i64 - 1) as u32 } else { NO_EXPERT }
                })
                .collect();
        let weights: Vec<f32> = (0..pairs).map(|_| random.signed()).collect();
        let selected_view = arena.buffer_from("selected", &selected)?.view();
        let weights_view = arena.buffer_from("weights of pairs", &weights)?.view();
        let y = poisoned(&mut arena, Activations::F32, n, self.rows)?;
        let target = without_guards(Target::vectors(&y)?, &y)?;
        let mut recorder = device.recorder()?;
        let operands = SummedTrialOperands {
            w: &w,
            x: &x,
            target: &target,
            selected: &selected_view,
            weights: &weights_view,
        };
        record(&mut recorder, &operands)?;
        recorder.seal()?.run(TIMEOUT)?;

        let mut want = Vec::new();
        for row in 0..self.rows - 1 {
            let mut sums = vec![reference::Value { value: 0.0, allowed: 0.0 }; n];
            for pair in row * self.per_token..(row + 1) * self.per_token {
                let first = selected[pair] as usize * n * k;
                let of_expert = reference::Weights {
                    k,
                    values: filled.values[first..first + n * k].to_vec(),
                    magnitudes: filled.magnitudes[first..first + n * k].to_vec(),
                };
                let products = reference::product(&of_expert, &columns[pair], Epilogue::None, 0.0);
                for (sum, product) in sums.iter_mut().zip(products) {
                    sum.value += product.value * f64::from(weights[pair]);
                    sum.allowed += product.allowed;
                }
            }
            want.extend(sums);
        }
        let mut comparison = Comparison::default();
        compare(&mut comparison, &want, y)?;
        Ok(comparison)
    }
}

/// A target without the guards after the output: kernels derive the place of a second plane from its length.
fn without_guards(target: Target, y: &Vectors) -> Result<Target> {
    let values = (y.stride() * y.columns) as u64;
    let bytes = match y.kind() {
        Activations::F32 => 4,
        _ => 2,
    };
    let format = match target.format {
        OutputFormat::Int16(scales) => OutputFormat::Int16(scales.slice(0..values / HALF_GROUP as u64 * 4)?),
        format => format,
    };
    Ok(Target { y: target.y.slice(0..values * bytes)?, format, ..target })
}

/// Pairs sorted by expert, in groups: the experts of the groups, and the pairs of their columns.
fn grouped(selected: &[u32], count: usize, width: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut experts, mut pairs) = (vec![], vec![]);
    for expert in 0..count as u32 {
        let own: Vec<u32> = (0_u32..)
            .zip(selected)
            .filter(|(_, selected)| **selected == expert)
            .map(|(pair, _)| pair)
            .collect();
        for group in own.chunks(width) {
            experts.push(expert);
            pairs.extend(group);
            pairs.resize(experts.len() * width, NO_EXPERT);
        }
    }
    let max_count = Groups::max_count(selected.len(), count, width);
    experts.resize(max_count, NO_EXPERT);
    // Nothing reads the pairs of unused groups.
    pairs.resize(max_count * width, 0);
    (experts, pairs)
}
