//! The calls that the runtime makes.

use std::io;
use std::time::Duration;

use crate::uapi::{
    ConfigHwctx, CreateBo, CreateHwctx, CuConfig, DestroyHwctx, ExecCmd, GemClose, GetBoInfo, GetInfo,
    QosInfo, SetState, SyncBo, SyncobjDestroy,
};

/// A call to the driver. What the kernel takes by pointer is a reference here; [`LinuxIo`](super::LinuxIo) fills in
/// the pointers.
#[derive(Debug)]
pub enum Call<'a> {
    /// Name and version of the driver.
    Version {
        /// Returned: the name.
        name: &'a mut String,
        /// Returned: major and minor version.
        version: &'a mut (i32, i32),
    },
    /// Creates a context.
    CreateContext {
        /// The structure.
        args: &'a mut CreateHwctx,
        /// Hints about its use.
        qos: &'a QosInfo,
    },
    /// Destroys a context.
    DestroyContext(&'a DestroyHwctx),
    /// Configures the compute units of a context.
    ConfigContext {
        /// The structure.
        args: &'a ConfigHwctx,
        /// The units.
        units: &'a [CuConfig],
    },
    /// Creates a buffer object.
    CreateBuffer(&'a mut CreateBo),
    /// Asks for the addresses of a buffer object.
    BufferInfo(&'a mut GetBoInfo),
    /// Makes writes visible to the other side.
    SyncBuffer(&'a SyncBo),
    /// Closes a buffer object.
    CloseBuffer(&'a GemClose),
    /// Submits a command.
    Execute {
        /// The structure.
        args: &'a mut ExecCmd,
        /// The command's buffer object.
        command: u32,
        /// Buffer objects that the command uses.
        buffers: &'a [u32],
    },
    /// Waits for a point of a timeline.
    Wait {
        /// The timeline.
        syncobj: u32,
        /// The point.
        point: u64,
        /// When to give up, by [`AccelIo::deadline`].
        deadline: i64,
    },
    /// Destroys a timeline.
    DestroyTimeline(&'a SyncobjDestroy),
    /// Asks for facts about the NPU.
    Info {
        /// The structure.
        args: &'a mut GetInfo,
        /// Returned: the facts.
        buffer: &'a mut [u8],
    },
    /// Changes the state of the NPU; root only.
    SetState {
        /// The structure.
        args: &'a mut SetState,
        /// The state.
        buffer: &'a [u8],
    },
}

impl Call<'_> {
    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Version { .. } => "VERSION",
            Self::CreateContext { .. } => "CREATE_HWCTX",
            Self::DestroyContext(_) => "DESTROY_HWCTX",
            Self::ConfigContext { .. } => "CONFIG_HWCTX",
            Self::CreateBuffer(_) => "CREATE_BO",
            Self::BufferInfo(_) => "GET_BO_INFO",
            Self::SyncBuffer(_) => "SYNC_BO",
            Self::CloseBuffer(_) => "GEM_CLOSE",
            Self::Execute { .. } => "EXEC_CMD",
            Self::Wait { .. } => "SYNCOBJ_TIMELINE_WAIT",
            Self::DestroyTimeline(_) => "SYNCOBJ_DESTROY",
            Self::Info { .. } => "GET_INFO",
            Self::SetState { .. } => "SET_STATE",
        }
    }
}

/// Mapped memory of a buffer object.
pub trait DeviceMemory {
    /// Its address in this process.
    fn address(&self) -> u64;
    /// Its size in bytes.
    fn len(&self) -> u64;
    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads into `out`; `None` if it is not all inside.
    fn read(&self, offset: u64, out: &mut [u8]) -> Option<()>;
    /// Writes `data`; `None` if it does not fit.
    fn write(&self, offset: u64, data: &[u8]) -> Option<()>;
}

/// An opened device node.
pub trait AccelIo {
    /// Mapped memory.
    type Memory: DeviceMemory;
    /// Reserved address range, into which the chunks of the heap are mapped contiguously.
    type Range;

    /// Makes a call.
    fn call(&self, call: Call<'_>) -> io::Result<()>;
    /// Maps a buffer object by the offset that the driver gave for it.
    fn map(&self, map_offset: u64, len: u64) -> io::Result<Self::Memory>;
    /// Reserves `len` bytes of address space, aligned to `align`.
    fn reserve(&self, len: u64, align: u64) -> io::Result<Self::Range>;
    /// Maps a buffer object at byte `at` of a range.
    fn map_into(&self, range: &Self::Range, at: u64, map_offset: u64, len: u64) -> io::Result<Self::Memory>;
    /// The deadline `timeout` from now, in nanoseconds of the clock that [`Call::Wait`] uses.
    fn deadline(&self, timeout: Duration) -> i64;
}
