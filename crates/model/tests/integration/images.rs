//! Images in the prompt, against the transformers package on tiny multimodal models: the encoder's output, soft tokens,
//! and logits with a mask that lets the tokens of an image see each other.

use std::{path::PathBuf, sync::Arc, time::Duration};

use checkpoint::{Checkpoint, EncoderKind, Vision};
use gpu::Device;
use images::{ContentHash, Patches};
use kernels::Activations;
use model::{
    DecodeRow, EncoderLimits, EncoderLoadOptions, Image, KvScheme, Limits, LoadOptions, Runner, Sampling,
};
use serde_json::Value;
use weights::stream::{Control, Options};

use crate::common::{difference, limits, placement};

const NAMES: [&str; 8] = [
    "gemma3_vision_older",
    "gemma3_vision_newer",
    "gemma3_vision_gguf",
    "gemma4_vision_tower",
    "gemma4_vision_clipped",
    "gemma4_vision_gguf",
    "gemma4_vision_unified",
    "gemma4_vision_unified_gguf",
];

/// Enough for all layers.
const WHOLE: Duration = Duration::from_secs(3600);

/// Many pages so small that blocks cross them, and chunks that could cut images.
const ENCODER_LIMITS: EncoderLimits = EncoderLimits { max_images: 2, cached_images: 3 };

pub struct VisionFixture {
    name: &'static str,
    folder: PathBuf,
    reference: Value,
    checkpoint: Checkpoint,
    pub vision: Vision,
}

/// A prompt of the fixture.
struct Case {
    name: String,
    tokens: Vec<u32>,
    images: Vec<Image>,
    positions: Vec<usize>,
    causal_positions: Vec<usize>,
    /// The first row of the case in the files of logits.
    first: usize,
    first_causal: usize,
}

impl VisionFixture {
    pub fn open(name: &'static str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let reference = std::fs::read_to_string(folder.join("reference.json")).unwrap();
        let file = folder.join("model.gguf");
        let checkpoint = Checkpoint::open(if file.exists() { &file } else { &folder }).unwrap();
        let vision = checkpoint.vision().unwrap().unwrap();
        Self { name, reference: serde_json::from_str(&reference).unwrap(), checkpoint, vision, folder }
    }

    fn floats(&self, file: &str) -> Vec<f32> {
        let bytes = std::fs::read(self.folder.join(file)).unwrap();
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn number(&self, key: &str) -> usize {
        self.reference[key].as_u64().unwrap() as usize
    }

    /// The images; ids of other images differ.
    pub fn images(&self) -> Vec<Image> {
        let values = self.number("patch_values");
        let pixels = self.floats("pixels.bin");
        let mut rest = &pixels[..];
        let pooled = self.vision.config.pooled_patches.pow(2);
        let image = |(number, [columns, rows]): (usize, [u32; 2])| {
            let (own, others) = rest.split_at((columns * rows) as usize * values);
            rest = others;
            let patches = Patches::from_values(columns, rows, values, own.to_vec()).unwrap();
            Image::new(Arc::new(patches), id(number as u8), columns * rows / pooled)
        };
        self.grids().into_iter().enumerate().map(image).collect()
    }

    /// Columns and rows of patches of each image.
    fn grids(&self) -> Vec<[u32; 2]> {
        match self.vision.config.encoder {
            EncoderKind::Siglip { image_size, .. } => {
                vec![[image_size / self.vision.config.patch_size; 2]; self.number("images")]
            }
            _ => serde_json::from_value(self.reference["grids"].clone()).unwrap(),
        }
    }

    /// Files with the logits of wrong masks.
    fn wrong_masks(&self) -> Vec<Vec<f32>> {
        let files = ["causal_logits.bin", "whole_logits.bin"].into_iter();
        files.filter(|file| self.folder.join(file).exists()).map(|file| self.floats(file)).collect()
    }

    fn cases(&self) -> Vec<Case> {
        let images = self.images();
        let soft_token = self.number("soft_token") as u64;
        let (mut first, mut first_causal) = (0, 0);
        let case = |case: &Value| {
            let numbers = |key: &str| -> Vec<usize> {
                case[key].as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
            };
            let images: Vec<Image> = numbers("images").iter().map(|number| images[*number].clone()).collect();
            let mut soft_tokens = images.iter().flat_map(Image::tokens);
            let ids = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
            let tokens = ids.map(|id| if id == soft_token { soft_tokens.next().unwrap() } else { id as u32 });
            let tokens = tokens.collect();
            let (positions, causal_positions) = (numbers("positions"), numbers("causal_positions"));
            let starts = (first, first_causal);
            first += positions.len();
            first_causal += causal_positions.len();
            let name = format!("{} {}", self.name, case["name"]);
            Case {
                name,
                tokens,
                images,
                positions,
                causal_positions,
                first: starts.0,
                first_causal: starts.1,
            }
        };
        self.reference["cases"].as_array().unwrap().iter().map(case).collect()
    }

    pub fn runner(&self, device: &Device, limits: Limits) -> Runner {
        let encoder =
            EncoderLoadOptions { vision: &self.vision, limits: ENCODER_LIMITS, memory: gpu::Memory::Device };
        let options = LoadOptions {
            placement: &placement(device, &self.checkpoint),
            limits,
            reproducible: false,
            row_invariant: false,
            verify: model::VerifySteps::None,
            samplings: &[],
            stream: Options { slot_bytes: 1 << 20, slots: 2, threads: 1, ..Options::default() },
            encoder: Some(encoder),
        };
        Runner::load(device, &self.checkpoint, &options, &Control::default()).unwrap().0
    }
}

fn id(number: u8) -> ContentHash {
    ContentHash([number + 1; 32])
}

pub fn f32_limits(sequences: u32, chunk: u32) -> Limits {
    Limits { kv_scheme: KvScheme::F32, ..limits(sequences, 64, chunk) }
}

pub fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| largest.max(value.abs()))
}

fn logits(runner: &mut Runner, case: &Case) -> Vec<Vec<f32>> {
    assert!(runner.encode(&case.images, WHOLE).unwrap());
    let mut sequence = runner.start().unwrap();
    let mut rows = vec![];
    let each = |row: &[f32]| {
        rows.push(row.to_vec());
        Ok(())
    };
    runner.logits(&mut sequence, &case.tokens, each).unwrap();
    rows
}

#[test]
fn encoded_images_match_transformers() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in NAMES {
        let fixture = VisionFixture::open(name);
        let images = fixture.images();
        let mut runner = fixture.runner(&device, f32_limits(1, 16));
        assert!(runner.encode(&images, WHOLE).unwrap());
        let (encoded, soft) = runner.encoder().unwrap().read_encoded().unwrap();
        for (what, got, file) in
            [("encoded", &encoded, "encoded.bin"), ("soft tokens", &soft, "soft_tokens.bin")]
        {
            let expected = fixture.floats(file);
            // Only one image was stored of some.
            let worst = difference(&got[..expected.len()], &expected);
            println!("{name}, {what}: {worst:.1e}, largest value {:.1}", largest(&expected));
            assert!(worst <= 1e-3, "{name}, {what}: {worst}");
        }
        // Alone, and in another place of the batch, an image has the same soft tokens.
        let mut alone = fixture.runner(&device, f32_limits(1, 16));
        assert!(alone.encode(&images[1..], WHOLE).unwrap());
        let (_, soft_alone) = alone.encoder().unwrap().read_encoded().unwrap();
        let [first, second] = [0, 1].map(|number| images[number].soft_tokens() as usize);
        let width = fixture.number("text_hidden");
        assert_eq!(soft_alone[..second * width], soft[first * width..][..second * width], "{name}");
        // So does another one after it, which may have another shape.
        assert!(alone.encode(&images[..1], WHOLE).unwrap());
        let (_, soft_alone) = alone.encoder().unwrap().read_encoded().unwrap();
        assert_eq!(soft_alone[..first * width], soft[..first * width], "{name}");
    }
}

/// Products and attention on matrix units, which the CPU driver emulates.
#[test]
fn f16_activations_change_soft_tokens_little() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in NAMES {
        let fixture = VisionFixture::open(name);
        let images = fixture.images();
        let mut runner = fixture.runner(&device, f32_limits(1, 16)).with_emulated_encoder().unwrap();
        assert!(runner.encode(&images, WHOLE).unwrap());
        let encoder = runner.encoder().unwrap();
        assert_eq!(encoder.activations(), Activations::F16, "{name}");
        let (_, soft) = encoder.read_encoded().unwrap();
        let expected = fixture.floats("soft_tokens.bin");
        let worst = difference(&soft[..expected.len()], &expected) / largest(&expected);
        println!("{name}: {worst:.1e} of the largest soft token");
        // A smaller difference would mean that it was not f16.
        assert!((1e-5..1e-2).contains(&worst), "{name}: {worst}");
    }
}

#[test]
fn logits_with_images_match_transformers_for_any_chunk() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in NAMES {
        let fixture = VisionFixture::open(name);
        let (expected, wrong_masks) = (fixture.floats("logits.bin"), fixture.wrong_masks());
        assert!(!wrong_masks.is_empty());
        let vocab = fixture.number("vocab");
        let largest = largest(&expected);
        // The shortest chunks hold two images, or one and text.
        for chunk in [64, 1] {
            let limits = f32_limits(1, chunk).with_images(fixture.vision.config.max_soft_tokens());
            let mut runner = fixture.runner(&device, limits);
            for case in fixture.cases() {
                let rows = logits(&mut runner, &case);
                let mut worst = 0.0_f32;
                for (index, position) in (case.first..).zip(&case.positions) {
                    let expected = &expected[index * vocab..][..vocab];
                    worst = worst.max(difference(&rows[*position], expected));
                }
                println!("{}, chunks of {chunk}: {:.1e} of the largest logit", case.name, worst / largest);
                assert!(worst <= 2e-4 * largest, "{}, chunks of {chunk}: {worst} of {largest}", case.name);
                // With another mask the test would fail: causal, or whole images in layers where they are not seen.
                for wrong in &wrong_masks {
                    let differences =
                        (case.first_causal..).zip(&case.causal_positions).map(|(index, position)| {
                            difference(&rows[*position], &wrong[index * vocab..][..vocab])
                        });
                    let difference = differences.fold(0.0, f32::max) / largest;
                    println!("{}: {difference:.1e} with another mask", case.name);
                    assert!(difference > 1e-2, "{}", case.name);
                }
            }
        }
    }
}

#[test]
fn the_prefix_cache_knows_images_by_their_content() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = VisionFixture::open("gemma3_vision_older");
    let mut runner = fixture.runner(&device, f32_limits(2, 16));
    let two = fixture.cases().remove(1);
    let sampling = Sampling::default();
    let first = |runner: &mut Runner, tokens: &[u32]| {
        let mut sequence = runner.start_with(tokens).unwrap();
        let cached = sequence.len() as usize;
        runner.encode(&two.images, WHOLE).unwrap();
        (cached, runner.prompt(&mut sequence, &tokens[cached..], &sampling, |_| true).unwrap())
    };
    let (cached, alone) = first(&mut runner, &two.tokens);
    assert_eq!(cached, 0);
    // The last token is always computed.
    let (cached, again) = first(&mut runner, &two.tokens);
    assert_eq!((cached, &again), (two.tokens.len() - 1, &alone));
    // Another image in one's place: only what is before it is known.
    let blocks: Vec<_> = model::image_blocks(&two.tokens).collect();
    let swapped = |images: [usize; 2]| -> Vec<u32> {
        let images = images.map(|number| two.images[number].tokens().collect::<Vec<_>>());
        let mut tokens = two.tokens.clone();
        for (block, image) in blocks.iter().zip(images) {
            tokens[block.clone()].copy_from_slice(&image);
        }
        tokens
    };
    let (cached, other) = first(&mut runner, &swapped([1, 0]));
    assert_eq!(cached, blocks[0].start);
    assert_ne!(other.logprob, alone.logprob);
    let (cached, _) = first(&mut runner, &swapped([0, 0]));
    assert_eq!(cached, blocks[1].start);
}

#[test]
fn other_sequences_decode_while_an_image_is_encoded() {
    let Some(device) = testkit::cpu_device() else { return };
    for name in ["gemma3_vision_older", "gemma4_vision_clipped"] {
        let fixture = VisionFixture::open(name);
        let case = fixture.cases().remove(0);
        let expected = logits(&mut fixture.runner(&device, f32_limits(1, 16)), &case);
        let mut runner = fixture.runner(&device, f32_limits(2, 16));
        let sampling = Sampling::default();
        let mut text = runner.start().unwrap();
        let mut token = runner.prompt(&mut text, &[2, 5, 7], &sampling, |_| true).unwrap().token;
        let mut calls = 1;
        while !runner.encode(&case.images, Duration::ZERO).unwrap() {
            token = runner.decode(&mut [DecodeRow::new(&mut text, token, &sampling)], 1).unwrap()[0][0].token;
            calls += 1;
        }
        assert_eq!(calls, fixture.vision.config.layers(), "one layer at a time");
        assert_eq!(logits(&mut runner, &case), expected);
    }
}

/// While a batch is encoded, the patches of the next one are staged.
#[test]
fn staged_patches_are_used_only_for_their_own_batch() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = VisionFixture::open("gemma4_vision_clipped");
    let two = fixture.cases().remove(1);
    let expected = logits(&mut fixture.runner(&device, f32_limits(1, 16)), &two);
    let [first, second] = [0, 1].map(|number| two.images[number].clone());
    let others =
        [10, 11].map(|number| Image::new(Arc::new(first.patches().clone()), id(number), first.soft_tokens()));
    let [other, another] = others.clone();
    // The second image is encoded from staging memory.
    let mut runner = fixture.runner(&device, f32_limits(1, 16));
    assert!(runner.encode(&[other, another, second], WHOLE).unwrap());
    assert_eq!(logits(&mut runner, &two), expected);
    // The first is staged for a batch of its own, which never starts: the next one is of both.
    let mut runner = fixture.runner(&device, f32_limits(1, 16));
    let [other, another] = others.clone();
    assert!(!runner.encode(&[other, another, first], Duration::ZERO).unwrap());
    while !runner.encode(&others, Duration::ZERO).unwrap() {}
    assert_eq!(logits(&mut runner, &two), expected);
}

#[test]
fn images_that_cannot_be_prefilled_are_errors() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = VisionFixture::open("gemma3_vision_older");
    let case = fixture.cases().remove(0);
    let mut runner = fixture.runner(&device, f32_limits(1, 16));
    let sampling = Sampling::default();
    let prompt = |runner: &mut Runner, tokens: &[u32]| {
        let mut sequence = runner.start().unwrap();
        runner.prompt(&mut sequence, tokens, &sampling, |_| true).map(|sampled| sampled.token)
    };
    let error = prompt(&mut runner, &case.tokens).unwrap_err().to_string();
    assert!(error.contains("not been encoded"), "{error}");
    runner.encode(&case.images, WHOLE).unwrap();
    let expected = prompt(&mut runner, &case.tokens).unwrap();
    let error = prompt(&mut runner, &case.tokens[..4]).unwrap_err().to_string();
    assert!(error.contains("cut in two"), "{error}");
    // Others take its place in the pool; it can be encoded again.
    let image = &case.images[0];
    let others =
        (10..14).map(|number| Image::new(Arc::new(image.patches().clone()), id(number), image.soft_tokens()));
    let others: Vec<Image> = others.collect();
    assert!(runner.encode(&others, WHOLE).unwrap_err().to_string().contains("at most 3"));
    assert!(runner.encode(&others[..3], WHOLE).unwrap());
    assert!(prompt(&mut runner, &case.tokens).is_err());
    assert!(runner.encode(&case.images, WHOLE).unwrap());
    assert_eq!(prompt(&mut runner, &case.tokens).unwrap(), expected);
    // Patches of another size.
    let wrong = Patches::from_values(1, 1, 3, vec![0.0; 3]).unwrap();
    let wrong = Image::new(Arc::new(wrong), id(20), image.soft_tokens());
    assert!(runner.encode(&[wrong], WHOLE).unwrap_err().to_string().contains("this model takes"));
}
