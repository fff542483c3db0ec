mod calls;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use text::{Guide, Kind, Special, Tokenizer, Vocabulary};

use crate::{Grammar, Grammars, Matcher};

/// 0 `<unk>`, 1 `<s>`, 2 `</s>`, 3 `<end_of_turn>`, 4 to 259 the bytes, then letters and pieces of JSON.
fn tokenizer() -> Tokenizer {
    let mut vocabulary = Vocabulary::new(Kind::SentencePiece);
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

/// More logits than tokens, and a ragged end.
const VOCAB: u32 = 300;
const WORDS: usize = VOCAB.div_ceil(32) as usize;

fn grammars() -> Grammars {
    let tokenizer = tokenizer();
    Grammars::new(&tokenizer, VOCAB, tokenizer.ends()).unwrap()
}

fn allowed(matcher: &mut Matcher) -> Vec<u32> {
    let mut words = [u32::MAX; WORDS];
    matcher.mask(&mut words).unwrap();
    (0..WORDS as u32 * 32).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

/// How many bytes of a text a grammar follows, and whether it may end there.
fn follow(grammar: &Grammar, text: &str) -> (usize, bool) {
    let tokenizer = tokenizer();
    let mut matcher = grammar.matcher();
    let mut bytes = 0;
    for id in tokenizer.encode(text, Special::AsText) {
        if matcher.is_over() || !allowed(&mut matcher).contains(&id) {
            break;
        }
        matcher.accept(id).unwrap();
        bytes += tokenizer.token_bytes(id).unwrap().len();
    }
    (bytes, matcher.is_over() || allowed(&mut matcher).contains(&2))
}

fn whole(grammar: &Grammar, text: &str) -> bool {
    follow(grammar, text) == (text.len(), true)
}

#[test]
fn json_of_a_schema_is_followed_and_nothing_else() {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 30 }, "b": { "enum": ["ab", true] } },
        "required": ["a"],
        "additionalProperties": false,
    });
    let grammar = grammars().json_schema(&schema).unwrap();
    for right in
        ["{\"a\":1}", "{\"a\": 23, \"b\": true}", "{\n  \"a\": 0,\n  \"b\": \"ab\"\n}", "{\r\n\t\"a\": 3}"]
    {
        assert!(whole(&grammar, right), "{right:?}: {:?}", follow(&grammar, right));
    }
    // How far each of them is right.
    let wrong = [
        (" {\"a\":1}", 0),
        ("{\"a\":31}", 6),
        ("{\"b\":true}", 2),
        ("{\"a\":1,\"c\":1}", 8),
        ("{\"a\":1}}", 7),
        ("{  \"a\"", 2),
    ];
    for (wrong, bytes) in wrong {
        assert_eq!(follow(&grammar, wrong).0, bytes, "{wrong:?}");
    }
    assert_eq!(follow(&grammar, "{\"a\":1"), (6, false), "it may not end before its brace");
}

#[test]
fn white_space_has_an_end() {
    let grammar = grammars().json_object().unwrap();
    let mut text = String::from("{\n");
    text.push_str(&" ".repeat(100));
    assert_eq!(follow(&grammar, &text).0, 2 + 32);
    assert_eq!(follow(&grammar, "{\n\n").0, 2);
    // And nothing after the last brace: there the answer is over.
    assert_eq!(follow(&grammar, "{} "), (2, true));
}

#[test]
fn only_text_is_allowed_and_ends_where_the_answer_may_end() {
    let grammars = grammars();
    let mut any = grammars.regex("(?s:.*)").unwrap().matcher();
    let first = allowed(&mut any);
    // The ends, for nothing at all is an answer too; no other control token, no token that is past the tokenizer's.
    assert!(first.contains(&2) && first.contains(&3) && !first.contains(&0) && !first.contains(&1));
    assert!(first.iter().all(|id| *id < 275), "{first:?}");
    // A byte only where no other token has it, and none that no text has.
    let byte = |byte: u32| first.contains(&(4 + byte));
    assert_eq!(
        [b'a', b'\n', b'{', b'c', b'0'].map(|letter| byte(letter.into())),
        [false, false, false, true, true]
    );
    assert!(byte(0xc3) && !byte(0xff));
    // Half a character is followed by its other half.
    any.accept(4 + 0xc3).unwrap();
    let rest = allowed(&mut any);
    assert!(rest.iter().all(|id| (4 + 0x80..4 + 0xc0).contains(id)), "{rest:?}");

    let mut some = grammars.regex("a+b?").unwrap().matcher();
    assert!(!allowed(&mut some).contains(&2));
    some.accept(260).unwrap();
    assert_eq!(allowed(&mut some), [2, 3, 260, 261]);
    some.accept(261).unwrap();
    assert!(some.is_over());
    assert_eq!(allowed(&mut some), [2, 3]);
    let error = some.accept(261).unwrap_err().to_string();
    assert!(error.contains("the regular expression cannot be followed"), "{error}");
}

#[test]
fn matchers_of_one_grammar_go_their_own_ways() {
    let grammar = grammars().lark("start: \"a\"+ \"b\"").unwrap();
    let mut one = grammar.matcher();
    one.accept(260).unwrap();
    let mut fork = one.fork();
    fork.accept(261).unwrap();
    assert!(fork.is_over() && !one.is_over());
    one.accept(260).unwrap();
    assert_eq!(allowed(&mut grammar.matcher()), [260]);
    // Too few words are an error, and no panic.
    one.mask(&mut [0; WORDS - 1]).unwrap_err();
}

/// Sound, but large beyond measure, or wrong: refused within the time, or followed within its limits.
#[test]
fn schemas_that_explode_and_wrong_ones_end_in_bounded_time() {
    let nested =
        |depth: usize| (0..depth).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
    let doubled = |depth: usize| {
        let of = |i: usize| json!({ "allOf": [{ "$ref": format!("#/$defs/{}", i + 1) }, { "$ref": format!("#/$defs/{}", i + 1) }] });
        let mut defs: serde_json::Map<String, Value> = (0..depth).map(|i| (i.to_string(), of(i))).collect();
        defs.insert(depth.to_string(), json!({ "properties": { "x": { "type": "string" } } }));
        json!({ "$defs": defs, "$ref": "#/$defs/0" })
    };
    let chained = |length: usize| {
        let of = |i: usize| json!({ "$ref": format!("#/$defs/{}", i + 1) });
        let mut defs: serde_json::Map<String, Value> = (0..length).map(|i| (i.to_string(), of(i))).collect();
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
        // As many as the size of a schema allows.
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
    let grammars = grammars();
    for (schema, expected) in cases {
        let start = Instant::now();
        let compiled = grammars.json_schema(&schema).map(|grammar| grammar.matcher().mask(&mut [0; WORDS]));
        let shown: String = schema.to_string().chars().take(120).collect();
        match (&compiled, expected) {
            (Ok(first), None) => assert!(first.is_ok(), "{shown}: {first:?}"),
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{shown}: {error}"),
            _ => panic!("{shown}: {compiled:?}"),
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{shown} took {:?}", start.elapsed());
    }
    // It refers to nothing but itself, which shows when it is followed.
    let circle = grammars.json_schema(&json!({ "$ref": "#" })).unwrap();
    let error = circle.matcher().mask(&mut [0; WORDS]).unwrap_err();
    assert!(error.to_string().contains("allows nothing to follow"), "{error}");
    for (wrong, part) in [("(", "regular expression cannot be used"), ("(?=a)b", "look-around")] {
        let error = grammars.regex(wrong).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(grammars.lark("start: nothing").is_err());
}

#[test]
fn work_that_grows_while_an_answer_is_written_is_an_error_in_the_end() {
    // After every letter it may be the one forty before the end: two to the power of forty states.
    let grammar = grammars().regex("(a|b)*a(a|b){40}").unwrap();
    let mut matcher = grammar.matcher();
    let mut words = [0; WORDS];
    let mut seed = 1_u32;
    let start = Instant::now();
    let error = loop {
        if let Err(error) = matcher.mask(&mut words) {
            break error.to_string();
        }
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if let Err(error) = matcher.accept(260 + (seed >> 31)) {
            break error.to_string();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it grows without an end");
    };
    assert!(error.contains("cannot be followed"), "{error}");
}

#[test]
fn vocabularies_without_text_or_ends_are_refused() {
    let tokenizer = tokenizer();
    assert!(Grammars::new(&tokenizer, VOCAB, &[]).is_err());
    assert!(Grammars::new(&tokenizer, VOCAB, &[VOCAB]).is_err());
    assert!(Grammars::new(&tokenizer, 3, &[2]).is_err());
}
