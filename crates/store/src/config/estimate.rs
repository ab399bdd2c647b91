//! Estimates the memory of a table from its configuration.

use crate::TableConfig;
use crate::index::Index;
use crate::index::fill::Fill;
use crate::rows::layout::Layout;

impl TableConfig {
    /// Approximate bytes of `rows` rows and their index, at most the budget.
    ///
    /// Returns 0 if the configuration is invalid.
    #[must_use]
    pub fn bytes_of_rows(&self, rows: u64) -> u64 {
        if self.check().is_err() {
            return 0;
        }
        let row_bytes = Layout::new(self).placement.row_bytes() as u64;
        let bytes =
            rows.saturating_mul(row_bytes).saturating_add(Index::bytes_of_keys(rows, Fill::of(self.packing)));
        self.budget_bytes.map_or(bytes, |budget| bytes.min(budget))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Init, Optimizer, PushScale, Table, TableConfig};

    /// An index that grows by doubling may take 1.7 times the bytes, which are few compared with the rows.
    #[test]
    fn an_estimate_is_near_what_a_table_takes() {
        for (dims, optimizer) in [
            (32, Optimizer::Sgd { lr: 0.1, l2: 0.0 }),
            (16, Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 }),
        ] {
            let config = TableConfig::single("t", dims, Init::Zero, optimizer);
            let (rows, table) = (20_000_u64, Table::new(config.clone()).expect("a table"));
            for first in (0..rows).step_by(1000) {
                let keys: Vec<u64> = (first..first + 1000).collect();
                table.push(&keys, &vec![0.5; 1000 * dims], PushScale::default()).expect("pushed");
            }
            let (found, expected) = (table.bytes(), config.bytes_of_rows(rows));
            assert!(found * 4 >= expected * 3 && found * 3 <= expected * 4, "{dims}: {found} of {expected}");
        }
        let limited = TableConfig {
            budget_bytes: Some(1 << 20),
            ..TableConfig::single("t", 8, Init::Zero, Optimizer::Sgd { lr: 0.1, l2: 0.0 })
        };
        assert_eq!(limited.bytes_of_rows(u64::MAX), 1 << 20);
        assert_eq!(
            TableConfig::single("t", 0, Init::Zero, Optimizer::Sgd { lr: 0.1, l2: 0.0 }).bytes_of_rows(5),
            0
        );
    }
}
