//! Reading GGUF metadata.

use std::path::Path;

use super::keys::{Keys, MAX_LAYERS, MAX_SIZE, MetaValue};
use super::{Config, LayerType, Rope, RopePairs, RopeScaling, yarn_multiplier};
use crate::{architecture::Architecture, error::Result, gguf::Value};

impl Config {
    /// Reads GGUF metadata through `get`, which looks up a full key; `path` is used in errors only.
    ///
    /// ```no_run
    /// # use checkpoint::config::{Config, MetaValue};
    /// # let path = std::path::Path::new("model.gguf");
    /// let gguf = checkpoint::gguf::open(path)?;
    /// let config = Config::from_gguf(path, &|key| gguf.metadata.get(key).map(MetaValue::from))?;
    /// # Ok::<(), checkpoint::Error>(())
    /// ```
    pub fn from_gguf<'a>(path: &'a Path, get: &'a dyn Fn(&str) -> Option<MetaValue<'a>>) -> Result<Self> {
        let general = Keys { path, prefix: "general.", get: &|key| get(&format!("general.{key}")) };
        let Some(name) = general.text("architecture")? else {
            return Err(general.error("architecture", "is missing"));
        };
        let architecture = Architecture::ALL.into_iter().find(|known| known.name() == name);
        let architecture = architecture.ok_or_else(|| Architecture::unsupported(path, name))?;
        let family = architecture.family();
        let prefix = format!("{name}.");
        let keys = Keys { path, prefix: &prefix, get: &|key| get(&format!("{prefix}{key}")) };
        let tokens =
            Keys { path, prefix: "tokenizer.ggml.", get: &|key| get(&format!("tokenizer.ggml.{key}")) };
        let layers = keys.size("block_count", MAX_LAYERS, None)?;
        let hidden = keys.size("embedding_length", MAX_SIZE, None)?;
        let heads = keys.size("attention.head_count", MAX_SIZE, None)?;
        let head_dim = keys.size("attention.key_length", MAX_SIZE, Some(hidden / heads))?;
        if keys.size("attention.value_length", MAX_SIZE, Some(head_dim))? != head_dim {
            return Err(keys.error("attention.value_length", "differs from attention.key_length"));
        }
        if keys.size("rope.dimension_count", MAX_SIZE, Some(head_dim))? != head_dim {
            let what = format!("{prefix}rope.dimension_count different from the head dimension");
            return Err(keys.unsupported(what, "use a model with full rotary embeddings"));
        }
        let first = |key, default| match family.layers_differ {
            true => Ok(keys.sizes(key, layers, MAX_SIZE, default)?[0]),
            false => keys.size(key, MAX_SIZE, default),
        };
        let mut eos: Vec<u32> = tokens.token("eos_token_id")?.into_iter().collect();
        let turn = tokens.token("eot_token_id")?.filter(|token| !eos.contains(token));
        eos.extend(turn);
        let rope = Rope::from_gguf(&keys, family.defaults.rope_theta)?;
        let mut config = Config {
            architecture,
            hidden,
            embedding_factor: family.embedding_factor(hidden),
            intermediate: first("feed_forward_length", None)?,
            experts: None,
            per_layer_width: None,
            layers,
            heads,
            kv_heads: first("attention.head_count_kv", Some(heads))?,
            head_dim,
            query_pre_attn_scalar: head_dim as f32,
            query_temperature: None,
            causal_images: None,
            global_attention: None,
            kv_sharing: None,
            sliding_window: None,
            layer_types: vec![LayerType::Global; layers as usize],
            rope_theta_global: rope.theta_global,
            rope_theta_local: rope.theta_local,
            rope_scaling: rope.scaling,
            rope_pairs: RopePairs::Halves,
            rms_norm_eps: keys.number("attention.layer_norm_rms_epsilon", None)?,
            logit_softcap: None,
            vocab: match (tokens.get)("tokens") {
                Some(MetaValue::Array(count)) => tokens.bounded("tokens", count, MAX_SIZE)?,
                _ => keys.size("vocab_size", MAX_SIZE, None)?,
            },
            max_positions: keys.size("context_length", MAX_SIZE, None)?,
            tie_embeddings: true,
            bos: tokens.token("bos_token_id")?,
            eos,
            pad: tokens.token("padding_token_id")?,
        };
        (family.adapt_gguf)(&mut config, &keys)?;
        config.check(&keys, "attention.head_count", "attention.head_count_kv", "attention.key_length")
    }
}

impl<'a> From<&'a Value> for MetaValue<'a> {
    fn from(value: &'a Value) -> Self {
        let signed = |value: i64| match u64::try_from(value) {
            Ok(value) => MetaValue::Unsigned(value),
            Err(_) => MetaValue::Negative(value),
        };
        match value {
            Value::U8(value) => MetaValue::Unsigned((*value).into()),
            Value::U16(value) => MetaValue::Unsigned((*value).into()),
            Value::U32(value) => MetaValue::Unsigned((*value).into()),
            Value::U64(value) => MetaValue::Unsigned(*value),
            Value::I8(value) => signed((*value).into()),
            Value::I16(value) => signed((*value).into()),
            Value::I32(value) => signed((*value).into()),
            Value::I64(value) => signed(*value),
            Value::F32(value) => MetaValue::Float((*value).into()),
            Value::F64(value) => MetaValue::Float(*value),
            Value::Bool(value) => MetaValue::Bool(*value),
            Value::String(value) => MetaValue::Text(value),
            Value::Array(values) if values.is_integers() => MetaValue::Integers(values),
            Value::Array(values) => MetaValue::Array(values.len() as u64),
        }
    }
}

impl Rope {
    /// llama.cpp's converter does not write the base of sliding-window layers; the default is that of
    /// llama.cpp.
    fn from_gguf(keys: &Keys, [global, local]: [f32; 2]) -> Result<Self> {
        // Ollama's converter uses these keys in its text-only files.
        let theta_global = keys.number("rope.global.freq_base", Some(global))?;
        let theta_local = keys.number("rope.local.freq_base", Some(local))?;
        // Older converters write `rope.scale_linear`. llama.cpp takes 0 for no scaling.
        let zero =
            |key: &str| matches!((keys.get)(key), Some(MetaValue::Float(0.0) | MetaValue::Unsigned(0)));
        let factor =
            ["rope.scaling.factor", "rope.scale_linear"].into_iter().find(|key| keys.has(key) && !zero(key));
        let scaling = match (keys.text("rope.scaling.type")?, factor) {
            (Some("none"), _) | (None, None) => RopeScaling::None,
            (None | Some("linear"), factor) => {
                RopeScaling::Linear { factor: keys.number(factor.unwrap_or("rope.scaling.factor"), None)? }
            }
            (Some("yarn"), Some(_)) => yarn(keys)?,
            (Some(other), _) => return Err(Rope::unsupported(keys, other)),
        };
        Ok(Rope {
            theta_global: keys.number("rope.freq_base", Some(theta_global))?,
            theta_local: keys.number("rope.freq_base_swa", Some(theta_local))?,
            scaling,
        })
    }
}

fn yarn(keys: &Keys) -> Result<RopeScaling> {
    let factor = keys.number("rope.scaling.factor", None)?;
    let beta = |key: &str, default: f32| keys.number(&format!("rope.scaling.{key}"), Some(default));
    let [beta_fast, beta_slow] = [beta("yarn_beta_fast", 32.0)?, beta("yarn_beta_slow", 1.0)?];
    // 0 stands for an absent value, as in llama.cpp.
    let absent = matches!(
        (keys.get)("rope.scaling.yarn_log_multiplier"),
        None | Some(MetaValue::Float(0.0) | MetaValue::Unsigned(0))
    );
    let all = match absent {
        true => 1.0,
        false => yarn_multiplier(factor, keys.number("rope.scaling.yarn_log_multiplier", None)?),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast,
        beta_slow,
        original: keys.size("rope.scaling.original_context_length", MAX_SIZE, None)?,
        attention_factor: yarn_multiplier(factor, 1.0) / all,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Metadata = BTreeMap<&'static str, MetaValue<'static>>;

    /// The relevant metadata of the real Gemma 3 270M file.
    fn real_270m() -> Metadata {
        use MetaValue::{Array, Float, Text, Unsigned};
        BTreeMap::from([
            ("general.architecture", Text("gemma3")),
            ("gemma3.context_length", Unsigned(32768)),
            ("gemma3.embedding_length", Unsigned(640)),
            ("gemma3.block_count", Unsigned(18)),
            ("gemma3.feed_forward_length", Unsigned(2048)),
            ("gemma3.attention.head_count", Unsigned(4)),
            ("gemma3.attention.layer_norm_rms_epsilon", Float(9.999999974752427e-7)),
            ("gemma3.attention.key_length", Unsigned(256)),
            ("gemma3.attention.value_length", Unsigned(256)),
            ("gemma3.rope.freq_base", Float(1e6)),
            ("gemma3.attention.sliding_window", Unsigned(512)),
            ("gemma3.attention.head_count_kv", Unsigned(1)),
            ("tokenizer.ggml.tokens", Array(262_144)),
            ("tokenizer.ggml.bos_token_id", Unsigned(2)),
            ("tokenizer.ggml.eos_token_id", Unsigned(1)),
            ("tokenizer.ggml.padding_token_id", Unsigned(0)),
        ])
    }

    fn with(changes: &[(&'static str, MetaValue<'static>)]) -> Metadata {
        let mut metadata = real_270m();
        metadata.extend(changes.iter().copied());
        metadata
    }

    fn read(metadata: &Metadata) -> Result<Config> {
        Config::from_gguf(Path::new("model.gguf"), &|key| metadata.get(key).copied())
    }

    #[track_caller]
    fn assert_rejected(metadata: &Metadata, part: &str) {
        let text = read(metadata).expect_err("invalid metadata was accepted").to_string();
        assert!(text.starts_with("model.gguf: ") && text.contains(part), "'{part}' is not in: {text}");
    }

    #[test]
    fn real_270m_metadata_agrees_with_its_config_json() {
        let json = serde_json::json!({
            "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
            "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512, "vocab_size": 262_144,
            "max_position_embeddings": 32768,
        });
        let hf = Config::from_hf(Path::new("config.json"), &json).unwrap();
        assert_eq!(read(&real_270m()).unwrap(), hf);
    }

    #[test]
    fn only_the_27b_scales_scores_by_hidden_over_heads() {
        use MetaValue::Unsigned;
        let sizes = [
            ("gemma3.embedding_length", Unsigned(5376)),
            ("gemma3.attention.head_count", Unsigned(32)),
            ("gemma3.attention.head_count_kv", Unsigned(16)),
            ("gemma3.attention.key_length", Unsigned(128)),
            ("gemma3.attention.value_length", Unsigned(128)),
        ];
        let mut metadata = with(&sizes);
        assert_eq!(read(&metadata).unwrap().query_pre_attn_scalar, 128.0);
        metadata.insert("gemma3.block_count", Unsigned(62));
        let config = read(&metadata).unwrap();
        assert_eq!(config.query_pre_attn_scalar, 168.0);
        let global = config.layer_types.iter().filter(|kind| **kind == LayerType::Global);
        assert_eq!((global.count(), config.layer_types[5]), (10, LayerType::Global));
    }

    #[test]
    fn rope_is_read_in_every_spelling() {
        use MetaValue::{Float, Text};
        let (kind, factor) = ("gemma3.rope.scaling.type", "gemma3.rope.scaling.factor");
        let scaling = |changes: &[_]| read(&with(changes)).unwrap().rope_scaling;
        let eight = RopeScaling::Linear { factor: 8.0 };
        assert_eq!(scaling(&[]), RopeScaling::None);
        assert_eq!(scaling(&[(kind, Text("linear")), (factor, Float(8.0))]), eight);
        assert_eq!(scaling(&[(factor, Float(8.0))]), eight);
        assert_eq!(scaling(&[("gemma3.rope.scale_linear", Float(8.0))]), eight);
        assert_eq!(scaling(&[(kind, Text("none")), (factor, Float(8.0))]), RopeScaling::None);
        assert_rejected(&with(&[(kind, Text("linear"))]), "gemma3.rope.scaling.factor is missing");
        assert_rejected(&with(&[(kind, Text("yarn"))]), "RoPE scaling of type 'yarn' is not supported");
        assert_rejected(&with(&[(factor, Float(f64::NAN))]), "gemma3.rope.scaling.factor is NaN");
        let mut nested = with(&[("gemma3.rope.global.freq_base", Float(5e5))]);
        nested.insert("gemma3.rope.local.freq_base", Float(2e4));
        nested.remove("gemma3.rope.freq_base");
        let config = read(&nested).unwrap();
        assert_eq!((config.rope_theta_global, config.rope_theta_local), (5e5, 2e4));
    }

    #[test]
    fn errors_name_the_missing_or_invalid_key() {
        use MetaValue::{Array, Negative, Text, Unsigned};
        for key in [
            "general.architecture",
            "gemma3.context_length",
            "gemma3.embedding_length",
            "gemma3.block_count",
            "gemma3.feed_forward_length",
            "gemma3.attention.head_count",
            "gemma3.attention.sliding_window",
        ] {
            let mut metadata = real_270m();
            metadata.remove(key);
            assert_rejected(&metadata, &format!("{key} is missing"));
            assert_rejected(&with(&[(key, Array(3))]), &format!("{key} must be "));
        }
        assert_rejected(&with(&[("gemma3.block_count", Unsigned(u64::MAX))]), "must be between 1 and 1024");
        assert_rejected(&with(&[("gemma3.block_count", Unsigned(0))]), "gemma3.block_count is 0");
        assert_rejected(&with(&[("gemma3.embedding_length", Negative(-1))]), "but is -1");
        assert_rejected(
            &with(&[("gemma3.attention.head_count_kv", Unsigned(3))]),
            "head_count = 4 is not a multiple of it",
        );
        assert_rejected(
            &with(&[("gemma3.attention.value_length", Unsigned(128))]),
            "differs from attention.key_length",
        );
        assert_rejected(
            &with(&[("gemma3.attention.head_count", Unsigned(1 << 20))]),
            "the limit is 16777216",
        );
        assert_rejected(
            &with(&[("tokenizer.ggml.tokens", Array(1 << 40))]),
            "tokenizer.ggml.tokens is 1099511627776",
        );
        assert_rejected(
            &with(&[("tokenizer.ggml.bos_token_id", Text("2"))]),
            "bos_token_id must be a token id",
        );
        let mut metadata = real_270m();
        metadata.remove("gemma3.attention.key_length");
        metadata.remove("gemma3.attention.value_length");
        metadata.insert("gemma3.attention.head_count", Unsigned(641));
        metadata.insert("gemma3.attention.head_count_kv", Unsigned(641));
        assert_rejected(&metadata, "gemma3.attention.key_length is 0");
    }

    #[test]
    fn other_architectures_are_rejected_by_name() {
        assert_rejected(
            &with(&[("general.architecture", MetaValue::Text("mamba"))]),
            "'mamba' is not supported",
        );
        assert_rejected(
            &with(&[("general.architecture", MetaValue::Text("mamba"))]),
            "one of these: gemma3, gemma4, llama, mistral, mistral3, qwen2, qwen3",
        );
        assert_rejected(
            &with(&[("gemma3.mm.tokens_per_image", MetaValue::Unsigned(256))]),
            "Ollama's own converter",
        );
    }

    #[test]
    fn vocabulary_size_is_counted_or_read_from_the_metadata() {
        let mut metadata = with(&[("gemma3.vocab_size", MetaValue::Unsigned(7))]);
        assert_eq!(read(&metadata).unwrap().vocab, 262_144);
        metadata.remove("tokenizer.ggml.tokens");
        assert_eq!(read(&metadata).unwrap().vocab, 7);
        metadata.insert("tokenizer.ggml.eot_token_id", MetaValue::Unsigned(106));
        assert_eq!(read(&metadata).unwrap().eos, [1, 106]);
    }
}
