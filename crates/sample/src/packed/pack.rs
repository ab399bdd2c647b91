//! Writing rows as a packed batch. It knows no buffer but the one it is given.

use bytemuck::{NoUninit, cast_slice};

use super::{
    ENTRY_BYTES, HEADER_BYTES, MAGIC, PACKED_ALIGN_BYTES, PACKED_BYTES_MAX, PackedBuffer, PackedError,
    SHARED_OFFSETS, VERSION, WEIGHTED,
};
use crate::rows::Rows;
use crate::spec::Spec;

/// Bytes that suffice to pack the rows, if no two columns share row boundaries.
#[must_use]
pub fn packed_bytes_max(rows: &Rows<'_>) -> usize {
    let array = |count: usize, item_bytes: usize| (count * item_bytes).next_multiple_of(PACKED_ALIGN_BYTES);
    let column = |column| {
        let keys = rows.keys(column).len();
        let values = rows.values(column).map_or(0, |values| array(values.len(), 4));
        array(rows.len() + 1, 4) + array(keys, 8) + values
    };
    HEADER_BYTES
        + array(rows.columns(), ENTRY_BYTES)
        + 2 * array(rows.len(), 4)
        + (0..rows.columns()).map(column).sum::<usize>()
}

/// Packs rows into a buffer, replacing its content.
///
/// # Errors
/// More columns, rows or bytes than a packed batch may have.
pub fn pack(rows: &Rows<'_>, buffer: &mut PackedBuffer) -> Result<(), PackedError> {
    let bytes = pack_into(rows, buffer.resize(fitting(rows)?))?;
    buffer.truncate(bytes);
    Ok(())
}

/// Packs rows to the start of `out`, anywhere in memory, and returns how many bytes that took, a multiple of 64.
///
/// # Errors
/// As [`pack`]; `Length` if `out` is shorter than [`packed_bytes_max`].
pub fn pack_into(rows: &Rows<'_>, out: &mut [u8]) -> Result<usize, PackedError> {
    pack_columns(rows, &[], out)
}

/// Packs rows like [`pack_into`] with the columns at these ascending indices emptied of keys.
///
/// # Errors
/// As [`pack_into`].
pub fn pack_without(rows: &Rows<'_>, empty: &[u32], out: &mut [u8]) -> Result<usize, PackedError> {
    pack_columns(rows, empty, out)
}

fn pack_columns(rows: &Rows<'_>, empty: &[u32], out: &mut [u8]) -> Result<usize, PackedError> {
    let (needed, found) = (fitting(rows)? as u64, out.len() as u64);
    if needed > found {
        return Err(PackedError::Length { needed, found });
    }
    let count = rows.columns();
    let mut header = [0_u32; HEADER_BYTES / 4];
    header[..4].copy_from_slice(&[MAGIC, VERSION, rows.len() as u32, count as u32]);
    let mut at = 0;
    put(out, &mut at, &header);
    let entries_at = at;
    at += (count * ENTRY_BYTES).next_multiple_of(PACKED_ALIGN_BYTES);
    out[entries_at..at].fill(0);
    put(out, &mut at, rows.labels());
    put(out, &mut at, rows.weights());
    let mut before: Option<&[u32]> = None;
    let zeros = if empty.is_empty() { Vec::new() } else { vec![0; rows.len() + 1] };
    for column in 0..count {
        let (mut keys, mut values, mut offsets) =
            (rows.keys(column), rows.values(column), rows.offsets(column));
        if empty.binary_search(&(column as u32)).is_ok() {
            (keys, values, offsets) = (&[], values.map(|_| &[][..]), &zeros);
        }
        let shared = before.is_some_and(|before| are_same(before, offsets));
        let flags = (WEIGHTED * u32::from(values.is_some())) | (SHARED_OFFSETS * u32::from(shared));
        let entry = [keys.len() as u32, flags];
        out[entries_at + column * ENTRY_BYTES..][..ENTRY_BYTES].copy_from_slice(cast_slice(&entry));
        if !shared {
            put_offsets(out, &mut at, offsets);
        }
        before = Some(offsets);
        put(out, &mut at, keys);
        if let Some(values) = values {
            put(out, &mut at, values);
        }
    }
    Ok(at)
}

/// The bytes to set aside, if the rows can be packed.
fn fitting(rows: &Rows<'_>) -> Result<usize, PackedError> {
    let within = |what, found: usize, max: usize| {
        let (found, max) = (found as u64, max as u64);
        if found > max { Err(PackedError::TooMany { what, found, max }) } else { Ok(()) }
    };
    within("columns", rows.columns(), Spec::FEATURES_MAX)?;
    let bytes = packed_bytes_max(rows);
    within("bytes", bytes, PACKED_BYTES_MAX)?;
    Ok(bytes)
}

/// Copies an array and pads with zeros to the start of the next.
fn put<T: NoUninit>(out: &mut [u8], at: &mut usize, array: &[T]) {
    let end = *at + size_of_val(array);
    out[*at..end].copy_from_slice(cast_slice(array));
    *at = end.next_multiple_of(PACKED_ALIGN_BYTES);
    out[end..*at].fill(0);
}

/// Copies row boundaries, which start at 0 in a packed batch.
fn put_offsets(out: &mut [u8], at: &mut usize, offsets: &[u32]) {
    if offsets[0] == 0 {
        return put(out, at, offsets);
    }
    let end = *at + size_of_val(offsets);
    for (out, offset) in out[*at..end].chunks_exact_mut(4).zip(offsets) {
        out.copy_from_slice(&(offset - offsets[0]).to_le_bytes());
    }
    *at = end.next_multiple_of(PACKED_ALIGN_BYTES);
    out[end..*at].fill(0);
}

/// Whether two columns have the same number of keys in every row. Without a branch per row, so that it vectorises.
fn are_same(a: &[u32], b: &[u32]) -> bool {
    let shift = a[0].wrapping_sub(b[0]);
    a[a.len() - 1].wrapping_sub(b[b.len() - 1]) == shift
        && a.iter().zip(b).fold(0, |any, (a, b)| any | (a.wrapping_sub(*b) ^ shift)) == 0
}
