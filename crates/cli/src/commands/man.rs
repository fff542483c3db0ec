//! `indrik man`: manual pages, written from the same definitions as `--help`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

/// Write the manual pages, one per command
#[derive(Args)]
// For packagers: users find the pages installed.
#[command(hide = true, after_help = "Example: indrik man --out /usr/local/share/man/man1")]
pub struct Arguments {
    /// Folder to write to; created if it does not exist
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Title of the pages' header line.
const MANUAL: &str = "Indrik Manual";

pub fn run(arguments: &Arguments, command: Command) -> anyhow::Result<ExitCode> {
    let folder = &arguments.out;
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    // `indrik help` says what the pages do.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, None, folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: &Command, parent: Option<&Command>, folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(format!("{}.1", page_name(command)));
    let page = render(command, parent).with_context(|| format!("cannot render {}", path.display()))?;
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    for subcommand in visible_subcommands(command) {
        write_pages(subcommand, Some(command), folder)?;
    }
    Ok(())
}

/// `indrik-eval-logits` for `indrik eval logits`.
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

fn render(command: &Command, parent: Option<&Command>) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    // The date is empty: it would be the day of the build, and two builds of one commit would differ. `Man` would drop the
    // empty argument and so shift those after it.
    let version = env!("CARGO_PKG_VERSION");
    let title = format!(".TH {} 1 \"\" \"indrik {version}\" \"{MANUAL}\"\n", page_name(command));
    let mut page = title.into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let notes = Notes::of(command);
    let mut roff = Roff::default();
    for line in &notes.text {
        roff.control("PP", []);
        roff.text([roman(line.as_str())]);
    }
    roff.to_writer(&mut page)?;
    man.render_options_section(&mut page)?;
    if visible_subcommands(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }

    let mut roff = Roff::default();
    if parent.is_none() {
        environment(&mut roff);
    }
    exit_status(&mut roff);
    if !notes.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        // `nf`: one command per line, as typed.
        roff.control("nf", []);
        for example in &notes.examples {
            roff.text([roman(example.as_str())]);
        }
        roff.control("fi", []);
    }
    see_also(&mut roff, command, parent);
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// The text after a command's options in `--help`, whose first paragraph holds the examples.
#[derive(Debug, Default, PartialEq)]
struct Notes {
    examples: Vec<String>,
    text: Vec<String>,
}

impl Notes {
    fn of(command: &Command) -> Self {
        let help = command.get_after_long_help().or(command.get_after_help());
        help.map(|help| Self::parse(&help.to_string())).unwrap_or_default()
    }

    /// `Example: COMMAND`, or `Examples:` and one command on each following line that is indented. Everything else is
    /// text, one paragraph per line.
    fn parse(help: &str) -> Self {
        let mut notes = Self::default();
        let mut in_examples = false;
        for line in help.lines() {
            let heading = line.strip_prefix("Example").and_then(|rest| rest.split_once(':'));
            match heading {
                Some((title, first)) => {
                    in_examples = true;
                    // "Example for a Radeon 780M: …"
                    let title = title.trim_start_matches('s').trim();
                    if !title.is_empty() {
                        notes.examples.push(format!("# {title}"));
                    }
                    notes.examples.extend(Some(first.trim().to_owned()).filter(|first| !first.is_empty()));
                }
                None if in_examples && line.starts_with(' ') => notes.examples.push(line.trim().to_owned()),
                None => {
                    in_examples = false;
                    notes.text.extend(Some(line.trim().to_owned()).filter(|line| !line.is_empty()));
                }
            }
        }
        notes
    }
}

/// Variables that apply to several commands; those of a flag are listed with the flag.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("INDRIK_DEVICE", "Device by index or part of its name."),
    (
        "INDRIK_MODELS_DIR",
        "The model store. Default: indrik/models in the data folder, $XDG_DATA_HOME or ~/.local/share.",
    ),
    (
        "INDRIK_CACHE_DIR",
        "Compiled pipelines and tuning results. Default: indrik in the cache folder, $XDG_CACHE_HOME or ~/.cache.",
    ),
    ("INDRIK_TUNE", "off skips autotuning, which runs the first time a GPU runs a model."),
    ("INDRIK_LOG", "Log filter such as debug, or info,engine=debug."),
];

fn environment(roff: &mut Roff) {
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, text) in ENVIRONMENT {
        roff.control("TP", []);
        roff.text([bold(name)]);
        roff.text([roman(text)]);
    }
}

/// As documented in `main`.
const EXIT_STATUS: [(&str, &str); 4] =
    [("0", "Success."), ("1", "Failure."), ("2", "Usage error."), ("130", "Cancelled with Ctrl-C.")];

fn exit_status(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (code, text) in EXIT_STATUS {
        roff.control("TP", []);
        roff.text([bold(code)]);
        roff.text([roman(text)]);
    }
}

fn see_also(roff: &mut Roff, command: &Command, parent: Option<&Command>) {
    // The main page lists its commands with their pages.
    let pages = parent.into_iter().chain(visible_subcommands(command)).map(page_name);
    let mut line = vec![];
    for page in pages {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(page), roman("(1)")]);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text(line);
}

#[cfg(test)]
mod tests {
    use super::Notes;

    fn notes(examples: &[&str], text: &[&str]) -> Notes {
        let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        Notes { examples: owned(examples), text: owned(text) }
    }

    #[test]
    fn examples_and_text_of_the_help_are_told_apart() {
        for (help, expected) in [
            ("Example: indrik rm a\n\nRemoves it.", notes(&["indrik rm a"], &["Removes it."])),
            ("Examples: indrik a\n          indrik b\n\nText.", notes(&["indrik a", "indrik b"], &["Text."])),
            ("Examples:\n  indrik a: b\n  indrik c", notes(&["indrik a: b", "indrik c"], &[])),
            (
                "Example for a card:\n  X=1 indrik a\nExit code 0.",
                notes(&["# for a card", "X=1 indrik a"], &["Exit code 0."]),
            ),
            ("Start here.\nThen there.", notes(&[], &["Start here.", "Then there."])),
        ] {
            assert_eq!(Notes::parse(help), expected, "{help}");
        }
    }
}
