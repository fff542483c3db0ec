//! Configs of Llama, Qwen 2 and Qwen 3: published ones and alternative spellings against the values that
//! transformers resolves (scripts/make_hf_fixtures.py), and unsupported variants, which must be rejected.

use std::path::Path;

use checkpoint::Config;
use serde_json::{Value, json};

fn cases() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf/llama_qwen_configs.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Rounds all numbers to f32, as a config stores them, for comparison.
fn in_f32(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64().unwrap() as f32),
        Value::Array(list) => list.iter().map(in_f32).collect(),
        Value::Object(object) => object.iter().map(|(key, value)| (key.clone(), in_f32(value))).collect(),
        other => other.clone(),
    }
}

#[test]
fn configs_resolve_as_in_transformers() {
    let cases = cases();
    assert!(cases.len() >= 25);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let config = Config::from_hf(Path::new(name), &case["config"]).unwrap();
        let config = serde_json::to_value(config).unwrap();
        for (key, expected) in case["resolved"].as_object().unwrap() {
            assert_eq!(in_f32(&config[key]), in_f32(expected), "{name}: {key}");
        }
    }
}

#[test]
fn unsupported_variants_are_rejected() {
    let assert_rejected = |family: &str, key: &str, value: Value, part: &str| {
        let config = json!({"model_type": family, key: value});
        let error = Config::from_hf(Path::new("config.json"), &config).expect_err(key).to_string();
        assert!(error.starts_with("config.json: ") && error.contains(part), "'{part}' is not in: {error}");
    };
    // Biases on the output projection too, not only on query, key and value.
    assert_rejected("llama", "attention_bias", json!(true), "attention_bias = true");
    assert_rejected("qwen3", "attention_bias", json!(true), "attention_bias = true");
    assert_rejected("llama", "mlp_bias", json!(true), "mlp_bias = true");
    for family in ["qwen2", "qwen3"] {
        assert_rejected(family, "use_sliding_window", json!(true), "use_sliding_window = true");
    }
    for family in ["llama", "qwen2", "qwen3"] {
        assert_rejected(family, "hidden_act", json!("gelu"), "hidden_act = 'gelu'");
        let longrope =
            json!({"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 32768});
        assert_rejected(family, "rope_scaling", longrope, "RoPE scaling of type 'longrope'");
        assert_rejected(family, "rope_parameters", json!({"rope_type": "dynamic", "factor": 2}), "'dynamic'");
        assert_rejected(family, "num_key_value_heads", json!(5), "num_key_value_heads is 5");
        assert_rejected(family, "head_dim", json!(0), "head_dim ");
        let half = json!({"rope_type": "default", "partial_rotary_factor": 0.5});
        assert_rejected(family, "rope_parameters", half, "partial_rotary_factor");
    }
    let bands = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    for key in ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"] {
        let mut bands = bands.clone();
        bands[key] = json!("8");
        assert_rejected("llama", "rope_scaling", bands.clone(), key);
        bands.as_object_mut().unwrap().remove(key);
        assert_rejected("llama", "rope_scaling", bands, &format!("{key} is missing"));
    }
    let mut same = bands;
    same["low_freq_factor"] = json!(4.0);
    assert_rejected("llama", "rope_scaling", same, "freq_factor");
}
