use serde_json::{Value, json};
use text::{CallSyntax, ToolCallFormat};

use super::{VOCAB, accepted, accepts, allowed, compiler};
use crate::{Grammar, GrammarCompiler, NonCallOutput, ToolCallGrammar, ToolSpec};

fn format() -> ToolCallFormat {
    ToolCallFormat {
        prefix: "<call>\n{\"name\": \"".into(),
        infix: "\", \"arguments\": ".into(),
        suffix: "}\n</call>".into(),
        separator: Some("\n".into()),
        trigger_len: "<call>".len(),
        control_tokens: vec![],
        syntax: CallSyntax::Json,
    }
}

fn tool(index: usize, name: &str, parameters: Value) -> ToolSpec {
    ToolSpec { index, name: name.into(), parameters: Some(parameters), strict: true }
}

fn tools() -> Vec<ToolSpec> {
    let weather = json!({
        "type": "object",
        "properties": { "city": { "type": "string", "maxLength": 9 }, "unit": { "enum": ["c", "f"] } },
        "required": ["city"],
        "additionalProperties": false,
    });
    // References resolve within the tool's own schema.
    let sum = json!({
        "$defs": { "number": { "type": "integer", "minimum": 0, "maximum": 30 } },
        "properties": { "of": { "type": "array", "items": { "$ref": "#/$defs/number" } } },
        "required": ["of"],
        "additionalProperties": false,
    });
    vec![
        tool(0, "weather", weather),
        tool(1, "weather-sum", sum),
        ToolSpec { parameters: None, ..tool(2, "now", json!(0)) },
    ]
}

fn grammar(without_calls: NonCallOutput, parallel: bool) -> Grammar {
    compiler()
        .tool_calls(&ToolCallGrammar { format: format(), tools: tools(), parallel, without_calls })
        .unwrap()
}

fn call(name: &str, arguments: &str) -> String {
    format!("<call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</call>")
}

#[test]
fn only_calls_are_accepted_when_a_call_is_required() {
    let [many, one] = [true, false].map(|parallel| grammar(NonCallOutput::Forbidden, parallel));
    let weather = call("weather", "{\"city\": \"Paris\", \"unit\": \"c\"}");
    let right = [
        weather.clone(),
        call("weather", "{\"city\": \"</call>\"}"),
        call("weather-sum", "{\"of\": [1, 23]}"),
        call("weather-sum", "{\"of\": []}"),
        call("now", "{}"),
    ];
    for right in &right {
        for grammar in [&many, &one] {
            assert!(accepts(grammar, right), "{right}: {:?}", accepted(grammar, right));
        }
    }
    let all = right.join("\n");
    assert!(accepts(&many, &all), "{:?} of {}", accepted(&many, &all), all.len());
    // Nothing may follow the first call.
    assert_eq!(accepted(&one, &all), (right[0].len(), true));
    let opened = |name: &str| format!("<call>\n{{\"name\": \"{name}\", \"arguments\": ");
    for (right, wrong) in [
        (String::new(), " <call>"),
        (String::new(), "text"),
        ("<call>\n{\"name\": \"".into(), "other"),
        ("<call>\n{\"name\": \"no".into(), "\""),
        (opened("weather") + "{", "}"),
        (opened("weather"), " {"),
        (opened("weather") + "{\"", "unit"),
        (opened("weather-sum") + "{\"of\": [3", "1"),
        (opened("now"), "{\""),
        (opened("now") + "{", " }"),
        (weather.clone() + "\n", "text"),
        (weather.clone(), " "),
    ] {
        let followed = accepted(&many, &format!("{right}{wrong}")).0;
        assert_eq!(followed, right.len(), "{wrong} after {right}");
    }
    assert!(!accepted(&many, "").1 && !accepted(&many, &weather[..weather.len() - 1]).1);
}

#[test]
fn text_is_unconstrained_until_a_call_starts() {
    let grammar = grammar(NonCallOutput::Text, true);
    let weather = call("weather", "{\"city\": \"a\"}");
    let prose = ["", "a", "a < b, <cal and <call <", "{\"name\": \"", "\n\n é", "</call>"];
    for text in prose {
        assert!(accepts(&grammar, text), "{text}: {:?}", accepted(&grammar, text));
        let with = format!("{text}{weather}");
        assert!(accepts(&grammar, &with), "{with}: {:?}", accepted(&grammar, &with));
    }
    assert!(accepts(&grammar, &format!("a\n{weather}\n{weather}")));
    // From the trigger on it must be a call, and only calls may follow a call.
    for (wrong, bytes) in [("a <call>b", 8), ("<call>\n{\"name\": \"xx", 17), ("<call><call>", 6)] {
        assert_eq!(accepted(&grammar, wrong), (bytes, false), "{wrong}");
    }
    assert_eq!(accepted(&grammar, &format!("{weather} and")), (weather.len(), true));
}

#[test]
fn calls_or_json_are_accepted() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
    let grammar = grammar(NonCallOutput::Json(schema.clone()), true);
    for right in
        ["{\"a\": \"<call>\"}".to_string(), call("now", "{}"), format!("{0}\n{0}", call("now", "{}"))]
    {
        assert!(accepts(&grammar, &right), "{right}: {:?}", accepted(&grammar, &right));
    }
    assert_eq!(accepted(&grammar, "text").0, 0);
    // Calls that are plain JSON cannot be distinguished from JSON output.
    let bare = ToolCallFormat {
        prefix: "{\"name\": \"".into(),
        suffix: "}".into(),
        trigger_len: 0,
        separator: None,
        ..format()
    };
    let compile = |without_calls| {
        compiler().tool_calls(&ToolCallGrammar {
            format: bare.clone(),
            tools: tools(),
            parallel: true,
            without_calls,
        })
    };
    assert!(
        compile(NonCallOutput::Json(schema)).unwrap_err().to_string().contains("cannot be distinguished")
    );
    let grammar = compile(NonCallOutput::Text).unwrap();
    let now = "{\"name\": \"now\", \"arguments\": {}}";
    for right in [now, "", "a {", "\n{"] {
        assert!(accepts(&grammar, right), "{right}: {:?}", accepted(&grammar, right));
    }
    assert_eq!(accepted(&grammar, "{\"b"), (2, false));
    assert_eq!(accepted(&grammar, &format!("{now}{now}")), (now.len(), true));
}

#[test]
fn control_tokens_of_the_format_are_allowed_where_a_call_may_start() {
    // As if <s> were the prefix and <unk> the suffix.
    let format = ToolCallFormat {
        prefix: "<s>{\"name\": \"".into(),
        suffix: "}<unk>".into(),
        trigger_len: "<s>".len(),
        control_tokens: vec![("<s>".into(), 1), ("<unk>".into(), 0)],
        ..format()
    };
    let compile = |without_calls| {
        let calls = ToolCallGrammar { format: format.clone(), tools: tools(), parallel: true, without_calls };
        compiler().tool_calls(&calls).unwrap()
    };
    let tokenizer = super::tokenizer();
    let mut required = compile(NonCallOutput::Forbidden).matcher();
    assert!(allowed(&mut required).contains(&1) && !allowed(&mut required).contains(&2));
    let mut optional = compile(NonCallOutput::Text).matcher();
    for id in tokenizer.encode("ab", text::EncodeSpecial::AsText) {
        optional.accept(id).unwrap();
    }
    let ids = allowed(&mut optional);
    assert!(ids.contains(&1) && ids.contains(&2) && !ids.contains(&0), "{ids:?}");
    for mut matcher in [required, optional] {
        matcher.accept(1).unwrap();
        for id in tokenizer.encode("{\"name\": \"now\", \"arguments\": {}}", text::EncodeSpecial::AsText) {
            assert!(allowed(&mut matcher).contains(&id), "{id}");
            matcher.accept(id).unwrap();
        }
        let ids = allowed(&mut matcher);
        // The control token, or the first letter of its spelling.
        assert!(ids.contains(&0) && !ids.contains(&1) && ids.len() == 2, "{ids:?}");
        matcher.accept(0).unwrap();
        assert!(allowed(&mut matcher).contains(&2));
    }
}

#[test]
fn errors_name_the_invalid_tool_and_work_is_bounded() {
    let rejected = |tools: Vec<ToolSpec>| {
        let calls =
            ToolCallGrammar { format: format(), tools, parallel: true, without_calls: NonCallOutput::Text };
        compiler().tool_calls(&calls).unwrap_err().to_string()
    };
    let crossed: Vec<Value> = (0..12)
        .map(|i| json!({ "anyOf": (0..4).map(|j| json!({ "properties": { format!("p{i}"): { "const": j } } })).collect::<Vec<_>>() }))
        .collect();
    let nested = (0..200).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
    for (invalid, part) in [
        (json!({ "type": "strung" }), "object"),
        (json!({ "type": "string" }), "object"),
        (json!({ "properties": { "a": { "type": "strung" } } }), "strung"),
        (json!({ "properties": { "a": { "uniqueItems": true } } }), "uniqueItems"),
        (json!({ "properties": { "a": { "$ref": "#/$defs/none" } } }), "not found"),
        (json!({ "allOf": crossed }), "too large"),
        (nested, "nested deeper"),
        (json!(7), "object"),
        (json!({ "properties": { "a": { "multipleOf": 99_999_999 } } }), "multipleOf"),
        (json!({ "enum": vec!["x".repeat(1000); 300] }), "bytes"),
    ] {
        let error = rejected(vec![tool(0, "f", json!({})), tool(4, "g", invalid)]);
        assert!(error.contains("tool 4") && error.contains(part), "{error}");
    }
    // Each tool by itself is within the limits.
    let prime = |index: usize, multiple: u64| {
        tool(index, &format!("f{index}"), json!({ "properties": { "a": { "multipleOf": multiple } } }))
    };
    assert!(rejected(vec![prime(0, 997), prime(1, 991)]).contains("the tools cannot be used: multipleOf"));
    let long =
        |index: usize| tool(index, &format!("f{index}"), json!({ "description": "x".repeat(100_000) }));
    assert!(rejected((0..3).map(long).collect()).contains("the tools cannot be used: it has"));
    // Unsupported features are ignored unless the tool is strict.
    let loose = json!({ "properties": { "a": { "type": "array", "items": { "type": "null" }, "uniqueItems": true, "x-mine": 1 } } });
    let loose = ToolSpec { strict: false, ..tool(0, "f", loose) };
    let calls = ToolCallGrammar {
        format: format(),
        tools: vec![loose],
        parallel: true,
        without_calls: NonCallOutput::Forbidden,
    };
    let grammar = compiler().tool_calls(&calls).unwrap();
    assert!(accepts(&grammar, &call("f", "{\"a\": [null, null]}")));
    assert_eq!(
        accepted(&grammar, &call("f", "{\"a\": 1}")).0,
        call("f", "{\"a\": ").len() - "}\n</call>".len()
    );
}

/// Xorshift, so that every run generates the same completions.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    /// A schema that allows only short values.
    fn schema(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 4 } else { 6 }) {
            0 => json!({ "type": "string", "maxLength": self.below(6) }),
            1 => json!({ "type": "integer", "minimum": 0, "maximum": self.below(1000) }),
            2 => json!({ "enum": ["red", 1, null, "a \"quoted\" word"] }),
            3 => json!({ "type": "boolean" }),
            4 => json!({ "type": "array", "items": self.schema(depth - 1), "maxItems": 1 + self.below(3) }),
            _ => self.object(depth - 1),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let count = self.below(4);
        let names: Vec<String> = (0..count).map(|at| format!("p{at}")).collect();
        let properties: serde_json::Map<_, _> =
            names.iter().map(|name| (name.clone(), self.schema(depth))).collect();
        let required: Vec<&String> = names.iter().filter(|_| self.below(2) == 0).collect();
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    }

    /// A random completion that the grammar allows.
    fn completion(&mut self, grammar: &Grammar) -> String {
        let tokenizer = super::tokenizer();
        let mut matcher = grammar.matcher();
        let mut ids = vec![];
        while !matcher.is_finished() && ids.len() < 4000 {
            let candidates = allowed(&mut matcher);
            let id = candidates[self.below(candidates.len())];
            if tokenizer.stop_token_ids().contains(&id) {
                break;
            }
            matcher.accept(id).unwrap();
            ids.push(id);
        }
        assert!(ids.len() < 4000 && ids.iter().all(|id| *id < VOCAB));
        tokenizer.decode(&ids, text::DecodeSpecial::Keep)
    }
}

/// Whether a value matches a schema of [`Random::schema`].
fn matches_schema(value: &Value, schema: &Value) -> bool {
    if let Some(values) = schema.get("enum") {
        return values.as_array().unwrap().contains(value);
    }
    let max = |key: &str| schema[key].as_u64().unwrap();
    match schema["type"].as_str().unwrap() {
        "string" => value.as_str().is_some_and(|text| text.chars().count() as u64 <= max("maxLength")),
        "integer" => value.as_u64().is_some_and(|number| number <= max("maximum")),
        "boolean" => value.is_boolean(),
        "array" => value.as_array().is_some_and(|list| {
            list.len() as u64 <= max("maxItems")
                && list.iter().all(|item| matches_schema(item, &schema["items"]))
        }),
        _ => value.as_object().is_some_and(|fields| {
            let known = |(key, value): (&String, &Value)| {
                schema["properties"].get(key).is_some_and(|schema| matches_schema(value, schema))
            };
            let required = schema["required"].as_array().unwrap();
            fields.iter().all(known) && required.iter().all(|key| fields.contains_key(key.as_str().unwrap()))
        }),
    }
}

/// Gemma 4's notation.
fn gemma4() -> ToolCallFormat {
    ToolCallFormat {
        prefix: "<|tool_call>call:".into(),
        infix: String::new(),
        suffix: "<tool_call|>".into(),
        separator: Some(String::new()),
        trigger_len: "<|tool_call>".len(),
        control_tokens: vec![],
        syntax: CallSyntax::Gemma4,
    }
}

/// XML-like parameters.
fn xml() -> ToolCallFormat {
    ToolCallFormat {
        prefix: "<tool_call>\n<function=".into(),
        infix: ">\n".into(),
        suffix: "</function>\n</tool_call>".into(),
        separator: Some("\n".into()),
        trigger_len: "<tool_call>".len(),
        control_tokens: vec![],
        syntax: CallSyntax::Xml,
    }
}

/// An array of calls.
fn array() -> ToolCallFormat {
    ToolCallFormat {
        prefix: "[TOOL_CALLS][{\"name\": \"".into(),
        suffix: "}]".into(),
        separator: Some(", ".into()),
        trigger_len: "[TOOL_CALLS]".len(),
        syntax: CallSyntax::JsonArray,
        ..format()
    }
}

fn required(format: ToolCallFormat, tools: Vec<ToolSpec>) -> crate::Result<Grammar> {
    let without_calls = NonCallOutput::Forbidden;
    compiler().tool_calls(&ToolCallGrammar { format, tools, parallel: true, without_calls })
}

/// Checks what a grammar accepts, and how far it accepts other texts.
fn check(grammar: &Grammar, right: &[&str], wrong: &[(&str, &str)]) {
    for right in right {
        assert!(accepts(grammar, right), "{right}: {:?}", accepted(grammar, right));
    }
    for (right, wrong) in wrong {
        assert_eq!(accepted(grammar, &format!("{right}{wrong}")).0, right.len(), "{wrong} after {right}");
    }
}

#[test]
fn gemma_4_calls_match_the_schema() {
    let mut all = tools();
    let nested = json!({
        "$defs": { "node": { "type": "object", "properties": { "next": { "$ref": "#/$defs/node" } }, "additionalProperties": false } },
        "properties": {
            "z": { "type": ["integer", "null"], "maximum": 12 }, "list": { "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 2 },
            "Any": {}, "node": { "$ref": "#/$defs/node" }, "odd key": { "const": "k" }, "either": { "anyOf": [{ "type": "string" }, { "type": "number" }] },
        },
        "required": ["list", "z"],
    });
    all.push(tool(3, "nested", nested));
    let open = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "additionalProperties": { "type": "string" } });
    all.push(tool(4, "open", open));
    let grammar = required(gemma4(), all).unwrap();
    check(
        &grammar,
        &[
            "<|tool_call>call:weather{city:<|\"|>Paris<|\"|>}<tool_call|>",
            "<|tool_call>call:weather{city:<|\"|><|\"|>,unit:<|\"|>c<|\"|>}<tool_call|>",
            "<|tool_call>call:weather-sum{of:[1,23]}<tool_call|><|tool_call>call:now{}<tool_call|>",
            "<|tool_call>call:nested{list:[true],z:null}<tool_call|>",
            "<|tool_call>call:nested{Any:{a:[1,<|\"|>x<y<|\"|>,{}],b:null},either:<|\"|>a<|\"|>,list:[true,false],z:3}<tool_call|>",
            "<|tool_call>call:nested{either:1.5,list:[true],node:{next:{next:{}}},<|\"|>odd key<|\"|>:<|\"|>k<|\"|>,z:12}<tool_call|>",
            "<|tool_call>call:open{}<tool_call|>",
            "<|tool_call>call:open{a:1,b:<|\"|>x<|\"|>,c:<|\"|>y<|\"|>}<tool_call|>",
        ],
        &[
            ("<|tool_call>call:", "xyz"),
            ("<|tool_call>call:weather{", "}"),
            ("<|tool_call>call:weather{", "unit"),
            ("<|tool_call>call:weather{city:", "\""),
            ("<|tool_call>call:weather{city:<|\"|>a<|\"|>,unit:<|\"|>", "k"),
            ("<|tool_call>call:weather{city:<|\"|>a<|\"|>,", "x"),
            ("<|tool_call>call:weather-sum{of:[3", "1"),
            ("<|tool_call>call:now{", "a"),
            ("<|tool_call>call:nested{list:[", "]"),
            ("<|tool_call>call:nested{list:[true,true", ","),
            ("<|tool_call>call:open{b:", "1"),
        ],
    );
    // The quotation mark as a control token: text may contain its spelling.
    let control_tokens = vec![("<|\"|>".to_owned(), 1)];
    let control = required(
        ToolCallFormat { control_tokens, ..gemma4() },
        vec![tool(0, "f", json!({ "properties": { "a": { "type": "string" } }, "required": ["a"] }))],
    )
    .unwrap();
    let mut matcher = control.matcher();
    let encode = |text: &str| super::tokenizer().encode(text, text::EncodeSpecial::AsText);
    encode("<|tool_call>call:f{a:").into_iter().for_each(|id| matcher.accept(id).unwrap());
    assert_eq!(allowed(&mut matcher), [1]);
    matcher.accept(1).unwrap();
    encode("x<|\"|>}<tool_call|>").into_iter().for_each(|id| matcher.accept(id).unwrap());
    assert!(!matcher.is_finished());
    matcher.accept(1).unwrap();
    encode("}<tool_call|>").into_iter().for_each(|id| matcher.accept(id).unwrap());
    assert!(allowed(&mut matcher).contains(&2));
}

#[test]
fn xml_calls_match_the_schema() {
    let mut all = tools();
    let nested = json!({
        "$defs": { "unit": { "enum": ["c", "f"] } },
        "properties": {
            "code": { "type": "string" }, "unit": { "$ref": "#/$defs/unit" },
            "deep": { "type": "object", "properties": { "u": { "$ref": "#/$defs/unit" } }, "additionalProperties": false },
        },
        "required": ["code"],
    });
    all.push(tool(3, "nested", nested));
    all.push(tool(4, "open", json!({ "type": "object" })));
    let grammar = required(xml(), all).unwrap();
    let call = |name: &str, parameters: &[(&str, &str)]| {
        let parameters: String = parameters
            .iter()
            .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
            .collect();
        format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
    };
    let right = [
        call("weather", &[("city", "Paris"), ("unit", "c")]),
        call("weather-sum", &[("of", "[1, 23]")]),
        format!("{}\n{}", call("now", &[]), call("now", &[])),
        call(
            "nested",
            &[("code", "fn f() {\n  a < b\n}\n</param>"), ("unit", "f"), ("deep", "{\"u\": \"c\"}")],
        ),
        call("open", &[("any", "x"), ("more", "{")]),
    ];
    let right: Vec<&str> = right.iter().map(String::as_str).collect();
    let opened = |name: &str, key: &str| format!("<tool_call>\n<function={name}>\n<parameter={key}>\n");
    check(
        &grammar,
        &right,
        &[
            ("<tool_call>\n<function=", "xyz"),
            ("<tool_call>\n<function=weather>\n<", "/"),
            ("<tool_call>\n<function=weather>\n<parameter=", "unit"),
            (&(opened("weather", "city") + "a\n</parameter>\n<parameter=unit>\n"), "k"),
            (&(opened("weather-sum", "of") + "[3"), "1"),
            (&(opened("nested", "code") + "a\n</parameter>\n<"), "x"),
            ("<tool_call>\n<function=now>\n<", "p"),
        ],
    );
}

#[test]
fn an_array_of_calls_is_closed() {
    let many = required(array(), tools()).unwrap();
    let now = "{\"name\": \"now\", \"arguments\": {}}";
    check(
        &many,
        &[&format!("[TOOL_CALLS][{now}]"), &format!("[TOOL_CALLS][{now}, {now}]")],
        &[
            (&format!("[TOOL_CALLS][{now}]"), ","),
            (&format!("[TOOL_CALLS][{now}"), "}"),
            ("[TOOL_CALLS][", "]"),
        ],
    );
    let calls = ToolCallGrammar {
        format: array(),
        tools: tools(),
        parallel: false,
        without_calls: NonCallOutput::Text,
    };
    let one = compiler().tool_calls(&calls).unwrap();
    check(
        &one,
        &["text", &format!("text [TOOL_CALLS][{now}]")],
        &[(&format!("[TOOL_CALLS][{now}"), ","), ("[TOOL_CALLS]", "x")],
    );
}

#[test]
fn keywords_without_a_rule_are_rejected_in_strict_tools() {
    for format in [gemma4(), xml()] {
        for keyword in
            [json!({ "type": "string", "pattern": "a" }), json!({ "allOf": [{ "type": "string" }] })]
        {
            let spec = tool(5, "f", json!({ "properties": { "a": keyword } }));
            let error = required(format.clone(), vec![spec.clone()]).unwrap_err().to_string();
            assert!(error.contains("tool 5") && error.contains("not supported"), "{error}");
            assert!(required(format.clone(), vec![ToolSpec { strict: false, ..spec }]).is_ok());
        }
        let broken = tool(5, "f", json!({ "properties": { "a": { "$ref": "#/$defs/none" } } }));
        assert!(required(format, vec![broken]).unwrap_err().to_string().contains("not found"));
    }
}

#[test]
fn random_completions_call_tools_with_valid_arguments() {
    for format in [format(), gemma4(), xml(), array()] {
        random_completions_are_valid(&format);
    }
}

fn random_completions_are_valid(format: &ToolCallFormat) {
    let mut random = Random(7);
    let compiler: GrammarCompiler = compiler();
    let mut calls_made = 0;
    for round in 0..60 {
        let tools: Vec<ToolSpec> = (0..1 + random.below(3))
            .map(|index| tool(index, ["f", "get-x", "get_y2"][index], random.object(2)))
            .collect();
        let without_calls = if round % 3 == 0 { NonCallOutput::Text } else { NonCallOutput::Forbidden };
        let call_required = without_calls == NonCallOutput::Forbidden;
        let parallel = round % 2 == 0;
        let calls = ToolCallGrammar { format: format.clone(), tools: tools.clone(), parallel, without_calls };
        let grammar = compiler.tool_calls(&calls).unwrap();
        let completion = random.completion(&grammar);
        let schemas = tools.iter().map(|tool| (tool.name.as_str(), tool.parameters.as_ref()));
        let mut parser = text::ToolCallParser::new(format.clone(), true).with_schemas(schemas);
        let mut events = parser.push(&completion);
        events.extend(parser.finish());
        let mut made: Vec<(String, String)> = vec![];
        for event in events {
            match event {
                text::ToolCallEvent::Start { name, .. } => made.push((name, String::new())),
                text::ToolCallEvent::Arguments { json, .. } => made.last_mut().unwrap().1.push_str(&json),
                text::ToolCallEvent::Text(text) => assert!(!call_required, "{text:?} in {completion}"),
                text::ToolCallEvent::Markup(_) => {}
            }
        }
        assert!(!call_required || !made.is_empty(), "{completion}");
        assert!(parallel || made.len() <= 1, "{completion}");
        calls_made += made.len();
        for (name, arguments) in made {
            let tool = tools.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("{completion}"));
            let value: Value =
                serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {completion}"));
            assert!(matches_schema(&value, tool.parameters.as_ref().unwrap()), "{completion} by {tool:?}");
        }
    }
    assert!(calls_made > 40, "{calls_made}");
}
