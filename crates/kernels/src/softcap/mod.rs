//! Soft cap of logits: cap · tanh(x / cap), in place (Gemma 2 and 4).

use gpu::{Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Kernel,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    shaders::softcap::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel =
    Kernel { name: "softcap", about: "soft cap of logits, in place", variants, cases };

/// The kernel for one row length and cap.
pub struct Softcap {
    n: usize,
    cap: f32,
    pipeline: Pipeline,
}

impl Softcap {
    /// Compiles the kernel for rows of `n` values.
    pub fn new(device: &Device, n: usize, cap: f32) -> Result<Self> {
        if n == 0 || !cap.is_finite() || cap <= 0.0 {
            let reason =
                format!("rows of {n} values with a cap of {cap}: both must be positive, and the cap finite");
            return Err(Error::InvalidUse { what: "softcap".into(), reason });
        }
        Ok(Self { n, cap, pipeline: variant(device.caps()).pipeline(device)? })
    }

    /// Records the kernel for the first `active` (one u32) of `rows` rows of `logits`, f32.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        logits: &View,
        active: &View,
    ) -> Result<()> {
        let bytes = (self.n * rows * 4) as u64;
        if logits.len() < bytes || active.len() < 4 {
            let reason = format!(
                "{rows} rows of {} values need {bytes} bytes, but logits have {}; active has {} bytes, but needs 4",
                self.n,
                logits.len(),
                active.len()
            );
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        let push = Push {
            logits: logits.clone().into(),
            active_rows: active.clone().into(),
            n: self.n as u32,
            cap: self.cap,
        };
        let groups = (self.n as u32).div_ceil(self.pipeline.threads() * PER_THREAD);
        recorder.dispatch(name, &self.pipeline, [groups, rows as u32, 1], &push)
    }
}

/// Values per thread: enough to amortise the start of a workgroup.
const PER_THREAD: u32 = 4;

fn variant(caps: &Caps) -> Variant {
    let threads = 256.min(caps.max_threads);
    Variant::new(format!("{threads} threads"), TIERS, Tier::T0, &Constants { threads }, Subgroup::Any)
}

fn variants(caps: &Caps) -> Vec<Variant> {
    vec![variant(caps)]
}

/// CPU reference in f64.
pub fn reference(x: f32, cap: f32) -> f64 {
    f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh()
}

fn cases(_: &Caps) -> Vec<Case> {
    // One value; odd; several workgroups, with an inactive row.
    let sizes = [(1, 1, 1, 30.0), (3, 259, 3, 50.0), (3, 9000, 2, 30.0), (2, 100, 0, 30.0)];
    let case = |(rows, n, active, cap)| {
        let name = format!("{rows} × {n}, {active} active, cap {cap}");
        Case::new(name, Tier::T0, move |device| run(device, rows, n, active, cap))
    };
    sizes.into_iter().map(case).collect()
}

fn run(device: &Device, rows: usize, n: usize, active: usize, cap: f32) -> Result<Comparison> {
    let mut random = Random::new((rows * n) as u64);
    // From tiny to where e²ˣ far exceeds the range of f32.
    let scales = [1e-6, 1.0, 3.0, 30.0, 300.0, 1e6];
    let mut logits: Vec<f32> = (0..rows * n).map(|i| random.signed() * scales[i % scales.len()]).collect();
    for (value, special) in logits.iter_mut().skip(40).zip([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0])
    {
        *value = special;
    }
    let logits = logits;
    let mut arena = arena(device);
    let output = Output::new(&mut arena, rows * n)?;
    let start = arena.buffer_from("logits", &logits)?;
    let count = arena.buffer_from("active", &[active as u32])?;
    let mut recorder = device.recorder()?;
    let rows_of_logits = output.buffer.slice(0..(rows * n * 4) as u64)?;
    recorder.copy("copy", &start, rows_of_logits.clone())?;
    Softcap::new(device, n, cap)?.record(&mut recorder, "softcap", rows, &rows_of_logits, &count.view())?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let got = output.read_f32(&mut comparison)?;
    for (i, (got, x)) in got.iter().zip(&logits).enumerate() {
        let at = || format!("value {} of row {}", i % n, i / n);
        if i >= active * n {
            comparison.equal(at, &got.to_bits(), &x.to_bits());
            continue;
        }
        let want = reference(*x, cap);
        comparison.close_or_nan(at, f64::from(*got), want, 4e-6 * want.abs() + 1e-12);
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
    fn invalid_operands_are_rejected() {
        let Some(device) = testkit::cpu_device() else { return };
        for (n, cap) in [(0, 30.0), (64, 0.0), (64, -30.0), (64, f32::NAN), (64, f32::INFINITY)] {
            assert!(Softcap::new(&device, n, cap).is_err(), "{n} values, cap {cap}");
        }
        let mut arena = arena(&device);
        let logits = arena.buffer("logits", 2 * 64 * 4).unwrap().view();
        let active = arena.buffer("active", 4).unwrap().view();
        let kernel = Softcap::new(&device, 64, 30.0).unwrap();
        let mut recorder = device.recorder().unwrap();
        kernel.record(&mut recorder, "softcap", 2, &logits, &active).unwrap();
        kernel.record(&mut recorder, "softcap", 3, &logits, &active).expect_err("short logits");
    }
}
