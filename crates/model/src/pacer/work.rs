//! Estimated work of a step: bytes and multiply-adds per layer, as seconds on a slow GPU.

use checkpoint::{AttentionSpan, Config, Mixer};
use tensor::KvScheme;

/// Bytes read and multiply-adds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    bytes: f64,
    products: f64,
}

/// Work per second of a slow GPU: half that of an APU of 2018.
const SLOW_GPU: Work = Work { bytes: 20e9, products: 0.25e12 };

impl Work {
    fn seconds(self) -> f64 {
        self.bytes / SLOW_GPU.bytes + self.products / SLOW_GPU.products
    }
}

/// Rows that attend together, with the depth of their attention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RowSpan {
    pub rows: usize,
    /// Positions that the last of them attends to under full attention.
    pub depth: u32,
}

/// The rows of a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepExtent {
    pub decode: RowSpan,
    /// One entry per prefill chunk.
    pub chunks: Vec<RowSpan>,
    /// Rows whose logits are computed.
    pub outputs: usize,
}

/// The matrices of a layer, or of the head.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MatrixSizes {
    /// Bytes of all matrices.
    pub bytes: u64,
    /// Bytes that a single row reads: of the experts, those of its own.
    pub row_bytes: u64,
    /// Weights that a row is multiplied with.
    pub weights: u64,
}

/// A layer, or the head.
#[derive(Clone, Copy, Debug)]
struct Unit {
    sizes: MatrixSizes,
    /// `None` for the head.
    mixer: Option<Mixer>,
}

/// Estimates the time of a step's units: the layers, and the head as the last unit.
#[derive(Clone, Debug)]
pub(crate) struct Estimator {
    units: Vec<Unit>,
    kv_scheme: KvScheme,
}

impl Estimator {
    /// `sizes` has an entry per layer, and one more for the head.
    pub fn new(config: &Config, kv_scheme: KvScheme, sizes: &[MatrixSizes]) -> Self {
        let mixers = config.layer_specs().map(|layer| Some(layer.mixer)).chain([None]);
        let units = sizes.iter().zip(mixers).map(|(sizes, mixer)| Unit { sizes: *sizes, mixer });
        Self { units: units.collect(), kv_scheme }
    }

    /// Layers and head.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Seconds of each unit on a slow GPU.
    pub fn seconds(&self, extent: &StepExtent) -> Vec<f64> {
        self.units.iter().map(|unit| self.unit_work(unit, extent).seconds()).collect()
    }

    fn unit_work(&self, unit: &Unit, extent: &StepExtent) -> Work {
        let StepExtent { decode, chunks, outputs } = extent;
        let rows = match unit.mixer {
            Some(_) => decode.rows + chunks.iter().map(|chunk| chunk.rows).sum::<usize>(),
            None => *outputs,
        };
        if rows == 0 {
            return Work::default();
        }
        let MatrixSizes { bytes, row_bytes, weights } = unit.sizes;
        let mut work = Work {
            // At most: rows may have experts in common.
            bytes: (bytes as f64).min(row_bytes as f64 * rows as f64),
            products: weights as f64 * rows as f64,
        };
        let Some(Mixer::Attention(attention)) = unit.mixer else { return work };
        let per_position =
            f64::from(2 * attention.kv_heads) * self.kv_scheme.head_bytes(attention.head_dim) as f64;
        // Each decode row reads a window of its own. The rows of a chunk share one, longer by their number.
        let chunks = chunks.iter().map(|chunk| (chunk, 1, chunk.rows as u32));
        for (span, sequences, more) in chunks.chain([(decode, decode.rows, 0)]) {
            let visible = match attention.span {
                AttentionSpan::Full => span.depth,
                AttentionSpan::Sliding { window } => span.depth.min(window.saturating_add(more)),
            };
            work.bytes += f64::from(visible) * per_position * sequences as f64;
            work.products += 2.0 * f64::from(visible) * f64::from(attention.query_rows()) * span.rows as f64;
        }
        work
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use checkpoint::Attention;

    use super::*;
    use crate::size::Size;

    /// A model with one byte per weight.
    pub(crate) fn sizes(config: &Config) -> Vec<MatrixSizes> {
        let hidden = u64::from(config.hidden);
        let intermediate = u64::from(config.intermediate);
        let layer = |attention: Attention| {
            let rows = u64::from(attention.qkv_rows() + attention.query_rows());
            hidden * (rows + 3 * intermediate)
        };
        let head = hidden * u64::from(config.vocab);
        let sizes = |bytes: u64| MatrixSizes { bytes, row_bytes: bytes, weights: bytes };
        config.attentions().map(layer).chain([head]).map(sizes).collect()
    }

    pub(crate) fn estimator(size: Size) -> Estimator {
        let config = size.config().unwrap();
        Estimator::new(&config, KvScheme::F16, &sizes(&config))
    }

    #[test]
    fn a_mixed_step_costs_both_kinds_of_rows_but_the_weights_once() {
        let estimator = estimator(Size::Gemma3Of1B);
        let total_seconds = |decode: RowSpan, chunks: Vec<RowSpan>| {
            estimator.seconds(&StepExtent { decode, chunks, outputs: 0 }).iter().sum::<f64>()
        };
        let seconds = |decode: RowSpan, chunk: RowSpan| total_seconds(decode, vec![chunk]);
        let none = RowSpan::default();
        let (decode, chunk) = (RowSpan { rows: 8, depth: 9000 }, RowSpan { rows: 248, depth: 4000 });
        let config = Size::Gemma3Of1B.config().unwrap();
        let layers = &sizes(&config)[..config.layers as usize];
        let weights = layers.iter().map(|sizes| sizes.bytes as f64 / SLOW_GPU.bytes).sum::<f64>();
        let both = seconds(decode, chunk);
        assert!((both - (seconds(decode, none) + seconds(none, chunk) - weights)).abs() < 1e-9 * both);
        // Each kind counts with its own depth.
        assert!(both < seconds(decode, RowSpan { depth: 9000, ..chunk }));
        assert!(both < seconds(RowSpan { depth: 9500, ..decode }, chunk));
        // Short chunks beside a deep one cost what they attend to; each reads its own keys.
        let chunks = [(8, 4000), (120, 200), (120, 120)].map(|(rows, depth)| RowSpan { rows, depth });
        assert!(total_seconds(none, chunks.to_vec()) < seconds(none, chunk));
        let pairs = vec![RowSpan { rows: 2, ..chunk }; 4];
        assert!(total_seconds(none, pairs) > 1.01 * seconds(none, RowSpan { rows: 8, ..chunk }));
    }
}
