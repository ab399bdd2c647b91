//! Restores the rows of a checkpoint with all processors: one thread reads blocks, verifies them and allocates their
//! rows in file order, the others fill the rows and insert their keys.

use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};

use crate::index::NO_ROW;
use crate::memory::persist::Step;
use crate::memory::prefetch::PrefetchHint;
use crate::policy::clock::ImportClock;
use crate::rows::layout::Header;
use crate::rows::numbers::RowNumbers;
use crate::sync::lanes::lane;
use crate::{StoreError, Table};

use super::rows::{RowShape, RowsError, row_key, row_of_block, rows_of_block};

/// The maximum number of threads: more would wait for the one that reads.
const THREADS_MAX: usize = 8;
/// Blocks that wait for each thread.
const WAITING_PER_THREAD: usize = 4;
/// A file with fewer bytes is not worth other threads.
const SHARED_BYTES_MIN: u64 = 4 << 20;
/// Prefetch distances in rows.
const AHEAD_BUCKETS: usize = 16;
const AHEAD_ROWS: usize = 8;

/// The state that all threads share.
pub(crate) struct Restoration<'a> {
    pub(crate) table: &'a Table,
    pub(crate) name: &'a str,
    pub(crate) shape: RowShape,
    pub(crate) numbers: &'a RowNumbers,
    /// The table's use clock, and that of the checkpoint.
    pub(crate) clock: u64,
    pub(crate) pushes: u64,
}

/// A block of rows of the file, and the rows of the table for them.
#[derive(Default)]
struct Block {
    payload: Vec<u8>,
    /// Numbers of the rows in the block that are restored.
    kept: Vec<u32>,
    rows: Vec<u32>,
}

/// Buffers of a thread.
#[derive(Default)]
struct Buffers {
    hashes: Vec<u64>,
    values: Vec<f32>,
    words: Vec<f32>,
}

/// Passes blocks to other threads, and fills those for which no thread has time.
pub(crate) struct Restorer<'a> {
    restoration: &'a Restoration<'a>,
    /// `None` without other threads.
    blocks: Option<SyncSender<Block>>,
    done: Receiver<(Block, Result<(), RowsError>)>,
    /// Blocks that other threads have not returned yet.
    under_way: usize,
    spare: Vec<Block>,
    buffers: Buffers,
    /// Rows that were restored or are about to be.
    pub(crate) added: u64,
    /// The table has no room without eviction.
    is_full: bool,
}

impl Restoration<'_> {
    /// Calls `read` with a restorer, beside other threads if the file has so many bytes, and waits for all rows.
    pub(crate) fn run(
        &self,
        bytes: u64,
        read: impl FnOnce(&mut Restorer<'_>) -> Result<(), StoreError>,
        fail: impl FnOnce(RowsError) -> StoreError,
    ) -> Result<u64, StoreError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if bytes < SHARED_BYTES_MIN { 0 } else { (processors - 1).min(THREADS_MAX) };
        let (done_sender, done) = channel();
        let (blocks, waiting) = sync_channel(threads.max(1) * WAITING_PER_THREAD);
        let waiting = Mutex::new(waiting);
        scope(|scope| {
            let mut started = 0;
            for _ in 0..threads {
                let (waiting, done) = (&waiting, done_sender.clone());
                let work = move || self.work(waiting, &done);
                // Where the system gives no thread, others do its part.
                started += usize::from(Builder::new().spawn_scoped(scope, work).is_ok());
            }
            drop(done_sender);
            let mut restorer = Restorer {
                restoration: self,
                blocks: (started > 0).then_some(blocks),
                done,
                under_way: 0,
                spare: Vec::new(),
                buffers: Buffers::default(),
                added: 0,
                is_full: false,
            };
            let read = read(&mut restorer);
            // The error of a row comes before that of the end of the file.
            restorer.wait().map_err(fail)?;
            read.map(|()| restorer.added)
        })
    }

    /// Fills blocks until there are no more.
    fn work(&self, blocks: &Mutex<Receiver<Block>>, done: &Sender<(Block, Result<(), RowsError>)>) {
        let mut buffers = Buffers::default();
        let next = || blocks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        while let Ok(block) = next() {
            let result = self.fill(&block, &mut buffers);
            if done.send((block, result)).is_err() {
                return;
            }
        }
    }

    /// Fills the rows of a block and inserts their keys. After an error the other rows are given back.
    fn fill(&self, block: &Block, buffers: &mut Buffers) -> Result<(), RowsError> {
        let (table, lane) = (self.table, lane());
        let mut inserted = 0;
        let filled = self.fill_rows(lane, block, buffers, &mut inserted);
        table.directory.unclaim(block.rows.len() - inserted);
        table.row_allocator.give_back(lane, &table.slab, &mut block.rows[inserted..].to_vec());
        filled
    }

    fn fill_rows(
        &self,
        lane: usize,
        block: &Block,
        buffers: &mut Buffers,
        inserted: &mut usize,
    ) -> Result<(), RowsError> {
        let Restoration { table, shape, .. } = *self;
        let (_shared, persist) = (table.write_gate.lock_shared(lane), table.persist());
        let Buffers { hashes, values, words } = buffers;
        values.resize(shape.dim + shape.state, 0.0);
        words.resize(table.layout.unpacked(), 0.0);
        hashes.clear();
        let hash = |&number: &u32| table.hash_key.hash(row_key(shape, &block.payload, number));
        hashes.extend(block.kept.iter().map(hash));
        {
            let view = table.directory.pin(lane);
            hashes.iter().take(AHEAD_BUCKETS).for_each(|&hash| view.prefetch(hash, PrefetchHint::Write));
        }
        let ask_for = |row: &u32| table.slab.prefetch_to_fill(*row);
        block.rows.iter().take(AHEAD_ROWS).for_each(ask_for);
        for (at, (&number, &row)) in block.kept.iter().zip(&block.rows).enumerate() {
            block.rows.get(at + AHEAD_ROWS).map(ask_for);
            let header = row_of_block(shape, &block.payload, number, values);
            let (weights, state) = values.split_at(shape.dim);
            self.numbers.check(weights, state).map_err(|reason| bad_row(self.name, header.key, &reason))?;
            let last_use = ImportClock::since(self.clock, self.pushes, header.last_use);
            // A table of weights only drops the state.
            let kept = &values[..table.layout.dim + table.layout.state];
            let words = table.layout.join_row(Header { last_use, ..header }, kept, words);
            table.slab.write_unpublished(row, words);
            if let Some(persist) = persist {
                table.slab.flush(row, persist);
                persist.fence(Step::Rows);
            }
            let locked = table.directory.lock(hashes[at]);
            if let Some(&later) = hashes.get(at + AHEAD_BUCKETS) {
                locked.prefetch_to_change(later);
            }
            if locked.find() != NO_ROW {
                return Err(RowsError::Damaged(format!("key {} occurs twice", header.key)));
            }
            locked.insert(row);
            *inserted += 1;
        }
        if let Some(persist) = persist {
            persist.fence(Step::Slots);
        }
        Ok(())
    }
}

/// A row that no push makes.
pub(crate) fn bad_row(table: &str, key: u64, reason: &str) -> RowsError {
    RowsError::Damaged(format!(
        "table {table:?}: row of key {key}: {reason}; its model had diverged, or another program wrote it: use an earlier \
         checkpoint"
    ))
}

impl Restorer<'_> {
    /// Restores the rows of a block whose keys `keep` accepts; `payload` gets another buffer.
    pub(crate) fn restore(
        &mut self,
        payload: &mut Vec<u8>,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Result<(), RowsError> {
        while let Ok(done) = self.done.try_recv() {
            self.take_back(done)?;
        }
        let shape = self.restoration.shape;
        let mut block = self.spare.pop().unwrap_or_default();
        block.kept.clear();
        let numbers = 0..rows_of_block(shape, payload) as u32;
        block.kept.extend(numbers.filter(|&number| keep(row_key(shape, payload, number))));
        std::mem::swap(&mut block.payload, payload);
        self.added += block.kept.len() as u64;
        if !self.is_full {
            block.rows.clear();
            self.take_rows(block.kept.len(), &mut block.rows);
            if block.rows.len() == block.kept.len() {
                return self.pass_on(block);
            }
            // Rows can be evicted only when they are complete.
            self.is_full = true;
            self.wait()?;
            self.restoration.fill(&block, &mut self.buffers)?;
            block.kept.drain(..block.rows.len());
        }
        self.restore_evicting(&mut block)?;
        self.spare.push(block);
        Ok(())
    }

    /// Gives a block to another thread, or fills it if all are busy.
    fn pass_on(&mut self, block: Block) -> Result<(), RowsError> {
        let sent = match &self.blocks {
            Some(blocks) => blocks.try_send(block),
            None => Err(TrySendError::Full(block)),
        };
        let block = match sent {
            Ok(()) => {
                self.under_way += 1;
                return Ok(());
            }
            Err(TrySendError::Full(block) | TrySendError::Disconnected(block)) => block,
        };
        let filled = self.restoration.fill(&block, &mut self.buffers);
        self.spare.push(block);
        filled
    }

    /// Restores a block as far as there is room, evicts rows, and so on.
    fn restore_evicting(&mut self, block: &mut Block) -> Result<(), RowsError> {
        let (table, lane) = (self.restoration.table, lane());
        while !block.kept.is_empty() {
            block.rows.clear();
            self.take_rows(block.kept.len(), &mut block.rows);
            if block.rows.is_empty() {
                let shared = table.write_gate.lock_shared(lane);
                if table.evict(lane, 1, &shared) == 0 {
                    return Err(RowsError::Store(table.full(1)));
                }
                continue;
            }
            self.restoration.fill(block, &mut self.buffers)?;
            block.kept.drain(..block.rows.len());
        }
        Ok(())
    }

    /// Allocates up to `wanted` rows with slots in the index.
    fn take_rows(&self, wanted: usize, rows: &mut Vec<u32>) {
        let (table, lane) = (self.restoration.table, lane());
        let claimed = table.claim(wanted);
        table.row_allocator.take(lane, claimed, &table.slab, &table.budget, &table.directory, rows);
        table.directory.unclaim(claimed - rows.len());
    }

    /// Lets the other threads end, and waits for them; returns the first error.
    fn wait(&mut self) -> Result<(), RowsError> {
        self.blocks = None;
        self.settle()
    }

    /// Waits until all blocks so far are filled; returns the first error.
    pub(crate) fn settle(&mut self) -> Result<(), RowsError> {
        let mut first = Ok(());
        while self.under_way > 0 {
            let Ok(done) = self.done.recv() else { break };
            let result = self.take_back(done);
            first = first.and(result);
        }
        first
    }

    fn take_back(&mut self, (block, result): (Block, Result<(), RowsError>)) -> Result<(), RowsError> {
        self.under_way -= 1;
        self.spare.push(block);
        result
    }
}
