use gpu::{Tier, known};
use tensor::{Layout, Scheme};

use super::{
    COUNTER_BYTES, cases,
    policy::{self, Bias, Fragments, Plan, Shape, SplitK},
};
use crate::{Activations, Epilogue, matmul::common::trial::Trial};

fn shape(rows: usize, k: usize, columns: usize) -> Shape {
    let weights = Layout::new(Scheme::Int8, rows, k).unwrap();
    Shape {
        weights,
        columns,
        epilogue: Epilogue::None,
        output: Activations::F32,
        split_k: SplitK::Reduced,
        bias: Bias::None,
    }
}

#[test]
fn emulated_cooperative_matrices_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    let plan = policy::emulated(device.caps(), &shape(64, 64, 32))
        .expect("the CPU driver has T1 and small subgroups");
    for scheme in Scheme::ALL {
        // All cases of one scheme; a few of the others, since each takes seconds to compile.
        let all = cases::trials(scheme);
        let some = if scheme == Scheme::Int4Min { all } else { vec![all[1], all[4]] };
        for trial in some {
            let comparison = cases::run(&device, trial, plan, device.caps()).unwrap();
            assert!(comparison.passed(), "{}: {:?}", trial.name(), comparison.first_mismatch);
        }
    }
    // Split-K partial sums.
    let trial = Trial { partials: 2, ..cases::trials(Scheme::Int8)[1] };
    let partial = policy::emulated(device.caps(), &cases::shape(&trial)).unwrap();
    assert_eq!(partial.splits, 2);
    assert!(cases::run(&device, trial, partial, device.caps()).unwrap().passed());
    // A matrix in three blocks.
    let trial = cases::trials(Scheme::Int8)[1];
    let caps =
        gpu::Caps { max_allocation: 4 * trial.weights.strip_value_bytes() as u64, ..device.caps().clone() };
    assert!(cases::run(&device, trial, plan, &caps).unwrap().passed());
}

#[test]
fn only_devices_with_cooperative_matrices_have_plans() {
    for (caps, supported) in [
        (known::h200(), true),
        (known::radeon_780m(), true),
        (known::mesa_cpu(), false),
        (known::bare_vulkan_13(), false),
    ] {
        assert_eq!(policy::plan(&caps, Fragments::Other, &shape(640, 640, 64)).is_some(), supported);
        assert_eq!(policy::variants(&caps).is_empty(), !supported);
        assert!(policy::variants(&caps).iter().all(|variant| variant.tier == Tier::T2));
    }
    assert_eq!(
        policy::plan(&known::h200(), Fragments::Other, &shape(42, 640, 64)),
        None,
        "rows must be a multiple of 4"
    );
}

/// An image encoder has products for one image and for several: an image must not depend on the others.
#[test]
fn sums_of_image_encoders_do_not_depend_on_the_number_of_images() {
    let plan = |(rows, k), columns, active| {
        let weights = Layout { scheme: Scheme::F16, rows, k };
        let shape = Shape { weights, ..shape(1152, 1152, columns) };
        let plan = policy::partly_active_plan(&known::h200(), Fragments::FourThreadsPerRow, &shape, active);
        plan.expect("there is one")
    };
    // SigLIP's products with patches, and with soft tokens of the 4B, 12B and 27B.
    let with_patches = [(3456, 1152), (1152, 1152), (4304, 1152), (1152, 4304), (1152, 588)];
    let with_soft_tokens = [(2560, 1152), (3840, 1152), (5376, 1152)];
    let products = with_patches.map(|matrix| (matrix, 4096)).into_iter();
    for (matrix, columns) in products.chain(with_soft_tokens.map(|matrix| (matrix, 256))) {
        for images in [1, 2, 4, 8] {
            for active in [columns, images * columns] {
                let plan = plan(matrix, images * columns, active);
                assert!(
                    plan.direct && plan.splits == 1,
                    "{matrix:?}, {active} columns of {images} images: {plan:?}"
                );
            }
        }
    }
    for (rows, k) in [(3456, 1152), (1152, 1152), (4304, 1152), (1152, 4304)] {
        let plan = |active| plan((rows, k), 4 * 4096, active);
        // Of one image, a single round of workgroups where that is possible.
        assert_eq!(plan(4096).tile.columns == 144, rows == 1152, "{rows} × {k}");
        assert_eq!((plan(4 * 4096).tile.rows, plan(4 * 4096).tile.columns), (256, 128), "{rows} × {k}");
    }
}

#[test]
fn split_k_balances_the_workgroups() {
    let split = |rows, k, columns, split_k| {
        let shape = Shape { split_k, ..shape(rows, k, columns) };
        let plan = policy::plan(&known::h200(), Fragments::FourThreadsPerRow, &shape).unwrap();
        (plan.splits, plan.unsplit)
    };
    // As found by sweeps. Gate and up: not split with few columns; with more, only the tiles left over after
    // full rounds of 132 compute units.
    assert_eq!([16, 32].map(|columns| split(43008, 5376, columns, SplitK::Reduced)), [(1, 0); 2]);
    assert_eq!(split(43008, 5376, 64, SplitK::Reduced).1, 264);
    assert_eq!(split(43008, 5376, 128, SplitK::Reduced), (3, 132));
    // QKV, output and down have fewer tiles than there are compute units.
    assert_eq!([64, 128].map(|columns| split(8192, 5376, columns, SplitK::Reduced)), [(4, 0); 2]);
    for (k, columns) in [(4096, 64), (4096, 128), (21504, 64), (21504, 128)] {
        assert_eq!(split(5376, k, columns, SplitK::Partial), (6, 0), "{k}, {columns} columns");
    }
    // The splits of the down projection are so long that the largest tile is faster, if there is nearly
    // one split per compute unit.
    let tile = |rows, k, split_k| {
        let shape = Shape { split_k, ..shape(rows, k, 128) };
        policy::plan(&known::h200(), Fragments::FourThreadsPerRow, &shape).unwrap().tile.rows
    };
    let tiles = [(8192, 5376), (5376, 4096), (5376, 21504), (5632, 21504)]
        .map(|(rows, k)| tile(rows, k, SplitK::Partial));
    assert_eq!(tiles, [128, 128, 256, 256]);
    assert_eq!(
        (tile(4096, 21504, SplitK::Partial), tile(43008, 5376, SplitK::Reduced)),
        (128, 256),
        "splits of 21 quads are too short for the largest tile"
    );
    assert_eq!((tile(7168, 21504, SplitK::Partial), tile(5376, 21504, SplitK::Reduced)), (128, 128));
    // With this few columns workgroups are short, so there are more splits.
    let few = [(8192, 5376), (5376, 4096), (5376, 21504)].map(|(rows, k)| split(rows, k, 4, SplitK::Partial));
    assert_eq!(few, [(6, 0), (7, 0), (7, 0)]);
    // Only split tiles take memory: 36 tiles of 256 × 128 f32 in three splits.
    let wide = shape(43008, 5376, 128);
    let plan = policy::plan(&known::h200(), Fragments::FourThreadsPerRow, &wide).unwrap();
    assert_eq!(plan.scratch_bytes(&wide), COUNTER_BYTES + 36 * 3 * 256 * 128 * 4);
    assert_eq!(plan.scratch_bytes(&Shape { split_k: SplitK::Partial, ..wide }), 0);
    assert_eq!(split(262_144, 5376, 16, SplitK::Reduced), (1, 0));
    assert_eq!(split(16, 32, 16, SplitK::Reduced), (1, 0), "one quad is not split");
}

#[test]
fn plans_fit_the_device() {
    for caps in [known::h200(), known::radeon_780m()] {
        for (rows, k) in [(43008, 5376), (8192, 5376), (5376, 21504), (262_144, 640), (640, 2048), (16, 32)] {
            for columns in [1, 2, 8, 16, 17, 40, 48, 64, 70, 72, 80, 96, 100, 112, 128, 512, 4096] {
                let shape = shape(rows, k, columns);
                for plan in policy::candidates(&caps, Fragments::FourThreadsPerRow, &shape) {
                    assert!(plan.shared_bytes() <= caps.max_shared_bytes, "{plan:?}");
                    assert!(
                        plan.tile.threads() <= caps.max_threads && plan.tile.rows * 2 >= plan.tile.threads()
                    );
                    assert!(plan.tile.rows * 2 % plan.tile.threads() == 0, "{plan:?}");
                    assert!([1, 2, 4].contains(&plan.prefetch_depth));
                    let split_tiles = plan.tile.count(rows, columns) - plan.unsplit;
                    assert!(
                        plan.splits == 1 && plan.unsplit == 0
                            || (1..=policy::MAX_SPLIT_TILES).contains(&split_tiles)
                    );
                }
            }
        }
    }
}

/// The properties of a plan that require a pipeline of its own; the split-K factor does not.
fn kind(shape: &Shape, plan: &Plan) -> String {
    let Shape { weights: Layout { scheme, .. }, epilogue, output, split_k, .. } = *shape;
    let Plan { tile, direct, prefetch_depth, splits, .. } = *plan;
    let partial_sums = if splits > 1 { format!(", {split_k:?}") } else { String::new() };
    format!(
        "{scheme}, {epilogue:?} to {output}, {tile:?}, direct {direct}, prefetch {prefetch_depth}{partial_sums}"
    )
}

#[test]
fn every_model_plan_has_a_self_test_case() {
    for (caps, fragments) in
        [(known::h200(), Fragments::FourThreadsPerRow), (known::radeon_780m(), Fragments::Other)]
    {
        let tested = cases::tested_plans(&caps, fragments);
        let staged = cases::tested_plans(&caps, Fragments::Other);
        assert!(
            staged.iter().all(|(trial, plan)| cases::supported_plan(&caps, fragments, trial, *plan) == *plan)
        );
        let kinds: Vec<_> = tested.iter().map(|(trial, plan)| kind(&cases::shape(trial), plan)).collect();
        for shape in policy::model_shapes() {
            let kind = kind(&shape, &policy::plan(&caps, fragments, &shape).unwrap());
            assert!(kinds.contains(&kind), "{shape:?}: {kind}");
        }
        for (trial, plan) in &tested {
            assert!(plan.shared_bytes() <= caps.max_shared_bytes, "{plan:?}");
            assert!(plan.unsplit < plan.tile.count(trial.weights.rows, trial.columns), "{plan:?}");
            assert_eq!(cases::supported_plan(&caps, fragments, trial, *plan), *plan);
            assert!(!cases::supported_plan(&caps, Fragments::Other, trial, *plan).direct);
        }
        // The largest tile among them, split and not.
        let largest = |(_, plan): &&(Trial, Plan)| plan.tile.rows == 256 && plan.prefetch_depth == 4;
        let splits: Vec<_> =
            tested.iter().filter(largest).map(|(trial, plan)| (trial.partials, plan.splits)).collect();
        let direct = fragments == Fragments::FourThreadsPerRow;
        assert!([(1, 1), (1, 3), (3, 3)].iter().all(|split| splits.contains(split) == direct), "{splits:?}");
    }
}

#[test]
fn fragment_layouts_are_recognised() {
    let index_of = |thread: u32, element: u32| {
        let row = thread / 4 + element / 4 * 8;
        let column = thread % 4 * 2 + element / 2 % 2 * 8 + element % 2;
        row * 16 + column
    };
    let mut indices: Vec<u32> = (0..32)
        .flat_map(|thread| (0..16).map(move |e| if e < 8 { index_of(thread, e) } else { u32::MAX }))
        .collect();
    let operand = indices.clone();
    let some_of = |elements: [u32; 4]| -> Vec<u32> {
        let held = move |thread| elements.map(|element| index_of(thread, element)).into_iter();
        (0..32).flat_map(|thread| held(thread).chain([u32::MAX; 12])).collect()
    };
    let (narrow, sums) = (some_of([0, 1, 2, 3]), some_of([0, 1, 4, 5]));
    indices.extend(&operand);
    indices.extend(&operand);
    assert_eq!(
        Fragments::from_indices(&indices),
        Fragments::Other,
        "narrow matrices may have another layout"
    );
    let with = |last: [&[u32]; 2]| Fragments::from_indices(&[&indices, last[0], last[1]].concat());
    assert_eq!(with([&narrow, &sums]), Fragments::FourThreadsPerRow);
    for other in [[&narrow, &narrow], [&sums, &sums], [&operand, &sums], [&narrow, &operand]] {
        assert_eq!(with(other.map(|list| &list[..])), Fragments::Other);
    }
    assert_eq!(Fragments::from_indices(&indices[..16]), Fragments::Other);
    indices.swap(100, 101);
    assert_eq!(Fragments::from_indices(&[indices, narrow, sums].concat()), Fragments::Other);
    // One row per thread, as on RDNA3.
    let rows: Vec<u32> = (0..32).flat_map(|thread| (0..16).map(move |e| thread % 16 * 16 + e)).collect();
    assert_eq!(Fragments::from_indices(&rows), Fragments::Other);
}
