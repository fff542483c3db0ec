//! The server under systemd: notifications and the unit file.

use crate::common;
use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::Path,
    process::Command,
};

use crate::common::served::{Served, TIMEOUT, has_device, serve};

fn packaged(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    std::fs::read_to_string(file).unwrap()
}

fn unit() -> String {
    packaged("indrik.service")
}

#[test]
fn the_service_manager_is_notified_of_readiness_and_shutdown() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    // A socket file, and a name in the abstract namespace.
    let name = format!("indrik-test-{}", std::process::id());
    let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
    for (manager, socket) in [
        (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
        (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}")),
    ] {
        manager.set_read_timeout(Some(TIMEOUT)).unwrap();
        let received = || {
            let mut bytes = [0; 100];
            let length = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        let server = Served::start(serve(&[]).env("NOTIFY_SOCKET", socket));
        assert_eq!(received(), "READY=1");
        assert_eq!(server.request("GET", "/ready", "").0, 200);
        manager.set_nonblocking(true).unwrap();
        assert!(manager.recv(&mut [0; 100]).is_err(), "no further notification before shutdown");
        manager.set_nonblocking(false).unwrap();
        server.signal("-TERM");
        assert_eq!(received(), "STOPPING=1");
        assert_eq!(server.wait().0.code(), Some(0));
    }
    // A missing socket is not fatal.
    let server = Served::start(serve(&[]).env("NOTIFY_SOCKET", folder.path().join("missing")));
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert!(status.success() && log.contains("NOTIFY_SOCKET"), "{log}");
}

#[test]
fn systemd_accepts_the_unit_files() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("skipped: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, program) in [("indrik.service", "/usr/bin/indrik "), ("smg.service", "/opt/smg/bin/smg ")] {
        let file = folder.path().join(name);
        // systemd-analyze checks that the program exists.
        let text = packaged(name);
        assert_eq!(text.matches(program).count(), 1);
        // It also looks for the manual page, which only a package installs.
        let text = text.replace("Documentation=man:indrik-serve(1)\n", "");
        let there = concat!(env!("CARGO_BIN_EXE_indrik"), " ");
        std::fs::write(&file, text.replace(program, there)).unwrap();
        let output = Command::new("systemd-analyze").arg("verify").arg(&file).output().unwrap();
        let messages = common::stdout(&output) + &common::stderr(&output);
        assert!(output.status.success() && !messages.contains(name), "{messages}");
    }
}

#[test]
fn the_gateway_has_the_same_flags_everywhere() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scale-out.md");
    let page = std::fs::read_to_string(page).unwrap();
    let command = page.split("\nsmg launch ").nth(1).unwrap().split("```").next().unwrap();
    let flags = |text: &str| -> std::collections::BTreeSet<String> {
        let words = text.split("smg launch ").nth(1).unwrap().split_whitespace();
        // Where the workers are, and who may connect, depends on the machine.
        let words = words.take_while(|word| word.starts_with(|c: char| c != '#' && !c.is_uppercase()));
        let words: Vec<&str> = words.filter(|word| *word != "\\").collect();
        let pairs = words.windows(2).filter(|pair| pair[0].starts_with("--"));
        let pairs = pairs.filter(|pair| !["--host", "--worker-urls"].contains(&pair[0]));
        pairs.map(|pair| pair.join(" ")).collect()
    };
    let expected = flags(&format!("smg launch {command}"));
    assert!(expected.contains("--health-check-endpoint /ready") && expected.len() == 7, "{expected:?}");
    for file in ["compose.yaml", "smg.service"] {
        assert_eq!(flags(&packaged(file)), expected, "{file}");
    }
}

#[test]
fn containers_have_time_to_drain() {
    let seconds = |file: &str, key: &str| -> u32 {
        let text = packaged(file);
        let value = text.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap();
        value.trim().trim_end_matches('s').parse().unwrap()
    };
    assert!(seconds("compose.yaml", "stop_grace_period:") >= drain_seconds() + 10);
    let sleep = 5;
    assert!(packaged("kubernetes/server.yaml").contains("sleep: {seconds: 5}"));
    let grace = seconds("kubernetes/server.yaml", "terminationGracePeriodSeconds:");
    assert!(grace >= sleep + drain_seconds() + 10);
}

/// The longest time from SIGTERM to the end, by default.
fn drain_seconds() -> u32 {
    // A unit test of the settings checks that this table is current.
    let settings = include_str!("../../../../docs/serving.md");
    let default = |name: &str| -> u32 {
        let row = settings.lines().find(|line| line.starts_with(&format!("| `--{name}` |"))).unwrap();
        row.split('|').nth(3).unwrap().trim().strip_suffix('s').unwrap().parse().unwrap()
    };
    default("drain-linger") + default("drain-timeout")
}

#[test]
fn the_unit_is_sandboxed() {
    // Fails if the exposure level exceeds a tenth of this: 2.0 of 10. docs/install.md states 1.5.
    let threshold = "--threshold=20";
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/indrik.service");
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager", threshold]).arg(unit);
    match command.output() {
        Err(_) => println!("skipped: systemd-analyze is not installed"),
        // systemd before 250.
        Ok(output) if common::stderr(&output).contains("unrecognized option") => {
            println!("skipped: this systemd-analyze cannot check a file")
        }
        Ok(output) => {
            assert!(output.status.success(), "{}{}", common::stdout(&output), common::stderr(&output))
        }
    }
}

#[test]
fn the_unit_allows_time_to_drain() {
    let seconds = |text: &str| text.strip_suffix('s').unwrap().parse::<u32>().unwrap();
    let unit = unit();
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    assert!(seconds(stop) >= drain_seconds() + 10, "{stop}");
}
