//! The prefix cache on disk: sequences that start with pages from disk have the same logits as without.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::common::{Fixture, limits, load_alone};
use model::{Fingerprint, KvScheme, Limits, Model, PrefixDisk, Runner, Sequence, WriteBehind};

const LIMIT: u64 = 1 << 30;

/// A runner as after a restart: with an empty KV cache, and a folder that was just opened.
fn restart(model: &Arc<Model>, limits: Limits, folder: &Path) -> (Runner, PrefixDisk) {
    let disk = PrefixDisk::open(folder, LIMIT).unwrap();
    let fingerprint = Fingerprint::new(b"weights", model, &limits);
    (Runner::new(model.clone(), limits).unwrap().with_prefix_disk(disk.clone(), fingerprint), disk)
}

fn prefill(runner: &mut Runner, sequence: &mut Sequence, text: &[u32]) -> Vec<f32> {
    let mut last = vec![];
    let keep = |row: &[f32]| {
        last = row.to_vec();
        Ok(())
    };
    let held = sequence.len() as usize;
    runner.logits(sequence, &text[held..], keep).unwrap();
    last
}

/// The logits after a text, and how many of its tokens came from the cache.
fn run(runner: &mut Runner, text: &[u32]) -> (Vec<f32>, u32) {
    // One page per call.
    while !runner.restore(text, Duration::ZERO, true).unwrap() {}
    let mut sequence = runner.start_with(text).unwrap();
    let cached = sequence.len();
    (prefill(runner, &mut sequence, text), cached)
}

fn run_cold(runner: &mut Runner, text: &[u32]) -> Vec<f32> {
    let mut sequence = runner.start().unwrap();
    prefill(runner, &mut sequence, text)
}

/// Stores all that has ended. Returns the number of pages.
fn write_all(runner: &mut Runner, disk: &PrefixDisk) -> usize {
    let mut pages = 0;
    loop {
        match runner.write_behind().unwrap() {
            WriteBehind::Done => break,
            WriteBehind::More => pages += 1,
            WriteBehind::Waiting => disk.flush(),
        }
    }
    disk.flush();
    pages
}

/// All files of pages, the shallowest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let folders =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    files
}

#[test]
fn after_a_restart_a_stored_prefix_has_the_bits_of_a_full_prefill() {
    let Some(device) = testkit::cpu_device() else { return };
    // With a window, without one, and with layers that share keys and values.
    for (name, kv, page_size) in [
        ("untied_long", KvScheme::F16, 4),
        ("untied_long", KvScheme::F32, 8),
        ("untied_long", KvScheme::Int8, 16),
        ("llama_gguf_q8_0", KvScheme::F16, 4),
        ("gemma4_ple_gguf_q8_0", KvScheme::F16, 4),
    ] {
        let fixture = Fixture::open(name);
        let model = Arc::new(load_alone(&device, &fixture.path).with_reproducible(true));
        let limits = Limits {
            kv_scheme: kv,
            page_size,
            ..limits(2, fixture.ids.len().next_multiple_of(32) as u32, 16)
        };
        let folder = tempfile::tempdir().unwrap();
        let (mut runner, disk) = restart(&model, limits, folder.path());
        let text = &fixture.ids;
        let first = &text[..text.len() * 2 / 3];
        let (_, cached) = run(&mut runner, first);
        assert_eq!(cached, 0);
        assert!(write_all(&mut runner, &disk) >= first.len() / page_size as usize);
        let written = disk.stats();
        run(&mut runner, first);
        assert_eq!(write_all(&mut runner, &disk), 0, "{name}: nothing is stored twice");
        drop((runner, disk));

        let (mut runner, disk) = restart(&model, limits, folder.path());
        let (logits, cached) = run(&mut runner, text);
        let stored = first.len() as u32 / page_size * page_size;
        assert_eq!(cached, stored, "{name} {kv:?}");
        assert_eq!(logits, run_cold(&mut runner, text), "{name} {kv:?}");
        let stats = disk.stats();
        assert_eq!((stats.restored_tokens, stats.errors), (u64::from(stored), 0));
        assert!(stats.read_bytes <= written.written_bytes && stats.read_bytes > 0, "{stats:?}");
        // What memory holds is not read again.
        let (_, cached) = run(&mut runner, text);
        assert_eq!(cached as usize, text.len() - 1);
        assert_eq!(disk.stats().read_bytes, stats.read_bytes);
    }
}

#[test]
fn a_prefix_that_leaves_memory_while_the_model_runs_comes_back() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("untied_long");
    let model = Arc::new(load_alone(&device, &fixture.path).with_reproducible(true));
    // Pages for one sequence.
    let limits = Limits { max_pages: Some(40), page_size: 4, ..limits(1, 160, 16) };
    let folder = tempfile::tempdir().unwrap();
    let (mut runner, disk) = restart(&model, limits, folder.path());
    let text = |own: usize| [&fixture.ids[..60], &fixture.ids[100 + own..180 + own]].concat();
    let expected = [0, 7, 13].map(|own| run_cold(&mut runner, &text(own)));
    for round in 0..3 {
        for (own, expected) in [0, 7, 13].into_iter().zip(&expected) {
            let (logits, cached) = run(&mut runner, &text(own));
            assert_eq!(&logits, expected, "text {own}, round {round}");
            if round > 0 {
                assert_eq!(cached, 136, "text {own}, round {round}");
            }
            write_all(&mut runner, &disk);
        }
    }
    assert!(disk.stats().restored_tokens > 5 * 70, "{:?}", disk.stats());
    assert_eq!(disk.stats().errors, 0);
    assert_eq!(runner.cache().free_pages().0, 40);
}

#[test]
fn damaged_and_missing_pages_are_prefilled() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("untied_long");
    let model = Arc::new(load_alone(&device, &fixture.path).with_reproducible(true));
    let limits = Limits { page_size: 8, ..limits(2, 320, 16) };
    let folder = tempfile::tempdir().unwrap();
    let (text, page) = (&fixture.ids[..200], 8);
    let (mut runner, disk) = restart(&model, limits, folder.path());
    let expected = run_cold(&mut runner, text);
    run(&mut runner, text);
    write_all(&mut runner, &disk);
    drop((runner, disk));
    let damaged = |depth: usize, kind: &str| {
        let start = format!("{depth:07}-");
        let is_page = |file: &&PathBuf| {
            let name = file.file_name().unwrap().to_str().unwrap();
            name.starts_with(&start) && name.ends_with(kind)
        };
        files(folder.path()).iter().find(is_page).unwrap().clone()
    };
    let flip = |file: PathBuf| {
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        fs::write(file, bytes).unwrap();
    };
    // A page of the window before the end: without it no prefix has its window. Then all is prefilled and stored.
    flip(damaged(22, "sliding"));
    let (mut runner, disk) = restart(&model, limits, folder.path());
    assert_eq!(run(&mut runner, text), (expected.clone(), 0));
    assert_eq!(disk.stats().errors, 1);
    assert!(write_all(&mut runner, &disk) > 0, "the page that was damaged");
    drop((runner, disk));
    let (mut runner, disk) = restart(&model, limits, folder.path());
    assert_eq!(run(&mut runner, text), (expected.clone(), 192));
    drop((runner, disk));
    // A missing page: the prefix ends before it, where it has no window either.
    fs::remove_file(damaged(10, "full")).unwrap();
    let (mut runner, disk) = restart(&model, limits, folder.path());
    assert_eq!(run(&mut runner, text), (expected.clone(), 0));
    write_all(&mut runner, &disk);
    drop((runner, disk));
    // A truncated page of a shorter text that ended there.
    let (mut runner, disk) = restart(&model, limits, folder.path());
    run(&mut runner, &text[..100]);
    write_all(&mut runner, &disk);
    drop((runner, disk));
    let file = damaged(20, "full");
    fs::write(&file, &fs::read(&file).unwrap()[..99]).unwrap();
    let (mut runner, disk) = restart(&model, limits, folder.path());
    assert_eq!(run(&mut runner, text), (expected, 100 / page * page));
    assert_eq!(disk.stats().errors, 1);
}

#[test]
fn pages_of_another_model_layout_or_bad_step_are_not_used() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("untied_long");
    let model = Arc::new(load_alone(&device, &fixture.path).with_reproducible(true));
    let other = Arc::new(load_alone(&device, &fixture.path));
    let layout = Limits { page_size: 8, ..limits(2, 320, 16) };
    let folder = tempfile::tempdir().unwrap();
    let text = &fixture.ids[..120];
    let (mut runner, disk) = restart(&model, layout, folder.path());
    run(&mut runner, text);
    write_all(&mut runner, &disk);
    let entries = disk.stats().pages;
    drop((runner, disk));
    let others = [
        (&model, Limits { kv_scheme: KvScheme::F32, ..layout }),
        (&model, Limits { page_size: 16, ..layout }),
        (&other, layout),
    ];
    for (model, limits) in others {
        let (mut runner, disk) = restart(model, limits, folder.path());
        assert_eq!(run(&mut runner, text).1, 0);
        assert_eq!((disk.stats().pages, disk.stats().errors), (entries, 0));
    }
    // After logits that are not finite, nothing that was computed before is trusted.
    let (mut runner, disk) = restart(&model, layout, folder.path());
    assert_eq!(run(&mut runner, text).1, 112);
    runner.cache().clear_prefix_cache();
    assert_eq!(disk.stats().pages, 0);
    assert_eq!((run(&mut runner, text).1, files(folder.path()).len()), (0, 0));
}
