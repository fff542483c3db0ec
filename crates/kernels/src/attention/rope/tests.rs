use gpu::{Subgroup, Tier, known};
use tensor::KvScheme;

use super::{
    Angles, KeysAndValues, Operands, QueryTemperature, Rope, Rotation, Shape, Tables, cases, grid_angles,
    inverse_frequencies, policy, policy::Plan,
};
use crate::attention::kv::{KvLayer, KvShape, KvTable};

const GEMMA: Shape = Shape {
    heads: 4,
    kv_heads: 1,
    head_dim: 256,
    page_size: 64,
    scheme: KvScheme::F16,
    keys_and_values: KeysAndValues::Projected,
    norm: true,
    value_norm: false,
    bias: false,
    rotation: Rotation::Halves,
    temperature: None,
    partials: 1,
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

/// The CPU driver's own plan takes a row at once: more clusters than heads, and several workgroups per row,
/// are only covered here.
#[test]
fn plans_of_larger_gpus_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    for (tier, threads, lanes) in
        [(Tier::T0, 64, 8), (Tier::T0, 32, 16), (Tier::T1, 32, 8), (Tier::T1, 32, 2)]
    {
        let plan = Plan { tier, threads, lanes, subgroup: Subgroup::Any };
        for scheme in [KvScheme::F16, KvScheme::Int8] {
            let comparison = cases::run(&device, Shape { page_size: 16, scheme, ..GEMMA }, plan, 0).unwrap();
            assert!(comparison.passed(), "{plan:?}, {scheme}: {:?}", comparison.first_mismatch);
        }
        let grid = Shape { rotation: Rotation::Grid, head_dim: 72, page_size: 16, value_norm: true, ..GEMMA };
        let comparison = cases::run(&device, grid, plan, 2).unwrap();
        assert!(comparison.passed(), "{plan:?}, grid: {:?}", comparison.first_mismatch);
    }
}

/// Every switch changes the result: a kernel for one shape does not pass as that for another.
#[test]
fn other_shapes_do_not_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    let plain = Shape { head_dim: 64, page_size: 16, ..GEMMA };
    let normed = Shape { value_norm: true, ..plain };
    let from_keys = Shape { keys_and_values: KeysAndValues::ValuesFromKeys, ..plain };
    let shared = Shape { keys_and_values: KeysAndValues::Shared, ..plain };
    let temperature = |beta, original| Some(QueryTemperature { beta, original });
    let shapes = [
        plain,
        normed,
        from_keys,
        Shape { value_norm: true, ..from_keys },
        shared,
        Shape { rotation: Rotation::Interleaved, ..plain },
        Shape { rotation: Rotation::Grid, ..plain },
        Shape { temperature: temperature(0.5, 4999), ..plain },
        Shape { temperature: temperature(0.5, 5000), ..plain },
        Shape { temperature: temperature(0.4, 4999), ..plain },
    ];
    for (computed, expected) in shapes.into_iter().flat_map(|computed| shapes.map(|shape| (computed, shape)))
    {
        let plan = policy::plan(device.caps(), &computed);
        let comparison = cases::run_as(&device, computed, expected, plan, 0).unwrap();
        assert_eq!(comparison.passed(), computed == expected, "{computed} for {expected}");
    }
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let mut arena = crate::case::arena(&device);
    let kv_shape = KvShape { kv_heads: 1, head_dim: 256, page_size: 64, pages: 1, scheme: KvScheme::F16 };
    let kv = KvLayer::allocate(&mut arena, "kv", kv_shape).unwrap();
    let narrow = KvLayer::allocate(&mut arena, "kv", KvShape { head_dim: 128, ..kv_shape }).unwrap();
    let memory = arena.buffer("all", 256 * 256 * 4).unwrap();
    let table = KvTable { view: memory.view(), stride: 1 };
    let tables = || Angles::Tables { coarse: memory.view(), fine: memory.view() };
    let operands = || Operands {
        qkv: memory.view(),
        qkv_stride: GEMMA.row(),
        bias: None,
        q_weight: Some(memory.view()),
        k_weight: Some(memory.view()),
        epsilon: 1e-6,
        scale: 1.0,
        angles: tables(),
        q: memory.slice(0..2 * 1024 * 4).unwrap(),
        kv: &kv,
        table: &table,
        positions: memory.view(),
        slots: memory.view(),
        active: memory.view(),
    };
    let kernel = Rope::new(&device, GEMMA).unwrap();
    let mut recorder = device.recorder().unwrap();
    let mut record = |rows, operands: &Operands<'_>| kernel.record(&mut recorder, "rope", rows, operands);
    record(2, &operands()).unwrap();
    record(3, &operands()).unwrap_err();
    record(2, &Operands { kv: &narrow, ..operands() }).unwrap_err();
    record(2, &Operands { q_weight: None, ..operands() }).unwrap_err();
    record(2, &Operands { k_weight: None, ..operands() }).unwrap_err();
    record(2, &Operands { bias: Some(memory.view()), ..operands() }).unwrap_err();
    record(2, &Operands { qkv_stride: GEMMA.row() - 2, ..operands() }).unwrap_err();
    let short = Angles::Tables { coarse: memory.view(), fine: memory.slice(0..1024).unwrap() };
    record(2, &Operands { angles: short, ..operands() }).unwrap_err();
    let per_row = || Angles::PerRow(memory.slice(0..2 * 128 * 8).unwrap());
    record(2, &Operands { angles: per_row(), ..operands() }).unwrap_err();
    record(2, &Operands { active: memory.slice(0..4).unwrap(), ..operands() }).unwrap_err();
    let shared = Shape { keys_and_values: KeysAndValues::Shared, ..GEMMA };
    let kernel = Rope::new(&device, shared).unwrap();
    let mut record = |operands: &Operands<'_>| kernel.record(&mut recorder, "rope", 2, operands);
    record(&operands()).unwrap_err();
    record(&Operands { k_weight: None, qkv_stride: shared.row(), ..operands() }).unwrap();
    let grid = Shape { rotation: Rotation::Grid, ..GEMMA };
    let kernel = Rope::new(&device, grid).unwrap();
    let mut record = |operands: &Operands<'_>| kernel.record(&mut recorder, "rope", 2, operands);
    record(&Operands { angles: per_row(), ..operands() }).unwrap();
    let error = record(&operands()).unwrap_err().to_string();
    assert!(error.contains("takes angles per row"), "{error}");
    let short = Angles::PerRow(memory.slice(0..2 * 128 * 8 - 4).unwrap());
    let error = record(&Operands { angles: short, ..operands() }).unwrap_err().to_string();
    assert!(error.contains("angles has 2044 bytes, but needs 2048"), "{error}");
    let int8 = Rope::new(&device, Shape { scheme: KvScheme::Int8, ..grid }).err().expect("rejected");
    assert!(int8.to_string().contains("not int8"));
    assert!(Rope::new(&device, Shape { norm: false, value_norm: true, ..GEMMA }).is_err());
    let temperature = Some(QueryTemperature { beta: 0.1, original: 0 });
    assert!(Rope::new(&device, Shape { temperature, ..GEMMA }).is_err());
    assert!(Rope::new(&device, Shape { head_dim: 100, ..GEMMA }).is_err());
    let uneven = Shape { head_dim: 80, scheme: KvScheme::Int8, ..GEMMA };
    assert!(Rope::new(&device, uneven).err().expect("rejected").to_string().contains("groups of 32"));
}

#[test]
fn plans_fit_the_device() {
    let only_64 = gpu::Caps { min_subgroup_size: 64, subgroup_size_control: false, ..known::radeon_780m() };
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
        only_64,
    ] {
        for (heads, kv_heads, head_dim) in
            [(4, 1, 256), (32, 16, 128), (9, 3, 64), (32, 32, 80), (128, 8, 8), (32, 4, 512), (16, 16, 72)]
        {
            let shape = Shape { heads, kv_heads, head_dim, ..GEMMA };
            let plan = policy::plan(&caps, &shape);
            assert!(plan.threads <= caps.max_threads && plan.threads.is_multiple_of(plan.lanes), "{plan:?}");
            assert!(plan.lanes.is_power_of_two() && plan.lanes <= caps.min_subgroup_size, "{plan:?}");
            assert!(
                plan.threads.is_multiple_of(caps.max_subgroup_size),
                "{plan:?}: not a multiple of the subgroup size"
            );
            assert!(plan.groups(&shape) * (plan.threads / plan.lanes) >= heads + 2 * kv_heads, "{plan:?}");
        }
    }
}

#[test]
fn tables_match_scaled_frequencies_at_every_position() {
    let plain = inverse_frequencies(8, 1e4, 1.0);
    assert_eq!(plain.len(), 4);
    for (got, want) in plain.iter().zip([1.0, 0.1, 0.01, 0.001]) {
        assert!((got - want).abs() < 1e-15);
    }
    for (got, want) in inverse_frequencies(8, 1e4, 8.0).iter().zip(&plain) {
        assert_eq!(*got, want / 8.0);
    }
    let entries = |positions| Tables::new(&plain, positions).coarse.len() / 8;
    assert_eq!([entries(1), entries(256), entries(257), entries(131_072)], [1, 1, 2, 512]);
    let tables = Tables::new(&plain, 600);
    assert_eq!(tables.fine.len(), 256 * 8);
    assert_eq!(&tables.fine[8 * 3 + 2..8 * 3 + 4], &[0.3_f64.cos() as f32, 0.3_f64.sin() as f32]);
    assert_eq!(&tables.coarse[8 * 2..8 * 2 + 2], &[512_f64.cos() as f32, 512_f64.sin() as f32]);
    let scaled = Tables::scaled(&plain, 600, 1.5);
    assert_eq!(scaled.fine, tables.fine, "the product of both tables has the factor once");
    let (cos, sin) = (1.5 * 512_f64.cos(), 1.5 * 512_f64.sin());
    assert_eq!(&scaled.coarse[8 * 2..8 * 2 + 2], &[cos as f32, sin as f32]);
}

#[test]
fn angles_in_a_grid_are_those_of_x_then_those_of_y() {
    let pair = |angle: f64| [angle.cos() as f32, angle.sin() as f32];
    let angles: Vec<[f32; 2]> = grid_angles(8, 100.0, 3, 50).collect();
    assert_eq!(angles, [3.0, 0.3, 50.0, 5.0].map(pair));
    assert_eq!(grid_angles(72, 100.0, 0, 0).collect::<Vec<_>>(), [[1.0, 0.0]; 36]);
}
