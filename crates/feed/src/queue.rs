//! The queue: threads that each read a minibatch, look it up and put it in line for the trainer, in the order of the input
//! or as they come. Bounded in minibatches and bytes; an error of any thread is told to whoever takes the next one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use sanderling_hub::{Feed, Pass, PassOptions, STAGES};
use sanderling_observe::{LatencySummary, StageTimer, Stages};
use sanderling_sample::BadRows;

use crate::embedding::Embedding;
use crate::error::FeedError;
use crate::looked_up::LookedUp;
use crate::recycle::{Recycled, Recycler};
use crate::sampled::Sampled;
use crate::source::Source;
use crate::statistics::{Account, Accounts, FeedStatistics};

/// Minibatches that may be ready.
pub const DEPTH_MAX: usize = 4096;
/// Threads of one queue.
pub const THREADS_MAX: usize = 64;

/// What may be chosen.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Samples of a minibatch.
    pub batch_rows: usize,
    /// Times that the input is gone through.
    pub passes: u64,
    /// Threads that read and look up.
    pub threads: usize,
    /// Minibatches that may be ready, at most [`DEPTH_MAX`].
    pub depth: usize,
    /// Bytes of ready minibatches, with their rows, beyond which nothing more is begun.
    pub depth_bytes: usize,
    /// Whether minibatches come in the order of the input, whatever the number of threads.
    pub ordered: bool,
    /// Rows of the shuffle buffer; 0 keeps the input's order.
    pub shuffle: usize,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Of every `ranks` minibatches this queue takes one, the one with this number. Needs an order.
    pub rank: u64,
    /// How many queues share the input.
    pub ranks: u64,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions {
            batch_rows: 1024,
            passes: 1,
            threads: 2,
            depth: 8,
            depth_bytes: 1 << 30,
            ordered: true,
            shuffle: 0,
            seed: 0,
            rank: 0,
            ranks: 1,
        }
    }
}

impl QueueOptions {
    fn check(&self) -> Result<(), FeedError> {
        let within = |option: &'static str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let reason = format!("{value}: {least} to {most} are possible");
            Err(FeedError::Option { option, reason })
        };
        within("batch_size", self.batch_rows as u64, 1, 1 << 24)?;
        within("passes", self.passes, 1, u64::MAX)?;
        within("threads", self.threads as u64, 1, THREADS_MAX as u64)?;
        within("depth", self.depth as u64, 1, DEPTH_MAX as u64)?;
        within("depth_bytes", self.depth_bytes as u64, 1, u64::MAX)?;
        within("ranks", self.ranks, 1, u64::MAX)?;
        within("rank", self.rank, 0, self.ranks - 1)?;
        if self.ranks > 1 && !self.ordered {
            let reason = "several ranks share an input by the order of its minibatches".to_owned();
            return Err(FeedError::Option { option: "ordered", reason });
        }
        Ok(())
    }
}

/// What the trainer takes: a minibatch, looked up if the queue has tables.
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

/// Minibatches in line, and the threads that see to it that there are some.

pub struct FeedQueue {
    shared: Arc<Shared>,
    account: Account,
    threads: Option<JoinHandle<()>>,
}

struct Shared {
    options: QueueOptions,
    source: Source,
    bad_rows: Arc<BadRows>,
    embedding: Option<Arc<Embedding>>,
    line: Mutex<Line>,
    changed: Condvar,
    sampled: Arc<Recycler<Sampled>>,
    accounts: Accounts,
    stages: Stages,
    started: Instant,
    /// Numbers of minibatches.
    read: AtomicU64,
    /// The pass under way.
    pass: Mutex<Option<Arc<Pass>>>,
}

/// What is ready, by its number among those of this queue.
#[derive(Debug, Default)]
struct Line {
    ready: BTreeMap<u64, (Fed, usize)>,
    ready_bytes: usize,
    /// Begun and not yet ready.
    begun: usize,
    /// The number that is next, in order.
    next: u64,
    failed: Option<FeedError>,
    ended: bool,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room; false when nothing more is wanted.
    fn begin(&self, account: &Account) -> bool {
        let since = Instant::now();
        let mut line = self.lock();
        while !line.closed
            && line.failed.is_none()
            && (line.ready.len() + line.begun >= self.options.depth.max(1)
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
    fn put(&self, result: Result<Option<(u64, Fed)>, FeedError>) {
        let mut line = self.lock();
        line.begun -= 1;
        match result {
            Ok(Some((number, fed))) => {
                let bytes = bytes(&fed);
                line.ready_bytes += bytes;
                line.ready.insert(number, (fed, bytes));
            }
            Ok(None) => {}
            Err(error) => line.failed = line.failed.take().or(Some(error)),
        }
        drop(line);
        self.changed.notify_all();
    }

    /// Goes through the input as often as is wanted.
    fn run(&self) {
        for number in 0..self.options.passes {
            if self.lock().closed {
                break;
            }
            if let Err(error) = self.pass(number) {
                let mut line = self.lock();
                line.failed = line.failed.take().or(Some(error));
            }
            if self.lock().failed.is_some() {
                break;
            }
        }
    }

    fn pass(&self, number: u64) -> Result<(), FeedError> {
        let QueueOptions { threads, ordered, shuffle, seed, .. } = self.options;
        let workers = if ordered { 1 } else { threads };
        let options = PassOptions { shuffle, seed, number, workers, used_rows: 0 };
        let Source { inputs, data, encoder, .. } = &self.source;
        let pass = Arc::new(Pass::open(inputs, data, encoder, &self.bad_rows, options)?);
        *self.pass.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&pass));
        if self.lock().closed {
            return Ok(());
        }
        let one = ordered.then(|| InOrder::new(pass.feed_ahead(self.stages.timer())));
        let died = std::thread::scope(|scope| {
            let (pass, one) = (&pass, &one);
            let work = move || match one {
                Some(one) => self.work(number, &mut |timer, sampled| one.next(self, timer, sampled)),
                None => {
                    let mut feed = pass.feed();
                    self.work(number, &mut |timer, sampled| self.next(&mut feed, timer, sampled));
                }
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().is_err()).fold(false, |any, died| any | died)
        });
        if died { Err(FeedError::Died("read")) } else { Ok(()) }
    }

    /// One thread's share of a pass: samples, rows, in line.
    fn work(
        &self,
        number: u64,
        next: &mut dyn FnMut(&mut StageTimer, &mut Sampled) -> Result<Option<u64>, FeedError>,
    ) {
        let (account, mut timer) = (self.accounts.open(), self.stages.timer());
        while self.begin(&account) {
            let since = Instant::now();
            let (names, encoder) = (&self.source.names, &self.source.encoder);
            let new = || Sampled { names: Arc::clone(names), batch: encoder.new_batch(), number: 0, pass: 0 };
            let mut sampled = self.sampled.take(new);
            sampled.pass = number;
            let read = next(&mut timer, &mut sampled);
            timer.stop();
            let at = match read {
                Ok(Some(at)) => at,
                end => {
                    self.put(end.map(|_| None));
                    break;
                }
            };
            let rows = sampled.batch.len() as u64;
            account.note(|measured| {
                measured.read_sample.record(since.elapsed());
                measured.rows += rows;
            });
            let sampled = Arc::new(sampled);
            let fed = match &self.embedding {
                None => Ok(Fed::Sampled(sampled)),
                Some(embedding) => {
                    let since = Instant::now();
                    let looked_up = embedding.look_up(sampled);
                    account.note(|measured| measured.embedding_lookup.record(since.elapsed()));
                    looked_up.map(|looked_up| Fed::LookedUp(Box::new(looked_up)))
                }
            };
            self.put(fed.map(|fed| Some((at, fed))));
        }
    }

    /// The next minibatch of a feed; its number.
    fn next(
        &self,
        feed: &mut Feed<'_>,
        timer: &mut StageTimer,
        sampled: &mut Sampled,
    ) -> Result<Option<u64>, FeedError> {
        let Some(rows) = feed.next(self.options.batch_rows, timer)? else { return Ok(None) };
        sampled.batch.clear();
        sampled.batch.append(&rows);
        let number = self.read.fetch_add(1, Ordering::Relaxed);
        sampled.number = number;
        Ok(Some(number))
    }
}

/// The one feed of a pass whose order is kept, shared by all threads.
struct InOrder<'a>(Mutex<(Feed<'a>, u64)>);

impl<'a> InOrder<'a> {
    fn new(feed: Feed<'a>) -> InOrder<'a> {
        InOrder(Mutex::new((feed, 0)))
    }

    /// The next minibatch of this rank.
    fn next(
        &self,
        shared: &Shared,
        timer: &mut StageTimer,
        sampled: &mut Sampled,
    ) -> Result<Option<u64>, FeedError> {
        let mut locked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (feed, of_all) = &mut *locked;
        let QueueOptions { batch_rows, rank, ranks, .. } = shared.options;
        loop {
            let number = *of_all;
            *of_all += 1;
            if number % ranks == rank {
                return shared.next(feed, timer, sampled);
            }
            if feed.next(batch_rows, timer)?.is_none() {
                return Ok(None);
            }
        }
    }
}

/// Memory behind a minibatch and its rows.
fn bytes(fed: &Fed) -> usize {
    match fed {
        Fed::Sampled(sampled) => sampled.batch.bytes(),
        Fed::LookedUp(looked_up) => looked_up.bytes(),
    }
}

impl FeedQueue {
    /// Starts reading. With tables, minibatches come looked up.
    ///
    /// # Errors
    /// Impossible options, and a feature of the tables that the data does not have. What goes wrong with the input is said
    /// by [`FeedQueue::next`].
    pub fn open(
        source: Source,
        embedding: Option<Arc<Embedding>>,
        options: QueueOptions,
    ) -> Result<FeedQueue, FeedError> {
        options.check()?;
        if let Some(embedding) = &embedding {
            embedding.columns(&source.names)?;
        }
        let shared = Arc::new(Shared {
            bad_rows: Arc::new(BadRows::new(source.data.on_bad_row)),
            sampled: Recycler::new(options.depth + options.threads + 8),
            options,
            source,
            embedding,
            line: Mutex::default(),
            changed: Condvar::new(),
            accounts: Accounts::default(),
            stages: Stages::new(&STAGES),
            started: Instant::now(),
            read: AtomicU64::new(0),
            pass: Mutex::default(),
        });
        let running = Arc::clone(&shared);
        let threads = std::thread::spawn(move || {
            running.run();
            running.lock().ended = true;
            running.changed.notify_all();
        });
        Ok(FeedQueue { account: shared.accounts.open(), shared, threads: Some(threads) })
    }

    /// Names of the columns of its minibatches.
    #[must_use]
    pub fn names(&self) -> &Arc<[String]> {
        &self.shared.source.names
    }

    /// The spec as it is used, fitted boundaries included.
    #[must_use]
    pub fn spec(&self) -> &sanderling_sample::Spec {
        self.shared.source.spec()
    }

    /// The next minibatch; None at the end of the last pass. Waits for it.
    pub fn next(&self) -> Result<Option<Fed>, FeedError> {
        let since = Instant::now();
        let shared = &self.shared;
        let mut line = shared.lock();
        let fed = loop {
            let next = if shared.options.ordered {
                let next = line.next;
                line.ready.remove(&next)
            } else {
                line.ready.pop_first().map(|(_, fed)| fed)
            };
            if let Some((fed, bytes)) = next {
                line.next += 1;
                line.ready_bytes -= bytes;
                break fed;
            }
            // What was read before an error is handed out before it.
            if line.begun == 0 {
                if let Some(error) = line.failed.take() {
                    line.closed = true;
                    return Err(error);
                }
                if line.ended || line.closed {
                    return Ok(None);
                }
            }
            line = shared.changed.wait(line).unwrap_or_else(PoisonError::into_inner);
        };
        drop(line);
        shared.changed.notify_all();
        self.account.note(|measured| measured.queue_empty.record(since.elapsed()));
        Ok(Some(fed))
    }

    /// What it has done so far.
    #[must_use]
    pub fn statistics(&self) -> FeedStatistics {
        let shared = &self.shared;
        let pushes = shared.embedding.as_ref();
        let push_grad = pushes.map_or_else(LatencySummary::default, |embedding| embedding.push_latency());
        let ready = shared.lock().ready.len();
        let (elapsed, threads) = (shared.started.elapsed(), shared.options.threads);
        let stages = shared.stages.totals();
        FeedStatistics::new(&shared.accounts.total(), push_grad, elapsed, threads, ready, stages)
    }

    /// Reads no more and forgets what is ready; the next minibatch is none.
    pub fn close(&self) {
        let mut line = self.shared.lock();
        line.closed = true;
        line.ready.clear();
        line.ready_bytes = 0;
        drop(line);
        self.shared.changed.notify_all();
        // Whoever waits for a silent input is told, too.
        if let Some(pass) = &*self.shared.pass.lock().unwrap_or_else(PoisonError::into_inner) {
            pass.stop();
        }
    }
}

impl Drop for FeedQueue {
    fn drop(&mut self) {
        self.close();
        if let Some(threads) = self.threads.take() {
            let _ = threads.join();
        }
    }
}
