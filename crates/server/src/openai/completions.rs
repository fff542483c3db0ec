//! Request fields of `/v1/completions`: prompts as text or tokens.

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use utoipa::ToSchema;

use super::logprobs::MAX_TEXT_LOGPROBS;
use super::options::Options;
use crate::error::Error;
use crate::request::{self, Prompt};

/// Request fields of `/v1/completions`.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// A string, a list of strings, a list of token ids, or a list of lists of token ids.
    #[schema(value_type = PromptSchema)]
    prompt: Prompts,
    /// Whether the returned text starts with the prompt.
    echo: Option<bool>,
    /// Return log probabilities of the generated tokens and of this many most probable tokens at each position. With
    /// `echo`, of the prompt's tokens too.
    #[schema(minimum = 0, maximum = 5)]
    logprobs: Option<u32>,
    /// Text after the completion: the model fills in the middle between `prompt` and `suffix`. Only for models that
    /// were trained for it.
    suffix: Option<String>,
    /// Number of completions to generate per prompt, at least `n`; those with the highest mean log probability per
    /// token are returned. Not with `stream`, unless it equals `n`.
    #[schema(minimum = 1)]
    best_of: Option<u32>,
}

/// `prompt` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
enum PromptSchema {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

#[derive(Debug, PartialEq, Eq)]
struct Prompts(Vec<Prompt>);

/// An element of a list in `prompt`.
enum Element {
    Prompt(Prompt),
    Token(u32),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
                let invalid = || de::Error::invalid_value(de::Unexpected::Unsigned(id), &"a token id");
                u32::try_from(id).map(Element::Token).map_err(|_| invalid())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Element, A::Error> {
                let tokens = Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
                Ok(Element::Prompt(Prompt::Tokens(tokens)))
            }
        }
        deserializer.deserialize_any(ElementVisitor)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompts, D::Error> {
        struct PromptsVisitor;
        impl<'de> Visitor<'de> for PromptsVisitor {
            type Value = Prompts;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, a list of strings, of token ids or of lists of token ids")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
                let (mut prompts, mut tokens) = (Vec::new(), Vec::new());
                while let Some(element) = seq.next_element()? {
                    match element {
                        Element::Prompt(prompt) => prompts.push(prompt),
                        Element::Token(id) => tokens.push(id),
                    }
                    if !prompts.is_empty() && !tokens.is_empty() {
                        return Err(de::Error::custom("mixes prompts and token ids: use one of them"));
                    }
                }
                if !tokens.is_empty() {
                    prompts.push(Prompt::Tokens(tokens));
                }
                Ok(Prompts(prompts))
            }
        }
        deserializer.deserialize_any(PromptsVisitor)
    }
}

impl CompletionRequest {
    /// Whether log probabilities of the prompt are reported.
    pub(super) fn scores_prompt(&self) -> bool {
        self.echo.unwrap_or(false) && self.logprobs.is_some()
    }

    /// Number of most probable tokens to report per position; `None` without logprobs.
    pub(super) fn top_logprobs(&self) -> Result<Option<u32>, Error> {
        match self.logprobs {
            Some(top) if top > MAX_TEXT_LOGPROBS => Err(Error::invalid_field(
                "logprobs",
                format!("is {top}, but must be between 0 and {MAX_TEXT_LOGPROBS}"),
            )),
            top => Ok(top),
        }
    }

    /// Completions to generate per prompt, of which the best `n` are returned.
    pub(super) fn candidates(&self, options: &Options, max_choices: u32) -> Result<u32, Error> {
        let n = options.n();
        let best_of = self.best_of.unwrap_or(n);
        let problem = match best_of {
            _ if best_of < n => format!("is {best_of}, but must be at least 'n', which is {n}"),
            _ if best_of > max_choices => format!("is {best_of}, but the limit is {max_choices} choices"),
            _ if best_of > n && options.stream() => {
                "cannot be combined with 'stream': the best are known only at the end".to_owned()
            }
            _ => return Ok(best_of),
        };
        Err(Error::invalid_field("best_of", problem))
    }

    /// The prompts, validated for a vocabulary of `vocab_size` tokens and at most `max_choices` choices, `n` per prompt.
    pub(super) fn into_prompts(
        self,
        vocab_size: usize,
        n: u32,
        max_choices: u32,
    ) -> Result<request::Prompts, Error> {
        let (suffix, echo) = (self.suffix.filter(|suffix| !suffix.is_empty()), self.echo.unwrap_or(false));
        let prompts = self.prompt.0;
        if prompts.is_empty() {
            return Err(Error::invalid_field("prompt", "is empty: at least one prompt is required"));
        }
        if prompts.len() as u64 * u64::from(n) > u64::from(max_choices) {
            let message = format!(
                "has {} prompts with {n} choices each, but the limit is {max_choices} choices",
                prompts.len()
            );
            return Err(Error::invalid_field("prompt", message));
        }
        for prompt in &prompts {
            let Prompt::Tokens(tokens) = prompt else { continue };
            if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab_size) {
                return Err(Error::invalid_field(
                    "prompt",
                    format!("contains {id}, but token ids must be below {vocab_size}"),
                ));
            }
            if tokens.is_empty() {
                return Err(Error::invalid_field("prompt", "contains an empty list of tokens"));
            }
        }
        Ok(request::Prompts { prompts, suffix, echo })
    }
}
