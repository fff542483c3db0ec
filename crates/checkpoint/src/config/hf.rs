//! Reading a Hugging Face `config.json`.

use std::path::Path;

use serde_json::{Map, Value};

use super::keys::{Keys, MAX_LAYERS, MAX_SIZE, MetaValue, object};
use super::{
    Config, LayerType, Rope, RopePairs, RopeScaling, SLIDING_WINDOW_PATTERN, every_nth_global,
    yarn_multiplier,
};
use crate::{
    architecture::Architecture,
    error::{Error, Result},
    family::Family,
};

impl Config {
    /// Reads a `config.json`; `path` is used in errors only. Absent values are the defaults of transformers'
    /// config class, which omits values equal to its defaults when saving.
    pub fn from_hf(path: &Path, json: &Value) -> Result<Self> {
        let top = json.as_object().ok_or_else(|| Error::invalid(path, "is not a JSON object"))?;
        let get_top = |key: &str| top.get(key).map(MetaValue::from_json);
        let outer = Keys { path, prefix: "", get: &get_top };
        let class = top.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let Some(name) = outer.text("model_type")?.or(class) else {
            return Err(Error::invalid(path, "has no model_type: is this the config.json of a model?"));
        };
        let (architecture, nested) = by_name(name).ok_or_else(|| Architecture::unsupported(path, name))?;
        let none = Map::new();
        let (text, prefix) = match nested {
            Some(key) => (object(path, top, key)?.unwrap_or(&none), format!("{key}.")),
            None => (top, String::new()),
        };
        // A multimodal class may have language models of several families.
        let own =
            text.get("model_type").and_then(Value::as_str).filter(|_| nested.is_some()).and_then(by_name);
        let architecture = own.map_or(architecture, |own| own.0);
        let get_text = |key: &str| nested_value(text, key).map(MetaValue::from_json);
        let keys = Keys { path, prefix: &prefix, get: &get_text };
        let family = architecture.family();
        (family.check_hf)(&keys)?;
        check_activation(&keys, family)?;
        let defaults = &family.defaults;
        let layers = keys.size("num_hidden_layers", MAX_LAYERS, Some(defaults.layers))?;
        let hidden = keys.size("hidden_size", MAX_SIZE, Some(defaults.hidden))?;
        let heads = keys.size("num_attention_heads", MAX_SIZE, Some(defaults.heads))?;
        // Here null is not the default: it means the same number as `num_attention_heads`.
        let null = keys.is_null("num_key_value_heads");
        let kv_heads = defaults.kv_heads.filter(|_| !null).unwrap_or(heads);
        let head_dim = keys.size("head_dim", MAX_SIZE, Some(defaults.head_dim.unwrap_or(hidden / heads)))?;
        let rope = Rope::from_hf(family, text, &keys)?;
        let mut config = Config {
            architecture,
            hidden,
            embedding_factor: family.embedding_factor(hidden),
            intermediate: keys.size("intermediate_size", MAX_SIZE, Some(defaults.intermediate))?,
            experts: None,
            per_layer_width: None,
            layers,
            heads,
            kv_heads: keys.size("num_key_value_heads", MAX_SIZE, Some(kv_heads))?,
            head_dim,
            query_pre_attn_scalar: match defaults.query_pre_attn_scalar {
                Some(scalar) => keys.number("query_pre_attn_scalar", Some(scalar))?,
                None => head_dim as f32,
            },
            query_temperature: None,
            causal_images: None,
            global_attention: None,
            kv_sharing: None,
            sliding_window: match family.sliding_window {
                true => Some(keys.size("sliding_window", MAX_SIZE, Some(4096))?),
                false => None,
            },
            layer_types: match family.sliding_window {
                true => layer_types(text, &keys, layers)?,
                false => vec![LayerType::Global; layers as usize],
            },
            rope_theta_global: rope.theta_global,
            rope_theta_local: rope.theta_local,
            rope_scaling: rope.scaling,
            rope_pairs: RopePairs::Halves,
            rms_norm_eps: keys.number("rms_norm_eps", Some(1e-6))?,
            logit_softcap: None,
            vocab: keys.size("vocab_size", MAX_SIZE, Some(defaults.vocab))?,
            max_positions: keys.size("max_position_embeddings", MAX_SIZE, Some(defaults.max_positions))?,
            // Multimodal configs have these both at the top and nested, and the top ones apply: the published
            // ones have eos 1 and 106 there, and the text class's default in the nested object after
            // re-saving.
            tie_embeddings: outer
                .flag("tie_word_embeddings")?
                .or(keys.flag("tie_word_embeddings")?)
                .unwrap_or(defaults.tie_embeddings),
            bos: outer.token("bos_token_id")?.or(keys.token("bos_token_id")?).or(defaults.bos),
            eos: eos(top, &outer)?.or(eos(text, &keys)?).unwrap_or(defaults.eos.to_vec()),
            pad: outer.token("pad_token_id")?.or(keys.token("pad_token_id")?).or(defaults.pad),
        };
        (family.adapt_hf)(&mut config, &keys)?;
        config.check(&keys, "num_attention_heads", "num_key_value_heads", "head_dim")
    }
}

/// The value of a key, or of a path of keys separated by dots.
pub(crate) fn nested_value<'a>(object: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut keys = path.split('.');
    let first = object.get(keys.next()?)?;
    keys.try_fold(first, |value, key| value.get(key))
}

/// The family of a `model_type` or class, and the key under which the language model's config is nested.
fn by_name(name: &str) -> Option<(Architecture, Option<&'static str>)> {
    Architecture::ALL.into_iter().find_map(|architecture| {
        let known = architecture.family().hf_names.iter().find(|known| known.0 == name);
        known.map(|known| (architecture, known.1))
    })
}

/// Rejects activations other than the family's, which would give wrong output.
fn check_activation(keys: &Keys, family: &Family) -> Result<()> {
    for key in ["hidden_activation", "hidden_act"] {
        match keys.text(key)? {
            None => {}
            Some(name) if name == family.activation.hf_name() => {}
            Some(other) => {
                let other: String = other.chars().take(64).collect();
                let what = format!("{}{key} = '{}'", keys.prefix, other.escape_debug());
                return Err(keys.unsupported(what, &format!("use a published {} model", family.title)));
            }
        }
    }
    Ok(())
}

impl Rope {
    /// Older configs have `rope_theta`, `rope_local_base_freq` and `rope_scaling`; newer ones have
    /// `rope_parameters`, per layer type if layers differ. If both exist, `rope_scaling` wins and the other
    /// two are only defaults, as in transformers.
    fn from_hf(family: &Family, text: &Map<String, Value>, keys: &Keys) -> Result<Self> {
        let path = keys.path;
        let none = Map::new();
        let parameters = object(path, text, "rope_parameters")?.unwrap_or(&none);
        let (full, sliding, prefix) = match family.sliding_window {
            true => {
                let full = object(path, parameters, "full_attention")?.unwrap_or(&none);
                let sliding = object(path, parameters, "sliding_attention")?.unwrap_or(&none);
                if !parameters.is_empty() && full.is_empty() && sliding.is_empty() {
                    let reason = "must have full_attention and sliding_attention";
                    return Err(keys.error("rope_parameters", reason));
                }
                (full, sliding, "rope_parameters.full_attention.")
            }
            false => (parameters, &none, "rope_parameters."),
        };
        let scaling = object(path, text, "rope_scaling")?.unwrap_or(&none);
        let get_full = |key: &str| scaling.get(key).or(full.get(key)).map(MetaValue::from_json);
        let get_sliding = |key: &str| sliding.get(key).map(MetaValue::from_json);
        let prefix = if scaling.is_empty() { prefix } else { "rope_scaling." };
        let global = Keys { path, prefix, get: &get_full };
        let local = Keys { path, prefix: "rope_parameters.sliding_attention.", get: &get_sliding };
        let [theta_global, theta_local] = family.defaults.rope_theta;
        let theta_global = keys.number("rope_theta", Some(theta_global))?;
        let theta_local = keys.number("rope_local_base_freq", Some(theta_local))?;
        match rope_type(&local)? {
            "default" => {}
            other => return Err(Rope::unsupported(&local, other)),
        }
        let proportional = rope_type(&global)? == "proportional";
        if !proportional {
            check_full_rotary(&global)?;
        }
        check_full_rotary(keys)?;
        Ok(Rope {
            theta_global: global.number("rope_theta", Some(theta_global))?,
            theta_local: local.number("rope_theta", Some(theta_local))?,
            scaling: match rope_type(&global)? {
                "default" => RopeScaling::None,
                "linear" => RopeScaling::Linear { factor: global.number("factor", None)? },
                "llama3" => llama3(&global)?,
                "proportional" => RopeScaling::Proportional {
                    rotated: fraction(&global, "partial_rotary_factor")?,
                    factor: global.number("factor", Some(1.0))?,
                },
                "yarn" => yarn(&global, keys)?,
                other => return Err(Rope::unsupported(&global, other)),
            },
        })
    }
}

fn check_full_rotary(keys: &Keys) -> Result<()> {
    if keys.number("partial_rotary_factor", Some(1.0))? == 1.0 {
        return Ok(());
    }
    let what = format!("{}partial_rotary_factor", keys.prefix);
    Err(keys.unsupported(what, "use a model with full rotary embeddings"))
}

fn llama3(keys: &Keys) -> Result<RopeScaling> {
    let (low, high) = (keys.number("low_freq_factor", None)?, keys.number("high_freq_factor", None)?);
    if high <= low {
        return Err(
            keys.error("high_freq_factor", format!("is {high}, but must be above low_freq_factor = {low}"))
        );
    }
    let factor = keys.number("factor", None)?;
    let original = keys.size("original_max_position_embeddings", MAX_SIZE, None)?;
    Ok(RopeScaling::Llama3 { factor, low, high, original })
}

/// A number from 0 to 1, by default 1.
fn fraction(keys: &Keys, key: &str) -> Result<f32> {
    let value = keys.number(key, Some(1.0))?;
    if value <= 1.0 { Ok(value) } else { Err(keys.error(key, format!("is {value}, but must be at most 1"))) }
}

/// YaRN with the defaults of transformers; `model` has the context length, from which an absent factor follows.
fn yarn(keys: &Keys, model: &Keys) -> Result<RopeScaling> {
    let original = keys.size("original_max_position_embeddings", MAX_SIZE, None)?;
    let factor = match keys.has("factor") {
        true => keys.number("factor", None)?,
        false => model.size("max_position_embeddings", MAX_SIZE, None)? as f32 / original as f32,
    };
    if keys.flag("truncate")? == Some(false) {
        return Err(keys
            .unsupported(format!("{}truncate = false", keys.prefix), "use a model that YaRN truncates for"));
    }
    let [beta_fast, beta_slow] =
        [keys.number("beta_fast", Some(32.0))?, keys.number("beta_slow", Some(1.0))?];
    if beta_fast <= beta_slow {
        return Err(
            keys.error("beta_fast", format!("is {beta_fast}, but must be above beta_slow = {beta_slow}"))
        );
    }
    let multiplier = |key: &str| keys.optional_number(key);
    let attention_factor =
        match (multiplier("attention_factor")?, multiplier("mscale")?, multiplier("mscale_all_dim")?) {
            (Some(factor), ..) => factor,
            (None, Some(one), Some(all)) => yarn_multiplier(factor, one) / yarn_multiplier(factor, all),
            (None, ..) => yarn_multiplier(factor, 1.0),
        };
    Ok(RopeScaling::Yarn { factor, beta_fast, beta_slow, original, attention_factor })
}

/// The RoPE type; older files call the key `type`.
fn rope_type<'a>(keys: &Keys<'a>) -> Result<&'a str> {
    Ok(keys.text("rope_type")?.or(keys.text("type")?).unwrap_or("default"))
}

fn layer_types(text: &Map<String, Value>, keys: &Keys, layers: u32) -> Result<Vec<LayerType>> {
    let types = match text.get("layer_types") {
        Some(Value::Array(types)) => types,
        None | Some(Value::Null) => {
            let pattern = keys.size("sliding_window_pattern", MAX_LAYERS, Some(SLIDING_WINDOW_PATTERN))?;
            return Ok(every_nth_global(layers, pattern));
        }
        Some(_) => return Err(keys.error("layer_types", "must be a list")),
    };
    if types.len() != layers as usize {
        return Err(keys.error("layer_types", format!("has {} entries for {layers} layers", types.len())));
    }
    let kind = |(layer, value): (usize, &Value)| match value.as_str() {
        Some("sliding_attention") => Ok(LayerType::Sliding),
        Some("full_attention") => Ok(LayerType::Global),
        _ => {
            let reason = format!("must be sliding_attention or full_attention for layer {layer}");
            Err(keys.error("layer_types", reason))
        }
    };
    types.iter().enumerate().map(kind).collect()
}

/// One token or a list of tokens.
fn eos(object: &Map<String, Value>, keys: &Keys) -> Result<Option<Vec<u32>>> {
    let Some(Value::Array(list)) = object.get("eos_token_id") else {
        return Ok(keys.token("eos_token_id")?.map(|token| vec![token]));
    };
    let tokens = list.iter().map(|value| value.as_u64().and_then(|token| u32::try_from(token).ok()));
    let tokens: Option<Vec<u32>> = tokens.collect();
    tokens.map(Some).ok_or_else(|| keys.error("eos_token_id", "must be token ids"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(changes: Value) -> Result<Config> {
        let mut config = json!({"model_type": "gemma3_text", "num_hidden_layers": 2});
        let changes = changes.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(changes);
        Config::from_hf(Path::new("config.json"), &config)
    }

    #[track_caller]
    fn assert_rejected(changes: Value, part: &str) {
        let text = read(changes).expect_err("invalid config was accepted").to_string();
        assert!(text.starts_with("config.json: ") && text.contains(part), "'{part}' is not in: {text}");
    }

    /// Made by scripts/make_hf_fixtures.py, and a table of the published sizes.
    fn fixture(name: &str) -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// Compares JSON with numbers rounded to f32, as a config stores them.
    fn equal_in_f32(a: &Value, b: &Value) -> bool {
        match (a, b) {
            (Value::Number(a), Value::Number(b)) => {
                a.as_f64().map(|a| a as f32) == b.as_f64().map(|b| b as f32)
            }
            (Value::Array(a), Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal_in_f32(a, b))
            }
            (Value::Object(a), Value::Object(b)) => {
                a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal_in_f32(a, b)))
            }
            _ => a == b,
        }
    }

    #[test]
    fn configs_resolve_as_in_transformers() {
        let cases = fixture("hf/configs.json");
        for case in cases.as_array().unwrap() {
            let name = case["name"].as_str().unwrap();
            let mut found =
                serde_json::to_value(Config::from_hf(Path::new(name), &case["config"]).unwrap()).unwrap();
            let object = found.as_object_mut().unwrap();
            assert_eq!(object.remove("architecture"), Some(json!("gemma3")));
            assert_eq!(object.remove("rope_pairs"), Some(json!("halves")));
            let factor = object.remove("embedding_factor").unwrap().as_f64().unwrap();
            assert!(
                (factor * factor / object["hidden"].as_f64().unwrap() - 1.0).abs() < 1e-6,
                "{name}: {factor}"
            );
            assert!(equal_in_f32(&found, &case["resolved"]), "{name}:\n{found}\n{}", case["resolved"]);
        }
        assert!(cases.as_array().unwrap().len() >= 18);
    }

    #[test]
    fn published_sizes_have_the_published_dimensions() {
        let cases = fixture("hf/configs.json");
        let table = fixture("gemma3_text_configs.json");
        for (name, mut row) in table.as_object().unwrap().clone() {
            let case = cases.as_array().unwrap().iter().find(|case| case["name"] == name).unwrap();
            let published = Config::from_hf(Path::new(&name), &case["config"]).unwrap();
            row["model_type"] = json!("gemma3_text");
            assert_eq!(published, Config::from_hf(Path::new(&name), &row).unwrap(), "{name}");
        }
    }

    #[test]
    fn errors_name_the_invalid_key() {
        for key in [
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "query_pre_attn_scalar",
            "sliding_window",
            "sliding_window_pattern",
            "rms_norm_eps",
            "vocab_size",
            "max_position_embeddings",
            "rope_theta",
            "rope_local_base_freq",
        ] {
            for value in [json!(0), json!(-1), json!("1"), json!([1]), json!({}), json!(true)] {
                assert_rejected(json!({key: value}), &format!("{key} "));
            }
        }
        assert_rejected(
            json!({"num_hidden_layers": 1025}),
            "num_hidden_layers is 1025, but must be between 1 and 1024",
        );
        assert_rejected(json!({"hidden_size": 16_777_217}), "must be between 1 and 16777216");
        assert_rejected(json!({"hidden_size": 1.5}), "hidden_size must be a positive integer, but is 1.5");
        assert_rejected(json!({"rms_norm_eps": 1e300}), "rms_norm_eps is inf");
        assert_rejected(
            json!({"num_key_value_heads": 3}),
            "num_key_value_heads is 3, but num_attention_heads = 8",
        );
        assert_rejected(json!({"head_dim": 7}), "head_dim is 7, but RoPE needs an even number");
        assert_rejected(json!({"num_attention_heads": 1 << 20}), "the limit is 16777216");
        assert_rejected(json!({"tie_word_embeddings": 1}), "tie_word_embeddings must be true or false");
        assert_rejected(json!({"eos_token_id": [1, "2"]}), "eos_token_id must be token ids");
        assert_rejected(json!({"bos_token_id": -1}), "bos_token_id must be a token id");
    }

    #[test]
    fn errors_name_nested_keys_with_their_prefix() {
        let config = json!({"model_type": "gemma3", "text_config": {"hidden_size": 0}});
        let text = Config::from_hf(Path::new("config.json"), &config).unwrap_err().to_string();
        assert!(text.contains("text_config.hidden_size is 0"), "{text}");
        let config = json!({"model_type": "gemma3", "text_config": []});
        let text = Config::from_hf(Path::new("config.json"), &config).unwrap_err().to_string();
        assert!(text.contains("text_config must be an object"), "{text}");
    }

    #[test]
    fn layer_types_must_match_the_layers() {
        assert_rejected(json!({"layer_types": ["full_attention"]}), "layer_types has 1 entries for 2 layers");
        assert_rejected(
            json!({"layer_types": ["full_attention", "mamba"]}),
            "must be sliding_attention or full_attention for layer 1",
        );
        assert_rejected(json!({"layer_types": 6}), "layer_types must be a list");
    }

    #[test]
    fn unsupported_rope_is_rejected() {
        assert_rejected(
            json!({"rope_scaling": {"rope_type": "longrope", "factor": 2}}),
            "RoPE scaling of type 'longrope'",
        );
        assert_rejected(
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 2}}),
            "rope_scaling.original_max_position_embeddings is missing",
        );
        assert_rejected(json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling.factor is missing");
        assert_rejected(
            json!({"rope_scaling": {"type": "linear", "factor": -8}}),
            "rope_scaling.factor must be a positive number",
        );
        assert_rejected(
            json!({"rope_parameters": {"rope_theta": 1e6}}),
            "must have full_attention and sliding_attention",
        );
        assert_rejected(json!({"rope_parameters": 1}), "rope_parameters must be an object");
        let local = json!({"sliding_attention": {"rope_type": "linear", "factor": 2}});
        assert_rejected(json!({"rope_parameters": local}), "RoPE scaling of type 'linear' is not supported");
    }

    #[test]
    fn unsupported_variants_are_rejected() {
        assert_rejected(json!({"attention_bias": true}), "attention_bias = true is not supported");
        assert_rejected(json!({"use_bidirectional_attention": true}), "use_bidirectional_attention = true");
        assert_rejected(json!({"final_logit_softcapping": 30.0}), "final_logit_softcapping is not supported");
        assert_rejected(json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping is not supported");
        assert_rejected(json!({"hidden_activation": "silu"}), "hidden_activation = 'silu' is not supported");
    }

    #[test]
    fn other_architectures_are_rejected_by_name() {
        assert_rejected(
            json!({"model_type": "mamba"}),
            "the architecture 'mamba' is not supported: use a model of one of these: gemma3, gemma4, llama, mistral, mistral3, qwen2, qwen3",
        );
        assert_rejected(json!({"model_type": null}), "has no model_type");
        assert_rejected(
            json!({"model_type": null, "architectures": ["GPT2LMHeadModel"]}),
            "'GPT2LMHeadModel'",
        );
        assert!(read(json!({"model_type": null, "architectures": ["Gemma3ForCausalLM"]})).is_ok());
        assert!(Config::from_hf(Path::new("config.json"), &json!([])).is_err());
    }
}
