//! A loaded model and its conversation.

use std::{io::IsTerminal, path::Path, sync::atomic::Ordering, time::Duration};

use anyhow::Context;
use indrik::{
    Chat, ChatReply, FinishReason, Language, Message, Model, ModelFiles, PromptImage, Reply, ReplyEvent,
    Sampling, Timings,
};

use super::{ChatArguments, transcript::Transcript};
use crate::{
    energy::{PowerInterval, PowerProbe},
    images,
    loading::{LoadArguments, ModelArguments},
    output,
    render::{self, Printer, ThinkingPrinter},
    speed::Speed,
};

const NO_TEMPLATE: &str =
    "this model has no chat template, and its family has no default one: use `indrik generate`";

/// How often Ctrl-C is checked and the progress line updated while nothing is generated.
const POLL: Duration = Duration::from_millis(50);

/// Assumed length of the first message, with its template. Programs for prompts of another length are recorded
/// when they are needed.
const FIRST_PROMPT_TOKENS: usize = 32;

/// A model that was checked and can be loaded.
pub struct Candidate {
    /// As the user gave it.
    argument: String,
    model: ModelArguments,
    files: ModelFiles,
    sampling: Sampling,
    context_length: u32,
    language: Language,
}

impl Candidate {
    /// Opens a model, given as `-m` takes it, without touching the device.
    pub fn open(
        argument: &str,
        arguments: &ChatArguments,
        image_tokens: Option<u32>,
    ) -> anyhow::Result<Self> {
        let load = LoadArguments { image_tokens, ..arguments.load.clone() };
        let model = ModelArguments { model: argument.to_string(), load };
        let files = model.open()?;
        let language = files.language()?;
        language.template.as_ref().context(NO_TEMPLATE)?;
        let sampling = arguments.sampling.sampling(&files.recommended_sampling());
        sampling.check(files.config().vocab)?;
        let context_length = match arguments.context {
            Some(context) => files.check_context_length(context as usize)?,
            None => files.default_context_length(),
        };
        Ok(Self { argument: argument.to_string(), model, files, sampling, context_length, language })
    }

    /// The tokenizer, the chat template, and how the model takes images.
    pub fn language(&self) -> &Language {
        &self.language
    }

    /// Checks that the draft model, if there is one, can draft for it.
    pub fn check_draft(&self) -> anyhow::Result<()> {
        self.model.load.draft.as_ref().map_or(Ok(()), |draft| self.files.open_draft(draft).map(drop))?;
        Ok(())
    }

    /// Decodes without the draft model.
    pub fn remove_draft(&mut self) {
        self.model.load.draft = None;
    }

    /// Loads the model, with progress on the terminal.
    pub fn load(self, arguments: &ChatArguments) -> anyhow::Result<Session> {
        let Self { argument, model, files, sampling, context_length, language } = self;
        let (model, _) = model.load(&files, context_length, FIRST_PROMPT_TOKENS, &sampling)?;
        let commands = if arguments.prompt.is_some() { "" } else { " /help lists the commands." };
        let name = display_name(&argument);
        let device = &model.load_report().device.name;
        render::note(&format!("{name} on {device}, context length {context_length}.{commands}"), 0);
        if !language.own_template {
            render::note(
                "This model has no chat template and may not be trained to chat; using its family's template.",
                0,
            );
        }
        let mut chat = model.chat()?;
        chat.options.sampling = sampling;
        chat.options.max_tokens = arguments.n;
        chat.thinking = arguments.think.setting();
        let power = PowerProbe::start(&model.load_report().device);
        let pan_and_scan = arguments.images.pan_and_scan;
        let (attached, last) = (vec![], None);
        Ok(Session { argument, name, chat, model, context_length, power, pan_and_scan, attached, last })
    }
}

/// The model as the user knows it: its name, or its file's.
fn display_name(argument: &str) -> String {
    let file = Path::new(argument).file_name();
    store::printable(file.map_or(argument.into(), |file| file.to_string_lossy()))
}

/// Measurements of the last reply.
struct LastReply {
    timings: Timings,
    tokens: usize,
    /// From its first token to its last.
    decode: PowerInterval,
}

/// A conversation with a loaded model.
pub struct Session {
    argument: String,
    name: String,
    chat: Chat,
    model: Model,
    context_length: u32,
    power: PowerProbe,
    pan_and_scan: bool,
    /// Images for the next message.
    attached: Vec<PromptImage>,
    last: Option<LastReply>,
}

impl Session {
    /// The model as `-m` takes it.
    pub fn argument(&self) -> &str {
        &self.argument
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads an image for this model.
    pub fn read_image(&self, path: &Path) -> anyhow::Result<PromptImage> {
        Ok(images::reader(&*self.model.language()?, self.pan_and_scan)?.read(path)?)
    }

    /// Adds an image to the next message.
    pub fn attach(&mut self, image: PromptImage) {
        self.attached.push(image);
    }

    /// Whether the conversation or the next message has images.
    pub fn has_images(&self) -> bool {
        !self.attached.is_empty() || !self.chat.images_from(0).is_empty()
    }

    /// The conversation so far, without images.
    pub fn transcript(&self) -> Transcript {
        let without_images = |message: &Message| Message {
            content: message.content.as_ref().map(|content| content.text().into_owned().into()),
            ..message.clone()
        };
        let messages = self.chat.messages().iter().map(without_images).collect();
        Transcript { system: self.chat.system.clone(), messages }
    }

    /// Replaces the conversation.
    pub fn restore(&mut self, transcript: Transcript) {
        self.chat.system = transcript.system;
        self.chat.clear();
        transcript.messages.into_iter().for_each(|message| self.chat.push(message));
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.chat.system.as_deref()
    }

    /// Starts a new conversation. The system message stays.
    pub fn clear(&mut self) {
        self.chat.clear();
    }

    /// Sets the system message and starts a new conversation.
    pub fn set_system(&mut self, system: Option<String>) {
        self.chat.system = system;
        self.chat.clear();
    }

    /// Text of the last message of a role.
    pub fn last_message(&self, role: &str) -> Option<String> {
        let message = self.chat.messages().iter().rev().find(|message| message.role == role)?;
        message.content.as_ref().map(|content| content.text().into_owned())
    }

    /// Whether the same prompt always has the same reply.
    pub fn is_greedy(&self) -> bool {
        self.chat.options.sampling.temperature == 0.0
    }

    /// Sends a message and prints the reply as it is generated.
    pub fn send(&mut self, text: &str) -> anyhow::Result<()> {
        let images = std::mem::take(&mut self.attached);
        let sent = self.print_reply(|chat| chat.send_with_images(text, images.clone()));
        if !matches!(sent, Ok(true)) {
            // For another attempt.
            self.attached = images;
        }
        sent.map(|_| ())
    }

    /// Sends a text in place of the last message, with the same images and those that were attached since.
    pub fn send_instead(&mut self, text: &str) -> anyhow::Result<()> {
        let messages = self.chat.messages();
        let last = messages.iter().rposition(|message| message.role == "user").unwrap_or(messages.len());
        let attached = std::mem::take(&mut self.attached);
        let images = [self.chat.images_from(last), &attached].concat();
        let replaced = self.replace_from(last, |chat| chat.send_with_images(text, images));
        if replaced.is_err() {
            // For another attempt.
            self.attached = attached;
        }
        replaced
    }

    /// Generates another reply in place of the last one.
    pub fn regenerate(&mut self) -> anyhow::Result<()> {
        // The same seed would give the same reply.
        let seed = &mut self.chat.options.sampling.seed;
        *seed = seed.wrapping_add(1);
        let messages = self.chat.messages();
        // A loaded conversation can end with a message that has no reply yet.
        let is_reply = messages.last().is_some_and(|message| message.role == "assistant");
        self.replace_from(messages.len() - usize::from(is_reply), |chat| chat.reply())
    }

    /// Replaces the messages from `start` on. They stay if there is no reply.
    fn replace_from(
        &mut self,
        start: usize,
        request: impl FnOnce(&mut Chat) -> indrik::Result<Reply<'_>>,
    ) -> anyhow::Result<()> {
        let replaced: Vec<Message> = self.chat.messages()[start..].to_vec();
        let mut images = self.chat.images_from(start).to_vec();
        self.chat.truncate(start);
        let replied = self.print_reply(request);
        if !matches!(replied, Ok(true)) {
            for message in replaced {
                let own = images.drain(..message.image_count()).collect();
                self.chat.push_with_images(message, own)?;
            }
        }
        replied.map(|_| ())
    }

    /// Prints a reply as it is generated; returns whether it has a text. Ctrl-C ends it.
    fn print_reply(
        &mut self,
        request: impl FnOnce(&mut Chat) -> indrik::Result<Reply<'_>>,
    ) -> anyhow::Result<bool> {
        let control = output::control();
        control.cancel.store(false, Ordering::Relaxed);
        let mut progress = output::Progress::new();
        let mut printer = Printer::new();
        let mut thinking_printer = None;
        let mut decode = None;
        let mut reply = request(&mut self.chat)?;
        match reply.dropped_messages() {
            0 => {}
            dropped => note!("(context full: the {dropped} oldest messages were dropped)"),
        }
        loop {
            match reply.next_event(POLL)? {
                ReplyEvent::Waiting { prefilled, total } if prefilled < total => {
                    let (prefilled, total) = (output::grouped(prefilled), output::grouped(total));
                    progress.show(&format!("prefilled {prefilled} of {total} prompt tokens"));
                }
                ReplyEvent::Waiting { .. } => {}
                ReplyEvent::Reasoning(text) => {
                    progress.clear();
                    decode.get_or_insert_with(|| self.power.begin());
                    thinking_printer = thinking_printer.or_else(ThinkingPrinter::new);
                    thinking_printer.as_mut().map_or(Ok(()), |printer| printer.push(&text))?;
                }
                ReplyEvent::Text(text) => {
                    progress.clear();
                    decode.get_or_insert_with(|| self.power.begin());
                    if !text.is_empty() {
                        thinking_printer.take().map_or(Ok(()), ThinkingPrinter::finish)?;
                    }
                    printer.push(&text)?;
                }
                ReplyEvent::Finished(_) => break,
            }
            if control.cancel.load(Ordering::Relaxed) {
                reply.cancel();
            }
        }
        let mut decode = decode.unwrap_or_default();
        self.power.end(&mut decode);
        drop(progress);
        let ChatReply { message, finish_reason, timings, ids } = reply.finish()?;
        thinking_printer.take().map_or(Ok(()), ThinkingPrinter::finish)?;
        printer.finish()?;
        let has_text = !message.text().is_empty();
        match finish_reason {
            FinishReason::Cancelled if !has_text => note!("(cancelled before the reply began)"),
            FinishReason::Cancelled => note!("(cancelled)"),
            FinishReason::ContextLength => note!("(context full: /clear starts a new conversation)"),
            FinishReason::StopToken | FinishReason::StopString | FinishReason::MaxTokens => {}
        }
        control.cancel.store(false, Ordering::Relaxed);
        self.last = Some(LastReply { timings, tokens: ids.len(), decode });
        Ok(has_text)
    }

    /// Prints the last message and its reply on a terminal, so that the user can see where the conversation stands.
    pub fn print_last_exchange(&self) -> anyhow::Result<()> {
        let messages = self.chat.messages();
        let last = messages.iter().rposition(|message| message.role == "user").unwrap_or(0);
        if !std::io::stdout().is_terminal() {
            return Ok(());
        }
        for message in &messages[last..] {
            let mut printer = Printer::new();
            if message.role == "user" {
                printer.push("> ")?;
            }
            printer.push(&message.text())?;
            printer.finish()?;
        }
        Ok(())
    }

    /// Prints the speed of the last reply, and how full the context is.
    pub fn print_stats(&self) -> anyhow::Result<()> {
        let mut used = 0;
        match &self.last {
            None => note!("No reply yet."),
            Some(LastReply { timings, tokens, decode }) => {
                render::note(&Speed::measure(&self.model, timings, decode)?.to_string(), 0);
                note!("{} prompt tokens came from the prefix cache.", timings.cached_tokens);
                // The last token is not in the cache.
                used = timings.prompt_tokens + tokens.saturating_sub(1);
            }
        }
        let messages = self.chat.messages().len();
        note!("{messages} messages, {used} of {} context tokens used.", self.context_length);
        Ok(())
    }
}
