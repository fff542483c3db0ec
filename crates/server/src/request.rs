//! From a body to what the generator is asked for.

use std::num::NonZeroU32;

use engine::Request;
use text::{DecodeSpecial, Detokenizer, StopMatcher, ToolSupport};

use crate::choice::Said;
use crate::config::{Config, Model};
use crate::error::Error;
use crate::openai::{self, Chat, Completion, Options, Prompt, Shape};
use crate::record::random;
use crate::tools::{self, Calling};

/// How many tokens `/v1/completions` writes where nobody says; OpenAI's number.
const COMPLETION_TOKENS: u32 = 16;

/// Which endpoint was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

/// A request that is right in itself.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) form: Form,
    pub(crate) options: Options,
    /// `n` for each prompt, one after the other.
    pub(crate) requests: Vec<Request>,
    /// What each answer begins with.
    pub(crate) echoes: Vec<String>,
    /// What each answer is held to.
    pub(crate) shape: Option<Shape>,
    /// How answers call tools, where they may.
    pub(crate) calling: Option<Calling>,
    /// Whether the probabilities of tokens are told.
    pub(crate) tells: bool,
}

impl Asked {
    /// Reads a body, for a model that knows so much of tools. Takes time that grows with it: not for the threads that serve connections.
    pub(crate) fn read(
        form: Form,
        body: &[u8],
        model: &Model,
        knows: &ToolSupport,
        config: &Config,
        context: u32,
    ) -> Result<Asked, Error> {
        let body = &openai::parse(body)?;
        let options: Options = openai::read(body)?;
        if options.model != model.id {
            return Err(Error::UnknownModel(options.model));
        }
        options.check(config.max_choices)?;
        let vocab = model.tokens() as usize;
        let mut sampling = options.sampling(&model.sampling, vocab)?;
        let mut shape = options.shape()?;
        let mut calling = None;
        let (prompts, tops) = match form {
            Form::Chat => {
                let asked: Chat = openai::read(body)?;
                let tops = asked.tops()?;
                let prompt = chat(asked, model, knows, &mut shape)?;
                if let Some(Shape::Calls(calls)) = &shape {
                    calling = Some(Calling::new(calls));
                }
                (vec![(prompt, String::new())], tops)
            }
            Form::Text => {
                let asked: Completion = openai::read(body)?;
                let tops = asked.tops()?;
                (texts(asked, &options, model, config)?, tops)
            }
        };
        // A small vocabulary may have fewer.
        sampling.top = tops.unwrap_or(0).min(model.vocab);
        let seed = options.seed.map_or_else(random, |seed| seed as u64);
        let (mut requests, mut echoes) = (Vec::new(), Vec::new());
        for (prompt, echo) in prompts {
            let tokens = prompt.len();
            let longest = config.max_prompt_tokens.map_or(context, |most| most.min(context));
            let Some(spare) = u32::try_from(tokens).ok().and_then(|tokens| longest.checked_sub(tokens))
            else {
                return Err(Error::TooLong { tokens, most: longest });
            };
            // The last token of an answer needs no position: nothing follows it.
            let room = spare.saturating_add(context - longest).saturating_add(1);
            let wanted = match form {
                Form::Chat => options.most().unwrap_or(room),
                Form::Text => options.most().unwrap_or(COMPLETION_TOKENS),
            };
            // More than there is room for is no error: the answer ends by its length.
            let most = NonZeroU32::new(wanted.min(room)).ok_or(Error::field("max_tokens", "is 0"))?;
            for choice in 0..options.n() {
                let mut sampling = sampling.clone();
                sampling.seed = seed_of(seed, choice);
                requests.push(Request {
                    prompt: prompt.clone(),
                    max_tokens: most,
                    sampling,
                    stop_token_ids: model.ends.clone(),
                    grammar: None,
                    deadline: None,
                    span: tracing::Span::none(),
                });
                echoes.push(echo.clone());
            }
        }
        Ok(Asked { form, options, requests, echoes, shape, calling, tells: tops.is_some() })
    }

    /// What makes text of an answer's tokens, and pieces of its text.
    pub(crate) fn text(&self, model: &Model) -> Result<(Detokenizer, Said), Error> {
        let stops = StopMatcher::new(self.options.stops()).map_err(|e| Error::field("stop", e))?;
        let shown = self.calling.iter().flat_map(|calling| calling.shown.iter().copied());
        let text = Detokenizer::new(&model.tokenizer, DecodeSpecial::Skip).keeping(shown);
        let reader = self.calling.as_ref().map(|calling| calling.reader.clone());
        Ok((text, Said::new(reader, stops, self.tells)))
    }
}

/// The answers to one prompt differ, the first of them is the one that `n` = 1 would give, and the same seed gives the
/// same again. The factor is 2⁶⁴ by the golden ratio: seeds of neighbours lie far apart.
fn seed_of(seed: u64, choice: u32) -> u64 {
    seed.wrapping_add(u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The conversation as tokens. Where tools may be called, that is what answers are held to, beside the shape that there was.
fn chat(
    chat: Chat,
    model: &Model,
    knows: &ToolSupport,
    shape: &mut Option<Shape>,
) -> Result<Vec<u32>, Error> {
    let (messages, offered) = chat.read()?;
    let Some(template) = &model.template else {
        let message = "the model has no chat template: use /v1/completions".to_owned();
        return Err(Error::Invalid { param: Some("model".to_owned()), message });
    };
    let form = tools::form(knows, &model.id, offered.is_some(), &messages)?;
    let offered = offered.unwrap_or_default();
    if let Some(form) = form {
        *shape = Some(Shape::Calls(Box::new(tools::calls(&offered, form, shape.take()))));
    }
    let tokens = template.encode_with_tools(&model.tokenizer, &messages, &offered.tools, true);
    tokens.map_err(|e| Error::field("messages", e))
}

/// The prompts as tokens, each with what its answers begin with.
fn texts(
    completion: Completion,
    options: &Options,
    model: &Model,
    config: &Config,
) -> Result<Vec<(Vec<u32>, String)>, Error> {
    let tokenizer = &model.tokenizer;
    let echoes = completion.echoes();
    let prompts = completion.prompts(model.tokens() as usize, options.n(), config.max_choices)?;
    let prompt = |prompt| {
        let (tokens, text) = match prompt {
            Prompt::Text(text) => (tokenizer.encode_prompt(&text), text),
            Prompt::Tokens(tokens) => {
                let text =
                    if echoes { tokenizer.decode(&tokens, DecodeSpecial::Skip) } else { String::new() };
                (tokens, text)
            }
        };
        if tokens.is_empty() {
            return Err(Error::field("prompt", "has no tokens: the model needs something to continue"));
        }
        Ok((tokens, if echoes { text } else { String::new() }))
    };
    prompts.into_iter().map(prompt).collect()
}
