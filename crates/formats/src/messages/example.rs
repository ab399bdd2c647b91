//! tf.Example: a map from names to lists of texts, of numbers or of integers. Knows no file and no spec.
//!
//! ```proto
//! message Example { Features features = 1; }
//! message Features { map<string, Feature> feature = 1; }     // entries { string key = 1; Feature value = 2; }
//! message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
//! message BytesList { repeated bytes value = 1; }
//! message FloatList { repeated float value = 1 [packed = true]; }
//! message Int64List { repeated int64 value = 1 [packed = true]; }
//! ```
//!
//! Read as protocol buffers demand: fields in any order, packed or not; nested messages in pieces; the last of
//! several kinds or of repeated names wins; unknown fields are skipped.

use sanderling_sample::Field;

use super::protobuf::{BYTES, Cursor, FIXED32, Malformed, VARINT};

/// Calls `on` with the name and the bytes of every map entry, in their order. A later entry of a name replaces an
/// earlier one.
pub(crate) fn each_entry<'a>(
    record: &'a [u8],
    mut on: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut example = Cursor::new(record);
    while let Some((field, wire)) = example.tag()? {
        if field != 1 {
            example.skip(field, wire)?;
            continue;
        }
        let mut features = Cursor::new(example.nested(wire, "the message of features")?);
        while let Some((field, wire)) = features.tag()? {
            if field != 1 {
                features.skip(field, wire)?;
                continue;
            }
            let entry = features.nested(wire, "an entry of the map of features")?;
            on(name_of(entry)?, entry)?;
        }
    }
    Ok(())
}

/// The last key of a map entry; the empty one if it has none.
#[inline]
fn name_of(entry: &[u8]) -> Result<&[u8], Malformed> {
    let mut entry = Cursor::new(entry);
    let mut name: &[u8] = &[];
    while let Some((field, wire)) = entry.tag()? {
        if field == 1 {
            name = entry.nested(wire, "the name of a feature")?;
        } else {
            entry.skip(field, wire)?;
        }
    }
    Ok(name)
}

/// Appends the values of a map entry.
#[inline]
pub(crate) fn values<'a>(entry: &'a [u8], out: &mut Vec<Field<'a>>) -> Result<(), Malformed> {
    let start = out.len();
    let mut kind = 0;
    let mut entry = Cursor::new(entry);
    while let Some((field, wire)) = entry.tag()? {
        if field != 2 {
            entry.skip(field, wire)?;
            continue;
        }
        let mut feature = Cursor::new(entry.nested(wire, "the message of a feature")?);
        while let Some((field, wire)) = feature.tag()? {
            if !(1..=3).contains(&field) {
                feature.skip(field, wire)?;
                continue;
            }
            let list = Cursor::new(feature.nested(wire, "a list of values")?);
            if kind != field {
                // The last variant of a `oneof` wins.
                out.truncate(start);
                kind = field;
            }
            match kind {
                1 => texts(list, out)?,
                2 => floats(list, out)?,
                _ => integers(list, out)?,
            }
        }
    }
    Ok(())
}

#[inline]
fn texts<'a>(mut list: Cursor<'a>, out: &mut Vec<Field<'a>>) -> Result<(), Malformed> {
    while let Some((field, wire)) = list.tag()? {
        if field == 1 {
            out.push(Field::Text(list.nested(wire, "a text")?));
        } else {
            list.skip(field, wire)?;
        }
    }
    Ok(())
}

/// Appends the floats of field 1 of a list; other messages use it, too.
#[inline]
fn floats<'a>(mut list: Cursor<'a>, out: &mut Vec<Field<'a>>) -> Result<(), Malformed> {
    while let Some((field, wire)) = list.tag()? {
        match (field, wire) {
            (1, _) => float_values(&mut list, wire, out)?,
            _ => list.skip(field, wire)?,
        }
    }
    Ok(())
}

/// One or several 32-bit floats, as `wire` says.
#[inline]
pub(super) fn float_values<'a>(
    from: &mut Cursor<'a>,
    wire: u8,
    out: &mut Vec<Field<'a>>,
) -> Result<(), Malformed> {
    let field = |bits| Field::Float(f64::from(f32::from_bits(bits)));
    match wire {
        FIXED32 => out.push(field(from.fixed32()?)),
        BYTES => {
            let mut packed = Cursor::new(from.bytes()?);
            while !packed.is_empty() {
                out.push(field(packed.fixed32()?));
            }
        }
        _ => return Err(from.malformed("numbers of 32 bits")),
    }
    Ok(())
}

#[inline]
fn integers<'a>(mut list: Cursor<'a>, out: &mut Vec<Field<'a>>) -> Result<(), Malformed> {
    while let Some((field, wire)) = list.tag()? {
        match (field, wire) {
            (1, VARINT) => out.push(Field::Int(list.varint()? as i64)),
            (1, BYTES) => {
                let mut packed = Cursor::new(list.bytes()?);
                while !packed.is_empty() {
                    out.push(Field::Int(packed.varint()? as i64));
                }
            }
            (1, _) => return Err(list.malformed("integers as varints")),
            _ => list.skip(field, wire)?,
        }
    }
    Ok(())
}
