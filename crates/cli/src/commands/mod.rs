//! One file a command.

pub mod bench;
pub mod devices;
pub mod doctor;
pub mod inspect;
pub mod kernels;
pub mod pull;
pub mod quantize;
