//! The kernel's driver.
//!
//! This is the only module of the crate with `unsafe`: requests by `ioctl`, and memory that the NPU sees too.
//!
//! Calls go through the C library rather than straight to the kernel, so that a library that is loaded before it can
//! stand in for the kernel: that is how the binary is tested end to end without an NPU (`crates/fakenpu`).
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::io::{AccelIo, Call, DeviceMemory};
use crate::error::{Error, Result};
use crate::uapi::{self, CuConfig, DrmVersion, MAX_CONFIG_BYTES, SyncobjTimelineWait, WAIT_FOR_SUBMIT};

/// A device node of the kernel's driver, for instance `/dev/accel/accel0`.
#[derive(Debug)]
pub struct LinuxIo {
    node: OwnedFd,
}

impl LinuxIo {
    /// Opens a node.
    pub fn open(path: &Path) -> Result<Self> {
        let node = OpenOptions::new().read(true).write(true).open(path);
        node.map(|node| Self { node: node.into() }).map_err(|source| Error::Open {
            path: path.display().to_string(),
            advice: match source.kind() {
                io::ErrorKind::NotFound => "the amdxdna driver of Linux 6.14 or later provides it",
                io::ErrorKind::PermissionDenied => "add the user to the node's group, usually render",
                _ => "look at the kernel's log",
            },
            source,
        })
    }

    /// Makes a request. `T` must be the structure of `REQUEST`, with pointers that are valid for the kernel's accesses.
    ///
    /// # Safety
    /// As above: the kernel reads and writes through the structure and the pointers in it.
    unsafe fn request<const REQUEST: u32, T>(&self, args: &mut T) -> io::Result<()> {
        loop {
            // SAFETY: the caller vouches for the structure and its pointers; `args` is exclusive for the call.
            let result = unsafe {
                libc::ioctl(self.node.as_raw_fd(), libc::Ioctl::from(REQUEST), ptr::from_mut(args))
            };
            if result != -1 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Maps a buffer object.
    ///
    /// # Safety
    /// With `MAP_FIXED`, nothing else may use the addresses.
    unsafe fn mmap(
        &self,
        at: *mut u8,
        len: usize,
        flags: libc::c_int,
        map_offset: u64,
    ) -> io::Result<*mut u8> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = libc::off_t::try_from(map_offset).map_err(|_| Errno::INVAL)?;
        // SAFETY: a new mapping; the caller vouches for what it replaces.
        mapped(unsafe { libc::mmap(at.cast(), len, protection, flags, self.node.as_raw_fd(), offset) })
    }

    fn version(&self, name: &mut String, version: &mut (i32, i32)) -> io::Result<()> {
        let mut bytes = [0u8; 64];
        let mut args = DrmVersion {
            name_len: bytes.len() as u64,
            name: bytes.as_mut_ptr() as u64,
            ..DrmVersion::default()
        };
        // SAFETY: the structure is DRM's; `name` points to `name_len` writable bytes, and the other texts have length
        // zero.
        unsafe { self.request::<{ uapi::DRM_VERSION }, _>(&mut args)? };
        let len = usize::try_from(args.name_len).unwrap_or(usize::MAX).min(bytes.len());
        *name = String::from_utf8_lossy(&bytes[..len]).trim_end_matches('\0').to_owned();
        *version = (args.major, args.minor);
        Ok(())
    }

    fn configure(&self, args: &uapi::ConfigHwctx, units: &[CuConfig]) -> io::Result<()> {
        // Number of units in the first of eight bytes, then the units.
        let mut parameter = vec![0; 8];
        parameter[..2].copy_from_slice(&(units.len() as u16).to_le_bytes());
        for unit in units {
            parameter.extend_from_slice(&unit.cu_bo.to_le_bytes());
            parameter.extend_from_slice(&[unit.cu_func, 0, 0, 0]);
        }
        if parameter.len() > MAX_CONFIG_BYTES {
            return Err(Errno::INVAL.into());
        }
        let mut args = *args;
        args.param_val = parameter.as_ptr() as u64;
        args.param_val_size = parameter.len() as u32;
        // SAFETY: the structure is the driver's; its pointer leads to `param_val_size` bytes that are only read.
        unsafe { self.request::<{ uapi::CONFIG_HWCTX }, _>(&mut args) }
    }

    fn wait(&self, syncobj: u32, point: u64, deadline: i64) -> io::Result<()> {
        let mut args = SyncobjTimelineWait {
            handles: ptr::from_ref(&syncobj) as u64,
            points: ptr::from_ref(&point) as u64,
            deadline,
            count_handles: 1,
            flags: WAIT_FOR_SUBMIT,
            ..SyncobjTimelineWait::default()
        };
        // SAFETY: the structure is DRM's; both pointers lead to one element, which is only read.
        unsafe { self.request::<{ uapi::SYNCOBJ_TIMELINE_WAIT }, _>(&mut args) }
    }
}

/// The result of `mmap`.
fn mapped(base: *mut libc::c_void) -> io::Result<*mut u8> {
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base.cast()) }
}

impl AccelIo for LinuxIo {
    type Memory = Mapping;
    type Range = Arc<Reserved>;

    fn call(&self, call: Call<'_>) -> io::Result<()> {
        // SAFETY: in every arm, the structure is the one of the request (their sizes are asserted in `uapi`), and
        // pointers in it are set here, from references that outlive the request, with the length beside them.
        unsafe {
            match call {
                Call::Version { name, version } => self.version(name, version),
                Call::CreateContext { args, qos } => {
                    args.qos_p = ptr::from_ref(qos) as u64;
                    self.request::<{ uapi::CREATE_HWCTX }, _>(args)
                }
                Call::DestroyContext(args) => self.request::<{ uapi::DESTROY_HWCTX }, _>(&mut { *args }),
                Call::ConfigContext { args, units } => self.configure(args, units),
                Call::CreateBuffer(args) => self.request::<{ uapi::CREATE_BO }, _>(args),
                Call::BufferInfo(args) => self.request::<{ uapi::GET_BO_INFO }, _>(args),
                Call::SyncBuffer(args) => self.request::<{ uapi::SYNC_BO }, _>(&mut { *args }),
                Call::CloseBuffer(args) => self.request::<{ uapi::GEM_CLOSE }, _>(&mut { *args }),
                Call::Execute { args, command, buffers } => {
                    args.cmd_handles = u64::from(command);
                    args.cmd_count = 1;
                    args.args = buffers.as_ptr() as u64;
                    args.arg_count = buffers.len() as u32;
                    self.request::<{ uapi::EXEC_CMD }, _>(args)
                }
                Call::Wait { syncobj, point, deadline } => self.wait(syncobj, point, deadline),
                Call::DestroyTimeline(args) => self.request::<{ uapi::SYNCOBJ_DESTROY }, _>(&mut { *args }),
                Call::Info { args, buffer } => {
                    args.buffer = buffer.as_mut_ptr() as u64;
                    args.buffer_size = buffer.len() as u32;
                    self.request::<{ uapi::GET_INFO }, _>(args)
                }
                Call::SetState { args, buffer } => {
                    args.buffer = buffer.as_ptr() as u64;
                    args.buffer_size = buffer.len() as u32;
                    self.request::<{ uapi::SET_STATE }, _>(args)
                }
            }
        }
    }

    fn map(&self, map_offset: u64, len: u64) -> io::Result<Mapping> {
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        // SAFETY: the kernel chooses the address.
        let base = unsafe { self.mmap(ptr::null_mut(), len, libc::MAP_SHARED, map_offset)? };
        Mapping::new(base, len, None)
    }

    fn reserve(&self, len: u64, align: u64) -> io::Result<Arc<Reserved>> {
        let total =
            len.checked_add(align).and_then(|total| usize::try_from(total).ok()).ok_or(Errno::NOMEM)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses; it has no accessible memory.
        let base = mapped(unsafe { libc::mmap(ptr::null_mut(), total, libc::PROT_NONE, flags, -1, 0) })?;
        let aligned = (base as u64).next_multiple_of(align);
        Ok(Arc::new(Reserved { base, total, aligned, len, taken: Mutex::default() }))
    }

    fn map_into(&self, range: &Arc<Reserved>, at: u64, map_offset: u64, len: u64) -> io::Result<Mapping> {
        let (offset, len) = range.take(at, len)?;
        // Locked, as XRT does it: the firmware maps the heap when a context is created.
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_LOCKED;
        // SAFETY: `take` gives away each byte of the range once, so that nothing else uses the target.
        let base = unsafe { self.mmap(range.base.wrapping_add(offset), len, flags, map_offset) };
        let base = base.inspect_err(|_| range.lose(offset))?;
        Mapping::new(base, len, Some(Arc::clone(range)))
    }

    fn deadline(&self, timeout: Duration) -> i64 {
        let now = clock_gettime(ClockId::Monotonic);
        let nanoseconds = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec).saturating_add(nanoseconds)
    }
}

/// Reserved address space.
#[derive(Debug)]
pub struct Reserved {
    base: *mut u8,
    total: usize,
    aligned: u64,
    len: u64,
    /// Pieces of it that were given away.
    taken: Mutex<Vec<Piece>>,
}

/// A piece of a reserved range, from its base.
#[derive(Debug)]
struct Piece {
    offset: usize,
    len: usize,
    /// Mapping into it failed. The kernel may have unmapped it by then, and another thread mapped something there.
    is_lost: bool,
}

impl Reserved {
    /// Gives away the `len` bytes from byte `at` on, for good: their offset from the base, and their number.
    fn take(&self, at: u64, len: u64) -> io::Result<(usize, usize)> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Errno::NOMEM.into());
        }
        let offset = (self.aligned - self.base as u64 + at) as usize;
        let len = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.iter().any(|piece| piece.offset < offset + len && offset < piece.offset + piece.len) {
            return Err(Errno::NOMEM.into());
        }
        taken.push(Piece { offset, len, is_lost: false });
        Ok((offset, len))
    }

    /// The piece at this offset may not be this range's any more.
    fn lose(&self, offset: usize) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.iter_mut().filter(|piece| piece.offset == offset).for_each(|piece| piece.is_lost = true);
    }
}

// SAFETY: the pointer is only the start of a range of addresses; nothing is accessed through it.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl Drop for Reserved {
    fn drop(&mut self) {
        let taken = self.taken.get_mut().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|piece| piece.is_lost);
        taken.sort_unstable_by_key(|piece| piece.offset);
        let mut from = 0;
        for (to, next) in
            taken.iter().map(|piece| (piece.offset, piece.offset + piece.len)).chain([(self.total, 0)])
        {
            if to > from {
                // SAFETY: mappings into the range hold it, so none is left, and pieces that may be another's are left
                // out. A failure leaves addresses unused.
                let _ = unsafe { libc::munmap(self.base.wrapping_add(from).cast(), to - from) };
            }
            from = next;
        }
    }
}

/// Memory of a buffer object.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The range that it is in. Such a mapping ends with its range, so that its addresses do not become free before.
    range: Option<Arc<Reserved>>,
}

// SAFETY: the mapping is valid in every thread. It is not `Sync`, since reads and writes through it are not atomic.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(base: *mut u8, len: usize, range: Option<Arc<Reserved>>) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, range })
    }

    /// The offset as a number of bytes inside the mapping, if `len` bytes follow it.
    fn offset(&self, offset: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.range.is_none() {
            // SAFETY: this mapping is its own, and nothing borrows from it. A failure leaves addresses unused.
            let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

impl DeviceMemory for Mapping {
    fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    fn len(&self) -> u64 {
        self.len as u64
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let offset = self.offset(offset, out.len())?;
        // SAFETY: `offset` checked that the bytes are inside the mapping. The NPU may write at the same time only if
        // the caller reads before it waited; then the bytes are of no use, but bytes of any value are valid.
        unsafe { ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), out.as_mut_ptr(), out.len()) };
        Some(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Option<()> {
        let offset = self.offset(offset, data.len())?;
        // SAFETY: `offset` checked that the bytes are inside the mapping, which no reference points into.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.base.as_ptr().add(offset), data.len()) };
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Device;

    #[test]
    fn a_missing_node_is_an_error_with_advice() {
        let error = LinuxIo::open(Path::new("/dev/accel/none")).expect_err("no such node").to_string();
        assert!(error.contains("/dev/accel/none") && error.contains("amdxdna"), "{error}");
    }

    #[test]
    fn a_node_without_the_driver_is_refused() {
        let io = LinuxIo::open(Path::new("/dev/null")).expect("a node that is always there");
        let error = Device::open(io).err().expect("it is no NPU").to_string();
        assert!(error.contains("VERSION failed"), "{error}");
    }

    #[test]
    fn reserved_addresses_are_aligned_and_mappings_are_checked() {
        let io = LinuxIo::open(Path::new("/dev/zero")).expect("a node that is always there");
        // Small, since the memory is locked.
        const CHUNK: u64 = 16 << 10;
        let range = io.reserve(2 * CHUNK, CHUNK).expect("free addresses");
        let first = io.map_into(&range, 0, 0, CHUNK).expect("a mapping");
        let second = io.map_into(&range, CHUNK, 0, CHUNK).expect("a mapping");
        assert!(first.address().is_multiple_of(CHUNK));
        assert_eq!(second.address(), first.address() + CHUNK);
        assert!(io.map_into(&range, CHUNK + 4096, 0, CHUNK).is_err(), "past the range");

        let mut bytes = [1; 4];
        assert_eq!(first.write(CHUNK - 3, &[7; 3]), Some(()));
        assert_eq!(first.read(CHUNK - 4, &mut bytes), Some(()));
        assert_eq!(bytes, [0, 7, 7, 7]);
        assert_eq!(first.read(CHUNK - 3, &mut bytes), None);
        assert_eq!(first.write(u64::MAX, &bytes), None);
        drop((range, first));
        assert_eq!(second.read(0, &mut bytes), Some(()), "a mapping keeps its range");
    }

    /// Whether the process has a mapping that begins at this address.
    fn is_mapped(address: u64) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the process's mappings");
        let ranges = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
        let ranges =
            ranges.map(|(from, to)| [from, to].map(|text| u64::from_str_radix(text, 16).expect("hex")));
        ranges.into_iter().any(|[from, to]| (from..to).contains(&address))
    }

    #[test]
    fn addresses_whose_mapping_failed_are_not_used_again_nor_unmapped() {
        const CHUNK: u64 = 16 << 10;
        let io = LinuxIo::open(Path::new("/dev/zero")).expect("a node that is always there");
        let range = io.reserve(3 * CHUNK, CHUNK).expect("free addresses");
        let first = io.map_into(&range, 0, 0, CHUNK).expect("a mapping");
        // An offset that is no multiple of a page.
        assert!(io.map_into(&range, CHUNK, 1, CHUNK).is_err());
        for at in [0, CHUNK / 2, CHUNK] {
            let error = io.map_into(&range, at, 0, CHUNK).expect_err("taken");
            assert_eq!(error.raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
        }
        let lost = first.address() + CHUNK;
        drop((range, first));
        // What another thread may have mapped there stays.
        assert!(is_mapped(lost));
    }
}
