//! `indrik serve` with a tiny model, as a child process.

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

/// Timeout of every wait; generous for a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(1800);

/// Path of the tiny model.
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
    // On a machine that is busy with something else, requests may wait for long.
    command.env("INDRIK_QUEUE_TIMEOUT", "1h");
    // No gateway has to notice that it ends.
    command.env("INDRIK_DRAIN_LINGER", "1ms");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running server. Killed on drop.
pub struct Served {
    child: Child,
    /// Host and port.
    pub address: String,
    log: Option<JoinHandle<String>>,
    /// The line that `--json` printed.
    pub report: Value,
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
            panic!("the server did not start: {}", log.join().unwrap());
        }
        let report: Value = serde_json::from_str(&line).unwrap();
        let address = report["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        Served { child, address, log: Some(log), report }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    pub fn send(&self, method: &str, path: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        )
        .unwrap();
        write!(stream, "Content-Length: {length}\r\n\r\n{body}").unwrap();
        BufReader::new(stream)
    }

    /// Status and body of a response that is not a stream.
    pub fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(method, path, body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The body of a successful request to `/v1/completions`.
    pub fn complete(&self, body: &Value) -> Value {
        let (status, text) = self.request("POST", "/v1/completions", &body.to_string());
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Value of a metric that is an integer.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.request("GET", "/metrics", "");
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.and_then(|line| line.split(' ').nth(1)?.parse().ok())
            .unwrap_or_else(|| panic!("no {name}: {text}"))
    }

    /// The open files of a server that is ready and has no connection.
    pub fn idle_files(&self) -> Vec<String> {
        // The server opens the files of sensors with its first sample.
        let is_sampled = |stats: &Value| stats["machine"]["time"].as_f64().is_some_and(|time| time > 0.0);
        while !serde_json::from_str(&self.request("GET", "/stats", "").1)
            .is_ok_and(|stats| is_sampled(&stats))
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The connection of that request is there for another moment.
        let listings = (0..10).map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            self.open_files()
        });
        listings.min_by_key(Vec::len).unwrap()
    }

    /// Waits until no file or connection is open besides `files`.
    pub fn wait_for_files(&self, files: &[String]) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut left = self.open_files();
            for file in files {
                if let Some(index) = left.iter().position(|other| other == file) {
                    left.swap_remove(index);
                }
            }
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left open: {left:?}, besides {files:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the file descriptors of the server refer to, in order; connections and anonymous files by kind.
    fn open_files(&self) -> Vec<String> {
        let folder = format!("/proc/{}/fd", self.child.id());
        let target = |entry: std::io::Result<std::fs::DirEntry>| {
            // A descriptor may be closed between the listing and this.
            let target = std::fs::read_link(entry.unwrap().path()).ok()?;
            Some(target.to_string_lossy().split(":[").next().unwrap_or_default().to_owned())
        };
        let mut files: Vec<String> = std::fs::read_dir(folder).unwrap().filter_map(target).collect();
        files.sort_unstable();
        files
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for the process to exit; returns its status and its log.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.log.take().unwrap().join().unwrap());
            }
            assert!(Instant::now() < deadline, "the server does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Errors mean that the process has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
