//! The scoring threads: a fixed number behind a bounded queue. Work that would come too late is refused at once.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::{Kind, ServeError};
use crate::limiter::Limiter;

type Task = Box<dyn FnOnce() + Send>;

/// Weight of the latest piece of work in the mean duration, as a shift: an eighth.
const MEAN_SHIFT: u32 = 3;

/// A pool of threads. They end when it is dropped and the queue is empty.
#[derive(Debug)]
pub(crate) struct ScoringThreads {
    queue: SyncSender<Task>,
    threads: usize,
    timeout: Duration,
    started: Instant,
    load: Arc<Load>,
}

/// The present load.
#[derive(Debug)]
struct Load {
    waiting: AtomicUsize,
    /// Requests that wait or are worked on, and their limit at present.
    under_way: AtomicUsize,
    limit: AtomicUsize,
    limiter: Mutex<Limiter>,
    /// Mean duration of a piece of work.
    mean_ns: AtomicU64,
}

impl ScoringThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no threads left.
    pub(crate) fn start(
        threads: usize,
        queue: usize,
        timeout: Duration,
        queue_time: Duration,
    ) -> std::io::Result<ScoringThreads> {
        let (sender, taken) = sync_channel::<Task>(queue);
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..threads {
            let taken = Arc::clone(&taken);
            std::thread::Builder::new().name("scoring".to_owned()).spawn(move || run(&taken))?;
        }
        let under_way_max = threads + queue;
        let load = Load {
            waiting: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            limit: AtomicUsize::new(under_way_max),
            limiter: Mutex::new(Limiter::new(threads, under_way_max, queue_time)),
            mean_ns: AtomicU64::new(0),
        };
        Ok(ScoringThreads { queue: sender, threads, timeout, started: Instant::now(), load: Arc::new(load) })
    }

    /// Number of threads.
    pub(crate) fn count(&self) -> usize {
        self.threads
    }

    /// Requests that wait for a thread.
    pub(crate) fn waiting(&self) -> usize {
        self.load.waiting.load(Ordering::Relaxed)
    }

    /// Requests that may wait or be worked on at present.
    pub(crate) fn limit(&self) -> usize {
        self.load.limit.load(Ordering::Relaxed)
    }

    /// Runs work on a thread and waits for its result. Work whose caller has gone is not begun.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ServeError> + Send + 'static,
    ) -> Result<T, ServeError> {
        let overloaded = |text: &str| Err(ServeError::new(Kind::Overloaded, text));
        if self.expected_wait() > self.timeout {
            return overloaded("the server is overloaded: it would not answer in time; try again later");
        }
        let under_way = UnderWay::begin(&self.load);
        if under_way.count > self.limit() {
            return overloaded("the server is overloaded: requests wait too long; try again later");
        }
        let (told, outcome) = oneshot::channel();
        let (load, queued, started) = (Arc::clone(&self.load), Instant::now(), self.started);
        load.waiting.fetch_add(1, Ordering::Relaxed);
        let task = move || {
            load.waiting.fetch_sub(1, Ordering::Relaxed);
            // Until the work is done, or dropped with the queue.
            let under_way = under_way;
            load.note_wait(started.elapsed(), queued.elapsed());
            if told.is_closed() {
                return;
            }
            let start = Instant::now();
            let done = work();
            load.note(start.elapsed());
            // A caller that has its answer may ask again at once, and is not to be refused for this request.
            drop(under_way);
            // The caller may be gone.
            drop(told.send(done));
        };
        if let Err(error) = self.queue.try_send(Box::new(task)) {
            self.load.waiting.fetch_sub(1, Ordering::Relaxed);
            return match error {
                TrySendError::Full(_) => {
                    overloaded("the server is overloaded: its queue is full; try again later")
                }
                TrySendError::Disconnected(_) => overloaded("the server is about to stop"),
            };
        }
        let panicked =
            || ServeError::new(Kind::Internal, "a bug, see the server's standard error: it panicked");
        outcome.await.map_err(|_| panicked())?
    }

    /// The time that a request would wait for a thread.
    fn expected_wait(&self) -> Duration {
        let mean = self.load.mean_ns.load(Ordering::Relaxed);
        Duration::from_nanos(mean.saturating_mul(self.waiting() as u64) / self.threads as u64)
    }
}

/// Counts a request while it waits or is worked on.
struct UnderWay {
    load: Arc<Load>,
    /// Requests under way, this one included.
    count: usize,
}

impl UnderWay {
    fn begin(load: &Arc<Load>) -> UnderWay {
        let count = load.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        UnderWay { load: Arc::clone(load), count }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.load.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Load {
    /// Adapts the limit to the wait of a request whose work begins.
    fn note_wait(&self, now: Duration, wait: Duration) {
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        limiter.note(now, wait, self.under_way.load(Ordering::Relaxed));
        self.limit.store(limiter.limit(), Ordering::Relaxed);
    }

    /// Adds a duration to the mean. Threads may overwrite each other, which a mean can bear.
    fn note(&self, took: Duration) {
        let (took, mean) =
            (u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), self.mean_ns.load(Ordering::Relaxed));
        let mean = mean - (mean >> MEAN_SHIFT) + (took >> MEAN_SHIFT);
        self.mean_ns.store(mean, Ordering::Relaxed);
    }
}

fn run(tasks: &Mutex<Receiver<Task>>) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        // The panic has been reported, and the caller gets an error.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(task));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Longer than any operation of a passing test takes.
    const LONG: Duration = Duration::from_secs(60);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
    }

    #[test]
    fn a_full_queue_refuses_and_a_panic_ends_no_thread() {
        runtime().block_on(async {
            let threads = Arc::new(ScoringThreads::start(1, 1, LONG, LONG).expect("threads"));
            let panicked = threads.run::<()>(|| panic!("as a test")).await;
            assert_eq!(panicked.expect_err("it panicked").kind, Kind::Internal);
            assert_eq!(threads.run(|| Ok(5)).await, Ok(5));
            let ((begun, has_begun), (go, may_go)) = (channel(), channel::<()>());
            let spawn = |threads: &Arc<ScoringThreads>, work: Box<dyn FnOnce() -> u32 + Send>| {
                let threads = Arc::clone(threads);
                tokio::spawn(async move { threads.run(move || Ok(work())).await })
            };
            let first = spawn(
                &threads,
                Box::new(move || {
                    begun.send(()).expect("the test waits");
                    may_go.recv().map_or(0, |()| 1)
                }),
            );
            tokio::task::yield_now().await;
            has_begun.recv_timeout(LONG).expect("it begins");
            let second = spawn(&threads, Box::new(|| 2));
            tokio::task::yield_now().await;
            assert_eq!(threads.waiting(), 1);
            let third = threads.run(|| Ok(3)).await;
            assert_eq!(third.expect_err("the queue is full").kind, Kind::Overloaded);
            go.send(()).expect("it waits");
            assert_eq!((first.await.expect("done"), second.await.expect("done")), (Ok(1), Ok(2)));
            assert_eq!(threads.waiting(), 0);
        });
    }

    #[test]
    fn more_work_than_the_limit_is_refused() {
        runtime().block_on(async {
            let threads = ScoringThreads::start(1, 8, LONG, LONG).expect("threads");
            assert_eq!(threads.limit(), 9);
            threads.load.limit.store(1, Ordering::Relaxed);
            assert_eq!(threads.run(|| Ok(1)).await, Ok(1));
            threads.load.limit.store(0, Ordering::Relaxed);
            assert_eq!(threads.run(|| Ok(1)).await.expect_err("too many").kind, Kind::Overloaded);
            threads.load.limit.store(1, Ordering::Relaxed);
            assert_eq!(threads.run(|| Ok(1)).await, Ok(1));
        });
    }

    #[test]
    fn work_that_would_come_too_late_is_refused() {
        runtime().block_on(async {
            let threads = ScoringThreads::start(1, 8, Duration::from_secs(1), LONG).expect("threads");
            threads.load.mean_ns.store(600_000_000, Ordering::Relaxed);
            threads.load.waiting.store(1, Ordering::Relaxed);
            assert_eq!(threads.run(|| Ok(1)).await, Ok(1));
            threads.load.mean_ns.store(600_000_000, Ordering::Relaxed);
            threads.load.waiting.store(2, Ordering::Relaxed);
            assert_eq!(threads.run(|| Ok(1)).await.expect_err("too late").kind, Kind::Overloaded);
        });
    }
}
