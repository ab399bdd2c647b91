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
