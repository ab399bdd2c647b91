//! Rows one after the other in a run of bytes, each with its place: how rows that are shuffled are sent, kept and stored.
//! Row by row, since they are taken in another order than they were put in; keys that fit 32 bits take 32, and values that
//! are all 1 take none. Nothing is trusted that is read.
//!
//! A row: its bytes (u32, these included), its place (u64), label and weight (f32); then per column a word (u32), its number
//! of keys times 4, plus 1 if keys take 64 bits, plus 2 if there are values; the keys; the values. All little endian.

use bytemuck::cast_slice;
use sanderling_sample::{Batch, Column};

use crate::error::JobError;

const HEAD_BYTES: usize = 20;
const WIDE: u32 = 1;
const VALUED: u32 = 2;
/// Keys of one row in one column; more cannot be said.
const KEYS_MAX: usize = 1 << 30;

/// Appends a row of a batch.
pub(crate) fn pack(from: &Batch, row: usize, place: u64, out: &mut Vec<u8>) -> Result<(), JobError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&place.to_le_bytes());
    out.extend_from_slice(&from.labels[row].to_le_bytes());
    out.extend_from_slice(&from.weights[row].to_le_bytes());
    for column in &from.columns {
        pack_column(column, row, out)?;
    }
    let bytes = u32::try_from(out.len() - start).map_err(|_| too_long())?;
    out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
    Ok(())
}

fn too_long() -> JobError {
    JobError::Options("a row of 4 GiB or more cannot be shuffled".to_owned())
}

#[inline]
fn pack_column(column: &Column, row: usize, out: &mut Vec<u8>) -> Result<(), JobError> {
    let span = column.offsets[row] as usize..column.offsets[row + 1] as usize;
    let keys = &column.keys[span.clone()];
    if keys.len() >= KEYS_MAX {
        return Err(too_long());
    }
    let values = if column.is_weighted() { &column.values[span] } else { &[] };
    let is_wide = keys.iter().fold(0, |all, key| all | key) >> 32 != 0;
    let is_valued = values.iter().fold(0, |all, value| all | (value.to_bits() ^ 1_f32.to_bits())) != 0;
    let word = ((keys.len() as u32) << 2) | (u32::from(is_wide) * WIDE) | (u32::from(is_valued) * VALUED);
    out.extend_from_slice(&word.to_le_bytes());
    if is_wide {
        out.extend_from_slice(cast_slice(keys));
    } else {
        let mut narrow = [0_u32; 16];
        for keys in keys.chunks(narrow.len()) {
            narrow.iter_mut().zip(keys).for_each(|(narrow, &key)| *narrow = key as u32);
            out.extend_from_slice(cast_slice(&narrow[..keys.len()]));
        }
    }
    if is_valued {
        out.extend_from_slice(cast_slice(values));
    }
    Ok(())
}

/// What is left to read of some bytes.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    #[inline]
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], JobError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(JobError::Damaged("bytes are missing"))?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], JobError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(JobError::Damaged("bytes are missing"))?;
        self.0 = rest;
        Ok(*taken)
    }
}

/// Calls `each` with the place of every row, where it starts and its length.
pub(crate) fn each_row(
    bytes: &[u8],
    mut each: impl FnMut(u64, u32, u32) -> Result<(), JobError>,
) -> Result<(), JobError> {
    let mut at = 0;
    while at < bytes.len() {
        let mut head = Rest(&bytes[at..]);
        let length = u32::from_le_bytes(head.array()?) as usize;
        let place = u64::from_le_bytes(head.array()?);
        if length < HEAD_BYTES || length > bytes.len() - at {
            return Err(JobError::Damaged("a row's length is wrong"));
        }
        let start = u32::try_from(at).map_err(|_| JobError::Damaged("more than 4 GiB in one piece"))?;
        each(place, start, length as u32)?;
        at += length;
    }
    Ok(())
}

/// Appends the row that starts there to a batch of the same shape.
pub(crate) fn unpack(bytes: &[u8], at: usize, batch: &mut Batch) -> Result<(), JobError> {
    let mut rest = Rest(bytes.get(at..).unwrap_or_default());
    let length = u32::from_le_bytes(rest.array()?) as usize;
    let mut rest = Rest(rest.take(length.saturating_sub(4))?);
    rest.take(8)?;
    let (label, weight) = (f32::from_le_bytes(rest.array()?), f32::from_le_bytes(rest.array()?));
    for column in &mut batch.columns {
        unpack_column(&mut rest, column)?;
    }
    if !rest.0.is_empty() {
        return Err(JobError::Damaged("a row has more columns than the input"));
    }
    batch.close_row(label, weight);
    Ok(())
}

#[inline]
fn unpack_column(rest: &mut Rest<'_>, column: &mut Column) -> Result<(), JobError> {
    let word = u32::from_le_bytes(rest.array()?);
    let keys = (word >> 2) as usize;
    if word & WIDE == 0 {
        let (narrow, _) = rest.take(4 * keys)?.as_chunks();
        column.keys.extend(narrow.iter().map(|&key| u64::from(u32::from_le_bytes(key))));
    } else {
        let (wide, _) = rest.take(8 * keys)?.as_chunks();
        column.keys.extend(wide.iter().map(|&key| u64::from_le_bytes(key)));
    }
    if word & VALUED != 0 {
        if !column.is_weighted() {
            return Err(JobError::Damaged("values in a column that has none"));
        }
        let (values, _) = rest.take(4 * keys)?.as_chunks();
        column.values.extend(values.iter().map(|&value| f32::from_le_bytes(value)));
    } else if column.is_weighted() {
        column.values.resize(column.keys.len(), 1.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Batch {
        let mut batch = Batch::new(&[false, true]);
        let keys: [&[(u64, f32)]; 4] =
            [&[(1, 1.0), (u64::MAX, 1.0)], &[], &[(u64::from(u32::MAX), 0.5)], &[(7, 1.0), (8, 1.0)]];
        for (row, keys) in keys.iter().enumerate() {
            for &(key, value) in *keys {
                batch.columns[0].push(key, 1.0);
                batch.columns[1].push(key.rotate_left(40), value);
            }
            batch.close_row(row as f32, if row == 1 { f32::NAN } else { 2.5 });
        }
        batch.weights[1] = 0.0;
        batch
    }

    fn packed(batch: &Batch) -> (Vec<u8>, Vec<(u64, u32)>) {
        let (mut bytes, mut heads) = (Vec::new(), Vec::new());
        (0..batch.len()).for_each(|row| pack(batch, row, row as u64 * 1000, &mut bytes).unwrap());
        each_row(&bytes, |place, at, _| {
            heads.push((place, at));
            Ok(())
        })
        .unwrap();
        (bytes, heads)
    }

    #[test]
    fn rows_come_back_as_they_were_in_any_order() {
        let batch = rows();
        let (bytes, heads) = packed(&batch);
        let (mut back, mut expected) = (Batch::like(&batch), Batch::like(&batch));
        for row in [2, 0, 3, 1, 2] {
            assert_eq!(heads[row].0, row as u64 * 1000);
            unpack(&bytes, heads[row].1 as usize, &mut back).unwrap();
            expected.gather(&sanderling_sample::Rows::all(&batch), &[row as u32]);
        }
        assert_eq!(back, expected);
    }

    #[test]
    fn whatever_is_damaged_is_refused_or_read_within_its_bytes() {
        let batch = rows();
        let (bytes, heads) = packed(&batch);
        let read = |bytes: &[u8]| {
            let mut back = Batch::like(&batch);
            each_row(bytes, |_, at, _| unpack(bytes, at as usize, &mut back))
        };
        for cut in 0..bytes.len() {
            let is_whole = heads.iter().any(|&(_, at)| at as usize == cut);
            assert_eq!(read(&bytes[..cut]).is_ok(), is_whole, "{cut}");
        }
        for at in 0..bytes.len() {
            for flip in [1, 4, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                // Any answer but a panic.
                let _ = read(&damaged);
            }
        }
        let other = Batch::new(&[false]);
        assert!(unpack(&bytes, 0, &mut Batch::like(&other)).is_err());
    }
}
