//! `indrik generate`: one completion.

use std::{
    io::{IsTerminal, Read},
    ops::ControlFlow,
    process::ExitCode,
    sync::atomic::Ordering,
};

use anyhow::{Context, bail};
use clap::Args;
use model::{
    Sampling,
    generate::{Event, Finish, Request, generate},
};
use serde_json::json;
use text::{DecodeSpecial, Detokenizer, StopMatcher};

use crate::{
    loading::{ModelArguments, Opened, Outputs},
    output,
    sampling::SamplingArguments,
    speed::Speed,
};

/// Completes a text; ends with the speed that was measured
#[derive(Args)]
#[command(after_help = "Examples:\n  indrik generate -m gemma3:270m -p \"The mitochondria is\"\n  \
                        indrik generate -m gemma-3-1b-it.gguf -p \"Once upon a time\" -n 200 -t 0.8 --seed 7\n  \
                        echo \"The capital of France is\" | indrik generate -m gemma3:270m --json")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The text to go on from; from standard input where neither it nor --ids is given
    #[arg(short, long, value_name = "TEXT", conflicts_with = "ids")]
    prompt: Option<String>,
    /// Token ids in place of a text, as in 2,818,66673: taken as they are
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    ids: Option<Vec<u32>>,
    /// Most tokens to generate
    #[arg(short, long = "tokens", value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Positions that prompt and answer may have together (default: as many as they need)
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Go on where the model would end
    #[arg(long)]
    ignore_end: bool,
    /// Print one JSON object: prompt_ids, tokens, text and measured speeds
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let opened = arguments.model.open()?;
    // Ids need no tokenizer; where there is none they are all that is printed.
    let language = match (model::language::Language::of(&opened.checkpoint), &arguments.ids) {
        (Ok(language), _) => Some(language),
        (Err(model::Error::NoTokenizer { .. }), Some(_)) => None,
        (Err(error), _) => return Err(error.into()),
    };
    if language.is_none() && !arguments.stop.is_empty() {
        bail!("--stop needs a tokenizer, and {} has none", opened.checkpoint.path.display());
    }
    let prompt = match (&arguments.ids, &language) {
        (Some(ids), _) => ids.clone(),
        (None, Some(language)) => language.tokenizer.encode_prompt(&prompt_text(arguments)?),
        (None, None) => unreachable!("without ids there is a tokenizer or an error"),
    };
    check(&opened, arguments, &prompt)?;
    let sampling = arguments.sampling.sampling(&Sampling::default());
    sampling.check(opened.checkpoint.config.vocab)?;
    let mut stops = StopMatcher::new(&arguments.stop)?;
    let most = arguments.n as usize;
    let context = match arguments.context {
        Some(context) => opened.check_context(context as usize)?,
        // The last token of the answer is never read.
        None => opened.check_context(prompt.len() + most - 1)?,
    };
    let mut ends = match (&language, arguments.ignore_end) {
        (_, true) => vec![],
        (Some(language), false) => language.ends.clone(),
        (None, false) => opened.checkpoint.config.eos.clone(),
    };
    ends.sort_unstable();

    let mut loaded = opened.load(context, Outputs::Sampled)?;
    let mut sequence = loaded.runner.start()?;
    let control = output::control();
    let mut detokenizer =
        language.as_ref().map(|language| Detokenizer::new(&language.tokenizer, DecodeSpecial::Skip));
    let mut text = String::new();
    let mut progress = output::Progress::new();
    let mut failed = None;
    let request = Request { prompt: &prompt, most, sampling: &sampling, ends: &ends };
    let generated = generate(&mut loaded.runner, &mut sequence, &request, |event| {
        match event {
            Event::Read(read) if read < prompt.len() => {
                progress.say(&format!("read {read} of {} tokens", prompt.len()))
            }
            Event::Read(_) => progress.clear(),
            Event::Token(sampled) => {
                let (piece, stopped) = match &mut detokenizer {
                    Some(detokenizer) => stops.push(&detokenizer.push(sampled.token)),
                    None => (format!("{} ", sampled.token), false),
                };
                text += &piece;
                if !arguments.json
                    && let Err(error) = output::print(&piece)
                {
                    failed = Some(error);
                }
                if stopped || failed.is_some() {
                    return ControlFlow::Break(());
                }
            }
        }
        if control.cancel.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    drop(progress);
    if let Some(error) = failed {
        return Err(error);
    }
    if !stops.stopped() {
        let rest = detokenizer.map(Detokenizer::finish).unwrap_or_default();
        let (mut rest, stopped) = stops.push(&rest);
        if !stopped {
            rest += &stops.finish().0;
        }
        text += &rest;
        if !arguments.json {
            output::print(&rest)?;
        }
    }
    let cancelled = control.cancel.load(Ordering::Relaxed);
    if !arguments.json {
        output::print("\n")?;
    }
    let speed = Speed::of(&loaded.device, &generated)?;
    let info = loaded.info();
    if arguments.json {
        output::print_json(&json!({
            "model": opened.checkpoint.path, "device": info.name, "driver": info.driver,
            "prompt_ids": prompt, "tokens": generated.tokens, "text": language.is_some().then_some(text),
            "finish": if cancelled { json!("cancelled") } else { json!(generated.finish) },
            "sampling": sampling, "load_seconds": loaded.load_seconds, "tuning": loaded.tuned, "speed": speed,
        }))?;
    } else {
        let end = match generated.finish {
            _ if cancelled => " (stopped)",
            Finish::Length => " (as long as asked for)",
            Finish::Context => " (the context is full)",
            Finish::End | Finish::Stop => "",
        };
        note!("\n{}, loaded in {:.1} s\n{speed}{end}", info.name, loaded.load_seconds);
    }
    Ok(if cancelled { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// What can be said of a prompt before the model is loaded.
fn check(opened: &Opened, arguments: &Arguments, prompt: &[u32]) -> anyhow::Result<()> {
    let config = &opened.checkpoint.config;
    // A prompt that is nothing but the beginning is as empty as none.
    let only_bos = arguments.ids.is_none() && prompt.iter().all(|token| Some(*token) == config.bos);
    if only_bos {
        return Err(model::Error::EmptyPrompt.into());
    }
    let context = arguments.context.unwrap_or(config.max_positions);
    Ok(model::check_tokens(config, 0, prompt, context)?)
}

fn prompt_text(arguments: &Arguments) -> anyhow::Result<String> {
    if let Some(prompt) = &arguments.prompt {
        return Ok(prompt.clone());
    }
    if std::io::stdin().is_terminal() {
        bail!("there is no prompt: give one with -p TEXT or --ids, or on standard input");
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("standard input is not UTF-8 (byte {at}): convert it first, for example with iconv")
    })?;
    // The newline that ends a line of a shell is not part of the prompt.
    Ok(text.strip_suffix('\n').map_or(text.clone(), str::to_string))
}
