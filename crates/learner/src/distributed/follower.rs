//! A process of a job whose worker is not the first: it trains, and tells of the passes. Another one makes the tables, validates,
//! saves and reports.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::time::Instant;

use sanderling_client::Cluster;
use sanderling_job::JobError;
use sanderling_observe::{Resident, Stages};

use super::job_shared::{Judged, Start, WorkerMsg};
use super::{JobOptions, JobProgress, STAGES, Workers, work};
use crate::config::Config;
use crate::error::LearnError;
use crate::event::Event;
use crate::measured::{MeasuredOn, SeenMetrics};
use crate::metrics::Scores;
use crate::run::Summary;
use crate::timing::{PassTotal, Timing};

/// Trains beside the first worker; what the run has come to, and the passes that it took part in.
pub(crate) fn follow(
    config: Config,
    options: &JobOptions,
    cluster: Option<&Arc<Cluster>>,
    stop: &AtomicBool,
    observer: &mut dyn FnMut(&Event<'_>),
) -> Result<Summary, LearnError> {
    let (started, mut since) = (Instant::now(), Instant::now());
    let config = config.fitted()?;
    let stages = Stages::new(&STAGES);
    let mut timing =
        Timing::new(options.job.workers, config.train.batch_size as u64, cluster.map(|cluster| &**cluster));
    timing.algorithm = Some(options.algorithm.to_string());
    // Where the run stands, and what of that was before this session.
    let (mut stands, mut before) = (Start::default(), Start::default());
    let (mut judged, mut bad_rows) = (0, 0);
    let mut progress = JobProgress::default();
    let mut hear = |said: WorkerMsg, _: &mut Option<Sender<Judged>>| {
        let end = match said {
            WorkerMsg::Ended(end) => end,
            WorkerMsg::Progress(rows) => {
                return progress.note(rows, stands.pass + 1, config.train.passes, observer);
            }
            WorkerMsg::Started(start) => {
                progress.begin();
                // The workers' wait for each other is no training time.
                (stands, before, judged, since) = (start, start, start.pass, Instant::now());
                return;
            }
            WorkerMsg::Judged(pass) => {
                // Validation and saving by the first worker are no training time.
                since = Instant::now();
                return judged = pass;
            }
            WorkerMsg::Window { .. } => return,
        };
        stands.pass += 1;
        stands.step += end.steps;
        stands.examples += end.scores.len();
        bad_rows = end.bad_rows;
        progress.end_pass();
        let total =
            PassTotal::new(stands.pass, since.elapsed().as_secs_f64(), end.scores.to_scores().metrics());
        // Without rows there is nothing to tell but the error, which comes from the first worker.
        if total.metrics.examples > 0 {
            observer(&Event::Pass(&end.line(stands.step, stands.examples, &total)));
        }
        timing.passes.push(total);
        since = Instant::now();
    };
    let (config_there, start) = (&config, Start::default());
    let workers = Workers {
        model: None,
        config: config_there,
        options,
        order: None,
        cluster,
        stages: stages.clone(),
        start,
        stop,
    };
    let worked = work(workers, &mut hear);
    worked.map_err(|error| match error {
        LearnError::Stopped => {
            LearnError::JobStopped { who: JobError::Halted { worker: options.rank() }, pass: judged }
        }
        LearnError::Job(who @ JobError::HaltedBy { .. }) => LearnError::JobStopped { who, pass: judged },
        error => error,
    })?;
    if timing.passes.is_empty() && stands.step > 0 {
        let (passes, early) = (stands.pass, stands.pass < config.train.passes);
        observer(&Event::NothingLeft { passes, early });
    }
    let train_s = timing.passes.iter().fold(0.0, |sum, pass| sum + pass.seconds);
    timing.stages = stages.totals();
    if let Some(cluster) = cluster {
        timing.calls = cluster.latencies();
    }
    timing.total_s = started.elapsed().as_secs_f64();
    let (first, last) = (timing.passes.first(), timing.passes.last());
    // Of a job that was resumed, this process has not seen the first pass.
    let counted = first.filter(|pass| pass.pass == 1).or(last);
    let metrics = counted.map_or_else(|| Scores::new().metrics(), |pass| pass.metrics);
    let measured_on = MeasuredOn::of_pass(counted.map_or(1, |pass| pass.pass));
    let seen = last.filter(|pass| pass.pass > 1);
    let seen = seen.map(|pass| SeenMetrics { pass: pass.pass, metrics: pass.metrics });
    let number = |value: f64| value.is_finite().then_some(value);
    let Start { pass: passes, step, examples, .. } = stands;
    Ok(Summary {
        name: config.name.clone(),
        auc: number(metrics.auc),
        logloss: number(metrics.logloss),
        prob_mean: number(metrics.prob_mean),
        real_mean: number(metrics.real_mean),
        normalized_entropy: number(metrics.normalized_entropy),
        numbers: metrics.numbers,
        measured_on: measured_on.name(),
        measured_examples: metrics.examples,
        seen,
        tests: Vec::new(),
        from: None,
        progressive_curve: Vec::new(),
        warnings: Vec::new(),
        known: Vec::new(),
        importance: None,
        examples,
        examples_per_s: (examples - before.examples) as f64 / train_s.max(1e-9),
        train_s,
        steps: step,
        passes,
        best_pass: passes,
        rows: 0,
        zero_weights: 0,
        table_bytes: 0,
        memory_peak_bytes: Resident::read().peak_bytes,
        bad_rows,
        valid_bad_rows: 0,
        stopped: false,
        model: PathBuf::new(),
        report: PathBuf::new(),
        timing,
    })
}
