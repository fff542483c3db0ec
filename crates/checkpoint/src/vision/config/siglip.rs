//! SigLIP, the encoder of Gemma 3.

use std::path::Path;

use serde_json::Value;

use super::{
    CHANNELS, EncoderKind, MAX_PATCH, MAX_WIDTH, PatchOrder, SIGNED, Transformer, VisionConfig,
    image_processor, normalization_hf, normalization_mmproj, require,
};
use crate::{
    config::{Keys, MAX_LAYERS, MAX_SIZE},
    error::{Error, Result},
    gguf::Metadata,
};

/// Patches along a side that become one soft token, unless a GGUF file says otherwise. llama.cpp has the same default.
const POOLED_PATCHES: u32 = 4;

/// Soft tokens per image, unless a config says otherwise.
const SOFT_TOKENS: u32 = 256;

const USE_PUBLISHED: &str = "use a published Gemma 3 model";

/// From `config.json`, whose `vision_config` are the `keys`.
pub(super) fn from_hf(
    outer: &Keys,
    keys: &Keys,
    processor: Option<(&Path, &Value)>,
    text_hidden: u32,
) -> Result<VisionConfig> {
    require(keys, "model_type", "siglip_vision_model", USE_PUBLISHED)?;
    require(keys, "hidden_act", "gelu_pytorch_tanh", USE_PUBLISHED)?;
    if keys.flag("vision_use_head")? == Some(true) {
        return Err(keys.unsupported("vision_config.vision_use_head = true", USE_PUBLISHED));
    }
    match keys.size("num_channels", MAX_WIDTH, Some(CHANNELS))? {
        CHANNELS => {}
        other => {
            return Err(keys.unsupported(format!("vision_config.num_channels = {other}"), USE_PUBLISHED));
        }
    }
    let norm_eps = keys.number("layer_norm_eps", Some(1e-6))?;
    let sizes = Sizes {
        image: keys.size("image_size", MAX_WIDTH, Some(224))?,
        patch: keys.size("patch_size", MAX_PATCH, Some(16))?,
        hidden: keys.size("hidden_size", MAX_WIDTH, Some(768))?,
        heads: keys.size("num_attention_heads", MAX_WIDTH, Some(12))?,
    };
    let side = sizes.patches_per_side(keys)?;
    let soft_tokens = soft_tokens_per_side(outer, "mm_tokens_per_image")?;
    if !side.is_multiple_of(soft_tokens) {
        let reason = format!(
            "gives {side} patches along a side, which {soft_tokens} soft tokens along a side do not divide"
        );
        return Err(keys.error("image_size", reason));
    }
    let mut normalization = [None; 2];
    if let Some((path, json)) = processor {
        normalization = read_processor(path, json, sizes.image)?;
    }
    let [image_mean, image_std] = normalization.map(|numbers| numbers.unwrap_or(SIGNED));
    Ok(VisionConfig {
        patch_size: sizes.patch,
        pooled_patches: side / soft_tokens,
        patch_order: PatchOrder::ChannelsFirst,
        hidden: sizes.hidden,
        text_hidden,
        soft_norm_eps: norm_eps,
        encoder: EncoderKind::Siglip {
            image_size: sizes.image,
            image_mean,
            image_std,
            transformer: Transformer {
                layers: keys.size("num_hidden_layers", MAX_LAYERS, Some(12))?,
                heads: sizes.heads,
                head_dim: sizes.head_dim(keys, "num_attention_heads")?,
                intermediate: keys.size("intermediate_size", MAX_WIDTH, Some(3072))?,
                norm_eps,
            },
        },
    })
}

/// From an mmproj file, whose `clip.vision.` keys are the `keys`.
pub(super) fn from_mmproj(keys: &Keys, metadata: &Metadata) -> Result<VisionConfig> {
    let norm_eps = keys.number("attention.layer_norm_epsilon", Some(1e-6))?;
    let sizes = Sizes {
        image: keys.size("image_size", MAX_WIDTH, None)?,
        patch: keys.size("patch_size", MAX_PATCH, None)?,
        hidden: keys.size("embedding_length", MAX_WIDTH, None)?,
        heads: keys.size("attention.head_count", MAX_WIDTH, None)?,
    };
    let side = sizes.patches_per_side(keys)?;
    let pooled_patches = keys.size("projector.scale_factor", MAX_WIDTH, Some(POOLED_PATCHES))?;
    if !side.is_multiple_of(pooled_patches) {
        let reason = format!("is {pooled_patches}, but an image has {side} patches along a side");
        return Err(keys.error("projector.scale_factor", reason));
    }
    let normalization = normalization_mmproj(keys.path, metadata)?;
    let [image_mean, image_std] = normalization.map(|numbers| numbers.unwrap_or(SIGNED));
    Ok(VisionConfig {
        patch_size: sizes.patch,
        pooled_patches,
        patch_order: PatchOrder::ChannelsFirst,
        hidden: sizes.hidden,
        text_hidden: keys.size("projection_dim", MAX_SIZE, None)?,
        soft_norm_eps: norm_eps,
        encoder: EncoderKind::Siglip {
            image_size: sizes.image,
            image_mean,
            image_std,
            transformer: Transformer {
                layers: keys.size("block_count", MAX_LAYERS, None)?,
                heads: sizes.heads,
                head_dim: sizes.head_dim(keys, "attention.head_count")?,
                intermediate: keys.size("feed_forward_length", MAX_WIDTH, None)?,
                norm_eps,
            },
        },
    })
}

/// Sizes before they are checked.
struct Sizes {
    image: u32,
    patch: u32,
    hidden: u32,
    heads: u32,
}

impl Sizes {
    fn patches_per_side(&self, keys: &Keys) -> Result<u32> {
        let Self { image, patch, .. } = *self;
        if !image.is_multiple_of(patch) {
            let reason = format!("is {image}, but must be a multiple of patch_size = {patch}");
            return Err(keys.error("image_size", reason));
        }
        let side = image / patch;
        if side.checked_pow(2).is_none_or(|patches| patches > MAX_SIZE) {
            return Err(keys.error("image_size", format!("gives {side} patches along a side: too many")));
        }
        Ok(side)
    }

    /// Elements per head; `heads` is the key of their number.
    fn head_dim(&self, keys: &Keys, heads: &str) -> Result<u32> {
        match self.hidden.is_multiple_of(self.heads) {
            true => Ok(self.hidden / self.heads),
            false => {
                let Self { hidden, heads: count, .. } = *self;
                let reason = format!("is {count}, but the hidden size {hidden} is not a multiple of it");
                Err(keys.error(heads, reason))
            }
        }
    }
}

/// Mean and standard deviation of pixels in the config of an image processor, which must have images of the same size.
fn read_processor(path: &Path, json: &Value, image_size: u32) -> Result<[Option<[f32; 3]>; 2]> {
    let (json, _) = image_processor(json);
    for side in ["height", "width"] {
        let size = json.get("size").and_then(|size| size.get(side)).and_then(Value::as_u64);
        if let Some(size) = size.filter(|size| *size != u64::from(image_size)) {
            let reason = format!(
                "size.{side} is {size}, but vision_config.image_size in config.json is {image_size}: download both again"
            );
            return Err(Error::invalid(path, reason));
        }
    }
    normalization_hf(path, json)
}

/// The square root of a number of soft tokens.
fn soft_tokens_per_side(keys: &Keys, key: &str) -> Result<u32> {
    let tokens = keys.size(key, MAX_SIZE, Some(SOFT_TOKENS))?;
    match tokens.isqrt() {
        side if side.pow(2) == tokens => Ok(side),
        _ => Err(keys.error(key, format!("is {tokens}, but must be a square"))),
    }
}
