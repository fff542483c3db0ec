//! What a run measured, and how near it came to what the memory allows.

use std::sync::OnceLock;

use gpu::{Device, format_bytes};
use model::generate::Generated;
use serde::Serialize;

/// Speeds of one answer, from wall clocks around the whole of it.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Recording programs and compiling pipelines, before the prompt goes in.
    pub setup_seconds: f64,
    /// Of it, compiling pipelines or taking them from the cache.
    pub pipelines_seconds: f64,
    /// Of it, taking memory and recording programs.
    pub recording_seconds: f64,
    /// Tokens of the prompt that were read.
    pub prompt_tokens: usize,
    /// From the prompt going in to the first token.
    pub prompt_seconds: f64,
    /// Of the prompt.
    pub prompt_tokens_per_s: f64,
    /// Tokens after the first.
    pub decode_tokens: usize,
    /// From the first token to the last.
    pub decode_seconds: f64,
    /// Of the answer.
    pub decode_tokens_per_s: Option<f64>,
    /// Weights and KV cache that a token of the answer had to read, on average.
    pub bytes_per_token: Option<u64>,
    /// Bytes that came back from the GPU for each token.
    pub read_back_bytes_per_token: Option<f64>,
    /// Read bandwidth of the device, measured now.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Bytes read in the time of the answer, of what the bandwidth allows.
    pub roofline_percent: Option<f64>,
}

impl Speed {
    /// The speeds of an answer; measures the device's bandwidth, once, if there is anything to compare.
    pub fn of(device: &Device, generated: &Generated) -> gpu::Result<Self> {
        let prompt_tokens = generated.prompt_read;
        let steps = generated.decode_steps as f64;
        let decode_seconds = generated.decode_time.as_secs_f64();
        let per_step = |value: f64| (steps > 0.0).then_some(value / steps);
        // A single step says little: its own set-up is in it.
        let bandwidth = if generated.decode_steps >= 2 { Some(bandwidth(device)?) } else { None };
        let prompt_seconds = generated.prompt_time.as_secs_f64();
        let bytes = generated.decode_bytes as f64;
        Ok(Self {
            setup_seconds: generated.setup.total().as_secs_f64(),
            pipelines_seconds: generated.setup.pipelines.as_secs_f64(),
            recording_seconds: generated.setup.recording.as_secs_f64(),
            prompt_tokens,
            prompt_seconds,
            prompt_tokens_per_s: prompt_tokens as f64 / prompt_seconds,
            decode_tokens: generated.decode_steps,
            decode_seconds,
            decode_tokens_per_s: (steps > 0.0).then_some(steps / decode_seconds),
            bytes_per_token: per_step(bytes).map(|bytes| bytes as u64),
            read_back_bytes_per_token: per_step(generated.decode_read_back as f64),
            bandwidth_bytes_per_s: bandwidth,
            roofline_percent: bandwidth.map(|bandwidth| bytes / decode_seconds / bandwidth * 100.0),
        })
    }
}

/// Measured once: a second figure for the same device would only confuse.
fn bandwidth(device: &Device) -> gpu::Result<f64> {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    if let Some(bandwidth) = MEASURED.get() {
        return Ok(*bandwidth);
    }
    let bandwidth = kernels::bench::probe::read_bandwidth(device)?;
    Ok(*MEASURED.get_or_init(|| bandwidth))
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "prompt {} tokens, {:.1} tok/s", self.prompt_tokens, self.prompt_tokens_per_s)?;
        if let Some(speed) = self.decode_tokens_per_s {
            write!(f, " · answer {} tokens after the first, {speed:.1} tok/s", self.decode_tokens)?;
        }
        if let (Some(per_token), Some(bandwidth), Some(percent)) =
            (self.bytes_per_token, self.bandwidth_bytes_per_s, self.roofline_percent)
        {
            write!(
                f,
                " · {} a token, {percent:.0}% of {:.1} GB/s",
                format_bytes(per_token),
                bandwidth / 1e9
            )?;
            if percent > 100.0 {
                f.write_str(" (more than all: other work disturbed one of the measurements)")?;
            }
        }
        Ok(())
    }
}
