//! A small HTTP server for tests that can simulate failures of servers and networks.

#![allow(dead_code, reason = "each test file uses only some of these")]

pub mod bench;

use std::{
    collections::{HashMap, VecDeque},
    io::{BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

/// A failure of one response.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The connection is closed after this many bytes of the body.
    Cut(usize),
    /// The connection stalls after this many bytes of the body.
    Stall(usize),
    /// One byte of the body is wrong.
    Corrupt,
    /// An error status without a body.
    Status(u16),
}

/// A served resource.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub body: Vec<u8>,
    pub kind: &'static str,
    pub tag: Option<&'static str>,
    pub no_ranges: bool,
    /// Accept requests but never respond.
    pub unresponsive: bool,
    /// Redirect to this address, with the headers below.
    pub redirect: Option<String>,
    pub headers: Vec<(&'static str, String)>,
    /// Faults of the next responses, one each.
    pub faults: VecDeque<Fault>,
    /// Fault of all responses.
    pub always: Option<Fault>,
}

/// A received request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
}

struct Shared {
    pages: Mutex<HashMap<String, Page>>,
    requests: Mutex<Vec<RecordedRequest>>,
    stopped: AtomicBool,
}

/// The server; stopped on drop.
pub struct Server {
    pub url: String,
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            pages: Mutex::default(),
            requests: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if own.stopped.load(Ordering::Relaxed) {
                    return;
                }
                let own = own.clone();
                // Errors are ignored: some tests disconnect in the middle of a response.
                std::thread::spawn(move || stream.and_then(|stream| own.respond(stream)));
            }
        });
        Self { url: format!("http://{address}"), address, shared }
    }

    pub fn put(&self, path: &str, page: Page) {
        self.shared.pages.lock().unwrap().insert(path.to_string(), page);
    }

    pub fn fault(&self, path: &str, fault: Fault) {
        self.shared.pages.lock().unwrap().get_mut(path).unwrap().faults.push_back(fault);
    }

    pub fn always(&self, path: &str, fault: Option<Fault>) {
        self.shared.pages.lock().unwrap().get_mut(path).unwrap().always = fault;
    }

    pub fn change(&self, path: &str, change: impl FnOnce(&mut Page)) {
        change(self.shared.pages.lock().unwrap().get_mut(path).unwrap());
    }

    /// Takes the recorded requests for a path.
    pub fn requests(&self, path: &str) -> Vec<RecordedRequest> {
        let mut requests = self.shared.requests.lock().unwrap();
        let (taken, others) =
            std::mem::take(&mut *requests).into_iter().partition(|request| request.path == path);
        *requests = others;
        taken
    }

    /// Waits until a path is requested.
    pub fn wait_for(&self, path: &str) {
        let start = Instant::now();
        while !self.shared.requests.lock().unwrap().iter().any(|request| request.path == path) {
            assert!(start.elapsed() < Duration::from_secs(20), "{path} was never requested");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// Blocks until the test ends.
    fn wait(&self) {
        while !self.stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn respond(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let mut words = first.split(' ').map(str::to_string);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut headers = HashMap::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_string());
        }
        let request = RecordedRequest { method, path, headers };
        let (page, fault) = {
            let mut pages = self.pages.lock().unwrap();
            match pages.get_mut(&request.path) {
                // Faults apply only to GET requests.
                Some(page) if request.method == "GET" => {
                    let fault = page.faults.pop_front().or(page.always);
                    (Some(page.clone()), fault)
                }
                page => (page.map(|page| page.clone()), None),
            }
        };
        self.requests.lock().unwrap().push(request.clone());
        let Some(page) = page else { return send(&mut stream, 404, &[], b"") };
        if page.unresponsive {
            self.wait();
            return Ok(());
        }
        if let Some(Fault::Status(status)) = fault {
            return send(&mut stream, status, &[], b"");
        }
        let mut extra = page.headers.clone();
        if let Some(target) = page.redirect {
            extra.push(("location", target));
            return send(&mut stream, 302, &extra, b"");
        }
        extra.push(("content-type", page.kind.to_string()));
        extra.extend(page.tag.map(|tag| ("etag", tag.to_string())));
        let mut body = page.body;
        if matches!(fault, Some(Fault::Corrupt)) {
            let middle = body.len() / 2;
            body[middle] ^= 1;
        }
        let same = request.headers.get("if-range").is_none_or(|tag| Some(tag.as_str()) == page.tag);
        let from = request.headers.get("range").filter(|_| !page.no_ranges && same);
        let from: Option<usize> =
            from.map(|range| range["bytes=".len()..].trim_end_matches('-').parse().unwrap());
        let status = match from {
            Some(from) if from >= body.len() => {
                extra.push(("content-range", format!("bytes */{}", body.len())));
                return send(&mut stream, 416, &extra, b"");
            }
            Some(from) => {
                extra.push(("content-range", format!("bytes {from}-{}/{}", body.len() - 1, body.len())));
                body.drain(..from);
                206
            }
            None => 200,
        };
        if request.method == "HEAD" {
            return send(&mut stream, status, &extra, b"");
        }
        match fault {
            Some(Fault::Cut(count) | Fault::Stall(count)) => {
                head(&mut stream, status, &extra, body.len())?;
                stream.write_all(&body[..count.min(body.len())])?;
                if matches!(fault, Some(Fault::Stall(_))) {
                    self.wait();
                }
                stream.shutdown(Shutdown::Both)
            }
            _ => send(&mut stream, status, &extra, &body),
        }
    }
}

fn send(stream: &mut TcpStream, status: u16, headers: &[(&str, String)], body: &[u8]) -> std::io::Result<()> {
    head(stream, status, headers, body.len())?;
    stream.write_all(body)
}

fn head(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    length: usize,
) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    stream.write_all((text + "\r\n").as_bytes())
}

/// An address without a listener.
pub fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Deterministic pseudo-random bytes.
pub fn pseudo_random(count: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A zip archive; every second member is compressed.
pub fn wheel(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (number, (name, bytes)) in members.iter().enumerate() {
        let method = [zip::CompressionMethod::Deflated, zip::CompressionMethod::Stored][number % 2];
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}
