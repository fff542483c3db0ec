//! The report for a model that does not fit: how much is missing, and which changes would make it fit. Each
//! piece of advice has been verified by planning with it.

use serde::Serialize;
use tensor::Scheme;

use super::{
    demand::Demand,
    fill::Filling,
    memory::{Gtt, Memory},
};

/// Minimum context length worth advising, in tokens: a shorter one does not hold a prompt and its completion.
pub const MIN_CONTEXT: u64 = 512;
/// Advised context lengths are multiples of this.
const CONTEXT_STEP: u64 = 256;
/// System memory that raising GTT must leave to the system, or the machine swaps.
const SYSTEM_RESERVE: u64 = 4 << 30;
/// Amounts of memory to free that are tried, starting with the missing bytes.
const FREE_MEMORY_TRIES: u64 = 16;
/// Difference between these amounts, in bytes.
const FREE_MEMORY_STEP: u64 = 64 << 20;
/// The unit of the kernel parameter `ttm.pages_limit`, in bytes.
const PAGE: u64 = 4096;

/// One change that makes everything fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Advice {
    /// Store the weights in a smaller scheme.
    Scheme {
        /// The scheme.
        scheme: Scheme,
        /// Bytes of weights in that scheme.
        weights: u64,
        /// The context length that fits with it: the requested one, or the longest shorter one.
        context_length: u64,
    },
    /// Use a shorter context.
    Context {
        /// The longest that fits, in tokens.
        context_length: u64,
    },
    /// Close other programs, which hold memory that the device could use.
    FreeMemory {
        /// Bytes that must become free.
        bytes: u64,
    },
    /// Raise the kernel parameter `ttm.pages_limit` of AMD's integrated GPUs.
    PagesLimit {
        /// Its value, in pages of 4096 bytes.
        pages: u64,
        /// Bytes of system memory that the GPU can then use.
        gtt: u64,
    },
}

/// The report for a model that does not fit. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Shortfall {
    /// Size of the content that could not be placed.
    pub bytes: u64,
    /// Size of all content.
    pub needed: u64,
    /// Memory available to the plan: free in all heaps, less the margins, capped by the memory that is
    /// actually free.
    pub usable: u64,
    /// The requested context length, in tokens.
    pub context_length: u64,
    /// Changes that would make it fit; each suffices alone.
    pub advice: Vec<Advice>,
}

pub(super) fn shortfall(memory: &Memory, demand: &Demand, missing: u64) -> Shortfall {
    let nothing = Demand { weights: Vec::new(), max_sequences: 0, scratch_bytes: 0, ..demand.clone() };
    Shortfall {
        bytes: missing,
        needed: demand.weight_bytes().saturating_add(demand.kv_bytes()).saturating_add(demand.scratch_bytes),
        usable: Filling::new(memory, &nothing).total_free(),
        context_length: demand.context_length,
        advice: advice(memory, demand, missing),
    }
}

fn advice(memory: &Memory, demand: &Demand, missing: u64) -> Vec<Advice> {
    let mut advice = Vec::new();
    for (scheme, weights) in &demand.smaller {
        let smaller = Demand { weights: weights.clone(), smaller: Vec::new(), ..demand.clone() };
        let context_length = match fits(memory, &smaller) {
            true => Some(demand.context_length),
            false => longest_context(memory, &smaller),
        };
        if let Some(context_length) = context_length {
            let weights = smaller.weight_bytes();
            advice.push(Advice::Scheme { scheme: *scheme, weights, context_length });
        }
    }
    if let Some(context_length) = longest_context(memory, demand) {
        advice.push(Advice::Context { context_length });
    }
    if let Some(available) = memory.available {
        // Split units may need a little more than the missing bytes.
        let mut tries = (0..FREE_MEMORY_TRIES).map(|step| missing.saturating_add(step * FREE_MEMORY_STEP));
        let with = |bytes: u64| Memory { available: available.checked_add(bytes), ..memory.clone() };
        let enough = tries.find(|bytes| fits(&with(*bytes), demand));
        advice.extend(enough.map(|bytes| Advice::FreeMemory { bytes }));
    }
    if let Some(gtt) = memory.gtt {
        let max_gib = gtt.system.saturating_sub(SYSTEM_RESERVE).saturating_sub(gtt.size) >> 30;
        let enough = (1..=max_gib).map(|gib| gib << 30).find(|more| fits(&raise_gtt(memory, *more), demand));
        advice.extend(enough.map(|more| Advice::PagesLimit {
            pages: (gtt.size + more).div_ceil(PAGE),
            gtt: gtt.size + more,
        }));
    }
    advice
}

/// The longest context below the requested one that fits, by binary search.
fn longest_context(memory: &Memory, demand: &Demand) -> Option<u64> {
    let fits = |steps: u64| fits(memory, &Demand { context_length: steps * CONTEXT_STEP, ..demand.clone() });
    let (mut low, mut high) = (MIN_CONTEXT / CONTEXT_STEP, demand.context_length.div_ceil(CONTEXT_STEP));
    if low >= high || !fits(low) {
        return None;
    }
    // `low` fits; `high` is at least the requested length, which does not.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    Some(low * CONTEXT_STEP)
}

/// The same device with `more` bytes of GTT: RADV divides the sum of carve-out and GTT among its heaps, 2 :
/// 1.
fn raise_gtt(memory: &Memory, more: u64) -> Memory {
    let mut raised = memory.clone();
    let single = raised.heaps.len() == 1;
    for heap in &mut raised.heaps {
        let share = match (single, heap.device_local) {
            (true, _) => more,
            (false, true) => more * 2 / 3,
            (false, false) => more / 3,
        };
        heap.size += share;
        heap.budget = heap.budget.map(|budget| budget + share);
    }
    raised.gtt = memory.gtt.map(|gtt| Gtt { size: gtt.size + more, ..gtt });
    raised
}

fn fits(memory: &Memory, demand: &Demand) -> bool {
    Filling::new(memory, demand).missing == 0
}
