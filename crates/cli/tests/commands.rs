//! Every command, run on Mesa's CPU driver.

mod common;

use common::{indrik, json, stderr, stdout};

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
        &["chat"],
        &["eval", "logits"],
        &["eval", "perplexity"],
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
        let output = indrik(&run).output().unwrap();
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
    let result = json(&indrik(&arguments).output().unwrap());
    let figures = result["gemv"].as_array().unwrap();
    assert_eq!(figures.len(), 12, "two schemes, three activations, two batches");
    assert_eq!(figures[0]["bytes"], 512 * 1152 + 512 * 1152 / 32 * 2);
    for figure in figures {
        assert!(figure["bandwidth_percent"].as_f64().unwrap() > 0.0);
        assert!(figure["microseconds"].as_f64().unwrap() > 0.0);
    }

    let arguments =
        ["bench", "--gemv", "64x256", "--quant", "int8,bf16", "-b", "8,9", "--device", "llvmpipe"];
    let result = json(&indrik(&[&arguments[..], &["--size", "1M", "--json"]].concat()).output().unwrap());
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
