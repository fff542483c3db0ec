//! `indrik npu pull`: downloads public overlays.

use std::process::ExitCode;

use clap::Args;
use gpu::format_bytes;
use serde_json::json;
use store::{OVERLAYS, OverlayFile, PullOptions, Settings};

use crate::{commands::pull::Reporter, output};

/// Download public overlays for the NPU, known by commit and SHA-256
#[derive(Args)]
#[command(after_help = "Examples: indrik npu pull\n          indrik npu pull gemm-256-1col --json\n\n\
    Overlays, and streams for them, are files of their authors, under their licences, which are shown. They go to INDRIK_OVERLAYS_DIR, or \
    ~/.local/share/indrik/overlays, and come from GitHub or from the server in INDRIK_OVERLAY_SOURCE. HTTPS_PROXY, \
    ALL_PROXY and SSL_CERT_FILE are respected.")]
pub struct Arguments {
    /// Only these overlays, with their streams (default: all)
    #[arg(value_name = "NAME", value_parser = overlay)]
    names: Vec<&'static str>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses an overlay's name.
fn overlay(name: &str) -> Result<&'static str, String> {
    let names: Vec<&str> = OVERLAYS.iter().filter(|file| file.is_xclbin()).map(|file| file.name).collect();
    let found = names.iter().find(|known| **known == name).copied();
    found.ok_or_else(|| format!("known overlays: {}", names.join(", ")))
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (folder, source) = (store::overlay_folder()?, store::overlay_source());
    let settings = Settings::from_environment();
    let control = output::control();
    let options = PullOptions { settings: &settings, verify: false, cancel: &control.cancel };
    let is_chosen = |file: &&OverlayFile| arguments.names.is_empty() || arguments.names.contains(&file.name);
    let mut results = Vec::new();
    for file in OVERLAYS.iter().filter(is_chosen) {
        let mut reporter = Reporter::new(file.name);
        let pulled = file.pull(&folder, &source, &options, &mut |event| reporter.report(event));
        drop(reporter);
        let pulled = pulled?;
        let path = file.file(&folder);
        if arguments.json {
            results.push(json!({
                "name": file.name, "title": file.title, "path": path, "bytes": file.bytes,
                "sha256": file.sha256, "repository": file.repository, "commit": file.commit,
                "licence": file.licence.name, "licence_url": file.licence.url, "pulled": pulled,
            }));
            continue;
        }
        let state = if pulled { "pulled" } else { "already there" };
        output::print(&format!(
            "{}: {}, {}, {state}, SHA-256 verified\n  {}\n",
            file.name,
            file.title,
            format_bytes(file.bytes),
            path.display()
        ))?;
    }
    if arguments.json {
        output::print_json(&json!({ "overlays": results }))?;
    } else {
        output::print("\nNext: indrik npu selftest\n")?;
    }
    Ok(ExitCode::SUCCESS)
}
