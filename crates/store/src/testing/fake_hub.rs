//! A hub in this process: the file list API with pages, redirects to a second server with signed addresses
//! that expire, the headers of the real hub, and its errors.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use super::{Fault, Page, RecordedRequest, Server, sha256};

/// Who may read a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Access {
    /// Everybody.
    #[default]
    Public,
    /// Only those who accepted its terms: nobody.
    Gated,
    /// Only its owner.
    Private,
}

/// A repository of a [`FakeHub`].
#[derive(Clone, Debug, Default)]
pub struct FakeRepository {
    /// Its commit: 40 hexadecimal digits.
    pub commit: String,
    /// The files. GGUF and safetensors files are large files, which are in storage.
    pub files: Vec<FakeFile>,
    /// Entries of the file list that replace the real ones.
    pub listing: Option<Value>,
    /// Who may read it.
    pub access: Access,
    /// The name of the licence.
    pub licence: Option<String>,
}

/// A file of a [`FakeRepository`].
#[derive(Clone, Debug)]
pub struct FakeFile {
    /// Path in the repository.
    pub path: String,
    /// Content, or its beginning.
    pub bytes: Arc<Vec<u8>>,
    /// Size of the whole file.
    pub len: u64,
    /// Its SHA-256.
    pub sha256: String,
}

impl FakeFile {
    /// A file of which only the beginning exists, to read headers of files that are too large for a test.
    pub fn sparse(path: &str, start: Vec<u8>, len: u64) -> Self {
        Self { path: path.to_string(), sha256: sha256(&start), bytes: Arc::new(start), len }
    }
}

impl FakeRepository {
    /// A public repository with these files.
    pub fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let file = |(path, bytes): &(&str, Vec<u8>)| FakeFile {
            path: path.to_string(),
            sha256: sha256(bytes),
            len: bytes.len() as u64,
            bytes: Arc::new(bytes.clone()),
        };
        Self { commit: "c0ffee00".repeat(5), files: files.iter().map(file).collect(), ..Self::default() }
    }
}

/// How the hub misbehaves.
#[derive(Default)]
struct State {
    repositories: HashMap<String, FakeRepository>,
    /// Files per page of the list.
    page_size: usize,
    /// How many requests each signed address serves before it expires.
    uses_per_signature: Option<u32>,
    signatures: HashMap<String, u32>,
    next_signature: u32,
    api_faults: VecDeque<Fault>,
    storage_faults: VecDeque<Fault>,
    storage_always: Option<Fault>,
    storage_ignores_ranges: bool,
    storage_tag: Option<&'static str>,
    redirect: Option<String>,
    no_head: bool,
    token: Option<String>,
}

/// A hub and its storage.
pub struct FakeHub {
    /// The hub.
    pub server: Server,
    /// The storage that the hub redirects to.
    pub storage: Server,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeHub {
    /// A hub without repositories.
    pub fn start() -> Self {
        let state =
            Arc::new(Mutex::new(State { page_size: 50, storage_tag: Some("\"tag\""), ..State::default() }));
        let own = state.clone();
        let storage = Server::with_handler(Some(Box::new(move |request| Some(lock(&own).store(request)))));
        let (own, address) = (state.clone(), storage.url.clone());
        let server =
            Server::with_handler(Some(Box::new(move |request| Some(lock(&own).respond(request, &address)))));
        Self { server, storage, state }
    }

    /// Adds or replaces a repository, `OWNER/NAME`.
    pub fn put(&self, name: &str, repository: FakeRepository) {
        lock(&self.state).repositories.insert(name.to_string(), repository);
    }

    /// Lists this many files per page.
    pub fn page_size(&self, files: usize) {
        lock(&self.state).page_size = files;
    }

    /// Lets signed addresses expire after this many requests.
    pub fn expire_after(&self, requests: u32) {
        lock(&self.state).uses_per_signature = Some(requests);
    }

    /// Lets the next API response fail.
    pub fn api_fault(&self, fault: Fault) {
        lock(&self.state).api_faults.push_back(fault);
    }

    /// Lets the next response of the storage fail.
    pub fn storage_fault(&self, fault: Fault) {
        lock(&self.state).storage_faults.push_back(fault);
    }

    /// Lets every response of the storage fail, or none.
    pub fn storage_always(&self, fault: Option<Fault>) {
        lock(&self.state).storage_always = fault;
    }

    /// Lets the storage ignore ranges.
    pub fn ignore_ranges(&self) {
        lock(&self.state).storage_ignores_ranges = true;
    }

    /// Changes the ETag of all files in storage.
    pub fn storage_tag(&self, tag: Option<&'static str>) {
        lock(&self.state).storage_tag = tag;
    }

    /// Lets every file redirect to this address.
    pub fn redirect_to(&self, url: &str) {
        lock(&self.state).redirect = Some(url.to_string());
    }

    /// Rejects HEAD requests, as some mirrors do.
    pub fn reject_head(&self) {
        lock(&self.state).no_head = true;
    }

    /// Accepts only this token, where one is sent.
    pub fn accept_token(&self, token: &str) {
        lock(&self.state).token = Some(token.to_string());
    }
}

fn error(status: u16, code: &str, message: &str) -> (Page, Option<Fault>) {
    let mut headers = vec![("x-error-message", message.to_string())];
    if !code.is_empty() {
        headers.push(("x-error-code", code.to_string()));
    }
    (Page { status: Some(status), headers, ..Page::default() }, None)
}

fn is_large(path: &str) -> bool {
    path.ends_with(".gguf") || path.ends_with(".safetensors")
}

impl State {
    fn respond(&mut self, request: &RecordedRequest, storage: &str) -> (Page, Option<Fault>) {
        let sent = request.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer "));
        if let (Some(sent), Some(accepted)) = (sent, &self.token)
            && sent != accepted
        {
            return error(401, "", "Invalid credentials in Authorization header");
        }
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let api = path.strip_prefix("/api/models/");
        let pieces: Vec<&str> = api.unwrap_or(&path[1..]).splitn(5, '/').collect();
        let [owner, name, verb, revision, rest @ ..] = &pieces[..] else {
            return error(404, "", "Not Found");
        };
        let Some(repository) = self.repositories.get(&format!("{owner}/{name}")).cloned() else {
            return error(401, "RepoNotFound", "Repository not found");
        };
        match (repository.access, sent) {
            (Access::Public, _) => {}
            (Access::Private, None) => return error(401, "RepoNotFound", "Repository not found"),
            (Access::Private, Some(_)) => return error(404, "RepoNotFound", "Repository not found"),
            // The hub lists gated repositories, but does not serve their files.
            (Access::Gated, _) if api.is_some() => {}
            (Access::Gated, None) => return error(401, "GatedRepo", "Access is restricted: log in"),
            (Access::Gated, Some(_)) => return error(403, "GatedRepo", "Access is restricted"),
        }
        if ![repository.commit.as_str(), "main"].contains(revision) {
            return error(404, "RevisionNotFound", "Invalid rev id");
        }
        match (api.is_some(), *verb) {
            (true, "revision") => {
                let tags: Vec<String> =
                    repository.licence.iter().map(|licence| format!("license:{licence}")).collect();
                let gated = if repository.access == Access::Gated { json!("manual") } else { json!(false) };
                let info = json!({
                    "_id": "0", "id": format!("{owner}/{name}"), "private": false, "gated": gated,
                    "sha": repository.commit, "tags": tags, "siblings": [],
                });
                self.api_page(&info, Vec::new())
            }
            (true, "tree") => {
                let host = request.headers.get("host").map_or("", String::as_str);
                self.tree(&repository, &format!("http://{host}{path}"), query)
            }
            (false, "resolve") => self.resolve(request, &repository, rest.first().unwrap_or(&""), storage),
            _ => error(404, "", "Not Found"),
        }
    }

    fn api_page(&mut self, value: &Value, headers: Vec<(&'static str, String)>) -> (Page, Option<Fault>) {
        let body = Arc::new(value.to_string().into_bytes());
        let kind = "application/json; charset=utf-8";
        (Page { body, kind, headers, no_ranges: true, ..Page::default() }, self.api_faults.pop_front())
    }

    fn tree(&mut self, repository: &FakeRepository, url: &str, query: &str) -> (Page, Option<Fault>) {
        if let Some(listing) = &repository.listing {
            return self.api_page(listing, Vec::new());
        }
        let cursor = query.split('&').find_map(|pair| pair.strip_prefix("cursor=")?.parse().ok());
        let start: usize = cursor.unwrap_or(0);
        let mut entries = Vec::new();
        if start == 0 {
            entries.push(json!({ "type": "directory", "oid": "0", "size": 0, "path": "folder" }));
        }
        for FakeFile { path, len, sha256, .. } in repository.files.iter().skip(start).take(self.page_size) {
            let mut entry = json!({ "type": "file", "oid": "0".repeat(40), "size": len, "path": path });
            if is_large(path) {
                entry["lfs"] = json!({ "oid": sha256, "size": len, "pointerSize": 135 });
            }
            entries.push(entry);
        }
        let next = start + self.page_size;
        let mut headers = Vec::new();
        if next < repository.files.len() {
            headers.push(("link", format!("<{url}?recursive=true&cursor={next}>; rel=\"next\"")));
        }
        self.api_page(&json!(entries), headers)
    }

    fn resolve(
        &mut self,
        request: &RecordedRequest,
        repository: &FakeRepository,
        path: &str,
        storage: &str,
    ) -> (Page, Option<Fault>) {
        if self.no_head && request.method == "HEAD" {
            return error(405, "", "Method Not Allowed");
        }
        let path = path.replace("%20", " ");
        let Some(FakeFile { bytes, len, sha256: hash, .. }) =
            repository.files.iter().find(|file| file.path == path)
        else {
            return error(404, "EntryNotFound", "Entry not found");
        };
        let commit = ("x-repo-commit", repository.commit.clone());
        if !is_large(&path) {
            let headers = vec![commit, ("etag", format!("\"{}\"", &hash[..40]))];
            let page = Page { body: bytes.clone(), kind: "text/plain", headers, ..Page::default() };
            return (page, None);
        }
        self.next_signature += 1;
        let signature = format!("s{}", self.next_signature);
        self.signatures.insert(signature.clone(), self.uses_per_signature.unwrap_or(u32::MAX));
        let signed = format!("{storage}/blobs/{hash}?X-Expires=3600&X-Signature={signature}");
        let headers = vec![
            commit,
            ("x-linked-etag", format!("\"{hash}\"")),
            ("x-linked-size", len.to_string()),
            ("accept-ranges", "bytes".to_string()),
        ];
        let redirect = Some(self.redirect.clone().unwrap_or(signed));
        (Page { redirect, headers, ..Page::default() }, None)
    }

    fn store(&mut self, request: &RecordedRequest) -> (Page, Option<Fault>) {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let signature = query.split('&').find_map(|pair| pair.strip_prefix("X-Signature=")).unwrap_or("");
        match self.signatures.get_mut(signature) {
            Some(0) | None => return error(403, "", "Request has expired"),
            Some(uses) => *uses = uses.saturating_sub(1),
        }
        let hash = path.rsplit('/').next().unwrap_or_default();
        let mut files = self.repositories.values().flat_map(|repository| &repository.files);
        let Some(file) = files.find(|file| file.sha256 == hash) else {
            return error(404, "", "No such key");
        };
        let page = Page {
            body: file.bytes.clone(),
            total: Some(file.len),
            kind: "application/octet-stream",
            tag: self.storage_tag,
            no_ranges: self.storage_ignores_ranges,
            ..Page::default()
        };
        (page, self.storage_faults.pop_front().or(self.storage_always))
    }
}
