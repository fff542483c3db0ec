//! A server on a free local port with a scripted generator, and a simple client.
#![allow(dead_code, reason = "no test binary uses all of it")]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::{
    Capacity, DraftCounts, DraftStats, Event, EventStream, FinishReason, ImageProcessor, Pages, RecentStats,
    Request, RequestError, Sampling, Status, SubmitError, Token, Usage, testing,
};
use futures_util::future::{BoxFuture, FutureExt};
use serde_json::{Value, json};
use server::stats::HardwareStats;
use server::{
    Config, Gauge, Generator, Handle, LoadedModel, Machine, Model, Models, NpuOperation, Pool, Server,
};
use text::{ChatTemplate, Tokenizer, Vocabulary, VocabularyKind};

pub const MODEL: &str = "tiny/gemma";
pub const WORDS: [&str; 6] = [" one", " two", " three", " four", " five", " six"];
/// Cached tokens that the mock reports for every prompt.
pub const CACHED: u32 = 3;

/// A tokenizer with control tokens, bytes, letters and a few words.
pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_vocabulary(vocabulary()).expect("a valid vocabulary")
}

/// [`tokenizer`] with Qwen's tokens for filling in the middle at the end.
pub fn fim_tokenizer() -> Tokenizer {
    let mut vocabulary = vocabulary();
    for token in ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>"] {
        vocabulary.tokens.push(token.to_owned());
        vocabulary.token_types.push(3);
        vocabulary.scores.push(0.0);
    }
    Tokenizer::from_vocabulary(vocabulary).expect("a valid vocabulary")
}

/// [`tokenizer`] with more control tokens at the end.
pub fn tokenizer_with(controls: &[&str]) -> Tokenizer {
    let mut vocabulary = vocabulary();
    for token in controls {
        vocabulary.tokens.push((*token).to_owned());
        vocabulary.token_types.push(3);
        vocabulary.scores.push(0.0);
    }
    Tokenizer::from_vocabulary(vocabulary).expect("a valid vocabulary")
}

pub fn vocabulary() -> Vocabulary {
    let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
    let mut push = |token: &str, kind| {
        vocabulary.tokens.push(token.to_owned());
        vocabulary.token_types.push(kind);
    };
    for control in ["<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"] {
        push(control, if control == "<unk>" { 2 } else { 3 });
    }
    (0..256).for_each(|byte| push(&format!("<0x{byte:02X}>"), 6));
    // BPE merges pairs, so every prefix of a word must be a token too.
    for word in WORDS {
        let marked = word.replace(' ', "▁");
        for end in marked.char_indices().map(|(at, c)| at + c.len_utf8()) {
            push(&marked[..end], 1);
        }
    }
    for letter in 'a'..='z' {
        push(&letter.to_string(), 1);
    }
    let mut seen = std::collections::HashSet::new();
    let kept: Vec<bool> = vocabulary.tokens.iter().map(|token| seen.insert(token.clone())).collect();
    let mut keep = kept.iter();
    vocabulary.tokens.retain(|_| *keep.next().unwrap());
    let mut keep = kept.iter();
    vocabulary.token_types.retain(|_| *keep.next().unwrap());
    vocabulary.scores = (0..vocabulary.tokens.len()).map(|id| -(id as f32)).collect();
    (vocabulary.unknown, vocabulary.bos, vocabulary.eos) = (Some(0), Some(1), Some(2));
    vocabulary.add_bos = true;
    vocabulary
}

/// A model without images.
pub fn model(id: &str, tokenizer: Tokenizer, chat_template: Option<ChatTemplate>) -> Model {
    Model {
        id: id.to_owned(),
        aliases: vec![],
        created: 1_700_000_000,
        vocab_size: tokenizer.vocab_size() as u32,
        stop_token_ids: tokenizer.stop_token_ids().to_vec(),
        tokenizer,
        chat_template,
        images: Err("the model has no image encoder".to_owned()),
        sampling: Sampling { temperature: 1.0, ..Sampling::default() },
    }
}

/// A processor for images of 28 × 28 pixels, with four soft tokens.
pub fn image_processor() -> ImageProcessor {
    ImageProcessor::square(28, 7, 2)
}

/// A generator that follows a script.
pub struct Mock {
    /// Tokens of the completion. If the temperature is above 0, the seed selects where in the script it starts.
    pub script: Vec<u32>,
    /// Delay before each token.
    pub delay: Duration,
    /// Fails with this error after this many tokens.
    pub failure: Option<(u32, RequestError)>,
    /// Panic on submission.
    pub panics: bool,
    /// Error for every submission.
    pub submit_error: Mutex<Option<SubmitError>>,
    pub status: Mutex<Status>,
    /// Reason that requests are not accepted.
    pub not_ready: Mutex<Option<String>>,
    pub context_length: u32,
    /// Whether the GPU responds to a probe.
    pub responds: bool,
    /// How often the GPU was probed.
    pub probes: AtomicUsize,
    /// Time in the queue.
    pub wait: Duration,
    /// Submitted requests.
    pub submitted: Mutex<Vec<Request>>,
    /// Number of requests being generated.
    pub live: Arc<AtomicUsize>,
}

impl Mock {
    /// Generates " one two three four five six".
    pub fn new() -> Mock {
        let tokenizer = tokenizer();
        let script = WORDS
            .iter()
            .map(|word| tokenizer.token_id(&word.replace(' ', "▁")).expect("a known word"))
            .collect();
        Mock {
            script,
            delay: Duration::ZERO,
            failure: None,
            panics: false,
            submit_error: Mutex::default(),
            status: Mutex::new(Status {
                pages: Pages { free: 93, cached: 5, total: 100 },
                ..Status::default()
            }),
            not_ready: Mutex::default(),
            context_length: 256,
            responds: true,
            probes: AtomicUsize::new(0),
            wait: Duration::ZERO,
            submitted: Mutex::default(),
            live: Arc::default(),
        }
    }
}

/// All of a prediction is drafted; what the completion starts with is accepted.
fn drafts(request: &Request, completion: &[u32]) -> DraftStats {
    let same = request.prediction.iter().zip(completion).take_while(|(a, b)| a == b).count();
    let prediction = DraftCounts { drafted: request.prediction.len() as u64, accepted: same as u64 };
    DraftStats { prediction, ..DraftStats::default() }
}

impl Generator for Mock {
    fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        if let Some(error) = self.submit_error.lock().unwrap().clone() {
            return Err(error);
        }
        assert!(!self.panics, "panic requested by the test");
        self.submitted.lock().unwrap().push(request.clone());
        let (sender, events) = testing::event_stream();
        let mut script = self.script.clone();
        if request.sampling.temperature > 0.0 && !script.is_empty() {
            let start = request.sampling.seed as usize % script.len();
            script.rotate_left(start);
        }
        let (max_tokens, drafts) = (request.max_tokens, drafts(&request, &script));
        let (delay, failure, live) = (self.delay, self.failure.clone(), self.live.clone());
        let wait = self.wait;
        live.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            let work = async {
                tokio::time::sleep(wait).await;
                let _ = sender.send(Event::Started { cached_tokens: CACHED });
                // In pieces, as the engine reports them: every token follows the one before it by rank 1.
                if let Some(top) = request.prompt_logprobs {
                    let top: Vec<(u32, f32)> = (0..top).map(|rank| (rank, -0.25 * rank as f32)).collect();
                    for tokens in request.prompt[1..].chunks(2) {
                        let token = |id: &u32| Token { id: *id, logprob: -0.25, top: top.clone() };
                        let _ = sender.send(Event::PromptTokens(tokens.iter().map(token).collect()));
                    }
                }
                for (id, generated) in script.iter().zip(0..max_tokens) {
                    if failure.as_ref().is_some_and(|(after, _)| *after == generated) {
                        break;
                    }
                    // The timer rounds a zero delay up to a millisecond.
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    let logprob = |rank: u32| -0.5 * (rank + generated) as f32;
                    let top = (0..request.sampling.top).map(|rank| (rank, logprob(rank))).collect();
                    let _ = sender.send(Event::Token(Token { id: *id, logprob: logprob(1), top }));
                }
                let complete = script.len() <= max_tokens as usize;
                let reason = if complete { FinishReason::Stop } else { FinishReason::MaxTokens };
                let completion_tokens = script.len().min(max_tokens as usize) as u32;
                let usage = Usage {
                    prompt_tokens: request.prompt.len() as u32,
                    cached_tokens: CACHED,
                    completion_tokens,
                    joules: Some(0.5),
                    decode_bytes: 1000,
                    decode_tokens: 5,
                    drafts,
                };
                let _ = sender.send(match failure {
                    Some((_, failure)) => Event::Failed(failure),
                    None => Event::Finished { reason, usage },
                });
            };
            tokio::select! {
                () = work => {}
                () = sender.closed() => {}
            }
            live.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(events)
    }

    fn would_reject(&self) -> Option<SubmitError> {
        let error = self.submit_error.lock().unwrap().clone();
        error.filter(|error| matches!(error, SubmitError::QueueFull { .. }))
    }

    fn status(&self) -> Status {
        self.status.lock().unwrap().clone()
    }

    fn recent(&self) -> RecentStats {
        RecentStats { generation_tokens_per_second: Some(12.5), ..RecentStats::default() }
    }

    fn capacity(&self) -> Option<Capacity> {
        None
    }

    fn not_ready(&self) -> Option<String> {
        self.not_ready.lock().unwrap().clone()
    }

    fn context_length(&self) -> u32 {
        self.context_length
    }

    fn probe(&self) -> BoxFuture<'_, bool> {
        self.probes.fetch_add(1, Ordering::SeqCst);
        match self.responds {
            true => async { true }.boxed(),
            false => std::future::pending().boxed(),
        }
    }
}

impl Machine for Mock {
    fn gauges(&self, _: &Status) -> Vec<Gauge> {
        let card = |card: &str, value| Gauge {
            name: "gpu_busy_ratio",
            help: "GPU utilisation, 0 to 1",
            label: Some(("card", card.to_owned())),
            value,
        };
        vec![card("card0", 0.125), card("card1", 0.0)]
    }

    fn hardware(&self, _: &Status) -> HardwareStats {
        HardwareStats::default()
    }

    fn npu_operations(&self) -> Vec<NpuOperation> {
        vec![NpuOperation {
            name: "image encoder of mock".to_owned(),
            uses_npu: false,
            reason: "no AMD NPU was found".to_owned(),
            products: 0,
            fallbacks: 0,
            weight_bytes: 0,
        }]
    }
}

/// A running server, stopped on drop.
pub struct Fixture {
    pub address: SocketAddr,
    pub mock: Arc<Mock>,
    pub handle: Handle,
    pub pool: Pool,
    pub running: Option<tokio::task::JoinHandle<()>>,
    pub runtime: tokio::runtime::Runtime,
    agent: ureq::Agent,
}

/// A response.
pub struct HttpResponse {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub body: String,
}

impl HttpResponse {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// Checks that the body is an OpenAI error object with this status and code; returns message and field.
    pub fn error(&self, status: u16, code: &str) -> (String, Value) {
        assert_eq!(self.status, status, "{}", self.body);
        let error = self.json()["error"].take();
        assert_eq!(error["code"], code, "{error}");
        assert!(error["type"].is_string(), "{error}");
        let message = error["message"].as_str().expect("a message").to_owned();
        (message, error["param"].clone())
    }
}

impl HttpResponse {
    /// Checks that the body is an error object of Anthropic's API with this status and type; returns the message.
    pub fn messages_error(&self, status: u16, kind: &str) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        let body = self.json();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
        let id = self.headers.get("x-request-id").map(|id| id.to_str().unwrap());
        assert_eq!(body["request_id"].as_str(), id, "{body}");
        assert_eq!(self.headers.get("request-id"), self.headers.get("x-request-id"));
        assert_eq!(body.as_object().unwrap().len(), 3, "{body}");
        body["error"]["message"].as_str().expect("a message").to_owned()
    }
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with_config(Mock::new(), Config::default())
    }

    pub fn with_config(mock: Mock, config: Config) -> Fixture {
        Fixture::with_template(mock, config, Some(ChatTemplate::gemma3()))
    }

    pub fn with_template(mock: Mock, config: Config, template: Option<ChatTemplate>) -> Fixture {
        let mock = Arc::new(mock);
        Fixture::start(mock.clone(), mock, tokenizer(), config, template)
    }

    pub fn with_tokenizer(tokenizer: Tokenizer) -> Fixture {
        let mock = Arc::new(Mock::new());
        Fixture::start(mock.clone(), mock, tokenizer, Config::default(), None)
    }

    /// With an engine on a mock backend, which samples at random within the grammar. The context is long because
    /// random JSON has much white space.
    pub fn with_random_engine(config: Config, template: Option<ChatTemplate>) -> Self {
        let capacity = engine::Capacity {
            max_sequences: 4,
            context_length: 4096,
            vocab_size: 1000,
            page_size: 64,
            pages: 4 * 4096 / 64,
            ..testing::MockOptions::default().capacity
        };
        let options = testing::MockOptions { capacity, prefill_chunk: 64, ..Default::default() };
        let engine =
            engine::Engine::start(testing::MockBackend::new(options), engine::Options::default()).unwrap();
        Self::with_generator(Mock::new(), Arc::new(engine), config, template)
    }

    /// With another tokenizer and template.
    pub fn with_language(mock: Mock, tokenizer: Tokenizer, template: ChatTemplate) -> Fixture {
        let mock = Arc::new(mock);
        Fixture::start(mock.clone(), mock, tokenizer, Config::default(), Some(template))
    }

    /// With another generator; the mock is not used.
    pub fn with_generator(
        mock: Mock,
        generator: Arc<dyn Generator>,
        config: Config,
        template: Option<ChatTemplate>,
    ) -> Fixture {
        Fixture::start(Arc::new(mock), generator, tokenizer(), config, template)
    }

    fn start(
        mock: Arc<Mock>,
        generator: Arc<dyn Generator>,
        tokenizer: Tokenizer,
        config: Config,
        template: Option<ChatTemplate>,
    ) -> Fixture {
        let images = Err("the model has no image encoder".to_owned());
        Fixture::start_with_images(mock, generator, tokenizer, config, template, images)
    }

    /// With a model that takes images: of 28 × 28 pixels, with four soft tokens.
    pub fn with_images(mock: Mock, config: Config, pan_and_scan: bool) -> Fixture {
        let mock = Arc::new(mock);
        let tokenizer = tokenizer_with(&["<start_of_image>", "<end_of_image>"]);
        let processor = image_processor();
        let processor = if pan_and_scan { processor.with_pan_and_scan().unwrap() } else { processor };
        let template = Some(ChatTemplate::gemma3());
        Fixture::start_with_images(mock.clone(), mock, tokenizer, config, template, Ok(processor))
    }

    /// [`Fixture::with_images`] with another template.
    pub fn with_images_and_template(mock: Arc<Mock>, template: ChatTemplate) -> Fixture {
        let tokenizer = tokenizer_with(&["<start_of_image>", "<end_of_image>"]);
        let (config, images) = (Config::default(), Ok(image_processor()));
        Fixture::start_with_images(mock.clone(), mock, tokenizer, config, Some(template), images)
    }

    fn start_with_images(
        mock: Arc<Mock>,
        generator: Arc<dyn Generator>,
        tokenizer: Tokenizer,
        config: Config,
        template: Option<ChatTemplate>,
        images: Result<ImageProcessor, String>,
    ) -> Fixture {
        let aliases = vec!["other-name".to_owned()];
        let model = Model { aliases, images, ..model(MODEL, tokenizer, template) };
        let models = Models::one(LoadedModel::new(model, generator)).with_machine(mock.clone());
        Fixture::with_models(mock, models, config)
    }

    /// With other models; the mock is the machine at most.
    pub fn with_models(mock: Arc<Mock>, models: Models, config: Config) -> Fixture {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = runtime.block_on(Server::bind(any, config, models)).expect("a free port");
        let (address, handle, pool) = (server.address().unwrap(), server.handle(), server.models());
        let running = Some(runtime.spawn(server.run()));
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(1800)))
            // A server may close an idle connection just as the next request is sent on it.
            .max_idle_connections(0)
            .build()
            .into();
        Fixture { address, mock, handle, pool, running, runtime, agent }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, path: &str) -> HttpResponse {
        read_response(self.agent.get(self.url(path)).call().expect("a response"))
    }

    pub fn get_with(&self, path: &str, header: (&str, &str)) -> HttpResponse {
        read_response(self.agent.get(self.url(path)).header(header.0, header.1).call().expect("a response"))
    }

    pub fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.post_raw(path, body.to_string().as_bytes())
    }

    pub fn post_raw(&self, path: &str, body: &[u8]) -> HttpResponse {
        let request = self.agent.post(self.url(path)).content_type("application/json");
        read_response(request.send(body).expect("a response"))
    }

    pub fn delete_body(&self, path: &str, body: &Value) -> HttpResponse {
        let request = self.agent.delete(self.url(path)).force_send_body();
        read_response(request.content_type("application/json").send(body.to_string()).expect("a response"))
    }

    pub fn post_with(&self, path: &str, body: &Value, header: (&str, &str)) -> HttpResponse {
        self.post_bytes(path, body.to_string().as_bytes(), header)
    }

    pub fn post_bytes(&self, path: &str, body: &[u8], header: (&str, &str)) -> HttpResponse {
        let request = self.agent.post(self.url(path)).content_type("application/json");
        read_response(request.header(header.0, header.1).send(body).expect("a response"))
    }

    pub fn delete(&self, path: &str) -> HttpResponse {
        read_response(self.agent.delete(self.url(path)).call().expect("a response"))
    }

    pub fn delete_with(&self, path: &str, header: (&str, &str)) -> HttpResponse {
        let request = self.agent.delete(self.url(path)).header(header.0, header.1);
        read_response(request.call().expect("a response"))
    }

    /// The data lines of a stream, as text.
    pub fn stream(&self, path: &str, body: &Value) -> Vec<String> {
        let request = self.agent.post(self.url(path)).content_type("application/json");
        let response = request.send(body.to_string()).expect("a response");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut lines = BufReader::new(response.into_body().into_reader()).lines().map(Result::unwrap);
        let mut data = Vec::new();
        while let Some(line) = lines.next() {
            if line.starts_with(':') || line.is_empty() {
                continue;
            }
            data.push(line.strip_prefix("data: ").expect("a data line").to_owned());
            assert_eq!(lines.next().as_deref(), Some(""), "an event ends with an empty line");
        }
        data
    }

    /// The named events of a stream.
    pub fn events(&self, path: &str, body: &Value) -> Vec<(String, Value)> {
        let got = self.post(path, body);
        assert_eq!(got.status, 200, "{}", got.body);
        assert_eq!(got.headers["content-type"], "text/event-stream");
        let event = |text: &str| {
            let (name, data) = text.split_once('\n').expect("two lines");
            let name = name.strip_prefix("event: ").expect("an event line").to_owned();
            let data = data.strip_prefix("data: ").expect("a data line");
            (name, serde_json::from_str(data).expect("JSON"))
        };
        got.body.split_terminator("\n\n").map(event).collect()
    }

    /// The chunks of a complete stream.
    pub fn chunks(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut data = self.stream(path, body);
        assert_eq!(data.pop().as_deref(), Some("[DONE]"));
        data.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Waits until this many requests are being generated.
    pub fn wait_live(&self, wanted: usize) {
        self.wait_for(&format!("{wanted} live requests"), || self.mock.live.load(Ordering::SeqCst) == wanted);
    }

    /// Waits for a state.
    pub fn wait_for(&self, state: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(1800);
        while !holds() {
            assert!(Instant::now() < deadline, "waited in vain for: {state}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the metrics contain a line.
    pub fn wait_metric(&self, line: &str) {
        self.wait_for(line, || self.get("/metrics").body.lines().any(|found| found == line));
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running).expect("the server stops");
        }
    }
}

fn read_response(response: ureq::http::Response<ureq::Body>) -> HttpResponse {
    let (parts, mut body) = response.into_parts();
    let body = body.read_to_string().expect("a body");
    HttpResponse { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// A chat request with one message and these additional fields.
pub fn chat(more: Value) -> Value {
    merged(json!({ "model": MODEL, "messages": [{ "role": "user", "content": "say" }] }), more)
}

/// A request to `/v1/messages` with one message and these additional fields.
pub fn message(more: Value) -> Value {
    let say = json!([{ "role": "user", "content": "say" }]);
    merged(json!({ "model": MODEL, "max_tokens": 1000, "messages": say }), more)
}

/// A request to `/v1/responses` with a text and these additional fields.
pub fn response(more: Value) -> Value {
    merged(json!({ "model": MODEL, "input": "say" }), more)
}

/// A completion request with these additional fields.
pub fn completion(more: Value) -> Value {
    merged(json!({ "model": MODEL, "prompt": "say" }), more)
}

/// An object with additional fields.
pub fn merged(mut body: Value, more: Value) -> Value {
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    body
}
