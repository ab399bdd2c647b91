//! `sanderling._native.parse_duration_s` and `parse_size_bytes`: durations and sizes as the command line reads them. Conversion
//! only.

use pyo3::prelude::*;
use sanderling_observe::numbers;

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
