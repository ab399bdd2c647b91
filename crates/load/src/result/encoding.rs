//! Histograms as text, in the format that HDR tools know (V2, deflated, base 64), and back with every size
//! checked before memory is taken for it. Knows nothing of what was measured.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Deserializer as De, Serialize, Serializer, de};

use super::COUNT_MAX;
use crate::observed::distribution::{DIGITS, NS_MAX};
use crate::observed::series::{INTERVAL_DIGITS, INTERVALS_MAX};
use crate::observed::{Distribution, Interval, Series};

/// First four bytes of a deflated histogram, and of what is inside.
const COOKIE_DEFLATED: u32 = 0x1c84_9314;
const COOKIE: u32 = 0x1c84_9313;
/// Cookie, length of the counts, offset, digits, least, most, ratio.
const HEADER_BYTES: usize = 40;
/// The most bytes that a count takes.
const COUNT_BYTES_MAX: usize = 9;
/// The most characters of a histogram's text: more than the counts of any histogram of ours can take.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Why a histogram's text was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistogramError {
    /// Longer than any of ours.
    #[error("a histogram of {0} characters; the longest have {TEXT_BYTES_MAX}")]
    TooLong(usize),
    /// Not base 64, not deflated, cut off, or not a histogram.
    #[error("not a histogram: {0}")]
    Malformed(String),
    /// Not one with the bounds that this version writes.
    #[error(
        "a histogram with {digits} digits from {low} to {high} ns; here they have {expected} from 1 to {NS_MAX}"
    )]
    Bounds {
        /// Significant digits.
        digits: u32,
        /// Least value.
        low: u64,
        /// Most.
        high: u64,
        /// Digits that were expected.
        expected: u8,
    },
}

fn malformed(what: &str) -> HistogramError {
    HistogramError::Malformed(what.to_owned())
}

/// The text of a histogram.
#[must_use]
pub fn encode<T: Counter>(histogram: &Histogram<T>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .expect("memory takes any bytes, and counts fit");
    STANDARD.encode(bytes)
}

/// The histogram of a text, which must have the bounds of ours and so many digits.
pub fn decode<T: Counter>(text: &str, digits: u8) -> Result<Histogram<T>, HistogramError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(HistogramError::TooLong(text.len()));
    }
    let deflated = STANDARD.decode(text).map_err(|error| malformed(&error.to_string()))?;
    let header = deflated.get(..8).ok_or_else(|| malformed("cut off"))?;
    if word(header, 0) != COOKIE_DEFLATED || word(header, 4) as usize != deflated.len() - 8 {
        return Err(malformed("another format, or cut off"));
    }
    let expected = Histogram::<T>::new_with_bounds(1, NS_MAX, digits).expect("these bounds are possible");
    let bytes_max = HEADER_BYTES + COUNT_BYTES_MAX * expected.distinct_values();
    let mut bytes = Vec::new();
    let inflate = flate2::read::ZlibDecoder::new(&deflated[8..]);
    inflate
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| malformed(&error.to_string()))?;
    let header = bytes.get(..HEADER_BYTES).ok_or_else(|| malformed("cut off"))?;
    if word(header, 0) != COOKIE || word(header, 4) as usize != bytes.len() - HEADER_BYTES {
        return Err(malformed("another format, or too long"));
    }
    let (low, high) = (long(header, 16), long(header, 24));
    if (word(header, 12), low, high) != (u32::from(digits), 1, NS_MAX) {
        return Err(HistogramError::Bounds { digits: word(header, 12), low, high, expected: digits });
    }
    check_counts(&bytes[HEADER_BYTES..])?;
    Deserializer::new().deserialize(&mut &bytes[..]).map_err(|error| malformed(&error.to_string()))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

/// The library's decoder expects that runs of zeros and the sum of counts fit their types, and that no count
/// is cut off.
fn check_counts(mut bytes: &[u8]) -> Result<(), HistogramError> {
    let mut total = 0_u64;
    while !bytes.is_empty() {
        let mut value = 0_u64;
        let mut length = 0;
        loop {
            let &byte = bytes.get(length).ok_or_else(|| malformed("a count is cut off"))?;
            // Seven bits per byte, but all eight of the ninth.
            let last = length == COUNT_BYTES_MAX - 1;
            value |= u64::from(if last { byte } else { byte & 0x7f }) << (7 * length);
            length += 1;
            if last || byte & 0x80 == 0 {
                break;
            }
        }
        bytes = &bytes[length..];
        if value & 1 == 0 {
            total = total.checked_add(value >> 1).ok_or_else(|| malformed("too large counts"))?;
        } else if value >> 1 > u64::from(u32::MAX) {
            return Err(malformed("too long a run of zeros"));
        }
    }
    Ok(())
}

/// A distribution as it stands in a file: some numbers for people, and the histogram.
#[derive(Serialize, Deserialize)]
struct DistributionText {
    count: u64,
    /// Significant digits of the percentiles.
    digits: u8,
    /// As text, since JSON's numbers are not exact beyond 53 bits elsewhere.
    sum_ns: String,
    mean_ns: Option<f64>,
    min_ns: Option<u64>,
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    p9999_ns: Option<u64>,
    max_ns: Option<u64>,
    /// The histogram in nanoseconds; absent if nothing was noted.
    hdr: Option<String>,
}

impl Serialize for Distribution {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        DistributionText {
            count: self.count(),
            digits: DIGITS,
            sum_ns: self.sum_ns.to_string(),
            mean_ns: self.mean_ns(),
            min_ns: self.min_ns(),
            p50_ns: self.quantile_ns(0.5),
            p90_ns: self.quantile_ns(0.9),
            p99_ns: self.quantile_ns(0.99),
            p999_ns: self.quantile_ns(0.999),
            p9999_ns: self.quantile_ns(0.9999),
            max_ns: self.max_ns(),
            hdr: (!self.is_empty()).then(|| encode(&self.histogram)),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Distribution {
    fn deserialize<D: De<'de>>(deserializer: D) -> Result<Distribution, D::Error> {
        let text = DistributionText::deserialize(deserializer)?;
        let Some(hdr) = &text.hdr else { return Ok(Distribution::new()) };
        let histogram: Histogram<u64> = decode(hdr, DIGITS).map_err(de::Error::custom)?;
        let missing = || de::Error::custom("a histogram without sum_ns, min_ns or max_ns");
        let found = Distribution {
            sum_ns: text.sum_ns.parse().map_err(|_| missing())?,
            min_ns: text.min_ns.ok_or_else(missing)?,
            max_ns: text.max_ns.ok_or_else(missing)?,
            histogram,
        };
        let sum_max_ns = u128::from(found.count()) * u128::from(found.max_ns);
        let sum_fits = found.count() <= COUNT_MAX && found.sum_ns <= sum_max_ns;
        if found.is_empty() || found.count() != text.count || found.min_ns > found.max_ns || !sum_fits {
            return Err(de::Error::custom(
                "a histogram that contradicts count, sum_ns, min_ns or max_ns beside it",
            ));
        }
        Ok(found)
    }
}

/// A series as it stands in a file.
#[derive(Serialize, Deserialize)]
struct SeriesText {
    interval_ns: u64,
    intervals: Vec<IntervalText>,
}

#[derive(Serialize, Deserialize)]
struct IntervalText {
    calls: u64,
    failed: u64,
    keys: u64,
    /// Absent if no call was due that succeeded.
    response_hdr: Option<String>,
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let interval = |interval: &Interval| IntervalText {
            calls: interval.calls,
            failed: interval.failed,
            keys: interval.keys,
            response_hdr: (!interval.response.is_empty()).then(|| encode(&interval.response)),
        };
        let intervals = self.intervals().iter().map(interval).collect();
        SeriesText { interval_ns: self.interval_ns, intervals }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Series {
    fn deserialize<D: De<'de>>(deserializer: D) -> Result<Series, D::Error> {
        let text = SeriesText::deserialize(deserializer)?;
        if text.intervals.len() > INTERVALS_MAX || text.interval_ns == 0 {
            let found = text.intervals.len();
            return Err(de::Error::custom(format!("{found} intervals of {} ns", text.interval_ns)));
        }
        let interval = |text: IntervalText| {
            let mut interval = Interval::new();
            (interval.calls, interval.failed, interval.keys) = (text.calls, text.failed, text.keys);
            if let Some(hdr) = &text.response_hdr {
                interval.response = decode(hdr, INTERVAL_DIGITS).map_err(de::Error::custom)?;
            }
            Ok(interval)
        };
        let intervals = text.intervals.into_iter().map(interval).collect::<Result<_, _>>()?;
        Ok(Series::of(text.interval_ns, intervals))
    }
}
