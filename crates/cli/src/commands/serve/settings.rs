//! What can be set, and where it was: a flag, a variable of the environment, a file, or nowhere.
//!
//! All settings stand in one list, from which the flags, the variables, the file's keys and the table in docs/serving.md are made.

use std::{fmt, net::IpAddr, num::NonZeroU32, path::PathBuf};

use anyhow::{Context, bail};
use clap::{ArgMatches, Args, parser::ValueSource};
use serde::Deserialize;

use super::values::{Size, Time};
use crate::loading::Kv;

/// A setting as documentation has it.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The flag without its dashes, which is the key of a file too.
    pub name: &'static str,
    /// The variable of the environment.
    pub variable: &'static str,
    /// What holds where nobody says.
    pub default: &'static str,
    /// What it is.
    pub help: &'static str,
}

/// Where a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Flag,
    Environment,
    File,
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            From::Flag => "flag",
            From::Environment => "environment",
            From::File => "file",
        })
    }
}

/// Settings with a default, which is written as anyone would write it, and those without.
macro_rules! settings {
    (
        usual { $($(#[$attribute:meta])* $name:ident: $type:ty, $flag:literal, $variable:literal, $default:literal, $help:literal;)* }
        open { $($(#[$open_attribute:meta])* $open:ident: $open_type:ty, $open_flag:literal, $open_variable:literal, $open_default:literal, $open_help:literal;)* }
        lists { $($list:ident, $list_flag:literal, $list_variable:literal, $list_value:literal, $list_help:literal;)* }
    ) => {
        /// The flags. What is not given is nothing.
        #[derive(Args)]
        pub struct Flags {
            $($(#[$open_attribute])*
            #[arg(long = $open_flag, env = $open_variable, help = concat!($open_help, " [default: ", $open_default, "]"))]
            $open: Option<$open_type>,)*
            $($(#[$attribute])*
            #[arg(long = $flag, env = $variable, help = concat!($help, " [default: ", $default, "]"))]
            $name: Option<$type>,)*
            $(#[arg(long = $list_flag, env = $list_variable, value_name = $list_value, value_delimiter = ',', hide_env_values = true, help = $list_help)]
            $list: Vec<String>,)*
        }

        /// The keys of a file.
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        struct File {
            $($name: Option<$type>,)*
            $($open: Option<$open_type>,)*
            $(#[serde(default)] $list: Vec<String>,)*
        }

        /// What holds.
        #[derive(Debug)]
        pub struct Settings {
            $(pub $name: $type,)*
            $(pub $open: Option<$open_type>,)*
            $(pub $list: Vec<String>,)*
            /// What was set, as text, and where. Of secrets only that they were.
            pub set: Vec<(&'static str, String, From)>,
        }

        /// All of them, in the order in which they are shown.
        #[cfg(test)]
        pub const ROWS: &[Row] = &[
            $(Row { name: $open_flag, variable: $open_variable, default: $open_default, help: $open_help },)*
            $(Row { name: $flag, variable: $variable, default: $default, help: $help },)*
            $(Row { name: $list_flag, variable: $list_variable, default: "none", help: $list_help },)*
        ];

        impl Flags {
            fn over(&self, file: File, given: &ArgMatches) -> anyhow::Result<Settings> {
                let mut set = vec![];
                $(let $open = first(stringify!($open), &self.$open, file.$open, given, $open_flag, &mut set);)*
                $(let $name = match first(stringify!($name), &self.$name, file.$name, given, $flag, &mut set) {
                    Some(value) => value,
                    None => $default.parse::<$type>().map_err(|error| anyhow::anyhow!("--{}: {error}", $flag))?,
                };)*
                $(let $list = all(stringify!($list), &self.$list, file.$list, given, $list_flag, &mut set);)*
                Ok(Settings { $($name,)* $($open,)* $($list,)* set })
            }
        }
    };
}

settings! {
    usual {
        host: IpAddr, "host", "INDRIK_HOST", "127.0.0.1", "Address to listen on; 0.0.0.0 lets other machines in";
        port: u16, "port", "INDRIK_PORT", "8006", "Port to listen on; 0 is any free one";
        sequences: NonZeroU32, "sequences", "INDRIK_SEQUENCES", "8", "Answers that are written at a time";
        queue: usize, "queue", "INDRIK_QUEUE", "64", "Answers that may wait beside those; more are refused with 429";
        queue_time: Time, "queue-time", "INDRIK_QUEUE_TIME", "60s", "How long a request may wait to be begun, before it is refused with 429";
        request_time: Time, "request-time", "INDRIK_REQUEST_TIME", "10min", "How long a request may take from its arrival to its last token";
        choices: NonZeroU32, "choices", "INDRIK_CHOICES", "16", "Answers that one request may ask for (n, times its prompts)";
        body_size: Size, "body-size", "INDRIK_BODY_SIZE", "4MiB", "Size of a request's body";
        bodies_size: Size, "bodies-size", "INDRIK_BODIES_SIZE", "32MiB", "Size of all bodies together that are being read; who finds no room waits";
        body_time: Time, "body-time", "INDRIK_BODY_TIME", "30s", "How long a body may take to arrive";
        head_size: Size, "head-size", "INDRIK_HEAD_SIZE", "64KiB", "Size of a request's head, 8KiB or more";
        head_time: Time, "head-time", "INDRIK_HEAD_TIME", "30s", "How long a head may take to arrive, and a connection be idle";
        stall_time: Time, "stall-time", "INDRIK_STALL_TIME", "60s", "How long a client may leave unread what it is sent";
        keep_alive: Time, "keep-alive", "INDRIK_KEEP_ALIVE", "15s", "A stream without a token for so long gets a comment";
        connections: NonZeroU32, "connections", "INDRIK_CONNECTIONS", "512", "Connections at a time; more wait to be accepted";
        probe_time: Time, "probe-time", "INDRIK_PROBE_TIME", "5s", "How long the GPU may take to answer /ready";
        step_time: Time, "step-time", "INDRIK_STEP_TIME", "5min", "A step of the GPU that takes longer is a lost device";
        drain_time: Time, "drain-time", "INDRIK_DRAIN_TIME", "30s", "How long running requests may take after SIGTERM";
        grammars: NonZeroU32, "grammars", "INDRIK_GRAMMARS", "2", "Formats of answers (response_format) that are compiled at a time; more wait";
        grammar_time: Time, "grammar-time", "INDRIK_GRAMMAR_TIME", "10s", "How long a format of answers may take to be compiled, before it is refused with 400";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        prefix_cache: bool, "prefix-cache", "INDRIK_PREFIX_CACHE", "true", "Keep what was read and written for prompts that begin alike, in pages that nobody needs";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        reproducible: bool, "reproducible", "INDRIK_REPRODUCIBLE", "false", "The same logits bit by bit, whoever else is there; one answer alone is slower for it";
        #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        log_prompts: bool, "log-prompts", "INDRIK_LOG_PROMPTS", "false", "Write prompts to the log";
    }
    open {
        #[arg(short = 'm')]
        model: String, "model", "INDRIK_MODEL", "none: it must be given", "A GGUF file, a Hugging Face folder, a file that `indrik quantize` wrote, or a name in the local store";
        name: String, "name", "INDRIK_NAME", "the model's", "What requests call the model";
        #[arg(short = 'd')]
        device: String, "device", "INDRIK_DEVICE", "the fastest", "Device by index or part of its name";
        #[arg(short = 'c')]
        context: NonZeroU32, "context", "INDRIK_CONTEXT", "8192, or what the model has", "Positions of an answer with its prompt";
        positions: NonZeroU32, "positions", "INDRIK_POSITIONS", "context x sequences", "Positions of all answers together: the memory for keys and values";
        prompt_tokens: NonZeroU32, "prompt-tokens", "INDRIK_PROMPT_TOKENS", "context", "Tokens that a prompt may have";
        kv: Kv, "kv", "INDRIK_KV", "f16", "How keys and values are stored: f16, f32 or int8";
        chunk: NonZeroU32, "chunk", "INDRIK_CHUNK", "by the device", "Rows of a step when a prompt is read";
        api_key_file: String, "api-key-file", "INDRIK_API_KEY_FILE", "none", "A file with an API key a line";
    }
    lists {
        api_key, "api-key", "INDRIK_API_KEY", "KEY", "A key of which requests to /v1 must bear one; may be given several times";
        cors, "cors", "INDRIK_CORS", "ORIGIN", "An origin whose pages may read answers, * for all; may be given several times";
    }
}

/// Settings whose values are nobody's business.
const SECRET: &str = "api-key";

/// The first that says something: a flag, the environment, a file.
fn first<T: Clone + fmt::Display>(
    id: &str,
    flag: &Option<T>,
    file: Option<T>,
    given: &ArgMatches,
    name: &'static str,
    set: &mut Vec<(&'static str, String, From)>,
) -> Option<T> {
    let (value, from) = match (flag, file) {
        (Some(value), _) => (value.clone(), source(given, id)),
        (None, Some(value)) => (value, From::File),
        (None, None) => return None,
    };
    set.push((name, value.to_string(), from));
    Some(value)
}

/// The same for what may be given several times; lists are not put together.
fn all(
    id: &str,
    flag: &[String],
    file: Vec<String>,
    given: &ArgMatches,
    name: &'static str,
    set: &mut Vec<(&'static str, String, From)>,
) -> Vec<String> {
    let (values, from) = match (flag, file) {
        ([], file) => (file, From::File),
        (flag, _) => (flag.to_vec(), source(given, id)),
    };
    if !values.is_empty() {
        let text = if name == SECRET { format!("{} of them", values.len()) } else { values.join(", ") };
        set.push((name, text, from));
    }
    values
}

fn source(given: &ArgMatches, id: &str) -> From {
    match given.value_source(id) {
        Some(ValueSource::EnvVariable) => From::Environment,
        _ => From::Flag,
    }
}

impl Settings {
    /// What the flags, the environment and the file say.
    pub fn read(flags: &Flags, config: Option<&PathBuf>, given: &ArgMatches) -> anyhow::Result<Settings> {
        let file = match config {
            None => File::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("the settings in {} cannot be read", path.display()))?;
                toml::from_str(&text).map_err(|error| {
                    anyhow::anyhow!("the settings in {} are wrong: {error}", path.display())
                })?
            }
        };
        flags.over(file, given)
    }

    /// The keys that are asked for: those that were given, and those of the file.
    pub fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("the keys in {path} cannot be read"))?;
            keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
            if keys.len() == self.api_key.len() {
                // Silently letting everyone in is not what was asked for.
                bail!("{path} holds no key: write one a line");
            }
        }
        if keys.iter().any(|key| key.trim().is_empty()) {
            bail!("an API key is empty: leave it out, or write one");
        }
        Ok(keys)
    }

    /// What the server is told.
    pub fn config(&self) -> anyhow::Result<server::Config> {
        if self.head_size.0 < LEAST_HEAD {
            anyhow::bail!("--head-size is {} bytes: {LEAST_HEAD} are the least", self.head_size.0);
        }
        // More answers than may be written and wait at a time would be refused whenever they are asked for.
        let places = self.sequences.get().saturating_add(u32::try_from(self.queue).unwrap_or(u32::MAX));
        Ok(server::Config {
            api_keys: self.keys()?,
            cors_origins: self.cors.clone(),
            body_bytes: self.body_size.0,
            bodies_bytes: self.bodies_size.0,
            body_time: self.body_time.0,
            head_time: self.head_time.0,
            head_bytes: self.head_size.0,
            stall_time: self.stall_time.0,
            prompt_tokens: self.prompt_tokens.map(NonZeroU32::get),
            queue_time: self.queue_time.0,
            request_time: self.request_time.0,
            connections: self.connections.get() as usize,
            choices: self.choices.get().min(places),
            keep_alive: self.keep_alive.0,
            probe_time: self.probe_time.0,
            grammars: self.grammars.get() as usize,
            grammar_time: self.grammar_time.0,
            log_prompts: self.log_prompts,
        })
    }
}

/// The HTTP library has no smaller buffer.
const LEAST_HEAD: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        flags: Flags,
    }

    fn settings(arguments: &[&str], file: &str) -> anyhow::Result<Settings> {
        let given = Alone::command().try_get_matches_from([&["serve"], arguments].concat())?;
        let alone = Alone::from_arg_matches(&given)?;
        alone.flags.over(toml::from_str(file)?, &given)
    }

    #[test]
    fn what_is_not_said_is_what_the_server_has_by_itself() {
        let settings = settings(&[], "").unwrap();
        assert_eq!(settings.config().unwrap(), server::Config::default());
        assert_eq!(settings.queue, engine::Options::default().queue_capacity);
        assert!(settings.set.is_empty(), "{:?}", settings.set);
    }

    #[test]
    fn a_flag_is_before_a_file() {
        let file = "port = 1\nqueue-time = \"5s\"\nbody-size = 4096\napi-key = [\"a\"]\nkv = \"int8\"\nreproducible = true";
        let settings = settings(&["--port", "2", "--log-prompts"], file).unwrap();
        assert_eq!((settings.port, settings.queue_time.to_string()), (2, "5s".to_owned()));
        assert_eq!((settings.body_size.0, settings.kv), (4096, Some(Kv::Int8)));
        assert!(settings.reproducible && settings.log_prompts);
        assert_eq!(settings.keys().unwrap(), ["a"]);
        let of = |name| settings.set.iter().find(|(set, ..)| *set == name).map(|(_, _, from)| *from);
        assert_eq!((of("port"), of("queue-time"), of("host")), (Some(From::Flag), Some(From::File), None));
        // No key is shown anywhere.
        assert!(
            settings.set.contains(&("api-key", "1 of them".to_owned(), From::File)),
            "{:?}",
            settings.set
        );
    }

    #[test]
    fn wrong_files_are_told_by_key_and_line() {
        for (file, words) in [
            ("port = 1\nprot = 2", &["prot", "line 2"][..]),
            ("\nqueue-time = \"5 weeks\"", &["line 2", "5 weeks"]),
            ("sequences = 0", &["line 1", "sequences"]),
            ("port = 99999", &["line 1", "port"]),
            ("body-size = -1", &["line 1", "body-size"]),
        ] {
            let error = settings(&[], file).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{file}: {error}");
        }
    }

    #[test]
    fn the_table_in_the_documentation_is_this_one() {
        let mut table = "| flag and key | environment | default | |\n|---|---|---|---|\n".to_owned();
        for Row { name, variable, default, help } in ROWS {
            table += &format!("| `--{name}` | `{variable}` | {default} | {help} |\n");
        }
        let text = include_str!("../../../../../docs/serving.md");
        assert!(text.contains(&table), "docs/serving.md should hold\n{table}");
        let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        let command = Alone::command();
        let flags: BTreeSet<&str> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
        assert_eq!(flags, names);
        for Row { name, variable, .. } in ROWS {
            assert_eq!(*variable, format!("INDRIK_{}", name.replace('-', "_").to_uppercase()));
        }
    }
}
