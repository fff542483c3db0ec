//! One module per subcommand.

pub mod bench;
pub mod chat;
pub mod completions;
pub mod devices;
pub mod doctor;
pub mod embed;
pub mod eval;
pub mod generate;
pub mod import;
pub mod inspect;
pub mod kernels;
pub mod man;
pub mod models;
pub mod monitor;
pub mod npu;
pub mod pull;
pub mod quantize;
pub mod rm;
pub mod run;
pub mod search;
pub mod serve;
