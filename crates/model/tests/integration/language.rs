//! Tokenizer, chat template and stop tokens from a model's files.

use crate::common::{Fixture, NAMES};
use checkpoint::Checkpoint;
use model::language::Language;
use text::{DecodeSpecial, Message};

fn with_text() -> impl Iterator<Item = (Fixture, Language)> {
    let fixtures = NAMES.into_iter().map(Fixture::open);
    fixtures.filter(|fixture| fixture.reference.get("text").is_some()).map(|fixture| {
        let language = Language::from_checkpoint(&Checkpoint::open(&fixture.path).unwrap());
        let language = language.unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
        (fixture, language)
    })
}

#[test]
fn texts_have_the_tokens_of_the_reference() {
    let mut count = 0;
    for (fixture, language) in with_text() {
        let (text, greedy_text) = (&fixture.reference["text"], &fixture.reference["greedy_text"]);
        assert_eq!(
            language.tokenizer.encode_prompt(text.as_str().unwrap()),
            fixture.ids,
            "{}: {text}",
            fixture.name
        );
        let decoded = language.tokenizer.decode(&fixture.list("greedy"), DecodeSpecial::Skip);
        assert_eq!(decoded, greedy_text.as_str().unwrap(), "{}", fixture.name);
        count += 1;
    }
    assert_eq!(count, 21);
}

#[test]
fn conversations_follow_each_models_template() {
    for (fixture, language) in with_text() {
        assert!(language.own_template, "{}", fixture.name);
        let template = language.template.as_ref().unwrap();
        let ids = template.encode(&language.tokenizer, &[Message::new("user", "the cat")], true).unwrap();
        let names: Vec<_> = ids.iter().map(|id| language.tokenizer.token_name(*id).unwrap()).collect();
        let (begin, end): (&[&str], &str) = match names[0].as_ref() {
            "<s>" => (&["<s>", "[INST]"], "[/INST]"),
            "<bos>" if names[1] == "<|turn>" => (&["<bos>", "<|turn>"], "<turn|>"),
            "<bos>" => (&["<bos>", "<start_of_turn>"], "<end_of_turn>"),
            "<|begin_of_text|>" => (&["<|begin_of_text|>", "<|start_header_id|>"], "<|eot_id|>"),
            "<|im_start|>" => (&["<|im_start|>"], "<|im_end|>"),
            other => panic!("{}: {other}", fixture.name),
        };
        assert!(names.starts_with(&begin.iter().map(|name| (*name).into()).collect::<Vec<_>>()), "{names:?}");
        // Exactly once, as a control token and not as its characters.
        let count = names.iter().filter(|name| **name == end).count();
        assert_eq!(count, 1, "{}: {names:?}", fixture.name);
        // Mistral's replies end with another token than its users' turns.
        let end = if end == "[/INST]" { "</s>" } else { end };
        let end = language.tokenizer.token_id(end).unwrap();
        assert!(language.stop_token_ids.contains(&end), "{}: {:?}", fixture.name, language.stop_token_ids);
    }
}
