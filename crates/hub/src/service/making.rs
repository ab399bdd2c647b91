//! Making minibatches: passes over this hub's share of the input, shuffled, cut and packed. The order depends on the
//! input and the seed alone. Knows no trainer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sanderling_formats::{BadRows, DataConfig, Reader, Source, input};
use sanderling_observe::numbers::bytes as in_units;
use sanderling_observe::{StageTimer, Stages};
use sanderling_sample::{Batch, Encoder, Rows, pack_into, packed_bytes_max};

use sanderling_loader::{Shuffle, seed_of};

use super::error::ServiceError;
use super::event::Event;
use super::lease_queue::LeaseQueue;
use super::leases::{Minibatch, PassStart};
use super::units::{Share, Units};

/// The stages of a hub, by number: waiting for the source and reading it, parsing and encoding, waiting for a unit,
/// shuffling and copying rows into minibatches, packing, waiting while the queue is full.
pub const SERVICE_STAGES: [&str; 6] = ["read", "decode", "wait", "assemble", "pack", "full"];
pub(super) const READ: usize = 0;
pub(super) const DECODE: usize = 1;
pub(super) const WAIT: usize = 2;
const ASSEMBLE: usize = 3;
const PACK: usize = 4;
const FULL: usize = 5;

/// The inputs and settings of the minibatches.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// This hub's index, and the number of hubs that share the input.
    pub(crate) hub: (u64, u64),
    /// The input of all hubs.
    pub(crate) all: Vec<String>,
    /// Files, or `-`; this hub's own files only, if it has some.
    pub(crate) inputs: Vec<String>,
    pub(crate) reading: DataConfig,
    pub(crate) encoder: Arc<Encoder>,
    pub(crate) bad_rows: Arc<BadRows>,
    /// The share of units, if several hubs share a file.
    pub(crate) share: Share,
    pub(crate) batch: usize,
    /// Rows of the shuffle buffer; 0: no shuffle.
    pub(crate) shuffle: usize,
    pub(crate) seed: u64,
    pub(crate) passes: u64,
    pub(crate) threads: usize,
    /// Longest payload that fits into a frame.
    pub(crate) payload_bytes_max: usize,
}

/// One pass as minibatches.
struct Cutting<'a> {
    plan: &'a Plan,
    units: Units,
    pass: u64,
    pool: Batch,
    /// Rows of the pool that were used; without a shuffle only.
    head: usize,
    minibatch: Batch,
    shuffle: Shuffle,
    chunk: u64,
    end: bool,
}

impl<'a> Cutting<'a> {
    fn open(
        plan: &'a Plan,
        pass: u64,
        stages: &Stages,
        stopped: &Arc<AtomicBool>,
    ) -> Result<Cutting<'a>, ServiceError> {
        let source = Source::open(&plan.inputs, &plan.reading, &plan.encoder)?;
        let Plan { encoder, bad_rows, share, threads, .. } = plan;
        bad_rows.begin_pass();
        let units = Units::start(source, encoder, bad_rows, *share, *threads, stages, stopped)
            .map_err(ServiceError::Thread)?;
        Ok(Cutting {
            plan,
            units,
            pass,
            pool: encoder.new_batch(),
            head: 0,
            minibatch: encoder.new_batch(),
            shuffle: Shuffle::default(),
            chunk: 0,
            end: false,
        })
    }

    /// The next minibatch. It is short at the end of a pass, and when the hub is stopping, where it must not be used.
    fn next(&mut self, timer: &mut StageTimer) -> Result<Option<Rows<'_>>, ServiceError> {
        timer.switch(ASSEMBLE);
        let batch = self.plan.batch;
        if self.plan.shuffle == 0 {
            if self.pool.len() - self.head < batch {
                self.pool.drop_front(self.head);
                self.head = 0;
                self.fill(batch, timer)?;
            }
            let range = self.head..self.pool.len().min(self.head + batch);
            self.head = range.end;
            return Ok((!range.is_empty()).then(|| Rows::new(&self.pool, range)));
        }
        self.minibatch.clear();
        while self.minibatch.len() < batch {
            if self.shuffle.left() == 0 && !self.next_chunk(timer)? {
                break;
            }
            let missing = batch - self.minibatch.len();
            self.shuffle.gather(&self.pool, missing, &mut self.minibatch);
        }
        Ok((!self.minibatch.is_empty()).then(|| Rows::all(&self.minibatch)))
    }

    /// Refills the shuffle buffer and draws a new order; `false` at the end of the pass.
    fn next_chunk(&mut self, timer: &mut StageTimer) -> Result<bool, ServiceError> {
        self.shuffle.drop_drawn(&mut self.pool);
        self.fill(self.plan.shuffle, timer)?;
        let rows = self.pool.len().min(self.plan.shuffle);
        self.shuffle.draw(&self.pool, rows, seed_of(&[self.plan.seed, self.pass, 0, self.chunk]));
        self.chunk += 1;
        Ok(rows > 0)
    }

    /// Takes units until the pool has `rows` rows, or as many keys as a batch may hold, or the input ends.
    fn fill(&mut self, rows: usize, timer: &mut StageTimer) -> Result<(), ServiceError> {
        while self.pool.len() < rows && !self.end && self.pool.max_keys() < Batch::MAX_KEYS / 2 {
            let Some(mut unit) = self.units.next(timer)? else {
                self.end = true;
                break;
            };
            timer.switch(ASSEMBLE);
            unit.move_to(&mut self.pool);
            self.units.give_back(unit);
        }
        timer.switch(ASSEMBLE);
        Ok(())
    }
}

/// Makes all minibatches from number `first` on, as there is room; `start` is where the pass of `first` begins.
///
/// Both come from the start of the lease table, which may have noted acknowledgements since. Returns early when it is
/// stopped, and tells `on_event` if there are none to make.
pub(crate) fn make(
    plan: &Plan,
    (start, first): (PassStart, u64),
    lease_queue: &LeaseQueue,
    stages: &Stages,
    stopped: &Arc<AtomicBool>,
    on_event: &dyn Fn(Event),
) -> Result<(), ServiceError> {
    let mut timer = stages.timer();
    let mut number = first;
    let mut skip = number - start.first;
    for pass in start.pass..plan.passes {
        if pass > start.pass {
            lease_queue.leases().begin_pass(pass);
        }
        let mut cutting = Cutting::open(plan, pass, stages, stopped)?;
        let mut has_rows = false;
        let mut begun = Instant::now();
        while let Some(rows) = cutting.next(&mut timer)? {
            has_rows = true;
            if stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            // Skips rows that were acknowledged before the start.
            if skip > 0 {
                skip -= 1;
                continue;
            }
            timer.switch(PACK);
            let payload = pack(&rows, number, plan.payload_bytes_max)?;
            let made = (begun, Instant::now());
            let minibatch = Minibatch { pass, rows: rows.len() as u32, payload, made };
            timer.switch(FULL);
            if !lease_queue.offer(minibatch, stopped) {
                return Ok(());
            }
            number += 1;
            begun = Instant::now();
        }
        if stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        if skip > 0 {
            let reason = "pass has fewer rows than were used of it: the input has changed".to_owned();
            return Err(ServiceError::Minibatch { number, reason });
        }
        if !has_rows && (plan.hub.1 == 1 || pass == start.pass) {
            on_event(without_rows(plan, stopped)?);
        }
    }
    lease_queue.leases().end(plan.passes);
    Ok(())
}

/// The event that this hub has no rows while others that share the input may have some; an error if no hub has any.
fn without_rows(plan: &Plan, stopped: &AtomicBool) -> Result<Event, ServiceError> {
    let account = |bad_rows: &BadRows| (bad_rows.count(), bad_rows.messages().into_iter().next());
    let input = plan.inputs.join(", ");
    let (bad_rows, first_bad) = account(&plan.bad_rows);
    if plan.hub.1 == 1 {
        return Err(ServiceError::NoRows { input, bad_rows, first_bad });
    }
    // The other hubs' part of a stream went to them.
    if !plan.all.iter().any(|name| input::read_once(name)) {
        let mut reader = Reader::open(&plan.all, &plan.reading, &plan.encoder)?;
        let mut rows = plan.encoder.new_batch();
        while rows.is_empty() && !stopped.load(Ordering::Relaxed) {
            if !reader.next(&mut rows)? {
                let (bad_rows, first_bad) = account(reader.bad_rows());
                return Err(ServiceError::NoRows { input: plan.all.join(", "), bad_rows, first_bad });
            }
        }
    }
    Ok(Event::NoRows { share: plan.hub, input, bad_rows, first_bad })
}

fn pack(rows: &Rows<'_>, number: u64, bytes_max: usize) -> Result<Vec<u8>, ServiceError> {
    let mut payload = vec![0; packed_bytes_max(rows)];
    let bytes = pack_into(rows, &mut payload).map_err(|error| ServiceError::packed(number, &error))?;
    if bytes > bytes_max {
        let reason = format!("it is longer than a frame, {} (--frame-max)", in_units(bytes_max as u64));
        return Err(ServiceError::Minibatch { number, reason });
    }
    payload.truncate(bytes);
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::ServiceConfig;
    use crate::service::ack_set::AckSet;
    use crate::service::leases::{Answer, LeaseTable};

    use sanderling_wire::Subscribe;

    /// A trainer returns with a lease from before the restart and acknowledges it before anything is made.
    #[test]
    fn what_is_acknowledged_before_it_is_made_again_shifts_no_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.csv");
        let lines: String = (0..50).map(|row| format!("0,{row}\n")).collect();
        std::fs::write(&path, format!("label,id\n{lines}")).unwrap();
        let config = ServiceConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            inputs: vec![path.to_string_lossy().into_owned()],
            spec: toml::from_str("[[feature]]\nname = \"id\"\nkey = \"raw\"").unwrap(),
            batch: 10,
            passes: 1,
            shuffle: 0,
            ..ServiceConfig::default()
        };
        let (plan, start) = (config.plan().unwrap(), PassStart::default());
        let acked = AckSet::of(1, &[]).unwrap();
        let mut leases = LeaseTable::new(config.lease_limits(), 7, acked, start);
        let (trainer, held) = ("t", [1]);
        let subscribe = Subscribe { trainer, instance: 1, stream: 7, window: 8, rank: None, held: &held };
        assert!(leases.subscribe(1, &subscribe).unwrap().late.is_empty());
        assert_eq!(leases.next(1, false, &held), Some((Vec::new(), Answer::Nothing)));

        let lease_queue = LeaseQueue::new(leases);
        make(&plan, (start, 1), &lease_queue, &Stages::new(&SERVICE_STAGES), &Arc::default(), &|_| {})
            .unwrap();
        let mut leases = lease_queue.leases();
        for expected in 2..5 {
            let Some((_, Answer::Batch { number, batch })) = leases.next(1, true, &[]) else {
                panic!("none")
            };
            let mut buffer = sanderling_sample::PackedBuffer::default();
            buffer.resize(batch.payload.len()).copy_from_slice(&batch.payload);
            let rows = sanderling_sample::PackedBatch::parse(buffer).unwrap();
            assert_eq!((number, rows.rows().keys(0)[0]), (expected, 10 * expected));
        }
    }
}
