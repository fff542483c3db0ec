//! Generated streams: products of any shape.

use npu::gemm::{GemmPlan, Overlay};

use super::{Random, cdo, data, load, product, reference, small_overlay};

fn check(overlay: &Overlay, file: &[u8], shapes: &[(usize, usize, usize)]) {
    let configuration = cdo(file);
    let mut random = Random(7);
    for &(m, k, n) in shapes {
        let plan = GemmPlan::new(overlay, m, k, n).unwrap_or_else(|error| panic!("{error}"));
        let stream = plan.stream().unwrap_or_else(|error| panic!("{error}"));
        let (a, b) = (random.matrix(m * k), random.matrix(k * n));
        let mut array = load(overlay, &configuration).expect("a configuration");
        let have = product(&mut array, &stream, &plan, &a, &b)
            .unwrap_or_else(|error| panic!("{m}×{k}×{n}: {error}"));
        assert!(have == reference(&a, &b, k, n), "{} {m}×{k}×{n}", overlay.name);
    }
}

#[test]
fn random_shapes_on_the_small_overlay() {
    let mut random = Random(11);
    let mut shapes: Vec<_> =
        (0..100).map(|_| (1 + random.below(70), 1 + random.below(100), 1 + random.below(90))).collect();
    // More block columns than an iteration counts, in two and three phases.
    shapes.extend([(1, 1, 1), (8, 32, 65 * 8), (9, 33, 130 * 8)]);
    check(&small_overlay::overlay(), &small_overlay::xclbin(), &shapes);
}

#[test]
fn shapes_on_one_public_core() {
    let Some(file) = data("gemm-256-1col.xclbin") else { return };
    check(&Overlay::GEMM_256_1COL, &file, &[(256, 256, 256), (1, 1, 1), (33, 300, 65), (96, 512, 2100)]);
}

#[test]
fn shapes_on_sixteen_public_cores() {
    let Some(file) = data("gemm-512-4col.xclbin") else { return };
    check(
        &Overlay::GEMM_512_4COL,
        &file,
        &[(512, 512, 512), (17, 100, 129), (300, 1100, 700), (768, 512, 384)],
    );
}

#[test]
fn shapes_that_do_not_fit() {
    let overlay = &Overlay::GEMM_512_4COL;
    let cases = [
        ((0, 1, 1), "a dimension is zero"),
        ((1, usize::MAX, 1), "address space"),
        ((1 << 20, 1 << 20, 1), "4 GiB"),
        // B: 64 rows of more than 2¹⁵ columns are more than 2²⁰ words.
        ((1, 1, (1 << 15) + 1), "too long for the NPU's DMA"),
        ((1 << 23, 1, 1), "4 GiB"),
    ];
    for ((m, k, n), want) in cases {
        let error = GemmPlan::new(overlay, m, k, n).expect_err("a shape that does not fit").to_string();
        assert!(error.contains(want), "{m} {k} {n}: {error}");
    }
    assert!(GemmPlan::new(overlay, 1, 1, 1 << 15).and_then(|plan| plan.stream()).is_ok());
}

#[test]
fn matrices_of_the_wrong_size() {
    let overlay = small_overlay::overlay();
    let plan = GemmPlan::new(&overlay, 2, 3, 4).expect("a plan");
    assert!(plan.pack_a(&[0i16; 5]).is_err());
    assert!(plan.pack_b(&[0i16; 13]).is_err());
    assert!(plan.unpack_c(&[0; 4]).is_err());
    assert_eq!((plan.padded(), plan.k_splits(), plan.c_bytes()), ((8, 32, 8), 1, 256));
}
