//! The encoders of Gemma 4: what their files say, in all namings; files that are damaged or of another model.

use std::{fs, path::Path};

use checkpoint::{
    Architecture, Checkpoint, EncoderKind, Error, PatchOrder, Problem, Role, Transformer, VisionConfig,
    gguf::{Array, Value},
};
use serde_json::{Value as Json, json};

use super::{
    CLIPPED, GEMMA4_GGUF, GGUF, MMPROJ, TOWER, UNIFIED, UNIFIED_GGUF, assert_encodes, assert_rejected, copy,
    fixture, open,
    rewrite::{GgufFile, edit_safetensors, rename_safetensors},
    vision_of, with_json, with_mmproj_of,
};

const SAFETENSORS: &str = "model.safetensors";

fn with_tower(name: &str, key: &str, value: Json) -> tempfile::TempDir {
    with_json(name, "config.json", |config| config["vision_config"][key] = value)
}

fn with_processor(name: &str, key: &str, value: Json) -> tempfile::TempDir {
    with_json(name, "processor_config.json", |config| config["image_processor"][key] = value)
}

fn with_key(name: &str, key: &str, value: Value) -> tempfile::TempDir {
    with_mmproj_of(name, |file| file.set(key, value))
}

/// A copy of a folder with other tensors; see [`edit_safetensors`].
fn with_tensors(
    name: &str,
    edit: impl Fn(&str, &mut Json, &mut Vec<u8>) -> Option<String>,
) -> tempfile::TempDir {
    let folder = copy(name);
    edit_safetensors(&folder.path().join(SAFETENSORS), edit);
    folder
}

fn problems(folder: &tempfile::TempDir) -> Vec<Problem> {
    match vision_of(folder) {
        Err(Error::Incomplete { incomplete, .. }) => {
            assert_eq!(incomplete.family, "gemma4 vision");
            incomplete.problems
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn configs_of_all_kinds() {
    let transformer = |layers, heads, head_dim, intermediate| Transformer {
        layers,
        heads,
        head_dim,
        intermediate,
        norm_eps: 1e-6,
    };
    let config = |patch_size, pooled_patches, patch_order, hidden, encoder| VisionConfig {
        patch_size,
        pooled_patches,
        patch_order,
        hidden,
        text_hidden: 64,
        soft_norm_eps: 1e-6,
        encoder,
    };
    let gemma4 = |max_soft_tokens, positions, clipped, standardized, transformer| EncoderKind::Gemma4 {
        max_soft_tokens,
        positions,
        rope_theta: 100.0,
        clipped,
        standardized,
        transformer,
    };
    let unified =
        |max_soft_tokens| EncoderKind::Gemma4Unified { max_soft_tokens, positions: 12, layer_norm_eps: 1e-5 };
    let tower = gemma4(8, 24, false, true, transformer(1, 2, 72, 24));
    let clipped = gemma4(8, 32, true, false, transformer(2, 1, 64, 48));
    // mmproj files do not say how many soft tokens an image may have: as many as there are positions for, below 280.
    let gguf = gemma4(10, 32, true, true, transformer(2, 2, 24, 40));
    let (first, last) = (PatchOrder::ChannelsFirst, PatchOrder::ChannelsLast);
    for (name, expected, tensors, causal) in [
        (TOWER, config(2, 3, last, 144, tower), 5 + 13, false),
        (CLIPPED, config(4, 3, last, 64, clipped), 3 + 2 * 13, true),
        (UNIFIED, config(6, 1, last, 72, unified(8)), 10, false),
        (GEMMA4_GGUF, config(4, 3, first, 48, gguf), 5 + 2 * 13, false),
        (UNIFIED_GGUF, config(6, 1, first, 72, unified(12)), 10, false),
    ] {
        let (checkpoint, vision) = open(name);
        assert_eq!(vision.config, expected, "{name}");
        assert_eq!(vision.iter().count(), tensors, "{name}");
        for attention in checkpoint.config.attentions() {
            assert_eq!(attention.whole_images, attention.span.is_sliding() && !causal, "{name}");
        }
        assert!(!vision.soft_norm_needs_plus_one() && !vision.config.projection_is_transposed());
        let hidden = u64::from(vision.config.hidden);
        assert_eq!(vision.tensor(None, Role::Projection).unwrap().shape, [64, hidden], "{name}");
        let patches = vision.tensor(None, Role::PatchEmbed).unwrap();
        assert_eq!(patches.shape, [hidden, vision.config.patch_values().into()], "{name}");
    }
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let read = |json: Json| {
        let path = Path::new("config.json");
        VisionConfig::from_hf(path, &json, None, Architecture::Gemma4, 1536).unwrap()
    };
    // As published for E2B.
    let e2b = read(json!({
        "model_type": "gemma4",
        "vision_config": {
            "attention_bias": false, "default_output_length": 280, "head_dim": 64, "global_head_dim": 64,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 768, "intermediate_size": 3072,
            "model_type": "gemma4_vision", "num_attention_heads": 12, "num_hidden_layers": 16,
            "num_key_value_heads": 12, "patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10240,
            "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
            "standardize": false, "use_clipped_linears": true,
        },
    }));
    assert_eq!((e2b.max_soft_tokens(), e2b.max_patches(), e2b.max_patches_per_side()), (280, 2520, 840));
    let mut default = read(json!({"model_type": "gemma4", "vision_config": {}}));
    let EncoderKind::Gemma4 { clipped, .. } = &mut default.encoder else { panic!("{default:?}") };
    assert!(!*clipped);
    *clipped = true;
    assert_eq!(default, e2b);
    let unified = read(json!({"model_type": "gemma4_unified", "vision_config": {}}));
    let encoder = EncoderKind::Gemma4Unified { max_soft_tokens: 280, positions: 1120, layer_norm_eps: 1e-5 };
    assert_eq!((unified.patch_size, unified.patch_values(), unified.hidden), (48, 6912, 3840));
    assert_eq!((unified.encoder, unified.soft_norm_eps), (encoder, 1e-6));
}

#[test]
fn other_namings() {
    let without_model = |name: &str| Some(name.strip_prefix("model.").unwrap_or(name).to_owned());
    for name in [TOWER, CLIPPED, UNIFIED] {
        let folder = with_tensors(name, |name, _, _| match name.contains("language_model") {
            true => Some(name.to_owned()),
            false => without_model(name),
        });
        assert_encodes(name, &vision_of(&folder).unwrap().unwrap());
    }
    // The modules of transformers.
    let module = |name: &str, _: &mut Json, _: &mut Vec<u8>| {
        let name = name.replace("embed_vision.", "embed_vision.multimodal_embedder.");
        Some(name.replace("vision_embedder.", "embed_vision."))
    };
    let folder = with_tensors(UNIFIED, module);
    let vision = vision_of(&folder).unwrap().unwrap();
    assert_eq!(vision.tensor(None, Role::PatchNorm).unwrap().name, "model.embed_vision.patch_ln1.weight");
    assert_encodes(UNIFIED, &vision);
}

#[test]
fn without_the_config_of_an_image_processor() {
    // As many soft tokens as there are positions for.
    for (name, tokens, tensors) in
        [("gemma4_ple", 1, 3 + 13), ("gemma4_moe", 1, 3 + 13), ("gemma4_unified", 4, 10)]
    {
        let vision = Checkpoint::open(&fixture(name)).unwrap().vision().unwrap().unwrap();
        assert_eq!((vision.config.max_soft_tokens(), vision.iter().count()), (tokens, tensors), "{name}");
    }
}

#[test]
fn encoders_of_sound_are_left_out() {
    let checkpoint = Checkpoint::open(&fixture("gemma4_dense")).unwrap();
    let vision = checkpoint.vision().unwrap().unwrap();
    assert_eq!(vision.iter().count(), 3 + 13);
    assert!(checkpoint.inventory.images.len() > vision.iter().count());
    let mmproj = GgufFile::read(&fixture(GEMMA4_GGUF).join(MMPROJ));
    assert!(mmproj.tensors.iter().any(|tensor| tensor.name == "a.blk.0.attn_q.input_min"));
    // A folder with sound alone.
    let folder = copy("gemma4_dense");
    rename_safetensors(&folder.path().join(SAFETENSORS), |name| {
        (!name.contains("vision")).then(|| name.to_owned())
    });
    assert!(vision_of(&folder).unwrap().is_none());
}

#[test]
fn folders_without_an_encoder() {
    for absent in [json!(null), json!(0)] {
        let folder = with_json(TOWER, "config.json", |config| match absent.is_null() {
            true => config["vision_config"] = Json::Null,
            false => drop(config.as_object_mut().unwrap().remove("vision_config")),
        });
        assert!(vision_of(&folder).unwrap().is_none());
    }
    let folder = with_tensors(UNIFIED, |name, _, _| (!name.contains("vision")).then(|| name.to_owned()));
    assert!(vision_of(&folder).unwrap().is_none());
}

#[test]
fn mmproj_of_the_other_family() {
    for (model, encoder, reason) in [
        (GGUF, GEMMA4_GGUF, "it is for Gemma 4, but the language model is Gemma 3"),
        (GGUF, UNIFIED_GGUF, "it is for Gemma 4, but the language model is Gemma 3"),
        (GEMMA4_GGUF, GGUF, "it is for Gemma 3, but the language model is Gemma 4"),
    ] {
        let folder = copy(model);
        let own = folder.path().join(MMPROJ);
        fs::copy(fixture(encoder).join(MMPROJ), &own).unwrap();
        assert_rejected(
            &folder,
            &format!("{MMPROJ}: is the image encoder of another model: {reason}: use the"),
        );
        // The other is found beside it.
        let fitting = folder.path().join("mmproj-z.gguf");
        fs::copy(fixture(model).join(MMPROJ), &fitting).unwrap();
        assert_eq!(vision_of(&folder).unwrap().unwrap().path, fitting);
    }
    let folder = with_key(UNIFIED_GGUF, "clip.vision.projection_dim", Value::U32(3840));
    assert_rejected(
        &folder,
        "its soft tokens have 3840 values, but the hidden size of the language model is 64",
    );
}

#[test]
fn unsupported_encoders_are_named() {
    for (key, value, part) in [
        ("model_type", json!("siglip_vision_model"), "vision_config.model_type = 'siglip_vision_model'"),
        ("hidden_activation", json!("silu"), "vision_config.hidden_activation = 'silu'"),
        ("attention_bias", json!(true), "vision_config.attention_bias = true"),
        ("num_key_value_heads", json!(1), "vision_config.num_key_value_heads = 1 beside 2 query heads"),
        ("rope_parameters", json!({"rope_type": "yarn"}), "vision_config.rope_parameters.rope_type = 'yarn'"),
    ] {
        assert_rejected(
            &with_tower(TOWER, key, value),
            &format!("{part} is not supported: use a published Gemma 4 model"),
        );
    }
    let folder = with_json(CLIPPED, "processor_config.json", |config| {
        config["image_processor"]["do_normalize"] = json!(true);
        config["image_processor"]["image_mean"] = json!([0.5, 0.5, 0.5]);
    });
    assert_rejected(&folder, "image_processor.do_normalize = true is not supported");
    let identity = with_processor(CLIPPED, "do_normalize", json!(true));
    assert_encodes(CLIPPED, &vision_of(&identity).unwrap().unwrap());
    for name in [GEMMA4_GGUF, UNIFIED_GGUF] {
        let half = Value::Array(Array::F32(vec![0.5; 3]));
        assert_rejected(&with_key(name, "clip.vision.image_mean", half), "another normalisation of pixels");
        assert_rejected(&with_key(name, "clip.use_silu", Value::Bool(true)), "whose activation is not GELU");
        let unknown = Value::String("gemma5v".into());
        assert_rejected(
            &with_key(name, "clip.vision.projector_type", unknown),
            "the image projector 'gemma5v' is not supported",
        );
    }
}

#[test]
fn contradictory_configs_are_rejected() {
    assert_rejected(
        &with_processor(TOWER, "max_soft_tokens", json!(9)),
        "vision_config.position_embedding_size gives 24 positions, but images of 9 soft tokens need 27",
    );
    assert_rejected(
        &with_processor(UNIFIED, "max_soft_tokens", json!(70)),
        "vision_config.mm_posemb_size gives 12 positions, but images of 70 soft tokens need 70",
    );
    assert_rejected(
        &with_processor(UNIFIED, "max_soft_tokens", json!(0)),
        "image_processor.max_soft_tokens is 0, but must be between 1 and 1120",
    );
    assert_rejected(
        &with_processor(TOWER, "patch_size", json!(16)),
        "image_processor.patch_size is 16, but in config.json it is 2: download both again",
    );
    assert_rejected(
        &with_processor(UNIFIED, "pooling_kernel_size", json!(1)),
        "image_processor.pooling_kernel_size is 1, but in config.json it is 3",
    );
    assert_rejected(&with_tower(TOWER, "head_dim", json!(70)), "head_dim is 70, but must be a multiple of 4");
    assert_rejected(&with_tower(TOWER, "head_dim", json!(65_536)), "head_dim is 65536, which is too much");
    assert_rejected(&with_tower(TOWER, "rms_norm_eps", json!(0)), "vision_config.rms_norm_eps is 0");
    assert_rejected(&with_tower(TOWER, "standardize", json!(1)), "vision_config.standardize must be true or");
    assert_rejected(
        &with_tower(UNIFIED, "output_proj_dims", json!(64)),
        "vision_config.output_proj_dims is 64, but other keys imply 72",
    );
    assert_rejected(
        &with_tower(UNIFIED, "model_patch_size", json!(48)),
        "vision_config.model_patch_size is 48, but other keys imply 6",
    );
    assert_rejected(
        &with_key(GEMMA4_GGUF, "clip.vision.attention.head_count", Value::U32(5)),
        "clip.vision.attention.head_count is 5, but the 48 rows of queries are not a multiple of it",
    );
    assert_rejected(
        &with_key(GEMMA4_GGUF, "clip.vision.attention.head_count", Value::U32(8)),
        "is 6, but must be a multiple of 4",
    );
    for key in ["patch_size", "block_count", "feed_forward_length", "projection_dim"] {
        let key = format!("clip.vision.{key}");
        assert_rejected(&with_mmproj_of(GEMMA4_GGUF, |file| file.remove(&key)), &format!("{key} is missing"));
    }
}

#[test]
fn extreme_sizes_are_rejected() {
    let names = [
        "patch_size",
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "attention.head_count",
        "projection_dim",
        "projector.scale_factor",
    ];
    for name in names {
        for size in [0, 5, 1023, 4096, 65_535, 65_536, 1 << 24, u32::MAX] {
            // Eleven patches along a side are as good as three.
            if (name, size) == ("projector.scale_factor", 5) {
                continue;
            }
            let folder = with_key(GEMMA4_GGUF, &format!("clip.vision.{name}"), Value::U32(size));
            assert!(vision_of(&folder).is_err(), "{name} = {size}");
        }
    }
    for name in ["embedding_length", "projection_dim"] {
        for size in [0, 5, 65_535, 65_536, 1 << 24, u32::MAX] {
            let folder = with_key(UNIFIED_GGUF, &format!("clip.vision.{name}"), Value::U32(size));
            assert!(vision_of(&folder).is_err(), "{name} = {size}");
        }
    }
    for (name, key) in [
        (TOWER, "patch_size"),
        (TOWER, "pooling_kernel_size"),
        (TOWER, "position_embedding_size"),
        (TOWER, "num_hidden_layers"),
        (UNIFIED, "patch_size"),
        (UNIFIED, "pooling_kernel_size"),
        (UNIFIED, "mm_embed_dim"),
        (UNIFIED, "mm_posemb_size"),
    ] {
        for size in [json!(0), json!(-1), json!(4096), json!(1_u64 << 24), json!(u64::MAX), json!("2")] {
            assert!(vision_of(&with_tower(name, key, size.clone())).is_err(), "{name}: {key} = {size}");
        }
    }
}

#[test]
fn damaged_mmproj_files() {
    let folder = with_mmproj_of(GEMMA4_GGUF, |file| {
        file.tensors.retain(|tensor| {
            !["v.std_scale", "v.blk.1.attn_k_norm.weight", "v.blk.0.ffn_up.output_min"]
                .contains(&&*tensor.name)
        });
        file.tensor("v.blk.0.attn_k.weight").shape = vec![24, 96];
        file.tensor("v.blk.0.ln1.weight").name = "v.blk.2.ln1.weight".into();
        file.tensor("v.blk.1.attn_q.input_min").name = "v.blk.2.attn_q.input_min".into();
        file.tensor("a.blk.0.ln1.weight").name = "v.post_ln.weight".into();
        file.tensor("v.position_embd.weight").shape = vec![32, 2, 48];
    });
    let text = vision_of(&folder).unwrap_err().to_string();
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(first.ends_with("not a complete gemma4 vision model: 10 problems with its tensors"), "{first}");
    let mut lines: Vec<&str> = rest.lines().map(str::trim).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "missing: v.blk.0.ffn_up.output_min, expected [1]",
            "missing: v.blk.0.ln1.weight, expected [48]",
            "missing: v.blk.1.attn_k_norm.weight, expected [24]",
            "missing: v.blk.1.attn_q.input_min, expected [1]",
            "missing: v.std_scale, expected [48]",
            "unknown: v.blk.2.attn_q.input_min, but the model has 2 layers",
            "unknown: v.blk.2.ln1.weight, but the model has 2 layers",
            "unknown: v.post_ln.weight, found [8]",
            "wrong shape: v.blk.0.attn_k.weight, expected [48, 48], found [24, 96]",
            "wrong shape: v.position_embd.weight, expected [2, 10240, 48], found [32, 2, 48]",
        ]
    );
    let folder = with_mmproj_of(UNIFIED_GGUF, |file| file.tensors.clear());
    assert_rejected(&folder, "10 problems with its tensors");
    assert_rejected(&folder, "missing: v.patch_embd.weight, expected [72, 108]");
    assert_rejected(&folder, "missing: v.position_embd.weight, expected [2, 1120, 72]");
    // Rows of another number of pixels than a square has.
    let folder =
        with_mmproj_of(UNIFIED_GGUF, |file| file.tensor("v.patch_embd.weight").shape = vec![108, 72]);
    assert_rejected(&folder, "wrong shape: v.patch_embd.weight, expected [72, 108], found [108, 72]");
    let folder = copy(GEMMA4_GGUF);
    let path = folder.path().join(MMPROJ);
    let bytes = fs::read(&path).unwrap();
    // The last tensor has one value, and 28 bytes of padding after it.
    for len in [0, 3, 100, bytes.len() / 50, bytes.len() - 29] {
        fs::write(&path, &bytes[..len]).unwrap();
        assert_rejected(&folder, MMPROJ);
    }
}

#[test]
fn damaged_folders() {
    let layer = "model.vision_tower.encoder.layers.0.";
    let scalar = format!("{layer}mlp.gate_proj.output_max");
    let folder = with_tensors(CLIPPED, |name, _, _| (name != scalar).then(|| name.to_owned()));
    assert_eq!(problems(&folder), [Problem::Missing { name: scalar.clone(), expected: vec![] }]);
    assert_rejected(&folder, "gemma4 vision model: 1 problem with its tensors");
    // As a vector of one it is fine, as one of two it is not.
    let reshaped = |count: usize| {
        with_tensors(CLIPPED, |name, entry, data| {
            if name == scalar {
                entry["shape"] = json!([count]);
                *data = data.repeat(count);
            }
            Some(name.to_owned())
        })
    };
    let vector = reshaped(1);
    assert_encodes(CLIPPED, &vision_of(&vector).unwrap().unwrap());
    let wrong = Problem::ShapeMismatch { name: scalar.clone(), expected: vec![], found: vec![2] };
    assert_eq!(problems(&reshaped(2)), [wrong]);
    // What the config does not speak of is not ignored.
    let ignored = with_tower(CLIPPED, "use_clipped_linears", json!(false));
    assert_eq!(problems(&ignored).len(), 2 * 7 * 4);
    assert_rejected(
        &ignored,
        "unknown: model.vision_tower.encoder.layers.0.mlp.down_proj.input_max, found []",
    );
    let ignored = with_tower(TOWER, "standardize", json!(false));
    assert_rejected(&ignored, "unknown: model.vision_tower.std_bias, found [144]");
    let missing = problems(&with_tower(TOWER, "use_clipped_linears", json!(true)));
    assert_eq!(missing.len(), 7 * 4);
    let query = "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight";
    let folder = with_tensors(TOWER, |name, _, _| {
        Some(if name == query { name.replace(".linear", "") } else { name.to_owned() })
    });
    let found = problems(&folder);
    assert!(
        matches!(&found[..], [Problem::Missing { name, .. }, Problem::Unknown { .. }] if name == query),
        "{found:?}"
    );
    assert_rejected(
        &with_tower(TOWER, "position_embedding_size", json!(32)),
        "wrong shape: model.vision_tower.patch_embedder.position_embedding_table, expected [2, 32, 144], found [2, 24, 144]",
    );
    assert_rejected(
        &with_tower(UNIFIED, "mm_posemb_size", json!(16)),
        "wrong shape: model.vision_embedder.pos_embedding, expected [16, 2, 72], found [12, 2, 72]",
    );
}

#[test]
fn clipping_ranges() {
    let (_, vision) = open(CLIPPED);
    let ranges = |layer, role| vision.clip_ranges(layer, role).unwrap().unwrap();
    let inputs = |layer, roles: [Role; 3]| roles.map(|role| ranges(layer, role).input);
    let [query, key, value] = inputs(0, [Role::Query, Role::Key, Role::Value]);
    assert!(query != key && key != value && query != value);
    let [query, key, value] = inputs(1, [Role::Query, Role::Key, Role::Value]);
    assert!(query == key && key == value);
    for role in [Role::Query, Role::Key, Role::Value, Role::Output, Role::Gate, Role::Up, Role::Down] {
        let range = ranges(1, role);
        assert!(range.input[0] < 0.0 && range.input[1] > 0.0, "{range:?}");
        assert!(range.output[0] < 0.0 && range.output[1] > 0.0, "{range:?}");
        assert_eq!(open(TOWER).1.clip_ranges(0, role).unwrap(), None);
    }
    assert_eq!(open(UNIFIED).1.clip_ranges(0, Role::Query).unwrap(), None);
    let absent = vision.clip_ranges(2, Role::Query).unwrap_err().to_string();
    assert!(absent.ends_with("has no clipping range of Query in layer 2"), "{absent}");
}

#[test]
fn clipping_ranges_that_are_none() {
    let name = "v.blk.1.ffn_gate.input_max";
    let with = |value: f32| {
        let folder =
            with_mmproj_of(GEMMA4_GGUF, |file| file.tensor(name).data = value.to_le_bytes().to_vec());
        let vision = vision_of(&folder).unwrap().unwrap();
        vision
            .clip_ranges(1, Role::Gate)
            .map(|ranges| ranges.unwrap().input[1])
            .map_err(|error| error.to_string())
    };
    assert_eq!(with(f32::INFINITY), Ok(f32::INFINITY));
    for (value, reason) in [(f32::NAN, "is not a number"), (-1e9, "is -1000000000, below the minimum")] {
        let error = with(value).unwrap_err();
        assert!(error.contains(&format!("tensor '{name}': {reason}")), "{error}");
    }
    let folder = with_tensors(CLIPPED, |name, _, data| {
        if name.ends_with("layers.0.self_attn.o_proj.output_min") {
            *data = vec![0xff, 0xff];
        }
        Some(name.to_owned())
    });
    let error = vision_of(&folder).unwrap().unwrap().clip_ranges(0, Role::Output).unwrap_err().to_string();
    assert!(error.contains("self_attn.o_proj.output_min': is not a number"), "{error}");
}

#[test]
fn position_tables_are_trimmed() {
    for (name, positions) in
        [(TOWER, 24), (CLIPPED, 32), (UNIFIED, 12), (GEMMA4_GGUF, 32), (UNIFIED_GGUF, 12)]
    {
        let (_, vision) = open(name);
        let whole = vision.position_tables(positions).unwrap();
        assert_ne!(whole[0], whole[1], "{name}");
        for count in [0, 1, 5] {
            let values = (count * vision.config.hidden) as usize;
            let trimmed = vision.position_tables(count).unwrap();
            assert_eq!(trimmed, [0, 1].map(|table: usize| whole[table][..values].to_vec()), "{name}");
        }
        let error = vision.position_tables(positions + 1).unwrap_err().to_string();
        assert!(error.contains(&format!("has {positions} positions, but images have up to")), "{error}");
    }
    let error = open(GGUF).1.position_tables(1).unwrap_err().to_string();
    assert!(error.ends_with("has position embeddings per patch, not per column and row"), "{error}");
    let folder = with_mmproj_of(GEMMA4_GGUF, |file| {
        let positions = file.tensor("v.position_embd.weight");
        positions.shape = vec![2, 2, 48];
        positions.data.truncate(2 * 2 * 48 * 4);
    });
    assert_rejected(&folder, "tensor 'v.position_embd.weight': gives 2 positions, but a soft token needs 3");
}

#[test]
fn patches_of_the_12b_are_as_large_as_its_patch_embedding() {
    for side in [2, 6, 16, 48] {
        let folder = with_key(UNIFIED_GGUF, "clip.vision.patch_size", Value::U32(side));
        assert_encodes(UNIFIED_GGUF, &vision_of(&folder).unwrap().unwrap());
    }
    let folder = with_key(GEMMA4_GGUF, "clip.vision.projector.scale_factor", Value::U32(2));
    let config = vision_of(&folder).unwrap().unwrap().config;
    assert_eq!((config.pooled_patches, config.max_soft_tokens(), config.max_patches()), (2, 16, 64));
}
