//! The use clock beyond 32 bits: the order of last uses is right for any number of pushes.

use sanderling_store::{
    Checkpoint, CheckpointWriter, Eviction, Init, Optimizer, PushScale, RowColumns, RowRef, StoreError,
    Table, TableConfig,
};
use tempfile::TempDir;

const HALF: u64 = 1 << 31;
const TURN: u64 = 1 << 32;
/// Numbers of pushes at which readings of 31 or 32 bits wrap around.
const EPOCHS: [u64; 5] = [HALF - 10, TURN - 10, TURN + HALF - 10, 2 * TURN - 10, 5 * TURN + 3];

fn config(eviction: Eviction, budget_bytes: Option<u64>) -> TableConfig {
    let config = TableConfig::single("t", 1, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    TableConfig { eviction, budget_bytes, ..config }
}

/// A checkpoint of a table after `pushes` pushes, with rows of given ages.
fn saved(config: &TableConfig, pushes: u64, rows: &[(u64, u64)]) -> (TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    let written = writer.rows::<StoreError>(config, |each| {
        for &(key, ago) in rows {
            let last_use = (pushes - ago) as u32;
            let row = RowRef { key, frequency: 1, last_use, version: 1, weights: &[1.0], state: &[] };
            assert!(each(row).is_continue());
        }
        Ok(pushes)
    });
    written.unwrap();
    writer.commit().unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

fn push(table: &Table, key: u64) -> Result<(), StoreError> {
    table.push(&[key], &[1.0], PushScale::default())
}

/// Age of a row in pushes.
fn ago(table: &Table, key: u64) -> u32 {
    (table.stats().pushes as u32).wrapping_sub(table.get(key).unwrap().last_use)
}

#[test]
fn the_coldest_rows_go_first_whatever_the_epoch() {
    for epoch in EPOCHS {
        // Old rows, some of the maximum age, and new ones.
        let is_cold = |key: &u64| key.is_multiple_of(10);
        let use_of = |key| if is_cold(&key) { (HALF - 9 - key).min(epoch) } else { 4 + key % 5 };
        let rows: Vec<(u64, u64)> = (0..5400).map(|key| (key, use_of(key))).collect();
        let config = config(Eviction::Clock, Some(400 << 10));
        let (_dir, checkpoint) = saved(&config, epoch, &rows);
        let table = checkpoint.load_table("t").unwrap();
        assert_eq!(table.len(), rows.len());
        // Across the overflow of 31 and of 32 bits.
        let mut next = 10_000;
        while table.stats().evicted < 500 {
            push(&table, next).unwrap();
            next += 1;
        }
        // All cold rows among the scanned ones.
        let is_there = |key: &u64| table.get(*key).is_some();
        let cold = (0..2000).filter(is_cold).filter(is_there).count();
        let new = (10_000..next).filter(is_there).count();
        assert!(cold == 0 && new as u64 == next - 10_000, "{epoch}: {cold} {new} of {next}");
    }
}

#[test]
fn a_row_that_was_not_used_for_half_a_turn_is_old() {
    for epoch in EPOCHS.into_iter().filter(|&epoch| epoch > HALF) {
        let config = config(Eviction::Age { pushes: (HALF - 1) as u32 }, None);
        let (_dir, checkpoint) = saved(&config, epoch, &[(1, HALF - 5), (2, 5), (3, HALF - 100)]);
        let table = checkpoint.load_table("t").unwrap();
        for _ in 0..20 {
            push(&table, 9).unwrap();
        }
        table.maintain(1000);
        assert_eq!([1, 2, 3, 9].map(|key| table.get(key).is_some()), [false, true, true, true], "{epoch}");
    }
}

/// A cursor repeatedly sets unused rows to an age of 2^31 pushes, and no others.
#[test]
fn old_rows_are_rebased_as_the_cursor_passes() {
    for epoch in EPOCHS.into_iter().filter(|&epoch| epoch > HALF) {
        let (_dir, checkpoint) = saved(&config(Eviction::Never, None), epoch, &[(1, HALF), (2, 77)]);
        let table = checkpoint.load_table("t").unwrap();
        let pushes = 200_000;
        for _ in 0..pushes {
            push(&table, 3).unwrap();
        }
        // At most one round of pushes later.
        assert!(u64::from(ago(&table, 1)) - HALF < 60_000, "{epoch}: {}", ago(&table, 1));
        assert_eq!([ago(&table, 2), ago(&table, 3)], [77 + pushes, 0], "{epoch}");
        assert_eq!(table.stats().pushes, epoch + u64::from(pushes));
    }
}

/// Rows copied to another table, in parts and in any order, keep their age.
#[test]
fn imports_keep_the_order_of_last_uses() {
    for epoch in EPOCHS {
        let rows: Vec<(u64, u64)> = (0..100).map(|key| (key, (key * 20_000_003 + 1).min(epoch))).collect();
        for parts in [1, 7, 100] {
            for backwards in [false, true] {
                let (_dir, checkpoint) = saved(&config(Eviction::Clock, None), epoch, &rows);
                let from = checkpoint.load_table("t").unwrap();
                let to = Table::new(config(Eviction::Clock, None)).unwrap();
                let mut keys: Vec<u64> = (0..100).collect();
                if backwards {
                    keys.reverse();
                }
                for keys in keys.chunks(keys.len() / parts) {
                    let mut columns = RowColumns::default();
                    keys.iter().for_each(|&key| columns.push(from.get(key).unwrap().as_ref()));
                    to.import(columns.rows()).unwrap();
                }
                let ages: Vec<u32> = (0..100).map(|key| ago(&to, key)).collect();
                let before: Vec<u32> = (0..100).map(|key| ago(&from, key) - ago(&from, 0)).collect();
                assert_eq!(ages, before, "{epoch} in {parts} parts");
            }
        }
    }
}

/// Merged shards have separate clocks: no row becomes newer, and rows of a shard keep their order.
#[test]
fn shards_that_are_merged_keep_the_order_of_last_uses() {
    for (one, other) in [(TURN + 100, TURN - 50), (100, TURN + 200), (TURN + 200, 100), (3 * TURN, HALF)] {
        let rows = |first: u64| (first..first + 50).map(|key| (key, key - first)).collect::<Vec<_>>();
        let (_one, first) = saved(&config(Eviction::Clock, None), one, &rows(0));
        let (_other, second) = saved(&config(Eviction::Clock, None), other, &rows(1000));
        let mut table = Table::new(config(Eviction::Clock, None)).unwrap();
        first.load_rows("t", &mut table, |_| true).unwrap();
        second.load_rows("t", &mut table, |_| true).unwrap();
        assert_eq!(table.stats().pushes, one.max(other));
        for (first, behind) in [(0, other.saturating_sub(one)), (1000, one.saturating_sub(other))] {
            for key in first..first + 50 {
                let expected = (behind + key - first).min(HALF);
                assert_eq!(u64::from(ago(&table, key)), expected, "{one} {other}: key {key}");
            }
        }
    }
}

/// The number of updates wraps within its upper half: it is never small again, and always changes.
#[test]
fn row_versions_go_on_after_four_billion_updates() {
    let config = TableConfig::single(
        "t",
        1,
        Init::Zero,
        Optimizer::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 },
    );
    let table = Table::new(config).unwrap();
    let mut columns = RowColumns::default();
    let row =
        |version| RowRef { key: 1, frequency: 1, last_use: 1, version, weights: &[1.0], state: &[0.0, 1.0] };
    columns.push(row(u32::MAX - 1));
    table.import(columns.rows()).unwrap();
    let mut versions = Vec::new();
    for _ in 0..4 {
        table.push(&[1], &[1.0], PushScale::default()).unwrap();
        versions.push(table.get(1).unwrap().version);
        // A first step would have the length of the learning rate.
        assert!(table.get(1).unwrap().weights[0] > 0.997);
    }
    assert_eq!(versions, [u32::MAX, 1 << 31, (1 << 31) + 1, (1 << 31) + 2]);
}
