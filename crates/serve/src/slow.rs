//! The latest slow requests with their stages, for a page and for people.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Slow requests that are kept.
const KEPT_MAX: usize = 64;

/// The stages of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The body arrives.
    Read,
    /// The work waits for a thread.
    Queue,
    /// The body becomes rows.
    Parse,
    /// Fields become keys.
    Encode,
    /// Rows are looked up, of requests for rows and of deep models.
    Rows,
    /// The request waits for others, to be scored together.
    Batch,
    /// Rows are scored; those of other models are looked up here.
    Score,
    /// Scores become the bytes of the answer.
    Write,
}

/// All stages in their order, with their names.
pub(crate) const STAGES: [(Stage, &str); 8] = [
    (Stage::Read, "read"),
    (Stage::Queue, "queue"),
    (Stage::Parse, "parse"),
    (Stage::Encode, "encode"),
    (Stage::Rows, "rows"),
    (Stage::Batch, "batch"),
    (Stage::Score, "score"),
    (Stage::Write, "write"),
];

/// The times of each stage of a request. Copies share them.
#[derive(Debug, Clone)]
pub(crate) struct StageTimes(Arc<Times>);

#[derive(Debug)]
struct Times {
    began: Instant,
    /// Nanoseconds of each stage.
    took_ns: [AtomicU64; STAGES.len()],
    /// Nanoseconds from the begin of the request to that of each stage, and one.
    begin_ns: [AtomicU64; STAGES.len()],
}

impl Default for StageTimes {
    fn default() -> StageTimes {
        let (took_ns, begin_ns) = <_>::default();
        StageTimes(Arc::new(Times { began: Instant::now(), took_ns, begin_ns }))
    }
}

impl StageTimes {
    /// Adds the time since a moment to a stage.
    pub(crate) fn add_since(&self, stage: Stage, since: Instant) {
        self.add(stage, since, since.elapsed());
    }

    /// Adds time that began at a moment to a stage.
    pub(crate) fn add(&self, stage: Stage, since: Instant, time: Duration) {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let Times { began, took_ns, begin_ns } = &*self.0;
        took_ns[stage as usize].fetch_add(ns(time), Ordering::Relaxed);
        let begin = ns(since.saturating_duration_since(*began)).saturating_add(1);
        // Of a stage that comes again the first begin counts.
        let _ = begin_ns[stage as usize].compare_exchange(0, begin, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Does work that belongs to a stage.
    pub(crate) fn timed<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.add_since(stage, start);
        done
    }

    /// Encodes rows, which adds the time in which others are looked up and scored to those stages.
    pub(crate) fn encoding<T>(&self, work: impl FnOnce() -> T) -> T {
        let others = || self.get(Stage::Rows) + self.get(Stage::Score);
        let (start, before) = (Instant::now(), others());
        let done = work();
        self.add(Stage::Encode, start, start.elapsed().saturating_sub(others() - before));
        done
    }

    fn get(&self, stage: Stage) -> Duration {
        Duration::from_nanos(self.0.took_ns[stage as usize].load(Ordering::Relaxed))
    }

    /// The begin of the request.
    pub(crate) fn began(&self) -> Instant {
        self.0.began
    }

    /// The stages that there were, in the order of their begins: name, first begin, time in all.
    pub(crate) fn stages(&self) -> Vec<(&'static str, Instant, Duration)> {
        let Times { began, begin_ns, .. } = &*self.0;
        let begin = |stage: Stage| {
            let ns = begin_ns[stage as usize].load(Ordering::Relaxed).checked_sub(1)?;
            began.checked_add(Duration::from_nanos(ns))
        };
        let stages = STAGES.into_iter();
        let stages = stages.filter_map(|(stage, name)| Some((name, begin(stage)?, self.get(stage))));
        let mut stages: Vec<_> = stages.collect();
        stages.sort_by_key(|(_, begin, _)| *begin);
        stages
    }

    /// Milliseconds of the stages that there were.
    pub(crate) fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
        let times = STAGES.iter().map(|(stage, name)| (*name, self.get(*stage)));
        let times = times.filter(|(_, time)| !time.is_zero());
        times.map(|(name, time)| (name.to_owned(), ms(time).into())).collect()
    }
}

/// A slow request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SlowRequest {
    /// Seconds since 1970.
    pub(crate) time: f64,
    pub(crate) protocol: &'static str,
    pub(crate) endpoint: &'static str,
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) code: String,
    pub(crate) rows: u64,
    pub(crate) ms: f64,
    /// Its trace, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<String>,
    /// Milliseconds of each stage that there was.
    pub(crate) stages: serde_json::Map<String, serde_json::Value>,
}

/// Milliseconds, to a thousandth.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

/// The latest slow requests.
#[derive(Debug, Default)]
pub(crate) struct SlowRequests(Mutex<VecDeque<SlowRequest>>);

impl SlowRequests {
    pub(crate) fn add(&self, request: SlowRequest) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_MAX {
            kept.pop_back();
        }
        kept.push_front(request);
    }

    /// The requests, the latest first.
    pub(crate) fn latest(&self) -> Vec<SlowRequest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
