//! The path of a request, for all protocols: body, parsed request, grammar, engine.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use axum::http::HeaderMap;
use engine::Usage;
use serde::Deserialize;
use serde_json::Value;
use text::{DecodeSpecial, Detokenizer};

use crate::access_log::LogEntry;
use crate::body;
use crate::budget::Reservation;
use crate::choice::{ChoiceStream, Echo};
use crate::encoding::Encoding;
use crate::error::Error;
use crate::images::{ImageSource, LoadedImages};
use crate::min_tokens::MinTokens;
use crate::parse::{parse as parse_body, parse_json};
use crate::request::{GenerationRequest, ParsedRequest};
use crate::response::Generation;
use crate::served::ServedModel;
use crate::state::{AppState, Context};
use crate::timing::EventTimes;

/// Generates the output of a request: [starts](start) it and waits for admission.
pub(crate) async fn generate<T: Send + 'static>(
    app: &Arc<AppState>,
    log: &Arc<LogEntry>,
    request: Request,
    parse: impl FnOnce(Value, &Context) -> Result<(GenerationRequest, T), Error> + Send + 'static,
) -> Result<(Generation, T), Error> {
    let body = receive_body(app, request).await?;
    generate_body(app, log, body, parse).await
}

/// [`generate`] for a body that was received.
pub(crate) async fn generate_body<T: Send + 'static>(
    app: &Arc<AppState>,
    log: &Arc<LogEntry>,
    body: ReceivedBody,
    parse: impl FnOnce(Value, &Context) -> Result<(GenerationRequest, T), Error> + Send + 'static,
) -> Result<(Generation, T), Error> {
    let (mut generation, kept) = start_body(app, log, body, parse).await?;
    // The response head is sent after admission, so that a rejected stream gets an error status too.
    wait_admitted(app, &mut generation).await?;
    Ok((generation, kept))
}

/// Waits until the engine has admitted a request.
pub(crate) async fn wait_admitted(app: &AppState, generation: &mut Generation) -> Result<(), Error> {
    let timeout = app.config.queue_timeout;
    tokio::time::timeout(timeout, generation.wait_started())
        .await
        .map_err(|_| Error::QueueTimeout(timeout))?
}

/// Receives the body of a request, parses it with the protocol's `parse` and submits it. Also returns what `parse`
/// keeps of the request for its response.
pub(crate) async fn start<T: Send + 'static>(
    app: &Arc<AppState>,
    log: &Arc<LogEntry>,
    request: Request,
    parse: impl FnOnce(Value, &Context) -> Result<(GenerationRequest, T), Error> + Send + 'static,
) -> Result<(Generation, T), Error> {
    let body = receive_body(app, request).await?;
    start_body(app, log, body, parse).await
}

/// [`start`] for a body that was received.
async fn start_body<T: Send + 'static>(
    app: &Arc<AppState>,
    log: &Arc<LogEntry>,
    body: ReceivedBody,
    parse: impl FnOnce(Value, &Context) -> Result<(GenerationRequest, T), Error> + Send + 'static,
) -> Result<(Generation, T), Error> {
    let (mut parsed, kept, context) = prepare(app, log, body, parse, encode).await?;
    app.check_ready()?;
    attach_grammar(&context.served, &mut parsed).await?;
    // The prompt is freed here: it may be large, and the wait in the queue long.
    Ok((submit(&context, &mut parsed, log)?, kept))
}

/// Everything that can be wrong with a request before its body has arrived.
pub(crate) fn check_headers(app: &AppState, headers: &HeaderMap) -> Result<(), Error> {
    if !body::is_json(headers) {
        return Err(Error::NotJson);
    }
    Encoding::of(headers)?;
    app.bodies.check_length(headers)?;
    app.check_phase()
}

/// The field that all protocols share.
#[derive(Deserialize)]
pub(crate) struct ModelField {
    pub(crate) model: String,
}

/// A body as JSON, and the memory that it takes.
pub(crate) struct ReceivedBody {
    pub(crate) json: Value,
    pub(crate) reservation: Reservation,
}

/// Receives a body, which must be a JSON object.
pub(crate) async fn receive_body(app: &Arc<AppState>, request: Request) -> Result<ReceivedBody, Error> {
    let (body, reservation) = app.bodies.receive(request.into()).await?;
    let json = blocking(move || parse_json(&body)).await?;
    Ok(ReceivedBody { json, reservation })
}

/// Receives a body, finds its model, parses it, loads its images, and applies `encode` to both.
pub(crate) async fn receive<T: Send + 'static, R: Send + 'static>(
    app: &Arc<AppState>,
    log: &Arc<LogEntry>,
    request: Request,
    parse: impl FnOnce(Value, &Context) -> Result<(GenerationRequest, T), Error> + Send + 'static,
    encode: fn(GenerationRequest, LoadedImages, &Context) -> Result<R, Error>,
) -> Result<(R, T, Context), Error> {
    let body = receive_body(app, request).await?;
    prepare(app, log, body, parse, encode).await
}

/// [`receive`] for a body that was received.
pub(crate) async fn prepare<T: Send + 'static, R: Send + 'static>(
    app: &Arc<AppState>,
    log: &Arc<LogEntry>,
    body: ReceivedBody,
    parse: impl FnOnce(Value, &Context) -> Result<(GenerationRequest, T), Error> + Send + 'static,
    encode: fn(GenerationRequest, LoadedImages, &Context) -> Result<R, Error>,
) -> Result<(R, T, Context), Error> {
    let ReceivedBody { json: body, reservation } = body;
    let ModelField { model } = parse_body(&body)?;
    app.check_ready()?;
    let asked = Instant::now();
    let served = app.models.acquire_language(&model).await?;
    log.set_load_time(asked.elapsed());
    log.set_model(&model);
    let context = Context { app: app.clone(), served };
    let (given, span) = (context.clone(), log.span.clone());
    let parsed = blocking(move || {
        let _entered = span.entered();
        let (mut request, kept) = parse(body, &given)?;
        let images = std::mem::take(&mut request.images);
        // The memory of the body is held until it is parsed, even if its client is gone by then; the images are part of
        // it.
        match images.is_empty() {
            true => Ok(Parsed::Complete(encode(request, LoadedImages::default(), &given)?, kept)),
            false => Ok(Parsed::WithImages(Box::new(request), images, reservation, kept)),
        }
    });
    let (request, sources, reservation, kept) = match parsed.await? {
        Parsed::Complete(encoded, kept) => return Ok((encoded, kept, context)),
        Parsed::WithImages(request, sources, reservation, kept) => (request, sources, reservation, kept),
    };
    let processor = context.served.model.images.as_ref().map_err(|_| Error::Internal)?;
    let images = app.images.load(processor, sources).await?;
    drop(reservation);
    let (given, span) = (context.clone(), log.span.clone());
    let encode = move || {
        let _entered = span.entered();
        encode(*request, images, &given)
    };
    Ok((blocking(encode).await?, kept, context))
}

/// A body that is parsed, and what its protocol keeps of it.
enum Parsed<R, T> {
    /// Its prompt is encoded.
    Complete(R, T),
    /// Its images are still to be decoded. They are part of the body's memory.
    WithImages(Box<GenerationRequest>, Vec<ImageSource>, Reservation, T),
}

/// Encodes the prompts of a request.
fn encode(
    request: GenerationRequest,
    images: LoadedImages,
    context: &Context,
) -> Result<Box<ParsedRequest>, Error> {
    let parsed = ParsedRequest::new(request, images, context)?;
    if context.app.config.log_prompts {
        for request in &parsed.requests {
            let prompt = context.served.model.tokenizer.decode(&request.prompt, DecodeSpecial::Keep);
            tracing::info!(prompt, "prompt");
        }
    }
    Ok(Box::new(parsed))
}

/// Runs work that takes long on a thread for such work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "preparing a request panicked");
        Error::Internal
    })?
}

/// Compiles the constraint of a request and attaches the grammar to every choice.
async fn attach_grammar(served: &ServedModel, parsed: &mut ParsedRequest) -> Result<(), Error> {
    if let Some(constraint) = parsed.constraint.take() {
        let matchers = served.grammars.matchers(constraint, parsed.requests.len()).await?;
        let trigger = parsed.tool_calls.as_ref().and_then(|calls| calls.trigger.as_ref());
        let call_start = trigger.map(|(_, id)| *id);
        for (request, matcher) in parsed.requests.iter_mut().zip(matchers) {
            request.grammar = Some(match &parsed.thinking {
                None => Box::new(matcher),
                Some(thinking) => {
                    let (tokenizer, stops) = (&served.model.tokenizer, &request.stop_token_ids);
                    Box::new(thinking.constraint(Box::new(matcher), tokenizer, stops).ending_at(call_start))
                }
            });
        }
    }
    let min_tokens = parsed.min_tokens;
    if min_tokens > 0 {
        for request in &mut parsed.requests {
            let stop_token_ids = request.stop_token_ids.clone();
            let constraint = MinTokens::new(request.grammar.take(), stop_token_ids, min_tokens);
            request.grammar = Some(Box::new(constraint));
        }
    }
    Ok(())
}

/// Submits all choices. If one is rejected, those before it are cancelled by being dropped.
fn submit(context: &Context, parsed: &mut ParsedRequest, log: &Arc<LogEntry>) -> Result<Generation, Error> {
    let Context { app, served } = context;
    let deadline = log.started + app.config.request_timeout;
    let candidates = parsed.candidates;
    let id = format!("{}{}", parsed.id_prefix, log.id);
    let name: Arc<str> = id.as_str().into();
    let image_memory = parsed.image_memory.take().map(Arc::new);
    let mut choices = Vec::new();
    for (mut request, index) in std::mem::take(&mut parsed.requests).into_iter().zip(0..) {
        let (detokenizer, output) = parsed.output(&served.model)?;
        let prompt_tokens = request.prompt.len() as u32;
        let echo = parsed.scores_prompt.then(|| Echo {
            text: std::mem::take(&mut parsed.echoes[index as usize]),
            first: request.prompt[0],
            tokens: vec![],
            detokenizer: Detokenizer::new(&served.model.tokenizer, DecodeSpecial::Skip),
        });
        request.deadline = Some(deadline);
        request.name = name.clone();
        request.span = log.span.clone();
        let events = served.generator.submit(request)?;
        let counts_prompt = u32::is_multiple_of(index, candidates);
        if counts_prompt {
            log.add_prompt_tokens(prompt_tokens);
        }
        let usage = Usage { prompt_tokens, ..Usage::default() };
        let log = log.clone();
        choices.push(ChoiceStream {
            index,
            events,
            detokenizer,
            output,
            echo,
            usage,
            counts_prompt,
            failure: None,
            times: EventTimes::default(),
            logprob_sum: 0.0,
            deadline,
            log,
            image_memory: image_memory.clone(),
            served: served.clone(),
        });
    }
    let echoes = std::mem::take(&mut parsed.echoes);
    let (has_tools, served, log) = (parsed.tool_calls.is_some(), served.clone(), log.clone());
    Ok(Generation { id, choices, echoes, has_tools, served, log })
}
