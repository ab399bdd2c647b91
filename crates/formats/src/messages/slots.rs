//! The message of `docs/formats/sample.proto`: a label, slots of raw keys and slots of numbers. Knows no file and no
//! spec.

use sanderling_sample::Field;

use super::example::float_values;
use super::protobuf::{BYTES, Cursor, FIXED32, FIXED64, Malformed, VARINT};

/// A part of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part<'a> {
    /// The label; the last one wins.
    Label(f32),
    /// The message of a sparse slot; [`keys`] reads it.
    Sparse(u32, &'a [u8]),
    /// The message of a dense slot; [`numbers`] reads it.
    Dense(u32, &'a [u8]),
}

/// Calls `on` with every part of a sample, in their order.
pub(crate) fn each_part<'a>(
    record: &'a [u8],
    mut on: impl FnMut(Part<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut sample = Cursor::new(record);
    while let Some((field, wire)) = sample.tag()? {
        match field {
            1 if wire == FIXED32 => on(Part::Label(f32::from_bits(sample.fixed32()?)))?,
            1 => return Err(sample.malformed("the label as a number of 32 bits")),
            2 | 3 => {
                let slot = sample.nested(wire, "the message of a slot")?;
                let index = index_of(slot)?;
                on(if field == 2 { Part::Sparse(index, slot) } else { Part::Dense(index, slot) })?;
            }
            _ => sample.skip(field, wire)?,
        }
    }
    Ok(())
}

/// The index of a slot; 0, which writers leave out, if it has none.
#[inline]
fn index_of(slot: &[u8]) -> Result<u32, Malformed> {
    let mut slot = Cursor::new(slot);
    let mut index = 0;
    while let Some((field, wire)) = slot.tag()? {
        match (field, wire) {
            // Truncated to 32 bits, like any reader of a `uint32` does.
            (1, VARINT) => index = slot.varint()? as u32,
            (1, _) => return Err(slot.malformed("the index of a slot as a varint")),
            _ => slot.skip(field, wire)?,
        }
    }
    Ok(index)
}

/// Appends the keys of a sparse slot.
#[inline]
pub(crate) fn keys<'a>(slot: &'a [u8], out: &mut Vec<Field<'a>>) -> Result<(), Malformed> {
    let mut slot = Cursor::new(slot);
    while let Some((field, wire)) = slot.tag()? {
        match (field, wire) {
            (2, FIXED64) => out.push(Field::Unsigned(slot.fixed64()?)),
            (2, BYTES) => {
                let mut packed = Cursor::new(slot.bytes()?);
                while !packed.is_empty() {
                    out.push(Field::Unsigned(packed.fixed64()?));
                }
            }
            (2, _) => return Err(slot.malformed("keys of 64 bits")),
            _ => slot.skip(field, wire)?,
        }
    }
    Ok(())
}

/// Appends the numbers of a dense slot.
#[inline]
pub(crate) fn numbers<'a>(slot: &'a [u8], out: &mut Vec<Field<'a>>) -> Result<(), Malformed> {
    let mut slot = Cursor::new(slot);
    while let Some((field, wire)) = slot.tag()? {
        match field {
            2 => float_values(&mut slot, wire, out)?,
            _ => slot.skip(field, wire)?,
        }
    }
    Ok(())
}
