//! Prints the five most probable next tokens after a prompt.
//!
//! ```text
//! cargo run --release -p indrik --example logits -- MODEL "The capital of France is"
//! ```

use std::{error::Error, io::Write};

use indrik::{Model, Options};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: logits MODEL [PROMPT]")?;
    let prompt = arguments.next().unwrap_or_else(|| "The capital of France is".to_owned());
    run(&model, &prompt, &mut std::io::stdout())
}

/// Writes one line per token: its probability, id and text.
pub fn run(model: &str, prompt: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let model = Model::open(model, Options { all_logits: true, ..Options::default() })?;
    let language = model.language()?;
    let ids = language.tokenizer.encode_prompt(prompt);
    let logits = model.logits(&ids)?.pop().ok_or("the prompt is empty")?;

    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - max).exp()).sum();
    let mut tokens: Vec<(u32, f32)> =
        (0..).zip(&logits).map(|(id, logit)| (id, (logit - max).exp() / sum)).collect();
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (id, probability) in &tokens[..5] {
        let name = language.tokenizer.token_name(*id).unwrap_or_default();
        writeln!(out, "{:5.1}%  {id:6}  {name:?}", probability * 100.0)?;
    }
    Ok(())
}
