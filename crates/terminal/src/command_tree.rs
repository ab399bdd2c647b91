//! A command line as data: `sanderling completions` asks the other programs for theirs, so that one script completes all.

use clap::{Arg, ArgAction, Command, ValueHint};
use serde::{Deserialize, Serialize};

/// A command, its options and its subcommands, as far as completion scripts need them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandTree {
    name: String,
    about: String,
    args: Vec<ArgTree>,
    subcommands: Vec<CommandTree>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ArgTree {
    id: String,
    long: Option<String>,
    short: Option<char>,
    help: String,
    takes_value: bool,
    values: Vec<String>,
}

/// Describes a command.
pub fn of(command: &Command) -> CommandTree {
    let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string).unwrap_or_default();
    let arg = |arg: &Arg| ArgTree {
        id: arg.get_id().to_string(),
        long: arg.get_long().map(str::to_owned),
        short: arg.get_short(),
        help: text(arg.get_help()),
        takes_value: arg.get_action().takes_values(),
        values: arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect(),
    };
    CommandTree {
        name: command.get_name().to_owned(),
        about: text(command.get_about()),
        args: command.get_arguments().filter(|it| !it.is_hide_set()).map(arg).collect(),
        subcommands: command.get_subcommands().filter(|it| !it.is_hide_set()).map(of).collect(),
    }
}

impl CommandTree {
    /// A command that completes alike; what it parses is of no use.
    pub fn into_command(self) -> Command {
        let CommandTree { name, about, args, subcommands } = self;
        let arg = |arg: ArgTree| {
            let ArgTree { id, long, short, help, takes_value, values } = arg;
            let built =
                Arg::new(id).help(help).action(if takes_value { ArgAction::Set } else { ArgAction::SetTrue });
            let built = long.map_or(built.clone(), |long| built.long(long));
            let built = short.map_or(built.clone(), |short| built.short(short));
            match takes_value {
                true if !values.is_empty() => built.value_parser(values),
                true => built.value_hint(ValueHint::AnyPath),
                false => built,
            }
        };
        Command::new(name)
            .about(about)
            .args(args.into_iter().map(arg))
            .subcommands(subcommands.into_iter().map(CommandTree::into_command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_the_same_after_its_description() {
        let mode = Arg::new("mode").long("mode").short('m').help("How").value_parser(["fast", "exact"]);
        let quiet = Arg::new("quiet").long("quiet").action(ArgAction::SetTrue);
        let run = Command::new("run").about("Run it").args([mode, quiet, Arg::new("file")]);
        let tree = of(&Command::new("load").about("Load tables").subcommand(run));
        let json = serde_json::to_string(&tree).expect("it is plain data");
        let read: CommandTree = serde_json::from_str(&json).expect("it was written so");
        assert_eq!(of(&read.clone().into_command()), tree);
        assert_eq!(read.subcommands[0].args[0].values, ["fast", "exact"]);
    }
}
