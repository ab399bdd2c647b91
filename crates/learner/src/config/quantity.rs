//! Durations and sizes of a configuration: text with a unit, such as `"20s"` and `"4GiB"`.

use std::fmt;
use std::time::Duration;

use sanderling_observe::numbers;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serializer};

/// The shortest text of a duration, to the microsecond.
pub(super) fn duration_text(duration: Duration) -> String {
    let us = duration.as_micros();
    match us {
        us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        us if us.is_multiple_of(1000) => format!("{}ms", us / 1000),
        us => format!("{us}us"),
    }
}

/// An optional [`Duration`] as text.
pub(super) mod duration {
    use super::{Deserialize, Deserializer, Duration, Error, Serializer, duration_text, numbers};

    pub(in crate::config) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => to.serialize_str(&duration_text(*duration)),
            None => to.serialize_none(),
        }
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let wrong = || {
            D::Error::custom(format!(
                "{text:?} is not a duration with a unit (us, ms, s, m, h), such as \"20s\""
            ))
        };
        numbers::time(&text).map(Some).ok_or_else(wrong)
    }
}

/// Bytes as text; a number alone is read as bytes.
pub(super) mod bytes {
    use super::{Bytes, Deserializer, Serializer, numbers};

    pub(in crate::config) fn serialize<S: Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&numbers::exact_bytes(*bytes))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        from.deserialize_any(Bytes)
    }
}

/// Optional bytes as text.
pub(super) mod optional_bytes {
    use super::{Deserializer, Serializer, bytes, numbers};

    pub(in crate::config) fn serialize<S: Serializer>(bytes: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => to.serialize_str(&numbers::exact_bytes(*bytes)),
            None => to.serialize_none(),
        }
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<u64>, D::Error> {
        bytes::deserialize(from).map(Some)
    }
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes with a unit, such as \"4GiB\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        numbers::parse_bytes(text).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<u64, E> {
        Ok(bytes)
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<u64, E> {
        u64::try_from(bytes).map_err(|_| E::custom(format!("{bytes} bytes: must be 0 or more")))
    }
}
