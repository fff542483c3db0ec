//! Gemma 4's vocabulary, from the GGUF in `INDRIK_TEST_GEMMA4`: tool calls as the model tokenises them are accepted.

use crate::common;
use grammar::{GrammarCompiler, NonCallOutput, ToolCallGrammar, ToolSpec};
use serde_json::json;
use text::{CallSyntax, ChatTemplate, EncodeSpecial, Tokenizer, ToolSupport};

const TEMPLATE: &str = include_str!("../../../text/tests/templates/gemma4.jinja");

#[test]
fn tool_calls_are_accepted_as_the_model_tokenises_them() {
    let Some(path) = common::path_from_env("INDRIK_TEST_GEMMA4", "a GGUF of Gemma 4") else { return };
    let tokenizer = Tokenizer::from_vocabulary(common::vocabulary(&path).0).unwrap();
    let vocab = tokenizer.vocab_size() as u32;
    let compiler = GrammarCompiler::new(&tokenizer, vocab, tokenizer.stop_token_ids()).unwrap();
    let template = ChatTemplate::new(TEMPLATE, "<bos>", "<eos>").unwrap();
    let ToolSupport::Format(format) = template.tool_support(&tokenizer) else {
        panic!("no tool-call format")
    };
    assert_eq!((format.syntax, format.control_trigger()), (CallSyntax::Gemma4, Some(("<|tool_call>", 48))));
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" }, "days": { "type": "integer", "minimum": 1 }, "units": { "enum": ["metric", "imperial"] },
            "tags": { "type": "array", "items": { "type": "string" } },
            "place": { "type": "object", "properties": { "lat": { "type": "number" }, "lon": { "type": "number" } }, "required": ["lat", "lon"] },
        },
        "required": ["city"],
    });
    let tool = ToolSpec { index: 0, name: "get_weather".into(), parameters: Some(parameters), strict: true };
    for without_calls in [NonCallOutput::Text, NonCallOutput::Forbidden] {
        let lead = if without_calls == NonCallOutput::Text { "Let me see.\n" } else { "" };
        let calls = ToolCallGrammar {
            format: format.clone(),
            tools: vec![tool.clone()],
            parallel: true,
            without_calls,
        };
        let grammar = compiler.tool_calls(&calls).unwrap();
        for arguments in [
            "{city:<|\"|>Paris<|\"|>}",
            "{city:<|\"|>São Paulo, \"SP\" {x}\n<b> 鳥<|\"|>,days:12,units:<|\"|>metric<|\"|>}",
            "{city:<|\"|><|\"|>,place:{lat:-1.5,lon:20},tags:[<|\"|>a, b<|\"|>,<|\"|>c<|\"|>]}",
        ] {
            let call = format!("<|tool_call>call:get_weather{arguments}<tool_call|>");
            let text = format!("{lead}{call}{call}");
            let mut matcher = grammar.matcher();
            let mut words = vec![0; vocab.div_ceil(32) as usize];
            for id in tokenizer.encode(&text, EncodeSpecial::Parse) {
                matcher.mask(&mut words).unwrap();
                let name = tokenizer.token_name(id).unwrap();
                assert!(words[id as usize / 32] >> (id % 32) & 1 == 1, "{name:?} is not allowed in {text}");
                matcher.accept(id).unwrap();
            }
            matcher.mask(&mut words).unwrap();
            // The end of the turn, or a request for the result.
            assert!([106, 50].iter().all(|id| words[id / 32] >> (id % 32) & 1 == 1), "{text}");
        }
    }
}
