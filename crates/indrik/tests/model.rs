//! The library with a tiny model: streams, conversations, cancellation, and concurrent requests.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use indrik::{
    Error, FinishReason, GenerateOptions, GenerationEvent, Model, ModelFiles, Options, Prompt, Sampling,
};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/fixtures").join(name)
}

fn open(options: Options) -> Option<Model> {
    testkit::cpu_device()?;
    Some(Model::open(fixture("llama_tied").to_str().unwrap(), options).unwrap())
}

fn reference() -> Value {
    let path = fixture("llama_tied").join("reference.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn with_max_tokens(max_tokens: u32) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(max_tokens), ..GenerateOptions::default() }
}

#[test]
fn errors_are_reported_before_the_device_is_opened() {
    assert!(matches!(ModelFiles::open("no-such-model"), Err(Error::Store(_))));
    let files = ModelFiles::open(fixture("llama_tied").to_str().unwrap()).unwrap();
    let max = files.config().max_positions as usize;
    assert_eq!(files.check_context_length(max).unwrap() as usize, max);
    assert!(matches!(files.check_context_length(max + 1), Err(Error::Model(_))));
}

#[test]
fn a_text_and_its_ids_give_the_same_completion() {
    let Some(model) = open(Options::default()) else { return };
    let reference = reference();
    let greedy = ids(&reference["greedy"]);
    let text = reference["text"].as_str().unwrap();
    let from_text =
        model.generate(text, with_max_tokens(greedy.len() as u32)).unwrap().finish_completion().unwrap();
    assert_eq!(from_text.ids, greedy);
    assert_eq!(from_text.text, reference["greedy_text"].as_str().unwrap());
    assert_eq!(from_text.finish_reason, FinishReason::MaxTokens);
    let timings = from_text.timings;
    assert_eq!((timings.cached_tokens, timings.decode_tokens), (0, greedy.len() - 1));
    assert_eq!(timings.prefilled_tokens, ids(&reference["ids"]).len());

    let prompt = Prompt::Ids(ids(&reference["ids"]));
    let again =
        model.generate(prompt, with_max_tokens(greedy.len() as u32)).unwrap().finish_completion().unwrap();
    assert_eq!(again.ids, greedy);
}

#[test]
fn stop_strings_end_a_completion_and_are_not_part_of_it() {
    let Some(model) = open(Options::default()) else { return };
    let reference = reference();
    let greedy = reference["greedy_text"].as_str().unwrap();
    let stop: String = greedy.chars().skip(2).take(3).collect();
    let options = GenerateOptions { stop: vec![stop.clone()], ..with_max_tokens(24) };
    let text = reference["text"].as_str().unwrap();
    let completion = model.generate(text, options).unwrap().finish_completion().unwrap();
    assert_eq!(completion.finish_reason, FinishReason::StopString);
    assert_eq!(completion.text, greedy.split(&stop).next().unwrap());
    assert!(matches!(model.generate(text, with_max_tokens(0)), Err(Error::NoTokensRequested)));
}

#[test]
fn a_cancelled_completion_keeps_its_text_and_the_next_one_runs() {
    let Some(model) = open(Options::default()) else { return };
    let reference = reference();
    let text = reference["text"].as_str().unwrap();
    let options = GenerateOptions { stop_token_ids: Some(vec![]), ..GenerateOptions::default() };
    let mut generation = model.generate(text, options).unwrap();
    let first = generation.next().unwrap().unwrap();
    generation.cancel();
    let completion = generation.finish_completion().unwrap();
    assert_eq!(completion.finish_reason, FinishReason::Cancelled);
    assert_eq!(completion.ids, [first.token.unwrap().id]);
    let next = model.generate(text, with_max_tokens(2)).unwrap().finish_completion().unwrap();
    assert_eq!(next.ids, ids(&reference["greedy"])[..2]);
}

#[test]
fn threads_share_the_batch_while_logits_are_computed() {
    let Some(model) = open(Options { max_sequences: 3, ..Options::default() }) else { return };
    let reference = reference();
    let greedy = ids(&reference["greedy"]);
    let prompt = ids(&reference["ids"]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let options = with_max_tokens(greedy.len() as u32);
                let completion = model.generate(prompt.as_slice(), options).unwrap().finish_completion();
                assert_eq!(completion.unwrap().ids, greedy);
            });
        }
        let rows = model.logits(&prompt).unwrap();
        assert_eq!((rows.len(), rows[0].len() as u32), (prompt.len(), model.capacity().vocab_size));
        let last = rows.last().unwrap();
        let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
        assert_eq!(best as u32, greedy[0]);
    });
}

#[test]
fn a_conversation_keeps_its_messages_and_reuses_the_prefix_cache() {
    let Some(model) = open(Options::default()) else { return };
    let mut chat = model.chat().unwrap();
    chat.system = Some("the stone the user the cat were singing on the stone".repeat(3));
    chat.options.sampling = Sampling::default();
    chat.options.max_tokens = Some(4);
    let first = chat.send("the cat").unwrap().finish().unwrap();
    assert_eq!(first.message.role, "assistant");
    assert_eq!(chat.messages().len(), 2);
    // A reply that is dropped leaves no trace.
    drop(chat.send("forget this").unwrap());
    assert_eq!(chat.messages().len(), 2);
    let second = chat.send("the dog").unwrap().finish().unwrap();
    assert_eq!(chat.messages().len(), 4);
    assert!(second.timings.cached_tokens >= 64, "{:?}", second.timings);
    chat.clear();
    assert!(matches!(chat.reply().map(|_| ()), Err(Error::EmptyChat)));
}

#[test]
fn waiting_reports_progress_and_dropping_the_model_stops_the_engine() {
    let Some(model) = open(Options::default()) else { return };
    let reference = reference();
    let text = reference["text"].as_str().unwrap();
    let mut generation = model.generate(text, with_max_tokens(1)).unwrap();
    let mut waited = 0;
    loop {
        match generation.next_event(Duration::ZERO).unwrap() {
            GenerationEvent::Waiting { prefilled } => {
                assert!(prefilled <= generation.prompt_ids().len());
                waited += 1;
            }
            GenerationEvent::Piece(_) => {}
            GenerationEvent::Finished(reason) => {
                assert_eq!(reason, FinishReason::MaxTokens);
                break;
            }
        }
    }
    assert!(waited > 0);
    drop(generation);
    let engine = model.engine().unwrap();
    drop(model);
    assert!(engine.status().draining);
}
