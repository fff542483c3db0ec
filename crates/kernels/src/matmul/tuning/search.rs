//! Finds the fastest plan. Pure except for a stopwatch; tested without a GPU.

use std::time::Duration;

use gpu::Result;

use super::product::Entry;
use crate::matmul::gemv::policy::{Plan, Shape};

/// Times plans.
pub(super) trait Stopwatch {
    /// Prepares the plans of all shapes, and the device, for timing. Returns the plans that can be timed: not
    /// those that the driver rejects or whose registers spill. The first of each shape always can. Called
    /// once, first.
    fn prepare(&mut self, work: &[(Shape, Vec<Plan>)]) -> Result<Vec<Vec<Plan>>>;
    /// Time that timing has taken so far.
    fn elapsed(&self) -> Duration;
    /// Microseconds of one product with a prepared plan; `None` if timing has to end.
    fn time(&mut self, shape: &Shape, plan: &Plan) -> Result<Option<f64>>;
}

/// Maximum time of a plan that replaces the policy's, relative to it: two medians on one device differ by
/// as much, and noise must not change what a model computes.
const MAX_TIME_RATIO: f64 = 0.98;

/// Plans per shape that are timed again, besides the policy's.
const RETIMED_PLANS: usize = 3;

/// Times a list of plans for each shape, the policy's own first: all of them once, and the best a second
/// time, which rules out disturbances and clocks that had not ramped up yet. A shape that the budget does not
/// cover completely gets no entry.
pub(super) fn search(
    shapes: &[Shape],
    list: impl Fn(&Shape) -> Vec<Plan>,
    budget: Duration,
    stopwatch: &mut impl Stopwatch,
) -> Result<Vec<Entry>> {
    let work: Vec<(Shape, Vec<Plan>)> = shapes.iter().map(|shape| (*shape, list(shape))).collect();
    let ready = stopwatch.prepare(&work)?;
    // A quarter is reserved for the second timings.
    let first_timings = budget * 3 / 4;
    let mut timed: Vec<(Shape, Vec<(Plan, f64)>)> = Vec::new();
    'shapes: for ((shape, _), plans) in work.iter().zip(ready) {
        let mut times = Vec::new();
        for plan in plans {
            if stopwatch.elapsed() >= first_timings {
                break 'shapes;
            }
            let Some(time) = stopwatch.time(shape, &plan)? else { break 'shapes };
            times.push((plan, time));
        }
        timed.push((*shape, times));
    }
    let mut entries = Vec::new();
    'retime: for (shape, mut times) in timed {
        times[1..].sort_by(|a, b| a.1.total_cmp(&b.1));
        times.truncate(1 + RETIMED_PLANS);
        for (plan, time) in &mut times {
            if stopwatch.elapsed() >= budget {
                break 'retime;
            }
            let Some(second) = stopwatch.time(&shape, plan)? else { break 'retime };
            *time = second.min(*time);
        }
        let (policy, policy_us) = times[0];
        let fastest = times.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let (plan, plan_us) =
            fastest.filter(|(_, time)| *time < policy_us * MAX_TIME_RATIO).unwrap_or((policy, policy_us));
        entries.push(Entry { shape, policy, plan, policy_us, plan_us });
    }
    Ok(entries)
}
