//! For benchmarks: models of random weights made on the GPU, sequences that begin deep in their context, the time of each
//! kernel of a step.

use std::{collections::BTreeMap, time::Duration};

use checkpoint::{Config, Role, Slot, Tower};
use gpu::{Arena, Buffer, Device, Lifetime, Memory, TimestampMode, Timing};
use kernels::{
    Matrix,
    bench::random::{Distribution, Random},
};
use tensor::{GROUP, Layout, Scheme};
use weights::{blueprint::MatrixId, load::Weights};

use crate::{DecodeRow, Model, Result, Runner, Sequence};

/// Making a matrix of random words, the largest on the slowest device.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Every matrix of a model with these dimensions, each in one piece, with its layout.
fn matrices(config: &Config, scheme: Scheme) -> Vec<(MatrixId, Layout)> {
    let size = |value: u32| value as usize;
    let (hidden, intermediate) = (size(config.hidden), size(config.intermediate));
    let (q, kv) = (size(config.query_rows()), size(config.kv_rows()));
    let layer = |layer: u32| {
        [
            (MatrixId::Qkv(layer), q + 2 * kv, hidden),
            (MatrixId::AttentionOutput(layer), hidden, q),
            (MatrixId::GateUp(layer), 2 * intermediate, hidden),
            (MatrixId::Down(layer), hidden, intermediate),
        ]
    };
    let embedding = (MatrixId::Embedding, size(config.vocab), hidden);
    let head = (!config.tie_embeddings).then_some((MatrixId::Head, size(config.vocab), hidden));
    let all = [embedding].into_iter().chain((0..config.layers).flat_map(layer)).chain(head);
    all.map(|(place, rows, k)| (place, Layout { scheme, rows, k })).collect()
}

/// Bytes of a model's matrices in a scheme.
pub fn weight_bytes(config: &Config, scheme: Scheme) -> u64 {
    matrices(config, scheme).into_iter().map(|(_, layout)| bytes(layout)).sum()
}

/// Of those the bytes that a token reads: of embeddings that are not the head too it is a row.
pub fn read_bytes(config: &Config, scheme: Scheme) -> u64 {
    let read = |place: MatrixId| place != MatrixId::Embedding || config.tie_embeddings;
    let read = matrices(config, scheme).into_iter().filter(|(place, _)| read(*place));
    read.map(|(_, layout)| bytes(layout)).sum()
}

fn bytes(layout: Layout) -> u64 {
    (layout.value_bytes() + layout.scale_bytes()) as u64
}

impl Model {
    /// A model of random weights: as fast as a real one, and as little to say as noise has. `progress` is told how many bytes
    /// are done.
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
        for (number, (place, layout)) in matrices(&config, scheme).into_iter().enumerate() {
            debug_assert!(layout.k.is_multiple_of(GROUP));
            let matrix = Matrix::allocate(&mut arena, &place.to_string(), layout, device.caps())?;
            let mut recorder = device.recorder()?;
            for part in matrix.blocks() {
                let seed = (number << 20 ^ part.first_row) as u32;
                values.record(&mut recorder, "values", &part.values.view(), seed)?;
                if let Some(plane) = &part.scales {
                    scales.record(&mut recorder, "scales", &plane.view(), seed)?;
                }
            }
            recorder.seal()?.run(TIMEOUT)?;
            done += matrix.bytes();
            progress(done);
            made.push((place, matrix));
        }
        let (norms, qkv_biases) = vectors(device, &config)?;
        Self::from_weights(device, config, Weights { matrices: made, norms, qkv_biases })
    }
}

/// Norms that change nothing but the scale, all ones, and biases that change nothing.
fn vectors(device: &Device, config: &Config) -> Result<(BTreeMap<Slot, Buffer>, Vec<Buffer>)> {
    let family = config.architecture.family();
    let mut of_layer = vec![(Role::AttentionNorm, config.hidden), (Role::FeedForwardNorm, config.hidden)];
    if family.head_norms {
        of_layer.extend([(Role::QueryNorm, config.head_dim), (Role::KeyNorm, config.head_dim)]);
    }
    if family.post_norms {
        of_layer
            .extend([(Role::PostAttentionNorm, config.hidden), (Role::PostFeedForwardNorm, config.hidden)]);
    }
    let of_layer = &of_layer;
    let slot = |layer: Option<u32>, role: Role| Slot { tower: Tower::Text, layer, role };
    let layers = (0..config.layers)
        .flat_map(|layer| of_layer.iter().map(move |(role, length)| (slot(Some(layer), *role), *length)))
        .chain([(slot(None, Role::FinalNorm), config.hidden)]);
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
        let buffer = arena.buffer("bias", u64::from(config.query_rows() + 2 * config.kv_rows()) * 4)?;
        recorder.fill("bias", &buffer, 0)?;
        qkv_biases.push(buffer);
    }
    recorder.seal()?.run(TIMEOUT)?;
    Ok((norms, qkv_biases))
}

/// GPU time of all commands of one name in a step, or of all levels of the same commands.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// What the commands were recorded as; those of a level with a plus between them.
    pub name: String,
    /// How many there were.
    pub count: usize,
    /// All of them together.
    pub nanoseconds: f64,
    /// Weights, keys and values that they must read, all of them together.
    pub bytes: u64,
}

/// Where the time of a step goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// By command.
    pub kernels: Vec<Share>,
    /// By level: what runs side by side between two barriers.
    pub levels: Vec<Share>,
}

impl Profile {
    /// Of the commands of a step, in their order. `bytes` says what all commands of a name must read together.
    fn new(timings: &[Timing], bytes: impl Fn(&str) -> u64) -> Self {
        let mut kernels: Vec<Share> = Vec::new();
        for timing in timings {
            add(&mut kernels, &timing.name, timing.nanoseconds, 0);
        }
        for share in &mut kernels {
            share.bytes = bytes(&share.name);
        }
        let of_one = |name: &str| {
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
            let bytes = level.iter().map(|timing| of_one(&timing.name)).sum();
            add(&mut levels, &names.join(" + "), nanoseconds, bytes);
        }
        Self { kernels, levels }
    }

    /// The whole step.
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
    /// Bytes of weights that the commands of a name read in a step.
    fn bytes_of(&self, name: &str) -> u64 {
        let has_head = self.weights.by_id(MatrixId::Head).next().is_some();
        let all: u64 = self
            .weights
            .matrices
            .iter()
            .filter(|(place, _)| match place {
                // A row of it for each token, where it is not the head too.
                MatrixId::Embedding => name == "head" && !has_head,
                MatrixId::Head => name == "head",
                MatrixId::Qkv(_) => name == "QKV",
                MatrixId::AttentionOutput(_) => name == "output",
                MatrixId::GateUp(_) => name == "gate and up" && self.weights.by_id(*place).count() == 1,
                MatrixId::Down(_) => name == "down",
            })
            .map(|(_, matrix)| matrix.bytes())
            .sum();
        // Where a file stores the two in different schemes they are two matrices, gate first.
        let half = ["gate", "up"].iter().position(|half| *half == name);
        let apart = |(half, layer): (usize, u32)| match self
            .weights
            .by_id(MatrixId::GateUp(layer))
            .collect::<Vec<_>>()[..]
        {
            [gate, up] => [gate, up][half].bytes(),
            _ => 0,
        };
        let apart: u64 =
            half.map_or(0, |half| (0..self.config.layers).map(|layer| apart((half, layer))).sum());
        all + apart
    }
}

impl Runner {
    /// Fills all keys and values with random numbers, so that sequences may begin anywhere.
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

    /// A sequence that holds `depth` positions already, of whatever [`Runner::fill_cache`] has put there.
    pub fn start_at(&mut self, depth: u32) -> Result<Sequence> {
        let mut sequence = self.start()?;
        let chunk = self.cache().limits().prefill_chunk;
        // In steps, as a prompt would: the window leaves its pages on the way.
        while sequence.len() < depth {
            let rows = chunk.min(depth - sequence.len());
            self.skip(&mut sequence, rows)?;
        }
        Ok(sequence)
    }

    /// One token for each of some sequences, as [`Runner::decode`] does it, with a timestamp after every command.
    pub fn profile(&mut self, batch: &mut [DecodeRow<'_>]) -> Result<Profile> {
        let read = |row: &DecodeRow<'_>| self.cache().bytes_read(&self.model().config, row.sequence.len());
        let kv: u64 = batch.iter().map(read).sum();
        let timings = self.decode_timed(batch, TimestampMode::PerCommand(MOST_COMMANDS))?;
        let bytes = |name: &str| match name {
            "attention" => kv,
            _ => self.model().bytes_of(name),
        };
        Ok(Profile::new(&timings, bytes))
    }

    /// One chunk of a prompt, as [`Runner::prompt`] reads it, with a timestamp after every command. What attention reads depends on
    /// how rows share it, and is not counted.
    pub fn profile_prompt(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<Profile> {
        let timings = self.prompt_timed(sequence, tokens, TimestampMode::PerCommand(MOST_COMMANDS))?;
        Ok(Profile::new(&timings, |name| self.model().bytes_of(name)))
    }
}

/// More than any model has commands in a step.
const MOST_COMMANDS: u32 = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_one_level_stand_together() {
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
