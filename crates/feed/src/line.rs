//! The minibatches that wait for the trainer, and the work of each thread: wait for room, read, look up. Bounded in
//! minibatches and bytes; an error of a thread comes after the minibatches read before it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sanderling_observe::{LatencySummary, Stages, spans};
use sanderling_sample::Batch;

use crate::embedding::Embedding;
use crate::error::FeedError;
use crate::looked_up::LookedUp;
use crate::lookup_place::LookupPlace;
use crate::options::QueueOptions;
use crate::reader::{Read, Reader};
use crate::recycle::{Recycled, Recycler};
use crate::sampled::Sampled;
use crate::statistics::{Account, Accounts, FeedStatistics};
use crate::ticket::Ticket;
use crate::wait::wait_or_stop;

/// Minibatches beyond those in line whose memory is kept: those that the trainer holds.
const KEPT: usize = 8;

/// A minibatch for the trainer, looked up if the queue has tables.
#[derive(Debug)]
pub enum Fed {
    /// Samples alone.
    Sampled(Arc<Recycled<Sampled>>),
    /// Samples and rows.
    LookedUp(Box<LookedUp>),
}

impl Fed {
    /// The samples.
    #[must_use]
    pub fn sampled(&self) -> &Arc<Recycled<Sampled>> {
        match self {
            Fed::Sampled(sampled) => sampled,
            Fed::LookedUp(looked_up) => looked_up.sampled(),
        }
    }
}

/// State shared by the threads of a queue and the trainer.
pub(crate) struct Shared {
    options: QueueOptions,
    pub(crate) names: Arc<[String]>,
    pub(crate) reader: Reader,
    pub(crate) embedding: Option<Arc<Embedding>>,
    lookup_place: LookupPlace,
    line: Mutex<Line>,
    changed: Condvar,
    sampled: Arc<Recycler<Sampled>>,
    pub(crate) accounts: Accounts,
    stages: Stages,
    started: Instant,
}

/// The ready minibatches, by their numbers in this queue.
#[derive(Debug, Default)]
struct Line {
    ready: BTreeMap<u64, Ready>,
    /// Numbers of which there is no minibatch, if they are handed out in order, as it became another trainer's before it was looked up.
    gone: BTreeSet<u64>,
    ready_bytes: usize,
    /// Begun and not yet ready.
    begun: usize,
    /// The number that is next, in order.
    next: u64,
    failed: Option<FeedError>,
    ended: bool,
    closed: bool,
}

impl Line {
    /// Counts on to the next number of which there is, or will be, a minibatch.
    fn pass_over_gone(&mut self) {
        while self.gone.remove(&self.next) {
            self.next += 1;
        }
    }
}

/// A minibatch in line.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) fed: Fed,
    bytes: usize,
    pub(crate) ticket: Option<Arc<Ticket>>,
}

/// A minibatch that was begun. One whose thread has panicked is awaited no more, and the error is said.
struct Begun<'a>(&'a Shared);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.put(Err(FeedError::Died("read")));
        }
    }
}

impl Shared {
    /// Threads begin with [`Shared::run`].
    pub(crate) fn new(
        names: Arc<[String]>,
        reader: Reader,
        embedding: Option<Arc<Embedding>>,
        options: QueueOptions,
        stages: Stages,
    ) -> Shared {
        Shared {
            sampled: Recycler::new(options.depth + options.threads + KEPT),
            options,
            names,
            reader,
            embedding,
            lookup_place: LookupPlace::default(),
            line: Mutex::default(),
            changed: Condvar::new(),
            accounts: Accounts::default(),
            stages,
            started: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for news. Fails if the one who waits is to stop, which ends nothing else.
    fn wait_or_stop<'a>(&'a self, line: MutexGuard<'a, Line>) -> Result<MutexGuard<'a, Line>, FeedError> {
        let of_servers = self.embedding.as_ref().and_then(|embedding| embedding.stop());
        let stop = self.options.stop.as_ref().or(of_servers);
        wait_or_stop(&self.line, &self.changed, line, stop, "a minibatch was waited for")
    }

    /// Waits for room; false when nothing more is wanted.
    fn begin(&self, account: &Account) -> bool {
        let since = Instant::now();
        let mut line = self.lock();
        while !line.closed
            && line.failed.is_none()
            && (line.ready.len() + line.begun >= self.options.depth
                || line.ready_bytes >= self.options.depth_bytes)
        {
            line = self.changed.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        if line.closed || line.failed.is_some() {
            return false;
        }
        line.begun += 1;
        drop(line);
        account.note(|measured| measured.queue_full.record(since.elapsed()));
        true
    }

    /// A minibatch that was begun is ready, or there was none.
    fn put(&self, result: Result<Option<(u64, Ready)>, FeedError>) {
        if result.is_err() {
            // Nothing more is wanted.
            self.reader.close();
        }
        let mut line = self.lock();
        line.begun -= 1;
        match result {
            Ok(Some(_)) if line.closed => {}
            Ok(Some((number, ready))) => {
                line.ready_bytes += ready.bytes;
                line.ready.insert(number, ready);
            }
            Ok(None) => {}
            Err(error) => line.failed = line.failed.take().or(Some(error)),
        }
        drop(line);
        self.changed.notify_all();
    }

    /// Reads and looks up until the end.
    pub(crate) fn run(&self) {
        let ran = self.reader.run(&self.options, &|read| self.work(read));
        let mut line = self.lock();
        if let Err(error) = ran {
            line.failed = line.failed.take().or(Some(error));
        }
        line.ended = true;
        drop(line);
        self.changed.notify_all();
    }

    /// One thread's share: samples, rows, in line.
    fn work(&self, read: &mut Read<'_>) {
        let (account, mut timer) = (self.accounts.open(), self.stages.timer());
        while self.begin(&account) {
            let _begun = Begun(self);
            let since = Instant::now();
            let mut sampled = self.sampled.take(|| {
                let names = Arc::clone(&self.names);
                Sampled { samples: self.reader.empty(), ..Sampled::new(names, Batch::new(&[])) }
            });
            let read = read(&mut sampled, &mut timer);
            timer.stop();
            let (at, ticket) = match read {
                Ok(Some(read)) => read,
                end => {
                    self.put(end.map(|_| None));
                    break;
                }
            };
            let rows = sampled.rows().len() as u64;
            account.note(|measured| {
                measured.read_sample.record(since.elapsed());
                measured.rows += rows;
            });
            let is_left = self.embedding.as_ref().is_some_and(|embedding| embedding.is_small());
            let is_left = is_left && self.lookup_place.is_trainer();
            let sampled = Arc::new(sampled);
            let span = ticket.as_ref().and_then(|ticket| ticket.span());
            let fed = match is_left {
                true => Ok(Fed::Sampled(sampled)),
                false => spans::within(span, || self.look_up(sampled, &account)),
            };
            if let (Some(ticket), Ok(Fed::LookedUp(_))) = (&ticket, &fed) {
                ticket.note_lookup();
            }
            if let Err(FeedError::Late { .. }) = fed {
                // The trainer uses it.
                if self.options.ordered {
                    self.lock().gone.insert(at);
                }
                self.put(Ok(None));
                continue;
            }
            self.put(fed.map(|fed| Some((at, Ready { bytes: bytes(&fed), fed, ticket }))));
        }
    }

    fn look_up(&self, sampled: Arc<Recycled<Sampled>>, account: &Account) -> Result<Fed, FeedError> {
        let Some(embedding) = &self.embedding else { return Ok(Fed::Sampled(sampled)) };
        let since = Instant::now();
        let looked_up = embedding.look_up(sampled)?;
        account.note(|measured| measured.embedding_lookup.record(since.elapsed()));
        Ok(Fed::LookedUp(Box::new(looked_up)))
    }

    /// Looks a minibatch up that the queue's threads have left to the trainer, who calls this.
    pub(crate) fn look_up_left(&self, fed: Fed, account: &Account) -> Result<Fed, FeedError> {
        let is_left = self.embedding.is_some() && matches!(fed, Fed::Sampled(_));
        let fed = match fed {
            Fed::Sampled(sampled) if is_left => self.look_up(sampled, account)?,
            fed => fed,
        };
        self.lookup_place.note(is_left, Instant::now());
        Ok(fed)
    }

    /// Takes the next minibatch; None at the end. Waits for it.
    pub(crate) fn take(&self) -> Result<Option<Ready>, FeedError> {
        let mut line = self.lock();
        loop {
            line.pass_over_gone();
            let next = if self.options.ordered {
                let next = line.next;
                line.ready.remove(&next)
            } else {
                line.ready.pop_first().map(|(_, ready)| ready)
            };
            if let Some(ready) = next {
                line.next += 1;
                line.ready_bytes -= ready.bytes;
                drop(line);
                self.changed.notify_all();
                return Ok(Some(ready));
            }
            // Minibatches read before an error are handed out before it.
            if line.begun == 0 {
                if let Some(error) = line.failed.take() {
                    line.closed = true;
                    return Err(error);
                }
                if line.ended || line.closed {
                    return Ok(None);
                }
            }
            line = self.wait_or_stop(line)?;
        }
    }

    /// Reads no more, and forgets what is ready.
    pub(crate) fn close(&self) {
        let mut line = self.lock();
        line.closed = true;
        line.ready.clear();
        line.ready_bytes = 0;
        drop(line);
        self.changed.notify_all();
        self.reader.close();
    }

    /// The statistics so far.
    pub(crate) fn statistics(&self) -> FeedStatistics {
        let pushes = self.embedding.as_ref();
        let push_grad = pushes.map_or_else(LatencySummary::default, |embedding| embedding.push_latency());
        let pooled_at = pushes.map(|embedding| embedding.pooled_at()).unwrap_or_default();
        let ready = self.lock().ready.len();
        let (elapsed, threads) = (self.started.elapsed(), self.options.threads);
        let stages = self.stages.totals();
        let measured = self.accounts.total();
        let statistics =
            FeedStatistics::new(&measured, push_grad, pooled_at, elapsed, threads, ready, stages);
        let bad_rows = self.reader.bad_rows();
        FeedStatistics { bad_rows: bad_rows.count(), bad_row_messages: bad_rows.messages(), ..statistics }
    }
}

/// Memory behind a minibatch and its rows.
fn bytes(fed: &Fed) -> usize {
    match fed {
        Fed::Sampled(sampled) => sampled.bytes(),
        Fed::LookedUp(looked_up) => looked_up.bytes(),
    }
}

#[cfg(test)]
mod tests {
    use sanderling_formats::DataConfig;
    use sanderling_loader::STAGES;
    use sanderling_sample::Spec;

    use super::*;
    use crate::source::Source;

    /// In order, the others would fill the line and wait for its minibatch.
    #[test]
    fn a_thread_that_panics_ends_the_line_and_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.svm");
        std::fs::write(&path, "1 1:1\n").expect("a file");
        let files = vec![path.display().to_string()];
        let source = Source::files(files, DataConfig::default(), &Spec::default(), true).expect("a source");
        let stages = Stages::new(&STAGES);
        let options = QueueOptions { ordered: true, ..QueueOptions::default() };
        let reader = Reader::new(source.kind, stages.clone());
        let shared = Shared::new(source.names, reader, None, options, stages);
        std::thread::scope(|scope| {
            let dies = scope.spawn(|| shared.work(&mut |_, _| panic!("a defect")));
            assert!(matches!(shared.take(), Err(FeedError::Died("read"))));
            assert!(dies.join().is_err());
        });
        assert!(matches!(shared.take(), Ok(None)), "nothing is awaited any more");
    }
}
