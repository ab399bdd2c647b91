//! Reads minibatches from files or hubs, by several threads. Knows no tables and no queue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_formats::{BLOCK_BYTES, BadRowPolicy, BadRows, DataConfig};
use sanderling_hub::{Description, Next, Served, Subscription};
use sanderling_loader::{Feed, Pass, PassOptions};
use sanderling_observe::{SpanQueue, SpanSampler, StageTimer, Stages};
use sanderling_sample::{Batch, Spec};

use crate::ahead::Ahead;
use crate::error::FeedError;
use crate::options::QueueOptions;
use crate::sampled::{Sampled, Samples};
use crate::source::{Files, Hubs, Kind};
use crate::step::Step;
use crate::ticket::{Loss, Ticket};

/// How often a reader that waits for hubs looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);
/// How long hubs are told, at the end, what was used up, and farewell.
const FAREWELL: Duration = Duration::from_secs(2);

/// The input, and what is open of it.
pub(crate) struct Reader {
    input: Input,
    bad_rows: Arc<BadRows>,
    stages: Stages,
    closed: Arc<AtomicBool>,
    /// Minibatches that were read.
    read: AtomicU64,
    /// Rows of the pass at hand, all ranks together, as far as can be told; 0 where that is unknown.
    pass_rows: AtomicU64,
    /// A minibatch of hubs whose push has failed.
    loss: Arc<Loss>,
    /// Draws the minibatches of hubs that are traced.
    sampler: Option<Mutex<SpanSampler>>,
}

enum Input {
    Files(Box<Files>),
    Hubs {
        subscription: Arc<Mutex<Subscription>>,
        served: Vec<Served>,
        description: Option<Box<Description>>,
    },
}

/// Where a minibatch stands in line, and what its hub hears when it is used up.
pub(crate) type Place = (u64, Option<Arc<Ticket>>);

/// A thread's source: fills the next minibatch and returns its position.
pub(crate) type Read<'a> = dyn FnMut(&mut Sampled, &mut StageTimer) -> Result<Option<Place>, FeedError> + 'a;

impl Reader {
    pub(crate) fn new(kind: Kind, stages: Stages) -> Reader {
        let bad_rows = match &kind {
            Kind::Files(files) => BadRows::new(files.data.on_bad_row).placeholder(files.keeps_places),
            Kind::Hubs(_) => BadRows::new(BadRowPolicy::Fail),
        };
        let mut sampler = None;
        let input = match kind {
            Kind::Files(files) => Input::Files(files),
            Kind::Hubs(hubs) => {
                let Hubs { subscription, served, description } = *hubs;
                sampler = subscription.spans().map(SpanQueue::sampler).map(Mutex::new);
                let (subscription, description) =
                    (Arc::new(Mutex::new(subscription)), description.map(Box::new));
                Input::Hubs { subscription, served, description }
            }
        };
        Reader {
            input,
            bad_rows: Arc::new(bad_rows),
            stages,
            closed: Arc::default(),
            read: AtomicU64::new(0),
            pass_rows: AtomicU64::new(0),
            loss: Arc::default(),
            sampler,
        }
    }

    /// An empty minibatch.
    pub(crate) fn empty(&self) -> Samples {
        Samples::Batch(match &self.input {
            Input::Files(files) => files.encoder.new_batch(),
            Input::Hubs { .. } => Batch::new(&[]),
        })
    }

    /// How the input is read, and the spec; None of hubs that do not say it.
    pub(crate) fn reading(&self) -> Option<(&DataConfig, &Spec)> {
        match &self.input {
            Input::Files(files) => Some((&files.data, &files.spec)),
            Input::Hubs { description, .. } => {
                description.as_ref().map(|description| (&description.data, &description.spec))
            }
        }
    }

    /// Rows of the pass at hand, all ranks together, as far as can be told.
    pub(crate) fn pass_rows(&self) -> Option<u64> {
        Some(self.pass_rows.load(Ordering::Relaxed)).filter(|rows| *rows > 0)
    }

    /// The account of rows that were left out.
    pub(crate) fn bad_rows(&self) -> &BadRows {
        &self.bad_rows
    }

    /// The hubs; none if it is files.
    pub(crate) fn served(&self) -> &[Served] {
        match &self.input {
            Input::Files(_) => &[],
            Input::Hubs { served, .. } => served,
        }
    }

    /// Goes through the input as often as is wanted; `work` is run by every thread and reads until there is no more.
    pub(crate) fn run(
        &self,
        options: &QueueOptions,
        work: &(dyn Fn(&mut Read<'_>) + Sync),
    ) -> Result<(), FeedError> {
        match &self.input {
            Input::Files(files) => {
                let mut passes = (0..options.passes).take_while(|_| !self.closed.load(Ordering::Relaxed));
                passes.try_for_each(|number| self.pass(files, number, options, work))
            }
            Input::Hubs { subscription: hubs, .. } => {
                let read = || work(&mut |sampled, _| self.read_hubs(hubs, sampled));
                let ran = on_threads(options.threads, &read);
                // The hubs are told of the last used minibatch; unused ones go to other trainers at once.
                let left = lock(hubs).leave(Instant::now() + FAREWELL);
                ran.and(Ok(left?))
            }
        }
    }

    fn pass(
        &self,
        files: &Files,
        number: u64,
        options: &QueueOptions,
        work: &(dyn Fn(&mut Read<'_>) + Sync),
    ) -> Result<(), FeedError> {
        let &QueueOptions { threads, ordered, shuffle, seed, .. } = options;
        let used_rows = if number == 0 { options.used_rows } else { 0 };
        let workers = if ordered { 1 } else { threads };
        let order = PassOptions { shuffle, seed, number, workers, used_rows, unit_bytes: BLOCK_BYTES };
        self.bad_rows.begin_pass();
        let Files { inputs, data, encoder, .. } = files;
        let pass = Pass::open_until(inputs, data, encoder, &self.bad_rows, order, Arc::clone(&self.closed))?;
        let is_stream = pass.bytes_total().is_none();
        self.pass_rows.store(0, Ordering::Relaxed);
        // As many threads decode ahead as look up: units are in order again when they are handed over.
        let timers = (0..threads).map(|_| self.stages.timer());
        let one = ordered.then(|| Mutex::new((pass.feed_ahead_by(timers), 0)));
        on_threads(threads, &|| match &one {
            Some(one) => work(&mut |sampled, timer| {
                sampled.pass = number;
                self.in_order(one, options, sampled, timer)
            }),
            None => {
                // A stream may be silent, so a detached thread reads it.
                let ahead = is_stream.then(|| pass.feed_ahead(self.stages.timer()));
                let mut feed = ahead.unwrap_or_else(|| pass.feed());
                work(&mut |sampled, timer| {
                    sampled.pass = number;
                    self.read_feed(&mut feed, options.batch_rows, sampled, timer)
                });
            }
        })
    }

    /// The next minibatch of this rank, from the one feed of a pass whose order is kept.
    fn in_order(
        &self,
        one: &Mutex<(Feed<'_>, u64)>,
        options: &QueueOptions,
        sampled: &mut Sampled,
        timer: &mut StageTimer,
    ) -> Result<Option<Place>, FeedError> {
        let mut locked = lock(one);
        let (feed, of_all) = &mut *locked;
        loop {
            let number = *of_all;
            *of_all += 1;
            if number % options.ranks == options.rank {
                let read = self.read_feed(feed, options.batch_rows, sampled, timer);
                self.pass_rows.store(feed.rows_expected().unwrap_or(0), Ordering::Relaxed);
                return read;
            }
            if feed.next(options.batch_rows, timer)?.is_none() {
                return Ok(None);
            }
        }
    }

    fn read_feed(
        &self,
        feed: &mut Feed<'_>,
        batch_rows: usize,
        sampled: &mut Sampled,
        timer: &mut StageTimer,
    ) -> Result<Option<Place>, FeedError> {
        let Some(rows) = feed.next(batch_rows, timer)? else { return Ok(None) };
        let Samples::Batch(batch) = &mut sampled.samples else { return Ok(None) };
        batch.clear();
        batch.append(&rows);
        sampled.number = self.read.fetch_add(1, Ordering::Relaxed);
        Ok(Some((sampled.number, None)))
    }

    fn read_hubs(
        &self,
        hubs: &Arc<Mutex<Subscription>>,
        sampled: &mut Sampled,
    ) -> Result<Option<Place>, FeedError> {
        loop {
            if self.closed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            // The hub would wait for it in vain, and the trainer for the end, where it hears of it.
            if self.loss.is_some() {
                return Ok(None);
            }
            let subscription = hubs;
            let mut hubs = lock(subscription);
            let delivered = match hubs.next(Instant::now() + LOOK)? {
                Next::Batch(delivered) => delivered,
                Next::Wait => continue,
                Next::Over => return Ok(None),
            };
            let hub = (delivered.hub, hubs.hub(delivered.hub).to_owned());
            let loss = Arc::clone(&self.loss);
            let is_traced = self.sampler.as_ref().is_some_and(|sampler| lock(sampler).draw());
            let step = hubs.spans().filter(|_| is_traced).map(Step::begin);
            let ticket = Ticket::new(hubs.acknowledger(), hub.clone(), delivered.number, loss, step);
            sampled.ahead = delivered.fed.map(|fed| {
                Ahead::new(*fed, hubs.full_batches(), Arc::downgrade(subscription), hub, delivered.number)
            });
            let used = std::mem::replace(&mut sampled.samples, Samples::Packed(delivered.batch));
            if let Samples::Packed(used) = used {
                hubs.reuse(used);
            }
            let ticket = Arc::new(ticket);
            (sampled.pass, sampled.ticket) = (delivered.pass, Arc::downgrade(&ticket));
            sampled.number = self.read.fetch_add(1, Ordering::Relaxed);
            return Ok(Some((sampled.number, Some(ticket))));
        }
    }

    /// Says once that a minibatch was lost.
    pub(crate) fn check_loss(&self) -> Result<(), FeedError> {
        self.loss.take().map_or(Ok(()), Err)
    }

    /// Has all threads come to an end, also those that wait for a silent input.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// Runs the same on several threads and waits for them.
fn on_threads(threads: usize, work: &(dyn Fn() + Sync)) -> Result<(), FeedError> {
    let died = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().is_err()).fold(false, |any, died| any | died)
    });
    if died { Err(FeedError::Died("read")) } else { Ok(()) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
