//! The shader compiler: GLSL to SPIR-V, with a Rust module for each kernel.
//!
//! For each `src/**/*.comp` of the kernels crate and each tier that it declares, [`mod@compile`] produces
//! SPIR-V, [`mod@reflect`] extracts its interface and [`emit`] writes the Rust side. The shader is the single
//! source of truth: host and shader cannot disagree.
//!
//! The results are committed in `crates/kernels/generated`, so that building and testing Indrik takes neither glslang
//! nor a C++ compiler. `make shaders` updates them, with a fingerprint of each file that every build checks; a test of
//! this crate, which `make soak` runs, compiles every shader again and compares.
//!
//! ```
//! let shader = "#version 460\nlayout(constant_id = 0) const uint THREADS = 64;\nvoid main() {}";
//! let module = shaders::compile::compile("example.comp", shader, 0, &[])?;
//! let interface = shaders::reflect::reflect(&module.words)?;
//! assert_eq!(interface.constants[0].name, "THREADS");
//! # Ok::<(), String>(())
//! ```

pub mod compile;
pub mod emit;
#[path = "../../kernels/build/fingerprint.rs"]
mod fingerprint;
mod names;
pub mod reflect;
mod spirv;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The shaders, relative to the kernels crate.
const SOURCES: &str = "src";
/// Files included by several kernels, relative to the kernels crate.
const SHARED_INCLUDES: &str = "glsl";

/// File names and contents of `crates/kernels/generated`.
pub type Generated = BTreeMap<String, Vec<u8>>;

/// Compiles every shader of the kernels crate at `root`. Fails with the errors of all of them, so that one
/// run shows them all. The second value is glslang's warnings.
pub fn generate(root: &Path) -> Result<(Generated, Vec<String>), Vec<String>> {
    let kernels = kernels(&root.join(SOURCES)).map_err(|error| vec![error])?;
    let mut files = Generated::new();
    let (mut modules, mut warnings, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for (kernel, file) in &kernels {
        match build(root, kernel, file, &mut files, &mut warnings) {
            Ok(module) => modules.push(module),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    files.insert("shaders.rs".to_owned(), modules.join("\n").into_bytes());
    let mut fingerprints = fingerprint::of_sources(root).map_err(|error| vec![error])?;
    for (name, bytes) in &files {
        fingerprints += &fingerprint::line(&format!("generated/{name}"), bytes);
    }
    files.insert(fingerprint::FILE.to_owned(), fingerprints.into_bytes());
    Ok((files, warnings))
}

/// The file names on which `folder` and `generated` differ.
pub fn outdated(folder: &Path, generated: &Generated) -> Vec<String> {
    let mut names: Vec<String> = generated
        .iter()
        .filter(|(name, bytes)| fs::read(folder.join(name)).ok().as_ref() != Some(bytes))
        .map(|(name, _)| name.clone())
        .collect();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let present = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.extend(present.filter(|name| !generated.contains_key(name)));
    names
}

/// Makes `folder` hold exactly the files of `generated`. Returns the names of those that changed.
pub fn update(folder: &Path, generated: &Generated) -> Result<Vec<String>, String> {
    let failed = |path: &Path, error| format!("cannot write {}: {error}", path.display());
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let changed = outdated(folder, generated);
    for name in &changed {
        let path = folder.join(name);
        match generated.get(name) {
            Some(bytes) => fs::write(&path, bytes),
            None => fs::remove_file(&path),
        }
        .map_err(|error| failed(&path, error))?;
    }
    Ok(changed)
}

/// Shaders by kernel name: the file stem, which becomes the module name.
fn kernels(root: &Path) -> Result<BTreeMap<String, PathBuf>, String> {
    let mut kernels = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let unreadable = |error| format!("cannot list the folder {}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "comp") {
                let kernel = kernel_name(&path)?;
                if let Some(other) = kernels.insert(kernel, path.clone()) {
                    return Err(format!(
                        "{} and {} have the same file name, which becomes a Rust module: rename one of them",
                        other.display(),
                        path.display()
                    ));
                }
            }
        }
    }
    Ok(kernels)
}

fn kernel_name(path: &Path) -> Result<String, String> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if stem.starts_with(|c: char| c.is_ascii_lowercase()) && stem.chars().all(snake) {
        Ok(stem.into_owned())
    } else {
        Err(format!("{}: the file name becomes a Rust module: rename it to snake_case", path.display()))
    }
}

/// Adds the SPIR-V of every tier to `files` and returns the Rust module of the kernel.
fn build(
    root: &Path,
    kernel: &str,
    file: &Path,
    files: &mut Generated,
    warnings: &mut Vec<String>,
) -> Result<String, String> {
    let relative = file.strip_prefix(root).unwrap_or(file).display().to_string();
    // As seen from the repository's root.
    let path = format!("crates/kernels/{relative}");
    let source = fs::read_to_string(file).map_err(|error| format!("cannot read {path}: {error}"))?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let includes = [folder, &root.join(SHARED_INCLUDES)];
    let mut tiers = Vec::new();
    for tier in compile::tiers(&source).map_err(|error| format!("{path}: {error}"))? {
        let module = compile::compile(&path, &source, tier, &includes)
            .map_err(|log| format!("{path} does not compile at tier T{tier}:\n{log}"))?;
        warnings.extend(module.warnings.lines().map(str::to_owned));
        let bytes = module.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        files.insert(format!("{kernel}.t{tier}.spv"), bytes);
        let interface =
            reflect::reflect(&module.words).map_err(|error| format!("{path} at tier T{tier}: {error}"))?;
        tiers.push((tier, interface));
    }
    reflect::agree(&tiers).map_err(|error| format!("{path}: {error}"))?;
    Ok(emit::module(kernel, &relative, &tiers))
}
