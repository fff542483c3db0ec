//! The protocol of the model hub: the commit of a revision, the list of its files, and where their bytes are.
//!
//! | request | response |
//! |---|---|
//! | `GET /api/models/OWNER/REPO/revision/REV` | the commit that `REV` refers to |
//! | `GET /api/models/OWNER/REPO/tree/COMMIT?recursive=true` | the files with sizes and checksums, in pages linked by `Link` headers |
//! | `HEAD /OWNER/REPO/resolve/COMMIT/FILE` | a redirect to storage with a signed, expiring address, and the file's checksum (`x-linked-etag`), size (`x-linked-size`) and commit (`x-repo-commit`) |
//!
//! The revision is resolved to a commit first, and everything else refers to that commit: files that belong
//! together come from one commit even if the repository changes in the meantime. Everything that a hub sends
//! is validated before it is used.

use std::{collections::HashSet, io::Read, sync::atomic::AtomicBool};

use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    client::{Client, Reply, network_error},
    download::{DownloadEvent, Session},
    error::{Error, Result},
    hub_cache,
    interrupt::interruptible,
    remote::RemoteHeader,
    request::Repository,
    settings::Settings,
    sha256::is_sha256,
    task::PullEvent,
    url::{encode_path, join, origin, without_secrets},
};

/// Maximum size of one response of the API, in bytes. A page of 1000 files has 300 kB.
const MAX_RESPONSE: u64 = 8 << 20;
/// Maximum number of files in a repository; the largest model repositories have hundreds.
pub(crate) const MAX_FILES: usize = 10_000;
/// Maximum number of pages of a file list.
const MAX_PAGES: usize = 100;
/// Maximum length of a path in a repository, in bytes.
const MAX_PATH: usize = 1024;
/// Maximum size of all files: keeps sums within 64 bits.
const MAX_BYTES: u64 = 1 << 50;
/// Maximum size of a configuration file, in bytes.
const MAX_TEXT: u64 = 1 << 20;

/// The model hub.
pub struct Hub<'a> {
    client: Client,
    settings: &'a Settings,
    cancel: &'a AtomicBool,
}

/// The files of a repository at one commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// The repository.
    pub repository: Repository,
    /// The branch, tag or commit that was asked for.
    pub revision: String,
    /// The commit.
    pub commit: String,
    /// The licence, as its owner names it.
    pub licence: Option<String>,
    /// The files: paths are relative, unique and inside the repository.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteFile {
    /// Path in the repository.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal; the hub publishes it for large files only.
    pub sha256: Option<String>,
}

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Location {
    /// The address; a signed one expires.
    pub url: String,
    /// Whether it is outside the hub.
    pub is_signed: bool,
    /// SHA-256 in hexadecimal, if the hub publishes it.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    tags: Vec<String>,
    /// `false`, or how access is granted: `"auto"` or `"manual"`.
    #[serde(default)]
    gated: serde_json::Value,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl<'a> Hub<'a> {
    /// The hub of these settings. Setting `cancel` from another thread ends every request.
    pub fn new(settings: &'a Settings, cancel: &'a AtomicBool) -> Result<Self> {
        Ok(Self { client: Client::new(settings)?, settings, cancel })
    }

    pub(crate) fn session(&self) -> Session<'_> {
        Session { client: &self.client, settings: self.settings, cancel: self.cancel }
    }

    /// Runs an operation whose requests end as soon as the user cancels.
    pub(crate) fn interruptible<T>(&self, operation: impl FnOnce() -> T) -> T {
        interruptible(&self.client, self.cancel, operation)
    }

    /// The files of a repository at a revision.
    pub fn list(
        &self,
        repository: &Repository,
        revision: &str,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<Listing> {
        self.interruptible(|| {
            let api = format!("{}/api/models/{repository}", self.settings.hub);
            let encoded = encode_path(revision).replace('/', "%2F");
            // Of the API itself, a 404 without a code is about the repository as well.
            let explain = |error| match error {
                Error::Status { url, status: 404, retry_after, code: None, message } => {
                    let code = Some("RepoNotFound".to_string());
                    let error = Error::Status { url, status: 404, retry_after, code, message };
                    explain(self.settings, repository, revision, error)
                }
                error => explain(self.settings, repository, revision, error),
            };
            let (info, _): (Info, _) =
                self.json(&format!("{api}/revision/{encoded}"), report).map_err(explain)?;
            if !is_commit(&info.sha) {
                return Err(self.not_a_hub(&api, "the commit it names is not a commit"));
            }
            // The list is public even then, but not the files. Whether an account has access, only they tell.
            if matches!(info.gated, serde_json::Value::String(_)) && self.settings.token.is_none() {
                let (status, code) = (401, Some("GatedRepo".to_string()));
                return Err(explain(Error::Status {
                    url: api,
                    status,
                    retry_after: None,
                    code,
                    message: None,
                }));
            }
            let files = self.files(&api, &info.sha, report).map_err(explain)?;
            Ok(Listing {
                repository: repository.clone(),
                revision: revision.to_string(),
                commit: info.sha.to_ascii_lowercase(),
                licence: info.tags.iter().find_map(|tag| tag.strip_prefix("license:")).map(shown),
                files,
            })
        })
    }

    fn files(&self, api: &str, commit: &str, report: &mut dyn FnMut(PullEvent)) -> Result<Vec<RemoteFile>> {
        let mut files = Vec::new();
        let mut seen = HashSet::new();
        let mut total = 0_u64;
        let mut url = format!("{api}/tree/{commit}?recursive=true");
        for _ in 0..MAX_PAGES {
            let (entries, reply): (Vec<TreeEntry>, _) = self.json(&url, report)?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                let file = self.checked_file(&url, entry)?;
                total = total.saturating_add(file.bytes);
                if total > MAX_BYTES {
                    return Err(self.not_a_hub(&url, "the files it lists have an absurd size"));
                }
                if files.len() == MAX_FILES {
                    return Err(self.not_a_hub(&url, &format!("it lists more than {MAX_FILES} files")));
                }
                if !seen.insert(file.path.clone()) {
                    let reason = format!("it lists '{}' twice", shown(&file.path));
                    return Err(self.not_a_hub(&url, &reason));
                }
                files.push(file);
            }
            let Some(next) = reply.header("link").and_then(next_link) else { return Ok(files) };
            let next = join(&reply.url, next);
            if origin(&next) != origin(&self.settings.hub) {
                return Err(self.not_a_hub(&url, "its next page is on another server"));
            }
            url = next;
        }
        Err(self.not_a_hub(&url, &format!("its file list has more than {MAX_PAGES} pages")))
    }

    fn checked_file(&self, url: &str, entry: TreeEntry) -> Result<RemoteFile> {
        if !is_plain_path(&entry.path) {
            let reason = format!("it lists a file named '{}', which is not a valid path", shown(&entry.path));
            return Err(self.not_a_hub(url, &reason));
        }
        let (bytes, sha256) = match entry.lfs {
            Some(lfs) => (lfs.size, is_sha256(&lfs.oid).then(|| lfs.oid.to_ascii_lowercase())),
            None => (entry.size, None),
        };
        Ok(RemoteFile { path: entry.path, bytes, sha256 })
    }

    /// The files of a revision in the cache of the hub's own client, for use where the hub cannot be reached.
    pub fn list_cached(&self, repository: &Repository, revision: &str) -> Option<Listing> {
        hub_cache::listing(self.settings, repository, revision)
    }

    /// The beginning of a file, downloaded as far as it is read, or read from the cache of the hub's own
    /// client.
    pub fn header(&self, listing: &Listing, file: &RemoteFile) -> RemoteHeader<'_> {
        let sha256 = file.sha256.as_deref().unwrap_or_default();
        if let Some(path) = hub_cache::blob(self.settings, &listing.repository, sha256, file.bytes)
            && let Ok(local) = std::fs::File::open(path)
        {
            return RemoteHeader::local(self, local, file.bytes);
        }
        let url = self.file_url(&listing.repository, &listing.commit, &file.path);
        RemoteHeader::new(self, url, Some(file.bytes), Some(listing.repository.clone()))
    }

    /// The beginning of a file at any address, downloaded as far as it is read.
    pub fn header_at(&self, url: &str) -> RemoteHeader<'_> {
        RemoteHeader::new(self, url.to_string(), None, None)
    }

    /// Turns a status of a file into a sentence about its repository.
    pub(crate) fn explain_file(&self, repository: &Repository, error: Error) -> Error {
        explain(self.settings, repository, "", error)
    }

    /// A small text file of a repository.
    pub fn text(&self, listing: &Listing, file: &RemoteFile) -> Result<String> {
        let url = self.file_url(&listing.repository, &listing.commit, &file.path);
        self.interruptible(|| {
            let text = self.session().retry(&mut |_| {}, |_| self.fetch_text(&url, MAX_TEXT), || 0);
            text.map(|(text, _)| text)
        })
    }

    /// The address of a file.
    pub(crate) fn file_url(&self, repository: &Repository, revision: &str, path: &str) -> String {
        let revision = encode_path(revision).replace('/', "%2F");
        format!("{}/{repository}/resolve/{revision}/{}", self.settings.hub, encode_path(path))
    }

    fn json<T: DeserializeOwned>(&self, url: &str, report: &mut dyn FnMut(PullEvent)) -> Result<(T, Reply)> {
        let mut retrying = |event: DownloadEvent| {
            if let DownloadEvent::Retry(error, delay) = event {
                report(PullEvent::Retrying { reason: error.to_string(), delay });
            }
        };
        let (text, reply) =
            self.session().retry(&mut retrying, |_| self.fetch_text(url, MAX_RESPONSE), || 0)?;
        if reply.is_web_page() || text.trim_start().starts_with('<') {
            let reason = "it sent a web page instead of JSON, perhaps the login page of a network or proxy";
            return Err(self.not_a_hub(url, reason));
        }
        match serde_json::from_str(&text) {
            Ok(value) => Ok((value, reply)),
            Err(error) => Err(self.not_a_hub(url, &format!("its response is not understood ({error})"))),
        }
    }

    fn fetch_text(&self, url: &str, limit: u64) -> Result<(String, Reply)> {
        let mut reply = self.client.get(url, &[("Accept-Encoding", "identity".to_string())], &[])?;
        let mut bytes = Vec::new();
        let body = reply.response.body_mut().as_reader();
        body.take(limit + 1).read_to_end(&mut bytes).map_err(|error| network_error(url, &error))?;
        if bytes.len() as u64 > limit {
            return Err(self.not_a_hub(url, &format!("its response is longer than {limit} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|_| self.not_a_hub(url, "its response is not UTF-8"))?;
        Ok((text, reply))
    }

    fn not_a_hub(&self, url: &str, reason: &str) -> Error {
        Error::Hub { url: without_secrets(url), reason: reason.to_string() }
    }
}

/// Turns statuses of the hub into sentences about the repository.
pub(crate) fn explain(settings: &Settings, repository: &Repository, revision: &str, error: Error) -> Error {
    let Error::Status { status, code, message, .. } = &error else { return error };
    let page = format!("{}/{repository}", without_secrets(&settings.hub));
    let tokens = format!("{}/settings/tokens", without_secrets(&settings.hub));
    let repository = repository.to_string();
    let has_token = settings.token.is_some();
    match (status, code.as_deref()) {
        (401 | 403, _) if message.as_deref() == Some("Invalid credentials in Authorization header") => {
            Error::InvalidToken { page: tokens }
        }
        (401 | 403, Some("GatedRepo")) => Error::Gated { repository, page, tokens, has_token },
        (404, Some("RevisionNotFound")) => Error::NoRevision { repository, revision: revision.to_string() },
        (404, Some("RepoNotFound")) | (401, _) => Error::NoRepository { page, has_token },
        _ => error,
    }
}

impl Session<'_> {
    /// Asks the hub where a file's bytes are. The hub answers a HEAD with a redirect to storage; some mirrors
    /// serve the bytes themselves, or do not know HEAD.
    pub(crate) fn locate(&self, url: &str, bytes: Option<u64>, commit: Option<&str>) -> Result<Location> {
        let headers = [("Accept-Encoding", "identity".to_string())];
        let reply = match self.client.head(url, &headers, self.settings.hub_connect_timeout) {
            Ok(reply) => reply,
            Err(Error::Status { status: 405 | 501, .. }) => {
                return Ok(Location { url: url.to_string(), is_signed: false, sha256: None });
            }
            Err(error) => return self.check_cancelled().and(Err(error)),
        };
        if let (Some(expected), Some(found)) = (commit, reply.header("x-repo-commit"))
            && !found.eq_ignore_ascii_case(expected)
        {
            let reason = format!("it is of commit {}, expected {expected}", shown(found));
            return Err(Error::Hub { url: without_secrets(url), reason });
        }
        let linked = reply.header("x-linked-size").and_then(|size| size.parse().ok());
        if let (Some(expected), Some(found)) = (bytes, linked)
            && expected != found
        {
            return Err(Error::Size { url: without_secrets(url), expected, found });
        }
        let tag = reply.header("x-linked-etag").map(|tag| tag.trim_start_matches("W/").trim_matches('"'));
        let sha256 = tag.filter(|tag| is_sha256(tag)).map(str::to_ascii_lowercase);
        let redirected = (300..400).contains(&reply.status());
        let url = match reply.header("location").filter(|_| redirected) {
            Some(location) => join(&reply.url, location),
            None => reply.url.clone(),
        };
        Ok(Location { url, is_signed: redirected, sha256 })
    }
}

/// Whether a text has the form of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a path of a repository is relative, inside it, and printable.
pub(crate) fn is_plain_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= MAX_PATH
        && !path.contains('\\')
        && !path.chars().any(char::is_control)
        && path.split('/').all(|piece| !piece.is_empty() && piece != "." && piece != "..")
}

/// A name from the hub for a message.
fn shown(text: &str) -> String {
    crate::printable(text.chars().take(80).collect::<String>())
}

/// The address of the next page in a `Link` header.
fn next_link(header: &str) -> Option<&str> {
    header.split(',').find_map(|link| {
        let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = |parameter: &str| matches!(parameter.trim(), "rel=\"next\"" | "rel=next");
        parameters.split(';').any(is_next).then_some(target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_are_accepted() {
        for plain in ["a.gguf", "Q8_0/a-00001-of-00002.gguf", "имя файла.gguf", "..a", "a..b/c"] {
            assert!(is_plain_path(plain), "{plain}");
        }
        let long = "a".repeat(MAX_PATH + 1);
        for hostile in
            ["", "/etc/passwd", "../a", "a/../b", "a//b", "a/", "./a", "a\\b", "a\0b", "a\nb", &long]
        {
            assert!(!is_plain_path(hostile), "{hostile:?}");
        }
    }

    #[test]
    fn the_next_page_is_found_among_links() {
        assert_eq!(next_link("<https://hub/x?cursor=1>; rel=\"next\""), Some("https://hub/x?cursor=1"));
        assert_eq!(next_link("</a>; rel=\"first\", </b>; title=x; rel=next"), Some("/b"));
        for none in ["", "<a", "<a>", "<a>; rel=\"prev\"", "rel=\"next\""] {
            assert_eq!(next_link(none), None, "{none}");
        }
    }
}
