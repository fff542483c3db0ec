//! A device with its heap, and the buffers in it.

use std::cell::Cell;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::Context;
use super::facts;
use super::heap::{Heap, call, close, driver_error};
use super::io::{AccelIo, Call, DeviceMemory};
use crate::error::{Error, Result};
use crate::txn::Stream;
use crate::uapi::{AieMetadata, BoKind, CreateBo, GetBoInfo, SyncBo, SyncDirection};

/// Address that the driver reports for a buffer that the NPU sees at its address in this process.
const NO_ADDRESS: u64 = u64::MAX;

/// An NPU.
pub struct Device<I: AccelIo> {
    inner: Arc<Inner<I>>,
}

impl<I: AccelIo> Clone for Device<I> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

pub(super) struct Inner<I: AccelIo> {
    // Unmapped before the node is closed.
    heap: Mutex<Heap<I>>,
    pub(super) io: I,
    metadata: AieMetadata,
    version: (i32, i32),
}

impl<I: AccelIo> Inner<I> {
    fn heap(&self) -> MutexGuard<'_, Heap<I>> {
        // The heap's state is whole between calls, whatever panicked.
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: AccelIo> Drop for Inner<I> {
    fn drop(&mut self) {
        self.heap.get_mut().unwrap_or_else(PoisonError::into_inner).close(&self.io);
    }
}

impl<I: AccelIo> Device<I> {
    /// Checks that the node is an XDNA NPU, and creates its heap.
    pub fn open(io: I) -> Result<Self> {
        let version = facts::version(&io)?;
        let metadata = facts::metadata(&io)?;
        let inner = Inner { io, heap: Mutex::new(Heap::new()), metadata, version };
        inner.heap().grow(&inner.io)?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Size and version of the array.
    pub fn metadata(&self) -> &AieMetadata {
        &self.inner.metadata
    }

    /// Version of the driver: major, minor.
    pub fn driver_version(&self) -> (i32, i32) {
        self.inner.version
    }

    /// A context of `columns` columns with the PDI `image`.
    pub fn context(&self, columns: u16, image: &[u8]) -> Result<Context<I>> {
        let metadata = self.inner.metadata;
        if columns == 0 || columns > metadata.cols {
            return Err(Error::WrongDevice(format!(
                "the overlay takes {columns} columns, and this NPU has {}; use another overlay",
                metadata.cols
            )));
        }
        let pdi = self.heap_buffer(image)?;
        Context::create(Arc::clone(&self.inner), u32::from(columns) * u32::from(metadata.core.row_count), pdi)
    }

    /// Puts a stream into the heap.
    pub fn instructions(&self, stream: &Stream) -> Result<UploadedStream<I>> {
        let bytes = stream.encode()?;
        let buffer = self.heap_buffer(&bytes)?;
        // A stream's header has its size in 32 bits.
        Ok(UploadedStream { buffer, bytes: bytes.len() as u32 })
    }

    /// Memory for the NPU's DMA.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer<I>> {
        let buffer = Buffer::create(Arc::clone(&self.inner), BoKind::Shared, bytes as u64)?;
        // The kernel cleared it through the cache; a late write-back would overwrite what the NPU writes.
        buffer.object.flush(buffer.size)?;
        Ok(buffer)
    }

    fn heap_buffer(&self, data: &[u8]) -> Result<HeapBuffer<I>> {
        let mut heap = self.inner.heap();
        let handle = heap.create(&self.inner.io, data.len() as u64)?;
        let object = BufferObject::new(Arc::clone(&self.inner), handle);
        let mut info = GetBoInfo::new(handle);
        call(&self.inner.io, Call::BufferInfo(&mut info))?;
        heap.write(info.xdna_addr, data)?;
        drop(heap);
        object.flush(data.len() as u64)?;
        Ok(HeapBuffer { object, address: info.xdna_addr })
    }
}

/// A buffer object with its mapping, if it has one of its own. Both are released when it is dropped, unless the NPU may
/// still use it: then they are kept until the process ends.
pub(super) struct BufferObject<I: AccelIo> {
    inner: Arc<Inner<I>>,
    pub(super) handle: u32,
    memory: Option<I::Memory>,
    /// Commands and contexts that use it.
    users: Cell<usize>,
}

impl<I: AccelIo> BufferObject<I> {
    fn new(inner: Arc<Inner<I>>, handle: u32) -> Self {
        Self { inner, handle, memory: None, users: Cell::new(0) }
    }

    /// From now on, the NPU may use it.
    pub(super) fn begin_use(&self) {
        self.users.set(self.users.get() + 1);
    }

    /// Ends a use.
    pub(super) fn end_use(&self) {
        self.users.set(self.users.get().saturating_sub(1));
    }

    /// Flushes the CPU's caches: writes back what the CPU wrote, and forgets what it read.
    ///
    /// The direction is always to the device. The flush is the same for both, and since Linux 6.19 the other one also
    /// expects a debug buffer, and fails for all others.
    fn flush(&self, size: u64) -> Result<()> {
        let direction = SyncDirection::ToDevice as u32;
        call(&self.inner.io, Call::SyncBuffer(&SyncBo { handle: self.handle, direction, offset: 0, size }))
    }
}

impl<I: AccelIo> Drop for BufferObject<I> {
    fn drop(&mut self) {
        let memory = self.memory.take();
        if self.users.get() > 0 {
            // The device keeps the heap, and its node open.
            mem::forget((memory, Arc::clone(&self.inner)));
            return;
        }
        drop(memory);
        close(&self.inner.io, self.handle);
    }
}

/// A buffer in the heap.
pub(super) struct HeapBuffer<I: AccelIo> {
    pub(super) object: BufferObject<I>,
    pub(super) address: u64,
}

/// A stream that commands can run.
pub struct UploadedStream<I: AccelIo> {
    pub(super) buffer: HeapBuffer<I>,
    pub(super) bytes: u32,
}

/// Memory that this process and the NPU share.
pub struct Buffer<I: AccelIo> {
    pub(super) object: BufferObject<I>,
    pub(super) address: u64,
    size: u64,
}

impl<I: AccelIo> Buffer<I> {
    pub(super) fn create(inner: Arc<Inner<I>>, kind: BoKind, size: u64) -> Result<Self> {
        let mut create = CreateBo::new(kind, size);
        call(&inner.io, Call::CreateBuffer(&mut create))?;
        let mut object = BufferObject::new(inner, create.handle);
        let io = &object.inner.io;
        let mut info = GetBoInfo::new(object.handle);
        call(io, Call::BufferInfo(&mut info))?;
        let memory = io.map(info.map_offset, size).map_err(|source| driver_error("mmap", source))?;
        let address = memory.address();
        object.memory = Some(memory);
        // Where the NPU sees the process's addresses, the driver knows this one only now.
        let mut info = GetBoInfo::new(object.handle);
        call(&object.inner.io, Call::BufferInfo(&mut info))?;
        let address = if info.xdna_addr == NO_ADDRESS { address } else { info.xdna_addr };
        Ok(Self { object, address, size })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Writes at the start of the buffer, for the NPU to see.
    pub fn write(&self, data: &[u8]) -> Result<()> {
        self.put(data)?;
        self.object.flush(data.len() as u64)
    }

    /// Reads from the start of the buffer what the NPU wrote.
    pub fn read(&self, out: &mut [u8]) -> Result<()> {
        self.object.flush(out.len() as u64)?;
        self.get(out)
    }

    pub(super) fn put(&self, data: &[u8]) -> Result<()> {
        let written = self.object.memory.as_ref().and_then(|memory| memory.write(0, data));
        written.ok_or_else(|| self.outside(data.len()))
    }

    pub(super) fn get(&self, out: &mut [u8]) -> Result<()> {
        let len = out.len();
        let read = self.object.memory.as_ref().and_then(|memory| memory.read(0, out));
        read.ok_or_else(|| self.outside(len))
    }

    fn outside(&self, len: usize) -> Error {
        Error::OutOfBounds { size: self.size, offset: 0, len: len as u64 }
    }
}
