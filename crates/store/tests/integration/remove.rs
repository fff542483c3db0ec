//! `Store::remove` deletes all files of a model and nothing else.

use std::{fs, os::unix::fs::symlink, sync::mpsc};

use crate::common::{
    Fault,
    bench::{Bench, HUB, HUB_PATH, PACKAGES, file},
};
use store::{Error, PullEvent, PullOptions, Removal, Store};

fn names(store: &Store) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(store.folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_string())
        .collect();
    names.sort();
    names
}

fn remove(store: &Store, name: &str) -> store::Result<Removal> {
    store.remove(&store.plan_removal(name)?)
}

#[test]
fn a_pulled_model_is_removed_with_its_record_and_lock() {
    let bench = Bench::new(&[PACKAGES]);
    bench.assert_complete(bench.pull().0);
    let store = bench.store();
    fs::write(store.folder().join("other.gguf"), "x").unwrap();
    let planned = store.plan_removal("test:1b").unwrap();
    assert_eq!(
        names(&store),
        ["other.gguf", "test@1b.gguf", "test@1b.json", "test@1b.lock"],
        "planning removes nothing"
    );
    let removed = remove(&store, "test:1b").unwrap();
    assert_eq!(removed, planned);
    assert_eq!(removed.path, store.folder().join("test@1b.gguf"));
    assert_eq!(removed.paths.len(), 2);
    assert!(removed.bytes > 600_000, "the model and its record: {}", removed.bytes);
    assert_eq!(names(&store), ["other.gguf"]);
    assert!(matches!(remove(&store, "test:1b"), Err(Error::NotInStore { .. })));
    assert_eq!(names(&store), ["other.gguf"], "an unknown name leaves no lock behind");
    // It can be pulled again.
    bench.assert_complete(bench.pull().0);
}

#[test]
fn partial_downloads_are_removed() {
    let bench = Bench::new(&[PACKAGES]);
    bench.server.always(&file(2), Some(Fault::Status(404)));
    bench.pull().0.unwrap_err();
    assert!(bench.part().exists());
    let removed = remove(&bench.store(), "test:1b").unwrap();
    assert!(removed.bytes > 200_000, "the first part: {}", removed.bytes);
    assert_eq!(names(&bench.store()), <[String; 0]>::default());
}

#[test]
fn a_model_that_is_being_pulled_is_not_removed() {
    let bench = Bench::new(&[HUB]);
    bench.server.fault(HUB_PATH, Fault::Stall(100_000));
    let cancel = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (started, wait) = mpsc::channel();
        let (bench, cancel) = (&bench, &cancel);
        scope.spawn(move || {
            let options = PullOptions { settings: &bench.settings, verify: false, cancel };
            store::pull_pinned(&bench.store(), &bench.model, &bench.pinned, &options, &mut |event| {
                if matches!(event, PullEvent::Progress { .. }) {
                    let _ = started.send(());
                }
            })
        });
        wait.recv().unwrap();
        let error = remove(&bench.store(), "test:1b").unwrap_err();
        assert!(matches!(error, Error::PullInProgress { .. }), "{error}");
        assert!(bench.part().exists());
        cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    remove(&bench.store(), "test:1b").unwrap();
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
    fs::write(inside.join("hf.json"), "the user's own").unwrap();
    let store = Store::new(&inside);

    for hostile in ["../outside/a", "..", ".", "", "/", "outside", "hf/config", "a.gguf/../../outside"] {
        let error = remove(&store, hostile).unwrap_err();
        assert!(matches!(error, Error::NotInStore { .. }), "{hostile:?}: {error}");
    }
    symlink(&outside, inside.join("away")).unwrap();
    for unrecognized in ["hf.json", "away"] {
        let error = remove(&store, unrecognized).unwrap_err();
        assert!(matches!(error, Error::Unrecognized { .. }), "{unrecognized}: {error}");
        assert!(error.to_string().contains("remove it by hand"), "{error}");
    }
    assert_eq!(remove(&store, "a").unwrap().bytes, 0, "a symbolic link frees nothing");
    assert_eq!(remove(&store, "Linked").unwrap().bytes, 0);
    assert_eq!(remove(&store, "hf").unwrap().bytes, 7);
    assert_eq!(names(&store), ["away", "hf.json"]);
    assert_eq!(fs::read_to_string(outside.join("a.gguf")).unwrap(), "content");
    assert_eq!(fs::read_to_string(outside.join("linked/config.json")).unwrap(), "content");
}

#[test]
fn all_parts_of_a_split_model_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "s-00002-of-00003.gguf"] {
        fs::write(folder.path().join(name), "12345").unwrap();
    }
    let store = Store::new(folder.path());
    assert_eq!(remove(&store, "s").unwrap().bytes, 10);
    assert_eq!(names(&store), ["s-00002-of-00003.gguf"]);
}

#[test]
fn listed_names_take_precedence_over_aliases() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let write = |name: &str| fs::write(folder.path().join(name), name).unwrap();
    write("smollm2@135m.gguf");
    write("smollm2-135m.gguf");
    let removed = remove(&store, "smollm2-135m").unwrap();
    assert_eq!(removed.paths, [folder.path().join("smollm2-135m.gguf")]);
    assert_eq!(names(&store), ["smollm2@135m.gguf"]);

    // Also if the listed entry is not a model.
    fs::create_dir(folder.path().join("smollm2")).unwrap();
    assert!(matches!(remove(&store, "smollm2"), Err(Error::Unrecognized { .. })));
    assert_eq!(names(&store), ["smollm2", "smollm2@135m.gguf"]);

    // By the alias, which is no longer shadowed, and by the file name.
    assert_eq!(store.plan_removal("smollm2@135m").unwrap().name, "smollm2:135m");
    assert_eq!(remove(&store, "smollm2-135m").unwrap().name, "smollm2:135m");
    assert_eq!(names(&store), ["smollm2"]);
}

#[test]
fn only_the_planned_model_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let (pulled, own) = (folder.path().join("smollm2@135m.gguf"), folder.path().join("smollm2-135m.gguf"));
    fs::write(&pulled, "pulled").unwrap();
    let found = store.plan_removal("smollm2-135m").unwrap();
    // A model that took the name in the meantime is not removed.
    fs::write(&own, "by hand").unwrap();
    store.remove(&found).unwrap();
    assert_eq!(names(&store), ["smollm2-135m.gguf"]);
    assert!(matches!(store.remove(&found), Err(Error::Changed { .. })));
    assert_eq!(names(&store), ["smollm2-135m.gguf"], "no lock file is left");

    // Neither is a file that took the name of a folder.
    fs::create_dir(folder.path().join("hf")).unwrap();
    fs::write(folder.path().join("hf/config.json"), "{}").unwrap();
    let found = store.plan_removal("hf").unwrap();
    fs::write(folder.path().join("hf.gguf"), "newer").unwrap();
    assert!(matches!(store.remove(&found), Err(Error::Changed { .. })));
    assert_eq!(names(&store), ["hf", "hf.gguf", "smollm2-135m.gguf"]);
}
