//! Numbers of a table estimated from random rows: norms, ages, sizes of updates. Pulls and pushes do nothing for it: the
//! reader looks some hundred rows up.

use crate::index::NO_ROW;
use crate::index::hash::mix;
use crate::policy::clock::PAST_MAX;
use crate::rows::row::Row;
use crate::sync::lanes::lane;
use crate::table::Table;

/// Rows of a sample.
pub const SAMPLE_ROWS: usize = 512;
/// Rows whose updates are followed until the next sample.
const FOLLOWED_ROWS: usize = 64;
/// Attempts per row of a sample: removed rows are met in vain.
const ATTEMPTS: usize = 4;

/// Numbers of a table, estimated from random rows. All are 0 without rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RowSample {
    /// Rows that were looked at.
    pub rows: usize,
    /// Medians and further quantiles of the rows' L2 norms.
    pub norm_p50: f32,
    /// Its 90th percentile.
    pub norm_p90: f32,
    /// Its 99th percentile.
    pub norm_p99: f32,
    /// The largest of them.
    pub norm_max: f32,
    /// Share of rows whose weights are all zero.
    pub zero_share: f32,
    /// Pushes to the table since the last one of a row: the median.
    pub idle_p50: u32,
    /// Its 90th percentile.
    pub idle_p90: u32,
    /// Rows that were updated since the sample before, of at most 64 that are followed.
    pub updated: usize,
    /// Mean L2 norm of the change of such a row by one update; 0 without any.
    pub update_norm: f32,
    /// Mean of that change by the norm of the row before it; 0 without any.
    pub update_ratio: f32,
}

/// Takes samples of one table, and compares rows with the sample before.
#[derive(Debug, Clone, Default)]
pub struct RowSampler {
    /// Key, version and weights of rows of the last sample.
    followed: Vec<(u64, u32, Vec<f32>)>,
    random: u64,
}

impl RowSampler {
    /// Looks at random rows. Rows that are pushed meanwhile are seen before or after the push.
    pub fn look(&mut self, table: &Table) -> RowSample {
        let updates = self.updates(table);
        let rows = table.random_rows(SAMPLE_ROWS, &mut self.random);
        self.sample(table, updates, &rows)
    }

    /// [`RowSampler::look`] at the rows of these keys, as far as they have some.
    pub fn look_at(&mut self, table: &Table, keys: &[u64]) -> RowSample {
        let updates = self.updates(table);
        let rows: Vec<Row> = keys.iter().take(SAMPLE_ROWS).filter_map(|key| table.get(*key)).collect();
        self.sample(table, updates, &rows)
    }

    /// The numbers of rows, which are followed from now on.
    fn sample(&mut self, table: &Table, updates: (usize, f32, f32), rows: &[Row]) -> RowSample {
        let (updated, update_norm, update_ratio) = updates;
        let now = table.clock.now();
        let mut norms: Vec<f32> = rows.iter().map(|row| norm(&row.weights)).collect();
        let idle = |row: &Row| match now.wrapping_sub(row.last_use) {
            // From a clock that is ahead.
            age if age > PAST_MAX => 0,
            age => age,
        };
        let mut idle: Vec<u32> = rows.iter().map(idle).collect();
        norms.sort_unstable_by(f32::total_cmp);
        idle.sort_unstable();
        let zeros = norms.iter().take_while(|norm| **norm == 0.0).count();
        self.followed.clear();
        let followed = rows.iter().take(FOLLOWED_ROWS);
        self.followed.extend(followed.map(|row| (row.key, row.version, row.weights.clone())));
        RowSample {
            rows: rows.len(),
            norm_p50: at(&norms, 50),
            norm_p90: at(&norms, 90),
            norm_p99: at(&norms, 99),
            norm_max: norms.last().copied().unwrap_or_default(),
            zero_share: zeros as f32 / rows.len().max(1) as f32,
            idle_p50: at(&idle, 50),
            idle_p90: at(&idle, 90),
            updated,
            update_norm,
            update_ratio,
        }
    }

    /// The followed rows that were updated since, and the mean change of one update, absolute and relative.
    fn updates(&self, table: &Table) -> (usize, f32, f32) {
        let (mut updated, mut norms, mut ratios) = (0, 0.0, 0.0);
        for (key, version, before) in &self.followed {
            let Some(row) = table.get(*key) else { continue };
            let updates = row.version.wrapping_sub(*version);
            // A row that was removed and came back counts anew.
            if updates == 0 || updates > u32::MAX / 2 {
                continue;
            }
            let change: Vec<f32> = row.weights.iter().zip(before).map(|(now, before)| now - before).collect();
            let (each, size) = (norm(&change) / updates as f32, norm(before));
            updated += 1;
            norms += each;
            ratios += if size > 0.0 { each / size } else { 0.0 };
        }
        let mean = |sum: f32| if updated > 0 { sum / updated as f32 } else { 0.0 };
        (updated, mean(norms), mean(ratios))
    }
}

/// The percentile of ascending values.
fn at<T: Copy + Default>(values: &[T], percent: usize) -> T {
    let last = values.len().saturating_sub(1);
    values.get((last * percent).div_ceil(100)).copied().unwrap_or_default()
}

fn norm(weights: &[f32]) -> f32 {
    weights.iter().map(|weight| f64::from(*weight).powi(2)).sum::<f64>().sqrt() as f32
}

impl Table {
    /// Copies of up to so many random rows, each drawn on its own: one may come twice.
    fn random_rows(&self, rows_max: usize, random: &mut u64) -> Vec<Row> {
        let mut rows = Vec::with_capacity(rows_max.min(self.len()));
        self.for_random_keys(rows_max, random, |key| rows.extend(self.get(key)));
        rows
    }

    /// Calls `f` with the keys of up to so many random rows.
    pub(crate) fn for_random_keys(&self, keys_max: usize, random: &mut u64, mut f: impl FnMut(u64)) {
        let (lane, charged) = (lane(), self.row_allocator.charged());
        if self.is_empty() || charged == 0 {
            return;
        }
        let mut missing = keys_max.min(self.len());
        for _ in 0..keys_max * ATTEMPTS {
            if missing == 0 {
                break;
            }
            *random = random.wrapping_add(1);
            let number = (mix(*random) % charged) as u32;
            let key = self.key_of(number);
            let found = self.directory.pin(lane).find(self.hash_key.hash(key));
            // A row is in use if its key leads to it.
            if found != NO_ROW && found == number {
                f(key);
                missing -= 1;
            }
        }
    }

    /// Whether the key has a row.
    #[must_use]
    pub fn contains(&self, key: u64) -> bool {
        self.directory.pin(lane()).find(self.hash_key.hash(key)) != NO_ROW
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Init, Optimizer, PushScale, TableConfig};

    fn table() -> Table {
        let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
        Table::new(TableConfig::single("t", 2, Init::Zero, sgd)).expect("a table")
    }

    /// Pushes so that the rows of these keys move by 3, 4.
    fn push(table: &Table, keys: impl Iterator<Item = u64>) {
        let keys: Vec<u64> = keys.collect();
        let grads: Vec<f32> = keys.iter().flat_map(|_| [-3.0, -4.0]).collect();
        table.push(&keys, &grads, PushScale::default()).expect("applied");
    }

    #[test]
    fn an_empty_table_has_no_numbers() {
        let mut sampler = RowSampler::default();
        assert_eq!(sampler.look(&table()), RowSample::default());
    }

    #[test]
    fn a_sample_is_near_the_numbers_of_all_rows() {
        let (table, mut sampler) = (table(), RowSampler::default());
        // A tenth of the rows has norm 50, the others 5.
        push(&table, 0..10_000);
        (0..9).for_each(|_| push(&table, 0..1000));
        (9000..10_000).for_each(|key| _ = table.remove(key));
        let sample = sampler.look(&table);
        assert_eq!(
            (sample.rows, sample.norm_p50, sample.norm_max, sample.updated),
            (SAMPLE_ROWS, 5.0, 50.0, 0)
        );
        assert_eq!((sample.norm_p99, sample.zero_share), (50.0, 0.0));
        assert!(sample.idle_p50 == 9 && sample.idle_p90 <= 9, "{sample:?}");
        // All rows move by 5, three times.
        (0..3).for_each(|_| push(&table, 0..9000));
        let sample = sampler.look(&table);
        assert_eq!((sample.updated, sample.idle_p90), (FOLLOWED_ROWS, 0));
        assert!((sample.update_norm - 5.0).abs() < 1e-4, "{sample:?}");
        assert!((0.8..1.0).contains(&sample.update_ratio), "{sample:?}");
        assert_eq!(sampler.look(&table).updated, 0);
    }

    #[test]
    fn small_tables_and_removed_rows_are_sampled() {
        let (table, mut sampler) = (table(), RowSampler::default());
        push(&table, 1..4);
        assert_eq!((table.contains(1), table.contains(4)), (true, false));
        let sample = sampler.look(&table);
        assert!((1..=3).contains(&sample.rows) && sample.norm_p50 == 5.0, "{sample:?}");
        table.clear();
        let sample = sampler.look(&table);
        assert_eq!((sample.rows, sample.updated), (0, 0));
    }
}
