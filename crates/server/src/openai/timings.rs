//! Speed figures in responses, in llama.cpp's format.

use serde::Serialize;
use utoipa::ToSchema;

use crate::timing::Timing;

/// Token counts and times of a completion. Rates are null as long as there is nothing to measure.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct Timings {
    /// Prompt tokens found in the prefix cache.
    cache_n: u64,
    /// Prompt tokens that were prefilled.
    prompt_n: u64,
    /// Time from admission to the first token: the prefill, without the time in the queue.
    prompt_ms: f64,
    #[schema(required)]
    prompt_per_token_ms: Option<f64>,
    #[schema(required)]
    prompt_per_second: Option<f64>,
    /// Generated tokens.
    predicted_n: u64,
    /// Time from the first token to the last one.
    predicted_ms: f64,
    /// Mean inter-token latency. There is one interval less than there are tokens.
    #[schema(required)]
    predicted_per_token_ms: Option<f64>,
    #[schema(required)]
    predicted_per_second: Option<f64>,
}

impl From<Timing> for Timings {
    fn from(timing: Timing) -> Timings {
        let Timing { cached_tokens, prefilled_tokens, prefill, generated_tokens, intervals, decode } = timing;
        let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1000.0;
        let ratio = |a: f64, b: f64| (a > 0.0 && b > 0.0).then(|| a / b);
        let (prefilled, intervals) = (prefilled_tokens as f64, intervals as f64);
        Timings {
            cache_n: cached_tokens,
            prompt_n: prefilled_tokens,
            prompt_ms: milliseconds(prefill),
            prompt_per_token_ms: ratio(milliseconds(prefill), prefilled),
            prompt_per_second: ratio(prefilled, prefill.as_secs_f64()),
            predicted_n: generated_tokens,
            predicted_ms: milliseconds(decode),
            predicted_per_token_ms: ratio(milliseconds(decode), intervals),
            predicted_per_second: ratio(intervals, decode.as_secs_f64()),
        }
    }
}
