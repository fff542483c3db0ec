//! Conversations in the model's own chat format, with tools if its template supports them.

use std::{sync::Arc, time::Duration};

use grammar::{GrammarCompiler, NonCallOutput, ToolCallGrammar, ToolSpec};
use model::language::Language;
use text::{
    Content, Message, Part, PromptOptions, ThinkingConstraint, ThinkingEvent, ThinkingFormat, ThinkingParser,
    TokenConstraint, Tool, ToolCall, ToolCallEvent, ToolCallFormat, ToolCallParser, ToolSupport,
    set_thinking,
};

use crate::{
    Completion, Error, FinishReason, GenerateOptions, Generation, GenerationEvent, Model, Prompt,
    PromptImage, Result, Timings, conversation::Conversation, sampling::random_seed,
};

/// Whether the model may or must call a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The tools are described to the model, but must not be called.
    None,
    /// Every reply is a tool call.
    Required,
}

/// A conversation: its messages, and how replies are generated.
///
/// Earlier turns are found in the prefix cache, so each reply prefills only the new tokens. When the
/// conversation no longer fits the context, its oldest exchanges are dropped.
pub struct Chat {
    model: Model,
    language: Arc<Language>,
    /// Instructions before the first message.
    pub system: Option<String>,
    /// How replies are generated.
    pub options: GenerateOptions,
    /// Whether the model thinks before it replies, if its chat template has a switch for it. `None`: the template's
    /// default.
    pub thinking: Option<bool>,
    /// How the model delimits its thinking, if its template supports it.
    thinking_format: Option<ThinkingFormat>,
    conversation: Conversation,
    tools: Option<Tools>,
}

/// Tools offered to the model, and the format of their calls.
struct Tools {
    tools: Vec<Tool>,
    format: ToolCallFormat,
    choice: ToolChoice,
    /// `None` with [`ToolChoice::None`].
    grammar: Option<grammar::Grammar>,
}

impl Chat {
    pub(crate) fn new(model: &Model) -> Result<Self> {
        let language = model.language()?;
        let template = language.template.as_ref().ok_or_else(|| model.files().no_chat_template())?;
        let thinking_format = template.thinking_format(&language.tokenizer);
        let mut sampling = model.files().recommended_sampling();
        sampling.seed = random_seed();
        let options = GenerateOptions { sampling, ..GenerateOptions::default() };
        Ok(Self {
            model: model.clone(),
            language,
            system: None,
            options,
            thinking: None,
            thinking_format,
            conversation: Conversation::default(),
            tools: None,
        })
    }

    /// Offers tools to the model. Their calls are constrained to the tools' JSON schemas.
    pub fn with_tools(mut self, tools: Vec<Tool>, choice: ToolChoice) -> Result<Self> {
        let unsupported = |reason| Error::ToolsUnsupported { path: self.model.files().path().into(), reason };
        let template =
            self.language.template.as_ref().ok_or_else(|| self.model.files().no_chat_template())?;
        let format = match template.tool_support(&self.language.tokenizer) {
            ToolSupport::Format(format) => format,
            ToolSupport::UnknownFormat => return Err(unsupported("writes tool calls in an unknown format")),
            ToolSupport::None => return Err(unsupported("does not support tools")),
        };
        self.tools = Some(Tools { tools, format, choice, grammar: None });
        self.set_tool_choice(choice)?;
        Ok(self)
    }

    /// Changes whether the next replies may or must call a tool. Without tools it has no effect.
    pub fn set_tool_choice(&mut self, choice: ToolChoice) -> Result<()> {
        let Some(tools) = &mut self.tools else { return Ok(()) };
        let without_calls = match choice {
            ToolChoice::Auto => Some(NonCallOutput::Text),
            ToolChoice::Required => Some(NonCallOutput::Forbidden),
            ToolChoice::None => None,
        };
        let spec = |(index, tool): (usize, &Tool)| ToolSpec {
            index,
            name: tool.name.clone(),
            parameters: tool.parameters.clone(),
            strict: false,
        };
        tools.grammar = match without_calls {
            None => None,
            Some(without_calls) => {
                let vocab = self.model.files().config().vocab;
                let Language { tokenizer, stop_token_ids, .. } = &*self.language;
                let compiler = GrammarCompiler::new(tokenizer, vocab, stop_token_ids)?;
                Some(compiler.tool_calls(&ToolCallGrammar {
                    format: tools.format.clone(),
                    tools: tools.tools.iter().enumerate().map(spec).collect(),
                    parallel: true,
                    without_calls,
                })?)
            }
        };
        tools.choice = choice;
        Ok(())
    }

    /// The messages so far, without the system message.
    pub fn messages(&self) -> &[Message] {
        self.conversation.messages()
    }

    /// Removes all messages. The system message stays.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// The images of the messages from `start` on, in order.
    pub fn images_from(&self, start: usize) -> &[PromptImage] {
        self.conversation.images_from(start)
    }

    /// Keeps the first `count` messages, for example to replace the last reply.
    pub fn truncate(&mut self, count: usize) {
        self.conversation.truncate(count);
    }

    /// Adds a message without requesting a reply, for example to restore a conversation. Images in it are left out.
    pub fn push(&mut self, mut message: Message) {
        if message.image_count() > 0 {
            message.content = Some(message.text().into_owned().into());
        }
        self.push_text(message);
    }

    /// Adds a message with one image for each of its image parts, without requesting a reply.
    pub fn push_with_images(&mut self, message: Message, images: Vec<PromptImage>) -> Result<()> {
        self.conversation.push(message, images)
    }

    /// Adds a message without images.
    fn push_text(&mut self, message: Message) {
        self.conversation.push(message, vec![]).expect("a message without images");
    }

    /// Adds the result of a tool call. [`Chat::reply`] then continues the conversation.
    pub fn push_tool_result(&mut self, call: &ToolCall, content: impl Into<String>) {
        self.push_text(Message {
            tool_call_id: Some(call.id.clone()),
            name: Some(call.name.clone()),
            ..Message::new("tool", content.into())
        });
    }

    /// Adds a user message and starts the reply. If the reply fails, is dropped or stays empty, the message
    /// is removed again.
    pub fn send(&mut self, text: impl Into<String>) -> Result<Reply<'_>> {
        self.send_with_images(text, vec![])
    }

    /// [`Chat::send`] with images, which come before the text.
    pub fn send_with_images(
        &mut self,
        text: impl Into<String>,
        images: Vec<PromptImage>,
    ) -> Result<Reply<'_>> {
        let content = match images.len() {
            0 => Content::Text(text.into()),
            count => {
                let parts = std::iter::repeat_n(Part::Image, count).chain([Part::Text(text.into())]);
                Content::Parts(parts.collect())
            }
        };
        self.push_with_images(Message::new("user", content), images)?;
        match self.start() {
            Ok(started) => Ok(Reply::new(self, started, 1)),
            Err(error) => {
                self.truncate(self.messages().len() - 1);
                Err(error)
            }
        }
    }

    /// Starts a reply to the messages so far.
    pub fn reply(&mut self) -> Result<Reply<'_>> {
        let started = self.start()?;
        Ok(Reply::new(self, started, 0))
    }

    fn start(&mut self) -> Result<Started> {
        let (prompt, dropped) = self.prompt()?;
        let images = self.images_from(dropped).to_vec();
        let mut options = self.options.clone();
        if let Some(tools) = &self.tools
            && let Some(grammar) = &tools.grammar
        {
            options.constraint = Some(Box::new(grammar.matcher()));
            options.visible_control_tokens = tools.format.control_tokens.iter().map(|(_, id)| *id).collect();
        }
        let Language { tokenizer, stop_token_ids, .. } = &*self.language;
        let mut thinking_parser = None;
        if let Some(format) = &self.thinking_format {
            let open = format.is_open(tokenizer, &prompt);
            let may_start = self.thinking != Some(false);
            let tools = self.tools.as_ref().filter(|tools| tools.grammar.is_some());
            let trigger = tools.and_then(|tools| tools.format.control_trigger());
            let after_thinking = |inner: Box<dyn TokenConstraint>| -> Box<dyn TokenConstraint> {
                let stops = options.stop_token_ids.as_ref().unwrap_or(stop_token_ids);
                let constraint = ThinkingConstraint::new(inner, format, tokenizer, stops, open, may_start);
                Box::new(constraint.ending_at(trigger.map(|(_, id)| id)))
            };
            options.constraint = options.constraint.take().map(after_thinking);
            options.visible_control_tokens.extend(format.control_tokens.iter().map(|(_, id)| *id));
            // The text of a call may contain anything.
            let parser = ThinkingParser::new(format.clone(), open, self.tools.is_none());
            thinking_parser = Some(parser.ending_at(trigger.map(|(name, _)| name)));
        }
        let generation = self.model.generate(Prompt::IdsWithImages { ids: prompt, images }, options)?;
        self.conversation.drop_oldest(dropped);
        Ok(Started { generation, dropped, thinking_parser })
    }

    /// The conversation as tokens, and how many of its oldest messages do not fit.
    fn prompt(&self) -> Result<(Vec<u32>, usize)> {
        let context = self.model.capacity().context_length;
        let template =
            self.language.template.as_ref().ok_or_else(|| self.model.files().no_chat_template())?;
        let tools = self.tools.as_ref().map_or(&[][..], |tools| &tools.tools);
        let mut options = PromptOptions::default();
        if let Some(thinking) = self.thinking {
            set_thinking(&mut options.variables, thinking);
        }
        let system = self.system.as_deref();
        let (prompt, dropped) =
            self.conversation.prompt(&self.language, template, system, tools, &options, context)?;
        model::check_tokens(self.model.files().config(), 0, &prompt, context)?;
        Ok((prompt, dropped))
    }
}

/// A generation, and how many old messages were dropped for it.
struct Started {
    generation: Generation,
    dropped: usize,
    thinking_parser: Option<ThinkingParser>,
}

/// A reply in progress: an iterator over its text. Dropping it before [`Reply::finish`] discards it.
pub struct Reply<'a> {
    chat: &'a mut Chat,
    generation: Option<Generation>,
    thinking_parser: Option<ThinkingParser>,
    call_parser: Option<ToolCallParser>,
    reasoning: String,
    content: String,
    /// Text that was received together with thinking, and is returned after it.
    pending: Option<String>,
    /// Why it ended, once it has.
    finished: Option<FinishReason>,
    tool_calls: Vec<(String, String)>,
    dropped: usize,
    /// Messages to remove again if the reply is discarded.
    uncommitted: usize,
}

/// A finished reply.
#[derive(Clone, Debug)]
pub struct ChatReply {
    /// The assistant's message, as it was added to the conversation.
    pub message: Message,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Token ids of the reply, including the markers of tool calls.
    pub ids: Vec<u32>,
    /// Measurements.
    pub timings: Timings,
}

/// An event of a reply, from [`Reply::next_event`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent {
    /// Nothing new within the timeout.
    Waiting {
        /// Prompt tokens prefilled so far, without cached ones.
        prefilled: usize,
        /// Prompt tokens to prefill.
        total: usize,
    },
    /// More of what the model thinks before it replies, not empty. It is not part of the reply's text.
    Reasoning(String),
    /// New text, possibly empty.
    Text(String),
    /// The reply has ended: call [`Reply::finish`].
    Finished(FinishReason),
}

impl<'a> Reply<'a> {
    fn new(chat: &'a mut Chat, started: Started, uncommitted: usize) -> Self {
        let call_parser = chat.tools.as_ref().filter(|tools| tools.choice != ToolChoice::None).map(|tools| {
            let schemas = tools.tools.iter().map(|tool| (tool.name.as_str(), tool.parameters.as_ref()));
            let parser = ToolCallParser::new(tools.format.clone(), tools.choice == ToolChoice::Auto);
            parser.with_schemas(schemas)
        });
        let Started { generation, dropped, thinking_parser } = started;
        Self {
            chat,
            generation: Some(generation),
            thinking_parser,
            call_parser,
            reasoning: String::new(),
            content: String::new(),
            pending: None,
            finished: None,
            tool_calls: vec![],
            dropped,
            uncommitted,
        }
    }

    /// Number of old messages that were dropped because the context was full.
    pub fn dropped_messages(&self) -> usize {
        self.dropped
    }

    /// Waits for new text, at most for `timeout`.
    pub fn next_event(&mut self, timeout: Duration) -> Result<ReplyEvent> {
        if let Some(text) = self.pending.take() {
            return Ok(ReplyEvent::Text(text));
        }
        if let Some(reason) = self.finished {
            return Ok(ReplyEvent::Finished(reason));
        }
        let Some(generation) = &mut self.generation else {
            return Ok(ReplyEvent::Finished(FinishReason::Cancelled));
        };
        match generation.next_event(timeout)? {
            GenerationEvent::Waiting { prefilled } => {
                let total = generation.prompt_ids().len() - generation.cached_tokens();
                Ok(ReplyEvent::Waiting { prefilled, total })
            }
            GenerationEvent::Piece(piece) => {
                let (thought, text) = self.push(&piece.text);
                if thought.is_empty() {
                    return Ok(ReplyEvent::Text(text));
                }
                self.pending = Some(text).filter(|text| !text.is_empty());
                Ok(ReplyEvent::Reasoning(thought))
            }
            GenerationEvent::Finished(reason) => {
                // Parsers may hold text that could have become a delimiter.
                let (thought, text) = self.flush();
                self.finished = Some(reason);
                self.pending = Some(text).filter(|text| !text.is_empty());
                match thought.is_empty() {
                    true => self.next_event(timeout),
                    false => Ok(ReplyEvent::Reasoning(thought)),
                }
            }
        }
    }

    /// The thinking and the text that the parsers still hold.
    fn flush(&mut self) -> (String, String) {
        let events = self.thinking_parser.as_mut().map(ThinkingParser::finish).unwrap_or_default();
        let (thought, mut text) = self.apply_thinking(events);
        let events = self.call_parser.as_mut().map(ToolCallParser::finish).unwrap_or_default();
        text += &self.apply(events);
        (thought, text)
    }

    /// Ends the reply now. Text generated so far is kept.
    pub fn cancel(&mut self) {
        if let Some(generation) = &mut self.generation {
            generation.cancel();
        }
    }

    /// Waits for the end of the reply, adds the assistant's message to the conversation and returns it.
    pub fn finish(mut self) -> Result<ChatReply> {
        while !matches!(self.next_event(Duration::from_secs(60))?, ReplyEvent::Finished(_)) {}
        let Some(generation) = self.generation.take() else {
            // The iterator has returned the error already.
            return Err(engine::RequestError::Internal("the reply has failed".into()).into());
        };
        let Completion { ids, finish_reason, timings, .. } = generation.finish_completion()?;
        let message = self.message();
        let empty = message.tool_calls.is_empty() && message.text().is_empty();
        if !empty {
            self.uncommitted = 0;
            self.chat.push_text(message.clone());
        }
        Ok(ChatReply { message, finish_reason, ids, timings })
    }

    /// Separates thinking, text and tool calls; returns the thinking and the text.
    fn push(&mut self, text: &str) -> (String, String) {
        match &mut self.thinking_parser {
            None => (String::new(), self.push_answer(text)),
            Some(parser) => {
                let events = parser.push(text);
                self.apply_thinking(events)
            }
        }
    }

    /// Adds thinking and text to the message; returns both.
    fn apply_thinking(&mut self, events: Vec<ThinkingEvent>) -> (String, String) {
        let (mut thought, mut answer) = (String::new(), String::new());
        for event in events {
            match event {
                ThinkingEvent::Thinking(text) => thought += &text,
                ThinkingEvent::Text(text) => answer += &self.push_answer(&text),
                ThinkingEvent::Markup(_) => {}
            }
        }
        self.reasoning += &thought;
        (thought, answer)
    }

    /// Separates text from tool calls; returns the text.
    fn push_answer(&mut self, text: &str) -> String {
        match &mut self.call_parser {
            None => {
                self.content += text;
                text.to_owned()
            }
            Some(parser) => {
                let events = parser.push(text);
                self.apply(events)
            }
        }
    }

    /// Adds text and tool calls to the message; returns the text.
    fn apply(&mut self, events: Vec<ToolCallEvent>) -> String {
        let mut new_text = String::new();
        for event in events {
            match event {
                ToolCallEvent::Text(text) => new_text += &text,
                ToolCallEvent::Start { name, .. } => self.tool_calls.push((name, String::new())),
                ToolCallEvent::Arguments { json, .. } => {
                    if let Some((_, arguments)) = self.tool_calls.last_mut() {
                        *arguments += &json;
                    }
                }
                ToolCallEvent::Markup(_) => {}
            }
        }
        self.content += &new_text;
        new_text
    }

    fn message(&self) -> Message {
        let reasoning = Some(self.reasoning.clone()).filter(|reasoning| !reasoning.is_empty());
        if self.tool_calls.is_empty() {
            return Message { reasoning, ..Message::new("assistant", &*self.content) };
        }
        // Whitespace before a call is part of its markup.
        let content = Some(self.content.trim_end()).filter(|text| !text.is_empty()).map(str::to_owned);
        let earlier: usize = self.chat.messages().iter().map(|message| message.tool_calls.len()).sum();
        let call = |(number, (name, arguments)): (usize, &(String, String))| ToolCall {
            // Nine letters and digits: the only form that the strictest templates accept.
            id: format!("call{:05}", earlier + number),
            name: name.clone(),
            // Incomplete arguments are not valid JSON and are kept as text.
            arguments: serde_json::from_str(arguments).unwrap_or_else(|_| arguments.as_str().into()),
        };
        let tool_calls = self.tool_calls.iter().enumerate().map(call).collect();
        Message { reasoning, ..Message::with_tool_calls(content, tool_calls) }
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        loop {
            match self.next_event(Duration::from_secs(60)) {
                Ok(ReplyEvent::Waiting { .. } | ReplyEvent::Reasoning(_)) => {}
                Ok(ReplyEvent::Text(text)) => return Some(Ok(text)),
                Ok(ReplyEvent::Finished(_)) => return None,
                Err(error) => {
                    self.generation = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        let committed = self.chat.messages().len() - self.uncommitted;
        self.chat.truncate(committed);
    }
}
