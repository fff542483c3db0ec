//! The dimensions and constants of an image encoder, from `config.json` or from the metadata of an mmproj file, with defaults filled in.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    config::{Keys, MAX_LAYERS, MAX_SIZE, MetaValue, object},
    error::{Error, Result},
    gguf::Metadata,
};

/// Colour channels of an image.
pub(super) const CHANNELS: u32 = 3;

/// Maximum width of an encoder and size of its images: published ones stay below 2^13.
const MAX_WIDTH: u32 = 1 << 16;

/// Maximum size of a patch: its values, three per pixel, are counted in 32 bits.
const MAX_PATCH: u32 = 1 << 12;

/// Patches along a side that become one soft token, unless a GGUF file says otherwise. llama.cpp has the same default.
const POOLED_PATCHES: u32 = 4;

/// Soft tokens per image, unless a config says otherwise.
const SOFT_TOKENS: u32 = 256;

/// Mean and standard deviation of pixels unless a file says otherwise: values become −1 to 1.
const SIGNED: [f32; 3] = [0.5; 3];

const USE_PUBLISHED: &str = "use a published Gemma 3 model";
const USE_MMPROJ: &str = "use the mmproj file that was published with the Gemma 3 model";

/// All parameters of an image encoder other than its weights.
///
/// ```text
/// image [3, image_size, image_size]
///   patches of patch_size × patch_size        → [patches, hidden]
///   layers: LayerNorm, attention, MLP         → [patches, hidden]
///   mean over squares of pooled_patches ×
///   pooled_patches patches, RMSNorm, product  → [soft tokens, text_hidden]
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VisionConfig {
    /// Width and height of an image in pixels; a multiple of `patch_size`.
    pub image_size: u32,
    /// Width and height of a patch in pixels.
    pub patch_size: u32,
    /// Hidden size: width of the residual stream.
    pub hidden: u32,
    /// Width of the MLP, which has no gate: `down(gelu_tanh(up(x)))`.
    pub intermediate: u32,
    /// Number of layers.
    pub layers: u32,
    /// Attention heads; divides `hidden`.
    pub heads: u32,
    /// Epsilon of every LayerNorm.
    pub layer_norm_eps: f32,
    /// Soft tokens along a side of an image; divides the patches along a side.
    pub soft_tokens_per_side: u32,
    /// Hidden size of the language model: width of a soft token.
    pub text_hidden: u32,
    /// Epsilon of the RMSNorm of soft tokens. Transformers and llama.cpp take that of the encoder's norms.
    pub soft_norm_eps: f32,
    /// Subtracted from the red, green and blue of a pixel, from 0 to 1.
    pub image_mean: [f32; 3],
    /// Divides the difference.
    pub image_std: [f32; 3],
}

impl VisionConfig {
    /// Elements per attention head.
    pub fn head_dim(&self) -> u32 {
        self.hidden / self.heads
    }

    /// Patches along a side of an image.
    pub fn patches_per_side(&self) -> u32 {
        self.image_size / self.patch_size
    }

    /// Patches of an image.
    pub fn patches(&self) -> u32 {
        self.patches_per_side().pow(2)
    }

    /// Values of a patch: columns of the patch embedding.
    pub fn patch_values(&self) -> u32 {
        CHANNELS * self.patch_size.pow(2)
    }

    /// Patches along a side of the square that becomes one soft token.
    pub fn pooled_patches(&self) -> u32 {
        self.patches_per_side() / self.soft_tokens_per_side
    }

    /// Soft tokens of an image.
    pub fn soft_tokens(&self) -> u32 {
        self.soft_tokens_per_side.pow(2)
    }

    /// Reads the `vision_config` of a `config.json`, and the normalisation of pixels from the config of the image
    /// processor beside it; paths are used in errors only. Absent values are the defaults of transformers.
    pub fn from_hf(
        path: &Path,
        json: &Value,
        processor: Option<(&Path, &Value)>,
        text_hidden: u32,
    ) -> Result<Self> {
        let top = json.as_object().ok_or_else(|| Error::invalid(path, "is not a JSON object"))?;
        let none = Map::new();
        let tower = object(path, top, "vision_config")?.unwrap_or(&none);
        let get_top = |key: &str| top.get(key).map(MetaValue::from_json);
        let get_tower = |key: &str| tower.get(key).map(MetaValue::from_json);
        let outer = Keys { path, prefix: "", get: &get_top };
        let keys = Keys { path, prefix: "vision_config.", get: &get_tower };
        require(&keys, "model_type", "siglip_vision_model", USE_PUBLISHED)?;
        require(&keys, "hidden_act", "gelu_pytorch_tanh", USE_PUBLISHED)?;
        if keys.flag("vision_use_head")? == Some(true) {
            return Err(keys.unsupported("vision_config.vision_use_head = true", USE_PUBLISHED));
        }
        check_channels(&keys, "num_channels", USE_PUBLISHED)?;
        let layer_norm_eps = keys.number("layer_norm_eps", Some(1e-6))?;
        let config = Self {
            image_size: keys.size("image_size", MAX_WIDTH, Some(224))?,
            patch_size: keys.size("patch_size", MAX_PATCH, Some(16))?,
            hidden: keys.size("hidden_size", MAX_WIDTH, Some(768))?,
            intermediate: keys.size("intermediate_size", MAX_WIDTH, Some(3072))?,
            layers: keys.size("num_hidden_layers", MAX_LAYERS, Some(12))?,
            heads: keys.size("num_attention_heads", MAX_WIDTH, Some(12))?,
            layer_norm_eps,
            soft_tokens_per_side: soft_tokens_per_side(&outer, "mm_tokens_per_image")?,
            text_hidden,
            soft_norm_eps: layer_norm_eps,
            image_mean: SIGNED,
            image_std: SIGNED,
        }
        .check(&keys, "num_attention_heads")?;
        match processor {
            Some((path, json)) => config.with_processor(path, json),
            None => Ok(config),
        }
    }

    /// Applies the config of an image processor: `preprocessor_config.json`, or the part of `processor_config.json`
    /// that newer versions of transformers write.
    fn with_processor(mut self, path: &Path, json: &Value) -> Result<Self> {
        let json = json.get("image_processor").unwrap_or(json);
        for (key, target, positive) in
            [("image_mean", &mut self.image_mean, false), ("image_std", &mut self.image_std, true)]
        {
            if let Some(value) = json.get(key).filter(|value| !value.is_null()) {
                let numbers = value.as_array().map(|list| list.iter().filter_map(Value::as_f64));
                let numbers: Vec<f32> = numbers.into_iter().flatten().map(|number| number as f32).collect();
                *target = per_channel(path, key, &numbers, positive)?;
            }
        }
        for side in ["height", "width"] {
            let size = json.get("size").and_then(|size| size.get(side)).and_then(Value::as_u64);
            if let Some(size) = size.filter(|size| *size != u64::from(self.image_size)) {
                let reason = format!(
                    "size.{side} is {size}, but vision_config.image_size in config.json is {}: download both again",
                    self.image_size
                );
                return Err(Error::invalid(path, reason));
            }
        }
        Ok(self)
    }

    /// Reads the metadata of an mmproj file, as llama.cpp's converter writes it; `path` is used in errors only.
    pub fn from_mmproj(path: &Path, metadata: &Metadata) -> Result<Self> {
        let get = |key: &str| metadata.get(key).map(MetaValue::from);
        let all = Keys { path, prefix: "", get: &get };
        match all.text("general.architecture")? {
            Some("clip") => {}
            other => {
                let other = shortened(other.unwrap_or("unknown"));
                let reason =
                    format!("not an image encoder, but a model of the architecture '{other}': {USE_MMPROJ}");
                return Err(Error::invalid(path, reason));
            }
        }
        if all.flag("clip.has_vision_encoder")? == Some(false) {
            return Err(all.unsupported("an mmproj file without an image encoder", USE_MMPROJ));
        }
        // Files with encoders of several kinds name one projector per kind.
        let projector = ["clip.vision.projector_type", "clip.projector_type"];
        let projector = projector.into_iter().find(|key| all.has(key)).unwrap_or(projector[1]);
        match all.text(projector)? {
            Some("gemma3") => {}
            Some(other) => {
                let what = format!("the image projector '{}'", shortened(other));
                return Err(all.unsupported(what, USE_MMPROJ));
            }
            None => return Err(all.error(projector, format!("is missing: {USE_MMPROJ}"))),
        }
        if all.flag("clip.use_gelu")? == Some(false) || all.flag("clip.use_silu")? == Some(true) {
            return Err(all.unsupported("an image encoder whose activation is not GELU", USE_MMPROJ));
        }
        let get = |key: &str| metadata.get(&format!("clip.vision.{key}")).map(MetaValue::from);
        let keys = Keys { path, prefix: "clip.vision.", get: &get };
        let layer_norm_eps = keys.number("attention.layer_norm_epsilon", Some(1e-6))?;
        let mut config = Self {
            image_size: keys.size("image_size", MAX_WIDTH, None)?,
            patch_size: keys.size("patch_size", MAX_PATCH, None)?,
            hidden: keys.size("embedding_length", MAX_WIDTH, None)?,
            intermediate: keys.size("feed_forward_length", MAX_WIDTH, None)?,
            layers: keys.size("block_count", MAX_LAYERS, None)?,
            heads: keys.size("attention.head_count", MAX_WIDTH, None)?,
            layer_norm_eps,
            soft_tokens_per_side: 1,
            text_hidden: keys.size("projection_dim", MAX_SIZE, None)?,
            soft_norm_eps: layer_norm_eps,
            image_mean: SIGNED,
            image_std: SIGNED,
        }
        .check(&keys, "attention.head_count")?;
        let pooled = keys.size("projector.scale_factor", MAX_WIDTH, Some(POOLED_PATCHES))?;
        let side = config.patches_per_side();
        if !side.is_multiple_of(pooled) {
            let reason = format!("is {pooled}, but an image has {side} patches along a side");
            return Err(keys.error("projector.scale_factor", reason));
        }
        config.soft_tokens_per_side = side / pooled;
        for (key, target, positive) in
            [("image_mean", &mut config.image_mean, false), ("image_std", &mut config.image_std, true)]
        {
            let key = format!("clip.vision.{key}");
            if let Some(numbers) = metadata.optional(&key, Metadata::array_f32)? {
                *target = per_channel(path, &key, &numbers, positive)?;
            }
        }
        Ok(config)
    }

    /// Checks relations between values.
    fn check(self, keys: &Keys, heads: &str) -> Result<Self> {
        let Self { image_size, patch_size, hidden, soft_tokens_per_side, .. } = self;
        if !hidden.is_multiple_of(self.heads) {
            let reason = format!("is {}, but the hidden size {hidden} is not a multiple of it", self.heads);
            return Err(keys.error(heads, reason));
        }
        if !image_size.is_multiple_of(patch_size) {
            let reason = format!("is {image_size}, but must be a multiple of patch_size = {patch_size}");
            return Err(keys.error("image_size", reason));
        }
        let side = self.patches_per_side();
        if side.checked_pow(2).is_none_or(|patches| patches > MAX_SIZE) {
            return Err(keys.error("image_size", format!("gives {side} patches along a side: too many")));
        }
        if !side.is_multiple_of(soft_tokens_per_side) {
            let reason = format!(
                "gives {side} patches along a side, which {soft_tokens_per_side} soft tokens along a side do not divide"
            );
            return Err(keys.error("image_size", reason));
        }
        Ok(self)
    }
}

/// Rejects values of a key other than the default.
fn require(keys: &Keys, key: &str, supported: &str, fix: &str) -> Result<()> {
    match keys.text(key)? {
        Some(other) if other != supported => {
            Err(keys.unsupported(format!("{}{key} = '{}'", keys.prefix, shortened(other)), fix))
        }
        _ => Ok(()),
    }
}

fn check_channels(keys: &Keys, key: &str, fix: &str) -> Result<()> {
    match keys.size(key, MAX_WIDTH, Some(CHANNELS))? {
        CHANNELS => Ok(()),
        other => Err(keys.unsupported(format!("{}{key} = {other}", keys.prefix), fix)),
    }
}

/// The square root of a number of soft tokens.
fn soft_tokens_per_side(keys: &Keys, key: &str) -> Result<u32> {
    let tokens = keys.size(key, MAX_SIZE, Some(SOFT_TOKENS))?;
    match tokens.isqrt() {
        side if side.pow(2) == tokens => Ok(side),
        _ => Err(keys.error(key, format!("is {tokens}, but must be a square"))),
    }
}

/// One number per colour channel.
fn per_channel(path: &Path, key: &str, numbers: &[f32], positive: bool) -> Result<[f32; 3]> {
    let valid = |number: &f32| number.is_finite() && (!positive || *number > 0.0);
    match <[f32; 3]>::try_from(numbers) {
        Ok(numbers) if numbers.iter().all(valid) => Ok(numbers),
        _ => {
            let kind = if positive { "positive numbers" } else { "numbers" };
            Err(Error::invalid(path, format!("{key} must be three {kind}, one per channel")))
        }
    }
}

/// Text from a file, fit for a message.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect::<String>().escape_debug().to_string()
}
