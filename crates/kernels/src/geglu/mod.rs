//! gelu(gate) · up or silu(gate) · up, for gate and up that two products made apart: where a file stores them in different
//! schemes they are no one matrix whose product could end with it.

use gpu::{Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Epilogue, Kernel, QUAD, Target, Vectors,
    product::reference,
    selftest::{Case, Comparison, Output, Random, TIMEOUT, arena},
    shaders::geglu::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};

/// For the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel { name: "geglu", about: "gelu or silu of a gate, times up", variants, cases };

/// The kernel for rows of one length.
pub struct Geglu {
    n: usize,
    pipeline: Pipeline,
}

impl Geglu {
    /// Compiles it for rows of `n` values; `epilogue` says which function.
    pub fn new(device: &Device, epilogue: Epilogue, n: usize) -> Result<Self> {
        if epilogue == Epilogue::None || n == 0 {
            let reason = format!("{n} values with epilogue {epilogue}: nothing to compute");
            return Err(Error::InvalidUse { what: "geglu".into(), reason });
        }
        Ok(Self { n, pipeline: variant(epilogue, device.caps()).pipeline(device)? })
    }

    /// Records it for the first `active` rows (one u32) of `gate` and `up`, f32; `y` has a column a row.
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
                "{} columns of {} for rows of {}, gate and up with {} and {} bytes, active with {}",
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
        target.check(name, crate::Activations::F32, self.n, y.columns)?;
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

/// Values a thread takes: enough that a workgroup is worth its start.
const PER_THREAD: u32 = 4;

fn variant(epilogue: Epilogue, caps: &Caps) -> Variant {
    let constants = Constants { threads: 256.min(caps.max_threads), epilogue: epilogue as u32 };
    Variant::new(epilogue.to_string(), TIERS, Tier::T0, &constants, Subgroup::Any)
}

fn variants(caps: &Caps) -> Vec<Variant> {
    [Epilogue::Geglu, Epilogue::Swiglu].map(|epilogue| variant(epilogue, caps)).to_vec()
}

fn cases(_: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for epilogue in [Epilogue::Geglu, Epilogue::Swiglu] {
        // One value; odd; the 270M's, some rows not in use.
        for (rows, n, active) in [(1, 1, 1), (3, 259, 3), (5, 2048, 4), (2, 100, 0)] {
            let name = format!("{rows} × {n}, {epilogue}, {active} active");
            list.push(Case::new(name, Tier::T0, move |device| run(device, epilogue, rows, n, active)));
        }
    }
    list
}

fn run(device: &Device, epilogue: Epilogue, rows: usize, n: usize, active: usize) -> Result<Comparison> {
    let mut random = Random::new((rows * n) as u64);
    // From tiny to where e to their power is long past f32's range.
    let scales = [1e-4, 1.0, 10.0, 100.0, 1e4];
    let gate: Vec<f32> = (0..rows * n).map(|i| random.signed() * scales[i % scales.len()]).collect();
    let up: Vec<f32> = (0..rows * n).map(|_| random.signed() * 5.0).collect();
    let mut arena = arena(device);
    let padded = n.next_multiple_of(QUAD);
    let output = Output::new(&mut arena, rows * padded)?;
    let untouched: Vec<u32> = output.buffer.read_vec()?;
    let (gates, ups) = (arena.buffer_from("gate", &gate)?, arena.buffer_from("up", &up)?);
    let count = arena.buffer_from("active", &[active as u32])?;
    let y = Vectors { k: n, columns: rows, data: VectorData::F32(output.buffer) };
    let mut recorder = device.recorder()?;
    let kernel = Geglu::new(device, epilogue, n)?;
    kernel.record(&mut recorder, "geglu", &gates.view(), &ups.view(), &y, &count.view())?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let VectorData::F32(buffer) = y.data else { unreachable!("made as f32 above") };
    let got = Output::of(buffer, rows * padded).read(&mut comparison)?;
    for row in 0..rows {
        let used = if row < active { n } else { 0 };
        let got = &got[row * padded..(row + 1) * padded];
        comparison.equal(|| format!("padding of row {row}"), &&got[used..], &&untouched[used..padded]);
        for (i, word) in got[..used].iter().enumerate() {
            let exact = |value: f32| reference::Value { value: value.into(), allowed: 0.0 };
            let want = reference::gated_value(epilogue, exact(gate[row * n + i]), exact(up[row * n + i]));
            let at = || format!("row {row}, {i}: gate {}, up {}", gate[row * n + i], up[row * n + i]);
            comparison.close(at, f32::from_bits(*word).into(), want.value, want.allowed);
        }
    }
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
    fn wrong_operands_are_refused() {
        let Some(device) = testkit::cpu_device() else { return };
        let mut arena = arena(&device);
        assert!(Geglu::new(&device, Epilogue::None, 64).is_err());
        let kernel = Geglu::new(&device, Epilogue::Geglu, 64).unwrap();
        let rows = arena.buffer("rows", 2 * 64 * 4).unwrap();
        let active = arena.buffer("active", 4).unwrap().view();
        let mut recorder = device.recorder().unwrap();
        let mut record = |gate: &View, y: &Vectors| {
            kernel.record(&mut recorder, "geglu", gate, &rows.view(), y, &active)
        };
        let y = Vectors::f32(&mut arena, "y", 64, 2).unwrap();
        record(&rows.view(), &y).unwrap();
        record(&rows.slice(0..508).unwrap(), &y).expect_err("a short gate");
        record(&rows.view(), &Vectors::f32(&mut arena, "y", 65, 2).unwrap()).expect_err("other rows");
        record(&rows.view(), &Vectors::int8(&mut arena, "y", 64, 2).unwrap()).expect_err("int8");
    }
}
