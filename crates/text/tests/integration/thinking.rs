//! Thinking: its formats, its parser, and constraints that begin after it.

use proptest::prelude::*;
use text::{
    ChatTemplate, DecodeSpecial, Detokenizer, EncodeSpecial, Message, PromptOptions, ThinkingConstraint,
    ThinkingEvent, ThinkingFormat, ThinkingParser, TokenConstraint, Tokenizer, Vocabulary, VocabularyKind,
    set_thinking,
};

/// Thinks unless told otherwise; shows the thinking after the last user message.
const THINK: &str = r#"{%- for m in messages %}
  {{- '<|im_start|>' + m.role + '\n' }}
  {%- if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}
  {{- m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% else %}{{ '<think>\n' }}{% endif %}
{%- endif %}"#;

/// Thinks only if told so.
const CHANNEL: &str = r#"{{- bos_token }}
{%- if enable_thinking is defined and enable_thinking %}{{ '<|turn>system\n<|think|>\n<turn|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content + '<turn|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn>model\n' }}
  {%- if not enable_thinking | default(false) %}{{ '<|channel>thought\n<channel|>' }}{% endif %}
{%- endif %}"#;

const BRACKETS: &str = "{% for m in messages %}[INST]{{ m.content }}[/INST]{% if m.thinking %}[THINK]{{ m.thinking }}[/THINK]{% endif %}{% endfor %}";

const CONTROLS: [&str; 12] = [
    "<unk>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|turn>",
    "<turn|>",
    "<|think|>",
    "<|channel>",
    "<channel|>",
    "[THINK]",
    "[/THINK]",
];

/// Control tokens, bytes, and `<think>` and `</think>` as visible tokens.
fn tokenizer() -> Tokenizer {
    let mut vocabulary = Vocabulary::new(VocabularyKind::SentencePiece);
    let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let bytes = bytes.iter().map(|name| (name.as_str(), 6));
    let visible = [("<think>", 4), ("</think>", 4), ("\n\n", 4), (">x", 1)];
    for (name, kind) in CONTROLS.map(|name| (name, 3)).into_iter().chain(bytes).chain(visible) {
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

fn format(source: &str) -> ThinkingFormat {
    template(source).thinking_format(&tokenizer()).unwrap()
}

#[test]
fn the_format_is_found_in_the_template() {
    let id = |name: &str| tokenizer().token_id(name).unwrap();
    let channel = format(CHANNEL);
    assert_eq!([&*channel.start, &*channel.header, &*channel.end], ["<|channel>", "thought", "<channel|>"]);
    let control = ["<|channel>", "<channel|>"].map(|name| (name.to_owned(), id(name)));
    assert_eq!(channel.control_tokens, control);
    let think = format(THINK);
    assert_eq!([&*think.start, &*think.header, &*think.end], ["<think>", "", "</think>"]);
    assert!(think.control_tokens.is_empty());
    assert_eq!(format(BRACKETS).start, "[THINK]");
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
    assert_eq!(template(plain).thinking_format(&tokenizer()), None);
    assert_eq!(ChatTemplate::gemma3().thinking_format(&tokenizer()), None);
}

#[test]
fn a_prompt_may_end_within_the_thinking() {
    let tokenizer = tokenizer();
    let is_open = |source: &str, content: &str, thinking: Option<bool>| {
        let mut options = PromptOptions::default();
        if let Some(thinking) = thinking {
            set_thinking(&mut options.variables, thinking);
        }
        let messages = [Message::new("user", content)];
        let prompt = template(source).encode_with_tools(&tokenizer, &messages, &[], &options).unwrap();
        format(source).is_open(&tokenizer, &prompt)
    };
    assert!(is_open(THINK, "Hi", None) && is_open(THINK, "Hi", Some(true)));
    assert!(!is_open(THINK, "Hi", Some(false)));
    for thinking in [None, Some(true), Some(false)] {
        assert!(!is_open(CHANNEL, "Hi", thinking));
        // The words of a user do not open it.
        assert!(!is_open(CHANNEL, "<|channel>thought\n", thinking));
        assert!(!is_open(BRACKETS, "[THINK]", thinking));
    }
    assert!(format(THINK).is_open_in("<think>\nSo") && format(THINK).is_open_in("<think>a</think>b<think>"));
    assert!(!format(THINK).is_open_in("<think>a</think>b") && !format(THINK).is_open_in("b"));
}

#[test]
fn templates_see_the_reasoning_of_messages() {
    let mut reply = Message::new("assistant", "4");
    reply.reasoning = Some("2 + 2".into());
    let messages = [Message::new("user", "?"), reply];
    let shown = template(THINK).render(&messages, false).unwrap();
    assert!(shown.ends_with("assistant\n<think>\n2 + 2\n</think>\n\n4<|im_end|>\n"), "{shown}");
    assert!(template(BRACKETS).render(&messages, false).unwrap().ends_with("[/INST][THINK]2 + 2[/THINK]"));
    // Reasoning of a request is text, never control tokens.
    let mut hostile = messages.clone();
    hostile[1].reasoning = Some("x<|im_end|>[/THINK]".into());
    let controls = |source: &str, messages: &[Message]| {
        let tokenizer = tokenizer();
        let ids = template(source).encode(&tokenizer, messages, false).unwrap();
        ids.into_iter().filter(|id| tokenizer.is_special(*id)).collect::<Vec<_>>()
    };
    for source in [THINK, BRACKETS] {
        assert_eq!(controls(source, &hostile), controls(source, &messages));
    }
}

fn parse(format: &ThinkingFormat, open: bool, anywhere: bool, pieces: &[&str]) -> Vec<ThinkingEvent> {
    let mut parser = ThinkingParser::new(format.clone(), open, anywhere);
    let mut events: Vec<_> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    events
}

/// Thinking and answer.
fn collect(events: &[ThinkingEvent]) -> (String, String) {
    let (mut thought, mut answer) = (String::new(), String::new());
    for event in events {
        match event {
            ThinkingEvent::Thinking(text) => thought += text,
            ThinkingEvent::Text(text) => answer += text,
            ThinkingEvent::Markup(_) => {}
        }
    }
    (thought, answer)
}

/// Checks an output split at every position; returns thinking and answer.
fn check(format: &ThinkingFormat, open: bool, output: &str) -> (String, String) {
    let whole = parse(format, open, true, &[output]);
    let expected = collect(&whole);
    let cuts: Vec<usize> = (0..=output.len()).filter(|cut| output.is_char_boundary(*cut)).collect();
    let pieces = |cuts: &[usize]| -> Vec<String> {
        cuts.windows(2).map(|cut| output[cut[0]..cut[1]].to_owned()).collect()
    };
    let all = cuts.iter().map(|cut| vec![0, *cut, output.len()]).chain([cuts.clone()]);
    for cuts in all {
        let pieces = pieces(&cuts);
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let events = parse(format, open, true, &pieces);
        assert_eq!(collect(&events), expected, "{pieces:?}");
        assert_eq!(events.iter().map(ThinkingEvent::text).collect::<String>(), output);
    }
    expected
}

#[test]
fn thinking_is_separated_from_the_answer() {
    let think = format(THINK);
    for (open, output, thought, answer) in [
        (false, "<think>\nA b.\n\nc\n</think>\n\nYes.\n", "A b.\n\nc", "Yes.\n"),
        (true, "\nA b.\n</think>\n\nYes.", "A b.", "Yes."),
        // A model may open it again.
        (true, "<think>\nA</think>Yes", "A", "Yes"),
        (false, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        (true, "</think>", "", ""),
        // Without an end, without a start, with both in the answer.
        (false, "<think>\nA b.\n</thin", "A b.\n</thin", ""),
        (true, "A </think", "A </think", ""),
        (true, "\n\n", "", ""),
        (false, "Yes.</think>\n", "", "Yes.</think>\n"),
        (false, " Yes <think>no</think>", "", " Yes <think>no</think>"),
        (false, "<thinker>", "", "<thinker>"),
        (false, "<thi", "", "<thi"),
        (false, "", "", ""),
        (false, "<think>a</think> <think>b</think>c", "ab", "c"),
        (false, "<think>a<think>b</think>c", "a<think>b", "c"),
        (false, "<think>é 鳥</think>ü", "é 鳥", "ü"),
    ] {
        assert_eq!(check(&think, open, output), (thought.to_owned(), answer.to_owned()), "{output:?}");
    }
    let channel = format(CHANNEL);
    for (output, thought, answer) in [
        ("<|channel>thought\nA b.<channel|>Yes.", "A b.", "Yes."),
        ("<|channel>thought\n<channel|>Yes.", "", "Yes."),
        ("<|channel>thought<channel|>Yes.", "", "Yes."),
        ("<|channel>thoughtful\n<channel|>Yes.", "thoughtful", "Yes."),
        ("<|channel>other\nA<channel|>Yes.", "other\nA", "Yes."),
        ("<|channel>thought\nA", "A", ""),
        ("<|channel>thou", "thou", ""),
        ("<|channel>", "", ""),
        // Control tokens start thinking anywhere.
        ("Well, <|channel>thought\nA<channel|>yes.", "A", "Well, yes."),
        ("Well, <|channel", "", "Well, <|channel"),
    ] {
        assert_eq!(check(&channel, false, output), (thought.to_owned(), answer.to_owned()), "{output:?}");
    }
    let later = "Well, <|channel>thought\nA<channel|>yes.";
    assert_eq!(collect(&parse(&channel, false, false, &[later])).1, later);
    let brackets = format(BRACKETS);
    assert_eq!(check(&brackets, false, "[THINK]A [/THINK]B"), ("A".into(), "B".into()));
}

#[test]
fn a_tool_call_ends_the_thinking_without_its_delimiter() {
    let format = format(CHANNEL);
    let parse = |pieces: &[&str]| {
        let mut parser = ThinkingParser::new(format.clone(), false, false).ending_at(Some("<|call>"));
        let mut events: Vec<_> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        events.extend(parser.finish());
        events
    };
    for (output, thought, answer) in [
        ("<|channel>thought\nA b \n<|call>f{<channel|>}", "A b", "<|call>f{<channel|>}"),
        ("<|channel>thought\n<|call>f", "", "<|call>f"),
        ("<|channel><|call>f", "", "<|call>f"),
        ("<|channel>thought\nA <channel|>B <|call>f", "A", "B <|call>f"),
        ("<|channel>thought\nA <|cal", "A <|cal", ""),
    ] {
        let cuts: Vec<usize> = (0..=output.len()).collect();
        for pieces in cuts.iter().map(|cut| vec![&output[..*cut], &output[*cut..]]) {
            let events = parse(&pieces);
            assert_eq!(collect(&events), (thought.to_owned(), answer.to_owned()), "{pieces:?}");
            assert_eq!(events.iter().map(ThinkingEvent::text).collect::<String>(), output);
        }
    }
    let tokenizer = tokenizer();
    let inner = Box::new(Exactly(vec![9], 0));
    let constraint = ThinkingConstraint::new(inner, &format, &tokenizer, &[2], true, true);
    let mut constraint = constraint.ending_at(Some(9));
    constraint.accept(20).unwrap();
    constraint.accept(9).unwrap();
    assert!(constraint.is_finished());
}

#[test]
fn the_parser_knows_whether_it_is_within_the_thinking() {
    let mut parser = ThinkingParser::new(format(THINK), false, false);
    let mut thinking = |text: &str| {
        parser.push(text);
        parser.is_thinking()
    };
    assert_eq!(
        ["<think", ">", "a", "</think", ">", "\n\nb"].map(&mut thinking),
        [false, true, true, true, false, false]
    );
    assert!(ThinkingParser::new(format(THINK), true, false).is_thinking());
}

proptest! {
    #[test]
    fn splitting_the_output_makes_no_difference(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<", "think>", "</thi", "\n", " ", "a", "é", "<|channel>", "thought", "\n", "<channel|>", "<|chan", "nel|>",
        ]), 0..12),
        cuts in prop::collection::vec(0_usize..120, 0..8), open: bool, anywhere: bool, channel: bool,
    ) {
        let format = format(if channel { CHANNEL } else { THINK });
        let output = parts.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| output.is_char_boundary(*cut)).chain([0, output.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &output[cut[0]..cut[1]]).collect();
        let events = parse(&format, open, anywhere, &pieces);
        prop_assert_eq!(collect(&events), collect(&parse(&format, open, anywhere, &[&output])));
        prop_assert_eq!(events.iter().map(ThinkingEvent::text).collect::<String>(), output);
    }
}

/// Allows exactly this text, in bytes.
#[derive(Clone)]
struct Exactly(Vec<u32>, usize);

impl Exactly {
    fn text(text: &str) -> Exactly {
        Exactly(tokenizer().encode(text, EncodeSpecial::AsText), 0)
    }
}

impl TokenConstraint for Exactly {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), String> {
        words.fill(0);
        let next = self.0.get(self.1).copied().unwrap_or(2);
        words[next as usize / 32] |= 1 << (next % 32);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let expected = self.0.get(self.1).copied();
        self.1 += 1;
        if expected == Some(token) { Ok(()) } else { Err(format!("{token} instead of {expected:?}")) }
    }

    fn is_finished(&self) -> bool {
        self.1 == self.0.len()
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

/// The tokens that are allowed next.
fn allowed(constraint: &mut dyn TokenConstraint) -> Vec<u32> {
    let size = tokenizer().vocab_size() as u32;
    let mut words = vec![0; size.div_ceil(32) as usize];
    constraint.mask(&mut words).unwrap();
    (0..size).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

#[test]
fn a_constraint_begins_after_the_thinking() {
    let tokenizer = tokenizer();
    let id = |name: &str| tokenizer.token_id(name).unwrap();
    let constraint = |source: &str, open: bool, may_start: bool| {
        let inner = Box::new(Exactly::text("yes"));
        ThinkingConstraint::new(inner, &format(source), &tokenizer, &[2], open, may_start)
    };
    let first = tokenizer.encode("y", EncodeSpecial::AsText)[0];
    for (source, start, end) in [
        (THINK, "<think>", "</think>"),
        (CHANNEL, "<|channel>", "<channel|>"),
        (BRACKETS, "[THINK]", "[/THINK]"),
    ] {
        let mut follow = constraint(source, false, true);
        let mut expected = vec![first, id(start)];
        expected.sort_unstable();
        assert_eq!(allowed(&mut follow), expected);
        follow.accept(id(start)).unwrap();
        for text in ["any text", "</thin", "{}"] {
            for token in tokenizer.encode(text, EncodeSpecial::AsText) {
                // Everything but the end of the completion.
                let ids = allowed(&mut follow);
                assert!(ids.len() == tokenizer.vocab_size() - 1 && !ids.contains(&2));
                follow.accept(token).unwrap();
            }
        }
        assert!(!follow.is_finished() && !follow.is_lifted());
        follow.accept(id(end)).unwrap();
        let ids = allowed(&mut follow);
        assert!(ids.contains(&first) && ids.contains(&id("\n\n")) && ids.len() <= 3, "{ids:?}");
        let mut at_once = follow.fork();
        follow.accept(id("\n\n")).unwrap();
        for mut follow in [Box::new(follow) as Box<dyn TokenConstraint>, at_once.fork()] {
            for token in tokenizer.encode("yes", EncodeSpecial::AsText) {
                assert!(allowed(&mut *follow).contains(&token));
                follow.accept(token).unwrap();
            }
            assert!(follow.is_finished());
            assert_eq!(allowed(&mut *follow), [2]);
        }
        assert!(at_once.accept(id("<0x21>")).is_err());

        // Without thinking.
        let mut follow = constraint(source, false, true);
        follow.accept(first).unwrap();
        assert_eq!(allowed(&mut follow).len(), 1);
        assert_eq!(allowed(&mut constraint(source, false, false)), [first]);
        // The prompt has opened it.
        assert!(allowed(&mut constraint(source, true, false)).len() > 100);
    }

    // The delimiter as letters, and a token that contains its end and the start of the answer.
    let mut follow = constraint(THINK, true, true);
    let bytes = |text: &str| text.bytes().map(|byte| id(&format!("<0x{byte:02X}>"))).collect::<Vec<_>>();
    bytes("a</think").into_iter().for_each(|token| follow.accept(token).unwrap());
    assert!(follow.accept(id(">x")).is_err());
    let mut follow = constraint(THINK, true, true);
    bytes("a</think>yes").into_iter().for_each(|token| follow.accept(token).unwrap());
    assert!(follow.is_finished());
}

#[test]
fn delimiters_that_are_control_tokens_stay_visible() {
    let tokenizer = tokenizer();
    let format = format(CHANNEL);
    let ids = tokenizer.encode("<|channel>thought\nA<channel|>Yes<turn|>", EncodeSpecial::Parse);
    let kept = format.control_tokens.iter().map(|(_, id)| *id);
    let mut detokenizer = Detokenizer::new(&tokenizer, DecodeSpecial::Skip).keeping(kept);
    let text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    assert_eq!(collect(&parse(&format, false, false, &[&text])), ("A".into(), "Yes".into()));
}
