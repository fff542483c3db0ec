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

fn unit() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/indrik.service");
    std::fs::read_to_string(file).unwrap()
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
fn systemd_accepts_the_unit_file() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("skipped: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("indrik.service");
    // systemd-analyze checks that the program exists.
    let text = unit();
    let program = "/usr/bin/indrik";
    assert_eq!(text.matches(program).count(), 1);
    // It also looks for the manual page, which only a package installs.
    let text = text.replace("Documentation=man:indrik-serve(1)\n", "");
    std::fs::write(&file, text.replace(program, env!("CARGO_BIN_EXE_indrik"))).unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg(&file).output().unwrap();
    let messages = common::stdout(&output) + &common::stderr(&output);
    assert!(output.status.success() && !messages.contains("indrik.service"), "{messages}");
}

#[test]
fn the_unit_is_sandboxed() {
    // Fails if the exposure level exceeds a tenth of this: 2.0 of 10. docs/install.md states 1.5.
    let threshold = "--threshold=20";
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/indrik.service");
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-webuir", threshold]).arg(unit);
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
    // A unit test of the settings checks that this table is current.
    let settings = include_str!("../../../../docs/serving.md");
    let row = settings.lines().find(|line| line.starts_with("| `--drain-timeout` |")).unwrap();
    let drain = row.split('|').nth(3).unwrap().trim();
    assert!(seconds(stop) >= seconds(drain) + 10, "{stop} {drain}");
}
