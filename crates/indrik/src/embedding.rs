//! Embedding models: texts to vectors.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use checkpoint::{EmbeddingCheckpoint, EmbeddingConfig, Prompts};
use gpu::AdapterInfo;
use model::{TextEncoder, TextLimits, language::embedding_tokenizer};
use text::{EncodedText, Tokenizer};
use weights::{embedding::EmbeddingBlueprint, plan, stream, stream::Control};

use crate::{
    DeviceSelector, Error, LoadProgress, NpuMode, NpuSettings, Result, files,
    load::{PROGRESS_INTERVAL, STEP_TIMEOUT, SetOnDrop},
    memory::{device_memory, npu_memory},
};

/// An opened embedding model: its configuration and tokenizer. Cheap to clone. The device is not touched.
#[derive(Clone)]
pub struct EmbeddingFiles {
    checkpoint: Arc<EmbeddingCheckpoint>,
    tokenizer: Tokenizer,
}

/// How an embedding model is loaded and run.
#[derive(Clone, Debug)]
pub struct EmbeddingOptions {
    /// Device, by index or part of its name; the fastest one if `None`.
    pub device: Option<String>,
    /// Maximum tokens of a text; if `None`, as many as the model takes, but at most 8192.
    pub max_tokens: Option<u32>,
    /// Compile all pipelines while loading, as a server; otherwise each when a text needs it.
    pub prepare: bool,
    /// Time after which a step is considered hung and the device lost.
    pub step_timeout: Duration,
    /// Whether AMD's NPU computes matrix products of the model; off by default.
    pub npu: NpuSettings,
}

impl Default for EmbeddingOptions {
    fn default() -> Self {
        let npu = NpuSettings::off();
        Self { device: None, max_tokens: None, prepare: false, step_timeout: STEP_TIMEOUT, npu }
    }
}

/// How texts are embedded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    /// Number of values of each vector: the first ones, scaled to a length of 1 like the whole. Models are trained for some
    /// numbers (Matryoshka embeddings).
    pub dimensions: Option<u32>,
    /// Cut off the end of texts that are too long, instead of an error.
    pub truncate: bool,
    /// Name of the prompt that texts start with, such as `query`; the model's default if `None`.
    pub prompt: Option<String>,
}

/// The vector of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Its values.
    pub vector: Vec<f32>,
    /// Tokens that were encoded, special tokens included.
    pub tokens: usize,
    /// Whether the end of the text was cut off.
    pub truncated: bool,
}

impl EmbeddingFiles {
    /// Opens a Hugging Face folder, a GGUF file, or a model in the local store by name. An error if the model generates
    /// text.
    pub fn open(path_or_name: &str) -> Result<Self> {
        let path = store::resolve_model(path_or_name)?;
        let checkpoint = EmbeddingCheckpoint::open(&path)?;
        if checkpoint.config.lacks_dense_layers() {
            tracing::warn!(
                "{} has no dense layers: its vectors differ from those of the published EmbeddingGemma",
                path.display()
            );
        }
        let tokenizer = embedding_tokenizer(&checkpoint)?;
        Ok(Self { checkpoint: Arc::new(checkpoint), tokenizer })
    }

    /// The model's configuration.
    pub fn config(&self) -> &EmbeddingConfig {
        &self.checkpoint.config
    }

    /// Instructions that texts may start with.
    pub fn prompts(&self) -> &Prompts {
        &self.checkpoint.prompts
    }

    /// Where the model is.
    pub fn path(&self) -> &Path {
        &self.checkpoint.path
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Bytes of device memory that the model takes once it is loaded.
    pub fn memory_bytes(&self, options: &EmbeddingOptions) -> Result<u64> {
        let limits = TextLimits::new(self.config(), options.max_tokens)?;
        let blueprint = EmbeddingBlueprint::new(&self.checkpoint)?;
        Ok(blueprint.demand(limits.scratch_bytes(self.config())).total_bytes())
    }

    /// Maximum tokens of a text, special tokens included, once it is loaded.
    pub fn max_tokens(&self, options: &EmbeddingOptions) -> Result<u32> {
        Ok(TextLimits::new(self.config(), options.max_tokens)?.max_tokens)
    }

    /// Loads the weights into device memory. Fails before any weight is read if they do not fit.
    pub fn load(&self, options: EmbeddingOptions) -> Result<EmbeddingModel> {
        self.load_with(options, &Control::default(), &|_| ())
    }

    /// Loads with progress reports and cancellation.
    pub fn load_with(
        &self,
        options: EmbeddingOptions,
        control: &Control,
        progress: &(dyn Fn(LoadProgress<'_>) + Sync),
    ) -> Result<EmbeddingModel> {
        let start = Instant::now();
        let (encoder, device) = self.load_encoder(&options, control, progress)?;
        Ok(EmbeddingModel {
            files: self.clone(),
            options,
            limits: *encoder.limits(),
            device,
            seconds: start.elapsed().as_secs_f64(),
            encoder: Mutex::new(Some(encoder)),
        })
    }

    fn load_encoder(
        &self,
        options: &EmbeddingOptions,
        control: &Control,
        progress: &(dyn Fn(LoadProgress<'_>) + Sync),
    ) -> Result<(TextEncoder, AdapterInfo)> {
        let limits = TextLimits::new(self.config(), options.max_tokens)?;
        let selector = DeviceSelector { name: options.device.as_deref(), ..DeviceSelector::default() };
        // The instance must outlive every use of the device in this function.
        let (_instance, device) = selector.open()?;
        let blueprint = EmbeddingBlueprint::new(&self.checkpoint)?;
        let demand = blueprint.demand(limits.scratch_bytes(self.config()));
        let placement = plan::plan(&device_memory(device.info()), &demand)?;
        let is_local =
            (0..demand.weights.len()).all(|index| weights::load::is_device_local(&placement, index));
        let memory = if is_local { gpu::Memory::Device } else { gpu::Memory::Host };
        let total_bytes = blueprint.file_bytes();
        let done = std::sync::atomic::AtomicBool::new(false);
        let start = Instant::now();
        let loaded: ::model::Result<TextEncoder> = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let bytes = control.done.load(Ordering::Relaxed);
                    let bytes_per_second = bytes as f64 / start.elapsed().as_secs_f64();
                    progress(LoadProgress::Weights { bytes, total_bytes, bytes_per_second });
                    std::thread::sleep(PROGRESS_INTERVAL);
                }
            });
            let _done = SetOnDrop(&done);
            let stream = stream::Options::default();
            let (encoder, _) =
                TextEncoder::load(&device, &self.checkpoint, limits, memory, &stream, control)?;
            let mut encoder = encoder.with_timeout(options.step_timeout);
            if options.prepare {
                encoder.prepare()?;
            }
            let (name, ..) = files::served_names(self.path(), None);
            let npu = options.npu.clone().with_available_memory(npu_memory);
            if npu.mode() != NpuMode::Off
                && let Err(error) = encoder.use_npu(&npu, &name)
            {
                tracing::warn!("the embedding model does not use the NPU: {error}");
            }
            Ok(encoder)
        });
        Ok((loaded?, device.info().clone()))
    }
}

/// An embedding model in device memory. Threads may share it: texts of concurrent calls are encoded one call after the
/// other.
///
/// ```no_run
/// use indrik::{EmbedOptions, EmbeddingModel, EmbeddingOptions};
///
/// # fn main() -> indrik::Result<()> {
/// let model = EmbeddingModel::open("all-minilm", EmbeddingOptions::default())?;
/// for embedding in model.embed(&["a cat", "a dog"], &EmbedOptions::default())? {
///     println!("{} tokens: {:?}", embedding.tokens, &embedding.vector[..4]);
/// }
/// # Ok(())
/// # }
/// ```
pub struct EmbeddingModel {
    files: EmbeddingFiles,
    options: EmbeddingOptions,
    limits: TextLimits,
    device: AdapterInfo,
    seconds: f64,
    /// `None` after the device was lost, until it is loaded again.
    encoder: Mutex<Option<TextEncoder>>,
}

impl EmbeddingModel {
    /// Opens and loads a model.
    pub fn open(path_or_name: &str, options: EmbeddingOptions) -> Result<Self> {
        EmbeddingFiles::open(path_or_name)?.load(options)
    }

    /// The model's files.
    pub fn files(&self) -> &EmbeddingFiles {
        &self.files
    }

    /// The model's configuration.
    pub fn config(&self) -> &EmbeddingConfig {
        self.files.config()
    }

    /// The device.
    pub fn device(&self) -> &AdapterInfo {
        &self.device
    }

    /// Load time in seconds.
    pub fn load_seconds(&self) -> f64 {
        self.seconds
    }

    /// Maximum tokens of a text, special tokens included.
    pub fn max_tokens(&self) -> u32 {
        self.limits.max_tokens
    }

    /// The vectors of texts, in their order.
    pub fn embed(&self, texts: &[&str], options: &EmbedOptions) -> Result<Vec<Embedding>> {
        self.embed_with(texts, options, &mut |_| true)
    }

    /// The same with progress: `progress` is called with the number of encoded texts, and cancels by returning false.
    pub fn embed_with(
        &self,
        texts: &[&str],
        options: &EmbedOptions,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Embedding>> {
        let encoded = self.encode(texts, options)?;
        self.embed_encoded(&encoded, options, progress)
    }

    /// The vectors of texts that are tokens already.
    pub(crate) fn embed_encoded(
        &self,
        encoded: &[EncodedText],
        options: &EmbedOptions,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Embedding>> {
        let max_dimensions = self.config().dimensions();
        let dimensions = options.dimensions.unwrap_or(max_dimensions);
        if !(1..=max_dimensions).contains(&dimensions) {
            return Err(Error::Dimensions { dimensions, max_dimensions });
        }
        let ids: Vec<&[u32]> = encoded.iter().map(|text| text.ids.as_slice()).collect();
        let vectors = self.run(&ids, progress)?;
        let embedding = |(mut vector, text): (Vec<f32>, &EncodedText)| {
            vector.truncate(dimensions as usize);
            if self.config().normalize {
                normalize(&mut vector);
            }
            Embedding { vector, tokens: text.ids.len(), truncated: text.is_truncated() }
        };
        Ok(vectors.into_iter().zip(encoded).map(embedding).collect())
    }

    /// The tokens of texts, as the model takes them.
    pub fn encode(&self, texts: &[&str], options: &EmbedOptions) -> Result<Vec<EncodedText>> {
        let prompt = self.prompt(options.prompt.as_deref())?;
        let max_tokens = self.limits.max_tokens;
        let encode = |(index, text): (usize, &&str)| {
            let number = index + 1;
            let joined = [prompt, *text].concat();
            let encoded = self.files.tokenizer.encode_for_embedding(&joined, max_tokens as usize);
            match () {
                () if encoded.ids.is_empty() => Err(Error::EmptyText { number }),
                () if encoded.is_truncated() && !options.truncate => {
                    Err(Error::TextTooLong { number, tokens: encoded.full_length, max_tokens })
                }
                () => Ok(encoded),
            }
        };
        texts.iter().enumerate().map(encode).collect()
    }

    /// The prompt with this name, or the default one.
    fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let prompts = self.files.prompts();
        let Some(name) = name.or(prompts.default.as_deref()) else { return Ok("") };
        prompts.by_name.get(name).map(String::as_str).ok_or_else(|| Error::UnknownPrompt {
            name: name.to_owned(),
            known: prompts.by_name.keys().cloned().collect(),
        })
    }

    /// Runs the encoder. If the device is lost, it is opened once more, and the texts are encoded again.
    fn run(&self, texts: &[&[u32]], progress: &mut dyn FnMut(usize) -> bool) -> Result<Vec<Vec<f32>>> {
        let mut slot = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reloaded = false;
        loop {
            let encoder = match &mut *slot {
                Some(encoder) => encoder,
                none => {
                    reloaded = true;
                    none.insert(self.files.load_encoder(&self.options, &Control::default(), &|_| ())?.0)
                }
            };
            match encoder.encode(texts, progress) {
                Err(model::Error::Gpu(error @ gpu::Error::DeviceLost { .. })) => {
                    *slot = None;
                    if reloaded {
                        return Err(error.into());
                    }
                    tracing::warn!("the device is opened again: {error}");
                }
                result => return Ok(result?),
            }
        }
    }
}

/// Scales a vector to a length of 1, unless it is zero.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}
