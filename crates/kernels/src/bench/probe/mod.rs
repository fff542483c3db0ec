//! Kernels that measure the device: read bandwidth, and the cost of a dispatch and a barrier.

mod measure;

use gpu::{Address, Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

pub use measure::{Measured, default_bytes, measure, median_gpu_ns, read_bandwidth, read_bandwidth_of};

use crate::{
    Kernel,
    case::{Case, Comparison, Output, Random, TIMEOUT, arena},
    shaders::{probe_read, probe_touch},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel =
    Kernel { name: "probe", about: "read bandwidth, dispatch and barrier cost", variants, cases };

/// Shape of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ReadShape {
    /// Threads per workgroup.
    pub threads: u32,
    /// Workgroups.
    pub groups: u32,
    /// 16-byte loads in flight per thread.
    pub in_flight: u32,
}

impl ReadShape {
    /// Shapes worth trying on a device: which one is fastest differs between GPUs.
    pub fn candidates(caps: &Caps) -> Vec<ReadShape> {
        // A CPU driver gains nothing from more threads than cores: a few shapes are enough.
        let cpu = caps.max_subgroup_size < 32;
        let units = caps.compute_units.unwrap_or(16);
        let threads: &[u32] = if cpu { &[128, 512] } else { &[256, 512, 1024] };
        let groups: &[u32] = if cpu { &[1, 4] } else { &[1, 2, 4, 8] };
        let in_flight: &[u32] = if cpu { &[4] } else { &[4, 8] };
        let mut list = Vec::new();
        for threads in threads.iter().map(|threads| (*threads).min(caps.max_threads)) {
            for groups in groups.iter().map(|per_unit| units * per_unit) {
                for in_flight in in_flight.iter().copied() {
                    let shape = ReadShape { threads, groups, in_flight };
                    if !list.contains(&shape) {
                        list.push(shape);
                    }
                }
            }
        }
        list
    }
}

/// Reads memory and returns the XOR of its words.
pub struct Read {
    shape: ReadShape,
    pipeline: Pipeline,
}

impl Read {
    /// Compiles the kernel for a shape.
    pub fn new(device: &Device, shape: ReadShape) -> Result<Self> {
        Ok(Self { shape, pipeline: read_variant(shape).pipeline(device)? })
    }

    /// Reads all of `source` (a multiple of 16 bytes); writes one word per workgroup to `result`.
    pub fn record(&self, recorder: &mut Recorder, name: &str, source: &View, result: &View) -> Result<()> {
        let groups = self.shape.groups;
        if !source.len().is_multiple_of(16) || result.len() < u64::from(groups) * 4 {
            let reason =
                "the source must be a multiple of 16 bytes, and the result hold one word per workgroup"
                    .into();
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        let push = probe_read::Push {
            source: source.clone().into(),
            result: result.clone().into(),
            count: (source.len() / 16) as u32,
        };
        recorder.dispatch(name, &self.pipeline, [groups, 1, 1], &push)
    }
}

/// Increments a word, or only declares that it does.
pub struct Touch {
    pipeline: Pipeline,
}

impl Touch {
    /// Compiles the kernel; without `count` it is ordered like an increment but does nothing.
    pub fn new(device: &Device, count: bool) -> Result<Self> {
        Ok(Self { pipeline: touch_variant(count).pipeline(device)? })
    }

    /// Increments the first word of `counter`.
    pub fn record(&self, recorder: &mut Recorder, name: &str, counter: &View) -> Result<()> {
        let push = probe_touch::Push { counter: Address::from(counter.clone()) };
        recorder.dispatch(name, &self.pipeline, [1, 1, 1], &push)
    }
}

fn read_variant(shape: ReadShape) -> Variant {
    let constants = probe_read::Constants { threads: shape.threads, in_flight: shape.in_flight };
    let label = format!("read, {} threads, {} in flight", shape.threads, shape.in_flight);
    Variant::new(label, probe_read::TIERS, Tier::T0, &constants, Subgroup::Any)
}

fn touch_variant(count: bool) -> Variant {
    let label = if count { "increment" } else { "no-op" };
    Variant::new(label.into(), probe_touch::TIERS, Tier::T0, &probe_touch::Constants { count }, Subgroup::Any)
}

fn variants(caps: &Caps) -> Vec<Variant> {
    let mut list: Vec<Variant> = Vec::new();
    for variant in
        ReadShape::candidates(caps).into_iter().map(read_variant).chain([true, false].map(touch_variant))
    {
        if !list.iter().any(|known| known.label == variant.label) {
            list.push(variant);
        }
    }
    list
}

fn cases(caps: &Caps) -> Vec<Case> {
    // Thread counts that are not a power of two do not halve evenly.
    let mut list: Vec<Case> =
        [(128, 1, 1), (128, 3, 1000), (128, 4, 4096), (128, 7, 12_345), (1, 2, 9), (99, 3, 1000)]
            .into_iter()
            .map(|(threads, groups, vectors)| {
                let shape = ReadShape { threads: caps.max_threads.min(threads), groups, in_flight: 4 };
                let name = format!("read {vectors} × 16 bytes, {groups} groups of {threads} threads");
                Case::new(name, Tier::T0, move |device| run_read(device, shape, vectors))
            })
            .collect();
    list.push(Case::new("200 dependent dispatches".into(), Tier::T0, run_touch));
    list
}

fn run_read(device: &Device, shape: ReadShape, vectors: usize) -> Result<Comparison> {
    let mut random = Random::new(vectors as u64);
    let words: Vec<u32> = (0..vectors * 4).map(|_| random.bits() as u32).collect();
    let mut arena = arena(device);
    let source = arena.buffer_from("source", &words)?;
    let output = Output::new(&mut arena, shape.groups as usize)?;
    let mut recorder = device.recorder()?;
    Read::new(device, shape)?.record(&mut recorder, "read", &source.view(), &output.buffer.view())?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let xor = |words: &[u32]| words.iter().fold(0, |all, word| all ^ word);
    let got = xor(&output.read(&mut comparison)?);
    comparison.equal(|| "the XOR of all words".into(), &got, &xor(&words));
    Ok(comparison)
}

fn run_touch(device: &Device) -> Result<Comparison> {
    let mut arena = arena(device);
    let counter = arena.buffer_from("counter", &[0_u32])?;
    let touch = Touch::new(device, true)?;
    let mut recorder = device.recorder()?;
    for _ in 0..200 {
        touch.record(&mut recorder, "touch", &counter.view())?;
    }
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    comparison.equal(|| "the count".into(), &counter.read_vec::<u32>()?, &vec![200]);
    Ok(comparison)
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_cases_on_the_cpu_driver() {
        crate::variant::run_cases_on_cpu(&super::KERNEL);
    }
}
