//! The path of a completion: body, parsed request, grammar, engine, response.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::Request;
use axum::response::Response;
use engine::Usage;
use text::{DecodeSpecial, Detokenizer};

use crate::access_log::LogEntry;
use crate::body::{self, Unread};
use crate::budget::Lease;
use crate::choice::{ChoiceStream, Echo};
use crate::encoding::Encoding;
use crate::error::Error;
use crate::images::LoadedImages;
use crate::min_tokens::MinTokens;
use crate::openai::{ImageSource, ResponseHead};
use crate::request::{Endpoint, ParsedRequest, RequestFields};
use crate::response::Generation;
use crate::state::AppState;
use crate::timing::EventTimes;

/// Handles a request to `/v1/chat/completions` or `/v1/completions`.
pub(crate) async fn complete(
    app: Arc<AppState>,
    endpoint: Endpoint,
    log: Arc<LogEntry>,
    request: Request,
) -> Result<Response, Error> {
    let request = Unread::from(request);
    if let Err(error) = check_headers(&app, &request) {
        return Ok(app.bodies.refuse(request, error));
    }
    let mut parsed = parse(&app, endpoint, request, &log).await?;
    log.set_model(&parsed.options.model);
    app.check_ready()?;
    attach_grammar(&app, &mut parsed).await?;
    let mut generation = submit(&app, &mut parsed, &log)?;
    let (stream, include_usage) = (parsed.options.stream(), parsed.options.include_usage());
    // Free the prompt now: it may be large, and the wait in the queue long.
    drop(parsed);
    // The response head is sent after admission, so that a rejected stream gets an error status too.
    let timeout = app.config.queue_timeout;
    tokio::time::timeout(timeout, generation.wait_started())
        .await
        .map_err(|_| Error::QueueTimeout(timeout))??;
    match stream {
        true => Ok(generation.into_stream(include_usage, &app.config)),
        false => generation.into_response().await,
    }
}

/// Everything that can be wrong with a request before its body has arrived.
fn check_headers(app: &AppState, request: &Unread) -> Result<(), Error> {
    if !body::is_json(request.headers()) {
        return Err(Error::NotJson);
    }
    Encoding::of(request.headers())?;
    app.bodies.check_length(request)?;
    app.check_phase()?;
    app.generator.would_reject().map_or(Ok(()), |rejected| Err(rejected.into()))
}

/// Receives and parses a body.
async fn parse(
    app: &Arc<AppState>,
    endpoint: Endpoint,
    request: Unread,
    log: &Arc<LogEntry>,
) -> Result<ParsedRequest, Error> {
    let (body, reservation) = app.bodies.receive(request).await?;
    let (state, span) = (app.clone(), log.span.clone());
    let parsed = blocking(move || {
        let _entered = span.entered();
        let mut fields = RequestFields::parse(endpoint, &body, &state)?;
        let images = std::mem::take(&mut fields.images);
        // The memory of the body is held until it is parsed, even if its client is gone by then; URLs of images are part
        // of it.
        match images.is_empty() {
            true => encode(fields, LoadedImages::default(), &state).map(Parsed::Complete),
            false => Ok(Parsed::WithImages(Box::new(fields), images, reservation)),
        }
    });
    let (fields, sources, reservation) = match parsed.await? {
        Parsed::Complete(parsed) => return Ok(*parsed),
        Parsed::WithImages(fields, sources, reservation) => (fields, sources, reservation),
    };
    let processor = app.model.images.as_ref().map_err(|_| Error::Internal)?;
    let images = app.images.load(processor, sources).await?;
    drop(reservation);
    let (state, span) = (app.clone(), log.span.clone());
    let encode = move || {
        let _entered = span.entered();
        encode(*fields, images, &state)
    };
    Ok(*blocking(encode).await?)
}

/// A body that is parsed.
enum Parsed {
    Complete(Box<ParsedRequest>),
    /// Its images are still to be decoded. They are part of the body's memory.
    WithImages(Box<RequestFields>, Vec<ImageSource>, Lease),
}

/// Encodes the prompts of a request.
fn encode(fields: RequestFields, images: LoadedImages, app: &AppState) -> Result<Box<ParsedRequest>, Error> {
    let parsed = ParsedRequest::new(fields, images, app)?;
    if app.config.log_prompts {
        for request in &parsed.requests {
            let prompt = app.model.tokenizer.decode(&request.prompt, DecodeSpecial::Keep);
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
async fn attach_grammar(app: &AppState, parsed: &mut ParsedRequest) -> Result<(), Error> {
    if let Some(constraint) = parsed.constraint.take() {
        let matchers = app.grammars.matchers(constraint, parsed.requests.len()).await?;
        let trigger = parsed.tool_calls.as_ref().and_then(|calls| calls.trigger.as_ref());
        let call_start = trigger.map(|(_, id)| *id);
        for (request, matcher) in parsed.requests.iter_mut().zip(matchers) {
            request.grammar = Some(match &parsed.thinking {
                None => Box::new(matcher),
                Some(thinking) => {
                    let (tokenizer, stops) = (&app.model.tokenizer, &request.stop_token_ids);
                    Box::new(thinking.constraint(Box::new(matcher), tokenizer, stops).ending_at(call_start))
                }
            });
        }
    }
    let min_tokens = parsed.options.min_tokens();
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
fn submit(app: &AppState, parsed: &mut ParsedRequest, log: &Arc<LogEntry>) -> Result<Generation, Error> {
    let deadline = log.started + app.config.request_timeout;
    let candidates = parsed.candidates;
    let prefix = match parsed.endpoint {
        Endpoint::Chat => "chatcmpl",
        Endpoint::Completions => "cmpl",
    };
    let id = format!("{prefix}-{}", log.id);
    let name: Arc<str> = id.as_str().into();
    let image_memory = parsed.image_memory.take().map(Arc::new);
    let mut choices = Vec::new();
    for (mut request, index) in std::mem::take(&mut parsed.requests).into_iter().zip(0..) {
        let (detokenizer, output) = parsed.output(&app.model)?;
        let prompt_tokens = request.prompt.len() as u32;
        let echo = parsed.scores_prompt.then(|| Echo {
            text: std::mem::take(&mut parsed.echoes[index as usize]),
            first: request.prompt[0],
            tokens: vec![],
            detokenizer: Detokenizer::new(&app.model.tokenizer, DecodeSpecial::Skip),
        });
        request.deadline = Some(deadline);
        request.name = name.clone();
        request.span = log.span.clone();
        let events = app.generator.submit(request)?;
        if u32::is_multiple_of(index, candidates) {
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
            times: EventTimes::default(),
            logprob_sum: 0.0,
            deadline,
            log,
            image_memory: image_memory.clone(),
        });
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Generation {
        endpoint: parsed.endpoint,
        head: ResponseHead { id, created, model: app.model.id.clone() },
        choices,
        echoes: std::mem::take(&mut parsed.echoes),
        n: parsed.options.n(),
        candidates,
        timings: parsed.options.timings(),
        has_tools: parsed.tool_calls.is_some(),
        tokenizer: app.model.tokenizer.clone(),
        log: log.clone(),
    })
}
