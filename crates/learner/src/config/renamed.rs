//! Entries of a configuration that have another name now.
//!
//! A configuration that a person writes must use the new names: an old one is an error that says the new one. Saved models
//! keep the configuration of their run, so there an old name is read as the new one.

use toml::{Table, Value};

/// Section, old name, new name.
pub const RENAMED: [(&str, &str, &str); 6] = [
    ("train", "batch", "batch_size"),
    ("train", "shuffle", "shuffle_rows"),
    ("train", "save_every", "save_every_steps"),
    ("train", "print_every", "print_every_steps"),
    ("train", "ps_timeout_s", "ps_timeout"),
    ("model", "table_budget_bytes", "table_budget"),
];

/// Refuses old names; `has` tells whether a section has an entry.
pub(super) fn refuse(has: impl Fn(&str, &str) -> bool) -> Result<(), String> {
    match RENAMED.iter().find(|(section, old, _)| has(section, old)) {
        Some((section, old, new)) => {
            let unit = match *new {
                "ps_timeout" => ", text with a unit: \"20s\"",
                "table_budget" => ", text with a unit: \"4GiB\"",
                _ => "",
            };
            Err(format!("[{section}] `{old}` is now `{new}`{unit}"))
        }
        None => Ok(()),
    }
}

/// Refuses old names in the text of a configuration that cannot be read, since no section has them; text that is no TOML is left
/// to its reader.
pub(super) fn refuse_in_text(text: &str) -> Result<(), String> {
    let table: Table = toml::from_str(text).unwrap_or_default();
    refuse(|section, old| has(&table, section, old))
}

/// Whether a section has an entry.
pub(super) fn has(table: &Table, section: &str, entry: &str) -> bool {
    table.get(section).is_some_and(|section| section.get(entry).is_some())
}

/// Gives the entries of a saved configuration their new names.
pub(super) fn rename(table: &mut Table) {
    for (section, old, new) in RENAMED {
        let Some(section) = table.get_mut(section).and_then(Value::as_table_mut) else { continue };
        let Some(value) = section.remove(old) else { continue };
        let value = match value {
            Value::Float(seconds) if new == "ps_timeout" => format!("{seconds}s").into(),
            Value::Integer(seconds) if new == "ps_timeout" => format!("{seconds}s").into(),
            value => value,
        };
        section.entry(new).or_insert(value);
    }
}
