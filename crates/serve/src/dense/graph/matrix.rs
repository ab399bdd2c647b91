//! Products of matrices, by tiles that stay in registers.

/// Columns of a tile: two registers of the smallest vector unit.
const COLUMNS: usize = 8;
/// Rows of a tile.
const ROWS: usize = 4;

/// A matrix of `rows` x `columns` in panels of [`COLUMNS`] columns, filled up with zeros.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    panels: Vec<f32>,
}

impl Packed {
    /// Packs a matrix whose value at a row and a column is given.
    pub(crate) fn new(rows: usize, columns: usize, value: impl Fn(usize, usize) -> f32) -> Packed {
        let mut panels = Vec::with_capacity(rows * columns.next_multiple_of(COLUMNS));
        for first in (0..columns).step_by(COLUMNS) {
            for row in 0..rows {
                let column = |at: usize| if first + at < columns { value(row, first + at) } else { 0.0 };
                panels.extend((0..COLUMNS).map(column));
            }
        }
        Packed { rows, columns, panels }
    }

    /// The product of `left`, of [`Packed::rows`] columns, with the matrix.
    pub(crate) fn product(&self, left: &[f32]) -> Vec<f32> {
        let (inner, columns) = (self.rows, self.columns);
        if inner == 0 {
            return Vec::new();
        }
        let rows = left.len() / inner;
        let mut out = vec![0.0; rows * columns];
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            // A missing row repeats the last one; its sums are left out.
            let row = |at: usize| &left[(first + at.min(count - 1)) * inner..][..inner];
            let lefts = [row(0), row(1), row(2), row(3)];
            for (number, panel) in self.panels.chunks_exact(inner * COLUMNS).enumerate() {
                let sums = tile(lefts, panel);
                let (from, width) = (number * COLUMNS, COLUMNS.min(columns - number * COLUMNS));
                for (at, sums) in sums.iter().enumerate().take(count) {
                    out[(first + at) * columns + from..][..width].copy_from_slice(&sums[..width]);
                }
            }
        }
        out
    }
}

#[inline]
fn tile(lefts: [&[f32]; ROWS], panel: &[f32]) -> [[f32; COLUMNS]; ROWS] {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    let [a, b, c, d] = lefts;
    for ((((right, a), b), c), d) in panel.as_chunks::<COLUMNS>().0.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, left) in sums.iter_mut().zip([a, b, c, d]) {
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum += left * right;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_all_shapes_are_sums_of_products() {
        for (rows, inner, columns) in [(1, 1, 1), (4, 3, 8), (5, 2, 9), (7, 16, 17), (2, 5, 3), (0, 3, 2)] {
            let value = |row: usize, column: usize| (row * 7 + column * 3 % 5) as f32 - 4.0;
            let left: Vec<f32> = (0..rows * inner).map(|at| (at % 11) as f32 - 5.0).collect();
            let sum = |row: usize, column: usize| -> f32 {
                (0..inner).map(|at| left[row * inner + at] * value(at, column)).sum()
            };
            let expected: Vec<f32> = (0..rows)
                .flat_map(|row| (0..columns).map(move |column| (row, column)))
                .map(|(r, c)| sum(r, c))
                .collect();
            assert_eq!(
                Packed::new(inner, columns, value).product(&left),
                expected,
                "{rows} {inner} {columns}"
            );
        }
    }
}
