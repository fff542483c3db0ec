//! Pulls of overlays for the NPU from a server in this process.

use std::{
    fs,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use crate::common::{Fault, Page, Server, pseudo_random, sha256};
use store::{Error, Licence, OVERLAYS, OverlayFile, PullEvent, PullOptions, Settings};

const PATH: &str = "/someone/overlays/c0ffee/builds/test.xclbin";

struct Rig {
    server: Server,
    folder: tempfile::TempDir,
    overlay: OverlayFile,
    bytes: Vec<u8>,
}

impl Rig {
    fn new() -> Self {
        let (server, bytes) = (Server::start(), pseudo_random(50_000, 27));
        server.put(PATH, Page { body: Arc::new(bytes.clone()), tag: Some("\"t\""), ..Page::default() });
        let overlay = OverlayFile {
            name: "test",
            title: "a test",
            repository: "someone/overlays",
            commit: "c0ffee",
            path: "builds/test.xclbin",
            bytes: bytes.len() as u64,
            sha256: sha256(&bytes).leak(),
            licence: Licence { name: "MIT", url: "https://example.org/LICENSE" },
        };
        Self { server, folder: tempfile::tempdir().unwrap(), overlay, bytes }
    }

    fn pull(&self) -> (Result<bool, Error>, Vec<PullEvent>) {
        let (mut events, cancel) = (Vec::new(), AtomicBool::new(false));
        let settings = Settings { retry_delay: Duration::from_millis(1), ..Settings::new("", "") };
        let options = PullOptions { settings: &settings, verify: false, cancel: &cancel };
        let mut report = |event| events.push(event);
        let result = self.overlay.pull(self.folder.path(), &self.server.url, &options, &mut report);
        (result, events)
    }

    /// Names in the folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with(".lock"));
        names.sort();
        names
    }

    fn assert_complete(&self) {
        assert_eq!(self.names(), ["test.xclbin"]);
        assert_eq!(fs::read(self.overlay.file(self.folder.path())).unwrap(), self.bytes);
        assert!(self.overlay.is_present(self.folder.path()));
    }
}

#[test]
fn an_overlay_is_pulled_once_with_its_licence() {
    let rig = Rig::new();
    assert!(!rig.overlay.is_present(rig.folder.path()));
    let (result, events) = rig.pull();
    assert!(result.unwrap());
    let licence = PullEvent::Licence { name: "MIT".into(), url: Some("https://example.org/LICENSE".into()) };
    assert_eq!(events[0], licence, "before the first byte");
    rig.assert_complete();
    assert!(!rig.pull().0.unwrap(), "it is there");
    assert_eq!(rig.server.requests(PATH).len(), 1);
    fs::write(rig.overlay.file(rig.folder.path()), "damaged").unwrap();
    let (result, events) = rig.pull();
    assert!(result.unwrap() && matches!(events[0], PullEvent::Damaged { .. }), "{events:?}");
    rig.assert_complete();
}

#[test]
fn faults_of_the_network_are_survived_or_named() {
    for fault in [Fault::Cut(1000), Fault::Corrupt, Fault::Status(503)] {
        let rig = Rig::new();
        rig.server.fault(PATH, fault);
        let (result, _) = rig.pull();
        assert!(result.unwrap_or_else(|error| panic!("{fault:?}: {error}")), "{fault:?}");
        rig.assert_complete();
    }
    for (fault, message) in [
        (Fault::Corrupt, "its SHA-256 is"),
        (Fault::Status(404), "404 (not found)"),
        (Fault::WebPage, "a web page instead of the file"),
    ] {
        let rig = Rig::new();
        rig.server.always(PATH, Some(fault));
        let error = rig.pull().0.unwrap_err().to_string();
        assert!(error.contains(message) && error.contains("/someone/overlays/c0ffee"), "{fault:?}: {error}");
        assert_eq!(rig.names(), [""; 0], "nothing with the wrong content is kept: {fault:?}");
    }
}

#[test]
fn a_file_of_another_size_is_refused() {
    let mut rig = Rig::new();
    rig.overlay.bytes += 1;
    let error = rig.pull().0.unwrap_err();
    assert!(matches!(error, Error::Size { expected: 50_001, found: 50_000, .. }), "{error}");
}

#[test]
fn the_overlays_have_complete_commits_and_checksums() {
    for overlay in &OVERLAYS {
        let is_hex =
            |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(is_hex(overlay.commit, 40) && is_hex(overlay.sha256, 64), "{}", overlay.name);
        assert_eq!(
            overlay.url("https://host"),
            format!("https://host/{}/{}/{}", overlay.repository, overlay.commit, overlay.path)
        );
        assert!(overlay.licence.url.contains(overlay.commit), "{}", overlay.name);
    }
}
