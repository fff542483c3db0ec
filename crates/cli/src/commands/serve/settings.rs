//! Server settings: flags, environment variables, a TOML file, defaults, in that order of precedence.
//!
//! One list, the `settings!` invocation below, generates the flags, the environment variables, the TOML keys and
//! the table in docs/serving.md. A renamed setting keeps its old flag, variable and key (`was`) for one release.

use std::{fmt, net::IpAddr, num::NonZeroU32, path::PathBuf, str::FromStr};

use anyhow::{Context, bail};
use clap::{ArgMatches, Args, parser::ValueSource};
use serde::Deserialize;

use super::values::{MetricNames, Size, TcpAddress, Time};
use crate::{loading::Kv, logging::LogFormat, npu::NpuUse, speculate::Speculate, think::Think};

/// A row of the settings table in the documentation.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Flag without its dashes; also the TOML key.
    pub name: &'static str,
    /// Environment variable.
    pub variable: &'static str,
    /// Default value, as text.
    pub default: &'static str,
    /// Help text.
    pub help: &'static str,
}

/// Where a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Flag,
    Environment,
    File,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Flag => "flag",
            Source::Environment => "environment",
            Source::File => "file",
        })
    }
}

/// Looks up an environment variable. clap reads the current names itself; this is for the deprecated ones.
type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Settings with a default (`defaulted`), without one (`optional`), and those that take several values (`lists`).
macro_rules! settings {
    (
        defaulted { $($(#[$attribute:meta])* $name:ident: $type:ty, $flag:literal $(was $old:literal)?, $variable:literal, $default:literal, $help:literal;)* }
        optional { $($(#[$opt_attribute:meta])* $opt:ident: $opt_type:ty, $opt_flag:literal $(was $opt_old:literal)?, $opt_variable:literal, $opt_default:literal, $opt_help:literal;)* }
        lists { $($list:ident, $list_flag:literal, $list_variable:literal, $list_value:literal, $list_help:literal;)* }
    ) => {
        /// Command-line flags and environment variables; `None` and empty lists are settings not given.
        #[derive(Args)]
        pub struct Flags {
            $($(#[$opt_attribute])*
            $(#[arg(alias = $opt_old)])?
            #[arg(long = $opt_flag, env = $opt_variable, help = concat!($opt_help, " [default: ", $opt_default, "]"))]
            $opt: Option<$opt_type>,)*
            $($(#[$attribute])*
            $(#[arg(alias = $old)])?
            #[arg(long = $flag, env = $variable, help = concat!($help, " [default: ", $default, "]"))]
            $name: Option<$type>,)*
            $(#[arg(long = $list_flag, env = $list_variable, value_name = $list_value, value_delimiter = ',', hide_env_values = true, help = $list_help)]
            $list: Vec<String>,)*
        }

        /// Keys of the TOML file.
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        struct File {
            $($(#[serde(alias = $old)])? $name: Option<$type>,)*
            $($(#[serde(alias = $opt_old)])? $opt: Option<$opt_type>,)*
            $(#[serde(default)] $list: Vec<String>,)*
        }

        /// Resolved settings.
        #[derive(Debug)]
        pub struct Settings {
            $(pub $name: $type,)*
            $(pub $opt: Option<$opt_type>,)*
            $(pub $list: Vec<String>,)*
            /// Settings that were given: name, value as text (a count for secrets), source.
            pub set: Vec<(&'static str, String, Source)>,
            /// Deprecated names in use, each with its replacement.
            pub deprecated: Vec<String>,
        }

        /// All settings in the order of `--help`.
        #[cfg(test)]
        pub const ROWS: &[Row] = &[
            $(Row { name: $opt_flag, variable: $opt_variable, default: $opt_default, help: $opt_help },)*
            $(Row { name: $flag, variable: $variable, default: $default, help: $help },)*
            $(Row { name: $list_flag, variable: $list_variable, default: "none", help: $list_help },)*
        ];

        /// Renamed settings: the current name and the deprecated one.
        pub const RENAMED: &[(&str, &str)] = &[
            $($(($opt_flag, $opt_old),)?)*
            $($(($flag, $old),)?)*
        ];

        impl Flags {
            fn resolve(&self, file: File, matches: &ArgMatches, environment: Environment<'_>) -> anyhow::Result<Settings> {
                let mut set = vec![];
                $(
                    #[allow(unused_mut, unused_assignments, reason = "only renamed settings have a deprecated variable")]
                    let mut deprecated = None;
                    $(deprecated = from_deprecated::<$opt_type>($opt_old, environment)?;)?
                    let $opt = first_given(stringify!($opt), &self.$opt, deprecated, file.$opt, matches, $opt_flag, &mut set);
                )*
                $(
                    #[allow(unused_mut, unused_assignments, reason = "only renamed settings have a deprecated variable")]
                    let mut deprecated = None;
                    $(deprecated = from_deprecated::<$type>($old, environment)?;)?
                    let $name = match first_given(stringify!($name), &self.$name, deprecated, file.$name, matches, $flag, &mut set) {
                        Some(value) => value,
                        None => $default.parse::<$type>().map_err(|error| anyhow::anyhow!("--{}: {error}", $flag))?,
                    };
                )*
                $(let $list = list_given(stringify!($list), &self.$list, file.$list, matches, $list_flag, &mut set);)*
                Ok(Settings { $($name,)* $($opt,)* $($list,)* set, deprecated: vec![] })
            }
        }
    };
}

settings! {
    defaulted {
        host: IpAddr, "host", "INDRIK_HOST", "127.0.0.1", "Address to listen on; 0.0.0.0 accepts connections from other machines";
        port: u16, "port", "INDRIK_PORT", "8006", "Port to listen on; 0 picks a free one";
        max_sequences: NonZeroU32, "max-sequences" was "sequences", "INDRIK_MAX_SEQUENCES", "8", "Maximum number of concurrent sequences (batch size)";
        max_queue: usize, "max-queue" was "queue", "INDRIK_MAX_QUEUE", "64", "Maximum number of queued requests; more are rejected with 429";
        queue_timeout: Time, "queue-timeout" was "queue-time", "INDRIK_QUEUE_TIMEOUT", "60s", "Maximum time in the queue before a request is rejected with 429";
        request_timeout: Time, "request-timeout" was "request-time", "INDRIK_REQUEST_TIMEOUT", "10min", "Maximum time from a request's arrival to its last token";
        max_choices: NonZeroU32, "max-choices" was "choices", "INDRIK_MAX_CHOICES", "16", "Maximum number of choices per request (n times the number of prompts)";
        max_body_size: Size, "max-body-size" was "body-size", "INDRIK_MAX_BODY_SIZE", "4MiB", "Maximum size of a request body; 20MiB by default if a model takes images";
        max_inflight_body_size: Size, "max-inflight-body-size" was "bodies-size", "INDRIK_MAX_INFLIGHT_BODY_SIZE", "32MiB", "Total memory for request bodies in flight beyond the first 64 KiB of each; slow ones give way";
        body_timeout: Time, "body-timeout" was "body-time", "INDRIK_BODY_TIMEOUT", "30s", "Maximum time to receive a request body";
        max_header_size: Size, "max-header-size" was "head-size", "INDRIK_MAX_HEADER_SIZE", "64KiB", "Maximum size of the request line and headers; at least 8KiB";
        header_timeout: Time, "header-timeout" was "head-time", "INDRIK_HEADER_TIMEOUT", "30s", "Maximum time to receive the headers; also the idle timeout of a connection";
        stall_timeout: Time, "stall-timeout" was "stall-time", "INDRIK_STALL_TIMEOUT", "60s", "Maximum time a write to a client may block before the connection is closed";
        keep_alive: Time, "keep-alive", "INDRIK_KEEP_ALIVE", "15s", "Interval of keep-alive comments in a stream without new tokens";
        max_stored_responses: usize, "max-stored-responses", "INDRIK_MAX_STORED_RESPONSES", "1024", "Maximum number of stored responses (/v1/responses); the least recently used ones are evicted";
        max_stored_size: Size, "max-stored-size", "INDRIK_MAX_STORED_SIZE", "64MiB", "Total memory for stored responses";
        max_connections: NonZeroU32, "max-connections" was "connections", "INDRIK_MAX_CONNECTIONS", "512", "Maximum number of connections with requests; a further one replaces a silent, idle or slow one";
        probe_timeout: Time, "probe-timeout" was "probe-time", "INDRIK_PROBE_TIMEOUT", "5s", "Maximum time for the GPU to respond to the /ready probe";
        step_timeout: Time, "step-timeout" was "step-time", "INDRIK_STEP_TIMEOUT", "5min", "Maximum time of a step on the GPU before the device counts as lost";
        load_timeout: Time, "load-timeout", "INDRIK_LOAD_TIMEOUT", "5min", "Maximum time that a request waits for its model to be loaded";
        drain_linger: Time, "drain-linger", "INDRIK_DRAIN_LINGER", "3s", "Time after SIGTERM for which the port stays open even if no request runs, so that gateways see /ready fail";
        drain_timeout: Time, "drain-timeout" was "drain-time", "INDRIK_DRAIN_TIMEOUT", "30s", "Maximum time for running requests to finish after SIGTERM and --drain-linger";
        grammar_workers: NonZeroU32, "grammar-workers" was "grammars", "INDRIK_GRAMMAR_WORKERS", "2", "Maximum number of grammars (response_format, tools) compiled at once; further ones wait";
        grammar_timeout: Time, "grammar-timeout" was "grammar-time", "INDRIK_GRAMMAR_TIMEOUT", "10s", "Maximum time to compile a grammar before the request is rejected with 400";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        prefix_cache: bool, "prefix-cache", "INDRIK_PREFIX_CACHE", "true", "Reuse KV cache pages of earlier requests for prompts with the same prefix";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        reproducible: bool, "reproducible", "INDRIK_REPRODUCIBLE", "false", "Batch-invariant (bitwise reproducible) logits; slower at batch 1";
        speculate: Speculate, "speculate", "INDRIK_SPECULATE", "auto", "Speculative decoding where it is faster: auto if the output stays the same bit by bit (with --draft, models with experts and GPUs without packed dot products may differ by rounding), fastest also if it may differ by rounding, or off";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        images: bool, "images", "INDRIK_IMAGES", "true", "Load the image encoder, if the model has one; --images=false saves its memory";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        webui: bool, "webui", "INDRIK_WEBUI", "true", "Serve the web UI (chat, dashboard) at /; --no-webui turns it off";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        allow_image_urls: bool, "allow-image-urls", "INDRIK_ALLOW_IMAGE_URLS", "false", "Fetch images of requests from http and https URLs, from public addresses only; otherwise images are data URLs";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        pan_and_scan: bool, "pan-and-scan", "INDRIK_PAN_AND_SCAN", "false", "Also encode up to four crops of wide or tall images: more detail, more prompt tokens";
        npu: NpuUse, "npu", "INDRIK_NPU", "off", "Matrix products of embedding models and image encoders on AMD's NPU (XDNA1): off, auto (if a self-test passes and they are faster there), force (if it passes), or attention (force, and attention of prompts too); not yet run on hardware by us";
        think: Think, "think", "INDRIK_THINK", "auto", "Whether the model thinks before it answers, unless a request says otherwise: on, off, or auto for the default of its chat template";
        metrics: MetricNames, "metrics", "INDRIK_METRICS", "indrik", "Metric names at /metrics: indrik, or vllm for both indrik's and vLLM's (for gateways, autoscalers, dashboards)";
        log_format: LogFormat, "log-format", "INDRIK_LOG_FORMAT", "text", "Log format: text, or json with one object per line";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        log_prompts: bool, "log-prompts", "INDRIK_LOG_PROMPTS", "false", "Log prompts";
    }
    optional {
        #[arg(short = 'm')]
        model: String, "model", "INDRIK_MODEL", "none: see --models", "GGUF file, Hugging Face folder, file written by `indrik quantize`, or name in the local store";
        name: String, "name", "INDRIK_NAME", "name of the model", "Model name in the API";
        #[arg(short = 'd')]
        device: String, "device", "INDRIK_DEVICE", "the fastest", "Device by index or part of its name";
        #[arg(short = 'c')]
        context: NonZeroU32, "context", "INDRIK_CONTEXT", "8192, or the model's limit if lower", "Context length per sequence: prompt and completion together";
        kv_cache_tokens: NonZeroU32, "kv-cache-tokens" was "positions", "INDRIK_KV_CACHE_TOKENS", "context x max-sequences", "Total KV cache capacity in tokens";
        max_prompt_tokens: NonZeroU32, "max-prompt-tokens" was "prompt-tokens", "INDRIK_MAX_PROMPT_TOKENS", "context", "Maximum prompt length in tokens";
        kv: Kv, "kv", "INDRIK_KV", "f16", "KV cache data type: f16, f32 or int8";
        prefill_chunk: NonZeroU32, "prefill-chunk" was "chunk", "INDRIK_PREFILL_CHUNK", "depends on the device", "Maximum prefill tokens per step";
        image_tokens: NonZeroU32, "image-tokens", "INDRIK_IMAGE_TOKENS", "the model's, 280", "Maximum tokens per image (Gemma 4; trained with 70, 140, 280, 560 and 1120): more for small print, fewer for speed";
        prefix_disk: Size, "prefix-disk", "INDRIK_PREFIX_DISK", "none", "Maximum size of the prefix cache on disk, as in 20GiB: KV cache pages of earlier requests outlive a restart";
        prefix_disk_dir: String, "prefix-disk-dir", "INDRIK_PREFIX_DISK_DIR", "prefixes in Indrik's cache folder", "Folder of the prefix cache on disk, for one server at a time";
        draft: String, "draft", "INDRIK_DRAFT", "none", "Draft model for speculative decoding with --model, a smaller one with the same vocabulary: GGUF file, Hugging Face folder or name in the local store";
        memory_budget: Size, "memory-budget", "INDRIK_MEMORY_BUDGET", "the memory of the device", "Memory for all loaded models together, with their KV caches";
        unload_after: Time, "unload-after", "INDRIK_UNLOAD_AFTER", "never", "Time after its last request when a model is unloaded; otherwise only if another one needs its memory";
        otlp_endpoint: String, "otlp-endpoint", "INDRIK_OTLP_ENDPOINT", "none", "Base URL of an OpenTelemetry collector, such as http://127.0.0.1:4318; a span per request is sent to URL/v1/traces (OTLP over HTTP with JSON)";
        kv_events: TcpAddress, "kv-events", "INDRIK_KV_EVENTS", "none", "Address to publish KV events on (ZeroMQ, vLLM's format), such as 127.0.0.1:5557, for prefix-aware routers; unauthenticated, and events contain the tokens of prompts";
        kv_events_replay: TcpAddress, "kv-events-replay", "INDRIK_KV_EVENTS_REPLAY", "none", "Address for replays of KV events, for routers that join late or missed some, such as 127.0.0.1:5558";
        kv_events_topic: String, "kv-events-topic", "INDRIK_KV_EVENTS_TOPIC", "kv@HOST:PORT@MODEL", "Topic of KV events: kv@, the address by which the router knows this server, @, the model name";
        api_key_file: String, "api-key-file", "INDRIK_API_KEY_FILE", "none", "File of accepted API keys, one per line; # starts a comment";
    }
    lists {
        preload, "preload", "INDRIK_PRELOAD", "MODEL", "Further model to load at startup (repeatable)";
        models, "models", "INDRIK_MODELS", "MODEL", "Further model that requests may name, loaded on demand; store for all models of the local store, the default without --model and --preload (repeatable)";
        api_key, "api-key", "INDRIK_API_KEY", "KEY", "Accepted API key (repeatable)";
        allow_host, "allow-host", "INDRIK_ALLOW_HOST", "NAME", "Host name that a local server without API keys answers to besides localhost, * for all (repeatable)";
        cors, "cors", "INDRIK_CORS", "ORIGIN", "Allowed CORS origin, * for all (repeatable)";
    }
}

/// The setting whose values are never shown.
const SECRET: &str = "api-key";

/// Environment variable of a flag.
fn variable(flag: &str) -> String {
    format!("INDRIK_{}", flag.replace('-', "_").to_uppercase())
}

/// Value of the deprecated environment variable of a renamed setting.
fn from_deprecated<T: FromStr<Err: fmt::Display>>(
    old: &str,
    environment: Environment<'_>,
) -> anyhow::Result<Option<T>> {
    let variable = variable(old);
    let Some(text) = environment(&variable) else { return Ok(None) };
    let value = text.parse().map_err(|error| anyhow::anyhow!("{variable}: '{text}': {error}"))?;
    Ok(Some(value))
}

/// The deprecated flags, variables and keys in use, each with its replacement.
fn deprecated(arguments: &[String], environment: Environment<'_>, file: &toml::Table) -> Vec<String> {
    let mut found = vec![];
    for (name, old) in RENAMED {
        let flag = format!("--{old}");
        let given = |argument: &String| {
            argument.strip_prefix(&flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        if arguments.iter().any(given) {
            found.push(format!("{flag} is deprecated: use --{name}"));
        }
        if environment(&variable(old)).is_some() {
            found.push(format!("{} is deprecated: use {}", variable(old), variable(name)));
        }
        if file.contains_key(*old) {
            found.push(format!("the key {old} is deprecated: use {name}"));
        }
    }
    found
}

/// The value from the first source that gives one: flag or variable (both from clap), deprecated variable, file.
fn first_given<T: Clone + fmt::Display>(
    id: &str,
    flag: &Option<T>,
    deprecated: Option<T>,
    file: Option<T>,
    matches: &ArgMatches,
    name: &'static str,
    set: &mut Vec<(&'static str, String, Source)>,
) -> Option<T> {
    let (value, source) = match (flag, deprecated, file) {
        (Some(value), ..) => (value.clone(), source(matches, id)),
        (None, Some(value), _) => (value, Source::Environment),
        (None, None, Some(value)) => (value, Source::File),
        (None, None, None) => return None,
    };
    set.push((name, value.to_string(), source));
    Some(value)
}

/// The list from the first source that gives one. Lists from different sources are not merged.
fn list_given(
    id: &str,
    flag: &[String],
    file: Vec<String>,
    matches: &ArgMatches,
    name: &'static str,
    set: &mut Vec<(&'static str, String, Source)>,
) -> Vec<String> {
    let (values, source) = match (flag, file) {
        ([], file) => (file, Source::File),
        (flag, _) => (flag.to_vec(), source(matches, id)),
    };
    if !values.is_empty() {
        let text = if name == SECRET { format!("{} given", values.len()) } else { values.join(", ") };
        set.push((name, text, source));
    }
    values
}

fn source(matches: &ArgMatches, id: &str) -> Source {
    match matches.value_source(id) {
        Some(ValueSource::EnvVariable) => Source::Environment,
        _ => Source::Flag,
    }
}

impl Settings {
    /// Resolves flags, environment variables and the settings file.
    pub fn read(flags: &Flags, config: Option<&PathBuf>, matches: &ArgMatches) -> anyhow::Result<Settings> {
        let text = match config {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the settings file {}", path.display()))?,
        };
        let invalid = |error| {
            let path = config.map(|path| path.display().to_string()).unwrap_or_default();
            anyhow::anyhow!("invalid settings file {path}: {error}")
        };
        let file: File = toml::from_str(&text).map_err(invalid)?;
        let keys: toml::Table = toml::from_str(&text).map_err(invalid)?;
        let environment = |name: &str| std::env::var(name).ok();
        let arguments: Vec<String> =
            std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
        let mut settings = flags.resolve(file, matches, &environment)?;
        settings.deprecated = deprecated(&arguments, &environment, &keys);
        Ok(settings)
    }

    /// Whether a setting was given.
    pub fn is_set(&self, name: &str) -> bool {
        self.set.iter().any(|(set, ..)| *set == name)
    }

    /// Accepted API keys: those given directly and those of the key file.
    pub fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the API keys in {path}"))?;
            let lines = text.lines().map(str::trim);
            keys.extend(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned));
            if keys.len() == self.api_key.len() {
                // An empty file must not turn authentication off.
                bail!("{path} contains no API key: write one per line; lines that start with # are comments");
            }
        }
        if keys.iter().any(|key| key.trim().is_empty()) {
            bail!("an API key is empty: remove it, or set a value");
        }
        Ok(keys)
    }

    /// Configuration of the HTTP server.
    pub fn config(&self) -> anyhow::Result<server::Config> {
        if self.max_header_size.0 < MIN_HEADER_SIZE {
            anyhow::bail!(
                "--max-header-size is {} bytes: the minimum is {MIN_HEADER_SIZE}",
                self.max_header_size.0
            );
        }
        if let Some(url) = &self.otlp_endpoint
            && !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme))
        {
            bail!("--otlp-endpoint is {url}: it must be a URL that starts with http:// or https://");
        }
        // A request with more choices than fit in the batch and the queue could never be admitted.
        let capacity =
            self.max_sequences.get().saturating_add(u32::try_from(self.max_queue).unwrap_or(u32::MAX));
        let api_keys = self.keys()?;
        // A page from another site can give its own name to this machine's loopback address (DNS rebinding).
        let is_exposed = self.host.is_loopback() && api_keys.is_empty();
        Ok(server::Config {
            api_keys,
            cors_origins: self.cors.clone(),
            allowed_hosts: (is_exposed || !self.allow_host.is_empty()).then(|| self.allow_host.clone()),
            max_body_bytes: self.max_body_size.0,
            max_inflight_body_bytes: self.max_inflight_body_size.0,
            body_timeout: self.body_timeout.0,
            header_timeout: self.header_timeout.0,
            max_header_bytes: self.max_header_size.0,
            stall_timeout: self.stall_timeout.0,
            max_prompt_tokens: self.max_prompt_tokens.map(NonZeroU32::get),
            queue_timeout: self.queue_timeout.0,
            request_timeout: self.request_timeout.0,
            max_connections: self.max_connections.get() as usize,
            max_choices: self.max_choices.get().min(capacity),
            keep_alive: self.keep_alive.0,
            probe_timeout: self.probe_timeout.0,
            max_stored_responses: self.max_stored_responses,
            max_stored_response_bytes: self.max_stored_size.0,
            grammar_workers: self.grammar_workers.get() as usize,
            grammar_timeout: self.grammar_timeout.0,
            allow_image_urls: self.allow_image_urls,
            thinking: self.think.setting(),
            vllm_metrics: self.metrics == MetricNames::Vllm,
            otlp_endpoint: self.otlp_endpoint.clone(),
            webui: self.webui,
            log_prompts: self.log_prompts,
            ..server::Config::default()
        })
    }
}

/// Minimum size of the read buffer that hyper supports.
const MIN_HEADER_SIZE: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: Flags,
    }

    fn settings(arguments: &[&str], environment: &[(&str, &str)], file: &str) -> anyhow::Result<Settings> {
        let matches = Command::command().try_get_matches_from([&["serve"], arguments].concat())?;
        let command = Command::from_arg_matches(&matches)?;
        let lookup = |name: &str| {
            let found = environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        command.flags.resolve(toml::from_str(file)?, &matches, &lookup)
    }

    #[test]
    fn defaults_are_those_of_the_server_and_the_engine() {
        let settings = settings(&[], &[], "").unwrap();
        let config = server::Config { allowed_hosts: Some(vec![]), ..server::Config::default() };
        assert_eq!(settings.config().unwrap(), config);
        assert_eq!(settings.max_queue, engine::Options::default().queue_capacity);
        assert!(settings.set.is_empty(), "{:?}", settings.set);
    }

    #[test]
    fn flags_take_precedence_over_the_file() {
        let file = "port = 1\nqueue-timeout = \"5s\"\nmax-body-size = 4096\napi-key = [\"a\"]\nkv = \"int8\"\nreproducible = true\n\
                    log-format = \"json\"";
        let settings = settings(&["--port", "2", "--log-prompts"], &[], file).unwrap();
        assert_eq!((settings.port, settings.queue_timeout.to_string()), (2, "5s".to_owned()));
        assert_eq!((settings.max_body_size.0, settings.kv), (4096, Some(Kv::Int8)));
        assert!(settings.reproducible && settings.log_prompts);
        assert_eq!(settings.log_format, LogFormat::Json);
        assert_eq!(settings.keys().unwrap(), ["a"]);
        let source = |name| settings.set.iter().find(|(set, ..)| *set == name).map(|(.., source)| *source);
        assert_eq!(
            (source("port"), source("queue-timeout"), source("host")),
            (Some(Source::Flag), Some(Source::File), None)
        );
        // API keys are never shown.
        assert!(
            settings.set.contains(&("api-key", "1 given".to_owned(), Source::File)),
            "{:?}",
            settings.set
        );
    }

    #[test]
    fn errors_in_the_file_name_key_and_line() {
        for (file, words) in [
            ("port = 1\nprot = 2", &["prot", "line 2"][..]),
            ("\nqueue-timeout = \"5 weeks\"", &["line 2", "5 weeks"]),
            ("max-sequences = 0", &["line 1", "sequences"]),
            ("port = 99999", &["line 1", "port"]),
            ("max-body-size = -1", &["line 1", "body-size"]),
        ] {
            let error = settings(&[], &[], file).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{file}: {error}");
        }
    }

    /// A value that every renamed setting accepts: a number, a size in bytes, a time in seconds.
    const VALUE: &str = "9000";

    fn value(settings: &Settings, name: &str) -> Option<(String, Source)> {
        let found = settings.set.iter().find(|(set, ..)| *set == name);
        found.map(|(_, value, source)| (value.clone(), *source))
    }

    #[test]
    fn deprecated_flags_variables_and_keys_set_the_renamed_setting() {
        assert_eq!(RENAMED.len(), 20);
        for (name, old) in RENAMED {
            let current = settings(&[&format!("--{name}"), VALUE], &[], "").unwrap();
            let (expected, _) = value(&current, name).unwrap();
            let by_flag = settings(&[&format!("--{old}"), VALUE], &[], "").unwrap();
            assert_eq!(value(&by_flag, name), Some((expected.clone(), Source::Flag)), "--{old}");
            let by_variable = settings(&[], &[(&variable(old), VALUE)], "").unwrap();
            assert_eq!(value(&by_variable, name), Some((expected.clone(), Source::Environment)), "{old}");
            let by_key = settings(&[], &[], &format!("{old} = {VALUE}")).unwrap();
            assert_eq!(value(&by_key, name), Some((expected, Source::File)), "{old}");
        }
    }

    #[test]
    fn deprecated_names_are_hidden_and_do_not_override_current_ones() {
        for (name, old) in RENAMED {
            let help = Command::command().render_long_help().to_string();
            assert!(!help.contains(&format!("--{old} ")), "{help}");
            // A flag overrides a deprecated variable, which overrides the file.
            let both = settings(&[&format!("--{name}"), VALUE], &[(&variable(old), "9001")], "").unwrap();
            assert_eq!(value(&both, name).unwrap().1, Source::Flag);
            let file = format!("{name} = 9001");
            let over_file = settings(&[], &[(&variable(old), VALUE)], &file).unwrap();
            assert_eq!(value(&over_file, name).unwrap().1, Source::Environment);
            // Both names at once in the same source are an error.
            let both = [format!("--{name}"), VALUE.to_owned(), format!("--{old}"), VALUE.to_owned()];
            assert!(settings(&both.each_ref().map(String::as_str), &[], "").is_err(), "{old}");
            let both = settings(&[], &[], &format!("{name} = {VALUE}\n{old} = {VALUE}"));
            assert!(both.unwrap_err().to_string().contains("duplicate"), "{old}");
        }
        let arguments = ["--queue=3".to_owned(), "--queue-timeout".to_owned()];
        let file = toml::from_str("sequences = 1\nmax-queue = 2").unwrap();
        let found = deprecated(&arguments, &|name| (name == "INDRIK_HEAD_SIZE").then(String::new), &file);
        let expected = [
            "the key sequences is deprecated: use max-sequences",
            "--queue is deprecated: use --max-queue",
            "INDRIK_HEAD_SIZE is deprecated: use INDRIK_MAX_HEADER_SIZE",
        ];
        assert_eq!(found, expected);
        let error = settings(&[], &[("INDRIK_QUEUE_TIME", "soon")], "").unwrap_err().to_string();
        assert!(error.contains("INDRIK_QUEUE_TIME") && error.contains("soon"), "{error}");
    }

    #[test]
    fn the_settings_table_in_the_documentation_is_current() {
        let mut table = "| flag and key | environment | default | |\n|---|---|---|---|\n".to_owned();
        for Row { name, variable, default, help } in ROWS {
            table += &format!("| `--{name}` | `{variable}` | {default} | {help} |\n");
        }
        let text = include_str!("../../../../../docs/serving.md");
        assert!(text.contains(&table), "docs/serving.md should contain\n{table}");
        let mut renamed = "| was | is |\n|---|---|\n".to_owned();
        for (name, old) in RENAMED {
            renamed += &format!("| `--{old}` | `--{name}` |\n");
        }
        assert!(text.contains(&renamed), "docs/serving.md should contain\n{renamed}");
        let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        let command = Command::command();
        let flags: BTreeSet<&str> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
        assert_eq!(flags, names);
        for row in ROWS {
            assert_eq!(row.variable, variable(row.name));
        }
    }
}
