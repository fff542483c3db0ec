use std::{path::Path, time::Duration};

use gpu::{Arena, DeviceOptions, Lifetime, Memory, Result, known};
use tensor::{Layout, Scheme};

use super::{
    Entry, Input, Product, Tuning, Turn, file,
    search::{Stopwatch, search},
};
use crate::{
    Activations, Matrix, Target, Vectors,
    matmul::gemv::policy::{self, Plan, Prologue, Shape},
};

fn shape(rows: usize, k: usize) -> Shape {
    Shape::plain(Layout::new(Scheme::Int8, rows, k).unwrap(), 1, Activations::Int16)
}

/// The candidates for a shape of a 27B model on an H200.
fn plans() -> Vec<Plan> {
    policy::short_list(&known::h200(), &shape(8192, 5376))
}

fn entry(shape: Shape, plan: Plan) -> Entry {
    Entry { shape, policy: policy::plan(&known::h200(), &shape), plan, policy_us: 10.0, plan_us: 8.0 }
}

/// Time advances only when something is timed; a function gives the time of each plan.
struct Fake<F> {
    now: Duration,
    time_per_call: Duration,
    calls: usize,
    max_calls: usize,
    time: F,
}

impl<F: FnMut(&Plan) -> f64> Fake<F> {
    fn new(time_per_call: Duration, time: F) -> Self {
        Self { now: Duration::ZERO, time_per_call, calls: 0, max_calls: usize::MAX, time }
    }
}

impl<F: FnMut(&Plan) -> f64> Stopwatch for Fake<F> {
    fn elapsed(&self) -> Duration {
        self.now
    }
    fn prepare(&mut self, work: &[(Shape, Vec<Plan>)]) -> Result<Vec<Vec<Plan>>> {
        Ok(work.iter().map(|(_, plans)| plans.clone()).collect())
    }
    fn time(&mut self, _: &Shape, plan: &Plan) -> Result<Option<f64>> {
        if self.calls == self.max_calls {
            return Ok(None);
        }
        self.now += self.time_per_call;
        self.calls += 1;
        Ok(Some((self.time)(plan)))
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn short_lists_start_with_the_policy_plan() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        for (rows, k) in [(43008, 5376), (5376, 21504), (262_144, 640), (640, 1024), (1, 32)] {
            let shape = shape(rows, k);
            let list = policy::short_list(&caps, &shape);
            assert_eq!(list[0], policy::plan(&caps, &shape));
            assert!(list.len() <= 20);
            let all = policy::candidates(&caps, &shape);
            assert!(list.iter().all(|plan| all.contains(plan)));
        }
    }
    assert_eq!(plans().len(), 16, "16 candidates on an H200");
}

#[test]
fn short_lists_vary_every_parameter() {
    for caps in [known::h200(), known::radeon_780m()] {
        for (rows, k) in [(43008, 5376), (8192, 5376), (2560, 2048), (13824, 1152)] {
            let norm = Shape {
                prologue: Prologue::AddAndNorm { partials: 3, post_norm: true, scaled: false },
                ..shape(rows, k)
            };
            for shape in [shape(rows, k), norm] {
                let list = policy::short_list(&caps, &shape);
                assert!(list[0].x_in_shared);
                let distinct = |of: fn(&Plan) -> u32| {
                    let mut values: Vec<u32> = list.iter().map(of).collect();
                    values.sort_unstable();
                    values.dedup();
                    values.len()
                };
                let found = [
                    distinct(Plan::slices_per_team),
                    distinct(|plan| plan.teams),
                    distinct(|plan| plan.strips),
                ];
                assert!(found[0] >= 3 && found[1] >= 2 && found[2] == 2, "{rows} × {k}: {found:?} {list:#?}");
                let same = |plan: &&Plan| (plan.threads, plan.teams) == (list[1].threads, list[1].teams);
                assert!(list.iter().filter(same).count() > 1, "another grid: {rows} × {k} {list:#?}");
                for (index, plan) in list.iter().enumerate() {
                    assert!(!list[..index].contains(plan), "{plan:?} is a duplicate");
                }
            }
        }
    }
}

#[test]
fn subgroups_of_64_are_tried_where_supported() {
    let wide = |plan: &&Plan| plan.subgroup == gpu::Subgroup::Exactly(64);
    for (rows, k) in [(43008, 5376), (8192, 5376), (2560, 2048), (13824, 1152)] {
        let norm = Shape {
            prologue: Prologue::AddAndNorm { partials: 3, post_norm: true, scaled: false },
            ..shape(rows, k)
        };
        for shape in [shape(rows, k), norm] {
            let list = policy::short_list(&known::radeon_780m(), &shape);
            assert_eq!(list.iter().filter(wide).count(), 4, "{rows} × {k}: {list:#?}");
            assert!(list.iter().filter(wide).all(|plan| plan.threads.is_multiple_of(64)));
            assert_eq!(policy::short_list(&known::h200(), &shape).iter().filter(wide).count(), 0);
        }
    }
}

#[test]
fn only_clearly_faster_plans_replace_the_policy() {
    let plans = plans();
    for (time, changed) in [(1.0, false), (0.99, false), (0.981, false), (0.979, true), (0.5, true)] {
        let mut fake = Fake::new(Duration::ZERO, |plan| if *plan == plans[3] { time } else { 1.0 });
        let found = search(&[shape(8192, 5376)], |_| plans.clone(), SECOND, &mut fake).unwrap();
        assert_eq!(found[0].plan, if changed { plans[3] } else { plans[0] }, "{time}");
        assert_eq!(found[0].changed(), changed);
        assert_eq!(found[0].plan_us, if changed { time } else { 1.0 });
    }
}

#[test]
fn a_single_fast_timing_does_not_replace_the_policy() {
    let plans = plans();
    // The policy's plan is timed first, while the clocks are still low.
    let mut calls = 0;
    let mut fake = Fake::new(Duration::ZERO, |_| {
        calls += 1;
        if calls == 1 { 2.0 } else { 1.0 }
    });
    let found = search(&[shape(8192, 5376)], |_| plans.clone(), SECOND, &mut fake).unwrap();
    assert!(!found[0].changed());
}

#[test]
fn shapes_beyond_the_budget_keep_the_policy_plan() {
    let plans = plans();
    let shapes = [shape(8192, 5376), shape(5376, 4096), shape(5376, 21504)];
    // Three quarters of a second cover one shape of sixteen plans and part of a second, which is not timed
    // again.
    let mut fake = Fake::new(Duration::from_millis(30), |plan| if *plan == plans[1] { 0.5 } else { 1.0 });
    let found = search(&shapes, |_| plans.clone(), SECOND, &mut fake).unwrap();
    assert_eq!(found.iter().map(|entry| entry.shape).collect::<Vec<_>>(), shapes[..1]);
    assert!(found[0].changed());
    assert_eq!(fake.calls, 25 + 4, "no first timing starts after three quarters of the budget");
    // Seven plans once, one of the next shape, and two of the four second timings.
    let mut fake = Fake::new(Duration::from_millis(10), |_| 1.0);
    let found = search(&shapes, |_| plans[..7].to_vec(), SECOND / 10, &mut fake).unwrap();
    assert_eq!((found.len(), fake.calls), (0, 7 + 1 + 2));
    let mut fake = Fake::new(SECOND, |_| 1.0);
    assert!(search(&shapes, |_| plans.clone(), Duration::ZERO, &mut fake).unwrap().is_empty());
    assert_eq!(fake.calls, 0);
}

/// The adapter's description is informational.
fn add(file: &Path, entries: &[Entry]) {
    let Some(device) = testkit::cpu_device() else { return };
    file::add(file, device.info(), entries);
}

#[test]
fn tuning_files_round_trip_and_are_rejected_on_any_mismatch() {
    if testkit::cpu_device().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep").join("abc.json");
    assert!(file::read(&path).is_empty(), "a missing file is empty");
    let (one, two) = (entry(shape(8192, 5376), plans()[2]), entry(shape(5376, 4096), plans()[1]));
    add(&path, &[one]);
    add(&path, &[two]);
    assert_eq!(file::read(&path), [one, two]);
    let again = Entry { plan_us: 7.5, ..one };
    add(&path, &[again]);
    assert_eq!(file::read(&path), [two, again], "one entry per shape");

    let whole = std::fs::read_to_string(&path).unwrap();
    let other = path.with_file_name("def.json");
    std::fs::write(&other, &whole).unwrap();
    assert!(file::read(&other).is_empty(), "another device's");
    for cut in 0..whole.trim_end().len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(file::read(&path).is_empty(), "cut at {cut}");
    }
    for (from, to) in [
        ("\"format\": 2", "\"format\": 1"),
        ("\"shaders\": \"", "\"shaders\": \"0"),
        ("\"int16\"", "\"int17\""),
    ] {
        let changed = whole.replace(from, to);
        assert_ne!(changed, whole);
        std::fs::write(&path, changed).unwrap();
        assert!(file::read(&path).is_empty(), "{to}");
    }
    add(&path, &[one]);
    assert_eq!(file::read(&path), [one], "and is replaced");
    let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 2, "no temporary file remains");
}

#[test]
fn unwritable_folders_are_not_an_error() {
    let folder = tempfile::tempdir().unwrap();
    // A file in place of the folder: even root cannot write there.
    std::fs::write(folder.path().join("tuning"), "").unwrap();
    let path = folder.path().join("tuning").join("abc.json");
    add(&path, &[entry(shape(8192, 5376), plans()[2])]);
    assert!(file::read(&path).is_empty());
}

#[test]
fn entries_outside_the_policy_are_skipped() {
    let caps = known::h200();
    let good = entry(shape(8192, 5376), plans()[2]);
    assert!(super::is_valid(&caps, &good));
    let plan = Plan { threads: 96, groups: 7, ..good.plan };
    assert!(!super::is_valid(&caps, &Entry { plan, ..good }));
    assert!(!super::is_valid(&caps, &Entry { policy: good.plan, ..good }), "the policy has changed");
    for (rows, k, columns) in
        [(0, 5376, 1), (8192, 0, 1), (8192, 33, 1), (usize::MAX, 5376, 1), (8192, 5376, 0), (8192, 5376, 9)]
    {
        let weights = Layout { scheme: Scheme::Int8, rows, k };
        assert!(!super::is_valid(&caps, &Entry { shape: Shape { weights, columns, ..good.shape }, ..good }));
    }
    for splits in [0, 2, u32::MAX] {
        assert!(!super::is_valid(&caps, &Entry { shape: Shape { splits, ..good.shape }, ..good }));
    }
}

#[test]
fn tuning_persists_across_starts() {
    let folder = tempfile::tempdir().unwrap();
    let options = DeviceOptions { cache_dir: Some(folder.path().into()), ..DeviceOptions::default() };
    let Some(device) = testkit::cpu_device_with(&options) else { return };
    assert!(!super::is_enabled(&device), "a CPU driver is tuned only by tests");
    // With int16 activations the CPU driver has several plans.
    let shapes = [shape(48, 256), shape(32, 128)];
    let mut arena = Arena::new(&device, Lifetime::Weights, Memory::Device).with_block_size(1 << 16);
    let mut make = |shape: &Shape| {
        let matrix = Matrix::allocate(&mut arena, "weights", shape.weights, device.caps()).unwrap();
        let x = Vectors::int16(&mut arena, "x", shape.weights.k, 1).unwrap();
        let y = arena.buffer("y", shape.weights.rows as u64 * 4).unwrap();
        (matrix, x, Target::contiguous(&y, shape.weights.rows))
    };
    let made: Vec<_> = shapes.iter().chain(&shapes).map(|shape| (*shape, make(shape))).collect();
    let products: Vec<Product<'_>> = made
        .iter()
        .map(|(shape, (matrix, x, target))| Product {
            shape: *shape,
            matrix,
            x: Input::Vectors(x),
            target: target.clone(),
        })
        .collect();

    let mut tuning = Tuning::open(&device);
    assert_eq!(tuning.entries().len(), 0);
    let at_once: &mut Turn<'_> = &mut |work| work().map(|()| true);
    let two = |count| assert_eq!(count, 2);
    let nothing = tuning.tune(&device, &products, Duration::ZERO, two, at_once).unwrap();
    assert_eq!((nothing.timed.len(), nothing.left), (0, 2));
    let refused = tuning.tune(&device, &products, 60 * SECOND, two, &mut |_| Ok(false)).unwrap();
    assert_eq!((refused.timed.len(), refused.left), (0, 2));
    let tuned = tuning.tune(&device, &products, 60 * SECOND, two, at_once).unwrap();
    assert_eq!((tuned.timed.len(), tuned.left), (2, 0));
    assert_eq!(tuned.timed[0].shape, shapes[0], "the larger one first");
    assert!(tuned.timed.iter().all(|entry| entry.policy_us > 0.0 && entry.plan_us > 0.0), "{tuned:?}");
    // Noise may have kept the policy's plan; only what the next start uses matters.
    let other = policy::candidates(device.caps(), &shapes[0])[1];
    let changed = Entry { plan: other, ..tuned.timed[0] };
    file::add(tuning.file().unwrap(), device.info(), &[changed]);

    let mut next = Tuning::open(&device);
    assert_eq!(next.entries().len(), 2);
    assert_eq!(next.plan(device.caps(), &shapes[0]), other);
    assert_eq!(next.plan(device.caps(), &shapes[1]), tuned.timed[1].plan);
    let unknown = shape(16, 64);
    assert_eq!(next.plan(device.caps(), &unknown), policy::plan(device.caps(), &unknown));
    let known = |_| panic!("all are known");
    let again = next.tune(&device, &products, 60 * SECOND, known, at_once).unwrap();
    assert_eq!(again, super::TuningReport::default());
}
