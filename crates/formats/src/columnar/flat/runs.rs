//! Small integers as Parquet stores levels and dictionary indices: repeated values and bit-packed groups in turns. A cursor
//! reads them from any run on. Format: <https://parquet.apache.org/docs/file-format/data-pages/encodings/>.

/// The widest integer.
pub(super) const WIDTH_MAX: u32 = 32;

/// A place in the runs. It does not hold the bytes, so that places can be kept beside them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// The header of the next run.
    next: usize,
    run: Run,
    /// Values of this run that are left.
    left: usize,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    Repeated(u32),
    /// Packed values from this bit on.
    Packed(usize),
}

impl Default for Run {
    fn default() -> Run {
        Run::Repeated(0)
    }
}

/// The bytes of runs, and the bits of a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) width: u32,
}

impl Runs<'_> {
    /// Moves to the next run once this one is used up; `None` at the end of the bytes.
    fn advance(&self, cursor: &mut Cursor) -> Option<()> {
        while cursor.left == 0 {
            let header = self.varint(&mut cursor.next)?;
            let count = usize::try_from(header >> 1).ok()?;
            if header & 1 == 0 {
                let bytes = self.width.div_ceil(8) as usize;
                let value = self.bytes.get(cursor.next..cursor.next.checked_add(bytes)?)?;
                let value = value.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte)) & self.mask();
                *cursor = Cursor { next: cursor.next + bytes, run: Run::Repeated(value), left: count };
                continue;
            }
            // The last group may be cut short behind its last value.
            let width = self.width as usize;
            let there = self.bytes.len() - cursor.next;
            let bytes = count.checked_mul(width)?.min(there);
            let left = (bytes * 8).checked_div(width).or_else(|| count.checked_mul(8))?;
            if left == 0 && count > 0 {
                return None;
            }
            *cursor = Cursor { next: cursor.next + bytes, run: Run::Packed(cursor.next * 8), left };
        }
        Some(())
    }

    fn mask(&self) -> u32 {
        ((1_u64 << self.width) - 1) as u32
    }

    fn varint(&self, at: &mut usize) -> Option<u32> {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = *self.bytes.get(*at)?;
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).ok();
            }
            shift += 7;
            if shift > 28 {
                return None;
            }
        }
    }

    /// Calls `each` for consecutive parts of the next `count` values; `None` if there are fewer.
    fn walk(&self, cursor: &mut Cursor, mut count: usize, mut each: impl FnMut(Run, usize)) -> Option<()> {
        while count > 0 {
            self.advance(cursor)?;
            let taken = count.min(cursor.left);
            each(cursor.run, taken);
            if let Run::Packed(bit) = &mut cursor.run {
                *bit += taken * self.width as usize;
            }
            cursor.left -= taken;
            count -= taken;
        }
        Some(())
    }

    /// Skips values; `None` if there are fewer.
    pub(super) fn skip(&self, cursor: &mut Cursor, count: usize) -> Option<()> {
        self.walk(cursor, count, |_, _| {})
    }

    /// Appends the next values; `None` if there are fewer.
    pub(super) fn read(&self, cursor: &mut Cursor, count: usize, out: &mut Vec<u32>) -> Option<()> {
        self.walk(cursor, count, |run, taken| match run {
            Run::Repeated(value) => out.resize(out.len() + taken, value),
            Run::Packed(bit) => self.unpack(bit, taken, out),
        })
    }

    /// Passes the next values, of one bit each, and returns the number of ones; `None` if there are fewer.
    pub(super) fn count_ones(&self, cursor: &mut Cursor, count: usize) -> Option<usize> {
        debug_assert_eq!(self.width, 1);
        let mut ones = 0;
        self.walk(cursor, count, |run, taken| match run {
            Run::Repeated(value) => ones += taken * (value & 1) as usize,
            Run::Packed(bit) => ones += ones_in(self.bytes, bit, taken),
        })?;
        Some(ones)
    }

    /// Whether the next `count` values are one repeated value.
    pub(super) fn repeats(&self, cursor: &mut Cursor, count: usize) -> Option<u32> {
        self.advance(cursor)?;
        match cursor.run {
            Run::Repeated(value) if cursor.left >= count => Some(value),
            _ => None,
        }
    }

    fn unpack(&self, bit: usize, count: usize, out: &mut Vec<u32>) {
        let (width, mask) = (self.width as usize, self.mask());
        if width == 0 {
            out.resize(out.len() + count, 0);
            return;
        }
        // The values whose word of 8 bytes is within the bytes.
        let whole = match (self.bytes.len() * 8).checked_sub(64) {
            Some(last) if last >= bit => ((last - bit) / width + 1).min(count),
            _ => 0,
        };
        out.extend((0..whole).map(|at| {
            let bit = bit + at * width;
            let word = self.bytes[bit / 8..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            (word >> (bit % 8)) as u32 & mask
        }));
        out.extend((whole..count).map(|at| {
            let bit = bit + at * width;
            let (mut word, there) = ([0; 8], &self.bytes[bit / 8..]);
            let there = &there[..there.len().min(8)];
            word[..there.len()].copy_from_slice(there);
            (u64::from_le_bytes(word) >> (bit % 8)) as u32 & mask
        }));
    }
}

fn ones_in(bytes: &[u8], bit: usize, count: usize) -> usize {
    let end = bit + count;
    let (first, last) = (bit / 8, end.div_ceil(8));
    let all: usize = bytes[first..last].iter().map(|byte| byte.count_ones() as usize).sum();
    let before = (bytes[first] & !(0xff << (bit % 8))).count_ones() as usize;
    let behind = if end.is_multiple_of(8) { 0 } else { (bytes[last - 1] >> (end % 8)).count_ones() as usize };
    all - before - behind
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs as a writer makes them: of a repeated value, or packed groups of 8.
    fn written(runs: &[(bool, Vec<u32>)], width: u32) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        let varint = |bytes: &mut Vec<u8>, mut number: usize| {
            while number >= 0x80 {
                bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            bytes.push(number as u8);
        };
        for (is_packed, run) in runs {
            let run: Vec<u32> =
                run.iter().map(|value| (u64::from(*value) & ((1 << width) - 1)) as u32).collect();
            if *is_packed {
                let groups = run.len().div_ceil(8);
                varint(&mut bytes, groups << 1 | 1);
                let mut bits = vec![0_u8; groups * width as usize];
                for (at, value) in run.iter().enumerate() {
                    for bit in 0..width as usize {
                        let place = at * width as usize + bit;
                        bits[place / 8] |= ((value >> bit & 1) as u8) << (place % 8);
                    }
                }
                bytes.extend(bits);
                values.extend(&run);
            } else {
                varint(&mut bytes, run.len() << 1);
                bytes.extend(&run[0].to_le_bytes()[..width.div_ceil(8) as usize]);
                values.extend(std::iter::repeat_n(run[0], run.len()));
            }
        }
        (bytes, values)
    }

    proptest! {
        #[test]
        fn values_are_read_from_any_place(
            width in 0_u32..=WIDTH_MAX,
            runs in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u32>(), 8..=64)), 1..8),
            steps in proptest::collection::vec((0_usize..30, 0_usize..30), 0..20),
        ) {
            // Packed runs of whole groups.
            let runs: Vec<(bool, Vec<u32>)> =
                runs.into_iter().map(|(packed, run)| (packed, run[..run.len() / 8 * 8].to_vec())).collect();
            let (bytes, values) = written(&runs, width);
            let runs = Runs { bytes: &bytes, width };
            let (mut cursor, mut at) = (Cursor::default(), 0);
            for (skipped, read) in steps {
                let skipped = skipped.min(values.len() - at);
                let read = read.min(values.len() - at - skipped);
                runs.skip(&mut cursor, skipped).unwrap();
                at += skipped;
                let mut found = Vec::new();
                if width == 1 {
                    let mut counted = cursor;
                    let ones = values[at..at + read].iter().filter(|value| **value == 1).count();
                    prop_assert_eq!(runs.count_ones(&mut counted, read), Some(ones));
                }
                runs.read(&mut cursor, read, &mut found).unwrap();
                prop_assert_eq!(&found, &values[at..at + read]);
                at += read;
            }
            prop_assert!(runs.skip(&mut cursor, values.len() - at).is_some());
            prop_assert!(runs.skip(&mut cursor, 1).is_none());
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..40), width in 0_u32..=WIDTH_MAX) {
            let runs = Runs { bytes: &bytes, width };
            let (mut cursor, mut out) = (Cursor::default(), Vec::new());
            while out.len() < 10_000 && runs.read(&mut cursor, 7, &mut out).is_some() {}
        }
    }
}
