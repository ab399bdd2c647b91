//! The options of a process for its status page `/flags`: names, values, where the values are from. Decides nothing.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory};
use sanderling_control::PageOptions;
use sanderling_control::status_pages::Flag;

use crate::Cli;
use crate::profile::profiler;

/// The text before a default that a help says.
const DEFAULT: &str = "[default: ";

/// The command line of this process.
pub(crate) struct CommandLine<'a>(pub(crate) &'a [OsString]);

impl CommandLine<'_> {
    /// Settings of the status pages of a process with this name. `file` is that of [`CommandLine::flags`].
    pub(crate) fn pages(&self, file: &toml::Table, shown: bool, process: &'static str) -> PageOptions {
        PageOptions { flags: self.flags(file), shown, profiler: Some(profiler(process)), more: Vec::new() }
    }

    /// The options of the subcommand. `file` has those that a file gives, with `_` for `-`.
    fn flags(&self, file: &toml::Table) -> Vec<Flag> {
        let command = Cli::command();
        // It has been parsed before, so it can be parsed.
        let Ok(matches) = command.clone().try_get_matches_from(self.0) else { return Vec::new() };
        let Some((name, matches)) = matches.subcommand() else { return Vec::new() };
        command.find_subcommand(name).map(|command| flags(command, matches, file)).unwrap_or_default()
    }
}

fn flags(command: &Command, matches: &ArgMatches, file: &toml::Table) -> Vec<Flag> {
    let is_option = |arg: &&Arg| !["help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(is_option).map(|arg| flag(arg, matches, file)).collect()
}

fn flag(arg: &Arg, matches: &ArgMatches, file: &toml::Table) -> Flag {
    let id = arg.get_id().as_str();
    let value_name =
        || arg.get_value_names().and_then(|names| names.first()).map_or(id, |name| name.as_str());
    let name = arg.get_long().map_or_else(|| value_name().to_owned(), |long| format!("--{long}"));
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let (help, default) = match help.split_once(DEFAULT) {
        Some((help, default)) => (help.trim_end(), default.trim_end_matches(']')),
        None => (&*help, ""),
    };
    let raw = || {
        let values = matches.get_raw(id).into_iter().flatten();
        values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>().join(",")
    };
    let (value, from) = match (matches.value_source(id), file.get(id)) {
        (Some(ValueSource::CommandLine), _) => (raw(), Some("command line")),
        (_, Some(value)) => (text(value), Some("file")),
        (Some(_), None) => (raw(), None),
        (None, None) => (default.to_owned(), None),
    };
    Flag { name, value, from, help: help.to_owned() }
}

fn text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &str, file: &str, name: &str, value: &str, from: Option<&'static str>) {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let flags = CommandLine(&words).flags(&toml::from_str(file).expect(file));
        let flag = flags.iter().find(|flag| flag.name == name).expect(name);
        assert_eq!((&*flag.value, flag.from), (value, from), "{words:?} {file}");
        assert!(!flag.help.is_empty() && !flag.help.contains(DEFAULT), "{flag:?}");
    }

    #[test]
    fn values_and_where_they_are_from() {
        let line = Some("command line");
        for (words, file, name, value, from) in [
            ("sanderling ps", "", "--listen", "127.0.0.1:7000", None),
            ("sanderling ps --listen a:1,b:2", "listen = ['c:3']", "--listen", "a:1,b:2", line),
            ("sanderling ps", "listen = ['c:3', 'd:4']", "--listen", "c:3,d:4", Some("file")),
            ("sanderling ps", "threads = 3", "--threads", "3", Some("file")),
            ("sanderling ps", "", "--pin", "false", None),
            ("sanderling ps --pin", "", "--pin", "true", line),
            ("sanderling ps", "save_every = '1m'", "--save-every", "1m", Some("file")),
            ("sanderling keeper --data d", "", "--listen", "127.0.0.1:7400", None),
            ("sanderling hub --spec s a.csv b.csv", "", "DATA", "a.csv,b.csv", line),
            ("sanderling serve m", "", "--timeout", "1s", None),
        ] {
            check(words, file, name, value, from);
        }
    }
}
