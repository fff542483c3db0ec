//! `indrik serve`: an HTTP server for one model or several.
//!
//! 1. `settings` resolves flags, environment variables and the settings file; `offer` says which models may be named.
//! 2. The first model's metadata is read and the port is bound, so that mistakes in either are reported at once.
//! 3. `load` loads the models of the start, and later those that requests name: it records their programs and starts
//!    their engines. Until the former are loaded, `/health` responds and `/ready` returns the loading stage.
//! 4. `signals`: the first signal drains running requests, the second one cancels them. `notify` reports both to
//!    the service manager.

mod controls;
mod gauges;
mod hardware;
mod kv_events;
mod load;
mod notify;
mod offer;
mod pulls;
mod settings;
mod signals;
mod summary;
mod values;

use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{ArgMatches, Args};
use kvevents::Publisher;
use server::{Models, PoolOptions, Server};

use crate::{
    logging::{self, announce},
    output,
};
use controls::Controls;
use load::Loader;
use offer::Offer;
use pulls::UserStore;
use settings::{Flags, Settings};
use signals::{DrainTimes, Outcome};

/// Serve a model over HTTP with the APIs of OpenAI, Anthropic and Ollama
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
    let offer = Offer::new(settings)?;
    // Mistakes in the model's name or settings are reported at once.
    let first = offer.preload().first().map(|name| offer.open(&offer.locate(name)?)).transpose()?;
    let first = first.map(|first| first.description());
    let takes_images = offer.whole_store || offer.list().iter().any(server::ModelDescription::takes_images);
    if takes_images && !offer.settings().is_set("max-body-size") {
        config.max_body_bytes = config.max_body_bytes.max(BODY_BYTES_WITH_IMAGES);
    }
    let loader = Loader::new(offer)?;
    let settings = loader.offer.settings();
    let options = PoolOptions {
        preload: loader.offer.preload(),
        is_single: loader.offer.is_single(),
        memory_budget: loader.memory_budget,
        unload_after: settings.unload_after.map(|time| time.0),
        load_timeout: settings.load_timeout.0,
    };
    let models = Models::on_demand(Arc::new(loader.clone()), options);
    let mut models = models.with_machine(Arc::new(loader.hardware.clone()));
    if loader.offer.whole_store {
        models = models.with_store(Arc::new(UserStore { device: settings.device.clone() }));
    }

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let address = SocketAddr::new(settings.host, settings.port);
    let max_body_bytes = config.max_body_bytes;
    let server = runtime.block_on(Server::bind(address, config, models));
    let server = server.map_err(|error| anyhow::anyhow!(bind_error(address, &error)))?;
    let address = server.address()?;
    let url = format!("http://{address}");
    let publisher = kv_events::start(&loader.offer, first.as_ref(), address)?;
    if let Some(publisher) = &publisher {
        loader.hardware.set_kv_events(publisher.monitor());
    }
    if let Some(model) = first {
        announce(format_args!("Loading {}; {url}/health is up.", model.id));
    }

    let controls =
        Controls { server: server.handle(), models: server.models(), reload: loader.reload.clone() };
    let models = controls.models.clone();
    let json = arguments.json;
    let ready = async {
        models.preload().await?;
        notify::ready();
        report_ready(&loader, &url, max_body_bytes, started, publisher.as_ref(), json);
        Ok(())
    };
    let times = DrainTimes { linger: settings.drain_linger.0, timeout: settings.drain_timeout.0 };
    let outcome = runtime.block_on(async {
        let signals = signals::Signals::listen().context("cannot install signal handlers")?;
        anyhow::Ok(signals.serve(server, &controls, times, ready).await)
    })?;
    // A read of a sensor that hangs must not keep the process.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    if let Some(disk) = &loader.offer.prefix_disk {
        // The last pages of the engines that have ended. Signals are not handled any more.
        if !disk.flush_within(FLUSH_TIMEOUT) {
            announce(format_args!(
                "The prefix cache on disk does not respond: exiting without its last pages."
            ));
            std::process::exit(1);
        }
    }
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

/// Time for the prefix cache on disk to write its last pages.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for threads that may block to end, once all requests have.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Says that the server is ready, where, and with which settings.
fn report_ready(
    loader: &Loader,
    url: &str,
    max_body_bytes: usize,
    started: Instant,
    publisher: Option<&Publisher>,
    json: bool,
) {
    let settings = loader.offer.settings();
    let report = loader.report.lock().unwrap_or_else(PoisonError::into_inner).take();
    let mut lines = vec![];
    if settings.webui {
        lines.push(format!("web UI   {url}/ in a browser: chat and dashboard"));
    }
    lines.extend(load::on_demand_line(loader));
    lines.extend(publisher.map(kv_events::line));
    lines.extend(summary::settings_lines(settings, max_body_bytes));
    lines.extend(publisher.into_iter().flat_map(kv_events::warnings));
    lines.iter().for_each(|line| announce(format_args!("{line}")));
    let seconds = started.elapsed().as_secs_f64();
    let name = report.as_ref().map_or("The server", |report| report.model());
    announce(format_args!("{name} is ready at {url}/v1 after {seconds:.1} s."));
    if json {
        let report = report.unwrap_or_default().ready_at(url, seconds);
        let report = match publisher {
            Some(publisher) => report.with_kv_events(publisher),
            None => report,
        };
        let line = serde_json::to_string(&report).expect("a report serialises to JSON");
        // A closed standard output is no reason to stop serving.
        let _ = output::print(&(line + "\n"));
    }
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
