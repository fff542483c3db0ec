//! What a user asks `pull` for: a name of the catalogue, a repository of the hub, or an address.
//!
//! | form | example |
//! |---|---|
//! | `NAME[:SIZE][-VARIANT][:QUANT]` | `gemma3:27b`, `gemma3:27b-it-qat`, `llama3.1:8b:q8_0`, `qwen3:8b-q4_K_M` |
//! | `hf.co/OWNER/REPO[:QUANT]` | `hf.co/ggml-org/gemma-3-4b-it-GGUF:Q8_0` |
//! | the address of a repository or of a file in it | `https://huggingface.co/Qwen/Qwen3-8B-GGUF/blob/main/Qwen3-8B-Q8_0.gguf` |
//! | the address of another file | `https://example.org/model.gguf` |

use std::fmt;

use crate::{
    catalogue::{self, Model},
    error::{Error, Result},
    quant::{self, Quant},
    url::{encode_path, origin, without_secrets},
};

/// Hosts that stand for the configured hub, whatever `HF_ENDPOINT` is.
const HUB_HOSTS: [&str; 3] = ["hf.co", "huggingface.co", "www.huggingface.co"];

/// What to pull.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelRequest {
    /// A model of the catalogue.
    Catalogue {
        /// The model.
        model: &'static Model,
        /// Only files that were trained with quantisation in mind (QAT).
        qat: bool,
        /// The requested quantisation.
        quant: Option<Quant>,
    },
    /// A repository of the hub.
    Repository {
        /// The repository.
        repository: Repository,
        /// A branch, tag or commit in the address.
        revision: Option<String>,
        /// A file in the address.
        file: Option<String>,
        /// The requested quantisation.
        quant: Option<Quant>,
    },
    /// A GGUF file anywhere.
    Url(String),
}

/// The owner and name of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repository {
    owner: String,
    name: String,
}

impl Repository {
    /// Parses `OWNER/NAME`.
    pub fn parse(text: &str) -> Option<Self> {
        let (owner, name) = text.split_once('/')?;
        let is_valid = |part: &str| {
            !part.is_empty()
                && part.len() <= 96
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        (is_valid(owner) && is_valid(name)).then(|| Self { owner: owner.into(), name: name.into() })
    }

    /// The owner.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The name without the owner.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl ModelRequest {
    /// Parses a request; `hub` is the configured hub's address.
    pub fn parse(text: &str, hub: &str) -> Result<Self> {
        let text = text.trim();
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, text),
        };
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase();
        let at_hub = HUB_HOSTS.contains(&host.as_str()) && rest.contains('/')
            || scheme.is_some() && origin(text) == origin(hub);
        match scheme.as_deref() {
            _ if at_hub => Self::repository(text, rest.split_once('/').map_or("", |(_, path)| path)),
            Some("https" | "http") => Self::address(text),
            Some(_) => Err(invalid(text, "only http and https addresses can be pulled")),
            None => Self::catalogue(text),
        }
    }

    fn catalogue(text: &str) -> Result<Self> {
        let name = text.to_ascii_lowercase();
        let found = |model, qat, quant| Ok(Self::Catalogue { model, qat, quant });
        let unknown = || Error::UnknownModel { name: text.to_string(), nearest: catalogue::nearest(&name) };
        if let Some(model) = catalogue::find(&name) {
            return found(model, false, None);
        }
        let pieces: Vec<&str> = name.split(':').collect();
        let (family, mut tag, mut quant) = match pieces[..] {
            [family, tag] if Quant::parse(tag).is_some() => (family, String::new(), Quant::parse(tag)),
            [family, tag] => (family, tag.to_string(), None),
            [family, tag, quant] => {
                let known = Quant::parse(quant).ok_or_else(|| unknown_quant(text, quant))?;
                (family, tag.to_string(), Some(known))
            }
            _ => return Err(unknown()),
        };
        let mut qat = false;
        // Suffixes are removed from the right until a name of the catalogue is left.
        loop {
            let full = match tag.as_str() {
                "" | "latest" => family.to_string(),
                tag => format!("{family}:{tag}"),
            };
            if let Some(model) = catalogue::find(&full) {
                return found(model, qat, quant);
            }
            let Some((rest, suffix)) = tag.rsplit_once('-') else { return Err(unknown()) };
            match suffix {
                "qat" => qat = true,
                "it" | "instruct" | "chat" => {}
                suffix => match Quant::parse(suffix) {
                    Some(known) if quant.is_none() => quant = Some(known),
                    _ => return Err(unknown()),
                },
            }
            tag = rest.to_string();
        }
    }

    fn repository(text: &str, path: &str) -> Result<Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_matches('/');
        let path = percent_decoded(path).ok_or_else(|| invalid(text, "its percent-encoding is damaged"))?;
        let pieces: Vec<&str> = path.split('/').collect();
        let [owner, name, rest @ ..] = &pieces[..] else {
            return Err(invalid(text, "write hf.co/OWNER/REPO"));
        };
        if ["datasets", "spaces", "api"].contains(owner) {
            return Err(invalid(text, "this is not the address of a model"));
        }
        let (name, quant) = match name.split_once(':') {
            Some((name, quant)) => {
                (name, Some(Quant::parse(quant).ok_or_else(|| unknown_quant(text, quant))?))
            }
            None => (*name, None),
        };
        let repository = Repository::parse(&format!("{owner}/{name}"))
            .ok_or_else(|| invalid(text, "write hf.co/OWNER/REPO"))?;
        let (revision, file) = match rest {
            [] => (None, None),
            ["tree", revision, ..] => (Some(revision.to_string()), None),
            ["blob" | "resolve" | "raw", revision, file @ ..] if !file.is_empty() => {
                (Some(revision.to_string()), Some(file.join("/")))
            }
            file if file.last().is_some_and(|name| name.to_ascii_lowercase().ends_with(".gguf")) => {
                (None, Some(file.join("/")))
            }
            _ => return Err(invalid(text, "write hf.co/OWNER/REPO, or the address of a file in it")),
        };
        let is_gguf = |file: &String| file.to_ascii_lowercase().ends_with(".gguf");
        if file.as_ref().is_some_and(|file| !is_gguf(file)) {
            return Err(invalid(
                text,
                "only .gguf files can be pulled one by one; give the repository instead",
            ));
        }
        Ok(Self::Repository { repository, revision, file, quant })
    }

    fn address(text: &str) -> Result<Self> {
        let path = text.split(['?', '#']).next().unwrap_or_default();
        if !path.to_ascii_lowercase().ends_with(".gguf") {
            return Err(invalid(
                text,
                "the address must be that of a .gguf file, or of a repository of the hub",
            ));
        }
        Ok(Self::Url(text.to_string()))
    }

    /// The same request for another quantisation.
    pub fn with_quant(self, new: Quant) -> Self {
        match self {
            Self::Catalogue { model, qat, .. } => Self::Catalogue { model, qat, quant: Some(new) },
            Self::Repository { repository, revision, file, .. } => {
                Self::Repository { repository, revision, file, quant: Some(new) }
            }
            other => other,
        }
    }

    /// The requested quantisation.
    pub fn quant(&self) -> Option<Quant> {
        match self {
            Self::Catalogue { quant, .. } | Self::Repository { quant, .. } => *quant,
            Self::Url(_) => None,
        }
    }

    /// The name in the store.
    pub fn store_name(&self) -> String {
        let suffix =
            self.quant().map_or_else(String::new, |quant| format!("-{}", quant.name().to_lowercase()));
        match self {
            Self::Catalogue { model, qat, .. } => {
                format!("{}{}{suffix}", model.name, if *qat { "-qat" } else { "" })
            }
            Self::Repository { file: Some(file), .. } => stem_name(file),
            Self::Repository { repository, .. } => {
                let name = repository.name.to_ascii_lowercase();
                slug(name.strip_suffix("-gguf").or(name.strip_suffix(".gguf")).unwrap_or(&name)) + &suffix
            }
            Self::Url(url) => stem_name(url.split(['?', '#']).next().unwrap_or_default()),
        }
    }
}

impl fmt::Display for ModelRequest {
    /// The request in its canonical form, which records keep.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Catalogue { .. } => f.write_str(&self.store_name()),
            Self::Repository { repository, file: Some(file), .. } => {
                write!(f, "hf.co/{repository}/{}", encode_path(file))
            }
            Self::Repository { repository, quant: Some(quant), .. } => {
                write!(f, "hf.co/{repository}:{quant}")
            }
            Self::Repository { repository, .. } => write!(f, "hf.co/{repository}"),
            Self::Url(url) => f.write_str(&without_secrets(url)),
        }
    }
}

/// The name of a model from a path of its file.
fn stem_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let stem = file.strip_suffix(".gguf").unwrap_or(&file);
    slug(crate::variants::without_part_number(stem))
}

/// A text as a valid name of the store: other characters become hyphens.
pub(crate) fn slug(text: &str) -> String {
    const MAX_LEN: usize = 80;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let text: String = text.to_ascii_lowercase().chars().map(plain).take(MAX_LEN).collect();
    let text = text.trim_matches(['.', '-']);
    if text.is_empty() { "model".to_string() } else { text.to_string() }
}

fn invalid(text: &str, reason: &str) -> Error {
    Error::InvalidRequest { request: without_secrets(text), reason: reason.to_string() }
}

fn unknown_quant(text: &str, quant: &str) -> Error {
    let quant: String = quant.chars().take(40).collect();
    invalid(text, &format!("'{quant}' is not a quantisation; supported: {}", quant::supported_names()))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let code = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(code, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::folder::file_stem;

    proptest! {
        /// Whatever is asked for either is an error or has a valid name in the store, and its canonical form
        /// means the same.
        #[test]
        fn every_accepted_request_has_a_valid_name(
            text in prop_oneof![
                any::<String>(),
                "(gemma3|llama3.1|qwen3)(:[0-9a-z.]{0,4})?(-it|-qat|-q8_0|-pt){0,3}(:q[0-9_k]{1,5})?",
                "(https?://)?(hf.co|huggingface.co)/[A-Za-z0-9._-]{0,99}/[A-Za-z0-9._%-]{0,99}(:[A-Z0-9_]{0,6})?(/(blob|tree)/main/[ -~]{0,40}gguf)?",
                "https?://[a-z.@:]{0,10}/[ -~]{0,120}[.]gguf",
            ]
        ) {
            if let Ok(request) = ModelRequest::parse(&text, HUB) {
                let name = request.store_name();
                prop_assert!(file_stem(&name).is_some(), "{text:?}: {name:?}");
                if !matches!(request, ModelRequest::Url(_)) {
                    let again = ModelRequest::parse(&request.to_string(), HUB).unwrap();
                    prop_assert_eq!(again.store_name(), name);
                }
            }
        }
    }

    const HUB: &str = "https://mirror.example";

    fn parse(text: &str) -> Result<ModelRequest> {
        ModelRequest::parse(text, HUB)
    }

    #[test]
    fn names_with_sizes_variants_and_quantisations_are_understood() {
        for (text, name, is_qat, quant, store_name) in [
            ("gemma3", "gemma3:270m", false, None, "gemma3:270m"),
            ("Gemma3:27B", "gemma3:27b", false, None, "gemma3:27b"),
            ("gemma3:27b-it", "gemma3:27b", false, None, "gemma3:27b"),
            ("gemma3:27b-it-qat", "gemma3:27b", true, None, "gemma3:27b-qat"),
            ("gemma3:27b-qat", "gemma3:27b", true, None, "gemma3:27b-qat"),
            ("gemma3:27b:q8_0", "gemma3:27b", false, Some("Q8_0"), "gemma3:27b-q8_0"),
            ("gemma3:27b-it-q4_K_M", "gemma3:27b", false, Some("Q4_K_M"), "gemma3:27b-q4_k_m"),
            ("gemma3:12b-it-qat:q4_0", "gemma3:12b", true, Some("Q4_0"), "gemma3:12b-qat-q4_0"),
            ("gemma3:270m-it", "gemma3:270m-it", false, None, "gemma3:270m-it"),
            ("gemma3:1b-pt-q8_0", "gemma3:1b-pt", false, Some("Q8_0"), "gemma3:1b-pt-q8_0"),
            ("llama3.1:8b-instruct-fp16", "llama3.1:8b", false, Some("F16"), "llama3.1:8b-f16"),
            ("mistral", "mistral:7b", false, None, "mistral:7b"),
            ("mistral:latest", "mistral:7b", false, None, "mistral:7b"),
            ("smollm2:q8_0", "smollm2:135m", false, Some("Q8_0"), "smollm2:135m-q8_0"),
        ] {
            let request = parse(text).unwrap();
            let ModelRequest::Catalogue { model, qat, quant: found } = &request else { panic!("{text}") };
            assert_eq!((model.name, *qat, found.map(Quant::name)), (name, is_qat, quant), "{text}");
            assert_eq!(request.store_name(), store_name, "{text}");
            assert!(file_stem(store_name).is_some(), "{store_name}");
        }
    }

    #[test]
    fn repositories_are_understood_in_every_spelling() {
        for (text, repository, revision, file, quant, store_name) in [
            ("hf.co/Qwen/Qwen3-8B-GGUF", "Qwen/Qwen3-8B-GGUF", None, None, None, "qwen3-8b"),
            ("hf.co/a/b:q8_0", "a/b", None, None, Some("Q8_0"), "b-q8_0"),
            ("huggingface.co/a/B.gguf/", "a/B.gguf", None, None, None, "b"),
            ("https://huggingface.co/a/b", "a/b", None, None, None, "b"),
            ("https://mirror.example/a/b?x=1", "a/b", None, None, None, "b"),
            ("https://huggingface.co/a/b/tree/v1", "a/b", Some("v1"), None, None, "b"),
            (
                "https://hf.co/a/b/blob/main/sub/M%20x-Q4_0.gguf?download=true",
                "a/b",
                Some("main"),
                Some("sub/M x-Q4_0.gguf"),
                None,
                "m-x-q4_0",
            ),
            ("hf.co/a/b/sub/M-Q4_0.gguf", "a/b", None, Some("sub/M-Q4_0.gguf"), None, "m-q4_0"),
            (
                "https://hf.co/a/b/resolve/main/M-Q8_0-00001-of-00002.gguf",
                "a/b",
                Some("main"),
                Some("M-Q8_0-00001-of-00002.gguf"),
                None,
                "m-q8_0",
            ),
        ] {
            let request = parse(text).unwrap();
            let ModelRequest::Repository { repository: found, revision: at, file: path, quant: bits } =
                &request
            else {
                panic!("{text}: {request:?}")
            };
            assert_eq!(
                (found.to_string().as_str(), at.as_deref(), path.as_deref(), bits.map(Quant::name)),
                (repository, revision, file, quant),
                "{text}"
            );
            assert_eq!(request.store_name(), store_name, "{text}");
        }
        let url = "https://example.org/files/My%20Model.Q4_0.gguf?token=secret";
        let request = parse(url).unwrap();
        assert_eq!(request, ModelRequest::Url(url.to_string()));
        assert_eq!(request.store_name(), "my-20model.q4_0");
        assert_eq!(request.to_string(), "https://example.org/files/My%20Model.Q4_0.gguf");
    }

    #[test]
    fn invalid_requests_say_what_to_write() {
        for (text, part) in [
            ("gema3:27b", "did you mean gemma3:27b"),
            ("gemma3:27b:q9_9", "'q9_9' is not a quantisation"),
            ("gemma3:27b-nonsense", "unknown model"),
            ("", "unknown model"),
            ("../../etc/passwd", "unknown model"),
            ("hf.co/onlyowner", "hf.co/OWNER/REPO"),
            ("hf.co/../b", "hf.co/OWNER/REPO"),
            ("hf.co/a/b:fast", "'fast' is not a quantisation"),
            ("hf.co/datasets/a/b", "not the address of a model"),
            ("hf.co/a/b/blob/main/config.json", "only .gguf files"),
            ("hf.co/a/%zz", "percent-encoding"),
            ("https://example.org/model.bin", "must be that of a .gguf file"),
            ("ftp://example.org/model.gguf", "only http and https"),
            ("file:///etc/passwd", "only http and https"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = parse("https://user:secret@example.org/x").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
