//! Which plan is fastest: pure but for a stopwatch, tested without a GPU.

use std::time::Duration;

use gpu::Result;

use super::Entry;
use crate::gemv::policy::{Plan, Shape};

/// Times plans.
pub(super) trait Stopwatch {
    /// Since tuning began.
    fn elapsed(&self) -> Duration;
    /// Makes the plans of a shape ready to be timed; gives those that can be: not those that the driver refuses or whose
    /// registers do not suffice.
    fn prepare(&mut self, shape: &Shape, plans: &[Plan]) -> Result<Vec<Plan>>;
    /// Microseconds of one product by a plan that is ready.
    fn time(&mut self, plan: &Plan) -> Result<f64>;
}

/// A plan must be faster than the policy's by more than this: two medians of one device differ by as much, and noise must not
/// change what a model computes.
const CLEARLY: f64 = 0.98;

/// Times a list of plans for each shape, the policy's own first in it. A shape that the budget does not suffice for to the end
/// has no entry.
pub(super) fn search(
    shapes: &[Shape],
    list: impl Fn(&Shape) -> Vec<Plan>,
    budget: Duration,
    stopwatch: &mut impl Stopwatch,
) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    'shapes: for shape in shapes {
        if stopwatch.elapsed() >= budget {
            break;
        }
        let plans = list(shape);
        let policy = plans[0];
        let ready = stopwatch.prepare(shape, &plans)?;
        let mut policy_us = stopwatch.time(&policy)?;
        let mut best = (policy, policy_us);
        for plan in ready.into_iter().filter(|plan| *plan != policy) {
            if stopwatch.elapsed() >= budget {
                break 'shapes;
            }
            let time = stopwatch.time(&plan)?;
            if time < best.1 {
                best = (plan, time);
            }
        }
        // Of a dozen times the smallest is small by luck too, and clocks rise while a device works: the two meet again.
        let (mut plan, mut plan_us) = (policy, policy_us);
        if best.1 < policy_us * CLEARLY {
            policy_us = stopwatch.time(&policy)?;
            (plan, plan_us) = (policy, policy_us);
            let again = stopwatch.time(&best.0)?;
            if again < policy_us * CLEARLY {
                (plan, plan_us) = (best.0, again);
            }
        }
        entries.push(Entry { shape: *shape, policy, plan, policy_us, plan_us });
    }
    Ok(entries)
}
