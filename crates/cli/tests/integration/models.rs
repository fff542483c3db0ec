//! `indrik models` and `indrik rm` on stores with all kinds of files.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::common::{indrik, json, stderr, stdout};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

fn command(store: &Path, arguments: &[&str]) -> Command {
    let mut command = indrik(arguments);
    command.env("INDRIK_MODELS_DIR", store).stdin(Stdio::null());
    command
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name)
}

/// A store with a user's model, a damaged pulled one, a linked folder, a partial download and other files.
fn mixed_store() -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let at = |name: &str| store.path().join(name);
    fs::copy(fixture("gguf_q8_0/model.gguf"), at("Tiny-Q8.gguf")).unwrap();
    let bytes = fs::read(fixture("gguf_q8_0/model.gguf")).unwrap();
    fs::write(at("cut.gguf"), &bytes[..bytes.len() - 100]).unwrap();
    symlink(fs::canonicalize(fixture("head256")).unwrap(), at("folder")).unwrap();
    fs::write(at("smollm2@135m.gguf"), "GGUF, but no more").unwrap();
    fs::write(at("notes.txt"), "mine").unwrap();
    fs::create_dir(at("gemma3@270m.part")).unwrap();
    fs::write(at("gemma3@270m.part/hub"), "half").unwrap();
    store
}

fn row(list: &Value, name: &str) -> Value {
    let rows = list["models"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}: {list}")).clone()
}

#[test]
fn an_empty_store_suggests_pull() {
    let folder = tempfile::tempdir().unwrap();
    for store in [folder.path().to_path_buf(), folder.path().join("none")] {
        let output = command(&store, &["models"]).output().unwrap();
        assert!(output.status.success());
        let text = stdout(&output);
        assert!(text.contains("`indrik pull NAME`") && text.contains("smollm2:135m"), "{text}");
        let list = json(&command(&store, &["models", "--json"]).output().unwrap());
        assert_eq!((&list["bytes"], list["models"].as_array().unwrap().len()), (&0.into(), 0));
    }
}

#[test]
fn every_file_is_listed_with_its_problem() {
    let store = mixed_store();
    let output = command(store.path(), &["models", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let list = json(&output);
    assert_eq!(list["models"].as_array().unwrap().len(), 6);
    let tiny = row(&list, "Tiny-Q8");
    assert_eq!((&tiny["family"], &tiny["quantisation"]), (&"gemma3".into(), &"Q8_0".into()));
    assert!(tiny["problem"].is_null(), "{tiny}");
    assert!(tiny["parameters"].as_u64().unwrap() > 10_000 && tiny["context"].as_u64().unwrap() >= 512);
    assert_eq!(tiny["path"], store.path().join("Tiny-Q8.gguf").display().to_string());
    let folder = row(&list, "folder");
    assert_eq!((&folder["family"], &folder["quantisation"]), (&"gemma3".into(), &"BF16".into()));
    assert_eq!(folder["bytes"], 0, "a link's target does not count");
    let problem = |name: &str| row(&list, name)["problem"].as_str().unwrap().to_string();
    assert!(problem("smollm2:135m").contains("is not supported"), "{}", problem("smollm2:135m"));
    assert!(problem("cut").contains("download it again"), "{}", problem("cut"));
    assert!(problem("gemma3:270m").contains("`indrik pull gemma3:270m` resumes"));
    assert!(problem("notes.txt").contains("not a model"));
    let sum: u64 = list["models"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    assert_eq!(list["bytes"], sum);

    let text = stdout(&command(store.path(), &["models"]).output().unwrap());
    assert!(text.contains("0 bytes (link)"), "{text}");
    assert!(text.contains("| Tiny-Q8 ") && text.contains("\nnotes.txt: not a model"), "{text}");
    assert!(text.trim_end().ends_with(&format!("in {}", store.path().display())), "{text}");

    // A model is found by its listed name.
    let output = command(store.path(), &["inspect", "tiny-q8", "--json"]).output().unwrap();
    assert_eq!(json(&output)["format"], "gguf");
}

#[test]
fn a_file_that_changed_since_its_pull_is_reported() {
    let store = tempfile::tempdir().unwrap();
    fs::copy(fixture("gguf_q8_0/model.gguf"), store.path().join("gemma3@270m.gguf")).unwrap();
    let record = r#"{"name": "gemma3:270m", "title": "t", "source": "s", "sha256": "0", "bytes": 7,
        "licence": "Terms", "licence_url": "u", "date": "2026-01-02T03:04:05Z"}"#;
    fs::write(store.path().join("gemma3@270m.json"), record).unwrap();
    let list = json(&command(store.path(), &["models", "--json"]).output().unwrap());
    let row = row(&list, "gemma3:270m");
    assert_eq!((&row["licence"], &row["date"]), (&"Terms".into(), &"2026-01-02T03:04:05Z".into()));
    assert!(row["problem"].as_str().unwrap().contains("7 bytes when it was pulled"), "{row}");
}

#[test]
fn a_moved_and_linked_model_counts_as_unchanged() {
    let (store, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = disk.path().join("model.gguf");
    let bytes = fs::copy(fixture("gguf_q8_0/model.gguf"), &file).unwrap();
    symlink(&file, store.path().join("gemma3@270m.gguf")).unwrap();
    let record = format!(
        r#"{{"name": "gemma3:270m", "title": "t", "source": "s", "sha256": "0", "bytes": {bytes},
        "licence": "Terms", "licence_url": "u", "date": "2026-01-02T03:04:05Z"}}"#
    );
    fs::write(store.path().join("gemma3@270m.json"), record).unwrap();
    let list = json(&command(store.path(), &["models", "--json"]).output().unwrap());
    assert!(row(&list, "gemma3:270m")["problem"].is_null(), "{list}");
    assert_eq!(list["bytes"], 0);
}

#[test]
fn a_file_named_like_an_alias_shadows_it() {
    let store = tempfile::tempdir().unwrap();
    let at = |name: &str| store.path().join(name);
    fs::copy(fixture("gguf_q8_0/model.gguf"), at("smollm2-135m.gguf")).unwrap();
    fs::copy(fixture("gguf_q4_0/model.gguf"), at("smollm2@135m.gguf")).unwrap();
    let inspected = |name: &str| {
        let output = command(store.path(), &["inspect", name, "--json"]).output().unwrap();
        json(&output)["path"].as_str().unwrap().to_string()
    };
    assert_eq!(inspected("smollm2-135m"), at("smollm2-135m.gguf").display().to_string());
    assert_eq!(inspected("smollm2"), at("smollm2@135m.gguf").display().to_string());
    let output = command(store.path(), &["rm", "-y", "smollm2-135m"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!at("smollm2-135m.gguf").exists() && at("smollm2@135m.gguf").exists());
    // By file name, as `inspect` prints it.
    let output = command(store.path(), &["rm", "-y", "smollm2@135m"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("smollm2:135m: removed"), "{}", stdout(&output));
    assert!(!at("smollm2@135m.gguf").exists());
}

#[test]
fn names_and_licences_cannot_control_the_terminal() {
    let store = tempfile::tempdir().unwrap();
    let evil = "evil\x1b[31mred";
    fs::copy(fixture("gguf_q8_0/model.gguf"), store.path().join(format!("{evil}.gguf"))).unwrap();
    fs::write(store.path().join(format!("{evil}\n.txt")), "x").unwrap();
    fs::copy(fixture("gguf_q8_0/model.gguf"), store.path().join("gemma3@270m.gguf")).unwrap();
    let record = r#"{"name": "gemma3:270m", "title": "t", "source": "s", "sha256": "0", "bytes": 7,
        "licence": "Free\u001b]0;x\u0007", "licence_url": "u", "date": "\u001b[2J"}"#;
    fs::write(store.path().join("gemma3@270m.json"), record).unwrap();
    let plain = |text: &str| assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    let text = stdout(&command(store.path(), &["models"]).output().unwrap());
    plain(&text);
    assert!(text.contains(r"| evil\u{1b}[31mred ") && text.contains(r"Free\u{1b}]0;x\u{7}"), "{text}");
    let list = json(&command(store.path(), &["models", "--json"]).output().unwrap());
    assert_eq!(row(&list, evil)["family"], "gemma3", "JSON output is not escaped this way");

    plain(&stderr(&command(store.path(), &["inspect", "unknown"]).output().unwrap()));
    plain(&stdout(&command(store.path(), &["inspect", evil]).output().unwrap()));
    plain(&stderr(&command(store.path(), &["rm", "-y", &format!("{evil}\n.txt")]).output().unwrap()));
    let output = command(store.path(), &["rm", "-y", evil]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    plain(&stdout(&output));
}

#[test]
fn an_unknown_name_lists_the_known_ones() {
    let store = mixed_store();
    let output = command(store.path(), &["inspect", "tinny"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("`indrik search`") && text.contains("in the store: Tiny-Q8, "), "{text}");
    // Both commands format the number of parameters the same way.
    let list = stdout(&command(store.path(), &["models"]).output().unwrap());
    let line = list.lines().find(|line| line.starts_with("| Tiny-Q8")).unwrap().to_string();
    let parameters = line.split('|').nth(3).unwrap().trim();
    let text = stdout(&command(store.path(), &["inspect", "tiny-q8"]).output().unwrap());
    assert!(text.contains(&format!(", {parameters} parameters, ")), "{parameters}: {text}");
}

#[test]
fn rm_needs_yes_without_a_terminal() {
    let store = mixed_store();
    let output = command(store.path(), &["rm", "smollm2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--yes"), "{}", stderr(&output));
    assert!(store.path().join("smollm2@135m.gguf").exists());
    assert_eq!(command(store.path(), &["rm"]).output().unwrap().status.code(), Some(2));

    // Several names of one model count once; an unknown name does not prevent the others.
    let output = command(store.path(), &["rm", "--yes", "smollm2", "SmolLM2:135m", "folder", "gone"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("there is no model 'gone' in the store"), "{}", stderr(&output));
    let text = stdout(&output);
    let file = store.path().join("smollm2@135m.gguf").display().to_string();
    assert!(text.contains(&format!("smollm2:135m: removed, 17 bytes freed\n   {file}\n")), "{text}");
    assert!(text.contains("17 bytes freed in total"), "{text}");
    assert!(!store.path().join("smollm2@135m.gguf").exists() && !store.path().join("folder").exists());
    assert!(fixture("head256").join("config.json").exists(), "only the link is removed");

    let output = command(store.path(), &["rm", "--yes", "--json", "gemma3", "notes.txt"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let result = json(&output);
    assert_eq!((&result["removed"][0]["name"], &result["bytes"]), (&"gemma3:270m".into(), &4.into()));
    assert_eq!(result["failed"][0]["name"], "notes.txt");
    assert!(result["failed"][0]["reason"].as_str().unwrap().contains("remove it by hand"), "{result}");
    assert!(store.path().join("notes.txt").exists() && !store.path().join("gemma3@270m.part").exists());
}

#[test]
fn rm_asks_for_confirmation_on_a_terminal() {
    let store = mixed_store();
    let ask = |answer: &str| {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let side = File::options()
            .read(true)
            .write(true)
            .open(ptsname(&terminal, Vec::new()).unwrap().to_str().unwrap());
        let mut terminal = File::from(terminal);
        terminal.write_all(answer.as_bytes()).unwrap();
        command(store.path(), &["rm", "tiny-q8"]).stdin(side.unwrap()).output().unwrap()
    };
    let output = ask("\n");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("Remove it? [y/N]") && stderr(&output).contains("Tiny-Q8.gguf"));
    assert!(store.path().join("Tiny-Q8.gguf").exists());
    let output = ask("y\n");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("Tiny-Q8: removed"));
    assert!(!store.path().join("Tiny-Q8.gguf").exists());
}
