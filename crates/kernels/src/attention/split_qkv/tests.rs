use gpu::known;
use tensor::KvScheme;

use super::{
    Operands, Shape, SplitQkv,
    cases::{self, Inputs, ROWS},
    policy::{self, Plan, SIGLIP},
};
use crate::{
    attention::{
        kv::{KvLayer, KvShape, KvTable},
        rope::{self, Angles, KeysAndValues, Rope, Rotation, Tables},
    },
    case::{Comparison, arena},
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

/// The results of the RoPE kernel without a rotation, bit for bit.
#[test]
fn results_are_those_of_rope_with_zero_frequencies() {
    let Some(device) = testkit::cpu_device() else { return };
    let grouped = Shape { heads: 4, kv_heads: 2, head_dim: 40, page_size: 16, ..SIGLIP };
    for shape in [SIGLIP, grouped] {
        for scheme in [KvScheme::F16, KvScheme::F32] {
            let shape = Shape { scheme, ..shape };
            let inputs = Inputs::new(shape, 1);
            let mut comparison = Comparison::default();
            let got = inputs.run(&device, &mut comparison, |recorder, operands| {
                SplitQkv::new(&device, shape)?.record(recorder, "split QKV", ROWS as u32, operands)
            });
            let want = inputs.run(&device, &mut comparison, |recorder, operands| {
                let tables = Tables::new(&vec![0.0; shape.head_dim as usize / 2], 1024);
                let mut arena = arena(&device);
                let operands = rope::Operands {
                    qkv: operands.qkv.clone(),
                    qkv_stride: operands.qkv_stride,
                    bias: Some(operands.bias.clone()),
                    q_weight: None,
                    k_weight: None,
                    epsilon: 0.0,
                    scale: operands.scale,
                    angles: Angles::Tables {
                        coarse: arena.buffer_from("coarse table", &tables.coarse)?.view(),
                        fine: arena.buffer_from("fine table", &tables.fine)?.view(),
                    },
                    q: operands.q.clone(),
                    kv: operands.kv,
                    table: operands.table,
                    positions: operands.positions.clone(),
                    slots: operands.slots.clone(),
                    active: operands.active.clone(),
                };
                let shape = rope::Shape {
                    heads: shape.heads,
                    kv_heads: shape.kv_heads,
                    head_dim: shape.head_dim,
                    page_size: shape.page_size,
                    scheme,
                    keys_and_values: KeysAndValues::Projected,
                    norm: false,
                    value_norm: false,
                    bias: true,
                    rotation: Rotation::Halves,
                    temperature: None,
                    partials: 1,
                };
                Rope::new(&device, shape)?.record(recorder, "rope", ROWS as u32, &operands)
            });
            assert!(got.unwrap() == want.unwrap(), "{shape}");
            assert!(comparison.passed(), "{shape}: {:?}", comparison.first_mismatch);
        }
    }
}

/// On devices that allow few workgroups along x, the others are along y.
#[test]
fn plans_with_several_rows_of_workgroups_match_the_reference() {
    let Some(device) = testkit::cpu_device() else { return };
    for (threads, max_groups_x) in [(32, 7), (256, 1), (24, 1000)] {
        let plan = Plan { threads, max_groups_x };
        let comparison = cases::run(&device, SIGLIP, plan, 1).unwrap();
        assert!(comparison.passed(), "{plan:?}: {:?}", comparison.first_mismatch);
    }
}

#[test]
fn plans_cover_all_rows_and_fit_the_device() {
    for caps in [
        known::h200(),
        known::radeon_780m(),
        known::mesa_cpu(),
        known::mesa_cpu_wide(),
        known::bare_vulkan_13(),
    ] {
        let plan = policy::plan(&caps);
        assert!(plan.threads <= caps.max_threads, "{plan:?}");
        for rows in [1, 11, 4096, 200_000] {
            let [x, y, z] = plan.groups(&SIGLIP, rows).unwrap();
            assert!(x <= caps.max_groups && y <= 65_535 && z == 1, "{plan:?}: {x} × {y} × {z}");
            let (threads, needed) = (u64::from(x) * u64::from(y * plan.threads), u64::from(rows) * 432);
            assert!((needed..needed + u64::from(y * plan.threads)).contains(&threads), "{plan:?}, {rows}");
        }
        assert_eq!(plan.groups(&SIGLIP, 1 << 24), None);
    }
    assert_eq!(policy::plan(&known::h200()).groups(&SIGLIP, 4096), Some([6912, 1, 1]));
    let plan = Plan { threads: 256, max_groups_x: 6911 };
    assert_eq!(plan.groups(&SIGLIP, 4096), Some([3456, 2, 1]));
}

#[test]
fn invalid_operands_are_rejected() {
    let Some(device) = testkit::cpu_device() else { return };
    let rejected = |shape| SplitQkv::new(&device, shape).err().expect("rejected").to_string();
    assert!(rejected(Shape { scheme: KvScheme::Int8, head_dim: 64, ..SIGLIP }).contains("not int8"));
    assert!(rejected(Shape { head_dim: 36, ..SIGLIP }).contains("multiple of 8"));
    assert!(rejected(Shape { page_size: 48, ..SIGLIP }).contains("power of two"));
    assert!(rejected(Shape { kv_heads: 0, ..SIGLIP }).contains("must not be 0"));

    let mut arena = arena(&device);
    let shape = Shape { heads: 2, kv_heads: 1, ..SIGLIP };
    let kv_shape = KvShape { kv_heads: 1, head_dim: 72, page_size: 64, pages: 1, scheme: KvScheme::F16 };
    let kv = KvLayer::allocate(&mut arena, "kv", kv_shape).unwrap();
    let narrow = KvLayer::allocate(&mut arena, "kv", KvShape { head_dim: 64, ..kv_shape }).unwrap();
    let memory = arena.buffer("all", 4096).unwrap();
    let outputs = arena.buffer("q", 4096).unwrap();
    let table = KvTable { view: memory.view(), stride: 1 };
    let operands = || Operands {
        qkv: memory.view(),
        qkv_stride: 288,
        bias: memory.view(),
        scale: 1.0,
        q: outputs.slice(0..2 * 144 * 4).unwrap(),
        kv: &kv,
        table: &table,
        positions: memory.view(),
        slots: memory.view(),
        active: memory.view(),
    };
    let bytes = |range| memory.slice(range).unwrap();
    let kernel = SplitQkv::new(&device, shape).unwrap();
    let mut recorder = device.recorder().unwrap();
    let mut record = |rows, operands: &Operands<'_>| kernel.record(&mut recorder, "split", rows, operands);
    record(2, &operands()).unwrap();
    let mut fails = |rows, operands: &Operands<'_>, with: &str| {
        let error = record(rows, operands).unwrap_err().to_string();
        assert!(error.contains(with), "{error}, expected {with}");
    };
    fails(3, &operands(), "q has 1152 bytes");
    fails(2, &Operands { kv: &narrow, ..operands() }, "the cache is");
    fails(2, &Operands { qkv_stride: 284, ..operands() }, "stride of qkv");
    fails(2, &Operands { qkv_stride: 290, ..operands() }, "stride of qkv");
    fails(2, &Operands { qkv: bytes(0..2300), ..operands() }, "qkv has 2300 bytes");
    fails(2, &Operands { qkv: bytes(8..4096), ..operands() }, "qkv does not start");
    fails(2, &Operands { bias: bytes(0..1148), ..operands() }, "the bias has 1148 bytes");
    fails(2, &Operands { q: outputs.slice(4..4096).unwrap(), ..operands() }, "q does not start");
    fails(2, &Operands { positions: bytes(0..4), ..operands() }, "positions has 4 bytes");
    fails(2, &Operands { slots: bytes(0..4), ..operands() }, "slots has 4 bytes");
    fails(2, &Operands { active: bytes(0..4), ..operands() }, "active has 4 bytes");
    let long = KvTable { view: bytes(0..8), stride: 3 };
    fails(2, &Operands { table: &long, ..operands() }, "the page table has 8 bytes");
}
