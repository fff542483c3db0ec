//! The device heap: where PDIs and streams live.
//!
//! Two rules exist. Kernels until mid 2026, and Phoenix on all kernels that we read, have one heap of 64 MiB at a
//! multiple of 64 MiB. Later kernels let other NPUs add chunks: when a buffer does not fit, its creation fails with
//! `EAGAIN` until there is another heap object, mapped right behind the last one. The code below is right for both:
//! it begins with one chunk, and adds another only on `EAGAIN`.

use std::io;

use super::io::{AccelIo, Call, DeviceMemory};
use crate::error::{Error, Result};
use crate::uapi::{BoKind, CreateBo, GemClose, GetBoInfo, HEAP_CHUNK};

/// Chunks of reserved address space: the largest heap that the driver has for any NPU, 512 MiB.
const MAX_CHUNKS: u64 = 8;

pub(super) struct Heap<I: AccelIo> {
    chunks: Vec<Chunk<I::Memory>>,
    /// Dropped after the chunks, which are inside.
    range: Option<I::Range>,
}

struct Chunk<M> {
    handle: u32,
    /// Address for the NPU.
    address: u64,
    memory: M,
}

/// What a failed call means to a user.
pub(super) fn driver_error(call: &'static str, source: io::Error) -> Error {
    use rustix::io::Errno;
    let advice = match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM) if call == "mmap" || call == "CREATE_BO" => {
            "; raise the limit of locked memory (ulimit -l) to 64 MiB or more, or free memory"
        }
        Some(Errno::AGAIN) if call == "mmap" => {
            "; raise the limit of locked memory (ulimit -l) to 64 MiB or more"
        }
        Some(Errno::INVAL | Errno::NOENT | Errno::NOSPC) if call == "CREATE_HWCTX" => {
            "; all contexts may be in use: XDNA1 has six, and each model that uses the NPU has one"
        }
        Some(Errno::ACCESS | Errno::PERM) => "; the call needs rights that this user does not have",
        Some(Errno::NODEV) => "; the driver has lost the NPU: look at the kernel's log",
        Some(Errno::INVAL) => "; the driver does not take this request: report its version",
        _ => "",
    };
    Error::Driver { call, source, advice }
}

pub(super) fn call<I: AccelIo>(io: &I, call: Call<'_>) -> Result<()> {
    let name = call.name();
    io.call(call).map_err(|source| driver_error(name, source))
}

pub(super) fn close<I: AccelIo>(io: &I, handle: u32) {
    // Nothing can be done about a failure: closing the node frees what is left.
    let _ = io.call(Call::CloseBuffer(&GemClose { handle, pad: 0 }));
}

impl<I: AccelIo> Heap<I> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), range: None }
    }

    /// Adds a chunk.
    pub(super) fn grow(&mut self, io: &I) -> Result<()> {
        let at = self.chunks.len() as u64 * HEAP_CHUNK;
        if at >= MAX_CHUNKS * HEAP_CHUNK {
            return Err(Error::HeapFull { bytes: HEAP_CHUNK });
        }
        let range = match &self.range {
            Some(range) => range,
            None => {
                let range = io.reserve(MAX_CHUNKS * HEAP_CHUNK, HEAP_CHUNK);
                self.range.insert(range.map_err(|source| driver_error("mmap", source))?)
            }
        };
        let mut create = CreateBo::new(BoKind::DeviceHeap, HEAP_CHUNK);
        call(io, Call::CreateBuffer(&mut create))?;
        let chunk = Self::map_chunk(io, range, at, create.handle);
        // Nothing can be put into a heap with a chunk that is not mapped.
        self.chunks.push(chunk.inspect_err(|_| close(io, create.handle))?);
        Ok(())
    }

    fn map_chunk(io: &I, range: &I::Range, at: u64, handle: u32) -> Result<Chunk<I::Memory>> {
        let mut info = GetBoInfo::new(handle);
        call(io, Call::BufferInfo(&mut info))?;
        let memory = io.map_into(range, at, info.map_offset, HEAP_CHUNK);
        let memory = memory.map_err(|source| driver_error("mmap", source))?;
        Ok(Chunk { handle, address: info.xdna_addr, memory })
    }

    /// Creates a buffer in the heap; its handle.
    pub(super) fn create(&mut self, io: &I, bytes: u64) -> Result<u32> {
        loop {
            let mut create = CreateBo::new(BoKind::Device, bytes);
            let error = match io.call(Call::CreateBuffer(&mut create)) {
                Ok(()) => return Ok(create.handle),
                Err(error) => error,
            };
            use rustix::io::Errno;
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::AGAIN) => self.grow(io).map_err(|error| match &error {
                    Error::HeapFull { .. } => Error::HeapFull { bytes },
                    // No further chunk: the fixed rule, or the limit of the other.
                    Error::Driver { call: "CREATE_BO", source, .. } => {
                        match source.raw_os_error().map(Errno::from_raw_os_error) {
                            Some(Errno::BUSY | Errno::NOSPC | Errno::INVAL) => Error::HeapFull { bytes },
                            _ => error,
                        }
                    }
                    _ => error,
                })?,
                Some(Errno::NOMEM | Errno::NOSPC) => return Err(Error::HeapFull { bytes }),
                _ => return Err(driver_error("CREATE_BO", error)),
            }
        }
    }

    /// Writes at an address of the NPU, which may span chunks.
    pub(super) fn write(&self, mut address: u64, mut data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        let outside =
            |offset| Error::OutOfBounds { size: self.chunks.len() as u64 * HEAP_CHUNK, offset, len };
        while !data.is_empty() {
            let chunk = self.chunks.iter().find_map(|chunk| {
                let offset = address.checked_sub(chunk.address).filter(|&offset| offset < HEAP_CHUNK)?;
                Some((&chunk.memory, offset))
            });
            let (memory, offset) = chunk.ok_or_else(|| outside(address))?;
            let count = data.len().min((memory.len() - offset) as usize);
            memory.write(offset, &data[..count]).ok_or_else(|| outside(address))?;
            (data, address) = (&data[count..], address + count as u64);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, io: &I) {
        for chunk in self.chunks.drain(..).rev() {
            drop(chunk.memory);
            close(io, chunk.handle);
        }
    }
}
