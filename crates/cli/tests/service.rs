//! The real server as a service of systemd, and the unit that makes it one.

mod common;

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::Path,
    process::Command,
};

use common::served::{LONG, Served, has_device, serve};

fn unit() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/indrik.service");
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn a_service_manager_is_told_when_it_is_ready_and_when_it_stops() {
    if !has_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    // A file, and a name that is in no folder.
    let name = format!("indrik-test-{}", std::process::id());
    let hidden = SocketAddr::from_abstract_name(&name).unwrap();
    for (manager, told) in [
        (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
        (UnixDatagram::bind_addr(&hidden).unwrap(), format!("@{name}")),
    ] {
        manager.set_read_timeout(Some(LONG)).unwrap();
        let heard = || {
            let mut bytes = [0; 100];
            let length = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        let server = Served::start(serve(&[]).env("NOTIFY_SOCKET", told));
        assert_eq!(heard(), "READY=1");
        assert_eq!(server.ask("GET", "/ready", "").0, 200);
        manager.set_nonblocking(true).unwrap();
        assert!(manager.recv(&mut [0; 100]).is_err(), "nothing more is said before the end");
        manager.set_nonblocking(false).unwrap();
        server.signal("-TERM");
        assert_eq!(heard(), "STOPPING=1");
        assert_eq!(server.end().0.code(), Some(0));
    }
    // A manager that is not there is no reason not to serve.
    let server = Served::start(serve(&[]).env("NOTIFY_SOCKET", folder.path().join("nobody")));
    server.signal("-TERM");
    let (status, log) = server.end();
    assert!(status.success() && log.contains("NOTIFY_SOCKET"), "{log}");
}

#[test]
fn systemd_has_nothing_to_say_of_the_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("not tested: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("indrik.service");
    // A program that is there.
    let text = unit();
    let program = "/usr/local/bin/indrik";
    assert_eq!(text.matches(program).count(), 1);
    std::fs::write(&file, text.replace(program, env!("CARGO_BIN_EXE_indrik"))).unwrap();
    let output = Command::new("systemd-analyze").arg("verify").arg(&file).output().unwrap();
    let said = common::stdout(&output) + &common::stderr(&output);
    assert!(output.status.success() && !said.contains("indrik.service"), "{said}");
}

#[test]
fn a_service_has_time_to_drain() {
    let seconds = |text: &str| text.strip_suffix('s').unwrap().parse::<u32>().unwrap();
    let unit = unit();
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    // The table of settings there is held to be that of the binary by a test of its own.
    let settings = include_str!("../../../docs/serving.md");
    let row = settings.lines().find(|line| line.starts_with("| `--drain-timeout` |")).unwrap();
    let drain = row.split('|').nth(3).unwrap().trim();
    assert!(seconds(stop) >= seconds(drain) + 10, "{stop} {drain}");
}
