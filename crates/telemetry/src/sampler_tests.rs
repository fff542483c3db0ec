use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::fixture::Tree;
use crate::fixture::tables::{Halo, radeon_8060s};

const NOW: Duration = Duration::ZERO;
const NEVER: Duration = Duration::from_secs(3600);

/// A machine whose reads begin and end when the test says so.
struct Gated {
    begun: Sender<()>,
    go_on: Receiver<()>,
    dropped: Sender<()>,
    time: f64,
}

impl Sensors for Gated {
    fn sample(&mut self) -> Snapshot {
        let _ = self.begun.send(());
        let _ = self.go_on.recv();
        self.time += 1.0;
        Snapshot { time: self.time, ..Snapshot::default() }
    }

    fn add_energy(&mut self) {}

    fn has_energy(&self) -> bool {
        false
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
    }
}

struct Gate {
    begun: Receiver<()>,
    go_on: Sender<()>,
    dropped: Receiver<()>,
}

fn gated(interval: Duration) -> (Sampler, Gate) {
    let ((begun, has_begun), (go_on, goes_on), (dropped, is_dropped)) = (channel(), channel(), channel());
    let source = Gated { begun, go_on: goes_on, dropped, time: 0.0 };
    let sampler = Sampler::spawn(move || source, Meters::default(), interval, interval).unwrap();
    (sampler, Gate { begun: has_begun, go_on, dropped: is_dropped })
}

/// Waits for a snapshot for which `is_wanted` holds.
fn wait(sampler: &Sampler, is_wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
    let state = sampler.shared.lock();
    let wait = sampler.shared.changed.wait_while(state, |state| !is_wanted(&state.latest));
    Arc::clone(&wait.unwrap().latest)
}

#[test]
fn the_latest_snapshot_does_not_wait_for_a_read() {
    let (sampler, gate) = gated(NOW);
    gate.begun.recv().unwrap();
    assert_eq!(*sampler.latest(), Snapshot::default());
    gate.go_on.send(()).unwrap();
    gate.begun.recv().unwrap();
    assert_eq!(sampler.latest().time, 1.0);
    gate.go_on.send(()).unwrap();
    gate.begun.recv().unwrap();
    assert_eq!(sampler.latest().time, 2.0);
}

#[test]
fn a_reader_can_wait_for_the_next_snapshot() {
    let (sampler, gate) = gated(NOW);
    let first = sampler.latest();
    assert!(Arc::ptr_eq(&sampler.wait_newer(&first, NOW), &first));
    gate.go_on.send(()).unwrap();
    let second = sampler.wait_newer(&first, NEVER);
    assert_eq!(second.time, 1.0);
    let panics = || -> Gated { panic!("a reader that fails, on purpose") };
    let dead = Sampler::spawn(panics, Meters::default(), NOW, NOW).unwrap();
    assert_eq!(*dead.wait_newer(&dead.latest(), NEVER), Snapshot::default());
}

#[test]
fn dropping_joins_a_thread_that_waits() {
    let (sampler, gate) = gated(NEVER);
    gate.begun.recv().unwrap();
    gate.go_on.send(()).unwrap();
    let state = sampler.shared.lock();
    drop(sampler.shared.changed.wait_while(state, |state| !state.idle).unwrap());
    assert_eq!(sampler.latest().time, 1.0);
    drop(sampler);
    assert!(gate.dropped.try_recv().is_ok(), "the thread has ended");
}

#[test]
fn dropping_leaves_a_thread_in_a_slow_read() {
    let (sampler, gate) = gated(NEVER);
    gate.begun.recv().unwrap();
    drop(sampler);
    assert!(gate.dropped.try_recv().is_err(), "the thread still reads");
    gate.go_on.send(()).unwrap();
    assert!(gate.dropped.recv().is_ok(), "and ends when it has read");
}

#[test]
fn a_panicking_reader_does_not_hold_up_the_drop() {
    let open = || -> Gated { panic!("a reader that fails, on purpose") };
    let sampler = Sampler::spawn(open, Meters::default(), NOW, NOW).unwrap();
    let state = sampler.shared.lock();
    drop(sampler.shared.changed.wait_while(state, |state| !state.ended).unwrap());
    assert_eq!(*sampler.latest(), Snapshot::default());
}

#[test]
fn a_machine_is_sampled_again_and_again() {
    let tree = Tree::new();
    tree.add_8060s();
    let options = SamplerOptions { interval: NOW, energy_interval: NOW, ..SamplerOptions::default() };
    let sampler = Sampler::start(&tree.system(), options).unwrap();
    let meter = sampler.energy_meter("0000:c3:00.0");
    let first = wait(&sampler, |snapshot| !snapshot.gpus.is_empty());
    assert_eq!((first.gpus[0].busy, first.gpus[0].power_watts), (Some(0.97), Some(118.25)));
    assert_eq!(meter.source(), Some("amdgpu power"));
    // A file that is being rewritten may be short for a moment.
    let table = radeon_8060s(&Halo { milliwatts: 30_000, ..Halo::default() });
    tree.write(&format!("{}/gpu_metrics", crate::fixture::RADEON_8060S), table);
    wait(&sampler, |snapshot| snapshot.gpus[0].power_watts == Some(30.0));
    let joules = meter.joules().unwrap();
    wait(&sampler, |snapshot| snapshot.gpus[0].energy_joules > Some(joules));
    assert!(meter.joules() > Some(joules));
    assert_eq!(sampler.energy_meter("0000:00:00.0").joules(), None);
}
