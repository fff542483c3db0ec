//! Self-test: runs every kernel's cases, to check that this device and driver compute what the CPU reference computes.
//!
//! Most of a case's time is spent on the CPU: pipeline compilation, then random inputs and the reference in f64. Cases
//! are independent, so several can run at a time, each on its own thread with its own memory. Their submissions share the
//! device's queue. On an H200 the cases of `coopmat` have hung or lost the device that way, so one at a time is the
//! default.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use gpu::{Caps, Device, Result, Tier};

use crate::ALL;
pub use crate::case::{Case, Comparison, Output, Random, TIMEOUT, arena};

/// The result of one case.
#[derive(Debug)]
pub struct Report {
    /// Kernel.
    pub kernel: &'static str,
    /// Case.
    pub case: String,
    /// Tier.
    pub tier: Tier,
    /// The comparison; an error counts as failed.
    pub outcome: Result<Comparison>,
}

impl Report {
    /// Whether the case passed.
    pub fn passed(&self) -> bool {
        self.outcome.as_ref().is_ok_and(Comparison::passed)
    }
}

/// Every case that a device with these capabilities can run, with its kernel, in the order of [`ALL`].
pub fn cases(caps: &Caps) -> impl Iterator<Item = (&'static str, Case)> {
    let max_tier = caps.tier().unwrap_or(Tier::T0);
    ALL.iter().flat_map(move |kernel| {
        (kernel.cases)(caps)
            .into_iter()
            .filter(move |case| case.tier <= max_tier)
            .map(|case| (kernel.name, case))
    })
}

/// Runs the cases, `jobs` at a time, and passes their results to `on_report` in the order of `cases`.
///
/// Once `cancel` is set, no further case starts; those that have started are finished and reported.
pub fn run(
    device: &Device,
    cases: &[(&'static str, Case)],
    jobs: NonZeroUsize,
    cancel: &AtomicBool,
    mut on_report: impl FnMut(Report),
) {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.get().min(cases.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while !cancel.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((kernel, case)) = cases.get(index) else { break };
                    let outcome = case.run(device);
                    let report = Report { kernel, case: case.name.clone(), tier: case.tier, outcome };
                    sender.send((index, report)).expect("the receiver outlives the threads");
                }
            });
        }
        drop(sender);
        // Cases finish in any order.
        let mut finished = BTreeMap::new();
        let mut reported = 0;
        for (index, report) in results {
            finished.insert(index, report);
            while let Some(report) = finished.remove(&reported) {
                on_report(report);
                reported += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    fn case(
        name: &str,
        run: impl Fn() -> Result<Comparison> + Send + Sync + 'static,
    ) -> (&'static str, Case) {
        ("kernel", Case::new(name.into(), Tier::T0, move |_| run()))
    }

    fn passing() -> Result<Comparison> {
        Ok(Comparison { compared: 1, ..Comparison::default() })
    }

    #[test]
    fn cases_run_together_and_are_reported_in_order() {
        let Some(device) = testkit::cpu_device() else { return };
        // The first case ends after the second one: one after the other, they would never end.
        let second_ended = std::sync::Arc::new((Mutex::new(false), Condvar::new()));
        let ended = second_ended.clone();
        let first = case("first", move || {
            let guard = second_ended.0.lock().unwrap();
            drop(second_ended.1.wait_while(guard, |ended| !*ended).unwrap());
            passing()
        });
        let second = case("second", move || {
            *ended.0.lock().unwrap() = true;
            ended.1.notify_all();
            Ok(Comparison::default())
        });
        let mut seen = Vec::new();
        let jobs = NonZeroUsize::new(2).unwrap();
        run(&device, &[first, second], jobs, &AtomicBool::new(false), |report| {
            seen.push((report.case.clone(), report.passed()));
        });
        assert_eq!(seen, [("first".to_string(), true), ("second".to_string(), false)]);
    }

    #[test]
    fn a_cancelled_run_reports_what_it_ran() {
        let Some(device) = testkit::cpu_device() else { return };
        let cancel = std::sync::Arc::new(AtomicBool::new(false));
        let set = cancel.clone();
        let cancelling = case("cancelling", move || {
            set.store(true, Ordering::Relaxed);
            passing()
        });
        let cases = [case("first", passing), cancelling, case("never run", passing)];
        let mut seen = Vec::new();
        run(&device, &cases, NonZeroUsize::MIN, &cancel, |report| seen.push(report.case));
        assert_eq!(seen, ["first", "cancelling"]);
    }
}
