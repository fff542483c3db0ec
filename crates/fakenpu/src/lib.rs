//! The fake NPU driver under a real binary: a library for `LD_PRELOAD`, for tests only.
//!
//! It replaces the C library's `open`, `ioctl`, `mmap`, `munmap` and `close` for one device node, and forwards all
//! other calls to the kernel. Behind the node is `npu::runtime::fake::FakeDriver`, with the array model as the NPU. So
//! the binary's own structures, request numbers, pointers and mappings are what is tested. The node can be opened several
//! times: each descriptor has its own heap and contexts.
//!
//! | variable | effect |
//! |---|---|
//! | `FAKENPU_NODE` | path of the node; without it, nothing is replaced |
//! | `FAKENPU_LOG` | file that gets the calls whenever a descriptor is closed, and after the last what was not released |
//! | `FAKENPU_FAIL` | `INDEX:ERRNO`: this call of all descriptors fails, counted from 0 |
//! | `FAKENPU_HANG` | commands never end |
//! | `FAKENPU_CORRUPT` | one bit of what the NPU writes is wrong |
//! | `FAKENPU_CHUNKS` | the heap may grow to this many chunks; otherwise there is one |
#![allow(unsafe_code)]

mod kernel;
mod request;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use kernel::Kernel;
use libc::{c_char, c_int, c_long, c_ulong, c_void, mode_t, off_t, size_t};

/// The kernel's side; `None` unless the environment asks for it.
static KERNEL: LazyLock<Option<Mutex<Kernel>>> = LazyLock::new(|| Kernel::from_environment().map(Mutex::new));
/// The descriptors of open nodes, as bits. Read without the lock, since the kernel's side makes calls itself.
static NODES: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
/// Whether the node was ever opened, so that there may be mappings.
static WAS_OPENED: AtomicBool = AtomicBool::new(false);

fn kernel() -> Option<MutexGuard<'static, Kernel>> {
    Some(KERNEL.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The word and the bit of a descriptor; `None` beyond the first 1024.
fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((NODES.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_node(fd: c_int) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
}

/// Returns an error as the C library does.
fn fail(errno: c_int) -> c_int {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Replaces `open`.
///
/// # Safety
/// As `open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller passes a path as C takes it.
    let wanted = unsafe { CStr::from_ptr(path) };
    let is_fake =
        std::env::var_os("FAKENPU_NODE").is_some_and(|node| node.as_encoded_bytes() == wanted.to_bytes());
    // A descriptor that is nothing else's.
    let path = if is_fake { c"/dev/null".as_ptr() } else { path };
    // SAFETY: the caller's arguments, or a constant path.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) } as c_int;
    if let (true, Some((word, bit))) = (is_fake, bit(fd)) {
        if let Some(mut kernel) = kernel() {
            kernel.open(fd);
        }
        word.fetch_or(bit, Ordering::SeqCst);
        WAS_OPENED.store(true, Ordering::SeqCst);
    }
    fd
}

/// Replaces `open64`.
///
/// # Safety
/// As `open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the same contract.
    unsafe { open(path, flags, mode) }
}

/// Replaces `close`.
///
/// # Safety
/// As `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if let (true, Some((word, bit))) = (is_node(fd), bit(fd)) {
        word.fetch_and(!bit, Ordering::SeqCst);
        if let Some(mut kernel) = kernel() {
            kernel.close(fd);
        }
    }
    // SAFETY: the caller's descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

/// Replaces `ioctl`, which takes one argument here.
///
/// # Safety
/// As `ioctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if let (true, Some(mut kernel)) = (is_node(fd), kernel()) {
        // SAFETY: the caller vouches for the structure of the request, and for the pointers in it.
        return match unsafe { request::answer(&mut kernel, fd, request as u32, argument.cast()) } {
            Ok(()) => 0,
            Err(errno) => fail(errno),
        };
    }
    // SAFETY: the caller's arguments.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int }
}

/// Replaces `mmap`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let forward = |flags: c_int, fd: c_int, offset: off_t| {
        // SAFETY: the caller's arguments, or anonymous memory at the same place.
        unsafe { libc::syscall(libc::SYS_mmap, address, len, protection, flags, fd, offset as c_long) }
    };
    let (true, Some(mut kernel)) = (is_node(fd), kernel()) else {
        return forward(flags, fd, offset) as *mut c_void;
    };
    // The limit of locked memory is the machine's, not the test's.
    let base = forward(flags & !libc::MAP_LOCKED | libc::MAP_ANONYMOUS, -1, 0);
    if base == -1 {
        return libc::MAP_FAILED;
    }
    if let Err(errno) = kernel.map(fd, base as usize, len, offset as u64) {
        if flags & libc::MAP_FIXED == 0 {
            // SAFETY: the mapping of above, which nobody knows.
            unsafe { libc::syscall(libc::SYS_munmap, base, len) };
        }
        fail(errno);
        return libc::MAP_FAILED;
    }
    base as *mut c_void
}

/// Replaces `mmap64`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the same contract.
    unsafe { mmap(address, len, protection, flags, fd, offset) }
}

/// Replaces `munmap`.
///
/// # Safety
/// As `munmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    if WAS_OPENED.load(Ordering::SeqCst)
        && let Some(mut kernel) = kernel()
    {
        kernel.unmap(address as usize, len);
    }
    // SAFETY: the caller's arguments.
    unsafe { libc::syscall(libc::SYS_munmap, address, len) as c_int }
}
