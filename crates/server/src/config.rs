//! Configuration of the server, and the model it serves.

use std::time::Duration;

use engine::{ImageProcessor, Sampling};
use images::Limits;
use text::{ChatTemplate, Tokenizer};

/// Limits and access control. The defaults suit a server that is only reachable from its own machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// API keys accepted by `/v1`. Empty: no authentication.
    pub api_keys: Vec<String>,
    /// Allowed CORS origins, `*` for all. Empty: no CORS headers.
    pub cors_origins: Vec<String>,
    /// Names that requests may give as their host, besides those of this machine; `*` for all. `None`: all. A server
    /// without API keys that listens on a loopback address should restrict them, against DNS rebinding.
    pub allowed_hosts: Option<Vec<String>>,
    /// Maximum size of a request body in bytes. 4 MiB holds a prompt of a million tokens.
    pub max_body_bytes: usize,
    /// Total bytes of request bodies that are being received or parsed, beyond the first 64 KiB of each. Further bodies
    /// wait, and those that arrive slowly are dropped.
    pub max_inflight_body_bytes: usize,
    /// Maximum time to receive a request body.
    pub body_timeout: Duration,
    /// Maximum time to receive the request headers; also the idle timeout of a connection.
    pub header_timeout: Duration,
    /// Maximum size of the request line and headers in bytes.
    pub max_header_bytes: usize,
    /// Maximum time a write to a client may block before the connection is closed.
    pub stall_timeout: Duration,
    /// Maximum prompt length in tokens. `None`: the context length.
    pub max_prompt_tokens: Option<u32>,
    /// Maximum time in the queue, measured for the first choice of a request.
    pub queue_timeout: Duration,
    /// Maximum time from a request's arrival to its last token.
    pub request_timeout: Duration,
    /// Maximum number of connections with requests. A further one replaces a connection that is silent, idle or slow;
    /// a few more are open for probes.
    pub max_connections: usize,
    /// Maximum number of choices per request: `n` times the number of prompts.
    pub max_choices: u32,
    /// Interval of keep-alive comments in a stream without new tokens, so that proxies do not close it.
    pub keep_alive: Duration,
    /// Maximum time for the GPU to respond to the `/ready` probe.
    pub probe_timeout: Duration,
    /// Maximum number of grammars compiled at once. Further ones wait, up to `grammar_timeout`.
    pub grammar_workers: usize,
    /// Maximum time to compile a grammar before its request is rejected.
    pub grammar_timeout: Duration,
    /// Maximum number of images per request.
    pub max_images: usize,
    /// Limits on the file of an image.
    pub image_limits: Limits,
    /// Maximum number of images decoded at once; each may take the memory that `image_limits` allows.
    pub image_workers: usize,
    /// Total bytes of decoded images in requests that wait or run. Further requests with images wait, up to
    /// `queue_timeout`.
    pub max_inflight_image_bytes: usize,
    /// Fetch images from http and https URLs, from public addresses only. Off by default: images must be data URLs.
    pub allow_image_urls: bool,
    /// Maximum time to fetch an image.
    pub image_url_timeout: Duration,
    /// Whether the model thinks before it answers, unless a request says otherwise. `None`: the chat template's default.
    pub thinking: Option<bool>,
    /// Maximum number of stored responses. The least recently used ones are evicted.
    pub max_stored_responses: usize,
    /// Total bytes of stored responses, as JSON, with their input and its images.
    pub max_stored_response_bytes: usize,
    /// Also expose vLLM's metrics at `/metrics`, by their names, for what knows only those.
    pub vllm_metrics: bool,
    /// OpenTelemetry collector that gets a span per request, as the base URL of OTLP over HTTP. `None`: no traces.
    pub otlp_endpoint: Option<String>,
    /// Serve the web UI at `/`. It needs no key, but what it fetches does.
    pub webui: bool,
    /// Log prompts. Off by default: the log then contains no user content.
    pub log_prompts: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            api_keys: vec![],
            cors_origins: vec![],
            allowed_hosts: None,
            max_body_bytes: 4 << 20,
            max_inflight_body_bytes: 32 << 20,
            body_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(30),
            max_header_bytes: 64 << 10,
            stall_timeout: Duration::from_secs(60),
            max_prompt_tokens: None,
            queue_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(600),
            max_connections: 512,
            max_choices: 16,
            keep_alive: Duration::from_secs(15),
            probe_timeout: Duration::from_secs(5),
            grammar_workers: 2,
            grammar_timeout: Duration::from_secs(10),
            max_images: 16,
            image_limits: Limits::default(),
            image_workers: 2,
            max_inflight_image_bytes: 1 << 30,
            allow_image_urls: false,
            image_url_timeout: Duration::from_secs(10),
            thinking: None,
            max_stored_responses: 1024,
            max_stored_response_bytes: 64 << 20,
            vllm_metrics: false,
            otlp_endpoint: None,
            webui: true,
            log_prompts: false,
        }
    }
}

/// The served model.
pub struct Model {
    /// Name in the API.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// Creation time in seconds since 1970, shown by `/v1/models`.
    pub created: u64,
    /// Tokenizer of the model.
    pub tokenizer: Tokenizer,
    /// Number of logits. The tokenizer's vocabulary may be smaller or larger.
    pub vocab_size: u32,
    /// Tokens that end a completion.
    pub stop_token_ids: Vec<u32>,
    /// Chat template. Without one there is no `/v1/chat/completions`.
    pub chat_template: Option<ChatTemplate>,
    /// How pictures become images of a prompt; or why the model takes none, as a clause: "the model has no image encoder".
    pub images: Result<ImageProcessor, String>,
    /// Default sampling parameters. The seed is ignored: requests without one get a random seed.
    pub sampling: Sampling,
}

impl Model {
    /// Number of tokens with both text and logits; requests may use ids below this.
    pub(crate) fn token_count(&self) -> u32 {
        u32::try_from(self.tokenizer.vocab_size()).map_or(self.vocab_size, |size| size.min(self.vocab_size))
    }
}
