//! A fingerprint of every shader source and of what it was compiled to, to notice that one of them changed without the
//! other.

use std::fs;
use std::path::Path;

/// The list of fingerprints in the `generated` folder.
pub const FILE: &str = "fingerprints.txt";

/// One line per `.comp` and `.glsl` file of the kernels crate at `root`, sorted: fingerprint and path.
pub fn of_sources(root: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    let mut folders = vec![root.join("glsl"), root.join("src")];
    while let Some(folder) = folders.pop() {
        let unreadable = |error| format!("cannot list the folder {}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let extension = path.extension().unwrap_or_default();
            if path.is_dir() {
                folders.push(path);
            } else if extension == "comp" || extension == "glsl" {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut lines = String::new();
    for path in files {
        let bytes = fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        lines += &line(&path.strip_prefix(root).unwrap_or(&path).display().to_string(), &bytes);
    }
    Ok(lines)
}

/// The line of one file.
pub fn line(path: &str, bytes: &[u8]) -> String {
    format!("{:016x} {path}\n", fnv1a(bytes))
}

/// FNV-1a: enough against accidents, and the same in every Rust version, unlike the standard library's hashes.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
