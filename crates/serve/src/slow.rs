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
    /// Rows are looked up and scored.
    Score,
    /// Scores become the bytes of the answer.
    Write,
}

/// All stages in their order, with their names.
pub(crate) const STAGES: [(Stage, &str); 6] = [
    (Stage::Read, "read"),
    (Stage::Queue, "queue"),
    (Stage::Parse, "parse"),
    (Stage::Encode, "encode"),
    (Stage::Score, "score"),
    (Stage::Write, "write"),
];

/// Nanoseconds of each stage of a request. Copies share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct StageTimes(Arc<[AtomicU64; STAGES.len()]>);

impl StageTimes {
    /// Adds time to a stage.
    pub(crate) fn add(&self, stage: Stage, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0[stage as usize].fetch_add(ns, Ordering::Relaxed);
    }

    /// Does work that belongs to a stage.
    pub(crate) fn timed<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.add(stage, start.elapsed());
        done
    }

    /// Does work that belongs to a stage, except for the time that it adds to another one.
    pub(crate) fn timed_without<T>(&self, stage: Stage, other: Stage, work: impl FnOnce() -> T) -> T {
        let (start, before) = (Instant::now(), self.get(other));
        let done = work();
        self.add(stage, start.elapsed().saturating_sub(self.get(other) - before));
        done
    }

    fn get(&self, stage: Stage) -> Duration {
        Duration::from_nanos(self.0[stage as usize].load(Ordering::Relaxed))
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
