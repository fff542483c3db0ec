//! The pool of soft tokens: embeddings of the images of running prompts.

use std::time::Duration;

use checkpoint::VisionConfig;
use gpu::{Arena, Buffer, Device, Lifetime, Memory};

use crate::{Error, IMAGE_TOKEN, Image, Result};

/// Soft tokens of the last images, f32, `[image][soft token][hidden size of the language model]`.
pub(crate) struct SoftTokenPool {
    device: Device,
    buffer: Buffer,
    /// Soft tokens per image.
    soft_tokens: u32,
    image_bytes: u64,
    images: Vec<Option<PooledImage>>,
    /// Incremented with every use: the time of least-recently-used eviction.
    clock: u64,
}

struct PooledImage {
    /// Its tokens in a prompt.
    tokens: Vec<u32>,
    used_at: u64,
}

fn image_bytes(config: &VisionConfig) -> u64 {
    u64::from(config.soft_tokens()) * u64::from(config.text_hidden) * 4
}

/// Bytes of a pool.
pub(super) fn bytes(config: &VisionConfig, images: u32) -> u64 {
    image_bytes(config) * u64::from(images)
}

impl SoftTokenPool {
    pub fn new(device: &Device, config: &VisionConfig, images: u32) -> Result<Self> {
        let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 20);
        Ok(Self {
            device: device.clone(),
            buffer: arena.buffer("soft tokens", bytes(config, images))?,
            soft_tokens: config.soft_tokens(),
            image_bytes: image_bytes(config),
            images: (0..images).map(|_| None).collect(),
            clock: 0,
        })
    }

    /// Images that it holds, at most.
    pub fn capacity(&self) -> usize {
        self.images.len()
    }

    /// The soft tokens of all images.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Rows of the buffer.
    pub fn rows(&self) -> usize {
        self.images.len() * self.soft_tokens as usize
    }

    pub fn contains(&self, image: &Image) -> bool {
        self.find(&image.tokens().collect::<Vec<_>>()).is_some()
    }

    fn find(&self, tokens: &[u32]) -> Option<usize> {
        self.images.iter().position(|image| image.as_ref().is_some_and(|image| image.tokens == tokens))
    }

    /// The tokens of a step for these tokens of a prompt, which are one whole image: each with the bit of image tokens,
    /// and else its row of the buffer.
    pub fn rows_of(&self, tokens: &[u32]) -> Result<impl Iterator<Item = u32> + use<>> {
        let slot = self.find(tokens).ok_or_else(|| {
            let text =
                "an image that is cut in two, or has not been encoded: encode it, and prefill it whole";
            Error::Limits(text.into())
        })?;
        let first = slot as u32 * self.soft_tokens;
        Ok((first..first + self.soft_tokens).map(|row| IMAGE_TOKEN | row))
    }

    /// Marks images as used now, so that others are evicted before them.
    pub fn touch(&mut self, images: &[Image]) {
        self.clock += 1;
        for image in images {
            let tokens: Vec<u32> = image.tokens().collect();
            if let Some(slot) = self.find(&tokens)
                && let Some(pooled) = &mut self.images[slot]
            {
                pooled.used_at = self.clock;
            }
        }
    }

    /// Copies the soft tokens of images that follow each other in `soft`. The least recently used images make room.
    pub fn insert(&mut self, images: &[Image], soft: &Buffer, timeout: Duration) -> Result<()> {
        let mut recorder = self.device.recorder()?;
        for (index, image) in (0..).zip(images) {
            let age = |slot: &usize| self.images[*slot].as_ref().map(|image| image.used_at);
            let Some(slot) = (0..self.images.len()).min_by_key(age) else { continue };
            let part = |index: u64| index * self.image_bytes..(index + 1) * self.image_bytes;
            recorder.copy("soft tokens", soft.slice(part(index))?, self.buffer.slice(part(slot as u64))?)?;
            self.images[slot] = Some(PooledImage { tokens: image.tokens().collect(), used_at: self.clock });
        }
        Ok(recorder.seal()?.run(timeout)?)
    }
}
