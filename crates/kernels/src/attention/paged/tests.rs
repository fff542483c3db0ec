use gpu::{Caps, Subgroup, Tier, known};
use tensor::KvScheme;

use super::{
    Mode, Operands, PagedAttention,
    cases::{self, Data, Step},
    policy::{self, Plan, Shape},
};
use crate::{
    Vectors,
    attention::kv::{KvLayer, KvShape, KvTable},
    case::Comparison,
};

const SMALL: Shape = Shape {
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    page_size: 16,
    scheme: KvScheme::F16,
    window: 0,
    context_length: 4096,
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

/// Plans of larger GPUs have several clusters. Combining them, and blocks longer than a page, are only
/// covered here.
#[test]
fn plans_of_larger_gpus_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    // Several clusters; blocks of 4 positions, and of 32 in pages of 16.
    for (tier, threads, lanes, keys) in [(Tier::T0, 16, 4, 1), (Tier::T1, 32, 4, 4)] {
        let mut steps = cases::steps();
        steps.retain(|step| step.shape.heads < 4 && step.shape.head_dim < 128 && step.rows.len() > 1);
        assert!(steps.iter().any(|step| step.mode == Mode::Prefill && step.shape.window > 0));
        assert!(steps.iter().any(|step| step.shape.head_dim == 96), "vec8s that do not divide evenly");
        for step in &steps {
            let (rows, splits) = if step.mode == Mode::Decode { (1, 2) } else { (3, 1) };
            let plan = Plan {
                tier,
                threads,
                lanes,
                rows,
                heads: 1,
                keys,
                min_split: 32,
                splits,
                subgroup: Subgroup::Any,
                wide_cpu: false,
            };
            let comparison = cases::run(&device, step, plan).unwrap();
            assert!(comparison.passed(), "{plan:?}, {step:?}: {:?}", comparison.first_mismatch);
        }
    }
    device.assert_no_messages();
}

/// The output bits of one row of a step.
fn bits(device: &gpu::Device, step: &Step, data: &Data, row: usize, splits: u32) -> Vec<u32> {
    let plan = Plan { splits, min_split: 32, ..policy::plan(device.caps(), &step.shape, step.mode) };
    let mut comparison = Comparison::default();
    let o = cases::attend(device, step, plan, data, &mut comparison).unwrap();
    let length = (step.shape.heads * step.shape.head_dim) as usize;
    o[row * length..][..length].to_vec()
}

/// The mask matters: causal attention does not pass as attention to a whole image, nor the reverse.
#[test]
fn causal_rows_and_rows_of_images_differ() {
    let Some(device) = testkit::cpu_device() else { return };
    for step in cases::image_steps(SMALL) {
        let plan = policy::plan(device.caps(), &SMALL, Mode::Prefill);
        let causal = step.clone().with_images(&[]);
        assert!(cases::run_as(&device, &step, &step, plan).unwrap().passed(), "{step:?}");
        assert!(!cases::run_as(&device, &causal, &step, plan).unwrap().passed(), "{step:?}");
        assert!(!cases::run_as(&device, &step, &causal, plan).unwrap().passed(), "{step:?}");
    }
}

#[test]
fn rows_are_batch_invariant() {
    let Some(device) = testkit::cpu_device() else { return };
    let rows = vec![(0, 210), (1, 3), (2, 130)];
    let all = Step {
        shape: SMALL,
        mode: Mode::Decode,
        rows,
        images: vec![],
        inactive_before: 0,
        inactive_after: 0,
        query_scale: 3.0,
    };
    let data = Data::new(&all);
    for splits in [1, 2] {
        // The first row alone, among others, and last in a batch: always the same bits.
        let alone = Step { rows: all.rows[..1].to_vec(), inactive_after: 0, ..all.clone() };
        assert_eq!(bits(&device, &alone, &data, 0, splits), bits(&device, &all, &data, 0, splits));
    }
}

#[test]
fn prefill_rows_do_not_depend_on_their_tile() {
    let Some(device) = testkit::cpu_device() else { return };
    for (window, images) in [(0, vec![]), (20, vec![]), (15, vec![(0, 33..43), (0, 43..47)])] {
        let rows = (30..50).map(|position| (0, position)).collect();
        let shape = Shape { window, ..SMALL };
        let all = Step {
            shape,
            mode: Mode::Prefill,
            rows,
            images,
            inactive_before: 0,
            inactive_after: 0,
            query_scale: 3.0,
        };
        let data = Data::new(&all);
        let q_row = (shape.heads * shape.head_dim) as usize;
        for skipped in [1, 7, 19] {
            let mut later = Data::new(&all);
            later.q = data.q[skipped * q_row..].to_vec();
            let step = Step { rows: all.rows[skipped..].to_vec(), ..all.clone() };
            assert_eq!(bits(&device, &step, &later, 0, 1), bits(&device, &all, &data, skipped, 1));
            // Decoding the same row may differ by rounding only.
            let single = Step { rows: step.rows[..1].to_vec(), mode: Mode::Decode, ..all.clone() };
            let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect::<Vec<_>>();
            let decoded = floats(bits(&device, &single, &later, 0, 2));
            for (a, b) in decoded.into_iter().zip(floats(bits(&device, &all, &data, skipped, 1))) {
                assert!((a - b).abs() < 1e-5, "{a} decoded, {b} prefilled");
            }
        }
    }
}

#[test]
fn plans_fit_the_device() {
    let only_64 = Caps { min_subgroup_size: 64, subgroup_size_control: false, ..known::radeon_780m() };
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
        only_64,
    ] {
        let dimensions = [
            (4, 1, 256),
            (32, 16, 128),
            (9, 3, 64),
            (7, 1, 128),
            (8, 8, 80),
            (16, 16, 72),
            (16, 1, 96),
            (64, 1, 256),
            (16, 2, 512),
            (32, 4, 512),
        ];
        for (heads, kv_heads, head_dim) in dimensions {
            for (mode, window) in [(Mode::Decode, 0), (Mode::Decode, 512), (Mode::Prefill, 0)] {
                let shape = Shape { heads, kv_heads, head_dim, window, context_length: 131_072, ..SMALL };
                for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
                    let plan = policy::at_tier(&caps, &shape, mode, tier);
                    let text = format!("{plan:?} for {shape:?}");
                    assert!(plan.threads > 0 && plan.threads <= caps.max_threads, "{text}");
                    let subgroup = match plan.subgroup {
                        Subgroup::Exactly(size) => size,
                        Subgroup::Any => caps.max_subgroup_size,
                    };
                    assert!(
                        plan.threads.is_multiple_of(subgroup),
                        "{text}: not a multiple of the subgroup size"
                    );
                    assert!(plan.lanes.is_power_of_two() && plan.lanes <= subgroup, "{text}");
                    assert!((heads / kv_heads).is_multiple_of(plan.heads), "{text}");
                    assert!(plan.block().is_power_of_two(), "{text}: blocks would straddle pages");
                    assert!(plan.shared_bytes(&shape) <= caps.max_shared_bytes, "{text}");
                    assert!(mode == Mode::Decode || plan.splits == 1, "{text}");
                    assert!(mode == Mode::Prefill || plan.rows == 1, "{text}");
                }
            }
        }
    }
}

#[test]
fn long_contexts_are_split_where_heads_do_not_fill_the_device() {
    let splits = |caps: &Caps, heads, kv_heads, window, context| {
        let shape = Shape { heads, kv_heads, head_dim: 128, window, context_length: context, ..SMALL };
        policy::plan(caps, &shape, Mode::Decode).splits
    };
    let h200 = known::h200();
    assert_eq!(splits(&h200, 32, 16, 0, 131_072), 33, "528 workgroups for 132 units");
    assert_eq!(splits(&h200, 32, 16, 1024, 131_072), 8, "a window of 1024 is worth 8 splits");
    assert_eq!(splits(&h200, 32, 16, 0, 100), 1);
    assert_eq!(splits(&known::radeon_780m(), 32, 16, 0, 131_072), 3);
}

#[test]
fn invalid_shapes_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected =
        |shape| PagedAttention::new(&device, shape, Mode::Decode).err().expect("rejected").to_string();
    assert!(PagedAttention::new(&device, SMALL, Mode::Decode).is_ok());
    assert!(rejected(Shape { head_dim: 100, ..SMALL }).contains("multiple of 8"));
    assert!(rejected(Shape { head_dim: 520, ..SMALL }).contains("up to 512"));
    assert!(rejected(Shape { heads: 5, ..SMALL }).contains("not a multiple"));
    assert!(rejected(Shape { page_size: 48, ..SMALL }).contains("power of two"));
    assert!(rejected(Shape { head_dim: 80, scheme: KvScheme::Int8, ..SMALL }).contains("groups of 32"));
    assert!(rejected(Shape { page_size: 2, scheme: KvScheme::Int8, ..SMALL }).contains("at least 4"));
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let kv_shape = KvShape { kv_heads: 2, head_dim: 64, page_size: 16, pages: 1, scheme: KvScheme::F16 };
    let kv = KvLayer::allocate(&mut arena, "kv", kv_shape).unwrap();
    let wide = KvLayer::allocate(&mut arena, "kv", KvShape { scheme: KvScheme::F32, ..kv_shape }).unwrap();
    let memory = arena.buffer("all", 2 * 256 * 4).unwrap();
    let table = KvTable { view: memory.view(), stride: 1 };
    let o = Vectors::f32(&mut arena, "o", 256, 2).unwrap();
    let o_int8 = Vectors::int8(&mut arena, "o", 256, 2).unwrap();
    let more_rows = Vectors::f32(&mut arena, "o", 256, 3).unwrap();
    let plan = Plan { splits: 2, ..policy::plan(device.caps(), &SMALL, Mode::Decode) };
    let kernel = PagedAttention::with_plan(&device, SMALL, plan).unwrap();
    let scratch = arena.buffer("scratch", kernel.scratch_bytes(2)).unwrap();
    let operands = || Operands {
        q: memory.view(),
        kv: &kv,
        table: &table,
        positions: memory.view(),
        last_visible: memory.view(),
        slots: memory.view(),
        active: memory.view(),
        chunk_ends: Some(memory.view()),
        o: &o,
        scratch: Some(scratch.view()),
    };
    let mut recorder = device.recorder().unwrap();
    let mut record = |operands: &Operands<'_>| kernel.record(&mut recorder, "attention_paged", 2, operands);
    record(&operands()).unwrap();
    record(&Operands { kv: &wide, ..operands() }).unwrap_err();
    record(&Operands { o: &o_int8, ..operands() }).unwrap_err();
    record(&Operands { o: &more_rows, ..operands() }).unwrap_err();
    record(&Operands { chunk_ends: None, ..operands() }).unwrap();
    record(&Operands { chunk_ends: Some(memory.slice(0..0).unwrap()), ..operands() }).unwrap_err();
    let short = record(&Operands { scratch: None, ..operands() }).unwrap_err().to_string();
    assert!(short.contains("scratch memory"), "{short}");
    record(&Operands { scratch: Some(scratch.slice(0..1024).unwrap()), ..operands() }).unwrap_err();
    record(&Operands { active: memory.slice(0..4).unwrap(), ..operands() }).unwrap_err();
    record(&Operands { last_visible: memory.slice(0..4).unwrap(), ..operands() }).unwrap_err();
    kernel.record(&mut recorder, "attention_paged", 3, &operands()).unwrap_err();
}
