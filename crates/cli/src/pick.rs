//! Choosing a model from the store when none was given.

use std::io::IsTerminal;

use anyhow::bail;
use gpu::format_bytes;
use rustyline::{DefaultEditor, error::ReadlineError};
use store::{EntryKind, Store, printable};

/// The only model in the store, or the one that the user picks from a list; `None` if they decline. Fails if
/// the store is empty, or if there is a choice but nobody to ask.
pub fn pick_model() -> anyhow::Result<Option<String>> {
    let mut models = Store::open_default()?.entries()?;
    models.retain(|entry| entry.kind == EntryKind::Model);
    if models.is_empty() {
        bail!("no model given and none in the store: try `indrik run smollm2`; `indrik search` lists more");
    }
    if let [only] = models.as_slice() {
        note!("{}, the only model in the store.", printable(&only.name));
        return Ok(Some(only.name.clone()));
    }
    let names: Vec<String> = models.iter().map(|entry| printable(&entry.name)).collect();
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        bail!("no model given: choose one with -m; in the store: {}", names.join(", "));
    }
    let sizes: Vec<String> = models.iter().map(|entry| format_bytes(entry.bytes)).collect();
    note_part!("{}", list(&names, &sizes));
    let names: Vec<&str> = models.iter().map(|entry| entry.name.as_str()).collect();
    let mut editor = DefaultEditor::new()?;
    loop {
        match editor.readline("model, by number or name: ") {
            Ok(answer) => match choose(&names, &answer) {
                Some(name) => return Ok(Some(name.to_string())),
                None => note!("Not in the list. Ctrl-D quits."),
            },
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// One line per model, numbered from 1.
fn list(names: &[String], sizes: &[String]) -> String {
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let numbered = names.iter().zip(sizes).zip(1..);
    numbered.map(|((name, size), number)| format!("{number:>3}  {name:width$}  {size}\n")).collect()
}

/// The model that an answer means: its number, its name, or the only name that starts with the answer.
pub fn choose<'a>(names: &[&'a str], answer: &str) -> Option<&'a str> {
    let answer = answer.trim();
    if let Ok(number) = answer.parse::<usize>() {
        return names.get(number.checked_sub(1)?).copied();
    }
    if let Some(exact) = names.iter().find(|name| name.eq_ignore_ascii_case(answer)) {
        return Some(exact);
    }
    let answer = answer.to_lowercase();
    let mut starting = names.iter().filter(|name| name.to_lowercase().starts_with(&answer));
    match (starting.next(), starting.next()) {
        (Some(only), None) if !answer.is_empty() => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_numbers_names_or_unique_beginnings() {
        let names = ["gemma3:270m", "gemma3:4b", "smollm2:135m"];
        let chosen = |answer: &str| choose(&names, answer);
        assert_eq!(chosen("1"), Some("gemma3:270m"));
        assert_eq!(chosen(" 3 "), Some("smollm2:135m"));
        assert_eq!(chosen("GEMMA3:4B"), Some("gemma3:4b"));
        assert_eq!(chosen("smol"), Some("smollm2:135m"));
        for wrong in ["", "0", "4", "-1", "gemma3", "qwen", "99999999999999999999"] {
            assert_eq!(chosen(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_list_is_numbered_and_aligned() {
        let text = list(&["a".into(), "long".into()], &["1 B".into(), "2 GiB".into()]);
        assert_eq!(text, "  1  a     1 B\n  2  long  2 GiB\n");
    }
}
