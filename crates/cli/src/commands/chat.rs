//! `indrik chat`: a conversation in the terminal.

use std::{io::IsTerminal, ops::ControlFlow, path::Path, process::ExitCode, sync::atomic::Ordering};

use anyhow::Context;
use clap::Args;
use model::{
    Runner, Sampling, Sequence,
    generate::{Event, Finish, Generated, Request, generate},
    language::Language,
};
use rustyline::{DefaultEditor, error::ReadlineError};
use text::{DecodeSpecial, Detokenizer, Message};

use crate::{
    loading::{Loaded, ModelArguments, Outputs},
    output,
    sampling::{SamplingArguments, recommended},
    speed::Speed,
};

/// Talks with a model, in its own chat format
#[derive(Args)]
#[command(after_help = "Examples: indrik chat -m smollm2\n          \
                        indrik chat -m smollm2 -p \"What is the capital of France?\"\n\n\
                        In the chat: /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// One question: it is answered, and that is all
    #[arg(short, long, value_name = "TEXT", value_parser = question)]
    prompt: Option<String>,
    /// What the model is told before the conversation
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer (default: as many as the context has room for)
    #[arg(short, long = "tokens", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    n: Option<u32>,
    /// Positions that the conversation may have (default: 8192, or what the model has)
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(64..))]
    context: Option<u32>,
    #[command(flatten)]
    sampling: SamplingArguments,
}

const HELP: &str = "\
/help          this list
/stats         how fast the last answer was, and how full the context is
/clear         forget the conversation; what /system set stays
/system TEXT   tell the model something before the conversation, and start anew; alone, it shows it
/quit          leave (Ctrl-D too)
Ctrl-C         stop the answer
A line that ends with \\ goes on in the next one.
";

const NO_TEMPLATE: &str =
    "this model brings no chat template, and its family has none: use `indrik generate`";

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let opened = arguments.model.open()?;
    let language = opened.language()?;
    language.template.as_ref().context(NO_TEMPLATE)?;
    let sampling = arguments.sampling.sampling(&recommended(opened.checkpoint.config.architecture));
    sampling.check(opened.checkpoint.config.vocab)?;
    let context = match arguments.context {
        Some(context) => opened.check_context(context as usize)?,
        None => opened.usual_context(),
    };
    let loaded = opened.load(context, Outputs::Sampled)?;
    let commands = if arguments.prompt.is_some() { "" } else { " /help lists the commands." };
    let model = called(&arguments.model.model);
    note!("{model} on {}, {context} positions.{commands}", loaded.info().name);
    if !language.own_template {
        note!(
            "This model brings no chat template; it may not have been trained to chat. Its family's is used."
        );
    }
    let mut chat = Chat {
        sequence: loaded.runner.start()?,
        cached: vec![],
        messages: vec![],
        system: arguments.system.clone(),
        last: None,
        most: arguments.n.map_or(usize::MAX, |n| n as usize),
        language,
        sampling,
        loaded,
    };
    if let Some(question) = &arguments.prompt {
        chat.messages.push(Message::new("user", question));
        chat.answer()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut editor = DefaultEditor::new()?;
    loop {
        match read(&mut editor)? {
            None => break,
            Some(line) if line.trim().is_empty() => {}
            Some(line) if line.starts_with('/') => {
                if chat.command(&line)?.is_break() {
                    break;
                }
            }
            Some(line) => chat.say(&line)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A question that can be answered.
fn question(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() {
        return Err("there is nothing to answer in it; without --prompt, the chat asks for questions");
    }
    Ok(text.to_string())
}

/// The model as its user knows it: its name, or its file's.
fn called(argument: &str) -> String {
    let file = Path::new(argument).file_name();
    store::printable(file.map_or(argument.into(), |file| file.to_string_lossy()))
}

/// The next message; none at the end of input.
fn read(editor: &mut DefaultEditor) -> anyhow::Result<Option<String>> {
    let mut text = String::new();
    loop {
        let prompt = match (std::io::stdin().is_terminal(), text.is_empty()) {
            (false, _) => "",
            (true, true) => "> ",
            (true, false) => "… ",
        };
        match editor.readline(prompt) {
            Ok(line) => {
                // History is a comfort: without it the chat goes on.
                let _ = editor.add_history_entry(&line);
                match line.strip_suffix('\\') {
                    Some(line) => text += &format!("{line}\n"),
                    None => return Ok(Some(text + &line)),
                }
            }
            Err(ReadlineError::Interrupted) => {
                text.clear();
                note!("(/quit or Ctrl-D leaves)");
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                note!("That line is not UTF-8 and was left out.");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

struct Chat {
    sequence: Sequence,
    /// The tokens whose keys and values the sequence holds.
    cached: Vec<u32>,
    messages: Vec<Message>,
    system: Option<String>,
    /// The last answer, and how many tokens before it did not have to be read again.
    last: Option<(usize, Generated)>,
    most: usize,
    language: Language,
    sampling: Sampling,
    loaded: Loaded,
}

impl Chat {
    /// A line that starts with a slash.
    fn command(&mut self, line: &str) -> anyhow::Result<ControlFlow<()>> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match name {
            "/help" | "/?" => note_part!("{HELP}"),
            "/quit" | "/exit" => return Ok(ControlFlow::Break(())),
            "/clear" => {
                self.messages.clear();
                note!("The conversation is forgotten.");
            }
            "/system" if rest.trim().is_empty() => match &self.system {
                Some(system) => note!("{system}"),
                None => note!("Nothing is set: /system TEXT sets it."),
            },
            "/system" => {
                self.system = Some(rest.trim().to_string());
                self.messages.clear();
                note!("Set; the conversation starts anew.");
            }
            "/stats" => self.stats()?,
            _ => note!("There is no {name}. /help lists the commands."),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn stats(&self) -> anyhow::Result<()> {
        let context = self.loaded.runner.cache().limits().context_length;
        match &self.last {
            None => note!("No answer yet."),
            Some((reused, generated)) => {
                let speed = Speed::of(&self.loaded.device, generated)?;
                note!("{speed}");
                note!("{reused} tokens of the conversation were in the cache and not read again.");
            }
        }
        let messages = self.messages.len();
        note!("{messages} messages, {} of {context} positions.", self.sequence.len());
        Ok(())
    }

    /// One message and its answer.
    fn say(&mut self, line: &str) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", line));
        match self.answer() {
            // A question that got not a word of an answer was not asked.
            Ok(text) if text.is_empty() => drop(self.messages.pop()),
            Ok(text) => self.messages.push(Message::new("assistant", &text)),
            Err(error) => {
                // The conversation stands as before the message; what the GPU has of it is not known.
                self.messages.pop();
                self.loaded.runner.truncate(&mut self.sequence, 0);
                self.cached.clear();
                if output::is_closed_pipe(&error) {
                    return Err(error);
                }
                note!("indrik: {error:#}");
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> anyhow::Result<String> {
        let prompt = self.prompt()?;
        let reused = reuse(&self.loaded.runner, &mut self.sequence, &self.cached, &prompt);
        self.cached.truncate(reused);
        if reused > 0 && self.sampling.has_penalties() {
            // Penalties must know what is not read again, and nothing that was cut off.
            self.loaded.runner.reset_token_counts(&mut self.sequence, &self.cached, &[])?;
        }
        let control = output::control();
        control.cancel.store(false, Ordering::Relaxed);
        let mut detokenizer = Detokenizer::new(&self.language.tokenizer, DecodeSpecial::Skip);
        let (mut text, mut failed) = (String::new(), None);
        let mut progress = output::Progress::new();
        let rest = &prompt[reused..];
        let request =
            Request { prompt: rest, most: self.most, sampling: &self.sampling, ends: &self.language.ends };
        let generated = generate(&mut self.loaded.runner, &mut self.sequence, &request, |event| {
            match event {
                Event::Read(read) if read < rest.len() => {
                    progress.say(&format!("read {read} of {} tokens", rest.len()));
                }
                Event::Read(_) => progress.clear(),
                Event::Token(sampled) => {
                    let piece = detokenizer.push(sampled.token);
                    text += &piece;
                    failed = output::print(&piece).err();
                }
            }
            let stop = failed.is_some() || control.cancel.load(Ordering::Relaxed);
            if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        drop(progress);
        if let Some(error) = failed {
            return Err(error);
        }
        let end = detokenizer.finish();
        output::print(&format!("{end}\n"))?;
        text += &end;
        match generated.finish {
            Finish::Stop => note!("(stopped)"),
            Finish::Context => note!("(the context is full: /clear starts anew)"),
            Finish::Length | Finish::End => {}
        }
        let held = self.sequence.len() as usize;
        self.cached.extend(rest.iter().chain(&generated.tokens).take(held - reused));
        control.cancel.store(false, Ordering::Relaxed);
        self.last = Some((reused, generated));
        Ok(text)
    }

    /// The conversation as tokens. Where it no longer fits, its oldest messages are left out, then and from then on.
    fn prompt(&mut self) -> anyhow::Result<Vec<u32>> {
        let context = self.loaded.runner.cache().limits().context_length as usize;
        // An answer wants some room.
        let room = (context / 8).clamp(16, 512);
        // A question goes with its answer, and the last question stays.
        for dropped in (0..self.messages.len()).step_by(2) {
            let system = self.system.iter().map(|system| Message::new("system", system));
            let messages: Vec<Message> = system.chain(self.messages[dropped..].iter().cloned()).collect();
            let template = self.language.template.as_ref().context(NO_TEMPLATE)?;
            let prompt = template.encode(&self.language.tokenizer, &messages, true)?;
            let last = dropped + 2 > self.messages.len();
            if prompt.len() + room > context && !last {
                continue;
            }
            let config = &self.loaded.runner.model().config;
            model::check_tokens(config, 0, &prompt, context as u32)?;
            if dropped > 0 {
                note!("(the context is full: the {dropped} oldest messages were left out)");
                self.messages.drain(..dropped);
            }
            return Ok(prompt);
        }
        anyhow::bail!("there is nothing to answer")
    }
}

/// Keeps what the sequence holds of a prompt's beginning; returns how many tokens that is. One is always left to be read.
fn reuse(runner: &Runner, sequence: &mut Sequence, cached: &[u32], prompt: &[u32]) -> usize {
    let common = cached.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
    if runner.truncate(sequence, common as u32) {
        return common;
    }
    runner.truncate(sequence, 0);
    0
}
