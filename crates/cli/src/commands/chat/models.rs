//! `/model`: lists the models of the store, and finds the one that the user means.

use gpu::format_bytes;
use store::{EntryKind, Store, StoreEntry, printable};

use crate::pick;

/// The store's models, one per line, with the current one marked.
pub fn list(current: &str) -> anyhow::Result<String> {
    let models = models()?;
    if models.is_empty() {
        return Ok(
            "No models in the store: `indrik pull NAME` adds one, `indrik search` lists names.\n".into()
        );
    }
    // By the file: a model has several names.
    let current = store::resolve_model(current).ok();
    let rows: Vec<(bool, String, String)> = models
        .iter()
        .map(|entry| {
            let is_current = current.as_ref() == Some(&entry.path);
            (is_current, printable(&entry.name), format_bytes(entry.bytes))
        })
        .collect();
    let width = rows.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or(0);
    let line = |((is_current, name, size), number): (&(bool, String, String), usize)| {
        let mark = if *is_current { '*' } else { ' ' };
        format!("{mark}{number:>3}  {name:width$}  {size}\n")
    };
    let lines: String = rows.iter().zip(1..).map(line).collect();
    Ok(lines + "/model NAME or /model NUMBER switches; the conversation stays.\n")
}

/// The model that an answer means: by number, name or unique beginning of a name in the store, or as `-m` takes it.
pub fn find(answer: &str) -> anyhow::Result<String> {
    let models = models()?;
    let names: Vec<&str> = models.iter().map(|entry| entry.name.as_str()).collect();
    Ok(pick::choose(&names, answer).unwrap_or(answer).to_owned())
}

fn models() -> anyhow::Result<Vec<StoreEntry>> {
    let mut models = Store::open_default()?.entries()?;
    models.retain(|entry| entry.kind == EntryKind::Model);
    Ok(models)
}
