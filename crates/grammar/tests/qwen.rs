//! The real vocabulary and template of Qwen 2.5, of a GGUF that `INDRIK_TEST_QWEN` names: a call as the model cuts it into tokens is followed, and
//! quickly.

#[path = "../../text/tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use grammar::{Callable, Calls, Grammars, Otherwise};
use serde_json::json;
use text::{ChatTemplate, Special, Tokenizer, ToolUse};

#[test]
fn a_call_is_followed_in_the_tokens_that_the_model_writes() {
    let Some(path) = common::named("INDRIK_TEST_QWEN", "calls in the vocabulary of Qwen 2.5") else { return };
    let (vocabulary, template) = common::vocabulary(&path);
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    let template = ChatTemplate::new(&template.unwrap(), "", "<|im_end|>").unwrap();
    let ToolUse::Form(form) = template.tool_use(&tokenizer) else { panic!("a form") };
    let vocab = tokenizer.vocab_len() as u32;
    let grammars = Grammars::new(&tokenizer, vocab, tokenizer.ends()).unwrap();
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
        "required": ["city"],
    });
    let tool = |at, name: &str| Callable {
        at,
        name: name.into(),
        parameters: Some(parameters.clone()),
        strict: false,
    };
    let tools = vec![tool(0, "get_weather"), tool(1, "get_time")];
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich 鳥\", \"days\": 3}}\n</tool_call>";
    let said = "Let me look that up: is 3 < 4? `a <tool>`\n";
    for (otherwise, text) in [
        (Otherwise::Nothing, format!("{call}\n{call}")),
        (Otherwise::Text, format!("{said}{call}")),
        (Otherwise::Text, format!("{said}{}", said.repeat(5))),
    ] {
        let calls = Calls { form: form.clone(), tools: tools.clone(), parallel: true, otherwise };
        let start = Instant::now();
        let grammar = grammars.calls(&calls).unwrap();
        eprintln!("the tools: {:?}", start.elapsed());
        let mut matcher = grammar.matcher();
        let mut words = vec![0; vocab.div_ceil(32) as usize];
        let mut times = vec![];
        for id in tokenizer.encode(&text, Special::AsText) {
            let start = Instant::now();
            matcher.mask(&mut words).unwrap();
            times.push(start.elapsed());
            let bytes = String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap());
            assert!(words[id as usize / 32] >> (id % 32) & 1 == 1, "{bytes:?} of {text} is not allowed");
            matcher.accept(id).unwrap();
        }
        matcher.mask(&mut words).unwrap();
        let end = tokenizer.ends()[0];
        assert!(words[end as usize / 32] >> (end % 32) & 1 == 1, "{text} may not end");
        times.sort_unstable();
        let [median, longest] = [times[times.len() / 2], times[times.len() - 1]];
        let mean = times.iter().sum::<Duration>() / times.len() as u32;
        eprintln!("{} masks: median {median:?}, mean {mean:?}, longest {longest:?}", times.len());
    }
}
