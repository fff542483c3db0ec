//! The NPU through its kernel driver: heap, buffers, contexts, commands, and waits with a timeout.
//!
//! 1. [`Device::open`] asks the driver for its name and the array's size, and creates the device heap.
//! 2. [`Device::context`] loads a PDI into a context. The heap exists by then, since a device cannot be without one.
//! 3. [`Device::instructions`] puts a stream into the heap; [`Device::buffer`] makes memory for the NPU's DMA.
//! 4. [`Context::submit`] sends a command; [`Fence::wait`] waits for it.
//!
//! Handles and mappings are released on drop, also after errors. After a command failed or timed out, its context
//! is destroyed at once: the state of the array is unknown, and its DMA must stop before buffers are unmapped. If it
//! cannot be destroyed, the memory that it may use is kept until the process ends.
//!
//! All calls go through [`AccelIo`]: [`LinuxIo`] is the kernel, [`fake::FakeNode`] a driver in this process that
//! enforces the kernel's rules and runs the array model behind them.

pub mod fake;

mod context;
mod device;
mod facts;
mod heap;
mod io;
mod linux;

pub use context::{Context, Fence};
pub use device::{Buffer, Device, UploadedStream};
pub use facts::DriverFacts;
pub use io::{AccelIo, Call, DeviceMemory};
pub use linux::LinuxIo;
