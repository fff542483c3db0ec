//! The encoder of Gemma 4 E2B, E4B, 26B and 31B, and the 12B's, which has no layers ("unified").

use std::path::Path;

use serde_json::Value;

use super::{
    CHANNELS, EncoderKind, MAX_SOFT_TOKENS, MAX_WIDTH, PatchOrder, Transformer, USE_MMPROJ, VisionConfig,
    image_processor, normalization_hf, normalization_mmproj, require,
};
use crate::{
    config::{Keys, MAX_LAYERS, MAX_SIZE, MetaValue},
    error::{Error, Result},
    gguf::Metadata,
    source::Tensor,
    vision::names,
};

pub(super) const USE_PUBLISHED: &str = "use a published Gemma 4 model";

/// Soft tokens of an image, at most, unless the config of the image processor says otherwise. llama.cpp has the same
/// limit.
const SOFT_TOKENS: u32 = 280;

/// Patches along a side that become one soft token, unless a file says otherwise.
const POOLED_PATCHES: u32 = 3;

/// Maximum that a file may say. With the maximum size of a patch, a hostile file cannot make images of gigabytes.
const MAX_POOLED_PATCHES: u32 = 8;
const MAX_PATCH: u32 = 64;

/// Columns, and rows, that have position embeddings, unless a file says otherwise.
const POSITIONS: u32 = 10_240;
const UNIFIED_POSITIONS: u32 = 1120;

/// RoPE base. mmproj files do not have it.
const ROPE_THETA: f32 = 100.0;

/// Epsilon of the RMSNorms, unless a file says otherwise.
const NORM_EPS: f32 = 1e-6;

/// Epsilon of the 12B's LayerNorms. No file has it: it is PyTorch's default.
const LAYER_NORM_EPS: f32 = 1e-5;

/// RoPE rotates pairs of values in each half of a head.
const HEAD_DIM_MULTIPLE: u32 = 4;

/// From the `vision_config` of a `config.json`.
pub(super) fn from_hf(
    keys: &Keys,
    processor: Option<(&Path, &Value)>,
    text_hidden: u32,
) -> Result<VisionConfig> {
    require(keys, "hidden_activation", "gelu_pytorch_tanh", USE_PUBLISHED)?;
    if keys.flag("attention_bias")? == Some(true) {
        return Err(keys.unsupported("vision_config.attention_bias = true", USE_PUBLISHED));
    }
    // Published configs say `default`, which is `axial` in newer versions of transformers.
    if keys.text("rope_parameters.rope_type")? != Some("default") {
        require(keys, "rope_parameters.rope_type", "axial", USE_PUBLISHED)?;
    }
    let heads = keys.size("num_attention_heads", MAX_WIDTH, Some(12))?;
    let kv_heads = keys.size("num_key_value_heads", MAX_WIDTH, Some(12))?;
    if kv_heads != heads {
        let what = format!("vision_config.num_key_value_heads = {kv_heads} beside {heads} query heads");
        return Err(keys.unsupported(what, USE_PUBLISHED));
    }
    let head_dim = keys.size("head_dim", MAX_WIDTH, Some(64))?;
    check_heads(keys, "head_dim", heads, head_dim)?;
    let patch_size = keys.size("patch_size", MAX_PATCH, Some(16))?;
    let pooled_patches = keys.size("pooling_kernel_size", MAX_POOLED_PATCHES, Some(POOLED_PATCHES))?;
    let positions = keys.size("position_embedding_size", MAX_SIZE, Some(POSITIONS))?;
    let said = read_processor(processor, patch_size, pooled_patches)?;
    let max_soft_tokens = max_soft_tokens(positions, pooled_patches, said)
        .map_err(|reason| keys.error("position_embedding_size", reason))?;
    let norm_eps = keys.number("rms_norm_eps", Some(NORM_EPS))?;
    Ok(VisionConfig {
        patch_size,
        pooled_patches,
        patch_order: PatchOrder::ChannelsLast,
        hidden: keys.size("hidden_size", MAX_WIDTH, Some(768))?,
        text_hidden,
        soft_norm_eps: norm_eps,
        encoder: EncoderKind::Gemma4 {
            max_soft_tokens,
            positions,
            rope_theta: keys.number("rope_parameters.rope_theta", Some(ROPE_THETA))?,
            clipped: keys.flag("use_clipped_linears")?.unwrap_or(false),
            standardized: keys.flag("standardize")?.unwrap_or(false),
            transformer: Transformer {
                layers: keys.size("num_hidden_layers", MAX_LAYERS, Some(16))?,
                heads,
                head_dim,
                intermediate: keys.size("intermediate_size", MAX_WIDTH, Some(3072))?,
                norm_eps,
            },
        },
    })
}

/// The same for the 12B.
pub(super) fn unified_from_hf(
    keys: &Keys,
    processor: Option<(&Path, &Value)>,
    text_hidden: u32,
) -> Result<VisionConfig> {
    let small = keys.size("patch_size", MAX_PATCH, Some(16))?;
    let merged = keys.size("pooling_kernel_size", MAX_POOLED_PATCHES, Some(POOLED_PATCHES))?;
    let patch_size =
        keys.bounded("patch_size · pooling_kernel_size", u64::from(small * merged), MAX_PATCH)?;
    let hidden = keys.size("mm_embed_dim", MAX_WIDTH, Some(3840))?;
    for (key, expected) in [("model_patch_size", patch_size), ("output_proj_dims", hidden)] {
        let found = keys.size(key, MAX_WIDTH, Some(expected))?;
        if found != expected {
            return Err(keys.error(key, format!("is {found}, but other keys imply {expected}")));
        }
    }
    let positions = keys.size("mm_posemb_size", MAX_SIZE, Some(UNIFIED_POSITIONS))?;
    let said = read_processor(processor, small, merged)?;
    let max_soft_tokens =
        max_soft_tokens(positions, 1, said).map_err(|reason| keys.error("mm_posemb_size", reason))?;
    Ok(VisionConfig {
        patch_size,
        pooled_patches: 1,
        patch_order: PatchOrder::ChannelsLast,
        hidden,
        text_hidden,
        soft_norm_eps: keys.number("rms_norm_eps", Some(NORM_EPS))?,
        encoder: EncoderKind::Gemma4Unified { max_soft_tokens, positions, layer_norm_eps: LAYER_NORM_EPS },
    })
}

/// From an mmproj file, whose `clip.vision.` keys are the `keys`.
pub(super) fn from_mmproj(keys: &Keys, metadata: &Metadata, tensors: &[Tensor]) -> Result<VisionConfig> {
    check_normalization(keys, metadata)?;
    let hidden = keys.size("embedding_length", MAX_WIDTH, None)?;
    let heads = keys.size("attention.head_count", MAX_WIDTH, None)?;
    let query_rows = match shape(tensors, "v.blk.0.attn_q.weight") {
        Some([rows, _]) => *rows,
        _ => hidden.into(),
    };
    let head_dim = query_rows / u64::from(heads);
    if head_dim * u64::from(heads) != query_rows {
        let reason = format!("is {heads}, but the {query_rows} rows of queries are not a multiple of it");
        return Err(keys.error("attention.head_count", reason));
    }
    let head_dim = keys.bounded("embedding_length / attention.head_count", head_dim, MAX_WIDTH)?;
    check_heads(keys, "embedding_length / attention.head_count", heads, head_dim)?;
    let pooled_patches = keys.size("projector.scale_factor", MAX_POOLED_PATCHES, Some(POOLED_PATCHES))?;
    let positions = positions(tensors).unwrap_or(POSITIONS);
    let max_soft_tokens = max_soft_tokens(positions, pooled_patches, None)
        .map_err(|reason| Error::tensor(keys.path, names::GGUF_POSITIONS, reason))?;
    let norm_eps = keys.number("attention.layer_norm_epsilon", Some(NORM_EPS))?;
    Ok(VisionConfig {
        patch_size: keys.size("patch_size", MAX_PATCH, None)?,
        pooled_patches,
        patch_order: PatchOrder::ChannelsFirst,
        hidden,
        text_hidden: keys.size("projection_dim", MAX_SIZE, None)?,
        soft_norm_eps: norm_eps,
        encoder: EncoderKind::Gemma4 {
            max_soft_tokens,
            positions,
            rope_theta: ROPE_THETA,
            clipped: tensors.iter().any(|tensor| names::is_gguf_bound(&tensor.name)),
            standardized: tensors.iter().any(|tensor| names::GGUF_STANDARDIZE.contains(&&*tensor.name)),
            transformer: Transformer {
                layers: keys.size("block_count", MAX_LAYERS, None)?,
                heads,
                head_dim,
                intermediate: keys.size("feed_forward_length", MAX_WIDTH, None)?,
                norm_eps,
            },
        },
    })
}

/// The same for the 12B. The size of a patch is told by the patch embedding: in the keys it may be that of a ninth.
pub(super) fn unified_from_mmproj(
    keys: &Keys,
    metadata: &Metadata,
    tensors: &[Tensor],
) -> Result<VisionConfig> {
    check_normalization(keys, metadata)?;
    let side_of = |values: u64| match u32::try_from(values / u64::from(CHANNELS)).map(u32::isqrt) {
        Ok(side) if u64::from(CHANNELS) * u64::from(side).pow(2) == values => Some(side),
        _ => None,
    };
    let side = match shape(tensors, "v.patch_embd.weight") {
        Some([_, values]) => side_of(*values),
        _ => None,
    };
    let patch_size = match side {
        Some(side) => u64::from(side),
        None => {
            let small = keys.size("patch_size", MAX_PATCH, None)?;
            let merged = keys.size("projector.scale_factor", MAX_POOLED_PATCHES, Some(POOLED_PATCHES))?;
            u64::from(small * merged)
        }
    };
    let positions = positions(tensors).unwrap_or(UNIFIED_POSITIONS);
    let max_soft_tokens = max_soft_tokens(positions, 1, None)
        .map_err(|reason| Error::tensor(keys.path, names::GGUF_POSITIONS, reason))?;
    Ok(VisionConfig {
        patch_size: keys.bounded("patch_size", patch_size, MAX_PATCH)?,
        pooled_patches: 1,
        patch_order: PatchOrder::ChannelsFirst,
        hidden: keys.size("embedding_length", MAX_WIDTH, None)?,
        text_hidden: keys.size("projection_dim", MAX_SIZE, None)?,
        soft_norm_eps: keys.number("attention.layer_norm_epsilon", Some(NORM_EPS))?,
        encoder: EncoderKind::Gemma4Unified { max_soft_tokens, positions, layer_norm_eps: LAYER_NORM_EPS },
    })
}

/// Rejects heads that RoPE cannot rotate, and more than there is room for.
fn check_heads(keys: &Keys, key: &str, heads: u32, head_dim: u32) -> Result<()> {
    if !head_dim.is_multiple_of(HEAD_DIM_MULTIPLE) {
        let reason = format!("is {head_dim}, but must be a multiple of {HEAD_DIM_MULTIPLE}");
        return Err(keys.error(key, reason));
    }
    match heads.checked_mul(head_dim) {
        Some(width) if width <= MAX_WIDTH => Ok(()),
        _ => Err(keys.error(key, format!("is {head_dim}, which is too much for {heads} heads"))),
    }
}

/// The budget of soft tokens that the config of an image processor has. Its patches must be those of the encoder.
fn read_processor(
    processor: Option<(&Path, &Value)>,
    patch_size: u32,
    pooled_patches: u32,
) -> Result<Option<u32>> {
    let Some((path, json)) = processor else { return Ok(None) };
    let (json, prefix) = image_processor(json);
    let get = |key: &str| json.get(key).map(MetaValue::from_json);
    let keys = Keys { path, prefix, get: &get };
    for (key, expected) in [("patch_size", patch_size), ("pooling_kernel_size", pooled_patches)] {
        let found = keys.size(key, MAX_WIDTH, Some(expected))?;
        if found != expected {
            let reason = format!("is {found}, but in config.json it is {expected}: download both again");
            return Err(keys.error(key, reason));
        }
    }
    if keys.flag("do_normalize")? == Some(true) && !is_identity(normalization_hf(path, json)?) {
        return Err(keys.unsupported(format!("{prefix}do_normalize = true"), USE_PUBLISHED));
    }
    match keys.has("max_soft_tokens") {
        true => keys.size("max_soft_tokens", MAX_SOFT_TOKENS, None).map(Some),
        false => Ok(None),
    }
}

/// Pixels from 0 to 1 are what the encoders expect.
fn check_normalization(keys: &Keys, metadata: &Metadata) -> Result<()> {
    match is_identity(normalization_mmproj(keys.path, metadata)?) {
        true => Ok(()),
        false => Err(keys.unsupported("another normalisation of pixels than to 0 to 1", USE_MMPROJ)),
    }
}

fn is_identity([mean, std]: [Option<[f32; 3]>; 2]) -> bool {
    mean.unwrap_or([0.0; 3]) == [0.0; 3] && std.unwrap_or([1.0; 3]) == [1.0; 3]
}

/// Soft tokens of an image, at most: what the image processor says, or the default as far as there are positions for
/// it. An image may be a single row, or column, of soft tokens.
fn max_soft_tokens(positions: u32, pooled_patches: u32, said: Option<u32>) -> Result<u32, String> {
    let most = positions / pooled_patches;
    match said {
        Some(tokens) if tokens > most => {
            let needed = tokens * pooled_patches;
            Err(format!("gives {positions} positions, but images of {tokens} soft tokens need {needed}"))
        }
        _ if most == 0 => {
            Err(format!("gives {positions} positions, but a soft token needs {pooled_patches}"))
        }
        Some(tokens) => Ok(tokens),
        None => Ok(SOFT_TOKENS.min(most)),
    }
}

/// Position embeddings per column, and per row, in an mmproj file.
fn positions(tensors: &[Tensor]) -> Option<u32> {
    match shape(tensors, names::GGUF_POSITIONS)? {
        [2, positions, _] => u32::try_from(*positions).ok().filter(|positions| *positions <= MAX_SIZE),
        _ => None,
    }
}

fn shape<'a>(tensors: &'a [Tensor], name: &str) -> Option<&'a [u64]> {
    tensors.iter().find(|tensor| tensor.name == name).map(|tensor| &*tensor.shape)
}
