//! Generates text and prints the measured speed.
//!
//! ```text
//! cargo run --release -p indrik --example generate -- MODEL "The mitochondria is"
//! ```

use std::{error::Error, io::Write};

use indrik::{GenerateOptions, Model, Options};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("usage: generate MODEL [PROMPT]")?;
    let prompt = arguments.next().unwrap_or_else(|| "The mitochondria is".to_owned());
    run(&model, &prompt, &mut std::io::stdout())
}

/// Writes the completion as it is generated, then its speed.
pub fn run(model: &str, prompt: &str, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let model = Model::open(model, Options::default())?;
    let options = GenerateOptions { max_tokens: Some(32), ..GenerateOptions::default() };
    let mut generation = model.generate(prompt, options)?;
    for piece in &mut generation {
        write!(out, "{}", piece?.text)?;
        out.flush()?;
    }
    let completion = generation.finish_completion()?;
    let timings = completion.timings;
    let decode = timings.decode_tokens_per_second().unwrap_or_default();
    writeln!(out, "\n{} tokens ({:?})", completion.ids.len(), completion.finish_reason)?;
    writeln!(out, "prefill {:.1} tok/s, decode {decode:.1} tok/s", timings.prefill_tokens_per_second())?;
    Ok(())
}
