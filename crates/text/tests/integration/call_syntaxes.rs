//! Tool calls that are not a JSON object each: Gemma 4's notation, XML-like parameters, Mistral's formats.

use crate::common::path_from_env;
use proptest::prelude::*;
use serde_json::{Value, json};
use text::{
    CallSyntax, ChatTemplate, DecodeSpecial, EncodeSpecial, Message, PromptOptions, Tokenizer, Tool,
    ToolCall, ToolCallEvent, ToolCallFormat, ToolCallParser, ToolSupport, Vocabulary, VocabularyKind,
    set_thinking,
};

const GEMMA4: &str = include_str!("../templates/gemma4.jinja");
const XML: &str = include_str!("../templates/xml.jinja");
const MISTRAL: &str = include_str!("../templates/mistral.jinja");
const MISTRAL_ARRAY: &str = include_str!("../templates/mistral_array.jinja");

const CONTROLS: [&str; 18] = [
    "<unk>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|turn>",
    "<turn|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
    "[TOOL_CALLS]",
    "[ARGS]",
];

fn tokenizer() -> Tokenizer {
    let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
    let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let bytes = bytes.iter().map(|name| (name.as_str(), 6));
    for (name, kind) in CONTROLS.map(|name| (name, 3)).into_iter().chain(bytes) {
        vocabulary.tokens.push(name.to_owned());
        vocabulary.token_types.push(kind);
    }
    vocabulary.scores = vec![0.0; vocabulary.tokens.len()];
    (vocabulary.unknown, vocabulary.bos, vocabulary.eos) = (Some(0), Some(1), Some(2));
    Tokenizer::from_vocabulary(vocabulary).unwrap()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "<s>", "</s>").unwrap()
}

fn format(source: &str) -> ToolCallFormat {
    match template(source).tool_support(&tokenizer()) {
        ToolSupport::Format(format) => format,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_syntax_is_derived_from_the_template() {
    let parts =
        |format: &ToolCallFormat| [&format.prefix, &format.infix, &format.suffix].map(|part| part.clone());
    let gemma = format(GEMMA4);
    assert_eq!(parts(&gemma), ["<|tool_call>call:", "", "<tool_call|>"]);
    assert_eq!((gemma.syntax, gemma.trigger()), (CallSyntax::Gemma4, "<|tool_call>"));
    assert_eq!(gemma.separator.as_deref(), Some(""));
    let controls: Vec<&str> = gemma.control_tokens.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(controls, ["<tool_call|>", "<|\"|>", "<|tool_call>"]);

    let xml = format(XML);
    assert_eq!(parts(&xml), ["<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"]);
    assert_eq!((xml.syntax, xml.trigger()), (CallSyntax::Xml, "<tool_call>"));
    assert_eq!(xml.separator.as_deref(), Some("\n"));

    let mistral = format(MISTRAL);
    assert_eq!(parts(&mistral), ["[TOOL_CALLS]", "[ARGS]", ""]);
    assert_eq!((mistral.syntax, mistral.trigger()), (CallSyntax::Json, "[TOOL_CALLS]"));
    assert_eq!(mistral.separator.as_deref(), Some(""));

    let array = format(MISTRAL_ARRAY);
    assert_eq!(parts(&array), ["[TOOL_CALLS][{\"name\": \"", "\", \"arguments\": ", "}]"]);
    assert_eq!((array.syntax, array.trigger()), (CallSyntax::JsonArray, "[TOOL_CALLS]"));
    assert_eq!((array.separator.as_deref(), array.element_prefix()), (Some(", "), "{\"name\": \""));
}

/// The schema that XML-like parameters follow.
fn schema() -> Value {
    json!({
        "type": "object",
        "$defs": { "id": { "type": "string" } },
        "properties": {
            "city": { "type": "string" }, "unit": { "enum": ["c", "f"] }, "id": { "$ref": "#/$defs/id" },
            "days": { "type": "integer" }, "deep": { "type": "object" }, "all": { "type": "boolean" },
            "either": { "anyOf": [{ "type": "string" }, { "type": "integer" }] },
        },
    })
}

fn parse(format: &ToolCallFormat, anywhere: bool, pieces: &[&str]) -> Vec<ToolCallEvent> {
    let schema = schema();
    let parser = ToolCallParser::new(format.clone(), anywhere);
    let mut parser = parser.with_schemas([("f", Some(&schema)), ("g", None)]);
    let mut events: Vec<_> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    events
}

type Parsed = (String, Vec<(String, String)>);

fn collect(events: &[ToolCallEvent]) -> Parsed {
    let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for event in events {
        match event {
            ToolCallEvent::Text(more) => text += more,
            ToolCallEvent::Start { name, .. } => calls.push((name.clone(), String::new())),
            ToolCallEvent::Arguments { json, .. } => calls.last_mut().expect("a call").1 += json,
            ToolCallEvent::Markup(_) => {}
        }
    }
    (text, calls)
}

/// Parses an output split at every position and into single characters; all must agree.
fn check(format: &ToolCallFormat, output: &str) -> Parsed {
    let expected = collect(&parse(format, true, &[output]));
    let cuts: Vec<usize> = (0..=output.len()).filter(|cut| output.is_char_boundary(*cut)).collect();
    for cuts in cuts.iter().map(|cut| vec![0, *cut, output.len()]).chain([cuts.clone()]) {
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &output[cut[0]..cut[1]]).collect();
        let events = parse(format, true, &pieces);
        assert_eq!(collect(&events), expected, "{pieces:?}");
        assert_eq!(events.iter().map(ToolCallEvent::text).collect::<String>(), output);
    }
    expected
}

/// Text, and calls of which the arguments are valid JSON.
fn check_json(format: &ToolCallFormat, output: &str) -> (String, Vec<(String, Value)>) {
    let (text, calls) = check(format, output);
    let value = |json: &str| serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    (text, calls.into_iter().map(|(name, json)| (name, value(&json))).collect())
}

#[test]
fn gemma_4_calls_become_json() {
    let format = format(GEMMA4);
    let q = "<|\"|>";
    for (arguments, expected) in [
        ("{}".to_owned(), json!({})),
        (format!("{{city:{q}Zürich 鳥{q}}}"), json!({ "city": "Zürich 鳥" })),
        (
            format!("{{a:[1,-2.5e3,{q}x{q}],b:true,n:null,o:{{k:{q}v{q},e:{{}},l:[]}},t:{q}{q}}}"),
            json!({ "a": [1, -2.5e3, "x"], "b": true, "n": null, "o": { "k": "v", "e": {}, "l": [] }, "t": "" }),
        ),
        // Text may contain anything but the quotation mark.
        (
            format!("{{t:{q}a,b:{{c}}]\"\\\n<|\"| </tool_call|> call:g{{{q}}}"),
            json!({ "t": "a,b:{c}]\"\\\n<|\"| </tool_call|> call:g{" }),
        ),
        // Quoted keys, JSON's quotation marks, white space.
        (
            format!("{{ {q}a b{q} : {q}x{q} , \"c:d\": \"e\\\"f\ng\" }}"),
            json!({ "a b": "x", "c:d": "e\"f\ng" }),
        ),
        // Values that are not JSON, missing ones, wrong brackets and commas.
        ("{a:Paris,b:True,c:None,d:01}".to_owned(), json!({ "a": "Paris", "b": true, "c": null, "d": "01" })),
        ("{a:,b,c:}".to_owned(), json!({ "a": null, "b": null, "c": null })),
        ("{a:[1,2},b:{c:3]}".to_owned(), json!({ "a": [1, 2], "b": { "c": 3 } })),
        ("{,a:1,,b:[,2,],}".to_owned(), json!({ "a": 1, "b": [2] })),
    ] {
        let output = format!("Well.<|tool_call>call:f{arguments}<tool_call|>");
        assert_eq!(
            check_json(&format, &output),
            ("Well.".to_owned(), vec![("f".to_owned(), expected)]),
            "{output}"
        );
    }
    let two = "<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{}<tool_call|>";
    let (text, calls) = check_json(&format, two);
    assert_eq!((text.as_str(), calls.len()), ("", 2));
}

#[test]
fn gemma_4_calls_may_lack_their_start() {
    let format = format(GEMMA4);
    for output in [
        "call:f{a:1}<tool_call|>",
        "\n call:f{a:1}",
        "call:f{a:1}<tool_call|><|tool_call>call:f{a:1}<tool_call|>",
    ] {
        let (text, calls) = check_json(&format, output);
        assert_eq!(text, "", "{output}");
        assert!(calls.iter().all(|call| *call == ("f".to_owned(), json!({ "a": 1 }))), "{output}");
        assert!(!collect(&parse(&format, false, &[output])).1.is_empty());
    }
    // Only at the start, and only with the brace.
    for text in ["So call:f{a:1}", "call: f{}", "call:f (x)", "call:", "call:f", "cal"] {
        assert_eq!(check(&format, text), (text.to_owned(), vec![]), "{text}");
    }
}

#[test]
fn incomplete_gemma_4_calls_keep_what_there_is() {
    let format = format(GEMMA4);
    for (output, calls) in [
        ("<|tool_call>", vec![]),
        ("<|tool_call>call:f", vec![]),
        ("<|tool_call>call:f{a:<|\"|>x\"y<|\"", vec![("f", "{\"a\":\"x\\\"y<|\\\"")]),
        ("<|tool_call>call:f{a:12", vec![("f", "{\"a\":12")]),
    ] {
        let (text, found) = check(&format, output);
        let found: Vec<(&str, &str)> = found.iter().map(|(name, json)| (&**name, &**json)).collect();
        assert_eq!((text.as_str(), found), ("", calls), "{output}");
    }
}

#[test]
fn xml_calls_become_json_by_the_schema() {
    let format = format(XML);
    let call = |parameters: &[(&str, &str)]| {
        let parameters: String = parameters
            .iter()
            .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
            .collect();
        format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>")
    };
    for (parameters, expected) in [
        (vec![], json!({})),
        (vec![("city", "Zürich 鳥"), ("days", "3")], json!({ "city": "Zürich 鳥", "days": 3 })),
        // Strings are as they are, even if they look like JSON.
        (
            vec![("city", "3"), ("unit", "c"), ("id", "true")],
            json!({ "city": "3", "unit": "c", "id": "true" }),
        ),
        (
            vec![("city", "\n a \"b\"\\\n</param <parameter=x>\n")],
            json!({ "city": "\n a \"b\"\\\n</param <parameter=x>\n" }),
        ),
        (vec![("city", "")], json!({ "city": "" })),
        (
            vec![("deep", "{\"a\": [1,\n 2]}"), ("all", "True")],
            json!({ "deep": { "a": [1, 2] }, "all": true }),
        ),
        (
            vec![("either", "7"), ("days", "soon"), ("other", "x y")],
            json!({ "either": 7, "days": "soon", "other": "x y" }),
        ),
    ] {
        let output = format!("I look.\n{}", call(&parameters));
        let (text, calls) = check_json(&format, &output);
        assert_eq!((text.as_str(), calls), ("I look.\n", vec![("f".to_owned(), expected)]), "{output}");
    }
    // Several calls; without line breaks; without the first tag.
    let two = format!("{}\n{}", call(&[("city", "a")]), call(&[("city", "b")]));
    assert_eq!(check_json(&format, &two).1.len(), 2);
    let dense = "<tool_call>\n<function=f><parameter=city>a</parameter><parameter=days>1</parameter></function>\n</tool_call>";
    assert_eq!(check_json(&format, dense).1[0].1, json!({ "city": "a", "days": 1 }));
    let bare = "<function=f>\n<parameter=city>\na\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(check_json(&format, bare), (String::new(), vec![("f".to_owned(), json!({ "city": "a" }))]));
    // Text that only looks like a call, and a call that is cut off.
    for text in ["<tool_call>\n<fun", "a <tool_call> b", "<function>"] {
        let (found, calls) = check(&format, text);
        assert!(calls.is_empty() && text.starts_with(&found), "{found}");
    }
    let cut = "<tool_call>\n<function=f>\n<parameter=city>\nPar";
    assert_eq!(check(&format, cut).1, [("f".to_owned(), "{\"city\":\"Par".to_owned())]);
}

#[test]
fn mistral_calls_are_parsed_in_both_formats() {
    let newer = format(MISTRAL);
    let output = "So.[TOOL_CALLS]f[ARGS]{\"a\": \"]}\"}[TOOL_CALLS]g[ARGS]{}";
    let expected = vec![("f".to_owned(), json!({ "a": "]}" })), ("g".to_owned(), json!({}))];
    assert_eq!(check_json(&newer, output), ("So.".to_owned(), expected.clone()));
    let older = format(MISTRAL_ARRAY);
    for output in [
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"]}\"}}, {\"name\": \"g\", \"arguments\": {}}]",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"]}\"}, \"id\": \"a}bcdefgh\"},{\"name\": \"g\", \"arguments\": {}, \"id\": \"123456789\"}]",
    ] {
        assert_eq!(check_json(&older, output), (String::new(), expected.clone()));
    }
    for (output, calls) in [
        ("[TOOL_CALLS]", 0),
        ("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}", 1),
        ("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"nam", 1),
        ("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}} and more", 1),
        ("[TOOL_CALLS][]", 0),
    ] {
        assert_eq!(check(&older, output).1.len(), calls, "{output}");
    }
}

fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: "call00001".into(), name: name.into(), arguments }
}

fn result(name: &str, content: &str) -> Message {
    let (tool_call_id, name) = (Some("call00001".into()), Some(name.into()));
    Message { tool_call_id, name, ..Message::new("tool", content) }
}

#[test]
fn gemma_4_results_belong_to_the_turn_of_their_calls() {
    let render = |messages: &[Message]| template(GEMMA4).render(messages, true).unwrap();
    let question = Message::new("user", "?");
    let calls = vec![call("f", json!({ "b": "x", "a": [1, { "c": true }] })), call("g", json!({}))];
    let asked = |content: Option<&str>| Message::with_tool_calls(content.map(str::to_owned), calls.clone());
    let turn = "<s><|turn>user\n?<turn|>\n<|turn>model\n<|tool_call>call:f{a:[1,{c:true}],b:<|\"|>x<|\"|>}<tool_call|><|tool_call>call:g{}<tool_call|>";
    let results = "<|tool_response>response:f{t:20}<tool_response|><|tool_response>response:g{value:<|\"|>late<|\"|>}<tool_response|>";
    let end = "<|channel>thought\n<channel|>";
    let answered = [question.clone(), asked(None), result("f", "{\"t\": 20}"), result("g", "late")];
    assert_eq!(render(&answered), format!("{turn}{results}{end}"));
    // Text in the message with the calls closes the turn, so the reply needs another one.
    let mut with_text = answered.clone();
    with_text[1] = asked(Some("Wait."));
    assert_eq!(render(&with_text), format!("{turn}{results}Wait.<turn|>\n<|turn>model\n{end}"));
    // The turn starts as it usually does, even if the template writes nothing after results.
    let silent = GEMMA4.replace(
        "{%- if not thinks %}{{ '<|channel>",
        "{%- if not thinks and not state.responded %}{{ '<|channel>",
    );
    assert_eq!(template(&silent).render(&with_text, true).unwrap(), render(&with_text));
    // Nothing changes where the template starts the turn itself.
    assert_eq!(
        render(std::slice::from_ref(&question)),
        format!("<s><|turn>user\n?<turn|>\n<|turn>model\n{end}")
    );
    let not_asked = template(GEMMA4).render(&with_text, false).unwrap();
    assert!(not_asked.ends_with("Wait.<turn|>\n"), "{not_asked}");
    // The text of messages closes no turn.
    let mut options = PromptOptions::default();
    set_thinking(&mut options.variables, true);
    let encode = |text: &str| {
        let messages = [question.clone(), asked(None), result("f", text)];
        let ids = template(GEMMA4).encode_with_tools(&tokenizer(), &messages, &[], &options).unwrap();
        tokenizer().decode(&ids, DecodeSpecial::Keep)
    };
    assert!(encode("a<turn|>").ends_with("response:f{value:<|\"|>a<turn|><|\"|>}<tool_response|>"));
    // A template that renders the role itself gets the messages as they are.
    let own_role = "{% for m in messages %}{{ m.role }}{{ m.name }}{{ m.tool_responses }}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %};{% endfor %}";
    let shown = template(own_role).render(&answered, true).unwrap();
    assert!(shown.contains("toolf{\"t\": 20};") && shown.contains("toolglate;"), "{shown}");
}

#[test]
fn a_template_that_needs_a_text_gets_an_empty_one() {
    let source = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ 'thinks' if '</think>' in m.content }}{{ m.content }}{% for c in m.tool_calls %}<call>{{ c.function.name }}={{ c.function.arguments | tojson }}</call>{% endfor %};{% endfor %}";
    let messages = [Message::new("user", "?"), Message::with_tool_calls(None, vec![call("f", json!({}))])];
    assert_eq!(template(source).render(&messages, false).unwrap(), "user:?;assistant:<call>f={}</call>;");
    assert_eq!(format(source).prefix, "<call>");
}

#[test]
fn calls_of_a_conversation_are_parsed_as_they_were_rendered() {
    let arguments = json!({ "city": "a b", "days": 3, "deep": { "x": [true, null, "y"] } });
    for source in [GEMMA4, XML, MISTRAL, MISTRAL_ARRAY] {
        let calls = vec![call("f", arguments.clone()), call("g", json!({}))];
        let messages = [Message::new("user", "?"), Message::with_tool_calls(None, calls)];
        let tools = [Tool { name: "f".into(), description: None, parameters: Some(schema()) }];
        let text = template(source).render_with_tools(&messages, false, Some(&tools)).unwrap();
        let format = format(source);
        let start = text.rfind(&format.prefix[..format.trigger_len]).unwrap();
        let start = text[..start].rfind(format.trigger()).unwrap_or(start);
        let (_, calls) = collect(&parse(&format, true, &[&text[start..]]));
        let calls: Vec<(String, Value)> =
            calls.into_iter().map(|(name, json)| (name, serde_json::from_str(&json).unwrap())).collect();
        assert_eq!(calls, [("f".to_owned(), arguments.clone()), ("g".to_owned(), json!({}))], "{text}");
        assert!(!tokenizer().encode(&text, EncodeSpecial::Parse).is_empty());
    }
}

/// Templates of real models, from llama.cpp's repository (`INDRIK_TEST_TEMPLATES`: its folder models/templates).
#[test]
fn real_templates_have_known_formats() {
    let Some(folder) = path_from_env("INDRIK_TEST_TEMPLATES", "a folder with chat templates") else { return };
    for (name, syntax, thinking) in [
        ("google-gemma-4-31B-it", Some(CallSyntax::Gemma4), Some("<|channel>")),
        ("google-gemma-4-31B-it-interleaved", Some(CallSyntax::Gemma4), Some("<|channel>")),
        ("Qwen3-Coder", Some(CallSyntax::Xml), None),
        ("Qwen3.5-4B", Some(CallSyntax::Xml), Some("<think>")),
        ("Qwen-Qwen3-0.6B", Some(CallSyntax::Json), Some("<think>")),
        ("Qwen-Qwen2.5-7B-Instruct", Some(CallSyntax::Json), None),
        ("mistralai-Ministral-3-14B-Reasoning-2512", Some(CallSyntax::Json), Some("[THINK]")),
        ("mistralai-Mistral-Nemo-Instruct-2407", Some(CallSyntax::JsonArray), None),
    ] {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = template(&source);
        let found = match template.tool_support(&tokenizer()) {
            ToolSupport::Format(format) => Some(format.syntax),
            ToolSupport::None | ToolSupport::UnknownFormat => None,
        };
        assert_eq!(found, syntax, "{name}");
        let start = template.thinking_format(&tokenizer()).map(|format| format.start);
        assert_eq!(start.as_deref(), thinking, "{name}");
    }
}

proptest! {
    #[test]
    fn splitting_the_output_makes_no_difference(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<|tool_call>call:f{", "call:f{", "<|\"|>", "a:", "1", ",", "{", "}", "[", "]", "\"", "\\", "<tool_call|>", " ", "\n", "é", "<|", "x",
            "<tool_call>\n<function=f>\n", "<parameter=city>\n", "<parameter=days>", "\n</parameter>\n", "</function>\n</tool_call>", "</", "<parameter=",
            "[TOOL_CALLS]", "f[ARGS]", "[{\"name\": \"f\", \"arguments\": ", ", \"id\": \"x\"",
        ]), 0..14),
        cuts in prop::collection::vec(0_usize..200, 0..8), source in prop::sample::select(vec![GEMMA4, XML, MISTRAL, MISTRAL_ARRAY]), anywhere: bool,
    ) {
        let format = format(source);
        let output = parts.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| output.is_char_boundary(*cut)).chain([0, output.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &output[cut[0]..cut[1]]).collect();
        let events = parse(&format, anywhere, &pieces);
        prop_assert_eq!(collect(&events), collect(&parse(&format, anywhere, &[&output])));
        prop_assert_eq!(events.iter().map(ToolCallEvent::text).collect::<String>(), output);
    }
}
