//! Row-by-row updates for online learning: keys are resolved to rows in batches, then every update is applied at
//! once, so that the next read sees it. A push per sample would search every key twice.

use crate::changes::notes::Notes;
use crate::index::NO_ROW;
use crate::index::directory::KeyLock;
use crate::lookup::{CHUNK_KEYS, with_lookup};
use crate::rows::access::RowMut;
use crate::rows::layout::{RowUpdate, Update};
use crate::rows::undo::UndoSlot;
use crate::simd::halves::Singles;
use crate::simd::{self, Vector, Width, Work};
use crate::sync::lanes::lane;
use crate::sync::write_gate::ExclusiveGuard;
use crate::table::Table;
use crate::update::create::RowInit;
use crate::update::failures::PushFailures;
use crate::update::kernel::OptimizerStep;
use crate::{Admission, PushScale, StoreError, Writes};

/// Position of a row, valid as long as the writer that resolved it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowHandle(pub(crate) u32);

/// Exclusive access to a table's rows by handle.
///
/// Until it is dropped, changes of the table by other threads wait, and those by this thread fail with
/// [`StoreError::Writing`]. Pulls see each row before or after an update and do not wait. [`TableWriter::finish`]
/// reports updates that were not finite; dropping the writer panics if there were any.
#[derive(Debug)]
pub struct TableWriter<'a> {
    table: &'a Table,
    lane: usize,
    exclusive: ExclusiveGuard<'a>,
    steps: Vec<OptimizerStep>,
    clock: u32,
    width: Width,
    /// Buffer for a row.
    before: Vec<f32>,
    failures: PushFailures,
    /// Only in tables that outlive the process.
    undo: Option<UndoSlot<'a>>,
    /// Only in tables with a subscriber of their changes.
    notes: Option<&'a Notes>,
}

impl Table {
    /// Locks the table for updates row by row, all with this scale.
    ///
    /// Other changes wait until the writer is dropped.
    ///
    /// # Errors
    ///
    /// The table has an admission filter, copy-on-write or 16-bit weights, so that rows are not created at once, do
    /// not stay in place, or cannot be borrowed.
    pub fn writer(&self, scale: PushScale) -> Result<TableWriter<'_>, StoreError> {
        self.check_scale(scale)?;
        self.check_not_writing()?;
        let (admission, writes) = (self.config().admission, self.config().writes);
        if admission != Admission::Always || writes != Writes::InPlace || self.layout.half.is_some() {
            let reason =
                "row-by-row updates require admission = always, writes = in_place and dtype = f32: use pushes"
                    .to_string();
            return Err(StoreError::Config { table: self.name().to_string(), reason });
        }
        let steps = self.layout.blocks.iter().map(|block| block.kernel.step(scale.lr_scale)).collect();
        let lane = lane();
        let clock = self.tick(lane);
        Ok(TableWriter::new(self, lane, self.write_gate.lock_exclusive(), steps, clock))
    }
}

impl<'a> TableWriter<'a> {
    pub(crate) fn new(
        table: &'a Table,
        lane: usize,
        exclusive: ExclusiveGuard<'a>,
        steps: Vec<OptimizerStep>,
        clock: u32,
    ) -> Self {
        let (width, before, failures) = (table.width(), Vec::new(), PushFailures::default());
        let undo = table.slab.undo.as_ref().map(|undo| undo.take(lane));
        let notes = table.notes();
        TableWriter { table, lane, exclusive, steps, clock, width, before, failures, undo, notes }
    }

    /// Ends the updates.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFinite`] if the result of an update was not finite; its row is unchanged.
    pub fn finish(mut self) -> Result<(), StoreError> {
        std::mem::take(&mut self.failures).check(self.table)
    }

    /// Appends the row of every key to `handles` and creates missing rows. Keys may repeat.
    ///
    /// # Errors
    ///
    /// [`StoreError::TableFull`] if the budget has no room: a writer does not evict, because the rows of its
    /// handles must stay. Rows created until then keep their initial weights, and `handles` is unchanged.
    pub fn resolve(&mut self, keys: &[u64], handles: &mut Vec<RowHandle>) -> Result<(), StoreError> {
        let before = handles.len();
        handles.reserve(keys.len());
        self.table.directory.advance_growth(self.lane, 0);
        with_lookup(|lookup| {
            for keys in keys.chunks(CHUNK_KEYS) {
                lookup.assign(self.table.hash_key, keys);
                let (first, mut absent) = (handles.len(), std::mem::take(&mut lookup.absent));
                absent.clear();
                let vector = self.width.elsewhere();
                self.table.walk(vector, self.lane, lookup, &mut |at: usize, row: u32| {
                    handles.push(RowHandle(row));
                    if row == NO_ROW {
                        absent.push(at as u32);
                    }
                });
                lookup.absent = absent;
                if !lookup.absent.is_empty() {
                    let mut made = NewHandles { handles: &mut handles[first..] };
                    let rejected = self.table.create_absent(self.lane, lookup, keys, None, &mut made);
                    if rejected > 0 {
                        handles.truncate(before);
                        return Err(self.table.full(rejected));
                    }
                }
            }
            Ok(())
        })
    }

    /// The weights of a row.
    #[inline]
    #[must_use]
    pub fn weights(&self, handle: RowHandle) -> &[f32] {
        self.table.slab.peek(handle.0, &self.exclusive)
    }

    /// The first weight of a row, for logistic regression.
    #[inline]
    #[must_use]
    pub fn first_weight(&self, handle: RowHandle) -> f32 {
        self.weights(handle)[0]
    }

    /// Applies the optimizer to a row at once, like a push of this gradient.
    ///
    /// The caller guarantees a finite gradient, because earlier rows are already updated.
    ///
    /// # Panics
    ///
    /// If the gradient's length is not the table's dim.
    #[inline]
    pub fn update(&mut self, handle: RowHandle, gradient: &[f32]) {
        let layout = &self.table.layout;
        debug_assert!(gradient.iter().all(|g| g.is_finite()));
        // Before the row's version is odd, because a panic would leave it so.
        assert_eq!(gradient.len(), layout.dim, "a gradient has one value per weight");
        let update = Update { count: 1, clock: self.clock, gradient };
        let writing = self.table.slab.write_exclusive(handle.0, &mut self.exclusive);
        if let Some(notes) = self.notes {
            notes.note_store(handle.0);
        }
        let (steps, row, before) = (self.steps.as_slice(), writing.row, &mut self.before);
        if let Some(undo) = &mut self.undo {
            undo.begin(handle.0, &row);
        }
        if !simd::run(self.width, RowUpdate { format: Singles, layout, steps, row, update, before }) {
            self.failures.note(self.table.key_of(handle.0));
        }
        if let Some(undo) = &mut self.undo {
            undo.end();
        }
    }

    /// Applies the optimizer to several rows in order, with `dim` gradient values each.
    ///
    /// A repeated row is updated repeatedly.
    ///
    /// # Panics
    ///
    /// If there are not `dim` gradient values per handle.
    pub fn update_all(&mut self, handles: &[RowHandle], gradients: &[f32]) {
        let table = self.table;
        assert_eq!(handles.len() * table.layout.dim, gradients.len(), "a gradient has one value per weight");
        let TableWriter { exclusive, steps, clock, before, failures, undo, .. } = self;
        let (steps, clock) = (steps.as_slice(), *clock);
        let update =
            RowsUpdate { table, steps, exclusive, handles, gradients, clock, before, failures, undo };
        simd::run(table.width(), update);
    }
}

impl Drop for TableWriter<'_> {
    fn drop(&mut self) {
        let failures = std::mem::take(&mut self.failures);
        if let Err(error) = failures.check(self.table)
            && !std::thread::panicking()
        {
            panic!("a writer was dropped without finish(): {error}");
        }
    }
}

/// Records the rows of new keys.
struct NewHandles<'a> {
    handles: &'a mut [RowHandle],
}

impl RowInit for NewHandles<'_> {
    fn initializes(&self, _at: usize) -> bool {
        false
    }

    fn new_row(&mut self, at: usize, row: u32, _: RowMut<'_>) {
        self.handles[at] = RowHandle(row);
    }

    fn existing_row(&mut self, at: usize, row: u32, _: &KeyLock<'_>) {
        self.handles[at] = RowHandle(row);
    }
}

/// Updates rows one after another as a unit of vectorized work.
struct RowsUpdate<'a, 'b> {
    table: &'a Table,
    steps: &'a [OptimizerStep],
    exclusive: &'a mut ExclusiveGuard<'b>,
    handles: &'a [RowHandle],
    gradients: &'a [f32],
    clock: u32,
    before: &'a mut Vec<f32>,
    failures: &'a mut PushFailures,
    undo: &'a mut Option<UndoSlot<'b>>,
}

impl Work for RowsUpdate<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        let (layout, slab) = (&self.table.layout, &self.table.slab);
        for (handle, gradient) in self.handles.iter().zip(self.gradients.chunks_exact(layout.dim)) {
            let update = Update { count: 1, clock: self.clock, gradient };
            let writing = slab.write_exclusive(handle.0, self.exclusive);
            if let Some(notes) = self.table.notes() {
                notes.note_store(handle.0);
            }
            if let Some(undo) = &mut *self.undo {
                undo.begin(handle.0, &writing.row.by(vector));
            }
            if !layout.update(self.steps, Singles, writing.row.by(vector), update, self.before) {
                self.failures.note(self.table.key_of(handle.0));
            }
            if let Some(undo) = &mut *self.undo {
                undo.end();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Absent, Block, Init, Optimizer, PushScale, Table, TableConfig};

    fn table() -> Table {
        let ftrl = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.01, l2: 0.1 };
        let adam = Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 };
        let blocks = vec![
            Block { dims: 1, init: Init::Zero, optimizer: ftrl },
            Block { dims: 3, init: Init::Normal { std: 0.1 }, optimizer: adam },
        ];
        Table::new(TableConfig { seed: 7, ..TableConfig::new("t", blocks) }).unwrap()
    }

    #[test]
    fn updates_by_handle_equal_pushes_one_by_one() {
        let (by_push, by_handle) = (table(), table());
        let mut writer = by_handle.writer(PushScale { lr_scale: 0.5 }).unwrap();
        let mut handles = Vec::new();
        let keys: Vec<u64> = (0..500).map(|i| (i * 7919) % 101).collect();
        writer.resolve(&keys, &mut handles).unwrap();
        for (i, (key, handle)) in keys.iter().zip(&handles).enumerate() {
            let gradient = [0.1, -0.2, 0.3, -0.4].map(|g| g * (i as f32).sin());
            by_push.push(&[*key], &gradient, PushScale { lr_scale: 0.5 }).unwrap();
            writer.update(*handle, &gradient);
            let mut pulled = [0.0; 4];
            by_push.pull(&[*key], Absent::Zero, &mut pulled, None).unwrap();
            assert_eq!(writer.weights(*handle), pulled);
        }
        writer.finish().unwrap();
        assert_eq!(by_push.len(), by_handle.len());
        by_push.for_each_row(|row| {
            let twin = by_handle.get(row.key).unwrap();
            assert_eq!((row.weights, row.state), (&twin.weights[..], &twin.state[..]));
            assert_eq!((row.frequency, row.version), (twin.frequency, twin.version));
        });
    }
}
