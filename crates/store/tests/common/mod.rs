//! A small HTTP server for tests, which can fail in the ways that servers and networks fail.

#![allow(dead_code, reason = "each test file uses its part")]

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

/// What goes wrong with one answer.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The connection is cut after so many bytes of the body.
    Cut(usize),
    /// Nothing more comes after so many bytes of the body.
    Stall(usize),
    /// A byte of the body is another one.
    Wrong,
    /// An error instead of an answer.
    Status(u16),
}

/// Something that is served.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub body: Vec<u8>,
    pub kind: &'static str,
    pub tag: Option<&'static str>,
    pub no_ranges: bool,
    /// Requests come, answers do not.
    pub deaf: bool,
    /// A redirect to there, and the headers that come with it.
    pub redirect: Option<String>,
    pub headers: Vec<(&'static str, String)>,
    /// Of the next answers, one each.
    pub faults: VecDeque<Fault>,
    /// Of all answers.
    pub always: Option<Fault>,
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
}

struct Shared {
    pages: Mutex<HashMap<String, Page>>,
    asked: Mutex<Vec<Asked>>,
    over: AtomicBool,
}

/// The server; it ends when dropped.
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
            asked: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if own.over.load(Ordering::Relaxed) {
                    return;
                }
                let own = own.clone();
                // A client may go away in the middle of an answer: that is what some tests are about.
                std::thread::spawn(move || stream.and_then(|stream| own.answer(stream)));
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

    /// What was asked for at a path, and forgets it.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        let mut asked = self.shared.asked.lock().unwrap();
        let (these, others) = std::mem::take(&mut *asked).into_iter().partition(|asked| asked.path == path);
        *asked = others;
        these
    }

    /// Waits until a path was asked for.
    pub fn wait_for(&self, path: &str) {
        let start = Instant::now();
        while !self.shared.asked.lock().unwrap().iter().any(|asked| asked.path == path) {
            assert!(start.elapsed() < Duration::from_secs(20), "{path} was never asked for");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// Until the test is over.
    fn wait(&self) {
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
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
        let asked = Asked { method, path, headers };
        let (page, fault) = {
            let mut pages = self.pages.lock().unwrap();
            match pages.get_mut(&asked.path) {
                // Faults are for those who want the body.
                Some(page) if asked.method == "GET" => {
                    let fault = page.faults.pop_front().or(page.always);
                    (Some(page.clone()), fault)
                }
                page => (page.map(|page| page.clone()), None),
            }
        };
        self.asked.lock().unwrap().push(asked.clone());
        let Some(page) = page else { return send(&mut stream, 404, &[], b"") };
        if page.deaf {
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
        if matches!(fault, Some(Fault::Wrong)) {
            let middle = body.len() / 2;
            body[middle] ^= 1;
        }
        let same = asked.headers.get("if-range").is_none_or(|tag| Some(tag.as_str()) == page.tag);
        let from = asked.headers.get("range").filter(|_| !page.no_ranges && same);
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
        if asked.method == "HEAD" {
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

/// A port where nobody listens.
pub fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Bytes that look random, the same each time.
pub fn noise(count: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An archive of members, every second of them compressed.
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
