//! `cistern completions`: what a shell needs to complete commands and options.

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::aot::Shell as Dialect;

use crate::{
    cli::Cli,
    failure::{Failure, Outcome},
};

/// Print what a shell needs to complete commands and options of cistern
///
/// The Debian package has it installed already.
#[derive(Args)]
#[command(after_help = "\
Examples:
  source <(cistern completions bash)                                      for this shell
  cistern completions bash > ~/.local/share/bash-completion/completions/cistern
  cistern completions zsh > /usr/local/share/zsh/site-functions/_cistern
  cistern completions fish > ~/.config/fish/completions/cistern.fish")]
pub(super) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    /// GNU Bash, with or without the package bash-completion
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
}

impl Shell {
    pub(super) fn name(self) -> &'static str {
        match self {
            Shell::Bash => "bash",
            Shell::Zsh => "zsh",
            Shell::Fish => "fish",
        }
    }

    /// What the shell reads.
    pub(super) fn script(self) -> Vec<u8> {
        let dialect = match self {
            Shell::Bash => Dialect::Bash,
            Shell::Zsh => Dialect::Zsh,
            Shell::Fish => Dialect::Fish,
        };
        let mut out = Vec::new();
        clap_complete::aot::generate(dialect, &mut Cli::command(), "cistern", &mut out);
        out
    }
}

impl Completions {
    pub fn run(self) -> Outcome {
        std::io::Write::write_all(&mut std::io::stdout(), &self.shell.script())
            .map_err(|e| Failure::io("cannot write the completions", &e))
    }
}
