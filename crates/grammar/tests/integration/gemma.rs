//! Gemma 3's vocabulary, from the GGUF in `INDRIK_TEST_GGUF`: JSON as the model tokenises it is accepted.
//! Prints the time per mask.

use crate::common;
use std::time::{Duration, Instant};

use grammar::GrammarCompiler;
use serde_json::json;
use text::{EncodeSpecial, Tokenizer};

#[test]
fn json_is_accepted_as_the_model_tokenises_it() {
    let Some(path) = common::path_from_env("INDRIK_TEST_GGUF", "a GGUF of Gemma 3") else { return };
    let tokenizer = Tokenizer::from_vocabulary(common::vocabulary(&path).0).unwrap();
    let vocab = tokenizer.vocab_size() as u32;
    let start = Instant::now();
    let compiler = GrammarCompiler::new(&tokenizer, vocab, tokenizer.stop_token_ids()).unwrap();
    eprintln!("vocabulary of {vocab} tokens: {:?}", start.elapsed());

    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 40 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "tags": { "type": "array", "items": { "type": "string" }, "maxItems": 4 },
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    });
    let start = Instant::now();
    let grammar = compiler.json_schema(&schema).unwrap();
    eprintln!("compiled the schema in {:?}", start.elapsed());
    let value = json!({ "name": "Zoë Müller 鳥", "age": 42, "tags": ["a", "long words, and \"quotes\""] });
    let pretty = serde_json::to_string_pretty(&value).unwrap();
    // As Python's json module writes it.
    let spaced = "{\"name\": \"Zo\\u00eb\", \"age\": 7, \"tags\": []}".replace("\\u00eb", "ë");
    let mut times = vec![];
    for text in [value.to_string(), pretty, spaced] {
        let mut matcher = grammar.matcher();
        let mut words = vec![0; vocab.div_ceil(32) as usize];
        for id in tokenizer.encode(&text, EncodeSpecial::AsText) {
            let start = Instant::now();
            matcher.mask(&mut words).unwrap();
            times.push(start.elapsed());
            let bytes = String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap());
            assert!(words[id as usize / 32] >> (id % 32) & 1 == 1, "{bytes:?} is not allowed in {text}");
            matcher.accept(id).unwrap();
        }
        assert!(matcher.is_finished(), "{text}");
    }
    times.sort_unstable();
    let [median, max] = [times[times.len() / 2], times[times.len() - 1]];
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    eprintln!("{} masks: median {median:?}, mean {mean:?}, max {max:?}", times.len());
}
