//! Pulls of weights together with the version of each row. Knows no recording.

use sanderling_client::ClientError;
use sanderling_store::{Absent, RowColumns, Table};

/// Buffers of versioned pulls, reused.
#[derive(Debug, Default)]
pub(super) struct VersionedPull {
    rows: RowColumns,
    /// Keys without a row, with their positions.
    absent: Vec<u64>,
    positions: Vec<usize>,
    weights: Vec<f32>,
    missing: Vec<u32>,
}

impl VersionedPull {
    /// Copies the weights of distinct keys to `out`, and sets `versions` to the versions that they are of.
    ///
    /// A key without a row has version 0 and its initial weights. Each row is consistent; different rows may be of
    /// different moments. The table must not remove rows.
    pub(super) fn pull(
        &mut self,
        table: &Table,
        keys: &[u64],
        out: &mut [f32],
        versions: &mut Vec<u32>,
    ) -> Result<(), ClientError> {
        let dim = table.dim();
        versions.clear();
        versions.resize(keys.len(), 0);
        self.absent.clear();
        self.absent.extend_from_slice(keys);
        self.positions.clear();
        self.positions.extend(0..keys.len());
        // Almost always once: a key gets its row between the two reads.
        while !self.absent.is_empty() {
            self.rows.clear();
            table.copy_rows(&self.absent, &mut self.rows);
            let rows = self.rows.rows();
            let (mut copied, mut left) = (0, 0);
            for at in 0..self.absent.len() {
                let (key, position) = (self.absent[at], self.positions[at]);
                if rows.keys.get(copied) == Some(&key) {
                    let weights = &rows.weights[copied * dim..][..dim];
                    out[position * dim..][..dim].copy_from_slice(weights);
                    versions[position] = rows.versions[copied];
                    copied += 1;
                } else {
                    (self.absent[left], self.positions[left]) = (key, position);
                    left += 1;
                }
            }
            self.absent.truncate(left);
            self.weights.resize(left * dim, 0.0);
            table.pull(&self.absent, Absent::Init, &mut self.weights, Some(&mut self.missing))?;
            for &at in &self.missing {
                let (at, position) = (at as usize, self.positions[at as usize]);
                out[position * dim..][..dim].copy_from_slice(&self.weights[at * dim..][..dim]);
            }
            self.drop_missing();
        }
        Ok(())
    }

    /// Keeps the keys that have got a row meanwhile.
    fn drop_missing(&mut self) {
        let mut missing = self.missing.iter().map(|&at| at as usize).peekable();
        let mut left = 0;
        for at in 0..self.absent.len() {
            if missing.next_if_eq(&at).is_none() {
                self.absent.swap(left, at);
                self.positions.swap(left, at);
                left += 1;
            }
        }
        self.absent.truncate(left);
        self.positions.truncate(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sanderling_store::{Init, Optimizer, PushScale, TableConfig};

    #[test]
    fn weights_come_with_their_versions() {
        let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
        let table = Table::new(TableConfig::single("t", 2, Init::Normal { std: 0.1 }, sgd)).unwrap();
        let keys = [4_u64, 1, 9, 2, 7];
        for key in [1, 1, 7, 1, 2] {
            table.push(&[key], &[1.0, 2.0], PushScale::default()).unwrap();
        }
        let (mut expected, mut out, mut versions) = ([0.0; 10], [0.0; 10], Vec::new());
        table.pull(&keys, Absent::Init, &mut expected, None).unwrap();
        let mut pull = VersionedPull::default();
        for _ in 0..2 {
            pull.pull(&table, &keys, &mut out, &mut versions).unwrap();
            assert_eq!((out, &versions[..]), (expected, &[0, 3, 0, 1, 1][..]));
        }
    }

    #[test]
    fn a_key_that_gets_its_row_meanwhile_is_pulled_again() {
        let mut pull = VersionedPull {
            absent: vec![10, 11, 12, 13],
            positions: vec![3, 5, 6, 8],
            missing: vec![0, 2],
            ..VersionedPull::default()
        };
        pull.drop_missing();
        assert_eq!((pull.absent, pull.positions), (vec![11, 13], vec![5, 8]));
    }
}
