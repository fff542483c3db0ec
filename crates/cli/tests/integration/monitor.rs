//! `indrik monitor`, of a server with a tiny model and of this machine.

use crate::common::{
    indrik,
    served::{Served, has_device, serve},
    stderr, stdout,
    terminal::Terminal,
};
use serde_json::Value;

/// The object that `--once --json` prints.
fn once(arguments: &[&str]) -> Value {
    let output = indrik(&[&["monitor", "--once", "--json"], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn a_server_is_shown_with_its_requests() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&[]));
    let request =
        serde_json::json!({ "model": "tiny", "prompt": "the", "max_tokens": 8, "ignore_eos": true });
    server.complete(&request);
    let stats = once(&[&server.address]);
    assert_eq!((&stats["state"], &stats["model"]["id"]), (&"ready".into(), &"tiny".into()));
    assert_eq!((&stats["requests"]["finished"], &stats["tokens"]["generated"]), (&1.into(), &8.into()));
    assert!(stats["latency"]["time_to_first_token"]["p50"].as_f64().unwrap() > 0.0);
    assert!(stats["bandwidth"]["bytes_per_token"].as_f64().unwrap() > 0.0);
    assert!(stats["memory"][0]["weights_bytes"].as_u64().unwrap() > 0);
    // The first sample may still be missing.
    let resident = || once(&[&server.address])["machine"]["process"]["resident_bytes"].as_u64();
    while resident().is_none() {}

    let output = indrik(&["monitor", "--once", &server.address]).output().unwrap();
    let text = stdout(&output);
    for expected in ["tiny on", "ready", "tok/s, 8 total", "1 finished", "GPU memory", "resident"] {
        assert!(text.contains(expected), "{expected:?} is missing:\n{text}");
    }
}

#[test]
fn the_live_view_follows_the_terminal_and_ends_with_a_key() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&[]));
    let mut command = indrik(&["monitor", &server.address, "--interval", "0.1"]);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    let mut terminal = Terminal::start(&command, 60);
    terminal.see("KV cache 0 of");
    server.complete(&serde_json::json!({ "model": "tiny", "prompt": "the", "max_tokens": 8 }));
    terminal.see("8 total");
    terminal.resize(100);
    terminal.wait("two columns", |screen| screen.lines().iter().any(|line| line.chars().count() > 60));
    terminal.keys("q");
    let (status, screen) = terminal.finish();
    assert!(status.success());
    assert!(screen.raw.contains("\x1b[?1049l"), "the screen is restored");
}

#[test]
fn a_signal_restores_the_screen() {
    use std::os::unix::process::ExitStatusExt;
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&[]));
    for (name, number) in [("-TERM", 15), ("-HUP", 1)] {
        let mut command = indrik(&["monitor", &server.address]);
        let terminal = Terminal::start(command.env("TERM", "xterm-256color"), 60);
        terminal.see("KV cache 0 of");
        terminal.signal(name);
        let (status, screen) = terminal.finish();
        assert_eq!(status.signal(), Some(number));
        assert!(screen.raw.contains("\x1b[?1049l"), "the screen is restored");
    }
}

#[test]
fn without_a_server_the_machine_is_shown() {
    // A server of the developer's may listen there.
    if std::net::TcpStream::connect("127.0.0.1:8006").is_ok() {
        return println!("skipped: a server is running on port 8006");
    }
    let reading = once(&[]);
    assert_eq!(reading.get("requests"), None);
    assert!(reading["machine"].get("cpu").is_some(), "{reading}");
}

#[test]
fn errors_say_what_to_do() {
    let fails = |arguments: &[&str]| {
        let output = indrik(&[&["monitor", "--once"], arguments].concat()).output().unwrap();
        assert!(!output.status.success());
        stderr(&output)
    };
    let text = fails(&["http://127.0.0.1:1"]);
    assert!(
        text.contains("no server answers at http://127.0.0.1:1") && text.contains("indrik serve"),
        "{text}"
    );
    let text = fails(&["--interval", "0"]);
    assert!(text.contains("between 0.1 and 3600"), "{text}");
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--api-key", "secret"]));
    let text = fails(&[&server.address]);
    assert!(text.contains("needs an API key") && text.contains("--api-key"), "{text}");
    let stats = once(&[&server.address, "--api-key", "secret"]);
    assert_eq!(stats["state"], "ready");
}
