//! From a prompt to tokens, with one sequence.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{DecodeRow, Error, Result, Runner, Sampled, Sampling, SetupTime, pages::Sequence};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Tokens to go on from; they follow what the sequence holds already.
    pub prompt: &'a [u32],
    /// Most tokens to generate.
    pub most: usize,
    /// How they are chosen.
    pub sampling: &'a Sampling,
    /// Tokens that end the answer; they are not part of it.
    pub ends: &'a [u32],
}

/// Why the answer is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended it.
    End,
    /// It has as many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller stopped it.
    Stop,
}

/// An answer, and how long it took.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Why it is over.
    pub finish: Finish,
    /// Tokens of the prompt that were read: all, unless it was stopped.
    pub prompt_read: usize,
    /// Recording programs and compiling pipelines that were not there yet.
    pub setup: SetupTime,
    /// From the first token of the prompt going in to the first token of the answer.
    pub prompt_time: Duration,
    /// From the first token of the answer to the last, with what was sampled after it and thrown away.
    pub decode_time: Duration,
    /// Steps within `decode_time`, each with one token more: without those that were thrown away.
    pub decode_steps: usize,
    /// Bytes of weights and of the KV cache that those steps had to read.
    pub decode_bytes: u64,
    /// Bytes read back by the host in those steps.
    pub decode_read_back: u64,
}

/// What the caller is told.
pub enum Event {
    /// So many tokens of the prompt have been read.
    Read(usize),
    /// The next token of the answer.
    Token(Sampled),
}

/// Generates an answer. `each` is told of every chunk of the prompt and every token, and stops it by
/// breaking. The last token is in `tokens` but not in the sequence.
///
/// Several tokens are sampled in one submission. Where `each` breaks before the last of them was told, the
/// others are taken back: sequence and penalties are as if they had never been.
pub fn generate(
    runner: &mut Runner,
    sequence: &mut Sequence,
    request: &Request<'_>,
    mut each: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<Generated> {
    let model = runner.model().clone();
    runner.check(sequence, request.prompt)?;
    request.sampling.check(model.config.vocab)?;
    let before = runner.setup_time();
    runner.prepare(request.prompt.len(), request.sampling)?;
    let setup = runner.setup_time() - before;
    let start = Instant::now();
    let mut prompt_read = 0;
    let first = runner.prompt(sequence, request.prompt, request.sampling, |read| {
        prompt_read = read;
        each(Event::Read(read)).is_continue()
    });
    let mut generated = Generated {
        tokens: vec![],
        finish: Finish::Length,
        prompt_read,
        setup,
        prompt_time: start.elapsed(),
        decode_time: Duration::ZERO,
        decode_steps: 0,
        decode_bytes: 0,
        decode_read_back: 0,
    };
    let first = match first {
        Ok(sampled) => sampled,
        Err(Error::Cancelled) => return Ok(Generated { finish: Finish::Stop, ..generated }),
        Err(error) => return Err(error),
    };
    let start = Instant::now();
    let before = runner.counters().read_back;
    // Tokens that were sampled and not told yet: an end token can only be the last of them, for there the GPU
    // stops.
    let mut sampled = vec![first];
    'answer: while generated.tokens.len() < request.most {
        for (told, token) in sampled.iter().enumerate() {
            if request.ends.contains(&token.token) {
                generated.finish = Finish::End;
                break 'answer;
            }
            generated.tokens.push(token.token);
            if each(Event::Token(token.clone())).is_break() {
                generated.finish = Finish::Stop;
                let rest: Vec<u32> = sampled[told + 1..].iter().map(|sampled| sampled.token).collect();
                generated.decode_steps -= rest.len();
                generated.decode_bytes -= step_bytes(runner, sequence.len(), rest.len());
                runner.rollback(sequence, &rest, request.sampling)?;
                break 'answer;
            }
        }
        if generated.tokens.len() == request.most {
            break;
        }
        if sequence.len() == runner.cache().limits().context_length {
            generated.finish = Finish::Context;
            break;
        }
        let last = generated.tokens[generated.tokens.len() - 1];
        let steps = runner.decode_run_steps(1).min(request.most - generated.tokens.len());
        let row = DecodeRow {
            stop_token_ids: request.ends,
            ..DecodeRow::new(&mut *sequence, last, request.sampling)
        };
        sampled = runner.decode(&mut [row], steps)?.concat();
        generated.decode_steps += sampled.len();
        generated.decode_bytes += step_bytes(runner, sequence.len(), sampled.len());
    }
    generated.decode_time = start.elapsed();
    generated.decode_read_back = runner.counters().read_back - before;
    Ok(generated)
}

/// Bytes that the last `steps` steps of a sequence of `len` positions had to read.
fn step_bytes(runner: &Runner, len: u32, steps: usize) -> u64 {
    let model = runner.model();
    let positions = len - steps as u32..len;
    positions
        .map(|position| model.bytes_per_step() + runner.cache().bytes_read(&model.config, position))
        .sum()
}
