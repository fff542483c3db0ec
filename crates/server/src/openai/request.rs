//! Bodies of `/v1/chat/completions` and `/v1/completions` as requests.

use serde_json::Value;

use super::chat::ChatRequest;
use super::completions::CompletionRequest;
use super::image_url::take_images;
use super::options::Options;
use super::unsupported::FIELDS;
use crate::error::Error;
use crate::parse::parse;
use crate::request::{GenerationOptions, GenerationRequest, Input};
use crate::state::Context;
use crate::unsupported::check_unsupported;

/// Default `max_tokens` of `/v1/completions`, same as OpenAI's.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// The endpoint of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// Fields of a request that determine the form of its response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseOptions {
    pub(super) endpoint: Endpoint,
    pub(super) stream: bool,
    /// Whether a stream ends with a usage chunk.
    pub(super) include_usage: bool,
    /// Whether the response contains timings.
    pub(super) timings: bool,
    /// Choices per prompt in the response.
    pub(super) n: u32,
    /// Choices per prompt that are generated: the best `n` of them are returned.
    pub(super) candidates: u32,
}

/// Parses a chat without what determines its response. The time grows with its size.
pub(crate) fn parse_chat(body: Value, context: &Context) -> Result<GenerationRequest, Error> {
    parse_request(Endpoint::Chat, body, context).map(|(request, _)| request)
}

/// Parses a body. The time grows with its size, so this must not run on a thread of the async runtime.
pub(super) fn parse_request(
    endpoint: Endpoint,
    mut body: Value,
    context: &Context,
) -> Result<(GenerationRequest, ResponseOptions), Error> {
    let Context { app, served } = context;
    let (model, config) = (&served.model, &app.config);
    check_unsupported(&body, FIELDS)?;
    let options: Options = parse(&body)?;
    options.validate(config.max_choices)?;
    let vocab_size = model.token_count() as usize;
    let generation =
        |candidates, top_logprobs| options.generation(&model.sampling, vocab_size, candidates, top_logprobs);
    let mut images = vec![];
    let (input, generation) = match endpoint {
        Endpoint::Chat => {
            images = take_images(&mut body, app.images.limits())?;
            app.images.check(model, &images)?;
            let mut chat: ChatRequest = parse(&body)?;
            options.require_completion()?;
            let prediction = chat.take_prediction()?;
            let generation =
                GenerationOptions { prediction, ..generation(options.n(), chat.top_logprobs()?)? };
            let conversation = chat.into_conversation(config.thinking)?;
            (Input::Conversation(Box::new(conversation)), generation)
        }
        Endpoint::Completions => {
            let completion: CompletionRequest = parse(&body)?;
            if !completion.scores_prompt() {
                options.require_completion()?;
            }
            let candidates = completion.candidates(&options, config.max_choices)?;
            let mut generation = generation(candidates, completion.top_logprobs()?)?;
            generation.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
            let prompts = completion.into_prompts(vocab_size, candidates, config.max_choices)?;
            (Input::Prompts(prompts), generation)
        }
    };
    let response = ResponseOptions {
        endpoint,
        stream: options.stream(),
        include_usage: options.include_usage(),
        timings: options.timings(),
        n: options.n(),
        candidates: generation.candidates,
    };
    let id_prefix = match endpoint {
        Endpoint::Chat => "chatcmpl-",
        Endpoint::Completions => "cmpl-",
    };
    Ok((GenerationRequest { id_prefix, input, images, options: generation }, response))
}
