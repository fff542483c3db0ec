//! Self-test cases: every pair is in a group of its expert, and groups are as few as possible.

use gpu::{Caps, Device, Result, Tier};

use super::{Group, GroupBuffers};
use crate::{
    case::{Case, Comparison, Random, TIMEOUT, arena},
    experts::{Groups, NO_EXPERT},
};

pub(super) fn cases(_: &Caps) -> Vec<Case> {
    let mut list = Vec::new();
    for (pairs, experts, width) in [(8, 128, 16), (600, 128, 8), (2400, 37, 64), (3, 1, 1), (100, 512, 128)] {
        for skewed in [false, true] {
            list.push(case(pairs, experts, width, skewed));
        }
    }
    list
}

fn case(pairs: usize, experts: usize, width: usize, skewed: bool) -> Case {
    let name = format!(
        "{pairs} pairs, {experts} experts, {width} wide{}",
        if skewed { ", most with one expert" } else { "" }
    );
    Case::new(name, Tier::T0, move |device| run(device, pairs, experts, width, skewed))
}

fn run(device: &Device, pairs: usize, experts: usize, width: usize, skewed: bool) -> Result<Comparison> {
    let mut random = Random::new((pairs * 31 + experts) as u64);
    let selected: Vec<u32> = (0..pairs)
        .map(|pair| match () {
            // Inactive rows.
            () if pair >= pairs - pairs / 5 => NO_EXPERT,
            () if skewed && pair % 8 != 0 => 0,
            () => random.integer(0, experts as i64 - 1) as u32,
        })
        .collect();
    let mut arena = arena(device);
    let buffers = GroupBuffers::new(&mut arena, pairs, experts, width)?;
    let selected_buffer = arena.buffer_from("selected", &selected)?;
    let mut recorder = device.recorder()?;
    let kernel = Group::new(device, experts, width)?;
    kernel.record(&mut recorder, "group", pairs, &selected_buffer.view(), &buffers.groups())?;
    recorder.seal()?.run(TIMEOUT)?;

    let mut comparison = Comparison::default();
    let group_experts: Vec<u32> = buffers.experts.read_vec()?;
    let group_pairs: Vec<u32> = buffers.pairs.read_vec()?;
    let counts =
        (0..experts as u32).map(|expert| selected.iter().filter(|selected| **selected == expert).count());
    let used: usize = counts.map(|count| count.div_ceil(width)).sum();
    comparison.equal(|| "room".into(), &(used <= Groups::max_count(pairs, experts, width)), &true);
    let mut seen = vec![false; pairs];
    for (group, expert) in group_experts.iter().enumerate() {
        comparison.equal(|| format!("use of group {group}"), &(*expert != NO_EXPERT), &(group < used));
        if *expert == NO_EXPERT {
            continue;
        }
        let columns = &group_pairs[group * width..][..width];
        comparison.equal(|| format!("first column of group {group}"), &(columns[0] != NO_EXPERT), &true);
        for pair in columns.iter().filter(|pair| **pair != NO_EXPERT) {
            let of = selected.get(*pair as usize).copied().unwrap_or(NO_EXPERT);
            comparison.equal(|| format!("expert of pair {pair}, in group {group}"), &of, expert);
            if let Some(seen) = seen.get_mut(*pair as usize) {
                comparison.equal(|| format!("whether pair {pair} was seen before"), seen, &false);
                *seen = true;
            }
        }
    }
    let active: Vec<bool> = selected.iter().map(|expert| *expert != NO_EXPERT).collect();
    comparison.equal(|| "pairs in groups".into(), &seen, &active);
    Ok(comparison)
}
