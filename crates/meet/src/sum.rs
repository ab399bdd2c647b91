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
    wide: Vec<f64>,
    exact: Vec<i128>,
    gradients: Vec<f32>,
}

/// The sums of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sums<'a> {
    /// Number of the table.
    pub table: u32,
    /// Multiplies the learning rate.
    pub lr: f32,
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
            ("factors of the learning rate", f64::from(first.lr), f64::from(part.lr)),
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
            + self.wide.capacity() * size_of::<f64>()
            + self.exact.capacity() * size_of::<i128>()
            + self.gradients.capacity() * size_of::<f32>()
    }

    fn sum<'a>(&'a mut self, kept: &'a [Kept]) -> Sums<'a> {
        let first = &kept[0].part;
        let (table, lr, dim) = (first.table, first.lr, first.dim);
        self.dedup.clear();
        for Kept { part, .. } in kept {
            self.dedup.add(&part.keys);
        }
        let Desk { dedup, counts, wide, exact, gradients } = self;
        let keys = &dedup.unique[..];
        if kept.len() == 1 && keys.len() == first.keys.len() {
            // Nothing to add.
            let values = match &first.gradients {
                Gradients::Single(values) => values,
                Gradients::Fixed { unit_log2, sums } => {
                    let unit = power_of_two(*unit_log2);
                    gradients.clear();
                    gradients.extend(sums.iter().map(|&sum| (sum as f64 * unit) as f32));
                    &gradients[..]
                }
            };
            return Sums { table, lr, keys, counts: &first.counts, gradients: values };
        }
        counts.clear();
        counts.resize(keys.len(), 0);
        let all_counts = kept.iter().flat_map(|kept| &kept.part.counts);
        for (&unique, &count) in dedup.inverse.iter().zip(all_counts) {
            let sum = &mut counts[unique as usize];
            *sum = sum.saturating_add(count);
        }
        gradients.clear();
        let places = || dedup.inverse.iter().map(|&unique| unique as usize * dim);
        let parts = kept.iter().map(|kept| &kept.part.gradients);
        if let Gradients::Fixed { unit_log2, .. } = first.gradients {
            let rows = parts.filter_map(|gradients| match gradients {
                Gradients::Fixed { sums, .. } => Some(sums.chunks_exact(dim)),
                Gradients::Single(_) => None,
            });
            add(exact, keys.len() * dim, dim, places(), rows.flatten(), i128::from);
            let unit = power_of_two(unit_log2);
            gradients.extend(exact.iter().map(|&sum| (to_f64(sum) * unit) as f32));
        } else {
            let rows = parts.filter_map(|gradients| match gradients {
                Gradients::Single(values) => Some(values.chunks_exact(dim)),
                Gradients::Fixed { .. } => None,
            });
            add(wide, keys.len() * dim, dim, places(), rows.flatten(), f64::from);
            gradients.extend(wide.iter().map(|&sum| sum as f32));
        }
        Sums { table, lr, keys, counts, gradients }
    }
}

/// The nearest number. Few sums need more than 64 bits, which is all that machines have an instruction for.
#[inline]
fn to_f64(sum: i128) -> f64 {
    i64::try_from(sum).map_or_else(|_| long_to_f64(sum), |sum| sum as f64)
}

/// Apart, since the compiler would see that it gives the same for short ones, and use it for all.
#[cold]
#[inline(never)]
fn long_to_f64(sum: i128) -> f64 {
    sum as f64
}

/// Adds rows to those at their places, of `values` values that were 0.
fn add<'a, From: Copy + 'a, To: Copy + Default + std::ops::AddAssign>(
    sums: &mut Vec<To>,
    values: usize,
    dim: usize,
    places: impl Iterator<Item = usize>,
    rows: impl Iterator<Item = &'a [From]>,
    widen: impl Fn(From) -> To,
) {
    sums.clear();
    sums.resize(values, To::default());
    for (place, row) in places.zip(rows) {
        for (sum, &value) in sums[place..][..dim].iter_mut().zip(row) {
            *sum += widen(value);
        }
    }
}
