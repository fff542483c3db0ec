//! Images of prompts: from a file to what a model's encoder takes.

use std::{fs::File, io::Read, path::Path};

use engine::{Image, ImageProcessor, join_images};
use images::Limits;
use model::language::Language;

use crate::{Error, Result};

/// Reads images for a model. Takes tens of milliseconds per image.
#[derive(Clone, Debug)]
pub struct ImageReader {
    processor: ImageProcessor,
    limits: Limits,
}

/// An image of a prompt: decoded, resized and, with pan-and-scan, with its crops.
#[derive(Clone, Debug)]
pub struct PromptImage {
    width: u32,
    height: u32,
    /// Itself and its crops.
    images: Vec<Image>,
}

/// Equal images have the same pixels and crops.
impl PartialEq for PromptImage {
    fn eq(&self, other: &Self) -> bool {
        self.images.iter().map(Image::id).eq(other.images.iter().map(Image::id))
    }
}

impl Eq for PromptImage {}

impl ImageReader {
    /// The reader for a model; an error if it takes no images.
    pub fn new(language: &Language) -> Result<Self> {
        match &language.images {
            Ok(processor) => Ok(Self { processor: processor.clone(), limits: Limits::default() }),
            Err(reason) => Err(Error::ImagesUnsupported { reason: reason.clone() }),
        }
    }

    /// With additional crops of wide or tall images, so that details are not lost. Each crop takes as many tokens as
    /// the whole image. An error if the model's images keep their shape.
    pub fn with_pan_and_scan(mut self) -> Result<Self> {
        self.processor = self.processor.with_pan_and_scan().map_err(|reason| Error::PanAndScan { reason })?;
        Ok(self)
    }

    /// Reads a PNG, JPEG, WebP, GIF or BMP file.
    pub fn read(&self, path: &Path) -> Result<PromptImage> {
        let failed = |reason: String| Error::Image { path: path.to_owned(), reason };
        let file = File::open(path).map_err(|error| failed(error.to_string()))?;
        let is_file = file.metadata().map_err(|error| failed(error.to_string()))?.is_file();
        if !is_file {
            return Err(failed("it is not a file".to_owned()));
        }
        let mut bytes = vec![];
        // A larger file is an error of `decode`.
        let limited = file.take(self.limits.max_bytes + 1).read_to_end(&mut bytes);
        limited.map_err(|error| failed(error.to_string()))?;
        self.decode(&bytes).map_err(|error| failed(error.to_string()))
    }

    /// Decodes the bytes of a file.
    pub fn decode(&self, bytes: &[u8]) -> Result<PromptImage, images::Error> {
        let picture = images::decode(bytes, &self.limits)?;
        let (width, height) = (picture.width(), picture.height());
        Ok(PromptImage { width, height, images: self.processor.process(&picture) })
    }
}

impl PromptImage {
    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Number of crops, which are encoded besides the image itself.
    pub fn crops(&self) -> usize {
        self.images.len().saturating_sub(1)
    }

    /// Tokens of the image and its crops in a prompt, without the text around them.
    pub fn tokens(&self) -> usize {
        self.images.iter().map(|image| image.soft_tokens() as usize).sum()
    }

    /// The images that the engine takes.
    pub(crate) fn images(all: &[Self]) -> Vec<Image> {
        all.iter().flat_map(|image| image.images.iter().cloned()).collect()
    }

    pub(crate) fn counts(all: &[Self]) -> Vec<usize> {
        all.iter().map(|image| image.images.len()).collect()
    }

    /// A prompt of text and images as tokens. The images are in front of the text, or where it has as many
    /// `<start_of_image>` as there are images.
    pub fn encode_prompt(language: &Language, text: &str, images: &[Self]) -> Result<Vec<u32>> {
        let pieces = language.tokenizer.encode_prompt_with_images(text, &Self::counts(images))?;
        Ok(join_images(&pieces, &Self::images(images)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use model::image_blocks;
    use text::DecodeSpecial;

    use super::*;
    use crate::ModelFiles;

    fn fixture(name: &str) -> Language {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
        ModelFiles::open(fixtures.join(name).to_str().unwrap()).unwrap().language().unwrap()
    }

    /// Tokenizer, template and image processor of a tiny model with an image encoder.
    pub(crate) fn vision_language() -> Language {
        fixture("gemma3_vision_gguf/model.gguf")
    }

    /// A BMP file of one colour.
    pub(crate) fn bmp(width: u32, height: u32, colour: u8) -> Vec<u8> {
        let pixels = (width * 3).div_ceil(4) * 4 * height;
        let mut bytes = b"BM".to_vec();
        for number in [54 + pixels, 0, 54, 40, width, height, 24 << 16 | 1, 0, pixels, 0, 0, 0, 0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(std::iter::repeat_n(colour, pixels as usize));
        bytes
    }

    #[test]
    fn files_become_blocks_of_a_prompt() {
        let language = vision_language();
        let reader = ImageReader::new(&language).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bmp");
        std::fs::write(&path, bmp(40, 20, 7)).unwrap();
        let image = reader.read(&path).unwrap();
        assert_eq!((image.width(), image.height(), image.crops(), image.tokens()), (40, 20, 0, 4));
        let prompt = PromptImage::encode_prompt(&language, "x", &[image.clone(), image.clone()]).unwrap();
        assert_eq!(image_blocks(&prompt).map(|block| block.len()).collect::<Vec<_>>(), [4, 4]);
        let text = language.tokenizer.decode(&prompt, DecodeSpecial::Keep);
        let around = "\n\n<start_of_image><end_of_image>\n\n";
        assert_eq!(text, format!("<bos>{around}{around}x"));
        // Crops are images of their own.
        let wide = reader.with_pan_and_scan().unwrap().decode(&bmp(600, 300, 7)).unwrap();
        assert_eq!((wide.crops(), wide.tokens()), (2, 12));
        let prompt = PromptImage::encode_prompt(&language, "x", &[wide]).unwrap();
        assert_eq!(image_blocks(&prompt).count(), 3);
    }

    #[test]
    fn errors_say_which_image_and_why() {
        let reader = ImageReader::new(&vision_language()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let damaged = folder.path().join("damaged.bmp");
        std::fs::write(&damaged, &bmp(40, 20, 7)[..60]).unwrap();
        for (path, part) in [
            (damaged.as_path(), "BMP"),
            (folder.path(), "it is not a file"),
            (Path::new("/dev/zero"), "it is not a file"),
            (Path::new("no-such-image.png"), "No such file"),
            (Path::new("Cargo.toml"), "neither PNG"),
        ] {
            let error = reader.read(path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot read the image {}: ", path.display())), "{error}");
            assert!(error.contains(part), "{error}");
        }
        let error = ImageReader::new(&fixture("gguf_q8_0/model.gguf")).unwrap_err().to_string();
        assert!(error.starts_with("images cannot be used: the model has no image encoder"), "{error}");
    }
}
