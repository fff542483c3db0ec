use gpu::{Caps, Device, Tier, known};
use tensor::KvScheme;

use super::{
    FlashAttention, Output,
    cases::{self, prefill},
    policy::{self, Plan, Shape},
};
use crate::{
    Vectors,
    attention::{
        kv::{KvLayer, KvShape, KvTable},
        paged::{
            Operands,
            cases::{Data, Step, image_steps},
        },
    },
    case::Comparison,
    matmul::coopmat::policy::Fragments,
};

const SMALL: Shape = Shape {
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    page_size: 64,
    scheme: KvScheme::F16,
    window: 0,
    context_length: 4096,
};

/// The data flow is the same without cooperative matrices.
#[test]
fn all_steps_on_the_cpu_driver() {
    let Some(device) = testkit::cpu_device() else { return };
    for (i, step) in cases::steps().iter().enumerate() {
        let plan = policy::emulated(device.caps(), &step.shape).expect("a plan for every step");
        let output = if i % 4 == 1 { Output::F32 } else { Output::F16 };
        check(&device, step, output, plan);
    }
    for step in cases::mixed_steps().iter().chain(cases::steps().iter().step_by(4)) {
        let plan = policy::emulated(device.caps(), &step.shape).expect("a plan for every step");
        check(&device, step, Output::F16, plan.with_independent_rows(&step.shape));
    }
    device.assert_no_messages();
}

/// Queries, keys and values as rows.
#[test]
fn rows_on_the_cpu_driver() {
    let Some(device) = testkit::cpu_device() else { return };
    for (shape, lengths) in cases::row_shapes() {
        let plan = policy::emulated(device.caps(), &shape).expect("a plan for every shape");
        let comparison = cases::run_rows(&device, shape, lengths, plan).unwrap();
        assert!(comparison.passed(), "{shape:?}: {:?}", comparison.first_mismatch);
    }
    device.assert_no_messages();
}

/// Plans of devices with more or less shared memory: other blocks, other tiles.
#[test]
fn plans_of_other_devices_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    let int8 = Shape { scheme: KvScheme::Int8, window: 50, ..SMALL };
    let steps = [prefill(SMALL, 70, 37), prefill(int8, 100, 19)];
    for (step, (subgroups, keys, chains)) in steps
        .iter()
        .flat_map(|step| [(1, 16, 4), (3, 32, 1), (1, 64, 1), (4, 16, 2)].map(|plan| (step, plan)))
    {
        let plan = Plan { subgroups, keys, chains, ..policy::emulated(device.caps(), &step.shape).unwrap() };
        assert!(plan.shared_bytes(&step.shape) <= device.caps().max_shared_bytes, "{plan:?}");
        check(&device, step, Output::F16, plan);
    }
    device.assert_no_messages();
}

/// Heads in parts, in the lengths that the CPU driver's shared memory holds.
#[test]
fn heads_in_parts_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    let long = Shape { heads: 8, kv_heads: 2, head_dim: 128, window: 50, ..SMALL };
    let int8 = Shape { heads: 7, kv_heads: 1, head_dim: 192, scheme: KvScheme::Int8, ..SMALL };
    let with_image = prefill(long, 100, 19).with_images(&[(1, 103..117)]);
    let rows = [prefill(SMALL, 70, 37), with_image, prefill(int8, 30, 11)];
    for (step, (subgroups, head_parts, keys)) in rows
        .iter()
        .zip([(4, 2, 32), (4, 4, 16), (2, 2, 16)])
        .chain(rows[1..].iter().zip([(8, 4, 16), (6, 6, 16)]))
    {
        let plan =
            Plan { subgroups, head_parts, keys, ..policy::emulated(device.caps(), &step.shape).unwrap() };
        assert!(plan.shared_bytes(&step.shape) <= device.caps().max_shared_bytes, "{plan:?}");
        check(&device, step, Output::F16, plan);
        check(&device, step, Output::F32, plan.with_independent_rows(&step.shape));
    }
    let mixed = &cases::mixed_steps()[2];
    let plan = Plan { head_parts: 4, ..policy::emulated(device.caps(), &mixed.shape).unwrap() };
    check(&device, mixed, Output::F16, plan.with_independent_rows(&mixed.shape));
    device.assert_no_messages();
}

fn check(device: &Device, step: &Step, output: Output, plan: Plan) {
    let comparison = cases::run(device, step, output, plan).unwrap();
    assert!(comparison.passed(), "{plan:?}, {step:?}: {:?}", comparison.first_mismatch);
}

/// The mask matters: causal attention does not pass as attention to a whole image, nor the reverse.
#[test]
fn causal_rows_and_rows_of_images_differ() {
    let Some(device) = testkit::cpu_device() else { return };
    for step in image_steps(SMALL) {
        let plan = policy::emulated(device.caps(), &SMALL).unwrap();
        let passed = |computed: &Step, step: &Step| {
            cases::run_as(&device, computed, step, Output::F16, plan).unwrap().passed()
        };
        let causal = step.clone().with_images(&[]);
        assert!(passed(&step, &step) && !passed(&causal, &step) && !passed(&step, &causal), "{step:?}");
    }
}

#[test]
fn rows_do_not_depend_on_their_tile() {
    let Some(device) = testkit::cpu_device() else { return };
    let bits = |step: &Step, data: &Data, row: usize| {
        let plan = policy::emulated(device.caps(), &step.shape).unwrap();
        let plan = Plan { subgroups: 2, keys: 16, ..plan };
        let mut comparison = Comparison::default();
        let o = cases::attend(&device, step, Output::F32, plan, data, &mut comparison).unwrap();
        let length = (step.shape.heads * step.shape.head_dim) as usize;
        o[row * length..][..length].to_vec()
    };
    for (window, images) in [(0, vec![]), (20, vec![]), (15, vec![(1, 33..50), (1, 50..69)])] {
        let all = Step { query_scale: 9.0, images, ..prefill(Shape { window, ..SMALL }, 30, 40) };
        let data = Data::new(&all);
        let q_row = (SMALL.heads * SMALL.head_dim) as usize;
        for skipped in [1, 7, 19, 39] {
            let mut later = Data::new(&all);
            later.q = data.q[skipped * q_row..].to_vec();
            let step = Step { rows: all.rows[skipped..].to_vec(), ..all.clone() };
            assert_eq!(bits(&step, &later, 0), bits(&all, &data, skipped), "{skipped} rows skipped");
        }
        // And without the rows after it.
        let fewer = Step { rows: all.rows[..23].to_vec(), ..all.clone() };
        assert_eq!(bits(&fewer, &data, 22), bits(&all, &data, 22));
    }
}

#[test]
fn without_active_rows_nothing_is_written() {
    let Some(device) = testkit::cpu_device() else { return };
    let some = prefill(SMALL, 5, 3);
    let data = Data::new(&some);
    let none = Step { rows: vec![], inactive_after: 3, ..some };
    let plan = policy::emulated(device.caps(), &SMALL).unwrap();
    let o = cases::attend(&device, &none, Output::F16, plan, &data, &mut Comparison::default()).unwrap();
    assert!(o.iter().all(|word| *word == crate::case::POISON));
}

#[test]
fn plans_fit_the_device() {
    let small_shared = Caps { max_shared_bytes: 24576, ..known::h200() };
    for caps in [known::h200(), known::radeon_780m(), small_shared] {
        for (heads, kv_heads, head_dim) in
            [(4, 1, 256), (32, 16, 128), (9, 3, 64), (7, 1, 32), (8, 8, 80), (16, 2, 512), (16, 16, 72)]
        {
            for page_size in [16, 64, 256] {
                let shape = Shape { heads, kv_heads, head_dim, page_size, ..SMALL };
                let plan = policy::plan(&caps, Fragments::Other, &shape);
                let text = format!("{plan:?} for {shape:?}");
                let Some(plan) = plan else {
                    assert!(caps.max_shared_bytes == 24576 && head_dim > 128, "{text}");
                    continue;
                };
                assert!(plan.threads() <= caps.max_threads && plan.tier == Tier::T2, "{text}");
                assert!(plan.shared_bytes(&shape) <= caps.max_shared_bytes, "{text}");
                assert!(plan.keys <= page_size && [16, 32, 64].contains(&plan.keys), "{text}");
                assert!(
                    caps.max_shared_bytes == 24576
                        || plan.subgroups == if heads == kv_heads { 8 } else { 4 * plan.head_parts.min(2) },
                    "{text}"
                );
                assert!(plan.head_parts == 1 || head_dim > 256, "{text}");
                for other in policy::plans(&caps, Fragments::Other, &shape) {
                    assert!(other.shared_bytes(&shape) <= caps.max_shared_bytes, "{other:?} for {shape:?}");
                    assert!(other.check(&shape).is_ok(), "{other:?} for {shape:?}");
                }
            }
        }
    }
}

#[test]
fn image_encoders_get_large_tiles() {
    let shape = Shape { heads: 16, kv_heads: 16, head_dim: 72, ..SMALL };
    for caps in [known::h200(), known::radeon_780m()] {
        let plan = policy::plan(&caps, Fragments::Other, &shape).unwrap();
        assert_eq!((plan.pairs(), plan.keys, plan.queries_in_registers), (128, 32, true), "{plan:?}");
        // In shared memory: 2 · 32 lines of 80 values, and the scores and weights of 8 subgroups.
        assert_eq!(plan.shared_bytes(&shape), (64 * 11 + 8 * 240) * 16);
    }
    let plan = policy::plan(&known::h200(), Fragments::FourThreadsPerRow, &shape).unwrap();
    assert_eq!((plan.pairs(), plan.keys, plan.subgroups), (128, 64, 4), "{plan:?}");
    // Queries, keys and values; no scores.
    assert_eq!(plan.shared_bytes(&shape), (128 + 128) * 11 * 16);
}

#[test]
fn devices_with_cooperative_matrices_have_cases() {
    let names = |caps: &Caps| cases::cases(caps).into_iter().map(|case| case.name).collect::<Vec<_>>();
    let h200 = names(&known::h200());
    assert!(h200.len() > cases::steps().len(), "{h200:?}");
    let distinct: std::collections::HashSet<_> = h200.iter().collect();
    assert_eq!(distinct.len(), h200.len());
    let what = [
        "× 512 f16",
        "× 256 f16",
        "× 128 f16",
        "× 72 f16",
        "× 64 f16",
        "softmax in registers",
        "in parts",
        "images",
    ];
    for what in what {
        assert!(h200.iter().any(|name| name.contains(what)), "{what}");
    }
    assert!(names(&known::mesa_cpu()).is_empty());
}

#[test]
fn unsupported_shapes_have_no_plan() {
    let caps = known::h200();
    assert!(policy::plan(&caps, Fragments::Other, &SMALL).is_some());
    let unsupported = [
        Shape { scheme: KvScheme::F32, ..SMALL },
        Shape { head_dim: 264, ..SMALL },
        Shape { head_dim: 528, ..SMALL },
        Shape { head_dim: 272, ..SMALL },
        Shape { head_dim: 16, ..SMALL },
        Shape { page_size: 8, ..SMALL },
    ];
    for shape in unsupported {
        assert_eq!(policy::plan(&caps, Fragments::Other, &shape), None, "{shape:?}");
    }
    let no_f16 =
        caps.cooperative_matrix.iter().copied().filter(|shape| shape.a != gpu::Element::F16).collect();
    let devices = [
        known::mesa_cpu(),
        known::bare_vulkan_13(),
        Caps { cooperative_matrix: no_f16, ..known::h200() },
        Caps { min_subgroup_size: 64, max_subgroup_size: 64, ..known::radeon_780m() },
        Caps { max_shared_bytes: 4096, ..known::h200() },
    ];
    for caps in devices {
        assert_eq!(policy::plan(&caps, Fragments::Other, &SMALL), None, "{caps:?}");
        assert!(policy::variants(&caps).is_empty() || caps.max_shared_bytes == 4096);
    }
    let Some(device) = testkit::cpu_device() else { return };
    assert!(FlashAttention::new(&device, SMALL, Output::F16).unwrap().is_none());
}

#[test]
fn invalid_shapes_and_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let plan = policy::emulated(device.caps(), &SMALL).unwrap();
    let rejected = |shape| {
        let error = FlashAttention::with_plan(&device, shape, Output::F16, plan).err().expect("rejected");
        error.to_string()
    };
    assert!(rejected(Shape { head_dim: 76, ..SMALL }).contains("multiple of 8"));
    let in_parts = Plan { head_parts: 2, ..plan }.check(&Shape { head_dim: 72, ..SMALL }).unwrap_err();
    assert!(in_parts.contains("multiple of 32"), "{in_parts}");
    assert!(rejected(Shape { scheme: KvScheme::F32, ..SMALL }).contains("f16"));
    assert!(rejected(Shape { page_size: 8, ..SMALL }).contains("pages of 8"));
    assert!(rejected(Shape { heads: 5, ..SMALL }).contains("not a multiple"));

    let mut arena = crate::case::arena(&device);
    let kv_shape = KvShape { kv_heads: 2, head_dim: 64, page_size: 64, pages: 1, scheme: KvScheme::F16 };
    let kv = KvLayer::allocate(&mut arena, "kv", kv_shape).unwrap();
    let int8 = KvLayer::allocate(&mut arena, "kv", KvShape { scheme: KvScheme::Int8, ..kv_shape }).unwrap();
    let memory = arena.buffer("all", 2 * 256 * 4).unwrap();
    let table = KvTable { view: memory.view(), stride: 1 };
    let o = Vectors::f16(&mut arena, "o", 256, 2).unwrap();
    let o_f32 = Vectors::f32(&mut arena, "o", 256, 2).unwrap();
    let short = Vectors::f16(&mut arena, "o", 128, 2).unwrap();
    let more_rows = Vectors::f16(&mut arena, "o", 256, 3).unwrap();
    let kernel = FlashAttention::with_plan(&device, SMALL, Output::F16, plan).unwrap();
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
        scratch: None,
    };
    let mut recorder = device.recorder().unwrap();
    let mut record = |operands: &Operands<'_>| kernel.record(&mut recorder, "attention_flash", 2, operands);
    record(&operands()).unwrap();
    record(&Operands { kv: &int8, ..operands() }).unwrap_err();
    record(&Operands { o: &o_f32, ..operands() }).unwrap_err();
    record(&Operands { o: &short, ..operands() }).unwrap_err();
    record(&Operands { o: &more_rows, ..operands() }).unwrap_err();
    record(&Operands { chunk_ends: None, ..operands() }).unwrap();
    record(&Operands { chunk_ends: Some(memory.slice(0..0).unwrap()), ..operands() }).unwrap_err();
    record(&Operands { active: memory.slice(0..4).unwrap(), ..operands() }).unwrap_err();
    record(&Operands { last_visible: memory.slice(0..4).unwrap(), ..operands() }).unwrap_err();
    kernel.record(&mut recorder, "attention_flash", 3, &operands()).unwrap_err();
}
