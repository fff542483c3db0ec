//! `indrik npu selftest`: exact products on the NPU, compared with the CPU.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use npu::{
    gemm::{Int8, Overlay},
    runtime::{Device, DriverFacts, LinuxIo},
    selftest::{self, Outcome, Product},
    xclbin::Xclbin,
};
use serde_json::{Value, json};
use store::OVERLAYS;
use telemetry::System;

use crate::{
    npu::{NpuFacts, driver_json, driver_parts, firmware, usable_node},
    output,
};

/// Maximum time of a command; one that takes longer is considered hung.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Multiply matrices on the NPU, compare them with the CPU, and measure
#[derive(Args)]
#[command(after_help = "Examples: indrik npu selftest\n          indrik npu selftest --simulate\n          \
    indrik npu selftest --report\n          indrik npu selftest --overlay int8\n\n\
    Not yet run on hardware by us: a report shows whether it works. Exit code 0 if every product is right, 1 \
    otherwise.")]
pub struct Arguments {
    /// The overlay: `int8`, which is our own, or an .xclbin that is known by its SHA-256 (default: the one of `indrik
    /// npu pull`)
    #[arg(long, value_name = "int8|FILE")]
    overlay: Option<PathBuf>,
    /// Run on the array model in software instead of an NPU; nothing is measured
    #[arg(long, conflicts_with = "node")]
    simulate: bool,
    /// The NPU's device node (default: AMD's NPU in /dev/accel)
    #[arg(long, value_name = "PATH")]
    node: Option<PathBuf>,
    /// Also write a report, without names of users or hosts, to attach to an issue
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "indrik-npu-report.md")]
    report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a run needs, and what came of it.
struct Run {
    facts: Option<NpuFacts>,
    driver: Option<DriverFacts>,
    overlay: Option<Overlay>,
    /// Products that were reported before an error.
    products: Vec<Product>,
    outcome: Option<Outcome>,
    error: Option<String>,
    /// Whether it ran on the array model.
    is_simulated: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut run = Run {
        facts: NpuFacts::of(&System::new()),
        driver: None,
        overlay: None,
        products: Vec::new(),
        outcome: None,
        error: None,
        is_simulated: arguments.simulate,
    };
    if let Err(error) = run.execute(arguments) {
        run.error = Some(format!("{error:#}"));
    }
    let text = run.text();
    if arguments.json {
        output::print_json(&run.json())?;
    } else {
        output::print(&text)?;
    }
    if let Some(file) = &arguments.report {
        let report =
            format!("# Indrik {}: self-test of the NPU\n\n```text\n{text}```\n", env!("CARGO_PKG_VERSION"));
        fs::write(file, report).with_context(|| format!("cannot write {}", file.display()))?;
        note!("Wrote {}. Read it before you publish it.", file.display());
    }
    Ok(if run.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Run {
    fn execute(&mut self, arguments: &Arguments) -> anyhow::Result<()> {
        let node = if arguments.simulate { None } else { Some(self.node(arguments.node.as_deref())?) };
        let (overlay, file) = overlay(arguments.overlay.as_deref())?;
        self.overlay = Some(overlay.clone());
        let partition = Xclbin::decode(&file)?.partition()?;
        let image = &partition.pdis.first().context("the overlay has no PDI; pull it again")?.image;
        let products = &mut self.products;
        let mut report = |product: &Product| products.push(product.clone());
        let outcome = match node {
            None => selftest::on_model(&overlay, image, &mut report)?,
            Some(node) => {
                let io = LinuxIo::open(&node)?;
                self.driver = Some(DriverFacts::query(&io)?);
                selftest::on_device(&Device::open(io)?, &overlay, image, TIMEOUT, &mut report)?
            }
        };
        self.outcome = Some(outcome);
        Ok(())
    }

    /// The node to open. Fails with what is in the way.
    fn node(&self, given: Option<&Path>) -> anyhow::Result<PathBuf> {
        if let Some(node) = given {
            return Ok(node.to_path_buf());
        }
        usable_node(self.facts.as_ref().map(|facts| &facts.xdna)).map_err(|reason| {
            anyhow::anyhow!("{reason}; --simulate runs the same products on the array model")
        })
    }

    fn passed(&self) -> bool {
        self.error.is_none() && self.outcome.as_ref().is_some_and(Outcome::passed)
    }

    fn text(&self) -> String {
        let mut text = format!("Indrik      {}\n", env!("CARGO_PKG_VERSION"));
        if let Some(facts) = &self.facts {
            let processor = facts.xdna.processor.as_deref().unwrap_or("unknown");
            let kernel = facts.xdna.kernel.as_deref().unwrap_or("unknown");
            text += &format!("processor   {processor}, Linux {kernel}\n");
            text += &format!("NPU         {}\n", facts.text());
            for obstacle in facts.xdna.obstacles() {
                text += &format!("obstacle    {obstacle}\n");
                text += &obstacle.fix().map_or(String::new(), |fix| format!("            → {fix}\n"));
            }
        }
        if let Some(driver) = &self.driver {
            let firmware = firmware(driver).unwrap_or_else(|| "unknown".to_string());
            text += &format!("driver      firmware {firmware}, {}\n", driver_parts(driver).join(", "));
        }
        if let Some(overlay) = &self.overlay {
            text += &format!("overlay     {}, SHA-256 {}\n", overlay.name, hex(&overlay.file));
        }
        match (self.products.is_empty(), self.is_simulated) {
            (true, _) => {}
            (false, true) => text += "ran on      the array model in software, not an NPU: no speed\n",
            (false, false) => text += "ran on      the NPU\n",
        }
        text.push('\n');
        for product in &self.products {
            text += &product_line(product);
        }
        if let Some((shortest, median)) = self.outcome.as_ref().and_then(|outcome| outcome.dispatch) {
            text += &format!(
                "dispatch    shortest {:.0} µs, median {:.0} µs\n",
                shortest.as_secs_f64() * 1e6,
                median.as_secs_f64() * 1e6
            );
        }
        if let Some(error) = &self.error {
            text += &format!("error       {error}\n");
        }
        let verdict = match (self.passed(), self.error.is_some(), self.products.is_empty()) {
            (true, ..) => "passed",
            (_, true, true) => "did not run",
            _ => "FAILED",
        };
        text + &format!("\nself-test {verdict}\n")
    }

    fn json(&self) -> Value {
        let products: Vec<Value> = self.products.iter().map(product_json).collect();
        let dispatch = self.outcome.as_ref().and_then(|outcome| outcome.dispatch);
        json!({
            "passed": self.passed(),
            "ran_on": (!self.products.is_empty()).then_some(if self.is_simulated { "simulator" } else { "npu" }),
            "error": self.error,
            "overlay": self.overlay.as_ref().map(|overlay| json!({ "name": overlay.name, "sha256": hex(&overlay.file) })),
            "products": products,
            "dispatch_microseconds": dispatch.map(|(shortest, median)| json!({
                "shortest": shortest.as_secs_f64() * 1e6, "median": median.as_secs_f64() * 1e6,
            })),
            "driver": self.driver.as_ref().map(driver_json),
            "npu": self.facts.as_ref().map(NpuFacts::json),
        })
    }
}

/// The overlay to use, and its file.
fn overlay(given: Option<&Path>) -> anyhow::Result<(Overlay, Vec<u8>)> {
    let path = match given {
        Some(name) if name == Path::new(Int8::NAME) => {
            return Ok((Int8::WHOLE.overlay()?, Int8::WHOLE.xclbin()?));
        }
        Some(path) => path.to_path_buf(),
        None => {
            let folder = store::overlay_folder()?;
            match OVERLAYS.iter().find(|overlay| overlay.is_present(&folder)) {
                Some(overlay) => overlay.file(&folder),
                None => bail!(
                    "there is no overlay yet: `indrik npu pull` downloads them (76 KiB); --overlay int8 needs none"
                ),
            }
        }
    };
    let file = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if let Some(reason) = Overlay::why_not(&file) {
        bail!("{} cannot be used: {reason}", path.display());
    }
    let overlay = Overlay::of(&file).with_context(|| {
        let names: Vec<&str> = Overlay::KNOWN.iter().map(|overlay| overlay.name).collect();
        format!("{} is not a known overlay, by its SHA-256; known: {}", path.display(), names.join(", "))
    })?;
    Ok((overlay.clone(), file))
}

fn product_line(product: &Product) -> String {
    let (m, k, n) = product.shape;
    let speed = match (product.shortest, product.gops()) {
        (Some(shortest), Some(gops)) => {
            format!(", {:.3} ms, {gops:.1} GOPS", shortest.as_secs_f64() * 1e3)
        }
        _ => String::new(),
    };
    let verdict = match product.first_wrong {
        None => "exact".to_string(),
        Some((row, column, found, right)) => {
            format!("{} WRONG, first C[{row}][{column}] = {found} instead of {right}", product.wrong)
        }
    };
    let compared = output::grouped(product.compared);
    format!("product     {m} × {k} × {n}: {compared} elements compared, {verdict}{speed}\n")
}

fn product_json(product: &Product) -> Value {
    let (m, k, n) = product.shape;
    json!({
        "m": m, "k": k, "n": n, "compared": product.compared, "wrong": product.wrong,
        "first_wrong": product.first_wrong.map(|(row, column, found, right)| json!({
            "row": row, "column": column, "found": found, "right": right,
        })),
        "shortest_milliseconds": product.shortest.map(|shortest| shortest.as_secs_f64() * 1e3),
        "gops": product.gops(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
