//! What `Store::remove` deletes, and what it leaves.

mod common;

use std::{fs, os::unix::fs::symlink, sync::mpsc};

use common::{
    Fault,
    bench::{Bench, HUB, HUB_PATH, PACKAGES, file},
};
use store::{Error, Event, Job, Store};

fn names(store: &Store) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(store.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_string())
        .collect();
    names.sort();
    names
}

#[test]
fn a_pulled_model_goes_with_its_record_and_lock() {
    let bench = Bench::new(&[PACKAGES]);
    bench.assert_here(bench.pull().0);
    let store = bench.store();
    fs::write(store.folder().join("other.gguf"), "x").unwrap();
    let planned = store.removal("test:1b").unwrap();
    assert_eq!(names(&store), ["other.gguf", "test@1b.gguf", "test@1b.json", "test@1b.lock"], "nothing yet");
    let removed = store.remove("test:1b").unwrap();
    assert_eq!(removed, planned);
    assert_eq!(removed.path, store.folder().join("test@1b.gguf"));
    assert_eq!(removed.paths.len(), 2);
    assert!(removed.bytes > 600_000, "the model and its record: {}", removed.bytes);
    assert_eq!(names(&store), ["other.gguf"]);
    assert!(matches!(store.remove("test:1b"), Err(Error::NotHere { .. })));
    assert_eq!(names(&store), ["other.gguf"], "a name that nobody has leaves nothing");
    // And it can be had again.
    bench.assert_here(bench.pull().0);
}

#[test]
fn what_is_unfinished_goes_too() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.always(&file(2), Some(Fault::Status(404)));
    bench.pull().0.unwrap_err();
    assert!(bench.part().exists());
    let removed = bench.store().remove("test:1b").unwrap();
    assert!(removed.bytes > 200_000, "the first part: {}", removed.bytes);
    assert_eq!(names(&bench.store()), <[String; 0]>::default());
}

#[test]
fn a_model_that_is_being_pulled_stays() {
    let bench = Bench::new(&[HUB]);
    bench.server.fault(HUB_PATH, Fault::Stall(100_000));
    let cancel = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (begun, wait) = mpsc::channel();
        let (bench, cancel) = (&bench, &cancel);
        scope.spawn(move || {
            let job = Job { settings: &bench.settings, verify: false, cancel };
            store::pull(&bench.store(), &bench.model, &job, &mut |event| {
                if matches!(event, Event::Progress { .. }) {
                    let _ = begun.send(());
                }
            })
        });
        wait.recv().unwrap();
        let error = bench.store().remove("test:1b").unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        assert!(bench.part().exists());
        cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    bench.store().remove("test:1b").unwrap();
}

#[test]
fn nothing_outside_the_store_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("models"), folder.path().join("outside"));
    fs::create_dir_all(inside.join("hf")).unwrap();
    fs::create_dir_all(outside.join("linked")).unwrap();
    for path in [outside.join("a.gguf"), outside.join("linked/config.json"), inside.join("hf/config.json")] {
        fs::write(path, "content").unwrap();
    }
    symlink(outside.join("a.gguf"), inside.join("a.gguf")).unwrap();
    symlink(outside.join("linked"), inside.join("linked")).unwrap();
    symlink(outside.join("linked"), inside.join("hf/deep")).unwrap();
    fs::write(inside.join("hf.json"), "somebody's own").unwrap();
    let store = Store::at(&inside);

    for hostile in
        ["../outside/a", "..", ".", "", "/", "outside", "hf/config", "hf.json", "a.gguf/../../outside"]
    {
        let error = store.remove(hostile).unwrap_err();
        assert!(matches!(error, Error::NotHere { .. }), "{hostile:?}: {error}");
    }
    assert_eq!(store.remove("a").unwrap().bytes, 0, "a link frees nothing");
    assert_eq!(store.remove("Linked").unwrap().bytes, 0);
    assert_eq!(store.remove("hf").unwrap().bytes, 7);
    assert_eq!(names(&store), ["hf.json"]);
    assert_eq!(fs::read_to_string(outside.join("a.gguf")).unwrap(), "content");
    assert_eq!(fs::read_to_string(outside.join("linked/config.json")).unwrap(), "content");
}

#[test]
fn all_parts_of_a_split_model_go() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "s-00002-of-00003.gguf"] {
        fs::write(folder.path().join(name), "12345").unwrap();
    }
    let store = Store::at(folder.path());
    assert_eq!(store.remove("s").unwrap().bytes, 10);
    assert_eq!(names(&store), ["s-00002-of-00003.gguf"]);
}
