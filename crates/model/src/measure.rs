//! For benchmarks: models with random weights made on the GPU, sequences that start deep in their context,
//! and the time of each kernel of a step.

use std::{collections::BTreeMap, time::Duration};

use checkpoint::{
    Config, Dense, EncoderKind, Experts, FeedForward, LayerSpec, Mixer, Role, Slot, Transformer, VisionConfig,
};
use gpu::{Arena, Buffer, Device, Lifetime, Memory, Recorder, TimestampMode, Timing};
use kernels::{
    Matrix,
    bench::random::{Distribution, Random},
};
use tensor::{GROUP, Layout, Scheme};
use weights::{
    blueprint::MatrixId,
    load::Weights,
    vision::{self, VisionMatrix, VisionWeights},
};

use crate::{DecodeRow, EncoderLimits, Error, ImageEncoder, Model, Result, Runner, Sequence};

/// Timeout of filling a matrix with random words, the largest on the slowest device.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The layouts of all matrices of a model with this config, each id as one matrix.
fn matrices(config: &Config, scheme: Scheme) -> Vec<(MatrixId, Layout)> {
    let hidden = config.hidden;
    let layer = |(index, LayerSpec { mixer, feed_forward, per_layer_width, .. }): (u32, LayerSpec)| {
        let Mixer::Attention(attention) = mixer;
        let attention = [
            (MatrixId::Qkv(index), attention.qkv_rows(), hidden),
            (MatrixId::AttentionOutput(index), hidden, attention.query_rows()),
        ];
        let dense = feed_forward.dense().map(|Dense { intermediate, .. }| {
            [
                (MatrixId::GateUp(index), 2 * intermediate, hidden),
                (MatrixId::Down(index), hidden, intermediate),
            ]
        });
        let experts = feed_forward.experts().map(|Experts { count, intermediate, .. }| {
            [
                (MatrixId::ExpertGateUp(index), count * 2 * intermediate, hidden),
                (MatrixId::ExpertDown(index), count * hidden, intermediate),
            ]
        });
        let per_layer = per_layer_width.map(|width| {
            [(MatrixId::PerLayerGate(index), width, hidden), (MatrixId::PerLayerOutput(index), hidden, width)]
        });
        attention.into_iter().chain(dense.into_iter().chain(experts).chain(per_layer).flatten())
    };
    let embedding = (MatrixId::Embedding, config.vocab, hidden);
    let per_layer = config.per_layer_width.map(|width| {
        let all = width * config.layers;
        [(MatrixId::PerLayerEmbedding, config.vocab, all), (MatrixId::PerLayerProjection, all, hidden)]
    });
    let head = (!config.tie_embeddings).then_some((MatrixId::Head, config.vocab, hidden));
    let layers = (0..).zip(config.layer_specs()).flat_map(layer);
    let all = [embedding].into_iter().chain(per_layer.into_iter().flatten()).chain(layers).chain(head);
    all.map(|(id, rows, k)| (id, Layout { scheme, rows: rows as usize, k: k as usize })).collect()
}

/// Parameters of a model's matrices.
pub fn parameters(config: &Config) -> u64 {
    matrices(config, Scheme::F32).into_iter().map(|(_, layout)| (layout.rows * layout.k) as u64).sum()
}

/// Bytes of a model's matrices in a scheme.
pub fn weight_bytes(config: &Config, scheme: Scheme) -> u64 {
    matrices(config, scheme).into_iter().map(|(_, layout)| bytes(layout)).sum()
}

/// Bytes of matrices that a decode step of one row reads: all, except embeddings that are not also the head, and the
/// experts that the row does not pass through.
pub fn read_bytes(config: &Config, scheme: Scheme) -> u64 {
    let is_read = |id: MatrixId| match id {
        MatrixId::Embedding => config.tie_embeddings,
        MatrixId::PerLayerEmbedding => false,
        _ => true,
    };
    let read = matrices(config, scheme).into_iter().filter(|(id, _)| is_read(*id));
    read.map(|(id, layout)| match id {
        MatrixId::ExpertGateUp(layer) | MatrixId::ExpertDown(layer) => {
            let experts = config.layer(layer).feed_forward.experts();
            experts.map_or(bytes(layout), |experts| {
                bytes(layout) / u64::from(experts.count) * u64::from(experts.per_token)
            })
        }
        _ => bytes(layout),
    })
    .sum()
}

fn bytes(layout: Layout) -> u64 {
    (layout.value_bytes() + layout.scale_bytes()) as u64
}

impl Model {
    /// A model with random weights: as fast as a real one, with meaningless output. `progress` receives the
    /// number of bytes done.
    pub fn random(
        device: &Device,
        config: Config,
        scheme: Scheme,
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        let values =
            Random::new(device, if scheme.is_float() { Distribution::Scales } else { Distribution::Bits })?;
        let scales = Random::new(device, Distribution::Scales)?;
        let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device);
        let mut done = 0;
        let mut made = Vec::new();
        for (number, (id, layout)) in matrices(&config, scheme).into_iter().enumerate() {
            debug_assert!(layout.k.is_multiple_of(GROUP));
            let matrix = Matrix::allocate(&mut arena, &id.to_string(), layout, device.caps())?;
            let mut recorder = device.recorder()?;
            for block in matrix.blocks() {
                let seed = (number << 20 ^ block.first_row) as u32;
                values.record(&mut recorder, "values", &block.values.view(), seed)?;
                if let Some(plane) = &block.scales {
                    scales.record(&mut recorder, "scales", &plane.view(), seed)?;
                }
            }
            recorder.seal()?.run(TIMEOUT)?;
            done += matrix.bytes();
            progress(done);
            made.push((id, matrix));
        }
        let (norms, qkv_biases) = vectors(device, &config)?;
        let routers = routers(device, &config)?;
        Self::from_weights(device, config, Weights { matrices: made, norms, qkv_biases, routers })
    }
}

/// Routers with random weights: they select other experts than a trained model's.
fn routers(device: &Device, config: &Config) -> Result<BTreeMap<u32, Buffer>> {
    let random = Random::new(device, Distribution::Floats)?;
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(4 << 20);
    let mut recorder = device.recorder()?;
    let mut routers = BTreeMap::new();
    for (layer, spec) in (0..).zip(config.layer_specs()) {
        if let Some(experts) = spec.feed_forward.experts() {
            let buffer = arena.buffer("router", u64::from(experts.count * config.hidden) * 4)?;
            random.record(&mut recorder, "router", &buffer.view(), layer)?;
            routers.insert(layer, buffer);
        }
    }
    recorder.seal()?.run(TIMEOUT)?;
    Ok(routers)
}

/// The norms and factors of a layer, with their lengths.
fn layer_vectors(config: &Config, layer: &LayerSpec) -> Vec<(Role, u32)> {
    let (family, hidden) = (config.architecture.family(), config.hidden);
    let Mixer::Attention(attention) = layer.mixer;
    let mut vectors = vec![(Role::AttentionNorm, hidden), (Role::FeedForwardNorm, hidden)];
    if family.head_norms {
        vectors.extend([(Role::QueryNorm, attention.head_dim), (Role::KeyNorm, attention.head_dim)]);
    }
    if family.post_norms {
        vectors.extend([(Role::PostAttentionNorm, hidden), (Role::PostFeedForwardNorm, hidden)]);
    }
    if let FeedForward::DenseAndExperts(_, experts) = layer.feed_forward {
        let norms = [Role::ExpertNorm, Role::PostDenseNorm, Role::PostExpertsNorm];
        vectors.extend(norms.map(|role| (role, hidden)));
        vectors.push((Role::ExpertScales, experts.count));
    }
    if layer.per_layer_width.is_some() {
        vectors.push((Role::PostPerLayerNorm, hidden));
    }
    if layer.scaled {
        vectors.push((Role::LayerScale, 1));
    }
    vectors
}

/// Norm weights of ones, and biases of zeros.
fn vectors(device: &Device, config: &Config) -> Result<(BTreeMap<Slot, Buffer>, Vec<Buffer>)> {
    let family = config.architecture.family();
    let slot = Slot::text;
    let layers = (0..config.layers)
        .flat_map(|layer| {
            let norms = layer_vectors(config, &config.layer(layer));
            norms.into_iter().map(move |(role, length)| (slot(Some(layer), role), length))
        })
        .chain([(slot(None, Role::FinalNorm), config.hidden)])
        .chain(config.per_layer_width.map(|width| (slot(None, Role::PerLayerProjectionNorm), width)));
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(4 << 20);
    let mut recorder = device.recorder()?;
    let mut norms = BTreeMap::new();
    for (slot, length) in layers {
        let buffer = arena.buffer("norm", u64::from(length) * 4)?;
        recorder.fill("norm", &buffer, 1_f32.to_bits())?;
        norms.insert(slot, buffer);
    }
    let mut qkv_biases = Vec::new();
    for _ in 0..if family.qkv_bias { config.layers } else { 0 } {
        let buffer = arena.buffer("bias", u64::from(config.max_qkv_rows()) * 4)?;
        recorder.fill("bias", &buffer, 0)?;
        qkv_biases.push(buffer);
    }
    recorder.seal()?.run(TIMEOUT)?;
    Ok((norms, qkv_biases))
}

/// GPU time of all commands with one name in a step, or of all levels with the same commands.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Name of the commands; those of a level are joined by a plus.
    pub name: String,
    /// Number of commands, or of levels.
    pub count: usize,
    /// Time of all of them together.
    pub nanoseconds: f64,
    /// Bytes of weights, keys and values that all of them together read.
    pub bytes: u64,
}

/// The time of a step by kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// By command.
    pub kernels: Vec<Share>,
    /// By level: commands that run concurrently between two barriers.
    pub levels: Vec<Share>,
}

impl Profile {
    /// From the timings of a step's commands, in order. `bytes` returns the bytes that all commands with a
    /// name read together.
    fn new(timings: &[Timing], bytes: impl Fn(&str) -> u64) -> Self {
        let mut kernels: Vec<Share> = Vec::new();
        for timing in timings {
            add(&mut kernels, &timing.name, timing.nanoseconds, 0);
        }
        for share in &mut kernels {
            share.bytes = bytes(&share.name);
        }
        let bytes_per_command = |name: &str| {
            kernels
                .iter()
                .find(|share| share.name == name)
                .map_or(0, |share| share.bytes / share.count as u64)
        };
        let mut levels: Vec<Share> = Vec::new();
        for level in timings.chunk_by(|a, b| a.level == b.level) {
            let mut names: Vec<&str> = Vec::new();
            for timing in level {
                if !names.contains(&timing.name.as_str()) {
                    names.push(&timing.name);
                }
            }
            let nanoseconds = level.iter().map(|timing| timing.nanoseconds).sum();
            let bytes = level.iter().map(|timing| bytes_per_command(&timing.name)).sum();
            add(&mut levels, &names.join(" + "), nanoseconds, bytes);
        }
        Self { kernels, levels }
    }

    /// GPU time of the step.
    pub fn nanoseconds(&self) -> f64 {
        self.kernels.iter().map(|share| share.nanoseconds).sum()
    }
}

fn add(shares: &mut Vec<Share>, name: &str, nanoseconds: f64, bytes: u64) {
    match shares.iter_mut().find(|share| share.name == name) {
        Some(share) => {
            share.count += 1;
            share.nanoseconds += nanoseconds;
            share.bytes += bytes;
        }
        None => shares.push(Share { name: name.to_string(), count: 1, nanoseconds, bytes }),
    }
}

impl Model {
    /// Bytes of weights that the commands with a name read in a step.
    fn command_bytes(&self, name: &str) -> u64 {
        let has_head = self.weights.by_id(MatrixId::Head).next().is_some();
        let all: u64 = self
            .weights
            .matrices
            .iter()
            .filter(|(id, _)| match id {
                // Only a row per token, unless it is also the head.
                MatrixId::Embedding => name == "head" && !has_head,
                MatrixId::Head => name == "head",
                MatrixId::Qkv(_) => name == "QKV",
                MatrixId::AttentionOutput(_) => name == "output",
                MatrixId::GateUp(_) => name == "gate and up" && self.weights.by_id(*id).count() == 1,
                MatrixId::Down(_) => name == "down",
                // How many experts a step reads is not known.
                MatrixId::ExpertGateUp(_) | MatrixId::ExpertDown(_) => false,
                MatrixId::PerLayerEmbedding => false,
                MatrixId::PerLayerProjection => name == "per-layer projection",
                MatrixId::PerLayerGate(_) => name == "per-layer gate",
                MatrixId::PerLayerOutput(_) => name == "per-layer output",
            })
            .map(|(_, matrix)| matrix.bytes())
            .sum();
        // Where a file stores gate and up in different schemes they are two matrices, gate first.
        let half = ["gate", "up"].iter().position(|half| *half == name);
        let separate = |(half, layer): (usize, u32)| match self
            .weights
            .by_id(MatrixId::GateUp(layer))
            .collect::<Vec<_>>()[..]
        {
            [gate, up] => [gate, up][half].bytes(),
            _ => 0,
        };
        let separate: u64 =
            half.map_or(0, |half| (0..self.config.layers).map(|layer| separate((half, layer))).sum());
        all + separate
    }
}

/// The matrices of an image encoder in a scheme; in f16 where the length of rows does not allow it, as in files.
fn vision_matrices(config: &VisionConfig, scheme: Scheme) -> Vec<(VisionMatrix, Layout)> {
    let VisionConfig { hidden, text_hidden, .. } = *config;
    let mut all = vec![(VisionMatrix::PatchEmbed, hidden, config.patch_values())];
    if let Some(Transformer { layers, heads, head_dim, intermediate, .. }) = config.transformer().copied() {
        let width = heads * head_dim;
        for layer in 0..layers {
            all.push((VisionMatrix::Qkv(layer), 3 * width, hidden));
            all.push((VisionMatrix::AttentionOutput(layer), hidden, width));
            all.push(match config.encoder {
                EncoderKind::Siglip { .. } => (VisionMatrix::Up(layer), intermediate, hidden),
                _ => (VisionMatrix::GateUp(layer), 2 * intermediate, hidden),
            });
            all.push((VisionMatrix::Down(layer), hidden, intermediate));
        }
    }
    all.push((VisionMatrix::Projection, text_hidden, hidden));
    let layout = |rows: u32, k: u32| {
        let (rows, k) = (rows as usize, k as usize);
        Layout::new(scheme, rows, k).unwrap_or(Layout { scheme: Scheme::F16, rows, k })
    };
    all.into_iter().map(|(id, rows, k)| (id, layout(rows, k))).collect()
}

/// The norms and biases of an encoder outside of layers, and of a layer: role, length, value.
fn vision_vectors(config: &VisionConfig) -> [Vec<(Role, u32, f32)>; 2] {
    let VisionConfig { hidden, .. } = *config;
    match config.encoder {
        EncoderKind::Siglip { transformer, .. } => [
            vec![
                (Role::PatchEmbedBias, hidden, 0.0),
                (Role::FinalNorm, hidden, 1.0),
                (Role::FinalNormBias, hidden, 0.0),
                (Role::SoftTokenNorm, hidden, 1.0),
            ],
            vec![
                (Role::AttentionNorm, hidden, 1.0),
                (Role::AttentionNormBias, hidden, 0.0),
                (Role::OutputBias, hidden, 0.0),
                (Role::FeedForwardNorm, hidden, 1.0),
                (Role::FeedForwardNormBias, hidden, 0.0),
                (Role::UpBias, transformer.intermediate, 0.0),
                (Role::DownBias, hidden, 0.0),
            ],
        ],
        EncoderKind::Gemma4 { transformer, .. } => [
            vec![(Role::StandardizeBias, hidden, 0.0), (Role::StandardizeScale, hidden, 1.0)],
            vec![
                (Role::AttentionNorm, hidden, 1.0),
                (Role::QueryNorm, transformer.head_dim, 1.0),
                (Role::KeyNorm, transformer.head_dim, 1.0),
                (Role::PostAttentionNorm, hidden, 1.0),
                (Role::FeedForwardNorm, hidden, 1.0),
                (Role::PostFeedForwardNorm, hidden, 1.0),
            ],
        ],
        EncoderKind::Gemma4Unified { .. } => [
            vec![
                (Role::PatchNorm, config.patch_values(), 1.0),
                (Role::PatchNormBias, config.patch_values(), 0.0),
                (Role::PatchEmbedBias, hidden, 0.0),
                (Role::PatchEmbedNorm, hidden, 1.0),
                (Role::PatchEmbedNormBias, hidden, 0.0),
                (Role::PositionNorm, hidden, 1.0),
                (Role::PositionNormBias, hidden, 0.0),
            ],
            vec![],
        ],
    }
}

/// An image encoder's weights: random matrices and positions, norms of ones, biases of zeros. Nothing is clipped.
fn random_vision_weights(device: &Device, config: &VisionConfig, scheme: Scheme) -> Result<VisionWeights> {
    let bits = Random::new(device, Distribution::Bits)?;
    let scales = Random::new(device, Distribution::Scales)?;
    let halves = Random::new(device, Distribution::Halves)?;
    let floats = Random::new(device, Distribution::Floats)?;
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device);
    let matrices = vision::allocate(&mut arena, device.caps(), vision_matrices(config, scheme).into_iter())?;
    let mut recorder = device.recorder()?;
    for (number, (_, matrix)) in (0..).zip(&matrices) {
        for block in matrix.blocks() {
            let values = if matrix.layout().scheme.is_float() { &halves } else { &bits };
            values.record(&mut recorder, "values", &block.values.view(), number)?;
            if let Some(of_groups) = &block.scales {
                scales.record(&mut recorder, "scales", &of_groups.view(), number)?;
            }
        }
    }
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(4 << 20);
    let mut vectors = BTreeMap::new();
    let [outside, inside] = vision_vectors(config);
    let layers = (0..config.layers()).map(|layer| (Some(layer), &inside));
    for (layer, list) in [(None, &outside)].into_iter().chain(layers) {
        for (role, length, value) in list {
            let buffer = arena.buffer("vector", u64::from(*length) * 4)?;
            recorder.fill("vector", &buffer, value.to_bits())?;
            vectors.insert(Slot::vision(layer, *role), buffer);
        }
    }
    let mut random = |recorder: &mut Recorder, rows: u32, number: u32| -> Result<Buffer> {
        let positions = arena.buffer("positions", u64::from(rows) * u64::from(config.hidden) * 4)?;
        floats.record(recorder, "positions", &positions.view(), number)?;
        Ok(positions)
    };
    let positions = match config.encoder {
        EncoderKind::Gemma4 { .. } | EncoderKind::Gemma4Unified { .. } => {
            let count = config.max_patches_per_side();
            Some([random(&mut recorder, count, 1)?, random(&mut recorder, count, 2)?])
        }
        EncoderKind::Siglip { .. } => {
            let positions = random(&mut recorder, config.max_patches(), 1)?;
            vectors.insert(Slot::vision(None, Role::PositionEmbed), positions);
            None
        }
    };
    let mut qkv_biases = vec![];
    if let EncoderKind::Siglip { transformer, .. } = config.encoder {
        for _ in 0..transformer.layers {
            let bias = arena.buffer("bias", u64::from(3 * config.hidden) * 4)?;
            recorder.fill("bias", &bias, 0)?;
            qkv_biases.push(bias);
        }
    }
    recorder.seal()?.run(TIMEOUT)?;
    Ok(VisionWeights { matrices, vectors, qkv_biases, positions, clips: vec![] })
}

impl Runner {
    /// Adds an image encoder with random weights: as fast as a real one, with meaningless soft tokens. Matrices whose rows
    /// do not consist of whole groups are f16.
    pub fn with_random_encoder(
        self,
        config: VisionConfig,
        scheme: Scheme,
        limits: EncoderLimits,
    ) -> Result<Self> {
        let model = self.model().clone();
        let weights = random_vision_weights(&model.device, &config, scheme)?;
        let encoder = ImageEncoder::new(&model.device, config, weights, model.matrix_units(), limits)?;
        Ok(self.with_encoder(encoder))
    }

    /// Profiles the encoding of images, with a timestamp after every command.
    pub fn profile_images(&mut self, images: usize) -> Result<Profile> {
        let encoder = self.encoder_mut().ok_or(Error::NoImageEncoder)?;
        let timings = encoder.encode_timed(images, TimestampMode::PerCommand(MAX_COMMANDS))?;
        Ok(Profile::new(&timings, |_| 0))
    }

    /// Fills the KV cache with random numbers, so that sequences may start at any depth.
    pub fn fill_cache(&mut self) -> Result<()> {
        self.cache().clear_prefix_cache();
        let random = Random::new(&self.model().device, Distribution::Scales)?;
        for layer in 0..self.model().config.layers as usize {
            let kv = self.cache().layer(layer);
            let mut recorder = self.model().device.recorder()?;
            for (seed, buffer) in [(0, &kv.k), (1, &kv.v)] {
                random.record(&mut recorder, "KV", &buffer.view(), 2 * layer as u32 + seed)?;
            }
            recorder.seal()?.run(TIMEOUT)?;
        }
        Ok(())
    }

    /// Empties the prefix cache in memory. Pages on disk stay.
    pub fn evict_prefixes(&mut self) {
        self.cache().evict_prefixes();
    }

    /// Starts a sequence of `depth` tokens, with whatever [`Runner::fill_cache`] wrote as its keys and
    /// values.
    pub fn start_at(&mut self, depth: u32) -> Result<Sequence> {
        let mut sequence = self.start()?;
        let chunk = self.cache().limits().prefill_chunk;
        // In chunks, as a prompt would, so that sliding-window pages are released on the way.
        while sequence.len() < depth {
            let rows = chunk.min(depth - sequence.len());
            self.skip(&mut sequence, rows)?;
        }
        Ok(sequence)
    }

    /// Distinct experts that the rows of the last decode step of this many rows selected in the last layer; `None` for
    /// models without experts.
    pub fn distinct_experts(&self, rows: usize) -> Result<Option<u32>> {
        self.programs().distinct_experts(self.model(), rows)
    }

    /// Profiles one decode step, as [`Runner::decode`] runs it, with a timestamp after every command.
    pub fn profile(&mut self, batch: &mut [DecodeRow<'_>]) -> Result<Profile> {
        let read = |row: &DecodeRow<'_>| self.cache().bytes_read(&self.model().config, row.sequence.len());
        let kv: u64 = batch.iter().map(read).sum();
        let timings = self.decode_timed(batch, TimestampMode::PerCommand(MAX_COMMANDS))?;
        let bytes = |name: &str| match name {
            "attention" => kv,
            _ => self.model().command_bytes(name),
        };
        Ok(Profile::new(&timings, bytes))
    }

    /// Profiles one prefill chunk, as [`Runner::prompt`] runs it, with a timestamp after every command. The
    /// bytes that attention reads depend on how rows share them, and are not counted.
    pub fn profile_prompt(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<Profile> {
        let timings = self.prompt_timed(sequence, tokens, TimestampMode::PerCommand(MAX_COMMANDS))?;
        Ok(Profile::new(&timings, |name| self.model().command_bytes(name)))
    }
}

/// More commands than a step of any model has.
const MAX_COMMANDS: u32 = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_grouped_by_name_and_by_level() {
        let timing = |name: &str, level, nanoseconds| Timing { name: name.into(), nanoseconds, level };
        let timings = [
            timing("norm", 0, 1.0),
            timing("QKV", 1, 10.0),
            timing("QKV", 1, 20.0),
            timing("norm", 2, 2.0),
            timing("gate", 3, 5.0),
            timing("up", 3, 7.0),
        ];
        let profile = Profile::new(&timings, |name| if name == "norm" { 0 } else { 100 });
        let share =
            |name: &str, count, nanoseconds, bytes| Share { name: name.into(), count, nanoseconds, bytes };
        assert_eq!(
            profile.kernels,
            [
                share("norm", 2, 3.0, 0),
                share("QKV", 2, 30.0, 100),
                share("gate", 1, 5.0, 100),
                share("up", 1, 7.0, 100)
            ]
        );
        assert_eq!(
            profile.levels,
            [share("norm", 2, 3.0, 0), share("QKV", 1, 30.0, 100), share("gate + up", 1, 12.0, 200)]
        );
        assert!((profile.nanoseconds() - 45.0).abs() < 1e-9);
    }
}
