//! The sums of a step: per table, all workers' gradients of a key become one. Knows neither who the workers are nor what is
//! done with the sums.
//!
//! Plain gradients are added in 64 bits in the order of workers and of their messages, and rounded once: whatever the order
//! of arrival, the result has the same bits. Those in fixed point are added exactly: it has the same bits however samples
//! were shared out.

use sanderling_store::Dedup;

use crate::fixed::power_of_two;
use crate::part::{Gradients, Kept, Part};

/// All that was handed in for a step, in the order of workers and of their messages.
#[derive(Debug)]
pub struct Complete {
    pub(crate) step: u64,
    pub(crate) kept: Vec<Kept>,
    pub(crate) desks: Vec<Desk>,
}

/// What was handed in for one table. Several threads may sum up different ones at the same time.
#[derive(Debug)]
pub struct OfTable {
    kept: Vec<Kept>,
    desk: Desk,
}

/// Memory that is used again for the next step.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    dedup: Dedup,
    counts: Vec<u32>,
    /// Sums in fixed point: in 64 bits, which is all that machines have instructions for, and which few need more than.
    narrow: Vec<i64>,
    exact: Vec<i128>,
    /// Sums of plain gradients.
    wide: Vec<f64>,
    gradients: Vec<f32>,
}

/// The sums of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sums<'a> {
    /// Number of the table.
    pub table: u32,
    /// Multiplies the learning rate.
    pub lr_scale: f32,
    /// Distinct keys, in the order of their first appearance.
    pub keys: &'a [u64],
    /// How often each occurred, over all workers.
    pub counts: &'a [u32],
    /// A row per key.
    pub gradients: &'a [f32],
}

/// Workers do not agree on what a step is.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("workers give different {what} for table number {table}: {one} and {other}; all must give the same")]
pub struct Uneven {
    /// Number of the table.
    pub table: u32,
    /// What is different.
    pub what: &'static str,
    /// The first one's.
    pub one: f64,
    /// Another one's.
    pub other: f64,
}

impl Complete {
    /// Number of the step.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sees whether the sums of all tables can be made. To be called first.
    pub fn check(&mut self) -> Result<(), Uneven> {
        // Stable, so that the order of workers stays.
        self.kept.sort_by_key(|kept| kept.part.table);
        self.kept.chunk_by(|a, b| a.part.table == b.part.table).try_for_each(check)
    }

    /// Is nothing left to be taken?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Takes what was handed in for a table; `None`: nothing is left.
    pub fn take_table(&mut self) -> Option<OfTable> {
        let last = self.kept.chunk_by(|a, b| a.part.table == b.part.table).next_back()?;
        let kept = self.kept.split_off(self.kept.len() - last.len());
        Some(OfTable { kept, desk: self.desks.pop().unwrap_or_default() })
    }

    /// Gives back what was taken, when its sums are not needed any more. What was handed in is returned: its memory may be
    /// used again.
    pub fn give_back(&mut self, of_table: OfTable) -> impl Iterator<Item = Part> {
        self.desks.push(of_table.desk);
        of_table.kept.into_iter().map(|kept| kept.part)
    }

    /// Calls `apply` with the sums of each table, after it was seen that all of them can be made.
    pub fn each<E: From<Uneven>>(
        &mut self,
        mut apply: impl FnMut(&Sums<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check()?;
        while let Some(mut of_table) = self.take_table() {
            let applied = apply(&of_table.sums());
            drop(self.give_back(of_table));
            applied?;
        }
        Ok(())
    }
}

impl OfTable {
    /// Number of the table.
    #[must_use]
    pub fn table(&self) -> u32 {
        self.kept[0].part.table
    }

    /// The sums.
    pub fn sums(&mut self) -> Sums<'_> {
        self.desk.sum(&self.kept)
    }
}

/// One step of a table has one learning rate and one way of counting.
fn check(kept: &[Kept]) -> Result<(), Uneven> {
    let first = &kept[0].part;
    // Plain gradients have no unit.
    let unit = |gradients: &Gradients| match gradients {
        Gradients::Single(_) => f64::from(i16::MAX),
        Gradients::Fixed { unit_log2, .. } => f64::from(*unit_log2),
    };
    for Kept { part, .. } in kept {
        for (what, one, other) in [
            ("factors of the learning rate", f64::from(first.lr_scale), f64::from(part.lr_scale)),
            ("units", unit(&first.gradients), unit(&part.gradients)),
            ("dims", first.dim as f64, part.dim as f64),
        ] {
            if one != other {
                return Err(Uneven { table: part.table, what, one, other });
            }
        }
    }
    Ok(())
}

impl Desk {
    pub(crate) fn bytes(&self) -> usize {
        self.dedup.bytes()
            + self.counts.capacity() * size_of::<u32>()
            + self.narrow.capacity() * size_of::<i64>()
            + self.wide.capacity() * size_of::<f64>()
            + self.exact.capacity() * size_of::<i128>()
            + self.gradients.capacity() * size_of::<f32>()
    }

    fn sum<'a>(&'a mut self, kept: &'a [Kept]) -> Sums<'a> {
        let first = &kept[0].part;
        let (table, lr_scale, dim) = (first.table, first.lr_scale, first.dim);
        let Desk { dedup, counts, narrow, exact, wide, gradients } = self;
        dedup.clear();
        dedup.add(&first.keys);
        let is_first_distinct = dedup.unique.len() == first.keys.len();
        for Kept { part, .. } in &kept[1..] {
            dedup.add(&part.keys);
        }
        let terms = Terms { of: &dedup.inverse, keys: dedup.unique.len(), dim, is_first_distinct };
        let all_counts = kept.iter().map(|kept| &kept.part.counts[..]);
        Terms { dim: 1, ..terms }.add(counts, all_counts, |&count| count, u32::saturating_add);
        gradients.clear();
        let parts = kept.iter().map(|kept| &kept.part.gradients);
        if let Gradients::Fixed { unit_log2, .. } = first.gradients {
            let lists = parts.filter_map(|gradients| match gradients {
                Gradients::Fixed { sums, .. } => Some(&sums[..]),
                Gradients::Single(_) => None,
            });
            let unit = power_of_two(unit_log2);
            let mut is_narrow = true;
            terms.add(
                narrow,
                lists.clone(),
                |&sum| sum,
                |sum, term: i64| {
                    let (sum, overflows) = sum.overflowing_add(term);
                    is_narrow &= !overflows;
                    sum
                },
            );
            if is_narrow {
                gradients.extend(narrow.iter().map(|&sum| (sum as f64 * unit) as f32));
            } else {
                terms.add(exact, lists, |&sum| i128::from(sum), |sum, term| sum + term);
                gradients.extend(exact.iter().map(|&sum| (sum as f64 * unit) as f32));
            }
        } else {
            let lists = parts.filter_map(|gradients| match gradients {
                Gradients::Single(values) => Some(&values[..]),
                Gradients::Fixed { .. } => None,
            });
            terms.add(wide, lists, |&value| f64::from(value), |sum, term| sum + term);
            gradients.extend(wide.iter().map(|&sum| sum as f32));
        }
        Sums { table, lr_scale, keys: &dedup.unique, counts, gradients }
    }
}

/// What is added up: for each key that was handed in, of which distinct one it is.
#[derive(Debug, Clone, Copy)]
struct Terms<'a> {
    of: &'a [u32],
    keys: usize,
    dim: usize,
    /// The keys of the first list are the first ones, and no other key occurs there.
    is_first_distinct: bool,
}

impl Terms<'_> {
    /// Adds up lists of rows of `dim` values.
    fn add<'a, From: 'a, To: Copy + Default>(
        self,
        sums: &mut Vec<To>,
        mut lists: impl Iterator<Item = &'a [From]>,
        widen: impl Fn(&From) -> To,
        mut add: impl FnMut(To, To) -> To,
    ) {
        let Terms { mut of, keys, dim, is_first_distinct } = self;
        sums.clear();
        if is_first_distinct && let Some(first) = lists.next() {
            sums.extend(first.iter().map(&widen));
            of = &of[first.len() / dim..];
        }
        sums.resize(keys * dim, To::default());
        for list in lists {
            let (of_list, rest) = of.split_at(list.len() / dim);
            for (&key, row) in of_list.iter().zip(list.chunks_exact(dim)) {
                let sums = &mut sums[key as usize * dim..][..dim];
                sums.iter_mut().zip(row).for_each(|(sum, term)| *sum = add(*sum, widen(term)));
            }
            of = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    fn check(parts: &[(&[u64], &[i64])], expected: &[(u64, u32, f32)]) {
        let budget = Budget::new(1 << 20);
        let kept = parts.iter().map(|&(keys, sums)| {
            let gradients = Gradients::Fixed { unit_log2: -40, sums: sums.to_vec() };
            let part = Part {
                table: 0,
                lr_scale: 1.0,
                dim: 1,
                keys: keys.to_vec(),
                counts: vec![3; keys.len()],
                gradients,
            };
            part.keep(&budget).expect("there is room")
        });
        let kept: Vec<Kept> = kept.collect();
        let mut desk = Desk::default();
        for _ in 0..2 {
            let sums = desk.sum(&kept);
            let found = sums.keys.iter().zip(sums.counts).zip(sums.gradients);
            let found: Vec<_> = found.map(|((&key, &count), &gradient)| (key, count, gradient)).collect();
            assert_eq!(found, expected, "{parts:?}");
        }
    }

    #[test]
    fn sums_are_exact_whether_or_not_they_fit_into_64_bits() {
        const ONE: i64 = 1 << 40;
        check(&[(&[7, 8], &[ONE, -ONE])], &[(7, 3, 1.0), (8, 3, -1.0)]);
        check(&[(&[7, 7], &[ONE, ONE])], &[(7, 6, 2.0)]);
        check(&[(&[7, 8], &[ONE, ONE]), (&[9, 7], &[ONE, ONE])], &[(7, 6, 2.0), (8, 3, 1.0), (9, 3, 1.0)]);
        check(&[(&[7], &[i64::MAX]), (&[7, 8], &[i64::MAX, ONE])], &[(7, 6, 2_f32.powi(24)), (8, 3, 1.0)]);
        // Beyond 64 bits on the way only.
        check(&[(&[7], &[i64::MAX]), (&[7], &[ONE]), (&[7], &[-i64::MAX])], &[(7, 9, 1.0)]);
    }
}
