//! Parses arbitrary bytes as a `gpu_metrics` table of amdgpu.
#![no_main]

use libfuzzer_sys::fuzz_target;
use telemetry::GpuMetrics;

fuzz_target!(|bytes: &[u8]| {
    let Some(metrics) = GpuMetrics::parse(bytes) else { return };
    assert_eq!((metrics.version.0, metrics.version.1), (bytes[2], bytes[3]));
    for share in [metrics.busy, metrics.memory_busy, metrics.npu_busy].into_iter().flatten() {
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
    for value in [metrics.socket_watts, metrics.npu_watts, metrics.temperature_celsius].into_iter().flatten()
    {
        assert!(value.is_finite() && value >= 0.0, "{value}");
    }
});
