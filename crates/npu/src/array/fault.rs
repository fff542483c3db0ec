//! Why the array model stops.

use crate::tile::{Address, Direction, TilePlace};

/// A fault of a configuration or a stream. Hardware would hang, or compute something else; the model says why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An address that is in no tile of the partition.
    #[error("{0:#x} is in no tile of the partition")]
    NoTile(u64),
    /// A register that the model does not have.
    #[error("{0} is a register that the model does not have")]
    UnknownRegister(Address),
    /// A CDO command that the model does not have.
    #[error("CDO command {0:#x} is not modelled")]
    UnknownCommand(u16),
    /// A value that a register does not take, or that the model does not have.
    #[error("{address} = {value:#010x}: {reason}")]
    Value {
        /// The register.
        address: Address,
        /// The value.
        value: u32,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A task for a queue that is full.
    #[error("{place} {direction}{channel}: the task queue is full")]
    QueueFull {
        /// The tile.
        place: TilePlace,
        /// Direction of the channel.
        direction: Direction,
        /// The channel.
        channel: usize,
    },
    /// A write to a buffer descriptor that a channel is using.
    #[error("{place} bd{index} is written while a channel uses it")]
    DescriptorInUse {
        /// The tile.
        place: TilePlace,
        /// The descriptor.
        index: usize,
    },
    /// A buffer descriptor that cannot be run.
    #[error("{place} bd{index}: {reason}")]
    Descriptor {
        /// The tile.
        place: TilePlace,
        /// The descriptor.
        index: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An access past a tile's memory.
    #[error("{place} bd{index} accesses {address:#x}, which is no memory")]
    Memory {
        /// The tile.
        place: TilePlace,
        /// The descriptor.
        index: usize,
        /// The byte address.
        address: u64,
    },
    /// A lock above 63 or below zero.
    #[error("{place} lock{index} would leave 0 to 63")]
    LockOverflow {
        /// The tile.
        place: TilePlace,
        /// The lock.
        index: usize,
    },
    /// A core whose program the model does not know.
    #[error("{place} runs a program that the model does not know (SHA-256 {digest})")]
    UnknownProgram {
        /// The tile.
        place: TilePlace,
        /// Digest of the program.
        digest: String,
    },
    /// An instruction that a core cannot execute, or that the model does not have.
    #[error("{place} at {pc}: `{instruction}`: {reason}")]
    Instruction {
        /// The tile.
        place: TilePlace,
        /// Address of its bundle.
        pc: String,
        /// Its text, or its slot and bits.
        instruction: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A route that leads in a circle, or into a part that the model does not have.
    #[error("{place} slave{port}: the route {reason}")]
    Route {
        /// The tile.
        place: TilePlace,
        /// The input port.
        port: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A cascade that ends at a tile without a core to the south.
    #[error("{place}: its cascade leads to no core")]
    Cascade {
        /// The tile.
        place: TilePlace,
    },
    /// A completion token that the tile's packet rules do not lead to the controller.
    #[error("{place} {direction}{channel}: no rule leads its completion token to the controller")]
    Token {
        /// The tile.
        place: TilePlace,
        /// Direction of the channel.
        direction: Direction,
        /// The channel.
        channel: usize,
    },
    /// A patch with a buffer that the command does not have.
    #[error("argument {argument} of {given}")]
    Argument {
        /// The argument.
        argument: u64,
        /// Arguments of the command.
        given: usize,
    },
    /// A deadlock: no channel or core can run, and the stream waits.
    #[error("deadlock while the stream waits for {waits_for}; blocked: {blocked}")]
    Hang {
        /// What the stream waits for.
        waits_for: String,
        /// The channels and cores with work to do.
        blocked: String,
    },
    /// The stream took too many rounds.
    #[error("the stream has not ended after {0} rounds")]
    Endless(u64),
    /// The stream ended with unfinished work.
    #[error("the stream ended with unfinished work: {0}")]
    Residue(String),
}
