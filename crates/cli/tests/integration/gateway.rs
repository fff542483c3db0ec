//! What gateways, disks and clients do to a real server that is not as it should be: it serves on, and says so once.

use std::{
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::common::{
    indrik,
    served::{Served, has_device, serve, tiny},
};

/// A prompt of more than a page, by token ids, and its completion with log probabilities.
fn turn(family: u32) -> Value {
    let prompt: Vec<u32> = (0..404).map(|at| 10 + (at * 7 + family * 31) % 240).collect();
    json!({ "model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 3 })
}

fn cached_tokens(completion: &Value) -> u64 {
    completion["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn stop(server: Served) -> String {
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert!(status.success(), "{log}");
    log
}

/// Programs of a mount namespace of their own; any user may have one, if the system allows it.
const UNSHARE: [&str; 2] = ["-r", "-m"];

/// Whether a file system can be mounted in such a namespace.
fn can_mount() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let mount = ["mount", "-t", "tmpfs", "tmpfs", folder.path().to_str().unwrap()];
    let mounted = Command::new("unshare").args(UNSHARE).args(mount).output();
    let can = mounted.is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: no file system can be mounted in a namespace here (unshare -rm)");
    }
    can
}

/// The command with a file system of its own at `folder`.
fn with_file_system(options: &str, folder: &Path, command: &Command) -> Command {
    let script = format!("mount -t tmpfs -o {options} tmpfs \"$0\" && exec \"$@\"");
    let mut mounted = Command::new("unshare");
    mounted.args(UNSHARE).args(["sh", "-c", &script]).arg(folder);
    mounted.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => mounted.env(name, value),
            None => mounted.env_remove(name),
        };
    }
    mounted.stdout(Stdio::piped()).stderr(Stdio::piped());
    mounted
}

fn with_disk(folder: &Path) -> Command {
    serve(&["--reproducible", "--prefix-disk=64MiB", "--prefix-disk-dir", folder.to_str().unwrap()])
}

/// The number of stored pages.
fn stored_pages(folder: &Path) -> usize {
    let entries = |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let models = entries(folder).filter(|path| path.is_dir());
    models.map(|model| entries(&model).count()).sum()
}

#[test]
fn a_disk_that_takes_no_page_is_said_once_and_served_on() {
    if !has_device() || !can_mount() {
        return;
    }
    let expected = Served::start(&mut serve(&["--reproducible"])).complete(&turn(1))["choices"].take();
    let folder = tempfile::tempdir().unwrap();
    let mount = |options| with_file_system(options, folder.path(), &with_disk(folder.path()));
    // Full after a few pages, and read-only.
    for (mut command, can_open) in [(mount("size=128k"), true), (mount("ro"), false)] {
        let server = Served::start(&mut command);
        for family in [1, 2, 3, 1] {
            let completion = server.complete(&turn(family));
            if family == 1 {
                assert_eq!(completion["choices"], expected);
            }
        }
        assert!(cached_tokens(&server.complete(&turn(1))) >= 384, "in memory as usual");
        assert_eq!(server.request("GET", "/ready", "").0, 200);
        let log = stop(server);
        let said = if can_open { "cannot be written" } else { "the prefix cache on disk is off" };
        assert_eq!(log.matches(said).count(), 1, "{said} once: {log}");
    }
    // The same folder works when there is space.
    let server = Served::start(&mut with_disk(folder.path()));
    server.complete(&turn(1));
    stop(server);
    let server = Served::start(&mut with_disk(folder.path()));
    let restored = server.complete(&turn(1));
    assert_eq!((&restored["choices"], cached_tokens(&restored)), (&expected, 384));
}

#[test]
fn pages_of_another_model_are_not_used() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The same architecture and vocabulary with other weights.
    let other = tiny().replace("gguf_q8_0", "gguf_q4_0");
    let start = |model: &str, disk: bool| {
        let mut arguments =
            vec!["serve", "-m", model, "--name", "tiny", "--port", "0", "--context", "512", "--json"];
        arguments.push("--reproducible");
        if disk {
            arguments.extend(["--prefix-disk=64MiB", "--prefix-disk-dir", folder.path().to_str().unwrap()]);
        }
        let mut command = indrik(&arguments);
        command.env("INDRIK_DRAIN_LINGER", "1ms").stdout(Stdio::piped()).stderr(Stdio::piped());
        Served::start(&mut command)
    };
    let expected = start(&other, false).complete(&turn(1))["choices"].take();
    let first = start(&tiny(), true);
    let own = first.complete(&turn(1))["choices"].take();
    assert_ne!(own, expected);
    stop(first);
    let stored = stored_pages(folder.path());
    assert!(stored >= 6);
    for cached in [0, 384] {
        let server = start(&other, true);
        let completion = server.complete(&turn(1));
        assert_eq!((&completion["choices"], cached_tokens(&completion)), (&expected, cached));
        assert_eq!(server.metric("indrik_prefix_disk_errors_total"), 0);
        stop(server);
    }
    assert!(stored_pages(folder.path()) > stored, "both have their pages");
    let first = start(&tiny(), true);
    let again = first.complete(&turn(1));
    assert_eq!((&again["choices"], cached_tokens(&again)), (&own, 384));
}

#[test]
fn a_gateway_that_asks_a_thousand_times_costs_no_steps() {
    if !has_device() {
        return;
    }
    // The device is lost at the 600th submission: a probe for each question would get there.
    let server = Served::start(serve(&[]).env("INDRIK_FAULT", "device-lost@600"));
    std::thread::scope(|scope| {
        let asker = || {
            let mut stream = server.connect();
            let question = "GET /ready HTTP/1.1\r\nHost: localhost\r\n";
            let last = format!("{question}Connection: close\r\n\r\n");
            stream.write_all((format!("{question}\r\n").repeat(249) + &last).as_bytes()).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text.matches("HTTP/1.1 200 OK").count()
        };
        let askers: Vec<_> = (0..4).map(|_| scope.spawn(asker)).collect();
        assert_eq!(server.complete(&turn(1))["usage"]["completion_tokens"], 8);
        assert_eq!(askers.into_iter().map(|asker| asker.join().unwrap()).sum::<usize>(), 1000);
    });
    assert_eq!(server.metric("indrik_device_lost_total"), 0);
    // The fault was there.
    let mut completions = 0;
    while server.metric("indrik_device_lost_total") == 0 {
        server.complete(&turn(completions % 8));
        completions += 1;
        assert!(completions < 1000, "no device was lost");
    }
}

#[test]
fn forged_trace_headers_are_not_believed() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--log-format", "json"]));
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let good = format!("00-{trace}-b7ad6b7169203331-01");
    let long = "0".repeat(20_000);
    let forged = [
        "",
        "garbage",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
        "00-0af7651916cd43dd8448eb211c80319c\", \"level\": \"ERROR",
        "\u{1b}[31m00-0af7651916cd43dd8448eb211c80319c",
        &long,
    ];
    let ask = |header: &str| {
        let body = turn(1).to_string();
        let mut stream = server.connect();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             traceparent: {header}\r\ntracestate: {header}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    for header in forged {
        let status = ask(header);
        // A control character is no header at all.
        let expected = if header.contains('\u{1b}') { "400" } else { "200" };
        assert_eq!(status, expected, "{header:?}");
    }
    assert_eq!(ask(&good), "200");
    let log = stop(server);
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let finished: Vec<&Value> =
        lines.iter().filter(|line| line.to_string().contains("request finished")).collect();
    assert_eq!(finished.len(), forged.len(), "{log}");
    let believed = finished.iter().filter(|line| line.to_string().contains(trace)).count();
    assert_eq!(believed, 1, "only the header that is one: {log}");
    assert!(!lines.iter().any(|line| line["level"] == "ERROR") && !log.contains("garbage"), "{log}");
}
