//! Texts that other tools write for a missing value. Knows no column.

/// Texts that always mean a missing value: Hive and MySQL dumps; SQL; floats; pandas and R; spreadsheets.
const ALWAYS: [&str; 15] = [
    "\\N", "NULL", "null", "Null", "(null)", "<null>", "NaN", "nan", "NAN", "-nan", "<NA>", "NaT", "#N/A",
    "N/A", "n/a",
];

/// Texts that may be ordinary values, such as a country or an answer; among numbers they mean a missing value.
const AMONG_NUMBERS: [&str; 4] = ["NA", "None", "none", "-"];

/// The number of such texts.
pub const MARKS: usize = ALWAYS.len() + AMONG_NUMBERS.len();

/// The index of a text among them.
#[inline]
pub fn mark_of(text: &[u8]) -> Option<usize> {
    // Most fields are no mark, and few of those begin like one.
    if text.len() > 6 || !matches!(text.first(), Some(b'\\' | b'N' | b'n' | b'(' | b'<' | b'-' | b'#')) {
        return None;
    }
    ALWAYS.iter().chain(&AMONG_NUMBERS).position(|mark| mark.as_bytes() == text)
}

/// The text at an index.
pub fn mark_at(place: usize) -> &'static str {
    ALWAYS.iter().chain(&AMONG_NUMBERS).nth(place).copied().unwrap_or_default()
}

/// Whether the text may be an ordinary value in a column of texts.
pub fn is_value_among_texts(place: usize) -> bool {
    place >= ALWAYS.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_has_its_place() {
        for place in 0..MARKS {
            assert_eq!(mark_of(mark_at(place).as_bytes()), Some(place));
        }
        for other in ["", "N", "none of it", "-1", "nana", "?", "7"] {
            assert_eq!(mark_of(other.as_bytes()), None, "{other}");
        }
    }
}
