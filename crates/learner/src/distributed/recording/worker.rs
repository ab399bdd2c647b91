//! One worker of a recorded or replayed job: its pulls and pushes, with the versions of rows. Knows no model.

use sanderling_client::{ClientError, Lookup};
use sanderling_sample::Rows;
use sanderling_store::{CheckedPush, PushClock, PushScale, RowVersions, StoreError, is_newer_version};

use super::digest::of_rows;
use super::minibatch::{Minibatch, TableOrder};
use super::recorder::Recorder;
use super::replayer::Replayer;
use super::versioned_pull::VersionedPull;
use super::{Order, damaged_order};
use crate::error::LearnError;

/// Fails once the job is to end.
type Check<'a> = &'a dyn Fn() -> Result<(), LearnError>;

/// Distinct keys of a table, how often each occurs, and their gradients.
type Gradients<'a> = (&'a [u64], &'a [u32], &'a [f32]);

/// A worker, with everything it reuses from minibatch to minibatch.
pub(in crate::distributed) struct OrderedWorker<'a> {
    order: &'a Order,
    worker: u32,
    /// Number of the next minibatch in the pass.
    number: u64,
    /// The entry that is recorded or replayed.
    entry: Minibatch,
    pull: VersionedPull,
    part: Part,
    /// Per table, positions of the keys that have yet to be pulled, or pushed.
    left: Vec<Vec<u32>>,
    reported: RowVersions,
    bytes: Vec<u8>,
}

/// Some keys of a table, with what belongs to them.
#[derive(Debug, Default)]
struct Part {
    positions: Vec<u32>,
    keys: Vec<u64>,
    counts: Vec<u32>,
    versions: Vec<u32>,
    floats: Vec<f32>,
    later: Vec<u32>,
    /// Versions that an overtaken pull has read.
    read: Vec<(u64, u32)>,
}

impl<'a> OrderedWorker<'a> {
    pub(in crate::distributed) fn new(order: &'a Order, worker: u32) -> OrderedWorker<'a> {
        let tables = match order {
            Order::Record(recorder) => recorder.tables.len(),
            Order::Replay(replayer) => replayer.tables.len(),
        };
        OrderedWorker {
            order,
            worker,
            number: 0,
            entry: Minibatch { worker, tables: vec![TableOrder::default(); tables], ..Minibatch::default() },
            pull: VersionedPull::default(),
            part: Part::default(),
            left: vec![Vec::new(); tables],
            reported: RowVersions::default(),
            bytes: Vec::new(),
        }
    }

    /// Pulls the rows of a minibatch's distinct keys into `lookup`.
    pub(in crate::distributed) fn pull(
        &mut self,
        rows: &Rows<'_>,
        lookup: &mut Lookup,
        check: Check<'_>,
    ) -> Result<(), LearnError> {
        match self.order {
            Order::Record(recorder) => {
                recorder.begin(self.worker, check)?;
                self.pull_and_note(recorder, rows, lookup)
            }
            Order::Replay(replayer) => self.pull_in_order(replayer, rows, lookup, check),
        }
    }

    /// Pushes the gradients that were added up in `lookup` since the pull.
    pub(in crate::distributed) fn push(
        &mut self,
        lookup: &mut Lookup,
        scale: PushScale,
        check: Check<'_>,
    ) -> Result<(), LearnError> {
        match self.order {
            Order::Record(recorder) => self.push_and_note(recorder, lookup, scale)?,
            Order::Replay(replayer) => self.push_in_order(replayer, lookup, scale, check)?,
        }
        self.number += 1;
        Ok(())
    }

    /// Notes that the worker is about to wait for others by itself.
    pub(in crate::distributed) fn pause(&self) {
        if let Order::Record(recorder) = self.order {
            recorder.pause(self.worker);
        }
    }

    /// Ends the worker's pass.
    pub(in crate::distributed) fn end_pass(&mut self) -> Result<(), LearnError> {
        self.number = 0;
        match self.order {
            Order::Record(recorder) => recorder.end_pass(self.worker),
            Order::Replay(replayer) => replayer.end_pass(self.worker),
        }
    }

    fn pull_and_note(
        &mut self,
        recorder: &Recorder,
        rows: &Rows<'_>,
        lookup: &mut Lookup,
    ) -> Result<(), LearnError> {
        lookup.number(rows);
        (self.entry.number, self.entry.digest) = (self.number, of_rows(rows));
        let tables = recorder.tables.iter().zip(lookup.keys_and_rows()).zip(&mut self.entry.tables);
        for ((table, (keys, out)), order) in tables {
            self.pull.pull(table, keys, out, &mut order.pulled)?;
        }
        Ok(())
    }

    fn push_and_note(
        &mut self,
        recorder: &Recorder,
        lookup: &mut Lookup,
        scale: PushScale,
    ) -> Result<(), LearnError> {
        let all: Vec<Gradients<'_>> = lookup.gradients().collect();
        // All gradients are checked before any is applied.
        let pushes = recorder.tables.iter().zip(&all);
        let pushes =
            pushes.map(|(table, (keys, counts, grads))| table.check_push(keys, counts, grads, scale));
        let pushes = pushes.collect::<Result<Vec<CheckedPush<'_>>, StoreError>>().map_err(of_store)?;
        for ((push, (keys, ..)), order) in pushes.iter().zip(&all).zip(&mut self.entry.tables) {
            order.clock = 0;
            if !push.is_empty() {
                let clock = push.table().count_push();
                push.apply_and_report(clock, &mut self.reported).map_err(of_store)?;
                order.clock = clock.reading();
            }
            let versions = if push.is_empty() { &[][..] } else { &self.reported.versions };
            if let Some(at) = order.set_pushed(keys, versions) {
                let (table, key) = (push.table().name(), keys[at]);
                return Err(damaged_order(
                    recorder.path(),
                    table,
                    key,
                    "its row was not updated, or has more updates than a recording can count",
                ));
            }
        }
        self.entry.encode(&mut self.bytes);
        recorder.append(self.worker, &self.bytes)
    }

    fn pull_in_order(
        &mut self,
        replayer: &Replayer,
        rows: &Rows<'_>,
        lookup: &mut Lookup,
        check: Check<'_>,
    ) -> Result<(), LearnError> {
        self.entry = replayer.next(self.worker)?.minibatch;
        if (self.entry.number, self.entry.digest) != (self.number, of_rows(rows)) {
            let reason = format!(
                "minibatch {} of worker {} has other rows than in the recording: the input differs",
                self.number + 1,
                self.worker
            );
            return Err(replayer.error(reason));
        }
        lookup.number(rows);
        let mut tables: Vec<(&[u64], &mut [f32])> = lookup.keys_and_rows().collect();
        for ((order, (keys, _)), left) in self.entry.tables.iter().zip(&tables).zip(&mut self.left) {
            if order.pulled.len() != keys.len() {
                return Err(replayer.error("a minibatch has another number of keys than in the recording"));
            }
            left.clear();
            left.extend(0..keys.len() as u32);
        }
        loop {
            let (seen, mut read) = (replayer.changes(), 0);
            for (table, (keys, out)) in tables.iter_mut().enumerate() {
                read += self.read_ready(replayer, table, keys, out)?;
            }
            replayer.change(read);
            if self.left.iter().all(Vec::is_empty) {
                return Ok(());
            }
            replayer.wait(seen, check)?;
        }
    }

    /// Pulls the keys of a table whose rows have the recorded versions. Returns how many of them others wait for.
    fn read_ready(
        &mut self,
        replayer: &Replayer,
        number: usize,
        keys: &[u64],
        out: &mut [f32],
    ) -> Result<usize, LearnError> {
        let (table, order) = (&replayer.tables[number], &self.entry.tables[number]);
        let (left, part, dim) = (&mut self.left[number], &mut self.part, table.dim());
        if left.is_empty() {
            return Ok(0);
        }
        part.keys.clear();
        part.keys.extend(left.iter().map(|&at| keys[at as usize]));
        part.floats.resize(part.keys.len() * dim, 0.0);
        self.pull.pull(table, &part.keys, &mut part.floats, &mut part.versions)?;
        part.read.clear();
        let (mut kept, mut passed) = (0, None);
        for at in 0..left.len() {
            let position = left[at];
            let (to, found) = (position as usize, part.versions[at]);
            let expected = order.pulled[to];
            if found == expected || !replayer.waits {
                out[to * dim..][..dim].copy_from_slice(&part.floats[at * dim..][..dim]);
                if order.pushed[to] - expected > 1 {
                    part.read.push((keys[to], expected));
                }
                continue;
            }
            if is_newer_version(found, expected) {
                passed.get_or_insert((keys[to], found, expected));
            }
            left[kept] = position;
            kept += 1;
        }
        left.truncate(kept);
        replayer.have_read(number, &part.read);
        match passed {
            Some((key, found, expected)) => Err(replayer.error(format!(
                "table {:?}, key {key}: its row has version {found}, and the recorded pull saw {expected}: it is not the \
                 recording of this run",
                table.name()
            ))),
            None => Ok(part.read.len()),
        }
    }

    fn push_in_order(
        &mut self,
        replayer: &Replayer,
        lookup: &mut Lookup,
        scale: PushScale,
        check: Check<'_>,
    ) -> Result<(), LearnError> {
        let all: Vec<Gradients<'_>> = lookup.gradients().collect();
        for (number, (keys, counts, grads)) in all.iter().enumerate() {
            let table = &replayer.tables[number];
            table.check_push(keys, counts, grads, scale).map_err(of_store)?;
            if !keys.is_empty() {
                table.count_push();
            }
            self.left[number].clear();
            self.left[number].extend(0..keys.len() as u32);
        }
        loop {
            let (seen, mut pushed) = (replayer.changes(), 0);
            for (table, gradients) in all.iter().enumerate() {
                pushed += self.push_ready(replayer, table, *gradients, scale)?;
            }
            replayer.change(pushed);
            if self.left.iter().all(Vec::is_empty) {
                replayer.count();
                return Ok(());
            }
            replayer.wait(seen, check)?;
        }
    }

    /// Pushes the keys of a table whose rows are ready. Returns how many.
    fn push_ready(
        &mut self,
        replayer: &Replayer,
        number: usize,
        (keys, counts, grads): Gradients<'_>,
        scale: PushScale,
    ) -> Result<usize, LearnError> {
        let (table, order) = (&replayer.tables[number], &self.entry.tables[number]);
        let (left, part, dim) = (&mut self.left[number], &mut self.part, table.dim());
        let clock = PushClock::of_reading(order.clock);
        if !replayer.waits {
            let push = table.check_push(keys, counts, grads, scale).map_err(of_store)?;
            push.apply_part(0..keys.len(), clock).map_err(of_store)?;
            return Ok(std::mem::take(left).len());
        }
        part.positions.clone_from(left);
        replayer.keep_free(number, keys, &order.pushed, &mut part.positions);
        if part.positions.is_empty() {
            return Ok(0);
        }
        part.keys.clear();
        part.counts.clear();
        part.versions.clear();
        part.floats.clear();
        for &at in &part.positions {
            let at = at as usize;
            part.keys.push(keys[at]);
            part.counts.push(counts[at]);
            part.versions.push(order.pushed[at]);
            part.floats.extend_from_slice(&grads[at * dim..][..dim]);
        }
        part.later.clear();
        let push = table.check_push(&part.keys, &part.counts, &part.floats, scale).map_err(of_store)?;
        push.apply_in_order(&part.versions, clock, &mut part.later).map_err(of_store)?;
        let pushed = part.positions.len() - part.later.len();
        // From here on `positions` are those of pushed keys.
        part.later.sort_unstable();
        let mut later = part.later.iter().map(|&at| at as usize).peekable();
        let mut at = 0;
        part.positions.retain(|_| {
            at += 1;
            later.next_if_eq(&(at - 1)).is_none()
        });
        let mut done = part.positions.iter().copied().peekable();
        left.retain(|&position| done.next_if_eq(&position).is_none());
        Ok(pushed)
    }
}

fn of_store(error: StoreError) -> LearnError {
    LearnError::Client(ClientError::Store(error))
}
