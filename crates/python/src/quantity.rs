//! `sanderling._native.parse_duration_s` and `parse_size_bytes`: durations and sizes as the command line reads them. Conversion
//! only.

use std::time::Duration;

use pyo3::prelude::*;
use sanderling_observe::numbers;

use crate::error::ConfigError;

/// Seconds of a duration such as "20s"; None if the text is no duration.
#[pyfunction]
pub(crate) fn parse_duration_s(text: &str) -> Option<f64> {
    numbers::time(text).map(|time| time.as_secs_f64())
}

/// Bytes of a size such as "4GiB"; None if the text is no size.
#[pyfunction]
pub(crate) fn parse_size_bytes(text: &str) -> Option<u64> {
    numbers::parse_bytes(text).ok()
}

/// An argument in seconds.
pub(crate) fn seconds(what: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| ConfigError::new_err(format!("{what} = {value}: {error}")))
}
