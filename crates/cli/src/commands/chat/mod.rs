//! `indrik chat`: a conversation in the terminal.
//!
//! 1. `input` reads a message or a command, with a line editor and a `history` on a terminal.
//! 2. `command` parses a line that starts with a slash; `transcript` and `models` do the work of some.
//! 3. `session` holds the model and the conversation, and requests replies.
//! 4. [`crate::render`] prints them: wrapped and styled on a terminal, as they are in a pipe.

mod command;
mod history;
mod input;
mod models;
mod session;
mod transcript;

use std::{path::Path, process::ExitCode, sync::atomic::Ordering};

use clap::{Args, builder::BoolishValueParser};

use crate::{
    images::ImageArguments, loading::LoadArguments, output, pick::pick_model, render,
    sampling::SamplingArguments, think::Think,
};
use command::Command;
use input::Input;
use session::{Candidate, Session};
use transcript::Transcript;

/// Chat with a model in the terminal, in the model's own chat format
#[derive(Args)]
#[command(after_help = "Examples: indrik chat\n          indrik chat -m smollm2\n          \
                        indrik chat -m smollm2 -p \"What is the capital of France?\"\n          \
                        indrik chat -m smollm2 -s \"Reply in French.\" -c 4096\n          \
                        indrik chat -m gemma3:4b --image photo.jpg -p \"What is this?\"\n          \
                        indrik chat -m gemma3:4b --image photo.jpg --npu force -p \"What is this?\"\n\n\
                        In the chat: /help lists the commands, Ctrl-C cancels a reply, Ctrl-D quits.\n\
                        On a terminal, replies are wrapped and their Markdown is styled; NO_COLOR=1 or CLICOLOR=0 \
                        switches styles off. In a pipe, replies are plain text and every line of the input is a message.")]
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
    #[command(flatten)]
    images: ImageArguments,
    /// System message
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// Maximum number of tokens per reply (default: as many as fit the context)
    #[arg(short, long = "tokens", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    n: Option<u32>,
    /// Context length of the conversation in tokens (default: 8192, or the model's maximum)
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(64..))]
    context: Option<u32>,
    /// Whether the model thinks before it replies; on a terminal, thinking is shown dimmed
    #[arg(long, value_name = "WHEN", default_value_t, value_enum)]
    pub think: Think,
    #[command(flatten)]
    sampling: SamplingArguments,
    /// Do not keep the messages that are typed for the next chat (they are in indrik/chat_history in the state
    /// folder, $XDG_STATE_HOME or ~/.local/state)
    #[arg(long, env = "INDRIK_NO_HISTORY", value_parser = BoolishValueParser::new())]
    no_history: bool,
}

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
    let candidate = Candidate::open(model, arguments, arguments.load.image_tokens)?;
    let images = arguments.images.read(candidate.language())?;
    let mut session = candidate.load(arguments)?;
    images.into_iter().for_each(|image| session.attach(image));
    session.set_system(arguments.system.clone());
    if let Some(text) = &arguments.prompt {
        session.send(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut input = Input::new(!arguments.no_history)?;
    while let Some(line) = input.read()? {
        let done = match line.as_str() {
            line if line.trim().is_empty() => Ok(()),
            line if line.starts_with('/') => match command::parse(line) {
                Ok(Command::Quit) => break,
                Ok(Command::Model(Some(name))) => {
                    session = switch(session, &name, arguments)?;
                    Ok(())
                }
                Ok(command) => execute(&mut session, &mut input, command),
                Err(error) => {
                    note!("{error}");
                    Ok(())
                }
            },
            line => session.send(line),
        };
        match done {
            // A failed message is no longer part of the conversation.
            Err(error) if !output::is_closed_pipe(&error) => note!("indrik: {error:#}"),
            done => done?,
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

/// Runs a command, except for those that end or replace the session.
fn execute(session: &mut Session, input: &mut Input, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Help => render::note(&command::help(), command::HELP_COLUMN),
        Command::Stats => session.print_stats()?,
        Command::Clear => {
            session.clear();
            note!("New conversation.");
        }
        Command::System(None) => match session.system() {
            Some(system) => note!("{system}"),
            None => note!("No system message; /system TEXT sets one."),
        },
        Command::System(system) => {
            session.set_system(system);
            note!("System message set; new conversation.");
        }
        Command::Regenerate => regenerate(session)?,
        Command::Edit(text) => edit(session, input, text)?,
        Command::Save { path, replace } => save(session, &path, replace)?,
        Command::Load(path) => load(session, &path)?,
        Command::Image(path) => attach(session, &path)?,
        Command::Model(_) => note_part!("{}", models::list(session.argument())?),
        Command::Quit => {}
    }
    Ok(())
}

fn regenerate(session: &mut Session) -> anyhow::Result<()> {
    if session.last_message("user").is_none() {
        note!("There is no message to reply to.");
        return Ok(());
    }
    if session.is_greedy() {
        note!("(the temperature is 0: the reply will be the same)");
    }
    session.regenerate()
}

/// Sends another text in place of the last message.
fn edit(session: &mut Session, input: &mut Input, text: Option<String>) -> anyhow::Result<()> {
    let Some(last) = session.last_message("user") else {
        note!("There is no message to edit.");
        return Ok(());
    };
    let text = match text {
        Some(text) => Some(text),
        None if input.is_terminal() => input.edit(&last)?,
        None => {
            note!("Without a terminal, /edit needs the new text, as in /edit TEXT.");
            return Ok(());
        }
    };
    match text {
        Some(text) => session.send_instead(&text),
        None => {
            note!("Not changed.");
            Ok(())
        }
    }
}

fn save(session: &Session, path: &Path, replace: bool) -> anyhow::Result<()> {
    let transcript = session.transcript();
    if transcript.messages.is_empty() {
        note!("There is nothing to save yet.");
        return Ok(());
    }
    let replaced = transcript.save(path, session.name(), replace)?;
    let note = if replaced { ", replacing the old file" } else { "" };
    let images = if session.has_images() { " Images are not saved." } else { "" };
    note!("Saved {} messages to {}{note}.{images}", transcript.messages.len(), path.display());
    Ok(())
}

fn load(session: &mut Session, path: &Path) -> anyhow::Result<()> {
    let transcript = Transcript::load(path)?;
    let count = transcript.messages.len();
    session.restore(transcript);
    note!("Loaded {count} messages from {}, in place of the conversation so far.", path.display());
    session.print_last_exchange()
}

/// Attaches an image to the next message.
fn attach(session: &mut Session, path: &Path) -> anyhow::Result<()> {
    let image = session.read_image(path)?;
    let crops = match image.crops() {
        0 => String::new(),
        crops => format!(" and {crops} crops"),
    };
    let (width, height, tokens) = (image.width(), image.height(), image.tokens());
    let name = store::printable(path.display().to_string());
    session.attach(image);
    note!("{name}: {width} × {height} pixels{crops}, {tokens} tokens. It goes with the next message.");
    Ok(())
}

/// Saves a conversation that has no model any more beside the history, which only its owner may read, and says where.
fn keep(transcript: &Transcript, model: &str) {
    if transcript.messages.is_empty() {
        return;
    }
    let Some(path) = history::path(|name| std::env::var_os(name)) else { return };
    let path = path.with_file_name(format!("chat-{}.json", std::process::id()));
    let saved = history::create(&path).map_err(Into::into).and_then(|()| transcript.save(&path, model, true));
    match saved {
        Ok(_) => note!("The conversation is in {0}: `/load {0}` goes on with it.", path.display()),
        Err(error) => note!("The conversation is lost: {error:#}"),
    }
}

/// Opens a model that the options were not given for: it may not allow the number of tokens per image, and have another
/// vocabulary than the draft model.
fn open_other(model: &str, arguments: &ChatArguments) -> anyhow::Result<Candidate> {
    let image_tokens = arguments.load.image_tokens;
    let mut candidate = match Candidate::open(model, arguments, image_tokens) {
        Err(error) if image_tokens.is_some() => {
            let candidate = Candidate::open(model, arguments, None)?;
            note!("({error:#}: the option is ignored)");
            candidate
        }
        opened => opened?,
    };
    if let Err(error) = candidate.check_draft() {
        note!("({error:#}: the option is ignored)");
        candidate.remove_draft();
    }
    Ok(candidate)
}

/// Loads another model and moves the conversation to it. If that fails, the old model is loaded again.
fn switch(session: Session, name: &str, arguments: &ChatArguments) -> anyhow::Result<Session> {
    let opened = models::find(name).and_then(|model| open_other(&model, arguments));
    let candidate = match opened {
        Ok(candidate) => candidate,
        Err(error) => {
            note!("indrik: {error:#}");
            return Ok(session);
        }
    };
    let (transcript, previous) = (session.transcript(), session.argument().to_owned());
    if session.has_images() {
        note!("(the images of the conversation are dropped: each model encodes them in its own way)");
    }
    let control = output::control();
    control.cancel.store(false, Ordering::Relaxed);
    // Two models may not fit into memory.
    drop(session);
    let mut session = match candidate.load(arguments) {
        Ok(session) => session,
        Err(error) => {
            note!("indrik: {error:#}; loading {previous} again");
            control.cancel.store(false, Ordering::Relaxed);
            let reopened = open_other(&previous, arguments).and_then(|model| model.load(arguments));
            reopened.inspect_err(|_| keep(&transcript, &previous))?
        }
    };
    session.restore(transcript);
    Ok(session)
}
