//! State of a command packet.

use std::fmt;

/// State in the header of a command packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandState {
    /// Not submitted yet.
    New,
    /// In a queue.
    Queued,
    /// On the NPU.
    Running,
    /// Finished without an error.
    Completed,
    /// Failed.
    Error,
    /// Given up by the driver.
    Abort,
    /// Handed to the firmware.
    Submitted,
    /// Exceeded the driver's time limit.
    Timeout,
    /// The firmware did not answer.
    NoResponse,
    /// A number that this crate does not know.
    Unknown(u8),
}

impl CommandState {
    /// The state in a packet's header.
    pub fn of(header: u32) -> Self {
        match header & 0xf {
            1 => Self::New,
            2 => Self::Queued,
            3 => Self::Running,
            4 => Self::Completed,
            5 => Self::Error,
            6 => Self::Abort,
            7 => Self::Submitted,
            8 => Self::Timeout,
            9 => Self::NoResponse,
            other => Self::Unknown(other as u8),
        }
    }

    /// The number in a packet's header.
    pub fn code(self) -> u32 {
        match self {
            Self::New => 1,
            Self::Queued => 2,
            Self::Running => 3,
            Self::Completed => 4,
            Self::Error => 5,
            Self::Abort => 6,
            Self::Submitted => 7,
            Self::Timeout => 8,
            Self::NoResponse => 9,
            Self::Unknown(code) => u32::from(code) & 0xf,
        }
    }
}

impl fmt::Display for CommandState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(code) => write!(f, "{code} (unknown)"),
            state => write!(f, "{state:?}"),
        }
    }
}
