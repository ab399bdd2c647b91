//! The exchange of shuffled rows: every worker reads its units and sends each row to its owner in this pass, which
//! stores it to be taken in the order of places. Does not know what the rows are used for.
//!
//! A row is packed once, where it was decoded, straight into the piece for its worker and slice of places; pieces are handed
//! on and kept as they are, and unpacked into a minibatch.

use std::time::{Duration, Instant};

use sanderling_client::Reduce;

use crate::error::JobError;
use crate::input::{Input, Units};
use crate::mesh::{PARCEL_BYTES, Parcel};
use crate::packed_rows::Packer;
use crate::places::{Places, Slices};
use crate::row_buffer::RowBuffer;
use crate::sorted::{Lanes, Sorted};
use crate::stages::{SHUFFLE, WAIT};
use crate::worker::{RECEIVE, Worker};

/// Bytes of pieces that a worker fills at the same time, about; and of a piece.
const FILLING_BYTES: usize = 16 << 20;
const PIECE_BYTES_MIN: usize = 4 << 10;
const PIECE_BYTES_MAX: usize = 64 << 10;

/// The state of an exchange at the receiver.
struct Receiving {
    round: u64,
    kept: RowBuffer,
    /// Workers that have not sent all of their rows.
    missing: Vec<u32>,
}

/// Bytes that a piece takes which is filled to so many and one row beyond.
const fn reserved(piece_bytes: usize) -> usize {
    piece_bytes + piece_bytes / 8
}

/// The most slices with which the pieces being filled, one per slice and worker, take no more than they may.
fn slices_max(workers: u32) -> usize {
    FILLING_BYTES / (reserved(PIECE_BYTES_MIN) * workers as usize)
}

/// Reads this worker's units of a pass and gives each row to the owner of its lane. The rows of this worker, and how many
/// there are of each lane, all workers' lanes included.
pub(crate) fn exchange(
    worker: &mut Worker,
    input: &Input,
    pass: u64,
    lanes: Lanes,
) -> Result<(Sorted, Vec<u64>), JobError> {
    let (rank, workers, round) = (worker.place(), worker.living(), worker.next_round());
    let mut units = Units::open(input, workers, &worker.halt)?;
    let slices = Slices::of_input(units.bytes_total(), slices_max(workers));
    let kept = RowBuffer::new(slices.count(), worker.shuffle_bytes_max, worker.scratch_dir.clone());
    let missing = (0..workers).filter(|&other| other != rank).collect();
    let mut receiving = Receiving { round, kept, missing };
    let mut filling: Vec<Vec<u8>> = vec![Vec::new(); slices.count() * workers as usize];
    let piece_bytes = (FILLING_BYTES / reserved(filling.len())).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
    debug_assert!(piece_bytes <= PARCEL_BYTES);
    let places = Places::new(worker.seed, pass);
    let mut lane_rows = vec![0_u64; lanes.count as usize];
    let (mut batch, mut packer) = (input.encoder.new_batch(), Packer::default());
    while let Some(unit) =
        units.read(&mut worker.timer, |number| number % u64::from(workers) == u64::from(rank))?
    {
        batch.clear();
        units.decode(&mut batch, &mut worker.timer)?;
        worker.timer.switch(SHUFFLE);
        Places::check(batch.len())?;
        for row in 0..batch.len() {
            let place = places.of(unit, row);
            let lane = lanes.of(place);
            lane_rows[lane as usize] += 1;
            let (to, slice) = (lanes.owner(lane), slices.of(place));
            let piece = &mut filling[to as usize * slices.count() + slice];
            if piece.capacity() == 0 {
                // A row is longer than the rest of it only where rows are long.
                piece.reserve(reserved(piece_bytes));
            }
            packer.pack(&batch, row, place, piece)?;
            if piece.len() >= piece_bytes {
                let piece = std::mem::take(piece);
                receiving.give(worker, to, slice, piece)?;
            }
        }
        while let Some((from, parcel)) = worker.mesh.receive(Duration::ZERO)? {
            receiving.take(rank, from, parcel)?;
        }
    }
    worker.timer.switch(SHUFFLE);
    for (number, piece) in filling.into_iter().enumerate().filter(|(_, piece)| !piece.is_empty()) {
        let (to, slice) = (number / slices.count(), number % slices.count());
        receiving.give(worker, to as u32, slice, piece)?;
    }
    for to in (rank + 1..workers).chain(0..rank) {
        worker.send(to, Parcel::End { round }, |worker, from, parcel| {
            receiving.take(worker.place(), from, parcel)
        })?;
    }
    let mut since = Instant::now();
    while !receiving.missing.is_empty() {
        worker.timer.switch(WAIT);
        if let Some((from, parcel)) = worker.mesh.receive(RECEIVE)? {
            worker.timer.switch(SHUFFLE);
            receiving.take(rank, from, parcel)?;
            since = Instant::now();
        } else if since.elapsed() >= worker.timeout {
            return Err(worker.awaited_at("the end of an exchange of rows", &receiving.missing));
        }
    }
    worker.timer.switch(WAIT);
    // This is also the barrier at the end of every use of the mesh. The name contains the pass: in another pass rows
    // have other places, so some would be delivered twice and others never.
    let name = format!("rows exchanged in pass {pass}");
    let counted = worker.group.all_reduce_counts(&name, &mut lane_rows, Reduce::Sum);
    counted.map_err(|error| worker.called_off(error))?;
    let expected = lanes.of_worker(rank).map(|lane| lane_rows[lane as usize]).sum();
    Ok((Sorted::new(receiving.kept, lanes, rank, expected), lane_rows))
}

impl Receiving {
    /// Keeps a piece, or sends it.
    fn give(&mut self, worker: &mut Worker, to: u32, slice: usize, bytes: Vec<u8>) -> Result<(), JobError> {
        if to == worker.place() {
            return self.kept.keep(slice, bytes);
        }
        let parcel = Parcel::Rows { round: self.round, slice: slice as u32, bytes };
        worker.send(to, parcel, |worker, from, parcel| self.take(worker.place(), from, parcel))
    }

    fn take(&mut self, worker: u32, from: u32, parcel: Parcel) -> Result<(), JobError> {
        match parcel {
            Parcel::Rows { round, slice, bytes } if round == self.round => {
                self.kept.keep(slice as usize, bytes)
            }
            Parcel::End { round } if round == self.round => {
                self.missing.retain(|&other| other != from);
                Ok(())
            }
            _ => {
                let reason =
                    format!("worker {from} sends something else than rows of exchange {}", self.round);
                Err(JobError::OutOfStep { worker, reason })
            }
        }
    }
}
