//! Names of records and clusters. Knows no record.

use crate::limit::NAME_BYTES_MAX;
use crate::registry::RegistryError;

/// Checks the name of a record: parts of letters, digits, `.`, `_` and `-`, with `/` between them.
///
/// # Errors
/// [`RegistryError::Invalid`] says what is expected.
pub fn check_record(name: &str) -> Result<(), RegistryError> {
    match name.split('/').all(is_part) && name.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => {
            Err(wrong("record", name, "parts of letters, digits, '.', '_' and '-', with '/' between them"))
        }
    }
}

/// Checks the name of a cluster: letters, digits, `.`, `_` and `-`.
///
/// # Errors
/// [`RegistryError::Invalid`] says what is expected.
pub fn check_cluster(name: &str) -> Result<(), RegistryError> {
    match is_part(name) && name.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(wrong("cluster", name, "letters, digits, '.', '_' and '-'")),
    }
}

/// Checks the beginning of names, which may be empty or end anywhere.
///
/// # Errors
/// [`RegistryError::Invalid`] says what is expected.
pub fn check_prefix(prefix: &str) -> Result<(), RegistryError> {
    let is_char = |byte: u8| is_part_byte(byte) || byte == b'/';
    match prefix.bytes().all(is_char) && prefix.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(wrong("prefix", prefix, "letters, digits, '.', '_', '-' and '/'")),
    }
}

/// `.` and `..` are no parts: clients of HTTP would resolve them.
fn is_part(part: &str) -> bool {
    !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_part_byte)
}

fn is_part_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

fn wrong(what: &str, name: &str, expected: &str) -> RegistryError {
    let cut: String = name.chars().take(NAME_BYTES_MAX).collect();
    RegistryError::Invalid(format!(
        "{what} {cut:?}: at most {NAME_BYTES_MAX} bytes of {expected} are expected"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        let long = "n".repeat(NAME_BYTES_MAX);
        let longer = "n".repeat(NAME_BYTES_MAX + 1);
        for (name, [is_record, is_cluster, is_prefix]) in [
            ("config", [true, true, true]),
            ("groups/0", [true, false, true]),
            ("a.b-c_1", [true, true, true]),
            (&long, [true, true, true]),
            (&longer, [false, false, false]),
            ("", [false, false, true]),
            ("groups/", [false, false, true]),
            ("/groups", [false, false, true]),
            ("a//b", [false, false, true]),
            ("..", [false, false, true]),
            ("a/./b", [false, false, true]),
            ("a b", [false, false, false]),
            ("a%2f", [false, false, false]),
            ("ä", [false, false, false]),
        ] {
            let found = [check_record(name).is_ok(), check_cluster(name).is_ok(), check_prefix(name).is_ok()];
            assert_eq!(found, [is_record, is_cluster, is_prefix], "{name:?}");
        }
    }
}
