//! Rows one after the other in a run of bytes, each with its place: how rows that are shuffled are sent, kept and stored.
//! Row by row, since they are taken in another order than they were put in; small, since what does not fit in memory goes
//! through a file. Nothing is trusted that is read.
//!
//! A row: its bytes (u32, these included), its place (u64), label and weight (f32); then its columns. A column: its number of
//! keys times 2, plus 1 if there are values, as LEB128; then its keys in groups of 8, the last of which may have fewer. A
//! group: how many bytes a difference takes, 0 to 8 (u8); if there are values a bit for each that is not 1 (u8); for each key
//! its difference to the one before it in the column, to 0 for the first, times 2 if it is not negative and else -2 times it
//! minus 1, in so many bytes; the values that are not 1 (f32). All little endian.

use sanderling_sample::{Batch, Column};
use sanderling_store::{PrefetchHint, prefetch};

use crate::error::JobError;

const HEAD_BYTES: usize = 20;
const VALUED: u32 = 1;
/// Keys of one row in one column; more cannot be said.
const KEYS_MAX: usize = 1 << 30;
/// Keys of a group.
const GROUP: usize = 8;
/// The most bytes of a group's differences, and of its values.
const DIFFERENCES_BYTES: usize = 8 * GROUP;
const VALUES_BYTES: usize = 4 * GROUP;
/// And of all of it, with what is written behind it.
const GROUP_BYTES_MAX: usize = 2 + DIFFERENCES_BYTES + VALUES_BYTES + 4;
const LEB_BYTES_MAX: usize = 5;
const LINE_BYTES: usize = 64;
/// Cache lines that are asked for ahead; longer rows are their own prefetch.
const LINES_MAX: usize = 8;

/// Packs rows.
#[derive(Default)]
pub(crate) struct Packer {
    /// The row at hand: long enough for the longest that it may become.
    row: Vec<u8>,
}

impl Packer {
    /// Appends a row of a batch.
    pub(crate) fn pack(
        &mut self,
        from: &Batch,
        row: usize,
        place: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), JobError> {
        let mut bytes_max = HEAD_BYTES;
        for column in &from.columns {
            let keys = (column.offsets[row + 1] - column.offsets[row]) as usize;
            if keys >= KEYS_MAX {
                return Err(too_long());
            }
            bytes_max += LEB_BYTES_MAX + keys.div_ceil(GROUP) * GROUP_BYTES_MAX;
        }
        if self.row.len() < bytes_max {
            self.row.resize(bytes_max, 0);
        }
        let mut length = HEAD_BYTES;
        for column in &from.columns {
            length += pack_column(column, row, &mut self.row[length..]);
        }
        let head = u32::try_from(length).map_err(|_| too_long())?;
        self.row[..4].copy_from_slice(&head.to_le_bytes());
        self.row[4..12].copy_from_slice(&place.to_le_bytes());
        self.row[12..16].copy_from_slice(&from.labels[row].to_le_bytes());
        self.row[16..20].copy_from_slice(&from.weights[row].to_le_bytes());
        out.extend_from_slice(&self.row[..length]);
        // The next row of this run of bytes comes when many others' lie between: what it is written to is asked for now.
        for line in 0..length.div_ceil(LINE_BYTES).min(LINES_MAX) {
            prefetch(out, out.len() + line * LINE_BYTES, PrefetchHint::Write);
        }
        Ok(())
    }
}

fn too_long() -> JobError {
    JobError::Options("a row of 4 GiB or more cannot be shuffled".to_owned())
}

/// Writes a row's keys and values of a column; how many bytes that took.
#[inline]
fn pack_column(column: &Column, row: usize, out: &mut [u8]) -> usize {
    let span = column.offsets[row] as usize..column.offsets[row + 1] as usize;
    // With those of the rows behind it.
    let (count, keys) = (span.len(), &column.keys[span.start..]);
    let values = if column.is_weighted() { &column.values[span.start..] } else { &[] };
    let is_other = |value: &f32| value.to_bits() ^ 1_f32.to_bits();
    let is_valued = values.iter().take(count).fold(0, |all, value| all | is_other(value)) != 0;
    let mut at = 0;
    let mut word = ((count as u32) << 1) | (u32::from(is_valued) * VALUED);
    while word >= 0x80 {
        out[at] = word as u8 | 0x80;
        word >>= 7;
        at += 1;
    }
    out[at] = word as u8;
    at += 1;
    let whole = keys[..count].as_chunks().0;
    let mut before = 0;
    for (number, group) in whole.iter().enumerate() {
        let values = values.get(number * GROUP..).and_then(<[f32]>::first_chunk).filter(|_| is_valued);
        at += pack_group(before, group, GROUP, values, &mut out[at..]);
        before = group[GROUP - 1];
    }
    let (from, last) = (whole.len() * GROUP, count % GROUP);
    if last > 0 {
        let (few, few_values);
        let group = match keys[from..].first_chunk() {
            Some(group) => group,
            None => {
                few = padded(&keys[from..]);
                &few
            }
        };
        let values = match values.get(from..).and_then(<[f32]>::first_chunk) {
            Some(values) => values,
            None => {
                few_values = padded(values.get(from..).unwrap_or_default());
                &few_values
            }
        };
        at += pack_group(before, group, last, is_valued.then_some(values), &mut out[at..]);
    }
    at
}

/// Fewer than a group, and others.
#[cold]
fn padded<T: Copy + Default>(few: &[T]) -> [T; GROUP] {
    let mut group = [T::default(); GROUP];
    group[..few.len()].copy_from_slice(few);
    group
}

/// Writes a group, of which so many keys are to be there.
#[inline(always)]
fn pack_group(
    before: u64,
    keys: &[u64; GROUP],
    count: usize,
    values: Option<&[f32; GROUP]>,
    out: &mut [u8],
) -> usize {
    let mut befores = [before; GROUP];
    befores[1..].copy_from_slice(&keys[..GROUP - 1]);
    let mut differences = [0; GROUP];
    for ((difference, key), before) in differences.iter_mut().zip(keys).zip(befores) {
        let signed = key.wrapping_sub(before).cast_signed();
        *difference = (signed << 1 ^ signed >> 63).cast_unsigned();
    }
    let is_there = |place: usize| u64::from(place < count).wrapping_neg();
    let all = (0..GROUP).fold(0, |all, place| all | differences[place] & is_there(place));
    let width = (u64::BITS - all.leading_zeros()).div_ceil(8) as usize;
    let out = &mut out[..GROUP_BYTES_MAX];
    out[0] = width as u8;
    let at = 1 + usize::from(values.is_some());
    // No branch depends on the width, which nobody could foresee. All eight bytes of a difference are written: the next one's
    // are in the place of those that are too many.
    let room = &mut out[at..at + DIFFERENCES_BYTES];
    for (place, difference) in differences.iter().enumerate() {
        room[place * width..][..8].copy_from_slice(&difference.to_le_bytes());
    }
    let mut at = at + width * count;
    if let Some(values) = values {
        let mask = others(values) & u8::MAX >> (GROUP - count);
        out[1] = mask;
        // Columns often have values in some places and ones in all others. Where both are, no branch depends on which.
        if mask != 0 {
            let room = out[at..].as_chunks_mut().0;
            let mut taken = 0;
            for (place, value) in values.iter().enumerate() {
                // Behind the last one is room for one more.
                room[taken.min(GROUP)] = value.to_le_bytes();
                taken += usize::from(mask >> place & 1);
            }
            at += taken * size_of::<f32>();
        }
    }
    at
}

/// A bit for each value that is not 1.
#[inline(always)]
fn others(values: &[f32; GROUP]) -> u8 {
    let is_other = |value: &f32| u8::from(value.to_bits() != 1_f32.to_bits());
    values.iter().enumerate().fold(0, |mask, (place, value)| mask | is_other(value) << place)
}

const MISSING: JobError = JobError::Damaged("bytes are missing");

/// What is left to read of a row.
struct Rest<'a> {
    left: usize,
    /// With whatever follows the row.
    bytes: &'a [u8],
}

impl<'a> Rest<'a> {
    fn new(bytes: &'a [u8]) -> Rest<'a> {
        Rest { left: bytes.len(), bytes }
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], JobError> {
        if bytes > self.left {
            return Err(MISSING);
        }
        let (taken, rest) = self.bytes.split_at(bytes);
        (self.left, self.bytes) = (self.left - bytes, rest);
        Ok(taken)
    }

    #[inline]
    fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], JobError> {
        let mut array = [0; BYTES];
        array.copy_from_slice(self.take(BYTES)?);
        Ok(array)
    }

    /// Takes so many bytes: they, and what follows them, or zeros.
    #[inline(always)]
    fn padded<'b, const BYTES: usize>(
        &mut self,
        bytes: usize,
        short: &'b mut [u8; BYTES],
    ) -> Result<&'b [u8; BYTES], JobError>
    where
        'a: 'b,
    {
        let long = self.bytes.first_chunk();
        let taken = self.take(bytes)?;
        Ok(match long {
            Some(long) => long,
            None => {
                short[..taken.len()].copy_from_slice(taken);
                short
            }
        })
    }

    /// A number below 2^31.
    #[inline]
    fn leb128(&mut self) -> Result<u32, JobError> {
        let mut number = 0;
        for at in 0..LEB_BYTES_MAX {
            let [byte] = self.array()?;
            let bits = u32::from(byte & 0x7f);
            if at == LEB_BYTES_MAX - 1 && bits > 7 {
                break;
            }
            number |= bits << (7 * at);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(JobError::Damaged("a number that is too large"))
    }
}

/// Bytes from asking for a line to reading it, where rows are found one after the other.
const ASKED_BYTES: usize = 2048;

/// Calls `each` with the place of every row, where it starts and its length.
pub(crate) fn each_row(
    bytes: &[u8],
    mut each: impl FnMut(u64, u32, u32) -> Result<(), JobError>,
) -> Result<(), JobError> {
    let (mut at, mut asked) = (0, 0);
    while at < bytes.len() {
        while asked < at + ASKED_BYTES {
            prefetch(bytes, asked, PrefetchHint::Read);
            asked += LINE_BYTES;
        }
        let mut head = Rest::new(&bytes[at..]);
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

/// Asks for a row that starts there and is so long, for [`unpack`].
#[inline]
pub(crate) fn ask_for(bytes: &[u8], at: usize, length: usize) {
    for line in 0..(length + LINE_BYTES - 1).div_ceil(LINE_BYTES).min(LINES_MAX) {
        prefetch(bytes, at + line * LINE_BYTES, PrefetchHint::Read);
    }
}

/// Appends the row that starts there to a batch of the same shape.
pub(crate) fn unpack(bytes: &[u8], at: usize, batch: &mut Batch) -> Result<(), JobError> {
    let mut rest = Rest::new(bytes.get(at..).unwrap_or_default());
    let length = u32::from_le_bytes(rest.array()?) as usize;
    if length < HEAD_BYTES || length - 4 > rest.left {
        return Err(MISSING);
    }
    rest.left = length - 4;
    rest.take(8)?;
    let (label, weight) = (f32::from_le_bytes(rest.array()?), f32::from_le_bytes(rest.array()?));
    for column in &mut batch.columns {
        unpack_column(&mut rest, column)?;
    }
    if rest.left > 0 {
        return Err(JobError::Damaged("a row has more columns than the input"));
    }
    batch.close_row(label, weight);
    Ok(())
}

#[inline]
fn unpack_column(rest: &mut Rest<'_>, column: &mut Column) -> Result<(), JobError> {
    let word = rest.leb128()?;
    let (count, is_valued) = ((word >> 1) as usize, word & VALUED != 0);
    if is_valued && !column.is_weighted() {
        return Err(JobError::Damaged("values in a column that has none"));
    }
    if count.div_ceil(GROUP) > rest.left {
        return Err(MISSING);
    }
    let start = column.keys.len();
    column.keys.resize(start + count, 0);
    if column.is_weighted() {
        column.values.resize(start + count, 1.0);
    }
    let (keys, last) = column.keys[start..].as_chunks_mut();
    let mut values = column.values.get_mut(start..).filter(|_| is_valued);
    let mut before = 0;
    for (number, keys) in keys.iter_mut().enumerate() {
        let values = values.as_mut().map(|values| &mut values[number * GROUP..]);
        before = unpack_group(rest, before, keys, GROUP, values.and_then(<[f32]>::first_chunk_mut))?;
    }
    if !last.is_empty() {
        let (mut group, mut others) = ([0; GROUP], [1.0; GROUP]);
        unpack_group(rest, before, &mut group, last.len(), is_valued.then_some(&mut others))?;
        last.copy_from_slice(&group[..last.len()]);
        if let Some(values) = values {
            values[keys.len() * GROUP..].copy_from_slice(&others[..last.len()]);
        }
    }
    Ok(())
}

/// Reads a group, of which so many keys are there. The last of its keys.
#[inline(always)]
fn unpack_group(
    rest: &mut Rest<'_>,
    mut before: u64,
    keys: &mut [u64; GROUP],
    count: usize,
    values: Option<&mut [f32; GROUP]>,
) -> Result<u64, JobError> {
    let [width] = rest.array()?;
    let mask = if values.is_some() { rest.array::<1>()?[0] } else { 0 };
    if width > 8 || u32::from(mask) >> count != 0 {
        return Err(JobError::Damaged("a group of keys that is none"));
    }
    let width = usize::from(width);
    let all = u64::MAX.checked_shr(u64::BITS - 8 * width as u32).unwrap_or(0);
    let mut short = [0; DIFFERENCES_BYTES];
    let bytes = rest.padded(width * count, &mut short)?;
    for (place, key) in keys.iter_mut().enumerate() {
        let mut difference = [0; 8];
        difference.copy_from_slice(&bytes[place * width..][..8]);
        let difference = u64::from_le_bytes(difference) & all;
        before = before.wrapping_add((difference >> 1) ^ (difference & 1).wrapping_neg());
        *key = before;
    }
    if let Some(values) = values.filter(|_| mask != 0) {
        let mut short = [0; VALUES_BYTES];
        let others = rest.padded(4 * mask.count_ones() as usize, &mut short)?.as_chunks().0;
        let mut at = 0;
        for (place, value) in values.iter_mut().enumerate() {
            // No branch, as when it was written.
            let is_other = u32::from(mask >> place & 1);
            let (one, other) = (1_f32.to_bits(), u32::from_le_bytes(others[at % GROUP]));
            *value = f32::from_bits(one ^ (one ^ other) & is_other.wrapping_neg());
            at += is_other as usize;
        }
    }
    Ok(before)
}

/// All rows of a batch.
#[cfg(fuzzing)]
pub fn pack_rows(batch: &Batch, out: &mut Vec<u8>) -> Result<(), JobError> {
    let mut packer = Packer::default();
    (0..batch.len()).try_for_each(|row| packer.pack(batch, row, row as u64, out))
}

/// Appends all rows to a batch of the same shape.
#[cfg(fuzzing)]
pub fn unpack_rows(bytes: &[u8], batch: &mut Batch) -> Result<(), JobError> {
    each_row(bytes, |_, at, _| unpack(bytes, at as usize, batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Batch {
        let mut batch = Batch::new(&[false, true]);
        let many: Vec<(u64, f32)> = (0..100).map(|at| (at * at, (at % 3) as f32)).collect();
        // Of every width, in groups of one and of several.
        let random = |at: u64| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let wide: Vec<(u64, f32)> =
            (0..1000).map(|at| (random(at) >> (at / 8 % 64), random(at) as f32)).collect();
        let (few, other) = ([(1, 1.0), (u64::MAX, 1.0)], [(u64::from(u32::MAX), 0.5)]);
        let keys: [&[(u64, f32)]; 6] = [&few, &[], &other, &[(7, 1.0), (8, 1.0)], &many, &wide];
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
        let (mut bytes, mut heads, mut packer) = (Vec::new(), Vec::new(), Packer::default());
        (0..batch.len()).for_each(|row| packer.pack(batch, row, row as u64 * 1000, &mut bytes).unwrap());
        each_row(&bytes, |place, at, _| {
            heads.push((place, at));
            Ok(())
        })
        .unwrap();
        (bytes, heads)
    }

    #[test]
    fn a_row_is_what_the_top_of_this_file_says() {
        let mut batch = Batch::new(&[false, true]);
        for key in [5, 4, 4, 0x104, 7, 7, 7, 7, 1 << 40] {
            batch.columns[0].push(key, 1.0);
        }
        for (key, value) in [(300, 1.0), (301, 0.5), (299, 1.0)] {
            batch.columns[1].push(key, value);
        }
        batch.close_row(1.0, 2.0);
        let (bytes, _) = packed(&batch);
        let head = [[58, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0x80, 0x3f], [0, 0, 0, 0x40]];
        let keys = [[10, 0, 1, 0], [0, 0, 0, 2], [0xf9, 1, 0, 0], [0, 0, 0, 0]];
        // 2^40 - 7, times 2.
        let last = [6, 0xf2, 0xff, 0xff, 0xff, 0xff, 1];
        let valued = [3 << 1 | 1, 2, 0b010, 0x58, 2, 2, 0, 3, 0, 0, 0, 0, 0x3f];
        let expected = [head.as_flattened(), &[9 << 1, 2], keys.as_flattened(), &last, &valued].concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn rows_come_back_as_they_were_in_any_order() {
        let batch = rows();
        let (bytes, heads) = packed(&batch);
        let (mut back, mut expected) = (Batch::like(&batch), Batch::like(&batch));
        for row in [2, 0, 4, 5, 3, 1, 2] {
            assert_eq!(heads[row].0, row as u64 * 1000);
            unpack(&bytes, heads[row].1 as usize, &mut back).unwrap();
            expected.append(&sanderling_sample::Rows::new(&batch, row..row + 1));
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
