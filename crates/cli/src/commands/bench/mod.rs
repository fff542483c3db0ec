//! `indrik bench`: how fast this device is, measured.

mod bandwidth;
mod gemv;
mod load;

use std::process::ExitCode;

use clap::Args;

use crate::device::Choice;

/// Measures the device: memory bandwidth, command costs, matrix–vector products, loading
#[derive(Args)]
#[command(
    after_help = "Examples:\n  indrik bench --bandwidth\n  indrik bench --gemv 43008x5376 --quant int8,int4 --json\n  \
                  indrik bench --load gemma-3-270m.gguf",
    group = clap::ArgGroup::new("what").required(true).args(["bandwidth", "gemv", "load"])
)]
pub struct Arguments {
    /// Read bandwidth, dispatch and barrier cost
    #[arg(long)]
    bandwidth: bool,
    /// A matrix product of this many rows and columns, over different weights in turn
    #[arg(long, value_name = "ROWSxK", value_parser = gemv::parse_shape)]
    gemv: Option<(usize, usize)>,
    /// Load this model (a GGUF file or a Hugging Face folder) into GPU memory
    #[arg(long, value_name = "MODEL")]
    load: Option<std::path::PathBuf>,
    /// With --gemv: weight schemes
    #[arg(long, value_delimiter = ',', default_value = "int8,int4", conflicts_with_all = ["bandwidth", "load"])]
    quant: Vec<gemv::Quant>,
    /// With --gemv: activation types
    #[arg(long, value_delimiter = ',', default_value = "int8,f32", conflicts_with_all = ["bandwidth", "load"])]
    activations: Vec<gemv::Activations>,
    /// With --gemv: numbers of columns of x; more than 8 are multiplied by the matrix–matrix kernel, as f32
    #[arg(short, long, value_delimiter = ',', default_value = "1", conflicts_with_all = ["bandwidth", "load"],
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: Vec<u16>,
    /// With --gemv: time every variant worth trying, not only the chosen one
    #[arg(long, conflicts_with_all = ["bandwidth", "load"])]
    sweep: bool,
    /// Memory to read through, as in 8G or 512M (default: up to 8G; with --gemv 4G)
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
    /// Device by index or part of its name
    #[arg(long, env = "INDRIK_DEVICE")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (_instance, device) = Choice { wanted: arguments.device.as_deref(), ..Choice::default() }.open()?;
    match (&arguments.load, arguments.gemv) {
        (Some(model), _) => load::run(&device, model, arguments.json),
        (None, Some(shape)) => gemv::run(&device, arguments, shape),
        (None, None) => bandwidth::run(&device, arguments.size, arguments.json),
    }
}

/// Bytes with an optional binary suffix.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim_end_matches("iB").trim_end_matches('B');
    let (digits, shift) = match trimmed.chars().last() {
        Some('K' | 'k') => (&trimmed[..trimmed.len() - 1], 10),
        Some('M' | 'm') => (&trimmed[..trimmed.len() - 1], 20),
        Some('G' | 'g') => (&trimmed[..trimmed.len() - 1], 30),
        Some('T' | 't') => (&trimmed[..trimmed.len() - 1], 40),
        _ => (trimmed, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number with K, M, G or T behind it".to_string())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(|| "out of range".to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes() {
        assert_eq!(super::parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(super::parse_bytes("8GiB"), Ok(8 << 30));
        assert_eq!(super::parse_bytes("100"), Ok(100));
        for wrong in ["", "G", "-1", "0", "1.5G", "99999999999T"] {
            assert!(super::parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
