//! Options that have another name now. An old name is an error that says the new one.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Old name, new name.
pub const OPTIONS: [(&str, &str); 22] = [
    ("--batch", "--batch-size"),
    ("--shuffle", "--shuffle-rows"),
    ("--ps-ca", "--ps-ca-file"),
    ("--ps-compress", "--ps-compression"),
    ("--ps-f16", "--ps-f16-rows"),
    ("--tls-ca", "--ca-file"),
    ("--tls-cert", "--cert-file"),
    ("--tls-key", "--key-file"),
    ("--worker-ca", "--worker-ca-file"),
    ("--worker-tls-cert", "--worker-cert-file"),
    ("--worker-tls-key", "--worker-key-file"),
    ("--workers", "--threads"),
    ("--spin-us", "--spin"),
    ("--drain-within", "--drain-timeout"),
    ("--queue", "--depth"),
    ("--queue-bytes", "--depth-bytes"),
    ("--feed-patience", "--feed-timeout"),
    ("--hub-patience", "--hub-timeout"),
    ("--hub-ca", "--hub-ca-file"),
    ("--hub-compress", "--hub-compression"),
    ("--out", "--output"),
    ("--seconds", "--duration"),
];

/// The new name of an unknown option, as a message.
pub fn option(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let given = given.split(['=', ' ']).next()?;
    let (old, new) = OPTIONS.iter().find(|(old, _)| *old == given)?;
    Some(format!("`{old}` is now `{new}`"))
}

/// The new name of an entry of an options file, which has the names of options with `_` for `-`, as a message.
pub fn entry(given: &str) -> Option<String> {
    let entry = |option: &str| option.trim_start_matches('-').replace('-', "_");
    let (_, new) = OPTIONS.iter().find(|(old, _)| entry(old) == given)?;
    Some(format!("`{given}` is now `{}`", entry(new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_file_are_named_as_options_are() {
        for (given, expected) in [
            ("workers", Some("`workers` is now `threads`")),
            ("spin_us", Some("`spin_us` is now `spin`")),
            ("drain_within", Some("`drain_within` is now `drain_timeout`")),
            ("tls_cert", Some("`tls_cert` is now `cert_file`")),
            ("tls_key", Some("`tls_key` is now `key_file`")),
            ("threads", None),
        ] {
            assert_eq!(entry(given).as_deref(), expected, "{given}");
        }
    }
}
