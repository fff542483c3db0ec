//! `indrik rm`: removes models from the local store.

use std::{
    io::{BufRead, IsTerminal},
    process::ExitCode,
};

use clap::Args;
use gpu::format_bytes;
use serde_json::{Value, json};
use store::{Error, Removal, Store, printable};

use crate::output;

/// Exit code for usage errors, the same as clap's.
const USAGE: u8 = 2;

/// Remove models from the local store
#[derive(Args)]
#[command(after_help = "Example: indrik rm smollm2\n\n\
    Removes the model's files, its record and its partial downloads. Nothing outside the store's folder is touched: if \
    the model is a symbolic link, only the link is removed. A model that is being pulled is not removed. `indrik models` \
    lists the models.")]
pub struct Arguments {
    /// Model names as listed by `indrik models`, aliases, or file names without the extension
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let store = Store::open_default()?;
    // Several names of one model count once.
    let mut found: Vec<Removal> = vec![];
    let mut failed: Vec<(String, Error)> = vec![];
    for name in &arguments.names {
        match store.plan_removal(name) {
            Ok(removal) if found.iter().all(|other| other.path != removal.path) => found.push(removal),
            Ok(_) => {}
            Err(error) => failed.push((name.clone(), error)),
        }
    }
    for (_, error) in &failed {
        note!("indrik: {error}");
    }
    if !found.is_empty() && !arguments.yes {
        if !std::io::stdin().is_terminal() {
            note!("indrik: nothing was removed: standard input is not a terminal; confirm with --yes");
            return Ok(ExitCode::from(USAGE));
        }
        if !confirm(&found)? {
            note!("Nothing was removed.");
            return Ok(ExitCode::FAILURE);
        }
    }
    let mut removed = vec![];
    for removal in found {
        match store.remove(&removal) {
            Ok(removal) => removed.push(removal),
            Err(error) => {
                note!("indrik: {error}");
                failed.push((removal.name, error));
            }
        }
    }
    report(arguments.json, &removed, &failed)?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn confirm(found: &[Removal]) -> anyhow::Result<bool> {
    for removal in found {
        let (name, path) = (printable(&removal.name), printable(removal.path.display()));
        note!("{name}: {}, {path}", format_bytes(removal.bytes));
    }
    note_part!("Remove {}? [y/N] ", if found.len() == 1 { "it" } else { "them" });
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn report(as_json: bool, removed: &[Removal], failed: &[(String, Error)]) -> anyhow::Result<()> {
    let total: u64 = removed.iter().map(|removal| removal.bytes).sum();
    if as_json {
        let deleted: Vec<Value> = removed
            .iter()
            .map(|removal| json!({ "name": removal.name, "paths": removal.paths, "bytes": removal.bytes }))
            .collect();
        let errors: Vec<Value> =
            failed.iter().map(|(name, error)| json!({ "name": name, "reason": error.to_string() })).collect();
        return output::print_json(&json!({ "removed": deleted, "failed": errors, "bytes": total }));
    }
    for removal in removed {
        let paths: String =
            removal.paths.iter().map(|path| format!("   {}\n", printable(path.display()))).collect();
        let name = printable(&removal.name);
        output::print(&format!("{name}: removed, {} freed\n{paths}", format_bytes(removal.bytes)))?;
    }
    if removed.len() > 1 {
        output::print(&format!("{} freed in total\n", format_bytes(total)))?;
    }
    Ok(())
}
