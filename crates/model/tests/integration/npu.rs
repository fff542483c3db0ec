//! Encoders whose products go to the NPU: through the fake driver to the array model, whose cores execute the overlay's
//! program. Results are compared with the GPU's; after a fault at any call they equal them bit by bit.

use std::collections::BTreeSet;
use std::time::Duration;

use gpu::Device;
use model::{KvScheme, Limits, Runner, TextEncoder};
use npu::{
    gemm::Int8,
    matmul::{Mode, OnDevice},
    report::OperationState,
    runtime::fake::{CommandOutcome, FakeDriver, HeapRule},
    settings::Settings,
    uapi::CommandState,
};

use crate::{common::Fixture, embeddings, images};

/// The largest difference from the GPU's vectors, as a fraction of their length; and from its soft tokens, as a fraction
/// of the largest: about three times what was measured. Each product rounds its values to 16 bits.
const VECTOR_ERROR: f32 = 1e-4;
pub const SOFT_TOKEN_ERROR: f32 = 2e-4;
/// The same for logits, as a fraction of the largest.
const LOGIT_ERROR: f32 = 1e-3;

/// Calls that release something: after their failure nothing is wrong.
const RELEASES: [&str; 4] = ["munmap", "GEM_CLOSE", "DESTROY_HWCTX", "SYNCOBJ_DESTROY"];
const EINVAL: i32 = 22;

pub fn one_core() -> Int8 {
    Int8::new(1, 1).unwrap()
}

pub fn driver() -> FakeDriver {
    FakeDriver::new(HeapRule::Fixed, one_core().overlay().unwrap().library())
}

/// The NPU of one core behind this driver.
pub fn settings(mode: Mode, driver: &FakeDriver) -> Settings {
    let driver = driver.clone();
    Settings::new(mode, one_core(), move |overlay, image| {
        let device = npu::runtime::Device::open(driver.open())?;
        Ok(Box::new(OnDevice::new(device, overlay, image, Duration::from_secs(1))?))
    })
}

pub fn only(settings: &Settings) -> OperationState {
    let operations = settings.report().operations();
    assert_eq!(operations.len(), 1);
    operations[0].clone()
}

fn executions(driver: &FakeDriver) -> u64 {
    driver.calls().iter().filter(|call| **call == "EXEC_CMD").count() as u64
}

fn largest_difference(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(got, want)| embeddings::difference(got, want)).fold(0.0, f32::max)
}

#[test]
fn vectors_with_products_on_the_npu_are_those_of_the_gpu() {
    let Some(device) = testkit::cpu_device() else { return };
    // Products per layer: all four of BERT; without gate and up, where they are one matrix with their activation.
    for (name, emulated, per_layer) in [
        ("bert_mean", false, 4),
        ("bert_gguf_q8_0", false, 4),
        ("embeddinggemma", false, 3),
        ("embeddinggemma", true, 3),
    ] {
        let load = |device: &Device| -> TextEncoder {
            let encoder = embeddings::load(device, name);
            if emulated { encoder.with_emulated_matrix_units().unwrap() } else { encoder }
        };
        let texts = embeddings::reference(name).texts;
        let texts = &texts[..texts.len().min(3)];
        let want = embeddings::encode(&mut load(&device), texts);
        let driver = driver();
        let settings = settings(Mode::Force, &driver);
        let mut encoder = load(&device);
        encoder.use_npu(&settings, name).unwrap();
        let tests = executions(&driver);
        let got = embeddings::encode(&mut encoder, texts);
        let state = only(&settings);
        assert!(state.decision.uses_npu, "{name}: {state:?}");
        assert_eq!(state.name, format!("embeddings of {name}"));
        assert_eq!((state.products, state.fallbacks), (executions(&driver) - tests, 0));
        let layers = u64::from(encoder.config().layer_count());
        assert!(state.products > 0 && state.products.is_multiple_of(layers * per_layer), "{name}: {state:?}");
        let difference = largest_difference(&got, &want);
        println!("{name}: {} products on the NPU, largest difference {difference:.1e}", state.products);
        // The same bits would mean that the GPU had computed them. f16 activations round more than the NPU's 16 bits.
        let bound = if emulated { 1e-3 } else { VECTOR_ERROR };
        assert!(difference > 0.0 && difference <= bound, "{name}: {difference}");
        assert_eq!(embeddings::encode(&mut encoder, texts), got, "{name}: again");
        drop(encoder);
        assert_eq!(driver.leaks(), [""; 0], "{name}");
        assert_eq!(settings.report().totals().0, 2 * state.products);
    }
    device.assert_no_messages();
}

/// Indices of calls: of each kind the first at the start, in the first product of a batch, and in its last; all with
/// `INDRIK_TEST_ALL`.
fn chosen(calls: &[&'static str]) -> Vec<usize> {
    if std::env::var_os("INDRIK_TEST_ALL").is_some() {
        return (0..calls.len()).collect();
    }
    let commands: Vec<usize> = (0..calls.len()).filter(|index| calls[*index] == "EXEC_CMD").collect();
    // Two of the self-test, then those of the batch. Behind each, a wait and two releases.
    let end = |command: usize| commands[command] + 4;
    let phases = [0..end(1), end(1)..end(2), end(commands.len() - 2)..calls.len()];
    let first = |phase: std::ops::Range<usize>| {
        let mut seen = BTreeSet::new();
        phase.filter(|index| seen.insert(calls[*index])).collect::<Vec<_>>()
    };
    phases.into_iter().flat_map(first).collect()
}

#[test]
fn after_a_fault_at_any_call_the_vectors_are_exactly_the_gpus() {
    let Some(device) = testkit::cpu_device() else { return };
    let name = "bert_mean";
    let texts = [vec![5, 9, 2], vec![7]];
    let want = embeddings::encode(&mut embeddings::load(&device, name), &texts);
    let run = |fault: Option<usize>| {
        let driver = driver();
        if let Some(index) = fault {
            driver.fail_raw(index, EINVAL);
        }
        let settings = settings(Mode::Force, &driver);
        let mut encoder = embeddings::load(&device, name);
        encoder.use_npu(&settings, name).unwrap();
        let started = only(&settings).decision.uses_npu;
        let got = embeddings::encode(&mut encoder, &texts);
        let state = only(&settings);
        // In the second batch, what has failed in the first is not tried again.
        let calls = driver.calls();
        assert_eq!(embeddings::encode(&mut encoder, &texts), got, "{fault:?}");
        assert!(state.decision.uses_npu || driver.calls().len() == calls.len(), "{fault:?}");
        drop(encoder);
        assert_eq!(driver.leaks(), [""; 0], "{fault:?}");
        (got, started, state, calls, settings)
    };
    let (vectors, _, state, calls, _) = run(None);
    assert!(state.products == 8 && vectors != want && largest_difference(&vectors, &want) <= VECTOR_ERROR);
    let (mut at_start, mut later) = (0, 0);
    for index in chosen(&calls) {
        let name = calls[index];
        let (vectors, started, state, _, settings) = run(Some(index));
        if RELEASES.contains(&name) {
            assert!(state.decision.uses_npu && largest_difference(&vectors, &want) <= VECTOR_ERROR);
            continue;
        }
        assert!(!state.decision.uses_npu && vectors == want, "{name} ({index}): {state:?}");
        assert_eq!(state.fallbacks, u64::from(started), "{name} ({index})");
        if started {
            later += 1;
            assert!(state.decision.reason.contains("given up after an error"), "{state:?}");
        } else {
            at_start += 1;
        }
        // Nothing else of this process starts on it, unless there was only no context left.
        let (linear, _operation) = settings.start("another");
        let decision = linear.matmul().decision();
        let is_given_up = decision.reason.contains("another operation of this process gave it up");
        assert_eq!(is_given_up, name != "CREATE_HWCTX", "{name} ({index}): {decision:?}");
    }
    println!("faults at {at_start} calls of the start and {later} of a batch");
    assert!(at_start >= 10 && later >= 6);
}

#[test]
fn a_hang_in_the_middle_of_a_batch_ends_with_the_gpus_vectors() {
    let Some(device) = testkit::cpu_device() else { return };
    let texts = [vec![5, 9, 2], vec![7]];
    let want = embeddings::encode(&mut embeddings::load(&device, "bert_mean"), &texts);
    for outcome in [CommandOutcome::Hang, CommandOutcome::End(CommandState::Error)] {
        let driver = driver();
        let settings = settings(Mode::Force, &driver);
        let mut encoder = embeddings::load(&device, "bert_mean");
        encoder.use_npu(&settings, "bert_mean").unwrap();
        let mut layers = 0;
        let slices: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let got = encoder.encode(&slices, &mut |_| {
            layers += 1;
            if layers == 2 {
                driver.set_outcome(outcome);
            }
            true
        });
        assert_eq!(got.unwrap(), want, "{outcome:?}");
        let state = only(&settings);
        assert!(state.products == 4 && state.fallbacks == 1 && !state.decision.uses_npu, "{state:?}");
        assert_eq!(driver.leaks(), [""; 0], "{outcome:?}: given up, it holds nothing");
    }
}

#[test]
fn what_is_slower_or_wrong_is_not_used() {
    let Some(device) = testkit::cpu_device() else { return };
    let texts = [vec![5, 9, 2], vec![7]];
    let want = embeddings::encode(&mut embeddings::load(&device, "bert_mean"), &texts);
    for (mode, wrong, expected) in [
        (Mode::Off, false, "the NPU is off"),
        (Mode::Force, true, "the self-test failed"),
        // The array model executes every instruction of the cores.
        (Mode::Auto, false, "not faster: the first layer, for a batch of 75 tokens, takes"),
    ] {
        let driver = driver();
        let settings = settings(mode, &driver);
        if wrong {
            driver.set_outcome(CommandOutcome::End(CommandState::Completed));
        }
        let mut encoder = embeddings::load(&device, "bert_mean");
        encoder.use_npu(&settings, "bert_mean").unwrap();
        let state = only(&settings);
        assert!(!state.decision.uses_npu && state.decision.reason.contains(expected), "{state:?}");
        assert_eq!(driver.leaks(), [""; 0]);
        let products = state.products;
        assert_eq!(embeddings::encode(&mut encoder, &texts), want);
        assert_eq!(only(&settings).products, products);
    }
}

/// Soft tokens of an image.
pub fn soft_tokens(runner: &mut Runner, image: &model::Image) -> Vec<f32> {
    while !runner.encode(std::slice::from_ref(image), Duration::ZERO).unwrap() {}
    let encoder = runner.encoder().unwrap();
    let values = image.soft_tokens() as usize * encoder.config().text_hidden as usize;
    encoder.read_encoded().unwrap().1[..values].to_vec()
}

#[test]
fn soft_tokens_with_products_on_the_npu_are_those_of_the_gpu() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in ["gemma3_vision_older", "gemma4_vision_tower", "gemma4_vision_unified"] {
        let fixture = images::VisionFixture::open(name);
        let runner = || fixture.runner(&device, images::f32_limits(1, 16));
        let image = &fixture.images()[0];
        let want = soft_tokens(&mut runner(), image);
        let driver = driver();
        let settings = settings(Mode::Force, &driver);
        let mut on_npu = runner();
        on_npu.use_npu_for_images(&settings, name).unwrap();
        let tests = executions(&driver);
        let got = soft_tokens(&mut on_npu, image);
        let state = only(&settings);
        assert_eq!(state.name, format!("image encoder of {name}"));
        assert_eq!((state.products, state.fallbacks), (executions(&driver) - tests, 0));
        // Patches, the products of each layer, and the projection.
        assert!(state.products as u32 >= 2 + 3 * fixture.vision.config.layers(), "{state:?}");
        let difference = crate::common::difference(&got, &want) / images::largest(&want);
        println!("{name}: {} products on the NPU, largest difference {difference:.1e}", state.products);
        assert!(difference > 0.0 && difference <= SOFT_TOKEN_ERROR, "{name}: {difference}");

        // A product of the first image fails: it is encoded anew.
        let calls = driver.calls();
        drop(on_npu);
        for after in [0, 1, 2] {
            let driver = self::driver();
            let settings = self::settings(Mode::Force, &driver);
            let mut on_npu = runner();
            on_npu.use_npu_for_images(&settings, name).unwrap();
            let first = driver.calls().len();
            let index = first + after * (calls.len() - first) / 3;
            let fails = (index..).find(|index| !RELEASES.contains(&calls[*index])).unwrap();
            driver.fail_raw(fails, EINVAL);
            assert_eq!(soft_tokens(&mut on_npu, image), want, "{name}");
            assert_eq!(only(&settings).fallbacks, 1, "{name}");
            assert_eq!(driver.leaks(), [""; 0], "{name}: given up, it holds nothing");
        }
    }
    device.assert_no_messages();
}

/// Logits of each position of a prompt, in chunks of this many rows.
pub fn prompt_logits(runner: &mut Runner, ids: &[u32]) -> Vec<Vec<f32>> {
    // What was measured is forgotten: on a slow machine chunks would be shorter, and programs be recorded again.
    runner.set_segments(1.0, None);
    let mut sequence = runner.start().unwrap();
    let mut rows = vec![];
    let each = |row: &[f32]| {
        rows.push(row.to_vec());
        Ok(())
    };
    runner.logits(&mut sequence, ids, each).unwrap();
    rows
}

fn largest_of(rows: &[Vec<f32>]) -> f32 {
    rows.iter().map(|row| images::largest(row)).fold(0.0, f32::max)
}

fn largest_logit_difference(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    assert_eq!(got.len(), want.len());
    let difference = got.iter().zip(want).map(|(got, want)| crate::common::difference(got, want));
    difference.fold(0.0, f32::max) / largest_of(want)
}

#[test]
fn logits_with_attention_on_the_npu_are_those_of_the_gpu() {
    let Some(device) = testkit::cpu_device() else { return };
    // Heads of 128 with groups of two queries; sliding windows and full attention.
    for (name, scheme) in
        [("qwen3", KvScheme::F32), ("qwen3", KvScheme::F16), ("multimodal_newer", KvScheme::F32)]
    {
        let fixture = Fixture::open(name);
        // Two chunks: the second sees the pages of the first.
        let ids: Vec<u32> = fixture.ids.iter().copied().cycle().take(44).collect();
        let limits = Limits { kv_scheme: scheme, ..crate::common::limits(1, 64, 24) };
        let runner = || Runner::new(crate::common::load(&device, &fixture.path), limits).unwrap();
        let want = prompt_logits(&mut runner(), &ids);
        let driver = driver();
        let settings = settings(Mode::Force, &driver).with_attention();
        let mut on_npu = runner();
        on_npu.use_npu_for_attention(&settings, name);
        let tests = executions(&driver);
        let got = prompt_logits(&mut on_npu, &ids);
        let state = only(&settings);
        assert_eq!(state.name, format!("attention of {name}"));
        assert_eq!((state.products, state.fallbacks), (executions(&driver) - tests, 0));
        let config = &on_npu.model().config;
        let heads: u32 = config.attentions().map(|attention| attention.kv_heads).sum();
        assert_eq!(state.products, u64::from(2 * 2 * heads), "two products of two chunks for each KV head");
        let difference = largest_logit_difference(&got, &want);
        println!(
            "{name} {scheme:?}: {} products on the NPU, largest difference {difference:.1e}",
            state.products
        );
        assert!(difference > 0.0 && difference <= LOGIT_ERROR, "{name}: {difference}");
        drop(on_npu);
        assert_eq!(driver.leaks(), [""; 0], "{name}");
    }
}

#[test]
fn image_encoder_embeddings_and_attention_use_the_npu_of_one_process() {
    let Some(device) = testkit::cpu_device() else { return };
    let driver = driver();
    let settings = settings(Mode::Force, &driver).with_attention();
    let texts = [vec![5, 9, 2], vec![7]];
    let mut embeddings = embeddings::load(&device, "bert_mean");
    let vectors = embeddings::encode(&mut embeddings, &texts);
    embeddings.use_npu(&settings, "bert_mean").unwrap();

    let name = "gemma4_vision_unified";
    let fixture = images::VisionFixture::open(name);
    let image = &fixture.images()[0];
    let mut runner = fixture.runner(&device, images::f32_limits(1, 16));
    let tokens = soft_tokens(&mut fixture.runner(&device, images::f32_limits(1, 16)), image);
    runner.use_npu_for_images(&settings, name).unwrap();

    let fixture = Fixture::open("qwen3");
    let ids: Vec<u32> = fixture.ids.iter().copied().cycle().take(20).collect();
    let limits = Limits { kv_scheme: KvScheme::F32, ..crate::common::limits(1, 64, 32) };
    let mut language = Runner::new(crate::common::load(&device, &fixture.path), limits).unwrap();
    let logits = prompt_logits(&mut language, &ids);
    language.use_npu_for_attention(&settings, "qwen3");

    // In turns, each on a context of its own.
    for _ in 0..2 {
        let got = embeddings::encode(&mut embeddings, &texts);
        assert!(got != vectors && largest_difference(&got, &vectors) <= VECTOR_ERROR);
        let got = prompt_logits(&mut language, &ids);
        assert!(got != logits && largest_logit_difference(&got, &logits) <= LOGIT_ERROR);
    }
    let got = soft_tokens(&mut runner, image);
    let difference = crate::common::difference(&got, &tokens) / images::largest(&tokens);
    assert!(difference > 0.0 && difference <= SOFT_TOKEN_ERROR, "{difference}");
    let used: Vec<_> = settings.report().operations();
    assert!(
        used.len() == 3 && used.iter().all(|state| state.decision.uses_npu && state.products > 0),
        "{used:?}"
    );

    // One is unloaded, one hangs; what is left of it is the GPU's, and the third goes on.
    drop(runner);
    driver.set_outcome(CommandOutcome::Hang);
    assert_eq!(embeddings::encode(&mut embeddings, &texts), vectors);
    driver.set_outcome(CommandOutcome::Run);
    let got = prompt_logits(&mut language, &ids);
    assert!(got != logits && largest_logit_difference(&got, &logits) <= LOGIT_ERROR);
    drop((embeddings, language));
    assert_eq!(driver.leaks(), [""; 0]);
}

#[test]
fn after_a_fault_in_attention_the_logits_are_exactly_the_gpus() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("qwen3");
    let ids: Vec<u32> = fixture.ids.iter().copied().cycle().take(20).collect();
    let limits = Limits { kv_scheme: KvScheme::F32, ..crate::common::limits(1, 64, 32) };
    let runner = || Runner::new(crate::common::load(&device, &fixture.path), limits).unwrap();
    let want = prompt_logits(&mut runner(), &ids);
    let run = |fault: Option<usize>| {
        let driver = driver();
        let settings = settings(Mode::Force, &driver).with_attention();
        let mut on_npu = runner();
        on_npu.use_npu_for_attention(&settings, "qwen3");
        let first = driver.calls().len();
        if let Some(index) = fault {
            driver.fail_raw(first + index, EINVAL);
        }
        let got = prompt_logits(&mut on_npu, &ids);
        let (state, calls) = (only(&settings), driver.calls()[first..].to_vec());
        if state.fallbacks > 0 {
            assert_eq!(driver.leaks(), [""; 0], "given up, it holds nothing");
        }
        assert_eq!(prompt_logits(&mut on_npu, &ids), got);
        drop(on_npu);
        assert_eq!(driver.leaks(), [""; 0]);
        (got, state, calls)
    };
    let (got, _, calls) = run(None);
    assert!(got != want && largest_logit_difference(&got, &want) <= LOGIT_ERROR);
    let all = std::env::var_os("INDRIK_TEST_ALL").is_some();
    let mut faults = 0;
    for index in (0..calls.len()).filter(|index| all || index % 7 == 3 || *index + 3 > calls.len()) {
        if RELEASES.contains(&calls[index]) {
            continue;
        }
        let (got, state, _) = run(Some(index));
        assert!(got == want && state.fallbacks == 1, "{} ({index}): {state:?}", calls[index]);
        assert!(state.decision.reason.contains("given up after an error"), "{state:?}");
        faults += 1;
    }
    println!("faults at {faults} of {} calls of a prompt", calls.len());
    assert!(faults >= 5);
}
