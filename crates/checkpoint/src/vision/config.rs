//! The dimensions and constants of an image encoder, from `config.json` or from an mmproj file, with defaults filled
//! in.

mod gemma4;
mod siglip;

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    architecture::Architecture,
    config::{Keys, MetaValue, nested_value, object},
    error::{Error, Result},
    gguf::{Gguf, Metadata},
};

/// Colour channels of an image.
pub(super) const CHANNELS: u32 = 3;

/// Maximum width of an encoder and size of its images: published ones stay below 2^13.
const MAX_WIDTH: u32 = 1 << 16;

/// Maximum size of a patch: its values, three per pixel, are counted in 32 bits.
const MAX_PATCH: u32 = 1 << 12;

/// Maximum tokens per image that Gemma 4 was trained with.
const MAX_SOFT_TOKENS: u32 = 1120;

/// Minimum of the maximum: with less, a picture of some shape would be a single token, which cannot be prefilled.
pub const MIN_SOFT_TOKENS: u32 = 4;

/// Mean and standard deviation of pixels unless a file says otherwise: values become −1 to 1.
const SIGNED: [f32; 3] = [0.5; 3];

const USE_MMPROJ: &str = "use the mmproj file that was published with the model";

/// `model_type` of the image encoders of Gemma 4 in `config.json`.
const GEMMA4: &str = "gemma4_vision";
const GEMMA4_UNIFIED: &str = "gemma4_unified_vision";

/// All parameters of an image encoder other than its weights.
///
/// ```text
/// image
///   patches of patch_size × patch_size        → [patches, hidden]
///   the layers of a transformer               → [patches, hidden]
///   mean over squares of pooled_patches ×
///   pooled_patches patches, RMSNorm, product  → [soft tokens, text_hidden]
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VisionConfig {
    /// Width and height of a patch in pixels.
    pub patch_size: u32,
    /// Patches along a side of the square that becomes one soft token.
    pub pooled_patches: u32,
    /// Order of a patch's values in a row of the patch embedding.
    pub patch_order: PatchOrder,
    /// Hidden size: width of the residual stream.
    pub hidden: u32,
    /// Hidden size of the language model: width of a soft token.
    pub text_hidden: u32,
    /// Epsilon of the RMSNorm of soft tokens. Transformers and llama.cpp take that of the encoder's norms.
    pub soft_norm_eps: f32,
    /// What differs between encoders.
    pub encoder: EncoderKind,
}

/// Order of the values of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PatchOrder {
    /// Channel, y, x: the patch embedding is a convolution.
    ChannelsFirst,
    /// y, x, channel.
    ChannelsLast,
}

/// The image encoders of Gemma 3 and 4.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum EncoderKind {
    /// SigLIP (Gemma 3): square images of one size, one position embedding per patch; LayerNorms, biases, an MLP
    /// without a gate.
    Siglip {
        /// Width and height of an image in pixels; a multiple of the size of a soft token.
        image_size: u32,
        /// Subtracted from the red, green and blue of a pixel, from 0 to 1.
        image_mean: [f32; 3],
        /// Divides the difference.
        image_std: [f32; 3],
        /// The layers.
        transformer: Transformer,
    },
    /// The encoder of Gemma 4 E2B, E4B, 26B and 31B: images of any shape, position embeddings per column and per row,
    /// RoPE in two dimensions; RMSNorms before and after each block, a gated MLP.
    Gemma4 {
        /// Soft tokens of an image, at most.
        max_soft_tokens: u32,
        /// Columns, and rows, that have position embeddings.
        positions: u32,
        /// RoPE base.
        rope_theta: f32,
        /// Whether inputs and outputs of the layers' matrices are clamped to ranges (E2B, E4B).
        clipped: bool,
        /// Whether pooled rows have a bias subtracted and are multiplied by a scale (26B, 31B).
        standardized: bool,
        /// The layers.
        transformer: Transformer,
    },
    /// No encoder (Gemma 4 12B): a patch is as large as a soft token, and becomes one by LayerNorms and two products.
    Gemma4Unified {
        /// Soft tokens of an image, at most.
        max_soft_tokens: u32,
        /// Columns, and rows, that have position embeddings.
        positions: u32,
        /// Epsilon of the LayerNorms.
        layer_norm_eps: f32,
    },
}

/// The layers of an image encoder.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transformer {
    /// Number of layers.
    pub layers: u32,
    /// Attention heads.
    pub heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Width of the MLP.
    pub intermediate: u32,
    /// Epsilon of the norms.
    pub norm_eps: f32,
}

impl Transformer {
    /// Width of queries, keys and values: of all heads.
    pub fn attention_width(&self) -> u32 {
        self.heads * self.head_dim
    }
}

impl VisionConfig {
    /// The layers, where there are any.
    pub fn transformer(&self) -> Option<&Transformer> {
        match &self.encoder {
            EncoderKind::Siglip { transformer, .. } | EncoderKind::Gemma4 { transformer, .. } => {
                Some(transformer)
            }
            EncoderKind::Gemma4Unified { .. } => None,
        }
    }

    /// The models that have such an encoder.
    pub fn architecture(&self) -> Architecture {
        match self.encoder {
            EncoderKind::Siglip { .. } => Architecture::Gemma3,
            EncoderKind::Gemma4 { .. } | EncoderKind::Gemma4Unified { .. } => Architecture::Gemma4,
        }
    }

    /// Number of layers.
    pub fn layers(&self) -> u32 {
        self.transformer().map_or(0, |transformer| transformer.layers)
    }

    /// Soft tokens of an image, at most; SigLIP's images all have as many.
    pub fn max_soft_tokens(&self) -> u32 {
        match self.encoder {
            EncoderKind::Siglip { image_size, .. } => (image_size / self.soft_token_size()).pow(2),
            EncoderKind::Gemma4 { max_soft_tokens, .. }
            | EncoderKind::Gemma4Unified { max_soft_tokens, .. } => max_soft_tokens,
        }
    }

    /// The same encoder with another maximum of soft tokens per image; an error, as a clause, if it does not allow that.
    pub fn with_max_soft_tokens(mut self, tokens: u32) -> Result<Self, String> {
        let fixed = self.max_soft_tokens();
        let (positions, max_soft_tokens) = match &mut self.encoder {
            EncoderKind::Siglip { .. } => {
                return Err(format!("images of this model always have {fixed} tokens"));
            }
            EncoderKind::Gemma4 { positions, max_soft_tokens, .. }
            | EncoderKind::Gemma4Unified { positions, max_soft_tokens, .. } => (*positions, max_soft_tokens),
        };
        let most = (positions / self.pooled_patches).min(MAX_SOFT_TOKENS);
        if !(MIN_SOFT_TOKENS..=most).contains(&tokens) {
            return Err(format!(
                "images of this model have {MIN_SOFT_TOKENS} to {most} tokens, not {tokens}"
            ));
        }
        *max_soft_tokens = tokens;
        Ok(self)
    }

    /// Columns, and rows, of patches of an image, at most: an image may be one row of soft tokens. SigLIP's are square.
    pub fn max_patches_per_side(&self) -> u32 {
        match self.encoder {
            EncoderKind::Siglip { image_size, .. } => image_size / self.patch_size,
            _ => self.max_soft_tokens() * self.pooled_patches,
        }
    }

    /// Patches of an image, at most.
    pub fn max_patches(&self) -> u32 {
        self.max_soft_tokens() * self.pooled_patches.pow(2)
    }

    /// Values of a patch: columns of the patch embedding.
    pub fn patch_values(&self) -> u32 {
        CHANNELS * self.patch_size.pow(2)
    }

    /// Whether [`Role::Projection`](crate::Role::Projection) is stored as `[hidden, text_hidden]`, unlike other
    /// matrices.
    pub fn projection_is_transposed(&self) -> bool {
        matches!(self.encoder, EncoderKind::Siglip { .. })
    }

    /// Width and height in pixels of the square that becomes one soft token.
    pub fn soft_token_size(&self) -> u32 {
        self.patch_size * self.pooled_patches
    }

    /// Reads the `vision_config` of a `config.json`, and what the config of the image processor beside it says; paths
    /// are used in errors only. Absent values are the defaults of transformers. The language model is of this
    /// architecture and hidden size.
    pub fn from_hf(
        path: &Path,
        json: &Value,
        processor: Option<(&Path, &Value)>,
        architecture: Architecture,
        text_hidden: u32,
    ) -> Result<Self> {
        let top = json.as_object().ok_or_else(|| Error::invalid(path, "is not a JSON object"))?;
        let none = Map::new();
        let tower = object(path, top, "vision_config")?.unwrap_or(&none);
        let get_top = |key: &str| top.get(key).map(MetaValue::from_json);
        let get_tower = |key: &str| nested_value(tower, key).map(MetaValue::from_json);
        let outer = Keys { path, prefix: "", get: &get_top };
        let keys = Keys { path, prefix: "vision_config.", get: &get_tower };
        if architecture != Architecture::Gemma4 {
            return siglip::from_hf(&outer, &keys, processor, text_hidden);
        }
        let unified = outer.text("model_type")? == Some("gemma4_unified");
        let default = if unified { GEMMA4_UNIFIED } else { GEMMA4 };
        match keys.text("model_type")?.unwrap_or(default) {
            GEMMA4 => gemma4::from_hf(&keys, processor, text_hidden),
            GEMMA4_UNIFIED => gemma4::unified_from_hf(&keys, processor, text_hidden),
            other => {
                let what = format!("vision_config.model_type = '{}'", shortened(other));
                Err(keys.unsupported(what, gemma4::USE_PUBLISHED))
            }
        }
    }

    /// Reads an mmproj file, as llama.cpp's converter writes it; `path` is used in errors only. Some of what an encoder
    /// has is not in the metadata, but is told by which tensors there are.
    pub fn from_mmproj(path: &Path, gguf: &Gguf) -> Result<Self> {
        let Gguf { metadata, source, .. } = gguf;
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
        if all.flag("clip.use_gelu")? == Some(false) || all.flag("clip.use_silu")? == Some(true) {
            return Err(all.unsupported("an image encoder whose activation is not GELU", USE_MMPROJ));
        }
        let get = |key: &str| metadata.get(&format!("clip.vision.{key}")).map(MetaValue::from);
        let keys = Keys { path, prefix: "clip.vision.", get: &get };
        // Files with encoders of several kinds name one projector per kind.
        let projector = ["clip.vision.projector_type", "clip.projector_type"];
        let projector = projector.into_iter().find(|key| all.has(key)).unwrap_or(projector[1]);
        match all.text(projector)? {
            Some("gemma3") => siglip::from_mmproj(&keys, metadata),
            Some("gemma4v") => gemma4::from_mmproj(&keys, metadata, &source.tensors),
            Some("gemma4uv") => gemma4::unified_from_mmproj(&keys, metadata, &source.tensors),
            Some(other) => {
                let what = format!("the image projector '{}'", shortened(other));
                Err(all.unsupported(what, USE_MMPROJ))
            }
            None => Err(all.error(projector, format!("is missing: {USE_MMPROJ}"))),
        }
    }
}

/// The part of an image processor's config that is about images: all of a `preprocessor_config.json`, or what newer
/// versions of transformers nest in `processor_config.json`.
fn image_processor(json: &Value) -> (&Value, &'static str) {
    match json.get("image_processor") {
        Some(nested) => (nested, "image_processor."),
        None => (json, ""),
    }
}

/// Mean and standard deviation of pixels in the config of an image processor, where it has them.
fn normalization_hf(path: &Path, json: &Value) -> Result<[Option<[f32; 3]>; 2]> {
    let read = |key: &str, positive: bool| {
        let Some(value) = json.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let numbers = value.as_array().map(|list| list.iter().filter_map(Value::as_f64));
        let numbers: Vec<f32> = numbers.into_iter().flatten().map(|number| number as f32).collect();
        per_channel(path, key, &numbers, positive).map(Some)
    };
    Ok([read("image_mean", false)?, read("image_std", true)?])
}

/// The same in the metadata of an mmproj file.
fn normalization_mmproj(path: &Path, metadata: &Metadata) -> Result<[Option<[f32; 3]>; 2]> {
    let read = |key: &str, positive: bool| {
        let numbers = metadata.optional(key, Metadata::array_f32)?;
        numbers.map(|numbers| per_channel(path, key, &numbers, positive)).transpose()
    };
    Ok([read("clip.vision.image_mean", false)?, read("clip.vision.image_std", true)?])
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
