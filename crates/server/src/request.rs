//! Turns a request body into engine requests.

use std::num::NonZeroU32;

use engine::{Image, Request, join_images};
use text::{
    DecodeSpecial, Detokenizer, EncodeSpecial, FimTokens, Message, PromptEnd, StopMatcher,
    ThinkingConstraint, ThinkingFormat, ThinkingParser, TokenConstraint, Tokenizer,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::config::{Config, Model};
use crate::error::Error;
use crate::images::LoadedImages;
use crate::openai::{
    self, ChatRequest, CompletionRequest, Constraint, ConstraintKind, ImageSource, MAX_BIASES, Options,
    Prompt,
};
use crate::output::OutputParser;
use crate::random;
use crate::state::AppState;
use crate::tools::{self, ToolCallParsing};

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

/// The fields of a request, before its images are decoded and its prompt is encoded.
#[derive(Debug)]
pub(crate) struct RequestFields {
    options: Options,
    input: Input,
    /// Images that are not decoded yet, in the order of their parts.
    pub(crate) images: Vec<ImageSource>,
}

/// The fields of the endpoint.
#[derive(Debug)]
enum Input {
    Chat(Box<ChatRequest>),
    Completions(CompletionRequest),
}

impl RequestFields {
    /// Parses a body. The time grows with its size, so this must not run on a thread of the async runtime.
    pub(crate) fn parse(endpoint: Endpoint, body: &[u8], app: &AppState) -> Result<RequestFields, Error> {
        let AppState { model, config, .. } = app;
        let mut body = openai::parse_json(body)?;
        openai::check_unsupported(&body)?;
        let options: Options = openai::parse(&body)?;
        if !model.is_named(&options.model) {
            return Err(Error::UnknownModel(options.model));
        }
        options.validate(config.max_choices)?;
        let mut images = vec![];
        if endpoint == Endpoint::Chat {
            images = openai::take_images(&mut body, app.images.limits())?;
            app.images.check(model, &images)?;
        }
        let input = match endpoint {
            Endpoint::Chat => Input::Chat(Box::new(openai::parse(&body)?)),
            Endpoint::Completions => Input::Completions(openai::parse(&body)?),
        };
        Ok(RequestFields { options, input, images })
    }
}

/// A prompt, and the text to echo.
struct EncodedPrompt {
    tokens: Vec<u32>,
    images: Vec<Image>,
    /// Empty without `echo`.
    echo: String,
}

/// A parsed and validated request.
#[derive(Debug)]
pub(crate) struct ParsedRequest {
    pub(crate) endpoint: Endpoint,
    pub(crate) options: Options,
    /// Choices to generate per prompt: `n`, or more if the best of them are returned.
    pub(crate) candidates: u32,
    /// One engine request per candidate: those of the first prompt, those of the second, and so on.
    pub(crate) requests: Vec<Request>,
    /// Text that each choice starts with: its prompt if `echo` is set, else empty.
    pub(crate) echoes: Vec<String>,
    /// Whether log probabilities of the echoed prompts are reported.
    pub(crate) scores_prompt: bool,
    /// Constraint on the output; taken when it is compiled to a grammar.
    pub(crate) constraint: Option<Constraint>,
    /// The field of the constraint.
    constraint_field: &'static str,
    /// Present if the output may contain tool calls.
    pub(crate) tool_calls: Option<ToolCallParsing>,
    /// Present if the output may contain thinking.
    pub(crate) thinking: Option<Thinking>,
    /// Whether logprobs were requested.
    pub(crate) logprobs: bool,
    /// Memory of the images.
    pub(crate) image_memory: Option<OwnedSemaphorePermit>,
}

/// The thinking of a request.
#[derive(Debug)]
pub(crate) struct Thinking {
    format: ThinkingFormat,
    /// Whether the prompt ends within the thinking.
    open: bool,
    /// Whether the request switches thinking off.
    off: bool,
}

impl Thinking {
    /// A constraint that applies to the answer only.
    pub(crate) fn constraint(
        &self,
        inner: Box<dyn TokenConstraint>,
        tokenizer: &Tokenizer,
        stop_token_ids: &[u32],
    ) -> ThinkingConstraint {
        ThinkingConstraint::new(inner, &self.format, tokenizer, stop_token_ids, self.open, !self.off)
    }
}

impl ParsedRequest {
    /// Encodes the prompts and validates the rest. The time grows with the size of the prompts, so this must not run on a
    /// thread of the async runtime.
    pub(crate) fn new(
        fields: RequestFields,
        images: LoadedImages,
        app: &AppState,
    ) -> Result<ParsedRequest, Error> {
        let AppState { model, config, .. } = app;
        let context_length = app.generator.context_length();
        let RequestFields { options, input, .. } = fields;
        let LoadedImages { pictures, memory: image_memory } = images;
        let mut sampling = options.sampling(&model.sampling, model.token_count() as usize)?;
        let suppressed = model.tokenizer.suppressed_token_ids().iter().filter(|id| **id < model.vocab_size);
        sampling.biases.extend(suppressed.map(|id| (*id, f32::NEG_INFINITY)));
        if sampling.biases.len() > MAX_BIASES {
            let message = format!("has too many tokens: at most {MAX_BIASES} with those that the model bans");
            return Err(Error::invalid_field("logit_bias", message));
        }
        let mut constraint = options.constraint()?;
        let (mut tool_calls, mut thinking) = (None, None);
        let mut candidates = options.n();
        // Tokens that end a completion.
        let mut end_token_ids = model.stop_token_ids.clone();
        let (endpoint, prompts, top_logprobs, echo) = match input {
            Input::Chat(chat) => {
                let top_logprobs = chat.top_logprobs()?;
                let tokens;
                (tokens, thinking) = chat_prompt(*chat, &pictures, app, &mut constraint)?;
                if let Some(ConstraintKind::ToolCalls(grammar, _)) =
                    constraint.as_ref().map(|found| &found.kind)
                {
                    tool_calls = Some(ToolCallParsing::new(grammar));
                }
                let prompt = EncodedPrompt { tokens, images: pictures.concat(), echo: String::new() };
                (Endpoint::Chat, vec![prompt], top_logprobs, false)
            }
            Input::Completions(completion) => {
                let top_logprobs = completion.top_logprobs()?;
                let echo = completion.echo();
                candidates = completion.candidates(&options, config.max_choices)?;
                if completion.suffix().is_some() {
                    let more = fim_tokens(model)?.stop_token_ids.iter();
                    end_token_ids.extend(more.filter(|id| !model.stop_token_ids.contains(id)));
                    if echo && top_logprobs.is_some() {
                        let message = "cannot be combined with 'echo' and 'logprobs': the echoed prompt is not what \
                                       the model reads";
                        return Err(Error::invalid_field("suffix", message));
                    }
                }
                let prompts = completion_prompts(completion, candidates, model, config)?;
                (Endpoint::Completions, prompts, top_logprobs, echo)
            }
        };
        let scores_prompt = echo && top_logprobs.is_some();
        if !scores_prompt {
            options.require_completion()?;
        }
        if constraint.is_some() && options.ignores_eos() {
            let message = "cannot be combined with a constraint, which decides where the output ends";
            return Err(Error::invalid_field("ignore_eos", message));
        }
        // A tiny vocabulary may have fewer tokens than requested.
        let top = top_logprobs.unwrap_or(0).min(model.vocab_size);
        sampling.top = top;
        let stop_token_ids = options.stop_token_ids(&end_token_ids, model.token_count() as usize)?;
        let seed = options.seed.map_or_else(random::number, |seed| seed as u64);
        let (mut requests, mut echoes) = (Vec::new(), Vec::new());
        for EncodedPrompt { tokens, images, echo } in prompts {
            let max_tokens = max_tokens(endpoint, tokens.len(), &options, config, context_length)?;
            for choice in 0..candidates {
                let mut sampling = sampling.clone();
                sampling.seed = choice_seed(seed, choice);
                requests.push(Request {
                    sampling,
                    stop_token_ids: stop_token_ids.clone(),
                    max_tokens,
                    prompt_logprobs: scores_prompt.then_some(top),
                    images: images.clone(),
                    ..Request::new(tokens.clone(), NonZeroU32::MIN)
                });
                echoes.push(echo.clone());
            }
        }
        let logprobs = top_logprobs.is_some();
        let constraint_field = constraint.as_ref().map_or("response_format", Constraint::top_field);
        Ok(ParsedRequest {
            endpoint,
            options,
            candidates,
            requests,
            echoes,
            scores_prompt,
            constraint,
            constraint_field,
            tool_calls,
            thinking,
            logprobs,
            image_memory,
        })
    }

    /// A detokenizer and an output parser for one choice.
    pub(crate) fn output(&self, model: &Model) -> Result<(Detokenizer, OutputParser), Error> {
        let stops = StopMatcher::new(self.options.stops()).map_err(|e| Error::invalid_field("stop", e))?;
        let kept = self.tool_calls.iter().flat_map(|calls| calls.control_tokens.iter().copied());
        let delimiters = self.thinking.iter().flat_map(|thinking| &thinking.format.control_tokens);
        let kept = kept.chain(delimiters.map(|(_, id)| *id));
        let detokenizer = Detokenizer::new(&model.tokenizer, DecodeSpecial::Skip).keeping(kept);
        let parser = self.tool_calls.as_ref().map(|calls| calls.parser.clone());
        // The text of a call may contain anything.
        let anywhere = parser.is_none();
        let trigger = self.tool_calls.as_ref().and_then(|calls| calls.trigger.as_ref());
        let thinking = self.thinking.as_ref().map(|thinking| {
            let parser = ThinkingParser::new(thinking.format.clone(), thinking.open, anywhere);
            parser.ending_at(trigger.map(|(name, _)| name.as_str()))
        });
        Ok((detokenizer, OutputParser::new(thinking, parser, stops, self.logprobs, self.constraint_field)))
    }
}

/// Token limit of a completion; an error if the prompt is too long.
fn max_tokens(
    endpoint: Endpoint,
    prompt_tokens: usize,
    options: &Options,
    config: &Config,
    context_length: u32,
) -> Result<u32, Error> {
    let max_prompt = config.max_prompt_tokens.map_or(context_length, |max| max.min(context_length));
    let spare = u32::try_from(prompt_tokens).ok().and_then(|tokens| max_prompt.checked_sub(tokens));
    let Some(spare) = spare else {
        return Err(Error::PromptTooLong { tokens: prompt_tokens, max_tokens: max_prompt });
    };
    // One more than the free context: the last token of a completion is never an input.
    let available = spare.saturating_add(context_length - max_prompt).saturating_add(1);
    let requested = match endpoint {
        Endpoint::Chat => options.max_tokens().unwrap_or(available),
        Endpoint::Completions => options.max_tokens().unwrap_or(DEFAULT_MAX_TOKENS),
    };
    if options.min_tokens() > requested {
        let message = format!("is {}, but the maximum number of tokens is {requested}", options.min_tokens());
        return Err(Error::invalid_field("min_tokens", message));
    }
    // Requesting more than fits is not an error: the completion ends with `length`.
    Ok(requested.min(available))
}

/// Seed of a choice. The first choice is the one that `n` = 1 gives; the others differ from it, and the same seed
/// gives the same choices. The factor is 2⁶⁴ divided by the golden ratio: it spreads neighbouring seeds.
fn choice_seed(seed: u64, choice: u32) -> u64 {
    seed.wrapping_add(u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The conversation as tokens, and its thinking. If tools may be called, `constraint` becomes the grammar of their calls.
fn chat_prompt(
    chat: ChatRequest,
    pictures: &[Vec<Image>],
    app: &AppState,
    constraint: &mut Option<Constraint>,
) -> Result<(Vec<u32>, Option<Thinking>), Error> {
    let AppState { model, tool_support, thinking_format, config, .. } = app;
    let prompt_options = chat.prompt_options(config.thinking)?;
    let (messages, tool_options) = chat.into_messages()?;
    if prompt_options.end == PromptEnd::LastMessage {
        let is_text = |last: &Message| last.role == "assistant" && last.tool_calls.is_empty();
        if !messages.last().is_some_and(is_text) {
            let message = "needs an assistant message without tool calls at the end of 'messages'";
            return Err(Error::invalid_field("continue_final_message", message));
        }
    }
    let Some(template) = &model.chat_template else {
        let message = "the model has no chat template: use /v1/completions".to_owned();
        return Err(Error::Invalid { param: Some("model".to_owned()), message });
    };
    let format = tools::call_format(tool_support, &model.id, tool_options.is_some(), &messages)?;
    let tool_options = tool_options.unwrap_or_default();
    if let Some(format) = format {
        let format_field = constraint.as_ref().map_or("response_format", |constraint| constraint.field);
        let grammar = tools::call_grammar(&tool_options, format, constraint.take())?;
        *constraint = Some(Constraint::tool_calls(grammar, format_field));
    }
    let images_per_picture: Vec<usize> = pictures.iter().map(Vec::len).collect();
    let pieces = template.encode_with_images(
        &model.tokenizer,
        &messages,
        &tool_options.tools,
        &prompt_options,
        &images_per_picture,
    );
    let pieces = pieces.map_err(|e| Error::invalid_field("messages", e))?;
    let tokens = join_images(&pieces, &pictures.concat());
    let thinking = thinking_format.as_ref().map(|format| {
        let continued = messages.last().map(Message::text);
        let open = match prompt_options.end {
            PromptEnd::LastMessage => continued.is_some_and(|content| format.is_open_in(&content)),
            PromptEnd::Reply | PromptEnd::Messages => format.is_open(&model.tokenizer, &tokens),
        };
        let off = prompt_options.variables.get("enable_thinking") == Some(&false.into());
        Thinking { format: format.clone(), open, off }
    });
    Ok((tokens, thinking))
}

/// The tokens for filling in the middle; an error if the model has none.
fn fim_tokens(model: &Model) -> Result<&FimTokens, Error> {
    model.tokenizer.fim().ok_or_else(|| {
        let message = format!(
            "the vocabulary of '{}' has no tokens for filling in the middle: leave it out, or serve a model that was \
             trained for it, such as Qwen 2.5 Coder",
            model.id
        );
        Error::UnsupportedByModel { param: "suffix".to_owned(), message }
    })
}

/// The prompts as tokens.
fn completion_prompts(
    completion: CompletionRequest,
    candidates: u32,
    model: &Model,
    config: &Config,
) -> Result<Vec<EncodedPrompt>, Error> {
    let tokenizer = &model.tokenizer;
    let echo = completion.echo();
    let suffix = match completion.suffix() {
        Some(suffix) => Some((fim_tokens(model)?, suffix.to_owned())),
        None => None,
    };
    let prompts = completion.into_prompts(model.token_count() as usize, candidates, config.max_choices)?;
    let encode = |prompt| {
        let (tokens, text) = match prompt {
            // Code may contain the names of control tokens, and the prompt has its own.
            Prompt::Text(text) if suffix.is_some() => (tokenizer.encode(&text, EncodeSpecial::AsText), text),
            Prompt::Text(text) => (tokenizer.encode_prompt(&text), text),
            Prompt::Tokens(tokens) => {
                let text = if echo { tokenizer.decode(&tokens, DecodeSpecial::Skip) } else { String::new() };
                (tokens, text)
            }
        };
        let tokens = match &suffix {
            Some((fim, suffix)) => tokenizer.encode_fim(fim, &tokens, suffix),
            None => tokens,
        };
        if tokens.is_empty() {
            return Err(Error::invalid_field("prompt", "has no tokens: the model needs at least one"));
        }
        Ok(EncodedPrompt { tokens, images: vec![], echo: if echo { text } else { String::new() } })
    };
    prompts.into_iter().map(encode).collect()
}
