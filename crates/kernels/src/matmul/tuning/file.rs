//! What was found, on disk: one file per device and driver, beside the compiled pipelines.
//!
//! What is in it is believed only if all of it fits: the format, the device whose file it is (a file that was copied from another
//! machine tells of another GPU), and the shaders. It can be made again at any time, so that a file which does not fit is
//! replaced. A folder that cannot be written costs a tuning at each start, which may choose another plan each time and so sum in
//! another order.

use std::path::Path;

use gpu::AdapterInfo;
use serde::{Deserialize, Serialize};

use super::Entry;
use crate::shaders;

/// Changes with the meaning of the fields.
const FORMAT: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Content {
    format: u32,
    /// Device and driver as pipelines have them: the name of the file.
    key: String,
    /// Of the code that was timed: other shaders are timed anew.
    shaders: String,
    /// For people.
    device: String,
    driver: String,
    products: Vec<Entry>,
}

/// Why a file is not used.
enum Misfit {
    /// It was made by another version, as happens.
    Old,
    /// It is not what it should be.
    Wrong(String),
}

/// The entries of a file; none where it is missing or does not fit.
pub(super) fn read(file: &Path) -> Vec<Entry> {
    let Ok(text) = std::fs::read(file) else { return vec![] };
    match parse(&text, &key(file)) {
        Ok(entries) => entries,
        Err(Misfit::Old) => {
            tracing::info!("{}: of another version; products are timed anew", file.display());
            vec![]
        }
        Err(Misfit::Wrong(reason)) => {
            let reason = format!("{reason}; products are timed anew and the file is replaced");
            tracing::warn!("{}", gpu::Error::InvalidFile { path: file.to_path_buf(), reason });
            vec![]
        }
    }
}

/// Adds entries to a file, in place of those that it has for the same shapes.
pub(super) fn add(file: &Path, info: &AdapterInfo, entries: &[Entry]) {
    // Read again: another process may have added its own meanwhile.
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
        tracing::warn!("the tuning is not kept: {}: {error}", file.display());
    }
}

fn parse(text: &[u8], key: &str) -> Result<Vec<Entry>, Misfit> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
        shaders: String,
    }
    let damaged = |error: serde_json::Error| Misfit::Wrong(format!("damaged ({error})"));
    // Entries of another version need not be readable.
    let version: Version = serde_json::from_slice(text).map_err(damaged)?;
    if (version.format, version.shaders) != (FORMAT, shaders()) {
        return Err(Misfit::Old);
    }
    let content: Content = serde_json::from_slice(text).map_err(damaged)?;
    if content.key != key {
        return Err(Misfit::Wrong("made for another device or driver".into()));
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
