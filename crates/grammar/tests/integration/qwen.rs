//! Qwen 2.5's vocabulary and chat template, from the GGUF in `INDRIK_TEST_QWEN`: a tool call as the model
//! tokenises it is accepted. Prints the time per mask.

use crate::common;
use std::time::{Duration, Instant};

use grammar::{GrammarCompiler, NonCallOutput, ToolCallGrammar, ToolSpec};
use serde_json::json;
use text::{ChatTemplate, EncodeSpecial, Tokenizer, ToolSupport};

#[test]
fn a_tool_call_is_accepted_as_the_model_tokenises_it() {
    let Some(path) = common::path_from_env("INDRIK_TEST_QWEN", "a GGUF of Qwen 2.5") else { return };
    let (vocabulary, template) = common::vocabulary(&path);
    let tokenizer = Tokenizer::from_vocabulary(vocabulary).unwrap();
    let template = ChatTemplate::new(&template.unwrap(), "", "<|im_end|>").unwrap();
    let ToolSupport::Format(format) = template.tool_support(&tokenizer) else {
        panic!("no tool-call format")
    };
    let vocab = tokenizer.vocab_size() as u32;
    let compiler = GrammarCompiler::new(&tokenizer, vocab, tokenizer.stop_token_ids()).unwrap();
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
        "required": ["city"],
    });
    let tool = |index, name: &str| ToolSpec {
        index,
        name: name.into(),
        parameters: Some(parameters.clone()),
        strict: false,
    };
    let tools = vec![tool(0, "get_weather"), tool(1, "get_time")];
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich 鳥\", \"days\": 3}}\n</tool_call>";
    let prose = "Let me look that up: is 3 < 4? `a <tool>`\n";
    for (without_calls, text) in [
        (NonCallOutput::Forbidden, format!("{call}\n{call}")),
        (NonCallOutput::Text, format!("{prose}{call}")),
        (NonCallOutput::Text, format!("{prose}{}", prose.repeat(5))),
    ] {
        let calls =
            ToolCallGrammar { format: format.clone(), tools: tools.clone(), parallel: true, without_calls };
        let start = Instant::now();
        let grammar = compiler.tool_calls(&calls).unwrap();
        eprintln!("compiled the tools in {:?}", start.elapsed());
        let mut matcher = grammar.matcher();
        let mut words = vec![0; vocab.div_ceil(32) as usize];
        let mut times = vec![];
        for id in tokenizer.encode(&text, EncodeSpecial::AsText) {
            let start = Instant::now();
            matcher.mask(&mut words).unwrap();
            times.push(start.elapsed());
            let bytes = String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap());
            assert!(words[id as usize / 32] >> (id % 32) & 1 == 1, "{bytes:?} is not allowed in {text}");
            matcher.accept(id).unwrap();
        }
        matcher.mask(&mut words).unwrap();
        let stop = tokenizer.stop_token_ids()[0];
        assert!(words[stop as usize / 32] >> (stop % 32) & 1 == 1, "no stop token is allowed after {text}");
        times.sort_unstable();
        let [median, max] = [times[times.len() / 2], times[times.len() - 1]];
        let mean = times.iter().sum::<Duration>() / times.len() as u32;
        eprintln!("{} masks: median {median:?}, mean {mean:?}, max {max:?}", times.len());
    }
}
