//! Choices on simulated machines, through the hub's protocol: headers with the real dimensions of a 27B model.

use std::sync::atomic::AtomicBool;

use model::Size;
use store::{
    Hub, ModelRequest, Settings, Store,
    testing::{FakeFile, FakeHub, FakeRepository},
};
use telemetry::fixture::{GIB, Tree};

use super::*;
use crate::{
    commands::pull::select::{self, Query, Selection},
    fixture::radeon_780m,
};

/// A machine with a Radeon 780M, whose heaps RADV makes of carve-out and GTT.
fn machine(tree: &Tree, installed: u64, carve_out: u64, gtt: u64) -> Machine {
    tree.add_apu(installed, carve_out, gtt);
    Machine::new(&tree.system(), radeon_780m(carve_out, gtt))
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

const Q4_0: u32 = 2;
const Q8_0: u32 = 8;
const Q4_K: u32 = 12;
const Q6_K: u32 = 14;

/// The header of a Gemma 3 file and the size of the whole file: `kinds` are the ggml types of the embeddings
/// and of the other matrices.
fn gemma_header(size: Size, kinds: [u32; 2]) -> (Vec<u8>, u64) {
    let config = size.config().unwrap();
    let number = |key: &str, value: u32| {
        [text(&format!("gemma3.{key}")), 4_u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat()
    };
    let string = |key: &str, value: &str| [text(key), 8_u32.to_le_bytes().to_vec(), text(value)].concat();
    let mut keys = vec![
        string("general.architecture", "gemma3"),
        number("context_length", config.max_positions),
        number("embedding_length", config.hidden),
        number("block_count", config.layers),
        number("feed_forward_length", config.intermediate),
        number("attention.head_count", config.heads),
        number("attention.head_count_kv", config.kv_heads),
        number("attention.key_length", config.head_dim),
        number("attention.value_length", config.head_dim),
        number("attention.sliding_window", 1024),
        [
            text("gemma3.attention.layer_norm_rms_epsilon"),
            6_u32.to_le_bytes().to_vec(),
            1e-6_f32.to_le_bytes().to_vec(),
        ]
        .concat(),
        string("tokenizer.ggml.model", "llama"),
    ];
    let vocabulary = (0..config.vocab).flat_map(|_| text("x"));
    let head = [9_u32.to_le_bytes(), 8_u32.to_le_bytes()].concat();
    let count = u64::from(config.vocab).to_le_bytes();
    keys.push([text("tokenizer.ggml.tokens"), head, count.to_vec(), vocabulary.collect()].concat());

    let [hidden, intermediate, query, kv, head_dim] = [
        config.hidden,
        config.intermediate,
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
        config.head_dim,
    ]
    .map(u64::from);
    let [outer, inner] = kinds;
    let mut tensors: Vec<(String, Vec<u64>, u32)> = vec![
        ("token_embd.weight".into(), vec![hidden, config.vocab.into()], outer),
        ("output_norm.weight".into(), vec![hidden], 0),
    ];
    for layer in 0..config.layers {
        for (name, shape) in [
            ("attn_q", [hidden, query]),
            ("attn_k", [hidden, kv]),
            ("attn_v", [hidden, kv]),
            ("attn_output", [query, hidden]),
            ("ffn_gate", [hidden, intermediate]),
            ("ffn_up", [hidden, intermediate]),
            ("ffn_down", [intermediate, hidden]),
        ] {
            tensors.push((format!("blk.{layer}.{name}.weight"), shape.to_vec(), inner));
        }
        for (name, len) in [
            ("attn_norm", hidden),
            ("post_attention_norm", hidden),
            ("ffn_norm", hidden),
            ("post_ffw_norm", hidden),
            ("attn_q_norm", head_dim),
            ("attn_k_norm", head_dim),
        ] {
            tensors.push((format!("blk.{layer}.{name}.weight"), vec![len], 0));
        }
    }
    let mut offset = 0_u64;
    let mut list = Vec::new();
    for (name, shape, kind) in &tensors {
        list.extend(text(name));
        list.extend((shape.len() as u32).to_le_bytes());
        list.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
        list.extend(kind.to_le_bytes());
        list.extend(offset.to_le_bytes());
        let values: u64 = shape.iter().product();
        let bytes = match *kind {
            Q4_0 => values / 32 * 18,
            Q8_0 => values / 32 * 34,
            Q4_K => values / 256 * 144,
            Q6_K => values / 256 * 210,
            _ => values * 4,
        };
        offset += bytes.next_multiple_of(32);
    }
    let counts = [(tensors.len() as u64).to_le_bytes(), (keys.len() as u64).to_le_bytes()].concat();
    let header = [b"GGUF".to_vec(), 3_u32.to_le_bytes().to_vec(), counts, keys.concat(), list].concat();
    let data = (header.len() as u64).next_multiple_of(32);
    (header, data + offset)
}

/// A hub with the repositories of `gemma3:27b`: QAT files in one, the others in another.
fn hub_with_27b() -> FakeHub {
    let hub = FakeHub::start();
    let file = |path: &str, kinds| {
        let (header, len) = gemma_header(Size::Gemma3Of27B, kinds);
        FakeFile::sparse(path, header, len)
    };
    let qat = FakeRepository {
        files: vec![file("gemma-3-27b-it-qat-Q4_0.gguf", [Q6_K, Q4_0])],
        ..FakeRepository::new(&[("mmproj-model-f16-27B.gguf", b"GGUF".to_vec())])
    };
    hub.put("ggml-org/gemma-3-27b-it-qat-GGUF", qat);
    let plain = FakeRepository {
        files: vec![
            file("gemma-3-27b-it-Q4_K_M.gguf", [Q6_K, Q4_K]),
            file("gemma-3-27b-it-Q8_0.gguf", [Q8_0, Q8_0]),
        ],
        ..FakeRepository::new(&[])
    };
    hub.put("ggml-org/gemma-3-27b-it-GGUF", plain);
    hub
}

fn select(hub: &FakeHub, text: &str, machine: &Machine) -> anyhow::Result<Selection> {
    let settings = Settings::new(&hub.server.url, "http://none");
    let cancel = AtomicBool::new(false);
    let client = Hub::new(&settings, &cancel)?;
    let folder = tempfile::tempdir()?;
    let store = Store::new(folder.path());
    let request = ModelRequest::parse(text, &settings.hub)?;
    let name = request.store_name();
    let query = Query { request: &request, revision: None, store: &store, name: &name };
    select::from_hub(&client, &query, machine, &mut |_| {})
}

fn chosen(selection: &Selection) -> (Vec<String>, String) {
    let Selection::Gguf { variant, .. } = selection else { panic!("not GGUF files") };
    (variant.files.iter().map(|file| file.path.clone()).collect(), variant.label())
}

#[test]
fn gemma_27b_is_qat_int4_with_32_gb_and_int8_with_64_gb() {
    let hub = hub_with_27b();
    let (small, large, tuned) = (Tree::new(), Tree::new(), Tree::new());
    // The kernel's default is half of RAM as GTT; `indrik doctor` advises more.
    let default_32 = machine(&small, 32 * GIB, GIB / 2, 31 * GIB / 2);
    let tuned_32 = machine(&tuned, 32 * GIB, GIB / 2, 27 * GIB);
    let default_64 = machine(&large, 64 * GIB, GIB / 2, 63 * GIB / 2);
    for (machine, file, label, fits) in [
        (&tuned_32, "gemma-3-27b-it-qat-Q4_0.gguf", "Q4_0 (QAT)", true),
        (&default_32, "gemma-3-27b-it-qat-Q4_0.gguf", "Q4_0 (QAT)", false),
        (&default_64, "gemma-3-27b-it-Q8_0.gguf", "Q8_0", true),
    ] {
        let selection = select(&hub, "gemma3:27b", machine).unwrap();
        assert_eq!(chosen(&selection), (vec![file.to_string()], label.to_string()));
        let Selection::Gguf { candidates, chosen, .. } = &selection else { unreachable!() };
        let candidate = &candidates[*chosen];
        assert!(candidate.exact);
        assert_eq!(matches!(candidate.fit, Fit::Fits { .. }), fits, "{:?}", candidate.fit);
        assert_eq!(candidate.warning().is_none(), fits);
        let text = selection.explanation();
        assert!(text.contains("| Q8_0") && text.contains("chosen:"), "{text}");
        // The next larger one is there with what it lacks.
        assert_eq!(text.contains("short"), label != "Q8_0", "{text}");
    }
    let selection = select(&hub, "gemma3:27b", &default_32).unwrap();
    assert!(selection.explanation().contains("ttm.pages_limit="), "{}", selection.explanation());
}

#[test]
fn estimates_from_names_are_close_to_the_sizes_in_headers() {
    let hub = hub_with_27b();
    let tree = Tree::new();
    let machine = machine(&tree, 96 * GIB, 16 * GIB, 40 * GIB);
    for quant in ["q8_0", "q4_0"] {
        let request = format!("gemma3:27b{}:{quant}", if quant == "q4_0" { "-it-qat" } else { "" });
        let Selection::Gguf { candidates, chosen, variant, .. } = select(&hub, &request, &machine).unwrap()
        else {
            panic!("not GGUF files")
        };
        let exact = &candidates[chosen];
        let config = Size::Gemma3Of27B.config().unwrap();
        let estimated = Candidate::estimated(0, &variant, &config, &machine);
        let ratio = estimated.weight_bytes as f64 / exact.weight_bytes as f64;
        assert!((0.995..1.005).contains(&ratio), "{quant}: {ratio}");
    }
}

#[test]
fn an_explicit_request_is_respected_whether_or_not_it_fits() {
    let hub = hub_with_27b();
    let tree = Tree::new();
    let machine = machine(&tree, 32 * GIB, GIB / 2, 27 * GIB);
    let selection = select(&hub, "gemma3:27b:q8_0", &machine).unwrap();
    assert_eq!(chosen(&selection).1, "Q8_0");
    assert!(selection.explanation().contains("Note: "), "{}", selection.explanation());
    assert_eq!(chosen(&select(&hub, "gemma3:27b-it-qat", &machine).unwrap()).1, "Q4_0 (QAT)");
    let error = select(&hub, "gemma3:27b:q6_k", &machine).err().unwrap().to_string();
    assert!(error.contains("has no Q6_K file; it has Q4_0 (QAT), Q4_K_M, Q8_0"), "{error}");
}

#[test]
fn a_model_that_cannot_fit_is_refused_in_one_sentence() {
    let hub = hub_with_27b();
    let tree = Tree::new();
    let machine = machine(&tree, 8 * GIB, GIB / 2, 4 * GIB);
    let error = select(&hub, "gemma3:27b", &machine).err().unwrap().to_string();
    assert!(error.contains("not enough memory: even Q4_0 (QAT) needs 1"), "{error}");
    assert!(error.contains("`indrik search`") && !error.contains('\n'), "{error}");
    // Only headers were read.
    let bytes: u64 = hub
        .storage
        .all_requests()
        .iter()
        .filter_map(|request| {
            let (first, last) = request.headers["range"].strip_prefix("bytes=")?.split_once('-')?;
            Some(last.parse::<u64>().ok()? - first.parse::<u64>().ok()? + 1)
        })
        .sum();
    assert!(bytes <= 64 << 10, "{bytes} bytes were read");
}

#[test]
fn quality_decides_and_qat_beats_others_of_its_size() {
    let variant = |name: &str, qat: bool, bytes: u64| Variant {
        quant: Quant::parse(name),
        qat,
        files: vec![store::RemoteFile { path: name.into(), bytes, sha256: None }],
    };
    let variants = [
        variant("Q4_K_M", false, 16),
        variant("Q4_0", true, 15),
        variant("Q8_0", false, 28),
        variant("Q5_K_M", false, 19),
        variant("Q4_0", false, 15),
        variant("Q6_K", false, 22),
    ];
    let ranked: Vec<String> = rank(&variants).into_iter().map(|index| variants[index].label()).collect();
    assert_eq!(ranked, ["Q8_0", "Q6_K", "Q5_K_M", "Q4_0 (QAT)", "Q4_K_M", "Q4_0"]);
}
