use gpu::{Caps, Tier, known};
use tensor::{Layout, Scheme};

use super::{Gemm, cases, lanes, packed, policy, policy::Shape};
use crate::{
    Activations, Epilogue, Matrix, OutputFormat, Target, VectorData, Vectors, case,
    matmul::{common::trial::Trial, gemv},
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn matrices_in_several_blocks_give_the_same_result() {
    let Some(device) = testkit::cpu_device() else { return };
    for (scheme, epilogue, rows) in [
        (Scheme::Int8, Epilogue::None, 77),
        (Scheme::Int4Min, Epilogue::Geglu, 96),
        (Scheme::F32, Epilogue::Swiglu, 96),
    ] {
        let weights = Layout::new(scheme, rows, 160).unwrap();
        // Two strips per allocation: three blocks.
        let caps = Caps { max_allocation: 3 * weights.strip_value_bytes() as u64, ..device.caps().clone() };
        for tier in [Tier::T0, Tier::T1] {
            let trial = Trial { epilogue, ..Trial::plain(weights, 9) };
            let plan = policy::at_tier(device.caps(), &cases::shape(&trial), tier);
            let comparison = cases::run(&device, trial, plan, &caps).unwrap();
            assert!(comparison.passed(), "{:?}", comparison.first_mismatch);
        }
        if packed::supports(scheme) {
            let (activations, int16) = (Activations::Int16, epilogue != Epilogue::None);
            let output = if int16 { Activations::Int16 } else { Activations::F32 };
            let trial = Trial { epilogue, activations, output, ..Trial::plain(weights, 9) };
            let plan = policy::plan(device.caps(), &cases::shape(&trial));
            let comparison = cases::run(&device, trial, plan, &caps).unwrap();
            assert!(comparison.passed(), "{:?}", comparison.first_mismatch);
        }
    }
}

#[test]
fn columns_are_batch_invariant() {
    let Some(device) = testkit::cpu_device() else { return };
    let weights = Layout::new(Scheme::Int4Min, 40, 160).unwrap();
    let mut arena = case::arena(&device);
    let mut random = case::Random::new(3);
    let w = Matrix::allocate(&mut arena, "w", weights, device.caps()).unwrap();
    let mut recorder = device.recorder().unwrap();
    for block in w.blocks() {
        // Constant bytes are as valid as any; scales of 1.0.
        recorder.fill("values", &block.values, 0x9c31_e4a5).unwrap();
        recorder.fill("scales", block.scales.as_ref().unwrap(), 0x3c00_3c00).unwrap();
    }
    recorder.seal().unwrap().run(case::TIMEOUT).unwrap();
    let column: Vec<f32> = (0..256).map(|i| if i < 160 { random.signed() } else { 0.0 }).collect();
    // The output of `column` at an index among others, by gemm or by gemv.
    let mut output = |columns: usize, column_index: usize, tier: Option<Tier>| {
        let mut x: Vec<f32> =
            (0..columns * 256).map(|i| if i % 256 < 160 { random.signed() } else { 0.0 }).collect();
        x[column_index * 256..(column_index + 1) * 256].copy_from_slice(&column);
        let data = VectorData::F32(arena.buffer_from("x", &x).unwrap());
        let x = Vectors { k: 160, columns, data };
        let y = arena.buffer("y", 40 * columns as u64 * 4).unwrap();
        let active = arena.buffer_from("active", &[columns as u32]).unwrap();
        let (target, epilogue) = (Target::contiguous(&y, 40), Epilogue::None);
        let mut recorder = device.recorder().unwrap();
        match tier {
            Some(tier) => {
                let shape = Shape::plain(weights, columns, Activations::F32);
                let plan = policy::at_tier(device.caps(), &shape, tier);
                let kernel = Gemm::with_plan(&device, shape, plan).unwrap();
                kernel.record(&mut recorder, "gemm", &w, &x, &target, &active.view()).unwrap();
            }
            None => {
                let (activations, output) = (Activations::F32, Activations::F32);
                let plain = gemv::policy::Shape::plain(weights, columns, activations);
                let shape = gemv::policy::Shape { epilogue, output, ..plain };
                let kernel = gemv::Gemv::new(&device, shape).unwrap();
                kernel.record(&mut recorder, "gemv", &w, gemv::Source::Vectors(&x), &target).unwrap();
            }
        }
        recorder.seal().unwrap().run(case::TIMEOUT).unwrap();
        y.read_vec::<u32>().unwrap()[column_index * 40..(column_index + 1) * 40].to_vec()
    };
    for tier in [Tier::T0, Tier::T1] {
        let alone = output(1, 0, Some(tier));
        assert!(alone.iter().any(|word| *word != 0));
        for (columns, column_index) in [(9, 8), (24, 11), (40, 37)] {
            assert_eq!(
                output(columns, column_index, Some(tier)),
                alone,
                "column {column_index} of {columns} at {tier}"
            );
        }
    }
    // On this driver gemv uses the same shader: a sequence decodes to the same numbers that prefill gives.
    assert_eq!(output(1, 0, None), output(9, 3, Some(Tier::T1)));
    assert_eq!(output(5, 4, None), output(9, 3, Some(Tier::T1)));
}

#[test]
fn int16_columns_are_batch_invariant() {
    let Some(device) = testkit::cpu_device() else { return };
    for scheme in [Scheme::Int8, Scheme::Int4, Scheme::Int4Min] {
        let (rows, k, stride) = (40, 288, 384);
        let weights = Layout::new(scheme, rows, k).unwrap();
        let mut arena = case::arena(&device);
        let mut random = case::Random::new(5);
        let mut w = Matrix::allocate(&mut arena, "w", weights, device.caps()).unwrap();
        crate::matmul::common::trial::fill(&mut w, &mut random).unwrap();
        // Both planes of bytes, and scales, of consecutive columns.
        let mut columns_of = |count: usize| -> (Vec<i8>, Vec<f32>) {
            let bytes = (0..2 * count * stride).map(|_| random.integer(-127, 127) as i8).collect();
            (bytes, (0..count * stride / 16).map(|_| random.signed() * 1e-4).collect())
        };
        let (bytes, scales) = columns_of(1);
        // The output of that column at an index among others, by one of the plans.
        let mut output = |columns: usize, column_index: usize, plan_index: usize| {
            let (mut all_bytes, mut all_scales) = columns_of(columns);
            for plane in 0..2 {
                let at = (plane * columns + column_index) * stride;
                all_bytes[at..at + stride].copy_from_slice(&bytes[plane * stride..(plane + 1) * stride]);
            }
            all_scales[column_index * stride / 16..(column_index + 1) * stride / 16].copy_from_slice(&scales);
            let data = VectorData::Int16 {
                values: arena.buffer_from("x", &all_bytes).unwrap(),
                scales: arena.buffer_from("x", &all_scales).unwrap(),
            };
            let x = Vectors { k, columns, data };
            let y = arena.buffer("y", (rows * columns * 4) as u64).unwrap();
            let active = arena.buffer_from("active", &[columns as u32]).unwrap();
            let shape = Shape::plain(weights, columns, Activations::Int16);
            let plans = policy::candidates(device.caps(), &shape);
            let kernel = Gemm::with_plan(&device, shape, plans[plan_index % plans.len()]).unwrap();
            let mut recorder = device.recorder().unwrap();
            kernel
                .record(&mut recorder, "gemm", &w, &x, &Target::contiguous(&y, rows), &active.view())
                .unwrap();
            recorder.seal().unwrap().run(case::TIMEOUT).unwrap();
            y.read_vec::<u32>().unwrap()[column_index * rows..(column_index + 1) * rows].to_vec()
        };
        let alone = output(1, 0, 0);
        assert!(alone.iter().any(|word| *word != 0));
        for (plan_index, (columns, column_index)) in
            [(1, 0), (9, 8), (24, 11), (40, 37), (70, 66), (33, 32), (130, 97)].into_iter().enumerate()
        {
            for plan_index in [0, plan_index] {
                assert_eq!(
                    output(columns, column_index, plan_index),
                    alone,
                    "{scheme}, column {column_index} of {columns}, plan {plan_index}"
                );
            }
        }
    }
}

#[test]
fn int16_uses_packed_dot_products() {
    let weights = Layout::new(Scheme::Int8, 2560, 2560).unwrap();
    let shape = |columns| Shape::plain(weights, columns, Activations::Int16);
    // An RDNA2 GPU: 40 compute units, no cooperative matrices.
    let rdna2 = Caps { cooperative_matrix: vec![], compute_units: Some(40), ..known::radeon_780m() };
    let tile = |caps: &Caps, shape: &Shape| match policy::plan(caps, shape).method {
        policy::Method::Packed(tile) => tile,
        other => panic!("{other:?}"),
    };
    assert!(packed::is_preferred(&rdna2));
    assert!(
        !packed::is_preferred(&known::mesa_cpu()) && packed::is_supported(&known::mesa_cpu()),
        "supported for tests only"
    );
    assert!(!packed::is_supported(&known::bare_vulkan_13()));
    let emulated = Caps { integer_dot_accelerated: false, ..rdna2.clone() };
    assert!(!packed::is_preferred(&emulated), "a dot product of many instructions");
    // Enough columns fill the device with the largest tile; fewer use smaller ones, no wider than necessary.
    let large = tile(&rdna2, &shape(512));
    assert_eq!((large.rows(), large.columns()), (64, 64));
    let small = tile(&rdna2, &shape(16));
    assert_eq!((small.rows(), small.columns()), (32, 16));
    for columns in [9, 16, 33, 64, 100, 512] {
        for caps in [&rdna2, &known::h200(), &known::mesa_cpu()] {
            let plans = policy::candidates(caps, &shape(columns));
            assert!(plans.len() > 1 && plans[0] == policy::plan(caps, &shape(columns)));
            for plan in plans {
                let policy::Method::Packed(tile) = plan.method else { panic!("{plan:?}") };
                assert!(
                    tile.shared_bytes(Scheme::Int8Min) <= caps.max_shared_bytes
                        && tile.threads <= caps.max_threads
                );
                assert!(tile.threads.is_multiple_of(caps.min_subgroup_size.max(32)));
            }
        }
    }
    let gated = |output| policy::supports(&Shape { epilogue: Epilogue::Geglu, output, ..shape(9) });
    assert!(gated(Activations::Int16) && gated(Activations::F32) && !gated(Activations::F16));
    assert!(
        !policy::supports(&Shape { output: Activations::Int16, ..shape(9) }),
        "int16 output needs an epilogue"
    );
    let floats = Layout { scheme: Scheme::F16, ..weights };
    assert!(!policy::supports(&Shape::plain(floats, 9, Activations::Int16)));
}

#[test]
fn plans_fit_the_device() {
    let weights = Layout::new(Scheme::Int8, 4096, 640).unwrap();
    let shape = Shape { epilogue: Epilogue::Geglu, ..Shape::plain(weights, 64, Activations::F32) };
    for caps in [known::h200(), known::radeon_780m(), known::bare_vulkan_13()] {
        let plan = policy::plan(&caps, &shape);
        assert_eq!(plan.method, policy::Method::Tiles);
        // 128 threads, and 32 · (17 + 9) vectors of 16 bytes in shared memory.
        assert!(caps.max_threads >= 128 && caps.max_shared_bytes >= 13312);
    }
    let policy::Method::Lanes(tile) = policy::plan(&known::mesa_cpu(), &shape).method else {
        panic!("expected one row per lane")
    };
    assert_eq!(tile.strips, 2, "gate and up");
    let columns = |columns: usize| {
        let shape = Shape { columns, epilogue: Epilogue::None, ..shape };
        match policy::plan(&known::mesa_cpu(), &shape).method {
            policy::Method::Lanes(tile) => tile.columns,
            other => panic!("{other:?} is not one row per lane"),
        }
    };
    assert_eq!(
        [1, 8, 9, 16, 17, 24, 25, 40, 64, 200, 500].map(columns),
        [8, 8, 16, 16, 8, 8, 16, 8, 16, 16, 16]
    );
    let wide = known::mesa_cpu_wide();
    for (rows, strips) in [(640, 2), (4096, 4)] {
        for (epilogue, columns) in [(Epilogue::None, 64), (Epilogue::Geglu, 64), (Epilogue::None, 24)] {
            let weights = Layout { rows, ..shape.weights };
            let plan = policy::plan(&wide, &Shape { weights, columns, epilogue, ..shape });
            let tile = lanes::Tile { lanes: 16, strips, columns: if columns == 64 { 16 } else { 8 } };
            assert_eq!(plan.method, policy::Method::Lanes(tile));
        }
    }
    let gpu = Caps { cpu: false, ..wide };
    assert_eq!(
        policy::plan(&gpu, &shape).method,
        policy::Method::Tiles,
        "a GPU whose subgroups are 16 threads"
    );
    let no_avx = Caps { min_subgroup_size: 4, max_subgroup_size: 4, ..known::mesa_cpu() };
    assert_eq!(
        policy::plan(&no_avx, &shape).method,
        policy::Method::Tiles,
        "one row per lane needs subgroups of 8 or 16"
    );
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = case::arena(&device);
    let weights = Layout::new(Scheme::Int8, 32, 64).unwrap();
    let shape = Shape::plain(weights, 9, Activations::F32);
    let kernel = Gemm::new(&device, shape).unwrap();
    let w = Matrix::allocate(&mut arena, "w", weights, device.caps()).unwrap();
    let x = Vectors::f32(&mut arena, "x", 64, 9).unwrap();
    let y = arena.buffer("y", 40 * 9 * 4).unwrap();
    let active = arena.buffer("active", 4).unwrap().view();
    let mut recorder = device.recorder().unwrap();
    let mut record = |x: &Vectors, first: usize, stride: usize| {
        kernel.record(
            &mut recorder,
            "gemm",
            &w,
            x,
            &Target { y: y.view(), format: OutputFormat::F32, first, stride },
            &active,
        )
    };
    record(&x, 8, 40).unwrap();
    record(&x, 9, 40).expect_err("the rows of a column overlap the next column");
    record(&x, 0, 42).expect_err("the last column ends past the end");
    record(&x, usize::MAX, 40).unwrap_err();
    record(&Vectors::f32(&mut arena, "x", 64, 8).unwrap(), 0, 32).expect_err("8 columns for 9");
    record(&Vectors::int8(&mut arena, "x", 64, 9).unwrap(), 0, 32).expect_err("int8 activations");
    let int16 = Shape::plain(weights, 9, Activations::Int16);
    let kernel = Gemm::new(&device, int16).unwrap();
    let target = Target::contiguous(&y, 40);
    kernel.record(&mut recorder, "gemm", &w, &x, &target, &active).expect_err("f32 activations for int16");
    let floats = Shape { weights: Layout { scheme: Scheme::F16, ..weights }, ..int16 };
    let error = Gemm::new(&device, floats).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("int16 activations with f16 weights"), "{error}");
    let plan = policy::plan(device.caps(), &shape);
    Gemm::with_plan(&device, int16, plan).map(|_| ()).expect_err("one row per lane needs f32");
    let odd = Layout::new(Scheme::Int8, 48, 64).unwrap();
    let error = Gemm::new(&device, Shape { weights: odd, epilogue: Epilogue::Geglu, ..shape })
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("pairs"), "{error}");
}
