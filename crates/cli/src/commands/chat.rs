//! `indrik chat`: a conversation in the terminal.

use std::{
    io::IsTerminal, ops::ControlFlow, path::Path, process::ExitCode, sync::atomic::Ordering, time::Duration,
};

use anyhow::Context;
use clap::Args;
use indrik::{Chat, ChatReply, FinishReason, Model, ReplyEvent, Timings};
use rustyline::{DefaultEditor, error::ReadlineError};

use crate::{
    loading::{LoadArguments, ModelArguments},
    output,
    pick::pick_model,
    sampling::SamplingArguments,
    speed::Speed,
};

/// Chat with a model in the terminal, in the model's own chat format
#[derive(Args)]
#[command(after_help = "Examples: indrik chat\n          indrik chat -m smollm2\n          \
                        indrik chat -m smollm2 -p \"What is the capital of France?\"\n\n\
                        In the chat: /help lists the commands, Ctrl-C cancels a reply, Ctrl-D quits.")]
pub struct Arguments {
    /// GGUF file, Hugging Face folder, file written by `indrik quantize`, or name in the local store (default:
    /// choose from the store)
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    chat: ChatArguments,
}

/// How to chat; shared with `indrik run`.
#[derive(Args)]
pub struct ChatArguments {
    #[command(flatten)]
    pub load: LoadArguments,
    /// Send this message, print the reply and exit
    #[arg(short, long, value_name = "TEXT", value_parser = message)]
    pub prompt: Option<String>,
    /// System message
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of tokens per reply (default: as many as fit the context)
    #[arg(short, long = "tokens", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    n: Option<u32>,
    /// Context length of the conversation in tokens (default: 8192, or the model's maximum)
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(64..))]
    context: Option<u32>,
    #[command(flatten)]
    sampling: SamplingArguments,
}

const HELP: &str = "\
/help          this list
/stats         speed of the last reply, and how full the context is
/clear         start a new conversation; the system message stays
/system TEXT   set the system message and start a new conversation; without TEXT, show it
/quit          quit (also Ctrl-D)
Ctrl-C         cancel the reply
A line that ends with \\ continues on the next line.
";

const NO_TEMPLATE: &str =
    "this model has no chat template, and its family has no default one: use `indrik generate`";

/// How often Ctrl-C is checked and the progress line updated while nothing is generated.
const POLL: Duration = Duration::from_millis(50);

/// Assumed length of the first message, with its template. Programs for prompts of another length are recorded
/// when they are needed.
const FIRST_PROMPT_TOKENS: usize = 32;

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let model = match &arguments.model {
        Some(model) => model.clone(),
        None => match pick_model()? {
            Some(model) => model,
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    chat(&model, &arguments.chat)
}

/// Chats with a model, given as `-m` takes it.
pub fn chat(model: &str, arguments: &ChatArguments) -> anyhow::Result<ExitCode> {
    let name = display_name(model);
    let model = ModelArguments { model: model.to_string(), load: arguments.load.clone() };
    let files = model.open()?;
    let language = files.language()?;
    language.template.as_ref().context(NO_TEMPLATE)?;
    let sampling = arguments.sampling.sampling(&files.recommended_sampling());
    sampling.check(files.config().vocab)?;
    let context_length = match arguments.context {
        Some(context) => files.check_context_length(context as usize)?,
        None => files.default_context_length(),
    };
    let (model, _) = model.load(&files, context_length, FIRST_PROMPT_TOKENS, &sampling)?;
    let commands = if arguments.prompt.is_some() { "" } else { " /help lists the commands." };
    note!("{name} on {}, context length {context_length}.{commands}", model.load_report().device.name);
    if !language.own_template {
        note!("This model has no chat template and may not be trained to chat; using its family's template.");
    }
    let mut chat = model.chat()?;
    chat.system = arguments.system.clone();
    chat.options.sampling = sampling;
    chat.options.max_tokens = arguments.n;
    let mut terminal = Terminal { chat, model, context_length, last: None };
    if let Some(text) = &arguments.prompt {
        terminal.send(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut editor = DefaultEditor::new()?;
    loop {
        match read(&mut editor)? {
            None => break,
            Some(line) if line.trim().is_empty() => {}
            Some(line) if line.starts_with('/') => {
                if terminal.command(&line)?.is_break() {
                    break;
                }
            }
            Some(line) => match terminal.send(&line) {
                // The failed message is no longer part of the conversation.
                Err(error) if !output::is_closed_pipe(&error) => note!("indrik: {error:#}"),
                sent => sent?,
            },
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses `--prompt`.
fn message(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() {
        return Err("the message is empty; leave --prompt out for an interactive chat");
    }
    Ok(text.to_string())
}

/// The model as the user knows it: its name, or its file's.
fn display_name(argument: &str) -> String {
    let file = Path::new(argument).file_name();
    store::printable(file.map_or(argument.into(), |file| file.to_string_lossy()))
}

/// Reads the next message; `None` at the end of input.
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
                // History is optional: an error is ignored.
                let _ = editor.add_history_entry(&line);
                match line.strip_suffix('\\') {
                    Some(line) => text += &format!("{line}\n"),
                    None => return Ok(Some(text + &line)),
                }
            }
            Err(ReadlineError::Interrupted) => {
                text.clear();
                note!("(/quit or Ctrl-D quits)");
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                note!("That line is not UTF-8 and was ignored.");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A conversation and its statistics.
struct Terminal {
    chat: Chat,
    model: Model,
    context_length: u32,
    /// Measurements of the last reply, and the number of its tokens.
    last: Option<(Timings, usize)>,
}

impl Terminal {
    /// Runs a line that starts with a slash.
    fn command(&mut self, line: &str) -> anyhow::Result<ControlFlow<()>> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match name {
            "/help" | "/?" => note_part!("{HELP}"),
            "/quit" | "/exit" => return Ok(ControlFlow::Break(())),
            "/clear" => {
                self.chat.clear();
                note!("New conversation.");
            }
            "/system" if rest.trim().is_empty() => match &self.chat.system {
                Some(system) => note!("{system}"),
                None => note!("No system message; /system TEXT sets one."),
            },
            "/system" => {
                self.chat.system = Some(rest.trim().to_string());
                self.chat.clear();
                note!("System message set; new conversation.");
            }
            "/stats" => self.stats()?,
            _ => note!("Unknown command {name}; /help lists the commands."),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn stats(&self) -> anyhow::Result<()> {
        let mut used = 0;
        match &self.last {
            None => note!("No reply yet."),
            Some((timings, tokens)) => {
                note!("{}", Speed::measure(&self.model, timings)?);
                note!("{} prompt tokens came from the prefix cache.", timings.cached_tokens);
                // The last token is not in the cache.
                used = timings.prompt_tokens + tokens.saturating_sub(1);
            }
        }
        let messages = self.chat.messages().len();
        note!("{messages} messages, {used} of {} context tokens used.", self.context_length);
        Ok(())
    }

    /// Sends a message and prints the reply as it is generated.
    fn send(&mut self, text: &str) -> anyhow::Result<()> {
        let control = output::control();
        control.cancel.store(false, Ordering::Relaxed);
        let mut progress = output::Progress::new();
        let mut reply = self.chat.send(text)?;
        match reply.dropped_messages() {
            0 => {}
            dropped => note!("(context full: the {dropped} oldest messages were dropped)"),
        }
        loop {
            match reply.next_event(POLL)? {
                ReplyEvent::Waiting { prefilled, total } if prefilled > 0 && prefilled < total => {
                    progress.show(&format!("prefilled {prefilled} of {total} tokens"));
                }
                ReplyEvent::Waiting { .. } => {}
                ReplyEvent::Text(text) => {
                    progress.clear();
                    output::print(&text)?;
                }
                ReplyEvent::Finished(_) => break,
            }
            if control.cancel.load(Ordering::Relaxed) {
                reply.cancel();
            }
        }
        drop(progress);
        let ChatReply { finish_reason, timings, ids, .. } = reply.finish()?;
        output::print("\n")?;
        match finish_reason {
            FinishReason::Cancelled => note!("(cancelled)"),
            FinishReason::ContextLength => note!("(context full: /clear starts a new conversation)"),
            FinishReason::StopToken | FinishReason::StopString | FinishReason::MaxTokens => {}
        }
        control.cancel.store(false, Ordering::Relaxed);
        self.last = Some((timings, ids.len()));
        Ok(())
    }
}
