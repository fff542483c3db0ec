//! A client that keeps its connection and looks at the clock.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::Value;

/// Who hears nothing for so long is stuck.
const STUCK: Duration = Duration::from_secs(120);

/// One client: a connection at a time, opened before the clock starts.
pub struct Client {
    address: String,
    connection: Option<BufReader<TcpStream>>,
}

/// The head of a response.
pub struct Head {
    pub status: u16,
    /// From the request being handed over to the first byte of the response.
    pub waited: Duration,
    /// In seconds, as the server says it.
    pub retry_after: Option<u64>,
    length: Option<usize>,
}

impl Client {
    pub fn new(address: &str) -> Client {
        Client { address: address.to_owned(), connection: None }
    }

    /// Opens the connection, if there is none.
    fn connection(&mut self) -> io::Result<&mut BufReader<TcpStream>> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(STUCK))?;
            stream.set_nodelay(true)?;
            self.connection = Some(BufReader::new(stream));
        }
        Ok(self.connection.as_mut().expect("it was just made"))
    }

    /// Sends a request whole; says when it began to, since the answer may be there before this has returned.
    pub fn send(&mut self, path: &str, body: &str) -> io::Result<Instant> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let connection = self.connection()?;
        let asked = Instant::now();
        connection.get_mut().write_all(request.as_bytes())?;
        Ok(asked)
    }

    /// Sends a request and waits for the head of what comes back.
    pub fn ask(&mut self, path: &str, body: &str) -> io::Result<Head> {
        let asked = self.send(path, body)?;
        let connection = self.connection()?;
        if connection.fill_buf()?.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without an answer"));
        }
        let mut head = Head { status: 0, waited: asked.elapsed(), retry_after: None, length: None };
        let mut line = String::new();
        connection.read_line(&mut line)?;
        head.status =
            line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| odd(&line))?;
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

    /// The next piece of a body that comes in pieces; none at its end.
    pub fn piece(&mut self) -> io::Result<Option<String>> {
        let connection = self.connection()?;
        let mut line = String::new();
        connection.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim_end(), 16).map_err(|_| odd(&line))?;
        let piece = exactly(connection, length)?;
        exactly(connection, "\r\n".len())?;
        Ok((length > 0).then_some(piece))
    }

    /// All of a body.
    pub fn body(&mut self, head: &Head) -> io::Result<String> {
        if let Some(length) = head.length {
            return exactly(self.connection()?, length);
        }
        let mut whole = String::new();
        while let Some(piece) = self.piece()? {
            whole += &piece;
        }
        Ok(whole)
    }

    /// Goes away in the middle of whatever it is.
    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Status and body of a request.
    pub fn answer(&mut self, path: &str, body: &Value) -> io::Result<(u16, String)> {
        let head = self.ask(path, &body.to_string())?;
        Ok((head.status, self.body(&head)?))
    }
}

fn exactly(connection: &mut BufReader<TcpStream>, length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length];
    connection.read_exact(&mut bytes)?;
    String::from_utf8(bytes).map_err(|error| odd(&error.to_string()))
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A generator of numbers that is the same each time.
pub struct Dice(pub u64);

impl Dice {
    /// Less than `below`.
    pub fn throw(&mut self, below: u64) -> u64 {
        // An odd step that goes through all numbers, and a mixture of the bits: splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}
