//! Vulkan for compute. The only crate of Indrik that calls the driver, and the only one with `unsafe` code besides the
//! bindings of NVML in `telemetry`.
//!
//! From opening a device to running a program:
//!
//! 1. [`Instance`] opens the Vulkan loader. [`Instance::adapters`] lists devices with their [`Caps`],
//!    [`Tier`]s and [`Heap`]s; [`select_adapter`] picks one.
//! 2. [`Device::open`] opens it. Everything below keeps the device alive; nothing is global.
//! 3. An [`Arena`] per lifetime (weights, KV cache, scratch) allocates [`Buffer`]s. Shaders access buffers by
//!    device address; there are no descriptors.
//! 4. [`Device::pipeline`] combines a [`Shader`] with its specialisation constants. Pipelines are compiled
//!    when a program that uses them is sealed, all of a program's in parallel, through a cache on disk.
//! 5. A [`Recorder`] takes dispatches. The push constants declare which buffers a dispatch reads and writes
//!    (reflected from the shader), and barriers are derived from that. [`Recorder::seal`] returns a
//!    [`Program`].
//! 6. [`Program::submit`] runs it: one driver call, no recording, no allocation. [`Device::wait`] waits for
//!    the returned [`Ticket`].
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let instance = gpu::Instance::new(&gpu::InstanceOptions::default())?;
//! let adapters = instance.adapters()?;
//! let adapter = gpu::select_adapter(&adapters, None)?;
//! let device = gpu::Device::open(adapter, &gpu::DeviceOptions::default())?;
//!
//! let mut arena = gpu::Arena::new(&device, gpu::Lifetime::Scratch, gpu::Memory::Shared);
//! let words = arena.buffer("words", 1024)?;
//! let mut recorder = device.recorder()?;
//! recorder.fill("fill", &words, 7)?;
//! recorder.seal()?.run(Duration::from_secs(1))?;
//! assert_eq!(words.read_vec::<u32>()?, [7; 256]);
//! # Ok::<(), gpu::Error>(())
//! ```
//!
//! All failures are one type, [`Error`]. [`Fault`]s can be injected to test recovery.
//!
//! # Safety
//!
//! A shader can read and write any device address that it is given or computes. The host cannot check that;
//! each kernel's tests must. This crate guarantees that memory which a program's push constants declare lives
//! at least as long as the program, and that nothing is freed while the GPU may still use it.
//!
//! # Structure
//!
//! `device_inner` holds the state that everything shares: the Vulkan handle, the queue, device loss,
//! counters. `block`, `view`, `pipeline`, `timing` and `program` build on it. [`Device`] is the façade on
//! top; `arena`, `recorder` and `staging` are built on the façade.

mod access;
mod accounting;
mod adapter;
mod arena;
mod block;
mod buffer;
mod cache;
mod caps;
mod device;
mod device_inner;
mod error;
mod faults;
mod hazards;
mod heap;
mod instance;
mod logical_device;
mod malloc;
mod pipeline;
mod program;
mod recorder;
mod shader;
mod staging;
mod statistics;
mod timing;
mod view;
mod vk_ext;

pub use access::Access;
pub use accounting::Lifetime;
pub use adapter::{Adapter, AdapterInfo, AdapterKind, select_adapter};
pub use arena::Arena;
pub use buffer::Buffer;
pub use cache::{cache_dir, checksum, write_atomically};
#[cfg(any(test, feature = "testing"))]
pub use caps::known;
pub use caps::{Caps, Element, MatrixShape, Tier, TierStatus};
pub use device::{Device, DeviceOptions};
pub use device_inner::{Counters, Ticket};
pub use error::{Error, Result, format_bytes};
pub use faults::Fault;
pub use heap::{Heap, Memory, MemoryType, memory_type};
pub use instance::{Instance, InstanceOptions};
pub use malloc::{limit_malloc_arenas, trim_malloc};
pub use pipeline::{KeepPipelines, Pipeline, Subgroup};
pub use program::{MAX_PROGRAMS_PER_SUBMIT, Program};
pub use recorder::Recorder;
pub use shader::{
    Address, LocalSize, MAX_PUSH_BYTES, PushConstants, PushWriter, RawConstants, Shader, SpecConstants,
};
pub use staging::{StagingRing, StagingSlot};
pub use statistics::{Executable, Statistic};
pub use timing::{TimestampMode, Timing};
pub use view::View;
