//! What the tests of pulls share.

#![allow(dead_code, unused_imports, reason = "each test file uses only some of these")]

pub mod bench;

use std::io::Write;

pub use store::testing::{Fault, Page, Server, pseudo_random, sha256, unused_address};

/// A zip archive; every second member is compressed.
pub fn wheel(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (number, (name, bytes)) in members.iter().enumerate() {
        let method = [zip::CompressionMethod::Deflated, zip::CompressionMethod::Stored][number % 2];
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}
