//! The tests of this crate's API in one binary, which is built faster than one for each file.

#[path = "../common/mod.rs"]
mod common;
mod folder;
mod hub;
mod overlays;
mod pull;
mod remove;
