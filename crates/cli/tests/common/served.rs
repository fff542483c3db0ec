//! `indrik serve` with a tiny model, as a process of its own.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::indrik;

/// Anything takes less on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

pub fn tiny() -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures");
    fixtures.join("gguf_q8_0/model.gguf").display().to_string()
}

pub fn has_device() -> bool {
    let found = indrik(&["devices"]).output().unwrap().status.success();
    if !found {
        testkit::missing("a Vulkan device");
    }
    found
}

/// `indrik serve` with the tiny model on a free port.
pub fn serve(arguments: &[&str]) -> Command {
    let model = tiny();
    let first = ["serve", "-m", &model, "--name", "tiny", "--port", "0", "--context", "512", "--json"];
    let mut command = indrik(&[&first, arguments].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub struct Served {
    child: Child,
    /// Host and port.
    pub address: String,
    log: Option<JoinHandle<String>>,
    /// What it said of itself.
    pub said: Value,
}

impl Served {
    pub fn start(command: &mut Command) -> Served {
        let mut child = command.spawn().unwrap();
        let mut errors = child.stderr.take().unwrap();
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).unwrap();
            text
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            child.wait().unwrap();
            panic!("no start: {}", log.join().unwrap());
        }
        let said: Value = serde_json::from_str(&line).unwrap();
        let address = said["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        Served { child, address, log: Some(log), said }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    pub fn send(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        )
        .unwrap();
        write!(stream, "Content-Length: {length}\r\n\r\n{body}").unwrap();
        BufReader::new(stream)
    }

    /// The status and the body of an answer that is sent whole.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(method, path, body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub fn complete(&self, body: &Value) -> Value {
        let (status, text) = self.ask("POST", "/v1/completions", &body.to_string());
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.ask("GET", "/metrics", "");
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.and_then(|line| line.split(' ').nth(1)?.parse().ok())
            .unwrap_or_else(|| panic!("no {name}: {text}"))
    }

    /// Its open files, connections among them.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for its end; says how it ended, and what it had said.
    pub fn end(mut self) -> (ExitStatus, String) {
        let until = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.log.take().unwrap().join().unwrap());
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Nothing where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
