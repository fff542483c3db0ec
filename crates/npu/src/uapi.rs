//! Structures and numbers of the kernel's `amdxdna` driver, and of the parts of DRM that it needs.
//!
//! Layouts are those of `include/uapi/drm/amdxdna_accel.h`. Sizes and request numbers are checked when this crate
//! is compiled. Fields that the driver requires to be zero stay private, so that no caller can set them.

mod command;
mod info;

use std::mem::size_of;

pub use command::CommandState;
pub use info::{
    AieMetadata, Clock, GET_POWER_MODE, GetArray, GetInfo, QUERY_AIE_METADATA, QUERY_CLOCK_METADATA,
    QUERY_FIRMWARE_VERSION, QUERY_SENSORS, SET_POWER_MODE, Sensor, SetState, TileMetadata,
};

/// Name that the driver reports to DRM's version query.
pub const DRIVER_NAME: &str = "amdxdna_accel_driver";
/// Maximum number of contexts on a Phoenix NPU.
pub const MAX_CONTEXTS: usize = 6;
/// Handle that no object has.
pub const INVALID_HANDLE: u32 = 0;
/// Size and alignment of the device heap. The heap of later kernels grows in steps of this size.
pub const HEAP_CHUNK: u64 = 64 << 20;
/// Base of the device heap in the NPU's address space.
pub const HEAP_BASE: u64 = 0x0400_0000;
/// Alignment of buffers in the device heap.
pub const HEAP_ALIGN: u64 = 32 << 10;
/// Buffer objects that a command may list.
pub const MAX_ARGUMENT_BUFFERS: usize = 4095;
/// Bytes of a context parameter: one page.
pub const MAX_CONFIG_BYTES: usize = 4096;

/// Direction bits of a request that both writes and reads its structure.
const READ_WRITE: u32 = 3;
const WRITE: u32 = 1;
/// Letter of DRM's requests.
const DRM: u32 = b'd' as u32;
/// First request number of a driver's own requests.
const DRIVER_BASE: u32 = 0x40;

const fn request(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | DRM << 8 | number
}

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident: $direction:ident $number:expr, $structure:ty, $bytes:literal, $value:literal;)*) => {
        $(
            $(#[$doc])*
            pub const $name: u32 = request($direction, $number, size_of::<$structure>());
            const _: () = assert!(size_of::<$structure>() == $bytes && $name == $value);
        )*
    };
}

requests! {
    /// Creates a context.
    CREATE_HWCTX: READ_WRITE DRIVER_BASE, CreateHwctx, 56, 0xc038_6440;
    /// Destroys a context.
    DESTROY_HWCTX: READ_WRITE DRIVER_BASE + 1, DestroyHwctx, 8, 0xc008_6441;
    /// Configures a context.
    CONFIG_HWCTX: READ_WRITE DRIVER_BASE + 2, ConfigHwctx, 24, 0xc018_6442;
    /// Creates a buffer object.
    CREATE_BO: READ_WRITE DRIVER_BASE + 3, CreateBo, 32, 0xc020_6443;
    /// Asks for the addresses of a buffer object.
    GET_BO_INFO: READ_WRITE DRIVER_BASE + 4, GetBoInfo, 48, 0xc030_6444;
    /// Makes writes to a buffer object visible to the other side.
    SYNC_BO: READ_WRITE DRIVER_BASE + 5, SyncBo, 24, 0xc018_6445;
    /// Submits a command.
    EXEC_CMD: READ_WRITE DRIVER_BASE + 6, ExecCmd, 56, 0xc038_6446;
    /// Asks for facts about the NPU.
    GET_INFO: READ_WRITE DRIVER_BASE + 7, GetInfo, 16, 0xc010_6447;
    /// Changes the state of the NPU; root only.
    SET_STATE: READ_WRITE DRIVER_BASE + 8, SetState, 16, 0xc010_6448;
    /// Asks for a list of facts.
    GET_ARRAY: READ_WRITE DRIVER_BASE + 10, GetArray, 24, 0xc018_644a;
    /// DRM: name and version of the driver.
    DRM_VERSION: READ_WRITE 0x00, DrmVersion, 64, 0xc040_6400;
    /// DRM: closes the handle of a buffer object.
    GEM_CLOSE: WRITE 0x09, GemClose, 8, 0x4008_6409;
    /// DRM: destroys a synchronisation object.
    SYNCOBJ_DESTROY: READ_WRITE 0xc0, SyncobjDestroy, 8, 0xc008_64c0;
    /// DRM: waits for points of timelines.
    SYNCOBJ_TIMELINE_WAIT: READ_WRITE 0xca, SyncobjTimelineWait, 40, 0xc028_64ca;
}

/// Operations per cycle that XRT's overlays announce.
pub const MAX_OPERATIONS_PER_CYCLE: u32 = 0x800;

/// Hints about a context's use.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QosInfo {
    /// Giga-operations per second.
    pub gops: u32,
    /// Frames per second.
    pub fps: u32,
    /// Bandwidth of DMA.
    pub dma_bandwidth: u32,
    /// Response time.
    pub latency: u32,
    /// Execution time of a frame.
    pub frame_exec_time: u32,
    /// Priority.
    pub priority: u32,
}
const _: () = assert!(size_of::<QosInfo>() == 24);

/// Argument of [`CREATE_HWCTX`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CreateHwctx {
    pub(crate) ext: u64,
    pub(crate) ext_flags: u64,
    pub(crate) qos_p: u64,
    pub(crate) umq_bo: u32,
    pub(crate) log_buf_bo: u32,
    /// Operations per cycle.
    pub max_opc: u32,
    /// Core tiles: columns × rows of cores.
    pub num_tiles: u32,
    pub(crate) mem_size: u32,
    pub(crate) umq_doorbell: u32,
    /// Returned: the context.
    pub handle: u32,
    /// Returned: its timeline.
    pub syncobj_handle: u32,
}

/// Argument of [`DESTROY_HWCTX`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DestroyHwctx {
    /// The context.
    pub handle: u32,
    pub(crate) pad: u32,
}

/// One compute unit of a context: a PDI in a device buffer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CuConfig {
    /// Handle of the buffer.
    pub cu_bo: u32,
    /// Function of the unit.
    pub cu_func: u8,
    pub(crate) pad: [u8; 3],
}
const _: () = assert!(size_of::<CuConfig>() == 8);

impl CuConfig {
    /// The unit whose PDI is in the buffer `cu_bo`.
    pub fn new(cu_bo: u32) -> Self {
        Self { cu_bo, ..Self::default() }
    }
}

/// `param_type` of [`ConfigHwctx`] for compute units.
pub const CONFIG_CU: u32 = 0;

/// Argument of [`CONFIG_HWCTX`]. The parameter is a count of units in 8 bytes, then the units.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ConfigHwctx {
    /// The context.
    pub handle: u32,
    /// What is configured.
    pub param_type: u32,
    pub(crate) param_val: u64,
    pub(crate) param_val_size: u32,
    pub(crate) pad: u32,
}

/// Kind of a buffer object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum BoKind {
    /// Memory of this process that the NPU's DMA reads and writes.
    Shared = 1,
    /// The heap, or a further chunk of it.
    DeviceHeap = 2,
    /// A part of the heap, for PDIs and streams.
    Device = 3,
    /// A command packet.
    Command = 4,
}

/// Argument of [`CREATE_BO`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CreateBo {
    pub(crate) flags: u64,
    pub(crate) vaddr: u64,
    /// Size in bytes.
    pub size: u64,
    /// [`BoKind`] as a number.
    pub kind: u32,
    /// Returned: the object.
    pub handle: u32,
}

impl CreateBo {
    /// An object of `size` bytes.
    pub fn new(kind: BoKind, size: u64) -> Self {
        Self { size, kind: kind as u32, ..Self::default() }
    }
}

/// Argument of [`GET_BO_INFO`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct GetBoInfo {
    pub(crate) ext: u64,
    pub(crate) ext_flags: u64,
    /// The object.
    pub handle: u32,
    pub(crate) pad: u32,
    /// Returned: offset for mapping the object.
    pub map_offset: u64,
    /// Returned: its address in this process, where it has one.
    pub vaddr: u64,
    /// Returned: its address for the NPU.
    pub xdna_addr: u64,
}

impl GetBoInfo {
    /// Asks about the object `handle`.
    pub fn new(handle: u32) -> Self {
        Self { handle, ..Self::default() }
    }
}

/// Direction of [`SyncBo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SyncDirection {
    /// The host wrote.
    ToDevice = 0,
    /// The NPU wrote.
    FromDevice = 1,
}

/// Argument of [`SYNC_BO`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct SyncBo {
    /// The object.
    pub handle: u32,
    /// [`SyncDirection`] as a number.
    pub direction: u32,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub size: u64,
}

/// Argument of [`EXEC_CMD`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ExecCmd {
    pub(crate) ext: u64,
    pub(crate) ext_flags: u64,
    /// The context.
    pub hwctx: u32,
    pub(crate) kind: u32,
    /// The command's buffer object: the handle itself, since there is one.
    pub(crate) cmd_handles: u64,
    pub(crate) args: u64,
    pub(crate) cmd_count: u32,
    pub(crate) arg_count: u32,
    /// Returned: the command's point on the context's timeline.
    pub seq: u64,
}

/// Argument of [`DRM_VERSION`] on 64-bit machines.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DrmVersion {
    /// Returned: major version.
    pub major: i32,
    /// Returned: minor version.
    pub minor: i32,
    /// Returned: patch level.
    pub patch: i32,
    pub(crate) pad: u32,
    pub(crate) name_len: u64,
    pub(crate) name: u64,
    pub(crate) date_len: u64,
    pub(crate) date: u64,
    pub(crate) desc_len: u64,
    pub(crate) desc: u64,
}

/// Argument of [`GEM_CLOSE`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct GemClose {
    /// The object.
    pub handle: u32,
    pub(crate) pad: u32,
}

/// Argument of [`SYNCOBJ_DESTROY`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct SyncobjDestroy {
    /// The object.
    pub handle: u32,
    pub(crate) pad: u32,
}

/// Argument of [`SYNCOBJ_TIMELINE_WAIT`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct SyncobjTimelineWait {
    pub(crate) handles: u64,
    pub(crate) points: u64,
    /// When to give up, in nanoseconds of the monotonic clock.
    pub deadline: i64,
    pub(crate) count_handles: u32,
    /// Flags of the wait.
    pub flags: u32,
    pub(crate) first_signaled: u32,
    pub(crate) pad: u32,
}

/// Flag of [`SyncobjTimelineWait`]: the point may not have a fence yet.
pub const WAIT_FOR_SUBMIT: u32 = 2;
