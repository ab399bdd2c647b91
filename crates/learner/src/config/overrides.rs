//! Entries of a configuration that the command line sets: `model.rank=16`. Knows no section and no entry.

use std::fmt;
use std::str::FromStr;

use toml::{Table, Value};

/// An entry and its new value: `SECTION.ENTRY=VALUE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// As it was written.
    text: String,
    /// Tables around the value.
    entry: Table,
}

impl FromStr for Override {
    type Err = String;

    /// Reads `SECTION.ENTRY=VALUE`. The value is TOML; one that is no TOML is text, so that quotes may be left out.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not ENTRY=VALUE, such as model.rank=16");
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let entry = toml::from_str(&format!("{name} = {value}"))
            .or_else(|_| toml::from_str(&format!("{name} = {}", Value::from(value.trim()))))
            .map_err(|_| wrong())?;
        Ok(Override { text: text.to_owned(), entry })
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Override {
    /// The top-level entry or section.
    #[must_use]
    pub fn section(&self) -> &str {
        self.entry.keys().next().map_or("", String::as_str)
    }

    /// Sets the entry. Of an array of tables, as `[[feature]]` makes it, an element is chosen by its name.
    ///
    /// # Errors
    /// The entry is inside something that is no table, or the array has no element of this name.
    pub fn apply(&self, config: &mut Table) -> Result<(), String> {
        merge(config, &self.entry, "").map_err(|reason| format!("--set {}: {reason}", self.text))
    }
}

/// Sets entries of a configuration that is not a run's of this crate: one of a deep model.
///
/// # Errors
/// An entry that cannot be read or set.
pub fn set_entries(config: &serde_json::Value, entries: &[String]) -> Result<serde_json::Value, String> {
    let mut table = Table::try_from(config).map_err(|error| error.to_string())?;
    for text in entries {
        let entry = text.parse::<Override>().map_err(|reason| format!("--set {reason}"))?;
        entry.apply(&mut table)?;
    }
    serde_json::to_value(table).map_err(|error| error.to_string())
}

fn merge(into: &mut Table, entry: &Table, path: &str) -> Result<(), String> {
    for (name, value) in entry {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let Value::Table(inner) = value else {
            into.insert(name.clone(), value.clone());
            continue;
        };
        match into.entry(name.clone()).or_insert_with(|| Table::new().into()) {
            Value::Table(table) => merge(table, inner, &path)?,
            Value::Array(elements) => merge_named(elements, inner, &path)?,
            _ => return Err(format!("{path} is no table")),
        }
    }
    Ok(())
}

/// Merges into the elements of an array that have the names of the entry.
fn merge_named(elements: &mut [Value], entry: &Table, path: &str) -> Result<(), String> {
    for (name, value) in entry {
        let Value::Table(inner) = value else { return Err(format!("{path}.{name} is no table")) };
        let is_named = |element: &Value| element.get("name").and_then(Value::as_str) == Some(name.as_str());
        match elements.iter_mut().find(|element| is_named(element)).and_then(Value::as_table_mut) {
            Some(table) => merge(table, inner, &format!("{path}.{name}"))?,
            None => {
                return Err(format!(
                    "no [[{path}]] has the name {name:?}; members of `each` have none of their own"
                ));
            }
        }
    }
    Ok(())
}

/// Sets entries of a configuration and reads it.
///
/// # Errors
/// The error of `read`, with the first override without which it is not there.
pub(super) fn read_with<T>(
    config: &Table,
    overrides: &[Override],
    read: impl Fn(Table) -> Result<T, String>,
) -> Result<T, String> {
    let mut set = config.clone();
    overrides.iter().try_for_each(|entry| entry.apply(&mut set))?;
    let error = match read(set) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let mut set = config.clone();
    if overrides.is_empty() || read(set.clone()).is_err_and(|before| before == error) {
        return Err(error);
    }
    for entry in overrides {
        entry.apply(&mut set)?;
        if read(set.clone()).is_err_and(|with| with == error) {
            return Err(format!("--set {}: {error}", entry.text));
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_toml_or_text() {
        let base =
            "model = { rank = 8 }\ndata = { train = \"a.csv\" }\n[[feature]]\nname = \"age\"\nbuckets = 4\n";
        for (text, expected) in [
            ("model.rank=16", Ok("model.rank = 16")),
            ("model . rank = 16", Ok("model.rank = 16")),
            ("model.type=fm", Ok("model.type = \"fm\"")),
            ("model.type='fm'", Ok("model.type = \"fm\"")),
            ("seed=7", Ok("seed = 7")),
            (
                "train.schedule={ type = \"exponential\", factor = .9 }",
                Ok("train.schedule = \"{ type = \\\"exponential\\\", factor = .9 }\""),
            ),
            (
                "train.schedule={ type = \"exponential\", factor = 0.9 }",
                Ok("train.schedule = { type = \"exponential\", factor = 0.9 }"),
            ),
            ("data.train=[\"b.csv\", \"c.csv\"]", Ok("data.train = [\"b.csv\", \"c.csv\"]")),
            ("data.train=b=c.csv", Ok("data.train = \"b=c.csv\"")),
            ("data.separator=;", Ok("data.separator = \";\"")),
            ("model.rank", Err("\"model.rank\" is not ENTRY=VALUE, such as model.rank=16")),
            ("=16", Err("is not ENTRY=VALUE")),
            ("a b=16", Err("is not ENTRY=VALUE")),
            ("data.train.x=1", Err("--set data.train.x=1: data.train is no table")),
            ("feature.user.buckets=5", Err("no [[feature]] has the name \"user\"")),
            ("feature.age=5", Err("feature.age is no table")),
        ] {
            let mut table: Table = toml::from_str(base).unwrap();
            let set = text.parse().and_then(|entry: Override| entry.apply(&mut table));
            match (set, expected) {
                (Ok(()), Ok(entry)) => {
                    let mut wanted: Table = toml::from_str(base).unwrap();
                    let entry: Table = toml::from_str(entry).unwrap();
                    for (section, value) in entry {
                        match (wanted.get_mut(&section), value) {
                            (Some(Value::Table(table)), Value::Table(value)) => table.extend(value),
                            (_, value) => _ = wanted.insert(section, value),
                        }
                    }
                    assert_eq!(table, wanted, "{text}");
                }
                (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
                (got, expected) => panic!("{text}: {got:?}, expected {expected:?}"),
            }
        }
        let mut table: Table = toml::from_str(base).unwrap();
        "feature.age.buckets=5".parse::<Override>().unwrap().apply(&mut table).unwrap();
        assert_eq!(table["feature"][0]["buckets"], Value::from(5));
    }
}
