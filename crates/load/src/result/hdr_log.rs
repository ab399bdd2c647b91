//! Results as interval logs of HdrHistogram (version 1.3 of the text format), which its tools read. Knows
//! nothing of files.

use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::RunResult;

/// The legend that tools of other languages expect above the intervals.
const LEGEND: &str =
    "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n";
/// Nanoseconds per unit of the column of maxima: milliseconds, as usual.
const MAX_DIVISOR: f64 = 1e6;
const MEMORY: &str = "memory takes any bytes, and counts fit";

/// The log of a run: per function one histogram of response times (tag `NAME.response`) and one of service
/// times (`NAME.service`) over the whole measured part, then a coarse one of all response times per interval,
/// without a tag. Values are nanoseconds.
#[must_use]
pub fn hdr_log(run: &RunResult) -> String {
    let measured = &run.measured;
    let whole = Duration::try_from_secs_f64(measured.seconds).unwrap_or_default();
    let mut out = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let since_1970 = Duration::try_from_secs_f64(run.began_unix_s).unwrap_or_default();
    let began = UNIX_EPOCH.checked_add(since_1970).unwrap_or(UNIX_EPOCH);
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .with_start_time(began)
        .with_base_time(began)
        .with_max_value_divisor(MAX_DIVISOR)
        .begin_log_with(&mut out, &mut serializer)
        .expect(MEMORY);
    for function in &measured.functions {
        for (what, times) in [("response", &function.response), ("service", &function.service)] {
            let name = format!("{}.{what}", function.name).replace([',', ' ', '\n', '\r'], "_");
            log.write_histogram(times.histogram(), Duration::ZERO, whole, Tag::new(&name)).expect(MEMORY);
        }
    }
    let length = measured.series.interval();
    for (number, interval) in measured.series.intervals().iter().enumerate() {
        log.write_histogram(&interval.response, length * number as u32, length, None).expect(MEMORY);
    }
    let text = String::from_utf8(out).expect("the format is text");
    let header: usize =
        text.split_inclusive('\n').take_while(|line| line.starts_with('#')).map(str::len).sum();
    let (header, lines) = text.split_at(header);
    format!("{header}{LEGEND}{lines}")
}
