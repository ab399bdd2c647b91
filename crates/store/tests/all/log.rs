//! The delta log: from any cut, a replay gives the table as it was at a group, bit for bit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use sanderling_store::{
    Dtype, Eviction, Init, LogReader, LogTarget, LogWriter, Optimizer, Packing, PushScale, RowColumns,
    StoreError, Table, TableConfig, Writes,
};

const DIM: usize = 3;
const ID: u64 = 77;

/// Frequency, last use, version; weights and state by their bits.
type Bits = ([u32; 3], Vec<u32>);
/// The rows and pushes of a table.
type Rows = (BTreeMap<u64, Bits>, u64);

fn rows(t: &Table) -> Rows {
    let mut rows = BTreeMap::new();
    t.for_each_row(|row| {
        let values = row.weights.iter().chain(row.state).map(|value| value.to_bits()).collect();
        rows.insert(row.key, ([row.frequency, row.last_use, row.version], values));
    });
    (rows, t.stats().pushes)
}

fn push(t: &Table, keys: impl IntoIterator<Item = u64>) {
    let keys: Vec<u64> = keys.into_iter().collect();
    let grads: Vec<f32> = (0..keys.len() * DIM).map(|at| (at as f32).sin()).collect();
    match t.push(&keys, &grads, PushScale::default()) {
        Err(StoreError::TableFull { .. }) => {}
        other => other.unwrap(),
    }
}

/// A table that a log fills. A list is the table's number in the log.
struct Replayed {
    config: TableConfig,
    number: u32,
    table: Table,
    group: u64,
}

impl Replayed {
    fn new(config: &TableConfig) -> Replayed {
        Replayed { config: config.clone(), number: 0, table: Table::new(config.clone()).unwrap(), group: 0 }
    }
}

impl LogTarget for Replayed {
    fn tables(&mut self, list: &[u8]) -> Result<(), String> {
        let number = list.try_into().map(u32::from_le_bytes).map_err(|_| "no number".to_string())?;
        if number != self.number {
            (self.number, self.table) = (number, Table::new(self.config.clone()).unwrap());
        }
        Ok(())
    }

    fn table(&mut self, number: u32) -> Option<&mut Table> {
        (number == self.number).then_some(&mut self.table)
    }

    fn pushes(&mut self, history: &[u8]) -> Result<(), String> {
        self.group = history.try_into().map(u64::from_le_bytes).map_err(|_| "no group".to_string())?;
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Step {
    Push {
        first: u64,
        keys: u64,
    },
    Remove {
        first: u64,
        keys: u64,
    },
    Import {
        key: u64,
    },
    Maintain,
    Clear,
    Group,
    /// A group that is given up.
    Lost,
    EndSegment,
    /// The next process goes on with the log, with the table as it was replayed.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_000_u64, 1..200_u64).prop_map(|(first, keys)| Step::Push { first, keys }),
        1 => (0..3_000_u64, 1..2_500_u64).prop_map(|(first, keys)| Step::Push { first, keys }),
        3 => (0..3_000_u64, 1..100_u64).prop_map(|(first, keys)| Step::Remove { first, keys }),
        1 => (0..3_000_u64).prop_map(|key| Step::Import { key }),
        2 => Just(Step::Maintain),
        1 => Just(Step::Clear),
        8 => Just(Step::Group),
        1 => Just(Step::Lost),
        1 => Just(Step::EndSegment),
        1 => Just(Step::Restart),
    ]
}

/// A table, its log, and its rows after each group.
struct Logging {
    table: Table,
    writer: LogWriter,
    number: u32,
    epoch: Option<u64>,
    keys_max: usize,
    groups: Vec<Rows>,
}

impl Logging {
    fn write(&mut self, is_lost: bool) {
        let begins = self.writer.begins_segment();
        if begins {
            self.writer.tables(&self.number.to_le_bytes()).unwrap();
        }
        let since = self.epoch.unwrap_or(0);
        let (epoch, skipped) = match self.writer.changes(self.number, &self.table, since) {
            // Another table for the log, with all rows.
            Err(StoreError::StreamTooLate { .. }) => {
                self.number += 1;
                self.epoch = None;
                self.writer.tables(&self.number.to_le_bytes()).unwrap();
                self.writer.all_rows(self.number, &self.table, self.keys_max).unwrap()
            }
            logged => logged.unwrap(),
        };
        assert_eq!(skipped, None);
        self.writer.pushes(&(self.groups.len() as u64).to_le_bytes()).unwrap();
        if is_lost {
            self.writer.abandon();
            return;
        }
        let logged = self.writer.commit(1, false).unwrap();
        assert_eq!(logged.group, self.groups.len() as u64);
        self.epoch = Some(epoch);
        self.groups.push(rows(&self.table));
    }
}

/// Replays a log with its checks; with `cut` to its first damage.
fn replayed(dir: &Path, config: &TableConfig, cut: bool) -> Result<(u64, Rows), StoreError> {
    let mut target = Replayed::new(config);
    let end = LogReader::open(dir, ID, 1, cut)?.replay(&mut target)?;
    assert_eq!(end.group, target.group);
    Ok((target.group, rows(&target.table)))
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 24 }, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_from_any_cut_gives_the_table_at_a_group(
        steps in prop::collection::vec(step(), 1..50),
        copy_on_write in any::<bool>(),
        half in any::<bool>(),
        compact in any::<bool>(),
        eviction in 0..3_usize,
        keys_max in prop_oneof![Just(300), Just(1 << 20)],
        segment_bytes in prop_oneof![Just(1), Just(50_000), Just(1 << 30)],
        cuts in prop::collection::vec((0..1000_usize, any::<u8>()), 6),
    ) {
        let adam = Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, l2: 0.01 };
        let config = TableConfig {
            writes: if copy_on_write { Writes::CopyOnWrite } else { Writes::InPlace },
            eviction: [Eviction::Never, Eviction::Clock, Eviction::Age { pushes: 5 }][eviction],
            dtype: if half { Dtype::Bf16 } else { Dtype::F32 },
            packing: if compact { Packing::Compact } else { Packing::Fast },
            budget_bytes: Some(1 << 18),
            ..TableConfig::single("t", DIM, Init::Normal { std: 0.1 }, adam)
        };
        let dir = tempfile::tempdir().unwrap();
        let table = Table::new(config.clone()).unwrap();
        let writer = LogWriter::create(dir.path(), ID, segment_bytes).unwrap();
        let empty = (BTreeMap::new(), 0);
        let mut logging = Logging { table, writer, number: 0, epoch: None, keys_max, groups: vec![empty] };
        for step in &steps {
            match *step {
                Step::Push { first, keys } => {
                    push(&logging.table, (first..first + keys).map(|key| key * key % 3_001));
                }
                Step::Remove { first, keys } => (first..first + keys).for_each(|key| _ = logging.table.remove(key)),
                Step::Import { key } => {
                    let mut columns = RowColumns::default();
                    if let Some(row) = logging.table.get(key) {
                        columns.push(sanderling_store::RowRef {
                            key: key + 5_000, frequency: row.frequency, last_use: row.last_use, version: row.version,
                            weights: &row.weights, state: &row.state,
                        });
                        let _ = logging.table.import(columns.rows());
                    }
                }
                Step::Maintain => _ = logging.table.maintain(100),
                Step::Clear => logging.table.clear(),
                Step::Group => logging.write(false),
                Step::Lost => logging.write(true),
                Step::EndSegment => _ = logging.writer.end_segment(),
                Step::Restart => {
                    let mut target = Replayed::new(&config);
                    let end = LogReader::open(dir.path(), ID, 1, false).unwrap().replay(&mut target).unwrap();
                    prop_assert_eq!(end.group + 1, logging.groups.len() as u64);
                    logging.writer = LogWriter::after(dir.path(), &end, segment_bytes).unwrap();
                    logging.table = target.table;
                    logging.number = logging.number.max(target.number);
                    logging.epoch = if end.group > 0 && logging.number == target.number {
                        Some(logging.table.subscribe_changes(keys_max).unwrap())
                    } else {
                        None
                    };
                }
            }
        }
        let (group, found) = replayed(dir.path(), &config, false).unwrap();
        prop_assert_eq!(group + 1, logging.groups.len() as u64);
        prop_assert_eq!(&found, &logging.groups[group as usize]);
        let summary = LogReader::summary(dir.path(), ID, 1).unwrap();
        prop_assert!(summary.damage.is_none() && summary.torn_bytes == 0);
        prop_assert_eq!(summary.groups.map_or(0, |(_, last)| last), group);
        for (place, byte) in cuts {
            let files = segments(dir.path());
            let Some(last) = files.last() else { break };
            let whole = fs::read(last).unwrap();
            // A torn tail is a group before.
            let mut cut = whole.clone();
            cut.truncate(place * whole.len() / 1000);
            fs::write(last, &cut).unwrap();
            let (group, found) = replayed(dir.path(), &config, false).unwrap();
            prop_assert_eq!(&found, &logging.groups[group as usize]);
            fs::write(last, &whole).unwrap();
            // A changed byte is an error with the file, unless it is in the last group; cut there, it is a group before.
            let damaged = &files[place % files.len()];
            let whole = fs::read(damaged).unwrap();
            let mut changed = whole.clone();
            changed[place * whole.len() / 1000] ^= byte | 1;
            fs::write(damaged, &changed).unwrap();
            match replayed(dir.path(), &config, false) {
                Ok((group, found)) => prop_assert_eq!(&found, &logging.groups[group as usize]),
                Err(error) => {
                    let (error, name) = (error.to_string(), damaged.file_name().unwrap().to_str().unwrap());
                    let number: u64 = name.trim_end_matches(".log").parse().unwrap();
                    let is_named = error.contains(name) || error.contains(&format!("segment {number}"))
                        || error.contains("is not supported");
                    prop_assert!(is_named && error.len() < 400, "{}: {}", name, error);
                }
            }
            let (group, found) = replayed(dir.path(), &config, true).unwrap();
            prop_assert_eq!(&found, &logging.groups[group as usize]);
            fs::write(damaged, &whole).unwrap();
        }
    }
}

/// What a replay of the golden log gives.
struct Golden {
    table: Table,
    texts: Vec<Vec<u8>>,
}

impl LogTarget for Golden {
    fn tables(&mut self, list: &[u8]) -> Result<(), String> {
        self.texts.push(list.to_vec());
        Ok(())
    }

    fn table(&mut self, number: u32) -> Option<&mut Table> {
        (number == 5).then_some(&mut self.table)
    }

    fn pushes(&mut self, history: &[u8]) -> Result<(), String> {
        self.texts.push(history.to_vec());
        Ok(())
    }
}

/// The log that an independent program wrote by the documented format (`golden/make_log.py`).
#[test]
fn the_documented_log_is_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/golden/log");
    let momentum = Optimizer::Momentum { lr: 0.5, momentum: 0.5, l2: 0.0 };
    let table = Table::new(TableConfig::single("t", 1, Init::Zero, momentum)).unwrap();
    let mut golden = Golden { table, texts: Vec::new() };
    let end = LogReader::open(&dir, 0x5EED, 3, false).unwrap().replay(&mut golden).unwrap();
    assert_eq!((end.group, end.groups, end.segment), (10, 3, 4));
    assert_eq!(end.cut.map(|(_, offset, bytes)| (offset, bytes)), Some((end.bytes, 32 + 24 + 28)));
    let [tables, pushes] = [b"the tables".to_vec(), b"the pushes".to_vec()];
    assert_eq!(golden.texts, [tables.clone(), pushes, tables]);
    let bits = |header: [u32; 3], values: [f32; 2]| (header, values.map(f32::to_bits).to_vec());
    let expected = BTreeMap::from([
        (1, bits([4, 5, 3], [1.5, 0.5])),
        (3, bits([10, 7, 6], [7.0, 0.0])),
        (4, bits([1, 6, 1], [4.0, -2.0])),
    ]);
    assert_eq!(rows(&golden.table), (expected, 7));
    let summary = LogReader::summary(&dir, 0x5EED, 3).unwrap();
    assert_eq!((summary.groups, summary.rows, summary.removed), (Some((8, 10)), 6, 1));
    assert_eq!((summary.unix_ms, summary.torn_bytes), (Some((1_700_000_000_008, 1_700_000_000_010)), 84));
    assert_eq!(LogReader::logs(&dir).unwrap(), [(0x5EED, 3)]);
    // From the second segment on; the first one, or another log, is not there.
    assert!(
        LogReader::has_segments(&dir, 0x5EED, 4).unwrap() && !LogReader::has_segments(&dir, 1, 3).unwrap()
    );
    let missing = LogReader::open(&dir, 0x5EED, 1, false).unwrap_err().to_string();
    assert!(missing.contains("segment 2") && missing.contains("000000000003.log"), "{missing}");
}
