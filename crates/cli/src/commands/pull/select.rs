//! Finding the files to pull on the hub: lists repositories, reads headers, and chooses a variant. Everything
//! that can be wrong with a model is found here, before a byte of its weights is downloaded.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use checkpoint::{Checkpoint, Config, complete, config::MetaValue, embedding::is_embedding_gguf, gguf};
use gpu::format_bytes;
use serde_json::{Value, json};
use store::{
    Error, Hub, Listing, ModelRequest, PullEvent, Quant, RemoteFile, Repository, Store, Variant, Variants,
    printable,
};

use super::{
    choice::{self, Candidate, Fit},
    machine::{CONTEXT, Machine},
};

/// What to look for.
pub struct Query<'a> {
    pub request: &'a ModelRequest,
    /// The revision on the command line.
    pub revision: Option<&'a str>,
    pub store: &'a Store,
    /// Name in the store.
    pub name: &'a str,
}

/// The files to pull, and why.
pub enum Selection {
    /// A GGUF file, or all parts of a split one.
    Gguf {
        listing: Listing,
        variant: Variant,
        image_encoders: Vec<RemoteFile>,
        candidates: Vec<Candidate>,
        chosen: usize,
    },
    /// A Hugging Face folder.
    Folder { listing: Listing, candidate: Candidate },
    /// A GGUF file at any address.
    Url { candidate: Candidate },
}

impl Selection {
    /// Size of the model's files in bytes.
    pub fn bytes(&self) -> u64 {
        self.chosen().file_bytes
    }

    fn chosen(&self) -> &Candidate {
        match self {
            Selection::Gguf { candidates, chosen, .. } => &candidates[*chosen],
            Selection::Folder { candidate, .. } | Selection::Url { candidate } => candidate,
        }
    }

    /// The candidates, and the position of the chosen one.
    fn candidates(&self) -> (&[Candidate], usize) {
        match self {
            Selection::Gguf { candidates, chosen, .. } => (candidates, *chosen),
            Selection::Folder { candidate, .. } | Selection::Url { candidate } => {
                (std::slice::from_ref(candidate), 0)
            }
        }
    }

    /// Why these files: a table, and what to know about the chosen one.
    pub fn explanation(&self) -> String {
        let (candidates, chosen) = self.candidates();
        let mut text = choice::table(candidates, Some(chosen));
        if let Some(warning) = self.chosen().warning() {
            text += &format!("\nNote: {warning}.\n");
        }
        if let Selection::Folder { .. } = self {
            text += "\nThe weights are not quantised; `indrik quantize` converts them to 8 or 4 bits.\n";
        }
        if let Selection::Gguf { image_encoders, .. } = self
            && let Some(encoder) = image_encoders.first()
        {
            let size = format_bytes(encoder.bytes);
            text +=
                &format!("\nTo use images, add --mmproj: it also downloads the image encoder ({size}).\n");
        }
        text
    }

    pub fn to_json(&self, machine: &Machine) -> Value {
        let (candidates, _) = self.candidates();
        let chosen = self.chosen();
        json!({
            "device": machine.name, "usable_bytes": machine.usable(), "context_length": CONTEXT,
            "chosen": chosen.quant, "warning": chosen.warning(), "candidates": candidates,
        })
    }
}

/// Chooses among the files of the hub.
pub fn from_hub(
    hub: &Hub,
    query: &Query,
    machine: &Machine,
    report: &mut dyn FnMut(PullEvent),
) -> anyhow::Result<Selection> {
    let listings = list(hub, query, report)?;
    let mut pool: Vec<(usize, Variant)> = Vec::new();
    let mut encoders = Vec::new();
    let mut incomplete = Vec::new();
    for (index, listing) in listings.iter().enumerate() {
        let found = Variants::of(listing);
        for variant in found.models {
            // Of equal quantisations in several repositories, the first repository's is taken.
            let same = |(owner, known): &(usize, Variant)| {
                *owner != index
                    && known.quant.is_some()
                    && known.quant == variant.quant
                    && known.qat == variant.qat
            };
            if !pool.iter().any(same) {
                pool.push((index, variant));
            }
        }
        encoders.push(found.image_encoders);
        incomplete.extend(found.incomplete);
    }
    let Some(first) = listings.first() else { bail!("no repository to pull from") };
    if pool.is_empty() {
        return match incomplete.first() {
            Some(part) => {
                Err(no_model(first, format!("parts of {} are missing in the repository", printable(part))))
            }
            None => folder(hub, first, machine),
        };
    }
    let mut pool = requested(query.request, first, pool)?;
    let mut is_explicit = query.request.quant().is_some() || file_of(query.request).is_some();
    // Memory may have become free or scarce since an interrupted pull chose: what it downloaded is not thrown away.
    let interrupted = query.store.interrupted_file(query.name, query.request);
    let is_interrupted = |variant: &Variant| Some(&variant.files[0].path) == interrupted.as_ref();
    if let Some((_, variant)) = pool.iter().find(|(_, variant)| !is_explicit && is_interrupted(variant)) {
        note!("Continuing the interrupted pull of {}.", printable(variant.label()));
        pool.retain(|(_, variant)| is_interrupted(variant));
        is_explicit = true;
    }
    let (owners, variants): (Vec<usize>, Vec<Variant>) = pool.into_iter().unzip();
    let headers =
        |index: usize| Headers { hub, listing: &listings[owners[index]], variant: &variants[index] };
    let (candidates, chosen) = choose(&variants, &headers, machine, is_explicit)?;
    let index = candidates[chosen].index;
    Ok(Selection::Gguf {
        listing: listings[owners[index]].clone(),
        variant: variants[index].clone(),
        image_encoders: encoders[owners[index]].clone(),
        candidates,
        chosen,
    })
}

/// A file at any address.
pub fn from_url(hub: &Hub, url: &str, machine: &Machine) -> anyhow::Result<Selection> {
    let shown = url.split(['?', '#']).next().unwrap_or_default();
    let stem = shown.rsplit('/').next().unwrap_or_default();
    let quant = Quant::in_file_name(stem.strip_suffix(".gguf").unwrap_or(stem));
    let mut header = hub.header_at(url);
    let bytes = header.file_bytes()?;
    let path = PathBuf::from(stem);
    let preview = gguf::preview(&path, &mut header, bytes)?;
    check_tokenizer(&path, &preview)?;
    Config::from_gguf(&path, &|key| preview.get(key))?;
    header.rewind();
    let parsed = gguf::parse(&path, &mut header, bytes)?;
    if parsed.metadata.u32("split.count").is_ok_and(|count| count > 1) {
        bail!("{}: one part of a split model; pull it from its repository", path.display());
    }
    let file = RemoteFile { path: stem.to_string(), bytes, sha256: None };
    let variant = Variant { quant, qat: false, files: vec![file] };
    let candidate = Candidate::exact(0, &variant, &merged(&path, vec![parsed])?, machine)?;
    Ok(Selection::Url { candidate })
}

/// The listings of all repositories that respond. An error only if none does.
fn list(hub: &Hub, query: &Query, report: &mut dyn FnMut(PullEvent)) -> anyhow::Result<Vec<Listing>> {
    let (repositories, in_address): (Vec<Repository>, Option<&str>) = match query.request {
        ModelRequest::Catalogue { model, .. } => {
            (model.repositories.iter().filter_map(|name| Repository::parse(name)).collect(), None)
        }
        ModelRequest::Repository { repository, revision, .. } => {
            (vec![repository.clone()], revision.as_deref())
        }
        ModelRequest::Url(_) => (Vec::new(), None),
    };
    let asked = query.revision.or(in_address);
    let mut listings = Vec::new();
    let mut failures: Vec<(String, Error)> = Vec::new();
    for repository in repositories {
        let interrupted = query.store.interrupted_commit(query.name, &repository).filter(|_| asked.is_none());
        let listing = match &interrupted {
            // The commit may be gone, for instance after the repository was made anew.
            Some(commit) => match hub.list(&repository, commit, report) {
                Err(Error::NoRevision { .. }) => hub.list(&repository, "main", report),
                listing => listing,
            },
            None => hub.list(&repository, asked.unwrap_or("main"), report),
        };
        let listing = listing.or_else(|error| {
            let is_network = matches!(error, Error::Network { .. });
            let cached = hub.list_cached(&repository, asked.unwrap_or("main")).filter(|_| is_network);
            let cached = cached.ok_or(error)?;
            let reason = "the hub cannot be reached".to_string();
            report(PullEvent::Offline { repository: repository.to_string(), reason });
            Ok(cached)
        });
        match listing {
            Ok(listing) => listings.push(listing),
            // The other repositories are on the same hub.
            Err(error @ (Error::Network { .. } | Error::Cancelled)) => {
                failures.push((repository.to_string(), error));
                break;
            }
            Err(error) => failures.push((repository.to_string(), error)),
        }
    }
    if listings.is_empty()
        && let Some((_, error)) = failures.pop()
    {
        let is_network = matches!(error, Error::Network { .. });
        let error = anyhow::Error::from(error);
        return Err(match is_network {
            true => error
                .context("the model hub cannot be reached: check the network, HTTPS_PROXY and HF_ENDPOINT"),
            false => error,
        });
    }
    for (source, error) in failures {
        report(PullEvent::SourceFailed { source, reason: error.to_string() });
    }
    Ok(listings)
}

fn file_of(request: &ModelRequest) -> Option<&str> {
    match request {
        ModelRequest::Repository { file, .. } => file.as_deref(),
        _ => None,
    }
}

/// The variants that a request allows.
fn requested(
    request: &ModelRequest,
    listing: &Listing,
    pool: Vec<(usize, Variant)>,
) -> anyhow::Result<Vec<(usize, Variant)>> {
    let labels = |pool: &[(usize, Variant)]| {
        let labels: Vec<String> = pool.iter().map(|(_, variant)| printable(variant.label())).collect();
        labels.join(", ")
    };
    let all = labels(&pool);
    let keep = |pool: Vec<(usize, Variant)>, condition: &dyn Fn(&Variant) -> bool| {
        pool.into_iter().filter(|(_, variant)| condition(variant)).collect::<Vec<_>>()
    };
    let mut pool = pool;
    if let ModelRequest::Catalogue { qat: true, .. } = request {
        pool = keep(pool, &|variant| variant.qat);
        if pool.is_empty() {
            return Err(no_model(listing, format!("has no QAT files; it has {all}")));
        }
    }
    if let Some(file) = file_of(request) {
        pool = keep(pool, &|variant| variant.files.iter().any(|known| known.path == file));
        if pool.is_empty() {
            return Err(no_model(listing, format!("has no file '{}'; it has {all}", printable(file))));
        }
        return Ok(pool);
    }
    if let Some(quant) = request.quant() {
        pool = keep(pool, &|variant| variant.quant == Some(quant));
        if pool.is_empty() {
            return Err(no_model(listing, format!("has no {quant} file; it has {all}")));
        }
        return Ok(pool);
    }
    let supported = keep(pool, &|variant| variant.quant.is_none_or(Quant::is_supported));
    if supported.is_empty() {
        let fix = "choose a repository with Q8_0, Q4_K_M or Q4_0 files";
        return Err(no_model(listing, format!("its quantisations are not supported ({all}): {fix}")));
    }
    // Unquantised weights are twice as large as Q8_0 for hardly any gain: only on request, or if there is
    // nothing else.
    let is_float = |variant: &Variant| variant.quant.is_some_and(Quant::is_float);
    let quantised = keep(supported.clone(), &|variant| !is_float(variant));
    Ok(if quantised.is_empty() { supported } else { quantised })
}

/// Access to the headers of a variant's files.
struct Headers<'a> {
    hub: &'a Hub<'a>,
    listing: &'a Listing,
    variant: &'a Variant,
}

impl Headers<'_> {
    fn path(&self, file: &RemoteFile) -> PathBuf {
        Path::new("hf.co").join(self.listing.repository.to_string()).join(printable(&file.path))
    }

    /// The model's dimensions, from the first kilobytes of the first file; `None` for an embedding model.
    fn config(&self) -> anyhow::Result<Option<Config>> {
        let file = &self.variant.files[0];
        let path = self.path(file);
        let mut header = self.hub.header(self.listing, file);
        let preview = gguf::preview(&path, &mut header, file.bytes)?;
        check_tokenizer(&path, &preview)?;
        if is_embedding_gguf(&preview.metadata) {
            return Ok(None);
        }
        match Config::from_gguf(&path, &|key| preview.get(key)) {
            // Some converters write the vocabulary before the dimensions.
            Err(error) if !matches!(error, checkpoint::Error::Unsupported { .. }) => {
                header.rewind();
                let parsed = gguf::parse(&path, &mut header, file.bytes)?;
                Ok(Some(Config::from_gguf(&path, &|key| parsed.metadata.get(key).map(MetaValue::from))?))
            }
            config => Ok(Some(config?)),
        }
    }

    /// The model as the complete headers of all files describe it.
    fn checkpoint(&self) -> anyhow::Result<Checkpoint> {
        let mut parts = Vec::new();
        for file in &self.variant.files {
            let header = self.hub.header(self.listing, file);
            parts.push(gguf::parse(&self.path(file), header, file.bytes)?);
        }
        merged(&self.path(&self.variant.files[0]), parts)
    }
}

/// Joins the headers of all parts to one model, and checks that it is complete.
fn merged(path: &Path, parts: Vec<gguf::Gguf>) -> anyhow::Result<Checkpoint> {
    let mut parts = parts.into_iter().enumerate();
    let (_, mut model) = parts.next().context("a model without files")?;
    for (index, part) in parts {
        let tensors = part.source.tensors.into_iter().map(|mut tensor| {
            tensor.data.file = index;
            tensor
        });
        model.source.tensors.extend(tensors);
        model.source.files.extend(part.source.files);
    }
    let config = Config::from_gguf(path, &|key| model.metadata.get(key).map(MetaValue::from))?;
    let inventory = complete::check(&config, &model.source)
        .map_err(|incomplete| checkpoint::Error::Incomplete { path: path.to_path_buf(), incomplete })?;
    Ok(Checkpoint { path: path.to_path_buf(), source: model.source, config, inventory })
}

/// Fails if the text of the model could not be tokenised.
fn check_tokenizer(path: &Path, preview: &gguf::Preview) -> anyhow::Result<()> {
    let text = |key: &str| preview.metadata.str(key).ok();
    if text("tokenizer.ggml.model") == Some("gpt2") {
        text::check_pretokenizer(text("tokenizer.ggml.pre")).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Ranks the variants and chooses one. The sizes of the chosen one are exact.
fn choose<'a>(
    variants: &'a [Variant],
    headers: &dyn Fn(usize) -> Headers<'a>,
    machine: &Machine,
    is_explicit: bool,
) -> anyhow::Result<(Vec<Candidate>, usize)> {
    let ranked = choice::rank(variants);
    let Some(config) = headers(ranked[0]).config()? else {
        let candidates: Vec<Candidate> =
            ranked.into_iter().map(|index| Candidate::embedding(index, &variants[index], machine)).collect();
        let chosen = if is_explicit { Some(0) } else { choice::choose(&candidates) };
        return match chosen {
            Some(chosen) => Ok((candidates, chosen)),
            None => Err(too_large(&candidates, machine)),
        };
    };
    let mut candidates: Vec<Candidate> = ranked
        .into_iter()
        .map(|index| Candidate::estimated(index, &variants[index], &config, machine))
        .collect();
    loop {
        let chosen = if is_explicit { Some(0) } else { choice::choose(&candidates) };
        let Some(chosen) = chosen else { return Err(too_large(&candidates, machine)) };
        if candidates[chosen].exact {
            return Ok((candidates, chosen));
        }
        let index = candidates[chosen].index;
        let exact = headers(index)
            .checkpoint()
            .and_then(|checkpoint| Candidate::exact(index, &variants[index], &checkpoint, machine));
        match exact {
            Ok(exact) => candidates[chosen] = exact,
            // A mix may contain an unsupported type that its name does not tell.
            Err(error) if !is_explicit && candidates.len() > 1 && is_unsupported(&error) => {
                note!("{}: {error:#}", candidates[chosen].quant);
                candidates.remove(chosen);
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_unsupported(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<checkpoint::Error>(), Some(checkpoint::Error::Unsupported { .. }))
}

fn too_large(candidates: &[Candidate], machine: &Machine) -> anyhow::Error {
    let Some(smallest) = candidates.iter().min_by_key(|candidate| candidate.weight_bytes) else {
        return anyhow::anyhow!("nothing to choose from");
    };
    let needed = smallest.weight_bytes + smallest.kv_bytes + smallest.scratch_bytes;
    anyhow::anyhow!(
        "not enough memory: even {} needs {} with an 8k context, and {} offers {}; `indrik search` marks the models that \
         fit, and --quant {} pulls it anyway",
        smallest.quant,
        format_bytes(needed),
        machine.name,
        format_bytes(machine.usable()),
        smallest.quant.trim_end_matches(" (QAT)"),
    )
}

fn no_model(listing: &Listing, reason: String) -> anyhow::Error {
    Error::NoModel { repository: listing.repository.to_string(), reason }.into()
}

/// A repository with safetensors.
fn folder(hub: &Hub, listing: &Listing, machine: &Machine) -> anyhow::Result<Selection> {
    let find = |path: &str| listing.files.iter().find(|file| file.path == path);
    let weights = find("model.safetensors").or_else(|| find("model.safetensors.index.json"));
    let (Some(file), Some(_)) = (find("config.json"), weights) else {
        let reason = "has neither GGUF files nor config.json with model.safetensors; look for a GGUF \
                      repository of this model on the hub";
        return Err(no_model(listing, reason.to_string()));
    };
    if find("tokenizer.json").is_none() {
        return Err(no_model(
            listing,
            "has no tokenizer.json; choose a repository with GGUF files".to_string(),
        ));
    }
    let path = Path::new("hf.co").join(listing.repository.to_string()).join("config.json");
    let json: Value = serde_json::from_str(&hub.text(listing, file)?)
        .map_err(|error| no_model(listing, format!("its config.json is invalid ({error})")))?;
    let embeds = find("modules.json").is_some() || json.get("model_type").is_some_and(|kind| kind == "bert");
    let config = if embeds { None } else { Some(Config::from_hf(&path, &json)?) };
    if let Some(scheme) = json.get("quantization_config").filter(|scheme| !scheme.is_null()) {
        let method = scheme.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        let reason = format!(
            "its quantisation '{}' is not supported; choose the unquantised repository, or one with GGUF files",
            printable(method.chars().take(40).collect::<String>())
        );
        return Err(no_model(listing, reason));
    }
    let dtype = json.get("torch_dtype").or_else(|| json.get("dtype")).and_then(Value::as_str);
    let quant = match dtype {
        Some("float32") => "F32",
        Some("float16") => "F16",
        _ => "BF16",
    };
    let is_weights = |file: &&RemoteFile| file.path.ends_with(".safetensors") && !file.path.contains('/');
    let files: Vec<RemoteFile> = listing.files.iter().filter(is_weights).cloned().collect();
    let variant = Variant { quant: Quant::parse(quant), qat: false, files };
    let candidate = match &config {
        Some(config) => Candidate::estimated(0, &variant, config, machine),
        None => Candidate::embedding(0, &variant, machine),
    };
    if let Fit::TooLarge { .. } = candidate.fit {
        note!(
            "{}: does not fit unquantised; `indrik quantize` can convert it after the pull",
            listing.repository
        );
    }
    Ok(Selection::Folder { listing: listing.clone(), candidate })
}
