//! Time by stage: every thread reports its stage, and totals are summed when they are read.
//! A switch costs one clock reading and three stores to memory that no other thread writes: no lock, no read-modify-
//! write, no shared line. Knows no stage by name: the caller brings the list.

use std::sync::atomic::{AtomicU64, Ordering};
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
    threads: Arc<Mutex<Vec<Arc<[Slot]>>>>,
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
        Self { names: names.into(), threads: Arc::default() }
    }

    /// A timer for one thread. Its time stays in the totals after it is dropped.
    pub fn timer(&self) -> StageTimer {
        let slots: Arc<[Slot]> = self.names.iter().map(|_| Slot::default()).collect();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&slots));
        StageTimer { slots, current: None, entered: 0, shown: Arc::default() }
    }

    /// Sums over all threads, in the order of the names. Stages that are still running count up to their last
    /// switch.
    pub fn totals(&self) -> Vec<StageTotal> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals: Vec<StageTotal> = self
            .names
            .iter()
            .enumerate()
            .map(|(stage, name)| {
                let sum =
                    |read: fn(&Slot) -> u64| threads.iter().map(|slots| read(&slots[stage])).sum::<u64>();
                StageTotal {
                    name: (*name).to_owned(),
                    seconds: sum(|slot| slot.nanos.load(Ordering::Relaxed)) as f64 * 1e-9,
                    count: sum(|slot| slot.count.load(Ordering::Relaxed)),
                    share: 0.0,
                }
            })
            .collect();
        let seconds: f64 = totals.iter().map(|total| total.seconds).sum();
        if seconds > 0.0 {
            totals.iter_mut().for_each(|total| total.share = total.seconds / seconds);
        }
        totals
    }
}

/// One thread's stopwatch: always in one stage or in none.
#[derive(Debug)]
pub struct StageTimer {
    slots: Arc<[Slot]>,
    current: Option<(usize, Instant)>,
    /// Stages that were entered.
    entered: u64,
    shown: Arc<Shown>,
}

/// The stage that a thread is in, for others: how many it has entered above [`SHOWN_BITS`] bits, then its number and 1, or 0.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shown(AtomicU64);

const SHOWN_BITS: u32 = 8;

/// Says to another thread which stage a timer's thread is in.
#[derive(Debug, Clone)]
pub struct StageWatch {
    shown: Arc<Shown>,
}

impl StageWatch {
    /// The stage, if it is in one; and a number that changes when it enters one.
    pub fn look(&self) -> (Option<usize>, u64) {
        let shown = self.shown.0.load(Ordering::Relaxed);
        let stage = shown & ((1 << SHOWN_BITS) - 1);
        (stage.checked_sub(1).map(|stage| stage as usize), shown >> SHOWN_BITS)
    }
}

impl StageTimer {
    /// Leaves the present stage, if any, and enters another.
    ///
    /// # Panics
    /// When the list has no stage at that position.
    #[inline]
    pub fn switch(&mut self, stage: usize) {
        assert!(stage < self.slots.len(), "stage {stage} of a list of {}", self.slots.len());
        let now = Instant::now();
        self.leave(now);
        self.current = Some((stage, now));
        self.entered += 1;
        self.show(stage as u64 + 1);
    }

    /// For whoever wants to know which stage this thread is in.
    pub fn watch(&self) -> StageWatch {
        StageWatch { shown: Arc::clone(&self.shown) }
    }

    #[inline]
    fn show(&self, stage: u64) {
        self.shown.0.store(self.entered << SHOWN_BITS | stage, Ordering::Relaxed);
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
