//! AMD's NPU: facts of the system and of the driver, what keeps programs from using it, and `--npu`.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::ValueEnum;
use indrik::{NpuMode, NpuSettings};
use npu::runtime::{DriverFacts, LinuxIo};
use serde::Deserialize;
use serde_json::{Value, json};
use telemetry::{Access, NpuGeneration, System, Xdna};

/// Environment variable with the device node of the NPU.
const NODE_VARIABLE: &str = "INDRIK_NPU_NODE";

/// `--npu`: what AMD's NPU computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum NpuUse {
    /// Nothing
    #[default]
    Off,
    /// Matrix products of embedding models and image encoders, if a self-test passes and they are faster there
    Auto,
    /// Matrix products of embedding models and image encoders, if a self-test passes
    Force,
    /// As force, and attention of prompts: experimental, expected to be slower than on the GPU
    Attention,
}

impl NpuUse {
    /// The settings of a process.
    pub fn settings(self) -> NpuSettings {
        let mode = match self {
            NpuUse::Off => NpuMode::Off,
            NpuUse::Auto => NpuMode::Auto,
            NpuUse::Force | NpuUse::Attention => NpuMode::Force,
        };
        let settings = NpuSettings::on_node(mode, node);
        if self == NpuUse::Attention { settings.with_attention() } else { settings }
    }
}

impl fmt::Display for NpuUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NpuUse::Off => "off",
            NpuUse::Auto => "auto",
            NpuUse::Force => "force",
            NpuUse::Attention => "attention",
        })
    }
}

impl FromStr for NpuUse {
    type Err = String;

    fn from_str(text: &str) -> Result<NpuUse, String> {
        <NpuUse as ValueEnum>::from_str(text, false)
    }
}

/// The device node of the NPU for `--npu`, or why none can be used.
fn node() -> Result<PathBuf, String> {
    if let Some(node) = std::env::var_os(NODE_VARIABLE) {
        return Ok(node.into());
    }
    usable_node(System::new().xdna().as_ref())
}

/// The device node of an XDNA1 NPU, which the overlays are for, or why none can be used.
pub fn usable_node(xdna: Option<&Xdna>) -> Result<PathBuf, String> {
    let xdna = xdna.ok_or("no AMD NPU was found on this machine")?;
    if xdna.generation == Some(NpuGeneration::Xdna2) {
        return Err(format!("the known overlays are for XDNA1: {}", NpuGeneration::Xdna2.verdict()));
    }
    let obstacle = xdna.obstacles().first().map(|obstacle| {
        let fix = obstacle.fix().map_or(String::new(), |fix| format!(" ({fix})"));
        format!("the NPU cannot be used: {obstacle}{fix}")
    });
    match &xdna.npu {
        Some(npu) => Ok(npu.node.path.clone()),
        None => Err(obstacle.unwrap_or_else(|| "the NPU cannot be used: it has no device node".to_string())),
    }
}

/// What is known about AMD's NPU.
pub struct NpuFacts {
    /// From the system's files.
    pub xdna: Xdna,
    /// From the driver, if its node could be opened.
    pub driver: Option<DriverFacts>,
}

impl NpuFacts {
    /// AMD's NPU; `None` if there is no sign of one. Asks the driver, which wakes the NPU.
    pub fn of(system: &System) -> Option<Self> {
        let xdna = system.xdna()?;
        let driver = xdna.npu.as_ref().filter(|npu| npu.node.access == Access::ReadWrite);
        let driver = driver.and_then(|npu| ask(&npu.node.path));
        Some(Self { xdna, driver })
    }

    /// One line: generation, node, driver, firmware, array, clocks.
    pub fn text(&self) -> String {
        let Self { xdna, driver } = self;
        let mut parts = vec![xdna.generation.map_or("none", |generation| generation.name()).to_string()];
        if let Some(npu) = &xdna.npu {
            let model = npu.model.as_ref().map_or(String::new(), |model| format!(" ({model})"));
            parts[0] += &format!("{model}, {}", npu.node.path.display());
            parts.push(format!("driver {}", npu.driver.as_deref().unwrap_or("unknown")));
            if let Some(version) = xdna.module.as_ref().and_then(|module| module.version.as_ref()) {
                parts.push(format!("build {version}"));
            }
            parts.push(format!("firmware {}", npu.firmware.as_deref().unwrap_or("unknown")));
        }
        parts.extend(driver.iter().flat_map(driver_parts));
        parts.join(", ")
    }

    /// What it is good for.
    pub fn verdict(&self) -> &'static str {
        match self.xdna.generation {
            Some(generation) => generation.verdict(),
            None => "nothing is lost for Indrik, which uses the GPU",
        }
    }

    /// Everything that is known.
    pub fn json(&self) -> Value {
        let obstacles: Vec<Value> = self
            .xdna
            .obstacles()
            .iter()
            .map(|obstacle| {
                let mut value = serde_json::to_value(obstacle).unwrap_or_default();
                value["text"] = json!(obstacle.to_string());
                value["fix"] = json!(obstacle.fix());
                value
            })
            .collect();
        json!({
            "facts": self.xdna,
            "driver": self.driver.as_ref().map(driver_json),
            "obstacles": obstacles,
            "verdict": self.verdict(),
        })
    }
}

/// The driver's facts; `None` if it does not answer.
fn ask(node: &Path) -> Option<DriverFacts> {
    let facts = LinuxIo::open(node).and_then(|io| DriverFacts::query(&io));
    facts.inspect_err(|error| tracing::debug!("{}: {error}", node.display())).ok()
}

/// The driver's facts, for a line.
pub fn driver_parts(driver: &DriverFacts) -> Vec<String> {
    let (major, minor) = driver.version;
    let mut parts = vec![
        format!("interface {major}.{minor}"),
        format!("{} columns of {} cores", driver.array.cols, driver.array.core.row_count),
    ];
    parts.extend(driver.clocks.iter().map(|clock| format!("{} {} MHz", clock.name, clock.mhz)));
    parts.extend(driver.power_mode.map(|mode| format!("power mode {mode}")));
    parts.extend(driver.watts.map(|watts| format!("{watts:.1} W")));
    parts
}

/// The driver's facts as JSON.
pub fn driver_json(driver: &DriverFacts) -> Value {
    let clocks: Vec<Value> =
        driver.clocks.iter().map(|clock| json!({ "name": clock.name, "mhz": clock.mhz })).collect();
    json!({
        "interface": format!("{}.{}", driver.version.0, driver.version.1),
        "firmware": firmware(driver),
        "columns": driver.array.cols,
        "rows": driver.array.rows,
        "core_rows": driver.array.core.row_count,
        "clocks": clocks,
        "power_mode": driver.power_mode,
        "power_watts": driver.watts,
    })
}

/// The firmware's version, as the driver reports it.
pub fn firmware(driver: &DriverFacts) -> Option<String> {
    Some(driver.firmware?.map(|number| number.to_string()).join("."))
}
