//! Every pipeline compiled for AMD GPUs that are not here: nothing spills, and the instructions meant are the ones used.

mod common;

use std::{path::Path, process::Output};

use common::{indrik, json, stderr, stdout};

fn kernels(driver: &str, family: &str, arguments: &[&str]) -> Output {
    indrik(&[&["kernels"], arguments].concat())
        .env("RADV_FORCE_FAMILY", family)
        .env("VK_DRIVER_FILES", driver)
        .env("VK_ICD_FILENAMES", driver)
        .output()
        .unwrap()
}

#[test]
fn phoenix_has_what_is_documented_and_meant() {
    check("phoenix");
}

#[test]
fn gfx1151_has_what_is_documented_and_meant() {
    check("gfx1151");
}

/// Nothing spills, products use the instructions meant for them, and the table in docs is what this compiler makes. At once, since all
/// programs take minutes to compile.
fn check(family: &str) {
    let Some(driver) = testkit::radv_driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("table.md");
    let output = kernels(&driver, family, &["--json", "--table", file.to_str().unwrap()]);
    assert!(output.status.success(), "{family}: {}", stderr(&output));
    documented(family, &std::fs::read_to_string(file).unwrap());
    let result = json(&output);
    assert!(result["device"].as_str().unwrap().to_lowercase().contains(family), "{}", result["device"]);
    let programs = result["programs"].as_array().unwrap();
    assert!(programs.len() > 40, "{family}: only {} programs", programs.len());
    let (mut with_dot, mut with_wmma) = (0, 0);
    for program in programs {
        let name = format!("{family}: {} {}", program["shader"], program["variant"]);
        for figure in ["Spilled VGPRs", "Spilled SGPRs", "Scratch size"] {
            assert_eq!(program["statistics"][figure].as_f64(), Some(0.0), "{name}: {figure}");
        }
        let variant = program["variant"].as_str().unwrap();
        if program["shader"] == "gemv.t1" && variant.contains("× int8") {
            assert!(program["instructions"]["v_dot4"].as_u64().unwrap() >= 16, "{name} has no v_dot4");
            with_dot += 1;
        }
        let matmul =
            program["kernel"] == "coopmat" && !program["shader"].as_str().unwrap().contains("fragments");
        if program["kernel"] == "attention_flash" || matmul {
            let products = program["instructions"]["v_wmma"].as_u64().unwrap();
            // The smallest tile of a subgroup makes two products a step, and a round of the loop has four.
            assert!(products >= 8, "{name} has {products} v_wmma");
            with_wmma += 1;
        }
        if program["kernel"] == "gemv" {
            assert!(program["instructions"]["16-byte loads"].as_u64().unwrap() >= 2, "{name}: narrow loads");
        }
    }
    assert!(with_wmma >= 80, "{family}: attention of six kinds, and products of seven schemes: {with_wmma}");
    assert!(with_dot >= 16, "{family}: two schemes at four column counts and several sizes are {with_dot}");
}

#[test]
fn packed_products_are_dot_products_where_there_are_no_matrix_units() {
    let Some(driver) = testkit::radv_driver() else { return };
    // RDNA2: where `gemm` multiplies int16 activations.
    for family in ["navi23", "phoenix"] {
        let output = kernels(&driver, family, &["--kernel", "gemm", "--json"]);
        assert!(output.status.success(), "{family}: {}", stderr(&output));
        let result = json(&output);
        let programs = result["programs"].as_array().unwrap();
        let packed: Vec<_> =
            programs.iter().filter(|program| program["shader"] == "gemm_packed.t1").collect();
        assert!(packed.len() >= 12, "{family}: four schemes and three epilogues are {}", packed.len());
        for program in packed {
            let name = format!("{family}: {} {}", program["shader"], program["variant"]);
            for figure in ["Spilled VGPRs", "Spilled SGPRs", "Scratch size"] {
                assert_eq!(program["statistics"][figure].as_f64(), Some(0.0), "{name}: {figure}");
            }
            assert!(program["instructions"]["v_dot4"].as_u64().unwrap() >= 64, "{name} has no v_dot4");
            assert!(program["instructions"]["16-byte loads"].as_u64().unwrap() >= 4, "{name}: narrow loads");
        }
    }
}

#[test]
fn the_estimate_in_docs_is_what_the_code_computes() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rdna3.md");
    let text = stdout(&indrik(&["kernels", "--estimate"]).output().unwrap());
    assert!(text.starts_with("ESTIMATE") && text.contains("gemma3-27b int8"), "{text}");
    assert!(
        std::fs::read_to_string(file).unwrap().contains(&text),
        "docs/rdna3.md is out of date: run `make rdna3`"
    );
    let values = json(&indrik(&["kernels", "--estimate", "--json"]).output().unwrap());
    assert_eq!(values["measured"], false);
    assert_eq!(values["estimates"].as_array().unwrap().len(), 22, "eleven sizes in two schemes");
}

fn documented(family: &str, table: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rdna3.md");
    let documented = std::fs::read_to_string(&file).unwrap();
    let (device, _) = table.split_once('\n').unwrap();
    if !documented.contains(device) {
        // Another version of Mesa schedules differently: its table would differ for reasons that are not ours.
        eprintln!("docs/rdna3.md was made with another driver than {device}: not compared");
        return;
    }
    assert!(documented.contains(table), "docs/rdna3.md is out of date for {family}: run `make rdna3`");
}
