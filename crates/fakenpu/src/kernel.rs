//! The kernel's side: the driver, and memory that the process shares with it.
//!
//! The driver in `npu` has its own copy of what the CPU sees. Whenever the kernel or the NPU would look, what the
//! process has written since is copied there by cache lines: only changed lines are dirty, as in a cache.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use npu::gemm::Overlay;
use npu::runtime::DeviceMemory as _;
use npu::runtime::fake::{FakeDriver, FakeMemory, HeapRule, Outcome};
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
#[derive(Clone, Copy, Default)]
pub struct Object {
    pub is_shared: bool,
    pub is_in_heap: bool,
    pub is_heap: bool,
    /// Address for the NPU.
    pub npu_address: u64,
}

/// The kernel's side.
pub struct Kernel {
    pub driver: FakeDriver,
    pub objects: BTreeMap<u32, Object>,
    mapped: BTreeMap<u32, Mapped>,
    log: Option<String>,
    corrupt: bool,
    /// Whether a command has run.
    pub has_run: bool,
    /// Mappings that were made and removed again.
    counts: (usize, usize),
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
        driver.set_outcome(Outcome::Hang);
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
            objects: BTreeMap::new(),
            mapped: BTreeMap::new(),
            log: variable("FAKENPU_LOG"),
            corrupt: variable("FAKENPU_CORRUPT").is_some(),
            has_run: false,
            counts: (0, 0),
        })
    }

    /// Begins anew for each opened node.
    pub fn open(&mut self) {
        self.driver = new_driver();
        self.objects.clear();
        self.mapped.clear();
        (self.counts, self.has_run) = ((0, 0), false);
    }

    pub fn map(&mut self, address: usize, len: usize, offset: u64) -> Result<(), i32> {
        let memory =
            self.driver.map_at(offset, len as u64, address as u64).map_err(|error| errno_of(&error))?;
        // The driver's offsets are handles in pages.
        self.mapped.insert((offset >> 12) as u32, Mapped { address, len, memory });
        self.counts.0 += 1;
        Ok(())
    }

    pub fn unmap(&mut self, address: usize, len: usize) {
        let before = self.mapped.len();
        self.mapped.retain(|_, mapped| mapped.address < address || mapped.address >= address + len);
        self.counts.1 += before - self.mapped.len();
    }

    /// Writes the log: calls, leaks, and mappings.
    pub fn close(&mut self) {
        // The heap's mapping ends with its range of addresses, after the node was closed.
        let heap =
            self.mapped.keys().filter(|handle| self.objects.get(handle).is_none_or(|object| object.is_heap));
        let alive = self.mapped.len() - heap.count();
        let mut text = String::new();
        for call in self.driver.calls() {
            let _ = writeln!(text, "{call}");
        }
        let leaks = self.driver.leaks().into_iter().filter(|leak| !leak.ends_with("mappings"));
        for leak in leaks {
            let _ = writeln!(text, "leak: {leak}");
        }
        if alive > 0 {
            let _ = writeln!(text, "leak: {alive} mappings");
        }
        let _ = writeln!(text, "closed");
        if let Some(log) = &self.log {
            // The test fails without the log.
            let _ = std::fs::write(log, text);
        }
        self.mapped.clear();
    }

    /// The parts of mappings that hold `len` bytes of an object from `offset`: handle, offset, length.
    fn parts(&self, handle: u32, offset: u64, len: u64) -> Vec<(u32, usize, usize)> {
        let Some(object) = self.objects.get(&handle) else { return Vec::new() };
        if !object.is_in_heap {
            return vec![(handle, offset as usize, len as usize)];
        }
        let mut from = (object.npu_address - HEAP_BASE) + offset;
        let end = from + len;
        let chunks: Vec<u32> =
            self.objects.iter().filter(|(_, object)| object.is_heap).map(|(handle, _)| *handle).collect();
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
