//! The place of a row in the shuffled order of a pass: a function of seed, pass and the row's position in the input,
//! so that it depends neither on the number of workers nor on which worker read the row.

use sanderling_random::splitmix;

use crate::error::JobError;

/// Rows of a unit; a unit of more is refused.
const UNIT_ROWS_MAX: usize = 1 << 24;
/// Input bytes per slice of places, and the most slices. Fewer bytes, and rows are written to more places at a time than
/// caches hold; more, and they are not in a cache when they are taken.
const SLICE_BYTES: u64 = 4 << 20;
const SLICES_MAX: u64 = 1024;

/// The places of one pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    key: u64,
}

impl Places {
    pub(crate) fn new(seed: u64, pass: u64) -> Places {
        Places { key: splitmix(splitmix(seed).wrapping_add(pass)) }
    }

    /// Of the rows of a unit. Different rows have different places.
    pub(crate) fn of(self, unit: u64, row: usize) -> u64 {
        splitmix((unit << UNIT_ROWS_MAX.ilog2() | row as u64) ^ self.key)
    }

    /// Refuses a unit with more rows than it may have.
    pub(crate) fn check(rows: usize) -> Result<(), JobError> {
        if rows > UNIT_ROWS_MAX {
            let reason =
                format!("a block of {rows} rows: at most {UNIT_ROWS_MAX} are shuffled; cut it smaller");
            return Err(JobError::Options(reason));
        }
        Ok(())
    }
}

/// The range of places in equal slices, a power of two of them: rows are kept by slice, so that they can be sorted slice by
/// slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slices {
    count_log2: u32,
}

impl Slices {
    /// For an input of so many bytes, if that is known; at most so many slices.
    pub(crate) fn of_input(bytes: Option<u64>, most: usize) -> Slices {
        let count = bytes.map_or(SLICES_MAX / 4, |bytes| bytes.div_ceil(SLICE_BYTES).clamp(1, SLICES_MAX));
        Slices { count_log2: count.next_power_of_two().ilog2().min(most.max(1).ilog2()) }
    }

    pub(crate) fn count(self) -> usize {
        1 << self.count_log2
    }

    /// Which one a place is in: the first has the lowest places.
    pub(crate) fn of(self, place: u64) -> usize {
        // A shift by all 64 bits would be none.
        (place >> 1 >> (63 - self.count_log2)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_uniform_and_passes_independent() {
        // 16 ranges of places and the lowest 4 bits of them, of 1000 units of 64 rows; and in the same cells places of one
        // pass beside those of the next. Chi-square with 255 degrees of freedom: above 331 happens once in a thousand.
        let (first, second) = (Places::new(7, 0), Places::new(7, 1));
        let cells = |cell: &dyn Fn(u64, u64) -> u64| {
            let mut counts = [0_u32; 256];
            for unit in 0..1000 {
                for row in 0..64 {
                    counts[cell(first.of(unit, row), second.of(unit, row)) as usize] += 1;
                }
            }
            let expected = 64_000.0 / 256.0;
            counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum::<f64>()
        };
        for chi in [cells(&|a, _| a >> 60 << 4 | a & 15), cells(&|a, b| a >> 60 << 4 | b >> 60)] {
            assert!(chi < 331.0, "chi-square {chi}");
        }
        assert_ne!(Places::new(7, 1).of(3, 4), Places::new(8, 0).of(3, 4));
    }

    #[test]
    fn slices_are_in_the_order_of_places() {
        for (bytes, most, count) in [
            (Some(0), usize::MAX, 1),
            (Some(5 << 20), usize::MAX, 2),
            (Some(u64::MAX), usize::MAX, 1024),
            (Some(u64::MAX), 1000, 512),
            (Some(u64::MAX), 0, 1),
            (None, usize::MAX, 256),
            (None, 255, 128),
        ] {
            let slices = Slices::of_input(bytes, most);
            assert_eq!(slices.count(), count);
            assert_eq!((slices.of(0), slices.of(u64::MAX)), (0, count - 1));
            assert_eq!(slices.of(u64::MAX / 2), (count - 1) / 2);
        }
    }
}
