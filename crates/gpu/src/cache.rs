//! The pipeline cache on disk, which spares later starts the compilation, and paths for other files that are
//! valid for one device and driver only.
//!
//! There is one file per device and driver. Drivers have crashed on damaged cache data, so the file has a
//! header of our own (magic, key, length, checksum). If any of it does not match, the file is ignored with a
//! warning.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use ash::vk;

use crate::{
    adapter::{AdapterInfo, hex_text},
    error::{Error, Result},
};

const MAGIC: &[u8; 8] = b"INDRIKP1";
/// Header size in bytes: magic, key, length, checksum.
const HEADER: usize = 8 + KEY + 8 + 8;
/// Key size in bytes: pipeline cache UUID, vendor, device, driver version.
const KEY: usize = 28;

/// Indrik's cache folder: `INDRIK_CACHE_DIR`, or `indrik` in the user's cache folder.
pub fn cache_dir() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("INDRIK_CACHE_DIR")
        .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("indrik")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache").join("indrik")))
}

/// Writes a file atomically: to a temporary file that is then renamed, so that no process reads a partial
/// file.
pub fn write_atomically(file: &Path, content: &[u8]) -> std::io::Result<()> {
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&temporary, content)?;
    std::fs::rename(&temporary, file).inspect_err(|_| {
        let _ = std::fs::remove_file(&temporary);
    })
}

pub(crate) struct PipelineCache {
    pub raw: vk::PipelineCache,
    key: [u8; KEY],
    dir: Option<PathBuf>,
    file: Option<PathBuf>,
    dirty: AtomicBool,
    /// Checksum of the data on disk. `dirty` alone is not enough: some drivers never report cache hits.
    on_disk: AtomicU64,
}

impl PipelineCache {
    pub fn open(device: &ash::Device, info: &AdapterInfo, dir: Option<&Path>) -> Result<Self> {
        let key = key(info);
        let file = dir.map(|dir| path(dir, "pipelines", &key, "bin"));
        let data = file.as_deref().map(|file| read(file, &key)).unwrap_or_default();
        let create = vk::PipelineCacheCreateInfo::default().initial_data(&data);
        // SAFETY: the data was written by this driver for this device, as its key and checksum show; the
        // create info outlives the call.
        let raw = unsafe { device.create_pipeline_cache(&create, None) }
            .map_err(|result| Error::from_vk("vkCreatePipelineCache", result))?;
        let on_disk = AtomicU64::new(checksum(&data));
        Ok(Self { raw, key, dir: dir.map(Path::to_path_buf), file, dirty: AtomicBool::new(false), on_disk })
    }

    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Path of another file that is valid for this device and driver only.
    pub fn path_for(&self, folder: &str, extension: &str) -> Option<PathBuf> {
        self.dir.as_deref().map(|dir| path(dir, folder, &self.key, extension))
    }

    /// Records that a pipeline was compiled that was not in the cache.
    pub fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }

    pub fn save(&self, device: &ash::Device) {
        let Some(file) = &self.file else { return };
        if !self.dirty.swap(false, Ordering::Relaxed) {
            return;
        }
        // SAFETY: the cache exists until `destroy`, after which nothing uses it.
        let Ok(data) = (unsafe { device.get_pipeline_cache_data(self.raw) }) else { return };
        let new = checksum(&data);
        if self.on_disk.swap(new, Ordering::Relaxed) == new {
            return;
        }
        if let Err(error) = write(file, &self.key, &data) {
            tracing::warn!("could not write the pipeline cache: {}: {error}", file.display());
        }
    }

    /// # Safety
    /// The cache must not be used afterwards.
    pub unsafe fn destroy(&self, device: &ash::Device) {
        // SAFETY: the caller guarantees that the cache is not used again.
        unsafe { device.destroy_pipeline_cache(self.raw, None) };
    }
}

fn path(dir: &Path, folder: &str, key: &[u8; KEY], extension: &str) -> PathBuf {
    dir.join(folder).join(format!("{}.{extension}", hex_text(key)))
}

fn key(info: &AdapterInfo) -> [u8; KEY] {
    let mut key = [0; KEY];
    key[..16].copy_from_slice(&info.pipeline_cache_uuid);
    key[16..20].copy_from_slice(&info.vendor_id.to_le_bytes());
    key[20..24].copy_from_slice(&info.device_id.to_le_bytes());
    key[24..].copy_from_slice(&info.driver_version.to_le_bytes());
    key
}

/// The driver's data in the file; empty if the file is missing or invalid.
fn read(file: &Path, key: &[u8; KEY]) -> Vec<u8> {
    let Ok(content) = std::fs::read(file) else { return vec![] };
    match parse(&content, key) {
        Ok(data) => data.to_vec(),
        Err(reason) => {
            let reason = format!("{reason}; pipelines are compiled again and the file is replaced");
            tracing::warn!("{}", Error::InvalidFile { path: file.to_path_buf(), reason });
            vec![]
        }
    }
}

fn parse<'a>(content: &'a [u8], key: &[u8; KEY]) -> Result<&'a [u8], &'static str> {
    let header = content.get(..HEADER).ok_or("too short")?;
    let data = &content[HEADER..];
    if &header[..8] != MAGIC {
        return Err("not a pipeline cache of this version");
    }
    if &header[8..8 + KEY] != key {
        return Err("made for another device or driver");
    }
    if header[8 + KEY..16 + KEY] != (data.len() as u64).to_le_bytes() {
        return Err("truncated");
    }
    if header[16 + KEY..] != checksum(data).to_le_bytes() {
        return Err("damaged");
    }
    Ok(data)
}

fn write(file: &Path, key: &[u8; KEY], data: &[u8]) -> std::io::Result<()> {
    let mut content = Vec::with_capacity(HEADER + data.len());
    content.extend_from_slice(MAGIC);
    content.extend_from_slice(key);
    content.extend_from_slice(&(data.len() as u64).to_le_bytes());
    content.extend_from_slice(&checksum(data).to_le_bytes());
    content.extend_from_slice(data);
    write_atomically(file, &content)
}

/// FNV-1a. It detects damage, not tampering.
pub fn checksum(data: &[u8]) -> u64 {
    data.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_intact_file_with_the_same_key_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("deep").join("cache.bin");
        let key = [7; KEY];
        write(&file, &key, b"compiled code").unwrap();
        assert_eq!(read(&file, &key), b"compiled code");
        assert!(read(&file, &[8; KEY]).is_empty());
        let content = std::fs::read(&file).unwrap();
        for cut in 0..content.len() {
            assert!(parse(&content[..cut], &key).is_err(), "cut at {cut}");
        }
        for position in 0..content.len() {
            let mut damaged = content.clone();
            damaged[position] ^= 0x40;
            assert!(parse(&damaged, &key).is_err(), "damaged at {position}");
        }
    }
}
