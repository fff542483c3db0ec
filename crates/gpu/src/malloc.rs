//! Tuning glibc's malloc for processes that reopen devices.

/// Makes all threads of this process share one malloc arena. For processes that open devices repeatedly. Call
/// it before the first thread starts; otherwise it does not apply to all threads.
///
/// glibc gives each thread its own arena. A driver that compiles on several threads leaves memory behind in
/// each arena when its device is closed, and the next device's threads start new arenas: a server that had
/// lost eleven devices held twice the memory of one that had lost none. In a single arena, freed memory is
/// reused. Small blocks are cached per thread either way, so the arena's lock is not contended.
pub fn limit_malloc_arenas() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        /// From `malloc.h`.
        const M_ARENA_MAX: c_int = -8;
        unsafe extern "C" {
            fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        // SAFETY: the declaration matches glibc's, and this parameter may be set at any time. On failure
        // nothing changes.
        unsafe { mallopt(M_ARENA_MAX, 1) };
    }
}

/// Returns unused malloc memory to the system from anywhere in the heap; glibc itself returns only memory at
/// the top. A driver's compiler leaves a varying amount behind: a server on Mesa's CPU driver held 200 to 230
/// MB after its first device losses, of which it used 160. The call took 0.3 to 7 ms in servers of a tiny
/// model and of Gemma 3 270M.
pub fn trim_malloc() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::c_int;
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> c_int;
        }
        // SAFETY: the declaration matches glibc's; it may be called at any time from any thread.
        unsafe { malloc_trim(0) };
    }
}
