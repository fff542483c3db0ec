//! Self-test cases: the kernel against its reference.

use gpu::{Caps, Device, Result, Tier};

use super::{
    Prefetch,
    policy::{GROUP_BYTES, Ranges},
};
use crate::case::{Case, Comparison, Output, Random, TIMEOUT, arena};

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    // One workgroup; several in one range; several ranges with unread gaps.
    let all = [
        Ranges { count: 1, bytes: GROUP_BYTES, stride: 0 },
        Ranges { count: 1, bytes: 3 * GROUP_BYTES, stride: 0 },
        Ranges { count: 3, bytes: 2 * GROUP_BYTES, stride: 2 * GROUP_BYTES + 48 },
    ];
    all.map(|ranges| {
        let Ranges { count, bytes, .. } = ranges;
        Case::new(format!("{count} × {bytes} bytes"), Tier::T0, move |device| run(device, ranges))
    })
    .into()
}

fn run(device: &Device, ranges: Ranges) -> Result<Comparison> {
    let Ranges { count, bytes, stride } = ranges;
    let mut random = Random::new(u64::from(count + bytes));
    let words = ((count - 1) * stride + bytes) as usize / 4;
    let data: Vec<u32> = (0..words).map(|_| random.signed().to_bits()).collect();
    let mut arena = arena(device);
    let from = arena.buffer_from("data", &data)?;
    let groups = ranges.groups() as usize;
    let checksums = Output::new(&mut arena, groups)?;
    let mut recorder = device.recorder()?;
    Prefetch::new(device)?.record(
        &mut recorder,
        "prefetch",
        &from.view(),
        &checksums.buffer.view(),
        ranges,
    )?;
    recorder.seal()?.run(TIMEOUT)?;
    let mut comparison = Comparison::default();
    let got = checksums.read_f32(&mut comparison)?;
    for (group, got) in got.iter().enumerate() {
        let groups_per_range = (bytes / GROUP_BYTES) as usize;
        let first = group / groups_per_range * stride as usize / 4
            + group % groups_per_range * GROUP_BYTES as usize / 4;
        let want = data[first..][..GROUP_BYTES as usize / 4].iter().fold(0, |sum, word| sum ^ word);
        comparison.equal(|| format!("workgroup {group}"), &got.to_bits(), &want);
    }
    Ok(comparison)
}
