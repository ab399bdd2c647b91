//! Keyword arguments that have another name now. An old name is a TypeError that says the new one.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Refuses every keyword argument that a function does not have; `renamed` lists old and new names.
pub(crate) fn refuse(
    function: &str,
    unknown: Option<&Bound<'_, PyDict>>,
    renamed: &[(&str, &str)],
) -> PyResult<()> {
    let Some((name, _)) = unknown.and_then(|unknown| unknown.iter().next()) else { return Ok(()) };
    let name: String = name.extract()?;
    Err(PyTypeError::new_err(match renamed.iter().find(|(old, _)| *old == name) {
        Some((old, new)) => format!("{function}(): `{old}` is now `{new}`"),
        None => format!("{function}() got an unexpected keyword argument '{name}'"),
    }))
}

/// Arguments of `FeedQueue` that are in its source.
pub(crate) const FEED_QUEUE: [(&str, &str); 16] = [
    ("spec", "FileSource(inputs, spec)"),
    ("batch_size", "FileSource(inputs, spec, batch_size=)"),
    ("passes", "FileSource(inputs, spec, passes=)"),
    ("threads", "FileSource(inputs, spec, threads=)"),
    ("ordered", "FileSource(inputs, spec, ordered=)"),
    ("shuffle_rows", "FileSource(inputs, spec, shuffle_rows=)"),
    ("seed", "FileSource(inputs, spec, seed=)"),
    ("rank", "FileSource(inputs, spec, rank=)"),
    ("ranks", "FileSource(inputs, spec, ranks=)"),
    ("used_rows", "FileSource(inputs, spec, used_rows=)"),
    ("train", "FileSource(inputs, spec, train=)"),
    ("name", "HubSource(address, name=)"),
    ("hub_token", "HubSource(address, token=)"),
    ("hub_timeout_s", "HubSource(address, timeout_s=)"),
    ("hub_compression", "HubSource(address, compression=)"),
    ("hub_ca_file", "HubSource(address, tls=Tls(ca))"),
];

/// Arguments of `Hubs` that are in their source.
pub(crate) const HUBS: [(&str, &str); 9] = [
    ("spec", "HubSource(address, spec)"),
    ("threads", "HubSource(address, threads=)"),
    ("rank", "HubSource(address, rank=)"),
    ("ranks", "HubSource(address, ranks=)"),
    ("name", "HubSource(address, name=)"),
    ("hub_token", "HubSource(address, token=)"),
    ("hub_timeout_s", "HubSource(address, timeout_s=)"),
    ("hub_compression", "HubSource(address, compression=)"),
    ("hub_ca_file", "HubSource(address, tls=Tls(ca))"),
];

/// Arguments of `Job` that are in its source, or in the TLS settings.
pub(crate) const JOB: [(&str, &str); 6] = [
    ("spec", "FileSource(inputs, spec)"),
    ("seed", "FileSource(inputs, spec, seed=)"),
    ("train", "FileSource(inputs, spec, train=)"),
    ("ca_file", "tls=Tls(ca, cert=, key=)"),
    ("cert_file", "tls=Tls(ca, cert=, key=)"),
    ("key_file", "tls=Tls(ca, cert=, key=)"),
];
