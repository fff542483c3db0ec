//! For benchmarks: models of random weights made on the GPU, sequences that begin deep in their context, the time of each
//! kernel of a step.

use std::{collections::BTreeMap, time::Duration};

use gpu::{Arena, Buffer, Device, Lifetime, Memory, Stamps};
use kernels::{
    GROUP, Layout, Matrix, Scheme,
    random::{Kind, Random},
};
use serde_json::json;
use weights::{
    blueprint::Place,
    config::Config,
    load::Weights,
    names::{Role, Slot, Tower},
};

use crate::{Model, Next, Result, Runner, Sequence};

/// Making a matrix of random words, the largest on the slowest device.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The published sizes of Gemma 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 270 million parameters.
    M270,
    /// 1 billion.
    B1,
    /// 4 billion.
    B4,
    /// 12 billion.
    B12,
    /// 27 billion.
    B27,
}

impl Size {
    /// Every size, smallest first.
    pub const ALL: [Size; 5] = [Size::M270, Size::B1, Size::B4, Size::B12, Size::B27];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Size::M270 => "gemma3-270m",
            Size::B1 => "gemma3-1b",
            Size::B4 => "gemma3-4b",
            Size::B12 => "gemma3-12b",
            Size::B27 => "gemma3-27b",
        }
    }

    /// Its dimensions.
    pub fn config(self) -> Result<Config> {
        let (layers, hidden, intermediate, heads, kv_heads, head_dim, scalar, window, positions) = match self
        {
            Size::M270 => (18, 640, 2048, 4, 1, 256, 256, 512, 32768),
            Size::B1 => (26, 1152, 6912, 4, 1, 256, 256, 512, 32768),
            Size::B4 => (34, 2560, 10240, 8, 4, 256, 256, 1024, 131_072),
            Size::B12 => (48, 3840, 15360, 16, 8, 256, 256, 1024, 131_072),
            Size::B27 => (62, 5376, 21504, 32, 16, 128, 168, 1024, 131_072),
        };
        let scaling =
            if positions > 32768 { json!({ "rope_type": "linear", "factor": 8.0 }) } else { json!(null) };
        let config = json!({
            "model_type": "gemma3_text", "num_hidden_layers": layers, "hidden_size": hidden,
            "intermediate_size": intermediate, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": head_dim, "query_pre_attn_scalar": scalar, "sliding_window": window,
            "max_position_embeddings": positions, "vocab_size": 262_144, "rope_scaling": scaling,
            "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        });
        Ok(Config::from_hf(self.name().as_ref(), &config)?)
    }
}

/// Every matrix of a model with these dimensions, each in one piece, with its layout.
fn matrices(config: &Config, scheme: Scheme) -> Vec<(Place, Layout)> {
    let size = |value: u32| value as usize;
    let (hidden, intermediate) = (size(config.hidden), size(config.intermediate));
    let (q, kv) = (size(config.query_rows()), size(config.kv_rows()));
    let layer = |layer: u32| {
        [
            (Place::Qkv(layer), q + 2 * kv, hidden),
            (Place::Output(layer), hidden, q),
            (Place::GateUp(layer), 2 * intermediate, hidden),
            (Place::Down(layer), hidden, intermediate),
        ]
    };
    let embedding = (Place::Embedding, size(config.vocab), hidden);
    let all = [embedding].into_iter().chain((0..config.layers).flat_map(layer));
    all.map(|(place, rows, k)| (place, Layout { scheme, rows, k })).collect()
}

/// Bytes of a model's matrices in a scheme.
pub fn weight_bytes(config: &Config, scheme: Scheme) -> u64 {
    let bytes = |layout: Layout| (layout.value_bytes() + layout.scale_bytes()) as u64;
    matrices(config, scheme).into_iter().map(|(_, layout)| bytes(layout)).sum()
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
        let values = Random::new(device, if scheme.is_float() { Kind::Scales } else { Kind::Bits })?;
        let scales = Random::new(device, Kind::Scales)?;
        let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device);
        let mut done = 0;
        let mut made = Vec::new();
        for (number, (place, layout)) in matrices(&config, scheme).into_iter().enumerate() {
            debug_assert!(layout.k.is_multiple_of(GROUP));
            let matrix = Matrix::allocate(&mut arena, &place.to_string(), layout, device.caps())?;
            let mut recorder = device.recorder()?;
            for part in matrix.parts() {
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
        let norms = norms(device, &config)?;
        Self::assemble(device, config, Weights { matrices: made, norms })
    }
}

/// Norms that change nothing but the scale: all ones.
fn norms(device: &Device, config: &Config) -> Result<BTreeMap<Slot, Buffer>> {
    let of_layer = [
        (Role::AttentionNorm, config.hidden),
        (Role::QueryNorm, config.head_dim),
        (Role::KeyNorm, config.head_dim),
        (Role::PostAttentionNorm, config.hidden),
        (Role::FeedForwardNorm, config.hidden),
        (Role::PostFeedForwardNorm, config.hidden),
    ];
    let slot = |layer: Option<u32>, role: Role| Slot { tower: Tower::Text, layer, role };
    let layers = (0..config.layers)
        .flat_map(|layer| of_layer.map(|(role, length)| (slot(Some(layer), role), length)))
        .chain([(slot(None, Role::FinalNorm), config.hidden)]);
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(4 << 20);
    let mut recorder = device.recorder()?;
    let mut norms = BTreeMap::new();
    for (slot, length) in layers {
        let buffer = arena.buffer("norm", u64::from(length) * 4)?;
        recorder.fill("norm", &buffer, 1_f32.to_bits())?;
        norms.insert(slot, buffer);
    }
    recorder.seal()?.run(TIMEOUT)?;
    Ok(norms)
}

/// GPU time of all commands of one name in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// What they were recorded as.
    pub name: String,
    /// How many there were.
    pub count: usize,
    /// All of them together.
    pub nanoseconds: f64,
}

impl Runner {
    /// Fills all keys and values with random numbers, so that sequences may begin anywhere.
    pub fn fill_cache(&mut self) -> Result<()> {
        let random = Random::new(&self.model().device, Kind::Scales)?;
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
        let chunk = self.cache().limits().chunk;
        // In steps, as a prompt would: the window leaves its pages on the way.
        while sequence.len() < depth {
            let rows = chunk.min(depth - sequence.len());
            self.reserve(&mut sequence, rows)?;
            sequence.advance(rows);
        }
        Ok(sequence)
    }

    /// One token for each of some sequences, as [`Runner::decode`] does it, with a timestamp after every command.
    pub fn profile(&mut self, next: &mut [Next<'_>]) -> Result<Vec<Share>> {
        let timings = self.decode_timed(next, Stamps::Each(MOST_COMMANDS))?;
        let mut shares: Vec<Share> = Vec::new();
        for timing in timings {
            match shares.iter_mut().find(|share| share.name == timing.name) {
                Some(share) => {
                    share.count += 1;
                    share.nanoseconds += timing.nanoseconds;
                }
                None => {
                    shares.push(Share { name: timing.name, count: 1, nanoseconds: timing.nanoseconds });
                }
            }
        }
        Ok(shares)
    }
}

/// More than any model has commands in a step.
const MOST_COMMANDS: u32 = 8192;
