//! A generation loop over one sequence: the reference for batching and sampling tests.

use std::ops::ControlFlow;

use model::{DecodeRow, Error, Result, Runner, Sampled, Sampling, Sequence};

/// A generation request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Tokens to prefill, after those that the sequence holds.
    pub prompt: &'a [u32],
    pub max_tokens: usize,
    pub sampling: &'a Sampling,
    pub stop_token_ids: &'a [u32],
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token, which is not part of the completion.
    Stop,
    MaxTokens,
    ContextLength,
    /// Cancelled by the caller.
    Cancelled,
}

/// A completion.
#[derive(Clone, Debug)]
pub struct Generated {
    pub tokens: Vec<u32>,
    pub finish: FinishReason,
    /// Decode steps, without those that were rolled back.
    pub decode_steps: usize,
    /// Bytes read back by the host in those steps.
    pub decode_read_back: u64,
}

/// Progress of a generation.
pub enum Event {
    /// Prompt tokens prefilled so far.
    Prefilled(usize),
    Token(Sampled),
}

/// Generates a completion. `each` receives every chunk of the prompt and every token, and cancels by
/// breaking. The last token is in `tokens` but not in the sequence.
///
/// Several tokens are sampled per submission. If `each` breaks before the last of them, the others are rolled
/// back: sequence and penalties are as if they had never been sampled.
pub fn generate(
    runner: &mut Runner,
    sequence: &mut Sequence,
    request: &Request<'_>,
    mut each: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<Generated> {
    runner.prepare(request.prompt.len(), request.sampling)?;
    let first = runner.prompt(sequence, request.prompt, request.sampling, |done| {
        each(Event::Prefilled(done)).is_continue()
    });
    let mut generated =
        Generated { tokens: vec![], finish: FinishReason::MaxTokens, decode_steps: 0, decode_read_back: 0 };
    let first = match first {
        Ok(sampled) => sampled,
        Err(Error::Cancelled) => return Ok(Generated { finish: FinishReason::Cancelled, ..generated }),
        Err(error) => return Err(error),
    };
    let before = runner.counters().read_back;
    // Sampled tokens that are not reported yet. A stop token can only be the last: it ends the run on the
    // GPU.
    let mut sampled = vec![first];
    'completion: while generated.tokens.len() < request.max_tokens {
        for (reported, token) in sampled.iter().enumerate() {
            if request.stop_token_ids.contains(&token.token) {
                generated.finish = FinishReason::Stop;
                break 'completion;
            }
            generated.tokens.push(token.token);
            if each(Event::Token(token.clone())).is_break() {
                generated.finish = FinishReason::Cancelled;
                let rest: Vec<u32> = sampled[reported + 1..].iter().map(|sampled| sampled.token).collect();
                generated.decode_steps -= rest.len();
                runner.rollback(sequence, &rest, request.sampling)?;
                break 'completion;
            }
        }
        if generated.tokens.len() == request.max_tokens {
            break;
        }
        if sequence.len() == runner.cache().limits().context_length {
            generated.finish = FinishReason::ContextLength;
            break;
        }
        let last = generated.tokens[generated.tokens.len() - 1];
        let steps = runner.decode_run_steps(1).min(request.max_tokens - generated.tokens.len());
        let row = DecodeRow {
            stop_token_ids: request.stop_token_ids,
            ..DecodeRow::new(&mut *sequence, last, request.sampling)
        };
        sampled = runner.decode(&mut [row], steps)?.concat();
        generated.decode_steps += sampled.len();
    }
    generated.decode_read_back = runner.counters().read_back - before;
    Ok(generated)
}
