//! Sorts pairs by expert, for kernels that multiply several columns of one expert at once.

mod cases;
#[cfg(test)]
mod tests;

use gpu::{Arena, Buffer, Caps, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use super::{Groups, router::MAX_EXPERTS};
use crate::{
    Kernel,
    shaders::group::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "group",
    about: "pairs of rows and experts, sorted by expert",
    variants,
    cases: cases::cases,
};

/// Memory for the groups of a step.
pub struct GroupBuffers {
    experts: Buffer,
    pairs: Buffer,
    width: usize,
    count: usize,
}

impl GroupBuffers {
    /// Allocates the groups of up to `pairs` pairs.
    pub fn new(arena: &mut Arena, pairs: usize, experts: usize, width: usize) -> Result<Self> {
        let count = Groups::max_count(pairs, experts, width);
        let group_experts = arena.buffer("experts of groups", count as u64 * 4)?;
        let group_pairs = arena.buffer("pairs of groups", (count * width) as u64 * 4)?;
        Ok(Self { experts: group_experts, pairs: group_pairs, width, count })
    }

    /// The groups, for [`Group::record`] to write and products to read.
    pub fn groups(&self) -> Groups {
        let Self { width, count, .. } = *self;
        Groups { experts: self.experts.view(), pairs: self.pairs.view(), width, count }
    }
}

/// The kernel for one width of groups.
pub struct Group {
    experts: usize,
    width: usize,
    pipeline: Pipeline,
}

impl Group {
    /// Compiles the kernel for groups of `width` columns.
    pub fn new(device: &Device, experts: usize, width: usize) -> Result<Self> {
        if width == 0 || !(1..=MAX_EXPERTS).contains(&experts) {
            let reason = format!(
                "groups of {width} columns of {experts} experts; at most {MAX_EXPERTS} are supported"
            );
            return Err(Error::InvalidUse { what: "group".into(), reason });
        }
        Ok(Self { experts, width, pipeline: variant(device.caps(), width).pipeline(device)? })
    }

    /// Records the kernel for `pairs` pairs, whose experts are in `selected`.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        pairs: usize,
        selected: &View,
        groups: &Groups,
    ) -> Result<()> {
        let room = Groups::max_count(pairs, self.experts, self.width);
        if selected.len() < pairs as u64 * 4 || groups.width != self.width || groups.count < room {
            let reason = format!("{pairs} pairs need {room} groups of {} columns", self.width);
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
        let push = Push {
            selected: selected.clone().into(),
            group_experts: groups.experts.clone().into(),
            group_pairs: groups.pairs.clone().into(),
            pairs: pairs as u32,
            experts: self.experts as u32,
            groups: groups.count as u32,
        };
        recorder.dispatch(name, &self.pipeline, [1, 1, 1], &push)
    }
}

fn variant(caps: &Caps, width: usize) -> Variant {
    let threads = if caps.max_subgroup_size < 32 { 64 } else { 512 };
    let threads = threads.min(caps.max_threads);
    let constants = Constants { threads, width: width as u32, max_experts: MAX_EXPERTS as u32 };
    Variant::new(format!("{threads} threads, groups of {width}"), TIERS, Tier::T0, &constants, Subgroup::Any)
}

/// The width does not change the code in any way that matters.
fn variants(caps: &Caps) -> Vec<Variant> {
    vec![variant(caps, 16)]
}
