//! Entries of a server's file that have another name now. An old name is an error that says the new one.

/// Entries of a server's file.
const SERVER_FILE: [(&str, &str); 5] = [
    ("workers", "threads"),
    ("spin_us", "spin"),
    ("drain_within", "drain_timeout"),
    ("tls_cert", "cert_file"),
    ("tls_key", "key_file"),
];

/// Refuses old names in the text of a server's file.
pub(crate) fn refuse_in_server_file(text: &str) -> Result<(), String> {
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    match SERVER_FILE.iter().find(|(old, _)| table.contains_key(*old)) {
        Some((old, new)) => Err(format!("`{old}` is now `{new}`")),
        None => Ok(()),
    }
}
