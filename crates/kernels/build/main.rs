//! Build script: fails if a shader changed since `crates/kernels/generated` was compiled from it, or what it was
//! compiled to.

mod fingerprint;

use std::path::Path;
use std::{fs, process};

fn main() {
    for watched in ["src", "glsl", "build", "generated"] {
        println!("cargo:rerun-if-changed={watched}");
    }
    let mut current = fingerprint::of_sources(Path::new("")).unwrap_or_else(|error| fail(&error));
    current += &of_generated().unwrap_or_else(|error| fail(&format!("cannot read generated: {error}")));
    let path = Path::new("generated").join(fingerprint::FILE);
    let compiled = fs::read_to_string(&path).unwrap_or_default();
    let changed = |old: &str, new: &str| -> Vec<String> {
        let missing = new.lines().filter(|line| !old.lines().any(|other| other == *line));
        missing.filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
    };
    let mut files = changed(&compiled, &current);
    files.extend(changed(&current, &compiled));
    files.sort();
    files.dedup();
    if !files.is_empty() {
        fail(&format!(
            "crates/kernels/generated was not compiled from these shaders; other versions of: {}.\nRun `make \
             shaders`; it needs a C++ compiler and compiles glslang on its first run.",
            files.join(", ")
        ));
    }
}

/// Fingerprints of the compiled shaders and their Rust bindings.
fn of_generated() -> std::io::Result<String> {
    let mut lines = String::new();
    for entry in fs::read_dir("generated")? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name != fingerprint::FILE) {
            lines += &fingerprint::line(&path.display().to_string(), &fs::read(&path)?);
        }
    }
    Ok(lines)
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    process::exit(1)
}
