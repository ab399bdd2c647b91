//! Requests by operation and by how many keys they had. Knows nothing of the calls that made them.

use sanderling_observe::{Latency, LatencySummary};

use crate::request::{Finished, Operation};

/// Classes of a number of keys: none, 1, 2 to 3, 4 to 7, and so on by powers of two; the last one has all
/// larger ones.
const CLASSES: usize = 25;

/// Counts while a run goes on.
#[derive(Debug, Clone)]
pub struct Requests {
    classes: [Vec<Option<Box<Class>>>; Operation::ALL.len()],
}

#[derive(Debug, Clone)]
struct Class {
    requests: u64,
    failed: u64,
    batch_min: u64,
    batch_max: u64,
    keys: u64,
    missing: u64,
    bytes: u64,
    service: Latency,
}

/// Requests of one operation with a similar number of keys.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RequestCount {
    /// Name of the request, such as `pull`.
    pub operation: String,
    /// The fewest keys that one of them had.
    pub batch_min: u64,
    /// The most keys that one of them had.
    pub batch_max: u64,
    /// All of them.
    pub requests: u64,
    /// Number of failures.
    pub failed: u64,
    /// Keys of those that succeeded.
    pub keys: u64,
    /// Keys that had no row.
    pub missing: u64,
    /// Bytes asked and answered by those that succeeded.
    pub bytes: u64,
    /// From their start to their end, to 1 %, of those that succeeded.
    pub service: LatencySummary,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests::new()
    }
}

impl Requests {
    /// None yet.
    #[must_use]
    pub fn new() -> Requests {
        Requests { classes: std::array::from_fn(|_| (0..CLASSES).map(|_| None).collect()) }
    }

    /// Counts one. The first of its kind allocates.
    pub fn note(&mut self, finished: &Finished) {
        let keys = finished.keys as u64;
        let at = ((u64::BITS - keys.leading_zeros()) as usize).min(CLASSES - 1);
        let class = self.classes[place(finished.operation)][at].get_or_insert_with(Class::new);
        class.requests += 1;
        class.batch_min = class.batch_min.min(keys);
        class.batch_max = class.batch_max.max(keys);
        match &finished.outcome {
            Ok(outcome) => {
                class.keys += keys;
                class.missing += outcome.missing as u64;
                class.bytes += outcome.bytes;
                class.service.record(finished.done.saturating_duration_since(finished.sent));
            }
            Err(_) => class.failed += 1,
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Requests) {
        let mine = self.classes.iter_mut().flatten();
        for (mine, theirs) in mine.zip(other.classes.iter().flatten()) {
            let Some(theirs) = theirs else { continue };
            let mine = mine.get_or_insert_with(Class::new);
            mine.requests += theirs.requests;
            mine.failed += theirs.failed;
            mine.batch_min = mine.batch_min.min(theirs.batch_min);
            mine.batch_max = mine.batch_max.max(theirs.batch_max);
            mine.keys += theirs.keys;
            mine.missing += theirs.missing;
            mine.bytes += theirs.bytes;
            mine.service.merge(&theirs.service);
        }
    }

    /// By operation, small requests first.
    #[must_use]
    pub fn counts(&self) -> Vec<RequestCount> {
        let mut counts = Vec::new();
        for operation in Operation::ALL {
            for class in self.classes[place(operation)].iter().flatten() {
                counts.push(RequestCount {
                    operation: operation.name().to_owned(),
                    batch_min: class.batch_min,
                    batch_max: class.batch_max,
                    requests: class.requests,
                    failed: class.failed,
                    keys: class.keys,
                    missing: class.missing,
                    bytes: class.bytes,
                    service: class.service.summary(),
                });
            }
        }
        counts
    }
}

impl Class {
    fn new() -> Box<Class> {
        Box::new(Class {
            requests: 0,
            failed: 0,
            batch_min: u64::MAX,
            batch_max: 0,
            keys: 0,
            missing: 0,
            bytes: 0,
            service: Latency::new(),
        })
    }
}

fn place(operation: Operation) -> usize {
    operation as usize
}
