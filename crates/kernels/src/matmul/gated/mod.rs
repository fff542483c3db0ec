//! gelu(gate) · up or silu(gate) · up of separately computed gate and up products: where a file stores them
//! in different schemes they cannot form one matrix with a fused epilogue.

use gpu::{Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Activations, Epilogue, Kernel, Target, Vectors,
    case::{Case, Comparison, Random, TIMEOUT, arena},
    matmul::common::reference::{self, Value},
    shaders::gated::{Constants, Push, TIERS},
    variant::Variant,
    vectors::compare::{compare, poisoned},
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel =
    Kernel { name: "gated", about: "GeGLU or SwiGLU of separate gate and up", variants, cases };

/// The kernel for one row length and output format.
pub struct Gated {
    output: Activations,
    n: usize,
    pipeline: Pipeline,
}

impl Gated {
    /// Compiles the kernel for rows of `n` values, f32 or f16 (then a multiple of 4); `epilogue` selects the
    /// function.
    pub fn new(device: &Device, epilogue: Epilogue, output: Activations, n: usize) -> Result<Self> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: "gated".into(), reason });
        if epilogue == Epilogue::None || n == 0 {
            return wrong(format!("{n} values with epilogue {epilogue}: nothing to compute"));
        }
        match output {
            Activations::F32 => {}
            Activations::F16 if n.is_multiple_of(4) => {}
            Activations::F16 => {
                return wrong(format!(
                    "rows of {n} values cannot be f16: the length must be a multiple of 4"
                ));
            }
            Activations::Int8 | Activations::Int16 => {
                return wrong(format!("the output must be f32 or f16, not {output}"));
            }
        }
        Ok(Self { output, n, pipeline: variant(epilogue, output, device.caps()).pipeline(device)? })
    }

    /// Records the kernel for the first `active` rows (one u32) of `gate` and `up`, f32; `y` has one column
    /// per row.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        gate: &View,
        up: &View,
        y: &Vectors,
        active: &View,
    ) -> Result<()> {
        let bytes = (self.n * y.columns * 4) as u64;
        if y.k != self.n || gate.len() < bytes || up.len() < bytes || active.len() < 4 {
            let reason = format!(
                "{} columns of {}, but the kernel was created for rows of {}; gate has {} bytes and up {}, but each needs {bytes}; \
                 active has {} bytes, but needs 4",
                y.columns,
                y.k,
                self.n,
                gate.len(),
                up.len(),
                active.len()
            );
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        let target = Target::vectors(y)?;
        target.check(name, self.output, self.n, y.columns)?;
        let push = Push {
            gate: gate.clone().into(),
            up: up.clone().into(),
            y: target.y.into(),
            active_rows: active.clone().into(),
            n: self.n as u32,
            y_stride: target.stride as u32,
        };
        let groups = (self.n as u32).div_ceil(self.pipeline.threads() * PER_THREAD);
        recorder.dispatch(name, &self.pipeline, [groups, y.columns as u32, 1], &push)
    }
}

/// Values per thread: enough to amortise the start of a workgroup.
const PER_THREAD: u32 = 4;

/// Possible output formats.
const OUTPUTS: [Activations; 2] = [Activations::F32, Activations::F16];

fn variant(epilogue: Epilogue, output: Activations, caps: &Caps) -> Variant {
    let threads = 256.min(caps.max_threads);
    let constants = Constants { threads, epilogue: epilogue as u32, output: output as u32 };
    let label =
        if output == Activations::F32 { epilogue.to_string() } else { format!("{epilogue} → {output}") };
    Variant::new(label, TIERS, Tier::T0, &constants, Subgroup::Any)
}

fn variants(caps: &Caps) -> Vec<Variant> {
    let epilogues = [Epilogue::Geglu, Epilogue::Swiglu];
    epilogues.into_iter().flat_map(|epilogue| OUTPUTS.map(|output| variant(epilogue, output, caps))).collect()
}

fn cases(_: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for epilogue in [Epilogue::Geglu, Epilogue::Swiglu] {
        let mut push = |output, sizes: [(usize, usize, usize); 4]| {
            for (rows, n, active) in sizes {
                let name = format!("{rows} × {n}, {epilogue} to {output}, {active} active");
                let run = move |device: &Device| run(device, epilogue, output, rows, n, active);
                list.push(Case::new(name, Tier::T0, run));
            }
        };
        // One value or four; odd; the 270M's, with some inactive rows.
        push(Activations::F32, [(1, 1, 1), (3, 259, 3), (5, 2048, 4), (2, 100, 0)]);
        push(Activations::F16, [(1, 4, 1), (3, 260, 3), (5, 2048, 4), (2, 100, 0)]);
    }
    list
}

fn run(
    device: &Device,
    epilogue: Epilogue,
    output: Activations,
    rows: usize,
    n: usize,
    active: usize,
) -> Result<Comparison> {
    let mut random = Random::new((rows * n) as u64);
    // From tiny to where their exponential far exceeds the range of f32.
    let scales = [1e-4, 1.0, 10.0, 100.0, 1e4];
    let mut gate: Vec<f32> = (0..rows * n).map(|i| random.signed() * scales[i % scales.len()]).collect();
    let mut up: Vec<f32> = (0..rows * n).map(|_| random.signed() * 5.0).collect();
    // Products beyond the range of f16, of either sign, and a NaN.
    gate.iter_mut().step_by(n).for_each(|gate| *gate = 4e6);
    up[n / 2] = f32::NAN;
    let (gate, up) = (gate, up);
    let mut arena = arena(device);
    let y = poisoned(&mut arena, output, n, rows)?;
    let (gates, ups) = (arena.buffer_from("gate", &gate)?, arena.buffer_from("up", &up)?);
    let count = arena.buffer_from("active", &[active as u32])?;
    let mut recorder = device.recorder()?;
    let kernel = Gated::new(device, epilogue, output, n)?;
    kernel.record(&mut recorder, "gated", &gates.view(), &ups.view(), &y, &count.view())?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let exact = |value: &f32| Value { value: (*value).into(), allowed: 0.0 };
    let pairs = gate.iter().zip(&up).take(active * n);
    let want: Vec<Value> =
        pairs.map(|(gate, up)| reference::gated_value(epilogue, exact(gate), exact(up))).collect();
    compare(&mut comparison, &want, y)?;
    Ok(comparison)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cases_on_the_cpu_driver() {
        crate::variant::run_cases_on_cpu(&KERNEL);
    }

    #[test]
    fn invalid_operands_are_rejected() {
        let Some(device) = testkit::cpu_device() else { return };
        let mut arena = arena(&device);
        let rejected = |epilogue, output, n| {
            Gated::new(&device, epilogue, output, n).err().expect("rejected").to_string()
        };
        assert!(rejected(Epilogue::None, Activations::F32, 64).contains("nothing to compute"));
        assert!(rejected(Epilogue::Geglu, Activations::F16, 66).contains("multiple of 4"));
        assert!(rejected(Epilogue::Geglu, Activations::Int16, 64).contains("not int16"));
        let kernel = Gated::new(&device, Epilogue::Geglu, Activations::F32, 64).unwrap();
        let rows = arena.buffer("rows", 2 * 64 * 4).unwrap();
        let active = arena.buffer("active", 4).unwrap().view();
        let mut recorder = device.recorder().unwrap();
        let mut record =
            |gate: &View, y: &Vectors| kernel.record(&mut recorder, "gated", gate, &rows.view(), y, &active);
        let y = Vectors::f32(&mut arena, "y", 64, 2).unwrap();
        record(&rows.view(), &y).unwrap();
        record(&rows.slice(0..508).unwrap(), &y).expect_err("a short gate");
        record(&rows.view(), &Vectors::f32(&mut arena, "y", 65, 2).unwrap()).expect_err("other rows");
        record(&rows.view(), &Vectors::int8(&mut arena, "y", 64, 2).unwrap()).expect_err("int8");
        record(&rows.view(), &Vectors::f16(&mut arena, "y", 64, 2).unwrap()).expect_err("f16");
    }
}
