//! `indrik chat` on a pseudo-terminal, with a tiny model whose replies end only at their maximum length.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::common::{
    indrik,
    served::{has_device, tiny},
    stdout,
    terminal::{Screen, Terminal},
};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

/// A user with an empty home.
struct User {
    home: tempfile::TempDir,
}

impl User {
    /// `None` without a device.
    fn new() -> Option<Self> {
        has_device().then(|| Self { home: tempfile::tempdir().unwrap() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn history(&self) -> PathBuf {
        self.path("state/indrik/chat_history")
    }

    fn chat(&self, arguments: &[&str]) -> Command {
        let model = tiny();
        let first = ["chat", "-m", &model, "-c", "512", "--seed", "1"];
        let mut command = indrik(&[&first, arguments].concat());
        for name in ["NO_COLOR", "CLICOLOR", "INDRIK_NO_HISTORY"] {
            command.env_remove(name);
        }
        command
            .env("TERM", "xterm-256color")
            .env("XDG_STATE_HOME", self.path("state"))
            .env("INDRIK_MODELS_DIR", self.path("models"));
        command
    }

    /// Saves the conversation and reads it; returns its messages.
    fn messages(&self, terminal: &mut Terminal) -> Vec<Value> {
        let path = self.path("messages.json");
        let _ = fs::remove_file(&path);
        terminal.line(&format!("/save {}", path.display()));
        terminal.prompt();
        let saved: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        saved["messages"].as_array().unwrap().clone()
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// The lines between the last line that contains `after` and the next prompt.
fn lines_after(screen: &Screen, after: &str) -> Vec<String> {
    let lines = screen.lines();
    let start = lines.iter().rposition(|line| line.contains(after)).unwrap() + 1;
    lines[start..].iter().take_while(|line| !line.starts_with('>')).cloned().collect()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Checks that lines have the words of a text, and that only words longer than a line are broken.
fn check_wrapped(lines: &[String], text: &str, columns: usize) {
    assert!(lines.iter().all(|line| line.width() <= columns), "{columns} columns: {lines:?}");
    let (shown, expected) = (words(&lines.join(" ")), words(text));
    assert_eq!(shown.concat(), expected.concat());
    for word in expected.iter().filter(|word| word.width() <= columns) {
        assert!(shown.contains(word), "{word} is broken: {lines:?}");
    }
}

#[test]
fn words_wrap_at_the_width_and_are_those_of_a_pipe() {
    let Some(user) = User::new() else { return };
    // At this temperature the tiny model writes something like words.
    let arguments = ["-t", "1.3", "-n", "120"];
    let mut piped = user.chat(&[&arguments[..], &["-p", "the cat"]].concat());
    let expected = stdout(&piped.stdin(Stdio::null()).output().unwrap());
    // It also writes control characters: a terminal gets their pictures.
    let picture = |c: char| char::from_u32(0x2400 + u32::from(c)).unwrap();
    let visible = |c: char| if c.is_ascii_control() && c != '\n' { picture(c) } else { c };
    let expected: String = expected.chars().map(visible).collect();
    let mut terminal = Terminal::start(&user.chat(&arguments), 60);
    terminal.line("the cat");
    terminal.prompt();
    let wide = lines_after(&terminal.screen(), "> the cat");
    check_wrapped(&wide, &expected, 60);
    // The next reply has the new width.
    terminal.resize(30);
    terminal.line("/clear");
    terminal.line("the cat");
    terminal.prompt();
    let narrow = lines_after(&terminal.screen(), "> the cat");
    check_wrapped(&narrow, &expected, 30);
    assert!(wide.len() > 2 && narrow.len() > wide.len(), "{narrow:?}");
    terminal.keys("\x04");
    assert_eq!(terminal.finish().0.code(), Some(0));
}

const MARKDOWN: &str = "# Title\n\nSome **bold** words, `code`, and more of them so that the line has to wrap.\n\n\
                        - an item that is longer than one line of the terminal, which hangs\n\n\
                        ```rust\nfn main() {} // a comment that is longer than the terminal is wide, and stays\n```";

#[test]
fn markdown_is_styled_unless_the_environment_says_no() {
    let Some(user) = User::new() else { return };
    let file = user.path("markdown.json");
    let messages =
        json!([{ "role": "user", "content": "write" }, { "role": "assistant", "content": MARKDOWN }]);
    fs::write(&file, messages.to_string()).unwrap();
    let load = |name: &str, value: &str| {
        let mut terminal = Terminal::start(user.chat(&["--no-history"]).env(name, value), 60);
        terminal.line(&format!("/load {}", file.display()));
        terminal.prompt();
        terminal.keys("\x04");
        terminal.finish().1
    };
    let styled = load("CLICOLOR", "1");
    let shown = lines_after(&styled, "> write").join("\n");
    let expected = "# Title\n\nSome **bold** words, `code`, and more of them so that the\nline has to wrap.\n\n\
                    - an item that is longer than one line of the terminal,\n  which hangs\n\n```rust\n\
                    fn main() {} // a comment that is longer than the terminal i\ns wide, and stays\n```";
    assert_eq!(shown, expected);
    for sequence in ["\x1b[0;1mTitle", "\x1b[0;1mbold", "\x1b[0;36mcode", "\x1b[0;35mfn", "\x1b[0;2m// a"] {
        assert!(styled.raw.contains(sequence), "{sequence:?}: {:?}", styled.raw);
    }
    for (name, value) in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
        let plain = load(name, value);
        assert_eq!(lines_after(&plain, "> write").join("\n"), shown, "{name}");
        assert!(!plain.raw.contains("\x1b[0"), "{name}: {:?}", plain.raw);
        assert!(name != "TERM" || !plain.raw.contains('\x1b'), "{:?}", plain.raw);
    }
}

#[test]
fn replies_are_regenerated_and_messages_edited() {
    let Some(user_) = User::new() else { return };
    let mut terminal = Terminal::start(&user_.chat(&["-t", "1.5", "-n", "24"]), 80);
    terminal.line("/regenerate");
    terminal.see("There is no message to reply to.");
    terminal.line("/edit");
    terminal.see("There is no message to edit.");
    terminal.line("the cat");
    let first = user_.messages(&mut terminal);
    terminal.line("/regenerate");
    let second = user_.messages(&mut terminal);
    assert_eq!((first.len(), second.len()), (2, 2));
    assert_eq!((&first[0], &second[0]), (&user("the cat"), &user("the cat")));
    assert_ne!(first[1]["content"], second[1]["content"]);

    // The last message is in the line editor.
    terminal.line("/edit");
    terminal.wait("the message", |screen| screen.lines().last().is_some_and(|line| line == "> the cat"));
    terminal.keys(" sat");
    terminal.wait("its change", |screen| screen.lines().last().is_some_and(|line| line == "> the cat sat"));
    terminal.enter();
    let edited = user_.messages(&mut terminal);
    assert_eq!((edited.len(), &edited[0]), (2, &user("the cat sat")));
    // Ctrl-C leaves everything as it was.
    terminal.line("/edit");
    terminal.wait("the message", |screen| screen.lines().last().is_some_and(|line| line == "> the cat sat"));
    terminal.keys("\x03");
    terminal.see("Not changed.");
    assert_eq!(user_.messages(&mut terminal), edited);
    terminal.line("/regnerate");
    terminal.see("did you mean /regenerate?");
}

#[test]
fn conversations_are_saved_and_loaded() {
    let Some(user_) = User::new() else { return };
    let mut terminal = Terminal::start(&user_.chat(&["-t", "0", "-n", "8", "-s", "be brief"]), 100);
    terminal.line("the cat");
    let saved = user_.messages(&mut terminal);
    assert_eq!((saved.len(), &saved[0]["content"], &saved[1]), (3, &"be brief".into(), &user("the cat")));
    let kept = user_.path("kept.json");
    fs::rename(user_.path("messages.json"), &kept).unwrap();
    terminal.line("/system be long");
    terminal.line("/stats");
    terminal.see("0 messages, ");
    terminal.line(&format!("/load {}", kept.display()));
    terminal.see("Loaded 2 messages from ");
    assert_eq!(user_.messages(&mut terminal), saved);
    // A file is replaced only on request.
    fs::write(&kept, "mine").unwrap();
    terminal.line(&format!("/save {}", kept.display()));
    terminal.see("kept.json exists: `/save! ");
    assert_eq!(fs::read(&kept).unwrap(), b"mine");
    terminal.line(&format!("/load {}", kept.display()));
    terminal.see("kept.json is not JSON");
    terminal.line(&format!("/save! {}", kept.display()));
    terminal.see("replacing the old file");
    assert_eq!(user_.messages(&mut terminal), saved, "a failed load changes nothing");
}

#[test]
fn ctrl_c_keeps_the_partial_reply() {
    let Some(user_) = User::new() else { return };
    let mut terminal = loop {
        let mut terminal = Terminal::start(&user_.chat(&["-t", "0"]), 60);
        terminal.line("the cat");
        terminal
            .wait("a reply", |screen| lines_after(screen, "> the cat").iter().any(|line| !line.is_empty()));
        terminal.keys("\x03");
        terminal.wait("the end of the reply", |screen| {
            ["(cancelled)", "quits)"].iter().any(|end| screen.text().contains(end))
        });
        // On a busy machine the reply may end before the key is pressed.
        if terminal.screen().text().contains("(cancelled)") {
            break terminal;
        }
    };
    let messages = user_.messages(&mut terminal);
    assert_eq!((messages.len(), &messages[0]), (2, &user("the cat")));
    let partial = messages[1]["content"].as_str().unwrap();
    let shown = terminal.screen().text();
    assert!(
        !partial.is_empty()
            && words(partial).iter().filter(|word| word.width() < 60).all(|word| shown.contains(word)),
        "{partial}\n{shown}"
    );
    // At an empty prompt, the second one quits; with a text, the first one only clears it.
    terminal.keys("unfinished");
    terminal.see("> unfinished");
    for _ in 0..2 {
        let row = terminal.screen().lines().len();
        terminal.keys("\x03");
        terminal
            .wait("the hint", |screen| screen.lines().len() > row && screen.text().ends_with("quits)\n>"));
    }
    terminal.keys("\x03");
    assert_eq!(terminal.finish().0.code(), Some(0));
}

#[test]
fn a_pasted_or_quoted_text_is_one_message() {
    let Some(user_) = User::new() else { return };
    let mut terminal = Terminal::start(&user_.chat(&["-t", "0", "-n", "4"]), 80);
    terminal.prompt();
    terminal.keys("\x1b[200~one \\\r\n  two\r\n\r\nthree\r\n\x1b[201~");
    terminal.wait("the paste", |screen| screen.text().contains("> one \\\n  two\n\nthree"));
    terminal.enter();
    let messages = user_.messages(&mut terminal);
    assert_eq!((messages.len(), &messages[0]), (2, &user("one \\\n  two\n\nthree")));
    terminal.line("/clear");
    terminal.line("\"\"\"four");
    terminal.wait("a prompt", |screen| screen.text().ends_with('…'));
    terminal.keys("five\"\"\"");
    terminal.see("… five\"\"\"");
    terminal.enter();
    assert_eq!(user_.messages(&mut terminal)[0], user("four\nfive"));
}

#[test]
fn the_history_is_private_searchable_and_optional() {
    let Some(user) = User::new() else { return };
    let quit = |arguments: &[&str]| {
        let mut terminal = Terminal::start(&user.chat(&[arguments, &["-n", "2"]].concat()), 80);
        terminal.line("remember me");
        terminal.line(" but not this");
        terminal.line("/quit");
        assert_eq!(terminal.finish().0.code(), Some(0));
    };
    let piped = user.chat(&["-n", "2"]).stdin(Stdio::null()).output().unwrap();
    assert!(piped.status.success());
    quit(&["--no-history"]);
    assert!(!user.history().exists());
    quit(&[]);
    let mode = fs::metadata(user.history()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let kept = fs::read_to_string(user.history()).unwrap();
    assert!(kept.contains("remember me\n") && !kept.contains("but not this"), "{kept}");
    let mut terminal = Terminal::start(&user.chat(&["-n", "2"]), 80);
    terminal.prompt();
    terminal.keys("\x12ber");
    terminal.see("remember me");
    terminal.keys("\r");
    terminal.prompt();
    assert_eq!(user.messages(&mut terminal)[0]["content"], "remember me");
}

#[test]
fn a_long_prompt_shows_its_progress() {
    let Some(user_) = User::new() else { return };
    // Token by token, so that there is something to see on a fast machine too.
    let mut terminal = Terminal::start(&user_.chat(&["-n", "4", "--prefill-chunk", "1"]), 100);
    let shown = |terminal: &Terminal| {
        let raw = &terminal.screen().raw;
        raw.contains("prefilled ") && raw.contains(" prompt tokens …")
    };
    // Progress is shown every 50 ms: a machine may be too fast for one message, not for all of them.
    let path = user_.path("long.json");
    for number in 0..100 {
        let text = format!("{number} {}", "the cat sat ".repeat(80));
        fs::write(&path, serde_json::json!([user(&text)]).to_string()).unwrap();
        terminal.line(&format!("/load {}", path.display()));
        terminal.line("/regenerate");
        terminal.prompt();
        if shown(&terminal) {
            break;
        }
    }
    assert!(shown(&terminal), "{}", terminal.screen().text());
    // It is gone when the reply is there.
    assert!(!terminal.screen().text().contains("prefilled"));
}

#[test]
fn models_are_listed_and_switched() {
    let Some(user) = User::new() else { return };
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    fs::create_dir(user.path("models")).unwrap();
    for (name, fixture) in [("alpha", "gguf_q8_0"), ("beta", "llama_gguf_q8_0")] {
        let to = user.path("models").join(name).with_extension("gguf");
        fs::copy(fixtures.join(fixture).join("model.gguf"), to).unwrap();
    }
    let mut terminal = Terminal::start(&user.chat(&["-n", "4", "-t", "0"]), 100);
    terminal.line("the cat");
    terminal.line("/model");
    terminal.see("   2  beta");
    terminal.line("/model nothing");
    terminal.see("nothing");
    terminal.line("/model 2");
    terminal.see("beta on ");
    let messages = user.messages(&mut terminal);
    assert_eq!(messages.len(), 2, "the conversation stays");
    terminal.line("the dog");
    assert_eq!(user.messages(&mut terminal).len(), 4);
    terminal.line("/model");
    terminal.see("*  2  beta");
}
