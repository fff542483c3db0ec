//! `indrik bench --images`: encoding images, and the time to first token of a prompt with images beside that of a text
//! prompt of the same length.

use std::{process::ExitCode, sync::Arc, time::Duration, time::Instant};

use checkpoint::VisionConfig;
use gpu::Device;
use images::{ContentHash, Picture};
use model::{EncoderLimits, Image, ImageProcessor, Limits, Model, Runner, Sampling};
use serde::Serialize;
use serde_json::json;
use tensor::Scheme;

use super::speed::{Plan, tokens};
use crate::output;

/// Tokens around an image in a prompt.
const TEXT_TOKENS: usize = 8;

/// Width and height of the picture in pixels.
const PICTURE_SIDE: u32 = 896;

/// Enough for all layers of all images.
const WHOLE: Duration = Duration::from_secs(3600);

/// One line of the table; medians.
#[derive(Clone, Debug, Serialize)]
struct Line {
    images: usize,
    /// From patches in system memory to soft tokens in device memory.
    encode_ms: f64,
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// Time to first token, encoding included.
    ttft_ms: f64,
    /// Time to first token of as many text tokens.
    text_ttft_ms: f64,
}

/// Measures and prints every number of images.
pub fn run(
    device: &Device,
    name: &str,
    model: &Arc<Model>,
    (vision, scheme): (VisionConfig, Scheme),
    counts: &[usize],
    plan: &Plan,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let info = device.info();
    let soft_tokens = vision.max_soft_tokens();
    let most = counts.iter().copied().max().unwrap_or(1);
    let context = (most * (soft_tokens as usize + TEXT_TOKENS) + TEXT_TOKENS) as u32;
    let limits = Limits::new(info, &model.config, 1, context.min(model.config.max_positions));
    let limits = Limits { kv_scheme: plan.kv, ..limits.with_images(soft_tokens) };
    let encoder_limits = EncoderLimits::new(&vision, info.local_memory(), limits.prefill_chunk);
    let cached_images = encoder_limits.cached_images.max(most as u32);
    let encoder_limits = EncoderLimits { cached_images, ..encoder_limits };
    let mut runner =
        Runner::new(model.clone(), limits)?.with_random_encoder(vision, scheme, encoder_limits)?;
    let mut progress = output::Progress::new();
    let mut lines = vec![];
    for count in counts {
        progress.show(&format!("{count} images"));
        lines.push(measure(&mut runner, *count, plan.repeats)?);
    }
    let mut profile = None;
    let profiled_images = most.min(encoder_limits.max_images as usize);
    if plan.profile {
        progress.show("profile");
        runner.profile_images(profiled_images)?;
        profile = Some(runner.profile_images(profiled_images)?);
    }
    drop(progress);
    let kernels: Vec<_> = profile.iter().flat_map(|profile| &profile.kernels).collect();
    if json {
        let kernels = kernels.iter().map(|share| {
            json!({ "name": share.name, "count": share.count, "milliseconds": share.nanoseconds / 1e6 })
        });
        output::print_json(&json!({
            "device": info.name, "driver": info.driver, "model": name, "encoder": scheme.to_string(), "images_together": encoder_limits.max_images,
            "images": lines, "profiled_images": profile.as_ref().map(|_| profiled_images), "kernels": kernels.collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!(
        "{}, {}\n{name}, random weights, encoder in {scheme}, up to {} images encoded together\n\n\
         images   encode   tokens   time to first token   text of the same length\n",
        info.name, info.driver, encoder_limits.max_images
    );
    for line in &lines {
        text += &format!(
            "{:>6} {:>5.1} ms {:>8} {:>18.1} ms {:>23.1} ms\n",
            line.images, line.encode_ms, line.prompt_tokens, line.ttft_ms, line.text_ttft_ms
        );
    }
    if !kernels.is_empty() {
        text += &format!("\nBy kernel, images encoded together: {profiled_images}\n");
    }
    for share in kernels {
        text += &format!("{:>10.2} ms  {:>4} × {}\n", share.nanoseconds / 1e6, share.count, share.name);
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(runner: &mut Runner, count: usize, repeats: usize) -> anyhow::Result<Line> {
    let (mut encode, mut with_images, mut with_text) = (vec![], vec![], vec![]);
    let mut prompt_tokens = 0;
    // The first two runs are warm-ups: programs are recorded, and layers timed.
    for number in 0..repeats + 2 {
        let images = new_images(runner, count, number as u8);
        let vocab = runner.model().config.vocab;
        let mut prompt = tokens(TEXT_TOKENS as u32, vocab);
        for image in &images {
            prompt.extend(image.tokens());
            prompt.extend(tokens(TEXT_TOKENS as u32, vocab));
        }
        prompt_tokens = prompt.len();
        let start = Instant::now();
        runner.encode(&images, WHOLE)?;
        let encoded = start.elapsed();
        first_token(runner, &prompt)?;
        let (total, start) = (start.elapsed(), Instant::now());
        first_token(runner, &tokens(prompt_tokens as u32, vocab))?;
        if number >= 2 {
            encode.push(encoded);
            with_images.push(total);
            with_text.push(start.elapsed());
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    Ok(Line {
        images: count,
        encode_ms: median(encode),
        prompt_tokens,
        ttft_ms: median(with_images),
        text_ttft_ms: median(with_text),
    })
}

fn first_token(runner: &mut Runner, prompt: &[u32]) -> anyhow::Result<()> {
    let mut sequence = runner.start()?;
    runner.prompt(&mut sequence, prompt, &Sampling::default(), |_| true)?;
    Ok(())
}

/// Images that were not encoded before, of a square picture.
fn new_images(runner: &Runner, count: usize, run: u8) -> Vec<Image> {
    let Some(encoder) = runner.encoder() else { return vec![] };
    let pixels = (0..PICTURE_SIDE * PICTURE_SIDE * 3).map(|index| (index * 31 % 251) as u8).collect();
    let picture = Picture::new(PICTURE_SIDE, PICTURE_SIDE, pixels).expect("as many pixels as that");
    let image = ImageProcessor::new(encoder.config()).process(&picture).remove(0);
    let with_id = |number: usize| {
        let mut id = [run; 32];
        id[..8].copy_from_slice(&(number as u64).to_le_bytes());
        image.with_id(ContentHash(id))
    };
    (0..count).map(with_id).collect()
}
