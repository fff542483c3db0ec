//! Commands of the chat: lines that start with a slash.

use std::path::PathBuf;

/// A command with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Help,
    Stats,
    Clear,
    /// Without a text, shows the system message.
    System(Option<String>),
    Regenerate,
    /// Without a text, opens the last message in the line editor.
    Edit(Option<String>),
    Save {
        path: PathBuf,
        replace: bool,
    },
    Load(PathBuf),
    /// Attaches an image to the next message.
    Image(PathBuf),
    /// Without a name, lists the store.
    Model(Option<String>),
    Quit,
}

/// Spellings, the first of them with its arguments as the help shows it, and what the command does.
const COMMANDS: &[(&[&str], &str, &str)] = &[
    (&["/help", "/?"], "", "this list"),
    (&["/regenerate"], "", "replace the last reply with another one"),
    (&["/edit"], "[TEXT]", "change the last message and send it again; with TEXT, send TEXT instead"),
    (&["/save", "/save!"], "FILE", "write the conversation to a JSON file; /save! replaces an existing one"),
    (&["/load"], "FILE", "continue a conversation from a JSON file"),
    (&["/image"], "FILE", "attach an image to the next message, if the model takes images"),
    (&["/model"], "[NAME]", "switch to another model and keep the conversation; without NAME, list them"),
    (&["/stats"], "", "speed of the last reply, and how full the context is"),
    (&["/clear"], "", "start a new conversation; the system message stays"),
    (&["/system"], "[TEXT]", "set the system message and start a new conversation; without TEXT, show it"),
    (&["/quit", "/exit"], "", "quit (also Ctrl-D, or Ctrl-C twice)"),
];

/// Keys, and how messages are written.
const KEYS: &[(&str, &str)] = &[
    ("Ctrl-C", "cancel the reply; the partial reply stays in the conversation"),
    ("Ctrl-R", "search earlier messages"),
    ("Tab", "complete a command or a model's name"),
];

const NOTES: &str = "\
A line that ends with \\ continues on the next line. \"\"\" begins and ends a message of several lines.
A pasted text is one message. A message that starts with / needs a space before it.
";

/// Width of the first column of the help.
pub const HELP_COLUMN: usize = 15;

/// The names of all commands.
pub fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(names, ..)| names[0])
}

/// The list of commands.
pub fn help() -> String {
    let commands =
        COMMANDS.iter().map(|(names, arguments, text)| (format!("{} {arguments}", names[0]), *text));
    let keys = KEYS.iter().map(|(key, text)| ((*key).to_owned(), *text));
    let lines = commands.chain(keys).map(|(name, text)| format!("{name:HELP_COLUMN$}{text}\n"));
    lines.collect::<String>() + NOTES
}

/// Parses a line that starts with a slash. The error says what is wrong with it.
pub fn parse(line: &str) -> Result<Command, String> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let text = || Some(rest.to_owned()).filter(|text| !text.is_empty());
    let path = || match text() {
        Some(text) => Ok(expand_home(&text)),
        None => {
            let example = if name == "/image" { "photo.jpg" } else { "chat.json" };
            Err(format!("{name} needs a file name, as in {name} {example}"))
        }
    };
    Ok(match name {
        "/help" | "/?" => Command::Help,
        "/quit" | "/exit" => Command::Quit,
        "/clear" => Command::Clear,
        "/stats" => Command::Stats,
        "/system" => Command::System(text()),
        "/regenerate" => Command::Regenerate,
        "/edit" => Command::Edit(text()),
        "/save" | "/save!" => Command::Save { path: path()?, replace: name.ends_with('!') },
        "/load" => Command::Load(path()?),
        "/image" => Command::Image(path()?),
        "/model" => Command::Model(text()),
        _ => return Err(unknown(name)),
    })
}

/// Names with at most this share of other characters are suggested.
const MAX_DISTANCE_DIVISOR: usize = 3;

fn unknown(name: &str) -> String {
    let printed = store::printable(name);
    let all = || COMMANDS.iter().flat_map(|(names, ..)| names.iter().copied());
    // The distance takes quadratic time.
    let is_short = name.len() <= 32;
    let distances = all().filter(|_| is_short).map(|known| (strsim::damerau_levenshtein(name, known), known));
    let near = distances.filter(|(distance, _)| distance * MAX_DISTANCE_DIVISOR < name.len());
    let beginning = || all().find(|known| name.len() > 1 && known.starts_with(name));
    match beginning().or_else(|| near.min().map(|(_, known)| known)) {
        Some(known) => format!("Unknown command {printed}: did you mean {known}? /help lists the commands."),
        None => format!("Unknown command {printed}; /help lists the commands."),
    }
}

/// Replaces a leading `~`, which only a shell would replace.
fn expand_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_parsed_with_their_arguments() {
        assert_eq!(parse("/help"), Ok(Command::Help));
        assert_eq!(parse("/system  be brief "), Ok(Command::System(Some("be brief".into()))));
        assert_eq!(parse("/system"), Ok(Command::System(None)));
        assert_eq!(parse("/save a b.json"), Ok(Command::Save { path: "a b.json".into(), replace: false }));
        assert_eq!(parse("/save! x"), Ok(Command::Save { path: "x".into(), replace: true }));
        assert!(parse("/load").unwrap_err().contains("needs a file name"));
        assert_eq!(parse("/image a b.png"), Ok(Command::Image("a b.png".into())));
        assert!(parse("/image").unwrap_err().ends_with("as in /image photo.jpg"));
        assert_eq!(parse("/edit one\ntwo"), Ok(Command::Edit(Some("one\ntwo".into()))));
    }

    #[test]
    fn unknown_commands_suggest_the_nearest() {
        for (typed, expected) in [
            ("/regnerate", "/regenerate"),
            ("/reg", "/regenerate"),
            ("/hlep", "/help"),
            ("/Save", "/save"),
            ("/quti", "/quit"),
        ] {
            let error = parse(typed).unwrap_err();
            assert!(error.contains(&format!("did you mean {expected}?")), "{error}");
        }
        for strange in ["/", "/etc/passwd", "/nonsense", &format!("/{}", "x".repeat(100_000))] {
            let error = parse(strange).unwrap_err();
            assert!(error.ends_with("; /help lists the commands."), "{}", &error[..50]);
        }
    }

    #[test]
    fn the_help_lists_every_command_once() {
        let help = help();
        for name in names() {
            assert_eq!(help.lines().filter(|line| line.split(' ').next() == Some(name)).count(), 1, "{name}");
            assert!(parse(&format!("{name} x")).is_ok(), "{name}");
        }
        assert!(help.contains("/save FILE     write"), "{help}");
    }
}
