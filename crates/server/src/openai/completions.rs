//! What only `/v1/completions` has: prompts as text or tokens.

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use utoipa::ToSchema;

use super::logprobs::TEXT_MOST;
use super::options::unset;
use crate::error::Error;

/// Text to be continued.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Completion {
    /// A text, a list of texts, a list of tokens, or a list of lists of tokens.
    #[schema(value_type = AnyPrompt)]
    prompt: Prompts,
    /// Whether the answer begins with the prompt.
    echo: Option<bool>,
    /// The probabilities of the answer's tokens are told, and so many of the most probable in the place of each. Not with `echo`.
    #[schema(minimum = 0, maximum = 5)]
    logprobs: Option<u32>,
    /// Not built: any value but none is refused.
    suffix: Option<String>,
    /// Not built: any value but `n` is refused.
    best_of: Option<u32>,
}

/// The shape in the schema.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only described, never made")]
enum AnyPrompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

/// A prompt as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Debug, PartialEq, Eq)]
struct Prompts(Vec<Prompt>);

/// An element of a list of prompts.
enum Element {
    Prompt(Prompt),
    Token(u32),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        struct AnyElement;
        impl<'de> Visitor<'de> for AnyElement {
            type Value = Element;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Element, E> {
                let wrong = || de::Error::invalid_value(de::Unexpected::Unsigned(id), &"a token id");
                u32::try_from(id).map(Element::Token).map_err(|_| wrong())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Element, A::Error> {
                let tokens = Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
                Ok(Element::Prompt(Prompt::Tokens(tokens)))
            }
        }
        deserializer.deserialize_any(AnyElement)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompts, D::Error> {
        struct AnyPrompts;
        impl<'de> Visitor<'de> for AnyPrompts {
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
                        return Err(de::Error::custom(
                            "holds prompts and token ids, but must hold one of them",
                        ));
                    }
                }
                if !tokens.is_empty() {
                    prompts.push(Prompt::Tokens(tokens));
                }
                Ok(Prompts(prompts))
            }
        }
        deserializer.deserialize_any(AnyPrompts)
    }
}

impl Completion {
    /// Whether answers begin with their prompts.
    pub(crate) fn echoes(&self) -> bool {
        self.echo.unwrap_or(false)
    }

    /// How many of the most probable tokens are told with each; none where no probabilities are.
    pub(crate) fn tops(&self) -> Result<Option<u32>, Error> {
        match self.logprobs {
            Some(top) if top > TEXT_MOST => {
                Err(Error::field("logprobs", format!("is {top}, but must be from 0 to {TEXT_MOST}")))
            }
            Some(_) if self.echoes() => {
                Err(Error::unsupported("logprobs", "telling the probabilities of the prompt, with 'echo',"))
            }
            top => Ok(top),
        }
    }

    /// The prompts, for a vocabulary of `vocab` tokens; `n` answers to each, `choices` at most.
    pub(crate) fn prompts(self, vocab: usize, n: u32, choices: u32) -> Result<Vec<Prompt>, Error> {
        unset("suffix", &self.suffix.filter(|suffix| !suffix.is_empty()).map(Value::from), "filling a gap")?;
        if self.best_of.is_some_and(|best_of| best_of != n) {
            return Err(Error::unsupported("best_of", "choosing among answers"));
        }
        let prompts = self.prompt.0;
        if prompts.is_empty() {
            return Err(Error::field("prompt", "is empty, but must hold one prompt or more"));
        }
        if prompts.len() as u64 * u64::from(n) > u64::from(choices) {
            let message = format!("{} prompts with {n} answers each are more than {choices}", prompts.len());
            return Err(Error::field("prompt", message));
        }
        for prompt in &prompts {
            let Prompt::Tokens(tokens) = prompt else { continue };
            if let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) {
                return Err(Error::field("prompt", format!("holds {id}, but token ids are below {vocab}")));
            }
            if tokens.is_empty() {
                return Err(Error::field("prompt", "holds an empty list of tokens"));
            }
        }
        Ok(prompts)
    }
}
