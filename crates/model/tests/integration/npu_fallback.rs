//! What an operation that uses the NPU does about errors that are not the NPU's: of the GPU while its programs are cut, of
//! products and weights that the NPU does not take, and of options that exclude it. The answer is the GPU's, bit by bit,
//! the report says why, and other operations still use the NPU.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use gpu::{Device, Fault, Lifetime};
use model::{KvScheme, Limits, Runner};
use npu::{
    gemm::GemmPlan,
    matmul::{Backend, Mode, OnModel, Packed, Stored},
    settings::Settings,
};

use crate::{
    common::{Fixture, difference},
    embeddings, images,
    npu::{SOFT_TOKEN_ERROR, driver, one_core, only, prompt_logits, settings, soft_tokens},
};

const BERT: &str = "bert_mean";

/// The array model with limits that are not the hardware's.
struct Limited {
    model: OnModel,
    /// Matrices that it stores, and products that it computes, before an error.
    stores: usize,
    products: Arc<AtomicUsize>,
    error: fn() -> npu::Error,
}

impl Backend for Limited {
    fn store(&mut self, b: &[u8]) -> npu::Result<Stored> {
        self.stores = self.stores.checked_sub(1).ok_or_else(self.error)?;
        self.model.store(b)
    }

    fn run(&mut self, plan: &GemmPlan, a: &[u8], b: Packed, c: &mut [u8]) -> npu::Result<()> {
        let one_less = |left: usize| left.checked_sub(1);
        self.products
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .map_err(|_| (self.error)())?;
        self.model.run(plan, a, b, c)
    }
}

/// The NPU with these limits; the second value is the number of products that are left.
fn limited(stores: usize, error: fn() -> npu::Error) -> (Settings, Arc<AtomicUsize>) {
    let products = Arc::new(AtomicUsize::new(usize::MAX));
    let left = products.clone();
    let settings = Settings::new(Mode::Force, one_core(), move |overlay, image| {
        let model = OnModel::new(overlay, image)?;
        Ok(Box::new(Limited { model, stores, products: products.clone(), error }))
    });
    (settings, left)
}

/// Not an error of the device: another operation may need less.
fn heap_full() -> npu::Error {
    npu::Error::HeapFull { bytes: 4096 }
}

fn timeout() -> npu::Error {
    npu::Error::Timeout { milliseconds: 2000 }
}

/// Why another operation does not start on the NPU; `None` if it does.
fn obstacle(settings: &Settings) -> Option<String> {
    let (linear, _operation) = settings.start("another operation");
    let decision = linear.matmul().decision();
    (!decision.uses_npu).then(|| decision.reason.clone())
}

#[test]
fn a_gpu_error_while_programs_are_cut_ends_with_the_gpus_vectors() {
    let Some(device) = testkit::cpu_device() else { return };
    let texts = [vec![5, 9, 2], vec![7]];
    let want = embeddings::encode(&mut embeddings::load(&device, BERT), &texts);
    // The host's copies of rows, and programs of the first and of a later layer.
    let faults = [
        Fault::Allocation { allocation: 1 },
        Fault::Allocation { allocation: 3 },
        Fault::Commands { program: 1 },
        Fault::Commands { program: 7 },
    ];
    for fault in faults {
        let driver = driver();
        let settings = settings(Mode::Force, &driver);
        let mut encoder = embeddings::load(&device, BERT);
        encoder.prepare().unwrap();
        let staging = device.allocated_bytes(Lifetime::Staging);
        encoder.use_npu(&settings, BERT).unwrap();
        device.inject(fault.clone());
        assert_eq!(embeddings::encode(&mut encoder, &texts), want, "{fault:?}");
        let state = only(&settings);
        assert!(!state.decision.uses_npu && state.fallbacks == 1, "{fault:?}: {state:?}");
        let reason = &state.decision.reason;
        assert!(reason.starts_with("given up after an error of the GPU: out of "), "{reason}");
        assert_eq!(driver.leaks(), [""; 0], "{fault:?}: given up, it holds nothing");
        assert_eq!(device.allocated_bytes(Lifetime::Staging), staging, "{fault:?}");
        assert_eq!(obstacle(&settings), None, "{fault:?}: another operation may use it");
    }
    // A lost device loses the GPU's own programs, too.
    let driver = driver();
    let settings = settings(Mode::Force, &driver);
    let mut encoder = embeddings::load(&device, BERT);
    encoder.use_npu(&settings, BERT).unwrap();
    device.inject(Fault::DeviceLost { submission: 2 });
    let slices: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let error = encoder.encode(&slices, &mut |_| true).unwrap_err();
    assert!(matches!(error, model::Error::Gpu(gpu::Error::DeviceLost { .. })), "{error}");
    assert_eq!(only(&settings).fallbacks, 0);
}

#[test]
fn a_gpu_error_while_an_image_encoders_programs_are_cut_ends_with_the_gpus_soft_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    let name = "gemma4_vision_unified";
    let fixture = images::VisionFixture::open(name);
    let image = &fixture.images()[0];
    let runner = || fixture.runner(&device, images::f32_limits(1, 16));
    let want = soft_tokens(&mut runner(), image);
    let allocations = |device: &Device| device.counters().allocations;
    let mut used = 0;
    // Without a fault; when weights are read for the NPU; when the last copy of rows is allocated.
    for fault in [None, Some(1), Some(u64::MAX)] {
        let settings = settings(Mode::Force, &driver());
        let mut on_npu = runner();
        let before = allocations(&device);
        if let Some(number) = fault {
            device.inject(Fault::Allocation { allocation: number.min(used) });
        }
        on_npu.use_npu_for_images(&settings, name).unwrap();
        let state = only(&settings);
        let Some(number) = fault else {
            assert!(state.decision.uses_npu, "{state:?}");
            used = allocations(&device) - before;
            continue;
        };
        assert!(!state.decision.uses_npu && state.fallbacks == 1, "{number}: {state:?}");
        assert!(state.decision.reason.contains("error of the GPU: out of "), "{state:?}");
        assert_eq!(soft_tokens(&mut on_npu, image), want, "{number}");
    }
}

/// A model with attention on the NPU, tokens, and limits with f32 pages.
fn qwen() -> (Fixture, Vec<u32>, Limits) {
    let fixture = Fixture::open("qwen3");
    let ids = fixture.ids.iter().copied().cycle().take(20).collect();
    (fixture, ids, Limits { kv_scheme: KvScheme::F32, ..crate::common::limits(1, 64, 32) })
}

#[test]
fn a_gpu_error_while_a_step_is_cut_ends_with_the_gpus_logits() {
    let Some(device) = testkit::cpu_device() else { return };
    let (fixture, ids, limits) = qwen();
    for fault in [
        Fault::Allocation { allocation: 1 },
        // The cache's pages, which are read for the first layer.
        Fault::Allocation { allocation: 3 },
        Fault::Commands { program: 2 },
    ] {
        let driver = driver();
        let settings = settings(Mode::Force, &driver).with_attention();
        let mut runner = Runner::new(crate::common::load(&device, &fixture.path), limits).unwrap();
        let want = prompt_logits(&mut runner, &ids);
        runner.use_npu_for_attention(&settings, "qwen3");
        device.inject(fault.clone());
        assert_eq!(prompt_logits(&mut runner, &ids), want, "{fault:?}");
        let state = only(&settings);
        assert!(!state.decision.uses_npu && state.fallbacks == 1, "{fault:?}: {state:?}");
        assert!(state.decision.reason.contains("error of the GPU: out of "), "{state:?}");
        assert_eq!(driver.leaks(), [""; 0], "{fault:?}: given up, it holds nothing");
    }
}

#[test]
fn steps_of_all_lengths_share_the_hosts_copies_of_the_longest() {
    let Some(device) = testkit::cpu_device() else { return };
    let (fixture, ids, limits) = qwen();
    let ids: Vec<u32> = ids.into_iter().cycle().take(50).collect();
    let limits = Limits { prefill_chunk: 64, ..limits };
    let settings = settings(Mode::Force, &driver()).with_attention();
    let mut runner = Runner::new(crate::common::load(&device, &fixture.path), limits).unwrap();
    let staging = || device.allocated_bytes(Lifetime::Staging);
    let before = staging();
    runner.use_npu_for_attention(&settings, "qwen3");
    let widest = runner.model().config.attentions().map(|attention| attention.query_rows()).max().unwrap();
    let copies = |rows: u64| 2 * 4 * rows * u64::from(widest);
    for (tokens, rows) in [(17, 32), (50, 64), (20, 64)] {
        prompt_logits(&mut runner, &ids[..tokens]);
        assert_eq!(staging() - before, copies(rows), "after a prompt of {tokens} tokens");
    }
    let state = only(&settings);
    assert!(state.decision.uses_npu && state.products > 0, "{state:?}");
    drop(runner);
    assert_eq!(staging(), before);
}

#[test]
fn attention_stays_on_the_gpu_where_logits_are_reproducible_or_pages_are_int8() {
    let Some(device) = testkit::cpu_device() else { return };
    let (fixture, ids, limits) = qwen();
    for (reproducible, kv_scheme, expected) in [
        (true, KvScheme::F32, "logits would depend on the batch, but they are to be reproducible"),
        (false, KvScheme::Int8, "the KV cache is int8; use --kv f16"),
    ] {
        let limits = Limits { kv_scheme, ..limits };
        let model = crate::common::load_alone(&device, &fixture.path).with_reproducible(reproducible);
        let mut runner = Runner::new(Arc::new(model), limits).unwrap();
        let want = prompt_logits(&mut runner, &ids);
        let driver = driver();
        let settings = settings(Mode::Force, &driver).with_attention();
        runner.use_npu_for_attention(&settings, "qwen3");
        let state = only(&settings);
        assert_eq!((state.decision.uses_npu, state.decision.reason.as_str()), (false, expected));
        assert_eq!(prompt_logits(&mut runner, &ids), want);
        assert_eq!((only(&settings).fallbacks, driver.calls().len()), (0, 0), "it was not opened");
    }
}

#[test]
fn attention_does_not_use_the_npu_unless_it_is_forced() {
    let Some(device) = testkit::cpu_device() else { return };
    let (fixture, ids, limits) = qwen();
    let driver = driver();
    let settings = settings(Mode::Auto, &driver).with_attention();
    let mut runner = Runner::new(crate::common::load(&device, &fixture.path), limits).unwrap();
    let want = prompt_logits(&mut runner, &ids);
    runner.use_npu_for_attention(&settings, "qwen3");
    let state = only(&settings);
    let expected = "the speed of attention is not compared, so it uses the NPU only if that is forced";
    assert_eq!((state.decision.uses_npu, state.decision.reason.as_str()), (false, expected));
    assert_eq!(prompt_logits(&mut runner, &ids), want);
    assert_eq!(driver.calls().len(), 0, "it was not opened");
}

#[test]
fn a_product_that_the_npu_does_not_take_concerns_one_operation() {
    let Some(device) = testkit::cpu_device() else { return };
    let texts = [vec![5, 9, 2], vec![7]];
    let want = embeddings::encode(&mut embeddings::load(&device, BERT), &texts);
    let (settings, left) = limited(usize::MAX, heap_full);
    let mut encoder = embeddings::load(&device, BERT);
    encoder.use_npu(&settings, BERT).unwrap();
    left.store(3, Ordering::Relaxed);
    assert_eq!(embeddings::encode(&mut encoder, &texts), want);
    let state = only(&settings);
    assert!(!state.decision.uses_npu && (state.products, state.fallbacks) == (3, 1), "{state:?}");
    let reason =
        "given up, since it does not take a product: the NPU's device heap has no room for 4096 bytes";
    assert!(state.decision.reason.starts_with(reason), "{state:?}");
    left.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(obstacle(&settings), None);

    let (settings, left) = limited(usize::MAX, timeout);
    let mut encoder = embeddings::load(&device, BERT);
    encoder.use_npu(&settings, BERT).unwrap();
    left.store(3, Ordering::Relaxed);
    assert_eq!(embeddings::encode(&mut encoder, &texts), want);
    let reason = obstacle(&settings).expect("an error of the device ends it for the process");
    assert!(reason.contains("gave it up: given up after an error: the NPU did not finish"), "{reason}");
}

#[test]
fn a_copy_of_the_weights_must_fit_into_system_memory() {
    let Some(device) = testkit::cpu_device() else { return };
    let texts = [vec![5, 9, 2], vec![7]];
    let want = embeddings::encode(&mut embeddings::load(&device, BERT), &texts);
    let run = |mode, available: Option<u64>| {
        let driver = driver();
        let settings = settings(mode, &driver).with_available_memory(move || available);
        let mut encoder = embeddings::load(&device, BERT);
        encoder.use_npu(&settings, BERT).unwrap();
        let vectors = embeddings::encode(&mut encoder, &texts);
        let state = only(&settings);
        assert_eq!(state.fallbacks, 0, "{state:?}");
        if !state.decision.uses_npu {
            assert_eq!((vectors == want, state.products, state.weight_bytes), (true, 0, 0), "{state:?}");
            assert_eq!(driver.leaks(), [""; 0], "it holds nothing");
            assert!(obstacle(&settings).is_none_or(|reason| !reason.contains("gave it up")));
        }
        (state, settings.report().weight_bytes())
    };
    let (state, bytes) = run(Mode::Force, None);
    assert!(state.decision.uses_npu && bytes == state.weight_bytes && bytes > 0, "{state:?}");
    let (state, _) = run(Mode::Force, Some(bytes));
    assert!(state.decision.uses_npu && state.weight_bytes == bytes, "{state:?}");
    let (state, _) = run(Mode::Force, Some(bytes - 1));
    let reason = "its copy of the weights would take ";
    assert!(!state.decision.uses_npu && state.decision.reason.starts_with(reason), "{state:?}");
    // Too little even for the layer that is compared.
    let (state, _) = run(Mode::Auto, Some(1));
    assert!(!state.decision.uses_npu && state.decision.reason.starts_with(reason), "{state:?}");

    let name = "gemma4_vision_unified";
    let fixture = images::VisionFixture::open(name);
    let image = &fixture.images()[0];
    let runner = || fixture.runner(&device, images::f32_limits(1, 16));
    let settings = settings(Mode::Force, &driver()).with_available_memory(|| Some(1));
    let mut on_npu = runner();
    on_npu.use_npu_for_images(&settings, name).unwrap();
    assert_eq!(soft_tokens(&mut on_npu, image), soft_tokens(&mut runner(), image));
    let state = only(&settings);
    assert!(!state.decision.uses_npu && state.decision.reason.starts_with(reason), "{state:?}");
}

#[test]
fn weights_that_the_npu_cannot_store_stay_on_the_gpu() {
    let Some(device) = testkit::cpu_device() else { return };
    let name = "gemma4_vision_unified";
    let fixture = images::VisionFixture::open(name);
    let image = &fixture.images()[0];
    let runner = || fixture.runner(&device, images::f32_limits(1, 16));
    let want = soft_tokens(&mut runner(), image);
    let run = |stores, error| {
        let (settings, _) = limited(stores, error);
        let mut on_npu = runner();
        on_npu.use_npu_for_images(&settings, name).unwrap();
        let got = soft_tokens(&mut on_npu, image);
        (got, only(&settings), obstacle(&settings))
    };
    // None of both matrices.
    let (got, state, obstacle) = run(0, heap_full);
    assert!(got == want && !state.decision.uses_npu && state.products == 0, "{state:?}");
    let reason = "it takes none of the model's matrices: the NPU's device heap has no room";
    assert!(state.decision.reason.starts_with(reason), "{state:?}");
    assert_eq!(obstacle, None);
    // One of them.
    let (got, state, _) = run(1, heap_full);
    assert!(state.decision.uses_npu && (state.products, state.fallbacks) == (1, 0), "{state:?}");
    let difference = difference(&got, &want) / images::largest(&want);
    assert!(difference > 0.0 && difference <= SOFT_TOKEN_ERROR, "{difference}");
    // The driver fails.
    let (got, state, obstacle) = run(1, timeout);
    assert!(got == want && !state.decision.uses_npu, "{state:?}");
    assert!(state.decision.reason.starts_with("given up after an error: the NPU did not"), "{state:?}");
    assert!(obstacle.is_some());
}
