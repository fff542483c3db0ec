//! The tuning file: one per device and driver, next to the cached pipelines.
//!
//! It is used only if everything matches: the format, the device (a file copied from another machine
//! describes another GPU), and the shaders. It can be regenerated at any time, so a file that does not
//! match is replaced. If the folder is not writable, every start tunes again and may choose another plan,
//! and with it another order of summation.

use std::path::Path;

use gpu::AdapterInfo;
use serde::{Deserialize, Serialize};

use super::product::Entry;
use crate::shaders;

/// Incremented when fields change.
const FORMAT: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Content {
    format: u32,
    /// Device and driver, as in the pipeline cache: the stem of the file name.
    key: String,
    /// Checksum of the timed code: other shaders are timed again.
    shaders: String,
    /// The device's name, for readers.
    device: String,
    driver: String,
    products: Vec<Entry>,
}

/// Why a file is not used.
enum Rejection {
    /// Written by another version, which is normal.
    OtherVersion,
    /// Malformed, or for another device.
    Invalid(String),
}

/// The entries of a file; none where it is missing or does not match.
pub(super) fn read(file: &Path) -> Vec<Entry> {
    let Ok(text) = std::fs::read(file) else { return vec![] };
    match parse(&text, &key(file)) {
        Ok(entries) => entries,
        Err(Rejection::OtherVersion) => {
            tracing::info!("{}: written by another version; products are timed again", file.display());
            vec![]
        }
        Err(Rejection::Invalid(reason)) => {
            let reason = format!("{reason}; products are timed again and the file is replaced");
            tracing::warn!("{}", gpu::Error::InvalidFile { path: file.to_path_buf(), reason });
            vec![]
        }
    }
}

/// Adds entries to a file, replacing those for the same shapes.
pub(super) fn add(file: &Path, info: &AdapterInfo, entries: &[Entry]) {
    // Read again: another process may have added entries meanwhile.
    let mut products = read(file);
    products.retain(|old| !entries.iter().any(|new| new.shape == old.shape));
    products.extend(entries);
    let content = Content {
        format: FORMAT,
        key: key(file),
        shaders: shaders(),
        device: info.name.clone(),
        driver: info.driver.clone(),
        products,
    };
    let written = serde_json::to_string_pretty(&content)
        .map_err(std::io::Error::from)
        .and_then(|text| gpu::write_atomically(file, (text + "\n").as_bytes()));
    if let Err(error) = written {
        tracing::warn!("cannot save the tuning: {}: {error}", file.display());
    }
}

fn parse(text: &[u8], key: &str) -> Result<Vec<Entry>, Rejection> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
        shaders: String,
    }
    let damaged = |error: serde_json::Error| Rejection::Invalid(format!("damaged ({error})"));
    // Entries of another version need not parse.
    let version: Version = serde_json::from_slice(text).map_err(damaged)?;
    if (version.format, version.shaders) != (FORMAT, shaders()) {
        return Err(Rejection::OtherVersion);
    }
    let content: Content = serde_json::from_slice(text).map_err(damaged)?;
    if content.key != key {
        return Err(Rejection::Invalid("for another device or driver".into()));
    }
    Ok(content.products)
}

fn key(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// A checksum of the shader at all tiers.
fn shaders() -> String {
    let code = shaders::gemv::TIERS.iter().flat_map(|(_, shader)| shader.spirv).copied();
    format!("{:016x}", gpu::checksum(&code.collect::<Vec<u8>>()))
}
