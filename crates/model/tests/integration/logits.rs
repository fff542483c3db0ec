//! Logits against the transformers package on tiny models of every family and shape class, and against each
//! other for any chunk size and batch.

use crate::common;
use std::sync::Arc;

use crate::common::{
    FAMILIES, Fixture, NAMES, QUANTISED, all_logits, difference, divergence, limits, load, load_alone,
};
use model::{Activations, DecodeRow, KvScheme, Limits, Model, Runner, Sampling};
use tensor::Scheme;
use weights::stream::Control;

#[test]
fn logits_match_transformers() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in NAMES {
        let fixture = Fixture::open(name);
        let model = load(&device, &fixture.path);
        let factor = fixture.reference["embed_scale"].as_f64().unwrap() as f32;
        assert_eq!(model.config.embedding_factor, factor, "{name}");
        // Transformers keeps keys and values in f32. Attention of random weights is sharp, and shows the cost
        // of f16 and int8 more than that of trained weights.
        for (kv, allowed) in [(KvScheme::F32, 2e-4), (KvScheme::F16, 5e-3), (KvScheme::Int8, 8e-2)] {
            let rows = all_logits(&model, &fixture.ids, 64, kv);
            let largest = fixture.largest();
            let mut worst = 0.0_f32;
            for (index, position) in fixture.positions.iter().enumerate() {
                let difference = difference(&rows[*position], fixture.row(index));
                assert!(
                    difference <= allowed * largest,
                    "{name}, {kv} at {position}: {difference} of {largest}"
                );
                worst = worst.max(difference);
            }
            println!("{name}, KV in {kv}: {:.1e} of the largest logit", worst / largest);
        }
    }
}

#[test]
fn a_router_that_differs_from_the_model_is_noticed() {
    for (name, of_model, other) in [
        ("qwen3moe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false"),
        ("qwen3moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 1"),
        ("gemma4_moe", "\"top_k_experts\": 2", "\"top_k_experts\": 1"),
    ] {
        let replaced = |config: String, weights: Vec<u8>| {
            assert!(config.contains(of_model));
            (config.replace(of_model, other), weights)
        };
        assert_differs(name, other, replaced);
    }
    // Scales as if the model had none.
    for tensor in ["layers.0.router.scale", "layers.0.router.per_expert_scale"] {
        assert_differs("gemma4_moe", tensor, |config, weights| (config, with_ones(weights, tensor)));
    }
}

/// Other parts whose absence would be noticed: factors of layers, the soft cap, the growth of queries.
#[test]
fn a_model_without_one_of_its_parts_is_noticed() {
    let scale = "layers.1.layer_scalar";
    assert_differs("gemma4_text", scale, |config, weights| (config, with_ones(weights, scale)));
    for (name, of_model, other) in [
        ("gemma4_text", "\"final_logit_softcapping\": 30.0", "\"final_logit_softcapping\": 300.0"),
        ("ministral3", "\"llama_4_scaling_beta\": 0.1", "\"llama_4_scaling_beta\": 0.01"),
        ("ministral3", "\"factor\": 16.0", "\"factor\": 8.0"),
    ] {
        let replaced = |config: String, weights| {
            assert!(config.contains(of_model), "{config}");
            (config.replace(of_model, other), weights)
        };
        assert_differs(name, other, replaced);
    }
}

/// Checks that the logits of a fixture change noticeably with its config or weights.
#[track_caller]
fn assert_differs(name: &'static str, change: &str, changed: impl Fn(String, Vec<u8>) -> (String, Vec<u8>)) {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open(name);
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(fixture.path.join("config.json")).unwrap();
    let weights = std::fs::read(fixture.path.join("model.safetensors")).unwrap();
    let (config, weights) = changed(config, weights);
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    let rows = all_logits(&load(&device, folder.path()), &fixture.ids, 64, KvScheme::F32);
    let differences = fixture.positions.iter().enumerate();
    let differences = differences.map(|(index, position)| difference(&rows[*position], fixture.row(index)));
    let worst = differences.fold(0.0, f32::max) / fixture.largest();
    assert!(worst > 5e-3, "{name}, {change}: {worst}");
}

/// A safetensors file with ones as the values of a tensor, in bf16, whose name ends so.
fn with_ones(mut file: Vec<u8>, tensor: &str) -> Vec<u8> {
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&file[8..header]).unwrap();
    let (_, found) = json.as_object().unwrap().iter().find(|(name, _)| name.ends_with(tensor)).unwrap();
    assert_eq!(found["dtype"], "BF16");
    let offset = |index: usize| header + found["data_offsets"][index].as_u64().unwrap() as usize;
    for value in file[offset(0)..offset(1)].chunks_mut(2) {
        value.copy_from_slice(&0x3f80_u16.to_le_bytes());
    }
    file
}

#[test]
fn quantised_files_keep_every_tensor() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in ["qwen3moe", "gemma4_moe", "gemma4_moe_gguf_f16", "gemma4_ple", "ministral3"] {
        let fixture = Fixture::open(name);
        let checkpoint = checkpoint::Checkpoint::open(&fixture.path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("int8.safetensors");
        weights::quantize::quantize(&checkpoint, &file, Scheme::Int8, &Control::default()).unwrap();
        let rows = all_logits(&load(&device, &file), &fixture.ids, 64, KvScheme::F32);
        let differences = fixture.positions.iter().enumerate();
        let differences =
            differences.map(|(index, position)| difference(&rows[*position], fixture.row(index)));
        let worst = differences.fold(0.0, f32::max) / fixture.largest();
        println!("{name} in int8: {worst:.1e} of the largest logit");
        assert!((1e-4..1e-1).contains(&worst), "{name}: {worst}");
    }
}

#[test]
fn chunks_of_any_size_give_the_same_logits() {
    let Some(device) = testkit::cpu_device() else { return };
    for (name, chunks) in [
        ("default_pattern", &[1, 2, 3, 5, 9, 24][..]),
        ("untied_long", &[16, 37, 300]),
        ("llama_tied", &[1, 2, 5, 9]),
        ("llama_llama3", &[37]),
        ("llama_gguf_q4_1", &[1, 3, 9]),
        ("qwen2_tied", &[1, 2, 5, 9]),
        ("qwen3", &[1, 2, 5, 9]),
        ("qwen3moe", &[1, 2, 5, 9]),
        ("gemma4_text", &[1, 5]),
        ("gemma4_ple", &[1, 2, 9]),
        ("gemma4_moe", &[1, 2, 9]),
        ("ministral3", &[1, 5]),
    ] {
        let fixture = Fixture::open(name);
        let model = load(&device, &fixture.path);
        let whole = all_logits(&model, &fixture.ids, 512, KvScheme::F16);
        // The default page size; all other tests here use small pages.
        let large = Limits { page_size: model::DEFAULT_PAGE_SIZE, ..limits(1, fixture.ids.len() as u32, 48) };
        let mut runner = Runner::new(model.clone(), large).unwrap();
        let mut sequence = runner.start().unwrap();
        let mut position = 0;
        let compare = |row: &[f32]| {
            assert!(difference(row, &whole[position]) <= 1e-3 * fixture.largest(), "{name}, {position}");
            position += 1;
            Ok(())
        };
        runner.logits(&mut sequence, &fixture.ids, compare).unwrap();
        for chunk in chunks {
            let rows = all_logits(&model, &fixture.ids, *chunk, KvScheme::F16);
            for (position, (row, expected)) in rows.iter().zip(&whole).enumerate() {
                let difference = difference(row, expected);
                let allowed = 1e-3 * fixture.largest();
                assert!(
                    difference <= allowed,
                    "{name}, chunks of {chunk}, position {position}: {difference}"
                );
            }
        }
    }
}

#[test]
fn int16_activations_are_next_to_exact() {
    let Some(device) = testkit::cpu_device() else { return };
    for (number, name) in QUANTISED.into_iter().enumerate() {
        let fixture = Fixture::open(name);
        let model = load_alone(&device, &fixture.path).with_few_rows(Activations::Int16);
        let model = Arc::new(model.with_one_dispatch(true));
        let greedy = fixture.list("greedy");
        // One and two rows compute their own norms: each model has one of them, and some more rows.
        let (chunks, batches) = ([1, 2, 5], [1, 2]);
        let all = testkit::exhaustive();
        let chunks = if all { &chunks[..] } else { &[chunks[number % 2], 5] };
        let batches = if all { &batches[..] } else { &batches[1 - number % 2..][..1] };
        for chunk in chunks.iter().copied() {
            let rows = all_logits(&model, &fixture.ids, chunk, KvScheme::F32);
            let mut worst = 0.0_f32;
            for (index, position) in fixture.positions.iter().enumerate() {
                worst = worst.max(difference(&rows[*position], fixture.row(index)) / fixture.largest());
            }
            println!("{name}, chunks of {chunk}: {worst:.1e} of the largest logit");
            // Below 1e-5 it would be f32, and the test would cover something else.
            assert!((1e-5..1e-3).contains(&worst), "{name}, chunks of {chunk}: {worst}");
        }
        for batch in batches.iter().copied() {
            let mut runner = Runner::new(model.clone(), limits(batch, 64, 16)).unwrap();
            let sampling = Sampling::default();
            let start = |runner: &mut Runner| {
                let mut sequence = runner.start().unwrap();
                let first = runner.prompt(&mut sequence, &fixture.ids, &sampling, |_| true).unwrap().token;
                (sequence, vec![first])
            };
            let mut decoding: Vec<_> = (0..batch).map(|_| start(&mut runner)).collect();
            while decoding[0].1.len() < greedy.len() {
                let mut rows: Vec<_> = decoding
                    .iter_mut()
                    .map(|(sequence, tokens)| DecodeRow::new(sequence, tokens[tokens.len() - 1], &sampling))
                    .collect();
                let sampled = runner.decode(&mut rows, 1).unwrap().remove(0);
                for ((_, tokens), sampled) in decoding.iter_mut().zip(sampled) {
                    tokens.push(sampled.token);
                }
            }
            for (_, tokens) in decoding {
                assert_eq!(tokens, greedy, "{name}, batch {batch}");
            }
        }
    }
}

#[test]
fn packed_dot_products_of_many_rows_are_next_to_exact() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in QUANTISED {
        let fixture = Fixture::open(name);
        let model =
            load_alone(&device, &fixture.path).with_few_rows(Activations::Int16).with_packed_products();
        let model = Arc::new(model.with_one_dispatch(true));
        // Packed dot products only, with matrix–vector products for the rest, and in one chunk.
        let chunks = if testkit::exhaustive() { &[16, 11, 64][..] } else { &[11, 64] };
        for chunk in chunks.iter().copied() {
            let rows = all_logits(&model, &fixture.ids, chunk, KvScheme::F32);
            let mut worst = 0.0_f32;
            for (index, position) in fixture.positions.iter().enumerate() {
                worst = worst.max(difference(&rows[*position], fixture.row(index)) / fixture.largest());
            }
            println!("{name}, chunks of {chunk}: {worst:.1e} of the largest logit");
            // Below 1e-5 it would be f32, and the test would cover something else.
            // Seven layers of random weights, three blocks each, multiply a difference more than two.
            let allowed = if name == "gemma4_ple_gguf_q8_0" { 1e-3 } else { 2e-4 };
            assert!((1e-5..allowed).contains(&worst), "{name}, chunks of {chunk}: {worst}");
        }
        in_a_batch_of_others(&fixture, &model, None);
    }
}

#[test]
fn f16_activations_change_logits_little() {
    let Some(device) = testkit::cpu_device() else { return };
    let floats =
        ["gguf_f16", "multimodal_newer", "multimodal_older", "untied_long", "llama_tied", "qwen2_tied"];
    // Float models differ in shape only: one of them.
    let shapes = if testkit::exhaustive() { &floats[..] } else { &floats[..1] };
    let families = FAMILIES.into_iter().enumerate();
    // Every second family, and those whose variants below are tested.
    let is_tested = |(number, name): &(usize, &str)| {
        testkit::exhaustive() || number % 2 == 0 || ["gguf_q8_0", "gemma4_moe_gguf_q8_0"].contains(name)
    };
    let families = families.filter(is_tested).map(|(_, name)| name);
    for name in families.chain(["gguf_q4_0", "llama_gguf_q4_1"]).chain(shapes.iter().copied()) {
        let fixture = Fixture::open(name);
        let plain = load(&device, &fixture.path);
        let model = load_alone(&device, &fixture.path).with_one_dispatch(true).with_emulated_matrix_units();
        let model = Arc::new(model);
        // Other chunk sizes and KV schemes than f16 for one family, and with experts.
        let variants = [(KvScheme::F16, 64), (KvScheme::F16, 5), (KvScheme::Int8, 64), (KvScheme::F32, 64)];
        let variants = match name {
            _ if floats.contains(&name) => &variants[..1],
            "gguf_q8_0" | "gemma4_moe_gguf_q8_0" => &variants[..],
            _ if testkit::exhaustive() => &variants[..],
            _ => &variants[..1],
        };
        for (kv, chunk) in variants.iter().copied() {
            let expected = all_logits(&plain, &fixture.ids, chunk, kv);
            let rows = all_logits(&model, &fixture.ids, chunk, kv);
            let each = rows.iter().zip(&expected).map(|(row, expected)| difference(row, expected));
            let worst = each.fold(0.0, f32::max) / fixture.largest();
            let lost =
                rows.iter().zip(&expected).map(|(row, expected)| divergence(expected, row)).sum::<f64>();
            let lost = lost / rows.len() as f64;
            println!(
                "{name}, KV in {kv}, chunks of {chunk}: {worst:.1e} of the largest logit, {lost:.1e} nats"
            );
            let most = match kv {
                KvScheme::Int8 if name == "gemma4_ple_gguf_q8_0" => 5e-3,
                KvScheme::Int8 => 1e-3,
                // Logits up to 30, routing weights that the rounding changes, and up to 21 blocks.
                _ if name.starts_with("gemma4") => 1e-4,
                _ => 1e-5,
            };
            assert!(lost < most, "{name}, {kv}, chunks of {chunk}: {lost} nats per token are lost");
            // A smaller difference would mean that it was not f16. Rounded keys and values may cancel it. The
            // minima of random Q4_1 are as large as its values, and cancel most of them.
            let allowed = match (kv, name) {
                // A rounded score may choose another expert.
                (KvScheme::Int8, "qwen3moe_gguf_q8_0" | "gemma4_moe_gguf_q8_0") => 3e-1,
                (KvScheme::Int8, _) => 5e-2,
                (_, "llama_gguf_q4_1") => 7e-3,
                (_, "gemma4_ple_gguf_q8_0") => 1e-2,
                _ => 5e-3,
            };
            assert!((1e-5..allowed).contains(&worst), "{name}, {kv}, chunks of {chunk}: {worst}");
        }
        // Several sequences in a batch, and one of them alone.
        if fixture.reference.get("greedy").is_some() {
            // Random biases make Qwen 2's logits the largest, and Q4_1 has its minima: f16 changes them more.
            // Experts multiply the difference by the weights of a router that it changes, too.
            // Gemma 4's many blocks and Ministral's larger queries do so, too.
            let larger = ["qwen2", "qwen3moe", "llama_gguf_q4_1", "gemma4", "ministral3"]
                .into_iter()
                .any(|family| name.starts_with(family));
            let most = if larger { 2e-2 } else { 5e-3 };
            in_a_batch_of_others(&fixture, &model, Some(most));
        }
    }
}

#[test]
fn experts_of_few_rows_take_int16_beside_f16() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("qwen3moe_gguf_q8_0");
    let plain = load(&device, &fixture.path);
    let model = load_alone(&device, &fixture.path).with_few_rows(Activations::Int16);
    let model = Arc::new(model.with_one_dispatch(true).with_emulated_matrix_units());
    // Buckets of four rows, without groups, and of eight, with groups.
    for chunk in [3, 4, 5] {
        let expected = all_logits(&plain, &fixture.ids, chunk, KvScheme::F32);
        let rows = all_logits(&model, &fixture.ids, chunk, KvScheme::F32);
        let each = rows.iter().zip(&expected).map(|(row, expected)| difference(row, expected));
        let worst = each.fold(0.0, f32::max) / fixture.largest();
        println!("chunks of {chunk}: {worst:.1e} of the largest logit");
        assert!((1e-5..5e-3).contains(&worst), "chunks of {chunk}: {worst}");
    }
}

#[test]
fn reproducible_logits_are_batch_invariant() {
    let Some(device) = testkit::cpu_device() else { return };
    for (name, kv) in common::reproducible().iter().copied() {
        let fixture = Fixture::open(name);
        let plain = load_alone(&device, &fixture.path).with_reproducible(true);
        let matrix_units =
            load_alone(&device, &fixture.path).with_emulated_matrix_units().with_reproducible(true);
        let packed = load_alone(&device, &fixture.path).with_packed_products().with_reproducible(true);
        for (variant, model) in
            [("plainly", plain), ("as by matrix units", matrix_units), ("by packed dot products", packed)]
        {
            let model = Arc::new(model);
            let whole = all_logits(&model, &fixture.ids, 64, kv);
            // One, two, three rows at a time, whichever kernel that many rows would otherwise use.
            let chunks = if testkit::exhaustive() { &[1, 2, 3, 7, 16][..] } else { &[1, 2, 7] };
            for chunk in chunks.iter().copied() {
                let rows = all_logits(&model, &fixture.ids, chunk, kv);
                for (position, (row, expected)) in rows.iter().zip(&whole).enumerate() {
                    assert!(row == expected, "{name} {variant}, chunks of {chunk}, position {position}");
                }
            }
            if fixture.reference.get("greedy").is_some() && kv == KvScheme::F16 {
                in_a_batch_of_others(&fixture, &model, Some(f32::MIN_POSITIVE));
            }
        }
    }
}

/// A key rounded differently by one of them would show: int8 changes these models by far more than is allowed
/// here.
#[test]
fn single_dispatch_attention_stores_the_same_int8_keys_and_values() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in FAMILIES {
        let fixture = Fixture::open(name);
        let decoded = |one_dispatch| {
            let model = Arc::new(load_alone(&device, &fixture.path).with_one_dispatch(one_dispatch));
            let mut runner =
                Runner::new(model, Limits { kv_scheme: KvScheme::Int8, ..limits(1, 64, 16) }).unwrap();
            let mut sequence = runner.start().unwrap();
            let sampling = Sampling::default();
            let prompt = &fixture.ids[..fixture.ids.len() / 2];
            runner.prompt(&mut sequence, prompt, &sampling, |_| true).unwrap();
            // The fixture's own tokens, so that both compute the same sequence.
            let rest = fixture.ids[prompt.len()..].iter();
            rest.map(|token| {
                let next = DecodeRow::new(&mut sequence, *token, &sampling);
                let sampled = runner.decode(&mut [next], 1).unwrap().remove(0).remove(0);
                (sampled.token, sampled.logprob)
            })
            .collect::<Vec<_>>()
        };
        for ((token, logprob), (other_token, other)) in decoded(true).into_iter().zip(decoded(false)) {
            assert_eq!(token, other_token, "{name}");
            assert!((logprob - other).abs() < 1e-4, "{name}: {logprob} and {other}");
        }
    }
}

#[test]
fn decoding_alone_and_in_a_batch_gives_the_same_tokens() {
    let Some(device) = testkit::cpu_device() else { return };
    for (number, name) in FAMILIES.into_iter().chain(["llama_tied", "qwen2_tied"]).enumerate() {
        let fixture = Fixture::open(name);
        // In several dispatches, as on CPU drivers, and in one: each family in turn.
        let both = [false, true];
        let ways = if testkit::exhaustive() { &both[..] } else { &both[number % 2..][..1] };
        for one_dispatch in ways.iter().copied() {
            let model = load_alone(&device, &fixture.path).with_one_dispatch(one_dispatch);
            in_a_batch_of_others(&fixture, &Arc::new(model), None);
        }
    }
}

/// `allowed` is the tolerance of log probabilities between alone and in a batch, where it is more than usual.
fn in_a_batch_of_others(fixture: &Fixture, model: &Arc<Model>, allowed: Option<f32>) {
    let greedy = fixture.list("greedy");
    let sampling = Sampling::default();
    // Alone.
    let alone = |ids: &[u32], count: usize| -> Vec<(u32, f32)> {
        let mut runner = Runner::new(model.clone(), limits(1, 64, 16)).unwrap();
        let mut sequence = runner.start().unwrap();
        let mut sampled = runner.prompt(&mut sequence, ids, &sampling, |_| true).unwrap();
        let mut tokens = vec![(sampled.token, sampled.logprob)];
        while tokens.len() < count {
            let next = DecodeRow::new(&mut sequence, sampled.token, &sampling);
            sampled = runner.decode(&mut [next], 1).unwrap().remove(0).remove(0);
            tokens.push((sampled.token, sampled.logprob));
        }
        tokens
    };
    let expected = alone(&fixture.ids, greedy.len());
    assert_eq!(
        expected.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
        greedy,
        "{}: transformers' own tokens",
        fixture.name
    );

    // In a batch with other lengths, in buckets with unused rows: 3 of 4, then 11 of 16 with the other
    // kernel.
    for others in [2, 10] {
        let mut runner = Runner::new(model.clone(), limits(others + 1, 64, 16)).unwrap();
        let mut sequences = Vec::new();
        let mut tokens = Vec::new();
        for number in 0..=others as usize {
            let ids = if number == 1 { &fixture.ids[..] } else { &fixture.ids[..3 + 2 * number] };
            let mut sequence = runner.start().unwrap();
            tokens.push(vec![runner.prompt(&mut sequence, ids, &sampling, |_| true).unwrap()]);
            sequences.push(sequence);
        }
        for _ in 1..greedy.len() {
            let mut next: Vec<DecodeRow<'_>> = sequences
                .iter_mut()
                .zip(&tokens)
                .map(|(sequence, tokens)| DecodeRow::new(sequence, tokens.last().unwrap().token, &sampling))
                .collect();
            for (tokens, sampled) in tokens.iter_mut().zip(runner.decode(&mut next, 1).unwrap().remove(0)) {
                tokens.push(sampled);
            }
        }
        for (sampled, (token, logprob)) in tokens[1].iter().zip(&expected) {
            assert_eq!(sampled.token, *token, "{} among {others} others", fixture.name);
            let near = (sampled.logprob - logprob).abs() < allowed.unwrap_or(1e-3);
            assert!(near, "{}: {} and {logprob}", fixture.name, sampled.logprob);
        }
        let lone = alone(&fixture.ids[..3], greedy.len());
        assert_eq!(
            tokens[0].iter().map(|sampled| sampled.token).collect::<Vec<_>>(),
            lone.iter().map(|(token, _)| *token).collect::<Vec<_>>()
        );
    }
}
