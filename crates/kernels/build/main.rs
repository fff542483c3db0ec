//! Build script: fails if a shader changed since `crates/kernels/generated` was compiled from it.

mod fingerprint;

use std::path::Path;
use std::{fs, process};

fn main() {
    for watched in ["src", "glsl", "build", "generated"] {
        println!("cargo:rerun-if-changed={watched}");
    }
    let current = fingerprint::of_sources(Path::new("")).unwrap_or_else(|error| fail(&error));
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
            "crates/kernels/generated was compiled from other versions of {}.\nRun `make shaders`; it needs a \
             C++ compiler and compiles glslang on its first run.",
            files.join(", ")
        ));
    }
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    process::exit(1)
}
