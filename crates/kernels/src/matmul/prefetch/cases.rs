//! Where the kernel is compared with its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{
    Warm,
    policy::{GROUP_BYTES, Stretches},
};
use crate::selftest::{Case, Comparison, Output, Random, TIMEOUT, arena};

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    // One workgroup; several that lie together; stretches with something between them that is not read.
    let all = [
        Stretches { count: 1, bytes: GROUP_BYTES, apart: 0 },
        Stretches { count: 1, bytes: 3 * GROUP_BYTES, apart: 0 },
        Stretches { count: 3, bytes: 2 * GROUP_BYTES, apart: 2 * GROUP_BYTES + 48 },
    ];
    all.map(|stretches| {
        let Stretches { count, bytes, .. } = stretches;
        Case::new(format!("{count} × {bytes} bytes"), Tier::T0, move |device| run(device, stretches))
    })
    .into()
}

fn run(device: &Device, stretches: Stretches) -> Result<Comparison> {
    let Stretches { count, bytes, apart } = stretches;
    let mut random = Random::new(u64::from(count + bytes));
    let words = ((count - 1) * apart + bytes) as usize / 4;
    let data: Vec<u32> = (0..words).map(|_| random.signed().to_bits()).collect();
    let mut arena = arena(device);
    let from = arena.buffer_from("data", &data)?;
    let groups = stretches.groups() as usize;
    let sums = Output::new(&mut arena, groups)?;
    let mut recorder = device.recorder()?;
    Warm::new(device)?.record(&mut recorder, "prefetch", &from.view(), &sums.buffer.view(), stretches)?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let got = sums.read_f32(&mut comparison)?;
    for (group, got) in got.iter().enumerate() {
        let together = (bytes / GROUP_BYTES) as usize;
        let first = group / together * apart as usize / 4 + group % together * GROUP_BYTES as usize / 4;
        let want = data[first..][..GROUP_BYTES as usize / 4].iter().fold(0, |sum, word| sum ^ word);
        comparison.equal(|| format!("workgroup {group}"), &got.to_bits(), &want);
    }
    Ok(comparison)
}
