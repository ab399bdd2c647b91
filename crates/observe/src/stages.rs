//! Time by stage: every thread reports its stage, and totals are summed when they are read.
//! A switch costs one clock reading and six stores to memory that no other thread writes: no lock, no read-modify-
//! write, no shared line. Knows no stage by name: the caller brings the list.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// The most stages one list may have; a process with more should group them.
pub const STAGES_MAX: usize = 64;

/// A list of stages and the time that every thread spent in each. Cloning shares the same totals.
///
/// ```
/// let stages = sanderling_observe::Stages::new(&["read", "compute"]);
/// let mut timer = stages.timer();
/// timer.switch(0);
/// timer.switch(1);
/// timer.stop();
/// assert_eq!(stages.totals()[1].count, 1);
/// ```
#[derive(Debug, Clone)]
pub struct Stages {
    names: Arc<[&'static str]>,
    /// The moment from which timers count.
    start: Instant,
    threads: Arc<Mutex<Threads>>,
}

#[derive(Debug, Default)]
struct Threads {
    accounts: Vec<(Arc<[Slot]>, Arc<Shown>)>,
    /// Nanoseconds by stage when they were last read: totals never shrink.
    nanos_read: Vec<u64>,
}

/// One thread's account of one stage: written by that thread only, read by anybody. A cache line of its own, since
/// neighbours in the list may belong to another thread's allocation.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    nanos: AtomicU64,
    count: AtomicU64,
}

/// One stage, summed over the threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageTotal {
    /// The stage's name.
    pub name: String,
    /// Time spent in it, added up over threads: with two threads it may exceed the wall time.
    pub seconds: f64,
    /// How many times a thread entered it.
    pub count: u64,
    /// Part of the time spent in all stages, 0 to 1; 0 when none was spent at all.
    pub share: f64,
}

impl Stages {
    /// Stages in the order in which they are to be shown; a stage is later named by its position.
    ///
    /// # Panics
    /// With more than [`STAGES_MAX`] names.
    pub fn new(names: &[&'static str]) -> Self {
        assert!(names.len() <= STAGES_MAX, "{} stages, at most {STAGES_MAX} are possible", names.len());
        Self { names: names.into(), start: Instant::now(), threads: Arc::default() }
    }

    /// A timer for one thread. Its time stays in the totals after it is dropped.
    pub fn timer(&self) -> StageTimer {
        let slots: Arc<[Slot]> = self.names.iter().map(|_| Slot::default()).collect();
        let shown: Arc<Shown> = Arc::default();
        let account = (Arc::clone(&slots), Arc::clone(&shown));
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).accounts.push(account);
        StageTimer { slots, start: self.start, current: None, entered: 0, shown }
    }

    /// Sums over all threads, in the order of the names. A running stage counts up to now.
    pub fn totals(&self) -> Vec<StageTotal> {
        self.totals_at(Instant::now())
    }

    fn totals_at(&self, now: Instant) -> Vec<StageTotal> {
        let now = self.since_start(now);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let Threads { accounts, nanos_read } = &mut *threads;
        nanos_read.resize(self.names.len(), 0);
        let mut counts = vec![0; self.names.len()];
        let mut nanos = vec![0; self.names.len()];
        for (slots, shown) in accounts {
            let running = read_account(slots, shown);
            for (stage, (of_stage, count)) in running.stages.into_iter().enumerate() {
                nanos[stage] += of_stage;
                counts[stage] += count;
            }
            if let Some((stage, since)) = running.current {
                nanos[stage] += now.saturating_sub(since);
                counts[stage] += 1;
            }
        }
        let mut totals: Vec<StageTotal> = self
            .names
            .iter()
            .enumerate()
            .map(|(stage, name)| {
                nanos_read[stage] = nanos_read[stage].max(nanos[stage]);
                let seconds = nanos_read[stage] as f64 * 1e-9;
                StageTotal { name: (*name).to_owned(), seconds, count: counts[stage], share: 0.0 }
            })
            .collect();
        let seconds: f64 = totals.iter().map(|total| total.seconds).sum();
        if seconds > 0.0 {
            totals.iter_mut().for_each(|total| total.share = total.seconds / seconds);
        }
        totals
    }

    fn since_start(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_nanos() as u64
    }
}

/// One thread's account at one moment.
struct Account {
    /// Nanoseconds and entries of the stages that were left.
    stages: Vec<(u64, u64)>,
    /// The running stage, and when it began, in nanoseconds since the start.
    current: Option<(usize, u64)>,
}

/// Attempts to read an account between two switches of its thread.
const READS_MAX: usize = 100;

/// Reads an account while its thread goes on.
fn read_account(slots: &[Slot], shown: &Shown) -> Account {
    let left = || {
        let of = |slot: &Slot| (slot.nanos.load(Ordering::Relaxed), slot.count.load(Ordering::Relaxed));
        slots.iter().map(of).collect()
    };
    for _ in 0..READS_MAX {
        let before = shown.stage.load(Ordering::Acquire);
        let since = shown.since.load(Ordering::Relaxed);
        let stages = left();
        fence(Ordering::Acquire);
        if before != SWITCHING && shown.stage.load(Ordering::Relaxed) == before {
            return Account { stages, current: stage_of(before).map(|stage| (stage, since)) };
        }
    }
    // It switches all the time, so its running stage is short.
    Account { stages: left(), current: None }
}

/// One thread's stopwatch: always in one stage or in none.
#[derive(Debug)]
pub struct StageTimer {
    slots: Arc<[Slot]>,
    /// The moment from which `Shown::since` counts.
    start: Instant,
    current: Option<(usize, Instant)>,
    /// Stages that were entered.
    entered: u64,
    shown: Arc<Shown>,
}

/// The stage that a thread is in, for other threads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shown {
    /// The number of entered stages above [`SHOWN_BITS`] bits, then the stage and 1, or 0; or [`SWITCHING`].
    stage: AtomicU64,
    /// When the thread entered the stage, in nanoseconds since the start.
    since: AtomicU64,
}

const SHOWN_BITS: u32 = 8;
/// `Shown::stage` while its thread changes its account.
const SWITCHING: u64 = u64::MAX;

fn stage_of(shown: u64) -> Option<usize> {
    (shown & ((1 << SHOWN_BITS) - 1)).checked_sub(1).map(|stage| stage as usize)
}

/// Says to another thread which stage a timer's thread is in.
#[derive(Debug, Clone)]
pub struct StageWatch {
    shown: Arc<Shown>,
}

impl StageWatch {
    /// The stage, if it is in one; and a number that changes when it enters one.
    pub fn look(&self) -> (Option<usize>, u64) {
        loop {
            let shown = self.shown.stage.load(Ordering::Relaxed);
            if shown != SWITCHING {
                return (stage_of(shown), shown >> SHOWN_BITS);
            }
            std::thread::yield_now();
        }
    }
}

impl StageTimer {
    /// Leaves the present stage, if any, and enters another.
    ///
    /// # Panics
    /// When the list has no stage at that position.
    #[inline]
    pub fn switch(&mut self, stage: usize) {
        self.switch_at(stage, Instant::now());
    }

    #[inline]
    fn switch_at(&mut self, stage: usize, now: Instant) {
        assert!(stage < self.slots.len(), "stage {stage} of a list of {}", self.slots.len());
        self.leave(now);
        self.current = Some((stage, now));
        self.entered += 1;
        let since = now.saturating_duration_since(self.start).as_nanos() as u64;
        self.shown.since.store(since, Ordering::Relaxed);
        self.show(stage as u64 + 1);
    }

    /// For whoever wants to know which stage this thread is in.
    pub fn watch(&self) -> StageWatch {
        StageWatch { shown: Arc::clone(&self.shown) }
    }

    /// Makes the changed account readable again.
    #[inline]
    fn show(&self, stage: u64) {
        self.shown.stage.store(self.entered << SHOWN_BITS | stage, Ordering::Release);
    }

    /// Leaves the present stage, if any: what follows is counted nowhere.
    #[inline]
    pub fn stop(&mut self) {
        self.leave(Instant::now());
        self.show(0);
    }

    /// Runs `work` as a stage and goes back to the stage before.
    #[inline]
    pub fn within<T>(&mut self, stage: usize, work: impl FnOnce() -> T) -> T {
        let before = self.current.map(|(stage, _)| stage);
        self.switch(stage);
        let result = work();
        match before {
            Some(before) => self.switch(before),
            None => self.stop(),
        }
        result
    }

    #[inline]
    fn leave(&mut self, now: Instant) {
        self.shown.stage.store(SWITCHING, Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some((stage, since)) = self.current.take() {
            let slot = &self.slots[stage];
            let nanos = now.duration_since(since).as_nanos() as u64;
            // This thread is the only writer, so a load and a store lose nothing.
            slot.nanos.store(slot.nanos.load(Ordering::Relaxed) + nanos, Ordering::Relaxed);
            slot.count.store(slot.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

impl Drop for StageTimer {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn counts_add_up_over_threads() {
        let stages = Stages::new(&["read", "compute"]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mut timer = stages.timer();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        timer.switch(0);
                        timer.switch(1);
                    }
                });
            }
        });
        let totals = stages.totals();
        assert_eq!(totals.iter().map(|total| total.count).collect::<Vec<_>>(), [4000, 4000]);
        assert!((totals.iter().map(|total| total.share).sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn time_goes_to_the_stage_it_was_spent_in() {
        let stages = Stages::new(&["sleep", "other"]);
        let start = Instant::now();
        let mut timer = stages.timer();
        timer.switch(1);
        timer.within(0, || std::thread::sleep(Duration::from_millis(20)));
        timer.stop();
        std::thread::sleep(Duration::from_millis(5));
        timer.stop();
        let totals = stages.totals();
        let (sum, whole) = (totals[0].seconds + totals[1].seconds, start.elapsed().as_secs_f64());
        // Time between two stops belongs to no stage.
        assert!(totals[0].seconds >= 0.02 && sum <= whole - 0.005, "{totals:?} of {whole}");
        assert!((totals[0].share - totals[0].seconds / sum).abs() < 1e-9, "{totals:?}");
        assert_eq!((totals[0].count, totals[1].count), (1, 2));
    }

    #[test]
    fn others_see_the_stage() {
        let mut timer = Stages::new(&["a", "b"]).timer();
        let watch = timer.watch();
        assert_eq!(watch.look(), (None, 0));
        timer.switch(1);
        assert_eq!(watch.look(), (Some(1), 1));
        timer.within(0, || assert_eq!(watch.look(), (Some(0), 2)));
        assert_eq!(watch.look(), (Some(1), 3));
        drop(timer);
        assert_eq!(watch.look(), (None, 3));
    }

    #[test]
    fn a_running_stage_counts_up_to_now() {
        let stages = Stages::new(&["full", "other"]);
        let (mut one, mut other) = (stages.timer(), stages.timer());
        let at = |s: u64| stages.start + Duration::from_secs(s);
        let check = |now: u64, seconds: [f64; 2], counts: [u64; 2]| {
            let totals = stages.totals_at(at(now));
            assert_eq!([0, 1].map(|stage| totals[stage].seconds), seconds, "at {now} s");
            assert_eq!([0, 1].map(|stage| totals[stage].count), counts, "at {now} s");
        };
        one.switch_at(0, at(1));
        check(7, [6.0, 0.0], [1, 0]);
        other.switch_at(1, at(5));
        check(7, [6.0, 2.0], [1, 1]);
        one.switch_at(1, at(8));
        check(10, [7.0, 7.0], [1, 2]);
        // Totals never shrink, whatever the clock of the reader says.
        check(9, [7.0, 7.0], [1, 2]);
        other.leave(at(11));
        other.show(0);
        check(12, [7.0, 10.0], [1, 2]);
        assert_eq!(stages.totals_at(at(12))[0].share, 7.0 / 17.0);
    }

    #[test]
    fn totals_never_shrink_while_a_thread_switches() {
        let stages = Stages::new(&["a", "b"]);
        let mut timer = stages.timer();
        timer.switch(0);
        let watch = timer.watch();
        let done = std::sync::atomic::AtomicBool::new(false);
        let done = &done;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for turn in 0..200_000 {
                    timer.switch(turn % 2);
                }
                done.store(true, Ordering::Relaxed);
            });
            let mut before = 0.0;
            while !done.load(Ordering::Relaxed) {
                let sum: f64 = stages.totals().iter().map(|total| total.seconds).sum();
                assert!(sum >= before, "{sum} after {before}");
                before = sum;
                assert!(watch.look().0.is_none_or(|stage| stage < 2));
            }
        });
        let counts: Vec<u64> = stages.totals().iter().map(|total| total.count).collect();
        assert_eq!(counts, [100_001, 100_000]);
    }

    #[test]
    fn nothing_timed_is_all_zero() {
        let stages = Stages::new(&["read"]);
        drop(stages.timer());
        let expected = StageTotal { name: "read".into(), seconds: 0.0, count: 0, share: 0.0 };
        assert_eq!(stages.totals(), [expected]);
        assert!(Stages::new(&[]).totals().is_empty());
    }

    #[test]
    #[should_panic(expected = "stage 1 of a list of 1")]
    fn unknown_stage() {
        Stages::new(&["read"]).timer().switch(1);
    }
}
