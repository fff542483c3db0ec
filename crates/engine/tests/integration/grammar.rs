//! Grammar-constrained generation with a real model on Mesa's CPU driver: for any schema, the completion is
//! JSON that validates.

use std::{num::NonZeroU32, path::Path, sync::Arc, time::Duration};

use crate::common::{Fixture, limits, load};
use checkpoint::Checkpoint;
use engine::{Engine, Event, EventStream, FinishReason, GpuBackend, Options, Request, Sampling};
use grammar::GrammarCompiler;
use model::{Limits, Model, Runner, language::Language};
use serde_json::{Map, Value, json};
use text::{DecodeSpecial, EncodeSpecial};

const OPTIONS: Options = Options {
    queue_capacity: 256,
    mixed_step_budget: Duration::ZERO,
    burst_step_budget: Duration::ZERO,
    prefill_step_budget: Duration::ZERO,
    store_timeout: Duration::from_secs(3600),
    speculate: true,
};

const PATTERNS: [&str; 3] = ["^[a-c]{2,4}$", "^(no|maybe)$", r"^\d{3}-\d{2}$"];

/// A linear congruential generator: the same schemas on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn name(&mut self) -> String {
        let letters = ["a", "e", "name", "été", "x y", "\"", "\\", "0", "鳥"];
        (0..1 + self.below(2)).map(|_| letters[self.below(letters.len() as u64) as usize]).collect()
    }

    fn value(&mut self) -> Value {
        match self.below(5) {
            0 => json!(null),
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(2000) as i64 - 1000),
            3 => json!([self.below(9), self.name()]),
            _ => json!(self.name()),
        }
    }

    /// A schema whose values are all of bounded length.
    fn schema(&mut self, depth: u32) -> Value {
        match self.below(if depth == 0 { 6 } else { 10 }) {
            0 => json!({ "type": "boolean" }),
            1 => json!({ "type": "null" }),
            2 => {
                let low = self.below(3000) as i64 - 1500;
                json!({ "type": "integer", "minimum": low, "maximum": low + self.below(500) as i64 })
            }
            3 => {
                let min = self.below(3);
                json!({ "type": "string", "minLength": min, "maxLength": min + self.below(6) })
            }
            4 => json!({ "enum": (0..1 + self.below(3)).map(|_| self.value()).collect::<Vec<_>>() }),
            5 => {
                json!({ "type": "string", "pattern": PATTERNS[self.below(3) as usize] })
            }
            6 => {
                let min = self.below(2);
                let items = self.schema(depth - 1);
                json!({ "type": "array", "items": items, "minItems": min, "maxItems": min + self.below(3) })
            }
            7 => json!({ "anyOf": [self.schema(depth - 1), self.schema(depth - 1)] }),
            _ => {
                let count = self.below(4);
                self.object(depth, count)
            }
        }
    }

    fn object(&mut self, depth: u32, max_properties: u64) -> Value {
        let properties: Map<String, Value> =
            (0..max_properties).map(|_| (self.name(), self.schema(depth - 1))).collect();
        let required: Vec<String> = properties.keys().filter(|_| self.below(3) > 0).cloned().collect();
        json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    }
}

/// Whether a value validates against a schema made by [`Random::schema`].
fn validates(schema: &Value, value: &Value) -> bool {
    if let Some(list) = schema["enum"].as_array() {
        return list.contains(value);
    }
    if let Some(list) = schema["anyOf"].as_array() {
        return list.iter().any(|schema| validates(schema, value));
    }
    let within = |number: i64, min: &str, max: &str| {
        let bound = |name: &str| schema[name].as_i64();
        bound(min).is_none_or(|bound| number >= bound) && bound(max).is_none_or(|bound| number <= bound)
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match (schema["type"].as_str().unwrap(), value) {
        ("boolean", Value::Bool(_)) | ("null", Value::Null) => true,
        ("integer", Value::Number(number)) => within(number.as_i64().unwrap(), "minimum", "maximum"),
        ("string", Value::String(text)) => match schema["pattern"].as_str() {
            None => within(text.chars().count() as i64, "minLength", "maxLength"),
            Some(pattern) if pattern == PATTERNS[0] => {
                (2..=4).contains(&text.len()) && text.bytes().all(|byte| b"abc".contains(&byte))
            }
            Some(pattern) if pattern == PATTERNS[1] => ["no", "maybe"].contains(&text.as_str()),
            Some(_) => {
                text.len() == 6
                    && text.split_once('-').is_some_and(|(a, b)| digits(a) && digits(b) && a.len() == 3)
            }
        },
        ("array", Value::Array(list)) => {
            within(list.len() as i64, "minItems", "maxItems")
                && list.iter().all(|item| validates(&schema["items"], item))
        }
        ("object", Value::Object(fields)) => {
            let properties = schema["properties"].as_object().unwrap();
            let required = schema["required"].as_array().unwrap();
            required.iter().all(|name| fields.contains_key(name.as_str().unwrap()))
                && fields
                    .iter()
                    .all(|(name, value)| properties.get(name).is_some_and(|schema| validates(schema, value)))
        }
        _ => false,
    }
}

/// An engine with the tokenizer and the grammars of its model.
struct Setup {
    engine: Engine,
    language: Language,
    grammars: GrammarCompiler,
}

impl Setup {
    fn new(model: Arc<Model>, path: &Path, limits: Limits) -> Self {
        let language = Language::from_checkpoint(&Checkpoint::open(path).unwrap()).unwrap();
        let grammars =
            GrammarCompiler::new(&language.tokenizer, model.config.vocab, &language.stop_token_ids).unwrap();
        let runner = Runner::new(model, limits).unwrap();
        let engine =
            Engine::start(GpuBackend::new(runner, || Err(model::Error::Cancelled)), OPTIONS).unwrap();
        Self { engine, language, grammars }
    }

    fn submit(&self, prompt: Vec<u32>, max_tokens: u32, sampling: Sampling, schema: &Value) -> EventStream {
        let grammar = self.grammars.json_schema(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        let request = Request {
            sampling,
            stop_token_ids: self.language.stop_token_ids.clone(),
            grammar: Some(Box::new(grammar.matcher())),
            ..Request::new(prompt, NonZeroU32::new(max_tokens).unwrap())
        };
        self.engine.submit(request).unwrap()
    }

    /// The text of a completion, which must end with [`FinishReason::Stop`].
    fn text(&self, stream: &mut EventStream) -> String {
        let mut tokens = vec![];
        loop {
            match stream.blocking_next().unwrap() {
                Event::Started { .. } => {}
                Event::Token(token) => tokens.push(token.id),
                Event::Finished { reason: FinishReason::Stop, .. } => {
                    return self.language.tokenizer.decode(&tokens, DecodeSpecial::Skip);
                }
                last => {
                    let text = self.language.tokenizer.decode(&tokens, DecodeSpecial::Skip);
                    panic!("{last:?} after {} tokens: {text}", tokens.len())
                }
            }
        }
    }
}

fn check(schema: &Value, text: &str) {
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?} for {schema}"));
    assert!(validates(schema, &value), "{text} for {schema}");
}

#[test]
fn completions_of_random_schemas_parse_and_validate() {
    let Some(device) = testkit::cpu_device_plain() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    // Fewer pages than all sequences would fill: some requests are preempted and resume.
    let limits = Limits { page_size: 16, max_pages: Some(36), ..limits(16, 512, 32) };
    let setup = Setup::new(load(&device, &fixture.path), &fixture.path, limits);
    let mut random = Random(20);
    let submitted: Vec<(Value, EventStream)> = (0..200)
        .map(|seed| {
            let schema = if seed % 2 == 0 { random.object(3, 4) } else { random.schema(3) };
            let prompt =
                (0..1 + random.below(12)).map(|_| random.below(fixture.vocab as u64) as u32).collect();
            let sampling = match seed % 4 {
                0 => Sampling { top_k: 40, top_p: 0.95, ..Sampling::default() },
                1 => Sampling { frequency: 0.2, ..Sampling::default() },
                _ => Sampling::default(),
            };
            let sampling = Sampling { temperature: 1.0, seed, ..sampling };
            let stream = setup.submit(prompt, 500, sampling, &schema);
            (schema, stream)
        })
        .collect();
    for (schema, mut stream) in submitted {
        check(&schema, &setup.text(&mut stream));
    }
    let status = setup.engine.status();
    eprintln!(
        "{} tokens in {} steps, {} preemptions",
        status.generation_tokens, status.steps, status.preemptions
    );
    assert_eq!((status.finished, status.pages.free), (200, status.pages.total));
    assert!(status.preemptions > 0, "no request was preempted");
    setup.engine.stop();
}

#[test]
fn requests_without_a_grammar_generate_the_same_tokens_as_alone() {
    let Some(device) = testkit::cpu_device() else { return };
    let fixture = Fixture::open("gguf_q8_0");
    let setup = Setup::new(load(&device, &fixture.path), &fixture.path, limits(3, 96, 16));
    let schema =
        json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 9 }, "maxItems": 8 });
    let max_tokens = NonZeroU32::new(12).unwrap();
    let mut free = setup.engine.submit(Request::new(fixture.ids.clone(), max_tokens)).unwrap();
    let sampling = |top| Sampling { temperature: 1.0, top, seed: 3, ..Sampling::default() };
    let mut constrained =
        [0, 5].map(|top| setup.submit(fixture.ids[..5].to_vec(), 60, sampling(top), &schema));
    let mut tokens = vec![];
    while let Some(event) = free.blocking_next() {
        if let Event::Token(token) = event {
            tokens.push(token.id);
        }
    }
    assert_eq!(tokens, fixture.list("greedy"));
    let mut texts = vec![];
    for (stream, top) in constrained.iter_mut().zip([0, 5]) {
        let mut tokens = vec![];
        while let Some(event) = stream.blocking_next() {
            if let Event::Token(token) = event {
                assert_eq!(token.top.len(), top);
                tokens.push(token.id);
            }
        }
        texts.push(setup.language.tokenizer.decode(&tokens, DecodeSpecial::Skip));
        check(&schema, &texts[texts.len() - 1]);
    }
    assert_eq!(texts[0], texts[1], "top logprobs changed the completion");
    setup.engine.stop();
}

#[test]
fn gemma_3_270m_generates_json_that_validates() {
    let Some(path) = std::env::var_os("INDRIK_TEST_GGUF") else {
        return eprintln!("skipped: set INDRIK_TEST_GGUF to a GGUF file of Gemma 3 270M");
    };
    let Some(device) = testkit::cpu_device_plain() else { return };
    let path = Path::new(&path);
    let limits = Limits { page_size: 64, ..limits(3, 256, 64) };
    let setup = Setup::new(load(&device, path), path, limits);
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 16 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let colour = json!({ "enum": ["red", "green", "blue"] });
    let number = json!({ "type": "integer", "minimum": 0, "maximum": 99 });
    let numbers = json!({ "type": "array", "items": number, "minItems": 3, "maxItems": 3 });
    let prompts = [
        (person, "Describe a person."),
        (colour, "What is the colour of grass?"),
        (numbers, "Name three numbers."),
    ];
    let mut streams: Vec<(Value, EventStream)> = (0..)
        .zip(prompts)
        .map(|(seed, (schema, text))| {
            let text = format!(
                "<start_of_turn>user\n{text} EventStream in JSON.<end_of_turn>\n<start_of_turn>model\n"
            );
            let mut prompt: Vec<u32> = setup.language.tokenizer.bos().into_iter().collect();
            prompt.extend(setup.language.tokenizer.encode(&text, EncodeSpecial::Parse));
            let sampling = Sampling { temperature: 1.0, top_k: 64, top_p: 0.95, seed, ..Sampling::default() };
            let stream = setup.submit(prompt, 120, sampling, &schema);
            (schema, stream)
        })
        .collect();
    for (schema, stream) in &mut streams {
        let text = setup.text(stream);
        eprintln!("{text}");
        check(schema, &text);
    }
    setup.engine.stop();
}
