//! Image encoders of Gemma 3 and 4, and the projectors from their outputs to soft tokens of the language model.
//!
//! | models | encoder |
//! |---|---|
//! | Gemma 3 | SigLIP, for square images of one size |
//! | Gemma 4 E2B, E4B, 26B, 31B | a transformer for images of any shape |
//! | Gemma 4 12B ("unified") | no layers: a product with the pixels of a soft token |
//!
//! | format | where the encoder is |
//! |---|---|
//! | Hugging Face folder | in the folder, beside the language model |
//! | GGUF file | in another file, the *mmproj*, in the same folder; see [`Checkpoint::vision`] |
//!
//! [`Vision`] is what [`Checkpoint`] is for a language model: the config, and every tensor with the right shape. No
//! tensor data is read.
//!
//! ```no_run
//! use checkpoint::{Checkpoint, Role};
//!
//! let checkpoint = Checkpoint::open("gemma-3-4b-it-Q4_0.gguf".as_ref())?;
//! if let Some(vision) = checkpoint.vision()? {
//!     println!("{} soft tokens per image", vision.config.max_soft_tokens());
//!     let query = vision.tensor(Some(0), Role::Query)?;
//!     println!("{:?} in {}", query.shape, query.encoding);
//! }
//! # Ok::<(), checkpoint::Error>(())
//! ```

mod complete;
mod config;
mod locate;
mod names;
mod values;

use std::path::{Path, PathBuf};

use crate::{
    architecture::Architecture,
    checkpoint::Checkpoint,
    config::{Config, object},
    error::{Error, Result},
    folder, gguf,
    slot::{Role, Slot},
    source::{Format, Source, Tensor},
};
use complete::Tensors;

pub use config::{EncoderKind, MIN_SOFT_TOKENS, PatchOrder, Transformer, VisionConfig};
pub(crate) use names::VisionNaming;
pub use values::ClipRanges;

/// An image encoder and its projector: complete, with the right shapes.
///
/// All matrices but one are stored as `[rows, K]`, to be multiplied by a row of K values. The exception is
/// [`Role::Projection`] of Gemma 3: it is `[hidden, text_hidden]` in all formats, so that a soft token is `x · W` and
/// the values of one output are not contiguous; see [`VisionConfig::projection_is_transposed`]. [`Role::PatchEmbed`], a
/// convolution in some files, is always given as the matrix `[hidden, 3 · patch_size²]`, with a row's values in the
/// order [`VisionConfig::patch_order`].
#[derive(Clone, Debug)]
pub struct Vision {
    /// The file or folder.
    pub path: PathBuf,
    /// Dimensions and constants.
    pub config: VisionConfig,
    /// Every tensor as the headers describe it; in a folder, also those of the language model.
    pub source: Source,
    tensors: Tensors,
}

impl Vision {
    /// Opens an mmproj file, for a language model with this config.
    pub fn open(path: &Path, text: &Config) -> Result<Self> {
        let gguf = gguf::open(path)?;
        let config = VisionConfig::from_mmproj(path, &gguf)?;
        let [own, needed] = [config.architecture(), text.architecture].map(|known| known.family().title);
        let reason = match () {
            () if own != needed => format!("it is for {own}, but the language model is {needed}"),
            () if config.text_hidden != text.hidden => format!(
                "its soft tokens have {} values, but the hidden size of the language model is {}",
                config.text_hidden, text.hidden
            ),
            () => {
                let tensors = gguf.source.tensors.clone();
                return Self::new(path, config, gguf.source, &tensors);
            }
        };
        let reason =
            format!("is the image encoder of another model: {reason}: use the mmproj file of the same model");
        Err(Error::invalid(path, reason))
    }

    /// `tensors` are those of the source that are not of the language model.
    fn new(path: &Path, config: VisionConfig, source: Source, tensors: &[Tensor]) -> Result<Self> {
        let tensors = complete::check(&config, source.format, tensors)
            .map_err(|incomplete| Error::Incomplete { path: path.to_path_buf(), incomplete })?;
        Ok(Self { path: path.to_path_buf(), config, source, tensors })
    }

    /// A tensor of the encoder or of the projector, which have no role in common; an error if there is none.
    pub fn tensor(&self, layer: Option<u32>, role: Role) -> Result<&Tensor> {
        self.tensors.by_slot.get(&Slot::vision(layer, role)).ok_or_else(|| {
            let layer = layer.map_or(String::new(), |layer| format!(" in layer {layer}"));
            Error::invalid(&self.path, format!("has no {role:?} tensor{layer} in its image encoder"))
        })
    }

    /// All tensors: those of the encoder outside of layers first, then layer by layer, then the projector's. Clipping
    /// ranges are not among them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Slot, &Tensor)> {
        self.tensors.by_slot.iter().map(|(slot, tensor)| (*slot, tensor))
    }

    /// Whether one must be added to the stored weight of [`Role::SoftTokenNorm`], as in Hugging Face files. The other
    /// norms are stored as they are.
    pub fn soft_norm_needs_plus_one(&self) -> bool {
        matches!(self.source.format, Format::HuggingFace | Format::Layerwise)
            && matches!(self.config.encoder, EncoderKind::Siglip { .. })
    }
}

impl Checkpoint {
    /// The image encoder; `None` if there is none, or if the family's encoders are not supported.
    ///
    /// A folder has it beside the language model. For a GGUF file `NAME.gguf` or a native file it is in an mmproj file
    /// of the same folder: `NAME.mmproj`, where `indrik pull --mmproj` puts it, or else the file whose name contains
    /// `mmproj` and ends in `.gguf`; of several, the one for models of this family and hidden size.
    pub fn vision(&self) -> Result<Option<Vision>> {
        if !matches!(self.config.architecture, Architecture::Gemma3 | Architecture::Gemma4) {
            return Ok(None);
        }
        let own = self.inventory.images.iter().any(|tensor| !names::is_audio(&tensor.name));
        match self.source.format {
            Format::HuggingFace | Format::Layerwise if own => self.vision_in_folder(),
            Format::HuggingFace | Format::Layerwise => Ok(None),
            Format::Gguf | Format::Native => match locate::beside(&self.path, &self.config)? {
                None if own => Err(Error::Unsupported {
                    path: self.path.clone(),
                    what: "an image encoder in the file of the language model".into(),
                    fix: "use files made by llama.cpp's converter: one of the model and its mmproj file"
                        .into(),
                }),
                found => Ok(found),
            },
        }
    }

    fn vision_in_folder(&self) -> Result<Option<Vision>> {
        let Config { architecture, hidden, .. } = self.config;
        let path = self.path.join(folder::CONFIG);
        let json = folder::read_config(&path)?;
        let described = json.as_object().map(|top| object(&path, top, "vision_config")).transpose()?;
        // All configs of Gemma 4 with an encoder describe it; those of Gemma 3 may rely on defaults.
        if architecture == Architecture::Gemma4 && described.flatten().is_none() {
            return Ok(None);
        }
        let processor =
            ["preprocessor_config.json", "processor_config.json"].map(|name| self.path.join(name));
        let processor = processor.into_iter().find(|path| path.is_file());
        let processor =
            processor.map(|path| folder::read_config(&path).map(|json| (path, json))).transpose()?;
        let processor = processor.as_ref().map(|(path, json)| (path.as_path(), json));
        let config = VisionConfig::from_hf(&path, &json, processor, architecture, hidden)?;
        Vision::new(&self.path, config, self.source.clone(), &self.inventory.images).map(Some)
    }
}
