//! Image encoders in all formats: what transformers computes with them, files of other converters, damaged files, and
//! which mmproj file belongs to a model. Fixtures are made by scripts/make_logit_fixtures.py.

#[path = "vision/forward.rs"]
mod forward;
#[path = "vision/gemma4.rs"]
mod gemma4;
#[path = "vision/rewrite.rs"]
mod rewrite;

use std::{
    fs,
    path::{Path, PathBuf},
};

use checkpoint::{
    Architecture, Checkpoint, EncoderKind, Error, Format, Problem, Role, Slot, Tower, Transformer, Vision,
    VisionConfig, gguf::Array, gguf::Value,
};
use serde_json::{Value as Json, json};
use tensor::Encoding;

use forward::{Matrix, encode};
use rewrite::{GgufFile, rename_safetensors};

const OLDER: &str = "gemma3_vision_older";
const NEWER: &str = "gemma3_vision_newer";
const GGUF: &str = "gemma3_vision_gguf";
const TOWER: &str = "gemma4_vision_tower";
const CLIPPED: &str = "gemma4_vision_clipped";
const UNIFIED: &str = "gemma4_vision_unified";
const GEMMA4_GGUF: &str = "gemma4_vision_gguf";
const UNIFIED_GGUF: &str = "gemma4_vision_unified_gguf";
const MMPROJ: &str = "mmproj-model-f16.gguf";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name)
}

/// The file or folder to open.
fn model_of(folder: &Path) -> PathBuf {
    let file = folder.join("model.gguf");
    if file.exists() { file } else { folder.to_path_buf() }
}

fn open(name: &str) -> (Checkpoint, Vision) {
    let checkpoint = Checkpoint::open(&model_of(&fixture(name))).unwrap();
    let vision = checkpoint.vision().unwrap().expect("an image encoder");
    (checkpoint, vision)
}

fn transformer(config: &VisionConfig) -> Transformer {
    *config.transformer().expect("an encoder with layers")
}

/// Size of images, and mean and standard deviation of their pixels.
fn siglip(config: &VisionConfig) -> (u32, [f32; 3], [f32; 3]) {
    match config.encoder {
        EncoderKind::Siglip { image_size, image_mean, image_std, .. } => (image_size, image_mean, image_std),
        _ => panic!("{config:?}"),
    }
}

fn read_json(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A copy of a fixture's model, to be modified.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let from = entry.unwrap().path();
        if from.extension().is_none_or(|extension| extension != "bin") {
            fs::copy(&from, folder.path().join(from.file_name().unwrap())).unwrap();
        }
    }
    folder
}

fn vision_of(folder: &tempfile::TempDir) -> Result<Option<Vision>, Error> {
    Checkpoint::open(&model_of(folder.path())).expect("the language model is intact").vision()
}

#[track_caller]
fn assert_rejected(folder: &tempfile::TempDir, part: &str) {
    let text = vision_of(folder).expect_err("invalid image encoder was accepted").to_string();
    assert!(text.contains(part), "'{part}' is not in: {text}");
}

/// A copy of Gemma 3's GGUF fixture with a changed mmproj file.
fn with_mmproj(change: impl FnOnce(&mut GgufFile)) -> tempfile::TempDir {
    with_mmproj_of(GGUF, change)
}

fn with_mmproj_of(name: &str, change: impl FnOnce(&mut GgufFile)) -> tempfile::TempDir {
    let folder = copy(name);
    let path = folder.path().join(MMPROJ);
    let mut file = GgufFile::read(&path);
    change(&mut file);
    file.write(&path);
    folder
}

/// A copy of a folder with a changed `config.json`, or another of its configs.
fn with_json(name: &str, file: &str, change: impl FnOnce(&mut Json)) -> tempfile::TempDir {
    let folder = copy(name);
    let path = folder.path().join(file);
    let mut json = read_json(&path);
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
    folder
}

/// The reference of a fixture.
struct Reference {
    name: &'static str,
    json: Json,
}

impl Reference {
    fn open(name: &'static str) -> Self {
        Self { name, json: read_json(&fixture(name).join("reference.json")) }
    }

    fn number(&self, key: &str) -> usize {
        self.json[key].as_u64().unwrap() as usize
    }

    /// Columns and rows of patches of each image.
    fn grids(&self) -> Vec<[usize; 2]> {
        let grids = self.json["grids"].as_array().unwrap();
        grids.iter().map(|grid| [0, 1].map(|axis| grid[axis].as_u64().unwrap() as usize)).collect()
    }

    /// The rows of one image in a file of f32; `None` if the file has fewer images. A row is that of a square of so
    /// many patches along a side.
    fn rows(&self, file: &str, image: usize, side: usize, width: usize) -> Option<Matrix> {
        let bytes = fs::read(fixture(self.name).join(file)).unwrap();
        let values: Vec<f64> =
            bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
        let counts: Vec<usize> =
            self.grids().iter().map(|[columns, rows]| columns * rows / side.pow(2) * width).collect();
        let first: usize = counts[..image].iter().sum();
        let values = values.get(first..first + counts[image])?;
        Some(values.chunks(width).map(<[f64]>::to_vec).collect())
    }
}

/// The largest difference from the reference, relative to its largest value.
fn off(own: &Matrix, reference: &Matrix) -> f64 {
    let largest = reference.iter().flatten().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let pairs = own.iter().flatten().zip(reference.iter().flatten());
    pairs.fold(0.0, |worst: f64, (a, b)| worst.max((a - b).abs())) / largest
}

/// Asserts that an encoder gives the reference's soft tokens for all images.
#[track_caller]
fn assert_encodes(name: &'static str, vision: &Vision) {
    let config = &vision.config;
    let reference = Reference::open(name);
    let [values, hidden, text, pooled] =
        [config.patch_values(), config.hidden, config.text_hidden, config.pooled_patches]
            .map(|size| size as usize);
    let range = match config.encoder {
        EncoderKind::Gemma4Unified { .. } => 0.0..=1.0,
        _ => -1.0..=1.0,
    };
    for (image, [columns, _]) in reference.grids().into_iter().enumerate() {
        let pixels = reference.rows("pixels.bin", image, 1, values).unwrap();
        assert!(pixels.iter().flatten().all(|value| range.contains(value)));
        let (encoded, soft_tokens) = encode(vision, &pixels, columns);
        // Transformers computes softmax and some norms in f32.
        let worst = off(&soft_tokens, &reference.rows("soft_tokens.bin", image, pooled, text).unwrap());
        assert!(worst < 3e-6, "{name}, soft tokens of image {image}: {worst:e}");
        if let Some(expected) = reference.rows("encoded.bin", image, 1, hidden) {
            let worst = off(&encoded, &expected);
            assert!(worst < 3e-6, "{name}, output of the encoder for image {image}: {worst:e}");
        }
    }
}

#[test]
fn tensors_by_role_give_what_transformers_computes() {
    for name in [OLDER, NEWER, GGUF, TOWER, CLIPPED, UNIFIED, GEMMA4_GGUF, UNIFIED_GGUF] {
        let (checkpoint, vision) = open(name);
        assert_encodes(name, &vision);
        let (reference, config) = (Reference::open(name), &vision.config);
        let sizes = [config.patch_values(), config.hidden, config.text_hidden, checkpoint.config.vocab]
            .map(|size| size as usize);
        assert_eq!(
            ["patch_values", "hidden", "text_hidden", "vocab"].map(|key| reference.number(key)),
            sizes
        );
        let (patches, tokens) = (config.max_patches() as usize, config.max_soft_tokens() as usize);
        let largest = (reference.number("patches"), reference.number("soft_tokens"));
        match config.encoder {
            EncoderKind::Siglip { .. } => assert_eq!((patches, tokens), largest, "{name}"),
            _ => assert!(patches >= largest.0 && tokens >= largest.1, "{name}"),
        }
    }
}

#[test]
fn every_format_has_the_same_roles() {
    let dimensions = |name| {
        let config = open(name).1.config;
        let Transformer { layers, heads, head_dim, intermediate, .. } = transformer(&config);
        (heads, head_dim, intermediate, layers, siglip(&config).0, config.patch_size)
    };
    assert_eq!(dimensions(OLDER), (2, 72, 48, 1, 24, 6));
    assert_eq!(dimensions(NEWER), (1, 72, 48, 1, 24, 4));
    assert_eq!(dimensions(GGUF), (2, 16, 48, 2, 16, 4));
    for name in [OLDER, NEWER, GGUF] {
        let (checkpoint, vision) = open(name);
        let config = &vision.config;
        assert_eq!(vision.iter().count(), 7 + 16 * config.layers() as usize);
        assert!(vision.iter().all(|(slot, _)| slot.tower != Tower::Text && slot.role != Role::Image));
        let folder = vision.source.format == Format::HuggingFace;
        assert_eq!(checkpoint.inventory.images.len(), if folder { vision.iter().count() } else { 0 });
        assert_eq!(vision.soft_norm_needs_plus_one(), folder);
        let shape = |layer, role| vision.tensor(layer, role).unwrap().shape.clone();
        let [hidden, intermediate, text] =
            [config.hidden, transformer(config).intermediate, config.text_hidden].map(u64::from);
        assert_eq!(shape(None, Role::PatchEmbed), [hidden, config.patch_values().into()]);
        assert_eq!(shape(Some(0), Role::Up), [intermediate, hidden]);
        assert_eq!(shape(Some(0), Role::Down), [hidden, intermediate]);
        assert_eq!(shape(None, Role::Projection), [hidden, text]);
        assert_eq!((transformer(config).norm_eps, config.soft_norm_eps), (1e-6, 1e-6));
        let (_, mean, std) = siglip(config);
        assert_eq!((mean, std), ([0.5; 3], [0.5; 3]));
        let absent = vision.tensor(Some(config.layers()), Role::Query).unwrap_err().to_string();
        assert!(absent.contains("has no Query tensor in layer"), "{absent}");
    }
    let encodings = [Role::PatchEmbed, Role::PositionEmbed, Role::Projection]
        .map(|role| open(GGUF).1.tensor(None, role).unwrap().encoding);
    assert_eq!(encodings, [Encoding::F32, Encoding::F32, Encoding::F16]);
}

#[test]
fn models_without_an_image_encoder() {
    let fixtures =
        ["default_pattern", "gguf_q8_0/model.gguf", "llama_tied", "gemma4_text", "ministral3_multimodal"];
    for name in fixtures {
        let checkpoint = Checkpoint::open(&fixture(name)).unwrap();
        assert!(checkpoint.vision().unwrap().is_none(), "{name}");
    }
    let folder = copy(GGUF);
    fs::remove_file(folder.path().join(MMPROJ)).unwrap();
    assert!(vision_of(&folder).unwrap().is_none());
    // The language model of a multimodal one, by itself.
    let folder = copy(NEWER);
    rename_safetensors(&folder.path().join("model.safetensors"), |name| {
        name.contains("language_model").then(|| name.to_owned())
    });
    assert!(vision_of(&folder).unwrap().is_none());
}

#[test]
fn siglip_pooling_is_left_out() {
    // Its config does not say `vision_use_head`, and it has a head.
    let checkpoint = Checkpoint::open(&fixture("multimodal_newer")).unwrap();
    assert!(checkpoint.inventory.images.iter().any(|tensor| tensor.name == "model.vision_tower.head.probe"));
    let vision = checkpoint.vision().unwrap().unwrap();
    assert_eq!((vision.config.max_soft_tokens(), vision.iter().count()), (1, 7 + 16));
}

#[test]
fn swapped_feed_forward_names_are_put_right() {
    let folder = with_mmproj(|file| {
        file.rename(|name| match name {
            name if name.contains("ffn_up") => name.replace("ffn_up", "ffn_down"),
            name => name.replace("ffn_down", "ffn_up"),
        });
    });
    let vision = vision_of(&folder).unwrap().unwrap();
    assert_eq!(vision.tensor(Some(1), Role::Up).unwrap().name, "v.blk.1.ffn_down.weight");
    assert_eq!(vision.tensor(Some(1), Role::UpBias).unwrap().name, "v.blk.1.ffn_down.bias");
    assert_encodes(GGUF, &vision);
}

/// llama.cpp's names of tensors in the files of Ollama's converter.
const OLLAMA: [(&str, &str); 10] = [
    ("patch_embd", "patch_embedding"),
    ("position_embd", "position_embedding"),
    ("post_ln", "post_layernorm"),
    ("ln1", "layer_norm1"),
    ("ln2", "layer_norm2"),
    ("attn_out", "attn_output"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
    ("mm.input_projection", "mm.mm_input_projection"),
    ("mm.soft_emb_norm", "mm.mm_soft_emb_norm"),
];

fn with_ollama_names(file: &mut GgufFile) {
    file.rename(|name| OLLAMA.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to)));
}

#[test]
fn names_of_ollama_are_known() {
    let folder = with_mmproj(with_ollama_names);
    let vision = vision_of(&folder).unwrap().unwrap();
    assert_eq!(vision.tensor(Some(1), Role::Output).unwrap().name, "v.blk.1.attn_output.weight");
    assert_encodes(GGUF, &vision);
    let folder = with_mmproj(|file| {
        with_ollama_names(file);
        file.tensors.retain(|tensor| tensor.name != "v.blk.1.mlp.fc1.bias");
    });
    assert_rejected(&folder, "missing: v.blk.1.mlp.fc1.bias, expected [48]");
}

#[test]
fn image_encoder_in_the_file_of_the_language_model() {
    let folder = copy(GGUF);
    let (path, mmproj) = (folder.path().join("model.gguf"), folder.path().join(MMPROJ));
    let (mut both, mut encoder) = (GgufFile::read(&path), GgufFile::read(&mmproj));
    with_ollama_names(&mut encoder);
    both.tensors.append(&mut encoder.tensors);
    both.write(&path);
    assert_eq!(Checkpoint::open(&path).unwrap().inventory.images.len(), 7 + 2 * 16);
    assert_eq!(vision_of(&folder).unwrap().unwrap().path, mmproj);
    fs::remove_file(mmproj).unwrap();
    assert_rejected(&folder, "an image encoder in the file of the language model is not supported");
}

#[test]
fn both_spellings_of_the_projector_type() {
    let folder = with_mmproj(|file| {
        file.remove("clip.projector_type");
        file.set("clip.vision.projector_type", Value::String("gemma3".into()));
    });
    assert_encodes(GGUF, &vision_of(&folder).unwrap().unwrap());
}

#[test]
fn pooling_of_four_patches_is_the_default() {
    let folder = with_mmproj(|file| file.remove("clip.vision.projector.scale_factor"));
    let config = vision_of(&folder).unwrap().unwrap().config;
    assert_eq!((config.pooled_patches, config.max_soft_tokens()), (4, 1));
}

#[test]
fn all_problems_of_an_encoder_are_reported_at_once() {
    let folder = with_mmproj(|file| {
        file.tensors.retain(|tensor| tensor.name != "v.blk.1.attn_k.bias");
        file.tensor("v.blk.0.attn_q.weight").shape = vec![16, 64];
        file.tensor("v.blk.0.ln1.weight").name = "v.blk.2.ln1.weight".into();
        file.tensor("v.post_ln.bias").name = "v.class_embd".into();
    });
    let error = vision_of(&folder).unwrap_err();
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0]
            .ends_with(&format!("{MMPROJ}: not a complete gemma3 vision model: 6 problems with its tensors"))
    );
    let mut problems = lines[1..].to_vec();
    problems.sort_unstable();
    assert_eq!(
        problems,
        [
            "  missing: v.blk.0.ln1.weight, expected [32]",
            "  missing: v.blk.1.attn_k.bias, expected [32]",
            "  missing: v.post_ln.bias, expected [32]",
            "  unknown: v.blk.2.ln1.weight, but the model has 2 layers",
            "  unknown: v.class_embd, found [32]",
            "  wrong shape: v.blk.0.attn_q.weight, expected [32, 32], found [16, 64]",
        ]
    );
}

#[test]
fn missing_tensors_are_named_as_in_files_of_the_format() {
    let folder = with_mmproj(|file| file.tensors.clear());
    assert_rejected(&folder, "39 problems with its tensors");
    assert_rejected(&folder, "missing: v.patch_embd.weight, expected [32, 3, 4, 4]");
}

#[test]
fn damaged_folders_name_tensors_as_the_folder_does() {
    let rename = |fixture, from: &'static str, to: &'static str| {
        let folder = copy(fixture);
        rename_safetensors(&folder.path().join("model.safetensors"), |name| {
            Some(if name == from { to } else { name }.to_owned())
        });
        match vision_of(&folder) {
            Ok(_) => vec![],
            Err(Error::Incomplete { incomplete, .. }) => incomplete.problems,
            Err(other) => panic!("{other}"),
        }
    };
    let older = "vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias";
    let problems = rename(OLDER, older, "vision_tower.vision_model.encoder.layers.1.mlp.fc1.bias");
    assert!(
        matches!(&problems[..], [Problem::Missing { name, expected }, Problem::BeyondLastLayer { .. }] if name == older && *expected == [48]),
        "{problems:?}"
    );
    let newer = "model.vision_tower.post_layernorm.weight";
    let problems = rename(NEWER, newer, "model.vision_tower.head.probe");
    assert_eq!(problems, [Problem::Missing { name: newer.into(), expected: vec![72] }]);
}

#[test]
fn unsupported_encoders_are_named() {
    let key = |key: &'static str, value: Value| with_mmproj(move |file| file.set(key, value));
    assert_rejected(
        &key("clip.projector_type", Value::String("gemma3nv".into())),
        "the image projector 'gemma3nv' is not supported: use the mmproj file that was published with the model",
    );
    assert_rejected(
        &with_mmproj(|file| file.remove("clip.projector_type")),
        "clip.projector_type is missing",
    );
    assert_rejected(&key("clip.use_silu", Value::Bool(true)), "whose activation is not GELU");
    assert_rejected(&key("clip.use_gelu", Value::Bool(false)), "whose activation is not GELU");
    assert_rejected(&key("clip.has_vision_encoder", Value::Bool(false)), "without an image encoder");
    assert_rejected(
        &key("general.architecture", Value::String("llama".into())),
        "not an image encoder, but a model of the architecture 'llama'",
    );
    let tower = |key: &'static str, value: Json| {
        with_json(NEWER, "config.json", move |config| config["vision_config"][key] = value)
    };
    assert_rejected(
        &tower("hidden_act", json!("gelu")),
        "vision_config.hidden_act = 'gelu' is not supported: use a published Gemma 3 model",
    );
    assert_rejected(&tower("vision_use_head", json!(true)), "vision_config.vision_use_head = true");
    assert_rejected(&tower("model_type", json!("clip_vision_model")), "model_type = 'clip_vision_model'");
    assert_rejected(&tower("num_channels", json!(1)), "vision_config.num_channels = 1 is not supported");
}

#[test]
fn contradictory_configs_are_rejected() {
    let tower = |key: &'static str, value: Json| {
        with_json(NEWER, "config.json", move |config| config["vision_config"][key] = value)
    };
    assert_rejected(
        &tower("image_size", json!(25)),
        "image_size is 25, but must be a multiple of patch_size = 4",
    );
    assert_rejected(
        &tower("num_attention_heads", json!(5)),
        "num_attention_heads is 5, but the hidden size 72",
    );
    assert_rejected(
        &tower("hidden_size", json!("72")),
        "vision_config.hidden_size must be a positive integer",
    );
    assert_rejected(&tower("patch_size", json!(0)), "vision_config.patch_size is 0");
    assert_rejected(&tower("layer_norm_eps", json!(-1)), "vision_config.layer_norm_eps");
    let tokens = |count: u32| {
        with_json(NEWER, "config.json", move |config| config["mm_tokens_per_image"] = json!(count))
    };
    assert_rejected(&tokens(8), "mm_tokens_per_image is 8, but must be a square");
    assert_rejected(&tokens(16), "6 patches along a side, which 4 soft tokens along a side do not divide");
    let processor = |change: fn(&mut Json)| with_json(OLDER, "preprocessor_config.json", change);
    assert_rejected(
        &processor(|json| json["size"]["width"] = json!(28)),
        "preprocessor_config.json: size.width is 28, but vision_config.image_size in config.json is 24",
    );
    assert_rejected(
        &processor(|json| json["image_std"] = json!([0.5, 0, 0.5])),
        "image_std must be three positive numbers, one per channel",
    );
    assert_rejected(&processor(|json| json["image_mean"] = json!(0.5)), "image_mean must be three numbers");
    let key = |key: &'static str, value: Value| with_mmproj(move |file| file.set(key, value));
    assert_rejected(
        &key("clip.vision.projector.scale_factor", Value::U32(3)),
        "clip.vision.projector.scale_factor is 3, but an image has 4 patches along a side",
    );
    assert_rejected(
        &key("clip.vision.image_std", Value::Array(Array::F32(vec![0.5; 2]))),
        "clip.vision.image_std must be three positive numbers",
    );
    assert_rejected(
        &key("clip.vision.patch_size", Value::U32(5)),
        "image_size is 16, but must be a multiple",
    );
    assert_rejected(
        &with_mmproj(|file| file.remove("clip.vision.block_count")),
        "clip.vision.block_count is missing",
    );
}

#[test]
fn extreme_sizes_are_rejected() {
    let names = [
        "image_size",
        "patch_size",
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "attention.head_count",
        "projection_dim",
        "projector.scale_factor",
    ];
    for name in names {
        for size in [0, 3, 1023, 4096, 65_535, 65_536, 1 << 24, u32::MAX] {
            let folder = with_mmproj(|file| file.set(&format!("clip.vision.{name}"), Value::U32(size)));
            assert!(vision_of(&folder).is_err(), "{name} = {size}");
        }
    }
    // The most patches, each of one pixel: more than the file has positions for.
    let folder = with_mmproj(|file| {
        file.set("clip.vision.image_size", Value::U32(4096));
        file.set("clip.vision.patch_size", Value::U32(1));
    });
    assert_rejected(&folder, "wrong shape: v.position_embd.weight, expected [16777216, 32]");
    let folder = with_mmproj(|file| {
        file.set("clip.vision.image_size", Value::U32(65_536));
        file.set("clip.vision.patch_size", Value::U32(1));
    });
    assert_rejected(&folder, "clip.vision.image_size gives 65536 patches along a side: too many");
}

#[test]
fn normalisation_of_pixels_is_read() {
    let mean = [0.25, 0.5, 0.75];
    let folder = with_json(OLDER, "preprocessor_config.json", |json| json["image_mean"] = json!(mean));
    assert_eq!(siglip(&vision_of(&folder).unwrap().unwrap().config).1, mean);
    let folder = with_json(NEWER, "processor_config.json", |json| {
        json["image_processor"]["image_std"] = json!(mean);
    });
    assert_eq!(siglip(&vision_of(&folder).unwrap().unwrap().config).2, mean);
    let folder = with_mmproj(|file| {
        file.set("clip.vision.image_mean", Value::Array(Array::F32(vec![0.25, 0.5, 0.75])));
    });
    assert_eq!(siglip(&vision_of(&folder).unwrap().unwrap().config).1, mean);
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let config = VisionConfig::from_hf(
        Path::new("config.json"),
        &json!({"mm_tokens_per_image": 49}),
        None,
        Architecture::Gemma3,
        2560,
    );
    let config = config.unwrap();
    assert_eq!((siglip(&config).0, config.patch_size, config.hidden), (224, 16, 768));
    let expected = Transformer { layers: 12, heads: 12, head_dim: 64, intermediate: 3072, norm_eps: 1e-6 };
    assert_eq!(transformer(&config), expected);
    assert_eq!((config.max_soft_tokens(), config.text_hidden), (49, 2560));
    // As published.
    let json = json!({
        "mm_tokens_per_image": 256,
        "vision_config": {
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": false,
        },
    });
    let config =
        VisionConfig::from_hf(Path::new("config.json"), &json, None, Architecture::Gemma3, 2560).unwrap();
    assert_eq!((config.max_patches(), config.patch_values(), transformer(&config).head_dim), (4096, 588, 72));
    assert_eq!((config.max_soft_tokens(), config.pooled_patches), (256, 4));
}

#[test]
fn truncated_mmproj() {
    let folder = copy(GGUF);
    let path = folder.path().join(MMPROJ);
    let bytes = fs::read(&path).unwrap();
    for len in [0, 3, 100, bytes.len() / 50, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        assert_rejected(&folder, MMPROJ);
    }
}

#[test]
fn mmproj_of_another_model() {
    let folder = with_mmproj(|file| file.set("clip.vision.projection_dim", Value::U32(2560)));
    assert_rejected(
        &folder,
        "its soft tokens have 2560 values, but the hidden size of the language model is 64",
    );
}

#[test]
fn mmproj_is_found_by_its_name() {
    for name in ["mmproj-model-f16.gguf", "mmproj-BF16.gguf", "tiny-it-mmproj-Q8_0.GGUF", "model.mmproj"] {
        let folder = copy(GGUF);
        fs::rename(folder.path().join(MMPROJ), folder.path().join(name)).unwrap();
        let found = vision_of(&folder).unwrap().map(|vision| vision.path);
        assert_eq!(found, Some(folder.path().join(name)));
    }
    for name in ["encoder.gguf", "other.mmproj", "mmproj-model-f16.gguf.part"] {
        let folder = copy(GGUF);
        fs::rename(folder.path().join(MMPROJ), folder.path().join(name)).unwrap();
        assert!(vision_of(&folder).unwrap().is_none(), "{name}");
    }
    // The language model is not its own encoder.
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model-without-mmproj.gguf");
    fs::copy(fixture(GGUF).join("model.gguf"), &model).unwrap();
    assert!(Checkpoint::open(&model).unwrap().vision().unwrap().is_none());
}

#[test]
fn of_several_mmproj_files_the_fitting_one_is_used() {
    let folder = with_mmproj(|file| file.set("clip.vision.projection_dim", Value::U32(2560)));
    let (another, fitting) = (folder.path().join(MMPROJ), folder.path().join("mmproj-z.gguf"));
    fs::copy(fixture(GGUF).join(MMPROJ), &fitting).unwrap();
    fs::write(folder.path().join("mmproj-damaged.gguf"), b"GGUF").unwrap();
    assert_eq!(vision_of(&folder).unwrap().unwrap().path, fitting);

    fs::copy(&fitting, folder.path().join("mmproj-y.gguf")).unwrap();
    assert_rejected(
        &folder,
        "model.gguf: several image encoders beside it fit: mmproj-y.gguf, mmproj-z.gguf: rename one of them to model.mmproj",
    );
    fs::remove_file(folder.path().join("mmproj-y.gguf")).unwrap();
    // Its own is used even if it does not fit: the error says so.
    fs::copy(&another, folder.path().join("model.mmproj")).unwrap();
    assert_rejected(&folder, "model.mmproj: is the image encoder of another model");
    fs::remove_file(folder.path().join("model.mmproj")).unwrap();
    fs::remove_file(fitting).unwrap();
    assert_rejected(&folder, "none of the image encoders beside it can be used:");
    assert_rejected(&folder, "its soft tokens have 2560 values");
    assert_rejected(&folder, "mmproj-damaged.gguf");
}

#[test]
fn parts_of_a_split_model_share_an_encoder() {
    let folder = copy(GGUF);
    let part = folder.path().join("model-00001-of-00001.gguf");
    fs::rename(folder.path().join("model.gguf"), &part).unwrap();
    fs::rename(folder.path().join(MMPROJ), folder.path().join("model.mmproj")).unwrap();
    let vision = Checkpoint::open(&part).unwrap().vision().unwrap().unwrap();
    assert_eq!(vision.path, folder.path().join("model.mmproj"));
    assert_eq!(vision.tensor(None, Role::Projection).unwrap().name, "mm.input_projection.weight");
    assert_eq!(Slot::vision(None, Role::Projection).tower, Tower::Projector);
}
