//! Measured speed of one completion, compared with the memory bandwidth.

use std::sync::OnceLock;

use gpu::format_bytes;
use indrik::{Model, Timings};
use serde::Serialize;

use crate::energy::{self, PowerInterval};

/// Speed of one completion, from wall-clock times.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Recording programs and compiling pipelines, before the prompt is submitted.
    pub setup_seconds: f64,
    /// Of that, compiling pipelines or loading them from the cache.
    pub pipelines_seconds: f64,
    /// Of that, allocating memory and recording programs.
    pub recording_seconds: f64,
    /// Prompt tokens that were prefilled, without cached ones.
    pub prompt_tokens: usize,
    /// Time to first token.
    pub prompt_seconds: f64,
    /// Prefill speed.
    pub prompt_tokens_per_s: f64,
    /// Tokens after the first.
    pub decode_tokens: usize,
    /// From the first token to the last.
    pub decode_seconds: f64,
    /// Decode speed.
    pub decode_tokens_per_s: Option<f64>,
    /// Drafts that were verified.
    pub drafted_tokens: u64,
    /// Drafts that were accepted: tokens that took no step of their own.
    pub accepted_tokens: u64,
    /// Decoded tokens per step; more than 1 where drafts were accepted.
    pub tokens_per_step: Option<f64>,
    /// Average bytes of weights and KV cache that decoding a token has to read.
    pub bytes_per_token: Option<u64>,
    /// Bytes read back from the device per token.
    pub read_back_bytes_per_token: Option<f64>,
    /// Read bandwidth of the device, measured now.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Bytes read in the decode time, as a percentage of what the bandwidth allows.
    pub roofline_percent: Option<f64>,
    /// Mean power of the GPU while decoding; `None` if it does not report it, or decoding was too short to tell.
    pub watts: Option<f64>,
    /// Energy of the GPU per decoded token.
    pub joules_per_token: Option<f64>,
}

impl Speed {
    /// Computes the speed. Also measures the device's bandwidth, once, if there is decode speed to compare it
    /// with. `decode` is from the first token to the last.
    pub fn measure(model: &Model, timings: &Timings, decode: &PowerInterval) -> anyhow::Result<Self> {
        let tokens = timings.decode_tokens as f64;
        let decode_seconds = timings.decode_time.as_secs_f64();
        let decoded = timings.decode_tokens > 0;
        // A single step is not representative: it includes its own setup.
        let bandwidth = if timings.decode_tokens >= 2 { Some(bandwidth(model)?) } else { None };
        let decode_bytes = timings.decode_bytes as f64;
        let watts = energy::mean_watts([decode]);
        Ok(Self {
            setup_seconds: timings.setup.total().as_secs_f64(),
            pipelines_seconds: timings.setup.pipelines.as_secs_f64(),
            recording_seconds: timings.setup.recording.as_secs_f64(),
            prompt_tokens: timings.prefilled_tokens,
            prompt_seconds: timings.prefill_time.as_secs_f64(),
            prompt_tokens_per_s: timings.prefill_tokens_per_second(),
            decode_tokens: timings.decode_tokens,
            decode_seconds,
            decode_tokens_per_s: timings.decode_tokens_per_second(),
            drafted_tokens: timings.drafts.drafted,
            accepted_tokens: timings.drafts.accepted,
            tokens_per_step: decoded.then(|| timings.tokens_per_step()),
            bytes_per_token: decoded.then(|| (decode_bytes / tokens) as u64),
            // The first token is read back by the prefill step.
            read_back_bytes_per_token: decoded.then(|| timings.read_back_bytes as f64 / (tokens + 1.0)),
            bandwidth_bytes_per_s: bandwidth,
            roofline_percent: bandwidth.map(|bandwidth| decode_bytes / decode_seconds / bandwidth * 100.0),
            watts,
            joules_per_token: watts.filter(|_| decoded).map(|watts| watts * decode_seconds / tokens),
        })
    }
}

/// Read bandwidth in bytes per second, measured once, so that all reports of a process agree.
fn bandwidth(model: &Model) -> anyhow::Result<f64> {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    if let Some(bandwidth) = MEASURED.get() {
        return Ok(*bandwidth);
    }
    let bandwidth =
        model.with_runner(|runner| Ok(kernels::bench::probe::read_bandwidth(&runner.model().device)?))?;
    Ok(*MEASURED.get_or_init(|| bandwidth))
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "prefill {} tokens, {:.1} tok/s", self.prompt_tokens, self.prompt_tokens_per_s)?;
        if let Some(speed) = self.decode_tokens_per_s {
            write!(f, " · decode {} tokens after the first, {speed:.1} tok/s", self.decode_tokens)?;
        }
        if let Some(per_step) = self.tokens_per_step.filter(|_| self.accepted_tokens > 0) {
            write!(
                f,
                ", {per_step:.2} per step ({} of {} drafts accepted)",
                self.accepted_tokens, self.drafted_tokens
            )?;
        }
        if let (Some(per_token), Some(bandwidth), Some(percent)) =
            (self.bytes_per_token, self.bandwidth_bytes_per_s, self.roofline_percent)
        {
            let bytes = format_bytes(per_token);
            write!(f, " · {bytes} per token, {percent:.0}% of {:.1} GB/s", bandwidth / 1e9)?;
            if percent > 100.0 {
                f.write_str(" (above 100%: other work disturbed one of the measurements)")?;
            }
        }
        if let (Some(watts), Some(joules)) = (self.watts, self.joules_per_token) {
            write!(f, " · {joules:.3} J per token at {watts:.0} W")?;
        }
        Ok(())
    }
}
