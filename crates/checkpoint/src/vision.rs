//! Image encoders: the SigLIP tower of Gemma 3 and the projector from its output to soft tokens of the language model.
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
//!     println!("{} soft tokens per image", vision.config.soft_tokens());
//!     let query = vision.tensor(Some(0), Role::Query)?;
//!     println!("{:?} in {}", query.shape, query.encoding);
//! }
//! # Ok::<(), checkpoint::Error>(())
//! ```

mod complete;
mod config;
mod locate;
mod names;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    architecture::Architecture,
    checkpoint::Checkpoint,
    error::{Error, Result},
    folder, gguf,
    slot::{Role, Slot},
    source::{Format, Source, Tensor},
};

pub use config::VisionConfig;
pub(crate) use names::VisionNaming;

/// An image encoder and its projector: complete, with the right shapes.
///
/// All matrices but one are stored as `[rows, K]`, to be multiplied by a row of K values. The exception is
/// [`Role::Projection`]: it is `[hidden, text_hidden]` in all formats, so that a soft token is `x · W` and the values of
/// one output are not contiguous. [`Role::PatchEmbed`], a convolution in files, is given as the matrix
/// `[hidden, 3 · patch_size²]`; the order of a row's values is channel, y, x.
#[derive(Clone, Debug)]
pub struct Vision {
    /// The file or folder.
    pub path: PathBuf,
    /// Dimensions and constants.
    pub config: VisionConfig,
    /// Every tensor as the headers describe it; in a folder, also those of the language model.
    pub source: Source,
    tensors: BTreeMap<Slot, Tensor>,
}

impl Vision {
    /// Opens an mmproj file, for a language model of this hidden size.
    pub fn open(path: &Path, text_hidden: u32) -> Result<Self> {
        let gguf = gguf::open(path)?;
        let config = VisionConfig::from_mmproj(path, &gguf.metadata)?;
        if config.text_hidden != text_hidden {
            let reason = format!(
                "is the image encoder of another model: its soft tokens have {} values, but the hidden size of the \
                 language model is {text_hidden}: use the mmproj file of the same model",
                config.text_hidden
            );
            return Err(Error::invalid(path, reason));
        }
        Self::new(path, config, gguf.source)
    }

    fn new(path: &Path, config: VisionConfig, source: Source) -> Result<Self> {
        let tensors = complete::check(&config, &source)
            .map_err(|incomplete| Error::Incomplete { path: path.to_path_buf(), incomplete })?;
        Ok(Self { path: path.to_path_buf(), config, source, tensors })
    }

    /// A tensor of the encoder or of the projector, which have no role in common; an error if there is none.
    pub fn tensor(&self, layer: Option<u32>, role: Role) -> Result<&Tensor> {
        self.tensors.get(&Slot::vision(layer, role)).ok_or_else(|| {
            let layer = layer.map_or(String::new(), |layer| format!(" in layer {layer}"));
            Error::invalid(&self.path, format!("has no {role:?} tensor{layer} in its image encoder"))
        })
    }

    /// All tensors: those of the encoder outside of layers first, then layer by layer, then the projector's.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Slot, &Tensor)> {
        self.tensors.iter().map(|(slot, tensor)| (*slot, tensor))
    }

    /// Whether one must be added to the stored weight of [`Role::SoftTokenNorm`], as in Hugging Face files. The other
    /// norms are LayerNorms, stored as they are.
    pub fn soft_norm_needs_plus_one(&self) -> bool {
        matches!(self.source.format, Format::HuggingFace | Format::Layerwise)
    }
}

impl Checkpoint {
    /// The image encoder; `None` if there is none, or if the family's encoders are not supported.
    ///
    /// A folder has it beside the language model. For a GGUF file `NAME.gguf` or a native file it is in an mmproj file
    /// of the same folder: `NAME.mmproj`, where `indrik pull --mmproj` puts it, or else the file whose name contains
    /// `mmproj` and ends in `.gguf`; of several, the one for models of this hidden size.
    pub fn vision(&self) -> Result<Option<Vision>> {
        if self.config.architecture != Architecture::Gemma3 {
            return Ok(None);
        }
        let own = !self.inventory.images.is_empty();
        match self.source.format {
            Format::HuggingFace | Format::Layerwise if own => self.vision_in_folder().map(Some),
            Format::HuggingFace | Format::Layerwise => Ok(None),
            Format::Gguf | Format::Native => match locate::beside(&self.path, self.config.hidden)? {
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

    fn vision_in_folder(&self) -> Result<Vision> {
        let path = self.path.join(folder::CONFIG);
        let json = folder::read_config(&path)?;
        let processor =
            ["preprocessor_config.json", "processor_config.json"].map(|name| self.path.join(name));
        let processor = processor.into_iter().find(|path| path.is_file());
        let processor =
            processor.map(|path| folder::read_config(&path).map(|json| (path, json))).transpose()?;
        let processor = processor.as_ref().map(|(path, json)| (path.as_path(), json));
        let config = VisionConfig::from_hf(&path, &json, processor, self.config.hidden)?;
        Vision::new(&self.path, config, self.source.clone())
    }
}
