//! Values of JSON as fields of a row. Texts are borrowed from the request where they have no escapes.

use std::borrow::Cow;
use std::fmt;

use sanderling_learner::LINE_COLUMN;
use sanderling_sample::Field;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell<'a> {
    Missing,
    Text(Cow<'a, str>),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
    List(Vec<Cell<'a>>),
}

impl Cell<'_> {
    /// The field of a single value; `None` for a list.
    pub(crate) fn scalar(&self) -> Option<Field<'_>> {
        Some(match self {
            Cell::Missing => Field::Missing,
            Cell::Text(text) => Field::Text(text.as_bytes()),
            Cell::Int(number) => Field::Int(*number),
            Cell::Unsigned(number) => Field::Unsigned(*number),
            Cell::Float(number) => Field::Float(*number),
            Cell::Bool(is_true) => Field::Bool(*is_true),
            Cell::List(_) => return None,
        })
    }
}

/// A row: values by column. A line of libsvm or libffm text is a row of one column.
#[derive(Debug)]
pub(crate) struct Row<'a>(pub(crate) Vec<(Cow<'a, str>, Cell<'a>)>);

/// A name in an object.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Cell<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cell<'a>, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl<'de> Visitor<'de> for CellVisitor {
    type Value = Cell<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true, false, null or a list")
    }

    fn visit_bool<E: Error>(self, is_true: bool) -> Result<Cell<'de>, E> {
        Ok(Cell::Bool(is_true))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Cell<'de>, E> {
        Ok(Cell::Int(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Cell<'de>, E> {
        Ok(i64::try_from(number).map_or(Cell::Unsigned(number), Cell::Int))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Cell<'de>, E> {
        Ok(Cell::Float(number))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cell<'de>, E> {
        Ok(Cell::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cell<'de>, E> {
        Ok(Cell::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E: Error>(self) -> Result<Cell<'de>, E> {
        Ok(Cell::Missing)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Cell<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Cell::List(list))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name<'a>, D::Error> {
        match deserializer.deserialize_any(CellVisitor)? {
            Cell::Text(text) => Ok(Name(text)),
            _ => Err(Error::custom("a name is a text")),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Row<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Row<'a>, D::Error> {
        struct RowVisitor;

        impl<'de> Visitor<'de> for RowVisitor {
            type Value = Row<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a row: an object of columns and values, or a line of text")
            }

            fn visit_borrowed_str<E: Error>(self, line: &'de str) -> Result<Row<'de>, E> {
                Ok(Row(vec![(LINE_COLUMN.into(), Cell::Text(Cow::Borrowed(line)))]))
            }

            fn visit_str<E: Error>(self, line: &str) -> Result<Row<'de>, E> {
                Ok(Row(vec![(LINE_COLUMN.into(), Cell::Text(Cow::Owned(line.to_owned())))]))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Row<'de>, A::Error> {
                let mut row = Vec::new();
                while let Some((Name(name), cell)) = entries.next_entry()? {
                    row.push((name, cell));
                }
                Ok(Row(row))
            }
        }
        deserializer.deserialize_any(RowVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_type() {
        let check = |json: &str, expected: Cell<'_>| {
            assert_eq!(serde_json::from_str::<Cell<'_>>(json).expect(json), expected, "{json}");
        };
        check("null", Cell::Missing);
        check("\"u17\"", Cell::Text("u17".into()));
        check(r#""a\nb""#, Cell::Text("a\nb".into()));
        check("-3", Cell::Int(-3));
        check("18446744073709551615", Cell::Unsigned(u64::MAX));
        check("1.5", Cell::Float(1.5));
        check("true", Cell::Bool(true));
        check("[1,[\"a\"]]", Cell::List(vec![Cell::Int(1), Cell::List(vec![Cell::Text("a".into())])]));
        for json in ["{}", "[{}]", "1e999", "NaN", ""] {
            assert!(serde_json::from_str::<Cell<'_>>(json).is_err(), "{json}");
        }
    }
}
