//! Fields of other servers that would change the response, but are not implemented. Unknown fields that change nothing
//! are ignored.

use crate::unsupported::{Neutral, UnsupportedField};

/// Name, meaning and neutral values of the fields.
pub(super) const FIELDS: &[UnsupportedField] = &[
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
