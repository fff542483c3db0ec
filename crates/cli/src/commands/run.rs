//! `indrik run`: pulls a model if it is not there yet, then chats with it.

use std::{path::Path, process::ExitCode};

use clap::Args;
use store::Store;

use super::{
    chat::{self, ChatArguments},
    pull,
};

/// Chat with a model, after pulling it if it is not in the store yet
#[derive(Args)]
#[command(after_help = "Examples: indrik run smollm2\n          \
                        indrik run smollm2 -p \"What is the capital of France?\"\n          \
                        indrik run hf.co/ggml-org/gemma-3-4b-it-GGUF:Q8_0\n\n\
                        `indrik search` lists models by name. `indrik pull` has more options, `indrik chat` describes \
                        the chat.")]
pub struct Arguments {
    /// Name from `indrik search`, hf.co/OWNER/REPO[:QUANT], the URL of a .gguf file, or a local file
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    chat: ChatArguments,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let model = &arguments.model;
    if Path::new(model).exists() || Store::open_default()?.resolve(model).is_some() {
        return chat::chat(model, &arguments.chat);
    }
    let name = pull::pull_for_use(model, arguments.chat.load.device.as_deref())?;
    chat::chat(&name, &arguments.chat)
}
