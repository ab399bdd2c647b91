//! `sanderling completions`: print a shell completion script.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::command::external::{NAMES, Programs};
use crate::failure::Failure;

/// Print a shell completion script
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # in this shell
  source <(sanderling completions bash)
  # in every new shell
  mkdir -p ~/.local/share/bash-completion/completions
  sanderling completions bash \\
      > ~/.local/share/bash-completion/completions/sanderling")]
pub(crate) struct Args {
    /// Shell to complete in
    shell: Shell,
}

pub(crate) fn run(args: &Args, programs: &Programs) -> Result<u8, Failure> {
    let mut command = crate::Cli::command();
    for name in NAMES {
        if let Some(whole) = programs.command(name) {
            command = command.mut_subcommand(name, |_| whole);
        }
    }
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "sanderling", &mut script);
    crate::output::text(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}
