//! Scored rows in ascending order.

use super::{Scored, rank};

/// Zero and minus zero are equal scores.
pub(super) fn is_same_score(a: &Scored, b: &Scored) -> bool {
    a.score == b.score
}

/// The score of a group of equal scores, and the weights of its positives and negatives.
pub(super) fn sums(group: &[Scored]) -> (f32, f64, f64) {
    let sum = |weight: fn(&Scored) -> f32| group.iter().map(|row| f64::from(weight(row))).sum();
    (group[0].score, sum(|row| row.positive), sum(|row| row.negative))
}

/// Rows by ascending score in parts of consecutive scores, so that no copy of all rows is needed. Equal scores are in one
/// part.
pub(super) struct SortedParts<'a> {
    rows: &'a [Scored],
    /// Bounds of the parts by [`SortedParts::place`], the end excluded.
    bounds: std::vec::IntoIter<(u32, u32)>,
}

impl<'a> SortedParts<'a> {
    /// Rows in a part, about: all of a small set, otherwise one in sixteen.
    const ROWS_MIN: usize = 1 << 16;
    const PARTS: usize = 16;
    const PLACES: u32 = 1 << 16;

    /// The upper bits of the score's rank.
    fn place(row: &Scored) -> u32 {
        // Adding zero makes minus zero zero.
        rank(row.score + 0.0) >> 16
    }

    pub(super) fn of(rows: &'a [Scored]) -> Self {
        let rows_max = (rows.len() / Self::PARTS).max(Self::ROWS_MIN);
        let mut bounds = Vec::new();
        if rows.len() <= rows_max {
            bounds.push((0, Self::PLACES));
        } else {
            let mut counts = vec![0_usize; Self::PLACES as usize];
            rows.iter().for_each(|row| counts[Self::place(row) as usize] += 1);
            let (mut first, mut in_part) = (0, 0);
            for (place, count) in (0..).zip(&counts) {
                if in_part > 0 && in_part + count > rows_max {
                    bounds.push((first, place));
                    (first, in_part) = (place, 0);
                }
                in_part += count;
            }
            bounds.push((first, Self::PLACES));
        }
        SortedParts { rows, bounds: bounds.into_iter() }
    }

    fn part(&self, (first, end): (u32, u32)) -> Vec<Scored> {
        if (first, end) == (0, Self::PLACES) {
            return sorted(self.rows);
        }
        let is_in_part = |row: &&Scored| (first..end).contains(&Self::place(row));
        sorted(&self.rows.iter().filter(is_in_part).copied().collect::<Vec<_>>())
    }
}

impl Iterator for SortedParts<'_> {
    type Item = Vec<Scored>;

    fn next(&mut self) -> Option<Vec<Scored>> {
        let bounds = self.bounds.next()?;
        Some(self.part(bounds))
    }
}

impl DoubleEndedIterator for SortedParts<'_> {
    fn next_back(&mut self) -> Option<Vec<Scored>> {
        let bounds = self.bounds.next_back()?;
        Some(self.part(bounds))
    }
}

/// Rows by ascending score: a radix sort over three digits, several times as fast as comparing.
pub(super) fn sorted(rows: &[Scored]) -> Vec<Scored> {
    const DIGITS: [(u32, usize); 3] = [(0, 11), (11, 11), (22, 10)];
    let mut rows = rows.to_vec();
    if rows.len() < 1 << 12 {
        rows.sort_unstable_by_key(|row| rank(row.score));
        return rows;
    }
    let mut other = rows.clone();
    for (shift, bits) in DIGITS {
        let digit = |row: &Scored| (rank(row.score) >> shift) as usize & ((1 << bits) - 1);
        let mut places = vec![0usize; 1 << bits];
        rows.iter().for_each(|row| places[digit(row)] += 1);
        let mut start = 0;
        for place in &mut places {
            start += std::mem::replace(place, start);
        }
        for row in &rows {
            let place = &mut places[digit(row)];
            other[*place] = *row;
            *place += 1;
        }
        std::mem::swap(&mut rows, &mut other);
    }
    rows
}
