//! The project's own overlay, whose program the array model's cores execute.

use npu::array::{Array, HostMemory};
use npu::gemm::{GemmPlan, Int8};
use npu::xclbin::Xclbin;

use super::{Random, cdo};

/// All of int8.
fn matrix(random: &mut Random, len: usize) -> Vec<i8> {
    (0..len).map(|_| random.next() as i8).collect()
}

fn reference(a: &[i8], b: &[i8], k: usize, n: usize) -> Vec<i32> {
    let wide = |matrix: &[i8]| matrix.iter().map(|&value| i16::from(value)).collect::<Vec<i16>>();
    super::reference(&wide(a), &wide(b), k, n)
}

/// Products of random shapes in one array after the other, and in one that stays.
fn products(size: Int8, shapes: usize, largest: (usize, usize, usize), seed: u64) {
    let overlay = size.overlay().expect("an overlay");
    let cdo = cdo(&size.xclbin().expect("a file"));
    let mut random = Random(seed);
    let mut array = Array::load(overlay.columns, &cdo, overlay.library()).expect("a configuration");
    for number in 0..shapes {
        let shape = [largest.0, largest.1, largest.2].map(|most| 1 + random.below(most));
        let [m, k, n] = shape;
        let plan = GemmPlan::new(&overlay, m, k, n).expect("a plan");
        let (a, b) = (matrix(&mut random, m * k), matrix(&mut random, k * n));
        let c = vec![0xa5; plan.c_bytes()];
        let arguments = vec![plan.pack_a(&a).expect("A"), plan.pack_b(&b).expect("B"), c];
        let mut host = HostMemory::from_arguments(arguments);
        // Every fourth in another schedule: a channel or core is starved.
        if number % 4 == 3 {
            array = Array::load(overlay.columns, &cdo, overlay.library()).expect("a configuration");
            array = array.with_seed(number as u64);
        }
        let run = array.run(&plan.stream().expect("a stream"), &mut host);
        run.unwrap_or_else(|fault| panic!("{m} × {k} × {n}: {fault}"));
        let have = plan.unpack_c(host.argument(2).expect("three arguments")).expect("C");
        let sums = reference(&a, &b, k, n).into_iter();
        let right: Vec<i32> = sums.map(|sum| overlay.output_type.requantize(sum)).collect();
        assert!(have == right, "{m} × {k} × {n}");
    }
}

#[test]
fn a_hundred_random_products_of_int8() {
    products(Int8::new(1, 1).expect("a size"), 100, (130, 1100, 70), 41);
}

#[test]
fn products_of_int8_on_more_cores() {
    for (columns, rows) in [(2, 1), (2, 2), (4, 3)] {
        products(Int8::new(columns, rows).expect("a size"), 2, (300, 600, 200), u64::from(columns));
    }
    // All sixteen cores, which models use.
    let all = std::env::var_os("INDRIK_TEST_ALL").is_some();
    products(Int8::WHOLE, if all { 100 } else { 3 }, (300, 600, 200), 43);
}

#[test]
fn products_that_the_cores_round_to_int8() {
    let one = Int8::new(1, 1).expect("a size");
    // Sums that saturate, sums that do not, and both.
    for (size, shift, shapes) in [(one, 0, 4), (one, 7, 8), (one, 11, 30), (one, 21, 2), (Int8::WHOLE, 10, 2)]
    {
        let size = size.requantised(shift).expect("a shift");
        products(size, shapes, (130, 512, 70), u64::from(shift));
    }
    let overlay = one.requantised(9).and_then(|size| size.overlay().ok()).expect("an overlay");
    let error = GemmPlan::new(&overlay, 1, 513, 1).expect_err("partial sums").to_string();
    assert!(error.contains("cannot be added"), "{error}");
    assert!(one.requantised(32).is_none());
}

#[test]
fn the_file_is_an_xclbin() {
    let file = Int8::WHOLE.xclbin().expect("a file");
    let xclbin = Xclbin::decode(&file).expect("an xclbin");
    assert_eq!(xclbin.encode().expect("the same xclbin"), file);
    assert_eq!(cdo(&file), Int8::WHOLE.cdo().expect("a CDO"));
    let overlay = Int8::WHOLE.overlay().expect("an overlay");
    assert_eq!((overlay.block(), overlay.columns), ((256, 512, 128), 4));
    // Elements of another type are refused.
    let plan = GemmPlan::new(&overlay, 1, 1, 1).expect("a plan");
    let error = plan.pack_a(&[0i16]).expect_err("int16").to_string();
    assert!(error.contains("int8 multiplies Int8, not Int16"), "{error}");
}
