//! `indrik generate`: one completion.

use std::{
    io::{IsTerminal, Read},
    process::ExitCode,
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use indrik::{Completion, FinishReason, GenerateOptions, GenerationEvent, ModelFiles, Prompt, PromptImage};
use model::Sampling;
use serde_json::json;
use text::StopMatcher;

use crate::{
    energy::PowerProbe, images::ImageArguments, loading::ModelArguments, output, sampling::SamplingArguments,
    speed::Speed,
};

/// Complete a text and print the measured speed
#[derive(Args)]
#[command(after_help = "Examples:\n  indrik generate -m gemma3:270m -p \"The mitochondria is\"\n  \
                        indrik generate -m gemma-3-1b-it.gguf -p \"Once upon a time\" -n 200 -t 0.8 --seed 7\n  \
                        indrik generate -m gemma3:4b --image photo.jpg -p \"The picture shows\"\n  \
                        echo \"The capital of France is\" | indrik generate -m gemma3:270m --json")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Prompt (default: standard input, unless --ids is given)
    #[arg(short, long, value_name = "TEXT", conflicts_with = "ids")]
    prompt: Option<String>,
    /// Prompt as token ids, used as they are, as in 2,818,66673
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with = "image")]
    ids: Option<Vec<u32>>,
    #[command(flatten)]
    images: ImageArguments,
    /// Maximum number of tokens to generate
    #[arg(short, long = "tokens", value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// Stop before this text; repeatable
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Context length in tokens, prompt and completion together (default: as long as needed)
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Continue past the model's stop tokens
    #[arg(long)]
    ignore_end: bool,
    /// Print one JSON object: prompt_ids, tokens, text and measured speed
    #[arg(long)]
    json: bool,
}

/// How often Ctrl-C is checked and the progress line updated while nothing is generated.
const POLL: Duration = Duration::from_millis(50);

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let files = arguments.model.open()?;
    // Invalid arguments are reported before the model is loaded. Token ids need no tokenizer.
    let language = match (files.language(), &arguments.ids) {
        (Ok(language), _) => Some(language),
        (Err(indrik::Error::Model(model::Error::NoTokenizer { .. })), Some(_)) => None,
        (Err(error), _) => return Err(error.into()),
    };
    if language.is_none() && !arguments.stop.is_empty() {
        bail!("--stop needs a tokenizer, and {} has none", files.path().display());
    }
    let (prompt, images) = match (&arguments.ids, &language) {
        (Some(ids), _) => (ids.clone(), vec![]),
        (None, Some(language)) => {
            let images = arguments.images.read(language)?;
            (PromptImage::encode_prompt(language, &prompt_text(arguments)?, &images)?, images)
        }
        (None, None) => unreachable!("without ids there is a tokenizer or an error"),
    };
    check(&files, arguments, &prompt)?;
    let sampling = arguments.sampling.sampling(&Sampling::default());
    sampling.check(files.config().vocab)?;
    StopMatcher::new(&arguments.stop)?;
    let context_length = match arguments.context {
        Some(context) => files.check_context_length(context as usize)?,
        // The last token is never fed back.
        None => files.check_context_length(prompt.len() + arguments.n as usize - 1)?,
    };

    let (model, prepared) = arguments.model.load(&files, context_length, prompt.len(), &sampling)?;
    let options = GenerateOptions {
        max_tokens: Some(arguments.n),
        sampling: sampling.clone(),
        stop: arguments.stop.clone(),
        stop_token_ids: arguments.ignore_end.then(Vec::new),
        ..GenerateOptions::default()
    };
    let power = PowerProbe::start(&model.load_report().device);
    let mut decode = None;
    let mut generation = model.generate(Prompt::IdsWithImages { ids: prompt.clone(), images }, options)?;
    let control = output::control();
    let mut progress = output::Progress::new();
    loop {
        match generation.next_event(POLL)? {
            GenerationEvent::Waiting { prefilled } if prefilled > 0 && prefilled < prompt.len() => {
                progress.show(&format!("prefilled {prefilled} of {} tokens", prompt.len()));
            }
            GenerationEvent::Waiting { .. } => {}
            GenerationEvent::Piece(piece) => {
                progress.clear();
                decode.get_or_insert_with(|| power.begin());
                if !arguments.json {
                    match (&language, &piece.token) {
                        (None, Some(token)) => output::print(&format!("{} ", token.id))?,
                        _ => output::print(&piece.text)?,
                    }
                }
            }
            GenerationEvent::Finished(_) => break,
        }
        if control.cancel.load(Ordering::Relaxed) {
            generation.cancel();
        }
    }
    let mut decode = decode.unwrap_or_default();
    power.end(&mut decode);
    drop(progress);
    let Completion { text, ids, finish_reason, mut timings } = generation.finish_completion()?;
    timings.setup += prepared.time;
    let cancelled = finish_reason == FinishReason::Cancelled;
    if !arguments.json {
        output::print("\n")?;
    }
    let speed = Speed::measure(&model, &timings, &decode)?;
    let report = model.load_report();
    if arguments.json {
        let finish = match finish_reason {
            FinishReason::StopToken => "end",
            FinishReason::StopString => "stop",
            FinishReason::MaxTokens => "length",
            FinishReason::ContextLength => "context",
            FinishReason::Cancelled => "cancelled",
        };
        output::print_json(&json!({
            "model": files.path(), "device": report.device.name, "driver": report.device.driver,
            "prompt_ids": prompt, "tokens": ids, "text": language.is_some().then_some(text),
            "finish": finish, "sampling": sampling, "load_seconds": report.seconds, "tuning": report.tuned,
            "speed": speed,
        }))?;
    } else {
        let note = match finish_reason {
            FinishReason::Cancelled => " (cancelled)",
            FinishReason::MaxTokens => " (max tokens reached)",
            FinishReason::ContextLength => " (context full)",
            FinishReason::StopToken | FinishReason::StopString => "",
        };
        note!("\n{}, loaded in {:.1} s\n{speed}{note}", report.device.name, report.seconds);
    }
    Ok(if cancelled { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// Checks the prompt before the model is loaded.
fn check(files: &ModelFiles, arguments: &Arguments, prompt: &[u32]) -> anyhow::Result<()> {
    let config = files.config();
    // A text that encodes to nothing but the beginning-of-sequence token is empty.
    let only_bos = arguments.ids.is_none() && prompt.iter().all(|token| Some(*token) == config.bos);
    if only_bos {
        return Err(model::Error::EmptyPrompt.into());
    }
    let context_length = arguments.context.unwrap_or(config.max_positions);
    Ok(model::check_tokens(config, 0, prompt, context_length)?)
}

fn prompt_text(arguments: &Arguments) -> anyhow::Result<String> {
    if let Some(prompt) = &arguments.prompt {
        return Ok(prompt.clone());
    }
    if std::io::stdin().is_terminal() {
        bail!("no prompt: give one with -p TEXT, --ids IDS or on standard input");
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("standard input is not UTF-8 (byte {at}): convert it first, for example with iconv")
    })?;
    // The newline that `echo` adds is not part of the prompt.
    Ok(text.strip_suffix('\n').map_or(text.clone(), str::to_string))
}
