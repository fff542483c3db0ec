//! `--image`: images of a prompt.

use std::path::PathBuf;

use clap::Args;
use indrik::{ImageReader, Language, PromptImage};

/// Images of a prompt; shared by `chat`, `run` and `generate`.
#[derive(Args, Clone)]
pub struct ImageArguments {
    /// Image for the prompt or the first message, for models with an image encoder: PNG, JPEG, WebP, GIF or BMP;
    /// repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "no_images")]
    image: Vec<PathBuf>,
    /// Also encode up to four crops of wide or tall images: more detail, more prompt tokens
    #[arg(long)]
    pub pan_and_scan: bool,
}

impl ImageArguments {
    /// Reads the images.
    pub fn read(&self, language: &Language) -> anyhow::Result<Vec<PromptImage>> {
        if self.image.is_empty() {
            return Ok(vec![]);
        }
        let reader = reader(language, self.pan_and_scan)?;
        self.image.iter().map(|path| Ok(reader.read(path)?)).collect()
    }
}

/// Reads images for a model.
pub fn reader(language: &Language, pan_and_scan: bool) -> indrik::Result<ImageReader> {
    let reader = ImageReader::new(language)?;
    if pan_and_scan { reader.with_pan_and_scan() } else { Ok(reader) }
}
