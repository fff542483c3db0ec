//! The kernel's side: the driver, and memory that the process shares with it.
//!
//! Each opened descriptor is a node of one driver. The driver in `npu` has its own copy of what the CPU sees. Whenever
//! the kernel or the NPU would look, what the process has written since is copied there by cache lines: only changed lines
//! are dirty, as in a cache.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use libc::c_int;
use npu::gemm::Overlay;
use npu::runtime::DeviceMemory as _;
use npu::runtime::fake::{CommandOutcome, FakeDriver, FakeMemory, FakeNode, HeapRule};
use npu::uapi::{HEAP_BASE, HEAP_CHUNK};

/// Bytes of a cache line.
const LINE: usize = 64;

/// A mapping of a buffer object.
struct Mapped {
    address: usize,
    len: usize,
    memory: FakeMemory,
}

/// What is known about a buffer object.
#[derive(Clone, Copy)]
pub struct ObjectFacts {
    /// Descriptor of its node.
    pub node: c_int,
    pub is_shared: bool,
    pub is_in_heap: bool,
    pub is_heap: bool,
    /// Address for the NPU.
    pub npu_address: u64,
}

/// The kernel's side.
pub struct Kernel {
    driver: FakeDriver,
    /// Open nodes by their descriptors.
    nodes: BTreeMap<c_int, Arc<FakeNode>>,
    /// By handle: the driver gives no two nodes the same.
    pub objects: BTreeMap<u32, ObjectFacts>,
    mapped: BTreeMap<u32, Mapped>,
    log: Option<String>,
    corrupt: bool,
    /// Whether a command has run.
    pub has_run: bool,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn new_driver() -> FakeDriver {
    let rule = match variable("FAKENPU_CHUNKS").and_then(|count| count.parse().ok()) {
        Some(chunks) => HeapRule::Expandable { chunks },
        None => HeapRule::Fixed,
    };
    // Programs of other overlays are executed by their instructions.
    let library = Overlay::KNOWN.iter().fold(npu::array::CoreLibrary::interpreter(), |library, overlay| {
        library.with(overlay.program, overlay.kernel)
    });
    let driver = FakeDriver::new(rule, library);
    if variable("FAKENPU_HANG").is_some() {
        driver.set_outcome(CommandOutcome::Hang);
    }
    let fails = variable("FAKENPU_FAIL");
    if let Some((index, errno)) = fails.as_deref().and_then(|text| text.split_once(':'))
        && let (Ok(index), Ok(errno)) = (index.parse(), errno.parse())
    {
        driver.fail_raw(index, errno);
    }
    driver
}

impl Kernel {
    pub fn from_environment() -> Option<Self> {
        variable("FAKENPU_NODE")?;
        Some(Self {
            driver: new_driver(),
            nodes: BTreeMap::new(),
            objects: BTreeMap::new(),
            mapped: BTreeMap::new(),
            log: variable("FAKENPU_LOG"),
            corrupt: variable("FAKENPU_CORRUPT").is_some(),
            has_run: false,
        })
    }

    pub fn open(&mut self, fd: c_int) {
        self.nodes.insert(fd, Arc::new(self.driver.open()));
    }

    pub fn node(&self, fd: c_int) -> Result<Arc<FakeNode>, i32> {
        self.nodes.get(&fd).cloned().ok_or(libc::EBADF)
    }

    pub fn map(&mut self, fd: c_int, address: usize, len: usize, offset: u64) -> Result<(), i32> {
        let memory = self.node(fd)?.map_at(offset, len as u64, address as u64);
        let memory = memory.map_err(|error| errno_of(&error))?;
        // The driver's offsets are handles in pages.
        self.mapped.insert((offset >> 12) as u32, Mapped { address, len, memory });
        Ok(())
    }

    pub fn unmap(&mut self, address: usize, len: usize) {
        self.mapped.retain(|_, mapped| mapped.address < address || mapped.address >= address + len);
    }

    /// Closes a node, and writes the log: calls, and once all nodes are closed, what was not released.
    pub fn close(&mut self, fd: c_int) {
        self.nodes.remove(&fd);
        self.objects.retain(|_, object| object.node != fd);
        let mut text = String::new();
        for call in self.driver.calls() {
            let _ = writeln!(text, "{call}");
        }
        if self.nodes.is_empty() {
            for leak in self.driver.leaks() {
                let _ = writeln!(text, "leak: {leak}");
            }
            let _ = writeln!(text, "closed");
        }
        if let Some(log) = &self.log {
            // The test fails without the log.
            let _ = std::fs::write(log, text);
        }
    }

    /// The parts of mappings that hold `len` bytes of an object from `offset`: handle, offset, length.
    fn parts(&self, handle: u32, offset: u64, len: u64) -> Vec<(u32, usize, usize)> {
        let Some(object) = self.objects.get(&handle) else { return Vec::new() };
        if !object.is_in_heap {
            return vec![(handle, offset as usize, len as usize)];
        }
        let mut from = (object.npu_address - HEAP_BASE) + offset;
        let end = from + len;
        let is_chunk = |other: &ObjectFacts| other.is_heap && other.node == object.node;
        let chunks: Vec<u32> =
            self.objects.iter().filter(|(_, object)| is_chunk(object)).map(|(handle, _)| *handle).collect();
        let mut parts = Vec::new();
        while from < end {
            let to = end.min((from / HEAP_CHUNK + 1) * HEAP_CHUNK);
            if let Some(chunk) = chunks.get((from / HEAP_CHUNK) as usize) {
                parts.push((*chunk, (from % HEAP_CHUNK) as usize, (to - from) as usize));
            }
            from = to;
        }
        parts
    }

    /// Shows the driver what the process has written.
    pub fn copy_in(&mut self, handle: u32, offset: u64, len: u64) {
        for (handle, offset, len) in self.parts(handle, offset, len) {
            let Some(mapped) = self.mapped.get(&handle) else { continue };
            let (first, last) = (offset / LINE * LINE, (offset + len).min(mapped.len));
            let mut old = [0; LINE];
            for line in (first..last).step_by(LINE) {
                let count = LINE.min(mapped.len - line);
                // SAFETY: the range is inside the mapping, which lasts until it is removed from the table; the process
                // is in a call that it makes for this memory.
                let new = unsafe { std::slice::from_raw_parts((mapped.address + line) as *const u8, count) };
                let known = mapped.memory.read(line as u64, &mut old[..count]);
                if known.is_some() && old[..count] != *new {
                    let _ = mapped.memory.write(line as u64, new);
                }
            }
        }
    }

    /// Shows the process what the NPU or the kernel has written.
    pub fn copy_out(&mut self, handle: u32, offset: u64, len: u64) {
        let corrupt =
            self.corrupt && self.has_run && self.objects.get(&handle).is_some_and(|object| object.is_shared);
        for (handle, offset, len) in self.parts(handle, offset, len) {
            let Some(mapped) = self.mapped.get(&handle) else { continue };
            let len = len.min(mapped.len.saturating_sub(offset));
            // SAFETY: as above; nothing else in the process refers to the bytes of a buffer by reference.
            let bytes = unsafe { std::slice::from_raw_parts_mut((mapped.address + offset) as *mut u8, len) };
            let _ = mapped.memory.read(offset as u64, bytes);
            if let (true, Some(byte)) = (corrupt, bytes.first_mut()) {
                *byte ^= 1;
            }
        }
    }
}

pub fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
