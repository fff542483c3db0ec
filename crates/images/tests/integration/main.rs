//! The tests of this crate's API in one binary, which is built faster than one for each file.

mod hostile;
mod reference;

use std::path::{Path, PathBuf};

/// A file that `scripts/image_fixtures.py` wrote.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn read_fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
