//! A batch of training examples in columns: labels, weights, and per feature a ragged run of keys.
//!
//! The layout follows TorchRec's KeyedJaggedTensor, per feature `keys` and `rows + 1` `offsets`. It knows nothing
//! of files, tables or models; it only keeps the columns of a row together.

use std::hint::black_box;

use crate::rows::Rows;

/// One feature of a batch: ragged keys, optionally with a value per key.
///
/// Row `i` owns `keys[offsets[i]..offsets[i + 1]]`. A feature is *weighted* when every key carries a value (numeric
/// features, libsvm text, mean pooling, where the value is `1 / n`); otherwise `values` stays empty and every key
/// counts as 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// 64-bit keys, all rows one after the other.
    pub keys: Vec<u64>,
    /// A value per key if the feature is weighted, else empty.
    pub values: Vec<f32>,
    /// Row boundaries in `keys`; always one longer than the number of rows.
    pub offsets: Vec<u32>,
    weighted: bool,
}

impl Column {
    /// An empty column.
    #[must_use]
    pub fn new(weighted: bool) -> Self {
        Column { keys: Vec::new(), values: Vec::new(), offsets: vec![0], weighted }
    }

    /// Whether each key carries a value.
    #[must_use]
    pub fn is_weighted(&self) -> bool {
        self.weighted
    }

    /// Appends a key to the row under construction; `value` is dropped unless the feature is weighted.
    #[inline]
    pub fn push(&mut self, key: u64, value: f32) {
        self.keys.push(key);
        if self.weighted {
            self.values.push(value);
        }
    }

    /// Completes the row whose keys were pushed.
    #[inline]
    pub(crate) fn close_row(&mut self) {
        // Batches are bounded far below u32::MAX keys by `Batch::MAX_KEYS`.
        self.offsets.push(self.keys.len() as u32);
    }

    /// Completes rows of one key each, from the key `first` on.
    pub(crate) fn close_single_rows(&mut self, first: usize) {
        self.offsets.extend(first as u32 + 1..self.keys.len() as u32 + 1);
    }

    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        self.reopen_row();
    }

    /// Bytes of memory, allocations included.
    pub(crate) fn bytes(&self) -> usize {
        self.keys.capacity() * 8 + self.values.capacity() * 4 + self.offsets.capacity() * 4
    }

    fn reopen_row(&mut self) {
        let end = self.offsets[self.offsets.len() - 1] as usize;
        self.keys.truncate(end);
        self.values.truncate(end);
    }

    /// Appends rows by their boundaries; `keys` and `values` belong to these rows alone.
    fn append(&mut self, keys: &[u64], values: Option<&[f32]>, offsets: &[u32]) {
        let shift = (self.keys.len() as u32).wrapping_sub(offsets[0]);
        self.keys.extend_from_slice(keys);
        if let Some(values) = values.filter(|_| self.weighted) {
            self.values.extend_from_slice(values);
        }
        self.offsets.extend(offsets[1..].iter().map(|end| end.wrapping_add(shift)));
    }

    /// Whether every row has exactly one key.
    pub(crate) fn is_single(&self) -> bool {
        // Without a branch per row, so that it vectorises.
        let counts_up =
            || self.offsets.iter().zip(0_u32..).fold(true, |all, (&offset, at)| all & (offset == at));
        self.keys.len() + 1 == self.offsets.len() && counts_up()
    }

    /// Appends chosen rows of a column; `single` says that it has one key in every row.
    pub(crate) fn gather_rows(&mut self, from: &Column, rows: &[u32], single: bool) {
        let values = from.weighted.then_some(from.values.as_slice());
        if single {
            self.gather_single(&from.keys, values, rows);
        } else {
            self.gather(&from.keys, values, &from.offsets, rows);
        }
    }

    /// Appends chosen rows that have one key each, without reading their boundaries.
    fn gather_single(&mut self, keys: &[u64], values: Option<&[f32]>, rows: &[u32]) {
        let end = self.keys.len() as u32 + 1;
        self.offsets.extend(end..end + rows.len() as u32);
        self.keys.extend(rows.iter().map(|&row| keys[row as usize]));
        if let Some(values) = values.filter(|_| self.weighted) {
            self.values.extend(rows.iter().map(|&row| values[row as usize]));
        }
    }

    /// Appends chosen rows by their boundaries.
    fn gather(&mut self, keys: &[u64], values: Option<&[f32]>, offsets: &[u32], rows: &[u32]) {
        let mut end = self.keys.len() as u32;
        self.offsets.extend(rows.iter().map(|&row| {
            end += offsets[row as usize + 1] - offsets[row as usize];
            end
        }));
        gather_runs(keys, offsets, rows, end as usize, &mut self.keys);
        if let Some(values) = values.filter(|_| self.weighted) {
            gather_runs(values, offsets, rows, end as usize, &mut self.values);
        }
    }

    fn drop_front(&mut self, rows: usize) {
        let keys = self.offsets[rows] as usize;
        self.keys.drain(..keys);
        if self.weighted {
            self.values.drain(..keys);
        }
        self.offsets.drain(..rows);
        for offset in &mut self.offsets {
            *offset -= keys as u32;
        }
    }
}

/// Keys or values that are copied at once for rows of several keys: few rows have more, and a call of `memmove` costs
/// more than such a row.
const AT_ONCE: usize = 4;
/// Rows of at least this length are copied by `memmove`.
const LONG_RUN: usize = 16;
/// Rows whose cache lines are touched before they are copied: they lie anywhere in memory, and the loads overlap.
const GROUP_ROWS: usize = 16;
const LINE_BYTES: usize = 64;

/// Appends the runs of chosen rows; with them `to` has the length `end`.
fn gather_runs<T: Copy + Default>(from: &[T], offsets: &[u32], rows: &[u32], end: usize, to: &mut Vec<T>) {
    let mut at = to.len();
    // Bytes copied beyond the end of a run are overwritten by the next run.
    to.resize(end + AT_ONCE, T::default());
    let run = |row: u32| {
        let run = [offsets[row as usize], offsets[row as usize + 1]];
        run.map(|offset| (offset - offsets[0]) as usize)
    };
    for rows in rows.chunks(GROUP_ROWS) {
        let mut runs = [[0; 2]; GROUP_ROWS];
        runs.iter_mut().zip(rows).for_each(|(to, &row)| *to = run(row));
        let runs = &runs[..rows.len()];
        for &[start, stop] in runs {
            // Loads each cache line; nothing waits for the result.
            for line in (start..stop).step_by(LINE_BYTES / size_of::<T>()) {
                black_box(from[line]);
            }
        }
        for &[mut start, stop] in runs {
            let next = at + (stop - start);
            if stop - start >= LONG_RUN {
                to[at..next].copy_from_slice(&from[start..stop]);
                start = stop;
            }
            while start < stop {
                match from.get(start..start + AT_ONCE) {
                    Some(some) => to[at..at + AT_ONCE].copy_from_slice(some),
                    None => to[at..next].copy_from_slice(&from[start..stop]),
                }
                (start, at) = (start + AT_ONCE, at + AT_ONCE);
            }
            at = next;
        }
    }
    to.truncate(end);
}

/// Training examples in columns.
///
/// Rows are added whole: fill the columns, then call [`Batch::close_row`], or [`Batch::abandon_row`], which leaves no
/// trace of the row.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// 0 or 1, or of a regression a number; NaN where the input has no label (prediction).
    pub labels: Vec<f32>,
    /// Importance of each row in loss and metrics; 1 unless the spec says otherwise.
    pub weights: Vec<f32>,
    /// One column per feature, in the order of the spec.
    pub columns: Vec<Column>,
}

impl Batch {
    /// A column may not hold more keys than this (offsets are 32 bits wide; half of that leaves slack for one row).
    pub const MAX_KEYS: usize = 1 << 31;

    /// An empty batch with one column per entry, weighted where the entry is true.
    #[must_use]
    pub fn new(weighted: &[bool]) -> Self {
        Batch {
            labels: Vec::new(),
            weights: Vec::new(),
            columns: weighted.iter().map(|&weighted| Column::new(weighted)).collect(),
        }
    }

    /// An empty batch of the same shape.
    #[must_use]
    pub fn like(other: &Batch) -> Self {
        Batch {
            labels: Vec::new(),
            weights: Vec::new(),
            columns: other.columns.iter().map(|column| Column::new(column.weighted)).collect(),
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Removes all rows, keeps the allocations.
    pub fn clear(&mut self) {
        self.labels.clear();
        self.weights.clear();
        for column in &mut self.columns {
            column.keys.clear();
            column.values.clear();
            column.offsets.truncate(1);
        }
    }

    /// Completes the row whose keys were pushed into the columns.
    #[inline]
    pub fn close_row(&mut self, label: f32, weight: f32) {
        self.labels.push(label);
        self.weights.push(weight);
        for column in &mut self.columns {
            column.close_row();
        }
    }

    /// Removes the keys that were pushed since the last closed row.
    pub fn abandon_row(&mut self) {
        for column in &mut self.columns {
            column.reopen_row();
        }
    }

    /// Appends rows of the same shape.
    pub fn append(&mut self, from: &Rows<'_>) {
        debug_assert_eq!(self.columns.len(), from.columns());
        self.labels.extend_from_slice(from.labels());
        self.weights.extend_from_slice(from.weights());
        for (at, column) in self.columns.iter_mut().enumerate() {
            column.append(from.keys(at), from.values(at), from.offsets(at));
        }
    }

    /// Finds the columns with one key in every row, for [`Batch::gather`].
    pub fn single_columns(&self, single: &mut Vec<bool>) {
        single.clear();
        single.extend(self.columns.iter().map(Column::is_single));
    }

    /// Appends chosen rows of a batch of the same shape, in the order given.
    ///
    /// `single` comes from [`Batch::single_columns`] of `from`: shuffled rows lie anywhere in memory, and of single
    /// columns only the keys are fetched.
    pub fn gather(&mut self, from: &Batch, rows: &[u32], single: &[bool]) {
        debug_assert_eq!((self.columns.len(), from.columns.len()), (single.len(), single.len()));
        self.labels.extend(rows.iter().map(|&row| from.labels[row as usize]));
        self.weights.extend(rows.iter().map(|&row| from.weights[row as usize]));
        for ((column, from), &single) in self.columns.iter_mut().zip(&from.columns).zip(single) {
            column.gather_rows(from, rows, single);
        }
    }

    /// Removes all rows after the first `rows`, and keys of rows that were not closed, from columns of any length.
    pub fn truncate(&mut self, rows: usize) {
        self.labels.truncate(rows);
        self.weights.truncate(rows);
        self.columns.iter_mut().for_each(|column| column.truncate(rows));
    }

    /// Removes the first `rows` rows.
    pub fn drop_front(&mut self, rows: usize) {
        self.labels.drain(..rows);
        self.weights.drain(..rows);
        for column in &mut self.columns {
            column.drop_front(rows);
        }
    }

    /// The largest number of keys in any column.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.columns.iter().map(|column| column.keys.len()).max().unwrap_or(0)
    }

    /// Bytes of memory behind the rows, allocations included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Column::bytes).sum::<usize>()
            + (self.labels.capacity() + self.weights.capacity()) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[(&[u64], &[u64])]) -> Batch {
        let mut batch = Batch::new(&[false, true]);
        for (index, (a, b)) in rows.iter().enumerate() {
            a.iter().for_each(|&key| batch.columns[0].push(key, 1.0));
            b.iter().for_each(|&key| batch.columns[1].push(key, key as f32 / 2.0));
            batch.close_row(index as f32, 1.0);
        }
        batch
    }

    #[test]
    fn an_abandoned_row_leaves_no_trace() {
        let mut batch = rows(&[(&[1, 2], &[3]), (&[], &[4])]);
        let before = batch.clone();
        batch.columns[0].push(9, 1.0);
        batch.columns[1].push(9, 1.0);
        batch.abandon_row();
        assert_eq!(batch, before);
    }

    proptest::proptest! {
        #[test]
        fn rows_are_gathered_as_they_are_appended(
            runs in proptest::prop_oneof![
                proptest::collection::vec((0_u64..40, 0_u64..3), 1..40),
                proptest::collection::vec((proptest::prelude::Just(1), 0_u64..2), 1..40),
                proptest::collection::vec((0_u64..3, proptest::prelude::Just(1)), 1..40),
            ],
            chosen in proptest::collection::vec(0_usize..1000, 0..60),
        ) {
            let keys: Vec<u64> = (1..100).collect();
            let runs: Vec<(&[u64], &[u64])> =
                runs.iter().map(|&(a, b)| (&keys[b as usize..][..a as usize], &keys[a as usize..][..b as usize])).collect();
            let all = rows(&runs);
            let chosen: Vec<u32> = chosen.iter().map(|row| (row % all.len()) as u32).collect();
            let mut single = Vec::new();
            all.single_columns(&mut single);
            for (column, &single) in all.columns.iter().zip(&single) {
                proptest::prop_assert_eq!(column.offsets.windows(2).all(|run| run[1] - run[0] == 1), single);
            }
            let (mut gathered, mut appended) = (Batch::like(&all), Batch::like(&all));
            for some in chosen.chunks(19) {
                gathered.gather(&all, some, &single);
            }
            for &row in &chosen {
                let row = row as usize;
                appended.append(&Rows::new(&all, row..row + 1));
            }
            proptest::prop_assert_eq!(gathered, appended);
        }
    }

    #[test]
    fn gather_append_and_drop_agree() {
        let all = rows(&[(&[1, 2], &[3]), (&[], &[4]), (&[5], &[]), (&[6, 7, 8], &[9, 10])]);
        let mut gathered = Batch::like(&all);
        gathered.gather(&all, &[2, 3], &[false, false]);
        let mut appended = Batch::like(&all);
        appended.append(&Rows::all(&all).slice(2..4));
        let mut dropped = all.clone();
        dropped.drop_front(2);
        assert_eq!(gathered, appended);
        assert_eq!(gathered, dropped);
        assert_eq!(gathered.columns[0].keys, [5, 6, 7, 8]);
        assert_eq!(gathered.columns[1].values, [4.5, 5.0]);
        assert_eq!(gathered.columns[1].offsets, [0, 0, 2]);
    }
}
