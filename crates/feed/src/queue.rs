//! The queue: threads that each read a minibatch, look it up and put it in line for the trainer, in the order of the input
//! or as they come. Bounded in minibatches and bytes; an error of any thread is told to whoever takes the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_hub::{STAGES, Served};
use sanderling_observe::{LatencySummary, Stages};
use sanderling_sample::{Batch, DataConfig, Spec};

use crate::embedding::Embedding;
use crate::error::FeedError;
use crate::looked_up::LookedUp;
use crate::reader::{Read, Reader};
use crate::recycle::{Recycled, Recycler};
use crate::sampled::Sampled;
use crate::source::Source;
use crate::statistics::{Account, Accounts, FeedStatistics};
use crate::ticket::Ticket;

/// Minibatches that may be ready.
pub const DEPTH_MAX: usize = 4096;
/// Threads of one queue.
pub const THREADS_MAX: usize = 64;
/// How often the trainer that waits looks whether to stop.
const LOOK: Duration = Duration::from_millis(200);
/// Minibatches beyond those in line whose memory is kept: those that the trainer holds.
const KEPT: usize = 8;

/// Why a queue without tables cannot take what a hub feeds.
const NO_TABLES: &str = "this queue looks nothing up; give it an embedding over tables on those servers";

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
    /// Rows of the first pass, of all ranks together, that were used before and are passed over. Needs an order.
    pub used_rows: u64,
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
            used_rows: 0,
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
        for (is_set, what) in [
            (self.ranks > 1, "several ranks share an input by the order of its minibatches"),
            (self.used_rows > 0, "which rows were used before, only an order says"),
        ] {
            if is_set && !self.ordered {
                return Err(FeedError::Option { option: "ordered", reason: what.to_owned() });
            }
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
    /// What the trainer works on: used up when it asks for the next one.
    in_hand: Mutex<Option<Arc<Ticket>>>,
}

struct Shared {
    options: QueueOptions,
    names: Arc<[String]>,
    reader: Reader,
    embedding: Option<Arc<Embedding>>,
    line: Mutex<Line>,
    changed: Condvar,
    sampled: Arc<Recycler<Sampled>>,
    accounts: Accounts,
    stages: Stages,
    started: Instant,
}

/// What is ready, by its number among those of this queue.
#[derive(Debug, Default)]
struct Line {
    ready: BTreeMap<u64, Ready>,
    /// Numbers of which there is no minibatch, as it became another trainer's before it was looked up.
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

#[derive(Debug)]
struct Ready {
    fed: Fed,
    bytes: usize,
    ticket: Option<Arc<Ticket>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for news. Fails if the one who waits is to stop, which ends nothing else.
    fn wait_or_stop<'a>(&'a self, line: MutexGuard<'a, Line>) -> Result<MutexGuard<'a, Line>, FeedError> {
        let (line, waited) = self.changed.wait_timeout(line, LOOK).unwrap_or_else(PoisonError::into_inner);
        if !waited.timed_out() {
            return Ok(line);
        }
        // What is asked may run for long.
        drop(line);
        if self.embedding.as_ref().is_some_and(|embedding| embedding.is_told_to_stop()) {
            return Err(FeedError::Stopped("a minibatch was waited for"));
        }
        Ok(self.lock())
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
    fn run(&self) {
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
            let fed = self.look_up(Arc::new(sampled), &account);
            if let Err(FeedError::Late { .. }) = fed {
                // Whoever has it uses it.
                self.lock().gone.insert(at);
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
}

/// Memory behind a minibatch and its rows.
fn bytes(fed: &Fed) -> usize {
    match fed {
        Fed::Sampled(sampled) => sampled.bytes(),
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
        let (fed, hub) = source.fed();
        for fed in fed {
            let can = embedding.as_ref().map_or(Err(NO_TABLES.to_owned()), |it| it.check_fed(fed));
            can.map_err(|reason| {
                let (hub, feature, table) = (hub.clone(), fed.feature.clone(), fed.table.clone());
                FeedError::FedByHub { hub, feature, table, reason }
            })?;
        }
        let stages = Stages::new(&STAGES);
        let shared = Arc::new(Shared {
            sampled: Recycler::new(options.depth + options.threads + KEPT),
            options,
            names: source.names,
            reader: Reader::new(source.kind, stages.clone()),
            embedding,
            line: Mutex::default(),
            changed: Condvar::new(),
            accounts: Accounts::default(),
            stages,
            started: Instant::now(),
        });
        let running = Arc::clone(&shared);
        let threads = std::thread::spawn(move || running.run());
        let account = shared.accounts.open();
        Ok(FeedQueue { account, shared, threads: Some(threads), in_hand: Mutex::default() })
    }

    /// Names of the columns of its minibatches.
    #[must_use]
    pub fn names(&self) -> &Arc<[String]> {
        &self.shared.names
    }

    /// How the input is read and the spec as it is used, fitted boundaries included; None of hubs of an older version, which
    /// do not say it.
    #[must_use]
    pub fn reading(&self) -> Option<(&DataConfig, &Spec)> {
        self.shared.reader.reading()
    }

    /// The hubs that minibatches come from; none if they come from files.
    #[must_use]
    pub fn hubs(&self) -> &[Served] {
        self.shared.reader.served()
    }

    /// The next minibatch; None at the end of the last pass. Waits for it. To ask for it is to say that the one before was
    /// used up: its hub hears of that when its push, if there is one, has been applied.
    ///
    /// # Errors
    /// What went wrong with the input; and [`FeedError::Unpushed`], if a push of a hub's minibatch has failed. It is the end.
    pub fn next(&self) -> Result<Option<Fed>, FeedError> {
        let since = Instant::now();
        self.hold(None);
        let shared = &self.shared;
        if let Err(lost) = shared.reader.check_loss() {
            self.end();
            return Err(lost);
        }
        let mut line = shared.lock();
        let ready = loop {
            line.pass_over_gone();
            let next = if shared.options.ordered {
                let next = line.next;
                line.ready.remove(&next)
            } else {
                line.ready.pop_first().map(|(_, ready)| ready)
            };
            if let Some(ready) = next {
                line.next += 1;
                line.ready_bytes -= ready.bytes;
                break ready;
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
            line = shared.wait_or_stop(line)?;
        };
        drop(line);
        shared.changed.notify_all();
        self.account.note(|measured| measured.queue_empty.record(since.elapsed()));
        if let Some(ticket) = &ready.ticket {
            ticket.give();
        }
        self.hold(ready.ticket);
        Ok(Some(ready.fed))
    }

    fn hold(&self, ticket: Option<Arc<Ticket>>) {
        *self.in_hand.lock().unwrap_or_else(PoisonError::into_inner) = ticket;
    }

    /// What it has done so far.
    #[must_use]
    pub fn statistics(&self) -> FeedStatistics {
        self.shared.statistics()
    }

    /// The same for whoever asks from another thread, also after the queue is gone.
    pub fn watch(&self) -> impl Fn() -> FeedStatistics + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.statistics()
    }

    /// Reads no more and forgets what is ready; the next minibatch is none. The one in hand counts as used up once its push, if
    /// there is one, has been applied, which is waited for; then hubs hear farewell, and give the others what is left.
    pub fn close(&self) {
        self.hold(None);
        self.end();
    }

    /// The same for who has not used the one in hand: others get it with the rest.
    pub fn close_unused(&self) {
        let in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ticket) = in_hand {
            ticket.take_back();
        }
        self.end();
    }

    fn end(&self) {
        if let Some(embedding) = &self.shared.embedding {
            embedding.wait();
        }
        let mut line = self.shared.lock();
        line.closed = true;
        line.ready.clear();
        line.ready_bytes = 0;
        drop(line);
        self.shared.changed.notify_all();
        self.shared.reader.close();
    }
}

impl Shared {
    fn statistics(&self) -> FeedStatistics {
        let shared = self;
        let pushes = shared.embedding.as_ref();
        let push_grad = pushes.map_or_else(LatencySummary::default, |embedding| embedding.push_latency());
        let pooled_at = pushes.map(|embedding| embedding.pooled_at()).unwrap_or_default();
        let ready = shared.lock().ready.len();
        let (elapsed, threads) = (shared.started.elapsed(), shared.options.threads);
        let stages = shared.stages.totals();
        FeedStatistics::new(&shared.accounts.total(), push_grad, pooled_at, elapsed, threads, ready, stages)
    }
}

impl Drop for FeedQueue {
    /// As [`FeedQueue::close`]; but who drops it without a word may be on the way out with an error, so what is in hand counts as
    /// used up only if something was pushed of it.
    fn drop(&mut self) {
        if let Some(in_hand) = &*self.in_hand.lock().unwrap_or_else(PoisonError::into_inner)
            && !in_hand.is_pushed()
        {
            in_hand.take_back();
        }
        self.close();
        if let Some(threads) = self.threads.take() {
            let _ = threads.join();
        }
    }
}
