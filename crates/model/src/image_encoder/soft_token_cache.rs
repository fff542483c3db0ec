//! The cache of soft tokens: embeddings of the images of running prompts.

use std::time::Duration;

use checkpoint::VisionConfig;
use gpu::{Arena, Buffer, Device, Lifetime, Memory};

use crate::{Error, IMAGE_TOKEN, Image, Result};

/// Soft tokens of recently used images, f32, `[slot][soft token][hidden size of the language model]`. A slot has room for
/// an image of the largest size.
pub(crate) struct SoftTokenCache {
    device: Device,
    buffer: Buffer,
    /// Soft tokens per slot.
    slot_rows: u32,
    /// Bytes of a soft token.
    row_bytes: u64,
    images: Vec<Option<CachedImage>>,
    /// Incremented with every use: the time of least-recently-used eviction.
    clock: u64,
}

struct CachedImage {
    /// Its tokens in a prompt.
    tokens: Vec<u32>,
    used_at: u64,
}

/// Bytes of a cache.
pub(super) fn bytes(config: &VisionConfig, images: u32) -> u64 {
    u64::from(config.max_soft_tokens()) * u64::from(config.text_hidden) * 4 * u64::from(images)
}

impl SoftTokenCache {
    pub fn new(device: &Device, config: &VisionConfig, images: u32) -> Result<Self> {
        let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(1 << 20);
        Ok(Self {
            device: device.clone(),
            buffer: arena.buffer("soft tokens", bytes(config, images))?,
            slot_rows: config.max_soft_tokens(),
            row_bytes: u64::from(config.text_hidden) * 4,
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
        self.images.len() * self.slot_rows as usize
    }

    pub fn contains(&self, image: &Image) -> bool {
        self.find(&image.tokens().collect::<Vec<_>>()).is_some()
    }

    fn find(&self, tokens: &[u32]) -> Option<usize> {
        self.images.iter().position(|image| image.as_ref().is_some_and(|image| image.tokens == tokens))
    }

    /// The step's tokens for these prompt tokens, which are one whole image: `IMAGE_TOKEN | row of the buffer`.
    pub fn rows_of(&self, tokens: &[u32]) -> Result<impl Iterator<Item = u32> + use<>> {
        let slot = self.find(tokens).ok_or_else(|| {
            let text =
                "an image that is cut in two, or has not been encoded: encode it, and prefill it whole";
            Error::Limits(text.into())
        })?;
        let first = slot as u32 * self.slot_rows;
        Ok((first..first + tokens.len() as u32).map(|row| IMAGE_TOKEN | row))
    }

    /// Marks images as used now, so that others are evicted before them.
    pub fn touch(&mut self, images: &[Image]) {
        self.clock += 1;
        for image in images {
            let tokens: Vec<u32> = image.tokens().collect();
            if let Some(slot) = self.find(&tokens)
                && let Some(cached) = &mut self.images[slot]
            {
                cached.used_at = self.clock;
            }
        }
    }

    /// Copies the soft tokens of images that follow each other in `soft`. The least recently used images make room; of
    /// those that are copied, the ones in `needed` count as used now.
    pub fn insert(
        &mut self,
        images: &[Image],
        needed: &[Image],
        soft: &Buffer,
        timeout: Duration,
    ) -> Result<()> {
        let mut recorder = self.device.recorder()?;
        let mut inserted: Vec<(usize, CachedImage)> = vec![];
        let mut first_row = 0;
        for image in images {
            let age = |slot: &usize| self.images[*slot].as_ref().map(|image| image.used_at);
            let is_free = |slot: &usize| inserted.iter().all(|(taken, _)| taken != slot);
            let Some(slot) = (0..self.images.len()).filter(is_free).min_by_key(age) else { break };
            let rows = u64::from(image.soft_tokens());
            let part = |row: u64| row * self.row_bytes..(row + rows) * self.row_bytes;
            let to = part(slot as u64 * u64::from(self.slot_rows));
            recorder.copy("soft tokens", soft.slice(part(first_row))?, self.buffer.slice(to)?)?;
            first_row += rows;
            let is_needed = needed.iter().any(|other| other.id() == image.id());
            let used_at = if is_needed { self.clock } else { self.clock.saturating_sub(1) };
            inserted.push((slot, CachedImage { tokens: image.tokens().collect(), used_at }));
        }
        // If the copy fails, these slots hold nothing.
        inserted.iter().for_each(|(slot, _)| self.images[*slot] = None);
        recorder.seal()?.run(timeout)?;
        inserted.into_iter().for_each(|(slot, image)| self.images[slot] = Some(image));
        Ok(())
    }

    /// Forgets all images.
    pub fn clear(&mut self) {
        self.images.fill_with(|| None);
    }
}
