//! A small HTTP server for tests that can simulate failures of servers and networks.

use std::{
    collections::{HashMap, VecDeque},
    io::{BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

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
    /// 429 with this `Retry-After` header.
    TooManyRequests(&'static str),
    /// A web page instead of the content, as the login page of a network.
    WebPage,
}

/// A served resource.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Status instead of 200; no body is sent then.
    pub status: Option<u16>,
    /// The content.
    pub body: Arc<Vec<u8>>,
    /// Size of the whole content, of which `body` is the beginning.
    pub total: Option<u64>,
    /// The content type.
    pub kind: &'static str,
    /// The ETag, in quotes.
    pub tag: Option<&'static str>,
    /// Ignore ranges.
    pub no_ranges: bool,
    /// Accept requests but never respond.
    pub unresponsive: bool,
    /// Redirect to this address, with the headers below.
    pub redirect: Option<String>,
    /// Extra headers.
    pub headers: Vec<(&'static str, String)>,
    /// Faults of the next responses, one each.
    pub faults: VecDeque<Fault>,
    /// Fault of all responses.
    pub always: Option<Fault>,
}

/// A received request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// GET or HEAD.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Headers; names are in lower case.
    pub headers: HashMap<String, String>,
}

/// Computes a page from a request.
pub type Handler = Box<dyn Fn(&RecordedRequest) -> Option<(Page, Option<Fault>)> + Send + Sync>;

struct Shared {
    pages: Mutex<HashMap<String, Page>>,
    handler: Option<Handler>,
    requests: Mutex<Vec<RecordedRequest>>,
    stopped: AtomicBool,
}

/// The server; stopped on drop.
pub struct Server {
    /// Its address.
    pub url: String,
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    /// A server of the pages that are put there.
    pub fn start() -> Self {
        Self::with_handler(None)
    }

    /// A server of the pages that `handler` computes; others must have been put there.
    pub fn with_handler(handler: Option<Handler>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            pages: Mutex::default(),
            handler,
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

    /// Serves a page at a path.
    pub fn put(&self, path: &str, page: Page) {
        self.shared.pages.lock().unwrap().insert(path.to_string(), page);
    }

    /// Lets one of the next responses fail.
    pub fn fault(&self, path: &str, fault: Fault) {
        self.shared.pages.lock().unwrap().get_mut(path).unwrap().faults.push_back(fault);
    }

    /// Lets all responses fail, or none.
    pub fn always(&self, path: &str, fault: Option<Fault>) {
        self.shared.pages.lock().unwrap().get_mut(path).unwrap().always = fault;
    }

    /// Changes a page.
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

    /// Takes all recorded requests.
    pub fn all_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut *self.shared.requests.lock().unwrap())
    }

    /// Waits until a path is requested.
    pub fn wait_for(&self, path: &str) {
        while !self.shared.requests.lock().unwrap().iter().any(|request| request.path == path) {
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
        self.requests.lock().unwrap().push(request.clone());
        let (page, fault) = match self.handler.as_ref().and_then(|handler| handler(&request)) {
            Some((page, fault)) => (Some(page), fault),
            None => {
                let mut pages = self.pages.lock().unwrap();
                match pages.get_mut(&request.path) {
                    // Faults apply only to GET requests.
                    Some(page) if request.method == "GET" => {
                        let fault = page.faults.pop_front().or(page.always);
                        (Some(page.clone()), fault)
                    }
                    page => (page.map(|page| page.clone()), None),
                }
            }
        };
        let Some(page) = page else { return send(&mut stream, 404, &[], b"") };
        if page.unresponsive {
            self.wait();
            return Ok(());
        }
        match fault {
            Some(Fault::Status(status)) => return send(&mut stream, status, &[], b""),
            Some(Fault::TooManyRequests(after)) => {
                return send(&mut stream, 429, &[("retry-after", after.to_string())], b"");
            }
            Some(Fault::WebPage) => {
                let kind = [("content-type", "text/html; charset=utf-8".to_string())];
                return send(&mut stream, 200, &kind, b"<!DOCTYPE html><title>Sign in</title>");
            }
            _ => {}
        }
        let mut extra = page.headers.clone();
        if let Some(status) = page.status {
            return send(&mut stream, status, &extra, b"");
        }
        if let Some(target) = page.redirect {
            extra.push(("location", target));
            return send(&mut stream, 302, &extra, b"");
        }
        extra.push(("content-type", page.kind.to_string()));
        extra.extend(page.tag.map(|tag| ("etag", tag.to_string())));
        let body = page.body;
        let same = request.headers.get("if-range").is_none_or(|tag| Some(tag.as_str()) == page.tag);
        let range = request.headers.get("range").filter(|_| !page.no_ranges && same);
        let (status, body) = match range.and_then(|range| parse_range(range)) {
            Some((from, _)) if from >= body.len() => {
                extra.push(("content-range", format!("bytes */{}", body.len())));
                return send(&mut stream, 416, &extra, b"");
            }
            Some((from, last)) => {
                let end = last.map_or(body.len(), |last| body.len().min(last + 1));
                let total = page.total.unwrap_or(body.len() as u64);
                extra.push(("content-range", format!("bytes {from}-{}/{total}", end - 1)));
                (206, &body[from..end])
            }
            None => (200, &body[..]),
        };
        if request.method == "HEAD" {
            return head(&mut stream, status, &extra, body.len());
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
            Some(Fault::Corrupt) => {
                let mut body = body.to_vec();
                let middle = body.len() / 2;
                body[middle] ^= 1;
                send(&mut stream, status, &extra, &body)
            }
            _ => send(&mut stream, status, &extra, body),
        }
    }
}

/// First and last byte of a `Range` header.
fn parse_range(range: &str) -> Option<(usize, Option<usize>)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let last = if last.is_empty() { None } else { Some(last.parse().ok()?) };
    Some((first.parse().ok()?, last))
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
