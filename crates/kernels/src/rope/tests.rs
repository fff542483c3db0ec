use gpu::known;

use super::{Shape, Tables, inverse_frequencies, policy};
use crate::kv::KvScheme;

const GEMMA: Shape = Shape {
    heads: 4,
    kv_heads: 1,
    head_dim: 256,
    page: 64,
    scheme: KvScheme::F16,
    norm: true,
    bias: false,
    interleaved: false,
};

#[test]
fn all_cases_on_the_cpu_driver() {
    crate::variant::run_cases_on_cpu(&super::KERNEL);
}

#[test]
fn plans_fit_the_device() {
    let only_64 = gpu::Caps { min_subgroup_size: 64, subgroup_size_control: false, ..known::radeon_780m() };
    for caps in [known::h200(), known::radeon_780m(), known::mesa_cpu(), known::bare_vulkan_13(), only_64] {
        for (heads, kv_heads, head_dim) in [(4, 1, 256), (32, 16, 128), (9, 3, 64), (32, 32, 80), (128, 8, 8)] {
            let shape = Shape { heads, kv_heads, head_dim, ..GEMMA };
            let plan = policy::plan(&caps, &shape);
            assert!(plan.threads <= caps.max_threads && plan.threads.is_multiple_of(plan.lanes), "{plan:?}");
            assert!(plan.lanes.is_power_of_two() && plan.lanes <= caps.min_subgroup_size, "{plan:?}");
            assert!(plan.threads.is_multiple_of(caps.max_subgroup_size), "{plan:?}: not whole subgroups");
            assert!(plan.groups(&shape) * (plan.threads / plan.lanes) >= heads + 2 * kv_heads, "{plan:?}");
        }
    }
}

#[test]
fn frequencies_are_scaled_and_tables_cover_every_position() {
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
}
