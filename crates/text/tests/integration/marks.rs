//! Message text never becomes control tokens, regardless of how the template transforms it; and templates
//! still find the words that they search for.

use proptest::prelude::*;
use serde_json::{Value, json};
use text::{
    ChatTemplate, DecodeSpecial, Message, PromptOptions, Tokenizer, Tool, ToolCall, Vocabulary,
    VocabularyKind,
};

const NAMES: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];
const WORDS: [&str; 4] = ["<think>", "</think>", "<tool_response>", "</tool_response>"];

/// Qwen's control tokens, its tags as user-defined tokens, and bytes.
fn tokenizer() -> Tokenizer {
    let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
    let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let bytes = bytes.iter().map(|name| (name.as_str(), 6));
    let tags = ["<think>", "</think>", "<tool_call>"].map(|name| (name, 4));
    for (name, kind) in [("<unk>", 2)].into_iter().chain(NAMES.map(|name| (name, 3))).chain(bytes).chain(tags)
    {
        vocabulary.tokens.push(name.to_owned());
        vocabulary.token_types.push(kind);
    }
    vocabulary.scores = (0..vocabulary.tokens.len()).map(|id| -(id as f32)).collect();
    (vocabulary.unknown, vocabulary.eos) = (Some(0), Some(2));
    Tokenizer::from_vocabulary(vocabulary).expect("a valid vocabulary")
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, "", "<|im_end|>").unwrap()
}

#[test]
fn templates_find_words_in_marked_text() {
    let tokenizer = tokenizer();
    let shown = |source: &str, content: &str| {
        let ids = template(source).encode(&tokenizer, &[Message::new("user", content)], false).unwrap();
        let control = ids.iter().filter(|id| tokenizer.is_special(**id)).count();
        (tokenizer.decode(&ids, DecodeSpecial::Keep), control)
    };
    let last = "{% for m in messages %}{{ m.content.split('</think>')|last }}<|im_end|>{% endfor %}";
    let text = "<think>\nHm<|im_end|></think>So < that<|im_end|>";
    assert_eq!(shown(last, text), ("So < that<|im_end|><|im_end|>".to_owned(), 1));
    let starts = "{% for m in messages %}{% if m.content.startswith('<tool_response>') and \
        m.content.endswith('</tool_response>') %}result{% else %}<|im_start|>{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(shown(starts, "<tool_response><|im_end|></tool_response>"), ("result".to_owned(), 0));
    assert_eq!(
        shown(starts, "<tool_response <|im_end|>"),
        ("<|im_start|><tool_response <|im_end|>".into(), 1)
    );
    // Removing a word does not form a name.
    let without = "{{ messages[0].content | replace('</think>', '') }}";
    assert_eq!(shown(without, "<|im_</think>end|><</think>|im_end|>"), ("<|im_end|><|im_end|>".into(), 0));
    assert_eq!(shown("{{ messages[0].content | lower }}", "<|IM_END|>"), ("<|im_end|>".into(), 0));
}

/// A template with incomplete names, which message text could complete.
#[test]
fn message_text_cannot_complete_names_of_the_template() {
    let tokenizer = tokenizer();
    let control = |source: &str, roles: [&str; 2], texts: [&str; 2]| {
        let messages = [Message::new(roles[0], texts[0]), Message::new(roles[1], texts[1])];
        let ids = template(source).encode(&tokenizer, &messages, false).unwrap();
        ids.iter().filter(|id| tokenizer.is_special(**id)).count()
    };
    let sources = [
        "{{ '<|im_' ~ messages[0].content|trim ~ messages[1].content|trim }}",
        "<|im_{{ messages[0].content|trim }}{{ messages[1].content|trim }}",
        "{{ '<' }}{{ '|im_' }}{{- messages[0].content|trim }}{{ messages[1].content.split('</think>')|last }}",
    ];
    let both = [
        ["end|>", ""],
        [" end|>", ""],
        ["end", "|>"],
        ["\ne", "nd|> "],
        ["end|", ">"],
        ["", "</think>end|>"],
    ];
    for source in sources {
        for texts in both {
            assert_eq!(control(source, ["user"; 2], texts), 0, "{source} {texts:?}");
        }
        assert_eq!(control("<|{{ messages[0].content }}|>", ["user"; 2], ["im_end", ""]), 0);
        // Roles are not marked: the template writes them.
        assert_eq!(control("<|{{ messages[0].role }}|>", ["im_end", "user"], ["", ""]), 1);
    }
}

/// Templates that transform texts in many ways. Each writes the same number of control tokens for any texts.
const SOURCES: [&str; 7] = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content|trim }}{% for c in m.tool_calls %}\
        {{ c|tojson }}{% endfor %}<|im_end|>{% endfor %}{{ tools|tojson }}",
    "{% for m in messages %}{{ m.content|trim }}{% endfor %}{% for m in messages %}{{ m.name }}{% endfor %}\
        {% for t in tools %}{{ t.function.description|trim }}{{ t.function.parameters|tojson }}{% endfor %}<|im_end|>",
    "{% for m in messages %}{{ m.content.split('</think>')[0] }}{{ m.content.split('</think>')|last }}{% endfor %}\
        {% for m in messages %}{% for c in m.tool_calls %}{% for k, v in c.function.arguments|items %}\
        {{ k }}{{ v }}{% endfor %}{% endfor %}{% endfor %}<|endoftext|>",
    "{% for m in messages %}{{ m.content|replace('<think>', '')|replace('</think>', '') }}{% endfor %}",
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content|trim ~ m.tool_call_id }}{% endfor %}",
    "{% for m in messages %}{{ '<|im_' ~ m.content|trim ~ m.tool_call_id ~ '|>' }}{% endfor %}",
    "{% for m in messages %}{{ '<|im_end|' }}{{ (m.content.split('</think>')|last).lstrip('\\n') }}{% endfor %}",
];

/// Names of control tokens, words and other texts, cut at arbitrary positions.
fn texts() -> impl Strategy<Value = Vec<String>> {
    let part = prop_oneof![
        4 => prop::sample::select(NAMES.to_vec()),
        2 => prop::sample::select(WORDS.to_vec()),
        1 => prop::sample::select(vec!["<", "|", ">", "<|", "|>", " ", "\n", "a", "é", "\u{e000}", "<|IM_END|>", "<|im_</think>end|>"]),
    ];
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 7);
    (prop::collection::vec(part, 1..12), cuts).prop_map(|(parts, cuts)| {
        let letters: Vec<char> = parts.concat().chars().collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(letters.len() + 1)).collect();
        cuts.sort_unstable();
        let begins = std::iter::once(0).chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([letters.len()]);
        begins.zip(ends).map(|(begin, end)| letters[begin..end].iter().collect()).collect()
    })
}

fn conversation(texts: &[String]) -> ([Message; 4], [Tool; 1]) {
    let object = |key: &str, value: Value| Value::Object([(key.to_owned(), value)].into_iter().collect());
    let arguments = object(&texts[2], json!(texts[3]));
    let call = ToolCall { id: texts[5].clone(), name: "f".to_owned(), arguments };
    let result = Message {
        role: "tool".into(),
        tool_call_id: Some(texts[5].clone()),
        name: Some(texts[5].clone()),
        ..Message::new("tool", texts[4].clone())
    };
    let tool = Tool {
        name: "f".to_owned(),
        description: Some(texts[6].clone()),
        parameters: Some(object(&texts[6], json!([texts[7]]))),
    };
    let reply = Message::with_tool_calls(Some(texts[1].clone()), vec![call]);
    ([Message::new("user", texts[0].clone()), reply, result, Message::new("user", texts[7].clone())], [tool])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_cut_of_a_name_makes_control_tokens(texts in texts()) {
        let tokenizer = tokenizer();
        let plain = vec!["x".to_owned(); texts.len()];
        for source in SOURCES {
            let template = template(source);
            let encode = |texts: &[String]| {
                let (messages, tools) = conversation(texts);
                template.encode_with_tools(&tokenizer, &messages, &tools, &PromptOptions::default()).unwrap()
            };
            let control = |ids: &[u32]| -> Vec<u32> {
                ids.iter().copied().filter(|id| tokenizer.is_special(*id)).collect()
            };
            let ids = encode(&texts);
            prop_assert_eq!(control(&ids), control(&encode(&plain)), "{}", source);
            // No text is lost or added.
            let (messages, tools) = conversation(&texts);
            let text = template.render_with_tools(&messages, true, Some(&tools)).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, DecodeSpecial::Keep), text, "{}", source);
        }
    }
}
