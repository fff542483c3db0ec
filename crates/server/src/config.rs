//! What an operator may choose, and what holds where nothing is chosen.

use std::time::Duration;

use engine::Sampling;
use text::{ChatTemplate, Tokenizer};

/// Limits and access. The defaults are for one machine at home that strangers cannot reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Keys of which a request to `/v1` must bear one; none lets everyone in.
    pub api_keys: Vec<String>,
    /// Origins whose pages may read answers in a browser, `*` for all. None: no page may.
    pub cors_origins: Vec<String>,
    /// Bytes of a request's body. 4 MiB holds a prompt of a million tokens.
    pub body_bytes: usize,
    /// Bytes of all bodies together that are being taken in or read. Who finds no room for its body waits, up to `body_time`.
    pub bodies_bytes: usize,
    /// How long the body may take to arrive, in all.
    pub body_time: Duration,
    /// How long the head of a request may take to arrive; an idle connection is closed after this.
    pub head_time: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// How long a client may leave bytes unread before its connection is closed.
    pub stall_time: Duration,
    /// Tokens of a prompt; none is as many as the context has room for.
    pub prompt_tokens: Option<u32>,
    /// How long a request may wait for the first of its answers to be begun.
    pub queue_time: Duration,
    /// How long a request may take from its arrival to its last token.
    pub request_time: Duration,
    /// Connections at a time. More wait to be accepted.
    pub connections: usize,
    /// Answers that one request may ask for: `n`, times the prompts where there are several.
    pub choices: u32,
    /// After so long without a token a stream gets a comment, so that nothing in between takes it for dead.
    pub keep_alive: Duration,
    /// How long the GPU may take to answer when `/ready` asks for it.
    pub probe_time: Duration,
    /// Grammars that are made at a time of what requests ask for. More wait, up to `grammar_time`.
    pub grammars: usize,
    /// How long a grammar may take to be made before its request is refused.
    pub grammar_time: Duration,
    /// Write prompts to the log. Off: nothing that was said is ever in it.
    pub log_prompts: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            api_keys: vec![],
            cors_origins: vec![],
            body_bytes: 4 << 20,
            bodies_bytes: 32 << 20,
            body_time: Duration::from_secs(30),
            head_time: Duration::from_secs(30),
            head_bytes: 64 << 10,
            stall_time: Duration::from_secs(60),
            prompt_tokens: None,
            queue_time: Duration::from_secs(60),
            request_time: Duration::from_secs(600),
            connections: 512,
            choices: 16,
            keep_alive: Duration::from_secs(15),
            probe_time: Duration::from_secs(5),
            grammars: 2,
            grammar_time: Duration::from_secs(10),
            log_prompts: false,
        }
    }
}

/// The model that is served.
pub struct Model {
    /// Its name in requests.
    pub id: String,
    /// When it was made, in seconds since 1970; shown by `/v1/models`.
    pub created: u64,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// How many tokens it has logits for; the tokenizer may know fewer, or more.
    pub vocab: u32,
    /// Tokens that end an answer.
    pub ends: Vec<u32>,
    /// How a conversation is written. Without one there is no `/v1/chat/completions`.
    pub template: Option<ChatTemplate>,
    /// What a request does not say of sampling. The seed is not taken from here.
    pub sampling: Sampling,
}
