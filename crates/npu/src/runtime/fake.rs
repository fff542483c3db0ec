//! A driver in this process, for tests: it enforces the kernel's rules, and runs the array model as the NPU.
//!
//! | rule | answer to a violation |
//! |---|---|
//! | fields that must be zero | `EINVAL` |
//! | a heap of 64 MiB at a multiple of 64 MiB, or chunks in a row ([`HeapRule`]) | `EINVAL`, `EBUSY`, `ENOSPC` |
//! | device buffers only after a mapped heap | `EINVAL`, or `EAGAIN` |
//! | contexts only after a heap, in whole columns, at most six of all nodes | `ENOENT`, `EINVAL`, `ENOSPC` |
//! | a context is configured once, with PDIs in device buffers | `EINVAL` |
//! | `SET_STATE` for root only | `EACCES` |
//! | commands name the buffers that they use | the command fails |
//! | the NPU does not see the CPU's caches: `SYNC_BO` before and after | wrong data |
//! | `SYNC_BO` from the device is for debug buffers, under the newer rule | `EINVAL` |
//! | no memory goes while the NPU may use it | listed by [`FakeDriver::leaks`] |
//!
//! Each buffer has the CPU's view and the NPU's, with dirty cache lines between them. `SYNC_BO` writes back dirty lines
//! and invalidates the others, so that a missing call is noticed. The NPU sees shared buffers at their addresses in
//! this process, as with shared page tables; under [`HeapRule::Fixed`] the driver does not report these addresses.
//! The clock is virtual: only waits advance it.
//!
//! The NPU may use a command's buffers until the process has waited for it, and after a failure until the context is
//! destroyed; the PDI and the heap as long as a context exists.
//!
//! Each [`FakeDriver::open`] opens the node anew: handles, heap and contexts belong to the opened node, and the driver
//! frees what is left of it when it is closed and nothing of it is mapped.
//!
//! [`FakeDriver::fail_call`] makes one call fail; [`FakeDriver::leaks`] lists what was not released, or too early.

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
pub enum CommandOutcome {
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
    machine: Machine,
    clients: BTreeMap<u32, Client>,
}

/// What all opened nodes share.
#[derive(Debug)]
struct Machine {
    rule: HeapRule,
    library: CoreLibrary,
    outcome: CommandOutcome,
    name: String,
    root: bool,
    /// Nanoseconds.
    clock: i64,
    /// Handles are unique, so that one of another node is noticed.
    next_handle: u32,
    next_address: u64,
    /// Contexts of all nodes.
    contexts: usize,
    ranges: usize,
    calls: Vec<&'static str>,
    fault_of_call: Option<CallFault>,
    /// The fault of the last command.
    fault: Option<Fault>,
    /// Memory that was released while the NPU might use it.
    released_early: Vec<String>,
    /// What closed nodes had not released, as [`Client::counts`].
    left: [usize; COUNTED.len()],
}

/// A call that fails.
#[derive(Debug, Clone, Copy)]
struct CallFault {
    /// Its number.
    index: usize,
    error: Errno,
    /// Whether a call that releases something does so all the same.
    releases: bool,
}

/// What an opened node has.
#[derive(Debug, Default)]
struct Client {
    is_open: bool,
    buffers: BTreeMap<u32, Object>,
    /// Heap objects in their order.
    heap: Vec<u32>,
    /// Where the range of addresses for the heap begins.
    heap_range: Option<u64>,
    contexts: BTreeMap<u32, Hwctx>,
    /// Timelines, with the last point that was reached and the last that was submitted.
    timelines: BTreeMap<u32, (u64, u64)>,
    mappings: usize,
    /// Commands that may use their buffers.
    commands: Vec<Command>,
}

/// Names of [`Client::counts`].
const COUNTED: [&str; 4] = ["buffers", "contexts", "timelines", "mappings"];

impl Client {
    fn counts(&self) -> [usize; COUNTED.len()] {
        [self.buffers.len(), self.contexts.len(), self.timelines.len(), self.mappings]
    }
}

/// A submitted command.
#[derive(Debug)]
struct Command {
    context: u32,
    timeline: u32,
    point: u64,
    /// The NPU has completed it: its buffers may go as soon as the process knows.
    completed: bool,
    /// Its own buffer, and those that it lists.
    buffers: Vec<u32>,
}

/// A node and the machine behind it, for one call.
struct Session<'a> {
    machine: &'a mut Machine,
    client: &'a mut Client,
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
    /// Handle of the loaded PDI, and the array that it has configured.
    loaded: Option<(u32, Array)>,
}

impl FakeDriver {
    /// An NPU of five columns, as Phoenix has, whose cores know the programs of `library`.
    pub fn new(rule: HeapRule, library: CoreLibrary) -> Self {
        let machine = Machine {
            rule,
            library,
            outcome: CommandOutcome::Run,
            name: crate::uapi::DRIVER_NAME.to_owned(),
            root: false,
            clock: 0,
            next_handle: 1,
            next_address: 0x7f00_0000_0000,
            contexts: 0,
            ranges: 0,
            calls: Vec::new(),
            fault_of_call: None,
            fault: None,
            released_early: Vec::new(),
            left: [0; COUNTED.len()],
        };
        Self { state: Arc::new(Mutex::new(State { machine, clients: BTreeMap::new() })) }
    }

    /// Opens the node.
    pub fn open(&self) -> FakeNode {
        let mut state = self.state();
        let client = state.machine.handle();
        state.clients.insert(client, Client { is_open: true, ..Client::default() });
        FakeNode { driver: self.clone(), client }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what becomes of commands.
    pub fn set_outcome(&self, outcome: CommandOutcome) {
        self.state().machine.outcome = outcome;
    }

    /// Sets the name that the driver reports.
    pub fn set_name(&self, name: &str) {
        name.clone_into(&mut self.state().machine.name);
    }

    /// Sets whether the caller is root.
    pub fn set_root(&self, root: bool) {
        self.state().machine.root = root;
    }

    /// Lets call number `index` of all nodes fail, counted from 0. One that releases something does so before it fails.
    pub fn fail_call(&self, index: usize, error: Errno) {
        self.state().machine.fault_of_call = Some(CallFault { index, error, releases: true });
    }

    /// [`FakeDriver::fail_call`], but nothing is released.
    pub fn refuse_call(&self, index: usize, error: Errno) {
        self.state().machine.fault_of_call = Some(CallFault { index, error, releases: false });
    }

    /// [`FakeDriver::fail_call`] by the number of an error, which must be one.
    pub fn fail_raw(&self, index: usize, errno: i32) {
        self.fail_call(index, Errno::from_raw_os_error(errno));
    }

    /// The calls of all nodes so far.
    pub fn calls(&self) -> Vec<&'static str> {
        self.state().machine.calls.clone()
    }

    /// The fault of the last command that failed in the array model.
    pub fn fault(&self) -> Option<Fault> {
        self.state().machine.fault.clone()
    }

    /// What was not released, of open and closed nodes (buffers, contexts, timelines, mappings and address ranges), and
    /// what was released while the NPU might use it.
    pub fn leaks(&self) -> Vec<String> {
        let state = self.state();
        let mut counts = state.machine.left;
        for client in state.clients.values() {
            for (sum, count) in counts.iter_mut().zip(client.counts()) {
                *sum += count;
            }
        }
        let counts = COUNTED.into_iter().zip(counts).chain([("ranges", state.machine.ranges)]);
        let left = counts.filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}"));
        left.chain(state.machine.released_early.iter().cloned()).collect()
    }

    /// What was released while the NPU might use it.
    pub fn released_early(&self) -> Vec<String> {
        self.state().machine.released_early.clone()
    }
}

impl State {
    fn session(&mut self, client: u32) -> Result<Session<'_>, Errno> {
        let client = self.clients.get_mut(&client).ok_or(Errno::BADF)?;
        Ok(Session { machine: &mut self.machine, client })
    }

    /// Frees what a closed node has left, once nothing of it is mapped: as the kernel, whose mappings hold the file.
    fn release(&mut self, client: u32) {
        if self.clients.get(&client).is_some_and(|client| !client.is_open && client.mappings == 0)
            && let Some(client) = self.clients.remove(&client)
        {
            self.machine.contexts -= client.contexts.len();
            for (left, count) in self.machine.left.iter_mut().zip(client.counts()) {
                *left += count;
            }
        }
    }
}

impl Machine {
    /// Counts a call; the fault that it gets.
    fn count(&mut self, name: &'static str) -> Option<CallFault> {
        let index = self.calls.len();
        self.calls.push(name);
        self.fault_of_call.filter(|fault| fault.index == index)
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
}

impl Session<'_> {
    /// The object with this offset for mapping: its handle in pages.
    fn mappable(&mut self, map_offset: u64, len: u64) -> Result<(u32, &mut Object), Errno> {
        let handle = u32::try_from(map_offset >> 12).map_err(|_| Errno::INVAL)?;
        match self.client.buffers.get_mut(&handle) {
            Some(object) if object.size == len && object.kind != BoKind::Device => Ok((handle, object)),
            _ => Err(Errno::INVAL),
        }
    }

    /// Maps an object at an address of the process; its handle.
    fn map_at(&mut self, map_offset: u64, len: u64, address: u64) -> Result<u32, Errno> {
        let heap_range = self.client.heap_range;
        let (handle, object) = self.mappable(map_offset, len)?;
        if object.kind == BoKind::DeviceHeap {
            // The first chunk at a multiple of its size, the others behind it in the order of the NPU's addresses.
            let first = heap_range.unwrap_or(address);
            let expected = first + (object.address - crate::uapi::HEAP_BASE);
            if address != expected || !first.is_multiple_of(HEAP_CHUNK) {
                return Err(Errno::INVAL);
            }
            object.mapped = true;
            self.client.heap_range = Some(first);
        } else {
            (object.mapped, object.address) = (true, address);
        }
        self.client.mappings += 1;
        Ok(handle)
    }

    /// Notes if the NPU may still use the memory of an object that goes.
    fn check_release(&mut self, call: &str, handle: u32) {
        let Client { commands, contexts, heap, .. } = &self.client;
        let in_command = commands.iter().any(|command| command.buffers.contains(&handle));
        let is_pdi = contexts
            .values()
            .any(|context| context.loaded.as_ref().is_some_and(|(loaded, _)| *loaded == handle));
        let is_heap = heap.contains(&handle) && !contexts.is_empty();
        if in_command || is_pdi || is_heap {
            self.machine.released_early.push(format!("{call} of buffer {handle}, which the NPU may use"));
        }
    }
}

/// An opened node of the driver.
#[derive(Debug)]
pub struct FakeNode {
    driver: FakeDriver,
    client: u32,
}

impl FakeNode {
    /// Maps a buffer object at an address that the caller has chosen.
    pub fn map_at(&self, map_offset: u64, len: u64, address: u64) -> io::Result<FakeMemory> {
        let mut state = self.driver.state();
        if let Some(fault) = state.machine.count("mmap") {
            return Err(fault.error.into());
        }
        let handle = state.session(self.client)?.map_at(map_offset, len, address)?;
        drop(state);
        Ok(FakeMemory { driver: self.driver.clone(), client: self.client, handle, address, len })
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        let mut state = self.driver.state();
        if let Some(client) = state.clients.get_mut(&self.client) {
            client.is_open = false;
        }
        state.release(self.client);
    }
}

impl AccelIo for FakeNode {
    type Memory = FakeMemory;
    type Range = FakeRange;

    fn call(&self, call: Call<'_>) -> io::Result<()> {
        let mut state = self.driver.state();
        let is_release =
            matches!(call, Call::CloseBuffer(_) | Call::DestroyContext(_) | Call::DestroyTimeline(_));
        let fault = state.machine.count(call.name());
        if fault.is_none_or(|fault| is_release && fault.releases) {
            state.session(self.client)?.answer(call)?;
        }
        fault.map_or(Ok(()), |fault| Err(fault.error.into()))
    }

    fn map(&self, map_offset: u64, len: u64) -> io::Result<FakeMemory> {
        let address = self.driver.state().machine.addresses(len, 4096);
        self.map_at(map_offset, len, address)
    }

    fn reserve(&self, len: u64, align: u64) -> io::Result<FakeRange> {
        let machine = &mut self.driver.state().machine;
        if let Some(fault) = machine.count("mmap") {
            return Err(fault.error.into());
        }
        let base = machine.addresses(len, align);
        machine.ranges += 1;
        Ok(FakeRange { driver: self.driver.clone(), base, len })
    }

    fn map_into(&self, range: &FakeRange, at: u64, map_offset: u64, len: u64) -> io::Result<FakeMemory> {
        if at.checked_add(len).is_none_or(|end| end > range.len) {
            return Err(Errno::INVAL.into());
        }
        self.map_at(map_offset, len, range.base + at)
    }

    fn deadline(&self, timeout: Duration) -> i64 {
        let nanoseconds = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        self.driver.state().machine.clock.saturating_add(nanoseconds)
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
        let machine = &mut self.driver.state().machine;
        // It does not fail.
        let _ = machine.count("munmap");
        machine.ranges -= 1;
    }
}

/// The host's view of a buffer object.
#[derive(Debug)]
pub struct FakeMemory {
    driver: FakeDriver,
    client: u32,
    handle: u32,
    address: u64,
    len: u64,
}

impl Drop for FakeMemory {
    fn drop(&mut self) {
        let mut state = self.driver.state();
        // It does not fail.
        let _ = state.machine.count("munmap");
        if let Ok(mut session) = state.session(self.client) {
            session.check_release("munmap", self.handle);
            if let Some(object) = session.client.buffers.get_mut(&self.handle) {
                object.mapped = false;
            }
            session.client.mappings -= 1;
        }
        state.release(self.client);
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
        let state = self.driver.state();
        let object = state.clients.get(&self.client)?.buffers.get(&self.handle)?;
        out.copy_from_slice(object.host.get(range)?);
        Some(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Option<()> {
        let range = self.range(offset, data.len())?;
        let mut state = self.driver.state();
        let object = state.clients.get_mut(&self.client)?.buffers.get_mut(&self.handle)?;
        object.host.get_mut(range.clone())?.copy_from_slice(data);
        object.dirty.get_mut(range.start / LINE..range.end.div_ceil(LINE))?.fill(true);
        Some(())
    }
}
