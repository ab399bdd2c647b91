//! Texts of a suggested configuration: TOML strings and lists, comments, names. Knows no column.

use std::fmt::Write;

/// A TOML string on one line, without terminal control characters.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Comments must not break the line.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect()
}

/// A TOML list.
pub(super) fn list(texts: &[String]) -> String {
    format!("[{}]", texts.join(", "))
}

/// A name for a run, from that of its file.
pub(super) fn stem(path: &str) -> String {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    let stem = name.split('.').next().unwrap_or(name);
    // Characters that the name of a run may contain.
    let plain = |c: char| if c.is_alphanumeric() || c == '-' { c } else { '_' };
    if stem.chars().any(char::is_alphanumeric) {
        stem.chars().map(plain).collect()
    } else {
        "first".to_string()
    }
}
