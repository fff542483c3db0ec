//! Images of a prompt.
//!
//! An image is a block of tokens in the prompt, one per soft token of the image encoder. Their ids are not in the
//! vocabulary: the bit [`IMAGE_TOKEN`] is set, and the other bits come from the hash of the image, so that the prefix cache
//! identifies images by content. Between two images there is always text, such as the token that ends an image: a block is
//! a maximal run of image tokens.

use std::{fmt, ops::Range, sync::Arc};

use checkpoint::{EncoderKind, VisionConfig};
use images::{ContentHash, Gemma3, Gemma4, Normalization, PanAndScan, PatchOrder, Patches, Picture};

/// The bit that image tokens have, and no token of a vocabulary.
pub const IMAGE_TOKEN: u32 = kernels::soft_tokens::SOFT_TOKEN;

/// Whether a token of a prompt belongs to an image.
pub fn is_image_token(token: u32) -> bool {
    token & IMAGE_TOKEN != 0
}

/// The blocks of image tokens among these tokens, in order.
pub fn image_blocks(tokens: &[u32]) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    let runs = tokens.chunk_by(|one, next| is_image_token(*one) == is_image_token(*next));
    runs.filter_map(move |run| {
        let start = end;
        end += run.len();
        is_image_token(run[0]).then_some(start..end)
    })
}

/// The largest length up to `len` that does not end inside an image.
pub fn floor_image_boundary(tokens: &[u32], len: usize) -> usize {
    let len = len.min(tokens.len());
    let is_inside =
        len > 0 && len < tokens.len() && is_image_token(tokens[len - 1]) && is_image_token(tokens[len]);
    match is_inside {
        true => tokens[..len].iter().rposition(|token| !is_image_token(*token)).map_or(0, |last| last + 1),
        false => len,
    }
}

/// A prompt: the tokens of each image between two pieces of text. There is one piece more than images.
pub fn join_images(pieces: &[Vec<u32>], images: &[Image]) -> Vec<u32> {
    debug_assert_eq!(pieces.len(), images.len() + 1, "one image between each two pieces");
    let soft_tokens: usize = images.iter().map(|image| image.soft_tokens as usize).sum();
    let mut prompt = Vec::with_capacity(pieces.iter().map(Vec::len).sum::<usize>() + soft_tokens);
    for (index, piece) in pieces.iter().enumerate() {
        prompt.extend_from_slice(piece);
        prompt.extend(images.get(index).into_iter().flat_map(Image::tokens));
    }
    prompt
}

/// The length of the longest prefix of at most `room` tokens that cuts no image in two. With `may_exceed`, an image at the
/// start is taken whole even if it is longer.
pub fn whole_image_prefix(tokens: &[u32], room: usize, may_exceed: bool) -> usize {
    match floor_image_boundary(tokens, room) {
        0 if may_exceed && room > 0 => image_blocks(tokens).next().map_or(0, |image| image.end),
        length => length,
    }
}

/// An image as the encoder of a model takes it: a picture, or a part of one, resized and cut into patches.
#[derive(Clone)]
pub struct Image {
    patches: Arc<Patches>,
    id: ContentHash,
    soft_tokens: u32,
}

impl Image {
    /// An image of `soft_tokens` soft tokens. `id` must differ between images whose patches differ.
    pub fn new(patches: Arc<Patches>, id: ContentHash, soft_tokens: u32) -> Self {
        Self { patches, id, soft_tokens }
    }

    /// The same patches as another image, for measurements.
    pub fn with_id(&self, id: ContentHash) -> Self {
        Self { id, ..self.clone() }
    }

    /// Its patches.
    pub fn patches(&self) -> &Patches {
        &self.patches
    }

    /// Identifies its content.
    pub fn id(&self) -> ContentHash {
        self.id
    }

    /// Number of its tokens in a prompt.
    pub fn soft_tokens(&self) -> u32 {
        self.soft_tokens
    }

    /// Its tokens in a prompt.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + use<> {
        let (words, _) = self.id.0.as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|bytes| IMAGE_TOKEN | u32::from_le_bytes(*bytes)).collect();
        words.into_iter().cycle().take(self.soft_tokens as usize)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({}, {} soft tokens)", self.id, self.soft_tokens)
    }
}

/// How a model takes pictures, as its checkpoint says.
#[derive(Clone, Debug)]
pub struct ImageProcessor {
    kind: ProcessorKind,
}

#[derive(Clone, Debug)]
enum ProcessorKind {
    /// Squares of one size, all with as many soft tokens.
    Square { processor: Gemma3, soft_tokens: u32 },
    /// The aspect ratio is kept.
    AnyShape(Gemma4),
}

impl ImageProcessor {
    /// The processor for an image encoder.
    pub fn new(config: &VisionConfig) -> Self {
        let order = match config.patch_order {
            checkpoint::PatchOrder::ChannelsFirst => PatchOrder::ChannelsFirst,
            checkpoint::PatchOrder::ChannelsLast => PatchOrder::ChannelsLast,
        };
        let any_shape = |processor: Gemma4| {
            let (token_size, patch_size) = (config.soft_token_size(), config.patch_size);
            ProcessorKind::AnyShape(Gemma4 { token_size, patch_size, order, ..processor })
        };
        let kind = match config.encoder {
            EncoderKind::Siglip { image_size, image_mean, image_std, .. } => {
                let normalization = Normalization { mean: image_mean, std: image_std };
                let processor = Gemma3 { normalization, ..Gemma3::new(image_size, config.patch_size) };
                ProcessorKind::Square { processor, soft_tokens: config.max_soft_tokens() }
            }
            EncoderKind::Gemma4 { max_soft_tokens, .. } => any_shape(Gemma4::with_tower(max_soft_tokens)),
            EncoderKind::Gemma4Unified { max_soft_tokens, .. } => any_shape(Gemma4::unified(max_soft_tokens)),
        };
        Self { kind }
    }

    /// A processor for square images with this many soft tokens along a side.
    pub fn square(image_size: u32, patch_size: u32, soft_tokens_per_side: u32) -> Self {
        let (processor, soft_tokens) = (Gemma3::new(image_size, patch_size), soft_tokens_per_side.pow(2));
        Self { kind: ProcessorKind::Square { processor, soft_tokens } }
    }

    /// With another maximum of tokens per image, which the encoder must allow. No effect on models with a fixed number.
    pub fn with_max_soft_tokens(mut self, tokens: u32) -> Self {
        if let ProcessorKind::AnyShape(processor) = &mut self.kind {
            processor.max_soft_tokens = tokens;
        }
        self
    }

    /// With additional crops of wide or tall pictures, so that details are not lost: each takes as many tokens as the
    /// whole picture. An error, as a clause, where images keep their shape.
    pub fn with_pan_and_scan(mut self) -> Result<Self, String> {
        match &mut self.kind {
            ProcessorKind::Square { processor, .. } => {
                processor.pan_and_scan = Some(PanAndScan::default());
                Ok(self)
            }
            ProcessorKind::AnyShape(_) => {
                Err("images of this model keep their shape; more tokens per image show more detail".into())
            }
        }
    }

    /// Tokens of one image, at most.
    pub fn max_soft_tokens(&self) -> u32 {
        match &self.kind {
            ProcessorKind::Square { soft_tokens, .. } => *soft_tokens,
            ProcessorKind::AnyShape(processor) => processor.max_soft_tokens,
        }
    }

    /// Number of images that a picture of this size becomes: itself and its crops.
    pub fn images_per_picture(&self, width: u32, height: u32) -> usize {
        match &self.kind {
            ProcessorKind::Square { processor, .. } => processor.regions(width, height).len(),
            ProcessorKind::AnyShape(_) => 1,
        }
    }

    /// Maximum number of images that a picture of any size becomes.
    pub fn max_images_per_picture(&self) -> usize {
        match &self.kind {
            ProcessorKind::Square { processor, .. } => {
                1 + processor.pan_and_scan.map_or(0, |settings| settings.max_crops as usize)
            }
            ProcessorKind::AnyShape(_) => 1,
        }
    }

    /// Bytes of memory of one image, at most.
    pub fn image_bytes(&self) -> usize {
        let pixels = match &self.kind {
            ProcessorKind::Square { processor, .. } => (processor.size as usize).pow(2),
            ProcessorKind::AnyShape(processor) => {
                processor.max_soft_tokens as usize * (processor.token_size as usize).pow(2)
            }
        };
        3 * pixels * size_of::<f32>()
    }

    /// The images of a picture: itself, then its crops. Takes tens of milliseconds.
    pub fn process(&self, picture: &Picture) -> Vec<Image> {
        let hash = picture.content_hash();
        match &self.kind {
            ProcessorKind::Square { processor, soft_tokens } => {
                let regions = processor.regions(picture.width(), picture.height());
                let image = |region| {
                    let patches = processor.patches(picture, region);
                    Image::new(Arc::new(patches), hash.of_region(region), *soft_tokens)
                };
                regions.into_iter().map(image).collect()
            }
            ProcessorKind::AnyShape(processor) => {
                let soft_tokens = processor.soft_tokens(picture.width(), picture.height());
                vec![Image::new(Arc::new(processor.process(picture)), hash, soft_tokens)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const I: u32 = IMAGE_TOKEN | 7;

    #[test]
    fn blocks_are_runs_of_image_tokens() {
        let blocks = |tokens: &[u32]| image_blocks(tokens).collect::<Vec<_>>();
        assert!(blocks(&[]).is_empty());
        assert!(blocks(&[1, 2, 3]).is_empty());
        assert_eq!(blocks(&[I, I, 1, I, 2]), [0..2, 3..4]);
        assert_eq!(blocks(&[1, I, I, I]).first(), Some(&(1..4)));
    }

    #[test]
    fn cuts_move_before_the_image() {
        let tokens = [1, I, I, I, 2, I, I];
        let cuts: Vec<usize> = (0..=8).map(|len| floor_image_boundary(&tokens, len)).collect();
        assert_eq!(cuts, [0, 1, 1, 1, 4, 5, 5, 7, 7]);
    }

    #[test]
    fn images_are_between_the_pieces() {
        let picture = Picture::new(28, 28, vec![7; 28 * 28 * 3]).expect("a square");
        let processor = ImageProcessor::square(28, 14, 1);
        let images = [processor.process(&picture), processor.process(&picture)].concat();
        let prompt = join_images(&[vec![1, 2], vec![3], vec![]], &images);
        assert_eq!(image_blocks(&prompt).collect::<Vec<_>>(), [2..3, 4..5]);
        assert_eq!((&prompt[..2], prompt[3], prompt.len()), (&[1, 2][..], 3, 5));
        assert!(prompt[2..3].iter().copied().eq(images[0].tokens()));
        assert_eq!(join_images(&[vec![1]], &[]), [1]);
        assert_eq!(images[0].patches().values().len() * 4, processor.image_bytes());
    }

    #[test]
    fn tokens_depend_on_the_content() {
        let picture = |value| Picture::new(28, 28, vec![value; 28 * 28 * 3]).expect("a square");
        let processor = ImageProcessor::square(28, 14, 3);
        let tokens = |value| processor.process(&picture(value))[0].tokens().collect::<Vec<_>>();
        assert_eq!(tokens(1).len(), 9);
        assert_eq!(tokens(1), tokens(1));
        assert!(tokens(1).iter().zip(tokens(2)).all(|(one, other)| is_image_token(*one) && *one != other));
    }
}
