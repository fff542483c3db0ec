//! Pulls through the protocol of the model hub, with every failure that hubs, storage and networks show. At
//! the end of each pull the files are compared byte by byte.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use store::{
    EntryKind, Error, Hub, Listing, ModelDownload, ModelRequest, Placed, PullEvent, PullOptions, Pulled,
    Quant, Repository, Settings, Store, Variants,
    testing::{Access, FakeHub, FakeRepository, Fault, Page, Server, pseudo_random, sha256, unused_address},
};

const REPOSITORY: &str = "someone/Model-GGUF";

/// A hub, a store, and settings with small limits.
struct Rig {
    hub: FakeHub,
    folder: tempfile::TempDir,
    settings: Settings,
}

/// Events of a pull, and a hook that is called with each.
type Hook<'a> = &'a dyn Fn(&PullEvent);

impl Rig {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let hub = FakeHub::start();
        hub.put(REPOSITORY, FakeRepository::new(files));
        let settings = Settings {
            // Long enough for a busy machine.
            hub_connect_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(120),
            retry_delay: Duration::from_millis(1),
            connections: 4,
            range_bytes: 64 << 10,
            ..Settings::new(&hub.server.url, &unused_address())
        };
        Self { hub, folder: tempfile::tempdir().unwrap(), settings }
    }

    /// With one file of this size.
    fn with_model(bytes: usize) -> (Self, Vec<u8>) {
        let content = pseudo_random(bytes, 7);
        (Self::new(&[("model-Q8_0.gguf", content.clone()), ("README.md", b"read me".to_vec())]), content)
    }

    fn store(&self) -> Store {
        Store::new(self.folder.path().join("models"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.store().folder().join(name)
    }

    fn list(&self) -> Result<Listing, Error> {
        self.list_with(&mut |_| {})
    }

    fn list_with(&self, report: &mut dyn FnMut(PullEvent)) -> Result<Listing, Error> {
        let cancel = AtomicBool::new(false);
        let hub = Hub::new(&self.settings, &cancel)?;
        hub.list(&Repository::parse(REPOSITORY).unwrap(), "main", report)
    }

    fn download(&self, listing: &Listing, name: &str, quant: Option<&str>) -> Result<ModelDownload, Error> {
        let request = ModelRequest::parse(&format!("hf.co/{REPOSITORY}"), &self.settings.hub)?;
        let quant = quant.and_then(Quant::parse);
        let variants = Variants::of(listing);
        let variant =
            variants.models.iter().find(|variant| quant.is_none() || variant.quant == quant).unwrap();
        ModelDownload::of_variant(&request, name, listing, variant, variants.image_encoders.first())
    }

    /// Pulls a repository under the name of the other.
    fn pull_from(&self, repository: &str) -> Result<Pulled, Error> {
        let cancel = AtomicBool::new(false);
        let hub = Hub::new(&self.settings, &cancel)?;
        let listing = hub.list(&Repository::parse(repository).unwrap(), "main", &mut |_| {})?;
        let request = ModelRequest::parse(&format!("hf.co/{repository}"), &self.settings.hub)?;
        let variants = Variants::of(&listing);
        let download = ModelDownload::of_variant(&request, "model", &listing, &variants.models[0], None)?;
        let options = PullOptions { settings: &self.settings, verify: false, cancel: &cancel };
        download.pull(&self.store(), &options, &mut |_| {})
    }

    /// Pulls until the first bytes have arrived; the rest never comes.
    fn interrupt(&self) {
        self.hub.storage_always(Some(Fault::Stall(40_000)));
        let cancel = AtomicBool::new(false);
        let (pulled, _) = self.pull_with(&cancel, &|event| {
            if matches!(event, PullEvent::Progress { done, .. } if *done > 0) {
                cancel.store(true, Ordering::Relaxed);
            }
        });
        assert!(matches!(pulled, Err(Error::Cancelled)), "{pulled:?}");
        self.hub.storage_always(None);
    }

    fn pull(&self) -> (Result<Pulled, Error>, Vec<PullEvent>) {
        self.pull_with(&AtomicBool::new(false), &|_| {})
    }

    fn pull_with(&self, cancel: &AtomicBool, hook: Hook) -> (Result<Pulled, Error>, Vec<PullEvent>) {
        let events = RefCell::new(Vec::new());
        let report = &mut |event: PullEvent| {
            hook(&event);
            events.borrow_mut().push(event);
        };
        let pulled = self.list_with(report).and_then(|listing| {
            let options = PullOptions { settings: &self.settings, verify: false, cancel };
            self.download(&listing, "model", None)?.pull(&self.store(), &options, report)
        });
        (pulled, events.into_inner())
    }

    #[track_caller]
    fn assert_complete(&self, pulled: Result<Pulled, Error>, content: &[u8]) -> Pulled {
        let pulled = pulled.unwrap();
        assert!(fs::read(&pulled.path).unwrap() == content, "the file differs");
        assert_eq!(pulled.record.sha256, sha256(content));
        assert_eq!(self.store().resolve("model"), Some(pulled.path.clone()));
        assert!(!self.file("model.part").exists(), "partial downloads are deleted");
        pulled
    }

    #[track_caller]
    fn assert_nothing_stored(&self) {
        assert_eq!(self.store().resolve("model"), None);
    }
}

fn count(events: &[PullEvent], kind: impl Fn(&PullEvent) -> bool) -> usize {
    events.iter().filter(|event| kind(event)).count()
}

fn retrying(event: &PullEvent) -> bool {
    matches!(event, PullEvent::Retrying { .. })
}

/// First and last byte of the requested ranges.
fn ranges(storage: &Server) -> Vec<(u64, u64)> {
    let range = |text: &String| {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    storage.all_requests().iter().filter_map(|request| range(request.headers.get("range")?)).collect()
}

#[test]
fn a_large_file_comes_in_ranges_and_the_token_stays_at_the_hub() {
    let (mut rig, content) = Rig::with_model(1_000_000);
    rig.settings.token = Some("secret".into());
    let (pulled, events) = rig.pull();
    let pulled = rig.assert_complete(pulled, &content);
    assert_eq!(pulled.path, rig.file("model.gguf"));
    assert_eq!(pulled.record.request.as_deref(), Some("hf.co/someone/Model-GGUF"));
    assert_eq!(pulled.record.commit.as_deref(), Some("c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"));
    assert_eq!(pulled.record.quant.as_deref(), Some("Q8_0"));
    assert!(pulled.record.source.ends_with("/someone/Model-GGUF at c0ffee00, model-Q8_0.gguf"));
    assert_eq!(events.last(), Some(&PullEvent::Verifying));
    assert!(events.contains(&PullEvent::Progress { done: 1_000_000, total: 1_000_000 }));
    let at_hub = rig.hub.server.all_requests();
    assert!(at_hub.iter().all(|request| request.headers["authorization"] == "Bearer secret"));
    // Files are requested at the commit, not at the branch.
    assert!(at_hub.iter().any(|request| request.path.contains("/tree/c0ffee00")));
    assert!(at_hub.iter().all(|request| !request.path.contains("resolve/main")));
    let at_storage = rig.hub.storage.all_requests();
    assert!(at_storage.iter().all(|request| !request.headers.contains_key("authorization")));
    assert_eq!(at_storage.len(), 1_000_000_usize.div_ceil(64 << 10));
    assert!(!format!("{pulled:?}").contains("Signature"), "signed addresses are not recorded");
}

#[test]
fn a_connection_that_is_cut_at_every_tenth_megabyte_still_delivers_every_byte() {
    const MIB: usize = 1 << 20;
    let (mut rig, content) = Rig::with_model(45 * MIB + 12_345);
    rig.settings.range_bytes = 16 << 20;
    rig.hub.storage_always(Some(Fault::Cut(10 * MIB)));
    let (pulled, events) = rig.pull();
    rig.assert_complete(pulled, &content);
    // Each of the two full ranges is cut once, and so is the third (13 MiB).
    assert_eq!(count(&events, retrying), 3);
    let requested = ranges(&rig.hub.storage);
    assert_eq!(requested.len(), 3 + 3, "{requested:?}");
    assert!(requested.contains(&(10 << 20, (16 << 20) - 1)), "resumed where it was cut: {requested:?}");
}

#[test]
fn an_expired_signature_is_renewed() {
    let (rig, content) = Rig::with_model(1_000_000);
    rig.hub.expire_after(3);
    let (pulled, events) = rig.pull();
    rig.assert_complete(pulled, &content);
    assert_eq!(count(&events, retrying), 0, "not a failure");
    let asked = rig.hub.server.all_requests().iter().filter(|request| request.method == "HEAD").count();
    assert!(asked >= 16 / 3, "asked {asked} times");

    let (rig, _) = Rig::with_model(1_000_000);
    rig.hub.expire_after(0);
    let error = rig.pull().0.unwrap_err();
    assert!(matches!(error, Error::Status { status: 403, .. }), "{error}");
    rig.assert_nothing_stored();
}

#[test]
fn rate_limits_are_respected() {
    let (rig, content) = Rig::with_model(300_000);
    rig.hub.api_fault(Fault::TooManyRequests("1"));
    rig.hub.storage_fault(Fault::TooManyRequests("Thu, 01 Jan 1970 00:00:00 GMT"));
    let (pulled, events) = rig.pull();
    rig.assert_complete(pulled, &content);
    let delays: Vec<Duration> = events
        .iter()
        .filter_map(|event| if let PullEvent::Retrying { delay, .. } = event { Some(*delay) } else { None })
        .collect();
    assert_eq!(delays, [Duration::from_secs(1), rig.settings.retry_delay]);

    // A day is too long to wait: the message says so, and a later pull continues.
    rig.hub.api_fault(Fault::TooManyRequests("86400"));
    let error = rig.list().unwrap_err().to_string();
    assert!(error.contains("429 (too many requests: try again in 86400 s)"), "{error}");
}

#[test]
fn server_errors_are_retried_and_then_reported() {
    let (rig, content) = Rig::with_model(300_000);
    rig.hub.api_fault(Fault::Status(502));
    rig.hub.storage_fault(Fault::Status(503));
    rig.hub.storage_fault(Fault::Cut(0));
    let (pulled, events) = rig.pull();
    rig.assert_complete(pulled, &content);
    assert_eq!(count(&events, retrying), 3);

    let (rig, _) = Rig::with_model(300_000);
    rig.hub.storage_always(Some(Fault::Status(500)));
    let error = rig.pull().0.unwrap_err();
    assert!(matches!(error, Error::Status { status: 500, .. }), "{error}");
    rig.assert_nothing_stored();
}

#[test]
fn a_server_that_ignores_ranges_is_used_with_one_connection() {
    let (rig, content) = Rig::with_model(500_000);
    rig.hub.ignore_ranges();
    rig.hub.reject_head();
    let (pulled, events) = rig.pull();
    rig.assert_complete(pulled, &content);
    assert_eq!(count(&events, |event| *event == PullEvent::OneConnection), 1);
}

#[test]
fn a_known_file_that_moves_to_another_storage_is_not_downloaded_again() {
    let (rig, content) = Rig::with_model(1_000_000);
    rig.hub.storage_fault(Fault::Status(503));
    let (pulled, _) = rig.pull_with(&AtomicBool::new(false), &|event| {
        if retrying(event) {
            rig.hub.storage_tag(Some("\"another storage\""));
        }
    });
    rig.assert_complete(pulled, &content);
    let requested = ranges(&rig.hub.storage);
    assert_eq!(requested.len(), 1_000_000_usize.div_ceil(64 << 10) + 1, "only the failed range is repeated");
}

#[test]
fn versions_of_a_file_without_a_checksum_are_not_mixed() {
    let (rig, _) = Rig::with_model(10);
    let server = Server::start();
    let (old, new) = (pseudo_random(1_000_000, 1), pseudo_random(1_000_000, 2));
    let page =
        |content: &Vec<u8>, tag| Page { body: Arc::new(content.clone()), tag: Some(tag), ..Page::default() };
    server.put("/m.gguf", page(&old, "\"old\""));
    server.fault("/m.gguf", Fault::Status(503));
    let url = format!("{}/m.gguf", server.url);
    let request = ModelRequest::parse(&url, &rig.settings.hub).unwrap();
    let download = ModelDownload::of_url(&request, "model", &url, 1_000_000).unwrap();
    let cancel = AtomicBool::new(false);
    let options = PullOptions { settings: &rig.settings, verify: false, cancel: &cancel };
    let pulled = download.pull(&rig.store(), &options, &mut |event| {
        if retrying(&event) {
            server.put("/m.gguf", page(&new, "\"new\""));
        }
    });
    // If the retry came last, the file was complete in its old version.
    let content = fs::read(&pulled.unwrap().path).unwrap();
    assert!(content == new || content == old, "the versions are mixed");
    let conditional =
        server.all_requests().iter().filter(|request| request.headers.contains_key("if-range")).count();
    assert!(conditional > 0);
}

#[test]
fn an_interrupted_pull_resumes_with_the_missing_bytes() {
    let (mut rig, content) = Rig::with_model(2_000_000);
    rig.settings.connections = 2;
    rig.interrupt();
    rig.assert_nothing_stored();
    let listed = rig.store().entries().unwrap();
    assert_eq!((listed[0].name.as_str(), &listed[0].kind), ("model", &EntryKind::Incomplete));
    let repository = Repository::parse(REPOSITORY).unwrap();
    let commit = rig.store().interrupted_commit("model", &repository);
    assert_eq!(commit.as_deref(), Some("c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"));
    assert_eq!(rig.store().interrupted_commit("model", &Repository::parse("a/b").unwrap()), None);
    ranges(&rig.hub.storage);
    // Another model of that name does not throw the bytes away.
    rig.hub.put("other/Model-GGUF", FakeRepository::new(&[("model-Q8_0.gguf", vec![0; 1000])]));
    let error = rig.pull_from("other/Model-GGUF").unwrap_err().to_string();
    assert!(error.contains(&format!("hf.co/{REPOSITORY}, interrupted")), "{error}");

    let (pulled, events) = rig.pull();
    rig.assert_complete(pulled, &content);
    let done = events.iter().find_map(|event| match event {
        PullEvent::Resuming { done } => Some(*done),
        _ => None,
    });
    let requested: u64 = ranges(&rig.hub.storage).iter().map(|(first, last)| last - first + 1).sum();
    assert_eq!(done.unwrap() + requested, 2_000_000, "nothing is downloaded twice");
}

#[test]
fn a_pull_interrupted_while_it_is_verified_downloads_nothing_again() {
    let (rig, content) = Rig::with_model(1_000_000);
    let cancel = AtomicBool::new(false);
    let (pulled, _) = rig.pull_with(&cancel, &|event| {
        if *event == PullEvent::Verifying {
            cancel.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(pulled, Err(Error::Cancelled)), "{pulled:?}");
    assert!(!ranges(&rig.hub.storage).is_empty());
    let (pulled, _) = rig.pull();
    rig.assert_complete(pulled, &content);
    assert_eq!(ranges(&rig.hub.storage), [], "all bytes were there");
}

#[test]
fn bytes_of_another_version_are_not_resumed() {
    let (rig, _) = Rig::with_model(1_000_000);
    // An earlier pull of another version left its bytes.
    let old = pseudo_random(1_000_000, 99);
    fs::create_dir_all(rig.file("model.part")).unwrap();
    fs::write(rig.file("model.part").join(format!("{}.part", sha256(&old))), &old).unwrap();
    let left = rig.file("model.part").join(format!("{}.part", sha256(&old)));
    let seen = std::cell::Cell::new(false);
    let (pulled, events) = rig.pull_with(&AtomicBool::new(false), &|event| {
        if matches!(event, PullEvent::Progress { .. }) {
            seen.set(seen.get() || left.exists());
        }
    });
    rig.assert_complete(pulled, &pseudo_random(1_000_000, 7));
    assert!(!seen.get(), "they are removed before the download");
    assert_eq!(count(&events, |event| matches!(event, PullEvent::Resuming { .. })), 0);
}

#[test]
fn a_record_cannot_make_a_pull_touch_other_files() {
    let (rig, content) = Rig::with_model(1000);
    rig.pull().0.unwrap();
    let (path, other) = (rig.file("model.json"), rig.file("other.gguf"));
    fs::write(&other, "another model").unwrap();
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["files"] = json!(
        ["other.gguf", "../outside", "model/../other.gguf", "model.gguf/x/y"]
            .map(|path| json!({ "path": path, "bytes": 1, "sha256": "0" }))
    );
    fs::write(&path, record.to_string()).unwrap();
    rig.assert_complete(rig.pull().0, &content);
    assert_eq!(fs::read_to_string(&other).unwrap(), "another model");
}

#[test]
fn damaged_content_is_downloaded_once_more_and_never_becomes_the_model() {
    let (rig, content) = Rig::with_model(300_000);
    rig.hub.storage_fault(Fault::Corrupt);
    let (pulled, events) = rig.pull();
    rig.assert_complete(pulled, &content);
    assert_eq!(count(&events, |event| matches!(event, PullEvent::Discarded { .. })), 1);

    let (rig, content) = Rig::with_model(300_000);
    rig.hub.storage_always(Some(Fault::Corrupt));
    let error = rig.pull().0.unwrap_err().to_string();
    assert!(
        error.contains("model-Q8_0.gguf: its SHA-256 is") && error.contains(&sha256(&content)),
        "{error}"
    );
    rig.assert_nothing_stored();
}

#[test]
fn gated_and_private_repositories_say_what_to_click() {
    let (mut rig, _) = Rig::with_model(300_000);
    let put = |access| {
        let repository = FakeRepository::new(&[("model-Q8_0.gguf", vec![0; 300_000])]);
        rig.hub.put(REPOSITORY, FakeRepository { access, ..repository });
    };
    put(Access::Gated);
    let hub = rig.hub.server.url.clone();
    let error = rig.list().unwrap_err().to_string();
    let click = "click \"Agree and access repository\"";
    assert!(error.contains(&format!("open {hub}/{REPOSITORY}")) && error.contains(click), "{error}");
    assert!(error.contains(&format!("{hub}/settings/tokens and set HF_TOKEN")), "{error}");
    put(Access::Private);
    let error = rig.list().unwrap_err().to_string();
    assert!(error.contains("no such repository, or it is private") && error.contains("HF_TOKEN"), "{error}");

    rig.settings.token = Some("two words".into());
    let error = rig.list().unwrap_err().to_string();
    assert!(error.contains("HF_TOKEN") && error.contains("is malformed"), "{error}");
    rig.settings.token = Some("token".into());
    let error = rig.list().unwrap_err().to_string();
    assert!(error.contains("your token has no access"), "{error}");
    let repository = FakeRepository::new(&[("model-Q8_0.gguf", vec![0; 300_000])]);
    rig.hub.put(REPOSITORY, FakeRepository { access: Access::Gated, ..repository });
    let error = rig.pull().0.unwrap_err().to_string();
    assert!(error.contains("the account of your token has no access") && error.contains(click), "{error}");
    rig.hub.accept_token("another");
    let error = rig.list().unwrap_err().to_string();
    assert!(error.contains("does not accept the token in HF_TOKEN"), "{error}");
    assert!(rig.hub.storage.all_requests().is_empty());
}

#[test]
fn unknown_revisions_and_repositories_are_named() {
    let (rig, _) = Rig::with_model(10);
    let cancel = AtomicBool::new(false);
    let hub = Hub::new(&rig.settings, &cancel).unwrap();
    let list = |name: &str, revision: &str| {
        hub.list(&Repository::parse(name).unwrap(), revision, &mut |_| {}).unwrap_err().to_string()
    };
    assert!(list(REPOSITORY, "v9").contains("someone/Model-GGUF has no branch, tag or commit 'v9'"));
    assert!(list("no/body", "main").contains("/no/body: there is no such repository"));
}

#[test]
fn all_pages_of_a_file_list_are_read() {
    let names: Vec<String> = (0..7).map(|number| format!("file-{number}.txt")).collect();
    let files: Vec<(&str, Vec<u8>)> = names.iter().map(|name| (name.as_str(), vec![1])).collect();
    let rig = Rig::new(&files);
    rig.hub.page_size(2);
    let listing = rig.list().unwrap();
    assert_eq!(
        listing.files.iter().map(|file| &file.path).collect::<Vec<_>>(),
        names.iter().collect::<Vec<_>>()
    );
    let pages =
        rig.hub.server.all_requests().iter().filter(|request| request.path.contains("/tree/")).count();
    assert_eq!(pages, 4);
}

#[test]
fn hostile_file_lists_are_rejected_before_anything_is_written() {
    let file = |path: &str, size: Value| json!({ "type": "file", "oid": "0", "size": size, "path": path });
    let million: Vec<Value> = (0..12_000).map(|number| file(&format!("{number}"), json!(1))).collect();
    let long = "x".repeat(9 << 20);
    for (listing, part) in [
        (json!([file("../../evil.gguf", json!(1))]), "'../../evil.gguf', which is not a valid path"),
        (json!([file("/etc/passwd", json!(1))]), "not a valid path"),
        (json!([file("a/../../b.gguf", json!(1))]), "not a valid path"),
        (json!([file("a\u{1b}[31m.gguf", json!(1))]), "not a valid path"),
        (json!([file("a.gguf", json!(1)), file("a.gguf", json!(2))]), "lists 'a.gguf' twice"),
        (json!([file("a.gguf", json!(-1))]), "not understood"),
        (json!([file("a.gguf", json!(1e300))]), "not understood"),
        (json!([file("a.gguf", json!(u64::MAX))]), "absurd size"),
        (json!(million), "more than 10000 files"),
        (json!([file(&long, json!(1))]), "longer than 8388608 bytes"),
        (json!({ "error": "nothing here" }), "not understood"),
        (json!([{ "type": "file" }]), "not understood"),
        (json!("text"), "not understood"),
    ] {
        let (rig, _) = Rig::with_model(10);
        let repository = FakeRepository::new(&[]);
        rig.hub.put(REPOSITORY, FakeRepository { listing: Some(listing), ..repository });
        let error = rig.list().unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {}", &error[..error.len().min(500)]);
        assert!(!error.contains('\u{1b}') && error.len() < 1000);
        assert!(!rig.store().folder().exists());
    }
}

#[test]
fn login_pages_are_recognised() {
    let (rig, _) = Rig::with_model(300_000);
    rig.hub.api_fault(Fault::WebPage);
    let error = rig.list().unwrap_err().to_string();
    assert!(error.contains("web page instead of JSON") && error.contains("HF_ENDPOINT"), "{error}");
    rig.hub.storage_always(Some(Fault::WebPage));
    let (pulled, events) = rig.pull();
    let error = pulled.unwrap_err().to_string();
    assert!(error.contains("web page instead of the file"), "{error}");
    assert_eq!(count(&events, retrying), 0);
    rig.assert_nothing_stored();
}

#[test]
fn redirect_loops_end() {
    let (rig, _) = Rig::with_model(300_000);
    let elsewhere = Server::start();
    let redirect = Some(format!("{}/b", elsewhere.url));
    elsewhere.put("/a", Page { redirect, ..Page::default() });
    let redirect = Some(format!("{}/a", elsewhere.url));
    elsewhere.put("/b", Page { redirect, ..Page::default() });
    rig.hub.redirect_to(&format!("{}/a", elsewhere.url));
    let error = rig.pull().0.unwrap_err();
    assert!(
        matches!(&error, Error::Redirect { reason, .. } if reason.contains("more than 10 redirects")),
        "{error}"
    );
    assert!(elsewhere.all_requests().len() <= 2 * 11 * rig.settings.connections);
}

#[test]
fn files_in_the_hubs_own_cache_are_reused_if_they_are_intact() {
    let (mut rig, content) = Rig::with_model(300_000);
    let cache = rig.folder.path().join("hub");
    let blob = cache.join("models--someone--Model-GGUF/blobs").join(sha256(&content));
    fs::create_dir_all(blob.parent().unwrap()).unwrap();
    rig.settings.hub_cache = Some(cache);
    fs::write(&blob, &content).unwrap();
    let (pulled, events) = rig.pull();
    rig.assert_complete(pulled, &content);
    let cached = events.iter().find_map(|event| match event {
        PullEvent::Cached { path, placed } => Some((path.clone(), *placed)),
        _ => None,
    });
    let (path, placed) = cached.unwrap();
    assert_eq!(path, blob);
    assert_ne!(placed, Placed::Copy);
    assert!(rig.hub.storage.all_requests().is_empty(), "nothing is downloaded");
    assert_eq!(fs::read(&blob).unwrap(), content, "the cache is untouched");

    // A damaged blob is not used, and not changed either.
    let (mut other, content) = Rig::with_model(300_000);
    let mut damaged = content.clone();
    damaged[1000] ^= 1;
    fs::write(&blob, &damaged).unwrap();
    other.settings.hub_cache = rig.settings.hub_cache.clone();
    let (pulled, events) = other.pull();
    other.assert_complete(pulled, &content);
    assert_eq!(count(&events, |event| matches!(event, PullEvent::Discarded { .. })), 1);
    assert_eq!(fs::read(&blob).unwrap(), damaged);
}

#[test]
fn a_cached_repository_can_be_pulled_without_the_hub() {
    let (mut rig, content) = Rig::with_model(300_000);
    let cache = rig.folder.path().join("hub");
    let folder = cache.join("models--someone--Model-GGUF");
    let (commit, hash) = ("ab".repeat(20), sha256(&content));
    let snapshot = folder.join("snapshots").join(&commit);
    fs::create_dir_all(snapshot.join("sub")).unwrap();
    fs::create_dir_all(folder.join("blobs")).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), &commit).unwrap();
    fs::write(folder.join("blobs").join(&hash), &content).unwrap();
    std::os::unix::fs::symlink(folder.join("blobs").join(&hash), snapshot.join("sub/m-Q8_0.gguf")).unwrap();
    fs::write(snapshot.join("README.md"), "hi").unwrap();
    rig.settings.hub_cache = Some(cache);
    rig.settings.hub = unused_address();
    let cancel = AtomicBool::new(false);
    let hub = Hub::new(&rig.settings, &cancel).unwrap();
    let repository = Repository::parse(REPOSITORY).unwrap();
    let listing = hub.list_cached(&repository, "main").unwrap();
    assert_eq!(listing.commit, commit);
    let paths: Vec<&str> = listing.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["README.md", "sub/m-Q8_0.gguf"]);
    assert_eq!((&listing.files[0].sha256, &listing.files[1].sha256), (&None, &Some(hash)));
    use std::io::Read;
    let mut start = vec![0; 100_000];
    hub.header(&listing, &listing.files[1]).read_exact(&mut start).unwrap();
    assert!(start == content[..100_000]);
    let options = PullOptions { settings: &rig.settings, verify: false, cancel: &cancel };
    let download = rig.download(&listing, "model", None).unwrap();
    rig.assert_complete(download.pull(&rig.store(), &options, &mut |_| {}), &content);
    for unknown in ["v1", "../../x", "", "/etc/passwd"] {
        assert_eq!(hub.list_cached(&repository, unknown), None, "{unknown}");
    }
}

#[test]
fn split_models_and_image_encoders_are_one_model_in_the_store() {
    let parts = [pseudo_random(200_000, 1), pseudo_random(150_000, 2), b"encoder".to_vec()];
    let rig = Rig::new(&[
        ("Q8_0/m-Q8_0-00002-of-00002.gguf", parts[1].clone()),
        ("Q8_0/m-Q8_0-00001-of-00002.gguf", parts[0].clone()),
        ("mmproj-m-f16.gguf", parts[2].clone()),
    ]);
    let (pulled, events) = rig.pull();
    let pulled = pulled.unwrap();
    assert_eq!(pulled.path, rig.file("model-00001-of-00002.gguf"));
    for (name, content) in
        ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf", "model.mmproj"].iter().zip(&parts)
    {
        assert!(fs::read(rig.file(name)).unwrap() == *content, "{name}");
    }
    assert_eq!(pulled.record.bytes, 350_007);
    assert!(events.contains(&PullEvent::Progress { done: 350_007, total: 350_007 }));
    let entries = rig.store().entries().unwrap();
    let listed: Vec<(&str, &EntryKind, u64)> =
        entries.iter().map(|entry| (entry.name.as_str(), &entry.kind, entry.bytes)).collect();
    assert_eq!(listed, [("model", &EntryKind::Model, 350_007)]);
    assert_eq!(entries[0].record.as_ref(), Some(&pulled.record));
    // Found by the request that it was pulled with.
    assert_eq!(rig.store().resolve("hf.co/someone/model-gguf"), Some(pulled.path.clone()));
    // The second pull downloads nothing.
    rig.hub.storage.all_requests();
    assert!(rig.pull().0.unwrap().already_present);
    assert!(rig.hub.storage.all_requests().is_empty());
    let removal = rig.store().plan_removal("model").unwrap();
    rig.store().remove(&removal).unwrap();
    assert_eq!(fs::read_dir(rig.store().folder()).unwrap().count(), 0, "everything is removed");
}

#[test]
fn a_new_version_replaces_the_old_one_and_its_further_parts() {
    let rig = Rig::new(&[
        ("m-Q8_0-00001-of-00002.gguf", pseudo_random(1000, 1)),
        ("m-Q8_0-00002-of-00002.gguf", pseudo_random(1000, 2)),
    ]);
    rig.pull().0.unwrap();
    let content = pseudo_random(3000, 3);
    let repository = FakeRepository::new(&[("m-Q8_0.gguf", content.clone())]);
    rig.hub.put(REPOSITORY, FakeRepository { commit: "b".repeat(40), ..repository });
    let pulled = rig.assert_complete(rig.pull().0, &content);
    assert!(!pulled.already_present);
    assert_eq!(rig.store().entries().unwrap().len(), 1);
    assert!(!rig.file("model-00001-of-00002.gguf").exists());
}

#[test]
fn another_model_of_the_same_name_is_not_replaced() {
    let (rig, _) = Rig::with_model(1000);
    fs::create_dir_all(rig.store().folder()).unwrap();
    fs::write(rig.file("model.gguf"), "mine").unwrap();
    let error = rig.pull().0.unwrap_err().to_string();
    assert!(error.contains("already has another model named 'model'") && error.contains("--name"), "{error}");
    assert_eq!(fs::read_to_string(rig.file("model.gguf")).unwrap(), "mine");
    assert!(rig.hub.storage.all_requests().is_empty());
}

#[test]
fn a_full_disk_is_reported_before_the_first_byte() {
    let (rig, _) = Rig::with_model(10);
    let entry = json!({
        "type": "file", "oid": "0", "size": 1_u64 << 49, "path": "m-Q8_0.gguf",
        "lfs": { "oid": "ab".repeat(32), "size": 1_u64 << 49, "pointerSize": 135 },
    });
    let repository = FakeRepository::new(&[]);
    rig.hub.put(REPOSITORY, FakeRepository { listing: Some(json!([entry])), ..repository });
    let error = rig.pull().0.unwrap_err().to_string();
    assert!(error.contains("536870912 MiB are needed") && error.contains("INDRIK_MODELS_DIR"), "{error}");
    assert!(rig.hub.storage.all_requests().is_empty());
}

#[test]
fn a_repository_with_safetensors_becomes_a_folder() {
    let weights = pseudo_random(300_000, 5);
    let rig = Rig::new(&[
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"model\": {}}".to_vec()),
        ("model-00001-of-00001.safetensors", weights.clone()),
        ("model.safetensors.index.json", b"{}".to_vec()),
        ("pytorch_model.bin", b"pickle".to_vec()),
        ("onnx/model-x.safetensors", b"other".to_vec()),
        ("train.py", b"import os".to_vec()),
    ]);
    let listing = rig.list().unwrap();
    let request = ModelRequest::parse(&format!("hf.co/{REPOSITORY}"), "").unwrap();
    let download = ModelDownload::of_folder(&request, "model", &listing).unwrap();
    let cancel = AtomicBool::new(false);
    let options = PullOptions { settings: &rig.settings, verify: true, cancel: &cancel };
    for round in 0..2 {
        let pulled = download.pull(&rig.store(), &options, &mut |_| {}).unwrap();
        assert_eq!((pulled.path, pulled.already_present), (rig.file("model"), round == 1));
    }
    let mut names: Vec<String> = fs::read_dir(rig.file("model"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json", "tokenizer.json"]
    );
    assert!(fs::read(rig.file("model/model-00001-of-00001.safetensors")).unwrap() == weights);
    let entries = rig.store().entries().unwrap();
    assert_eq!((entries.len(), entries[0].name.as_str()), (1, "model"));
    rig.store().remove(&rig.store().plan_removal("model").unwrap()).unwrap();
    assert_eq!(fs::read_dir(rig.store().folder()).unwrap().count(), 0);
}

#[test]
fn an_address_is_pulled_with_a_warning_that_nothing_vouches_for_it() {
    let (mut rig, _) = Rig::with_model(10);
    rig.settings.token = Some("secret".into());
    let server = Server::start();
    let content = pseudo_random(400_000, 3);
    server.put("/m.gguf", Page { body: Arc::new(content.clone()), tag: Some("\"v\""), ..Page::default() });
    let url = format!("{}/m.gguf", server.url);
    let request = ModelRequest::parse(&url, &rig.settings.hub).unwrap();
    let cancel = AtomicBool::new(false);
    let hub = Hub::new(&rig.settings, &cancel).unwrap();
    let bytes = hub.header_at(&url).file_bytes().unwrap();
    assert_eq!(bytes, 400_000);
    let download = ModelDownload::of_url(&request, "model", &url, bytes).unwrap();
    let options = PullOptions { settings: &rig.settings, verify: false, cancel: &cancel };
    let mut events = Vec::new();
    let pulled = download.pull(&rig.store(), &options, &mut |event| events.push(event));
    rig.assert_complete(pulled, &content);
    assert_eq!(count(&events, |event| matches!(event, PullEvent::Unverified { .. })), 1);
    assert!(server.all_requests().iter().all(|request| !request.headers.contains_key("authorization")));
}

#[test]
fn headers_are_read_as_far_as_needed() {
    use std::io::Read;
    let (rig, content) = Rig::with_model(1_000_000);
    rig.hub.expire_after(1);
    let listing = rig.list().unwrap();
    let cancel = AtomicBool::new(false);
    let hub = Hub::new(&rig.settings, &cancel).unwrap();
    let mut header = hub.header(&listing, &listing.files[0]);
    let mut start = vec![0; 100];
    header.read_exact(&mut start).unwrap();
    assert_eq!((&start[..], header.downloaded()), (&content[..100], 64 << 10));
    header.rewind();
    let mut more = vec![0; 200_000];
    header.read_exact(&mut more).unwrap();
    assert!(more == content[..200_000] && header.downloaded() == 256 << 10);
    let mut rest = Vec::new();
    header.read_to_end(&mut rest).unwrap();
    assert!(rest == content[200_000..]);
}

#[test]
fn an_unreachable_hub_is_one_sentence() {
    let (mut rig, _) = Rig::with_model(10);
    rig.settings.hub = unused_address();
    let error = rig.list().unwrap_err();
    assert!(matches!(error, Error::Network { .. }) && !error.to_string().contains('\n'), "{error}");
}

#[test]
fn local_files_are_imported_without_copying() {
    let (rig, _) = Rig::with_model(10);
    let cancel = AtomicBool::new(false);
    let import = |path: &Path, name: Option<&str>| rig.store().import(path, name, &cancel, &mut |_| {});
    let file = |name: &str, content: &[u8]| {
        let path = rig.folder.path().join("mine").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    };
    let path = file("My Model-Q8_0.gguf", b"content");
    let imported = import(&path, None).unwrap();
    assert_eq!((imported.name.as_str(), imported.bytes), ("my-model-q8_0", 7));
    assert_ne!(imported.placed, Placed::Copy);
    assert_eq!(fs::read(rig.store().resolve("my-model-q8_0").unwrap()).unwrap(), b"content");
    assert!(path.exists());
    let error = import(&path, None).unwrap_err().to_string();
    assert!(error.contains("already has another model named"), "{error}");
    let named = import(&path, Some("other:7b")).unwrap();
    assert_eq!(named.path, rig.file("other@7b.gguf"));

    let second = file("s-00002-of-00002.gguf", b"two");
    let error = import(&second, None).unwrap_err().to_string();
    assert!(error.contains("s-00001-of-00002.gguf is missing"), "{error}");
    file("s-00001-of-00002.gguf", b"one");
    let split = import(&second, None).unwrap();
    assert_eq!((split.path, split.bytes), (rig.file("s-00001-of-00002.gguf"), 6));

    file("hf/config.json", b"{}");
    file("hf/model.safetensors", b"weights");
    let folder = import(&rig.folder.path().join("mine/hf"), None).unwrap();
    assert_eq!(fs::read(folder.path.join("model.safetensors")).unwrap(), b"weights");
    for (path, part) in [
        (file("notes.txt", b"x"), "give a .gguf file"),
        (rig.folder.path().join("mine"), "without config.json"),
        (rig.folder.path().join("none.gguf"), "No such file"),
    ] {
        let error = import(&path, None).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    for name in ["../x", "A B", ""] {
        assert!(matches!(import(&path, Some(name)), Err(Error::InvalidRequest { .. })), "{name:?}");
    }
    assert!(rig.store().entries().unwrap().iter().all(|entry| entry.kind == EntryKind::Model));
}
