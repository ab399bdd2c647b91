//! The configuration that a run keeps in its directory, `config.toml` or, of a deep model, `config.json`: as entries with
//! dotted names. Knows no section.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Largest accepted configuration: boundaries of many features.
const BYTES_MAX: u64 = 16 << 20;

/// The entries of a run's configuration by their names, such as `model.rank`; empty without a configuration, as runs of
/// earlier versions are.
pub(crate) fn entries(run_dir: &Path) -> BTreeMap<String, Value> {
    let read = |name: &str| {
        let path = run_dir.join(name);
        let is_small =
            path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= BYTES_MAX);
        is_small.then(|| std::fs::read_to_string(path).ok()).flatten()
    };
    let toml = read("config.toml").and_then(|text| toml::from_str::<Value>(&text).ok());
    let config = toml.or_else(|| serde_json::from_str(&read("config.json")?).ok());
    let mut entries = BTreeMap::new();
    add("", config.unwrap_or_default(), &mut entries);
    entries
}

fn add(name: &str, value: Value, to: &mut BTreeMap<String, Value>) {
    let inner = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Null => {}
        Value::Object(map) => map.into_iter().for_each(|(key, value)| add(&inner(&key), value, to)),
        // Features are told apart by their names.
        Value::Array(elements) if elements.iter().any(|element| element.get("name").is_some()) => {
            for mut element in elements {
                let name = element.as_object_mut().and_then(|element| element.remove("name"));
                let name = name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
                add(&inner(&name), element, to);
            }
        }
        value => _ = to.insert(name.to_owned(), value),
    }
}

/// A value in a line of text.
pub(crate) fn shown(value: Option<&Value>) -> String {
    match value {
        None => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(values)) if values.iter().all(Value::is_string) => {
            values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }
        Some(Value::Array(values)) => format!("{} values", values.len()),
        Some(value) => value.to_string(),
    }
}

/// An entry that differs between two runs.
#[derive(Debug, PartialEq, serde::Serialize)]
pub(crate) struct Difference {
    pub(crate) entry: String,
    /// Absent where the run has no such entry.
    pub(crate) a: Option<Value>,
    pub(crate) b: Option<Value>,
}

/// The entries in which two configurations differ, but for the name of the run; none if one of them is not there.
pub(crate) fn differences(a: &BTreeMap<String, Value>, b: &BTreeMap<String, Value>) -> Vec<Difference> {
    if a.is_empty() || b.is_empty() {
        return Vec::new();
    }
    let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
    names.sort();
    names.dedup();
    let difference =
        |name: &&String| (*name != "name" && a.get(*name) != b.get(*name)).then(|| (*name).clone());
    let entry = |entry: String| Difference { a: a.get(&entry).cloned(), b: b.get(&entry).cloned(), entry };
    names.iter().filter_map(difference).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_differ() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(
                path.join(if text.starts_with('{') { "config.json" } else { "config.toml" }),
                text,
            )
            .unwrap();
            entries(&path)
        };
        let a = write(
            "a",
            "name = \"a\"\ndata = { train = [\"1.csv\"] }\n[model]\nrank = 8\n[[feature]]\nname = \"user\"\ntype = \"categorical\"\n",
        );
        let b = write(
            "b",
            "{\"name\": \"b\", \"data\": {\"train\": [\"1.csv\"], \"valid\": [\"2.csv\", \"3.csv\"]}, \"model\": {\"rank\": 16}, \
             \"feature\": [{\"name\": \"user\", \"type\": \"quantile\", \"boundaries\": [1, 2.5]}]}",
        );
        let found: Vec<String> = differences(&a, &b)
            .iter()
            .map(|it| format!("{} {} {}", it.entry, shown(it.a.as_ref()), shown(it.b.as_ref())))
            .collect();
        let expected = [
            "data.valid - 2.csv, 3.csv",
            "feature.user.boundaries - 2 values",
            "feature.user.type categorical quantile",
            "model.rank 8 16",
        ];
        assert_eq!(found, expected);
        assert_eq!(differences(&a, &a), []);
        assert_eq!(differences(&a, &entries(dir.path())), [], "a run without a configuration");
    }
}
