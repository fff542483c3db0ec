//! `indrik npu selftest`: exact products on the NPU, compared with the CPU.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use gpu::format_bytes;
use npu::{
    gemm::{AmdGemm, Int8, Overlay},
    runtime::{Device, DriverFacts, LinuxIo},
    selftest::{self, Outcome, Product, Subject},
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
    indrik npu selftest --report\n          indrik npu selftest --overlay int8\n          \
    indrik npu selftest --overlay mladf_gemm_4x4_a8w8acc32\n\n\
    Not yet run on hardware by us: a report shows whether it works. Exit code 0 if every product is right, 1 \
    otherwise.")]
pub struct Arguments {
    /// The overlay: `int8`, which is our own, the name of one that was pulled, or an .xclbin that is known by its SHA-256
    /// (default: the first one of `indrik npu pull`)
    #[arg(long, value_name = "NAME|FILE")]
    overlay: Option<PathBuf>,
    /// AMD's stream for AMD's overlay (default: mladf_a8w8acc32_32_2048_2048.bin in the overlay's folder); streams for
    /// other overlays are generated
    #[arg(long, value_name = "FILE", requires = "overlay")]
    stream: Option<PathBuf>,
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
    subject: Option<Subject>,
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
        subject: None,
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
        let text = without_folders(text, arguments);
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
        let (subject, file) = subject(arguments.overlay.as_deref(), arguments.stream.as_deref())?;
        let subject = &*self.subject.insert(subject);
        let partition = Xclbin::decode(&file)?.partition()?;
        let image = &partition.pdis.first().context("the overlay has no PDI; pull it again")?.image;
        let products = &mut self.products;
        let mut report = |product: &Product| products.push(product.clone());
        let outcome = match node {
            None => selftest::on_model(subject, image, &mut report)?,
            Some(node) => {
                let io = LinuxIo::open(&node)?;
                self.driver = Some(DriverFacts::query(&io)?);
                selftest::on_device(&Device::open(io)?, subject, image, TIMEOUT, &mut report)?
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
        usable_node(self.facts.as_ref().map(|facts| &facts.xdna))
            .map_err(|reason| anyhow::anyhow!("{reason}; --simulate runs products on the array model"))
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
        if let Some(subject) = &self.subject {
            text += &format!("overlay     {}, SHA-256 {}\n", subject.name(), hex(&subject.file()));
            if let Subject::Amd(_) = subject {
                text += &format!(
                    "stream      {}, SHA-256 {}\n",
                    AmdGemm::STREAM_NAME,
                    hex(&AmdGemm::STREAM_FILE)
                );
            }
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
            "overlay": self.subject.as_ref().map(|subject| json!({
                "name": subject.name(), "sha256": hex(&subject.file()),
            })),
            "stream": matches!(self.subject, Some(Subject::Amd(_))).then(|| json!({
                "name": AmdGemm::STREAM_NAME, "sha256": hex(&AmdGemm::STREAM_FILE),
            })),
            "products": products,
            "dispatch_microseconds": dispatch.map(|(shortest, median)| json!({
                "shortest": shortest.as_secs_f64() * 1e6, "median": median.as_secs_f64() * 1e6,
            })),
            "driver": self.driver.as_ref().map(driver_json),
            "npu": self.facts.as_ref().map(NpuFacts::json),
        })
    }
}

/// The text without the folders of files, which may have the user's name: an error says which file it is about.
fn without_folders(text: String, arguments: &Arguments) -> String {
    let given = [&arguments.overlay, &arguments.stream].into_iter().flatten();
    let given = given.filter_map(|file| file.parent().map(Path::to_path_buf));
    let folders = given.chain(store::overlay_folder().ok()).filter(|folder| folder != Path::new(""));
    folders.fold(text, |text, folder| text.replace(&format!("{}/", folder.display()), ""))
}

/// What to test, and the overlay's file.
fn subject(overlay: Option<&Path>, stream: Option<&Path>) -> anyhow::Result<(Subject, Vec<u8>)> {
    if overlay == Some(Path::new(Int8::NAME)) && stream.is_none() {
        return Ok((Subject::Generated(Int8::WHOLE.overlay()?), Int8::WHOLE.xclbin()?));
    }
    let path = overlay_path(overlay)?;
    let file = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if AmdGemm::is_overlay(&file) {
        let beside = || path.with_file_name(format!("{}.bin", AmdGemm::STREAM_NAME));
        let stream = stream.map_or_else(beside, Path::to_path_buf);
        let bytes = fs::read(&stream).with_context(|| {
            let (stream, name) = (stream.display(), AmdGemm::NAME);
            format!("AMD's overlay needs AMD's stream: cannot read {stream}; `indrik npu pull {name}` downloads both")
        })?;
        let gemm = AmdGemm::new(&bytes).with_context(|| format!("cannot use {}", stream.display()))?;
        return Ok((Subject::Amd(gemm), file));
    }
    if let Some(stream) = stream {
        bail!("{} is for AMD's overlay only: streams for others are generated", stream.display());
    }
    let overlay = Overlay::of(&file).with_context(|| {
        let names: Vec<&str> = Overlay::KNOWN.iter().map(|overlay| overlay.name).collect();
        let (path, names, amd) = (path.display(), names.join(", "), AmdGemm::NAME);
        format!("{path} is not a known overlay, by its SHA-256; known: {names}, {amd}")
    })?;
    Ok((Subject::Generated(overlay.clone()), file))
}

/// The file of an overlay: by its name if it was pulled, or the first one that was.
fn overlay_path(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let mut overlays = OVERLAYS.iter().filter(|file| file.is_xclbin());
    let Some(given) = given else {
        let folder = store::overlay_folder()?;
        let Some(overlay) = overlays.find(|overlay| overlay.is_present(&folder)) else {
            let bytes = format_bytes(OVERLAYS.iter().map(|file| file.bytes).sum());
            bail!(
                "there is no overlay yet: `indrik npu pull` downloads them ({bytes}); --overlay int8 needs none"
            );
        };
        return Ok(overlay.file(&folder));
    };
    let Some(overlay) = overlays.find(|overlay| given == Path::new(overlay.name)) else {
        return Ok(given.to_path_buf());
    };
    let folder = store::overlay_folder()?;
    if !overlay.is_present(&folder) {
        bail!("{0} is not there yet: `indrik npu pull {0}` downloads it", overlay.name);
    }
    Ok(overlay.file(&folder))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_pulled_can_be_tested() {
        let mut known: Vec<(&str, String)> =
            Overlay::KNOWN.iter().map(|overlay| (overlay.name, hex(&overlay.file))).collect();
        known.extend([AmdGemm::FILE, AmdGemm::STREAM_FILE].map(|hash| (AmdGemm::NAME, hex(&hash))));
        let mut pulled: Vec<(&str, String)> =
            OVERLAYS.iter().map(|file| (file.name, file.sha256.to_owned())).collect();
        known.sort();
        pulled.sort();
        assert_eq!(known, pulled);
        let stream = OVERLAYS.iter().find(|file| !file.is_xclbin()).unwrap();
        assert_eq!(stream.file(Path::new("")), Path::new(AmdGemm::STREAM_NAME).with_extension("bin"));
    }
}
