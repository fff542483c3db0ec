//! Build script: compiles every `src/**/*.comp` to SPIR-V and generates a matching Rust module.
//!
//! For each shader and each tier that it declares: [`compile`] to SPIR-V, [`reflect`] its interface, and
//! [`emit`] the Rust side into `$OUT_DIR/shaders.rs`. The shader is the single source of truth: host and
//! shader cannot disagree.

mod compile;
mod emit;
mod reflect;
mod spirv;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// Relative to the package root, where cargo runs build scripts: errors then name files by short paths.
const SOURCES: &str = "src";
const SHARED_INCLUDES: &str = "glsl";

fn main() {
    // Watch all of src, not only the shaders found in it: cargo would miss a new shader otherwise.
    for watched in [SOURCES, SHARED_INCLUDES, "build"] {
        println!("cargo:rerun-if-changed={watched}");
    }
    if let Err(errors) = run() {
        for error in errors {
            eprintln!("{error}\n");
        }
        process::exit(1);
    }
}

/// Builds every shader. On failure returns the errors of all of them, so that one build shows them all.
fn run() -> Result<(), Vec<String>> {
    let out = env::var_os("OUT_DIR")
        .ok_or_else(|| vec!["OUT_DIR is not set: run this build script through cargo".to_owned()])?;
    let out = PathBuf::from(out);
    let kernels = kernels(Path::new(SOURCES)).map_err(|error| vec![error])?;
    let mut modules = Vec::new();
    let mut errors = Vec::new();
    for (kernel, file) in &kernels {
        match build(kernel, file, &out) {
            Ok(module) => modules.push(module),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    write(&out.join("shaders.rs"), modules.join("\n").as_bytes()).map_err(|error| vec![error])
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

/// Writes the SPIR-V of every tier and returns the Rust module of the kernel.
fn build(kernel: &str, file: &Path, out: &Path) -> Result<String, String> {
    let path = file.display().to_string();
    let source = fs::read_to_string(file).map_err(|error| format!("cannot read {path}: {error}"))?;
    let beside = file.parent().unwrap_or(Path::new("."));
    let includes = [beside, Path::new(SHARED_INCLUDES)];
    let mut tiers = Vec::new();
    for tier in compile::tiers(&source).map_err(|error| format!("{path}: {error}"))? {
        let module = compile::compile(&path, &source, tier, &includes)
            .map_err(|log| format!("{path} does not compile at tier T{tier}:\n{log}"))?;
        for warning in module.warnings.lines() {
            println!("cargo:warning={warning}");
        }
        let bytes: Vec<u8> = module.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        write(&out.join(format!("{kernel}.t{tier}.spv")), &bytes)?;
        let interface =
            reflect::reflect(&module.words).map_err(|error| format!("{path} at tier T{tier}: {error}"))?;
        tiers.push((tier, interface));
    }
    reflect::agree(&tiers).map_err(|error| format!("{path}: {error}"))?;
    Ok(emit::module(kernel, &path, &tiers))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
