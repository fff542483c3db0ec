//! Selects the variants for a device, and lays out their scratch memory. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::{Features, MAX_TOP, pipelines};
use crate::variant::Variant;

/// Tokens per workgroup of the first step: 128 blocks of Gemma's vocabulary fill a large GPU, and their best
/// tokens bound any usual top-k.
pub const BLOCK: usize = 2048;

/// Variants of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads per block, a power of two.
    pub block_threads: u32,
    /// Threads that combine a row's blocks, a power of two.
    pub join_threads: u32,
    /// Threads that select among a row's candidates.
    pub select_threads: u32,
    /// Required subgroup size.
    pub subgroup: Subgroup,
}

/// The plan at the device's best tier.
pub fn plan(caps: &Caps) -> Plan {
    at_tier(caps, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, tier: Tier) -> Plan {
    let max_threads = 1 << caps.max_threads.ilog2();
    // A CPU driver processes the threads of a workgroup one vector at a time, and every barrier is expensive.
    let [block, join, select] = if caps.max_subgroup_size < 32 { [32, 32, 32] } else { [256, 128, 512] };
    Plan {
        tier,
        block_threads: block.min(max_threads),
        join_threads: join.min(max_threads),
        select_threads: select.min(max_threads),
        subgroup: Subgroup::Any,
    }
}

/// Byte ranges of the scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// The partial state of each block.
    pub partials: [u64; 2],
    /// The most probable tokens of each block; empty without the feature `top`.
    pub tops: [u64; 2],
    /// The state of each row; empty without filters.
    pub states: [u64; 2],
    /// Each row's candidates; empty without filters.
    pub candidates: [u64; 2],
}

/// Per block: six words, as Partial (sample.glsl).
const PARTIAL_BYTES: u64 = 24;
/// Per row: eight words, as State (sample.glsl).
const STATE_BYTES: u64 = 32;
/// A key and a token.
const CANDIDATE_BYTES: u64 = 8;
/// More than any shader type needs.
const ALIGNMENT: u64 = 256;

impl Scratch {
    /// The layout for `rows` output rows.
    pub fn new(vocab: usize, rows: usize, features: Features) -> Self {
        let rows = rows as u64;
        let filtered = if features.filters { rows } else { 0 };
        let reported = if features.top { rows } else { 0 };
        let mut end = 0_u64;
        let mut reserve = |bytes: u64| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + bytes;
            [start, end]
        };
        Self {
            partials: reserve(rows * blocks(vocab) as u64 * PARTIAL_BYTES),
            tops: reserve(reported * blocks(vocab) as u64 * MAX_TOP as u64 * CANDIDATE_BYTES),
            states: reserve(filtered * STATE_BYTES),
            candidates: reserve(filtered * vocab as u64 * CANDIDATE_BYTES),
        }
    }

    /// Total bytes.
    pub fn bytes(&self) -> u64 {
        self.candidates[1]
    }
}

/// Blocks per vocabulary.
pub fn blocks(vocab: usize) -> usize {
    vocab.div_ceil(BLOCK)
}

/// All pipelines that the policy may request.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let mut list: Vec<Variant> = super::count::variants(caps);
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        let feature_sets = (0..16_u32).map(|bits| {
            let has = |bit: u32| bits >> bit & 1 == 1;
            (Features { filters: has(0), counts: has(1), biases: has(2), mask: has(3), top: false }, true)
        });
        let top = (Features { top: true, ..Features::default() }, true);
        // No supported model has a vocabulary that is not a multiple of 4: the minimum and the maximum of
        // features are enough.
        let scalar = [
            Features::default(),
            Features { filters: true, counts: true, biases: true, mask: true, top: true },
        ];
        for (features, vec4_loads) in
            feature_sets.chain([top]).chain(scalar.map(|features| (features, false)))
        {
            let pipelines = pipelines(features, at_tier(caps, tier), vec4_loads);
            let [[collect, select], [top, top_join]] = [pipelines.filter, pipelines.top]
                .map(|pair| pair.map_or([None, None], |pair| pair.map(Some)));
            let steps = [Some(pipelines.blocks), Some(pipelines.join), collect, select, top, top_join];
            for new in steps.into_iter().flatten() {
                let same = |known: &Variant| {
                    (known.shader.name, &known.constants) == (new.shader.name, &new.constants)
                };
                if !list.iter().any(same) {
                    list.push(new);
                }
            }
        }
    }
    list
}
