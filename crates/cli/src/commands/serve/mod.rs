//! `indrik serve`: a model behind OpenAI's protocol, until it is told to stop.
//!
//! 1. `settings`: flags, environment and file become one set of settings.
//! 2. The model's files are looked at and the port is taken: what is wrong with either shows at once.
//! 3. `load`: a thread of its own loads the model, records its programs, and puts an engine in the server's [`Place`]. Until then
//!    `/health` answers and `/ready` says what is being done.
//! 4. `signals`: the first lets running requests finish, the second ends everything. `notify` tells a service manager of both ends.

mod gauges;
mod load;
mod notify;
mod settings;
mod shown;
mod signals;
mod values;

use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use clap::{ArgMatches, Args};
use model::language::Language;
use server::{Handle, Place, Server};
use weights::stream::Control;

use crate::{
    loading::{ModelArguments, Opened, Space},
    sampling::recommended,
};
use gauges::Roofline;
use load::Loader;
use settings::{Flags, Settings};
use signals::End;

/// Serves a model over HTTP, in OpenAI's protocol
#[derive(Args)]
#[command(after_help = "Example: indrik serve -m gemma-3-4b-it --api-key-file keys.txt\n\n\
                        Every setting is a flag, a variable of the environment, or a key of the file that --config names; \
                        they count in this order. SIGTERM and Ctrl-C let running requests finish, a second one ends them.")]
pub struct Arguments {
    #[command(flatten)]
    flags: Flags,
    /// A TOML file with settings, by the names of the flags
    #[arg(long, env = "INDRIK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// A line of JSON on standard output when requests are answered
    #[arg(long)]
    json: bool,
}

/// What the parts of a running server share.
struct Running {
    handle: Handle,
    place: Arc<Place>,
    /// Stops the loading.
    control: Arc<Control>,
    /// Of loading again after the device was lost, while requests still want their answers.
    again: Arc<Control>,
}

pub fn run(arguments: &Arguments, given: &ArgMatches) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    // A server opens its device again when it was lost; before the first thread of anyone.
    gpu::share_malloc();
    let settings = Settings::read(&arguments.flags, arguments.config.as_ref(), given)?;
    let config = settings.config()?;
    let opened = model_arguments(&settings)?.open()?;
    let language = opened.language()?;
    let space = space(&settings, &opened)?;
    let roofline = Roofline::default();
    let known = roofline.clone();
    let place = Place::new(space.context, "the model is being loaded");
    let place = Arc::new(place.with_gauges(move |status| gauges::read(status, &known)));
    let model = served(&settings, &opened, language);
    let id = model.id.clone();

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let address = SocketAddr::new(settings.host, settings.port);
    let server = runtime.block_on(Server::bind(address, config, model, place.clone()));
    let server = server.map_err(|error| anyhow::anyhow!(told(address, &error)))?;
    let url = format!("http://{}", server.address()?);
    note!("{id} is being loaded; {url}/health answers already.");

    let running = Running { handle: server.handle(), place, control: Arc::default(), again: Arc::default() };
    let json = arguments.json;
    let loader = Loader { opened, space, settings: &settings, roofline, url, id, started, json };
    let loading = loader.start(&running)?;
    let end = runtime.block_on(async {
        let signals = signals::Signals::listen().context("signals cannot be heard")?;
        anyhow::Ok(signals.serve(server, &running, settings.drain_time.0, loading).await)
    })?;
    match end {
        End::Drained => note!("All requests are done."),
        End::CutOff(why) => note!("{why}: what was not done was cut off."),
        End::Failed(error) => return Err(error),
    }
    Ok(if matches!(end, End::Drained) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn model_arguments(settings: &Settings) -> anyhow::Result<ModelArguments> {
    let model = settings.model.clone().context(
        "which model? Say it with -m, INDRIK_MODEL or the key `model` of the settings; `indrik pull` lists what there is",
    )?;
    Ok(ModelArguments {
        model,
        chunk: settings.chunk.map(|chunk| chunk.get()),
        kv: settings.kv,
        reproducible: settings.reproducible,
        device: settings.device.clone(),
    })
}

fn space(settings: &Settings, opened: &Opened) -> anyhow::Result<Space> {
    let context = match settings.context {
        Some(context) => opened.check_context(context.get() as usize)?,
        None => opened.usual_context(),
    };
    let positions = settings.positions.map(|positions| positions.get());
    if let Some(positions) = positions.filter(|positions| *positions < context) {
        anyhow::bail!(
            "--positions is {positions}, but one answer alone may have {context}: raise it, or lower --context"
        );
    }
    Ok(Space { sequences: settings.sequences.get(), context, positions, prefix: settings.prefix_cache })
}

/// What the server is told of the model.
fn served(settings: &Settings, opened: &Opened, language: Language) -> server::Model {
    let path = &opened.checkpoint.path;
    // A file goes by its name without the ending, a folder and a model of the store by theirs.
    let own = if path.is_file() { path.file_stem() } else { path.file_name() };
    let own = own.map(|name| name.to_string_lossy().into_owned());
    let asked = settings.model.clone().filter(|model| !model.contains('/') && !PathBuf::from(model).exists());
    let modified = std::fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    server::Model {
        id: settings.name.clone().or(asked).or(own).unwrap_or_else(|| "model".to_owned()),
        created: modified.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        tokenizer: language.tokenizer,
        vocab: opened.checkpoint.config.vocab,
        ends: language.ends,
        template: language.template,
        sampling: recommended(opened.checkpoint.config.architecture),
    }
}

/// Why an address cannot be had, and what to do.
fn told(address: SocketAddr, error: &std::io::Error) -> String {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => "another program listens there; end it, or take another port with --port",
        ErrorKind::AddrNotAvailable => "this machine has no such address; look at --host",
        ErrorKind::PermissionDenied => "ports below 1024 are for root; take another with --port",
        ErrorKind::InvalidInput => return error.to_string(),
        _ => "look at --host and --port",
    };
    format!("cannot listen on {address}: {error}; {advice}")
}
