//! Reading the beginning of a remote file, as far as a parser needs it.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

use crate::{
    client::network_error,
    error::{Error, Result},
    hub::{Hub, Location},
    request::Repository,
    url::without_secrets,
};

/// Size of the first request: enough for the metadata of a GGUF file up to its vocabulary.
const FIRST: u64 = 64 << 10;
/// Maximum size of one request.
const MAX_REQUEST: u64 = 4 << 20;
/// Maximum bytes that are read in total: parsers of headers accept no more either.
const MAX_HEADER: u64 = 40 << 20;

/// The beginning of a remote file. Each request asks for as many bytes as all before it together.
pub struct RemoteHeader<'a> {
    hub: &'a Hub<'a>,
    url: String,
    /// The file's repository, for messages.
    repository: Option<Repository>,
    location: Option<Location>,
    bytes: Vec<u8>,
    position: usize,
    len: Option<u64>,
    /// A copy of the file on this machine.
    local: Option<File>,
}

impl<'a> RemoteHeader<'a> {
    pub(crate) fn new(
        hub: &'a Hub<'a>,
        url: String,
        len: Option<u64>,
        repository: Option<Repository>,
    ) -> Self {
        Self { hub, url, repository, location: None, bytes: Vec::new(), position: 0, len, local: None }
    }

    /// The beginning of a file of which there is a copy on this machine.
    pub(crate) fn local(hub: &'a Hub<'a>, file: File, len: u64) -> Self {
        Self { local: Some(file), ..Self::new(hub, String::new(), Some(len), None) }
    }

    /// Continues at the start of the file. Bytes that are here already are not downloaded again.
    pub fn rewind(&mut self) {
        self.position = 0;
    }

    /// Bytes downloaded so far.
    pub fn downloaded(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Size of the file in bytes, which the first request reveals if it is not known.
    pub fn file_bytes(&mut self) -> Result<u64> {
        if self.len.is_none() {
            self.fetch()?;
        }
        self.len.ok_or_else(|| self.error("the server does not tell the file's size"))
    }

    fn error(&self, reason: &str) -> Error {
        Error::Hub { url: without_secrets(&self.url), reason: reason.to_string() }
    }

    fn fetch(&mut self) -> Result<()> {
        let have = self.bytes.len() as u64;
        let want = have.clamp(FIRST, MAX_REQUEST).min(self.len.unwrap_or(u64::MAX).saturating_sub(have));
        if have + want > MAX_HEADER {
            return Err(self.error(&format!("its header is longer than {MAX_HEADER} bytes")));
        }
        if want == 0 {
            return Ok(());
        }
        if let Some(file) = &self.local {
            let mut bytes = vec![0; want as usize];
            file.read_exact_at(&mut bytes, have).map_err(|error| self.error(&error.to_string()))?;
            self.bytes.extend(bytes);
            return Ok(());
        }
        let hub = self.hub;
        let session = hub.session();
        let (bytes, total) = hub
            .interruptible(|| session.retry(&mut |_| {}, |_| self.attempt(&session, have, want), || 0))
            .map_err(|error| match &self.repository {
                Some(repository) => hub.explain_file(repository, error),
                None => error,
            })?;
        if let (Some(expected), Some(found)) = (self.len, total)
            && expected != found
        {
            return Err(Error::Size { url: without_secrets(&self.url), expected, found });
        }
        self.len = self.len.or(total);
        self.bytes.extend(bytes);
        Ok(())
    }

    fn attempt(
        &mut self,
        session: &crate::download::Session,
        have: u64,
        want: u64,
    ) -> Result<(Vec<u8>, Option<u64>)> {
        let location = match self.location.take() {
            Some(location) => location,
            None => session.locate(&self.url, self.len, None)?,
        };
        let headers = [
            ("Range", format!("bytes={have}-{}", have + want - 1)),
            ("Accept-Encoding", "identity".to_string()),
        ];
        let mut reply = match session.client.get(&location.url, &headers, &[]) {
            // The signature has expired; the next attempt asks the hub again.
            Err(Error::Status { url, status: 400 | 401 | 403 | 410, .. }) if location.is_signed => {
                return Err(Error::Network { url, reason: "the signed address has expired".to_string() });
            }
            reply => reply?,
        };
        if reply.is_web_page() {
            return Err(self.error("the server sent a web page instead of the file"));
        }
        let mut bytes = Vec::new();
        let (skip, total) = match reply.status() {
            206 => {
                let range = reply.header("content-range").and_then(crate::download::parse_range);
                let (first, total) = range.ok_or_else(|| self.error("its Content-Range is invalid"))?;
                if first != have {
                    return Err(self.error("the server sent a different range than requested"));
                }
                (0, total)
            }
            // The server ignores ranges: the wanted bytes are taken from the whole file.
            _ => (have, reply.response.body().content_length()),
        };
        let body = reply.response.body_mut().as_reader();
        body.take(skip + want).read_to_end(&mut bytes).map_err(|error| network_error(&self.url, &error))?;
        bytes.drain(..(skip as usize).min(bytes.len()));
        if bytes.is_empty() {
            return Err(network_error(&self.url, &"the connection ended before the first byte"));
        }
        self.location = Some(location);
        Ok((bytes, total))
    }
}

impl Read for RemoteHeader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position == self.bytes.len() && !buffer.is_empty() {
            self.fetch().map_err(io::Error::other)?;
        }
        let rest = &self.bytes[self.position..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.position += count;
        Ok(count)
    }
}
