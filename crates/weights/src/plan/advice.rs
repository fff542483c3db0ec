//! What to say when a model does not fit: by how much, and what would make it fit. Each advice has been tried by
//! planning with it.

use serde::Serialize;

use super::{Demand, Filling, Gtt, Memory, kv_bytes};
use tensor::Scheme;

/// A context shorter than this is no advice: it does not hold a question and its answer.
pub const LEAST_CONTEXT: u64 = 512;
/// Contexts are advised in multiples of this.
const CONTEXT_STEP: u64 = 256;
/// System memory that raising GTT must leave to the system, or the machine swaps.
const SYSTEM_RESERVE: u64 = 4 << 30;
/// How far above the missing bytes it is looked for what other programs must free, …
const CLOSE_TRIES: u64 = 16;
/// … and in what steps.
const CLOSE_STEP: u64 = 64 << 20;
/// The unit of the kernel parameter `ttm.pages_limit`.
const PAGE: u64 = 4096;

/// One change that makes everything fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Advice {
    /// Weights in a smaller scheme.
    Scheme {
        /// Which.
        scheme: Scheme,
        /// Bytes of the weights then.
        weights: u64,
        /// The context that fits with it: the one asked for, or the longest shorter one.
        context: u64,
    },
    /// A shorter context.
    Context {
        /// The longest that fits.
        positions: u64,
    },
    /// Other programs hold memory that the device could use.
    Close {
        /// Bytes that must become free.
        bytes: u64,
    },
    /// The kernel parameter `ttm.pages_limit` of AMD's integrated GPUs.
    PagesLimit {
        /// Its value, in pages of 4096 bytes.
        pages: u64,
        /// What the GPU can then have of system memory.
        gtt: u64,
    },
}

/// By how much everything does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Shortfall {
    /// Bytes that found no place.
    pub bytes: u64,
    /// Bytes that need one.
    pub needed: u64,
    /// Bytes that could be planned with: free in all heaps, less the margins, and not more than is really free.
    pub usable: u64,
    /// The context asked for.
    pub context: u64,
    /// What would make it fit, each by itself.
    pub advice: Vec<Advice>,
}

pub(super) fn shortfall(memory: &Memory, demand: &Demand, missing: u64) -> Shortfall {
    let weights: u64 = demand.weights.iter().map(|item| item.bytes).sum();
    let kv = kv_bytes(&demand.kv, demand.context, demand.batch);
    let nothing = Demand { weights: Vec::new(), batch: 0, scratch: 0, ..demand.clone() };
    Shortfall {
        bytes: missing,
        needed: weights.saturating_add(kv).saturating_add(demand.scratch),
        usable: Filling::of(memory, &nothing).room_in_all(),
        context: demand.context,
        advice: advice(memory, demand, missing),
    }
}

fn advice(memory: &Memory, demand: &Demand, missing: u64) -> Vec<Advice> {
    let mut advice = Vec::new();
    for (scheme, weights) in &demand.smaller {
        let smaller = Demand { weights: weights.clone(), smaller: Vec::new(), ..demand.clone() };
        let context = if fits(memory, &smaller) { Some(demand.context) } else { longest(memory, &smaller) };
        if let Some(context) = context {
            let weights = weights.iter().map(|item| item.bytes).sum();
            advice.push(Advice::Scheme { scheme: *scheme, weights, context });
        }
    }
    if let Some(positions) = longest(memory, demand) {
        advice.push(Advice::Context { positions });
    }
    if let Some(available) = memory.available {
        // Whole strips may need a little more than what is missing.
        let mut tries = (0..CLOSE_TRIES).map(|tries| missing.saturating_add(tries * CLOSE_STEP));
        let more = |more: u64| Memory { available: available.checked_add(more), ..memory.clone() };
        advice.extend(tries.find(|bytes| fits(&more(*bytes), demand)).map(|bytes| Advice::Close { bytes }));
    }
    if let Some(gtt) = memory.gtt {
        let most = gtt.system.saturating_sub(SYSTEM_RESERVE).saturating_sub(gtt.size) >> 30;
        let enough = (1..=most).map(|gib| gib << 30).find(|more| fits(&raised(memory, *more), demand));
        advice.extend(enough.map(|more| Advice::PagesLimit {
            pages: (gtt.size + more).div_ceil(PAGE),
            gtt: gtt.size + more,
        }));
    }
    advice
}

/// The longest context below the one asked for that fits.
fn longest(memory: &Memory, demand: &Demand) -> Option<u64> {
    let fits = |steps: u64| fits(memory, &Demand { context: steps * CONTEXT_STEP, ..demand.clone() });
    let (mut low, mut high) = (LEAST_CONTEXT / CONTEXT_STEP, demand.context.div_ceil(CONTEXT_STEP));
    if low >= high || !fits(low) {
        return None;
    }
    // `low` fits; `high` is not below what was asked for, which does not.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    Some(low * CONTEXT_STEP)
}

/// The same device with `more` bytes of GTT: RADV divides the sum of carve-out and GTT among its heaps, 2 : 1.
fn raised(memory: &Memory, more: u64) -> Memory {
    let mut raised = memory.clone();
    let alone = raised.heaps.len() == 1;
    for heap in &mut raised.heaps {
        let share = match (alone, heap.device_local) {
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
    Filling::of(memory, demand).missing == 0
}
