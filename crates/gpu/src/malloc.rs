//! The host's memory behind a driver.

/// Lets all threads of this process share one pool of malloc's, for processes that open devices again and again. Only before the first
/// thread is started does it hold for all.
///
/// glibc gives each thread a pool of its own. A driver that compiles on several threads leaves some of each pool behind when its device is
/// closed, and the next device's threads begin others: a server that lost eleven devices held twice the memory of one that had lost
/// none. In one pool what was freed is taken again. Small blocks are kept by each thread either way, so that nobody waits for it.
pub fn limit_malloc_arenas() {
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

/// Gives back to the system what malloc holds and nobody uses, wherever in its pools it lies: glibc itself gives back only what is at the
/// end of one. A driver's compiler leaves much of it behind, and how much is chance: a server on Mesa's CPU driver held 200 to 230 MB
/// after its first lost devices, of which it used 160. It took 0.3 to 7 ms in servers of a tiny model and of Gemma's 270M.
pub fn trim_malloc() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> c_int;
        }
        // SAFETY: glibc's signature, and it may be called at any time from any thread.
        unsafe { malloc_trim(0) };
    }
}
