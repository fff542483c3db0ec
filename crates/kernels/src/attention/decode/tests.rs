use gpu::{Caps, Subgroup, Tier, known};
use tensor::KvScheme;

use super::{
    DecodeAttention, Operands, Plan, Shape,
    cases::{self, Buffers, Data, GEMMA, Step},
    policy,
};
use crate::{
    Activations, Vectors,
    attention::{
        kv::{KvLayer, KvShape, KvTable},
        rope::{KeysAndValues, QueryTemperature, Rotation},
    },
    case::Comparison,
};

const SMALL: Shape = Shape { heads: 4, kv_heads: 2, head_dim: 64, ..GEMMA };

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
    for (number, (tier, threads, lanes, keys)) in
        [(Tier::T0, 16, 4, 1), (Tier::T1, 32, 4, 4)].into_iter().enumerate()
    {
        let mut steps = cases::steps();
        steps.retain(|step| step.shape.head_dim < 128 && step.shape.heads != 7);
        for output in [Activations::Int16, Activations::F16] {
            assert!(steps.iter().any(|step| step.shape.output == output), "{output}");
        }
        assert!(steps.iter().any(|step| step.shape.head_dim == 80), "vec8s that do not divide evenly");
        // Every step with one of the plans: compiling a variant takes a second.
        let stride = if testkit::exhaustive() { 1 } else { 2 };
        let steps = steps.iter().zip([3, 1, 7].into_iter().cycle()).skip(number % stride).step_by(stride);
        for (step, splits) in steps {
            let plan =
                Plan { tier, threads, lanes, heads: 1, keys, min_split: 32, splits, subgroup: Subgroup::Any };
            let comparison = cases::run(&device, step, plan).unwrap();
            assert!(comparison.passed(), "{plan:?}, {step:?}: {:?}", comparison.first_mismatch);
        }
    }
    device.assert_no_messages();
}

/// Every switch changes the result: a kernel for one shape does not pass as that for another.
#[test]
fn other_shapes_do_not_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    let normed = Shape { value_norm: true, ..SMALL };
    let from_keys = Shape { keys_and_values: KeysAndValues::ValuesFromKeys, ..SMALL };
    let shared = Shape { keys_and_values: KeysAndValues::Shared, ..SMALL };
    let temperature = |original| Some(QueryTemperature { beta: 0.5, original });
    let shapes = [
        SMALL,
        normed,
        from_keys,
        Shape { value_norm: true, ..from_keys },
        shared,
        Shape { temperature: temperature(17), ..SMALL },
        Shape { temperature: temperature(18), ..SMALL },
    ];
    for (computed, expected) in shapes.into_iter().flat_map(|computed| shapes.map(|shape| (computed, shape)))
    {
        let step = Step { shape: expected, positions: vec![17, 0], inactive: 1 };
        let plan = policy::plan(device.caps(), &computed);
        let (_, comparison) = cases::run_as(&device, computed, &step, plan, &Data::new(&step)).unwrap();
        assert_eq!(comparison.passed(), computed == expected, "{computed:?} for {expected:?}");
    }
}

/// The output bits of a step after each of several runs.
fn bits(device: &gpu::Device, step: &Step, data: &Data, plan: Plan, runs: usize) -> Vec<Vec<u32>> {
    let buffers = Buffers::new(device, step, plan, data).unwrap();
    let mut comparison = Comparison::default();
    let mut run = || {
        buffers.run().unwrap();
        buffers.read(&mut comparison).unwrap()
    };
    let all = (0..runs).map(|_| run()).collect();
    assert!(comparison.first_mismatch.is_none(), "{:?}", comparison.first_mismatch);
    all
}

/// The result must not depend on which workgroup finishes last, and every run must leave the counters at zero.
#[test]
fn repeated_steps_give_identical_bits() {
    let Some(device) = testkit::cpu_device() else { return };
    for output in [Activations::F32, Activations::Int16, Activations::F16] {
        let step = Step { shape: Shape { output, ..SMALL }, positions: vec![210, 3, 130, 0], inactive: 2 };
        let plan = Plan { splits: 5, min_split: 32, ..policy::plan(device.caps(), &step.shape) };
        let runs = bits(&device, &step, &Data::new(&step), plan, 52);
        assert!(runs.iter().all(|run| *run == runs[0]));
    }
    device.assert_no_messages();
}

#[test]
fn rows_are_batch_invariant() {
    let Some(device) = testkit::cpu_device() else { return };
    let all = Step { shape: SMALL, positions: vec![3, 210, 130], inactive: 0 };
    let data = Data::new(&all);
    for splits in [1, 3] {
        let plan = Plan { splits, min_split: 32, ..policy::plan(device.caps(), &SMALL) };
        let together = bits(&device, &all, &data, plan, 1).remove(0);
        for (row, position) in all.positions.iter().enumerate() {
            let alone = Step { positions: vec![*position], ..all.clone() };
            let alone = bits(&device, &alone, &data.row_alone(&all, row), plan, 1).remove(0);
            assert_eq!(alone, together[row * alone.len()..][..alone.len()], "{splits} splits, row {row}");
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
            (16, 1, 96),
            (64, 1, 256),
            (16, 2, 512),
            (32, 4, 512),
        ];
        for (heads, kv_heads, head_dim) in dimensions {
            for window in [0, 512] {
                let shape = Shape { heads, kv_heads, head_dim, window, context_length: 131_072, ..SMALL };
                let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
                let plans = tiers.map(|tier| policy::at_tier(&caps, &shape, tier));
                for plan in plans.chain(policy::candidates(&caps, &shape)) {
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
                }
            }
        }
    }
}

#[test]
fn long_contexts_are_split_where_heads_do_not_fill_the_device() {
    let splits = |caps: &Caps, window, context| {
        let shape =
            Shape { heads: 32, kv_heads: 16, head_dim: 128, window, context_length: context, ..SMALL };
        policy::plan(caps, &shape).splits
    };
    assert_eq!(splits(&known::h200(), 0, 131_072), 16);
    assert_eq!(splits(&known::h200(), 1024, 131_072), 8, "a window of 1024 is worth 8 splits");
    assert_eq!(splits(&known::h200(), 0, 100), 1);
    assert_eq!(splits(&known::radeon_780m(), 0, 131_072), 6);
    let threads = |heads, kv_heads, head_dim| {
        let shape = Shape { heads, kv_heads, head_dim, context_length: 131_072, ..SMALL };
        policy::plan(&known::h200(), &shape).threads
    };
    assert_eq!(threads(8, 1, 512), 256, "128 workgroups for 132 units");
    assert_eq!([threads(32, 4, 512), threads(4, 1, 256)], [128, 128]);
    assert!(policy::candidates(&known::h200(), &SMALL).len() > 20);
    assert_eq!(policy::candidates(&known::mesa_cpu(), &SMALL).len(), 1);
    assert!(policy::is_preferred(&known::h200()) && !policy::is_preferred(&known::mesa_cpu()));
}

#[test]
fn invalid_shapes_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected = |shape| DecodeAttention::new(&device, shape).err().expect("rejected").to_string();
    assert!(DecodeAttention::new(&device, SMALL).is_ok());
    assert!(rejected(Shape { head_dim: 100, ..SMALL }).contains("multiple of 8"));
    assert!(rejected(Shape { head_dim: 72, output: Activations::Int16, ..SMALL }).contains("multiple of 16"));
    assert!(rejected(Shape { output: Activations::Int8, ..SMALL }).contains("not int8"));
    assert!(rejected(Shape { norm: None, value_norm: true, ..SMALL }).contains("normed"));
    assert!(
        rejected(Shape { rotation: Rotation::Grid, ..SMALL }).contains("two dimensions is not for decode")
    );
    assert!(rejected(Shape { heads: 5, ..SMALL }).contains("not a multiple"));
    assert!(rejected(Shape { page_size: 48, ..SMALL }).contains("power of two"));
    assert!(rejected(Shape { head_dim: 80, scheme: KvScheme::Int8, ..SMALL }).contains("groups of 32"));
}

#[test]
fn every_non_empty_split_is_dispatched() {
    for (window, context) in [(0, 131_072), (0, 4096), (1024, 131_072), (512, 32_768)] {
        let shape =
            Shape { heads: 32, kv_heads: 16, head_dim: 128, window, context_length: context, ..SMALL };
        let devices = [known::h200(), known::radeon_780m()];
        for (caps, rows) in devices.iter().flat_map(|caps| [1, 32, 64, 128].map(|rows| (caps, rows))) {
            let plan = policy::plan_for_rows(caps, &shape, rows);
            assert!(plan.threads.is_multiple_of(32) && plan.shared_bytes(&shape) <= caps.max_shared_bytes);
            for position in
                (0..3000).chain([4095, 8191, 20_000, 32_767]).filter(|position| *position < context)
            {
                // As attention_decode.comp counts them.
                let first = if window == 0 { 0 } else { position + 1 - (position + 1).min(window) };
                let blocks = match position > first {
                    true => (position - 1) / plan.block() - first / plan.block() + 1,
                    false => 0,
                };
                let split_blocks = blocks.div_ceil(plan.splits).max(plan.min_blocks());
                let used_splits = blocks.div_ceil(split_blocks).max(1);
                for last in [position, position + 31] {
                    let groups = plan.groups(&shape, rows, last);
                    assert_eq!(groups[..2], [shape.heads / plan.heads, rows]);
                    assert!(
                        (used_splits..=plan.splits).contains(&groups[2]),
                        "{used_splits} of {groups:?} at {position}, {plan:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let kv_shape = KvShape { kv_heads: 2, head_dim: 64, page_size: 16, pages: 1, scheme: KvScheme::F16 };
    let kv = KvLayer::allocate(&mut arena, "kv", kv_shape).unwrap();
    let wide = KvLayer::allocate(&mut arena, "kv", KvShape { scheme: KvScheme::F32, ..kv_shape }).unwrap();
    let memory = arena.buffer("all", 256 * 64 * 4).unwrap();
    let short = memory.slice(0..512).unwrap();
    let table = KvTable { view: memory.view(), stride: 1 };
    let o = Vectors::f32(&mut arena, "o", 256, 2).unwrap();
    let o_int16 = Vectors::int16(&mut arena, "o", 256, 2).unwrap();
    let o_f16 = Vectors::f16(&mut arena, "o", 256, 2).unwrap();
    let plan = Plan { splits: 2, ..policy::plan(device.caps(), &SMALL) };
    let kernel = DecodeAttention::with_plan(&device, SMALL, plan).unwrap();
    let scratch = arena.buffer("scratch", kernel.scratch_bytes(2)).unwrap();
    let operands = || Operands {
        qkv: memory.view(),
        qkv_stride: SMALL.rope().row(),
        bias: None,
        q_weight: Some(memory.view()),
        k_weight: Some(memory.view()),
        coarse: memory.view(),
        fine: memory.view(),
        kv: &kv,
        table: &table,
        positions: memory.view(),
        slots: memory.view(),
        active: memory.view(),
        o: &o,
        scratch: Some(scratch.view()),
        groups: None,
    };
    let mut recorder = device.recorder().unwrap();
    let mut record = |operands: &Operands<'_>| kernel.record(&mut recorder, "attention_decode", 2, operands);
    record(&operands()).unwrap();
    record(&Operands { kv: &wide, ..operands() }).unwrap_err();
    record(&Operands { o: &o_int16, ..operands() }).unwrap_err();
    record(&Operands { o: &o_f16, ..operands() }).unwrap_err();
    record(&Operands { q_weight: None, ..operands() }).unwrap_err();
    record(&Operands { k_weight: None, ..operands() }).unwrap_err();
    record(&Operands { bias: Some(memory.view()), ..operands() }).unwrap_err();
    record(&Operands { qkv_stride: SMALL.rope().row() + 2, ..operands() }).unwrap_err();
    record(&Operands { qkv: short.clone(), ..operands() }).unwrap_err();
    record(&Operands { fine: short, ..operands() }).unwrap_err();
    let reason = record(&Operands { scratch: None, ..operands() }).unwrap_err().to_string();
    assert!(reason.contains("scratch memory"), "{reason}");
    // Fewer rows than columns: allowed, except for int16, whose low bytes follow all columns.
    let mut record = |kernel: &DecodeAttention, rows, o| {
        kernel.record(&mut recorder, "attention_decode", rows, &Operands { o, ..operands() })
    };
    record(&kernel, 1, &o).unwrap();
    record(&kernel, 3, &o).unwrap_err();
    let kernel = DecodeAttention::new(&device, Shape { output: Activations::Int16, ..SMALL }).unwrap();
    record(&kernel, 2, &o_int16).unwrap();
    let reason = record(&kernel, 1, &o_int16).unwrap_err().to_string();
    assert!(reason.contains("1 rows"), "{reason}");
}
