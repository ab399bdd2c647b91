//! Dates, times of day, instants and durations, as seconds and as text, independent of the unit in the file. It knows
//! no file format and no time zones except UTC and fixed offsets.

use std::io::Write;

/// The kind of a [`Time`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeKind {
    /// A date, or a date and a time: the time since 1970-01-01 00:00:00 UTC.
    Instant,
    /// A time of day: the time since midnight.
    OfDay,
    /// A length of time.
    Duration,
}

/// A time, exact to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    kind: TimeKind,
    /// Rounded down.
    seconds: i64,
    nanos: u32,
}

const NANOS: i64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;

/// The longest text: a year of 12 digits and a sign, month, day, time and 9 digits of a second.
const TEXT_BYTES_MAX: usize = 48;

/// The longest text that is read as a time: with 9 digits of a second (zeros beyond), and a zone.
const READ_BYTES_MAX: usize = 40;

impl Time {
    /// A time of `count` units; `per_second` (1, 1000, 1000000 or 1000000000) units make a second.
    #[inline]
    #[must_use]
    pub fn of(kind: TimeKind, count: i64, per_second: i64) -> Time {
        let nanos = count.rem_euclid(per_second) * (NANOS / per_second);
        Time { kind, seconds: count.div_euclid(per_second), nanos: nanos as u32 }
    }

    /// The instant at which a day begins, counted from 1970-01-01.
    #[inline]
    #[must_use]
    pub fn of_day(day: i32) -> Time {
        Time { kind: TimeKind::Instant, seconds: i64::from(day) * DAY_SECONDS, nanos: 0 }
    }

    /// The kind.
    #[must_use]
    pub fn kind(self) -> TimeKind {
        self.kind
    }

    /// The seconds since 1970 (UTC), since midnight, or of the duration.
    #[must_use]
    pub fn as_seconds(self) -> f64 {
        self.seconds as f64 + f64::from(self.nanos) / NANOS as f64
    }

    /// Calls `f` with the time's text in a text file; see `docs/keys.md`.
    pub(crate) fn with_text<R>(self, f: impl FnOnce(&[u8]) -> R) -> R {
        let mut buffer = [0_u8; TEXT_BYTES_MAX];
        let mut rest = &mut buffer[..];
        // Never fails: the buffer holds the longest text.
        let _ = self.write(&mut rest);
        let written = TEXT_BYTES_MAX - rest.len();
        f(&buffer[..written])
    }

    fn write(self, out: &mut &mut [u8]) -> std::io::Result<()> {
        let within = self.seconds.rem_euclid(DAY_SECONDS);
        match self.kind {
            TimeKind::Instant => {
                let (year, month, day) = date_of(self.seconds.div_euclid(DAY_SECONDS));
                let sign = if year > 9999 { "+" } else { "" };
                let width = if year < 0 { 5 } else { 4 };
                write!(out, "{sign}{year:0width$}-{month:02}-{day:02}")?;
                if within > 0 || self.nanos > 0 {
                    write_clock(out, " ", within)?;
                    write_fraction(out, self.nanos)?;
                }
                Ok(())
            }
            TimeKind::OfDay if within == self.seconds => {
                write_clock(out, "", within)?;
                write_fraction(out, self.nanos)
            }
            TimeKind::OfDay | TimeKind::Duration => {
                // Seconds are rounded down: minus a quarter is -1 and 750 million nanoseconds.
                let total = i128::from(self.seconds) * i128::from(NANOS) + i128::from(self.nanos);
                let sign = if total < 0 { "-" } else { "" };
                let magnitude = total.unsigned_abs();
                write!(out, "{sign}{}", magnitude / NANOS as u128)?;
                write_fraction(out, (magnitude % NANOS as u128) as u32)
            }
        }
    }

    /// Whether a text may be a time with another normalised text. Checked for every text that becomes a key.
    #[inline]
    pub(crate) fn may_be(text: &[u8]) -> bool {
        match text {
            [_, _, _, _, b'-', _, _, b'-', _, _, b'T' | b' ' | b't', ..] => text.len() <= READ_BYTES_MAX,
            [_, _, b':', _, _, b':', _, _, b'.', ..] => text.len() <= READ_BYTES_MAX,
            _ => false,
        }
    }

    /// Parses a date, a date and time, or a time of day.
    ///
    /// Reads ISO 8601 and the formats of databases, in UTC without a zone. `None` for any other text, for days that
    /// do not exist, and for precision beyond a nanosecond.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Time> {
        let mut text = Scan { rest: text };
        if text.rest.get(2) == Some(&b':') {
            let seconds = text.clock()?;
            let nanos = text.fraction()?;
            let is_whole = text.rest.is_empty();
            return is_whole.then_some(Time { kind: TimeKind::OfDay, seconds, nanos });
        }
        let date = text.date()?;
        let mut time = Time { kind: TimeKind::Instant, seconds: date * DAY_SECONDS, nanos: 0 };
        if text.rest.is_empty() {
            return Some(time);
        }
        if !text.takes(b'T') && !text.takes(b' ') && !text.takes(b't') {
            return None;
        }
        time.seconds += text.clock()?;
        time.nanos = text.fraction()?;
        time.seconds -= text.zone()?;
        Some(time)
    }
}

fn write_clock(out: &mut &mut [u8], before: &str, seconds: i64) -> std::io::Result<()> {
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    write!(out, "{before}{hour:02}:{minute:02}:{second:02}")
}

/// Writes as many digits as needed.
fn write_fraction(out: &mut &mut [u8], nanos: u32) -> std::io::Result<()> {
    if nanos == 0 {
        return Ok(());
    }
    let (mut digits, mut width) = (nanos, 9);
    while digits % 10 == 0 {
        digits /= 10;
        width -= 1;
    }
    write!(out, ".{digits:0width$}")
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar throughout (Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms": eras of 400 years that begin in March).
fn date_of(day: i64) -> (i64, i64, i64) {
    let shifted = day + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + i64::from(month <= 2), month, of_year - (153 * from_march + 2) / 5 + 1)
}

/// The day, counted from 1970-01-01, of a date.
fn day_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[derive(Clone)]
struct Scan<'a> {
    rest: &'a [u8],
}

impl Scan<'_> {
    fn takes(&mut self, byte: u8) -> bool {
        let takes = self.rest.first() == Some(&byte);
        self.rest = &self.rest[usize::from(takes)..];
        takes
    }

    /// Parses a number of `digits` digits, at most `max`.
    fn number(&mut self, digits: usize, max: i64) -> Option<i64> {
        let (number, rest) = self.rest.split_at_checked(digits)?;
        self.rest = rest;
        let number = number.iter().try_fold(0, |sum, byte| {
            let digit = byte.wrapping_sub(b'0');
            (digit <= 9).then_some(sum * 10 + i64::from(digit))
        })?;
        (number <= max).then_some(number)
    }

    fn date(&mut self) -> Option<i64> {
        let year = self.number(4, 9999)?;
        self.takes(b'-').then_some(())?;
        let month = self.number(2, 12)?;
        self.takes(b'-').then_some(())?;
        let day = self.number(2, 31)?;
        let counted = day_of(year, month, day);
        // A day or month that does not exist converts to another date.
        (date_of(counted) == (year, month, day)).then_some(counted)
    }

    /// Parses hours, minutes and optional seconds.
    fn clock(&mut self) -> Option<i64> {
        let hour = self.number(2, 23)?;
        self.takes(b':').then_some(())?;
        let minute = self.number(2, 59)?;
        let second = if self.takes(b':') { self.number(2, 59)? } else { 0 };
        Some(hour * 3600 + minute * 60 + second)
    }

    /// Parses a fraction in nanoseconds.
    fn fraction(&mut self) -> Option<u32> {
        if !self.takes(b'.') {
            return Some(0);
        }
        let count = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at(count);
        self.rest = rest;
        let (digits, beyond) = digits.split_at(count.min(9));
        if count == 0 || beyond.iter().any(|byte| *byte != b'0') {
            return None;
        }
        let number = digits.iter().fold(0, |sum, byte| sum * 10 + u32::from(byte - b'0'));
        Some(number * 10_u32.pow(9 - digits.len() as u32))
    }

    /// Parses the zone, which ends the text, in seconds east of UTC.
    fn zone(&mut self) -> Option<i64> {
        let is_apart = self.takes(b' ');
        let sign = match self.rest {
            b"" if !is_apart => return Some(0),
            b"Z" | b"z" | b"UTC" | b"GMT" => return Some(0),
            [b'+', ..] => 1,
            [b'-', ..] => -1,
            _ => return None,
        };
        self.rest = &self.rest[1..];
        let hours = self.number(2, 23)?;
        let minutes = match self.rest {
            b"" => 0,
            _ => {
                self.takes(b':');
                self.number(2, 59)?
            }
        };
        self.rest.is_empty().then_some(sign * (hours * 3600 + minutes * 60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(time: Time) -> String {
        time.with_text(|text| String::from_utf8(text.to_vec()).unwrap())
    }

    #[test]
    fn an_instant_has_one_text_in_every_unit() {
        let rows = [
            (0, "1970-01-01"),
            (1_700_000_000, "2023-11-14 22:13:20"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29"),
            (-2_203_891_200, "1900-03-01"),
            (253_402_300_800, "+10000-01-01"),
            (-62_167_219_200, "0000-01-01"),
            (-62_167_219_201, "-0001-12-31 23:59:59"),
        ];
        for (seconds, expected) in rows {
            for per_second in [1, 1000, 1_000_000, 1_000_000_000] {
                let Some(count) = i64::checked_mul(seconds, per_second) else { continue };
                let time = Time::of(TimeKind::Instant, count, per_second);
                assert_eq!(text(time), expected);
                assert_eq!(time.as_seconds(), seconds as f64);
            }
        }
        // Beyond any calendar, but a text.
        assert!(text(Time::of(TimeKind::Instant, i64::MAX, 1)).starts_with("+292277026596-12-04"));
        assert!(text(Time::of(TimeKind::Instant, i64::MIN, 1)).starts_with("-292277022657-01-27"));
    }

    #[test]
    fn fractions_have_the_digits_that_they_need() {
        let instant = |count, per_second| text(Time::of(TimeKind::Instant, count, per_second));
        assert_eq!(instant(1500, 1000), "1970-01-01 00:00:01.5");
        assert_eq!(instant(1_500_000_000, 1_000_000_000), "1970-01-01 00:00:01.5");
        assert_eq!(instant(-1, 1_000_000_000), "1969-12-31 23:59:59.999999999");
        assert_eq!(instant(1, 1000), "1970-01-01 00:00:00.001");
        let of_day = |count, per_second| text(Time::of(TimeKind::OfDay, count, per_second));
        assert_eq!(of_day(0, 1000), "00:00:00");
        assert_eq!(of_day(86_399_010, 1000), "23:59:59.01");
        assert_eq!(of_day(86_400, 1), "86400");
        let duration = |count, per_second| text(Time::of(TimeKind::Duration, count, per_second));
        assert_eq!(duration(90, 1), "90");
        assert_eq!(duration(90_500, 1000), "90.5");
        assert_eq!(duration(-250, 1000), "-0.25");
        assert_eq!(duration(-1_000_000, 1_000_000), "-1");
        assert_eq!(duration(i64::MIN, 1_000_000_000), "-9223372036.854775808");
        assert_eq!(Time::of(TimeKind::Duration, -250, 1000).as_seconds(), -0.25);
    }

    #[test]
    fn what_other_tools_write_is_the_same_instant() {
        let expected = "2026-11-28 03:56:36";
        for written in [
            "2026-11-28 03:56:36",
            "2026-11-28T03:56:36",
            "2026-11-28T03:56:36Z",
            "2026-11-28 03:56:36 UTC",
            "2026-11-28T03:56:36.000Z",
            "2026-11-28T03:56:36.000000",
            "2026-11-28 03:56:36.000000000000",
            "2026-11-28 03:56:36+00:00",
            "2026-11-28 03:56:36+00",
            "2026-11-28T04:56:36.000+0100",
            "2026-11-27T22:26:36.000-05:30",
        ] {
            assert_eq!(Time::read(written.as_bytes()).map(text).as_deref(), Some(expected), "{written}");
            assert!(Time::may_be(written.as_bytes()), "{written}");
        }
        for (written, expected) in [
            ("2026-11-28", "2026-11-28"),
            ("2026-11-28 00:00:00", "2026-11-28"),
            ("2026-11-28T00:00", "2026-11-28"),
            ("2026-11-28T00:30+01:00", "2026-11-27 23:30:00"),
            ("2026-11-28 00:00:00.250", "2026-11-28 00:00:00.25"),
            ("03:56:36.500", "03:56:36.5"),
            ("03:56", "03:56:00"),
        ] {
            assert_eq!(Time::read(written.as_bytes()).map(text).as_deref(), Some(expected), "{written}");
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for other in [
            "",
            "2026",
            "2026-11",
            "2026-13-01",
            "2026-02-29",
            "2026-00-10",
            "2026-11-28X03:56:36",
            "2026-11-28 24:00:00",
            "2026-11-28 03:56:60",
            "2026-11-28 03:56:36.",
            "2026-11-28 03:56:36.0000000001",
            "2026-11-28 03:56:36 ",
            "2026-11-28 03:56:36+1",
            "2026-11-28 03:56:36 CET",
            "2026-1-28",
            "12:34:56:78",
            "1a:2b:3c.5",
            "99:59:59",
            "not-a-time",
        ] {
            assert_eq!(Time::read(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn days_are_counted_as_the_calendar_does() {
        let mut date = (1899, 12, 31);
        for day in day_of(1900, 1, 1)..day_of(2101, 1, 1) {
            let (year, month, _) = date;
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 if is_leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            date = match date {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, day) if day == last => (year, month + 1, 1),
                (year, month, day) => (year, month, day + 1),
            };
            assert_eq!((date_of(day), day_of(date.0, date.1, date.2)), (date, day));
        }
    }
}
