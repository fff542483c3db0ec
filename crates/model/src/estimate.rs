//! Estimated decode throughput of a GPU that cannot be measured, computed from bytes and levels.

use checkpoint::{Config, FeedForward, LayerSpec};
use tensor::Scheme;

use crate::measure::read_bytes;

/// Assumptions about a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: &'static str,
    /// Theoretical memory bandwidth in bytes per second.
    pub peak_bytes_per_s: f64,
    /// Fraction of it that reads achieve.
    pub bandwidth_efficiency: f64,
    /// Seconds that a level costs beyond its reads: the barrier, and filling and draining the GPU.
    pub level_seconds: f64,
}

/// A Radeon 780M with two channels of DDR5-5600: 2 × 8 bytes × 5.6 GT/s. The other two numbers are guesses.
pub const RADEON_780M: Machine = Machine {
    name: "Radeon 780M",
    peak_bytes_per_s: 89.6e9,
    bandwidth_efficiency: 0.85,
    level_seconds: 5e-6,
};

/// Levels of a layer as recorded for one sequence on a GPU: QKV, attention, output, gate and up, down. A test
/// compares it with a recorded program.
const LEVELS_PER_LAYER: u32 = 5;
/// With experts: QKV, attention, output, router, gate and up, down.
const LEVELS_PER_LAYER_WITH_EXPERTS: u32 = 6;
/// With a dense block beside the experts: norm, QKV, attention, output, norm; gate and up, beside the experts' norm and the
/// router; down beside the experts' gate and up; the experts' down; the sum of both.
const LEVELS_PER_LAYER_WITH_BOTH: u32 = 9;
/// With per-layer embeddings: norm, QKV, attention, output, norm, gate and up, down; norm, gate, gated, quantised, output.
const LEVELS_PER_LAYER_WITH_EMBEDDINGS: u32 = 12;
/// What the per-layer embeddings of all layers take: norm and projection. Their inputs are computed beside the first norm.
const LEVELS_OF_EMBEDDINGS: u32 = 2;
/// Levels outside of the layers: embedding, head, and the two of the sampler.
const OTHER_LEVELS: u32 = 4;

/// Estimated time per decoded token, for one sequence near the start of its context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Bytes of weights read.
    pub bytes: u64,
    /// Levels of its program.
    pub levels: u32,
    /// Seconds to read them.
    pub read_seconds: f64,
    /// Seconds that the levels cost beyond the reads.
    pub level_seconds: f64,
}

impl Estimate {
    /// The estimate for a model with this config and all matrices in one scheme.
    pub fn new(config: &Config, scheme: Scheme, machine: &Machine) -> Self {
        let bytes = read_bytes(config, scheme);
        let levels = levels(config);
        Self {
            bytes,
            levels,
            read_seconds: bytes as f64 / (machine.peak_bytes_per_s * machine.bandwidth_efficiency),
            level_seconds: f64::from(levels) * machine.level_seconds,
        }
    }

    /// Tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        1.0 / (self.read_seconds + self.level_seconds)
    }
}

/// Levels of a decode step.
pub fn levels(config: &Config) -> u32 {
    let layer = |layer: LayerSpec| match layer.feed_forward {
        FeedForward::Dense(_) if layer.per_layer_width.is_some() => LEVELS_PER_LAYER_WITH_EMBEDDINGS,
        FeedForward::Dense(_) => LEVELS_PER_LAYER,
        FeedForward::Experts(_) => LEVELS_PER_LAYER_WITH_EXPERTS,
        FeedForward::DenseAndExperts(..) => LEVELS_PER_LAYER_WITH_BOTH,
    };
    let has_both = |layer: LayerSpec| matches!(layer.feed_forward, FeedForward::DenseAndExperts(..));
    let per_layer = config.per_layer_width.map_or(0, |_| LEVELS_OF_EMBEDDINGS);
    // Otherwise the head computes the last norm, too.
    let last_norm = u32::from(config.per_layer_width.is_some() || config.layer_specs().any(has_both));
    let softcap = u32::from(config.logit_softcap.is_some());
    config.layer_specs().map(layer).sum::<u32>() + per_layer + last_norm + softcap + OTHER_LEVELS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::Size;

    #[test]
    fn bandwidth_bounds_the_27b_and_levels_slow_the_270m() {
        let estimate = |size: Size, scheme| Estimate::new(&size.config().unwrap(), scheme, &RADEON_780M);
        let large = estimate(Size::Gemma3Of27B, Scheme::Int8);
        // 28.7 GB in groups of 32 with an f16 scale each, at 76.16 GB/s.
        assert!((28.6e9..28.8e9).contains(&(large.bytes as f64)), "{large:?}");
        assert!((2.60..2.70).contains(&large.tokens_per_s()), "{large:?}");
        assert!(large.level_seconds < 0.01 * large.read_seconds, "{large:?}");
        let small = estimate(Size::Gemma3Of270M, Scheme::Int4);
        assert_eq!(small.levels, 18 * 5 + 4);
        assert!(small.level_seconds > 0.1 * small.read_seconds, "{small:?}");
        // Never beyond the roofline.
        for size in Size::ALL {
            let estimate = estimate(size, Scheme::Int8);
            assert!(
                estimate.tokens_per_s() * (estimate.bytes as f64)
                    < RADEON_780M.peak_bytes_per_s * RADEON_780M.bandwidth_efficiency
            );
        }
    }
}
