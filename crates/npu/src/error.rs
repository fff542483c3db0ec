//! The errors of this crate.

use std::fmt;

use rustix::io::Errno;

use crate::array::Fault;

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A binary format that this crate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Container of an overlay.
    Xclbin,
    /// Section `AIE_PARTITION` of an xclbin.
    Partition,
    /// Programmable device image.
    Pdi,
    /// Configuration data object: register writes.
    Cdo,
    /// Transaction stream: instructions of the NPU's controller.
    Txn,
    /// Program of a core.
    Program,
}

impl Format {
    /// What to use instead of a file with an unsupported feature.
    fn advice(self) -> &'static str {
        match self {
            Self::Txn => "use a stream for XDNA1, as mlir-aie and this crate generate them",
            _ => "use an overlay built by mlir-aie for one partition",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xclbin => "xclbin",
            Self::Partition => "AIE_PARTITION section",
            Self::Pdi => "PDI",
            Self::Cdo => "CDO",
            Self::Txn => "transaction stream",
            Self::Program => "core program",
        })
    }
}

/// Whether a call of the driver failed because something ran out that other models or programs hold a part of: memory,
/// memory that may be locked, room in the driver, or contexts.
pub(crate) fn ran_out(call: &str, error: &std::io::Error) -> bool {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM | Errno::AGAIN | Errno::NOSPC) => true,
        // The driver does not tell a firmware that has no context left from one that refuses the request.
        Some(Errno::INVAL | Errno::NOENT) => call == "CREATE_HWCTX",
        _ => false,
    }
}

/// What can go wrong, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are not of the format: a damaged or foreign file.
    #[error("{format}: {reason} (byte {offset:#x}); check the file against its published SHA-256")]
    Malformed {
        /// The format that was expected.
        format: Format,
        /// Offset of the bytes in question.
        offset: usize,
        /// The rule that they break.
        reason: String,
    },
    /// A valid file with a feature that this crate does not have.
    #[error("{format}: {feature} is not supported; {}", .format.advice())]
    Unsupported {
        /// The format of the file.
        format: Format,
        /// The feature.
        feature: String,
    },
    /// A stream that an overlay cannot be used with.
    #[error("instruction stream: {0}")]
    WrongStream(&'static str),
    /// A line of a core's program that cannot be assembled.
    #[error("line {line} of the core program: {reason}")]
    Assembly {
        /// The line, from 1 on.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A matrix product that the overlay cannot compute.
    #[error("matrix product of {m} × {k} × {n}: {reason}")]
    Shape {
        /// Rows of the result.
        m: usize,
        /// Length of the dot products.
        k: usize,
        /// Columns of the result.
        n: usize,
        /// The limit that the shape exceeds.
        reason: String,
    },
    /// The array model stopped: the configuration or the stream is wrong.
    #[error("array model: {0}")]
    Array(#[from] Fault),
    /// The device node could not be opened.
    #[error("cannot open {path}: {source}; {advice}")]
    Open {
        /// The device node.
        path: String,
        /// What the system said.
        source: std::io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// The device is not one that this crate drives.
    #[error("{0}")]
    WrongDevice(String),
    /// A call to the driver failed.
    #[error("NPU driver: {call} failed: {source}{advice}")]
    Driver {
        /// The call.
        call: &'static str,
        /// What the system said.
        source: std::io::Error,
        /// What to do, with a leading separator; empty where there is nothing to advise.
        advice: &'static str,
    },
    /// The device heap is full.
    #[error("the NPU's device heap has no room for {bytes} bytes; free buffers or use a smaller stream")]
    HeapFull {
        /// Size of the buffer.
        bytes: u64,
    },
    /// An access past the end of a buffer.
    #[error("NPU buffer of {size} bytes: access to {len} bytes at {offset} is out of bounds")]
    OutOfBounds {
        /// Size of the buffer.
        size: u64,
        /// Start of the access.
        offset: u64,
        /// Length of the access.
        len: u64,
    },
    /// A command takes more buffers than its packet has room for.
    #[error("a command takes at most {limit} buffers, not {given}")]
    TooManyArguments {
        /// Number of buffers.
        given: usize,
        /// Room of the packet.
        limit: usize,
    },
    /// The NPU reported that a command failed.
    #[error("the NPU ended the command in state {state}; its context is of no further use")]
    CommandFailed {
        /// The state in the command's header.
        state: crate::uapi::CommandState,
    },
    /// The NPU did not finish a command in time.
    #[error("the NPU did not finish the command within {milliseconds} ms; its context is of no further use")]
    Timeout {
        /// The limit.
        milliseconds: u128,
    },
    /// The NPU did not end a command well, and could not be stopped.
    #[error(
        "{cause}; it cannot be destroyed either ({source}), so the memory that it may use is kept until this process ends"
    )]
    NotStopped {
        /// What happened to the command.
        cause: Box<Error>,
        /// Why the context cannot be destroyed.
        source: std::io::Error,
    },
    /// The context was given up after a command failed or timed out.
    #[error("the NPU context was given up after an earlier command failed; create another")]
    ContextLost,
    /// A product names a matrix that its backend does not keep.
    #[error("the matrix of this product is not stored in this backend; store it there first")]
    NotStored,
}

impl Error {
    pub(crate) fn malformed(format: Format, offset: usize, reason: impl Into<String>) -> Self {
        Self::Malformed { format, offset, reason: reason.into() }
    }

    /// Whether the driver or the hardware failed, so that whatever uses the NPU next would fail too. Shapes that an overlay
    /// does not take and memory that runs out concern one product or one model. A device that cannot be opened has not
    /// failed: the next attempt costs nothing, and says the same.
    pub fn is_of_device(&self) -> bool {
        match self {
            Self::Driver { call, source, .. } => !ran_out(call, source),
            Self::Array(_) | Self::CommandFailed { .. } | Self::Timeout { .. } | Self::NotStopped { .. } => {
                true
            }
            Self::Open { .. }
            // What the context was lost to has been an error of its own.
            | Self::ContextLost
            | Self::WrongDevice(_)
            | Self::Malformed { .. }
            | Self::Unsupported { .. }
            | Self::WrongStream(_)
            | Self::Assembly { .. }
            | Self::Shape { .. }
            | Self::HeapFull { .. }
            | Self::OutOfBounds { .. }
            | Self::TooManyArguments { .. }
            | Self::NotStored => false,
        }
    }

    /// The same error in a part that begins at byte `by` of the whole.
    pub(crate) fn moved(self, by: usize) -> Self {
        match self {
            Self::Malformed { format, offset, reason } => {
                Self::Malformed { format, offset: offset + by, reason }
            }
            other => other,
        }
    }

    pub(crate) fn unsupported(format: Format, feature: impl Into<String>) -> Self {
        Self::Unsupported { format, feature: feature.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_out_is_no_failure_of_the_device() {
        let is_of_device =
            |call, errno: Errno| Error::Driver { call, source: errno.into(), advice: "" }.is_of_device();
        for call in ["mmap", "CREATE_BO", "CREATE_HWCTX", "EXEC_CMD"] {
            for errno in [Errno::NOMEM, Errno::AGAIN, Errno::NOSPC] {
                assert!(!is_of_device(call, errno), "{call}: {errno}");
            }
            assert!(is_of_device(call, Errno::NODEV), "{call}");
            assert_eq!(is_of_device(call, Errno::INVAL), call != "CREATE_HWCTX", "{call}");
        }
        assert!(Error::Timeout { milliseconds: 1 }.is_of_device());
        assert!(!Error::WrongDevice("no AMD NPU was found".to_owned()).is_of_device());
    }
}
