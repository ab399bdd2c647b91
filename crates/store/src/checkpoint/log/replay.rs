//! Applies the groups of a log to tables: removed keys first, then rows, by several threads if there are many.

use std::thread::{Builder, scope};

use super::record::{Kind, MAY_REPEAT, REMOVED_HEADER_BYTES, ROWS_HEADER_BYTES, RecordHeader};
use super::segments::{LogEnd, LogReader, Next, Records, damaged};
use crate::checkpoint::rows::{RowShape, row_bytes, row_of_block, rows_of_block, u32_at, u64_at};
use crate::rows::layout::Header;
use crate::{RowColumns, RowRef, StoreError, Table};

/// Rows of a group that are collected before they are applied, in bytes.
const COLLECTED_BYTES: usize = 64 << 20;
/// Bytes of rows that are worth another thread.
const THREAD_BYTES: usize = 1 << 20;
/// Pushes after which ages of rows are limited anew.
const REBASE_PUSHES: u64 = 1 << 28;

/// The receiver of a replay.
pub trait LogTarget {
    /// Takes the list of tables of a group, as [`LogWriter::tables`](crate::LogWriter::tables) got it. Tables that
    /// are not in it are gone; those with another number are empty.
    ///
    /// # Errors
    ///
    /// A reason ends the replay.
    fn tables(&mut self, list: &[u8]) -> Result<(), String>;

    /// The table with this number in the log.
    fn table(&mut self, number: u32) -> Option<&mut Table>;

    /// Takes a push history, as [`LogWriter::pushes`](crate::LogWriter::pushes) got it.
    ///
    /// # Errors
    ///
    /// A reason ends the replay.
    fn pushes(&mut self, history: &[u8]) -> Result<(), String>;
}

/// Rows of a table that wait to be applied.
struct Collected {
    table: u32,
    shape: RowShape,
    /// The use clock behind all of them.
    clock: u64,
    payloads: Vec<Vec<u8>>,
    bytes: usize,
}

impl LogReader {
    /// Applies all groups to a target that has the state of the checkpoint before; returns their end.
    ///
    /// # Errors
    ///
    /// [`StoreError::Damaged`] names the segment and the offset. The target holds some of the changes.
    pub fn replay(&self, target: &mut impl LogTarget) -> Result<LogEnd, StoreError> {
        let mut replay = Replay { collected: Vec::new(), bytes: 0, rebased: Vec::new() };
        let (mut group, mut groups) = (0, 0);
        for segment in &self.segments {
            let mut records = Records::open(segment)?;
            loop {
                let (at, mut payload) = (records.at, Vec::new());
                let fault = |reason: String| {
                    damaged(&segment.path, self.with_whole(&format!("offset {at}: {reason}")))
                };
                let record = match records.next(&mut payload)? {
                    Next::Record(record) => record,
                    Next::End => break,
                    Next::Bad(reason) => return Err(fault(reason.to_string())),
                };
                if group != 0 && record.group != group + 1 {
                    let reason = format!("the record is of group {}, not of {}", record.group, group + 1);
                    return Err(fault(reason));
                }
                group = record.group.saturating_sub(1);
                if record.kind == Kind::Commit {
                    group = record.group;
                    groups += 1;
                }
                replay.apply(&record, payload, target).map_err(|reason| match reason {
                    Reason::Text(reason) => fault(reason),
                    Reason::Store(error) => error,
                })?;
            }
        }
        Ok(self.end(group, groups))
    }
}

/// Why a record could not be applied.
enum Reason {
    Text(String),
    Store(StoreError),
}

impl From<String> for Reason {
    fn from(reason: String) -> Reason {
        Reason::Text(reason)
    }
}

impl From<StoreError> for Reason {
    fn from(error: StoreError) -> Reason {
        Reason::Store(error)
    }
}

struct Replay {
    collected: Vec<Collected>,
    bytes: usize,
    /// Per table, the use clock when ages were limited.
    rebased: Vec<(u32, u64)>,
}

impl Replay {
    fn apply(
        &mut self,
        record: &RecordHeader,
        payload: Vec<u8>,
        target: &mut impl LogTarget,
    ) -> Result<(), Reason> {
        match record.kind {
            Kind::Tables => {
                self.apply_rows(target)?;
                target.tables(&payload)?;
            }
            Kind::Pushes => target.pushes(&payload)?,
            Kind::Commit => self.apply_rows(target)?,
            Kind::Rows => self.collect(record.table, payload, target)?,
            Kind::Removed => self.remove(record.table, &payload, target)?,
        }
        Ok(())
    }

    fn remove(&mut self, number: u32, payload: &[u8], target: &mut impl LogTarget) -> Result<(), Reason> {
        let keys = payload
            .get(REMOVED_HEADER_BYTES..)
            .filter(|keys| u32_at(payload, 0) as usize * size_of::<u64>() == keys.len());
        let Some(keys) = keys else { return Err(Reason::Text("its number of keys is wrong".to_string())) };
        if u32_at(payload, 4) & MAY_REPEAT != 0 {
            self.apply_rows(target)?;
        }
        let table = known(target, number)?;
        for key in keys.chunks_exact(size_of::<u64>()) {
            table.remove(u64_at(key, 0));
        }
        Ok(())
    }

    /// Collects rows until the end of their group, because its removed keys make room for them.
    fn collect(&mut self, number: u32, payload: Vec<u8>, target: &mut impl LogTarget) -> Result<(), Reason> {
        if payload.len() < ROWS_HEADER_BYTES {
            return Err(Reason::Text("it has no rows".to_string()));
        }
        let [dim, state, rows, flags] = [8, 12, 16, 20].map(|at| u32_at(&payload, at));
        let shape = RowShape { dim: dim as usize, state: state as usize };
        let table = known(target, number)?;
        let expected = RowShape { dim: table.config().dim(), state: table.config().state() };
        if shape != expected {
            let name = table.name();
            return Err(Reason::Text(format!("table {name:?}: its rows are {shape:?}, not {expected:?}")));
        }
        if (payload.len() - ROWS_HEADER_BYTES) as u64
            != u64::from(rows) * row_bytes(shape.dim, shape.state) as u64
        {
            return Err(Reason::Text(format!("its {rows} rows have another size")));
        }
        let clock = u64_at(&payload, 0);
        self.bytes += payload.len();
        let place = self.collected.iter().position(|collected| collected.table == number);
        let place = place.unwrap_or_else(|| {
            let (payloads, bytes) = (Vec::new(), 0);
            self.collected.push(Collected { table: number, shape, clock, payloads, bytes });
            self.collected.len() - 1
        });
        let collected = &mut self.collected[place];
        collected.clock = collected.clock.max(clock);
        collected.bytes += payload.len();
        collected.payloads.push(payload);
        if flags & MAY_REPEAT != 0 || self.bytes >= COLLECTED_BYTES {
            self.apply_rows(target)
        } else {
            Ok(())
        }
    }

    fn apply_rows(&mut self, target: &mut impl LogTarget) -> Result<(), Reason> {
        self.bytes = 0;
        for collected in std::mem::take(&mut self.collected) {
            let table = known(target, collected.table)?;
            self.set_clock(collected.table, collected.clock, table);
            import(table, &collected)?;
        }
        Ok(())
    }

    /// Sets the use clock. Limiting the ages of rows visits all of them, so that is done seldom.
    fn set_clock(&mut self, number: u32, clock: u64, table: &mut Table) {
        let now = table.clock();
        if clock <= now {
            return;
        }
        let place = self.rebased.iter().position(|(other, _)| *other == number).unwrap_or_else(|| {
            self.rebased.push((number, now));
            self.rebased.len() - 1
        });
        let rebased = &mut self.rebased[place].1;
        if clock - *rebased > REBASE_PUSHES {
            *rebased = clock;
            table.set_clock(clock);
        } else {
            table.clock.set(clock);
        }
    }
}

fn known(target: &mut impl LogTarget, number: u32) -> Result<&mut Table, Reason> {
    target.table(number).ok_or_else(|| Reason::Text(format!("the log has not named a table {number}")))
}

/// Imports records of rows, of which no two have a key in common.
fn import(table: &Table, collected: &Collected) -> Result<(), Reason> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min(collected.bytes / THREAD_BYTES).clamp(1, collected.payloads.len().max(1));
    let each = collected.payloads.len().div_ceil(threads).max(1);
    let mut parts = collected.payloads.chunks(each);
    let first = parts.next().unwrap_or_default();
    scope(|scope| {
        let mut left = Vec::new();
        let mut others = Vec::new();
        for part in parts {
            let work = move || import_part(table, collected.shape, part);
            match Builder::new().spawn_scoped(scope, work) {
                Ok(thread) => others.push(thread),
                // Where the system gives no thread, this one does its part.
                Err(_) => left.push(part),
            }
        }
        let mut result = import_part(table, collected.shape, first);
        for part in left {
            result = result.and(import_part(table, collected.shape, part));
        }
        for thread in others {
            let other = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(other);
        }
        result
    })
}

fn import_part(table: &Table, shape: RowShape, payloads: &[Vec<u8>]) -> Result<(), Reason> {
    let (mut columns, mut values) = (RowColumns::default(), vec![0.0; shape.dim + shape.state]);
    for payload in payloads {
        let block = &payload[ROWS_HEADER_BYTES..];
        columns.clear();
        for at in 0..rows_of_block(shape, block) as u32 {
            let Header { key, frequency, last_use, version } = row_of_block(shape, block, at, &mut values);
            let (weights, state) = values.split_at(shape.dim);
            columns.push(RowRef { key, frequency, last_use, version, weights, state });
        }
        if columns.is_empty() {
            continue;
        }
        match table.import(columns.rows()) {
            Ok(()) => {}
            Err(error @ StoreError::TableFull { .. }) => return Err(Reason::Store(error)),
            Err(error) => return Err(Reason::Text(error.to_string())),
        }
    }
    Ok(())
}
