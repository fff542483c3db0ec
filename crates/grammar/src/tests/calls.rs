use std::time::{Duration, Instant};

use serde_json::{Value, json};
use text::CallForm;

use super::{VOCAB, allowed, follow, grammars, whole};
use crate::{Callable, Calls, Grammar, Grammars, Otherwise};

fn form() -> CallForm {
    CallForm {
        begin: "<call>\n{\"name\": \"".into(),
        middle: "\", \"arguments\": ".into(),
        tail: "}\n</call>".into(),
        between: Some("\n".into()),
        trigger: "<call>".len(),
        controls: vec![],
    }
}

fn tool(at: usize, name: &str, parameters: Value) -> Callable {
    Callable { at, name: name.into(), parameters: Some(parameters), strict: true }
}

fn tools() -> Vec<Callable> {
    let weather = json!({
        "type": "object",
        "properties": { "city": { "type": "string", "maxLength": 9 }, "unit": { "enum": ["c", "f"] } },
        "required": ["city"],
        "additionalProperties": false,
    });
    // Places in a schema are told from its own beginning.
    let sum = json!({
        "$defs": { "number": { "type": "integer", "minimum": 0, "maximum": 30 } },
        "properties": { "of": { "type": "array", "items": { "$ref": "#/$defs/number" } } },
        "required": ["of"],
        "additionalProperties": false,
    });
    vec![
        tool(0, "weather", weather),
        tool(1, "weather-sum", sum),
        Callable { parameters: None, ..tool(2, "now", json!(0)) },
    ]
}

fn held(otherwise: Otherwise, parallel: bool) -> Grammar {
    grammars().calls(&Calls { form: form(), tools: tools(), parallel, otherwise }).unwrap()
}

fn call(name: &str, arguments: &str) -> String {
    format!("<call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</call>")
}

#[test]
fn an_answer_that_must_call_does_nothing_else() {
    let [many, one] = [true, false].map(|parallel| held(Otherwise::Nothing, parallel));
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
            assert!(whole(grammar, right), "{right}: {:?}", follow(grammar, right));
        }
    }
    let all = right.join("\n");
    assert!(whole(&many, &all), "{:?} of {}", follow(&many, &all), all.len());
    // Nothing after the first of them.
    assert_eq!(follow(&one, &all), (right[0].len(), true));
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
        let followed = follow(&many, &format!("{right}{wrong}")).0;
        assert_eq!(followed, right.len(), "{wrong} after {right}");
    }
    assert!(!follow(&many, "").1 && !follow(&many, &weather[..weather.len() - 1]).1);
}

#[test]
fn text_is_free_until_a_call_begins() {
    let grammar = held(Otherwise::Text, true);
    let weather = call("weather", "{\"city\": \"a\"}");
    let free = ["", "a", "a < b, <cal and <call <", "{\"name\": \"", "\n\n é", "</call>"];
    for text in free {
        assert!(whole(&grammar, text), "{text}: {:?}", follow(&grammar, text));
        let with = format!("{text}{weather}");
        assert!(whole(&grammar, &with), "{with}: {:?}", follow(&grammar, &with));
    }
    assert!(whole(&grammar, &format!("a\n{weather}\n{weather}")));
    // From the marker on it is a call, and after one only another.
    for (wrong, bytes) in [("a <call>b", 8), ("<call>\n{\"name\": \"xx", 17), ("<call><call>", 6)] {
        assert_eq!(follow(&grammar, wrong), (bytes, false), "{wrong}");
    }
    assert_eq!(follow(&grammar, &format!("{weather} and")), (weather.len(), true));
}

#[test]
fn an_answer_is_calls_or_json() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
    let grammar = held(Otherwise::Json(schema.clone()), true);
    for right in
        ["{\"a\": \"<call>\"}".to_string(), call("now", "{}"), format!("{0}\n{0}", call("now", "{}"))]
    {
        assert!(whole(&grammar, &right), "{right}: {:?}", follow(&grammar, &right));
    }
    assert_eq!(follow(&grammar, "text").0, 0);
    // Where calls are objects too, nothing would tell one from the other.
    let bare =
        CallForm { begin: "{\"name\": \"".into(), tail: "}".into(), trigger: 0, between: None, ..form() };
    let of = |otherwise| {
        grammars().calls(&Calls { form: bare.clone(), tools: tools(), parallel: true, otherwise })
    };
    assert!(of(Otherwise::Json(schema)).unwrap_err().to_string().contains("told from"));
    let grammar = of(Otherwise::Text).unwrap();
    let now = "{\"name\": \"now\", \"arguments\": {}}";
    for right in [now, "", "a {", "\n{"] {
        assert!(whole(&grammar, right), "{right}: {:?}", follow(&grammar, right));
    }
    assert_eq!(follow(&grammar, "{\"b"), (2, false));
    assert_eq!(follow(&grammar, &format!("{now}{now}")), (now.len(), true));
}

#[test]
fn markers_that_are_control_tokens_are_allowed_where_a_call_may_begin() {
    // As if <s> were the marker, and <unk> its end.
    let form = CallForm {
        begin: "<s>{\"name\": \"".into(),
        tail: "}<unk>".into(),
        trigger: "<s>".len(),
        controls: vec![("<s>".into(), 1), ("<unk>".into(), 0)],
        ..form()
    };
    let of = |otherwise| {
        let calls = Calls { form: form.clone(), tools: tools(), parallel: true, otherwise };
        grammars().calls(&calls).unwrap()
    };
    let tokenizer = super::tokenizer();
    let mut must = of(Otherwise::Nothing).matcher();
    assert!(allowed(&mut must).contains(&1) && !allowed(&mut must).contains(&2));
    let mut may = of(Otherwise::Text).matcher();
    for id in tokenizer.encode("ab", text::Special::AsText) {
        may.accept(id).unwrap();
    }
    let ids = allowed(&mut may);
    assert!(ids.contains(&1) && ids.contains(&2) && !ids.contains(&0), "{ids:?}");
    for mut matcher in [must, may] {
        matcher.accept(1).unwrap();
        for id in tokenizer.encode("{\"name\": \"now\", \"arguments\": {}}", text::Special::AsText) {
            assert!(allowed(&mut matcher).contains(&id), "{id}");
            matcher.accept(id).unwrap();
        }
        let ids = allowed(&mut matcher);
        // Its token, or the first letter of its name.
        assert!(ids.contains(&0) && !ids.contains(&1) && ids.len() == 2, "{ids:?}");
        matcher.accept(0).unwrap();
        assert!(allowed(&mut matcher).contains(&2));
    }
}

#[test]
fn a_wrong_tool_is_named_and_work_is_bounded() {
    let refused = |tools: Vec<Callable>| {
        let start = Instant::now();
        let calls = Calls { form: form(), tools, parallel: true, otherwise: Otherwise::Text };
        let error = grammars().calls(&calls).unwrap_err().to_string();
        assert!(start.elapsed() < Duration::from_secs(10), "{error}: {:?}", start.elapsed());
        error
    };
    let crossed: Vec<Value> = (0..12)
        .map(|i| json!({ "anyOf": (0..4).map(|j| json!({ "properties": { format!("p{i}"): { "const": j } } })).collect::<Vec<_>>() }))
        .collect();
    let nested = (0..200).fold(json!({}), |inner, _| json!({ "properties": { "a": inner } }));
    for (wrong, part) in [
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
        let error = refused(vec![tool(0, "f", json!({})), tool(4, "g", wrong)]);
        assert!(error.contains("tool 4") && error.contains(part), "{error}");
    }
    // Each alone would do.
    let prime = |at: usize, of: u64| {
        tool(at, &format!("f{at}"), json!({ "properties": { "a": { "multipleOf": of } } }))
    };
    assert!(refused(vec![prime(0, 997), prime(1, 991)]).contains("the tools cannot be used: multipleOf"));
    let long = |at: usize| tool(at, &format!("f{at}"), json!({ "description": "x".repeat(100_000) }));
    assert!(refused((0..3).map(long).collect()).contains("the tools cannot be used: it has"));
    // What is not supported of a schema is left out where that was not forbidden.
    let loose = json!({ "properties": { "a": { "type": "array", "items": { "type": "null" }, "uniqueItems": true, "x-mine": 1 } } });
    let loose = Callable { strict: false, ..tool(0, "f", loose) };
    let calls = Calls { form: form(), tools: vec![loose], parallel: true, otherwise: Otherwise::Nothing };
    let grammar = grammars().calls(&calls).unwrap();
    assert!(whole(&grammar, &call("f", "{\"a\": [null, null]}")));
    assert_eq!(
        follow(&grammar, &call("f", "{\"a\": 1}")).0,
        call("f", "{\"a\": ").len() - "}\n</call>".len()
    );
}

/// Xorshift: the same answers on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    /// A schema whose values are short, whoever writes them.
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

    /// Any answer that a grammar allows.
    fn answer(&mut self, grammar: &Grammar) -> String {
        let tokenizer = super::tokenizer();
        let mut matcher = grammar.matcher();
        let mut ids = vec![];
        while !matcher.is_over() && ids.len() < 4000 {
            let may = allowed(&mut matcher);
            let id = may[self.below(may.len())];
            if tokenizer.ends().contains(&id) {
                break;
            }
            matcher.accept(id).unwrap();
            ids.push(id);
        }
        assert!(ids.len() < 4000 && ids.iter().all(|id| *id < VOCAB));
        tokenizer.decode(&ids, text::Shown::All)
    }
}

/// Whether a value is what a schema of [`Random::schema`] allows.
fn fits(value: &Value, schema: &Value) -> bool {
    if let Some(of) = schema.get("enum") {
        return of.as_array().unwrap().contains(value);
    }
    let most = |key: &str| schema[key].as_u64().unwrap();
    match schema["type"].as_str().unwrap() {
        "string" => value.as_str().is_some_and(|text| text.chars().count() as u64 <= most("maxLength")),
        "integer" => value.as_u64().is_some_and(|number| number <= most("maximum")),
        "boolean" => value.is_boolean(),
        "array" => value.as_array().is_some_and(|list| {
            list.len() as u64 <= most("maxItems") && list.iter().all(|item| fits(item, &schema["items"]))
        }),
        _ => value.as_object().is_some_and(|fields| {
            let known = |(key, value): (&String, &Value)| {
                schema["properties"].get(key).is_some_and(|schema| fits(value, schema))
            };
            let required = schema["required"].as_array().unwrap();
            fields.iter().all(known) && required.iter().all(|key| fields.contains_key(key.as_str().unwrap()))
        }),
    }
}

#[test]
fn whatever_is_chosen_is_a_call_of_a_tool_by_its_schema() {
    let mut random = Random(7);
    let grammars: Grammars = grammars();
    let mut calls_made = 0;
    for round in 0..60 {
        let tools: Vec<Callable> = (0..1 + random.below(3))
            .map(|at| tool(at, ["f", "get-x", "get_y2"][at], random.object(2)))
            .collect();
        let otherwise = if round % 3 == 0 { Otherwise::Text } else { Otherwise::Nothing };
        let must = otherwise == Otherwise::Nothing;
        let parallel = round % 2 == 0;
        let calls = Calls { form: form(), tools: tools.clone(), parallel, otherwise };
        let grammar = grammars.calls(&calls).unwrap();
        let answer = random.answer(&grammar);
        let mut reader = text::CallReader::new(form(), true);
        let mut parts = reader.push(&answer);
        parts.extend(reader.finish());
        let mut made: Vec<(String, String)> = vec![];
        for part in parts {
            match part {
                text::CallPart::Call { name, .. } => made.push((name, String::new())),
                text::CallPart::Arguments(text) => made.last_mut().unwrap().1.push_str(&text),
                text::CallPart::Text(text) => assert!(!must, "{text:?} in {answer}"),
                text::CallPart::Hidden(_) => {}
            }
        }
        assert!(!must || !made.is_empty(), "{answer}");
        assert!(parallel || made.len() <= 1, "{answer}");
        calls_made += made.len();
        for (name, arguments) in made {
            let tool = tools.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("{answer}"));
            let value: Value =
                serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {answer}"));
            assert!(fits(&value, tool.parameters.as_ref().unwrap()), "{answer} by {tool:?}");
        }
    }
    assert!(calls_made > 40, "{calls_made}");
}
