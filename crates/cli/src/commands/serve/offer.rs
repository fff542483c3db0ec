//! The models that requests may name: those given with -m, --preload and --models, or the whole store.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use checkpoint::ModelKind;
use indrik::{EmbeddingFiles, EmbeddingOptions, ModelFiles, NpuSettings, Options};
use model::{ImageProcessor, PrefixDisk, pages::PageEventQueue};
use server::{ModelDescription, ModelFacts};
use store::{EntryKind, Store, StoreEntry};

use super::{kv_events, settings::Settings};
use crate::{
    commands::models,
    loading::{LoadArguments, ModelArguments},
};

/// The name in --models that stands for all models of the store.
const WHOLE_STORE: &str = "store";

/// `None` for files that cannot be used.
type MaybeDescription = Option<ModelDescription>;

/// The models that requests may name.
pub struct Offer {
    settings: Settings,
    /// By name or path, in the order in which they were given.
    named: Vec<String>,
    /// Whether requests may name all models of the store.
    pub whole_store: bool,
    /// Descriptions of files, which take a moment to read, with the time of the files' last change.
    descriptions: Mutex<HashMap<PathBuf, (Option<SystemTime>, MaybeDescription)>>,
    /// Of all models.
    pub prefix_disk: Option<PrefixDisk>,
    /// Changes of the prefix cache of the only model, if they are published.
    pub page_events: Option<PageEventQueue>,
    /// How all models use the NPU.
    pub npu: NpuSettings,
}

/// Where a model is.
pub struct Location {
    /// The name or path under which it is offered.
    pub name: String,
    path: PathBuf,
}

/// A model whose files are open.
pub enum OfferedModel {
    Language(Box<LanguageModel>),
    Embedder(EmbeddingModel),
}

/// A model that generates text.
pub struct LanguageModel {
    pub files: ModelFiles,
    pub served: server::Model,
    pub options: Options,
    pub context_length: u32,
}

/// A model that embeds texts.
pub struct EmbeddingModel {
    pub files: EmbeddingFiles,
    pub served: server::EmbeddingModel,
    pub options: EmbeddingOptions,
}

impl Offer {
    pub fn new(settings: Settings) -> anyhow::Result<Offer> {
        if settings.preload.iter().any(|name| name == WHOLE_STORE) {
            anyhow::bail!(
                "--preload store: name the models to load at startup; --models store offers all of them"
            );
        }
        if settings.draft.is_some() && settings.model.is_none() {
            anyhow::bail!("--draft: name the model that it drafts for with -m");
        }
        let given = settings.model.iter().chain(&settings.preload).chain(&settings.models);
        let mut named: Vec<String> = vec![];
        for name in given.filter(|name| *name != WHOLE_STORE) {
            if !named.contains(name) {
                named.push(name.clone());
            }
        }
        let whole_store = named.is_empty() || settings.models.iter().any(|name| name == WHOLE_STORE);
        let prefix_disk = open_prefix_disk(&settings)?;
        let page_events = settings.kv_events.map(|_| PageEventQueue::new(kv_events::QUEUE));
        let descriptions = Mutex::default();
        let npu = settings.npu.settings();
        let offer = Offer { settings, named, whole_store, descriptions, prefix_disk, page_events, npu };
        kv_events::check(&offer)?;
        if offer.named.is_empty() && offer.entries().is_empty() {
            anyhow::bail!(
                "no model given, and the local store has none: use -m, INDRIK_MODEL or the key `model` of the settings \
                 file; `indrik search` lists the models that can be pulled"
            );
        }
        Ok(offer)
    }

    /// Whether requests may name only one model.
    pub fn is_single(&self) -> bool {
        !self.whole_store && self.named.len() == 1
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The models to load before requests are accepted.
    pub fn preload(&self) -> Vec<String> {
        self.settings.model.iter().chain(&self.settings.preload).cloned().collect()
    }

    /// Models of the store.
    fn entries(&self) -> Vec<StoreEntry> {
        let entries = Store::open_default().and_then(|store| store.entries()).unwrap_or_default();
        entries.into_iter().filter(|entry| entry.kind == EntryKind::Model).collect()
    }

    /// All models, those given by name first. Files that cannot be used are left out: requests for them get the reason.
    pub fn list(&self) -> Vec<ModelDescription> {
        let entries = if self.whole_store { self.entries() } else { vec![] };
        let named = self.named.iter().map(|name| (name.clone(), store::resolve_model(name).ok()));
        let entries = entries.into_iter().map(|entry| (entry.name, Some(entry.path)));
        let mut models: Vec<ModelDescription> = vec![];
        for (name, path) in named.chain(entries) {
            let Some(path) = path else { continue };
            let Some(description) = self.describe(&name, &path) else { continue };
            if !models.iter().any(|model| model.id == description.id) {
                models.push(description);
            }
        }
        models
    }

    fn describe(&self, name: &str, path: &Path) -> Option<ModelDescription> {
        let modified = path.metadata().and_then(|data| data.modified()).ok();
        let descriptions = || self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((seen, description)) = descriptions().get(path)
            && *seen == modified
        {
            return description.clone();
        }
        let location = Location { name: name.to_owned(), path: path.to_owned() };
        let description = match self.open(&location) {
            Ok(model) => Some(model.description()),
            Err(error) => {
                tracing::debug!("{name} is not offered: {error:#}");
                None
            }
        };
        descriptions().insert(path.to_owned(), (modified, description.clone()));
        description
    }

    /// Where the model is that a request names; `None` if there is none.
    pub fn find(&self, name: &str) -> Option<Location> {
        if let Some(given) = self.named.iter().find(|given| *given == name) {
            return self.locate(given).ok();
        }
        // Never a path of the machine: only names of the store.
        let store = Store::open_default().ok().filter(|_| self.whole_store);
        if let Some(path) = store.and_then(|store| store.resolve(name)) {
            let is_same = |given: &&String| self.locate(given).is_ok_and(|found| found.path == path);
            let name = self.named.iter().find(is_same).map_or(name, |given| given).to_owned();
            return Some(Location { name, path });
        }
        let mut locations = self.named.iter().filter_map(|given| self.locate(given).ok());
        let is_named = |found: &Location| {
            self.describe(&found.name, &found.path).is_some_and(|model| model.is_named(name))
        };
        locations.find(is_named)
    }

    /// Where a model is that was given by its name or path.
    pub fn locate(&self, given: &str) -> anyhow::Result<Location> {
        Ok(Location { name: given.to_owned(), path: store::resolve_model(given)? })
    }

    /// Opens a model that is offered.
    pub fn open(&self, location: &Location) -> anyhow::Result<OfferedModel> {
        let Location { name, path } = location;
        let settings = &self.settings;
        // Settings that not every model can have are for the one that was given with them.
        let is_main = settings.model.as_ref() == Some(name);
        let model = ModelArguments {
            model: path.to_string_lossy().into_owned(),
            load: LoadArguments {
                prefill_chunk: settings.prefill_chunk.map(|chunk| chunk.get()),
                kv: settings.kv,
                reproducible: settings.reproducible,
                speculate: settings.speculate,
                draft: settings.draft.clone().filter(|_| is_main),
                no_images: !settings.images,
                image_tokens: settings.image_tokens.filter(|_| is_main).map(|tokens| tokens.get()),
                npu: settings.npu,
                device: settings.device.clone(),
            },
        };
        if ModelKind::of(path)? == ModelKind::Embedding {
            return self.open_embedder(location);
        }
        let files = model.open()?;
        let context_length = match settings.context {
            Some(context) if is_main => files.check_context_length(context.get() as usize)?,
            Some(context) => context.get().min(files.config().max_positions),
            None => files.default_context_length(),
        };
        let options = self.load_options(model.options(), context_length)?;
        let served = self.served(name, &files, is_main)?;
        Ok(OfferedModel::Language(Box::new(LanguageModel { files, served, options, context_length })))
    }

    fn open_embedder(&self, Location { name, path }: &Location) -> anyhow::Result<OfferedModel> {
        let settings = &self.settings;
        let files = EmbeddingFiles::open(&path.to_string_lossy())?;
        let options = EmbeddingOptions {
            device: settings.device.clone(),
            max_tokens: settings.context.map(|context| context.get().min(files.config().max_tokens)),
            prepare: true,
            step_timeout: settings.step_timeout.0,
            npu: self.npu.clone(),
        };
        let Names { id, others } = self.names(name, files.path());
        let mut served = files.served_as(id, &options)?;
        self.set_aliases(&served.id, &mut served.aliases, others);
        Ok(OfferedModel::Embedder(EmbeddingModel { files, served, options }))
    }

    /// Sets the other names of a model.
    fn set_aliases(&self, id: &str, aliases: &mut Vec<String>, names: Vec<String>) {
        // Files of several models may have the same name, such as model.gguf.
        if self.whole_store || self.named.len() > 1 {
            aliases.clear();
        }
        for name in names {
            if name != id && !aliases.contains(&name) {
                aliases.push(name);
            }
        }
    }

    /// The names of a model that is offered under `name`.
    fn names(&self, name: &str, path: &Path) -> Names {
        // A name in the model store is a better default than the name of its file.
        let store_name =
            Some(name.to_owned()).filter(|name| !name.contains('/') && !Path::new(name).exists());
        // Requests may use the name that `indrik models` lists, and the one given here.
        let listed = self.entries().into_iter().find(|entry| entry.path == path).map(|entry| entry.name);
        let is_given = self.named.iter().any(|given| given == name);
        let is_main = self.settings.model.as_deref() == Some(name);
        let default = if is_given { &store_name } else { &listed };
        let id = self.settings.name.clone().filter(|_| is_main).or_else(|| default.clone());
        Names { id, others: listed.into_iter().chain(store_name).collect() }
    }

    fn load_options(&self, base: Options, context_length: u32) -> anyhow::Result<Options> {
        let settings = &self.settings;
        let tokens = settings.kv_cache_tokens.map(|tokens| tokens.get());
        if let Some(tokens) = tokens.filter(|tokens| *tokens < context_length) {
            anyhow::bail!(
                "--kv-cache-tokens is {tokens}, less than the context length {context_length} of a single sequence: raise it, or lower --context"
            );
        }
        Ok(Options {
            max_sequences: settings.max_sequences.get(),
            context_length: Some(context_length),
            kv_cache_tokens: tokens,
            prefix_cache: settings.prefix_cache,
            prefix_disk: self.prefix_disk.clone(),
            page_events: self.page_events.clone(),
            step_timeout: settings.step_timeout.0,
            queue_capacity: settings.max_queue,
            serving: true,
            npu: self.npu.clone(),
            ..base
        })
    }

    /// The model in the form that the server needs.
    fn served(&self, name: &str, files: &ModelFiles, is_main: bool) -> anyhow::Result<server::Model> {
        let settings = &self.settings;
        let Names { id, others } = self.names(name, files.path());
        let mut served = files.served_as(id)?;
        if settings.pan_and_scan {
            let with_crops = served.images.clone().map(ImageProcessor::with_pan_and_scan);
            served.images = match with_crops {
                Ok(Err(reason)) if is_main => anyhow::bail!("--pan-and-scan: {reason} (--image-tokens)"),
                Ok(Ok(processor)) => Ok(processor),
                _ => served.images,
            };
        }
        if !settings.images {
            served.images = Err("images are turned off (--images=false)".to_owned());
        }
        self.set_aliases(&served.id, &mut served.aliases, others);
        Ok(served)
    }
}

/// Opens the prefix cache on disk, if the settings ask for one. A folder that cannot be used is no reason not to serve.
fn open_prefix_disk(settings: &Settings) -> anyhow::Result<Option<PrefixDisk>> {
    let Some(size) = settings.prefix_disk else {
        anyhow::ensure!(
            settings.prefix_disk_dir.is_none(),
            "--prefix-disk-dir has no effect without a size: add --prefix-disk 20GiB"
        );
        return Ok(None);
    };
    anyhow::ensure!(
        settings.prefix_cache,
        "--prefix-disk needs the prefix cache: remove --prefix-cache=false"
    );
    let given = settings.prefix_disk_dir.as_ref().map(PathBuf::from);
    let Some(folder) = given.or_else(|| Some(gpu::cache_dir()?.join("prefixes"))) else {
        anyhow::bail!(
            "there is no cache folder for --prefix-disk: set INDRIK_CACHE_DIR, HOME or --prefix-disk-dir"
        );
    };
    let opened = PrefixDisk::open(&folder, size.0 as u64);
    Ok(opened.inspect_err(|error| tracing::warn!("the prefix cache on disk is off: {error}")).ok())
}

/// The names of a model.
struct Names {
    /// `None`: the name of its file.
    id: Option<String>,
    others: Vec<String>,
}

impl OfferedModel {
    /// What requests may know of it.
    pub fn description(&self) -> ModelDescription {
        match self {
            OfferedModel::Language(model) => {
                let base = ModelDescription::of(&model.served, model.context_length);
                let description = with_files(base, model.files.path());
                let config = model.files.config();
                let facts = ModelFacts {
                    embedding_length: config.hidden,
                    block_count: config.layers,
                    head_count: config.heads,
                    head_count_kv: config.kv_heads,
                    ..description.facts
                };
                ModelDescription { facts, ..description }
            }
            OfferedModel::Embedder(model) => {
                with_files(ModelDescription::of_embedder(&model.served), model.files.path())
            }
        }
    }
}

/// Adds what the files of a model say of it.
fn with_files(description: ModelDescription, path: &Path) -> ModelDescription {
    let entries = Store::open_default().and_then(|store| store.entries()).unwrap_or_default();
    let entry = entries.into_iter().find(|entry| entry.path == path);
    // Of a symbolic link, the size of the file that it leads to.
    let bytes = entry.as_ref().map(|entry| entry.bytes).filter(|bytes| *bytes > 0);
    let sha256 = entry.and_then(|entry| entry.record).map(|record| record.sha256);
    let facts = models::facts(path);
    ModelDescription {
        file_bytes: bytes.unwrap_or_else(|| path.metadata().map_or(0, |data| data.len())),
        sha256: sha256.filter(|digest| !digest.is_empty()),
        facts: ModelFacts {
            format: if models::is_gguf(path) { "gguf" } else { "safetensors" }.to_owned(),
            architecture: facts.family.unwrap_or_default(),
            parameters: facts.parameters.unwrap_or(0),
            quantization: facts.quantisation.unwrap_or_default(),
            ..description.facts
        },
        ..description
    }
}
