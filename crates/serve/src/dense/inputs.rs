//! Inputs of the dense part for some rows, of one request or of several.

use std::ops::Range;

use crate::dense::engine::DenseInput;

/// The inputs of the dense part for some rows; a scratch that keeps its memory.
#[derive(Debug, Default, Clone)]
pub(crate) struct DenseInputs {
    pub(crate) rows: usize,
    /// Per feature: pooled rows [rows, width], or numbers [rows].
    pub(crate) columns: Vec<Column>,
    /// The rows of the sequence, [steps of all rows, width].
    pub(crate) steps: Vec<f32>,
    /// Steps of each row.
    pub(crate) lengths: Vec<usize>,
}

/// The values of a feature, the same number in each row.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) values: Vec<f32>,
    /// Values per row; a number has one and no dimension of its own.
    pub(crate) width: Option<usize>,
}

/// The sequence of some rows as the dense part takes it.
#[derive(Debug, Default)]
pub(crate) struct Padded {
    rows: Vec<f32>,
    mask: Vec<f32>,
    steps: usize,
}

impl DenseInputs {
    /// No rows, of columns with these widths.
    pub(crate) fn new(widths: impl Iterator<Item = Option<usize>>) -> DenseInputs {
        let column = |width| Column { values: Vec::new(), width };
        DenseInputs { columns: widths.map(column).collect(), ..DenseInputs::default() }
    }

    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        self.columns.iter_mut().for_each(|column| column.values.clear());
        self.steps.clear();
        self.lengths.clear();
    }

    /// Appends the rows of another request of the same model.
    pub(crate) fn append(&mut self, other: &DenseInputs) {
        self.rows += other.rows;
        for (column, other) in self.columns.iter_mut().zip(&other.columns) {
            column.values.extend_from_slice(&other.values);
        }
        self.steps.extend_from_slice(&other.steps);
        self.lengths.extend_from_slice(&other.lengths);
    }

    /// Fills `padded` with the sequences of some rows, `width` values per step.
    pub(crate) fn pad(&self, rows: Range<usize>, width: usize, padded: &mut Padded) {
        let lengths = &self.lengths[rows.clone()];
        // An engine need not know empty tensors.
        padded.steps = lengths.iter().copied().max().unwrap_or_default().max(1);
        padded.rows.clear();
        padded.rows.resize(rows.len() * padded.steps * width, 0.0);
        padded.mask.clear();
        padded.mask.resize(rows.len() * padded.steps, 0.0);
        let mut from: usize = self.lengths[..rows.start].iter().sum::<usize>() * width;
        let each = padded.rows.chunks_exact_mut(padded.steps * width);
        for ((to, mask), length) in each.zip(padded.mask.chunks_exact_mut(padded.steps)).zip(lengths) {
            to[..length * width].copy_from_slice(&self.steps[from..from + length * width]);
            mask[..*length].fill(1.0);
            from += length * width;
        }
    }

    /// The tensors of some rows, in the order of the dense part's inputs.
    pub(crate) fn tensors<'a>(
        &'a self,
        rows: &Range<usize>,
        padded: Option<(&'a Padded, usize)>,
    ) -> Vec<DenseInput<'a>> {
        let count = rows.len() as i64;
        let column = |column: &'a Column| {
            let width = column.width.unwrap_or(1);
            DenseInput {
                shape: [count, width as i64, 1],
                dimensions: if column.width.is_some() { 2 } else { 1 },
                values: &column.values[rows.start * width..rows.end * width],
            }
        };
        let mut tensors: Vec<DenseInput<'a>> = self.columns.iter().map(column).collect();
        if let Some((padded, width)) = padded {
            let steps = padded.steps as i64;
            let shape = [count, steps, width as i64];
            tensors.push(DenseInput { shape, dimensions: 3, values: &padded.rows });
            tensors.push(DenseInput { shape: [count, steps, 1], dimensions: 2, values: &padded.mask });
        }
        tensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of rows with the given steps; the step at `at` of a row is `[at + 1, row]`.
    fn request(lengths: &[usize]) -> DenseInputs {
        let mut inputs = DenseInputs::new([Some(2), None].into_iter());
        for (row, length) in lengths.iter().enumerate() {
            inputs.rows += 1;
            inputs.columns[0].values.extend([row as f32, 0.5]);
            inputs.columns[1].values.push(-(row as f32));
            inputs.steps.extend((0..*length).flat_map(|at| [at as f32 + 1.0, row as f32]));
            inputs.lengths.push(*length);
        }
        inputs
    }

    #[test]
    fn requests_are_joined_and_sequences_padded_to_the_longest_of_a_run() {
        let mut all = request(&[2]);
        all.append(&request(&[0, 1]));
        assert_eq!(all.rows, 3);
        let mut padded = Padded::default();
        let check = |all: &DenseInputs,
                     padded: &mut Padded,
                     rows: Range<usize>,
                     steps,
                     values: &[f32],
                     mask: &[f32]| {
            all.pad(rows.clone(), 2, padded);
            let tensors = all.tensors(&rows, Some((padded, 2)));
            assert_eq!(tensors.len(), 4);
            assert_eq!(
                (tensors[0].dimensions, tensors[0].shape[..2].to_vec()),
                (2, vec![rows.len() as i64, 2])
            );
            assert_eq!((tensors[1].dimensions, tensors[1].values.len()), (1, rows.len()));
            assert_eq!(
                (tensors[2].shape, tensors[2].values),
                ([rows.len() as i64, steps, 2], values),
                "{rows:?}"
            );
            assert_eq!(tensors[3].values, mask, "{rows:?}");
        };
        let (one, none) = ([1.0, 0.0, 2.0, 0.0], [0.0; 4]);
        let last = [1.0, 1.0, 0.0, 0.0];
        check(&all, &mut padded, 0..3, 2, &[one, none, last].concat(), &[1.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
        check(&all, &mut padded, 1..2, 1, &[0.0, 0.0], &[0.0]);
        check(&all, &mut padded, 2..3, 1, &[1.0, 1.0], &[1.0]);
        all.clear();
        assert_eq!((all.rows, all.columns[0].values.len(), all.lengths.len()), (0, 0, 0));
    }
}
