//! `indrik npu` on a fake driver under the real binary: `fakenpu`, a preloaded library, answers the binary's own calls
//! to `open`, `ioctl` and `mmap`, with the array model as the NPU. Tests with a public overlay run if
//! `INDRIK_TEST_DATA` names a folder with `npu/`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};

use crate::common::{
    indrik, json,
    served::{Served, has_device, serve},
    stderr, stdout,
};
use store::testing::{Page, Server};

const NODE: &str = "/dev/accel/fake";
/// One core: the smallest public overlay.
const OVERLAY: &str = "gemm-256-1col";
/// AMD's overlay, and its stream.
const AMD: &str = "mladf_gemm_4x4_a8w8acc32";
const AMD_STREAM: &str = "mladf_a8w8acc32_32_2048_2048";

/// A public file; prints what is skipped without.
fn data(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("INDRIK_TEST_DATA").map(PathBuf::from);
    let file = folder.map(|folder| folder.join("npu").join(name)).filter(|file| file.exists());
    if file.is_none() {
        println!("skipped: INDRIK_TEST_DATA has no npu/{name}");
    }
    file
}

fn overlay() -> Option<PathBuf> {
    data(&format!("{OVERLAY}.xclbin"))
}

/// AMD's overlay with its stream beside it.
fn amds_overlay() -> Option<PathBuf> {
    data(&format!("{AMD_STREAM}.bin")).and_then(|_| data(&format!("{AMD}.xclbin")))
}

/// The library that is preloaded. Cargo builds it beside the tests, which depend on it.
fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.with_file_name("libfakenpu.so");
    assert!(library.exists(), "{} is missing: cargo builds it with this test", library.display());
    library
}

/// A self-test on the fake driver.
struct Faked {
    folder: tempfile::TempDir,
    overlay: PathBuf,
}

impl Faked {
    fn new() -> Option<Self> {
        Some(Self { overlay: overlay()?, folder: tempfile::tempdir().unwrap() })
    }

    /// Runs it; its output, and the calls and leaks that the driver saw.
    fn run(&self, name: &str, environment: &[(&str, String)]) -> (Output, Vec<String>) {
        let log = self.folder.path().join(name);
        let mut command = indrik(&["npu", "selftest", "--json", "--node", NODE, "--overlay"]);
        command
            .arg(&self.overlay)
            .env("LD_PRELOAD", library())
            .env("FAKENPU_NODE", NODE)
            .env("FAKENPU_LOG", &log);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let output = command.output().unwrap();
        let log = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<String> = log.lines().map(str::to_owned).collect();
        // Whatever happened, the node was closed, and nothing was left.
        assert_eq!(lines.last().map(String::as_str), Some("closed"), "{name}: {}", stderr(&output));
        let leaks: Vec<&String> = lines.iter().filter(|line| line.starts_with("leak")).collect();
        assert!(leaks.is_empty(), "{name}: {leaks:?}");
        (output, lines)
    }
}

#[test]
fn the_self_test_goes_through_real_calls() {
    let Some(faked) = Faked::new() else { return };
    for (name, chunks) in [("fixed", ""), ("expandable", "8")] {
        let (output, calls) = faked.run(name, &[("FAKENPU_CHUNKS", chunks.to_string())]);
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
        let result = json(&output);
        assert_eq!(
            (&result["passed"], &result["ran_on"], &result["error"]),
            (&json!(true), &json!("npu"), &Value::Null)
        );
        assert_eq!(result["overlay"]["name"], OVERLAY);
        assert_eq!(result["driver"]["firmware"], "1.5.2.380");
        assert_eq!(result["driver"]["clocks"][1], json!({ "name": "H Clock", "mhz": 1024 }));
        let products = result["products"].as_array().unwrap();
        let shapes: Vec<_> =
            products.iter().map(|product| (&product["m"], &product["k"], &product["n"])).collect();
        assert_eq!(shapes[1], (&json!(37), &json!(263), &json!(61)));
        assert!(products.iter().all(|product| product["wrong"] == 0 && product["gops"].as_f64().is_some()));
        assert!(result["dispatch_microseconds"]["median"].as_f64().is_some());
        // As the kernel wants it: facts, the heap before anything in it, then the context with its PDI.
        let beginning = [
            "VERSION",
            "GET_INFO",
            "GET_INFO",
            "GET_INFO",
            "GET_INFO",
            "GET_INFO",
            "VERSION",
            "GET_INFO",
            "CREATE_BO",
            "GET_BO_INFO",
            "mmap",
            "CREATE_BO",
            "GET_BO_INFO",
            "SYNC_BO",
            "CREATE_HWCTX",
            "CONFIG_HWCTX",
        ];
        assert_eq!(calls[..beginning.len()], beginning);
        let count = |name: &str| calls.iter().filter(|call| *call == name).count();
        assert_eq!(count("EXEC_CMD"), 40, "ten runs of three products and of an empty stream");
        assert_eq!(count("EXEC_CMD"), count("SYNCOBJ_TIMELINE_WAIT"));
        assert_eq!(count("CREATE_BO"), count("GEM_CLOSE"));
        assert_eq!(count("CREATE_HWCTX"), count("DESTROY_HWCTX"));
    }
}

#[test]
fn a_fault_at_any_call_is_a_clear_error_without_leaks() {
    let Some(faked) = Faked::new() else { return };
    let calls = faked.run("whole", &[]).1;
    let calls = &calls[..calls.len() - 1];
    // Every call up to the end of the second run, which is the first that repeats; the rest are repetitions and
    // releases, of which `INDRIK_TEST_ALL` takes all but one: a context that cannot be destroyed keeps the node open.
    let executions: Vec<usize> = (0..calls.len()).filter(|index| calls[*index] == "EXEC_CMD").collect();
    let all = std::env::var_os("INDRIK_TEST_ALL").is_some();
    let is_chosen = |index: usize| index <= executions[1] + 1 || all && calls[index] != "DESTROY_HWCTX";
    let chosen: Vec<usize> = (0..calls.len()).filter(|index| is_chosen(*index)).collect();
    let next = AtomicUsize::new(0);
    let check = || {
        while let Some(&index) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (name, errno) = (&calls[index], if index % 2 == 0 { 22 } else { 12 });
            let fault = ("FAKENPU_FAIL", format!("{index}:{errno}"));
            let (output, _) = faked.run(&format!("fault-{index}"), &[fault]);
            let result = json(&output);
            // Facts beyond the array's size may be missing, and nothing can be done about what is not released.
            let is_optional = (2..6).contains(&index)
                || ["munmap", "GEM_CLOSE", "DESTROY_HWCTX", "SYNCOBJ_DESTROY"].contains(&name.as_str());
            assert_eq!(output.status.success(), is_optional, "{name} ({index}): {result}");
            assert_eq!(output.status.code(), Some(if is_optional { 0 } else { 1 }));
            let error = result["error"].as_str().unwrap_or_default();
            // A heap without room is named as such.
            let is_named = error.contains(name.as_str()) || error.contains("no room");
            assert!(is_optional || is_named, "{name} ({index}): {error}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(check);
        scope.spawn(check);
    });
    println!("{} of {} calls failed, one at a time", chosen.len(), calls.len());
}

#[test]
fn wrong_results_and_hangs_fail_the_self_test() {
    let Some(faked) = Faked::new() else { return };
    let (output, _) = faked.run("corrupt", &[("FAKENPU_CORRUPT", "1".into())]);
    let result = json(&output);
    assert_eq!(
        (output.status.code(), &result["passed"], &result["error"]),
        (Some(1), &json!(false), &Value::Null)
    );
    let product = &result["products"][0];
    assert!(product["wrong"].as_u64() >= Some(1), "{product}");
    assert_eq!((&product["first_wrong"]["row"], &product["first_wrong"]["column"]), (&json!(0), &json!(0)));

    let (output, calls) = faked.run("hang", &[("FAKENPU_HANG", "1".into())]);
    let result = json(&output);
    let error = result["error"].as_str().unwrap_or_default();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("did not finish the command within 10000 ms"), "{error}");
    // The array stops before memory that it might still write is given back.
    let position = |name: &str| calls.iter().position(|call| call == name).unwrap();
    let after = calls[position("SYNCOBJ_TIMELINE_WAIT") + 1..].to_vec();
    assert_eq!(after[0], "DESTROY_HWCTX", "{after:?}");
}

#[test]
fn products_run_on_the_array_model() {
    let Some(overlay) = overlay() else { return };
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.md");
    let run = |json: bool| {
        let mut command = indrik(&["npu", "selftest", "--simulate", "--overlay"]);
        command.arg(&overlay).arg("--report").arg(&report).args(json.then_some("--json"));
        command.output().unwrap()
    };
    let output = run(false);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert!(text.contains("the array model in software, not an NPU: no speed"), "{text}");
    assert!(text.contains("32 × 256 × 32: 1,024 elements compared, exact\n"), "{text}");
    assert!(
        text.ends_with("self-test passed\n") && !text.contains("GOPS") && !text.contains("dispatch"),
        "{text}"
    );
    assert!(fs::read_to_string(&report).unwrap().contains(&text), "the report is what was printed");
    let result = json(&run(true));
    assert_eq!((&result["passed"], &result["ran_on"]), (&json!(true), &json!("simulator")));
    assert_eq!(
        (&result["products"][0]["gops"], &result["dispatch_microseconds"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn our_own_overlay_needs_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = indrik(&["npu", "selftest", "--simulate", "--overlay", "int8", "--json"]);
    let result = json(&command.env("INDRIK_OVERLAYS_DIR", folder.path()).output().unwrap());
    assert_eq!((&result["passed"], &result["overlay"]["name"]), (&json!(true), &json!("int8")));
    let shapes: Vec<&Value> =
        result["products"].as_array().unwrap().iter().map(|product| &product["k"]).collect();
    assert_eq!(shapes, [512, 519]);
}

/// Ten runs of 32 blocks on sixteen interpreted cores: minutes, so only with `INDRIK_TEST_ALL`.
#[test]
fn our_own_overlay_goes_through_real_calls() {
    if std::env::var_os("INDRIK_TEST_ALL").is_none() {
        println!("skipped: INDRIK_TEST_ALL is not set");
        return;
    }
    let faked = Faked { overlay: PathBuf::from("int8"), folder: tempfile::tempdir().unwrap() };
    let (output, calls) = faked.run("int8", &[]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let result = json(&output);
    assert_eq!((&result["passed"], &result["ran_on"]), (&json!(true), &json!("npu")));
    assert_eq!(calls.iter().filter(|call| *call == "EXEC_CMD").count(), 40);
}

/// Ten runs on sixteen interpreted cores: a minute, so only with `INDRIK_TEST_ALL`.
#[test]
fn amds_overlay_goes_through_real_calls() {
    if std::env::var_os("INDRIK_TEST_ALL").is_none() {
        println!("skipped: INDRIK_TEST_ALL is not set");
        return;
    }
    let Some(overlay) = amds_overlay() else { return };
    let faked = Faked { overlay, folder: tempfile::tempdir().unwrap() };
    let (output, calls) = faked.run("amd", &[]);
    let result = json(&output);
    assert!(output.status.success(), "{result}{}", stderr(&output));
    assert_eq!((&result["passed"], &result["ran_on"]), (&json!(true), &json!("npu")));
    assert_eq!((&result["overlay"]["name"], &result["stream"]["name"]), (&json!(AMD), &json!(AMD_STREAM)));
    let products = result["products"].as_array().unwrap();
    let [product] = &products[..] else { panic!("{products:?}") };
    assert_eq!([&product["m"], &product["k"], &product["n"]], [32, 2048, 2048]);
    assert_eq!((&product["compared"], &product["wrong"]), (&json!(10 * 32 * 2048), &json!(0)));
    assert!(product["gops"].as_f64().is_some() && !result["dispatch_microseconds"].is_null(), "{result}");
    let count = |name: &str| calls.iter().filter(|call| *call == name).count();
    assert_eq!(count("EXEC_CMD"), 20, "ten runs of the product and of a stream that writes a register");
    assert_eq!(count("EXEC_CMD"), count("SYNCOBJ_TIMELINE_WAIT"));
}

/// A tiny embedding model.
fn embedding_model() -> String {
    embedding_model_of("bert_mean")
}

fn embedding_model_of(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/embeddings").join(name).display().to_string()
}

/// With the fake driver as the NPU of `--npu`.
fn with_npu<'a>(command: &'a mut Command, log: &Path) -> &'a mut Command {
    let fake = command.env("LD_PRELOAD", library()).env("FAKENPU_NODE", NODE).env("FAKENPU_LOG", log);
    fake.env("INDRIK_NPU_NODE", NODE)
}

fn count(log: &Path, name: &str) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().filter(|line| *line == name).count()
}

#[test]
fn vectors_come_from_the_npu_if_it_is_forced_and_from_the_gpu_after_a_fault() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let embed = |name: &str, npu: &str, fault: Option<&str>| {
        let log = folder.path().join(name);
        let mut command = indrik(&["embed", "-m", &embedding_model(), "--npu", npu, "--json", "a cat"]);
        command.envs(fault.map(|fault| ("FAKENPU_FAIL", fault)));
        let output = with_npu(&mut command, &log).output().unwrap();
        let vector: Vec<f32> = serde_json::from_value(json(&output)["data"][0]["embedding"].clone()).unwrap();
        (vector, stderr(&output), log)
    };
    let (gpu, errors, log) = embed("off", "off", None);
    assert!(!errors.contains("NPU") && !log.exists(), "{errors}");
    let (npu, errors, log) = embed("force", "force", None);
    let difference = gpu.iter().zip(&npu).map(|(gpu, npu)| (gpu - npu).abs()).fold(0.0, f32::max);
    assert!(difference > 0.0 && difference < 1e-4 && !errors.contains("NPU"), "{difference}: {errors}");
    // Two of the self-test, four for each of two layers.
    assert_eq!((count(&log, "EXEC_CMD"), count(&log, "closed")), (2 + 2 * 4, 1));
    // The last command.
    let calls = fs::read_to_string(&log).unwrap();
    let last = calls.lines().enumerate().filter(|(_, call)| *call == "EXEC_CMD").last().unwrap().0;
    let (faulty, errors, log) = embed("fault", "force", Some(&format!("{last}:5")));
    assert_eq!(faulty, gpu);
    assert!(errors.contains("EXEC_CMD failed") && errors.contains("falling back to the GPU"), "{errors}");
    let calls = fs::read_to_string(&log).unwrap();
    assert!(calls.ends_with("closed\n") && !calls.contains("leak"), "{calls}");
}

#[test]
fn the_server_says_what_the_npu_computes() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    let model = embedding_model();
    let mut command = indrik(&["serve", "--port", "0", "--json", "--npu", "force", "-m", &model]);
    command.env("INDRIK_DRAIN_LINGER", "1ms").stdout(Stdio::piped()).stderr(Stdio::piped());
    let server = Served::start(with_npu(&mut command, &log));
    let (status, body) =
        server.request("POST", "/v1/embeddings", r#"{"model": "bert_mean", "input": "a cat"}"#);
    assert_eq!(status, 200, "{body}");
    let health: Value = serde_json::from_str(&server.request("GET", "/health", "").1).unwrap();
    let weight_bytes = server.metric("indrik_npu_weight_bytes");
    let expected = json!({ "status": "alive", "npu": [{
        "name": "embeddings of bert_mean", "uses_npu": true, "reason": "forced; the self-test passed",
        "products": 8, "fallbacks": 0, "weight_bytes": weight_bytes,
    }] });
    // Four matrices in each of two layers, in blocks of 512 × 128.
    assert!(weight_bytes >= 2 * 4 * 512 * 128, "{weight_bytes}");
    assert_eq!(health, expected);
    assert_eq!(
        (server.metric("indrik_npu_products_total"), server.metric("indrik_npu_fallbacks_total")),
        (8, 0)
    );
    let metrics = server.request("GET", "/metrics", "").1;
    let active = "indrik_npu_operation_active{operation=\"embeddings of bert_mean\"} 1";
    assert!(metrics.lines().any(|line| line == active), "{metrics}");
    server.signal("-TERM");
    server.wait();
    let calls = fs::read_to_string(&log).unwrap();
    assert!(calls.ends_with("closed\n") && !calls.contains("leak"), "{calls}");
}

#[test]
fn two_models_of_a_server_use_the_npu_at_once() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    let (first, second) = (embedding_model(), embedding_model_of("bert_cls"));
    let second = format!("--models={second}");
    let mut command = indrik(&["serve", "--port", "0", "--json", "--npu", "force", "-m", &first, &second]);
    command.env("INDRIK_DRAIN_LINGER", "1ms").stdout(Stdio::piped()).stderr(Stdio::piped());
    let server = Served::start(with_npu(&mut command, &log));
    let embed = |model: &str| {
        let body = json!({ "model": model, "input": "a cat" }).to_string();
        let (status, body) = server.request("POST", "/v1/embeddings", &body);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["data"][0]["embedding"].take()
    };
    let vectors = ["bert_mean", "bert_cls"].map(embed);
    assert_ne!(vectors[0], vectors[1]);
    assert_eq!(["bert_mean", "bert_cls"].map(embed), vectors, "in turns");
    let health: Value = serde_json::from_str(&server.request("GET", "/health", "").1).unwrap();
    let operations = health["npu"].as_array().unwrap();
    assert_eq!(operations.len(), 2, "{health}");
    assert!(operations.iter().all(|operation| operation["uses_npu"] == true), "{health}");
    server.signal("-TERM");
    server.wait();
    let calls = fs::read_to_string(&log).unwrap();
    assert!(calls.ends_with("closed\n") && !calls.contains("leak"), "{calls}");
    assert_eq!((count(&log, "VERSION"), count(&log, "CREATE_HWCTX")), (2, 2));
}

#[test]
fn attention_is_refused_where_logits_are_reproducible() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    let mut command = serve(&["--npu", "attention", "--reproducible"]);
    let server = Served::start(with_npu(&mut command, &log));
    let health: Value = serde_json::from_str(&server.request("GET", "/health", "").1).unwrap();
    let reason = "logits would depend on the batch, but they are to be reproducible";
    let operation = &health["npu"][0];
    assert_eq!((&operation["uses_npu"], &operation["reason"]), (&json!(false), &json!(reason)), "{health}");
    assert!(operation["name"].as_str().unwrap().starts_with("attention of "), "{health}");
    server.signal("-TERM");
    let (_, errors) = server.wait();
    assert!(errors.contains("the NPU is not used") && errors.contains(reason), "{errors}");
    assert!(!log.exists(), "the NPU was not opened");
}

#[test]
fn what_cannot_be_run_says_why_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let selftest = |arguments: &[&str]| {
        let mut command = indrik(&["npu", "selftest"]);
        let output = command.args(arguments).env("INDRIK_OVERLAYS_DIR", folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let text = stdout(&output);
        assert!(text.ends_with("self-test did not run\n"), "{arguments:?}: {text}");
        assert!(!text.contains("ran on"), "{arguments:?}: {text}");
        text
    };
    assert!(selftest(&["--simulate"]).contains("`indrik npu pull` downloads them"));
    let other = folder.path().join("other.xclbin");
    fs::write(&other, "xclbin2").unwrap();
    let text = selftest(&["--simulate", "--overlay", other.to_str().unwrap()]);
    assert!(text.contains("not a known overlay") && text.contains(OVERLAY) && text.contains(AMD), "{text}");
    let text = selftest(&["--simulate", "--overlay", AMD]);
    assert!(text.contains(&format!("{AMD} is not there yet: `indrik npu pull {AMD}`")), "{text}");
    if let Some(amd) = amds_overlay() {
        // A folder with AMD's overlay alone.
        let alone = folder.path().join("amd.xclbin");
        fs::copy(&amd, &alone).unwrap();
        let alone = alone.to_str().unwrap();
        let text = selftest(&["--simulate", "--overlay", alone]);
        let missing = format!("needs AMD's stream: cannot read {}/{AMD_STREAM}.bin", folder.path().display());
        assert!(text.contains(&missing) && text.contains(&format!("`indrik npu pull {AMD}`")), "{text}");
        let text = selftest(&["--simulate", "--overlay", alone, "--stream", alone]);
        assert!(text.contains(&format!("cannot use {alone}: transaction stream")), "{text}");
        if let Some(rows) = data("mladf_a8w8acc32_8_2048_2048.bin") {
            let text = selftest(&["--simulate", "--overlay", alone, "--stream", rows.to_str().unwrap()]);
            assert!(text.contains("8_2048_2048.bin: instruction stream: it is AMD's for 8 rows"), "{text}");
        }
    }
    if let Some(overlay) = overlay() {
        let overlay = overlay.to_str().unwrap();
        let text = selftest(&["--simulate", "--overlay", overlay, "--stream", overlay]);
        assert!(text.contains("is for AMD's overlay only"), "{text}");
        let text = selftest(&["--node", "/dev/accel/none", "--overlay", overlay]);
        assert!(text.contains("cannot open /dev/accel/none") && text.contains("amdxdna"), "{text}");
        let text = selftest(&["--node", "/dev/null", "--overlay", overlay]);
        assert!(text.contains("VERSION failed"), "{text}");
    }
    if !Path::new("/dev/accel").exists() {
        let text = selftest(&[]);
        assert!(text.contains("--simulate runs products on the array model"), "{text}");
    }
}

#[test]
fn a_report_names_files_without_their_folders() {
    let folder = tempfile::tempdir().unwrap();
    let (file, report) = (folder.path().join("broken.xclbin"), folder.path().join("report.md"));
    fs::write(&file, "no overlay").unwrap();
    let mut command = indrik(&["npu", "selftest", "--simulate", "--overlay"]);
    let output = command.arg(&file).arg("--report").arg(&report).output().unwrap();
    assert!(!output.status.success());
    let printed = format!("{} is not a known overlay", file.display());
    assert!(stdout(&output).contains(&printed), "{}", stdout(&output));
    let report = fs::read_to_string(&report).unwrap();
    assert!(report.contains("broken.xclbin is not a known overlay"), "{report}");
    assert!(!report.contains(folder.path().to_str().unwrap()), "{report}");
}

#[test]
fn overlays_are_pulled_from_a_server() {
    let Some(file) = overlay() else { return };
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
    let expected = store::OVERLAYS.iter().find(|file| file.name == OVERLAY).unwrap();
    let path = expected.url("");
    server.put(&path, Page { body: Arc::new(fs::read(&file).unwrap()), ..Page::default() });
    let command = |arguments: &[&str]| -> Command {
        let mut command = indrik(&[&["npu"], arguments].concat());
        command.env("INDRIK_OVERLAYS_DIR", folder.path()).env("INDRIK_OVERLAY_SOURCE", &server.url);
        command
    };
    let output = command(&["pull", OVERLAY]).output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("pulled, SHA-256 verified"), "{}", stdout(&output));
    assert!(
        stderr(&output).contains("Licence: MIT") && stderr(&output).contains(&server.url),
        "{}",
        stderr(&output)
    );
    let result = json(&command(&["pull", OVERLAY, "--json"]).output().unwrap());
    assert_eq!(
        (&result["overlays"][0]["pulled"], &result["overlays"][0]["name"]),
        (&json!(false), &json!(OVERLAY))
    );
    assert_eq!(server.requests(&path).len(), 1, "it is there");
    // What was pulled is what the self-test takes.
    let result = json(&command(&["selftest", "--simulate", "--json"]).output().unwrap());
    assert_eq!((&result["passed"], &result["overlay"]["name"]), (&json!(true), &json!(OVERLAY)));

    let output = command(&["pull", "gemm-512-4col"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("404 (not found)"), "{}", stderr(&output));
    let output = command(&["pull", "resnet"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let known = format!("known overlays: gemm-512-4col, {OVERLAY}, {AMD}");
    assert!(stderr(&output).contains(&known), "{}", stderr(&output));
}

#[test]
fn amds_overlay_is_pulled_with_its_stream_and_multiplies_on_the_array_model() {
    let Some(overlay) = amds_overlay() else { return };
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
    for file in store::OVERLAYS.iter().filter(|file| file.name == AMD) {
        let body = fs::read(file.file(overlay.parent().unwrap())).unwrap();
        server.put(&file.url(""), Page { body: Arc::new(body), ..Page::default() });
    }
    let command = |arguments: &[&str]| {
        let mut command = indrik(&[&["npu"], arguments].concat());
        command.env("INDRIK_OVERLAYS_DIR", folder.path()).env("INDRIK_OVERLAY_SOURCE", &server.url);
        command.output().unwrap()
    };
    let output = command(&["pull", AMD]);
    let (text, log) = (stdout(&output), stderr(&output));
    assert!(output.status.success() && text.matches("pulled, SHA-256 verified").count() == 2, "{text}{log}");
    let commit = "amd/RyzenAI-SW/2a3c4afe88a7deabd06c7eecd2ad273091e0ce2e/example/transformers/";
    assert!(log.contains("Licence: MIT") && log.contains(&format!("{}/{commit}", server.url)), "{log}");

    let output = command(&["selftest", "--simulate", "--overlay", AMD]);
    let text = stdout(&output);
    assert!(output.status.success() && text.ends_with("self-test passed\n"), "{text}{}", stderr(&output));
    assert!(text.contains(&format!("overlay     {AMD}, SHA-256 b01a231c")), "{text}");
    assert!(text.contains(&format!("stream      {AMD_STREAM}, SHA-256 698b8402")), "{text}");
    assert!(text.contains("32 × 2048 × 2048: 65,536 elements compared, exact\n"), "{text}");
    // It is the only one that is there. Its stream may be elsewhere.
    let elsewhere = folder.path().join("stream");
    fs::rename(folder.path().join(AMD_STREAM).with_extension("bin"), &elsewhere).unwrap();
    assert_eq!(command(&["selftest", "--simulate"]).status.code(), Some(1));
    let output = command(&[
        "selftest",
        "--simulate",
        "--json",
        "--overlay",
        AMD,
        "--stream",
        elsewhere.to_str().unwrap(),
    ]);
    let result = json(&output);
    assert_eq!((&result["passed"], &result["stream"]["name"]), (&json!(true), &json!(AMD_STREAM)));
}
