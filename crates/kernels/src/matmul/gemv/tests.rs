use gpu::{Subgroup, Tier, known};
use tensor::{Layout, Scheme};

use super::{
    Source, cases, equal, policy,
    policy::{Prologue, Shape},
};
use crate::{
    Activations, Epilogue, OutputFormat, Target,
    matmul::{
        common::{expert_trial::SummedTrial, trial::Trial},
        coopmat::policy::Fragments,
    },
};

fn shape(rows: usize, k: usize, columns: usize) -> Shape {
    let weights = Layout::new(Scheme::Int8, rows, k).unwrap();
    Shape::plain(weights, columns, Activations::Int8)
}

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn plans_of_larger_gpus_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    // The CPU driver's own plan has one slice: reductions, loads in flight and grids smaller than the matrix
    // are only covered here. Not every scheme with every plan: compiling one takes a second.
    for (tier, threads, in_flight, groups, teams, strips) in [
        (Tier::T1, 64, 1, 9, 1, 1),
        (Tier::T0, 224, 2, 3, 1, 2),
        (Tier::T0, 256, 1, 1, 4, 1),
        (Tier::T1, 1024, 2, 2, 2, 2),
    ] {
        let (subgroup, lanes, x_in_shared) = (Subgroup::Any, None, false);
        let plan =
            policy::Plan { tier, threads, teams, strips, in_flight, groups, x_in_shared, subgroup, lanes };
        for (scheme, activations) in [
            (Scheme::Int8, Activations::Int8),
            (Scheme::Int4, Activations::Int16),
            (Scheme::Int4Min, Activations::Int16),
            (Scheme::Int8Min, Activations::F32),
            (Scheme::Bf16, Activations::F32),
        ] {
            let trial = Trial::plain(Layout::new(scheme, 70, 1152).unwrap(), 2);
            let trial = Trial { activations, ..trial };
            let comparison = cases::run(&device, trial, plan, device.caps()).unwrap();
            assert!(comparison.passed(), "{plan:?}: {:?}", comparison.first_mismatch);
            if strips == 2 {
                let weights = Layout::new(scheme, 96, 640).unwrap();
                let output = if activations == Activations::Int16 { activations } else { Activations::F32 };
                let trial = Trial { weights, epilogue: Epilogue::Geglu, output, ..trial };
                let comparison = cases::run(&device, trial, plan, device.caps()).unwrap();
                assert!(comparison.passed(), "geglu, {plan:?}: {:?}", comparison.first_mismatch);
            }
        }
    }
    device.assert_no_messages();
}

#[test]
fn sums_over_experts_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    for (scheme, threads, teams, strips, groups) in
        [(Scheme::Int8, 768, 1, 1, 3), (Scheme::Int4, 256, 2, 2, 2), (Scheme::Int8Min, 96, 1, 2, 1)]
    {
        let weights = Layout::new(scheme, 48, 384).unwrap();
        let trial = SummedTrial { weights, experts: 5, per_token: 8, rows: 3 };
        let shape = Shape::plain(weights, 1, Activations::Int16);
        let plan = policy::summed_experts_plan(device.caps(), &shape, trial.per_token, 1).unwrap();
        let plan = policy::Plan { threads, teams, strips, groups, ..plan };
        let kernel =
            super::Gemv::for_summed_experts(&device, shape, plan, trial.experts, trial.per_token).unwrap();
        let comparison = cases::run_summed(&device, trial, kernel).unwrap();
        assert!(comparison.passed(), "{plan:?}: {:?}", comparison.first_mismatch);
    }
    device.assert_no_messages();
}

#[test]
fn products_over_experts_fill_the_device_like_one_matrix() {
    let caps = known::h200();
    let gate_up = Shape {
        epilogue: Epilogue::Swiglu,
        output: Activations::Int16,
        ..Shape::plain(Layout::new(Scheme::Int8, 1536, 2048).unwrap(), 1, Activations::Int16)
    };
    let plan = policy::expert_plan(&caps, &gate_up, 8);
    // 48 panels per expert.
    assert_eq!((plan.teams, plan.groups), (3, 16), "{plan:?}");
    let down = Shape::plain(Layout::new(Scheme::Int8, 2048, 768).unwrap(), 1, Activations::Int16);
    let plan = policy::summed_experts_plan(&caps, &down, 8, 1).unwrap();
    assert_eq!((plan.threads, plan.groups), (768, 128), "{plan:?}");
    // A workgroup per compute unit with four rows too: x is copied as often as with one.
    let four = policy::summed_experts_plan(&caps, &down, 8, 4).unwrap();
    assert_eq!((four.threads, four.teams, four.groups), (768, 4, 32), "{four:?}");
    assert!(plan.shared_bytes(&down) < caps.max_shared_bytes);
    let f32 = Shape { activations: Activations::F32, ..down };
    assert!(policy::summed_experts_plan(&caps, &f32, 8, 1).is_none());
    let long = Shape::plain(Layout::new(Scheme::Int8, 2048, 8192).unwrap(), 1, Activations::Int16);
    assert!(policy::summed_experts_plan(&caps, &long, 8, 1).is_none(), "x does not fit shared memory");
}

#[test]
fn columns_beside_others_get_the_same_bits() {
    let Some(device) = testkit::cpu_device() else { return };
    // The self-test's cases have one plan of one column for every scheme, and the CPU shader's for all of f32.
    assert_eq!(equal::cases(device.caps()).len(), 14);
    // Other plans of one column: seven slices, two teams, several quads in flight.
    let weights = Layout::new(Scheme::Int4, 64, 1152).unwrap();
    let norm = Prologue::AddAndNorm { partials: 1, post_norm: false, scaled: true };
    let shape = Shape { prologue: norm, ..Shape::plain(weights, 1, Activations::Int16) };
    let base = policy::plan(device.caps(), &shape);
    for (threads, teams, strips, in_flight) in [(224, 1, 1, 1), (256, 2, 2, 2)] {
        let plan = policy::Plan { threads, teams, strips, in_flight, groups: 2, ..base };
        let comparison = equal::compare(&device, shape, plan, &[2, 4]).unwrap();
        assert!(comparison.passed(), "{plan:?}: {:?}", comparison.first_mismatch);
    }
    device.assert_no_messages();
}

#[test]
fn plans_with_the_sums_of_one_column_fit_the_device() {
    let mut on_matrices = 0;
    let only_64 = gpu::Caps { min_subgroup_size: 64, subgroup_size_control: false, ..known::radeon_780m() };
    for caps in [known::h200(), known::radeon_780m(), only_64] {
        assert!(policy::has_equal_sums(&caps));
        for (scheme, activations) in [
            (Scheme::Int8, Activations::Int16),
            (Scheme::Int4, Activations::Int16),
            (Scheme::F16, Activations::F32),
        ] {
            for (rows, k) in
                [(32, 32), (5376, 4096), (43008, 5376), (5376, 21504), (262_144, 640), (1152, 6912)]
            {
                let weights = Layout::new(scheme, rows, k).unwrap();
                let plain = Shape::plain(weights, 1, activations);
                let splits =
                    if activations == Activations::Int16 { policy::splits(&caps, &weights) } else { 1 };
                let gated = Shape { epilogue: Epilogue::Geglu, output: activations, ..plain };
                for one in [plain, Shape { splits, ..plain }, gated] {
                    for one_column in policy::candidates(&caps, &one) {
                        for (columns, fragments) in (2..=8).flat_map(|columns| {
                            [Fragments::Other, Fragments::FourThreadsPerRow]
                                .map(|fragments| (columns, fragments))
                        }) {
                            let shape = Shape { columns, ..one };
                            let plan = policy::with_sums_of(&caps, fragments, &shape, &one_column);
                            assert_eq!(plan.slices_per_team(), one_column.slices_per_team(), "{plan:?}");
                            assert!(plan.threads <= caps.max_threads, "{plan:?}");
                            let matrices = columns > 4 && fragments != Fragments::Other;
                            assert!(plan.tier < Tier::T2 || matrices, "{plan:?}");
                            on_matrices += usize::from(plan.tier == Tier::T2);
                            assert!(plan.shared_bytes(&shape) <= caps.max_shared_bytes, "{plan:?}");
                            assert!(plan.strips >= one.epilogue.strips() as u32, "{plan:?}");
                            assert!(
                                plan.groups.is_multiple_of(shape.splits) && plan.groups <= caps.max_groups,
                                "{plan:?}"
                            );
                            if plan.subgroup == Subgroup::Any {
                                assert!(plan.threads.is_multiple_of(caps.max_subgroup_size), "{plan:?}");
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(on_matrices > 100, "{on_matrices} plans");
    assert!(!policy::has_equal_sums(&known::bare_vulkan_13()), "without packed dot products");
}

#[test]
fn teams_share_the_x_of_their_prologue() {
    let Some(device) = testkit::cpu_device() else { return };
    let norm = Prologue::AddAndNorm { partials: 2, post_norm: true, scaled: false };
    for (threads, teams, strips, groups) in [(128, 2, 2, 3), (256, 4, 2, 2), (96, 1, 2, 1)] {
        let base = policy::plan(
            device.caps(),
            &Shape::plain(Layout::new(Scheme::Int8, 16, 128).unwrap(), 1, Activations::Int16),
        );
        for (prologue, epilogue, splits) in
            [(norm, Epilogue::Geglu, 1), (norm, Epilogue::None, 1), (Prologue::None, Epilogue::None, 3)]
        {
            for scheme in [Scheme::Int8, Scheme::Int4Min] {
                let weights = Layout::new(scheme, 224, 1152).unwrap();
                let shape =
                    Shape { prologue, epilogue, splits, ..Shape::plain(weights, 1, Activations::Int16) };
                let plan = policy::Plan { threads, teams, strips, groups: groups * splits, ..base };
                let comparison = cases::run_with_shared_x(&device, shape, plan, device.caps()).unwrap();
                assert!(comparison.passed(), "{shape:?}, {plan:?}: {:?}", comparison.first_mismatch);
            }
        }
    }
    device.assert_no_messages();
}

#[test]
fn plans_with_x_in_shared_memory_fit_the_device() {
    let only_64 = gpu::Caps { min_subgroup_size: 64, subgroup_size_control: false, ..known::radeon_780m() };
    let large_64 = gpu::Caps { compute_units: Some(120), ..only_64.clone() };
    for caps in [known::h200(), known::radeon_780m(), known::mesa_cpu(), only_64, large_64] {
        for scheme in [Scheme::Int8, Scheme::Int4] {
            for (rows, k) in
                [(32, 32), (5376, 4096), (43008, 5376), (5376, 21504), (262_144, 640), (1152, 6912)]
            {
                let weights = Layout::new(scheme, rows, k).unwrap();
                let plain = Shape::plain(weights, 1, Activations::Int16);
                let split = Shape { splits: policy::splits(&caps, &weights), ..plain };
                let gated = Shape { epilogue: Epilogue::Geglu, output: Activations::Int16, ..plain };
                for shape in [plain, split, gated] {
                    for plan in policy::candidates(&caps, &shape) {
                        let (threads, shared) = (plan.threads, plan.shared_bytes(&shape));
                        assert!(
                            threads.is_multiple_of(32 * plan.teams) && threads <= caps.max_threads,
                            "{plan:?}"
                        );
                        if plan.subgroup == Subgroup::Any {
                            assert!(
                                threads.is_multiple_of(caps.max_subgroup_size.max(32)),
                                "{plan:?}: not a multiple of the subgroup size"
                            );
                        }
                        assert!(
                            plan.groups.is_multiple_of(shape.splits) && plan.groups <= caps.max_groups,
                            "{plan:?}"
                        );
                        assert!(
                            shared <= caps.max_shared_bytes,
                            "{plan:?} needs {shared} bytes of shared memory"
                        );
                        assert!(plan.strips >= shape.epilogue.strips() as u32, "{plan:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn workgroups_are_balanced_over_compute_units() {
    // The shapes of a 27B model on an H200: what the best plans of a sweep have in common.
    let plan = |columns, scheme, rows, k, epilogue: Epilogue, splits| {
        let weights = Layout::new(scheme, rows, k).unwrap();
        let shape = Shape { epilogue, splits, ..Shape::plain(weights, columns, Activations::Int16) };
        let plan = policy::plan(&known::h200(), &shape);
        (plan.slices_per_team(), plan.teams, plan.strips, plan.groups)
    };
    let (int4, int8, geglu, none) = (Scheme::Int4, Scheme::Int8, Epilogue::Geglu, Epilogue::None);
    assert_eq!(plan(1, int4, 43008, 5376, geglu, 1), (7, 4, 2, 112), "1344 pairs, 3 rounds");
    assert_eq!(plan(1, int8, 43008, 5376, geglu, 1), (7, 2, 2, 112), "6 rounds");
    assert_eq!(plan(1, int8, 8192, 5376, none, 1), (7, 4, 1, 128), "512 strips, one round");
    assert_eq!(plan(1, int4, 5376, 21504, none, 3), (7, 4, 2, 126), "168 pairs in 3 splits, one round");
    let down_of_1b = plan(1, int8, 1152, 6912, none, 1);
    assert_eq!(down_of_1b, (27, 1, 1, 72), "fewer strips than compute units");
    // Two columns leave registers for fewer slices.
    assert_eq!(plan(2, int4, 43008, 5376, geglu, 1), (4, 4, 2, 112));
    assert_eq!(plan(2, int8, 43008, 5376, geglu, 1), (4, 4, 2, 112));
    assert_eq!(plan(2, int8, 8192, 5376, none, 1), (6, 4, 1, 128));
    assert_eq!(plan(2, int8, 5376, 4096, none, 1), (8, 3, 1, 112));
    assert_eq!(plan(2, int4, 5376, 21504, none, 3), (4, 4, 2, 126));
    assert_eq!(policy::splits(&known::h200(), &Layout::new(Scheme::Int8, 5376, 21504).unwrap()), 3);
    assert_eq!(policy::splits(&known::h200(), &Layout::new(Scheme::Int8, 5376, 4096).unwrap()), 1);
}

#[test]
fn plans_fit_the_device() {
    // The last one has only subgroups of 64, as older AMD GPUs do.
    let only_64 = gpu::Caps { min_subgroup_size: 64, subgroup_size_control: false, ..known::radeon_780m() };
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
        only_64,
    ] {
        for (rows, k) in [(1, 32), (5376, 4096), (43008, 5376), (5376, 21504), (262_144, 640)] {
            for columns in 1..=8 {
                let shape = shape(rows, k, columns);
                let mut plans = policy::candidates(&caps, &shape);
                plans.push(policy::plan(&caps, &shape));
                plans.push(policy::at_tier(&caps, &shape, Tier::T0));
                for plan in plans {
                    assert!(plan.threads.is_multiple_of(32) && plan.threads <= caps.max_threads, "{plan:?}");
                    assert!(plan.groups >= 1 && plan.groups <= caps.max_groups, "{plan:?}");
                    if plan.tier >= Tier::T1 && plan.subgroup == Subgroup::Any {
                        assert!(
                            plan.threads.is_multiple_of(caps.max_subgroup_size),
                            "{plan:?}: not a multiple of the subgroup size"
                        );
                    }
                    let shared = plan.shared_bytes(&shape);
                    assert!(
                        shared <= caps.max_shared_bytes,
                        "{plan:?} needs {shared} bytes of shared memory"
                    );
                }
            }
        }
    }
}

#[test]
fn matrices_in_several_blocks_give_the_same_result() {
    let Some(device) = testkit::cpu_device() else { return };
    for (scheme, columns, activations) in [
        (Scheme::Int8, 1, Activations::Int8),
        (Scheme::Int8, 3, Activations::Int8),
        (Scheme::Int4, 1, Activations::Int8),
        (Scheme::Int8Min, 3, Activations::F32),
        (Scheme::Int8, 1, Activations::Int16),
        (Scheme::Int4Min, 2, Activations::Int16),
    ] {
        for (epilogue, rows) in [(Epilogue::None, 77), (Epilogue::Geglu, 96)] {
            let weights = Layout::new(scheme, rows, 160).unwrap();
            let to_int16 = activations == Activations::Int16 && epilogue != Epilogue::None;
            let output = if to_int16 { Activations::Int16 } else { Activations::F32 };
            let trial = Trial { activations, epilogue, output, ..Trial::plain(weights, columns) };
            // Three strips per allocation would separate a pair: three blocks of two.
            let caps =
                gpu::Caps { max_allocation: 3 * weights.strip_value_bytes() as u64, ..device.caps().clone() };
            let plan = policy::plan(device.caps(), &cases::shape(&trial));
            let comparison = cases::run(&device, trial, plan, &caps).unwrap();
            assert!(comparison.passed(), "{:?}", comparison.first_mismatch);
        }
    }
}

#[test]
fn slice_counts_fill_the_device_and_divide_the_quads() {
    // The shapes of a 27B model on an H200, each with the plan that a sweep found best.
    let slices = |rows, k| policy::plan(&known::h200(), &shape(rows, k, 1)).threads / 32;
    assert_eq!(slices(43008, 5376), 6, "42 quads, 7 rounds");
    assert_eq!(slices(8192, 5376), 12);
    assert_eq!(slices(5376, 4096), 16);
    assert_eq!(slices(5376, 21504), 16);
    assert_eq!(slices(100, 32), 2, "whole subgroups of 64, even for one quad");
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let made_for = shape(32, 64, 1);
    let kernel = super::Gemv::new(&device, made_for).unwrap();
    let w = crate::Matrix::allocate(&mut arena, "w", made_for.weights, device.caps()).unwrap();
    let x = crate::Vectors::int8(&mut arena, "x", 64, 1).unwrap();
    let x_f32 = crate::Vectors::f32(&mut arena, "x", 64, 1).unwrap();
    let y = arena.buffer("y", 32 * 4).unwrap();
    let target = |y: &gpu::View| Target::contiguous(y.clone(), 32);
    let mut recorder = device.recorder().unwrap();
    kernel.record(&mut recorder, "right", &w, Source::Vectors(&x), &target(&y.view())).unwrap();
    kernel
        .record(&mut recorder, "f32 for int8", &w, Source::Vectors(&x_f32), &target(&y.view()))
        .unwrap_err();
    kernel
        .record(&mut recorder, "short y", &w, Source::Vectors(&x), &target(&y.slice(0..64).unwrap()))
        .unwrap_err();
    let other = Layout::new(Scheme::Int4, 32, 64).unwrap();
    let other = crate::Matrix::allocate(&mut arena, "w", other, device.caps()).unwrap();
    let error = kernel
        .record(&mut recorder, "int4 for int8", &other, Source::Vectors(&x), &target(&y.view()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("Int4") && error.contains("Int8"), "{error}");
    assert!(super::Gemv::new(&device, shape(32, 64, 9)).is_err());
    // Four quads in three splits of two leave the last one empty.
    let weights = Layout::new(Scheme::Int8, 32, 512).unwrap();
    let split = |splits| Shape { splits, ..Shape::plain(weights, 1, Activations::Int16) };
    assert!(super::Gemv::new(&device, split(2)).is_ok() && super::Gemv::new(&device, split(3)).is_err());
    assert!(
        super::Gemv::new(&device, Shape { prologue: Prologue::Norm, ..split(2) }).is_err(),
        "a prologue needs all of x"
    );
    let floats = Layout::new(Scheme::Bf16, 32, 64).unwrap();
    let rejected =
        super::Gemv::new(&device, Shape { weights: floats, ..made_for }).map(|_| ()).unwrap_err().to_string();
    assert!(rejected.contains("bf16") && rejected.contains("f32 activations"), "{rejected}");
    let int16 = Activations::Int16;
    let rejected = super::Gemv::new(&device, Shape { weights: floats, activations: int16, ..made_for });
    let rejected = rejected.map(|_| ()).unwrap_err().to_string();
    assert!(rejected.contains("bf16") && rejected.contains("int16 activations"), "{rejected}");
    assert!(
        super::Gemv::new(&device, Shape { weights: floats, activations: Activations::F32, ..made_for })
            .is_ok()
    );
    let odd = Shape { epilogue: Epilogue::Geglu, ..shape(48, 64, 1) };
    assert!(super::Gemv::new(&device, odd).is_err(), "an odd number of strips has no pairs");
    assert!(
        super::Gemv::new(&device, Shape { output: int16, ..made_for }).is_err(),
        "int16 without an epilogue"
    );

    let gated = Shape { epilogue: Epilogue::Geglu, output: int16, activations: int16, ..made_for };
    let kernel = super::Gemv::new(&device, gated).unwrap();
    let x = crate::Vectors::int16(&mut arena, "x", 64, 1).unwrap();
    let y16 = Target::vectors(&crate::Vectors::int16(&mut arena, "y", 48, 1).unwrap()).unwrap();
    assert_eq!(y16.kind(), int16);
    kernel.record(&mut recorder, "right", &w, Source::Vectors(&x), &y16).unwrap();
    kernel
        .record(&mut recorder, "the last", &w, Source::Vectors(&x), &Target { first: 112, ..y16.clone() })
        .unwrap();
    for (what, first, stride) in
        [("start within a half group", 8, 128), ("past the end", 128, 128), ("stride within a quad", 0, 64)]
    {
        kernel
            .record(&mut recorder, what, &w, Source::Vectors(&x), &Target { first, stride, ..y16.clone() })
            .expect_err(what);
    }
    let OutputFormat::Int16(scales) = &y16.format else { panic!("int16") };
    let few = OutputFormat::Int16(scales.slice(0..16).unwrap());
    kernel
        .record(&mut recorder, "few scales", &w, Source::Vectors(&x), &Target { format: few, ..y16.clone() })
        .unwrap_err();
    kernel.record(&mut recorder, "f32 for int16", &w, Source::Vectors(&x), &target(&y.view())).unwrap_err();
    let int8 = crate::Vectors::int8(&mut arena, "y", 64, 1).unwrap();
    assert!(Target::vectors(&int8).is_err(), "int8 output");
}

#[test]
fn a_residual_scale_goes_with_its_prologue() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let weights = Layout::new(Scheme::Int8, 32, 64).unwrap();
    let w = crate::Matrix::allocate(&mut arena, "w", weights, device.caps()).unwrap();
    let row = arena.buffer("row", 64 * 4).unwrap().view();
    let y = arena.buffer("y", 32 * 4).unwrap();
    let mut recorder = device.recorder().unwrap();
    for scaled in [false, true] {
        let prologue = Prologue::AddAndNorm { partials: 1, post_norm: false, scaled };
        let shape = Shape { prologue, ..Shape::plain(weights, 1, Activations::Int16) };
        let kernel = super::Gemv::new(&device, shape).unwrap();
        let mut record = |residual_scale| {
            let sublayer =
                super::Sublayer { output: row.clone(), weight: None, residual_scale, stream: None };
            let norm = super::Norm {
                rows: 1,
                sublayer: Some(sublayer),
                residual: row.clone(),
                weight: row.clone(),
                epsilon: 1e-6,
            };
            kernel.record(&mut recorder, "gemv", &w, Source::Norm(&norm), &Target::contiguous(&y, 32))
        };
        assert_eq!(record(Some(row.slice(0..4).unwrap())).is_ok(), scaled);
        assert_eq!(record(None).is_ok(), !scaled);
    }
}

fn buffers(vectors: &crate::Vectors) -> (&gpu::Buffer, &gpu::Buffer) {
    match &vectors.data {
        crate::VectorData::Int16 { values, scales } => (values, scales),
        _ => unreachable!("the test only creates int16"),
    }
}

#[test]
fn int16_preserves_zeros_and_nan() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let int16 = Activations::Int16;
    let shape = Shape { activations: int16, output: int16, epilogue: Epilogue::Geglu, ..shape(32, 32, 1) };
    let kernel = super::Gemv::new(&device, shape).unwrap();
    let w = crate::Matrix::allocate(&mut arena, "w", shape.weights, device.caps()).unwrap();
    let x = crate::Vectors::int16(&mut arena, "x", 32, 1).unwrap();
    let y = crate::Vectors::int16(&mut arena, "y", 16, 1).unwrap();
    let ((x_values, x_scales), (y_values, y_scales)) = (buffers(&x), buffers(&y));
    for scale in [0.0, f32::NAN] {
        let mut recorder = device.recorder().unwrap();
        recorder.fill("w", &w.blocks()[0].values, 0x0101_0101).unwrap();
        recorder.fill("w scales", w.blocks()[0].scales.as_ref().unwrap(), 0x3c00_3c00).unwrap();
        recorder.fill("x", x_values, 0x0101_0101).unwrap();
        recorder.fill("x scales", x_scales, scale.to_bits()).unwrap();
        recorder.fill("y", y_values, 0x5555_5555).unwrap();
        recorder.fill("y scales", y_scales, 0x5555_5555).unwrap();
        kernel.record(&mut recorder, "gemv", &w, Source::Vectors(&x), &Target::vectors(&y).unwrap()).unwrap();
        recorder.seal().unwrap().run(crate::case::TIMEOUT).unwrap();
        let got = f32::from_bits(y_scales.read_vec::<u32>().unwrap()[0]);
        if scale.is_nan() {
            assert!(got.is_nan(), "{got}");
            continue;
        }
        let words: Vec<u32> = y_values.read_vec().unwrap();
        assert_eq!((got, &words[..4], &words[32..36]), (0.0, &[0; 4][..], &[0; 4][..]));
    }
}
