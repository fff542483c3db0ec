//! The host's memory behind a driver.

/// Lets all threads of this process share one pool of malloc's, for processes that open devices again and again. Only before the first
/// thread is started does it hold for all.
///
/// glibc gives each thread a pool of its own. A driver that compiles on several threads leaves some of each pool behind when its device is
/// closed, and the next device's threads begin others: a server that lost eleven devices held twice the memory of one that had lost
/// none. In one pool what was freed is taken again. Small blocks are kept by each thread either way, so that nobody waits for it.
pub fn share_malloc() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        /// `malloc.h`.
        const M_ARENA_MAX: c_int = -8;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        // SAFETY: glibc's signature, and a parameter that it may be called with at any time. If it refuses, nothing has changed.
        unsafe { mallopt(M_ARENA_MAX, 1) };
    }
}
