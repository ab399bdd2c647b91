//! The rows that a worker received in an exchange, by lanes and in the order of their places.

use std::collections::VecDeque;

use sanderling_sample::Batch;

use crate::error::JobError;
use crate::packed_rows::{ask_for, each_row, unpack};
use crate::row_buffer::RowBuffer;

/// How rows are shared out: by their place to a lane, and by lane to a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lanes {
    pub(crate) count: u32,
    pub(crate) workers: u32,
}

impl Lanes {
    /// The lane of a place, or of a unit.
    #[inline]
    pub(crate) fn of(self, number: u64) -> u32 {
        (number % u64::from(self.count)) as u32
    }

    /// The worker of a lane.
    #[inline]
    pub(crate) fn owner(self, lane: u32) -> u32 {
        lane % self.workers
    }

    /// The lanes of a worker.
    pub(crate) fn of_worker(self, worker: u32) -> impl Iterator<Item = u32> {
        (worker..self.count).step_by(self.workers as usize)
    }
}

/// Rows from asking for one to unpacking it.
const AHEAD_ROWS: usize = 16;

/// A row in one of the slices that are in memory.
struct At {
    slice: u32,
    piece: u32,
    start: u32,
    length: u32,
}

/// A slice in memory, as long as any of its rows is awaited.
struct Loaded {
    pieces: Vec<Vec<u8>>,
    left: usize,
}

/// The rows, of which each is taken once.
pub(crate) struct Sorted {
    kept: RowBuffer,
    lanes: Lanes,
    worker: u32,
    /// Rows to come of each lane of this worker, as far as they are in memory.
    ready: Vec<VecDeque<At>>,
    loaded: VecDeque<Loaded>,
    /// Number of the first slice of `loaded`, and of the next one.
    first: usize,
    next: usize,
    /// Rows that there should be, and that there were.
    expected: u64,
    found: u64,
    order: Vec<(u64, u32, u32, u32)>,
}

impl Sorted {
    /// Of rows that were counted before.
    pub(crate) fn new(kept: RowBuffer, lanes: Lanes, worker: u32, expected: u64) -> Sorted {
        let ready = lanes.of_worker(worker).map(|_| VecDeque::new()).collect();
        let (loaded, order) = (VecDeque::new(), Vec::new());
        Sorted { kept, lanes, worker, ready, loaded, first: 0, next: 0, expected, found: 0, order }
    }

    /// Bytes that went through a temporary file.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.kept.stored_bytes()
    }

    /// Makes the next rows of a lane of this worker, by its position among them, ready to be taken: so many, or all that
    /// there are.
    pub(crate) fn make_ready(&mut self, lane: usize, rows: usize) -> Result<usize, JobError> {
        while self.ready[lane].len() < rows && self.next < self.kept.slices() {
            self.load()?;
        }
        Ok(self.ready[lane].len().min(rows))
    }

    /// Appends rows that are ready. The next lane's are asked for meanwhile.
    pub(crate) fn take(&mut self, lane: usize, rows: usize, batch: &mut Batch) -> Result<(), JobError> {
        let next = (lane + 1) % self.ready.len();
        let Sorted { ready, loaded, first, .. } = self;
        let ask = |from: &Loaded, at: &At| {
            ask_for(&from.pieces[at.piece as usize], at.start as usize, at.length as usize);
        };
        for number in 0..rows {
            let is_here = number + AHEAD_ROWS < rows || next == lane;
            let asked = if is_here { (lane, AHEAD_ROWS) } else { (next, number + AHEAD_ROWS - rows) };
            if let Some(at) = ready[asked.0].get(asked.1) {
                ask(&loaded[at.slice as usize - *first], at);
            }
            let Some(at) = ready[lane].pop_front() else { break };
            let slice = &mut loaded[at.slice as usize - *first];
            unpack(&slice.pieces[at.piece as usize], at.start as usize, batch)?;
            slice.left -= 1;
        }
        while self.loaded.front().is_some_and(|slice| slice.left == 0) {
            self.loaded.pop_front();
            self.first += 1;
        }
        Ok(())
    }

    fn load(&mut self) -> Result<(), JobError> {
        let pieces = self.kept.take(self.next)?;
        self.order.clear();
        for (number, piece) in (0..).zip(&pieces) {
            each_row(piece, |place, start, length| {
                self.order.push((place, number, start, length));
                Ok(())
            })?;
        }
        // No two rows have one place.
        self.order.sort_unstable_by_key(|&(place, ..)| place);
        for &(place, piece, start, length) in &self.order {
            let lane = self.lanes.of(place);
            if self.lanes.owner(lane) != self.worker {
                return Err(JobError::Damaged("a row that is another worker's"));
            }
            self.ready[(lane / self.lanes.workers) as usize].push_back(At {
                slice: self.next as u32,
                piece,
                start,
                length,
            });
        }
        self.found += self.order.len() as u64;
        self.loaded.push_back(Loaded { pieces, left: self.order.len() });
        self.next += 1;
        if self.next == self.kept.slices() && self.found != self.expected {
            return Err(JobError::Damaged("there are more or fewer rows than were sent"));
        }
        Ok(())
    }
}
