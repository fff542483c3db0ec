//! A driver in this process, for tests: it enforces the kernel's rules, and runs the array model as the NPU.
//!
//! | rule | answer to a violation |
//! |---|---|
//! | fields that must be zero | `EINVAL` |
//! | one heap of 64 MiB at a multiple of 64 MiB, or chunks right behind each other, by [`HeapRule`] | `EINVAL`, `EBUSY`, `ENOSPC` |
//! | device buffers only after a mapped heap | `EINVAL`, or `EAGAIN` |
//! | contexts only after a heap, at most six, in whole columns | `ENOENT`, `ENOSPC`, `EINVAL` |
//! | a context is configured once, with PDIs in device buffers | `EINVAL` |
//! | `SET_STATE` for root only | `EACCES` |
//! | commands name the buffers that they use | the command fails |
//! | the NPU does not see the CPU's caches: `SYNC_BO` before and after | wrong data |
//! | `SYNC_BO` from the device is for debug buffers, under the newer rule | `EINVAL` |
//!
//! Each buffer has the CPU's view and the NPU's, with dirty cache lines between them. `SYNC_BO` writes back dirty lines
//! and invalidates the others, so that a missing call is noticed. The NPU sees shared buffers at their addresses in
//! this process, as with shared page tables; under [`HeapRule::Fixed`] the driver does not report these addresses.
//! The clock is virtual: only waits advance it.
//!
//! [`FakeDriver::fail_call`] makes one call fail; [`FakeDriver::leaks`] lists what was not released.

mod firmware;
mod rules;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::io::{AccelIo, Call, DeviceMemory};
use crate::array::{Array, CoreLibrary, Fault};
use crate::uapi::{BoKind, CommandState, HEAP_CHUNK};

/// How the heap works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapRule {
    /// One heap of 64 MiB.
    Fixed,
    /// Chunks of 64 MiB, up to this many; `EAGAIN` asks for another.
    Expandable {
        /// The limit.
        chunks: u64,
    },
}

/// What becomes of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The array model decides.
    Run,
    /// They end in this state without having run.
    End(CommandState),
    /// They never end.
    Hang,
}

/// The driver and its NPU.
#[derive(Debug, Clone)]
pub struct FakeDriver {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    rule: HeapRule,
    library: CoreLibrary,
    outcome: Outcome,
    name: String,
    root: bool,
    /// Nanoseconds.
    clock: i64,
    next_handle: u32,
    next_address: u64,
    buffers: BTreeMap<u32, Object>,
    /// Heap objects in their order.
    heap: Vec<u32>,
    /// Where the range of addresses for the heap begins.
    heap_range: Option<u64>,
    contexts: BTreeMap<u32, Hwctx>,
    /// Timelines, with the last point that was reached and the last that was submitted.
    timelines: BTreeMap<u32, (u64, u64)>,
    mappings: usize,
    ranges: usize,
    calls: Vec<&'static str>,
    /// Number of a call, and the error that it gets.
    fails: Option<(usize, Errno)>,
    fault: Option<Fault>,
}

/// A buffer object. Device buffers have no memory of their own: theirs is the heap's.
#[derive(Debug)]
struct Object {
    kind: BoKind,
    size: u64,
    /// Address for the NPU.
    address: u64,
    mapped: bool,
    /// What the CPU sees.
    host: Vec<u8>,
    /// What the NPU sees.
    device: Vec<u8>,
    /// Cache lines that the CPU has written and not yet written back.
    dirty: Vec<bool>,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl Object {
    /// Writes back dirty lines, and reads the others again.
    fn flush(&mut self, from: usize, to: usize) {
        for line in from / LINE..to.div_ceil(LINE) {
            let range = line * LINE..self.host.len().min((line + 1) * LINE);
            if std::mem::take(&mut self.dirty[line]) {
                self.device[range.clone()].copy_from_slice(&self.host[range]);
            } else {
                self.host[range.clone()].copy_from_slice(&self.device[range]);
            }
        }
    }
}

#[derive(Debug)]
struct Hwctx {
    timeline: u32,
    columns: u8,
    array: Option<Array>,
}

impl FakeDriver {
    /// An NPU of four columns whose cores know the programs of `library`.
    pub fn new(rule: HeapRule, library: CoreLibrary) -> Self {
        let state = State {
            rule,
            library,
            outcome: Outcome::Run,
            name: crate::uapi::DRIVER_NAME.to_owned(),
            root: false,
            clock: 0,
            next_handle: 1,
            next_address: 0x7f00_0000_0000,
            buffers: BTreeMap::new(),
            heap: Vec::new(),
            heap_range: None,
            contexts: BTreeMap::new(),
            timelines: BTreeMap::new(),
            mappings: 0,
            ranges: 0,
            calls: Vec::new(),
            fails: None,
            fault: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what becomes of commands.
    pub fn set_outcome(&self, outcome: Outcome) {
        self.state().outcome = outcome;
    }

    /// Sets the name that the driver reports.
    pub fn set_name(&self, name: &str) {
        name.clone_into(&mut self.state().name);
    }

    /// Sets whether the caller is root.
    pub fn set_root(&self, root: bool) {
        self.state().root = root;
    }

    /// Lets call number `index` fail, counted from 0. Calls that release something do so before they
    /// fail.
    pub fn fail_call(&self, index: usize, error: Errno) {
        self.state().fails = Some((index, error));
    }

    /// [`FakeDriver::fail_call`] by the number of an error, which must be one.
    pub fn fail_raw(&self, index: usize, errno: i32) {
        self.fail_call(index, Errno::from_raw_os_error(errno));
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<&'static str> {
        self.state().calls.clone()
    }

    /// The fault of the last command that failed in the array model.
    pub fn fault(&self) -> Option<Fault> {
        self.state().fault.clone()
    }

    /// Maps a buffer object at an address that the caller has chosen.
    pub fn map_at(&self, map_offset: u64, len: u64, address: u64) -> io::Result<FakeMemory> {
        let mut state = self.state();
        if let Some(error) = state.count("mmap") {
            return Err(error.into());
        }
        let handle = state.map_at(map_offset, len, address)?;
        drop(state);
        Ok(FakeMemory { driver: self.clone(), handle, address, len })
    }

    /// What was not released: buffers, contexts, timelines, mappings and address ranges.
    pub fn leaks(&self) -> Vec<String> {
        let state = self.state();
        let counts = [
            (state.buffers.len(), "buffers"),
            (state.contexts.len(), "contexts"),
            (state.timelines.len(), "timelines"),
            (state.mappings, "mappings"),
            (state.ranges, "ranges"),
        ];
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

impl State {
    /// Counts a call; the error that it gets.
    fn count(&mut self, name: &'static str) -> Option<Errno> {
        let index = self.calls.len();
        self.calls.push(name);
        self.fails.filter(|(fails, _)| *fails == index).map(|(_, error)| error)
    }

    fn handle(&mut self) -> u32 {
        let handle = self.next_handle;
        self.next_handle += 1;
        handle
    }

    fn addresses(&mut self, len: u64, align: u64) -> u64 {
        let address = self.next_address.next_multiple_of(align);
        self.next_address = address + len;
        address
    }

    /// The object with this offset for mapping: its handle in pages.
    fn mappable(&mut self, map_offset: u64, len: u64) -> Result<(u32, &mut Object), Errno> {
        let handle = u32::try_from(map_offset >> 12).map_err(|_| Errno::INVAL)?;
        match self.buffers.get_mut(&handle) {
            Some(object) if object.size == len && object.kind != BoKind::Device => Ok((handle, object)),
            _ => Err(Errno::INVAL),
        }
    }

    /// Maps an object at an address of the process; its handle.
    fn map_at(&mut self, map_offset: u64, len: u64, address: u64) -> Result<u32, Errno> {
        let heap_range = self.heap_range;
        let (handle, object) = self.mappable(map_offset, len)?;
        if object.kind == BoKind::DeviceHeap {
            // The first chunk at a multiple of its size, the others behind it in the order of the NPU's addresses.
            let first = heap_range.unwrap_or(address);
            let expected = first + (object.address - crate::uapi::HEAP_BASE);
            if address != expected || !first.is_multiple_of(HEAP_CHUNK) {
                return Err(Errno::INVAL);
            }
            object.mapped = true;
            self.heap_range = Some(first);
        } else {
            (object.mapped, object.address) = (true, address);
        }
        self.mappings += 1;
        Ok(handle)
    }
}

impl AccelIo for FakeDriver {
    type Memory = FakeMemory;
    type Range = FakeRange;

    fn call(&self, call: Call<'_>) -> io::Result<()> {
        let mut state = self.state();
        let releases =
            matches!(call, Call::CloseBuffer(_) | Call::DestroyContext(_) | Call::DestroyTimeline(_));
        let error = state.count(call.name());
        if error.is_none() || releases {
            state.answer(call)?;
        }
        error.map_or(Ok(()), |error| Err(error.into()))
    }

    fn map(&self, map_offset: u64, len: u64) -> io::Result<FakeMemory> {
        let address = self.state().addresses(len, 4096);
        self.map_at(map_offset, len, address)
    }

    fn reserve(&self, len: u64, align: u64) -> io::Result<FakeRange> {
        let mut state = self.state();
        if let Some(error) = state.count("mmap") {
            return Err(error.into());
        }
        let base = state.addresses(len, align);
        state.ranges += 1;
        Ok(FakeRange { driver: self.clone(), base, len })
    }

    fn map_into(&self, range: &FakeRange, at: u64, map_offset: u64, len: u64) -> io::Result<FakeMemory> {
        if at.checked_add(len).is_none_or(|end| end > range.len) {
            return Err(Errno::INVAL.into());
        }
        self.map_at(map_offset, len, range.base + at)
    }

    fn deadline(&self, timeout: Duration) -> i64 {
        let nanoseconds = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        self.state().clock.saturating_add(nanoseconds)
    }
}

/// Reserved address space.
#[derive(Debug)]
pub struct FakeRange {
    driver: FakeDriver,
    base: u64,
    len: u64,
}

impl Drop for FakeRange {
    fn drop(&mut self) {
        self.driver.state().ranges -= 1;
    }
}

/// The host's view of a buffer object.
#[derive(Debug)]
pub struct FakeMemory {
    driver: FakeDriver,
    handle: u32,
    address: u64,
    len: u64,
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        self.driver.state().mappings -= 1;
    }
}

impl FakeMemory {
    /// The range of bytes of an access, if it is inside.
    fn range(&self, offset: u64, len: usize) -> Option<Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        (end as u64 <= self.len).then_some(start..end)
    }
}

impl DeviceMemory for FakeMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let range = self.range(offset, out.len())?;
        out.copy_from_slice(self.driver.state().buffers.get(&self.handle)?.host.get(range)?);
        Some(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Option<()> {
        let range = self.range(offset, data.len())?;
        let mut state = self.driver.state();
        let object = state.buffers.get_mut(&self.handle)?;
        object.host.get_mut(range.clone())?.copy_from_slice(data);
        object.dirty.get_mut(range.start / LINE..range.end.div_ceil(LINE))?.fill(true);
        Some(())
    }
}
