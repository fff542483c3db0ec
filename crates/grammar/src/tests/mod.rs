mod gbnf;
mod tool_calls;

use serde_json::{Value, json};
use text::{EncodeSpecial, TokenConstraint, Tokenizer, Vocabulary, VocabularyKind};

use crate::{Grammar, GrammarCompiler, Matcher};

/// Ids: 0 `<unk>`, 1 `<s>`, 2 `</s>`, 3 `<end_of_turn>`, 4 to 259 the bytes, then letters and JSON
/// punctuation.
fn tokenizer() -> Tokenizer {
    let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
    for (token, kind) in [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<end_of_turn>", 3)] {
        vocabulary.tokens.push(token.into());
        vocabulary.token_types.push(kind);
    }
    for byte in 0..256 {
        vocabulary.tokens.push(format!("<0x{byte:02X}>"));
        vocabulary.token_types.push(6);
    }
    for token in ["a", "b", "\n", "▁", "\"", "{", "}", ":", "▁\"", "{\"", "\"}", "1", "23", "true", "é"]
    {
        vocabulary.tokens.push(token.into());
        vocabulary.token_types.push(1);
    }
    vocabulary.scores = (0..vocabulary.tokens.len()).map(|id| -(id as f32)).collect();
    (vocabulary.unknown, vocabulary.bos, vocabulary.eos) = (Some(0), Some(1), Some(2));
    Tokenizer::from_vocabulary(vocabulary).unwrap()
}

/// More logits than tokens, and not a multiple of 32.
const VOCAB: u32 = 300;
const WORDS: usize = VOCAB.div_ceil(32) as usize;

fn compiler() -> GrammarCompiler {
    let tokenizer = tokenizer();
    GrammarCompiler::new(&tokenizer, VOCAB, tokenizer.stop_token_ids()).unwrap()
}

fn allowed(matcher: &mut Matcher) -> Vec<u32> {
    let mut words = [u32::MAX; WORDS];
    matcher.mask(&mut words).unwrap();
    (0..WORDS as u32 * 32).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

/// How many bytes of a text a grammar accepts, and whether the text may end there.
fn accepted(grammar: &Grammar, text: &str) -> (usize, bool) {
    let tokenizer = tokenizer();
    let mut matcher = grammar.matcher();
    let mut bytes = 0;
    for id in tokenizer.encode(text, EncodeSpecial::AsText) {
        if matcher.is_finished() || !allowed(&mut matcher).contains(&id) {
            break;
        }
        matcher.accept(id).unwrap();
        bytes += tokenizer.token_bytes(id).unwrap().len();
    }
    (bytes, matcher.is_finished() || allowed(&mut matcher).contains(&2))
}

fn accepts(grammar: &Grammar, text: &str) -> bool {
    accepted(grammar, text) == (text.len(), true)
}

#[test]
fn a_schema_accepts_matching_json_only() {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 30 }, "b": { "enum": ["ab", true] } },
        "required": ["a"],
        "additionalProperties": false,
    });
    let grammar = compiler().json_schema(&schema).unwrap();
    for valid in
        ["{\"a\":1}", "{\"a\": 23, \"b\": true}", "{\n  \"a\": 0,\n  \"b\": \"ab\"\n}", "{\r\n\t\"a\": 3}"]
    {
        assert!(accepts(&grammar, valid), "{valid:?}: {:?}", accepted(&grammar, valid));
    }
    // Each with the length of its valid prefix.
    let invalid = [
        (" {\"a\":1}", 0),
        ("{\"a\":31}", 6),
        ("{\"b\":true}", 2),
        ("{\"a\":1,\"c\":1}", 8),
        ("{\"a\":1}}", 7),
        ("{  \"a\"", 2),
    ];
    for (invalid, bytes) in invalid {
        assert_eq!(accepted(&grammar, invalid).0, bytes, "{invalid:?}");
    }
    assert_eq!(accepted(&grammar, "{\"a\":1"), (6, false), "the object is not closed");
}

#[test]
fn white_space_is_bounded() {
    let grammar = compiler().json_object().unwrap();
    let mut text = String::from("{\n");
    text.push_str(&" ".repeat(100));
    assert_eq!(accepted(&grammar, &text).0, 2 + 32);
    assert_eq!(accepted(&grammar, "{\n\n").0, 2);
    // Nothing may follow the closing brace.
    assert_eq!(accepted(&grammar, "{} "), (2, true));
}

#[test]
fn masks_allow_text_tokens_and_stop_tokens_where_the_completion_may_end() {
    let compiler = compiler();
    let mut any = compiler.regex("(?s:.*)").unwrap().matcher();
    let first = allowed(&mut any);
    // Stop tokens, since the expression also matches the empty text; no other control token, and no id beyond
    // the tokenizer's.
    assert!(first.contains(&2) && first.contains(&3) && !first.contains(&0) && !first.contains(&1));
    assert!(first.iter().all(|id| *id < 275), "{first:?}");
    // A byte token only if no other token has its bytes, and no byte that is invalid in UTF-8.
    let byte = |byte: u32| first.contains(&(4 + byte));
    assert_eq!(
        [b'a', b'\n', b'{', b'c', b'0'].map(|letter| byte(letter.into())),
        [false, false, false, true, true]
    );
    assert!(byte(0xc3) && !byte(0xff));
    // The first byte of a character must be followed by its continuation bytes.
    any.accept(4 + 0xc3).unwrap();
    let rest = allowed(&mut any);
    assert!(rest.iter().all(|id| (4 + 0x80..4 + 0xc0).contains(id)), "{rest:?}");

    let mut some = compiler.regex("a+b?").unwrap().matcher();
    assert!(!allowed(&mut some).contains(&2));
    some.accept(260).unwrap();
    assert_eq!(allowed(&mut some), [2, 3, 260, 261]);
    some.accept(261).unwrap();
    assert!(some.is_finished());
    assert_eq!(allowed(&mut some), [2, 3]);
    let error = some.accept(261).unwrap_err().to_string();
    assert!(error.contains("the regular expression cannot be matched"), "{error}");
}

#[test]
fn matchers_and_forks_are_independent() {
    let grammar = compiler().grammar("start: \"a\"+ \"b\"").unwrap();
    let mut one = grammar.matcher();
    one.accept(260).unwrap();
    let mut fork = one.fork();
    fork.accept(261).unwrap();
    assert!(fork.is_finished() && !one.is_finished());
    one.accept(260).unwrap();
    assert_eq!(allowed(&mut grammar.matcher()), [260]);
    // A mask that is too short is an error, not a panic.
    one.mask(&mut [0; WORDS - 1]).unwrap_err();
}

/// Schemas that are invalid, or valid but huge: rejected or compiled in bounded time.
#[test]
fn huge_and_invalid_schemas_take_bounded_time() {
    let nested =
        |depth: usize| (0..depth).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
    let doubled = |depth: usize| {
        let definition = |i: usize| json!({ "allOf": [{ "$ref": format!("#/$defs/{}", i + 1) }, { "$ref": format!("#/$defs/{}", i + 1) }] });
        let mut defs: serde_json::Map<String, Value> =
            (0..depth).map(|i| (i.to_string(), definition(i))).collect();
        defs.insert(depth.to_string(), json!({ "properties": { "x": { "type": "string" } } }));
        json!({ "$defs": defs, "$ref": "#/$defs/0" })
    };
    let chained = |length: usize| {
        let definition = |i: usize| json!({ "$ref": format!("#/$defs/{}", i + 1) });
        let mut defs: serde_json::Map<String, Value> =
            (0..length).map(|i| (i.to_string(), definition(i))).collect();
        defs.insert(length.to_string(), json!({ "type": "null" }));
        json!({ "$defs": defs, "$ref": "#/$defs/0" })
    };
    let crossed: Vec<Value> = (0..12)
        .map(|i| json!({ "anyOf": (0..4).map(|j| json!({ "properties": { format!("p{i}"): { "const": j } } })).collect::<Vec<_>>() }))
        .collect();
    let cases = [
        (nested(200), Some("nested deeper")),
        (nested(60), None),
        (doubled(40), None),
        // The most references that fit the length limit.
        (chained(7500), None),
        (json!({ "allOf": crossed }), Some("too large")),
        (json!({ "type": "string", "maxLength": 1_000_000_000_u64 }), None),
        (json!({ "type": "array", "minItems": 1_000_000_000_u64 }), None),
        (json!({ "type": "string", "pattern": "^(a{1000}){1000}$" }), None),
        (
            json!({ "type": "string", "pattern": "^(ab)*$", "minLength": 1_000_000 }),
            Some("Unable to determine"),
        ),
        (json!({ "type": "integer", "multipleOf": 99_999_999 }), Some("multipleOf 99999999")),
        (json!({ "allOf": [{ "multipleOf": 997 }, { "multipleOf": 0.991 }] }), Some("multipleOf 997")),
        (json!({ "type": "number", "multipleOf": 0.01 }), None),
        (json!({ "enum": vec!["x".repeat(1000); 300] }), Some("bytes")),
        (json!({ "$ref": "https://example.com/x" }), Some("within the schema")),
        (json!({ "$ref": "#/$defs/none" }), Some("not found")),
        (json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }), Some("use anyOf")),
        (json!({ "type": "strung" }), Some("strung")),
        (json!({ "type": "array", "uniqueItems": true }), Some("uniqueItems")),
        (json!({ "type": "integer", "minimum": 5, "maximum": 3 }), Some("minimum (5)")),
        (json!({ "x-guidance": { "whitespace_pattern": "( )+" }, "type": "object" }), None),
        (json!(false), Some("allows nothing")),
        (json!(7), Some("must be an object")),
    ];
    let compiler = compiler();
    for (schema, expected) in cases {
        let compiled = compiler.json_schema(&schema).map(|grammar| grammar.matcher().mask(&mut [0; WORDS]));
        let shown: String = schema.to_string().chars().take(120).collect();
        match (&compiled, expected) {
            (Ok(first), None) => assert!(first.is_ok(), "{shown}: {first:?}"),
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{shown}: {error}"),
            _ => panic!("{shown}: {compiled:?}"),
        }
    }
    // A schema that refers only to itself fails at the first mask.
    let circle = compiler.json_schema(&json!({ "$ref": "#" })).unwrap();
    let error = circle.matcher().mask(&mut [0; WORDS]).unwrap_err();
    assert!(error.to_string().contains("allows no next token"), "{error}");
    for (invalid, part) in [("(", "regular expression cannot be used"), ("(?=a)b", "look-around")] {
        let error = compiler.regex(invalid).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(compiler.grammar("start: nothing").is_err());
}

#[test]
fn work_that_grows_with_the_completion_ends_in_an_error() {
    // Any letter may be the 41st from the end: 2^40 states.
    let grammar = compiler().regex("(a|b)*a(a|b){40}").unwrap();
    let mut matcher = grammar.matcher();
    let mut words = [0; WORDS];
    let mut seed = 1_u32;
    let mut tokens = 0;
    let error = loop {
        if let Err(error) = matcher.mask(&mut words) {
            break error.to_string();
        }
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if let Err(error) = matcher.accept(260 + (seed >> 31)) {
            break error.to_string();
        }
        tokens += 1;
        assert!(tokens < 100_000, "the work is not bounded");
    };
    assert!(error.contains("cannot be matched"), "{error}");
}

#[test]
fn vocabularies_without_text_or_stop_tokens_are_rejected() {
    let tokenizer = tokenizer();
    assert!(GrammarCompiler::new(&tokenizer, VOCAB, &[]).is_err());
    assert!(GrammarCompiler::new(&tokenizer, VOCAB, &[VOCAB]).is_err());
    assert!(GrammarCompiler::new(&tokenizer, 3, &[2]).is_err());
}
