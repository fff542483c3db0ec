//! The folder without a GPU: pages that are read are those that were written, whatever happened to the files.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::pages::PageKind;

const PAGE: usize = 4;
const BYTES: u64 = 300;

const MODEL: Fingerprint = Fingerprint([1; 32]);
const OTHER_MODEL: Fingerprint = Fingerprint([2; 32]);

struct Content(Vec<u8>);

impl PageContent for Content {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
        Ok(())
    }
}

/// Fails in the middle, as a lost device does.
struct Broken;

impl PageContent for Broken {
    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), String> {
        Err("the device is lost".into())
    }
}

/// What a page of these tokens holds.
fn content(model: Fingerprint, tokens: &[u32], kind: PageKind) -> Vec<u8> {
    let seed = [tokens, &[kind as u32, u32::from(model.0[0])]].concat();
    let seed = gpu::checksum(bytemuck::cast_slice(&seed));
    (0..BYTES).map(|index| (seed.rotate_left(index as u32 % 64) ^ index) as u8).collect()
}

/// The last page of these tokens.
fn page(model: Fingerprint, tokens: &[u32], kind: PageKind) -> (PageId, PageLabel) {
    let digests: Vec<Digest> = prefix_digests(model, tokens, PAGE).collect();
    let index = tokens.len() / PAGE - 1;
    let label = PageLabel {
        fingerprint: model,
        parent: digests[index],
        depth: index as u32,
        kind,
        tokens: tokens[index * PAGE..].to_vec(),
        bytes: BYTES,
    };
    (PageId::new(model, digests[index + 1], index as u32, kind), label)
}

fn write(disk: &PrefixDisk, model: Fingerprint, tokens: &[u32], kind: PageKind, used: u64) {
    let (id, label) = page(model, tokens, kind);
    let content = Box::new(Content(content(model, tokens, kind)));
    disk.write(PageWrite { id, label, content, used });
    disk.flush();
}

fn read(disk: &PrefixDisk, model: Fingerprint, tokens: &[u32], kind: PageKind) -> Result<Vec<u8>, ReadError> {
    let (id, label) = page(model, tokens, kind);
    let mut content = vec![];
    disk.read(&id, &label, disk.now(), &mut content).map(|()| content)
}

/// Bytes of a file.
fn file_bytes() -> u64 {
    page(MODEL, &[0; PAGE], PageKind::Full).1.file_bytes()
}

/// All files of the folder but the lock.
fn files(folder: &Path) -> Vec<PathBuf> {
    let folders =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

#[test]
fn pages_are_those_of_their_tokens_model_and_kind_after_a_restart_too() {
    let folder = tempfile::tempdir().unwrap();
    let texts = [&[1, 2, 3, 4][..], &[1, 2, 3, 4, 5, 6, 7, 8], &[9, 9, 9, 9, 5, 6, 7, 8]];
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    for text in texts {
        write(&disk, MODEL, text, PageKind::Full, disk.now());
    }
    write(&disk, MODEL, texts[1], PageKind::Sliding, disk.now());
    drop(disk);
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    assert_eq!((disk.stats().pages, disk.stats().bytes), (4, 4 * file_bytes()));
    for text in texts {
        assert_eq!(read(&disk, MODEL, text, PageKind::Full), Ok(content(MODEL, text, PageKind::Full)));
        assert!(!disk.contains(&page(OTHER_MODEL, text, PageKind::Full).0));
    }
    assert_eq!(
        read(&disk, MODEL, texts[1], PageKind::Sliding),
        Ok(content(MODEL, texts[1], PageKind::Sliding))
    );
    assert!(!disk.contains(&page(MODEL, texts[0], PageKind::Sliding).0));
    // The same page of tokens after others is another page.
    assert_ne!(page(MODEL, texts[1], PageKind::Full).0, page(MODEL, texts[2], PageKind::Full).0);
    assert_eq!(disk.stats().read_bytes, 4 * file_bytes());
}

#[test]
fn a_file_under_the_name_of_another_page_is_not_taken_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    // As if the two had the same digest.
    let (text, other) = ([1, 2, 3, 4], [4, 3, 2, 1]);
    for written in [text, other] {
        write(&disk, MODEL, &written, PageKind::Full, disk.now());
    }
    write(&disk, OTHER_MODEL, &text, PageKind::Full, disk.now());
    let path = |model, tokens| folder.path().join(page(model, tokens, PageKind::Full).0.path());
    fs::copy(path(MODEL, &other), path(MODEL, &text)).unwrap();
    assert_eq!(read(&disk, MODEL, &text, PageKind::Full), Err(ReadError::Failed));
    fs::copy(path(MODEL, &other), path(OTHER_MODEL, &text)).unwrap();
    assert_eq!(read(&disk, OTHER_MODEL, &text, PageKind::Full), Err(ReadError::Failed));
    assert_eq!((disk.stats().pages, disk.stats().errors), (1, 2));
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    let text = [1, 2, 3, 4];
    write(&disk, MODEL, &text, PageKind::Full, disk.now());
    let intact = fs::read(&files(folder.path())[0]).unwrap();
    let (_, label) = page(MODEL, &text, PageKind::Full);
    let mut content = vec![];
    label.read(&intact[..], &mut content).unwrap();
    for bit in 0..intact.len() * 8 {
        let mut damaged = intact.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(label.read(&damaged[..], &mut content).is_err(), "bit {bit}");
    }
    for length in 0..intact.len() {
        assert!(label.read(&intact[..length], &mut content).is_err(), "cut to {length}");
    }
    assert!(label.read(&[&intact[..], &[0]].concat()[..], &mut content).is_err(), "longer");
}

#[test]
fn a_damaged_page_is_deleted_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    let text = [1, 2, 3, 4];
    write(&disk, MODEL, &text, PageKind::Full, disk.now());
    let file = &files(folder.path())[0];
    let mut bytes = fs::read(file).unwrap();
    bytes[200] ^= 1;
    fs::write(file, bytes).unwrap();
    assert_eq!(read(&disk, MODEL, &text, PageKind::Full), Err(ReadError::Failed));
    assert!(files(folder.path()).is_empty());
    assert_eq!((disk.stats().pages, disk.stats().bytes, disk.stats().errors), (0, 0, 1));
    // It can be stored again.
    write(&disk, MODEL, &text, PageKind::Full, disk.now());
    assert_eq!(read(&disk, MODEL, &text, PageKind::Full), Ok(content(MODEL, &text, PageKind::Full)));
}

#[test]
fn the_least_recently_used_text_is_evicted_from_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 5 * file_bytes()).unwrap();
    let text = |first: u32| -> Vec<u32> { (first..first + 3 * PAGE as u32).collect() };
    let write_pages = |first: u32, pages: usize, used| {
        let text = text(first);
        (1..=pages).for_each(|page| write(&disk, MODEL, &text[..page * PAGE], PageKind::Full, used));
    };
    let stored = |disk: &PrefixDisk, first: u32| -> Vec<bool> {
        let text = text(first);
        let is_stored = |page| disk.contains(&page_id(&text[..page * PAGE]));
        (1..=3).map(is_stored).collect()
    };
    fn page_id(tokens: &[u32]) -> PageId {
        page(MODEL, tokens, PageKind::Full).0
    }
    write_pages(100, 3, disk.now());
    write_pages(200, 2, disk.now());
    // The first text is used again.
    let now = disk.now();
    (1..=3).for_each(|pages| assert!(disk.touch(&page_id(&text(100)[..pages * PAGE]), now)));
    write_pages(300, 1, disk.now());
    assert_eq!(stored(&disk, 100), [true; 3]);
    assert_eq!(stored(&disk, 200), [true, false, false]);
    write_pages(400, 3, disk.now());
    assert_eq!(stored(&disk, 100), [true, false, false]);
    assert_eq!(stored(&disk, 400), [true; 3]);
    // A text that does not fit is stored from its beginning, in place of all older ones.
    let now = disk.now();
    write_pages(500, 3, now);
    write_pages(600, 3, now);
    assert_eq!((stored(&disk, 500), stored(&disk, 600)), (vec![true; 3], vec![true, true, false]));
    assert_eq!(disk.stats().bytes, 5 * file_bytes());
    assert_eq!(files(folder.path()).len(), 5);
    // The order survives a restart, with a lower limit too.
    disk.now();
    write_pages(600, 1, disk.now());
    drop(disk);
    let disk = PrefixDisk::open(folder.path(), 2 * file_bytes()).unwrap();
    assert_eq!(
        (stored(&disk, 500), stored(&disk, 600)),
        (vec![true, false, false], vec![true, false, false])
    );
    assert_eq!(files(folder.path()).len(), 2);
}

#[test]
fn clearing_a_model_leaves_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    for model in [MODEL, OTHER_MODEL] {
        write(&disk, model, &[1, 2, 3, 4], PageKind::Full, disk.now());
    }
    disk.clear(MODEL);
    assert_eq!(read(&disk, MODEL, &[1, 2, 3, 4], PageKind::Full), Err(ReadError::Gone));
    assert!(read(&disk, OTHER_MODEL, &[1, 2, 3, 4], PageKind::Full).is_ok());
    assert_eq!(disk.stats().errors, 0);
}

#[test]
fn a_folder_belongs_to_one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    let error = PrefixDisk::open(folder.path(), 1 << 20).unwrap_err();
    assert!(matches!(error, PrefixDiskError::Locked { .. }), "{error}");
    drop(disk);
    PrefixDisk::open(folder.path(), 1 << 20).unwrap();
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = PrefixDisk::open(&file.join("cache"), 1 << 20).unwrap_err().to_string();
    assert!(error.contains(file.to_str().unwrap()), "{error}");
}

#[test]
fn a_failed_write_leaves_nothing_and_the_next_may_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    let (id, label) = page(MODEL, &[1, 2, 3, 4], PageKind::Full);
    disk.write(PageWrite { id, label, content: Box::new(Broken), used: disk.now() });
    disk.flush();
    // The folder of the model is in the way.
    let of_model = folder.path().join(page(OTHER_MODEL, &[1, 2, 3, 4], PageKind::Full).0.path());
    fs::write(of_model.parent().unwrap(), "").unwrap();
    write(&disk, OTHER_MODEL, &[1, 2, 3, 4], PageKind::Full, disk.now());
    assert_eq!((disk.stats().errors, disk.stats().pages), (2, 0));
    assert!(files(folder.path()).is_empty());
    write(&disk, MODEL, &[1, 2, 3, 4], PageKind::Full, disk.now());
    assert!(read(&disk, MODEL, &[1, 2, 3, 4], PageKind::Full).is_ok());
}

#[test]
fn leftovers_of_a_killed_process_are_deleted_and_foreign_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    write(&disk, MODEL, &[1, 2, 3, 4], PageKind::Full, disk.now());
    drop(disk);
    let stored = files(folder.path()).remove(0);
    let leftover = stored.with_extension("full.tmp");
    let foreign = stored.with_file_name("notes.txt");
    [&leftover, &foreign].into_iter().for_each(|path| fs::write(path, "x").unwrap());
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    assert_eq!((leftover.exists(), foreign.exists(), stored.exists()), (false, true, true));
    assert_eq!(disk.stats().pages, 1);
}

#[test]
fn a_reader_returns_pages_in_order_and_says_which_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 1 << 20).unwrap();
    let text: Vec<u32> = (0..40 * PAGE as u32).collect();
    let prefixes = || (1..=40).map(|pages| &text[..pages * PAGE]);
    prefixes().for_each(|prefix| write(&disk, MODEL, prefix, PageKind::Full, disk.now()));
    fs::remove_file(folder.path().join(page(MODEL, &text[..30 * PAGE], PageKind::Full).0.path())).unwrap();
    let pages = prefixes().map(|prefix| page(MODEL, prefix, PageKind::Full)).collect();
    let reader = PageReader::start(&disk, pages).unwrap();
    for (index, prefix) in prefixes().enumerate() {
        let read = reader.take(Some(Instant::now() + Duration::from_secs(3600))).unwrap();
        match index {
            29 => assert_eq!(read, Err(ReadError::Failed)),
            _ => {
                let read = read.unwrap();
                assert_eq!(read, content(MODEL, prefix, PageKind::Full));
                reader.recycle(read);
            }
        }
    }
}

/// The folder that the process which is to be killed writes to, and the piece of a page at which it stops and waits for
/// that; it goes on for ever without one.
const KILLED_FOLDER: &str = "INDRIK_TEST_KILLED_FOLDER";
const KILLED_AT: &str = "INDRIK_TEST_KILLED_AT";

/// Files of its pages that have room.
const KILLED_FILES: u64 = 12;

/// The pages that it writes: each in three pieces, twice as many as have room.
fn killed_pages() -> impl Iterator<Item = (PageId, PageLabel, Vec<u8>)> {
    let texts = (1..=KILLED_FILES as u32).map(|pages| (0..pages * PAGE as u32).collect());
    texts.flat_map(|text: Vec<u32>| {
        [PageKind::Full, PageKind::Sliding].map(|kind| {
            let (id, label) = page(MODEL, &text, kind);
            let content = content(MODEL, &text, kind).repeat(8000);
            (id, PageLabel { bytes: content.len() as u64, ..label }, content)
        })
    })
}

fn open_killed(folder: &Path) -> PrefixDisk {
    let file = killed_pages().map(|(_, label, _)| label.file_bytes()).max().unwrap();
    PrefixDisk::open(folder, KILLED_FILES * file).unwrap()
}

/// A page that is killed while it is being written.
struct Killed {
    content: Vec<u8>,
    pieces: Arc<AtomicU64>,
    killed_at: Option<u64>,
}

impl PageContent for Killed {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        // Not captured by the test harness.
        io::stdout().write_all(b"piece\n").map_err(|error| error.to_string())?;
        while self.killed_at == Some(self.pieces.load(Ordering::Relaxed)) {
            std::thread::park();
        }
        self.pieces.fetch_add(1, Ordering::Relaxed);
        into.copy_from_slice(&self.content[offset as usize..][..into.len()]);
        Ok(())
    }
}

#[test]
#[ignore = "writes until `a_killed_process_leaves_only_pages_that_are_right`, which runs it, kills it"]
fn writes_until_it_is_killed() {
    let Some(folder) = env::var_os(KILLED_FOLDER) else { return };
    let killed_at = env::var(KILLED_AT).ok().map(|piece| piece.parse().unwrap());
    let (disk, pieces) = (open_killed(Path::new(&folder)), Arc::new(AtomicU64::new(0)));
    loop {
        for (id, label, content) in killed_pages() {
            let content = Box::new(Killed { content, pieces: pieces.clone(), killed_at });
            disk.write(PageWrite { id, label, content, used: disk.now() });
            disk.flush();
        }
    }
}

#[test]
fn a_killed_process_leaves_only_pages_that_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let kills = if testkit::exhaustive() { 200 } else { 10 };
    let (mut interrupted, mut right) = (0, 0);
    for kill in 0..kills {
        // Every other time within a file, otherwise wherever it is by then.
        let piece = kill * 7 % 50;
        let mut writer = Command::new(env::current_exe().unwrap());
        writer
            .args(["--exact", "prefix_disk::tests::writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(KILLED_FOLDER, folder.path())
            .stdout(Stdio::piped());
        if kill % 2 == 0 {
            writer.env(KILLED_AT, piece.to_string());
        }
        let mut writer = writer.spawn().unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut pieces = lines.filter(|line| line.as_ref().is_ok_and(|line| line.ends_with("piece")));
        pieces.nth(piece).unwrap().unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        let is_temporary = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "tmp");
        interrupted += files(folder.path()).iter().filter(|path| is_temporary(path)).count();
        let disk = open_killed(folder.path());
        let stored = files(folder.path());
        assert!(!stored.iter().any(is_temporary), "kill {kill}: {stored:?}");
        let bytes: u64 = stored.iter().map(|file| file.metadata().unwrap().len()).sum();
        assert_eq!((disk.stats().pages, disk.stats().bytes), (stored.len() as u64, bytes), "kill {kill}");
        for (id, label, expected) in killed_pages() {
            if disk.contains(&id) {
                let mut content = vec![];
                disk.read(&id, &label, disk.now(), &mut content).unwrap();
                assert!(content == expected, "kill {kill}: {id:?}");
                right += 1;
            }
        }
        assert_eq!(disk.stats().errors, 0, "kill {kill}: a renamed file is complete");
    }
    println!("{kills} kills, {interrupted} of them within a file; {right} pages were right");
    assert!(interrupted >= kills / 2 && right > 0);
}

/// Content on a device that is lost.
struct Lost;

impl PageContent for Lost {
    fn is_lost(&self) -> bool {
        true
    }

    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), String> {
        Err("the device is lost".into())
    }
}

#[test]
fn a_lost_device_is_no_error_of_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PrefixDisk::open(folder.path(), 10 * file_bytes()).unwrap();
    let (id, label) = page(MODEL, &[7; PAGE], PageKind::Full);
    disk.write(PageWrite { id, label, content: Box::new(Lost), used: disk.now() });
    assert!(disk.flush_within(Duration::from_secs(3600)));
    assert_eq!((disk.stats().pages, disk.stats().errors), (0, 0));
    assert!(files(folder.path()).is_empty());
}

#[test]
fn folders_of_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("lost+found");
    fs::create_dir(&other).unwrap();
    let (id, _) = page(MODEL, &[7; PAGE], PageKind::Full);
    let file = other.join(id.path().file_name().unwrap());
    fs::write(&file, "not ours").unwrap();
    let disk = PrefixDisk::open(folder.path(), 10 * file_bytes()).unwrap();
    assert_eq!(disk.stats().pages, 0);
    assert!(file.exists());
}

#[test]
fn pages_from_a_clock_that_was_ahead_are_evicted() {
    let folder = tempfile::tempdir().unwrap();
    let open = || PrefixDisk::open(folder.path(), 2 * file_bytes()).unwrap();
    let texts = [[1; PAGE], [2; PAGE], [3; PAGE]];
    let disk = open();
    texts[..2].iter().for_each(|text| write(&disk, MODEL, text, PageKind::Full, disk.now()));
    drop(disk);
    let later = SystemTime::now() + Duration::from_secs(1 << 20);
    for file in files(folder.path()) {
        fs::File::options().write(true).open(file).unwrap().set_modified(later).unwrap();
    }
    let disk = open();
    write(&disk, MODEL, &texts[2], PageKind::Full, disk.now());
    assert!(read(&disk, MODEL, &texts[2], PageKind::Full).is_ok());
    assert_eq!((disk.stats().pages, disk.stats().evictions), (2, 1));
}

#[test]
fn only_the_owner_can_read_what_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prefixes");
    let disk = PrefixDisk::open(&path, 10 * file_bytes()).unwrap();
    write(&disk, MODEL, &[7; PAGE], PageKind::Full, disk.now());
    let files = files(&path);
    let [file] = &files[..] else { panic!("{files:?}") };
    for path in [&path, file.parent().unwrap(), file] {
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
    }
}

#[derive(Clone, Debug)]
enum Action {
    Write(Vec<u32>, bool),
    Read(Vec<u32>, bool),
    Damage(usize, usize),
    Delete(usize),
    Clear,
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    // Pages of few texts, which share prefixes.
    let text =
        || vec(0..2_u32, 1..4).prop_map(|pages| pages.into_iter().flat_map(|page| [page; PAGE]).collect());
    prop_oneof![
        8 => (text(), any::<bool>()).prop_map(|(text, sliding)| Action::Write(text, sliding)),
        8 => (text(), any::<bool>()).prop_map(|(text, sliding)| Action::Read(text, sliding)),
        2 => (0..20_usize, 0..4000_usize).prop_map(|(file, bit)| Action::Damage(file, bit)),
        1 => (0..20_usize).prop_map(Action::Delete),
        1 => Just(Action::Clear),
        2 => Just(Action::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_read_is_what_was_written(max_files in 1..12_u64, actions in vec(action(), 1..60)) {
        let folder = tempfile::tempdir().unwrap();
        let max_bytes = max_files * (file_bytes() + 20);
        let open = || PrefixDisk::open(folder.path(), max_bytes).unwrap();
        let mut disk = open();
        let kind = |sliding| if sliding { PageKind::Sliding } else { PageKind::Full };
        let mut written = BTreeSet::new();
        for action in actions {
            match action {
                Action::Write(text, sliding) => {
                    write(&disk, MODEL, &text, kind(sliding), disk.now());
                    written.insert((text, sliding));
                }
                Action::Read(text, sliding) => {
                    let expected = content(MODEL, &text, kind(sliding));
                    if let Ok(read) = read(&disk, MODEL, &text, kind(sliding)) {
                        assert_eq!(read, expected);
                        assert!(written.contains(&(text, sliding)));
                    }
                }
                Action::Damage(file, bit) => {
                    let files = files(folder.path());
                    if let Some(file) = files.get(file) {
                        let mut bytes = fs::read(file).unwrap();
                        let bit = bit % (bytes.len() * 8);
                        bytes[bit / 8] ^= 1 << (bit % 8);
                        fs::write(file, bytes).unwrap();
                    }
                }
                Action::Delete(file) => {
                    files(folder.path()).get(file).into_iter().for_each(|file| fs::remove_file(file).unwrap());
                }
                Action::Clear => disk.clear(MODEL),
                Action::Restart => {
                    drop(disk);
                    disk = open();
                }
            }
            let (stats, files) = (disk.stats(), files(folder.path()));
            assert!(stats.bytes <= max_bytes);
            assert!(files.len() as u64 <= stats.pages, "no file is forgotten: {files:?}");
        }
    }
}
