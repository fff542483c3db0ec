//! Every kernel variant as RADV's null device compiles it, in docs/performance/rdna3.{csv,md}: nothing spills, products
//! use dot-product and matrix instructions, and the files are up to date.

use std::{collections::BTreeMap, path::Path, process::Output};

use crate::common::{indrik, json, stderr, stdout};

fn kernels(driver: &str, family: &str, arguments: &[&str]) -> Output {
    indrik(&[&["kernels"], arguments].concat())
        .env("RADV_FORCE_FAMILY", family)
        .env("VK_DRIVER_FILES", driver)
        .env("VK_ICD_FILENAMES", driver)
        .output()
        .unwrap()
}

/// The families of rdna3.csv, in the order of a cell with two values.
const FAMILIES: [&str; 2] = ["phoenix", "gfx1151"];

/// Compiling everything takes minutes, and the result depends on nothing but the driver, the shaders and their
/// constants: those are compared instead. Kernels with few variants are compiled.
#[test]
fn documented_variants_are_those_of_the_code() {
    let Some(driver) = testkit::radv_driver() else { return };
    for (index, family) in FAMILIES.into_iter().enumerate() {
        let listed = json(&kernels(&driver, family, &["--list", "--json"]));
        let listed: Vec<[String; 3]> = listed["programs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|program| {
                ["kernel", "shader", "fingerprint"].map(|key| program[key].as_str().unwrap().to_string())
            })
            .collect();
        let documented: Vec<[String; 3]> = rows(index)
            .iter()
            .map(|row| ["kernel", "shader", "fingerprint"].map(|column| row[column].clone()))
            .collect();
        let difference = listed.iter().zip(&documented).find(|(listed, documented)| listed != documented);
        assert!(
            difference.is_none() && listed.len() == documented.len(),
            "rdna3.csv is out of date for {family}: run `make rdna3`; {difference:?}"
        );
    }
    for kernel in ["norm", "rope", "router", "softcap"] {
        compare_with_documentation(&driver, 0, Some(kernel));
    }
}

#[test]
#[ignore = "minutes: `make soak` runs it"]
fn everything_compiles_as_documented() {
    let Some(driver) = testkit::radv_driver() else { return };
    (0..FAMILIES.len()).for_each(|index| compare_with_documentation(&driver, index, None));
}

#[test]
fn nothing_spills_and_products_use_matrix_and_dot_instructions() {
    for (index, family) in FAMILIES.into_iter().enumerate() {
        let rows = rows(index);
        assert!(rows.len() > 2000, "{family}: only {} variants", rows.len());
        let (mut with_dot, mut with_wmma) = (0, 0);
        for row in rows {
            let name = format!("{family}: {} {}", row["shader"], row["variant"]);
            let number = |column: &str| row[column].parse::<u64>().unwrap();
            for column in ["spilled_vgprs", "spilled_sgprs", "scratch_bytes"] {
                assert_eq!(number(column), 0, "{name}: {column}");
            }
            if row["shader"] == "gemv.t1" && row["variant"].contains("xint8") {
                assert!(number("v_dot4") >= 16, "{name} has no v_dot4");
                with_dot += 1;
            }
            let matmul = row["kernel"] == "coopmat" && !row["shader"].contains("fragments");
            if row["kernel"] == "attention_flash" || matmul {
                let products = number("v_wmma");
                // The smallest tile makes two products per K-step, and the loop is unrolled four times.
                assert!(products >= 8, "{name} has {products} v_wmma");
                with_wmma += 1;
            }
            if row["kernel"] == "gemv" {
                assert!(number("loads_16_bytes") >= 2, "{name}: narrow loads");
            }
        }
        assert!(with_wmma >= 80, "{family}: only {with_wmma} variants use v_wmma");
        assert!(with_dot >= 16, "{family}: only {with_dot} variants use v_dot4");
    }
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

/// The rows of rdna3.csv by column name, with the values of one family.
fn rows(family: usize) -> Vec<BTreeMap<String, String>> {
    let text = documentation("rdna3.csv");
    let (header, rows) = text.split_once('\n').unwrap();
    parse(header, rows.lines(), Some(family))
}

fn parse<'a>(
    header: &str,
    rows: impl Iterator<Item = &'a str>,
    family: Option<usize>,
) -> Vec<BTreeMap<String, String>> {
    // The first three cells are names, which may contain a slash.
    let value = |index: usize, cell: &str| match family {
        Some(family) if index >= 3 => cell.split('/').nth(family).unwrap_or(cell).to_string(),
        _ => cell.to_string(),
    };
    let columns: Vec<&str> = header.split(',').collect();
    let row = |row: &str| {
        let cells = row.split(',').enumerate().map(|(index, cell)| value(index, cell));
        columns.iter().map(|column| column.to_string()).zip(cells).collect()
    };
    rows.map(row).collect()
}

/// Compiles all variants, or one kernel's, for a family and compares with rdna3.csv.
fn compare_with_documentation(driver: &str, index: usize, kernel: Option<&str>) {
    let family = FAMILIES[index];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernels.csv");
    let mut arguments = vec!["--csv", file.to_str().unwrap()];
    arguments.extend(kernel.iter().flat_map(|kernel| ["--kernel", kernel]));
    let output = kernels(driver, family, &arguments);
    assert!(output.status.success(), "{family}: {}", stderr(&output));
    let csv = std::fs::read_to_string(file).unwrap();
    let mut lines = csv.lines();
    let driver = lines.next().unwrap().trim_start_matches("# ");
    assert!(driver.to_lowercase().contains(family), "{driver}");
    if !documentation("rdna3.md").contains(driver) {
        // Another version of Mesa compiles differently, for reasons outside this repository.
        eprintln!("rdna3.md was written with another driver than {driver}: not compared");
        return;
    }
    let compiled = parse(lines.next().unwrap(), lines, None);
    let mut documented = rows(index);
    documented.retain(|row| kernel.is_none_or(|kernel| row["kernel"] == kernel));
    let difference = compiled.iter().zip(&documented).find(|(compiled, documented)| compiled != documented);
    assert!(
        difference.is_none() && compiled.len() == documented.len(),
        "rdna3.csv is out of date for {family}: run `make rdna3`; {difference:?}"
    );
}
