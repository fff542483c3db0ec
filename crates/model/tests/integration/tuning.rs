//! Autotuning of a model, and the compilation and recording before a runner's first step.

use std::{sync::Arc, time::Duration};

use crate::common::{Fixture, all_logits, difference, limits, load, load_alone};
use gpu::DeviceOptions;
use model::{Activations, KvScheme, Runner, Sampling, TuneMode, TuningReport};

const PLENTY: Duration = Duration::from_secs(300);

#[test]
fn tuned_plans_are_stored_and_give_the_same_logits() {
    let folder = tempfile::tempdir().unwrap();
    let options = DeviceOptions { cache_dir: Some(folder.path().into()), ..DeviceOptions::default() };
    let Some(device) = testkit::cpu_device_with(&options) else { return };
    let fixture = Fixture::open("gguf_q8_0");
    // The CPU driver has several plans for int16 activations, and one for f32.
    let start = || load_alone(&device, &fixture.path).with_few_rows(Activations::Int16);
    let model = start();
    assert_eq!(
        model.tune(TuneMode::Auto, PLENTY, |_| panic!("never on a CPU driver")).unwrap(),
        TuningReport::default()
    );
    let mut shapes = 0;
    let tuned = model.tune(TuneMode::Always, PLENTY, |count| shapes = count).unwrap();
    assert_eq!((tuned.timed.len(), tuned.left), (shapes, 0));
    // QKV, with and without a block to add before (the first layer has none); output; gate and up; down;
    // head: for one row and for two.
    assert_eq!(shapes, 2 * 6, "{tuned:?}");

    let again = start();
    assert_eq!(again.tuned_shapes().len(), shapes);
    assert_eq!(
        again.tune(TuneMode::Always, PLENTY, |_| panic!("all are known")).unwrap(),
        TuningReport::default()
    );
    let again = Arc::new(again);
    for chunk in [1, 2] {
        let rows = all_logits(&again, &fixture.ids, chunk, KvScheme::F32);
        for (index, position) in fixture.positions.iter().enumerate() {
            let difference = difference(&rows[*position], fixture.row(index));
            assert!(difference <= 1e-3 * fixture.largest(), "{position}: {difference}");
        }
    }
}

#[test]
fn preparation_compiles_and_records_everything_for_the_first_step() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    let sampling = Sampling::default();
    let mut runner = Runner::new(model, limits(1, 64, 16)).unwrap();
    let before = device.counters().pipelines;
    runner.prepare(fixture.ids.len(), &sampling).unwrap();
    let (compiled, setup) = (device.counters().pipelines, runner.setup_time());
    assert!(compiled > before);
    assert!(setup.pipelines > Duration::ZERO && setup.recording > Duration::ZERO, "{setup:?}");
    let mut sequence = runner.start().unwrap();
    runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap();
    assert_eq!(device.counters().pipelines, compiled, "a step compiles nothing");
    assert_eq!(runner.setup_time(), setup, "and records nothing");
}

#[test]
fn first_requests_of_any_length_run_in_recorded_programs() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let model = load(&device, &fixture.path);
    let sampling = Sampling::default();
    let prompts = [&fixture.ids[..1], &fixture.ids[..3], &fixture.ids[..9], &fixture.ids[..]];
    let generate = |runner: &mut Runner, prompt: &[u32]| {
        let mut sequence = runner.start().unwrap();
        runner.prompt(&mut sequence, prompt, &sampling, |_| true).unwrap()
    };
    let mut plain = Runner::new(model.clone(), limits(2, 64, 64)).unwrap();
    let expected: Vec<_> = prompts.iter().map(|prompt| generate(&mut plain, prompt)).collect();

    let mut runner = Runner::new(model, limits(2, 64, 64)).unwrap();
    // The usual sampling has filters, which a greedy request does not need.
    let samplings = [sampling.clone(), Sampling { temperature: 1.0, top_k: 20, ..Sampling::default() }];
    runner.prepare_first_requests(&samplings).unwrap();
    let recorded = runner.counters().programs;
    let first: Vec<_> = prompts.iter().map(|prompt| generate(&mut runner, prompt)).collect();
    assert_eq!(runner.counters().programs, recorded, "no step records a program");
    let tokens = |sampled: &[model::Sampled]| sampled.iter().map(|sampled| sampled.token).collect::<Vec<_>>();
    assert_eq!(tokens(&first), tokens(&expected));

    // Later ones have programs of their own.
    while let Some(pipelines) = runner.record_ahead(&samplings).unwrap() {
        device.compile(&pipelines).unwrap();
        runner.seal_ahead().unwrap();
    }
    let recorded_ahead = runner.counters().programs;
    assert!(recorded_ahead > recorded);
    let later: Vec<_> = prompts.iter().map(|prompt| generate(&mut runner, prompt)).collect();
    assert_eq!(runner.counters().programs, recorded_ahead);
    assert_eq!(tokens(&later), tokens(&expected));
}
