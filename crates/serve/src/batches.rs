//! Batches over requests: the dense part of a model runs once for the rows of all requests that came within a window.
//! A batch belongs to one version of a model, since it is kept with it.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sanderling_observe::Exposition;
use tokio::sync::oneshot;

use crate::batch::{Batches, Batching, Entry, Left, Ticket};
use crate::dense::{DeepModel, DenseInputs};
use crate::error::{Kind, ServeError};
use crate::models::ServedModel;
use crate::scored::Scored;
use crate::scores::{Found, Scores, check_scores};
use crate::scoring::ScoringThreads;
use crate::slow::{Stage, StageTimes};

/// Outcome of a request's work on a scoring thread.
pub(crate) enum Step<T> {
    Done(T),
    /// The rows wait for the run of a batch.
    Joins(Joins<T>),
}

impl<T> From<T> for Step<T> {
    fn from(done: T) -> Step<T> {
        Step::Done(done)
    }
}

type Finish<T> = Box<dyn FnOnce(Scores) -> Result<T, ServeError> + Send>;

/// Rows of a request for a batch of their model.
pub(crate) struct Joins<T> {
    model: Arc<ServedModel>,
    inputs: DenseInputs,
    finish: Finish<T>,
}

/// Makes the answer of what was found of a request's rows, now or after the run of a batch.
pub(crate) fn answer<T>(
    found: Found,
    model: &Arc<ServedModel>,
    finish: impl FnOnce(Scores) -> Result<T, ServeError> + Send + 'static,
) -> Result<Step<T>, ServeError> {
    match found {
        Found::Scores(scores) => finish(scores).map(Step::Done),
        Found::Rows(inputs) => {
            Ok(Step::Joins(Joins { model: Arc::clone(model), inputs, finish: Box::new(finish) }))
        }
    }
}

/// Runs a request's work on a scoring thread, and its rows in a batch if they join one.
pub(crate) async fn run<T: Send + 'static>(
    threads: &Arc<ScoringThreads>,
    batching: Batching,
    times: &StageTimes,
    work: impl FnOnce() -> Result<Step<T>, ServeError> + Send + 'static,
) -> Result<T, ServeError> {
    let Joins { model, inputs, finish } = match threads.run(work).await? {
        Step::Done(done) => return Ok(done),
        Step::Joins(joins) => joins,
    };
    let Some(batches) = batches_of(&model) else { unreachable!("only rows of deep models join") };
    let (told, outcome) = oneshot::channel();
    let ticket = Box::new(Request { told, finish, times: times.clone() });
    if batches.join(Entry { inputs, since: Instant::now(), ticket }, batching.rows_max) {
        schedule(Arc::clone(threads), Arc::clone(&model), batching, batching.window);
    }
    outcome
        .await
        .map_err(|_| ServeError::new(Kind::Internal, "a bug, see the server's standard error: it panicked"))?
}

struct Request<T> {
    told: oneshot::Sender<Result<T, ServeError>>,
    finish: Finish<T>,
    times: StageTimes,
}

impl<T: Send> Ticket for Request<T> {
    fn is_gone(&self) -> bool {
        self.told.is_closed()
    }

    fn note_run(&self, since: Instant, began: Instant) {
        self.times.add(Stage::Batch, since, began.saturating_duration_since(since));
        self.times.add_since(Stage::Score, began);
    }

    fn tell(self: Box<Self>, scores: Result<Vec<f32>, ServeError>) {
        let Request { told, finish, .. } = *self;
        let scores = scores.map(|scores| Scores { scores, explained: None });
        // The client may be gone.
        drop(told.send(scores.and_then(finish)));
    }
}

/// Runs a batch of a model after a time, or as soon as it is full. Requests join until a thread begins with it.
fn schedule(threads: Arc<ScoringThreads>, model: Arc<ServedModel>, batching: Batching, wait: Duration) {
    let Some(batches) = batches_of(&model) else { return };
    let batches = Arc::clone(batches);
    tokio::spawn(async move {
        // It is full, or the time is up.
        let _ = tokio::time::timeout(wait, batches.full.notified()).await;
        let runtime = tokio::runtime::Handle::current();
        let (of_run, threads_of_rest) = (Arc::clone(&batches), Arc::clone(&threads));
        let run = move || {
            let (entries, left) = of_run.take(batching.rows_max);
            if let Some(Left { age, is_full }) = left {
                let _inside = runtime.enter();
                let wait = if is_full { Duration::ZERO } else { batching.window.saturating_sub(age) };
                schedule(threads_of_rest, Arc::clone(&model), batching, wait);
            }
            if let Scored::Deep(deep) = &model.model {
                run_entries(deep, &of_run, entries);
            }
            Ok(())
        };
        if let Err(error) = threads.run(run).await {
            // No thread takes the run. Requests with tickets of a run that panicked have been told.
            for entry in batches.take(usize::MAX).0 {
                entry.ticket.tell(Err(error.clone()));
            }
        }
    });
}

/// Runs the dense part for requests, and tells each its scores or its error.
fn run_entries(model: &DeepModel, batches: &Batches, entries: Vec<Entry>) {
    let Some((first, others)) = entries.split_first() else { return };
    let joined;
    let inputs = if others.is_empty() {
        &first.inputs
    } else {
        let mut all = first.inputs.clone();
        others.iter().for_each(|entry| all.append(&entry.inputs));
        joined = all;
        &joined
    };
    batches.note(&entries, inputs.rows);
    let (mut scores, began) = (Vec::with_capacity(inputs.rows), Instant::now());
    let done = model.run(inputs, &mut scores);
    entries.iter().for_each(|entry| entry.ticket.note_run(entry.since, began));
    let mut from = 0;
    for Entry { inputs, ticket, .. } in entries {
        let own = from..from + inputs.rows;
        from = own.end;
        ticket.tell(match &done {
            Err(error) => Err(ServeError::new(Kind::Internal, error.clone())),
            Ok(()) => {
                let scores = scores[own].to_vec();
                check_scores(&scores, 0).map(|()| scores)
            }
        });
    }
}

fn batches_of(model: &ServedModel) -> Option<&Arc<Batches>> {
    match &model.model {
        Scored::Deep(deep) => Some(&deep.batches),
        Scored::BuiltIn(_) => None,
    }
}

/// Appends the metrics of batches.
pub(crate) fn write_metrics<'a>(text: &mut Exposition, models: impl Iterator<Item = &'a Arc<ServedModel>>) {
    let models: Vec<_> = models
        .filter_map(|model| {
            let statistics = batches_of(model)?.statistics.lock().unwrap_or_else(PoisonError::into_inner);
            let counts = [statistics.batches, statistics.requests, statistics.rows];
            Some((&model.name, model.version.to_string(), counts, statistics.wait.summary()))
        })
        .collect();
    if models.is_empty() {
        return;
    }
    for (at, (name, help)) in [
        ("sanderling_serve_batches_total", "Runs of the dense part over the rows of several requests."),
        ("sanderling_serve_batch_requests_total", "Requests in batches."),
        ("sanderling_serve_batch_rows_total", "Rows in batches."),
    ]
    .into_iter()
    .enumerate()
    {
        text.family(name, "counter", help);
        for (model, version, counts, _) in &models {
            text.sample(name, &[("model", model), ("version", version)], counts[at]);
        }
    }
    let waits: Vec<_> = models
        .iter()
        .map(|(model, version, _, wait)| {
            (vec![("model", model.as_str()), ("version", version.as_str())], *wait)
        })
        .collect();
    text.latencies("sanderling_serve_batch_wait", "Time of a request in a batch before its run.", &waits);
}

#[cfg(test)]
mod tests;
