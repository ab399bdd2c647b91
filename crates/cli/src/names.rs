//! Test: settings have one name, unit and default in TOML, on the command line and in Python (`docs/names.toml`).

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Command, CommandFactory};
use sanderling_learner::Config;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    name: Vec<Name>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    what: String,
    unit: String,
    #[serde(default)]
    toml: BTreeMap<String, String>,
    #[serde(default)]
    cli: BTreeMap<String, String>,
    #[serde(default)]
    python: BTreeMap<String, String>,
}

/// The default of an option: from clap, or from `[default: ...]` in its help.
fn option_default(command: &Command, words: &str) -> Option<(String, String)> {
    let (name, option) = words.split_once(" --")?;
    let command = command.find_subcommand(name)?;
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(option))?;
    let value_name = arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    let given = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let said = help.split_once("[default: ").map(|(_, rest)| rest.trim_end_matches(']').to_owned());
    let default = given.or(said).unwrap_or_default();
    if !default.contains(|c: char| c.is_ascii_digit()) {
        return Some((String::new(), value_name.to_owned()));
    }
    // Of "train.batch_size of --config, or 1024", the last word holds without a configuration.
    let last = default.rsplit([' ', ',']).next().unwrap_or_default();
    Some((last.to_owned(), value_name.to_owned()))
}

/// The default of an argument or field in a Python file.
fn python_default(folder: &Path, words: &str) -> Option<String> {
    let mut words = words.split(' ');
    let (file, owner, name) = (words.next()?, words.next()?, words.next()?);
    let text = std::fs::read_to_string(folder.join(file)).ok()?;
    let starts = |line: &str| {
        ["class ", "def "].iter().any(|word| {
            line.strip_prefix(word)
                .and_then(|rest| rest.strip_prefix(owner))
                .is_some_and(|rest| rest.starts_with(['(', ':']))
        })
    };
    let body = text.lines().skip_while(|line| !starts(line)).skip(1);
    let body = body.take_while(|line| !line.starts_with("class ") && !line.starts_with("def "));
    let prefix = format!("{name}: ");
    let line = body.map(str::trim).find(|line| line.starts_with(&prefix))?;
    Some(line.split_once(" = ").map_or("", |(_, value)| value).trim_end_matches(',').to_owned())
}

#[test]
fn settings_have_one_name_unit_and_default_everywhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("docs/names.toml")).expect("the table is there");
    let names: Names = toml::from_str(&table).expect("the table is TOML");
    let command = crate::Cli::command();
    let config =
        Config::parse("data = { train = \"a.svm\" }", Path::new("c.toml"), "c").expect("it is complete");
    let config = serde_json::to_value(config).expect("it is JSON");
    let mut wrong = Vec::new();
    for name in &names.name {
        let mut check = |place: &str, expected: &str, found: Option<String>| match found {
            None => wrong.push(format!("{}: there is no {place}", name.what)),
            Some(found) if found != expected => {
                wrong.push(format!("{}: {place} has the default {found:?}, not {expected:?}", name.what));
            }
            Some(_) => {}
        };
        for (place, expected) in &name.toml {
            let value = place.split('.').try_fold(&config, |value, key| value.get(key));
            // An entry without a default is left out.
            check(place, expected, Some(value.map_or_else(String::new, ToString::to_string)));
            let Some((section, key)) = place.rsplit_once('.') else { continue };
            let text = format!("data = {{ train = \"a.svm\" }}\n[{section}]\n{key} = []");
            let error = Config::parse(&text, Path::new("c.toml"), "c").map_err(|error| error.to_string());
            let unknown = error.is_err_and(|error| error.contains("unknown field"));
            check(place, "known", Some(if unknown { "unknown" } else { "known" }.to_owned()));
        }
        for (place, expected) in &name.cli {
            let found = option_default(&command, place);
            let value_name = found.as_ref().map(|(_, value_name)| value_name.clone());
            check(place, expected, found.map(|(default, _)| default));
            match &*name.unit {
                "duration" => check(place, "TIME", value_name),
                "bytes" => check(place, "BYTES", value_name),
                "file" => check(place, "FILE", value_name),
                _ => {}
            }
        }
        for (place, expected) in &name.python {
            check(place, expected, python_default(&root.join("python/sanderling"), place));
            let ending = match &*name.unit {
                "duration" => "_s",
                "bytes" => "_bytes",
                _ => "",
            };
            assert!(place.ends_with(ending), "{place} is of unit {} and must end in {ending}", name.unit);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
