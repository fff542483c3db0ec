//! The committed results are those of the committed shaders, and changes to them are noticed.

use std::fs;
use std::path::{Path, PathBuf};

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels").canonicalize().expect("the kernels crate")
}

#[test]
fn committed_files_match_the_shaders() {
    let (generated, warnings) = shaders::generate(&kernels()).expect("all shaders compile");
    assert_eq!(warnings, Vec::<String>::new());
    assert!(generated.len() > 40, "only {} files", generated.len());
    let outdated = shaders::outdated(&kernels().join("generated"), &generated);
    assert!(outdated.is_empty(), "run `make shaders`: {} differ", outdated.join(", "));
}

#[test]
fn compilation_is_deterministic() {
    let generate = || shaders::generate(&kernels()).expect("all shaders compile").0;
    assert!(generate() == generate(), "two runs gave different files");
}

#[test]
fn changed_missing_and_left_over_files_are_found_and_updated() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let generated: shaders::Generated =
        ["a.spv", "b.spv", "c.spv"].map(|name| (name.to_owned(), name.as_bytes().to_vec())).into();
    fs::write(folder.path().join("a.spv"), "a.spv").expect("write");
    fs::write(folder.path().join("b.spv"), "other").expect("write");
    fs::write(folder.path().join("old.spv"), "old").expect("write");
    let expected = ["b.spv", "c.spv", "old.spv"];
    assert_eq!(shaders::outdated(folder.path(), &generated), expected);
    assert_eq!(shaders::update(folder.path(), &generated).expect("update"), expected);
    assert!(shaders::outdated(folder.path(), &generated).is_empty());
    assert!(!folder.path().join("old.spv").exists());
}

/// A kernels crate with one shader.
fn crate_with(shader: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary folder");
    for folder in ["src/norm", "glsl"] {
        fs::create_dir_all(root.path().join(folder)).expect("create a folder");
    }
    fs::write(root.path().join("src/norm/norm.comp"), shader).expect("write a shader");
    root
}

#[test]
fn errors_of_all_shaders_name_their_files() {
    let root = crate_with("#version 460\n#pragma tiers(T0)\nvoid main() { nothing(); }\n");
    fs::write(root.path().join("src/norm/other.comp"), "#version 460\nvoid main() {}\n").expect("write");
    let errors = shaders::generate(root.path()).expect_err("neither compiles").join("\n");
    assert!(errors.contains("crates/kernels/src/norm/norm.comp:3:"), "{errors}");
    assert!(errors.contains("crates/kernels/src/norm/other.comp: no `#pragma tiers`"), "{errors}");
}

#[test]
fn every_source_has_a_fingerprint_that_changes_with_it() {
    let shader = "#version 460\n#pragma tiers(T0)\nvoid main() {}\n";
    let root = crate_with(shader);
    fs::write(root.path().join("glsl/shared.glsl"), "").expect("write an include");
    let fingerprints = || {
        let (files, _) = shaders::generate(root.path()).expect("compiles");
        String::from_utf8(files["fingerprints.txt"].clone()).expect("text")
    };
    let before = fingerprints();
    let paths: Vec<&str> = before.lines().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    let generated = ["generated/norm.t0.spv", "generated/shaders.rs"];
    assert_eq!(paths, [&["glsl/shared.glsl", "src/norm/norm.comp"][..], &generated].concat());
    fs::write(root.path().join("glsl/shared.glsl"), " ").expect("change the include");
    let after = fingerprints();
    assert_ne!(before.lines().next(), after.lines().next());
    let others = |lines: &str| lines.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(others(&before), others(&after));
}
