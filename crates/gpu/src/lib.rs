//! Vulkan for compute, and nothing else: the only crate of Indrik that calls the driver, and the only one with `unsafe`.
//!
//! The path from nothing to a result:
//!
//! 1. [`Instance`] opens the loader; [`Instance::adapters`] lists devices with their [`Caps`], [`Tier`]s and [`Heap`]s;
//!    [`select_adapter`] picks one.
//! 2. [`Device::open`] makes it ready. Everything below keeps the device alive; nothing is global.
//! 3. An [`Arena`] per lifetime (weights, KV cache, scratch) hands out [`Buffer`]s. Buffers are known to shaders by
//!    their device address; there are no descriptors anywhere.
//! 4. [`Device::pipeline`] joins a [`Shader`] and its specialisation constants. It is compiled when a program is sealed that
//!    uses it, all of a program's pipelines side by side, through a cache on disk.
//! 5. A [`Recorder`] takes dispatches. What each one reads and writes is declared by its push constants (taken from
//!    the shader itself), and the barriers follow from that. [`Recorder::seal`] makes a [`Program`].
//! 6. [`Program::submit`] replays it: one call into the driver, no recording, no allocation. The [`Ticket`] it returns
//!    is waited for with [`Device::wait`].
//!
//! Errors are values of one type, [`Error`], that say which kind of failure it was. [`Fault`]s can be injected to test
//! what happens after them.
//!
//! Safety: a shader can read and write any device address it is given or computes. The host side cannot check that;
//! each kernel's tests must. What this crate guarantees is that memory named in a program's declarations lives at least
//! as long as the program, and that nothing is freed while the GPU may still use it.

mod adapter;
mod cache;
mod caps;
mod device;
mod error;
mod faults;
mod hazards;
mod heap;
mod instance;
mod malloc;
mod memory;
mod pipeline;
mod program;
mod recorder;
mod shader;
mod staging;
mod statistics;
mod timing;
mod vk_ext;

pub use adapter::{Adapter, AdapterInfo, AdapterKind, select_adapter};
pub use cache::{cache_dir, checksum, write_atomically};
pub use caps::{Caps, Element, MatrixShape, Tier, TierStatus, known};
pub use device::{Counters, Device, DeviceOptions, MAX_PROGRAMS_PER_SUBMIT, Ticket};
pub use error::{Error, Result, format_bytes};
pub use faults::Fault;
pub use heap::{Heap, Memory, MemoryType, memory_type};
pub use instance::{Instance, InstanceOptions};
pub use malloc::{limit_malloc_arenas, trim_malloc};
pub use memory::{Arena, Buffer, Lifetime, View};
pub use pipeline::{Pipeline, Subgroup};
pub use program::Program;
pub use recorder::Recorder;
pub use shader::{
    Access, Address, LocalSize, MAX_PUSH_BYTES, PushConstants, PushWriter, RawConstants, Shader,
    SpecConstants,
};
pub use staging::{StagingRing, StagingSlot};
pub use statistics::{Executable, Statistic};
pub use timing::{TimestampMode, Timing};
