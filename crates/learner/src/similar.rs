//! The nearest rows of a table, exactly: every row is compared. Knows no key's name.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use sanderling_store::Block;

/// Partial sums of a product, so that the compiler adds them with vector instructions.
const LANES: usize = 16;

/// How alike two rows are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Similarity {
    /// The cosine of their angle, from -1 to 1.
    #[default]
    Cosine,
    /// Their dot product.
    Dot,
}

impl std::str::FromStr for Similarity {
    type Err = String;

    fn from_str(text: &str) -> Result<Similarity, String> {
        match text {
            "cosine" => Ok(Similarity::Cosine),
            "dot" => Ok(Similarity::Dot),
            other => Err(format!("{other:?}: must be cosine or dot")),
        }
    }
}

/// A row that is near another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbour {
    /// Its key.
    pub key: u64,
    /// Cosine or dot product with the row that was asked for.
    pub score: f32,
    /// How often its key was pushed.
    pub frequency: u32,
}

impl Eq for Neighbour {}

impl Ord for Neighbour {
    /// The best first, smaller keys first among equals; so the worst one is the top of a heap.
    fn cmp(&self, other: &Neighbour) -> Ordering {
        other.score.total_cmp(&self.score).then(self.key.cmp(&other.key))
    }
}

impl PartialOrd for Neighbour {
    fn partial_cmp(&self, other: &Neighbour) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The part of a row that rows are compared by: the factors of a built-in model, behind the linear weight, or all of it.
#[must_use]
pub fn factors_of(blocks: &[Block]) -> std::ops::Range<usize> {
    let dim: usize = blocks.iter().map(|block| block.dims).sum();
    match blocks {
        [linear, _, ..] if linear.dims == 1 => 1..dim,
        _ => 0..dim,
    }
}

/// Collects the rows that are nearest to one.
#[derive(Debug)]
pub struct Nearest {
    like: Vec<f32>,
    /// The key of that row, which is no neighbour of itself.
    except: Option<u64>,
    scale: f32,
    by: Similarity,
    most: usize,
    found: BinaryHeap<Neighbour>,
}

impl Nearest {
    /// Prepares to find at most `most` rows like this one.
    ///
    /// # Errors
    /// A row of zeros, which has no direction.
    pub fn new(
        like: &[f32],
        except: Option<u64>,
        by: Similarity,
        most: usize,
    ) -> Result<Nearest, &'static str> {
        let norm = dot(like, like).sqrt();
        if by == Similarity::Cosine && norm == 0.0 {
            return Err("its row is zero and has no direction; rank by dot products, or name another row");
        }
        let scale = if by == Similarity::Cosine { norm.recip() } else { 1.0 };
        let found = BinaryHeap::with_capacity(most.min(1 << 16) + 1);
        Ok(Nearest { like: like.to_vec(), except, scale, by, most, found })
    }

    /// Compares a row.
    pub fn add(&mut self, key: u64, frequency: u32, row: &[f32]) {
        let product = dot(&self.like, row);
        let score = match self.by {
            Similarity::Dot => product,
            Similarity::Cosine => {
                let norm = dot(row, row).sqrt();
                if norm == 0.0 { 0.0 } else { product * self.scale / norm }
            }
        };
        let neighbour = Neighbour { key, score, frequency };
        if self.except == Some(key) || self.most == 0 {
            return;
        }
        if self.found.len() < self.most {
            self.found.push(neighbour);
        } else if self.found.peek().is_some_and(|worst| neighbour < *worst) {
            self.found.pop();
            self.found.push(neighbour);
        }
    }

    /// The rows found, the best first.
    #[must_use]
    pub fn finish(self) -> Vec<Neighbour> {
        self.found.into_sorted_vec()
    }
}

/// The dot product of two rows of the same length.
#[must_use]
pub fn dot(one: &[f32], other: &[f32]) -> f32 {
    let (ones, others) = (one.chunks_exact(LANES), other.chunks_exact(LANES));
    let rest: f32 = ones.remainder().iter().zip(others.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0_f32; LANES];
    for (ones, others) in ones.zip(others) {
        for lane in 0..LANES {
            sums[lane] += ones[lane] * others[lane];
        }
    }
    // Pairs, as vectors are added up.
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0] + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_rows_are_those_of_a_sorted_list() {
        let mut state = 3_u64;
        let mut below = move |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for (rows, dim, most) in
            [(0, 3, 5), (4, 1, 10), (300, 7, 10), (300, 16, 1), (500, 33, 50), (10, 8, 0)]
        {
            let mut number = || (below(2001) as f32 - 1000.0) / 500.0;
            let like: Vec<f32> = (0..dim).map(|_| number()).collect();
            let rows: Vec<Vec<f32>> = (0..rows).map(|_| (0..dim).map(|_| number()).collect()).collect();
            for by in [Similarity::Dot, Similarity::Cosine] {
                let mut nearest = Nearest::new(&like, Some(1), by, most).unwrap();
                let mut wanted = Vec::new();
                for (key, row) in rows.iter().enumerate() {
                    nearest.add(key as u64, key as u32, row);
                    let product = |a: &[f32], b: &[f32]| {
                        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
                    };
                    let norms = (product(&like, &like) * product(row, row)).sqrt();
                    let score = product(&like, row) / if by == Similarity::Dot { 1.0 } else { norms };
                    if key != 1 {
                        wanted.push((score, key as u64));
                    }
                }
                wanted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                let found = nearest.finish();
                assert_eq!(found.len(), wanted.len().min(most));
                for (found, (score, _)) in found.iter().zip(&wanted) {
                    assert!((f64::from(found.score) - score).abs() < 1e-4, "{found:?} {score}");
                }
            }
        }
        assert!(Nearest::new(&[0.0; 4], None, Similarity::Cosine, 1).is_err());
        let mut equal = Nearest::new(&[1.0], None, Similarity::Dot, 2).unwrap();
        [7, 3, 5].into_iter().for_each(|key| equal.add(key, 1, &[2.0]));
        assert_eq!(equal.finish().iter().map(|found| found.key).collect::<Vec<_>>(), [3, 5]);
    }
}
