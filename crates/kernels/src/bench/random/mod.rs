//! Random words generated on the GPU, so that benchmarks with a model's worth of weights need no file and no
//! upload.

use gpu::{Caps, Device, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Kernel, VectorData, Vectors,
    case::{Case, Comparison, Output, TIMEOUT, arena},
    shaders::random::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel { name: "random", about: "random words for benchmarks", variants, cases };

/// Distribution of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Any bits: quantised weights.
    Bits,
    /// Two f16 between 2⁻⁸ and 2⁻⁷: scales.
    Scales,
    /// An f32 between −1 and 1: activations.
    Floats,
    /// Two f16 of either sign between 2⁻⁸ and 2⁻⁷: activations for cooperative matrices.
    Halves,
}

impl Distribution {
    const ALL: [Distribution; 4] =
        [Distribution::Bits, Distribution::Scales, Distribution::Floats, Distribution::Halves];
}

const THREADS: u32 = 256;

/// The kernel.
pub struct Random {
    pipeline: Pipeline,
}

impl Random {
    /// Compiles the kernel for one distribution.
    pub fn new(device: &Device, distribution: Distribution) -> Result<Self> {
        Ok(Self { pipeline: variant(distribution, device.caps()).pipeline(device)? })
    }

    /// Fills `to` (a multiple of 4 bytes, at most 16 GiB) with words that depend only on `seed` and their
    /// index.
    pub fn record(&self, recorder: &mut Recorder, name: &str, to: &View, seed: u32) -> Result<()> {
        let count = u32::try_from(to.len() / 4).unwrap_or(u32::MAX);
        // Enough to fill any GPU; each thread takes several words.
        let groups = count.div_ceil(self.pipeline.threads()).clamp(1, 8192);
        let push = Push { words: to.clone().into(), count, seed };
        recorder.dispatch(name, &self.pipeline, [groups, 1, 1], &push)
    }
}

/// Fills activations with random values: zeros would cost a device less than real activations.
pub fn fill_vectors(device: &Device, x: &Vectors) -> Result<()> {
    let mut recorder = device.recorder()?;
    record_vectors(&mut recorder, device, x)?;
    recorder.seal()?.run(TIMEOUT)
}

/// Records the same into a program.
pub fn record_vectors(recorder: &mut Recorder, device: &Device, x: &Vectors) -> Result<()> {
    let mut fill = |distribution: Distribution, to: View| {
        Random::new(device, distribution)?.record(recorder, "x", &to, 1)
    };
    match &x.data {
        VectorData::F32(values) => fill(Distribution::Floats, values.view()),
        VectorData::F16(values) => fill(Distribution::Halves, values.view()),
        VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales } => {
            fill(Distribution::Bits, values.view())?;
            fill(Distribution::Floats, scales.view())
        }
    }
}

/// CPU reference of one word.
pub fn reference(distribution: Distribution, seed: u32, position: u32) -> u32 {
    let bits = mix32(position ^ mix32(seed));
    match distribution {
        Distribution::Bits => bits,
        Distribution::Scales => bits & 0x03ff_03ff | 0x1c00_1c00,
        Distribution::Halves => bits & 0x83ff_83ff | 0x1c00_1c00,
        Distribution::Floats => (((bits >> 8) as i32 - (1 << 23)) as f32 / (1 << 23) as f32).to_bits(),
    }
}

fn mix32(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

fn variant(distribution: Distribution, caps: &Caps) -> Variant {
    let constants = Constants { threads: THREADS.min(caps.max_threads), distribution: distribution as u32 };
    Variant::new(format!("{distribution:?}").to_lowercase(), TIERS, Tier::T0, &constants, Subgroup::Any)
}

fn variants(caps: &Caps) -> Vec<Variant> {
    Distribution::ALL.map(|distribution| variant(distribution, caps)).to_vec()
}

fn cases(_: &Caps) -> Vec<Case> {
    let sizes = [1_usize, 255, 70_001];
    let each =
        Distribution::ALL.into_iter().flat_map(|distribution| sizes.map(|words| (distribution, words)));
    each.map(|(distribution, words)| {
        Case::new(format!("{words} words, {distribution:?}"), Tier::T0, move |device| {
            run(device, distribution, words)
        })
    })
    .collect()
}

fn run(device: &Device, distribution: Distribution, words: usize) -> Result<Comparison> {
    let mut arena = arena(device);
    let output = Output::new(&mut arena, words)?;
    let mut recorder = device.recorder()?;
    Random::new(device, distribution)?.record(
        &mut recorder,
        "random",
        &output.buffer.slice(0..words as u64 * 4)?,
        7,
    )?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    for (position, got) in output.read(&mut comparison)?.iter().enumerate() {
        comparison.equal(|| format!("word {position}"), got, &reference(distribution, 7, position as u32));
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
    fn scales_and_floats_are_within_range() {
        for position in 0..10_000 {
            let scale = half::f16::from_bits(reference(Distribution::Scales, 1, position) as u16).to_f32();
            assert!((1.0 / 256.0..1.0 / 128.0).contains(&scale), "{scale}");
            let float = f32::from_bits(reference(Distribution::Floats, 1, position));
            assert!((-1.0..1.0).contains(&float), "{float}");
        }
    }
}
