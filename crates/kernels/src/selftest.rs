//! Self-test: runs every kernel's cases, to check that this device and driver compute what the CPU reference computes.
//!
//! Most of a case's time is spent on the CPU, and most of that on compiling its pipelines. All cases of a kernel are
//! therefore compiled first, on several threads, without running anything; then they run one after the other, while those
//! of the next kernels are compiled. (Running several at a time has hung an H200 or lost the device.)

use std::{
    num::NonZeroUsize,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
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

/// Runs the cases and passes their results to `on_report`. Their pipelines are compiled ahead, on at most `jobs` threads.
///
/// Once `cancel` is set, no further case starts.
pub fn run(
    device: &Device,
    cases: &[(&'static str, Case)],
    jobs: NonZeroUsize,
    cancel: &AtomicBool,
    mut on_report: impl FnMut(Report),
) {
    let kernels = || cases.chunk_by(|(kernel, _), (next, _)| kernel == next);
    // Compiled once, for the run that only compiles and for the one that compares.
    let _kept = device.keep_pipelines();
    thread::scope(|scope| {
        let (compiled, kernel_compiled) = mpsc::channel();
        let compiler = scope.spawn(move || {
            for of_kernel in kernels() {
                compile(device, of_kernel, jobs, cancel);
                // The receiver is gone once the run is cancelled.
                let _ = compiled.send(());
            }
        });
        for of_kernel in kernels() {
            let start = Instant::now();
            // Without an answer the compiling thread has panicked: cases compile their pipelines themselves.
            let _ = kernel_compiled.recv();
            let waited = start.elapsed();
            for (kernel, case) in of_kernel {
                if cancel.load(Ordering::Relaxed) {
                    return;
                }
                let outcome = case.run(device);
                on_report(Report { kernel, case: case.name.clone(), tier: case.tier, outcome });
            }
            tracing::debug!(
                kernel = of_kernel.first().map_or("", |(kernel, _)| kernel),
                cases = of_kernel.len(),
                waited_ms = waited.as_millis() as u64,
                run_ms = (start.elapsed() - waited).as_millis() as u64,
                "self-test of a kernel"
            );
        }
        // A panic of the compiler is one of a case, which has panicked here too, or has compiled by itself.
        let _ = compiler.join();
    });
}

/// Compiles the pipelines of cases on at most `jobs` threads; with one thread, running them compiles as fast.
fn compile(device: &Device, cases: &[(&'static str, Case)], jobs: NonZeroUsize, cancel: &AtomicBool) {
    if jobs.get() == 1 {
        return;
    }
    // Leaves two threads to the previous kernel's cases, which run meanwhile.
    let jobs = jobs.get().saturating_sub(2).clamp(2, cases.len().max(2));
    let (device, next) = (device.compiling_only(), AtomicUsize::new(0));
    let work = || {
        while !cancel.load(Ordering::Relaxed) {
            let Some((_, case)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            // Ends with an error where its first program would run.
            let _ = case.run(&device);
        }
    };
    thread::scope(|scope| (0..jobs).for_each(|_| _ = scope.spawn(work)));
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

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
    fn cases_are_compiled_together_and_run_in_order() {
        let Some(device) = testkit::cpu_device() else { return };
        // The first case ends after the second one has begun: compiled one after the other, they would never end.
        let (compiling, counted) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
        let case = |name: &str| {
            let (compiling, counted) = (compiling.clone(), counted.clone());
            let run = move || {
                if counted.fetch_add(1, Ordering::Relaxed) < 2 {
                    compiling.wait();
                }
                passing()
            };
            case(name, run)
        };
        let cases = [case("first"), case("second")];
        let mut seen = Vec::new();
        let jobs = NonZeroUsize::new(2).unwrap();
        run(&device, &cases, jobs, &AtomicBool::new(false), |report| {
            seen.push((report.case.clone(), report.passed()))
        });
        assert_eq!(seen, [("first".to_string(), true), ("second".to_string(), true)]);
        assert_eq!(counted.load(Ordering::Relaxed), 4, "each was compiled and run");
    }

    #[test]
    fn compiling_a_case_runs_nothing() {
        let Some(device) = testkit::cpu_device() else { return };
        let cases: Vec<_> = cases(device.caps()).filter(|(kernel, _)| *kernel == "embed").take(2).collect();
        let before = device.counters();
        compile(&device, &cases, NonZeroUsize::new(2).unwrap(), &AtomicBool::new(false));
        let after = device.counters();
        assert_eq!(after.submissions, before.submissions);
        assert!(after.pipelines > before.pipelines);
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
