//! Fields of other servers that would change the response, but are not implemented. They are rejected: a client must not
//! believe that they had an effect. Unknown fields that change nothing are ignored.

use serde_json::Value;

use crate::error::Error;

/// Values that leave the response as it is, besides null.
enum Neutral {
    /// False, zero, and empty texts and lists.
    Empty,
    /// True.
    True,
    /// This number.
    Number(f64),
}

/// Name, meaning and neutral values of the fields.
const FIELDS: &[(&str, &str, Neutral)] = &[
    ("allowed_token_ids", "restricting the vocabulary (use 'logit_bias')", Neutral::Empty),
    ("audio", "audio output", Neutral::Empty),
    ("bad_words", "banning words (use 'logit_bias')", Neutral::Empty),
    ("chat_template", "a template in the request", Neutral::Empty),
    ("dry_multiplier", "DRY sampling", Neutral::Empty),
    ("dynatemp_range", "dynamic temperature", Neutral::Empty),
    ("ebnf", "a grammar under this name (use 'grammar')", Neutral::Empty),
    ("eta_cutoff", "eta sampling", Neutral::Empty),
    ("epsilon_cutoff", "epsilon sampling", Neutral::Empty),
    ("guided_whitespace_pattern", "a pattern for white space", Neutral::Empty),
    ("include_stop_str_in_output", "returning the stop string", Neutral::Empty),
    ("length_penalty", "beam search", Neutral::Number(1.0)),
    ("logits_processors", "code in requests", Neutral::Empty),
    ("mirostat", "Mirostat sampling", Neutral::Empty),
    ("mirostat_mode", "Mirostat sampling", Neutral::Empty),
    ("n_probs", "log probabilities under this name (use 'logprobs')", Neutral::Empty),
    ("no_repeat_ngram_size", "banning repeated n-grams", Neutral::Empty),
    ("prompt_logprobs", "log probabilities of the prompt", Neutral::Empty),
    ("regex", "a regular expression under this name (use 'structured_outputs')", Neutral::Empty),
    ("samplers", "an order of samplers", Neutral::Empty),
    ("skip_special_tokens", "special tokens in the output", Neutral::True),
    ("smoothing_factor", "quadratic sampling", Neutral::Empty),
    ("structural_tag", "structural tags", Neutral::Empty),
    ("tfs", "tail-free sampling", Neutral::Number(1.0)),
    ("tfs_z", "tail-free sampling", Neutral::Number(1.0)),
    ("top_a", "top-a sampling", Neutral::Empty),
    ("top_n_sigma", "top-n-sigma sampling", Neutral::Number(-1.0)),
    ("truncate_prompt_tokens", "truncating the prompt", Neutral::Empty),
    ("typical_p", "typical sampling", Neutral::Number(1.0)),
    ("use_beam_search", "beam search", Neutral::Empty),
    ("web_search_options", "web search", Neutral::Empty),
    ("xtc_probability", "XTC sampling", Neutral::Empty),
];

/// An error if a body has a field of [`FIELDS`] with a value that would change the response.
pub(crate) fn check_unsupported(body: &Value) -> Result<(), Error> {
    for (name, feature, neutral) in FIELDS {
        if let Some(value) = body.get(name)
            && !neutral.allows(value)
        {
            return Err(Error::unsupported(*name, *feature));
        }
    }
    Ok(())
}

impl Neutral {
    fn allows(&self, value: &Value) -> bool {
        let is_empty = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) => false,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(values) => values.is_empty(),
            Value::Object(fields) => fields.is_empty(),
        };
        match self {
            Neutral::Empty => is_empty,
            Neutral::True => matches!(value, Value::Null | Value::Bool(true)),
            Neutral::Number(neutral) => value.is_null() || value.as_f64() == Some(*neutral),
        }
    }
}
