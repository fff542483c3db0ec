//! A checkpoint's tensors against its config: all problems are reported at once, by name and shape.

use std::path::Path;

use checkpoint::Config;
use checkpoint::{Format, Source, Span, Tensor};
use checkpoint::{
    Incomplete, Problem,
    complete::{self, Inventory},
};
use checkpoint::{Role, Slot, names::Naming};
use serde_json::json;
use tensor::Encoding;

fn config() -> Config {
    let json = json!({
        "model_type": "gemma3_text", "vocab_size": 100, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    });
    Config::from_hf(Path::new("config.json"), &json).unwrap()
}

const LAYER: [(Role, &[u64]); 13] = [
    (Role::AttentionNorm, &[16]),
    (Role::Query, &[24, 16]),
    (Role::Key, &[12, 16]),
    (Role::Value, &[12, 16]),
    (Role::QueryNorm, &[6]),
    (Role::KeyNorm, &[6]),
    (Role::Output, &[16, 24]),
    (Role::PostAttentionNorm, &[16]),
    (Role::FeedForwardNorm, &[16]),
    (Role::Gate, &[24, 16]),
    (Role::Up, &[24, 16]),
    (Role::Down, &[16, 24]),
    (Role::PostFeedForwardNorm, &[16]),
];

fn tensor(name: &str, shape: &[u64]) -> Tensor {
    let data = Span { file: 0, offset: 0, len: 4 * shape.iter().product::<u64>() };
    Tensor { name: name.to_string(), shape: shape.to_vec(), encoding: Encoding::F32, data, scales: None }
}

/// A complete model with this naming.
fn complete_model(naming: Naming) -> Source {
    let config = config();
    let name = |layer, role| Slot::text(layer, role).name(config.architecture, naming).unwrap();
    let mut tensors =
        vec![tensor(&name(None, Role::Embed), &[100, 16]), tensor(&name(None, Role::FinalNorm), &[16])];
    for layer in 0..2 {
        tensors.extend(LAYER.map(|(role, shape)| tensor(&name(Some(layer), role), shape)));
    }
    let format = if naming == Naming::Gguf { Format::Gguf } else { Format::HuggingFace };
    Source { format, files: vec!["model".into()], tensors }
}

fn find<'a>(source: &'a mut Source, name: &str) -> &'a mut Tensor {
    source.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

fn check(source: &Source) -> Result<Inventory, Incomplete> {
    complete::check(&config(), source)
}

fn problems(source: &Source) -> Vec<Problem> {
    check(source).expect_err("incomplete model was accepted").problems
}

#[test]
fn every_naming_gives_a_complete_model() {
    for naming in [Naming::HfText, Naming::HfMultimodalOlder, Naming::HfMultimodalNewer, Naming::Gguf] {
        let source = complete_model(naming);
        let inventory = check(&source).unwrap();
        assert_eq!(inventory.iter().count(), source.tensors.len());
        for (layer, (role, shape)) in [0, 1].into_iter().flat_map(|layer| LAYER.map(|row| (layer, row))) {
            assert_eq!(inventory.get(Some(layer), role).unwrap().shape, shape, "{role:?}");
        }
        assert_eq!(inventory.get(Some(0), Role::QueryBias), None);
        assert_eq!(inventory.get(Some(2), Role::Query), None);
        assert_eq!(inventory.head().unwrap().shape, [100, 16]);
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let mut source = complete_model(Naming::HfMultimodalOlder);
    let layers = "language_model.model.layers";
    source.tensors.retain(|tensor| tensor.name != format!("{layers}.1.mlp.up_proj.weight"));
    find(&mut source, &format!("{layers}.0.self_attn.k_proj.weight")).shape = vec![16, 12];
    source.tensors.push(tensor("model.language_model.norm.weight", &[16]));
    source.tensors.push(tensor("adapter.weight", &[3]));
    source.tensors.push(tensor(&format!("{layers}.2.mlp.up_proj.weight"), &[24, 16]));
    source.tensors.push(tensor(&format!("{layers}.0.self_attn.q_proj.bias"), &[24]));
    let text = check(&source).unwrap_err().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "not a complete gemma3 model: 6 problems with its tensors",
            "  missing: language_model.model.layers.1.mlp.up_proj.weight, expected [24, 16]",
            "  wrong shape: language_model.model.layers.0.self_attn.k_proj.weight, expected [12, 16], found [16, 12]",
            "  duplicate: model.language_model.norm.weight is the same tensor as language_model.model.norm.weight",
            "  unknown: adapter.weight, found [3]",
            "  unknown: language_model.model.layers.2.mlp.up_proj.weight, but the model has 2 layers",
            "  unknown: language_model.model.layers.0.self_attn.q_proj.bias, found [24]",
        ]
    );
}

#[test]
fn missing_tensors_are_named_in_the_naming_of_the_file() {
    let mut source = complete_model(Naming::Gguf);
    source.tensors.retain(|tensor| tensor.name != "blk.1.post_ffw_norm.weight");
    let name = "blk.1.post_ffw_norm.weight".to_string();
    assert_eq!(problems(&source), [Problem::Missing { name, expected: vec![16] }]);
}

#[test]
fn long_reports_are_truncated_with_a_count() {
    let mut source = complete_model(Naming::HfText);
    source.tensors.clear();
    let incomplete = check(&source).unwrap_err();
    assert_eq!(incomplete.problems.len(), 28);
    let text = incomplete.to_string();
    assert_eq!(text.lines().count(), 22);
    assert!(text.ends_with("\n  … and 8 more"), "{text}");
}

#[test]
fn duplicate_names_are_reported() {
    let mut source = complete_model(Naming::Gguf);
    source.tensors.push(tensor("blk.0.attn_q.weight", &[24, 16]));
    assert_eq!(problems(&source).len(), 1);
    assert!(check(&source).unwrap_err().to_string().contains("duplicate: blk.0.attn_q.weight appears twice"));
}

#[test]
fn image_tensors_are_listed_separately() {
    let mut source = complete_model(Naming::HfMultimodalNewer);
    let image = "model.vision_tower.encoder.layers.1.self_attn.q_proj.weight";
    source.tensors.push(tensor(image, &[8, 8]));
    source.tensors.push(tensor("model.multi_modal_projector.mm_soft_emb_norm.weight", &[8]));
    let inventory = check(&source).unwrap();
    assert_eq!(inventory.images.len(), 2);
    assert_ne!(inventory.get(Some(1), Role::Query).unwrap().name, image);
}

#[test]
fn only_hugging_face_embeddings_have_spare_rows() {
    let rows = |naming, rows| {
        let mut source = complete_model(naming);
        source.tensors[0].shape[0] = rows;
        check(&source).is_ok()
    };
    assert!(rows(Naming::HfMultimodalNewer, 164));
    assert!(!rows(Naming::HfMultimodalNewer, 165));
    assert!(!rows(Naming::HfMultimodalNewer, 99));
    assert!(!rows(Naming::Gguf, 164));
}

#[test]
fn matrix_of_one_row_is_not_a_norm() {
    let mut source = complete_model(Naming::HfText);
    find(&mut source, "model.norm.weight").shape = vec![1, 16];
    assert!(
        matches!(&problems(&source)[..], [Problem::ShapeMismatch { name, .. }] if name == "model.norm.weight")
    );
}

#[test]
fn head_is_the_embedding_matrix_unless_untied() {
    let with_head = |naming, tied| {
        let mut source = complete_model(naming);
        let name = if naming == Naming::Gguf { "output.weight" } else { "lm_head.weight" };
        source.tensors.push(tensor(name, &[100, 16]));
        let mut config = config();
        config.tie_embeddings = tied;
        complete::check(&config, &source).unwrap().head().unwrap().name.clone()
    };
    assert_eq!(with_head(Naming::HfText, true), "model.embed_tokens.weight");
    assert_eq!(with_head(Naming::HfText, false), "lm_head.weight");
    assert_eq!(with_head(Naming::Gguf, true), "output.weight");
    let mut untied = config();
    untied.tie_embeddings = false;
    let missing = complete::check(&untied, &complete_model(Naming::HfText)).unwrap_err();
    assert!(missing.to_string().contains("missing: lm_head.weight, expected [100, 16]"), "{missing}");
}

/// A GGUF file of a model with three experts: gate and up in one tensor or in two.
fn model_with_experts(fused: bool) -> (Config, Source) {
    let json = json!({
        "model_type": "qwen3_moe", "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
    });
    let config = Config::from_hf(Path::new("config.json"), &json).unwrap();
    let mut tensors = vec![
        tensor("token_embd.weight", &[100, 16]),
        tensor("output_norm.weight", &[16]),
        tensor("output.weight", &[100, 16]),
        tensor("blk.0.attn_norm.weight", &[16]),
        tensor("blk.0.attn_q.weight", &[24, 16]),
        tensor("blk.0.attn_k.weight", &[12, 16]),
        tensor("blk.0.attn_v.weight", &[12, 16]),
        tensor("blk.0.attn_q_norm.weight", &[6]),
        tensor("blk.0.attn_k_norm.weight", &[6]),
        tensor("blk.0.attn_output.weight", &[16, 24]),
        tensor("blk.0.ffn_norm.weight", &[16]),
        tensor("blk.0.ffn_gate_inp.weight", &[3, 16]),
        tensor("blk.0.ffn_down_exps.weight", &[3, 16, 8]),
    ];
    match fused {
        true => tensors.push(tensor("blk.0.ffn_gate_up_exps.weight", &[3, 16, 16])),
        false => tensors
            .extend(["gate", "up"].map(|part| tensor(&format!("blk.0.ffn_{part}_exps.weight"), &[3, 8, 16]))),
    }
    (config, Source { format: Format::Gguf, files: vec!["model.gguf".into()], tensors })
}

#[test]
fn stacked_experts_are_divided() {
    for fused in [false, true] {
        let (config, source) = model_with_experts(fused);
        let inventory = complete::check(&config, &source).unwrap();
        let of = |expert, role| inventory.slot(Slot::expert(0, expert, role)).unwrap();
        let f32s = |count: u64| count * 4;
        let (gate, up) = (of(2, Role::Gate), of(2, Role::Up));
        assert_eq!((&gate.shape[..], &up.shape[..]), (&[8, 16][..], &[8, 16][..]));
        let expected = if fused { [f32s(4 * 128), f32s(5 * 128)] } else { [f32s(2 * 128); 2] };
        assert_eq!([gate.data.offset, up.data.offset], expected);
        assert_eq!((of(1, Role::Down).data.offset, of(1, Role::Down).data.len), (f32s(128), f32s(128)));
    }
}

#[test]
fn experts_of_the_wrong_number_or_shape_are_named_once() {
    let (config, mut source) = model_with_experts(false);
    find(&mut source, "blk.0.ffn_down_exps.weight").shape = vec![4, 16, 8];
    let wrong_count = complete::check(&config, &source).unwrap_err().problems;
    let name = "blk.0.ffn_down_exps.weight".to_string();
    assert_eq!(
        wrong_count,
        [Problem::ShapeMismatch { name: name.clone(), expected: vec![3, 16, 8], found: vec![4, 16, 8] }]
    );
    source.tensors.retain(|tensor| tensor.name != name);
    let missing = complete::check(&config, &source).unwrap_err().problems;
    assert_eq!(missing, [Problem::Missing { name, expected: vec![3, 16, 8] }]);
    let (config, mut source) = model_with_experts(true);
    find(&mut source, "blk.0.ffn_gate_inp.weight").shape = vec![4, 16];
    let router = complete::check(&config, &source).unwrap_err().problems;
    assert!(
        matches!(&router[..], [Problem::ShapeMismatch { name, .. }] if name == "blk.0.ffn_gate_inp.weight"),
        "{router:?}"
    );
    let (config, mut source) = model_with_experts(true);
    source.tensors.push(tensor("blk.0.ffn_gate_exps.weight", &[3, 8, 16]));
    let twice = complete::check(&config, &source).unwrap_err().problems;
    assert!(matches!(&twice[..], [Problem::Duplicate { .. }, ..]), "{twice:?}");
}
