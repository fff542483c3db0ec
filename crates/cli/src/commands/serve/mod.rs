//! `indrik serve`: an OpenAI-compatible HTTP server for one model.
//!
//! 1. `settings` resolves flags, environment variables and the settings file.
//! 2. The model's metadata is read and the port is bound, so that mistakes in either are reported at once.
//! 3. `load`: a thread loads the model, records its programs and puts an engine into the server's [`EngineSlot`].
//!    Until then `/health` responds and `/ready` returns the loading stage.
//! 4. `signals`: the first signal drains running requests, the second one cancels them. `notify` reports both to
//!    the service manager.

mod controls;
mod gauges;
mod hardware;
mod load;
mod notify;
mod settings;
mod signals;
mod summary;
mod values;

use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{ArgMatches, Args};
use indrik::{ModelFiles, Options};
use model::ImageProcessor;
use server::{EngineSlot, Server};

use crate::{
    loading::{LoadArguments, ModelArguments},
    logging::{self, announce},
};
use controls::Controls;
use hardware::Hardware;
use load::Loader;
use settings::{Flags, Settings};
use signals::Outcome;

/// Serve a model over HTTP with an OpenAI-compatible API
#[derive(Args)]
#[command(after_help = "Example: indrik serve -m gemma-3-4b-it --api-key-file keys.txt\n\n\
                        Every setting is a flag, an environment variable, or a key of the file given by --config, in this order \
                        of precedence. SIGTERM and Ctrl-C drain running requests; a second signal cancels them.")]
pub struct Arguments {
    #[command(flatten)]
    flags: Flags,
    /// TOML settings file; keys are the names of the flags
    #[arg(long, env = "INDRIK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do not serve the web UI at /; the same as --webui=false
    #[arg(long)]
    no_webui: bool,
    /// Print one line of JSON to standard output when the server is ready
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    // Otherwise every reopening of a lost device would leave memory behind in malloc's arenas. Must run before the
    // first thread starts.
    gpu::limit_malloc_arenas();
    let mut settings = Settings::read(&arguments.flags, arguments.config.as_ref(), matches)?;
    settings.webui &= !arguments.no_webui;
    logging::init("info", settings.log_format);
    let mut config = settings.config()?;
    let model = model_arguments(&settings)?;
    let files = model.open()?;
    let (options, context_length) = load_options(&settings, model.options(), &files)?;
    let hardware = Hardware::default();
    let (for_metrics, for_stats) = (hardware.clone(), hardware.clone());
    let slot = EngineSlot::new(context_length, "the model is loading");
    let slot = slot
        .with_gauges(move |status| gauges::read(status, &for_metrics))
        .with_hardware(move |status| for_stats.read(status));
    let slot = Arc::new(slot);
    let model = served_model(&settings, &files)?;
    if model.images.is_ok() && !settings.is_set("max-body-size") {
        settings.max_body_size.0 = settings.max_body_size.0.max(BODY_BYTES_WITH_IMAGES);
        config.max_body_bytes = settings.max_body_size.0;
    }
    let id = model.id.clone();

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let address = SocketAddr::new(settings.host, settings.port);
    let server = runtime.block_on(Server::bind(address, config, model, slot.clone()));
    let server = server.map_err(|error| anyhow::anyhow!(bind_error(address, &error)))?;
    let url = format!("http://{}", server.address()?);
    announce(format_args!("Loading {id}; {url}/health is up."));

    let controls = Controls { server: server.handle(), slot, load: Arc::default(), reload: Arc::default() };
    let json = arguments.json;
    let loader = Loader { files, options, settings: &settings, hardware, url, id, started, json };
    let loading = loader.start(&controls)?;
    let outcome = runtime.block_on(async {
        let signals = signals::Signals::listen().context("cannot install signal handlers")?;
        anyhow::Ok(signals.serve(server, &controls, settings.drain_timeout.0, loading).await)
    })?;
    // A read of a sensor that hangs must not keep the process.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    match outcome {
        Outcome::Drained => announce(format_args!("All requests finished.")),
        Outcome::Cancelled(reason) => announce(format_args!("{reason}: unfinished requests were cancelled.")),
        Outcome::Failed(error) => return Err(error),
    }
    Ok(if matches!(outcome, Outcome::Drained) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Maximum size of a request body if the model takes images, unless the settings say otherwise: photos of a phone in
/// base64.
const BODY_BYTES_WITH_IMAGES: usize = 20 << 20;

/// Time for threads that may block to end, once all requests have.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

fn model_arguments(settings: &Settings) -> anyhow::Result<ModelArguments> {
    let model = settings.model.clone().context(
        "no model given: use -m, INDRIK_MODEL or the key `model` of the settings file; `indrik pull` lists the models that can be downloaded",
    )?;
    Ok(ModelArguments {
        model,
        load: LoadArguments {
            prefill_chunk: settings.prefill_chunk.map(|chunk| chunk.get()),
            kv: settings.kv,
            reproducible: settings.reproducible,
            no_images: !settings.images,
            image_tokens: settings.image_tokens.map(|tokens| tokens.get()),
            device: settings.device.clone(),
        },
    })
}

/// Load options from the settings, and the resulting context length.
fn load_options(settings: &Settings, base: Options, files: &ModelFiles) -> anyhow::Result<(Options, u32)> {
    let context_length = match settings.context {
        Some(context) => files.check_context_length(context.get() as usize)?,
        None => files.default_context_length(),
    };
    let tokens = settings.kv_cache_tokens.map(|tokens| tokens.get());
    if let Some(tokens) = tokens.filter(|tokens| *tokens < context_length) {
        anyhow::bail!(
            "--kv-cache-tokens is {tokens}, less than the context length {context_length} of a single sequence: raise it, or lower --context"
        );
    }
    let options = Options {
        max_sequences: settings.max_sequences.get(),
        context_length: Some(context_length),
        kv_cache_tokens: tokens,
        prefix_cache: settings.prefix_cache,
        step_timeout: settings.step_timeout.0,
        queue_capacity: settings.max_queue,
        ..base
    };
    Ok((options, context_length))
}

/// The model in the form that the server needs.
fn served_model(settings: &Settings, files: &ModelFiles) -> anyhow::Result<server::Model> {
    // A name in the model store is a better default than the name of its file.
    let store_name =
        settings.model.clone().filter(|model| !model.contains('/') && !PathBuf::from(model).exists());
    let mut served = files.served_as(settings.name.clone().or(store_name.clone()))?;
    if settings.pan_and_scan {
        let with_crops = served.images.map(ImageProcessor::with_pan_and_scan);
        served.images = match with_crops {
            Ok(Err(reason)) => anyhow::bail!("--pan-and-scan: {reason} (--image-tokens)"),
            Ok(Ok(processor)) => Ok(processor),
            Err(reason) => Err(reason),
        };
    }
    if !settings.images {
        served.images = Err("images are turned off (--images=false)".to_owned());
    }
    // Requests may use the name that `indrik models` lists, and the one given here.
    let entries = store::Store::open_default().and_then(|store| store.entries()).unwrap_or_default();
    let listed = entries.into_iter().find(|entry| entry.path == files.path()).map(|entry| entry.name);
    for name in listed.into_iter().chain(store_name) {
        if name != served.id && !served.aliases.contains(&name) {
            served.aliases.push(name);
        }
    }
    Ok(served)
}

/// Message for an address that cannot be bound, with advice.
fn bind_error(address: SocketAddr, error: &std::io::Error) -> String {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => {
            "another program is listening there; stop it, or choose another port with --port"
        }
        ErrorKind::AddrNotAvailable => "this machine has no such address; check --host",
        ErrorKind::PermissionDenied => "ports below 1024 need root; choose another one with --port",
        ErrorKind::InvalidInput => return error.to_string(),
        _ => "check --host and --port",
    };
    format!("cannot listen on {address}: {error}; {advice}")
}
