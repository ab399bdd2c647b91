//! Shadow traffic: requests to a live version are repeated on its shadow, and the scores compared. It never delays an
//! answer: one thread does it, and work that would wait is dropped and counted.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sanderling_observe::Exposition;

use crate::catalog::{Models, SHADOW};
use crate::error::ServeError;
use crate::work::Asked;

/// Requests that wait for the thread; a further one is dropped.
const QUEUE_MAX: usize = 16;
/// Pairs of versions with numbers; the first is forgotten for a further one.
const PAIRS_MAX: usize = 16;
/// Upper bounds of the buckets of differences, as metrics name them.
const BUCKETS: [(f64, &str); 6] =
    [(1e-6, "1e-06"), (1e-4, "0.0001"), (1e-3, "0.001"), (1e-2, "0.01"), (0.1, "0.1"), (1.0, "1")];

type Task = Box<dyn FnOnce() + Send>;

/// A live version and its shadow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    model: String,
    version: u64,
    shadow: u64,
}

/// Numbers of a pair.
#[derive(Debug, Clone, Default, PartialEq)]
struct Numbers {
    compared: u64,
    failed: u64,
    dropped: u64,
    rows: u64,
    /// Differences of scores up to each bound.
    buckets: [u64; BUCKETS.len()],
    /// Sum of shadow minus live, and of its absolute value.
    difference: f64,
    absolute: f64,
}

impl Numbers {
    /// Adds the scores of one request.
    fn compare(&mut self, live: &[f32], shadow: &[f32]) {
        if live.len() != shadow.len() {
            self.failed += 1;
            return;
        }
        self.compared += 1;
        for (live, shadow) in live.iter().zip(shadow) {
            let difference = f64::from(*shadow) - f64::from(*live);
            self.rows += 1;
            self.difference += difference;
            self.absolute += difference.abs();
            for (count, (bound, _)) in self.buckets.iter_mut().zip(BUCKETS) {
                *count += u64::from(difference.abs() <= bound);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Pairs(Mutex<BTreeMap<Pair, Numbers>>);

impl Pairs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Pair, Numbers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, pair: &Pair, change: impl FnOnce(&mut Numbers)) {
        let mut pairs = self.lock();
        if pairs.len() == PAIRS_MAX && !pairs.contains_key(pair) {
            pairs.pop_first();
        }
        change(pairs.entry(pair.clone()).or_default());
    }
}

/// The thread and its numbers. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Shadow {
    queue: SyncSender<Task>,
    pairs: Arc<Pairs>,
}

impl Shadow {
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start() -> std::io::Result<Shadow> {
        let (queue, tasks) = sync_channel(QUEUE_MAX);
        std::thread::Builder::new().name("shadow".to_owned()).spawn(move || run(&tasks))?;
        Ok(Shadow { queue, pairs: Arc::default() })
    }

    /// Repeats a request that a live version has answered. `again` answers it from the models that it is given.
    pub(crate) fn offer(
        &self,
        is_busy: bool,
        models: &Models,
        asked: &Asked,
        again: impl FnOnce(&Models, &Asked) -> Result<(), ServeError> + Send + 'static,
    ) {
        // Requests for rows have no scores.
        if asked.scores().is_none() {
            return;
        }
        let Some(live) = asked.model().and_then(|(name, version)| models.get(name, *version)) else { return };
        let Some(shadow) = models.shadow_of(live) else { return };
        let pair = Pair { model: live.name.clone(), version: live.version, shadow: shadow.version };
        if is_busy {
            return self.pairs.change(&pair, |numbers| numbers.dropped += 1);
        }
        let (stand_in, pairs) = (models.stand_in(live, shadow), Arc::clone(&self.pairs));
        let (asked, task_pair) = (asked.clone(), pair.clone());
        let task = move || {
            let repeated = Asked::new(asked.batch_max, 0);
            repeated.keep_scores();
            let answered = again(&stand_in, &repeated);
            pairs.change(&task_pair, |numbers| match (answered, asked.scores(), repeated.scores()) {
                (Ok(()), Some(live), Some(shadow)) => numbers.compare(live, shadow),
                _ => numbers.failed += 1,
            });
        };
        if self.queue.try_send(Box::new(task)).is_err() {
            self.pairs.change(&pair, |numbers| numbers.dropped += 1);
        }
    }

    /// Appends the metrics.
    pub(crate) fn write(&self, text: &mut Exposition) {
        let pairs: Vec<(Pair, Numbers)> =
            self.pairs.lock().iter().map(|(pair, numbers)| (pair.clone(), numbers.clone())).collect();
        if pairs.is_empty() {
            return;
        }
        let versions = |pair: &Pair| (pair.version.to_string(), pair.shadow.to_string());
        text.family(
            "sanderling_serve_shadow_requests_total",
            "counter",
            "Requests to a live version: compared with its shadow, failed there, or dropped under load.",
        );
        for (pair, numbers) in &pairs {
            let (version, shadow) = versions(pair);
            for (outcome, count) in
                [("compared", numbers.compared), ("failed", numbers.failed), ("dropped", numbers.dropped)]
            {
                let labels = [
                    ("model", &*pair.model),
                    ("version", &version),
                    ("shadow", &shadow),
                    ("outcome", outcome),
                ];
                text.sample("sanderling_serve_shadow_requests_total", &labels, count);
            }
        }
        let name = "sanderling_serve_shadow_score_difference";
        text.family(name, "histogram", "Absolute difference of a row's scores, shadow and live.");
        for (pair, numbers) in &pairs {
            let (version, shadow) = versions(pair);
            let labels = [("model", &*pair.model), ("version", &*version), ("shadow", &*shadow)];
            let bounds = BUCKETS.iter().map(|(_, bound)| *bound).chain(["+Inf"]);
            for (bound, count) in bounds.zip(numbers.buckets.into_iter().chain([numbers.rows])) {
                let [model, version, shadow] = labels;
                text.sample(&format!("{name}_bucket"), &[model, version, shadow, ("le", bound)], count);
            }
            text.sample(&format!("{name}_sum"), &labels, numbers.absolute);
            text.sample(&format!("{name}_count"), &labels, numbers.rows);
        }
        let name = "sanderling_serve_shadow_score_bias_sum";
        text.family(name, "gauge", "Sum over rows of the shadow's score less the live one.");
        for (pair, numbers) in &pairs {
            let (version, shadow) = versions(pair);
            let labels = [("model", &*pair.model), ("version", &*version), ("shadow", &*shadow)];
            text.sample(name, &labels, numbers.difference);
        }
    }
}

fn run(tasks: &Receiver<Task>) {
    while let Ok(task) = tasks.recv() {
        // A panic has been reported, and is no reason to end the comparisons.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
    }
}

/// Whether a model has a shadow, so that requests may be repeated.
pub(crate) fn is_wanted(models: &Models) -> bool {
    models.aliases().any(|(_, alias, _)| alias == SHADOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_fall_into_buckets() {
        let mut numbers = Numbers::default();
        numbers.compare(&[0.5, 0.5, 0.25], &[0.5, 0.53125, 0.0]);
        assert_eq!((numbers.compared, numbers.rows, numbers.failed), (1, 3, 0));
        assert_eq!(numbers.buckets, [1, 1, 1, 1, 2, 3]);
        assert_eq!((numbers.difference, numbers.absolute), (0.03125 - 0.25, 0.03125 + 0.25));
        numbers.compare(&[0.5], &[]);
        assert_eq!((numbers.compared, numbers.failed), (1, 1));
    }

    #[test]
    fn pairs_are_bounded() {
        let pairs = Pairs::default();
        for shadow in 0..PAIRS_MAX as u64 + 3 {
            let pair = Pair { model: "m".to_owned(), version: 1, shadow };
            pairs.change(&pair, |numbers| numbers.dropped += 1);
        }
        let found: Vec<u64> = pairs.lock().keys().map(|pair| pair.shadow).collect();
        assert_eq!(found, (3..PAIRS_MAX as u64 + 3).collect::<Vec<_>>());
    }
}
