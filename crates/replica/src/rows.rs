//! The tables of a replica, and a follower's updates that wait for those before them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use sanderling_store::{
    Absent, CheckedPush, PushClock, PushScale, RowColumns, RowVersions, StoreError, Table, TableConfig,
    is_newer_version,
};
use sanderling_wire::slot_of;

use crate::fault::Fault;
use crate::limit::{REMOVALS_MAX, WAITING_MAX};
use crate::message::{AppliedPush, Operation, Push, TableState};
use crate::placement::{Placement, SlotOwner};
use crate::push_dedup::Outcome;

/// The tables, and what a follower knows about their rows.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) tables: BTreeMap<u32, Arc<Table>>,
    /// The driver's note about each table.
    pub(crate) notes: BTreeMap<u32, String>,
    /// Counts changes of the list of tables.
    pub(crate) listed: u64,
    /// Removals that a follower has applied, per table.
    removals: HashMap<u32, u64>,
    /// Number of the last removal of a key, until every stream has passed it.
    removed: BTreeMap<(u32, u64), u64>,
    group: Option<u32>,
    /// The placement that the group has applied.
    pub(crate) placement: Option<Arc<Placement>>,
    /// By slot.
    owners: Vec<SlotOwner>,
    /// Updates of rows that are older than the version before, per key in the order of versions.
    waiting: BTreeMap<(u32, u64), VecDeque<Waiting>>,
    waiting_count: usize,
    pub(crate) fault: Fault,
}

/// An update of a key that waits.
#[derive(Debug)]
struct Waiting {
    push: Arc<Push>,
    clock: u32,
    /// Position of the key in the push.
    at: usize,
    version: u32,
    removals: u64,
}

/// The follower can no longer follow, and must begin anew.
#[derive(Debug)]
pub(crate) struct Broken;

impl From<StoreError> for Broken {
    fn from(_: StoreError) -> Broken {
        Broken
    }
}

fn check<'a>(table: &'a Table, push: &'a Push) -> Result<CheckedPush<'a>, StoreError> {
    table.check_push(&push.keys, &push.counts, &push.grads, PushScale { lr_scale: push.lr_scale })
}

impl Waiting {
    /// Applies the update to its row; returns whether it has to wait on.
    fn apply(&self, table: &Table, by_version: bool) -> Result<bool, StoreError> {
        let Waiting { push, at, version, .. } = self;
        let (at, dim) = (*at, table.dim());
        let (keys, counts) = (&push.keys[at..=at], &push.counts[at..=at]);
        let scale = PushScale { lr_scale: push.lr_scale };
        let checked = table.check_push(keys, counts, &push.grads[at * dim..][..dim], scale)?;
        let (clock, mut later) = (PushClock::of_reading(self.clock), Vec::new());
        if by_version {
            checked.apply_in_order(&[*version], clock, &mut later)?;
        } else {
            checked.apply_part(0..1, clock)?;
        }
        Ok(!later.is_empty())
    }
}

impl Rows {
    pub(crate) fn new(group: Option<u32>, fault: Fault) -> Rows {
        Rows { group, fault, ..Rows::default() }
    }

    /// Drops everything, and makes the tables of a primary.
    pub(crate) fn begin(
        &mut self,
        tables: Vec<TableState>,
        placement: Option<Arc<Placement>>,
    ) -> Result<(), Broken> {
        *self = Rows { listed: self.listed + 1, ..Rows::new(self.group, self.fault) };
        placement.into_iter().for_each(|placement| self.place(&placement));
        for TableState { table, config, note, removals } in tables {
            self.create(table, config, note)?;
            self.removals.insert(table, removals);
        }
        Ok(())
    }

    fn create(&mut self, number: u32, config: TableConfig, note: String) -> Result<(), StoreError> {
        if let Entry::Vacant(vacant) = self.tables.entry(number) {
            vacant.insert(Arc::new(Table::new(config)?)).follow();
            self.notes.insert(number, note);
            self.removals.insert(number, 0);
            self.listed += 1;
        }
        Ok(())
    }

    /// Makes the tables those of a primary, after [`Rows::flush`].
    pub(crate) fn lead(&mut self) {
        self.removed.clear();
        for (number, table) in &self.tables {
            table.lead(self.removals.get(number).copied().unwrap_or(0), REMOVALS_MAX);
        }
    }

    /// Applies a push as the primary.
    pub(crate) fn push(&self, push: Arc<Push>) -> Result<AppliedPush, StoreError> {
        let unknown =
            || StoreError::Config { table: push.table.to_string(), reason: "no such table".to_string() };
        let table = self.tables.get(&push.table).ok_or_else(unknown)?;
        let mut rows = RowVersions::default();
        let checked = check(table, &push)?;
        let clock = if push.continues { table.latest_push() } else { table.count_push() };
        let applied = checked.apply_and_report(clock, &mut rows);
        match Outcome::of(&applied) {
            Some(outcome) => Ok(AppliedPush { push, clock: clock.reading(), rows, outcome }),
            None => Err(applied.expect_err("a push without an outcome has failed")),
        }
    }

    /// Reads weights.
    pub(crate) fn pull(&self, table: u32, keys: &[u64]) -> Option<Vec<f32>> {
        let table = self.tables.get(&table)?;
        let mut weights = vec![0.0; keys.len() * table.dim()];
        table.pull(keys, Absent::Zero, &mut weights, None).ok()?;
        Some(weights)
    }

    /// Applies a change between pushes.
    pub(crate) fn operate(&mut self, operation: &Operation, leads: bool) -> Result<Outcome, StoreError> {
        let mut outcome = Outcome::Applied;
        match operation {
            Operation::Create { table, config, note } => {
                self.create(*table, (**config).clone(), note.clone())?;
                if leads && let Some(table) = self.tables.get(table) {
                    table.lead(table.removals(), REMOVALS_MAX);
                }
            }
            Operation::Drop { table } => self.drop_table(*table),
            Operation::Replace { notes } => {
                let stays = |number: &u32| notes.iter().any(|(of, _)| of == number);
                let others: Vec<u32> = self.tables.keys().copied().filter(|number| !stays(number)).collect();
                others.into_iter().for_each(|number| self.drop_table(number));
                self.notes.extend(notes.iter().filter(|(of, _)| self.tables.contains_key(of)).cloned());
                self.listed += 1;
            }
            Operation::Import { table, rows, pushes } => {
                if let Some(table) = self.tables.get(table) {
                    if *pushes > 0 {
                        table.import_newer(RowColumns::default().rows(), *pushes)?;
                    }
                    match table.import(rows.rows()) {
                        // The other rows are imported.
                        Err(StoreError::TableFull { rejected, .. }) if leads => {
                            outcome = Outcome::Full { rejected };
                        }
                        other => other?,
                    }
                }
            }
            Operation::Remove { table, keys } => {
                if leads && let Some(table) = self.tables.get(table) {
                    keys.iter().for_each(|&key| _ = table.remove(key));
                }
            }
            Operation::Place(placement) => self.place(placement),
        }
        Ok(outcome)
    }

    fn drop_table(&mut self, table: u32) {
        self.tables.remove(&table);
        self.notes.remove(&table);
        self.listed += 1;
        self.removals.remove(&table);
        self.removed.retain(|(number, _), _| *number != table);
        self.waiting.retain(|(number, _), _| *number != table);
        self.waiting_count = self.waiting.values().map(VecDeque::len).sum();
    }

    fn place(&mut self, placement: &Arc<Placement>) {
        if self.placement.as_ref().is_none_or(|present| present.version < placement.version) {
            self.owners = self.group.map(|group| placement.owners(group)).unwrap_or_default();
            self.placement = Some(Arc::clone(placement));
            self.listed += 1;
        }
    }

    /// Whether this group has a key. Before the first placement no group has.
    pub(crate) fn owner_of(&self, key: u64) -> SlotOwner {
        match (self.group, &self.owners[..]) {
            (None, _) => SlotOwner::Here,
            (Some(_), []) => SlotOwner::InHandOver,
            (Some(_), owners) => owners[slot_of(key, owners.len())],
        }
    }

    /// Applies a push of the primary, as far as the rows have come to it.
    pub(crate) fn follow(&mut self, applied: &AppliedPush) -> Result<(), Broken> {
        let AppliedPush { push, clock, rows, .. } = applied;
        let Some(table) = self.tables.get(&push.table) else { return Ok(()) };
        if !push.continues {
            table.count_push();
        }
        let mut versions = rows.versions.clone();
        for ((version, &key), &removals) in versions.iter_mut().zip(&push.keys).zip(&rows.removals) {
            // The update was of a row that is gone.
            if self.removed.get(&(push.table, key)).is_some_and(|&last| last > removals) {
                *version = 0;
            }
        }
        let mut later = Vec::new();
        check(table, push)?.apply_in_order(&versions, PushClock::of_reading(*clock), &mut later)?;
        if self.fault == Fault::SkipInsteadOfWait {
            later.clear();
        }
        for at in later {
            let at = at as usize;
            let (push, version) = (Arc::clone(push), versions[at]);
            let waiting = Waiting { push, clock: *clock, at, version, removals: rows.removals[at] };
            let queue = self.waiting.entry((waiting.push.table, waiting.push.keys[at])).or_default();
            let before = queue.partition_point(|other| is_newer_version(version, other.version));
            queue.insert(before, waiting);
            self.waiting_count += 1;
        }
        if self.waiting_count > WAITING_MAX {
            return Err(Broken);
        }
        push.keys.iter().try_for_each(|&key| self.wake(push.table, key))
    }

    /// Applies the updates of a key that wait for its present row.
    fn wake(&mut self, number: u32, key: u64) -> Result<(), Broken> {
        let Some(queue) = self.waiting.get_mut(&(number, key)) else { return Ok(()) };
        let table = &self.tables[&number];
        while let Some(first) = queue.front() {
            if first.apply(table, true)? {
                return Ok(());
            }
            queue.pop_front();
            self.waiting_count -= 1;
        }
        self.waiting.remove(&(number, key));
        Ok(())
    }

    /// Removes rows as the primary has; those that were removed before are skipped.
    pub(crate) fn remove(&mut self, number: u32, before: u64, keys: &[u64]) {
        let Some(table) = self.tables.get(&number) else { return };
        let done = self.removals.entry(number).or_default();
        for (&key, removal) in keys.iter().zip(before + 1..) {
            if removal <= *done {
                continue;
            }
            *done = removal;
            table.remove(key);
            if self.fault == Fault::RemovalsUnnumbered {
                continue;
            }
            self.removed.insert((number, key), removal);
            if let Some(queue) = self.waiting.get_mut(&(number, key)) {
                let waited = queue.len();
                queue.retain(|waiting| waiting.removals >= removal);
                self.waiting_count -= waited - queue.len();
            }
        }
    }

    /// Forgets the removals that every stream has passed: no update of these rows can come any more.
    pub(crate) fn forget_removed(&mut self, number: u32, passed: u64) {
        self.removed.retain(|&(table, _), &mut removal| table != number || removal > passed);
    }

    /// Takes exported rows that are newer than those here.
    pub(crate) fn import(
        &mut self,
        number: u32,
        removals: u64,
        pushes: u64,
        rows: &RowColumns,
    ) -> Result<(), Broken> {
        let Some(table) = self.tables.get(&number) else { return Ok(()) };
        let (mut present, columns) = (RowColumns::default(), rows.rows());
        let state = if rows.is_empty() { 0 } else { columns.states.len() / rows.len() };
        for at in 0..rows.len() {
            let row = columns.row(at, table.dim(), state);
            if self.removed.get(&(number, row.key)).is_none_or(|&last| last <= removals) {
                present.push(row);
            }
        }
        table.import_newer(present.rows(), pushes)?;
        columns.keys.iter().try_for_each(|&key| self.wake(number, key))
    }

    /// Applies the updates that wait, in the order of versions. Missing ones before them were acknowledged to no
    /// client.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        self.waiting_count = 0;
        for ((number, _), queue) in std::mem::take(&mut self.waiting) {
            for waiting in queue {
                waiting.apply(&self.tables[&number], false)?;
            }
        }
        Ok(())
    }

    /// Number of updates that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting_count
    }
}
