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
    Overlays are files of their authors, under their licences, which are shown. They go to INDRIK_OVERLAYS_DIR, or \
    ~/.local/share/indrik/overlays, and come from GitHub or from the server in INDRIK_OVERLAY_SOURCE. HTTPS_PROXY, \
    ALL_PROXY and SSL_CERT_FILE are respected.")]
pub struct Arguments {
    /// Only these overlays (default: all)
    #[arg(value_name = "NAME", value_parser = overlay)]
    names: Vec<&'static OverlayFile>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses an overlay's name.
fn overlay(name: &str) -> Result<&'static OverlayFile, String> {
    OVERLAYS.iter().find(|overlay| overlay.name == name).ok_or_else(|| {
        let names: Vec<&str> = OVERLAYS.iter().map(|overlay| overlay.name).collect();
        format!("known overlays: {}", names.join(", "))
    })
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (folder, source) = (store::overlay_folder()?, store::overlay_source());
    let settings = Settings::from_environment();
    let control = output::control();
    let options = PullOptions { settings: &settings, verify: false, cancel: &control.cancel };
    let chosen: Vec<&OverlayFile> =
        if arguments.names.is_empty() { OVERLAYS.iter().collect() } else { arguments.names.clone() };
    let mut results = Vec::new();
    for overlay in chosen {
        let mut reporter = Reporter::new(overlay.name);
        let pulled = overlay.pull(&folder, &source, &options, &mut |event| reporter.report(event));
        drop(reporter);
        let pulled = pulled?;
        let path = overlay.file(&folder);
        if arguments.json {
            results.push(json!({
                "name": overlay.name, "title": overlay.title, "path": path, "bytes": overlay.bytes,
                "sha256": overlay.sha256, "repository": overlay.repository, "commit": overlay.commit,
                "licence": overlay.licence.name, "licence_url": overlay.licence.url, "pulled": pulled,
            }));
            continue;
        }
        let state = if pulled { "pulled" } else { "already there" };
        output::print(&format!(
            "{}: {}, {}, {state}, SHA-256 verified\n  {}\n",
            overlay.name,
            overlay.title,
            format_bytes(overlay.bytes),
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
