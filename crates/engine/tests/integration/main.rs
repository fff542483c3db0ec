//! The tests of this crate's API in one binary, which is built faster than one for each file.

#[path = "../../../model/tests/common/mod.rs"]
mod common;
mod grammar;
mod prefix_disk;
mod runner;
