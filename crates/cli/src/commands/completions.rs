//! `indrik completions`: completion scripts for shells.

use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};
use clap_complete::shells;

use crate::output;

/// Print the completion script of a shell
#[derive(Args)]
#[command(
    after_help = "Example: indrik completions bash > ~/.local/share/bash-completion/completions/indrik\n\n\
    zsh reads _indrik in a folder of its fpath, fish ~/.config/fish/completions/indrik.fish. The packages install all \
    three."
)]
pub struct Arguments {
    /// Shell that will read the script
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub fn run(arguments: &Arguments, mut command: Command) -> anyhow::Result<ExitCode> {
    let name = command.get_name().to_owned();
    // Into memory first: clap_complete panics where writing fails, as on a closed pipe.
    let mut script = vec![];
    match arguments.shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, &mut script),
    }
    output::print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
