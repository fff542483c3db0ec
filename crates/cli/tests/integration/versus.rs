//! scripts/versus_llama_cpp.sh without network and llama.cpp: the table made from both engines' JSON, and its
//! errors.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::common::{json, stderr, stdout};
use serde_json::{Value, json};

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts")
}

/// Only the comparison needs Node; without it there is nothing to test.
fn has_node() -> bool {
    let found = Command::new("node").arg("--version").output().is_ok_and(|output| {
        let version = stdout(&output);
        version.trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok()) >= Some(20)
    });
    if !found {
        eprintln!("Node 20 or later is not installed: skipping the comparison's table");
    }
    found
}

/// A folder with both engines' JSON output of several runs, as the script leaves it.
struct Outputs(PathBuf);

impl Outputs {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("indrik-versus-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let outputs = Self(folder);
        outputs.write(
            "devices.json",
            &json!({ "devices": [
                { "index": 0, "name": "llvmpipe", "driver": "Mesa", "chosen": false },
                { "index": 1, "name": "Radeon 780M", "driver": "radv Mesa 25", "chosen": true },
            ] }),
        );
        outputs.write(
            "inspect.json",
            &json!({
                "config": { "vocab": 262_144 },
                "encodings": { "q8_0": { "scheme": "int8", "total": { "gpu_bytes": 3 << 20 } } },
            }),
        );
        fs::write(outputs.0.join("version"), "indrik 0.1.0\n").unwrap();
        for (number, [prefill, decode]) in [(1, [100.0, 20.0]), (2, [110.0, 22.0]), (3, [120.0, 21.0])] {
            let runs = json!([
                { "kind": "prefill", "batch": 1, "prompt": 512, "tokens": 0, "depth": 0, "tokens_per_s": prefill },
                { "kind": "decode", "batch": 1, "prompt": 0, "tokens": 64, "depth": 8, "tokens_per_s": decode },
            ]);
            outputs
                .write(&format!("ours-00{number}.json"), &json!({ "device": "Radeon 780M", "runs": runs }));
        }
        outputs
    }

    fn write(&self, name: &str, value: &Value) {
        fs::write(self.0.join(name), value.to_string()).unwrap();
    }

    /// Writes the peer's output, with some fields changed.
    fn peer(&self, name: &str, change: &Value) {
        let mut value = json!({
            "node_llama_cpp": "3.22.1", "release": "v0.5.0", "gpu": "vulkan", "devices": ["Radeon 780M"],
            "model": "gemma3 1B Q8_0", "gpu_layers": 27, "layers": 27, "flash_attention": true,
            "prefill_tokens_per_s": 1000.0, "decode_tokens_per_s": 10.0, "decode_tokens_per_s_own_clock": 14.0,
        });
        for (key, new) in change.as_object().unwrap() {
            value[key] = new.clone();
        }
        self.write(name, &value);
    }

    fn report(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("node");
        command.arg(scripts().join("versus/report.mjs")).args(arguments).current_dir(&self.0);
        command.output().unwrap()
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_table_compares_both_engines() {
    if !has_node() {
        return;
    }
    let outputs = Outputs::new("table");
    for number in 1..=3 {
        outputs.peer(
            &format!("theirs-00{number}.json"),
            &json!({ "decode_tokens_per_s": 9.0 + f64::from(number) }),
        );
    }
    let text = stdout(&outputs.report(&["table", ".", "models/some.gguf"]));
    for line in [
        "some.gguf on Radeon 780M, radv Mesa 25",
        "| prefill 512 | 110.0 (100.0–120.0) | 1,000.0 (1,000.0–1,000.0) | 0.11× |",
        "| decode 64 at depth 8 | 21.0 (20.0–22.0) | 11.0 (10.0–12.0) | 1.91× |",
        "| same, by llama.cpp's own clock | 21.0 (20.0–22.0) | 14.0 (14.0–14.0) | 1.50× |",
    ] {
        assert!(text.lines().any(|one| one == line), "no line {line}\n{text}");
    }
    for part in ["q8_0 as int8 (3.0 MiB)", "indrik 0.1.0", "v0.5.0", "with flash attention", "of 3 runs"] {
        assert!(text.contains(part), "no {part}\n{text}");
    }
    let value = json(&outputs.report(&["table", ".", "models/some.gguf", "--json"]));
    assert_eq!(value["rows"][0]["llama_cpp"]["median"], 1000.0);
    assert_eq!(value["rows"][1]["indrik"]["runs"], json!([20, 22, 21]));
}

#[test]
fn an_unsupported_device_leaves_the_peer_column_empty() {
    if !has_node() {
        return;
    }
    let outputs = Outputs::new("unsupported");
    outputs.peer("probe.json", &json!({ "devices": [] }));
    let output = outputs.report(&["check", "devices.json", "probe.json"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("does not accept Radeon 780M"), "{}", stderr(&output));
    let text = stdout(&outputs.report(&["table", ".", "some.gguf"]));
    assert!(text.contains("| prefill 512 | 110.0 (100.0–120.0) | – | – |"), "{text}");
    assert!(text.contains("llama.cpp: not measured"), "{text}");
}

#[test]
fn an_unfair_comparison_is_an_error() {
    if !has_node() {
        return;
    }
    let outputs = Outputs::new("unfair");
    outputs.peer("probe.json", &json!({}));
    assert_eq!(outputs.report(&["check", "devices.json", "probe.json"]).status.code(), Some(0));
    assert_eq!(stdout(&outputs.report(&["device", "devices.json"])).trim(), "1");
    for (change, message) in [
        (json!({ "gpu": false }), "runs on the CPU, not through Vulkan"),
        (json!({ "gpu": "cuda" }), "runs on cuda, not through Vulkan"),
        (json!({ "devices": ["llvmpipe"] }), "not the same device"),
        (json!({ "devices": ["Radeon 780M", "llvmpipe"] }), "not the same device"),
        (json!({ "error": "NoBinaryFound" }), "cannot be loaded: NoBinaryFound"),
    ] {
        outputs.peer("probe.json", &change);
        let output = outputs.report(&["check", "devices.json", "probe.json"]);
        assert_eq!(output.status.code(), Some(1), "{change}");
        assert!(stderr(&output).contains(message), "{change}: {}", stderr(&output));
    }
    for (change, message) in [
        (json!({ "gpu_layers": 20 }), "only 20 of 27 layers"),
        (json!({ "error": "out of memory" }), "llama.cpp failed: out of memory"),
        (json!({ "gpu": false }), "not through Vulkan"),
    ] {
        outputs.peer("theirs-001.json", &change);
        let output = outputs.report(&["table", ".", "some.gguf"]);
        assert_eq!(output.status.code(), Some(1), "{change}");
        assert!(stderr(&output).contains(message), "{change}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{change}");
    }
}

#[test]
fn missing_arguments_files_and_tools_are_reported() {
    let script = scripts().join("versus_llama_cpp.sh");
    // A PATH with only the tools that the script uses before it looks for Node.
    let bin = std::env::temp_dir().join(format!("indrik-versus-bin-{}", std::process::id()));
    fs::create_dir_all(&bin).unwrap();
    for tool in ["dirname", "env", "bash"] {
        let from = [Path::new("/usr/bin"), Path::new("/bin")].map(|folder| folder.join(tool));
        let from = from.iter().find(|path| path.exists()).unwrap();
        let _ = std::os::unix::fs::symlink(from, bin.join(tool));
    }
    let run = |arguments: &[&str]| {
        Command::new("bash").arg(&script).args(arguments).env("PATH", &bin).output().unwrap()
    };
    // Any file will do: it is not read before Node is found.
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (arguments, code, message) in [
        (&[][..], 2, "usage"),
        (&[model, "-r"], 2, "usage"),
        (&[model, "-p", "many"], 2, "usage"),
        (&[model, "-r", "0"], 2, "at least one run"),
        (&["missing.gguf"], 1, "missing.gguf does not exist"),
        (&[model], 1, "node is not installed"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
    }
    fs::remove_dir_all(&bin).unwrap();
}
