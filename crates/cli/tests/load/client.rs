//! An HTTP client with keep-alive that measures latencies.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::Value;

/// Read timeout; without data for this long the server is stuck.
const READ_TIMEOUT: Duration = Duration::from_secs(1800);

/// A client with one connection, opened before latencies are measured.
pub struct Client {
    address: String,
    connection: Option<BufReader<TcpStream>>,
}

/// Head of a response.
pub struct Head {
    pub status: u16,
    /// Time from sending the request to the first byte of the response.
    pub latency: Duration,
    /// `Retry-After` in seconds.
    pub retry_after: Option<u64>,
    length: Option<usize>,
}

impl Client {
    pub fn new(address: &str) -> Client {
        Client { address: address.to_owned(), connection: None }
    }

    /// The connection, opened if necessary.
    fn connection(&mut self) -> io::Result<&mut BufReader<TcpStream>> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(READ_TIMEOUT))?;
            stream.set_nodelay(true)?;
            self.connection = Some(BufReader::new(stream));
        }
        Ok(self.connection.as_mut().expect("opened above"))
    }

    /// Sends a request. Returns the time before sending: the response may arrive before this returns.
    pub fn send(&mut self, path: &str, body: &str) -> io::Result<Instant> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let connection = self.connection()?;
        let sent = Instant::now();
        connection.get_mut().write_all(request.as_bytes())?;
        Ok(sent)
    }

    /// Sends a request and waits for the head of the response.
    pub fn request(&mut self, path: &str, body: &str) -> io::Result<Head> {
        let sent = self.send(path, body)?;
        let connection = self.connection()?;
        if connection.fill_buf()?.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without a response"));
        }
        let mut head = Head { status: 0, latency: sent.elapsed(), retry_after: None, length: None };
        let mut line = String::new();
        connection.read_line(&mut line)?;
        head.status =
            line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| invalid(&line))?;
        loop {
            line.clear();
            connection.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            let number = || value.parse().ok();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = number(),
                "retry-after" => head.retry_after = value.parse().ok(),
                _ => {}
            }
        }
        Ok(head)
    }

    /// The next chunk of a chunked body; `None` at its end.
    pub fn chunk(&mut self) -> io::Result<Option<String>> {
        let connection = self.connection()?;
        let mut line = String::new();
        connection.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim_end(), 16).map_err(|_| invalid(&line))?;
        let chunk = read_exactly(connection, length)?;
        read_exactly(connection, "\r\n".len())?;
        Ok((length > 0).then_some(chunk))
    }

    /// Reads the complete body.
    pub fn body(&mut self, head: &Head) -> io::Result<String> {
        if let Some(length) = head.length {
            return read_exactly(self.connection()?, length);
        }
        let mut body = String::new();
        while let Some(chunk) = self.chunk()? {
            body += &chunk;
        }
        Ok(body)
    }

    /// Closes the connection, whatever its state.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Sends a request; returns the response's status and body.
    pub fn complete(&mut self, path: &str, body: &Value) -> io::Result<(u16, String)> {
        let head = self.request(path, &body.to_string())?;
        Ok((head.status, self.body(&head)?))
    }
}

/// Reads exactly `length` bytes.
fn read_exactly(connection: &mut BufReader<TcpStream>, length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length];
    connection.read_exact(&mut bytes)?;
    String::from_utf8(bytes).map_err(|error| invalid(&error.to_string()))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A deterministic random number generator: splitmix64.
pub struct Random(pub u64);

impl Random {
    /// A number less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
