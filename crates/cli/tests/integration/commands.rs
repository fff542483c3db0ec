//! Every command, run on Mesa's CPU driver.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
};

use crate::common::{indrik, json, stderr, stdout};

fn has_cpu_driver() -> bool {
    testkit::cpu_device().is_some()
}

#[test]
fn every_command_has_help_with_an_example() {
    let commands = [
        &["devices"][..],
        &["doctor"],
        &["inspect"],
        &["quantize"],
        &["bench"],
        &["kernels"],
        &["pull"],
        &["search"],
        &["import"],
        &["models"],
        &["rm"],
        &["generate"],
        &["embed"],
        &["chat"],
        &["eval", "logits"],
        &["eval", "perplexity"],
        &["npu", "pull"],
        &["npu", "selftest"],
        &["completions"],
        &["man"],
    ];
    // `chat` is interactive; the others write files for other programs.
    let without_json = [&["chat"][..], &["completions"], &["man"]];
    for command in commands {
        let output = indrik(&[command, &["--help"]].concat()).output().unwrap();
        assert!(output.status.success());
        assert!(stdout(&output).contains("Example"), "{command:?}: {}", stdout(&output));
        assert!(stdout(&output).contains("--json") != without_json.contains(&command), "{command:?}");
    }
}

#[test]
fn devices_reports_tiers_and_heaps() {
    if !has_cpu_driver() {
        return;
    }
    let output = indrik(&["devices", "--json"]).output().unwrap();
    let devices = json(&output)["devices"].as_array().unwrap().clone();
    let cpu = devices.iter().find(|device| device["kind"] == "cpu").expect("Mesa's CPU driver is listed");
    assert_eq!(cpu["tier"], "T1");
    assert_eq!(cpu["unified_memory"], true);
    assert!(cpu["heaps"][0]["size"].as_u64().unwrap() > 1 << 30);
    assert!(cpu["tiers"][2]["missing"][0].as_str().unwrap().contains("cooperative_matrix"));
    assert_eq!(devices.iter().filter(|device| device["chosen"] == true).count(), 1);
    let text = stdout(&indrik(&["devices"]).output().unwrap());
    assert!(text.contains("tier     T1") && text.contains("heap 0"), "{text}");
}

#[test]
fn selftest_passes_under_validation() {
    if !has_cpu_driver() {
        return;
    }
    // The cases of the other kernels run in the tests of `kernels`, also under validation.
    for (kernel, tiers, cases) in [
        ("norm", &["T0", "T1"][..], 10),
        ("gated", &["T0"], 10),
        ("random", &["T0"], 10),
        ("probe", &["T0"], 5),
    ] {
        let run =
            ["doctor", "--selftest", "--validation", "--device", "llvmpipe", "--json", "--kernel", kernel];
        // As on a GPU: the layer also reports objects that threads use without synchronisation.
        let output = indrik(&run).args(["--jobs", "4"]).output().unwrap();
        let result = json(&output);
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
        assert_eq!(result["healthy"], true);
        assert_eq!(result["selftest"]["failures"].as_array().unwrap().len(), 0);
        assert_eq!(result["selftest"]["validation_messages"].as_array().unwrap().len(), 0);
        let kernels = result["selftest"]["kernels"].as_array().unwrap();
        assert_eq!(kernels.len(), tiers.len(), "{kernels:?}");
        for (total, tier) in kernels.iter().zip(tiers) {
            assert!(total["kernel"] == kernel && total["tier"] == *tier, "{total}");
            assert!(
                total["cases"].as_u64().unwrap() >= cases && total["cases"] == total["passed"],
                "{total}"
            );
        }
    }
}

#[test]
fn selftest_fails_when_the_device_is_lost() {
    if !has_cpu_driver() {
        return;
    }
    let output = indrik(&["doctor", "--selftest", "--device", "llvmpipe", "--kernel", "norm"])
        .env("INDRIK_FAULT", "device-lost@5")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("self-test FAILED"), "{}", stdout(&output));
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}

#[test]
fn selftest_reports_a_failed_case_and_runs_the_others() {
    if !has_cpu_driver() {
        return;
    }
    let selftest = ["doctor", "--selftest", "--device", "llvmpipe", "--kernel", "random"];
    let run = |more: &[&str]| {
        indrik(&[&selftest, more].concat()).env("INDRIK_FAULT", "allocation@3").output().unwrap()
    };
    let output = run(&["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let results = &json(&output)["selftest"];
    assert_eq!(results["failures"].as_array().unwrap().len(), 1, "{results}");
    let (cases, passed) = (&results["kernels"][0]["cases"], &results["kernels"][0]["passed"]);
    assert_eq!(cases.as_u64().unwrap(), passed.as_u64().unwrap() + 1, "{results}");
    assert_eq!((&results["not_run"], &results["interrupted"]), (&0.into(), &false.into()));

    let output = run(&[]);
    let text = stdout(&output);
    let at = |line: String| text.find(&line).unwrap_or_else(|| panic!("no {line:?}: {text}"));
    let failure = at("\nFAIL  random ".into());
    let total = at(format!("\nFAIL  random           T0: {passed} of {cases} cases passed"));
    let summary = at(format!("\nself-test FAILED: {passed} cases passed, 1 failed, in "));
    assert!(failure < total && total < summary, "{text}");
}

/// A self-test of two kernels that is interrupted once the line of the first one has come through a pipe. The second
/// one has hundreds of cases.
fn interrupted_selftest(json: bool) -> (Option<i32>, String, String) {
    let kernels = ["--kernel", "gated", "--kernel", "gemm"];
    let mut child = indrik(&["doctor", "--selftest", "--device", "llvmpipe"])
        .args(kernels)
        .args(json.then_some("--json"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut out, mut err) =
        (BufReader::new(child.stdout.take().unwrap()), BufReader::new(child.stderr.take().unwrap()));
    let lines: &mut dyn BufRead = if json { &mut err } else { &mut out };
    let mut seen = String::new();
    while !seen.lines().any(|line| line.starts_with("ok    gated ")) {
        assert!(lines.read_line(&mut seen).unwrap() > 0, "the self-test ended: {seen}");
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let (mut stdout, mut stderr) = if json { (String::new(), seen) } else { (seen, String::new()) };
    out.read_to_string(&mut stdout).unwrap();
    err.read_to_string(&mut stderr).unwrap();
    (child.wait().unwrap().code(), stdout, stderr)
}

#[test]
fn ctrl_c_ends_the_selftest_with_a_summary_of_what_ran() {
    if !has_cpu_driver() {
        return;
    }
    let (code, text, error) = interrupted_selftest(false);
    assert_eq!(code, Some(130), "{text}{error}");
    let summary = text.lines().last().unwrap();
    assert!(summary.starts_with("self-test interrupted: ") && summary.contains(" 0 failed, "), "{text}");
    assert!(summary.contains(" not run, in ") && !summary.contains(" 0 not run"), "{text}");

    let (code, text, error) = interrupted_selftest(true);
    assert_eq!(code, Some(130), "{text}{error}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["healthy"], &report["selftest"]["interrupted"]), (&false.into(), &true.into()));
    assert!(report["selftest"]["not_run"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["selftest"]["kernels"][0]["kernel"], "gated");
    assert_eq!(report["selftest"]["failures"], serde_json::json!([]));
}

#[test]
fn doctor_reports_the_state_of_tuning() {
    if !has_cpu_driver() {
        return;
    }
    let output = indrik(&["doctor", "--device", "llvmpipe", "--json"]).output().unwrap();
    let result = json(&output);
    let findings = result["findings"].as_array().unwrap();
    let tuning = findings.iter().find(|finding| finding["about"] == "tuning").unwrap();
    assert!(tuning["text"].as_str().unwrap().contains("CPU driver"), "{tuning}");
}

#[test]
fn a_report_has_no_secrets() {
    if !has_cpu_driver() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("report.md");
    let output = indrik(&["doctor", "--device", "llvmpipe", "--report", file.to_str().unwrap()])
        .envs([("HF_TOKEN", "hf_secret"), ("INDRIK_API_KEY", "sk-secret"), ("VK_LAYER_PATH", "/secret")])
        .env("HOME", home.path())
        .env("INDRIK_CACHE_DIR", home.path().join("cache"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report = std::fs::read_to_string(&file).unwrap();
    for expected in
        ["## Findings", "## Machine", "## Vulkan devices", "llvmpipe", "INDRIK_API_KEY", "~/cache"]
    {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for secret in ["secret", "HF_TOKEN", home.path().to_str().unwrap()] {
        assert!(!report.contains(secret), "{secret}: {report}");
    }
    // A host name like "gpu" or "(none)" would be found in any report.
    if host.trim().len() > 8 {
        assert!(!report.contains(host.trim()), "{host}: {report}");
    }

    let output = indrik(&["doctor", "--device", "llvmpipe", "--report", "/proc/report.md"]).output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("cannot write /proc/report.md"), "{}", stderr(&output));
}

/// What `bench --gemv` prints. It refuses figures above the bandwidth, which was measured too low if the machine was
/// busy at that moment: another measurement then.
fn measure_gemv(arguments: &[&str]) -> serde_json::Value {
    loop {
        let output = indrik(arguments).output().unwrap();
        if !stderr(&output).contains("of the measured bandwidth is impossible") {
            return json(&output);
        }
    }
}

#[test]
fn bench_measures_bandwidth_and_gemv() {
    if !has_cpu_driver() {
        return;
    }
    let output = indrik(&["bench", "--bandwidth", "--size", "16M", "--device", "llvmpipe", "--json"])
        .output()
        .unwrap();
    let measured = &json(&output)["bandwidth"];
    assert!(measured["read_bytes_per_s"].as_f64().unwrap() > 1e8);
    assert!(measured["dispatch_ns"].as_f64().unwrap() > 0.0);
    assert!(measured["dependent_dispatch_ns"].as_f64().unwrap() > 0.0);
    assert!(measured["sizes"].as_array().unwrap().len() >= 2);

    let arguments =
        ["bench", "--gemv", "512x1152", "-b", "1,3", "--device", "llvmpipe", "--json", "--size", "64M"];
    let result = measure_gemv(&arguments);
    let figures = result["gemv"].as_array().unwrap();
    assert_eq!(figures.len(), 12, "two schemes, three activations, two batches");
    assert_eq!(figures[0]["bytes"], 512 * 1152 + 512 * 1152 / 32 * 2);
    for figure in figures {
        assert!(figure["bandwidth_percent"].as_f64().unwrap() > 0.0);
        assert!(figure["microseconds"].as_f64().unwrap() > 0.0);
    }

    let arguments =
        ["bench", "--gemv", "64x256", "--quant", "int8,bf16", "-b", "8,9", "--device", "llvmpipe"];
    let result = measure_gemv(&[&arguments[..], &["--size", "1M", "--json"]].concat());
    let figures = result["gemv"].as_array().unwrap();
    let variant = |figure: &serde_json::Value| {
        figure["variant"].as_str().unwrap().split(' ').next().unwrap().to_owned()
    };
    let variants: Vec<String> = figures.iter().map(variant).collect();
    assert_eq!(
        variants,
        ["gemv", "gemv", "gemm", "gemv", "gemm", "gemv", "gemm"],
        "int8 activations only for int8 weights and 8 columns, int16 ones only for int8 weights"
    );
    assert!(figures.iter().all(|figure| figure["gmac_per_s"].as_f64().unwrap() > 0.0));
}
