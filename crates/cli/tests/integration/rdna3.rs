//! Every kernel variant compiled by RADV's null device: nothing spills, products use dot-product and matrix
//! instructions, and docs/performance/rdna3.{csv,md} are up to date.

use std::{path::Path, process::Output};

use crate::common::{indrik, json, stderr, stdout};

fn kernels(driver: &str, family: &str, arguments: &[&str]) -> Output {
    indrik(&[&["kernels"], arguments].concat())
        .env("RADV_FORCE_FAMILY", family)
        .env("VK_DRIVER_FILES", driver)
        .env("VK_ICD_FILENAMES", driver)
        .output()
        .unwrap()
}

#[test]
fn phoenix_compiles_as_documented_without_spills() {
    check("phoenix", 0);
}

#[test]
#[ignore = "the compiler of phoenix, and minutes more: `make soak` runs it"]
fn gfx1151_compiles_as_documented_without_spills() {
    check("gfx1151", 1);
}

/// Checks spills, instructions and the documentation in one test, since compiling all variants takes minutes.
/// `index` is the family's position in a CSV cell with two values.
fn check(family: &str, index: usize) {
    let Some(driver) = testkit::radv_driver() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernels.csv");
    let output = kernels(&driver, family, &["--json", "--csv", file.to_str().unwrap()]);
    assert!(output.status.success(), "{family}: {}", stderr(&output));
    check_documentation(family, index, &std::fs::read_to_string(file).unwrap());
    let result = json(&output);
    assert!(result["device"].as_str().unwrap().to_lowercase().contains(family), "{}", result["device"]);
    let programs = result["programs"].as_array().unwrap();
    assert!(programs.len() > 40, "{family}: only {} variants", programs.len());
    let (mut with_dot, mut with_wmma) = (0, 0);
    for program in programs {
        let name = format!("{family}: {} {}", program["shader"], program["variant"]);
        for statistic in ["Spilled VGPRs", "Spilled SGPRs", "Scratch size"] {
            assert_eq!(program["statistics"][statistic].as_f64(), Some(0.0), "{name}: {statistic}");
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
            // The smallest tile makes two products per K-step, and the loop is unrolled four times.
            assert!(products >= 8, "{name} has {products} v_wmma");
            with_wmma += 1;
        }
        if program["kernel"] == "gemv" {
            assert!(program["instructions"]["16-byte loads"].as_u64().unwrap() >= 2, "{name}: narrow loads");
        }
    }
    assert!(with_wmma >= 80, "{family}: only {with_wmma} variants use v_wmma");
    assert!(with_dot >= 16, "{family}: only {with_dot} variants use v_dot4");
}

#[test]
fn packed_gemm_uses_dot_products_without_spills() {
    let Some(driver) = testkit::radv_driver() else { return };
    // navi23 is RDNA2, which has no matrix units.
    for family in ["navi23", "phoenix"] {
        let output = kernels(&driver, family, &["--kernel", "gemm", "--json"]);
        assert!(output.status.success(), "{family}: {}", stderr(&output));
        let result = json(&output);
        let programs = result["programs"].as_array().unwrap();
        let packed: Vec<_> =
            programs.iter().filter(|program| program["shader"] == "gemm_packed.t1").collect();
        assert!(packed.len() >= 12, "{family}: only {} variants", packed.len());
        for program in packed {
            let name = format!("{family}: {} {}", program["shader"], program["variant"]);
            for statistic in ["Spilled VGPRs", "Spilled SGPRs", "Scratch size"] {
                assert_eq!(program["statistics"][statistic].as_f64(), Some(0.0), "{name}: {statistic}");
            }
            assert!(program["instructions"]["v_dot4"].as_u64().unwrap() >= 64, "{name} has no v_dot4");
            assert!(program["instructions"]["16-byte loads"].as_u64().unwrap() >= 4, "{name}: narrow loads");
        }
    }
}

#[test]
fn the_documented_estimate_is_up_to_date() {
    let text = stdout(&indrik(&["kernels", "--estimate"]).output().unwrap());
    assert!(text.starts_with("ESTIMATE") && text.contains("gemma3-27b int8"), "{text}");
    assert!(documentation("rdna3.md").contains(&text), "rdna3.md is out of date: run `make rdna3`");
    let values = json(&indrik(&["kernels", "--estimate", "--json"]).output().unwrap());
    assert_eq!(values["measured"], false);
    assert_eq!(values["estimates"].as_array().unwrap().len(), 36, "eighteen model sizes in two schemes");
}

fn documentation(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance");
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Compares one family's CSV with its values in the documentation.
fn check_documentation(family: &str, index: usize, csv: &str) {
    let (driver, rows) = csv.split_once('\n').unwrap();
    if !documentation("rdna3.md").contains(driver.trim_start_matches("# ")) {
        // Another version of Mesa compiles differently, for reasons outside this repository.
        eprintln!("rdna3.md was written with another driver than {driver}: not compared");
        return;
    }
    let value = |cell: &str| cell.split('/').nth(index).unwrap_or(cell).to_string();
    let documented: Vec<String> = documentation("rdna3.csv")
        .lines()
        .map(|row| {
            let mut cells = row.split(',').map(str::to_string).collect::<Vec<_>>();
            // The first three cells are names, which may contain a slash.
            cells.iter_mut().skip(3).for_each(|cell| *cell = value(cell));
            cells.join(",")
        })
        .collect();
    let compiled: Vec<&str> = rows.lines().collect();
    let difference = compiled.iter().zip(&documented).find(|(compiled, documented)| *compiled != documented);
    assert!(
        difference.is_none() && compiled.len() == documented.len(),
        "rdna3.csv is out of date for {family}: run `make rdna3`; {difference:?}"
    );
}
