//! Requests in terms of no protocol, and the engine requests that they become.
//!
//! Each protocol parses its bodies into a [`GenerationRequest`]. [`ParsedRequest`] applies the chat template and the
//! tokenizer to it.

use std::num::NonZeroU32;

use engine::{Image, Request, Sampling, join_images};
use text::{
    DecodeSpecial, Detokenizer, EncodeSpecial, FimTokens, Message, PromptEnd, PromptOptions, StopMatcher,
    ThinkingConstraint, ThinkingFormat, ThinkingParser, TokenConstraint, Tokenizer,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::config::{Config, Model};
use crate::constraint::{Constraint, ConstraintKind};
use crate::error::Error;
use crate::images::{ImageSource, LoadedImages};
use crate::output::OutputParser;
use crate::random;
use crate::served::ServedModel;
use crate::state::Context;
use crate::tools::{self, ToolCallParsing, ToolOptions};
use crate::truncation;

/// Maximum number of stop strings.
pub(crate) const MAX_STOPS: usize = 64;

/// Maximum length of a stop string in bytes: every choice keeps a match table of it.
const MAX_STOP_BYTES: usize = 1024;

/// Maximum number of logit biases, the size of the sampler's table.
pub(crate) const MAX_BIASES: usize = 512;

/// What a client requests. Its fields are validated, but its images are not decoded and its prompt is not encoded yet.
#[derive(Debug)]
pub(crate) struct GenerationRequest {
    /// Start of the response's id; that of the request follows.
    pub(crate) id_prefix: &'static str,
    pub(crate) input: Input,
    /// Images that are not decoded yet, in the order of the input.
    pub(crate) images: Vec<ImageSource>,
    pub(crate) options: GenerationOptions,
}

/// How the output is generated.
#[derive(Debug, Default)]
pub(crate) struct GenerationOptions {
    /// Sampling parameters. The seed is ignored.
    pub(crate) sampling: Sampling,
    /// `None`: a random one.
    pub(crate) seed: Option<u64>,
    /// Choices to generate per prompt: as many as are returned, or more if the best of them are.
    pub(crate) candidates: u32,
    /// `None`: as many as the context allows.
    pub(crate) max_tokens: Option<u32>,
    /// Tokens before the completion may end.
    pub(crate) min_tokens: u32,
    pub(crate) stops: Vec<String>,
    /// Further tokens that end a completion.
    pub(crate) stop_token_ids: Vec<u32>,
    /// Whether the model's own tokens that end a completion are ignored.
    pub(crate) ignore_eos: bool,
    pub(crate) constraint: Option<Constraint>,
    /// Number of most probable tokens to report per position; `None` without logprobs.
    pub(crate) top_logprobs: Option<u32>,
    /// Whether no tokens are drafted.
    pub(crate) no_drafts: bool,
    /// Predicted text of the completion, to draft from.
    pub(crate) prediction: Option<String>,
}

/// The input of a request.
#[derive(Debug)]
pub(crate) enum Input {
    Conversation(Box<Conversation>),
    Prompts(Prompts),
}

/// Messages for the chat template.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// The tools that may be called, if any.
    pub(crate) tools: Option<ToolOptions>,
    pub(crate) prompt_options: PromptOptions,
    /// The first field of the messages with a tool call or a result, for errors.
    pub(crate) tools_used_at: Option<String>,
    /// The field of the messages, for errors.
    pub(crate) field: &'static str,
    /// Whether the oldest messages are left out if the prompt is too long.
    pub(crate) truncate: bool,
}

/// Prompts without a template.
#[derive(Debug)]
pub(crate) struct Prompts {
    pub(crate) prompts: Vec<Prompt>,
    /// Text after the completion: the model fills in the middle.
    pub(crate) suffix: Option<String>,
    /// Whether completions start with their prompts.
    pub(crate) echo: bool,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// Validates stop strings of the field `field`.
pub(crate) fn check_stops(field: &str, stops: &[String]) -> Result<(), Error> {
    if stops.len() > MAX_STOPS {
        let message = format!("has {} strings, but at most {MAX_STOPS} are allowed", stops.len());
        return Err(Error::invalid_field(field, message));
    }
    if let Some(long) = stops.iter().find(|stop| stop.len() > MAX_STOP_BYTES) {
        let message = format!("has a string of {} bytes, but the limit is {MAX_STOP_BYTES}", long.len());
        return Err(Error::invalid_field(field, message));
    }
    if stops.iter().any(String::is_empty) {
        return Err(Error::invalid_field(field, "has an empty string: leave it out"));
    }
    Ok(())
}

/// A sampling parameter between `low` and `high`; `base` if it is not given.
pub(crate) fn ranged(field: &str, value: Option<f64>, low: f64, high: f64, base: f32) -> Result<f32, Error> {
    match value {
        None => Ok(base),
        Some(value) if (low..=high).contains(&value) => Ok(value as f32),
        Some(value) => {
            Err(Error::invalid_field(field, format!("is {value}, but must be between {low} and {high}")))
        }
    }
}

/// A prompt, and the text to echo.
struct EncodedPrompt {
    tokens: Vec<u32>,
    images: Vec<Image>,
    /// Empty without `echo`.
    echo: String,
}

/// A request that is ready for the engine.
#[derive(Debug)]
pub(crate) struct ParsedRequest {
    /// Start of the response's id; that of the request follows.
    pub(crate) id_prefix: &'static str,
    /// Choices to generate per prompt.
    pub(crate) candidates: u32,
    /// One engine request per candidate: those of the first prompt, those of the second, and so on.
    pub(crate) requests: Vec<Request>,
    /// Text that each choice starts with: its prompt if `echo` is set, else empty.
    pub(crate) echoes: Vec<String>,
    /// Whether log probabilities of the echoed prompts are reported.
    pub(crate) scores_prompt: bool,
    /// Tokens before the completion may end.
    pub(crate) min_tokens: u32,
    stops: Vec<String>,
    /// Constraint on the output; taken when it is compiled to a grammar.
    pub(crate) constraint: Option<Constraint>,
    /// The field of the constraint.
    constraint_field: &'static str,
    /// Present if the output may contain tool calls.
    pub(crate) tool_calls: Option<ToolCallParsing>,
    /// Present if the output may contain thinking.
    pub(crate) thinking: Option<Thinking>,
    /// Whether logprobs were requested.
    logprobs: bool,
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
    /// Encodes the prompts. The time grows with their size, so this must not run on a thread of the async runtime.
    pub(crate) fn new(
        request: GenerationRequest,
        images: LoadedImages,
        context: &Context,
    ) -> Result<ParsedRequest, Error> {
        let (model, config) = (&context.served.model, &context.app.config);
        let context_length = context.served.generator.context_length();
        let GenerationRequest { id_prefix, input, options, .. } = request;
        let LoadedImages { pictures, memory: image_memory } = images;
        let GenerationOptions { mut sampling, mut constraint, candidates, top_logprobs, .. } = options;
        let suppressed = model.tokenizer.suppressed_token_ids().iter().filter(|id| **id < model.vocab_size);
        sampling.biases.extend(suppressed.map(|id| (*id, f32::NEG_INFINITY)));
        if sampling.biases.len() > MAX_BIASES {
            let message = format!("has too many tokens: at most {MAX_BIASES} with those that the model bans");
            return Err(Error::invalid_field("logit_bias", message));
        }
        let (mut tool_calls, mut thinking, mut scores_prompt) = (None, None, false);
        // Tokens that end a completion.
        let mut stop_token_ids = if options.ignore_eos { vec![] } else { model.stop_token_ids.clone() };
        let prompts = match input {
            Input::Conversation(conversation) => {
                let target = truncation_target(options.max_tokens, config, context_length);
                let served = &context.served;
                let prompt = conversation_prompt(*conversation, &pictures, served, &mut constraint, target)?;
                thinking = prompt.thinking;
                if let Some(ConstraintKind::ToolCalls { grammar, .. }) =
                    constraint.as_ref().map(|found| &found.kind)
                {
                    tool_calls = Some(ToolCallParsing::new(grammar));
                }
                vec![EncodedPrompt { tokens: prompt.tokens, images: prompt.images, echo: String::new() }]
            }
            Input::Prompts(prompts) => {
                scores_prompt = prompts.echo && top_logprobs.is_some();
                if prompts.suffix.is_some() {
                    let more = fim_tokens(model)?.stop_token_ids.iter();
                    let more = more.filter(|id| !options.ignore_eos && !model.stop_token_ids.contains(id));
                    stop_token_ids.extend(more);
                    if scores_prompt {
                        let message = "cannot be combined with 'echo' and 'logprobs': the echoed prompt is not what \
                                       the model reads";
                        return Err(Error::invalid_field("suffix", message));
                    }
                }
                encode_prompts(prompts, model)?
            }
        };
        stop_token_ids.extend(&options.stop_token_ids);
        if constraint.is_some() && options.ignore_eos {
            let message = "cannot be combined with a constraint, which decides where the output ends";
            return Err(Error::invalid_field("ignore_eos", message));
        }
        // A tiny vocabulary may have fewer tokens than requested.
        let top = top_logprobs.unwrap_or(0).min(model.vocab_size);
        sampling.top = top;
        let seed = options.seed.unwrap_or_else(random::number);
        let prediction = prediction_tokens(options.prediction.as_deref(), model, context_length)?;
        let (mut requests, mut echoes) = (Vec::new(), Vec::new());
        for EncodedPrompt { tokens, images, echo } in prompts {
            let (requested, min_tokens) = (options.max_tokens, options.min_tokens);
            let max_tokens = max_tokens(tokens.len(), requested, min_tokens, config, context_length)?;
            for choice in 0..candidates {
                let mut sampling = sampling.clone();
                sampling.seed = choice_seed(seed, choice);
                requests.push(Request {
                    sampling,
                    stop_token_ids: stop_token_ids.clone(),
                    max_tokens,
                    prompt_logprobs: scores_prompt.then_some(top),
                    images: images.clone(),
                    speculate: !options.no_drafts,
                    prediction: prediction.clone(),
                    ..Request::new(tokens.clone(), NonZeroU32::MIN)
                });
                echoes.push(echo.clone());
            }
        }
        let constraint_field = constraint.as_ref().map_or("response_format", Constraint::top_field);
        Ok(ParsedRequest {
            id_prefix,
            candidates,
            requests,
            echoes,
            scores_prompt,
            min_tokens: options.min_tokens,
            stops: options.stops,
            constraint,
            constraint_field,
            tool_calls,
            thinking,
            logprobs: top_logprobs.is_some(),
            image_memory,
        })
    }

    /// A detokenizer and an output parser for one choice.
    pub(crate) fn output(&self, model: &Model) -> Result<(Detokenizer, OutputParser), Error> {
        let stops = StopMatcher::new(&self.stops).map_err(|e| Error::invalid_field("stop", e))?;
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

/// The tokens of a request's prompts, which may be longer than the context. The time grows with their size.
pub(crate) fn prompt_tokens(
    request: GenerationRequest,
    images: LoadedImages,
    context: &Context,
) -> Result<Vec<u32>, Error> {
    let mut constraint = request.options.constraint;
    Ok(match request.input {
        Input::Conversation(conversation) => {
            conversation_prompt(*conversation, &images.pictures, &context.served, &mut constraint, u32::MAX)?
                .tokens
        }
        Input::Prompts(prompts) => encode_prompts(prompts, &context.served.model)?
            .into_iter()
            .flat_map(|prompt| prompt.tokens)
            .collect(),
    })
}

/// Number of [`prompt_tokens`].
pub(crate) fn count_prompt_tokens(
    request: GenerationRequest,
    images: LoadedImages,
    context: &Context,
) -> Result<usize, Error> {
    prompt_tokens(request, images, context).map(|tokens| tokens.len())
}

/// The tokens of a prediction; an error if there are more than a completion can have.
fn prediction_tokens(text: Option<&str>, model: &Model, context_length: u32) -> Result<Vec<u32>, Error> {
    let tokens = text.map_or(vec![], |text| model.tokenizer.encode(text, EncodeSpecial::AsText));
    if tokens.len() > context_length as usize {
        let message =
            format!("has {} tokens, but the context has room for {context_length} only", tokens.len());
        return Err(Error::invalid_field("prediction", message));
    }
    Ok(tokens)
}

/// Token limit of a completion; an error if the prompt is too long.
fn max_tokens(
    prompt_tokens: usize,
    requested: Option<u32>,
    min_tokens: u32,
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
    let requested = requested.unwrap_or(available);
    if min_tokens > requested {
        let message = format!("is {min_tokens}, but the maximum number of tokens is {requested}");
        return Err(Error::invalid_field("min_tokens", message));
    }
    // Requesting more than fits is not an error: the completion ends there.
    Ok(requested.min(available))
}

/// Seed of a choice. The first choice is the one that `n` = 1 gives; the others differ from it, and the same seed
/// gives the same choices. The factor is 2⁶⁴ divided by the golden ratio: it spreads neighbouring seeds.
fn choice_seed(seed: u64, choice: u32) -> u64 {
    seed.wrapping_add(u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Prompt length to which a conversation is truncated: it leaves the requested tokens, or a quarter of the context, but
/// never more than half of it.
fn truncation_target(requested: Option<u32>, config: &Config, context_length: u32) -> u32 {
    let reserved = requested.unwrap_or(context_length / 4).min(context_length / 2);
    let target = context_length - reserved;
    config.max_prompt_tokens.map_or(target, |max| max.min(target))
}

/// A conversation as tokens and images, and its thinking.
struct ConversationPrompt {
    tokens: Vec<u32>,
    images: Vec<Image>,
    thinking: Option<Thinking>,
}

/// The prompt of a conversation; if that is to be truncated, to this number of tokens. If tools may be called,
/// `constraint` becomes the grammar of their calls.
fn conversation_prompt(
    conversation: Conversation,
    pictures: &[Vec<Image>],
    served: &ServedModel,
    constraint: &mut Option<Constraint>,
    target: u32,
) -> Result<ConversationPrompt, Error> {
    let ServedModel { model, tool_support, thinking_format, .. } = served;
    let Conversation { messages, tools, prompt_options, tools_used_at, field, truncate } = conversation;
    let Some(template) = &model.chat_template else {
        let message = "the model has no chat template: use /v1/completions".to_owned();
        return Err(Error::Invalid { param: Some("model".to_owned()), message });
    };
    let format = tools::call_format(tool_support, &model.id, tools.is_some(), tools_used_at.as_deref())?;
    if let Some((format, tools)) = format.zip(tools.as_ref()) {
        let format_field = constraint.as_ref().map_or("response_format", |constraint| constraint.field);
        let grammar = tools::call_grammar(tools, format, constraint.take())?;
        *constraint = Some(Constraint::tool_calls(grammar, format_field, tools.schema_field));
    }
    let render = |messages: &[Message], pictures: &[Vec<Image>]| -> Result<_, Error> {
        let images_per_picture: Vec<usize> = pictures.iter().map(Vec::len).collect();
        let pieces = template.encode_with_images(
            &model.tokenizer,
            messages,
            tools.as_ref().map_or(&[], |tools| &tools.tools),
            &prompt_options,
            &images_per_picture,
        );
        let pieces = pieces.map_err(|e| Error::invalid_field(field, e))?;
        let images = pictures.concat();
        Ok((join_images(&pieces, &images), images))
    };
    let (mut tokens, mut images) = render(&messages, pictures)?;
    let fits = |tokens: &[u32]| tokens.len() <= target as usize;
    if truncate && !fits(&tokens) {
        let groups = truncation::droppable(&messages);
        let render_without = |count: usize| {
            let (messages, pictures) = truncation::without(&groups[..count], &messages, pictures);
            render(&messages, &pictures)
        };
        let is_enough = |count: usize| Ok::<bool, Error>(fits(&render_without(count)?.0));
        let count = truncation::smallest_fitting(groups.len(), is_enough)?;
        (tokens, images) = render_without(count)?;
    }
    let thinking = thinking_format.as_ref().map(|format| {
        let continued = messages.last().map(Message::text);
        let open = match prompt_options.end {
            PromptEnd::LastMessage => continued.is_some_and(|content| format.is_open_in(&content)),
            PromptEnd::Reply | PromptEnd::Messages => format.is_open(&model.tokenizer, &tokens),
        };
        let off = prompt_options.variables.get("enable_thinking") == Some(&false.into());
        Thinking { format: format.clone(), open, off }
    });
    Ok(ConversationPrompt { tokens, images, thinking })
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
fn encode_prompts(input: Prompts, model: &Model) -> Result<Vec<EncodedPrompt>, Error> {
    let tokenizer = &model.tokenizer;
    let Prompts { prompts, suffix, echo } = input;
    let suffix = match suffix {
        Some(suffix) => Some((fim_tokens(model)?, suffix)),
        None => None,
    };
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
